"""Questions to an instruction: the operands of one output, and the numbers that their codes are.

A number is exact here: an integer times a power of two. Nothing in this file knows how products are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from refmoe.formats import BF16, E2M1, E4M3, E5M2, FP16, FP32, TF32, Format, Specials
from refmoe.probe.instructions import Instruction

FORMATS: Mapping[str, Format] = {
    "e4m3": E4M3, "e5m2": E5M2, "e2m1": E2M1, "bf16": BF16, "f16": FP16, "tf32": TF32, "f32": FP32,
}  # fmt: skip

#: What stands for a number that is none.
NAN, INFINITY = "nan", "infinity"


@dataclass(frozen=True)
class Question:
    """The operands of one output.

    Attributes:
        about: the parameter that it was asked for.
        terms: (k, code of A, code of B), k ascending; elsewhere both are +0.
        c: bits of C.
        a_scales, b_scales: scale bytes of the row and of the column.
    """

    about: str
    terms: tuple[tuple[int, int, int], ...]
    c: int
    a_scales: tuple[int, ...] = ()
    b_scales: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What is asked, without the reason."""
        return self.terms, self.c, self.a_scales, self.b_scales


#: Answers a list of questions: the bits of D, one for each.
Answer = Callable[[Sequence[Question]], list[int]]


@dataclass(frozen=True)
class Decoded:
    """What a code means: (-1)^negative * significand * 2^exponent, or `special`.

    Attributes:
        negative: its sign bit.
        significand: an integer, 0 for a zero.
        exponent: of the significand's last bit.
        field: the exponent of the binade that its code lies in: of subnormals and zeros the least.
        special: "", `NAN` or `INFINITY`.
    """

    negative: bool
    significand: int
    exponent: int
    field: int
    special: str = ""

    @property
    def value(self) -> Fraction:
        """The number."""
        return Fraction(self.significand) * Fraction(2) ** self.exponent * (-1 if self.negative else 1)

    @property
    def leading(self) -> int:
        """The exponent of its first bit."""
        return self.significand.bit_length() - 1 + self.exponent


@cache
def decode(code: int, name: str) -> Decoded:
    """What a code of a format means."""
    fmt = FORMATS[name]
    code >>= fmt.unused_low_bits
    bits = 1 + fmt.exponent_bits + fmt.mantissa_bits
    negative = bool(code >> (bits - 1) & 1)
    field = code >> fmt.mantissa_bits & ((1 << fmt.exponent_bits) - 1)
    fraction = code & ((1 << fmt.mantissa_bits) - 1)
    top = (1 << fmt.exponent_bits) - 1
    if field == top and fmt.specials is Specials.IEEE:
        return Decoded(negative, 0, 0, 0, NAN if fraction else INFINITY)
    if field == top and fmt.specials is Specials.ALL_ONES_NAN and fraction == (1 << fmt.mantissa_bits) - 1:
        return Decoded(negative, 0, 0, 0, NAN)
    binade = max(field, 1) - fmt.bias
    significand = fraction + ((1 << fmt.mantissa_bits) if field else 0)
    return Decoded(negative, significand, binade - fmt.mantissa_bits, binade)


@cache
def decode_scale(byte: int, name: str) -> Decoded:
    """What a scale byte means; the sign bit of UE4M3 is given, and it is the instruction that ignores it."""
    if name == "ue4m3":
        return decode(byte, "e4m3")
    return Decoded(False, 0, 0, 0, NAN) if byte == 0xFF else Decoded(False, 1, byte - 127, byte - 127)


def encode(value: Fraction | int, name: str) -> int | None:
    """The code of a number, +0 for 0; None where the format has none."""
    fmt = FORMATS[name]
    value = Fraction(value)
    if value == 0:
        return 0
    sign = 1 << (fmt.exponent_bits + fmt.mantissa_bits) if value < 0 else 0
    value = abs(value)
    leading = value.numerator.bit_length() - value.denominator.bit_length()
    leading -= value < Fraction(2) ** leading
    binade = max(leading, fmt.emin)
    scaled = value / Fraction(2) ** (binade - fmt.mantissa_bits)
    if scaled.denominator != 1 or value > fmt.max:
        return None
    whole = int(scaled)
    field = binade + fmt.bias if whole >> fmt.mantissa_bits else 0
    return (sign | field << fmt.mantissa_bits | (whole & ((1 << fmt.mantissa_bits) - 1))) << fmt.unused_low_bits


def negated(code: int, name: str) -> int:
    """The code with the other sign."""
    fmt = FORMATS[name]
    return code ^ 1 << (fmt.exponent_bits + fmt.mantissa_bits + fmt.unused_low_bits)


@cache
def factors(value: Fraction, a: str, b: str) -> tuple[int, int] | None:
    """Codes of A and B whose product is a number, normal ones of middling size if there are; None if there are none."""
    best: tuple[int, int, int, int] | None = None
    magnitude = abs(value)
    if magnitude == 0:
        return 0, 0
    for significand in significands(a):
        rest = magnitude / significand
        # Powers of two that A may take, and B takes what is left.
        for e in range(FORMATS[a].emin - FORMATS[a].mantissa_bits, FORMATS[a].emax + 1):
            first, second = significand * Fraction(2) ** e, rest / Fraction(2) ** e
            if first > FORMATS[a].max or second > FORMATS[b].max:
                continue
            one = encode(first, a)
            other = encode(second, b) if one is not None else None
            if one is None or other is None:
                continue
            subnormal = (first < Fraction(2) ** FORMATS[a].emin) + (second < Fraction(2) ** FORMATS[b].emin)
            uneven = abs(e - decode(other, b).leading)
            found = (subnormal, uneven, one, other)
            best = found if best is None or found < best else best
    if best is None:
        return None
    return (negated(best[2], a) if value < 0 else best[2]), best[3]


@cache
def significands(name: str) -> tuple[Fraction, ...]:
    """Odd multiples of a power of two that a format's significands are, the short ones alone."""
    bits = min(FORMATS[name].mantissa_bits, 3)
    return tuple(Fraction(odd) for odd in range(1, 2 << bits, 2))


class Scene:
    """Operands of one output while they are put together, of numbers rather than codes."""

    def __init__(self, instruction: Instruction, about: str) -> None:
        self.instruction, self.about = instruction, about
        self.terms: dict[int, tuple[int, int]] = {}
        self.c = 0
        one = 127 if instruction.scale_format == "ue8m0" else 0x38
        self.a_scales, self.b_scales = [one] * instruction.scales, [one] * instruction.scales
        self.possible = True

    def product(self, k: int, value: Fraction | int) -> Scene:
        """A product of a value, apart from scales, at an element of K."""
        found = factors(Fraction(value), self.instruction.a_format, self.instruction.b_format)
        self.possible &= found is not None and k not in self.terms
        if found is not None:
            self.terms[k] = found
        return self

    def pair(self, k: int, a: int, b: int) -> Scene:
        """Two codes at an element of K."""
        self.terms[k] = (a, b)
        return self

    def accumulator(self, value: Fraction | int) -> Scene:
        """C's value."""
        code = encode(value, self.instruction.accumulator)
        self.possible &= code is not None
        self.c = code or 0
        return self

    def bits(self, c: int) -> Scene:
        """C's bits."""
        self.c = c
        return self

    def scales(self, a: Sequence[int], b: Sequence[int]) -> Scene:
        """Scale bytes."""
        self.a_scales, self.b_scales = list(a), list(b)
        return self

    def question(self) -> Question | None:
        """What is asked; None where the formats do not have one of the numbers."""
        if not self.possible:
            return None
        terms = tuple((k, *self.terms[k]) for k in sorted(self.terms))
        return Question(self.about, terms, self.c, tuple(self.a_scales), tuple(self.b_scales))
