"""Numbers that loops count in: that they are never negative, or not as long as a flag has not changed.

A counter goes on as long as it is below a bound, and a flag says when it no longer does. No interval tells that, since
the last step may lead beyond the bound. So statements are made up of the two, and those are left out one by one that do
not follow on some way where paths meet, if all others hold before. What is left holds by induction: it does at first,
and from then on whenever paths meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from refmoe.mutation.proofs.facts import PathFacts
from refmoe.mutation.proofs.flow import SideBySide
from refmoe.mutation.proofs.nodes import Node
from refmoe.mutation.proofs.ranges import Ranges
from refmoe.mutation.proofs.solver import WordSolver

#: What a counter is at most: another step of a loop fits 32 bits.
_MOST = 1 << 30
_WORD = 32
#: Meetings that one number may depend on.
_MOST_MEETS = 40


@dataclass(frozen=True)
class CounterBound:
    """A statement on what two registers have where paths meet: a number is within bounds, or a flag is something else.

    Attributes:
        counter: the number's node.
        flag: the flag's; None if the number is within bounds always.
        zero: whether it is within them where the flag is 0, or where it is not.
    """

    counter: Node
    flag: Node | None = None
    zero: bool = True


@dataclass
class Counters:
    """What is known of numbers that loops count in.

    Attributes:
        side: both entries.
        ranges: what values may be.
        facts: what holds on paths.
        solver: answers what follows from what.
    """

    side: SideBySide
    ranges: Ranges
    facts: PathFacts
    solver: WordSolver
    _known: dict[Node, tuple[Node, ...]] = field(default_factory=dict)

    def about(self, nodes: set[Node]) -> list[Node]:
        """Predicates that hold of the numbers among some nodes."""
        found: list[Node] = []
        for each in sorted(nodes & self.side.meets.keys()):
            if each not in self._known:
                self._induce(each)
            found += self._known[each]
        return sorted(set(found))

    def _induce(self, number: Node) -> None:
        self._known[number] = ()
        closed = self._closed(number)
        held = [each for meet in closed for each in self._statements(meet)]
        changed = len(closed) <= _MOST_MEETS
        while changed:
            # One that is left out may have been what others follow from.
            changed = False
            for each in list(held):
                if not self._follows(each, held):
                    held.remove(each)
                    changed = True
        if len(closed) <= _MOST_MEETS:
            about = [each for each in held if each.counter == number]
            self._known[number] = tuple(self._said(each, each.counter, each.flag) for each in about)

    def _closed(self, number: Node) -> list[Node]:
        """The meetings that a number is made of, round by round."""
        found, waiting = list[Node](), [number]
        while waiting and len(found) <= _MOST_MEETS:
            each = waiting.pop()
            if each not in found:
                found.append(each)
                waiting += [meet for way in self.side.meets[each] for meet in self._meets_in(way)]
        return found

    def _meets_in(self, node: Node) -> set[Node]:
        found, seen, waiting = set[Node](), set[Node](), [node]
        while waiting:
            each = waiting.pop()
            if each in self.side.meets:
                found.add(each)
            if each not in seen:
                seen.add(each)
                waiting += self.side.nodes.arguments(each)
        return found

    def _statements(self, counter: Node) -> Iterator[CounterBound]:
        nodes = self.side.nodes
        word = self.ranges.of(counter)
        if nodes.widths[counter] != _WORD or (word.low >= 0 and word.high <= _MOST):
            return
        yield CounterBound(counter)
        place = nodes.shapes[counter][2]
        for flag in sorted(self.side.meets):
            if flag != counter and nodes.shapes[flag][2] == place and self._is_flag(flag):
                yield CounterBound(counter, flag)
                yield CounterBound(counter, flag, zero=False)

    def _is_flag(self, node: Node) -> bool:
        word = self.ranges.of(node) if self.side.nodes.widths[node] > 1 else None
        return word is not None and (word.low, word.high) == (0, 1)

    def _said(self, statement: CounterBound, counter: Node, flag: Node | None) -> Node:
        """A statement as a predicate, on other nodes in the place of those that it is on."""
        nodes = self.side.nodes
        ends = ((counter, nodes.integer(0, _WORD)), (nodes.integer(_MOST, _WORD), counter))
        within = nodes.both([nodes.negated(nodes.computed(f"setp.lt.s{_WORD}", each, 1)) for each in ends])
        if flag is None:
            return within
        bits = nodes.widths[flag]
        zero = nodes.computed(f"setp.eq.u{bits}", (flag, nodes.integer(0, bits)), 1)
        where = zero if statement.zero else nodes.negated(zero)
        return nodes.negated(nodes.both([where, nodes.negated(within)]))

    def _follows(self, statement: CounterBound, held: list[CounterBound]) -> bool:
        """Whether a statement holds on every way that meets, if all statements hold before."""
        meets, nodes = self.side.meets, self.side.nodes
        flags = (None,) * len(meets[statement.counter]) if statement.flag is None else meets[statement.flag]
        path = int(nodes.shapes[statement.counter][2])
        befores = [*self.side.before[path], *([None] if path == 0 else [])]
        if not len(befores) == len(flags) == len(meets[statement.counter]):
            return False
        for before, way, counter, flag in zip(
            befores, self.side.ways[statement.counter], meets[statement.counter], flags, strict=True
        ):
            said = self._said(statement, counter, flag)
            known = [] if before is None else self.facts.of(before)
            known = [*known, *([] if way is None else [way])]
            near = {meet for each in (said, *known) for meet in self._meets_in(each)}
            known += [self._said(each, each.counter, each.flag) for each in held if each.counter in near]
            if not self.solver.same(said, nodes.integer(1, 1), nodes.both(known), frozenset()):
                return False
        return True
