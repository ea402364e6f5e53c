"""Which tile of the grouped GEMM to run. Why none of the others, refmoe.views.weighed says.

A decode step with one token an expert wants a tile narrow in tokens. The "M" of a problem, as everyone calls it, is the
number of tokens of the expert that has the most of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from refmoe.chips import DEFAULT_ARCH, Chip, kernel_chip
from refmoe.cuda.gemm.tile import TILES, Tile, capacity_fault, check_tile
from refmoe.reference.layout import checked_offsets

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


def choose_tile(m: int, arch: Chip | str = DEFAULT_ARCH, *, min_latency: bool = False) -> tuple[Tile, int]:
    """The tile for experts with at most `m` tokens, and the most stages that it can have.

    llama.cpp's rule: of the widths that fit, the one that needs the fewest tiles, and of those the narrowest. The tile
    of least padding is not what to look for: at 128 tokens an 8-wide tile pads as little as a 128-wide one, nothing,
    but reads all weights sixteen times.

    Args:
        m: the most tokens of any expert, at least 1; see `most_tokens`.
        arch: the target.
        min_latency: one of `LOW_LATENCY_TILES` for few tokens, else `DEFAULT_TILE`.

    Raises:
        ArgumentError: an unknown arch.
    """
    chip = kernel_chip(arch)
    if min_latency:
        tile = next((each for each, limit in LOW_LATENCY_TILES if m <= limit), DEFAULT_TILE)
    else:
        fitting = [each for each in DYNAMIC_TILES if capacity_fault(each, chip) is None]
        tile = min(fitting, key=lambda each: (tiles_needed(each, m), each.n))
    return tile, check_tile(tile, arch=chip)
