"""One-lane statements of the PTX manual in Python integers and Fractions, and the comparison that tests use.

Nothing here shares code with refmoe.ptx.isa.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

DTYPES = {"pred": np.bool_, "b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}

# --- comparison -----------------------------------------------------------------------------------------------------


def _columns(rows: Sequence[Sequence[int]], kinds: Sequence[str]) -> list[np.ndarray]:
    return [np.array([row[i] for row in rows], dtype=DTYPES[k]) for i, k in enumerate(kinds)]


def mismatches(
    function: Callable[..., Any], oracle: Callable[..., Any], kinds: Sequence[str], rows: Sequence[Sequence[int]]
) -> list[str]:
    """Lanes in which `function` on arrays differs from `oracle` on Python integers, with all bits of both results."""
    columns = _columns(rows, kinds)
    with np.errstate(all="ignore"):
        results = function(*columns)
    results = results if isinstance(results, tuple) else (results,)
    found = []
    for lane, row in enumerate(rows):
        expected = oracle(*row)
        expected = expected if isinstance(expected, tuple) else (expected,)
        actual = tuple(int(r[lane]) for r in results)
        if actual != tuple(int(e) for e in expected):
            operands = ", ".join(f"{x:#x}" for x in row)
            found.append(f"({operands}): {[f'{a:#x}' for a in actual]} for {[f'{int(e):#x}' for e in expected]}")
    return found


def assert_lanes(operation: Any, oracle: Callable[..., Any], rows: Sequence[Sequence[int]]) -> None:
    """Assert that an operation agrees with `oracle` in every lane, on arrays, and on uniform registers in the first."""
    found = mismatches(operation.function, oracle, operation.sources, rows)
    assert not found, f"{operation.opcode}: {len(found)} of {len(rows)} lanes differ\n" + "\n".join(found[:8])
    scalars = [column[0] for column in _columns(rows[:1], operation.sources)]
    with np.errstate(all="ignore"):
        results = operation.function(*scalars)
    results = results if isinstance(results, tuple) else (results,)
    expected = oracle(*rows[0])
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert tuple(int(r) for r in results) == tuple(int(e) for e in expected), f"{operation.opcode} on scalars"


# --- integers -------------------------------------------------------------------------------------------------------


def to_signed(x: int, bits: int) -> int:
    """Two's complement value of an unsigned bit pattern."""
    return x - (1 << bits) if x >> (bits - 1) else x


def corners(bits: int) -> list[int]:
    """Bit patterns at which integer instructions go wrong."""
    top = 1 << (bits - 1)
    mask = (1 << bits) - 1
    some = {0, 1, 2, 3, 7, bits - 1, bits, bits + 1, 0x55, 0xAA, top - 1, top, top + 1, mask, mask - 1, mask // 3}
    return sorted({x & mask for x in some} | {(0x0123456789ABCDEF >> (64 - bits)) & mask})


def rows_of(widths: Sequence[int], seed: int, count: int = 300) -> list[tuple[int, ...]]:
    """Every pair of corners for the first two operands, random corners for the rest, and `count` random rows."""
    rng = np.random.default_rng(seed)

    def pick(bits: int) -> int:
        if rng.random() < 0.25:
            options = corners(bits)
            return options[int(rng.integers(len(options)))]
        return (
            int(rng.integers(0, 1 << bits, dtype=np.uint64 if bits == 64 else np.int64, endpoint=False))
            if bits < 64
            else int(rng.integers(0, 2**64 - 1, dtype=np.uint64, endpoint=True))
        )

    firsts = [corners(w) if w > 1 else [0, 1] for w in widths[:2]]
    grid: list[tuple[int, ...]] = [(x,) for x in firsts[0]]
    if len(widths) > 1:
        grid = [(x, y) for x in firsts[0] for y in firsts[1]]
    rest = widths[2:]
    rows = [(*row, *(pick(w) for w in rest)) for row in grid]
    rows += [tuple(pick(w) for w in widths) for _ in range(count)]
    return rows


# --- floating point -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ieee:
    """A binary format: width, exponent bits, fraction bits and the NaN that instructions produce.

    There is one object of each format, so that its identity is a key that costs nothing to hash.
    """

    name: str
    bits: int
    exponent: int
    fraction: int
    nan: int

    @cached_property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @cached_property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @cached_property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.fraction


F32 = Ieee("f32", 32, 8, 23, 0x7FFFFFFF)
F64 = Ieee("f64", 64, 11, 52, 0xFFF8000000000000)
F16 = Ieee("f16", 16, 5, 10, 0x7FFF)
BF16 = Ieee("bf16", 16, 8, 7, 0x7FFF)
FORMATS = {f.name: f for f in (F32, F64, F16, BF16)}


class Real(NamedTuple):
    """A value: its sign, and an exact rational, infinity or NaN."""

    negative: bool
    value: Fraction | None = None
    nan: bool = False

    @property
    def infinite(self) -> bool:
        return self.value is None and not self.nan

    @property
    def zero(self) -> bool:
        return self.value == 0


NAN = Real(False, None, True)


def real(negative: bool, value: Fraction | int | None) -> Real:
    return Real(negative, None if value is None else Fraction(value))


@cache
def power(exponent: int) -> Fraction:
    """2^exponent."""
    return Fraction(2) ** exponent


@lru_cache(maxsize=1 << 14)  # every corner stands in a hundred rows
def unpack(bits: int, f: Ieee) -> Real:
    """The value of a bit pattern."""
    negative = bool(bits & f.sign)
    exponent = bits >> f.fraction & ((1 << f.exponent) - 1)
    fraction = bits & ((1 << f.fraction) - 1)
    if exponent == (1 << f.exponent) - 1:
        return NAN if fraction else Real(negative)
    significand = fraction | (exponent > 0) << f.fraction
    unit = max(exponent, 1) - f.bias - f.fraction
    signed = -significand if negative else significand
    return Real(negative, Fraction(signed << unit) if unit >= 0 else Fraction(signed, 1 << -unit))


def round_to_integer(x: Fraction, mode: str) -> int:
    """An integer by rounding mode: n nearest even, z to zero, m down, p up, a nearest with ties away from zero."""
    return _rounded(x.numerator, x.denominator, mode)


def _rounded(numerator: int, denominator: int, mode: str) -> int:
    """A fraction to an integer, as `round_to_integer`; it need not be in lowest terms."""
    floor, rest = divmod(numerator, denominator)
    if mode == "m" or rest == 0:
        return floor
    if mode == "p":
        return floor + 1
    if mode == "z":
        return floor if numerator > 0 else floor + 1
    if 2 * rest != denominator:
        return floor + (2 * rest > denominator)
    if mode == "a":
        return floor + (numerator > 0)
    return floor + (floor % 2)


def pack(x: Real, f: Ieee, mode: str = "n") -> int:
    """The bit pattern nearest to a value by rounding mode; overflow by the IEEE rule of the mode."""
    if x.nan:
        return f.nan
    sign = f.sign if x.negative else 0
    if x.value is None:
        return sign | f.infinity
    numerator, denominator = abs(x.value.numerator), x.value.denominator
    if numerator == 0:
        return sign
    # Of integers: a fraction would be brought to lowest terms at each step.
    exponent = numerator.bit_length() - denominator.bit_length()
    if denominator << max(exponent, 0) > numerator << max(-exponent, 0):
        exponent -= 1
    exponent = max(exponent, 1 - f.bias)
    up = f.fraction - exponent
    directed = {"m": "p", "p": "m"}.get(mode, mode) if x.negative else mode
    units = _rounded(numerator << max(up, 0), denominator << max(-up, 0), directed)
    # units counts from the bottom of the binade: the exponent field goes up with each whole 2^fraction.
    packed = (exponent + f.bias - 1 << f.fraction) + units
    if packed >= f.infinity:
        to_infinity = mode in "na" or (mode == "p" and not x.negative) or (mode == "m" and x.negative)
        return sign | (f.infinity if to_infinity else f.infinity - 1)
    return sign | packed


@cache
def _longer(f: Ieee) -> Ieee:
    """A format with the same precision and a longer exponent, which stands for one without an end."""
    return Ieee("longer", f.bits + 4, f.exponent + 4, f.fraction, 0)


def pack_flushed(x: Real, f: Ieee, mode: str = "n") -> int:
    """`pack`, but a zero for what is tiny: below the least normal number after rounding as if exponents had no end."""
    least = power(1 - f.bias)
    if x.value is not None and abs(x.value) < least:
        longer = _longer(f)
        rounded = unpack(pack(x, longer, mode), longer).value
        if rounded is not None and abs(rounded) < least:
            return f.sign if x.negative else 0
    return pack(x, f, mode)


def moved_nan(bits: int, of: Ieee, to: Ieee) -> int:
    """A NaN of one format as the quiet NaN of another with its sign and the top of its payload."""
    fraction = bits & ((1 << of.fraction) - 1)
    sign = to.sign if bits & of.sign else 0
    up = to.fraction - of.fraction
    return sign | to.infinity | 1 << to.fraction - 1 | (fraction << up if up > 0 else fraction >> -up)


def exact_add(a: Real, b: Real, mode: str) -> Real:
    if a.nan or b.nan or (a.infinite and b.infinite and a.negative != b.negative):
        return NAN
    if a.infinite or b.infinite:
        return a if a.infinite else b
    assert a.value is not None
    assert b.value is not None
    total = a.value + b.value
    if total:
        return real(total < 0, total)
    if a.zero and b.zero and a.negative == b.negative:
        return a
    return real(mode == "m", 0)


def exact_mul(a: Real, b: Real) -> Real:
    negative = a.negative != b.negative
    if a.nan or b.nan or (a.infinite and b.zero) or (b.infinite and a.zero):
        return NAN
    if a.infinite or b.infinite:
        return Real(negative)
    assert a.value is not None
    assert b.value is not None
    return real(negative, a.value * b.value)


def exact_div(a: Real, b: Real) -> Real:
    negative = a.negative != b.negative
    if a.nan or b.nan or (a.infinite and b.infinite) or (a.zero and b.zero):
        return NAN
    if a.infinite or b.zero:
        return Real(negative)
    if b.infinite:
        return real(negative, 0)
    assert a.value is not None
    assert b.value is not None
    return real(negative, a.value / b.value)


def negated(a: Real) -> Real:
    return Real(not a.negative, None if a.value is None else -a.value, a.nan)


def flushed(bits: int, f: Ieee) -> int:
    """Subnormals to zeros of their sign."""
    return bits & f.sign if bits & f.infinity == 0 else bits


def float_corners(f: Ieee) -> list[int]:
    """Zeros, subnormals, the edges of the normal range, 1 and its neighbours, infinities and NaN, in both signs."""
    one = f.bias << f.fraction
    half_ulp = 1 << (f.fraction - 1)
    positive = [
        0, 1, 2, 3, half_ulp, half_ulp + 1, (1 << f.fraction) - 1, 1 << f.fraction, (1 << f.fraction) + 1,
        one - 1, one, one + 1, one + half_ulp, one + (1 << f.fraction), one - (1 << f.fraction),
        f.infinity - 1, f.infinity - 2, f.infinity - half_ulp, f.infinity, f.infinity + 1, f.infinity + half_ulp,
        f.sign - 1, one + (f.fraction << f.fraction), one + ((f.fraction + 1) << f.fraction),
    ]  # fmt: skip
    return [s | x for x in positive for s in (0, f.sign)]


def random_floats(rng: np.random.Generator, f: Ieee, count: int) -> list[int]:
    """Bit patterns: uniform over all, near 1 (cancelling), sparse significands (ties), near both ends of the range."""
    patterns = []
    for _ in range(count):
        shape = int(rng.integers(5))
        exponent = int(rng.integers(1 << f.exponent))
        fraction = int(rng.integers(1 << f.fraction))
        if shape == 1:
            exponent = f.bias + int(rng.integers(-2, 3))
        elif shape == 2:
            fraction = (1 << int(rng.integers(f.fraction + 1))) % (1 << f.fraction)
            exponent = f.bias + int(rng.integers(-f.fraction - 2, f.fraction + 3))
        elif shape == 3:
            exponent = int(rng.integers(0, 3))
        elif shape == 4:
            exponent = (1 << f.exponent) - 2 - int(rng.integers(0, 3))
        exponent = min(max(exponent, 0), (1 << f.exponent) - 1)
        patterns.append(int(rng.integers(2)) * f.sign | exponent << f.fraction | fraction)
    return patterns


def float_rows(f: Ieee, arity: int, seed: int, count: int = 150) -> list[tuple[int, ...]]:
    """Every pair of corners for the first two operands, and random rows."""
    rng = np.random.default_rng(seed)
    edges = float_corners(f)
    if arity == 1:
        rows: list[tuple[int, ...]] = [(x,) for x in edges]
    else:
        rows = [(x, y, *(edges[int(rng.integers(len(edges)))] for _ in range(arity - 2))) for x in edges for y in edges]
    columns: Iterable[list[int]] = [random_floats(rng, f, count) for _ in range(arity)]
    return rows + list(zip(*columns, strict=True))
