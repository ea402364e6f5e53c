"""The family `sm12x_gemm`, the grouped GEMM: fills, stages, expectation, cases."""

from __future__ import annotations

from refmoe.families.gemm.family import SM12X_GEMM

__all__ = ["SM12X_GEMM"]
