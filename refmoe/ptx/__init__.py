"""The PTX executor: runs the compiler's own PTX on NumPy arrays, and sees what hardware hides."""

from __future__ import annotations

from refmoe.ptx.arguments import Buffer
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
from refmoe.ptx.launcher import LaunchResult, launch
from refmoe.ptx.module import Module
from refmoe.ptx.observe.events import TraceEvent
from refmoe.ptx.observe.kernel_profile import KernelProfile
from refmoe.ptx.observe.profile import Profile
from refmoe.ptx.observe.trace import Trace
from refmoe.ptx.observe.watch import Watch, Write
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
    "encode_tensor_map",
    "encode_tensor_map_im2col",
    "every_walk",
    "launch",
    "run_ptx",
    "under_schedules",
]
