"""Values as expressions: what an instruction computes of others, in one form for all ways to write it.

A node is a number. Two values that have the same node are equal, whatever thread computes them. Nodes are built bottom
up, so that an expression which occurs twice is one node. What a node is made of:

- `("int", word)`: a constant, not negative.
- `("atom", ...)`: a value that nothing is known of: what a load gave, a parameter, where paths meet.
- `("op", opcode, nodes...)`: an instruction of one result, its opcode in one spelling.
- `("sum", bits, constant, (node, factor)...)`: an integer sum modulo 2^bits.
- `("sel", predicate, node, node)`, `("not", predicate)`.
- `("low", opcode, node)`, `("pair", bits, node, node)`: of a conversion of two numbers each half by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Node = int
Shape = tuple[Any, ...]

#: Instructions whose first two operands may be exchanged: on integers, and on numbers of FP32 or less, with one NaN.
EITHER_WAY = frozenset(("add", "mul", "min", "max", "and", "or", "xor", "fma", "mad"))
_TYPE = re.compile(r"([subf]|bf)(8|16|32|64)(x2)?$")
#: Of these the sign of the type says nothing.
_NO_SIGN = frozenset(("add", "sub", "and", "or", "xor", "not", "shl", "selp", "mov", "neg"))
_RELATIONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"))
_PAIRED = re.compile(r"cvt\..*\b(e4m3x2|e5m2x2|bf16x2|f16x2)\.f32$")
#: How deep an assumption is carried into an expression.
_DEPTH = 12


@dataclass
class Nodes:
    """All nodes of a proof.

    Attributes:
        shapes: what each is made of.
        unsigned: tells of a node and a width whether its word, read as signed, is never negative.
    """

    shapes: list[Shape] = field(default_factory=list)
    known: dict[Shape, Node] = field(default_factory=dict)
    widths: dict[Node, int] = field(default_factory=dict)
    unsigned: Callable[[Node, int], bool] = lambda node, bits: False
    _assumed: dict[tuple[Node, Node, bool, int], Node] = field(default_factory=dict)
    _arguments: dict[Node, tuple[Node, ...]] = field(default_factory=dict)

    def of(self, shape: Shape, bits: int) -> Node:
        """The node of a shape, whose value has so many bits; 1 of a predicate."""
        if shape not in self.known:
            self.known[shape] = len(self.shapes)
            self.shapes.append(shape)
            self.widths[self.known[shape]] = bits
        return self.known[shape]

    def integer(self, word: int, bits: int) -> Node:
        """A constant, given modulo 2^bits."""
        return self.of(("int", word & ((1 << bits) - 1), bits), bits)

    def word(self, node: Node) -> int | None:
        """The value of a constant."""
        shape = self.shapes[node]
        return int(shape[1]) if shape[0] == "int" else None

    def arguments(self, node: Node) -> tuple[Node, ...]:
        """The nodes that a node is made of."""
        if node not in self._arguments:
            self._arguments[node] = self._parts(node)
        return self._arguments[node]

    def _parts(self, node: Node) -> tuple[Node, ...]:
        kind, *rest = self.shapes[node]
        if kind in ("int", "atom"):
            return ()
        if kind == "sum":
            return tuple(each for each, _ in rest[2:])
        return tuple(rest[1:]) if kind in ("op", "low", "pair") else tuple(rest)

    # --- predicates ---------------------------------------------------------------------------------------------

    def negated(self, predicate: Node) -> Node:
        """The opposite of a predicate."""
        shape = self.shapes[predicate]
        if shape[0] == "not":
            return int(shape[1])
        word = self.word(predicate)
        return self.integer(1 - word, 1) if word is not None else self.of(("not", predicate), 1)

    def both(self, predicates: Sequence[Node]) -> Node:
        """Whether all of some predicates hold."""
        held: set[Node] = set()
        for each in predicates:
            shape = self.shapes[each]
            held |= set(shape[2:]) if shape[:2] == ("op", "and.pred") else {each}
        held -= {self.integer(1, 1)}
        if any(self.negated(each) in held for each in held) or self.integer(0, 1) in held:
            return self.integer(0, 1)
        if len(held) < 2:
            return next(iter(held), self.integer(1, 1))
        return self.of(("op", "and.pred", *sorted(held)), 1)

    def selected(self, predicate: Node, one: Node, other: Node, bits: int) -> Node:
        """`one` where a predicate holds, else `other`."""
        shape = self.shapes[predicate]
        if shape[0] == "not":
            return self.selected(int(shape[1]), other, one, bits)
        if (word := self.word(predicate)) is not None:
            return one if word else other
        one, other = self.given(one, predicate), self.given(other, self.negated(predicate))
        if self._alike(predicate, one, other, bits):
            return other
        return one if one == other else self.of(("sel", predicate, one, other), bits)

    def _alike(self, predicate: Node, one: Node, other: Node, bits: int) -> bool:
        """Whether `one` is `other` where a predicate holds: it says that `one` is equal to what `other` is there."""
        shape = self.shapes[predicate]
        held = shape[2:] if shape[:2] == ("op", "and.pred") else (predicate,)
        for each in held:
            equal = self.shapes[each]
            if equal[:2] == ("op", f"setp.eq.u{bits}") and one in equal[2:]:
                its = equal[3] if equal[2] == one else equal[2]
                if its == self.given(other, self.both([part for part in held if part != each])):
                    return True
        return False

    def given(self, node: Node, predicate: Node) -> Node:
        """A node that is equal to `node` wherever a predicate holds."""
        shape = self.shapes[predicate]
        if shape[:2] == ("op", "and.pred"):
            for each in shape[2:]:
                node = self.given(node, each)
        if shape[0] == "not":
            return self.assuming(node, int(shape[1]), False)
        return self.assuming(node, predicate, True) if self.word(predicate) is None else node

    def assuming(self, node: Node, predicate: Node, truth: bool, depth: int = _DEPTH) -> Node:
        """A node that is equal to `node` wherever a predicate is as it is assumed."""
        if node == predicate:
            return self.integer(int(truth), 1)
        if not depth or not self.arguments(node):
            return node
        key = (node, predicate, truth, depth)
        if key not in self._assumed:
            self._assumed[key] = node
            shape = self.shapes[node]
            changed = {each: self.assuming(each, predicate, truth, depth - 1) for each in self.arguments(node)}
            if any(one != other for one, other in changed.items()):
                self._assumed[key] = self._again(shape, changed, self.widths[node])
        return self._assumed[key]

    def _again(self, shape: Shape, changed: dict[Node, Node], bits: int) -> Node:
        kind = shape[0]
        if kind == "sum":
            terms = [(changed[each], factor) for each, factor in shape[3:]]
            return self.total(shape[1], shape[2], terms)
        parts = [changed[each] for each in self.arguments(self.known[shape])]
        if kind == "sel":
            return self.selected(parts[0], parts[1], parts[2], bits)
        if kind == "not":
            return self.negated(parts[0])
        if kind == "op" and shape[1] == "and.pred":
            return self.both(parts)
        if kind == "op" and " " not in shape[1]:
            return self.computed(shape[1], parts, bits)
        # One of several results is not what its opcode alone says.
        return self.of((*shape[: len(shape) - len(parts)], *parts), bits)

    # --- integers -----------------------------------------------------------------------------------------------

    def total(self, bits: int, constant: int, terms: Sequence[tuple[Node, int]]) -> Node:
        """A sum modulo 2^bits of a constant and of nodes times factors."""
        mask = (1 << bits) - 1
        factors: dict[Node, int] = {}
        for node, factor in terms:
            shape = self.shapes[node]
            if shape[0] == "int":
                constant += shape[1] * factor
            elif shape[0] == "sum" and shape[1] == bits:
                constant += shape[2] * factor
                for each, inner in shape[3:]:
                    factors[each] = factors.get(each, 0) + inner * factor
            else:
                factors[node] = factors.get(node, 0) + factor
        held = tuple(sorted((node, factor & mask) for node, factor in factors.items() if factor & mask))
        if not held:
            return self.integer(constant, bits)
        if len(held) == 1 and held[0][1] == 1 and not constant & mask and self.widths[held[0][0]] == bits:
            return held[0][0]
        return self.of(("sum", bits, constant & mask, *held), bits)

    def computed(self, opcode: str, sources: Sequence[Node], bits: int) -> Node:
        """The result of a pure instruction in a register of so many bits."""
        parts = opcode.split(".")
        kind = _TYPE.match(parts[-1])
        width = int(kind[2]) if kind else bits
        if parts[0] == "mov" and len(sources) == 1 and (self.widths[sources[0]] == bits):
            return sources[0]
        if parts[0] in ("selp",):
            return self.selected(sources[2], sources[0], sources[1], bits)
        if parts[-1] == "pred":
            return self._logical(parts[0], sources)
        if parts[0] == "setp" and len(parts) == 3 and len(sources) == 2:
            return self._compared(parts, width, sources)
        if kind and kind[1] in "sub" and not kind[3] and width == bits:
            found = self._summed(parts, bits, sources)
            if found is not None:
                return found
        if _PAIRED.match(opcode) and len(sources) == 2:
            high, low = (self.of(("low", opcode, each), bits // 2) for each in sources)
            return self.of(("pair", bits, low, high), bits)
        no_sign = parts[0] in _NO_SIGN and len(parts) == 2
        alike = (
            kind is not None
            and kind[1] == "s"
            and not kind[3]
            and (no_sign or self._never_negative(parts, width, sources))
        )
        if alike or (kind is not None and kind[1] == "b" and parts[0] == "shr"):
            parts[-1] = f"u{width}"
        if parts[0] == "cvt" and len(parts) == 3 and kind is not None and kind[1] in "su":
            target = _TYPE.match(parts[1])
            if target is not None and target[1] in "su" and int(target[2]) == bits:
                # Of a result as wide as its register the sign says nothing.
                parts[1] = f"u{bits}"
        sources = list(sources)
        # Which NaN of two a result of FP64 keeps depends on their order.
        if parts[0] in EITHER_WAY and kind and (kind[2] != "64" or kind[1] in "sub"):
            sources[:2] = sorted(sources[:2])
        return self._folded(".".join(parts), sources, bits)

    def _never_negative(self, parts: list[str], width: int, sources: Sequence[Node]) -> bool:
        """Whether an instruction on signed numbers is that on unsigned ones, since no operand is negative."""
        if parts[0] in ("min", "max", "div", "rem") and len(parts) == 2:
            return all(self.unsigned(each, width) for each in sources)
        if parts[0] == "shr" or (parts[0] == "cvt" and len(parts) == 3):
            return self.unsigned(sources[0], width)
        if parts[0] in ("mul", "mad") and parts[1] == "wide":
            return self.unsigned(sources[0], width) and self.unsigned(sources[1], width)
        return parts[0] in ("mul", "mad") and parts[1] == "lo"

    def _summed(self, parts: list[str], bits: int, sources: Sequence[Node]) -> Node | None:
        """A result that is a sum of multiples of others."""
        name, words = parts[0], [self.word(each) for each in sources]
        if name in ("add", "sub") and len(parts) == 2:
            return self.total(bits, 0, [(sources[0], 1), (sources[1], 1 if name == "add" else -1)])
        if name == "neg" and len(parts) == 2:
            return self.total(bits, 0, [(sources[0], -1)])
        if name == "shl" and words[1] is not None and words[1] < bits:
            return self.total(bits, 0, [(sources[0], 1 << words[1])])
        if name in ("mul", "mad") and parts[1] == "lo":
            rest = [(sources[2], 1)] if name == "mad" else []
            for mine, other in ((0, 1), (1, 0)):
                if (word := words[other]) is not None:
                    return self.total(bits, 0, [(sources[mine], word), *rest])
            product = self.of(("op", f"mul.lo.u{bits}", *sorted(sources[:2])), bits)
            return self.total(bits, 0, [(product, 1), *rest])
        return None

    def _folded(self, opcode: str, sources: Sequence[Node], bits: int) -> Node:
        words = [self.word(each) for each in sources]
        parts = opcode.split(".")
        mask = (1 << bits) - 1
        if parts[0] in ("and", "or", "xor") and len(sources) == 2:
            for mine, other in ((0, 1), (1, 0)):
                word = words[other]
                if word is not None and word & mask == (mask if parts[0] == "and" else 0):
                    return sources[mine]
            if None not in words:
                one, two = (int(each or 0) for each in words)
                return self.integer({"and": one & two, "or": one | two, "xor": one ^ two}[parts[0]], bits)
            if sources[0] == sources[1] and parts[0] != "xor":
                return sources[0]
        if parts[0] in ("min", "max") and sources[0] == sources[1] and parts[-1][0] == "u":
            return sources[0]
        if parts[0] == "shr" and words[1] == 0:
            return sources[0]
        inner = self.shapes[sources[0]]
        if opcode == "cvt.u32.u64" and inner[0] == "op" and re.fullmatch(r"cvt\.u64\.[us]32", str(inner[1])):
            # A word that was made longer and is cut again.
            return int(inner[2]) if self.widths[inner[2]] == bits else self.of(("op", opcode, *sources), bits)
        return self.of(("op", opcode, *sources), bits)

    def _logical(self, name: str, sources: Sequence[Node]) -> Node:
        if name == "not":
            return self.negated(sources[0])
        if name == "and":
            return self.both(sources)
        if name == "or":
            return self.negated(self.both([self.negated(each) for each in sources]))
        if name == "mov":
            return sources[0]
        return self.of(("op", f"{name}.pred", *sorted(sources)), 1)

    def _compared(self, parts: list[str], width: int, sources: Sequence[Node]) -> Node:
        """Comparisons by `eq` and `lt` alone on integers; on others by those that are not turned round."""
        relation, kind = parts[1], parts[2]
        one, other = sources
        if not re.match(r"[sub]\d", kind) or relation not in _RELATIONS:
            turned = {"gt": "lt", "ge": "le", "gtu": "ltu", "geu": "leu"}
            if relation in turned:
                relation, one, other = turned[relation], other, one
            elif relation in ("eq", "ne", "equ", "neu", "num", "nan"):
                one, other = sorted((one, other))
            return self.of(("op", f"setp.{relation}.{kind}", one, other), 1)
        if relation in ("lo", "ls", "hi", "hs"):
            relation = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}[relation]
        if relation in ("eq", "ne"):
            found = self.of(("op", f"setp.eq.u{width}", *sorted((one, other))), 1)
            words = [self.word(each) for each in (one, other)]
            if one == other or (None not in words and words[0] == words[1]):
                found = self.integer(1, 1)
            elif None not in words:
                found = self.integer(0, 1)
            return found if relation == "eq" else self.negated(found)
        if relation in ("gt", "le"):
            one, other = other, one
        signed = kind[0] == "s" and not (self.unsigned(one, width) and self.unsigned(other, width))
        found = self.of(("op", f"setp.lt.{'s' if signed else 'u'}{width}", one, other), 1)
        if one == other:
            found = self.integer(0, 1)
        return found if relation in ("lt", "gt") else self.negated(found)
