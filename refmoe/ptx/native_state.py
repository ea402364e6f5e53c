"""The machine as native code sees it: registers in one block of memory, and the tables of `context`."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.ptx.isa import DTYPES
from refmoe.ptx.memory import Region
from refmoe.ptx.native.context import HOME_BYTES, LOCAL_ROW, SHARED_ROW, SLOW, Context, Row, starts
from refmoe.ptx.spaces import LOCAL_WINDOW, SHARED_WINDOW

if TYPE_CHECKING:
    from refmoe.ptx.frame import Frame
    from refmoe.ptx.machine import Machine

Array = Any
_ALIGN = 256
_LANES = 32


class NativeState:
    """Registers and tables of one machine.

    Attributes:
        registers: an array [warps, 32] for each home.
        error: what Python code that native code called raised, or None.
    """

    def __init__(self, machine: Machine) -> None:
        code, lanes = machine.code, machine.lanes
        self.machine = machine
        self.error: BaseException | None = None
        begins = starts(code.kinds)
        specials = code.kernel.specials
        size = (begins[-1] + 4 * len(specials)) * lanes
        spare = machine.launch.spare
        if spare and len(spare[-1]) == size + _ALIGN:
            # Pages that were touched before: fresh ones would cost more than what runs on them.
            self._held = spare.pop()
            self._held[:] = 0
        else:
            self._held = np.zeros(size + _ALIGN, np.uint8)
        start = -self._held.ctypes.data % _ALIGN
        block = self._held[start : start + size]
        # Of each warp its homes, one behind the other.
        rows = block.reshape(lanes // _LANES, -1)
        self.registers = [
            rows[:, begin * _LANES : (begin + HOME_BYTES[kind]) * _LANES].view(DTYPES[kind])
            for begin, kind in zip(begins, code.kinds, strict=False)
        ]
        # What changes while lanes run: predefined registers do not.
        self._changing = rows[:, : begins[-1] * _LANES]
        for number, name in enumerate(specials):
            begin = (begins[-1] + 4 * number) * _LANES
            value = machine.specials[name]
            held = rows[:, begin : begin + 4 * _LANES].view(np.uint32)
            held[:] = value.reshape(-1, _LANES) if np.ndim(value) else value
        self._regions = [machine.shared, machine.local, *machine.arena.regions]
        self._rows = np.zeros((len(self._regions), len(Row)), np.int64)
        self._context = np.zeros(len(Context), np.int64)
        self._functions = np.array(code.kernel.variants, np.int64)
        self._symbols = np.array([int(machine.addresses[name]) for name in code.kernel.symbols], np.int64)
        self._approximate = np.zeros(max(len(code.approximate), 1), np.uint8)
        self._slow = SLOW(self._access)
        self._fill(block)

    def enter(self) -> None:
        """These CTAs run from now on: others may have moved the records of buffers."""
        for region in self._regions:
            self._refresh(region)
            if region.shadow is not None:
                region.shadow.changed = self._refresh_all

    def _fill(self, block: Array) -> None:
        machine, context = self.machine, self._context
        shared_offset = np.arange(machine.lanes // 32) // machine.warps * machine.shared.stride
        self._shared_offset = shared_offset.astype(np.int64)
        context[Context.REGISTERS] = block.ctypes.data
        context[Context.WARP_BYTES] = block.size // (machine.lanes // _LANES)
        context[Context.SLOW] = ctypes.cast(self._slow, ctypes.c_void_p).value or 0
        context[Context.FUNCTIONS] = self._functions.ctypes.data
        context[Context.SYMBOLS] = self._symbols.ctypes.data
        context[Context.APPROXIMATE] = self._approximate.ctypes.data
        context[Context.REGIONS] = self._rows.ctypes.data
        context[Context.REGION_COUNT] = len(self._rows)
        context[Context.SHARED_OFFSET] = self._shared_offset.ctypes.data
        context[Context.REFUSE_UNWRITTEN] = machine.checks.uninitialised
        context[Context.FIRST_THREAD] = machine.first_thread
        clocks = machine.clocks
        if clocks is not None:
            context[Context.WARPS] = clocks.warps
            context[Context.FIRST_WARP] = clocks.first_warp
            context[Context.SEEN] = clocks.seen.ctypes.data
            context[Context.SEEN_COLUMNS] = clocks.columns
            context[Context.PUBLISHED] = clocks.published.ctypes.data
            context[Context.ACQUIRED] = clocks.acquired.ctypes.data
            context[Context.BY_LANE] = clocks.by_lane
            context[Context.BULK] = clocks.bulk

    def _refresh_all(self) -> None:
        """Records of accesses moved."""
        for region in self._regions:
            self._refresh(region)

    def _refresh(self, region: Region) -> None:
        """Enter a region as it is now."""
        number = next(i for i, each in enumerate(self._regions) if each is region)
        row = self._rows[number]
        row[Row.BASE] = region.base + {SHARED_ROW: SHARED_WINDOW, LOCAL_ROW: LOCAL_WINDOW}.get(number, 0)
        row[Row.SIZE] = region.size
        row[Row.DATA] = region.data.ctypes.data
        row[Row.VALID] = 0 if region.valid is None else region.valid.ctypes.data
        row[Row.WRITABLE] = region.writable and region.space != "const" and region.watch is None
        row[Row.STRIDE] = region.stride if number == LOCAL_ROW else 0
        shadow = region.shadow
        if shadow is not None:
            shadow.enter(row)

    def leave(self) -> None:
        """No lane of these CTAs runs any more."""
        self.machine.launch.spare.append(self._held)

    def copy(self) -> Array:
        """The registers as they are now."""
        return self._changing.copy()

    def run(self, function: Any, frame: Frame) -> None:
        """Run a native piece for the lanes of a frame.

        Raises:
            PtxError: what an access found.
        """
        numbers, masks = frame.warps()
        context = self._context
        machine = self.machine
        if machine.clocks is not None:
            context[Context.NOW] = machine.clocks.now
        failed = function(context.ctypes.data, numbers.ctypes.data, masks.ctypes.data, len(numbers))
        if self._approximate.any():
            machine.approximate.update(np.flatnonzero(self._approximate).tolist())
        if context[Context.CHANGED]:
            context[Context.CHANGED] = 0
            machine.progress()
        if failed:
            error, self.error = self.error, None
            assert error is not None
            raise error

    def _access(self, site: int, warp: int, mask: int, addresses: int, values: int) -> int:
        """An access of one warp, in Python."""
        try:
            self.machine.code.sites[site](self.machine, warp, mask, addresses, values)
        except BaseException as error:
            # It goes on in `run`: nothing can be raised through native code.
            self.error = error
            return 1
        return 0
