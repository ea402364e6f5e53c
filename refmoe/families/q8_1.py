"""The family `q8_1_quantize`: fills, the expectation, the run, the cases.

A fill makes blocks of 32 neighbours along K. What decides a Q8_1 quantizer: where a quotient lies between two integers,
the order in which the elements are summed, and what d = amax / 127 becomes in FP16 and in FP32's subnormal range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import MULTIPROCESSORS, PROGRAMMATIC, Shape, word
from refmoe.families.extents import q8_1_rows
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Fill, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, Layout, check_before, far_device, lacks_memory, of_rows
from refmoe.families.kept import chained
from refmoe.families.real_data import FFN_INPUT, read_activations, tile_rows
from refmoe.families.stages import Plane, matrix_plane
from refmoe.families.vacuity import Limits, doubt_values
from refmoe.families.wrong import ARRAY, BYTE, MANY, WRONG, Change, called, huge, wrong_calls
from refmoe.formats import FP16, Q8_1
from refmoe.numbers_as_text import compared_text, number_text
from refmoe.reference.q8_1 import VARIANTS, Q8Tensor, quantize_q8_1

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16), "f32": np.dtype(np.float32)}
)
_BLOCK = Q8_1.block
_LARGEST = float(Q8_1.max_code)

#: (exponent bits, mantissa bits) of an input.
_FIELDS = {"bf16": (8, 7), "fp16": (5, 10), "f32": (8, 23)}

# --- fills ----------------------------------------------------------------------------------------------------------
# make(draw, dtype, blocks) gives values [blocks, 32] of that dtype.

Values = NDArray[Any]
Generator = Callable[[Draw, str, int], Values]


def _typed(values: NDArray[Any], dtype: str) -> Values:
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(DTYPES[dtype])


def _patterns(values: NDArray[np.int64], dtype: str) -> Values:
    return values.astype(f"u{DTYPES[dtype].itemsize}").view(DTYPES[dtype])


def _gaussian(draw: Draw, dtype: str, blocks: int) -> Values:
    return _typed(draw.normal((blocks, _BLOCK)) * 3, dtype)


def _ties(draw: Draw, dtype: str, blocks: int) -> Values:
    """Quotients halfway between two integers, and one unit of the input to either side. The maximum is 127 * 2^s."""
    shape = (blocks, _BLOCK)
    reach = 3 if dtype == "fp16" else 9  # d stays a normal number of FP16
    scale = np.ldexp(1.0, draw.integers(2 * reach + 1, (blocks, 1)) - reach)
    halves = _typed((draw.integers(127, shape) + 0.5) * scale, dtype)
    bits = halves.view(f"u{halves.itemsize}").astype(np.int64) + np.array([0, 0, 1, -1])[draw.integers(4, shape)]
    bits |= draw.integers(2, shape) << (8 * halves.itemsize - 1)
    values = _patterns(bits, dtype)
    values[np.arange(blocks), draw.integers(_BLOCK, (blocks,))] = _typed(_LARGEST * scale[:, 0], dtype)
    return values


def _scale_ties(draw: Draw, dtype: str, blocks: int) -> Values:
    """Maxima of 127 times a tie of FP16, and a unit of the input to either side: d's last bit in FP32 decides."""
    ties = (2 * (1024 + draw.integers(1024, (blocks,))) + 1) / 2048 * np.ldexp(1.0, -draw.integers(6, (blocks,)) - 4)
    top = _typed(ties * _LARGEST, dtype)
    bits = top.view(f"u{top.itemsize}").astype(np.int64) + np.array([0, 0, 1, -1])[draw.integers(4, (blocks,))]
    values = _typed(ties[:, None] * draw.normal((blocks, _BLOCK)), dtype)
    values[np.arange(blocks), draw.integers(_BLOCK, (blocks,))] = _patterns(bits, dtype)
    return values


def _cancelling(draw: Draw, dtype: str, blocks: int) -> Values:
    """Large elements that cancel in pairs anywhere in the block, beside small ones: the order of the sum shows."""
    order = np.argsort(draw.words(blocks * _BLOCK).reshape(blocks, _BLOCK), axis=1, kind="stable")
    step = 9 if dtype == "fp16" else 22  # beyond what the small ones keep beside the large
    large = (1 + draw.integers(64, (blocks, _BLOCK // 4)) / 64) * 2.0**step
    small = draw.normal((blocks, _BLOCK // 2))
    values = np.concatenate([large, -large, small], axis=1)
    return _typed(np.take_along_axis(values, order, axis=1), dtype)


def _maxima(draw: Draw, dtype: str, blocks: int) -> Values:
    """Maxima that run through every exponent of the input: d overflows FP16, is subnormal there, and becomes 0."""
    exponent_bits, mantissa_bits = _FIELDS[dtype]
    exponent = np.arange(blocks, dtype=np.int64) * 83 % ((1 << exponent_bits) - 1)
    top = exponent << mantissa_bits | draw.integers(1 << mantissa_bits, (blocks,))
    low = np.maximum(top - (3 << mantissa_bits), 0)
    span = np.broadcast_to((top - low + 1)[:, None], (blocks, _BLOCK))
    bits = low[:, None] + draw.integers(span, (blocks, _BLOCK))
    bits[np.arange(blocks), draw.integers(_BLOCK, (blocks,))] = top
    return _patterns(bits | draw.integers(2, bits.shape) << (exponent_bits + mantissa_bits), dtype)


def _subnormal(draw: Draw, dtype: str, blocks: int) -> Values:
    """Maxima of a few units of the least subnormal number: d is rounded to one unit or none, and codes pass 127."""
    _, mantissa_bits = _FIELDS[dtype]
    top = 1 + np.arange(blocks, dtype=np.int64) * 5 % min(700, 1 << mantissa_bits)
    bits = draw.integers(np.broadcast_to((top + 1)[:, None], (blocks, _BLOCK)), (blocks, _BLOCK))
    bits[np.arange(blocks), draw.integers(_BLOCK, (blocks,))] = top
    return _patterns(bits | draw.integers(2, bits.shape) << (8 * DTYPES[dtype].itemsize - 1), dtype)


def _fingerprint(draw: Draw, dtype: str, blocks: int) -> Values:
    """A scale of its own for every block among its 113 neighbours (19 of FP16)."""
    low, prime = (-8, 19) if dtype == "fp16" else (-56, 113)
    exponent = low + np.arange(blocks) * 5 % prime
    return _typed((1 + np.abs(draw.normal((blocks, _BLOCK)))) * np.ldexp(1.0, exponent)[:, None], dtype)


#: What a block of `specials` consists of, in turn: (what fills it, what one lane holds, what another lane holds); None
#: is an ordinary value.
_KINDS: tuple[tuple[float | None, float | None, float | None], ...] = (
    (None, None, None),
    (0.0, None, None),
    (None, np.nan, None),
    (0.0, 0.0, 0.0),
    (None, np.inf, None),
    (-0.0, -0.0, -0.0),
    (None, -np.inf, None),
    (np.nan, np.nan, np.nan),
    (None, np.inf, -np.inf),
    (None, np.nan, -np.inf),
    (-0.0, 0.0, None),
    (0.0, np.nan, 0.0),
)
#: Neighbours that a lane of the kernel holds. If all are NaN, the lane has no number of its own for the maximum.
_LANE = 4
_NAN_LANES = "nan-lanes"


def _specials(draw: Draw, dtype: str, blocks: int) -> Values:
    """Zeros, NaN and Inf of both signs, alone, together and among ordinary values: 12 kinds of block."""
    values = draw.normal((blocks, _BLOCK))
    first = draw.integers(_BLOCK, (blocks,))
    second = (first + 1 + draw.integers(_BLOCK - 1, (blocks,))) % _BLOCK
    for block in range(blocks):
        base, one, other = _KINDS[block % len(_KINDS)]
        ordinary = values[block].copy()
        if base is not None:
            values[block] = base
        for lane, value in ((first[block], one), (second[block], other)):
            values[block, lane] = ordinary[lane] if value is None else value
    return _typed(values, dtype)


def _nan_lanes(draw: Draw, dtype: str, blocks: int) -> Values:
    """Each block begins with a lane of NaN, which stores the block's scale. The rest is `specials`."""
    values = _specials(draw, dtype, blocks)
    values[:, :_LANE] = np.nan
    return values


def _fill(name: str, catches: str, generator: Generator, limits: Limits | None = None) -> Fill:
    def make(case: Case) -> Values:
        draw = Draw("q8_1", name, case.dtype, case.seed)
        return generator(draw, case.dtype, case.shape.m * case.shape.k // _BLOCK).reshape(case.shape.m, case.shape.k)

    return Fill(name, catches, make, limits or Limits())


def _real(case: Case) -> Values:
    """Rows of a model's hidden states that ship with refmoe."""
    source = read_activations(FFN_INPUT)
    rows = tile_rows(source.patterns, case.shape.m, case.shape.k, first_row=case.seed * 37).view(DTYPES[source.dtype])
    return rows.astype(np.float32).astype(DTYPES[case.dtype])


_FILLS: Mapping[str, Fill] = MappingProxyType(
    {
        fill.name: fill
        for fill in (
            _fill("gaussian", "a reciprocal for the division, the other variant, codes or scales of others", _gaussian),
            _fill("ties", "halves to even or toward zero; another rounding of the quotient", _ties),
            _fill("scale-ties", "d by a reciprocal, or rounded to FP16 in another way", _scale_ties,
                  Limits(zeros=0.5, scales=8, reason="the largest element is far above the others")),
            _fill("cancelling", "elements summed in another order, or codes summed for elements", _cancelling,
                  Limits(zeros=0.6, reason="half of the elements are far below the others")),
            _fill("maxima", "an FP16 scale that saturates or is flushed, FP32 subnormals flushed", _maxima,
                  Limits(zeros=0.2, scales=8, reason="scales run through all exponents")),
            _fill("subnormal", "d flushed to zero, codes that saturate where they wrap", _subnormal,
                  Limits(zeros=0.6, scales=1, reason="every d is 0 in FP16, and some in FP32")),
            _fill("fingerprint", "scales or sums of another block or row", _fingerprint,
                  Limits(scales=8, reason="neighbours have scales of their own")),
            _fill("specials", "NaN not dropped from the maximum, Inf, the sign of a zero sum", _specials,
                  Limits(zeros=0.95, reason="most kinds of block are zero or not finite")),
            _fill(_NAN_LANES, "a lane that holds nothing but NaN stores its own maximum as the scale", _nan_lanes,
                  Limits(zeros=0.95, reason="most kinds of block are zero or not finite")),
            Fill("real", "what only a model's hidden states and outlier channels show", _real,
                 Limits(zeros=0.5, reason="outlier channels leave small codes to the others")),
        )
    }
)  # fmt: skip

# --- words for outputs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Int8Codes:
    """int8 codes [M, K] with their blocks' scales.

    Attributes:
        name: of the stage.
        d: the reference's scales, float16 [M, K/32].
    """

    name: str
    d: NDArray[np.float16]

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        row, column = divmod(index, self.d.shape[1] * _BLOCK)
        block, lane = divmod(column, _BLOCK)
        scale = number_text(int(self.d.view(np.uint16)[row, block]), FP16)
        values = " ".join(f"{who} {_signed(code)}" for who, code in (("kernel", kernel), ("reference", reference)))
        return f"block ({row}, {block}) lane {lane}: {values}, d {scale}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Rows by columns; see `refmoe.families.stages.HasPlane`."""
        return matrix_plane(shape)


def _signed(code: int) -> int:
    return code - 256 if code > 127 else code


@dataclass(frozen=True, eq=False)
class BlockHalves:
    """One FP16 number a block, [M, K/32], as bit patterns.

    Attributes:
        name: of the stage.
        blocks: K/32.
    """

    name: str
    blocks: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        row, block = divmod(index, self.blocks)
        return f"block ({row}, {block}): {compared_text(kernel, reference, FP16)}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Rows by blocks; see `refmoe.families.stages.HasPlane`."""
        return matrix_plane(shape, "row", "K-block")


# --- inputs, expectation, run ---------------------------------------------------------------------------------------


def _inputs(case: Case) -> Inputs:
    return {"x": _FILLS[case.fill].make(case)}


def q8_outputs(tensor: Q8Tensor) -> dict[str, NDArray[Any]]:
    """The buffers of a tensor as bit patterns."""
    return {
        "codes": tensor.codes.view(np.uint8),
        "d": tensor.d.view(np.uint16),
        "s": tensor.s.view(np.uint16),
    }


def _expect(case: Case, inputs: Inputs) -> Expectation:
    tensor = quantize_q8_1(inputs["x"], variant=case.variant)
    blocks = tensor.d.shape[1]
    stages = (Int8Codes("codes", tensor.d), BlockHalves("d", blocks), BlockHalves("s", blocks))
    return Expectation(q8_outputs(tensor), stages, doubt_q8(tensor, _FILLS[case.fill].limits))


def doubt_q8(tensor: Q8Tensor, limits: Limits) -> str | None:
    """Why these codes and scales could not have failed, or None if they could."""
    distinct, wanted = np.unique(tensor.d.view(np.uint16)).size, min(limits.scales, max(tensor.d.size // 2, 1))
    if tensor.d.size and distinct < wanted:
        return f"{distinct} distinct scales in {tensor.d.size} blocks, fewer than {wanted}: {limits.reason}"
    return doubt_values(tensor.codes, limits)


def _far(case: Case) -> Layout:
    """Where rows lie in the kernel's buffers."""
    k, size = case.shape.k, DTYPES[case.dtype].itemsize
    quads = int(case.rows_before) * k // 4
    moved = of_rows(case, {"x": size * k, "codes": k, "d": 2 * k // _BLOCK, "s": 2 * k // _BLOCK})
    return replace(moved, counts={0: quads}, tiles_before=quads // 256)


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda import q8_1

    place = chained(case, far_device(case, device, _far(case)), ())  # x is loaded while others may be under way
    return q8_outputs(
        called(case, q8_1.quantize_q8_1)(inputs["x"], device=place, variant=case.variant, fill=case.poison)
    )


# --- cases ----------------------------------------------------------------------------------------------------------

#: Rows of 64 elements in front of a case of few: together they have a little less than 2^31.
_FAR_ROWS = (1 << 25) - 128

#: Rows by 32: more quads than 256 threads of 16 CTAs on each of 170 multiprocessors take at once.
_LOOPING_ROWS = 87104


def _case(fill: str, m: int, k: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return Q8_1_QUANTIZE.case(fill, Shape(m, k), dtype, seed, **options)


def _quick() -> Iterator[Case]:
    for variant in VARIANTS:
        yield _case("gaussian", 1, 2880, variant=variant)  # decode
        for dtype in DTYPES:
            for fill in _FILLS:
                yield _case(fill, 5, 416, dtype=dtype, variant=variant)
    yield _case("fingerprint", 1, 32)  # one block: a quarter of a warp
    yield _case("gaussian", 1, 2880, dtype="f32", poison=0x7F)


def _default() -> Iterator[Case]:
    for variant in VARIANTS:
        for dtype in DTYPES:
            for k in (2880, 7168):
                yield _case("fingerprint", 4, k, dtype=dtype, variant=variant)
            for fill in _FILLS:
                yield _case(fill, 32, 736, dtype=dtype, variant=variant, poison=0x7F)
    for m in (1, 2, 8):
        yield _case("real", m, 2880)
    for variant in VARIANTS:
        for dtype in DTYPES:
            yield _case(_NAN_LANES, 1, 384, dtype=dtype, variant=variant)  # a block of each kind
            yield _case("gaussian", 2, 96, dtype=dtype, variant=variant, programmatic=1)
    yield _case("gaussian", _LOOPING_ROWS, 32)
    for dtype in DTYPES:  # as many elements as the host code takes, a little below 2^31
        yield _case("gaussian", 3, 64, dtype=dtype, rows_before=_FAR_ROWS)
    yield _case("fingerprint", 70, 1056, multiprocessors=1)  # in several rounds of each CTA
    for k in (224, 256, 288, 1024):  # a warp's elements and a CTA's, and a block less and more
        for m in (31, 32, 33):
            yield _case("fingerprint", m, k, dtype="fp16", variant=VARIANTS[m % 2])
    for variant in VARIANTS:
        yield _case("gaussian", 0, 2880, variant=variant)


def _full() -> Iterator[Case]:
    for seed in (1, 2, 3):
        for variant in VARIANTS:
            for dtype in DTYPES:
                for fill in _FILLS:
                    yield _case(fill, 130, 2880, dtype=dtype, seed=seed, variant=variant)
    for k in range(_BLOCK, 1056, _BLOCK):
        yield _case("fingerprint", 40, k)


_CHANGES: Mapping[str, Change] = {"x-past_int32": lambda given: {"x": huge((MANY // 64, 64), given["x"])}}


def _refuses() -> Iterator[Case]:
    yield from wrong_calls(
        _case("gaussian", 2, 64),
        {
            "x-many_rows": f"x: found {MANY} rows",
            "x-giga_rows": f"x: found {MANY * 32} elements",
            "x-long_rows": "bytes of scale atoms",
            "x-past_int32": f"x: found {MANY} elements",
        },
        x=f"{ARRAY} flat narrow no_columns many_rows giga_rows long_rows past_int32",
        variant="word",
        fill=BYTE,
    )


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    return q8_1_rows(case.shape.m, case.shape.k)


Q8_1_QUANTIZE = Family(
    name="q8_1_quantize",
    about="Q8_1 of a BF16, FP16 or FP32 matrix: int8 codes, an FP16 scale and an FP16 sum of each block of 32.",
    dtypes=tuple(DTYPES),
    sizes="mk",
    fills=_FILLS,
    options=(word("variant", *VARIANTS, fixed=True), MULTIPROCESSORS, PROGRAMMATIC, ROWS_BEFORE, POISON, WRONG),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=("x",),
        outputs={"codes": "int8", "d": "float16", "s": "float16"},
        settings={"variant": "variant"},
    ),
    sources=("q8_1",),
    host=("refmoe.cuda.q8_1",),
    check=check_before,
    lacks=lacks_memory,
    group="dp4a",
)
