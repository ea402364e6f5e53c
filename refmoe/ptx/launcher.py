"""Launching an entry: arguments to memory, CTAs in chunks, and results back into the caller's arrays."""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TextIO

import numpy as np

from refmoe.chips import CHIPS, compute_capability
from refmoe.errors import describe
from refmoe.ptx.arguments import Buffer, bind
from refmoe.ptx.device_memory import DeviceMemory
from refmoe.ptx.engine.bulk.agents import MOST_AGENTS, MoreAgents
from refmoe.ptx.engine.bulk.fences import ProxyFences
from refmoe.ptx.engine.code import APART, PLAIN, Code, View
from refmoe.ptx.engine.exact_races import ExactShadow
from refmoe.ptx.engine.lanes import Checks, OutOfTime
from refmoe.ptx.engine.machine import Launch, Observer
from refmoe.ptx.engine.order.locations import Order
from refmoe.ptx.engine.order.racing_reads import ReadsFound
from refmoe.ptx.engine.order.witness import RaceWitness
from refmoe.ptx.engine.previous_grid import PreviousGrid, TouchedBytes
from refmoe.ptx.engine.races import RaceShadow, shadow_of
from refmoe.ptx.engine.slow import Suspected
from refmoe.ptx.engine.thread_steps import MOST_WARPS
from refmoe.ptx.errors import (
    ArgumentMismatch,
    CooperativeLaunchTooLarge,
    Index3,
    PtxError,
    RaceError,
    ScheduleError,
    StepBudgetExceeded,
)
from refmoe.ptx.findings.explain import LONGEST_SEEN, LaunchShape, runs_again, settled
from refmoe.ptx.findings.trials import Agreed, Allowance
from refmoe.ptx.grid import BlockQueue, Grid
from refmoe.ptx.module import Module
from refmoe.ptx.observe.events import Rewinds
from refmoe.ptx.observe.trace import Trace
from refmoe.ptx.observe.watch import Watch
from refmoe.ptx.program.inline import ALLOCATING, FREEING
from refmoe.ptx.repeats import Repeats
from refmoe.ptx.residency import Residency, chip_of, fewest_multiprocessors, residency, run_blocks
from refmoe.ptx.result import LaunchResult
from refmoe.ptx.schedule import Schedule
from refmoe.ptx.schedules import Attached, Ran, agree, asked, run_all, under
from refmoe.ptx.state.memory import Arena, Region, padded
from refmoe.ptx.state.pages import POISON
from refmoe.ptx.state.records import AGENTS, MAX_THREADS
from refmoe.ptx.state.spaces import HEAP_BYTES, HEAP_NAME

# Lanes that run together: enough to make NumPy's overhead small, few enough that their registers stay in cache.
LANES_AT_ONCE = 49152
# Shared memory of CTAs that run together: what watches for races takes ten times as much and more.
_SHARED_AT_ONCE = 8 << 20
# Shared memory of a block on chips that the table of chips does not have.
_SHARED_LIMIT = 232_448
# A warp of a launch that is run again with a change may take so many steps, or so many times as many as warps took
# before on the average.
_FEWEST_STEPS, _MORE_STEPS = 4096, 8
# Steps up to which a launch with a change that may order a race is run under that many schedules.
_TRIED_UNDER = ((2_000, 16), (20_000, 8))
# But no more are tried once they took so many stores of single lanes, each of which takes half a millisecond.
_MOST_SINGLE_STORES = 4_096
# Warnings that are told with bytes that depend on the schedule.
_TOLD = 3
# Since this compute capability lanes of a warp may meet at several instructions.
_LANES_APART = (7, 0)
# Blocks of a cluster, with cudaFuncAttributeNonPortableClusterSizeAllowed.
_CLUSTER_LIMIT = 16
# What %envreg1 and %envreg2 point to in a cooperative launch, uint32: its size in bytes, and the barrier of the grid
# (cooperative_groups, details/driver_abi.h, `grid_workspace`).
_WORKSPACE = np.array([8, 0], np.uint32).view(np.uint8)


@dataclass
class _Tally:
    """What a launch took, however it ended: steps, and strong stores that were made lane by lane."""

    steps: int = 0
    single_stores: int = 0


@dataclass(frozen=True)
class _Attempted:
    """A launch that ended well, and whose bytes the caller does not have yet."""

    ran: Ran
    result: LaunchResult

    @property
    def warnings(self) -> tuple[RaceError, ...]:
        """What it warned of."""
        return self.result.warnings

    def take_back(self) -> None:
        """Leave the caller's arrays as they were."""
        self.ran.take_back()


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
    schedule: int | str | Schedule | None = None,
    schedules: int | str | Sequence[int | str | Schedule] | None = None,
    previous_grid_writes: Sequence[Any] | None = None,
    lowest_leader: bool = False,
    previous_grid_reads: Sequence[Any] | None = None,
    keep_accesses: bool = False,
) -> LaunchResult:
    """Run an entry and write its buffers back.

    Args:
        module: where the entry is.
        entry: its name.
        grid: blocks (x, y, z).
        block: threads (x, y, z).
        args: one for each parameter: a `Buffer` or a NumPy array (initialised, writable) or None (a null pointer) for a
            pointer, a number for a scalar and, with `memory`, for a pointer, bytes for a struct, a `TextureObject` or a
            `SurfaceObject` for a handle. One array passed twice is one buffer.
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
        schedule: the one under which it runs, as 7 or `schedule=7`; by default 0, see `refmoe.ptx.Schedule`.
        schedules: so many, 0 and those that follow it, or these, each from the memory as it is now; by default one, or
            as `refmoe.ptx.under_schedules` says. Observers see the first, whose bytes the caller gets.
        previous_grid_writes: buffers that the grid before this one may still be writing when this one starts
            (programmatic dependent launch): every thread has to come after a `griddepcontrol.wait` before it touches
            them. Each is a buffer of the launch, its name, its array, or an address in it; or `TouchedBytes`, as
            `LaunchResult.writes` has them, of which those of other buffers are no matter. None for a launch that
            starts when the one before has ended.
        lowest_leader: under every schedule `elect.sync` takes the lowest lane. PTX does not promise it, but CUTLASS's
            kernels take it for granted.
        previous_grid_reads: what the grid before this one may still be reading, in the same form: every thread has to
            come after a `griddepcontrol.wait` before it writes there.
        keep_accesses: whether the result has `reads` and `writes`, for the launch behind this one.

    Raises:
        ArgumentMismatch: the launch does not fit the entry, or a cooperative one the chip.
        ArgumentError: the watch is on bytes that no buffer has.
        ScheduleError: the schedules give different bytes, or print different lines.
        PtxError: what went wrong in it. The caller's arrays are then as they were, as after KeyboardInterrupt.
    """
    chosen = tuple(replace(one, lowest_leader=lowest_leader) for one in asked(schedule, schedules))
    looked_for = Checks() if checks is None else checks
    observed = (trace, watch, profile)
    results: list[LaunchResult] = []

    def run(one: Schedule, looking: Attached | None) -> Ran:
        told, watching, observer = observed if not results else (None, None, None)
        output = [io.StringIO()]
        steps = single_stores = agents = 0
        allowance = Allowance()

        def attempt(
            running: Module,
            exact: frozenset[str],
            witness: RaceWitness | None,
            aside: bool,
            chosen: Schedule = one,
            looked_for: Checks = looked_for,
        ) -> _Attempted:
            nonlocal steps, single_stores, agents
            output[:] = [io.StringIO()] if not aside else output
            budget = step_budget
            if aside:
                warps = math.prod(grid) * -(-math.prod(block) // 32)
                most = max(_FEWEST_STEPS, _MORE_STEPS * steps // warps)
                budget = most if budget is None else min(budget, most)
            told_of = () if aside else (told, watching, observer)
            marks = [each.mark() for each in told_of if each is not None and isinstance(each, Rewinds)]
            view = _view(chosen, None if aside else profile)
            # A debugger would stop at the same lines once more.
            joins = compute_capability(running.target) >= _LANES_APART and not view.alone
            agents = agents or (MOST_AGENTS if view.alone else 0)
            follows = looked_for.follows_races and witness is None and runs_again()
            repeats = Repeats(looked_for, lambda: running.compile(entry, view), joins, exact, follows, agents)
            while True:
                tally = _Tally()
                try:
                    ran, result = _run(
                        running, entry, grid, block, args, shared_bytes, looked_for, budget,
                        None if aside else told, memory, looking or (None if aside else watching),
                        io.StringIO() if aside else output[0], None if aside else observer, blocks, cluster,
                        cooperative, multiprocessors, chosen,
                        previous_grid_writes, previous_grid_reads, keep_accesses,
                        exact=repeats.exact, witness=repeats.racing if witness is None else witness, tally=tally,
                        repeats=repeats, deadline=allowance.deadline if aside else None,
                    )  # fmt: skip
                    if not _again_after_all(repeats, ran):
                        return _Attempted(ran, replace(result, warnings=(*result.warnings, *repeats.warnings)))
                except (PtxError, Suspected, ReadsFound, MoreAgents) as error:
                    if not repeats.again(error, steps <= LONGEST_SEEN):
                        raise repeats.finding(error) from None
                finally:
                    steps = max(steps, tally.steps) if chosen is one else steps
                    single_stores, agents = single_stores + tally.single_stores, repeats.agents
                for forget in marks:
                    forget()
                output[:] = [io.StringIO()] if not aside else output

        def agreed(running: Module) -> Agreed:
            """What becomes of a launch with a change under this schedule and others."""
            count = next((number for most, number in _TRIED_UNDER if steps <= most), 0)
            if not count:
                return Agreed(0, True)
            lines, most_single_stores = set[int](), single_stores + _MOST_SINGLE_STORES
            raced = False

            def again(each: Schedule) -> Ran | None:
                nonlocal raced
                exact = frozenset[str]()
                while single_stores < most_single_stores and not allowance.ends():
                    try:
                        outcome = attempt(running, exact, None, True, each)
                    except (StepBudgetExceeded, OutOfTime):
                        # Some schedules let threads poll for long.
                        return None
                    except RaceError as error:
                        if error.certain or error.buffer in exact:
                            lines.add(error.line)
                            raced = True
                            return None
                        exact |= {error.buffer}
                    else:
                        lines.update(each.line for each in outcome.warnings)
                        return outcome.ran
                return None

            others = [each for each in map(Schedule, range(count + 1)) if each.number != one.number or one.walk]
            tried = (one, *(replace(each, lowest_leader=lowest_leader) for each in others[: count - 1]))
            try:
                same, ended = agree(again, tried)
            except PtxError:
                return Agreed(count, False, failed=True)
            return Agreed(ended, same, frozenset(lines), raced=raced)

        quiet = bool(results)
        try:
            code = module.compile(entry, _view(one, profile))
            shape = LaunchShape(_triple("block", block), _grid(module, code, _triple("grid", grid), cluster).cluster)
            seen = quiet or any(each is not None for each in (*observed, looking))
            reading_all = partial(attempt, looked_for=replace(looked_for, uninitialised=False))
            outcome, warnings = settled(
                module, looked_for, shape, attempt, reading_all, agreed, seen, lambda: steps, allowance
            )  # fmt: skip
        except BaseException:
            quiet = False
            raise
        finally:
            if not quiet and output[0].getvalue():
                (sys.stdout if stdout is None else stdout).write(output[0].getvalue())
        results.append(replace(outcome.result, warnings=warnings))
        return outcome.ran

    if len(chosen) > 1:
        try:
            run_all(run, chosen)
        except ScheduleError as error:
            raise _with_warnings(error, results) from None
        warnings = {each.cause: each for one in results[::-1] for each in one.warnings}
        return replace(
            results[0],
            schedules=len(chosen),
            seconds=sum(each.seconds for each in results),
            warnings=tuple(warnings.values()),
        )
    (one,) = chosen
    try:
        run(one, None).keep()
    except PtxError as error:
        raise under(error, one) from None
    return results[0]


def _again_after_all(repeats: Repeats, ran: Ran) -> bool:
    """See `Repeats.again_after_all`: memory is then as it was before."""
    try:
        again = repeats.again_after_all()
    except RaceError:
        ran.take_back()
        raise
    if again:
        ran.take_back()
    return again


def _with_warnings(error: PtxError, results: Sequence[LaunchResult]) -> PtxError:
    """A difference between schedules, with what these warned of: it may be the cause."""
    places: dict[str, None] = {}
    for each in (warning for one in results for warning in one.warnings):
        source = f" ({each.source})" if each.source else ""
        places[f"{each.kind}, {each.warning}, at line {each.line}{source}"] = None
    if not places:
        return error
    more = f", and {len(places) - _TOLD} more" if len(places) > _TOLD else ""
    return error.adding(f"warnings, which may be the cause: {'; '.join(list(places)[:_TOLD])}{more}")


@cache
def _shared_limit(target: str) -> int:
    """Bytes of shared memory that a block may use: the chip's, or those of chips that are most like it."""
    capability = compute_capability(target)
    chips = list(CHIPS.values())
    same = [chip for chip in chips if chip.compute_capability == capability]
    alike = [chip for chip in chips if chip.compute_capability[0] == capability[0]]
    return min((chip.shared_bytes for chip in same or alike), default=_SHARED_LIMIT)


def _run(
    module: Module,
    entry: str,
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence[Any],
    shared_bytes: int,
    checks: Checks,
    step_budget: int | None,
    trace: Trace | None,
    memory: DeviceMemory | None,
    watch: Attached | None,
    stdout: TextIO,
    profile: Observer | None,
    blocks: Sequence[int | Sequence[int]] | None,
    cluster: Sequence[int] | None,
    cooperative: bool,
    multiprocessors: int | None,
    schedule: Schedule,
    previous_grid_writes: Sequence[Any] | None,
    previous_grid_reads: Sequence[Any] | None,
    keep_accesses: bool,
    exact: frozenset[str],
    witness: RaceWitness | None,
    tally: _Tally,
    repeats: Repeats,
    deadline: float | None,
) -> tuple[Ran, LaunchResult]:
    """`launch` under one schedule, without the end of it.

    `exact`: names of regions of which all accesses are kept. `witness`: who takes down those of some regions. `tally`
    is told of the steps, however it ends. `repeats`: whether undefined values are followed.
    """
    code = module.compile(entry, repeats.view(_view(schedule, profile)))
    following = repeats.following()
    size, shape = _triple("grid", grid), _triple("block", block)
    filled = -(-math.prod(shape) // 32)
    plan = _grid(module, code, size, cluster)
    _check_shape(module, code, size, shape, filled)
    warps = repeats.warps(filled, plan)
    plan = replace(plan, order=schedule.block_order(math.prod(plan.clusters)))
    ranges = plan.ranges(blocks)
    shared, reserved = code.layout.shared_bytes, code.layout.reserved_bytes
    if shared_bytes:
        shared = code.layout.dynamic_offset + shared_bytes
    limit = _shared_limit(module.target)
    if shared_bytes < 0 or shared - reserved > limit:
        raise ArgumentMismatch(f"{shared - reserved} bytes of shared memory; {module.target} has {limit} for a block")
    arena = Arena()
    # Variables that live on have their places in the memory before it enters the arena.
    addresses = None if memory is None else memory.variables(module, code.layout.buffers)
    has_heap = any(name in module.declared for name in (*ALLOCATING, FREEING))
    heap_address = memory.heap() if has_heap and memory is not None else 0
    poison = np.full(code.layout.parameter_bytes, POISON, np.uint8)
    parameters = arena.add("kernel parameters", "param", poison, poison.size, writable=False)
    living = None if memory is None else memory.buffers
    held = {} if memory is None else memory.objects
    bound, objects = bind(code.entry, args, living, arena, parameters, code.layout.parameters, held, code.handles)
    if addresses is None:
        addresses = _variables(code, arena)
    heap = None
    if has_heap:
        own = arena.add(HEAP_NAME, "global", None, HEAP_BYTES, initialised=False) if memory is None else None
        heap = own or arena.window(heap_address)
        assert heap is not None
        # Whose allocation lies where depends on the schedule, as it does on a chip.
        heap.compared = False
    resident = _residency(module, code, filled, shared - reserved, multiprocessors)
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
    previous = None
    if (previous_grid_writes is not None or previous_grid_reads is not None) and checks.races:
        previous = PreviousGrid(math.prod(size) * warps)
    before = []
    for given, writes in ((previous_grid_writes, True), (previous_grid_reads, False)):
        for each, region in _used_before(given or (), bound):
            before.append(region)
            if previous is not None:
                previous.uses(region, each if isinstance(each, TouchedBytes) else None, writes)
    if checks.races:
        for region in arena.regions:
            if region.writable or any(region is each for each in before):
                kind = ExactShadow if region.name in exact else RaceShadow
                region.shadow = kind(padded(region.size), 0)
                if witness is not None and region.name in witness.regions:
                    region.shadow.witness = witness
                if any(region is each for each in before):
                    region.shadow.previous = previous
    state = Launch(
        name=module.name,
        code=code,
        grid=plan,
        block=shape,
        checks=checks,
        arena=arena,
        addresses=addresses,
        dynamic=code.layout.dynamic,
        dynamic_bytes=shared_bytes,
        shared_bytes=shared,
        reserved_bytes=reserved,
        warps=warps,
        agents=max(AGENTS, repeats.agents),
        order=Order(math.prod(size) // plan.cluster_blocks),
        proxied=ProxyFences(),
        step_budget=step_budget,
        approximate=set(),
        trace=trace,
        observer=profile,
        workspace=workspace,
        schedule=schedule,
        by_steps=schedule.by_steps and profile is None and warps * math.prod(size) <= MOST_WARPS,
        exact=exact,
        witness=witness,
        previous=previous,
        following=following,
        heap=heap,
        objects=objects,
        deadline=deadline,
    )
    if profile is not None:
        profile.attach(state)
    _keep_freed_memory()
    start = time.perf_counter()
    if schedule.walk is not None:
        schedule.walk.begin()
    at_once = _blocks_at_once(state)
    if not state.by_steps:
        at_once = schedule.blocks_together(sum(map(len, ranges)), at_once)
    if module.cancels_launches and not schedule.opposite:
        # Blocks that start one after another leave some whose launch can be cancelled.
        at_once = 1
    try:
        with np.errstate(all="ignore"):
            run_blocks(state, BlockQueue(ranges), resident, at_once)
        if following is not None:
            following.finish((region, buffer.workspace) for buffer, region in bound if buffer.writable)
    except BaseException:
        arena.undo()
        raise
    finally:
        tally.steps, tally.single_stores = state.steps, state.single_stores
        if state.printed:
            stdout.write(b"".join(state.printed).decode(errors="replace"))
    approximate = [code.approximate[number] for number in sorted(state.approximate)]
    touched = _touched(bound, code.entry.name) if keep_accesses and checks.races else ((), ())
    if profile is None:
        # An observer may go on looking at what the launch had to know.
        state.put_back(None)
    return Ran(arena, bound, tuple(state.printed), profile is not None, state.meetings), LaunchResult(
        state.lane_instructions,
        state.instructions,
        tuple((each.opcode, each.line) for each in approximate),
        code.contractions,
        time.perf_counter() - start,
        dict(code.models),
        tuple(state.warnings.values()),
        () if following is None else tuple(following.left),
        waited=previous is not None and previous.known,
        writes=touched[0],
        reads=touched[1],
        approximate_at=tuple((each.source, next(iter(each.callers), None)) for each in approximate),
    )


def _used_before(given: Sequence[Any], bound: list[tuple[Buffer, Region]]) -> Iterator[tuple[Any, Region]]:
    """What the grid before uses, with its region of this launch; bytes of a buffer that this one lacks are no matter.

    Raises:
        ArgumentMismatch: the launch has no such buffer.
    """
    for each in given:
        if not isinstance(each, TouchedBytes):
            yield each, _region_of(each, bound)
        else:
            for buffer, region in bound:
                if buffer is each.buffer or buffer.array is each.buffer.array:
                    yield each, region
                    break


def _touched(
    bound: list[tuple[Buffer, Region]], entry: str
) -> tuple[tuple[TouchedBytes, ...], tuple[TouchedBytes, ...]]:
    """The bytes of each buffer that a launch wrote, and those that it read."""
    writes, reads = list[TouchedBytes](), list[TouchedBytes]()
    for region, buffer in {id(region): (region, buffer) for buffer, region in bound}.values():
        pages = list(shadow_of(region).touched()) if region.shadow is not None else []
        wrote = {page: some for page, some, _ in pages if some.any()}
        read = {page: some for page, _, some in pages if some.any()}
        writes += [TouchedBytes(buffer, wrote, entry)] if wrote else []
        reads += [TouchedBytes(buffer, read, entry)] if read else []
    return tuple(writes), tuple(reads)


def _region_of(wanted: Any, bound: list[tuple[Buffer, Region]]) -> Region:
    """The buffer that somebody means by its name, by itself, by its array, or by an address in it.

    Raises:
        ArgumentMismatch: the launch has no such buffer.
    """
    for buffer, region in bound:
        array = wanted.array if isinstance(wanted, Buffer) else wanted
        if isinstance(wanted, str):
            found = buffer.name == wanted
        elif isinstance(wanted, int | np.integer):
            found = region.base <= int(wanted) < region.base + max(region.size, 1)
        else:
            found = array is buffer.array
        if found:
            return region
    names = ", ".join(buffer.name for buffer, _ in bound)
    raise ArgumentMismatch(f"previous_grid_writes: {describe(wanted)}; the launch has the buffers {names or 'none'}")


def _view(schedule: Schedule, profile: Observer | None) -> View:
    """How the code of a launch is made."""
    if profile is not None:
        return profile.view
    return PLAIN if schedule.default else APART


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
    if grid[0] >= 1 << 31 or max(grid[1:]) > 65535:
        raise ArgumentMismatch(f"grid {grid}: at most (2147483647, 65535, 65535) blocks")
    if (lanes := math.prod(grid) * warps * 32) > MAX_THREADS:
        # A chip takes such a grid: a record of an access has no room for the number of its thread.
        raise ArgumentMismatch(
            f"grid {grid} of blocks of {threads} threads is too large for the executor: {lanes} threads, counted in "
            f"whole warps, and it takes at most {MAX_THREADS}"
        )
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
        for offset, size, symbol, shift in variable.relocations:
            if symbol.name in regions:
                target = regions[symbol.name].base
            elif code.layout.spaces.get(symbol.name) == "code":
                target = code.layout.addresses[symbol.name]
            else:
                continue
            address = (target + symbol.offset >> shift).to_bytes(8, "little")[:size]
            regions[variable.name].data[offset : offset + size] = np.frombuffer(address, np.uint8)
    return {name: np.uint64(region.base) for name, region in regions.items()}
