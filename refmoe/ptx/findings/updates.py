"""Updates of one place by several threads, `count[i] += 1`: a plain load, an operation, a plain store.

No order between the load of one thread and the store of another is enough. Each stores what it made of the value that
it read, and what another thread has stored in between is lost. It takes an atomic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from refmoe.ptx.findings.collective import registers_written
from refmoe.ptx.findings.edits import PtxEdit
from refmoe.ptx.findings.site import UPDATES, Body, RaceSite, Remedy, where
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Address, Instruction, Label, Operand, Register, parts

# Operations that have an atomic, and what CUDA calls it.
_ATOMICS = {
    "add": "atomicAdd", "and": "atomicAnd", "or": "atomicOr", "xor": "atomicXor", "min": "atomicMin",
    "max": "atomicMax",
}  # fmt: skip
_OPERATION = re.compile(r"(add|and|or|xor|min|max)\.(?:rn\.)?([subf])(32|64)")


@dataclass(frozen=True)
class Update:
    """A place is loaded, something is done with the value, and the result is stored there.

    Attributes:
        load, store: the instructions.
        operation: the atomic's, `"add"`.
        type: `"u32"`.
        by: the other operand, as PTX has it.
    """

    load: Instruction
    store: Instruction
    operation: str
    type: str
    by: str


def update_of(race: RaceSite) -> Update | None:
    """The update whose load or store is the one access of a race, and whose load or store is the other one, too."""
    both = [each for each in (race.later, race.earlier) if each is not None]
    for access in both:
        found = update_with(race.body, access)
        if found is not None and len(both) == 2 and all(each in (found.load, found.store) for each in both):
            return found
    return None


def atomic_remedy(race: RaceSite, found: Update) -> Iterator[Remedy]:
    """An atomic in the place of an update."""
    store, load = memory_opcode(found.store.opcode), memory_opcode(found.load.opcode)
    assert store is not None
    assert load is not None
    space = "" if store.space == "generic" else f".{store.space}"
    place = found.store.text[found.store.text.index("[") : found.store.text.index("]") + 1]
    guard = found.store.text[: found.store.text.index(found.store.opcode)]
    atomic = f"red.relaxed.{race.scope}{space}.{found.operation}.{found.type}"
    name = _ATOMICS[found.operation] + ("_block" if race.scope == "cta" else "")
    yield Remedy(
        f"{name} in place of the load at {where(found.load)} and the store at {where(found.store)}",
        (
            PtxEdit(found.load, "opcode", f"ld.relaxed.{race.scope}{space}.{load.type}"),
            PtxEdit(found.store, "whole", f"{guard}{atomic} {place}, {found.by};"),
        ),
        *UPDATES, orders=False,
    )  # fmt: skip


def update_with(body: Body, store: Instruction) -> Update | None:
    """The update that a store ends, in code without a label or a branch; None if there is none, or it is no store."""
    stored = memory_opcode(store.opcode)
    if stored is None or stored.stem != "st" or stored.strong or stored.count > 1 or len(store.operands) != 2:
        return None
    place, value = store.operands
    here = next((number for number, each in enumerate(body) if each == store), None)
    if here is None or not isinstance(place, Address):
        return None
    # What is written between the load or the operation and the store: the atomic stands where the store did.
    kept, later = _names(place), set[str]()
    wanted = _names(value)
    made: tuple[Instruction, re.Match[str]] | None = None
    for each in reversed(body[:here]):
        if isinstance(each, Label) or each.opcode.split(".")[0] in ("bra", "brx", "call"):
            return None
        writes = frozenset(registers_written(each))
        if made is None and writes & wanted:
            operation = _OPERATION.fullmatch(each.opcode)
            if operation is None or each.guard is not None or int(operation[3]) != 8 * stored.size:
                return None
            made = each, operation
            wanted = frozenset[str]().union(*map(_names, each.operands[1:]))
        elif made is not None and writes & wanted:
            return _whole(each, made, store, later)
        elif writes & kept:
            return None
        later |= writes
    return None


def _whole(
    load: Instruction, made: tuple[Instruction, re.Match[str]], store: Instruction, later: set[str]
) -> Update | None:
    """The update, if what gave the operation a value is a plain load of the place of the store.

    `later`: the registers that are written between the load and the store.
    """
    loaded = memory_opcode(load.opcode)
    if loaded is None or loaded.stem != "ld" or loaded.strong or not loaded.coherent or loaded.count > 1:
        return None
    if load.guard is not None or store.operands[0] not in load.operands:
        return None
    operation, spelled = made
    words = operation.text[operation.text.index(operation.opcode) + len(operation.opcode) :].rstrip("; ").split(",")
    others = [
        word.strip()
        for word, operand in zip(words[1:], operation.operands[1:], strict=True)
        if not _names(operand) & frozenset(registers_written(load))
    ]
    if len(others) != 1 or others[0] in later:
        return None
    name, kind, bits = spelled.groups()
    if name == "add":
        # Addition is the same whatever the sign, and no atomic adds .s64.
        kind = kind.replace("s", "u")
    return Update(load, store, name, f"{kind}{bits}", others[0])


def _names(operand: Operand) -> frozenset[str]:
    """The registers of an operand."""
    return frozenset(each.name for each in parts(operand) if isinstance(each, Register))
