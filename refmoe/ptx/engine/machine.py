"""The scheduler: lanes of some CTAs, where each is, and which run next.

A warp's lanes are kept as groups by place (block index). The group with the lowest (turn, place) runs: places are
numbered so that divergent lanes meet again, and a turn is lost at every back edge of a loop that may be waiting for
another lane's write, so that such a loop cannot starve the lane it waits for. Each warp runs through native blocks by
itself, see `refmoe.ptx.native.scheduler`. When all have come to blocks of Python's, the lowest (turn, place) of all
warps runs next: one step takes the lanes of every warp that waits there.

Lanes wait in three ways: gathering at a warp-level instruction for the other members of its mask, at a named barrier,
or parked at `mbarrier.try_wait` for a phase. When no lane can run, the parked ones give up as after the time limit of
that instruction, unless they did so before and came back to the same state: that is a deadlock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from refmoe.ptx.engine.barriers import Barriers
from refmoe.ptx.engine.bulk.copies import Bulk
from refmoe.ptx.engine.bulk.early_exit import refuse_early_exit
from refmoe.ptx.engine.bulk.exact import ExactBulkShadow
from refmoe.ptx.engine.bulk.maps import MapLooks
from refmoe.ptx.engine.bulk.races import BulkShadow
from refmoe.ptx.engine.cluster.barrier import ClusterBarrier
from refmoe.ptx.engine.code import Code, View
from refmoe.ptx.engine.copies import Copies
from refmoe.ptx.engine.exact_races import ExactShadow
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import LaunchState, OutOfTime, Tracer
from refmoe.ptx.engine.mbarrier import Mbarriers
from refmoe.ptx.engine.mbarrier_table import OBJECT_BYTES
from refmoe.ptx.engine.meetings import Meetings
from refmoe.ptx.engine.native_state import NativeState
from refmoe.ptx.engine.order.clocks import Clocks
from refmoe.ptx.engine.order.foresight import Foresight
from refmoe.ptx.engine.races import RaceShadow
from refmoe.ptx.engine.slow import Suspected, looks_for_unwritten
from refmoe.ptx.engine.tensor.register_pool import RegisterPool
from refmoe.ptx.engine.tensor.wgmma import Warpgroups
from refmoe.ptx.engine.thread_steps import Runner, Steps
from refmoe.ptx.engine.turns import Turns
from refmoe.ptx.engine.undefined.follower import UndefinedFollower
from refmoe.ptx.errors import Deadlock, StepBudgetExceeded, Trap, WarpError
from refmoe.ptx.native import order
from refmoe.ptx.native.scheduler import PATIENCE
from refmoe.ptx.program.unwritten import CANARIES
from refmoe.ptx.state.memory import Region
from refmoe.ptx.text.syntax import Instruction
from refmoe.ptx.text.wgmma import WARPS as WARPGROUP

Array = Any
# Back edges of polling loops without any progress before the machine asks whether anything can still change.
_IDLE = 64
# Of them so many in which shared memory is written all the same: then only other bytes there are progress.
_IDLE_WRITING = 256
# Stand for places.
_AT_BARRIERS, _IN_SHARED = -1, -2


class Observer(Protocol):
    """Somebody who is told what a launch does."""

    @property
    def view(self) -> View:
        """How the code is to be made."""
        ...

    def attach(self, launch: Launch) -> None:
        """A launch begins."""
        ...

    def step(self, place: int, frame: Frame) -> None:
        """The lanes of a frame are about to run block `place`."""
        ...

    def at(self, frame: Frame, instruction: Instruction) -> None:
        """The lanes of a frame are about to run an instruction; only where the view says so."""
        ...


class Tracing(Protocol):
    """What takes down who waited for whom."""

    def tracer(self, machine: Machine) -> Tracer:
        """What a machine reports to."""
        ...


@dataclass(kw_only=True)
class Launch(LaunchState):
    """A launch, with the code that its CTAs run.

    Attributes:
        code: of the entry.
        trace: what records who waited for whom, or None.
        observer: who is told of steps, or None.
    """

    code: Code
    trace: Tracing | None = None
    observer: Observer | None = None
    _idle: Machine | None = None

    def machine(self, first_cta: int, ctas: int) -> Machine:
        """Some CTAs at their start."""
        idle, self._idle = self._idle, None
        if idle is not None:
            if idle.ctas == ctas and idle.restart(first_cta):
                return idle
            idle.release()
        return Machine(self, first_cta, ctas)

    def put_back(self, machine: Machine | None) -> None:
        """All CTAs of a machine have exited; None where no others will come."""
        if self._idle is not None:
            self._idle.release()
        self._idle = machine
        if machine is None:
            self.order.pool.release()


class Machine(Runner):
    """Some CTAs, from start to end.

    Attributes:
        registers: an array [warps, 32] for each register that lives across pieces of blocks, written in place.
    """

    def __init__(self, launch: Launch, first_cta: int, ctas: int) -> None:
        super().__init__(launch, first_cta, ctas, launch.code.layout.local_bytes)
        self.launch: Launch = launch
        self.code = launch.code
        self._stepped = False
        if self.checks.races:
            # The blocks of a cluster know of each other what the warps of a block do.
            blocks = launch.grid.cluster_blocks
            self.clocks = Clocks(
                self.warps * blocks, ctas // blocks, first_cta // blocks, launch.order.pool,
                # Another schedule parts the lanes of a warp where nothing else does.
                self.code.lanes_synchronise or not launch.schedule.default,
                self.code.has_bulk, self.code.fences_in_order, self.code.fences_inits, self.code.lanes_leave,
                launch.agents, self._absent_warps(blocks),
            )  # fmt: skip
            self.strong = Foresight(
                self.clocks, launch.order, self.warps, first_cta, blocks, self.choices, self.code.strong_spaces
            )
            self._watch_shared()
        self.turns: Turns | None = None
        if launch.trace is not None:
            self.tracer = launch.trace.tracer(self)
        waits = {place: wait.work for place, wait in self.code.waits.items()}
        self.barriers = Barriers(self, self.code.barriers)
        self.cluster_barrier = ClusterBarrier(self, self.code.barriers)
        self.copies = self.add(Copies(self, self.code.counts_copies))
        self.bulk = self.add(Bulk(self))
        self.add(MapLooks())
        self.mbarriers = self.add(Mbarriers(self, waits, self.bulk, self.code.invalidates))
        if launch.following is not None:
            self.undefined = UndefinedFollower(self, self.code, launch.following)
        self.native = self.add(NativeState(self, self.code))
        self.registers = self.native.registers
        self.meetings = Meetings(self, self.native, self.code)
        self.steps: Steps | None = None
        if launch.by_steps:
            self.steps = Steps(self, self.native, self.code, self.choices)
        elif not launch.schedule.default:
            self.turns = Turns(self, self.native, WARPGROUP if self.code.has_warpgroups else 1)
        self.warpgroups = self.add(Warpgroups(self))
        self.register_pool = self.add(RegisterPool(self, self.code.entry.directives))
        self._gave_up: Array | None = None
        self._at_standstill: Any = None
        self._idle = self._idle_writing = 0
        self._snapshot: Any = None
        self._reads = 0
        self._laps: dict[int, int] = {}

    @cached_property
    def _turn_at_barrier(self) -> Array:
        """int64 [lanes], in which turn each lane came to a barrier last."""
        return np.zeros(self.lanes, np.int64)

    def _absent_warps(self, blocks: int) -> Array | None:
        """Numbers, in a cluster of so many blocks, of the warps that have no lanes."""
        living = -(-math.prod(self.launch.block) // 32)
        if living == self.warps:
            return None
        every = np.arange(blocks * self.warps)
        return every[every % self.warps >= living]

    def restart(self, first_cta: int) -> bool:
        """Become as many other CTAs, if these have exited without a step in Python. False if they have not."""
        if self._stepped or self._living:
            return False
        self.first_cta, self.first_thread = first_cta, first_cta * self.warps * 32
        self.alive = self.exist
        self._living = int(np.count_nonzero(self.alive))
        self.specials.become(first_cta)
        for region in (self.shared, self.local):
            region.clear()
        self._reserve()
        if self.clocks is not None:
            self.clocks.restart(first_cta // self.launch.grid.cluster_blocks)
            self.strong.restart(first_cta)
            self._watch_shared()
        self.native.restart()
        if self.turns is not None:
            self.turns.begin()
        return True

    def _watch_shared(self) -> None:
        """Records of who accessed shared memory begin."""
        self._forget_accesses(self.shared)
        if not self.launch.shared_bytes:
            return
        size, warps = self.shared.data.size, self.clocks.warps
        if self.code.has_bulk:
            groups = -(-warps // WARPGROUP) if self.code.has_warpgroups else 0
            bulk = ExactBulkShadow if self.shared.name in self.launch.exact else BulkShadow
            shadow: RaceShadow = bulk(size, warps, groups)
        else:
            kind = ExactShadow if self.shared.name in self.launch.exact else RaceShadow
            shadow = kind(size, warps)
        self.shared.shadow = shadow
        witness = self.launch.witness
        if witness is not None and self.shared.name in witness.regions:
            shadow.witness = witness

    def release(self) -> None:
        """Give memory back: all CTAs have exited, and others do not take their place."""
        self.native.release()
        for region in (self.shared, self.local):
            self._forget_accesses(region)
            region.release()
        self.mbarriers.release()
        if self.clocks is not None:
            self.clocks.release()

    def _forget_accesses(self, region: Region) -> None:
        """Nobody asks any more who accessed a region: the pages of its records are the next machine's."""
        if region.shadow is not None:
            region.shadow.release()
            region.shadow = None

    # What instructions ask

    def progress(self) -> None:
        """See `Lanes.progress`."""
        self._idle_writing = 0
        self._change()

    def stored(self) -> None:
        """See `Lanes.stored`."""
        # A loop may poll by one thread, which hands the others what it saw through shared memory: as Triton's do.
        if self._idle_writing < _IDLE_WRITING:
            self._change()

    def _change(self) -> None:
        self.arena.changes += 1
        self._idle, self._snapshot = 0, None
        if self.turns is not None:
            self.turns.progressed()

    def write(self, number: int, mask: Array, value: Any) -> None:
        """See `Lanes.write`."""
        if self.undefined is not None:
            self.undefined.write(number, mask)
        Frame(self, mask, int(np.count_nonzero(mask)), False).put(self.registers, number, value)

    def home(self, name: str) -> Array:
        """See `Lanes.home`."""
        return self.registers[self.code.homes[name][0]]

    def check_written(self, instruction: Instruction, names: Iterable[str], warps: slice) -> None:
        """See `Lanes.check_written`."""
        if not looks_for_unwritten(self):
            return
        for name in names:
            home = self.code.homes[name]
            if home in self.code.unwritten and (self.registers[home[0]][warps] == np.uint32(CANARIES[home[1]])).any():
                raise Suspected(instruction.text)

    def agent_name(self, thread: int) -> str:
        """See `Lanes.agent_name`."""
        return self.bulk.agent_name(thread)

    def under_way(self, byte: int) -> bool:
        """See `Lanes.under_way`."""
        return self.copies.covers(byte) or self.bulk.covers(byte)

    def orders(
        self, function: Any, region: Region, index: Array, lanes: Array, width: int, flags: np.int64
    ) -> order.OrderStatus:
        """See `Lanes.orders`."""
        return self.native.orders(function, region, index, lanes, width, flags)

    def refresh(self, region: Region) -> None:
        """See `Lanes.refresh`."""
        self.native.refresh(region)

    def started(self, lanes: Array, owners: Array) -> Array:
        """See `Lanes.started`."""
        blocks, clocks = self.launch.grid.cluster_blocks, self.clocks
        found = (owners == self.lane_cta[lanes]) | self.cluster_barrier.completed[owners // blocks]
        return found if clocks is None or found.all() else found | clocks.knows_block(lanes, owners, self.warps)

    def alive_now(self) -> Array:
        """See `Lanes.alive_now`."""
        return self.native.alive()

    def resume(self, place: int, mask: Array) -> None:
        """See `Lanes.resume`."""
        if self.turns is not None:
            self.turns.met()
        # Whoever polls in a loop with a barrier goes on losing turns: else nobody who has lost one would run.
        turn = int(self._turn_at_barrier[mask].max())
        self._arrive(self.code.program.blocks[place].terminator.targets[0], turn, mask)

    def resume_at(self, place: int, mask: Array) -> None:
        """See `Lanes.resume_at`."""
        self._arrive(place, 0, mask)

    # Steps

    def run(self) -> bool:
        """Run until all lanes have exited (True), or until the CTAs here only wait for memory to change (False).

        Raises:
            PtxError: whatever went wrong.
        """
        self._idle, self._snapshot = 0, None
        native = self.native
        native.enter()
        while True:
            turns = self.turns
            if turns is not None and self._idle >= _IDLE and not turns.open:
                # Those that poll may wait for lanes that are held back.
                turns.let_all_run()
            if self.steps is None:
                native.advance()
            policy = self.steps or turns
            if self._idle >= _IDLE and (policy is None or policy.open) and self._stuck():
                # Those who wait may do so for a copy that was issued later: it lands when they look again.
                if self._give_up():
                    continue
                self.meetings.refuse_divided()
                return False
            picked = native.pick() if self.steps is None else self._single(self.steps)
            turns = self.turns
            if picked is None:
                if turns is not None and turns.pass_on():
                    continue
                if native.yielded or self._give_up():
                    continue
                break
            turn, place, mask = picked
            self._stepped = True
            self._tick()
            if self.undefined is not None and (place in self.code.gathers or place in self.code.waits):
                self.undefined.look(place, mask)
            if place in self.code.gathers:
                mask = self.meetings.gather(place, mask)
                if mask is None:
                    continue
            elif place in self.code.waits:
                mask = self._await(place, mask)
                if mask is None:
                    continue
            elif turns is not None:
                mask = self._part(turns, place, turn, mask)
            self._step(place, turn, mask)
            if turns is not None:
                turns.stepped()
        self.native.leave()
        if self._living:
            self.meetings.refuse_divided()
            waiting = self.waiting()
            raise Deadlock("no lane can run:\n  " + "\n  ".join(waiting), waiting=tuple(waiting))
        return True

    def _single(self, steps: Steps) -> tuple[int, int, Array] | None:
        """The next step of a single thread; once there were many, lanes run together from then on."""
        if not steps.spent:
            return steps.pick()
        steps.give_back()
        self.steps, self.turns = None, Turns(self, self.native, WARPGROUP if self.code.has_warpgroups else 1)
        self.native.advance()
        return self.native.pick()

    def _part(self, turns: Turns, place: int, turn: int, mask: Array) -> Array:
        """Of the lanes at a place those that run it first; the others stay there."""
        first = turns.part(mask)
        if first is not mask:
            self._arrive(place, turn, mask & ~first)
        return first

    def _tick(self) -> None:
        self.tick(self.launch.clock + 1)

    def tick(self, now: int) -> None:
        """See `Lanes.tick`."""
        launch = self.launch
        if launch.deadline is not None and time.process_time() > launch.deadline:
            raise OutOfTime
        launch.clock = now
        if self.clocks is not None:
            self.clocks.now = now

    def poll(self) -> None:
        """See `Lanes.poll`."""
        self._idle += 1
        self._idle_writing += 1
        if self.turns is not None:
            self.turns.polled()

    def spent(self) -> StepBudgetExceeded:
        """See `Lanes.spent`."""
        budget, places = self.launch.step_budget, tuple(self.waiting())
        return StepBudgetExceeded(
            f"a warp took more than {budget} steps; lanes are at:\n  " + "\n  ".join(places),
            steps=budget,
            places=places,
        )

    def _step(self, place: int, turn: int, mask: Array) -> None:
        launch, code = self.launch, self.code
        frame = Frame.of(self, mask)
        launch.steps += 1
        budget = launch.step_budget
        if budget is not None and launch.steps > budget and self.native.most_steps() > budget:
            self._arrive(place, turn, mask)
            raise self.spent()
        launch.instructions += code.lengths[place]
        launch.lane_instructions += code.lengths[place] * frame.active
        if launch.observer is not None:
            launch.observer.step(place, frame)
        self._leave(place, turn, mask, frame, self._run_block(place, frame))

    def perform(self, place: int, mask: Array) -> None:
        """See `Runner.perform`."""
        self.launch.steps += 1
        self._run_block(place, Frame(self, mask, int(np.count_nonzero(mask)), True))

    def _run_block(self, place: int, frame: Frame) -> Any:
        if self.undefined is None:
            return self.code.steps[place](self.registers, frame)
        return self.undefined.step(place, frame, self.registers, self.code.steps[place])

    def _leave(self, place: int, turn: int, mask: Array, frame: Frame, result: Any) -> None:
        terminator = self.code.program.blocks[place].terminator
        kind = terminator.kind
        if kind == "jump":
            self._go(place, terminator.targets[0], turn, mask)
        elif kind == "branch":
            self._branch(place, turn, mask, frame, result)
        elif kind == "index":
            self._index(place, turn, mask, frame, result)
        elif kind == "exit":
            if self.launch.grid.cluster_blocks > 1:
                refuse_early_exit(
                    self, terminator.instruction, mask, self.mbarriers.remote, self.mbarriers.slot * OBJECT_BYTES
                )
            self._exit(mask)
        elif kind == "barrier":
            number, count, vote = (None if value is None else _all(frame, value) for value in result)
            code = self.code.barriers[place]
            self._turn_at_barrier[mask] = turn
            if code.kind.startswith("cluster"):
                self.progress()
                self.cluster_barrier.come(code, place, mask)
            else:
                self.barriers.arrive(code, place, mask, (number, count, vote))
        else:
            assert terminator.instruction is not None
            fields = self.at(int(np.argmax(mask)), terminator.instruction)
            where = f"block {fields['block']} thread {fields['thread']}"
            # Without a debugger a breakpoint ends the kernel.
            raise Trap(f"{terminator.instruction.opcode} in {where}; {self.describe(terminator.instruction)}", **fields)

    def _branch(self, place: int, turn: int, mask: Array, frame: Frame, result: Any) -> None:
        targets = self.code.program.blocks[place].terminator.targets
        if not isinstance(result, np.ndarray) or result.ndim == 0:
            self._go(place, targets[0] if result else targets[1], turn, mask)
            return
        taken = frame.to_all(result) & mask
        count = int(np.count_nonzero(taken))
        if count == frame.active:
            self._go(place, targets[0], turn, mask)
        elif count == 0:
            self._go(place, targets[1], turn, mask)
        else:
            self._go(place, targets[0], turn, taken)
            self._go(place, targets[1], turn, mask & ~taken)

    def _index(self, place: int, turn: int, mask: Array, frame: Frame, result: Any) -> None:
        terminator = self.code.program.blocks[place].terminator
        index = frame.to_all(result)
        beyond = mask & (index >= len(terminator.targets))
        if beyond.any():
            assert terminator.instruction is not None
            lane = int(np.argmax(beyond))
            what = f"branch index {int(index[lane])} beyond the table"
            raise self.error(WarpError, terminator.instruction, lane, what)
        for value in np.unique(index[mask]):
            self._go(place, terminator.targets[int(value)], turn, mask & (index == value))

    def _go(self, place: int, target: int, turn: int, mask: Array) -> None:
        block = self.code.program.blocks[place]
        if target in block.polling_edges:
            turn += 1
            self.poll()
        elif target in block.back_edges:
            laps = self._laps[target] = self._laps.get(target, 0) + 1
            turn += laps % PATIENCE == 0
        self._arrive(target, turn, mask)

    def _arrive(self, place: int, turn: int, mask: Array) -> None:
        self.native.arrive(place, turn, mask)

    def _exit(self, mask: Array) -> None:
        self.native.exit(mask)
        # Those who waited for the lanes that are gone need not wait any longer.
        warps = mask.reshape(-1, 32).any(axis=1)
        self.native.wake(np.repeat(warps, 32))
        self.leave(self.alive & ~mask)

    def leave(self, alive: Array) -> None:
        """See `Lanes.leave`."""
        gone = self.alive if alive is self.nobody else self.alive & ~alive
        self.alive = alive
        self._living = int(np.count_nonzero(alive))
        self.warpgroups.leave(gone)
        self.register_pool.leave()
        self.bulk.leave(gone)
        self.progress()
        if self.code.has_warpgroups and gone.any():
            # Those who gather for warps that are gone look again.
            near = gone.reshape(self.ctas, -1)
            self.native.wake(np.repeat(near.any(axis=1), near.shape[1]))
        if self.barriers.expected.any():
            self.barriers.settle()
        self.cluster_barrier.settle()

    # Barriers in memory

    def _await(self, place: int, mask: Array) -> Array | None:
        """The lanes whose phase is complete, or who have given up; the others are parked.

        The time limit of an instruction may be as short as one likes: under a schedule some lanes give up at once.
        """
        wait = self.code.waits[place]
        self.mbarriers.early = self.looks_early()
        frame = Frame.of(self, mask)
        address, asked = wait.probe(self.registers, frame)
        where, lanes, chosen = frame.select(address, None)
        asked = frame.acting(where, asked).astype(np.uint64)
        ids, ready = self.mbarriers.look(frame, wait.work, chosen, lanes, asked)
        if self._gave_up is not None:
            go = ready | self._gave_up[lanes]
            self._gave_up = self._gave_up & ~mask
            self._gave_up = self._gave_up if self._gave_up.any() else None
        else:
            go = ready
        if ready.all():
            self.mbarriers.pass_by(wait.work, lanes, ids)
        if go.all() or self.mbarriers.early:
            return mask
        self.mbarriers.park(place, lanes[~go], ids[~go], asked[~go])
        self.tracer.mbarrier("park", wait.work.access.instruction, lanes[~go], ids[~go])
        if not go.any():
            return None
        going = np.zeros_like(mask)
        going[lanes[go]] = True
        return going

    def _give_up(self) -> bool:
        """Let parked lanes go on without their phase; False where there are none, or they would only come back."""
        parked = self.mbarriers.at > 0 if self.code.has_mbarriers else np.zeros(0, bool)
        if not parked.any():
            return False
        ticks = self.launch.ticks
        state = ({0: parked, **self._in_shared()}, self.native.copy(), self.arena.changes, ticks.reads)
        before, self._at_standstill = self._at_standstill, state
        if before is None or before[2] != state[2]:
            ticks.settle()
        elif before[3] == state[3]:
            if _same(before[:2], state[:2]):
                return False
        elif not ticks.leap():
            # They look at the clock in between, but no time is long enough.
            return False
        self._gave_up = self.mbarriers.give_up()
        return True

    # Where lanes are

    def whereabouts(self, running: Array) -> list[tuple[str, Instruction | None, Array]]:
        """(state, instruction that comes next, lanes) of all lanes but those of the step that is `running`.

        States are `"ready"`, `"gathering"` (for a warp-level instruction), `"parked"` (at `mbarrier.try_wait`),
        `"at a barrier"` and `"at the cluster barrier"`. The instruction is None where lanes fall off the entry's end.
        """
        found = [
            (state, self._next(place), lanes)
            for state, waiting in (("ready", False), ("gathering", True))
            for place, lanes in self.native.groups(waiting).items()
        ]
        rest = self.alive & ~running
        for _, _, lanes in found:
            rest = rest & ~lanes
        # Lanes that only arrived at a barrier are on their way.
        waits: dict[str, Any] = {"parked": self.mbarriers} if self.code.has_mbarriers else {}
        waits |= {"at a barrier": self.barriers, "at the cluster barrier": self.cluster_barrier}
        for state, waiting in waits.items():
            places = waiting.places()
            for place in np.unique(places[rest & (places >= 0)]).tolist():
                lanes = rest & (places == place)
                block = self.code.program.blocks[place]
                next_ = block.instructions[0] if state == "parked" else block.terminator.instruction
                found.append((state, next_, lanes))
        return found

    def _next(self, place: int) -> Instruction | None:
        """The first instruction from the start of block `place` on."""
        block = self.code.program.blocks[place]
        while not block.instructions and block.terminator.instruction is None and block.terminator.targets:
            block = self.code.program.blocks[block.terminator.targets[0]]
        return block.instructions[0] if block.instructions else block.terminator.instruction

    # Standing still

    def _stuck(self) -> bool:
        """Whether lanes came round to a state that they were in before, with memory unchanged since.

        Lanes that read a clock are in a new state each time; they stand still if nothing else happens for long.
        """
        passing = self.launch.ticks.reads > self._reads
        if self._snapshot is None or self._idle % _IDLE == 0:
            passing &= self._snapshot is not None
            self._snapshot, self._reads = self._state(), self.launch.ticks.reads
            return passing
        return not passing and _same(self._snapshot, self._state())

    def _state(self) -> tuple[dict[int, Array], Array]:
        """Where lanes are that may go on, at which barriers others are, and the registers."""
        groups = dict(self.native.groups(waiting=False) if self.steps is None else self.steps.places())
        # A loop that polls may have barriers in it: to come to one is no progress.
        groups[_AT_BARRIERS] = self.barriers.at.copy()
        return groups | self._in_shared(), self.native.copy()

    def _in_shared(self) -> dict[int, Array]:
        """The bytes of shared memory, where writing there is no progress by itself."""
        return {_IN_SHARED: self.shared.data.copy()} if self._idle_writing >= _IDLE_WRITING else {}

    def waiting(self) -> list[str]:
        """One sentence for each place where lanes are."""
        lines = self.barriers.report() + self.cluster_barrier.report() + self.mbarriers.report()
        blocks = self.code.program.blocks
        for place, lanes in self.native.groups(waiting=True).items():
            gather = self.code.gathers[place]
            lines.append(f"gathering for {self.describe(gather.instruction)}: {self._who(lanes)}")
        for place, lanes in self.native.groups(waiting=False).items():
            lines.append(f"running at {self.launch.name}:{blocks[place].line}: {self._who(lanes)}")
        return lines

    def _who(self, lanes: Array) -> str:
        block, thread = self.place_of(int(np.argmax(lanes)))
        return f"{int(np.count_nonzero(lanes))} lanes, the first block {block} thread {thread}"


def _all(frame: Frame, value: Any) -> Any:
    """A frame's value over all lanes; scalars stay scalars."""
    return frame.to_all(value) if isinstance(value, np.ndarray) and value.ndim else value


def _same(before: Any, after: Any) -> bool:
    groups, registers = before
    now, values = after
    if groups.keys() != now.keys() or not all(np.array_equal(groups[p], now[p]) for p in groups):
        return False
    return bool(np.array_equal(registers, values))


def announce(frame: Frame, instruction: Instruction) -> None:
    """What generated code calls in front of an instruction."""
    observer = observer_of(frame)
    assert observer is not None
    observer.at(frame, instruction)


def observer_of(frame: Frame) -> Observer | None:
    """Who is told of the steps of a frame's launch."""
    assert isinstance(frame.machine, Machine)
    return frame.machine.launch.observer
