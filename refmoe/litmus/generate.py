"""Litmus programs by seed: the systematic ones first, then random ones, each with its verdict.

The systematic ones are `classical` shapes, shapes with atomics, message passing, what CUDA programmers write, fences of
unlike scopes, what only shows afterwards, asynchronous copies, and such that add. Random ones are systematic ones with
an instruction left out, moved or changed, and small programs drawn from scratch: of whatever there is, or of strong
accesses that contend.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import get_args

from refmoe.litmus.additions import additions
from refmoe.litmus.afterwards import afterwards
from refmoe.litmus.atomics import atomics
from refmoe.litmus.axioms import TooLarge, judge
from refmoe.litmus.copies import copies
from refmoe.litmus.fenced import fenced
from refmoe.litmus.idioms import patterns
from refmoe.litmus.interleave import TooManyStates, may_hang
from refmoe.litmus.meetings import meetings
from refmoe.litmus.passing import chains, messages
from refmoe.litmus.program import (
    Address,
    Atomic,
    Barrier,
    ClusterArrive,
    ClusterWait,
    Fence,
    If,
    Instruction,
    Load,
    Program,
    ProgramError,
    Scope,
    Store,
    Thread,
    Until,
    WarpSync,
    walk,
)
from refmoe.litmus.shapes import PLACES, classical, cluster_of
from refmoe.litmus.verdict import ModelVerdict

_SCOPES: tuple[Scope, ...] = get_args(Scope)
#: Of 10 random programs, so many are changed systematic ones, and so many contend.
_CHANGED, _CONTEND = 5, 3
#: Of 10 programs, so many are random ones.
_RANDOM = 3


def systematic() -> Iterator[Program]:
    """Every systematic program, with repetitions."""
    yield from patterns()
    yield from copies()
    yield from additions()
    yield from meetings()
    yield from messages()
    yield from chains()
    yield from fenced()
    yield from classical()
    yield from atomics()
    yield from afterwards()


def drawn(seed: int) -> Iterator[Program]:
    """Random programs without end; some of them wait for ever, and some are none."""
    random_ = random.Random(seed)
    sources = list(systematic())
    while True:
        kind = random_.randrange(10)
        if kind < _CHANGED:
            yield changed(random_.choice(sources), random_)
        else:
            yield scratch(random_, contended if kind < _CHANGED + _CONTEND else None)


def judged(count: int, seed: int = 0) -> Iterator[tuple[Program, ModelVerdict]]:
    """So many different programs with their verdicts; the same ones for the same seed.

    Of ten programs three are random. If there are more systematic ones than are asked for, those that come are spread
    evenly over them; behind the last one all are random. Programs that may wait for ever, such as have too many
    executions to judge, and such without a race as do not wait for a copy, are left out.
    """
    seen: set[str] = set()
    order = list({program.key: program for program in systematic()}.values())
    random.Random(seed).shuffle(order)
    for program in _mixed(order, drawn(seed)):
        if len(seen) == count:
            return
        if program.key in seen:
            continue
        try:
            program.check()
            if may_hang(program):
                continue
            verdict = judge(program)
        except (ProgramError, TooLarge, TooManyStates):
            continue
        if program.ends_early and not verdict.racy:
            continue
        seen.add(program.key)
        yield program, verdict


def _mixed(order: list[Program], drawn_: Iterator[Program]) -> Iterator[Program]:
    """Systematic programs with random ones among them, and these alone behind the last one."""
    for number, program in enumerate(order):
        yield program
        # Of so many systematic programs there have come as many random ones as make the share.
        behind, before = ((each * _RANDOM) // (10 - _RANDOM) for each in (number + 1, number))
        yield from itertools.islice(drawn_, behind - before)
    yield from drawn_


# ---- changed programs -----------------------------------------------------------------------------------------------


def changed(program: Program, random_: random.Random) -> Program:
    """A program with one instruction left out, exchanged with the next, or with another order or scope."""
    number = random_.randrange(len(program.threads))
    thread = program.threads[number]
    instructions = list(thread.instructions)
    if not instructions:
        return program
    place = random_.randrange(len(instructions))
    each = instructions[place]
    what = random_.choice(("left out", "moved", "scope", "order", "order"))
    if what == "left out" and not _needed(program, each):
        del instructions[place]
    elif what == "moved" and place + 1 < len(instructions):
        instructions[place : place + 2] = instructions[place + 1], each
    elif what in ("scope", "order"):
        instructions[place] = _other(each, what, random_)
    threads = list(program.threads)
    threads[number] = Thread(thread.place, tuple(instructions))
    return replace(program, threads=tuple(threads), cause=f"changed: {what}")


def _needed(program: Program, each: Instruction) -> bool:
    """Whether somebody may wait for ever without an instruction."""
    if isinstance(each, Barrier | WarpSync | ClusterArrive | ClusterWait):
        return True
    polled = {
        one.attempt.at for thread in program.threads for one in walk(thread.instructions) if isinstance(one, Until)
    }
    return any(isinstance(one, Store | Atomic) and one.at in polled for one in walk((each,)))


def _other(each: Instruction, what: str, random_: random.Random) -> Instruction:
    """An instruction with another scope or order, if it has one."""
    if isinstance(each, Until):
        attempt = _other(each.attempt, what, random_)
        return replace(each, attempt=attempt) if isinstance(attempt, Load | Atomic) else each
    if isinstance(each, If):
        at = random_.randrange(len(each.body))
        body = (*each.body[:at], _other(each.body[at], what, random_), *each.body[at + 1 :])
        return replace(each, body=body)
    if what == "scope":
        if isinstance(each, Load | Store | Atomic | Fence) and each.scope is not None:
            scope = random_.choice(_SCOPES)
            if isinstance(each, Fence) and each.order == "membar" and scope == "cluster":
                return each
            return replace(each, scope=scope)
        return each
    if isinstance(each, Load):
        order = random_.choice(("weak", "volatile", "relaxed", "acquire"))
        return replace(each, order=order, scope=_scope(order, random_))  # type: ignore[arg-type]
    if isinstance(each, Store):
        order = random_.choice(("weak", "volatile", "relaxed", "release"))
        return replace(each, order=order, scope=_scope(order, random_))  # type: ignore[arg-type]
    if isinstance(each, Atomic):
        orders = ("relaxed", "release") if each.register is None else ("relaxed", "acquire", "release", "acq_rel")
        return replace(each, order=random_.choice(orders))  # type: ignore[arg-type]
    if isinstance(each, ClusterArrive):
        return replace(each, relaxed=not each.relaxed)
    if isinstance(each, Fence):
        return replace(each, order=random_.choice(("acq_rel", "sc", "acquire", "release")))
    return each


def _scope(order: str, random_: random.Random) -> Scope | None:
    return None if order in ("weak", "volatile") else random_.choice(_SCOPES)


# ---- programs from scratch ------------------------------------------------------------------------------------------


def scratch(
    random_: random.Random, instruction: Callable[[random.Random, int, bool], Instruction] | None = None
) -> Program:
    """Two or three threads of two to four instructions on up to three variables.

    Args:
        random_: draws.
        instruction: draws one of a thread, by its number and whether all are of one CTA; None for any.
    """
    instruction = instruction or _instruction
    count = random_.choice((2, 2, 2, 3))
    where = random_.choice(tuple(PLACES))
    places = PLACES[where][:count]
    one_cta = len({place.cta for place in places}) == 1
    meets = one_cta and random_.randrange(3) == 0
    threads = []
    for number, place in enumerate(places):
        instructions = [
            instruction(random_, number, one_cta) for _ in range(random_.randrange(2, 5 if count == 2 else 4))
        ]
        registers = [each.register for each in instructions if isinstance(each, Load | Atomic) and each.register]
        if registers and random_.randrange(3) == 0:
            # What follows happens only if the last read saw something.
            at = max(n for n, each in enumerate(instructions) if getattr(each, "register", None) == registers[-1])
            rest = tuple(instructions[at + 1 :])
            if rest:
                instructions[at + 1 :] = [If(registers[-1], random_.randrange(3), rest, random_.randrange(2) == 0)]
        if meets:
            warp = len({each.warp for each in places}) == 1
            mask = sum(1 << each.lane for each in places)
            meet: Instruction = WarpSync(mask) if warp else Barrier(1, count)
            instructions.insert(random_.randrange(len(instructions) + 1), meet)
        threads.append(Thread(place, tuple(instructions)))
    scopes = [
        each.scope
        for thread in threads
        for each in walk(thread.instructions)
        if isinstance(each, Load | Store | Atomic | Fence) and each.scope
    ]
    return Program("random", f"{count} {where}", tuple(threads), cluster=cluster_of(places, scopes))


def _instruction(random_: random.Random, thread: int, shared: bool) -> Instruction:
    at = Address.of(random_.choice(("x", "y", "x", "y", "z", "x+4", "a" if shared else "x")))
    kind, scope = random_.randrange(10), random_.choice(_SCOPES)
    register = f"r{random_.randrange(3)}"
    width = random_.choice((4, 4, 4, 8, 2, 1)) if at.offset % 8 == 0 else 4
    if kind < 4:
        order = random_.choice(("weak", "volatile", "relaxed", "relaxed", "acquire"))
        return Load(register, at, width, order, None if order in ("weak", "volatile") else scope)  # type: ignore[arg-type]
    if kind < 7:
        order = random_.choice(("weak", "volatile", "relaxed", "relaxed", "release"))
        value: int | str = random_.choice((1, 2, thread + 3, register))
        return Store(at, value, width, order, None if order in ("weak", "volatile") else scope)  # type: ignore[arg-type]
    if kind < 8:
        order = random_.choice(("relaxed", "acquire", "release", "acq_rel"))
        operation = random_.choice(("add", "exch", "cas"))
        return Atomic(operation, at, random_.randrange(1, 4), order, scope, register, random_.randrange(2))  # type: ignore[arg-type]
    name = random_.choice(("acq_rel", "acq_rel", "sc", "sc", "membar", "acquire", "release"))
    return Fence(name, "gpu" if name == "membar" and scope == "cluster" else scope)  # type: ignore[arg-type]


def contended(random_: random.Random, thread: int, shared: bool) -> Instruction:
    """A strong access or a fence, most of which reach every thread: what may be seen in many orders without a race."""
    at, kind = Address.of(random_.choice("xyxyz")), random_.randrange(20)
    scope = random_.choice(("gpu", "gpu", "gpu", "cta" if shared else "sys", "cluster"))
    register = f"r{random_.randrange(3)}"
    if kind < 5:
        return Load(register, at, 4, random_.choice(("relaxed", "relaxed", "acquire")), scope)  # type: ignore[arg-type]
    if kind < 9:
        value: int | str = random_.choice((1, 2, thread + 3, register))
        return Store(at, value, 4, random_.choice(("relaxed", "relaxed", "release")), scope)  # type: ignore[arg-type]
    if kind < 16:
        order = random_.choice(("relaxed", "relaxed", "relaxed", "acquire", "release", "acq_rel"))
        operation = random_.choice(("add", "exch", "cas", "cas"))
        operand, compare = random_.randrange(1, 4), random_.randrange(3)
        return Atomic(operation, at, operand, order, scope, register, compare)  # type: ignore[arg-type]
    return Fence(random_.choice(("acq_rel", "acq_rel", "sc", "sc", "acquire", "release")), scope)  # type: ignore[arg-type]
