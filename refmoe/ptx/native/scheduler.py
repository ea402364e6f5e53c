"""The scheduler of one machine's warps as native code: which block a warp runs next.

Each warp has a queue of groups of lanes, each at one place. The group with the lowest (turn, place) runs, as described
in `refmoe.ptx.engine.machine`. The warps of a CTA take turns, until the group that comes next in each is at a place of
Python's.

    advance(context) -> status      run all warps until each has to wait for Python, see `SchedulerStatus`
    pick(context, masks) -> key     take the groups of the lowest (turn, place) out of the queues; NOBODY if there are
                                    none
    begin(context, masks)           the warps stand at the start of these lanes' entry
    arrive(context, key, masks)     lanes come to a place, or wait there if the key says so
    wake(context, masks)            waiting groups that have lanes of the masks may look again
    each(function, table, context, warps, masks, count, taken) -> status     run one piece for some warps

Under a schedule (`refmoe.ptx.schedule`) `advance_scheduled` and `pick_scheduled` take their place: another place counts
as the lowest, some warps may not run, a warp may run ahead of others, and lanes of a warp may part.

`masks` and `taken` are uint32, one for each warp of the machine, or for `each` one for each of `count` warps.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from typing import Any

from llvmlite import ir

from refmoe.native.compiler import Native
from refmoe.native.expressions import I1, I32, I64, POINTER, Code, Loop, Value, vector
from refmoe.ptx.native.context import (
    EDGE_BITS,
    FIELD_BYTES,
    MASKS,
    NOBODY,
    QUEUE_FIELDS,
    TURN,
    WAITING,
    Context,
    Edge,
    End,
    Meeting,
    Place,
    Queue,
)
from refmoe.ptx.native.scalar import FAILED, PIECE, PLACE_SHIFT, call_pointer
from refmoe.ptx.ops.lanes import LANES

# Back edges of an ordinary loop before its lanes lose a turn: it may wait for a plain load after all.
PATIENCE = 256
_PLACE_ROW = len(Place) * FIELD_BYTES
_QUEUE = QUEUE_FIELDS * FIELD_BYTES


class SchedulerStatus(IntEnum):
    """How a call ended."""

    DONE = 0
    FAILED = 1
    """Python code that was called raised."""
    SPENT = 2
    """A warp has run as many blocks as it may."""


class SchedulerFunctions:
    """The functions of the module, called with addresses."""

    def __init__(self) -> None:
        self._native = Native.of(_text, "scheduler", level=2, briefly=True)
        pointer, number, key = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self.advance = self._function("advance", number, pointer)
        self.advance_scheduled = self._function("advance_scheduled", number, pointer)
        self.pick = self._function("pick", key, pointer, pointer)
        self.pick_scheduled = self._function("pick_scheduled", key, pointer, pointer)
        self.begin = self._function("begin", None, pointer, pointer)
        self.arrive = self._function("arrive", None, pointer, key, pointer)
        self.wake = self._function("wake", None, pointer, pointer)
        self.each = self._function("each", number, pointer, pointer, pointer, pointer, pointer, key, pointer)

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(self._native.address(name))


@cache
def functions() -> SchedulerFunctions:
    """The one instance, made when first asked for."""
    return SchedulerFunctions()


def _text() -> str:
    module = ir.Module()
    arrival = _arrival(module)
    # Under the default schedule nothing is asked that only others need.
    for scheduled in (False, True):
        prepare, step = _prepare(module, scheduled), _step(module, arrival, scheduled)
        _advance(module, prepare, step, scheduled)
        _pick(module, scheduled)
    _begin(module)
    _arrive(module, arrival)
    _wake(module)
    _each(module)
    return str(module)


# Tables


def _at(table: Value, index: Value | int, first: IntEnum | int = 0) -> Value:
    """The address of a field."""
    if isinstance(index, int):
        return table + (index + int(first)) * FIELD_BYTES
    return table + int(first) * FIELD_BYTES + index * FIELD_BYTES


def _field(code: Code, table: Value, number: IntEnum) -> Value:
    return code.load(I64, _at(table, 0, number), align=8)


def _set(code: Code, table: Value, number: IntEnum, value: Value | int) -> None:
    held = code.constant(I64, value) if isinstance(value, int) else value
    code.store(held, _at(table, 0, number), align=8)


def _add(code: Code, table: Value, number: IntEnum, value: Value | int) -> None:
    _set(code, table, number, _field(code, table, number) + value)


def _table(code: Code, context: Value, number: Context) -> Value:
    return code.load(POINTER, _at(context, 0, number), align=8)


def _queue(code: Code, context: Value, warp: Value) -> Value:
    return _table(code, context, Context.QUEUES) + warp * _QUEUE


def _mask(code: Code, masks: Value, warp: Value) -> Value:
    """The mask of a warp, 64 bits wide."""
    return code.load(I32, masks + warp * 4, align=4).to(I64, signed=False)


def _key(code: Code, queue: Value, group: Value) -> Value:
    return code.load(I64, _at(queue, group, Queue.KEYS), align=8)


def _lanes(code: Code, queue: Value, group: Value) -> Value:
    return code.load(I64, _at(queue, group, MASKS), align=8)


def _put(code: Code, queue: Value, group: Value, key: Value, lanes: Value) -> None:
    code.store(key, _at(queue, group, Queue.KEYS), align=8)
    code.store(lanes, _at(queue, group, MASKS), align=8)


def _remove(code: Code, queue: Value, group: Value) -> None:
    """Take a group out: the last one takes its place."""
    last = _field(code, queue, Queue.COUNT) - 1
    _put(code, queue, group, _key(code, queue, last), _lanes(code, queue, last))
    _set(code, queue, Queue.COUNT, last)


# Functions that others call


def _arrival(module: Any) -> Any:
    """`arrival(queue, key, lanes)`: lanes of a warp come to a place, and join those that are there or wait there."""
    code = Code(module, "arrival", [POINTER, I64, I64], inner=True)
    queue, key, lanes = code.arguments
    count = _field(code, queue, Queue.COUNT)
    group = code.variable(I64, 0)
    with code.loop() as search:
        at = group.get()
        search.leave_if((at < count) ^ True)
        there = _key(code, queue, at)
        with code.when(((there ^ key) & (TURN - 1)).equals(0)):
            # Those who come wake those who wait. Of two that may run both have lost as many turns as one of them.
            waits = (code.max(there, key) < WAITING) ^ True
            joined = code.select(waits, code.min(there, key), code.max(there, key), I64)
            _put(code, queue, at, joined, _lanes(code, queue, at) | lanes)
            code.build.ret_void()
        group.set(at + 1)
    _put(code, queue, count, key, lanes)
    _set(code, queue, Queue.COUNT, count + 1)
    code.done()
    return code.function


def _named(name: str, scheduled: bool) -> str:
    return f"{name}_scheduled" if scheduled else name


def _ranked(code: Code, context: Value, key: Value, scheduled: bool) -> Value:
    """A key as it is compared: the lowest one comes first. What waits stays the highest."""
    return key ^ _field(code, context, Context.PREFERENCE) if scheduled else key


def _prepare(module: Any, scheduled: bool) -> Any:
    """`prepare(context, warp)`: choose the group of a warp that comes next, and say whether it can run natively."""
    code = Code(module, _named("prepare", scheduled), [POINTER, I64], inner=True)
    context, warp = code.arguments
    queue, places = _queue(code, context, warp), _table(code, context, Context.PLACES)
    _set(code, queue, Queue.NEXT, WAITING)
    with code.loop() as turns:
        if scheduled:
            _set(code, queue, Queue.CHOSEN, NOBODY)
            turns.leave_if(_field(code, queue, Queue.HELD).differs(0))
        group = _choose(code, context, queue, scheduled)
        _set(code, queue, Queue.CHOSEN, group)
        turns.leave_if(group < 0)
        key = _key(code, queue, group)
        place = places + (key & (TURN - 1)) * _PLACE_ROW
        turns.leave_if(_field(code, place, Place.FUNCTION).equals(0))
        _gather(code, turns, context, warp, queue, group)
        impatient = (_field(code, queue, Queue.PATIENCE) > 0) ^ True
        with code.when(impatient, likely=False):
            _set(code, queue, Queue.CHOSEN, NOBODY)
            _set(code, context, Context.YIELDED, 1)
            turns.leave_if(code.constant(I1, 1))
        _set(code, queue, Queue.NEXT, key)
        turns.leave_if(code.constant(I1, 1))
    code.done()
    return code.function


def _step(module: Any, arrival: Any, scheduled: bool) -> Any:
    """`step(context, warp) -> status`: run the chosen group of a warp through its block, and those that follow it."""
    code = Code(module, _named("step", scheduled), [POINTER, I64], inner=True, result=I32)
    context, warp = code.arguments
    queue, places = _queue(code, context, warp), _table(code, context, Context.PLACES)
    key = _field(code, queue, Queue.NEXT)
    place = places + (key & (TURN - 1)) * _PLACE_ROW
    if scheduled:
        _split(code, queue, key, place)
    group = _field(code, queue, Queue.CHOSEN)
    lanes = _lanes(code, queue, group)
    ran, steps = _field(code, queue, Queue.RAN), _field(code, context, Context.STEPS)
    code.done_if((ran < _field(code, context, Context.BUDGET)) ^ True, code.constant(I32, SchedulerStatus.SPENT))
    _set(code, context, Context.PATIENCE, _field(code, queue, Queue.PATIENCE))
    function = code.load(POINTER, _at(place, 0, Place.FUNCTION), align=8)
    table = code.load(POINTER, _at(place, 0, Place.TABLE), align=8)
    held = [context.held, warp.held, lanes.to(I32).held, table.held]
    found = Value(code, call_pointer(code.build, function.held, PIECE, held))
    code.done_if((found & FAILED).differs(0), code.constant(I32, SchedulerStatus.FAILED))
    _set(code, queue, Queue.RAN, ran + _field(code, context, Context.STEPS) - steps)
    _set(code, queue, Queue.PATIENCE, _field(code, context, Context.PATIENCE))
    last = places + (found >> PLACE_SHIFT) * _PLACE_ROW
    _end(code, _Going(code, context, arrival, queue, group, key), last, lanes, found & 0xFFFFFFFF)
    # A block that went on by itself may have run more than one.
    spent = _field(code, queue, Queue.RAN) > _field(code, context, Context.BUDGET)
    code.done_if(spent, code.constant(I32, SchedulerStatus.SPENT))
    code.done(code.constant(I32, SchedulerStatus.DONE))
    return code.function


def _split(code: Code, queue: Value, key: Value, place: Value) -> None:
    """Some lanes of the chosen group become a group of their own, which is chosen now; the next time the others do.

    Those that stay keep their turn. Lanes that come round to them in a polling loop join them in the turn that these
    have by then, so the loop starves nobody.
    """
    group, split = _field(code, queue, Queue.CHOSEN), _field(code, queue, Queue.SPLIT)
    lanes = _lanes(code, queue, group)
    first = lanes & split
    parts = first.differs(0) & first.differs(lanes) & _field(code, place, Place.GATHER).equals(Meeting.NONE)
    with code.when(parts):
        count = _field(code, queue, Queue.COUNT)
        _put(code, queue, group, key, lanes & (split ^ -1))
        _put(code, queue, count, key, first)
        _set(code, queue, Queue.COUNT, count + 1)
        _set(code, queue, Queue.CHOSEN, count)
        _set(code, queue, Queue.SPLIT, split ^ 0xFFFFFFFF)


def _choose(code: Code, context: Value, queue: Value, scheduled: bool) -> Value:
    """The group with the lowest (turn, place) of those that do not wait, or NOBODY."""
    best, chosen = code.variable(I64, WAITING), code.variable(I64, NOBODY)
    with code.range(_field(code, queue, Queue.COUNT)) as group:
        key = _ranked(code, context, _key(code, queue, group), scheduled)
        lower = key < best.get()
        best.set(code.select(lower, key, best.get()))
        chosen.set(code.select(lower, group, chosen.get()))
    return chosen.get()


def _gather(code: Code, turns: Loop, context: Value, warp: Value, queue: Value, group: Value) -> None:
    """Let a group wait at a warp-level instruction until all living lanes of its mask are there.

    Python decides where lanes have different masks, are not in their own, or meet at different places.
    """
    key, lanes = _key(code, queue, group), _lanes(code, queue, group)
    place = _table(code, context, Context.PLACES) + (key & (TURN - 1)) * _PLACE_ROW
    kind = _field(code, place, Place.GATHER)
    with code.when(kind.differs(Meeting.NONE)):
        members = code.variable(I64, _field(code, place, Place.MEMBERS))
        with code.when((kind & 1).equals(0)):
            offset = warp * _field(code, context, Context.WARP_BYTES) + members.get()
            registers = _table(code, context, Context.REGISTERS) + offset
            first = code.load(I32, registers + _lowest(code, lanes) * 4, align=4)
            differs = code.load(vector(I32, LANES), registers, align=32).differs(first.lanes(LANES))
            turns.leave_if((differs.as_bits(I32).to(I64, signed=False) & lanes).differs(0))
            members.set(first.to(I64, signed=False))
        turns.leave_if((lanes & (members.get() ^ -1)).differs(0))
        missing = members.get() & _field(code, queue, Queue.ALIVE) & (lanes ^ -1)
        with code.when(missing.differs(0)):
            turns.leave_if(kind > Meeting.REGISTER)
            _put(code, queue, group, (key & (TURN - 1)) | WAITING, lanes)
            turns.again_if(code.constant(I1, 1))


def _lowest(code: Code, lanes: Value) -> Value:
    """The number of the lowest lane of a mask that is not 0."""
    return Value(code, code.build.cttz(lanes.held, code.constant(I1, 1).held))


class _Going:
    """How a group leaves a place."""

    def __init__(self, code: Code, context: Value, arrival: Any, queue: Value, group: Value, key: Value) -> None:
        self.code, self.context, self.arrival = code, context, arrival
        self.queue, self.group, self.key = queue, group, key

    def turned(self, target: Value, edges: Value) -> Value:
        """The key of lanes that go on at `target`, by an edge of which `edges` tells in its lowest bits."""
        code = self.code
        turn = code.variable(I64, self.key & -TURN)
        polls, back = (edges & Edge.POLLS).differs(0), (edges & Edge.BACK).differs(0)
        with code.when(back):
            patience = code.select(polls, 0, _field(code, self.queue, Queue.PATIENCE) - 1, I64)
            _set(code, self.queue, Queue.PATIENCE, patience)
            turn.set(code.select(patience.equals(0), turn.get() + TURN, turn.get()))
            with code.when(polls):
                _set(code, self.context, Context.POLLED, 1)
        return turn.get() + target

    def together(self, target: Value, edges: Value, lanes: Value) -> None:
        """The whole group goes on."""
        code, key = self.code, self.turned(target, edges)
        alone = _field(code, self.queue, Queue.COUNT).equals(1)
        with code.when(alone):
            code.store(key, _at(self.queue, self.group, Queue.KEYS), align=8)
        with code.when(alone ^ True):
            _remove(code, self.queue, self.group)
            code.call(self.arrival, self.queue, key, lanes)

    def apart(self, target: Value, edges: Value, lanes: Value) -> None:
        """A part of a group that is no longer in the queue goes on."""
        self.code.call(self.arrival, self.queue, self.turned(target, edges), lanes)


def _end(code: Code, going: _Going, place: Value, lanes: Value, taken: Value) -> None:
    """The lanes of a block leave it."""
    end, edges, queue = _field(code, place, Place.END), _field(code, place, Place.EDGES), going.queue
    target, other = _field(code, place, Place.TARGET), _field(code, place, Place.OTHER)
    leave = code.build.append_basic_block("left")
    with code.when(end.equals(End.EXIT)):
        _remove(code, queue, going.group)
        _set(code, queue, Queue.ALIVE, _field(code, queue, Queue.ALIVE) & (lanes ^ -1))
        _set(code, going.context, Context.EXITED, 1)
        _wake_groups(code, queue, code.constant(I64, -1))
        code.build.branch(leave)
    all_take = end.equals(End.JUMP) | taken.equals(lanes)
    with code.when(all_take):
        going.together(target, edges, lanes)
        code.build.branch(leave)
    with code.when(taken.equals(0)):
        going.together(other, edges >> EDGE_BITS, lanes)
        code.build.branch(leave)
    _remove(code, queue, going.group)
    going.apart(target, edges, taken)
    going.apart(other, edges >> EDGE_BITS, lanes & (taken ^ -1))
    code.build.branch(leave)
    code.build.position_at_end(leave)


def _wake_groups(code: Code, queue: Value, lanes: Value) -> None:
    """The waiting groups of a warp that have some of these lanes go on."""
    with code.range(_field(code, queue, Queue.COUNT)) as group:
        key, own = _key(code, queue, group), _lanes(code, queue, group)
        wakes = (key > WAITING - 1) & (own & lanes).differs(0)
        _put(code, queue, group, code.select(wakes, key & (TURN - 1), key), own)


# Functions that Python calls


def _advance(module: Any, prepare: Any, step: Any, scheduled: bool) -> None:
    """CTA after CTA. Its warps take turns at the lowest place, so that they stay together as far as they can."""
    code = Code(module, _named("advance", scheduled), [POINTER], result=I32)
    (context,) = code.arguments
    if scheduled:
        with code.when(_field(code, context, Context.TURN_BLOCKS).differs(0)):
            _advance_in_turns(code, context, prepare, step)
            code.done(code.constant(I32, SchedulerStatus.DONE))
            code.build.position_at_end(code.build.append_basic_block("dead"))
    warps = _field(code, context, Context.WARPS)
    with code.range(_field(code, context, Context.ALL_WARPS).quotient(warps)) as cta:
        first = cta * warps
        with code.range(warps) as number:
            _set(code, _queue(code, context, first + number), Queue.PATIENCE, PATIENCE)
            code.call(prepare, context, first + number)
        with code.loop() as turns:
            best = code.variable(I64, WAITING)
            with code.range(warps) as number:
                next_ = _field(code, _queue(code, context, first + number), Queue.NEXT)
                best.set(code.min(best.get(), _ranked(code, context, next_, scheduled)))
            turns.leave_if(best.get().equals(WAITING))
            lowest = _ranked(code, context, best.get(), scheduled)
            with code.range(warps) as number:
                warp = first + number
                next_ = _field(code, _queue(code, context, warp), Queue.NEXT)
                here = next_.differs(WAITING) & ((next_ ^ lowest) & (TURN - 1)).equals(0)
                with code.when(here):
                    status = code.call(step, context, warp)
                    code.done_if(status.differs(SchedulerStatus.DONE), status)
                    code.call(prepare, context, warp)
    code.done(code.constant(I32, SchedulerStatus.DONE))


def _advance_in_turns(code: Code, context: Value, prepare: Any, step: Any) -> None:
    """Warp after warp, in the order of the table, each for so many blocks as are drawn for its turn."""
    order, warps = _table(code, context, Context.ORDER), _field(code, context, Context.ALL_WARPS)
    with code.range(warps) as number:
        warp = code.load(I64, _at(order, number), align=8)
        _set(code, _queue(code, context, warp), Queue.PATIENCE, PATIENCE)
        code.call(prepare, context, warp)
    with code.loop() as rounds:
        ran = code.variable(I64, 0)
        with code.range(warps) as number:
            warp = code.load(I64, _at(order, number), align=8)
            left = code.variable(I64, _drawn(code, context))
            with code.loop() as turn:
                turn.leave_if(_field(code, _queue(code, context, warp), Queue.NEXT).equals(WAITING))
                turn.leave_if(left.get() < 1)
                status = code.call(step, context, warp)
                code.done_if(status.differs(SchedulerStatus.DONE), status)
                code.call(prepare, context, warp)
                left.set(left.get() - 1)
                ran.set(ran.get() | 1)
        rounds.leave_if(ran.get().equals(0))


def _drawn(code: Code, context: Value) -> Value:
    """1 to `TURN_BLOCKS`, by Knuth's linear congruential generator (MMIX)."""
    state = _field(code, context, Context.RANDOM) * 6364136223846793005 + 1442695040888963407
    _set(code, context, Context.RANDOM, state)
    return ((state >> 33) * _field(code, context, Context.TURN_BLOCKS) >> 31) + 1


def _pick(module: Any, scheduled: bool) -> None:
    code = Code(module, _named("pick", scheduled), [POINTER, POINTER], result=I64)
    context, masks = code.arguments
    warps = _field(code, context, Context.ALL_WARPS)
    best = code.variable(I64, WAITING)
    with code.range(warps) as warp:
        queue = _queue(code, context, warp)
        chosen = _field(code, queue, Queue.CHOSEN)
        with code.when(chosen > NOBODY):
            best.set(code.min(best.get(), _ranked(code, context, _key(code, queue, chosen), scheduled)))
    code.done_if(best.get().equals(WAITING), code.constant(I64, NOBODY))
    lowest = _ranked(code, context, best.get(), scheduled)
    with code.range(warps) as warp:
        queue = _queue(code, context, warp)
        chosen = _field(code, queue, Queue.CHOSEN)
        found = code.variable(I64, 0)
        with code.when(chosen > NOBODY):
            key = _key(code, queue, chosen)
            with code.when(((key ^ lowest) & (TURN - 1)).equals(0)):
                found.set(_lanes(code, queue, chosen))
                _add(code, queue, Queue.RAN, 1)
                _remove(code, queue, chosen)
                _set(code, queue, Queue.CHOSEN, NOBODY)
        code.store(found.get().to(I32), masks + warp * 4, align=4)
    code.done(lowest)


def _begin(module: Any) -> None:
    code = Code(module, "begin", [POINTER, POINTER])
    context, masks = code.arguments
    with code.range(_field(code, context, Context.ALL_WARPS)) as warp:
        queue, lanes = _queue(code, context, warp), _mask(code, masks, warp)
        for number in list(Queue)[: Queue.KEYS]:
            _set(code, queue, number, lanes if number in (Queue.ALIVE, Queue.EXIST) else 0)
        with code.when(lanes.differs(0)):
            none = code.constant(I64, 0)
            _put(code, queue, none, none, lanes)
            _set(code, queue, Queue.COUNT, 1)
    code.done()


def _arrive(module: Any, arrival: Any) -> None:
    code = Code(module, "arrive", [POINTER, I64, POINTER])
    context, key, masks = code.arguments
    with code.range(_field(code, context, Context.ALL_WARPS)) as warp:
        lanes = _mask(code, masks, warp)
        with code.when(lanes.differs(0)):
            code.call(arrival, _queue(code, context, warp), key, lanes)
    code.done()


def _wake(module: Any) -> None:
    code = Code(module, "wake", [POINTER, POINTER])
    context, masks = code.arguments
    with code.range(_field(code, context, Context.ALL_WARPS)) as warp:
        _wake_groups(code, _queue(code, context, warp), _mask(code, masks, warp))
    code.done()


def _each(module: Any) -> None:
    code = Code(module, "each", [POINTER, POINTER, POINTER, POINTER, POINTER, I64, POINTER], result=I32)
    function, table, context, warps, masks, count, taken = code.arguments
    with code.range(count) as number:
        warp, lanes = _mask(code, warps, number), code.load(I32, masks + number * 4, align=4)
        held = [context.held, warp.held, lanes.held, table.held]
        found = Value(code, call_pointer(code.build, function.held, PIECE, held))
        code.done_if((found & FAILED).differs(0), code.constant(I32, SchedulerStatus.FAILED))
        code.store(found.to(I32), taken + number * 4, align=4)
    code.done(code.constant(I32, SchedulerStatus.DONE))
