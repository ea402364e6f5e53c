"""Named barriers of CTAs: `bar` and `barrier`, `.sync`, `.arrive` and `.red`.

A warp arrives when all of its lanes that have not exited have; a barrier without a thread count waits for all warps
that have not exited (PTX ISA, "bar, barrier").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.order.knowledge import Knowledge
from refmoe.ptx.errors import WarpError
from refmoe.ptx.native.clocks import clear_rows
from refmoe.ptx.state.numbers import different
from refmoe.ptx.state.pages import untouched
from refmoe.ptx.text.syntax import Instruction

Array = Any
COUNT = 16
_ALL = -1
_ALL_LANES = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True)
class BarrierCode:
    """The barrier instruction that ends a block.

    Attributes:
        instruction: for messages.
        kind: `"sync" "arrive" "red" "cluster.arrive" "cluster.wait"`.
        reduction: of `.red`, else "".
        destination: of `.red`, the number of its register.
        releases: not `.relaxed`.
    """

    instruction: Instruction
    kind: str
    reduction: str
    destination: int | None
    releases: bool


class Barriers:
    """The sixteen barriers of each CTA, and the lanes parked at them."""

    def __init__(self, machine: Lanes, codes: Mapping[int, BarrierCode]) -> None:
        self.machine = machine
        self._codes = codes
        ctas, warps = machine.ctas, machine.warps
        self.threads = np.zeros((ctas, COUNT), np.int64)
        # 0: nobody has come yet; _ALL: every warp; else a number of threads.
        self.expected = np.zeros((ctas, COUNT), np.int64)
        # Of those that came: whether they reduce.
        self._reduces = np.zeros((ctas, COUNT), bool)
        self._came = np.zeros((ctas, COUNT, warps), bool)
        columns = 0 if machine.clocks is None else machine.clocks.columns
        # Of most barriers nothing is ever kept.
        self._known = untouched((ctas, COUNT, columns), np.int64)
        # What those who came know of other clusters, where they know something.
        self._beyond: dict[tuple[int, int], Knowledge] = {}

    @cached_property
    def at(self) -> Array:
        """int8 [lanes], the barrier at which each lane is parked, -1 for none."""
        # Narrow, because every barrier looks at all lanes.
        return np.full(self.machine.lanes, -1, np.int8)

    @cached_property
    def _origin(self) -> Array:
        return np.zeros(self.machine.lanes, np.int32)

    @cached_property
    def _stays(self) -> Array:
        return np.zeros(self.machine.lanes, bool)

    @cached_property
    def _counted(self) -> Array:
        return np.zeros(self.machine.lanes, bool)

    @cached_property
    def _vote(self) -> Array:
        return np.zeros(self.machine.lanes, bool)

    def arrive(self, code: BarrierCode, place: int, mask: Array, values: tuple[Any, Any, Any]) -> None:
        """Lanes of `mask` come to the barrier instruction that ends block `place`.

        `values` are its operands over all lanes or as scalars: barrier number, thread count or None, predicate or None.
        """
        machine = self.machine
        number, count, vote = _one(values[0], mask), _one(values[1], mask), values[2]
        machine.tracer.named("bar", code.instruction, mask, number)
        if (
            code.kind == "sync"
            and count is None
            and not isinstance(number, np.ndarray)
            and machine.everyone(mask)
            and int(number) < COUNT
            and not self.expected[:, int(number)].any()
        ):
            self._all_at_once(mask)
            machine.tracer.named("leave", code.instruction, mask, number)
            machine.resume(place, mask)
            return
        alike = not isinstance(number, np.ndarray) and not isinstance(count, np.ndarray)
        if alike:
            # What is true of the first lane of a CTA is true of all.
            of_cta = mask.reshape(machine.ctas, -1)
            first = of_cta.argmax(axis=1) + np.arange(0, machine.lanes, of_cta.shape[1])
            lanes = first[mask[first]]
        else:
            lanes = np.flatnonzero(mask)
        numbers = np.broadcast_to(np.asarray(number, np.int64), mask.shape)[lanes]
        if numbers.max() >= COUNT:
            raise self._error(code, lanes[int(np.argmax(numbers))], f"barrier {int(numbers.max())} of 16")
        wanted = np.full(len(lanes), _ALL, np.int64)
        if count is not None:
            wanted[:] = np.broadcast_to(np.asarray(count, np.int64), mask.shape)[lanes]
            odd = (wanted % 32 != 0) | (wanted == 0)
            if odd.any():
                bad = int(np.argmax(odd))
                raise self._error(code, lanes[bad], f"a thread count of {int(wanted[bad])}, no multiple of 32")
        ctas = machine.lane_cta[lanes]
        expected = self.expected[ctas, numbers]
        self.expected[ctas, numbers] = wanted
        # Against those that came before, and against others of this step.
        clash = ((expected != 0) & (expected != wanted)) | (self.expected[ctas, numbers] != wanted)
        if clash.any():
            bad = int(np.argmax(clash))
            raise self._error(code, lanes[bad], f"barrier {int(numbers[bad])} in use with another thread count")
        # "barrier.red should not be intermixed with barrier.sync or barrier.arrive using the same active barrier" (PTX
        # ISA, "bar, barrier"). An H200 ends such a kernel with an illegal instruction.
        reduces = code.kind == "red"
        mixed = (expected != 0) & (self._reduces[ctas, numbers] != reduces)
        if mixed.any():
            bad = int(np.argmax(mixed))
            other = "sync or .arrive" if reduces else "red"
            what = (
                f"barrier {int(numbers[bad])} in use by .{other}, and .{code.kind} comes to it: that is unpredictable"
            )
            raise self._error(code, lanes[bad], what)
        self._reduces[ctas, numbers] = reduces
        if alike:
            np.copyto(self.at, int(numbers[0]), where=mask)
        else:
            self.at[mask] = numbers
        np.copyto(self._origin, place, where=mask)
        np.copyto(self._stays, code.kind != "arrive", where=mask)
        self._counted &= ~mask
        if vote is not None:
            self._vote[mask] = np.broadcast_to(vote, mask.shape)[mask]
        self.settle()

    def _error(self, code: BarrierCode, lane: int, what: str) -> WarpError:
        return self.machine.error(WarpError, code.instruction, lane, what)

    def _all_at_once(self, mask: Array) -> None:
        clocks = self.machine.clocks
        if clocks is None:
            return
        warps = np.flatnonzero(_bits(mask))
        owner = warps // self.machine.warps
        first = np.r_[True, owner[1:] != owner[:-1]]
        group = np.cumsum(first) - 1
        # As narrow as may be: a row of all columns can be a page, which becomes resident for nothing.
        joined = np.zeros((int(group[-1]) + 1, clocks.most_used), np.int64)
        beyond = clocks.bring(joined, group, warps, self.machine.alive, self.machine.exist)
        if beyond is not None:
            together: dict[int, Knowledge | None] = {}
            for cta, each in zip(owner.tolist(), beyond, strict=True):
                if each is not None:
                    together[cta] = clocks.pool.join(together.get(cta), each)
            beyond = [together.get(cta) for cta in owner.tolist()]
        clocks.learn(warps, joined[:, : clocks.used], group, beyond)
        self.machine.tick(self.machine.launch.clock + 1)

    def settle(self) -> None:
        """Count warps whose lanes have all come or exited, and complete the barriers whose warps have all come."""
        machine = self.machine
        living = _bits(machine.alive)
        for number in np.flatnonzero(self.expected.any(axis=0)).tolist():
            gathered = _bits((self.at == number) & ~self._counted)
            warps = np.flatnonzero((gathered != 0) & (gathered | ~living == _ALL_LANES))
            if not warps.size:
                continue
            everyone = self.expected[warps // machine.warps, number] == _ALL
            self._count(number, warps[everyone])
            # Warps that come together are counted one after another where a count may be reached in between.
            for warp in self._count_fitting(number, warps[~everyone]):
                self._count(number, np.array([warp]))
                cta = int(warp) // machine.warps
                if self.threads[cta, number] == self.expected[cta, number]:
                    self._complete(np.array([cta]), number)
        every = self.expected == _ALL
        if not every.any():
            return
        live: Array = (living != 0).reshape(machine.ctas, machine.warps)
        full = (self._came | ~live[:, None, :]).all(axis=2) & self._came.any(axis=2)
        ctas, numbers = np.nonzero(full & every)
        for number in np.unique(numbers).tolist():
            self._complete(ctas[numbers == number], number)

    def _count_fitting(self, number: int, warps: Array) -> Array:
        """Count the warps of CTAs whose barrier they do not fill beyond its count; returns the others."""
        owner = warps // self.machine.warps
        threads = self.threads[:, number] + 32 * np.bincount(owner, minlength=self.machine.ctas)
        fitting = threads[owner] <= self.expected[owner, number]
        self._count(number, warps[fitting])
        ctas = different(owner[fitting])
        self._complete(ctas[self.threads[ctas, number] == self.expected[ctas, number]], number)
        return warps[~fitting]

    def _count(self, number: int, warps: Array) -> None:
        """Warps arrive; lanes that only announce themselves go on."""
        machine = self.machine
        if not warps.size:
            return
        owner = warps // machine.warps
        self._came[owner, number, warps % machine.warps] = True
        np.add.at(self.threads[:, number], owner, 32)
        lanes = self._lanes_of(warps)
        self._check_aligned(warps)
        self._counted |= lanes
        if machine.clocks is not None:
            beyond = machine.clocks.bring(self._known[:, number], owner, warps, machine.alive, machine.exist)
            for cta, each in () if beyond is None else zip(owner.tolist(), beyond, strict=True):
                if each is not None:
                    together = machine.clocks.pool.join(self._beyond.get((cta, number)), each)
                    self._beyond[cta, number] = together
            machine.tick(machine.launch.clock + 1)
        going = lanes & ~self._stays
        if going.any():
            machine.tracer.named("leave", None, going, number)
            self.at[going] = -1
            machine.resume_each(self._origin, going)

    def _lanes_of(self, warps: Array) -> Array:
        """The living lanes of some warps, bool [lanes]."""
        chosen = np.zeros(self.machine.lanes // 32, bool)
        chosen[warps] = True
        lanes: Array = np.repeat(chosen, 32) & self.machine.alive
        return lanes

    def _check_aligned(self, warps: Array) -> None:
        """The lanes of a warp must come by one instruction, if that is `.aligned` (as every `bar` is)."""
        origins = self._origin.reshape(-1, 32)[warps]
        if (origins == origins[0, 0]).all():
            return
        lanes = np.flatnonzero(self._lanes_of(warps))
        split = np.flatnonzero((np.diff(lanes >> 5) == 0) & (np.diff(self._origin[lanes]) != 0))
        for lane in lanes[np.union1d(split, split + 1)]:
            code = self._codes[int(self._origin[lane])]
            if code.instruction.opcode.startswith("bar.") or ".aligned" in code.instruction.opcode:
                raise self._error(code, lane, "other lanes of its warp are at another barrier instruction")

    def _complete(self, ctas: Array, number: int) -> None:
        """Lanes that wait at a barrier of those CTAs go on, and it starts anew."""
        machine = self.machine
        if not ctas.size:
            return
        chosen = np.zeros(machine.ctas, bool)
        chosen[ctas] = True
        waiting = np.repeat(chosen, machine.warps * 32) & (self.at == number) & self._counted
        machine.tracer.named("leave", None, waiting, number)
        if self._reduces[ctas, number].any():
            self._reduce(waiting)
        warps = np.flatnonzero(_bits(waiting))
        if machine.clocks is not None and warps.size:
            owner = warps // machine.warps
            beyond = None
            if self._beyond:
                beyond = [self._beyond.get((cta, number)) for cta in owner.tolist()]
            machine.clocks.learn(warps, self._known[:, number, : machine.clocks.used], owner, beyond)
        np.copyto(self.at, -1, where=waiting)
        still: Array = (self.at == number).reshape(machine.ctas, -1).any(axis=1)
        self.threads[ctas, number] = 0
        self.expected[ctas[~still[ctas]], number] = 0
        self._came[ctas, number] = False
        if machine.clocks is not None:
            used = machine.clocks.used
            clear_rows(self._known[:, number, :used], ctas, machine.clocks.filled.spans(used))
        for cta in ctas.tolist():
            self._beyond.pop((cta, number), None)
        machine.resume_each(self._origin, waiting)

    def _reduce(self, waiting: Array) -> None:
        """Results of `.red` to the lanes that wait, of each CTA by itself."""
        machine = self.machine
        for place in different(self._origin[waiting]).tolist():
            code = self._codes[place]
            if code.destination is None:
                continue
            total = (self._vote & waiting).reshape(machine.ctas, -1).sum(axis=1)
            count = waiting.reshape(machine.ctas, -1).sum(axis=1)
            value = {"popc": total.astype(np.uint32), "and": total == count, "or": total > 0}[code.reduction]
            machine.write(code.destination, waiting & (self._origin == place), np.repeat(value, machine.warps * 32))

    def places(self) -> Array:
        """int64 [lanes], the block at whose end each lane waits, or came to arrive; -1 for none."""
        return np.where(self.at >= 0, self._origin, -1)

    def report(self) -> list[str]:
        """One sentence for each barrier of each CTA at which lanes wait."""
        machine = self.machine
        lines = []
        parked = np.flatnonzero(self.at >= 0)
        for cta, number in sorted(set(zip(machine.lane_cta[parked].tolist(), self.at[parked].tolist(), strict=True))):
            lanes = np.flatnonzero((machine.lane_cta == cta) & (self.at == number))
            own = machine.alive & (machine.lane_cta == cta)
            expected = int(self.expected[cta, number])
            need = int(own.sum()) if expected == _ALL else expected
            came = len(lanes) if expected == _ALL else int(self.threads[cta, number])
            block, _ = machine.place_of(int(lanes[0]))
            instruction = self._codes[int(self._origin[lanes[0]])].instruction
            lines.append(
                f"barrier {number} of block {block}: {came} of {need} threads came; "
                f"waiting are {ranges(machine, lanes)}; {machine.describe(instruction)}"
            )
        return lines


def _one(value: Any, mask: Array) -> Any:
    """An operand over all lanes, as a scalar if lanes of `mask` agree: mostly it comes in a register."""
    if not isinstance(value, np.ndarray) or not value.ndim:
        return value
    first = value[mask.argmax()]
    return first if np.count_nonzero((value == first) & mask) == np.count_nonzero(mask) else value


def _bits(mask: Array) -> Array:
    """bool [lanes] to uint32 [warps], a bit for each lane."""
    return np.packbits(mask, bitorder="little").view(np.uint32)


def ranges(machine: Lanes, lanes: Array) -> str:
    """`threads 0-31, 64-95` (linear thread indices)."""
    threads = lanes % (machine.warps * 32)
    breaks = np.flatnonzero(np.diff(threads) != 1)
    firsts = threads[np.r_[0, breaks + 1]]
    lasts = threads[np.r_[breaks, len(threads) - 1]]
    parts = [f"{a}" if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True)]
    return "threads " + ", ".join(parts[:8]) + (", ..." if len(parts) > 8 else "")
