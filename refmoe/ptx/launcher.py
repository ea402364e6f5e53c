"""Launching an entry: arguments to memory, CTAs in chunks, and results back into the caller's arrays."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from refmoe.ptx.arguments import Buffer, bind, write_back
from refmoe.ptx.device_memory import DeviceMemory
from refmoe.ptx.engine.code import Code
from refmoe.ptx.engine.lanes import Checks
from refmoe.ptx.engine.machine import Launch, Observer
from refmoe.ptx.engine.races import RaceShadow
from refmoe.ptx.engine.view import PLAIN
from refmoe.ptx.errors import ArgumentMismatch, CooperativeLaunchTooLarge, Index3
from refmoe.ptx.grid import Grid, Queue
from refmoe.ptx.module import Module
from refmoe.ptx.observe.trace import Trace
from refmoe.ptx.observe.watch import Watch
from refmoe.ptx.residency import Residency, chip_of, fewest_multiprocessors, residency, run_blocks
from refmoe.ptx.state.memory import Arena, padded
from refmoe.ptx.state.pages import POISON
from refmoe.ptx.state.records import MAX_THREADS

# Lanes that run together: enough to make NumPy's overhead small, few enough that their registers stay in cache.
LANES_AT_ONCE = 24576
# Shared memory of CTAs that run together: what watches for races takes ten times as much and more.
_SHARED_AT_ONCE = 8 << 20
_SHARED_LIMITS = {"sm_12": 101_376}
_SHARED_LIMIT = 232_448
# Blocks of a cluster, with cudaFuncAttributeNonPortableClusterSizeAllowed.
_CLUSTER_LIMIT = 16
# What %envreg1 and %envreg2 point to in a cooperative launch, uint32: its size in bytes, and the barrier of the grid
# (cooperative_groups, details/driver_abi.h, `grid_workspace`).
_WORKSPACE = np.array([8, 0], np.uint32).view(np.uint8)


@dataclass(frozen=True)
class LaunchResult:
    """What a launch that ended well did.

    Attributes:
        lane_instructions: instructions times the lanes that ran them (a lane whose guard is off counts).
        instructions: vector instructions: each counts once for all lanes that ran it together.
        approximate: (opcode, line) of approximate instructions whose results were not all provably exact.
        contraction_possible: lines of FP add, sub and mul without a rounding suffix, which ptxas may fuse.
        seconds: of execution, without compilation.
        models: accumulation models that stand for the entry's tensor-core instructions, by name, and the weakest
            evidence that any of them rests on (`refmoe.reference.mma.Evidence`).
    """

    lane_instructions: int
    instructions: int
    approximate: tuple[tuple[str, int], ...]
    contraction_possible: tuple[int, ...]
    seconds: float
    models: Mapping[str, str] = field(default_factory=dict)


def launch(
    module: Module,
    entry: str,
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence[Any],
    shared_bytes: int = 0,
    checks: Checks | None = None,
    step_budget: int | None = None,
    trace: Trace | None = None,
    memory: DeviceMemory | None = None,
    watch: Watch | None = None,
    stdout: TextIO | None = None,
    profile: Observer | None = None,
    blocks: Sequence[int | Sequence[int]] | None = None,
    cluster: Sequence[int] | None = None,
    cooperative: bool = False,
    multiprocessors: int | None = None,
) -> LaunchResult:
    """Run an entry and write its buffers back.

    Args:
        module: where the entry is.
        entry: its name.
        grid: blocks (x, y, z).
        block: threads (x, y, z).
        args: one for each parameter: a `Buffer` or a NumPy array (initialised, writable) or None (a null pointer) for a
            pointer, a number for a scalar and, with `memory`, for a pointer, bytes for a struct. One array passed twice
            is one buffer.
        shared_bytes: dynamic shared memory of a CTA.
        checks: what is looked for; all by default.
        step_budget: most steps of a warp, each through one block of code; None for no limit.
        trace: takes down who waited on which barrier, and when.
        memory: buffers that live on, to whose addresses arguments, as numbers, and buffers may refer. The variables of
            the module live in it too; without it they have their first values in every launch.
        watch: takes down who writes some bytes of a buffer.
        stdout: gets what the kernel prints with `printf`, all at once when the launch ends, well or not; by default
            `sys.stdout`.
        profile: a `Profile`, which counts what the launch does, or another observer.
        blocks: those of the grid that run, each x or (x, y, z); all by default. The others do nothing, and for those
            that run the grid is as large as ever.
        cluster: blocks of a cluster (x, y, z); what the kernel's .reqnctapercluster says by default, else one.
        cooperative: all blocks are resident together, so that they may wait for one another, and `grid.sync()` works.
        multiprocessors: of the chip, on which it depends how many blocks are resident; by default those of the smallest
            chip in `refmoe.chips` that the module's target names.

    Raises:
        ArgumentMismatch: the launch does not fit the entry, or a cooperative one the chip.
        ArgumentError: the watch is on bytes that no buffer has.
        PtxError: what went wrong in it. The caller's arrays are then as they were, as after KeyboardInterrupt.
    """
    checks = Checks() if checks is None else checks
    code = module.compile(entry, PLAIN if profile is None else profile.view)
    size, shape = _triple("grid", grid), _triple("block", block)
    warps = -(-math.prod(shape) // 32)
    _check_shape(module, code, size, shape, warps)
    plan = _grid(module, code, size, cluster)
    ranges = plan.ranges(blocks)
    shared = code.layout.shared_bytes
    if shared_bytes:
        shared = code.layout.dynamic_offset + shared_bytes
    limit = next((bytes_ for arch, bytes_ in _SHARED_LIMITS.items() if module.target.startswith(arch)), _SHARED_LIMIT)
    if shared_bytes < 0 or shared > limit:
        raise ArgumentMismatch(f"{shared} bytes of shared memory; {module.target} has {limit} for a block")
    arena = Arena()
    # Variables that live on have their places in the memory before it enters the arena.
    addresses = None if memory is None else memory.variables(module, code.layout.buffers)
    poison = np.full(code.layout.parameter_bytes, POISON, np.uint8)
    parameters = arena.add("kernel parameters", "param", poison, poison.size, writable=False)
    living = None if memory is None else memory.buffers
    bound = bind(code.entry, args, living, arena, parameters, code.layout.parameters)
    if addresses is None:
        addresses = _variables(code, arena)
    resident = _residency(module, code, warps, shared, multiprocessors)
    workspace = 0
    if cooperative:
        if blocks is not None:
            raise ArgumentMismatch("blocks: a cooperative launch runs all blocks of its grid")
        if plan.count > resident.most:
            raise CooperativeLaunchTooLarge(
                f"a cooperative launch of {plan.count} blocks; resident can be {resident}",
                blocks=plan.count,
                resident=resident.most,
            )
        workspace = arena.add("the workspace of the cooperative launch", "global", _WORKSPACE, _WORKSPACE.nbytes).base
    if watch is not None:
        watch.attach(arena)
    if checks.races:
        for region in arena.regions:
            if region.writable:
                region.shadow = RaceShadow(padded(region.size), 0)
    ctas = math.prod(size)
    state = Launch(
        name=module.name,
        code=code,
        grid=plan,
        block=shape,
        checks=checks,
        arena=arena,
        addresses=addresses,
        dynamic_bytes=shared_bytes,
        shared_bytes=shared,
        warps=warps,
        published=np.zeros(ctas * warps if checks.races else 0, np.int64),
        proxied=np.zeros(ctas * warps, np.int64),
        step_budget=step_budget,
        approximate=set(),
        trace=trace,
        observer=profile,
        workspace=workspace,
    )
    if profile is not None:
        profile.attach(state)
    _keep_freed_memory()
    start = time.perf_counter()
    try:
        with np.errstate(all="ignore"):
            run_blocks(state, Queue(ranges), resident, _blocks_at_once(state))
    except BaseException:
        arena.undo()
        raise
    finally:
        if state.printed:
            (sys.stdout if stdout is None else stdout).write(b"".join(state.printed).decode(errors="replace"))
    for buffer, region in bound:
        if buffer.writable:
            write_back(buffer, region)
    if profile is None:
        # An observer may go on looking at what the launch had to know.
        state.put_back(None)
        arena.release()
    return LaunchResult(
        state.lane_instructions,
        state.instructions,
        tuple((code.approximate[i].opcode, code.approximate[i].line) for i in sorted(state.approximate)),
        code.contractions,
        time.perf_counter() - start,
        dict(code.models),
    )


def run_ptx(
    text: str,
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
        text: a PTX module.
        entry: the kernel; not needed if it is alone.
        grid: blocks, x or (x, y, z).
        block: threads of a block, x or (x, y, z); what the kernel's .reqntid says if left out.
        args: one for each parameter: a C-contiguous NumPy array for a pointer, in which results lie afterwards, and
            which the kernel may only read if it is read-only; None for a null pointer; a number; the bytes of a struct;
            or a `refmoe.ptx.Buffer`, which can say that nothing in it is initialised.
        shared: dynamic shared memory of a block, in bytes.
        checks: see `launch`.
        step_budget: likewise.
        trace: likewise.
        watch: likewise.
        stdout: likewise.
        profile: likewise.
        memory: likewise; the variables of a module live on with the module, which is another one in every call.
        blocks: likewise.
        cluster: blocks of a cluster, x or (x, y, z); what the kernel's .reqnctapercluster says if left out.
        cooperative: see `launch`.
        multiprocessors: likewise.

    Raises:
        ParseError: no PTX, with the line.
        ArgumentMismatch: no such kernel, or a launch that does not fit it.
        PtxError: what went wrong in it. The arrays are then as they were.
    """
    module = Module.parse(text)
    if entry is None:
        if len(module.entries) != 1:
            raise ArgumentMismatch(f"{module.name} has the entries {', '.join(module.entries) or 'none'}; name one")
        (entry,) = module.entries
    threads = module.function(entry).directives.get("reqntid") if block is None else block
    if not threads:
        raise ArgumentMismatch(f"no block was given, and {entry} has no .reqntid")
    buffers = [
        Buffer(each, f"argument {number}", writable=each.flags.writeable)
        if isinstance(each, np.ndarray) and each.ndim
        else each
        for number, each in enumerate(args)
    ]
    return launch(
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
    )


def _sizes(value: int | Sequence[int]) -> tuple[int, ...]:
    """Three sizes; those that are left out are 1."""
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return (*sizes, *(1,) * (3 - len(sizes)))


def _keep_freed_memory() -> None:
    """Free one large block that was never touched.

    Registers come and go with every block of code. glibc gives freed memory back to the system at once, and each page
    costs a fault when it returns, half of the run time. Freeing a mapped block of up to 32 MiB raises its two
    thresholds to that size (mallopt(3), M_MMAP_THRESHOLD); other allocators do nothing with it.
    """
    np.empty((32 << 20) - 65536, np.uint8)


def _grid(module: Module, code: Code, size: Index3, cluster: Sequence[int] | None) -> Grid:
    """The grid with its clusters.

    Raises:
        ArgumentMismatch: a cluster that neither the kernel nor the grid has room for.
    """
    directives, name = code.entry.directives, f"{code.entry.name} in {module.name}"
    required = directives.get("reqnctapercluster")
    shape = None if cluster is None else _triple("cluster", cluster)
    if required:
        wanted = _triple("cluster", (*required, 1, 1)[:3])
        if shape is not None and shape != wanted:
            raise ArgumentMismatch(f"cluster {shape}; .reqnctapercluster {wanted} of {name}")
        shape = wanted
    if shape is None:
        if "explicitcluster" in directives:
            raise ArgumentMismatch(f"{name} is .explicitcluster: a cluster is needed, and none is given")
        return Grid(size)
    most = min((_CLUSTER_LIMIT, *directives.get("maxclusterrank", ())))
    if math.prod(shape) > most:
        raise ArgumentMismatch(f"cluster {shape} has {math.prod(shape)} blocks; {name} may have {most}")
    if any(whole % part for whole, part in zip(size, shape, strict=True)):
        raise ArgumentMismatch(f"cluster {shape}: the grid {size} is no multiple of it along every axis")
    return Grid(size, shape, explicit=True)


def _blocks_at_once(state: Launch) -> int:
    """Blocks that one machine runs together."""
    return max(1, min(LANES_AT_ONCE // (state.warps * 32), _SHARED_AT_ONCE // max(state.shared_bytes, 1)))


def _residency(module: Module, code: Code, warps: int, shared_bytes: int, multiprocessors: int | None) -> Residency:
    """How many blocks are resident.

    Raises:
        ArgumentMismatch: a chip without multiprocessors.
    """
    chip = chip_of(module.target)
    count = fewest_multiprocessors(chip) if multiprocessors is None else multiprocessors
    if count < 1:
        raise ArgumentMismatch(f"multiprocessors {count}: at least 1 needed")
    registers = code.entry.directives.get("maxnreg", (None,))[0]
    return residency(chip, warps, shared_bytes, registers, count)


def _triple(name: str, value: Sequence[int]) -> Index3:
    sizes = tuple(int(v) for v in value)
    if len(sizes) != 3 or min(sizes) < 1:
        raise ArgumentMismatch(f"{name} {tuple(value)}: three positive sizes needed")
    return sizes[0], sizes[1], sizes[2]


def _check_shape(module: Module, code: Code, grid: Index3, block: Index3, warps: int) -> None:
    threads = math.prod(block)
    if threads > 1024 or block[0] > 1024 or block[1] > 1024 or block[2] > 64:
        raise ArgumentMismatch(f"block {block}: at most 1024 threads, (1024, 1024, 64)")
    if grid[0] >= 1 << 31 or max(grid[1:]) > 65535 or math.prod(grid) * warps * 32 > MAX_THREADS:
        raise ArgumentMismatch(f"grid {grid} of blocks of {threads} threads is too large")
    directives = code.entry.directives
    most = directives.get("maxntid")
    if most and threads > math.prod(most):
        raise ArgumentMismatch(
            f"block {block} has {threads} threads; .maxntid {most} of {code.entry.name} in {module.name}"
        )
    exact = directives.get("reqntid")
    if exact and block != (*exact, 1, 1)[:3]:
        raise ArgumentMismatch(f"block {block}; .reqntid {exact} of {code.entry.name} in {module.name}")


def _variables(code: Code, arena: Arena) -> dict[str, Any]:
    """Module variables as buffers, and their addresses."""
    regions = {}
    for variable in code.layout.buffers:
        content = None
        if variable.initial is not None:
            content = np.frombuffer(variable.initial.ljust(variable.size, b"\0"), np.uint8)
        regions[variable.name] = arena.add(
            variable.name, variable.space, content, variable.size, writable=variable.space == "global"
        )
    for variable in code.layout.buffers:
        for offset, size, symbol in variable.relocations:
            if symbol.name in regions:
                target = regions[symbol.name].base
            elif code.layout.spaces.get(symbol.name) == "code":
                target = code.layout.addresses[symbol.name]
            else:
                continue
            address = (target + symbol.offset).to_bytes(8, "little")[:size]
            regions[variable.name].data[offset : offset + size] = np.frombuffer(address, np.uint8)
    return {name: np.uint64(region.base) for name, region in regions.items()}
