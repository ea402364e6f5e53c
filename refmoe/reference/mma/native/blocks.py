"""Blocks of an accumulation model as native code: 16 rows times 8 columns at a time, exactly, in float64.

The 16 rows lie in the lanes of vectors, and each of the 8 columns multiplies all of them. A step is what is decoded
at once: `span` elements of K, of one part (a fused block), of two that are chained (an unpacked instruction) or of four
(the groups of a grouped block).

How a fused block is exact. The sum of the products is taken in float64, and the largest exponent E of the products that
are not zero beside it, both without regard to scales, which are powers of two. Where the least unit of an element of
the row times the least of the column is not below 2^(E - F), no product is cut, all of them are multiples of that unit
below 2^(E + 2), and the sum is exact in any order. Where it is, every product is scaled by 2^(F - E), cut to an integer
and added again: integers below 2^(F + 2) add up exactly. C is cut either way. Infinities and NaNs follow float64
arithmetic: whatever finite unit they are aligned to, they come out as they are.

A grouped block cuts groups, whose products are quarters: their sum is exact in any case.

A chain of FMAs has no blocks; a step of it is some of its K. Products of two elements are exact in float64, and a sum
that is rounded to odd there is rounded to FP32 as the exact one would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from llvmlite import ir

from refmoe.formats import E8M0, FP16, MX_BLOCK, Format
from refmoe.native.expressions import F32, F64, I8, I16, I32, I64, POINTER, Code, Value, Variable, vector
from refmoe.reference.mma.models import AccumulationModel, Kind
from refmoe.reference.mma.native.decode import (
    ABSENT,
    Element,
    decode,
    decode_scale,
    exponent_of,
    power_of_two,
)

ROWS, COLUMNS = 16, 8
NAN_BITS = 0x7FFFFFFF
"""The NaN that every chain writes."""
DOUBLES, WORDS, INTEGERS = (vector(kind, ROWS) for kind in (F64, I64, I32))
PAIRS = vector(I16, 2 * ROWS)
_DOUBLE, _WORD, _SHORT = 8, 8, 2
F64_FRACTION = 52
# Exponents are of 16 bits, and those of two neighbours along K stand in one word of 32.
_PAIR = 4
FMA_SPAN = 16
"""Elements of K in a step of a chain of FMAs that has no scales."""
_CHUNK = 16  # bytes of a row that are transposed at once
_FAR = 1 << 13  # above every exponent of a unit


@dataclass(frozen=True)
class Rule:
    """What a block does with its terms; the attributes are those of `AccumulationModel`."""

    kind: Kind
    align_bits: int
    result_bits: int
    accumulator: Format
    to_nearest: bool
    floor: int


@dataclass(frozen=True)
class Shape:
    """What a step takes, and where its parts lie in what was decoded.

    Attributes:
        rule: what a block does, of a model of any kind but EXACT.
        a: how the elements of the rows are stored.
        b: of the columns.
        span: elements of K.
        parts: the elements of each part.
        scales: how many scales a row has for a step: 0, or one, or of a GROUPED model one a part.
        scale_format: of the scales.
        stored_scales: how many of them are stored; each serves `scales / stored_scales` parts.
    """

    rule: Rule
    a: Element
    b: Element
    span: int
    parts: tuple[tuple[int, ...], ...]
    scales: int
    scale_format: Format
    stored_scales: int

    @property
    def values(self) -> int:
        """Where the values of a step lie in the panel of 16 rows."""
        return 0

    @property
    def exponents(self) -> int:
        """Where the exponents of its elements do."""
        return self.span * ROWS * _DOUBLE

    @property
    def units(self) -> int:
        """Where the exponents of the least units do."""
        return self.exponents + self.span * ROWS * _SHORT

    @property
    def scale_values(self) -> int:
        """Where the values of the scales do."""
        return self.units + ROWS * _WORD

    @property
    def scale_exponents(self) -> int:
        """Where the exponents of the scales do."""
        return self.scale_values + self.scales * ROWS * _DOUBLE

    @cached_property
    def step_bytes(self) -> int:
        """Of a step in the panel."""
        size = self.scale_exponents + self.scales * ROWS * _WORD
        return -(-size // 64) * 64


def shape_of(
    model: AccumulationModel, block: int, a: Format, b: Format, *, scaled: bool, a_shift: int = 0, b_shift: int = 0
) -> Shape:
    """The shape of a model's step, for elements that lie `shift` bits above the low end of what stores them.

    `block` is the pair's; `scaled` says whether a FUSED or an FMA model has scales.
    """
    if model.kind is Kind.FMA:
        block = MX_BLOCK if scaled else FMA_SPAN
    span, scales, stored = block, int(scaled), int(scaled)
    parts: tuple[tuple[int, ...], ...] = (tuple(range(block)),)
    if model.kind is Kind.UNPACKED:
        span, parts = sum(map(len, model.passes)), model.passes
    if model.group is not None:
        assert model.scaling is not None
        parts = tuple(tuple(range(k, k + model.group)) for k in range(0, block, model.group))
        scales, stored = len(parts), block // model.scaling.block
    # Widened to FP16 an element has FP16's exponent.
    rows, columns = (
        Element(
            fmt,
            max(fmt.bits, 8),
            fmt.unused_low_bits + shift,
            FP16.emin if model.kind is Kind.UNPACKED else fmt.emin,
        )
        for fmt, shift in ((a, a_shift), (b, b_shift))
    )
    rule = Rule(model.kind, model.align_bits or 0, model.result_bits, model.accumulator, model.to_nearest, model.floor)
    return Shape(rule, rows, columns, span, parts, scales, model.scaling.scale if model.scaling else E8M0, stored)


@dataclass(frozen=True)
class Columns:
    """Where what a step's 8 columns were decoded to lies: [8, span] and [8, scales] each, in a function's own space."""

    values: Value
    exponents: Value
    units: Value
    scale_values: Value
    scale_exponents: Value


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
            unit = code.variable(INTEGERS, _FAR)
            with code.range(shape.span // 2) as pair:
                exponents = []
                for k in (pair * 2, pair * 2 + 1):
                    stored = code.load(vector(ir.IntType(shape.a.width), ROWS), transposed + k * (ROWS * shape.a.bytes))
                    value, exponent = decode(code, shape.a, _widened(stored, ROWS))
                    code.store(value, step + (k * (ROWS * _DOUBLE) + shape.values), align=64)
                    unit.set(_least(code, unit.get(), exponent))
                    exponents.append(exponent)
                both = (exponents[0] & 0xFFFF) | (exponents[1] << 16)
                code.store(both, step + (pair * (ROWS * _PAIR) + shape.exponents), align=64)
            least = (unit.get() - shape.a.format.mantissa_bits).to(WORDS)
            if shape.scales:
                with code.range(ROWS) as row:
                    place = scales + (code.min(row, last) * scale_stride + t * shape.stored_scales)
                    for scale in range(shape.scales):
                        byte = code.load(I8, place + scale * shape.stored_scales // shape.scales)
                        code.store(byte.to(I32, signed=False), held + (row + scale * ROWS) * 4)
                for scale in range(shape.scales):
                    stored = code.load(vector(I32, ROWS), held + scale * ROWS * 4)
                    value, of_scale = decode_scale(code, shape.scale_format, stored)
                    code.store(value, step + (shape.scale_values + scale * ROWS * _DOUBLE), align=64)
                    code.store(of_scale, step + (shape.scale_exponents + scale * ROWS * _WORD), align=64)
                    if scale == 0:
                        least = least + of_scale
            code.store(least, step + shape.units, align=64)
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
            code.space(COLUMNS * shape.span * _DOUBLE),
            code.space(COLUMNS * shape.span * _SHORT),
            code.space(COLUMNS * _WORD),
            code.space(wide * _DOUBLE),
            code.space(wide * _WORD),
        )
        with code.range(steps) as t:
            with code.range(COLUMNS) as column:
                number = code.min(column, last)
                scale = scales + (number * scale_stride + t * shape.stored_scales)
                self._decode_column(
                    code, decoded, column, columns + (number * stride + t * (shape.span * shape.b.bytes)), scale
                )
            self._step(code, panel + t * shape.step_bytes, decoded, sums)
        code.done()
        return code.function

    def _decode_column(self, code: Code, decoded: Columns, column: Value, stored: Value, scales: Value) -> None:
        shape = self.shape
        count = min(shape.span, 16)
        unit = code.variable(vector(I32, count), _FAR)
        with code.range(shape.span // count) as chunk:
            kind = vector(ir.IntType(shape.b.width), count)
            value, exponent = decode(
                code, shape.b, _widened(code.load(kind, stored + chunk * (count * shape.b.bytes)), count)
            )
            first = column * shape.span + chunk * count
            code.store(value, decoded.values + first * _DOUBLE)
            code.store(exponent.to(vector(I16, count)), decoded.exponents + first * _SHORT)
            unit.set(_least(code, unit.get(), exponent))
        least = code.intrinsic("vector.reduce.smin", unit.get(), result=I32).to(I64) - shape.b.format.mantissa_bits
        if shape.scales:
            place = column * shape.scales
            for scale in range(shape.scales):
                byte = code.load(I8, scales + scale * shape.stored_scales // shape.scales).to(I32, signed=False)
                value, exponents = decode_scale(code, shape.scale_format, byte.lanes(2))
                code.store(_first(code, value), decoded.scale_values + (place + scale) * _DOUBLE)
                code.store(_first(code, exponents), decoded.scale_exponents + (place + scale) * _WORD)
                if scale == 0:
                    least = least + _first(code, exponents)
        code.store(least, decoded.units + column * _WORD)

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
        return code.load(I64, Value(code, held) + number * _WORD)

    def _dot(
        self, code: Code, step: Value, decoded: Columns, part: tuple[int, ...], products: Value, tops: Value | None
    ) -> None:
        """The sums of a part's products [8, 16], and the largest exponents of those that are not zero [8, 16]."""
        span = self.shape.span
        totals = [code.variable(DOUBLES, 0.0) for _ in range(COLUMNS)]
        largest: list[Variable] = [code.variable(PAIRS, 2 * ABSENT) for _ in range(COLUMNS)] if tops else []
        with code.range(len(part) // 2) as number:
            pair = self._pair(code, part, number)
            for k in (pair * 2, pair * 2 + 1):
                values = code.load(DOUBLES, step + (k * (ROWS * _DOUBLE) + self.shape.values), align=64)
                for column, total in enumerate(totals):
                    other = code.load(F64, decoded.values + (k + column * span) * _DOUBLE).lanes(ROWS)
                    total.set(code.fma(values, other, total.get()))
            if tops:
                exponents = code.load(PAIRS, step + (pair * (ROWS * _PAIR) + self.shape.exponents), align=64)
                for column, top in enumerate(largest):
                    both = code.load(I32, decoded.exponents + (pair * 2 + column * span) * _SHORT)
                    top.set(code.max(top.get(), exponents + both.lanes(ROWS).as_bits(PAIRS)))
        for column, total in enumerate(totals):
            code.store(total.get(), products + column * ROWS * _DOUBLE, align=64)
            if tops:
                code.store(largest[column].get(), tops + column * ROWS * _PAIR, align=64)

    def _fused(self, code: Code, step: Value, decoded: Columns, sums: Value, part: tuple[int, ...]) -> None:
        """One fused block onto the sums."""
        shape, rule = self.shape, self.shape.rule
        products, tops = code.space(COLUMNS * ROWS * _DOUBLE), code.space(COLUMNS * ROWS * _PAIR)
        self._dot(code, step, decoded, part, products, tops)
        units = code.load(WORDS, step + shape.units, align=64)
        with code.range(COLUMNS) as column:
            place = sums + column * (ROWS * _DOUBLE)
            c = code.load(DOUBLES, place, align=64)
            both = code.load(INTEGERS, tops + column * (ROWS * _PAIR), align=64)
            top = code.max(both.shifted_down(16), (both << 16).shifted_down(16)).to(WORDS)
            scale = None
            if shape.scales:
                other = code.load(I64, decoded.scale_exponents + column * _WORD).lanes(ROWS)
                top = top + code.load(WORDS, step + shape.scale_exponents, align=64) + other
                factor = code.load(F64, decoded.scale_values + column * _DOUBLE).lanes(ROWS)
                scale = code.load(DOUBLES, step + shape.scale_values, align=64) * factor
            last = self._alignment(code, top, c) - rule.align_bits
            to_units = power_of_two(-last)
            whole_c = code.intrinsic("trunc", c * to_units)
            # Of the scaled products, which are powers of two times what was summed.
            if scale is not None:
                to_units = scale * to_units
            total = code.variable(
                DOUBLES, code.load(DOUBLES, products + column * (ROWS * _DOUBLE), align=64) * to_units + whole_c
            )
            cut = (units + code.load(I64, decoded.units + column * _WORD).lanes(ROWS)) < last
            with code.when(code.any(cut)):
                total.set(whole_c)
                with code.range(len(part) // 2) as number:
                    pair = self._pair(code, part, number)
                    for k in (pair * 2, pair * 2 + 1):
                        values = code.load(DOUBLES, step + (k * (ROWS * _DOUBLE) + shape.values), align=64)
                        other = code.load(F64, decoded.values + (column * shape.span + k) * _DOUBLE).lanes(ROWS)
                        total.set(total.get() + code.intrinsic("trunc", values * other * to_units))
            code.store(self._rounded(code, total.get() * power_of_two(last)), place, align=64)

    def _unpacked(self, code: Code, step: Value, decoded: Columns, sums: Value) -> None:
        """The parts chained from zero, and one addition in FP32."""
        size = ROWS * _DOUBLE
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
        size = ROWS * _DOUBLE
        places = [sums + column * size for column in range(COLUMNS)]
        totals = [code.variable(DOUBLES, code.load(DOUBLES, place, align=64)) for place in places]
        with code.range(shape.span) as k:
            values = code.load(DOUBLES, step + (k * size + shape.values), align=64)
            if shape.scales:
                values = values * code.load(DOUBLES, step + shape.scale_values, align=64)
            for column, total in enumerate(totals):
                other = code.load(F64, decoded.values + (k + column * shape.span) * _DOUBLE)
                if shape.scales:
                    other = other * code.load(F64, decoded.scale_values + column * _DOUBLE)
                odd = _sum_to_odd(code, values * other.lanes(ROWS), total.get())
                total.set(odd.to(vector(F32, ROWS)).to(DOUBLES))
        for place, total in zip(places, totals, strict=True):
            code.store(total.get(), place, align=64)

    def _grouped(self, code: Code, step: Value, decoded: Columns, sums: Value) -> None:
        """One grouped block onto the sums."""
        shape, rule = self.shape, self.shape.rule
        size = ROWS * _DOUBLE
        groups = [code.space(COLUMNS * size) for _ in shape.parts]
        for part, products in zip(shape.parts, groups, strict=True):
            self._dot(code, step, decoded, part, products, None)
        with code.range(COLUMNS) as column:
            place = sums + column * size
            c = code.load(DOUBLES, place, align=64)
            terms: list[Value] = []
            top = code.constant(WORDS, 2 * ABSENT)
            for group, products in enumerate(groups):
                at = (column * shape.scales + group) * _WORD
                factor = code.load(F64, decoded.scale_values + at).lanes(ROWS)
                scale = code.load(DOUBLES, step + (shape.scale_values + group * size), align=64) * factor
                other = code.load(I64, decoded.scale_exponents + at).lanes(ROWS)
                exponent = code.load(WORDS, step + (shape.scale_exponents + group * size), align=64) + other
                terms.append(code.load(DOUBLES, products + column * size, align=64) * scale)
                top = code.max(top, code.select(terms[-1].equals(0.0), 2 * ABSENT, exponent))
            last = self._alignment(code, top, c) - rule.align_bits
            to_units = power_of_two(-last)
            total = code.intrinsic("trunc", c * to_units)
            for term in terms:
                total = total + code.intrinsic("trunc", term * to_units)
            code.store(self._rounded(code, total * power_of_two(last)), place, align=64)

    def _alignment(self, code: Code, top: Value, c: Value) -> Value:
        """E: the largest exponent of the products, C where it is not zero, and the floor."""
        rule = self.shape.rule
        # An infinite C must not align to a unit so large that a product times its inverse is 0: another is infinite.
        exponent = code.min(code.max(exponent_of(c), rule.accumulator.emin), rule.accumulator.emax + 1)
        exponent = code.select(c.equals(0.0), rule.floor, exponent)
        return code.max(code.max(top, exponent), rule.floor)

    def _rounded(self, code: Code, total: Value) -> Value:
        """The accumulator's value of an exact sum: every zero is +0."""
        rule = self.shape.rule
        accumulator = rule.accumulator
        exponent = exponent_of(total)
        if rule.to_nearest:
            return self._rounded_anywhere(code, total, exponent)
        # A normal number that is no infinity loses its last bits.
        kept = -1 << (F64_FRACTION - rule.result_bits)
        result = code.variable(DOUBLES, (total.as_bits(WORDS) & kept).as_bits(DOUBLES))
        unusual = (exponent < accumulator.emin) | (exponent > accumulator.emax)
        with code.when(code.any(unusual), likely=False):
            result.set(self._rounded_anywhere(code, total, exponent))
        return result.get()

    def _rounded_anywhere(self, code: Code, total: Value, exponent: Value) -> Value:
        rule = self.shape.rule
        unit = code.max(exponent, rule.accumulator.emin) - rule.result_bits
        whole = code.intrinsic("roundeven" if rule.to_nearest else "trunc", total * power_of_two(-unit))
        value = whole * power_of_two(unit) + 0.0
        infinity = code.intrinsic("copysign", code.constant(DOUBLES, float("inf")), value)
        return code.select(code.intrinsic("fabs", value) > float(rule.accumulator.max), infinity, value)


def _least(code: Code, least: Value, exponent: Value) -> Value:
    """The lesser of two exponents; what takes no part has none."""
    return code.min(least, code.select(exponent.equals(ABSENT), _FAR, exponent))


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


def _widened(stored: Value, count: int) -> Value:
    kind = vector(I32, count)
    return stored if str(stored.type) == str(kind) else stored.to(kind, signed=False)


def _first(code: Code, value: Value) -> Value:
    """The first lane."""
    return Value(code, code.build.extract_element(value.held, ir.Constant(I32, 0)))


def canonical(code: Code, value: Value) -> Value:
    """The bits of float64 values that float32 has: every NaN becomes 0x7FFFFFFF."""
    count = value.type.count
    bits = value.to(vector(F32, count)).as_bits(vector(I32, count))
    return code.select(value.differs(value), NAN_BITS, bits)
