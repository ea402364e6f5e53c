"""Could this data have failed? If not, equality means nothing, and the verdict is MISTRUSTED."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refmoe.families.fills import Limits
from refmoe.families.gemm.fills import GemmLimits

__all__ = ["FILE_LIMITS", "READY_LIMITS", "ProductSample", "Sample", "doubt", "doubt_products"]

#: Activations from a file, shipped or a user's: a model's hidden states are neither constant nor mostly zero.
FILE_LIMITS = Limits(
    zeros=0.5, nans=0.05, scales=2, reason="hidden states of a model are neither constant nor mostly zero"
)

#: Raw random bytes: 2 codes in 256 are zeros, 2 NaN, 2 saturated.
READY_LIMITS = Limits(zeros=0.05, saturated=0.05, nans=0.05, scales=32, reason="the bytes are uniform")

#: Blocks for each distinct scale byte asked for: a small case cannot show many.
_BLOCKS_PER_SCALE = 2


@dataclass(frozen=True, eq=False)
class Sample:
    """What the reference makes of a case's real rows, padding and poison left out.

    Attributes:
        codes: uint8 [rows, K].
        scales: uint8 [rows, K/32].
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]


def doubt(sample: Sample, limits: Limits, *, scales_copied: bool = True) -> str | None:
    """Why data with this quantized form could not have failed, in a sentence; None if it could.

    Data without rows is not doubted: its case asks whether anything at all is written, of poisoned buffers.

    Args:
        sample: codes and scales of the case's real rows.
        limits: of the case's fill.
        scales_copied: whether the scales are part of the data; without input_sf the right scales are all 0x00.
    """
    if sample.codes.size == 0:
        return None
    magnitudes = sample.codes & 0x7F
    for name, code, most in (
        ("zero", 0x00, limits.zeros),
        ("saturated", 0x7E, limits.saturated),
        ("NaN", 0x7F, limits.nans),
    ):
        share = np.count_nonzero(magnitudes == code) / magnitudes.size
        if share > most:
            return f"{share:.1%} of the codes are {name}, more than the {most:.1%} of this fill: {limits.reason}"
    if not scales_copied:
        return None
    need = min(limits.scales, max(sample.scales.size // _BLOCKS_PER_SCALE, 1))
    found = np.unique(sample.scales).size
    if found < need:
        return f"{found} distinct scale bytes in {sample.scales.size} blocks, fewer than {need}: {limits.reason}"
    return None


@dataclass(frozen=True, eq=False)
class ProductSample:
    """The operands and results of a case's real rows.

    Attributes:
        values: float32 [rows, N], what the reference computes.
        token_scales: uint8 [rows, K/32].
        weight_scales: uint8 [E, N, K/32].
        relative_bounds: float64 1-D, error bound over |exact sum|, or None if no bound is checked.
    """

    values: NDArray[np.float32]
    token_scales: NDArray[np.uint8]
    weight_scales: NDArray[np.uint8]
    relative_bounds: NDArray[np.float64] | None


def doubt_products(sample: ProductSample, limits: GemmLimits) -> str | None:
    """As `doubt`, of a GEMM: too many results that some wrong kernel gives too, too few scales, too wide a bound."""
    if sample.values.size == 0:
        return None
    for name, share, most in (
        ("zero", np.mean(sample.values == 0), limits.zeros),
        ("not finite", np.mean(~np.isfinite(sample.values)), limits.special),
    ):
        if share > most:
            return f"{share:.1%} of the results are {name}, more than the {most:.1%} of this fill: {limits.reason}"
    for side, scales in (("token", sample.token_scales), ("weight", sample.weight_scales)):
        need = min(limits.scales, max(scales.size // _BLOCKS_PER_SCALE, 1))
        found = np.unique(scales).size
        if found < need:
            return f"{found} distinct {side} scales in {scales.size} blocks, fewer than {need}: {limits.reason}"
    if sample.relative_bounds is not None and sample.relative_bounds.size:
        middle = float(np.median(sample.relative_bounds))
        if middle > limits.bound:
            return (
                f"the median error bound is {middle:.2g} of its result, more than {limits.bound:.2g}: {limits.reason}"
            )
    return None
