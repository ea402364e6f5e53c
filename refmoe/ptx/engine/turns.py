"""Which warps of a machine run next, and which of their lanes, under a schedule that is not the default one.

By default the warps of a machine stay together: the lowest place of all runs next. A schedule has them run apart in one
of several ways, which it draws for each machine:

- together, but with another place first;
- one team of warps after another, each as far as it comes before it has to wait for others;
- in turns of a few blocks of code each, between which another team may go on;
- some of the CTAs before the others.

Which place comes first is a permutation of places, the same for all warps of a launch: lanes of a divergent branch go
on in another order. Lanes may also part where nothing parts them: a warp's lanes need not run together between two
warp-level instructions (PTX ISA, "Independent Thread Scheduling").

A team that polls lets the others run, so that no schedule starves anybody.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.native_state import NativeState
from refmoe.ptx.engine.warp import bits_of_warps

Array = Any
_EVERY_LANE = 0xFFFFFFFF
_UPPER_HALF = 0xFFFF0000
# Blocks of code in a turn that ends only where a warp has to wait.
_WITHOUT_END = 1 << 31
_TURNS = (1, 2, 8, 64)
# A step of Python's takes all lanes of a team at a place: many teams cost many steps.
_MOST_TEAMS = 8


class Turns:
    """The policy of one machine.

    Args:
        machine: whose warps.
        native: their state.
        together: warps of a CTA that follow one another and are of one team.

    Attributes:
        open: whether nobody is held back, because the others may be waited for.
    """

    def __init__(self, machine: Lanes, native: NativeState, together: int) -> None:
        self.machine, self.native = machine, native
        self._together = together
        self.begin()

    def begin(self) -> None:
        """The machine stands at its start, perhaps of other CTAs than before."""
        machine, schedule = self.machine, self.machine.launch.schedule
        self._choices = schedule.choices("turns", machine.first_cta)
        self.open = False
        self._tried = 0
        self._changes = False
        lanes, launch = schedule.choices("lanes"), self._choices
        warps = machine.lanes // 32
        in_cluster = machine.warps * machine.launch.grid.cluster_blocks
        self._teams = np.zeros(warps, np.int64)
        order, blocks = np.arange(warps), 0
        self._split = 0
        preference = _EVERY_LANE
        if schedule.opposite:
            # The last warp of each CTA first (CTAs are in the opposite order already), its upper lanes before the lower
            # ones, and the last place before all others.
            order, blocks = order.reshape(-1, in_cluster)[:, ::-1].ravel(), _WITHOUT_END
            self._split = _UPPER_HALF
            self._part(np.arange(in_cluster)[::-1])
        else:
            preference = (0, _EVERY_LANE, lanes.word() >> 32, lanes.word() >> 32)[lanes.below(4)]
            if lanes.below(2) == 0:
                self._split = lanes.word() >> 32
            kind = launch.below(4)
            if kind == 1:
                blocks = _WITHOUT_END
                self._part(launch.order(in_cluster))
            elif kind == 2:
                order, blocks = launch.order(warps), _TURNS[launch.below(len(_TURNS))]
                self._part(launch.order(in_cluster) % (2 + launch.below(3)))
                self._changes = True
            elif kind == 3:
                order, blocks = launch.order(warps), _WITHOUT_END
                self._teams = launch.order(warps // in_cluster)[np.arange(warps) // in_cluster] % 2
        self._count = int(self._teams.max()) + 1
        self._now = 0
        self.native.order(order, blocks, preference, self._split, self._choices.word())
        self._first = np.full(warps, self._split, np.uint32)
        self._hold()

    def _part(self, ranks: Array) -> None:
        """Teams by a warp's number in its cluster: at most `_MOST_TEAMS`, those of the lowest ranks first.

        Warps that run `wgmma` together are of one team.
        """
        numbers = np.arange(len(ranks))
        leads = numbers - numbers % self.machine.warps % self._together
        width = -(-len(ranks) // _MOST_TEAMS)
        teams = np.unique((ranks // width)[leads], return_inverse=True)[1]
        self._teams = teams[np.arange(len(self._teams)) % len(ranks)]

    def _hold(self) -> None:
        self.native.hold(np.zeros(len(self._teams), bool) if self.open else self._teams != self._now)

    def _pass(self, team: int) -> None:
        if team != self._now:
            self._now = team
            self._hold()

    # What the machine tells

    def stepped(self) -> None:
        """Lanes ran a block in Python."""
        self._tried = 0
        if self._changes and self._choices.below(4) == 0:
            self._pass(self._choices.below(self._count))

    def polled(self) -> None:
        """Lanes came round in a loop that may wait for others."""
        if not self.open:
            self._pass((self._now + 1) % self._count)

    def progressed(self) -> None:
        """Something changed since all were let run."""
        if self.open:
            self.open = False
            self._hold()

    def met(self) -> None:
        """Lanes leave a barrier: who runs first is open again."""
        if not self.open:
            self._pass(0 if self.machine.launch.schedule.opposite else self._choices.below(self._count))

    def let_all_run(self) -> None:
        """Whoever is held back may be the one that the others wait for."""
        self.open = True
        self._hold()

    def pass_on(self) -> bool:
        """Nobody can run who is not held back: let others. False if nobody is held back."""
        if self.open:
            return False
        self._tried += 1
        if self._tried < self._count:
            self._pass((self._now + 1) % self._count)
        else:
            self._tried = 0
            self.let_all_run()
        return True

    def part(self, mask: Array) -> Array:
        """Of the lanes at a place, bool [lanes], those that run first: all, or some of each warp."""
        if not self._split:
            return mask
        here = bits_of_warps(mask)
        first = here & self._first
        parts = (first != 0) & (first != here)
        if not np.count_nonzero(parts):
            return mask
        # Of such a warp the others are the first the next time, as natively: nobody is always behind.
        self._first ^= np.where(parts, np.uint32(_EVERY_LANE), np.uint32(0))
        return mask & np.unpackbits(np.where(parts, first, here).view(np.uint8), bitorder="little").view(np.bool_)
