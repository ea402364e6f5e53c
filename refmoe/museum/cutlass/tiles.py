"""Which tiles CUTLASS's own SM12x grouped GEMM opens, release by release: what our kernel is to be judged against.

CUTLASS unpacks FP4 to one element a byte on its way into shared memory, so a stage takes up to twice as much of it and
fewer tiles have two. `Evidence` says what each entry rests on. The assertions are those of
`gemm/collective/builders/sm120_blockscaled_mma_builder.inl`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from refmoe.chips import CHIPS, DEFAULT_ARCH
from refmoe.cuda.gemm.tile import SCALE_ROWS, Tile, k_bytes
from refmoe.formats import E4M3, E8M0, MX_BLOCK


class Evidence(enum.Enum):
    """What is known of a tile in a release, and how."""

    HEADER = "header"
    """A static assertion in the release's headers refuses it, or a check that follows from one."""
    COMPILED = "compiled"
    """Compiled with the release's headers; stages, bytes and spills are the compiler's."""
    RUN = "run"
    """Compiled and launched; what is said happened then."""
    DERIVED = "derived"
    """From the bytes of a stage and the limits of the chip; nobody compiled it."""
    RECORDED = "recorded"
    """Noted as refused in a trial whose cause was not kept."""


@dataclass(frozen=True)
class CutlassTile:
    """One tile in one release.

    Attributes:
        opens: whether a kernel of it can be built and launched; None if nobody knows.
        evidence: how that is known.
        note: why not, or what was found.
        stages: stages of the kernel that was built, if known.
        shared_bytes: shared memory that it asks for, epilogue included, if known.
    """

    opens: bool | None
    evidence: Evidence
    note: str
    stages: int | None = None
    shared_bytes: int | None = None


# What a build takes beside its stages: 7,168 bytes of 128x16x256, 11,264 of the wider ones in the table below.
LEAST_EPILOGUE_BYTES = 7_168

#: 4.2 is nvidia-cutlass on PyPI, 4.5 what flashinfer-python 0.7.2 bundles, 4.6 comes from source only.
CUTLASS_RELEASES = ("4.2", "4.5", "4.6")

_NARROW = CutlassTile(False, Evidence.HEADER, "asserts N >= 32")
_NO_SCALES = CutlassTile(
    False, Evidence.HEADER, "asserts that the TMA box of its scales, whole 128 rows, fills the tile"
)
_REFUSED = CutlassTile(False, Evidence.RECORDED, "refused")
_CLUSTER = CutlassTile(False, Evidence.HEADER, "asserts a cluster of 1x1x1")
_ONE_STAGE = CutlassTile(False, Evidence.DERIVED, "one stage of unpacked FP4 fits")
_UNKNOWN = CutlassTile(None, Evidence.RECORDED, "not tried")


def _opens(stages: int | None = None, shared_bytes: int | None = None, note: str = "") -> CutlassTile:
    return CutlassTile(True, Evidence.COMPILED, note, stages, shared_bytes)


#: By tile, then by release.
CUTLASS_TILES: Mapping[Tile, Mapping[str, CutlassTile]] = MappingProxyType(
    {
        tile: MappingProxyType(dict(zip(CUTLASS_RELEASES, entries, strict=True)))
        for tile, entries in {
            Tile(128, 8, 512): (_NARROW, _REFUSED, _ONE_STAGE),
            Tile(128, 16, 256): (_NARROW, _REFUSED, _opens(2, 84_992)),
            Tile(128, 32, 256): (_NO_SCALES, _opens(2, 97_280), _opens(2, 97_280)),
            Tile(128, 64, 128): (_NO_SCALES, _opens(3, 88_064), _opens(3, 88_064)),
            Tile(128, 128, 128): (
                _opens(2, 78_848),
                _opens(2, 78_848),
                _opens(2, 78_848, "spills: 72 bytes stored, 52 loaded"),
            ),
            Tile(128, 8, 256): (_NARROW, _REFUSED, _opens(2)),
            Tile(128, 8, 128): (_NARROW, _REFUSED, _opens(5)),
            Tile(128, 16, 128): (_NARROW, _REFUSED, _UNKNOWN),
            Tile(256, 8, 256): (_NARROW, _REFUSED, CutlassTile(False, Evidence.DERIVED, "one stage; 256x8x128 has 2")),
            Tile(256, 8, 512): (_CLUSTER, _CLUSTER, _CLUSTER),
        }.items()
    }
)


def cutlass_stage_bytes(tile: Tile) -> int:
    """Shared memory of one CUTLASS stage: weights unpacked to bytes, tokens, and whole atoms of both scales."""
    operands = (tile.m + tile.n) * k_bytes(tile.k, E4M3)
    return operands + (tile.m + max(tile.n, SCALE_ROWS)) * k_bytes(tile.k // MX_BLOCK, E8M0)


def most_cutlass_stages(tile: Tile) -> int:
    """Stages that fit into the chip's shared memory beside the smallest epilogue: an upper bound."""
    return (CHIPS[DEFAULT_ARCH].shared_bytes - LEAST_EPILOGUE_BYTES) // cutlass_stage_bytes(tile)
