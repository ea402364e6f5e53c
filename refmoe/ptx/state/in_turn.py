"""Repeats of one operation at one word, all in one call: what each of them finds, and what the last one leaves.

Hundreds of lanes that count in one word take hundreds of turns. An integer operation gives the same in one scan as in
turns, so that `accumulate` of NumPy does them all. A counter that goes round (`inc`, `dec`) has a formula where all
lanes have one bound. Floating point rounds after each turn, and a comparison asks for what the turn before left: these
are turns indeed, in native code (`refmoe.ptx.native.turns`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
_UFUNCS: dict[str, Any] = {
    "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "min": np.minimum,
    "max": np.maximum,
}  # fmt: skip
# What an addition or a bitwise operation leaves does not depend on the sign, what min and max leave does.
_SIGNED = ("min", "max")


@dataclass(frozen=True)
class Scan:
    """An atomic operation on integers that has a scan.

    Attributes:
        accumulate: of a ufunc; None for an exchange, which leaves its own operand, and for a counter.
        dtype: in which it computes.
    """

    accumulate: Callable[..., Any] | None
    dtype: np.dtype[Any]

    def __call__(self, first: Any, operands: Array) -> Array:
        """What a word holds: `first` at the beginning, then after each of `operands` [n] in order; [n + 1]."""
        values = np.concatenate([np.asarray(first, operands.dtype)[None], operands])
        if self.accumulate is None:
            return values
        return self.accumulate(values.view(self.dtype), dtype=self.dtype).view(values.dtype)


@dataclass(frozen=True)
class Counter(Scan):
    """`inc` and `dec`: a counter from 0 to a bound and round again, or, `down`, back (PTX ISA, "atom")."""

    down: bool = False

    def __call__(self, first: Any, operands: Array) -> Array:
        """See `Scan`; `operands` are the bounds."""
        bound = int(operands[0])
        if (operands != operands[0]).any():
            return self._by_turns(int(first), operands)
        values = np.empty(len(operands) + 1, operands.dtype)
        values[0], turns = first, np.arange(len(operands), dtype=np.int64)
        # The first turn goes on from what is there, or, from beyond the bound, begins a round.
        if self.down:
            begin = bound if not 0 < int(first) <= bound else int(first) - 1
            turns = begin - turns
        else:
            turns += 0 if int(first) >= bound else int(first) + 1
        values[1:] = turns % (bound + 1)
        return values

    def _by_turns(self, held: int, operands: Array) -> Array:
        """One turn after another, in Python's integers: the lanes have different bounds."""
        values = [held]
        for bound in operands.tolist():
            goes_round = not 0 < held <= bound if self.down else held >= bound
            held = (bound if self.down else 0) if goes_round else held + (-1 if self.down else 1)
            values.append(held)
        return np.array(values, operands.dtype)


def scan_of(operation: str, kind: str) -> Scan | None:
    """The scan of an atomic operation (`"add"`, `"exch"`, ...) on a type (`"u32"`, `"s64"`, ...), if it has one."""
    letter, bits = kind[0], kind[1:]
    if letter not in "usb" or bits not in ("32", "64"):
        return None
    sign = "i" if letter == "s" and operation in _SIGNED else "u"
    dtype = np.dtype(f"{sign}{int(bits) // 8}")
    if operation in ("inc", "dec"):
        return Counter(None, dtype, down=operation == "dec")
    if operation == "exch":
        return Scan(None, dtype)
    return Scan(_UFUNCS[operation].accumulate, dtype) if operation in _UFUNCS else None


class ContendedWords:
    """The words of a region that lanes meet at, from their first turn to their last.

    Args:
        at: int64 [n], the number of each lane's word.
        read: gives the words [m] of numbers [m].

    Attributes:
        places: int64 [m], the numbers of the words, each once.
        of: int64 [n], which of them is each lane's.
        held: [m], what they hold.
    """

    def __init__(self, at: Array, read: Callable[[Array], Array]) -> None:
        self.places: Array = at
        self.of: Array = np.zeros(1, np.intp)
        if len(at) > 1:
            self.places, self.of = np.unique(at, return_inverse=True)
        self.held = read(self.places)

    @property
    def are_few(self) -> bool:
        """Whether lanes take more turns at one of the words than there are words."""
        return len(self.places) < len(self.of) and len(self.places) <= int(np.bincount(self.of).max())

    def scan(self, scan: Callable[..., Array], *operands: Array) -> tuple[Array, bool]:
        """(what each lane [n] finds, whether a turn changed a word); `operands` [n] each are the lanes' own.

        `scan(word, *operands)` gives what a word holds before and after each of some turns.
        """
        found, changed = np.empty_like(operands[0]), False
        order = np.argsort(self.of, kind="stable")
        ends = np.cumsum(np.bincount(self.of, minlength=len(self.places)))
        begin = 0
        for number, end in enumerate(ends.tolist()):
            lanes = order[begin:end]
            values = scan(self.held[number], *(each[lanes] for each in operands))
            found[lanes], self.held[number] = values[:-1], values[-1]
            changed = changed or bool((values[1:] != values[:-1]).any())
            begin = end
        return found, changed
