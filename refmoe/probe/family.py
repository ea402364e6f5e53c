"""The family of accumulation models that an inference can find, and what each of its members answers.

K is taken in blocks, one after the other. A block adds its terms and an accumulator: every addend is cut to a multiple
of 2^(E - F), the cut addends are added exactly, and the sum is rounded to m bits of fraction. E is the largest exponent
of the addends. A term is one product or, in a grouped block, the exact sum of a group's products.

Integers throughout, one vector at a time. Nothing here comes from `refmoe.reference.mma`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from refmoe.probe.instructions import CODECS, Codec, Instruction
from refmoe.probe.vectors import Vector

MODES = ("toward zero", "down", "up", "nearest even", "nearest away")
"""Roundings, of addends and of results."""

_F32 = CODECS["f32"]


@dataclass(frozen=True)
class Parameters:
    """A member of the family. None stands for what no operands of the instruction's formats can show.

    Attributes:
        blocks: the elements of K, by block in the order of the chain, and in a block by group; groups of one element
            are products by themselves.
        joins: "first" if C is the accumulator of the first block, "last" if it is added to the blocks' result.
        align_bits: F.
        result_bits: m.
        cut: how addends are rounded to multiples of 2^(E - F).
        rounding: how a block's sum is rounded.
        last_rounding: how the addition of C is rounded that joins last.
        exponents: "products" or, where a term has the exponent of its scales alone, "scales".
        subnormal_a: the exponent of subnormal elements of A: that of the least normal number, "emin", or that of their
            leading bit, "leading bit". Of E2M1 0.5 it is 0 or -1.
        subnormal_b: of B.
        subnormal_scale: of scales.
        product: the exponent of a product: the sum of its factors', "factors", or that of its "leading bit".
        zeros: whether a product that is zero, "takes no part" in E or "takes part".
        floor: the least E.
        zero_signs: the signs of three zeros: all addends -0; 1 - 1; 1 - 1 and a negative addend that is cut to zero,
            which is also that of a negative sum that becomes zero.
        nan: the bits of NaN.
        inputs: whether a subnormal C is "kept" or "flushed".
        results: whether subnormal results are.
        overflow: "infinity" or "largest".
    """

    blocks: tuple[tuple[tuple[int, ...], ...], ...]
    joins: str
    align_bits: int
    result_bits: int
    cut: str
    rounding: str
    nan: int
    zero_signs: str
    last_rounding: str | None = None
    exponents: str = "products"
    subnormal_a: str | None = None
    subnormal_b: str | None = None
    subnormal_scale: str | None = None
    product: str | None = None
    zeros: str | None = None
    floor: int | None = None
    inputs: str | None = None
    results: str | None = None
    overflow: str | None = None

    @property
    def length(self) -> int:
        """L: the products of the first block."""
        return sum(map(len, self.blocks[0]))

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "blocks": [[list(group) for group in block] for block in self.blocks]}

    @classmethod
    def of_document(cls, document: dict[str, Any]) -> Parameters:
        """The reverse of `document`; a KeyError or TypeError if it holds something else."""
        blocks = tuple(tuple(tuple(group) for group in block) for block in document["blocks"])
        return cls(**{**document, "blocks": blocks})

    def words(self) -> str:
        """On one line."""
        group = max(len(group) for block in self.blocks for group in block)
        parts = [f"L {self.length}", f"F {self.align_bits}", f"m {self.result_bits}"]
        parts += [f"groups of {group}"] if group > 1 else []
        parts += [f"{len(self.blocks)} blocks"] if len(self.blocks) > 1 else []
        parts += [f"C joins {self.joins}", f"cut {self.cut}", f"rounded {self.rounding}"]
        parts += [f"zeros {'take part' if self.zeros == 'takes part' else 'take no part'}"] if self.zeros else []
        parts += [f"floor {self.floor}"] if self.floor is not None else []
        return ", ".join(parts)


def differences(found: Parameters, claimed: Parameters) -> list[str]:
    """Where two members differ, in words; what either leaves open is no difference."""
    pairs = ((name, getattr(found, name), getattr(claimed, name)) for name in Parameters.__dataclass_fields__)
    return [f"{name} is {x}, not {y}" for name, x, y in pairs if x is not None and y is not None and x != y]


@dataclass(frozen=True)
class _Number:
    """A finite number that is added: value = significand * 2^unit; `exponent` is what E is made of."""

    significand: int
    unit: int
    exponent: int
    negative: bool


# In place of an infinite product, after which no sum is looked at.
_ZERO = _Number(0, 0, 0, False)


def cut_to(significand: int, shift: int, mode: str) -> int:
    """The integer next to significand / 2^shift in that mode; exact for shifts up to 0."""
    if shift <= 0:
        return significand << -shift
    low, rest = significand >> shift, significand & ((1 << shift) - 1)
    if not rest or mode == "down":
        return low
    if mode == "up":
        return low + 1
    if mode == "toward zero":
        return low + (significand < 0)
    half = 1 << (shift - 1)
    if rest != half:
        return low + (rest > half)
    return low + ((low & 1) if mode == "nearest even" else (significand > 0))


class Member:
    """A member of the family as an instruction: `answer` gives D's bits."""

    def __init__(self, instruction: Instruction, parameters: Parameters) -> None:
        self.instruction = instruction
        self.parameters = parameters
        self.accumulator = CODECS[instruction.accumulator]

    def answers(self, vectors: Iterable[Vector]) -> list[int]:
        """D's bits of each."""
        return [self.answer(vector) for vector in vectors]

    def answer(self, vector: Vector) -> int:
        """D's bits."""
        if self.parameters.joins == "last":
            return self._added(self._chain(vector, 0), vector.c)
        return self._chain(vector, vector.c)

    def _chain(self, vector: Vector, acc: int) -> int:
        for block in self.parameters.blocks:
            acc = self._block(vector, block, acc)
        return acc

    def _block(self, vector: Vector, block: tuple[tuple[int, ...], ...], acc: int) -> int:
        par = self.parameters
        infinite: set[int] = set()
        terms: list[_Number] = []
        for group in block:
            term = self._term(vector, group, infinite)
            if term is None:
                return par.nan
            terms.append(term)
        kind, sign, significand, exponent = self.accumulator.decode(acc)
        if kind == "nan":
            return par.nan
        if kind == "infinity":
            infinite.add(sign)
        if infinite:
            return self._infinity(infinite)
        if par.inputs == "flushed" and significand >> self.accumulator.fraction_bits == 0:
            significand = 0
        c = _Number(
            -significand if sign else significand, exponent - self.accumulator.fraction_bits, exponent, bool(sign)
        )
        taking = [each.exponent for each in terms if each.significand or par.zeros == "takes part"]
        taking += [c.exponent] if c.significand else []
        if not taking:
            return self.accumulator.sign if self._all_negative([*terms, c]) and par.zero_signs[0] == "-" else 0
        largest = max(taking) if par.floor is None else max([*taking, par.floor])
        unit = largest - par.align_bits
        addends = [*terms, c]
        total = sum(cut_to(each.significand, unit - each.unit, par.cut) for each in addends)
        return self._rounded(total, unit, addends)

    def _all_negative(self, addends: list[_Number]) -> bool:
        return all(each.negative for each in addends)

    def _infinity(self, signs: set[int]) -> int:
        infinity = self.accumulator.infinity()
        assert infinity is not None
        if len(signs) > 1:
            return self.parameters.nan
        return infinity | (self.accumulator.sign if signs == {1} else 0)

    def _term(self, vector: Vector, group: tuple[int, ...], infinite: set[int]) -> _Number | None:
        """The sum of a group's products; None for NaN; signs of infinite products go to `infinite`."""
        par, instr = self.parameters, self.instruction
        scale_significand, scale_unit, scale_exponent = 1, 0, 0
        if instr.scale:
            for scales in (vector.a_scales, vector.b_scales):
                scale = _scale(instr.scale, scales[group[0] // instr.scale_block], par.subnormal_scale)
                if scale is None:
                    return None
                scale_significand *= scale[0]
                scale_unit += scale[1]
                scale_exponent += scale[2]
        values = []
        kinds = instr.a, instr.b, par.subnormal_a, par.subnormal_b, par.product
        for k in group:
            product = _product(kinds, vector.a[k], vector.b[k])
            if product is None:
                return None
            if isinstance(product, bool):
                infinite.add(int(product))
                product = _ZERO
            values.append(product)
        if len(values) == 1 and not instr.scale and par.exponents == "products":
            return values[0]
        unit = min(each.unit for each in values)
        total = sum(each.significand << (each.unit - unit) for each in values)
        exponent = max(each.exponent for each in values) if par.exponents == "products" else 0
        # A zero that is -0 only where all products are.
        negative = total < 0 or (total == 0 and all(each.negative for each in values))
        return _Number(total * scale_significand, unit + scale_unit, exponent + scale_exponent, negative)

    def _rounded(self, total: int, unit: int, addends: list[_Number]) -> int:
        par, acc = self.parameters, self.accumulator
        if total == 0:
            if all(each.significand == 0 for each in addends):
                return acc.sign if self._all_negative(addends) and par.zero_signs[0] == "-" else 0
            low = min(each.unit for each in addends)
            exact = sum(each.significand << (each.unit - low) for each in addends)
            return acc.sign if par.zero_signs[2 if exact < 0 else 1] == "-" else 0
        code = rounded(total, unit, acc, par.result_bits, par.rounding, par.results, par.overflow)
        return acc.sign if code == 0 and total < 0 and par.zero_signs[2] == "-" else code

    def _added(self, partial: int, c: int) -> int:
        """C and the chain's result, both FP32, as one FP32 addition."""
        par = self.parameters
        kinds = [_F32.decode(bits) for bits in (partial, c)]
        if any(kind[0] == "nan" for kind in kinds):
            return par.nan
        infinite = {kind[1] for kind in kinds if kind[0] == "infinity"}
        if infinite:
            return self._infinity(infinite)
        unit = min(kind[3] for kind in kinds)
        total = sum((-kind[2] if kind[1] else kind[2]) << (kind[3] - unit) for kind in kinds)
        if total == 0:
            return _F32.sign if all(kind[1] for kind in kinds) and par.zero_signs[0] == "-" else 0
        return rounded(total, unit - 23, _F32, 23, par.last_rounding or "nearest even", par.results, par.overflow)


def rounded(
    total: int, unit: int, codec: Codec, bits: int, mode: str, results: str | None, overflow: str | None
) -> int:
    """The code of total * 2^unit, not zero, with `bits` bits of fraction."""
    negative, size = total < 0, abs(total)
    lead = size.bit_length() - 1 + unit
    below = lead < codec.emin
    step = max(lead, codec.emin) - bits
    whole = cut_to(total, step - unit, mode)
    if whole == 0 or (below and results == "flushed"):
        return 0
    code = codec.code(whole, step)
    if code is None:
        infinity = codec.infinity()
        assert infinity is not None
        # Below infinity the largest number: all ones, but for the bits that a shorter result has not.
        largest = infinity - (1 << (codec.fraction_bits - min(bits, codec.fraction_bits)))
        code = largest if overflow == "largest" else infinity
        return code | (codec.sign if negative else 0)
    return code


# The same few operands come again and again, in questions and in random vectors; of BF16 there are 2^32 pairs.
@lru_cache(maxsize=1 << 16)
def _product(kinds: tuple[str, str, str | None, str | None, str | None], a: int, b: int) -> _Number | bool | None:
    """The product of codes `a` and `b`; None for NaN, and for infinity whether it is negative.

    Args:
        kinds: names of the formats of A and B, and the parameters `subnormal_a`, `subnormal_b` and `product`.
        a: code of A's element.
        b: code of B's element.
    """
    x, y = CODECS[kinds[0]], CODECS[kinds[1]]
    (kind_a, sign_a, sig_a, exp_a), (kind_b, sign_b, sig_b, exp_b) = x.decode(a), y.decode(b)
    if "nan" in (kind_a, kind_b):
        return None
    negative = sign_a != sign_b
    if "infinity" in (kind_a, kind_b):
        if (kind_a == "number" and sig_a == 0) or (kind_b == "number" and sig_b == 0):
            return None
        return negative
    unit = exp_a + exp_b - x.fraction_bits - y.fraction_bits
    exponent = _exponent(sig_a, exp_a, x, kinds[2]) + _exponent(sig_b, exp_b, y, kinds[3])
    size = sig_a * sig_b
    if kinds[4] == "leading bit" and size:
        exponent = size.bit_length() - 1 + unit
    return _Number(-size if negative else size, unit, exponent, negative)


def _exponent(significand: int, exponent: int, codec: Codec, subnormal: str | None) -> int:
    if subnormal == "leading bit" and significand:
        return exponent + significand.bit_length() - 1 - codec.fraction_bits
    return exponent


def _scale(fmt: str, byte: int, subnormal: str | None) -> tuple[int, int, int] | None:
    """(significand, unit, exponent) of a scale, None for NaN."""
    if fmt == "ue8m0":
        return None if byte == 0xFF else (1, byte - 127, byte - 127)
    codec = CODECS["ue4m3"]
    kind, _, significand, exponent = codec.decode(byte & 0x7F)
    if kind == "nan":
        return None
    return significand, exponent - codec.fraction_bits, _exponent(significand, exponent, codec, subnormal)
