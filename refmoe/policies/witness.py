"""Small blocks on which rules part: what to quantize if the data at hand cannot tell two rules from each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import MX_BLOCK, MX_FORMATS
from refmoe.numbers_as_text import bits_text, number_text
from refmoe.policies.blocks import InputBlocks
from refmoe.policies.rules import PolicyRule

_INF, _NAN = float("inf"), float("nan")
#: Leading elements, and what fills the rest of the block: maxima between the boundaries of the modes first, then
#: rounding, then edges.
_CATALOGUE: tuple[tuple[tuple[float, ...], float], ...] = (
    *(((top,), 0.0) for top in (1.0, 1.25, 1.4375, 1.5, 1.625, 1.75, 1.875, 1.9375, 1.984375)),
    # Where a logarithm in FP32 rounds up.
    ((float(np.nextafter(np.float32(1024), np.float32(0))),), 0.0),
    # A tie of E2M1 that nearest even rounds up, and the sign of a zero.
    ((4.0, 0.75), 0.0),
    ((1.0, -0.0), 0.0),
    ((), 0.0),
    ((2.0**-20,), 0.0),
    ((2.0**-120,), 0.0),
    ((2.0**-126,), 0.0),
    ((2.0**-130,), 0.0),
    ((_NAN,), 1.0),
    ((_INF,), 1.0),
    ((-_INF,), 1.0),
    ((_NAN, _INF), 1.0),
    ((), _NAN),
)


@dataclass(frozen=True)
class Witness:
    """A block that tells two rules apart.

    Attributes:
        values: its 32 elements.
        description: the block in words.
        first, second: what each rule makes of it, in words.
    """

    values: tuple[float, ...]
    description: str
    first: str
    second: str


def find_witness(first: PolicyRule, second: PolicyRule, dtype: np.dtype[np.generic], format: str) -> Witness | None:
    """The first block of a short catalogue that both rules define and quantize differently, if there is one.

    Args:
        first: one rule.
        second: the other.
        dtype: of the input; blocks with values that it does not have are left out.
        format: "mxfp8" or "mxfp4".
    """
    x, entries = _blocks(dtype)
    blocks = InputBlocks(x, format)
    one, other = first.run(blocks), second.run(blocks)
    differs = (one.codes != other.codes).any(axis=1) | (one.scales != other.scales)
    found = np.flatnonzero(differs & one.defined & other.defined)
    if not found.size:
        return None
    index = int(found[0])
    mx = MX_FORMATS[format]
    codes = one.codes[index] != other.codes[index]
    lane = int(codes.argmax()) if codes.any() else 0

    def words(scale: int, code: int) -> str:
        return f"scale {bits_text(scale, mx.scale)}, element {lane} {number_text(code, mx.element)}"

    return Witness(
        tuple(float(value) for value in x[index]),
        _description(*_CATALOGUE[entries[index]]),
        words(int(one.scales[index]), int(one.codes[index, lane])),
        words(int(other.scales[index]), int(other.codes[index, lane])),
    )


@cache
def _blocks(dtype: np.dtype[np.generic]) -> tuple[NDArray[np.generic], tuple[int, ...]]:
    """The catalogue [n, 32] in `dtype`, and which entry each block is."""
    rows = np.array([[*leading, *[rest] * (MX_BLOCK - len(leading))] for leading, rest in _CATALOGUE], np.float32)
    x = rows.astype(dtype)
    same = ((x.astype(np.float32) == rows) | np.isnan(rows)).all(axis=1)
    return np.ascontiguousarray(x[same]), tuple(np.flatnonzero(same).tolist())


def _description(leading: tuple[float, ...], rest: float) -> str:
    shown = ", ".join(_number(value) for value in leading)
    filler = f"{MX_BLOCK - len(leading)} times {_number(rest)}"
    return f"{shown} and {filler}" if shown else filler


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    mantissa, exponent = np.frexp(abs(value))
    if mantissa == 0.5 and exponent < -8:
        return f"2^{exponent - 1}"
    return "Inf" if value == _INF else "-Inf" if value == -_INF else f"{value:.10g}"
