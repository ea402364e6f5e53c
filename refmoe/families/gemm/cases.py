"""The case list of the grouped GEMM, and why each case is there.

A case's data does not depend on its tile or stages, so that cases of one shape and fill that differ only in those are
held against the same bytes: tiles and stages are equal to each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from refmoe.cuda.arch import MIN_STAGES
from refmoe.cuda.gemm.tile import TILES, Tile, max_stages
from refmoe.families.case import Case, Shape
from refmoe.families.gemm.fills import GEMM_FILLS

__all__ = ["gemm_cases", "software_cases"]

#: K in whole steps of no tile, over the end of a scale atom; N past one tile of weight rows, and of no whole warp.
_RAGGED_K, _RAGGED_N = 736, 136

#: Tokens of the narrow and of the wide tiles: one past a tile, so that the second one of an expert is nearly empty.
_PAST_A_TILE = {tile: tile.n + 1 for tile in TILES}

#: Fills that the default level takes to every tile, and the tiles that it takes the others to: narrowest and deepest,
#: in between, widest.
_EVERY_TILE = ("wide-range", "specials", "integer")
_THREE_TILES = (Tile(128, 8, 512), Tile(128, 32, 256), Tile(128, 128, 128))

#: More tiles than any arch has multiprocessors, with one step of K each: CTAs take several.
_LOOPING = Shape(m=8, k=96, n=2816, e=8)

#: Decode in gpt-oss (2880 -> 5760 and 2880 -> 2880) and DeepSeek-V3 (7168 -> 4096 and 2048 -> 7168): K, N of a layer.
_LAYERS = ((2880, 5760), (2880, 2880), (7168, 4096), (2048, 7168))

#: Every request that cannot be had, and is refused in a sentence: tile, stages, cluster.
_REFUSED = (
    ("128x128x64", 0, "1x1x1"),
    ("128x128x128", 6, "1x1x1"),
    ("128x8x512", 1, "1x1x1"),
    ("256x8x512", 0, "1x1x1"),
    ("256x8x512", 0, "2x1x1"),
)


def gemm_cases(level: str) -> Iterator[Case]:
    """The cases of a level; see `refmoe.families.suites`."""
    yield from _quick()
    if level in ("default", "full"):
        yield from _default()
    if level == "full":
        yield from _full()


def software_cases() -> list[Case]:
    """Cases small enough for the executor where the kernel carries the tensor-core instruction in software."""
    return [_case("wide-range", Shape(m=2, k=96, n=24, e=1), tile="128x8x128")]


def _case(fill: str, shape: Shape, dtype: str = "f32", seed: int = 7, **options: str | int) -> Case:
    return Case("sm12x_gemm", dtype, shape, fill, seed, **options)  # type: ignore[arg-type]


def _quick() -> Iterator[Case]:
    ragged = Shape(m=5, k=416, n=_RAGGED_N, e=3)
    for tile in TILES:
        yield _case("wide-range", ragged, tile=str(tile))
    for tile in TILES:
        yield _case("gaussian", ragged, "bf16", tile=str(tile), alpha="distinct", bias="distinct")
    for fill in GEMM_FILLS:
        yield _case(fill, dataclasses.replace(ragged, m=7))  # past the six kinds of token of the fill `specials`
    for tile in TILES:
        # All rows at the last expert, past one tile of tokens: those before have none and shift nobody.
        yield _case("one-hot-tokens", Shape(_PAST_A_TILE[tile], 160, n=24, e=3), tile=str(tile), routing="same-experts")
    yield _case("one-hot-weights", Shape(m=6, k=416, n=72, e=6), routing="all-one-token")
    yield _case("one-hot-tokens", Shape(m=6, k=416, n=72, e=9), routing="empty-experts", poison=0x7F)
    yield _case("gaussian", Shape(m=7, k=416, n=72, e=4), "bf16", first_expert=4, ranks=2)
    yield _case("gaussian", Shape(m=3, k=416, n=72, e=4), routing="elsewhere", first_expert=4, ranks=2)
    yield _case("gaussian", Shape(m=3, k=416, n=72, e=2), alpha="distinct")
    yield _case("gaussian", Shape(m=3, k=416, n=72, e=2), bias="distinct")
    yield _case("wide-range", _LOOPING, tile="128x8x128", routing="all-one-token")
    for refused, stages, cluster in _REFUSED:
        yield _case("wide-range", ragged, tile=refused, stages=stages, cluster=cluster)
    yield _case("wide-range", dataclasses.replace(ragged, n=12))  # rows of 24 bytes: no whole 16-byte stores


def _default() -> Iterator[Case]:
    ragged = Shape(m=9, k=_RAGGED_K, n=_RAGGED_N, e=3)
    for fill in GEMM_FILLS:
        for tile in TILES if fill in _EVERY_TILE else _THREE_TILES:
            yield _case(fill, ragged, tile=str(tile), alpha="distinct", bias="distinct", poison=0x7F)
    for tile in TILES:
        yield _case("specials", ragged, "bf16", tile=str(tile))
    # Many more steps of K than stages: the ring wraps, and its barriers go through many phases.
    for tile in TILES:
        for stages in sorted({MIN_STAGES, max_stages(tile)}):
            yield _case("wide-range", Shape(m=2, k=1440, n=16, e=2), tile=str(tile), stages=stages)
    for tile in TILES:
        yield _case("gaussian", Shape(m=0, k=416, n=72, e=2), tile=str(tile))
    for k, n in _LAYERS:
        for m, experts, routing in ((1, 1, "uniform"), (4, 4, "all-one-token")):
            shape = Shape(m, k, n=n // 45 if k == 2880 else n // 64, e=experts)
            yield _case("wide-range", shape, routing=routing)
            yield _case("gaussian", shape, "bf16", routing=routing, alpha="distinct", bias="distinct")
    for shape in (Shape(m=9, k=384, n=80, e=4), Shape(m=9, k=1536, n=24, e=4)):
        for dtype in ("f32", "bf16"):
            yield _case("real", shape, dtype, bias="distinct")
    yield _case("one-hot-weights", Shape(m=3, k=2880, n=2880, e=1), tile="128x8x512")  # every element of K
    yield _case("one-hot-weights", _LOOPING, "bf16", tile="128x16x128", routing="all-one-token")


def _full() -> Iterator[Case]:
    for tile in TILES:
        for stages in range(MIN_STAGES, max_stages(tile) + 1):
            for k in (32, 416, 2880):
                yield _case("wide-range", Shape(m=9, k=k, n=_RAGGED_N, e=3), tile=str(tile), stages=stages)
    for seed in (1, 2, 3):
        for fill in GEMM_FILLS:
            for tile in TILES:
                shape = Shape(m=tile.n + 9, k=_RAGGED_K, n=264, e=4)
                yield _case(fill, shape, seed=seed, tile=str(tile))
                yield _case(fill, shape, "bf16", seed, tile=str(tile), alpha="distinct", bias="distinct")
    for k in range(128, 1056, 32):
        yield _case("one-hot-weights", Shape(m=3, k=k, n=264, e=2))
    for n in range(8, 264, 8):
        yield _case("one-hot-tokens", Shape(m=3, k=160, n=n, e=2), "bf16")
    for k, n in _LAYERS:
        yield _case("wide-range", Shape(m=1, k=k, n=n, e=1))
        yield _case("gaussian", Shape(m=4, k=k, n=n // 4, e=4), "bf16", routing="all-one-token", bias="distinct")
    for tile in (Tile(128, 64, 128), Tile(128, 128, 128), Tile(256, 8, 256)):
        yield _case("wide-range", Shape(m=300, k=_RAGGED_K, n=_RAGGED_N, e=2), tile=str(tile))  # a prefill
