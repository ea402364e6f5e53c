"""Where the lanes of a warp, or the warps of a warpgroup, wait for one another at warp-level instructions.

Such an instruction has a mask of its members. Lanes that come to it wait until all members that live are there;
`bar.warp.sync` also takes members that wait at another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.ptx.engine.code import Code, Gather
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.native_state import NativeState
from refmoe.ptx.engine.warp import bits_of_warps
from refmoe.ptx.errors import UnknownOpcode, WarpError

Array = Any


class Meetings:
    """The meetings of the lanes of some CTAs.

    Args:
        machine: the lanes.
        native: where they are.
        code: the instructions that gather lanes.
    """

    def __init__(self, machine: Lanes, native: NativeState, code: Code) -> None:
        self.machine, self._native, self._code = machine, native, code
        # Lanes that others have met at another `bar.warp.sync`: they need wait no longer.
        self._passed: Array | None = None

    def gather(self, place: int, mask: Array) -> Array | None:
        """The lanes whose whole member mask is here; the others go on waiting."""
        gather = self._code.gathers[place]
        if gather.warps > 1:
            return self._gather_warps(place, mask, gather)
        value = gather.constant if gather.register is None else self._native.registers[gather.register].reshape(-1)
        member = np.broadcast_to(value, mask.shape)
        own = (member >> self.machine.lane_in_warp.astype(np.uint32)) & np.uint32(1) == 0
        if (own & mask).any():
            lane = int(np.argmax(own & mask))
            what = f"the lane is not in its own member mask 0x{int(member[lane]):08X}"
            raise self.machine.error(WarpError, gather.instruction, lane, what)
        if self.machine.everyone(mask) and np.ndim(value) == 0:
            return mask
        go = np.zeros_like(mask)
        if self._passed is not None:
            go = mask & self._passed
            self._passed = self._passed & ~go
        living = bits_of_warps(self.machine.alive)
        elsewhere = self._waiting_alike(place, gather)
        for one in np.unique(member[mask]):
            here = mask & (member == one)
            others = np.zeros_like(mask)
            for lanes, theirs in elsewhere:
                others |= lanes & (theirs == one)
            missing = one & living & ~bits_of_warps(here | others)
            complete = np.repeat(missing == 0, 32)
            go |= here & complete
            self._let_pass(others & complete & np.repeat(bits_of_warps(here) != 0, 32))
        rest = mask & ~go
        if rest.any():
            self._native.arrive(place, 0, rest, waits=True)
        return go if go.any() else None

    def _gather_warps(self, place: int, mask: Array, gather: Gather) -> Array | None:
        """The lanes all of whose neighbouring warps are here, as many as meet; the others go on waiting.

        Raises:
            WarpError: some of its warps are here, and others where they can only meet in another way.
        """
        numbers = np.arange(self.machine.lanes // 32)
        first = numbers - numbers % self.machine.warps % gather.warps
        starts = np.flatnonzero(first == numbers)

        def complete(lanes: Array) -> Array:
            """The lanes of those warps all of whose neighbours are among `lanes`."""
            missing = np.bitwise_or.reduceat((self.machine.alive & ~lanes).reshape(-1, 32).any(axis=1), starts)
            return np.repeat(~missing[np.searchsorted(starts, first)], 32)

        go = mask & complete(mask)
        rest = mask & ~go
        if rest.any():
            others = self._native.groups(waiting=True)
            together = complete(mask | others.get(place, mask))
            self._native.arrive(place, 0, rest, waits=True)
            # Those who came before and those who came now go on in one step.
            if (rest & together).any():
                self._native.wake(together)
            waits = (rest & ~together).reshape(-1, 32).all(axis=1)
            for other, lanes in others.items():
                theirs = self._code.gathers[other]
                if theirs.warps > 1 and other != place:
                    apart = lanes.reshape(-1, 32).all(axis=1)
                    meets = np.flatnonzero(waits & np.isin(first, first[apart]))
                    if meets.size:
                        one = self.machine.describe(theirs.instruction)
                        what = f"its warpgroup is divided: others of its warps are at {one}"
                        raise self.machine.error(WarpError, gather.instruction, int(meets[0]) * 32, what)
        return go if go.any() else None

    def _waiting_alike(self, place: int, gather: Gather) -> list[tuple[Array, Array]]:
        """Lanes that wait at other places for the same meeting, and their member masks: `bar.warp.sync` only."""
        if not gather.is_barrier:
            return []
        found = []
        for other, lanes in self._native.groups(waiting=True).items():
            theirs = self._code.gathers[other]
            if other != place and theirs.is_barrier:
                register = theirs.register
                value = theirs.constant if register is None else self._native.registers[register].reshape(-1)
                found.append((lanes, np.broadcast_to(value, lanes.shape)))
        return found

    def refuse_divided(self) -> None:
        """Nobody can go on: perhaps lanes wait for one another at several instructions that exchange values alike.

        Raises:
            UnknownOpcode: they do. Since sm_70 they meet there: then the launch runs again with one instruction for all
                that are `alike`, see `refmoe.ptx.repeats`.
        """
        alike: dict[str, list[tuple[Gather, Array, Array]]] = {}
        for place, lanes in self._native.groups(waiting=True).items():
            gather = self._code.gathers[place]
            opcode = gather.instruction.opcode
            if not gather.is_barrier and ".sync" in opcode and ".aligned" not in opcode:
                register = gather.register
                value = gather.constant if register is None else self._native.registers[register].reshape(-1)
                alike.setdefault(opcode, []).append((gather, lanes, np.broadcast_to(value, lanes.shape)))
        living = bits_of_warps(self.machine.alive)
        for opcode, waiting in alike.items():
            gather, lanes, member = waiting[0]
            if len(waiting) == 1:
                continue
            lane = int(np.argmax(lanes))
            here = [bits_of_warps(theirs & (masks == member[lane])) for _, theirs, masks in waiting]
            together = np.bitwise_or.reduce(here)
            if int(member[lane]) & int(living[lane >> 5]) & ~int(together[lane >> 5]) == 0:
                others = ", ".join(self.machine.describe(each.instruction) for each, _, _ in waiting[1:])
                block, thread = self.machine.place_of(lane)
                what = (
                    f"block {block} thread {thread}: cannot execute {opcode} for lanes of one member mask that are at "
                    f"several instructions; {self.machine.describe(gather.instruction)}; others are at {others}"
                )
                error = UnknownOpcode.of(gather.instruction, what, block, thread)
                error.alike = tuple(each.instruction for each, _, _ in waiting)
                raise error

    def _let_pass(self, lanes: Array) -> None:
        """Lanes that wait at other `bar.warp.sync` instructions may go on."""
        if lanes.any():
            self._passed = lanes if self._passed is None else self._passed | lanes
            self._native.wake(lanes)
