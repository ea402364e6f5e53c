"""DeepGEMM's kernel: its instantiations, how they are compiled, and a launch of one on the executor.

    tokens [M, K] in blocks of `tile_m` rows, each of one expert      weights [E * N, K]
    a CTA of 2 (tile_m = 128) or 1 (64) warpgroups that multiply and one that copies by tensor maps, persistent

Of contiguous rows every expert begins at a multiple of `tile_m`, and a number a row says whose it is, -1 for rows in
between. `grouped_gemm` lays rows out so, as servers do, and takes the results from there. A batch has the rows of its
experts in places of equal size.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.cuda.device import LaunchRecord
from refmoe.cuda.launch import Kernel
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
_BARRIER_BYTES, _SCALE_BYTES = 8, 4
_ALIGNMENT = 16  # of the rows of a tensor map, bytes


@dataclass(frozen=True)
class Build:
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


def _source(build: Build, stages: int) -> str:
    kernel = f"deep_gemm::sm90_fp8_gemm_1d2d_impl<{build.instantiation(stages)}>"
    return f"#include <{KERNEL_HEADER}>\nconst void* kernel = (const void*)&{kernel};\n"


def compile_ptx(build: Build, stages: int) -> Path:
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
    with tempfile.TemporaryDirectory() as scratch:
        source, ptx = Path(scratch) / "kernel.cu", Path(scratch) / "kernel.ptx"
        source.write_text(text)
        target = f"-gencode=arch={virtual},code={virtual}"
        command = [toolchain.nvcc, "-ptx", *FLAGS, target, f"-I{headers.include}", source, "-o", ptx]
        finished = run([str(word) for word in command], capture_output=True, text=True, cwd=scratch)
        if finished.returncode:
            raise ToolchainError(f"nvcc does not compile {KERNEL_HEADER} of {headers.release}: {finished.stderr}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, ptx.read_text())
        except OSError as error:
            raise ToolchainError(f"cannot write compiled kernels to {path.parent}: {error}") from error
    return path


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


def execute(
    problem: Problem, build: Build, text: str, stages: int, fill: int, **launch: Any
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
    (entry,) = (name for name in module.declared if "sm90_fp8_gemm_1d2d" in name)
    experts, n, k = problem.weights.shape
    tokens = problem.tokens
    total, width = len(tokens), problem.token_scales.shape[-1]
    out = np.full((total, n * 2), fill, np.uint8)
    memory = ptx.DeviceMemory()

    def place(array: Array, name: str) -> int:
        return memory.place(ptx.Buffer(np.ascontiguousarray(array), name=name, writable=False))

    weights = place(problem.weights.reshape(-1, k), "weights")
    stored = memory.place(ptx.Buffer(out, name="out", initialised=np.zeros(out.shape, bool)))
    token_scales = place(problem.token_scales, "token_scales")

    columns = k // BLOCK
    maps = [
        ptx.encode_tensor_map(address, kind, sizes, [pitch], box, swizzle=swizzle, l2_promotion="256B")
        for address, kind, sizes, pitch, box, swizzle in (
            (place(tokens, "tokens"), "u8", [k, total], k, [BLOCK, build.tile_m], f"{_SWIZZLE}B"),
            (weights, "u8", [k, experts * n], k, [BLOCK, build.tile_n], f"{_SWIZZLE}B"),
            (stored, "bf16", [n, total], n * 2, [build.store_swizzle // 2, build.tile_m], f"{build.store_swizzle}B"),
            (
                token_scales, "f32", [width, columns * len(problem.token_scales)], width * _SCALE_BYTES,
                [build.tile_m, 1], "none",
            ),
        )
    ]  # fmt: skip
    grid, block = build.multiprocessors, _COPY_THREADS + build.math_threads
    result = ptx.launch(
        module,
        entry,
        (grid, 1, 1),
        (block, 1, 1),
        [place(problem.weight_scales, "weight_scales"), place(problem.grouped, "grouped"), problem.rows, n, k, *maps],
        shared_bytes=build.shared_bytes(k, stages),
        cluster=(build.cluster, 1, 1),
        memory=memory,
        multiprocessors=build.multiprocessors,
        **launch,
    )
    return out.view(np.uint16), LaunchRecord(Kernel("deepgemm/grouped_gemm", entry), grid, block, result)


@lru_cache(maxsize=8)
def _parsed(text: str) -> Any:
    from refmoe import ptx

    return ptx.Module.parse(text, "deepgemm")


def check_problem(problem: Problem, build: Build) -> None:
    """Refuse what DeepGEMM's kernel does not do right.

    Raises:
        ArgumentError: a batch whose rows no tile divides: the last tile of an expert is stored whole, over the rows of
            the next one.
    """
    if build.grouping == "masked" and problem.rows % build.tile_m:
        needed = f"a multiple of {build.tile_m}: DeepGEMM stores whole tiles"
        raise ArgumentError("tokens", f"{problem.rows} rows of an expert", needed)
