"""Fused blocks as native code: most need no alignment, because nothing in them is cut.

What a block can cut is seen before anything is multiplied, from one number of a row and one of a column: T, which is
at least the largest exponent of the products that are not zero, and L, which is at most the least exponent of a unit of
them (of a product of elements, the product of their own units). Both count the scales. E is then at most max(T, C's
exponent, floor), and

- no product is cut if 2^L is a multiple of 2^(E - F): if T - L is at most F, L at least floor - F, and |C| below the
  *limit* 2^(L + F + 1); a subnormal C has the least exponent of its format, so L has to be at least that less F too,
- C is not cut if it is a multiple of 2^(T - F). To add the *grid*, 1.5 * 2^(52 + T - F), and to take it off again,
  changes any C that is not: float64 has 53 bits, and a larger C has no bits there.

Both numbers are products of one of the row and one of the column, all of them powers of two but for the factor 1.5.

A whole column, in which no output cuts anything, is the float64 sum of C and the products: all of them are multiples
of one unit below 2^52 of it, whatever the order. It needs neither E nor the exponents of its elements.

In another column E is C's exponent where that is at least T, and max(T, C's exponent, floor) will do where nothing is
cut. If an output is of neither kind, the exponents of the column's products are looked at. C is then cut, and every
product before it is added, see `Sums`.

Infinities and NaNs follow float64 arithmetic: whatever finite unit they are aligned to, they come out as they are. An
infinite or NaN C is below no limit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from refmoe.formats import FP32, Specials
from refmoe.native.expressions import F64, I16, I64, POINTER, Code, Value, vector
from refmoe.reference.mma.native.decode import decode, exponent_of, power_of_two, widened
from refmoe.reference.mma.native.rounding import own_exponent, rounded
from refmoe.reference.mma.native.shape import (
    COLUMNS,
    DOUBLE,
    DOUBLES,
    F64_FRACTION,
    ROWS,
    SHORT,
    WORD,
    WORDS,
    Shape,
)
from refmoe.reference.mma.native.sums import Columns, Sums

_EVERY_COLUMN = (1 << COLUMNS) - 1
_BOUNDS = vector(I64, COLUMNS)


class Fused:
    """Code for the fused blocks of one shape; `step` is where the panel of the rows has the step."""

    def __init__(self, module: Any, shape: Shape) -> None:
        self.shape = shape
        self.sums = Sums(module, shape)
        rule = shape.rule
        # Where the floor could cut a C of FP32, T is known to be above.
        least_of_c = FP32.emin - FP32.mantissa_bits
        assert rule.floor - rule.align_bits <= least_of_c or shape.a.format.emin + shape.b.format.emin >= rule.floor

    def store_row_bounds(self, code: Code, step: Value, units: Value, tops: Value, lost: Value) -> None:
        """Put what is known of 16 rows into the panel.

        Known are the exponents, 64 bits [16], of their units and largest elements; `lost` [16] is NaN where an element
        is not finite.
        """
        shape, rule = self.shape, self.shape.rule
        code.store(power_of_two(units + (rule.align_bits + 1)), step + shape.limits, align=64)
        grid = power_of_two(tops + (F64_FRACTION - rule.align_bits)) * 1.5
        code.store(grid, step + shape.grids, align=64)
        code.store(code.intrinsic("vector.reduce.smin", units, result=I64), step + shape.least)
        code.store(code.intrinsic("vector.reduce.smax", tops - units, result=I64), step + shape.reach)
        code.store((code.any(lost.differs(lost)) ^ 1).to(I64, signed=False), step + shape.finite)

    def look_at_column(self, code: Code, decoded: Columns, column: Value, stored: Value) -> None:
        """Put the extreme codes and the signs of a column's stored elements beside its values."""
        element, span = self.shape.b, self.shape.span
        scalar = ir.IntType(element.width)
        codes = code.load(vector(scalar, span), stored)
        top = element.format.bits - element.format.unused_low_bits - 1
        magnitudes = (codes >> element.shift) & ((1 << top) - 1)
        largest = code.intrinsic("vector.reduce.umax", magnitudes, result=scalar)
        # A zero is above all others once 1 is taken off.
        least = code.intrinsic("vector.reduce.umin", magnitudes - 1, result=scalar) + 1
        for code_of, place in ((largest, decoded.largest), (least, decoded.least)):
            code.store(code_of.to(I64, signed=False), place + column * WORD)
        if self.shape.fits_integers:
            return
        negative = (codes & (1 << (top + element.shift))).differs(0)
        code.store(negative.as_bits(ir.IntType(span)).to(I64, signed=False), decoded.negative + column * WORD)

    def store_column_bounds(self, code: Code, decoded: Columns, step: Value) -> None:
        """Put what is known of the 8 columns beside their values."""
        rule, fmt = self.shape.rule, self.shape.b.format
        # Codes of one sign are in the order of their numbers.
        largest, least = (code.load(_BOUNDS, place, align=64) for place in (decoded.largest, decoded.least))
        finite = code.load(I64, step + self.shape.finite).lanes(COLUMNS)
        if fmt.specials is not Specials.NONE:
            most = fmt.max_code >> fmt.unused_low_bits
            finite = finite & (largest < most + 1).to(_BOUNDS, signed=False)
        code.store(finite, decoded.finite, align=64)
        top = code.max(largest >> fmt.mantissa_bits, 1) - fmt.bias
        unit = code.max(least >> fmt.mantissa_bits, 1) - (fmt.bias + fmt.mantissa_bits)
        near = (top - unit) + code.load(I64, step + self.shape.reach).lanes(COLUMNS) < rule.align_bits + 1
        if self.shape.scales:
            scale = code.load(_BOUNDS, decoded.scale_exponents, align=64)
            top, unit = top + scale, unit + scale
        high = (
            unit + code.load(I64, step + self.shape.least).lanes(COLUMNS)
            > max(rule.floor, rule.accumulator.emin) - rule.align_bits - 1
        )
        code.store(code.select(near & high, power_of_two(unit), 0.0), decoded.limits, align=64)
        code.store(power_of_two(top), decoded.grids, align=64)

    def add(self, code: Code, step: Value, decoded: Columns, sums: Value, part: tuple[int, ...]) -> None:
        """One fused block of each column onto the sums [8, 16]."""
        rule = self.shape.rule
        size = ROWS * DOUBLE
        products, units = code.space(COLUMNS * size), code.space(COLUMNS * ROWS * WORD)
        cut = code.variable(I64, 0)
        with code.range(COLUMNS) as column:
            c = code.load(DOUBLES, sums + column * size, align=64)
            found = code.any(self._may_cut(code, step, decoded, column, c))
            cut.set(cut.get() | (found.to(I64, signed=False) << column))
        with code.when(cut.get().differs(_EVERY_COLUMN)):
            if self.shape.fits_integers:
                with code.range(COLUMNS) as column:
                    self.sums.widen(code, decoded, column)
            self.sums.dot(code, step, decoded, part, products)
        with code.when(cut.get().differs(0)):
            # In loops of their own, so that one column does not wait for the other.
            with code.each_bit(cut.get()) as column:
                self._align(code, step, decoded, column, part, sums + column * size, units + column * (ROWS * WORD))
            split = None
            if self.shape.has_avx512 and not self.shape.fits_integers:
                split = code.space(2 * self.shape.span * size)
                self.sums.split(code, step, split)
            with code.each_bit(cut.get()) as column:
                unit = code.load(WORDS, units + column * (ROWS * WORD), align=64)
                self._cut(code, step, split, decoded, column, part, unit, products + column * size)
        with code.range(COLUMNS) as column:
            c = code.load(DOUBLES, sums + column * size, align=64)
            total = code.load(DOUBLES, products + column * size, align=64)
            if self.shape.scales:
                scale = self._bound(code, step + self.shape.scale_values, decoded.scale_values, column)
                total = code.fma(total, scale, c)
            else:
                total = total + c
            code.store(rounded(code, rule, total), sums + column * size, align=64)

    def _may_cut(self, code: Code, step: Value, decoded: Columns, column: Value, c: Value) -> Value:
        """Which outputs of a column may cut a product or C."""
        limit = self._bound(code, step + self.shape.limits, decoded.limits, column)
        grid = self._bound(code, step + self.shape.grids, decoded.grids, column)
        below = code.intrinsic("fabs", c) < limit
        return (below & ((c + grid) - grid).equals(c)) ^ 1

    def _bound(self, code: Code, rows: Value, columns: Value, column: Value) -> Value:
        return code.load(DOUBLES, rows, align=64) * code.load(F64, columns + column * DOUBLE).lanes(ROWS)

    def _align(
        self,
        code: Code,
        step: Value,
        decoded: Columns,
        column: Value,
        part: tuple[int, ...],
        place: Value,
        unit_place: Value,
    ) -> None:
        """Cut C, and put down the exponents [16] of the units that products without scales are cut to."""
        shape, rule = self.shape, self.shape.rule
        c = code.load(DOUBLES, place, align=64)
        own = own_exponent(code, rule, c)
        grid = self._bound(code, step + shape.grids, decoded.grids, column)
        top = exponent_of(grid) - (F64_FRACTION - rule.align_bits)
        alignment = code.variable(WORDS, code.max(own, top))
        behind = own < top
        # With so many bits C is cut only where another exponent is the alignment.
        keeps_c = rule.align_bits >= rule.accumulator.mantissa_bits
        with code.when(code.any(behind)):
            unknown = self._may_cut(code, step, decoded, column, c) & behind
            with code.when(code.any(unknown)):
                alignment.set(code.max(own, self._top(code, step, decoded, column, part)))
                if keeps_c:
                    code.store(_multiple(code, c, alignment.get() - rule.align_bits), place, align=64)
        unit = alignment.get() - rule.align_bits
        if not keeps_c:
            code.store(_multiple(code, c, unit), place, align=64)
        if shape.scales:
            other = code.load(I64, decoded.scale_exponents + column * WORD).lanes(ROWS)
            unit = unit - (code.load(WORDS, step + shape.scale_exponents, align=64) + other)
        code.store(unit, unit_place, align=64)

    def _cut(
        self,
        code: Code,
        step: Value,
        split: Value | None,
        decoded: Columns,
        column: Value,
        part: tuple[int, ...],
        unit: Value,
        place: Value,
    ) -> None:
        """Put the sum [16] of a column's products, cut to units, to a place."""
        finite = code.load(I64, decoded.finite + column * WORD).differs(0)
        with code.when(finite):
            if self.shape.fits_integers:
                products = self.sums.cut_to_integers(code, step, decoded, column, part, unit)
            elif split is not None:
                products = self.sums.cut_while_adding(code, split, decoded, column, part, unit)
            else:
                products = self.sums.cut_then_add(code, step, decoded, column, part, unit)
            code.store(products, place, align=64)
        with code.when(finite ^ 1):
            if self.shape.fits_integers:
                self.sums.widen(code, decoded, column)
            code.store(self.sums.cut_then_add(code, step, decoded, column, part, unit), place, align=64)

    def _top(self, code: Code, step: Value, decoded: Columns, column: Value, part: tuple[int, ...]) -> Value:
        """The largest exponents of a column's products that are not zero, scales included, 64 bits [16]."""
        shape = self.shape
        exponents = code.space(shape.span * SHORT)
        pointer = code.load(POINTER, decoded.stored + column * WORD)
        count = min(shape.span, ROWS)
        for first in range(0, shape.span, count):
            stored = code.load(vector(ir.IntType(shape.b.width), count), pointer + first * shape.b.bytes)
            _, exponent = decode(code, shape.b, widened(stored))
            code.store(exponent.to(vector(I16, count)), exponents + first * SHORT)
        top = self.sums.largest_exponents(code, step, exponents, part)
        if shape.scales:
            other = code.load(I64, decoded.scale_exponents + column * WORD).lanes(ROWS)
            top = top + code.load(WORDS, step + shape.scale_exponents, align=64) + other
        return top


def _multiple(code: Code, value: Value, unit: Value) -> Value:
    """A value cut to a multiple of 2^unit."""
    return code.intrinsic("trunc", value * power_of_two(-unit)) * power_of_two(unit)
