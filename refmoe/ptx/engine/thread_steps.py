"""Steps of single threads: under a schedule of a short launch one thread at a time takes the next step.

Between any two steps by which threads communicate another thread may come, be it a lane of the same warp. Steps that no
other thread can tell (arithmetic, plain accesses, whose races are found in whatever order they come) are taken at once.

A thread that polls in vain waits until somebody has written what it polls: another look would see the same.

An access that is put off keeps the step in which its thread came to it, and what the thread knew there. If it reads,
it may pass what orders in its thread, see `refmoe.ptx.program.late`. Then it is as if it had happened before these:
until it does, no other thread takes a step by which it may learn of those. Nor does it read what it, or a fence that it
passed, would have told its thread. An atomic may have to read what is there, so that nobody may write such a thing.

A store may overtake what its thread has put off of the same bytes: that then takes what lies under the store in
coherence order.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from refmoe.ptx.engine.code import Code
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.native_state import places_of
from refmoe.ptx.engine.order.deferred import Acquiring, Deferred
from refmoe.ptx.exploration import Footprint, Move
from refmoe.ptx.native.context import Place
from refmoe.ptx.program.blocks import communicates
from refmoe.ptx.program.late import acquiring_scope, scope_of, sequential_scope
from refmoe.ptx.state.spaces import RANK_SHIFT
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Address, Instruction, Register, Symbol

Array = Any
#: Threads of a launch, counted in whole warps, that may take their steps one by one.
MOST_WARPS = 8
# Steps of single threads after which lanes run together again: the launch is not short.
_MOST_STEPS = 256
_EVERYTHING = Footprint("everything")
_BARRIER_BYTES = 8


class Queues(Protocol):
    """Where lanes are."""

    def advance(self) -> None:
        """Run all that native code can."""
        ...

    def groups(self, waiting: bool) -> dict[int, Array]:
        """The lanes at each place, bool [lanes]."""
        ...

    def pick(self) -> tuple[int, int, Array] | None:
        """(turn, place, lanes) of what native code leaves to Python, and that leave the place; None if nothing is."""
        ...

    def take(self, place: int, mask: Array) -> int:
        """Lanes of a place leave it; returns the highest turn among them."""
        ...

    def arrive(self, place: int, turn: int, mask: Array) -> None:
        """Lanes come to a place."""
        ...


@dataclass(frozen=True)
class _Step:
    """A thread at a place where it communicates, or an access of it that it has put off.

    Attributes:
        lane: the thread.
        place: of the block.
        turn: in which the thread comes there.
        move: what names it, and what it touches.
        deferred: of an access that was put off, what it was put off with; None for another step.
        passes: whether the thread has come past a fence, an acquire or a release since then.
        released: whether one of these passes something on, or it does so itself and was overtaken.
        in_order: the widest scope of the `fence.sc` that it has come past, see `refmoe.ptx.state.records`; 0 for none.
        overtaken: whether the thread has stored to the same bytes since then.
    """

    lane: int
    place: int
    turn: int
    move: Move
    deferred: Deferred | None = None
    passes: bool = False
    released: bool = False
    in_order: int = 0
    overtaken: bool = False

    @property
    def late(self) -> bool:
        """Whether it was put off."""
        return self.deferred is not None

    @property
    def acquired(self) -> int:
        """The widest scope in which it, or a fence that it passes, acquires what it reads; 0 for none."""
        return 0 if self.deferred is None else self.deferred.acquired

    def passing(self, releases: bool, acquiring: Acquiring | None, in_order: int) -> _Step:
        """The same, passing what releases, what acquires, or what is in order with others in a scope; 0 for none."""
        passed = self if acquiring is None else self.acquired_at(acquiring)
        released, in_order = self.released or releases, max(self.in_order, in_order)
        return replace(passed, passes=True, released=released, in_order=in_order)

    def acquired_at(self, where: Acquiring) -> _Step:
        """The same, and what it reads is acquired there."""
        deferred = self.deferred
        assert deferred is not None
        if where.scope <= deferred.acquired:
            return self
        return replace(self, deferred=replace(deferred, acquires=(*deferred.acquires, where)))


class Runner(Lanes):
    """The lanes, and what runs a block."""

    @abstractmethod
    def perform(self, place: int, mask: Array) -> None:
        """Lanes run the instructions of a block, wherever they are, in the step of the launch that is now."""


def _overlap(one: Footprint, other: Footprint) -> bool:
    """Whether two accesses are of one location, or may be, read or written."""
    if "everything" in (one.space, other.space):
        return True
    return (one.space, one.owner) == (other.space, other.owner) and one.begin < other.end and other.begin < one.end


def _alike(one: _Step, other: _Step) -> bool:
    """Whether two accesses are certainly of the same bytes."""
    mine, theirs = one.move.footprint, other.move.footprint
    where = (mine.space, mine.owner, mine.begin, mine.end)
    return mine.space != "everything" and where == (theirs.space, theirs.owner, theirs.begin, theirs.end)


class Steps:
    """Who takes the next step in a machine.

    Args:
        machine: whose lanes.
        queues: where they are.
        code: what they run.
        choices: what decides: a `Walk`, or what draws.

    Attributes:
        open: whether all threads that could go on polled in vain, so that some did it again.
    """

    def __init__(self, machine: Runner, queues: Queues, code: Code, choices: Any) -> None:
        self._machine, self._queues, self._code, self._choices = machine, queues, code, choices
        # Where Python does the next block: that has at most one instruction by which threads communicate.
        self._in_python = places_of(machine, code)[:, Place.FUNCTION] == 0
        # Lanes that are about to communicate, by number.
        self._ahead: dict[int, _Step] = {}
        # Their accesses that they have put off, in order.
        self._late: dict[int, list[_Step]] = {}
        self._held: dict[int, _Step] = {}
        # Blocks of lanes that may go as far as that, and perhaps no further: (turn, place, lanes as bool).
        self._singly: list[tuple[int, int, Array]] = []
        self._windows = code.windows
        # Of each lane its last step, and of those that polled in vain what they looked at.
        self._last: dict[int, _Step] = {}
        self._polling: dict[int, Footprint] = {}
        self._left = _MOST_STEPS
        self.open = False

    @property
    def spent(self) -> bool:
        """Whether the launch is longer than what is worth single steps."""
        return self._left <= 0

    def pick(self) -> tuple[int, int, Array] | None:
        """(turn, place, lanes as bool) of the next step; None if no lane can run."""
        while True:
            self._hold()
            if self._singly:
                return self._singly.pop()
            self._queues.advance()
            groups = self._queues.groups(waiting=False)
            if not groups:
                step = self._next()
                if step is None:
                    return None
                mask = self._mask(step.lane)
                if step.late:
                    self._happen(step, mask)
                elif self._may_put_off(step) and (self._has_to_wait(step) or self._choices.below(2)):
                    self._put_off(step, mask)
                else:
                    self._overtake(step)
                    return step.turn, step.place, mask
                continue
            here = [(place, lanes) for place, lanes in groups.items() if self._in_python[place]]
            if not here:
                # A meeting that native code leaves to Python; or native code goes on.
                picked = self._queues.pick()
                if picked is not None:
                    return picked
            for place, lanes in here:
                turn = self._queues.take(place, lanes)
                told = lanes & self._tell(place, lanes)
                for lane in np.flatnonzero(told).tolist():
                    self._come(lane, place, turn)
                silent = lanes & ~told
                if silent.any():
                    # Nobody can tell when it happens.
                    return turn, place, silent

    def _next(self) -> _Step | None:
        """The step that comes next; None if there is none."""
        ready, steps = list[_Step](), list(self._ahead.values())
        late_lanes = {lane for lane, mine in self._late.items() if mine}
        if late_lanes:
            ready = [step for mine in self._late.values() for step in self._first(mine)]
            steps = [step for step in steps if step.lane not in late_lanes or self._may_pass(step)]
            steps = [step for step in steps if not (self._is_kept_back(step) or self._is_kept_away(step))]
        ready += [step for step in steps if step.lane not in self._polling] if self._polling else steps
        self.open = not ready
        if self.open:
            ready = steps
        if not ready:
            return None
        self._left -= 1
        step = ready[0] if len(ready) == 1 else self._choose(ready)
        if not step.late:
            del self._ahead[step.lane]
            self._last[step.lane] = step
            for late in self._told(step) if late_lanes and not self._is_fence(step) else ():
                keys, releases = self._keys(step.move.footprint), self._releases(step)
                self._machine.strong.be_told(late.lane, late.deferred, step.lane, keys, releases)
            self._cross(step)
        if step.move.footprint.writes:
            touched = step.move.footprint
            self._polling = {lane: seen for lane, seen in self._polling.items() if not seen.depends(touched)}
        return step

    # What is put off

    def _may_put_off(self, step: _Step) -> bool:
        """Whether somebody might tell that a thread goes on without its access, and the access may acquire nothing."""
        if step.place not in self._windows.worth or self._machine.strong is None:
            return False
        scope = self._own_scope(step)
        if scope and step.move.footprint.space not in ("global", "shared"):
            return False
        if not scope:
            return True
        # Behind other reads of its bytes it takes what these took, or what came later: so they acquire that, too.
        front = self._in_front(step)
        return all(_alike(step, each) and not self._is_a(each, "st") for each in front) and all(
            not self._is_parted(each) and self._reads_nothing(step.lane, each, scope) for each in (*front, step)
        )

    def _own_scope(self, step: _Step) -> int:
        """The scope in which an access acquires what it reads; 0 if it does not."""
        instruction = self._speaking(step.place)
        return 0 if instruction is None or self._is_a(step, "red") else acquiring_scope(instruction)

    def _reads_nothing(self, lane: int, late: _Step, scope: int) -> bool:
        """Whether what a lane puts off might acquire nothing in a scope, were it to happen now."""
        touched, mine = late.move.footprint, self._late.values()
        if touched.space == "everything":
            # It may be of any bytes, in the shared memory of another block for instance.
            return False
        silent = self._machine.strong.may_learn_nothing(lane, scope, self._keys(touched), touched.writes, late.deferred)
        return silent and not (
            touched.writes and any(self._writes_there(each, late) for each in itertools.chain(*mine))
        )

    def _keys(self, touched: Footprint) -> range:
        """The names of the bytes that a step touches, in global or shared memory, see `Strong.key`."""
        if touched.space == "global":
            return range(touched.begin, touched.end)
        shared = self._machine.shared
        first = self._machine.strong.key(shared, touched.owner * shared.stride + touched.begin - shared.base)
        return range(first, first - (touched.end - touched.begin), -1)

    def _writes_there(self, writer: _Step, reader: _Step) -> bool:
        """Whether a step writes what that of another thread touches."""
        return writer.move.footprint.writes and self._touches_there(writer, reader)

    def _is_parted(self, step: _Step) -> bool:
        """Whether another thread has put an access off that is of some of a step's bytes alone, or of more."""
        late = itertools.chain(*self._late.values())
        return any(self._touches_there(each, step) and not _alike(each, step) for each in late)

    def _touches_there(self, step: _Step, other: _Step) -> bool:
        """Whether a step touches what that of another thread touches."""
        return step.lane != other.lane and _overlap(step.move.footprint, other.move.footprint)

    def _is_kept_away(self, step: _Step) -> bool:
        """Whether a step would spoil what another thread has put off: tell an atomic what comes after it.

        Or it would touch some of the bytes alone that the other one acquires late, or has stored to since: their
        history would begin anew.
        """
        strong, keys = self._machine.strong, self._keys
        if self._is_fence(step):
            return False
        whole = (each for each in itertools.chain(*self._late.values()) if each.acquired or each.overtaken)
        if any(self._touches_there(step, each) and not _alike(step, each) for each in whole):
            return True
        return any(
            step.move.footprint.space == "everything"
            or not strong.may_be_told(
                late.lane, late.deferred, step.lane, keys(step.move.footprint), self._releases(step)
            )
            for late in self._told(step)
        )

    def _told(self, step: _Step) -> list[_Step]:
        """The atomics of other threads that are put off, and that a step might tell something.

        A store does no harm: the atomic may still come before it. Of another atomic it may have to come behind.
        """
        every = itertools.chain(*self._late.values())
        under = [each for each in every if each.acquired and each.move.footprint.writes]
        under, touched = [each for each in under if self._writes_there(step, each)], step.move.footprint
        if not under or touched.space == "everything":
            return under
        instruction, keys = self._speaking(step.place), self._keys(touched)
        if self._is_a(step, "st"):
            return []
        releases = 0 if instruction is None or not self._releases(step) else scope_of(instruction)
        tells = self._machine.strong.tells
        return [each for each in under if tells(step.lane, releases, keys, each.lane, each.acquired)]

    def _put_off(self, step: _Step, mask: Array) -> None:
        """A thread goes on without its access."""
        machine, scope = self._machine, self._own_scope(step)
        machine.tick(machine.launch.clock + 1)
        move = Move(("late", step.lane, step.place), step.move.footprint)
        mine = self._late.setdefault(step.lane, [])
        if scope:
            acquiring, front = machine.strong.acquiring(scope), self._in_front(step)
            mine[:] = [each.acquired_at(acquiring) if each in front else each for each in mine]
        deferred = machine.strong.defer(step.lane, scope)
        mine.append(_Step(step.lane, step.place, step.turn, move, deferred))
        (target,) = self._code.program.blocks[step.place].terminator.targets
        self._queues.arrive(target, step.turn, mask)

    def _happen(self, late: _Step, mask: Array) -> None:
        """A thread makes an access that it has put off, and at once those behind it that it makes room for."""
        machine = self._machine
        assert late.deferred is not None
        left = self._late[late.lane]
        left.remove(late)
        behind = [each for each in left if _overlap(each.move.footprint, late.move.footprint)]
        makes_room = bool(late.acquired) and any(each.acquired and each.move.footprint.writes for each in behind)
        machine.tick(machine.launch.clock + 1)
        now, machine.strong.deferred = machine.launch.clock, replace(late.deferred, makes_room=makes_room)
        machine.tick(late.deferred.clock)
        try:
            machine.perform(late.place, mask)
        finally:
            machine.strong.deferred = None
            machine.tick(now)
        if makes_room:
            self._happen(behind[0], mask)
        elif not left:
            machine.strong.happened(late.lane)

    def _cross(self, step: _Step) -> None:
        """A thread takes a step: what it has put off passes it."""
        late = self._late.get(step.lane)
        if late:
            for each in late:
                if each.move.footprint.writes and (each.in_order or self._order_scope(step)):
                    assert each.deferred is not None
                    self._machine.strong.expect(step.lane, self._keys(each.move.footprint), each.deferred.clock)
            scope = self._acquired_by_fence(step)
            acquiring = self._machine.strong.acquiring(scope) if scope else None
            does = self._releases(step), acquiring, self._order_scope(step)
            self._late[step.lane] = [
                each.passing(*does) if step.place in self._windows.wider(each.place).crossings else each
                for each in late
            ]

    def _order_scope(self, step: _Step) -> int:
        """The scope in which a step is in order with those of other threads; 0 if it is not."""
        instruction = self._speaking(step.place)
        scope = 0 if instruction is None else sequential_scope(instruction)
        return scope if scope > self._machine.alone(step.lane) else 0

    def _releases(self, step: _Step) -> bool:
        """Whether a step passes on what its thread did, by itself or by what comes behind it."""
        instruction = self._speaking(step.place)
        parts = [] if instruction is None else instruction.opcode.split(".")
        return "release" in parts or "acq_rel" in parts or (self._is_fence(step) and "acquire" not in parts)

    def _acquires(self, step: _Step) -> int:
        """The scope in which a step may acquire something; 0 if it does not."""
        instruction = self._speaking(step.place)
        return 0 if instruction is None else acquiring_scope(instruction)

    def _acquired_by_fence(self, step: _Step) -> int:
        """The same, of what the thread has read before: only fences acquire that."""
        return self._acquires(step) if self._is_fence(step) else 0

    def _is_fence(self, step: _Step) -> bool:
        """Whether a step is a fence, which touches no memory by itself."""
        instruction = self._speaking(step.place)
        return instruction is not None and instruction.opcode.startswith(("fence.", "membar."))

    def _is_kept_back(self, step: _Step) -> bool:
        """Whether a step might tell its thread of what another one's access that was put off has passed."""
        scope, strong = self._acquires(step), self._machine.strong
        others = itertools.chain(*(mine for lane, mine in self._late.items() if lane != step.lane))
        passing = [late for late in others if late.released]
        if not scope or not passing:
            return False
        # Of each thread the first one.
        since = {late.lane: late.deferred.clock for late in reversed(passing) if late.deferred is not None}
        if self._is_fence(step):
            order = self._order_scope(step)
            in_order = (strong.reach_each_other(step.lane, order, late.lane, late.in_order) for late in passing)
            return any(in_order) or strong.may_hear_of(step.lane, scope, None, since)
        instruction, touched = self._speaking(step.place), step.move.footprint
        if instruction is None or memory_opcode(instruction.opcode) is None:
            # No thread comes to a barrier with something put off.
            return False
        hears: bool = touched.space == "everything" or strong.may_hear_of(step.lane, scope, self._keys(touched), since)
        return hears

    def _hold(self) -> None:
        """Threads stay where they would run past the window of what they have put off; others come back."""
        back = [lane for lane, step in self._held.items() if self._may_go(lane, step.place)]
        for lane in back:
            step = self._held.pop(lane)
            self._queues.arrive(step.place, step.turn, self._mask(lane))
        if not any(self._late.values()):
            return
        for place, lanes in self._queues.groups(waiting=False).items():
            if not self._runs_on(place):
                continue
            for lane in np.flatnonzero(lanes).tolist():
                if self._may_go(lane, place):
                    continue
                turn = self._queues.take(place, self._mask(lane))
                if all(place in self._within(step) for step in self._late[lane]):
                    # It is a branch, perhaps, that leads past what the other one leads to.
                    self._singly.append((turn, place, self._mask(lane)))
                else:
                    self._held[lane] = _Step(lane, place, turn, Move((lane, place), _EVERYTHING))

    def _may_go(self, lane: int, place: int) -> bool:
        """Whether a thread may run from a place on, up to where it communicates."""
        late = self._late.get(lane)
        if not late:
            return True
        ahead = self._ahead_of(place)
        return all(ahead <= self._within(step) for step in late)

    def _within(self, late: _Step) -> frozenset[int]:
        """The places that a thread may run before what it has put off."""
        return self._windows.wider(late.place).behind if late.passes else self._windows.window(late.place)

    def _ahead_of(self, place: int) -> frozenset[int]:
        """The places that a thread may run from a place on, before it communicates."""
        found, ahead = {place}, [place]
        while ahead:
            here = ahead.pop()
            if self._runs_on(here):
                targets = self._code.program.blocks[here].terminator.targets
                new = [each for each in targets if each not in found and self._runs_on(each)]
                found.update(new)
                ahead += new
        return frozenset(found)

    def _runs_on(self, place: int) -> bool:
        """Whether a thread does not stop at a block: native code runs it, or nobody can tell when it happens."""
        return not self._in_python[place] or self._speaking(place) is None

    def _mask(self, lane: int) -> Array:
        mask = np.zeros(self._machine.lanes, bool)
        mask[lane] = True
        return mask

    def _first(self, late: list[_Step]) -> list[_Step]:
        """Those of a thread's accesses that may happen now: of one location the first one."""
        return [
            step
            for number, step in enumerate(late)
            if not any(_overlap(step.move.footprint, other.move.footprint) for other in late[:number])
        ]

    def _may_pass(self, step: _Step) -> bool:
        """Whether a thread may take a step before what it has put off."""
        return all(
            (step.place in self._within(late) or self._may_cross(step, late)) for late in self._late.get(step.lane, ())
        ) and (not self._has_to_wait(step) or self._may_put_off(step))

    def _in_front(self, step: _Step) -> list[_Step]:
        """What the thread of a step has put off that is of its bytes."""
        late = () if self._is_fence(step) else self._late.get(step.lane, ())
        return [each for each in late if _overlap(step.move.footprint, each.move.footprint)]

    def _has_to_wait(self, step: _Step) -> bool:
        """Whether a step may only come behind what its thread has put off.

        A store may come before reads of its bytes, and before atomics: they then take what is under it. But it does not
        come before a compare-and-swap that releases: whether that writes, and so releases, is open.
        """
        front = self._in_front(step)
        if front and (not self._is_a(step, "st") or self._is_parted(step)):
            return True
        return any(
            not _alike(step, each) or self._is_a(each, "st") or (self._releases(each) and self._is_a(each, "cas"))
            for each in front
        )

    def _is_a(self, step: _Step, part: str) -> bool:
        """Whether a step is by an instruction whose opcode has such a part."""
        instruction = self._speaking(step.place)
        return instruction is not None and part in instruction.opcode.split(".")

    def _overtake(self, step: _Step) -> None:
        """A thread takes a step: what it has put off of the same bytes is overtaken."""
        front = self._in_front(step)
        for each in front:
            releases = self._releases(each)
            if releases:
                self._release_early(each)
            mine = self._late[step.lane]
            mine[mine.index(each)] = replace(each, overtaken=True, released=each.released or releases)
        # Under others the atomic might have to acquire what the thread has contradicted since.
        if any(each.acquired and each.move.footprint.writes for each in front):
            self._machine.strong.come_last(step.lane)

    def _release_early(self, late: _Step) -> None:
        instruction, deferred = self._speaking(late.place), late.deferred
        assert instruction is not None
        assert deferred is not None
        opcode = memory_opcode(instruction.opcode)
        assert opcode is not None
        elements = self._keys(late.move.footprint)[:: opcode.size]
        self._machine.strong.release_early(late.lane, elements, opcode.size, scope_of(instruction), deferred)

    def _may_cross(self, step: _Step, late: _Step) -> bool:
        """Whether what a thread has put off may pass a step that orders: it may still acquire nothing there."""
        machine, scope = self._machine, self._acquired_by_fence(step)
        return (
            step.place in self._windows.wider(late.place).crossings
            and machine.ctas == machine.launch.grid.count
            and (not scope or (not self._is_parted(late) and self._reads_nothing(step.lane, late, scope)))
        )

    def _come(self, lane: int, place: int, turn: int) -> None:
        """A lane is about to communicate. It polled if it has lost a turn since it did so last."""
        last = self._last.get(lane)
        self._ahead[lane] = _Step(lane, place, turn, Move((lane, place), self._footprint(place, lane)))
        if last is not None and turn > last.turn:
            self._polling[lane] = last.move.footprint

    def places(self) -> dict[int, Array]:
        """The lanes that are about to communicate at each place, bool [lanes]."""
        found: dict[int, Array] = {}
        for step in (*self._ahead.values(), *self._held.values()):
            found.setdefault(step.place, np.zeros(self._machine.lanes, bool))[step.lane] = True
        return found

    def give_back(self) -> None:
        """All lanes are where they would be without this."""
        for late in self._late.values():
            while late:
                self._happen(late[0], self._mask(late[0].lane))
        for step in (*self._ahead.values(), *self._held.values()):
            self._queues.arrive(step.place, step.turn, self._mask(step.lane))
        if self._machine.strong is not None:
            self._machine.strong.forget()
        for lanes in (self._late, self._ahead, self._held):
            lanes.clear()

    def _choose(self, ready: list[_Step]) -> _Step:
        choose = getattr(self._choices, "next", None)
        if choose is not None:
            chosen = choose([step.move for step in ready])
            return next(step for step in ready if step.move is chosen)
        number: int = self._choices.below(len(ready))
        return ready[number]

    def _is_own(self, instruction: Instruction | None, lanes: Sequence[int]) -> bool:
        """Whether it is a fence, and does nothing but to its own thread: not one of those that have one order, unless
        each of `lanes` is alone in its scope.
        """
        if instruction is None:
            return False
        if scope := sequential_scope(instruction):
            return all(scope <= self._machine.alone(lane) for lane in lanes)
        return instruction.opcode.startswith("fence.")

    def _speaking(self, place: int) -> Instruction | None:
        return next((each for each in self._code.program.blocks[place].instructions if communicates(each)), None)

    def _tell(self, place: int, lanes: Array) -> Array:
        """Those of `lanes`, bool, that are at a place, by whose step there others may tell when it happens."""
        instruction = self._speaking(place)
        if instruction is None:
            return np.zeros(self._machine.lanes, bool)
        told = np.ones(self._machine.lanes, bool)
        guard = instruction.guard
        if guard is not None and guard.name in self._code.homes:
            told = self._machine.home(guard.name).reshape(-1).astype(bool) ^ instruction.negated
        own = self._is_own(instruction, np.flatnonzero(lanes).tolist())
        if own and not any(each.passes or each.released for mine in self._late.values() for each in mine):
            # But it does not pass what its thread has put off by itself, nor come while another one has passed it.
            told &= np.isin(np.arange(told.size), [lane for lane, mine in self._late.items() if mine])
        return told

    # What a step touches

    def _footprint(self, place: int, lane: int) -> Footprint:
        instruction = self._speaking(place)
        assert instruction is not None
        stem = instruction.opcode.split(".")[0]
        if stem in ("fence", "membar"):
            return Footprint("fence", lane, 0, 1, writes=False) if self._is_own(instruction, [lane]) else _EVERYTHING
        if stem == "mbarrier":
            return self._of(instruction, lane, "shared", _BARRIER_BYTES, writes=True)
        opcode = memory_opcode(instruction.opcode)
        if opcode is None:
            return _EVERYTHING
        return self._of(instruction, lane, opcode.space, opcode.size * opcode.count, writes=opcode.stem != "ld")

    def _of(self, instruction: Instruction, lane: int, space: str, width: int, writes: bool) -> Footprint:
        operand = next((each for each in instruction.operands if isinstance(each, Address)), None)
        if operand is None or space not in ("global", "shared"):
            return _EVERYTHING
        base: int | None = None
        if isinstance(operand.base, Register):
            if operand.base.name in self._code.homes:
                base = int(self._machine.home(operand.base.name).reshape(-1)[lane])
        elif isinstance(operand.base, Symbol):
            held = self._machine.addresses.get(operand.base.name)
            if held is None:
                held = self._code.layout.addresses.get(operand.base.name)
            base = None if held is None else int(held)
        if base is None:
            return _EVERYTHING
        begin = base + operand.offset
        if space == "shared" and begin >> RANK_SHIFT:
            return _EVERYTHING
        owner = int(self._machine.lane_cta[lane]) if space == "shared" else -1
        return Footprint(space, owner, begin, begin + width, writes)
