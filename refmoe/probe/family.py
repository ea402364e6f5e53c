"""The family of accumulation models among which a chip's is sought, and what a member answers.

A member is a chain of blocks. A block aligns its products, and C if C is a term of it, to the largest exponent E: each
term becomes a multiple of 2^(E - align_bits), the sum is exact, and it is rounded to `result_bits` fraction bits. Exact
integers throughout: nothing is shared with `refmoe.reference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refmoe.probe.instructions import Instruction
from refmoe.probe.questions import FORMATS, INFINITY, NAN, Decoded, Question, decode, decode_scale

_BASE = 800  # numbers are integers in units of 2^-_BASE
FIRST, AFTER = "first", "after"
ZERO, EVEN, AWAY, UP, DOWN = "toward zero", "nearest even", "nearest away", "up", "down"
LEAST, NORMALISED = "least", "normalised"
KEPT, FLUSHED = "kept", "flushed"


@dataclass(frozen=True)
class Parameters:
    """One member of the family. None says that no question which the formats allow makes the parameter visible.

    Attributes:
        blocks: the elements of K of each block, in the order in which blocks are chained; L is the first one's length.
        c_place: whether C is a term of the first block, or added after the last, in FP32, to nearest.
        align_bits: F.
        result_bits: m.
        rounding: of a block's sum to m bits.
        align_rounding: of a term to a multiple of 2^(E - F).
        floor: the least E.
        zero_exponents: of A and of B, the exponent that an operand which is zero brings into E; None if a product of
            zero brings none.
        subnormal_exponents: of A and of B, whether a subnormal has the least exponent of its format or that of its first bit.
        product_exponent: whether a product of significands of 2 or more keeps the sum of its operands' exponents.
        group: elements of K that are summed before anything is aligned; 1 where products are aligned.
        zero_group: whether a group whose products cancel brings its exponent into E.
        zero_sign: of a sum of negative zeros, "+" or "-".
        nan: the bits of a NaN.
        overflow: INFINITY, or "largest" where the largest number stays.
        subnormal_c, subnormal_result: KEPT or FLUSHED.
        subnormal_operands: of A and of B, KEPT or FLUSHED.
        scale_of: for each element of K the number of its scale.
        scale_zero: what an E8M0 scale of 0 is, "2^-127" or "0".
        scale_nan: whether a scale's NaN gives NaN.
        scale_sign: what a UE4M3 scale's sign bit does, "ignored" or "negates".
    """

    blocks: tuple[tuple[int, ...], ...]
    c_place: str = FIRST
    align_bits: int | None = None
    result_bits: int = 23
    rounding: str | None = ZERO
    align_rounding: str | None = ZERO
    floor: int | None = None
    zero_exponents: tuple[int | None, int | None] = (None, None)
    subnormal_exponents: tuple[str | None, str | None] = (None, None)
    product_exponent: str | None = "sum"
    group: int = 1
    zero_group: str | None = None
    zero_sign: str | None = "+"
    nan: int = 0x7FFFFFFF
    overflow: str | None = None
    subnormal_c: str | None = KEPT
    subnormal_result: str | None = KEPT
    subnormal_operands: tuple[str | None, str | None] = (KEPT, KEPT)
    scale_of: tuple[int, ...] = ()
    scale_zero: str | None = None
    scale_nan: bool | None = None
    scale_sign: str | None = None


@dataclass(frozen=True)
class _Term:
    """An addend: its value in units of 2^-_BASE, its exponent for E or None, its sign bit, "" or what it is instead."""

    value: int
    exponent: int | None
    negative: bool
    special: str = ""


def predict(parameters: Parameters, instruction: Instruction, question: Question) -> int:
    """The bits of D that a member answers."""
    given = {k: (x, y) for k, x, y in question.terms}
    products = [_product(parameters, instruction, question, k, *given.get(k, (0, 0))) for k in range(instruction.k)]
    c = _c_term(parameters, instruction, question.c)
    first = parameters.c_place == FIRST
    carried = c if first else _Term(0, None, False)
    for block in parameters.blocks:
        terms = _grouped(parameters, [products[k] for k in block], block)
        bits = _block(parameters, instruction, [carried, *terms])
        carried = _c_term(parameters, instruction, bits)
    if first:
        return bits
    return _rounded(parameters, instruction, [carried, c], carried.value + c.value, EVEN, 23)


def _operand(parameters: Parameters, name: str, side: int, code: int) -> tuple[Decoded, int | None]:
    """A decoded operand, and its exponent for E; None of a zero that brings none."""
    number = decode(code, name)
    if parameters.subnormal_operands[side] == FLUSHED and number.significand and number.leading < number.field:
        number = Decoded(number.negative, 0, number.exponent, number.field)
    if number.significand == 0:
        return number, parameters.zero_exponents[side]
    normalised = parameters.subnormal_exponents[side] == NORMALISED
    return number, number.leading if normalised else number.field


def _product(parameters: Parameters, instruction: Instruction, question: Question, k: int, x: int, y: int) -> _Term:
    a, a_exponent = _operand(parameters, instruction.a_format, 0, x)
    b, b_exponent = _operand(parameters, instruction.b_format, 1, y)
    negative = a.negative != b.negative
    scales: list[Decoded] = []
    if instruction.scales:
        where = parameters.scale_of[k]
        for byte in (question.a_scales[where], question.b_scales[where]):
            scale = decode_scale(byte, instruction.scale_format)
            if scale.special == NAN and parameters.scale_nan is False:
                scale = Decoded(False, 1, 128, 128)
            if instruction.scale_format == "ue8m0" and byte == 0 and parameters.scale_zero == "0":
                scale = Decoded(False, 0, 0, -127)
            if parameters.scale_sign == "negates":
                negative ^= scale.negative
            scales.append(scale)
    specials = {each.special for each in (a, b, *scales)}
    if NAN in specials:
        return _Term(0, None, negative, NAN)
    significand = a.significand * b.significand
    if INFINITY in specials:
        zero = any(not each.special and each.significand == 0 for each in (a, b))
        return _Term(0, None, negative, NAN if zero else INFINITY)
    exponent = a.exponent + b.exponent
    for scale in scales:
        significand, exponent = significand * scale.significand, exponent + scale.exponent
    value = significand << (exponent + _BASE) if significand else 0
    shift = sum(scale.field for scale in scales)
    if parameters.group > 1:
        return _Term(-value if negative else value, shift, negative)
    if a_exponent is None or b_exponent is None:
        zero = a.significand and b.significand
        assert not zero
        return _Term(0, None, negative)
    top = a_exponent + b_exponent + shift
    if significand and parameters.product_exponent == NORMALISED:
        top = max(top, significand.bit_length() - 1 + exponent)
    if not value and not (a.significand and b.significand) and parameters.zero_exponents == (None, None):
        return _Term(0, None, negative)
    return _Term(-value if negative else value, top, negative)


def _grouped(parameters: Parameters, products: Sequence[_Term], block: Sequence[int]) -> list[_Term]:
    """The terms of a block: its products, or the sums of its groups."""
    if parameters.group == 1:
        return list(products)
    terms = []
    for first in range(0, len(products), parameters.group):
        part = products[first : first + parameters.group]
        if any(each.special for each in part):
            terms += [each for each in part if each.special]
            continue
        total = sum(each.value for each in part)
        counts = total or (parameters.zero_group == "counts" and any(each.value for each in part))
        exponent = max((e for e in (each.exponent for each in part) if e is not None), default=None)
        terms.append(_Term(total, exponent if counts else None, all(each.negative for each in part)))
    return terms


def _c_term(parameters: Parameters, instruction: Instruction, bits: int) -> _Term:
    number = decode(bits, instruction.accumulator)
    if number.special:
        return _Term(0, None, number.negative, number.special)
    subnormal = number.significand and number.leading < number.field
    if not number.significand or (subnormal and parameters.subnormal_c == FLUSHED):
        return _Term(0, None, number.negative)
    value = number.significand << (number.exponent + _BASE)
    return _Term(-value if number.negative else value, number.field, number.negative)


def _block(parameters: Parameters, instruction: Instruction, terms: Sequence[_Term]) -> int:
    exponents = [each.exponent for each in terms if each.exponent is not None]
    if parameters.floor is not None:
        exponents.append(parameters.floor)
    total = sum(each.value for each in terms)
    if parameters.align_bits is not None and exponents:
        shift = max(max(exponents) - parameters.align_bits + _BASE, 0)
        rule = parameters.align_rounding or ZERO
        total = sum(_cut(each.value, shift, rule) for each in terms) << shift
    return _rounded(parameters, instruction, terms, total, parameters.rounding or ZERO, parameters.result_bits)


def _cut(value: int, shift: int, rule: str) -> int:
    """A value in units of 2^shift."""
    if shift <= 0:
        return value << -shift
    down, rest = value >> shift, value & ((1 << shift) - 1)
    half = 1 << (shift - 1)
    if rule == DOWN:
        return down
    if rule == UP:
        return down + (rest > 0)
    if rule == ZERO:
        return down + (value < 0 and rest > 0)
    if rule == AWAY:
        return down + (rest > half or (rest == half and value > 0))
    return down + (rest > half or (rest == half and down & 1))


def _rounded(
    parameters: Parameters, instruction: Instruction, terms: Sequence[_Term], total: int, rule: str, bits: int
) -> int:
    """The accumulator's bits of a sum."""
    fmt = FORMATS[instruction.accumulator]
    sign = 1 << (fmt.exponent_bits + fmt.mantissa_bits)
    infinity = ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits
    infinities = {each.negative for each in terms if each.special == INFINITY}
    if len(infinities) > 1 or any(each.special == NAN for each in terms):
        return parameters.nan
    if infinities:
        return infinity | (sign if infinities.pop() else 0)
    if not total:
        kept = parameters.zero_sign == "-" and all(each.negative and not each.value for each in terms)
        return sign if kept else 0
    leading = abs(total).bit_length() - 1 - _BASE
    shift = max(leading, fmt.emin) - bits + _BASE
    result = _cut(total, shift, rule)
    magnitude, negative = abs(result) << shift, sign if result < 0 else 0
    if not magnitude:
        return negative if parameters.zero_sign == "-" and total < 0 else 0
    leading = magnitude.bit_length() - 1 - _BASE
    if leading > fmt.emax:
        return negative | (infinity - (1 if parameters.overflow == "largest" else 0))
    if leading < fmt.emin and parameters.subnormal_result == FLUSHED:
        return 0
    binade = max(leading, fmt.emin)
    whole = magnitude >> (binade - fmt.mantissa_bits + _BASE)
    field = binade + fmt.bias if whole >> fmt.mantissa_bits else 0
    return int(negative | field << fmt.mantissa_bits | whole & ((1 << fmt.mantissa_bits) - 1))


def as_words(parameters: Parameters) -> dict[str, Any]:
    """The parameters as JSON has them."""
    found: dict[str, Any] = {}
    for name, value in vars(parameters).items():
        if name == "blocks":
            found[name] = [list(block) for block in value]
        else:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found
