"""Codes of a number format in words: pattern, value, distance.

E4M3 0x6F is "0x6F (120)", and ", 1 ulp" from 0x70; E8M0 0x7B is "0x7B (2^-4)", and ", -1 in the exponent" from 0x7C.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.formats import BF16, FP32, Format

_VALUE_FORMATS = {"bf16": BF16, "f32": FP32}

VALUE_DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(fmt.dtype) for name, fmt in _VALUE_FORMATS.items()}
"""The NumPy types of rounded values, by their names in repro strings."""


def bits_text(code: int, fmt: Format | str) -> str:
    """The code in hexadecimal, as many digits as the format has: "0x6F".

    Args:
        code: the code.
        fmt: its format, or the name of one of `VALUE_DTYPES`; likewise in the other functions.
    """
    return f"0x{code:0{-(-_format(fmt).bits // 4)}X}"


def value_text(code: int, fmt: Format | str) -> str:
    """The value of a code: "120", "-0", "inf", "NaN"; of a scale that is a power of two "2^-4"."""
    fmt = _format(fmt)
    if fmt.is_nan(code):
        return "NaN"
    sign = "-" if fmt.is_negative(code) else ""
    if fmt.is_infinite(code):
        return f"{sign}inf"
    if fmt.mantissa_bits == 0:
        return f"2^{code - fmt.bias}"
    return f"{sign}{abs(float(fmt.decode(code))):.9g}"


def number_text(code: int, fmt: Format | str) -> str:
    """The code and its value, "0x6F (120)"."""
    return f"{bits_text(code, fmt)} ({value_text(code, fmt)})"


def distance_text(first: int, second: int, fmt: Format | str) -> str:
    """How far two different codes are apart, in representable values; empty if one is NaN.

    ", 1 ulp", ", the sign of zero", or of powers of two, first minus second, ", +1 in the exponent".
    """
    fmt = _format(fmt)
    if fmt.is_nan(first) or fmt.is_nan(second):
        return ""
    if fmt.mantissa_bits == 0:
        return f", {first - second:+d} in the exponent"
    sign = 1 << fmt.bits - 1 if fmt.signed else 0
    left, right = (-(code - sign) if code & sign else code for code in (first, second))
    return f", {abs(left - right):,} ulp" if left != right else ", the sign of zero"


def compared_text(kernel: int, reference: int, fmt: Format | str) -> str:
    """Two different codes and their distance: "kernel 0x6F (120) reference 0x70 (128), 1 ulp"."""
    values = f"kernel {number_text(kernel, fmt)} reference {number_text(reference, fmt)}"
    return values + distance_text(kernel, reference, fmt)


def _format(fmt: Format | str) -> Format:
    return _VALUE_FORMATS[fmt] if isinstance(fmt, str) else fmt
