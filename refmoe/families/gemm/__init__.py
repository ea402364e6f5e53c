"""The grouped GEMM as a family: operands as fills, words for its output, what is expected, the cases."""

from __future__ import annotations

from refmoe.families.gemm.family import SM12X_GEMM

__all__ = ["SM12X_GEMM"]
