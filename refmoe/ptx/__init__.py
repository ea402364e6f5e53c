"""The PTX executor: runs the compiler's own PTX on NumPy arrays, and sees what hardware hides.

Each name is imported when it is first asked for: what only writes PTX, or only reads it, needs no compiler.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refmoe.ptx.arguments import Buffer, WrittenBytes
    from refmoe.ptx.debugger import Bytes, Debugger, Stop, StopPoint, WarpPlace
    from refmoe.ptx.device_memory import DeviceMemory
    from refmoe.ptx.engine.lanes import Checks
    from refmoe.ptx.engine.previous_grid import TouchedBytes
    from refmoe.ptx.errors import (
        ArgumentMismatch,
        AssertionFailed,
        Contraction,
        CooperativeLaunchTooLarge,
        CoResidencyError,
        Deadlock,
        MemoryFault,
        MisuseError,
        ParseError,
        PtxError,
        RaceError,
        ScheduleError,
        StepBudgetExceeded,
        Trap,
        UndefinedError,
        UnknownOpcode,
        WarpError,
    )
    from refmoe.ptx.exploration import Redundant, Walk, every_walk
    from refmoe.ptx.launcher import launch
    from refmoe.ptx.module import Module
    from refmoe.ptx.observe.events import TraceEvent
    from refmoe.ptx.observe.kernel_profile import KernelProfile
    from refmoe.ptx.observe.profile import Profile
    from refmoe.ptx.observe.trace import Trace
    from refmoe.ptx.observe.watch import Watch, Write
    from refmoe.ptx.result import LaunchResult
    from refmoe.ptx.running import run_ptx
    from refmoe.ptx.schedule import Schedule
    from refmoe.ptx.schedules import under_schedules
    from refmoe.ptx.state.tensormap import encode_tensor_map, encode_tensor_map_im2col
    from refmoe.ptx.state.textures import CudaArray, LinearMemory, Pitch2D, SurfaceObject, TextureObject

__all__ = [
    "ArgumentMismatch",
    "AssertionFailed",
    "Buffer",
    "Bytes",
    "Checks",
    "CoResidencyError",
    "Contraction",
    "CooperativeLaunchTooLarge",
    "CudaArray",
    "Deadlock",
    "Debugger",
    "DeviceMemory",
    "KernelProfile",
    "LaunchResult",
    "LinearMemory",
    "MemoryFault",
    "MisuseError",
    "Module",
    "ParseError",
    "Pitch2D",
    "Profile",
    "PtxError",
    "RaceError",
    "Redundant",
    "Schedule",
    "ScheduleError",
    "StepBudgetExceeded",
    "Stop",
    "StopPoint",
    "SurfaceObject",
    "TextureObject",
    "TouchedBytes",
    "Trace",
    "TraceEvent",
    "Trap",
    "UndefinedError",
    "UnknownOpcode",
    "Walk",
    "WarpError",
    "WarpPlace",
    "Watch",
    "Write",
    "WrittenBytes",
    "encode_tensor_map",
    "encode_tensor_map_im2col",
    "every_walk",
    "launch",
    "run_ptx",
    "under_schedules",
]

#: Where the names come from.
_HOMES = {
    **dict.fromkeys(("Buffer", "WrittenBytes"), "refmoe.ptx.arguments"),
    **dict.fromkeys(("Bytes", "Debugger", "Stop", "StopPoint", "WarpPlace"), "refmoe.ptx.debugger"),
    "DeviceMemory": "refmoe.ptx.device_memory",
    "Checks": "refmoe.ptx.engine.lanes",
    "TouchedBytes": "refmoe.ptx.engine.previous_grid",
    **dict.fromkeys(
        (
            "ArgumentMismatch",
            "AssertionFailed",
            "Contraction",
            "CooperativeLaunchTooLarge",
            "CoResidencyError",
            "Deadlock",
            "MemoryFault",
            "MisuseError",
            "ParseError",
            "PtxError",
            "RaceError",
            "ScheduleError",
            "StepBudgetExceeded",
            "Trap",
            "UndefinedError",
            "UnknownOpcode",
            "WarpError",
        ),
        "refmoe.ptx.errors",
    ),
    **dict.fromkeys(("Redundant", "Walk", "every_walk"), "refmoe.ptx.exploration"),
    "launch": "refmoe.ptx.launcher",
    "LaunchResult": "refmoe.ptx.result",
    "Module": "refmoe.ptx.module",
    "TraceEvent": "refmoe.ptx.observe.events",
    "KernelProfile": "refmoe.ptx.observe.kernel_profile",
    "Profile": "refmoe.ptx.observe.profile",
    "Trace": "refmoe.ptx.observe.trace",
    **dict.fromkeys(("Watch", "Write"), "refmoe.ptx.observe.watch"),
    "run_ptx": "refmoe.ptx.running",
    "Schedule": "refmoe.ptx.schedule",
    "under_schedules": "refmoe.ptx.schedules",
    **dict.fromkeys(("encode_tensor_map", "encode_tensor_map_im2col"), "refmoe.ptx.state.tensormap"),
    **dict.fromkeys(
        ("CudaArray", "LinearMemory", "Pitch2D", "SurfaceObject", "TextureObject"), "refmoe.ptx.state.textures"
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        # A room of the executor: `refmoe.ptx.isa.resolve` needs no import of its own.
        if not name.startswith("_") and find_spec(f"refmoe.ptx.{name}") is not None:
            return importlib.import_module(f"refmoe.ptx.{name}")
        raise AttributeError(f"module 'refmoe.ptx' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
