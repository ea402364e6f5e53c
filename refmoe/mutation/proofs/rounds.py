"""Branches on which two entries part, where nothing that the other one goes on to do is seen.

Where the sound entry ends and the other one goes on, this one is walked to its end. What is known there is that they
part. It has to decide every branch on the way, so that there is one way. On it no act may happen but exchanges of a
whole warp and waiting for launches: the guards of all others fail.

An exchange waits for the lanes of its warp that have not ended. So all lanes of the warp have to leave the sound entry
at the same time: its predicate does not depend on the lane. Then each of them ends, or is on the same way.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass

from refmoe.mutation.proofs.facts import PathFacts
from refmoe.mutation.proofs.flow import Act, SideBySide
from refmoe.mutation.proofs.lanes import LaneGroups
from refmoe.mutation.proofs.nodes import Node
from refmoe.mutation.proofs.solver import WordSolver

#: Paths of a way to the end.
_MOST_PATHS = 16
_WAITS = re.compile(r"griddepcontrol\.wait$")
_TURNS = tuple(1 << place for place in range(5))


@dataclass
class UnseenRounds:
    """Whether it is seen that two entries part.

    Attributes:
        side: both entries.
        facts: what holds on their paths.
        lanes: what lanes have in common.
        solver: answers whether predicates hold.
    """

    side: SideBySide
    facts: PathFacts
    lanes: LaneGroups
    solver: WordSolver

    def unseen(self, number: int, one: Node, other: Node) -> bool:
        """Whether entries do the same though the predicates of a branch differ.

        Args:
            number: the pair of paths that it is at the end of.
            one: the predicate of the sound entry.
            other: that of the other one.
        """
        nodes, onward = self.side.nodes, self._onward(0, number)
        ends = [place for place, each in enumerate(onward) if self._does_nothing(0, each)]
        if len(onward) != 2 or len(ends) != 1 or not self._does_nothing(1, self._onward(1, number)[ends[0]]):
            return False
        # Where the branch ends the sound entry it may not end the other one; never the other way round.
        leaves, stays = (one, other) if ends == [0] else (nodes.negated(one), nodes.negated(other))
        known = self.facts.of(number)
        if not self._never([*known, nodes.negated(leaves), stays]):
            return False
        given = nodes.both([*known, leaves, nodes.negated(stays)])
        exchanges = False
        for act in self._acts(number, self._onward(1, number)[1 - ends[0]], given):
            if act is None:
                return False
            if not self._never([given, act.guard]):
                exchange = self.lanes.gathers(act) and not act.opcode.startswith("bar")
                exchanges |= exchange
                if not exchange and not _WAITS.match(act.opcode):
                    return False
        return not exchanges or self._even(one)

    def _even(self, predicate: Node) -> bool:
        """Whether a predicate is the same in all lanes of a warp, and no branch parts them."""
        held = [predicate, *(each for each, _ in self.side.branches.values() if each is not None)]
        return not any(self.lanes.apart(each, turn) for each in held for turn in _TURNS)

    def _never(self, predicates: list[Node]) -> bool:
        """Whether some predicates never hold at once."""
        nodes = self.side.nodes
        every = nodes.both(predicates)
        if (word := nodes.word(every)) is not None:
            return word == 0
        return self.solver.same(every, nodes.integer(0, 1), None, frozenset())

    def _onward(self, side: int, number: int) -> tuple[int, ...]:
        return self.side.sides[side].held[self.side.pairs[number][side]].onward

    def _does_nothing(self, side: int, path: int) -> bool:
        """Whether nothing but plain instructions comes behind a branch."""
        seen = set[int]()
        while path >= 0:
            held = self.side.sides[side].held[path]
            if path in seen or len(held.onward) != 1 or not all(each.pure for each in held.steps):
                return False
            seen.add(path)
            path = held.onward[0]
        return True

    def _acts(self, number: int, path: int, given: Node) -> Iterator[Act | None]:
        """The acts of the other entry from a path to its end, where a predicate holds; None where the way is not known.

        A path that is walked again has acts of its own: what they give is not what they gave before.
        """
        walk = copy.copy(self.side)
        walk.pairs, walk.acts, walk.branches = [*walk.pairs], dict(walk.acts), dict(walk.branches)
        nodes, registers = self.side.nodes, dict(self.side.ends[1, number])
        for _ in range(_MOST_PATHS):
            if path < 0:
                return
            walk.pairs.append((path, path))
            place = len(walk.pairs) - 1
            yield from walk.walked(1, place, registers)
            onward = self.side.sides[1].held[path].onward
            predicate = walk.branches[place][1]
            one_way = predicate is None or onward[0] == onward[-1]
            if predicate is None or one_way or self._never([given, nodes.negated(predicate)]):
                path = onward[0]
            elif self._never([given, predicate]):
                path = onward[1]
            else:
                break
        yield None
