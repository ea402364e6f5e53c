"""GEMM, one output at a time in exact rationals: the specification of `refmoe.reference.gemm`.

Written from the words of the definition on plain lists: decode both rows, add up as the instruction does, multiply by
alpha, add the bias, cast. Results are bit patterns. Hours for what the fast reference does in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from refmoe.formats import BF16, E8M0, FP16, FP32, Format
from refmoe.reference.scalar.numbers import Kind, Number, decode

__all__ = ["Fused", "Row", "add", "cast", "exact_sum", "fma_chain", "gemm", "grouped_gemm", "multiply"]

#: What the instructions give for every NaN: all ones but the sign.
_NAN = {FP32: 0x7FFFFFFF, BF16: 0x7FFF, FP16: 0x7FFF}


class Row(NamedTuple):
    """One row of an operand: its codes, one an element, its scale bytes, one for every 32 of them, and their format."""

    codes: Sequence[int]
    scales: Sequence[int]
    format: Format


class Term(NamedTuple):
    """A number and the exponent that the adder aligns it by: that of its code, not of its value."""

    number: Number
    exponent: int


Accumulate = Callable[[Row, Row], int]


def grouped_gemm(
    activations: Sequence[Row],
    weights: Sequence[Sequence[Row]],
    offsets: Sequence[int],
    accumulate: Accumulate,
    output: Format = FP32,
    alpha: Sequence[int] | None = None,
    bias: Sequence[Sequence[int]] | None = None,
) -> list[list[int]]:
    """Bits [T][N] of `output`: every expert's rows against its own weights, zeros in rows of no expert.

    `alpha` [E] and `bias` [E][N] are FP32 bits.
    """
    width = len(weights[0])
    rows = []
    for t, activation in enumerate(activations):
        owner = [e for e in range(len(weights)) if offsets[e] <= t < offsets[e + 1]]
        if not owner:
            rows.append([0] * width)
            continue
        e = owner[0]
        rows.append(
            gemm(
                activation,
                weights[e],
                accumulate,
                output,
                None if alpha is None else alpha[e],
                None if bias is None else bias[e],
            )
        )
    return rows


def gemm(
    activation: Row,
    weights: Sequence[Row],
    accumulate: Accumulate,
    output: Format = FP32,
    alpha: int | None = None,
    bias: Sequence[int] | None = None,
) -> list[int]:
    """Bits [N] of one row of the result."""
    row = []
    for n, weight in enumerate(weights):
        bits = accumulate(activation, weight)
        if alpha is not None:
            bits = multiply(alpha, bits)
        if bias is not None:
            bits = add(bits, bias[n])
        row.append(cast(bits, output))
    return row


def exact_sum(a: Row, b: Row) -> int:
    """FP32 bits of the sum of all products, rounded once."""
    return _rounded(_sum([term.number for term in _products(a, b)]))


def fma_chain(a: Row, b: Row) -> int:
    """FP32 bits of fma(a, b, acc) from zero, in the order of the elements."""
    bits = 0
    for term in _products(a, b):
        bits = _rounded(_sum([term.number, decode(bits, FP32)]))
    return bits


class Fused(NamedTuple):
    """The tensor core's adder: blocks of `block` products and the accumulator, chained from zero.

    All terms of a block are cut toward zero to multiples of 2^(E - align_bits), where E is the largest exponent of a
    nonzero term and at least `floor`; their sum is cut toward zero to `result_bits` fraction bits.
    """

    block: int
    align_bits: int
    result_bits: int
    floor: int = -133

    def __call__(self, a: Row, b: Row) -> int:
        """FP32 bits of the chain over two rows."""
        products = _products(a, b)
        bits = 0
        for start in range(0, len(products), self.block):
            accumulator = Term(decode(bits, FP32), _exponent(bits, FP32))
            bits = self._add_up([*products[start : start + self.block], accumulator])
        return bits

    def _add_up(self, terms: list[Term]) -> int:
        total = _sum([term.number for term in terms])
        if total.kind is not Kind.FINITE:
            return _rounded(total)
        top = max([self.floor, *(term.exponent for term in terms if term.number.magnitude)])
        kept = sum(_cut(_value(term.number), top - self.align_bits) for term in terms)
        if kept == 0:
            return 0
        binade = max(_floor_log2(abs(kept)), FP32.emin)
        result = _cut(Fraction(kept), binade - self.result_bits)
        return 0 if result == 0 else _rounded(Number(Kind.FINITE, result < 0, abs(result)))


def multiply(x: int, y: int) -> int:
    """FP32 bits of the product of two FP32 numbers given as bits, rounded to nearest."""
    return _rounded(_product(decode(x, FP32), decode(y, FP32)))


def add(x: int, y: int) -> int:
    """FP32 bits of the sum of two FP32 numbers given as bits, rounded to nearest."""
    return _rounded(_sum([decode(x, FP32), decode(y, FP32)]))


def cast(bits: int, fmt: Format) -> int:
    """The bits in FP32, BF16 or FP16 of an FP32 number given as bits, rounded to nearest."""
    return _rounded(decode(bits, FP32), fmt)


def _products(a: Row, b: Row) -> list[Term]:
    """Every product with its scales. The two scale exponents are added before anything is aligned."""
    terms = []
    for k, (x, y) in enumerate(zip(a.codes, b.codes, strict=True)):
        scales = decode(a.scales[k // 32], E8M0), decode(b.scales[k // 32], E8M0)
        number = _product(_product(decode(x, a.format), decode(y, b.format)), _product(*scales))
        shift = a.scales[k // 32] - E8M0.bias + b.scales[k // 32] - E8M0.bias
        terms.append(Term(number, _exponent(x, a.format) + _exponent(y, b.format) + shift))
    return terms


def _exponent(code: int, fmt: Format) -> int:
    """Exponent of a code: its field without the bias, subnormals at the smallest normal one, not normalised."""
    field = code >> (fmt.mantissa_bits + fmt.unused_low_bits) & (1 << fmt.exponent_bits) - 1
    return max(field - fmt.bias, fmt.emin)


def _product(x: Number, y: Number) -> Number:
    negative = x.negative != y.negative
    zero_times_infinity = Kind.INFINITE in (x.kind, y.kind) and any(
        number.kind is Kind.FINITE and number.magnitude == 0 for number in (x, y)
    )
    if Kind.NAN in (x.kind, y.kind) or zero_times_infinity:
        return Number(Kind.NAN, False, Fraction(0))
    if Kind.INFINITE in (x.kind, y.kind):
        return Number(Kind.INFINITE, negative, Fraction(0))
    return Number(Kind.FINITE, negative, x.magnitude * y.magnitude)


def _sum(numbers: list[Number]) -> Number:
    """The exact sum. A zero is negative only if every number is."""
    infinite = {number.negative for number in numbers if number.kind is Kind.INFINITE}
    if any(number.kind is Kind.NAN for number in numbers) or len(infinite) == 2:
        return Number(Kind.NAN, False, Fraction(0))
    if infinite:
        return Number(Kind.INFINITE, infinite.pop(), Fraction(0))
    total = Fraction(sum(_value(number) for number in numbers))
    negative = total < 0 or all(number.negative and number.magnitude == 0 for number in numbers)
    return Number(Kind.FINITE, negative, abs(total))


def _value(number: Number) -> Fraction:
    return -number.magnitude if number.negative else number.magnitude


def _rounded(number: Number, fmt: Format = FP32) -> int:
    """The bits nearest to a number, ties to even, infinity from half a unit above the largest finite one."""
    if number.kind is Kind.NAN:
        return _NAN[fmt]
    sign = int(number.negative) << (fmt.bits - 1)
    assert fmt.infinity_code is not None
    if number.kind is Kind.INFINITE:
        return sign | fmt.infinity_code
    if number.magnitude == 0:
        return sign
    unit = Fraction(2) ** (max(_floor_log2(number.magnitude), fmt.emin) - fmt.mantissa_bits)
    # Python rounds a fraction half to even.
    nearest = round(number.magnitude / unit) * unit
    return sign | (fmt.infinity_code if nearest > fmt.max else fmt.encode(nearest))


def _cut(value: Fraction, exponent: int) -> Fraction:
    """`value` truncated toward zero to a multiple of 2^exponent."""
    unit = Fraction(2) ** exponent
    return int(value / unit) * unit


def _floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if value >= Fraction(2) ** exponent else exponent - 1
