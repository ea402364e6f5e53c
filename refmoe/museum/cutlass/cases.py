"""The case list of CUTLASS's grouped GEMM, and why each case is there.

Its tile is 128 weight rows by 128 tokens by 128 of K, and it takes only whole steps of K. So tails are tails of N and
of tokens, and of the zeros that pad a K: 2880 runs as 2944.
"""

from __future__ import annotations

from collections.abc import Iterator

from refmoe.families.case import CUTLASS_BUILDS, Case, Shape
from refmoe.families.gemm.fills import GEMM_FILLS

__all__ = ["BENCH_SHAPE", "cutlass_cases"]

#: A GEMM of gpt-oss with K in whole steps; with seed 7 the last of its experts gets no row.
BENCH_SHAPE = Shape(m=9, k=2816, n=2880, e=4)

#: N past one tile of weight rows, and of no whole warp; more steps of K than stages, so that the ring wraps.
_RAGGED = Shape(m=7, k=384, n=136, e=3)


def cutlass_cases(level: str) -> Iterator[Case]:
    """The cases of a level; see `refmoe.families.suites`."""
    yield from _quick()
    if level in ("default", "full"):
        yield from _default()
    if level == "full":
        yield from _full()


def _case(fill: str, shape: Shape, dtype: str = "bf16", seed: int = 7, **options: str | int) -> Case:
    return Case("cutlass_gemm", dtype, shape, fill, seed, **options)  # type: ignore[arg-type]


def _quick() -> Iterator[Case]:
    yield _case("wide-range", _RAGGED, alpha="distinct")
    # Experts without rows first, last and in between; more groups than one warp has lanes to read them with.
    yield _case("one-hot-tokens", Shape(m=6, k=128, n=72, e=34), routing="empty-experts", poison=0x7F)
    # What no build serves, refused in a sentence.
    yield _case("wide-range", _RAGGED, "f32")
    yield _case("gaussian", _RAGGED, bias="distinct")
    yield _case("wide-range", _RAGGED, tile="128x8x128")
    yield _case("wide-range", Shape(m=7, k=416, n=136, e=3))
    yield _case("wide-range", Shape(m=7, k=384, n=12, e=3))


def _default() -> Iterator[Case]:
    yield _case("specials", _RAGGED)
    yield _case("integer", Shape(m=130, k=256, n=264, e=2), routing="same-experts")  # a second tile of tokens
    yield _case("zero-padded", Shape(m=3, k=2944, n=24, e=2))
    yield _case("gaussian", Shape(m=5, k=2816, n=72, e=2), seed=9, first_expert=2, ranks=2)  # rows of another rank
    # More tiles than CTAs, each of another group than the one before: tensor maps are edited again and again.
    yield _case("one-hot-tokens", Shape(m=25, k=128, n=136, e=25), routing="all-one-token", alpha="distinct")
    for build in CUTLASS_BUILDS[1:]:
        yield _case("wide-range", _RAGGED, build=build, alpha="distinct")


def _full() -> Iterator[Case]:
    for build in CUTLASS_BUILDS:
        for fill in GEMM_FILLS:
            yield _case(fill, _RAGGED, build=build)
            yield _case(fill, Shape(m=9, k=640, n=264, e=4), build=build, alpha="distinct", poison=0x7F)
        for routing in ("all-one-token", "same-experts", "empty-experts"):
            yield _case("one-hot-weights", Shape(m=6, k=384, n=136, e=6), build=build, routing=routing)
        yield _case("gaussian", Shape(m=3, k=256, n=72, e=4), build=build, routing="elsewhere", first_expert=4, ranks=2)
        yield _case("gaussian", Shape(m=0, k=256, n=72, e=2), build=build)
        yield _case("wide-range", Shape(m=300, k=640, n=264, e=2), build=build)  # a prefill
        yield _case("zero-padded", Shape(m=9, k=2944, n=136, e=2), build=build, alpha="distinct")
        # Many groups: more than CTAs, and more than a warp has lanes.
        yield _case("one-hot-tokens", Shape(m=70, k=128, n=136, e=70), build=build, routing="all-one-token")
        yield _case("wide-range", BENCH_SHAPE, build=build, alpha="distinct")
    for n in range(8, 264, 64):
        yield _case("one-hot-tokens", Shape(m=3, k=256, n=n, e=2))
