"""`cp.reduce.async.bulk`, whose elements are atomics of another proxy, beside each other and beside anything else.

Two of them do not race. A generic access, be it atomic, does with one until both are in order; and behind what it wrote
a proxy fence is needed besides.
"""

from __future__ import annotations

from collections.abc import Iterator

from refmoe.litmus.passing import Several
from refmoe.litmus.program import (
    Address,
    Atomic,
    BulkStore,
    CommitGroup,
    Fence,
    Instruction,
    Load,
    Program,
    ProxyFence,
    Store,
    Thread,
    Until,
    WaitGroup,
)
from refmoe.litmus.shapes import PLACES

_Y, _Z, _A, _B = (Address.of(name) for name in "yzab")
_COMMIT, _READ, _DONE = CommitGroup(bulk=True), WaitGroup(0, bulk=True, read=True), WaitGroup(0, bulk=True)
_FENCE = ProxyFence()
_QUIET: Several = (Fence("acq_rel", "cta"),)
# What a thread adds, and how it adds something else: shared memory is that of its CTA, so it fills it itself.
_FILLED: Several = (Store(_A, 5), _FENCE)
_ISSUE: Several = (BulkStore(_Y, _A, adds=True), _COMMIT)
_ADDS: Several = (*_FILLED, *_ISSUE, _DONE)
_OTHER: Several = (Store(_B, 3), _FENCE)
_SIGNAL = Store(_Z, 1, order="release", scope="gpu")
_POLL = Until(Load("r2", _Z, order="acquire", scope="gpu"), 1)
#: A cause, and what two threads do.
Form = tuple[str, tuple[Several, Several]]


def additions() -> Iterator[Program]:
    """All of them, with both numbers of the threads."""
    accesses: dict[str, Instruction] = {
        "a read": Load("r0", _Y),
        "a read of another word": Load("r0", Address.of("y+4")),
        "a relaxed read": Load("r0", _Y, order="relaxed", scope="gpu"),
        "a write": Store(_Y, 7),
        "a relaxed write": Store(_Y, 7, order="relaxed", scope="gpu"),
        "a red": Atomic("add", _Y, 3, "relaxed", "gpu", None),
        "an atomic": Atomic("add", _Y, 3, "relaxed", "gpu", "r0"),
    }
    for where in ("lanes", "warps", "CTAs"):
        forms = list(_beside_copies())
        for name, each in accesses.items():
            forms += _beside(name, each)
        for cause, threads in forms:
            for order in (threads, threads[::-1]) if threads[1] != _QUIET else (threads,):
                places = zip(PLACES[where], order, strict=False)
                yield Program("bulk addition", cause, tuple(Thread(*each) for each in places))


def _beside_copies() -> Iterator[Form]:
    """Two additions, an addition and a bulk store, and an addition and writes of its source."""
    also: Several = (*_OTHER, BulkStore(_Y, _B, adds=True), _COMMIT)
    store: Several = (*_OTHER, BulkStore(_Y, _B), _COMMIT)
    yield "in order, two of them", (_ADDS, (*also, _DONE))
    yield "in order, two of one thread", ((*_ADDS, *also, _DONE), _QUIET)
    yield "in order, two of one thread at once", ((*_FILLED, *_ISSUE, *also, _DONE), _QUIET)
    yield "source overwritten before the wait", ((*_FILLED, *_ISSUE, Store(_A, 6), _DONE), _QUIET)
    yield "in order, source overwritten after its read", ((*_FILLED, *_ISSUE, _READ, Store(_A, 6), _DONE), _QUIET)
    yield "a bulk store beside it", (_ADDS, (*store, _DONE))
    yield "a bulk store of its thread beside it", ((*_FILLED, *_ISSUE, *store, _DONE), _QUIET)
    yield "in order, a bulk store of its thread after the wait", ((*_ADDS, *store, _DONE), _QUIET)


def _beside(name: str, each: Instruction) -> Iterator[Form]:
    """An addition and an access of the generic proxy."""
    yield f"in order, {name} after the wait", ((*_ADDS, each), _QUIET)
    yield f"{name} without a wait", ((*_FILLED, *_ISSUE, each, _DONE), _QUIET)
    yield f"{name} after the wait for the source", ((*_FILLED, *_ISSUE, _READ, each, _DONE), _QUIET)
    yield f"in order, {name} of another thread", ((*_ADDS, _SIGNAL), (_POLL, each))
    yield f"{name} of another thread, before the wait", ((*_FILLED, *_ISSUE, _SIGNAL, _DONE), (_POLL, each))
    yield f"{name} of another thread", (_ADDS, (each,))
    two: Several = (*_FILLED, *_ISSUE, *_ISSUE)
    yield f"{name} after the first of two groups", ((*two, WaitGroup(1, bulk=True), each, _DONE), _QUIET)
    yield f"in order, {name} after two groups", ((*two, _DONE, each), _QUIET)
    yield f"in order, {name} before, and a fence", ((each, *_ADDS), _QUIET)
    yield f"in order, {name} of another thread before, and a fence", ((each, _FENCE, _SIGNAL), (_POLL, *_ADDS))
    if not isinstance(each, Load):
        # Whether one has to lie behind a read is open, see `refmoe.litmus.axioms.Reading`.
        yield f"no proxy fence, {name} before", ((*_FILLED, each, *_ISSUE, _DONE), _QUIET)
        yield f"no proxy fence, {name} between two of them", ((*_ADDS, each, *_ISSUE, _DONE), _QUIET)
