"""Trials of expressions over every value: what is counted through, what is left out, and wrong changes told apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import ml_dtypes
import numpy as np
import pytest

from refmoe.mutation.proofs import conditions, domains, trials
from refmoe.mutation.proofs.domains import Domains, PossibleWords
from refmoe.mutation.proofs.equality import proof_of_same_kernel
from refmoe.mutation.proofs.nodes import Node, Nodes

HEAD = """.version 9.0
.target sm_120a
.address_size 64
.visible .entry kernel(
	.param .u64 kernel_param_0,
	.param .u64 kernel_param_1
)
.maxntid 32
{
	.reg .pred %p<9>;
	.reg .b16 %rs<9>;
	.reg .b32 %r<9>;
	.reg .f32 %f<20>;
	.reg .b64 %rd<9>;
	ld.param.u64 %rd1, [kernel_param_0];
	ld.param.u64 %rd2, [kernel_param_1];
"""
#: The largest magnitude of two lanes' BF16 numbers, and half of it.
LARGEST = """	ld.global.u16 %rs1, [%rd1];
	cvt.u32.u16 %r1, %rs1;
	shl.b32 %r2, %r1, 16;
	and.b32 %r3, %r2, 2147483647;
	shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;
	mov.b32 %f1, %r3;
	mov.b32 %f2, %r4;
	max.f32 %f3, %f1, %f2;
	mul.rn.f32 %f4, %f3, 0f3F000000;
	st.global.f32 [%rd2], %f4;
	ret;
}
"""
#: x + 2^30 where x^2 is at most 4, and 0 where it is not.
SMALL = """	ld.global.f32 %f1, [%rd1];
	mul.rn.f32 %f2, %f1, %f1;
	setp.gtu.f32 %p1, %f2, 0f40800000;
	mov.f32 %f3, 0f00000000;
	@%p1 bra $L__BB_2;
	add.rn.f32 %f3, %f1, 0f4E800000;
$L__BB_2:
	st.global.f32 [%rd2], %f3;
	ret;
}
"""


def inputs_of(sound: str, before: str, after: str) -> list[int] | None:
    """How many values each run of a proof tried; None if there is no proof."""
    assert sound.count(before) == 1
    found = proof_of_same_kernel(HEAD + sound, HEAD + sound.replace(before, after))
    return None if found is None else [each.inputs for each in found.trials]


def test_what_lanes_exchange_has_the_bits_of_what_each_loaded() -> None:
    """Of a BF16 number flushing makes no zero but of its subnormal ones, and a half of it is exact but for those."""
    tried = inputs_of(LARGEST, "mul.rn.f32", "mul.rz.f32")
    # 15 bits of the larger one, or the NaN that a maximum makes of two.
    assert tried == [1 << 16]
    assert inputs_of(LARGEST, "mul.rn.f32", "mul.rn.ftz.f32") is None
    # Of 25 bits the last one may be lost where the number is subnormal.
    assert inputs_of(LARGEST.replace("2147483647", "-1"), "0f3F000000", "0f3F000001") is None
    assert inputs_of(LARGEST.replace("shl.b32 %r2, %r1, 16", "mul.lo.u32 %r2, %r1, 65537"), "mul.rn", "mul.rz") is None


def test_values_that_a_branch_keeps_away_are_left_out() -> None:
    """Next to 2^30 a step is 64: what is at most 2 is lost whichever way the sum is rounded, but not upward."""
    wide = SMALL.replace("0f4E800000", "0f4F000000")
    found = proof_of_same_kernel(HEAD + wide, HEAD + wide.replace("0f4F000000;", "0f4F000000;\n\tmov.f32 %f9, %f3;"))
    assert found is not None
    sound = SMALL.replace("add.rn.f32 %f3, %f1, 0f4E800000", "min.f32 %f3, %f1, 0f40400000")
    # The smaller of x and 3 is the smaller of x and 4, if x is at most 2.
    changed = proof_of_same_kernel(HEAD + sound, HEAD + sound.replace("0f40400000", "0f40800000"))
    assert changed is not None
    (run,) = changed.trials
    assert run.inputs == 1 << 32
    assert len(run.where) == 1
    assert "mul.rn.f32(v0, v0)" in run.where[0]
    # 1.5 is within the bound.
    assert inputs_of(sound, "0f40400000", "0f3FC00000") is None
    # A bound of 16 lets 4 in.
    assert inputs_of(sound.replace("0f40800000", "0f41800000"), "0f40400000", "0f40600000") is None
    # Where the branch goes the other way, nothing bounds x.
    assert inputs_of(sound.replace("@%p1 bra", "@!%p1 bra"), "0f40400000", "0f40800000") is None


def every_word_is_there(self: Domains, node: Node) -> PossibleWords:
    return PossibleWords(0)


def nothing_is_above(nodes: Nodes, predicate: Node) -> Iterable[Node]:
    yield nodes.integer(0, 1)


def test_a_domain_or_a_condition_that_is_wrong_proves_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_OUTCOMES", {})
    monkeypatch.setattr(domains.Domains, "of", every_word_is_there)
    assert inputs_of(LARGEST, "0f3F000000", "0f3F000001") is not None
    monkeypatch.undo()
    monkeypatch.setattr(trials, "_OUTCOMES", {})
    assert inputs_of(LARGEST, "0f3F000000", "0f3F000001") is None
    sound = SMALL.replace("add.rn.f32 %f3, %f1, 0f4E800000", "min.f32 %f3, %f1, 0f40400000")
    assert inputs_of(sound, "0f40400000", "0f3FC00000") is None
    monkeypatch.setattr(trials, "_OUTCOMES", {})
    monkeypatch.setattr(conditions, "_comparisons", nothing_is_above)
    assert inputs_of(sound, "0f40400000", "0f3FC00000") is not None


def all_of(domain: PossibleWords, width: int) -> set[int]:
    return {word for word in range(1 << width) if not word & ~domain.mask} | set(domain.beside)


@pytest.mark.parametrize("opcode", ["max.f32", "min.f32", "abs.f32", "cvt.f32.bf16", "cvt.f32.f16"])
def test_domains_hold_what_numpy_computes(opcode: str) -> None:
    """Of every 16-bit operand, or of some pairs of BF16 numbers with NaN among them."""
    nodes = Nodes()
    half = nodes.computed("and.b32", [nodes.of(("atom", "any"), 32), nodes.integer(0xFFFF, 32)], 32)
    words = np.arange(1 << 16, dtype=np.uint32)
    if opcode.startswith("cvt"):
        made = nodes.computed(opcode, [nodes.computed("cvt.u16.u32", [half], 16)], 32)
        kind = ml_dtypes.bfloat16 if opcode.endswith("bf16") else np.float16
        results = words.astype(np.uint16).view(kind).astype(np.float32).view(np.uint32)
    else:
        number = nodes.computed("shl.b32", [half, nodes.integer(16, 32)], 32)
        other = nodes.integer(0x42FE0001, 32)
        sources = [number] if opcode == "abs.f32" else [number, other]
        made = nodes.computed(opcode, sources, 32)
        floats, most = (words << 16).view(np.float32), np.uint32(0x42FE0001).view(np.float32)
        picked = {"max.f32": np.fmax, "min.f32": np.fmin}
        results = (abs(floats) if len(sources) == 1 else picked[opcode](floats, most)).view(np.uint32)
    results = np.where(np.isnan(results.view(np.float32)), np.uint32(0x7FFFFFFF), results)
    domain = Domains(nodes).of(made)
    outside = (results & ~np.uint32(domain.mask)) != 0
    assert set(results[outside].tolist()) <= domain.beside
    assert domain.bits <= 21


def test_words_beside_the_bits_are_tried() -> None:
    """A choice between a byte and two words is each of them, and of no other is it asked."""
    nodes = Nodes()
    some = nodes.of(("atom", "any"), 32)
    low = nodes.computed("and.b32", [some, nodes.integer(0xFF, 32)], 32)
    which, other = (nodes.of(("atom", name), 1) for name in ("one", "other"))
    value = nodes.selected(which, low, nodes.integer(0xABCD00, 32), 32)
    value = nodes.selected(other, value, nodes.integer(0x123400, 32), 32)
    assert Domains(nodes).of(value) == PossibleWords(0xFF, frozenset((0xABCD00, 0x123400)))
    for word, same in ((0xABCD00, False), (0x123400, False), (0x7F, False), (0xABCD01, True), (0x100, True)):
        is_it = nodes.computed("setp.eq.s32", [value, nodes.integer(word, 32)], 1)
        changed = nodes.selected(is_it, nodes.integer(1, 32), value, 32)
        assert trials.always_equal(nodes, changed, value) is same


CHAIN = """	ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
	max.u32 %r5, %r1, %r2;
	max.u32 %r6, %r5, %r3;
	max.u32 %r7, %r6, %r4;
	st.global.u32 [%rd2], %r7;
	ret;
}
"""


@pytest.mark.parametrize(
    ("operands", "proven"),
    [("432 1", True), ("421 3", True), ("41 22 3", True), ("422 1", False), ("433 12 2", True), ("3 1", False)],
)
def test_the_largest_of_some_numbers_is_so_in_any_order(operands: str, proven: bool) -> None:
    """By the numbers of the registers: the first one is the beginning, and each next one is met."""
    first, *others = operands.replace(" ", "")
    steps = [f"\tmov.u32 %r8, %r{first};\n", *(f"\tmax.u32 %r8, %r8, %r{each};\n" for each in others)]
    start, end = CHAIN.index("\tmax.u32 %r5"), CHAIN.index("\tst.global")
    text = CHAIN[:start] + "".join(steps) + CHAIN[end:].replace("%r7", "%r8")
    assert (proof_of_same_kernel(HEAD + CHAIN, HEAD + text) is not None) is proven


NOTHING = """	ld.global.u32 %r1, [%rd1];
	setp.lt.u32 %p1, %r1, 5;
	@!%p1 bra $L__BB_2;
	ld.global.u32 %r2, [%rd1+4];
	ld.global.u32 %r3, [%rd1+8];
	st.global.u32 [%rd2+8], %r2;
$L__BB_2:
	bar.sync 0;
	@!%p1 bra $L__BB_3;
	st.global.u32 [%rd2], %r2;
	st.global.u32 [%rd2+4], %r3;
	bar.sync 0;
$L__BB_3:
	ret;
}
"""


def test_registers_that_nothing_wrote_may_have_other_names_each_of_one() -> None:
    """Where the branch is not taken, the registers hold nothing where the paths meet; nobody asks for it."""
    other = NOTHING.replace("%r2", "%r7").replace("%r3", "%r8")
    assert proof_of_same_kernel(HEAD + NOTHING, HEAD + other) is not None
    wrong = other.replace("[%rd2+4], %r8", "[%rd2+4], %r7")
    assert proof_of_same_kernel(HEAD + NOTHING, HEAD + wrong) is None
    # Where the second branch goes on, the first one did: so both hold what was loaded, whatever their names.
    exchanged = NOTHING.replace("%r2", "%r9").replace("%r3", "%r2").replace("%r9", "%r3")
    assert proof_of_same_kernel(HEAD + NOTHING, HEAD + exchanged) is not None
    half = exchanged.replace("[%rd2+4], %r2", "[%rd2+4], %r3")
    assert proof_of_same_kernel(HEAD + NOTHING, HEAD + half) is None
    # What is stored is nothing on one way: one register of the sound kernel cannot be two.
    stored = "\tst.global.u32 [%rd2], %r4;\n\tst.global.u32 [%rd2+4], %r4;\n\tret;\n}\n"
    apart = stored.replace("4], %r4", "4], %r6").replace("[%rd2], %r4", "[%rd2], %r5")
    assert proof_of_same_kernel(HEAD + stored, HEAD + apart) is None
    assert proof_of_same_kernel(HEAD + stored, HEAD + stored.replace("%r4", "%r5")) is not None
    # A register that both have is the same one in both, and two of the other entry are not one of the sound one.
    two = apart.replace("%r6", "%r4")
    assert proof_of_same_kernel(HEAD + two, HEAD + apart.replace("%r5", "%r4").replace("%r6", "%r5")) is None
    assert proof_of_same_kernel(HEAD + apart, HEAD + stored.replace("%r4", "%r7")) is not None


def test_a_trial_that_costs_too_much_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_OUTCOMES", {})
    monkeypatch.setattr(trials, "BUDGET", dataclasses.replace(trials.BUDGET, left=1000))
    assert inputs_of(LARGEST, "mul.rn.f32", "mul.rz.f32") is None
