"""What holds on a path of two entries side by side: predicates of the branches that led there."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from refmoe.mutation.proofs.flow import SideBySide
from refmoe.mutation.proofs.nodes import Node, Nodes


@dataclass
class PathFacts:
    """Predicates that hold on paths.

    Attributes:
        side: both entries.
    """

    side: SideBySide
    _held: dict[int, list[Node]] = field(default_factory=dict)

    @property
    def nodes(self) -> Nodes:
        """Of both entries."""
        return self.side.nodes

    def of(self, number: int) -> list[Node]:
        """Predicates that hold on a path: of branches that have led there, or to a path in front of it."""
        if number not in self._held:
            found = []
            for each in sorted(self._in_front[number]):
                befores = self.side.before[each]
                path = self.side.sides[0].held[self.side.pairs[each][0]] if each else None
                if path is None or len(befores) != 1:
                    continue
                onward = self.side.sides[0].held[self.side.pairs[befores[0]][0]].onward
                one, other = self.side.branches[befores[0]]
                if one is not None and one == other and onward[0] != onward[-1]:
                    found.append(one if onward[0] == self.side.pairs[each][0] else self.nodes.negated(one))
            self._held[number] = found
        return self._held[number]

    @cached_property
    def _in_front(self) -> list[set[int]]:
        """By path, those that every way to it goes over, itself included."""
        everything = set(range(len(self.side.pairs)))
        found = [{0}, *(set(everything) for _ in everything - {0})]
        changed = True
        while changed:
            changed = False
            for number in sorted(everything - {0}):
                ways = [found[each] for each in self.side.before[number]]
                now = set.intersection(*ways) | {number} if ways else {number}
                if now != found[number]:
                    found[number], changed = now, True
        return found

    def still(self, predicate: Node, number: int) -> bool:
        """Whether a predicate is what it was at the end of each path that leads to one: all of it was made before."""
        seen, waiting = set[Node](), [predicate]
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            shape = self.nodes.shapes[each]
            if shape[:2] in (("atom", "act"), ("atom", "meet")):
                if shape[2] == number or shape[2] not in self._in_front[number]:
                    return False
            elif shape[0] == "atom" and shape[1] not in ("parameter", "steady", "name"):
                return False
            waiting += self.nodes.arguments(each)
        return True
