"""Models that pose as hardware: slow, in exact fractions, written from the description alone, wrong in any one respect.

Nothing here comes from refmoe but the list of an instruction's types: formats are decoded by the value of each code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from refmoe.probe.instructions import Instruction
from refmoe.probe.vectors import Vector

# Bits of exponent and of fraction, bias, and how many of the largest codes are infinite or no number.
SHAPES = {
    "e2m1": (2, 1, 1),
    "e4m3": (4, 3, 7),
    "e5m2": (5, 2, 15),
    "f16": (5, 10, 15),
    "bf16": (8, 7, 127),
    "tf32": (8, 10, 127),
    "f32": (8, 23, 127),
}
NAN, INFINITE = "nan", "infinite"


@cache
def power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def lead(value: Fraction) -> int:
    """floor(log2 |value|)."""
    size = abs(value)
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if size >= power(guess) else guess - 1


@cache
def element(name: str, code: int) -> tuple[Fraction | str, bool, int]:
    """(value or what it is instead, whether it is negative, exponent of its binade, not below normal numbers')."""
    if name == "tf32":
        code >>= 13
    exponent_bits, fraction_bits, bias = SHAPES[name]
    negative = code >> (exponent_bits + fraction_bits) & 1 == 1
    field = code >> fraction_bits & ((1 << exponent_bits) - 1)
    fraction = Fraction(code & ((1 << fraction_bits) - 1), 1 << fraction_bits)
    if name in ("e5m2", "f16", "bf16", "tf32", "f32") and field == (1 << exponent_bits) - 1:
        return (NAN if fraction else INFINITE), negative, 0
    if name == "e4m3" and code & 0x7F == 0x7F:
        return NAN, negative, 0
    exponent = 1 - bias if field == 0 else field - bias
    value = (fraction + (field != 0)) * power(exponent)
    return (-value if negative else value), negative, exponent


@dataclass(frozen=True)
class Product:
    """What two elements multiply to: `value`, or what it is instead."""

    value: Fraction | str
    exponent: int
    negative: bool
    # Looked at for every element of every question, most of which are zero: asking a Fraction each time takes long.
    is_zero: bool
    is_finite: bool


@cache
def product(of: tuple[str, str, str, str, str, bool], a_code: int, b_code: int) -> Product:
    """The product of two codes.

    Args:
        of: the types of A and of B, `subnormal_a`, `subnormal_b` and `product` of a poser, and whether subnormal
            elements of A count as zero.
        a_code, b_code: the elements.
    """
    a_type, b_type, subnormal_a, subnormal_b, exponent_of, flushes_a = of
    a, a_negative, a_exponent = element(a_type, a_code)
    b, b_negative, b_exponent = element(b_type, b_code)
    if flushes_a and isinstance(a, Fraction) and a and lead(a) < a_exponent:
        a = Fraction(0)
    negative = a_negative != b_negative
    if NAN in (a, b) or (INFINITE in (a, b) and 0 in (a, b)):
        return Product(NAN, 0, negative, False, False)
    if INFINITE in (a, b):
        return Product(INFINITE, 0, negative, False, False)
    assert isinstance(a, Fraction)
    assert isinstance(b, Fraction)
    if subnormal_a == "leading bit" and a:
        a_exponent = lead(a)
    if subnormal_b == "leading bit" and b:
        b_exponent = lead(b)
    exponent = lead(a * b) if exponent_of == "leading bit" and a * b else a_exponent + b_exponent
    return Product(a * b, exponent, negative, a * b == 0, True)


def multiples(value: Fraction, exponent: int, how: str) -> int:
    """How many times 2^exponent is in a fraction."""
    over, under = value.numerator << max(-exponent, 0), value.denominator << max(exponent, 0)
    return over // under if over % under == 0 else whole(Fraction(over, under), how)


def whole(value: Fraction, how: str) -> int:
    """An integer near a fraction."""
    if how == "toward zero":
        return math.trunc(value)
    if how == "down":
        return math.floor(value)
    if how == "up":
        return math.ceil(value)
    if how == "nearest even":
        return round(value)
    assert how == "nearest away"
    return math.floor(abs(value) + Fraction(1, 2)) * (1 if value > 0 else -1)


@dataclass(frozen=True)
class Poser:
    """A chip that there is not.

    Attributes are what `refmoe.probe.family.Parameters` has, and respects in which no member of the family is wrong:
    `saturates_nan` (NaN in C is the largest number), `sticky` (one more bit that says whether something was cut),
    `flushes_a` (subnormal elements of A count as zero), `wide_c` (C is not cut), `payload` (NaN keeps C's bits),
    `late_c` (C is aligned by itself after the products), `swapped` (row 0's element 1 of B twice),
    `pairwise` (neighbours are added first), `loses_scale` (A's scales are ignored).
    """

    instruction: Instruction
    blocks: tuple[tuple[tuple[int, ...], ...], ...]
    joins: str = "first"
    align_bits: int = 25
    result_bits: int = 23
    cut: str = "toward zero"
    rounding: str = "toward zero"
    nan: int = 0x7FFFFFFF
    zero_signs: str = "+++"
    last_rounding: str = "nearest even"
    exponents: str = "products"
    subnormal_a: str = "emin"
    subnormal_b: str = "emin"
    subnormal_scale: str = "emin"
    product: str = "factors"
    zeros: str = "takes no part"
    floor: int | None = -133
    inputs: str = "kept"
    results: str = "kept"
    overflow: str = "infinity"
    oddity: str = ""

    @property
    def d(self) -> str:
        return self.instruction.accumulator

    @property
    def emin(self) -> int:
        return 2 - (1 << (SHAPES[self.d][0] - 1))

    def answers(self, vectors: Sequence[Vector]) -> list[int]:
        return [self.answer(vector) for vector in vectors]

    def answer(self, vector: Vector) -> int:
        acc = element(self.d, vector.c)
        if self.oddity == "payload" and acc[0] == NAN:
            return vector.c
        if self.oddity == "saturates_nan" and acc[0] == NAN:
            return self.bits(power(200), False)
        start = (Fraction(0), False, 0) if self.joins == "last" else acc
        for block in self.blocks:
            start = element(self.d, self.block(vector, block, start))
        bits = self.back(start)
        if self.joins == "last":
            bits = self.back(self.add(start, acc))
        return bits

    def back(self, value: tuple[Fraction | str, bool, int]) -> int:
        """The bits of what a block left."""
        if value[0] == NAN:
            return self.nan
        if value[0] == INFINITE:
            return self.infinity(value[1])
        assert isinstance(value[0], Fraction)
        return self.bits(value[0], value[1], "toward zero", SHAPES[self.d][1])

    def add(
        self, x: tuple[Fraction | str, bool, int], y: tuple[Fraction | str, bool, int]
    ) -> tuple[Fraction | str, bool, int]:
        if NAN in (x[0], y[0]) or (x[0] == y[0] == INFINITE and x[1] != y[1]):
            return NAN, False, 0
        if INFINITE in (x[0], y[0]):
            return INFINITE, (x if x[0] == INFINITE else y)[1], 0
        assert isinstance(x[0], Fraction)
        assert isinstance(y[0], Fraction)
        negative = x[1] and y[1] and self.zero_signs[0] == "-"
        return element(self.d, self.bits(x[0] + y[0], negative, self.last_rounding, 23))

    def infinity(self, negative: bool) -> int:
        exponent_bits, fraction_bits, _ = SHAPES[self.d]
        return ((1 << exponent_bits) - 1 << fraction_bits) | (negative << exponent_bits + fraction_bits)

    def bits(self, value: Fraction, negative_zero: bool, how: str | None = None, length: int | None = None) -> int:
        """The bits of a finite number, rounded; of zero with a sign."""
        exponent_bits, fraction_bits, bias = SHAPES[self.d]
        how, length = how or self.rounding, self.result_bits if length is None else length
        sign = 1 << exponent_bits + fraction_bits
        if value == 0:
            return sign if negative_zero else 0
        lost = sign if value < 0 and self.zero_signs[2] == "-" else 0
        if lead(value) < self.emin and self.results == "flushed":
            return lost
        unit = power(max(lead(value), self.emin) - length)
        value = whole(value / unit, how) * unit
        if value == 0:
            return lost
        minus = sign if value < 0 else 0
        if abs(value) >= power(bias + 1):
            most = self.infinity(False) - (1 << fraction_bits - length)
            return (most if self.overflow == "largest" else self.infinity(False)) | minus
        exponent = max(lead(value), self.emin)
        fraction = abs(value) / power(exponent)
        field = exponent + bias if fraction >= 1 else 0
        return int((field + (fraction - (field > 0))) * (1 << fraction_bits)) | minus

    def scale(self, byte: int) -> tuple[Fraction, int] | None:
        """(value, exponent)."""
        if self.instruction.scale == "ue8m0":
            return None if byte == 255 else (power(byte - 127), byte - 127)
        value, _, exponent = element("e4m3", byte & 0x7F)
        if value == NAN:
            return None
        assert isinstance(value, Fraction)
        return value, (lead(value) if value and self.subnormal_scale == "leading bit" else exponent)

    def block(
        self,
        vector: Vector,
        block: tuple[tuple[int, ...], ...],
        acc: tuple[Fraction | str, bool, int],
    ) -> int:
        kind = self.instruction
        flushes_a = self.oddity == "flushes_a"
        of = kind.a, kind.b, self.subnormal_a, self.subnormal_b, self.product, flushes_a
        terms: list[tuple[Fraction, int, bool]] = []
        infinities: list[bool] = [acc[1]] if acc[0] == INFINITE else []
        for group in block:
            total, exponents, negatives = Fraction(0), [], []
            for k in group:
                each = product(of, vector.a[k], vector.b[k])
                if not each.is_finite:
                    if each.value == NAN:
                        return self.nan
                    infinities.append(each.negative)
                    continue
                if not each.is_zero:
                    assert isinstance(each.value, Fraction)
                    total += each.value
                exponents.append(each.exponent if self.exponents == "products" else 0)
                negatives.append(each.negative)
            exponent = max(exponents, default=0)
            if self.instruction.scale:
                index = group[0] // self.instruction.scale_block
                for side, byte in enumerate((vector.a_scales[index], vector.b_scales[index])):
                    scale = self.scale(byte)
                    if scale is None:
                        return self.nan
                    if self.oddity == "loses_scale" and side == 0:
                        continue
                    total, exponent = total * scale[0], exponent + scale[1]
            terms.append((total, exponent, total.numerator < 0 or (not total and all(negatives))))
        if acc[0] == NAN or len(set(infinities)) > 1:
            return self.nan
        if infinities:
            return self.infinity(infinities[0])
        c = acc[0]
        assert isinstance(c, Fraction)
        if self.inputs == "flushed" and c and lead(c) < self.emin:
            c = Fraction(0)
        return self.sum(terms, c, acc[1], acc[2])

    def sum(self, terms: list[tuple[Fraction, int, bool]], c: Fraction, c_negative: bool, c_exponent: int) -> int:
        """A block's result."""
        of_terms = [exponent for value, exponent, _ in terms if value or self.zeros == "takes part"]
        taking = of_terms + ([c_exponent] if c else [])
        negatives = [negative for *_, negative in terms] + [c_negative]
        if not taking:
            return self.bits(Fraction(0), all(negatives) and self.zero_signs[0] == "-")
        largest = max(taking) if self.floor is None else max([*taking, self.floor])
        if self.oddity == "late_c":
            largest = max([*of_terms, -133 if self.floor is None else self.floor])
        low = largest - self.align_bits
        unit = power(low)
        values = [value for value, *_ in terms]
        if self.oddity == "pairwise":
            values = [sum(values[at : at + 2], Fraction(0)) for at in range(0, len(values), 2)]
        cut = sum(multiples(value, low, self.cut) for value in values if value)
        whole_c = self.oddity in ("wide_c", "late_c")
        total = cut * unit + (c if whole_c else multiples(c, low, self.cut) * unit)
        if self.oddity == "sticky" and any(value / unit != whole(value / unit, self.cut) for value in [*values, c]):
            total += unit / 2
        if total:
            return self.bits(total, False)
        if not any(values) and not c:
            return self.bits(total, all(negatives) and self.zero_signs[0] == "-")
        exact = sum(values, c)
        return self.bits(total, self.zero_signs[2 if exact < 0 else 1] == "-")
