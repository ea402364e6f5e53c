"""The `mbarrier` objects of some CTAs: where each is in shared memory, and what is kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.loads_and_stores import Access
from refmoe.ptx.engine.order.clocks import LANES
from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.native.clocks import clear_rows
from refmoe.ptx.state.pages import PAGE, cleared, untouched
from refmoe.ptx.state.records import STEP_SHIFT, THREAD
from refmoe.ptx.state.spaces import OWN_BASE
from refmoe.ptx.text.syntax import Instruction

Array = Any
#: Of an object; it is aligned to as many.
OBJECT_BYTES = 8
# Both counts have 20 bits (PTX ISA, "Contents of the mbarrier object").
MOST = (1 << 20) - 1
_STEPS = 32
# Questions that are remembered: more than a loop has.
_REMEMBERED = 64


@dataclass(frozen=True)
class _Lookup:
    """Objects that lanes asked for, whose initialisation is ordered before all that these lanes do from then on.

    Attributes:
        access: by which they asked; it is kept, so that nothing else gets its identity.
        address: of each lane.
        lanes: that asked.
        slots: of shared memory.
        ids: what was found there.
    """

    access: Access
    address: Array
    lanes: Array
    slots: Array
    ids: Array

    def again(self, address: Array, lanes: Array) -> bool:
        """Whether the same lanes ask for the same."""
        # NumPy takes ten times as long to compare a warp's numbers.
        same: bool = lanes.tobytes() == self.lanes.tobytes() and address.tobytes() == self.address.tobytes()
        return same


class MbarrierTable:
    """The objects, numbered from 1 in the order of their initialisation. A column for each thing that is known of them.

    Args:
        machine: the lanes.
        invalidates: whether there are `mbarrier.inval`: then the uses of objects are kept.
    """

    def __init__(self, machine: Lanes, invalidates: bool) -> None:
        self.machine = machine
        # Lanes that may use an object, if it is asked who has.
        self._users = LANES * machine.clocks.warps if invalidates and machine.clocks is not None else 0
        self._numbers: Array = None
        # Slots that have an object, in order.
        self._live = np.zeros(0, np.int64)
        # The turns of a pipeline ask for the same objects by the same lanes.
        self._lookups: dict[tuple[int, int, int, int], _Lookup] = {}
        self.count = 1
        columns = 0 if machine.clocks is None else machine.clocks.columns
        self._room(64, columns)

    def _room(self, size: int, columns: int) -> None:
        self.slot = np.zeros(size, np.int64)
        self.expected = np.zeros(size, np.int64)
        self.pending = np.zeros(size, np.int64)
        self.transactions = np.zeros(size, np.int64)
        self.phase = np.zeros(size, np.int64)
        # Arrivals that copies under way will make.
        self.announced = np.zeros(size, np.int64)
        self._creation = np.zeros(size, np.int64)
        # Whether `fence.mbarrier_init` made the initialisation known to copies.
        self._published = np.zeros(size, bool)
        # What the arrivals of this phase, and those of the last, have released.
        self._coming = untouched((size, columns), np.int64)
        self._known = untouched((size, columns), np.int64)
        self._coming_beyond: dict[int, Knowledge] = {}
        self._known_beyond: dict[int, Knowledge] = {}
        # Arrivals of this phase from other blocks, and whether all of the last one were.
        self._foreign = np.zeros(size, np.int64)
        self._all_foreign = np.zeros(size, bool)
        # The step at which each lane of its cluster used it last.
        self._used = untouched((size, self._users), np.int64)

    def _make_room(self, needed: int) -> None:
        """So many objects more are about to be initialised."""
        if self.count + needed <= len(self.slot):
            return
        # Mostly all CTAs initialise one object after another, each in one step: room for as many steps at once.
        size = max(2 * len(self.slot), self.count + _STEPS * needed)
        for name in (
            "slot", "expected", "pending", "transactions", "phase", "announced", "_creation", "_published", "_coming",
            "_known", "_foreign", "_all_foreign", "_used",
        ):  # fmt: skip
            old = getattr(self, name)
            # They cost nothing until they are touched; the rows behind the last object stay so.
            new = untouched((size, *old.shape[1:]), old.dtype)
            new[: self.count] = old[: self.count]
            setattr(self, name, new)

    @property
    def tables(self) -> tuple[Array, ...]:
        """What arrivals released, and waits learn."""
        return self._coming, self._known

    def release(self) -> None:
        """Give memory back: nobody asks any more what arrivals released, or where objects are."""
        if self._numbers is not None:
            self._numbers[self._live] = 0
            # Where an object was is zero already, and resident.
            cleared(self._numbers, self.count * PAGE)
            self._numbers = None
        rows = np.arange(self.count)
        for name in ("_coming", "_known"):
            table = getattr(self, name)
            if self.machine.clocks is not None and table.size:
                clear_rows(table, rows, self.machine.clocks.filled.spans(table.shape[1]))
                cleared(table, len(rows) * table.strides[0])
            setattr(self, name, table[:0])

    # Objects by address

    def slots(self, frame: Frame, access: Access, address: Array, lanes: Array) -> Array:
        """Index of each lane's address in shared memory, in units of an object."""
        shared = self.machine.shared
        if not shared.stride:
            raise self.machine.misuse(
                access.instruction, lanes[0], "a barrier in shared memory, which the block has not"
            )
        if self._numbers is None:
            # Few slots have an object.
            self._numbers = untouched((shared.data.size // OBJECT_BYTES,), np.int64)
            if shared.shadow is not None:
                shadow_of(shared).guard = self
        found = np.zeros(len(lanes), np.int64)
        for region, which, index in access._parts(frame, address, lanes):
            if region is not shared:
                lane = lanes[0] if which is None else lanes[which][0]
                raise self.machine.misuse(access.instruction, lane, "a barrier that is not in shared memory")
            found[slice(None) if which is None else which] = index // OBJECT_BYTES
        return found

    def objects(self, frame: Frame, access: Access, address: Array, lanes: Array) -> Array:
        """Number of each lane's object.

        Raises:
            MisuseError: there is none.
            RaceError: nothing orders its initialisation before this.
        """
        key = id(access), len(lanes), int(lanes[0]), int(address[0])
        found = self._lookups.get(key)
        known = found is not None and found.again(address, lanes)
        if found is not None and known:
            slots, ids = found.slots, found.ids
        else:
            slots = self.slots(frame, access, address, lanes)
            ids = self._numbers[slots]
        if np.count_nonzero(ids) < len(ids):
            bad = int(np.argmin(ids))
            raise self.machine.misuse(access.instruction, lanes[bad], f"{self.name(slots[bad])} is not initialised")
        shared = self.machine.shared
        written = shared.words(OBJECT_BYTES, of_valid=True)[slots] != 0
        if np.count_nonzero(written):
            bad = int(np.argmax(written))
            what = f"{self.name(slots[bad])} was overwritten by a store"
            raise self.machine.misuse(access.instruction, lanes[bad], what)
        if self._users:
            self._used[ids, lanes % self._users] = self.machine.clocks.now
            shadow_of(shared).note(frame, access, shared, slots * OBJECT_BYTES, lanes, OBJECT_BYTES, "read")
        if known:
            return ids
        if shared.shadow is not None:
            made = self._creation[ids]
            made = np.where(self.machine.clocks.knows_init(lanes, made), 0, made)
            shadow_of(shared).ordered_after(frame, access, shared, slots * OBJECT_BYTES, lanes, made)
        if len(self._lookups) == _REMEMBERED:
            self._lookups.clear()
        # Both may be views of registers, which change.
        self._lookups[key] = _Lookup(access, address.copy(), lanes.copy(), slots, ids)
        return ids

    def number(self, slots: Array, ids: Array | int) -> None:
        """The objects in slots of shared memory are these from now on; 0 where there is none any more."""
        self._numbers[slots] = ids
        self._live = np.union1d(self._live, slots) if np.any(ids) else np.setdiff1d(self._live, slots)
        self._lookups.clear()

    def check_users(self, frame: Frame, access: Access, ids: Array, lanes: Array) -> None:
        """`lanes` [n] are about to invalidate objects `ids` [n].

        Of another warp only the lane that is known best has to be: a pipeline of libcu++ ends with a `match.sync` and a
        count by one lane, which orders no memory, but cannot come before all lanes of the warp have done with it.

        Raises:
            RaceError: another warp has used one, and nothing orders that before.
        """
        if not self._users:
            return
        clocks, used = self.machine.clocks, self._used[ids]
        for row, lane in enumerate(lanes.tolist()):
            (number,) = clocks.rows(np.array([lane])).tolist()
            known = clocks.known_threads(number).reshape(-1, LANES).max(axis=1)
            known[lane // LANES % len(known)] = clocks.now
            used[row, used[row] <= np.repeat(known, LANES)] = 0
        which, users = np.nonzero(used)
        first = self.machine.first_thread + lanes[which] // self._users * self._users
        records = (used[which, users] << STEP_SHIFT) + first + users
        where = self.slot[ids[which]] * OBJECT_BYTES
        shadow_of(self.machine.shared).ordered_after(
            frame, access, self.machine.shared, where, lanes[which], records, "read-write"
        )

    # Stores over objects

    def check(self, instruction: Instruction, index: Array, lanes: Array, width: int) -> None:
        """`lanes` [n] are about to write `width` bytes each at byte `index` [n] of shared memory.

        Raises:
            MisuseError: there is an object whose initialisation comes before that.
        """
        live = self._live
        if not live.size or int(index.min()) >= (int(live[-1]) + 1) * OBJECT_BYTES:
            return
        if int(index.max()) + width <= int(live[0]) * OBJECT_BYTES:
            return
        first = np.searchsorted(self._live, index // OBJECT_BYTES)
        hit = np.flatnonzero(first < np.searchsorted(self._live, (index + width - 1) // OBJECT_BYTES, "right"))
        if not hit.size:
            return
        slots = self._live[first[hit]]
        made = self._creation[self._numbers[slots]]
        own = made & THREAD == lanes[hit] + self.machine.first_thread
        after = own | self.machine.clocks.ordered(lanes[hit], made)
        if after.any():
            # Others race with the initialisation.
            bad = int(np.argmax(after))
            what = f"{self.name(slots[bad])} is in use, and this overwrites it; mbarrier.inval has to come before"
            raise self.machine.misuse(instruction, lanes[hit[bad]], what)

    def made(self, byte: int) -> int:
        """See `refmoe.ptx.engine.races.Guarding`."""
        return int(self._creation[self._numbers[byte // OBJECT_BYTES]])

    def place_of(self, number: int) -> tuple[int, int]:
        """(CTA, byte of its shared memory) of an object."""
        return divmod(int(self.slot[number]) * OBJECT_BYTES, self.machine.shared.stride)

    def name(self, slot: int) -> str:
        """The object in a slot of shared memory, for messages."""
        shared = self.machine.shared
        cta, byte = divmod(int(slot) * OBJECT_BYTES, shared.stride)
        block, _ = self.machine.place_of(cta * self.machine.warps * 32)
        return f"the mbarrier at byte {byte} of {shared.name} (address 0x{OWN_BASE + byte:X}) of block {block}"

    def far(self, ids: Array, lanes: Array) -> Array:
        """Which of `lanes` [n] are of another block than the objects."""
        far: Array = self.slot[ids] * OBJECT_BYTES // self.machine.shared.stride != self.machine.lane_cta[lanes]
        return far


def pending_count(state: Array) -> Array:
    """`mbarrier.pending_count`: of the state that an arrival found."""
    return (state & np.uint64(MOST)).astype(np.uint32)
