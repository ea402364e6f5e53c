"""Tolerances that other projects publish with their tests, and the planted faults that each would let through.

No verdict of refmoe depends on a tolerance: verdicts compare bits, and where a bound is needed it is derived
(`refmoe.reference.mma.running_bound`). The question here is only this: would a test with that tolerance pass on the
output of a planted fault?

An absolute tolerance means something only at a scale. Published tests draw their data so that outputs are about 1. So
outputs are divided by the standard deviation of the reference before they meet a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Tolerance:
    """A published tolerance.

    Attributes:
        name: short, for a table's column.
        source: the project and the test.
        rule: what it accepts, d = kernel - reference.
        accepts: `accepts(kernel, reference)`, float64 of equal shape, both finite.
    """

    name: str
    source: str
    rule: str
    accepts: Callable[[Values, Values], bool]


def _near(kernel: Values, reference: Values, absolute: float, relative: float) -> float:
    """The share of elements with |d| <= absolute + relative |reference|, as torch.isclose has it."""
    return float(np.mean(np.abs(kernel - reference) <= absolute + relative * np.abs(reference)))


def _all_close(absolute: float, relative: float, share: float = 1.0) -> Callable[[Values, Values], bool]:
    return lambda kernel, reference: _near(kernel, reference, absolute, relative) >= share


def _flashinfer_sm12x(kernel: Values, reference: Values) -> bool:
    difference = np.abs(kernel - reference)
    near = difference < max(0.05, 1.5 * float(reference.std()))
    return bool(np.mean(near | (difference < 0.5 * np.abs(reference))) >= 0.97)


def _flashinfer_padding(kernel: Values, reference: Values) -> bool:
    return _near(kernel, reference, 1.0, 0.05) >= 0.95 and _near(kernel, reference, 3.0, 0.10) >= 1.0


def _deepgemm(kernel: Values, reference: Values) -> bool:
    energy = float((kernel * kernel + reference * reference).sum())
    return energy == 0 or 1 - 2 * float((kernel * reference).sum()) / energy < 1e-3


TOLERANCES: tuple[Tolerance, ...] = (
    Tolerance(
        "flashinfer-sm12x",
        "FlashInfer, MoE on SM12x",
        "|d| < max(0.05, 1.5 std) or |d| < 0.5 |reference|, for 97 % of elements",
        _flashinfer_sm12x,
    ),
    Tolerance(
        "flashinfer-cutlass",
        "FlashInfer, tests/moe/test_trtllm_cutlass_fused_moe.py, MXFP8 x MXFP4",
        "|d| <= 0.1 + 0.1 |reference|, for all",
        _all_close(0.1, 0.1),
    ),
    Tolerance(
        "flashinfer-padding",
        "FlashInfer, the padding test of the same kernels",
        "|d| <= 1 + 0.05 |reference| for 95 % and <= 3 + 0.1 |reference| for all",
        _flashinfer_padding,
    ),
    Tolerance(
        "trtllm-gen",
        "FlashInfer, tests/moe/test_trtllm_gen_fused_moe.py, FP4 x BF16, the strictest share of its tests",
        "|d| <= 0.1 + 0.85 |reference|, for 92.5 %",
        _all_close(0.1, 0.85, 0.925),
    ),
    Tolerance(
        "flashinfer-bench",
        "FlashInfer-Bench, low-bit evaluator",
        "|d| <= 0.01 + 0.01 |reference|, for 95 %",
        _all_close(0.01, 0.01, 0.95),
    ),
    Tolerance(
        "deepgemm",
        "DeepGEMM, calc_diff of its tests",
        "1 - 2 <kernel, reference> / (|kernel|^2 + |reference|^2) < 0.001",
        _deepgemm,
    ),
    Tolerance(
        "te-nvfp4",
        "TransformerEngine, NVFP4 GEMM",
        "|d| <= 0.008 + 0.008 |reference|, for all",
        _all_close(8e-3, 8e-3),
    ),
    Tolerance(
        "te-grouped",
        "TransformerEngine, grouped NVFP4 GEMM",
        "|d| <= 0.5 + 0.25 |reference|, for all",
        _all_close(0.5, 0.25),
    ),
)


def accepting(kernel: NDArray[np.generic], reference: NDArray[np.generic]) -> tuple[str, ...]:
    """Names of the tolerances that accept `kernel`, in their order.

    Every one of these tests refuses NaN and infinity, so none accepts an output that holds one.

    Args:
        kernel: values [T, N] of any float type.
        reference: likewise, finite and not all equal.
    """
    ours, theirs = kernel.astype(np.float64), reference.astype(np.float64)
    if not np.isfinite(ours).all():
        return ()
    scale = float(theirs.std())
    return tuple(rule.name for rule in TOLERANCES if rule.accepts(ours / scale, theirs / scale))
