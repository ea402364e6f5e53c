"""Machine proofs that a mutant is the same kernel: held against what the mutant computes, and against wrong proofs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from refmoe import ptx as executor
from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.errors import RefmoeError
from refmoe.mutation import ptx
from refmoe.mutation.proofs import differences, program, values
from refmoe.mutation.proofs.program import EntryCode, KnownRegisters
from refmoe.mutation.site import Site, sites_of

KERNEL = """\
.version 9.0
.target sm_120a
.address_size 64
.visible .entry kernel(
\t.param .u64 .ptr .align 1 kernel_param_0,
\t.param .u64 .ptr .align 1 kernel_param_1,
\t.param .u32 kernel_param_2
)
.maxntid 64
{
\t.reg .pred \t%p<9>;
\t.reg .b16 \t%rs<5>;
\t.reg .b32 \t%r<40>;
\t.reg .b32 \t%f<9>;
\t.reg .b64 \t%rd<12>;

\tld.param.u64 \t%rd1, [kernel_param_0];
\tld.param.u64 \t%rd2, [kernel_param_1];
\tld.param.u32 \t%r1, [kernel_param_2];
\tmov.u32 \t%r2, %tid.x;
\tmul.wide.u32 \t%rd3, %r2, 4;
\tadd.s64 \t%rd4, %rd1, %rd3;
\tld.global.u32 \t%r3, [%rd4];
\tcvt.u16.u32 \t%rs1, %r3;
\tcvt.u32.u16 \t%r4, %rs1;
\tshl.b32 \t%r5, %r4, 16;
\tshr.u32 \t%r6, %r3, 16;
\tor.b32 \t%r7, %r5, %r6;
\tand.b32 \t%r8, %r3, 2147483647;
\tshr.u32 \t%r9, %r7, 4;
\tmax.u32 \t%r10, %r8, %r9;
\tshl.b32 \t%r11, %r3, 8;
\tand.b32 \t%r12, %r11, 65280;
\tadd.s32 \t%r13, %r10, %r12;
\tmov.b32 \t%f1, %r5;
\tmov.f32 \t%f2, 0f3F000000;
\tcopysign.f32 \t%f3, %f1, %f2;
\tmov.b32 \t%r14, %f3;
\tsetp.lt.s32 \t%p1, %r1, 1;
\t@%p1 bra \t$L__BB_2;
\tdiv.s32 \t%r15, %r2, %r1;
\tmul.wide.s32 \t%rd5, %r15, %r1;
\tcvt.u32.u64 \t%r16, %rd5;
\txor.b32 \t%r13, %r13, %r16;
$L__BB_2:
\tshfl.sync.bfly.b32\t%r17|%p2, %r13, 2, 31, -1;
\tadd.s32 \t%r18, %r13, %r17;
\tshfl.sync.bfly.b32\t%r19|%p3, %r18, 1, 31, -1;
\tadd.s32 \t%r20, %r18, %r19;
\tadd.s32 \t%r21, %r2, 64;
\tsetp.gt.u32 \t%p4, %r2, 63;
\t@%p4 bra \t$L__BB_3;
\tadd.s64 \t%rd6, %rd2, %rd3;
\t{ .reg .b16 tmp; mov.b32 {tmp, %rs2}, %r14; }
\tcvt.u32.u16 \t%r22, %rs2;
\txor.b32 \t%r23, %r22, %r7;
\tst.global.u32 \t[%rd6], %r23;
\tcvt.s32.u16 \t%r24, %rs1;
\tcvt.rn.f32.s32 \t%f4, %r24;
\tst.global.f32 \t[%rd6+256], %f4;
\tcvt.s32.s16 \t%r26, %rs1;
\tcvt.rn.f32.u32 \t%f5, %r26;
\tst.global.f32 \t[%rd6+768], %f5;
\tshfl.sync.bfly.b32\t%r27|%p6, %r3, 4, 31, -1;
\tst.global.u32 \t[%rd6+1024], %r27;
\tand.b32 \t%r25, %r2, 3;
\tsetp.ne.s32 \t%p5, %r25, 0;
\t@%p5 bra \t$L__BB_4;
\tst.global.u32 \t[%rd6+512], %r20;
\tbra.uni \t$L__BB_4;
$L__BB_3:
\tst.global.u32 \t[%rd2], %r21;
$L__BB_4:
\tret;
}
"""


def kernel_sites(text: str = KERNEL) -> list[Site]:
    return list(sites_of("ptx", "kernel", "kernel.sm_120a.kernel", text, ptx.edits(text)))


def words() -> np.ndarray[Any, Any]:
    """Words of 64 threads: small and large ones, with the highest bit and without, in every lane of four."""
    made = np.random.default_rng(7).integers(0, 1 << 32, 64, dtype=np.uint32)
    made[::5] &= 0x7FFF
    made[1::7] |= 0x8000_8000
    return made


def result(text: str, number: int) -> bytes:
    """What a kernel writes; the executor's error by name, if it finds one."""
    given, out = words(), np.zeros(320, np.uint32)
    try:
        module = executor.Module.parse(text, name="kernel.ptx", strict=True)
        executor.launch(module, "kernel", (1, 1, 1), (64, 1, 1), [given, out, number], step_budget=1000)
    except RefmoeError as error:
        return type(error).__name__.encode()
    return out.tobytes()


def false_proofs() -> Iterator[str]:
    """Mutants that are said to be the same kernel, and are not."""
    expected = {number: result(KERNEL, number) for number in (0, 1, 5)}
    for site in kernel_sites():
        if differences.proof(site, KERNEL) and any(
            result(site.applied(KERNEL), number) != held for number, held in expected.items()
        ):
            yield site.id


def proven() -> dict[tuple[int, str, str], str]:
    """What is proven of the kernel's mutants, by line and change."""
    found = {(site.line, site.before, site.after): differences.proof(site, KERNEL) for site in kernel_sites()}
    return {key: why for key, why in found.items() if why is not None}


def line(text: str) -> int:
    (found,) = [number for number, held in enumerate(KERNEL.splitlines(), 1) if text in held.replace("\t", " ")]
    return found


def test_no_mutant_that_is_proven_to_be_the_kernel_computes_anything_else() -> None:
    assert list(false_proofs()) == []


def test_values_that_are_never_negative_are_the_same_with_a_sign_and_without() -> None:
    found = proven()
    for opcode, after in (
        ("max.u32", "max.s32"), ("div.s32", "div.u32"),
        ("mul.wide.s32", "mul.wide.u32"), ("setp.lt.s32", "setp.lt.u32"),
    ):  # fmt: skip
        assert any((before, made) == (opcode, after) for _, before, made in found), opcode
    assert (line("cvt.u32.u16  %r4"), "cvt.u32.u16", "cvt.u32.s16") in found  # only its lower half is read
    assert (line("cvt.u32.u16  %r22"), "cvt.u32.u16", "cvt.u32.s16") not in found
    assert (line("shr.u32  %r6"), "shr.u32", "shr.s32") not in found


def test_bits_that_nobody_reads_may_differ_and_others_not() -> None:
    found = proven()
    assert (line("and.b32  %r12"), "65280", "65281") in found  # the lowest bit is 0
    assert (line("and.b32  %r12"), "65280", "65279") not in found
    assert (line("mov.f32  %f2"), "0f3F000000", "0fBF000000") in found  # a sign that is replaced
    assert (line("cvt.rn.f32.s32  %f4"), "cvt.rn.f32.s32", "cvt.rz.f32.s32") in found  # 16 bits are exact
    assert (line("cvt.rn.f32.u32  %f5"), "cvt.rn.f32.u32", "cvt.rz.f32.u32") not in found  # a negative word is large


def test_lanes_that_store_nothing_may_get_another_value() -> None:
    found = proven()
    for number in (line("%r17|%p2"), line("%r19|%p3")):
        assert "lane by lane" in found[number, "shfl.sync.bfly.b32", "shfl.sync.down.b32"]
    assert (line("%r19|%p3"), "1", "2") not in found
    assert (line("%r27|%p6"), "shfl.sync.bfly.b32", "shfl.sync.down.b32") not in found  # every lane stores it


def test_what_never_runs_may_be_anything_and_what_guards_it_not() -> None:
    found = proven()
    assert found[line("st.global.u32  [%rd2]"), "%r21", "%r20"] == "the instruction never runs"
    assert (line("@%p4 bra"), "@%p4", "@!%p4") not in found
    assert (line("setp.gt.u32  %p4"), "setp.gt.u32", "setp.le.u32") not in found
    assert (line("setp.gt.u32  %p4"), "63", "62") not in found
    assert (line("setp.gt.u32  %p4"), "63", "64") in found


def guard_that_is_always_true(self: KnownRegisters, each: ptx.Instruction) -> int:
    return values.TRUE


def shifted_by_one_more(name: str, value: values.KnownWord, amount: int, *, signed: bool) -> values.KnownWord:
    return SHIFTED(name, value, amount + 1, signed=signed)


def carried_without_a_sum(each: ptx.Instruction, masks: list[int], registers: KnownRegisters) -> int:
    return 0 if each.name == "xor" else CARRIED(each, masks, registers)


def narrow_thread_numbers(self: EntryCode) -> int:
    return 32


def lanes_that_all_store_nothing(mode: str, lane: int, step: int) -> int:
    return lane


def every_bit_is_read_by_nobody(name: str, masks: list[int], held: list[values.KnownWord | None], full: int) -> int:
    return 0


def anything_is_at_least_0(bits: int) -> values.KnownWord:
    return values.between(bits, 0, (1 << (bits - 1)) - 1)


SHIFTED, CARRIED = values.shifted, differences.carried


@pytest.mark.parametrize(
    ("place", "name", "wrong"),
    [
        (values, "shifted", shifted_by_one_more),
        (differences, "carried", carried_without_a_sum),
        (differences, "_source", lanes_that_all_store_nothing),
        (differences, "_through_bits", every_bit_is_read_by_nobody),
        (values, "anything", anything_is_at_least_0),
        (EntryCode, "threads", property(narrow_thread_numbers)),
    ],
)
def test_a_rule_that_is_wrong_proves_what_is_wrong(
    place: Any, name: str, wrong: Callable[..., Any] | property, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, wrong)
    assert next(false_proofs(), None) is not None


def test_text_that_is_not_understood_proves_nothing() -> None:
    site = next(each for each in kernel_sites() if (each.before, each.after) == ("max.u32", "max.s32"))
    assert differences.proof(site, KERNEL)
    for before, after in (
        (".maxntid 64\n", ""),  # how many threads there are
        ("\tret;\n", "\t.branchtargets $L__BB_2;\n\tret;\n"),
        ("\tret;\n", "\tcall.uni \tother;\n\tret;\n"),
        ("\tret;\n", "$L__BB_2:\n\tret;\n"),
    ):
        text = KERNEL.replace(before, after)
        moved = next(each for each in kernel_sites(text) if (each.before, each.after) == ("max.u32", "max.s32"))
        assert differences.proof(moved, text) is None, after


def test_every_register_of_a_declaration_is_known() -> None:
    # A register that is not known would hide what an instruction reads.
    text = KERNEL.replace("\t.reg .b32 \t%f<9>;\n", "\t.reg .b32 \t%f<9>;\n\t.reg .b8 one, two;\n")
    assert EntryCode.of(text).widths["two"] == 8
    assert EntryCode.of(text).registers("{one, two}") == ["one", "two"]


@pytest.mark.parametrize(
    ("block", "numbers", "expected"),
    [
        (64, (0, 2**31 - 1), True), (33, (1,), False), (32, (-1,), False), (32, (2**31,), False),
        (32, (1.0,), False), (32, (np.int32(1),), False), (32, (np.float32(1),), False), (32, (np.uint64(1),), False),
    ],
)  # fmt: skip
def test_launches_are_held_against_what_a_proof_takes_for_granted(
    block: int, numbers: tuple[Any, ...], expected: bool
) -> None:
    assert program.sound(LaunchPlan(Entry("kernel", "kernel"), 1, block, (None, *numbers))) is expected


SMALL = """\
.version 9.0
.target sm_120a
.address_size 64
.visible .entry kernel(
\t.param .u64 .ptr .align 1 kernel_param_0,
\t.param .u64 .ptr .align 1 kernel_param_1,
\t.param .u32 kernel_param_2
)
.maxntid 64
{
\t.reg .pred \t%p<9>;
\t.reg .b16 \t%rs<9>;
\t.reg .b32 \t%r<20>;
\t.reg .b64 \t%rd<9>;

\tld.param.u64 \t%rd1, [kernel_param_0];
\tld.param.u64 \t%rd2, [kernel_param_1];
BODY
\tret;
}
"""


def small(*body: str) -> str:
    """A kernel that loads the pointers of its two buffers, %rd1 and %rd2, and then runs some lines."""
    return SMALL.replace("BODY", "\n".join(f"\t{each};" for each in body))


def is_proven(text: str, before: str, after: str) -> bool:
    """Whether the mutant that has `after` in the place of `before`, which is in the text once, is proven."""
    assert text.count(before) == 1
    start = text.index(before)
    return differences.proof(Site("ptx", "kernel", "kernel", "change", 1, 1, before, after, start), text) is not None


def differs(text: str, before: str, after: str) -> bool:
    """Whether the executor sees a difference of such a mutant."""
    return any(result(text, number) != result(text.replace(before, after), number) for number in (0, 5))


@pytest.mark.parametrize("opcode", ["neg.f32", "abs.f32", "neg.ftz.f32", "abs.ftz.f32"])
def test_a_nan_that_is_made_canonical_shows_bits_of_its_operand(opcode: str) -> None:
    text = small(
        "mov.u32 %r7, %tid.x", "mul.wide.u32 %rd3, %r7, 4", "add.s64 %rd4, %rd1, %rd3", "add.s64 %rd5, %rd2, %rd3",
        "ld.global.u32 %r1, [%rd4]", "and.b32 %r2, %r1, 4194304", "or.b32 %r3, %r2, 0x7f800000",
        f"{opcode} %r4, %r3", "and.b32 %r5, %r4, 1", "st.global.u32 [%rd5], %r5",
    )  # fmt: skip
    assert differs(text, "ld.global.u32", "ld.global.u16")
    assert not is_proven(text, "ld.global.u32", "ld.global.u16")


def test_a_sign_that_abs_takes_away_is_not_seen_and_one_that_neg_turns_is() -> None:
    text = small(
        "ld.global.u32 %r1, [%rd1]", "and.b32 %r2, %r1, 0x80000000", "abs.f32 %r3, %r2", "st.global.u32 [%rd2], %r3"
    )
    assert is_proven(text, "ld.global.u32", "ld.global.u16")
    assert not is_proven(text.replace("abs.f32", "neg.f32"), "ld.global.u32", "ld.global.u16")
    assert not is_proven(text.replace("abs.f32", "abs.ftz.f32"), "ld.global.u32", "ld.global.u16")


def test_a_register_that_is_written_later_is_not_known_before() -> None:
    text = small(
        "mov.u32 %r7, 3", "mov.u32 %r9, 1", "add.s32 %r4, %r9, %r7", "st.global.u32 [%rd2], %r4", "mov.u32 %r8, 3"
    )
    assert differs(text, "%r9, %r7", "%r9, %r8")
    assert not is_proven(text, "%r9, %r7", "%r9, %r8")
    assert not is_proven(text.replace("[%rd2], %r4", "[%rd2], %r9"), "%r9, %r7", "%r9, %r8")  # nor may it be read
    compared = small("mov.u32 %r7, 3", "setp.lt.s32 %p1, %r7, 9", "@%p1 st.global.u32 [%rd2], %r7", "mov.u32 %r8, 3")
    assert not is_proven(compared, "%p1, %r7", "%p1, %r8")
    assert is_proven(compared, "%r7, 9", "%r7, 8")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32", False),
        ("ld.acquire.gpu.global.u32", "ld.acquire.cta.global.u32", False),
        ("ld.acquire.gpu.global.u32", "ld.acquire.gpu.global.u16", False),
        ("ld.relaxed.gpu.global.u32", "ld.global.u32", False),
        ("ld.volatile.global.u32", "ld.volatile.global.u16", False),
        ("ld.global.u32", "ld.shared.u32", False),
        ("ld.global.u16", "ld.global.u32", False),
        ("ld.global.u32", "ld.global.u16", True),
        ("ld.global.nc.u32", "ld.global.nc.u16", True),
    ],
)
def test_a_load_whose_value_nobody_reads_may_only_read_less(before: str, after: str, expected: bool) -> None:
    assert is_proven(small(f"{before} %r1, [%rd1]", "st.global.u32 [%rd2], 1"), before, after) is expected


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (".reg .b32 t<4>", "t0"), (".reg .b32 t", "t"), (".reg .b32 %tmp", "%tmp"), (".reg .b32 %SP", "%SP"),
        (".reg\t.b32 %Tmp_x<3>", "%Tmp_x2"),
    ],
)  # fmt: skip
def test_a_register_of_any_name_is_followed(declared: str, name: str) -> None:
    text = small(declared, f"mov.u32 {name}, 7", f"st.global.u32 [%rd2], {name}")
    assert differs(text, "7;", "8;")
    assert not is_proven(text, f"mov.u32 {name}, 7;", "")
    assert not is_proven(text, "7;", "8;")
    assert is_proven(text.replace(f"[%rd2], {name}", "[%rd2], 1"), "7;", "8;")


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("mov.u32 %r3, %tid.x", True),
        ("mov.u32 %r3, %q3", False),
        ("mov.u32 %r3, q", False),
        ("mov.u32 %r3, %R3", False),
        ("@q mov.u32 %r3, 1", False),
        (".reg .b32 %r1<3>", False),
        (".reg .v4 .b32 v;\n\tmov.v4.b32 v, v", False),
        ("bar.sync 0", True),
        ("bar.red.popc.u32 %r3, 0, %p1", False),
        ("barrier.cta.red.or.pred %p2, 0, %p1", False),
    ],
)
def test_what_may_be_a_register_that_is_not_seen_proves_nothing(line: str, known: bool) -> None:
    text = small("mov.u32 %r8, 7", "setp.eq.u32 %p1, 1, 1", line, "st.global.u32 [%rd2], 1")
    assert is_proven(text, "7;", "8;") is known


@pytest.mark.parametrize("line", ["add.cc.u32 %r3, %r8, -1", "addc.u32 %r3, %r8, 0", "mad.lo.cc.u32 %r3, %r8, 2, 3"])
def test_a_carry_that_no_register_holds_proves_nothing(line: str) -> None:
    text = small("mov.u32 %r8, 7", line, "addc.u32 %r4, 0, 0", "st.global.u32 [%rd2], %r4")
    assert not is_proven(text, "7;", "8;")
    only = small("mov.u32 %r8, 7", line, "st.global.u32 [%rd2], 1")
    assert not is_proven(only, "7;", "8;")


@pytest.mark.parametrize(
    ("declared", "loaded", "expected"),
    [
        (".u32 kernel_param_2", "ld.param.u32 %r1, [kernel_param_2]", True),
        (".u32 kernel_param_2", "ld.param.b32 %r1, [kernel_param_2]", True),
        (".f32 kernel_param_2", "ld.param.f32 %r1, [kernel_param_2]", False),
        (".f32 kernel_param_2", "ld.param.b32 %r1, [kernel_param_2]", False),
        (".u64 kernel_param_2", "ld.param.u32 %r1, [kernel_param_2]", False),
        (".align 4 .b8 kernel_param_2[8]", "ld.param.u32 %r1, [kernel_param_2+4]", False),
    ],
)
def test_only_a_parameter_that_is_an_integer_of_32_bits_is_at_least_0(
    declared: str, loaded: str, expected: bool
) -> None:
    text = small(loaded, "max.s32 %r2, %r1, 0", "st.global.u32 [%rd2], %r2")
    text = text.replace(".u32 kernel_param_2", declared)
    assert is_proven(text, "max.s32", "max.u32") is expected


@pytest.mark.parametrize(
    ("before", "after"),
    [("min.s32", "max.relu.s32"), ("shl.b32 %r3, %r8, 1", "cvt.pack.sat.s16.s32 %r3, %r8, %r8")],
)
def test_spellings_that_are_not_followed_prove_nothing(before: str, after: str) -> None:
    text = small("mov.u32 %r8, 7", "min.s32 %r2, %r8, 9", "shl.b32 %r3, %r8, 1", "st.global.u32 [%rd2], 1")
    assert is_proven(text, "7;", "8;")
    assert not is_proven(text.replace(before, after), "7;", "8;")


def test_an_octal_number_proves_nothing_and_ends_nothing() -> None:
    assert is_proven(small("mov.u32 %r8, 10", "st.global.u32 [%rd2], 1"), "10;", "9;")
    assert not is_proven(small("mov.u32 %r8, 010", "st.global.u32 [%rd2], 1"), "010;", "9;")


def test_all_32_bits_of_a_shift_s_amount_count() -> None:
    text = small(
        "mov.u32 %r1, 65537", "mov.u16 %rs1, 3", "shl.b16 %rs2, %rs1, %r1", "cvt.u32.u16 %r2, %rs2",
        "st.global.u32 [%rd2], %r2",
    )  # fmt: skip
    assert differs(text, "65537", "1")
    assert not is_proven(text, "65537", "1")
    found = KnownRegisters(EntryCode.of(text)).solve().of("%rs2", 16)
    assert found is not None
    assert found.constant in (None, 0)


@pytest.mark.parametrize(
    ("mode", "step", "expected"), [("down", 1, True), ("idx", 1, True), ("up", 1, False), ("idx", 33, False)]
)
def test_lanes_are_told_apart_only_where_an_exchange_takes_its_step_as_it_is(
    mode: str, step: int, expected: bool
) -> None:
    # Only lane 0 stores what the second exchange gives.
    text = small(
        "mov.u32 %r1, %tid.x", "mul.wide.u32 %rd3, %r1, 4", "add.s64 %rd4, %rd1, %rd3", "ld.global.u32 %r2, [%rd4]",
        "shfl.sync.bfly.b32 %r3|%p1, %r2, 2, 31, -1", f"shfl.sync.{mode}.b32 %r4|%p2, %r3, {step}, 31, -1",
        "setp.ne.s32 %p3, %r1, 0", "@%p3 bra END", "st.global.u32 [%rd2], %r4",
    ).replace("\tret;", "END:\n\tret;")  # fmt: skip
    assert is_proven(text, "shfl.sync.bfly", "shfl.sync.down") is expected


def test_up_with_the_clamp_of_the_others_is_not_taken_for_one_of_them() -> None:
    body = ("mov.u32 %r1, %tid.x", "shfl.sync.up.b32 %r2|%p1, %r1, 1, 31, -1", "st.global.u32 [%rd2], 1")
    assert not is_proven(small(*body), "shfl.sync.up", "shfl.sync.down")


@pytest.mark.parametrize("line", ["st.global.u32 [%rd3], 1", "multimem.red.relaxed.gpu.global.add.u32 [%rd3], 1"])
def test_an_address_that_stands_first_is_read(line: str) -> None:
    assert not is_proven(small("add.s64 %rd3, %rd2, 4", line), "4;", "8;")
