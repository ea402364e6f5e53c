"""DeepGEMM beside the first GEMM of DeepSeek-V3 at each number of tokens, which choose their experts at random.

DeepGEMM takes rows in two layouts. Contiguous, each expert's rows begin at a multiple of a tile, and experts without
rows cost nothing. Masked, each expert has a place of equal size. Both get the numbers that refmoe's kernel gets; where
a row lies is all that differs, and laying rows out is not timed. refmoe's kernel is the one that its layer launches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.bench import deepseek_gemm as bench
from refmoe.bench.gpu.kernels import BF16_BYTES, DEEPSEEK_V3
from refmoe.bench.gpu.timing import Contender, copy, drawn_codes, drawn_scales, interleaved, rows_of
from refmoe.bench.sweep.peer import PeerMissing, rehearse, sentence
from refmoe.cuda.deepseek_gemm import (
    BLOCK,
    INSTRUCTIONS,
    TILE_N,
    GroupedShape,
    accumulation_models,
    deepseek_gemm_plan,
    scale_strides,
)
from refmoe.cuda.device import CudaDevice
from refmoe.cuda.launch import Buffer, LaunchPlan
from refmoe.museum.deepgemm import find_headers
from refmoe.museum.deepgemm import gemm as deepgemm

NAME, OPERATION = "DeepGEMM", "GEMM1, block FP8, drawn choices"
N, K = 2 * DEEPSEEK_V3.intermediate, DEEPSEEK_V3.hidden
TILES_M = (64, 128)
SETS = 2  # tokens and choices, each set with other experts; all sets share the weights
#: Nodes of a graph from so many tokens on, where one takes most of a millisecond or more.
MANY_TOKENS, FEW_NODES, MANY_NODES = 16, 8, 40


@dataclass(frozen=True)
class RowLayout:
    """Where DeepGEMM wants rows.

    Attributes:
        grouping: "contiguous" or "masked".
        source: int64 [its rows], which of refmoe's rows lies there, -1 for none.
        grouped: int32, as `refmoe.museum.deepgemm.gemm.Problem` has it.
        rows_each: of an expert, 0 for contiguous rows.
    """

    grouping: str
    source: NDArray[np.int64]
    grouped: NDArray[np.int32]
    rows_each: int = 0

    @property
    def place(self) -> NDArray[np.int64]:
        """int64 [refmoe's rows], where each of them lies."""
        used = np.flatnonzero(self.source >= 0)
        found = np.empty(len(used), np.int64)
        found[self.source[used]] = used
        return found


def contiguous_layout(offsets: NDArray[np.int64], tile_m: int) -> RowLayout:
    """Each expert's rows from a multiple of `tile_m` on; `offsets` is int64 [E + 1], where refmoe's begin."""
    counts = np.diff(offsets)
    padded = -(-counts // tile_m) * tile_m
    expert = np.repeat(np.arange(len(counts)), padded)
    within = np.arange(len(expert)) - np.repeat(np.cumsum(padded) - padded, padded)
    used = within < counts[expert]
    source = np.where(used, offsets[:-1][expert] + within, -1)
    return RowLayout("contiguous", source.astype(np.int64), np.where(used, expert, -1).astype(np.int32))


def masked_layout(offsets: NDArray[np.int64], tile_m: int) -> RowLayout:
    """A place of as many rows for each expert, the fewest tiles of `tile_m` rows that hold the most of them."""
    counts = np.diff(offsets)
    each = int(-(-counts.max() // tile_m) * tile_m)
    within = np.arange(each)
    source = np.where(within < counts[:, None], offsets[:-1, None] + within, -1)
    return RowLayout("masked", source.reshape(-1).astype(np.int64), counts.astype(np.int32), each)


def laid_out(torch: Any, layout: RowLayout, codes: Any, scales: Any) -> tuple[Any, Any]:
    """Codes and scales as a layout has them, on the device where they are. Rows in between repeat refmoe's first row.

    Args:
        torch: the module.
        layout: where rows go.
        codes: uint8 [rows, K].
        scales: float32 [K/128, rows].

    Returns:
        uint8 [its rows, K], and float32 [K/128, its rows], or [E, K/128, rows of each] for a batch.
    """
    source = torch.from_numpy(np.maximum(layout.source, 0)).to(codes.device)
    moved = scales[:, source]
    if layout.rows_each:
        moved = moved.view(scales.shape[0], -1, layout.rows_each).transpose(0, 1)
    return codes[source], moved.contiguous()


def chosen_layouts(offsets: NDArray[np.int64]) -> list[tuple[int, RowLayout]]:
    """Tiles' rows and layouts that are timed: contiguous in both tiles, and masked in the narrowest that holds all."""
    most = int(np.diff(offsets).max())
    tile_m = next((tile for tile in TILES_M if tile >= most), TILES_M[-1])
    return [(tile, contiguous_layout(offsets, tile)) for tile in TILES_M] + [(tile_m, masked_layout(offsets, tile_m))]


def find(device: CudaDevice) -> str:
    """DeepGEMM's release, with everything compiled that the sweep launches of it.

    Raises:
        PeerMissing: another chip than SM90.
        DeepGemmMissing: no headers.
        ToolchainError: they do not compile.
    """
    release = find_headers().release
    if device.arch != deepgemm.ARCH:
        raise PeerMissing(f"its kernel is for {deepgemm.ARCH}, and this GPU is {device.arch}")
    builds = [_build(device, grouping, tile_m) for grouping in ("contiguous", "masked") for tile_m in TILES_M]
    builds += [one for one in bench.deepgemm_builds(device, DEEPSEEK_V3.experts) if one not in builds]
    with ThreadPoolExecutor(max(min(len(builds), os.cpu_count() or 1), 1)) as pool:
        list(pool.map(lambda build: deepgemm.assemble(deepgemm.compile_ptx(build, build.stages(K))), builds))
    return release


def _build(device: CudaDevice, grouping: str, tile_m: int) -> deepgemm.DeepGemmBuild:
    return deepgemm.DeepGemmBuild(grouping, tile_m, TILE_N, 1, DEEPSEEK_V3.experts, device.multiprocessors)


@dataclass
class DrawnProducts:
    """The rows of this part of the sweep.

    Attributes:
        device: the GPU.
        floors: the kernels of the floors on it.
        weights: uint8 [E * N, K], and float32 scales.
        rivals: whether DeepGEMM is there.
        failed: what DeepGEMM said when it could not do something, by what it was.
        differing: by result the bytes that are not refmoe's, and how many there are.
    """

    device: CudaDevice
    floors: CudaDevice
    weights: tuple[Buffer, Buffer]
    rivals: bool
    failed: dict[str, str] = field(default_factory=dict)
    differing: dict[str, list[int]] = field(default_factory=dict)

    def rows_at(self, tokens: int) -> Iterator[dict[str, Any]]:
        """The floor, refmoe's kernel and DeepGEMM's at one number of tokens."""
        torch, sizes = self.device.torch, DEEPSEEK_V3
        rows = tokens * sizes.top_k
        sets = [_Operands(self.device, tokens, seed) for seed in range(SETS)]
        experts = int(np.count_nonzero(np.diff(sets[0].offsets)))
        traffic = (rows + experts * N) * K + BF16_BYTES * rows * N
        names, group = ["floor"], [copy(self.floors, traffic, writes=1)]
        outs = [_poisoned(torch, rows, "nan") for _ in sets]
        label, plans = self._ours(sets, outs)
        names.append("refmoe")
        group.append(Contender(f"{label}, M = {tokens}", traffic, self.device, plans))
        group[-1].enqueue(0)
        same: dict[str, bool] = {}
        for tile_m, layout in chosen_layouts(sets[0].offsets) if self.rivals else ():
            name = f"{NAME}, {layout.grouping}, {tile_m} x {TILE_N}, M = {tokens}"
            try:
                theirs, plans = self._theirs(sets, layout.grouping, tile_m)
                one = Contender(name, traffic, self.device, plans)
                rehearse(torch, one)
                place = torch.from_numpy(layout.place).cuda()
                unlike = int((theirs[place].view(torch.uint8) != outs[0].view(torch.uint8)).sum())
            except Exception as error:  # whatever the driver says
                self.failed[f"{name} of {sizes.model}"] = sentence(error)
                continue
            names.append(NAME)
            group.append(one)
            same[name] = not unlike
            self.differing[f"{NAME}: output of GEMM1, {layout.grouping} {tile_m} x {TILE_N}, M = {tokens}"] = [
                *(unlike, BF16_BYTES * outs[0].numel())
            ]
        nodes = FEW_NODES if tokens >= MANY_TOKENS else MANY_NODES
        timed = rows_of(group, interleaved(self.device, group, nodes))
        yield from _labelled(tokens, names, timed, same, 2 * rows * N * K)

    def _ours(self, sets: Sequence[_Operands], outs: Sequence[Any]) -> tuple[str, list[list[LaunchPlan]]]:
        """What the kernel is called that a layer launches, and its launch on each set."""
        model = accumulation_models(self.device.arch)[0]
        rows, experts = sets[0].rows, DEEPSEEK_V3.experts
        tile_m = INSTRUCTIONS[model].choose_tile_m(-(-rows // experts))
        shape = GroupedShape(rows, experts, N, K)
        plans = [
            [
                deepseek_gemm_plan(
                    *(model, tile_m, "bf16", (*self.weights, one.codes, one.scales), one.m_indptr, None, out, shape),
                    scale_strides("mn_major", rows, shape),
                    multiprocessors=self.device.multiprocessors,
                )
            ]
            for one, out in zip(sets, outs, strict=True)
        ]
        return f"{INSTRUCTIONS[model].name}, {tile_m} x {TILE_N}", plans

    def _theirs(self, sets: Sequence[_Operands], grouping: str, tile_m: int) -> tuple[Any, list[list[LaunchPlan]]]:
        """DeepGEMM's output on the first set, and its launch on each."""
        torch, build = self.device.torch, _build(self.device, grouping, tile_m)
        outs, plans = [], []
        for one in sets:
            layout = (masked_layout if grouping == "masked" else contiguous_layout)(one.offsets, tile_m)
            codes, scales = laid_out(torch, layout, one.codes, one.scales)
            outs.append(_poisoned(torch, len(layout.source), "inf"))
            grouped = torch.from_numpy(layout.grouped).cuda()
            buffers = deepgemm.Buffers(codes, scales, *self.weights, grouped, outs[-1])
            rows, experts = layout.rows_each or len(layout.source), DEEPSEEK_V3.experts
            sizes = deepgemm.Sizes(rows, experts if layout.rows_each else 1, rows, experts, N, K)
            plans.append([deepgemm.load(self.device, build, build.stages(K), buffers, sizes)])
        return outs[0], plans


class _Operands:
    """One set: tokens' rows, sorted by the experts that they chose."""

    def __init__(self, device: CudaDevice, tokens: int, seed: int) -> None:
        self.rows = tokens * DEEPSEEK_V3.top_k
        self.offsets = DEEPSEEK_V3.choices(tokens, seed)[1].offsets
        self.codes = drawn_codes(device, self.rows, K, seed)
        self.scales: Any = drawn_scales(device, self.rows * (K // BLOCK), seed)
        self.scales = self.scales.view(K // BLOCK, self.rows)
        self.m_indptr = device.upload("offsets", self.offsets)


def _poisoned(torch: Any, rows: int, poison: str) -> Any:
    """BF16 [rows, N] of a number; refmoe's and DeepGEMM's differ, so that what neither writes is not equal."""
    return torch.full((rows, N), float(poison), dtype=torch.bfloat16, device="cuda")


def _labelled(
    tokens: int, names: Sequence[str], timed: Sequence[dict[str, Any]], same: dict[str, bool], flops: int
) -> Iterator[dict[str, Any]]:
    """Rows of the report, with what `refmoe bench deepseek_gemm` says of a product."""
    rival = min((row["microseconds"] for of, row in zip(names, timed, strict=True) if of == NAME), default=None)
    for of, row in zip(names, timed, strict=True):
        product = of != "floor"
        us = row["microseconds"]
        yield {
            **{"model": DEEPSEEK_V3.model, "operation": OPERATION, "tokens": tokens, "of": of},
            **row,
            # Few at one token: the gate wants them times the time to be the same of all.
            "teraflops": round(flops / us / 1e6, 3) if product else None,
            "deepgemm_over_this": round(rival / us, 3) if rival and product else None,
            # Of refmoe's row: whether every layout of DeepGEMM gave its bytes.
            "bits_are_deepgemms": (same.get(row["name"], all(same.values())) if same else None) if product else None,
        }
