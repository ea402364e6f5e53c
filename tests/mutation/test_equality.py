"""Two texts of an entry that are proven to be the same kernel: held against what they compute, and near misses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from refmoe.mutation.proofs import equality, trials
from refmoe.mutation.proofs.equality import same_kernel
from refmoe.mutation.proofs.flow import Paths, SideBySide
from refmoe.mutation.proofs.nodes import Nodes
from refmoe.mutation.proofs.program import EntryCode
from tests.mutation.test_proofs import KERNEL, kernel_sites, result, small


@pytest.fixture(autouse=True)
def few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of 2^24 values at most: of more each takes seconds."""
    monkeypatch.setattr(trials, "MOST_BITS", 24)


def false_proofs() -> Iterator[str]:
    """Mutants that are said to be the same kernel, and are not."""
    expected = {number: result(KERNEL, number) for number in (0, 1, 5)}
    for site in kernel_sites():
        text = site.applied(KERNEL)
        if same_kernel(KERNEL, text) and any(result(text, number) != held for number, held in expected.items()):
            yield site.id


def test_no_mutant_that_is_proven_to_be_the_kernel_computes_anything_else() -> None:
    assert list(false_proofs()) == []
    assert sum(same_kernel(KERNEL, site.applied(KERNEL)) is not None for site in kernel_sites()) > 5


def renamed(text: str) -> str:
    """The same entry with other registers and labels."""
    text = re.sub(r"%r(\d+)\b", lambda match: f"%r{39 - int(match[1])}", text)
    return text.replace("$L__BB_3", "$L__BB_9")


def test_registers_and_labels_may_have_other_names() -> None:
    assert same_kernel(KERNEL, renamed(KERNEL)) == "each act has the same operands"
    assert same_kernel(KERNEL, renamed(KERNEL).replace("65280", "65281")) is not None
    assert same_kernel(KERNEL, renamed(KERNEL).replace("65280", "65279")) is None


def bodies(before: str, after: str) -> tuple[str, str]:
    """A kernel that stores %r3 of %r1, which it loads, and %r7, the thread; and another one."""
    head = (
        "mov.u32 %r7, %tid.x", "mul.wide.u32 %rd3, %r7, 4", "add.s64 %rd4, %rd1, %rd3", "add.s64 %rd5, %rd2, %rd3",
        "ld.global.u32 %r1, [%rd4]",
    )  # fmt: skip
    one, other = (
        small(*head, *(each.strip() for each in body.split(";")), "st.global.u32 [%rd5], %r3")
        for body in (before, after)
    )
    return one, other


def test_a_number_that_python_reads_in_another_way_is_no_proof() -> None:
    assert same_kernel(*bodies("add.s32 %r3, %r1, 10", "add.u32 %r3, %r1, 10")) is not None
    assert same_kernel(*bodies("add.s32 %r3, %r1, 010", "add.u32 %r3, %r1, 010")) is None


SAME = [
    ("add.s32 %r2, %r1, 3; shl.b32 %r3, %r2, 1", "shl.b32 %r2, %r1, 1; add.s32 %r3, %r2, 6"),
    ("sub.s32 %r2, %r1, %r7; add.s32 %r3, %r2, %r7", "mov.u32 %r3, %r1"),
    ("mad.lo.s32 %r3, %r1, 5, %r7", "mul.lo.u32 %r2, %r1, 5; add.u32 %r3, %r7, %r2"),
    ("min.s32 %r3, %r1, %r7", "min.s32 %r3, %r7, %r1"),
    ("mul.rn.f32 %r3, %r1, %r7", "mul.rn.f32 %r3, %r7, %r1"),
    ("setp.gt.s32 %p1, %r1, %r7; selp.b32 %r3, %r1, 0, %p1", "setp.le.s32 %p2, %r1, %r7; selp.b32 %r3, 0, %r1, %p2"),
    ("setp.lt.s32 %p1, %r1, 9; @%p1 add.s32 %r7, %r7, 1; mov.u32 %r3, %r7",
     "setp.lt.s32 %p1, %r1, 9; add.s32 %r8, %r7, 1; selp.b32 %r3, %r8, %r7, %p1"),
    ("xor.b32 %r3, %r1, 0", "mov.u32 %r3, %r1"),
    ("and.b32 %r2, %r1, 65535; cvt.rn.f32.u32 %r3, %r2", "and.b32 %r2, %r1, 65535; cvt.rz.f32.u32 %r3, %r2"),
    ("shl.b32 %r2, %r1, 16; add.rn.f32 %r3, %r2, 0f00000000", "shl.b32 %r2, %r1, 16; add.rz.f32 %r3, %r2, 0f00000000"),
    ("setp.eq.s32 %p1, %r7, 3; mov.u32 %r2, 1; @%p1 mov.u32 %r2, %r1; mul.lo.s32 %r4, %r2, %r7; "
     "selp.b32 %r3, %r4, 0, %p1",
     "setp.eq.s32 %p1, %r7, 3; mov.u32 %r2, 5; @%p1 mov.u32 %r2, %r1; mul.lo.s32 %r4, %r2, %r7; "
     "selp.b32 %r3, %r4, 0, %p1"),
]  # fmt: skip

OTHER = [
    ("add.s32 %r2, %r1, 3; shl.b32 %r3, %r2, 1", "shl.b32 %r2, %r1, 1; add.s32 %r3, %r2, 3"),
    ("sub.s32 %r2, %r1, %r7; add.s32 %r3, %r2, %r7", "sub.s32 %r2, %r7, %r1; add.s32 %r3, %r2, %r7"),
    ("sub.s32 %r3, %r1, %r7", "sub.s32 %r3, %r7, %r1"),
    ("min.s32 %r3, %r1, %r7", "min.u32 %r3, %r7, %r1"),
    ("shr.s32 %r3, %r1, 1", "shr.u32 %r3, %r1, 1"),
    ("shr.u32 %r2, %r1, 1; shl.b32 %r3, %r2, 1", "mov.u32 %r3, %r1"),
    ("setp.gt.s32 %p1, %r7, 5; selp.b32 %r3, %r1, 0, %p1", "setp.ge.s32 %p2, %r7, 5; selp.b32 %r3, %r1, 0, %p2"),
    ("setp.gt.s32 %p1, %r1, %r7; selp.b32 %r3, %r1, 0, %p1", "setp.gt.u32 %p2, %r1, %r7; selp.b32 %r3, %r1, 0, %p2"),
    ("setp.lt.s32 %p1, %r1, 9; @%p1 add.s32 %r7, %r7, 1; mov.u32 %r3, %r7",
     "setp.lt.s32 %p1, %r1, 9; @!%p1 add.s32 %r7, %r7, 1; mov.u32 %r3, %r7"),
    ("and.b32 %r2, %r1, 33554431; cvt.rn.f32.u32 %r3, %r2", "and.b32 %r2, %r1, 33554431; cvt.rz.f32.u32 %r3, %r2"),
    ("shl.b32 %r2, %r1, 16; add.rn.f32 %r3, %r2, 0f3F800001", "shl.b32 %r2, %r1, 16; add.rz.f32 %r3, %r2, 0f3F800001"),
    ("setp.eq.s32 %p1, %r7, 3; mov.u32 %r2, 1; @%p1 mov.u32 %r2, %r1; mul.lo.s32 %r4, %r2, %r7; "
     "selp.b32 %r3, 0, %r4, %p1",
     "setp.eq.s32 %p1, %r7, 3; mov.u32 %r2, 5; @%p1 mov.u32 %r2, %r1; mul.lo.s32 %r4, %r2, %r7; "
     "selp.b32 %r3, 0, %r4, %p1"),
    ("mov.u32 %r3, %r1; st.global.u32 [%rd5+256], %r7", "mov.u32 %r3, %r1"),
    ("mov.u32 %r3, %r1; st.global.u32 [%rd5+256], %r7", "mov.u32 %r3, %r1; st.global.u32 [%rd5+260], %r7"),
    ("st.global.u32 [%rd5+256], %r7; ld.global.u32 %r3, [%rd5+256]",
     "ld.global.u32 %r3, [%rd5+256]; st.global.u32 [%rd5+256], %r7"),
    ("shfl.sync.bfly.b32 %r3|%p1, %r1, 1, 31, -1", "shfl.sync.bfly.b32 %r3|%p1, %r1, 2, 31, -1"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), SAME)
def test_what_is_the_same_is_proven_and_computes_the_same(before: str, after: str) -> None:
    one, other = bodies(before, after)
    assert result(one, 5) == result(other, 5)
    assert same_kernel(one, other) is not None
    assert same_kernel(other, one) is not None


@pytest.mark.parametrize(("before", "after"), OTHER)
def test_a_near_miss_is_not_proven_and_computes_something_else(before: str, after: str) -> None:
    one, other = bodies(before, after)
    assert result(one, 5) != result(other, 5)
    assert same_kernel(one, other) is None
    assert same_kernel(other, one) is None


NO_RULE = [
    # A carry is a result that no register shows.
    ("add.cc.u32 %r2, %r1, %r1; addc.u32 %r3, %r7, 0", "add.cc.u32 %r2, %r1, 1; addc.u32 %r3, %r7, 0"),
    ("mad.lo.cc.u32 %r2, %r1, %r1, %r1; addc.u32 %r3, %r7, 0", "mad.lo.cc.u32 %r2, %r1, 3, %r1; addc.u32 %r3, %r7, 0"),
    # What is added to a wide product has 64 bits.
    ("mad.wide.u32 %rd6, %r1, 1, -8; shr.u64 %rd7, %rd6, 32; cvt.u32.u64 %r3, %rd7",
     "mad.wide.u32 %rd6, %r1, 1, 4294967288; shr.u64 %rd7, %rd6, 32; cvt.u32.u64 %r3, %rd7"),
    # Two results of one comparison are two, also under a guard that is known to hold.
    ("setp.lt.s32 %p1, %r1, 9; selp.b32 %r2, %r1, %r7, %p1; setp.eq.s32 %p2|%p3, %r2, 7; selp.b32 %r4, 1, 2, %p2; "
     "mov.u32 %r3, 0; @%p1 mov.u32 %r3, %r4",
     "setp.lt.s32 %p1, %r1, 9; selp.b32 %r2, %r1, %r7, %p1; setp.eq.s32 %p2|%p3, %r2, 7; selp.b32 %r4, 1, 2, %p3; "
     "mov.u32 %r3, 0; @%p1 mov.u32 %r3, %r4"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), NO_RULE)
def test_hidden_and_second_results_and_wide_literals_prove_nothing(before: str, after: str) -> None:
    one, other = bodies(before, after)
    # Carries are not followed at all.
    assert (same_kernel(one, one) is not None) == (".cc" not in one)
    assert same_kernel(one, other) is None
    assert same_kernel(other, one) is None
    assert result(one, 5) != result(other, 5)


def test_numbers_are_not_compared_as_integers() -> None:
    nodes = Nodes()
    one, other = (nodes.of(("atom", name), 16) for name in "ab")
    for kind in ("bf16", "f16", "f32", "f64"):
        less = nodes.computed(f"setp.lt.{kind}", [one, other], 1)
        assert less != nodes.negated(nodes.computed(f"setp.ge.{kind}", [one, other], 1))
        assert less != nodes.computed("setp.lt.u16", [one, other], 1)
        # A NaN is not equal to itself.
        assert nodes.word(nodes.computed(f"setp.eq.{kind}", [one, one], 1)) is None


def test_halves_keep_their_type_and_large_numbers_their_order() -> None:
    nodes = Nodes()
    one, other = (nodes.of(("atom", name), 32) for name in "ab")
    for name in ("add", "min"):
        assert nodes.computed(f"{name}.s16x2", [one, other], 32) != nodes.computed(f"{name}.u16", [one, other], 32)
    nodes.unsigned = lambda node, bits: True
    assert nodes.computed("min.s16x2", [one, other], 32) != nodes.computed("min.u16", [one, other], 32)
    wide = [nodes.of(("atom", name), 64) for name in "cd"]
    assert nodes.computed("add.f64", wide, 64) != nodes.computed("add.f64", wide[::-1], 64)
    assert nodes.computed("add.s64", wide, 64) == nodes.computed("add.u64", wide[::-1], 64)


LOOP = """mov.u32 %r3, 0; mov.u32 %r4, 0; bra HEAD; HEAD: add.s32 %r3, %r3, %r1; add.s32 %r4, %r4, 1;
setp.lt.s32 %p1, %r4, 5; @%p1 bra HEAD"""


def looped(change: Callable[[str], str] = lambda body: body) -> str:
    text, _ = bodies(change(LOOP).replace("\n", " "), "mov.u32 %r3, 0")
    return re.sub(r"\tHEAD: ", "HEAD:\n\t", text)


def test_values_of_loops_are_followed() -> None:
    sound = looped()
    swapped = looped(lambda body: body.replace("%r3, %r3, %r1", "%r3, %r1, %r3"))
    later = looped(lambda body: body.replace("%r4, 5", "%r4, 6"))
    started = looped(lambda body: body.replace("mov.u32 %r3, 0", "mov.u32 %r3, 1"))
    assert result(sound, 0) == result(swapped, 0)
    assert result(sound, 0) not in (result(later, 0), result(started, 0))
    assert same_kernel(sound, swapped) is not None
    assert same_kernel(sound, later) is None
    assert same_kernel(sound, started) is None
    # A loop that has one round more for every second one is another path.
    assert same_kernel(sound, looped(lambda body: body.replace("@%p1 bra HEAD", "@!%p1 bra HEAD"))) is None


def test_hints_to_the_assembler_and_a_larger_block_are_nothing_that_is_computed() -> None:
    assert same_kernel(KERNEL, KERNEL.replace(".maxntid 64\n", ".maxntid 64\n.minnctapersm 3\n")) is not None
    assert same_kernel(KERNEL, KERNEL.replace(".maxntid 64", ".maxntid 65")) is not None
    assert same_kernel(KERNEL, KERNEL.replace(".maxntid 64", ".maxntid 63")) is None
    assert same_kernel(KERNEL, KERNEL.replace(".u32 kernel_param_2", ".u64 kernel_param_2")) is None
    shared = KERNEL.replace("\t.reg .pred", "\t.shared .align 4 .b8 buffer[64];\n\t.reg .pred")
    assert same_kernel(shared, shared.replace("[64]", "[60]")) is None


def test_a_launch_behind_may_begin_later_and_not_earlier() -> None:
    early = KERNEL.replace("\tmov.u32 \t%r2, %tid.x;", "\tgriddepcontrol.launch_dependents;\n\tmov.u32 \t%r2, %tid.x;")
    assert "begins later" in str(same_kernel(early, KERNEL))
    assert same_kernel(KERNEL, early) is None
    waits = early.replace("launch_dependents", "wait")
    assert same_kernel(waits, KERNEL) is None


def test_texts_that_are_not_understood_prove_nothing() -> None:
    assert same_kernel(KERNEL, KERNEL.replace("\tret;\n", "\tcall.uni \tother;\n\tret;\n")) is None
    assert same_kernel(KERNEL.replace(".reg .b16 \t%rs<5>", ".reg .b16 \t%rs<5>, one"), KERNEL) is not None


@pytest.mark.parametrize("bits", [8, 16, 20])
def test_every_value_of_a_cut_is_tried(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value among all is another, wherever it lies."""
    nodes = Nodes()
    some = nodes.of(("atom", "any"), 32)
    low = nodes.computed("and.b32", [some, nodes.integer((1 << bits) - 1, 32)], 32)
    for word in (0, 1, (1 << bits) - 1, 77):
        is_it = nodes.computed("setp.eq.s32", [low, nodes.integer(word, 32)], 1)
        other = nodes.selected(is_it, nodes.integer(5, 32), nodes.integer(6, 32), 32)
        never = nodes.integer(6, 32)
        monkeypatch.setattr(trials, "_OUTCOMES", {})
        assert not trials.always_equal(nodes, other, never)
    past = nodes.computed("setp.eq.s32", [low, nodes.integer(1 << bits, 32)], 1)
    never_true = nodes.selected(past, nodes.integer(5, 32), nodes.integer(6, 32), 32)
    # Both have to depend on what is tried.
    same = nodes.computed("or.b32", [nodes.computed("and.b32", [low, nodes.integer(0, 32)], 32), never], 32)
    assert trials.always_equal(nodes, never_true, nodes.computed("max.u32", [never, same], 32))


@pytest.mark.parametrize(
    ("opcode", "other", "proven"),
    [
        ("div.rn.f32", "div.rz.f32", True),
        ("div.rn.f32", "div.full.f32", False),  # the chip may be off by two in the last place
        ("div.full.f32", "div.rn.f32", False),
        ("div.rn.f32", "div.approx.f32", False),
        ("mul.rn.f32", "mul.rz.f32", True),
        ("mul.f32", "mul.rn.f32", False),  # the assembler may make one of it and of a sum behind it
        ("mul.rn.f32", "mul.f32", False),
    ],
)
def test_what_a_chip_or_the_assembler_may_round_otherwise_is_not_computed(
    opcode: str, other: str, proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the executor's model all of these are equal: of a normal BF16 number a quarter is exact."""
    monkeypatch.setattr(trials, "_OUTCOMES", {})
    nodes = Nodes()
    any_bits = nodes.computed("and.b32", [nodes.of(("atom", "any"), 32), nodes.integer(8191, 32)], 32)
    normal = nodes.computed("or.b32", [any_bits, nodes.integer(16384, 32)], 32)
    number = nodes.computed("shl.b32", [normal, nodes.integer(16, 32)], 32)
    one, two = (nodes.computed(each, [number, nodes.integer(0x40800000, 32)], 32) for each in (opcode, other))
    assert trials.always_equal(nodes, one, two) is proven


def all_sums_are_alike(nodes: Nodes, bits: int, constant: int, terms: Any) -> int:
    return TOTAL(nodes, bits, 0, terms)


def one_chunk_is_enough(warps: int) -> Iterator[int]:
    yield 0


def every_meeting_is_equal(self: equality.EqualEntries, one: int, other: int) -> bool:
    return True


def always_never_negative(self: Nodes, parts: Any, width: int, sources: Any) -> bool:
    return True


TOTAL = Nodes.total


def test_a_rule_that_is_wrong_proves_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nodes, "_never_negative", always_never_negative)
    assert next(false_proofs(), None) is not None
    monkeypatch.undo()
    monkeypatch.setattr(Nodes, "total", all_sums_are_alike)
    assert next(false_proofs(), None) is not None


def test_a_rule_of_loops_or_of_trials_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sound, started = looped(), looped(lambda body: body.replace("mov.u32 %r3, 0", "mov.u32 %r3, 1"))
    assert same_kernel(sound, started) is None
    monkeypatch.setattr(equality.EqualEntries, "_meets", every_meeting_is_equal)
    assert same_kernel(sound, started) is not None
    monkeypatch.undo()
    nodes = Nodes()
    low = nodes.computed("and.b32", [nodes.of(("atom", "any"), 32), nodes.integer((1 << 24) - 1, 32)], 32)
    last = nodes.computed("setp.eq.s32", [low, nodes.integer((1 << 24) - 1, 32)], 1)
    never = nodes.integer(6, 32)
    other = nodes.selected(last, nodes.integer(5, 32), never, 32)
    for starts, found in ((trials._starts, False), (one_chunk_is_enough, True)):
        monkeypatch.setattr(trials, "_OUTCOMES", {})
        monkeypatch.setattr(trials, "_starts", starts)
        same = nodes.computed("or.b32", [nodes.computed("shr.u32", [low, nodes.integer(24, 32)], 32), never], 32)
        assert trials.always_equal(nodes, other, same) is found


def test_paths_of_the_kernel_are_few_once_short_branches_are_guards() -> None:
    paths = Paths.of(EntryCode.of(KERNEL))
    assert len(paths.held) < len(EntryCode.of(KERNEL).blocks)
    side = SideBySide((paths, Paths.of(EntryCode.of(KERNEL))), Nodes())
    side.solve()
    assert all(one == other for one, other in side.acts.values())
