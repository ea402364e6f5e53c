"""Small grouped problems that a wrong GEMM gets wrong, and what the scalar specification says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from refmoe.formats import BF16, E2M1, E4M3, E8M0, FP16, FP32, Format
from refmoe.reference import MXTensor, grouped_gemm, pack_fp4, unpack_fp4
from refmoe.reference.scalar import QuantizedBlock, dequantize_block, gemm

OUTPUTS: dict[type, Format] = {np.float32: FP32, np.float16: FP16, ml_dtypes.bfloat16: BF16}

#: What each model adds up like.
ACCUMULATE = {
    "exact": gemm.exact_sum,
    "fp32": gemm.fma_chain,
    "sm120": gemm.Fused(block=32, align_bits=25, result_bits=23),
    "sm100": gemm.Fused(block=32, align_bits=25, result_bits=23),
    "sm90_mma": gemm.Fused(block=16, align_bits=25, result_bits=23),
    "sm90_wgmma": gemm.Fused(block=16, align_bits=25, result_bits=23),
    "sm90_mma_k8": gemm.Fused(block=8, align_bits=25, result_bits=23),
    "sm90_wgmma_fp8": gemm.Fused(block=32, align_bits=13, result_bits=13),
}
SCALED = ("exact", "fp32", "sm120", "sm100")
BF16_MODELS = ("sm90_mma", "sm90_wgmma", "sm90_mma_k8")


@dataclass(frozen=True)
class Problem:
    """Arguments of `grouped_gemm`."""

    activations: MXTensor
    weights: MXTensor
    offsets: np.ndarray
    alpha: np.ndarray | None = None
    bias: np.ndarray | None = None


def draw(
    kind: str, weight_format: str = "mxfp4", *, seed: int = 0, tokens: int = 6, n: int = 3, k: int = 96
) -> Problem:
    """A problem of three experts, the middle one without rows, the last row of no expert.

    `kind` is "normal" (scales near 1), "wide" (all finite scales), "specials" (NaN codes and scales too), or
    "identity" (all scales 0x7F).
    """
    random = np.random.default_rng(seed)
    low, high = {"normal": (120, 135), "wide": (0, 255), "specials": (0, 256), "identity": (127, 128)}[kind]

    def tensor(format: str, *rows: int) -> MXTensor:
        codes = random.integers(0, 16 if format == "mxfp4" else 256, (*rows, k), dtype=np.uint8)
        if kind != "specials":
            codes[codes & 0x7F == 0x7F] = 0x3B
        scales = random.integers(low, high, (*rows, k // 32), dtype=np.uint8)
        if kind == "specials":
            # One bad scale is enough for a row.
            scales[(scales == 0xFF) & (random.random(scales.shape) < 0.5)] = 0x80
        return MXTensor(pack_fp4(codes) if format == "mxfp4" else codes, scales, format)

    alpha = random.standard_normal(3).astype(np.float32)
    bias = random.standard_normal((3, n)).astype(np.float32)
    offsets = np.array([0, 2, 2, tokens - 1], np.int64)
    return Problem(tensor("mxfp8", tokens), tensor(weight_format, 3, n), offsets, alpha, bias)


def computed(problem: Problem, model: str, **options: Any) -> np.ndarray:
    """Bits of the fast reference."""
    out = grouped_gemm(problem.activations, problem.weights, problem.offsets, model=model, **options)
    return out.view(np.uint32 if out.dtype == np.float32 else np.uint16)


def specified(
    problem: Problem,
    model: str,
    *,
    alpha: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    out_dtype: type = np.float32,
) -> np.ndarray:
    """Bits of the scalar specification."""
    to_bf16 = model in BF16_MODELS
    activations = _rows(problem.activations, to_bf16)
    experts, n, _ = problem.weights.shape
    flat = _rows(problem.weights, to_bf16)
    weights = [flat[e * n : (e + 1) * n] for e in range(experts)]
    bits = gemm.grouped_gemm(
        activations,
        weights,
        problem.offsets.tolist(),
        ACCUMULATE[model],
        OUTPUTS[out_dtype],
        None if alpha is None else alpha.view(np.uint32).tolist(),
        None if bias is None else bias.astype(np.float32).view(np.uint32).tolist(),
    )
    return np.array(bits, np.uint32 if out_dtype is np.float32 else np.uint16)


def _rows(tensor: MXTensor, to_bf16: bool) -> list[gemm.Row]:
    fmt = E2M1 if tensor.format == "mxfp4" else E4M3
    codes = unpack_fp4(tensor.codes) if tensor.format == "mxfp4" else tensor.codes
    scales = tensor.scales.reshape(-1, tensor.scales.shape[-1]).tolist()
    rows = [
        gemm.Row(row, row_scales, fmt)
        for row, row_scales in zip(codes.reshape(-1, codes.shape[-1]).tolist(), scales, strict=True)
    ]
    return [_dequantized(row) for row in rows] if to_bf16 else rows


def _dequantized(row: gemm.Row) -> gemm.Row:
    bits: list[int] = []
    for block, scale in enumerate(row.scales):
        values = dequantize_block(QuantizedBlock(scale, tuple(row.codes[32 * block : 32 * block + 32])), row.format)
        bits += [gemm.cast(value, BF16) for value in values]
    return gemm.Row(bits, [E8M0.encode(1)] * len(row.scales), BF16)
