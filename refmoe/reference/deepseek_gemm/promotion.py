"""The sums of a product in block FP8: a tensor core's partial sums, promoted to FP32 after every 128 of K.

    partial = the tensor core's chain over 128 of K, from a zero accumulator      by the accumulation model
    factor  = RN(token scale * weight scale)                                      FP32, to nearest
    sum     = RN(factor * partial + sum), from +0, K ascending                    one FMA, to nearest

The model is a parameter, since instructions differ: `sm90_wgmma_fp8` keeps 13 bits below the largest term of 32
products, which is why DeepGEMM promotes at all; `sm90_mma_fp8` is `mma.sync` on the same chip, in FP16 instructions;
`sm120` is the instruction of SM12x. `Evidence` of `refmoe.reference.mma` says what each rests on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import BLOCK_FP8, E4M3, FP32
from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.fp32 import fma, multiply
from refmoe.reference.mma import AccumulationModel, exact_sum, running_bound, tensor_core_mma

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

WEIGHT_TILE = BLOCK_FP8["128x128"]
BLOCK = WEIGHT_TILE.columns
"""Elements of K that share a scale, after which a partial sum is promoted."""

_FORMAT = E4M3.name
_OUTPUTS_AT_ONCE = 1 << 22  # of the products of several blocks
_OUTPUTS_A_CHUNK = 1 << 15  # of the promotion, so that its float64 numbers stay in cache

#: Rounding to nearest of FP32: half a unit of the last place, of a number and of a subnormal one.
_HALF_ULP = 2.0 ** -(FP32.mantissa_bits + 1)
_HALF_SUBNORMAL = 2.0 ** (FP32.emin - FP32.mantissa_bits - 1)
#: What float64 may lose of a block's exact sum times its factor, and of the sum of some hundred blocks.
_FLOAT64_SLACK = 2.0**-44


def promoted_sums(
    tokens: Bytes, token_scales: Floats, weights: Bytes, weight_scales: Floats, model: AccumulationModel
) -> Floats:
    """float32 [..., M, N], every NaN 0x7FFFFFFF.

    Args:
        tokens: uint8 [..., M, K] E4M3.
        token_scales: float32 [..., M, K/128].
        weights: uint8 [..., N, K] E4M3.
        weight_scales: float32 [..., N/128, K/128].
        model: what the tensor core adds up to; it has E4M3 on both sides.
    """
    total = np.zeros((*tokens.shape[:-1], weights.shape[-2]), np.float32)
    for first, left, right in _codes_by_block(tokens, weights):
        for block, partial in enumerate(_partials(left, right, model), start=first):
            _promote(_factor(token_scales[..., block], weight_scales[..., block]), partial, total)
    return total


def promoted_bounds(
    tokens: Bytes, token_scales: Floats, weights: Bytes, weight_scales: Floats, model: AccumulationModel
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The exact sums and a bound on the distance of `promoted_sums` from them, float64 [..., M, N] both.

    Of a block with the exact sum x, its running bound b, the exact factor f and the rounded factor g, the promotion
    adds g (x + d) with |d| <= b in the place of f x: |g| b + |g - f| |x|. It then rounds the sum: half a unit of its
    last place. Nothing is promised (infinity) where a scale, a code or a sum is not finite. Args are those of
    `promoted_sums`.
    """
    shape = *tokens.shape[:-1], weights.shape[-2]
    total = np.zeros(shape, np.float32)
    exact, bound = np.zeros(shape), np.zeros(shape)
    kinds: dict[str, Any] = {"model": model, "a_format": _FORMAT, "b_format": _FORMAT}
    with np.errstate(invalid="ignore", over="ignore"):
        for first, left, right in _codes_by_block(tokens, weights):
            zeros = np.zeros((*left.shape[:-1], right.shape[-2]), np.float32)
            found = (
                _partials(left, right, model),
                exact_sum(left, right, zeros, **kinds),
                running_bound(left, right, zeros, **kinds),
            )
            for block, (partial, x, off) in enumerate(zip(*found, strict=True), start=first):
                scales = token_scales[..., block], weight_scales[..., block]
                factor = _factor(*scales)
                exact_factor = _by_column(*(each.astype(np.float64) for each in scales))
                _promote(factor, partial, total)
                exact += exact_factor * x
                bound += np.abs(factor) * off
                bound += np.abs(factor - exact_factor) * np.abs(x) + _FLOAT64_SLACK * np.abs(exact_factor * x)
                bound += _HALF_ULP * np.abs(total.astype(np.float64)) + _HALF_SUBNORMAL
    bound[~(np.isfinite(total) & np.isfinite(exact) & np.isfinite(bound))] = np.inf
    return exact, bound


def _codes_by_block(tokens: Bytes, weights: Bytes) -> Iterator[tuple[int, Bytes, Bytes]]:
    """The number of a block of K, and the codes of both sides from there on, [blocks, ..., rows, 128] each.

    Products of many blocks at once cost little more than that of one, so as many come together as memory is meant for.
    """
    count, outputs = tokens.shape[-1] // BLOCK, tokens[..., 0].size * weights.shape[-2]
    together = max(1, _OUTPUTS_AT_ONCE // max(1, outputs))
    for first in range(0, count, together):
        part = slice(first * BLOCK, min(first + together, count) * BLOCK)
        yield first, _block_first(tokens[..., part]), _block_first(weights[..., part])


def _block_first(codes: Bytes) -> Bytes:
    """[K/128, ..., rows, 128] of codes [..., rows, K]."""
    in_rows = codes.reshape(*codes.shape[:-1], codes.shape[-1] // BLOCK, BLOCK)
    return np.ascontiguousarray(np.moveaxis(in_rows, -2, 0))


def _partials(left: Bytes, right: Bytes, model: AccumulationModel) -> Floats:
    """The tensor core's chains over 128 of K, from zero accumulators."""
    zeros = np.zeros((*left.shape[:-1], right.shape[-2]), np.float32)
    return tensor_core_mma(left, right, zeros, model=model, a_format=_FORMAT, b_format=_FORMAT)


def _factor(token_scales: Floats, weight_scales: Floats) -> Floats:
    """RN(token scale * weight scale) [..., M, N] of scales [..., M] and [..., N/128]."""
    by_tile = multiply(token_scales[..., :, None], weight_scales[..., None, :])
    return np.repeat(by_tile, WEIGHT_TILE.rows, axis=-1)


def _by_column(token_scales: NDArray[np.float64], weight_scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """The products [..., M, N] of scales [..., M] and [..., N/128], which float64 holds exactly."""
    return token_scales[..., :, None] * np.repeat(weight_scales, WEIGHT_TILE.rows, axis=-1)[..., None, :]


def _promote(factor: Floats, partial: Floats, total: Floats) -> None:
    """total = RN(factor * partial + total), in place."""
    flat = [np.ascontiguousarray(each).reshape(-1) for each in (factor, partial)]
    sums = total.reshape(-1)

    def run(start: int, stop: int) -> None:
        part = slice(start, stop)
        sums[part] = fma(flat[0][part], flat[1][part], sums[part])

    for_each_chunk(run, sums.size, _OUTPUTS_A_CHUNK)
