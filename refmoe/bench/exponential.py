"""The error of the shared exponential on every FP32 input, against the correctly rounded one.

Only inputs whose exponential is neither constant nor one of the sequence's own branches are evaluated, 2^-25 <= |x|
within the two thresholds. The rest follows:

- |x| < 2^-25: exp(x) lies between 1 - 2^-25 and 1 + 2^-24, the midpoints next to 1, so 1 is correctly rounded. There
  n = 0 and r = x; each fma(p, r, c) adds less than 2^-25 to its c = 1, which leaves it 1, so the sequence gives 1 too.
- x > OVERFLOW and x < UNDERFLOW: infinity and zero by comparison, and correctly rounded, because exp of the inputs next
  to the thresholds is beyond 2^128 - 2^103 and below 2^-150; this is checked here.

exp(x) itself is NumPy's in float64. Where that lies within 2^-18 of a unit of FP32 from a midpoint, some hundred times
its error, the decimal module, whose exp is correctly rounded, decides in 60 digits; its error is measured on a sample.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal, localcontext
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, RefmoeError
from refmoe.reference.exponential import (
    COEFFICIENTS,
    LN2_HIGH,
    LN2_LOW,
    LOG2E,
    MAGIC,
    MAX_ULP,
    OVERFLOW,
    UNDERFLOW,
    exponential,
)

_LEAST_BITS = (127 - 25) << 23
_INPUTS_A_CHUNK = 1 << 20
_MANTISSA_BITS, _EMIN = 23, -126
_NEAR_MIDPOINT = 2.0**-18
_DIGITS = 60
_SAMPLE = 2000


def run(*, stride: int = 1) -> dict[str, Any]:
    """Evaluate every `stride`-th input of each sign and binade; a few minutes for all of them.

    Returns:
        JSON-able: the `constants` of the sequence; over all inputs evaluated `max_ulp`, `worst_input`, `worst_bits`,
        `inputs`, `not_correctly_rounded` and `decided_in_decimal`; `constant_inputs`, those that the argument above
        settles; the error of NumPy's exp on a sample; in `rows` the same for each sign and binade of x;
        `stated_max_ulp`, and `reached`, whether it holds.

    Raises:
        ArgumentError: `stride` is not positive.
        RefmoeError: a threshold is not where correct rounding has it.
    """
    if stride < 1:
        raise ArgumentError("stride", str(stride), "at least 1")
    start = time.perf_counter()
    _check_thresholds()
    rows = [_row(first, last, stride) for first, last in _binades()]
    worst = max(rows, key=lambda row: row["max_ulp"])
    inputs = sum(row["inputs"] for row in rows)
    not_nan = 2 * (0x7F800000 + 1)
    return {
        "stride": stride,
        "constants": constants(),
        "inputs": inputs,
        "constant_inputs": not_nan - sum(last - first + 1 for first, last in _binades()),
        "max_ulp": worst["max_ulp"],
        "stated_max_ulp": MAX_ULP,
        "worst_input": worst["worst_input"],
        "worst_bits": worst["worst_bits"],
        "not_correctly_rounded": sum(row["not_correctly_rounded"] for row in rows),
        "share_not_correctly_rounded": sum(row["not_correctly_rounded"] for row in rows) / inputs,
        "decided_in_decimal": sum(row["decided_in_decimal"] for row in rows),
        "numpy_exp_relative_error_times_2_53": _error_of_numpy(),
        "seconds": time.perf_counter() - start,
        "versions": {"numpy": version("numpy")},
        "rows": rows,
        "reached": worst["max_ulp"] <= MAX_ULP,
    }


def constants() -> list[str]:
    """The sequence's constants, as hexadecimal numbers: what a report is about."""
    return [float(value).hex() for value in (LOG2E, MAGIC, LN2_HIGH, LN2_LOW, *COEFFICIENTS, OVERFLOW, UNDERFLOW)]


def _binades() -> Iterator[tuple[int, int]]:
    """First and last bits of each sign and binade that is evaluated."""
    for limit in (OVERFLOW, UNDERFLOW):
        bits = int(np.abs(limit).view(np.uint32))
        sign = 0x80000000 if limit < 0 else 0
        for first in range(_LEAST_BITS, bits + 1, 1 << _MANTISSA_BITS):
            yield sign | first, sign | min(first + (1 << _MANTISSA_BITS) - 1, bits)


def _row(first: int, last: int, stride: int) -> dict[str, Any]:
    """One sign and binade."""
    max_ulp, worst, wrong, decided = -1.0, first, 0, 0
    step = stride * _INPUTS_A_CHUNK
    for start in range(first, last + 1, step):
        bits = np.arange(start, min(start + step, last + 1), stride, dtype=np.uint32)
        errors, not_rounded, near = _errors(bits.view(np.float32))
        index = int(errors.argmax())
        if errors[index] > max_ulp:
            max_ulp, worst = float(errors[index]), int(bits[index])
        wrong, decided = wrong + not_rounded, decided + near
    value = float(np.uint32(worst).view(np.float32))
    exponent = (first & 0x7FFFFFFF) // (1 << _MANTISSA_BITS) - 127
    return {
        "x": f"{'-' if first >> 31 else '+'}2^{exponent}",
        "inputs": len(range(first, last + 1, stride)),
        "max_ulp": max_ulp,
        "worst_input": value,
        "worst_bits": f"{worst:#010x}",
        "not_correctly_rounded": wrong,
        "decided_in_decimal": decided,
    }


def _errors(x: NDArray[np.float32]) -> tuple[NDArray[np.float64], int, int]:
    """The error of each result in units of the exact one's last place, how many are not RN, how many took decimals."""
    found = exponential(x)
    exact = np.exp(x.astype(np.float64))
    unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 1, _EMIN) - _MANTISSA_BITS)
    with np.errstate(under="ignore", over="ignore"):
        nearest = exact.astype(np.float32)
    from_nearest = np.abs(exact - nearest) / unit
    near = np.flatnonzero(np.abs(from_nearest - 0.5) < _NEAR_MIDPOINT)
    for index in near:
        nearest[index] = _correctly_rounded(x[index], nearest[index])
    return np.abs(found - exact) / unit, int((found != nearest).sum()), near.size


def _correctly_rounded(x: np.float32, guess: np.float32) -> np.float32:
    """Whichever of `guess` and its two neighbours is nearest to exp(x)."""
    with localcontext() as context:
        context.prec = _DIGITS
        exact = Decimal(float(x)).exp()
        around = (np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf)))
        nearest: np.float32 = min(around, key=lambda value: abs(Decimal(float(value)) - exact))
    return nearest


def _check_thresholds() -> None:
    with localcontext() as context:
        context.prec = _DIGITS
        overflow, underflow = Decimal(2) ** 128 - Decimal(2) ** 103, Decimal(2) ** -150
        beyond = (np.nextafter(OVERFLOW, np.float32(np.inf)), np.nextafter(UNDERFLOW, np.float32(-np.inf)))
        for limit, outside, border in zip((OVERFLOW, UNDERFLOW), beyond, (overflow, underflow), strict=True):
            inside, outer = (Decimal(float(value)).exp() for value in (limit, outside))
            if not min(inside, outer) < border < max(inside, outer):
                raise RefmoeError(f"bench exponential: {float(limit)!r} is not the last input before the border")


def _error_of_numpy() -> float:
    """The largest relative error of NumPy's float64 exp on a sample, times 2^53."""
    x = np.random.default_rng(0).uniform(float(UNDERFLOW), float(OVERFLOW), _SAMPLE).astype(np.float32)
    with localcontext() as context:
        context.prec = _DIGITS
        exact = [Decimal(float(value)).exp() for value in x]
        found = [Decimal(float(value)) for value in np.exp(x.astype(np.float64))]
        return max(float(abs(a - b) / b) for a, b in zip(found, exact, strict=True)) * 2.0**53
