"""`mma.sync` of one warp as native code, from registers to registers.

The arithmetic is that of `refmoe.reference.mma.native`, one step of K. What is here moves fragments: `refmoe.ptx.tensor`
draws them. Four neighbouring lanes hold sixteen bytes of a row that lie side by side along K, so that of register i

    A  lanes 4g .. 4g+3 are bytes 16 (i / 2) .. of row g + 8 (i % 2)
    B  lanes 4g .. 4g+3 are bytes 16 i .. of column g

and a fragment becomes a matrix by copying vectors of sixteen bytes.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from refmoe.formats import Specials
from refmoe.native.compiler import Native
from refmoe.native.expressions import F32, F64, I8, I32, I64, POINTER, Code, Value, vector
from refmoe.reference.mma.models import ELEMENT_FORMATS, as_model
from refmoe.reference.mma.native.blocks import COLUMNS, ROWS, Blocks, Shape, canonical, shape_of

Array = Any
_LANES, _QUADS, _QUAD = 32, 8, 4
_REGISTER = 4 * _LANES
_PIECE = 4 * _QUAD  # bytes that four lanes hold
_ACCUMULATORS = 4

_SIGNATURE = [POINTER, POINTER, POINTER, POINTER, I64, POINTER, I64, I64, POINTER, I64, I64]


@dataclass(frozen=True)
class WarpMma:
    """Native code of one `mma` spelling with FP32 accumulators.

    Attributes:
        model: the name of the accumulation model.
        a_format: a key of ELEMENT_FORMATS.
        b_format: likewise.
        scales: block scales of a row, 0 for none.
        packed: whether a byte holds two elements of 4 bits; a byte that holds one has it in bits 2 to 5.
    """

    model: str
    a_format: str
    b_format: str
    scales: int = 0
    packed: bool = False

    @property
    def address(self) -> int:
        """Of a function of the C calling convention, which any number of threads may call.

        `void mma(a, b, c, d, stride, a_scales, a_byte, a_thread, b_scales, b_byte, b_thread)`: the first four point to
        the registers of a warp, uint32 [registers, 32 lanes], a register `stride` bytes (int64) behind the one before;
        `a_scales` and `b_scales` to one such register, and the bytes and threads are int64 selectors in their ranges.
        Without scales the last six are not looked at. D may lie where C does. The code lives as long as the process.
        """
        return _compiled(self)[0].address("mma")

    def __call__(
        self,
        a: Array,
        b: Array,
        c: Array,
        a_scales: tuple[Array, Array, Array] | None = None,
        b_scales: tuple[Array, Array, Array] | None = None,
    ) -> Array:
        """D of many warps.

        Args:
            a: registers uint32 [n, warps, 32] of A.
            b: of B.
            c: of C, [4, warps, 32].
            a_scales: a register uint32 [warps, 32], and of each warp the byte and the thread, int64 [warps].
            b_scales: likewise.

        Returns:
            uint32 [4, warps, 32].
        """
        a, b, c = (np.ascontiguousarray(each, np.uint32) for each in (a, b, c))
        warps = c.shape[1]
        d = np.empty_like(c)
        held = [a, b, c, d]
        pointers = [each.ctypes.data for each in held]
        for scales in (a_scales, b_scales):
            if self.scales:
                assert scales is not None
                arrays = [
                    np.ascontiguousarray(part, dtype)
                    for part, dtype in zip(scales, (np.uint32, np.int64, np.int64), strict=True)
                ]
                held += arrays
                pointers += [each.ctypes.data for each in arrays]
            else:
                pointers += [0, 0, 0]
        table = np.array([*pointers, warps], np.int64)
        _compiled(self)[1](table.ctypes.data)
        return d

    def shape(self) -> Shape:
        """Of the step that an instruction is."""
        model = as_model(self.model)
        shifts = [
            # E2M1 is the one format that fills no byte.
            2 if ELEMENT_FORMATS[name].specials is Specials.NONE and not self.packed else 0
            for name in (self.a_format, self.b_format)
        ]
        return shape_of(
            model,
            model.pair(self.a_format, self.b_format).block,
            ELEMENT_FORMATS[self.a_format],
            ELEMENT_FORMATS[self.b_format],
            scaled=bool(self.scales),
            a_shift=shifts[0],
            b_shift=shifts[1],
        )


@cache
def _compiled(form: WarpMma) -> tuple[Native, Any]:
    native = Native.of(lambda: _module(form), "mma", repr(form), level=2)
    return native, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(native.address("mma_warps"))


def _module(form: WarpMma) -> str:
    module = ir.Module()
    shape = form.shape()
    blocks = Blocks(module, shape)
    _warps(module, form, _warp(module, form, shape, blocks))
    return str(module)


def _warp(module: Any, form: WarpMma, shape: Shape, blocks: Blocks) -> Any:
    code = Code(module, "mma", _SIGNATURE)
    a, b, c, d, stride, a_scales, a_byte, a_thread, b_scales, b_byte, b_thread = code.arguments
    # Bytes of a row: in registers, and one element a byte.
    spread = 2 if form.packed else 1
    row_bytes = shape.span * shape.a.bytes
    pieces = row_bytes // spread // _PIECE
    rows, columns = code.space(ROWS * row_bytes), code.space(COLUMNS * row_bytes)
    for piece in range(pieces):
        for quad in range(_QUADS):
            for half in range(2):
                register = a + stride * (2 * piece + half)
                place = rows + ((quad + half * _QUADS) * row_bytes + piece * spread * _PIECE)
                _copy(code, register + quad * _PIECE, place, packed=form.packed)
            place = columns + (quad * row_bytes + piece * spread * _PIECE)
            _copy(code, b + stride * piece + quad * _PIECE, place, packed=form.packed)
    sums = code.space(ROWS * COLUMNS * 8)
    _from_fragment(code, c, stride, sums)
    panel = code.space(shape.step_bytes)
    row_scales, column_scales, one = a_scales, b_scales, code.constant(I64, 1)
    if form.scales:
        row_scales = code.space(ROWS * form.scales)
        first = a_scales + (a_thread * (2 * 4) + a_byte)
        for row in range(ROWS):
            for scale in range(form.scales):
                byte = code.load(I8, first + (row % _QUADS * _PIECE + row // _QUADS * 4 + scale))
                code.store(byte, row_scales + (row * form.scales + scale))
        column_scales = b_scales + (b_thread * 4 + b_byte)
    length = code.constant(I64, row_bytes)
    code.call(
        blocks.pack, rows, length, code.constant(I64, ROWS - 1), one, row_scales, code.constant(I64, form.scales), panel
    )
    code.call(
        blocks.add, panel, one, columns, length, code.constant(I64, COLUMNS - 1), column_scales,
        code.constant(I64, _PIECE), sums,
    )  # fmt: skip
    _to_fragment(code, sums, d, stride)
    code.done()
    return code.function


def _copy(code: Code, source: Value, place: Value, *, packed: bool) -> None:
    """Sixteen bytes; packed ones become thirty-two, the low half of each first."""
    held = code.load(vector(I8, _PIECE), source)
    if packed:
        order = [lane for pair in zip(range(_PIECE), range(_PIECE, 2 * _PIECE), strict=True) for lane in pair]
        held = code.shuffle(held & 15, held >> 4, order)
    code.store(held, place)


def _from_fragment(code: Code, c: Value, stride: Value, sums: Value) -> None:
    """Registers of C to sums [8, 16]: register i of lane 4g + t is row g + 8 (i / 2), column 2t + i % 2."""
    for i in range(_ACCUMULATORS):
        held = code.load(vector(F32, _LANES), c + stride * i)
        for t in range(_QUAD):
            rows = code.shuffle(held, held, list(range(t, _LANES, _QUAD))).to(vector(F64, _QUADS))
            code.store(rows, sums + ((2 * t + i % 2) * ROWS + i // 2 * _QUADS) * 8, align=64)


def _to_fragment(code: Code, sums: Value, d: Value, stride: Value) -> None:
    """The reverse of `_from_fragment`, with one NaN."""
    for i in range(_ACCUMULATORS):
        quads = [
            code.load(vector(F64, _QUADS), sums + ((2 * t + i % 2) * ROWS + i // 2 * _QUADS) * 8, align=64)
            for t in range(_QUAD)
        ]
        bits = [canonical(code, quad) for quad in quads]
        pairs = [code.shuffle(x, y, list(range(2 * _QUADS))) for x, y in (bits[:2], bits[2:])]
        lanes = [t * _QUADS + g for g in range(_QUADS) for t in range(_QUAD)]
        code.store(code.shuffle(*pairs, lanes), d + stride * i)


def _warps(module: Any, form: WarpMma, function: Any) -> None:
    """`mma_warps(table)`: the first arguments of each, A to B's threads, as for warp 0, and the number of warps."""
    code = Code(module, "mma_warps", [POINTER])
    (table,) = code.arguments
    pointers = [code.load(POINTER, table + 8 * i, align=8) for i in range(10)]
    warps = code.load(I64, table + 80, align=8)
    stride = warps * _REGISTER
    with code.range(warps) as warp:
        a, b, c, d, a_scales, a_byte, a_thread, b_scales, b_byte, b_thread = pointers
        fragments = [each + warp * _REGISTER for each in (a, b, c, d)]
        scales = []
        for word, byte, thread in ((a_scales, a_byte, a_thread), (b_scales, b_byte, b_thread)):
            if form.scales:
                selectors = [code.load(I64, each + warp * 8, align=8) for each in (byte, thread)]
                scales += [word + warp * _REGISTER, *selectors]
            else:
                scales += [word, code.constant(I64, 0), code.constant(I64, 0)]
        code.call(function, *fragments, stride, *scales)
    code.done()
