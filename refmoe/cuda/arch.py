"""What a chip gives a block of the grouped GEMM: shared memory, clusters, and the unit in which K is counted.

Sources: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability", for shared memory; CUTLASS
`arch/arch.h` (`sm120_smem_capacity_bytes`) and `sm120_blockscaled_mma_builder.inl` ("no programmatic multicast on this
arch") for SM12x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from refmoe.errors import ArgumentError, describe
from refmoe.formats import Format
from refmoe.reference.dequantize import BLOCK
from refmoe.reference.tensor import IDENTITY_SCALE

__all__ = [
    "ARCHS",
    "BARRIER_BYTES",
    "IDENTITY_SCALE",
    "K_ATOM",
    "MIN_STAGES",
    "SCALE_ROWS",
    "SINGLE_BLOCK",
    "Arch",
    "Cluster",
    "arch_named",
    "k_bytes",
    "k_elements",
]

Cluster = tuple[int, int, int]

#: A cluster of one block: no cluster at all.
SINGLE_BLOCK: Cluster = (1, 1, 1)

#: Bytes of a block's shared memory kept for the barriers of its pipeline; stages share the rest.
BARRIER_BYTES = 1024

#: Shared memory that one block may use on SM120 and SM121.
SM12X_SHARED_BYTES = 101_376

#: One stage to load into while another is read.
MIN_STAGES = 2

#: Rows and K elements of one 128x4 atom of the scale layout: a block loads scales by whole atoms.
SCALE_ROWS = 128
K_ATOM = 4 * BLOCK


@dataclass(frozen=True)
class Arch:
    """A compilation target of the grouped GEMM.

    Attributes:
        name: as nvcc and the command line spell it.
        shared_bytes: shared memory that one block may use.
        cluster_blocks: the most blocks of a cluster; 1 where there is no multicast between blocks.
        block_scaled_mma: whether it has the block-scaled MXFP8 x MXFP4 instruction; else that one runs in software.
    """

    name: str
    shared_bytes: int
    cluster_blocks: int
    block_scaled_mma: bool

    @property
    def stage_capacity(self) -> int:
        """Bytes of a block's shared memory that its stages may use.

        No more than SM12x has, whatever there is: what runs on another chip is what would run on that one.
        """
        return min(self.shared_bytes, SM12X_SHARED_BYTES) - BARRIER_BYTES

    def allows_cluster(self, cluster: Cluster) -> bool:
        """Whether a cluster of that shape can be launched."""
        x, y, z = cluster
        return x * y * z <= self.cluster_blocks


#: The targets by name. Eight is the portable limit of a cluster on SM90.
ARCHS: Mapping[str, Arch] = MappingProxyType(
    {
        arch.name: arch
        for arch in (
            Arch("sm_90a", shared_bytes=232_448, cluster_blocks=8, block_scaled_mma=False),
            Arch("sm_120a", shared_bytes=SM12X_SHARED_BYTES, cluster_blocks=1, block_scaled_mma=True),
            Arch("sm_121a", shared_bytes=SM12X_SHARED_BYTES, cluster_blocks=1, block_scaled_mma=True),
        )
    }
)


def arch_named(arch: Arch | str) -> Arch:
    """`arch` itself, or the entry of `ARCHS` with that name.

    Raises:
        ArgumentError: there is no such arch.
    """
    if isinstance(arch, Arch):
        return arch
    if isinstance(arch, str) and arch in ARCHS:
        return ARCHS[arch]
    raise ArgumentError("arch", describe(arch), f"one of {', '.join(ARCHS)}")


def k_elements(size: int, element: Format) -> int:
    """How many elements along K `size` bytes hold, packed: 128 bytes are 128 of FP8 and 256 of FP4.

    Tile names of other libraries give K in bytes of the activation; every tile here counts elements.

    Raises:
        ArgumentError: `size` is negative.
    """
    if size < 0:
        raise ArgumentError("size", describe(size), "at least 0 bytes")
    return size * 8 // element.bits


def k_bytes(elements: int, element: Format) -> int:
    """How many bytes `elements` along K take, packed: the inverse of `k_elements`.

    Raises:
        ArgumentError: they are no whole number of bytes.
    """
    if elements < 0 or elements * element.bits % 8:
        raise ArgumentError("elements", describe(elements), f"a whole number of bytes of {element.name}")
    return elements * element.bits // 8
