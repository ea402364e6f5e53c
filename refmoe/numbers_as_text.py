"""Bit patterns of floating-point numbers in words: pattern, value, distance."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["VALUE_DTYPES", "bits_text", "distance_text", "e8m0_text", "number_text"]

#: The NumPy types of elements, by their names in repro strings.
VALUE_DTYPES: dict[str, np.dtype[Any]] = {"bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32)}


def bits_text(pattern: int, dtype: str) -> str:
    """The pattern in hexadecimal, as many digits as the type has."""
    return f"0x{pattern:0{2 * VALUE_DTYPES[dtype].itemsize}X}"


def number_text(pattern: int, dtype: str) -> str:
    """The pattern and its value, "0x3F80 (1)"."""
    value = _value(pattern, dtype)
    return f"{bits_text(pattern, dtype)} ({'NaN' if np.isnan(value) else f'{value:.9g}'})"


def distance_text(first: int, second: int, dtype: str) -> str:
    """How many representable values two different patterns are apart, ", 1 ulp"; empty if one is NaN."""
    if np.isnan([_value(first, dtype), _value(second, dtype)]).any():
        return ""
    sign = 1 << 8 * VALUE_DTYPES[dtype].itemsize - 1
    left, right = (-(bits - sign) if bits & sign else bits for bits in (first, second))
    return f", {abs(left - right):,} ulp" if left != right else ", the sign of zero"


def e8m0_text(scale: int) -> str:
    """The value of an E8M0 scale: "2^-4" or "NaN"."""
    return "NaN" if scale == 0xFF else f"2^{scale - 127}"


def _value(pattern: int, dtype: str) -> float:
    chosen = VALUE_DTYPES[dtype]
    return float(np.array([pattern], f"u{chosen.itemsize}").view(chosen)[0])
