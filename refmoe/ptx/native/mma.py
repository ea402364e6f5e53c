"""`mma.sync` of one warp as native code, from registers to registers.

The arithmetic is that of `refmoe.reference.mma.native`, one step of K. What is here moves fragments, which
`refmoe.ptx.engine.tensor.mma` draws. Four neighbouring lanes hold sixteen bytes of a row that lie side by side along K,
so that of register i

    A  lanes 4g .. 4g+3 are bytes 16 (i / 2) .. of row g + 8 (i % 2)
    B  lanes 4g .. 4g+3 are bytes 16 i .. of column g

and a fragment becomes a matrix by copying vectors of sixteen bytes.

Where a tile is larger than its problem, most instructions multiply zeros: D is then C, and nothing is taken apart.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from refmoe.formats import E8M0, FP32, Format, Specials
from refmoe.native.compiler import Native
from refmoe.native.expressions import F32, F64, I1, I8, I32, I64, POINTER, Code, Value, vector
from refmoe.reference.mma.models import ELEMENT_FORMATS, as_model
from refmoe.reference.mma.native.blocks import Blocks
from refmoe.reference.mma.native.decode import Element
from refmoe.reference.mma.native.rounding import canonical
from refmoe.reference.mma.native.shape import COLUMNS, ROWS, Shape, shape_of

Array = Any
_LANES, _QUADS, _QUAD = 32, 8, 4
_REGISTER = 4 * _LANES
_PIECE = 4 * _QUAD  # bytes that four lanes hold
ACCUMULATORS = 4
_REGISTERS = vector(I32, _LANES)

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
    native = Native.of(lambda: _module(form), "mma", repr(form), level=2, briefly=True)
    return native, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(native.address("mma_warps"))


def _module(form: WarpMma) -> str:
    module = ir.Module()
    shape = form.shape()
    blocks = Blocks(module, shape)
    _warps(module, form, _warp(module, form, shape, blocks))
    return str(module)


def _warp(module: Any, form: WarpMma, shape: Shape, blocks: Blocks) -> Any:
    code = Code(module, "mma", _SIGNATURE)
    a, b, c, d, stride, a_scales, _, _, b_scales, _, _ = code.arguments
    keeps_c = min(shape.rule.align_bits, shape.rule.result_bits) >= FP32.mantissa_bits
    if not keeps_c:
        _multiply(code, form, shape, blocks)
        code.done()
        return code.function
    operands = []
    for registers, element, count in ((a, shape.a, 2 * _pieces(form, shape)), (b, shape.b, _pieces(form, shape))):
        held = [code.load(_REGISTERS, registers + stride * i) for i in range(count)]
        operands.append(_Fragment(held, element, form.packed))
    idle = operands[0].only_zeros(code) | operands[1].only_zeros(code)
    busy = code.variable(I1, idle ^ 1)
    with code.when(idle):
        # No zero makes a number of what is none.
        lost = operands[0].special(code) | operands[1].special(code)
        for word in (a_scales, b_scales) if form.scales else ():
            lost = lost | _nan_scale(code, code.load(_REGISTERS, word), shape.scale_format)
        busy.set(lost)
        with code.when(lost ^ 1):
            for i in range(ACCUMULATORS):
                value = code.load(vector(F32, _LANES), c + stride * i).to(vector(F64, _LANES))
                # A zero is +0 in D.
                code.store(canonical(code, value + 0.0), d + stride * i)
    with code.when(busy.get()):
        _multiply(code, form, shape, blocks)
    code.done()
    return code.function


def _pieces(form: WarpMma, shape: Shape) -> int:
    """Registers of B: pieces of sixteen bytes of a row."""
    return shape.span * shape.a.bytes // (2 if form.packed else 1) // _PIECE


@dataclass(frozen=True)
class _Fragment:
    """The registers of an operand."""

    registers: list[Value]
    element: Element
    packed: bool

    def only_zeros(self, code: Code) -> Value:
        """Whether all elements are zero."""
        together = self.registers[0]
        for register in self.registers[1:]:
            together = together | register
        return code.any((together & self._magnitude()[1]).differs(0)) ^ 1

    def special(self, code: Code) -> Value:
        """Whether an element is infinite or no number."""
        fmt = self.element.format
        if fmt.specials is Specials.NONE:
            return code.constant(I1, 0)
        width, mask = self._magnitude()
        infinite = ((1 << fmt.exponent_bits) - 1) << (fmt.mantissa_bits + fmt.unused_low_bits)
        least = infinite if fmt.specials is Specials.IEEE else mask & ((1 << width) - 1)
        kind = vector(ir.IntType(width), _LANES * 32 // width)
        found = code.constant(kind, 0).differs(0)
        for register in self.registers:
            found = found | ((register & mask).as_bits(kind) > least - 1)
        return code.any(found)

    def _magnitude(self) -> tuple[int, int]:
        """Bits of an element in a register, and those of a register that make elements other than zero."""
        fmt = self.element.format
        width = 4 if self.packed else self.element.width
        bits = (1 << (fmt.bits - fmt.unused_low_bits - 1)) - 1
        return width, sum(bits << (self.element.shift + at) for at in range(0, 32, width))


def _nan_scale(code: Code, register: Value, fmt: Format) -> Value:
    """Whether a byte of a register of scales is NaN, be it chosen or not."""
    # E8M0 has it at 0xFF, and UE4M3 ignores the sign.
    bytes_of = register.as_bits(vector(I8, 4 * _LANES))
    return code.any((bytes_of | (0 if fmt is E8M0 else 0x80)).equals(0xFF))


def _multiply(code: Code, form: WarpMma, shape: Shape, blocks: Blocks) -> None:
    a, b, c, d, stride, a_scales, a_byte, a_thread, b_scales, b_byte, b_thread = code.arguments
    # A register's byte holds two elements, or one.
    spread = 2 if form.packed else 1
    row_bytes = shape.span * shape.a.bytes
    rows, columns = code.space(ROWS * row_bytes), code.space(COLUMNS * row_bytes)
    for piece in range(_pieces(form, shape)):
        for quad in range(_QUADS):
            for half in range(2):
                register = a + stride * (2 * piece + half)
                place = rows + ((quad + half * _QUADS) * row_bytes + piece * spread * _PIECE)
                _copy(code, register + quad * _PIECE, place, packed=form.packed)
            place = columns + (quad * row_bytes + piece * spread * _PIECE)
            _copy(code, b + stride * piece + quad * _PIECE, place, packed=form.packed)
    sums = code.space(ROWS * COLUMNS * 8)
    from_fragment(code, [c + stride * i for i in range(ACCUMULATORS)], sums)
    row_scales, column_scales = a_scales, b_scales
    if form.scales:
        row_scales = code.space(ROWS * form.scales)
        first = a_scales + (a_thread * (2 * 4) + a_byte)
        for row in range(ROWS):
            for scale in range(form.scales):
                byte = code.load(I8, first + (row % _QUADS * _PIECE + row // _QUADS * 4 + scale))
                code.store(byte, row_scales + (row * form.scales + scale))
        column_scales = b_scales + (b_thread * 4 + b_byte)
    panel, length, one = code.space(shape.step_bytes), code.constant(I64, row_bytes), code.constant(I64, 1)
    last_row, last_column = code.constant(I64, ROWS - 1), code.constant(I64, COLUMNS - 1)
    code.call(blocks.pack, rows, length, last_row, one, row_scales, code.constant(I64, form.scales), panel)
    stride_of_scales = code.constant(I64, _PIECE)
    code.call(blocks.add, panel, one, columns, length, last_column, column_scales, stride_of_scales, sums)
    to_fragment(code, sums, [d + stride * i for i in range(ACCUMULATORS)])


def _copy(code: Code, source: Value, place: Value, *, packed: bool) -> None:
    """Sixteen bytes; packed ones become thirty-two, the low half of each first."""
    held = code.load(vector(I8, _PIECE), source)
    if packed:
        order = [lane for pair in zip(range(_PIECE), range(_PIECE, 2 * _PIECE), strict=True) for lane in pair]
        held = code.shuffle(held & 15, held >> 4, order)
    code.store(held, place)


def from_fragment(code: Code, registers: list[Value], sums: Value) -> None:
    """Four registers of C to sums [8, 16]: register i of lane 4g + t is row g + 8 (i / 2), column 2t + i % 2."""
    for i, register in enumerate(registers):
        held = code.load(vector(F32, _LANES), register)
        for t in range(_QUAD):
            rows = code.shuffle(held, held, list(range(t, _LANES, _QUAD))).to(vector(F64, _QUADS))
            code.store(rows, sums + ((2 * t + i % 2) * ROWS + i // 2 * _QUADS) * 8, align=64)


def to_fragment(code: Code, sums: Value, registers: list[Value]) -> None:
    """The reverse of `from_fragment`, with one NaN."""
    for i, register in enumerate(registers):
        quads = [
            code.load(vector(F64, _QUADS), sums + ((2 * t + i % 2) * ROWS + i // 2 * _QUADS) * 8, align=64)
            for t in range(_QUAD)
        ]
        bits = [canonical(code, quad) for quad in quads]
        low, high = (code.shuffle(bits[t], bits[t + 1], list(range(2 * _QUADS))) for t in (0, 2))
        lanes = [t * _QUADS + g for g in range(_QUADS) for t in range(_QUAD)]
        code.store(code.shuffle(low, high, lanes), register)


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
