"""Fused blocks as native code: most need no alignment, because nothing in them is cut.

What a block can cut is seen before anything is multiplied, from one number of a row and one of a column: T, which is
at least the largest exponent of the products that are not zero, and L, which is at most the least exponent of a unit of
them (of a product of elements, the product of their own units). Both count the scales. E is then at most max(T, C's
exponent, floor), and

- no product is cut if 2^L is a multiple of 2^(E - F): if T - L is at most F, L at least floor - F, and |C| below the
  *limit* 2^(L + F + 1),
- C is not cut if it is a multiple of 2^(T - F). To add the *grid*, 1.5 * 2^(52 + T - F), and to take it off again,
  changes any C that is not: float64 has 53 bits, and a larger C has no bits there.

Both numbers are products of one of the row and one of the column, all of them powers of two but for the factor 1.5.

A whole block, one in which no output cuts anything, is the float64 sum of C and the products: all of them are multiples
of one unit below 2^52 of it, whatever the order. It needs neither E nor the exponents of its elements.

In other blocks E is C's exponent where that is at least T, and max(T, C's exponent, floor) will do where nothing is
cut. Where an output is of neither kind, the exponents of its products are looked at. Every product is then cut before
it is added, see `Sums`.

Infinities and NaNs follow float64 arithmetic: whatever finite unit they are aligned to, they come out as they are. An
infinite or NaN C is below no limit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from refmoe.formats import FP32, Specials
from refmoe.native.expressions import F64, I16, I64, POINTER, Code, Value, vector
from refmoe.reference.mma.native.decode import F64_BIAS, decode, exponent_of, power_of_two, widened
from refmoe.reference.mma.native.rounding import (
    cut_to_result,
    in_range,
    own_exponent,
    rounded,
    sums_need_no_range,
)
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

# Limits are at most 2^128, so that a C beyond FP32 is below none: of the row's factor and of the column's, half of it.
_MOST = 64
_EVERY_COLUMN = (1 << COLUMNS) - 1


class Fused:
    """Code for the fused blocks of one shape; `step` is where the panel of the rows has the step."""

    def __init__(self, module: Any, shape: Shape) -> None:
        self.shape = shape
        self.sums = Sums(module, shape)
        rule = shape.rule
        lowest = FP32.emin - FP32.mantissa_bits
        # C is never below its own least unit. Where the floor could cut it, T is known to be above.
        assert rule.floor - rule.align_bits <= lowest or shape.a.format.emin + shape.b.format.emin >= rule.floor
        # Of FP32's least unit, so that no sum of a whole block lies between two subnormal numbers.
        self._least = max(rule.floor - rule.align_bits, lowest)

    def store_row_bounds(self, code: Code, step: Value, units: Value, tops: Value) -> None:
        """Put what is known of 16 rows into the panel, from the exponents, 64 bits [16], of their units and largest."""
        shape, rule = self.shape, self.shape.rule
        code.store(power_of_two(code.min(units + rule.align_bits + 1, _MOST)), step + shape.limits, align=64)
        grid = power_of_two(tops + (F64_FRACTION - rule.align_bits)) * 1.5
        code.store(grid, step + shape.grids, align=64)
        code.store(code.intrinsic("vector.reduce.smin", units, result=I64), step + shape.least)
        code.store(code.intrinsic("vector.reduce.smax", tops - units, result=I64), step + shape.reach)

    def store_column_bounds(
        self, code: Code, decoded: Columns, column: Value, step: Value, scale_exponent: Value | None
    ) -> None:
        """Put what is known of a column of the step beside its values."""
        shape, rule, element = self.shape, self.shape.rule, self.shape.b
        fmt = element.format
        kind = vector(ir.IntType(element.width), shape.span)
        stored = code.load(kind, code.load(POINTER, decoded.stored + column * WORD))
        top_bit = fmt.bits - fmt.unused_low_bits - 1
        magnitudes = (stored >> element.shift) & ((1 << top_bit) - 1)
        # Codes of one sign are in the order of their numbers; a zero is above all others once 1 is taken off.
        scalar = kind.element
        largest = code.intrinsic("vector.reduce.umax", magnitudes, result=scalar).to(I64, signed=False)
        least = (code.intrinsic("vector.reduce.umin", magnitudes - 1, result=scalar) + 1).to(I64, signed=False)
        top = code.max(largest >> fmt.mantissa_bits, 1) - fmt.bias
        unit = code.max(least >> fmt.mantissa_bits, 1) - (fmt.bias + fmt.mantissa_bits)
        if fmt.specials is Specials.IEEE:
            infinite = ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits
            code.store((largest < infinite).to(I64, signed=False), decoded.finite + column * WORD)
        near = code.load(I64, step + shape.reach) + (top - unit) < rule.align_bits + 1
        if scale_exponent is not None:
            top, unit = top + scale_exponent, unit + scale_exponent
        high = code.load(I64, step + shape.least) + unit > self._least - 1
        limit = ((code.min(unit, _MOST) + F64_BIAS) << F64_FRACTION).as_bits(F64)
        code.store(code.select(near & high, limit, 0.0), decoded.limits + column * DOUBLE)
        code.store(((top + F64_BIAS) << F64_FRACTION).as_bits(F64), decoded.grids + column * DOUBLE)
        negative = (stored & (1 << (top_bit + element.shift))).differs(0)
        signs = negative.as_bits(ir.IntType(shape.span)).to(I64, signed=False)
        code.store(signs, decoded.negative + column * WORD)

    def add(self, code: Code, step: Value, decoded: Columns, sums: Value, part: tuple[int, ...]) -> None:
        """One fused block of each column onto the sums [8, 16]."""
        shape = self.shape
        size = ROWS * DOUBLE
        products = code.space(COLUMNS * size)
        split = code.space(2 * shape.span * size) if shape.rounds_toward_zero else None
        whole = code.variable(I64, 0)
        with code.range(COLUMNS) as column:
            c = code.load(DOUBLES, sums + column * size, align=64)
            cut = code.any(self._may_cut(code, step, decoded, column, c))
            whole.set(whole.get() | ((cut ^ 1).to(I64, signed=False) << column))
        with code.when(whole.get().differs(0)):
            self.sums.dot(code, step, decoded, part, products)
        if split is not None:
            with code.when(whole.get().differs(_EVERY_COLUMN)):
                self.sums.split(code, step, split)
        with code.range(COLUMNS) as column:
            place = sums + column * size
            is_whole = ((whole.get() >> column) & 1).differs(0)
            with code.when(is_whole):
                c = code.load(DOUBLES, place, align=64)
                total = self._scaled_sum(
                    code, step, decoded, column, code.load(DOUBLES, products + column * size, align=64), c
                )
                # Of one beyond FP32, the next block sees that it is.
                kept = sums_need_no_range(shape.rule)
                result = cut_to_result(shape.rule, total) if kept else rounded(code, shape.rule, total)
                code.store(result, place, align=64)
            with code.when(is_whole ^ 1):
                self._add_cut(code, step, decoded, column, place, part, split)

    def _may_cut(self, code: Code, step: Value, decoded: Columns, column: Value, c: Value) -> Value:
        """Which outputs of a column may cut a product or C."""
        limit = self._bound(code, step + self.shape.limits, decoded.limits, column)
        grid = self._bound(code, step + self.shape.grids, decoded.grids, column)
        below = code.intrinsic("fabs", c) < limit
        return (below & ((c + grid) - grid).equals(c)) ^ 1

    def _bound(self, code: Code, rows: Value, columns: Value, column: Value) -> Value:
        return code.load(DOUBLES, rows, align=64) * code.load(F64, columns + column * DOUBLE).lanes(ROWS)

    def _scaled_sum(self, code: Code, step: Value, decoded: Columns, column: Value, products: Value, c: Value) -> Value:
        """C and the sum of products without their scales."""
        if not self.shape.scales:
            return products + c
        scale = self._bound(code, step + self.shape.scale_values, decoded.scale_values, column)
        return code.fma(products, scale, c)

    def _add_cut(
        self,
        code: Code,
        step: Value,
        decoded: Columns,
        column: Value,
        place: Value,
        part: tuple[int, ...],
        split: Value | None,
    ) -> None:
        """One block of a column onto the sums [16], by what the rule says; `split` is what `Sums.split` made."""
        shape, rule = self.shape, self.shape.rule
        c = in_range(code, rule, code.load(DOUBLES, place, align=64))
        own = own_exponent(code, rule, c)
        grid = self._bound(code, step + shape.grids, decoded.grids, column)
        top = exponent_of(grid) - (F64_FRACTION - rule.align_bits)
        alignment = code.variable(WORDS, code.max(own, top))
        unknown = self._may_cut(code, step, decoded, column, c) & (own < top)
        with code.when(code.any(unknown)):
            alignment.set(code.max(own, self._top(code, step, decoded, column, part)))
        last = alignment.get() - rule.align_bits
        whole_c = code.intrinsic("trunc", c * power_of_two(-last)) * power_of_two(last)
        unit = last
        if shape.scales:
            other = code.load(I64, decoded.scale_exponents + column * WORD).lanes(ROWS)
            unit = last - (code.load(WORDS, step + shape.scale_exponents, align=64) + other)
        if split is None:
            products = self.sums.cut_then_add(code, step, decoded, column, part, unit)
        elif shape.b.format.specials is not Specials.IEEE:
            products = self.sums.cut_while_adding(code, split, decoded, column, part, unit)
        else:
            found = code.variable(DOUBLES, 0.0)
            finite = code.load(I64, decoded.finite + column * WORD).differs(0)
            with code.when(finite):
                found.set(self.sums.cut_while_adding(code, split, decoded, column, part, unit))
            with code.when(finite ^ 1):
                found.set(self.sums.cut_then_add(code, step, decoded, column, part, unit))
            products = found.get()
        total = self._scaled_sum(code, step, decoded, column, products, whole_c)
        code.store(rounded(code, rule, total), place, align=64)

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
