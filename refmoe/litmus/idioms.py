"""What CUDA programmers write: locks, tickets, last-block reductions, barriers of a block and of a warp.

Each pattern comes in the right form and with one thing wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from refmoe.litmus.passing import Several, membar, reaches, signals, waits
from refmoe.litmus.program import (
    Address,
    Atomic,
    Barrier,
    Fence,
    If,
    Instruction,
    Load,
    Program,
    Scope,
    Store,
    Thread,
    ThreadPlace,
    Until,
    WarpSync,
)
from refmoe.litmus.shapes import PLACES, SCOPES, cluster_of, fence

X, Y, Z, U, A, B, C = (Address.of(name) for name in "xyzuabc")


def patterns() -> Iterator[Program]:
    """All of them."""
    yield from locks()
    yield from tickets()
    yield from last_block()
    yield from reductions()
    yield from block_barriers()
    yield from warp_barriers()
    yield from overlaps()
    yield from read_only()


def _program(
    shape: str,
    cause: str,
    places: tuple[ThreadPlace, ...],
    threads: tuple[Several, ...],
    scopes: tuple[Scope, ...] = (),
) -> Program:
    pairs = zip(places, threads, strict=True)
    return Program(shape, cause, tuple(Thread(*pair) for pair in pairs), cluster=cluster_of(places, scopes))


def locks() -> Iterator[Program]:
    """A spin lock around a counter, between lanes, warps and CTAs.

    It is taken by compare-and-swap and given back by an exchange, an addition or a store.
    """
    work: Several = (Load("r1", X), Store(X, 1))
    for where, scope in itertools.product(("lanes", "warps", "CTAs"), SCOPES):
        places = PLACES[where][:2]
        narrow = "" if reaches(scope, places) else "scope too narrow"

        def taken(order: str, scope: Scope = scope) -> Until:
            return Until(Atomic("cas", Y, 1, order, scope, "r0", 0), 0)  # type: ignore[arg-type]

        fences = (Fence("acq_rel", scope), Fence("sc", scope), membar(scope))
        takes: list[tuple[Several, str]] = [((taken("acquire"),), ""), ((taken("acq_rel"),), "")]
        takes += [((taken("relaxed"), each), "") for each in fences]
        takes += [((taken("relaxed"),), "no acquire"), ((taken("release"),), "no acquire")]
        takes += [((fences[1], taken("relaxed")), "fence before the lock is taken")]
        release = Atomic("exch", Y, 0, "release", scope, "r2")
        relaxed = Atomic("exch", Y, 0, "relaxed", scope, "r2")
        gives: list[tuple[Several, str]] = [((release,), ""), ((Store(Y, 0, order="release", scope=scope),), "")]
        gives += [((each, relaxed), "") for each in fences]
        gives += [
            ((fences[0], Store(Y, 0, order="relaxed", scope=scope)), ""),
            ((fences[2], Store(Y, 0, order="volatile")), ""),
        ]
        gives += [
            ((relaxed,), "no release"),
            ((Store(Y, 0, order="volatile"),), "no release"),
            ((Store(Y, 0),), "weak flag"),
        ]
        gives += [((relaxed, fences[1]), "fence after the lock is given back")]
        for (take, one), (give, other) in itertools.product(takes, gives):
            if one and other:
                continue
            cause = " and ".join(filter(None, (one, other, narrow))) or "in order"
            thread = (*take, *work, *give)
            yield _program("spin lock", cause, places, (thread, thread), (scope,))
        # Without its condition the work is done with and without the lock.
        once = Atomic("cas", Y, 1, "acquire", scope, "r0", 0)
        tried = (once, If("r0", 0, (*work, release)))
        yield _program("spin lock", narrow or "tried once", places, (tried, tried), (scope,))
        yield _program("spin lock", "work without the lock", places, ((once, *work), (once, *work)), (scope,))
        # The first to give it back has done so before its work.
        early = (taken("acquire"), release, *work)
        yield _program(
            "spin lock", "given back before the work", places, (early, (taken("acquire"), *work, release)), (scope,)
        )


def tickets() -> Iterator[Program]:
    """Slots taken by an atomic addition: each thread its own slot, or a slot that two threads take for theirs."""
    slots = (Address.of("x"), Address.of("x+4"), Address.of("x+8"))
    for where, scope, order, count in itertools.product(
        ("lanes", "warps", "CTAs"), SCOPES, ("relaxed", "acq_rel"), (2, 3)
    ):
        places = PLACES[where][:count]
        narrow = not reaches(scope, places)
        take = Atomic("add", Y, 1, order, scope, "r0")  # type: ignore[arg-type]
        mine: Several = tuple(If("r0", number, (Store(slots[number], 7),)) for number in range(count))
        others: Several = tuple(
            If("r0", number, (Store(slots[max(number - 1, 0)], 7 + number),)) for number in range(count)
        )
        own: Several = (take, *mine)
        shared: Several = (take, *others)
        yield _program("ticket", "scope too narrow" if narrow else "in order", places, (own,) * count, (scope,))
        cause = "a slot for two threads"
        yield _program("ticket", f"{cause}, {order}", places, (shared,) * count, (scope,))
        # A ticket lock: served in the order of the tickets.
        if count == 2:
            for served, given in itertools.product(("acquire", "relaxed"), ("release", "relaxed")):
                wait = Load("r1", Z, order=served, scope=scope)  # type: ignore[arg-type]
                work = (Load("r2", X), Store(X, 1), Atomic("add", Z, 1, given, scope))  # type: ignore[arg-type]
                thread = (take, If("r0", 0, (Until(wait, 0), *work)), If("r0", 1, (Until(wait, 1), *work)))
                faults = ["no acquire"] * (served == "relaxed") + ["no release"] * (given == "relaxed")
                faults += ["scope too narrow"] * narrow
                if not narrow:
                    yield _program(
                        "ticket lock", " and ".join(faults) or "in order", places, (thread, thread), (scope,)
                    )


def last_block() -> Iterator[Program]:
    """A reduction whose last block adds up: data, fence, an atomic addition, and the last of them reads all data."""
    data = (Address.of("x"), Address.of("z"), Address.of("u"))
    for count, where, scope in itertools.product((2, 3), ("warps", "CTAs"), SCOPES):
        places = PLACES[where][:count]
        narrow = [] if reaches(scope, places) else ["scope too narrow"]
        befores: list[tuple[Several, str]] = [
            ((Fence("sc", scope),), ""),
            ((Fence("acq_rel", scope),), ""),
            ((membar(scope),), ""),
            ((), "no fence before the atomic"),
        ]
        afters: list[tuple[Several, str]] = [
            ((Fence("sc", scope),), ""),
            ((Fence("acq_rel", scope),), ""),
            ((), "no fence after the atomic"),
        ]
        orders = ("relaxed", "acq_rel", "release", "acquire")
        for (before, one), (after, other), order in itertools.product(befores, afters, orders):
            if count == 3 and order in ("release", "acquire"):
                continue
            one_ = "" if order in ("acq_rel", "release") else one
            other_ = "" if order in ("acq_rel", "acquire") else other
            cause = " and ".join([each for each in (one_, other_) if each] + narrow) or "in order"
            threads = []
            for number in range(count):
                take = Atomic("add", Y, 1, order, scope, "r0")  # type: ignore[arg-type]
                reads = tuple(Load(f"r{1 + n}", data[n]) for n in range(count) if n != number)
                threads.append((Store(data[number], 5), *before, take, *after, If("r0", count - 1, reads)))
            yield _program("last block", cause, places, tuple(threads), (scope,))
            first = (*before, Store(X, 5), Atomic("add", Y, 1, order, scope, "r0"))  # type: ignore[arg-type]
            if before and count == 2:
                reader = (Store(Z, 5), *before, take, *after, If("r0", 1, (Load("r1", X),)))
                wrong = cause if order in ("acq_rel", "release") else "fence before the data"
                yield _program("last block", wrong, places, (first, reader), (scope,))


def reductions() -> Iterator[Program]:
    """The usual last block of several warps: each warp writes and fences, `__syncthreads`, one thread adds atomically.

    The fences of the other warps reach the last block only if they are `fence.sc`: a release pattern of the one thread
    covers what its own fence covers, unless that comes after the barrier.
    """
    places = (ThreadPlace(0, 0), ThreadPlace(0, 1), ThreadPlace(1, 0))
    for scope, order in itertools.product(SCOPES, ("relaxed", "acq_rel", "release")):
        narrow = [] if scope not in ("cta",) else ["scope too narrow"]
        for kind, after in itertools.product(("sc", "acq_rel", "membar", "none"), ("sc", "acq_rel", "none")):
            for late in (False, True):
                each = fence(kind, scope)
                ends = fence(after, scope)
                add = Atomic("add", Y, 1, order, scope, "r0")  # type: ignore[arg-type]
                if late:
                    first: Several = (Store(X, 5), Barrier(1, 2), *each, add)
                    second: Several = (Store(Z, 5), Barrier(1, 2))
                else:
                    first = (Store(X, 5), *each, Barrier(1, 2), add)
                    second = (Store(Z, 5), *each, Barrier(1, 2))
                seen = Until(Load("r0", Y, order="relaxed", scope=scope), 1)
                last = (seen, *ends, Load("r1", X), Load("r2", Z))
                where = "after" if late else "before"
                cause = f"{kind} {where} the barrier, {order} atomic, {after} in the last block"
                yield _program(
                    "last block of warps", " and ".join([cause, *narrow]), places, (first, second, last), (scope,)
                )
                if not late and kind == "sc":
                    # The write comes after the fence.
                    wrong = (*each, Store(Z, 5), Barrier(1, 2))
                    yield _program(
                        "last block of warps", f"fence before the data, {cause}", places, (first, wrong, last), (scope,)
                    )


def block_barriers() -> Iterator[Program]:
    """`bar.sync` and `bar.arrive` between warps, in shared and in global memory."""
    two, three = PLACES["warps"][:2], PLACES["warps"][:3]
    accesses: tuple[tuple[Instruction, Instruction, str], ...] = (
        (Store(A, 7), Load("r0", A), ""),
        (Store(X, 7), Load("r0", X), ""),
        (Load("r0", A), Store(A, 7), "read-write"),
        (Store(A, 7), Store(A, 8), "write-write"),
        (Store(A, 0x0102030405060708, 8), Load("r0", Address.of("a+6"), 2), "overlap"),
        (Store(Address.of("a+1"), 7, 1), Load("r0", A, 4), "overlap"),
        (Store(A, 7, 1), Store(Address.of("a+1"), 8, 1), "neighbours"),
        (Atomic("add", A, 1, "relaxed", "cta", "q0"), Load("r0", A), "strong and weak"),
        (Atomic("add", A, 1, "relaxed", "cta", "q0"), Atomic("add", A, 1, "relaxed", "cta", "r0"), "strong"),
        (Store(A, 7, order="volatile"), Load("r0", A, order="volatile"), "strong"),
    )
    sync, arrive = Barrier(1, 2), Barrier(1, 2, arrive=True)
    for one, other, special in accesses:
        forms: list[tuple[str, tuple[Several, Several]]] = [
            ("in order", ((one, sync), (sync, other))),
            ("in order", ((one, Barrier(0, 2)), (Barrier(0, 2), other))),
            ("in order, arrive", ((one, arrive), (sync, other))),
            ("in order, two barriers", ((one, sync, Barrier(2, 2)), (sync, Barrier(2, 2), other))),
            ("in order, both ways", ((one, sync, sync, one), (sync, other, sync))),
            ("no barrier", ((one,), (other,))),
            ("barrier before the data", ((sync, one), (sync, other))),
            ("barrier after the data", ((one, sync), (other, sync))),
            ("arrive before the data", ((arrive, one), (sync, other))),
            ("sync where the other arrives", ((sync, one), (arrive, other))),
            ("arrive of the reader", ((one, sync), (arrive, other))),
            ("second barrier missing", ((one, sync, one), (sync, other))),
            ("a fence instead of a barrier", ((one, Fence("sc", "cta")), (Fence("sc", "cta"), other))),
            ("in order, second barrier", ((sync, one, Barrier(2, 2)), (sync, Barrier(2, 2), other))),
            ("in order, once more around", ((sync, one, sync), (sync, sync, other))),
        ]
        for cause, threads in forms:
            yield _program("bar.sync", f"{cause} ({special})" if special else cause, two, threads)
        # Of three warps, all or two take part.
        all_three = Barrier(1, 3)
        trios: list[tuple[str, tuple[Several, Several, Several]]] = [
            ("in order, three warps", ((one, all_three), (all_three,), (all_three, other))),
            ("in order, passed on", ((one, sync), (sync, Barrier(2, 2)), (Barrier(2, 2), other))),
            ("passed on the wrong way", ((one, Barrier(2, 2)), (sync, Barrier(2, 2)), (sync, other))),
            ("a third warp left out", ((one, sync), (sync,), (other,))),
            ("in order, two arrive", ((one, Barrier(1, 3, True)), (Barrier(1, 3, True),), (all_three, other))),
        ]
        for cause, trio in trios:
            yield _program("bar.sync", f"{cause} ({special})" if special else cause, three, trio)
    # What one warp wrote before a barrier, another warp announces to another CTA.
    far = (ThreadPlace(0, 0), ThreadPlace(0, 1), ThreadPlace(1, 0))
    for scope in SCOPES:
        for signal, wait in itertools.product(signals(Y, scope), (waits(Y, scope)[0], waits(Y, scope)[2])):
            narrow = "scope too narrow" if scope == "cta" else "in order"
            last = (*wait.before, Load("r1", X), *wait.after)
            right = ((Store(X, 5), sync), (sync, *signal.before, *signal.after), last)
            yield _program("barrier and message", narrow, far, right, (scope,))
            early = ((Store(X, 5), sync), (*signal.before, *signal.after, sync), last)
            yield _program("barrier and message", "announced before the barrier", far, early, (scope,))
            late = ((sync, Store(X, 5)), (sync, *signal.before, *signal.after), last)
            yield _program("barrier and message", "data after the barrier", far, late, (scope,))


def warp_barriers() -> Iterator[Program]:
    """`bar.warp.sync`, of all lanes and of some."""
    lanes = PLACES["lanes"]
    both = 1 << lanes[0].lane | 1 << lanes[1].lane
    three = both | 1 << lanes[2].lane
    accesses: tuple[tuple[Instruction, Instruction, str], ...] = (
        (Store(A, 7), Load("r0", A), ""),
        (Store(X, 7), Load("r0", X), ""),
        (Load("r0", A), Store(A, 7), "read-write"),
        (Store(A, 7), Store(A, 8), "write-write"),
        (Store(A, 0x0102030405060708, 8), Load("r0", Address.of("a+1"), 1), "overlap"),
        (Atomic("add", X, 1, "relaxed", "gpu", "q0"), Load("r0", X), "strong and weak"),
        (Store(A, 7, order="volatile"), Load("r0", A, order="volatile"), "strong"),
    )
    for one, other, special in accesses:
        pair, trio, rest = WarpSync(both), WarpSync(three), WarpSync(three & ~1)
        forms: list[tuple[str, tuple[Several, ...]]] = [
            ("in order", ((one, pair), (pair, other))),
            ("in order, twice", ((one, pair, pair, one), (pair, other, pair))),
            ("no __syncwarp", ((one,), (other,))),
            ("__syncwarp before the data", ((pair, one), (pair, other))),
            ("__syncwarp after the data", ((one, pair), (other, pair))),
            ("second __syncwarp missing", ((one, pair, one), (pair, other))),
            ("a fence instead of __syncwarp", ((one, Fence("sc", "cta")), (Fence("sc", "cta"), other))),
            ("in order, three lanes", ((one, trio), (trio,), (trio, other))),
            ("a lane outside of the mask", ((one, pair), (pair,), (other,))),
            ("in order, passed on", ((one, pair), (pair, rest), (rest, other))),
            ("passed on the wrong way", ((one, pair), (rest, pair), (rest, other))),
        ]
        for cause, threads in forms:
            cause = f"{cause} ({special})" if special else cause
            yield _program("bar.warp.sync", cause, lanes[: len(threads)], threads)
    # What a lane wrote before __syncwarp, another lane of its warp announces.
    for scope in SCOPES:
        for signal, wait in itertools.product(signals(Y, scope), (waits(Y, scope)[0], waits(Y, scope)[2])):
            for far in (ThreadPlace(0, 1), ThreadPlace(1, 0)):
                places = (lanes[0], lanes[1], far)
                narrow = "in order" if reaches(scope, places) else "scope too narrow"
                last = (*wait.before, Load("r1", X), *wait.after)
                pair = WarpSync(both)
                announce = (*signal.before, *signal.after)
                yield _program(
                    "warp and message", narrow, places, ((Store(X, 5), pair), (pair, *announce), last), (scope,)
                )
                yield _program("warp and message", "no __syncwarp", places, ((Store(X, 5),), announce, last), (scope,))


def overlaps() -> Iterator[Program]:
    """Accesses of 1, 2, 4 and 8 bytes that overlap or lie side by side, ordered and not."""
    widths = (1, 2, 4, 8)
    for where, one, other in itertools.product(("lanes", "warps", "CTAs"), widths, widths):
        places = PLACES[where][:2]
        for start in range(0, 8, other):
            at = Address.of(f"x+{start}")
            cause = "overlap" if start < one else "neighbours"
            yield _program("widths", f"{cause}, unordered", places, ((Store(X, 0x55, one),), (Store(at, 0x66, other),)))
            yield _program(
                "widths", f"{cause}, read, unordered", places, ((Store(X, 0x55, one),), (Load("r0", at, other),))
            )
            flag = Store(Y, 1, order="release", scope="gpu")
            wait = Until(Load("r1", Y, order="acquire", scope="gpu"), 1)
            ordered = ((Store(X, 0x55, one), flag), (wait, Store(at, 0x66, other), Load("r0", X, 8)))
            yield _program("widths", f"{cause}, ordered", places, ordered)
            strong = Store(X, 0x55, one, "relaxed", "gpu"), Load("r0", at, other, "relaxed", "gpu")
            yield _program("widths", f"{cause}, strong", places, ((strong[0],), (strong[1],)))


def read_only() -> Iterator[Program]:
    """`ld.global.nc` of what nobody writes, and of what the grid writes, ordered or not."""
    nc = Load("r1", X, order="nc")
    for where, scope in itertools.product(("lanes", "warps", "CTAs"), ("cta", "gpu")):
        places = PLACES[where][:2]
        for signal, wait in itertools.product(signals(Y, scope)[:4], waits(Y, scope)[:4]):  # type: ignore[arg-type]
            for written, cause in ((X, "ld.global.nc of what is written"), (U, "ld.global.nc of what nobody writes")):
                writer = (*signal.before, Store(written, 7), *signal.after)
                yield _program("ld.global.nc", cause, places, (writer, (*wait.before, nc, *wait.after)))
        yield _program("ld.global.nc", "ld.global.nc of its own write", places, ((Store(X, 7), nc), (Load("r0", U),)))
        yield _program("ld.global.nc", "written after ld.global.nc", places, ((nc, Store(X, 7)), (Load("r0", U),)))
        yield _program("ld.global.nc", "ld.global.nc of what nobody writes", places, ((nc,), (nc, Load("r0", X))))
