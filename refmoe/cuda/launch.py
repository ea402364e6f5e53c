"""What a launch is: a kernel, its grid, its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.cuda.toolchain import CSRC, source_sha256

__all__ = ["Buffer", "Kernel", "LaunchPlan"]

Buffer = Any  # what a device's upload() and output() return; opaque to everyone else


@dataclass(frozen=True)
class Kernel:
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
class LaunchPlan:
    """One launch: `grid` CTAs of `block` threads, and the entry's arguments in order; numbers are 32-bit integers.

    `shared_bytes` is the dynamic shared memory of a CTA.
    """

    kernel: Kernel
    grid: int
    block: int
    arguments: tuple[Buffer | int | None, ...]
    shared_bytes: int = 0
