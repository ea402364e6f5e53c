"""Blocks of 32 input elements, and what kind of block each is: the kinds on which edge policies part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK, MX_FORMATS
from refmoe.policy import DEEPGEMM_FLOOR
from refmoe.reference.fp32 import fp32_bits, magnitude_values
from refmoe.reference.quantize import checked_blocks

#: 1 MiB of BF16; the codes of a dozen rules for it still fit a cache.
BLOCKS_A_CHUNK = 1 << 14

#: Kinds of blocks. On an ordinary block no edge policy differs from another.
KINDS = ("ordinary", "small", "tiny", "zero", "infinity", "nan")

#: The kinds that are no edge blocks: the scale mode chooses their scale, from a finite amax that nothing flushes.
INSIDE = ("ordinary", "small")

_INFINITY = 0x7F800000


def checked_input(x: object) -> NDArray[np.generic]:
    """`x` as blocks [n, 32], without a copy.

    Raises:
        ArgumentError: no elements, or what `refmoe.reference.quantize` refuses.
    """
    blocks = checked_blocks(x, MX_BLOCK)
    if not blocks.size:
        raise ArgumentError("x", describe(x), "at least one element")
    return blocks


@dataclass(frozen=True, eq=False)
class InputBlocks:
    """A chunk of the input.

    Attributes:
        x: BF16, FP16 or FP32 [n, 32], C-contiguous.
        format: the MX format that it becomes, "mxfp8" or "mxfp4".
    """

    x: NDArray[np.generic]
    format: str

    @cached_property
    def magnitude(self) -> NDArray[np.uint32]:
        """FP32 bits of |x| [n, 32]."""
        bits: NDArray[np.uint32] = fp32_bits(self.x) & np.uint32(0x7FFFFFFF)
        return bits

    @cached_property
    def has_nan(self) -> NDArray[np.bool_]:
        """bool [n]: a NaN is in the block."""
        return np.asarray((self.magnitude > _INFINITY).any(axis=1))

    @cached_property
    def has_infinity(self) -> NDArray[np.bool_]:
        """bool [n]: an infinity is in the block."""
        return np.asarray((self.magnitude == _INFINITY).any(axis=1))

    @cached_property
    def amax(self) -> NDArray[np.uint32]:
        """FP32 bits [n] of the largest finite magnitude."""
        largest: NDArray[np.uint32] = np.where(self.magnitude < _INFINITY, self.magnitude, np.uint32(0)).max(axis=1)
        return largest

    @cached_property
    def kind(self) -> NDArray[np.uint8]:
        """Index into `KINDS` [n].

        tiny: a scale byte so near 0 that clamping it, flushing it or flushing a subnormal element could show. From
        scale byte 11 on, half the smallest E4M3 magnitude is 2^-126 and nothing subnormal survives (E2M1 needs less);
        no mode's byte is more than emax + 1 below the exponent field of amax.
        small: below the 1e-4 that DeepGEMM takes amax to be.
        """
        element = MX_FORMATS[self.format].element
        byte = max(11, 2 + element.mantissa_bits - element.emin)
        first_safe = np.uint32((element.emax + 1 + byte) << 23)
        kind = (self.amax <= DEEPGEMM_FLOOR).astype(np.uint8)
        kind[self.amax < first_safe] = KINDS.index("tiny")
        kind[self.amax == 0] = KINDS.index("zero")
        kind[self.has_infinity] = KINDS.index("infinity")
        kind[self.has_nan] = KINDS.index("nan")
        return kind

    def values(self) -> NDArray[np.float64]:
        """float64 [n, 32], exact, subnormals by way of integers, which no flush to zero can reach."""
        value = magnitude_values(self.magnitude)
        value[self.magnitude == _INFINITY] = np.inf
        value[self.magnitude > _INFINITY] = np.nan
        # A NumPy sign bit is read from the input's own bits, so that of a NaN is kept too.
        return np.copysign(value, np.where(np.signbit(self.x), -1.0, 1.0))


def input_blocks(rows: NDArray[np.generic], format: str) -> Iterator[tuple[int, InputBlocks]]:
    """The input [n, 32] in chunks, each with the number of its first block."""
    for start in range(0, len(rows), BLOCKS_A_CHUNK):
        yield start, InputBlocks(np.ascontiguousarray(rows[start : start + BLOCKS_A_CHUNK]), format)


def kind_counts(kinds: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How many blocks there are of each of `KINDS`."""
    return np.bincount(kinds, minlength=len(KINDS))
