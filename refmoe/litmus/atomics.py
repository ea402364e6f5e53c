"""The shapes of two threads with atomics in the place of one or two of their accesses.

An atomic reads and writes as one, so that more orders follow from it than from a load and a store, and fewer from one
that compares and finds something else: that is a read. What its thread does before and after it may still be seen in
another order, across a fence or an acquire, too, that synchronises with nobody.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

from refmoe.litmus.program import Address, Atomic, Instruction, Program, Thread
from refmoe.litmus.shapes import PLACES, SHAPES, Step, access, fence

#: What takes the place of a read and of a write: `add` of 0 and `exch`, or `cas`, which writes what it finds or not.
Form = Literal["always", "perhaps", "never"]
FORMS: tuple[Form, ...] = ("always", "perhaps", "never")
#: Whether accesses order others by themselves.
ORDERS = ("relaxed", "acquire and release")
_FENCES = ("none", "acq_rel", "sc")
_WHERE = ("lanes", "CTAs")
# A value that nobody writes, and one that a comparison leaves where it finds what it looks for.
_NEVER, _LEFT = 77, 9


def atomics() -> Iterator[Program]:
    """All of them."""
    for shape, steps in SHAPES.items():
        if len(steps) > 2:
            continue
        places = [(thread, number) for thread, each in enumerate(steps) for number in range(len(each))]
        chosen = [frozenset(each) for count in (1, 2) for each in itertools.combinations(places, count)]
        for which, form, order, name, where in itertools.product(chosen, FORMS, ORDERS, _FENCES, _WHERE):
            yield _built(shape, which, form, order, name, where)


def atomic(step: Step, form: Form, order: str) -> Atomic:
    """An atomic in the place of a read or a write."""
    what, variable, value = step
    at = Address.of(variable)
    ordered = "relaxed" if order == "relaxed" else "acquire" if what == "R" else "release"
    register = str(value) if what == "R" else f"w{variable}"
    operand = 0 if what == "R" else int(value)
    if form == "always":
        return Atomic("add" if what == "R" else "exch", at, operand, ordered, "gpu", register)  # type: ignore[arg-type]
    if form == "never":
        return Atomic("cas", at, _LEFT, ordered, "gpu", register, _NEVER)  # type: ignore[arg-type]
    # A read finds what somebody may have written, a write what is there at first.
    compare, operand = (1, _LEFT) if what == "R" else (0, operand)
    return Atomic("cas", at, operand, ordered, "gpu", register, compare)  # type: ignore[arg-type]


def _built(shape: str, which: frozenset[tuple[int, int]], form: Form, order: str, name: str, where: str) -> Program:
    threads = []
    for thread, steps in enumerate(SHAPES[shape]):
        done: list[Instruction] = []
        for number, step in enumerate(steps):
            each = atomic(step, form, order) if (thread, number) in which else access(step, order, "gpu")
            done += (*(fence(name, "gpu") if done else ()), each)
        threads.append(Thread(PLACES[where][thread], tuple(done)))
    return Program(f"{shape} with atomics", f"{form} written; {order}; fence {name}", tuple(threads))
