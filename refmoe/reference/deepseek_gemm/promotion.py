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
_OUTPUTS_A_CHUNK = 1 << 15  # of the promotion, so that its float64 numbers stay in cache

#: Rounding to nearest of FP32: half a unit of the last place, of a number and of a subnormal one.
_HALF_ULP = 2.0 ** -(FP32.mantissa_bits + 1)
_HALF_SUBNORMAL = 2.0 ** (FP32.emin - FP32.mantissa_bits - 1)
#: What float64 may lose of a block's exact sum times its factor, and of the sum of some hundred blocks.
_FLOAT64_SLACK = 2.0**-44


def promoted_sums(
    tokens: Bytes, token_scales: Floats, weights: Bytes, weight_scales: Floats, model: AccumulationModel
) -> Floats:
    """float32 [M, N], every NaN 0x7FFFFFFF.

    Args:
        tokens: uint8 [M, K] E4M3.
        token_scales: float32 [M, K/128].
        weights: uint8 [N, K] E4M3.
        weight_scales: float32 [N/128, K/128].
        model: what the tensor core adds up to; it has E4M3 on both sides.
    """
    total = np.zeros((tokens.shape[0], weights.shape[0]), np.float32)
    for factor, left, right in _blocks(tokens, token_scales, weights, weight_scales):
        zeros = np.zeros(total.shape, np.float32)
        partial = tensor_core_mma(left, right, zeros, model=model, a_format=_FORMAT, b_format=_FORMAT)
        _promote(factor, partial, total)
    return total


def promoted_bounds(
    tokens: Bytes, token_scales: Floats, weights: Bytes, weight_scales: Floats, model: AccumulationModel
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The exact sums and a bound on the distance of `promoted_sums` from them, float64 [M, N] both.

    Of a block with the exact sum x, its running bound b, the exact factor f and the rounded factor g, the promotion
    adds g (x + d) with |d| <= b in the place of f x: |g| b + |g - f| |x|. It then rounds the sum: half a unit of its
    last place. Nothing is promised (infinity) where a scale, a code or a sum is not finite. Args are those of
    `promoted_sums`.
    """
    shape = tokens.shape[0], weights.shape[0]
    total = np.zeros(shape, np.float32)
    exact, bound = np.zeros(shape), np.zeros(shape)
    kinds: dict[str, Any] = {"model": model, "a_format": _FORMAT, "b_format": _FORMAT}
    zeros = np.zeros(shape, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for block, (factor, left, right) in enumerate(_blocks(tokens, token_scales, weights, weight_scales)):
            exact_factor = np.outer(
                token_scales[:, block].astype(np.float64),
                np.repeat(weight_scales[:, block].astype(np.float64), WEIGHT_TILE.rows),
            )
            x = exact_sum(left, right, zeros, **kinds)
            _promote(factor, tensor_core_mma(left, right, zeros, **kinds), total)
            exact += exact_factor * x
            bound += np.abs(factor) * running_bound(left, right, zeros, **kinds)
            bound += np.abs(factor - exact_factor) * np.abs(x) + _FLOAT64_SLACK * np.abs(exact_factor * x)
            bound += _HALF_ULP * np.abs(total.astype(np.float64)) + _HALF_SUBNORMAL
    bound[~(np.isfinite(total) & np.isfinite(exact) & np.isfinite(bound))] = np.inf
    return exact, bound


def _blocks(
    tokens: Bytes, token_scales: Floats, weights: Bytes, weight_scales: Floats
) -> Iterator[tuple[Floats, Bytes, Bytes]]:
    """For each 128 of K the factors [M, N] and the codes of both sides."""
    for block in range(tokens.shape[1] // BLOCK):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        by_tile = multiply(token_scales[:, block, None], weight_scales[None, :, block])
        factor = np.repeat(by_tile, WEIGHT_TILE.rows, axis=1)
        yield factor, np.ascontiguousarray(tokens[:, part]), np.ascontiguousarray(weights[:, part])


def _promote(factor: Floats, partial: Floats, total: Floats) -> None:
    """total = RN(factor * partial + total), in place."""
    flat = [np.ascontiguousarray(each).reshape(-1) for each in (factor, partial)]
    sums = total.reshape(-1)

    def run(start: int, stop: int) -> None:
        part = slice(start, stop)
        sums[part] = fma(flat[0][part], flat[1][part], sums[part])

    for_each_chunk(run, sums.size, _OUTPUTS_A_CHUNK)
