"""Every chip in one table: what it is called, what one block of threads may use, which instructions it has.

To add a chip, add one `Chip` to `CHIPS`: everything that runs on a chip, or tells of one, reads this table.

Sources: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability", for shared memory; CUTLASS
`arch/arch.h` (`sm120_smem_capacity_bytes`) and `sm120_blockscaled_mma_builder.inl` ("no programmatic multicast on this
arch") for SM12x; the PTX ISA for the instructions. `Product.source` says where a bandwidth is from.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from refmoe.errors import ArgumentError, describe

#: Blocks that are launched together, (x, y, z).
Cluster = tuple[int, int, int]


class Mma(enum.Enum):
    """A matrix instruction that not every chip has. The value is its name in PTX."""

    SYNC_BF16 = "mma.sync m16n8k16 BF16"
    SYNC_MX = "mma.sync kind::mxf8f6f4.block_scale m16n8k32"
    SYNC_NVF4 = "mma.sync kind::mxf4nvf4.block_scale.scale_vec::4X m16n8k64"
    WGMMA_BF16 = "wgmma BF16"
    TCGEN05_F16 = "tcgen05.mma kind::f16"
    TCGEN05_MX = "tcgen05.mma kind::mxf8f6f4.block_scale"


@dataclass(frozen=True)
class Product:
    """What a chip is sold as.

    Attributes:
        name: as NVIDIA has it, without "NVIDIA".
        multiprocessors: how many are enabled.
        bandwidth: of its memory in GB/s, nominal.
        source: of the bandwidth.
    """

    name: str
    multiprocessors: int
    bandwidth: float
    source: str


@dataclass(frozen=True)
class Chip:
    """One architecture that kernels can be compiled for.

    Attributes:
        arch: its name, as nvcc and the command line spell it. PTX may name it without the final letter.
        compute_capability: (major, minor).
        shared_bytes: shared memory that one block may use.
        cluster_blocks: the most blocks of a portable cluster; 1 where there is no multicast between blocks.
        instructions: the matrix instructions that it has.
        products: the first is the one whose multiprocessors count where no GPU is asked.
        no_kernels: why the production kernels are not built for it; empty if they are.
    """

    arch: str
    compute_capability: tuple[int, int]
    shared_bytes: int
    cluster_blocks: int
    instructions: frozenset[Mma]
    products: tuple[Product, ...]
    no_kernels: str = ""

    @property
    def multiprocessors(self) -> int:
        """Those of its first product: a grid depends on them."""
        return self.products[0].multiprocessors

    def allows_cluster(self, cluster: Cluster) -> bool:
        """Whether a cluster of that shape can be launched."""
        x, y, z = cluster
        return x * y * z <= self.cluster_blocks

    @property
    def abilities(self) -> tuple[int, int, frozenset[Mma]]:
        """All by which code can tell chips apart: where they are equal, the same code does the same."""
        return self.shared_bytes, self.cluster_blocks, self.instructions


_SM12X = frozenset({Mma.SYNC_BF16, Mma.SYNC_MX, Mma.SYNC_NVF4})

#: Every chip by the name of its architecture.
CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        chip.arch: chip
        for chip in (
            Chip(
                "sm_90a",
                (9, 0),
                shared_bytes=227 * 1024,
                cluster_blocks=8,
                instructions=frozenset({Mma.SYNC_BF16, Mma.WGMMA_BF16}),
                products=(
                    Product("H200", 132, 4800.0, "NVIDIA, H200 data sheet: HBM3e, 4.8 TB/s"),
                    Product("H100 SXM", 132, 3350.0, "NVIDIA, H100 data sheet: HBM3, 3.35 TB/s"),
                ),
            ),
            Chip(
                "sm_100a",
                (10, 0),
                shared_bytes=227 * 1024,
                cluster_blocks=8,
                instructions=frozenset({Mma.SYNC_BF16, Mma.TCGEN05_F16, Mma.TCGEN05_MX}),
                products=(Product("B200", 148, 8000.0, "NVIDIA, DGX B200 data sheet: HBM3e, 64 TB/s for eight"),),
                no_kernels="its block-scaled products are those of tcgen05, which the kernels do not use",
            ),
            Chip(
                "sm_120a",
                (12, 0),
                shared_bytes=99 * 1024,
                cluster_blocks=1,
                instructions=_SM12X,
                products=(Product("RTX 5090", 170, 1792.0, "NVIDIA, GeForce RTX 5090: GDDR7, 1792 GB/s"),),
            ),
            Chip(
                "sm_121a",
                (12, 1),
                shared_bytes=99 * 1024,
                cluster_blocks=1,
                instructions=_SM12X,
                products=(Product("GB10", 48, 273.0, "NVIDIA, DGX Spark: LPDDR5x, 273 GB/s"),),
            ),
        )
    }
)

#: The architectures that the production kernels are built for.
KERNEL_ARCHS: tuple[str, ...] = tuple(chip.arch for chip in CHIPS.values() if not chip.no_kernels)

#: What the executor runs where nobody names an architecture.
DEFAULT_ARCH = "sm_120a"


def kernel_chip(arch: Chip | str) -> Chip:
    """`arch` itself, or the chip of that name if the kernels are built for it.

    Raises:
        ArgumentError: they are not; the message lists `KERNEL_ARCHS`.
    """
    if isinstance(arch, Chip):
        return arch
    if isinstance(arch, str) and arch in KERNEL_ARCHS:
        return CHIPS[arch]
    raise ArgumentError("arch", describe(arch), f"one of {', '.join(KERNEL_ARCHS)}")
