"""The dense arithmetic of the decoder: sums in one stated order, made of single NumPy operations and no BLAS.

A BLAS chooses the order of a sum by the shape of the whole product, the machine and its threads, so a row's bits can
depend on how many rows came with it. Here every result is made of elementwise IEEE operations, each rounded to nearest
in the dtype of the computation, and of sums in *folding* order:

    while n > 1: h = ceil(n / 2);  term[i] = term[i] + term[i + h] for i < n - h;  n = h

Bits depend on a row's own values alone: on no other row, chunk, thread or machine. The error is that of ceil(log2 n)
additions instead of n - 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.models.checkpoint import Linear, Weight
from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.gguf.q8_0 import Q8_0Tensor

Array = NDArray[Any]

#: Products held at once: they and their weights stay in a core's cache.
_PRODUCTS_A_CHUNK = 1 << 17


def fold(terms: Array, axis: int = -1) -> Array:
    """The sums of `terms` along `axis` in folding order. The terms are overwritten.

    Args:
        terms: float32 or float64, at least one element along `axis`.
        axis: of the sum.

    Returns:
        The sums, without `axis`: a view into `terms`.
    """
    rows = np.moveaxis(terms, axis, 0)
    count = len(rows)
    while count > 1:
        half = (count + 1) // 2
        rows[: count - half] += rows[half:count]
        count = half
    total: Array = rows[0]
    return total


def project(x: Array, weight: Weight) -> Array:
    """x W^T: products rounded in the dtype of `x`, then their sum in folding order.

    Args:
        x: float32 or float64 [T, K].
        weight: BF16, Q8_0, F16 or F32 [N, K]; its values are exact in either dtype. It is read in chunks of rows.

    Returns:
        [T, N] in the dtype of `x`.
    """
    (tokens, k), rows = x.shape, len(weight)
    out = np.empty((tokens, rows), x.dtype)
    rows_a_chunk = max(1, _PRODUCTS_A_CHUNK // k)

    def run(start: int, stop: int) -> None:
        part = values(weight[start:stop]).astype(x.dtype)
        step = max(1, _PRODUCTS_A_CHUNK // part.size)
        for token in range(0, tokens, step):
            out[token : token + step, start:stop] = fold(x[token : token + step, None] * part)

    for_each_chunk(run, rows, rows_a_chunk)
    return out


def values(weight: Weight) -> Array:
    """The values of some rows of a weight, exact: as they lie in the file, or FP32 of what is Q8_0 there."""
    return weight.dequantize() if isinstance(weight, Q8_0Tensor) else weight


def linear(x: Array, layer: Linear) -> Array:
    """`project`, then the bias, one more rounded addition."""
    out = project(x, layer.weight)
    out += layer.bias.astype(x.dtype)
    return out


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """weight * (x * (1 / sqrt(mean(x^2) + eps))), each operation rounded; the sum of squares in folding order.

    Args:
        x: float32 or float64 [T, H].
        weight: BF16 or F32 [H].
        eps: added to the mean square.

    Returns:
        [T, H] in the dtype of `x`.
    """
    dtype = x.dtype.type
    mean = fold(x * x) / dtype(x.shape[1])
    scale = dtype(1) / np.sqrt(mean + dtype(eps))
    normed: Array = weight.astype(dtype) * (x * scale[:, None])
    return normed
