"""Updates of one place by several threads, `count[i] += 1`: a plain load, something done with the value, a plain store.

No order between the load of one thread and the store of another is enough. Each stores what it made of the value that
it read, and what another thread has stored in between is lost. It takes an atomic, in the place of the store. Where
something else uses what was loaded or stored, as in `slot = count++`, it stands in the place of the load.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from refmoe.ptx.findings.edits import PtxEdit
from refmoe.ptx.findings.site import UPDATES, Body, RaceSite, Remedy, where
from refmoe.ptx.program.registers import names_read, names_written
from refmoe.ptx.text.memory_ops import MemoryOpcode, memory_opcode
from refmoe.ptx.text.scopes import type_bits
from refmoe.ptx.text.syntax import Address, Instruction, Label, Operand, Register, parts

# Operations that have an atomic, with their types, and what CUDA calls it.
_OPERATION = re.compile(
    r"(add|sub|min|max|mad\.lo)\.([su](?:32|64))"
    r"|(and|or|xor)\.(b(?:32|64))"
    r"|(add|sub|fma)\.(?:rn\.)?(?:ftz\.)?(f(?:32|64))"
    r"|(add)\.(?:rn\.)?(?:ftz\.)?(b?f16(?:x2)?)"
)
_ATOMICS = {
    "add": "atomicAdd", "and": "atomicAnd", "or": "atomicOr", "xor": "atomicXor", "min": "atomicMin",
    "max": "atomicMax",
}  # fmt: skip
# Operations whose atomic adds something that has to be computed: how, and which operand was loaded.
_COMPUTED = {"sub": ("neg", 0), "fma": ("mul.rn", 2), "mad.lo": ("mul.lo", 2)}
# No update goes on behind a branch, where other lanes may run, nor behind a meeting of threads, which may agree there
# on what they have read.
_APART = ("bra", "brx", "call", "bar", "barrier", "mbarrier")
# Lanes may end here. Those do not come to the store.
_LEAVES = ("exit", "ret", "trap")


@dataclass(frozen=True)
class AtomicUpdate:
    """What does an update at once.

    Attributes:
        operation: `"add"`.
        type: `"u32"`.
        by: what it takes, as PTX has it.
        first: statements that compute it, with the register in which it is; empty where it is an operand.
        at: of which instruction it takes the place. At the load it gives what the load gave.
    """

    operation: str
    type: str
    by: str
    first: str
    at: Literal["load", "store"]


@dataclass(frozen=True)
class Update:
    """A place is loaded, and what is made of the value is stored there.

    Attributes:
        load, store: the instructions.
        atomic: what does it at once, if a small change gives that.
    """

    load: Instruction
    store: Instruction
    atomic: AtomicUpdate | None

    def does(self, access: Instruction) -> bool:
        """Whether an access is its load or its store. That of a function that was called has other registers."""
        return _same(self.load, access) or _same(self.store, access)


def updates_of(race: RaceSite) -> tuple[Update, ...]:
    """The update, or the two, that the plain accesses of a race belong to; none if one of them belongs to none."""
    found = dict[Update, None]()
    for access in (race.later, race.earlier):
        parts = None if access is None else memory_opcode(access.opcode)
        if access is None or parts is None:
            return ()
        if not parts.strong:
            update = _update_of(race.body, access)
            if update is None:
                return ()
            found[update] = None
    return tuple(found)


def atomic_remedies(race: RaceSite, found: Sequence[Update]) -> Iterator[Remedy]:
    """Atomics in place of updates: of the scope of both threads, and of the grid, whose blocks may do the same."""
    if any(each.atomic is None for each in found):
        return
    for scope in dict.fromkeys((race.scope, race.scope if race.error.space == "shared" else "gpu")):
        made = [_remedy(scope, each, each.atomic) for each in found if each.atomic is not None]
        words, edits = ", and ".join(word for word, _ in made), tuple(edit for _, edits in made for edit in edits)
        yield Remedy(words, edits, *UPDATES, orders=False, updates=True)


def _remedy(scope: str, found: Update, atomic: AtomicUpdate) -> tuple[str, tuple[PtxEdit, ...]]:
    """An atomic in place of an update, in words and as edits."""
    spelled = re.search(r"\.(?:global|shared(?:::\w+)?)", found.store.opcode)
    space = spelled[0] if spelled is not None else ""
    place = found.store.text[found.store.text.index("[") : found.store.text.index("]") + 1]
    guard = found.store.text[: found.store.text.index(found.store.opcode)]
    noftz = ".noftz" if "16" in atomic.type else ""
    kind = f"relaxed.{scope}{space}.{atomic.operation}{noftz}.{atomic.type}"
    name = _ATOMICS[atomic.operation] + ("_block" if scope == "cta" else "")
    words = f"{name} in place of the load at {where(found.load)} and the store at {where(found.store)}"

    def with_first(text: str) -> str:
        return f"{{ {atomic.first} {text} }}" if atomic.first else text

    if atomic.at == "store":
        load = memory_opcode(found.load.opcode)
        assert load is not None
        return words, (
            PtxEdit(found.load, "opcode", f"ld.relaxed.{scope}{space}.{load.type}"),
            PtxEdit(found.store, "whole", with_first(f"{guard}red.{kind} {place}, {atomic.by};")),
        )
    (value,) = names_written(found.load)
    return f"{words}; it returns what the load gave", (
        PtxEdit(found.load, "whole", with_first(f"atom.{kind} {value}, {place}, {atomic.by};")),
        PtxEdit(found.store, "whole", ""),
    )


# What an update is


def _update_of(body: Body, access: Instruction) -> Update | None:
    """The update whose load or store an access is."""
    here = next((n for n, each in enumerate(body) if isinstance(each, Instruction) and _same(each, access)), None)
    plain = _plain(access)
    if here is None or plain is None:
        return None
    if plain.stem == "st":
        return update_with(body, here)
    load = body[here]
    assert isinstance(load, Instruction)
    for number, each in enumerate(body[here:], here):
        if _is_apart(each):
            return None
        # Unrolled code has hundreds of stores: those of another place are not looked at.
        if isinstance(each, Instruction) and each.operands[:1] == load.operands[1:]:
            found = update_with(body, number)
            if found is not None and found.does(access):
                return found
    return None


def _same(one: Instruction, other: Instruction) -> bool:
    return (one.line, one.text) == (other.line, other.text)


def update_with(body: Body, here: int) -> Update | None:
    """The update that the instruction of number `here` ends, in code that runs in one go; None if it ends none."""
    store = body[here]
    if not isinstance(store, Instruction):
        return None
    stored = _plain(store)
    if stored is None or stored.stem != "st" or stored.count > 1 or len(store.operands) != 2:
        return None
    place, value = store.operands
    assert isinstance(place, Address)
    kept, between = _names(place), list[Instruction]()
    for each in reversed(body[:here]):
        if _is_apart(each):
            return None
        assert isinstance(each, Instruction)
        writes = names_written(each)
        if _loads(each, place) and not writes & kept and _names(value) & _made_of(writes, between[::-1]):
            return Update(each, store, _atomic(body, each, between[::-1], store))
        if writes & kept:
            return None
        between.append(each)
    return None


def _is_apart(each: Instruction | Label) -> bool:
    return isinstance(each, Label) or each.opcode.split(".")[0] in _APART


def _plain(access: Instruction) -> MemoryOpcode | None:
    """The parts of a plain load or store."""
    found = memory_opcode(access.opcode)
    return found if found is not None and found.stem in ("ld", "st") and not found.strong and found.coherent else None


def _loads(load: Instruction, place: Address) -> bool:
    """Whether an instruction is a plain load of one element of a place."""
    loaded = _plain(load) if place in load.operands else None
    return loaded is not None and loaded.stem == "ld" and loaded.count == 1


def _made_of(value: frozenset[str], code: Sequence[Instruction]) -> frozenset[str]:
    """The registers that hold a value, or something made of it, behind some code."""
    held = value
    for each in code:
        writes = names_written(each)
        if held & names_read(each):
            held |= writes
        elif each.guard is None:
            held -= writes
    return held


# What does it at once


def _atomic(body: Body, load: Instruction, between: Sequence[Instruction], store: Instruction) -> AtomicUpdate | None:
    """The atomic of an update; `between`: the code between its load and its store."""
    loaded, stored = memory_opcode(load.opcode), memory_opcode(store.opcode)
    made = next((n for n, each in reversed([*enumerate(between)]) if _writes(each, store.operands[1])), None)
    if made is None or loaded is None or stored is None or loaded.size != stored.size:
        return None
    operation, value = between[made], names_written(load)
    match = _OPERATION.fullmatch(operation.opcode)
    changed = _written(between[:made]) & value
    if match is None or operation.guard is not None or changed or not _runs_with(load, between, store):
        return None
    name, kind = (each for each in match.groups() if each is not None)
    taken = _taken(operation, value)
    if taken is None or type_bits(kind) != 8 * stored.size:
        return None
    first, by = "", taken[0]
    if name in _COMPUTED:
        opcode, loaded_one = _COMPUTED[name]
        if not _names(operation.operands[1:][loaded_one]) & value:
            return None
        by = _free_name(body)
        # There is no neg of an unsigned number.
        signed = kind.replace("u", "s") if name == "sub" else kind
        first = f".reg .b{type_bits(kind)} {by}; {opcode}.{signed} {by}, {', '.join(taken)};"
        name = "add"
    if name == "add":
        # Addition is the same whatever the sign, and no atomic adds .s64.
        kind = kind.replace("s", "u")
    at = _stands_at(body, load, between, made, store)
    return None if at is None else AtomicUpdate(name, kind, by, first, at)


def _runs_with(load: Instruction, between: Sequence[Instruction], store: Instruction) -> bool:
    """Whether a load runs for all lanes that store: without a guard, or with that of the store."""
    if load.guard is None:
        return True
    same = (load.guard, load.negated) == (store.guard, store.negated)
    return same and load.guard.name not in _written(between)


def _taken(operation: Instruction, value: frozenset[str]) -> list[str] | None:
    """The operands besides the value, of which there has to be one, as they are spelled.

    A register of a scope of its own has another name than it is spelled with, and no name outside.
    """
    text = operation.text
    words = text[text.index(operation.opcode) + len(operation.opcode) :].rstrip("; ").split(",")
    operands = [*zip((word.strip() for word in words[1:]), operation.operands[1:], strict=True)]
    others = [(word, operand) for word, operand in operands if not _names(operand) & value]
    if len(others) != len(operands) - 1:
        return None
    if any(isinstance(operand, Register) and operand.name != word for word, operand in others):
        return None
    return [word for word, _ in others]


def _stands_at(
    body: Body, load: Instruction, between: Sequence[Instruction], made: int, store: Instruction
) -> Literal["load", "store"] | None:
    """Of which of both an atomic can take the place; `made`: which instruction of `between` is the operation."""
    operation = between[made]
    takes = names_read(operation) - names_written(load)
    results = names_written(load) | names_written(operation)
    used = any(
        results & names_read(each) for each in body if isinstance(each, Instruction) and each not in (operation, store)
    )
    if any("@" in name for each in (load, store) for operand in each.operands for name in _names(operand)):
        return None
    if not used and not takes & _written(between[made:]):
        return "store"
    guarded = load.guard is not None or store.guard is not None
    left = any(each.opcode.split(".")[0] in _LEAVES for each in between)
    return "load" if not guarded and not left and not takes & _written(between) else None


def _free_name(body: Body) -> str:
    name = "%by"
    while any(isinstance(each, Instruction) and name in each.text for each in body):
        name += "_"
    return name


def _written(code: Sequence[Instruction]) -> frozenset[str]:
    return frozenset(name for each in code for name in names_written(each))


def _writes(each: Instruction, value: Operand) -> bool:
    return bool(names_written(each) & _names(value))


def _names(operand: Operand) -> frozenset[str]:
    """The registers of an operand."""
    return frozenset(each.name for each in parts(operand) if isinstance(each, Register))
