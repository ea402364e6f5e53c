"""Grouped GEMM of tokens in block FP8 with weights in block FP8, to the last bit (DeepSeek-V3, DeepGEMM).

Tokens have an FP32 scale for every 128 elements of a row, weights one for every tile of 128 x 128. The definition that
this is held against is `refmoe.reference.scalar.deepseek_gemm`.
"""

from __future__ import annotations

from refmoe.reference.deepseek_gemm.grouped import (
    OUTPUTS,
    Group,
    contiguous_groups,
    deepseek_gemm,
    deepseek_gemm_bounds,
    deepseek_gemm_masked,
    masked_groups,
)
from refmoe.reference.deepseek_gemm.promotion import BLOCK, WEIGHT_TILE, promoted_bounds, promoted_sums

__all__ = [
    "BLOCK",
    "OUTPUTS",
    "WEIGHT_TILE",
    "Group",
    "contiguous_groups",
    "deepseek_gemm",
    "deepseek_gemm_bounds",
    "deepseek_gemm_masked",
    "masked_groups",
    "promoted_bounds",
    "promoted_sums",
]
