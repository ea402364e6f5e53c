"""Input data as named, seeded generators, each chosen so that a certain kind of wrong kernel must fail on it.

A fill makes bit patterns, block by block (a block is 32 neighbours along K), because what decides an MX quantizer is
where a block's largest magnitude lies in its binade, where the scaled elements lie between two codes, and what is not
finite. Bit patterns of magnitudes are ordered as the magnitudes are, so "a pattern below" is "a value below".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw

__all__ = ["BLOCK", "FILLS", "INPUT_FORMATS", "Fill", "InputFormat", "Limits"]

BLOCK = 32

Patterns = NDArray[np.uint16]
Maker = Callable[["InputFormat", Draw, int, int], Patterns]


@dataclass(frozen=True)
class InputFormat:
    """A 16-bit floating-point input format.

    Attributes:
        name: as in a repro string.
        dtype: the NumPy type.
        exponent_bits: width of the exponent field.
        mantissa_bits: width of the mantissa field.
    """

    name: str
    dtype: np.dtype[np.generic]
    exponent_bits: int
    mantissa_bits: int

    @property
    def bias(self) -> int:
        """Exponent field of the values in [1, 2)."""
        return (1 << self.exponent_bits - 1) - 1

    @property
    def infinity(self) -> int:
        """Pattern of +Inf; smaller magnitudes are finite, larger ones NaN."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    def patterns(self, values: NDArray[np.float64]) -> Patterns:
        """The patterns of `values`, rounded to nearest even."""
        return np.ascontiguousarray(values.astype(self.dtype)).view(np.uint16)


INPUT_FORMATS: Mapping[str, InputFormat] = MappingProxyType(
    {
        "bf16": InputFormat("bf16", np.dtype(ml_dtypes.bfloat16), exponent_bits=8, mantissa_bits=7),
        "fp16": InputFormat("fp16", np.dtype(np.float16), exponent_bits=5, mantissa_bits=10),
    }
)


@dataclass(frozen=True)
class Limits:
    """What a fill's quantized form must look like for equality to mean anything.

    Attributes:
        zeros: largest fraction of codes that may be zero; a kernel that writes nothing agrees with zeros.
        saturated: largest fraction of codes that may have the magnitude 448; a lost scale agrees with those.
        nans: largest fraction of NaN codes; a kernel that poisons everything agrees with those.
        scales: distinct scale bytes that must occur, where there are blocks enough; equal scales hide a permutation.
        reason: why these figures, for the message.
    """

    zeros: float = 0.10
    saturated: float = 0.10
    nans: float = 0.0
    scales: int = 2
    reason: str = "ordinary data has few zero or saturated codes and more than one scale"


@dataclass(frozen=True)
class Fill:
    """A named generator of input data.

    Attributes:
        name: as in a repro string.
        catches: which wrong kernels fail on it.
        make: `make(format, draw, m, k)` gives uint16 patterns [m, k].
        limits: what its quantized form must look like.
        least_blocks: blocks without which the fill does not do what its name says, by dtype.
    """

    name: str
    catches: str
    make: Maker
    limits: Limits = field(default_factory=Limits)
    least_blocks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def _blocks(format: InputFormat, draw: Draw, m: int, k: int) -> tuple[NDArray[np.int64], tuple[int, int]]:
    """Running number of every block, and the shape (blocks, 32) of its elements."""
    count = m * k // BLOCK
    return np.arange(count, dtype=np.int64), (count, BLOCK)


def _below(format: InputFormat, draw: Draw, top: NDArray[np.int64], octaves: int) -> NDArray[np.int64]:
    """Magnitude patterns [blocks, 32] from `octaves` below `top` up to `top`, uniform in the pattern."""
    low = np.maximum(top - (octaves << format.mantissa_bits), 0)
    span = np.broadcast_to((top - low + 1)[:, None], (top.size, BLOCK))
    return low[:, None] + draw.integers(span, (top.size, BLOCK))


def _place(elements: NDArray[np.int64], values: NDArray[np.int64], lane: NDArray[np.int64]) -> NDArray[np.int64]:
    """`elements` with `values` put at one lane of each block."""
    elements[np.arange(values.size), lane] = values
    return elements


def _finish(magnitudes: NDArray[np.int64], signs: Patterns, m: int, k: int) -> Patterns:
    return (magnitudes.astype(np.uint16) | signs).reshape(m, k)


def _gaussian(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    return format.patterns(draw.normal((m, k)))


def _wide_range(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Normal values times a power of two per block and one per element: every octave of a code in one block."""
    _, shape = _blocks(format, draw, m, k)
    reach = format.bias // 2 if format.name == "bf16" else 6
    block = draw.integers(2 * reach + 1, (shape[0], 1)) - reach
    element = -draw.integers(10, shape)
    return format.patterns(np.ldexp(draw.normal(shape), block + element)).reshape(m, k)


def _e4m3_ties() -> NDArray[np.float64]:
    """The 126 midpoints between neighbouring E4M3 magnitudes 0, 2^-9, ..., 448."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    value = np.where(exponent == 0, np.ldexp(mantissa / 8.0, -6), np.ldexp(1 + mantissa / 8.0, exponent - 7))
    return np.asarray((value[:-1] + value[1:]) / 2)


def _rne_ties(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Elements on a rounding tie of E4M3 after scaling, and one input ulp to either side of it.

    The block's maximum is 448 * 2^s, whose scale is 2^s in every mode, so that ties stay ties.
    """
    _, shape = _blocks(format, draw, m, k)
    low, high = (-100, 100) if format.name == "bf16" else (-14, 7)
    s = draw.integers(high - low + 1, (shape[0], 1)) + low
    tie = format.patterns(np.ldexp(_e4m3_ties()[draw.integers(126, shape)], s)).astype(np.int64)
    nudge = np.array([0, 0, 1, -1])[draw.integers(4, shape)]
    top = format.patterns(np.ldexp(448.0, s[:, 0])).astype(np.int64)
    elements = _place(tie + nudge, top, draw.integers(BLOCK, (shape[0],)))
    return _finish(elements, draw.signs(shape), m, k)


def _mantissa_order(format: InputFormat) -> NDArray[np.int64]:
    """Every mantissa, those around the boundaries of RCEIL, EVEN, ROUND_LOG2 and the binade first."""
    size = 1 << format.mantissa_bits
    boundaries = (size * 3 // 4, size * 15 // 16, round(size * (2**0.5 - 1)), 0)
    first = [(boundary + step) % size for boundary in boundaries for step in (0, 1, -1, 2, -2)]
    return np.array(list(dict.fromkeys([*first, *range(size)])), np.int64)


def _boundary_mantissas(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Block maxima that run through every mantissa; one wrong comparison moves the scale of its neighbours."""
    block, shape = _blocks(format, draw, m, k)
    exponent = 1 + draw.integers((1 << format.exponent_bits) - 2, (shape[0],))
    order = _mantissa_order(format)
    top = (exponent << format.mantissa_bits) | order[block % order.size]
    elements = _place(_below(format, draw, top, 10), top, draw.integers(BLOCK, (shape[0],)))
    return _finish(elements, draw.signs(shape), m, k)


def _scale_bytes(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Block maxima that run through every exponent field, subnormals and one Inf in each round included."""
    block, shape = _blocks(format, draw, m, k)
    exponent = block % (1 << format.exponent_bits)
    mantissa = draw.integers(1 << format.mantissa_bits, (shape[0],))
    top = np.minimum((exponent << format.mantissa_bits) | mantissa, format.infinity)
    elements = _place(_below(format, draw, top, 3), top, draw.integers(BLOCK, (shape[0],)))
    return _finish(elements, draw.signs(shape), m, k)


def _fingerprint(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """An exponent per (row, block) that differs from its neighbours' in every direction a layout can confuse.

    It is 17*row + 5*block modulo a prime, so equal only where the two index differences conspire: never for one step
    along a row, a column, or a digit of a swizzled layout.
    """
    low, prime = (10, 239) if format.name == "bf16" else (1, 29)
    row, column = np.divmod(np.arange(m * k // BLOCK, dtype=np.int64), max(k // BLOCK, 1))
    exponent = low + (17 * row + 5 * column) % prime
    mantissa = draw.integers(1 << format.mantissa_bits, exponent.shape)
    top = (exponent << format.mantissa_bits) | mantissa
    elements = _place(_below(format, draw, top, 6), top, draw.integers(BLOCK, exponent.shape))
    return _finish(elements, draw.signs((exponent.size, BLOCK)), m, k)


def _exhaustive_max(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """All 65,536 patterns, NaN and Inf included, in turn as the element that decides a block's scale."""
    block, shape = _blocks(format, draw, m, k)
    pattern = block % 65536
    magnitude = pattern & 0x7FFF
    finite = np.minimum(magnitude, format.infinity - 1)
    elements = _below(format, draw, finite, 10) | draw.signs(shape)
    return _place(elements, pattern, block % BLOCK).astype(np.uint16).reshape(m, k)


#: Binades between an element and its block's maximum: both are equal; codes with 3 mantissa bits; the last normal
#: code; the subnormal codes; below all of them.
_OCTAVES = (0, 3, 14, 16, 18)
_EXHAUSTIVE_GROUPS = -(-65536 // (BLOCK - 1))


def _exhaustive_element(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """All 65,536 patterns as elements, 31 to a block, under maxima 0, 3, 14, 16 and 18 binades above them."""
    block, shape = _blocks(format, draw, m, k)
    group = block % _EXHAUSTIVE_GROUPS
    octaves = np.array(_OCTAVES)[block // _EXHAUSTIVE_GROUPS % len(_OCTAVES)]
    patterns = (group[:, None] * (BLOCK - 1) + np.arange(BLOCK - 1)) % 65536
    exponent = (patterns & 0x7FFF).max(axis=1) >> format.mantissa_bits
    exponent = np.minimum(exponent + octaves, (1 << format.exponent_bits) - 2)
    top = (exponent << format.mantissa_bits) | draw.integers(1 << format.mantissa_bits, (shape[0],))
    # The maximum moves through the lanes with the block, so every lane meets every kind of element.
    elements = np.concatenate([patterns, (top | draw.signs(top.shape))[:, None]], axis=1)
    lane = (np.arange(BLOCK) + block[:, None]) % BLOCK
    turned: Patterns = np.take_along_axis(elements, lane, axis=1).astype(np.uint16)
    return turned.reshape(m, k)


def _specials(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Zeros of both signs, NaN and Inf of both signs, alone, among ordinary values and together, 16 kinds of block."""
    block, shape = _blocks(format, draw, m, k)
    ordinary = _below(format, draw, np.full(block.size, format.bias << format.mantissa_bits), 6) | draw.signs(shape)
    infinity, nan, negative = format.infinity, format.infinity | 1 << (format.mantissa_bits - 1), 0x8000
    # (what fills the block, what one lane holds, what another lane holds); None: an ordinary value.
    kinds: tuple[tuple[int | None, int | None, int | None], ...] = (
        (0, None, None),
        (None, None, None),
        (0, 0, 0),
        (None, 0, negative),
        (negative, negative, negative),
        (0, negative, 0),
        (None, nan, None),
        (None, None, None),
        (None, nan | negative, None),
        (None, infinity, None),
        (None, infinity | negative, None),
        (None, infinity, infinity | negative),
        (None, nan, infinity),
        (0, nan, 0),
        (negative, infinity | negative, 0),
        (nan, nan | negative, format.infinity | 1),
    )
    kind = block % len(kinds)
    first = draw.integers(BLOCK, (block.size,))
    second = (first + 1 + draw.integers(BLOCK - 1, (block.size,))) % BLOCK
    elements: NDArray[np.int64] = ordinary.copy()
    for number, (base, one, other) in enumerate(kinds):
        chosen = kind == number
        if base is not None:
            elements[chosen] = base
        for lane, value in ((first, one), (second, other)):
            rows = np.flatnonzero(chosen)
            elements[rows, lane[rows]] = ordinary[rows, lane[rows]] if value is None else value
    patterns: Patterns = elements.astype(np.uint16)
    return patterns.reshape(m, k)


def _tiny(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Block maxima from the smallest subnormal to a few binades above 448 * 2^-127, where the scale byte stays 0."""
    block, shape = _blocks(format, draw, m, k)
    exponent = block % (12 if format.name == "bf16" else 3)
    top = (exponent << format.mantissa_bits) | (1 + draw.integers((1 << format.mantissa_bits) - 1, (shape[0],)))
    span = np.broadcast_to((top + 1)[:, None], shape)
    elements = _place(draw.integers(span, shape), top, draw.integers(BLOCK, (shape[0],)))
    return _finish(elements, draw.signs(shape), m, k)


def _saturation(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Half of each block above 1.75 times its binade: past 448 under FLOOR, where 464 and more must not become NaN."""
    _, shape = _blocks(format, draw, m, k)
    size = 1 << format.mantissa_bits
    exponent = 4 + draw.integers((1 << format.exponent_bits) - 5, (shape[0], 1))
    upper = (exponent << format.mantissa_bits) | (size * 3 // 4 + draw.integers(size // 4, shape))
    lower = upper - (draw.integers(3 << format.mantissa_bits, shape) + 1)
    return _finish(np.where(draw.integers(2, shape) == 1, upper, lower), draw.signs(shape), m, k)


_FILLS = (
    Fill("gaussian", "the data of published tests, for comparison with them", _gaussian),
    Fill(
        "wide-range",
        "flushed, clamped or double-rounded small codes",
        _wide_range,
        Limits(scales=8, reason="blocks differ by many binades"),
    ),
    Fill(
        "rne-ties",
        "round toward zero, half away, half up; a scale rounded after quantization",
        _rne_ties,
        Limits(scales=8, reason="the ties of one block meet one scale; many scales are drawn"),
    ),
    Fill(
        "boundary-mantissas",
        "another scale mode; a boundary off by one",
        _boundary_mantissas,
        Limits(zeros=0.2, scales=8, reason="exponents are drawn from the whole format, tiny ones included"),
    ),
    Fill(
        "scale-bytes",
        "a clamped or wrapped scale byte",
        _scale_bytes,
        Limits(zeros=0.2, saturated=0.25, nans=0.25, scales=8, reason="one block in 256 (BF16) or 32 (FP16) is Inf"),
    ),
    Fill(
        "fingerprint",
        "permuted or shifted scales, rows or experts; scales ignored",
        _fingerprint,
        Limits(scales=16, reason="equal scales hide a permutation"),
    ),
    Fill(
        "exhaustive-max",
        "any wrong scale",
        _exhaustive_max,
        Limits(zeros=0.1, nans=0.05, scales=24, reason="254 of the 65,536 BF16 patterns are NaN, 2,046 of FP16's"),
        MappingProxyType({"bf16": 65536, "fp16": 65536}),
    ),
    Fill(
        "exhaustive-element",
        "any wrong code",
        _exhaustive_element,
        Limits(
            zeros=0.5,
            saturated=0.2,
            nans=0.05,
            scales=24,
            reason="of the five distances one saturates under FLOOR, two lie below the codes",
        ),
        MappingProxyType(dict.fromkeys(("bf16", "fp16"), _EXHAUSTIVE_GROUPS * len(_OCTAVES))),
    ),
    Fill(
        "specials",
        "NaN dropped, Inf clamped, the sign of zero lost, a stale block scale",
        _specials,
        Limits(
            zeros=0.7, saturated=0.4, nans=0.7, scales=2, reason="13 of its 16 kinds of block are zero or not finite"
        ),
    ),
    Fill(
        "tiny",
        "flush to zero; an exponent that wraps below byte 0; a subnormal scale 2^-127 taken for 0",
        _tiny,
        Limits(zeros=0.95, scales=2, reason="codes below 2^-127 are zeros, all of them when a policy flushes byte 0"),
    ),
    Fill(
        "saturation",
        "saturation missing: NaN or a wrapped code above 464",
        _saturation,
        Limits(saturated=0.75, scales=8, reason="FLOOR saturates the half of each block that lies above 1.75"),
    ),
)

#: The generated fills by name. `real` and `activations` read files: see refmoe.families.real_data.
FILLS: Mapping[str, Fill] = MappingProxyType({fill.name: fill for fill in _FILLS})
