"""Updates of one place by several threads, `count[i] += 1`: a plain load, an operation, a plain store.

No order between the load of one thread and the store of another is enough. Each stores what it made of the value that
it read, and what another thread has stored in between is lost. It takes an atomic, in the place of the store. Where
something else uses what was loaded or stored, as in `slot = count++`, it stands in the place of the load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from refmoe.ptx.findings.collective import registers_read, registers_written
from refmoe.ptx.findings.edits import PtxEdit
from refmoe.ptx.findings.site import UPDATES, Body, RaceSite, Remedy, where
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Address, Instruction, Label, Operand, Register, parts

# Operations that have an atomic, and what CUDA calls it.
_ATOMICS = {
    "add": "atomicAdd", "and": "atomicAnd", "or": "atomicOr", "xor": "atomicXor", "min": "atomicMin",
    "max": "atomicMax",
}  # fmt: skip
_OPERATION = re.compile(r"(add|sub|and|or|xor|min|max|fma|mad\.lo)\.(?:rn\.)?(?:ftz\.)?([subf])(32|64)")
# Operations whose atomic adds something that has to be computed: how, and which operand was loaded.
_COMPUTED = {"sub": ("neg", 0), "fma": ("mul.rn", 2), "mad.lo": ("mul.lo", 2)}


@dataclass(frozen=True)
class Update:
    """A place is loaded, something is done with the value, and the result is stored there.

    Attributes:
        load, store: the instructions.
        operation: the atomic's, `"add"`.
        type: `"u32"`.
        by: what it takes, as PTX has it.
        first: statements that compute it, with the register in which it is; empty where it is an operand.
        at: the load or the store, in whose place the atomic can stand; None where it can stand at neither.
    """

    load: Instruction
    store: Instruction
    operation: str
    type: str
    by: str
    first: str
    at: Instruction | None


def update_of(race: RaceSite) -> Update | None:
    """The update whose load or store is the one access of a race, and whose load or store is the other one, too."""
    both = [each for each in (race.later, race.earlier) if each is not None]
    for access in both:
        found = update_with(race.body, access)
        if found is not None and len(both) == 2 and all(each in (found.load, found.store) for each in both):
            return found
    return None


def atomic_remedy(race: RaceSite, found: Update) -> Iterator[Remedy]:
    """An atomic in place of an update: of the scope of both threads, and of the grid, whose blocks may do the same."""
    for scope in dict.fromkeys((race.scope, race.scope if race.error.space == "shared" else "gpu")):
        yield from _atomic(scope, found)


def _atomic(scope: str, found: Update) -> Iterator[Remedy]:
    store, load = memory_opcode(found.store.opcode), memory_opcode(found.load.opcode)
    assert store is not None
    assert load is not None
    space = "" if store.space == "generic" else f".{store.space}"
    place = found.store.text[found.store.text.index("[") : found.store.text.index("]") + 1]
    guard = found.store.text[: found.store.text.index(found.store.opcode)]
    kind = f"relaxed.{scope}{space}.{found.operation}.{found.type}"
    name = _ATOMICS[found.operation] + ("_block" if scope == "cta" else "")
    words = f"{name} in place of the load at {where(found.load)} and the store at {where(found.store)}"

    def with_first(atomic: str) -> str:
        return f"{{ {found.first} {atomic} }}" if found.first else atomic

    if found.at is found.store:
        edits = (
            PtxEdit(found.load, "opcode", f"ld.relaxed.{scope}{space}.{load.type}"),
            PtxEdit(found.store, "whole", with_first(f"{guard}red.{kind} {place}, {found.by};")),
        )
        yield Remedy(words, edits, *UPDATES, orders=False, updates=True)
    elif found.at is found.load:
        value = found.load.text[len(found.load.opcode) : found.load.text.index(",")].strip()
        edits = (
            PtxEdit(found.load, "whole", with_first(f"atom.{kind} {value}, {place}, {found.by};")),
            PtxEdit(found.store, "whole", ""),
        )
        yield Remedy(f"{words}; it returns what the load gave", edits, *UPDATES, orders=False, updates=True)


def update_with(body: Body, store: Instruction) -> Update | None:
    """The update that a store ends, in code without a label or a branch; None if there is none, or it is no store."""
    stored = memory_opcode(store.opcode)
    if stored is None or stored.stem != "st" or stored.strong or stored.count > 1 or len(store.operands) != 2:
        return None
    place, value = store.operands
    here = next((number for number, each in enumerate(body) if each == store), None)
    if here is None or not isinstance(place, Address):
        return None
    kept, wanted = _names(place), _names(value)
    # What is written from the operation on, and behind the instruction that is looked at.
    since, later = frozenset[str](), set[str]()
    made: tuple[Instruction, re.Match[str]] | None = None
    for each in reversed(body[:here]):
        if isinstance(each, Label) or each.opcode.split(".")[0] in ("bra", "brx", "call"):
            return None
        writes = frozenset(registers_written(each))
        if made is None and writes & wanted:
            operation = _OPERATION.fullmatch(each.opcode)
            if operation is None or each.guard is not None or int(operation[3]) != 8 * stored.size:
                return None
            made, since = (each, operation), writes | later
            wanted = frozenset[str]().union(*map(_names, each.operands[1:]))
        elif made is not None and writes & wanted and not writes & kept and _loads(each, place):
            return _whole(body, each, made, store, since, frozenset(later))
        elif writes & kept:
            return None
        elif made is not None:
            wanted -= writes
        later |= writes
    return None


def _loads(load: Instruction, place: Address) -> bool:
    """Whether an instruction is a plain load of one element of a place."""
    loaded = memory_opcode(load.opcode)
    if loaded is None or loaded.stem != "ld" or loaded.strong or not loaded.coherent or loaded.count > 1:
        return False
    return load.guard is None and place in load.operands


def _whole(
    body: Body,
    load: Instruction,
    made: tuple[Instruction, re.Match[str]],
    store: Instruction,
    since: frozenset[str],
    later: frozenset[str],
) -> Update | None:
    """The update, if its operation does with the value of the load what an atomic can do.

    `since`, `later`: the registers that are written from the operation to the store, and from the load to the store.
    """
    operation, spelled = made
    name, kind, bits = spelled.groups()
    words = operation.text[operation.text.index(operation.opcode) + len(operation.opcode) :].rstrip("; ").split(",")
    operands = [*zip((word.strip() for word in words[1:]), map(_names, operation.operands[1:]), strict=True)]
    value = frozenset(registers_written(load))
    others = [(word, names) for word, names in operands if not names & value]
    taken = frozenset[str]().union(*(names for _, names in others))
    if len(others) != len(operands) - 1:
        return None
    made_with, first = [word for word, _ in others], ""
    if name in _COMPUTED:
        opcode, place = _COMPUTED[name]
        if not operands[place][1] & value:
            return None
        # There is no neg of an unsigned number.
        signed = kind.replace("u", "s") if name == "sub" else kind
        first = f".reg .b{bits} %by; {opcode}.{signed}{bits} %by, {', '.join(made_with)};"
        name, made_with = "add", ["%by"]
    if name == "add":
        # Addition is the same whatever the sign, and no atomic adds .s64.
        kind = kind.replace("s", "u")
    results = value | frozenset(registers_written(operation))
    used = any(
        results & frozenset(registers_read(each))
        for each in body
        if isinstance(each, Instruction) and each not in (operation, store)
    )
    at = None
    if not used and not taken & since:
        at = store
    elif store.guard is None and not taken & later:
        at = load
    return Update(load, store, name, f"{kind}{bits}", made_with[0], first, at)


def _names(operand: Operand) -> frozenset[str]:
    """The registers of an operand."""
    return frozenset(each.name for each in parts(operand) if isinstance(each, Register))
