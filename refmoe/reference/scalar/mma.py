"""One output of a tensor-core product, one product at a time, in exact rationals.

The words are those of `refmoe.reference.mma.models`; nothing is shared with the fast chains but the models' data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from refmoe.formats import E2M1, E8M0, FP16, FP32, UE4M3, Format
from refmoe.reference.mma.models import ELEMENT_FORMATS, AccumulationModel, Kind
from refmoe.reference.scalar.numbers import BLOCK, Number, NumberKind, decode

NAN = 0x7FFFFFFF

_NEGATIVE_ZERO = 1 << 31


@dataclass(frozen=True)
class Term:
    """One addend.

    Attributes:
        number: what is added.
        exponent: its exponent as the alignment sees it, None for a zero, an infinity or a NaN.
    """

    number: Number
    exponent: int | None


def accumulate(
    a: Sequence[int],
    b: Sequence[int],
    c: int,
    model: AccumulationModel,
    a_format: str,
    b_format: str,
    a_scales: Sequence[int] | None = None,
    b_scales: Sequence[int] | None = None,
) -> int:
    """d = c + sum over k of a[k] b[k], as the model has it.

    Args:
        a: K codes of one row.
        b: K codes of one column.
        c: FP32 bits of the accumulator, also where the model's accumulators are FP16.
        model: what accumulates.
        a_format: a key of ELEMENT_FORMATS.
        b_format: likewise.
        a_scales: K/32 E8M0 codes; None is 2^0. Of a GROUPED model codes of its scale format, sign bits ignored.
        b_scales: likewise.

    Returns:
        FP32 bits.
    """
    if model.kind is Kind.GROUPED:
        assert a_scales is not None
        assert b_scales is not None
        assert model.group is not None
        assert model.scaling is not None
        terms = []
        for k in range(0, len(a), model.group):
            group = slice(k, k + model.group)
            scales = a_scales[k // model.scaling.block], b_scales[k // model.scaling.block]
            terms.append(_group(a[group], b[group], scales, model.scaling.scale))
        groups = model.pair(a_format, b_format).block // model.group
        for g in range(0, len(terms), groups):
            c = fused_block(terms[g : g + groups], c, model)
        return c
    formats = ELEMENT_FORMATS[a_format], ELEMENT_FORMATS[b_format]
    products = []
    for k, codes in enumerate(zip(a, b, strict=True)):
        given = [scales[k // BLOCK] for scales in (a_scales, b_scales) if scales is not None]
        products.append(_product(codes, formats, tuple(given)))
    if model.kind is Kind.EXACT:
        return round_to_nearest(_sum([term.number for term in (_c_term(c, FP32), *products)]), FP32)
    if model.kind is Kind.FMA:
        for product in products:
            c = _added(product.number, decode(c, FP32))
        return c
    if model.kind is Kind.UNPACKED:
        # FP16 has every FP8 value. Its own exponents count in the alignment, and it has fewer subnormals.
        for k in range(0, len(products), BLOCK):
            partial = 0
            for part in model.passes:
                widened = [_product(_as_fp16((a[k + i], b[k + i]), formats), (FP16, FP16), ()) for i in part]
                partial = fused_block(widened, partial, model)
            c = _added(decode(partial, FP32), decode(c, FP32))
        return c
    block = model.pair(a_format, b_format).block
    for k in range(0, len(products), block):
        c = fused_block(products[k : k + block], c, model)
    return c


def fused_block(products: Sequence[Term], c: int, model: AccumulationModel) -> int:
    """One fused block: FP32 bits in, FP32 bits out."""
    assert model.align_bits is not None
    terms = [*products, _c_term(c, model.accumulator)]
    exponents = [term.exponent for term in terms if term.exponent is not None]
    unit = max([*exponents, model.floor]) - model.align_bits
    total = _sum([Number(n.kind, n.negative, _truncated(n.magnitude, unit)) for n in (term.number for term in terms)])
    return _result(total.times(Fraction(2) ** unit), model)


def round_to_nearest(number: Number, fmt: Format) -> int:
    """The code of `fmt` nearest to `number`, ties to even, with overflow to infinity; NaN is 0x7FFFFFFF."""
    if number.kind is not NumberKind.FINITE:
        return _special(number, fmt)
    unit = Fraction(2) ** (_exponent(number.magnitude, fmt) - fmt.mantissa_bits)
    # Python rounds half to even.
    return _encoded(number.negative, round(number.magnitude / unit) * unit, fmt)


def _result(number: Number, model: AccumulationModel) -> int:
    """What a block leaves of its sum, as FP32 bits: in the accumulators' range, with m bits; every zero is +0."""
    if number.kind is not NumberKind.FINITE:
        return _special(number, FP32)
    unit = _exponent(number.magnitude, model.accumulator) - model.result_bits
    # Python rounds half to even.
    if model.to_nearest:
        units = Fraction(round(number.magnitude / Fraction(2) ** unit))
    else:
        units = _truncated(number.magnitude, unit)
    magnitude = units * Fraction(2) ** unit
    if magnitude > model.accumulator.max:
        return _special(Number(NumberKind.INFINITE, number.negative, Fraction(0)), FP32)
    return _encoded(number.negative and magnitude != 0, magnitude, FP32)


@lru_cache(maxsize=1 << 16)
def _product(codes: tuple[int, int], formats: tuple[Format, Format], scales: tuple[int, ...]) -> Term:
    """The exact product of two elements and of the E8M0 scales that there are."""
    elements = [decode(code, fmt) for code, fmt in zip(codes, formats, strict=True)]
    factors = elements + [decode(scale, E8M0) for scale in scales]
    kinds = [factor.kind for factor in factors]
    zero = any(factor.kind is NumberKind.FINITE and factor.magnitude == 0 for factor in factors)
    negative = elements[0].negative != elements[1].negative
    if NumberKind.NAN in kinds or (NumberKind.INFINITE in kinds and zero):
        return Term(Number(NumberKind.NAN, False, Fraction(0)), None)
    if NumberKind.INFINITE in kinds:
        return Term(Number(NumberKind.INFINITE, negative, Fraction(0)), None)
    number = Number(NumberKind.FINITE, negative, math.prod((factor.magnitude for factor in factors), start=Fraction(1)))
    exponent = sum(_exponent(element.magnitude, fmt) for element, fmt in zip(elements, formats, strict=True))
    return Term(number, None if zero else exponent + sum(scale - E8M0.bias for scale in scales))


def _group(a: Sequence[int], b: Sequence[int], scales: tuple[int, int], fmt: Format) -> Term:
    """The exact sum of a group's E2M1 products times its scales; its exponent is that of the scales."""
    total = _sum([_product(codes, (E2M1, E2M1), ()).number for codes in zip(a, b, strict=True)])
    factors = [_group_scale(scale, fmt) for scale in scales]
    if any(factor.kind is NumberKind.NAN for factor in factors):
        return Term(Number(NumberKind.NAN, False, Fraction(0)), None)
    number = total.times(factors[0].magnitude * factors[1].magnitude)
    return Term(number, _group_exponent(number, [_exponent(factor.magnitude, fmt) for factor in factors]))


def _group_scale(code: int, fmt: Format) -> Number:
    return decode(code & 0x7F if fmt is UE4M3 else code, fmt)


def _group_exponent(term: Number, scale_exponents: Sequence[int]) -> int | None:
    return sum(scale_exponents) if term.magnitude else None


def _as_fp16(codes: tuple[int, int], formats: tuple[Format, Format]) -> tuple[int, int]:
    return _recoded(codes[0], formats[0]), _recoded(codes[1], formats[1])


@lru_cache(maxsize=1 << 10)
def _recoded(code: int, fmt: Format) -> int:
    number = decode(code, fmt)
    if number.kind is NumberKind.NAN:
        return 0x7E00
    if number.kind is NumberKind.INFINITE:
        return 0xFC00 if number.negative else 0x7C00
    return _encoded(number.negative, number.magnitude, FP16)


def _c_term(c: int, fmt: Format) -> Term:
    """C, with the exponent that it has in the accumulators' format."""
    number = decode(c, FP32)
    takes_part = number.kind is NumberKind.FINITE and number.magnitude != 0
    return Term(number, _exponent(number.magnitude, fmt) if takes_part else None)


def _sum(numbers: Sequence[Number]) -> Number:
    """The exact sum; an exact zero is positive."""
    infinities = {number.negative for number in numbers if number.kind is NumberKind.INFINITE}
    if any(number.kind is NumberKind.NAN for number in numbers) or len(infinities) == 2:
        return Number(NumberKind.NAN, False, Fraction(0))
    if infinities:
        return Number(NumberKind.INFINITE, infinities.pop(), Fraction(0))
    total = sum((-number.magnitude if number.negative else number.magnitude for number in numbers), Fraction(0))
    return Number(NumberKind.FINITE, total < 0, abs(total))


def _added(x: Number, y: Number) -> int:
    """x + y in FP32, rounded once to nearest; two negative zeros add up to one (IEEE 754-2019 section 6.3)."""
    total = _sum([x, y])
    if total.kind is NumberKind.FINITE and total.magnitude == 0:
        return _NEGATIVE_ZERO if x.negative and y.negative else 0
    return round_to_nearest(total, FP32)


def _truncated(magnitude: Fraction, unit_exponent: int) -> Fraction:
    """How many whole 2^unit_exponent there are in a magnitude."""
    if unit_exponent < 0:
        return Fraction((magnitude.numerator << -unit_exponent) // magnitude.denominator)
    return Fraction(magnitude.numerator // (magnitude.denominator << unit_exponent))


def _exponent(magnitude: Fraction, fmt: Format) -> int:
    """The exponent of a magnitude in a format: a subnormal, and 0, has the smallest."""
    return max(_floor_log2(magnitude), fmt.emin) if magnitude else fmt.emin


def _floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if value >= Fraction(2) ** exponent else exponent - 1


def _encoded(negative: bool, magnitude: Fraction, fmt: Format) -> int:
    sign = int(negative) << (fmt.bits - 1)
    if magnitude > fmt.max:
        assert fmt.infinity_code is not None
        return sign | fmt.infinity_code
    return sign | fmt.encode(magnitude)


def _special(number: Number, fmt: Format) -> int:
    if number.kind is NumberKind.NAN:
        return NAN
    assert fmt.infinity_code is not None
    return (int(number.negative) << (fmt.bits - 1)) | fmt.infinity_code
