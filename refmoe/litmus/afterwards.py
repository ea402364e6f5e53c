"""What only shows afterwards: fences `.sc` whose order a later read tells, and reads that happen late.

Of two fences `.sc` either may be the first one. An access behind the one, and another in front of the other, may tell
which it was, when the thread of the second has long gone on. What it did since then has come behind the first fence.

A read may happen after later accesses of its thread, whatever fence lies between, unless who is told of these has
done what the read sees. A read that acquires may do so, too, and so may one that a fence makes an acquire. If its
thread stores to the same bytes next, it takes what comes under that store in coherence order. That may be the store of
another thread that depends on what this thread wrote later.

A thread that has released passes that on by whatever it writes there next, wherever the first write came.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

from refmoe.litmus.program import Address, Atomic, Fence, If, Instruction, Load, Program, Scope, Store, Thread, Until
from refmoe.litmus.shapes import PLACES, cluster_of

#: Which access tells the order of two fences: of the first thread, and of the second one.
Telling = Literal["read", "swap", "add", "read of a third", "write"]
TELLING: tuple[Telling, ...] = ("read", "swap", "add", "read of a third", "write")
#: What a read that happens late is.
LATE = ("acquire", "fence", "fence.sc", "atomic", "atomic that releases")
#: What a read is of bytes that its thread stores next.
OVERTAKEN = ("relaxed", *LATE)
#: How its thread passes on that it has stored.
PASSED = ("relaxed", "release", "acq_rel", "sc")
#: How what it reads was released.
RELEASES = ("relaxed", "release", "fence", "atomic")
#: What another thread writes to a place where a thread writes twice.
BETWEEN = ("nothing", "relaxed", "release", "atomic")
_FENCES: tuple[Fence | None, ...] = (None, Fence("sc", "cta"), Fence("sc", "cluster"), Fence("sc", "gpu"))
_WHERE = ("lanes", "warps", "CTAs")
_X, _Y, _Z, _D, _W = (Address.of(name) for name in "xyzuw")
_SHARED = tuple(Address.of(name) for name in "abc")


def afterwards() -> Iterator[Program]:
    """All of them."""
    yield from told()
    yield from late()
    yield from overtaken()
    yield from written_again()


def _load(register: str, at: Address, order: str = "relaxed") -> Load:
    return Load(register, at, order=order, scope="gpu")  # type: ignore[arg-type]


def _store(at: Address, value: int | str, order: str = "relaxed") -> Store:
    return Store(at, value, order=order, scope="gpu")  # type: ignore[arg-type]


def _atomic(operation: str, at: Address, operand: int, order: str = "relaxed", compare: int = 0) -> Atomic:
    return Atomic(operation, at, operand, order, "gpu", "r0", compare)  # type: ignore[arg-type]


def _built(shape: str, cause: str, where: str, threads: Sequence[Sequence[Instruction | None]]) -> Program:
    places = PLACES[where][: len(threads)]
    held = [tuple(each for each in thread if each is not None) for thread in threads]
    scopes: list[Scope] = [each.scope for thread in held for each in thread if isinstance(each, Fence)]
    made = tuple(Thread(place, each) for place, each in zip(places, held, strict=True))
    return Program(shape, f"{where}: {cause}", made, cluster=cluster_of(places, scopes))


def told() -> Iterator[Program]:
    """A message is read where a flag tells that the writer's fence came before the reader's.

    With `more` the reader writes something behind its fence and at its end, and reads of its own may pass both.
    """
    choices = itertools.product(TELLING, _FENCES, _FENCES, (False, True), _WHERE)
    for telling, first, second, more, where in choices:
        names = [str(each) if each is not None else "none" for each in (first, second)]
        cause = " and ".join(names) + (" and more" if more else "")
        yield _built(f"told by a {telling}", cause, where, _telling(telling, first, second, more))


def _telling(telling: Telling, first: Fence | None, second: Fence | None, more: bool) -> list[list[Instruction | None]]:
    behind, end = (_store(_Z, 1), _store(_W, 1)) if more else (None, None)
    reads: list[Instruction | None] = [_load("r1", _Y), behind, If("r1", 1, (Load("r2", _D),)), end]
    tells = If("r0", 0, (_store(_Y, 1),))
    message = Store(_D, 7)
    if telling == "read":
        return [[message, first, _load("r0", _X), tells], [_store(_X, 1), second, *reads]]
    if telling == "swap":
        missing = _atomic("cas", _X, 9, compare=5)
        return [[message, first, missing, tells], [_store(_X, 1), second, *reads]]
    if telling == "add":
        return [[message, first, _atomic("add", _X, 1), tells], [_atomic("add", _X, 1), second, *reads]]
    if telling == "read of a third":
        third = [Until(_load("r0", _X), 1), second, *reads]
        return [[message, first, _load("r0", _X), tells], [_store(_X, 1)], third]
    both = If("r0", 1, (_load("r1", _X), _store(_Y, "r1")))
    reads[2] = If("r1", 2, (Load("r2", _D),))
    return [[message, first, _store(_X, 1)], [_store(_X, 2), second, *reads], [_load("r0", _X), both]]


def late() -> Iterator[Program]:
    """A read, and behind it a write that comes back to it: by another thread, or by two."""
    for read, order, release, where in itertools.product(LATE, ("relaxed", "release"), RELEASES, _WHERE):
        for x, y, z in (_X, _Y, _Z), _SHARED:
            if x == _SHARED[0] and where == "CTAs":
                continue
            thread: list[Instruction | None] = [*_late(read, x), _store(y, 1, order)]
            cause = f"{read}, {order}, {release}" + (", shared" if x == _SHARED[0] else "")
            passed: list[Instruction | None] = [_load("r0", y), _store(z, "r0")]
            yield _built("late by three", cause, where, [thread, passed, [_load("r0", z), *_release(release, x)]])
            if release == "relaxed":
                for fence in None, Fence("sc", "gpu"):
                    held = [fence, _load("r0", y), _store(x, "r0")]
                    after = "" if fence is None else ", behind a fence.sc"
                    yield _built("late by two", cause + after, where, [thread, held])


def overtaken() -> Iterator[Program]:
    """A read, and behind it a store of the same bytes, under which comes that of a thread that knows of a later one."""
    for read, passed, observer, where in itertools.product(OVERTAKEN, PASSED, ("read", "swap"), _WHERE):
        for x, y in (_X, _Y), _SHARED[:2]:
            if x == _SHARED[0] and where == "CTAs":
                continue
            fence = None if passed in ("relaxed", "release") else Fence(passed, "gpu")  # type: ignore[arg-type]
            last = _store(y, 1, "release" if passed == "release" else "relaxed")
            thread: list[Instruction | None] = [*_late(read, x), _store(x, 2), fence, last]
            observed = _load("r0", y) if observer == "read" else _atomic("exch", y, 3)
            cause = f"{read}, {passed}, {observer}" + (", shared" if x == _SHARED[0] else "")
            yield _built("overtaken", cause, where, [thread, [observed, _store(x, "r0")]])


def written_again() -> Iterator[Program]:
    """A message is read where its writer has written again, behind its release."""
    for release, again, between, where in itertools.product(RELEASES, ("store", "swap"), BETWEEN, _WHERE):
        second = _store(_X, 2) if again == "store" else _atomic("exch", _X, 2)
        writer: list[Instruction | None] = [Store(_D, 7), *_release(release, _X), second]
        reader: list[Instruction | None] = [_load("r0", _X, "acquire"), If("r0", 2, (Load("r1", _D),))]
        other: list[list[Instruction | None]] = []
        if between == "atomic":
            other = [[_atomic("add", _X, 16)]]
        elif between != "nothing":
            other = [[_store(_X, 9, between)]]
        yield _built("written again", f"{release}, {again}, {between}", where, [writer, *other, reader])


def _late(read: str, at: Address) -> tuple[Instruction, ...]:
    if read in ("relaxed", "acquire"):
        return (_load("r0", at, read),)
    if read.startswith("fence"):
        return (_load("r0", at), Fence("sc" if read == "fence.sc" else "acq_rel", "gpu"))
    return (_atomic("add", at, 2, "acquire" if read == "atomic" else "acq_rel"),)


def _release(release: str, at: Address) -> tuple[Instruction, ...]:
    if release == "fence":
        return (Fence("acq_rel", "gpu"), _store(at, 1))
    if release == "atomic":
        return (Atomic("exch", at, 1, "release", "gpu", "r1", 0),)
    return (_store(at, 1, release),)
