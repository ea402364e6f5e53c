"""The family `deepseek_gemm`, the grouped GEMM in block FP8: fills, windows, expectation, cases."""

from __future__ import annotations

from refmoe.families.deepseek_gemm.family import DEEPSEEK_GEMM

__all__ = ["DEEPSEEK_GEMM"]
