"""Blocks of 32 that hold every pair (amax, element) of a 16-bit format, with what the definition makes of them.

A block has an *amax*, the bits of a magnitude at one position, and 31 other elements, whose magnitudes as bits are at
most amax. Bits have the order of magnitudes, infinity above every number and the NaNs above it. For each amax the
others run through all elements that may stand beside it, of both signs, and through every NaN:

    amax a     others
    0          +0 -0, NaNs
    1          +0 -0 +1 -1, NaNs                     (1: the smallest subnormal)
    ...
    infinity   every number, both infinities, NaNs
    a NaN      the same, and the NaNs up to a

Block j of amax a has its amax at position (j + a) mod 32, with the sign (j // 32) mod 2. Every amax has at least 64
blocks, so it stands at every position with both signs; and an element moves one position on with each amax.

Under an edge that leaves NaNs or infinities undefined (DeepGEMM, TransformerEngine, llama.cpp), blocks with them are
left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refmoe.exhaustive.definition import MAGNITUDES, SIGN, TAKES_INFINITY, TAKES_NAN, Definition
from refmoe.formats import FORMATS, MX_BLOCK
from refmoe.policy import EdgePolicy

#: Blocks that every amax has at least: each position with both signs.
LEAST_BLOCKS = 2 * MX_BLOCK
_OTHERS = MX_BLOCK - 1


@dataclass(frozen=True)
class Domain:
    """The pairs of a format that an edge defines.

    Attributes:
        infinity: bits of +infinity.
        takes_nan, takes_infinity: whether blocks with one are defined.
    """

    infinity: int
    takes_nan: bool
    takes_infinity: bool

    @classmethod
    def of(cls, dtype: str, edge: str) -> Domain:
        """That of an edge policy by name, for "bf16" or "fp16"."""
        infinity, policy = FORMATS[dtype].infinity_code, EdgePolicy(edge)
        assert infinity is not None
        return cls(infinity, policy in TAKES_NAN, policy in TAKES_INFINITY)

    def has(self, amax: int) -> bool:
        """Whether there are blocks of this amax."""
        return amax < self.infinity + self.takes_infinity or (amax > self.infinity and self.takes_nan)

    def numbers(self, amax: int) -> range:
        """Where in `sequence` those elements stand that are at most `amax` and no NaN; the infinities count as such."""
        if amax > self.infinity:
            return range(2 * (self.infinity + 1) if self.takes_infinity else 2 * self.infinity)
        return range(2 * (amax + 1))

    def nans(self, amax: int) -> range:
        """Where in `sequence` the NaNs beside `amax` stand: all, beside a NaN those up to it."""
        if not self.takes_nan:
            return range(0)
        return range(2 * (self.infinity + 1), 2 * (amax + 1 if amax > self.infinity else MAGNITUDES))

    def pairs(self, amax: int) -> int:
        """The elements beside `amax`, counting signs."""
        return len(self.numbers(amax)) + len(self.nans(amax)) if self.has(amax) else 0

    def blocks(self, amax: int) -> int:
        """The blocks that hold them."""
        return max(-(-self.pairs(amax) // _OTHERS), LEAST_BLOCKS) if self.has(amax) else 0


@cache
def sequence() -> NDArray[np.uint16]:
    """All elements in the order of their magnitudes, each with both signs: +0 -0 +1 -1 ..., as bits."""
    place = np.arange(1 << 16)
    made: NDArray[np.uint16] = (place >> 1 | (place & 1) << 15).astype(np.uint16)
    made.setflags(write=False)
    return made


@cache
def _turned() -> NDArray[np.uint16]:
    """The others of every block [32, n, 32] by the turn of its first one; at the place of amax is 0."""
    blocks = (1 << 16) // _OTHERS
    others = sequence()[: blocks * _OTHERS].reshape(blocks, _OTHERS)
    straight = np.concatenate([np.zeros((blocks, 1), np.uint16), others], axis=1)
    turns = (np.arange(MX_BLOCK)[None, :] - np.arange(blocks)[:, None]) % MX_BLOCK
    first = np.take_along_axis(straight, turns, axis=1)
    return np.stack([np.roll(first, turn, axis=1) for turn in range(MX_BLOCK)])


@dataclass
class Blocks:
    """Some blocks and what the definition makes of them.

    Attributes:
        elements: uint16 [n, 32], bits.
        codes: uint8 [n, 32], one code a byte.
        scales: uint8 [n].
    """

    elements: NDArray[np.uint16]
    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]


class Maker:
    """Makes the blocks of amax after amax; codes of neighbours under one scale are looked up once.

    Args:
        domain: which pairs there are.
        definition: of a policy.
    """

    def __init__(self, domain: Domain, definition: Definition) -> None:
        self.domain, self.definition = domain, definition
        self._row = -1
        self._turned_codes: dict[int, NDArray[np.uint8]] = {}

    def blocks(self, amax: int) -> Blocks:
        """All blocks of `amax`."""
        domain, definition = self.domain, self.definition
        count, turn = domain.blocks(amax), amax % MX_BLOCK
        # Blocks of numbers alone, all different, come out of a table; the few that are left are put together.
        ready = min(len(domain.numbers(amax)) // _OTHERS, count) if amax <= domain.infinity else 0
        elements = np.empty((count, MX_BLOCK), np.uint16)
        elements[:ready] = _turned()[turn, :ready]
        elements[ready:] = self._rest(amax, ready, count)
        number = np.arange(count)
        place = (number + turn) % MX_BLOCK
        top = (amax | (number // MX_BLOCK % 2) * SIGN).astype(np.uint16)
        elements[number, place] = top

        codes = np.empty((count, MX_BLOCK), np.uint8)
        scales = np.empty(count, np.uint8)
        if ready:
            row = int(definition.rows[0, amax + 1])
            codes[:ready] = self._codes(row, turn, ready)
            codes[number[:ready], place[:ready]] = definition.codes[row][top[:ready]]
            scales[:ready] = definition.scales[0, amax + 1]
        has_nan, largest = self._classes(elements[ready:])
        row_of_block = definition.rows[has_nan, largest + 1]
        codes[ready:] = definition.codes[row_of_block[:, None], elements[ready:]]
        scales[ready:] = definition.scales[has_nan, largest + 1]
        return Blocks(elements, codes, scales)

    def _rest(self, amax: int, first: int, stop: int) -> NDArray[np.uint16]:
        """Blocks `first` to `stop` of `amax`, with anything at the place of amax."""
        numbers, nans = self.domain.numbers(amax), self.domain.nans(amax)
        block = np.arange(first, stop)[:, None]
        column = (np.arange(MX_BLOCK) - 1 - block - amax) % MX_BLOCK % _OTHERS
        place = (block * _OTHERS + column) % (len(numbers) + len(nans))
        where = np.where(place < len(numbers), place, place - len(numbers) + nans.start)
        return sequence()[where]

    def _codes(self, row: int, turn: int, count: int) -> NDArray[np.uint8]:
        if row != self._row:
            self._row = row
            self._turned_codes.clear()
        known = self._turned_codes.get(turn)
        if known is None or len(known) < count:
            # Under one scale amax doubles at most.
            ahead = min(2 * count + 1, _turned().shape[1])
            known = self._turned_codes[turn] = self.definition.codes[row].take(_turned()[turn, :ahead])
        return known[:count]

    def _classes(self, elements: NDArray[np.uint16]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Whether a NaN is in each block, 0 or 1; and the largest magnitude among the others, -1 for none."""
        magnitude = (elements & np.uint16(SIGN - 1)).astype(np.int64)
        nan = magnitude > self.domain.infinity
        return nan.any(axis=1).astype(np.int64), np.where(nan, -1, magnitude).max(axis=1)


def batches(maker: Maker, amaxes: Sequence[int], size: int) -> Iterator[tuple[Blocks, int]]:
    """The blocks of `amaxes` in batches of `size`, each with how many count; the last is filled up with copies."""
    batch = Blocks(*(np.empty((size, *tail), dtype) for tail, dtype in _FIELDS))
    filled = 0
    for amax in amaxes:
        made, taken = maker.blocks(amax), 0
        while taken < len(made.scales):
            step = min(len(made.scales) - taken, size - filled)
            for target, source in zip(_arrays(batch), _arrays(made), strict=True):
                target[filled : filled + step] = source[taken : taken + step]
            filled, taken = filled + step, taken + step
            if filled == size:
                yield batch, size
                filled = 0
    if filled:
        for target in _arrays(batch):
            target[filled:] = np.resize(target[:filled], (size - filled, *target.shape[1:]))
        yield batch, filled


_FIELDS: tuple[tuple[tuple[int, ...], type[np.generic]], ...] = (
    ((MX_BLOCK,), np.uint16),
    ((MX_BLOCK,), np.uint8),
    ((), np.uint8),
)


def _arrays(blocks: Blocks) -> tuple[NDArray[np.generic], ...]:
    return blocks.elements, blocks.codes, blocks.scales
