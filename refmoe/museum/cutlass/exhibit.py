"""The exhibit: CUTLASS's block-scaled grouped GEMM for SM12x."""

from __future__ import annotations

from refmoe.museum.cutlass.faults import CUTLASS_FAULTS, faults_missing
from refmoe.museum.cutlass.kernel import CUTLASS_GEMM, Cutlass
from refmoe.museum.exhibit import Exhibit

EXHIBIT = Exhibit(CUTLASS_GEMM, Cutlass, CUTLASS_FAULTS, faults_missing, partly=True)
