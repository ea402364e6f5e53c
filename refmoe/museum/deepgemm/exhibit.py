"""The exhibit: DeepGEMM's grouped GEMM in block FP8 for SM90."""

from __future__ import annotations

from refmoe.museum.deepgemm.faults import DEEPGEMM_FAULTS, faults_missing
from refmoe.museum.deepgemm.kernel import DEEPGEMM_GEMM, DeepGemm
from refmoe.museum.exhibit import Exhibit

EXHIBIT = Exhibit(DEEPGEMM_GEMM, DeepGemm, DEEPGEMM_FAULTS, faults_missing, partly=True)
