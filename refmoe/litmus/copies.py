"""Asynchronous copies and barriers in memory: pipelines, double buffers, bulk copies and their proxy fences."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from refmoe.litmus.passing import Several
from refmoe.litmus.program import (
    Address,
    Arrive,
    AsyncArrive,
    AsyncCopy,
    Barrier,
    BulkLoad,
    BulkStore,
    CommitGroup,
    Fence,
    Instruction,
    Load,
    Program,
    ProxyFence,
    Store,
    Thread,
    ThreadPlace,
    Until,
    Wait,
    WaitGroup,
    WarpSync,
)
from refmoe.litmus.shapes import PLACES

X, Y, Z, A, B = (Address.of(name) for name in "xyzab")
#: What lies in the source of copies.
SOURCE = tuple((Address.of(f"x+{4 * n}"), 4, 0x11111111 * (n + 1)) for n in range(4))
_COMMIT, _ALL = CommitGroup(), WaitGroup(0)
_BULK_COMMIT, _BULK_ALL, _BULK_READ = (
    CommitGroup(bulk=True),
    WaitGroup(0, bulk=True),
    WaitGroup(0, bulk=True, read=True),
)


def copies() -> Iterator[Program]:
    """All of them."""
    yield from mbarriers()
    yield from double_buffers()
    yield from async_copies()
    yield from bulk_loads()
    yield from bulk_stores()
    yield from several_of_one_thread()
    yield from several_of_two_threads()


def _program(
    shape: str,
    cause: str,
    places: tuple[ThreadPlace, ...],
    threads: tuple[Several, ...],
    mbarriers: tuple[int, ...] = (),
) -> Program:
    pairs = zip(places, threads, strict=True)
    return Program(shape, cause, tuple(Thread(*pair) for pair in pairs), SOURCE, mbarriers)


def mbarriers() -> Iterator[Program]:
    """Barriers in memory: one phase, between two and three threads."""
    accesses: tuple[tuple[Instruction, Instruction, str], ...] = (
        (Store(A, 7), Load("r0", A), ""),
        (Store(Y, 7), Load("r0", Y), ""),
        (Load("r0", A), Store(A, 7), "read-write"),
        (Store(A, 7), Store(A, 8), "write-write"),
        (Store(A, 0x0102030405060708, 8), Load("r0", Address.of("a+4"), 4), "overlap"),
        (Store(A, 7, order="volatile"), Load("r0", A), "strong and weak"),
    )
    arrive, wait = Arrive(0), Wait(0, 0)
    for where, (one, other, special) in itertools.product(("lanes", "warps"), accesses):
        places = PLACES[where]
        forms: list[tuple[str, tuple[Several, ...], int]] = [
            ("in order", ((one, arrive), (wait, other)), 1),
            ("in order, both arrive", ((one, arrive, wait), (arrive, wait, other)), 2),
            ("arrive before the data", ((arrive, one), (wait, other)), 1),
            ("no wait", ((one, arrive), (other,)), 1),
            ("wait after the data", ((one, arrive), (other, wait)), 1),
            ("only the reader arrives", ((one,), (arrive, wait, other)), 1),
            ("in order, three threads", ((one, arrive), (arrive,), (wait, other)), 2),
            ("in order, passed on", ((one, arrive), (wait, Arrive(1)), (Wait(1, 0), other)), 1),
            ("passed on before the wait", ((one, arrive), (Arrive(1), wait), (Wait(1, 0), other)), 1),
        ]
        for cause, threads, count in forms:
            barriers = (
                (count, 1) if any(getattr(each, "mbarrier", 0) for thread in threads for each in thread) else (count,)
            )
            cause = f"{cause} ({special})" if special else cause
            yield _program("mbarrier", cause, places[: len(threads)], threads, barriers)


def double_buffers() -> Iterator[Program]:
    """A producer fills two stages, a consumer empties them, and barriers in memory say which is full and which is free.

    Barriers 0 and 1 are full, 2 and 3 free. The third filling reuses the first stage.
    """
    for where in ("lanes", "warps"):
        places = PLACES[where][:2]
        fill = [(Store(A, 1), Arrive(0)), (Store(B, 2), Arrive(1)), (Store(A, 3), Arrive(0))]
        empty: list[Several] = [
            (Wait(0, 0), Load("r0", A), Arrive(2)),
            (Wait(1, 0), Load("r1", B), Arrive(3)),
            (Wait(0, 1), Load("r2", A), Arrive(2)),
        ]
        free = Wait(2, 0)
        forms: list[tuple[str, Several, Several]] = [
            ("in order", (*fill[0], *fill[1], free, *fill[2]), (*empty[0], *empty[1], *empty[2])),
            ("no wait for a free stage", (*fill[0], *fill[1], *fill[2]), (*empty[0], *empty[1], *empty[2])),
            ("in order, another free stage", (*fill[0], *fill[1], Wait(3, 0), *fill[2]), (*empty[0], *empty[1])),
            ("in order, wrong but ordered", (*fill[0], *fill[1], Wait(3, 0), Store(A, 3)), (*empty[0], *empty[1])),
            ("arrive before the read", (*fill[0], free, *fill[2]), (Wait(0, 0), Arrive(2), Load("r0", A), Wait(0, 1))),
            ("filled before the wait", (*fill[0], Store(A, 3), free), (*empty[0],)),
            ("phase not waited for", (*fill[0], free, *fill[2]), (*empty[0], Load("r2", A))),
            ("in order, one stage", (*fill[0], free, *fill[2]), (*empty[0], *empty[2])),
            ("one stage, no second wait", (*fill[0], free, *fill[2]), (*empty[0], Load("r2", A), Wait(0, 1))),
        ]
        for cause, producer, consumer in forms:
            yield _program("double buffer", cause, places, (producer, consumer), (1, 1, 1, 1))


def async_copies() -> Iterator[Program]:
    """`cp.async` with groups and with barriers in memory."""
    for where, width in itertools.product(("lanes", "warps"), (4, 8, 16)):
        places, meet = PLACES[where], _meeting(where)
        two = places[:2]
        copy, other = AsyncCopy(A, X, width), AsyncCopy(B, X, width)
        read, mine = Load("r0", Address.of(f"a+{width - 4}")), Load("r1", A)
        quiet: Several = (Fence("acq_rel", "cta"),)
        forms: list[tuple[str, tuple[Several, ...], tuple[int, ...]]] = [
            ("in order, own read", ((copy, _COMMIT, _ALL, mine), quiet), ()),
            ("own read without a wait", ((copy, _COMMIT, mine, _ALL), quiet), ()),
            ("own read without a commit", ((copy, _ALL, mine, _COMMIT, _ALL), quiet), ()),
            ("own write without a wait", ((copy, _COMMIT, Store(A, 5), _ALL), quiet), ()),
            ("in order, own write before", ((Store(A, 5), copy, _COMMIT, _ALL, mine), quiet), ()),
            ("in order, source written before", ((Store(X, 5), copy, _COMMIT, _ALL, mine), quiet), ()),
            ("source written after", ((copy, Store(X, 5), _COMMIT, _ALL, mine), quiet), ()),
            ("in order, source written after the wait", ((copy, _COMMIT, _ALL, Store(X, 5), mine), quiet), ()),
            ("in order, group", ((copy, _COMMIT, _ALL, meet), (meet, read)), ()),
            ("no wait before the barrier", ((copy, _COMMIT, meet, _ALL), (meet, read)), ()),
            ("wait by another thread", ((copy, _COMMIT, meet), (_ALL, meet, read)), ()),
            (
                "one group still under way",
                ((other, _COMMIT, copy, _COMMIT, WaitGroup(1), meet, _ALL), (meet, read)),
                (),
            ),
            (
                "in order, the other group",
                ((copy, _COMMIT, other, _COMMIT, WaitGroup(1), meet, _ALL), (meet, read)),
                (),
            ),
            ("two copies to one place", ((copy, AsyncCopy(A, Z, width), _COMMIT, _ALL, mine), quiet), ()),
            (
                "in order, one copy after the other",
                ((copy, _COMMIT, _ALL, AsyncCopy(A, Z, width), _COMMIT, _ALL, mine), quiet),
                (),
            ),
            ("in order, mbarrier", ((copy, AsyncArrive(0)), (Wait(0, 0), read)), (1,)),
            ("arrive before the copy is complete", ((copy, Arrive(0), _COMMIT, _ALL), (Wait(0, 0), read)), (1,)),
            ("in order, wait and arrive", ((copy, _COMMIT, _ALL, Arrive(0)), (Wait(0, 0), read)), (1,)),
            ("mbarrier before the copy", ((AsyncArrive(0), copy, _COMMIT, _ALL), (Wait(0, 0), read)), (1,)),
            (
                "own store announced by a copy's arrival",
                ((Store(B, 5), copy, AsyncArrive(0)), (Wait(0, 0), Load("r0", B))),
                (1,),
            ),
            ("overwritten while it is read", ((Load("r0", A), copy, _COMMIT, _ALL), (Store(A, 9), meet)[:1]), ()),
            ("in order, free stage", ((meet, copy, _COMMIT, _ALL), (mine, meet)), ()),
            ("stage not free", ((copy, _COMMIT, _ALL, meet), (mine, meet)), ()),
            ("in order, source from another thread", ((Store(X, 5), meet), (meet, copy, _COMMIT, _ALL, mine)), ()),
            ("source from another thread, no barrier", ((Store(X, 5),), (copy, _COMMIT, _ALL, mine)), ()),
            ("source from another thread, barrier late", ((Store(X, 5), meet), (copy, _COMMIT, _ALL, meet, mine)), ()),
        ]
        for cause, threads, barriers in forms:
            yield _program("cp.async", cause, two, threads, barriers)
        for signalled, cause in ((True, "in order, released to another warp"), (False, "relaxed to another warp")):
            flag = Store(Y, 1, order="release" if signalled else "relaxed", scope="cta")
            wait = Until(Load("r2", Y, order="acquire", scope="cta"), 1)
            yield _program("cp.async", cause, two, ((copy, _COMMIT, _ALL, flag), (wait, read)))
            yield _program("cp.async", f"{cause}, before the wait", two, ((copy, _COMMIT, flag, _ALL), (wait, read)))


def bulk_loads() -> Iterator[Program]:
    """`cp.async.bulk` from global to shared memory."""
    expect, copy, wait = Arrive(0, 16), BulkLoad(A, X, 0), Wait(0, 0)
    fence = ProxyFence()
    read = Load("r0", Address.of("a+8"))
    for where in ("lanes", "warps"):
        two, meet = PLACES[where][:2], _meeting(where)
        quiet: Several = (Fence("acq_rel", "cta"),)
        load = (expect, copy)
        forms: list[tuple[str, tuple[Several, ...], tuple[int, ...]]] = [
            ("in order", ((*load,), (wait, read)), (1,)),
            ("in order, own read", ((*load, wait, read), quiet), (1,)),
            ("in order, width 8", ((*load, wait, Load("r0", A, 8)), (wait, Load("r0", Address.of("a+8"), 8))), (1,)),
            ("no wait", ((*load, read, wait), quiet), (1,)),
            ("no wait in another thread", ((*load, wait), (read,)), (1,)),
            ("in order, waited for and met", ((*load, wait, meet), (meet, read)), (1,)),
            ("met before the wait", ((*load, meet, wait), (meet, read)), (1,)),
            ("written before, no proxy fence", ((Store(A, 5), *load, wait, read), quiet), (1,)),
            ("in order, written before", ((Store(A, 5), fence, *load, wait, read), quiet), (1,)),
            ("source written, no proxy fence", ((Store(X, 5), *load, wait, read), quiet), (1,)),
            ("in order, source written", ((Store(X, 5), fence, *load, wait, read), quiet), (1,)),
            ("proxy fence before the source is written", ((fence, Store(X, 5), *load, wait, read), quiet), (1,)),
            ("in order, fence by the writer", ((Store(X, 5), fence, meet), (meet, *load, wait, read)), (1,)),
            ("in order, fence by the copying thread", ((Store(X, 5), meet), (meet, fence, *load, wait, read)), (1,)),
            ("source of another thread, no proxy fence", ((Store(X, 5), meet), (meet, *load, wait, read)), (1,)),
            (
                "fence before the barrier, by the copying thread",
                ((Store(X, 5), meet), (fence, meet, *load, wait, read)),
                (1,),
            ),
            ("another fence", ((Store(X, 5), Fence("sc", "gpu"), meet), (meet, *load, wait, read)), (1,)),
            (
                "in order, read and filled again",
                ((*load, wait, read, fence, *load, Wait(0, 1), Load("r1", A)), quiet),
                (1,),
            ),
            ("filled again before it is read", ((*load, wait, *load, read, Wait(0, 1)), quiet), (1,)),
            ("in order, overwritten after the wait", ((*load, wait, Store(A, 3), Load("r1", A)), quiet), (1,)),
            ("overwritten before the wait", ((*load, Store(A, 3), wait), quiet), (1,)),
            ("source overwritten before the wait", ((*load, Store(X, 3), wait), quiet), (1,)),
            ("in order, source overwritten after the wait", ((*load, wait, Store(X, 3)), quiet), (1,)),
            ("own store announced by the copy", ((expect, Store(B, 5), copy), (wait, Load("r1", B))), (1,)),
            (
                "in order, pipeline with a free stage, fence",
                ((*load, Wait(1, 0), fence, *load), (wait, read, Arrive(1), Wait(0, 1), Load("r1", A))),
                (1, 1),
            ),
            (
                "in order, pipeline with a free stage",
                ((*load, Wait(1, 0), *load), (wait, read, Arrive(1), Wait(0, 1), Load("r1", A))),
                (1, 1),
            ),
            (
                "pipeline without a free stage",
                ((*load, wait, *load), (wait, read, Arrive(1), Wait(0, 1), Load("r1", A))),
                (1, 1),
            ),
            (
                "pipeline, arrive before the read",
                ((*load, Wait(1, 0), *load), (wait, Arrive(1), read, Wait(0, 1))),
                (1, 1),
            ),
        ]
        for cause, threads, barriers in forms:
            yield _program("bulk load", cause, two, threads, barriers)
            # The same with the threads' numbers, and so the order in which they run, exchanged.
            if threads[1] != quiet:
                yield _program("bulk load", cause, two, threads[::-1], barriers)


def bulk_stores() -> Iterator[Program]:
    """`cp.async.bulk` from shared to global memory, and what has to come before and after it."""
    copy, fence = BulkStore(Y, A), ProxyFence()
    store = (copy, _BULK_COMMIT, _BULK_ALL)
    for where, written in itertools.product(
        ("lanes", "warps"), (Store(A, 5), Store(Address.of("a+7"), 5, 1), Store(A, 5, 8))
    ):
        three = PLACES[where][:3]
        two = three[:2]
        meet = _meeting(where)
        third: tuple[Instruction, Instruction] = (Barrier(1, 3), Barrier(2, 3))
        if where == "lanes":
            third = (WarpSync(sum(1 << place.lane for place in three)),) * 2
        quiet: Several = (Fence("acq_rel", "cta"),)
        again, read = Store(A, 6), Load("r0", Y)
        forms: list[tuple[str, tuple[Several, ...]]] = [
            ("in order", ((written, fence, *store), quiet)),
            ("no proxy fence", ((written, *store), quiet)),
            ("proxy fence before the write", ((fence, written, *store), quiet)),
            ("in order, fence by the writer", ((written, fence, meet), (meet, *store))),
            ("in order, fence after the barrier by the copying thread", ((written, meet), (meet, fence, *store))),
            ("no proxy fence, barrier", ((written, meet), (meet, *store))),
            ("fence before the barrier by the copying thread", ((written, meet), (fence, meet, *store))),
            ("another fence", ((written, Fence("sc", "sys"), meet), (meet, *store))),
            ("no barrier", ((written, fence), (fence, *store))),
            (
                "fence by a third thread",
                ((written, third[0], third[1]), (third[0], fence, third[1]), (third[0], third[1], *store)),
            ),
            (
                "in order, two writers",
                ((written, fence, third[0]), (Store(Address.of("a+12"), 1), fence, third[0]), (third[0], *store)),
            ),
            (
                "one writer without a fence",
                ((written, fence, third[0]), (Store(Address.of("a+12"), 1), third[0]), (third[0], *store)),
            ),
            ("in order, overwritten after the wait", ((written, fence, *store, again), quiet)),
            (
                "in order, overwritten after the read",
                ((written, fence, copy, _BULK_COMMIT, _BULK_READ, again, _BULK_ALL), quiet),
            ),
            ("overwritten without a wait", ((written, fence, copy, _BULK_COMMIT, again, _BULK_ALL), quiet)),
            ("in order, overwritten by another thread", ((written, fence, *store, meet), (meet, again))),
            (
                "overwritten by another thread, no wait",
                ((written, fence, copy, _BULK_COMMIT, meet, _BULK_ALL), (meet, again)),
            ),
            ("in order, result read", ((written, fence, *store, read), quiet)),
            (
                "result read after the read of the source",
                ((written, fence, copy, _BULK_COMMIT, _BULK_READ, read, _BULK_ALL), quiet),
            ),
            ("result read without a wait", ((written, fence, copy, _BULK_COMMIT, read, _BULK_ALL), quiet)),
            ("in order, result read by another thread", ((written, fence, *store, meet), (meet, read))),
            ("target written before, no fence", ((Store(Y, 1), *store), quiet)),
            ("in order, target written before", ((Store(Y, 1), fence, *store), quiet)),
        ]
        for cause, threads in forms:
            yield _program("bulk store", cause, three[: len(threads)], threads)
            if len(threads) == 2 and threads[1] != quiet:
                yield _program("bulk store", cause, two, threads[::-1])


def several_of_one_thread() -> Iterator[Program]:
    """Two copies of one thread out of the same bytes, of which it waits for both, for one, or for none.

    Then it, or another thread, writes the source. That both copies are of one thread must not hide which is complete.
    """
    waits = {"both": (0, 1), "the first": (0,), "the second": (1,), "none": ()}
    for where, other, (waited, which) in itertools.product(("lanes", "warps"), (False, True), waits.items()):
        two, meet = PLACES[where][:2], _meeting(where)
        in_order = "in order, " if len(which) == 2 else ""
        cause = f"{in_order}source written {'by another thread ' if other else ''}after the wait for {waited}"
        loads = (Arrive(0, 16), BulkLoad(A, X, 0), Arrive(1, 16), BulkLoad(B, X, 1))
        every = tuple(Wait(number, 0) for number in (0, 1))
        chosen = tuple(every[number] for number in which)
        # One behind the other: the second is issued when the first may be complete.
        forms = {"": (), ", one behind the other": chosen[:1]} if 0 in which else {"": ()}
        for form, between in forms.items():
            issue: Several = (*loads[:2], *between, *loads[2:])
            read = (Load("r0", A), Load("r1", B))
            yield _program(
                "two bulk loads",
                cause + form,
                two,
                _written(issue + chosen, Store(X, 9), every + read, meet, other),
                (1, 1),
            )
        if which == (1,):
            # Groups are waited for in their order.
            continue
        left = 2 - len(which)
        group, pair = WaitGroup(left), (AsyncCopy(A, X, 16), _COMMIT, AsyncCopy(B, X, 16), _COMMIT)
        end: Several = (_ALL, Load("r0", A), Load("r1", B))
        yield _program("two cp.async", cause, two, _written((*pair, group), Store(X, 9), end, meet, other))
        narrow = (AsyncCopy(A, X, 8), _COMMIT, AsyncCopy(B, Address.of("x+4"), 4), _COMMIT)
        over = Store(Address.of("x+4"), 9)
        yield _program(
            "two cp.async", f"{cause}, of two widths", two, _written((*narrow, group), over, end, meet, other)
        )
        stores = (BulkStore(Y, A), _BULK_COMMIT, BulkStore(Z, A), _BULK_COMMIT)
        filled: Several = (Store(A, 5), ProxyFence(), *stores)
        for reads in (False, True):
            wait = WaitGroup(left, bulk=True, read=reads)
            how = f"{cause}, which is for its read" if reads else cause
            last: Several = (_BULK_ALL, Load("r0", Y), Load("r1", Z))
            yield _program("two bulk stores", how, two, _written((*filled, wait), Store(A, 6), last, meet, other))


def several_of_two_threads() -> Iterator[Program]:
    """A copy of each of two threads out of the same bytes, one of which is waited for before these are written."""
    for where, waiting in itertools.product(("lanes", "warps"), ((True, True), (True, False), (False, True))):
        three = PLACES[where][:3]
        meet = WarpSync(sum(1 << place.lane for place in three)) if where == "lanes" else Barrier(1, 3)
        cause = "in order, both wait" if all(waiting) else f"thread {waiting.index(False)} does not wait"
        forms: tuple[tuple[str, list[Several], list[Several], Address], ...] = (
            ("cp.async", [(AsyncCopy(at, X, 16), _COMMIT) for at in (A, B)], [(_ALL,)] * 2, X),
            (
                "bulk load",
                [(Arrive(number, 16), BulkLoad(at, X, number)) for number, at in enumerate((A, B))],
                [(Wait(number, 0),) for number in (0, 1)],
                X,
            ),
            ("bulk store", [(BulkStore(at, A), _BULK_COMMIT) for at in (Y, Z)], [(_BULK_READ,)] * 2, A),
        )
        for shape, copy, wait, source in forms:
            end: list[Several] = [(_BULK_ALL,)] * 2 if shape == "bulk store" else wait
            threads = tuple(
                (*copy[number], *(wait[number] if waiting[number] else ()), meet, *end[number]) for number in (0, 1)
            )
            barriers = (1, 1) if shape == "bulk load" else ()
            yield _program(f"two threads' {shape}", cause, three, (*threads, (meet, Store(source, 9))), barriers)


def _meeting(where: str) -> Instruction:
    """Where two threads meet."""
    two = PLACES[where][:2]
    return WarpSync(1 << two[0].lane | 1 << two[1].lane) if where == "lanes" else Barrier(1, 2)


def _written(
    before: Several, write: Instruction, after: Several, meet: Instruction, other: bool
) -> tuple[Several, ...]:
    """Two threads, of which one writes what is between `before` and `after` of the first: this one, or the other."""
    if other:
        return ((*before, meet, *after), (meet, write))
    return ((*before, write, *after), (Fence("acq_rel", "cta"),))
