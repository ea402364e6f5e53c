"""Accesses of bulk copies that stand beside one another: whose they are.

Copies that combine what they bring with what is there do not race with each other, and nor do copies out of the same
shared memory. So many of them may stand behind a byte that nothing has ordered. Any other access has to come after them
all, and not only after the one that came last: an atomic, too, which is of another proxy. One record cannot say of
several copies in flight which of them are complete: of such a byte memory has the number of a *set* of records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refmoe.ptx.state.records import (
    ASYNCHRONOUS,
    BULK,
    PENDING,
    SEVERAL_SHIFT,
    STEP_SHIFT,
    STRENGTH,
    STRENGTH_SHIFT,
    THREAD,
    Several,
)

Array = Any
# Records of a set; of more the earliest are forgotten.
_MOST = 4096
# Of a larger set it is asked now and then alone which come before a new one: the question is one for each of them.
_ALWAYS_ASKED = 64
# A set is as strong as the weakest of them, and at least 1, by which it differs from what `merge` makes of two copies.
_SET = (PENDING << STEP_SHIFT) | (int(Several.CLUSTERS) << SEVERAL_SHIFT) | int(BULK | ASYNCHRONOUS)
_BESIDES_STRENGTH = ~int(THREAD | STRENGTH)
# Whether an access of a record comes before what a lane does now.
Ordered = Callable[[int, int], bool]


class Combined:
    """The sets of records of a region.

    A set has the form of a record that nothing is ordered after: whoever does not know sets finds it in no order. Of a
    copy under way there is a set, even if it is alone: its thread may have another one under way that replaces what is
    there. A complete copy that is alone has the record of a plain write of its thread, which atomics do not excuse.
    """

    def __init__(self) -> None:
        self._sets: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {}
        # Records of copies that combined, and are complete.
        self._complete: set[int] = set()

    def complete(self, done: Array) -> None:
        """Copies that combine are complete, and have the records `done` from now on."""
        self._complete.update(np.unique(done).tolist())

    def combines(self, record: int) -> bool:
        """Whether all that a record stands for are copies that combine."""
        return all(map(self._is_copy, self.members(record)))

    def _is_copy(self, record: int) -> bool:
        return record in self._complete or bool(record & int(BULK) and record & int(STRENGTH))

    def together(self, one: int, other: int) -> int:
        """What stands for the accesses of two records."""
        return self._of((*self.members(one), *self.members(other)))

    def are_copies(self, records: Array) -> Array:
        """Which of `records` [n] are of copies that combine, alone or in a set."""
        different, which = np.unique(records, return_inverse=True)
        found: Array = np.array([bool(each) and self.combines(each) for each in different.tolist()], np.bool_)
        return found[which.ravel()]

    def are_sets(self, records: Array) -> Array:
        """Which of `records` [n] are sets."""
        return (records & _BESIDES_STRENGTH == _SET) & (records & STRENGTH != 0)

    def is_set(self, record: int) -> bool:
        """Whether a record is a set."""
        return record & _BESIDES_STRENGTH == _SET and record & int(STRENGTH) != 0

    def members(self, record: int) -> tuple[int, ...]:
        """The records that one stands for."""
        return self._sets[record & int(THREAD)] if self.is_set(record) else (record,)

    def _of(self, members: tuple[int, ...]) -> int:
        """What stands for some records."""
        if len(members) == 1 and not (self._is_copy(members[0]) and members[0] & int(BULK)):
            return members[0]
        kept = members[-_MOST:]
        made = self._numbers.get(kept)
        if made is None:
            strength = min(each & int(STRENGTH) for each in kept) >> STRENGTH_SHIFT
            made = self._numbers[kept] = _SET | max(strength, 1) << STRENGTH_SHIFT | len(self._sets)
            self._sets.append(kept)
        return made

    def with_one(self, previous: int, mine: int, lane: int, ordered: Ordered) -> int:
        """What stands for a lane's access `mine`, and for those of `previous` that do not come before it."""
        members = self.members(previous)
        if len(members) <= _ALWAYS_ASKED or len(members) & (len(members) - 1) == 0:
            members = tuple(each for each in members if each != mine and not ordered(lane, each))
        else:
            # Whoever comes after this one comes after those before it, so that they may stay.
            members = tuple(each for each in members if each != mine)
        return self._of((*members, mine))

    def with_each(self, previous: Array, mine: Array, lanes: Array, ordered: Ordered) -> Array:
        """`with_one` of records [n] each; 0 for no previous one."""
        made: Array = mine.copy()
        table = np.stack([previous, mine, lanes], axis=1)
        rows, which = np.unique(table, axis=0, return_inverse=True)
        for number, (before, own, lane) in enumerate(rows.tolist()):
            made[which.ravel() == number] = self.with_one(before, own, lane, ordered) if before else self._of((own,))
        return made

    def beside(self, found: Array, mine: Array) -> Array:
        """What stands for accesses `mine` [n] and for all of `found` [n], of which they may be already."""
        pairs, which = np.unique(np.stack([found, mine], axis=1), axis=0, return_inverse=True)
        each = [
            held if own in self.members(held) else self._of((*self.members(held), own)) for held, own in pairs.tolist()
        ]
        made: Array = np.array(each, np.int64)[which.ravel()]
        return made

    def completed(self, found: Array, pending: Array, done: Array) -> Array:
        """`found` [n] with `done` [n] in place of `pending` [n], which sets may have too."""
        made: Array = np.where(found == pending, done, found)
        # Most places of a copy have one set.
        known: dict[tuple[int, int, int], int] = {}
        for at in np.flatnonzero(self.are_sets(found)).tolist():
            held, before, after = int(found[at]), int(pending[at]), int(done[at])
            if (held, before, after) not in known:
                members = self.members(held)
                place = members.index(before) if before in members else -1
                known[held, before, after] = (
                    held if place < 0 else self._of((*members[:place], after, *members[place + 1 :]))
                )
            made[at] = known[held, before, after]
        return made

    def unordered(self, lane: int, record: int, ordered: Ordered) -> int | None:
        """A record of a set that does not come before what a lane does now."""
        return next((each for each in self.members(record) if not ordered(lane, each)), None)
