"""Which tile of the grouped GEMM to run, and why not each of the others.

A decode step with one token an expert wants a tile narrow in tokens. The "M" of a problem, as everyone calls it, is the
number of tokens of the expert that has the most of them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refmoe.chips import DEFAULT_ARCH, Chip, Cluster, kernel_chip
from refmoe.cuda.gemm.tile import TILES, Tile, TileRefused, capacity_fault, check_tile
from refmoe.errors import ArgumentError, describe
from refmoe.reference.layout import checked_count, checked_offsets

#: One tile a width, narrowest first: what the dynamic rule chooses among. A narrow tile is deep, to fill its stages.
DYNAMIC_TILES = TILES[:5]

#: What the static rule runs, in this order: the tile, and the most tokens up to which min_latency asks for it.
LOW_LATENCY_TILES = ((Tile(128, 8, 512), 8), (Tile(128, 32, 256), 32))
DEFAULT_TILE = Tile(128, 128, 128)

#: What the static rule was designed to run above PREFILL_TOKENS tokens, after a rule for SM100.
PREFILL_TOKENS = 256
PREFILL_TILE = Tile(256, 8, 512)
PREFILL_CLUSTER: Cluster = (2, 1, 1)


def tiles_needed(tile: Tile, m: int) -> int:
    """Tiles side by side that cover `m` tokens of one expert."""
    return -(-m // tile.n)


def use_percent(tile: Tile, m: int) -> float:
    """Percent of the token columns of those tiles that hold a token."""
    return 100 * m / (tiles_needed(tile, m) * tile.n)


def llama_cpp_warps(m: int) -> int:
    """Warps that llama.cpp's matrix-vector kernel gives a row for `m` tokens: 4 up to 4, 2 up to 8, else 1.

    Source: `calc_nwarps` of llama.cpp's ggml-cuda/mmvq.cu.

    Raises:
        ArgumentError: `m` is no positive integer.
    """
    checked_count("m", m, least=1)
    return 4 if m <= 4 else 2 if m <= 8 else 1


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


class TileVerdict(enum.Enum):
    """What became of a tile when one was chosen."""

    CHOSEN = "chosen"
    SKIPPED = "skipped"
    """It could run; the rule prefers another."""
    REFUSED = "refused"
    """It cannot run."""


@dataclass(frozen=True)
class Weighed:
    """One tile that was considered, what became of it, and why."""

    tile: Tile
    verdict: TileVerdict
    reason: str


@dataclass(frozen=True)
class Choice:
    """The tile to run and how it came about.

    Attributes:
        tile: the tile.
        stages: depth of its pipeline, the most that fit.
        m: the most tokens of any expert.
        arch: name of the target.
        rule: which rule chose.
        min_latency: whether latency was asked for.
        weighed: every tile of the table, and the design's own where that cannot be had.
    """

    tile: Tile
    stages: int
    m: int
    arch: str
    rule: Rule
    min_latency: bool
    weighed: tuple[Weighed, ...]

    @property
    def reason(self) -> str:
        """Why this tile."""
        return next(entry.reason for entry in self.weighed if entry.verdict is TileVerdict.CHOSEN)


def choose_tile(
    m: int, *, arch: Chip | str = DEFAULT_ARCH, rule: Rule | str = Rule.DYNAMIC, min_latency: bool = False
) -> Choice:
    """Choose a tile for experts with at most `m` tokens, and say of every tile why it was chosen or not.

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
    chosen_rule = _as_rule(rule)
    if chosen_rule is Rule.DYNAMIC:
        if min_latency:
            found = "min_latency with the dynamic rule, which runs the narrowest tile that is enough anyway"
            raise ArgumentError("min_latency", found, "the rule static")
        weighed = _dynamic(m, chip)
    else:
        weighed = _static(m, min_latency, chip)
    tile = next(entry.tile for entry in weighed if entry.verdict is TileVerdict.CHOSEN)
    return Choice(tile, check_tile(tile, arch=chip), m, chip.arch, chosen_rule, min_latency, tuple(weighed))


def _dynamic(m: int, chip: Chip) -> list[Weighed]:
    fitting = [tile for tile in DYNAMIC_TILES if capacity_fault(tile, chip) is None]
    best = min(fitting, key=lambda tile: (tiles_needed(tile, m), tile.n))
    return [_weigh(tile, best, m, chip) for tile in TILES]


def _weigh(tile: Tile, best: Tile, m: int, chip: Chip) -> Weighed:
    """What the dynamic rule, which chose `best`, has to say of `tile`."""
    fault = capacity_fault(tile, chip)
    needed, fewest = tiles_needed(tile, m), tiles_needed(best, m)
    if fault is not None:
        return Weighed(tile, TileVerdict.REFUSED, fault)
    if tile == best:
        count = "1 tile is" if fewest == 1 else f"{fewest} tiles are"
        return Weighed(tile, TileVerdict.CHOSEN, f"{count} enough, and no narrower tile needs as few")
    if tile not in DYNAMIC_TILES:
        usual = next(other for other in DYNAMIC_TILES if other.n == tile.n)
        return Weighed(tile, TileVerdict.SKIPPED, f"the rule has one tile a width, {usual} for {tile.n}")
    if needed > fewest:
        return Weighed(tile, TileVerdict.SKIPPED, f"needs {needed} tiles where {best} needs {fewest}")
    return Weighed(tile, TileVerdict.SKIPPED, f"needs as many tiles as {best}, but is wider")


def _static(m: int, min_latency: bool, chip: Chip) -> list[Weighed]:
    limits = dict(LOW_LATENCY_TILES)
    best = next((tile for tile, limit in LOW_LATENCY_TILES if min_latency and m <= limit), DEFAULT_TILE)
    weighed = []
    for tile in TILES:
        if tile == best:
            if tile in limits:
                reason = f"min_latency, and M = {m} is at most {limits[tile]}"
            elif m > PREFILL_TOKENS:
                reason = f"M = {m} is above {PREFILL_TOKENS}, for which {PREFILL_TILE} cannot be had"
            elif min_latency:
                reason = f"M = {m} is above {max(limits.values())}, too many for a narrow tile"
            else:
                reason = "the default without min_latency"
            weighed.append(Weighed(tile, TileVerdict.CHOSEN, reason))
        elif tile == DEFAULT_TILE:
            weighed.append(Weighed(tile, TileVerdict.SKIPPED, f"the default, but {best} has less latency"))
        elif tile not in limits:
            weighed.append(Weighed(tile, TileVerdict.SKIPPED, "no case of the static rule"))
        elif not min_latency:
            weighed.append(Weighed(tile, TileVerdict.SKIPPED, "only with min_latency"))
        elif m > limits[tile]:
            weighed.append(Weighed(tile, TileVerdict.SKIPPED, f"only up to M = {limits[tile]}"))
        else:
            weighed.append(Weighed(tile, TileVerdict.SKIPPED, f"M = {m} already fits {best}"))
    if m > PREFILL_TOKENS:
        weighed.append(Weighed(PREFILL_TILE, TileVerdict.REFUSED, _prefill_refusal(m, chip)))
    return weighed


def _prefill_refusal(m: int, chip: Chip) -> str:
    """Why the design's tile for prefill is not run: it cannot exist, and a width of 8 would be wrong if it could."""
    try:
        check_tile(PREFILL_TILE, arch=chip, cluster=PREFILL_CLUSTER)
    except TileRefused as refusal:
        impossible = refusal.found
    passes = tiles_needed(PREFILL_TILE, m)
    return f"{impossible}; besides, tiles {PREFILL_TILE.n} wide would read the weights {passes} times for {m} tokens"


def _as_rule(rule: Rule | str) -> Rule:
    for member in Rule:
        if rule in (member, member.value):
            return member
    raise ArgumentError("rule", describe(rule), f"one of {', '.join(member.value for member in Rule)}")
