"""Whether it is of account which lanes of a warp store, where several hold one value for one place.

Lanes are put into groups of 2 to 32. Two lanes of a group differ in some bits of their number. If the paths that both
take, the address and the value are the same whichever of these bits is turned round, then one lane of each group that
stores is as good as another: memory gets the same bytes.

What is the same in all lanes of a group is found bit by bit. Of a lane's number the lowest bits differ; above them all
are the same, as in the number of its group. A maximum with what an exchange gives of the lane across is the same in
both lanes, since each has both numbers, in whichever order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from refmoe.mutation.proofs.bounds import bounds_of
from refmoe.mutation.proofs.flow import Act, SideBySide
from refmoe.mutation.proofs.nodes import EITHER_WAY, Node
from refmoe.mutation.proofs.program import WARP
from refmoe.mutation.proofs.ranges import Ranges

_LANES = ("%tid.x", "%laneid")
#: What has one value in all threads of a CTA.
_OF_A_CTA = re.compile(r"%(?:ntid|ctaid|nctaid|cluster_ctaid|cluster_nctaid|clusterid|nclusterid)\.[xyz]$")
_STORE = re.compile(r"st\.(global|shared)(?:\.v[24])?\.[usfb](8|16|32|64)$")
#: Exchanges whose second operand is a distance.
_STEPPED = re.compile(r"shfl\.sync\.(?:bfly|down)\.b32$")
#: Reductions that do the same once or several times, and in any order.
_RAISE = re.compile(r"red\.(global)\.(?:min|max|and|or)\.[usb](32|64)$")
#: Exchanges that read a lane which there is, so that their predicate is true.
_EXCHANGE = re.compile(r"shfl\.sync\.(?:bfly|idx)\.b32$")
_LOAD = re.compile(r"ld\.(?:global|shared|const)(?:\.nc)?(?:\.v[24])?\.[usfb](?:8|16|32|64)$")
_MEETING = re.compile(r"(?:bar\.sync|barrier\.sync(?:\.aligned)?)$")
#: The mask of a whole warp.
_EVERYONE = 0xFFFFFFFF
#: Rounds after which what still grows is given up.
_ROUNDS = 40

_Masks = dict[tuple[Node, Node | None], int]
_EqualWhere = Callable[[Node, Node, Node], bool]
Word = tuple[int, int]  # bits that are 1, and the bits that are known


@dataclass
class LaneGroups:
    """What lanes of a warp have in common, of the sound one of two entries whose acts are the same so far.

    Attributes:
        side: both entries.
        ranges: what values may be.
    """

    side: SideBySide
    ranges: Ranges
    _apart: dict[int, dict[Node, int]] = field(default_factory=dict)
    _uneven: dict[int, set[int]] = field(default_factory=dict)
    _words: dict[int, dict[Node, Word]] = field(default_factory=dict)

    def same_stores(
        self, number: int, one: Act, other: Act, equal: Callable[[Node, Node], bool], equal_where: _EqualWhere
    ) -> bool:
        """Whether an act of each entry is a store, and both store the same, by whichever lanes.

        A reduction to the largest or the least counts as a store: done several times it gives what it gives once.

        Args:
            number: the pair of paths that it is an act of.
            one: the act of the sound entry.
            other: that of the other one, of the same opcode.
            equal: tells whether two nodes always have one value.
            equal_where: tells whether they do where a predicate holds, which comes first.
        """
        if not (_STORE.match(one.opcode) or _RAISE.match(one.opcode)) or not self._alone(number, one):
            return False
        mine, its = self._conjuncts(one.guard), self._conjuncts(other.guard)
        for each in sorted(its - mine):
            # What is equal in both counts as one predicate, that of the sound entry.
            if (twin := next((held for held in sorted(mine - its) if equal(held, each)), None)) is not None:
                its = its - {each} | {twin}
        common = mine & its
        sizes = [size for size in (2, 4, 8, 16, WARP) if self._spread(mine - common, its - common, size)]
        if not sizes:
            return False
        nodes, given = self.side.nodes, self.side.nodes.both(sorted(common))
        # What both guards have in common holds in all lanes of a group or in none.
        held = (*common, *self._branches(number, one))
        turns = [1 << place for place in range(sizes[0].bit_length() - 1)]
        if any(self.apart(node, turn) for node in held for turn in turns):
            return False

        def same(node: Node) -> bool:
            return not any(self.apart(node, turn, given) for turn in turns)

        def alike(a: Node, b: Node, c: Node, d: Node) -> bool:
            # An operand as it is where the guard holds, or as it is anywhere, which both are where both guards' part
            # holds. Or it is, where either guard holds, what is the same in all lanes.
            if (same(a) and equal(a, b)) or (same(c) and equal(nodes.given(c, given), nodes.given(d, given))):
                return True
            return any(same(x) and equal_where(one.guard, a, x) and equal_where(other.guard, b, x) for x in (d, c))

        return all(map(alike, one.operands, other.operands, one.anywhere, other.anywhere))

    def same_exchange(self, one: Act, other: Act, equal: Callable[[Node, Node], bool]) -> bool:
        """Whether an act of each entry is an exchange of a whole warp, and both give every lane the same.

        Either all lanes offer one value, whichever is read. Or both read a lane by its number, which no clamp cuts.

        Args:
            one: the act of the sound entry.
            other: that of the other one.
            equal: tells whether two nodes always have one value.
        """
        modes = [_EXCHANGE.match(each.opcode) for each in (one, other)]
        if None in modes or not (self.gathers(one) and self.gathers(other)):
            return False
        if not equal(one.operands[0], other.operands[0]):
            return False
        clamps = [self._word(each, -2) for each in (one, other)]
        if clamps == [WARP - 1, WARP - 1]:
            return not any(self.apart(one.operands[0], 1 << place) for place in range(5))
        if one.opcode != other.opcode or ".idx." not in one.opcode or not equal(one.operands[1], other.operands[1]):
            return False
        step = self.ranges.of(one.operands[1])
        return step.low >= 0 and all(clamp is not None and step.high <= clamp < WARP for clamp in clamps)

    def sources_alike(self, one: Act, other: Act) -> dict[int, int]:
        """By lane, the lane whose number an exchange gives in either entry, where that is the same one.

        Both are exchanges of a whole warp by a constant distance. Of others nothing is said.
        """
        if not all(_STEPPED.match(each.opcode) and self.gathers(each) for each in (one, other)):
            return {}
        steps = [self._word(each, 1) for each in (one, other)]
        if any(step is None or not 0 < step < WARP for step in steps):
            return {}
        if [self._word(each, -2) for each in (one, other)] != [WARP - 1, WARP - 1]:
            return {}
        found = {}
        for lane in range(WARP):
            mine, its = (
                lane ^ int(step or 0) if ".bfly." in each.opcode else lane + int(step or 0)
                for each, step in zip((one, other), steps, strict=True)
            )
            if mine == its < WARP:
                found[lane] = mine
        return found

    def may_hold(self, predicates: Iterable[Node]) -> set[int]:
        """The lanes in which all of some predicates may hold."""
        held = list(predicates)
        return {lane for lane in range(WARP) if not any(self.word(each, lane) == (0, 1) for each in held)}

    def _spread(self, mine: set[Node], its: set[Node], size: int) -> bool:
        """Whether some lane of each group stores, in either entry."""
        return all(self._some_lane(group, predicates) for predicates in (mine, its) for group in _groups(size))

    def _conjuncts(self, guard: Node) -> set[Node]:
        nodes = self.side.nodes
        shape = nodes.shapes[guard]
        found = set(shape[2:]) if shape[:2] == ("op", "and.pred") else {guard}
        return {each for each in found if nodes.word(each) != 1}

    def _branches(self, number: int, act: Act) -> list[Node]:
        """The predicates of branches that may lead to an act from where all lanes of the warp met last."""
        held = self.side.acts[number][0]
        if any(self.gathers(each) for each in held[: next(at for at, each in enumerate(held) if each is act)]):
            return []
        predicates: list[Node | None] = []
        seen, waiting = set[int](), [number]
        while waiting:
            for before in self.side.before[waiting.pop()]:
                if before not in seen:
                    seen.add(before)
                    predicates.append(self.side.branches[before][0])
                    if not any(self.gathers(each) for each in self.side.acts[before][0]):
                        waiting.append(before)
        return [each for each in predicates if each is not None]

    def _word(self, act: Act, place: int) -> int | None:
        return self.side.nodes.word(act.operands[place])

    def gathers(self, act: Act) -> bool:
        """Whether an act waits for all lanes of a warp, so that each has done it as often as the others."""
        if self.side.nodes.word(act.guard) != 1:
            return False
        exchange = re.match(r"(?:shfl|redux|vote)\.sync\.", act.opcode) is not None and self._word(act, -1) == _EVERYONE
        return exchange or (_MEETING.match(act.opcode) is not None and act.spelled == ("0",))

    def _some_lane(self, group: Sequence[int], predicates: set[Node]) -> bool:
        """Whether for some lane of a group all of some predicates hold, whatever else is the case."""
        return any(all(self.word(each, lane) == (1, 1) for each in predicates) for lane in group)

    # --- what two lanes have in common -----------------------------------------------------------------------------

    def apart(self, node: Node, turn: int, given: Node | None = None) -> int:
        """The bits in which a node's values may differ between two lanes whose numbers differ in the bit `turn`.

        Both lanes have taken the same paths, and are at the same place. `given` is a predicate that holds in both.
        """
        if turn not in self._apart:
            self._apart[turn], self._uneven[turn] = {}, set()
            self._meet(turn)
        return self._found(node, turn, {}, given)

    def _meet(self, turn: int) -> None:
        """What differs where paths meet: on any of them, if both lanes take the same one. Else anything does.

        Nothing differs before anything is found. What is behind a branch that the lanes may take differently is uneven.
        """
        held, uneven = self._apart[turn], self._uneven[turn]
        for _ in range(_ROUNDS):
            before, known = (dict(held), set(uneven)), _Masks()
            for node, ways in self.side.meets.items():
                found = -1 if self.side.nodes.shapes[node][2] in uneven else held.get(node, 0)
                for each in ways:
                    found |= self._found(each, turn, known)
                held[node] = found
            for number, (predicate, _) in self.side.branches.items():
                if predicate is not None and number not in uneven and self._found(predicate, turn, {}):
                    uneven |= self._behind(number)
            if before == (held, uneven):
                return
        held.update(dict.fromkeys(self.side.meets, -1))
        uneven |= set(range(len(self.side.pairs)))

    def _found(self, node: Node, turn: int, known: _Masks, given: Node | None = None) -> int:
        held = self._apart[turn]
        if node in self.side.meets:
            return held.get(node, 0)
        key = (node, given)
        if key not in known:
            full = (1 << self.side.nodes.widths[node]) - 1
            known[key] = full  # of an expression that comes back to itself
            known[key] = self._made(node, turn, known, given) & full
        return known[key]

    def _made(self, node: Node, turn: int, known: _Masks, given: Node | None) -> int:
        nodes = self.side.nodes
        shape, bits = nodes.shapes[node], nodes.widths[node]
        if bits > 1 and self.ranges.of(node).constant is not None:
            return 0
        if shape[0] == "int":
            return 0
        if shape[0] == "atom":
            # What an act gave is of another time, and of other lanes: there the predicate may not hold.
            return self._atom(shape, turn, known)
        sources = nodes.arguments(node)
        masks = [self._found(each, turn, known, given) for each in sources]
        if not any(masks):
            return 0
        if shape[0] == "sel":
            return -1 if masks[0] else masks[1] | masks[2]
        if shape[0] == "sum":
            return self._sum(shape, bits, masks)
        if shape[0] != "op":
            return -1
        opcode = str(shape[1])
        if self._crossed(opcode, sources, turn, masks, given):
            return 0
        return self._operation(opcode, sources, masks)

    def _atom(self, shape: Sequence[object], turn: int, known: _Masks) -> int:
        kind = shape[1]
        if kind in ("parameter", "name", "unwritten"):
            # Nothing that the sound entry gives depends on what nobody wrote: so it may be what the lane across has.
            return 0
        if kind == "steady":
            return turn if shape[2] in _LANES else 0 if _OF_A_CTA.match(str(shape[2])) else -1
        if kind != "act":
            return -1
        act = self.side.acts[int(str(shape[2]))][0][int(str(shape[3]))]
        masks = [self._found(each, turn, known) for each in act.operands]
        if _LOAD.match(act.opcode):
            # No other thread writes there meanwhile: the sound entry has no races.
            apart = any(masks) or self._found(act.guard, turn, known) or shape[2] in self._uneven[turn]
            return -1 if apart else 0
        if not self.gathers(act) or int(str(shape[4])) != 0:
            return -1
        if act.opcode.startswith("redux.sync."):
            return 0
        if act.opcode == "vote.sync.ballot.b32":
            return 0
        if act.opcode in ("shfl.sync.bfly.b32", "shfl.sync.idx.b32") and self._word(act, -2) == WARP - 1:
            if any(masks[1:]):
                return -1
            return 0 if ".idx." in act.opcode else masks[0]
        return -1

    def _crossed(
        self, opcode: str, sources: Sequence[Node], turn: int, masks: Sequence[int], given: Node | None
    ) -> bool:
        """Whether an operation takes a lane's number and that of the lane across, whichever first."""
        if opcode.partition(".")[0] not in EITHER_WAY or opcode.endswith(".f64") or any(masks[2:]):
            return False
        return any(self._across(mine, its, given) == turn for mine, its in (sources[:2], sources[1::-1]))

    def _across(self, mine: Node, its: Node, given: Node | None) -> int:
        """The bits by which the lanes' numbers differ if one node is the other, of another lane; 0 if it is not."""
        shape = self.side.nodes.shapes[its]
        if shape[:2] != ("atom", "act") or shape[4] != 0:
            return 0
        act = self.side.acts[shape[2]][0][shape[3]]
        if act.opcode != "shfl.sync.bfly.b32" or not self.gathers(act) or self._word(act, -2) != WARP - 1:
            return 0
        offered = act.operands[0]
        if mine != offered and (given is None or mine != self.side.nodes.given(offered, given)):
            return 0
        step = self._word(act, 1)
        return step if step is not None and 0 < step < WARP else 0

    def _sum(self, shape: Sequence[object], bits: int, masks: Sequence[int]) -> int:
        """One term that differs, in bits below those of all others: nothing is carried out of them."""
        nodes, terms = self.side.nodes, self._terms(shape)
        differ = [place for place, mask in enumerate(masks) if mask]
        (node, factor), mask = terms[differ[0]], masks[differ[0]]
        width = nodes.widths[node]
        if len(differ) > 1 or factor & (factor - 1) or (width < bits and mask >> (width - 1)):
            return -1
        mask = (mask * factor) & ((1 << bits) - 1)
        below = (1 << mask.bit_length()) - 1
        rest = [(int(str(shape[2])), 1)]
        if any(constant & below for constant, _ in rest):
            return -1
        for place, (each, times) in enumerate(terms):
            if place != differ[0] and not self._multiple(each, times, bits, below):
                return -1
        return mask

    @staticmethod
    def _terms(shape: Sequence[object]) -> list[tuple[Node, int]]:
        return [(int(each[0]), int(each[1])) for each in shape[3:]]  # type: ignore[index]

    def _multiple(self, node: Node, factor: int, bits: int, below: int) -> bool:
        """Whether the lowest bits of a product, those of a mask, are 0."""
        word = self.ranges.of(node)
        known = word.zeros | ~word.mask
        zeros = (~known & (known + 1)).bit_length() - 1 if ~known else bits  # how many of the lowest are 0
        twos = (factor & -factor).bit_length() - 1
        return zeros + twos >= below.bit_length()

    def _operation(self, opcode: str, sources: Sequence[Node], masks: Sequence[int]) -> int:
        nodes, parts = self.side.nodes, opcode.split(".")
        words = [nodes.word(each) for each in sources]
        if len(parts) == 2 and parts[0] == "and" and len(sources) == 2 and parts[1] != "pred":
            for mine, word in ((0, words[1]), (1, words[0])):
                if word is not None:
                    return masks[mine] & word
        if parts[0] == "shr" and len(parts) == 2 and words[1] is not None and not masks[1]:
            width = int(parts[1][1:])
            sign = masks[0] >> (width - 1) & 1
            return -1 if sign or masks[0] < 0 or nodes.widths[sources[0]] != width else masks[0] >> min(words[1], width)
        if match := re.match(r"cvt\.[us](8|16|32|64)\.([us])(8|16|32|64)$", opcode):
            target, source = int(match[1]), int(match[3])
            mask = masks[0] & ((1 << source) - 1)
            grows = mask >> (source - 1) & 1 or (target <= source and mask >> (target - 1) & 1)
            return -1 if grows else mask & ((1 << target) - 1)
        if (match := re.match(r"setp\.lt\.[us](\d+)$", opcode)) and not masks[1] and masks[0] > 0:
            # Below a multiple of their number either all lanes of a group are, or none is.
            width, below = int(match[1]), (1 << masks[0].bit_length()) - 1
            if nodes.widths[sources[0]] == nodes.widths[sources[1]] == width and not below >> (width - 1):
                return 0 if self._multiple(sources[1], 1, width, below) else -1
        return -1

    # --- what a lane has for sure ----------------------------------------------------------------------------------

    def word(self, node: Node, lane: int) -> Word:
        """The bits of a node that are known of all threads of a lane: those that are 1, and those that are known."""
        if lane not in self._words:
            self._words[lane] = {}
            self._settle(lane)
        return self._known(node, lane, {}) or (0, 0)

    def _settle(self, lane: int) -> None:
        """What is known where paths meet: what is alike on all of them. Everything is, before anything is found."""
        held = self._words[lane]
        for _ in range(_ROUNDS):
            changed, known = False, dict[Node, Word | None]()
            for node, ways in self.side.meets.items():
                before = after = held.get(node)
                for each in ways:
                    if (one := self._known(each, lane, known)) is not None:
                        after = one if after is None else _alike(after, one)
                if after is not None and after != before:
                    held[node], changed = after, True
            if not changed:
                return
        held.update(dict.fromkeys(self.side.meets, (0, 0)))

    def _known(self, node: Node, lane: int, known: dict[Node, Word | None]) -> Word | None:
        """What is known of a node; None of one that depends on a meeting that nothing has been found of yet."""
        if node in self.side.meets:
            return self._words[lane].get(node)
        if node not in known:
            full = (1 << self.side.nodes.widths[node]) - 1
            known[node] = (0, 0)  # of an expression that comes back to itself
            found = self._of_lane(node, lane, known)
            if found is not None:
                ones, mask = found[0] & found[1] & full, found[1] & full
                word = self.ranges.of(node) if full > 1 else None
                found = (ones | word.ones, mask | word.ones | word.zeros) if word else (ones, mask)
            known[node] = found
        return known[node]

    def _of_lane(self, node: Node, lane: int, known: dict[Node, Word | None]) -> Word | None:
        nodes = self.side.nodes
        shape, bits = nodes.shapes[node], nodes.widths[node]
        if shape[0] == "int":
            return shape[1], -1
        if shape[0] == "atom":
            if shape[1] == "steady" and shape[2] in _LANES:
                return lane, WARP - 1 if shape[2] == "%tid.x" else -1
            return 0, 0
        found = [self._known(each, lane, known) for each in nodes.arguments(node)]
        given = [each for each in found if each is not None]
        if len(given) < len(found):
            return None
        if shape[0] == "not":
            return ~given[0][0], given[0][1]
        if shape[0] == "sum":
            total, least = shape[2], -1
            for (ones, mask), (each, factor) in zip(given, self._terms(shape), strict=True):
                if nodes.widths[each] < bits:
                    mask |= -1 << nodes.widths[each]
                least &= (~mask & (mask + 1)) * (factor & -factor) - 1
                total += ones * factor
            return total, least
        if shape[0] != "op":
            return 0, 0
        return self._computed(str(shape[1]), given, [nodes.widths[each] for each in nodes.arguments(node)])

    def _computed(self, opcode: str, given: Sequence[Word], widths: Sequence[int]) -> Word:
        parts = opcode.split(".")
        if opcode == "and.pred":
            if any(each == (0, 1) for each in given):
                return 0, 1
            return 1, int(all(each == (1, 1) for each in given))
        if parts[0] == "and" and len(parts) == 2 and len(given) == 2:
            (one, its), (two, others) = given
            return one & two, its & others | its & ~one | others & ~two
        if match := re.match(r"setp\.eq\.u(\d+)$", opcode):
            if any(width != int(match[1]) for width in widths):
                return 0, 0
            full, both = (1 << int(match[1])) - 1, given[0][1] & given[1][1]
            if (given[0][0] ^ given[1][0]) & both:
                return 0, 1
            return 1, int(both == full)
        if match := re.match(r"setp\.lt\.u(\d+)$", opcode):
            if any(width != int(match[1]) for width in widths):
                return 0, 0
            full = (1 << int(match[1])) - 1
            (low, high), (least, most) = ((ones, ones | full & ~mask) for ones, mask in given)
            return (1, 1) if high < least else (0, 1) if low >= most else (0, 0)
        return 0, 0

    # --- that nobody else is there -----------------------------------------------------------------------------------

    @cached_property
    def _ahead(self) -> list[set[int]]:
        """By pair of paths, those that lead on from it."""
        ahead: list[set[int]] = [set() for _ in self.side.pairs]
        for number, befores in self.side.before.items():
            for each in befores:
                ahead[each].add(number)
        return ahead

    def _alone(self, number: int, act: Act) -> bool:
        """Whether no order is lost between a store and other acts of its lane, if another lane stores instead.

        In shared memory a barrier of the CTA has to be between the store and any other act that may touch its bytes. In
        global memory nothing may read the array that it is in. It is taken for granted of the sound entry that nothing
        is stored over, but where the expressions tell that it is: at a place that is the same in each round of a loop,
        or that overlaps with that of another store.
        """
        match = _STORE.match(act.opcode) or _RAISE.match(act.opcode)
        if match is None:
            return False
        if match[1] == "shared":
            return all(self._meets_barrier(number, act, forward) for forward in (True, False))
        root = self._array(act.operands[0])
        if root is None:
            return False
        loops = number in self._behind(number) and not _RAISE.match(act.opcode)
        if loops and not self._changes(act.operands[0]):
            return False
        others = [other for acts, _ in self.side.acts.values() for other in acts if other is not act]
        return not any(self._touches(other, act, root) for other in others)

    def _behind(self, number: int) -> set[int]:
        found: set[int] = set()
        waiting = [number]
        while waiting:
            for each in self._ahead[waiting.pop()] - found:
                found.add(each)
                waiting.append(each)
        return found

    def _changes(self, node: Node) -> bool:
        """Whether an expression has a value of its own in each round, where paths meet."""
        seen, waiting = set[Node](), [node]
        while waiting:
            each = waiting.pop()
            if each in self.side.meets:
                return True
            if each not in seen:
                seen.add(each)
                waiting += self.side.nodes.arguments(each)
        return False

    def _array(self, address: Node) -> Node | None:
        """The parameter that an address is an offset from; None if there is no such, or more than one."""
        nodes = self.side.nodes
        shape = nodes.shapes[address]
        terms = self._terms(shape) if shape[0] == "sum" else [(address, 1)]
        found = [self._pointer(each) for each, factor in terms if factor == 1]
        roots = [each for each in found if each is not None]
        return roots[0] if len(roots) == 1 else None

    def _pointer(self, node: Node) -> Node | None:
        nodes = self.side.nodes
        shape = nodes.shapes[node]
        if shape[0] == "op" and str(shape[1]) in ("cvta.to.global.u64", "mov.u64", "mov.b64"):
            return self._pointer(shape[2])
        return node if shape[:2] == ("atom", "parameter") and nodes.widths[node] == 64 else None

    def _touches(self, other: Act, act: Act, root: Node) -> bool:
        """Whether an act may read or write what a store of a global array may."""
        name = other.opcode.partition(".")[0]
        if name in ("bar", "barrier", "shfl", "redux", "vote", "match", "activemask", "griddepcontrol", "prefetch"):
            return False
        parts = other.opcode.split(".")
        if name in ("ld", "st") and ("shared" in parts or "local" in parts or "nc" in parts):
            return False
        if not (_LOAD.match(other.opcode) or _STORE.match(other.opcode)) or "global" not in parts:
            return True
        array = self._array(other.operands[0])
        if array is None or (_LOAD.match(other.opcode) and (array == root or not bounds_of(self.ranges.entry).apart)):
            return True
        return array == root and self._distance(other, act) is not None and not self._disjoint(other, act)

    def _distance(self, other: Act, act: Act) -> int | None:
        """How far behind a store's place that of another act is, modulo its width; None if it is no constant."""
        bits = self.side.nodes.widths[act.operands[0]]
        return self.side.nodes.word(self.side.nodes.total(bits, 0, [(other.operands[0], 1), (act.operands[0], -1)]))

    def _disjoint(self, other: Act, act: Act) -> bool:
        """Whether two acts are at different places: a constant distance apart, or each in its own shared array."""
        mine, its = self._room(act), self._room(other)
        if mine is not None and its is not None and mine != its:
            return True
        distance, bits = self._distance(other, act), self.side.nodes.widths[act.operands[0]]
        return distance is not None and _bytes(act.opcode) <= distance <= (1 << bits) - _bytes(other.opcode)

    def _room(self, act: Act) -> str | None:
        """The shared array that an act is within for sure; None if that is not known."""
        nodes, address = self.side.nodes, act.operands[0]
        shape = nodes.shapes[address]
        for each, factor in self._terms(shape) if shape[0] == "sum" else []:
            inner = nodes.shapes[each]
            name = nodes.shapes[inner[2]] if inner[:2] == ("op", "mov.u32") else inner
            if factor != 1 or name[:2] != ("atom", "name"):
                continue
            declared = rf"\.shared\b[^;]*\s{re.escape(name[2])}\[(\d+)\];"
            sizes = re.findall(declared, self.side.sides[0].program.text)
            offset = self.ranges.of(nodes.total(shape[1], 0, [(address, 1), (each, -1)]))
            if len(sizes) == 1 and offset.low >= 0 and offset.high + _bytes(act.opcode) <= int(sizes[0]):
                return str(name[2])
        return None

    def _meets_barrier(self, number: int, act: Act, forward: bool) -> bool:
        """Whether there is a barrier between a store and any other act that may touch shared memory, on each path."""
        acts = self.side.acts[number][0]
        at = next(place for place, each in enumerate(acts) if each is act)
        rest = acts[at + 1 :] if forward else acts[:at][::-1]
        if (found := self._until_barrier(rest, act)) is not None:
            return found
        seen = set[int]()
        waiting = list(self._ahead[number] if forward else set(self.side.before[number]))
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            acts = self.side.acts[each][0]
            found = self._until_barrier(acts if forward else acts[::-1], act)
            if found is False:
                return False
            if found is None:
                waiting += self._ahead[each] if forward else self.side.before[each]
        return True

    def _until_barrier(self, acts: Sequence[Act], act: Act) -> bool | None:
        """Whether a barrier comes before any act that touches what a store does; None if neither comes."""
        for each in acts:
            parts = each.opcode.split(".")
            if _MEETING.match(each.opcode) and each.spelled == ("0",) and self.side.nodes.word(each.guard) == 1:
                return True
            if parts[0] in ("shfl", "redux", "vote", "match", "activemask", "griddepcontrol", "prefetch", "bar"):
                continue
            if parts[0] in ("ld", "st") and ("global" in parts or "local" in parts or "const" in parts):
                continue
            if each is not act and _STORE.match(each.opcode) and self._disjoint(each, act):
                continue
            return False
        return None


def _groups(size: int) -> Iterator[list[int]]:
    return (list(range(first, first + size)) for first in range(0, WARP, size))


def _alike(one: Word, other: Word) -> Word:
    mask = one[1] & other[1] & ~(one[0] ^ other[0])
    return one[0] & mask, mask


def _bytes(opcode: str) -> int:
    match = re.search(r"(?:\.v([24]))?\.[usfb](8|16|32|64)$", opcode)
    return int(match[1] or 1) * int(match[2]) // 8 if match else 1 << 62
