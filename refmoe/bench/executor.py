"""How fast the executor runs the production quantize kernel, with all its checks on and with none."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import ml_dtypes
import numpy as np

from refmoe.bench.timing import measure
from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.kernels import mxfp8_quantize
from refmoe.errors import RefmoeError
from refmoe.ptx import Checks

__all__ = ["TARGETS", "run"]

TARGETS = {"lane_instructions_per_s": 0.4e9, "one_row_s": 0.020}
"""At least so many lane-instructions a second with all checks on; at most so long for one row, once compiled."""

_SEED = 20250917
_K = 2880
_UNCHECKED = Checks(bounds=False, uninitialised=False, alignment=False, races=False)


def run(*, rows: int = 2048, rounds: int = 5) -> dict[str, Any]:
    """MXFP8 quantization, RCEIL, linear scales, of normally distributed BF16 [rows, 2880] and of one row.

    What is timed is the whole call of the kernel from Python: argument checks, buffers, execution, results. The PTX is
    compiled before. In each of `rounds` rounds every contender runs three times, and once unmeasured before.

    Returns:
        JSON-able: `shape`, `rounds`, `cores`, `versions`, `lane_instructions` of one launch, `medians_s` and
        `lane_instructions_per_s` by contender ("all checks", "no checks"), `one_row_s`, `targets`, `reached` by target,
        and `all_reached`.

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
    rates = {name: launched.lane_instructions / seconds for name, seconds in medians.items()}
    reached = {
        "lane_instructions_per_s": rates["all checks"] >= TARGETS["lane_instructions_per_s"],
        "one_row_s": one_row <= TARGETS["one_row_s"],
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
        "targets": dict(TARGETS),
        "reached": reached,
        "all_reached": all(reached.values()),
    }


def _device(checks: Checks) -> PtxDevice:
    device = open_device("ptx")
    assert isinstance(device, PtxDevice)
    device.checks = checks
    return device
