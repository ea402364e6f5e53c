"""What the values of two entries side by side may be: an interval and single bits of each node.

Where paths meet, a value may be what it is on any of them. On a path that a comparison leads to, it is within what the
comparison says: so a counter that goes on while it is below a bound stays below it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from refmoe.cuda.arguments import INT32_MAX
from refmoe.mutation.proofs import values
from refmoe.mutation.proofs.bounds import MOST_TILES, bounds_of
from refmoe.mutation.proofs.flow import Act, SideBySide
from refmoe.mutation.proofs.nodes import Node
from refmoe.mutation.proofs.program import WARP, computed
from refmoe.mutation.proofs.values import KnownWord

#: Rounds in which intervals may grow by themselves, and rounds in all.
_PATIENCE, _ROUNDS = 3, 60
_TYPE = re.compile(r"[subf](8|16|32|64)$")
#: Exchanges whose result is a number that some lane offers, or the sum of what lanes offer.
_GATHERED = re.compile(r"(?:shfl\.sync\.(?:bfly|idx|down|up)\.b32|redux\.sync\.(min|max|add)\.([su])32)$")
#: Of these bit by bit.
_JOINED = re.compile(r"redux\.sync\.(?:and|or)\.b32$")


@dataclass
class Ranges:
    """What nodes may be.

    Attributes:
        side: both entries.
        entry: the name of the entry.
        threads: the most of a block.
        numbers: parameters that are one integer of 32 bits.
    """

    side: SideBySide
    entry: str
    threads: int
    numbers: frozenset[str]
    _held: dict[Node, KnownWord | None] = field(default_factory=dict)
    _now: dict[Node, KnownWord] = field(default_factory=dict)
    _places: dict[Node, int] = field(default_factory=dict)
    _tiles: dict[Node, bool] = field(default_factory=dict)

    def solve(self) -> Ranges:
        """Go over all meetings of paths until nothing grows; gives itself."""
        limits = self._limits()
        for turn in range(_ROUNDS):
            self._now = {}
            grown = False
            for node in self.side.meets:
                before, found = self._held.get(node), self._met(node)
                if found is None or found == before:
                    continue
                after = found if before is None else values.joined(before, found)
                if before is not None and after != before and turn >= _PATIENCE:
                    after = _widened(before, after, limits)
                if after != before:
                    self._held[node], grown = after, True
            if not grown:
                self._now = {}
                return self
        self._held = {node: values.anything(self.side.nodes.widths[node]) for node in self.side.meets}
        self._now = {}
        return self

    def of(self, node: Node) -> KnownWord:
        """What a node may be; of one that nothing is known of yet, anything."""
        return self._of(node) or values.anything(self.side.nodes.widths[node])

    def never_negative(self, node: Node, bits: int, given: Node | None = None) -> bool:
        """Whether the lowest bits of a node, read as a signed number, are at least 0 where a predicate holds."""
        found = self._under(node, given) or values.anything(self.side.nodes.widths[node])
        return (found if found.bits == bits else values.resized(found, bits, signed=False)).unsigned

    def without_sign(self, node: Node, given: Node | None = None) -> str:
        """The opcode of a node, that on unsigned numbers where a predicate holds and no operand is negative."""
        opcode = str(self.side.nodes.shapes[node][1])
        parts, sources = opcode.split("."), self.side.nodes.arguments(node)
        if not (kind := re.fullmatch(r"s(8|16|32|64)", parts[-1])):
            return opcode
        width = int(kind[1])
        compares = parts[0] == "setp" and all(self.never_negative(each, width, given) for each in sources)
        if compares or self._same_without(parts, width, sources, given):
            parts[-1] = f"u{width}"
        return ".".join(parts)

    def _same_without(self, parts: list[str], width: int, sources: tuple[Node, ...], given: Node | None) -> bool:
        never = [self.never_negative(each, width, given) for each in sources]
        if parts[0] in ("min", "max", "div", "rem") and len(parts) == 2:
            return all(never)
        if parts[0] == "shr" or (parts[0] == "cvt" and len(parts) == 3):
            return never[0]
        return parts[0] in ("mul", "mad") and parts[1] == "wide" and never[0] and never[1]

    def loaded(self, act: Act) -> KnownWord | None:
        """What a load of one number of an array gives, as far as host code says what the array holds."""
        match = re.match(r"ld\.global(?:\.nc)?\.[us](32|64)$", act.opcode)
        known = bounds_of(self.entry).holds if bounds_of(self.entry).apart else {}
        if match is None or not known:
            return None
        if act.operands[0] not in self._places:
            arrays = self._arrays(act.operands[0], set())
            numbers = [int(each.rstrip("]").rpartition("_")[2]) for each in arrays if each]
            self._places[act.operands[0]] = numbers[0] if len(arrays) == len(numbers) == 1 else -1
        place = self._places[act.operands[0]]
        bits, low, high = known.get(place, (0, 0, 0))
        return values.between(bits, low, high) if bits == int(match[1]) else None

    def _arrays(self, node: Node, seen: set[Node]) -> set[str]:
        """The parameters that are pointers, or may be, of which an address is computed; "" for what may be another."""
        nodes = self.side.nodes
        shape = nodes.shapes[node]
        if node in seen or nodes.widths[node] < 64:
            return set()
        seen.add(node)
        if shape[:2] == ("atom", "parameter"):
            return {str(shape[3])}
        parts = self.side.meets.get(node, nodes.arguments(node))
        if shape[0] == "atom" and not parts:
            return {""}
        return {each for part in parts for each in self._arrays(part, seen)}

    def _met(self, node: Node) -> KnownWord | None:
        found: KnownWord | None = None
        for each, facts in zip(self.side.meets[node], self.side.ways[node], strict=True):
            word = self._under(each, facts)
            if word is None:
                continue
            found = word if found is None else values.joined(found, word)
        return found

    def _under(self, node: Node, fact: Node | None) -> KnownWord | None:
        """What a node may be where a predicate holds, which may tell of what it is the sum of."""
        word, shape = self._of(node), self.side.nodes.shapes[node]
        if word is None or fact is None:
            return word
        if shape[0] == "sum":
            again = self._sum(shape, [self._within(each, self.of(each), fact) for each, _ in shape[3:]])
            word = again if again.high - again.low < word.high - word.low else word
        return self._within(node, word, fact)

    def truth(self, predicate: Node) -> int:
        """The truths that a predicate may have, as a set of bits, see `refmoe.mutation.proofs.values`."""
        nodes = self.side.nodes
        shape = nodes.shapes[predicate]
        if (word := nodes.word(predicate)) is not None:
            return values.TRUE if word else values.FALSE
        if shape[0] == "not":
            return {values.TRUE: values.FALSE, values.FALSE: values.TRUE}.get(self.truth(shape[1]), values.EITHER)
        if shape[0] != "op":
            return values.EITHER
        if shape[1] == "and.pred":
            truths = [self.truth(each) for each in shape[2:]]
            if values.FALSE in truths:
                return values.FALSE
            return values.TRUE if set(truths) == {values.TRUE} else values.EITHER
        match = re.match(r"setp\.(eq|lt)\.([su])(\d+)$", str(shape[1]))
        words = [self.of(each) for each in shape[2:]]
        if match is not None and (known := self._tiles_compared(match[1], shape[2], shape[3])):
            return known
        if match is None or any(each.bits != int(match[3]) for each in words):
            return values.EITHER
        return values.compared(match[1], words[0], words[1], signed=match[2] == "s")

    # --- tiles, over which CTAs walk ------------------------------------------------------------------------------

    def _tiles_compared(self, relation: str, one: Node, other: Node) -> int:
        """The truth of a comparison of a CTA's number with the number of tiles, which is larger; 0 of any other one.

        A grid has no more CTAs than tiles, and a CTA's number is below their number.
        """
        numbers = [each for each in (one, other) if self.side.nodes.shapes[each] == ("atom", "steady", "%ctaid.x")]
        if len(numbers) != 1 or not self._counts_tiles(one if other == numbers[0] else other):
            return 0
        return values.TRUE if relation == "lt" and one == numbers[0] else values.FALSE

    def _counts_tiles(self, node: Node) -> bool:
        """Whether a node is the number of tiles, by what the host code says of the entry."""
        tiles = bounds_of(self.entry).tiles
        if not tiles:
            return False
        if node not in self._tiles:
            nodes, shape = self.side.nodes, self.side.nodes.shapes[node]
            factors = list(shape[2:]) if shape[:2] == ("op", "mul.lo.u32") else [node]
            wanted = dict(tiles)
            for place, divisor in tiles.items():
                found = next((each for each in factors if self._rounded_up(each, place, divisor)), None)
                if found is not None:
                    factors.remove(found)
                    del wanted[place]
            self._tiles[node] = not factors and not wanted and nodes.widths[node] == 32
        return self._tiles[node]

    def _is_tile_factor(self, node: Node) -> bool:
        """Whether a node is what the number of tiles is a product of. It is at least 1, since there is a CTA."""
        return any(self._rounded_up(node, place, divisor) for place, divisor in bounds_of(self.entry).tiles.items())

    def _rounded_up(self, node: Node, place: int, divisor: int) -> bool:
        """Whether a node is a parameter divided by a power of two and rounded up: a sum that is shifted."""
        nodes, shape = self.side.nodes, self.side.nodes.shapes[node]
        most = bounds_of(self.entry).most.get(place, INT32_MAX)
        if divisor == 1:
            return self._is_parameter(node, place)
        if shape[0] != "op" or shape[1] not in ("shr.s32", "shr.u32") or most > INT32_MAX - divisor:
            return False
        if divisor & (divisor - 1) or nodes.word(shape[3]) != divisor.bit_length() - 1:
            return False
        inner = nodes.shapes[shape[2]]
        if inner[0] != "sum" or inner[1] != 32:
            return False
        # What is added to a number that is not negative, so that it is rounded toward zero, is 0.
        terms = [each for each in inner[3:] if not (self._of_parameters(each[0]) and self.of(each[0]).constant == 0)]
        if inner[2] != divisor - 1 or len(terms) != 1 or terms[0][1] != 1:
            return False
        return self._is_parameter(terms[0][0], place)

    def _of_parameters(self, node: Node) -> bool:
        """Whether a value is of parameters alone, so that it is known before any path is."""
        nodes, seen, waiting = self.side.nodes, set[Node](), [node]
        while waiting:
            each = waiting.pop()
            if nodes.shapes[each][0] == "atom" and nodes.shapes[each][1] != "parameter":
                return False
            seen.add(each)
            waiting += set(nodes.arguments(each)) - seen
        return True

    def _is_parameter(self, node: Node, place: int) -> bool:
        shape = self.side.nodes.shapes[node]
        whole = shape[:2] == ("atom", "parameter") and shape[2] in ("u32", "s32", "b32")
        return whole and str(shape[3]) in self.numbers and str(shape[3]).rstrip("]").endswith(f"_param_{place}")

    def _remainder(self, shape: Sequence[Any]) -> tuple[Sequence[Any], KnownWord] | None:
        """A sum without a number and what it has of a divisor, and what is left of that number; None of any other sum.

        Both may be in it several times. Neither of the two is negative, and the divisor is not 0: so that the
        remainder is below it.
        """
        nodes, bits, mask = self.side.nodes, shape[1], (1 << shape[1]) - 1
        terms = dict(shape[3:])
        for product, factor in terms.items():
            made = nodes.shapes[product]
            times = -factor & mask
            if made[:2] != ("op", f"mul.lo.u{bits}"):
                continue
            for quotient, divisor in (made[2:], made[:1:-1]):
                parts = nodes.shapes[quotient]
                if parts[0] != "op" or parts[1] not in (f"div.s{bits}", f"div.u{bits}") or parts[3] != divisor:
                    continue
                number, below = self._of(parts[2]), self._of(divisor)
                if terms.get(parts[2]) != times or number is None or below is None or number.low < 0 or below.low < 1:
                    continue
                rest = [each for each in shape[3:] if each[0] not in (product, parts[2])]
                left = values.between(bits, 0, min(number.high, below.high - 1))
                return (*shape[:3], *rest), values.multiplied(left, values.constant(bits, times), bits)
        return None

    def _sum(self, shape: Sequence[Any], words: Sequence[KnownWord]) -> KnownWord:
        bits = shape[1]
        total = values.constant(bits, shape[2])
        for word, (_, factor) in zip(words, shape[3:], strict=True):
            fitting = word if word.bits == bits else values.resized(word, bits, signed=False)
            total = values.added(total, values.multiplied(fitting, values.constant(bits, factor), bits))
        return total

    def _within(self, node: Node, word: KnownWord, fact: Node | None) -> KnownWord:
        """What a node may be where a predicate holds."""
        nodes = self.side.nodes
        if fact is None:
            return word
        shape = nodes.shapes[fact]
        if shape[:2] == ("op", "and.pred"):
            for each in shape[2:]:
                word = self._within(node, word, each)
            return word
        truth = shape[0] != "not"
        shape = shape if truth else nodes.shapes[shape[1]]
        match = re.match(r"setp\.(lt|eq)\.([su])(\d+)$", str(shape[1])) if shape[0] == "op" else None
        if match is None or int(match[3]) != word.bits or node not in shape[2:]:
            return word
        if match[1] == "eq":
            return self._beside(word, shape[3] if shape[2] == node else shape[2], truth)
        one, other = shape[2], shape[3]
        low, high = word.low, word.high
        if match[2] == "u":
            # Below what is not negative, a number read without a sign is not negative either.
            above, most = None, 0
            if truth and one == node:
                above, most = other, -1
            elif not truth and other == node:
                above = one
            if above is None or not (bound := self.of(above)).unsigned:
                return word
            high = min(high, bound.high + most) if low >= 0 else bound.high + most
            return values.between(word.bits, max(low, 0), high) if high >= max(low, 0) else word
        if one == node:
            bound = self.of(other)
            low, high = (low, min(high, bound.high - 1)) if truth else (max(low, bound.low), high)
        elif other == node:
            bound = self.of(one)
            low, high = (max(low, bound.low + 1), high) if truth else (low, min(high, bound.high))
        return values.between(word.bits, low, high, word.zeros, word.ones) if low <= high else word

    def _beside(self, word: KnownWord, other: Node, same: bool) -> KnownWord:
        """A word that is the same as another one; or another one, which takes it away from an end of an interval."""
        bound = self.of(other)
        if same:
            low, high = max(word.low, bound.low), min(word.high, bound.high)
        elif bound.low != bound.high:
            return word
        else:
            low, high = word.low + (word.low == bound.low), word.high - (word.high == bound.high)
        return values.between(word.bits, low, high, word.zeros, word.ones) if low <= high else word

    def _limits(self) -> list[int]:
        """Where a growing interval may stop: below what something is compared with."""
        found = set()
        for shape in self.side.nodes.shapes:
            if shape[0] == "op" and str(shape[1]).startswith("setp.lt"):
                for each in shape[2:]:
                    word = self.of(each)
                    found |= {word.high - 1, word.high}
        self._now = {}
        return sorted(found)

    def _of(self, node: Node) -> KnownWord | None:
        if node in self._held:
            return self._held[node]
        if node in self.side.meets:
            return None
        if node not in self._now:
            self._now[node] = values.anything(self.side.nodes.widths[node])
            found = self._made(node)
            if found is None:
                del self._now[node]
                return None
            self._now[node] = found
        return self._now[node]

    def _made(self, node: Node) -> KnownWord | None:
        nodes = self.side.nodes
        shape, bits = nodes.shapes[node], nodes.widths[node]
        if shape[0] == "int":
            return values.constant(bits, shape[1])
        if shape[0] == "atom":
            return self._atom(shape, bits)
        given = [self._of(each) for each in nodes.arguments(node)]
        if any(each is None for each in given):
            return None
        words = [each for each in given if each is not None]
        if shape[0] == "sum":
            if (parted := self._remainder(shape)) is not None:
                rest = [self.of(each) for each, _ in parted[0][3:]]
                return values.added(self._sum(parted[0], rest), parted[1])
            return self._sum(shape, words)
        if shape[0] == "sel":
            return values.joined(words[1], words[2])
        if shape[0] != "op" or bits == 1:
            return values.anything(bits)
        made = self._operation(shape, bits, words)
        if bits == 32 and bounds_of(self.entry).tiles and (self._counts_tiles(node) or self._is_tile_factor(node)):
            return values.between(bits, max(made.low, 1), min(made.high, MOST_TILES), made.zeros, made.ones)
        return made

    def _atom(self, shape: Sequence[object], bits: int) -> KnownWord | None:
        kind, name = str(shape[1]), str(shape[2])
        whole = shape[2] in ("u32", "s32", "b32") and bits == 32
        if kind == "parameter" and whole and str(shape[3]) in self.numbers:
            number = int(str(shape[3]).rstrip("]").rpartition("_")[2])
            known = bounds_of(self.entry)
            zeros = known.multiples.get(number, 1) - 1
            return values.between(bits, known.least.get(number, 0), known.most.get(number, INT32_MAX), zeros)
        if kind == "act":
            number, place = int(str(shape[2])), int(str(shape[3]))
            sides = [acts[place] for acts in self.side.acts.get(number, ()) if place < len(acts)]
            if len(shape) < 5 or shape[4] != 0 or len(sides) < 2:
                return values.anything(bits)
            if _GATHERED.match(sides[0].opcode) or _JOINED.match(sides[0].opcode):
                return self._gathered(sides, bits)
            held = self.loaded(sides[0])
            return held if held is not None and held.bits == bits else values.anything(bits)
        if kind != "steady":
            return values.anything(bits)
        if name in ("%tid.y", "%tid.z", "%ctaid.y", "%ctaid.z"):
            return values.constant(bits, 0)
        if name == "%tid.x":
            return values.between(bits, 0, self.threads - 1)
        if name == "%laneid":
            return values.between(bits, 0, 31)
        if name == "%ntid.x":
            return values.between(bits, 32, self.threads, 31)
        if name in ("%ctaid.x", "%nctaid.x"):
            bounds = bounds_of(self.entry)
            most = min(bounds.grid, MOST_TILES) if bounds.tiles else bounds.grid
            return values.between(bits, 0, most - 1) if name == "%ctaid.x" else values.between(bits, 1, most)
        return values.anything(bits)

    def _gathered(self, sides: Sequence[Act], bits: int) -> KnownWord | None:
        """What an exchange gives of what lanes offer, in either entry; None if nothing is known of that yet."""
        found: KnownWord | None = None
        for act in sides:
            offered = self._of(act.operands[0])
            if offered is None:
                return None
            match = _GATHERED.match(act.opcode) or _JOINED.match(act.opcode)
            if match is None or offered.bits != bits or self.side.nodes.word(act.guard) != 1:
                return values.anything(bits)
            if match.re is _JOINED:
                # A bit that is the same in all words is that in what is made of them.
                offered = values.known_bits(bits, offered.zeros, offered.ones)
            elif match[1] == "add":
                # Of a lane at least, and of a warp at most.
                ends = [times * end for times in (1, WARP) for end in (offered.low, offered.high)]
                offered = values.between(bits, min(ends), max(ends))
            elif match[2] == "u" and not offered.unsigned:
                offered = values.anything(bits)
            found = offered if found is None else values.joined(found, offered)
        return found

    def _operation(self, shape: Sequence[object], bits: int, words: list[KnownWord]) -> KnownWord:
        opcode = str(shape[1])
        parts = opcode.split(".")
        kind = _TYPE.match(parts[-1])
        if " " in opcode or kind is None or parts[-1][0] == "f":
            return values.anything(bits)
        width, signed = int(kind[1]), parts[-1][0] == "s"
        if parts[0] == "cvta":
            return values.anything(bits)
        shifts = parts[0] in ("shl", "shr")
        fitting = [
            word if word.bits == (32 if shifts and place else width) else _cut(word, 32 if shifts and place else width)
            for place, word in enumerate(words)
        ]
        if parts[0] == "cvt":
            if len(parts) != 3 or not (target := _TYPE.match(parts[1])) or parts[1][0] == "f":
                return values.anything(bits)
            made = values.resized(fitting[0], int(target[1]), signed=signed)
            return made if made.bits == bits else values.resized(made, bits, signed=parts[1][0] == "s")
        if parts[0] in ("mad",):
            return values.anything(bits)
        found = computed(parts[0], parts, fitting, [""] * len(words), signed=signed)
        if found is None:
            return values.anything(bits)
        return found if found.bits == bits else values.resized(found, bits, signed=signed)


def _cut(word: KnownWord, bits: int) -> KnownWord:
    return values.resized(word, bits, signed=False)


def _widened(before: KnownWord, after: KnownWord, limits: Sequence[int]) -> KnownWord:
    least, greatest = -(1 << (after.bits - 1)), (1 << (after.bits - 1)) - 1
    low = after.low if after.low == before.low else 0 if after.low >= 0 else least
    high = after.high
    if high != before.high:
        high = next((each for each in limits if after.high <= each <= greatest), greatest)
    return values.between(after.bits, low, high, after.zeros, after.ones)
