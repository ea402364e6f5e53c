"""The family `mxfp8_quantize`: fills of BF16 and FP16 input, the expectation, the run, the cases.

A fill makes bit patterns, block by block; a block is 32 neighbours along K. Three things decide an MX quantizer: where
a block's largest magnitude lies in its binade, where scaled elements lie between two codes, and what is not finite. Bit
patterns of magnitudes have the order of the magnitudes, so "a pattern below" is "a value below".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import MULTIPROCESSORS, Shape, refused, text, word
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Fill, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, Layout, check_before, far_device, lacks_memory, of_rows
from refmoe.families.real_data import FFN_INPUT, read_activations, tile_rows
from refmoe.families.stages import Codes, Scales
from refmoe.families.vacuity import Limits, doubt_codes
from refmoe.families.wrong import ARRAY, BYTE, MANY, WRONG, called, wrong_calls
from refmoe.formats import MX_BLOCK
from refmoe.reference.layout import scale_buffer_size, swizzle_scales
from refmoe.reference.quantize import quantize_mxfp8

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

Patterns = NDArray[np.uint16]
Generator = Callable[["InputFormat", Draw, int, int], Patterns]


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


def _blocks(m: int, k: int) -> tuple[NDArray[np.int64], tuple[int, int]]:
    """Running number of every block, and the shape (blocks, 32) of its elements."""
    count = m * k // MX_BLOCK
    return np.arange(count, dtype=np.int64), (count, MX_BLOCK)


def _below(format: InputFormat, draw: Draw, top: NDArray[np.int64], octaves: int) -> NDArray[np.int64]:
    """Magnitude patterns [blocks, 32] from `octaves` below `top` up to `top`, uniform in the pattern."""
    low = np.maximum(top - (octaves << format.mantissa_bits), 0)
    span = np.broadcast_to((top - low + 1)[:, None], (top.size, MX_BLOCK))
    return low[:, None] + draw.integers(span, (top.size, MX_BLOCK))


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
    _, shape = _blocks(m, k)
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
    _, shape = _blocks(m, k)
    low, high = (-100, 100) if format.name == "bf16" else (-14, 7)
    s = draw.integers(high - low + 1, (shape[0], 1)) + low
    tie = format.patterns(np.ldexp(_e4m3_ties()[draw.integers(126, shape)], s)).astype(np.int64)
    nudge = np.array([0, 0, 1, -1])[draw.integers(4, shape)]
    top = format.patterns(np.ldexp(448.0, s[:, 0])).astype(np.int64)
    elements = _place(tie + nudge, top, draw.integers(MX_BLOCK, (shape[0],)))
    return _finish(elements, draw.signs(shape), m, k)


def _mantissa_order(format: InputFormat) -> NDArray[np.int64]:
    """Every mantissa, those around the boundaries of RCEIL, EVEN, ROUND_LOG2 and the binade first."""
    size = 1 << format.mantissa_bits
    boundaries = (size * 3 // 4, size * 15 // 16, round(size * (2**0.5 - 1)), 0)
    first = [(boundary + step) % size for boundary in boundaries for step in (0, 1, -1, 2, -2)]
    return np.array(list(dict.fromkeys([*first, *range(size)])), np.int64)


def _boundary_mantissas(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Block maxima that run through every mantissa; one wrong comparison moves the scale of its neighbours."""
    block, shape = _blocks(m, k)
    exponent = 1 + draw.integers((1 << format.exponent_bits) - 2, (shape[0],))
    order = _mantissa_order(format)
    top = (exponent << format.mantissa_bits) | order[block % order.size]
    elements = _place(_below(format, draw, top, 10), top, draw.integers(MX_BLOCK, (shape[0],)))
    return _finish(elements, draw.signs(shape), m, k)


def _scale_bytes(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Block maxima that run through every exponent field, subnormals and one Inf in each round included."""
    block, shape = _blocks(m, k)
    exponent = block % (1 << format.exponent_bits)
    mantissa = draw.integers(1 << format.mantissa_bits, (shape[0],))
    top = np.minimum((exponent << format.mantissa_bits) | mantissa, format.infinity)
    elements = _place(_below(format, draw, top, 3), top, draw.integers(MX_BLOCK, (shape[0],)))
    return _finish(elements, draw.signs(shape), m, k)


def _fingerprint(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """An exponent per (row, block) that differs from its neighbours' in every direction a layout can confuse.

    It is 17*row + 5*block modulo a prime, so equal only where the two index differences conspire: never for one step
    along a row, a column, or a digit of a swizzled layout.
    """
    low, prime = (10, 239) if format.name == "bf16" else (1, 29)
    row, column = np.divmod(np.arange(m * k // MX_BLOCK, dtype=np.int64), max(k // MX_BLOCK, 1))
    exponent = low + (17 * row + 5 * column) % prime
    mantissa = draw.integers(1 << format.mantissa_bits, exponent.shape)
    top = (exponent << format.mantissa_bits) | mantissa
    elements = _place(_below(format, draw, top, 6), top, draw.integers(MX_BLOCK, exponent.shape))
    return _finish(elements, draw.signs((exponent.size, MX_BLOCK)), m, k)


def _exhaustive_max(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """All 65,536 patterns, NaN and Inf included, in turn as the element that decides a block's scale."""
    block, shape = _blocks(m, k)
    pattern = block % 65536
    magnitude = pattern & 0x7FFF
    finite = np.minimum(magnitude, format.infinity - 1)
    elements = _below(format, draw, finite, 10) | draw.signs(shape)
    return _place(elements, pattern, block % MX_BLOCK).astype(np.uint16).reshape(m, k)


#: Binades between an element and its block's maximum: both are equal; codes with 3 mantissa bits; the last normal
#: code; the subnormal codes; below all of them.
_OCTAVES = (0, 3, 14, 16, 18)
_EXHAUSTIVE_GROUPS = -(-65536 // (MX_BLOCK - 1))


def _exhaustive_element(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """All 65,536 patterns as elements, 31 to a block, under maxima 0, 3, 14, 16 and 18 binades above them."""
    block, shape = _blocks(m, k)
    group = block % _EXHAUSTIVE_GROUPS
    octaves = np.array(_OCTAVES)[block // _EXHAUSTIVE_GROUPS % len(_OCTAVES)]
    patterns = (group[:, None] * (MX_BLOCK - 1) + np.arange(MX_BLOCK - 1)) % 65536
    exponent = (patterns & 0x7FFF).max(axis=1) >> format.mantissa_bits
    exponent = np.minimum(exponent + octaves, (1 << format.exponent_bits) - 2)
    top = (exponent << format.mantissa_bits) | draw.integers(1 << format.mantissa_bits, (shape[0],))
    # The maximum moves through the lanes with the block, so every lane meets every kind of element.
    elements = np.concatenate([patterns, (top | draw.signs(top.shape))[:, None]], axis=1)
    lane = (np.arange(MX_BLOCK) + block[:, None]) % MX_BLOCK
    return np.take_along_axis(elements, lane, axis=1).astype(np.uint16).reshape(m, k)


def _specials(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Zeros of both signs, NaN and Inf of both signs, alone, among ordinary values and together, 16 kinds of block."""
    block, shape = _blocks(m, k)
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
    first = draw.integers(MX_BLOCK, (block.size,))
    second = (first + 1 + draw.integers(MX_BLOCK - 1, (block.size,))) % MX_BLOCK
    elements: NDArray[np.int64] = ordinary.copy()
    for number, (base, one, other) in enumerate(kinds):
        chosen = kind == number
        if base is not None:
            elements[chosen] = base
        for lane, value in ((first, one), (second, other)):
            rows = np.flatnonzero(chosen)
            elements[rows, lane[rows]] = ordinary[rows, lane[rows]] if value is None else value
    return elements.astype(np.uint16).reshape(m, k)


def _tiny(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Block maxima from the smallest subnormal to a few binades above 448 * 2^-127, where the scale byte stays 0."""
    block, shape = _blocks(m, k)
    exponent = block % (12 if format.name == "bf16" else 3)
    top = (exponent << format.mantissa_bits) | (1 + draw.integers((1 << format.mantissa_bits) - 1, (shape[0],)))
    span = np.broadcast_to((top + 1)[:, None], shape)
    elements = _place(draw.integers(span, shape), top, draw.integers(MX_BLOCK, (shape[0],)))
    return _finish(elements, draw.signs(shape), m, k)


def _saturation(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Half of each block above 1.75 times its binade: past 448 under FLOOR, where 464 and more must not become NaN."""
    _, shape = _blocks(m, k)
    size = 1 << format.mantissa_bits
    exponent = 4 + draw.integers((1 << format.exponent_bits) - 5, (shape[0], 1))
    upper = (exponent << format.mantissa_bits) | (size * 3 // 4 + draw.integers(size // 4, shape))
    lower = upper - (draw.integers(3 << format.mantissa_bits, shape) + 1)
    return _finish(np.where(draw.integers(2, shape) == 1, upper, lower), draw.signs(shape), m, k)


_ORDINARY = Limits()


#: Blocks without which a fill does not do what its name says.
LEAST_BLOCKS = {"exhaustive-max": 65536, "exhaustive-element": _EXHAUSTIVE_GROUPS * len(_OCTAVES)}


def _generated(name: str, catches: str, generator: Generator, limits: Limits = _ORDINARY) -> Fill:
    """The fill of a generator."""
    blocks = LEAST_BLOCKS.get(name, 0)

    def make(case: Case, dtype: str) -> NDArray[Any]:
        format = INPUT_FORMATS[dtype]
        patterns = generator(format, Draw(name, dtype, case.seed), case.shape.m, case.shape.k)
        return patterns.view(format.dtype)

    def lack(case: Case) -> str | None:
        enough = case.dtype not in INPUT_FORMATS or case.shape.m * case.shape.k // MX_BLOCK >= blocks
        return None if enough else f"at least {blocks} blocks of {MX_BLOCK} for the fill {name}"

    return Fill(name, catches, make, limits, lack)


def _from_file(case: Case, dtype: str) -> NDArray[Any]:
    """Rows of a model's hidden states: of the tensor that ships with refmoe, or of the case's file."""
    source = read_activations(Path(case.file), case.tensor or None) if case.file else read_activations(FFN_INPUT)
    rows = tile_rows(source.patterns, case.shape.m, case.shape.k, first_row=case.seed * 37)
    values = rows.view(INPUT_FORMATS[source.dtype].dtype)
    return values if source.dtype == dtype else values.astype(np.float32).astype(INPUT_FORMATS[dtype].dtype)


#: Activations from a file, shipped or a user's.
_FILE_LIMITS = Limits(
    zeros=0.5, nans=0.05, scales=2, reason="hidden states of a model are neither constant nor mostly zero"
)

#: The input data of quantization and expand, by name.
FILLS = Fill.by_name(
    _generated("gaussian", "what published tests catch, whose data this is", _gaussian),
    _generated(
        "wide-range",
        "flushed, clamped or double-rounded small codes",
        _wide_range,
        Limits(scales=8, reason="blocks differ by many binades"),
    ),
    _generated(
        "rne-ties",
        "round toward zero, half away, half up; a scale rounded after quantization",
        _rne_ties,
        Limits(scales=8, reason="the ties of one block meet one scale; many scales are drawn"),
    ),
    _generated(
        "boundary-mantissas",
        "another scale mode; a boundary off by one",
        _boundary_mantissas,
        Limits(zeros=0.2, scales=8, reason="exponents are drawn from the whole format, tiny ones included"),
    ),
    _generated(
        "scale-bytes",
        "a clamped or wrapped scale byte",
        _scale_bytes,
        Limits(zeros=0.2, saturated=0.25, nans=0.25, scales=8, reason="one block in 256 (BF16) or 32 (FP16) is Inf"),
    ),
    _generated(
        "fingerprint",
        "permuted or shifted scales, rows or experts; scales ignored",
        _fingerprint,
        Limits(scales=16, reason="equal scales hide a permutation"),
    ),
    _generated(
        "exhaustive-max",
        "any wrong scale",
        _exhaustive_max,
        Limits(zeros=0.1, nans=0.05, scales=24, reason="254 of the 65,536 BF16 patterns are NaN, 2,046 of FP16's"),
    ),
    _generated(
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
    ),
    _generated(
        "specials",
        "NaN dropped, Inf clamped, the sign of zero lost, a stale block scale",
        _specials,
        Limits(
            zeros=0.7, saturated=0.4, nans=0.7, scales=2, reason="13 of its 16 kinds of block are zero or not finite"
        ),
    ),
    _generated(
        "tiny",
        "flush to zero; an exponent that wraps below byte 0; a subnormal scale 2^-127 taken for 0",
        _tiny,
        Limits(zeros=0.95, scales=2, reason="codes below 2^-127 are zeros, all of them when a policy flushes byte 0"),
    ),
    _generated(
        "saturation",
        "saturation missing: NaN or a wrapped code above 464",
        _saturation,
        Limits(saturated=0.75, scales=8, reason="FLOOR saturates the half of each block that lies above 1.75"),
    ),
    Fill("real", "what only a model's hidden states and outlier channels show", _from_file, _FILE_LIMITS),
    Fill("activations", "what only your own activations show", _from_file, _FILE_LIMITS),
)

MODE = word("mode", "rceil", "floor", fixed=True)
EDGE = word("edge", "exact", "flashinfer", fixed=True)
_LAYOUT = word("layout", "linear", "128x4", "8x4", fixed=True)
#: The file and the tensor of the fill `activations`.
FILE_OPTIONS = (text("file"), text("tensor"))

#: (mode, edge) of every compiled variant.
COMPILED_POLICIES = tuple(product(MODE.words, EDGE.words))

#: Width, experts and experts per token of gpt-oss-120b and DeepSeek-V3.
MODELS = ((2880, 128, 4), (7168, 256, 8))
DECODE = (1, 2, 8)

#: Rows of 64 elements whose pieces of 16 number 2^31, as do the bytes of their swizzled scales.
FAR_ROWS = 1 << 29

#: More rows than the largest grid of any arch, 64 CTAs on each of 170 multiprocessors: CTAs take several.
LOOPING_ROWS = 11008


def make_input(case: Case, dtype: str) -> NDArray[Any]:
    """The case's input as BF16 or FP16 [m, k]."""
    made: NDArray[Any] = FILLS[case.fill].make(case, dtype)
    return made


def check_file(case: Case) -> None:
    """Refuse a file without the fill that reads it, and that fill without a file.

    Raises:
        ArgumentError: either.
    """
    if (case.fill == "activations") != bool(case.file):
        raise refused("file", case.file or "none", "file=PATH with the fill 'activations', and with no other fill")
    if case.tensor and not case.file:
        raise refused("tensor", case.tensor, "file=PATH with it")


def _inputs(case: Case) -> Inputs:
    return {"x": make_input(case, case.dtype)}


def settings_of(case: Case) -> dict[str, Any]:
    """What every quantizing kernel takes of a case by the same names."""
    return {"mode": case.mode, "edge": case.edge, "layout": case.layout, "fill": case.poison}


def quantized_stages(case: Case, scales: NDArray[np.uint8]) -> tuple[Codes, Scales]:
    """The words for codes [m, k] and scales of a whole matrix; `scales` are linear, uint8 [m, k/32]."""
    rows, blocks = scales.shape
    codes = Codes("codes", (rows, case.shape.k), scales, written_rows=rows)
    return codes, Scales("scales", case.layout, rows, blocks)


def _expect(case: Case, inputs: Inputs) -> Expectation:
    quantized = quantize_mxfp8(inputs["x"], mode=case.mode, edge=case.edge)
    scales = swizzle_scales(quantized.scales, case.layout, fill=case.poison)
    doubt = doubt_codes(quantized.codes, quantized.scales, FILLS[case.fill].limits)
    return Expectation({"codes": quantized.codes, "scales": scales}, quantized_stages(case, quantized.scales), doubt)


def _far(case: Case) -> Layout:
    """Where rows lie in the kernel's buffers."""
    k = case.shape.k
    scale_bytes = k // MX_BLOCK if case.layout == "linear" else -(-k // (4 * MX_BLOCK)) * 4
    return of_rows(case, {"x": 2 * k, "codes": k, "scales": scale_bytes})


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda import quantize

    place = far_device(case, device, _far(case))
    result = called(case, quantize.quantize_mxfp8)(inputs["x"], device=place, **settings_of(case))
    return {"codes": result.codes, "scales": result.scales}


def _check(case: Case) -> None:
    check_file(case)
    check_before(case)


EXHAUSTIVE = ("exhaustive-max", "exhaustive-element")
PLAIN = tuple(name for name in FILLS if name not in (*EXHAUSTIVE, "real", "activations"))


def _case(fill: str, m: int, k: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return QUANTIZE.case(fill, Shape(m, k), dtype, seed, **options)


def _quick() -> Iterator[Case]:
    # 90 blocks are no multiple of 4 scale columns, 5 and 9 rows fill no tile: padding in both directions.
    yield _case("fingerprint", 5, 2880, layout="128x4")
    yield _case("fingerprint", 9, 2880, layout="8x4")
    yield _case("fingerprint", 2, 2880)
    for mode, edge in COMPILED_POLICIES:
        yield _case("boundary-mantissas", 16, 416, mode=mode, edge=edge)
        yield _case("specials", 4, 416, mode=mode, edge=edge)
    yield _case("rne-ties", 4, 416)
    yield _case("tiny", 4, 416)
    yield _case("tiny", 4, 416, edge="flashinfer")
    yield _case("saturation", 4, 416, mode="floor")
    yield _case("scale-bytes", 32, 416)
    yield _case("wide-range", 4, 416, edge="flashinfer")
    yield _case("rne-ties", 4, 416, dtype="fp16", layout="128x4")
    yield _case("specials", 4, 416, dtype="fp16", edge="flashinfer")
    yield _case("fingerprint", 3, 32, layout="128x4")  # one block: a row of two lanes


def _default() -> Iterator[Case]:
    for dtype, (mode, edge) in product(INPUT_FORMATS, COMPILED_POLICIES):
        for fill, layout in product(PLAIN, _LAYOUT.words):
            yield _case(fill, 16, 2880, dtype=dtype, mode=mode, edge=edge, layout=layout)
        yield _case("real", 64, 2880, dtype=dtype, mode=mode, edge=edge)
    for mode, edge in COMPILED_POLICIES:
        yield _case("exhaustive-max", 1024, 2048, mode=mode, edge=edge)
        yield _case("exhaustive-element", 128, 2880, mode=mode, edge=edge)
    yield _case("exhaustive-max", 1024, 2048, dtype="fp16")
    yield _case("exhaustive-element", 128, 2880, dtype="fp16")
    for k, _, _ in MODELS:
        for m, layout in product(DECODE, _LAYOUT.words):
            yield _case("fingerprint", m, k, layout=layout, poison=0x7F)
        yield _case("fingerprint", 300, k, layout="128x4")
    for layout in ("linear", "8x4"):
        yield _case("fingerprint", LOOPING_ROWS, 32, layout=layout)
    # More rows of scales than CTAs, and more than 65,536 rows.
    yield _case("fingerprint", 65_600, 32, layout="128x4")
    for rows in (7, 8, 9):  # a tile of the layout, and a row less and more; k a whole group, and a block less and more
        yield _case("fingerprint", rows, 96 + 32 * (rows - 7), layout="8x4", poison=0x7F)
    for rows in (127, 128, 129, 255, 256, 257):
        yield _case("fingerprint", rows, 128, layout="128x4", poison=0x7F)
    yield _case("fingerprint", 17, 128, layout="8x4", poison=0x7F)
    for k in (480, 512, 544, 8160, 8192):  # a warp's elements and a CTA's, and a block less and more
        yield _case("wide-range", 2, k, layout="128x4")
    for layout in ("linear", "128x4"):
        # Pieces of 16 codes, and bytes of swizzled scales, past 2^31.
        yield _case("fingerprint", 3, 64, layout=layout, rows_before=FAR_ROWS)
        # Past 2^32, where an index without a sign wraps too.
        yield _case("fingerprint", 3, 160, layout=layout, rows_before=FAR_ROWS)
    for layout in ("linear", "128x4"):
        yield _case("wide-range", 3, 8224, layout=layout)  # a row wider than a CTA, by one block
    for layout in _LAYOUT.words:
        yield _case("gaussian", 0, 2880, layout=layout)
        yield _case("wide-range", 1, 16416, layout=layout)  # a row wider than two rounds of a CTA
        yield _case("wide-range", 1, 24_608, layout=layout)  # and than three
        # Rows wider than a CTA, more of them than there are CTAs: a CTA comes back to its first round of a row.
        yield _case("wide-range", 66, 8224, layout=layout, multiprocessors=1)
    yield _case("fingerprint", 5, 64, layout="128x4", poison=0)  # the fill's default


def _full() -> Iterator[Case]:
    listed = product((1, 2, 3), INPUT_FORMATS, COMPILED_POLICIES, PLAIN, _LAYOUT.words)
    for seed, dtype, (mode, edge), fill, layout in listed:
        yield _case(fill, 130, 2880, dtype=dtype, seed=seed, mode=mode, edge=edge, layout=layout)
    for (mode, edge), fill in product(COMPILED_POLICIES, EXHAUSTIVE):
        yield _case(fill, 1024, 2048, dtype="fp16", mode=mode, edge=edge)
    for k in range(MX_BLOCK, 1056, MX_BLOCK):
        yield _case("fingerprint", 9, k, layout="128x4")
        yield _case("fingerprint", 9, k, layout="8x4")
    yield _case("real", 2048, 7168, layout="128x4")


def _refuses() -> Iterator[Case]:
    yield from wrong_calls(
        _case("gaussian", 2, 64),
        {
            **{
                "x-many_rows": f"x: found {MANY} rows",
                "x-most_rows": "step past",
                "x-long_rows": "bytes of scale atoms",
            },
            # The words in the order in which the page of quantize has them.
            **{"mode-word": "needed one of 'rceil', 'floor'", "edge-word": "needed one of 'exact', 'flashinfer'"},
        },
        x=f"{ARRAY} flat narrow no_columns many_rows most_rows long_rows",
        **dict.fromkeys(("mode", "edge", "layout"), "word"),
        fill=BYTE,
    )


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    m, k = case.shape.m, case.shape.k
    return {"codes": m * k, "scales": scale_buffer_size(m, k // MX_BLOCK, case.layout)}


QUANTIZE = Family(
    name="mxfp8_quantize",
    about="MXFP8 codes and E8M0 scales of a BF16 or FP16 matrix.",
    dtypes=tuple(INPUT_FORMATS),
    sizes="mk",
    fills=FILLS,
    options=(MODE, EDGE, _LAYOUT, MULTIPROCESSORS, ROWS_BEFORE, POISON, WRONG, *FILE_OPTIONS),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    contract=Contract(
        inputs=("x",),
        outputs={"codes": "float8_e4m3fn", "scales": "float8_e8m0fnu"},
        settings={"mode": "mode", "edge": "edge", "layout": "layout"},
    ),
    sources=("quantize",),
    host=("refmoe.cuda.quantize",),
    check=_check,
    lacks=lacks_memory,
)
