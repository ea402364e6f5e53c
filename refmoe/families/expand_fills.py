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
from refmoe.formats import E4M3, MX_BLOCK


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
    *ROW_FILLS,
    Fill(
        "bytes",
        "a code or a scale that is changed on its way",
        random_bytes,
        # 2 codes in 256 are zeros, 2 NaN, 2 saturated.
        Limits(zeros=0.05, saturated=0.05, nans=0.05, scales=32, reason="the bytes are uniform"),
    ),
)
