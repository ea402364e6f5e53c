"""The generator: enough different programs, races and none for every cause, and PTX for each."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pytest

from refmoe.litmus import generate
from refmoe.litmus.axioms import judge
from refmoe.litmus.emit import arch, module_text, shape
from refmoe.litmus.generate import drawn, judged, systematic
from refmoe.litmus.program import (
    Address,
    Arrive,
    Atomic,
    Barrier,
    BulkLoad,
    BulkStore,
    CommitGroup,
    Load,
    Program,
    ProgramError,
    Store,
    Thread,
    ThreadPlace,
    Until,
    Wait,
    WaitGroup,
)
from refmoe.litmus.run import observe

X = Address.of("x")
STORES, COMMITS, WAITS = BulkStore(X, Address.of("a")), CommitGroup(bulk=True), WaitGroup(0, bulk=True, read=True)


def one(*instructions: object, place: ThreadPlace = ThreadPlace()) -> Thread:  # noqa: B008 (frozen)
    return Thread(place, tuple(instructions))  # type: ignore[arg-type]


def test_there_are_ten_thousand_systematic_ones_each_of_which_is_a_program() -> None:
    found = {program.key: program for program in systematic()}
    assert len(found) >= 10_000
    shapes = Counter(program.shape for program in found.values())
    assert len(shapes) >= 35
    assert max(shapes.values()) < len(found) // 2
    for program in found.values():
        program.check()


def test_the_same_seed_gives_the_same_programs() -> None:
    first, again, other = ([program.key for program, _ in judged(20, seed)] for seed in (3, 3, 4))
    assert first == again != other
    assert len(set(first)) == 20


def test_random_ones_never_repeat_a_key_and_change_the_systematic_ones() -> None:
    found = list(itertools.islice(drawn(0), 300))
    causes = Counter(program.cause for program in found)
    assert {"changed: left out", "changed: moved", "changed: scope", "changed: order"} <= set(causes)
    assert sum(program.shape == "random" for program in found) > 50


def test_right_programs_have_no_race_and_wrong_ones_have() -> None:
    # What the generator calls "in order" is so, and of every other cause some program has a race.
    kinds: dict[tuple[str, str], Counter[str]] = {}
    free = racing = 0
    for program, verdict in judged(300, 11):
        kinds.setdefault((program.shape, program.cause), Counter())[verdict.when] += 1
        free, racing = free + (not verdict.racy), racing + verdict.racy
    assert min(free, racing) > 100
    for (_, cause), counts in kinds.items():
        if cause == "in order":
            assert set(counts) == {"never"}


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_each_program_has_a_kernel(target: str) -> None:
    for program in itertools.islice(systematic(), 0, None, 97):
        if target == "sm_80" and arch(program) == "sm_90":
            with pytest.raises(ProgramError, match="sm_90 is needed"):
                module_text([program], "sm_80")
            continue
        text = module_text([program], target)  # type: ignore[arg-type]
        assert f".target {target}\n" in text
        assert text.count(".entry") == 1
        assert "try_wait" not in re.sub("//.*", "", text) or target == "sm_90"
        labels = re.findall(r"^(\w+):", text, re.MULTILINE)
        assert len(labels) == len(set(labels))
        assert set(re.findall(r"bra (\w+);", text)) <= set(labels)


def test_a_kernel_is_launched_with_as_many_threads_as_its_places_need() -> None:
    load = Load("r0", X)
    lanes = Program("", "", (one(load), one(load, place=ThreadPlace(0, 0, 5))))
    warps = Program("", "", (one(load), one(load, place=ThreadPlace(0, 2))))
    meeting = Program("", "", (one(Barrier(1, 1)), one(load, place=ThreadPlace(1))))
    cluster = Program("", "", (one(load), one(load, place=ThreadPlace(2))), cluster=2)
    found = [shape(program) for program in (lanes, warps, meeting, cluster)]
    assert [(each.grid, each.block, each.cluster) for each in found] == [(1, 6, 1), (1, 96, 1), (2, 32, 1), (4, 1, 2)]


@pytest.mark.parametrize(
    ("threads", "reason"),
    [
        ((one(),), "two to four"),
        ((one(), one()), "one place"),
        ((one(Load("r0", X, 3)), one(place=ThreadPlace(1))), "a width of"),
        ((one(Load("r0", Address.of("x+1"))), one(place=ThreadPlace(1))), "at its multiple"),
        ((one(Load("r0", X, order="relaxed")), one(place=ThreadPlace(1))), "a scope is needed"),
        ((one(Store(X, 1, scope="gpu")), one(place=ThreadPlace(1))), "may not be there"),
        ((one(Atomic("exch", X, 1)), one(place=ThreadPlace(1))), "a red adds"),
        ((one(Atomic("add", X, 1, "acquire")), one(place=ThreadPlace(1))), "a red adds"),
        ((one(Until(Atomic("add", X, 1), 1)), one(place=ThreadPlace(1))), "looks at a register"),
        ((one(Until(Atomic("exch", X, 1, register="r0"), 1)), one(place=ThreadPlace(1))), "writes nothing"),
        ((one(BulkLoad(Address.of("a"), X, 0)), one(place=ThreadPlace(1))), "no barrier in memory m0"),
        ((one(Barrier(1, 1)), one(place=ThreadPlace(0, 0, 1))), "lanes of one warp"),
        ((one(Load("r0", Address.of("a"), order="nc")), one(place=ThreadPlace(1))), "nc is for global"),
    ],
)
def test_what_is_no_program_is_refused(threads: tuple[Thread, ...], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        Program("", "", threads).check()


@pytest.mark.parametrize(
    ("instructions", "early"),
    [
        ((STORES, COMMITS, WAITS), False),
        (
            (STORES, COMMITS, BulkStore(Address.of("z"), Address.of("a")), COMMITS, WaitGroup(1, bulk=True), WAITS),
            False,
        ),
        ((STORES, COMMITS), True),
        ((STORES, WAITS, COMMITS), True),
        ((STORES, WAITS), True),
        ((STORES, COMMITS, WaitGroup(1, bulk=True)), True),
        ((STORES, COMMITS, WaitGroup(0)), True),
        ((STORES, COMMITS, WAITS, BulkStore(Address.of("z"), Address.of("a"))), True),
    ],
)
def test_a_thread_waits_until_its_bulk_copies_have_read(instructions: tuple[object, ...], early: bool) -> None:
    found = Program("", "", (one(*instructions), one(place=ThreadPlace(1))))
    found.check()
    assert found.ends_early is early
    # The executor says so, too: such a program has no outcome.
    (seen,) = observe([found])
    assert (seen.error is not None) is early


@pytest.mark.parametrize(("place", "early"), [(ThreadPlace(0, 1), False), (ThreadPlace(1), True)])
def test_a_block_waits_for_its_bulk_loads(place: ThreadPlace, early: bool) -> None:
    loads = one(Arrive(0, 16), BulkLoad(Address.of("a"), X, 0))
    found = Program("", "", (loads, one(Wait(0, 0), place=place)), mbarriers=(1,))
    assert found.ends_early is early


def test_a_program_that_ends_early_is_drawn_only_if_it_has_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    other = one(Load("r0", Address.of("y")), place=ThreadPlace(1))
    silent = Program("", "", (one(STORES, COMMITS), other))
    racy = Program("", "", (one(STORES, COMMITS, Store(Address.of("a"), 1)), other))
    waits = Program("", "", (one(STORES, COMMITS, WAITS), other))
    monkeypatch.setattr(generate, "_mixed", lambda order, drawn: iter((silent, racy, waits)))
    assert [program for program, _ in judged(3)] == [racy, waits]


def test_no_variable_of_a_name() -> None:
    with pytest.raises(ProgramError, match="no variable 'q'"):
        Address.of("q")


def test_programs_that_differ_in_name_only_are_one() -> None:
    threads = (one(Store(X, 1)), one(Load("r0", X), place=ThreadPlace(1)))
    assert Program("a", "b", threads).key == Program("c", "d", threads).key
    assert judge(Program("a", "b", threads)).racy
