"""How fast the executor runs the production kernels, with all its checks on and with none: quantize, grouped GEMM."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from refmoe.bench.timing import machine, measure, verdict
from refmoe.cuda.arguments import expanded_scale_rows, k_groups
from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.gemm.kernel import grouped_gemm
from refmoe.cuda.quantize import quantize_mxfp8
from refmoe.errors import RefmoeError
from refmoe.ptx import Checks

TARGETS = {"lane_instructions_per_s": 4e9, "one_row_s": 0.002, "gemm_s": 1.0}
"""At least so many lane-instructions a second with all checks on; at most so long for one row and for the GEMM, once
compiled."""

#: Of all drawn data.
SEED = 20250917
#: Elements of a row.
K = 2880
#: The first GEMM of a layer of gpt-oss-120b: one token, one expert.
GEMM_N, GEMM_TILE = 5760, "128x8x512"


def run(*, rows: int = 2048, rounds: int = 5) -> dict[str, Any]:
    """MXFP8 quantization and the grouped GEMM.

    Quantization is RCEIL with linear scales, of normally distributed BF16 [rows, 2880] and of one row; the GEMM is
    1 x 5760 x 2880, MXFP8 by MXFP4, in the tile 128x8x512. What is timed is the whole call of the kernel from Python:
    argument checks, buffers, execution, results. The PTX is compiled before. In each of `rounds` rounds every contender
    of quantization runs three times, and once unmeasured before; those of the GEMM run once a round.

    Returns:
        JSON-able: `shape`, `rounds`, `cores`, `versions`, `lane_instructions` of one launch, `medians_s` and
        `lane_instructions_per_s` by contender ("all checks", "no checks"), `one_row_s`, `gemm` with `shape`, `tile`,
        `lane_instructions` and `medians_s`, `targets`, `reached` by target, and `all_reached`.

    Raises:
        RefmoeError: no nvcc, or the two launches differ in a byte.
    """
    x = np.random.default_rng(SEED).standard_normal((rows, K), np.float32).astype(ml_dtypes.bfloat16)
    devices = executors()

    contenders = {name: partial(quantize_mxfp8, x, device=device) for name, device in devices.items()}
    _require_same([(made.codes.tobytes(), made.scales.tobytes()) for made in (call() for call in contenders.values())])
    launched = lane_instructions(devices["all checks"])
    contenders["one row, all checks"] = partial(quantize_mxfp8, x[:1], device=devices["all checks"])
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            # Each turn begins unmeasured: memory that the contender before gave back to the system faults in again.
            seconds[name] += measure({name: contender}, rounds=3)[name].seconds
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    one_row = medians.pop("one row, all checks")
    gemm = _gemm(rounds)
    rates = {name: launched / seconds for name, seconds in medians.items()}
    reached = {
        "lane_instructions_per_s": rates["all checks"] >= TARGETS["lane_instructions_per_s"],
        "one_row_s": one_row <= TARGETS["one_row_s"],
        "gemm_s": gemm["medians_s"]["all checks"] <= TARGETS["gemm_s"],
    }
    return {
        "shape": [rows, K],
        "rounds": rounds,
        **machine(),
        "lane_instructions": launched,
        "medians_s": medians,
        "lane_instructions_per_s": rates,
        "one_row_s": one_row,
        "gemm": gemm,
        **verdict(TARGETS, reached),
    }


def executors(arch: str | None = None) -> dict[str, PtxDevice]:
    """The executor with "all checks" and with "no checks"."""
    unchecked = Checks(bounds=False, uninitialised=False, alignment=False, races=False)
    return {"all checks": executor_with(Checks(), arch), "no checks": executor_with(unchecked, arch)}


def executor_with(checks: Checks, arch: str | None = None) -> PtxDevice:
    """The executor with some checks."""
    device = open_device("ptx", arch)
    assert isinstance(device, PtxDevice)
    device.checks = checks
    return device


def gemm_operands(offsets: npt.NDArray[np.int64], n: int, k: int) -> dict[str, Any]:
    """Arguments of a grouped GEMM of [rows, k] by [experts, n, k]: codes as drawn, scales around one.

    Args:
        offsets: int64 [experts + 1], the first row of each expert, then the number of rows.
        n: output columns.
        k: elements of a row.
    """
    rng = np.random.default_rng(SEED)
    rows, experts = int(offsets[-1]), offsets.size - 1
    columns = k_groups(k) * 4
    return {
        "codes": rng.standard_normal((rows, k), np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8),
        "scales": rng.integers(118, 128, expanded_scale_rows(rows, experts) * columns, dtype=np.uint8),
        "weights": rng.integers(0, 256, (experts, n, k // 2), dtype=np.uint8),
        "weight_scales": rng.integers(118, 128, experts * -(-n // 128) * 128 * columns, dtype=np.uint8),
        "offsets": offsets,
    }


def lane_instructions(device: PtxDevice) -> int:
    """Of the last launch."""
    result = device.launches[-1].result
    assert result is not None
    return result.lane_instructions


def _require_same(results: list[Any]) -> None:
    # A benchmark of launches that do not do the same thing says nothing.
    if any(result != results[0] for result in results):
        raise RefmoeError("bench executor: results with and without checks differ")


def _gemm(rounds: int) -> dict[str, Any]:
    """The GEMM on drawn codes, each contender once a round and once unmeasured before."""
    operands = gemm_operands(np.array([0, 1], np.int64), GEMM_N, K)
    devices = executors()
    contenders = {
        name: partial(grouped_gemm, **operands, device=device, tile=GEMM_TILE, out_dtype="f32")
        for name, device in devices.items()
    }
    _require_same([contender().tobytes() for contender in contenders.values()])
    measured = measure(contenders, rounds=rounds)
    return {
        "shape": [1, GEMM_N, K],
        "tile": GEMM_TILE,
        "lane_instructions": lane_instructions(devices["all checks"]),
        "medians_s": {name: timing.median for name, timing in measured.items()},
    }
