"""Which tile of the grouped GEMM to run. Why none of the others, refmoe.views.weighed says.

A decode step with one token an expert wants a tile narrow in tokens. The "M" of a problem, as everyone calls it, is the
number of tokens of the expert that has the most of them.
"""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

from refmoe.chips import DEFAULT_ARCH, Chip, kernel_chip
from refmoe.cuda.gemm.tile import TILES, Tile, capacity_fault, check_tile
from refmoe.errors import ArgumentError, describe
from refmoe.reference.layout import checked_count, checked_offsets

#: One tile a width, narrowest first: what the dynamic rule chooses among. A narrow tile is deep, to fill its stages.
DYNAMIC_TILES = TILES[:5]

#: What the static rule runs, in this order: the tile, and the most tokens up to which min_latency asks for it.
LOW_LATENCY_TILES = ((Tile(128, 8, 512), 8), (Tile(128, 32, 256), 32))
DEFAULT_TILE = Tile(128, 128, 128)


def tiles_needed(tile: Tile, m: int) -> int:
    """Tiles side by side that cover `m` tokens of one expert."""
    return -(-m // tile.n)


def most_tokens(offsets: NDArray[np.int64]) -> int:
    """The M of a grouped problem: the most tokens that any expert has; the sum or the mean would pick wrong tiles.

    Args:
        offsets: int64 [E + 1], first row of each expert, then the number of rows.

    Raises:
        ArgumentError: `offsets` are no such offsets.
    """
    return int(np.diff(checked_offsets(offsets)).max())


class Rule(enum.Enum):
    """How a tile is chosen."""

    STATIC = "static"
    """By thresholds on M, as designed: narrow tiles only if latency is asked for, one of three tiles."""
    DYNAMIC = "dynamic"
    """llama.cpp's: of the widths that fit, the one that needs the fewest tiles, and of those the narrowest."""


def choose_tile(
    m: int, *, arch: Chip | str = DEFAULT_ARCH, rule: Rule | str = Rule.DYNAMIC, min_latency: bool = False
) -> tuple[Tile, int]:
    """The tile for experts with at most `m` tokens, and the most stages that it can have.

    The tile of least padding is not what to look for: at 128 tokens an 8-wide tile pads as little as a 128-wide one,
    nothing, but reads all weights sixteen times.

    Args:
        m: the most tokens of any expert, at least 1; see `most_tokens`.
        arch: the target.
        rule: see `Rule`.
        min_latency: narrow tiles for few tokens; an input of the static rule only.

    Raises:
        ArgumentError: no token, an unknown arch or rule, or min_latency with the dynamic rule.
    """
    chip = kernel_chip(arch)
    checked_count("m", m, least=1)
    if as_rule(rule) is Rule.DYNAMIC:
        if min_latency:
            found = "min_latency with the dynamic rule, which runs the narrowest tile that is enough anyway"
            raise ArgumentError("min_latency", found, "the rule static")
        fitting = [each for each in DYNAMIC_TILES if capacity_fault(each, chip) is None]
        tile = min(fitting, key=lambda each: (tiles_needed(each, m), each.n))
    else:
        tile = next((each for each, limit in LOW_LATENCY_TILES if min_latency and m <= limit), DEFAULT_TILE)
    return tile, check_tile(tile, arch=chip)


def as_rule(rule: Rule | str) -> Rule:
    """The rule of that name.

    Raises:
        ArgumentError: there is none.
    """
    for member in Rule:
        if rule in (member, member.value):
            return member
    raise ArgumentError("rule", describe(rule), f"one of {', '.join(member.value for member in Rule)}")
