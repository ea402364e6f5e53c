"""What a launch is: a kernel, its grid, its arguments; and the grid of the kernels that walk over rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.cuda.arguments import MAX_GRID, check_rows
from refmoe.cuda.toolchain import CSRC, source_sha256

WARP_LANES = 32
LANE_ELEMENTS = 16  # of one thread of quantize, expand and activation
MAX_ROW_THREADS = 512  # kMaxRowThreads
# Rows up to this many a multiprocessor get a CTA each: on an H200 that is 3 % faster than 8 resident CTAs that loop.
CTAS_PER_MULTIPROCESSOR = 64

Buffer = Any  # what a device's upload() and output() return; opaque to everyone else


@dataclass(frozen=True)
class Entry:
    """One entry of one source file.

    Attributes:
        source: the name of its source file in `csrc`, without the suffix: "expand".
        entry: the C name of the `__global__` function.
    """

    source: str
    entry: str

    def path(self, csrc: Path = CSRC) -> Path:
        """The file that defines the entry, in `csrc` or in a changed copy of it."""
        return csrc / f"{self.source}.cu"

    def source_sha256(self, csrc: Path = CSRC) -> str:
        """SHA-256 over the source, the headers it includes and the build flags: what a GPU report vouches for."""
        return source_sha256(self.path(csrc))


@dataclass(frozen=True)
class MatrixMap:
    """What a kernel's tensor copies are told of a matrix: it is an argument like a buffer, 128 bytes by value.

    Attributes:
        buffer: that holds the matrix from its first byte on.
        element: "u8", "bf16" or "f32".
        rows, columns: of the matrix, which has no gaps between rows.
        box: (rows, columns) that one copy takes, at most 256 each.
        swizzle: of the box in shared memory: "128B" where a row of it is 128 bytes; "64B", "32B" or "none".
    """

    buffer: Buffer
    element: str
    rows: int
    columns: int
    box: tuple[int, int]
    swizzle: str = "128B"

    @property
    def row_bytes(self) -> int:
        """Bytes from one row of the matrix to the next."""
        return self.columns * {"u8": 1, "bf16": 2, "f32": 4}[self.element]


@dataclass(frozen=True)
class LaunchPlan:
    """One launch: `grid` CTAs of `block` threads, and the entry's arguments in order; numbers are 32-bit integers.

    `shared_bytes` is the dynamic shared memory of a CTA. `blocks` are those of the grid that the executor runs, for a
    sample of a large problem; None for all. A GPU always runs all. `cluster` is the number of CTAs that share their
    shared memory; None for what the kernel itself says. A `programmatic` launch may start before the one in front of it
    has ended (programmatic dependent launch): its kernel waits itself for what that one writes.
    """

    kernel: Entry
    grid: int
    block: int
    arguments: tuple[Buffer | MatrixMap | int | None, ...]
    shared_bytes: int = 0
    blocks: tuple[int, ...] | None = None
    cluster: int | None = None
    programmatic: bool = False


def row_plan(
    kernel: Entry,
    arguments: tuple[Buffer | int | None, ...],
    *,
    rows: int,
    width: int,
    multiprocessors: int,
    lane_elements: int = LANE_ELEMENTS,
) -> LaunchPlan:
    """A launch over rows: one CTA a row up to 64 a multiprocessor, which then take several rows each.

    Args:
        kernel: what to launch.
        arguments: of its entry.
        rows: how many there are.
        width: elements of a row.
        multiprocessors: of the device.
        lane_elements: elements of a row that a thread takes at a time.

    Raises:
        ArgumentError: more rows than the kernel's int32 can step past.
    """
    check_rows("rows", rows)
    grid = min(rows, CTAS_PER_MULTIPROCESSOR * multiprocessors, MAX_GRID)
    return LaunchPlan(kernel, grid, row_threads(width, lane_elements), arguments)


def row_threads(width: int, lane_elements: int = LANE_ELEMENTS) -> int:
    """Threads of a CTA for rows of `width` elements: whole warps, `lane_elements` a thread, at most 512."""
    return min(-(-width // (lane_elements * WARP_LANES)) * WARP_LANES, MAX_ROW_THREADS)
