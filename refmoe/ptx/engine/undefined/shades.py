"""What is undefined of a register in the lanes of a frame, and where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.undefined.rules import everything
from refmoe.ptx.isa import DTYPES
from refmoe.ptx.text.literals import BITS, widener

Array = Any


@dataclass(frozen=True)
class Shade:
    """The undefined bits of a register.

    Attributes:
        mask: [lanes] of the register's kind, a 1 for each undefined bit; bool for a predicate.
        origins: int64 [lanes], where they came from, see `refmoe.ptx.engine.undefined.origins`.
    """

    mask: Array
    origins: Array

    @property
    def open(self) -> Array:
        """bool [lanes]: some bit is undefined."""
        found: Array = self.mask != 0
        return found

    def narrowed(self, kind: str) -> Shade | None:
        """Of the low bits of the register."""
        if self.mask.dtype == np.dtype(DTYPES[kind]):
            return self
        return shade(self.mask.astype(DTYPES[kind]), self.origins)

    def widened(self, narrow: str, wide: str, signed: bool) -> Shade:
        """Of a wider register that gets the value, extended by the sign or by zeros."""
        if narrow == wide or "pred" in (narrow, wide) or BITS[narrow] >= BITS[wide]:
            return self
        return Shade(widener(narrow, wide, signed)(self.mask), self.origins)

    def whole(self, kind: str) -> Shade:
        """Of a register all of whose bits are undefined where some bit of this one is."""
        return Shade(everything(kind, self.open), self.origins)


def shade(mask: Array, origins: Array) -> Shade | None:
    """A shade, or None where nothing is undefined."""
    return Shade(mask, origins) if mask.any() else None


def blamed(shades: Iterable[Shade | None], count: int) -> Array:
    """int64 [lanes]: where undefined bits of the first of some operands came from that has any."""
    origins = np.zeros(count, np.int64)
    for each in reversed(list(shades)):
        if each is not None:
            origins = np.where(each.open, each.origins, origins)
    return origins


def masks_of(shades: Sequence[Shade | None], kinds: Sequence[str], count: int) -> list[Array]:
    """The masks of operands of these kinds, zeros where nothing is undefined."""
    return [
        np.zeros(count, DTYPES[kind]) if each is None else each.mask for each, kind in zip(shades, kinds, strict=True)
    ]


def of_any(shades: Sequence[Shade | None], kind: str, count: int) -> Shade | None:
    """Of a result that depends on all bits of all operands."""
    found = np.zeros(count, bool)
    for each in shades:
        if each is not None:
            found |= each.open
    return shade(everything(kind, found), blamed(shades, count))
