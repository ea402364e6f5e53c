"""DeepGEMM's kernel: its instantiations, how they are compiled, and a launch of one on the executor or on a GPU.

    tokens [M, K] in blocks of `tile_m` rows, each of one expert      weights [E * N, K]
    a CTA of 2 (tile_m = 128) or 1 (64) warpgroups that multiply and one that copies by tensor maps, persistent

Of contiguous rows every expert begins at a multiple of `tile_m`, and a number a row says whose it is, -1 for rows in
between. `grouped_gemm` lays rows out so, as servers do, and takes the results from there. A batch has the rows of its
experts in places of equal size.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.cuda.device import CudaDevice, LaunchRecord, placed
from refmoe.cuda.launch import Buffer, Entry, LaunchPlan, MatrixMap
from refmoe.cuda.toolchain import ToolchainError, cache_directory, find_toolchain
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.files import write_atomic
from refmoe.formats import BLOCK_FP8
from refmoe.museum.deepgemm.headers import KERNEL_HEADER, find_headers

Array = NDArray[Any]

ARCH = "sm_90a"
#: Elements of K that share a scale: a step of the kernel.
BLOCK = BLOCK_FP8["1x128"].columns
FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr", "--expt-extended-lambda")
#: Bytes of shared memory that a CTA of SM90 can have.
_SHARED_BYTES = 232448
_COPY_THREADS, _WARPGROUP = 128, 128
_WGMMA_M = 64
#: Bytes of the swizzled rows of the operands' boxes, and those that a box of the output may have.
_SWIZZLE, _STORE_SWIZZLES = 128, (128, 64, 32)
_BARRIER_BYTES, _SCALE_BYTES, _BF16_BYTES = 8, 4, 2
_ALIGNMENT = 16  # of the rows of a tensor map, bytes
#: The arrays of a problem that a launch reads.
_OPERANDS = ("tokens", "token_scales", "weights", "weight_scales", "grouped")


@dataclass(frozen=True)
class DeepGemmBuild:
    """An instantiation.

    Attributes:
        grouping: "contiguous" or "masked".
        tile_m, tile_n: tokens and weight rows of a tile.
        cluster: CTAs that get one copy of the weights' tiles by multicast.
        experts: how many.
        multiprocessors: CTAs of the grid, among which the tiles are dealt out.
    """

    grouping: str
    tile_m: int
    tile_n: int
    cluster: int
    experts: int
    multiprocessors: int

    @property
    def math_threads(self) -> int:
        """Threads that multiply."""
        return max(self.tile_m // _WGMMA_M, 1) * _WARPGROUP

    @property
    def uniform(self) -> bool:
        """Whether all weight rows of a tile share their scales."""
        return BLOCK % self.tile_n == 0

    @property
    def store_swizzle(self) -> int:
        """Bytes of the rows in which a tile of the output is stored: as many as divide it."""
        return next(size for size in _STORE_SWIZZLES if self.tile_n * 2 % size == 0)

    def stages(self, k: int) -> int:
        """As many stages as fit into shared memory beside the tile that is stored, at most 5."""
        return next(count for count in range(5, 1, -1) if self.shared_bytes(k, count) <= _SHARED_BYTES)

    def shared_bytes(self, k: int, stages: int) -> int:
        """Dynamic shared memory of a CTA, in the kernel's own layout."""
        stored = _aligned(self.tile_m * self.tile_n * 2, 1024)
        stage = (self.tile_m + self.tile_n) * BLOCK + _aligned(self.tile_m * _SCALE_BYTES, 128)
        weight_scales = _aligned(k // BLOCK * (1 if self.uniform else 2) * _SCALE_BYTES, _BARRIER_BYTES)
        return stored + stages * (stage + 2 * _BARRIER_BYTES) + weight_scales

    def instantiation(self, stages: int) -> str:
        """The template's arguments; sizes of the problem are left to run time."""
        swizzles = f"{_SWIZZLE}, {_SWIZZLE}, {self.store_swizzle}"
        kind = {"contiguous": "MGroupedContiguous", "masked": "MGroupedMasked"}[self.grouping]
        return (
            f"cute::UMMA::Major::K, 0, 0, 0, {self.experts}, {self.tile_m}, {self.tile_n}, {BLOCK}, {swizzles}, "
            f"{stages}, {_COPY_THREADS}, {self.math_threads}, {self.cluster}, false, {self.multiprocessors}, "
            f"deep_gemm::GemmType::{kind}, cutlass::bfloat16_t"
        )


@dataclass(frozen=True)
class Problem:
    """Operands in DeepGEMM's layouts.

    Attributes:
        tokens: uint8 [rows, K], E4M3 codes.
        token_scales: float32 [experts of a batch or 1, K/128, rows of each], its rows a multiple of 16 bytes long.
        weights: uint8 [E, N, K].
        weight_scales: float32 [E, N/128, K/128].
        grouped: int32, the expert of each row, -1 for none; or how many rows each expert of a batch has.
        rows: of the tokens; of a batch those of one expert.
        source: int64 [rows], which row of the caller's each is, -1 for none; None for a batch.
    """

    tokens: Array
    token_scales: Array
    weights: Array
    weight_scales: Array
    grouped: Array
    rows: int
    source: Array | None


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to


def _source(build: DeepGemmBuild, stages: int) -> str:
    kernel = f"deep_gemm::sm90_fp8_gemm_1d2d_impl<{build.instantiation(stages)}>"
    return f"#include <{KERNEL_HEADER}>\nconst void* kernel = (const void*)&{kernel};\n"


def compile_ptx(build: DeepGemmBuild, stages: int) -> Path:
    """The PTX of an instantiation, compiled if it is not in the cache.

    Raises:
        DeepGemmMissing: no headers.
        ToolchainError: no compiler, a cache that cannot be written, or the headers do not compile.
    """
    headers, toolchain = find_headers(), find_toolchain()
    text = _source(build, stages)
    key = sha256("\0".join((text, *FLAGS, headers.sha256, toolchain.build_id)).encode()).hexdigest()
    path = cache_directory().absolute() / "deepgemm" / f"{build.grouping}-{key[:16]}.ptx"
    if path.is_file():
        return path
    virtual = ARCH.replace("sm_", "compute_")
    _compile(("-ptx", *FLAGS, f"-gencode=arch={virtual},code={virtual}", f"-I{headers.include}"), text, ".cu", path)
    return path


def assemble(text: Path) -> Path:
    """The cubin of a PTX file of `compile_ptx`, which lies beside it; assembled if it is not there.

    Raises:
        ToolchainError: no compiler, or a cache that cannot be written.
    """
    path = text.with_suffix(".cubin")
    if not path.is_file():
        _compile(("-cubin", f"-arch={ARCH}"), text.read_text(), ".ptx", path)
    return path


def _compile(options: Sequence[str], text: str, suffix: str, path: Path) -> None:
    """Have nvcc make a file of a text; it appears under its name when it is whole.

    Raises:
        ToolchainError: no compiler, it refuses the text, or the file cannot be written.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source, made = Path(scratch) / f"kernel{suffix}", Path(scratch) / f"made{path.suffix}"
        source.write_text(text)
        command = [str(find_toolchain().nvcc), *options, str(source), "-o", str(made)]
        finished = run(command, capture_output=True, text=True, cwd=scratch)
        if finished.returncode:
            raise ToolchainError(f"nvcc does not compile {KERNEL_HEADER}: {finished.stderr}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, made.read_bytes())
        except OSError as error:
            raise ToolchainError(f"cannot write compiled kernels to {path.parent}: {error}") from error


@lru_cache(maxsize=32)
def check_contraction(text: str) -> None:
    """Nothing in the kernel may round otherwise on the chip than in its PTX: no FP32 sum that ptxas could fuse.

    Raises:
        RefmoeError: there is one.
    """
    sums = re.findall(r"^\s*(?:@!?%p\d+\s+)?((?:add|sub)\.(?:ftz\.)?f32)\s", text, re.MULTILINE)
    if sums:
        raise RefmoeError(f"the PTX has {len(sums)} {sums[0]}, which ptxas may fuse with a product that it is of")


def mended(text: str) -> str:
    """The PTX with the two orders that it lacks by the letter of PTX, see docs/families/deepseek_gemm.md.

    The lanes of a warp meet before one of them says that all have read the scales of a stage; and a thread that stored
    a tile waits for its copy before it exits.

    Raises:
        RefmoeError: the text has no such places.
    """
    meet, end = "wgmma.wait_group.sync.aligned 0;", "\tret;"
    if meet not in text or text.count(end) != 1:
        raise RefmoeError(f"the PTX has {text.count(meet)} times {meet!r} and {text.count(end)} times {end.strip()!r}")
    text = text.replace(meet, f"{meet}\n\tbar.warp.sync 0xffffffff;")
    return text.replace(end, f"\tcp.async.bulk.wait_group 0;\n{end}")


def contiguous(
    tokens: Array, token_scales: Array, weights: Array, weight_scales: Array, m_indptr: Array, tile_m: int
) -> Problem:
    """Contiguous rows, each expert's moved to a multiple of `tile_m`; rows in between are zeros.

    Args:
        tokens: uint8 [M, K].
        token_scales: float32 [K/128, M or more].
        weights: uint8 [E, N, K].
        weight_scales: float32 [E, N/128, K/128].
        m_indptr: int64 [E + 1].
        tile_m: tokens of a tile.
    """
    counts = np.diff(m_indptr)
    padded = -(-counts // tile_m) * tile_m
    rows = int(padded.sum())
    source, expert = np.full(rows, -1, np.int64), np.full(rows, -1, np.int32)
    for each, (start, count, first) in enumerate(zip(np.cumsum(padded) - padded, counts, m_indptr, strict=False)):
        source[start : start + count] = np.arange(first, first + count)
        expert[start : start + count] = each
    used = source >= 0
    codes = np.zeros((rows, tokens.shape[1]), np.uint8)
    codes[used] = tokens[source[used]]
    scales = np.zeros((1, token_scales.shape[0], _aligned(rows, _ALIGNMENT // _SCALE_BYTES)), np.float32)
    scales[0, :, :rows][:, used] = token_scales[:, source[used]]
    return Problem(codes, scales, weights, weight_scales, expert, rows, source)


def masked(tokens: Array, token_scales: Array, weights: Array, weight_scales: Array, masked_m: Array) -> Problem:
    """A batch: tokens uint8 [E, M, K], scales float32 [E, K/128, M or more], masked_m int32 [E]."""
    experts, rows, k = tokens.shape
    width = _aligned(rows, _ALIGNMENT // _SCALE_BYTES)
    scales = np.zeros((experts, k // BLOCK, width), np.float32)
    scales[..., :rows] = token_scales[..., :rows]
    codes = np.ascontiguousarray(tokens).reshape(-1, k)
    return Problem(codes, scales, weights, weight_scales, np.ascontiguousarray(masked_m, np.int32), rows, None)


@dataclass(frozen=True)
class Buffers:
    """The arrays of a problem where its launch runs, and the output, BF16 [rows, N]."""

    tokens: Buffer
    token_scales: Buffer
    weights: Buffer
    weight_scales: Buffer
    grouped: Buffer
    out: Buffer


@dataclass(frozen=True)
class Sizes:
    """Sizes of a problem.

    Attributes:
        rows: of the tokens; of a batch those of one expert.
        batches: 1, or the experts of a batch.
        scale_width: of a row of the token scales.
        experts: how many.
        n: weight rows of an expert.
        k: elements of a row.
    """

    rows: int
    batches: int
    scale_width: int
    experts: int
    n: int
    k: int

    @classmethod
    def of(cls, problem: Problem) -> Sizes:
        """Those of a problem."""
        batches, _, width = problem.token_scales.shape
        return cls(problem.rows, batches, width, *problem.weights.shape)


def launch_plan(build: DeepGemmBuild, stages: int, entry: str, buffers: Buffers, sizes: Sizes) -> LaunchPlan:
    """The launch of an instantiation, on whatever device the buffers are.

    Args:
        build: the instantiation.
        stages: those that it was compiled with.
        entry: its name.
        buffers: where the operands are.
        sizes: of the problem.
    """
    rows, n, k = sizes.rows * sizes.batches, sizes.n, sizes.k
    lines = build.store_swizzle
    scale_rows = k // BLOCK * sizes.batches
    maps = (
        MatrixMap(buffers.tokens, "u8", rows, k, (build.tile_m, BLOCK), f"{_SWIZZLE}B"),
        MatrixMap(buffers.weights, "u8", sizes.experts * n, k, (build.tile_n, BLOCK), f"{_SWIZZLE}B"),
        MatrixMap(buffers.out, "bf16", rows, n, (build.tile_m, lines // _BF16_BYTES), f"{lines}B"),
        MatrixMap(buffers.token_scales, "f32", scale_rows, sizes.scale_width, (1, build.tile_m), "none"),
    )
    return LaunchPlan(
        Entry("deepgemm", entry),
        grid=build.multiprocessors,
        block=_COPY_THREADS + build.math_threads,
        arguments=(buffers.weight_scales, buffers.grouped, sizes.rows, n, k, *maps),
        shared_bytes=build.shared_bytes(k, stages),
        cluster=build.cluster,
    )


def execute(
    problem: Problem, build: DeepGemmBuild, text: str, stages: int, fill: int, **launch: Any
) -> tuple[Array, LaunchRecord]:
    """A launch on the executor: its output, uint16 [rows, N] of BF16 bits, and the record of it.

    Bytes that the launch leaves alone hold `fill`.

    Args:
        problem: the operands.
        build: the instantiation.
        text: its PTX.
        stages: those that it was compiled with.
        fill: of the output, 0 to 255.
        launch: further options of `refmoe.ptx.launch`, such as `checks`.

    Raises:
        PtxError: what went wrong in it.
    """
    from refmoe import ptx

    module = _parsed(text)
    out = np.full((len(problem.tokens), problem.weights.shape[1] * _BF16_BYTES), fill, np.uint8)

    def given(name: str) -> Buffer:
        return ptx.Buffer(np.ascontiguousarray(getattr(problem, name)), name=name, writable=False)

    stored = ptx.Buffer(out, name="out", initialised=np.zeros(out.shape, bool))
    buffers = Buffers(**{name: given(name) for name in _OPERANDS}, out=stored)
    plan = launch_plan(build, stages, entry_of(text), buffers, Sizes.of(problem))
    arguments, memory = placed(plan.arguments)
    result = ptx.launch(
        module,
        plan.kernel.entry,
        (plan.grid, 1, 1),
        (plan.block, 1, 1),
        arguments,
        shared_bytes=plan.shared_bytes,
        cluster=(build.cluster, 1, 1),
        memory=memory,
        multiprocessors=build.multiprocessors,
        **launch,
    )
    return out.view(np.uint16), LaunchRecord(plan.kernel, plan.grid, plan.block, result)


def run_on_gpu(device: CudaDevice, problem: Problem, build: DeepGemmBuild, stages: int, fill: int) -> Array:
    """A launch on a GPU: its output, uint16 [rows, N] of BF16 bits.

    Args:
        device: the GPU.
        problem: the operands.
        build: the instantiation.
        stages: those that it is compiled with.
        fill: of the output before the launch, 0 to 255.

    Raises:
        ToolchainError: it does not compile.
        RefmoeError: what the driver says.
    """
    given = {name: device.upload(name, np.ascontiguousarray(getattr(problem, name))) for name in _OPERANDS}
    out = device.output("out", (len(problem.tokens), problem.weights.shape[1] * _BF16_BYTES), fill)
    device.launch(load(device, build, stages, Buffers(**given, out=out), Sizes.of(problem)))
    return device.download(out).view(np.uint16)


def load(device: CudaDevice, build: DeepGemmBuild, stages: int, buffers: Buffers, sizes: Sizes) -> LaunchPlan:
    """The launch of an instantiation on a GPU, which then has its code.

    Raises:
        ToolchainError: it does not compile.
    """
    text = compile_ptx(build, stages)
    plan = launch_plan(build, stages, entry_of(text.read_text()), buffers, sizes)
    device.load(plan.kernel, assemble(text))
    return plan


def entry_of(text: str) -> str:
    """The name of the kernel in its PTX."""
    (entry,) = re.findall(r"\.entry (\w*sm90_fp8_gemm_1d2d\w*)", text)
    return str(entry)


@lru_cache(maxsize=8)
def _parsed(text: str) -> Any:
    from refmoe import ptx

    return ptx.Module.parse(text, "deepgemm")


def check_problem(problem: Problem, build: DeepGemmBuild) -> None:
    """Refuse what DeepGEMM's kernel does not do right.

    Raises:
        ArgumentError: a batch whose rows no tile divides: the last tile of an expert is stored whole, over the rows of
            the next one.
    """
    if build.grouping == "masked" and problem.rows % build.tile_m:
        needed = f"a multiple of {build.tile_m}: DeepGEMM stores whole tiles"
        raise ArgumentError("tokens", f"{problem.rows} rows of an expert", needed)
