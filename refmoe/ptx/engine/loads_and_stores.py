"""Loads and stores of one instruction: addresses to bytes, every lane checked before anything is touched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from refmoe.ptx.engine.cluster.memory import owners_of, whose
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.local_pointers import own_windows, owner_of
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.errors import MemoryFault
from refmoe.ptx.program.provenance import Bounds
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.spaces import LOCAL_WINDOW, OWN_BASE, OWNER_SHIFT, RANK_SHIFT, SHARED_WINDOW, WINDOW_BITS
from refmoe.ptx.text.syntax import Instruction

Array = Any
_SPACE_SHIFT = np.uint64(56)
_WINDOW_SHIFT = np.uint64(WINDOW_BITS)


@dataclass(frozen=True)
class Access:
    """What every memory instruction has.

    Attributes:
        instruction: for messages.
        space: `"generic" "global" "const" "param" "shared" "local"`.
        size: bytes of one element.
        count: elements.
        strength: with whom a strong access is morally strong, see `refmoe.ptx.state.records`; 0 for a weak one.
        acquires, releases: whether the access by itself orders later ones after it, earlier ones before it; else a
            fence must.
        coherent: not `.nc`.
        observes: whether it gives its thread what it reads: not a store, and not `red`.
        align: bytes of which addresses must be multiples; 0 for the width.
        bounds: of the shared variable that the address was made from, if it is known.
    """

    instruction: Instruction
    space: str
    size: int
    count: int
    strength: int = 0
    acquires: bool = False
    releases: bool = False
    coherent: bool = True
    observes: bool = True
    align: int = 0
    bounds: Bounds | None = None
    verb: ClassVar[str] = "read"

    @property
    def width(self) -> int:
        """Bytes."""
        return self.size * self.count

    @cached_property
    def unit(self) -> int:
        """Bytes of each of the accesses that it is made of: vectors and packed types are several, in any order.

        (PTX ISA, "Vector Data Types" and "Packed Data Types" of the memory consistency model.)
        """
        types = self.instruction.opcode.split(".")
        if "b128" in types:
            return self.width
        return self.size // 2 if "f16x2" in types or "bf16x2" in types else self.size

    def elements(self, index: Array, lanes: Array) -> tuple[Array, Array]:
        """Byte index and lane of each of the accesses that those of `lanes` [n] at byte `index` [n] are made of."""
        unit, width = self.unit, self.width
        if unit == width:
            return index, lanes
        steps = np.arange(0, width, unit)
        return (index[:, None] + steps).ravel(), np.repeat(lanes, len(steps))

    def _records(self, region: Region, index: Array, lanes: Array) -> Array:
        """The records of the last writes of those `elements`."""
        return shadow_of(region).written_by_one(self.elements(index, lanes)[0], self.unit)

    def _parts(self, frame: Frame, address: Array, lanes: Array) -> Iterator[tuple[Region, Array | None, Array]]:
        """Split lanes by the memory they address: (region, which lanes or None for all, byte index in its data)."""
        machine = frame.machine
        if self.space == "shared":
            yield self._own(frame, machine.shared, address, lanes, machine.lane_cta, None)
        elif self.space == "local":
            yield self._own(frame, machine.local, address, lanes, None, None)
        elif self.space != "generic" or not (address >> _SPACE_SHIFT).any():
            yield from self._buffers(frame, address, lanes, None)
        else:
            kinds = address >> _SPACE_SHIFT
            for kind in np.unique(kinds):
                which = kinds == kind
                chosen, theirs = address[which], lanes[which]
                if kind == SHARED_WINDOW >> 56:
                    offset = chosen - np.uint64(SHARED_WINDOW)
                    yield self._own(frame, machine.shared, offset, theirs, machine.lane_cta, which)
                elif kind == LOCAL_WINDOW >> 56:
                    yield self._own(frame, machine.local, self._local(frame, chosen, theirs), theirs, None, which)
                else:
                    yield from self._buffers(frame, chosen, theirs, which)

    def _local(self, frame: Frame, address: Array, lanes: Array) -> Array:
        """Addresses in local memory of generic ones, which have to be in that of the lanes themselves."""
        machine = frame.machine
        found: Array = address - own_windows(machine, lanes)
        if machine.checks.bounds:
            beyond = found >> np.uint64(OWNER_SHIFT) != 0
            for bad in np.flatnonzero(beyond).tolist():
                owner = owner_of(machine, int(address[bad]))
                if owner is not None:
                    block, thread = machine.place_of_thread(owner)
                    offset = (int(address[bad]) & (1 << OWNER_SHIFT) - 1) - OWN_BASE
                    whose = f" of block {block} thread {thread}"
                    self._fault(frame, "another thread's", lanes[bad], int(address[bad]), machine.local, offset, whose)
        return found & np.uint64((1 << OWNER_SHIFT) - 1)

    def places(self, frame: Frame, address: Array, lanes: Array) -> Iterator[tuple[Region, Array | None, Array]]:
        """`_parts` for a read without effect on what is known of races."""
        for region, which, index in self._parts(frame, address, lanes):
            self._check_valid(frame, region, index, pick(lanes, which))
            yield region, which, index

    def _own(
        self, frame: Frame, region: Region, address: Array, lanes: Array, owner: Array | None, which: Array | None
    ) -> tuple[Region, Array | None, Array]:
        owners = lanes if owner is None else owner[lanes]
        if owner is not None and int(address.max()) >> RANK_SHIFT and self._reaches_others:
            owners, address = owners_of(frame.machine, address, lanes)
            self._check_present(frame, region, address, lanes, owners)
        offset = address - np.uint64(OWN_BASE)
        checks = frame.machine.checks
        if checks.bounds and (region.size < self.width or int(offset.max()) > region.size - self.width):
            bad = int(np.argmax(offset > region.size - self.width)) if region.size >= self.width else 0
            self._fault(frame, "out of bounds", lanes[bad], int(address[bad]), region, int(offset[bad].view(np.int64)))
        if checks.bounds and self.bounds is not None and owner is not None:
            self._check_variable(frame, self.bounds, offset, address, lanes, region)
        self._check_alignment(frame, offset, address, lanes, region)
        if not checks.bounds:
            offset = np.minimum(offset, np.uint64(max(region.size - self.width, 0)))
        return region, which, offset.view(np.int64) + owners * region.stride

    def _check_variable(
        self, frame: Frame, bounds: Bounds, offset: Array, address: Array, lanes: Array, region: Region
    ) -> None:
        room = bounds.end - bounds.begin - self.width
        beyond = (offset - np.uint64(bounds.begin) > np.uint64(max(room, 0))) | (room < 0)
        if beyond.any():
            bad = int(np.argmax(beyond))
            at = int(offset[bad].view(np.int64))
            size = f" of {bounds.end - bounds.begin} bytes" if bounds.end < 1 << 32 else ""
            what = (
                f", byte {at - bounds.begin} of the shared variable {bounds.name}{size}, which the address is made from"
            )
            self._fault(frame, "out of bounds", lanes[bad], int(address[bad]), region, at, what)

    @property
    def _reaches_others(self) -> bool:
        """Whether it may access the shared memory of other blocks of the cluster."""
        return self.space == "generic" or "shared::cluster" in self.instruction.opcode

    def _check_present(self, frame: Frame, region: Region, address: Array, lanes: Array, owners: Array) -> None:
        machine = frame.machine
        alive: Array = machine.alive.reshape(machine.ctas, -1).any(axis=1)
        present = alive[owners]
        if not present.all():
            bad = int(np.argmin(present))
            block, _ = machine.place_of(int(owners[bad]) * machine.warps * 32)
            what = f", gone with block {block}, which has exited"
            self._fault(frame, "gone", lanes[bad], int(address[bad]), region, int(address[bad]) - OWN_BASE, what)
        if machine.clocks is not None:
            started = machine.started(lanes, owners)
            if not started.all():
                bad = int(np.argmin(started))
                block, _ = machine.place_of(int(owners[bad]) * machine.warps * 32)
                what = f" of block {block}, which may not have started: no barrier.cluster lies between"
                self._fault(
                    frame, "not started", lanes[bad], int(address[bad]), region, int(address[bad]) - OWN_BASE, what
                )

    def _buffers(
        self, frame: Frame, address: Array, lanes: Array, which: Array | None
    ) -> Iterator[tuple[Region, Array | None, Array]]:
        arena = frame.machine.arena
        region = arena.window(int(address[0]))
        if region is not None:
            offset = address - np.uint64(region.base)
            if region.size >= self.width and int(offset.max()) <= region.size - self.width:
                self._check_alignment(frame, offset, address, lanes, region)
                yield region, which, offset.view(np.int64)
                return
        windows = address >> _WINDOW_SHIFT
        if windows.min() != windows.max():
            for window in np.unique(windows):
                part = windows == window
                inner = part
                if which is not None:
                    inner = which.copy()
                    inner[which] = part
                yield from self._buffers(frame, address[part], lanes[part], inner)
            return
        if region is None or frame.machine.checks.bounds:
            bad = 0
            if region is not None and region.size >= self.width:
                bad = int(np.argmax(address - np.uint64(region.base) > region.size - self.width))
            near, near_offset = arena.nearest(int(address[bad]))
            kind = "unmapped" if near is None else "out of bounds"
            self._fault(frame, kind, lanes[bad], int(address[bad]), near, near_offset)
            return
        yield region, which, np.clip(offset, 0, max(region.size - self.width, 0)).view(np.int64)

    def _check_alignment(self, frame: Frame, offset: Array, address: Array, lanes: Array, region: Region) -> None:
        # The bases of all regions are multiples of every access width.
        align = self.align or self.width
        if align > 1 and frame.machine.checks.alignment:
            low = np.uint64(align - 1)
            if int(np.bitwise_or.reduce(offset)) & int(low):
                bad = int(np.argmax((offset & low) != 0))
                self._fault(frame, "misaligned", lanes[bad], int(address[bad]), region, int(offset[bad].view(np.int64)))

    def _check_valid(self, frame: Frame, region: Region, index: Array, lanes: Array) -> None:
        if region.valid is None or not frame.machine.checks.uninitialised:
            return
        written = region.words(self.width, of_valid=True).take(index // self.width, axis=0)
        if written.size and int(np.bitwise_and.reduce(written, axis=None)) != (1 << min(self.width, 8) * 8) - 1:
            complete = written == np.iinfo(written.dtype).max
            bad = int(np.argmin(complete if complete.ndim == 1 else complete.all(axis=1)))
            undefined = frame.machine.undefined
            if undefined is not None and undefined.carries(self, region, index):
                return
            first = int(index[bad])
            byte = first + int(np.argmin(region.valid[first : first + self.width]))
            raise self.uninitialised(frame.machine, region, first, byte, int(lanes[bad]))

    def uninitialised(
        self, machine: Lanes, region: Region, index: int, byte: int, lane: int, use: str = ""
    ) -> MemoryFault:
        """The error of a lane that reads bytes of a region that nobody wrote.

        Args:
            machine: whose lane.
            region: what is read.
            index: of the first byte that is read.
            byte: of the first one among them that nobody wrote.
            lane: who reads it.
            use: where the value is used, if it may be read.
        """
        offset = (index % region.stride if region.stride else index) + byte - index
        owner = whose(machine, region, index)
        return self._error(machine, "uninitialised", lane, region.base + offset, region, offset, owner, use)

    def _check_writable(self, frame: Frame, region: Region, index: Array, lanes: Array) -> None:
        if not region.writable or region.space == "const":
            self._fault(frame, "read only", lanes[0], region.base + int(index[0]), region, int(index[0]))

    def _fault(
        self,
        frame: Frame,
        kind: str,
        lane: int,
        address: int,
        region: Region | None,
        offset: int | None,
        detail: str = "",
    ) -> None:
        raise self._error(frame.machine, kind, lane, address, region, offset, detail)

    def _error(
        self,
        machine: Lanes,
        kind: str,
        lane: int,
        address: int,
        region: Region | None,
        offset: int | None,
        detail: str = "",
        use: str = "",
    ) -> MemoryFault:
        fields = machine.at(lane, self.instruction)
        name = None if region is None else region.name
        where = f"address 0x{address:X}" if region is None else f"byte {offset} of {name} ({region.size} bytes)"
        flight, under_way = detail, False
        if kind == "out of bounds" and region is machine.shared:
            flight += _not_given(machine)
        if kind == "uninitialised" and region is machine.shared and offset is not None:
            byte = int(machine.lane_cta[lane]) * region.stride + offset
            if under_way := machine.under_way(byte):
                flight += ", to which an asynchronous copy that nobody has waited for is under way"
        used = f"; its value {use}" if use else ""
        return MemoryFault(
            f"{kind}: {self.space} {self.verb} of {self.width} bytes at {where}{flight}, "
            f"block {fields['block']} thread {fields['thread']}, {machine.describe(self.instruction)}{used}",
            kind=kind,
            space=self.space,
            address=address,
            buffer=name,
            offset=offset,
            size=self.width,
            use=use,
            under_way=under_way,
            **fields,
        )


def _not_given(machine: Lanes) -> str:
    """What is said of a launch that gives a kernel no dynamic shared memory though it has a variable there."""
    names = machine.launch.dynamic
    if not names or machine.launch.dynamic_bytes:
        return ""
    return (
        f"; {names[0]} is dynamic shared memory (extern __shared__), of which the launch gives 0 bytes: "
        "say how many with shared=, or with --shared of `refmoe run`"
    )


def pick(array: Array, which: Array | None) -> Array:
    """Some of an array, or all of it."""
    return array if which is None else array[which]


@dataclass(frozen=True, kw_only=True)
class Load(Access):
    """A load. `signed`: elements are sign-extended; `dtypes`: of the destination registers, None for a sink."""

    signed: bool
    dtypes: tuple[Any, ...]

    def __call__(self, frame: Frame, address: Array, guard: Array | None) -> tuple[Array, ...]:
        """The values of the destination registers; what inactive lanes get is never seen."""
        if not isinstance(address, np.ndarray) and self.space in ("global", "const", "param"):
            strong = frame.machine.strong
            # Under a schedule the lanes may each see another write.
            if not self.strength or strong is None or strong.choices is None:
                return self._uniform(frame, address, guard)
        where, lanes, chosen = frame.select(address, guard)
        raw = self._read(frame, chosen, lanes)
        if where is None:
            return tuple(self._registers(raw))
        results = []
        for value in self._registers(raw):
            spread = np.zeros(frame.count, value.dtype)
            spread[where] = value
            results.append(spread)
        return tuple(results)

    def _uniform(self, frame: Frame, address: Array, guard: Array | None) -> tuple[Array, ...]:
        lane = frame.first_active(guard)
        if lane is None:
            return tuple(np.dtype(dtype).type(0) for dtype in self.dtypes if dtype is not None)
        region = frame.machine.arena.window(int(address))
        lanes = np.array([lane])
        if self.strength or (region is not None and region.shadow is not None):
            # One read gives the value, but every lane that reads has its own place in the order of things.
            lanes = frame.select(address, guard)[1]
        raw = self._read(frame, np.full(len(lanes), address, np.uint64), lanes)
        return tuple(value[0] for value in self._registers(raw))

    def _read(self, frame: Frame, address: Array, lanes: Array) -> Array:
        """Elements [count, lanes] of the access type."""
        dtype = np.dtype(f"u{self.size}")
        result = None
        if address.size == 0:
            return np.zeros((self.count, 0), dtype)
        for region, which, index in self._parts(frame, address, lanes):
            theirs = pick(lanes, which)
            self._check_valid(frame, region, index, theirs)
            if region.shadow is not None:
                shadow_of(region).read(frame, self, region, index, theirs)
            if frame.machine.undefined is not None:
                frame.machine.undefined.loaded(self, region, index, theirs, which, len(lanes))
            words = region.read(self.width, index // self.width)
            if region.shadow is not None and self.strength:
                words = self._acquire(frame, region, index, theirs, words)
            if self.count == 1:
                elements = words[None]
            else:
                elements = np.ascontiguousarray(words.view(dtype).reshape(-1, self.count).T)
            if which is None:
                return elements
            if result is None:
                result = np.zeros((self.count, len(lanes)), dtype)
            result[:, which] = elements
        assert result is not None
        return result

    def _acquire(self, frame: Frame, region: Region, index: Array, lanes: Array, words: Array) -> Array:
        """What a strong load reads: `words`, or older ones. It learns what the write that it reads from passes on."""
        machine, strong = frame.machine, frame.machine.strong
        if strong.choices is not None:
            records = self._records(region, index, lanes).reshape(len(index), -1).tolist()
            seen = [
                strong.see(self, region, at, lane, elements, machine.alive)
                for at, lane, elements in zip(index.tolist(), lanes.tolist(), records, strict=True)
            ]
            return np.frombuffer(b"".join(seen), words.dtype).reshape(words.shape)
        if strong.is_busy:
            records = self._records(region, index, lanes)
            strong.read(self, region, *self.elements(index, lanes), records, machine.alive)
        return words

    def _registers(self, raw: Array) -> Iterator[Array]:
        for element, dtype in zip(raw, self.dtypes, strict=True):
            if dtype is None:
                continue
            if element.dtype == dtype:
                yield element
            elif self.signed:
                wide = np.dtype(f"i{np.dtype(dtype).itemsize}")
                yield element.view(np.dtype(f"i{self.size}")).astype(wide).view(dtype)
            else:
                yield element.astype(dtype)


@dataclass(frozen=True)
class Store(Access):
    """A store of the low bits of its source registers."""

    verb = "write"

    def __call__(self, frame: Frame, address: Array, guard: Array | None, values: tuple[Array, ...]) -> None:
        """Write `values`, one for each element."""
        where, lanes, chosen = frame.select(address, guard)
        if chosen.size == 0:
            return
        chosen_values = [
            value[where] if where is not None and isinstance(value, np.ndarray) and value.ndim else value
            for value in values
        ]
        words = self.words(chosen_values, len(lanes))
        machine = frame.machine
        if self.strength and (order := machine.lane_order(lanes)) is not None:
            # Of two lanes that write one byte in one instruction the last one wins. (Two weak writes are a race.)
            lanes, chosen, words = lanes[order], chosen[order], words[order]
        if self.space == "shared":
            machine.stored()
        else:
            machine.progress()
        for region, which, index in self._parts(frame, chosen, lanes):
            theirs = pick(lanes, which)
            self.put(frame, region, index, theirs, pick(words, which))
            if machine.undefined is not None:
                machine.undefined.stored(self, region, index, theirs, which)
            tell_watch(machine, self.instruction, region, index, self.width, theirs)
        if self.strength and machine.clocks is not None:
            machine.tick(machine.launch.clock + 1)

    def words(self, values: Sequence[Array], lanes: int) -> Array:
        """`values` of the elements as words of the access's width: [lanes], or [lanes, width / 8] above 8 bytes."""
        block = np.empty((lanes, self.count), np.dtype(f"u{self.size}"))
        for column, value in enumerate(values):
            # Assignment keeps the low bits of a register wider than the element.
            block[:, column] = value
        words = block.view(np.dtype(f"u{min(self.width, 8)}"))
        return words[:, 0] if self.width <= 8 else words

    def put(self, frame: Frame, region: Region, index: Array, lanes: Array, words: Array) -> None:
        """`lanes` [n] write `words` [n] at byte `index` [n] of a region."""
        self._check_writable(frame, region, index, lanes)
        if region.shadow is not None and self.strength and frame.machine.strong.choices is not None:
            frame.machine.launch.single_stores += len(index)
            for row in range(len(index)):
                self._put_anywhere(frame, region, index[row : row + 1], lanes[row : row + 1], words[row : row + 1])
            return
        if region.shadow is not None:
            shadow_of(region).before_write(frame, self, region, index, lanes, words)
        region.write(self.width, index // self.width, words)
        if region.shadow is not None:
            shadow_of(region).after_write(frame, self, region, index, lanes, words)
            if self.strength:
                records = self._records(region, index, lanes)
                frame.machine.strong.write(self, region, *self.elements(index, lanes), records)

    def _put_anywhere(self, frame: Frame, region: Region, index: Array, lanes: Array, words: Array) -> None:
        """One strong store, which under a schedule may come before others that are there already."""
        shadow, strong = shadow_of(region), frame.machine.strong
        at, lane = int(index[0]), int(lanes[0])
        before = self._records(region, index, lanes).tolist()
        shadow.before_write(frame, self, region, index, lanes, words)
        last = strong.put(self, region, at, lane, words.tobytes(), before)
        if last:
            region.write(self.width, index // self.width, words)
        elif region.valid is not None:
            valid = region.words(self.width, of_valid=True)
            valid[index // self.width] = ~valid.dtype.type(0)
        strong.written(self, region, at, lane, self._records(region, index, lanes).tolist(), last)


def tell_watch(
    machine: Lanes, instruction: Instruction, region: Region, index: Array, width: int, lanes: Array
) -> None:
    """Tell who watches a region that `lanes` [n] have written `width` bytes each at byte `index` [n]."""
    if region.watch is not None:
        region.watch.wrote(machine.launch.steps, machine.place_of, instruction, region, index, width, lanes)
