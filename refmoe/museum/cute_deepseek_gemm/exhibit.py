"""The exhibit: the grouped GEMM in block FP8 in CuTe DSL."""

from __future__ import annotations

from refmoe.museum.cute_deepseek_gemm.faults import FAULTS
from refmoe.museum.cute_deepseek_gemm.kernel import CUTE_DEEPSEEK_GEMM, CuteGemm
from refmoe.museum.cute_faults import faults_missing
from refmoe.museum.exhibit import Exhibit

EXHIBIT = Exhibit(CUTE_DEEPSEEK_GEMM, CuteGemm, FAULTS, faults_missing)
