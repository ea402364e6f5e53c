"""`ldmatrix`, `stmatrix` and `mma.sync` of one warp as native code.

`refmoe.ptx.engine.tensor.matrix` draws the fragments. With g = lane / 4 and t = lane % 4 a matrix of 8 x 8 cells of 16
bits is 8 rows of 4 words, and lane 8 j + r passes the address of row r of matrix j. Each word is an access of 4 bytes
by one lane:

    as stored     word t of row g                        by lane 4g + t, which keeps it
    transposed    word w of rows 2q and 2q + 1           by lane 8w + q, q < 4; then the cells are dealt out

so that an instruction is one or two plain accesses for each matrix, with the checks that those have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from refmoe.ptx.native.scalar import POINTER, WARP_MASK, WORD, at
from refmoe.ptx.ops.lanes import LANES, LaneBuilder, Value, vector

_ROWS = 8
_ALL = 0xFFFFFFFF
# Lanes 8w + q with q < 4, and lanes 4g + t with an even t.
_DEALERS, _EVEN = 0x0F0F0F0F, 0x55555555
_GROUP = [lane // 4 for lane in range(LANES)]
_IN_GROUP = [lane % 4 for lane in range(LANES)]

# (addresses of 64 bits, lanes that act, where the words lie) -> status
Try = Callable[[Value, int, Value], Value]


def numbers(values: Sequence[int], bits: int = 32) -> Value:
    """A different constant in each lane."""
    return ir.Constant(vector(bits), list(values))


def dealt(lanes: LaneBuilder, value: Value, source: Sequence[int]) -> Value:
    """The value of lane `source[l]` in each lane l."""
    return lanes.build.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), numbers(source))


def load_transposed(lanes: LaneBuilder, access: Try, address: Value, place: Value, count: int) -> Value:
    """`ldmatrix.trans`: registers to `place` [count, 32], and whether any access was refused."""
    build = lanes.build
    status: Value = ir.Constant(WARP_MASK, 0)
    for matrix in range(count):
        held, words = at(build, place, 4 * LANES * matrix), []
        for odd in (0, 1):
            rows = [_ROWS * matrix + 2 * (lane % 4) + odd for lane in range(LANES)]
            where = build.add(dealt(lanes, address, rows), numbers([4 * (lane // 8) for lane in range(LANES)], 64))
            status = build.or_(status, access(where, _DEALERS, held))
            words.append(build.load(held, typ=vector(32), align=32))
        build.store(_cells(lanes, *words), held, align=32)
    return status


def load_rows(lanes: LaneBuilder, access: Try, address: Value, place: Value, count: int, packed: bool) -> Value:
    """Words of rows to `place` [count, 32], as `unpack` takes them if they are packed; whether any was refused."""
    build = lanes.build
    status: Value = ir.Constant(WARP_MASK, 0)
    within, mask = ([4 * (t // 2) for t in _IN_GROUP], _EVEN) if packed else ([4 * t for t in _IN_GROUP], _ALL)
    for matrix in range(count):
        where = dealt(lanes, address, [_ROWS * matrix + group for group in _GROUP])
        where = build.add(where, numbers(within, 64))
        status = build.or_(status, access(where, mask, at(build, place, 4 * LANES * matrix)))
    return status


def unpack(lanes: LaneBuilder, place: Value, count: int) -> None:
    """Packed elements of 4 bits become bytes: lanes 4g and 4g + 2 have the words of a row in `place` [count, 32]."""
    build = lanes.build
    for matrix in range(count):
        held = at(build, place, 4 * LANES * matrix)
        word = dealt(lanes, build.load(held, typ=vector(32), align=32), [lane & ~1 for lane in range(LANES)])
        build.store(_nibbles(lanes, build.lshr(word, numbers([16 * (t % 2) for t in _IN_GROUP]))), held, align=32)


def store(
    lanes: LaneBuilder, access: Try, address: Value, place: Value, registers: Sequence[Value], transposed: bool
) -> Value:
    """`stmatrix` of 8 x 8 cells: whether any access was refused. `place` has room for one register."""
    build = lanes.build
    status: Value = ir.Constant(WARP_MASK, 0)
    for matrix, register in enumerate(registers):
        if not transposed:
            where = dealt(lanes, address, [_ROWS * matrix + group for group in _GROUP])
            build.store(register, place, align=32)
            status = build.or_(status, access(build.add(where, numbers([4 * t for t in _IN_GROUP], 64)), _ALL, place))
            continue
        for odd in (0, 1):
            # Lane 8w + q stores cells 2w and 2w + 1 of row 2q + odd, which lanes of groups 2w and 2w + 1 hold.
            low, high = (
                dealt(lanes, register, [4 * (2 * (lane // 8) + cell) + lane % 4 for lane in range(LANES)])
                for cell in (0, 1)
            )
            mask = lanes.constant(0xFFFF, 32)
            shift = lanes.constant(16 * odd, 32)
            low, high = (build.and_(build.lshr(each, shift), mask) for each in (low, high))
            build.store(build.or_(low, build.shl(high, lanes.constant(16, 32))), place, align=32)
            rows = [_ROWS * matrix + 2 * (lane % 4) + odd for lane in range(LANES)]
            where = build.add(dealt(lanes, address, rows), numbers([4 * (lane // 8) for lane in range(LANES)], 64))
            status = build.or_(status, access(where, _DEALERS, place))
    return status


def _cells(lanes: LaneBuilder, even: Value, odd: Value) -> Value:
    """Cell g of rows 2t and 2t + 1, from the words that lanes 8w + q hold of rows 2q and of rows 2q + 1."""
    build = lanes.build
    source = [lane // 4 // 2 * 8 + lane % 4 for lane in range(LANES)]
    shift = numbers([16 * (group % 2) for group in _GROUP])
    mask = lanes.constant(0xFFFF, 32)
    low, high = (build.and_(build.lshr(dealt(lanes, each, source), shift), mask) for each in (even, odd))
    return build.or_(low, build.shl(high, lanes.constant(16, 32)))


def _nibbles(lanes: LaneBuilder, value: Value) -> Value:
    """The four low elements of 4 bits, a byte each."""
    build = lanes.build
    result: Value = lanes.constant(0, 32)
    for number in range(4):
        element = build.and_(build.lshr(value, lanes.constant(4 * number, 32)), lanes.constant(15, 32))
        result = build.or_(result, build.shl(element, lanes.constant(8 * number, 32)))
    return result


def multiply_signature() -> Any:
    """The type of `WarpMma.address`."""
    return ir.FunctionType(
        ir.VoidType(),
        [POINTER, POINTER, POINTER, POINTER, WORD, POINTER, WORD, WORD, POINTER, WORD, WORD],
    )
