"""What the harness does with a case of CUTLASS's grouped GEMM: operands, expectation, launch.

Operands, fills and the reference are those of our own grouped GEMM. The same case runs on CUTLASS's kernel and on ours,
and both outputs are held against the same bytes, so that the three are equal or the first that differs is named.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.case import Case
from refmoe.families.family import Expectation, Inputs, Outputs, required
from refmoe.families.gemm.family import gemm_expect, gemm_run

if TYPE_CHECKING:
    from refmoe.cuda import Device
    from refmoe.museum.cutlass import Build

__all__ = [
    "NOT_BUILT",
    "build_of",
    "check_contraction",
    "check_supported",
    "cutlass_expect",
    "cutlass_made_of",
    "cutlass_missing",
    "cutlass_run",
    "cutlass_sha256",
]

#: What is said of a build that nobody has made; the second, of one that a plain `make cutlass` does not make.
NOT_BUILT = ("not built: make cutlass", "not built: make cutlass CUTLASS_BUILDS=all")

TILE = "128x128x128"


def build_of(case: Case, arch: str) -> Build:
    """The instantiation that a case names.

    Raises:
        ArgumentError: CUTLASS has none for `arch`, or no such tile.
    """
    from refmoe.cuda.gemm.tile import parse_tile
    from refmoe.museum.cutlass import Build
    from refmoe.museum.cutlass.builds import CUTLASS_ARCHITECTURES

    if arch not in CUTLASS_ARCHITECTURES:
        needed = " or ".join(CUTLASS_ARCHITECTURES)
        raise ArgumentError("arch", arch, f"{needed}: CUTLASS has this kernel only for SM12x")
    schedule, order = case.build.split("-")
    return Build(schedule, order == "swapped", arch, parse_tile(case.tile or TILE))  # type: ignore[arg-type]


def check_supported(case: Case, arch: str) -> Build:
    """The build of a case that some build of CUTLASS can serve.

    Raises:
        ArgumentError: none can; the sentence says why.
        CutlassMissing: no headers of CUTLASS, whose release decides.
    """
    from refmoe.museum.cutlass import find_headers, refused

    build = build_of(case, arch)
    if case.dtype != "bf16":
        raise ArgumentError(
            "dtype", case.dtype, "bf16: CUTLASS's kernel is instantiated for BF16 outputs, as servers do"
        )
    if case.bias != "none":
        raise ArgumentError("bias", case.bias, "none: the epilogue of this instantiation is alpha * sum")
    release = find_headers().release
    if (why := refused(build.tile, release)) is not None:
        raise ArgumentError("tile", f"{build.tile}, of which CUTLASS {release} says: {why}", TILE)
    if case.shape.k % 128:
        raise ArgumentError(
            "shape", f"a K of {case.shape.k}", "a multiple of 128: CUTLASS loads FP4 by so many elements"
        )
    return build


def cutlass_missing(case: Case, device: Device) -> str | None:
    """Why a case cannot run here, in a sentence; None if it can, or if no build could serve it."""
    from refmoe.museum.cutlass import Build, CutlassMissing, find_built

    try:
        build = check_supported(case, device.arch)
        built = find_built(build)
    except CutlassMissing as error:
        return f"{NOT_BUILT[0]} ({error})"
    except ArgumentError:
        return None  # the run says so
    return None if built is not None else NOT_BUILT[0] if build == Build() else NOT_BUILT[1]


def cutlass_expect(case: Case, inputs: Inputs) -> Expectation:
    """What both kernels have to write: stage "cutlass", then "refmoe", then the second answers that the fill allows."""
    expected = gemm_expect(case, inputs)
    first, *witnesses = expected.stages
    names = ("cutlass", "refmoe")
    stages = (*(dataclasses.replace(first, name=name) for name in names), *witnesses)  # type: ignore[type-var]
    others = {name: bits for name, bits in expected.outputs.items() if name != "out"}
    outputs = {**dict.fromkeys(names, expected.outputs["out"]), **others}
    return dataclasses.replace(expected, outputs=outputs, stages=stages, outside=lambda found: None)


def cutlass_run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Run CUTLASS's kernel, then ours. CUTLASS's output answers the second answers too.

    Raises:
        ArgumentError: a case that CUTLASS, or our kernel, cannot serve.
        RefmoeError: the compiler left FP32 arithmetic in the PTX that ptxas may fuse.
    """
    from refmoe.museum.cutlass import build as build_kernel
    from refmoe.museum.cutlass import grouped_gemm

    build = check_supported(case, device.arch)
    check_contraction(build_kernel(build).ptx)
    theirs = grouped_gemm(**operands(case, inputs), device=device, build=build)
    return beside_ours(case, inputs, device, theirs)


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


def operands(case: Case, inputs: Inputs) -> dict[str, Any]:
    """The arguments of `refmoe.museum.cutlass.grouped_gemm` but device and build."""
    return {
        "codes": required(inputs, "tokens"),
        "scales": required(inputs, "token_scale_buffer"),
        "weights": required(inputs, "weights"),
        "weight_scales": required(inputs, "weight_scale_buffer"),
        "offsets": required(inputs, "offsets"),
        "alpha": inputs["alpha"],
        "fill": case.poison,
    }


def beside_ours(case: Case, inputs: Inputs, device: Device, theirs: NDArray[Any]) -> Outputs:
    """CUTLASS's output BF16 [T, N] and that of our kernel in the tile that it chooses, by stage name."""
    ours = gemm_run(dataclasses.replace(case, tile=""), inputs, device)
    bits = np.ascontiguousarray(theirs).view(np.uint16)
    return {"cutlass": bits, "refmoe": ours["out"], **{name: bits for name in ours if name != "out"}}


def cutlass_sha256(csrc: Path) -> str:
    """SHA-256 over our instantiation and the stand-in runtime, how they are built, and the release of CUTLASS.

    The release is that of the headers here, or where there are none the one that refmoe is tested with. The compiler is
    not in it, since a gate runs on machines with other ones; each case says which one built it.
    """
    from refmoe.museum.cutlass import CutlassMissing, find_headers
    from refmoe.museum.cutlass.builds import FLAGS, HOST_FLAGS, SOURCE, STANDIN
    from refmoe.museum.cutlass.headers import PYPI_REQUIREMENT

    try:
        release = ".".join(map(str, find_headers().version))
    except CutlassMissing:
        release = PYPI_REQUIREMENT.partition("==")[2].rpartition(".")[0]
    digest = hashlib.sha256("\0".join((release, *FLAGS, *HOST_FLAGS)).encode())
    for file in (SOURCE, *STANDIN):
        digest.update(f"\0{file.name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def cutlass_made_of(case: Case, device: Device) -> str:
    """The release and the compiler of a build, what of it was executed and what only compiled."""
    from refmoe.cuda.toolchain import find_toolchain
    from refmoe.museum.cutlass import find_built, find_headers

    headers, compiler = find_headers(), find_toolchain().build_id.splitlines()[-1]
    built = find_built(build_of(case, device.arch))
    cubin = "no cubin was made of it" if built is None or built.cubin is None else "its cubin was only compiled"
    where = f"its PTX and its host code were executed, {cubin}" if device.name == "ptx" else "its PTX ran on the GPU"
    return f"CUTLASS {'.'.join(map(str, headers.version))} ({headers.origin}) by {compiler}: {where}"
