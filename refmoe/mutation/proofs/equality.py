"""Whether two texts of an entry are the same kernel: each act of one is an act of the other on equal operands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from refmoe.mutation.proofs.acts import UnusedParts
from refmoe.mutation.proofs.conditions import Conditions
from refmoe.mutation.proofs.counters import Counters
from refmoe.mutation.proofs.declarations import namings, same_heads
from refmoe.mutation.proofs.domains import Domains
from refmoe.mutation.proofs.facts import PathFacts
from refmoe.mutation.proofs.flow import Act, Paths, SideBySide
from refmoe.mutation.proofs.functions import CalledModule
from refmoe.mutation.proofs.lanes import LaneGroups
from refmoe.mutation.proofs.nodes import EITHER_WAY, Node, Nodes
from refmoe.mutation.proofs.places import ArrayPlaces
from refmoe.mutation.proofs.program import WARP, EntryCode, NoProof
from refmoe.mutation.proofs.ranges import Ranges
from refmoe.mutation.proofs.rounds import UnseenRounds
from refmoe.mutation.proofs.solver import WordSolver
from refmoe.mutation.proofs.trials import Trial, tried
from refmoe.mutation.proofs.unread import without_unread
from refmoe.mutation.proofs.values import EITHER, FALSE, TRUE

_NUMBER_LOAD = re.compile(r"ld\.global(?:\.nc)?\.[us]64$")
#: Pairs of expressions of a proof that are tried on all values.
_TRIALS = 4000
#: Questions of a proof that the solver may leave open.
_QUESTIONS = 100
#: Rounds in which more is found to be the same in some lanes alone.
_ROUNDS = 12
#: Of these the order and the brackets say nothing, nor how often an operand occurs.
_CHAINED = frozenset(f"{name}.{kind}{bits}" for name in ("min", "max") for kind in "us" for bits in (16, 32, 64))
#: Those whose operands may be exchanged.
_EITHER_COMPARED = re.compile(r"setp\.(?:eq|ne|equ|neu|num|nan)\.\w+$")
#: What goes to memory of a register that may have more bits.
_NARROW_STORE = re.compile(r"st\.(?:global|shared)\.[usb](8|16)$")
_EARLY = "griddepcontrol.launch_dependents"

#: Two nodes, a predicate that holds where they are compared, and comparisons that do.
_Asked = tuple[Node, Node, Node | None, frozenset[Node]]


@dataclass
class EqualEntries:
    """A proof of two entries.

    Attributes:
        side: both.
        ranges: what their values may be.
        trials: of pairs of expressions that were tried on all their values.
    """

    side: SideBySide
    ranges: Ranges
    trials: list[Trial] = field(default_factory=list)
    _known: dict[_Asked, bool] = field(default_factory=dict)
    _assumed: set[_Asked] = field(default_factory=set)
    _trail: list[_Asked] = field(default_factory=list)
    _given: Node | None = None  # a predicate that holds where nodes are compared
    _holds: frozenset[Node] = frozenset()  # comparisons that do
    _partly: dict[Node, Node] = field(default_factory=dict)  # what exchanges give, and where it is the same in both
    _in_lanes: dict[Node, frozenset[int]] = field(default_factory=dict)  # the same, and in which lanes it is the same
    _sound: dict[tuple[Node, frozenset[Node]], bool] = field(default_factory=dict)
    _taken_for: dict[Node, Node] = field(default_factory=dict)
    _trials: int = _TRIALS
    _questions: int = _QUESTIONS

    @cached_property
    def _facts(self) -> PathFacts:
        return PathFacts(self.side)

    @cached_property
    def _solver(self) -> WordSolver:
        return WordSolver(self.nodes, self.ranges)

    @cached_property
    def _counters(self) -> Counters:
        return Counters(self.side, self.ranges, self._facts, self._solver)

    @cached_property
    def _unused(self) -> UnusedParts:
        return UnusedParts(self.side, self.ranges, self.equal)

    @cached_property
    def _lanes(self) -> LaneGroups:
        return LaneGroups(self.side, self.ranges)

    @cached_property
    def _conditions(self) -> Conditions:
        return Conditions(self.side)

    @cached_property
    def _domains(self) -> Domains:
        return Domains(self.side.nodes, self.side, self.ranges, frozenset((*self._partly, *self._in_lanes)))

    @contextmanager
    def _where(self, holds: frozenset[Node]) -> Iterator[None]:
        """Values are compared where some conditions hold."""
        before, self._holds = self._holds, holds
        try:
            yield
        finally:
            self._holds = before

    @property
    def nodes(self) -> Nodes:
        """Of both entries."""
        return self.side.nodes

    def holds(self) -> bool:
        """Whether both entries are the same kernel."""
        reached = sorted(self._reached())
        for _ in range(_ROUNDS):
            before = {**self._partly}, {**self._in_lanes}
            if not all(self._same_acts(number) for number in reached):
                return False
            if (self._partly, self._in_lanes) == before:
                return True
            # What was found while more was taken for the same is asked again.
            self._known.clear()
            self._sound.clear()
            self._trail.clear()
            self._domains = Domains(self.nodes, self.side, self.ranges, frozenset((*self._partly, *self._in_lanes)))
        return False

    def _reached(self) -> set[int]:
        """The pairs of paths that something leads to: a branch whose predicate never changes has one way."""
        seen, waiting = {0}, [0]
        while waiting:
            number = waiting.pop()
            path = self.side.sides[0].held[self.side.pairs[number][0]]
            predicate = self.side.branches[number][0]
            truth = EITHER if predicate is None else self.ranges.truth(predicate)
            ways = path.onward if len(path.onward) == 1 or truth == EITHER else (path.onward[truth != TRUE],)
            ahead = {self._numbers[each] for each in ways if each >= 0} - seen
            seen |= ahead
            waiting += ahead
        return seen

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {pair[0]: number for number, pair in enumerate(self.side.pairs)}

    def _same_acts(self, number: int) -> bool:
        ones, others = self.side.acts[number]
        with self._where(self._conditions.at(number)):
            if len(ones) != len(others) or not self._same_branch(number, *self.side.branches[number]):
                return False
            return all(self._same_act(number, one, other) for one, other in zip(ones, others, strict=True))

    def _same_branch(self, number: int, one: Node | None, other: Node | None) -> bool:
        if one is None or other is None:
            return one == other
        truths = self.ranges.truth(one), self.ranges.truth(other)
        if truths[0] == truths[1] != EITHER or self.equal_there(number, one, other):
            return True
        return not self._differs and UnseenRounds(self.side, self._facts, self._lanes, self._solver).unseen(
            number, one, other
        )

    def _same_act(self, number: int, one: Act, other: Act) -> bool:
        if len(one.operands) != len(other.operands):
            return False
        if one.opcode != other.opcode:
            if self._same_in_lanes(number, one, other):
                return True
            if not self._differs and self._unused.same(number, one, other):
                return True
            exchange = not self._differs and self._lanes.same_exchange(one, other, self.equal)
            return exchange or self._same_read(one, other)
        if self.equal_there(number, one.guard, other.guard):
            pairs = list(zip(self._taken(one), self._taken(other), strict=True))
            # A place within an array is soon compared, and a solver is not asked for it.
            if pairs and pairs[0][0] != pairs[0][1] and self._same_place(one, other):
                pairs = pairs[1:]
            if all(self.equal_there(number, *pair, one.guard) for pair in pairs):
                return True
        if one.opcode.startswith("shfl."):
            same = not self._differs and self._lanes.same_exchange(one, other, self.equal)
            return same or self._same_in_lanes(number, one, other) or self._same_within_groups(number, one, other)
        if not self._differs and self._unused.same(number, one, other):
            return True
        return not self._differs and self._lanes.same_stores(number, one, other, self.equal, self._equal_where)

    def _same_place(self, one: Act, other: Act) -> bool:
        """Whether the other entry's act is at the place of the sound one, which lies within its array."""
        return self._both_sure(one.operands[0], other.operands[0]) and ArrayPlaces(self.nodes, self.ranges).same(
            one, other
        )

    def _same_read(self, one: Act, other: Act) -> bool:
        """Whether both load one number, of which the other one reads the lower half: the upper one is 0."""
        if other.opcode != re.sub(r"\.[us]64$", ".u32", one.opcode) or not _NUMBER_LOAD.match(one.opcode):
            return False
        if not self.equal(one.guard, other.guard) or not self.equal(one.operands[0], other.operands[0]):
            return False
        held = self.ranges.loaded(one)
        return held is not None and held.low >= 0 and held.high < 1 << 32

    def _taken(self, act: Act) -> list[Node]:
        """The operands of an act; of a number that is stored, its lowest bits, as many as go to memory."""
        match = _NARROW_STORE.match(act.opcode)
        bits = int(match[1]) if match else 0
        return [self._lowest(each, bits) if bits and place else each for place, each in enumerate(act.operands)]

    def _lowest(self, node: Node, bits: int) -> Node:
        """A node that has the same lowest bits."""
        nodes, shape = self.nodes, self.nodes.shapes[node]
        while shape[0] == "pair" and nodes.widths[shape[2]] >= bits:
            node, shape = shape[2], nodes.shapes[shape[2]]
        return node

    @property
    def _differs(self) -> bool:
        """Whether something is the same in both entries in some lanes alone."""
        return bool(self._partly or self._in_lanes)

    def _same_in_lanes(self, number: int, one: Act, other: Act) -> bool:
        """Whether two exchanges read the same lane in some lanes, and find the same there; then it is kept in which.

        What other lanes get may be used by nobody but in the same way, or where a predicate holds in none of them.
        """
        sources = self._lanes.sources_alike(one, other)
        if not sources or one.operands[0] != other.operands[0]:
            return False
        held = self._sure_lanes(one.operands[0])
        alike = frozenset(lane for lane, source in sources.items() if source in held)
        place = next(at for at, each in enumerate(self.side.acts[number][0]) if each is one)
        # Its predicate says whether the lane is there, which it is in both where the lane is the same one.
        for name, lanes in ((0, alike), (1, frozenset(sources))):
            result = self.nodes.known.get(("atom", "act", number, place, name, 1 if name else 32))
            if result is not None:
                self._in_lanes[result] = lanes & self._in_lanes.get(result, lanes)
        return True

    def _sure_lanes(self, node: Node) -> frozenset[int]:
        """The lanes in which a node has one value in both entries, whatever holds."""
        found, seen, waiting = frozenset(range(WARP)), set[Node](), [node]
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen.add(each)
                found &= frozenset() if each in self._partly else self._in_lanes.get(each, found)
                waiting += [*self.nodes.arguments(each), *self.side.meets.get(each, ())]
        return found

    def _same_within_groups(self, number: int, one: Act, other: Act) -> bool:
        """Whether an exchange gives the same in both entries where some predicate holds; then it is kept that it does.

        The predicate holds in both lanes of each exchange or in neither, and where it holds both offer the same.
        """
        if not self._lanes.gathers(one) or not self._lanes.gathers(other) or one.opcode != "shfl.sync.bfly.b32":
            return False
        if one.opcode != other.opcode or not all(map(self.equal, one.operands[1:], other.operands[1:])):
            return False
        step, clamp = (self.nodes.word(each) for each in one.operands[1:3])
        if step is None or not 0 < step < WARP or clamp != WARP - 1:
            return False
        place = next(at for at, each in enumerate(self.side.acts[number][0]) if each is one)
        result = self.nodes.known.get(("atom", "act", number, place, 0, 32))
        for predicate in sorted(self._chosen_by(one.operands[0]) & self._chosen_by(other.operands[0])):
            for each in (predicate, self.nodes.negated(predicate)):
                if self._lanes.apart(each, 1 << (step.bit_length() - 1)) or step & (step - 1):
                    continue
                if self.equal(each, each) and self.equal_under(each, one.operands[0], other.operands[0]):
                    if result is not None:
                        self._partly[result] = each
                    return True
        return False

    def _chosen_by(self, node: Node) -> set[Node]:
        """The predicates by which an expression, or one that it is made of, is one of two."""
        found, seen, waiting = set[Node](), set[Node](), [node]
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen.add(each)
                waiting += self.nodes.arguments(each)
                if self.nodes.shapes[each][0] == "sel":
                    found.add(self.nodes.shapes[each][1])
        return found | set(self._partly.values())

    def _sure(self, node: Node, holds: frozenset[Node]) -> bool:
        """Whether one node has one value in both entries, where some predicates hold.

        What an exchange gives may be the same under a predicate alone. That was of another time behind a meeting.
        """
        if not self._differs:
            return True
        key = (node, holds)
        if key not in self._sound:
            self._sound[key] = True  # of what comes back to itself
            if not self._sure_below(node, holds):
                # What was found while this was taken for granted is asked again.
                names = list(self._sound)
                for each in names[names.index(key) :]:
                    if self._sound[each]:
                        del self._sound[each]
                self._sound[key] = False
        return self._sound[key]

    def _sure_below(self, node: Node, holds: frozenset[Node]) -> bool:
        nodes, shape = self.nodes, self.nodes.shapes[node]
        if node in self._partly:
            return self._partly[node] in holds
        if node in self._in_lanes:
            return self._lanes.may_hold(holds) <= self._in_lanes[node]
        if node in self.side.meets:
            still = frozenset(each for each in holds if self._facts.still(each, shape[2]))
            return all(self._sure(each, still) for each in self.side.meets[node])
        if shape[0] == "sel":
            ways = ((shape[2], shape[1]), (shape[3], nodes.negated(shape[1])))
            arms = all(self._sure(arm, holds | self._conjuncts(way)) for arm, way in ways)
            return arms and self._sure(shape[1], holds)
        return all(self._sure(each, holds) for each in nodes.arguments(node))

    def _conjuncts(self, predicate: Node | None) -> frozenset[Node]:
        if predicate is None:
            return frozenset()
        shape = self.nodes.shapes[predicate]
        return frozenset(shape[2:] if shape[:2] == ("op", "and.pred") else (predicate,))

    def _both_sure(self, *each: Node) -> bool:
        return all(self._sure(node, self._conjuncts(self._given)) for node in each)

    # --- values -------------------------------------------------------------------------------------------------

    def equal(self, one: Node, other: Node) -> bool:
        """Whether two nodes always have one value."""
        if (one := self._chosen(one)) == (other := self._chosen(other)):
            return self._both_sure(one)
        if self.nodes.widths[one] == self.nodes.widths[other] > 1:
            words = [self.ranges.of(each).constant for each in (one, other)]
            if words[0] == words[1] is not None:
                return True
        elif self.nodes.widths[one] == self.nodes.widths[other]:
            truths = self.ranges.truth(one), self.ranges.truth(other)
            if truths[0] == truths[1] != EITHER:
                return True
        if (less := (self._plainer(one), self._plainer(other))) != (one, other):
            return self.equal(*less)
        if self.nodes.shapes[one][:2] == self.nodes.shapes[other][:2] == ("atom", "unwritten"):
            return self._same_nothing(one, other)
        # Where paths meet, what holds on each way counts.
        key = (one, other, self._given, frozenset() if one in self.side.meets else self._holds)
        if key in self._assumed:
            # Only where paths meet does an expression come back to itself: it is equal if it was a round ago.
            return True
        if key not in self._known:
            self._assumed.add(key)
            mark = len(self._trail)
            found = self._congruent(one, other)
            if not found:
                self._forget(mark)
                found = self._decided(one, other)
            if not found:
                self._forget(mark)
                found = self._tried(one, other)
            self._assumed.discard(key)
            # What is not equal even if more is taken for granted is not equal.
            self._known[key] = found
            if found:
                self._trail.append(key)
        return self._known[key]

    def equal_there(self, number: int, one: Node, other: Node, guard: Node | None = None) -> bool:
        """Whether two nodes have one value on a path, where a guard holds."""
        where = self.nodes.both([*self._facts.of(number), *([] if guard is None else [guard])])
        return self.equal(one, other) or self.equal_under(where, one, other)

    def equal_under(self, predicate: Node, one: Node, other: Node) -> bool:
        """Whether two nodes have one value wherever a predicate holds."""
        if self._given is not None or self.nodes.word(predicate) == 1:
            return False
        if self.nodes.word(predicate) == 0:
            return True  # it never holds
        self._given = predicate
        found = self.equal(self.nodes.given(one, predicate), self.nodes.given(other, predicate))
        self._given = None
        return found

    def _equal_where(self, predicate: Node, one: Node, other: Node) -> bool:
        """Whether two nodes have one value, always or where a predicate holds."""
        return self.equal(one, other) or self.equal_under(predicate, one, other)

    def _equal_also(self, predicate: Node, one: Node, other: Node) -> bool:
        """Whether two nodes have one value where one predicate more holds."""
        before = self._given
        self._given = self.nodes.both([predicate, *([] if before is None else [before])])
        found = self.nodes.word(self._given) == 0 or self.equal(one, other)
        self._given = before
        return found

    def _chosen(self, node: Node) -> Node:
        """The one of two values that a node has where it is known which."""
        held = self._conjuncts(self._given)
        while (shape := self.nodes.shapes[node])[0] == "sel" and held:
            if shape[1] in held:
                node = shape[2]
            elif self.nodes.negated(shape[1]) in held:
                node = shape[3]
            else:
                break
        return node

    def _same_nothing(self, one: Node, other: Node) -> bool:
        """Whether a register of the sound entry that nothing wrote may be taken for another one of the other entry.

        The sound entry depends on no such value, whatever it is: so also if each is that of one register of the other
        entry. One that the other entry has, too, counts as the same already.
        """
        if self.nodes.widths[one] != self.nodes.widths[other]:
            return False
        if one in self._unwritten or other not in self._unwritten:
            return False
        return self._taken_for.setdefault(one, other) == other

    @cached_property
    def _unwritten(self) -> set[Node]:
        """The registers that nothing wrote which the other entry may read."""
        side, nodes = self.side, self.nodes
        seen: set[Node] = set()
        waiting = [each for _, acts in side.acts.values() for act in acts for each in (*act.anywhere, act.guard)]
        waiting += [each for acts in side.acts.values() for act in acts[1] for each in act.operands]
        waiting += [each for _, each in side.branches.values() if each is not None]
        while waiting:
            if (node := waiting.pop()) not in seen:
                seen.add(node)
                waiting += [*nodes.arguments(node), *side.meets.get(node, ())]
        return {each for each in seen if nodes.shapes[each][:2] == ("atom", "unwritten")}

    def _plainer(self, node: Node) -> Node:
        """A sum without the terms that have one value; a wide product as one of words that are as wide."""
        nodes, shape = self.nodes, self.nodes.shapes[node]
        if shape[0] == "sum":
            words = [self.ranges.of(each).constant for each, _ in shape[3:]]
            terms = [(each, factor) for (each, factor), word in zip(shape[3:], words, strict=True) if word is None]
            fixed = [(factor, word) for (_, factor), word in zip(shape[3:], words, strict=True) if word is not None]
            return nodes.total(shape[1], shape[2] + sum(a * b for a, b in fixed), terms) if fixed else node
        match = re.fullmatch(r"mul\.wide\.([su])(16|32)", str(shape[1])) if shape[0] == "op" else None
        if match is None or any(nodes.widths[each] != int(match[2]) for each in shape[2:]):
            return node
        bits = nodes.widths[node]
        wide = [nodes.computed(f"cvt.{match[1]}{bits}.{match[1]}{match[2]}", [each], bits) for each in shape[2:]]
        return nodes.computed(f"mul.lo.{match[1]}{bits}", wide, bits)

    def _forget(self, mark: int) -> None:
        """Take back what was found under an assumption that does not hold."""
        for key in self._trail[mark:]:
            del self._known[key]
        del self._trail[mark:]

    def _decided(self, one: Node, other: Node) -> bool:
        """Whether the solver finds no values for which two nodes differ."""
        if self.nodes.widths[one] != self.nodes.widths[other] or not self._solver.decides(one, other):
            return False
        if self._questions == 0 or not self._both_sure(one, other):
            return False
        mine, its = self._solver.apart(one, other)
        meets = self.side.meets
        pairs = [
            (each, twin)
            for each in sorted(mine & meets.keys())
            for twin in sorted(its & meets.keys())
            if self.nodes.shapes[each][2] == self.nodes.shapes[twin][2]
        ]
        alike = {pair for pair in pairs if self.equal(*pair)}
        # What has been found to be equal, always or here, is one value.
        alike |= {
            (each, twin)
            for (each, twin, given, holds), found in self._known.items()
            if found and each in mine and twin in its and given in (None, self._given) and holds <= self._holds
        }
        given = [] if self._given is None else [self._given]
        found = self._solver.same(one, other, self._given, frozenset(alike))
        if not found and (bounds := self._counters.about(self._solver.words_of(one, other, *given))):
            found = self._solver.same(one, other, self.nodes.both([*given, *bounds]), frozenset(alike))
        self._questions -= not found
        return found

    def _tried(self, one: Node, other: Node) -> bool:
        if self.nodes.widths[one] != self.nodes.widths[other] or self._trials == 0 or not self._both_sure(one, other):
            return False
        self._trials -= 1
        found = tried(self._domains, one, other, self._holds)
        # What is computed of constants alone has one value, which is no run.
        if found is not None and found.domain and found not in self.trials:
            self.trials.append(found)
        return found is not None

    def _congruent(self, one: Node, other: Node) -> bool:
        """Whether two nodes are the same function of nodes that are equal."""
        shapes = self.nodes.shapes[one], self.nodes.shapes[other]
        if shapes[0][0] != shapes[1][0]:
            return False
        kind = shapes[0][0]
        if kind == "atom":
            return self._meets(one, other)
        if kind == "sum":
            return shapes[0][1:3] == shapes[1][1:3] and self._terms(shapes[0][3:], shapes[1][3:])
        if kind not in ("op", "low", "pair", "sel", "not"):
            return False
        mine, its = self.nodes.arguments(one), self.nodes.arguments(other)
        if kind == "op" and shapes[0][1] == shapes[1][1] == "and.pred":
            held = [{each for each in nodes if self.ranges.truth(each) != TRUE} for nodes in (mine, its)]
            alike = self._both_sure(*(held[0] & held[1]))
            return alike and self._matched(held[0] - held[1], held[1] - held[0])
        heads = [shape[: len(shape) - len(mine)] for shape in shapes]
        if len(mine) != len(its):
            return False
        if heads[0] != heads[1] and not (kind == "op" and self._opcode(one) == self._opcode(other)):
            return False
        opcode = str(shapes[0][1])
        in_any_order = opcode.partition(".")[0] in EITHER_WAY and not opcode.endswith(".f64")
        if kind == "op" and (in_any_order or _EITHER_COMPARED.match(opcode)):
            return self._in_any_order(mine, its) or (opcode in _CHAINED and self._same_chain(opcode, one, other))
        if kind == "sel":
            return self._same_choice(mine, its)
        return all(self.equal(*pair) for pair in zip(mine, its, strict=True))

    def _same_choice(self, mine: tuple[Node, ...], its: tuple[Node, ...]) -> bool:
        """Whether two choices have the same predicate, and values that are equal where it holds and where it fails."""
        if not self.equal(mine[0], its[0]):
            return False
        for place, predicate in ((1, mine[0]), (2, self.nodes.negated(mine[0]))):
            with self._where(self._holds | self._conditions.told(predicate)):
                if mine[0] == its[0]:
                    found = self._equal_also(predicate, mine[place], its[place])
                else:
                    found = self.equal(mine[place], its[place])
            if not found:
                return False
        return True

    def _opcode(self, node: Node) -> str:
        return self.ranges.without_sign(node, self._given)

    def _in_any_order(self, mine: tuple[Node, ...], its: tuple[Node, ...]) -> bool:
        opcode_pairs = [(mine[0], mine[1]), (mine[1], mine[0])] if len(mine) > 1 else []
        if len(mine) == 2 or (len(mine) == 3 and self.equal(mine[2], its[2])):
            # What is the same in both is taken out, so that what differs meets what differs.
            for one, two in sorted(opcode_pairs, key=lambda pair: pair[0] != its[0] and pair[1] != its[1]):
                if self.equal(one, its[0]) and self.equal(two, its[1]):
                    return True
        return False

    def _same_chain(self, opcode: str, one: Node, other: Node) -> bool:
        """Whether two nodes are the largest, or the least, of the same numbers, in any order and by any tree."""
        chains = [self._links(opcode, each) for each in (one, other)]
        if len(chains[0]) <= 2 and len(chains[1]) <= 2:
            return False  # they have been compared in both orders
        alike = self._both_sure(*(chains[0] & chains[1]))
        return alike and self._matched(chains[0] - chains[1], chains[1] - chains[0])

    def _links(self, opcode: str, node: Node) -> set[Node]:
        found, waiting = set[Node](), [node]
        while waiting:
            shape = self.nodes.shapes[each := waiting.pop()]
            if shape[:2] == ("op", opcode):
                waiting += shape[2:]
            else:
                found.add(each)
        return found

    def _terms(self, mine: Any, its: Any) -> bool:
        left, right = Counter(mine), Counter(its)
        ones, others = list((left - right).elements()), list((right - left).elements())
        if len(ones) != len(others) or not self._both_sure(*(node for node, _ in left & right)):
            return False
        for node, factor in ones:
            same = next((each for each in others if each[1] == factor and self.equal(node, each[0])), None)
            if same is None:
                return False
            others.remove(same)
        return True

    def _matched(self, mine: set[Node], its: set[Node]) -> bool:
        """Whether each of some nodes is equal to one of others, and none is left."""
        left = set(its)
        for node in sorted(mine):
            same = next((each for each in sorted(left) if self.equal(node, each)), None)
            if same is None:
                return False
            left.discard(same)
        return not left

    def _meets(self, one: Node, other: Node) -> bool:
        """Whether values are equal where paths meet: if they are on every path, taking for granted that they were."""
        mine, its = self.side.meets.get(one), self.side.meets.get(other)
        if mine is None or its is None or self.nodes.shapes[one][2] != self.nodes.shapes[other][2]:
            return False
        # What holds now held on the paths that meet if it is made of what was there before.
        given = self._given
        held = [each for each in self._conjuncts(given) if self._facts.still(each, self.nodes.shapes[one][2])]
        self._given = self.nodes.both(held) if held else None
        # Nobody comes by a branch that is never taken.
        came = [way is None or self.ranges.truth(way) != FALSE for way in self.side.ways[one]]
        ways = self._conditions.on_ways(int(self.nodes.shapes[one][2]))
        # The beginning is one way more, on which nothing is known.
        ways += [frozenset()] * (len(mine) - len(ways))
        found = True
        for way, taken, *pair in zip(ways, came, mine, its, strict=True):
            with self._where(way):
                found = found and (not taken or self.equal(*pair))
        self._given = given
        return found


@dataclass(frozen=True)
class SameKernel:
    """A proof that two texts of an entry are the same kernel.

    Attributes:
        words: why, in a few.
        trials: of values that were tried one by one; without any, the proof has none.
    """

    words: str
    trials: tuple[Trial, ...]


def same_kernel(sound: str, other: str) -> str | None:
    """Why another text of an entry is the same kernel, in a few words; None if that is not proven.

    Args:
        sound: the module of the entry as it is.
        other: that of the mutant.
    """
    found = proof_of_same_kernel(sound, other)
    return None if found is None else found.words


def proof_of_same_kernel(sound: str, other: str) -> SameKernel | None:
    """The proof that another text of an entry is the same kernel; None if there is none.

    Args:
        sound: the module of the entry as it is.
        other: that of the mutant.
    """
    try:
        return _same_kernel(sound, other)
    except NoProof:
        return None


def _same_kernel(sound: str, other: str) -> SameKernel | None:
    modules = CalledModule.of(sound), CalledModule.of(other)
    if modules[0].functions.keys() != modules[1].functions.keys():
        return None
    pairs = [(text, modules[1].functions[name]) for name, text in modules[0].functions.items()]
    words: list[str] = []
    trials: list[Trial] = []
    for one, two in [*((one, two) for one, two in pairs if one != two), (modules[0].entry, modules[1].entry)]:
        found = (_same_text if one is modules[0].entry else _same_function)(one, two)
        if found is None:
            return None
        words += [each for each in found[0] if each not in words]
        trials += [each for each in found[1] if each not in trials]
    return SameKernel("; ".join(words) or "each act has the same operands", tuple(trials))


def _same_text(sound: str, other: str) -> tuple[list[str], list[Trial]] | None:
    if not same_heads(sound, other):
        return None
    words = []
    if _EARLY in sound and _EARLY not in other:
        sound = re.sub(rf"^\s*{re.escape(_EARLY)};\n", "", sound, flags=re.MULTILINE)
        words.append("a launch behind begins later, and waits for the same bytes")
    one, match = EntryCode.of(without_unread(sound)), re.search(r"\.entry\s+(\w+)", sound)
    for text in namings(sound, other):
        (side := SideBySide((Paths.of(one), Paths.of(EntryCode.of(without_unread(text)))), Nodes())).solve()
        if any(len(ones) != len(others) for ones, others in side.acts.values()):
            return None
        proof = EqualEntries(side, Ranges(side, match[1] if match else "", one.threads, one.numbers).solve())
        if proof.holds():
            return [*words, *(["tried on every value of what differs"] if proof.trials else [])], proof.trials
        if not any(shape[:2] == ("atom", "unwritten") for shape in side.nodes.shapes):
            break
    return None


#: Entries have their functions in common.
_same_function = lru_cache(maxsize=64)(_same_text)
