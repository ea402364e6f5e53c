"""The grid before this one, as a writer and a reader that is still under way (programmatic dependent launch).

A grid that is launched with programmatic stream serialization may start before the grid in front of it has ended. What
that one writes may be used only behind `griddepcontrol.wait`, by the thread that executed it, or by one that comes
after it. (PTX ISA, "griddepcontrol": `.wait` waits until all prerequisite grids have completed and their memory
operations are visible.) `griddepcontrol.launch_dependents` of that grid lets this one start, and makes nothing visible:
a grid that is started so has to wait, whatever the other did before. So it changes nothing here.

What the grid before reads may be read at any time, but written only behind the wait: the other one may read it later.

`ld.global.nc` is for bytes that nobody writes as long as this grid runs. This one runs since before the wait, so bytes
of the grid before are none of these, not even behind the wait. On a chip nobody has seen such a load go wrong that
stays behind the wait: it is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.errors import RaceError
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.pages import PAGE
from refmoe.ptx.state.records import STEP_SHIFT
from refmoe.ptx.text.syntax import Instruction

Array = Any
# By the warning; of a fault by whether that grid reads, else it writes.
_READS = "reads"
_SENTENCES = {
    _READS: "writes what the grid before this one may still be reading, and no griddepcontrol.wait comes before",
    "": "accesses what the grid before this one may still be writing, and no griddepcontrol.wait comes before",
    "non-coherent": (
        "reads, through the non-coherent cache (ld.global.nc), what the grid before this one wrote while this one was "
        "already running: griddepcontrol.wait comes before, but such a load is for bytes that nobody writes as long as "
        "its grid runs"
    ),
}

_WARP_SHIFT, _LANE = 5, 31


@dataclass(frozen=True)
class TouchedBytes:
    """Bytes of a buffer that a launch wrote, or that it read.

    Attributes:
        buffer: which, as `previous_grid_writes` takes it.
        pages: bool [4096] by number of the page; the other pages have no such byte.
        entry: of the launch.
    """

    buffer: Any
    pages: Mapping[int, Array]
    entry: str

    def hit(self, index: Array, width: int) -> Array:
        """Whether each access of `width` bytes at byte `index` [n] has one; bool [n]."""
        return np.array([self._in(begin, begin + width) for begin in index.tolist()], np.bool_)

    def _in(self, begin: int, end: int) -> bool:
        for page in range(begin // PAGE, (end - 1) // PAGE + 1):
            held, start = self.pages.get(page), page * PAGE
            if held is not None and held[max(begin - start, 0) : min(end - start, PAGE)].any():
                return True
        return False


@dataclass(frozen=True)
class _Use:
    """What the grid before does with a region: `touched` bytes of it, or None for any."""

    writes: bool
    touched: TouchedBytes | None

    def hit(self, index: Array, width: int) -> Array:
        return np.ones(len(index), np.bool_) if self.touched is None else self.touched.hit(index, width)


class PreviousGrid:
    """What threads of a launch know of the end of the grid before it.

    Args:
        warps: of the launch.

    Attributes:
        knows: uint32 [warps], the lanes that know that it has ended, a bit each. Native code reads it.
    """

    def __init__(self, warps: int) -> None:
        self.knows = np.zeros(warps, np.uint32)
        # By the identity of a region, what the grid before does with it.
        self._uses: dict[int, list[_Use]] = {}
        # One for each thread that has waited.
        self._waits: Array = np.empty(0, np.int64)

    @property
    def known(self) -> bool:
        """Whether a thread has waited for its end."""
        return bool(self._waits.size)

    def uses(self, region: Region, touched: TouchedBytes | None, writes: bool) -> None:
        """The grid before writes, or else reads, these bytes of a region, or perhaps all."""
        self._uses.setdefault(id(region), []).append(_Use(writes, touched))

    def waited(self, frame: Frame, lanes: Array) -> None:
        """`lanes` have executed `griddepcontrol.wait`."""
        machine = frame.machine
        threads = lanes + machine.first_thread
        new = threads[~self._known(threads)]
        self._waits = np.append(self._waits, (machine.clocks.now << STEP_SHIFT) + new)
        self._learn(new)
        machine.tick(machine.launch.clock + 1)

    def check(
        self, frame: Frame, instruction: Instruction, region: Region, index: Array, lanes: Array, width: int, does: str
    ) -> None:
        """`lanes` [n] access `width` bytes at byte `index` [n] of a region that the grid before uses.

        `does` is `"read"`, `"write"` or `"both"`.

        Raises:
            RaceError: one of them does not come after a wait; under strict checks, it comes after one but is `.nc`.
        """
        writes, entry = np.zeros(len(index), np.bool_), ""
        for use in self._uses[id(region)]:
            hit = use.hit(index, width) if use.writes or does != "read" else np.zeros(len(index), np.bool_)
            if use.writes:
                writes |= hit
            entry = "" if use.touched is None else use.touched.entry
            self._check_order(frame, instruction, region, index[hit], lanes[hit], "" if use.writes else _READS, entry)
        if writes.any() and "nc" in instruction.opcode.split("."):
            first = int(np.argmax(writes))
            self._report(frame, instruction, region, int(index[first]), int(lanes[first]), "non-coherent")

    def _check_order(
        self, frame: Frame, instruction: Instruction, region: Region, index: Array, lanes: Array, does: str, entry: str
    ) -> None:
        machine = frame.machine
        threads = lanes + machine.first_thread
        rows = np.flatnonzero(~self._known(threads))
        if not rows.size:
            return
        waits = self._waits
        for row in rows.tolist():
            lane = int(lanes[row])
            if waits.size and machine.clocks.ordered(np.full(len(waits), lane), waits).any():
                self._learn(threads[row : row + 1])
            else:
                self._report(frame, instruction, region, int(index[row]), lane, does, entry)

    def _known(self, threads: Array) -> Array:
        return (self.knows[threads >> _WARP_SHIFT] >> (threads & _LANE).astype(np.uint32)) & 1 != 0

    def _learn(self, threads: Array) -> None:
        np.bitwise_or.at(self.knows, threads >> _WARP_SHIFT, np.uint32(1) << (threads & _LANE).astype(np.uint32))

    def _report(
        self, frame: Frame, instruction: Instruction, region: Region, offset: int, lane: int, does: str, entry: str = ""
    ) -> None:
        machine, shadow = frame.machine, shadow_of(region)
        fields = machine.at(lane, instruction)
        whose = f" (its entry is {entry})" if entry else ""
        error = RaceError(
            f"previous grid race on byte {offset} of {region.name} ({region.space}): block {fields['block']} thread "
            f"{fields['thread']} {_SENTENCES[does]}{whose}; {machine.describe(instruction)}",
            kind="previous grid",
            space=region.space,
            buffer=region.name,
            offset=offset,
            other_block=fields["block"],
            other_thread=None,
            warning=does if does == "non-coherent" else "",
            certain=True,
            **fields,
        )
        shadow.found(machine, error, offset, lane)


@dataclass(frozen=True)
class GridWait:
    """`griddepcontrol.wait`."""

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """The acting lanes know that the grid before this one has ended."""
        previous = frame.machine.launch.previous
        if previous is None or frame.machine.clocks is None:
            return
        where = frame.where(guard)
        lanes = frame.lanes() if where is None else frame.lanes()[where]
        previous.waited(frame, lanes)
