"""The words that a value can have, as a trial counts through them: some bits at 0 or 1, and a few words beside.

A BF16 number that became FP32 has sixteen bits that are not 0. The largest of some such numbers has them, too, whatever
lanes it was exchanged between; and it may be the NaN that a maximum makes of two.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from refmoe.mutation.proofs.flow import Act, SideBySide
from refmoe.mutation.proofs.nodes import Node, Nodes
from refmoe.mutation.proofs.ranges import Ranges

#: Words beside the bits, at most: of more the bits take them in.
_BESIDE = 8
#: Rounds in which the values of loops may grow.
_ROUNDS = 80
#: What a maximum, a minimum or a conversion makes of NaN alone.
_NAN = 0x7FFFFFFF
_PICKED = re.compile(r"(min|max)\.(?:[sub](?:16|32|64)|f32|NaN\.f32)$")
_PICKED_PAIRS = re.compile(r"(min|max)\.(u16x2|s16x2|bf16x2|f16x2)$")
_NARROW = re.compile(r"ld\.(?:global|shared)(?:\.nc)?(?:\.v[24])?\.[bu](8|16)$")


@dataclass(frozen=True)
class PossibleWords:
    """A set of words: those that have no bit outside of `mask`, and those in `beside`."""

    mask: int
    beside: frozenset[int] = frozenset()

    @classmethod
    def of(cls, mask: int, beside: Iterable[int] = ()) -> PossibleWords:
        """A domain whose few words beside are not among those of its bits."""
        more = frozenset(word for word in beside if word & ~mask)
        if len(more) <= _BESIDE:
            return cls(mask, more)
        for word in more:
            mask |= word
        return cls(mask)

    def joined(self, other: PossibleWords) -> PossibleWords:
        """The words of both."""
        return PossibleWords.of(self.mask | other.mask, self.beside | other.beside)

    def changed(self, change: Callable[[int], int]) -> PossibleWords:
        """What a change of single bits makes of each word: of all bits together what it makes of each."""
        return PossibleWords.of(change(self.mask), map(change, self.beside))

    @property
    def flat(self) -> int:
        """The bits that any word has at 1."""
        found = self.mask
        for word in self.beside:
            found |= word
        return found

    @property
    def bits(self) -> int:
        """Of the number that counts through them."""
        held = bin(self.mask).count("1")
        return max(held, (len(self.beside) - 1).bit_length()) + 1 if self.beside else held


@dataclass
class Domains:
    """The domains of nodes.

    Attributes:
        nodes: those of a proof.
        side: both entries; without them nothing is known of what is loaded, exchanged, or where paths meet.
        ranges: what integers may be.
        partly: what exchanges give that is not the same in both entries everywhere. It may be any word.
    """

    nodes: Nodes
    side: SideBySide | None = None
    ranges: Ranges | None = None
    partly: frozenset[Node] = frozenset()
    _known: dict[Node, PossibleWords] = field(default_factory=dict)
    _met: dict[Node, PossibleWords | None] = field(default_factory=dict)
    _now: dict[Node, PossibleWords | None] = field(default_factory=dict)
    _copies: dict[tuple[Node, Node], Node] = field(default_factory=dict)
    _copied: dict[Node, Node] = field(default_factory=dict)

    def of(self, node: Node) -> PossibleWords:
        """The words that a node may have, or more."""
        if node in self._known:
            return self._known[node]
        self._met = {}
        for _ in range(_ROUNDS):
            self._now, before = {}, dict(self._met)
            self._of(node)
            for each in list(self._met):
                self._met[each] = self._meeting(each)
            if self._met == before:
                break
        else:
            # What still grows may be anything.
            self._met = {each: PossibleWords((1 << self.nodes.widths[each]) - 1) for each in self._met}
            self._now = {}
            self._of(node)
        # Nothing grows any more, so that all that was asked for on the way is known, too.
        for each, found in [*self._met.items(), *self._now.items()]:
            self._known[each] = found or PossibleWords((1 << self.nodes.widths[each]) - 1)
        if node not in self._known:
            self._known[node] = self._of(node) or PossibleWords((1 << self.nodes.widths[node]) - 1)
        return self._known[node]

    def exchanged(self, node: Node) -> Node | None:
        """The value that another lane offers, if a node is what an exchange reads: an expression of its own values."""
        act = None if node in self.partly else self._act(node)
        if act is None or not act.opcode.startswith("shfl.sync.") or self.nodes.shapes[node][4] != 0:
            return None
        return self._copy(node, act.anywhere[0])

    def named(self, node: Node) -> str:
        """What makes a node, in a word or two: an opcode."""
        base = self._copied.get(node, node)
        act, shape = self._act(base), self.nodes.shapes[base]
        made = str(shape[1]) if shape[0] in ("op", "atom", "low") else str(shape[0])
        return (made if act is None else act.opcode) + (" of another lane" if base != node else "")

    def _copy(self, atom: Node, node: Node) -> Node:
        """An expression with values that are those of another lane wherever it has its own."""
        if (atom, node) not in self._copies:
            nodes, shape, bits = self.nodes, self.nodes.shapes[node], self.nodes.widths[node]
            if shape[0] == "int":
                made = node
            elif shape[0] == "atom":
                made = nodes.of(("atom", "lane", atom, node), bits)
                self._copied[made] = node
            elif shape[0] == "sum":
                made = nodes.total(shape[1], shape[2], [(self._copy(atom, each), times) for each, times in shape[3:]])
            else:
                parts = nodes.arguments(node)
                head = shape[: len(shape) - len(parts)]
                made = nodes.of((*head, *(self._copy(atom, each) for each in parts)), bits)
            self._copies[atom, node] = made
        return self._copies[atom, node]

    def _act(self, node: Node) -> Act | None:
        shape = self.nodes.shapes[node]
        if self.side is None or shape[:2] != ("atom", "act"):
            return None
        return self.side.acts[int(shape[2])][0][int(shape[3])]

    def _of(self, node: Node) -> PossibleWords | None:
        """The domain as far as it is known in this round; None of what waits for a meeting of which nothing is."""
        if node in self._known:
            return self._known[node]
        if node in self._copied:
            return self._of(self._copied[node])
        if self.side is not None and node in self.side.meets:
            return self._met.setdefault(node, None)
        if node not in self._now:
            self._now[node] = None
            self._now[node] = self._within(node, self._made(node))
        return self._now[node]

    def _meeting(self, node: Node) -> PossibleWords | None:
        found: PossibleWords | None = None
        for each in self.side.meets[node] if self.side is not None else ():
            way = self._of(each)
            if way is not None:
                found = way if found is None else found.joined(way)
        return found

    def _within(self, node: Node, found: PossibleWords | None) -> PossibleWords | None:
        if found is None or self.ranges is None or self.nodes.widths[node] == 1 or node in self.partly:
            return found
        known = self.ranges.of(node)
        if known.constant is not None:
            return PossibleWords.of(0, (known.constant,))
        fits = known.mask & ~known.zeros
        if known.unsigned:
            fits &= (1 << known.high.bit_length()) - 1
        return PossibleWords.of(found.mask & fits, (word for word in found.beside if not word & ~fits))

    def _made(self, node: Node) -> PossibleWords | None:
        nodes = self.nodes
        shape, full = nodes.shapes[node], (1 << nodes.widths[node]) - 1
        if shape[0] == "int":
            return PossibleWords.of(0, (int(shape[1]),))
        if shape[0] == "atom":
            return self._atom(node, full)
        if shape[0] == "sum":
            factor = int(shape[3][1])
            if shape[2] or len(shape) > 4 or factor & (factor - 1):
                return PossibleWords(full)
            inner = self._of(shape[3][0])
            return inner and inner.changed(lambda word: word * factor & full)
        if shape[0] == "sel":
            return self._any((shape[2], shape[3]))
        return self._operation(str(shape[1]), shape[2:], full) if shape[0] == "op" else PossibleWords(full)

    def _atom(self, node: Node, full: int) -> PossibleWords | None:
        act = None if node in self.partly else self._act(node)
        if act is None:
            return PossibleWords(full)
        if act.opcode.startswith("shfl.sync.") and self.nodes.shapes[node][4] == 0:
            return self._of(act.anywhere[0])
        if act.opcode in ("redux.sync.max.u32", "redux.sync.min.u32", "redux.sync.max.s32", "redux.sync.min.s32"):
            return self._of(act.anywhere[0])
        match = _NARROW.match(act.opcode)
        return PossibleWords(full & ((1 << int(match[1])) - 1)) if match else PossibleWords(full)

    def _any(self, parts: Iterable[Node], *words: int) -> PossibleWords | None:
        found = PossibleWords.of(0, words) if words else None
        for each in parts:
            part = self._of(each)
            if part is None:
                # Until more is known of it, it has no word.
                continue
            found = part if found is None else found.joined(part)
        return found

    def _operation(self, opcode: str, sources: tuple[Node, ...], full: int) -> PossibleWords | None:
        parts = opcode.split(".")
        words = [self.nodes.word(each) for each in sources]
        if _PICKED.match(opcode) and len(sources) == 2:
            return self._any(sources, *((_NAN,) if opcode.endswith("f32") else ()))
        if match := _PICKED_PAIRS.match(opcode):
            found = self._any(sources, *(() if match[2][0] in "su" else (0x7FFF7FFF,)))
            # Each half is taken by itself.
            return found and PossibleWords(found.flat)
        if parts[0] == "and" and len(sources) == 2 and opcode != "and.pred":
            for mine, word in ((0, words[1]), (1, words[0])):
                if word is not None:
                    inner = self._of(sources[mine])
                    return inner and inner.changed(functools.partial(operator.and_, word & full))
        inner = self._of(sources[0]) if sources else None
        if parts[0] == "shr" and parts[-1][0] == "u" and words[1] is not None:
            width, places = (1 << int(parts[-1][1:])) - 1, words[1]
            return inner and inner.changed(lambda value: (value & width) >> places)
        if parts[0] == "cvt" and len(parts) == 3 and parts[1][0] == parts[2][0] == "u":
            width = ((1 << int(parts[2][1:])) - 1) & ((1 << int(parts[1][1:])) - 1) & full
            return inner and inner.changed(lambda value: value & width)
        if opcode == "abs.f32":
            positive = inner and inner.changed(lambda value: value & _NAN)
            return positive and PossibleWords.of(positive.mask, (*positive.beside, _NAN))
        if opcode == "cvt.f32.bf16":
            wide = inner and inner.changed(lambda value: (value & 0xFFFF) << 16)
            return wide and PossibleWords.of(wide.mask, (*wide.beside, _NAN))
        if opcode == "cvt.f32.f16":
            # A sign, an exponent, and the ten bits of the mantissa.
            return PossibleWords.of(0xFFFFE000, (_NAN,))
        return PossibleWords(full)
