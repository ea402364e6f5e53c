"""What has to hold of all programs: of random ones by seed, and of whole families of shapes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache

import pytest

from refmoe.litmus.axioms import TooLarge, judge
from refmoe.litmus.events import Memory
from refmoe.litmus.generate import drawn, systematic
from refmoe.litmus.interleave import TooManyStates, interleavings
from refmoe.litmus.program import (
    Atomic,
    Fence,
    If,
    Instruction,
    Load,
    Program,
    ProgramError,
    Store,
    Thread,
    ThreadPlace,
    Until,
    walk,
)
from refmoe.litmus.shapes import PLACES, SHAPES, variant
from refmoe.litmus.verdict import ModelVerdict

SEED = 7
COUNT = 150


@cache
def programs() -> tuple[tuple[Program, ModelVerdict], ...]:
    """Random programs with their verdicts, of as many systematic ones as random ones."""
    random_ = random.Random(SEED)
    found = []
    for program in itertools.chain(random_.sample(list(systematic()), COUNT), drawn(SEED)):
        try:
            program.check()
            verdict = judge(program)
        except (ProgramError, TooLarge):
            continue
        if verdict.executions:
            found.append((program, verdict))
        if len(found) == 2 * COUNT:
            break
    return tuple(found)


def with_instruction(program: Program, thread: int, at: int, each: Instruction) -> Program:
    threads = list(program.threads)
    instructions = threads[thread].instructions
    threads[thread] = replace(threads[thread], instructions=(*instructions[:at], each, *instructions[at:]))
    return replace(program, threads=tuple(threads))


def test_another_fence_never_adds_an_outcome_or_a_race() -> None:
    random_, narrower = random.Random(SEED), 0
    for program, verdict in programs():
        thread = random_.randrange(len(program.threads))
        at = random_.randrange(len(program.threads[thread].instructions) + 1)
        fence = Fence(random_.choice(("acq_rel", "sc")), random_.choice(("cta", "gpu", "sys")))
        fenced = judge(with_instruction(program, thread, at, fence))
        assert verdict.racy or not fenced.racy, str(program)
        if verdict.outcomes is not None and fenced.outcomes is not None:
            assert fenced.outcomes <= verdict.outcomes, str(program)
            narrower += fenced.outcomes < verdict.outcomes
    assert narrower > 3


def test_the_order_of_threads_changes_nothing() -> None:
    for program, verdict in programs():
        turned = replace(program, threads=program.threads[::-1])
        other = judge(turned)
        assert (other.racy, other.when, other.executions) == (verdict.racy, verdict.when, verdict.executions)
        assert len(other.races) == len(verdict.races)
        if verdict.outcomes is None:
            assert other.outcomes is None
            continue
        last = len(program.threads) - 1
        names = [(last - thread, register) for thread, register in turned.registers]
        places = [names.index(key) for key in program.registers]
        count = len(names)
        assert other.outcomes is not None
        assert {(*(each[n] for n in places), *each[count:]) for each in other.outcomes} == verdict.outcomes


def widened(each: Instruction) -> Instruction:
    """With the largest scope."""
    if isinstance(each, Until):
        attempt = widened(each.attempt)
        assert isinstance(attempt, Load | Atomic)
        return replace(each, attempt=attempt)
    if isinstance(each, If):
        return replace(each, body=tuple(widened(inner) for inner in each.body))
    if isinstance(each, Load | Store | Atomic | Fence) and each.scope is not None:
        return replace(each, scope="sys")
    return each


def test_a_wider_scope_never_adds_an_outcome_or_a_race() -> None:
    mended = 0
    for program, verdict in programs():
        threads = tuple(
            Thread(thread.place, tuple(widened(each) for each in thread.instructions)) for thread in program.threads
        )
        wide = judge(replace(program, threads=threads))
        assert verdict.racy or not wide.racy, str(program)
        mended += verdict.racy and not wide.racy
        if verdict.outcomes is not None and wide.outcomes is not None:
            assert wide.outcomes <= verdict.outcomes, str(program)
    assert mended > 3


def test_every_interleaving_is_allowed() -> None:
    weaker = 0
    for program, verdict in programs():
        if verdict.outcomes is None:
            continue
        cells = tuple((cell.start, cell.width) for cell in Memory(program).observed)
        try:
            found = interleavings(program, cells)
        except TooManyStates:
            continue
        assert found.outcomes, str(program)
        assert found.outcomes <= verdict.outcomes, str(program)
        weaker += found.outcomes < verdict.outcomes
    # The model allows more, or it would be sequential consistency.
    assert weaker > COUNT // 5


@pytest.mark.parametrize("shape", SHAPES)
def test_with_fence_sc_everywhere_there_are_interleavings_only(shape: str) -> None:
    # The threads of these shapes are strong accesses with a fence.sc of sufficient scope between any two of a thread.
    for kind, name, scope, where in (
        ("relaxed", "sc", "gpu", "CTAs"),
        ("volatile", "membar", "sys", "two CTAs"),
        ("relaxed", "sc", "cta", "warps"),
    ):
        program = variant(shape, (kind,), (name,), (scope,), where)  # type: ignore[arg-type]
        cells = tuple((cell.start, cell.width) for cell in Memory(program).observed)
        verdict = judge(program)
        assert not verdict.racy
        assert interleavings(program, cells).outcomes == verdict.outcomes


@pytest.mark.parametrize("shape", ["SB", "LB", "IRIW", "2+2W", "R", "RWC", "3.SB"])
def test_without_fences_there_is_more(shape: str) -> None:
    program = variant(shape, ("relaxed",), ("none",), ("gpu",), "CTAs")
    cells = tuple((cell.start, cell.width) for cell in Memory(program).observed)
    assert interleavings(program, cells).outcomes < (judge(program).outcomes or frozenset())


def test_a_program_without_cta_scope_does_not_care_for_its_places() -> None:
    compared = 0
    for program, verdict in programs():
        if program.mbarriers or program.cluster > 1:
            continue
        kinds = {type(each).__name__ for thread in program.threads for each in walk(thread.instructions)}
        scopes = {getattr(each, "scope", None) for thread in program.threads for each in walk(thread.instructions)}
        spaces = {each.at.space for t in program.threads for each in walk(t.instructions) if hasattr(each, "at")}
        if not kinds <= {"Load", "Store", "Atomic", "Fence", "If", "Until"} or scopes & {"cta", "cluster"}:
            continue
        if "shared" in spaces:
            continue
        for where in ("lanes", "warps", "CTAs"):
            pairs = zip(PLACES[where], program.threads, strict=False)
            moved = replace(program, threads=tuple(replace(thread, place=place) for place, thread in pairs))
            other = judge(moved)
            assert (other.racy, other.outcomes) == (verdict.racy, verdict.outcomes)
        compared += 1
    assert compared > 20


def test_places_print() -> None:
    assert str(ThreadPlace(1, 2, 3)) == "cta 1 warp 2 lane 3"
