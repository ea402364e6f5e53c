"""Which shared variable an address was made from: an access beyond that variable is out of bounds, whatever lies there.

Each `.shared` variable is an object of its own, and where the next one begins is the compiler's choice. What a register
holds is a number, the address of one variable plus numbers, or a mixture, of which nothing is said: what has been
masked, or is of two variables. A value from memory is a number, as an index is: so an address that was stored and
loaded again is not bounded. The analysis does not look at the order of instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from refmoe.ptx.program.registers import results_and_uses
from refmoe.ptx.text.syntax import Address, Function, Instruction, Operand, Register, Symbol, parts

_NUMBER, _MIXED = "", "?"
# Their result is an address if exactly one of their sources is one; of a difference it is the first.
_SUMS = frozenset(("add", "or", "mad", "sub"))
_CHOICES = frozenset(("mov", "cvta", "cvt", "selp"))


@dataclass(frozen=True)
class Bounds:
    """Where a shared variable lies: the offset of its first byte, and that behind its last. `name`: for messages."""

    name: str
    begin: int
    end: int


def bounds_of(entry: Function, variables: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """What an address in a register, or with a symbol, may reach, by the name of either; others are not bounded."""
    if len(variables) < 2:
        # The end of a single variable is that of all shared memory.
        return {}
    held: dict[str, str] = {}
    body = [each for each in entry.body or () if isinstance(each, Instruction)]
    writers = [(each, [register.name for register in results_and_uses(each)[0]]) for each in body]
    changed = True
    while changed:
        changed = False
        for instruction, names in writers:
            made = _made(instruction, held, variables) if names else None
            if made is None:
                continue
            for name in names:
                old = held.get(name)
                new = made if old is None or old == made else _MIXED
                if new != old:
                    held[name] = new
                    changed = True
    known = {name: variables[source] for name, source in held.items() if source not in (_NUMBER, _MIXED)}
    return {**known, **variables}


def _made(instruction: Instruction, held: Mapping[str, str], variables: Mapping[str, Bounds]) -> str | None:
    """What an instruction writes; None while nothing is known of a source."""
    stem = instruction.opcode.split(".")[0]
    sources = instruction.operands[1:]
    if any(isinstance(each, Address) for each in sources):
        # What lies in memory counts as a number: most often it is an index.
        return _NUMBER
    if stem == "selp":
        sources = sources[:2]
    values = [_of(each, held, variables) for each in sources]
    if any(value is None for value in values):
        return None
    kinds = [value for value in values if value is not None]
    if all(kind == _NUMBER for kind in kinds):
        return _NUMBER
    if stem in _CHOICES and len(set(kinds)) == 1:
        return kinds[0]
    if stem in _SUMS and _MIXED not in kinds and sum(kind != _NUMBER for kind in kinds) == 1:
        at = next(number for number, kind in enumerate(kinds) if kind != _NUMBER)
        # A product has no variable, and no number less an address.
        fits = at == 2 if stem == "mad" else at == 0 or stem != "sub"
        return kinds[at] if fits else _MIXED
    return _MIXED


def _of(operand: Operand, held: Mapping[str, str], variables: Mapping[str, Bounds]) -> str | None:
    if isinstance(operand, Register):
        return held.get(operand.name)
    if isinstance(operand, Symbol):
        return operand.name if operand.name in variables else _MIXED
    # Parts of registers, put together.
    return _MIXED if any(isinstance(each, Register) for each in parts(operand)) else _NUMBER
