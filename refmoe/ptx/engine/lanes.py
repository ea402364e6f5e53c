"""The lanes of some CTAs: where each is, what it may address, and what its instructions ask of whatever runs it.

What instructions do (barriers, copies, accesses) knows this class. What runs them, `refmoe.ptx.engine.machine`, builds
on both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from refmoe.ptx.engine.order.locations import Order
from refmoe.ptx.engine.order.witness import RaceWitness
from refmoe.ptx.errors import Index3, LaneError, MisuseError, RaceError, StepBudgetExceeded
from refmoe.ptx.grid import BlockQueue, Grid, index_in
from refmoe.ptx.native import order
from refmoe.ptx.schedule import Schedule
from refmoe.ptx.state.memory import Arena, Region, owned_region
from refmoe.ptx.state.numbers import different
from refmoe.ptx.state.records import AGENTS, CLUSTER, CTA
from refmoe.ptx.state.spaces import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BITS
from refmoe.ptx.state.special_registers import SpecialRegisters, Ticks
from refmoe.ptx.state.tensormap import MapHistory
from refmoe.ptx.state.textures import Bound
from refmoe.ptx.text.syntax import Instruction, in_source

Array = Any
E = TypeVar("E", bound=LaneError)
P = TypeVar("P")


class Tracer:
    """What lanes report of their synchronisation: barriers, phases, copies. This one listens to nothing.

    `refmoe.ptx.observe.trace` has one that takes it down.
    """

    def mbarrier(self, kind: str, instruction: Instruction, lanes: Array, ids: Array, amounts: Array | int = 0) -> None:
        """Each of `lanes` [n] did something to the object `ids` [n]."""

    def completed(self, ids: Array) -> None:
        """The present phases of objects `ids` [n] are complete."""

    def woken(self, kind: str, lanes: Array) -> None:
        """The parked lanes at which bool `lanes` [lanes of the machine] is on go on."""

    def named(self, kind: str, instruction: Instruction | None, lanes: Array, numbers: Array | int) -> None:
        """Lanes at which bool `lanes` [lanes of the machine] is on come to the named barrier `numbers`, or go on."""

    def copies(self, kind: str, instruction: Instruction, lanes: Array, amounts: Array | int = 0) -> None:
        """Copies of each of `lanes` [n], of so many bytes each."""


@dataclass(frozen=True)
class Checks:
    """What a launch looks for.

    Attributes:
        bounds: accesses outside every buffer, and outside shared and local memory.
        uninitialised: reads of bytes that nobody wrote.
        alignment: addresses that are no multiple of the access's size.
        races: unordered accesses of one byte by different lanes, in shared and in global memory; and blocks that end
            before a bulk copy of theirs has read their shared memory.
        undefined: uses of undefined values: of registers that nothing wrote, of what a shuffle reads from a lane that
            does not take part and, if `uninitialised` too, of bytes that nobody wrote, which may then be read as long
            as no result depends on them.
        strict: whether what is but a warning ends a launch too, see `RaceError.warning`, and whether the read of bytes
            that nobody wrote does, used or not. What was read in a race is then not followed.
        explain: whether a launch with a race is run again, to name both accesses and find out what would order them.
    """

    bounds: bool = True
    uninitialised: bool = True
    alignment: bool = True
    races: bool = True
    undefined: bool = True
    strict: bool = False
    explain: bool = True

    @property
    def follows_races(self) -> bool:
        """Whether a race of a plain read is but a warning where nothing depends on the value."""
        return self.races and self.undefined and self.uninitialised and not self.strict


class OutOfTime(Exception):
    """A launch that only helps to explain another one took too long. Nothing is wrong with it."""


@dataclass(kw_only=True)
class LaunchState:
    """What all CTAs of a launch have in common, whatever code they run.

    Attributes:
        name: of the module.
        grid, block: as launched.
        workspace: address of what a cooperative launch has for its barrier, else 0.
        checks: what is looked for.
        arena: global memory.
        addresses: of module variables, uint64 scalars.
        dynamic: names of variables in dynamic shared memory.
        dynamic_bytes, shared_bytes: dynamic shared memory, and all of it.
        reserved_bytes: of `shared_bytes`, reserved shared memory that the entry uses.
        warps: of a CTA, some of which may have no lanes.
        agents: of a cluster that the clocks have room for, see `refmoe.ptx.engine.bulk.agents`.
        order: what CTAs pass to each other.
        step_budget: most blocks of code that a warp may run, or None.
        deadline: processor time of this process, in seconds, at which a launch that only helps to explain ends.
        steps, lane_instructions, instructions: counted so far.
        single_stores: strong stores so far that were made lane by lane, as under another schedule.
        clock: of race records; it ticks wherever accesses before and after have to be told apart.
        approximate: indices into the code's approximate instructions that were not provably exact.
        maps: edits of tensor maps.
        proxied: proxy fences for global memory, see `refmoe.ptx.engine.bulk.fences`.
        printed: what `vprintf` wrote so far.
        ticks: the clock.
        warnings: what was found that does not end the launch.
        schedule: what decides where PTX leaves a choice.
        by_steps: whether threads take their steps one by one, see `refmoe.ptx.engine.thread_steps`.
        following: what is known of undefined values, where they are followed, or None.
        heap: where `malloc` takes memory from, or None if the module declares neither it nor `free`.
        queue: the blocks that have not started, while blocks run.
        refused: numbers of the clusters that have seen a request of theirs fail, to cancel another one's launch.
        exact: names of regions of which every access is kept, see `refmoe.ptx.engine.exact_races`.
        witness: who takes down all accesses of some regions, or None.
        meetings: how often threads came to the barrier of their cluster, see `refmoe.ptx.engine.cluster.meetings`; None
            where nobody has.
        previous: what is known of the grid before this one, see `refmoe.ptx.engine.previous_grid`, or None.
        map_reads: copies that go by tensor maps, see `refmoe.ptx.engine.bulk.map_reads`; None while there are none.
        objects: texture and surface objects by their handles.
    """

    name: str
    grid: Grid
    block: Index3
    checks: Checks
    arena: Arena
    addresses: dict[str, Any]
    dynamic: tuple[str, ...]
    dynamic_bytes: int
    shared_bytes: int
    warps: int
    order: Order
    proxied: Any
    step_budget: int | None
    approximate: set[int]
    maps: MapHistory = field(default_factory=MapHistory)
    workspace: int = 0
    reserved_bytes: int = 0
    steps: int = 0
    single_stores: int = 0
    clock: int = 0
    lane_instructions: int = 0
    instructions: int = 0
    printed: list[bytes] = field(default_factory=list)
    ticks: Ticks = field(default_factory=Ticks)
    warnings: dict[tuple[Any, ...], RaceError] = field(default_factory=dict)
    by_steps: bool = False
    schedule: Schedule = field(default_factory=Schedule)
    exact: frozenset[str] = frozenset()
    witness: RaceWitness | None = None
    agents: int = AGENTS
    meetings: Any = None
    previous: Any = None
    map_reads: Any = None
    following: Any = None
    heap: Region | None = None
    queue: BlockQueue | None = None
    refused: set[int] = field(default_factory=set)
    objects: Mapping[int, Bound] = field(default_factory=dict)
    deadline: float | None = None

    def warn(self, error: RaceError) -> None:
        """Keep what is but a warning, one for each cause."""
        self.warnings.setdefault(error.cause, error)


@lru_cache(maxsize=4)
def _numbers(ctas: int, per_cta: int, threads: int) -> tuple[Array, ...]:
    """Of each lane of some CTAs: its number, that in its warp, that of its warp's first lane, that of its CTA; whether
    a thread of the CTA is there; and False. Every machine of this shape has these arrays, and nobody may change them.
    """
    lanes = np.arange(ctas * per_cta)
    found = lanes, lanes & 31, lanes & ~31, lanes // per_cta, lanes % per_cta < threads, np.zeros(lanes.size, bool)
    for each in found:
        each.setflags(write=False)
    return found


class Lanes(ABC):
    """The lanes of some CTAs.

    Attributes:
        launch: whose CTAs.
        lanes: how many, whole warps, so a multiple of 32 for each CTA.
        exist: bool [lanes], those that the launch has: the last warp of a CTA may have less than 32.
        nobody: bool [lanes], False for each.
        alive: bool [lanes], those that exist and have not exited.
        lane_cta: CTA of each lane, counted from the first here.
        lane_in_warp, warp_start: int64 [lanes].
        first_cta, first_thread: numbers in the launch of the first CTA and the first lane here.
        specials: predefined registers by name, see `refmoe.ptx.state.special_registers`.
        shared, local: the memory of all CTAs, and of all lanes.
        clocks: what orders accesses, or None where races are not looked for.
        strong: what strong accesses and fences pass on, or None likewise.
        undefined: which bits of registers are undefined, or None where undefined values are not followed.
        tracer: what is told who waits for whom.
        choices: what decides, under a schedule that is not the default one, where PTX leaves these lanes a choice;
            else None.
    """

    def __init__(self, launch: LaunchState, first_cta: int, ctas: int, local_bytes: int) -> None:
        self.launch = launch
        self.checks = launch.checks
        self.arena = launch.arena
        self.addresses = launch.addresses
        self.approximate = launch.approximate
        self.first_cta, self.ctas, self.warps = first_cta, ctas, launch.warps
        per_cta = self.warps * 32
        self.lanes = ctas * per_cta
        self.first_thread = first_cta * per_cta
        numbers = _numbers(ctas, per_cta, math.prod(launch.block))
        self.all_lanes, self.lane_in_warp, self.warp_start, self.lane_cta, self.exist, self.nobody = numbers
        self.alive = self.exist
        self._living = int(self.alive.sum())
        self.specials = SpecialRegisters(
            launch.grid, launch.block, first_cta, ctas, launch.warps, launch.dynamic_bytes, launch.shared_bytes,
            launch.workspace, launch.reserved_bytes,
        )  # fmt: skip
        refused = self.checks.uninitialised
        self.shared = owned_region("shared memory", "shared", launch.shared_bytes, ctas, refused)
        self._reserve()
        self.local = owned_region("local memory", "local", local_bytes, self.lanes, refused)
        self.clocks: Any = None
        self.strong: Any = None
        self.undefined: Any = None
        self.tracer = Tracer()
        self.choices = None if launch.schedule.default else launch.schedule.choices("lanes of", first_cta)
        self._looked_early = False
        self._parts: dict[type[object], object] = {}

    def _reserve(self) -> None:
        """The reserved shared memory holds something from the start: nobody has to write it first."""
        size, region = self.launch.reserved_bytes, self.shared
        if size:
            assert region.valid is not None
            for held, value in ((region.data, 0), (region.valid, 0xFF)):
                held.reshape(-1, region.stride)[:, :size] = value

    # Parts

    def add(self, part: P) -> P:
        """Give the lanes a part, which `part` finds by its class."""
        self._parts[type(part)] = part
        return part

    def part(self, kind: type[P]) -> P:
        """The part of a class: the barriers in memory of these lanes, their copies under way, and so on."""
        part = self._parts[kind]
        assert isinstance(part, kind)
        return part

    # Where lanes are

    def alone(self, lane: int) -> int:
        """The widest scope in which a lane is alone, see `refmoe.ptx.state.records`; 0 if in none.

        The others of its CTA have exited, and executed no fence `.sc`.
        """
        per_cta = self.warps * 32
        begin = lane - lane % per_cta
        others = np.delete(self.alive[begin : begin + per_cta], lane - begin)
        if others.any():
            return 0
        if self.clocks is not None and np.delete(self.clocks.last_fence[begin : begin + per_cta], lane - begin).any():
            return 0
        return CTA if self.launch.grid.cluster_blocks > 1 else CLUSTER

    def place_of(self, lane: int) -> tuple[Index3, Index3]:
        """(block, thread) of a lane here."""
        return self.place_of_thread(lane + self.first_thread)

    def place_of_thread(self, number: int) -> tuple[Index3, Index3]:
        """(block, thread) of a thread of the launch, counted in whole warps."""
        cta, thread = divmod(number, self.warps * 32)
        return self.launch.grid.index(cta), index_in(thread, self.launch.block)

    def describe(self, instruction: Instruction) -> str:
        """`module.ptx:57 (kernel.cu:14): st.shared.f32 [%r12], %f18;`."""
        source = in_source(instruction.source, instruction.callers)
        return f"{self.launch.name}:{instruction.line}{source}: {instruction.text}"

    def at(self, lane: int, instruction: Instruction) -> dict[str, Any]:
        """The fields of a `LaneError`."""
        block, thread = self.place_of(int(lane))
        return {
            "block": block, "thread": thread,
            "line": instruction.line, "source": instruction.source, "callers": instruction.callers,
            "text": instruction.text,
        }  # fmt: skip

    def error(self, kind: type[E], instruction: Instruction, lane: int, what: str, link: str = ":", **more: Any) -> E:
        """The error of a lane: `block (0, 0, 0) thread (5, 0, 0): <what>; module.ptx:57: <instruction>`.

        `more`: attributes of the error besides those of a `LaneError`.
        """
        fields = self.at(lane, instruction)
        where = f"block {fields['block']} thread {fields['thread']}"
        return kind(f"{where}{link} {what}; {self.describe(instruction)}", **fields, **more)

    def misuse(self, instruction: Instruction, lane: int, what: str) -> MisuseError:
        """The error of a lane that does what the manual leaves undefined."""
        return self.error(MisuseError, instruction, lane, what)

    def in_space(self, space: str, address: Array) -> Array:
        """Whether generic addresses lie in a state space's window."""
        top = address >> np.uint64(56)
        if space == "shared":
            return top == np.uint64(SHARED_WINDOW >> 56)
        if space == "local":
            return top == np.uint64(LOCAL_WINDOW >> 56)
        # What lies in no window counts as global.
        elsewhere = space == "global"
        windows = [each.base >> WINDOW_BITS for each in self.arena.regions if (each.space == space) != elsewhere]
        found = np.isin(address >> np.uint64(WINDOW_BITS), np.array(windows, np.uint64))
        return (top == 0) & (found != elsewhere)

    def everyone(self, mask: Array) -> bool:
        """Whether `mask` holds all lanes that have not exited."""
        return int(np.count_nonzero(mask)) == self._living

    def any_order(self, count: int) -> Array | None:
        """A permutation of `count` things that may be done in any order, int64 [count]; None where they keep theirs."""
        if self.choices is None or count < 2:
            return None
        if self.launch.schedule.opposite:
            return np.arange(count)[::-1]
        return self.choices.order(count)

    def lane_order(self, lanes: Array) -> Array | None:
        """`any_order` of what `lanes` [n] do by one instruction."""
        order = self.any_order(len(lanes))
        if order is None or not self.launch.schedule.opposite:
            return order
        # Blocks are in the opposite order already.
        return np.lexsort((-lanes, self.lane_cta[lanes]))

    def looks_early(self) -> bool:
        """Whether lanes look at a barrier in memory before what they wait for has happened; not for ever."""
        if self.choices is None:
            return False
        if self.launch.schedule.walk is not None:
            # Who looks again sees what it would have seen by looking later.
            return False
        if self.launch.schedule.opposite:
            self._looked_early = not self._looked_early
            return self._looked_early
        return self.choices.below(2) == 0

    def lands_at_once(self) -> bool:
        """Whether an asynchronous copy does its work when it is issued; under the default schedule it never does."""
        if self.choices is None or self.launch.schedule.walk is not None:
            # Whoever could tell would be in a race with the copy.
            return False
        return self.launch.schedule.opposite or self.choices.below(2) == 0

    def resume_each(self, places: Array, lanes: Array) -> None:
        """`lanes` leave the barriers that end the blocks `places` [lanes of the machine]."""
        for place in different(places[lanes]):
            self.resume(int(place), lanes & (places == place))

    # What whatever runs the lanes does for their instructions

    @abstractmethod
    def progress(self) -> None:
        """Memory changed, or lanes left: a polling loop may see something new."""

    @abstractmethod
    def stored(self) -> None:
        """Shared memory was stored to: the same, unless a loop does so for long and nothing else happens."""

    @abstractmethod
    def write(self, number: int, mask: Array, value: Any) -> None:
        """Write a register of the lanes of `mask`, outside a step."""

    @abstractmethod
    def home(self, name: str) -> Array:
        """The values [warps, 32] of a register that lives across pieces of blocks, in place."""

    @abstractmethod
    def check_written(self, instruction: Instruction, names: Iterable[str], warps: slice) -> None:
        """Look at registers of some warps, of 32 bits each, that live across pieces of blocks.

        Raises:
            Suspected: one may be a register that nobody wrote, and undefined values are not followed yet.
        """

    @abstractmethod
    def agent_name(self, thread: int) -> str:
        """For messages: a bulk copy and the barrier on which it completes, by the number in a race record."""

    @abstractmethod
    def under_way(self, byte: int) -> bool:
        """Whether an asynchronous copy to byte `byte` of shared memory, that of all CTAs, is under way."""

    @abstractmethod
    def orders(
        self, function: Any, region: Region, index: Array, lanes: Array, width: int, flags: np.int64
    ) -> order.OrderStatus:
        """Record accesses by lanes, unless something is wrong with one: see `refmoe.ptx.native.order`.

        Args:
            function: of that module.
            region: what is accessed.
            index: int64 [n], the first byte of each access.
            lanes: int64 [n], who does each.
            width: bytes.
            flags: for their records.
        """

    @abstractmethod
    def refresh(self, region: Region) -> None:
        """Native code has to look at a region anew."""

    @abstractmethod
    def started(self, lanes: Array, owners: Array) -> Array:
        """Whether each of `lanes` [n] comes after the start of CTA `owners` [n] of its cluster, bool [n]."""
        ...

    @abstractmethod
    def alive_now(self) -> Array:
        """`alive`, without those that have exited natively since."""

    @abstractmethod
    def resume(self, place: int, mask: Array) -> None:
        """Lanes leave the barrier that ends block `place`."""

    @abstractmethod
    def resume_at(self, place: int, mask: Array) -> None:
        """Parked lanes look again, at block `place`."""

    @abstractmethod
    def tick(self, now: int) -> None:
        """It is `now`, for race records."""

    @abstractmethod
    def poll(self) -> None:
        """A loop that may wait for another lane's write came round."""

    @abstractmethod
    def leave(self, alive: Array) -> None:
        """Lanes have exited: these are left, bool [lanes]."""

    @abstractmethod
    def spent(self) -> StepBudgetExceeded:
        """The error of a launch that needs more steps than it has."""
