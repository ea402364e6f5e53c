"""Where the bytes of a tensor map's box lie, in global and in shared memory (PTX ISA, "Tensors").

A box is copied in words: the widest power of two up to 16 bytes by which every run of it can be cut. In shared memory
the rows of a box follow one another, dimension 0 innermost. A swizzle of span S moves 16-byte chunks: bits 4 and
up of the shared-memory address are xored with bits 7 and up, one bit of each for S = 32, two for 64 and three for 128.

What the manual leaves open was asked of an H200 (tests/ptx/bulk/test_gpu.py): a box begins at a multiple of 128 bytes
of shared memory whatever its swizzle, and at a multiple of 16 bytes along dimension 0 of its tensor; the NaN fill is
0x7FF7 in every 16 bits, for types of any width. A store at a negative coordinate ends the launch (measured along
dimension 0), and one across the end of a tensor that ends inside 16 bytes writes beyond it: both are refused. What
neither tells is refused: interleaved layouts, the 32- and 64-byte
swizzle atoms, elements that the copy changes (f32_ftz, tf32, u6, unpadded u4), boxes narrower than their swizzle span,
and stores with element strides. That 16 padded FP4 codes take 8 bytes of data and then 8 of padding is the driver API's
word ("8 byte gaps"); that a transaction counts their packed bytes is what CUTLASS expects of the hardware.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from refmoe.ptx.state.tensormap import TensorMap

Array = Any
# Of swizzles below it the number is also that of the address bits that change.
_SWIZZLES = 4
_UNCHANGED = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "u4_align16")
_FLOATING = ("f16", "f32", "f64", "bf16")
_PADDED = "u4_align16"
_WIDEST = 16
# Bytes of which the shared-memory address of a box must be a multiple.
SHARED_ALIGN = 128
_NAN_FILL = 0x7FF7
# Padded FP4: bytes of data, and of data and padding.
_DATA, _SLOT = 8, 16


@dataclass(frozen=True)
class Box:
    """The box of a tensor map, wherever it is laid.

    Attributes:
        rank: dimensions.
        strides: bytes, of dimensions 1 to rank - 1.
        counts: elements that are copied along each dimension.
        steps: distance of neighbours along each, in elements.
        bits: of an element in global memory.
        padded: 8 bytes of data take 16 of shared memory.
        swizzle: number of address bits that change.
        fill: what every 16 bits outside the tensor are loaded as.
    """

    rank: int
    strides: tuple[int, ...]
    counts: tuple[int, ...]
    steps: tuple[int, ...]
    bits: int
    padded: bool
    swizzle: int
    fill: int

    @property
    def row_bytes(self) -> int:
        """Of a run along dimension 0, in global memory."""
        return self.counts[0] * self.bits // 8

    @cached_property
    def rows(self) -> int:
        """Runs along dimension 0."""
        return int(np.prod(self.counts[1:], dtype=np.int64))

    @property
    def bytes(self) -> int:
        """What a transaction counts: all of the box, also where it leaves the tensor."""
        return self.rows * self.row_bytes

    @property
    def span(self) -> int:
        """Bytes of shared memory."""
        return self.bytes * (_SLOT // _DATA if self.padded else 1)

    @property
    def start_multiple(self) -> int:
        """What the first coordinate along dimension 0 must be a multiple of: 16 bytes, or a box of FP4 codes.

        An H200 ends a launch with an illegal instruction otherwise, on loads, whether or not the box leaves the tensor.
        """
        return 128 if self.padded else 128 // self.bits

    def phase(self, address: Array) -> Array:
        """Where in the period of the swizzle, in bytes, a box at a shared-memory address begins."""
        return address & ((SHARED_ALIGN << self.swizzle) - 1)


@dataclass(frozen=True)
class Words:
    """Words of boxes: [n, m] of n boxes with m words each.

    Attributes:
        width: bytes of a word.
        begin: int64 [n], byte offsets of the boxes from the tensor's element 0.
        offset: byte offsets of words from there, int64 [m] of every box, or [n, m]; where they lead outside the tensor
            they mean nothing.
        inside: bool [n, m], or None where all are in the tensor.
        place: int64 [m], byte offsets in shared memory from the begin of the box.
    """

    width: int
    begin: Array
    offset: Array
    inside: Array | None
    place: Array

    @property
    def index(self) -> Array:
        """int64 [n, m], byte offsets of all words from the tensor's element 0."""
        return self.begin[:, None] + self.offset


@lru_cache(maxsize=1024)
def box_of(found: TensorMap, storing: bool) -> Box:
    """The box of a tensor map, for loads or for stores.

    Raises:
        ValueError: a box that is not modelled, or that no tensor map may have.
    """
    rank, box, steps = found.rank, found.box[: found.rank], (1, *found.steps[1 : found.rank])
    check_modelled(found, storing, steps)
    if not all(1 <= size <= 256 for size in box) or not all(1 <= step <= 8 for step in steps):
        raise ValueError(f"a box of {box} elements with element strides {steps}; 1 to 256 and 1 to 8 are allowed")
    result = Box(
        rank, found.strides[: rank - 1], tuple(-(-size // step) for size, step in zip(box, steps, strict=True)), steps,
        found.bits, padded(found), found.swizzle, nan_or_zero(found),
    )  # fmt: skip
    if box[0] * found.bits % 128 or (result.padded and (box[0] != 128 or found.dims[0] % 128)):
        raise ValueError(f"a box of {box[0]} elements of {found.bits} bits along dimension 0 of {found.dims[0]}")
    check_span(result)
    return result


def padded(found: TensorMap) -> bool:
    """Whether 8 bytes of its tensor take 16 of shared memory."""
    return found.data_type == _PADDED


def nan_or_zero(found: TensorMap) -> int:
    """What every 16 bits outside its tensor are loaded as."""
    return _NAN_FILL if found.fill else 0


def check_modelled(found: TensorMap, storing: bool, steps: tuple[int, ...]) -> None:
    """Refuse tensor maps that are not modelled, whatever they copy; `steps` are the element strides that count.

    Raises:
        ValueError: what was found.
    """
    if found.interleave or found.swizzle >= _SWIZZLES or found.data_type not in _UNCHANGED:
        raise ValueError(
            f"a tensor map of {found.data_type} with interleave {found.interleave} and swizzle {found.swizzle}, which "
            "is not modelled"
        )
    if storing and (padded(found) or any(step != 1 for step in steps)):
        raise ValueError("a store through a tensor map with padding or element strides, which is not modelled")
    if found.fill and found.data_type not in _FLOATING:
        raise ValueError(f"a tensor map of {found.data_type} with the NaN fill, which only floating-point types have")
    multiple = 32 if padded(found) else 16
    strides = found.strides[: found.rank - 1]
    if found.address % multiple or any(stride % multiple for stride in strides):
        raise ValueError(
            f"a tensor at 0x{found.address:X} with strides {strides}, which are not all multiples of {multiple}"
        )


def check_span(box: Box) -> None:
    """Refuse boxes whose rows do not fill the span of their swizzle.

    Raises:
        ValueError: how wide they are.
    """
    inner = box.span // box.rows
    if box.swizzle and inner != 16 << box.swizzle:
        what = "wider than" if inner > 16 << box.swizzle else "narrower than, which is not modelled,"
        raise ValueError(f"a box row of {inner} bytes, {what} its swizzle span of {16 << box.swizzle}")


def check_store(box: Box, dims: Array, start: Array) -> None:
    """Refuse boxes that can be loaded, but not stored. Arguments as of `words`.

    Raises:
        ValueError: what an H200 refuses, or where it writes beyond the tensor.
    """
    if (start < 0).any():
        row, dimension = np.argwhere(start < 0)[0]
        raise ValueError(f"a store at coordinate {int(start[row, dimension])} of dimension {int(dimension)}, below 0")
    ragged = (dims[:, 0] * box.bits % 128 != 0) & (start[:, 0] < dims[:, 0])
    ragged &= start[:, 0] + box.counts[0] > dims[:, 0]
    if ragged.any():
        size = int(dims[np.argmax(ragged), 0]) * box.bits // 8
        raise ValueError(
            f"a store across the end of a tensor of {size} bytes along dimension 0, no multiple of 16: bytes beyond it "
            "would be written"
        )


def check_start(box: Box, start: Array) -> None:
    """Refuse first coordinates along dimension 0 at which no box may begin.

    Raises:
        ValueError: one of them.
    """
    multiple = box.start_multiple
    if (start[:, 0] % multiple).any():
        bad = int(start[np.argmax(start[:, 0] % multiple != 0), 0])
        kind = "FP4" if box.padded else f"elements of {box.bits} bits"
        raise ValueError(f"coordinate {bad} of dimension 0, which for {kind} must be a multiple of {multiple}")


def words(box: Box, address: Array, dims: Array, start: Array, phase: int) -> Words:
    """The words of n boxes.

    Args:
        box: of all of them.
        address: int64 [n], of their tensors; only its low bits matter.
        dims: int64 [n, rank], elements of their tensors along each dimension.
        start: int64 [n, rank], coordinates of their first elements.
        phase: `Box.phase` of all of them.

    Raises:
        ValueError: coordinates at which no box may begin.
    """
    check_start(box, start)
    origin = start[:, 0] * box.bits // 8
    if box.rank > 1:
        origin = origin + start[:, 1:] @ np.array(box.strides, np.int64)
    low = np.maximum(-start[:, 0], 0)
    high = np.minimum(dims[:, 0] - start[:, 0], box.counts[0])
    last = start + (np.array(box.counts) - 1) * np.array(box.steps)
    whole = bool(((start >= 0) & (last < dims)).all())
    cuts = np.bitwise_or.reduce(origin | address)
    if not whole:
        cuts |= np.bitwise_or.reduce((low | np.maximum(high, 0)) * box.bits // 8)
    for stride in (box.row_bytes, *box.strides):
        cuts |= stride
    width = widest(box, int(cuts))
    offsets, positions, place = _pattern(box, width, phase)
    if whole:
        return Words(width, origin, offsets, None, place)
    column = positions[0] * width * 8 // box.bits
    inside = (column >= low[:, None]) & (column < high[:, None])
    for i in range(1, box.rank):
        at = start[:, i, None] + positions[i]
        inside &= (at >= 0) & (at < dims[:, i, None])
    return Words(width, origin, offsets, inside, place)


@lru_cache(maxsize=1024)
def _pattern(box: Box, width: int, phase: int) -> tuple[Array, tuple[Array, ...], Array]:
    """Of the words of a box of that phase.

    Byte offsets in global memory; (word in its row, element offsets along the other dimensions); byte offsets in shared
    memory.
    """
    per_row = box.row_bytes // width
    grid = np.indices((*reversed(box.counts[1:]), per_row)).reshape(box.rank, -1)
    # Row-major: the innermost comes last.
    column, outer = grid[-1], grid[-2::-1]
    steps = np.array(box.steps[1:], np.int64)[:, None]
    outer = outer * steps
    offsets = column * width + (np.array(box.strides, np.int64)[:, None] * outer).sum(axis=0)
    return offsets, (column, *outer), places(box, width, phase)


def widest(box: Box, cuts: int) -> int:
    """Bytes of a word, where all runs begin and end at numbers of bytes whose bits are in `cuts`."""
    return min(cuts & -cuts or _WIDEST, _DATA if box.padded else _WIDEST)


def places(box: Box, width: int, phase: int) -> Array:
    """Byte offsets in shared memory [m] of all words of a box of that phase, in the order of its rows."""
    linear = np.arange(box.rows * (box.row_bytes // width)) * width
    if box.padded:
        linear = linear // _DATA * _SLOT + linear % _DATA
    absolute = linear + phase
    place: Array = (absolute ^ ((absolute >> 7 & ((1 << box.swizzle) - 1)) << 4)) - phase
    return place
