"""How fast the executor runs the production kernels, with all its checks on and with none: quantize, grouped GEMM."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import ml_dtypes
import numpy as np

from refmoe.bench.timing import measure
from refmoe.cuda.arguments import expanded_scale_rows, k_groups
from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.gemm.kernel import grouped_gemm
from refmoe.cuda.quantize import mxfp8_quantize
from refmoe.errors import RefmoeError
from refmoe.ptx import Checks

__all__ = ["TARGETS", "run"]

TARGETS = {"lane_instructions_per_s": 0.4e9, "one_row_s": 0.020, "gemm_s": 6.0}
"""At least so many lane-instructions a second with all checks on; at most so long for one row and for the GEMM, once
compiled."""

_SEED = 20250917
_K = 2880
# The first GEMM of a layer of gpt-oss-120b: one token, one expert.
_GEMM_N, _GEMM_TILE = 5760, "128x8x512"
_UNCHECKED = Checks(bounds=False, uninitialised=False, alignment=False, races=False)


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
    x = np.random.default_rng(_SEED).standard_normal((rows, _K), np.float32).astype(ml_dtypes.bfloat16)
    checked, unchecked = _device(Checks()), _device(_UNCHECKED)
    expected, found = mxfp8_quantize(x, device=checked), mxfp8_quantize(x, device=unchecked)
    # A benchmark of two launches that do not do the same thing says nothing.
    if not (np.array_equal(expected.codes, found.codes) and np.array_equal(expected.scales, found.scales)):
        raise RefmoeError("bench executor: results with and without checks differ")
    launched = checked.launches[-1].result
    assert launched is not None
    contenders: dict[str, Callable[[], object]] = {
        "all checks": lambda: mxfp8_quantize(x, device=checked),
        "no checks": lambda: mxfp8_quantize(x, device=unchecked),
        "one row, all checks": lambda: mxfp8_quantize(x[:1], device=checked),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            # Each turn begins unmeasured: memory that the contender before gave back to the system faults in again.
            seconds[name] += measure({name: contender}, rounds=3)[name].seconds
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    one_row = medians.pop("one row, all checks")
    gemm = _gemm(rounds)
    rates = {name: launched.lane_instructions / seconds for name, seconds in medians.items()}
    reached = {
        "lane_instructions_per_s": rates["all checks"] >= TARGETS["lane_instructions_per_s"],
        "one_row_s": one_row <= TARGETS["one_row_s"],
        "gemm_s": gemm["medians_s"]["all checks"] <= TARGETS["gemm_s"],
    }
    return {
        "shape": [rows, _K],
        "rounds": rounds,
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"numpy": version("numpy")},
        "lane_instructions": launched.lane_instructions,
        "medians_s": medians,
        "lane_instructions_per_s": rates,
        "one_row_s": one_row,
        "gemm": gemm,
        "targets": dict(TARGETS),
        "reached": reached,
        "all_reached": all(reached.values()),
    }


def _gemm(rounds: int) -> dict[str, Any]:
    """The GEMM on drawn codes, each contender once a round and once unmeasured before."""
    rng = np.random.default_rng(_SEED)
    codes = rng.standard_normal((1, _K), np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    weights = rng.integers(0, 256, (1, _GEMM_N, _K // 2), dtype=np.uint8)
    columns = k_groups(_K) * 4
    scales = rng.integers(118, 128, (expanded_scale_rows(1, 1) * columns), dtype=np.uint8)
    weight_scales = rng.integers(118, 128, (-(-_GEMM_N // 128) * 128 * columns), dtype=np.uint8)
    offsets = np.array([0, 1], np.int64)

    def contender(device: PtxDevice) -> Callable[[], bytes]:
        return lambda: grouped_gemm(
            codes, scales, weights, weight_scales, offsets, device=device, tile=_GEMM_TILE, out_dtype="f32"
        ).tobytes()

    devices = {"all checks": _device(Checks()), "no checks": _device(_UNCHECKED)}
    contenders = {name: contender(device) for name, device in devices.items()}
    if len({call() for call in contenders.values()}) > 1:
        raise RefmoeError("bench executor: results with and without checks differ")
    measured = measure(contenders, rounds=rounds)
    launched = devices["all checks"].launches[-1].result
    assert launched is not None
    return {
        "shape": [1, _GEMM_N, _K],
        "tile": _GEMM_TILE,
        "lane_instructions": launched.lane_instructions,
        "medians_s": {name: statistics.median(timing.seconds) for name, timing in measured.items()},
    }


def _device(checks: Checks) -> PtxDevice:
    device = open_device("ptx")
    assert isinstance(device, PtxDevice)
    device.checks = checks
    return device
