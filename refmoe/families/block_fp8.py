"""The family `block_fp8_quantize`: fills of BF16, FP16 and FP32 input, the expectation, the run, the cases.

A fill is made tile by tile; a tile is 1x128 or 128x128, less at the matrix's edge. Three things decide block FP8: a
tile's largest magnitude, its *top*, which sets the scale; the three roundings on the way to a code, of amax / 448, of
its reciprocal, of the product; and what is tiny or not finite. Bit patterns of magnitudes have the order of the
magnitudes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import MULTIPROCESSORS, Shape, refused, word
from refmoe.families.extents import BLOCK_FP8_TILE
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Fill, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, Layout, check_before, far_device, lacks_memory, of_rows
from refmoe.families.quantize import DECODE, FAR_ROWS, LOOPING_ROWS, MODELS
from refmoe.families.real_data import FFN_INPUT, read_activations, tile_rows
from refmoe.families.stages import Plane, matrix_plane
from refmoe.families.vacuity import Limits, doubt_codes
from refmoe.families.wrong import ARRAY, BYTE, WRONG, Change, called, wrong_calls
from refmoe.formats import BF16, BLOCK_FP8, E4M3, FP16, FP32, Format, TileFormat
from refmoe.numbers_as_text import compared_text, number_text
from refmoe.reference.block_fp8 import LAYOUTS, POLICIES, SCALES, lay_out, quantize_block_fp8, spread

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

Integers = NDArray[np.int64]

_FORMATS: Mapping[str, Format] = MappingProxyType({"bf16": BF16, "fp16": FP16, "f32": FP32})

#: FP32(1e-4), below which DeepGEMM takes no amax.
_FLOOR = 1e-4


@dataclass(frozen=True)
class Tiles:
    """The tiles of a matrix [m, k] of a format, and random numbers for them.

    Attributes:
        format: of the elements.
        draw: the stream of the case.
        tile: 1x128 or 128x128.
        m, k: of the matrix.
    """

    format: Format
    draw: Draw
    tile: TileFormat
    m: int
    k: int

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across."""
        return self.tile.scale_shape(self.m, self.k)

    @property
    def numbers(self) -> Integers:
        """The running number of every tile, [down, across]."""
        down, across = self.grid
        return np.arange(down * across, dtype=np.int64).reshape(down, across)

    @property
    def infinity(self) -> int:
        """The pattern of +Inf; smaller magnitudes are finite."""
        assert self.format.infinity_code is not None
        return self.format.infinity_code

    def patterns(self, values: NDArray[np.float64]) -> Integers:
        """The patterns of values, rounded to nearest even."""
        assert self.format.dtype is not None
        with np.errstate(over="ignore"):
            typed = np.ascontiguousarray(values.astype(self.format.dtype))
        return typed.view(f"u{self.format.dtype.itemsize}").astype(np.int64)

    def values(self, patterns: Integers) -> NDArray[np.float64]:
        """The values of patterns."""
        assert self.format.dtype is not None
        typed = patterns.astype(f"u{self.format.dtype.itemsize}").view(self.format.dtype)
        return np.asarray(typed.astype(np.float64))

    def spread(self, tiles: NDArray[Any]) -> NDArray[Any]:
        """A number of each tile as one of each element [m, k]."""
        return spread(tiles, self.tile, (self.m, self.k))

    def below(self, tops: Integers, octaves: int) -> Integers:
        """Magnitudes [m, k] from `octaves` below the tops up to them, each top once in its tile."""
        least = np.maximum(tops - (octaves << self.format.mantissa_bits), 0)
        span = self.spread(tops - least + 1)
        return self.place(self.spread(least) + self.draw.integers(span, (self.m, self.k)), tops)

    def place(self, elements: Integers, values: Integers) -> Integers:
        """`elements` [m, k] with a value put at one place of each tile."""
        down, across = np.indices(self.grid)
        first_row, first_column = down * self.tile.rows, across * self.tile.columns
        rows = first_row + self.draw.integers(np.minimum(self.m - first_row, self.tile.rows), self.grid)
        columns = first_column + self.draw.integers(np.minimum(self.k - first_column, self.tile.columns), self.grid)
        elements[rows, columns] = values
        return elements

    def signed(self, magnitudes: Integers) -> Integers:
        """Magnitudes with a random sign each."""
        return magnitudes | self.draw.integers(2, (self.m, self.k)) << (self.format.bits - 1)


def _gaussian(tiles: Tiles) -> Integers:
    return tiles.patterns(tiles.draw.normal((tiles.m, tiles.k)))


def _fingerprint(tiles: Tiles) -> Integers:
    """Tops that differ from their neighbours' in every direction that a layout can confuse, all above 1e-4."""
    low, prime = (2, 29) if tiles.format is FP16 else (115, 101)
    down, across = np.indices(tiles.grid)
    exponent = low + (17 * down + 5 * across) % prime
    tops = exponent << tiles.format.mantissa_bits | tiles.draw.integers(1 << tiles.format.mantissa_bits, tiles.grid)
    return tiles.signed(tiles.below(tops, 6))


def _scale_range(tiles: Tiles) -> Integers:
    """Tops in every exponent of the format, subnormals included."""
    format = tiles.format
    # Steps of a prime, so that few tiles reach far too.
    exponent = 37 * tiles.numbers % ((1 << format.exponent_bits) - 1)
    tops = exponent << format.mantissa_bits | tiles.draw.integers(1 << format.mantissa_bits, tiles.grid)
    return tiles.signed(tiles.below(tops, 4))


def _ties() -> NDArray[np.float64]:
    """The 126 midpoints between neighbouring E4M3 magnitudes 0, 2^-9, ..., 448."""
    values = E4M3.values()[: E4M3.max_code + 1]
    return np.asarray((values[:-1] + values[1:]) / 2)


def _exponents(tiles: Tiles) -> Integers:
    """An exponent for each tile such that 448 and 2^-9 times its power are normal numbers of the format, above 1e-4."""
    low, high = (-4, 6) if tiles.format is FP16 else (-22, 100)
    return tiles.draw.integers(high - low + 1, tiles.grid) + low


def _rne_ties(tiles: Tiles) -> Integers:
    """Scales that are powers of two, so that ties stay ties, and elements there or one input ulp beside."""
    s = _exponents(tiles)
    shape = (tiles.m, tiles.k)
    tie = tiles.patterns(np.ldexp(_ties()[tiles.draw.integers(126, shape)], tiles.spread(s)))
    nudge = np.array([0, 0, 1, -1])[tiles.draw.integers(4, shape)]
    return tiles.signed(tiles.place(tie + nudge, tiles.patterns(np.ldexp(448.0, s))))


def _reciprocal(tiles: Tiles) -> Integers:
    """Scales with all their bits, and elements at most two input ulp from a tie times the scale.

    Half of the tops are 7 q 2^s with an odd q: amax / 448 is exact then, and its reciprocal is not.
    """
    s, shape = _exponents(tiles), (tiles.m, tiles.k)
    odd = 7 * (2 * tiles.draw.integers(16, tiles.grid) + 1)
    drawn = 1 << 7 | tiles.draw.integers(1 << 7, tiles.grid)
    fraction = tiles.draw.integers(1 << 16, tiles.grid) / 65536
    significand = np.where(tiles.numbers % 2 == 0, odd, drawn + fraction)
    tops = tiles.patterns(np.ldexp(significand, s))
    scale = (tiles.values(tops) / 448).astype(np.float32).astype(np.float64)
    tie = tiles.patterns(_ties()[tiles.draw.integers(126, shape)] * tiles.spread(scale))
    nudged = tie + np.array([0, 0, 1, -1, 2, -2])[tiles.draw.integers(6, shape)]
    return tiles.signed(tiles.place(np.clip(nudged, 0, tiles.spread(tops)), tops))


def _powers(tiles: Tiles) -> Integers:
    """Scales that are powers of two, and those one or two input ulp of the top beside."""
    tops = tiles.patterns(np.ldexp(448.0, _exponents(tiles))) + np.array([0, 1, -1, 0, 2, -2])[tiles.numbers % 6]
    return tiles.signed(tiles.below(tops, 12))


def _floor(tiles: Tiles) -> Integers:
    """Tops at 1e-4, up to three input ulp and up to two binades beside."""
    steps = np.array([0, 1, -1, 2, -2, 3, -3, 1 << tiles.format.mantissa_bits, -(1 << tiles.format.mantissa_bits + 1)])
    # FP16 has no two binades below it.
    tops = np.maximum(tiles.patterns(np.array(_FLOOR)) + steps[tiles.numbers % steps.size], 1)
    return tiles.signed(tiles.below(tops, 5))


def _tiny(tiles: Tiles) -> Integers:
    """Tops from the smallest subnormal to a few binades above 448 * 2^-126, below which an exact scale stays 2^-126."""
    mantissa_bits = tiles.format.mantissa_bits
    exponent = 5 * tiles.numbers % (13 if tiles.format is not FP16 else 3)
    tops = exponent << mantissa_bits | (1 + tiles.draw.integers((1 << mantissa_bits) - 1, tiles.grid))
    return tiles.signed(tiles.below(tops, 14))


def _specials(tiles: Tiles) -> Integers:
    """Zeros, NaN and Inf of both signs, alone, among ordinary values and together, ten kinds of tile."""
    format = tiles.format
    sign, infinity = 1 << (format.bits - 1), tiles.infinity
    nan, least_nan = infinity | 1 << (format.mantissa_bits - 1), infinity | 1
    ordinary = tiles.signed(tiles.below(np.full(tiles.grid, format.bias << format.mantissa_bits), 6))
    # (what fills the tile, what one place holds, what another place holds); None: an ordinary value.
    kinds: tuple[tuple[int | None, int | None, int | None], ...] = (
        (None, None, None),
        (None, nan, None),
        (None, infinity | sign, None),
        (0, None, None),
        (sign, 0, 0),
        (None, infinity, infinity | sign),
        (None, least_nan | sign, infinity),
        (None, 0, sign),
        (None, infinity, None),
        (0, infinity, None),
    )
    kind = tiles.numbers % len(kinds)
    base = np.array([-1 if each[0] is None else each[0] for each in kinds])[tiles.spread(kind)]
    elements: Integers = np.where(base < 0, ordinary, base)
    for number in (2, 1):
        value = np.array([-1 if each[number] is None else each[number] for each in kinds])[kind]
        placed = tiles.place(np.full((tiles.m, tiles.k), -1, np.int64), value)
        elements = np.where(placed < 0, elements, placed)
    return elements


_ORDINARY = Limits()
_EDGES = Limits(zeros=0.9, nans=0.75, saturated=0.2, reason="eight of its ten kinds of tile are zero or not finite")


def _generated(name: str, catches: str, generator: Callable[[Tiles], Integers], limits: Limits = _ORDINARY) -> Fill:
    """The fill of a generator."""

    def make(case: Case, dtype: str) -> NDArray[Any]:
        format = _FORMATS[dtype]
        assert format.dtype is not None
        draw = Draw("block-fp8", name, dtype, case.block, case.seed)
        patterns = generator(Tiles(format, draw, BLOCK_FP8[case.block], case.shape.m, case.shape.k))
        return patterns.astype(f"u{format.dtype.itemsize}").view(format.dtype)

    return Fill(name, catches, make, limits)


def _real(case: Case, dtype: str) -> NDArray[Any]:
    """Hidden states of the model that ships with refmoe, row after row."""
    source = read_activations(FFN_INPUT)
    rows = tile_rows(source.patterns, case.shape.m, case.shape.k, first_row=case.seed * 37)
    format = _FORMATS[dtype]
    assert format.dtype is not None
    values: NDArray[Any] = rows.view(ml_dtypes.bfloat16).astype(np.float32).astype(format.dtype)
    return values


_FILLS: Mapping[str, Fill] = MappingProxyType(
    {
        fill.name: fill
        for fill in (
            _generated("gaussian", "the data of published tests, for comparison with them", _gaussian),
            _generated(
                "fingerprint",
                "permuted, shifted or transposed scales; a scale of the wrong tile",
                _fingerprint,
                Limits(scales=16, reason="equal scales hide a permutation"),
            ),
            _generated(
                "scale-range",
                "a clamped or flushed scale, an overflowing reciprocal",
                _scale_range,
                Limits(zeros=0.85, scales=8, reason="tops below 1e-4 leave zeros under deepgemm"),
            ),
            _generated("rne-ties", "round toward zero, half away, half up", _rne_ties),
            _generated(
                "reciprocal",
                "x / sf, x * (448 / amax), an approximate or fused step: another rounding on the way",
                _reciprocal,
            ),
            _generated(
                "powers",
                "UE8M0 scales rounded down, to nearest, or up from an exact power",
                _powers,
                Limits(zeros=0.2, reason="its elements reach below the codes"),
            ),
            _generated("floor", "no floor at 1e-4, another floor, a floor where there is none", _floor),
            _generated(
                "tiny",
                "flush to zero; a scale or a reciprocal that loses bits below 2^-126",
                _tiny,
                Limits(zeros=0.8, reason="codes against 2^-126 are zeros for most subnormals"),
            ),
            _generated("specials", "NaN dropped, Inf clamped, the sign of zero lost, a stale scale", _specials, _EDGES),
            Fill(
                "real",
                "what only a model's hidden states and outlier channels show",
                _real,
                Limits(zeros=0.5, nans=0.05, reason="hidden states of a model are neither constant nor mostly zero"),
            ),
        )
    }
)


@dataclass(frozen=True, eq=False)
class TileCodes:
    """E4M3 codes [M, K] with their tiles' scales.

    Attributes:
        name: of the stage.
        width: K.
        tile: 1x128 or 128x128.
        scales: uint32 [tile rows, tile columns], the reference's scales as FP32 bits.
    """

    name: str
    width: int
    tile: TileFormat
    scales: NDArray[np.uint32]

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        row, column = divmod(index, self.width)
        tile = row // self.tile.rows, column // self.tile.columns
        scale = number_text(int(self.scales[tile]), FP32)
        return f"tile {tile} row {row} column {column}: {compared_text(kernel, reference, E4M3)}, scale {scale}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Rows by K-tiles; see `refmoe.families.stages.HasPlane`."""

        def place(indices: Integers) -> tuple[Integers, Integers]:
            row, column = np.divmod(indices, self.width)
            return row, column // self.tile.columns

        return Plane("row", "K-tile", shape[0], self.scales.shape[1], place)


@dataclass(frozen=True, eq=False)
class TileScales:
    """FP32 scales, one a tile.

    Attributes:
        name: of the stage.
        layout: "k_major" or "mn_major".
    """

    name: str
    layout: str
    columns: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        place = divmod(index, self.columns)
        tile = place if self.layout == "k_major" else place[::-1]
        return f"tile {tile}: {compared_text(kernel, reference, FP32)}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """The buffer as it lies; see `refmoe.families.stages.HasPlane`."""
        axes = ("tile row", "K-tile") if self.layout == "k_major" else ("K-tile", "row")
        return matrix_plane(shape, *axes)


def _inputs(case: Case) -> Inputs:
    return {"x": _FILLS[case.fill].make(case, case.dtype)}


def _expect(case: Case, inputs: Inputs) -> Expectation:
    tensor = quantize_block_fp8(inputs["x"], block=case.block, policy=case.policy, scales=case.scales)
    bits = tensor.scales.view(np.uint32)
    laid_out = lay_out(tensor.scales, case.layout).view(np.uint32)
    stages = (
        TileCodes("codes", case.shape.k, tensor.tile, bits),
        TileScales("scales", case.layout, laid_out.shape[1]),
    )
    # Doubt asks how many scales are different; that of a single tile is no news.
    doubt = doubt_codes(tensor.codes, bits, _FILLS[case.fill].limits)
    return Expectation({"codes": tensor.codes, "scales": laid_out}, stages, doubt)


def _far(case: Case) -> Layout:
    """Where rows lie in the kernel's buffers, with a scale for each 1x128 of them, or for 128 rows of such."""
    k, format, columns = case.shape.k, _FORMATS[case.dtype], -(-case.shape.k // BLOCK_FP8["1x128"].columns)
    rows = of_rows(case, {"x": k * format.bits // 8, "codes": k, "scales": 4 * columns})
    if case.block == "1x128":
        return rows
    tiles = int(case.rows_before) // BLOCK_FP8_TILE * columns
    return replace(rows, bytes_before={**rows.bytes_before, "scales": 4 * tiles}, tiles_before=tiles)


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda import block_fp8

    words = {"block": case.block, "policy": case.policy, "scales": case.scales, "layout": case.layout}
    place = far_device(case, device, _far(case))
    result = called(case, block_fp8.quantize_block_fp8)(inputs["x"], device=place, fill=case.poison, **words)
    return {"codes": result.codes, "scales": result.scales.view(np.uint32)}


def _check(case: Case) -> None:
    """Refuse the layout that weights do not have.

    Raises:
        ArgumentError: MN-major scales of 128x128 tiles.
    """
    if case.block == "128x128" and case.layout != "k_major":
        raise refused("layout", case.layout, "k_major with block=128x128: weights have no other")
    check_before(case)
    if case.rows_before and case.layout != "k_major":
        raise refused("rows_before", str(case.rows_before), "layout=k_major with it")


# --- cases ----------------------------------------------------------------------------------------------------------

_VARIANTS = tuple((policy, scales) for policy in POLICIES for scales in SCALES)
_DTYPES = tuple(_FORMATS)
#: With the policy deepgemm these are zeros throughout.
_BELOW_FLOOR = ("tiny",)
#: More 128x128 tiles than the largest grid, 8 CTAs on each of 188 multiprocessors.
_LOOPING_TILES = 1600


def _case(fill: str, m: int, k: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return BLOCK_FP8_QUANTIZE.case(fill, Shape(m, k), dtype, seed, **options)


def _variants(fill: str) -> Iterator[tuple[str, str]]:
    """(policy, scales) under which the fill can fail."""
    for policy, scales in _VARIANTS:
        if policy == "exact" or fill not in _BELOW_FLOOR:
            yield policy, scales


def _quick() -> Iterator[Case]:
    # 2880 is 22 tiles and a half: a tail in every row.
    yield _case("fingerprint", 5, 2880)
    yield _case("fingerprint", 5, 2880, layout="mn_major", policy="exact")
    yield _case("fingerprint", 140, 288, block="128x128")  # tails in both directions
    yield _case("fingerprint", 1, 7168, dtype="f32", layout="mn_major")
    for number, (policy, scales) in enumerate(_VARIANTS):
        yield _case("specials", 4, 416, policy=policy, scales=scales)
        yield _case("reciprocal", 4, 416, dtype="f32", policy=policy, scales=scales)
        yield _case("floor", 4, 416, dtype=_DTYPES[number % 3], policy=policy, scales=scales)
    yield _case("powers", 6, 416, dtype="f32", scales="ue8m0")
    yield _case("rne-ties", 4, 416, dtype="fp16")
    yield _case("tiny", 6, 416, policy="exact")
    yield _case("scale-range", 16, 416, policy="exact")
    yield _case("gaussian", 3, 32)  # a quarter of a tile


def _default() -> Iterator[Case]:
    number = 0
    for dtype in _DTYPES:
        for fill in _FILLS:
            for policy, scales in _variants(fill):
                layout = LAYOUTS[number % 2]
                number += 1
                yield _case(fill, 5, 2880, dtype=dtype, policy=policy, scales=scales, layout=layout, poison=0x7F)
    for number, fill in enumerate(_FILLS):
        # A tail of 40 rows and of 32 columns; every fill under two variants.
        variants = list(_variants(fill))
        for offset in (0, 1):
            policy, scales = variants[(2 * offset + number) % len(variants)]
            dtype = _DTYPES[(number + offset) % 3]
            yield _case(fill, 168, 416, dtype=dtype, block="128x128", policy=policy, scales=scales)
    for k, _, _ in MODELS:
        for m in DECODE:
            for layout in LAYOUTS:
                yield _case("fingerprint", m, k, layout=layout, scales="ue8m0" if m == 2 else "fp32", poison=0x7F)
    yield _case("gaussian", 129, 2880, block="128x128")  # a weight row past the tile, half a tile past the last column
    yield _case("fingerprint", 24, 7168, block="128x128", scales="ue8m0", policy="exact")
    for rows in (127, 128, 255, 256, 257):  # a tile, and a row less and more
        yield _case("gaussian", rows, 160, block="128x128", policy="exact")
    for k in (96, 128, 160, 8160, 8192):  # a tile's elements and a CTA's, and a block less and more
        yield _case("fingerprint", 2, k, layout="mn_major")
        yield _case("gaussian", 3, k, block="128x128", dtype="f32")
    yield _case("fingerprint", 65_600, 32, layout="mn_major")
    yield _case("fingerprint", 4099, 160, layout="mn_major")  # many, and no multiple of anything
    yield _case("fingerprint", 3, 64, rows_before=FAR_ROWS)  # pieces past 2^31
    yield _case("fingerprint", 5, 256, block="128x128", rows_before=FAR_ROWS // 4)
    for dtype in ("bf16", "f32"):  # and past 2^32, where an index without a sign wraps too
        yield _case("fingerprint", 3, 160, dtype=dtype, rows_before=FAR_ROWS)
        yield _case("fingerprint", 5, 544, block="128x128", dtype=dtype, rows_before=FAR_ROWS // 4)
    yield _case("fingerprint", LOOPING_ROWS, 32)
    yield _case("fingerprint", 1, _LOOPING_TILES * 128, block="128x128", dtype="f32")
    yield _case("fingerprint", 3, 8224, layout="mn_major")  # a row wider than a CTA, by a quarter of a tile
    for layout in LAYOUTS:
        yield _case("fingerprint", 1, 16416, layout=layout)  # three rounds of a CTA
        yield _case("fingerprint", 1, 24_608, layout=layout)  # and four
    yield _case("fingerprint", 66, 8224, multiprocessors=1)  # and more of them than CTAs
    for block in BLOCK_FP8:
        yield _case("gaussian", 0, 2880, block=block)
    yield _case("fingerprint", 300, 1312, block="128x128", multiprocessors=1)  # a CTA has several tiles
    for dtype in _DTYPES:  # and its second one is narrower, and not larger in its elements
        yield _case("gaussian", 1, 1056, block="128x128", dtype=dtype, multiprocessors=1)
        for policy, scales in product(POLICIES, SCALES):  # each entry has machine code of its own
            words: dict[str, Any] = {"dtype": dtype, "policy": policy, "scales": scales}
            yield _case("fingerprint", 1, 1056, block="128x128", multiprocessors=1, **words)
    # Each entry has machine code of its own: each meets every fill, those of 1x128 in a case above.
    for dtype, fill in product(_DTYPES, _FILLS):
        for policy, scales in _variants(fill):
            if policy == "exact" or fill != "scale-range":  # of which the floor leaves zeros in so large a block
                yield _case(fill, 261, 416, dtype=dtype, block="128x128", policy=policy, scales=scales)


def _full() -> Iterator[Case]:
    for seed in (1, 2, 3):
        for dtype in _DTYPES:
            for fill in _FILLS:
                for policy, scales in _variants(fill):
                    for layout in LAYOUTS:
                        yield _case(fill, 33, 2880, dtype, seed, policy=policy, scales=scales, layout=layout)
                    yield _case(fill, 300, 416, dtype, seed, block="128x128", policy=policy, scales=scales)
    for k in range(32, 1056, 32):
        yield _case("fingerprint", 9, k, layout="mn_major")
        yield _case("fingerprint", 130, k, block="128x128")
    yield _case("fingerprint", 576, 7168, block="128x128")  # DeepSeek-V3's kv_a_proj_with_mqa
    yield _case("real", 2048, 7168)


#: A layout that weights do not have.
_CHANGES: Mapping[str, Change] = {"layout-of_weights": lambda given: {"block": "128x128", "layout": "mn_major"}}


def _refuses() -> Iterator[Case]:
    yield from wrong_calls(
        _case("gaussian", 2, 64),
        {
            **dict.fromkeys(("x-many_rows", "x-most_rows"), "rows and those of one more tile"),
            "x-giga_rows": "tiles, counted twice",
            "x-long_rows": "bytes of scale atoms",
        },
        x=f"{ARRAY} scalar flat narrow no_columns many_rows most_rows giga_rows long_rows",
        **dict.fromkeys(("block", "policy", "scales"), "word"),
        layout="word of_weights",
        fill=BYTE,
    )


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    m, k = case.shape.m, case.shape.k
    rows = m if case.block == "1x128" else -(-m // BLOCK_FP8_TILE)
    return {"codes": m * k, "scales": 4 * rows * -(-k // BLOCK_FP8_TILE)}


BLOCK_FP8_QUANTIZE = Family(
    name="block_fp8_quantize",
    about="Block FP8 of a matrix: E4M3 codes, an FP32 scale for each tile of 1x128 or 128x128.",
    dtypes=_DTYPES,
    sizes="mk",
    fills=_FILLS,
    options=(
        word("block", *BLOCK_FP8, fixed=True),
        word("policy", *POLICIES, fixed=True),
        word("scales", *SCALES, fixed=True),
        word("layout", *LAYOUTS, fixed=True),
        MULTIPROCESSORS,
        ROWS_BEFORE,
        POISON,
        WRONG,
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=("x",),
        outputs={"codes": "float8_e4m3fn", "scales": "float32"},
        settings={"block": "block", "policy": "policy", "scale_format": "scales", "layout": "layout"},
    ),
    sources=("block_fp8",),
    host=("refmoe.cuda.block_fp8",),
    check=_check,
    lacks=lacks_memory,
)
