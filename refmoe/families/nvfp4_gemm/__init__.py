"""The family `sm12x_nvfp4_gemm`, the grouped GEMM in NVFP4: fills, expectation, cases."""

from __future__ import annotations

from refmoe.families.nvfp4_gemm.family import SM12X_NVFP4_GEMM

__all__ = ["SM12X_NVFP4_GEMM"]
