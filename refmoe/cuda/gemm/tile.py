"""One tile of the grouped GEMM: what it takes of shared memory, and whether it can be had.

Weights are the M side of a tile and tokens its N side. K is counted in elements, which take half a byte of FP4 weights
and a byte of FP8 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from refmoe.chips import CHIPS, DEFAULT_ARCH, Chip, Cluster, kernel_chip
from refmoe.errors import ArgumentError, describe
from refmoe.formats import E2M1, E4M3, E8M0, MX_BLOCK, Format
from refmoe.reference.layout import SCALE_LAYOUTS, checked_count

#: A cluster of one block: no cluster at all.
SINGLE_BLOCK: Cluster = (1, 1, 1)

#: Bytes of a block's shared memory kept for the barriers of its pipeline; stages share the rest.
BARRIER_BYTES = 1024

#: One stage to load into while another is read.
MIN_STAGES = 2

#: kMaxStages, those that the kernel has barriers for.
MAX_STAGES = 16

#: The layout of both operands' scales. A block loads them by whole atoms: so many rows, so many K elements.
SCALE_LAYOUT = "128x4"
SCALE_ROWS = SCALE_LAYOUTS[SCALE_LAYOUT].row_atom
K_ATOM = SCALE_LAYOUTS[SCALE_LAYOUT].column_atom * MX_BLOCK

#: Columns of one m16n8k32 instruction: the narrowest tile, and the step of its width.
MMA_COLUMNS = 8


class TileRefused(ArgumentError):
    """A well-formed request that cannot be had: `found` says what and why not, `needed` what to use instead."""


@dataclass(frozen=True)
class Tile:
    """What one block computes at a time: [m, n] outputs, k deep.

    Attributes:
        m: weight rows (output features).
        n: tokens.
        k: elements along K of one stage, whatever their format.

    Raises:
        ArgumentError: an extent that is no positive integer.
    """

    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        for extent in (self.m, self.n, self.k):
            checked_count("tile", extent, least=1)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


#: The tiles that the kernel is built in. 256x8x256 stands for 256x8x512, which no SM12x can have.
TILES: tuple[Tile, ...] = (
    Tile(128, 8, 512),
    Tile(128, 16, 256),
    Tile(128, 32, 256),
    Tile(128, 64, 128),
    Tile(128, 128, 128),
    Tile(128, 8, 256),
    Tile(128, 8, 128),
    Tile(128, 16, 128),
    Tile(256, 8, 256),
)


def parse_tile(text: str) -> Tile:
    """The tile written as MxNxK; K in elements is K in bytes of FP8 tokens, as CUTLASS and TensorRT-LLM name tiles.

    Raises:
        ArgumentError: `text` is no such name.
    """
    return Tile(*_extents("tile", text))


def parse_cluster(text: str) -> Cluster:
    """The cluster written as XxYxZ, in blocks.

    Raises:
        ArgumentError: `text` is no such cluster.
    """
    return _extents("cluster", text)


def k_bytes(elements: int, element: Format) -> int:
    """How many bytes `elements` along K take, packed: 256 of FP4 are 128 bytes.

    Raises:
        ArgumentError: they are no whole number of bytes.
    """
    if elements < 0 or elements * element.bits % 8:
        raise ArgumentError("elements", describe(elements), f"a whole number of bytes of {element.name}")
    return elements * element.bits // 8


def stage_bytes(tile: Tile) -> int:
    """Shared memory of one stage: packed FP4 weights, FP8 tokens, and the scales of both.

    Scales come by whole atoms of 128 rows, so a narrow tile still loads 128 rows of them for its tokens.
    """
    weights = tile.m * k_bytes(tile.k, E2M1)
    tokens = tile.n * k_bytes(tile.k, E4M3)
    scales = (tile.m + max(tile.n, SCALE_ROWS)) * k_bytes(tile.k // MX_BLOCK, E8M0)
    return weights + tokens + scales


def stage_capacity(chip: Chip) -> int:
    """Bytes of a block's shared memory that its stages may use.

    No more than SM12x has, whatever there is: what runs on another chip is what would run on that one.
    """
    return min(chip.shared_bytes, CHIPS[DEFAULT_ARCH].shared_bytes) - BARRIER_BYTES


def max_stages(tile: Tile, arch: Chip | str = DEFAULT_ARCH) -> int:
    """The most stages that fit beside the barriers, and that have one each; fewer than two cannot run."""
    return min(stage_capacity(kernel_chip(arch)) // stage_bytes(tile), MAX_STAGES)


def check_tile(
    tile: Tile, *, arch: Chip | str = DEFAULT_ARCH, stages: int | None = None, cluster: Cluster = SINGLE_BLOCK
) -> int:
    """The number of stages that the kernel runs `tile` with: `stages`, or the most that fit.

    Args:
        tile: what a block computes.
        arch: the target.
        stages: depth of the pipeline, or None for the most that fit.
        cluster: blocks that are launched together, (x, y, z).

    Raises:
        TileRefused: the tile, its stages or the cluster cannot be had there; the sentence says why and what can.
        ArgumentError: an unknown arch, or arguments that are no tile, number of stages or cluster.
    """
    chip = kernel_chip(arch)
    if len(cluster) != 3 or not all(isinstance(extent, int) and extent > 0 for extent in cluster):
        raise ArgumentError("cluster", describe(cluster), "three positive integers")
    faults = _faults(tile, cluster, chip)
    if faults:
        joined = f" in a cluster of {cluster_name(cluster)}" if cluster != SINGLE_BLOCK else ""
        instead = f" in a cluster of {cluster_name(SINGLE_BLOCK)}" if joined else ""
        found = f"{tile}{joined} on {chip.arch}, but {', and '.join(faults)}"
        raise TileRefused("tile", found, f"{_nearest(tile)}{instead}")
    most = max_stages(tile, chip)
    if stages is None:
        return most
    if not MIN_STAGES <= checked_count("stages", stages) <= most:
        room, size = stage_capacity(chip), stage_bytes(tile)
        raise TileRefused("stages", stage_fault(tile, stages, chip, size, room), stage_range(most))
    return stages


def cluster_name(cluster: Cluster) -> str:
    """A cluster as XxYxZ."""
    return "x".join(str(extent) for extent in cluster)


def stage_fault(tile: Tile, stages: int, chip: Chip, size: int, room: int) -> str:
    """Why so many stages of `size` bytes cannot be had where they have `room` bytes."""
    count = "1 stage" if stages == 1 else f"{stages} stages"
    if stages < MIN_STAGES:
        return f"{count} of {tile}, with which nothing can be loaded while the tile is computed"
    if stages > MAX_STAGES:
        return f"{count} of {tile}, where the kernel has barriers for {MAX_STAGES}"
    return f"{count} of {tile} on {chip.arch}, {stages * size:,} bytes where a block has {room:,} for stages"


def stage_range(most: int) -> str:
    """The stages that can be had, in words."""
    return f"{MIN_STAGES} stages" if most == MIN_STAGES else f"{MIN_STAGES} to {most} stages"


def capacity_fault(tile: Tile, chip: Chip) -> str | None:
    """Why `tile` has too few stages on `chip`, or None if it has enough."""
    if max_stages(tile, chip) >= MIN_STAGES:
        return None
    return f"a stage takes {stage_bytes(tile):,} bytes and {MIN_STAGES} of them must fit in {stage_capacity(chip):,}"


def _faults(tile: Tile, cluster: Cluster, chip: Chip) -> list[str]:
    """Every reason why `tile` cannot run on `chip` in that cluster."""
    shape = list(_shape_faults(tile))
    if shape:
        return shape
    faults = [fault for fault in (_cluster_fault(cluster, chip), capacity_fault(tile, chip)) if fault is not None]
    return faults if faults or tile in TILES else ["the kernel is not built for it"]


def _shape_faults(tile: Tile) -> Iterator[str]:
    atoms = f"whole number of atoms of the scale layout, {SCALE_ROWS} rows x {K_ATOM} elements"
    if tile.k % K_ATOM:
        yield f"a K of {tile.k} elements is no {atoms}"
    if tile.m % SCALE_ROWS:
        yield f"{tile.m} weight rows are no {atoms}"
    if tile.n % MMA_COLUMNS:
        yield f"{tile.n} tokens are no multiple of the {MMA_COLUMNS} columns of an instruction"


def _cluster_fault(cluster: Cluster, chip: Chip) -> str | None:
    if cluster == SINGLE_BLOCK:
        return None
    if chip.allows_cluster(cluster):
        return "the kernel shares nothing between blocks and launches no clusters"
    if chip.cluster_blocks == 1:
        return f"{chip.arch} has no multicast between blocks, so a cluster is {cluster_name(SINGLE_BLOCK)}"
    return f"{chip.arch} has clusters of at most {chip.cluster_blocks} blocks"


def _nearest(tile: Tile) -> Tile:
    """The built tile that comes nearest to one that cannot be had: wide enough first, then as high, then as deep."""
    return min(
        TILES,
        key=lambda built: (built.n < tile.n, abs(built.n - tile.n), abs(built.m - tile.m), abs(built.k - tile.k)),
    )


def _extents(argument: str, text: str) -> tuple[int, int, int]:
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        example = "1x1x1" if argument == "cluster" else "128x8x512"
        raise ArgumentError(argument, describe(text), f"three positive integers with x between them, such as {example}")
    first, second, third = (int(part) for part in parts)
    return first, second, third
