"""Memory: buffers in the global arena, and the shared and local memory of the CTAs that run together.

A buffer over an array of the caller's is that array, not a copy of it: a launch writes in place, keeps what each page
held before, and puts it back if it fails. Nothing becomes resident but what a launch touches. Memory that nobody has
written reads as poison, where reading it is not refused: without a byte of poison being stored, if a buffer says that
nothing in it is initialised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from refmoe.ptx.errors import Index3
from refmoe.ptx.state.pages import PAGE, POISON, Journal, cleared, untouched
from refmoe.ptx.state.spaces import OWN_BASE, WINDOW_BITS
from refmoe.ptx.text.syntax import Instruction

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = Any

_WIDEST = 32
_EVERY_BYTE = 0x0101010101010101
# What arrays have to be aligned to for their bytes to be used where they lie.
_ALIGNED = 16


class Shadow(Protocol):
    """Who accessed what, of a region; `refmoe.ptx.engine.races` has the rules."""

    @property
    def told(self) -> bool:
        """Whether somebody is told of every access, so that Python has to do it."""
        ...

    def enter(self, row: Array) -> None:
        """Write into a region's row where the records lie, see `refmoe.ptx.native.context.Row`."""
        ...

    def admitted(self, warp: int) -> int:
        """Where it is kept which lanes may access the region, from a warp of the launch on, or 0 where all may."""
        ...

    def release(self) -> None:
        """Give memory back: nobody asks any more who accessed what."""
        ...


class Undefined(Protocol):
    """Which bits of a region's bytes are undefined; `refmoe.ptx.engine.undefined.memory` has the rules."""

    def held(self, width: int, place: Array) -> Array:
        """Words of `width` bytes, numbers `place` [n], with 0xFF for each byte of which some bits may be defined."""
        ...


class Watching(Protocol):
    """What takes down who writes some bytes of a region."""

    def wrote(
        self,
        step: int,
        place_of: Callable[[int], tuple[Index3, Index3]],
        instruction: Instruction,
        region: Region,
        index: Array,
        width: int,
        lanes: Array,
    ) -> None:
        """In a step, `lanes` [n] have written `width` bytes each at byte `index` [n] of the region.

        `place_of` gives the (block, thread) of a lane.
        """
        ...


@dataclass
class Region:
    """Bytes that one address window shows.

    Attributes:
        name: of the buffer or variable.
        space: `"global" "const" "param" "shared" "local"`.
        base: address of byte 0 in its space.
        size: bytes that may be accessed.
        stride: bytes from one owner's copy to the next (shared: CTA, local: lane), 0 for a buffer.
        data: the bytes of all owners.
        valid: 0xFF for each byte of `data` that was written, or None where all are.
        writable: whether stores are allowed.
        poisoned: whether bytes of `data` that are not valid are to be read as poison, whatever they hold.
        journal: what takes down what `data` held before, where it is the caller's own array, or None.
        shadow: who accessed what, or None where races are not looked for.
        watch: what takes down who writes some of its bytes, or None.
        undefined: which bits of its bytes are undefined, or None where none are but in bytes that nobody wrote.
        compared: whether other schedules have to leave the same bytes in it.
    """

    name: str
    space: str
    base: int
    size: int
    stride: int
    data: Bytes
    valid: Bytes | None
    writable: bool
    poisoned: bool = False
    journal: Journal | None = None
    unwritten: bool = False
    shadow: Shadow | None = None
    watch: Watching | None = None
    undefined: Undefined | None = None
    compared: bool = True
    _views: dict[tuple[bool, int], Any] = field(default_factory=dict, repr=False)

    def clear(self) -> None:
        """Forget what was written."""
        self.undefined = None
        if self.size and self.valid is not None:
            if not self.poisoned:
                self.data[:] = POISON
            self.valid = untouched(self.valid.shape)
            self._views.clear()

    def words(self, width: int, of_valid: bool = False) -> Any:
        """`data` (or `valid`) as words of `width` bytes: [n] unsigned integers, or [n, width / 8] uint64 above 8."""
        view = self._view(width, of_valid)
        if self.journal is not None and not of_valid:
            # Only `write` may write: it keeps what was there.
            view = view.view()
            view.flags.writeable = False
        return view

    def _view(self, width: int, of_valid: bool) -> Any:
        view = self._views.get((of_valid, width))
        if view is None:
            source = self.valid if of_valid else self.data
            assert source is not None
            dtype = np.dtype(f"u{min(width, 8)}")
            whole = source[: source.size // width * width].view(dtype)
            view = whole if width <= 8 else whole.reshape(-1, width // 8)
            self._views[of_valid, width] = view
        return view

    def read(self, width: int, place: Array) -> Any:
        """Words of `width` bytes, numbers `place` [n], as a lane sees them: `words`, and poison where nobody wrote."""
        found = self.words(width).take(place, axis=0)
        if not self.poisoned:
            return found
        valid = self.words(width, of_valid=True).take(place, axis=0)
        if self.undefined is not None:
            valid = valid | self.undefined.held(width, place)
        return found & valid | ~valid & found.dtype.type(POISON * _EVERY_BYTE & int(np.iinfo(found.dtype).max))

    def bytes(self, begin: int, count: int) -> Bytes:
        """A copy of some bytes, as a lane sees them."""
        found: Bytes = self.data[begin : begin + count].copy()
        if self.valid is not None and self.poisoned:
            found[self.valid[begin : begin + count] == 0] = POISON
        return found

    def write(self, width: int, place: Array, words: Array) -> None:
        """Write words of `width` bytes, numbers `place` [n], which are initialised from now on."""
        if self.journal is not None:
            self.journal.keep(place * width)
        self._view(width, False)[place] = words
        if self.valid is not None:
            valid = self.words(width, of_valid=True)
            valid[place] = np.iinfo(valid.dtype).max

    def forget(self, begin: int, count: int) -> None:
        """Say of some bytes that nobody has written them."""
        if self.valid is not None:
            self.valid[begin : begin + count] = 0

    def validate(self) -> None:
        """Begin to say which bytes are initialised: all are."""
        self.valid = np.full(padded(self.data.size), 0xFF, np.uint8)

    def invalidate(self) -> None:
        """Say no more which bytes are initialised: all are."""
        self.valid = None
        self._views = {key: view for key, view in self._views.items() if not key[0]}

    def release_valid(self) -> None:
        """Give the memory back that says which bytes are initialised: all that are were written by this launch."""
        assert self.valid is not None
        assert self.journal is not None
        written = self.journal.written
        for begin, end in written:
            self.valid[begin:end] = 0
        self.give_valid(sum(end - begin for begin, end in written))

    def give_valid(self, resident: int) -> None:
        """The same where it is all zeros already: at most `resident` bytes of it became resident."""
        assert self.valid is not None
        cleared(self.valid, resident)
        self.valid = None

    def release(self) -> None:
        """Give its memory back: whoever owned it has ended, and objects that refer to it may live on."""
        nothing = np.zeros(0, np.uint8)
        self.data, self.valid, self.shadow = nothing, nothing, None
        self._views.clear()


def padded(size: int) -> int:
    """Bytes for `size`, with which every view has whole words."""
    return -(-max(size, 1) // _WIDEST) * _WIDEST


def _copied(content: Bytes) -> Bytes:
    """`content` and then poison, padded to the widest access."""
    data = np.empty(padded(content.size), np.uint8)
    data[: content.size] = content
    data[content.size :] = POISON
    return data


def owned_region(name: str, space: str, size: int, owners: int, refused: bool = False) -> Region:
    """Shared or local memory, `size` bytes for each of `owners`, nothing of it initialised.

    `refused` says that nobody may read what was not written: then it holds zeros that cost nothing, else poison.
    """
    # Lines of 128 bytes of which each belongs to one owner: see `BulkShadow`.
    stride = -(-size // 128) * 128 if space == "shared" else -(-size // _WIDEST) * _WIDEST
    bytes_ = max(owners * stride, _WIDEST)
    data = untouched((bytes_,)) if refused else np.full(bytes_, POISON, np.uint8)
    return Region(name, space, OWN_BASE, size, stride, data, untouched((bytes_,)), True, poisoned=refused)


class Arena:
    """The global address space of one launch."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._names: Counter[str] = Counter()
        # Counts stores and atomics that changed something: whether polling loops can see anything new.
        self.changes = 0

    def add(
        self,
        name: str,
        space: str,
        content: Bytes | None,
        size: int,
        valid: Bytes | None = None,
        initialised: bool = True,
        writable: bool = True,
        in_place: bool = False,
        unwritten: bool = False,
    ) -> Region:
        """A new buffer with its own window.

        Args:
            name: for messages; a second region of a name is told apart, `"scratch (2)"`.
            space: `"global"`, `"const"` or `"param"`.
            content: its bytes [size]; None for zeros.
            size: bytes.
            valid: 0xFF for each initialised byte [at least `padded(size)`], kept; takes the place of `initialised`.
            initialised: whether all bytes are; if not, all that is not written reads as poison.
            writable: whether stores are allowed.
            in_place: whether `content` is the caller's, to be used where it lies; what is shorter than a page, or not
                aligned, is copied nevertheless.
            unwritten: whether `valid` says so of all bytes.
        """
        journal = None
        if content is None:
            data = untouched((padded(size),))
        elif in_place and content.size >= PAGE and content.ctypes.data % _ALIGNED == 0:
            data = content
            journal = Journal(data) if writable else None
        else:
            data = _copied(content)
        poisoned = valid is None and not initialised
        if poisoned:
            valid = untouched((padded(size),))
        base = (len(self.regions) + 1) << WINDOW_BITS
        unwritten |= poisoned
        first = name
        while name in self._names:
            self._names[first] += 1
            name = f"{first} ({self._names[first]})"
        self._names[name] = 1
        region = Region(name, space, base, size, 0, data, valid, writable, poisoned, journal, unwritten)
        self.regions.append(region)
        return region

    def release(self) -> None:
        """The launch has ended well: give memory back in which it kept what it had to know."""
        for region in self.regions:
            if region.shadow is not None:
                region.shadow.release()
                region.shadow = None
            if region.journal is not None:
                if region.unwritten and region.valid is not None:
                    region.release_valid()
                region.journal.release()
            region.release()

    def restore(self) -> None:
        """Put back what the caller's arrays held; which pages the launch wrote stays known."""
        for region in self.regions:
            if region.journal is not None:
                region.journal.restore()

    def undo(self) -> None:
        """Put back what the caller's arrays held."""
        for region in self.regions:
            if region.journal is not None:
                region.journal.undo()

    def window(self, address: int) -> Region | None:
        """The buffer in whose window `address` lies."""
        index = (address >> WINDOW_BITS) - 1
        return self.regions[index] if 0 <= index < len(self.regions) else None

    def nearest(self, address: int) -> tuple[Region | None, int | None]:
        """The buffer that an invalid address most likely meant, and the byte offset in it."""
        half = 1 << (WINDOW_BITS - 1)
        within = address & ((1 << WINDOW_BITS) - 1)
        region = self.window(address if within < half else address + half)
        return region, None if region is None else address - region.base
