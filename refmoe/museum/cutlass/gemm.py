"""The grouped GEMM of `refmoe.cuda.gemm.kernel`, computed by CUTLASS: the same arguments, checks and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

from refmoe import ptx
from refmoe.chips import CHIPS
from refmoe.cuda.arguments import GROUP_BLOCKS, check_fill, k_groups, one_of, scale_buffer_bytes
from refmoe.cuda.device import CudaDevice, Device, DeviceUnavailable, LaunchRecord, PtxDevice
from refmoe.cuda.gemm.grouped import GemmShape
from refmoe.cuda.gemm.kernel import GEMM
from refmoe.cuda.gemm.tile import parse_tile
from refmoe.cuda.launch import Buffer, Entry
from refmoe.errors import ArgumentError
from refmoe.museum.cutlass.builds import CUTLASS_ARCHITECTURES, DEFAULT_TILE, Build, Built, gpu_library
from refmoe.museum.cutlass.builds import build as build_kernel
from refmoe.museum.cutlass.host import CutlassLaunch, HostLibrary, Operands
from refmoe.museum.cutlass.refusals import check_k
from refmoe.reference.layout import expert_base_rows

if TYPE_CHECKING:
    from refmoe.families.family import Case, Inputs

OUT_DTYPE = np.dtype(ml_dtypes.bfloat16)
POINTER = np.dtype(np.uint64)

UInt8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Prepared:
    """A problem in device memory, ready for the host code.

    Attributes:
        library: the host code.
        operands: the addresses that it is given.
        buffers: by name: `codes scales weights weight_scales out workspace alpha`, the arrays of pointers
            `ptr_a ptr_b ptr_sfa ptr_sfb ptr_d ptr_alpha` and those of `refmoe.museum.cutlass.host.GROUP_ARRAYS`.
        memory: that holds them on the executor; None on a GPU.
    """

    library: HostLibrary
    operands: Operands
    buffers: Mapping[str, Buffer]
    memory: ptx.DeviceMemory | None


class _Memory:
    """Named buffers of a device and their addresses."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.executor = ptx.DeviceMemory() if isinstance(device, PtxDevice) else None
        self.buffers: dict[str, Buffer] = {}

    def upload(self, name: str, array: npt.NDArray[Any]) -> int:
        return self._place(name, self.device.upload(name, array))

    def output(self, name: str, shape: tuple[int, ...], fill: int) -> int:
        return self._place(name, self.device.output(name, shape, fill))

    def _place(self, name: str, buffer: Buffer) -> int:
        self.buffers[name] = buffer
        return int(buffer.data_ptr()) if self.executor is None else self.executor.place(buffer)


def grouped_gemm(
    codes: UInt8Array,
    scales: UInt8Array,
    weights: UInt8Array,
    weight_scales: UInt8Array,
    offsets: npt.NDArray[np.int64],
    *,
    device: Device,
    build: Build,
    alpha: npt.NDArray[np.float32] | None = None,
    out_dtype: str = "bf16",
    fill: int = 0,
) -> npt.NDArray[Any]:
    """out[t, n] = RN(alpha[e] * sum_k tokens[t, k] * weights[e, n, k]) for the tokens t of expert e, by CUTLASS.

    Args:
        codes: uint8 [T, K] E4M3 tokens in expert order, K a positive multiple of 128: CUTLASS takes no other.
        scales: uint8 1-D, as `expand` writes them in the layout 128x4.
        weights: uint8 [E, N, K/2] packed E2M1, N a multiple of 8.
        weight_scales: uint8 1-D, for each expert whole 128x4 atoms of [N, K/32]; padded columns hold 0x00.
        offsets: int64 [E+1], first row of each expert.
        device: where the kernel runs: the executor, or a GPU of the build's arch.
        build: which of CUTLASS's kernels; compiled if it is not in the cache.
        alpha: float32 [E] or None.
        out_dtype: "bf16".
        fill: byte that the output holds before the launch; it stays in rows past offsets[E].

    Returns:
        BF16 [T, N].

    Raises:
        ArgumentError: an argument is none of these, or CUTLASS refuses the shape. Nothing has run then.
        DeviceUnavailable: the device is of another arch than the build.
        HostError: CUTLASS or the runtime under it refused.
    """
    one_of("out_dtype", out_dtype, ("bf16",))
    check_fill(fill)
    shape = GEMM.shape_of(codes, scales, weights, weight_scales, offsets, alpha)
    check_k("codes", shape.k)  # prepare() asks CUTLASS itself, but only once it is built
    if device.arch != build.arch:
        raise DeviceUnavailable(
            f"the device is {device.arch}, and {build} is for {build.arch}: CUTLASS has this kernel only for SM12x"
        )
    if shape.rows == 0:
        return np.empty((0, shape.n), OUT_DTYPE)
    built = build_kernel(build)
    prepared = prepare(
        codes, scales, weights, weight_scales, offsets, device=device, build=build, built=built, alpha=alpha, fill=fill
    )
    if isinstance(device, CudaDevice):
        stream = device.torch.cuda.current_stream()
        prepared.library.run(prepared.operands, stream.cuda_stream)
        stream.synchronize()
    else:
        execute(built, host_launch(prepared), prepared, cast(PtxDevice, device))
    return device.download(prepared.buffers["out"]).view(OUT_DTYPE)


def prepare(
    codes: UInt8Array,
    scales: UInt8Array,
    weights: UInt8Array,
    weight_scales: UInt8Array,
    offsets: npt.NDArray[np.int64],
    *,
    device: Device,
    build: Build,
    built: Built,
    alpha: npt.NDArray[np.float32] | None = None,
    fill: int = 0,
) -> Prepared:
    """Put a problem and everything that CUTLASS wants to know of it into the device's memory.

    The arguments are those of `grouped_gemm`, checked already; `built` is what `build` left.

    Raises:
        ArgumentError: CUTLASS refuses the shape.
    """
    library = _library(built, build, device)
    shape = GemmShape(codes.shape[0], weights.shape[0], weights.shape[1], codes.shape[1])
    memory = _Memory(device)
    place = memory.upload
    base = {"weights": place("weights", weights), "codes": place("codes", codes)}
    base |= {"weight_scales": place("weight_scales", weight_scales), "scales": place("scales", scales)}
    base["out"] = memory.output("out", (shape.rows, shape.n * OUT_DTYPE.itemsize), fill)

    groups = library.groups(shape.n, np.diff(offsets), shape.k)
    addresses = {name: place(name, array) for name, array in groups.items()}
    for name, pointers in _pointers(base, offsets, shape, build.swapped).items():
        addresses[name] = place(name, pointers)
    addresses["ptr_alpha"] = 0
    if alpha is not None:
        each = np.uint64(place("alpha", alpha)) + np.arange(shape.experts, dtype=POINTER) * np.uint64(alpha.itemsize)
        addresses["ptr_alpha"] = place("ptr_alpha", each)
    seen = Operands(shape.experts, host_problems=groups["problems"].ctypes.data, workspace=0, **addresses)
    if (refusal := library.refusal(seen)) is not None:
        raise ArgumentError(
            "codes",
            f"K = {shape.k}, N = {shape.n}",
            f"a shape that CUTLASS takes, K a multiple of 128 (can_implement: {refusal})",
        )
    operands = replace(seen, host_problems=0)  # as servers call it: shapes are known on the device only
    workspace = memory.output("workspace", (library.workspace_bytes(operands),), 0)
    return Prepared(library, replace(operands, workspace=workspace), memory.buffers, memory.executor)


def host_launch(prepared: Prepared) -> CutlassLaunch:
    """The launch that CUTLASS's host code makes of a problem, recorded by the stand-in runtime.

    Raises:
        HostError: CUTLASS or the stand-in refused.
    """
    return prepared.library.record(prepared.operands)


def execute(
    built: Built, launch: CutlassLaunch, prepared: Prepared, device: PtxDevice, trace: ptx.Trace | None = None
) -> ptx.LaunchResult:
    """Run a recorded launch on the executor; the result is in `prepared.buffers["out"]` and in `device.launches`.

    Raises:
        PtxError: what went wrong in it.
    """
    result = ptx.launch(
        _parse(built.ptx),
        launch.entry,
        launch.grid,
        launch.block,
        [launch.parameters],
        shared_bytes=launch.shared_bytes,
        checks=device.checks,
        step_budget=device.step_budget,
        trace=device.trace if trace is None else trace,
        memory=prepared.memory,
        # Its producers expect the bytes of a stage in thread 0 alone, inside of a branch that the leader takes.
        lowest_leader=True,
    )
    kernel = Entry("cutlass/grouped_gemm", launch.entry)
    device.launches.append(LaunchRecord(kernel, launch.grid[0], launch.block[0], result))
    return result


def _library(built: Built, build: Build, device: Device) -> HostLibrary:
    if isinstance(device, CudaDevice):
        return HostLibrary(gpu_library(build), None)
    return HostLibrary(built.library, CHIPS[build.arch], device.multiprocessors)


def _pointers(
    base: Mapping[str, int], offsets: npt.NDArray[np.int64], shape: GemmShape, swapped: bool
) -> dict[str, npt.NDArray[np.uint64]]:
    """Where each expert's operands begin: uint64 [E] for each operand."""
    expert = np.arange(shape.experts, dtype=np.int64)
    begins = {
        "weights": expert * (shape.n * shape.k // 2),
        "weight_scales": expert * scale_buffer_bytes(shape.n, shape.k, "128x4"),
        "codes": offsets[:-1] * shape.k,
        "scales": expert_base_rows(offsets) * (k_groups(shape.k) * GROUP_BLOCKS),
        "out": offsets[:-1] * (shape.n * OUT_DTYPE.itemsize),
    }
    absolute = {name: np.uint64(base[name]) + begin.astype(POINTER) for name, begin in begins.items()}
    first, second = ("weights", "codes") if swapped else ("codes", "weights")
    scales = {"weights": "weight_scales", "codes": "scales"}
    return {
        "ptr_a": absolute[first],
        "ptr_b": absolute[second],
        "ptr_sfa": absolute[scales[first]],
        "ptr_sfb": absolute[scales[second]],
        "ptr_d": absolute["out"],
    }


@lru_cache(maxsize=8)
def _parse(path: Path) -> ptx.Module:
    # Built files are named by their content. Not strict: the compiler was free to fuse, and what it may still fuse is
    # in the result.
    return ptx.Module.parse(path.read_text(), name=path.name)


# --- a case as a problem: what a report vouches for covers this, too ------------------------------------------------


def build_of(case: Case, arch: str) -> Build:
    """The instantiation that a case names.

    Raises:
        ArgumentError: CUTLASS has none for `arch`, or no such tile.
    """
    if arch not in CUTLASS_ARCHITECTURES:
        needed = " or ".join(CUTLASS_ARCHITECTURES)
        raise ArgumentError("arch", arch, f"{needed}: CUTLASS has this kernel only for SM12x")
    schedule, order = case.build.split("-")
    return Build(schedule, order == "swapped", arch, parse_tile(case.tile) if case.tile else DEFAULT_TILE)


def operands(case: Case, inputs: Inputs) -> dict[str, Any]:
    """The arguments of `refmoe.museum.cutlass.grouped_gemm` but device and build."""
    return {
        "codes": inputs["tokens"],
        "scales": inputs["token_scale_buffer"],
        "weights": inputs["weights"],
        "weight_scales": inputs["weight_scale_buffer"],
        "offsets": inputs["offsets"],
        "alpha": inputs["alpha"],
        "fill": case.poison,
    }
