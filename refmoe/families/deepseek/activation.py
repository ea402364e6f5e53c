"""The family `deepseek_activation`: SwiGLU of a first product's rows, quantized to block FP8 for the second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.activation import POISONED_BF16
from refmoe.families.block_fp8 import TileCodes
from refmoe.families.case import MULTIPROCESSORS, Shape, refused, word
from refmoe.families.choices import RANKS, ROUTING, check_choices, expert_offsets
from refmoe.families.extents import block_fp8_rows
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Fill, Inputs, Lack, Outputs
from refmoe.families.far import ROWS_BEFORE, Layout, behind, far_device, lacks_memory
from refmoe.families.fills.sigmoid_gates import STEPS, silu_steps
from refmoe.families.quantize import LOOPING_ROWS
from refmoe.families.stages import Plane, matrix_plane
from refmoe.families.vacuity import Limits, doubt_codes
from refmoe.families.wrong import ARRAY, BYTE, WRONG, called, wrong_calls
from refmoe.formats import BLOCK_FP8, FP32
from refmoe.numbers_as_text import compared_text
from refmoe.reference.block_fp8 import LAYOUTS, POLICIES, SCALES
from refmoe.reference.deepseek.activation import TILE, BlockFP8Rows, swiglu_block_fp8, swiglu_block_fp8_masked

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_BF16 = np.dtype(ml_dtypes.bfloat16)

# --- fills ----------------------------------------------------------------------------------------------------------
# make(draw, rows, width) gives (gates, ups), float64 [rows, width] each. They are rounded to BF16; of FP32 rows the
# lower bits are then drawn, so that a rounding to BF16 shows.

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


def _by_tile(values: NDArray[Any]) -> NDArray[Any]:
    """A number of each tile [rows, width / 128] as one of each element."""
    return np.repeat(values, TILE, axis=1)


def _tiles(rows: int, width: int) -> NDArray[np.int64]:
    """The running number of every tile, [rows, width / 128]."""
    return np.arange(rows * (width // TILE)).reshape(rows, width // TILE)


def _gaussian(draw: Draw, rows: int, width: int) -> Pair:
    return draw.normal((rows, width)) * 3, draw.normal((rows, width)) * 3


def _fingerprint(draw: Draw, rows: int, width: int) -> Pair:
    """A scale of its own for every tile, all above 1e-4, and elements of one binade or two."""
    exponent = _tiles(rows, width) * 37 % 60
    ups = (1 + np.abs(draw.normal((rows, width)))) * _by_tile(np.ldexp(1.0, exponent - 4))
    return 2 + np.abs(draw.normal((rows, width))), ups


#: Where 1 / (1 + exp) changes its nature: overflow of the exponential, a sum that rounds to 1 or to the exponential.
_EDGES = (-1000.0, -104.0, -88.75, -61.0, -17.0, -9.75, -1.0, 0.0, 1.0, 9.75, 17.0, 88.75, 104.0)


def _sigmoid_edges(draw: Draw, rows: int, width: int) -> Pair:
    """Every tile near one edge; the ups bring the results back above 1e-4, where numbers reach that far."""
    tiles = _tiles(rows, width)
    centers = np.array(_EDGES)[tiles % len(_EDGES)]
    ups = np.ldexp(1.0, np.select([centers < -100, centers < -50, centers < -5], [120, 80, 20], 0))
    gates = _by_tile(centers) + draw.normal((rows, width)) / 2
    return gates, draw.normal((rows, width)) * _by_tile(ups)


def _floor(draw: Draw, rows: int, width: int) -> Pair:
    """Largest results around 1e-4, where DeepGEMM holds amax, a binade to either side."""
    scale = np.ldexp(1e-4, _tiles(rows, width) % 3 - 1)
    return 1 + np.abs(draw.normal((rows, width))) / 8, draw.normal((rows, width)) * _by_tile(scale)


def _tiny(draw: Draw, rows: int, width: int) -> Pair:
    """Results from FP32's least subnormal number up to a little above 448 * 2^-126, where exact scales begin."""
    exponent = draw.integers(24, (rows, width // TILE)) + 116
    gates = draw.normal((rows, width)) * _by_tile(np.ldexp(1.0, -(exponent // 2)))
    return gates, draw.normal((rows, width)) * _by_tile(np.ldexp(1.0, -(exponent - exponent // 2)))


def _huge(draw: Draw, rows: int, width: int) -> Pair:
    """Results around FP32's largest number: tiles with an overflow, and tiles just below it."""
    exponent = 125 + _tiles(rows, width) % 4
    gates = 1 + np.abs(draw.normal((rows, width))) / 2
    return gates, draw.normal((rows, width)) * _by_tile(np.ldexp(1.0, exponent - 2))


def _zeros(draw: Draw, rows: int, width: int) -> Pair:
    """Of four tiles one with gates of either zero, one with ups of either zero, one of which one result is no zero."""
    gates, ups = _gaussian(draw, rows, width)
    kind = _by_tile(_tiles(rows, width) % 4)
    zeros = np.where(draw.integers(2, (rows, width)) == 0, 0.0, -0.0)
    last = np.arange(width) % TILE == draw.integers(TILE, (rows, 1))
    return np.where(kind == 1, zeros, gates), np.where((kind == 2) | ((kind == 3) & ~last), zeros, ups)


def _specials(draw: Draw, rows: int, width: int) -> Pair:
    """One special in eight tiles of ten, NaN or Inf of either sign, as a gate or as an up."""
    gates, ups = _gaussian(draw, rows, width)
    tiles = _tiles(rows, width).reshape(-1)
    places = tiles * TILE + draw.integers(TILE, tiles.shape)
    for kind, special in enumerate((np.nan, -np.nan, np.inf, -np.inf)):
        for side, values in enumerate((gates, ups)):
            values.reshape(-1)[places[tiles % 10 == 2 * kind + side]] = special
    return gates, ups


def _lacks_fp32(case: Case) -> Lack | None:
    return (
        None if case.dtype == "f32" else Lack("dtype", f"dtype f32 for the fill {case.fill}: BF16 has no smaller steps")
    )


def _ties(draw: Draw, rows: int, width: int) -> Pair:
    """Scales that are powers of two and results beside the middle of two codes, which one more rounding would move.

    A gate of 64 has a sigmoid of 1, so a result is 64 times its up. The largest of a tile is 448 times a power of two.
    """
    exponent = _by_tile(draw.integers(20, (rows, width // TILE)) - 8)
    eighths = 8 + draw.integers(8, (rows, width))  # a code's significand 1 to 1.875
    middle = np.ldexp(eighths * 2 + 1.0, draw.integers(8, (rows, width)) - 4)
    nudge = 1 + np.ldexp(draw.integers(3, (rows, width)) - 1.0, -20)
    ups = middle * nudge * np.where(draw.integers(2, (rows, width)) == 0, 1, -1)
    ups[:, ::TILE] = 448
    return np.full((rows, width), 64.0), np.ldexp(ups, exponent - 6)


#: Gates whose sigmoid has other bits if a constant of the exponential has another last bit, some for each constant but
#: the last digits of ln 2, with which none changed.
_EXPONENTS = (
    *(-28.765607833862305, -29.45875358581543, -31.538196563720703, -27.379314422607422, -28.07246208190918),
    *(-30.845050811767578, -21.13467025756836, -26.679847717285156, -18.36208152770996, -5.213047981262207),
    *(-1.059443712234497, -0.9763060212135315, -2.4954018592834473, -1.0400525331497192, -1.6960896253585815),
    *(-0.3615042269229889, -1.0348769426345825, -0.9448232650756836, -1.215644359588623, -0.31041213870048523),
    *(-1.8837933540344238, -1.772611141204834, -2.375490427017212, -0.38213640451431274, -0.2055429071187973),
)


def _exponents(draw: Draw, rows: int, width: int) -> Pair:
    """Each tile's largest result is a gate of `_EXPONENTS` times a power of two, so that its last bit is the scale's.

    In the first of them it is an ulp above 448, so that the scale is an ulp above a power of two.
    """
    listed = np.array((64.0, *_EXPONENTS), np.float32).astype(np.float64)
    results = np.abs(listed) / (1 + np.exp(-listed))
    factors = np.ldexp(1.0, 7 - np.frexp(results)[1])
    factors[0] = np.nextafter(np.float32(7), np.float32(8))
    gates, ups = np.ones((rows, width)), draw.normal((rows, width))
    tiles = _tiles(rows, width).reshape(-1)
    places = tiles * TILE + draw.integers(TILE, tiles.shape)
    for values, sides in ((gates, listed), (ups, factors)):
        values.reshape(-1)[places] = sides[tiles % listed.size]
    return gates, ups


def _near_ties(draw: Draw, rows: int, width: int) -> Pair:
    """Scales that are no powers of two, and results whose product with the reciprocal is near the middle of two codes.

    Rounded to nearest it is the middle itself, and another rounding gives one of its neighbours.
    """
    amax = (448 * (1 + draw.integers(1 << 23, (rows, width // TILE)) / (1 << 23))).astype(np.float32)
    inverse = _by_tile(1 / (amax / np.float32(448)))
    eighths = 8 + draw.integers(8, (rows, width))  # a code's significand 1 to 1.875
    middle = np.ldexp(eighths * 2 + 1.0, draw.integers(8, (rows, width)) - 4)
    nearest = (middle / inverse).astype(np.float32)
    near = np.stack([nearest.view(np.int32) + ulps for ulps in (0, -2, -1, 1, 2)]).astype(np.int32).view(np.float32)
    products = near.astype(np.float64) * inverse  # exact
    beside = (products.astype(np.float32) == middle) & (products != middle)
    results = np.take_along_axis(near, beside.argmax(axis=0)[None], axis=0)[0].astype(np.float64)
    results[:, ::TILE] = amax
    exponent = _by_tile(draw.integers(20, (rows, width // TILE)) - 8)
    results *= np.where(draw.integers(2, (rows, width)) == 0, 1, -1)
    # A gate of 64 has a sigmoid of 1, so a result is 64 times its up.
    return np.full((rows, width), 64.0), np.ldexp(results, exponent - 6)


def _steps(draw: Draw, rows: int, width: int) -> Pair:
    return silu_steps(rows, width, TILE)


_MOSTLY = Limits(zeros=0.95, saturated=0.9, nans=0.95, scales=1)

_FILLS = Fill.by_name(
    Fill("gaussian", "gate and up swapped, a rounding more or less, quantized from BF16", _gaussian),
    Fill(
        "fingerprint",
        "scales of another row or tile, permuted or transposed",
        _fingerprint,
        Limits(scales=16, reason="every tile has a scale of its own"),
    ),
    Fill(
        "sigmoid-edges",
        "an exponential that overflows to NaN, flushes or is clamped",
        _sigmoid_edges,
        Limits(zeros=0.7, nans=0.4, reason="a gate whose exponential overflows gives a zero"),
    ),
    Fill(
        "floor",
        "no floor at 1e-4, another floor, a floor where there is none",
        _floor,
        Limits(zeros=0.3, reason="DeepGEMM's floor leaves small codes"),
    ),
    Fill("tiny", "subnormals flushed, a scale or reciprocal that loses bits", _tiny, _MOSTLY),
    Fill("huge", "Inf taken for a number, an overflow in another place", _huge, _MOSTLY),
    Fill("zeros", "the sign of zero lost, a scale of 0 divided by", _zeros, Limits(zeros=0.95, scales=1)),
    Fill("ties", "round toward zero, half away, one rounding more", _ties, lack=_lacks_fp32),
    Fill("specials", "NaN dropped, Inf clamped", _specials, _MOSTLY),
    Fill(
        "exponents",
        "a constant of the exponential with another last bit, a scale rounded up too late",
        _exponents,
        Limits(zeros=0.3, reason="each tile has one result far above the others"),
        _lacks_fp32,
    ),
    Fill("near-ties", "a code rounded from a product that was rounded another way", _near_ties, lack=_lacks_fp32),
    Fill(STEPS, "a step of the exponential that is another one, where a scale is a power of two", _steps),
)
#: Fills of FP32 numbers all of whose bits are chosen.
_OF_FP32 = ("ties", "exponents", "near-ties", STEPS)


# --- words ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowScales:
    """FP32 scales of rows: K-major or MN-major, of each stretch of rows by itself.

    Attributes:
        name: of the stage.
        layout: "k_major" or "mn_major".
        capacity: rows of a stretch.
        tiles: of a row.
    """

    name: str
    layout: str
    capacity: int
    tiles: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        stretch, place = divmod(index, self.capacity * self.tiles)
        if self.layout == "k_major":
            row, tile = divmod(place, self.tiles)
        else:
            tile, row = divmod(place, self.capacity)
        row += stretch * self.capacity
        return f"row {row} K-tile {tile}: {compared_text(kernel, reference, FP32)}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """The buffer as it lies; see `refmoe.families.stages.HasPlane`."""
        axes = ("row", "K-tile") if self.layout == "k_major" else ("K-tile", "row")
        return matrix_plane(shape, *axes)


# --- inputs, expectation, run ---------------------------------------------------------------------------------------


def _inputs(case: Case) -> Inputs:
    """Rows, and which of them are in use; the others hold NaN."""
    masked, width = case.rows == "masked", case.shape.k
    capacity = case.shape.m
    experts = case.shape.e if masked else 1
    offsets = None if masked else expert_offsets(case)
    counts = _masked_m(case) if masked else np.array([offsets[-1]], np.int32)  # type: ignore[index]
    rows = experts * capacity
    gates, ups = _FILLS[case.fill].make(Draw("gates", case.fill, case.seed), rows, width)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        values = np.concatenate([gates, ups], axis=1)
        halves = values.astype(np.float32).astype(_BF16).view(np.uint16)
        bits = np.asarray(halves.astype(np.uint32) << np.uint32(16), np.uint32)
        if case.dtype == "f32":
            bits = _with_low_bits(case, values, bits)
    present = (np.arange(capacity) < counts[:, None]).reshape(-1)
    bits[~present] = POISONED_BF16 << 16
    typed = bits.view(np.float32) if case.dtype == "f32" else (bits >> 16).astype(np.uint16).view(_BF16)
    shape = (experts, capacity, 2 * width) if masked else (rows, 2 * width)
    return {
        "gate_up": np.ascontiguousarray(typed).reshape(shape),
        "offsets": offsets,
        "masked_m": counts if masked else None,
    }


def _with_low_bits(case: Case, values: NDArray[np.float64], bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """FP32 with all of its bits; of `_OF_FP32` the values as they are."""
    if case.fill in _OF_FP32:
        return values.astype(np.float32).view(np.uint32)
    ordinary = ((bits & 0x7F800000) < 0x7F800000) & (bits & 0x7FFFFFFF > 0)
    low = Draw("gates-low", case.fill, case.seed).integers(1 << 16, bits.shape).astype(np.uint32)
    return np.where(ordinary, bits | low, bits).astype(np.uint32)


def _masked_m(case: Case) -> NDArray[np.int32]:
    """None of the rows of the first of four experts, all of the fourth's, numbers between them of the others.

    An expert alone has all of them.
    """
    drawn = Draw("masked-m", case.seed).integers(case.shape.m + 1, (case.shape.e,))
    kind = np.arange(case.shape.e) % 4 if case.shape.e > 1 else np.array([3])
    return np.select([kind == 0, kind == 3], [0, case.shape.m], drawn).astype(np.int32)


def _expect(case: Case, inputs: Inputs) -> Expectation:
    settings: dict[str, Any] = {
        **{"policy": case.policy, "scales": case.scales, "layout": case.layout, "fill": case.poison}
    }
    if case.rows == "masked":
        made = swiglu_block_fp8_masked(inputs["gate_up"], inputs["masked_m"], **settings)
        by_row = swiglu_block_fp8_masked(inputs["gate_up"], inputs["masked_m"], **{**settings, "layout": "k_major"})
        present = (np.arange(case.shape.m) < inputs["masked_m"][:, None]).reshape(-1)
    else:
        made = swiglu_block_fp8(inputs["gate_up"], inputs["offsets"], **settings)
        by_row = swiglu_block_fp8(inputs["gate_up"], inputs["offsets"], **{**settings, "layout": "k_major"})
        present = np.arange(case.shape.m) < inputs["offsets"][-1]
    tiles = case.shape.k // TILE
    linear = np.ascontiguousarray(by_row.scales).view(np.uint32).reshape(-1, tiles)
    stages = (
        TileCodes("codes", case.shape.k, BLOCK_FP8["1x128"], linear),
        RowScales("scales", case.layout, case.shape.m, tiles),
    )
    codes = made.codes.reshape(-1, case.shape.k)[present]
    return Expectation(_outputs(made), stages, doubt_codes(codes, linear[present], _FILLS[case.fill].limits))


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.deepseek import activation

    settings = {"policy": case.policy, "scales": case.scales, "layout": case.layout, "fill": case.poison}
    if case.rows == "masked":
        masked = called(case, activation.swiglu_block_fp8_masked)
        return _outputs(masked(inputs["gate_up"], inputs["masked_m"], device=device, **settings))
    contiguous = called(case, activation.swiglu_block_fp8)
    place = far_device(case, device, _far(case))
    return _outputs(contiguous(inputs["gate_up"], inputs["offsets"], device=place, **settings))


def _far(case: Case) -> Layout:
    """Where rows lie in the buffers. The kernel is told twice how many there are: as rows, and as a stretch of them."""
    rows, k = int(case.rows_before), case.shape.k
    sizes = {"gate_up": 2 * k * (4 if case.dtype == "f32" else 2), "codes": k, "scales": 4 * k // TILE}
    return Layout(
        {name: rows * size for name, size in sizes.items()},
        {0: rows, 2: rows},
        {"offsets": lambda offsets: behind(offsets, rows)},
    )


def _outputs(rows: BlockFP8Rows) -> Outputs:
    """As matrices: a row's codes, and the scales in the order in which they lie."""
    scales = np.ascontiguousarray(rows.scales).view(np.uint32)
    return {"codes": rows.codes.reshape(-1, rows.codes.shape[-1]), "scales": scales.reshape(-1, scales.shape[-1])}


def _check(case: Case) -> None:
    if case.rows == "masked" and case.routing != "uniform":
        raise refused("routing", case.routing, "uniform with rows=masked, whose numbers are drawn")
    if case.rows_before and (case.rows, case.layout) != ("contiguous", "k_major"):
        raise refused("rows_before", str(case.rows_before), "contiguous rows with it, and layout=k_major")
    check_choices(case)


# --- cases ----------------------------------------------------------------------------------------------------------

#: Rows of 16 pieces of 16 elements, in front of which a number of pieces needs more than 31 bits.
_FAR_ROWS = 1 << 27

#: With the policy deepgemm these are zeros throughout, or differ in nothing from the exact one.
_BELOW_FLOOR = ("tiny",)
_VARIANTS = tuple((policy, scales) for policy in POLICIES for scales in SCALES)


def _case(fill: str, m: int, k: int, e: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return DEEPSEEK_ACTIVATION.case(fill, Shape(m, k, e), dtype, seed, **options)


def _variants(fill: str) -> Iterator[tuple[str, str]]:
    """(policy, scales) under which the fill can fail."""
    yield from ((policy, scales) for policy, scales in _VARIANTS if policy == "exact" or fill not in _BELOW_FLOOR)


def _quick() -> Iterator[Case]:
    yield _case("gaussian", 8, 2048, 256)  # decode
    yield _case("fingerprint", 8, 2048, 256, dtype="f32", layout="mn_major")
    number = 0
    for fill in _FILLS:
        for dtype in ("f32",) if fill in _OF_FP32 else ("bf16", "f32"):
            policy, scales = list(_variants(fill))[number % len(list(_variants(fill)))]
            number += 1
            layout = LAYOUTS[number // 2 % 2]
            yield _case(fill, 7, 384, 3, dtype=dtype, policy=policy, scales=scales, layout=layout)
    for fill, layout in product(("fingerprint", "specials"), LAYOUTS):
        yield _case(fill, 5, 384, 6, rows="masked", layout=layout, policy="exact", poison=0x7F)
    yield _case("fingerprint", 9, 256, 9, routing="empty-experts", layout="mn_major", poison=0x7F)
    yield _case("fingerprint", 30, 128, 4, first_expert=4, ranks=2)  # half of the rows are another rank's
    yield _case("gaussian", 3, 256, 4, routing="elsewhere", first_expert=4, ranks=2)


def _default() -> Iterator[Case]:
    for dtype, policy in product(("bf16", "f32"), POLICIES):  # pieces of the input past 2^31
        yield _case("fingerprint", 5, 128, 3, dtype=dtype, policy=policy, rows_before=_FAR_ROWS)
    for dtype in ("bf16", "f32"):  # and those of the codes
        yield _case("fingerprint", 5, 256, 3, dtype=dtype, rows_before=_FAR_ROWS)
        yield _case("fingerprint", 5, 640, 3, dtype=dtype, rows_before=_FAR_ROWS)  # and past 2^32
    yield _case("fingerprint", 5, 128, 1, ranks=2, first_expert=1)  # a rank of one expert
    number = 0
    for fill in _FILLS:
        for policy, scales in _variants(fill):
            number += 1
            dtype = "f32" if fill in _OF_FP32 else ("bf16", "f32")[number % 2]
            rows, layout = ("contiguous", "masked")[number // 2 % 2], LAYOUTS[number % 3 % 2]
            yield _case(fill, 6, 640, 5, dtype=dtype, policy=policy, scales=scales, rows=rows, layout=layout)
    for m in (1, 8, 64):  # DeepSeek-V3's experts, and a rank's slice of them
        yield _case("gaussian", m, 2048, 256, layout="mn_major")
        yield _case("gaussian", m, 256, 256, dtype="f32", scales="ue8m0")
    yield _case("fingerprint", LOOPING_ROWS, 128, 8)  # more rows than CTAs
    yield _case("fingerprint", LOOPING_ROWS // 4, 128, 4, rows="masked", layout="mn_major")
    yield _case("fingerprint", 2, 8320, 2, layout="mn_major")  # a row wider than a CTA, by one tile
    yield _case("fingerprint", 1, 24_704, 1, layout="mn_major")  # four rounds of a CTA
    yield _case("fingerprint", 66, 8320, 2, multiprocessors=1)  # and more of them than CTAs
    # More experts than a warp has lanes, each with rows of its own, and so few CTAs that each has rows of several.
    yield _case("fingerprint", 5, 128, 99, rows="masked", layout="mn_major", multiprocessors=1)
    for k in (3968, 4096, 4224):  # a CTA's elements, and a tile less and more
        yield _case("gaussian", 5, k, 99)
    yield _case("gaussian", 0, 2048, 8)
    yield _case("gaussian", 0, 2048, 8, rows="masked")
    # Each entry has machine code of its own: each meets every fill.
    for fill, dtype in product(_FILLS, ("bf16", "f32")):
        for policy, scales in _variants(fill) if fill not in _OF_FP32 or dtype == "f32" else ():
            yield _case(fill, 17, 384, 3, dtype=dtype, policy=policy, scales=scales)
    yield _case("gaussian", 5, 128, 3, first_expert=3, ranks=2, poison=0)  # the fill's default
    # A number of rows that 16 bits take for a negative one.
    yield _case("zeros", 1 << 15, 128, 1, dtype="f32", policy="exact", scales="ue8m0", rows="masked")
    yield _case("gaussian", 6, 128, 3, rows="masked", poison=0)


def _full() -> Iterator[Case]:
    for seed, fill, dtype in product((1, 2, 3), _FILLS, ("bf16", "f32")):
        if fill in _OF_FP32 and dtype == "bf16":
            continue
        for policy, scales in _variants(fill):
            for rows, layout in product(("contiguous", "masked"), LAYOUTS):
                options = {"policy": policy, "scales": scales, "rows": rows, "layout": layout}
                yield _case(fill, 16, 2048, 4, dtype=dtype, seed=seed, **options)
    for k in range(128, 2176, 128):
        yield _case("fingerprint", 9, k, 4, layout="mn_major")
    yield _case("gaussian", 4096, 2048, 256, layout="mn_major")


def _refuses() -> Iterator[Case]:
    words = {**dict.fromkeys(("policy", "scales", "layout"), "word"), "fill": BYTE}
    gates = f"{ARRAY} narrow no_columns"
    says = {"gate_up-giga_rows": "elements"}
    base = _case("gaussian", 5, 128, 3)
    yield from wrong_calls(
        base, says, gate_up=f"{gates} flat giga_rows", offsets=f"{ARRAY} scalar one first last falling", **words
    )
    yield from wrong_calls(
        base.having(rows="masked"), says, gate_up=f"{gates} no_rows", masked_m=f"{ARRAY} short negative huge", **words
    )


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    batches = case.shape.e if case.rows == "masked" else 1
    return block_fp8_rows(batches * case.shape.m, case.shape.k)


DEEPSEEK_ACTIVATION = Family(
    name="deepseek_activation",
    about="SwiGLU of a first product's rows in expert order, quantized to block FP8 for the second.",
    dtypes=("bf16", "f32"),
    sizes="mke",
    fills=_FILLS,
    options=(
        word("rows", "contiguous", "masked", fixed=True),
        word("policy", *POLICIES, fixed=True),
        word("scales", *SCALES, fixed=True),
        word("layout", *LAYOUTS, fixed=True),
        *(ROUTING, *RANKS, ROWS_BEFORE, MULTIPROCESSORS, POISON, WRONG),
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    contract=Contract(
        inputs=("gate_up", "offsets", "masked_m"),
        features=("offsets", "masked_m"),
        outputs={"codes": "float8_e4m3fn", "scales": "float32"},
        settings={
            **{"num_experts": "e", "rows": "rows", "policy": "policy"},
            **{"scale_format": "scales", "layout": "layout"},
        },
    ),
    sources=("deepseek_activation",),
    host=("refmoe.cuda.deepseek.activation",),
    invariance="deepseek_moe",
    check=_check,
    lacks=lacks_memory,
    block=TILE,
    group="deepseek",
)
