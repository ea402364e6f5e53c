"""Tensor maps in memory: how instructions read and edit them, and when an edit is seen.

Copies read tensor maps through a proxy of their own. A map that a launch wrote may be used once its writer has released
it (`tensormap.cp_fenceproxy`, or `fence.proxy.tensormap::generic.release`) and the using warp has since acquired it
(`fence.proxy.tensormap::generic.acquire`, on its address); in between it is stale, whatever its bytes are. A copy reads
its map when it is issued: CUTLASS edits the map of the next group while copies of the last are under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.engine.races import RaceShadow, shadow_of
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.records import GRID, STEP_SHIFT
from refmoe.ptx.state.tensormap import MAP_BYTES, TensorMap, decode_tensor_map, replaced_bytes

Array = Any
T = TypeVar("T")
_WORD = 16
_WORDS = MAP_BYTES // _WORD
_NEVER = (0, 0)
# Bytes of alignment of a map.
_ALIGN = 64
# Looks that are remembered.
_LOOKS = 256


def _word_index(begin: Array) -> Array:
    """Byte index of the 16-byte words [n * 8] of maps that begin at [n]."""
    return (begin[:, None] + np.arange(0, MAP_BYTES, _WORD)).ravel()


def _need_inside(frame: Frame, access: Access, region: Region, begin: Array, lanes: Array) -> None:
    """Refuse maps that reach beyond their memory, whether or not a launch looks for that elsewhere."""
    # Shared memory has a copy for each CTA, a stride apart.
    within = begin.astype(np.int64) % (region.stride or max(region.data.size, 1))
    beyond = within > region.size - MAP_BYTES
    if beyond.any():
        bad = int(np.argmax(beyond))
        offset = int(within[bad])
        access._fault(frame, "out of bounds", lanes[bad], region.base + offset, region, offset)


def _read(frame: Frame, access: Access, region: Region, begin: Array, lanes: Array) -> list[bytes]:
    """The bytes of the maps at `begin` [n], as their lanes read them."""
    _need_inside(frame, access, region, begin, lanes)
    index, who = _word_index(begin), np.repeat(lanes, _WORDS)
    if region.shadow is not None:
        shadow_of(region).read(frame, access, region, index, who)
    return _bytes(frame, access, region, index, who)


def _look(frame: Frame, access: Access, region: Region, begin: Array, lanes: Array) -> list[bytes]:
    """The same as copies read them that are issued: how long they do so is for `MapReads` to say."""
    _need_inside(frame, access, region, begin, lanes)
    index, who = _word_index(begin), np.repeat(lanes, _WORDS)
    if region.shadow is not None:
        shadow = shadow_of(region)
        shadow.note(frame, access, region, index, who, _WORD, "read")
        shadow.ordered_after(frame, access, region, index, who, shadow.last_writes(index, _WORD))
    return _bytes(frame, access, region, index, who)


def _bytes(frame: Frame, access: Access, region: Region, index: Array, lanes: Array) -> list[bytes]:
    access._check_valid(frame, region, index, lanes)
    rows = region.read(_WORD, index // _WORD).reshape(len(index) // _WORDS, -1)
    return [row.tobytes() for row in rows]


def _write(frame: Frame, access: Store, region: Region, begin: Array, lanes: Array, contents: list[bytes]) -> None:
    _need_inside(frame, access, region, begin, lanes)
    words = np.frombuffer(b"".join(contents), np.uint64).reshape(-1, 2)
    access.put(frame, region, _word_index(begin), np.repeat(lanes, _WORDS), words)
    frame.machine.progress()


@dataclass(frozen=True)
class _Look:
    """A look of some lanes at maps.

    Attributes:
        state: bytes of the maps, records of who wrote them, and the number of events in their history.
        maps: what they are.
    """

    state: tuple[bytes, bytes, int]
    maps: tuple[TensorMap, ...]


class MapLooks:
    """The looks of a machine's lanes at maps in which nothing was wrong.

    A loop issues its copies by the same maps each time. What a lane knows only grows, so that maps which were neither
    stale nor in a race are not while nobody writes them, and nothing happens in their history.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[bytes, bytes], _Look] = {}
        self._sorted: dict[tuple[Any, ...], tuple[tuple[TensorMap, ...], Any]] = {}

    def again(self, address: Array, lanes: Array, state: tuple[bytes, bytes, int]) -> tuple[TensorMap, ...] | None:
        """What `lanes` [n] found at `address` [n], if nothing has changed."""
        look = self._found.get((address.tobytes(), lanes.tobytes()))
        return look.maps if look is not None and look.state == state else None

    def keep(self, address: Array, lanes: Array, state: tuple[bytes, bytes, int], maps: tuple[TensorMap, ...]) -> None:
        """They found this."""
        if len(self._found) >= _LOOKS:
            self._found.clear()
        self._found[address.tobytes(), lanes.tobytes()] = _Look(state, maps)

    def sorted_by(self, maps: tuple[TensorMap, ...], key: tuple[Any, ...], sort: Callable[[], T]) -> T:
        """What `sort` makes of these very maps, which depends on nothing but them and `key`."""
        place = (id(maps), *key)
        kept = self._sorted.get(place)
        if kept is None:
            if len(self._sorted) >= _LOOKS:
                self._sorted.clear()
            # With the maps themselves, so that no others have their place in memory.
            kept = self._sorted[place] = maps, sort()
        result: T = kept[1]
        return result


@dataclass(frozen=True)
class MapUse:
    """The tensor map that a copy goes by.

    Attributes:
        whole: the access of all its bytes.
        word: that of 16 of them.
    """

    whole: Access
    word: Access

    def maps(self, frame: Frame, address: Array, lanes: Array) -> tuple[TensorMap, ...]:
        """The maps at `address` [n]: the same tuple again if nothing has changed.

        Raises:
            MemoryFault: an address where none can be.
            MisuseError: what is there is no tensor map, or a stale one.
        """
        looks, state = frame.machine.part(MapLooks), self._state(frame, address, lanes)
        if state is not None and (known := looks.again(address, lanes, state)) is not None:
            return known
        found = tuple(self._found(frame, address, lanes))
        if state is not None:
            looks.keep(address, lanes, state, found)
        return found

    def _state(self, frame: Frame, address: Array, lanes: Array) -> tuple[bytes, bytes, int] | None:
        """All that a look at maps depends on, but for what lanes know; None where it is more."""
        region = frame.machine.arena.window(int(address[0]))
        if region is None or region.poisoned or type(region.shadow) is not RaceShadow:
            return None
        shadow = region.shadow
        if shadow.witness is not None or shadow.previous is not None or frame.machine.undefined is not None:
            # They want to be told of each look.
            return None
        begin = (address - np.uint64(region.base)).view(np.int64)
        if int(begin.min()) < 0 or int(begin.max()) > region.size - MAP_BYTES or (begin % _ALIGN).any():
            return None
        index = _word_index(begin)
        held = region.read(_WORD, index // _WORD)
        return held.tobytes(), shadow.last_writes(index, _WORD).tobytes(), frame.machine.launch.maps.events

    def _found(self, frame: Frame, address: Array, lanes: Array) -> list[TensorMap]:
        found: list[TensorMap] = [None] * len(lanes)  # type: ignore[list-item]
        for region, which, begin in self.whole._parts(frame, address, lanes):
            rows = np.arange(len(lanes)) if which is None else np.flatnonzero(which)
            if region is frame.machine.shared or region is frame.machine.local:
                what = f"a tensor map in {region.name}"
                raise frame.machine.misuse(self.whole.instruction, lanes[rows[0]], what)
            contents = _look(frame, self.word, region, begin, lanes[rows])
            if region.shadow is not None:
                self._check_fresh(frame, region, begin, lanes[rows])
            for row, content in zip(rows, contents, strict=True):
                try:
                    found[row] = decode_tensor_map(content)
                except ValueError as error:
                    what = f"at 0x{int(address[row]):X}: {error}"
                    raise frame.machine.misuse(self.whole.instruction, lanes[row], what) from error
        return found

    def _check_fresh(self, frame: Frame, region: Region, begin: Array, lanes: Array) -> None:
        machine, shadow = frame.machine, shadow_of(region)
        history = machine.launch.maps
        records = shadow.last_writes(_word_index(begin), _WORD).reshape(len(begin), -1).max(axis=1)
        for lane, at, record in zip(lanes.tolist(), begin.tolist(), records.tolist(), strict=True):
            if not record:
                continue
            address, writer = region.base + at, shadow.thread_of(record)
            written = max((record >> STEP_SHIFT, 0), history.edited.get(address, _NEVER))
            released = max(history.released.get(address, _NEVER), history.fenced.get(writer >> 5, _NEVER))
            acquired = history.acquired.get(((lane + machine.first_thread) >> 5, address), _NEVER)
            if written < released < acquired:
                continue
            block, thread = machine.place_of_thread(writer)
            missing = "released it" if released < written else "acquired it since"
            who = "nobody has" if released < written else "its own warp has not"
            what = (
                f"a stale tensor map: that at byte {at} of {region.name} (0x{address:X}) was written by block {block} "
                f"thread {thread}, and {who} {missing} (fence.proxy.tensormap::generic)"
            )
            raise machine.misuse(self.whole.instruction, lane, what)


@dataclass(frozen=True)
class MapReplace:
    """`tensormap.replace.tile.<name>`: a weak read and write of the whole map."""

    whole: Access
    word: Store
    name: str

    def __call__(self, frame: Frame, address: Array, ordinal: int, value: Array, guard: Array | None) -> None:
        """Edit the map of each acting lane."""
        where, lanes, chosen = frame.select(address, guard)
        if not lanes.size:
            return
        values = frame.acting(where, value)
        for region, which, begin in self.whole._parts(frame, chosen, lanes):
            rows = np.arange(len(lanes)) if which is None else np.flatnonzero(which)
            changed = []
            for row, content in zip(rows, _read(frame, self.word, region, begin, lanes[rows]), strict=True):
                try:
                    changed.append(replaced_bytes(content, self.name, ordinal, int(values[row])))
                except ValueError as error:
                    raise frame.machine.misuse(self.whole.instruction, lanes[row], str(error)) from error
            _write(frame, self.word, region, begin, lanes[rows], changed)
            if region is not frame.machine.shared:
                history = frame.machine.launch.maps
                now = history.time(frame.machine.launch.clock)
                history.edited.update(dict.fromkeys((begin + region.base).tolist(), now))


@dataclass(frozen=True)
class MapCopy:
    """`tensormap.cp_fenceproxy`: a warp copies 128 bytes from shared to global memory, and releases the map there."""

    source: Access
    source_word: Access
    target: Store
    target_word: Store

    def __call__(self, frame: Frame, target: Array, source: Array) -> None:
        """Copy once for each warp.

        Raises:
            MisuseError: lanes of one warp with different addresses.
        """
        machine = frame.machine
        _, lanes, to = frame.select(target, None)
        _, _, origin = frame.select(source, None)
        first = np.r_[True, lanes[1:] >> 5 != lanes[:-1] >> 5]
        group = np.cumsum(first) - 1
        differs = (to != to[first][group]) | (origin != origin[first][group])
        if differs.any():
            lane = lanes[np.argmax(differs)]
            raise machine.misuse(self.target.instruction, lane, "addresses that differ in the warp")
        lanes, to, origin = lanes[first], to[first], origin[first]
        region, _, begin = next(self.source._parts(frame, origin, lanes))
        contents = _read(frame, self.source_word, region, begin, lanes)
        for region, which, begin in self.target._parts(frame, to, lanes):
            rows = np.arange(len(lanes)) if which is None else np.flatnonzero(which)
            _write(frame, self.target_word, region, begin, lanes[rows], [contents[row] for row in rows])
            history = machine.launch.maps
            for times in (history.edited, history.released):
                times.update(dict.fromkeys((begin + region.base).tolist(), history.time(frame.machine.launch.clock)))
        # The warp as a whole copied and released it, whichever lane then goes by it.
        frame.warp_sync(np.uint32(0xFFFFFFFF))


@dataclass(frozen=True)
class MapAcquire:
    """`fence.proxy.tensormap::generic.acquire`: no access, so that the address may be anything.

    (CUTLASS's warps that store nothing execute it on a null pointer.)
    """

    def __call__(self, frame: Frame, address: Array, guard: Array | None) -> None:
        """The warps of the acting lanes will see what was released of the maps at `address`."""
        machine = frame.machine
        _, lanes, chosen = frame.select(address, guard)
        if not lanes.size:
            return
        first = machine.first_thread
        keys = {((lane + first) >> 5, at) for lane, at in zip(lanes.tolist(), chosen.tolist(), strict=True)}
        history = machine.launch.maps
        history.acquired.update(dict.fromkeys(keys, history.time(frame.machine.launch.clock)))


@dataclass(frozen=True)
class MapRelease:
    """`fence.proxy.tensormap::generic.release`."""

    def __call__(self, frame: Frame, guard: Array | None) -> None:
        """What the warps of the acting lanes have written may be acquired as tensor maps."""
        machine = frame.machine
        _, lanes, _ = frame.select(np.uint64(0), guard)
        warps = np.unique((lanes + machine.first_thread) >> 5)
        history = machine.launch.maps
        history.fenced.update(dict.fromkeys(warps.tolist(), history.time(frame.machine.launch.clock)))
        frame.fence(guard, GRID, False)
