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
from refmoe.ptx.trace import Trace, TraceEvent

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
    "Trace",
    "TraceEvent",
    "Trap",
    "UnknownOpcode",
    "WarpError",
    "launch",
]
