"""Two expressions tried on every value that their operands can have, where these are at most 2^34.

Expressions are cut where they have few bits of what they depend on: the sixteen of a BF16 number that was loaded, not
the thirty-two of FP32 that it became. What the bits below a cut stand for does not matter. Each opcode is computed by
the native code of the executor, which is held against its specification.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import ir

from refmoe.mutation.proofs.nodes import Node, Nodes
from refmoe.native.compiler import Native, compiled
from refmoe.ptx import isa
from refmoe.ptx.ops.lanes import BITS, LANES, LaneBuilder, vector
from refmoe.ptx.ops.table import lowering

_WORD, _INDEX = ir.IntType(64), ir.IntType(32)

#: Bits of a cut that are tried, and warps of values that are tried at a time.
MOST_BITS = 34
_WARPS = 1 << 15
#: Cuts of one pair that are tried, and steps by which a cut goes down.
_CUTS, _STEPS = 6, 160


class NotTried(Exception):
    """An expression has a part that is not computed here."""


#: Outcomes by what was tried: entries of one source have the same expressions.
_OUTCOMES: dict[str, bool] = {}


def always_equal(nodes: Nodes, one: Node, other: Node) -> bool:
    """Whether two nodes have equal values, whatever the values of some cut below them are."""
    for cut in sorted(_cuts(nodes, one, other), key=functools.partial(_size, nodes))[:_CUTS]:
        key = _spelled(nodes, (one, other), cut)
        if key not in _OUTCOMES:
            try:
                _OUTCOMES[key] = _equal_over(nodes, one, other, cut)
            except NotTried:
                _OUTCOMES[key] = False
        if _OUTCOMES[key]:
            return True
    return False


def _spelled(nodes: Nodes, ends: Sequence[Node], cut: Sequence[Node]) -> str:
    """Two expressions over a cut as text, the same for all nodes that are made alike."""
    names: dict[Node, str] = {}
    lines: list[str] = []

    def name(node: Node) -> str:
        if node not in names:
            if node in cut:
                text = f"any {nodes.widths[node]} {unknown_bits(nodes, node):x}"
            else:
                inner = {each: name(each) for each in nodes.arguments(node)}
                parts = nodes.arguments(node)
                factors = nodes.shapes[node][3:] if nodes.shapes[node][0] == "sum" else ()
                head = nodes.shapes[node] if not parts else nodes.shapes[node][: 3 if factors else 2]
                text = f"{head if not parts or factors or nodes.shapes[node][0] in ('op', 'low', 'pair') else head[0]}"
                text += f" {nodes.widths[node]} " + " ".join(inner[each] for each in parts)
                text += " " + " ".join(str(factor) for _, factor in factors)
            lines.append(text)
            names[node] = f"#{len(names)}"
        return names[node]

    return ";".join([*(name(each) for each in ends), *lines])


def unknown_bits(nodes: Nodes, node: Node) -> int:
    """A mask of the bits that a node's value may have at 1 or at 0; other bits are 0."""
    shape, bits = nodes.shapes[node], nodes.widths[node]
    full = (1 << bits) - 1
    if shape[0] == "op":
        opcode, *sources = shape[1:]
        words = [nodes.word(each) for each in sources]
        parts = opcode.split(".")
        if parts[0] == "and" and len(sources) == 2:
            for mine, word in ((0, words[1]), (1, words[0])):
                if word is not None:
                    return unknown_bits(nodes, sources[mine]) & word & full
        if parts[0] == "shr" and parts[-1][0] == "u" and words[1] is not None:
            return (unknown_bits(nodes, sources[0]) & ((1 << int(parts[-1][1:])) - 1)) >> words[1]
        if parts[0] == "cvt" and len(parts) == 3 and parts[1][0] == parts[2][0] == "u":
            return unknown_bits(nodes, sources[0]) & ((1 << int(parts[2][1:])) - 1) & full
    if shape[0] == "sum" and shape[2] == 0 and len(shape) == 4 and (factor := shape[3][1]) & (factor - 1) == 0:
        return (unknown_bits(nodes, shape[3][0]) * int(factor)) & full
    return full


def _size(nodes: Nodes, cut: Sequence[Node]) -> int:
    return sum(bin(unknown_bits(nodes, each)).count("1") for each in cut)


def _cuts(nodes: Nodes, one: Node, other: Node) -> Iterator[tuple[Node, ...]]:
    """Sets of nodes that two nodes are computed of, those of few bits, from the top down."""
    above = {one, other}
    common = _below(nodes, one) & _below(nodes, other)
    held: set[Node] = set()
    waiting = list(above)
    while waiting:
        node = waiting.pop()
        if node in common:
            held.add(node)
        else:
            waiting += [each for each in nodes.arguments(node) if nodes.word(each) is None]
            if not nodes.arguments(node) and nodes.word(node) is None:
                return  # one of them depends on what the other does not
    seen: set[tuple[Node, ...]] = set()
    for _ in range(_STEPS):
        cut = tuple(sorted(held))
        if _size(nodes, cut) <= MOST_BITS and cut not in seen:
            seen.add(cut)
            yield cut
        inner = [each for each in held if nodes.arguments(each)]
        if not inner:
            return
        top = max(inner)
        held.remove(top)
        held |= {each for each in nodes.arguments(top) if nodes.word(each) is None}


def _below(nodes: Nodes, node: Node) -> set[Node]:
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += nodes.arguments(each)
    return found


def _equal_over(nodes: Nodes, one: Node, other: Node, cut: tuple[Node, ...]) -> bool:
    """Whether two nodes have equal values over all values of a cut.

    Raises:
        NotTried: a part that is not computed here.
    """
    bits = sum(bin(unknown_bits(nodes, each)).count("1") for each in cut)
    made = Native(compiled(_module(nodes, one, other, cut)))
    differ = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(made.address("run"))
    warps = max((1 << bits) // LANES, 1)
    return not any(differ(start, min(start + _WARPS, warps)) for start in _starts(warps))


def _starts(warps: int) -> Iterator[int]:
    """Where chunks begin: a few all over the values first, which tell most that differ."""
    stride = max(warps // 16 // _WARPS, 1) * _WARPS
    yield from range(0, warps, stride)
    yield from (start for start in range(0, warps, _WARPS) if start % stride)


def _order(nodes: Nodes, ends: Sequence[Node], cut: Sequence[Node]) -> list[Node]:
    """The nodes between a cut and what is asked for, each behind those that it is computed of."""
    found: set[Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node in found or node in cut:
            continue
        if not nodes.arguments(node) and nodes.word(node) is None:
            raise NotTried
        found.add(node)
        waiting += nodes.arguments(node)
    done: list[Node] = []
    placed = set(cut)
    # Arguments have smaller numbers, but for sums and choices that were made again.
    left = sorted(found)
    while left:
        ready = [each for each in left if set(nodes.arguments(each)) <= placed]
        if not ready:
            raise NotTried
        done += ready
        placed |= set(ready)
        left = [each for each in left if each not in placed]
    return done


def _module(nodes: Nodes, one: Node, other: Node, cut: Sequence[Node]) -> str:
    """Code that tells of some warps of values of a cut whether two nodes differ on any."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(_WORD, [_WORD, _WORD]), "run")
    first, last = function.args
    entry, loop, done = (function.append_basic_block(name) for name in ("entry", "loop", "done"))
    build = ir.IRBuilder(entry)
    build.branch(loop)
    build.position_at_end(loop)
    number, found = build.phi(_WORD), build.phi(vector(1))
    lanes = LaneBuilder(module, build, ir.Constant(vector(1), [True] * LANES))
    number.add_incoming(first, entry)
    found.add_incoming(ir.Constant(vector(1), [False] * LANES), entry)
    splat = build.insert_element(ir.Constant(vector(64), ir.Undefined), build.mul(number, _WORD(LANES)), _INDEX(0))
    mask = ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES)
    splat = build.shuffle_vector(splat, ir.Constant(vector(64), ir.Undefined), mask)
    numbers = build.add(splat, ir.Constant(vector(64), list(range(LANES))))

    values: dict[Node, Any] = {}
    taken = 0
    for node in cut:
        spread, taken = _spread(build, lanes, numbers, unknown_bits(nodes, node), taken)
        values[node] = _resized(lanes, spread, nodes.widths[node])
    for node in _order(nodes, (one, other), cut):
        values[node] = _value(nodes, node, build, lanes, values)
    differs = build.icmp_unsigned("!=", values[one], values[other])
    grown, onward = build.or_(found, differs), build.add(number, _WORD(1))
    # A lowering may have made blocks of its own.
    number.add_incoming(onward, build.block)
    found.add_incoming(grown, build.block)
    build.cbranch(build.icmp_signed("<", onward, last), loop, done)
    build.position_at_end(done)
    build.ret(build.zext(build.icmp_unsigned("!=", build.bitcast(grown, _INDEX), _INDEX(0)), _WORD))
    return str(module)


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


def _value(nodes: Nodes, node: Node, build: Any, lanes: Any, values: dict[Node, Any]) -> Any:
    shape, bits = nodes.shapes[node], nodes.widths[node]
    kind = shape[0]
    given = [values[each] for each in nodes.arguments(node)]
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
    if kind == "op" and " " not in shape[1]:
        return _instruction(shape[1], given, lanes, bits)
    raise NotTried


def _instruction(opcode: str, given: list[Any], lanes: Any, bits: int) -> Any:
    """What the code of an opcode makes of values.

    Raises:
        NotTried: there is none; what the chip makes of it is a model of what it was seen to do; or the assembler may
            make one instruction of it and of another.
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
