"""`wgmma.mma_async` of a warpgroup as native code, from operands in memory onto accumulators in registers.

The arithmetic is that of `refmoe.reference.mma.native`, a step of K for each instruction of a chain. Warp w has rows
16 w .. 16 w + 15 of A and D, and of each 8 columns of D its lanes hold four registers as `mma.sync` has C: of register
4 j + i lane 4g + t holds row g + 8 (i / 2), column 8 j + 2t + i % 2.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from refmoe.native.compiler import Native
from refmoe.native.expressions import F64, I64, POINTER, Code, vector
from refmoe.ptx.native.mma import ACCUMULATORS, from_fragment, to_fragment
from refmoe.reference.mma.models import ELEMENT_FORMATS, as_model
from refmoe.reference.mma.native.blocks import Blocks
from refmoe.reference.mma.native.shape import COLUMNS, ROWS, Shape, shape_of

Array = Any
_WARPS = 4
_LINE = 64


class _Field(IntEnum):
    """The fields, 64 bits each, of what describes a chain."""

    A, B, STEPS, TILES, ADDS, REGISTERS, WARP_BYTES, PANEL = range(8)


@dataclass(frozen=True)
class WarpgroupMma:
    """Native code of the chains of one type with FP32 accumulators.

    Attributes:
        model: the name of the accumulation model.
        a_format: a key of ELEMENT_FORMATS.
        b_format: likewise.
        sparse: whether a step has twice the elements of K, of which half are zeros of A.
    """

    model: str
    a_format: str
    b_format: str
    sparse: bool = False

    def __call__(self, a: Array, b: Array, registers: Array, warp_bytes: int, adds: bool) -> None:
        """Add the products of a chain to D.

        Args:
            a: uint8 [64, K bytes], the rows of A, contiguous; K bytes are a multiple of those of a step, 32 or 64.
            b: uint8 [N, K bytes], the columns of B, contiguous.
            registers: int64 [N / 2], where each register of D lies for the first warp, uint32 [32 lanes].
            warp_bytes: from a warp's registers to the next warp's.
            adds: whether D is added; otherwise it is not read.
        """
        shape, run = _compiled(self)
        steps = a.shape[1] // (shape.span * shape.a.bytes)
        space = np.empty(steps * shape.step_bytes + _LINE, np.uint8)
        panel = -(-space.ctypes.data // _LINE) * _LINE
        tiles = b.shape[0] // COLUMNS
        fields = (a.ctypes.data, b.ctypes.data, steps, tiles, adds, registers.ctypes.data, warp_bytes, panel)
        table = np.array(fields, np.int64)
        run(table.ctypes.data)


@cache
def _compiled(form: WarpgroupMma) -> tuple[Shape, Any]:
    model = as_model(form.model)
    formats = ELEMENT_FORMATS[form.a_format], ELEMENT_FORMATS[form.b_format]
    block = model.pair(form.a_format, form.b_format).block * (2 if form.sparse else 1)
    shape = shape_of(model, block, *formats, scaled=False)
    native = Native.of(lambda: _module(shape), "wgmma", repr(shape), level=2)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(native.address("wgmma"))
    # The code lives as long as what is cached here.
    call.native = native  # type: ignore[attr-defined]
    return shape, call


def _module(shape: Shape) -> str:
    module = ir.Module()
    blocks = Blocks(module, shape)
    code = Code(module, "wgmma", [POINTER])
    (table,) = code.arguments
    fields = {each: code.load(I64, table + int(each) * 8, align=8) for each in _Field}
    a, b, registers, panel = (
        code.load(POINTER, table + int(each) * 8, align=8)
        for each in (_Field.A, _Field.B, _Field.REGISTERS, _Field.PANEL)
    )
    steps, adds = fields[_Field.STEPS], fields[_Field.ADDS].differs(0)
    row_bytes = steps * (shape.span * shape.a.bytes)
    last_row, last_column = code.constant(I64, ROWS - 1), code.constant(I64, COLUMNS - 1)
    nothing = code.constant(I64, 0)
    sums = code.space(ROWS * COLUMNS * 8)
    with code.range(_WARPS) as warp:
        rows = a + warp * ROWS * row_bytes
        # Scales are not looked at where a shape has none.
        code.call(blocks.pack, rows, row_bytes, last_row, steps, rows, nothing, panel)
        with code.range(fields[_Field.TILES]) as tile:
            held = [
                code.load(POINTER, registers + (tile * ACCUMULATORS + i) * 8, align=8)
                + warp * fields[_Field.WARP_BYTES]
                for i in range(ACCUMULATORS)
            ]
            with code.when(adds):
                from_fragment(code, held, sums)
            with code.when(adds ^ 1):
                for column in range(COLUMNS):
                    code.store(code.constant(vector(F64, ROWS), 0.0), sums + column * ROWS * 8, align=64)
            columns = b + tile * COLUMNS * row_bytes
            code.call(blocks.add, panel, steps, columns, row_bytes, last_column, columns, nothing, sums)
            to_fragment(code, sums, held)
    code.done()
    return str(module)
