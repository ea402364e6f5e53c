"""Every chip in one table: what it is called, what blocks of threads may use, which instructions it has and their sums.

To add a chip, add one `Chip` to `CHIPS`: everything that runs on a chip, or tells of one, reads this table.

Sources: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability", for shared memory; CUTLASS
`arch/arch.h` (`sm120_smem_capacity_bytes`) and `sm120_blockscaled_mma_builder.inl` ("no programmatic multicast on this
arch") for SM12x; the PTX ISA for the instructions. `Product.source` says where a bandwidth is from.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from refmoe.errors import ArgumentError, describe

#: Blocks that are launched together, (x, y, z).
Cluster = tuple[int, int, int]


class Mma(enum.Enum):
    """A matrix instruction. The value is its name in PTX; BF16 stands for FP16 too, and E4M3 for E5M2.

    `SYNC_K8` and `SYNC_K4` are the narrow products of BF16 and TF32, `WGMMA_BF16` has TF32 as well.
    """

    SYNC_BF16 = "mma.sync m16n8k16 BF16"
    SYNC_K8 = "mma.sync m16n8k8"
    SYNC_K4 = "mma.sync m16n8k4 TF32"
    SYNC_FP8 = "mma.sync m16n8k32 E4M3"
    SYNC_F8F6F4 = "mma.sync kind::f8f6f4 m16n8k32"
    SYNC_MX = "mma.sync kind::mxf8f6f4.block_scale m16n8k32"
    SYNC_MXF4 = "mma.sync kind::mxf4.block_scale m16n8k64"
    SYNC_NVF4 = "mma.sync kind::mxf4nvf4.block_scale.scale_vec::4X m16n8k64"
    WGMMA_BF16 = "wgmma BF16"
    WGMMA_FP8 = "wgmma E4M3"
    TCGEN05_F16 = "tcgen05.mma kind::f16"
    TCGEN05_F8F6F4 = "tcgen05.mma kind::f8f6f4"
    TCGEN05_MX = "tcgen05.mma kind::mxf8f6f4.block_scale"


@dataclass(frozen=True)
class ChipSums:
    """How an instruction adds up on a chip.

    Attributes:
        model: a name in `refmoe.reference.mma.MODELS`; "" where nobody knows how the chip adds up.
        half: the same with FP16 accumulators; "" where the instruction has none or nobody knows.
        own: whether the model was made for this chip. Another chip's is no more than a guess at this one.
    """

    model: str = ""
    half: str = ""
    own: bool = True


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


@dataclass(frozen=True, kw_only=True)
class Target:
    """What PTX is compiled for, and how its tensor cores add up.

    Attributes:
        arch: its name, as nvcc and the command line spell it. PTX may name it without the final letter.
        compute_capability: (major, minor).
        ptx_version: the oldest that has all its instructions, so that old drivers take what is written in it.
        sums: the matrix instructions that it has.
    """

    arch: str
    compute_capability: tuple[int, int]
    ptx_version: str
    sums: Mapping[Mma, ChipSums] = field(hash=False)

    @property
    def instructions(self) -> frozenset[Mma]:
        """The matrix instructions that it has."""
        return frozenset(self.sums)


@dataclass(frozen=True, kw_only=True)
class Chip(Target):
    """One architecture that refmoe stands for.

    Attributes:
        shared_bytes: shared memory that one block may use.
        cluster_blocks: the most blocks of a portable cluster; 1 where there is no multicast between blocks.
        resident_threads, resident_blocks: that a multiprocessor has room for at a time.
        resident_bytes: shared memory of a multiprocessor, of which each block takes its own and 1024 bytes more.
        products: the first is the one whose multiprocessors count where no GPU is asked.
        no_kernels: why the production kernels are not built for it; empty if they are.
    """

    shared_bytes: int
    cluster_blocks: int
    resident_threads: int
    resident_blocks: int
    resident_bytes: int
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
    def abilities(self) -> tuple[object, ...]:
        """All by which code can tell chips apart: where they are equal, the same code does the same."""
        resident = self.resident_threads, self.resident_blocks, self.resident_bytes
        return self.shared_bytes, self.cluster_blocks, resident, frozenset(self.sums.items())


def _sync(own: bool = False) -> dict[Mma, ChipSums]:
    """What every chip since SM80 has. The models are SM90's."""
    return {
        Mma.SYNC_BF16: ChipSums("sm90_mma", "sm90_mma_f16acc", own),
        Mma.SYNC_K8: ChipSums("sm90_mma_k8", own=own),
        Mma.SYNC_K4: ChipSums("sm90_mma_k4", own=own),
    }


_SM12X = {
    **_sync(),
    Mma.SYNC_FP8: ChipSums("sm120"),
    Mma.SYNC_F8F6F4: ChipSums("sm120"),
    Mma.SYNC_MX: ChipSums("sm120"),
    Mma.SYNC_MXF4: ChipSums("sm120_mxf4"),
    Mma.SYNC_NVF4: ChipSums("sm120_nvf4"),
}

#: Every chip by the name of its architecture.
CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        chip.arch: chip
        for chip in (
            Chip(
                arch="sm_90a",
                compute_capability=(9, 0),
                ptx_version="8.4",
                sums={
                    **_sync(own=True),
                    Mma.SYNC_FP8: ChipSums("sm90_mma_fp8"),
                    Mma.WGMMA_BF16: ChipSums("sm90_wgmma", "sm90_wgmma_f16acc"),
                    Mma.WGMMA_FP8: ChipSums("sm90_wgmma_fp8", "sm90_wgmma_fp8_f16acc"),
                },
                shared_bytes=227 * 1024,
                cluster_blocks=8,
                resident_threads=2048,
                resident_blocks=32,
                resident_bytes=228 * 1024,
                products=(
                    Product("H200", 132, 4800.0, "NVIDIA, H200 data sheet: HBM3e, 4.8 TB/s"),
                    Product("H100 SXM", 132, 3350.0, "NVIDIA, H100 data sheet: HBM3, 3.35 TB/s"),
                ),
            ),
            Chip(
                arch="sm_100a",
                compute_capability=(10, 0),
                ptx_version="8.6",
                sums={
                    **_sync(),
                    Mma.SYNC_FP8: ChipSums(),
                    # BF16 products of tcgen05 have no model of their own.
                    Mma.TCGEN05_F16: ChipSums("sm90_wgmma", own=False),
                    Mma.TCGEN05_F8F6F4: ChipSums("sm100"),
                    Mma.TCGEN05_MX: ChipSums("sm100"),
                },
                shared_bytes=227 * 1024,
                cluster_blocks=8,
                resident_threads=2048,
                resident_blocks=32,
                resident_bytes=228 * 1024,
                products=(Product("B200", 148, 8000.0, "NVIDIA, DGX B200 data sheet: HBM3e, 64 TB/s for eight"),),
                no_kernels="its block-scaled products are those of tcgen05, which the kernels do not use",
            ),
            Chip(
                arch="sm_120a",
                compute_capability=(12, 0),
                ptx_version="8.7",
                sums=_SM12X,
                shared_bytes=99 * 1024,
                cluster_blocks=1,
                resident_threads=1536,
                resident_blocks=24,
                resident_bytes=100 * 1024,
                products=(Product("RTX 5090", 170, 1792.0, "NVIDIA, GeForce RTX 5090: GDDR7, 1792 GB/s"),),
            ),
            Chip(
                arch="sm_121a",
                compute_capability=(12, 1),
                ptx_version="8.8",
                sums=_SM12X,
                shared_bytes=99 * 1024,
                cluster_blocks=1,
                resident_threads=1536,
                resident_blocks=24,
                resident_bytes=100 * 1024,
                products=(Product("GB10", 48, 273.0, "NVIDIA, DGX Spark: LPDDR5x, 273 GB/s"),),
            ),
        )
    }
)

#: Chips that refmoe stands for nowhere, and whose tensor cores the probe can ask all the same.
_ASKED_ALONE = (
    Target(arch="sm_80", compute_capability=(8, 0), ptx_version="7.0", sums=_sync()),
    Target(arch="sm_86", compute_capability=(8, 6), ptx_version="7.1", sums=_sync()),
    Target(arch="sm_89", compute_capability=(8, 9), ptx_version="8.4", sums={**_sync(), Mma.SYNC_FP8: ChipSums()}),
    Target(arch="sm_103a", compute_capability=(10, 3), ptx_version="8.8", sums={**_sync(), Mma.SYNC_FP8: ChipSums()}),
)

#: Every target that something is known of, by its architecture, from the oldest on.
TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        target.arch: target
        for target in sorted((*_ASKED_ALONE, *CHIPS.values()), key=lambda target: target.compute_capability)
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


def compute_capability(target: str) -> tuple[int, int]:
    """(major, minor) of a PTX target, `(9, 0)` of "sm_90a" and of "sm_90"; (0, 0) of what is no target's name."""
    match = re.match(r"sm_(\d+)(\d)", target)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def sums_of(target: str) -> Mapping[Mma, ChipSums]:
    """The matrix instructions of a PTX target. One that the table does not have is taken for a chip since SM80."""
    capability = compute_capability(target)
    known = (each.sums for each in TARGETS.values() if each.compute_capability == capability)
    return next(known, _sync())
