"""The grouped GEMM in block FP8 on a GPU, at DeepSeek-V3's sizes, beside DeepGEMM and beside a copy of its traffic.

DeepGEMM is taken as it is published, from the package `deep_gemm` (PyPI: sgl-deep-gemm, deep-gemm), where that is
installed. Its outputs have to be ours, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from refmoe.bench.gpu_timing import Calls, Contender, copy, time_groups
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

#: Experts, and rows of each: two prefills of different width, and one that is bound by reading the weights.
PROBLEMS = ((8, 4096), (32, 1024), (256, 128))
N, K = 4096, 7168
#: What is asked for: DeepGEMM's time over ours where arithmetic decides, the copy's over ours where reading does.
TARGETS = {(8, 4096): ("deep_gemm", 0.8), (32, 1024): ("deep_gemm", 0.8), (256, 128): ("copy", 0.75)}
SETS = 2  # each larger than any cache


def run() -> dict[str, Any]:
    """Time the kernels on the current GPU and return a JSON-able document.

    `rows` holds for each contender the median microseconds, the bytes it must move and TB/s, the ratio of its time to
    the copy's, TFLOP/s, and DeepGEMM's time over its own.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
    """
    device = CudaDevice()
    floors = CudaDevice(csrc=Path(__file__).parent)
    rows, targets = [], []
    for experts, rows_each in PROBLEMS:
        found = _timed(device, floors, experts, rows_each)
        rows += found
        best = min(row["microseconds"] for row in found if row["ours"])
        rival, least = TARGETS[experts, rows_each]
        others = [row["microseconds"] for row in found if row["contender"] == rival]
        ratio = round(others[0] / best, 3) if others else None
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
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def codes(rows: int) -> Any:
            out = torch.empty((rows, K), dtype=torch.uint8, device="cuda")
            for part in out.split(1 << 16):
                normal = torch.randn(part.shape, generator=generator, device="cuda") * 112
                part.copy_(normal.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))
            return out

        def scales(*shape: int) -> Any:
            return torch.rand(shape, generator=generator, device="cuda") + 0.5

        self.tokens, self.weights = codes(self.rows), codes(experts * N)
        self.token_scales = scales(K // BLOCK, self.rows)  # MN-major, as DeepGEMM takes them
        self.weight_scales = scales(experts, N // TILE_N, K // BLOCK)
        self.m_indptr = torch.arange(experts + 1, dtype=torch.int64, device="cuda") * rows_each
        self.m_indices = torch.arange(experts, dtype=torch.int32, device="cuda").repeat_interleave(rows_each)

    def output(self, torch: Any) -> Buffer:
        """BF16 [rows, N], poisoned."""
        return torch.full((self.rows, N), float("nan"), dtype=torch.bfloat16, device="cuda")


def _timed(device: CudaDevice, floors: CudaDevice, experts: int, rows_each: int) -> list[dict[str, Any]]:
    """A row for each contender of one problem."""
    torch = device.torch
    sets = [_Operands(device, experts, rows_each, seed) for seed in range(SETS)]
    rows = experts * rows_each
    traffic = (rows + experts * N) * K + 2 * rows * N
    contenders: dict[str, Contender | Calls] = {"copy": copy(floors, traffic, writes=1)}
    outputs: dict[str, Any] = {}
    for model in accumulation_models(device.arch):
        instruction = INSTRUCTIONS[model]
        tile_m = instruction.tiles_m[-1]  # the widest, since all experts have many rows
        for ctas in (1, 2) if tile_m in instruction.paired else (1,):
            name = f"{instruction.name}, {tile_m} x {TILE_N}{' in pairs' if ctas > 1 else ''}"
            outs = [one.output(torch) for one in sets]
            plans = [[_plan(device, one, out, model, tile_m, ctas)] for one, out in zip(sets, outs, strict=True)]
            contenders[name] = Contender(name, traffic, device, plans)
            outputs[name] = outs[0]
    outs = [one.output(torch) for one in sets]
    if (calls := _deep_gemm(torch, sets, outs)) is not None:
        contenders["deep_gemm"] = Calls("DeepGEMM", traffic, calls)
        outputs["deep_gemm"] = outs[0]
    timed = time_groups(device, [list(contenders.values())])
    rival = next((row["microseconds"] for name, row in zip(contenders, timed, strict=True) if name == "deep_gemm"), 0)
    found = []
    for name, row in zip(contenders, timed, strict=True):
        product = name != "copy"
        found.append(
            {
                "problem": f"{experts} x {rows_each}",
                "contender": name,
                "ours": product and name != "deep_gemm",
                **{key: value for key, value in row.items() if key != "name"},
                "teraflops": round(2 * rows * N * K / row["microseconds"] / 1e6, 1) if product else None,
                "deep_gemm_over_this": round(rival / row["microseconds"], 3) if rival and product else None,
                "bits_are_deep_gemms": _same(torch, outputs, name),
            }
        )
    return found


def _same(torch: Any, outputs: dict[str, Any], name: str) -> bool | None:
    """Whether an output is DeepGEMM's, bit by bit; None where there is nothing to compare."""
    if name not in outputs or name == "deep_gemm" or "deep_gemm" not in outputs:
        return None
    return bool(torch.equal(outputs[name].view(torch.int16), outputs["deep_gemm"].view(torch.int16)))


def _plan(device: CudaDevice, operands: _Operands, out: Buffer, model: str, tile_m: int, ctas: int) -> LaunchPlan:
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


def _deep_gemm(torch: Any, sets: list[_Operands], outs: list[Buffer]) -> list[Callable[[], object]] | None:
    """DeepGEMM's grouped GEMM on the same operands; None where the package is not installed."""
    try:
        import deep_gemm
    except (ImportError, OSError):  # not there, or built for another torch
        return None

    def call(one: _Operands, out: Buffer) -> Callable[[], object]:
        left = one.tokens.view(torch.float8_e4m3fn), one.token_scales.T
        right = one.weights.view(one.experts, N, K).view(torch.float8_e4m3fn), one.weight_scales
        return lambda: deep_gemm.m_grouped_fp8_gemm_nt_contiguous(left, right, out, one.m_indices)

    return [call(one, out) for one, out in zip(sets, outs, strict=True)]
