"""The exhibit: SwiGLU with requantization in CuTe DSL."""

from __future__ import annotations

from refmoe.museum.cute_deepseek_activation.faults import FAULTS
from refmoe.museum.cute_deepseek_activation.kernel import CUTE_DEEPSEEK_ACTIVATION, CuteActivation
from refmoe.museum.cute_faults import faults_missing
from refmoe.museum.exhibit import Exhibit

EXHIBIT = Exhibit(CUTE_DEEPSEEK_ACTIVATION, CuteActivation, FAULTS, faults_missing)
