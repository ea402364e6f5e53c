"""Two expressions tried on every value that their operands can have, where these are at most 2^34.

Expressions are cut where they have few bits of what they depend on: the sixteen of a BF16 number that was loaded, not
the thirty-two of FP32 that it became. What the bits below a cut stand for does not matter. Each opcode is computed by
the native code of the executor, which is held against its specification.

A cut may lie below an exchange: what another lane offers is the same expression of values of its own. Values that a
comparison forbids are left out, as far as the comparison is made of the cut alone.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir

from refmoe.mutation.proofs.domains import Domains, PossibleWords
from refmoe.mutation.proofs.nodes import Node, Nodes
from refmoe.native.compiler import Native, compiled
from refmoe.ptx import isa
from refmoe.ptx.ops.lanes import BITS, LANES, LaneBuilder, vector
from refmoe.ptx.ops.table import lowering

_WORD, _INDEX = ir.IntType(64), ir.IntType(32)

#: Bits of a cut that are tried, and warps of values that are tried at a time.
MOST_BITS = 34
_WARPS = 1 << 15
#: Cuts of one pair that are tried, steps by which a cut goes down, and nodes between a cut and its end.
_CUTS, _STEPS, _NODES = 32, 160, 400
#: Values times nodes of one trial, and of all that a process makes: the executor computes a few 10^9 in a second.
MOST_WORK, ALL_WORK = 1 << 39, 1 << 41
#: A half of a word that is taken apart.
_HALF = re.compile(r"mov\.b(32|64) 2:([01])")
#: From so many values on the compiler's passes are worth their time.
_LONG = 1 << 20


class NotTried(Exception):
    """An expression has a part that is not computed here."""


@dataclass(frozen=True)
class CountedValue:
    """A value that a trial counted through.

    Attributes:
        made_by: the opcode that gives it, or what else it is.
        width: its bits.
        mask: those that were tried at 1 and at 0, in hexadecimal; others were 0.
        beside: words that were tried as well.
    """

    made_by: str
    width: int
    mask: str
    beside: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """Two expressions that are equal for all values of a cut.

    Attributes:
        inputs: how many values were tried, those included that `where` leaves out.
        domain: what was counted through; v0 of `where` is the first.
        where: comparisons that hold in the kernel: where they do not, a difference does not count.
        steps: instructions and constants of both expressions.
    """

    inputs: int
    domain: tuple[CountedValue, ...]
    where: tuple[str, ...]
    steps: int


@dataclass
class Budget:
    """Work that a process may still do for trials, in values times nodes."""

    left: int = ALL_WORK


BUDGET = Budget()

#: Outcomes by a hash of what was tried: entries of one source have the same expressions.
_OUTCOMES: dict[str, bool] = {}


@dataclass
class Slices:
    """Expressions over cuts.

    Attributes:
        domains: what their values may be.
        conditions: predicates that hold where they are compared.
    """

    domains: Domains
    conditions: tuple[Node, ...] = ()
    _parts: dict[Node, tuple[Node, ...]] = field(default_factory=dict)

    @property
    def nodes(self) -> Nodes:
        """Those of the proof."""
        return self.domains.nodes

    def parts(self, node: Node) -> tuple[Node, ...]:
        """The nodes that a node is computed of; of what an exchange reads, what the other lane offers."""
        if node not in self._parts:
            offered = self.domains.exchanged(node)
            self._parts[node] = self.nodes.arguments(node) if offered is None else (offered,)
        return self._parts[node]

    def size(self, cut: Iterable[Node]) -> int:
        """Bits of the number that counts through a cut."""
        return sum(self.domains.of(each).bits for each in cut)


def always_equal(nodes: Nodes, one: Node, other: Node) -> bool:
    """Whether two nodes have equal values, whatever the values of some cut below them are."""
    return tried(Domains(nodes), one, other) is not None


def tried(domains: Domains, one: Node, other: Node, conditions: Iterable[Node] = ()) -> Trial | None:
    """A trial that shows two nodes to have equal values wherever some conditions hold; None if none does.

    Args:
        domains: of their nodes.
        one: a node.
        other: another one of the same width.
        conditions: predicates.
    """
    slices = Slices(domains, tuple(sorted(conditions)))
    cuts = sorted({*_cuts(slices, one, other)}, key=lambda cut: (slices.size(cut), cut))
    for cut in cuts[:_CUTS]:
        try:
            wanted = _order(slices, (one, other), cut)
            held = [each for each in slices.conditions if _over(slices, each, cut)]
        except NotTried:
            continue
        for where in ([], held) if held else ([],):
            if _outcome(slices, one, other, cut, where, len(wanted)):
                names = {each: f"v{number}" for number, each in enumerate(cut)}
                words = tuple(_written(domains.nodes, each, names) for each in where)
                counted = tuple(_counted(domains, each) for each in cut)
                return Trial(1 << slices.size(cut), counted, words, len(wanted))
    return None


def _outcome(slices: Slices, one: Node, other: Node, cut: tuple[Node, ...], where: list[Node], length: int) -> bool:
    text = _spelled(slices, (one, other, *where), cut)
    key = hashlib.sha256(text.encode()).hexdigest()
    if key not in _OUTCOMES:
        work = length << slices.size(cut)
        if work > min(MOST_WORK, BUDGET.left):
            return False
        try:
            _OUTCOMES[key], share = _equal_over(slices, one, other, cut, where)
        except NotTried:
            _OUTCOMES[key], share = False, 0.0
        BUDGET.left -= int(work * share)
    return _OUTCOMES[key]


def _over(slices: Slices, condition: Node, cut: Sequence[Node]) -> bool:
    """Whether a condition is computed of a cut alone."""
    try:
        _order(slices, (condition,), cut)
    except NotTried:
        return False
    return True


def _counted(domains: Domains, node: Node) -> CountedValue:
    domain = domains.of(node)
    beside = tuple(f"{word:#x}" for word in sorted(domain.beside))
    return CountedValue(domains.named(node), domains.nodes.widths[node], f"{domain.mask:#x}", beside)


def _written(nodes: Nodes, node: Node, names: dict[Node, str]) -> str:
    """An expression in words."""
    if node in names:
        return names[node]
    if (word := nodes.word(node)) is not None:
        return f"{word:#x}"
    shape = nodes.shapes[node]
    head = shape[1] if shape[0] in ("op", "low") else shape[0]
    return f"{head}({', '.join(_written(nodes, each, names) for each in nodes.arguments(node))})"


def _spelled(slices: Slices, ends: Sequence[Node], cut: Sequence[Node]) -> str:
    """Expressions over a cut as text, the same for all nodes that are made alike."""
    nodes, names = slices.nodes, dict[Node, str]()
    lines: list[str] = []

    def name(node: Node) -> str:
        if node not in names:
            shape = nodes.shapes[node]
            if node in cut:
                domain = slices.domains.of(node)
                text = f"any {nodes.widths[node]} {domain.mask:x} {sorted(domain.beside)}"
            else:
                parts = slices.parts(node)
                inner = [name(each) for each in parts]
                factors = shape[3:] if shape[0] == "sum" else ()
                head = shape if not parts else shape[: 3 if factors else 2]
                text = f"{head if not parts or factors or shape[0] in ('op', 'low', 'pair') else shape[0]}"
                text += f" {nodes.widths[node]} " + " ".join(inner)
                text += " " + " ".join(str(factor) for _, factor in factors)
            lines.append(text)
            names[node] = f"#{len(names)}"
        return names[node]

    # The order in which a cut is counted through does not matter.
    return ";".join([*(name(each) for each in ends), *lines])


def _cuts(slices: Slices, one: Node, other: Node) -> Iterator[tuple[Node, ...]]:
    """Sets of nodes that two nodes are computed of, those of few bits, from the top down, in two ways.

    The first takes apart the node that was made last, the second the one of the most bits.
    """
    common = _below(slices, one) & _below(slices, other)
    ways: tuple[Callable[[Node], tuple[int, int]], ...] = (
        lambda node: (0, node),
        lambda node: (slices.domains.of(node).bits, node),
    )
    nodes = slices.nodes
    top: set[Node] = set()
    waiting = [one, other]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in common:
            top.add(node)
        else:
            waiting += [each for each in slices.parts(node) if nodes.word(each) is None]
            if not slices.parts(node) and nodes.word(node) is None:
                return  # one of them depends on what the other does not
    for first in ways:
        held = set(top)
        for _ in range(_STEPS):
            if slices.size(held) <= MOST_BITS:
                yield tuple(sorted(held))
            inner = [each for each in held if slices.parts(each)]
            if not inner or len(held) > _NODES:
                break
            taken = max(inner, key=first)
            held.remove(taken)
            held |= {each for each in slices.parts(taken) if nodes.word(each) is None}


def _below(slices: Slices, node: Node) -> set[Node]:
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += slices.parts(each)
    return found


def _equal_over(
    slices: Slices, one: Node, other: Node, cut: tuple[Node, ...], where: Sequence[Node]
) -> tuple[bool, float]:
    """Whether two nodes have equal values over all values of a cut, and the share of these that was tried.

    Raises:
        NotTried: a part that is not computed here.
    """
    bits = slices.size(cut)
    level = 2 if 1 << bits >= _LONG else 0  # no pass: nothing is to be known but by a run
    made = Native(compiled(_module(slices, one, other, cut, where), level, briefly=True), level)
    differ = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(made.address("run"))
    warps = max((1 << bits) // LANES, 1)
    for done, start in enumerate(_starts(warps), start=1):
        if differ(start, min(start + _WARPS, warps)):
            return False, min(done * _WARPS / warps, 1.0)
    return True, 1.0


def _starts(warps: int) -> Iterator[int]:
    """Where chunks begin: a few all over the values first, which tell most that differ."""
    stride = max(warps // 16 // _WARPS, 1) * _WARPS
    yield from range(0, warps, stride)
    yield from (start for start in range(0, warps, _WARPS) if start % stride)


def _order(slices: Slices, ends: Sequence[Node], cut: Sequence[Node]) -> list[Node]:
    """The nodes between a cut and what is asked for, each behind those that it is computed of.

    Raises:
        NotTried: one is of neither the cut nor of others, or there are too many.
    """
    nodes, placed = slices.nodes, set(cut)
    found: set[Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node in found or node in placed:
            continue
        if (not slices.parts(node) and nodes.word(node) is None) or len(found) > _NODES:
            raise NotTried
        found.add(node)
        waiting += slices.parts(node)
    done: list[Node] = []
    # Arguments have smaller numbers, but for sums and choices that were made again, and for copies.
    left = sorted(found)
    while left:
        ready = [each for each in left if set(slices.parts(each)) <= placed]
        if not ready:
            raise NotTried
        done += ready
        placed |= set(ready)
        left = [each for each in left if each not in placed]
    return done


def _module(slices: Slices, one: Node, other: Node, cut: Sequence[Node], where: Sequence[Node]) -> str:
    """Code that tells of some warps of values of a cut whether two nodes differ on any for which conditions hold.

    Each node has a function of its own, which the compiler puts into no other one: so that both are computed, and it
    does not see before a run that they are equal.
    """
    module = ir.Module()
    computed = [_function(module, slices, f"node{place}", each, cut) for place, each in enumerate((one, other, *where))]
    function = ir.Function(module, ir.FunctionType(_WORD, [_WORD, _WORD]), "run")
    first, last = function.args
    entry, loop, done = (function.append_basic_block(name) for name in ("entry", "loop", "done"))
    build = ir.IRBuilder(entry)
    places = [build.alloca(vector(64)) for _ in computed]
    build.branch(loop)
    build.position_at_end(loop)
    number, found = build.phi(_WORD), build.phi(vector(1))
    number.add_incoming(first, entry)
    found.add_incoming(ir.Constant(vector(1), [False] * LANES), entry)
    for each, place in zip(computed, places, strict=True):
        build.call(each, [number, place])
    differs = build.icmp_unsigned("!=", build.load(places[0]), build.load(places[1]))
    for place in places[2:]:
        differs = build.and_(differs, build.trunc(build.load(place), vector(1)))
    grown, onward = build.or_(found, differs), build.add(number, _WORD(1))
    number.add_incoming(onward, loop)
    found.add_incoming(grown, loop)
    build.cbranch(build.icmp_signed("<", onward, last), loop, done)
    build.position_at_end(done)
    build.ret(build.zext(build.icmp_unsigned("!=", build.bitcast(grown, _INDEX), _INDEX(0)), _WORD))
    return str(module)


def _function(module: Any, slices: Slices, name: str, node: Node, cut: Sequence[Node]) -> Any:
    """A function that puts the values of a node, for a warp of values of a cut, where it is told; as 64 bits each."""
    nodes = slices.nodes
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD, vector(64).as_pointer()]), name)
    function.attributes.add("noinline")
    number, result = function.args
    build = ir.IRBuilder(function.append_basic_block("entry"))
    lanes = LaneBuilder(module, build, ir.Constant(vector(1), [True] * LANES))
    splat = build.insert_element(ir.Constant(vector(64), ir.Undefined), build.mul(number, _WORD(LANES)), _INDEX(0))
    mask = ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES)
    splat = build.shuffle_vector(splat, ir.Constant(vector(64), ir.Undefined), mask)
    numbers = build.add(splat, ir.Constant(vector(64), list(range(LANES))))
    values: dict[Node, Any] = {}
    taken = 0
    for each in cut:
        spread, taken = _chosen(build, lanes, numbers, slices.domains.of(each), taken)
        values[each] = _resized(lanes, spread, nodes.widths[each])
    for each in _order(slices, (node,), cut):
        values[each] = _value(slices, each, build, lanes, values)
    build.store(_resized(lanes, values[node], 64), result)
    build.ret_void()
    return function


def _chosen(build: Any, lanes: Any, numbers: Any, domain: PossibleWords, taken: int) -> tuple[Any, int]:
    """The words of a domain, by bits of numbers from one on; and the first bit that is left."""
    spread, _ = _spread(build, lanes, numbers, domain.mask, taken)
    if not domain.beside:
        return spread, taken + domain.bits
    words = sorted(domain.beside)
    place = build.and_(
        build.lshr(numbers, lanes.constant(taken, 64)), lanes.constant((1 << (len(words) - 1).bit_length()) - 1, 64)
    )
    found = lanes.constant(words[0], 64)
    for number, word in enumerate(words[1:], start=1):
        is_it = build.icmp_unsigned("==", place, lanes.constant(number, 64))
        found = build.select(is_it, lanes.constant(word, 64), found)
    end = taken + domain.bits
    last = build.and_(build.lshr(numbers, lanes.constant(end - 1, 64)), lanes.constant(1, 64))
    return build.select(build.icmp_unsigned("!=", last, lanes.constant(0, 64)), found, spread), end


def _spread(build: Any, lanes: Any, numbers: Any, mask: int, taken: int) -> tuple[Any, int]:
    """Bits of numbers, from one on, at the places of a mask; and the first bit that is left."""
    found = lanes.constant(0, 64)
    place = 0
    while mask >> place:
        length = 0
        while mask >> (place + length) & 1:
            length += 1
        if length:
            part = build.and_(build.lshr(numbers, lanes.constant(taken, 64)), lanes.constant((1 << length) - 1, 64))
            found = build.or_(found, build.shl(part, lanes.constant(place, 64)))
        taken, place = taken + length, place + max(length, 1)
    return found, taken


def _resized(lanes: Any, value: Any, bits: int) -> Any:
    made: Any = lanes.resize(value, bits)
    return made


def _value(slices: Slices, node: Node, build: Any, lanes: Any, values: dict[Node, Any]) -> Any:
    nodes = slices.nodes
    shape, bits = nodes.shapes[node], nodes.widths[node]
    kind = shape[0]
    given = [values[each] for each in slices.parts(node)]
    if kind == "atom" and len(given) == 1:
        return _resized(lanes, given[0], bits)
    if kind == "int":
        return ir.Constant(vector(1), [bool(shape[1])] * LANES) if bits == 1 else lanes.constant(shape[1], bits)
    if kind == "sum":
        found = lanes.constant(shape[2], bits)
        for value, (_, factor) in zip(given, shape[3:], strict=True):
            found = build.add(found, build.mul(_resized(lanes, value, bits), lanes.constant(factor, bits)))
        return found
    if kind == "sel":
        return build.select(given[0], given[1], given[2])
    if kind == "not":
        return build.not_(given[0])
    if kind == "pair":
        low, high = (_resized(lanes, each, bits) for each in given)
        return build.or_(low, build.shl(high, lanes.constant(bits // 2, bits)))
    if kind == "low":
        return _instruction(shape[1], [lanes.constant(0, 32), given[0]], lanes, bits)
    if kind == "op" and shape[1] == "and.pred":
        return functools.reduce(build.and_, given)
    if kind == "op" and (match := _HALF.fullmatch(shape[1])):
        whole = _resized(lanes, given[0], int(match[1]))
        return _resized(lanes, build.lshr(whole, lanes.constant(bits * int(match[2]), int(match[1]))), bits)
    if kind == "op" and " " not in shape[1]:
        return _instruction(shape[1], given, lanes, bits)
    raise NotTried


def _instruction(opcode: str, given: list[Any], lanes: Any, bits: int) -> Any:
    """What the code of an opcode makes of values.

    Raises:
        NotTried: there is none; or what the chip makes of it is a model of what it was seen to do, or the assembler may
            put it and another one together.
    """
    try:
        operation = isa.resolve(opcode, 1, len(given))
    except (isa.NoSuchInstruction, LookupError, ValueError) as error:
        raise NotTried from error
    lower = lowering(opcode, 1, len(given))
    if lower is None or operation.carry_in or operation.carry_out:
        raise NotTried
    if operation.exact_when is not None or operation.contractible:
        raise NotTried
    sources = [
        each if kind == "pred" else _resized(lanes, each, BITS[kind])
        for each, kind in zip(given, operation.sources, strict=True)
    ]
    (made,) = lower(lanes, sources)
    return made if operation.destinations[0] == "pred" else _resized(lanes, made, bits)
