"""The axioms on litmus tests with published verdicts, tests/data/litmus/published.txt."""

from __future__ import annotations

import pytest
from support.litmus.notation import entries, may_show, program

from refmoe.litmus.axioms import judge

#: (name, outcome, whether it is allowed, source, program)
PUBLISHED = [
    (name, outcome.partition(": ")[2], outcome.startswith("allowed: "), source, text)
    for name, (outcome, source), text in entries("published", 2)
]


@pytest.mark.parametrize(
    ("outcome", "allowed", "text"),
    [(outcome, allowed, text) for _, outcome, allowed, _, text in PUBLISHED],
    ids=[f"{name} ({source})" for name, _, _, source, _ in PUBLISHED],
)
def test_published(outcome: str, allowed: bool, text: str) -> None:
    found = program(text)
    assert may_show(judge(found), found, outcome) == allowed


def test_there_are_enough_of_both() -> None:
    verdicts = [allowed for _, _, allowed, _, _ in PUBLISHED]
    assert len(PUBLISHED) >= 100
    assert min(verdicts.count(True), verdicts.count(False)) >= 40
    by_hand = [source for _, _, _, source, _ in PUBLISHED if source.startswith("derived")]
    assert len(PUBLISHED) - len(by_hand) >= 60
    assert all(len(source) > len("derived") for source in by_hand)
