"""Why a tile of the grouped GEMM was chosen, and why not each of the others."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from refmoe.chips import DEFAULT_ARCH, Chip, Cluster, kernel_chip
from refmoe.cuda.gemm.choice import (
    DEFAULT_TILE,
    DYNAMIC_TILES,
    LOW_LATENCY_TILES,
    choose_tile,
    tiles_needed,
)
from refmoe.cuda.gemm.tile import TILES, Tile, TileRefused, capacity_fault, check_tile
from refmoe.errors import ArgumentError, describe
from refmoe.reference.layout import checked_count

#: What the static rule was designed to run above PREFILL_TOKENS tokens, after a rule for SM100.
PREFILL_TOKENS = 256
PREFILL_TILE = Tile(256, 8, 512)
PREFILL_CLUSTER: Cluster = (2, 1, 1)


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
    """The tile to run and what it was chosen for.

    Attributes:
        tile: the tile.
        stages: depth of its pipeline, the most that fit.
        m: the most tokens of any expert.
        chip: the target.
        rule: which rule chose.
        min_latency: whether latency was asked for.
    """

    tile: Tile
    stages: int
    m: int
    chip: Chip
    rule: Rule
    min_latency: bool


def explained(
    m: int, *, arch: Chip | str = DEFAULT_ARCH, rule: Rule | str = Rule.DYNAMIC, min_latency: bool = False
) -> Choice:
    """The tile for experts with at most `m` tokens, with what was asked.

    Args:
        m: the most tokens of any expert, at least 1.
        arch: the target.
        rule: see `Rule`.
        min_latency: narrow tiles for few tokens; an input of the static rule only.

    Raises:
        ArgumentError: no token, an unknown arch or rule, or min_latency with the dynamic rule.
    """
    checked_count("m", m, least=1)
    chip, chosen = kernel_chip(arch), _as_rule(rule)
    if chosen is Rule.DYNAMIC and min_latency:
        found = "min_latency with the dynamic rule, which runs the narrowest tile that is enough anyway"
        raise ArgumentError("min_latency", found, "the rule static")
    if chosen is Rule.STATIC and not min_latency:
        return Choice(DEFAULT_TILE, check_tile(DEFAULT_TILE, arch=chip), m, chip, chosen, min_latency)
    return Choice(*choose_tile(m, chip, min_latency=min_latency), m, chip, chosen, min_latency)


def weigh(choice: Choice) -> tuple[Weighed, ...]:
    """What became of every tile of the table, and of the design's own where that cannot be had."""
    if choice.rule is Rule.DYNAMIC:
        return tuple(_dynamic(tile, choice) for tile in TILES)
    above = choice.m > PREFILL_TOKENS
    refused = (Weighed(PREFILL_TILE, TileVerdict.REFUSED, _prefill_refusal(choice.m, choice.chip)),) if above else ()
    return (*(Weighed(tile, *_static(tile, choice)) for tile in TILES), *refused)


def reason(choice: Choice) -> str:
    """Why this tile."""
    return next(entry.reason for entry in weigh(choice) if entry.verdict is TileVerdict.CHOSEN)


def _dynamic(tile: Tile, choice: Choice) -> Weighed:
    """What the dynamic rule has to say of `tile`."""
    best, m = choice.tile, choice.m
    fault = capacity_fault(tile, choice.chip)
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


def _static(tile: Tile, choice: Choice) -> tuple[TileVerdict, str]:
    """What the static rule has to say of `tile`."""
    m, best, limits = choice.m, choice.tile, dict(LOW_LATENCY_TILES)
    if tile == best:
        if tile in limits:
            why = f"min_latency, and M = {m} is at most {limits[tile]}"
        elif m > PREFILL_TOKENS:
            why = f"M = {m} is above {PREFILL_TOKENS}, for which {PREFILL_TILE} cannot be had"
        elif choice.min_latency:
            why = f"M = {m} is above {max(limits.values())}, too many for a narrow tile"
        else:
            why = "the default without min_latency"
        return TileVerdict.CHOSEN, why
    if tile == DEFAULT_TILE:
        why = f"the default, but {best} has less latency"
    elif tile not in limits:
        why = "no case of the static rule"
    elif not choice.min_latency:
        why = "only with min_latency"
    elif m > limits[tile]:
        why = f"only up to M = {limits[tile]}"
    else:
        why = f"M = {m} already fits {best}"
    return TileVerdict.SKIPPED, why


def _prefill_refusal(m: int, chip: Chip) -> str:
    """Why the design's tile for prefill is not run: it cannot exist, and a width of 8 would be wrong if it could."""
    try:
        check_tile(PREFILL_TILE, arch=chip, cluster=PREFILL_CLUSTER)
    except TileRefused as refusal:
        impossible = refusal.found
    passes = tiles_needed(PREFILL_TILE, m)
    return f"{impossible}; besides, tiles {PREFILL_TILE.n} wide would read the weights {passes} times for {m} tokens"


def _as_rule(rule: Rule | str) -> Rule:
    """The rule of that name.

    Raises:
        ArgumentError: there is none.
    """
    for member in Rule:
        if rule in (member, member.value):
            return member
    raise ArgumentError("rule", describe(rule), f"one of {', '.join(member.value for member in Rule)}")
