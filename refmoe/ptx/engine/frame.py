"""The lanes that one step runs, and how their values reach the registers of all lanes.

Native code takes a frame's warps one after another. For what runs in Python there are two kinds of frame:
- most lanes (dense): results of the others are discarded when registers are written back;
- a few (compact): their values are gathered, computed densely, and scattered back.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.state.special_registers import CLOCKS

Array = Any
not_ = np.logical_not
_LANES = 32
# A compact frame pays for gathering registers; a dense one for computing what is thrown away.
_COMPACT_BELOW = 0.375


class Frame:
    """Lanes of one step.

    Attributes:
        machine: whose lanes.
        mask: bool [lanes of the machine], the active ones.
        index: of the lanes that vectors hold (compact), or None where vectors hold all lanes.
        inner: bool [count], the active ones among those that vectors hold, or None for all.
        count: length of vectors.
        active: number of active lanes.
    """

    __slots__ = ("_places", "_rows", "_warps", "active", "count", "index", "inner", "machine", "mask")

    def __init__(self, machine: Lanes, mask: Array, active: int, compact: bool) -> None:
        self.machine = machine
        self.mask = mask
        self.active = active
        self.index = mask.nonzero()[0] if compact else None
        self.inner = None if compact or active == machine.lanes else mask
        self.count = active if compact else machine.lanes
        self._warps: tuple[Array, Array] | None = None
        # Where registers of some lanes are found: rows of whole warps, or the warp and lane of each.
        self._rows, self._places = None, None
        if self.index is None:
            return
        if active % _LANES == 0 and active > _LANES and len(self.warps()[0]) * _LANES == active:
            self._rows = self.warps()[0].astype(np.intp)
        else:
            self._places = self.index >> 5, self.index & 31

    @classmethod
    def of(cls, machine: Lanes, mask: Array) -> Frame:
        """That of the lanes of `mask`, of the kind that costs less."""
        active = int(np.count_nonzero(mask))
        return cls(machine, mask, active, active < _COMPACT_BELOW * machine.lanes)

    # Registers

    def get(self, registers: list[Any], number: int) -> Array:
        """A register's values for this frame's vectors: a copy, because native code writes registers in place."""
        held = registers[number]
        if self._places is not None:
            return held[self._places]
        # Those of all lanes lie far apart, a row for each warp.
        return held.reshape(-1) if self._rows is None else held[self._rows].reshape(-1)

    def put(self, registers: list[Any], number: int, value: Array) -> None:
        """Write a register of the active lanes; the others keep theirs."""
        held = registers[number]
        if self._places is not None:
            held[self._places] = value
            return
        if self._rows is not None:
            held[self._rows] = value.reshape(-1, _LANES) if np.ndim(value) else value
            return
        rows = value.reshape(held.shape) if np.ndim(value) else value
        if self.inner is None:
            held[:] = rows
        else:
            np.copyto(held, rows, where=self.inner.reshape(held.shape))

    def warps(self) -> tuple[Array, Array]:
        """The warps with active lanes, uint32 [n], and which lanes of each are, a bit a lane, uint32 [n]."""
        if self._warps is None:
            masks = np.packbits(self.mask, bitorder="little").view(np.uint32)
            numbers = np.flatnonzero(masks).astype(np.uint32)
            self._warps = numbers, masks if len(numbers) == len(masks) else masks[numbers]
        return self._warps

    # Lanes

    def lanes(self) -> Array:
        """Lane number of each vector element."""
        return self.machine.all_lanes if self.index is None else self.index

    def where(self, guard: Array | None) -> Array | None:
        """bool [count] of the active lanes whose guard is on; None for all."""
        if guard is None or (not isinstance(guard, np.ndarray) and guard):
            return self.inner
        if not isinstance(guard, np.ndarray) or guard.ndim == 0:
            return np.full(self.count, bool(guard)) if not guard else self.inner
        return guard if self.inner is None else guard & self.inner

    def select(self, address: Array, guard: Array | None) -> tuple[Array | None, Array, Array]:
        """(which vector elements act, or None for all; their lanes; their addresses as uint64)."""
        where = self.where(guard)
        lanes = self.lanes()
        if where is not None:
            lanes = lanes[where]
        if not isinstance(address, np.ndarray) or address.ndim == 0:
            return where, lanes, np.full(len(lanes), address, np.uint64)
        if where is not None:
            address = address[where]
        return where, lanes, address if address.dtype == np.uint64 else address.astype(np.uint64)

    def acting(self, where: Array | None, value: Array) -> Array:
        """`value` in the vector elements that `select` chose."""
        if isinstance(value, np.ndarray) and value.ndim:
            return value if where is None else value[where]
        count = self.count if where is None else int(np.count_nonzero(where))
        return np.full(count, value)

    def first_active(self, guard: Array | None) -> int | None:
        """The lowest acting lane, or None."""
        where = self.where(guard)
        lanes = self.lanes()
        if where is None:
            return int(lanes[0])
        first = int(np.argmax(where))
        return int(lanes[first]) if where[first] else None

    def note(self, number: int, exact: Array, guard: Array | None) -> None:
        """An approximate instruction ran: remember it if it was not provably exact in every acting lane."""
        where = self.where(guard)
        inexact = not_(exact) if where is None else not_(exact) & where
        if inexact.any():
            self.machine.approximate.add(number)

    def fence(self, guard: Array | None, strength: int, sequential: bool, order: str = "both") -> None:
        """A memory fence of the acting lanes, as strong as its scope, see `refmoe.ptx.state.records`.

        `order`: whether it is an `"acquire"`, a `"release"`, or `"both"`.
        """
        machine = self.machine
        if machine.strong is not None:
            where = self.where(guard)
            lanes = self.lanes() if where is None else self.lanes()[where]
            # No other fence is in order with one whose thread is alone in its scope.
            in_order = sequential and not (lanes.size == 1 and strength <= machine.alone(int(lanes[0])))
            machine.strong.fence(lanes, strength, in_order, machine.alive, order)
            machine.tick(machine.launch.clock + 1)

    def proxy_fence(self, space: str, guard: Array | None) -> None:
        """`fence.proxy.async` of the acting lanes, for `"shared"` or `"global"` memory or `"both"`."""
        machine = self.machine
        if machine.clocks is None or not machine.clocks.bulk:
            return
        where = self.where(guard)
        lanes = self.lanes() if where is None else self.lanes()[where]
        if not lanes.size:
            return
        if space != "global":
            machine.clocks.cross(lanes, machine.alive)
        if space != "shared":
            machine.launch.proxied.add(machine.clocks, lanes)
        machine.tick(machine.launch.clock + 1)

    def warp_sync(self, member: Array) -> None:
        """`bar.warp.sync`: the active lanes of each warp, and the others of their member masks, have met."""
        machine = self.machine
        if machine.clocks is not None:
            lanes = self.lanes()
            members = np.broadcast_to(np.asarray(member, np.uint32), (self.count,))
            if self.inner is not None:
                lanes, members = lanes[self.inner], members[self.inner]
            machine.clocks.meet(lanes, members, machine.alive_now(), machine.exist)
            machine.tick(machine.launch.clock + 1)

    def special(self, name: str) -> Array:
        """A predefined register."""
        if name in CLOCKS:
            return self.machine.launch.ticks.read(name, self.machine.launch.instructions)
        value = self.machine.specials[name]
        return value if self.index is None or not isinstance(value, np.ndarray) else value[self.index]

    def spread(self, value: Array) -> Array:
        """`value` as a vector of this frame."""
        if isinstance(value, np.ndarray) and value.ndim == 1:
            return value
        return np.full(self.count, value)

    def to_all(self, value: Array) -> Array:
        """A vector of this frame over all lanes of the machine; others get zero."""
        value = self.spread(value)
        if self.index is None:
            return value
        result = np.zeros(self.machine.lanes, value.dtype)
        result[self.index] = value
        return result

    def from_all(self, value: Array) -> Array:
        """A vector over all lanes of the machine, as this frame holds it."""
        return value if self.index is None else value[self.index]
