"""Instructions that exchange values between the lanes of a warp. All wait for their members first: see `Machine`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.errors import WarpError
from refmoe.ptx.text.syntax import Instruction

Array = Any
_LANES = np.arange(32, dtype=np.uint32)


def bits_of_warps(mask: Array) -> Array:
    """bool [lanes] to uint32 [warps], bit i for lane i."""
    return np.packbits(mask, bitorder="little").view("<u4").astype(np.uint32, copy=False)


def active_mask(frame: Frame) -> Array:
    """`activemask.b32`: the lanes that run this step together."""
    return frame.from_all(np.repeat(bits_of_warps(frame.mask), 32))


def _present(frame: Frame, member: Array) -> Array:
    """uint32 [lanes]: for each lane the members of its mask that take part (the others have exited)."""
    return np.repeat(bits_of_warps(frame.mask), 32) & frame.to_all(member)


@dataclass(frozen=True)
class Shuffle:
    """`shfl.sync.mode.b32`: value and predicate as the manual's pseudo-code has them."""

    instruction: Instruction
    mode: str

    def __call__(self, frame: Frame, a: Array, b: Array, c: Array, member: Array) -> tuple[Array, Array]:
        """Raises WarpError where a lane reads one that does not take part."""
        machine = frame.machine
        source, within, absent, present = self.sources(frame, b, c, member)
        if absent.any() and (machine.undefined is None or not machine.undefined.follows(self.instruction)):
            bad = int(np.argmax(absent))
            members = f"(members present: 0x{int(present[bad]):08X})"
            what = f"reads lane {int(source[bad])}, which does not take part {members}"
            raise machine.error(WarpError, self.instruction, bad, what, link="", absent=True)
        values = frame.to_all(a)[machine.warp_start + source]
        return frame.from_all(values), frame.from_all(within)

    def sources(self, frame: Frame, b: Array, c: Array, member: Array) -> tuple[Array, Array, Array, Array]:
        """Whom each lane of the machine reads.

        Returns:
            The lane of the warp int64 [lanes], whether it lies within its segment, whether it does not take part, bool,
            and the members that do, uint32.
        """
        lane = frame.machine.lane_in_warp
        amount = (frame.to_all(b) & np.uint32(31)).astype(np.int64)
        control = frame.to_all(c).astype(np.int64)
        segment = (control >> 8) & 31
        clamp = control & 31
        low = lane & segment
        high = low | (clamp & ~segment & 31)
        if self.mode == "up":
            source = lane - amount
            within = source >= high
        else:
            if self.mode == "down":
                source = lane + amount
            elif self.mode == "bfly":
                source = lane ^ amount
            else:
                source = low | (amount & ~segment & 31)
            within = source <= high
        source = np.where(within, source, lane)
        present = _present(frame, member)
        absent = frame.mask & ((present >> source.astype(np.uint32)) & np.uint32(1) == 0)
        return source, within, absent, present


@dataclass(frozen=True)
class Vote:
    """`vote.sync.{all,any,uni}.pred` and `.ballot.b32`."""

    mode: str

    def __call__(self, frame: Frame, predicate: Array, member: Array) -> Array:
        """One value for each lane."""
        present = _present(frame, member)
        yes = np.repeat(bits_of_warps(frame.to_all(predicate) & frame.mask), 32) & present
        if self.mode == "ballot":
            return frame.from_all(yes)
        if self.mode == "all":
            return frame.from_all(yes == present)
        if self.mode == "any":
            return frame.from_all(yes != 0)
        return frame.from_all((yes == 0) | (yes == present))


@dataclass(frozen=True)
class Match:
    """`match.sync.{any,all}`: the mask of equal lanes, and for `all` whether all are equal."""

    mode: str

    def __call__(self, frame: Frame, a: Array, member: Array) -> tuple[Array, Array]:
        """(mask uint32, predicate) of each lane."""
        present = _present(frame, member)
        values = frame.to_all(a).reshape(-1, 32)
        equal = values[:, :, None] == values[:, None, :]
        bits = (equal.astype(np.uint32) << _LANES).sum(axis=2, dtype=np.uint32).ravel() & present
        if self.mode == "any":
            return frame.from_all(bits), frame.from_all(bits != 0)
        same = bits == present
        return frame.from_all(np.where(same, present, np.uint32(0))), frame.from_all(same)


@dataclass(frozen=True)
class Redux:
    """`redux.sync`: the members' values, as `of_each` makes them, folded in lane order by `function(a, b)`."""

    function: Callable[..., Any]
    of_each: Callable[[Array], Array] | None = None

    def __call__(self, frame: Frame, a: Array, member: Array) -> Array:
        """The reduction, in each lane."""
        present = _present(frame, member).reshape(-1, 32)
        values = frame.to_all(a).reshape(-1, 32)
        if self.of_each is not None:
            values = self.of_each(values)
        result = np.zeros_like(values)
        started = np.zeros(values.shape, bool)
        for lane in range(32):
            takes = (present >> np.uint32(lane)) & np.uint32(1) != 0
            operand = np.broadcast_to(values[:, lane : lane + 1], values.shape)
            folded = np.where(started, self.function(result, np.ascontiguousarray(operand)), operand)
            result = np.where(takes, folded, result)
            started |= takes
        return frame.from_all(result.ravel())


@dataclass(frozen=True)
class Elect:
    """`elect.sync`: the first member from a lane on leads (the manual leaves the choice open but deterministic)."""

    def __call__(self, frame: Frame, member: Array) -> tuple[Array, Array]:
        """(lane of the leader uint32, whether this lane leads)."""
        present = _present(frame, member)
        begin = np.uint32(frame.machine.launch.schedule.elected)
        turned = present >> begin | present << (np.uint32(32) - begin & np.uint32(31)) if begin else present
        lowest = turned & (~turned + np.uint32(1))
        count = np.bitwise_count(np.where(lowest, lowest - np.uint32(1), np.uint32(0))).astype(np.uint32)
        leader = np.where(present, count + begin & np.uint32(31), np.uint32(0))
        return frame.from_all(leader), frame.from_all(leader == frame.machine.lane_in_warp)
