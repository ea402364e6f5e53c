"""Where the bytes of an im2col tensor map's column lie (PTX ISA, "Tensors", "im2col mode").

The tensor is N images of D x H x W pixels with C channels; of rank 4 there is no D, of rank 3 no H either. A copy walks
over pixels. Each pixel brings a row of channels, which lies in shared memory as a row of a box does:

        W:  -1   0   1   2       Of images of 4 x 4 pixels, with lower corners of -1 and upper corners of -1, the
    H: -1    .   .   .   .       bounding box is what is drawn. A walk that begins at (w, h) = (2, 0) meets the
        0    .   .   .   0       positions in the order of their numbers. Behind position 8 it goes on with 9, which
        1    1   2   3   4       is (-1, -1) of the next image. Position 0 may lie anywhere in the box.
        2    5   6   7   8

The walk goes along W in steps of the element stride up to the upper corner, then on from the lower corner one step
further along H, then along D, and then in the next image. From each position the pixel is read that lies the im2col
offsets further along W, H and D. Where that is outside the tensor the fill is read. So for a convolution the positions
are those of its filter's first element, and the offsets say which element of the filter it is.

The starting coordinates must lie in the bounding box. The manual does not say where a walk goes on that begins between
the steps from the lower corner, and reaches the upper one: that is refused. An H200 does not go on at the lower corner.
An element stride along N is refused, too: the manual says nothing of it, and an H200 does not ignore it. The element
stride along C is ignored, says the driver API.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from refmoe.ptx.engine.bulk.boxes import (
    Box,
    Words,
    check_modelled,
    check_span,
    check_start,
    check_store,
    nan_or_zero,
    padded,
    places,
    widest,
)
from refmoe.ptx.state.tensormap import TensorMap

Array = Any
# Of an im2col offset, by rank: 0 to limit - 1.
_OFFSETS = {3: 1 << 16, 4: 1 << 8, 5: 1 << 5}
_NAMES = "WHD"


@dataclass(frozen=True)
class Column(Box):
    """A column of an im2col tensor map; its counts are (channels per pixel, pixels per column).

    Attributes:
        lower, upper: corners of the bounding box along W, H and D, as many as there are.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]


@lru_cache(maxsize=1024)
def column_of(found: TensorMap, storing: bool) -> Column:
    """The column of a tensor map, for loads or for stores.

    Raises:
        ValueError: a column that is not modelled, or that no tensor map may have.
    """
    rank, (channels, pixels) = found.rank, found.box[:2]
    if rank not in _OFFSETS:
        raise ValueError(f"an im2col tensor map of rank {rank}; 3 to 5 are allowed")
    steps = (1, *found.steps[1:rank])
    check_modelled(found, storing, steps)
    if not 1 <= channels <= 256 or not 1 <= pixels <= 1024 or not all(1 <= step <= 8 for step in steps):
        raise ValueError(
            f"{pixels} pixels of {channels} channels with element strides {steps}; 1 to 1024, 1 to 256 and 1 to 8 are "
            "allowed"
        )
    if steps[-1] != 1:
        raise ValueError(f"an element stride of {steps[-1]} along N of an im2col tensor map, which is not modelled")
    if channels * found.bits % 128:
        raise ValueError(
            f"{channels} channels of {found.bits} bits per pixel, no multiple of 16 bytes, which is not modelled"
        )
    result = Column(
        rank, found.strides[: rank - 1], (channels, pixels), steps, found.bits, padded(found), found.swizzle,
        nan_or_zero(found), found.lower[: rank - 2], found.upper[: rank - 2],
    )  # fmt: skip
    if result.padded and (channels != 128 or found.dims[0] % 128):
        raise ValueError(f"{channels} FP4 channels per pixel of {found.dims[0]}; 128 of a multiple of 128 are allowed")
    if storing and (any(at < 0 for at in result.lower) or any(at > 0 for at in result.upper)):
        raise ValueError(
            f"a store through an im2col tensor map with corners {result.lower} and {result.upper}; its bounding box "
            "must stay within the tensor"
        )
    check_span(result)
    return result


def column_words(
    column: Column, address: Array, dims: Array, start: Array, offsets: Array, phase: int, storing: bool
) -> Words:
    """The words of n columns.

    Args:
        column: of all of them.
        address: int64 [n], of their tensors; only its low bits matter.
        dims: int64 [n, rank], elements of their tensors along each dimension.
        start: int64 [n, rank], where their walks begin.
        offsets: int64 [n, rank - 2], im2col offsets along W, H and D.
        phase: `Box.phase` of all of them.
        storing: whether they are written.

    Raises:
        ValueError: coordinates at which no column may begin, or offsets that there are not.
    """
    check_start(column, start)
    if storing:
        check_store(column, dims, start)
    limit = _OFFSETS[column.rank]
    if (offsets >= limit).any():
        row, dimension = np.argwhere(offsets >= limit)[0]
        raise ValueError(
            f"an im2col offset of {int(offsets[row, dimension])} along {_NAMES[dimension]}; 0 to {limit - 1} are "
            f"allowed for rank {column.rank}"
        )
    # Lines, planes and images behind the first one: int64 [n, pixels].
    behind = np.broadcast_to(np.arange(column.counts[1]), (len(start), column.counts[1]))
    row_start = np.zeros_like(behind)
    inside = np.ones(behind.shape, bool)
    for i, lower in enumerate(column.lower):
        position, behind = _walk(column, i, lower, dims[:, i + 1], start[:, i + 1], behind)
        at = position + offsets[:, i, None]
        inside &= (at >= 0) & (at < dims[:, i + 1, None])
        row_start = row_start + at * column.strides[i]
    image = start[:, -1, None] + behind
    inside &= (image >= 0) & (image < dims[:, -1, None])
    row_start = row_start + image * column.strides[-1]
    low = np.maximum(-start[:, 0], 0)
    high = np.clip(dims[:, 0] - start[:, 0], 0, column.counts[0])
    cuts = np.bitwise_or.reduce(address | (low | high) * column.bits // 8)
    for stride in (column.row_bytes, *column.strides):
        cuts |= stride
    width = widest(column, int(cuts))
    channel = np.arange(0, column.row_bytes, width)
    first = start[:, 0] * column.bits // 8
    index = (row_start + first[:, None])[:, :, None] + channel
    number = channel * 8 // column.bits
    within = (number >= low[:, None]) & (number < high[:, None])
    words = (inside[:, :, None] & within[:, None, :]).reshape(len(start), -1)
    place = places(column, width, phase)
    nothing = np.zeros(len(start), np.int64)
    return Words(width, nothing, index.reshape(len(start), -1), None if words.all() else words, place)


def _walk(column: Column, i: int, lower: int, size: Array, start: Array, steps: Array) -> tuple[Array, Array]:
    """Along W, H or D (`i` 0 to 2): positions after `steps` [n, pixels], and how often the walk began at `lower` again.

    `size` and `start` [n]: of the tensors, and the first positions.
    """
    step, last = column.steps[i + 1], size - 1 + column.upper[i]
    name = _NAMES[i]
    outside = (start < lower) | (start > last)
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"coordinate {int(start[row])} along {name}, outside the bounding box from {lower} to {int(last[row])}"
        )
    first_line, line = (last - start) // step + 1, (last - lower) // step + 1
    later = steps - first_line[:, None]
    between = ((start - lower) % step != 0) & (later >= 0).any(axis=1)
    if between.any():
        row = int(np.argmax(between))
        raise ValueError(
            f"coordinate {int(start[row])} along {name}, not a multiple of the element stride {step} from the lower "
            f"corner {lower}, of a walk that reaches the upper corner {int(last[row])}, which is not modelled"
        )
    lines = line[:, None]
    position = np.where(later < 0, start[:, None] + steps * step, lower + later % lines * step)
    return position, np.where(later < 0, 0, later // lines + 1)
