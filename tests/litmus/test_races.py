"""Which programs have a data race, by the rules of the PTX ISA manual's chapter on the memory consistency model.

tests/data/litmus/races.txt has verdicts by hand, each with its reason.
"""

from __future__ import annotations

import pytest
from support.litmus.notation import entries, program

from refmoe.litmus.axioms import judge

FREE, ALWAYS = "never", "always"

#: (why, in which executions there is a race, program)
RACES = [(why, when, text) for why, (when,), text in entries("races", 1)]


@pytest.mark.parametrize(("when", "text"), [each[1:] for each in RACES], ids=[each[0] for each in RACES])
def test_race(when: str, text: str) -> None:
    found = judge(program(text, mbarriers=(1, 1)))
    assert (found.when, found.open) == (when, ())
    assert found.racy == (when != FREE)


def test_the_cluster_is_a_scope_of_its_own() -> None:
    text = "0.0.0: st.relaxed.cluster x 1 | 1.0.0: ld.relaxed.cluster r0 x"
    assert judge(program(text)).when == ALWAYS
    assert judge(program(text, cluster=2)).when == FREE
    assert judge(program(text.replace("1.0.0", "2.0.0"), cluster=2)).when == ALWAYS


def test_a_race_names_both_accesses_and_the_reason() -> None:
    text = "0.0.0: st.relaxed.gpu y 1; st.relaxed.cta x 1 | 1.0.0: ld.relaxed.gpu r0 x"
    (race,) = judge(program(text)).races
    assert (race.first[:2], race.second[:2]) == ((0, 1), (1, 0))
    assert str(race) == (
        "thread 0: st.relaxed.cta.b32 [x], 1 | thread 1: ld.relaxed.gpu.b32 r0, [x] | "
        "a scope that leaves the other thread out, and unordered"
    )


def test_of_a_mixed_size_race_no_outcome_is_known() -> None:
    assert judge(program("0.0.0: st.weak x 1 :8 | 1.0.0: ld.weak r0 x :4")).outcomes is None
    assert judge(program("0.0.0: st.weak x 1 :4 | 1.0.0: ld.weak r0 x :4")).outcomes == {(0, 1), (1, 1)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "0.0.0: expect 0 16; bulkload a x 0; wait 1 0; expect 0 16; bulkload a y 0 | "
            "0.1.0: wait 0 0; ld.weak r0 a; arrive 1; wait 0 1",
            "between a generic read and a bulk copy over it",
        ),
        (
            "0.0.0: st.weak a 1; bar.sync 1 3; bar.sync 2 3 | 0.1.0: bar.sync 1 3; proxyfence; bar.sync 2 3 | "
            "0.2.0: bar.sync 1 3; bar.sync 2 3; bulkstore x a; bulkcommit; bulkwait 0",
            "a proxy fence of a third thread",
        ),
    ],
)
def test_what_the_manual_leaves_open_is_open(text: str, reason: str) -> None:
    found = judge(program(text, mbarriers=(1, 1)))
    assert not found.racy
    assert [reason in each for each in found.open] == [True]
