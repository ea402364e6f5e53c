"""Matrix descriptors of `wgmma`: where the sixteen-byte chunks of an operand lie in shared memory.

A descriptor has, from bit 0 on, all but the last two in units of 16 bytes:

    bits 0-13 start    16-29 leading offset    32-45 stride offset    49-51 base offset    62-63 swizzle

Its matrix has *lines*: rows of A, or columns of B, whose elements along K lie side by side; or, of 16-bit elements, the
steps of K, along which rows of A or columns of B do ("across"). A line is cut into chunks, and chunk c of line r lies
at start +

    swizzle    width w   lines along K                            across
    none       16        16 (r % 8) + stride (r / 8) + leading c     16 (r % 8) + leading (r / 8) + stride c
    32, 64     w bytes   w (r % 8) + stride (r / 8) + leading (c / (w / 16)) + 16 (c % (w / 16)),   both ways
    or 128

where a swizzle then exchanges the chunks of 16 bytes inside w bytes: bits 4, 5 and 6 of the address, as far as w
reaches, are those xor bits 7, 8 and 9 of it, the base offset taken off from there. The other bits mean nothing, and
addresses do not wrap. (PTX ISA, "Matrix descriptor format"; the layouts are those of CUTLASS, mma_sm90_desc.hpp. All of
it was held against an H200, with offsets of any kind.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

Array = Any
CHUNK = 16
"""Bytes."""
_FIELD = (1 << 14) - 1
# Bytes of a swizzled line by the descriptor's code; 16 stands for none.
_WIDTHS = (16, 128, 64, 32)
# Descriptors whose chunks are kept: stages times steps of K of a few kernels.
_KEPT = 4096


@dataclass(frozen=True)
class Descriptor:
    """A matrix descriptor.

    Attributes:
        start, leading, stride: bytes.
        base: the base offset, 0 to 7.
        width: bytes of a line that a swizzle works on, 16 without one.
    """

    start: int
    leading: int
    stride: int
    base: int
    width: int

    @classmethod
    def of(cls, bits: int) -> Descriptor:
        """The descriptor in a register."""
        start, leading, stride = ((bits >> at & _FIELD) * CHUNK for at in (0, 16, 32))
        return cls(start, leading, stride, bits >> 49 & 7, _WIDTHS[bits >> 62 & 3])


@lru_cache(_KEPT)
def chunks(bits: int, lines: int, line_bytes: int, across: bool) -> Array:
    """Addresses in shared memory, int64 [lines, line_bytes / 16], of an operand's chunks, which nobody may change."""
    descriptor = Descriptor.of(bits)
    width, leading, stride = descriptor.width, descriptor.leading, descriptor.stride
    if width == CHUNK and across:
        leading, stride = stride, leading
    group, line = np.divmod(np.arange(lines)[:, None], 8)
    outer, inner = np.divmod(np.arange(line_bytes // CHUNK), width // CHUNK)
    address = descriptor.start + line * width + group * stride + outer * leading + inner * CHUNK
    row = (address >> 7) - descriptor.base
    found = address ^ (row & width // CHUNK - 1) * CHUNK
    found.setflags(write=False)
    return found
