"""A schedule: one legal choice of everything that PTX leaves open in a launch.

PTX does not say which block starts first, which warp runs next, in which order the lanes of a divergent warp go on,
when an asynchronous copy lands, or whose atomic comes first. A schedule decides all of that, from its number alone:
the same launch under the same schedule gives the same bytes, on every machine. Schedule 0 is the order in which the
executor runs everything by default, schedule 1 its opposite wherever there is one, and the others are drawn.

>>> print(Schedule(7))
schedule=7
>>> Schedule.of("schedule=7").number
7
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from refmoe.draw import Draw
from refmoe.errors import describe
from refmoe.ptx.errors import ArgumentMismatch
from refmoe.ptx.exploration import Walk

Array = Any
_MOST = 1 << 32
_PREFIX, _WALK = "schedule=", "walk:"
_LAST_LANE = 31
# Words that are drawn together.
_AT_ONCE = 64
# Reflections that shuffle blocks: each swaps half of the pairs that it makes.
_REFLECTIONS = 64
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Choices:
    """A stream of choices, decided by the words that it is named with."""

    def __init__(self, *name: object) -> None:
        self._draw = Draw(*name)
        self._words: list[int] = []

    def word(self) -> int:
        """64 bits."""
        if not self._words:
            self._words = self._draw.words(_AT_ONCE).tolist()
        return self._words.pop()

    def below(self, count: int) -> int:
        """0 to `count` - 1, `count` at most 2^32."""
        return (self.word() >> 32) * count >> 32

    def order(self, count: int) -> Array:
        """A permutation, int64 [count]."""
        return np.argsort(self._draw.words(count), kind="stable")


@dataclass(frozen=True)
class BlockOrder:
    """A permutation of 0 to `count` - 1 that costs nothing to hold, whatever the count.

    A shuffle is a sequence of reflections x -> key - x (mod count), each applied to about half of the pairs {x, key -
    x}, as a hash of the pair says ("swap or not", Hoang, Morris and Rogaway, CRYPTO 2012). Each undoes itself.

    Attributes:
        count: elements.
        seed: of the shuffle; None for the reverse order.
    """

    count: int
    seed: int | None

    def at(self, position: Array) -> Array:
        """The number of what stands at a position, int64 scalar or array."""
        return self._permuted(position, range(_REFLECTIONS))

    def where(self, number: Array) -> Array:
        """The inverse of `at`."""
        return self._permuted(number, reversed(range(_REFLECTIONS)))

    def _permuted(self, value: Array, rounds: Any) -> Array:
        result = np.asarray(value, np.int64)
        if self.seed is None:
            return self.count - 1 - result
        pairs = _reflections(self.seed, self.count)
        with np.errstate(over="ignore"):
            for number in rounds:
                key, salt = pairs[number]
                other = (key - result) % self.count
                swaps = _mixed(np.maximum(result, other).astype(np.uint64) ^ salt) & np.uint64(1)
                result = np.where(swaps == 1, other, result)
        return result


@lru_cache(maxsize=256)
def _reflections(seed: int, count: int) -> tuple[tuple[int, np.uint64], ...]:
    """The key and the salt of each reflection."""
    keys = Choices("block order", seed, count)
    return tuple((keys.below(count), np.uint64(keys.word())) for _ in range(_REFLECTIONS))


@lru_cache(maxsize=4096)
def element_at(order: BlockOrder, position: int) -> int:
    """`order.at` of a single position: whoever tells of a block asks for the same few again and again."""
    return int(order.at(position))


def _mixed(value: Array) -> Array:
    """A hash of 64 bits (the finaliser of SplitMix64, Steele, Lea and Flood, OOPSLA 2014)."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True)
class Schedule:
    """One legal choice of what PTX leaves open, decided by its number.

    Attributes:
        number: 0 for the executor's own order, 1 for its opposite; all others are drawn.
        lowest_leader: whether `elect.sync` takes the lowest lane all the same.
        walk: what decides instead of the number, or None: see `refmoe.ptx.exploration`.
    """

    number: int = 0
    lowest_leader: bool = False
    walk: Walk | None = None

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int) or not 0 <= self.number < _MOST:
            raise ArgumentMismatch(f"schedule {describe(self.number)}: a whole number from 0 to {_MOST - 1} needed")

    @classmethod
    def of(cls, value: int | str | Schedule) -> Schedule:
        """A schedule from its number or its text.

        Raises:
            ArgumentMismatch: neither.
        """
        if isinstance(value, Schedule):
            return value
        if isinstance(value, str):
            digits = value.removeprefix(_PREFIX)
            path = digits.removeprefix(_WALK).split(".")
            if digits.startswith(_WALK) and all(each.isascii() and each.isdecimal() for each in path):
                return cls(walk=Walk(list(map(int, path))))
            if not (digits.isascii() and digits.isdecimal()):
                raise ArgumentMismatch(f"schedule {value!r}: as schedule=7 needed")
            value = int(digits)
        return cls(value)

    def __str__(self) -> str:
        return f"{_PREFIX}{self.number}" if self.walk is None else f"{_PREFIX}{_WALK}{self.walk}"

    @property
    def default(self) -> bool:
        """Whether it is the order in which the executor runs everything by default."""
        return self.number == 0 and self.walk is None

    @property
    def opposite(self) -> bool:
        """Whether it is the opposite of the default wherever there is one."""
        return self.number == 1

    def choices(self, *name: object) -> Choices | Walk:
        """The stream of choices of that name."""
        return Choices("schedule", self.number, *name) if self.walk is None else self.walk

    @property
    def by_steps(self) -> bool:
        """Whether the threads of a short launch take their steps one by one; else whole warps run for a while."""
        return self.walk is not None or (self.number > 1 and self.choices("steps").below(4) > 0)

    def block_order(self, count: int) -> BlockOrder | None:
        """The order in which `count` clusters of blocks start; None for ascending."""
        if self.default or count == 1 or self.walk is not None:
            return None
        if self.opposite:
            return BlockOrder(count, None)
        kind = self.choices("blocks").below(8)
        return BlockOrder(count, None if kind == 1 else self.number) if kind else None

    def blocks_together(self, count: int, most: int) -> int:
        """Of `count` blocks, how many run together in one machine, where `most` fit: what is left of a grid waits."""
        if self.default or self.opposite or self.walk is not None:
            return most
        # A machine costs as much to make as many blocks to run.
        parts = (1, 1, 2, 3, 16)[self.choices("machines").below(5)]
        return max(1, min(most, -(-count // parts)))

    @property
    def elected(self) -> int:
        """The lane from which on, and round, `elect.sync` takes the first: one mask has one leader, as PTX demands."""
        if self.default or self.lowest_leader or self.walk is not None:
            return 0
        return _LAST_LANE if self.opposite else self.choices("elect").below(_LAST_LANE + 1)
