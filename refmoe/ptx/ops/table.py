"""From an opcode's spelling to its native code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from refmoe.ptx.isa.errors import NoSuchInstruction
from refmoe.ptx.isa.spelling import Spelling, in_order
from refmoe.ptx.ops import approximate, bits, compare, convert, fields, floating, integer
from refmoe.ptx.ops.lanes import Lowering

# A builder reads the spelling and returns None where it has no native form of it.
Builders = Mapping[str, Callable[[Spelling], Lowering | None]]


# Of these the manual does not say which NaN they make in FP64.
_DOUBLE = ("add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "min", "max")


def _builders() -> list[Builders]:
    return [module.BUILDERS for module in (integer, bits, fields, compare, convert, floating, approximate)]


@cache
def lowering(opcode: str, destinations: int = 1, sources: int = 0) -> Lowering | None:
    """The native form of the instruction with this full spelling, or None where it has none.

    The arguments are those of `refmoe.ptx.isa.resolve`, and the values it takes and gives are of the kinds that the
    `Operation` lists; a carry comes last, in and out.
    """
    found = _lowered(opcode, destinations)
    if found is None and (ordered := in_order(opcode)) != opcode:
        return _lowered(ordered, destinations)
    return found


def _lowered(opcode: str, destinations: int) -> Lowering | None:
    mnemonic = opcode.split(".")[0]
    builds = [builders[mnemonic] for builders in _builders() if mnemonic in builders]
    if mnemonic == "setp":
        # It has a form with one destination and one with two under one spelling.
        builds = [lambda spelling: compare.setp(spelling, destinations)]
    for build in builds:
        try:
            found = build(Spelling(opcode))
        except NoSuchInstruction:
            continue
        if found is not None:
            return found
    return None


@cache
def exactness(opcode: str) -> Lowering | None:
    """The lanes in which an instruction's result is exactly that of hardware, or None where no native code says."""
    # The type that says what an instruction divides stands last.
    opcode = in_order(opcode)
    mnemonic, kind = opcode.split(".")[0], opcode.split(".")[-1]
    if mnemonic in ("div", "rem") and kind[0] in "us":
        return integer.has_divisor
    build = floating.certain if kind == "f64" and mnemonic in _DOUBLE else approximate.EXACT.get(mnemonic)
    try:
        return None if build is None else build(Spelling(opcode))
    except NoSuchInstruction:
        return None
