"""Input data of routing, activation and finalize as named, seeded generators: each makes certain wrong kernels fail.

Everything is made of integers and powers of two, or of `Draw.normal`: no libm decides a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.fills import BLOCK, Limits

__all__ = [
    "CLAMP_LIMITS",
    "GATE_FILLS",
    "LOGIT_FILLS",
    "MIDPOINTS",
    "ROW_FILLS",
    "GateFill",
    "LogitFill",
    "RowFill",
    "WeightedRows",
]

FloatArray = NDArray[np.float32]
_BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class LogitFill:
    """A generator of router logits.

    Attributes:
        name: as in a repro string.
        catches: which wrong kernels fail on it.
        make: `make(draw, tokens, experts, k)` gives float32 [tokens, experts].
        refused: whether some tokens have no answer.
    """

    name: str
    catches: str
    make: Callable[[Draw, int, int, int], FloatArray]
    refused: bool = False


def _gaussian_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    return (draw.normal((tokens, experts)) * 2).astype(np.float32)


def _tied_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """About k / 2 experts with the largest value, as many with the next: now the one, now the other is cut by k."""
    place = draw.integers(experts, (tokens, experts))
    return np.select([place < k / 2, place < k, place < 3 * k], [2, 0.5, -0.25], -1.5).astype(np.float32)


def _negative_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    return (-1 - np.abs(draw.normal((tokens, experts))) * 8).astype(np.float32)


def _zero_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """Zeros of either sign, more than k; about k / 2 experts with subnormals above them, others below."""
    place = draw.integers(experts, (tokens, experts))
    least = 2.0**-126  # the least normal number, which BF16 has too
    zeros = np.where(draw.integers(2, place.shape) == 0, 0.0, -0.0)
    return np.select([place < k / 2, place > experts * 3 // 4], [least / 64, -least / 64], zeros).astype(np.float32)


def _wide_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """Far enough apart for the lower ranks' exponentials to be subnormal or zero."""
    logits = (draw.normal((tokens, experts)) * 60).astype(np.float32)
    return logits


def _close_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """A few of BF16's units apart, on both sides of a binade's border, either sign for a whole token.

    More experts have more values to choose from: of a dozen, all k chosen would be the largest one.
    """
    values = max(12, experts // 2)
    patterns = 0x4000 + draw.integers(values, (tokens, experts)) - values // 2 | draw.integers(2, (tokens, 1)) << 15
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def _never_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """-Inf but for a few more than k experts of each token."""
    order = np.argsort(draw.words(tokens * experts).reshape(tokens, experts), axis=1, kind="stable")
    ranked = np.argsort(order, axis=1, kind="stable")
    return np.where(ranked < k + 2, _negative_logits(draw, tokens, experts, k), -np.inf).astype(np.float32)


def _same_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """The last k experts far ahead of all others, in an order of each token's own."""
    logits = _gaussian_logits(draw, tokens, experts, k)
    logits[:, experts - k :] += 100
    return logits


def _refused_logits(draw: Draw, tokens: int, experts: int, k: int) -> FloatArray:
    """All but every fifth token is without an answer: NaN of either sign, +Inf, too few that are finite."""
    logits = _gaussian_logits(draw, tokens, experts, k)
    place = draw.integers(experts, (tokens,))
    kinds = np.array([0, 0x7FC00000, 0xFFC00000, 0x7F800000], np.uint32).view(np.float32)
    for token in range(tokens):
        kind = token % 5
        if kind in (1, 2, 3):
            logits[token, place[token]] = kinds[kind]
        elif kind == 4:
            logits[token, k - 1 :] = -np.inf
    return logits


LOGIT_FILLS: Mapping[str, LogitFill] = MappingProxyType(
    {
        fill.name: fill
        for fill in (
            LogitFill("gaussian", "a softmax over other experts, in another order, or fused", _gaussian_logits),
            LogitFill("ties", "a tie that goes to another than the lowest index", _tied_logits),
            LogitFill("negative", "logits compared as signed bits, padding chosen", _negative_logits),
            LogitFill("signed-zeros", "-0 told from +0, subnormals flushed", _zero_logits),
            LogitFill("wide", "an exponential that flushes or is clamped", _wide_logits),
            LogitFill("close", "logits compared with fewer bits", _close_logits),
            LogitFill("never", "-Inf chosen, or taken for padding", _never_logits),
            LogitFill("same", "experts without rows, and one with a row of every token", _same_logits),
            LogitFill("refused", "NaN or +Inf accepted, -Inf chosen, the wrong token reported", _refused_logits, True),
        )
    }
)


@dataclass(frozen=True)
class GateFill:
    """A generator of a first GEMM's outputs.

    Attributes:
        name: as in a repro string.
        catches: which wrong kernels fail on it.
        make: `make(draw, rows, width)` gives (gates, ups), float [rows, width] each, to be rounded to BF16.
        limits: what the quantized results must look like.
    """

    name: str
    catches: str
    make: Callable[[Draw, int, int], tuple[NDArray[Any], NDArray[Any]]]
    limits: Limits = field(default_factory=Limits)


#: Clamps that the cases give to experts, in turn; BF16 has all of them, so that a value can lie on one.
CLAMP_LIMITS = np.array([7, 0.5, 5.5, np.inf, 3], np.float32)


def _gaussian_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    return draw.normal((rows, width)) * 3, draw.normal((rows, width)) * 3


def _limit_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """On a clamp, one unit of BF16 to either side of it, and far beyond, of either sign."""
    limits = CLAMP_LIMITS[np.isfinite(CLAMP_LIMITS)]
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


def _edge_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Every block near one edge, so that results of the same size share a scale."""
    blocks = np.arange(rows * width // BLOCK)
    centers = np.array(_SIGMOID_EDGES)[blocks % len(_SIGMOID_EDGES)]
    gates = np.repeat(centers, BLOCK).reshape(rows, width) + draw.normal((rows, width)) / 2
    return gates, draw.normal((rows, width))


def _tiny_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Results from below FP32's least subnormal number up to a little above the least scale."""
    exponents = draw.integers(24, (rows, width // BLOCK)) + 117
    scale = np.repeat(np.ldexp(1.0, -exponents), BLOCK, axis=1)
    return draw.normal((rows, width)) * scale, draw.normal((rows, width))


def _fingerprint_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A scale byte of its own for every block as far as there are any, 100 of them."""
    blocks = np.arange(rows * width // BLOCK).reshape(rows, width // BLOCK)
    scale = np.repeat(np.ldexp(1.0, -(blocks * 37 % 100)), BLOCK, axis=1)
    return (1 + np.abs(draw.normal((rows, width)))) * scale, draw.normal((rows, width)) + 2


def _special_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """One special in four blocks of five, NaN or Inf of either sign, as a gate or as an up."""
    gates, ups = _gaussian_gates(draw, rows, width)
    blocks = np.arange(rows * width // BLOCK)
    places = blocks * BLOCK + draw.integers(BLOCK, blocks.shape)
    for kind, special in enumerate((np.nan, -np.nan, np.inf, -np.inf)):
        for side, values in enumerate((gates, ups)):
            values.reshape(-1)[places[blocks % 10 == 2 * kind + side]] = special
    return gates, ups


def _midpoint_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """One gate a row, and no up: the case chooses an expert's beta so that the result lies between two codes."""
    gates = draw.normal((rows, 1))
    return np.repeat(gates + np.copysign(0.25, gates), width, axis=1), np.zeros((rows, width))


#: The fill whose betas are chosen by `refmoe.families.steps`.
MIDPOINTS = "midpoints"

GATE_FILLS: Mapping[str, GateFill] = MappingProxyType(
    {
        fill.name: fill
        for fill in (
            GateFill("gaussian", "gate and up swapped, a rounding more or less, quantized from BF16", _gaussian_gates),
            GateFill(
                "clamps",
                "a clamp that is missing, one-sided, or another expert's",
                _limit_gates,
                Limits(
                    zeros=0.5, saturated=0.6, scales=1, reason="many results lie on a clamp, or are its sigmoid's tail"
                ),
            ),
            GateFill(
                "sigmoid-edges",
                "an exponential that overflows to NaN, flushes or is clamped",
                _edge_gates,
                Limits(zeros=0.5, reason="a gate whose exponential overflows gives a zero"),
            ),
            GateFill(
                "tiny",
                "subnormals flushed or kept against the policy, a scale below 0",
                _tiny_gates,
                Limits(zeros=0.95, reason="most results lie below the least code"),
            ),
            GateFill(
                "fingerprint",
                "scales of another row, block or expert",
                _fingerprint_gates,
                Limits(scales=32, reason="every block has a scale of its own"),
            ),
            GateFill(
                MIDPOINTS,
                "one rounding more or less: the last bit before quantization decides the code",
                _midpoint_gates,
                Limits(saturated=0.3, scales=1, reason="results of an expert are alike"),
            ),
            GateFill(
                "specials",
                "NaN dropped by a clamp, Inf taken for a number",
                _special_gates,
                Limits(zeros=1.0, saturated=0.7, nans=0.9, reason="most blocks hold a NaN or an Inf"),
            ),
        )
    }
)


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """The second GEMM's output by choice, float32 [T, k, H], and weights float32 [T, k]."""

    rows: FloatArray
    weights: FloatArray


@dataclass(frozen=True)
class RowFill:
    """A generator of what finalize sums.

    Attributes:
        name: as in a repro string.
        catches: which wrong kernels fail on it.
        make: `make(draw, tokens, k, width)`.
        least_k: ranks without which the fill does not do what its name says.
    """

    name: str
    catches: str
    make: Callable[[Draw, int, int, int], WeightedRows]
    least_k: int = 1


def _weights(draw: Draw, tokens: int, k: int) -> FloatArray:
    """Of all 24 significant bits, in [0.25, 1), no two alike."""
    bits = (125 << 23) + draw.integers(1 << 24, (tokens, k))
    return bits.astype(np.uint32).view(np.float32)


def _gaussian_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    return WeightedRows(draw.normal((tokens, k, width)).astype(np.float32), _weights(draw, tokens, k))


def _cancelling_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Neighbouring ranks nearly cancel, so the order of the sum decides the result."""
    rows = draw.normal((tokens, k, width))
    size = np.ldexp(1.0, 20 * (np.arange(k) // 2 % 2 == 0))[None, :, None]
    sign = np.where(np.arange(k) % 2, -1.0, 1.0)[None, :, None]
    rows = (rows + 8) * size * sign
    return WeightedRows(rows.astype(np.float32), np.full((tokens, k), 0.75, np.float32))


def _tied_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Two neighbours of BF16, halved and added: exactly between them. The other ranks weigh nothing."""
    patterns = 0x3F00 + draw.integers(0x200, (tokens, 1, width)) | draw.integers(2, (tokens, 1, width)) << 15
    rows = np.zeros((tokens, k, width), np.uint32)
    rows[:, :2] = np.concatenate([patterns, patterns + 1], axis=1)[:, :k]
    weights = np.zeros((tokens, k), np.float32)
    weights[:, :2] = 0.5
    return WeightedRows((rows << 16).view(np.float32), weights)


def _wide_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Magnitudes over the whole of FP32, subnormals and overflowing sums included."""
    bits = draw.integers(0xFF0000, (tokens, k, width)) << 7 | draw.integers(2, (tokens, k, width)) << 31
    low = draw.integers(0x2800000, (tokens, k, width)) | bits & 0x80000000
    chosen = np.where(draw.integers(2, (tokens, 1, width)) == 0, low, bits)
    rows = (chosen & 0xFFFF0000).astype(np.uint32).view(np.float32)  # what BF16 has too
    return WeightedRows(rows, _weights(draw, tokens, k))


def _special_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """NaN, Inf and zeros of either sign, between ordinary numbers."""
    data = _gaussian_rows(draw, tokens, k, width)
    specials = np.array([0x7FC00000, 0xFF800001, 0x7F800000, 0xFF800000, 0x80000000, 0], np.uint32).view(np.float32)
    chosen = specials[draw.integers(specials.size, data.rows.shape)]
    return WeightedRows(np.where(draw.integers(6, data.rows.shape) == 0, chosen, data.rows), data.weights)


ROW_FILLS: Mapping[str, RowFill] = MappingProxyType(
    {
        fill.name: fill
        for fill in (
            RowFill("gaussian", "rows, weights or bias of another token, rank or expert; a fused sum", _gaussian_rows),
            RowFill("cancelling", "ranks summed in another order", _cancelling_rows, least_k=3),
            RowFill("rne-ties", "a cast that does not round to even", _tied_rows, least_k=2),
            RowFill("wide-range", "subnormals flushed, sums in another format", _wide_rows),
            RowFill("specials", "NaN dropped, the sign of a zero", _special_rows),
        )
    }
)
