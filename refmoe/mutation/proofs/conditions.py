"""What is known to hold where an act is, or where paths meet: comparisons of FP32 numbers with constants.

A value that a trial counts through need not be tried where such a comparison fails. Of a sum of squares that is at most
a constant each square is, too: every step of the sum rounds to nearest what is no less than both of its parts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from refmoe.mutation.proofs.flow import SideBySide
from refmoe.mutation.proofs.nodes import Node, Nodes

_COMPARED = re.compile(r"setp\.(lt|le|ltu|leu)\.f32$")
#: Terms of a sum, at most.
_TERMS = 64


@dataclass
class Conditions:
    """Predicates that hold at places of two entries side by side, by paths of the sound one.

    Attributes:
        side: both entries.
    """

    side: SideBySide
    _starts: dict[int, frozenset[Node]] = field(default_factory=dict)
    _parts: dict[Node, frozenset[Node]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Go over the paths until nothing changes: where several lead to one, what holds on all of them holds."""
        count = len(self.side.pairs)
        known: dict[int, frozenset[Node] | None] = {0: frozenset(), **dict.fromkeys(range(1, count))}
        changed = True
        while changed:
            changed = False
            for number in range(1, count):
                ways = [
                    held | self.told(self._way(one, number))
                    for one in self.side.before[number]
                    if (held := known[one]) is not None
                ]
                if not ways:
                    continue
                found = frozenset(
                    each for each in functools.reduce(frozenset.intersection, ways) if not self._renewed(each, number)
                )
                if found != known[number]:
                    known[number], changed = found, True
        self._starts = {number: held or frozenset() for number, held in known.items()}

    def at(self, number: int) -> frozenset[Node]:
        """What holds on a path."""
        return self._starts[number]

    def on_ways(self, number: int) -> list[frozenset[Node]]:
        """What holds on each way to a path, in the order of `SideBySide.meets`."""
        return [self._starts[one] | self.told(self._way(one, number)) for one in self.side.before[number]]

    def told(self, predicate: Node | None) -> frozenset[Node]:
        """The comparisons that hold where a predicate does."""
        if predicate is None:
            return frozenset()
        if predicate not in self._parts:
            self._parts[predicate] = frozenset(_comparisons(self.side.nodes, predicate))
        return self._parts[predicate]

    def _way(self, one: int, number: int) -> Node | None:
        """The predicate of the sound entry that leads from a path to another one; None if it always does."""
        path, predicate = self.side.sides[0].held[self.side.pairs[one][0]], self.side.branches[one][0]
        if predicate is None or path.onward[0] == path.onward[-1]:
            return None
        there = self.side.pairs[number][0] == path.onward[0]
        return predicate if there else self.side.nodes.negated(predicate)

    def _renewed(self, predicate: Node, number: int) -> bool:
        """Whether what a predicate is about has another value from a path on: one of its meetings, or of its acts."""
        return any(
            shape[1] not in ("meet", "act", "parameter", "steady")
            or (shape[1] in ("meet", "act") and number == shape[2])
            for shape in _atoms(self.side.nodes, predicate)
        )


def _atoms(nodes: Nodes, node: Node) -> Iterator[tuple[object, ...]]:
    seen, waiting = {node}, [node]
    while waiting:
        each = waiting.pop()
        if nodes.shapes[each][0] == "atom":
            yield nodes.shapes[each]
        fresh = set(nodes.arguments(each)) - seen
        seen |= fresh
        waiting += fresh


def _comparisons(nodes: Nodes, predicate: Node) -> Iterable[Node]:
    shape = nodes.shapes[predicate]
    if shape[:2] == ("op", "and.pred"):
        for each in shape[2:]:
            yield from _comparisons(nodes, each)
        return
    truth = shape[0] != "not"
    inner = shape if truth else nodes.shapes[shape[1]]
    match = _COMPARED.match(str(inner[1])) if inner[0] == "op" else None
    if match is None:
        return
    constants = [nodes.word(each) is not None for each in inner[2:]]
    if sum(constants) != 1:
        return
    yield predicate
    # At most a constant, and no NaN: `sum <= c`, or not `c < sum` of any that may be NaN.
    above = truth and constants[1] and not match[1].endswith("u")
    if above or (not truth and constants[0] and match[1].endswith("u")):
        for square in _squares(nodes, inner[2 if above else 3]):
            sides = (square, inner[3]) if above else (inner[2], square)
            made = nodes.of(("op", inner[1], *sides), 1)
            yield made if truth else nodes.negated(made)


def _squares(nodes: Nodes, total: Node) -> list[Node]:
    """The squares that a sum is of, each rounded by itself; none if it is of anything else as well."""
    found: list[Node] = []
    for _ in range(_TERMS):
        shape = nodes.shapes[total]
        if (word := nodes.word(total)) is not None:
            return found if word == 0 else []
        if shape[:2] == ("op", "mul.rn.f32") and shape[2] == shape[3]:
            return [*found, total]
        if shape[:2] != ("op", "fma.rn.f32") or shape[2] != shape[3]:
            return []
        found.append(nodes.computed("mul.rn.f32", [shape[2], shape[2]], 32))
        total = shape[4]
    return []
