"""Mutants that differ for one word alone: told apart where the word can come, at the edges of what is tried."""

from __future__ import annotations

import pytest

from refmoe.mutation.proofs import equality
from refmoe.mutation.proofs.domains import Domains, PossibleWords
from refmoe.mutation.proofs.equality import EqualEntries, proof_of_same_kernel, same_kernel
from refmoe.mutation.proofs.nodes import Node
from tests.mutation.test_every_value import HEAD
from tests.mutation.test_proofs import result
from tests.mutation.test_rules import lines

#: How a mutant has another number in the place of %r5 where it is WORD.
CHANGES = (
    "setp.eq.u32 %p8, %r5, WORD;\n\tselp.u32 %r6, 12345, %r5, %p8;\n",
    "sub.u32 %r7, %r5, WORD;\n\tclz.b32 %r7, %r7;\n\tshr.u32 %r7, %r7, 5;\n\tadd.u32 %r6, %r5, %r7;\n",
)
STORED = "CHANGE\tst.global.u32 [%rd2], %r6;\n\tret;\n}\n"
BF16 = "\tld.global.u16 %r1, [%rd1];\n\tshl.b32 %r5, %r1, 16;\n\tmov.b32 %f1, %r5;\n"
TWO_BF16 = BF16 + "\tld.global.u16 %r2, [%rd1+2];\n\tshl.b32 %r3, %r2, 16;\n\tmov.b32 %f2, %r3;\n"


def differ_at(body: str, word: int) -> list[bool]:
    """Whether a kernel and mutants of it that differ for one word are proven to be the same."""
    sound = body.replace("CHANGE", "\tmov.u32 %r6, %r5;\n")
    assert proof_of_same_kernel(HEAD + sound, HEAD + sound) is not None
    mutants = [body.replace("CHANGE", f"\t{each}".replace("WORD", str(word))) for each in CHANGES]
    return [proof_of_same_kernel(HEAD + sound, HEAD + each) is not None for each in mutants]


@pytest.mark.parametrize(
    ("made", "there", "never"),
    [
        (BF16, (0, 0x10000, 0x7F800000, 0xFFFF0000), (1, 0xFFFF0001)),
        ("\tld.global.s16 %r1, [%rd1];\n\tand.b32 %r5, %r1, -32768;\n", (0, 0xFFFF8000), (1,)),
        ("\tld.global.u8 %r1, [%rd1];\n\tshl.b32 %r5, %r1, 3;\n", (0, 8, 2040), (4, 2048)),
        ("\tld.global.u8 %r1, [%rd1];\n\tmul.lo.u32 %r5, %r1, 3;\n", (0, 3, 765), (1, 2, 768)),
        ("\tld.global.u16 %r1, [%rd1];\n\tshr.u32 %r5, %r1, 15;\n", (0, 1), (2,)),
        (TWO_BF16 + "\tmax.f32 %f3, %f1, %f2;\n\tmov.b32 %r5, %f3;\n", (0x7FFFFFFF,), (1, 0x7FFF8000)),
        (BF16 + "\tabs.f32 %f3, %f1;\n\tmov.b32 %r5, %f3;\n", (0, 0x7F800000, 0x7FFFFFFF), (0x80000000,)),
        (
            "\tld.global.b16 %rs1, [%rd1];\n\tcvt.f32.f16 %f1, %rs1;\n\tmov.b32 %r5, %f1;\n",
            (0x80000000, 0x33800000, 0x477FE000, 0x7FFFFFFF),
            (1, 0x477FE001),
        ),
        ("\tmov.u32 %r5, %tid.x;\n", (0, 31), (32,)),
    ],
)
def test_a_word_that_can_come_is_tried_and_no_other_has_to_be(
    made: str, there: tuple[int, ...], never: tuple[int, ...]
) -> None:
    for word in there:
        assert differ_at(made + STORED, word) == [False, False], hex(word)
    for word in never:
        assert differ_at(made + STORED, word) == [True, True], hex(word)


def test_what_is_computed_of_constants_alone_is_no_run_over_values() -> None:
    """There is one value, and the report has no run without one that it counts through."""
    half = "\tmul.rn.f32 %f1, 0f3F000000, 0f40400000;\n\tst.global.f32 [%rd2], %f1;\n\tret;\n}\n"
    found = proof_of_same_kernel(HEAD + half, HEAD + half.replace("mul.rn", "mul.rz"))
    assert found is not None
    assert found.trials == ()
    assert proof_of_same_kernel(HEAD + half, HEAD + half.replace("0f40400000", "0f40400001")) is None


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
    opcode: str, other: str, proven: bool
) -> None:
    """By the executor's model all of these are equal: of a normal BF16 number a quarter is exact."""
    number = BF16.replace("shl.b32 %r5, %r1, 16", "and.b32 %r3, %r1, 8191;\n\tadd.u32 %r4, %r3, 16384")
    number = number.replace("mov.b32 %f1, %r5", "shl.b32 %r5, %r4, 16;\n\tmov.b32 %f1, %r5")
    texts = [
        HEAD + number + f"\t{each} %f2, %f1, 0f40800000;\n\tst.global.f32 [%rd2], %f2;\n\tret;\n}}\n"
        for each in (opcode, other)
    ]
    assert (proof_of_same_kernel(*texts) is not None) is proven


OFFERED = "\tld.global.u8 %r2, [%rd1];\n\tEXCHANGE\n"


@pytest.mark.parametrize(
    "exchange",
    [
        "shfl.sync.bfly.b32 %r5, %r2, 1, 31, -1;",
        "shfl.sync.up.b32 %r5|%p7, %r2, 1, 0, -1;",
        "shfl.sync.idx.b32 %r5, %r2, 31, 31, -1;",
        "redux.sync.max.u32 %r5, %r2, -1;",
    ],
)
def test_another_lane_may_offer_any_word_of_its_own(exchange: str) -> None:
    body = OFFERED.replace("EXCHANGE", exchange) + STORED
    assert [differ_at(body, word) for word in (0, 255, 256)] == [[False] * 2, [False] * 2, [True] * 2]


@pytest.mark.parametrize(
    ("by", "word"),
    [("%r2", 0xFFFFFF01), ("%r4", 1), ("%r4", 255), ("%r2", 0)],
)
def test_what_two_lanes_hold_is_not_one_number(by: str, word: int) -> None:
    """Neither is what a lane reads of one lane what it reads of another one."""
    body = OFFERED.replace("EXCHANGE", "shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1;")
    body += f"\tshfl.sync.bfly.b32 %r4, %r2, 2, 31, -1;\n\tsub.s32 %r5, %r3, {by};\n"
    assert differ_at(body + STORED, word) == [False, False]


BOUNDED = (
    BF16 + "\tld.global.f32 %f4, [%rd1+4];\n\tSUM\n\tsetp.RELATION;\n\tmov.u32 %r6, 0;\n\t@LEAVE bra $L__BB_2;\n"
    "\tbar.sync 0;\nCHANGE$L__BB_2:\n\tst.global.u32 [%rd2], %r6;\n\tret;\n}\n"
)
SQUARE = "mul.rn.f32 %f2, %f1, %f1;"
SUM = "mul.rn.f32 %f3, %f4, %f4;\n\tfma.rn.f32 %f2, %f1, %f1, %f3;"
BELOW_TWO, TWO, MINUS_TWO, THREE, INFINITE, NAN = 0x3FFF0000, 0x40000000, 0xC0000000, 0x40400000, 0x7F800000, 0x7FC00000


@pytest.mark.parametrize(
    ("summed", "relation", "leave", "there", "never"),
    [
        (SQUARE, "gtu.f32 %p1, %f2, 0f40800000", "%p1", (TWO, MINUS_TWO), (THREE, INFINITE, NAN)),
        (SQUARE, "gt.f32 %p1, %f2, 0f40800000", "%p1", (TWO, NAN), (THREE,)),
        (SQUARE, "geu.f32 %p1, %f2, 0f40800000", "%p1", (BELOW_TWO,), (TWO, NAN)),
        (SQUARE, "ge.f32 %p1, %f2, 0f40800000", "%p1", (BELOW_TWO, NAN), (TWO,)),
        (SQUARE, "le.f32 %p1, %f2, 0f40800000", "!%p1", (TWO,), (THREE, NAN)),
        (SQUARE, "leu.f32 %p1, %f2, 0f40800000", "!%p1", (TWO, NAN), (THREE,)),
        (SQUARE, "le.f32 %p1, %f2, 0f40800000", "%p1", (THREE, NAN), (TWO,)),
        (SQUARE, "ltu.f32 %p1, 0f40800000, %f2", "%p1", (TWO, MINUS_TWO), (THREE, NAN)),
        (SUM, "gtu.f32 %p1, %f2, 0f40800000", "%p1", (TWO, MINUS_TWO), (THREE, INFINITE, NAN)),
        (SUM, "leu.f32 %p1, %f2, 0f40800000", "!%p1", (TWO, NAN), ()),
        (SUM, "gtu.f32 %p1, %f2, 0f7F800000", "%p1", (INFINITE, THREE), (NAN,)),
        # Another number's square; what may be negative; what is rounded down.
        ("mul.rn.f32 %f2, %f4, %f4;", "gtu.f32 %p1, %f2, 0f40800000", "%p1", (THREE,), ()),
        ("fma.rn.f32 %f2, %f1, %f1, %f4;", "gtu.f32 %p1, %f2, 0f40800000", "%p1", (THREE, INFINITE), ()),
        ("fma.rn.f32 %f2, %f1, %f1, 0fC0A00000;", "gtu.f32 %p1, %f2, 0f40800000", "%p1", (TWO, THREE), (INFINITE,)),
        (SUM.replace("%f1, %f1", "%f1, %f4"), "gtu.f32 %p1, %f2, 0f40800000", "%p1", (THREE,), ()),
        (SUM.replace("fma.rn", "fma.rm"), "gtu.f32 %p1, %f2, 0f40800000", "%p1", (TWO, THREE), ()),
    ],
)
def test_only_what_a_comparison_forbids_is_left_out(
    summed: str, relation: str, leave: str, there: tuple[int, ...], never: tuple[int, ...]
) -> None:
    body = BOUNDED.replace("SUM", summed).replace("RELATION", relation).replace("LEAVE", leave)
    assert [differ_at(body, word) for word in there] == [[False, False]] * len(there)
    assert [differ_at(body, word) for word in never] == [[True, True]] * len(never)


CHECKED = "\tmul.rn.f32 %f2, %f1, %f1;\n\tsetp.gtu.f32 %p1, %f2, 0f40800000;\n"
AGAIN = BF16.replace("ld.global", "ld.volatile.global")
KEPT = "CHANGE\tst.global.u32 [%rd2], %r6;\n"


@pytest.mark.parametrize(
    "body",
    [
        # The number is a new one since it was compared.
        f"{BF16}$L__BB_1:\n{CHECKED}\t@%p1 bra $L__BB_3;\n\tbar.sync 0;\n{AGAIN}{KEPT}\tbra $L__BB_1;\n$L__BB_3:\n",
        # It is used before it is compared, in each round.
        f"$L__BB_1:\n{AGAIN}{KEPT}\tbar.sync 0;\n{CHECKED}\t@!%p1 bra $L__BB_1;\n",
        # Of several ways one has no comparison.
        f"{BF16}\tld.global.u32 %r8, [%rd1+8];\n\tsetp.ne.s32 %p2, %r8, 0;\n\t@%p2 bra $L__BB_2;\n\tbar.sync 0;\n"
        f"{CHECKED}\t@%p1 bra $L__BB_3;\n$L__BB_2:\n\tbar.sync 0;\n{KEPT}$L__BB_3:\n",
        # It is another lane's, which may have left.
        f"{BF16}\tshfl.sync.bfly.b32 %r5, %r5, 1, 31, -1;\n{CHECKED}\t@%p1 bra $L__BB_3;\n\tbar.sync 0;\n{KEPT}"
        "$L__BB_3:\n",
    ],
)
def test_a_comparison_of_another_time_or_lane_leaves_nothing_out(body: str) -> None:
    for word in (TWO, THREE, NAN):
        assert differ_at(body + "\tret;\n}\n", word) == [False, False]


#: Lanes past an end offer another number, which the others of their group of eight do not see.
OUTSIDE = (
    "setp.lt.s32 %p1, %r7, 40; mov.u32 %r1, NUMBER; @%p1 ld.global.nc.u16 %r1, [%rd4]",
    "shfl.sync.bfly.b32 %r2, %r1, 4, 31, -1",
)
INSIDE = "@%p1 st.global.u32 [%rd5], %r3"


@pytest.mark.parametrize(
    ("before", "after", "proven"),
    [
        (f"mov.u32 %r3, %r2; {INSIDE}", f"add.s32 %r3, %r2, 7; sub.s32 %r3, %r3, 7; {INSIDE}", True),
        # Where the store is, it is a number of 16 bits. But what else may be one counts as any word.
        (f"mov.u32 %r3, %r2; {INSIDE}", f"min.u32 %r3, %r2, 65535; {INSIDE}", False),
        (f"mov.u32 %r3, %r2; {INSIDE}", f"min.u32 %r3, %r2, 65534; {INSIDE}", False),
        ("st.global.u32 [%rd5], %r2", "min.u32 %r3, %r2, 65535; st.global.u32 [%rd5], %r3", False),
        ("st.global.u32 [%rd5], 0", "shr.u32 %r3, %r2, 16; st.global.u32 [%rd5], %r3", False),
        ("shr.u32 %r3, %r2, 16; st.global.u32 [%rd5], %r3", "shr.u32 %r3, %r2, 16; st.global.u32 [%rd5], %r3", False),
    ],
)
def test_what_lanes_read_that_is_the_same_in_some_alone_may_be_any_word(before: str, after: str, proven: bool) -> None:
    one = lines(*(each.replace("NUMBER", "0") for each in OUTSIDE), before)
    other = lines(*(each.replace("NUMBER", "131072") for each in OUTSIDE), after)
    assert same_kernel(one, other) is None or result(one, 5) == result(other, 5)
    assert (same_kernel(one, other) is not None) is proven


def test_a_domain_of_an_exchange_in_parts_is_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[PossibleWords, Node | None]] = []

    class Watched(EqualEntries):
        def holds(self) -> bool:
            found = super().holds()
            for each in self._partly:
                seen.append((self._domains.of(each), self._domains.exchanged(each)))
                trusting = Domains(self.nodes, self.side, self.ranges)
                seen.append((trusting.of(each), trusting.exchanged(each)))
            return found

    monkeypatch.setattr(equality, "EqualEntries", Watched)
    texts = [lines(*(each.replace("NUMBER", n) for each in OUTSIDE), f"mov.u32 %r3, %r2; {INSIDE}") for n in ("0", "9")]
    assert same_kernel(*texts) is not None
    (mended, plain) = seen
    assert mended == (PossibleWords(0xFFFFFFFF), None)
    assert plain[0].mask == 0xFFFF
    assert plain[1] is not None
