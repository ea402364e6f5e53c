"""The machine as native code sees it: registers in one block of memory, and the tables of `context`."""

from __future__ import annotations

import ctypes
from operator import is_
from typing import Any

import numpy as np

from refmoe.native.addresses import address
from refmoe.ptx.engine.code import Code
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.slow import looks_for_unwritten
from refmoe.ptx.isa import DTYPES
from refmoe.ptx.native import order as accesses
from refmoe.ptx.native.context import (
    HOME_BYTES,
    LOCAL_ROW,
    MASKS,
    NOBODY,
    QUEUE_FIELDS,
    SHARED_ROW,
    SLOW,
    TURN,
    WAITING,
    Context,
    End,
    Place,
    Queue,
    Row,
    starts,
)
from refmoe.ptx.native.kernel import PieceCode
from refmoe.ptx.native.scheduler import SchedulerStatus, functions
from refmoe.ptx.program.unwritten import CANARIES
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.pages import Spare
from refmoe.ptx.state.spaces import LOCAL_WINDOW, SHARED_WINDOW

Array = Any
_ALIGN = 256
_LANES = 32
# Of machines that have ended: fresh pages would cost more than what runs on them.
_REGISTERS = Spare()
# Blocks that a warp may run in a launch without a limit.
_ENDLESS = 1 << 62
# What native code counts from zero in each call.
_NOTHING = np.zeros(Context.EXITED + 1 - Context.STEPS, np.int64).data


class NativeState:
    """Registers and tables of one machine.

    Attributes:
        registers: an array [warps, 32] for each home.
        memory: in which they lie.
        error: what Python code that native code called raised, or None.
        yielded: whether warps may go on natively that did not yet.
    """

    def __init__(self, machine: Lanes, code: Code) -> None:
        lanes = machine.lanes
        self.machine = machine
        self.code = code
        self.error: BaseException | None = None
        self.yielded = False
        begins = starts(code.kinds)
        specials = code.kernel.specials
        size = (begins[-1] + 4 * len(specials)) * lanes
        spare = _REGISTERS.take(size + _ALIGN)
        self.memory = np.zeros(size + _ALIGN, np.uint8) if spare is None else spare
        start = -address(self.memory) % _ALIGN
        block = self.memory[start : start + size]
        # Of each warp its homes, one behind the other.
        rows = block.reshape(lanes // _LANES, -1)
        self.registers = [
            rows[:, begin * _LANES : (begin + HOME_BYTES[kind]) * _LANES].view(DTYPES[kind])
            for begin, kind in zip(begins, code.kinds, strict=False)
        ]
        # What changes while lanes run: predefined registers do not.
        self._changing = rows[:, : begins[-1] * _LANES]
        self._specials = {
            name: rows[:, begin * _LANES : (begin + 4) * _LANES].view(np.uint32)
            for name, begin in zip(specials, range(begins[-1], begins[-1] + 4 * len(specials), 4), strict=True)
        }
        # Names of those that lie there.
        self._filled: set[str] = set()
        self._regions = [machine.shared, machine.local, *machine.arena.regions]
        self._entered: list[tuple[Any, ...]] = [()] * len(self._regions)
        self._rows = np.zeros((len(self._regions), len(Row)), np.int64)
        self._context = np.zeros(len(Context), np.int64)
        self._fields = self._context.data
        self._address = address(self._context)
        self._queues = np.zeros((lanes // _LANES, QUEUE_FIELDS), np.int64)
        self._masks = np.zeros(lanes // _LANES, np.uint32)
        # NumPy takes as long to say where an array lies as native code does to use it.
        self._masks_address = address(self._masks)
        self._existing = _bits(machine.exist)
        self._existing_address = address(self._existing)
        self._row_addresses = {id(region): address(row) for region, row in zip(self._regions, self._rows, strict=True)}
        self._pool: Array = None
        scheduler = self._scheduler = functions()
        scheduled = not machine.launch.schedule.default
        self._advance = scheduler.advance_scheduled if scheduled else scheduler.advance
        self._pick = scheduler.pick_scheduled if scheduled else scheduler.pick
        self._symbols = np.array([int(machine.addresses[name]) for name in code.kernel.symbols], np.int64)
        self._approximate = np.zeros(max(len(code.approximate), 1), np.uint8)
        self._slow = SLOW(self._access)
        self._fill(block)
        self.restart()

    def restart(self) -> None:
        """The machine became other CTAs, see `Machine.restart`."""
        if self.code.reads_unwritten:
            self._changing[:] = 0
        if self._context[Context.LOOK_UNWRITTEN]:
            for number, kind in self.code.unwritten:
                if kind != "pred":
                    self.registers[number][:] = CANARIES[kind]
        self._start()

    def _start(self) -> None:
        """What depends on which CTAs these are, and where their lanes begin."""
        machine, context = self.machine, self._context
        specials = machine.specials
        for name, held in self._specials.items():
            if name in specials.by_cta:
                held.reshape(machine.ctas, machine.warps, _LANES)[:] = specials.by_cta[name][:, None, None]
            elif name not in self._filled:
                # What is the same for all CTAs lies there since the machine's first ones.
                value = specials[name]
                held[:] = value.reshape(-1, _LANES) if np.ndim(value) else value
                self._filled.add(name)
        self._scheduler.begin(self._address, self._existing_address)
        context[Context.FIRST_THREAD] = machine.first_thread
        if machine.clocks is not None:
            context[Context.FIRST_WARP] = machine.clocks.first_warp

    def enter(self) -> None:
        """These CTAs run from now on: tell native code where everything lies."""
        for number, region in enumerate(self._regions):
            self._enter(number, region)

    def _fill(self, block: Array) -> None:
        machine, context = self.machine, self._context
        shared_offset = np.arange(machine.lanes // 32) // machine.warps * machine.shared.stride
        self._shared_offset = shared_offset.astype(np.int64)
        context[Context.REGISTERS] = address(block)
        context[Context.WARP_BYTES] = block.size // (machine.lanes // _LANES)
        context[Context.SLOW] = ctypes.cast(self._slow, ctypes.c_void_p).value or 0
        context[Context.SYMBOLS] = address(self._symbols)
        context[Context.APPROXIMATE] = address(self._approximate)
        context[Context.REGIONS] = address(self._rows)
        context[Context.REGION_COUNT] = len(self._rows)
        parameters = next((each for each in machine.arena.regions if each.space == "param"), None)
        context[Context.PARAMETERS] = 0 if parameters is None else address(parameters.data)
        context[Context.SHARED_OFFSET] = address(self._shared_offset)
        context[Context.REFUSE_UNWRITTEN] = machine.checks.uninitialised
        context[Context.LOOK_UNWRITTEN] = looks_for_unwritten(machine)
        # Those that know of each other, and take turns.
        context[Context.WARPS] = machine.warps * machine.launch.grid.cluster_blocks
        budget = machine.launch.step_budget
        context[Context.BUDGET] = _ENDLESS if budget is None else budget
        context[Context.ALL_WARPS] = len(self._queues)
        self._places = places_of(machine, self.code)
        context[Context.PLACES] = address(self._places)
        context[Context.QUEUES] = address(self._queues)
        context[Context.TURNS] = machine.clocks is None
        context[Context.ELECTED] = machine.launch.schedule.elected
        clocks = machine.clocks
        if clocks is not None:
            context[Context.SEEN] = address(clocks.seen)
            context[Context.SEEN_COLUMNS] = clocks.columns
            context[Context.APART] = address(clocks.apart)
            context[Context.FOREIGN] = address(clocks.foreign)
            context[Context.CTA_WARPS] = machine.warps
            context[Context.BY_LANE] = clocks.by_lane
            context[Context.BULK] = clocks.bulk

    def refresh(self, region: Region) -> None:
        """Enter a region as it is now."""
        number = next(i for i, each in enumerate(self._regions) if each is region)
        self._enter(number, region)

    def _enter(self, number: int, region: Region) -> None:
        shadow, first_warp = region.shadow, self.machine.first_thread // _LANES
        admitted = 0 if shadow is None else shadow.admitted(first_warp)
        # Most regions are for all CTAs of a launch what they were for the first ones.
        state = (
            region.data, region.valid, shadow, None if shadow is None else shadow.told, admitted,
            region.journal, region.watch,
            region.poisoned, region.writable, region.base, region.size, region.stride,
        )  # fmt: skip
        entered = self._entered[number]
        if len(entered) == len(state) and all(map(is_, entered, state)):
            return
        self._entered[number] = state
        row = self._rows[number]
        row[Row.BASE] = region.base + {SHARED_ROW: SHARED_WINDOW, LOCAL_ROW: LOCAL_WINDOW}.get(number, 0)
        row[Row.SIZE] = region.size
        row[Row.DATA] = address(region.data)
        row[Row.VALID] = 0 if region.valid is None else address(region.valid)
        row[Row.POISONED] = row[Row.VALID] if region.poisoned and not self.machine.checks.uninitialised else 0
        if region.journal is not None:
            row[Row.KEPT] = address(region.journal.kept)
            row[Row.BEFORE] = address(region.journal.before)
        row[Row.WRITABLE] = region.writable and region.space != "const" and region.watch is None
        row[Row.STRIDE] = region.stride if number == LOCAL_ROW else 0
        if shadow is not None:
            shadow.enter(row)
            row[Row.ADMITTED] = admitted

    def release(self) -> None:
        """Give the memory of the registers back, and that of regions, which may outlive this."""
        self._entered = [()] * len(self._regions)
        _REGISTERS.give(self.memory, self.memory.nbytes)

    def leave(self) -> None:
        """No lane of these CTAs runs any more."""
        self.machine.approximate.update(np.flatnonzero(self._approximate).tolist())

    def copy(self) -> Array:
        """The registers as they are now."""
        return self._changing.copy()

    # Where lanes are

    def advance(self) -> None:
        """Run all warps natively until each has to wait for Python.

        Raises:
            PtxError: what an access found.
        """
        machine, fields = self.machine, self._fields
        launch = machine.launch
        launch.clock += 1
        self._begin()
        status = self._advance(self._address)
        launch.steps += fields[Context.STEPS]
        launch.instructions += fields[Context.INSTRUCTIONS]
        launch.lane_instructions += fields[Context.LANE_INSTRUCTIONS]
        self._end(status == SchedulerStatus.FAILED)
        if status == SchedulerStatus.SPENT:
            raise machine.spent()
        self.yielded = bool(fields[Context.YIELDED])
        if fields[Context.POLLED]:
            machine.poll()
        if fields[Context.EXITED]:
            if np.count_nonzero(self._queues[:, Queue.ALIVE]):
                machine.leave(self.alive())
                # Those who waited at a barrier for the lanes that are gone may go on natively.
                self.yielded = True
            else:
                machine.leave(machine.nobody)
        fields[Context.STEPS : Context.EXITED + 1] = _NOTHING

    def pick(self) -> tuple[int, int, Array] | None:
        """Take the lanes that come next in Python: their turn, their place, and which they are, bool [lanes]."""
        key = self._pick(self._address, self._masks_address)
        if key == NOBODY:
            return None
        return key // TURN, key % TURN, _lanes_of(self._masks)

    def take(self, place: int, mask: Array) -> int:
        """Lanes of a place, bool [lanes], leave it to run it; returns the highest turn among them."""
        turn = 0
        for warp, lanes in enumerate(_bits(mask).tolist()):
            queue = self._queues[warp]
            for group in range(queue[Queue.COUNT]) if lanes else ():
                key = int(queue[Queue.KEYS + group])
                if key >= WAITING or key % TURN != place:
                    continue
                turn = max(turn, key // TURN)
                left = int(queue[MASKS + group]) & ~lanes
                if not left:
                    # Groups have no order: the last one takes its place.
                    last = queue[Queue.COUNT] = queue[Queue.COUNT] - 1
                    queue[Queue.KEYS + group], left = queue[Queue.KEYS + last], queue[MASKS + last]
                queue[MASKS + group] = left
                queue[Queue.RAN] += 1
                break
        return turn

    def order(self, warps: Array, blocks: int, preference: int, split: int, seed: int) -> None:
        """How warps take turns under a schedule.

        Args:
            warps: int64 [warps], in the order of their turns.
            blocks: most blocks of a turn; 0 for warps that stay together.
            preference: bits of places that are flipped before they are compared.
            split: lanes, a bit each, that run before the others of their warp.
            seed: of what draws the blocks of each turn, 64 bits.
        """
        self._order = np.ascontiguousarray(warps, np.int64)
        context = self._context
        context[Context.ORDER] = address(self._order)
        context[Context.TURN_BLOCKS] = blocks
        context[Context.PREFERENCE] = preference
        context[Context.RANDOM] = np.uint64(seed).astype(np.int64)
        self._queues[:, Queue.SPLIT] = split

    def hold(self, warps: Array) -> None:
        """Only warps at which bool [warps] is off may run."""
        self._queues[:, Queue.HELD] = warps

    def most_steps(self) -> int:
        """Of the warps: the blocks that the one ran that ran the most."""
        return int(self._queues[:, Queue.RAN].max())

    def arrive(self, place: int, turn: int, mask: Array, waits: bool = False) -> None:
        """Lanes come to a place. If they wait there they go on when others come, or by `wake`."""
        masks = _bits(mask)
        self._scheduler.arrive(self._address, WAITING + place if waits else turn * TURN + place, address(masks))

    def wake(self, mask: Array) -> None:
        """The waiting groups that have some of these lanes look again."""
        masks = _bits(mask)
        self._scheduler.wake(self._address, address(masks))

    def exit(self, mask: Array) -> None:
        """Lanes have exited."""
        self._queues[:, Queue.ALIVE] &= ~_bits(mask).astype(np.int64)

    def alive(self) -> Array:
        """The lanes that exist and have not exited, bool [lanes]."""
        return _lanes_of(self._queues[:, Queue.ALIVE].astype(np.uint32))

    def groups(self, waiting: bool) -> dict[int, Array]:
        """The lanes at each place, bool [lanes]: those that wait there, or those that may go on."""
        found: dict[int, Array] = {}
        for warp, queue in enumerate(self._queues):
            for group in range(queue[Queue.COUNT]):
                key, lanes = int(queue[Queue.KEYS + group]), int(queue[MASKS + group])
                if (key >= WAITING) == waiting:
                    masks = found.setdefault(key % TURN, np.zeros(len(self._queues), np.uint32))
                    masks[warp] = lanes
        return {place: _lanes_of(masks) for place, masks in sorted(found.items())}

    # Races

    def row_of(self, region: Region) -> Array:
        """The row of a region, see `Row`."""
        return next(row for row, each in zip(self._rows, self._regions, strict=True) if each is region)

    def orders(
        self, function: Any, region: Region, index: Array, lanes: Array, width: int, flags: np.int64
    ) -> accesses.OrderStatus:
        """See `Lanes.orders`."""
        self._begin()
        index, lanes = np.ascontiguousarray(index, np.int64), np.ascontiguousarray(lanes, np.int64)
        places = self._row_addresses[id(region)], address(index), address(lanes)
        return accesses.OrderStatus(function(self._address, *places, len(lanes), width, int(flags)))

    # One piece

    def run(self, piece: PieceCode, frame: Frame) -> Array:
        """Run a native piece for the lanes of a frame.

        Returns:
            The lanes that take the branch at its end, bool [lanes].

        Raises:
            PtxError: what an access found.
        """
        numbers, masks = frame.warps()
        taken = np.zeros(len(numbers), np.uint32)
        self._begin()
        # Python takes the lanes on from this block, so that the block must not go on by itself.
        self._fields[Context.PATIENCE] = 0
        failed = self._scheduler.each(
            *piece, self._address, address(numbers), address(masks), len(numbers), address(taken)
        )
        self._end(bool(failed))
        whole = np.zeros(len(self._queues), np.uint32)
        whole[numbers] = taken
        return _lanes_of(whole)

    def _begin(self) -> None:
        machine, fields = self.machine, self._fields
        fields[Context.NOW] = machine.launch.clock
        if machine.clocks is not None:
            self._find_pool(machine.clocks.pool.rows)

    def _find_pool(self, rows: Array) -> None:
        """The pool moves when it grows."""
        if rows is not self._pool:
            self._pool, self._fields[Context.POOL] = rows, address(rows)

    def _end(self, failed: bool) -> None:
        """What native code changed."""
        machine, fields = self.machine, self._fields
        machine.tick(fields[Context.NOW])
        changed, stored = fields[Context.CHANGED], fields[Context.STORED]
        if changed or stored:
            fields[Context.CHANGED] = fields[Context.STORED] = 0
            if changed:
                machine.progress()
            else:
                machine.stored()
        if failed:
            error, self.error = self.error, None
            assert error is not None
            raise error

    def _access(self, site: int, warp: int, mask: int, addresses: int, values: int) -> int:
        """An access of one warp, in Python."""
        try:
            self.machine.tick(self._fields[Context.NOW])
            self.code.sites[site](self.machine, warp, mask, addresses, values)
        except BaseException as error:
            # It goes on in `_end`: nothing can be raised through native code.
            self.error = error
            return 1
        self._fields[Context.NOW] = self.machine.launch.clock
        if self.machine.clocks is not None:
            self._find_pool(self.machine.clocks.pool.rows)
        return 0


def places_of(machine: Lanes, code: Code) -> Array:
    """The table of places: in clusters Python sees every exit, because others may still use the block's memory."""
    places: Array = code.places
    if machine.launch.grid.cluster_blocks > 1:
        places = places.copy()
        places[places[:, Place.END] == End.EXIT, Place.FUNCTION] = 0
    return places


def _bits(mask: Array) -> Array:
    """bool [lanes] to uint32 [warps], bit i for lane i."""
    return np.packbits(mask, bitorder="little").view(np.uint32)


def _lanes_of(masks: Array) -> Array:
    """uint32 [warps] to bool [lanes]."""
    return np.unpackbits(masks.view(np.uint8), bitorder="little").view(np.bool_)
