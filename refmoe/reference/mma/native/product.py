"""Products of whole matrices through native blocks.

A unit of work is 16 rows of one product and some of its columns: the rows are decoded once, to a panel, and then 8
columns at a time run through all of K. Units are independent, and threads share them out: native code runs without the
interpreter lock.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from refmoe.native.compiler import Native
from refmoe.native.expressions import F32, F64, I64, POINTER, Code, Value, vector
from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.mma.models import AccumulationModel
from refmoe.reference.mma.native.blocks import Blocks
from refmoe.reference.mma.native.rounding import canonical
from refmoe.reference.mma.native.shape import COLUMNS, ROWS, Shape, shape_of
from refmoe.reference.mma.operands import Operand

# So many columns a unit that decoding its rows again costs a few percent, and that threads have several units each.
_COLUMNS_A_UNIT = 512
# Work that is worth a thread of its own, in multiplications.
_MULTIPLICATIONS_A_PIECE = 1 << 22
_LINE = 64


class _Field(IntEnum):
    """The fields, 64 bits each, of what describes a product; strides are bytes."""

    A, A_ROW, A_PRODUCT, A_SCALES, A_SCALES_ROW, A_SCALES_PRODUCT = range(6)
    B, B_ROW, B_PRODUCT, B_SCALES, B_SCALES_ROW, B_SCALES_PRODUCT = range(6, 12)
    C, D, ROWS, COLUMNS, STEPS, ROW_UNITS, COLUMN_UNITS, COLUMNS_A_UNIT = range(12, 20)


def native_chain(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float32]:
    """The chains of P products [M, K] x [N, K] onto c [P, M, N] under a model of any kind but EXACT.

    Args:
        a: the rows, P products of them; of an FMA model K is a multiple of 16.
        b: the columns.
        c: the accumulators.
        model: the accumulation model.
        block: the products of a block, as the model has them for the operands' formats.

    Returns:
        float32 [P, M, N]; NaN is 0x7FFFFFFF.
    """
    scaled = a.scales is not None or b.scales is not None
    shape = shape_of(model, block, a.format, b.format, scaled=scaled)
    _, run = _native(shape)
    products, m, k = a.codes.shape
    n = b.codes.shape[1]
    d = np.empty(c.shape, np.float32)
    if not d.size:
        return d
    c = np.ascontiguousarray(c)
    held = []
    fields = np.zeros(len(_Field), np.int64)
    for operand, first in ((a, _Field.A), (b, _Field.B)):
        codes = np.ascontiguousarray(operand.codes)
        held.append(codes)
        fields[first : first + 3] = codes.ctypes.data, codes.strides[1], codes.strides[0]
        if scaled:
            scales = _scales(operand, shape)
            held.append(scales)
            fields[first + 3 : first + 6] = scales.ctypes.data, scales.strides[1], scales.strides[0]
    rows, columns = -(-m // ROWS), -(-n // _COLUMNS_A_UNIT)
    fields[_Field.C :] = c.ctypes.data, d.ctypes.data, m, n, k // shape.span, rows, columns, _COLUMNS_A_UNIT
    units = products * rows * columns
    size = k // shape.span * shape.step_bytes + _LINE

    def some(first: int, last: int) -> None:
        space = np.empty(size, np.uint8)
        panel = -(-space.ctypes.data // _LINE) * _LINE
        run(fields.ctypes.data, first, last, panel)

    for_each_chunk(some, units, max(1, _MULTIPLICATIONS_A_PIECE // (ROWS * min(n, _COLUMNS_A_UNIT) * k)))
    return d


def _scales(operand: Operand, shape: Shape) -> NDArray[np.uint8]:
    """The scales [P, R, K/block] of an operand, 2^0 where it has none."""
    products, rows, k = operand.codes.shape
    if operand.scales is None:
        return np.full((products, rows, k // shape.span * shape.stored_scales), shape.scale_format.bias, np.uint8)
    return np.ascontiguousarray(operand.scales)


@cache
def _native(shape: Shape) -> tuple[Native, Any]:
    native = Native.of(lambda: _module(shape), "product", repr(shape), level=2)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    # The code lives as long as what is cached here.
    return native, kind(native.address("run"))


def _module(shape: Shape) -> str:
    module = ir.Module()
    blocks = Blocks(module, shape)
    code = Code(module, "run", [POINTER, I64, I64, POINTER])
    table, first, last, panel = code.arguments

    def field(which: _Field, kind: Any = I64) -> Value:
        return code.load(kind, table + int(which) * 8, align=8)

    sums = code.space(ROWS * COLUMNS * 8)
    rows, columns, steps = (field(which) for which in (_Field.ROWS, _Field.COLUMNS, _Field.STEPS))
    row_units, column_units = field(_Field.ROW_UNITS), field(_Field.COLUMN_UNITS)
    with code.range(last - first) as number:
        unit = number + first
        row_unit = unit.quotient(column_units)
        column = (unit - row_unit * column_units) * field(_Field.COLUMNS_A_UNIT)
        product = row_unit.quotient(row_units)
        row = (row_unit - product * row_units) * ROWS

        def rows_of(operand: _Field, at: Value, product: Value = product) -> tuple[Value, Value]:
            stride = field(_Field(operand + 1))
            return field(operand, POINTER) + (product * field(_Field(operand + 2)) + at * stride), stride

        a, a_stride = rows_of(_Field.A, row)
        a_scales, a_scale_stride = rows_of(_Field.A_SCALES, row)
        code.call(blocks.pack, a, a_stride, rows - row - 1, steps, a_scales, a_scale_stride, panel)
        here = code.min(columns - column, field(_Field.COLUMNS_A_UNIT))
        with code.range((here + (COLUMNS - 1)).quotient(code.constant(I64, COLUMNS))) as tile:
            at = column + tile * COLUMNS
            outputs = (product * rows + row) * columns + at
            width, height = code.min(columns - at, COLUMNS), code.min(rows - row, ROWS)
            _load_sums(code, field(_Field.C, POINTER) + outputs * 4, columns, height, width, sums)
            b, b_stride = rows_of(_Field.B, at)
            b_scales, b_scale_stride = rows_of(_Field.B_SCALES, at)
            code.call(blocks.add, panel, steps, b, b_stride, width - 1, b_scales, b_scale_stride, sums)
            _store_sums(code, field(_Field.D, POINTER) + outputs * 4, columns, height, width, sums)
    code.done()
    return str(module)


def _load_sums(code: Code, c: Value, stride: Value, height: Value, width: Value, sums: Value) -> None:
    """C [height, width] of rows `stride` apart to sums [8, 16]; what lies outside is 0."""
    for place in range(0, ROWS * COLUMNS, ROWS):
        with code.range(ROWS) as row:
            code.store(code.constant(F64, 0.0), sums + (row + place) * 8)
    with code.range(height) as row, code.range(width) as column:
        value = code.load(F32, c + (row * stride + column) * 4)
        code.store(value.to(F64), sums + (column * ROWS + row) * 8)


def _store_sums(code: Code, d: Value, stride: Value, height: Value, width: Value, sums: Value) -> None:
    with code.range(height) as row, code.range(width) as column:
        value = code.load(vector(F64, 1), sums + (column * ROWS + row) * 8)
        code.store(canonical(code, value), d + (row * stride + column) * 4)
