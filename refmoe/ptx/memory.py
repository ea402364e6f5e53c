"""Memory: buffers in the global arena, and the shared and local memory of the CTAs that run together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.ptx.spaces import OWN_BASE, WINDOW_BITS

if TYPE_CHECKING:
    from refmoe.ptx.races import RaceShadow
    from refmoe.ptx.watch import Watch

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Array = Any

# What memory that nobody has written holds, where reading it is not refused.
POISON = 0xCD
_WIDEST = 32


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
        shadow: who accessed what, or None where races are not looked for.
        watch: what takes down who writes some of its bytes, or None.
    """

    name: str
    space: str
    base: int
    size: int
    stride: int
    data: Bytes
    valid: Bytes | None
    writable: bool
    shadow: RaceShadow | None = None
    watch: Watch | None = None
    _views: dict[tuple[bool, int], Any] = field(default_factory=dict, repr=False)

    def clear(self) -> None:
        """Forget what was written."""
        if self.size:
            self.data[:] = POISON
            if self.valid is not None:
                self.valid[:] = 0

    def words(self, width: int, of_valid: bool = False) -> Any:
        """`data` (or `valid`) as words of `width` bytes: [n] unsigned integers, or [n, width / 8] uint64 above 8."""
        view = self._views.get((of_valid, width))
        if view is None:
            source = self.valid if of_valid else self.data
            assert source is not None
            dtype = np.dtype(f"u{min(width, 8)}")
            view = source.view(dtype) if width <= 8 else source.view(dtype).reshape(-1, width // 8)
            self._views[of_valid, width] = view
        return view

    def write(self, width: int, place: Array, words: Array) -> None:
        """Write words of `width` bytes, numbers `place` [n], which are initialised from now on."""
        self.words(width)[place] = words
        if self.valid is not None:
            valid = self.words(width, of_valid=True)
            valid[place] = np.iinfo(valid.dtype).max


def _aligned(size: int, fill: int, content: Bytes | None = None) -> Bytes:
    """`content` and then `fill`, padded to the widest access, so that every view has whole words."""
    data = np.empty(-(-max(size, 1) // _WIDEST) * _WIDEST, np.uint8)
    held = 0 if content is None else content.size
    if content is not None:
        data[:held] = content
    data[held:] = fill
    return data


def owned_region(name: str, space: str, size: int, owners: int) -> Region:
    """Shared or local memory, `size` bytes for each of `owners`, nothing of it initialised."""
    # Lines of 128 bytes of which each belongs to one owner: see `BulkShadow`.
    stride = -(-size // 128) * 128 if space == "shared" else -(-size // _WIDEST) * _WIDEST
    data = np.full(max(owners * stride, _WIDEST), POISON, np.uint8)
    return Region(name, space, OWN_BASE, size, stride, data, np.zeros_like(data), True)


class Arena:
    """The global address space of one launch."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
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
    ) -> Region:
        """A new buffer with its own window.

        Args:
            name: for messages.
            space: `"global"`, `"const"` or `"param"`.
            content: its first bytes, copied; None for poison.
            size: bytes.
            valid: 0xFF for each initialised byte [size], copied; takes the place of `initialised`.
            initialised: whether all bytes are.
            writable: whether stores are allowed.
        """
        data = _aligned(size, POISON, content)
        shadow = None if valid is None and initialised else _aligned(size, 0, valid)
        base = (len(self.regions) + 1) << WINDOW_BITS
        region = Region(name, space, base, size, 0, data, shadow, writable)
        self.regions.append(region)
        return region

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
