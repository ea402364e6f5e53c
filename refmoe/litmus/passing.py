"""Message passing: data written by one thread and read by another, with every way to signal, and wrong ones.

A *signal* is what a thread does to a flag after (or, wrongly, before) its data; a *wait* is what the other does to that
flag before (or, wrongly, after) it. Both are lists of instructions with a hole where the data goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from refmoe.litmus.program import (
    Address,
    Atomic,
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
)
from refmoe.litmus.shapes import PLACES, cluster_of

X, Y, Z, U, A, B = (Address.of(name) for name in "xyzuab")
Several = tuple[Instruction, ...]


@dataclass(frozen=True)
class Signal:
    """What announces data: `before` the data and `after` it; `fault` is empty if that is right."""

    before: Several
    after: Several
    fault: str = ""


def membar(scope: Scope) -> Fence:
    """`membar` of a scope; it has none for clusters, and the next larger one stands in."""
    return Fence("membar", "gpu" if scope == "cluster" else scope)


def signals(flag: Address, scope: Scope, value: int = 1) -> list[Signal]:
    """The right ways to announce data by setting a flag from 0."""
    relaxed = Store(flag, value, order="relaxed", scope=scope)
    return [
        Signal((), (Store(flag, value, order="release", scope=scope),)),
        Signal((), (Fence("acq_rel", scope), relaxed)),
        Signal((), (Fence("sc", scope), relaxed)),
        Signal((), (Fence("release", scope), relaxed)),
        Signal((), (membar(scope), Store(flag, value, order="volatile"))),
        Signal((), (Atomic("exch", flag, value, "release", scope, "s0"),)),
        Signal((), (Atomic("add", flag, value, "acq_rel", scope, "s0"),)),
        Signal((), (Atomic("add", flag, value, "release", scope),)),
        Signal((), (Fence("acq_rel", scope), Atomic("add", flag, value, "relaxed", scope))),
        Signal((), (Fence("sc", scope), Atomic("cas", flag, value, "relaxed", scope, "s0", 0))),
        Signal((), (Store(Z, 1, order="release", scope=scope), Fence("acq_rel", scope), relaxed)),
    ]


def wrong_signals(flag: Address, scope: Scope, value: int = 1) -> list[Signal]:
    """Ways that announce nothing, or not the data."""
    release = Store(flag, value, order="release", scope=scope)
    relaxed = Store(flag, value, order="relaxed", scope=scope)
    return [
        Signal((), (Store(flag, value),), "weak flag"),
        Signal((), (relaxed,), "no release"),
        Signal((), (Store(flag, value, order="volatile"),), "no release"),
        Signal((), (Atomic("add", flag, value, "relaxed", scope),), "no release"),
        Signal((), (Atomic("exch", flag, value, "acquire", scope, "s0"),), "no release"),
        Signal((release,), (), "release before the data"),
        Signal((Atomic("add", flag, value, "release", scope),), (), "release before the data"),
        Signal((Fence("acq_rel", scope),), (relaxed,), "fence before the data"),
        Signal((Fence("sc", scope),), (relaxed,), "fence before the data"),
        Signal((membar(scope),), (Store(flag, value, order="volatile"),), "fence before the data"),
        Signal((), (relaxed, Fence("sc", scope)), "fence after the flag"),
        Signal((), (Fence("acquire", scope), relaxed), "fence of the other end"),
        Signal((), (Fence("acq_rel", scope), Store(flag, value)), "weak flag"),
        Signal((), (Store(Z, 1, order="release", scope=scope), relaxed), "release of another location"),
        Signal((Store(Z, 1, order="release", scope=scope),), (relaxed,), "release of another location"),
    ]


def overwritten_signals(flag: Address, scope: Scope) -> list[Signal]:
    """A release that a later strong write of the same thread goes on (8.8), or a weak one does not."""
    first = Store(flag, 2, order="release", scope=scope)
    return [
        Signal((), (first, Store(flag, 1, order="relaxed", scope=scope))),
        Signal((), (first, Atomic("exch", flag, 1, "relaxed", scope, "s0"))),
        Signal((), (first, Store(flag, 1)), "weak write over a release"),
        Signal((first,), (Store(flag, 1, order="relaxed", scope=scope),), "release before the data"),
    ]


def waits(flag: Address, scope: Scope, value: int = 1, register: str = "r0") -> list[Signal]:
    """The right ways to wait for a flag; the data comes after all of it, or under its condition."""
    relaxed = Load(register, flag, order="relaxed", scope=scope)
    volatile = Load(register, flag, order="volatile")
    add = Atomic("add", flag, 0, "acquire", scope, register)
    relaxed_add = Atomic("add", flag, 0, "relaxed", scope, register)
    ifs = "if"
    return [
        Signal((Until(Load(register, flag, order="acquire", scope=scope), value),), ()),
        Signal((Until(relaxed, value), Fence("acq_rel", scope)), ()),
        Signal((Until(relaxed, value), Fence("sc", scope)), ()),
        Signal((Until(relaxed, value), Fence("acquire", scope)), ()),
        Signal((Until(volatile, value), membar(scope)), ()),
        Signal((Until(Atomic("cas", flag, 3, "acquire", scope, register, value), value),), ()),
        Signal((Until(relaxed, value), Load("r9", flag, order="acquire", scope=scope)), ()),
        Signal((Load(register, flag, order="acquire", scope=scope),), (), ifs),
        Signal((relaxed, Fence("acq_rel", scope)), (), ifs),
        Signal((add,), (), ifs),
        Signal((relaxed_add, Fence("sc", scope)), (), ifs),
    ]


def wrong_waits(flag: Address, scope: Scope, value: int = 1, register: str = "r0") -> list[Signal]:
    """Ways that order nothing, or not the data."""
    relaxed = Load(register, flag, order="relaxed", scope=scope)
    acquire = Load(register, flag, order="acquire", scope=scope)
    return [
        Signal((Until(relaxed, value),), (), "no acquire"),
        Signal((Until(Load(register, flag, order="volatile"), value),), (), "no acquire"),
        # Not in a loop: a weak read may be moved out of it.
        Signal((Load(register, flag), Fence("sc", scope)), (), "weak flag"),
        Signal((Fence("sc", scope), Until(relaxed, value)), (), "fence before the wait"),
        Signal((Fence("acq_rel", scope), Until(relaxed, value)), (), "fence before the wait"),
        Signal((Until(relaxed, value),), (Fence("sc", scope),), "fence after the data"),
        Signal((Until(relaxed, value), Fence("release", scope)), (), "fence of the other end"),
        Signal((), (Until(acquire, value),), "acquire after the data"),
        Signal((Until(relaxed, value), Load("r9", Z, order="acquire", scope=scope)), (), "acquire of another location"),
        Signal((Until(Atomic("cas", flag, 3, "relaxed", scope, register, value), value),), (), "no acquire"),
        Signal((acquire,), (), "data without a condition"),
    ]


#: Accesses of the data, (writer, reader, what is special): bytes and space.
DATA: tuple[tuple[Instruction, Instruction, str], ...] = (
    (Store(X, 7), Load("r1", X), ""),
    (Store(A, 7), Load("r1", A), "shared"),
    (Store(X, 0x1122334455667788, 8), Load("r1", Address.of("x+4"), 4), "overlap"),
    (Store(Address.of("x+3"), 9, 1), Load("r1", X, 8), "overlap"),
    (Store(Address.of("x+2"), 9, 2), Load("r1", X, 4), "overlap"),
    (Store(Address.of("a+5"), 9, 1), Load("r1", A, 8), "overlap"),
    (Store(X, 9, 1), Load("r1", Address.of("x+1"), 1), "neighbours"),
    (Store(X, 7), Store(X, 8), "write-write"),
    (Load("r1", X), Store(X, 8), "read-write"),
    (Store(X, 7, order="relaxed", scope="gpu"), Load("r1", X, order="relaxed", scope="gpu"), "strong"),
    (Store(X, 7, order="relaxed", scope="cta"), Load("r1", X, order="relaxed", scope="gpu"), "strong"),
    (Store(X, 7, order="volatile"), Load("r1", X), "strong and weak"),
    (Atomic("add", X, 7, "relaxed", "gpu"), Load("r1", X), "strong and weak"),
    (Atomic("add", X, 7, "relaxed", "sys", "q0"), Atomic("add", X, 5, "relaxed", "gpu", "r1"), "strong"),
    (Atomic("add", X, 7, "relaxed", "cta", "q0"), Atomic("add", X, 5, "relaxed", "cta", "r1"), "strong"),
    (Atomic("add", X, 7, "relaxed", "gpu", "q0", width=8), Atomic("add", X, 5, "relaxed", "gpu", "r1"), "overlap"),
    (Store(X, 7), Load("r1", X, order="nc"), "ld.global.nc"),
)


def _shared(*instructions: Instruction) -> bool:
    return any(isinstance(each, Load | Store | Atomic) and each.at.space == "shared" for each in instructions)


def reaches(scope: Scope, places: tuple[ThreadPlace, ...]) -> bool:
    """Whether a scope includes all these places, of which CTAs 0 and 1 may be a cluster."""
    if scope in ("gpu", "sys") or len({place.cta for place in places}) == 1:
        return True
    return scope == "cluster" and cluster_of(places, (scope,)) > 1 and len({place.cta // 2 for place in places}) == 1


def passing(
    signal: Signal, wait: Signal, data: tuple[Instruction, Instruction, str], where: str, scopes: tuple[Scope, Scope]
) -> Program:
    """One program: the first thread signals, the second waits."""
    places = PLACES[where][:2]
    write, read, special = data
    first = (*signal.before, write, *signal.after)
    if wait.fault == "if":
        second: Several = (*wait.before, If("r0", 1, (read,)))
    else:
        second = (*wait.before, read, *wait.after)
    faults = [signal.fault, "" if wait.fault == "if" else wait.fault]
    faults += ["" if all(reaches(scope, places) for scope in scopes) else "scope too narrow"]
    cause = " and ".join(filter(None, faults)) or "in order"
    cause += f" ({special})" if special else ""
    return Program(
        "message", cause, (Thread(places[0], first), Thread(places[1], second)), cluster=cluster_of(places, scopes)
    )


#: Scopes of signal and wait.
SCOPE_PAIRS: tuple[tuple[Scope, Scope], ...] = (
    ("gpu", "gpu"),
    ("cta", "cta"),
    ("cta", "gpu"),
    ("gpu", "cta"),
    ("sys", "gpu"),
    ("cluster", "cluster"),
    ("cluster", "sys"),
)


def messages() -> Iterator[Program]:
    """Message passing between two threads."""
    places = ("lanes", "warps", "CTAs")
    plain = DATA[0]
    for where, scopes in itertools.product(places, SCOPE_PAIRS):
        for signal, wait in itertools.product(signals(Y, scopes[0]), waits(Y, scopes[1])):
            yield passing(signal, wait, plain, where, scopes)
        for signal in (*wrong_signals(Y, scopes[0]), *overwritten_signals(Y, scopes[0])):
            for wait in (waits(Y, scopes[1])[number] for number in (0, 2, 6)):
                yield passing(signal, wait, plain, where, scopes)
        for wait in wrong_waits(Y, scopes[1]):
            for signal in (signals(Y, scopes[0])[number] for number in (0, 2, 6)):
                yield passing(signal, wait, plain, where, scopes)
    for where, data in itertools.product(places, DATA[1:]):
        if where == "CTAs" and _shared(*data[:2]):
            continue
        for scopes in SCOPE_PAIRS[:3]:
            for signal, wait in itertools.product(signals(Y, scopes[0])[:3], waits(Y, scopes[1])[:3]):
                yield passing(signal, wait, data, where, scopes)
            for signal in wrong_signals(Y, scopes[0])[1::2]:
                yield passing(signal, waits(Y, scopes[1])[0], data, where, scopes)
            for wait in wrong_waits(Y, scopes[1])[::2]:
                yield passing(signals(Y, scopes[0])[0], wait, data, where, scopes)


def chains() -> Iterator[Program]:
    """Message passing over three threads: the second passes on what it has waited for.

    Also through a read-modify-write of the second, which goes on with the first one's release, and through an
    overwriting store, which ends it.
    """
    placements = ("lanes", "warps", "CTAs", "two CTAs")
    pairs: tuple[tuple[Scope, Scope], ...] = (("gpu", "gpu"), ("cta", "gpu"), ("cta", "cta"), ("gpu", "cta"))
    for where, (near, far) in itertools.product(placements, pairs):
        places = PLACES[where][:3]
        cut = any(not reaches(scope, places[n : n + 2]) for n, scope in enumerate((near, far)))
        narrow = ["scope too narrow"] if cut else []
        middles = [
            (one, two, three, four) for one in (0, 2) for two in (0, 2, 6) for three in (0, 2) for four in (0, 2)
        ]
        rights = [
            (signals(Y, near)[a], waits(Y, near)[b], signals(U, far)[c], waits(U, far)[d]) for a, b, c, d in middles
        ]
        wrongs = [(each, waits(Y, near)[0], signals(U, far)[0], waits(U, far)[0]) for each in wrong_signals(Y, near)]
        wrongs += [(signals(Y, near)[0], each, signals(U, far)[0], waits(U, far)[0]) for each in wrong_waits(Y, near)]
        # The second thread has no data of its own, so nothing of its signal can come before it.
        ends = [each for each in wrong_signals(U, far) if not each.before]
        wrongs += [(signals(Y, near)[0], waits(Y, near)[0], each, waits(U, far)[0]) for each in ends]
        wrongs += [(signals(Y, near)[0], waits(Y, near)[0], signals(U, far)[0], each) for each in wrong_waits(U, far)]
        for first, second, third, fourth in (*rights, *wrongs):
            faults = [each.fault for each in (first, second, third, fourth) if each.fault not in ("", "if")] + narrow
            middle: Several = (*third.before, *third.after)
            if second.fault == "if":
                middle = (*second.before, If("r0", 1, middle))
                last: Several = (*(each for each in fourth.before), Load("r1", X), *fourth.after)
                if any(isinstance(each, Until) for each in last):
                    continue
            else:
                middle = (*second.before, *second.after, *middle)
                last = (*fourth.before, Load("r1", X), *fourth.after)
            threads = ((*first.before, Store(X, 7), *first.after), middle, last)
            yield _program("chain of three", " and ".join(faults) or "in order", places, threads)
        add = Atomic("add", Y, 1, "relaxed", near, "r0")
        firsts = (*signals(Y, near)[:3], *wrong_signals(Y, near)[1:3])
        for signal, wait in itertools.product(
            firsts, (waits(Y, far, 2)[0], waits(Y, far, 2)[2], wrong_waits(Y, far, 2)[0])
        ):
            fault = " and ".join([each for each in (signal.fault, wait.fault) if each] + narrow) or "in order"
            head = (*signal.before, Store(X, 7), *signal.after)
            tail = (*wait.before, Load("r1", X), *wait.after)
            # The second thread adds once it sees 1, so that 2 comes out of a chain of read-modify-writes.
            seen = Until(Load("r2", Y, order="relaxed", scope=near), 1)
            yield _program("release passed on", f"{fault}, by an atomic", places, (head, (seen, add), tail))
            middles_: tuple[tuple[Several, str], ...] = (
                ((seen, Atomic("add", Y, 1, "relaxed", near)), "by a red"),
                ((seen, Store(Y, 2, order="relaxed", scope=near)), "ended by a relaxed store"),
                ((seen, Store(Y, 2, order="release", scope=near)), "ended by a release of a thread without acquire"),
                ((seen, Store(Y, 2)), "ended by a weak store"),
                ((seen, Atomic("exch", Y, 2, "relaxed", near, "r0")), "by an exchange"),
            )
            for middle, how in middles_:
                yield _program("release passed on", f"{fault}, {how}", places, (head, middle, tail))


def _program(shape: str, cause: str, places: tuple[ThreadPlace, ...], threads: tuple[Several, ...]) -> Program:
    pairs = zip(places, threads, strict=True)
    return Program(shape, cause, tuple(Thread(place, each) for place, each in pairs))
