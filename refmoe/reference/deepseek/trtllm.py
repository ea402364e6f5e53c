"""How TensorRT-LLM quantizes the activations of a DeepSeek-V3 layer on SM100, as its public sources have it.

The tokens (`scale_1x128_kernel` of `fp8_blockscale_gemm_kernel.cuh`), amax being of 128 neighbours:

    q = RN(448 / amax), 1 if amax is 0;   code = E4M3(RN(x * q));   sf = RN(1 / q)

and what SwiGLU gives (`activationDeepSeekKernel` of `DevKernel.cu`, and of FlashInfer's
`trtllm_fused_moe_dev_kernel.cu`):

    sf = max(RN(amax / 448), 2^-126);     code = E4M3(RN(v / sf))

These are taken as IEEE operations. What its build makes of them is its own: with fast math a division is approximate,
and subnormals are flushed. NaN and infinity are not defined: which NaN a maximum drops depends on its tree's order.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.reference.block_fp8 import BlockFP8Tensor
from refmoe.reference.fp32 import divide, fp32_bits, multiply

_TILE = 128
_MAX, _ONE = np.float32(448), np.float32(1)
_LEAST = np.float32(2.0**-126)

F32 = NDArray[np.float32]


def quantize_tokens(x: NDArray[np.generic]) -> BlockFP8Tensor:
    """The codes and scales of tokens [T, H], bfloat16 or float32, H a multiple of 128.

    Raises:
        ArgumentError: another width, or a number that is not finite.
    """
    values, amax = _tiles(x)
    nothing = amax == 0
    factor = np.where(nothing, _ONE, divide(np.broadcast_to(_MAX, amax.shape), np.where(nothing, _ONE, amax)))
    codes = _encoded(multiply(values, np.repeat(factor, _TILE, axis=1)))
    return BlockFP8Tensor(codes, divide(np.full_like(factor, _ONE), factor), "1x128")


def quantize_activation(values: F32) -> BlockFP8Tensor:
    """The codes and scales of SwiGLU's results [R, I], float32, I a multiple of 128.

    Raises:
        ArgumentError: another width, or a number that is not finite.
    """
    given, amax = _tiles(values)
    scales = np.maximum(divide(amax, np.full_like(amax, _MAX)), _LEAST)
    return BlockFP8Tensor(_encoded(divide(given, np.repeat(scales, _TILE, axis=1))), scales, "1x128")


def _tiles(x: NDArray[np.generic]) -> tuple[F32, F32]:
    """The numbers in FP32, and the largest magnitude of each 128."""
    if x.ndim != 2 or x.shape[1] % _TILE:
        raise ArgumentError("x", describe(x), f"[rows, K], K a multiple of {_TILE}")
    values = fp32_bits(x).view(np.float32)
    if not np.isfinite(values).all():
        place = [int(index) for index in np.argwhere(~np.isfinite(values))[0]]
        raise ArgumentError("x", f"{values[tuple(place)]} at {place}", "finite numbers: of others nothing is published")
    return values, np.abs(values).reshape(len(values), -1, _TILE).max(axis=2)


def _encoded(values: F32) -> NDArray[np.uint8]:
    """E4M3 codes, to nearest even; saturating, as the conversion of a GPU does."""
    clipped = np.clip(values, -_MAX, _MAX)
    return clipped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
