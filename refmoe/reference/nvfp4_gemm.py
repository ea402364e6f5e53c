"""Grouped GEMM of NVFP4 tokens with NVFP4 weights, to the last bit.

Sums follow the accumulation model `sm120_nvf4` of `refmoe.reference.mma`, weights as its operand A and tokens as B, as
the kernel has them. What is done after them is IEEE FP32, as in `refmoe.reference.gemm`:

    out = RN(RN(alpha * acc) + bias), then a cast to nearest even

alpha is what NVFP4 has above its block scales: the product of the global decode scales of both operands. The definition
that this is held against is `refmoe.reference.scalar.nvfp4_gemm`.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import NVFP4
from refmoe.reference.arrays import check_optional, checked_output
from refmoe.reference.gemm import GEMM_OUTPUTS, finish_sums
from refmoe.reference.layout import checked_offsets, unpack_fp4
from refmoe.reference.mma import MODELS, exact_sum, running_bound, tensor_core_mma

#: How the instruction adds up.
MODEL = MODELS["sm120_nvf4"]

Bytes = NDArray[np.uint8]


def nvfp4_alpha(
    token_scale: float | np.float32 | NDArray[np.float32], weight_scales: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The factor of each expert: token_scale * weight_scales, rounded to nearest in FP32.

    Args:
        token_scale: the tokens' global decode scale, an FP32 number, or float32 [E] where each expert's has its own.
        weight_scales: float32 [E], the global decode scale of each expert's weights.

    Raises:
        ArgumentError: weight_scales are no float32 [E], or token_scale is an array and is none.
    """
    if not isinstance(weight_scales, np.ndarray) or weight_scales.dtype != np.float32 or weight_scales.ndim != 1:
        raise ArgumentError("weight_scales", describe(weight_scales), "float32 [E]")
    if isinstance(token_scale, np.ndarray):
        check_optional("token_scale", token_scale, weight_scales.shape, np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(np.asarray(token_scale, np.float32) * weight_scales, np.float32)


def nvfp4_grouped_gemm(
    tokens: Bytes,
    token_scales: Bytes,
    weights: Bytes,
    weight_scales: Bytes,
    offsets: NDArray[np.int64],
    *,
    alpha: NDArray[np.float32] | None = None,
    bias: NDArray[Any] | None = None,
    out_dtype: npt.DTypeLike = np.float32,
) -> NDArray[Any]:
    """Multiply each expert's rows by that expert's weights: out[t] = alpha[e] * tokens[t] @ weights[e].T + bias[e].

    Args:
        tokens: uint8 [T, K/2] packed E2M1, rows in expert order, K a positive multiple of 16. Elements of K up to the
            next multiple of 64, which one instruction takes, count as zeros under zero scales; they change nothing.
        token_scales: uint8 [T, K/16] UE4M3, linear; the sign bit is ignored.
        weights: uint8 [E, N, K/2] packed E2M1.
        weight_scales: uint8 [E, N, K/16] UE4M3, linear.
        offsets: int64 [E + 1], first row of each expert, then the number of rows in use, at most T. An expert may have
            no rows.
        alpha: float32 [E], see `nvfp4_alpha`; None multiplies by nothing.
        bias: FP32, BF16 or FP16 [E, N], added in FP32; None adds nothing.
        out_dtype: float32, float16 or ml_dtypes.bfloat16.

    Returns:
        [T, N] of `out_dtype`; rows from offsets[E] on are 0. NaN is 0x7FFFFFFF in FP32, 0x7FFF in BF16 and FP16.

    Raises:
        ArgumentError: shapes or dtypes that do not fit.
    """
    check_operands(tokens, token_scales, weights, weight_scales, offsets)
    experts, n, _ = weights.shape
    check_optional("bias", bias, (experts, n), *GEMM_OUTPUTS)
    check_optional("alpha", alpha, (experts,), np.float32)
    dtype = checked_output(out_dtype, GEMM_OUTPUTS, "float32, float16 or ml_dtypes.bfloat16")
    out = np.zeros((tokens.shape[0], n), dtype)
    for expert, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        if start == stop:
            continue
        # One expert at a time: all weights of a layer, a byte an element, would not fit.
        sums = tensor_core_mma(
            **_products(tokens, token_scales, weights, weight_scales, expert, start, stop), model=MODEL
        )
        factor = None if alpha is None else alpha[expert]
        addend = None if bias is None else bias[expert]
        out[start:stop] = finish_sums(np.ascontiguousarray(sums.T), factor, addend, dtype)
    return out


def nvfp4_product_bounds(
    tokens: Bytes, token_scales: Bytes, weights: Bytes, weight_scales: Bytes, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The exact sums and the model's running bound around them, float64 [T, N] both, before alpha and bias.

    Rows of no expert have the sum 0 and an infinite bound. Args and errors are those of `nvfp4_grouped_gemm`.
    """
    check_operands(tokens, token_scales, weights, weight_scales, offsets)
    shape = tokens.shape[0], weights.shape[1]
    exact, bound = np.zeros(shape), np.full(shape, np.inf)
    for expert, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        if start == stop:
            continue
        products = _products(tokens, token_scales, weights, weight_scales, expert, start, stop)
        exact[start:stop] = exact_sum(**products, model=MODEL).T
        bound[start:stop] = running_bound(**products, model=MODEL).T
    return exact, bound


def check_operands(
    tokens: Bytes, token_scales: Bytes, weights: Bytes, weight_scales: Bytes, offsets: NDArray[np.int64]
) -> None:
    """Refuse what `nvfp4_grouped_gemm` refuses of its operands.

    Raises:
        ArgumentError: see there.
    """
    _check_codes("tokens", tokens, 2, "[T, K/2]")
    _check_codes("weights", weights, 3, "[E, N, K/2]")
    if weights.shape[-1] != tokens.shape[-1]:
        raise ArgumentError("weights", f"K = {2 * weights.shape[-1]}", f"the K of tokens, {2 * tokens.shape[-1]}")
    for name, scales, codes in (("token_scales", token_scales, tokens), ("weight_scales", weight_scales, weights)):
        shape = (*codes.shape[:-1], codes.shape[-1] * NVFP4.codes_a_byte // NVFP4.block)
        if not isinstance(scales, np.ndarray) or scales.dtype != np.uint8 or scales.shape != shape:
            raise ArgumentError(name, describe(scales), f"uint8 {list(shape)}, one UE4M3 byte for every 16 elements")
    experts = weights.shape[0]
    if checked_offsets(offsets).size != experts + 1:
        raise ArgumentError("offsets", describe(offsets), f"int64 [{experts + 1}] for {experts} experts")
    if offsets[-1] > tokens.shape[0]:
        raise ArgumentError("offsets", f"{offsets[-1]} rows in use", f"at most the {tokens.shape[0]} rows of tokens")


def _check_codes(name: str, codes: object, rank: int, shape: str) -> None:
    row_bytes = NVFP4.block // NVFP4.codes_a_byte
    if (
        not isinstance(codes, np.ndarray)
        or codes.dtype != np.uint8
        or codes.ndim != rank
        or codes.shape[-1] == 0
        or codes.shape[-1] % row_bytes
    ):
        needed = f"uint8 {shape} of packed E2M1 with K a positive multiple of {NVFP4.block}"
        raise ArgumentError(name, describe(codes), needed)


def _products(
    tokens: Bytes, token_scales: Bytes, weights: Bytes, weight_scales: Bytes, expert: int, start: int, stop: int
) -> dict[str, Any]:
    """What `tensor_core_mma` takes for one expert, K padded to whole instructions."""
    rows = slice(start, stop)
    return {
        "a": _padded(unpack_fp4(weights[expert]), 1),
        "b": _padded(unpack_fp4(tokens[rows]), 1),
        "c": np.zeros((weights.shape[1], stop - start), np.float32),
        "a_format": NVFP4.element.name,
        "b_format": NVFP4.element.name,
        "a_scales": _padded(weight_scales[expert], NVFP4.block),
        "b_scales": _padded(token_scales[rows], NVFP4.block),
    }


def _padded(array: Bytes, elements: int) -> Bytes:
    """`array` [R, K / elements] with zeros up to whole instructions."""
    step = MODEL.instruction_k(NVFP4.element.name, NVFP4.element.name) // elements
    return np.ascontiguousarray(np.pad(array, [(0, 0), (0, -array.shape[1] % step)]))
