"""GEMM, one output at a time in exact rationals: the specification of `refmoe.reference.gemm`.

Written from the words of the definition on plain lists: decode both rows, add up as the instruction does, multiply by
alpha, add the bias, cast. Results are bit patterns. Hours for what the fast reference does in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from refmoe.formats import E8M0, FP32, Format
from refmoe.reference.scalar.arithmetic import add, cast, exact_product, exact_total, floor_log2, multiply, rounded
from refmoe.reference.scalar.numbers import BLOCK, Number, NumberKind, decode


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
    return rounded(exact_total([term.number for term in _products(a, b)]))


def fma_chain(a: Row, b: Row) -> int:
    """FP32 bits of fma(a, b, acc) from zero, in the order of the elements."""
    bits = 0
    for term in _products(a, b):
        bits = rounded(exact_total([term.number, decode(bits, FP32)]))
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
        total = exact_total([term.number for term in terms])
        if total.kind is not NumberKind.FINITE:
            return rounded(total)
        top = max([self.floor, *(term.exponent for term in terms if term.number.magnitude)])
        kept = sum(_cut(_value(term.number), top - self.align_bits) for term in terms)
        if kept == 0:
            return 0
        binade = max(floor_log2(abs(kept)), FP32.emin)
        result = _cut(Fraction(kept), binade - self.result_bits)
        return 0 if result == 0 else rounded(Number(NumberKind.FINITE, result < 0, abs(result)))


def _products(a: Row, b: Row) -> list[Term]:
    """Every product with its scales. The two scale exponents are added before anything is aligned."""
    terms = []
    for k, (x, y) in enumerate(zip(a.codes, b.codes, strict=True)):
        scales = decode(a.scales[k // BLOCK], E8M0), decode(b.scales[k // BLOCK], E8M0)
        number = exact_product(exact_product(decode(x, a.format), decode(y, b.format)), exact_product(*scales))
        shift = a.scales[k // BLOCK] - E8M0.bias + b.scales[k // BLOCK] - E8M0.bias
        terms.append(Term(number, _exponent(x, a.format) + _exponent(y, b.format) + shift))
    return terms


def _exponent(code: int, fmt: Format) -> int:
    """Exponent of a code: its field without the bias, subnormals at the smallest normal one, not normalised."""
    field = code >> (fmt.mantissa_bits + fmt.unused_low_bits) & (1 << fmt.exponent_bits) - 1
    return max(field - fmt.bias, fmt.emin)


def _value(number: Number) -> Fraction:
    return -number.magnitude if number.negative else number.magnitude


def _cut(value: Fraction, exponent: int) -> Fraction:
    """`value` truncated toward zero to a multiple of 2^exponent."""
    unit = Fraction(2) ** exponent
    return int(value / unit) * unit
