"""Registers that hold more than one register of the machine: vectors (`.reg .v4 .f32 v`) and 128 bits (`.reg .b128 q`).

The machine's registers have at most 64 bits. A vector is its elements `v.x .. v.w`, and 128 bits are two halves; an
instruction on such registers is one or a few on the parts.
"""

from __future__ import annotations

import re
from dataclasses import replace

from refmoe.ptx.text.scopes import Scope
from refmoe.ptx.text.syntax import (
    Group,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Selected,
    Sink,
    Special,
    Vector,
    parts,
)

_WIDE = "b128"
# Element of a vector by its name.
_NAMES = {name: number for names in ("xyzw", "rgba") for number, name in enumerate(names)}
_AXES = "xyz"
# Parts of a register of which a video instruction takes some.
_SELECTOR = re.compile(r"[bh][0-7]{1,4}")


def vector_kind(count: int, kind: str) -> str:
    """The kind of a register that is a vector, as scopes keep it: `v4.b32`."""
    return f"v{count}.{kind}"


def found(scope: Scope, name: str) -> Register | Vector | None:
    """The register or the vector of registers that `name` means in a scope; `v.x` is an element of `v`."""
    register = scope.register(name)
    if register is not None:
        return _elements(register) if register.kind.startswith("v") else register
    whole, _, element = name.rpartition(".")
    if element not in _NAMES or not whole:
        return None
    vector = found(scope, whole)
    if not isinstance(vector, Vector) or _NAMES[element] >= len(vector.elements):
        return None
    one = vector.elements[_NAMES[element]]
    assert isinstance(one, Register)
    return one


def selected(scope: Scope, name: str) -> Selected | None:
    """The parts of a register that `name` means: `r.h1`, `r.b7654`."""
    whole, _, selector = name.rpartition(".")
    register = scope.register(whole) if _SELECTOR.fullmatch(selector) else None
    return None if register is None or register.kind != "b32" else Selected(register, selector)


def _elements(vector: Register) -> Vector:
    count, kind = vector.kind[1:].split(".")
    # The manual has names for four elements; those behind them are met in whole vectors only.
    names = ("x", "y", "z", "w", *(f"@{number}" for number in range(4, int(count))))
    return Vector(tuple(Register(f"{vector.name}.{names[number]}", kind) for number in range(int(count))))


def _halves(register: Register) -> tuple[Register, Register]:
    """The low and the high half of 128 bits."""
    return Register(f"{register.name}@low", "b64"), Register(f"{register.name}@high", "b64")


def narrowed(instruction: Instruction) -> list[Instruction]:
    """Instructions on parts that do what one on vectors or on 128 bits does; any other instruction as it is.

    None has a register of 128 bits: where one does not fit stands the vector of its halves, which does not fit either.
    """
    made = _narrowed(instruction)
    return [replace(each, operands=tuple(map(_pair_inside, each.operands))) for each in made]


def _narrowed(instruction: Instruction) -> list[Instruction]:
    stem, *modifiers = instruction.opcode.split(".")
    if stem == "mov" and modifiers[:1] in (["v2"], ["v4"], ["v8"]):
        return _moves_of_vector(instruction, int(modifiers[0][1]), modifiers[1:])
    if modifiers[-1:] != [_WIDE]:
        return [instruction]
    if stem == "mov" and len(instruction.operands) == 2:
        return _moves(instruction, [_pair(each) for each in instruction.operands], "mov.b64")
    # Of the atomics those on 128 bits move them, or compare them as a whole: see `Atomic`.
    moves = stem in ("ld", "st", "ldu") or (stem == "atom" and {"exch", "cas"} & set(modifiers))
    if moves and not {"v2", "v4", "v8"} & set(modifiers):
        opcode = ".".join([stem, *modifiers[:-1], "v2", "b64"])
        operands = tuple(_pair(each) if isinstance(each, Register | Sink) else each for each in instruction.operands)
        return [replace(instruction, opcode=opcode, operands=operands)]
    return [instruction]


def _pair_inside(operand: Operand) -> Operand:
    if isinstance(operand, Group):
        return Group(tuple(map(_pair_inside, operand.elements)))
    if isinstance(operand, Vector):
        return Vector(tuple(map(_pair_inside, operand.elements)))
    if isinstance(operand, Pair):
        return Pair(_pair_inside(operand.first), _pair_inside(operand.second))
    return operand if isinstance(operand, Sink) else _pair(operand)


def _pair(operand: Operand) -> Operand:
    """The two halves of an operand of 128 bits; what has none stays, to be refused by whoever reads it."""
    if isinstance(operand, Register) and operand.kind == _WIDE:
        return Vector(_halves(operand))
    if isinstance(operand, Sink):
        return Vector((Sink(), Sink()))
    return operand


def _moves_of_vector(instruction: Instruction, count: int, modifiers: list[str]) -> list[Instruction]:
    operands = [_axes(each, count) for each in instruction.operands]
    if len(operands) != 2 or len(modifiers) != 1:
        return [instruction]
    return _moves(instruction, operands, f"mov.{modifiers[0]}", count)


def _axes(operand: Operand, count: int) -> Operand:
    """`%tid` as a vector: its three axes, and a zero behind them."""
    if isinstance(operand, Special) and "." not in operand.name:
        axes: tuple[Operand, ...] = tuple(Special(f"{operand.name}.{axis}") for axis in _AXES)
        return Vector((*axes, Immediate(0))[:count])
    return operand


def _moves(instruction: Instruction, operands: list[Operand], opcode: str, count: int = 2) -> list[Instruction]:
    """Moves of each element, by way of registers of their own where one would overwrite what another reads."""
    destination, source = operands
    if not isinstance(destination, Vector) or not isinstance(source, Vector):
        return [instruction]
    pairs = list(zip(destination.elements, source.elements, strict=False))
    if {len(destination.elements), len(source.elements)} != {count}:
        return [instruction]

    def move(to: Operand, value: Operand) -> Instruction:
        return replace(instruction, opcode=opcode, operands=(to, value))

    written = {each for each in parts(destination) if isinstance(each, Register)}
    if not written & {each for each in parts(source) if isinstance(each, Register)}:
        return [move(to, value) for to, value in pairs if not isinstance(to, Sink)]
    kept = [(to, Register(f"{to.name}@before", to.kind), value) for to, value in pairs if isinstance(to, Register)]
    return [*(move(before, value) for _, before, value in kept), *(move(to, before) for to, before, _ in kept)]
