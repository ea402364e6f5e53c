"""NVFP4 GEMM, one output at a time in exact rationals: the specification of `refmoe.reference.nvfp4_gemm`.

Written from the words of the definition on plain lists. What a GEMM does after its sum is that of
`refmoe.reference.scalar.gemm`, whose `grouped_gemm` takes `Grouped()` for its sums; nothing is shared with the models.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from refmoe.formats import E2M1, FP32, UE4M3, Format
from refmoe.reference.scalar.arithmetic import floor_log2, rounded
from refmoe.reference.scalar.gemm import Row
from refmoe.reference.scalar.numbers import Number, NumberKind, decode

_GROUP = 16
_SIGN_IGNORED = 0x7F
_NAN = 0x7FFFFFFF


class _Term(NamedTuple):
    """A group of products: its value, and the exponent that the adder aligns it by."""

    value: Fraction
    exponent: int


class Grouped(NamedTuple):
    """The tensor core's adder for NVFP4: `block` products, in groups of 16, and the accumulator, chained from zero.

    A group's products are summed exactly and multiplied by the two scales. Its exponent is the sum of the exponents of
    both scales, whatever its value; a group that is zero has none. All terms of a block are cut toward zero to
    multiples of 2^(E - align_bits), where E is the largest of these exponents and the accumulator's, and at least
    `floor`; their sum is cut toward zero to `result_bits` fraction bits.
    """

    block: int = 64
    align_bits: int = 35
    result_bits: int = 23
    floor: int = -133

    def __call__(self, a: Row, b: Row) -> int:
        """FP32 bits of the chain over two rows of E2M1 codes with a UE4M3 scale for every 16; K is any number of 16."""
        groups = [_group(a, b, k) for k in range(0, len(a.codes), _GROUP)]
        bits = 0
        for first in range(0, len(groups), self.block // _GROUP):
            bits = self._add_up(groups[first : first + self.block // _GROUP], bits)
        return bits

    def _add_up(self, groups: Sequence[_Term | None], bits: int) -> int:
        accumulator = decode(bits, FP32)
        if None in groups or accumulator.kind is NumberKind.NAN:
            return _NAN
        if accumulator.kind is NumberKind.INFINITE:
            return bits
        before = -accumulator.magnitude if accumulator.negative else accumulator.magnitude
        terms = [*(term for term in groups if term is not None), _Term(before, _exponent(bits, FP32))]
        unit = Fraction(2) ** (max([self.floor, *(t.exponent for t in terms if t.value)]) - self.align_bits)
        kept = sum(int(term.value / unit) for term in terms) * unit
        if kept == 0:
            return 0
        last = Fraction(2) ** (max(floor_log2(abs(kept)), FP32.emin) - self.result_bits)
        result = int(kept / last) * last
        return 0 if result == 0 else rounded(Number(NumberKind.FINITE, result < 0, abs(result)))


def _group(a: Row, b: Row, k: int) -> _Term | None:
    """The 16 products from element k on, with their scales; None for NaN."""
    scales = [row.scales[k // _GROUP] & _SIGN_IGNORED for row in (a, b)]
    if any(UE4M3.is_nan(scale) for scale in scales):
        return None
    total = sum(
        (
            E2M1.decode(x) * E2M1.decode(y)
            for x, y in zip(a.codes[k : k + _GROUP], b.codes[k : k + _GROUP], strict=True)
        ),
        Fraction(0),
    )
    value = total * UE4M3.decode(scales[0]) * UE4M3.decode(scales[1])
    return _Term(value, sum(_exponent(scale, UE4M3) for scale in scales))


def _exponent(code: int, fmt: Format) -> int:
    """The exponent of a code: its field without the bias, that of the least normal number for a subnormal."""
    field = code >> fmt.mantissa_bits & (1 << fmt.exponent_bits) - 1
    return max(field, 1) - fmt.bias
