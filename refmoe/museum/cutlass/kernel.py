"""CUTLASS's grouped GEMM, another kernel of the family `sm12x_gemm`: its cases, what it refuses, how it runs.

Operands, fills, reference and contract are those of the family. The cases have a name of their own, `cutlass_gemm`,
because their tails differ. The tile is 128 weight rows by 128 tokens by 128 of K, and CUTLASS takes only whole steps of
K. So there are tails of N and of tokens, and zeros that pad K: 2880 runs as 2944.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from refmoe.cuda.toolchain import find_toolchain
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.case import Shape, triple, word
from refmoe.families.choices import RANKS, ROUTING, check_choices
from refmoe.families.family import POISON, Case, Expectation, Inputs, Outputs
from refmoe.families.gemm.epilogue import ALPHA, BIAS
from refmoe.families.gemm.family import SM12X_GEMM
from refmoe.families.gemm.fills import FILLS
from refmoe.museum.cutlass.builds import (
    CUTLASS_ARCHITECTURES,
    FLAGS,
    HOST_FLAGS,
    SOURCE,
    STANDIN,
    Build,
    find_built,
)
from refmoe.museum.cutlass.builds import build as build_kernel
from refmoe.museum.cutlass.gemm import (
    Prepared,
    build_of,
    execute,
    grouped_gemm,
    host_launch,
    operands,
    prepare,
)
from refmoe.museum.cutlass.headers import PYPI_REQUIREMENT, PYPI_SHA256, CutlassMissing, find_headers
from refmoe.museum.cutlass.host import CutlassLaunch
from refmoe.museum.cutlass.refusals import check_case
from refmoe.museum.exhibit import restated
from refmoe.verify.kernel import Kernel, Place, Refusal
from refmoe.verify.source import kernel_sha256

#: What is said of a build that nobody has made; the second, of one that a plain `make cutlass` does not make.
NOT_BUILT = ("not built: make cutlass", "not built: make cutlass CUTLASS_BUILDS=all")

#: Instantiations: the schedule, and whether weights lie on M (swapped) or tokens do.
_BUILDS = ("cooperative-swapped", "pingpong-swapped", "cooperative-unswapped", "pingpong-unswapped")

# --- cases ----------------------------------------------------------------------------------------------------------

#: A GEMM of gpt-oss with K in whole steps; with seed 7 the last of its experts gets no row.
BENCH_SHAPE = Shape(m=9, k=2816, n=2880, e=4)

#: N past one tile of weight rows, and of no whole warp; more steps of K than stages, so that the ring wraps.
_RAGGED = Shape(m=7, k=384, n=136, e=3)


def _case(fill: str, shape: Shape, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return CUTLASS_GEMM.case(fill, shape, dtype, seed, **options)


def _quick() -> Iterator[Case]:
    yield _case("wide-range", _RAGGED, alpha="distinct")
    # Experts without rows first, last and in between; more groups than one warp has lanes to read them with.
    yield _case("one-hot-tokens", Shape(m=6, k=128, n=72, e=34), routing="empty-experts", poison=0x7F)
    # What no build serves, refused in a sentence.
    yield _case("wide-range", _RAGGED, "f32", refusal="CUTLASS's kernel is instantiated for BF16 outputs")
    yield _case("gaussian", _RAGGED, bias="distinct", refusal="the epilogue of this instantiation is alpha * sum")
    yield _case("wide-range", _RAGGED, tile="128x8x128", refusal="asserts N >= 32")
    yield _case("wide-range", Shape(m=7, k=416, n=136, e=3), refusal="CUTLASS loads FP4 by so many elements")
    yield _case("wide-range", Shape(m=7, k=384, n=12, e=3), refusal="needed N a multiple of 8")


def _default() -> Iterator[Case]:
    yield _case("specials", _RAGGED)
    yield _case("integer", Shape(m=130, k=256, n=264, e=2), routing="same-experts")  # a second tile of tokens
    yield _case("zero-padded", Shape(m=3, k=2944, n=24, e=2))
    yield _case("gaussian", Shape(m=5, k=2816, n=72, e=2), seed=9, first_expert=2, ranks=2)  # rows of another rank
    # More tiles than CTAs, each of another group than the one before: tensor maps are edited again and again.
    yield _case("one-hot-tokens", Shape(m=25, k=128, n=136, e=25), routing="all-one-token", alpha="distinct")
    for build in _BUILDS[1:]:
        yield _case("wide-range", _RAGGED, build=build, alpha="distinct")


def _full() -> Iterator[Case]:
    for build in _BUILDS:
        for fill in FILLS:
            yield _case(fill, _RAGGED, build=build)
            # Of `overflow` a factor leaves too little that is finite.
            alpha = "none" if fill == "overflow" else "distinct"
            yield _case(fill, Shape(m=9, k=640, n=264, e=4), build=build, alpha=alpha, poison=0x7F)
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


CUTLASS_GEMM = restated(
    SM12X_GEMM,
    name="cutlass_gemm",
    about="The same grouped GEMM by CUTLASS's kernel, which servers run on SM12x.",
    options=(
        word("build", *_BUILDS, launch=True),
        triple("tile", "", "MxNxK such as 128x128x128: weight rows, tokens, elements of K"),
        *(ROUTING, *RANKS, ALPHA, BIAS, POISON),
    ),
    cases={"quick": _quick, "default": _default, "full": _full},
    check=check_choices,
    archs=CUTLASS_ARCHITECTURES,
    leading_arch="sm_121a",
    software={},
)


# --- the kernel -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tampering:
    """What a planted fault changes in the use of the kernel.

    Attributes:
        given: changes the problem in device memory, before the host code sees it.
        launched: changes the launch that the host code made.
        ptx: the file of the changed PTX.
    """

    given: Callable[[Prepared], Prepared] | None = None
    launched: Callable[[CutlassLaunch], CutlassLaunch] | None = None
    ptx: Path | None = None


@dataclass
class Cutlass(Kernel):
    """CUTLASS's kernel, its PTX unmodified and launched by its own host code.

    Attributes:
        tampering: what a planted fault changes in its use, or None.
    """

    tampering: Tampering | None = None

    def missing(self, case: Case, place: Place) -> str | None:
        """Why the case cannot run here, in a sentence; None if it can, or if no build could serve it."""
        try:
            build = check_supported(case, place.arch)
            built = find_built(build)
        except CutlassMissing as error:
            return f"{NOT_BUILT[0]} ({error})"
        except ArgumentError:
            return None  # the run says so
        return None if built is not None else NOT_BUILT[0] if build == Build() else NOT_BUILT[1]

    def due_refusal(self, case: Case, place: Place) -> str | None:
        """The refusal of the case list; on an arch without such a kernel of CUTLASS, every case is refused."""
        elsewhere = place.arch not in self.family.archs
        return "CUTLASS has this kernel only for SM12x" if elsewhere else super().due_refusal(case, place)

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        """The output's bit patterns.

        Raises:
            Refusal: a case that CUTLASS cannot serve.
            RefmoeError: the compiler left FP32 arithmetic in the PTX that ptxas may fuse.
        """
        try:
            build = check_supported(case, place.arch)
            check_contraction(build_kernel(build).ptx)
            if self.tampering is None:
                out = grouped_gemm(**operands(case, inputs), device=place, build=build)
                return {"out": np.ascontiguousarray(out).view(np.uint16)}
            return {"out": self._run_faulty(case, inputs, place, build, self.tampering)}
        except ArgumentError as error:
            raise Refusal(str(error)) from error

    def _run_faulty(self, case: Case, inputs: Inputs, place: Any, build: Build, fault: Tampering) -> Any:
        """As `grouped_gemm` on the executor, with the fault between its steps."""
        built = build_kernel(build)
        prepared = prepare(**operands(case, inputs), device=place, build=build, built=built)
        if fault.given is not None:
            prepared = fault.given(prepared)
        launch = host_launch(prepared)
        if fault.launched is not None:
            launch = fault.launched(launch)
        execute(built if fault.ptx is None else replace(built, ptx=fault.ptx), launch, prepared, place)
        return place.download(prepared.buffers["out"]).view(np.uint16)

    def made_of(self, case: Case, inputs: Inputs, place: Place) -> str | None:
        """The release and the compiler of a build, what of it was executed, and what was only compiled."""
        headers, compiler = find_headers(), find_toolchain().build_id.splitlines()[-1]
        built = find_built(build_of(case, place.arch))
        cubin = "no cubin was made of it" if built is None or built.cubin is None else "its cubin was only compiled"
        where = f"its PTX and its host code were executed, {cubin}" if place.name == "ptx" else "its PTX ran on the GPU"
        return f"CUTLASS {'.'.join(map(str, headers.version))} ({headers.origin}) by {compiler}: {where}"

    def source_sha256(self) -> str:
        """The hash of our instantiation, the stand-in runtime, the host code, the flags, and the headers of CUTLASS.

        Where there are no headers, those of the release count that refmoe is tested with.
        """
        return _sha256()


@lru_cache(maxsize=1)
def _sha256() -> str:
    release, content = PYPI_REQUIREMENT.partition("==")[2].rpartition(".")[0], PYPI_SHA256
    try:
        headers = find_headers()
        release, content = ".".join(map(str, headers.version)), headers.sha256
    except CutlassMissing:
        pass
    built_with = (release, content, *FLAGS, *HOST_FLAGS)
    return kernel_sha256((SOURCE, *STANDIN), ("refmoe.museum.cutlass.gemm",), built_with, (Cutlass,))


def check_supported(case: Case, arch: str) -> Build:
    """The build of a case that some build of CUTLASS can serve.

    Raises:
        ArgumentError: none can; the sentence says why.
        CutlassMissing: no headers of CUTLASS, whose release decides.
    """
    build = build_of(case, arch)
    check_case(case, build.tile, find_headers().release)
    return build


@lru_cache(maxsize=8)
def check_contraction(ptx: Path) -> None:
    """Nothing in the kernel may round otherwise on the chip than in its PTX.

    CUTLASS's FP32 products have no rounding suffix, so that ptxas could fuse one with a sum. It has none: the only sums
    are those of the tensor cores.

    Raises:
        RefmoeError: there is a sum.
    """
    text = ptx.read_text()
    sums = re.findall(r"^\s*(?:@!?%p\d+\s+)?((?:add|sub|fma)\.(?:\w+\.)*f(?:16|32|64)\w*)", text, re.MULTILINE)
    if sums:
        raise RefmoeError(f"{ptx} has {len(sums)} {sums[0]}, which ptxas may fuse with a product that it is of")
