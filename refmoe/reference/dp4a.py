"""MXFP4 weights times Q8_1 activations for a few tokens, each with its own experts, in a fixed order of summation.

    dot[b]  = sum over the 32 elements of block b of  (2 * FP4 weight) * code        exact, an int32
    term[b] = RN(RN(d[b] * 2^(scale[b] - 127) / 2) * dot[b])                         byte 0 is 2^-128, a subnormal
    out     = RN(RN(alpha * sum of term[b]) + bias)

FP32, rounded to nearest, no FMA, no flush to zero. A weight row has W = 4 warps for up to 4 tokens, 2 for up to 8, else
1 (llama.cpp's rule): thread t of 32 W adds up the blocks t, t + 32 W, ... in this order; lane l then adds what the
lanes l of all warps have, warp by warp; the 32 lanes add by a butterfly over 16, 8, 4, 2, 1.

llama.cpp's own kernel differs: two threads share a block, so that it rounds twice as often, and its build contracts
`sum += d * dot` to an FMA. Source: llama.cpp, ggml/src/ggml-cuda/mmvq.cu and vecdotq.cuh (`vec_dot_mxfp4_q8_1`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import Q8_1
from refmoe.reference import fp32
from refmoe.reference.layout import checked_count, checked_fill, unpack_fp4
from refmoe.reference.q8_1 import Q8Tensor
from refmoe.reference.tensor import MXTensor

MAX_TOKENS = 8
"""Of the kernel; more tokens are for a GEMM."""

DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the number of each FP4 code: integers."""

_LANES = 32


def warps_per_row(tokens: int) -> int:
    """Warps that share a weight row: llama.cpp's rule, 4 for up to 4 tokens, 2 for up to 8, else 1."""
    return 4 if tokens <= 4 else 2 if tokens <= 8 else 1


def halved_scales(scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Half of each E8M0 scale, float32: 2^(byte - 128); byte 255 is a NaN."""
    halves: NDArray[np.float32] = np.ldexp(1.0, scales.astype(np.int32) - 128).astype(np.float32)
    halves[scales == 0xFF] = fp32.NAN
    return halves


def dp4a_gemv(
    activations: Q8Tensor,
    weights: MXTensor,
    topk_ids: NDArray[np.int32],
    *,
    row_of_choice: NDArray[np.int32] | None = None,
    input_by_choice: bool = False,
    alpha: NDArray[np.float32] | None = None,
    bias: NDArray[Any] | None = None,
    first_expert: int = 0,
    out_dtype: npt.DTypeLike = fp32.BF16,
    fill: int = 0,
) -> NDArray[Any]:
    """The product of each choice of a token with its expert's weights.

    Args:
        activations: Q8_1 [M, K], or [M * k, K] with `input_by_choice`.
        weights: mxfp4 [E, N, K].
        topk_ids: int32 [M, k], the experts of each token; the kernel takes 8 tokens at most. A choice of another
            rank's expert has no output.
        row_of_choice: int32 [k * M], the output row of token + rank * M, -1 for none; None is that number itself.
        input_by_choice: whether a choice has an activation of its own, in the row of its output; else a token has one.
        alpha: float32 [E], or None for 1.
        bias: bfloat16 or float32 [E, N], or None.
        first_expert: id of the first expert of `weights`.
        out_dtype: bfloat16 or float32.
        fill: byte of output rows that no choice has.

    Returns:
        [M * k, N] of `out_dtype`.

    Raises:
        ArgumentError: wrong dtypes or shapes, or a row of no output.
    """
    first = checked_count("first_expert", first_expert)
    byte = checked_fill(fill)
    _check(activations, weights, topk_ids, row_of_choice, input_by_choice)
    experts, n = weights.codes.shape[:2]
    tokens, top_k = topk_ids.shape
    rows = np.arange(tokens * top_k, dtype=np.int32) if row_of_choice is None else row_of_choice
    out = np.zeros((tokens * top_k, n), np.dtype(out_dtype))
    out.view(np.uint8)[:] = byte
    for rank in range(top_k):
        for token in range(tokens):
            expert, row = int(topk_ids[token, rank]) - first, int(rows[token + rank * tokens])
            if not 0 <= expert < experts or row < 0:
                continue
            source = row if input_by_choice else token
            sums = _row(activations, source, weights, expert, warps_per_row(tokens) * _LANES)
            if alpha is not None:
                sums = fp32.multiply(sums, alpha[expert])
            if bias is not None:
                sums = fp32.add(sums, bias[expert].astype(np.float32))
            out[row] = fp32.bf16(sums) if out.dtype == fp32.BF16 else sums
    return out


def _row(activations: Q8Tensor, source: int, weights: MXTensor, expert: int, threads: int) -> NDArray[np.float32]:
    """float32 [N]: one activation times all weight rows of an expert."""
    codes = activations.codes[source].astype(np.int32).reshape(-1, Q8_1.block)
    doubled = DOUBLED[unpack_fp4(weights.codes[expert])].reshape(-1, *codes.shape)
    # float64 is exact here: a sum of 32 products is at most 32 * 12 * 128.
    dots = np.einsum("nbi,bi->nb", doubled.astype(np.float64), codes.astype(np.float64)).astype(np.float32)
    factors = fp32.multiply(halved_scales(weights.scales[expert]), activations.d[source].astype(np.float32))
    terms = fp32.multiply(factors, dots)
    n, blocks = terms.shape
    sums = np.zeros((n, threads), np.float32)
    for start in range(0, blocks, threads):
        count = min(threads, blocks - start)
        sums[:, :count] = fp32.add(sums[:, :count], terms[:, start : start + count])
    lanes = sums[:, :_LANES]
    for start in range(_LANES, threads, _LANES):
        lanes = fp32.add(lanes, sums[:, start : start + _LANES])
    while lanes.shape[1] > 1:
        middle = lanes.shape[1] // 2
        lanes = fp32.add(lanes[:, :middle], lanes[:, middle:])
    return lanes[:, 0]


def _check(
    activations: object, weights: object, topk_ids: object, row_of_choice: object, input_by_choice: bool
) -> None:
    if not isinstance(weights, MXTensor) or weights.format != "mxfp4" or weights.codes.ndim != 3:
        raise ArgumentError("weights", describe(weights), "an MXTensor of mxfp4 [E, N, K]")
    if not isinstance(topk_ids, np.ndarray) or topk_ids.dtype != np.int32 or topk_ids.ndim != 2:
        raise ArgumentError("topk_ids", describe(topk_ids), "int32 [M, k]")
    needed = topk_ids.size if input_by_choice else len(topk_ids)
    shape = (needed, 2 * weights.codes.shape[2])
    if not isinstance(activations, Q8Tensor) or activations.codes.shape != shape:
        found = activations.codes if isinstance(activations, Q8Tensor) else activations
        raise ArgumentError("activations", describe(found), f"Q8_1 {list(shape)}")
    if row_of_choice is None:
        return
    if (
        not isinstance(row_of_choice, np.ndarray)
        or row_of_choice.dtype != np.int32
        or row_of_choice.shape != (topk_ids.size,)
    ):
        raise ArgumentError("row_of_choice", describe(row_of_choice), f"int32 [{topk_ids.size}]")
    stray = np.flatnonzero((row_of_choice < -1) | (row_of_choice >= topk_ids.size))
    if stray.size:
        found = f"{row_of_choice[stray[0]]} at {stray[0]}"
        raise ArgumentError("row_of_choice", found, f"-1, or a row below {topk_ids.size}")
