"""From an opcode's spelling to its operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from refmoe.ptx.isa import approximate, bits, compare, convert, fields, floating, integer
from refmoe.ptx.isa.floats import FLOATS
from refmoe.ptx.isa.operation import Operation
from refmoe.ptx.isa.spelling import Spelling

__all__ = ["resolve"]

Builders = Mapping[str, Callable[[Spelling], Operation]]

# The instruction type, the last part of the spelling, decides between the two tables.
_FLOAT_TYPES = frozenset(FLOATS) | {name + "x2" for name in FLOATS}
_INTEGER: Builders = {**integer.BUILDERS, **bits.BUILDERS, **fields.BUILDERS, **compare.BUILDERS, **convert.BUILDERS}
_FLOAT: Builders = {**floating.BUILDERS, **approximate.BUILDERS, **compare.BUILDERS, **convert.BUILDERS}


@cache
def resolve(opcode: str, destinations: int = 1) -> Operation:
    """What the instruction with this full spelling computes.

    Args:
        opcode: the spelling without guard and operands, `"cvt.rn.satfinite.e4m3x2.f32"`.
        destinations: 2 for the form `setp ... p|q, a, b` of scalar types, which the spelling does not tell.

    Raises:
        UnknownOpcode: there is no such instruction here, or its modifiers do not go together.
    """
    spelling = Spelling(opcode)
    if spelling.mnemonic == "setp" and destinations in (1, 2):
        return compare.setp(spelling, destinations)
    build = (_FLOAT if spelling.last in _FLOAT_TYPES else _INTEGER).get(spelling.mnemonic)
    if build is None or destinations != 1:
        raise spelling.unknown()
    return build(spelling)
