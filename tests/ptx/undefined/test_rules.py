"""The rules of undefined bits against the definition: a bit of a result is undefined if it varies.

The definition tries all values of the undefined bits, one after another, in Python integers. It shares nothing with the
rules; what an instruction computes, which `tests/ptx/isa` holds against the manual, is the same function for both.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.ptx import isa
from refmoe.ptx.engine.undefined.rules import undefined_results

BITS = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "b64": 64}
# A case is a value and its undefined bits, for each operand.
Case = list[tuple[int, int]]
# At most so many undefined bits in all operands of a case: all their values are tried.
MOST = 7


def variations(value: int, mask: int) -> list[int]:
    """All values that differ from `value` in the bits of the mask alone."""
    places = [place for place in range(64) if mask >> place & 1]
    result = []
    for chosen in itertools.product((0, 1), repeat=len(places)):
        varied = value & ~mask
        for place, bit in zip(places, chosen, strict=True):
            varied |= bit << place
        result.append(varied)
    return result


def oracle(operation: isa.Operation, kinds: Sequence[str], case: Case) -> list[int]:
    """The bits of each result that vary."""
    operands = list(itertools.product(*(variations(value, mask) for value, mask in case)))
    columns = [np.array([row[number] for row in operands], isa.DTYPES[kind]) for number, kind in enumerate(kinds)]
    # A table is a constant of the instruction.
    if operation.opcode.startswith("lop3"):
        columns[3] = np.uint32(case[3][0])
    with np.errstate(all="ignore"):
        results = operation.function(*columns)
    held = results if isinstance(results, tuple) else (results,)
    found = []
    for result in held:
        numbers = [int(number) for number in np.broadcast_to(result, len(operands))]
        varies = 0
        for number in numbers:
            varies |= number ^ numbers[0]
        found.append(varies)
    return found


def rule(operation: isa.Operation, kinds: Sequence[str], cases: list[Case], noise: random.Random) -> list[list[int]]:
    """What the rules say of each case; undefined bits hold anything."""
    values, masks = [], []
    for number, kind in enumerate(kinds):
        dtype = isa.DTYPES[kind]
        held = [case[number][0] ^ (noise.getrandbits(64) & case[number][1]) for case in cases]
        values.append(np.array(held, dtype))
        masks.append(np.array([case[number][1] for case in cases], dtype))
    with np.errstate(all="ignore"):
        results = undefined_results(operation, values, masks)
    return [[int(result[place]) for result in results] for place in range(len(cases))]


def cases_of(opcode: str, kinds: Sequence[str], count: int) -> list[Case]:
    """Operands of few undefined bits: at the ends and next to each other, and with values that decide much."""
    draw = random.Random(opcode)
    result = []
    for _ in range(count):
        case: Case = []
        left = MOST
        for kind in kinds:
            bits = BITS[kind]
            ones = (1 << bits) - 1
            value = draw.choice([
                0, 1, ones, ones >> 1, 1 << (bits - 1), draw.getrandbits(bits), draw.getrandbits(bits),
                draw.getrandbits(6) & ones, 0x3F800000 & ones, draw.getrandbits(bits) & draw.getrandbits(bits),
            ])  # fmt: skip
            number = draw.randint(0, min(left, 4))
            begin = draw.choice([0, bits - number, draw.randrange(bits)])
            places = draw.choice([
                range(max(begin, 0), begin + number), [draw.randrange(bits) for _ in range(number)],
            ])  # fmt: skip
            mask = sum(1 << place for place in set(places) if place < bits)
            left -= bin(mask).count("1")
            if case and kind == kinds[0] and draw.randrange(3) == 0:
                # Equal as far as both are known.
                value = case[0][0]
            case.append((value, mask))
        result.append(case)
    return result


EXACT = [
    *(f"{stem}.{kind}" for stem in ("and", "or", "xor", "not") for kind in ("pred", "b16", "b32", "b64")),
    *(f"cnot.b{bits}" for bits in (16, 32, 64)), "mov.b32", "mov.pred", "mov.f64", "lop3.b32", "lop3.or.b32",
    *(f"{stem}.{kind}" for stem in ("add", "sub") for kind in ("u16", "s16", "u32", "s32", "u64", "s64")),
    "add.cc.u32", "addc.u32", "addc.cc.u32", "sub.cc.u32", "subc.u32", "subc.cc.s32", "add.cc.u64", "subc.cc.u64",
    "neg.s16", "neg.s32", "neg.s64", "brev.b32", "brev.b64", "copysign.f32", "copysign.f64",
    "selp.b16", "selp.b32", "selp.f32", "selp.b64",
    *(f"setp.{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("u16", "s16", "u32", "s64")),
    *(f"setp.{name}.u32" for name in ("lo", "ls", "hi", "hs")), "setp.eq.b32", "setp.ne.b64",
    *(f"cvt.{to}.{of}" for to in ("u8", "s8", "u16", "s32", "u64", "s64") for of in ("u8", "s8", "s16", "u32", "s64")),
]  # fmt: skip
# The same where their amounts, positions, lengths and selectors are known.
MOVED = {
    "shl.b16": (1,), "shl.b32": (1,), "shl.b64": (1,), "shr.u16": (1,), "shr.b32": (1,), "shr.s32": (1,),
    "shr.s64": (1,), "shf.l.wrap.b32": (2,), "shf.r.clamp.b32": (2,), "bfe.u32": (1, 2), "bfe.s32": (1, 2),
    "bfe.u64": (1, 2), "bfi.b32": (2, 3), "bfi.b64": (2, 3), "prmt.b32": (2,), "prmt.b32.f4e": (2,),
    "prmt.b32.b4e": (2,), "prmt.b32.rc16": (2,), "szext.clamp.s32": (1,), "szext.wrap.u32": (1,),
    "slct.b32.s32": (2,), "slct.u64.f32": (2,),
}  # fmt: skip
SOUND = [
    *MOVED, "mul.lo.u16", "mul.lo.s32", "mul.lo.u64", "mul.wide.u16", "mul.wide.s16", "mul.wide.s32", "mul.wide.u32",
    "mul.hi.u32", "mad.lo.s32", "mad.wide.u16", "mad.wide.s32", "mad.lo.cc.u32", "madc.hi.u32", "mul24.lo.u32",
    "min.u32", "max.u32", "min.s16", "max.s32", "min.s64", "max.u64", "abs.s16", "abs.s32", "abs.s64",
    "popc.b32", "popc.b64", "clz.b32", "clz.b64", "bfind.u32", "bfind.s32", "bmsk.clamp.b32", "fns.b32", "sad.u32",
    "div.u32", "div.s32", "rem.u32", "rem.s64", "dp4a.s32.u32", "dp2a.lo.u32.s32", "add.sat.s32", "sub.sat.s32",
    "min.s16x2", "add.u16x2", "setp.lt.and.s32", "setp.ne.or.u32", "setp.ge.and.u32 p|q", "setp.eq.or.s16 p|q",
    "setp.lt.xor.u64 p|q",    "setp.gt.s32 p|q", "setp.ltu.and.f32 p|q", "setp.eq.xor.b32", "set.lt.u32.s32",
    "setp.lt.f32", "setp.equ.f32", "setp.gt.f16x2", "testp.finite.f32", "add.rn.f32", "mul.rn.f32", "fma.rn.f32",
    "add.rn.f64", "neg.f32", "abs.f32", "neg.f64", "min.f32", "max.NaN.f32", "div.rn.f32", "sqrt.rn.f32", "rcp.rn.f32",
    "ex2.approx.f32", "add.rn.f16x2", "fma.rn.bf16x2", "neg.f16x2", "max.bf16x2", "mul.rn.f32x2", "set.gt.f16x2.f16x2",
    "cvt.rn.f16.f32", "cvt.f32.f16", "cvt.rn.f32.s32", "cvt.rzi.s32.f32", "cvt.rzi.u64.f64", "cvt.sat.u8.s32",
    "cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32", "cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e4m3x2.f16x2",
    "cvt.rn.f16x2.e4m3x2", "cvt.rn.satfinite.e2m1x2.f32", "cvt.rn.f16x2.e2m1x2", "cvt.rp.satfinite.ue8m0x2.f32",
    "cvt.rn.bf16x2.ue8m0x2", "cvt.pack.sat.u8.s32.b32",
]  # fmt: skip


def operation_of(spelling: str) -> tuple[isa.Operation, list[str]]:
    """Of an opcode, with ` p|q` behind it where it has two destinations."""
    opcode, _, both = spelling.partition(" ")
    sources = 4 if opcode.startswith("lop3") else 0
    operation = isa.resolve(opcode, 2 if both or opcode.startswith("lop3.or") else 1, sources)
    return operation, [*operation.sources, *(("pred",) if operation.carry_in else ())]


def held_against_the_definition(opcode: str, cases: list[Case], exact: bool) -> int:
    """Results that vary in some bit."""
    operation, kinds = operation_of(opcode)
    if opcode.startswith("lop3"):
        for case in cases:
            case[3] = (case[3][0] & 0xFF, 0)
        said = [rule(operation, kinds, [case], random.Random(1))[0] for case in cases]
    else:
        said = rule(operation, kinds, cases, random.Random(1))
    varying = 0
    for case, results in zip(cases, said, strict=True):
        expected = oracle(operation, kinds, case)
        what = f"{opcode} of {[(hex(value), hex(mask)) for value, mask in case]}: {list(map(hex, results))}"
        assert len(results) == len(expected)
        for found, varies in zip(results, expected, strict=True):
            assert not varies & ~found, f"{what} says defined of what varies: {varies:#x}"
            assert not exact or found == varies, f"{what}, where {varies:#x} varies"
            varying += varies != 0
    return varying


@pytest.mark.parametrize("opcode", thinned(EXACT, 3))
def test_exactly_what_varies_is_undefined(opcode: str) -> None:
    _, kinds = operation_of(opcode)
    assert held_against_the_definition(opcode, cases_of(opcode, kinds, 150), exact=True) > 15


@pytest.mark.parametrize("opcode", MOVED)
def test_exactly_what_varies_where_amounts_are_known(opcode: str) -> None:
    _, kinds = operation_of(opcode)
    cases = cases_of(opcode, kinds, 150)
    for case in cases:
        for number in MOVED[opcode]:
            case[number] = (case[number][0] % 67, 0)
    assert held_against_the_definition(opcode, cases, exact=True) > 15


@pytest.mark.parametrize("opcode", thinned(SOUND, 3))
def test_nothing_that_varies_is_called_defined(opcode: str) -> None:
    _, kinds = operation_of(opcode)
    assert held_against_the_definition(opcode, cases_of(opcode, kinds, 120), exact=False) > 0


def undefined(opcode: str, *operands: tuple[int, int]) -> list[int]:
    operation, kinds = operation_of(opcode)
    return rule(operation, kinds, [list(operands)], random.Random(2))[0]


ALL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("opcode", "operands", "expected"),
    [
        # A known 0 hides a bit from `and`, a known 1 from `or`; nothing hides it from `xor`.
        ("and.b32", [(0, ALL), (0, 0)], 0),
        ("and.b32", [(0, ALL), (0xFF00, 0)], 0xFF00),
        ("or.b32", [(0, 0xFF), (0x0F, 0)], 0xF0),
        ("xor.b32", [(0, 0xFF), (0x0F, 0)], 0xFF),
        # A carry goes up from the lowest undefined bit as far as ones are known, no further than a known 0 lets it.
        ("add.u32", [(0, 0x10), (0, 0)], 0x10),
        ("add.u32", [(0xFFFFFF00, 0), (0, 0x100)], 0xFFFFFF00),
        ("add.u32", [(0x70, 0), (0, 0x10)], 0xF0),
        ("sub.u32", [(0, 0), (0, 0x100)], 0xFFFFFF00),
        ("mul.lo.s32", [(0, 0x10), (4, 0)], 0xFFFFFFC0),
        ("mul.lo.s32", [(0, ALL), (0, 0)], 0),
        # A byte that the selector does not choose is not in the result; an undefined selector leaves the others alone.
        ("prmt.b32", [(0, 0xFF00), (0, 0), (0x0020, 0)], 0),
        ("prmt.b32", [(0, 0xFF00), (0, 0), (0x0021, 0)], 0xFF),
        ("prmt.b32", [(0x1234, 0), (0, 0), (0, 0x0F0)], 0xFF00),
        ("min.u32", [(5, 0), (0x100, 0xF)], 0),
        ("max.u32", [(5, 0), (0x100, 0xF)], 0xF),
        ("popc.b32", [(0, 1)], 0x3F),
        # Elements by themselves.
        ("cvt.rn.f16x2.f32", [(0, 1), (0, 0)], 0xFFFF0000),
        ("cvt.rn.f16x2.f32", [(0, 0), (0, 1)], 0x0000FFFF),
        ("add.rn.f16x2", [(0, 0x10000), (0, 0)], 0xFFFF0000),
        ("cvt.rn.f16x2.e4m3x2", [(0, 0x80)], 0x0000FFFF),
        ("cvt.rn.satfinite.e2m1x2.f32", [(0, 0), (0, 2)], 0x0F),
        # An undefined predicate chooses between equal bits.
        ("selp.b32", [(0b1100, 0), (0b1010, 0), (0, 1)], 0b0110),
        ("slct.b32.s32", [(1, 0), (2, 0), (0, 0x7FFFFFFF)], 0),
        ("fma.rn.f32", [(0, 1), (0, 0), (0, 0)], ALL),
    ],
)  # fmt: skip
def test_single_cases(opcode: str, operands: list[tuple[int, int]], expected: int) -> None:
    assert undefined(opcode, *operands) == [expected]


def test_carries_go_from_word_to_word() -> None:
    """A sum of 64 bits in two words: what is undefined in the lower one reaches the upper one through the carry."""
    low, carry = undefined("add.cc.u32", (0xFFFFFFFF, 0), (0, 1))
    assert (low, carry) == (0xFFFFFFFF, 1)
    assert undefined("addc.u32", (0, 0), (0, 0), (0, 1)) == [1]
    assert undefined("addc.u32", (0xFF, 0), (0, 0), (0, 1)) == [0x1FF]
    # No carry can come of this.
    assert undefined("add.cc.u32", (0, 0xFF), (0, 0)) == [0xFF, 0]
