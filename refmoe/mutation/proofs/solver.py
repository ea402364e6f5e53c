"""Whether two integer expressions have one value, asked of a solver for words of fixed width.

An expression becomes a term of the solver: integer instructions, shifts, comparisons, conversions and choices as PTX
defines them. Whatever else there is in it counts as a function of its operands that nobody knows, or as any word. What
intervals and bits tell of a node is given to the solver, and so is the predicate that holds where both are compared.
If it finds no values for which they differ, there are none. If it does, or gives up, nothing is said.

The solver, z3, is optional. Without it nothing is proven here. Its work is counted in its own steps, not in seconds: so
it gives up at the same place on every machine.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from refmoe.mutation.proofs import values
from refmoe.mutation.proofs.nodes import Node, Nodes
from refmoe.mutation.proofs.ranges import Ranges

#: Steps of the solver for one question.
_STEPS = 1_000_000
#: Nodes of a question; what is below them counts as any word.
_MOST_NODES = 250
_TYPE = re.compile(r"([subf])(8|16|32|64)$")

Term = Any
_Meaning = Callable[..., Term]


@cache
def _z3() -> Any:
    """The solver's module, None without it."""
    try:
        return importlib.import_module("z3")
    except ImportError:
        return None


@dataclass
class WordSolver:
    """Questions about nodes.

    Attributes:
        nodes: of both entries.
        ranges: what their values may be.
    """

    nodes: Nodes
    ranges: Ranges
    _asked: dict[tuple[Node, Node, Node | None, frozenset[tuple[Node, Node]]], bool] = field(default_factory=dict)

    def decides(self, one: Node, other: Node) -> bool:
        """Whether it is worth asking: the solver is there, and knows what one of two nodes computes."""
        return _z3() is not None and (self._known(one) or self._known(other))

    def _known(self, node: Node) -> bool:
        return self.nodes.shapes[node][0] != "atom" and not self._opaque(node)

    def same(self, one: Node, other: Node, given: Node | None, alike: frozenset[tuple[Node, Node]]) -> bool:
        """Whether two nodes have one value wherever a predicate holds.

        Args:
            one: the first.
            other: the second.
            given: the predicate; None for everywhere.
            alike: pairs of nodes that have one value there.
        """
        key = (one, other, given, alike)
        if key not in self._asked:
            known = self._conjuncts(given)
            question = _Question(self, self._held([one, other, *known]), dict(alike))
            self._asked[key] = question.same(one, other, known)
        return self._asked[key]

    def words_of(self, *roots: Node) -> set[Node]:
        """The nodes of a question that some nodes are in."""
        return self._held(roots)

    def apart(self, one: Node, other: Node) -> tuple[set[Node], set[Node]]:
        """What the first of two nodes alone is made of, and what the second one is."""
        found = [self._held([node]) - {node} for node in (one, other)]
        return found[0] - found[1], found[1] - found[0]

    def _conjuncts(self, given: Node | None) -> list[Node]:
        if given is None:
            return []
        shape = self.nodes.shapes[given]
        return list(shape[2:]) if shape[:2] == ("op", "and.pred") else [given]

    def _held(self, roots: Sequence[Node]) -> set[Node]:
        """The nodes of a question: those nearest to its roots."""
        found, waiting = set[Node](), list(roots)
        while waiting and len(found) < _MOST_NODES:
            behind: list[Node] = []
            for each in waiting:
                if each not in found:
                    found.add(each)
                    behind += self.nodes.arguments(each)
            waiting = behind
        return found

    def _opaque(self, node: Node) -> bool:
        """Whether a node is a function of its operands that the solver knows nothing of."""
        shape = self.nodes.shapes[node]
        return shape[0] in ("low", "pair") or (shape[0] == "op" and self.meaning(node) is None)

    def meaning(self, node: Node) -> _Meaning | None:
        """What an instruction makes of the terms of its operands; None of one that is not known."""
        shape, nodes = self.nodes.shapes[node], self.nodes
        if shape[0] != "op" or _z3() is None:
            return None
        return meaning(str(shape[1]), [nodes.widths[each] for each in shape[2:]], nodes.widths[node], [
            nodes.word(each) for each in shape[2:]
        ])  # fmt: skip


@dataclass
class _Question:
    """One question, with a variable for each word that is not known.

    Attributes:
        solver: who asks.
        held: the nodes that are part of it.
        alike: nodes that count as other ones.
    """

    solver: WordSolver
    held: set[Node]
    alike: Mapping[Node, Node]
    _terms: dict[Node, Term] = field(default_factory=dict)
    _facts: list[Term] = field(default_factory=list)

    @cached_property
    def _context(self) -> Any:
        return _z3().Context()

    def same(self, one: Node, other: Node, given: Sequence[Node]) -> bool:
        """Whether no values tell one node from the other where some predicates hold."""
        z3 = _z3()
        asked = z3.Solver(ctx=self._context)
        asked.set("rlimit", _STEPS)
        terms = self._term(one), self._term(other)
        asked.add(terms[0] != terms[1])
        asked.add(*map(self._term, given))
        asked.add(*self._facts)
        return bool(asked.check() == z3.unsat)

    def _term(self, node: Node) -> Term:
        node = self.alike.get(node, node)
        if node not in self._terms:
            made = self._made(node)
            self._terms[node] = made
            if self.solver.nodes.widths[node] > 1:
                self._tell(made, self.solver.ranges.of(node))
            elif (truth := self.solver.ranges.truth(node)) != values.EITHER:
                self._facts.append(made if truth == values.TRUE else _z3().Not(made))
        return self._terms[node]

    def _tell(self, term: Term, word: values.KnownWord) -> None:
        """What intervals and bits tell of a word."""
        z3, full = _z3(), values.anything(word.bits)
        if z3.is_bv_value(term):
            return
        if word.low > full.low:
            self._facts.append(term >= self._integer(word.low, word.bits))
        if word.high < full.high:
            self._facts.append(term <= self._integer(word.high, word.bits))
        for mask, bits in ((word.zeros, term), (word.ones, ~term)):
            if mask:
                self._facts.append(bits & self._integer(mask, word.bits) == self._integer(0, word.bits))

    def _integer(self, word: int, bits: int) -> Term:
        return _z3().BitVecVal(word, bits, self._context)

    def _variable(self, node: Node) -> Term:
        z3, bits = _z3(), self.solver.nodes.widths[node]
        name = f"node{node}"
        return z3.Bool(name, self._context) if bits == 1 else z3.BitVec(name, bits, self._context)

    def _made(self, node: Node) -> Term:
        z3, nodes = _z3(), self.solver.nodes
        shape, bits = nodes.shapes[node], nodes.widths[node]
        if shape[0] == "int":
            return z3.BoolVal(bool(shape[1]), self._context) if bits == 1 else self._integer(shape[1], bits)
        sources = nodes.arguments(node)
        # Below the last nodes of the question stand variables.
        if shape[0] == "atom" or not all(
            self.alike.get(each, each) in self.held or each in self.held for each in sources
        ):
            return self._variable(node)
        if shape[0] == "sum" and (bits != shape[1] or any(nodes.widths[each] != bits for each in sources)):
            return self._variable(node)
        terms = [self._term(each) for each in sources]
        if shape[0] == "not":
            return z3.Not(terms[0])
        if shape[0] == "sel":
            return z3.If(terms[0], terms[1], terms[2])
        if shape[0] == "sum":
            total = self._integer(shape[2], bits)
            for term, (_, factor) in zip(terms, shape[3:], strict=True):
                total = total + term * self._integer(factor, bits)
            return total
        means = self.solver.meaning(node) if shape[0] == "op" else None
        return self._unknown(shape, terms, bits) if means is None else means(*terms)

    def _unknown(self, shape: Sequence[Any], terms: Sequence[Term], bits: int) -> Term:
        """A function of which nothing is known but that it gives the same for the same operands."""
        z3 = _z3()
        if not terms:
            return z3.FreshConst(z3.BoolSort(self._context) if bits == 1 else z3.BitVecSort(bits, self._context))
        head = " ".join(str(each) for each in shape[: len(shape) - len(terms)])
        sorts = [each.sort() for each in terms]
        name = " ".join((head, *map(str, sorts), str(bits)))
        result = z3.BoolSort(self._context) if bits == 1 else z3.BitVecSort(bits, self._context)
        return z3.Function(name, *sorts, result)(*terms)


def meaning(opcode: str, widths: Sequence[int], bits: int, words: Sequence[int | None]) -> _Meaning | None:
    """What an instruction makes of terms, as PTX defines it; None of one that is not known, or of other widths.

    Args:
        opcode: as nodes have it.
        widths: those of its operands' registers.
        bits: that of its result's register.
        words: its operands' values, where they are constants.
    """
    z3, parts = _z3(), opcode.split(".")
    if opcode == "and.pred":
        return lambda *terms: z3.And(*terms)
    if opcode == "xor.pred":
        return lambda one, other: z3.Xor(one, other)
    match = _TYPE.match(parts[-1])
    if match is None or match[1] == "f" or " " in opcode:
        return None
    width, signed = int(match[2]), match[1] == "s"
    if parts[0] == "cvt":
        return _conversion(parts, widths[0], bits)
    if parts[0] == "setp":
        relation = parts[1] if len(parts) == 3 and [*widths] == [width, width] else ""
        return _comparison(relation, signed=signed)
    if parts[0] in ("shl", "shr") and len(parts) == 2:
        return _shift(parts[0], width, signed=signed) if [*widths, bits] == [width, 32, width] else None
    if parts[0] in ("mul", "mad") and parts[1:2] == ["wide"]:
        fits = [*widths[:2], bits] == [width, width, 2 * width] and [*widths[2:]] in ([], [2 * width])
        return _wide(width, signed=signed) if fits else None
    if any(each != width for each in (*widths, bits)):
        return None
    return _plain(parts, words, signed=signed)


def _plain(parts: Sequence[str], words: Sequence[int | None], *, signed: bool) -> _Meaning | None:
    """Instructions whose result is as wide as their operands."""
    z3, name = _z3(), parts[0]
    less: _Meaning = (lambda one, other: one < other) if signed else z3.ULT
    known: dict[str, _Meaning] = {
        "and": lambda one, other: one & other,
        "or": lambda one, other: one | other,
        "xor": lambda one, other: one ^ other,
        "not": lambda one: ~one,
        "min": lambda one, other: z3.If(less(one, other), one, other),
        "max": lambda one, other: z3.If(less(one, other), other, one),
    }
    if len(parts) == 3 and name == "mul" and parts[1] == "lo":
        return lambda one, other: one * other
    if len(parts) == 2 and name in ("div", "rem") and not signed and words[1]:
        divided: _Meaning = z3.UDiv if name == "div" else z3.URem
        return divided
    return known.get(name) if len(parts) == 2 else None


def _comparison(relation: str, *, signed: bool) -> _Meaning | None:
    z3 = _z3()
    if relation == "eq":
        return lambda one, other: one == other
    if relation != "lt":
        return None
    return (lambda one, other: one < other) if signed else (lambda one, other: z3.ULT(one, other))


def _shift(name: str, width: int, *, signed: bool) -> _Meaning:
    """An amount has 32 bits; past the width it counts as the width."""
    z3 = _z3()

    def made(term: Term, amount: Term) -> Term:
        wide = z3.ZeroExt(64 - width, term) if not signed else z3.SignExt(64 - width, term)
        by = z3.If(z3.ULT(amount, width), z3.ZeroExt(32, amount), z3.BitVecVal(width, 64, term.ctx))
        if name == "shl":
            return z3.Extract(width - 1, 0, wide << by)
        return z3.Extract(width - 1, 0, wide >> by if signed else z3.LShR(wide, by))

    return made


def _wide(width: int, *, signed: bool) -> _Meaning:
    z3 = _z3()
    longer = z3.SignExt if signed else z3.ZeroExt

    def made(one: Term, other: Term, *more: Term) -> Term:
        product = longer(width, one) * longer(width, other)
        return product + more[0] if more else product

    return made


def _conversion(parts: Sequence[str], held: int, bits: int) -> _Meaning | None:
    """Of integers without saturation: what is read is cut from its register, what is made fills its register."""
    z3 = _z3()
    kinds = [_TYPE.match(each) for each in parts[1:]]
    if len(parts) != 3 or any(each is None or each[1] not in "su" for each in kinds):
        return None
    (target, wide), (source, narrow) = ((each[1], int(each[2])) for each in kinds if each is not None)
    if narrow > held or wide > bits:
        return None

    def fitted(term: Term, width: int, *, signed: bool) -> Term:
        more = width - term.size()
        if more <= 0:
            return z3.Extract(width - 1, 0, term)
        return z3.SignExt(more, term) if signed else z3.ZeroExt(more, term)

    def made(term: Term) -> Term:
        read = z3.Extract(narrow - 1, 0, term)
        return fitted(fitted(read, wide, signed=source == "s"), bits, signed=target == "s")

    return made
