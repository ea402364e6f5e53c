"""Blocks of an accumulation model as native code: 16 rows times 8 columns at a time, exactly, in float64.

The 16 rows lie in the lanes of vectors, and each of the 8 columns multiplies all of them. A step is what is decoded
at once: `span` elements of K, of one part (a fused block), of two that are chained (an unpacked instruction) or of four
(the groups of a grouped block).

Fused blocks are in `fused`, and the sums of products in `sums`.

A grouped block cuts groups, whose products are quarters: their sum is exact in any case.

A chain of FMAs has no blocks; a step of it is some of its K. Products of two elements are exact in float64, and a sum
that is rounded to odd there is rounded to FP32 as the exact one would be.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from llvmlite import ir

from refmoe.native.expressions import F32, F64, I8, I32, I64, POINTER, Code, Value, vector
from refmoe.reference.mma.models import Kind
from refmoe.reference.mma.native.decode import ABSENT, decode, decode_scale, decode_singles, power_of_two, widened
from refmoe.reference.mma.native.fused import Fused
from refmoe.reference.mma.native.rounding import own_exponent, rounded
from refmoe.reference.mma.native.shape import (
    COLUMNS,
    DOUBLE,
    DOUBLES,
    INTEGERS,
    PAIR,
    ROWS,
    SINGLE,
    SINGLES,
    WORD,
    WORDS,
    Shape,
)
from refmoe.reference.mma.native.sums import Columns, Sums

_CHUNK = 16  # bytes of a row that are transposed at once


class Blocks:
    """Functions of one shape in a module.

    Attributes:
        shape: of a step.
        pack: `(rows, row bytes, last row, steps, scales, scale row bytes, panel)`: decode 16 rows to a panel.
        add: `(panel, steps, columns, column bytes, last column, scales, scale column bytes, sums)`: chain the blocks of
            8 columns onto sums, float64 [8, 16].

    Rows and columns past the last one repeat it, so that nothing outside an operand is read.
    """

    def __init__(self, module: Any, shape: Shape) -> None:
        self.module = module
        self.shape = shape
        self.sums = Sums(module, shape)
        self.fused = Fused(module, shape) if shape.cuts_products else None
        self.pack = self._pack()
        self.add = self._add()

    def _pack(self) -> Any:
        shape = self.shape
        code = Code(self.module, "pack", [POINTER, I64, I64, I64, POINTER, I64, POINTER], inner=True)
        rows, stride, last, steps, scales, scale_stride, panel = code.arguments
        pointers = [rows + code.min(code.constant(I64, row), last) * stride for row in range(ROWS)]
        transposed = code.space(shape.span * ROWS * shape.a.bytes)
        held = code.space(max(shape.scales, 1) * ROWS * 4)
        step_bytes = shape.span * shape.a.bytes
        with code.range(steps) as t:
            step = panel + t * shape.step_bytes
            for chunk in range(0, step_bytes, _CHUNK):
                self._transpose(code, [row + (t * step_bytes + chunk) for row in pointers], transposed + chunk * ROWS)
            # Of a row of zeros, what no element is beyond.
            most, least = shape.a.format.emax, shape.a.format.emin
            unit, top = code.variable(INTEGERS, most), code.variable(INTEGERS, least)
            # NaN where an element is infinite or NaN.
            lost, zero = code.variable(DOUBLES, 0.0), code.constant(DOUBLES, 0.0)
            with code.range(shape.span // 2) as pair:
                exponents = []
                for k in (pair * 2, pair * 2 + 1):
                    stored = code.load(vector(ir.IntType(shape.a.width), ROWS), transposed + k * (ROWS * shape.a.bytes))
                    value, exponent = decode(code, shape.a, widened(stored))
                    code.store(value, step + (k * (ROWS * DOUBLE) + shape.values), align=64)
                    lost.set(code.fma(value, zero, lost.get()))
                    if shape.fits_integers:
                        code.store(value.to(SINGLES), step + (k * (ROWS * SINGLE) + shape.singles), align=64)
                    unit.set(code.min(unit.get(), code.select(exponent.equals(ABSENT), most, exponent)))
                    top.set(code.max(top.get(), exponent))
                    exponents.append(exponent)
                both = (exponents[0] & 0xFFFF) | (exponents[1] << 16)
                code.store(both, step + (pair * (ROWS * PAIR) + shape.exponents), align=64)
            units, tops = (unit.get() - shape.a.format.mantissa_bits).to(WORDS), top.get().to(WORDS)
            if shape.scales:
                with code.range(ROWS) as row:
                    place = scales + (code.min(row, last) * scale_stride + t * shape.stored_scales)
                    for scale in range(shape.scales):
                        byte = code.load(I8, place + scale * shape.stored_scales // shape.scales)
                        code.store(byte.to(I32, signed=False), held + (row + scale * ROWS) * 4)
                for scale in range(shape.scales):
                    stored = code.load(vector(I32, ROWS), held + scale * ROWS * 4)
                    value, of_scale = decode_scale(code, shape.scale_format, stored)
                    code.store(value, step + (shape.scale_values + scale * ROWS * DOUBLE), align=64)
                    code.store(of_scale, step + (shape.scale_exponents + scale * ROWS * WORD), align=64)
                    if scale == 0:
                        units, tops = units + of_scale, tops + of_scale
            if self.fused is not None:
                self.fused.store_row_bounds(code, step, units, tops, lost.get())
        code.done()
        return code.function

    def _transpose(self, code: Code, rows: list[Value], place: Value) -> None:
        """Sixteen bytes of each of 16 rows, to element by element the 16 rows."""
        count = _CHUNK // self.shape.a.bytes
        kind = vector(ir.IntType(self.shape.a.width), count)
        pieces = [code.load(kind, row) for row in rows]
        low = list(chain.from_iterable((lane, lane + count) for lane in range(count // 2)))
        high = [lane + count // 2 for lane in low]
        # Each round moves the uppermost bit of an element's place to the lowest: four rounds move those of the row.
        for _ in range(4):
            pairs = list(zip(pieces[: ROWS // 2], pieces[ROWS // 2 :], strict=True))
            pieces = [code.shuffle(x, y, half) for x, y in pairs for half in (low, high)]
        for number, piece in enumerate(pieces):
            code.store(piece, place + number * _CHUNK)

    def _add(self) -> Any:
        shape = self.shape
        code = Code(self.module, "add", [POINTER, I64, POINTER, I64, I64, POINTER, I64, POINTER], inner=True)
        panel, steps, columns, stride, last, scales, scale_stride, sums = code.arguments
        wide = max(shape.scales, 1) * COLUMNS
        decoded = Columns(
            stored=code.space(COLUMNS * WORD),
            values=code.space(COLUMNS * shape.span * DOUBLE),
            singles=code.space(COLUMNS * shape.span * SINGLE),
            largest=code.space(COLUMNS * WORD),
            least=code.space(COLUMNS * WORD),
            negative=code.space(COLUMNS * WORD),
            finite=code.space(COLUMNS * WORD),
            limits=code.space(COLUMNS * DOUBLE),
            grids=code.space(COLUMNS * DOUBLE),
            scale_values=code.space(wide * DOUBLE),
            scale_exponents=code.space(wide * WORD),
        )
        scale_codes = code.space(wide * 4)
        with code.range(steps) as t:
            step = panel + t * shape.step_bytes
            with code.range(COLUMNS) as column:
                number = code.min(column, last)
                stored = columns + (number * stride + t * (shape.span * shape.b.bytes))
                code.store(stored, decoded.stored + column * WORD)
                # What the next 8 columns begin with is far away for the processor to foresee.
                code.prefetch(stored + stride * COLUMNS)
                self._decode_column(code, decoded, column, stored)
                for scale in range(shape.scales):
                    at = number * scale_stride + t * shape.stored_scales + scale * shape.stored_scales // shape.scales
                    byte = code.load(I8, scales + at).to(I32, signed=False)
                    code.store(byte, scale_codes + (column * shape.scales + scale) * 4)
            if shape.scales:
                stored = code.load(vector(I32, wide), scale_codes)
                value, exponent = decode_scale(code, shape.scale_format, stored)
                code.store(value, decoded.scale_values, align=64)
                code.store(exponent, decoded.scale_exponents, align=64)
            if self.fused is not None:
                self.fused.store_column_bounds(code, decoded, step)
            self._step(code, step, decoded, sums)
        code.done()
        return code.function

    def _decode_column(self, code: Code, decoded: Columns, column: Value, stored: Value) -> None:
        shape = self.shape
        count = min(shape.span, ROWS)
        for chunk in range(shape.span // count):
            kind = vector(ir.IntType(shape.b.width), count)
            elements = widened(code.load(kind, stored + chunk * (count * shape.b.bytes)))
            first = column * shape.span + chunk * count
            if shape.fits_integers:
                code.store(decode_singles(code, shape.b, elements, shape.has_avx512), decoded.singles + first * SINGLE)
            else:
                code.store(decode(code, shape.b, elements)[0], decoded.values + first * DOUBLE)
        if self.fused is not None:
            self.fused.look_at_column(code, decoded, column, stored)

    def _step(self, code: Code, step: Value, decoded: Columns, sums: Value) -> None:
        kind = self.shape.rule.kind
        if kind is Kind.GROUPED:
            self._grouped(code, step, decoded, sums)
        elif kind is Kind.UNPACKED:
            self._unpacked(code, step, decoded, sums)
        elif kind is Kind.FMA:
            self._multiply_add(code, step, decoded, sums)
        else:
            self._fused(code, step, decoded, sums, self.shape.parts[0])

    def _fused(self, code: Code, step: Value, decoded: Columns, sums: Value, part: tuple[int, ...]) -> None:
        """One fused block onto the sums."""
        assert self.fused is not None
        self.fused.add(code, step, decoded, sums, part)

    def _unpacked(self, code: Code, step: Value, decoded: Columns, sums: Value) -> None:
        """The parts chained from zero, and one addition in FP32."""
        size = ROWS * DOUBLE
        partial = code.space(COLUMNS * size)
        for number in range(COLUMNS):
            code.store(code.constant(DOUBLES, 0.0), partial + number * size, align=64)
        for part in self.shape.parts:
            self._fused(code, step, decoded, partial, part)
        floats = vector(F32, ROWS)
        with code.range(COLUMNS) as column:
            pair = [code.load(DOUBLES, place + column * size, align=64).to(floats) for place in (sums, partial)]
            code.store((pair[0] + pair[1]).to(DOUBLES), sums + column * size, align=64)

    def _multiply_add(self, code: Code, step: Value, decoded: Columns, sums: Value) -> None:
        """FMAs in FP32, k ascending."""
        shape = self.shape
        size = ROWS * DOUBLE
        places = [sums + column * size for column in range(COLUMNS)]
        totals = [code.variable(DOUBLES, code.load(DOUBLES, place, align=64)) for place in places]
        with code.range(shape.span) as k:
            values = code.load(DOUBLES, step + (k * size + shape.values), align=64)
            if shape.scales:
                values = values * code.load(DOUBLES, step + shape.scale_values, align=64)
            for column, total in enumerate(totals):
                other = code.load(F64, decoded.values + (k + column * shape.span) * DOUBLE)
                if shape.scales:
                    other = other * code.load(F64, decoded.scale_values + column * DOUBLE)
                odd = _sum_to_odd(code, values * other.lanes(ROWS), total.get())
                total.set(odd.to(vector(F32, ROWS)).to(DOUBLES))
        for place, total in zip(places, totals, strict=True):
            code.store(total.get(), place, align=64)

    def _grouped(self, code: Code, step: Value, decoded: Columns, sums: Value) -> None:
        """One grouped block onto the sums."""
        shape, rule = self.shape, self.shape.rule
        size = ROWS * DOUBLE
        groups = [code.space(COLUMNS * size) for _ in shape.parts]
        for part, products in zip(shape.parts, groups, strict=True):
            self.sums.dot(code, step, decoded, part, products)
        with code.range(COLUMNS) as column:
            place = sums + column * size
            c = code.load(DOUBLES, place, align=64)
            terms: list[Value] = []
            top = code.constant(WORDS, 2 * ABSENT)
            for group, products in enumerate(groups):
                at = (column * shape.scales + group) * WORD
                factor = code.load(F64, decoded.scale_values + at).lanes(ROWS)
                scale = code.load(DOUBLES, step + (shape.scale_values + group * size), align=64) * factor
                other = code.load(I64, decoded.scale_exponents + at).lanes(ROWS)
                exponent = code.load(WORDS, step + (shape.scale_exponents + group * size), align=64) + other
                terms.append(code.load(DOUBLES, products + column * size, align=64) * scale)
                top = code.max(top, code.select(terms[-1].equals(0.0), 2 * ABSENT, exponent))
            last = code.max(own_exponent(code, rule, c), top) - rule.align_bits
            to_units = power_of_two(-last)
            total = code.intrinsic("trunc", c * to_units)
            for term in terms:
                total = total + code.intrinsic("trunc", term * to_units)
            code.store(rounded(code, rule, total * power_of_two(last)), place, align=64)


def _sum_to_odd(code: Code, x: Value, y: Value) -> Value:
    """X + y as float64: of an inexact sum, its neighbour toward what was lost if that has the odd last bit."""
    total = x + y
    # What was lost, exactly (Knuth, The Art of Computer Programming, section 4.2.2).
    part = total - x
    lost = (x - (total - part)) + (y - part)
    bits = total.as_bits(WORDS)
    # Of a sum that is not finite it is NaN, which neither is less than 0 nor greater.
    inexact = (lost < 0.0) | (lost > 0.0)
    grows = (lost.as_bits(WORDS) ^ bits) > -1
    step = code.select(grows, 1, -1, WORDS)
    even = (bits & 1).equals(0)
    return code.select(inexact & even, bits + step, bits).as_bits(DOUBLES)
