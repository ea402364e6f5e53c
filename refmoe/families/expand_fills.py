"""The input data of the family `expand`: that of quantization, and what its other outputs ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.family import Case, Fill
from refmoe.families.nvfp4 import NVFP4_FILLS
from refmoe.families.quantize import FILLS, INPUT_FORMATS, InputFormat
from refmoe.families.vacuity import Limits
from refmoe.formats import E4M3, MX_BLOCK, NVFP4


def random_bytes(case: Case) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes [m, k] and scales [m, k/32] of uniform bytes."""
    draw, (m, k) = Draw("bytes", case.seed), (case.shape.m, case.shape.k)
    codes, scales = (draw.integers(256, (m, width)).astype(np.uint8) for width in (k, k // MX_BLOCK))
    return codes, scales


def _row_maxima(draw: Draw, m: int) -> NDArray[np.float64]:
    """A largest magnitude 448 * 2^s for each row, s different from the neighbours'."""
    return np.ldexp(448.0, (5 * np.arange(m) + int(draw.integers(7, (1,))[0])) % 13 - 9)


def _row_ties(format: InputFormat, draw: Draw, m: int, k: int) -> NDArray[np.uint16]:
    """Elements on a tie of E4M3 after scaling, and one input ulp beside it, in rows with scales of their own."""
    maxima = _row_maxima(draw, m)[:, None]
    codes = E4M3.values()[: E4M3.max_code + 1]
    ties = ((codes[:-1] + codes[1:]) / 2)[draw.integers(E4M3.max_code, (m, k))]
    patterns = format.patterns(ties * (maxima / 448)).astype(np.int64)
    patterns += np.where(patterns == 0, 0, np.array([0, 0, 1, -1])[draw.integers(4, (m, k))])
    # The first row's largest is its last element, the others' lie further and further to the left.
    patterns[np.arange(m), (-1 - 37 * np.arange(m)) % k] = format.patterns(maxima[:, 0])
    return np.asarray(patterns.astype(np.uint16) | draw.signs((m, k)))


def _row_scales(format: InputFormat, draw: Draw, m: int, k: int) -> NDArray[np.uint16]:
    """Normal values in rows whose largest magnitudes run through mantissas and binades."""
    scale = np.ldexp(1 + draw.integers(128, (m, 1)) / 128, (5 * np.arange(m)[:, None]) % 17 - 8)
    return format.patterns(draw.normal((m, k)) * scale)


#: Of the fill `nvfp4-product-ties`: the global scale, which is also the factor of a block whose scale is 1; an element
#: whose product with it lies a quarter of an ulp below 1.75, a tie of E2M1 that goes up; and a largest element whose
#: block has that scale.
TIED_GLOBAL_SCALE = np.uint32(0x3FB33333).view(np.float32)
_TIED_ELEMENT, _TIED_LARGEST = 1.25, 4.28125
PRODUCT_TIES = "nvfp4-product-ties"


def _product_ties(format: InputFormat, draw: Draw, m: int, k: int) -> NDArray[np.uint16]:
    """Elements whose product rounds to a tie, and in each block a largest one at another place."""
    place = np.arange(m * k)
    largest = place % NVFP4.block == place // NVFP4.block * 5 % NVFP4.block
    values = np.where(largest, _TIED_LARGEST, _TIED_ELEMENT).reshape(m, k)
    return np.asarray(format.patterns(values) | draw.signs((m, k)))


def _generated(name: str, catches: str, generator: Callable[..., NDArray[np.uint16]], limits: Limits) -> Fill:
    def make(case: Case, dtype: str) -> NDArray[Any]:
        format = INPUT_FORMATS[dtype]
        draw = Draw("expand", name, dtype, case.seed)
        return generator(format, draw, case.shape.m, case.shape.k).view(format.dtype)

    return Fill(name, catches, make, limits)


ROW_FILLS = (
    _generated(
        "row-ties",
        "of FP8 under one scale: round toward zero, half away; a neighbour's scale",
        _row_ties,
        Limits(zeros=0.4, reason="codes are drawn evenly; under one scale for all tokens small rows lie lower"),
    ),
    _generated(
        "row-scales",
        "of FP8 under one scale: any wrong scale of a token; a scale that another row has",
        _row_scales,
        Limits(zeros=0.2, reason="rows are normal values"),
    ),
)


def _of_nvfp4(name: str) -> Fill:
    """A fill of NVFP4 quantization under a name of its own."""
    return replace(NVFP4_FILLS[name], name=f"nvfp4-{name}", catches=f"of NVFP4: {NVFP4_FILLS[name].catches}")


#: Of it the factors of channels are zero, of either sign, subnormal, negative, and an ulp to either side of 1.
EDGE_CHANNELS = "edge-channels"
#: Of it the factors of a few channels are half of the largest number.
LARGE_CHANNELS = "large-channels"

EXPAND_FILLS = Fill.by_name(
    *FILLS.values(),
    replace(
        FILLS["gaussian"],
        name=EDGE_CHANNELS,
        catches="a factor of a channel that is flushed, or whose sign or last bit is lost",
        limits=Limits(zeros=0.7, scales=1, reason="five channels of nine are zero or subnormal"),
    ),
    replace(
        FILLS["gaussian"],
        name=LARGE_CHANNELS,
        catches="a product of a channel that saturates where it has to become an infinity",
        limits=Limits(zeros=1.0, saturated=1.0, nans=1.0, scales=1, reason="large numbers leave zeros beside them"),
    ),
    *map(_of_nvfp4, ("rne-ties", "scale-ties", "scale-bytes", "fingerprint")),
    _generated(
        PRODUCT_TIES,
        "of NVFP4: a product with a block's factor that rounds toward zero",
        _product_ties,
        Limits(scales=1, reason="all blocks are alike but for signs and places"),
    ),
    *ROW_FILLS,
    Fill(
        "bytes",
        "a code or a scale that is changed on its way",
        random_bytes,
        # 2 codes in 256 are zeros, 2 NaN, 2 saturated.
        Limits(zeros=0.05, saturated=0.05, nans=0.05, scales=32, reason="the bytes are uniform"),
    ),
)


def channel_factors(case: Case) -> NDArray[Any]:
    """A factor of the input's type for each channel, [k]."""
    format, width = INPUT_FORMATS[case.dtype], case.shape.k
    least, one = 1 << format.mantissa_bits, format.bias << format.mantissa_bits
    kinds = {
        EDGE_CHANNELS: [one, 0, one + 1, 1, 0x8000, one - 1, 0x8000 | one, least - 1, 0x8001],
        PRODUCT_TIES: [one, 0x8000 | one, 0x8000 | one],
    }
    if case.fill in kinds:
        return np.resize(np.array(kinds[case.fill], np.uint16), width).view(format.dtype)
    if case.fill == LARGE_CHANNELS:
        # Half of the largest number: of a channel with it what is larger than 2 becomes an infinity, the rest does not.
        large = ((1 << format.exponent_bits) - 2) << format.mantissa_bits
        return np.where(np.arange(width) % 37 == 5, large, one).astype(np.uint16).view(format.dtype)
    # Of every mantissa, over eight binades: a product has twice the bits of its type.
    draw, size = Draw("prescale", case.dtype, case.seed), 1 << format.mantissa_bits
    patterns = ((format.bias - 4) << format.mantissa_bits) + draw.integers(8 * size, (width,))
    return (patterns.astype(np.uint16) | draw.signs((width,))).view(format.dtype)
