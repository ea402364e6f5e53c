"""What native blocks take in one step: elements, parts, scales, and where they lie once they are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from refmoe.formats import E8M0, FP16, MX_BLOCK, Format
from refmoe.native.compiler import has_feature
from refmoe.native.expressions import F32, F64, I16, I32, I64, vector
from refmoe.reference.mma.models import AccumulationModel, Kind
from refmoe.reference.mma.native.decode import Element

ROWS, COLUMNS = 16, 8
DOUBLES, SINGLES, WORDS, INTEGERS = (vector(kind, ROWS) for kind in (F64, F32, I64, I32))
PAIRS = vector(I16, 2 * ROWS)
"""Exponents are of 16 bits, and those of two neighbours along K stand in one word of 32."""
DOUBLE, SINGLE, WORD, SHORT, PAIR = 8, 4, 8, 2, 4
"""Bytes of a float64, of a float32, of an integer of 64 bits, of one of 16, of a pair of those."""
F64_FRACTION = 52
FMA_SPAN = 16
"""Elements of K in a step of a chain of FMAs that has no scales."""


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
        has_avx512: whether the host has it: lanes by number, and multiply-adds that round toward zero.
    """

    rule: Rule
    a: Element
    b: Element
    span: int
    parts: tuple[tuple[int, ...], ...]
    scales: int
    scale_format: Format
    stored_scales: int
    has_avx512: bool

    @property
    def cuts_products(self) -> bool:
        """Whether a block cuts products one by one, so that the panel has bounds of a row's elements."""
        return self.rule.kind in (Kind.FUSED, Kind.UNPACKED)

    @property
    def units(self) -> range:
        """Exponents of units from the least that a product can be a multiple of to the first that leaves nothing."""
        return range(self.a.least_unit + self.b.least_unit, self.a.format.emax + self.b.format.emax + 2 + 1)

    @property
    def fits_integers(self) -> bool:
        """Whether every sum of finite products, in the least unit, is an integer of 32 bits."""
        return self.cuts_products and len(self.units) + self.span.bit_length() < 32

    @property
    def values(self) -> int:
        """Where the values of a step lie in the panel of 16 rows."""
        return 0

    @property
    def exponents(self) -> int:
        """Where the exponents of its elements do."""
        return self.span * ROWS * DOUBLE

    @property
    def singles(self) -> int:
        """Where the values do as float32, if `fits_integers`."""
        return self.exponents + self.span * ROWS * SHORT

    @property
    def limits(self) -> int:
        """Where the limits that C has to stay below do, float64 [16]: see `Fused`."""
        return self.singles + (self.span * ROWS * SINGLE if self.fits_integers else 0)

    @property
    def grids(self) -> int:
        """Where the numbers that find out what C has below a unit do, float64 [16]: see `Fused`."""
        return self.limits + ROWS * DOUBLE

    @property
    def least(self) -> int:
        """Where the least exponent of all units of the 16 rows does, 64 bits."""
        return self.grids + ROWS * DOUBLE

    @property
    def reach(self) -> int:
        """Where the most does that a row's largest exponent lies above its least unit, 64 bits."""
        return self.least + WORD

    @property
    def finite(self) -> int:
        """Where 1 lies if no element is infinite or NaN, otherwise 0, 64 bits."""
        return self.reach + WORD

    @property
    def scale_values(self) -> int:
        """Where the values of the scales do."""
        return self.least + 64

    @property
    def scale_exponents(self) -> int:
        """Where the exponents of the scales do."""
        return self.scale_values + self.scales * ROWS * DOUBLE

    @cached_property
    def step_bytes(self) -> int:
        """Of a step in the panel."""
        size = self.scale_exponents + self.scales * ROWS * WORD
        return -(-size // 64) * 64


def shape_of(
    model: AccumulationModel,
    block: int,
    a: Format,
    b: Format,
    *,
    scaled: bool,
    a_shift: int = 0,
    b_shift: int = 0,
    has_avx512: bool | None = None,
) -> Shape:
    """The shape of a model's step, for elements that lie `shift` bits above the low end of what stores them.

    `block` is the pair's; `scaled` says whether a FUSED or an FMA model has scales. `has_avx512` is of the
    shape, None for what this host has.
    """
    if has_avx512 is None:
        has_avx512 = has_feature("avx512f")
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
    scale_format = model.scaling.scale if model.scaling else E8M0
    return Shape(rule, rows, columns, span, parts, scales, scale_format, stored, has_avx512)
