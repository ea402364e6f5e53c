"""Gates and ups of ordinary networks and of the edges of the operations: clamps, overflow, zeros, specials, ties.

make(draw, rows, width) gives (gates, ups), float [rows, width] each, to be rounded to BF16.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.formats import MX_BLOCK

_BF16 = np.dtype(ml_dtypes.bfloat16)

#: Clamps that the cases give to experts, in turn; BF16 has all of them, so that a value can lie on one.
CLAMPS = np.array([7, 0.5, 5.5, np.inf, 3], np.float32)


def gaussian_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of either sign; one gate in fifty has a magnitude beyond gpt-oss's limit."""
    return draw.normal((rows, width)) * 3, draw.normal((rows, width)) * 3


def gaussian_terms(draw: Draw, experts: int, width: int) -> NDArray[Any]:
    """Biases [2, experts, width] of gates and ups."""
    return draw.normal((2, experts, width))


def limit_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """On a clamp, one unit of BF16 to either side of it, and far beyond, of either sign."""
    limits = CLAMPS[np.isfinite(CLAMPS)]
    patterns = (limits.view(np.uint32) >> 16).astype(np.int64)
    shape = (2, rows, width)
    near = patterns[draw.integers(limits.size, shape)] + draw.integers(3, shape) - 1
    far = patterns[0] + draw.integers(0x700, shape)
    chosen = np.where(draw.integers(8, shape) == 0, far, near) | draw.integers(2, shape) << 15
    values = chosen.astype(np.uint16).view(_BF16)
    return values[0], values[1]


#: Where 1 / (1 + exp) changes its nature, for a factor of 1 and of 1.702: overflow of the exponential, a sum that
#: rounds to 1 or to the exponential, ordinary figures.
_SIGMOID_EDGES = (-1000.0, -104.0, -88.75, -61.0, -52.25, -51.0, -17.0, -9.75, -1.0, 0.0, 1.0, 9.75, 17.0, 88.75, 104.0)


def edge_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Every block near one edge, so that results of the same size share a scale."""
    blocks = np.arange(rows * width // MX_BLOCK)
    centers = np.array(_SIGMOID_EDGES)[blocks % len(_SIGMOID_EDGES)]
    gates = np.repeat(centers, MX_BLOCK).reshape(rows, width) + draw.normal((rows, width)) / 2
    return gates, draw.normal((rows, width))


def tiny_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Results from below FP32's least subnormal number up to a little above the least scale."""
    exponents = draw.integers(24, (rows, width // MX_BLOCK)) + 117
    scale = np.repeat(np.ldexp(1.0, -exponents), MX_BLOCK, axis=1)
    return draw.normal((rows, width)) * scale, draw.normal((rows, width))


def fingerprint_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A scale byte of its own for every block as far as there are any, 100 of them."""
    blocks = np.arange(rows * width // MX_BLOCK).reshape(rows, width // MX_BLOCK)
    scale = np.repeat(np.ldexp(1.0, -(blocks * 37 % 100)), MX_BLOCK, axis=1)
    return (1 + np.abs(draw.normal((rows, width)))) * scale, draw.normal((rows, width)) + 2


def special_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """One special in four blocks of five, NaN or Inf of either sign, as a gate or as an up."""
    gates, ups = gaussian_gates(draw, rows, width)
    blocks = np.arange(rows * width // MX_BLOCK)
    places = blocks * MX_BLOCK + draw.integers(MX_BLOCK, blocks.shape)
    for kind, special in enumerate((np.nan, -np.nan, np.inf, -np.inf)):
        for side, values in enumerate((gates, ups)):
            values.reshape(-1)[places[blocks % 10 == 2 * kind + side]] = special
    return gates, ups


def nan_lane_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The first half of each block is NaN: a lane of the kernel that has no number of its own. Else `specials`."""
    gates, ups = special_gates(draw, rows, width)
    gates.reshape(-1, MX_BLOCK)[:, : MX_BLOCK // 2] = np.nan
    return gates, ups


def midpoint_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """One gate a row, and no up: the case chooses an expert's beta so that the result lies between two codes."""
    gates = draw.normal((rows, 1))
    return np.repeat(gates + np.copysign(0.25, gates), width, axis=1), np.zeros((rows, width))


#: Where each column of the fill `bias-ties` has its tie: the largest element, a tie of the gate, a tie of the up.
_TIED_SIDES = ("none", "gate", "up")
_TIE_AMAX = 256.0


def _tied_sides(width: int) -> NDArray[np.int64]:
    """The side of each column, a number in `_TIED_SIDES`; a block begins with its largest element."""
    columns = np.arange(width) % MX_BLOCK
    return np.where(columns == 0, 0, 1 + columns % 2)


def tie_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Results halfway between two codes, of gates whose sigmoid is 1: a bias far below decides, if it is kept.

    Between 16 and 32 codes are 2 apart, with the scale 1 that a largest element of 256 has: odd numbers are ties. The
    tie is the gate, times 1, or the up times 256. A bias of its least bit is rounded away, to a tie that goes to even.
    Rounded toward zero or upward the sum goes to the other code.
    """
    ties = 17.0 + 2 * draw.integers(8, (rows, width))
    side = _tied_sides(width)
    gates = np.where(side == 1, ties, _TIE_AMAX)
    return gates, np.where(side == 2, ties / _TIE_AMAX, 1.0)


def tie_terms(draw: Draw, experts: int, width: int) -> NDArray[Any]:
    """The biases [2, experts, width] of gates and ups: far below the side that has the tie, of either sign."""
    side = _tied_sides(width)
    signs = 1 - 2 * draw.integers(2, (experts, width))
    far_below = np.ldexp(signs.astype(np.float64), -36)
    return np.stack([np.where(side == 1, far_below, 0.0), np.where(side == 2, far_below, 0.0)])


def clamped_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gates beyond every finite clamp, and no up: the result is the clamp's own, put between two codes by beta."""
    return np.full((rows, width), 64.0), np.zeros((rows, width))


def zero_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Zeros of either sign as gates, as ups or as both, beside numbers of either sign, a kind a block."""
    gates, ups = gaussian_gates(draw, rows, width)
    kind = np.repeat(np.arange(rows * width // MX_BLOCK) % 4, MX_BLOCK).reshape(rows, width)
    zeros = np.where(draw.integers(2, (2, rows, width)) == 0, 0.0, -0.0)
    place = draw.integers(4, (rows, width))
    gates = np.where((kind == 1) | (kind == 3) | ((kind == 0) & (place == 0)), zeros[0], gates)
    return gates, np.where((kind == 2) | (kind == 3) | ((kind == 0) & (place == 1)), zeros[1], ups)
