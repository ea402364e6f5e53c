"""One opcode over arrays, by its native code: what is held against the specification."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from llvmlite import ir

from refmoe.native.compiler import Native, compiled
from refmoe.ptx import isa
from refmoe.ptx.isa import DTYPES
from refmoe.ptx.ops.lanes import BITS, LANES, LaneBuilder, Lowering, vector
from refmoe.ptx.ops.table import lowering

Array = Any
_WORD = ir.IntType(64)
_POINTER = ir.PointerType()


def evaluate(opcode: str, *sources: Array, destinations: int = 1, constants: dict[int, int] | None = None) -> Any:
    """What the native code of an opcode makes of its sources.

    Args:
        opcode: the full spelling.
        sources: arrays [n] of the dtypes of `isa.resolve(opcode).sources`, and the carry where there is one; None for a
            source that `constants` gives.
        destinations: as in `isa.resolve`.
        constants: by number of the source, the bits that it has in every lane, known when the code is compiled.

    Returns:
        An array [n] for each destination; one array if there is only one.

    Raises:
        LookupError: the opcode has no native form.
        isa.NoSuchInstruction: there is no such opcode.
    """
    constants = constants or {}
    operation = isa.resolve(opcode, destinations, len(sources))
    lower = lowering(opcode, destinations, len(sources))
    if lower is None:
        raise LookupError(f"{opcode} has no native form")
    kinds = [*operation.sources, *(["pred"] if operation.carry_in else [])]
    results = [*operation.destinations, *(["pred"] if operation.carry_out else [])]
    outputs = run(lower, kinds, results, sources, constants)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def run(
    lower: Lowering,
    kinds: Sequence[str],
    results: Sequence[str],
    sources: Sequence[Array],
    constants: Mapping[int, int] = MappingProxyType({}),
) -> list[Array]:
    """What the code of a lowering makes of arrays.

    Args:
        lower: what is compiled.
        kinds: of its sources.
        results: the kinds of its destinations.
        sources: as in `evaluate`.
        constants: as in `evaluate`.

    Returns:
        An array [n] for each destination.
    """
    native = Native(compiled(_module(lower, kinds, results, constants)))
    given = [np.asarray(each, DTYPES[kind]) for each, kind in zip(sources, kinds, strict=True) if each is not None]
    count = max(each.size for each in given)
    warps = -(-count // LANES)
    held = [_padded(each, warps * LANES) for each in given]
    made = [_padded(np.zeros(0, DTYPES[kind]), warps * LANES) for kind in results]
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(native.address("run"))
    pointers = np.array([each.ctypes.data for each in (*held, *made)], np.uint64)
    call(pointers.ctypes.data, warps)
    return [each[:count] for each in made]


def _padded(array: Array, size: int) -> Array:
    """The array with zeros behind it, at an address that is a multiple of what a vector needs."""
    raw = np.zeros(size * array.dtype.itemsize + 256, np.uint8)
    start = -raw.ctypes.data % 256
    result = raw[start : start + size * array.dtype.itemsize].view(array.dtype)
    result[: array.size] = array
    return result


def _module(lower: Lowering, kinds: Sequence[str], results: Sequence[str], constants: Mapping[int, int]) -> str:
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_POINTER, _WORD]), "run")
    table, warps = function.args
    entry, loop, done = (function.append_basic_block(name) for name in ("entry", "loop", "done"))
    build = ir.IRBuilder(entry)
    build.cbranch(build.icmp_signed(">", warps, _WORD(0)), loop, done)
    build.position_at_end(loop)
    number = build.phi(_WORD)
    number.add_incoming(_WORD(0), entry)
    lanes = LaneBuilder(module, build, ir.Constant(vector(1), [True] * LANES))
    values, place = [], 0

    def pointer(position: int, kind: str) -> Any:
        base = build.load(build.gep(table, [_WORD(position)], source_etype=_POINTER), typ=_POINTER)
        size = max(BITS[kind] // 8, 1) * LANES
        return build.gep(base, [build.mul(number, _WORD(size))], source_etype=ir.IntType(8))

    for source, kind in enumerate(kinds):
        if source in constants:
            values.append(lanes.constant(constants[source], BITS[kind]))
            continue
        at = pointer(place, kind)
        place += 1
        if kind == "pred":
            held = build.load(at, typ=vector(8), align=32)
            values.append(build.icmp_unsigned("!=", held, lanes.constant(0, 8)))
        else:
            values.append(build.load(at, typ=vector(BITS[kind]), align=32))
    for value, kind in zip(lower(lanes, values), results, strict=True):
        at = pointer(place, kind)
        place += 1
        build.store(lanes.resize(value, 8) if kind == "pred" else value, at, align=32)
    following = build.add(number, _WORD(1))
    number.add_incoming(following, loop)
    build.cbranch(build.icmp_signed("<", following, warps), loop, done)
    build.position_at_end(done)
    build.ret_void()
    return str(module)
