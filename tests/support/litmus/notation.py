"""Litmus programs in a short notation, for tests.

Threads are parted by `|`; each begins with its place, `cta.warp.lane`, and its instructions are parted by `;`:

    0.0.0: st.weak x 1; st.release.gpu y 1 | 1.0.0: until ld.acquire.gpu r0 y == 1; ld.weak r1 x

A condition is `if r0 == 1 { ...; ... }`. A width stands after a colon at the end: `st.weak x 1 :8`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from refmoe.litmus.events import Memory
from refmoe.litmus.program import (
    Address,
    Arrive,
    AsyncArrive,
    AsyncCopy,
    Atomic,
    Barrier,
    BulkLoad,
    BulkStore,
    CommitGroup,
    Fence,
    If,
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
from refmoe.litmus.verdict import ModelVerdict

DATA = Path(__file__).parents[2] / "data" / "litmus"


def entries(name: str, lines: int) -> list[tuple[str, tuple[str, ...], str]]:
    """(name, so many lines about it, program) of all entries of a file of tests/data/litmus."""
    found = []
    for block in (DATA / f"{name}.txt").read_text().split("\n\n"):
        written = [line for line in block.splitlines() if not line.startswith("#")]
        if written:
            about = tuple(line.strip() for line in written[1 : 1 + lines])
            threads: list[str] = []
            first = ""
            for line in written[1 + lines :]:
                if line.strip().startswith("["):
                    first = line.strip()
                elif line.startswith("      "):
                    threads[-1] += " " + line.strip()
                else:
                    threads.append(line.strip())
            found.append((written[0], about, first + " | ".join(threads)))
    return found


def program(text: str, cluster: int = 1, mbarriers: tuple[int, ...] = ()) -> Program:
    """The program of a text; `[x=1 y=2]` in front of it says what memory holds at first."""
    threads = []
    initial = ""
    if text.startswith("["):
        initial, _, text = text[1:].partition("]")
    for part in text.split("|"):
        place, _, body = part.strip().partition(":")
        threads.append(Thread(ThreadPlace(*map(int, place.split("."))), _body(body)))
    first = tuple((Address.of(each.split("=")[0]), 4, int(each.split("=")[1])) for each in initial.split())
    found = Program("test", "test", tuple(threads), first, mbarriers, cluster)
    found.check()
    return found


def spread(threads: str) -> Program:
    """Threads of a CTA each, or of the places that they name."""
    parts = threads.split(" | ")
    return program(" | ".join(each if each[0].isdigit() else f"{cta}.0.0: {each}" for cta, each in enumerate(parts)))


def _body(text: str) -> tuple[Instruction, ...]:
    found: list[Instruction] = []
    for each in re.findall(r"\s*if [^{]*\{[^}]*\}|[^;]+", text):
        condition = re.match(r"\s*if (\w+) (==|!=) (\d+) \{(.*)\}", each)
        if condition:
            register, relation, value, inner = condition.groups()
            found.append(If(register, int(value), _body(inner), relation == "=="))
        elif each.strip():
            found.append(_instruction(each.strip()))
    return tuple(found)


def _instruction(text: str) -> Instruction:
    if text.startswith("until"):
        inner, _, value = text[5:].partition("==")
        attempt = _instruction(inner.strip())
        assert isinstance(attempt, Load | Atomic)
        return Until(attempt, int(value))
    text, _, width = text.partition(":")
    bits = int(width or 4)
    opcode, *operands = text.split()
    kind, *parts = opcode.split(".")
    if kind == "ld":
        return Load(operands[0], Address.of(operands[1]), bits, parts[0], parts[1] if parts[1:] else None)  # type: ignore[arg-type]
    if kind == "st":
        value = operands[1]
        return Store(
            Address.of(operands[0]),
            int(value) if value.isdigit() else value,
            bits,
            parts[0],  # type: ignore[arg-type]
            parts[1] if parts[1:] else None,  # type: ignore[arg-type]
        )
    if kind == "atom":
        order, scope, operation = parts
        compare = int(operands[2]) if operation == "cas" else 0
        at, operand = Address.of(operands[1]), int(operands[-1])
        return Atomic(operation, at, operand, order, scope, operands[0], compare, bits)  # type: ignore[arg-type]
    if kind == "red":
        order, scope, operation = parts
        return Atomic(operation, Address.of(operands[0]), int(operands[1]), order, scope, width=bits)  # type: ignore[arg-type]
    if kind == "fence":
        return Fence(*parts)  # type: ignore[arg-type]
    if kind == "membar":
        return Fence("membar", "gpu" if parts[0] == "gl" else parts[0])  # type: ignore[arg-type]
    if kind == "bar" and parts[0] in ("sync", "arrive"):
        return Barrier(int(operands[0]), int(operands[1]), parts[0] == "arrive")
    if kind == "warpsync":
        return WarpSync(int(operands[0], 0))
    if kind in _COPIES:
        return _COPIES[kind](*operands)
    assert kind == "wait", text
    return Wait(int(operands[0]), int(operands[1]))


#: Barriers in memory and copies: `arrive 0`, `expect 0 16`, `copy a x 4`, `bulkload a x 0`, `bulkstore y a`,
#: `bulkadd y a`.
_COPIES: dict[str, Callable[..., Instruction]] = {
    "arrive": lambda number: Arrive(int(number)),
    "expect": lambda number, count: Arrive(int(number), int(count)),
    "copy": lambda to, source, width: AsyncCopy(Address.of(to), Address.of(source), int(width)),
    "commit": lambda: CommitGroup(),
    "waitgroup": lambda pending: WaitGroup(int(pending)),
    "copyarrive": lambda number: AsyncArrive(int(number)),
    "bulkload": lambda to, source, number: BulkLoad(Address.of(to), Address.of(source), int(number)),
    "bulkstore": lambda to, source: BulkStore(Address.of(to), Address.of(source)),
    "bulkadd": lambda to, source: BulkStore(Address.of(to), Address.of(source), adds=True),
    "bulkcommit": lambda: CommitGroup(bulk=True),
    "bulkwait": lambda pending: WaitGroup(int(pending), bulk=True),
    "bulkread": lambda pending: WaitGroup(int(pending), bulk=True, read=True),
    "proxyfence": lambda: ProxyFence(),
}


def may_show(found: ModelVerdict, program_: Program, outcome: str) -> bool:
    """Whether a verdict allows an outcome: `1:r0=1 x=2`; what it does not name may be anything."""
    wanted = dict(each.split("=") for each in outcome.split())
    names = [f"{thread}:{register}" for thread, register in program_.registers]
    names += [str(Address("global", cell.start)) for cell in Memory(program_).observed]
    assert set(wanted) <= set(names), (wanted, names)
    assert found.outcomes is not None
    return any(
        all(values[names.index(name)] == int(value) for name, value in wanted.items()) for values in found.outcomes
    )
