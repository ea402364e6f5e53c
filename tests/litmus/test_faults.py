"""Faults planted in the axioms: each changes a verdict of the published tests or of the races."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from litmus.test_published import PUBLISHED
from litmus.test_races import RACES
from support.litmus.notation import may_show, program
from support.selection.thinned import thinned

from refmoe.litmus import axioms, events, relations, strength
from refmoe.litmus.axioms import AXIOMS, Axiom, judge

Patch = Callable[[pytest.MonkeyPatch], None]


def failing() -> str | None:
    """The first published test or race whose verdict is wrong, or None."""
    for name, outcome, allowed, _, text in PUBLISHED:
        found = program(text)
        verdict = judge(found)
        if verdict.outcomes is None or may_show(verdict, found, outcome) != allowed:
            return name
    for name, when, text in RACES:
        if judge(program(text, mbarriers=(1, 1))).when != when:
            return name
    return None


def test_without_a_fault_nothing_fails() -> None:
    assert failing() is None


# ---- axioms left out ------------------------------------------------------------------------------------------------

#: (axiom, what else is left out because it implies the axiom there, threads, outcome that only the axiom forbids).
#: SC per Location implies both kinds of atomicity for operations that overlap completely. Since base causality order
#: includes program order, Causality and Coherence imply SC per Location for loads and stores.
LEFT_OUT: list[tuple[Axiom, tuple[Axiom, ...], tuple[str, ...], str]] = [
    (
        "coherence",
        (),
        ("0.0.0: st.weak x 2; st.release.gpu y 1", "1.0.0: until ld.acquire.gpu r0 y == 1; st.weak x 1"),
        "x=2",
    ),
    (
        "causality",
        (),
        ("0.0.0: st.weak x 1; st.release.gpu y 1", "1.0.0: until ld.acquire.gpu r0 y == 1; ld.weak r1 x"),
        "1:r1=0",
    ),
    (
        "no thin air",
        (),
        (
            "0.0.0: ld.relaxed.gpu r0 x; if r0 == 1 { st.relaxed.gpu y 1 }",
            "1.0.0: ld.relaxed.gpu r1 y; if r1 == 1 { st.relaxed.gpu x 1 }",
        ),
        "0:r0=1",
    ),
    ("sc per location", (), ("0.0.0: atom.relaxed.gpu.exch r0 x 1", "1.0.0: st.relaxed.gpu x 2"), "0:r0=2 x=2"),
    (
        "rmw atomicity",
        ("sc per location",),
        ("0.0.0: atom.relaxed.gpu.add r0 x 1", "1.0.0: atom.relaxed.gpu.add r0 x 1"),
        "x=1",
    ),
    (
        "single-copy atomicity",
        ("sc per location",),
        ("0.0.0: st.relaxed.gpu x 4294967297 :8; st.weak x+4 1 :4", "1.0.0: ld.relaxed.gpu r0 x :8"),
        "1:r0=1",
    ),
]


@pytest.mark.parametrize(("axiom", "others", "threads", "outcome"), LEFT_OUT, ids=[each[0] for each in LEFT_OUT])
def test_an_axiom_left_out_is_noticed(
    monkeypatch: pytest.MonkeyPatch, axiom: Axiom, others: tuple[Axiom, ...], threads: tuple[str, ...], outcome: str
) -> None:
    found = program(" | ".join(threads))
    # What a mixed-size race leaves open does not matter here: the outcomes are those of the axioms.
    monkeypatch.setattr(axioms._Attempt, "_races", lambda *_: ((), False))
    assert not may_show(judge(found, AXIOMS - set(others)), found, outcome)
    assert may_show(judge(found, AXIOMS - {axiom, *others}), found, outcome)


def test_fence_sc_left_out_is_noticed() -> None:
    # An order of fences against causality only adds to causality, so no outcome tells; the executions do.
    found = program(
        "0.0.0: st.weak x 1; fence.sc.gpu; st.relaxed.gpu y 1 | 1.0.0: until ld.relaxed.gpu r0 y == 1; fence.sc.gpu"
    )
    ways = list(events.ways(found))
    for set_, orders in ((AXIOMS, 1), (AXIOMS - {"fence-sc"}, 2)):
        attempt = axioms._Attempt(axioms.Judge(found, set_, axioms.Reading()), ways[0])
        # The flag is read from the store: the first fence synchronizes with the second.
        first, second = (event.index for event in ways[0].events if event.fence)
        base = relations.closed_with(attempt.order, first, second)
        assert len(list(attempt._fence_orders(base))) == orders


def test_every_axiom_is_left_out_once() -> None:
    assert {each[0] for each in LEFT_OUT} | {"fence-sc"} == AXIOMS


# ---- faults in the rules --------------------------------------------------------------------------------------------


def function(module: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Patch:
    """Replace a function wherever it is used."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = getattr(module, name)
        for place in (module, axioms, strength, events):
            if getattr(place, name, None) is right:
                monkeypatch.setattr(place, name, change(right))

    return plant


def way(change: Callable[[events.Way], events.Way]) -> Patch:
    """Change every way before it is tried."""
    return function(events, "ways", lambda right: lambda found: map(change, right(found)))


def each_event(change: Callable[[events.Event], events.Event]) -> Patch:
    def changed(one: events.Way) -> events.Way:
        one.events = [change(event) for event in one.events]
        return one

    return way(changed)


def without_order(matches: Callable[[events.Event, events.Event], bool]) -> Patch:
    def changed(one: events.Way) -> events.Way:
        one.order = [pair for pair in one.order if not matches(*(one.events[index] for index in pair))]
        return one

    return way(changed)


def method(name: str, change: Callable[..., Any]) -> Patch:
    """Replace a method of what tries executions: `change` gets the right one first."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = getattr(axioms._Attempt, name)
        monkeypatch.setattr(axioms._Attempt, name, lambda self, *rest: change(right, self, *rest))

    return plant


def transitive(one: events.Way) -> events.Way:
    one.order += one.issued
    return one


def any_pattern(keep: Callable[[events.Way, int, int], bool]) -> Callable[..., Any]:
    """A change of a list of patterns: those that `keep` is false for are lost."""
    return lambda right: lambda one, order: [pair for pair in right(one, order) if keep(one, *pair)]


def fenced(one: events.Way, first: int, last: int) -> bool:
    return not (one.events[first].fence or one.events[last].fence)


def late_members(right: Callable[..., Any]) -> Callable[..., Any]:
    """Of a fence the write before it counts."""

    def patterns(one: events.Way, order: relations.Relation) -> list[tuple[int, int]]:
        turned = relations.empty(len(order))
        for index, row in enumerate(order):
            for other in relations.members(row):
                turned[other] |= 1 << index
        return right(one, turned)

    return patterns


def is_kind(event: events.Event, *names: str) -> bool:
    return type(event.instruction).__name__ in names


def barrier_pair(*names: str) -> Callable[[events.Event, events.Event], bool]:
    return lambda one, other: one.thread != other.thread and is_kind(one, *names)


FAULTS: dict[str, Patch] = {
    "every scope is gpu": function(events, "includes", lambda right: lambda found, scope, one, other: True),
    "cluster and cta scope are gpu scope": function(
        events, "includes", lambda right: lambda found, scope, one, other: scope != "cta" or one.warp == other.warp
    ),
    "one scope is enough": function(
        strength,
        "in_each_others_scope",
        lambda right: (
            lambda found, one, other: (
                one.strong
                and other.strong
                and (
                    events.includes(found, one.scope, one.place, other.place)
                    or events.includes(found, other.scope, other.place, one.place)
                )
            )
        ),
    ),
    "partial overlap is complete": function(
        strength, "overlap_completely", lambda right: lambda one, other: strength.overlap(one, other)
    ),
    "lanes of a warp are one thread": function(
        strength,
        "program_ordered",
        lambda right: lambda one, other: (one.place.cta, one.place.warp) == (other.place.cta, other.place.warp),
    ),
    "copies are part of program order": function(
        strength, "program_ordered", lambda right: lambda one, other: one.thread == other.thread
    ),
    "release fences make no pattern": function(strength, "release_patterns", any_pattern(fenced)),
    "release operations make no pattern": function(
        strength, "release_patterns", any_pattern(lambda one, first, last: bool(one.events[first].fence))
    ),
    "a release ends with the next write": function(
        strength,
        "release_patterns",
        any_pattern(lambda one, first, last: first == last or bool(one.events[first].fence)),
    ),
    "a fence covers the write before it": function(strength, "release_patterns", late_members),
    "acquire fences make no pattern": function(strength, "acquire_patterns", any_pattern(fenced)),
    "acquire operations make no pattern": function(
        strength, "acquire_patterns", any_pattern(lambda one, first, last: bool(one.events[last].fence))
    ),
    "a relaxed read and an acquire make no pattern": function(
        strength,
        "acquire_patterns",
        any_pattern(lambda one, first, last: first == last or bool(one.events[last].fence)),
    ),
    "a fence covers the read after it": function(strength, "acquire_patterns", late_members),
    "a red makes an acquire pattern": each_event(
        lambda event: replace(event, reduction=False) if is_kind(event, "Atomic") else event
    ),
    "relaxed reads acquire": each_event(lambda event: replace(event, acquire=event.reads and event.strong)),
    "relaxed writes release": each_event(lambda event: replace(event, release=event.writes and event.strong)),
    "volatile is weak": each_event(
        lambda event: replace(event, strong=False) if getattr(event.instruction, "order", "") == "volatile" else event
    ),
    "weak is relaxed": each_event(
        lambda event: (
            replace(event, strong=True, scope="sys")
            if event.memory and not event.strong and not event.asynchronous
            else event
        )
    ),
    "fence.sc is fence.acq_rel": each_event(lambda event: replace(event, fence="acq_rel") if event.fence else event),
    "fence.acq_rel is fence.sc": each_event(lambda event: replace(event, fence="sc") if event.fence else event),
    "membar is fence.acq_rel": each_event(
        lambda event: replace(event, fence="acq_rel") if getattr(event.instruction, "order", "") == "membar" else event
    ),
    "atomics do not pass a release on": each_event(
        lambda event: replace(event, atomic=False) if is_kind(event, "Atomic") else event
    ),
    "stores pass a release on": each_event(
        lambda event: replace(event, atomic=True, reads=True) if is_kind(event, "Store") and event.strong else event
    ),
    "a failed compare-and-swap writes": each_event(
        lambda event: replace(event, writes=True) if is_kind(event, "Atomic") else event
    ),
    "bar.sync orders nothing": without_order(barrier_pair("Barrier")),
    "bar.warp.sync orders nothing": without_order(barrier_pair("WarpSync")),
    "mbarrier.arrive is relaxed": each_event(
        lambda event: replace(event, release=False) if is_kind(event, "Arrive") else event
    ),
    "try_wait is relaxed": each_event(lambda event: replace(event, acquire=False) if is_kind(event, "Wait") else event),
    "wait_group waits for nothing": without_order(lambda one, other: is_kind(other, "WaitGroup") and one.asynchronous),
    "an arrival of copies waits for none": without_order(
        lambda one, other: is_kind(other, "AsyncArrive") and one.asynchronous and other.asynchronous
    ),
    "a bulk copy completes at once": without_order(
        lambda one, other: is_kind(one, "BulkLoad") and one.asynchronous and other.asynchronous
    ),
    "issue is transitive": way(transitive),
    "copies start before prior instructions": way(lambda one: replace(one, issued=[])),
    "bulk copies are generic": each_event(
        lambda event: replace(event, proxy="generic") if event.proxy == "async" else event
    ),
    "bulk additions are weak": each_event(
        lambda event: replace(event, strong=event.strong and event.proxy == "generic")
    ),
    "ld.global.nc is a weak load": each_event(
        lambda event: replace(event, proxy="generic") if event.proxy == "texture" else event
    ),
    "a proxy fence is none": each_event(lambda event: replace(event, proxy_fence=False)),
    "any fence is a proxy fence": each_event(
        lambda event: replace(event, proxy_fence=event.proxy_fence or not event.memory)
    ),
    "proxies are always ordered": method("_preserved", lambda right, self, base, one, other: True),
    "observation is not part of causality": method(
        "_causality", lambda right, self, preserved, observed: list(preserved)
    ),
    "observation needs no moral strength": method(
        "_observed",
        lambda right, self, sources: {
            source: {read for (read, _), other in sources.items() if other == source}
            for source in sources.values()
            if source != axioms.INITIAL
        },
    ),
    "ends of patterns need no moral strength": method("_strong_ends", lambda right, self, first, last: first != last),
    "patterns never synchronize": method("_synchronized", lambda right, self, observed: set()),
    "fence.sc has no order": method("_fence_orders", lambda right, self, base: iter([base])),
    "one order of fences is tried": method(
        "_fence_orders", lambda right, self, base: itertools.islice(right(self, base), 1)
    ),
    "one coherence order is tried": method(
        "_coherence_orders", lambda right, self, causality: itertools.islice(right(self, causality), 1)
    ),
    "a read is before no write": method(
        "_read_before", lambda right, self, sources, coherence: relations.empty(len(self.events))
    ),
    "strong accesses never race": method(
        "_races",
        lambda right, self, causality: (
            tuple(race for race in right(self, causality)[0] if "weak" in race.first[2] + race.second[2]),
            False,
        ),
    ),
    "conditions always hold": each_event(lambda event: event),
    "a loop never fails": function(events, "_may_race", lambda right: lambda *_: False),
}
# Conditions hang on ways, not on events.
FAULTS["conditions always hold"] = way(lambda one: replace(one, conditions=[]))


@pytest.mark.parametrize("name", thinned(FAULTS, 4))
def test_a_fault_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    FAULTS[name](monkeypatch)
    assert failing() is not None


def test_there_are_enough() -> None:
    assert len(FAULTS) >= 45
