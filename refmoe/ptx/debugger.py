"""A debugger: a launch that stops at lines, shows registers and memory there, and goes on.

    with Debugger(module, entry, grid, block, args) as debugger:
        debugger.stop_at(line=42, thread=(5, 0, 0))
        stop = debugger.go()
        print(stop.register("%r4"), stop.shared("tile", size=64).data)
        stop = debugger.step()

The launch runs in a thread of its own, which waits while it is stopped. Every instruction is a piece of Python then,
and every register has a home, so that all of them can be read at any instruction. That is slower than a launch, and
does the same.

Lanes of one step run an instruction together. So a stop stands in front of an instruction for all of them, and has one
thread in its *focus*: the one that was asked for, or the first. Lanes elsewhere may be ahead or behind, as on a chip.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import numpy as np

from refmoe.errors import ArgumentError, describe
from refmoe.ptx.device_memory import DeviceMemory
from refmoe.ptx.engine.code import Code, View
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Checks, Lanes
from refmoe.ptx.engine.machine import Launch, Machine
from refmoe.ptx.errors import Index3
from refmoe.ptx.launcher import launch
from refmoe.ptx.module import Module
from refmoe.ptx.observe.trace import Trace
from refmoe.ptx.observe.watch import Watch
from refmoe.ptx.result import LaunchResult
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.spaces import OWN_BASE
from refmoe.ptx.text.syntax import Instruction

Array = Any
_WARP = 32
_TYPES = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip


@dataclass(frozen=True)
class StopPoint:
    """Where lanes are to stop.

    Attributes:
        line: of the PTX text, 1-based, or None.
        source: `file:line` of the source, or the end of it (`kernel.cu:14`), or None.
        block, thread: (x, y, z) of those that stop; None for any.
    """

    line: int | None
    source: str | None
    block: Index3 | None = None
    thread: Index3 | None = None

    def fits(self, instruction: Instruction) -> bool:
        """Whether an instruction stands there."""
        if self.line is not None and instruction.line != self.line:
            return False
        return self.source is None or _named(instruction.source, self.source)


@dataclass(frozen=True)
class Bytes:
    """Some bytes of memory as they are at a stop.

    Attributes:
        data: uint8 [n], a copy; bytes that nobody wrote hold 0xCD.
        written: bool [n], whether they are initialised. What an asynchronous copy has not brought yet is not.
    """

    data: Array
    written: Array

    def values(self, type_: str) -> Array:
        """The bytes as numbers of a type: `u8 u16 u32 u64 s8 s16 s32 s64 f16 f32 f64`.

        Raises:
            ArgumentError: there is no such type, or their number is no multiple of its size.
        """
        dtype = _dtype(type_)
        if self.data.size % dtype.itemsize:
            raise ArgumentError("size", f"{self.data.size} bytes", f"a multiple of {dtype.itemsize} for {type_}")
        return self.data.view(dtype)


@dataclass(frozen=True)
class WarpPlace:
    """Lanes of a warp that are at one place.

    Attributes:
        block: (x, y, z).
        warp: of the block, counted from 0.
        lanes: which of the warp, a bit each.
        state: `"here"` (at the stop), `"ready"`, `"gathering"` (they wait for the other lanes of a warp-level
            instruction), `"parked"` (at `mbarrier.try_wait`), `"at a barrier"`, `"at the cluster barrier"`, `"exited"`.
        line, source, text: of the instruction that they run next; 0, None and nothing for those that have exited.
    """

    block: Index3
    warp: int
    lanes: int
    state: str
    line: int = 0
    source: str | None = None
    text: str = ""

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        next_ = f", line {self.line}{source}: {self.text}" if self.line else ""
        return f"block {self.block} warp {self.warp} lanes 0x{self.lanes:08X} {self.state}{next_}"


class Stop:
    """A launch that stands in front of an instruction. It can be asked until the launch goes on.

    Attributes:
        line, source, text: of the instruction that comes next.
        block, thread: the thread in focus, (x, y, z).
        threads: how many are at this instruction together.
        step: of the launch, counted from 1.
    """

    def __init__(self, debugger: Debugger, frame: Frame, instruction: Instruction, lane: int) -> None:
        self._debugger, self._frame, self._instruction, self._lane = debugger, frame, instruction, lane
        self.line, self.source, self.text = instruction.line, instruction.source, instruction.text
        self.block, self.thread = frame.machine.place_of(lane)
        self.threads = frame.active
        self.step = frame.machine.launch.steps

    def __str__(self) -> str:
        where = f"block {self.block} thread {self.thread} and {self.threads - 1} more"
        return f"step {self.step}, {where} at {self._machine.describe(self._instruction)}"

    @property
    def _machine(self) -> Machine:
        if self._debugger.stopped is not self:
            raise ArgumentError("stop", "one that the launch has left", "the one at which it stands")
        machine = self._frame.machine
        assert isinstance(machine, Machine)
        return machine

    # Registers

    @property
    def registers(self) -> tuple[str, ...]:
        """Names of the kernel's registers. Those of an inlined function begin with its name, as `scale#1:%r3`."""
        return tuple(self._machine.code.homes)

    def register(self, name: str, type_: str | None = None, thread: Index3 | None = None) -> Any:
        """A register of the thread in focus, or of another thread of its block.

        Args:
            name: as in the PTX, `"%r4"`, or a predefined register, `"%tid.x"`.
            type_: how its bits are read, as `Bytes.values` has it; a predicate is a bool, and others are integers
                without a sign if it is left out.
            thread: (x, y, z).

        Raises:
            ArgumentError: there is no such register, thread or type, or the type has another size.
        """
        lane = self._lane if thread is None else self._lane_of(thread)
        return self._all(name, type_)[lane].item()

    def of_warp(self, name: str, type_: str | None = None) -> Array:
        """A register of all lanes of the warp in focus, [32]; see `register`."""
        first = self._lane & ~(_WARP - 1)
        return self._all(name, type_)[first : first + _WARP].copy()

    def _all(self, name: str, type_: str | None) -> Array:
        """A register of all lanes of the machine."""
        machine = self._machine
        if name in machine.code.homes:
            values = machine.registers[machine.code.homes[name][0]].reshape(-1)
        elif name in machine.specials:
            values = np.broadcast_to(machine.specials[name], (machine.lanes,))
        else:
            raise ArgumentError("register", describe(name), f"a register of {machine.code.entry.name}")
        if type_ is None:
            return values
        dtype = _dtype(type_)
        if dtype.itemsize != values.dtype.itemsize or values.dtype == np.bool_:
            raise ArgumentError("type", f"{type_} for {name}", f"one of the size of {values.dtype}")
        return np.ascontiguousarray(values).view(dtype)

    def _lane_of(self, thread: Index3) -> int:
        machine = self._machine
        x, y, z = machine.launch.block
        if not all(0 <= index < size for index, size in zip(thread, (x, y, z), strict=True)):
            raise ArgumentError("thread", f"{thread}", f"a thread of a block of {machine.launch.block}")
        own = int(machine.lane_cta[self._lane]) * machine.warps * _WARP
        return own + thread[0] + x * (thread[1] + y * thread[2])

    # Memory

    def buffer(self, name: str, first: int = 0, size: int | None = None) -> Bytes:
        """Bytes of a buffer in device memory, up to its end if no size is given.

        `name` is that of a `Buffer`, of a variable of the module, or of the parameter that points into it.

        Raises:
            ArgumentError: there is no such buffer, or it has no such bytes.
        """
        machine = self._machine
        parameters, *regions = machine.arena.regions
        named = {region.name: region for region in regions}
        offset = machine.code.layout.parameters.get(name)
        if name not in named and offset is not None:
            region = machine.arena.window(int.from_bytes(parameters.data[offset : offset + 8].tobytes(), "little"))
            if region is not None and region is not parameters:
                named[name] = region
        if name not in named:
            raise ArgumentError("buffer", describe(name), f"one of {', '.join(named) or 'none'}")
        return _bytes(named[name], 0, name, first, size)

    def shared(self, first: int | str = 0, size: int | None = None) -> Bytes:
        """Bytes of the shared memory of the block in focus, from a byte or a variable on.

        Raises:
            ArgumentError: there is no such variable, or there are no such bytes.
        """
        machine = self._machine
        owner = int(machine.lane_cta[self._lane])
        return _bytes(machine.shared, owner, "shared memory", self._offset("shared", first), size)

    def local(self, first: int | str = 0, size: int | None = None) -> Bytes:
        """Bytes of the local memory of the thread in focus, from a byte or a variable on.

        Raises:
            ArgumentError: there is no such variable, or there are no such bytes.
        """
        return _bytes(self._machine.local, self._lane, "local memory", self._offset("local", first), size)

    def _offset(self, space: str, first: int | str) -> int:
        if not isinstance(first, str):
            return first
        layout = self._machine.code.layout
        names = [name for name, lies in layout.spaces.items() if lies == space]
        if first not in names:
            raise ArgumentError("variable", describe(first), f"one in {space} memory: {', '.join(names) or 'none'}")
        return layout.addresses[first] - OWN_BASE

    # Lanes

    def where(self) -> tuple[WarpPlace, ...]:
        """Where the warps of all blocks are that run together with this one, in their order."""
        machine = self._machine
        groups: list[tuple[str, Instruction | None, Array]] = [("here", self._instruction, self._frame.mask)]
        groups += machine.whereabouts(self._frame.mask)
        exists = np.arange(machine.lanes) % (machine.warps * _WARP) < int(np.prod(machine.launch.block))
        groups.append(("exited", None, exists & ~machine.alive))
        found = []
        for state, instruction, lanes in groups:
            bits = np.packbits(lanes, bitorder="little").view("<u4")
            at = () if instruction is None else (instruction.line, instruction.source, instruction.text)
            for warp in np.flatnonzero(bits).tolist():
                block, _ = machine.place_of(warp * _WARP)
                place = WarpPlace(block, warp % machine.warps, int(bits[warp]), state, *at)
                found.append((warp, int(bits[warp]) & -int(bits[warp]), place))
        return tuple(place for _, _, place in sorted(found, key=lambda each: each[:2]))


class _Abandoned(BaseException):
    """The launch is to end where it is."""


class Debugger:
    """A launch under control; the arguments are those of `refmoe.ptx.launch`. Use it in a `with`.

    Attributes:
        stopped: where the launch stands, or None before it begins and after it has ended.
        result: what the launch did, or None as long as it has not ended.
    """

    def __init__(
        self,
        module: Module,
        entry: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_bytes: int = 0,
        checks: Checks | None = None,
        *,
        trace: Trace | None = None,
        memory: DeviceMemory | None = None,
        watch: Watch | None = None,
        blocks: Sequence[int | Sequence[int]] | None = None,
        cluster: Sequence[int] | None = None,
        cooperative: bool = False,
        multiprocessors: int | None = None,
    ) -> None:
        """Nothing runs yet: arguments are checked when it does.

        Raises:
            ArgumentMismatch: there is no such entry.
            ParseError: a statement of its body has no end, with the line.
            UnknownOpcode: it has more calls than an entry takes in.
        """
        code = module.compile(entry, VIEW)
        self._control = _Control(self, code)

        def run() -> LaunchResult:
            return launch(
                module,
                entry,
                grid,
                block,
                args,
                shared_bytes,
                checks,
                None,
                trace,
                memory,
                watch,
                profile=self._control,
                blocks=blocks,
                cluster=cluster,
                cooperative=cooperative,
                multiprocessors=multiprocessors,
            )

        self._launch = run
        self._thread: threading.Thread | None = None
        self.stopped: Stop | None = None
        self.result: LaunchResult | None = None

    def __enter__(self) -> Debugger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stop_at(
        self,
        line: int | None = None,
        source: str | None = None,
        block: Index3 | None = None,
        thread: Index3 | None = None,
    ) -> StopPoint:
        """Stop in front of a line of the PTX (`line`) or of the source (`source`, as `"kernel.cu:14"`).

        Args:
            line: of the PTX text, 1-based.
            source: the end of a `file:line`.
            block: (x, y, z) of the block that stops; any if left out.
            thread: (x, y, z) of the thread that stops; any if left out.

        Raises:
            ArgumentError: neither line nor source is given, or no instruction of the kernel stands there.
        """
        if line is None and source is None:
            raise ArgumentError("stop_at", "neither line nor source", "one of them")
        point = StopPoint(line, source, block, thread)
        instructions = self._control.instructions
        if not any(map(point.fits, instructions)):
            found = f"line {line}" if source is None else source if line is None else f"line {line} of {source}"
            lines = sorted({each.line if source is None else each.source or "" for each in instructions} - {""})
            shown = ", ".join(map(str, lines[:12])) + (", ..." if len(lines) > 12 else "")
            raise ArgumentError("stop_at", found, f"a line with an instruction: {shown or 'none has a source line'}")
        self._control.points.append(point)
        return point

    def forget(self, point: StopPoint) -> None:
        """Do not stop there any more.

        Raises:
            ArgumentError: it is none of the debugger's stop points.
        """
        if point not in self._control.points:
            raise ArgumentError("point", describe(point), "one that stop_at gave")
        self._control.points.remove(point)

    def go(self) -> Stop | None:
        """Run to the next stop point; None if the launch has ended.

        Raises:
            ArgumentMismatch: the launch does not fit the entry.
            PtxError: what went wrong in the launch, which has ended then.
        """
        return self._order("go")

    def step(self, by: str = "ptx") -> Stop | None:
        """Run the thread in focus to its next line, of the PTX or (`by="source"`) of the source.

        Stop points are passed by. If the thread exits, the launch runs to the next stop point. A launch that has not
        begun stops at its first line.

        Returns:
            Where it stands, or None if the launch has ended.

        Raises:
            ArgumentError: another `by`.
            PtxError: what went wrong in the launch, which has ended then.
        """
        if by not in ("ptx", "source"):
            raise ArgumentError("by", describe(by), "'ptx' or 'source'")
        return self._order(by)

    def close(self) -> None:
        """End the launch where it is; the caller's arrays are then as they were."""
        self._control.leaving = True
        if self._thread is not None:
            self._control.orders.put("leave")
            self._thread.join()
        self._thread, self.stopped = None, None

    def _order(self, order: str) -> Stop | None:
        control = self._control
        self.stopped = None
        if control.leaving:
            return None
        if self._thread is None:
            control.wanted = order
            # It ends with the program, whatever happens to this object.
            self._thread = threading.Thread(target=self._run, name="refmoe debugger", daemon=True)
            self._thread.start()
        else:
            control.orders.put(order)
        told = control.told.get()
        if isinstance(told, Stop):
            self.stopped = told
            return told
        self._thread.join()
        self._thread, control.leaving = None, True
        if isinstance(told, BaseException):
            raise told
        self.result = told
        return None

    def _run(self) -> None:
        """In the launch's thread."""
        try:
            self._control.told.put(self._launch())
        except BaseException as error:
            # It goes on where the debugger was told to go on.
            self._control.told.put(error)


class _Control:
    """What a debugger does in the launch's thread: it is told of every instruction, and holds the launch up.

    Attributes:
        view: nothing is native, and every register has a home.
        instructions: of the entry, in the order of the text.
        points: where to stop.
        wanted: `"go"`, or what the thread in focus is to leave: the `"ptx"` or the `"source"` line.
        leaving: whether the launch is to end, or has ended.
        told: stops, and how the launch ended.
        orders: what to do next.
    """

    def __init__(self, debugger: Debugger, code: Code) -> None:
        self._debugger = debugger
        blocks = code.program.blocks
        found = [each for block in blocks for each in (*block.instructions, block.terminator.instruction)]
        self.view = VIEW
        self.instructions = sorted((each for each in found if each is not None), key=lambda each: each.line)
        self.points: list[StopPoint] = []
        self.wanted = "go"
        self.leaving = False
        self.told: SimpleQueue[Stop | LaunchResult | BaseException] = SimpleQueue()
        self.orders: SimpleQueue[str] = SimpleQueue()
        self._number = {id(each): number for number, each in enumerate(self.instructions)}
        # Of each lane of a machine, the number of the instruction that it ran last, or -1.
        self._before: dict[Lanes, Array] = {}
        self._focus: tuple[Lanes, int, Instruction] | None = None

    def attach(self, launch: Launch) -> None:
        """The launch begins."""

    def step(self, place: int, frame: Frame) -> None:
        """Nothing is asked of whole steps."""

    def at(self, frame: Frame, instruction: Instruction) -> None:
        """Lanes are in front of an instruction: stop there, or go on."""
        if not self.leaving:
            lane = self._stops(frame, instruction)
            self._ran(frame)[frame.mask] = self._number[id(instruction)]
            if lane is None:
                return
            self._focus = frame.machine, lane, instruction
            self.told.put(Stop(self._debugger, frame, instruction, lane))
            self.wanted = self.orders.get()
        if self.leaving:
            raise _Abandoned

    def _ran(self, frame: Frame) -> Array:
        machine = frame.machine
        if machine not in self._before:
            self._before[machine] = np.full(machine.lanes, -1, np.int64)
        return self._before[machine]

    def _stops(self, frame: Frame, instruction: Instruction) -> int | None:
        """The lane for whose sake the launch stops here, or None."""
        if self.wanted != "go":
            if self._focus is None:
                return frame.first_active(None)
            machine, lane, last = self._focus
            if machine.alive[lane]:
                here = frame.machine is machine and frame.mask[lane]
                return lane if here and self._left(instruction, last) else None
        for point in self.points:
            if point.fits(instruction):
                lanes = self._coming(frame, instruction, point)
                if lanes.any():
                    return int(np.argmax(lanes))
        return None

    def _left(self, instruction: Instruction, last: Instruction) -> bool:
        """Whether the thread in focus has come to another line, or once more to the same."""
        if self.wanted == "source":
            return instruction.source is not None and instruction.source != last.source
        return instruction.line != last.line or self._number[id(instruction)] <= self._number[id(last)]

    def _coming(self, frame: Frame, instruction: Instruction, point: StopPoint) -> Array:
        """bool [lanes], those that a point means and that have come to its line: not from earlier on the same line."""
        machine, number = frame.machine, self._number[id(instruction)]
        lanes = frame.mask.copy()
        if point.block is not None or point.thread is not None:
            for lane in np.flatnonzero(lanes).tolist():
                block, thread = machine.place_of(lane)
                lanes[lane] = point.block in (None, block) and point.thread in (None, thread)
        earlier = self._ran(frame)[lanes]
        inside = np.array([0 <= each < number and point.fits(self.instructions[each]) for each in earlier], bool)
        lanes[lanes] = ~inside
        return lanes


VIEW = View("debugger", lambda _: False, True, lambda work: work)


def _bytes(region: Region, owner: int, name: str, first: int, size: int | None) -> Bytes:
    """Bytes of one owner's part of a region."""
    count = region.size - first if size is None else size
    if not 0 <= first <= region.size - count or count < 0:
        raise ArgumentError("bytes", f"{count} from {first} on", f"bytes of {name}, which has {region.size}")
    begin = owner * region.stride + first
    data = region.bytes(begin, count)
    written = np.ones(count, bool) if region.valid is None else region.valid[begin : begin + count] != 0
    return Bytes(data, written)


def _dtype(name: str) -> np.dtype[Any]:
    if name not in _TYPES:
        raise ArgumentError("type", describe(name), f"one of {' '.join(_TYPES)}")
    return np.dtype(_TYPES[name])


def _named(source: str | None, wanted: str) -> bool:
    """Whether `file:line` is what somebody calls `wanted`, who may leave out folders."""
    return source is not None and (source == wanted or source.endswith(f"/{wanted}"))
