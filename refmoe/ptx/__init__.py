"""The PTX executor: runs the compiler's own PTX on NumPy arrays, and sees what hardware hides."""

from __future__ import annotations

from refmoe.ptx.errors import (
    ArgumentMismatch,
    Contraction,
    Deadlock,
    MemoryFault,
    MisuseError,
    ParseError,
    PtxError,
    RaceError,
    StepBudgetExceeded,
    Trap,
    UnknownOpcode,
    WarpError,
)
from refmoe.ptx.launcher import Buffer, LaunchResult, Module, launch
from refmoe.ptx.machine import Checks

__all__ = [
    "ArgumentMismatch",
    "Buffer",
    "Checks",
    "Contraction",
    "Deadlock",
    "LaunchResult",
    "MemoryFault",
    "MisuseError",
    "Module",
    "ParseError",
    "PtxError",
    "RaceError",
    "StepBudgetExceeded",
    "Trap",
    "UnknownOpcode",
    "WarpError",
    "launch",
]
