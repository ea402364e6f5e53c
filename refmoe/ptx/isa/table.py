"""From an opcode's spelling to its operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from refmoe.ptx.isa import approximate, bits, compare, convert, fields, floating, integer
from refmoe.ptx.isa.errors import NoSuchInstruction
from refmoe.ptx.isa.floats import FLOATS
from refmoe.ptx.isa.operation import Operation
from refmoe.ptx.isa.spelling import Spelling, in_order

Builders = Mapping[str, Callable[[Spelling], Operation]]

# The instruction type, the last part of the spelling, decides between the two tables.
_FLOAT_TYPES = frozenset(FLOATS) | {name + "x2" for name in FLOATS}
_INTEGER: Builders = {**integer.BUILDERS, **bits.BUILDERS, **fields.BUILDERS, **compare.BUILDERS, **convert.BUILDERS}
_FLOAT: Builders = {**floating.BUILDERS, **approximate.BUILDERS, **compare.BUILDERS, **convert.BUILDERS}


@cache
def resolve(opcode: str, destinations: int = 1, sources: int = 0) -> Operation:
    """What the instruction with this full spelling computes.

    Args:
        opcode: the spelling without guard and operands, `"cvt.rn.satfinite.e4m3x2.f32"`.
        destinations: 2 where the instruction is written with `p|q`: scalar setp has both forms under one spelling.
        sources: 3 where it is written with three: min and max of FP32 have both forms under one spelling.

    Raises:
        NoSuchInstruction: there is no such instruction here, its modifiers do not go together, or it has no form with
            two destinations.
    """
    try:
        return _resolved(opcode, destinations, sources)
    except NoSuchInstruction:
        if (ordered := in_order(opcode)) == opcode:
            raise
    try:
        return _resolved(ordered, destinations, sources)
    except NoSuchInstruction as error:
        raise NoSuchInstruction(opcode, error.reason) from None


def _resolved(opcode: str, destinations: int, sources: int) -> Operation:
    spelling = Spelling(opcode)
    if spelling.mnemonic == "setp":
        operation = compare.setp(spelling, destinations)
    elif spelling.mnemonic in ("min", "max") and sources == 3:
        operation = floating.extremum_of_three(spelling)
    else:
        build = (_FLOAT if spelling.last in _FLOAT_TYPES else _INTEGER).get(spelling.mnemonic)
        if build is None:
            raise spelling.unknown()
        operation = build(spelling)
    if destinations not in (1, len(operation.destinations)):
        raise spelling.unknown()
    return operation
