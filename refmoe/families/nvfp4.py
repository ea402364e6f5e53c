"""The family `nvfp4_quantize`: fills for blocks of 16 under a global scale, the expectation, the run, the cases.

Three roundings follow one another in NVFP4: a block's scale to UE4M3, the scaled element to FP32, that to E2M1. The
fills put values where each of them decides. In most of them the largest magnitude is 84, so that the global encode
scale is 448 * 6 / 84 = 32, a power of two: what lies on a tie then stays there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import MULTIPROCESSORS, Shape, word
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Fill, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, Layout, check_before, far_device, lacks_memory, of_rows
from refmoe.families.quantize import (
    DECODE,
    FAR_ROWS,
    FILE_OPTIONS,
    INPUT_FORMATS,
    LOOPING_ROWS,
    InputFormat,
    check_file,
)
from refmoe.families.quantize import FILLS as MX_FILLS
from refmoe.families.stages import Codes, Scales
from refmoe.families.vacuity import Limits, doubt_codes
from refmoe.families.wrong import ARRAY, BYTE, MANY, WRONG, called, wrong_calls
from refmoe.formats import E2M1, FP32, NVFP4, UE4M3
from refmoe.reference.layout import scale_buffer_size, swizzle_scales, unpack_fp4
from refmoe.reference.nvfp4 import NVFP4Tensor, nvfp4_encode_scale, quantize_nvfp4, tensor_amax

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

Values = NDArray[np.float64]
Patterns = NDArray[np.uint16]

_BLOCK = NVFP4.block
#: The largest magnitude of most fills, and the global encode scale that it gives.
_TOP, _G = 84.0, 32.0
#: Those of the fill `scale-ties`. 38.4 is rounded, and so is its sixth: every other order of the operations of the rule
#: (g / 6, amax / 6, amax * g first) gives another byte for some amax on a tie.
_TOP_OF_TIES, _G_OF_TIES = 70.0, 38.4
_SCALES: Values = UE4M3.values()[: UE4M3.max_code + 1]
_STEPS: Values = E2M1.values()[: E2M1.max_code + 1]

#: Where a case's global scale comes from: the factor on that of its own data. With the largest of numbers `subnormal`
#: gives a scale, and a sixth of it, that are subnormal.
CALIBRATIONS: Mapping[str, float | None] = MappingProxyType(
    {"own": 1.0, "larger": 1 / 8, "smaller": 8.0, "subnormal": 1 / 1024, "none": None}
)

CALIBRATION = word("calibration", *CALIBRATIONS)


def _middles(values: Values) -> Values:
    return np.asarray((values[:-1] + values[1:]) / 2)


def _shape(m: int, k: int) -> tuple[int, int]:
    return m * k // _BLOCK, _BLOCK


def _placed(format: InputFormat, draw: Draw, elements: Values, maxima: Values, m: int, k: int) -> Patterns:
    """Patterns of `elements` [blocks, 16] with each block's maximum at a lane of its own, and random signs.

    The very first element is the tensor's largest, see `_TOP`.
    """
    blocks = np.arange(maxima.size)
    elements[blocks, draw.integers(_BLOCK, (maxima.size,))] = maxima
    return _signed(format, draw, format.patterns(elements), m, k)


def _signed(format: InputFormat, draw: Draw, magnitudes: NDArray[Any], m: int, k: int, top: float = _TOP) -> Patterns:
    patterns: Patterns = magnitudes.astype(np.uint16).reshape(-1)
    patterns[:1] = format.patterns(np.array([top]))
    return (patterns.reshape(-1, _BLOCK) | draw.signs((patterns.size // _BLOCK, _BLOCK))).reshape(m, k)


def _below(draw: Draw, maxima: Values, octaves: int) -> Values:
    """Elements [blocks, 16] from `octaves` below each maximum up to it."""
    fraction = draw.integers(1 << 16, (maxima.size, _BLOCK)) / 65536
    return np.asarray(maxima[:, None] * np.exp2(-octaves * fraction))


def _nudged(draw: Draw, patterns: NDArray[Any]) -> NDArray[np.int64]:
    """Half of the patterns one ulp up or down; a zero stays."""
    nudge = np.array([0, 0, 1, -1])[draw.integers(4, patterns.shape)]
    wide = patterns.astype(np.int64)
    return np.where(wide == 0, wide, wide + nudge)


def _wide_range(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Blocks 0 to 22 binades below the tensor's largest: every binade of the scale, and below all of them."""
    blocks, _ = shape = _shape(m, k)
    reach = 23 if format.name == "bf16" else 14
    exponent = -draw.integers(reach, (blocks, 1)) - draw.integers(5, shape)
    values = np.ldexp(np.abs(draw.normal(shape)) * (_TOP / 8), exponent)
    return _signed(format, draw, format.patterns(values), m, k)


def _rne_ties(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Elements on a tie of E2M1 after scaling, and one input ulp beside it, under every scale in turn."""
    blocks, _ = shape = _shape(m, k)
    scale = _SCALES[1 + np.arange(blocks) % UE4M3.max_code]
    ties = _middles(_STEPS)[draw.integers(_STEPS.size - 1, shape)] * scale[:, None] / _G
    magnitudes = _nudged(draw, format.patterns(ties))
    maxima = format.patterns(6 * scale / _G).astype(np.int64)
    magnitudes[np.arange(blocks), draw.integers(_BLOCK, (blocks,))] = maxima
    return _signed(format, draw, magnitudes, m, k)


def _scale_bytes(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Block maxima for every UE4M3 byte in turn, 0x00 and 0x7E included; the last of each round is a zero block."""
    blocks, _ = _shape(m, k)
    turn = np.arange(blocks) % (UE4M3.max_code + 2)
    scale = np.concatenate([_SCALES, [0.0]])[turn]
    scale[turn == 0] = 2.0**-11  # rounds to 0, but is none
    return _placed(format, draw, _below(draw, 6 * scale / _G, 4), 6 * scale / _G, m, k)


def _scale_ties(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Block maxima whose scale lies half way between two UE4M3 values but for rounding, and one input ulp beside."""
    blocks, _ = _shape(m, k)
    middle = _middles(_SCALES)[np.arange(blocks) % UE4M3.max_code]
    magnitudes = format.patterns(_below(draw, 5 * middle / _G_OF_TIES, 3)).astype(np.int64)
    maxima = _nudged(draw, format.patterns(6 * middle / _G_OF_TIES))
    magnitudes[np.arange(blocks), draw.integers(_BLOCK, (blocks,))] = maxima
    return _signed(format, draw, magnitudes, m, k, _TOP_OF_TIES)


def _every_maximum(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Block maxima through every mantissa of every binade that UE4M3 has, and of two below them."""
    blocks, shape = _shape(m, k)[0], _shape(m, k)
    top = int(format.patterns(np.array([_TOP]))[0])
    size = 1 << format.mantissa_bits
    binades = 20 if format.name == "bf16" else 14
    # Mantissas run fastest: few blocks are whole binades.
    maxima = np.maximum(top - np.arange(blocks) % (binades * size), 1)
    span = np.broadcast_to((maxima - np.maximum(maxima - 4 * size, 0) + 1)[:, None], shape)
    elements = maxima[:, None] - draw.integers(span, shape)
    elements[np.arange(blocks), np.arange(blocks) % _BLOCK] = maxima
    return _signed(format, draw, elements, m, k)


def _every_element(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Elements through every mantissa of the six binades below a block's maximum, under every scale in turn."""
    blocks, _ = _shape(m, k)
    size = 6 << format.mantissa_bits
    maxima = format.patterns(6 * _SCALES[1 + np.arange(blocks) % UE4M3.max_code] / _G).astype(np.int64)
    steps = (np.arange(blocks)[:, None] * (_BLOCK - 1) + np.arange(_BLOCK)) % size
    elements = np.maximum(maxima[:, None] - steps, 0)
    elements[np.arange(blocks), np.arange(blocks) % _BLOCK] = maxima
    return _signed(format, draw, elements, m, k)


def _fingerprint(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """A scale byte per (row, block) that differs from its neighbours' in every direction a layout can confuse."""
    row, column = np.divmod(np.arange(m * k // _BLOCK, dtype=np.int64), max(k // _BLOCK, 1))
    maxima = 6 * _SCALES[10 + (17 * row + 5 * column) % 113] / _G
    return _placed(format, draw, _below(draw, maxima, 4), maxima, m, k)


def _tiny(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Subnormals and the smallest normals: the global scale of BF16 is FLT_MAX, its reciprocal a subnormal."""
    blocks, shape = _shape(m, k)[0], _shape(m, k)
    field = np.arange(blocks) % (6 if format.name == "bf16" else 3)
    top = (field << format.mantissa_bits) | draw.integers(1 << format.mantissa_bits, (blocks,))
    return (
        draw.integers(np.broadcast_to((top + 1)[:, None], shape), shape).astype(np.uint16) | draw.signs(shape)
    ).reshape(m, k)


def _huge(format: InputFormat, draw: Draw, m: int, k: int) -> Patterns:
    """Magnitudes up to the largest finite one: the global scale is the smallest that there is."""
    shape = _shape(m, k)
    low = format.infinity - (14 << format.mantissa_bits)
    top = low + draw.integers(format.infinity - low, (shape[0], 1))
    below = draw.integers(4 << format.mantissa_bits, shape)
    elements = np.where(draw.integers(4, shape) == 0, top, top - below)
    return (elements.astype(np.uint16) | draw.signs(shape)).reshape(m, k)


def _generated(name: str, catches: str, generator: Callable[..., Patterns], limits: Limits) -> Fill:
    def make(case: Case, dtype: str) -> NDArray[Any]:
        format = INPUT_FORMATS[dtype]
        patterns = generator(format, Draw("nvfp4", name, dtype, case.seed), case.shape.m, case.shape.k)
        return patterns.view(format.dtype)

    return Fill(name, catches, make, limits)


_CALIBRATED = "a sixteenth of the codes are maxima; a calibration that is off makes all of them 6, or many of them 0"
_ORDINARY = Limits(zeros=0.4, saturated=0.75, scales=2, reason=_CALIBRATED)


def _limits(scales: int, zeros: float = 0.4, saturated: float = 0.75) -> Limits:
    return dataclasses.replace(_ORDINARY, scales=scales, zeros=zeros, saturated=saturated)


def _as_in_mx(name: str, limits: Limits) -> Fill:
    return dataclasses.replace(MX_FILLS[name], limits=limits)


_FILLS = (
    _as_in_mx("gaussian", _ORDINARY),
    _generated("wide-range", "scales of small blocks flushed, clamped or rounded up from 0", _wide_range, _limits(8)),
    _generated("rne-ties", "round toward zero, half away, half up; a code rounded twice", _rne_ties, _limits(8)),
    _generated("scale-bytes", "a clamped or lost scale; a zero block", _scale_bytes, _limits(8)),
    _generated(
        "scale-ties", "a scale rounded another way, or to a power of two; 1/6 as a division", _scale_ties, _limits(8)
    ),
    _generated("every-maximum", "any wrong scale", _every_maximum, _limits(2)),
    _generated("every-element", "any wrong code", _every_element, _limits(8)),
    _generated("fingerprint", "permuted or shifted scales, rows or experts; scales ignored", _fingerprint, _limits(16)),
    _as_in_mx("specials", _limits(2, zeros=0.9)),
    _generated("tiny", "flush to zero; a global scale that overflows", _tiny, _limits(2, zeros=0.6)),
    _generated("huge", "a product that overflows; a global scale that is a subnormal's neighbour", _huge, _limits(2)),
    _as_in_mx("real", _ORDINARY),
    _as_in_mx("activations", _ORDINARY),
)

#: The input data of NVFP4, by name.
NVFP4_FILLS = Fill.by_name(*_FILLS)


def global_scale(case: Case, x: NDArray[Any]) -> np.float32:
    """The global encode scale of a case with that data: its own, one of another calibration, or 1."""
    factor = CALIBRATIONS[str(case.calibration)]
    own = float(nvfp4_encode_scale(tensor_amax(x)))
    scale: np.float32 = np.float32(1 if factor is None else min(own * factor, float(FP32.max)))
    return scale


def _inputs(case: Case) -> Inputs:
    x = NVFP4_FILLS[case.fill].make(case, case.dtype)
    return {"x": x, "global_scale": np.array([global_scale(case, x)], np.float32)}


def doubt_nvfp4(made: NVFP4Tensor, limits: Limits) -> str | None:
    """Why this data could not have failed, see `doubt_codes`; blocks under a NaN scale are left out."""
    sound = made.scales.reshape(-1) != UE4M3.nan_code
    codes = unpack_fp4(made.codes).reshape(-1, _BLOCK)[sound]
    return doubt_codes(codes, made.scales, limits, element=E2M1)


def _expect(case: Case, inputs: Inputs) -> Expectation:
    made = quantize_nvfp4(inputs["x"], global_encode_scale=inputs["global_scale"][0])
    rows, blocks = made.scales.shape
    scales = swizzle_scales(made.scales, case.layout, fill=case.poison)
    stages = (
        Codes("codes", made.codes.shape, made.scales, rows, element=E2M1, block=_BLOCK),
        Scales("scales", case.layout, rows, blocks, UE4M3),
    )
    return Expectation(
        {"codes": made.codes, "scales": scales}, stages, doubt_nvfp4(made, NVFP4_FILLS[case.fill].limits)
    )


def _far(case: Case) -> Layout:
    """Where rows lie in the kernel's buffers."""
    k = case.shape.k
    scale_bytes = k // _BLOCK if case.layout == "linear" else -(-k // (4 * _BLOCK)) * 4
    return of_rows(case, {"x": 2 * k, "codes": k // NVFP4.codes_a_byte, "scales": scale_bytes})


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda import nvfp4

    result = called(case, nvfp4.quantize_nvfp4)(
        inputs["x"],
        global_encode_scale=inputs["global_scale"][0],
        device=far_device(case, device, _far(case)),
        layout=case.layout,
        fill=case.poison,
    )
    return {"codes": result.codes, "scales": result.scales}


_PLAIN = tuple(name for name in NVFP4_FILLS if name not in ("real", "activations"))


def _case(fill: str, m: int, k: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return NVFP4_QUANTIZE.case(fill, Shape(m, k), dtype, seed, **options)


def _check(case: Case) -> None:
    check_file(case)
    check_before(case)


def _quick() -> Iterator[Case]:
    # 25 blocks are no multiple of 4 scale columns, 5 rows fill no tile: padding in both directions.
    yield _case("fingerprint", 5, 400, layout="128x4")
    yield _case("fingerprint", 1, 2880, layout="128x4")
    yield _case("fingerprint", 2, 2880)
    yield _case("fingerprint", 3, 16, layout="128x4")  # one block
    yield _case("fingerprint", 130, 80, layout="128x4")  # past one tile of 128 rows
    for fill in ("rne-ties", "scale-bytes", "scale-ties", "every-element"):
        yield _case(fill, 8, 400)
        yield _case(fill, 8, 400, dtype="fp16", layout="128x4")
    yield _case("every-maximum", 40, 1024)
    for calibration in ("larger", "smaller", "none"):
        yield _case("wide-range", 4, 416, calibration=calibration)
    yield _case("specials", 8, 416)
    yield _case("specials", 8, 416, dtype="fp16", layout="128x4")
    yield _case("tiny", 4, 400)
    yield _case("huge", 4, 400)


def _default() -> Iterator[Case]:
    for dtype in INPUT_FORMATS:
        for fill in _PLAIN:
            for layout in ("linear", "128x4"):
                yield _case(fill, 9, 2880, dtype=dtype, layout=layout)
        yield _case("every-maximum", 64, 2880, dtype=dtype)
        yield _case("real", 64, 2880, dtype=dtype)
        for calibration in ("larger", "smaller", "none"):
            for fill in ("rne-ties", "scale-ties", "real"):
                yield _case(fill, 9, 2880, dtype=dtype, calibration=calibration)
    for layout in ("linear", "128x4"):
        yield _case("huge", 4, 400, calibration="subnormal", layout=layout)
    for k in (2880, 7168):
        for m in DECODE:
            for layout in ("linear", "128x4"):
                yield _case("fingerprint", m, k, layout=layout, poison=0x7F)
        yield _case("fingerprint", 300 if k == 2880 else 130, k, layout="128x4")
    yield _case("fingerprint", 65_600, 16, layout="128x4")  # more rows of scales than CTAs
    for rows in (127, 128, 129, 255, 256, 257):  # an atom of the layout, and a row less and more
        yield _case("fingerprint", rows, 64, layout="128x4", poison=0x7F)
    for k in (48, 64, 80, 496, 512, 528, 8176, 8192):  # a group's elements, a warp's, a CTA's; a block less and more
        yield _case("scale-bytes", 3, k, layout="128x4")
    for layout in ("linear", "128x4"):  # blocks, and bytes of swizzled scales, past 2^31
        yield _case("fingerprint", 3, 64, layout=layout, rows_before=FAR_ROWS)
        yield _case("fingerprint", 3, 144, layout=layout, rows_before=FAR_ROWS)  # and past 2^32
    for layout in ("linear", "128x4"):
        yield _case("fingerprint", LOOPING_ROWS, 16, layout=layout)
        yield _case("wide-range", 3, 8208, layout=layout)  # a row wider than a CTA, by one block
        yield _case("fingerprint", 1, 16400, layout=layout)  # three rounds, and more groups than a byte counts
        yield _case("fingerprint", 1, 24_592, layout=layout)  # and four
        yield _case("gaussian", 0, 2880, layout=layout)
        yield _case("wide-range", 66, 8208, layout=layout, multiprocessors=1)  # and more of them than CTAs
    yield _case("fingerprint", 1, 16_464, dtype="fp16", layout="128x4")
    yield _case("fingerprint", 5, 64, layout="128x4", poison=0)  # the fill's default


def _full() -> Iterator[Case]:
    for seed in (1, 2, 3):
        for dtype in INPUT_FORMATS:
            for fill in _PLAIN:
                # Data of one size, or at the ends of the range, has one scale or none under other calibrations.
                others = () if fill in ("tiny", "huge", "gaussian") else ("larger", "smaller", "none")
                for calibration in ("own", *others):
                    yield _case(fill, 65, 2880, dtype=dtype, seed=seed, calibration=calibration, layout="128x4")
    for k in range(_BLOCK, 528, _BLOCK):
        yield _case("fingerprint", 9, k, layout="128x4")
    yield _case("every-maximum", 512, 2880, dtype="fp16")
    yield _case("every-element", 1024, 2880)
    yield _case("real", 2048, 7168, layout="128x4")


def _refuses() -> Iterator[Case]:
    yield from wrong_calls(
        _case("gaussian", 2, 64),
        {"x-many_rows": f"x: found {MANY} rows", "x-most_rows": "step past", "x-long_rows": "bytes of scale atoms"},
        x=f"{ARRAY} flat narrow no_columns many_rows most_rows long_rows",
        global_encode_scale="zero negative nan infinite text",
        layout="word",
        fill=BYTE,
    )


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    m, k = case.shape.m, case.shape.k
    return {"codes": m * k // 2, "scales": scale_buffer_size(m, k // NVFP4.block, case.layout)}


NVFP4_QUANTIZE = Family(
    name="nvfp4_quantize",
    about="NVFP4 codes and UE4M3 scales of a BF16 or FP16 matrix, under a global scale that is given.",
    dtypes=tuple(INPUT_FORMATS),
    sizes="mk",
    fills=NVFP4_FILLS,
    options=(
        *(word("layout", "linear", "128x4", fixed=True), CALIBRATION),
        *(MULTIPROCESSORS, ROWS_BEFORE, POISON, WRONG, *FILE_OPTIONS),
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    contract=Contract(
        inputs=("x", "global_scale"),
        outputs={"codes": "float4_e2m1fn_x2", "scales": "float8_e4m3fn"},
        settings={"layout": "layout"},
    ),
    sources=("nvfp4",),
    host=("refmoe.cuda.nvfp4",),
    check=_check,
    lacks=lacks_memory,
    block=_BLOCK,
)
