"""What `cp.async.bulk` instructions do when they are issued: addresses to words, all checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from refmoe.ptx.engine.bulk.boxes import SHARED_ALIGN, Box, box_of, check_store, words
from refmoe.ptx.engine.bulk.columns import Column, column_of, column_words
from refmoe.ptx.engine.bulk.copies import Bulk, BulkLoads, BulkStores, Cut
from refmoe.ptx.engine.bulk.map_reads import MapRead, reads_of
from refmoe.ptx.engine.bulk.maps import MapLooks, MapUse
from refmoe.ptx.engine.bulk.reduce import Reduction
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.engine.mbarrier import Mbarriers
from refmoe.ptx.state.spaces import RANK_SHIFT, WINDOW_BITS
from refmoe.ptx.state.tensormap import TensorMap
from refmoe.ptx.text.syntax import Instruction

Array = Any
# Of addresses and sizes of plain bulk copies, and the widest word.
_CHUNK = 16


def _sized(access: Access, width: int, align: int = 0) -> Any:
    """The access with another width."""
    size = min(width, 8)
    return replace(access, size=size, count=width // size, align=align)


@dataclass(frozen=True)
class _Part:
    """Copies of equal shape between one buffer and shared memory.

    Attributes:
        rows: which lanes make them.
        whole: the access of all bytes of one in shared memory.
        index: int64 [n], byte index of each in shared memory.
        bytes: what each counts as in its transaction.
        cut: their words.
        reduction: of a tensor, how they are combined with what is there.
        maps: the addresses of their tensor maps, or None.
    """

    rows: Array
    whole: Access
    index: Array
    bytes: int
    cut: Cut
    reduction: Reduction | None = None
    maps: Array | None = None

    def reads(self, frame: Frame, lanes: Array) -> tuple[MapRead | None, ...]:
        """Those of tensor maps that somebody may write, by `lanes` [n]; empty if there are none."""
        if self.maps is None:
            return ()
        groups = frame.machine.part(Bulk).group[lanes]
        found = reads_of(frame.machine).begin(frame, self.whole.instruction, self.maps, lanes, groups)
        return found if any(found) else ()


def _load(frame: Frame, parts: Iterator[_Part], lanes: Array, ids: Array, reduction: Reduction | None = None) -> None:
    """Issue loads of `lanes` that complete on barriers `ids`."""
    for part in parts:
        rows, whole, cut = part.rows, part.whole, part.cut
        flight = BulkLoads(
            whole.instruction, lanes[rows], ids[rows], part.index, whole.width, part.bytes, cut, reduction,
            part.reads(frame, lanes[rows]),
        )  # fmt: skip
        frame.machine.part(Bulk).load(frame, flight, whole)


def _store(frame: Frame, parts: Iterator[_Part], lanes: Array, reduction: Reduction | None = None) -> None:
    """Issue stores of `lanes`."""
    bulk = frame.machine.part(Bulk)
    for part in parts:
        who, whole, cut = lanes[part.rows], part.whole, part.cut
        word = _sized(whole, cut.access.width)
        part.reads(frame, who)
        how = part.reduction or reduction
        group = bulk.group[who]
        bulk.store(frame, BulkStores(whole.instruction, word, who, group, part.index, whole.width, cut, reduction=how))


@dataclass(frozen=True)
class Start:
    """Where the boxes of n lanes begin.

    Attributes:
        coordinates: int64 [n, rank].
        offsets: int64 [n, rank - 2], im2col offsets along W, H and D; without them there are 0, or zeros.
    """

    coordinates: Array
    offsets: Array

    @classmethod
    def read(
        cls, frame: Frame, where: Array | None, coordinates: tuple[Array, ...], offsets: tuple[Array, ...]
    ) -> Start:
        """Those of the lanes that `select` chose, out of registers of 32 bits and of 16."""
        numbers = [frame.acting(where, value).astype(np.uint32).view(np.int32) for value in coordinates]
        further = [frame.acting(where, value) for value in offsets]
        begin = np.stack(numbers, axis=1).astype(np.int64)
        if not further:
            return cls(begin, np.zeros((len(begin), max(len(numbers) - 2, 0)), np.int64))
        return cls(begin, np.stack(further, axis=1).astype(np.int64))

    def of(self, which: Array) -> Start:
        """Those of some of the lanes."""
        return Start(self.coordinates[which], self.offsets[which])


def check_map(found: TensorMap, mode: str, rank: int) -> None:
    """Refuse maps of another mode than the instruction's, or of another rank.

    Raises:
        ValueError: which they are.
    """
    if found.mode != mode:
        raise ValueError(f"a tensor map of mode {found.mode}, by which no copy of mode {mode} goes")
    if found.rank != rank:
        raise ValueError(f"a tensor map of rank {found.rank} and {rank} coordinates")


def _boxes(
    frame: Frame,
    use: MapUse,
    own: Access,
    access: Access,
    address: Array,
    where: Start,
    shared: Array,
    lanes: Array,
    mode: str,
    operation: str | None = None,
) -> Iterator[_Part]:
    """Group the boxes of lanes, which begin at addresses `shared`; every word in its tensor must lie in the buffer.

    `mode`: that of tensor maps that the instruction goes by.
    `operation`: what they are combined with what is there by, or None.
    """
    storing, rank = isinstance(access, Store), where.coordinates.shape[1]
    maps = use.maps(frame, address, lanes)

    def sort() -> tuple[_Alike, ...]:
        return tuple(_alike(frame, access, maps, rank, shared, lanes, mode, operation))

    key = rank, shared.tobytes(), mode, operation, storing
    for group in frame.machine.part(MapLooks).sorted_by(maps, key, sort):
        rows, box = group.rows, group.box
        cut = _cut(frame, access, group, where.of(rows), lanes[rows])
        whole = group.sized(own, box.span, SHARED_ALIGN)
        _, _, index = next(whole._parts(frame, shared[rows], lanes[rows]))
        yield _Part(rows, whole, index, box.bytes, cut, group.reduction, address[rows])


@dataclass(frozen=True)
class _Alike:
    """Boxes of one shape, in one buffer, that begin at one place of the swizzle.

    Attributes:
        box: their shape.
        phase: of all of them.
        reduction: how they are combined with what is there, or None.
        rows: which lanes make them, int64 [n].
        address: uint64 [n], of their tensors.
        dims: int64 [n, rank], elements of these along each dimension.
    """

    box: Box
    phase: int
    reduction: Reduction | None
    rows: Array
    address: Array
    dims: Array
    _sized: dict[tuple[int, int, int], tuple[Access, Any]] = field(default_factory=dict)

    def sized(self, access: Access, width: int, align: int = 0) -> Any:
        """The access with another width, the same object each time: a loop asks in each turn."""
        key = id(access), width, align
        if key not in self._sized:
            # The access is kept, so that nothing else gets its identity.
            self._sized[key] = access, _sized(access, width, align)
        return self._sized[key][1]


def _alike(
    frame: Frame,
    access: Access,
    maps: tuple[TensorMap, ...],
    rank: int,
    shared: Array,
    lanes: Array,
    mode: str,
    operation: str | None,
) -> Iterator[_Alike]:
    storing, groups = isinstance(access, Store), dict[tuple[Box, int, int, Reduction | None], list[int]]()
    for row, found in enumerate(maps):
        try:
            check_map(found, mode, rank)
            box = (box_of if mode == "tiled" else column_of)(found, storing)
            reduction = None if operation is None else Reduction.of_tensor(operation, found.data_type)
        except ValueError as error:
            raise frame.machine.misuse(access.instruction, lanes[row], str(error)) from error
        key = box, found.address >> WINDOW_BITS, box.phase(int(shared[row])), reduction
        groups.setdefault(key, []).append(row)
    for (box, _, phase, reduction), chosen in groups.items():
        some = [maps[row] for row in chosen]
        address = np.array([found.address for found in some], np.uint64)
        dims = np.array([found.dims[: box.rank] for found in some], np.int64)
        yield _Alike(box, phase, reduction, np.array(chosen), address, dims)


def _cut(frame: Frame, access: Access, group: _Alike, where: Start, lanes: Array) -> Cut:
    machine, storing = frame.machine, isinstance(access, Store)
    box, phase, address, dims = group.box, group.phase, group.address, group.dims
    low, start = (address & np.uint64(0xFFFF)).view(np.int64), where.coordinates
    try:
        if isinstance(box, Column):
            found = column_words(box, low, dims, start, where.offsets, phase, storing)
        else:
            if storing:
                check_store(box, dims, start)
            found = words(box, low, dims, start, phase)
    except ValueError as error:
        raise machine.misuse(access.instruction, lanes[0], str(error)) from error
    access = group.sized(access, found.width)
    region = machine.arena.window(int(address[0]))
    inside = found.inside
    if inside is not None and not inside.any():
        return Cut(access, None, found.begin, found.offset, inside, found.place, box.fill)
    if region is None or region.space != "global":
        access._fault(frame, "unmapped", int(lanes[0]), int(address[0]), region, None)
    assert region is not None
    begin, last = found.begin + (address - np.uint64(region.base)).view(np.int64), region.size - found.width
    cut = Cut(access, region, begin, found.offset, inside, found.place, box.fill)
    if (begin + found.offset.min(axis=-1) < 0).any() or (begin + found.offset.max(axis=-1) > last).any():
        # What lies outside the tensor may.
        beyond = (cut.index < 0) | (cut.index > last)
        beyond = beyond if inside is None else beyond & inside
        if beyond.any():
            row, column = np.unravel_index(int(np.argmax(beyond)), beyond.shape)
            offset = int(cut.index[row, column])
            access._fault(frame, "out of bounds", int(lanes[row]), region.base + offset, region, offset)
    if isinstance(access, Store):
        access._check_writable(frame, region, cut.index[:, 0], lanes)
    return cut


def _copies(
    frame: Frame, instruction: Instruction, mask: Array | None, to: Array, bars: Array, lanes: Array
) -> Iterator[tuple[Array, Array, Array]]:
    """(which of `lanes`, where they copy to, their barriers): once, or with `.multicast::cluster` for each block.

    Into every block of a mask the same bytes are copied, to the same offset, and its barrier at the same offset counts
    them (PTX ISA, "cp.async.bulk").

    Raises:
        MisuseError: a mask without a block, or with one that the cluster has not.
    """
    if mask is None:
        yield np.ones(len(lanes), bool), to, bars
        return
    machine = frame.machine
    blocks = machine.launch.grid.cluster_blocks
    wrong = (mask == 0) | (mask >> blocks != 0)
    if wrong.any():
        bad = int(np.argmax(wrong))
        what = f"a mask 0x{int(mask[bad]):04X} of blocks in a cluster of {blocks}"
        raise machine.misuse(instruction, lanes[bad], what)
    low, shift = np.uint64((1 << RANK_SHIFT) - 1), np.uint64(RANK_SHIFT)
    for rank in range(blocks):
        which = mask >> rank & 1 != 0
        if which.any():
            upper = np.uint64(rank + 1) << shift
            yield which, (to[which] & low) | upper, (bars[which] & low) | upper


@dataclass(frozen=True)
class TensorLoad:
    """`cp.async.bulk.tensor` from global to shared memory.

    Attributes:
        target: any access to shared memory that writes.
        source: any access to global memory.
        barrier: the access of an mbarrier.
        use: the tensor map.
        mode: that of the map, of `tensormap.MODES`.
    """

    target: Store
    source: Access
    barrier: Access
    use: MapUse
    mode: str = "tiled"

    def __call__(
        self,
        frame: Frame,
        target: Array,
        tensor: Array,
        start: tuple[Array, ...],
        offsets: tuple[Array, ...],
        barrier: Array,
        mask: Array | None,
        guard: Array | None,
    ) -> None:
        """Issue loads of boxes that begin at coordinates `start`, with a `mask` into those blocks of the cluster.

        `offsets`: of an im2col load.

        Raises:
            MemoryFault, MisuseError, RaceError: a box that cannot be loaded.
        """
        where, lanes, to = frame.select(target, guard)
        if not lanes.size:
            return
        _, _, maps = frame.select(tensor, guard)
        _, _, bars = frame.select(barrier, guard)
        begin = Start.read(frame, where, start, offsets)
        chosen = None if mask is None else frame.acting(where, mask).astype(np.int64)
        for which, there, phases in _copies(frame, self.barrier.instruction, chosen, to, bars, lanes):
            who, first = lanes[which], begin.of(which)
            ids = frame.machine.part(Mbarriers).objects(frame, self.barrier, phases, who)
            parts = _boxes(frame, self.use, self.target, self.source, maps[which], first, there, who, self.mode)
            _load(frame, parts, who, ids)


@dataclass(frozen=True)
class TensorStore:
    """`cp.async.bulk.tensor` from shared to global memory. Attributes as of `TensorLoad`.

    `operation`: that of `cp.reduce.async.bulk.tensor`, or None.
    """

    source: Access
    target: Store
    use: MapUse
    mode: str = "tiled"
    operation: str | None = None

    def __call__(
        self, frame: Frame, tensor: Array, start: tuple[Array, ...], source: Array, guard: Array | None
    ) -> None:
        """Issue stores of boxes that begin at coordinates `start`.

        Raises:
            MemoryFault, MisuseError, RaceError: a box that cannot be stored.
        """
        where, lanes, origin = frame.select(source, guard)
        if not lanes.size:
            return
        _, _, maps = frame.select(tensor, guard)
        begin = Start.read(frame, where, start, ())
        boxes = _boxes(frame, self.use, self.source, self.target, maps, begin, origin, lanes, self.mode, self.operation)
        _store(frame, boxes, lanes)


@dataclass(frozen=True)
class TensorPrefetch:
    """`cp.async.bulk.prefetch.tensor`: the program sees nothing of it but that its map must be one. As `TensorLoad`."""

    use: MapUse
    mode: str = "tiled"

    def __call__(
        self,
        frame: Frame,
        tensor: Array,
        start: tuple[Array, ...],
        offsets: tuple[Array, ...],
        guard: Array | None,
    ) -> None:
        """Look at the maps.

        Raises:
            MemoryFault, MisuseError: one by which nothing can be loaded.
        """
        where, lanes, maps = frame.select(tensor, guard)
        if not lanes.size:
            return
        begin = Start.read(frame, where, start, offsets)
        for row, found in enumerate(self.use.maps(frame, maps, lanes)):
            try:
                check_map(found, self.mode, begin.coordinates.shape[1])
            except ValueError as error:
                raise frame.machine.misuse(self.use.whole.instruction, lanes[row], str(error)) from error


def _plain(
    frame: Frame, shared: Access, other: Access, own: Array, address: Array, size: Array, lanes: Array
) -> Iterator[_Part]:
    """Group copies that are no boxes by their size and buffer."""
    wrong = (size % _CHUNK != 0) | (size == 0)
    if wrong.any():
        bad = int(np.argmax(wrong))
        what = f"a bulk copy of {int(size[bad])} bytes, not a multiple of {_CHUNK} above 0"
        raise frame.machine.misuse(shared.instruction, lanes[bad], what)
    for count in map(int, np.unique(size)):
        rows = np.flatnonzero(size == count)
        whole, there = _sized(shared, count, _CHUNK), _sized(other, count, _CHUNK)
        _, _, index = next(whole._parts(frame, own[rows], lanes[rows]))
        place = np.arange(0, count, _CHUNK)
        for region, which, begin in there._parts(frame, address[rows], lanes[rows]):
            some = slice(None) if which is None else which
            cut = Cut(_sized(other, _CHUNK), region, begin, place, None, place)
            if isinstance(other, Store):
                other._check_writable(frame, region, begin, lanes[rows][some])
            yield _Part(rows[some], whole, index[some], count, cut)


@dataclass(frozen=True)
class BulkLoad:
    """`cp.async.bulk` to shared memory, from global memory or from the block's own. Attributes as of `TensorLoad`.

    `reduction`: of `cp.reduce.async.bulk`, or None.
    """

    target: Store
    source: Access
    barrier: Access
    reduction: Reduction | None = None

    def __call__(
        self,
        frame: Frame,
        target: Array,
        source: Array,
        size: Array,
        barrier: Array,
        mask: Array | None,
        guard: Array | None,
    ) -> None:
        """Issue loads of `size` bytes, with a `mask` into those blocks of the cluster.

        Raises:
            MemoryFault, MisuseError, RaceError: bytes that cannot be loaded.
        """
        where, lanes, to = frame.select(target, guard)
        if not lanes.size:
            return
        _, _, origin = frame.select(source, guard)
        _, _, bars = frame.select(barrier, guard)
        sizes = frame.acting(where, size).astype(np.int64)
        chosen = None if mask is None else frame.acting(where, mask).astype(np.int64)
        for which, there, phases in _copies(frame, self.barrier.instruction, chosen, to, bars, lanes):
            who = lanes[which]
            ids = frame.machine.part(Mbarriers).objects(frame, self.barrier, phases, who)
            parts = _plain(frame, self.target, self.source, there, origin[which], sizes[which], who)
            _load(frame, parts, who, ids, self.reduction)


@dataclass(frozen=True)
class BulkStore:
    """`cp.async.bulk` from shared to global memory. Attributes as of `TensorLoad`.

    `reduction`: of `cp.reduce.async.bulk`, or None.
    """

    source: Access
    target: Store
    reduction: Reduction | None = None

    def __call__(self, frame: Frame, target: Array, source: Array, size: Array, guard: Array | None) -> None:
        """Issue stores of `size` bytes.

        Raises:
            MemoryFault, MisuseError, RaceError: bytes that cannot be stored.
        """
        where, lanes, origin = frame.select(source, guard)
        if not lanes.size:
            return
        _, _, to = frame.select(target, guard)
        sizes = frame.acting(where, size).astype(np.int64)
        _store(frame, _plain(frame, self.source, self.target, origin, to, sizes, lanes), lanes, self.reduction)


@dataclass(frozen=True)
class BulkCommit:
    """`cp.async.bulk.commit_group`: the stores that a lane issued since the last one are a group."""

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """Close the group of each lane."""
        _, lanes, _ = frame.select(np.uint64(0), guard)
        frame.machine.part(Bulk).group[lanes] += 1


@dataclass(frozen=True)
class BulkWait:
    """`cp.async.bulk.wait_group keep`; `reads_only`: `.read`."""

    keep: int
    reads_only: bool

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """Complete the groups that are waited for."""
        _, lanes, _ = frame.select(np.uint64(0), guard)
        if lanes.size:
            frame.machine.part(Bulk).wait(frame, lanes, self.keep, self.reads_only)
