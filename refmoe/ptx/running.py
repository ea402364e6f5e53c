"""Running PTX in one call: a text, arrays for its pointers, and what became of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from refmoe.errors import ArgumentError, describe
from refmoe.ptx.arguments import Buffer
from refmoe.ptx.device_memory import DeviceMemory
from refmoe.ptx.engine.lanes import Checks
from refmoe.ptx.engine.machine import Observer
from refmoe.ptx.errors import ArgumentMismatch
from refmoe.ptx.launcher import launch
from refmoe.ptx.module import Module
from refmoe.ptx.observe.trace import Trace
from refmoe.ptx.observe.watch import Watch
from refmoe.ptx.result import LaunchResult
from refmoe.ptx.schedule import Schedule

# What every PTX module has at least one of.
_PTX = re.compile(r"\.(version|target|entry|func)\b")
# Names of entries in one message.
_SHOWN = 8
# One line that names a file: with a folder, or with a suffix.
_PATH = re.compile(r"[^\n]*(/|\.\w+)[^\n]*")


def _parsed(text: object) -> Module:
    """A module of a text; whoever gives a path, or bytes, is told what to give."""
    if isinstance(text, str) and _PTX.search(text):
        return Module.parse(text)
    needed = "the text of a PTX module, or a refmoe.ptx.Module"
    if isinstance(text, os.PathLike) or (isinstance(text, str) and _PATH.fullmatch(text)):
        needed += f"; the text of a file is pathlib.Path({os.fspath(text)!r}).read_text()"
    raise ArgumentError("text", describe(text), needed)


def run_ptx(
    text: str | Module,
    entry: str | None = None,
    *,
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] | None = None,
    args: Sequence[Any] = (),
    shared: int = 0,
    checks: Checks | None = None,
    step_budget: int | None = None,
    trace: Trace | None = None,
    watch: Watch | None = None,
    stdout: TextIO | None = None,
    profile: Observer | None = None,
    memory: DeviceMemory | None = None,
    blocks: Sequence[int | Sequence[int]] | None = None,
    cluster: int | Sequence[int] | None = None,
    cooperative: bool = False,
    multiprocessors: int | None = None,
    schedule: int | str | Schedule | None = None,
    schedules: int | str | Sequence[int | str | Schedule] | None = None,
    previous_grid_writes: Sequence[Any] | None = None,
    previous_grid_reads: Sequence[Any] | None = None,
    keep_accesses: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> LaunchResult:
    """Run a kernel of a PTX text on NumPy arrays, every access checked; `refmoe run` does the same with files.

    >>> import numpy as np, refmoe
    >>> text = '''
    ... .version 8.7
    ... .target sm_90a
    ... .address_size 64
    ... .visible .entry twice(.param .u64 numbers) {
    ...     .reg .b32 %r<3>;
    ...     .reg .b64 %rd<3>;
    ...     ld.param.u64 %rd1, [numbers];
    ...     mov.u32 %r1, %tid.x;
    ...     mad.wide.u32 %rd2, %r1, 4, %rd1;
    ...     ld.global.u32 %r2, [%rd2];
    ...     shl.b32 %r2, %r2, 1;
    ...     st.global.u32 [%rd2], %r2;
    ...     ret;
    ... }'''
    >>> numbers = np.arange(4, dtype=np.uint32)
    >>> result = refmoe.run_ptx(text, block=4, args=[numbers])
    >>> numbers
    array([0, 2, 4, 6], dtype=uint32)

    Args:
        text: a PTX module; or a `refmoe.ptx.Module`, which is parsed and compiled once for many calls.
        entry: the kernel's name or an unambiguous part of it, in which `*` stands for anything: `"rms_norm*Half"`. Not
            needed if the module has only one.
        grid: blocks, x or (x, y, z).
        block: threads of a block, x or (x, y, z); what the kernel's .reqntid says if left out.
        args: one for each parameter. A pointer takes a C-contiguous NumPy array, which holds the results afterwards; a
            kernel may not write to a read-only array. None is a null pointer. Other parameters take a number, or the
            bytes of a struct. A `refmoe.ptx.Buffer` is an array that may be marked as not initialised. A
            `refmoe.ptx.TextureObject` or `SurfaceObject` stands for a cudaTextureObject_t or cudaSurfaceObject_t.
        shared: dynamic shared memory of a block, in bytes.
        checks: which checks are on; all by default. This and what follows is as for `launch`.
        step_budget: most steps of a warp; no limit by default.
        trace: records who waited on which barrier.
        watch: records who writes some bytes of an array.
        stdout: gets what the kernel prints with `printf`.
        profile: counts what the launch does.
        memory: device memory that outlives the launch. The variables of a module live on in it, as long as the same
            `Module` is passed; a text is parsed into a new module in every call.
        blocks: the blocks of the grid that run; all by default.
        cluster: blocks of a cluster, x or (x, y, z); what the kernel's .reqnctapercluster says if left out.
        cooperative: whether all blocks are resident together, which `grid.sync()` needs.
        multiprocessors: of the chip; this limits how many blocks are resident at once.
        schedule: the one schedule to run under.
        schedules: how many schedules to run under, or which; all have to leave the same bytes.
        previous_grid_writes: buffers that the grid before this one may still be writing.
        previous_grid_reads: buffers that the grid before this one may still be reading.
        keep_accesses: whether the result has the bytes that the launch wrote and read.
        variables: what `__constant__` and `__device__` variables hold before the launch: arrays, bytes, or NumPy
            numbers, by the variable's name or an unambiguous part of it. After the launch a writable array of a
            `__device__` variable holds what the kernel left in the variable.

    Raises:
        ArgumentError: `text` is the path of a file, or something else without any PTX; there is no such variable, or it
            is too short.
        ParseError: PTX with a mistake, with the line.
        ArgumentMismatch: no such kernel, or a launch that does not fit it.
        PtxError: what went wrong in it. The arrays are then as they were.
    """
    module = text if isinstance(text, Module) else _parsed(text)
    entry = _entry(module, entry)
    threads = module.function(entry).directives.get("reqntid") if block is None else block
    if not threads:
        raise ArgumentMismatch(f"no block was given, and {entry} has no .reqntid")
    buffers = [
        Buffer(each, f"argument {number}", writable=each.flags.writeable)
        if isinstance(each, np.ndarray) and each.ndim
        else each
        for number, each in enumerate(args)
    ]
    if variables:
        memory = DeviceMemory() if memory is None else memory
        names = memory.set_variables(module, variables)
    result = launch(
        module,
        entry,
        _sizes(grid),
        _sizes(threads),
        buffers,
        shared,
        checks,
        step_budget,
        trace,
        memory,
        watch=watch,
        stdout=stdout,
        profile=profile,
        blocks=blocks,
        cluster=None if cluster is None else _sizes(cluster),
        cooperative=cooperative,
        multiprocessors=multiprocessors,
        schedule=schedule,
        schedules=schedules,
        previous_grid_writes=previous_grid_writes,
        previous_grid_reads=previous_grid_reads,
        keep_accesses=keep_accesses,
    )
    for wanted, value in (variables or {}).items():
        if isinstance(value, np.ndarray) and value.flags.writeable and memory is not None:
            held = memory.read(memory.variable(module, names[wanted]), value.nbytes)
            value[...] = held.view(value.dtype).reshape(value.shape)
    return result


def _entry(module: Module, wanted: str | None) -> str:
    """The entry of a name, of a part of one, or the only one."""
    fitting = module.entries if wanted is None else module.fitting(wanted)
    if len(fitting) == 1:
        return fitting[0]
    if wanted is None:
        raise ArgumentMismatch(f"{module.name} has the entries {some_of(fitting)}; name one")
    if fitting:
        raise ArgumentMismatch(f"{wanted!r} is a part of the entries {some_of(fitting)} of {module.name}; name one")
    raise ArgumentMismatch(f"{module.name} has no entry {wanted!r}; it has {some_of(module.entries)}")


def some_of(names: Sequence[str]) -> str:
    """Names for a message: C++ names are long, and a file may have hundreds."""
    shown = ", ".join(names[:_SHOWN]) or "none"
    return shown + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _sizes(value: int | Sequence[int]) -> tuple[int, ...]:
    """Three sizes; those that are left out are 1."""
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return (*sizes, *(1,) * (3 - len(sizes)))
