"""DeepGEMM's grouped GEMM, another kernel of the family `deepseek_gemm`: its cases, what it refuses, how it runs.

On a GPU the kernel runs as it is. By the letter of PTX it lacks an order in two places, see
docs/families/deepseek_gemm.md. So the executor runs it twice: as it is, with all checks but the one for races; and with
the two orders added to its PTX, with all of them. The bytes of both have to be the reference's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from refmoe.cuda.device import CudaDevice
from refmoe.cuda.toolchain import find_toolchain
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.case import Shape, number, refused, word
from refmoe.families.deepseek_gemm.family import DEEPSEEK_GEMM
from refmoe.families.deepseek_gemm.problem import ROWS, expert_rows, output_rows
from refmoe.families.family import POISON, Case, Expectation, Inputs, Outputs
from refmoe.museum.deepgemm.gemm import (
    ARCH,
    BLOCK,
    FLAGS,
    DeepGemmBuild,
    Problem,
    check_contraction,
    check_problem,
    compile_ptx,
    contiguous,
    execute,
    masked,
    mended,
    run_on_gpu,
)
from refmoe.museum.deepgemm.headers import PACKAGE, PYPI_SHA256, DeepGemmMissing, find_headers
from refmoe.museum.exhibit import restated
from refmoe.verify.kernel import Kernel, Masks, Place, Refusal
from refmoe.verify.source import kernel_sha256

#: CTAs of the grid: fewer than tiles, so that every one computes several.
MULTIPROCESSORS = 4

# --- cases ----------------------------------------------------------------------------------------------------------

#: Rows at the tail of every tile, an expert with none, and one with more than a tile; more K than stages.
_SMALL, _SMALL_ROWS = Shape(m=160, k=768, n=256, e=4), "5-0-17-133"
_BATCH, _BATCH_ROWS = Shape(m=256, k=384, n=256, e=3), "129-0-7"


def _case(fill: str, shape: Shape, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return DEEPGEMM_GEMM.case(fill, shape, dtype, seed, **options)


def _quick() -> Iterator[Case]:
    yield _case("near", _SMALL, rows=_SMALL_ROWS)
    yield _case("one-hot-tokens", _BATCH, grouping="masked", rows=_BATCH_ROWS)
    yield _case("near", _SMALL, "f32", rows=_SMALL_ROWS, refusal="needed bf16")
    yield _case("near", _SMALL, rows=_SMALL_ROWS, scales="k_major", refusal="needed mn_major")
    yield _case(
        "near", Shape(m=200, k=128, n=128, e=2), grouping="masked", rows="3", refusal="DeepGEMM stores whole tiles"
    )


def _default() -> Iterator[Case]:
    yield _case("specials", _SMALL, rows=_SMALL_ROWS)
    yield _case("one-hot-weights", _SMALL, rows=_SMALL_ROWS, tile="64x128")
    # Weight rows of a tile that lie in two tiles of scales, and a tile past the last weight row.
    yield _case("near", Shape(m=70, k=384, n=384, e=2), rows="3-66", tile="128x160")
    yield _case("cancelling", Shape(m=300, k=256, n=256, e=2), rows="300-0", cluster=2)
    yield _case("overflow", _BATCH, grouping="masked", rows="0-256-1", poison=0x7F)


def _full() -> Iterator[Case]:
    for tile in _TILES:
        for fill in DEEPSEEK_GEMM.fills:
            yield _case(fill, _SMALL, rows=_SMALL_ROWS, tile=tile)
            if fill != "shared-weights":
                yield _case(fill, _BATCH, grouping="masked", rows=_BATCH_ROWS, tile=tile, cluster=2)


_TILES = ("128x128", "64x128", "128x160")


def _check(case: Case) -> None:
    if case.shape.n % BLOCK:
        raise refused("shape", str(case.shape), f"an n that is a multiple of {BLOCK}, which share a scale")
    if case.cluster not in (1, 2):
        raise refused("cluster", str(case.cluster), "1 or 2")
    expert_rows(case)
    if case.fill == "shared-weights" and case.grouping == "masked":
        raise refused("fill", case.fill, "grouping=contiguous")


DEEPGEMM_GEMM = restated(
    DEEPSEEK_GEMM,
    name="deepgemm_gemm",
    about="The same grouped GEMM by DeepGEMM's kernel for SM90, of the package sgl-deep-gemm.",
    dtypes=("bf16", "f32"),
    options=(
        word("grouping", "contiguous", "masked", fixed=True),
        word("scales", "mn_major", "k_major", fixed=True),
        word("model", "sm90_wgmma_fp8", fixed=True),
        ROWS,
        number("pad"),
        number("sample"),
        word("tile", *_TILES, launch=True),
        number("cluster", 1, launch=True),
        POISON,
    ),
    cases={"quick": _quick, "default": _default, "full": _full},
    check=_check,
    archs=(ARCH,),
    leading_arch=ARCH,
    software={},
)


# --- the kernel -----------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class DeepGemmTampering:
    """What a planted fault changes in the use of the kernel.

    Attributes:
        given: changes the operands.
        edit: changes the text of the PTX.
    """

    given: Callable[[Problem], Problem] = _same
    edit: Callable[[str], str] = _same


@dataclass
class DeepGemm(Kernel):
    """DeepGEMM's kernel, its PTX unmodified.

    Attributes:
        tampering: what a planted fault changes, or None.
    """

    tampering: DeepGemmTampering | None = None

    def missing(self, case: Case, place: Place) -> str | None:
        """Why the case cannot run here, in a sentence; None if it can, or if no build could serve it."""
        try:
            find_headers()
        except DeepGemmMissing as error:
            return str(error)
        return None

    def due_refusal(self, case: Case, place: Place) -> str | None:
        """The refusal of the case list; on another arch, every case is refused."""
        return "DeepGEMM has this kernel only for SM90" if place.arch != ARCH else super().due_refusal(case, place)

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        """The output's bit patterns.

        Raises:
            Refusal: a case that DeepGEMM's kernel cannot serve.
            RefmoeError: the compiler left FP32 arithmetic in the PTX that ptxas may fuse, or the order that is added
                changes bytes.
        """
        from refmoe.ptx import Checks

        try:
            build, problem = _asked(case, inputs, place.arch)
        except ArgumentError as error:
            raise Refusal(str(error)) from error
        stages = build.stages(case.shape.k)
        if isinstance(place, CudaDevice):
            return {"out": _taken(case, problem, run_on_gpu(place, problem, build, stages, case.poison))}
        text = compile_ptx(build, stages).read_text()
        check_contraction(text)
        texts = mended(text), text
        if self.tampering is not None:
            edit = self.tampering.edit
            problem, texts = self.tampering.given(problem), (edit(texts[0]), edit(texts[1]))
        unchecked = Checks(False, False, False, False, False)
        found = []
        for each, checks in zip(texts, (Checks(), Checks(races=False)), strict=True):
            checks = checks if self.devices.checked else unchecked
            out, record = execute(problem, build, each, stages, case.poison, checks=checks)
            found.append(out)
            place.launches.append(record)
        if found[0].tobytes() != found[1].tobytes():
            differing = int((found[0] != found[1]).sum())
            raise RefmoeError(f"{differing} outputs differ between DeepGEMM's PTX and the same with two orders added")
        return {"out": _taken(case, problem, found[1])}

    def ignored(self, case: Case, inputs: Inputs, expected: Expectation) -> Masks:
        """The rows of a batch that no expert has: DeepGEMM stores whole tiles, and nobody reads them."""
        if case.grouping != "masked":
            return {}
        unused = ~expert_rows(case).used(output_rows(case))
        form = expected.outputs["out"].shape
        return {"out": np.broadcast_to(unused.reshape(*form[:-1], 1), form)}

    def made_of(self, case: Case, inputs: Inputs, place: Place) -> str | None:
        """The release and the compiler, and what of it was executed."""
        origin = f"{PACKAGE} {find_headers().release} by {find_toolchain().build_id.splitlines()[-1]}"
        if case.device == "cuda":
            return f"{origin}: its kernel as it is, launched by refmoe"
        return (
            f"{origin}: its PTX was executed as it is without a look for races, and with two orders added under all "
            "checks; both gave the same bytes"
        )

    def source_sha256(self) -> str:
        """The hash of the headers, of the flags and of our host code.

        Where there are no headers, those of the release count that refmoe is tested with.
        """
        return _sha256()


@lru_cache(maxsize=1)
def _sha256() -> str:
    try:
        content = find_headers().sha256
    except DeepGemmMissing:
        content = PYPI_SHA256
    return kernel_sha256((), ("refmoe.museum.deepgemm.gemm",), (content, *FLAGS), (DeepGemm,))


def _asked(case: Case, inputs: Inputs, arch: str) -> tuple[DeepGemmBuild, Problem]:
    """The build that serves a case, and its operands.

    Raises:
        ArgumentError: there is none.
    """
    if arch != ARCH:
        raise ArgumentError("arch", arch, f"{ARCH}: DeepGEMM has this kernel only for SM90")
    if case.dtype != "bf16":
        raise ArgumentError("dtype", case.dtype, "bf16: the kernel stores no other")
    if case.scales != "mn_major":
        raise ArgumentError("scales", case.scales, "mn_major: DeepGEMM transposes others first")
    tile_m, tile_n = (int(size) for size in case.tile.split("x"))
    build = DeepGemmBuild(case.grouping, tile_m, tile_n, case.cluster, case.shape.e, MULTIPROCESSORS)
    tokens, token_scales, weights, weight_scales = (
        inputs[name] for name in ("tokens", "token_scales", "weights", "weight_scales")
    )
    if case.grouping == "masked":
        problem = masked(tokens, token_scales, weights, weight_scales, inputs["masked_m"])
    else:
        problem = contiguous(tokens, token_scales, weights, weight_scales, inputs["m_indptr"], tile_m)
    check_problem(problem, build)
    return build, problem


def _taken(case: Case, problem: Problem, found: Any) -> Any:
    """The output [..., N] in the caller's order of rows; rows of no expert hold the poison."""
    if problem.source is None:
        return found.reshape(case.shape.e, case.shape.m, -1)
    poison = np.frombuffer(bytes([case.poison]) * 2, np.uint16)[0]
    out = np.full((case.shape.m, case.shape.n), poison, np.uint16)
    used = problem.source >= 0
    out[problem.source[used]] = found[used]
    return out
