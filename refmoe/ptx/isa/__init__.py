"""What one PTX instruction computes.

`resolve` gives instructions, `resolve_video` those on parts of registers, `resolve_atomic` the arithmetic of atom, red
and redux. Everything that touches memory,
control flow or more than one lane belongs to the machine.
"""

from __future__ import annotations

from refmoe.ptx.isa.atomic import resolve_atomic
from refmoe.ptx.isa.errors import NoSuchInstruction
from refmoe.ptx.isa.operation import DTYPES, Operation
from refmoe.ptx.isa.table import resolve
from refmoe.ptx.isa.video import MNEMONICS as VIDEO
from refmoe.ptx.isa.video import Selection, resolve_video

__all__ = [
    "DTYPES",
    "VIDEO",
    "NoSuchInstruction",
    "Operation",
    "Selection",
    "resolve",
    "resolve_atomic",
    "resolve_video",
]
