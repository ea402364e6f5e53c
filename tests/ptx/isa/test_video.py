"""Video instructions against the manual's pseudo-code, one lane at a time in integers of Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.ptx_kernel import line_of, run
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx import isa
from refmoe.ptx.isa import Selection, resolve_video

EDGES = (0, 1, 2, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF)
TYPES = ("u32", "s32")
PARTS = ("", "b0", "b3", "h0", "h1")
random = np.random.default_rng(7)
A = np.concatenate([np.repeat(np.uint32(EDGES), len(EDGES)), random.integers(0, 1 << 32, 256, dtype=np.uint32)])
B = np.concatenate([np.tile(np.uint32(EDGES), len(EDGES)), random.integers(0, 1 << 32, 256, dtype=np.uint32)])
C = random.permutation(A)


def number(word: int, selector: str, signed: bool) -> int:
    """partSelectSignExtend."""
    bits = {"": 32, "b": 8, "h": 16}[selector[:1]]
    value = word >> (bits * int(selector[1:] or 0)) & ((1 << bits) - 1)
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def clamp(value: int, signed: bool, bits: int) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(value, low), high)


def s33(value: int) -> int:
    value &= (1 << 33) - 1
    return value - (1 << 33) if value >> 32 else value


def finish(tmp: int, c: int, signed: bool, sat: bool, second: str, dsel: str) -> int:
    """optSaturate, optSecondaryOp and optMerge."""
    bits = {"": 32, "b": 8, "h": 16}[dsel[:1]]
    if sat:
        tmp = clamp(tmp, signed, bits)
    tmp = s33(tmp)
    third = number(c, "", signed)
    tmp = {"": tmp, "add": tmp + third, "min": min(tmp, third), "max": max(tmp, third)}[second]
    if dsel:
        first = bits * int(dsel[1])
        mask = ((1 << bits) - 1) << first
        tmp = (tmp << first & mask) | (c & ~mask)
    return tmp & 0xFFFFFFFF


def compare(name: str, a: int, b: int) -> int:
    return int({"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[name])


def computed(opcode: str, selection: Selection, sources: int) -> list[int]:
    operation = resolve_video(opcode, selection, sources)
    given = (A, B, C)[:sources]
    results = operation.function(*given)
    assert results.dtype == np.uint32
    # Registers that all lanes share are scalars.
    assert operation.function(*(x[5] for x in given)) == results[5]
    return [int(value) for value in results]


VOP = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": min,
    "vmax": max,
}


@pytest.mark.parametrize("name", VOP)
@pytest.mark.parametrize("sat", thinned(["", ".sat"], 3))
def test_scalar_arithmetic(name: str, sat: str) -> None:
    for dtype, atype, btype in itertools.product(TYPES, TYPES, TYPES):
        for second, dsel in (("", ""), ("add", ""), ("min", ""), ("max", ""), ("", "b1"), ("", "h1")):
            asel, bsel = PARTS[(len(second) + ord(dtype[0])) % 5], PARTS[(ord(atype[0]) + len(dsel) * 3) % 5]
            opcode = f"{name}.{dtype}.{atype}.{btype}{sat}" + (f".{second}" if second else "")
            sources = 3 if second or dsel else 2
            found = computed(opcode, Selection(dsel, asel, bsel), sources)
            for a, b, c, result in zip(A.tolist(), B.tolist(), C.tolist(), found, strict=True):
                tmp = VOP[name](number(a, asel, atype == "s32"), number(b, bsel, btype == "s32"))
                assert result == finish(tmp, c, dtype == "s32", bool(sat), second, dsel), (opcode, a, b, c)


@pytest.mark.parametrize("name", ["vshl", "vshr"])
@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_shifts(name: str, mode: str) -> None:
    for dtype, atype, sat in itertools.product(TYPES, TYPES, ("", ".sat")):
        for second, dsel, asel, bsel in (("", "", "", ""), ("max", "", "h0", "b0"), ("", "h0", "", "b3")):
            opcode = f"{name}.{dtype}.{atype}.u32{sat}.{mode}" + (f".{second}" if second else "")
            found = computed(opcode, Selection(dsel, asel, bsel), 3 if second or dsel else 2)
            for a, b, c, result in zip(A.tolist(), B.tolist(), C.tolist(), found, strict=True):
                ta, tb = number(a, asel, atype == "s32"), number(b, bsel, False)
                tb = min(tb, 32) if mode == "clamp" else tb & 31
                tmp = ta << tb if name == "vshl" else ta >> tb
                assert result == finish(tmp, c, dtype == "s32", bool(sat), second, dsel), (opcode, a, b, c)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name: str) -> None:
    for atype, btype in itertools.product(TYPES, TYPES):
        for second, dsel, asel, bsel in (
            ("", "", "", ""),
            ("add", "", "b2", "h1"),
            ("min", "", "", "b1"),
            ("", "b3", "h0", ""),
        ):
            opcode = f"vset.{atype}.{btype}.{name}" + (f".{second}" if second else "")
            found = computed(opcode, Selection(dsel, asel, bsel), 3 if second or dsel else 2)
            for a, b, c, result in zip(A.tolist(), B.tolist(), C.tolist(), found, strict=True):
                tmp = compare(name, number(a, asel, atype == "s32"), number(b, bsel, btype == "s32"))
                assert result == finish(tmp, c, False, False, second, dsel), (opcode, a, b, c)


@pytest.mark.parametrize("sat", ["", ".sat"])
@pytest.mark.parametrize("scale", ["", ".shr7", ".shr15"])
def test_multiply_and_add(sat: str, scale: str) -> None:
    forms = [("", ()), (".po", ()), ("", (0,)), ("", (1,)), ("", (0, 1)), ("", (2,))]
    for (atype, btype), (po, minus) in itertools.product(itertools.product(TYPES, TYPES), forms):
        asel, bsel = ("", "") if atype == btype else ("h1", "b2")
        negated = (0 in minus, 1 in minus, 2 in minus)
        opcode = f"vmad.s32.{atype}.{btype}{po}{sat}{scale}"
        found = computed(opcode, Selection("", asel, bsel, negated), 3)
        signed = "s32" in (atype, btype) or negated[0] != negated[1] or negated[2]
        for a, b, c, result in zip(A.tolist(), B.tolist(), C.tolist(), found, strict=True):
            tmp, lsb = number(a, asel, atype == "s32") * number(b, bsel, btype == "s32"), 0
            if po:
                lsb = 1
            elif negated[0] != negated[1]:
                tmp, lsb = ~tmp, 1
            elif negated[2]:
                c, lsb = ~c & 0xFFFFFFFF, 1
            tmp += number(c, "", signed) + lsb
            tmp = tmp >> int(scale[4:] or 0) & (2**64 - 1)
            if signed and tmp >> 63:
                tmp -= 2**64
            if sat:
                tmp = clamp(tmp, signed, 32)
            assert result == tmp & 0xFFFFFFFF, (opcode, a, b, c)


def average(a: int, b: int) -> int:
    return (a + b + 1) >> 1 if a + b >= 0 else (a + b) >> 1


def simd(a: int, b: int, c: int, count: int, operate, signs: tuple[bool, bool, bool], form: str, selection) -> int:
    """The manual's loop over the parts of a SIMD instruction; `selection`: mask, parts of a and of b, lowest first."""
    bits = 32 // count
    mask, a_parts, b_parts = selection
    letter = "h" if count == 2 else "b"

    def part(index: int, signed: bool) -> int:
        return number(a if index < count else b, f"{letter}{index % count}", signed)

    result = c if form == ".add" else 0
    for i in range(count):
        t = operate(part(a_parts[i], signs[1]), part(b_parts[i], signs[2]))
        if form == ".sat":
            t = clamp(t, signs[0], bits)
        if form == ".add":
            result += t if i in mask else 0
        else:
            result |= ((t if i in mask else number(c, f"{letter}{i}", False)) & ((1 << bits) - 1)) << (i * bits)
    return result & 0xFFFFFFFF


SELECTIONS = {
    2: [
        (("", "", ""), ((0, 1), (0, 1), (2, 3))),
        (("h1", "h32", "h11"), ((1,), (2, 3), (1, 1))),
        (("h0", "h01", "h20"), ((0,), (1, 0), (0, 2))),
    ],
    4: [
        (("", "", ""), ((0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 7))),
        (("b310", "b7044", "b1234"), ((0, 1, 3), (4, 4, 0, 7), (4, 3, 2, 1))),
        (("b2", "b0000", "b7777"), ((2,), (0, 0, 0, 0), (7, 7, 7, 7))),
    ],
}


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", thinned([*VOP, "vavrg"], 3))
def test_simd_arithmetic(name: str, count: int) -> None:
    operate = {**VOP, "vavrg": average}[name]
    for dtype, atype, btype, form in itertools.product(TYPES, TYPES, TYPES, ("", ".sat", ".add")):
        for written, meant in SELECTIONS[count]:
            opcode = f"{name}{count}.{dtype}.{atype}.{btype}{form}"
            found = computed(opcode, Selection(*written), 3)
            signs = (dtype == "s32", atype == "s32", btype == "s32")
            for a, b, c, result in list(zip(A.tolist(), B.tolist(), C.tolist(), found, strict=True))[::3]:
                assert result == simd(a, b, c, count, operate, signs, form, meant), (opcode, written, a, b, c)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_simd_comparisons(name: str, count: int) -> None:
    for atype, btype, form in itertools.product(TYPES, TYPES, ("", ".add")):
        for written, meant in SELECTIONS[count]:
            opcode = f"vset{count}.{atype}.{btype}.{name}{form}"
            found = computed(opcode, Selection(*written), 3)
            signs = (False, atype == "s32", btype == "s32")
            for a, b, c, result in list(zip(A.tolist(), B.tolist(), C.tolist(), found, strict=True))[::3]:
                expected = simd(a, b, c, count, lambda x, y: compare(name, x, y), signs, form, meant)
                assert result == expected, (opcode, written, a, b, c)


@pytest.mark.parametrize(
    "opcode",
    [
        "vadd.u32.u32", "vadd.u16.u32.u32", "vadd.u32.u32.u32.clamp", "vshl.u32.u32.u32", "vshl.u32.u32.s32.clamp",
        "vadd2.u32.u32.u32.min", "vadd4.u32.u32.u32.sat.add", "vavrg.u32.u32.u32", "vset.u32.u32",
        "vset2.u32.u32.u32.eq", "vmad.u32.u32.u32.shr8", "vmad.u32.u32.u32.sat.po", "vadd3.u32.u32.u32",
    ],
)  # fmt: skip
def test_spellings_that_do_not_exist(opcode: str) -> None:
    with pytest.raises(isa.NoSuchInstruction):
        resolve_video(opcode, Selection(), 3)


@pytest.mark.parametrize(
    ("opcode", "selection", "sources"),
    [
        ("vadd.u32.u32.u32", Selection(), 3),
        ("vadd.u32.u32.u32.add", Selection("b1"), 3),
        ("vadd.u32.u32.u32", Selection("b4"), 3),
        ("vadd.u32.u32.u32", Selection("", "h10"), 2),
        ("vadd.u32.u32.u32", Selection(negated=(True, False, False)), 2),
        ("vadd2.u32.u32.u32", Selection(), 2),
        ("vadd2.u32.u32.u32", Selection("h01"), 3),
        ("vadd2.u32.u32.u32", Selection("b10"), 3),
        ("vadd2.u32.u32.u32", Selection("", "h4"), 3),
        ("vadd4.u32.u32.u32", Selection("", "b8765"), 3),
        ("vmad.u32.u32.u32.po", Selection(negated=(False, False, True)), 3),
        ("vmad.u32.u32.u32", Selection(negated=(True, False, True)), 3),
        ("vmad.u32.u32.u32", Selection("b0"), 3),
    ],
)
def test_operands_that_do_not_fit(opcode: str, selection: Selection, sources: int) -> None:
    with pytest.raises(ValueError, match=r"part|source|operand|mask"):
        resolve_video(opcode, selection, sources)


def test_parts_and_signs_in_a_kernel() -> None:
    body = """
        mul.lo.u32 %r3, %r1, 0x01030507;
        not.b32 %r4, %r3;
        vadd.s32.s32.u32.sat %r5, %r3.b1, %r4.h1;
        vsub.u32.u32.u32 %r6.h1, %r3.h0, %r4.b3, %r5;
        vmad.s32.u32.s32.shr7 %r7, -%r3.h0, %r4.h1, %r6;
        vmad.u32.u32.u32.sat %r8, %r3, %r4, -%r7;
        vabsdiff4.u32.u32.u32.add %r9, %r3, %r4, %r8;
        vadd2.s32.s32.s32.sat %r10.h1, %r3.h02, %r9.h31, %r8;
        setp.lt.u32 %p1, %r1, 16;
        @%p1 vset4.u32.s32.gt %r10.b20, %r3, %r4.b0123, 0;
        st.global.u32 [%d2], %r10;
        ret;
    """
    out = np.zeros(32, np.uint32)
    run(body, out)
    for t in range(32):
        r3 = t * 0x01030507 & 0xFFFFFFFF
        r4 = ~r3 & 0xFFFFFFFF
        r5 = finish(number(r3, "b1", True) + number(r4, "h1", False), 0, True, True, "", "")
        r6 = finish(number(r3, "h0", False) - number(r4, "b3", False), r5, False, False, "", "h1")
        r7 = ((~(number(r3, "h0", False) * number(r4, "h1", True)) + number(r6, "", True) + 1) >> 7) & 0xFFFFFFFF
        r8 = clamp(r3 * r4 + number(~r7 & 0xFFFFFFFF, "", True) + 1, True, 32) & 0xFFFFFFFF
        r9 = simd(r3, r4, r8, 4, VOP["vabsdiff"], (False,) * 3, ".add", SELECTIONS[4][0][1])
        r10 = simd(r3, r9, r8, 2, VOP["vadd"], (True,) * 3, ".sat", ((1,), (2, 0), (1, 3)))
        if t < 16:
            r10 = simd(
                r3, r4, 0, 4, lambda x, y: int(x > y), (False, False, True), "", ((0, 2), (0, 1, 2, 3), (3, 2, 1, 0))
            )
        assert out[t] == r10, t


def test_a_part_that_does_not_fit_is_an_error_of_the_lane_that_reaches_it() -> None:
    run("ret; vadd.u32.u32.u32 %r3, %r1.h10, %r1; ret;", np.zeros(1, np.uint32))
    body = "vadd.u32.u32.u32 %r3, %r1.h10, %r1; ret;"
    with pytest.raises(ptx.UnknownOpcode, match=r"no part \.h10 of 32 bits") as caught:
        run(body, np.zeros(1, np.uint32))
    assert caught.value.line == line_of(body, "vadd")


def test_where_an_h200_departs_from_the_manual_nothing_is_claimed() -> None:
    # Found on an H200: (opcode, selection, a, b, c, its result).
    for opcode, selection, a, b, c, silicon in (
        ("vadd.u32.u32.u32", Selection("h1", "b0", "b0"), 0, 1, 0x20, 0x20),
        ("vadd.u32.u32.u32.min", Selection("", "h0"), 0, 0x80000000, 0xE9A1AC70, 0xE9A1AC70),
        ("vadd.u32.s32.u32.sat", Selection("", "b3"), 0x7FFFFFFF, 0xFFFFFFFF, None, 0x7E),
        ("vshl.u32.u32.u32.sat.clamp", Selection(), 2, 0x20, None, 0),
        ("vmad.u32.u32.u32.shr7", Selection(), 0, 0, 0xA9000618, 0xFF52000C),
    ):
        given = [np.uint32([x]) for x in (a, b, c) if x is not None]
        operation = resolve_video(opcode, selection, len(given))
        assert operation.exact_when is not None
        assert not operation.exact_when(*given)[0]
        assert operation.function(*given)[0] != silicon
    for opcode in (
        "vabsdiff4.u32.u32.u32.add",
        "vset.u32.s32.lt.add",
        "vmad.s32.s32.s32.sat.shr15",
        "vadd.u32.u32.u32.add",
    ):
        assert resolve_video(opcode, Selection(), 3).exact_when is None
    sat = resolve_video("vadd.u32.u32.u32.sat", Selection(), 2).exact_when
    assert sat is not None
    assert sat(np.uint32([1, 1]), np.uint32([5, 0xFFFFFFFF])).tolist() == [True, False]
    assert (
        run("vadd.u32.u32.u32.min %r3, %r1, %r1, 5; ret;", np.zeros(32, np.uint32)).approximate[0][0]
        == "vadd.u32.u32.u32.min"
    )
