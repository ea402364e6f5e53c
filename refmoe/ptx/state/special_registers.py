"""Predefined registers.

Clocks count what the launch has run: see `Ticks`. Where a chip would say something about itself, these registers
describe one with a single multiprocessor on which this launch is alone: `%smid` 0 of `%nsmid` 1, `%gridid` 1, and 1024
bytes of shared memory that the system keeps, below the block's own. `%envreg1` and `%envreg2` are the address of a
cooperative launch's workspace, and the other `%envreg<n>` are 0, as these are in a launch that is not cooperative.
Performance counters (`%pm<n>`, `%pm<n>_64`) are 0: what they count on a chip is set from outside, and PTX leaves their
values open.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from refmoe.ptx.grid import Grid
from refmoe.ptx.state.spaces import OWN_BASE

_AXES = "xyz"
_INDICES = ("%ctaid", "%clusterid", "%cluster_ctaid")
_FIRST_LEAP, _LAST_LEAP = 1 << 16, 1 << 62
_VECTORS = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_MASKS = ("lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt")

_ENVIRONMENT = 32
_COUNTERS = 8
# Registers that change while lanes run: (kind, first bit of the counter).
CLOCKS: dict[str, tuple[str, int]] = {
    "%clock": ("b32", 0),
    "%clock_hi": ("b32", 32),
    "%clock64": ("b64", 0),
    "%globaltimer": ("b64", 0),
    "%globaltimer_lo": ("b32", 0),
    "%globaltimer_hi": ("b32", 32),
}
# Where parts of the reserved shared memory begin. An entry that asks for them uses that memory: tiles of several warps
# keep their barriers there (cooperative_groups, details/memory.h, `reserved_shared_ptr`).
RESERVED_PARTS = ("%reserved_smem_offset_0", "%reserved_smem_offset_1")
# Bytes of it, below `OWN_BASE` where nobody uses it.
RESERVED_BYTES = OWN_BASE
# Those that are the same everywhere.
_CONSTANTS: dict[str, np.generic] = {
    "%smid": np.uint32(0),
    "%nsmid": np.uint32(1),
    "%gridid": np.uint64(1),
    "%current_graph_exec": np.uint64(0),
    "%reserved_smem_offset_cap": np.uint32(RESERVED_BYTES),
    **{f"%envreg{number}": np.uint32(0) for number in range(_ENVIRONMENT)},
    **{f"%pm{number}": np.uint32(0) for number in range(_COUNTERS)},
    **{f"%pm{number}_64": np.uint64(0) for number in range(_COUNTERS)},
}

# Register kind of each, as PTX spells it.
SPECIALS: dict[str, str] = {
    **{f"%{name}.{axis}": "b32" for name in _VECTORS for axis in _AXES},
    **{f"%{name}": "b32" for name in ("laneid", "warpid", "nwarpid", *_MASKS)},
    **{f"%{name}": "b32" for name in ("cluster_ctarank", "cluster_nctarank")},
    **{f"%{name}": "b32" for name in ("dynamic_smem_size", "total_smem_size", "aggr_smem_size")},
    "%is_explicit_cluster": "pred",
    **{name: f"b{value.dtype.itemsize * 8}" for name, value in _CONSTANTS.items()},
    **dict.fromkeys(("%reserved_smem_offset_begin", "%reserved_smem_offset_end", *RESERVED_PARTS), "b32"),
    **{name: kind for name, (kind, _) in CLOCKS.items()},
}


class Ticks:
    """The clock of a launch, one for all multiprocessors and for `%globaltimer`.

    It grows with every instruction that runs and with every read, so that two reads never give the same. When lanes
    only wait for time to pass, it leaps: what waits for a time-out need not run for so long.

    Attributes:
        reads: how often it was read.
    """

    def __init__(self) -> None:
        self.reads = 0
        self._leaped = 0
        self._leap = 0

    def read(self, name: str, instructions: int) -> Any:
        """A register when so many instructions have run."""
        self.reads += 1
        kind, first = CLOCKS[name]
        count = instructions + self.reads + self._leaped
        if kind == "b64":
            return np.uint64(count & (1 << 64) - 1)
        return np.uint32(count >> first & 0xFFFFFFFF)

    def leap(self) -> bool:
        """Leap, twice as far as the last time. False if it did so until 64 bits were full: time helps nobody."""
        self._leap = max(2 * self._leap, _FIRST_LEAP)
        self._leaped += self._leap
        return self._leap < _LAST_LEAP

    def settle(self) -> None:
        """Something else happened: the next leap is short again."""
        self._leap = 0


class SpecialRegisters:
    """Predefined registers over the lanes of some CTAs, by name.

    Args:
        grid: of the launch.
        block: its threads.
        first_cta: the number of the first CTA.
        ctas: how many follow one another.
        warps: of a CTA.
        dynamic_bytes: of shared memory, which the launch asked for.
        shared_bytes: all of it.
        workspace: the address of what a cooperative launch has, in `%envreg1` (upper half) and `%envreg2`; else 0.
        reserved_bytes: those of `shared_bytes` that are reserved shared memory which the entry uses.

    Attributes:
        by_cta: those that say which CTA it is, along the axes that the grid has: uint32 [ctas].
    """

    def __init__(
        self,
        grid: Grid,
        block: tuple[int, int, int],
        first_cta: int,
        ctas: int,
        warps: int,
        dynamic_bytes: int,
        shared_bytes: int,
        workspace: int = 0,
        reserved_bytes: int = 0,
    ) -> None:
        self._fixed = _of_any_ctas(grid, block, ctas, warps, dynamic_bytes, shared_bytes, workspace, reserved_bytes)
        self._grid, self._ctas, self._lanes = grid, ctas, warps * 32
        self.become(first_cta)

    def become(self, first_cta: int) -> None:
        """Be those of as many other CTAs."""
        self.by_cta = _indices(self._grid, first_cta, self._ctas)
        # Arrays over all lanes, once somebody asked for them.
        self._spread: dict[str, Any] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._fixed

    def __getitem__(self, name: str) -> Any:
        """An array [lanes], or a scalar where all lanes agree."""
        if name not in self.by_cta:
            return self._fixed[name]
        if name not in self._spread:
            own = self.by_cta[name]
            self._spread[name] = own[0] if bool((own == own[0]).all()) else np.repeat(own, self._lanes)
        return self._spread[name]


def _indices(grid: Grid, first_cta: int, ctas: int) -> dict[str, Any]:
    """See `SpecialRegisters.by_cta`."""
    found: dict[str, Any] = {}
    clustered = grid.cluster_blocks > 1
    position, rank = np.arange(first_cta, first_cta + ctas), np.zeros(ctas, np.int64)
    if clustered:
        position, rank = np.divmod(position, grid.cluster_blocks)
        found["%cluster_ctarank"] = rank.astype(np.uint32)
    cluster = grid.cluster_at(position)
    for axis, name in enumerate(_AXES):
        if grid.size[axis] == 1:
            continue
        corner = _along(cluster, grid.clusters, axis)
        found[f"%clusterid.{name}"] = found[f"%ctaid.{name}"] = corner.astype(np.uint32)
        if clustered:
            inside = _along(rank, grid.cluster, axis)
            found[f"%cluster_ctaid.{name}"] = inside.astype(np.uint32)
            found[f"%ctaid.{name}"] = (corner * grid.cluster[axis] + inside).astype(np.uint32)
    return found


def _along(numbers: Any, sizes: tuple[int, int, int], axis: int) -> Any:
    """The index along an axis of things that are counted x first, then y, then z; int64 [n]."""
    if sizes[axis] == 1:
        return np.zeros_like(numbers)
    before = math.prod(sizes[:axis])
    index = numbers if before == 1 else numbers // before
    return index if axis == 2 or math.prod(sizes[axis + 1 :]) == 1 else index % sizes[axis]


@lru_cache(maxsize=8)
def _of_any_ctas(
    grid: Grid,
    block: tuple[int, int, int],
    ctas: int,
    warps: int,
    dynamic_bytes: int,
    shared_bytes: int,
    workspace: int,
    reserved_bytes: int,
) -> dict[str, Any]:
    """Those that do not depend on which CTAs they are; indices are 0, as they are along most axes of most grids."""
    own_bytes, begin = shared_bytes - reserved_bytes, np.uint32(OWN_BASE if reserved_bytes else 0)
    threads = np.arange(warps * 32)
    lane = np.tile(np.arange(32, dtype=np.uint32), ctas * warps)
    one = np.uint32(1)
    lower = (one << lane) - one
    eq = one << lane
    result: dict[str, Any] = {
        **_CONSTANTS,
        "%laneid": lane,
        "%warpid": np.tile((threads // 32).astype(np.uint32), ctas),
        "%nwarpid": np.uint32(-(-math.prod(block) // 32)),
        "%lanemask_eq": eq,
        "%lanemask_lt": lower,
        "%lanemask_le": lower | eq,
        "%lanemask_ge": ~lower,
        "%lanemask_gt": ~(lower | eq),
        "%cluster_nctarank": np.uint32(grid.cluster_blocks),
        "%dynamic_smem_size": np.uint32(dynamic_bytes),
        "%total_smem_size": np.uint32(own_bytes),
        "%aggr_smem_size": np.uint32(own_bytes + RESERVED_BYTES),
        "%is_explicit_cluster": np.bool_(grid.explicit),
        "%envreg1": np.uint32(workspace >> 32),
        "%envreg2": np.uint32(workspace & 0xFFFFFFFF),
        "%reserved_smem_offset_end": begin + np.uint32(RESERVED_BYTES),
        **dict.fromkeys(("%reserved_smem_offset_begin", *RESERVED_PARTS), begin),
        "%cluster_ctarank": np.uint32(0),
        **{f"{name}.{axis}": np.uint32(0) for name in _INDICES for axis in _AXES},
    }
    for axis, name in enumerate(_AXES):
        tid = threads // int(np.prod(block[:axis])) % block[axis]
        result[f"%tid.{name}"] = np.uint32(0) if block[axis] == 1 else np.tile(tid.astype(np.uint32), ctas)
        result[f"%ntid.{name}"] = np.uint32(block[axis])
        result[f"%nctaid.{name}"] = np.uint32(grid.size[axis])
        result[f"%nclusterid.{name}"] = np.uint32(grid.clusters[axis])
        result[f"%cluster_nctaid.{name}"] = np.uint32(grid.cluster[axis])
    return result
