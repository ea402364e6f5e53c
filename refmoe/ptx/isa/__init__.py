"""What one PTX instruction computes.

`resolve` gives instructions, `resolve_atomic` the arithmetic of atom, red and redux. Everything that touches memory,
control flow or more than one lane belongs to the machine.
"""

from __future__ import annotations

from refmoe.ptx.isa.atomic import resolve_atomic
from refmoe.ptx.isa.errors import UnknownOpcode
from refmoe.ptx.isa.operation import DTYPES, Operation
from refmoe.ptx.isa.table import resolve

__all__ = ["DTYPES", "Operation", "UnknownOpcode", "resolve", "resolve_atomic"]
