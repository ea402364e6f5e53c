"""Doubt about data on which a wrong kernel could pass too. Equality means nothing there: the verdict is MISTRUSTED.

For example, a kernel that writes nothing equals a reference whose results are zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import E4M3, Format

#: Blocks for each distinct scale byte asked for: a small case cannot show many.
_BLOCKS_PER_SCALE = 2


@dataclass(frozen=True)
class Limits:
    """What data and its right results must look like for equality to mean anything.

    Attributes:
        zeros: largest fraction of codes or results that may be zero; a kernel that writes nothing agrees with zeros.
        saturated: largest fraction of codes that may have the magnitude 448; a kernel with lost scales gives those.
        nans: largest fraction of NaN codes, or of results that are not finite; a kernel that gives only NaN has those.
        scales: distinct scale bytes that must occur, where there are enough blocks; equal scales hide a permutation.
        bound: largest median of error bound / |result|; a bound as wide as the result allows anything.
        reason: the reason for these figures, for the message.
    """

    zeros: float = 0.10
    saturated: float = 0.10
    nans: float = 0.0
    scales: int = 2
    bound: float = 2.0**-8
    reason: str = "ordinary data has few zero or saturated codes and more than one scale"


def doubt_codes(
    codes: NDArray[np.uint8],
    scales: NDArray[np.unsignedinteger],
    limits: Limits,
    *,
    scales_copied: bool = True,
    element: Format = E4M3,
) -> str | None:
    """Why data with this quantized form could not have failed, in a sentence; None if it could.

    Data without rows is not doubted: its case asks whether anything at all is written, of poisoned buffers.

    Args:
        codes: uint8 [rows, K], one a byte, what the reference makes of the real rows, without padding and poison.
        scales: uint8 [rows, K/block], or any bit patterns, one a block.
        limits: of the case's fill.
        scales_copied: whether the scales are part of the data; without input_sf the right scales are all 0x00.
        element: what a code means. Of E2M1, which has no NaN, those under a NaN scale are not counted as such.
    """
    if codes.size == 0:
        return None
    magnitudes = codes & np.uint8((1 << (element.bits - 1)) - 1)
    of_interest = (("zero", 0), ("saturated", element.max_code), ("NaN", element.nan_code))
    shares = {name: np.mean(magnitudes == code) for name, code in of_interest if code is not None}
    most = {"zero": limits.zeros, "saturated": limits.saturated, "NaN": limits.nans}
    found = _too_many("codes", shares, most, limits)
    return found or (_too_few_scales({"scale bytes": scales}, limits) if scales_copied else None)


def doubt_values(values: NDArray[Any], limits: Limits) -> str | None:
    """As `doubt_codes`, of results of any float type: too many that are zero or not finite."""
    if values.size == 0:
        return None
    shares = {"zero": np.mean(values == 0), "not finite": np.mean(~np.isfinite(values))}
    return _too_many("results", shares, {"zero": limits.zeros, "not finite": limits.nans}, limits)


def doubt_products(
    values: NDArray[np.float32],
    token_scales: NDArray[np.uint8],
    weight_scales: NDArray[np.uint8],
    relative_bounds: NDArray[np.float64] | None,
    limits: Limits,
) -> str | None:
    """As `doubt_codes`, of a GEMM: too many results that some wrong kernel gives too, too few scales, too wide a bound.

    Args:
        values: float32 [rows, N], what the reference computes for the case's real rows.
        token_scales: uint8 [rows, K/32].
        weight_scales: uint8 [E, N, K/32].
        relative_bounds: float64 1-D, error bound over |exact sum|, or None if no bound is checked.
        limits: of the case's fill.
    """
    if values.size == 0:
        return None
    found = doubt_values(values, limits)
    found = found or _too_few_scales({"token scales": token_scales, "weight scales": weight_scales}, limits)
    if found is not None or relative_bounds is None or not relative_bounds.size:
        return found
    middle = float(np.median(relative_bounds))
    if middle <= limits.bound:
        return None
    return f"the median error bound is {middle:.2g} of its result, more than {limits.bound:.2g}: {limits.reason}"


def _too_many(what: str, shares: Mapping[str, Any], most: Mapping[str, float], limits: Limits) -> str | None:
    for name, share in shares.items():
        if share > most[name]:
            return f"{share:.1%} of the {what} are {name}, more than the {most[name]:.1%} of this fill: {limits.reason}"
    return None


def _too_few_scales(scales: Mapping[str, NDArray[np.unsignedinteger]], limits: Limits) -> str | None:
    for name, found in scales.items():
        need = min(limits.scales, max(found.size // _BLOCKS_PER_SCALE, 1))
        distinct = np.unique(found).size
        if distinct < need:
            return f"{distinct} distinct {name} in {found.size} blocks, fewer than {need}: {limits.reason}"
    return None
