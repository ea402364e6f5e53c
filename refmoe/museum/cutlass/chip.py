"""What a chip answers when host code asks about it: data for a machine that has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from refmoe.cuda.arch import SM12X_SHARED_BYTES
from refmoe.cuda.device import MULTIPROCESSORS

__all__ = ["CHIPS", "Chip"]


@dataclass(frozen=True)
class Chip:
    """Device attributes as the CUDA runtime names them.

    Attributes:
        multiprocessors: cudaDevAttrMultiProcessorCount.
        shared_bytes: cudaDevAttrMaxSharedMemoryPerBlockOptin; CUDA programming guide, compute capability 12.x: 99 KiB.
        compute_capability: cudaDevAttrComputeCapabilityMajor and ...Minor.
        driver_version: of cudaDriverGetVersion, 1000 * major + 10 * minor.
    """

    multiprocessors: int
    shared_bytes: int
    compute_capability: tuple[int, int]
    driver_version: int = 13000


#: By arch: sm_120a is an RTX 5090, sm_121a a GB10.
CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        "sm_120a": Chip(MULTIPROCESSORS["sm_120a"], SM12X_SHARED_BYTES, (12, 0)),
        "sm_121a": Chip(MULTIPROCESSORS["sm_121a"], SM12X_SHARED_BYTES, (12, 1)),
    }
)
