"""What the solver takes an instruction for, held against the executor; what it decides of mutants, and near misses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.mutation.proofs import bounds
from refmoe.mutation.proofs.bounds import HostBounds
from refmoe.mutation.proofs.equality import same_kernel
from refmoe.mutation.proofs.solver import meaning
from tests.mutation.test_equality import bodies
from tests.mutation.test_proofs import result, small, words

z3: Any = pytest.importorskip("z3")

#: Of 32 bits, and of what is made of two of them.
OPCODES = [
    *(f"{name}.b32" for name in ("and", "or", "xor")),
    *(f"{name}.{kind}32" for name in ("min", "max", "shr", "mul.lo") for kind in "us"),
    *("shl.b32", "mul.wide.u32", "mul.wide.s32", "mul.wide.u16", "mul.wide.s16"),
]  # fmt: skip


def evaluated(opcode: str, given: list[int], widths: list[int], bits: int) -> int:
    parts = opcode.replace(".b", ".u").split(".")
    made = meaning(".".join(parts), widths, bits, [None] * len(given))
    assert made is not None
    found = z3.simplify(made(*(z3.BitVecVal(each, width) for each, width in zip(given, widths, strict=True))))
    return int(z3.is_true(found)) if bits == 1 else int(found.as_long())


@pytest.mark.parametrize("opcode", OPCODES)
def test_an_instruction_means_what_the_executor_computes(opcode: str) -> None:
    wide, narrow = "wide" in opcode, opcode.endswith("16")
    lines = [
        "mov.u32 %r7, %tid.x", "mul.wide.u32 %rd3, %r7, 4", "add.s64 %rd4, %rd1, %rd3", "add.s64 %rd5, %rd2, %rd3",
        "ld.global.u32 %r1, [%rd4]", "xor.b32 %r2, %r7, 45",
    ]  # fmt: skip
    if narrow:
        lines += ["cvt.u16.u32 %rs1, %r1", "cvt.u16.u32 %rs2, %r2", f"{opcode} %r3, %rs1, %rs2"]
    elif wide:
        lines += [f"{opcode} %rd6, %r1, %r2", "shr.u64 %rd7, %rd6, 7", "cvt.u32.u64 %r3, %rd7"]
    else:
        lines += [f"{opcode} %r3, %r1, %r2"]
    made = np.frombuffer(result(small(*lines, "st.global.u32 [%rd5], %r3"), 5), np.uint32)
    width = 16 if narrow else 32
    for lane, word in enumerate(map(int, words()[:64])):
        given = [word & ((1 << width) - 1), lane ^ 45]
        bits = 64 if wide and not narrow else 32
        found = evaluated(opcode, given, [width, width], bits)
        assert made[lane] == (found >> 7 & 0xFFFFFFFF if wide and not narrow else found), (opcode, given)


@pytest.mark.parametrize("target", ["u64", "s64", "u32", "s32", "u16", "s16", "u8", "s8"])
@pytest.mark.parametrize("source", ["u32", "s32", "u16", "s16", "u8", "s8"])
def test_a_conversion_means_what_the_executor_computes(target: str, source: str) -> None:
    width = int(target[1:])
    end = ("cvt.{}.{} %rd6, %r1", "shr.u64 %rd7, %rd6, 20", "cvt.u32.u64 %r3, %rd7")
    lines = end if width == 64 else ("cvt.{}.{} %r3, %r1",)
    text = bodies("mov.u32 %r3, %r1", "; ".join(lines).format(target, source))[1]
    made = np.frombuffer(result(text, 5), np.uint32)
    for lane, word in enumerate(map(int, words()[:64])):
        found = evaluated(f"cvt.{target}.{source}", [word], [32], max(width, 32))
        assert made[lane] == (found >> 20 & 0xFFFFFFFF if width == 64 else found), hex(word)


@pytest.mark.parametrize("kind", ["u32", "s32"])
@pytest.mark.parametrize("relation", ["eq", "lt"])
def test_a_comparison_means_what_the_executor_computes(relation: str, kind: str) -> None:
    body = f"xor.b32 %r2, %r7, 45; setp.{relation}.{kind} %p1, %r1, %r2; selp.b32 %r3, 1, 0, %p1"
    made = np.frombuffer(result(bodies("mov.u32 %r3, %r1", body)[1], 5), np.uint32)
    for lane, word in enumerate(map(int, words()[:64])):
        assert made[lane] == evaluated(f"setp.{relation}.{kind}", [word, lane ^ 45], [32, 32], 1)


def test_what_is_not_known_has_no_meaning() -> None:
    for opcode, widths, bits in (
        ("add.rn.f32", [32, 32], 32), ("min.u32", [64, 32], 32), ("shl.u32", [32, 64], 32), ("div.u32", [32, 32], 32),
        ("div.s32", [32, 32], 32), ("cvt.sat.u32.s32", [32], 32), ("cvt.u64.u32", [32], 32), ("cvt.u32.u64", [32], 32),
        ("setp.ltu.f32", [32, 32], 1), ("mul.hi.u32", [32, 32], 32), ("bfe.u32", [32, 32, 32], 32),
    ):  # fmt: skip
        assert meaning(opcode, widths, bits, [None] * len(widths)) is None, opcode


SAME = [
    ("max.u32 %r2, %r7, 1; sub.s32 %r3, %r2, 7",
     "setp.eq.s32 %p1, %r7, 0; sub.s32 %r2, %r7, 7; selp.b32 %r3, -6, %r2, %p1"),
    ("mul.rn.f32 %r2, %r1, %r1; min.u32 %r3, %r2, %r1", "mul.rn.f32 %r2, %r1, %r1; setp.lt.u32 %p1, %r2, %r1; "
     "selp.b32 %r3, %r2, %r1, %p1"),
    ("and.b32 %r2, %r1, 31; shr.u32 %r3, %r7, 3; and.b32 %r3, %r3, 4", "and.b32 %r3, %r7, 32; shr.u32 %r3, %r3, 3"),
    ("mul.wide.u32 %rd6, %r1, %r7; cvt.u32.u64 %r3, %rd6", "mul.lo.s32 %r3, %r7, %r1"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_integers_written_in_another_way_are_the_same(one: str, other: str) -> None:
    texts = bodies(one, other)
    assert result(texts[0], 5) == result(texts[1], 5)
    assert same_kernel(*texts) is not None
    assert same_kernel(*reversed(texts)) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SAME[0][0], SAME[0][1].replace("-6", "-7")),
        (SAME[0][0], SAME[0][1].replace("%r7, 0;", "%r7, 1;")),
        (SAME[1][0], SAME[1][1].replace("lt.u32", "lt.s32")),
        (SAME[1][0], SAME[1][1].replace("mul.rn.f32", "mul.rz.f32")),
        (SAME[2][0], SAME[2][1].replace("32;", "48;", 1)),
        (SAME[3][0], SAME[3][1].replace("mul.lo.s32 %r3, %r7, %r1", "mul.hi.u32 %r3, %r7, %r1")),
        ("shr.u32 %r3, %r1, 1", "shr.s32 %r3, %r1, 1"),
        ("max.u32 %r3, %r1, 7", "max.s32 %r3, %r1, 7"),
        ("mul.wide.u32 %rd6, %r1, 4; cvt.u32.u64 %r3, %rd6; shr.u64 %rd6, %rd6, 32; cvt.u32.u64 %r2, %rd6; "
         "xor.b32 %r3, %r3, %r2",
         "mul.wide.s32 %rd6, %r1, 4; cvt.u32.u64 %r3, %rd6; shr.u64 %rd6, %rd6, 32; cvt.u32.u64 %r2, %rd6; "
         "xor.b32 %r3, %r3, %r2"),
    ],
)  # fmt: skip
def test_integers_that_differ_for_some_words_are_not(one: str, other: str) -> None:
    texts = bodies(one, other)
    assert same_kernel(*texts) is None
    assert same_kernel(*reversed(texts)) is None


def test_what_is_the_same_on_one_path_is_not_on_another() -> None:
    """Where a branch leads there, the number is positive."""
    head = ("ld.global.u32 %r1, [%rd1]", "setp.lt.s32 %p1, %r1, {}", "@%p1 bra END", "bar.sync 0")

    def text(least: str, kind: str) -> str:
        lines = [each.format(least) for each in head]
        made = small(*lines, f"shr.{kind}32 %r2, %r1, 1", "st.global.u32 [%rd2], %r2")
        return made.replace("\tret;", "END:\n\tret;")

    assert same_kernel(text("1", "u"), text("1", "s")) is not None
    assert same_kernel(text("-5", "u"), text("-5", "s")) is None


def loop(
    kind: str, *, first: str = "0", step: str = "128", flag: str = "1", counts: str = "ge", bound: str = "%r6"
) -> str:
    """A kernel that stores half of a counter as long as a flag is 0; the flag is set where the next step is too far."""
    text = small(
        "ld.param.u32 %r6, [kernel_param_2]", "mov.u16 %rs1, 0", f"mov.u32 %r1, {first}", "mov.u32 %r4, 0", "AGAIN:",
        "setp.ne.u16 %p1, %rs1, 0", "@%p1 bra BEHIND", "bar.sync 0",
        f"shr.{kind}32 %r2, %r1, 31", "add.s32 %r2, %r1, %r2",
        "st.global.u32 [%rd2], %r2", f"add.s32 %r1, %r1, {step}", f"setp.{counts}.s32 %p2, %r1, {bound}",
        "@!%p2 bra BEHIND", "bar.sync 0", f"mov.u16 %rs1, {flag}", "BEHIND:", "add.s32 %r4, %r4, 1",
        "setp.lt.u32 %p3, %r4, 1000", "@%p3 bra AGAIN",
    )  # fmt: skip
    return text.replace("AGAIN:;", "AGAIN:").replace("BEHIND:;", "BEHIND:")


def test_a_counter_is_not_negative_as_long_as_a_flag_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BOUNDS", {"kernel": HostBounds({2: 1 << 20})})
    assert result(loop("u"), 300) == result(loop("s"), 300)
    assert same_kernel(loop("u"), loop("s")) is not None
    for change in ({"first": "-1"}, {"step": "-128"}, {"flag": "0"}, {"counts": "lt"}, {"counts": "eq"}):
        proven = same_kernel(loop("u", **change), loop("s", **change)) is not None
        assert not proven, change
    monkeypatch.setattr(bounds, "BOUNDS", {})
    assert same_kernel(loop("u"), loop("s")) is None  # the last step may leave 32 bits
