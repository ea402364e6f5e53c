"""DeepGEMM's grouped GEMM in block FP8 for SM90, compiled from its own headers and executed as it is.

The kernel is `sm90_fp8_gemm_1d2d_impl` of the package sgl-deep-gemm, with FP32 scales of 1x128 tokens and 128x128
weights. It answers for the family `deepseek_gemm` under the name `deepgemm_gemm`. Nothing of the package is part of
refmoe: where it is not installed, its cases are skipped.
"""

from __future__ import annotations

from refmoe.museum.deepgemm.headers import DeepGemmMissing, Headers, find_headers

__all__ = ["DeepGemmMissing", "Headers", "find_headers"]
