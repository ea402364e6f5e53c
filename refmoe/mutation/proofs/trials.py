"""Two expressions tried on every value that their operands can have, where these are at most 2^32.

Expressions are cut where they have few bits of what they depend on: the sixteen of a BF16 number that was loaded, not
the thirty-two of FP32 that it became. What the bits below a cut stand for does not matter. Each opcode is computed by
the native code of the executor, which is held against its specification.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from refmoe.mutation.proofs.nodes import Node, Nodes
from refmoe.native.compiler import Native, compiled
from refmoe.ptx import isa
from refmoe.ptx.isa import DTYPES
from refmoe.ptx.ops import evaluate as native
from refmoe.ptx.ops.lanes import LANES
from refmoe.ptx.ops.table import lowering

Array = Any

#: Bits of a cut that are tried, and values that are tried at a time.
MOST_BITS = 32
_CHUNK = 1 << 18
#: Cuts of one pair that are tried, and steps by which a cut goes down.
_CUTS, _STEPS = 6, 160
_PLACES = re.compile(r"(\d+):(\d+)$")


class NotTried(Exception):
    """An expression has a part that is not computed here."""


def always_equal(nodes: Nodes, one: Node, other: Node) -> bool:
    """Whether two nodes have equal values, whatever the values of some cut below them are."""
    tried = 0
    for cut in _cuts(nodes, one, other):
        if tried == _CUTS:
            return False
        tried += 1
        try:
            if _equal_over(nodes, one, other, cut):
                return True
        except NotTried:
            return False
    return False


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
        return (unknown_bits(nodes, shape[3][0]) * factor) & full
    return full


def _size(nodes: Nodes, cut: Sequence[Node]) -> int:
    return sum(bin(unknown_bits(nodes, each)).count("1") for each in cut)


def _cuts(nodes: Nodes, one: Node, other: Node) -> Iterator[tuple[Node, ...]]:
    """Sets of nodes that two nodes are computed of, those of few bits, from the top down."""
    above = {one, other}
    common = _below(nodes, one) & _below(nodes, other)
    held: set[Node] = set()
    waiting = [each for each in above]
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
    masks = [unknown_bits(nodes, each) for each in cut]
    bits = [bin(mask).count("1") for mask in masks]
    total = 1 << sum(bits)
    order = _order(nodes, (one, other), cut)
    # A few values tell most that differ.
    for start in _starts(total):
        numbers = np.arange(start, min(start + _CHUNK, total), dtype=np.uint64)
        values: dict[Node, Array] = {}
        for node, mask, count in zip(cut, masks, bits, strict=True):
            values[node] = _spread(numbers, mask)
            numbers = numbers >> np.uint64(count)
        left, right = _computed(nodes, order, values, (one, other))
        if (left != right).any():
            return False
    return True


def _starts(total: int) -> Iterator[int]:
    stride = max(total // 16 // _CHUNK, 1) * _CHUNK
    yield from range(0, total, stride)
    yield from (start for start in range(0, total, _CHUNK) if start % stride)


def _spread(numbers: Array, mask: int) -> Array:
    """The low bits of numbers at the places of a mask."""
    found = np.zeros_like(numbers)
    place = taken = 0
    while mask >> place:
        if mask >> place & 1:
            # A run of bits at a time.
            length = 0
            while mask >> (place + length) & 1:
                length += 1
            part = numbers >> np.uint64(taken) & np.uint64((1 << length) - 1)
            found |= part << np.uint64(place)
            taken, place = taken + length, place + length
        else:
            place += 1
    return found


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


def _computed(nodes: Nodes, order: Sequence[Node], values: dict[Node, Array], ends: Sequence[Node]) -> list[Array]:
    count = next(iter(values.values())).size
    for node in order:
        shape, bits = nodes.shapes[node], nodes.widths[node]
        if shape[0] == "int":
            values[node] = np.full(count, shape[1], np.uint64)
            continue
        given = [values[each] for each in nodes.arguments(node)]
        values[node] = _value(shape, bits, given) & np.uint64((1 << bits) - 1)
    return [values[each] for each in ends]


def _value(shape: tuple[Any, ...], bits: int, given: list[Array]) -> Array:
    kind = shape[0]
    if kind == "sum":
        found = np.full(given[0].size, shape[2], np.uint64)
        for array, (_, factor) in zip(given, shape[3:], strict=True):
            found = found + array * np.uint64(factor)
        return found
    if kind == "sel":
        return np.where(given[0] != 0, given[1], given[2])
    if kind == "not":
        return np.uint64(1) - given[0]
    if kind == "pair":
        return given[1] << np.uint64(bits // 2) | given[0]
    if kind == "low":
        return _instruction(shape[1], [np.zeros_like(given[0]), given[0]])
    if kind == "op" and shape[1] == "and.pred":
        return functools.reduce(np.bitwise_and, given)
    if kind == "op" and " " not in shape[1]:
        return _instruction(shape[1], given)
    raise NotTried


def _instruction(opcode: str, given: list[Array]) -> Array:
    """What an opcode makes of words."""
    call, kinds, result = _native(opcode, len(given))
    sources = [_as(array, kind) for array, kind in zip(given, kinds, strict=True)]
    count = sources[0].size
    made = np.zeros(count + LANES, DTYPES[result])
    held = [native._padded(each, -(-count // LANES) * LANES) for each in sources]
    made = native._padded(made, made.size)
    pointers = np.array([each.ctypes.data for each in (*held, made)], np.uint64)
    call(pointers.ctypes.data, -(-count // LANES))
    found = made[:count]
    return found.astype(np.uint64) if result == "pred" else found.view(f"u{found.itemsize}").astype(np.uint64)


def _as(array: Array, kind: str) -> Array:
    dtype = np.dtype(DTYPES[kind])
    return array.astype(bool) if kind == "pred" else array.astype(f"u{dtype.itemsize}").view(dtype)


@functools.cache
def _native(opcode: str, count: int) -> tuple[Any, tuple[str, ...], str]:
    """The compiled code of an opcode, the kinds of its sources and of its result.

    Raises:
        NotTried: there is none.
    """
    try:
        operation = isa.resolve(opcode, 1, count)
    except (isa.NoSuchInstruction, KeyError, ValueError) as error:
        raise NotTried from error
    lower = lowering(opcode, 1, count)
    if lower is None or operation.carry_in or operation.carry_out:
        raise NotTried
    kinds, results = tuple(operation.sources), list(operation.destinations)
    made = Native(compiled(native._module(lower, kinds, results, {})))
    _KEPT.append(made)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(made.address("run")), kinds, results[0]


#: Compiled code lives as long as somebody holds it.
_KEPT: list[Native] = []
