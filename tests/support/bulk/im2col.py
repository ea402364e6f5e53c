"""Im2col tensor maps, and what the manual says of their copies, one position of a convolution's filter after another.

The oracle knows no walk. It lists the positions that a filter takes on images, as the rows of an im2col matrix are
listed, finds the one at which a copy begins, and takes what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from support.ptx_bulk import swizzled

from refmoe import ptx

DONE = "mbarrier::complete_tx::bytes"
# `other` holds the im2col offsets, 16 bits each.
OFFSETS = ".reg .b16 %h<4>; mov.b64 {%h0, %h1, %h2, %h3}, %d3;"
WAITED = "@%p0 cp.async.bulk.wait_group 0;"
TYPES = {8: "u8", 16: "bf16", 32: "f32", 64: "f64"}


def packed(offsets: Sequence[int]) -> int:
    """Im2col offsets as `other` holds them."""
    return sum(offset << 16 * i for i, offset in enumerate(offsets))


def _at(rank: int) -> str:
    return ", ".join(f"%r{2 + i}" for i in range(rank))


def load(rank: int, spelling: str = "shared::cluster.global.im2col", multicast: str = "", mask: str = "") -> str:
    """Thread 0 loads a column into the tile."""
    offsets = ", ".join(f"%h{i}" for i in range(rank - 2))
    opcode = f"cp.async.bulk.tensor.{rank}d.{spelling}.{DONE}{multicast}"
    return f"@%p0 {opcode} [%r8], [%d1, {{{_at(rank)}}}], [%r7], {{{offsets}}}{mask};"


def store(rank: int, how: str = "cp.async.bulk", operation: str = "") -> str:
    """Thread 0 stores the tile to a column."""
    opcode = f"{how}.tensor.{rank}d.global.shared::cta{operation}.im2col_no_offs.bulk_group"
    return f"@%p0 {opcode} [%d1, {{{_at(rank)}}}], [%r8];"


@dataclass(frozen=True)
class Images:
    """An im2col tensor map in words.

    `dims` are C, W, H, D, N without the dimensions that there are not. `strides` are bytes. Corners and `steps` go
    along W, H and D.
    """

    data_type: str
    bits: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int
    steps: tuple[int, ...]
    swizzle: str = "none"
    fill: str = "zeros"

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def row(self) -> int:
        """Bytes of a pixel."""
        return self.channels * self.bits // 8

    @property
    def bytes(self) -> int:
        return self.pixels * self.row

    @property
    def size(self) -> int:
        """Bytes up to the end of the last element."""
        last = sum((d - 1) * s for d, s in zip(self.dims[1:], self.strides, strict=True))
        return last + self.dims[0] * self.bits // 8

    def encode(self, address: int) -> bytes:
        return ptx.encode_tensor_map_im2col(
            address, self.data_type, self.dims, self.strides, self.lower, self.upper, self.channels, self.pixels,
            (1, *self.steps, 1), swizzle=self.swizzle, fill=self.fill,
        )  # fmt: skip


def positions(images: Images, first_image: int, count: int) -> list[tuple[int, ...]]:
    """(w, h, d, n) of the filter's base, in the order of an im2col matrix: N outermost, W innermost."""
    ranges = [
        range(lower, size + upper, step)
        for size, lower, upper, step in zip(images.dims[1:-1], images.lower, images.upper, images.steps, strict=True)
    ]
    assert all(ranges)
    batch = range(first_image, first_image + count)
    return [backwards[::-1] for backwards in product(batch, *reversed(ranges))]


def pixels(images: Images, start: Sequence[int], offsets: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """(w, h, d, n) of every pixel that a copy reads or writes, wherever that lies."""
    moved = [*offsets, *[0] * (images.rank - 2 - len(offsets)), 0]
    # A filter has at least one position in each image.
    row = positions(images, start[-1], images.pixels + 1)
    begin = row.index(tuple(start[1:]))
    taken = row[begin : begin + images.pixels]
    return [tuple(at + by for at, by in zip(each, moved, strict=True)) for each in taken]


def _elements(images: Images, start: Sequence[int], offsets: Sequence[int]) -> list[int | None]:
    """The byte offset of every element in the tensor, None outside."""
    found: list[int | None] = []
    for pixel in pixels(images, start, offsets):
        for channel in range(start[0], start[0] + images.channels):
            at = (channel, *pixel)
            inside = all(0 <= a < d for a, d in zip(at, images.dims, strict=True))
            where = channel * images.bits // 8 + sum(a * s for a, s in zip(pixel, images.strides, strict=True))
            found.append(where if inside else None)
    return found


def brought(images: Images, memory: bytes, start: Sequence[int], offsets: Sequence[int] = ()) -> bytes:
    """What a load brings, as it would lie without a swizzle."""
    width = images.bits // 8
    outside = (b"\xf7\x7f" if images.fill == "nan" else b"\0\0") * 4
    parts = [
        outside[:width] if where is None else memory[where : where + width]
        for where in _elements(images, start, offsets)
    ]
    return b"".join(parts)


def tile(images: Images, content: bytes, address: int = 1024) -> bytes:
    """Bytes of a tile at a shared-memory address, with the swizzle."""
    result = bytearray(len(content))
    for number, byte in enumerate(content):
        result[swizzled(address + number, images.swizzle) - address] = byte
    return bytes(result)


def written(images: Images, memory: bytes, content: bytes, start: Sequence[int]) -> bytes:
    """Memory after a store of what lies in the tile without a swizzle."""
    result, width = bytearray(memory), images.bits // 8
    for number, where in enumerate(_elements(images, start, ())):
        if where is not None:
            result[where : where + width] = content[number * width : (number + 1) * width]
    return bytes(result)


def _strides(bits: int, dims: Sequence[int], gap: int) -> tuple[int, ...]:
    total = -(-dims[0] * bits // 8 // 16) * 16 + gap
    found = []
    for size in dims[1:]:
        found.append(total)
        total *= size
    return tuple(found)


def any_images(rng: np.random.Generator, rank: int, storing: bool = False) -> tuple[Images, tuple[int, ...]]:
    """Random images, and coordinates at which a copy may begin."""
    bits, swizzle = int(rng.choice([8, 16, 32, 64])), str(rng.choice(["none", "32B", "64B", "128B"]))
    row = {"none": 48, "32B": 32, "64B": 64, "128B": 128}[swizzle]
    unit = 128 // bits
    most = {3: 9, 4: 6, 5: 4}[rank]
    spatial = rng.integers(1, most + 1, rank - 2)
    lower = rng.integers(0, 2, rank - 2) if storing else rng.integers(-3, 3, rank - 2)
    upper = rng.integers(-2, 1, rank - 2) if storing else rng.integers(-3, 3, rank - 2)
    # At least one position.
    spatial = np.maximum(spatial, 1 + lower - upper)
    steps = np.ones(rank - 2, int) if storing else rng.integers(1, 4, rank - 2)
    c = int(rng.integers(1, 4)) * row * 8 // bits - (0 if storing else int(rng.integers(0, unit)))
    dims = (max(c, 1), *map(int, spatial), int(rng.integers(1, 4)))
    images = Images(
        TYPES[bits], bits, dims, _strides(bits, dims, int(rng.integers(0, 2)) * 16), tuple(map(int, lower)),
        tuple(map(int, upper)), row * 8 // bits, int(rng.integers(1, 60)), tuple(map(int, steps)), swizzle,
        "nan" if bits > 8 and rng.integers(0, 2) else "zeros",
    )  # fmt: skip
    begin = []
    for size, low, high, step in zip(spatial, lower, upper, steps, strict=True):
        begin.append(int(rng.choice(np.arange(low, size + high, step))))
    first = int(rng.integers(0 if storing else -3, 2 * row // 16)) * unit
    return images, (first, *begin, int(rng.integers(0 if storing else -1, dims[-1])))
