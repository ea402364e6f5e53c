"""Sums of the products of a part: 16 rows times 8 columns whole, or 16 rows times one column cut term by term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from refmoe.native.expressions import F32, F64, I32, I64, POINTER, Code, Value, vector
from refmoe.reference.mma.native.decode import ABSENT, power_of_two
from refmoe.reference.mma.native.shape import (
    COLUMNS,
    DOUBLE,
    DOUBLES,
    F64_FRACTION,
    INTEGERS,
    PAIR,
    PAIRS,
    ROWS,
    SHORT,
    SINGLE,
    SINGLES,
    WORD,
    WORDS,
    Shape,
)

# Lanes of a multiply-add that rounds toward zero.
_LANES = 8
_HALVES = ROWS // _LANES
_F32_FRACTION, _F32_BIAS = 23, 127


@dataclass(frozen=True)
class Columns:
    """Where what a step's 8 columns were decoded to lies: values [8, span], the others [8] or [8, scales].

    Attributes:
        stored: pointers to the elements of each column, as they are stored.
        values: of the elements; if the shape `fits_integers` after `Sums.widen` only.
        singles: the same as float32, if the shape `fits_integers`.
        largest: the largest code of an element, sign bit aside, 64 bits.
        least: the least that is not zero, 0 if all are.
        negative: bit k is the sign of element k, 64 bits; of no shape that `fits_integers`.
        finite: 1 where no element of the column and of the 16 rows is infinite or NaN, otherwise 0, 64 bits.
        limits: see `Fused`; 0 where products may be cut whatever C is.
        grids: see `Fused`.
        scale_values: float64.
        scale_exponents: 64 bits.
    """

    stored: Value
    values: Value
    singles: Value
    largest: Value
    least: Value
    negative: Value
    finite: Value
    limits: Value
    grids: Value
    scale_values: Value
    scale_exponents: Value


class Sums:
    """Code for the sums of one shape; `step` is where the panel of the rows has the step."""

    def __init__(self, module: Any, shape: Shape) -> None:
        self.module = module
        self.shape = shape

    def _pair(self, code: Code, part: tuple[int, ...], number: Value) -> Value:
        """The place along K, in pairs, of a part's pair of elements."""
        firsts = part[::2]
        assert all(k % 2 == 0 for k in firsts)
        assert part[1::2] == tuple(k + 1 for k in firsts)
        if firsts == tuple(range(part[0], part[0] + len(part), 2)):
            return number + part[0] // 2
        name = f"part_{part[0]}"
        held = self.module.globals.get(name)
        if held is None:
            kind = ir.ArrayType(I64, len(firsts))
            held = ir.GlobalVariable(self.module, kind, name)
            held.linkage, held.global_constant = "internal", True
            held.initializer = ir.Constant(kind, [k // 2 for k in firsts])
            held.type = POINTER
        return code.load(I64, Value(code, held) + number * WORD)

    def widen(self, code: Code, decoded: Columns, column: Value) -> None:
        """Make the values of a column of its `singles`."""
        for k in range(0, self.shape.span, ROWS):
            place = column * self.shape.span + k
            singles = code.load(SINGLES, decoded.singles + place * SINGLE)
            code.store(singles.to(DOUBLES), decoded.values + place * DOUBLE)

    def dot(self, code: Code, step: Value, decoded: Columns, part: tuple[int, ...], products: Value) -> None:
        """The sums of a part's products [8, 16] of all 8 columns, nothing cut."""
        span = self.shape.span
        totals = [code.variable(DOUBLES, 0.0) for _ in range(COLUMNS)]
        with code.range(len(part) // 2) as number:
            pair = self._pair(code, part, number)
            for k in (pair * 2, pair * 2 + 1):
                values = code.load(DOUBLES, step + (k * (ROWS * DOUBLE) + self.shape.values), align=64)
                for column, total in enumerate(totals):
                    other = code.load(F64, decoded.values + (k + column * span) * DOUBLE).lanes(ROWS)
                    total.set(code.fma(values, other, total.get()))
        for column, total in enumerate(totals):
            code.store(total.get(), products + column * ROWS * DOUBLE, align=64)

    def largest_exponents(self, code: Code, step: Value, exponents: Value, part: tuple[int, ...]) -> Value:
        """The largest exponents of the products that are not zero, 64 bits [16], of a column's `exponents` [span]."""
        top = code.variable(PAIRS, 2 * ABSENT)
        with code.range(len(part) // 2) as number:
            pair = self._pair(code, part, number)
            rows = code.load(PAIRS, step + (pair * (ROWS * PAIR) + self.shape.exponents), align=64)
            both = code.load(I32, exponents + pair * (2 * SHORT)).lanes(ROWS).as_bits(PAIRS)
            top.set(code.max(top.get(), rows + both))
        both = top.get().as_bits(vector(I32, ROWS))
        return code.max(both.shifted_down(16), (both << 16).shifted_down(16)).to(WORDS)

    def split(self, code: Code, step: Value, place: Value) -> None:
        """Put the values of the rows [span, 16] to `place`, twice: the negative ones made 0, and then the others."""
        span = self.shape.span
        with code.range(span) as k:
            at = k * (ROWS * DOUBLE)
            values = code.load(DOUBLES, step + (at + self.shape.values), align=64)
            below = values < 0.0
            # A NaN is among the first.
            code.store(code.select(below, 0.0, values), place + at, align=64)
            code.store(code.select(below, values, 0.0), place + (at + span * ROWS * DOUBLE), align=64)

    def cut_while_adding(
        self, code: Code, split: Value, decoded: Columns, column: Value, part: tuple[int, ...], unit: Value
    ) -> Value:
        """The sum of a column's products, float64 [16], each cut toward zero to a multiple of 2^unit [16].

        A sum of 2^52 units or more has no bits below the unit: a multiply-add that rounds toward zero cuts the product
        by itself. It cuts toward zero what has the sign of the sum, so that positive and negative products have sums of
        their own, which start at 2^52 units and at -2^52. No product has 2^47 units, and no element of the column is
        infinite: times the zeros of `split` that would be NaN.
        """
        size = self.shape.span * ROWS * DOUBLE
        kind = vector(F64, _LANES)
        start = power_of_two(unit + F64_FRACTION)
        # Sums by the parity of k, so that one need not wait for the other.
        positive, negative = (
            [[code.variable(kind, half) for half in _halves(code, first)] for _ in range(2)]
            for first in (start, -start)
        )
        signs = code.load(I64, decoded.negative + column * WORD)
        with code.range(len(part) // 2) as number:
            pair = self._pair(code, part, number)
            for parity in range(2):
                k = pair * 2 + parity
                other = code.load(F64, decoded.values + (column * self.shape.span + k) * DOUBLE).lanes(_LANES)
                # The product with a negative element is positive where the row's value is negative.
                swapped = ((signs >> k) & 1) * size
                at = split + k * (ROWS * DOUBLE)
                for totals, place in ((positive, at + swapped), (negative, at + (swapped ^ size))):
                    for half, total in enumerate(totals[parity]):
                        values = code.load(kind, place + half * (_LANES * DOUBLE), align=64)
                        total.set(code.fma_toward_zero(values, other, total.get()))
        # The starts cancel, exactly.
        halves = [
            (positive[0][half].get() + negative[0][half].get()) + (positive[1][half].get() + negative[1][half].get())
            for half in range(_HALVES)
        ]
        return code.shuffle(halves[0], halves[1], list(range(ROWS)))

    def cut_to_integers(
        self, code: Code, step: Value, decoded: Columns, column: Value, part: tuple[int, ...], unit: Value
    ) -> Value:
        """The same for a shape that `fits_integers`, of finite elements: each product in units, as an integer.

        Products are exact in float32: two significands have fewer bits, and units are near those of the elements.
        """
        # A unit below the first cuts no more than that, and one above the last leaves no more.
        units = self.shape.units
        unit = code.min(code.max(unit, units[0]), units[-1])
        total = code.variable(INTEGERS, 0)
        to_units = (((-unit).to(INTEGERS) + _F32_BIAS) << _F32_FRACTION).as_bits(SINGLES)
        with code.range(len(part) // 2) as number:
            pair = self._pair(code, part, number)
            for k in (pair * 2, pair * 2 + 1):
                values = code.load(SINGLES, step + (k * (ROWS * SINGLE) + self.shape.singles), align=64)
                other = code.load(F32, decoded.singles + (column * self.shape.span + k) * SINGLE).lanes(ROWS)
                total.set(total.get() + (values * to_units * other).to(INTEGERS))
        return total.get().to(DOUBLES) * power_of_two(unit)

    def cut_then_add(
        self, code: Code, step: Value, decoded: Columns, column: Value, part: tuple[int, ...], unit: Value
    ) -> Value:
        """The same, of any elements on any host."""
        total = code.variable(DOUBLES, 0.0)
        to_units = power_of_two(-unit)
        with code.range(len(part) // 2) as number:
            pair = self._pair(code, part, number)
            for k in (pair * 2, pair * 2 + 1):
                values = code.load(DOUBLES, step + (k * (ROWS * DOUBLE) + self.shape.values), align=64)
                other = code.load(F64, decoded.values + (column * self.shape.span + k) * DOUBLE).lanes(ROWS)
                total.set(total.get() + code.intrinsic("trunc", values * other * to_units))
        return total.get() * power_of_two(unit)


def _halves(code: Code, value: Value) -> list[Value]:
    return [code.shuffle(value, value, list(range(first, first + _LANES))) for first in range(0, ROWS, _LANES)]
