"""The grouped GEMM in block FP8 on a GPU, at DeepSeek-V3's sizes, beside DeepGEMM and beside a copy of its traffic.

DeepGEMM's kernel for SM90 is compiled from its own headers, see `refmoe.museum.deepgemm`, and launched as its host code
would launch it, in several instantiations: the fastest is the one to compare with. Its outputs have to be ours, bit by
bit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from refmoe.bench.gpu.timing import Contender, copy, drawn_codes, drawn_scales, floor_device, time_groups
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
from refmoe.museum.deepgemm import DeepGemmMissing, find_headers
from refmoe.museum.deepgemm import gemm as deepgemm

#: Experts, and rows of each: two prefills of different width, and one that is bound by reading the weights.
PROBLEMS = ((8, 4096), (32, 1024), (256, 128))
N, K = 4096, 7168
#: What is asked for: DeepGEMM's time over ours where arithmetic decides, the copy's over ours where reading does.
TARGETS = {(8, 4096): ("DeepGEMM", 0.8), (32, 1024): ("DeepGEMM", 0.8), (256, 128): ("copy", 0.75)}
SETS = 2  # each larger than any cache
#: DeepGEMM's instantiations: tokens and weight rows of a tile, and CTAs that share weights.
DEEPGEMM_BUILDS = tuple(
    (tile_m, tile_n, cluster) for tile_m in (64, 128) for tile_n in (128, 160) for cluster in (1, 2)
)


def run() -> dict[str, Any]:
    """Time the kernels on the current GPU and return a JSON-able document.

    `rows` holds for each contender the median microseconds, the bytes it must move and TB/s, the ratio of its time to
    the copy's, TFLOP/s, DeepGEMM's time over its own, and whether its output is DeepGEMM's. Of DeepGEMM's times the
    shortest counts. Without its headers there is no row of it, and no target that asks for it is reached.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
    """
    device = CudaDevice()
    floors = floor_device()
    rows, targets = [], []
    for experts, rows_each in PROBLEMS:
        found = timed(device, floors, experts, rows_each)
        rows += found
        best = min(row["microseconds"] for row in found if row["of"] == "refmoe")
        rival, least = TARGETS[experts, rows_each]
        others = [row["microseconds"] for row in found if row["of"] == rival]
        ratio = round(min(others) / best, 3) if others else None
        name = f"{rival} over ours, {experts} x {rows_each}"
        targets.append({"name": name, "ratio": ratio, "target": least, "reached": ratio is not None and ratio >= least})
    return {
        "gpu": device.gpu_name,
        "arch": device.arch,
        "rows": rows,
        "targets": targets,
        "all_reached": all(target["reached"] for target in targets),
    }


class _Operands:
    """Random operands of one problem on the GPU: normal numbers as a quantizer would leave them."""

    def __init__(self, device: CudaDevice, experts: int, rows_each: int, seed: int) -> None:
        torch = device.torch
        self.experts, self.rows_each, self.rows = experts, rows_each, experts * rows_each
        self.tokens, self.weights = (
            drawn_codes(device, rows, K, 2 * seed + at) for at, rows in enumerate((self.rows, experts * N))
        )
        token_scales, weight_scales = self.rows * (K // BLOCK), experts * (N // TILE_N) * (K // BLOCK)
        self.token_scales = drawn_scales(device, token_scales, seed).view(K // BLOCK, self.rows)  # MN-major
        self.weight_scales = drawn_scales(device, weight_scales, seed).view(experts, N // TILE_N, K // BLOCK)
        self.m_indptr = torch.arange(experts + 1, dtype=torch.int64, device="cuda") * rows_each
        self.m_indices = torch.arange(experts, dtype=torch.int32, device="cuda").repeat_interleave(rows_each)

    def output(self, torch: Any) -> Buffer:
        """BF16 [rows, N], poisoned."""
        return torch.full((self.rows, N), float("nan"), dtype=torch.bfloat16, device="cuda")


def timed(
    device: CudaDevice, floors: CudaDevice, experts: int, rows_each: int, *, rivals: bool = True
) -> list[dict[str, Any]]:
    """A row for each contender of one problem: as many experts, and rows of each; without DeepGEMM unless `rivals`."""
    torch = device.torch
    sets = [_Operands(device, experts, rows_each, seed) for seed in range(SETS)]
    rows = experts * rows_each
    traffic = (rows + experts * N) * K + 2 * rows * N
    contenders = [("copy", replace(copy(floors, traffic, writes=1), name="copy"))]
    outputs: dict[str, Buffer] = {}

    def enter(of: str, name: str, plan: Any) -> None:
        outs = [one.output(torch) for one in sets]
        plans = [[plan(one, out)] for one, out in zip(sets, outs, strict=True)]
        contenders.append((of, Contender(name, traffic, device, plans)))
        outputs[name] = outs[0]

    for model in accumulation_models(device.arch):
        instruction = INSTRUCTIONS[model]
        chosen = instruction.choose_tile_m(rows_each)
        # Of the faster instruction the tiles that it does not choose, too.
        tiles = instruction.tiles_m if instruction.paired else (chosen,)
        pairs = [(tile_m, 1) for tile_m in tiles] + [(tile_m, 2) for tile_m in instruction.paired]
        for tile_m, ctas in pairs:
            name = f"{instruction.name}, {tile_m} x {TILE_N}{' in pairs' if ctas > 1 else ''}"
            enter("refmoe", name, partial(_plan, device, model=model, tile_m=tile_m, ctas=ctas))
    for build in deepgemm_builds(device, experts) if rivals else ():
        name = f"DeepGEMM, {build.tile_m} x {build.tile_n}{' in pairs' if build.cluster > 1 else ''}"
        enter("DeepGEMM", name, partial(_deepgemm_plan, device, build=build))
    timed = time_groups(device, [[one for _, one in contenders]])
    rival = min(
        (row["microseconds"] for (of, _), row in zip(contenders, timed, strict=True) if of == "DeepGEMM"), default=0
    )
    theirs = next((outputs[one.name] for of, one in contenders if of == "DeepGEMM"), None)
    found = []
    for (of, one), row in zip(contenders, timed, strict=True):
        product = of != "copy"
        found.append(
            {
                "problem": f"{experts} x {rows_each}",
                "of": of,
                "contender": one.name,
                **{key: value for key, value in row.items() if key != "name"},
                "teraflops": round(2 * rows * N * K / row["microseconds"] / 1e6, 1) if product else None,
                "deepgemm_over_this": round(rival / row["microseconds"], 3) if rival and product else None,
                "bits_are_deepgemms": _same(torch, outputs[one.name], theirs) if product else None,
            }
        )
    return found


def _same(torch: Any, output: Buffer, theirs: Buffer | None) -> bool | None:
    """Whether an output is DeepGEMM's, bit by bit; None where there is nothing to compare."""
    return None if theirs is None else bool(torch.equal(output.view(torch.int16), theirs.view(torch.int16)))


def _plan(device: CudaDevice, operands: _Operands, out: Buffer, *, model: str, tile_m: int, ctas: int) -> LaunchPlan:
    """A launch of ours."""
    shape = GroupedShape(operands.rows, operands.experts, N, K)
    return deepseek_gemm_plan(
        model,
        tile_m,
        "bf16",
        (operands.weights, operands.weight_scales, operands.tokens, operands.token_scales),
        operands.m_indptr,
        None,
        out,
        shape,
        scale_strides("mn_major", operands.rows, shape),
        multiprocessors=device.multiprocessors,
        ctas=ctas,
    )


def deepgemm_builds(device: CudaDevice, experts: int) -> list[deepgemm.DeepGemmBuild]:
    """The instantiations that are timed; none on another chip than SM90, or without headers."""
    try:
        find_headers()
    except DeepGemmMissing:
        return []
    if device.arch != deepgemm.ARCH:
        return []
    chip = device.multiprocessors
    return [
        deepgemm.DeepGemmBuild("contiguous", *tile, experts, chip // tile[-1] * tile[-1]) for tile in DEEPGEMM_BUILDS
    ]


def _deepgemm_plan(
    device: CudaDevice, operands: _Operands, out: Buffer, *, build: deepgemm.DeepGemmBuild
) -> LaunchPlan:
    """A launch of DeepGEMM's. Experts begin at multiples of a tile here, as it asks for."""
    buffers = deepgemm.Buffers(
        operands.tokens, operands.token_scales, operands.weights, operands.weight_scales, operands.m_indices, out
    )
    sizes = deepgemm.Sizes(operands.rows, 1, operands.rows, operands.experts, N, K)
    return deepgemm.load(device, build, build.stages(K), buffers, sizes)
