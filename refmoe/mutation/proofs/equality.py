"""Whether two texts of an entry are the same kernel: each act of one is an act of the other on equal operands."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from refmoe.mutation.proofs.flow import Act, Paths, SideBySide
from refmoe.mutation.proofs.functions import CalledModule
from refmoe.mutation.proofs.lanes import LaneGroups
from refmoe.mutation.proofs.nodes import EITHER_WAY, Node, Nodes
from refmoe.mutation.proofs.program import EntryCode, NoProof
from refmoe.mutation.proofs.ranges import Ranges
from refmoe.mutation.proofs.trials import always_equal
from refmoe.mutation.proofs.values import EITHER, TRUE

#: What tells the assembler how to use registers, and nothing of what is computed.
_HINTS = re.compile(r"^\.(?:minnctapersm|maxnctapersm|pragma)\b[^\n]*\n", re.MULTILINE)
_THREADS = re.compile(r"^\.maxntid\s+(\d+)[^\n]*\n", re.MULTILINE)
_REGISTERS = re.compile(r"^\s*\.reg\b[^\n]*\n", re.MULTILINE)
_SHARED = re.compile(r"^\s*\.(?:shared|const|global)\b[^\n]*\n", re.MULTILINE)
_LOCAL = re.compile(r"^\s*(\.local\b[^\n]*)\[(\d+)\];\n", re.MULTILINE)
_NUMBER_LOAD = re.compile(r"ld\.global(?:\.nc)?\.[us]64$")
#: Pairs of expressions of a proof that are tried on all values: each is compiled.
_TRIALS = 24
_EARLY = "griddepcontrol.launch_dependents"


@dataclass
class EqualEntries:
    """A proof of two entries.

    Attributes:
        side: both.
        ranges: what their values may be.
        tried: pairs of expressions that were tried on all their values.
    """

    side: SideBySide
    ranges: Ranges
    tried: int = 0
    _known: dict[tuple[Node, Node], bool] = field(default_factory=dict)
    _assumed: set[tuple[Node, Node]] = field(default_factory=set)
    _trail: list[tuple[Node, Node]] = field(default_factory=list)
    _trials: int = _TRIALS

    @cached_property
    def _lanes(self) -> LaneGroups:
        return LaneGroups(self.side, self.ranges)

    @property
    def nodes(self) -> Nodes:
        """Of both entries."""
        return self.side.nodes

    def holds(self) -> bool:
        """Whether both entries are the same kernel."""
        return all(self._same_acts(number) for number in sorted(self._reached()))

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
        if len(ones) != len(others) or not self._same_branch(*self.side.branches[number]):
            return False
        return all(self._same_act(number, one, other) for one, other in zip(ones, others, strict=True))

    def _same_branch(self, one: Node | None, other: Node | None) -> bool:
        if one == other or one is None or other is None:
            return one == other
        truths = self.ranges.truth(one), self.ranges.truth(other)
        return truths[0] == truths[1] != EITHER or self.equal(one, other)

    def _same_act(self, number: int, one: Act, other: Act) -> bool:
        if len(one.operands) != len(other.operands):
            return False
        if one.opcode != other.opcode:
            return self._same_read(one, other) or self._lanes.same_exchange(one, other, self.equal)
        pairs = zip(one.operands, other.operands, strict=True)
        if all(self.equal(*pair) for pair in pairs) and self.equal(one.guard, other.guard):
            return True
        if one.opcode.startswith("shfl."):
            return self._lanes.same_exchange(one, other, self.equal)
        return self._lanes.same_stores(number, one, other, self.equal)

    def _same_read(self, one: Act, other: Act) -> bool:
        """Whether both load one number, of which the other one reads the lower half: the upper one is 0."""
        if other.opcode != re.sub(r"\.[us]64$", ".u32", one.opcode) or not _NUMBER_LOAD.match(one.opcode):
            return False
        if not self.equal(one.guard, other.guard) or not self.equal(one.operands[0], other.operands[0]):
            return False
        held = self.ranges.loaded(one)
        return held is not None and held.low >= 0 and held.high < 1 << 32

    # --- values -------------------------------------------------------------------------------------------------

    def equal(self, one: Node, other: Node) -> bool:
        """Whether two nodes always have one value."""
        if one == other:
            return True
        if self.nodes.widths[one] == self.nodes.widths[other] > 1:
            words = [self.ranges.of(each).constant for each in (one, other)]
            if words[0] == words[1] is not None:
                return True
        if (less := (self._plainer(one), self._plainer(other))) != (one, other):
            return self.equal(*less)
        key = (one, other)
        if key in self._assumed:
            # Only where paths meet does an expression come back to itself: it is equal if it was a round ago.
            return True
        if key not in self._known:
            self._assumed.add(key)
            mark = len(self._trail)
            found = self._congruent(one, other)
            if not found:
                self._forget(mark)
                found = self._tried(one, other)
            self._assumed.discard(key)
            # What is not equal even if more is taken for granted is not equal.
            self._known[key] = found
            if found:
                self._trail.append(key)
        return self._known[key]

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

    def _tried(self, one: Node, other: Node) -> bool:
        if self.nodes.widths[one] != self.nodes.widths[other] or self._trials == 0:
            return False
        self._trials -= 1
        found = always_equal(self.nodes, one, other)
        self.tried += found
        return found

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
            return self._matched(held[0] - held[1], held[1] - held[0])
        heads = [shape[: len(shape) - len(mine)] for shape in shapes]
        if len(mine) != len(its):
            return False
        if heads[0] != heads[1] and not (kind == "op" and self._without_sign(one) == self._without_sign(other)):
            return False
        opcode = str(shapes[0][1])
        if kind == "op" and opcode.partition(".")[0] in EITHER_WAY and not opcode.endswith(".f64"):
            return self._in_any_order(mine, its)
        return all(self.equal(*pair) for pair in zip(mine, its, strict=True))

    def _without_sign(self, node: Node) -> str:
        """The opcode of a node, that on unsigned numbers where no operand is negative."""
        opcode = str(self.nodes.shapes[node][1])
        parts, sources = opcode.split("."), self.nodes.arguments(node)
        if not (kind := re.fullmatch(r"s(8|16|32|64)", parts[-1])):
            return opcode
        width = int(kind[1])
        compares = parts[0] == "setp" and all(self.ranges.never_negative(each, width) for each in sources)
        if compares or self._same_without(parts, width, sources):
            parts[-1] = f"u{width}"
        return ".".join(parts)

    def _same_without(self, parts: list[str], width: int, sources: tuple[Node, ...]) -> bool:
        never = [self.ranges.never_negative(each, width) for each in sources]
        if parts[0] in ("min", "max", "div", "rem") and len(parts) == 2:
            return all(never)
        if parts[0] == "shr" or (parts[0] == "cvt" and len(parts) == 3):
            return never[0]
        return parts[0] in ("mul", "mad") and parts[1] == "wide" and never[0] and never[1]

    def _in_any_order(self, mine: tuple[Node, ...], its: tuple[Node, ...]) -> bool:
        opcode_pairs = [(mine[0], mine[1]), (mine[1], mine[0])] if len(mine) > 1 else []
        if len(mine) == 2 or (len(mine) == 3 and self.equal(mine[2], its[2])):
            # What is the same in both is taken out, so that what differs meets what differs.
            for one, two in sorted(opcode_pairs, key=lambda pair: pair[0] != its[0] and pair[1] != its[1]):
                if self.equal(one, its[0]) and self.equal(two, its[1]):
                    return True
        return False

    def _terms(self, mine: Any, its: Any) -> bool:
        left, right = Counter(mine), Counter(its)
        ones, others = list((left - right).elements()), list((right - left).elements())
        if len(ones) != len(others):
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
        return all(self.equal(*pair) for pair in zip(mine, its, strict=True))


def same_kernel(sound: str, other: str) -> str | None:
    """Why another text of an entry is the same kernel, in a few words; None if that is not proven.

    Args:
        sound: the module of the entry as it is.
        other: that of the mutant.
    """
    try:
        return _same_kernel(sound, other)
    except NoProof:
        return None


def _same_kernel(sound: str, other: str) -> str | None:
    modules = CalledModule.of(sound), CalledModule.of(other)
    if modules[0].functions.keys() != modules[1].functions.keys():
        return None
    pairs = [(text, modules[1].functions[name]) for name, text in modules[0].functions.items()]
    words = []
    for one, two in [*((one, two) for one, two in pairs if one != two), (modules[0].entry, modules[1].entry)]:
        found = _same_text(one, two)
        if found is None:
            return None
        words += [each for each in found if each not in words]
    return "; ".join(words) or "each act has the same operands"


def _same_text(sound: str, other: str) -> list[str] | None:
    if not _same_heads(sound, other):
        return None
    words = []
    if _EARLY in sound and _EARLY not in other:
        sound = re.sub(rf"^\s*{re.escape(_EARLY)};\n", "", sound, flags=re.MULTILINE)
        words.append("a launch behind begins later, and waits for the same bytes")
    one, two = EntryCode.of(sound), EntryCode.of(other)
    side = SideBySide((Paths.of(one), Paths.of(two)), Nodes())
    side.solve()
    if any(len(ones) != len(others) for ones, others in side.acts.values()):
        return None
    match = re.search(r"\.entry\s+(\w+)", sound)
    ranges = Ranges(side, match[1] if match else "", one.threads, one.numbers).solve()
    proof = EqualEntries(side, ranges)
    if not proof.holds():
        return None
    return [*words, "tried on every value of what differs"] if proof.tried else words


def _same_heads(sound: str, other: str) -> bool:
    """Whether all but instructions and registers is the same, up to hints; what was allowed to launch still is."""
    threads = [int(match[1]) if (match := _THREADS.search(text)) else 0 for text in (sound, other)]
    heads = [_THREADS.sub("", _HINTS.sub("", text[: text.index("\n{") + 1])) for text in (sound, other)]
    memory = [sorted(_SHARED.findall(text[text.index("\n{") :])) for text in (sound, other)]
    # What a thread has for itself may be more.
    local = [{match[1]: int(match[2]) for match in _LOCAL.finditer(text)} for text in (sound, other)]
    room = local[0].keys() == local[1].keys() and all(local[1][name] >= size for name, size in local[0].items())
    return heads[0] == heads[1] and memory[0] == memory[1] and threads[1] >= threads[0] and room
