"""The definition of MX quantization as a table: the scale byte by amax, the element's code by scale and element.

Every entry is an answer of `refmoe.reference.scalar.quantize_block`, which works with exact rationals. It is asked once
for each value that an element has after scaling, x * 2^(127 - scale): a power of two changes no bit of a mantissa, so
float64 has all of these values exactly and tells which are the same. Nothing here is shared with the kernels, or with
the fast reference that is held against the same table.

A block is given by its *class*: the largest magnitude among its numbers, or that it has none, and whether a NaN is in
it. That codes depend on the class and the element alone is what the definition says; that the fast reference agrees on
every pair is what the sweep of `refmoe.exhaustive` shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import E8M0, FORMATS, FP32, Format, as_mx_format
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference.scalar.numbers import Number, decode
from refmoe.reference.scalar.quantize import quantize_block

MAGNITUDES = 1 << 15
SIGN = 0x8000

#: Edges under which a block with a NaN, or with an infinity, is defined.
TAKES_NAN = frozenset(
    (EdgePolicy.EXACT, EdgePolicy.FLASHINFER, EdgePolicy.TRANSFORMER_ENGINE, EdgePolicy.LLAMA_CPP_CUDA)
)
TAKES_INFINITY = frozenset((EdgePolicy.EXACT, EdgePolicy.FLASHINFER))


@dataclass(frozen=True)
class Definition:
    """What a policy makes of every block.

    Attributes:
        scales: uint8 [2, 32769], the scale byte by whether a NaN is in the block, and by 1 + the bits of the largest
            magnitude among its numbers; 0 for no number at all.
        rows: int32 [2, 32769], the row of `codes` for the same block.
        codes: uint8 [rows, 65536], by the bits of the element. What cannot be, an element above amax, is 0.
    """

    scales: NDArray[np.uint8]
    rows: NDArray[np.int32]
    codes: NDArray[np.uint8]


@lru_cache(maxsize=2)
def definition(dtype: str, format: str, mode: str, edge: str) -> Definition:
    """The definition of `format` "mxfp8" or "mxfp4" for input of `dtype` "bf16" or "fp16", policies by name."""
    asker = _Asker(FORMATS[dtype], as_mx_format(format).element, ScaleMode(mode), EdgePolicy(edge))
    scales = np.zeros((2, MAGNITUDES + 1), np.uint8)
    rows = np.zeros((2, MAGNITUDES + 1), np.int32)
    tables: list[NDArray[np.uint8]] = [np.zeros(1 << 16, np.uint8)]
    for has_nan in (0, 1) if asker.edge in TAKES_NAN else (0,):
        for amax, byte in asker.scale_bytes(has_nan).items():
            scales[has_nan, amax + 1] = byte
        # Amax decides its block by the scale byte, or by being infinite or absent.
        by_row: dict[tuple[bool, int], list[int]] = {}
        for amax in asker.amaxes(has_nan):
            by_row.setdefault((0 <= amax < asker.infinity, int(scales[has_nan, amax + 1])), []).append(amax)
        for amaxes in by_row.values():
            rows[has_nan, np.array(amaxes) + 1] = len(tables)
            tables.append(asker.row(max(amaxes), int(scales[has_nan, amaxes[0] + 1]), has_nan))
    return Definition(scales, rows, np.stack(tables))


class _Asker:
    """Asks the definition, once for each value after scaling.

    Args:
        input: the format of the elements' bits.
        element: the format of the codes.
        mode, edge: the policy.
    """

    def __init__(self, input: Format, element: Format, mode: ScaleMode, edge: EdgePolicy) -> None:
        self.input, self.element, self.mode, self.edge = input, element, mode, edge
        infinity = input.infinity_code
        assert infinity is not None
        self.infinity = infinity
        self.nan = decode(infinity + 1, input)
        values = input.values()
        self.values = np.where(np.isfinite(values), np.abs(values), 0.0)

    def amaxes(self, has_nan: int) -> Iterable[int]:
        """The largest magnitudes of blocks that the edge defines, as bits; -1 for a block of NaNs alone."""
        return range(-1 if has_nan else 0, self.infinity + (self.edge in TAKES_INFINITY))

    def _block(self, amax: int, has_nan: int) -> list[Number]:
        return [decode(amax, self.input) for _ in range(amax >= 0)] + [self.nan] * has_nan

    def scale_bytes(self, has_nan: int) -> dict[int, int]:
        """The scale byte by amax."""
        return {
            amax: quantize_block(self._block(amax, has_nan), self.element, self.mode, self.edge).scale
            for amax in self.amaxes(has_nan)
        }

    def row(self, amax: int, scale: int, has_nan: int) -> NDArray[np.uint8]:
        """The codes uint8 [65536] of all elements in a block of which `amax` is the largest magnitude."""
        table = np.zeros(1 << 16, np.uint8)
        magnitude = np.arange(max(amax + 1, 0))
        if has_nan:
            magnitude = np.concatenate([magnitude, np.arange(self.infinity + 1, MAGNITUDES)])
        for sign in (0, SIGN):
            for kind, chosen in self._kinds(magnitude):
                where = (self.input, self.element, self.edge, bool(has_nan), 0 <= amax < self.infinity, scale == 0)
                known = _known(*where, kind, sign)
                bits = magnitude[chosen] | sign
                scaled = np.ldexp(self.values[magnitude[chosen]], E8M0.bias - scale)
                new, first = np.unique(scaled, return_index=True)
                unasked = ~np.isin(new, known.scaled, assume_unique=True)
                if unasked.any():
                    elements = [decode(each, self.input) for each in bits[first[unasked]].tolist()]
                    block = self._block(amax, has_nan)
                    asked = quantize_block([*block, *elements], self.element, self.mode, self.edge)
                    known.add(new[unasked], asked.codes[len(block) :])
                table[bits] = known.codes[np.searchsorted(known.scaled, scaled)]
        return table

    def _kinds(self, magnitude: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """The kinds of elements that a policy may tell apart, each with where they are in `magnitude`, if anywhere."""
        value = self.values[magnitude]
        subnormal = value < float(FP32.min_normal)
        kinds = {
            "normal": (magnitude < self.infinity) & ~subnormal,
            "subnormal": (magnitude < self.infinity) & subnormal,
            "infinite": magnitude == self.infinity,
            "NaN": magnitude > self.infinity,
        }
        return ((kind, chosen) for kind, chosen in kinds.items() if chosen.any())


@dataclass
class _Known:
    """The answers so far of one kind of elements: codes uint8 by the scaled magnitude, which ascends."""

    scaled: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    codes: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))

    def add(self, scaled: NDArray[np.float64], codes: Iterable[int]) -> None:
        """Keep answers to values that were not known."""
        both = np.concatenate([self.scaled, scaled])
        order = np.argsort(both)
        self.scaled = both[order]
        self.codes = np.concatenate([self.codes, np.fromiter(codes, np.uint8, scaled.size)])[order]


@cache
def _known(
    input: Format, element: Format, edge: EdgePolicy, has_nan: bool, finite: bool, lowest: bool, kind: str, sign: int
) -> _Known:
    """The answers so far; blocks that an edge treats in another way have answers of their own."""
    return _Known()
