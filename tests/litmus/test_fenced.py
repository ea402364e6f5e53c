"""Fences whose scopes leave a thread out, and threads without one: what the model says, and what the executor shows."""

from __future__ import annotations

import pytest
from support.litmus.notation import program
from support.selection.thinned import thinned

from refmoe.litmus.axioms import judge
from refmoe.litmus.fenced import CHOICES, fenced
from refmoe.litmus.program import Program
from refmoe.litmus.run import compare

#: Of the second thread's fence, by the first thread's: whether both may read 0. In one CTA every fence `.sc` counts.
BETWEEN_CTAS = {("fence.sc.gpu", "fence.sc.gpu"), ("fence.sc.cluster", "fence.sc.cluster")}
BETWEEN_CTAS |= {("fence.sc.gpu", "fence.sc.cluster"), ("fence.sc.cluster", "fence.sc.gpu")}


def chosen(shape: str, where: str) -> list[Program]:
    """Different programs of a shape at some places."""
    found = {each.key: each for each in fenced() if each.shape.startswith(shape) and each.cause.startswith(where)}
    return list(found.values())


def fences(found: Program) -> tuple[str, ...]:
    """The fence of each thread."""
    return tuple(
        next((str(each) for each in thread.instructions if str(each).startswith("fence")), "none")
        for thread in found.threads
    )


@pytest.mark.parametrize("where", ["lanes", "warps", "CTAs"])
def test_both_read_what_was_there_unless_both_have_a_fence_that_counts(where: str) -> None:
    found = chosen("SB with", where)
    assert len(found) == len(CHOICES) ** 2
    for each in found:
        pair = fences(each)
        counts = pair in BETWEEN_CTAS if where == "CTAs" else all(name.startswith("fence.sc") for name in pair)
        outcomes = judge(each).outcomes
        assert outcomes is not None
        assert ((0, 0, 1, 1) in outcomes) != counts, each


@pytest.mark.parametrize("where", ["warps", "CTAs"])
@pytest.mark.parametrize("shape", thinned(["SB with", "R with", "2+2W", "Dekker"], 2))
def test_every_allowed_outcome_shows_and_no_other(shape: str, where: str) -> None:
    report = compare(((each, judge(each)) for each in chosen(shape, where)), schedules=8, walks=120)
    assert report.passed, report.document()["worst"]
    assert report.seen == report.allowed


#: A message that is read only where its flag was, and a flag that is written only where the message was: neither access
#: of the message can be put off, so that the reader misses it by choice or not at all. A neighbour waits in each block,
#: so that no fence of the CTA is one of a thread alone.
DEPENDENT = (
    "0.0.0: atom.relaxed.gpu.exch r0 x 1; if r0 == 0 {{ {0}st.relaxed.gpu y 1 }}; bar.sync 1 2 | "
    "1.0.0: ld.relaxed.gpu r0 y; if r0 == 1 {{ {1}ld.relaxed.gpu r1 x }}; bar.sync 1 2 | "
    "0.1.0: bar.sync 1 2 | 1.1.0: bar.sync 1 2"
)


@pytest.mark.parametrize("reader", ["none", "cta", "cluster", "gpu"])
@pytest.mark.parametrize("writer", ["none", "cta", "cluster", "gpu"])
def test_a_message_behind_its_flag_is_missed_unless_both_fences_reach_the_other(writer: str, reader: str) -> None:
    found = program(DEPENDENT.format(*("" if scope == "none" else f"fence.sc.{scope}; " for scope in (writer, reader))))
    verdict = judge(found)
    assert verdict.outcomes is not None
    # The blocks are in clusters of their own.
    missed = any(outcome[1:3] == (1, 0) for outcome in verdict.outcomes)
    assert missed != (writer == reader == "gpu")
    report = compare([(found, verdict)], schedules=16, walks=400)
    assert report.passed, report.document()["worst"]
    assert report.seen == report.allowed


@pytest.mark.parametrize(
    "writer",
    [
        "atom.relaxed.gpu.exch r0 x 1; if r0 == 0 { st.relaxed.gpu y 1 }",
        "atom.relaxed.gpu.add r0 x 1; if r0 == 0 { atom.relaxed.gpu.exch r1 y 1 }",
        "st.relaxed.gpu x 2; atom.relaxed.gpu.cas r0 x 2 1; if r0 == 2 { st.relaxed.gpu y 1 }",
    ],
)
def test_what_an_atomic_wrote_is_missed_as_what_a_store_wrote(writer: str) -> None:
    found = program(f"0.0.0: {writer} | 1.0.0: ld.relaxed.gpu r0 y; if r0 == 1 {{ ld.relaxed.gpu r1 x }}")
    verdict = judge(found)
    report = compare([(found, verdict)], schedules=16, walks=400)
    assert report.passed, report.document()["worst"]
    assert report.seen == report.allowed


#: A message whose flag a third thread hands on. Its relaxed accesses are in no order, so the fences are in none either.
HANDED_ON = (
    "{0}: st.weak u 7; fence.sc.gpu; st.relaxed.gpu x 1 | "
    "{1}: ld.relaxed.gpu r0 x; if r0 == 1 {{ {2}st.relaxed.gpu y 1 }} | "
    "{3}: ld.relaxed.gpu r0 y; {4}; if r0 == 1 {{ ld.weak r2 u }}"
)
PLACES = [("0.0.0", "0.0.1", "0.0.5"), ("0.0.0", "0.1.0", "0.2.0"), ("0.0.0", "1.0.0", "2.0.0")]


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize(
    ("middle", "last", "racy"),
    thinned(
        [
            ("", "fence.sc.gpu", True),
            ("fence.acq_rel.gpu; ", "fence.sc.gpu", False),
            ("fence.acq_rel.gpu; ", "fence.acq_rel.gpu", False),
            ("fence.sc.gpu; ", "fence.sc.gpu", False),
            ("", "fence.acq_rel.gpu", True),
        ],
        3,
    ),
)
def test_a_fence_is_in_order_only_with_what_its_thread_comes_after(
    middle: str, last: str, racy: bool, places: tuple[str, str, str]
) -> None:
    first, second, third = places
    found = program(HANDED_ON.format(first, second, middle, third, last))
    verdict = judge(found)
    assert verdict.racy is racy
    report = compare([(found, verdict)], schedules=16, walks=200)
    assert report.passed, report.document()["worst"]


#: One thread reads the flag, and another one of its block has the fence: nothing joins the two.
APART = (
    "0.0.0: st.weak u 7; fence.sc.gpu; st.relaxed.gpu x 1 | "
    "1.0.0: ld.relaxed.gpu r0 x; if r0 == 1 {{ st.relaxed.gpu y 1 }}{0} | "
    "1.1.0: ld.relaxed.gpu r0 y; {1}fence.sc.gpu; if r0 == 1 {{ ld.weak r2 u }}"
)


def test_what_one_thread_of_a_block_read_does_not_order_the_fence_of_another() -> None:
    found = program(APART.format("", ""))
    verdict = judge(found)
    assert verdict.racy
    report = compare([(found, verdict)], schedules=16, walks=200)
    assert report.passed, report.document()["worst"]
    # With a barrier of the block between the two it does.
    met = program(APART.format("; bar.sync 1 2", "bar.sync 1 2; "))
    verdict = judge(met)
    assert not verdict.racy
    report = compare([(met, verdict)], schedules=16, walks=200)
    assert report.passed, report.document()["worst"]
