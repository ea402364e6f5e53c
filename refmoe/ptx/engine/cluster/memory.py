"""Shared memory of a cluster: addresses of other blocks, and what ends with a block.

An address of shared memory names a block of the cluster in its upper bits: 0 stands for the own block, as in every
address that no `mapa` made, and rank + 1 for the block of that rank. In a cluster of one block `mapa` changes nothing.
Only accesses by `.shared::cluster` and by generic addresses reach other blocks. Such an access is an error once the
block has exited, because its shared memory is gone; and a block must not exit before what other blocks do in its shared
memory is ordered before the exit of one of its threads, for example by a barrier of the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.spaces import RANK_SHIFT, SHARED_WINDOW
from refmoe.ptx.text.syntax import Instruction

Array = Any
_SHIFT = np.uint64(RANK_SHIFT)
_OFFSET = np.uint64((1 << RANK_SHIFT) - 1)


def owners_of(machine: Lanes, address: Array, lanes: Array) -> tuple[Array, Array]:
    """(CTA of the machine, address there) of addresses in shared memory, uint64 [n], which `lanes` [n] use.

    An address that no block of the cluster has stays as it is.
    """
    blocks, own = machine.launch.grid.cluster_blocks, machine.lane_cta[lanes]
    rank = (address >> _SHIFT).view(np.int64) - 1
    mapped = (rank >= 0) & (rank < blocks)
    return np.where(mapped, own // blocks * blocks + rank, own), np.where(mapped, address & _OFFSET, address)


def whose(machine: Lanes, region: Region, index: int) -> str:
    """` of block (x, y, z)` where byte `index` of all shared memory lies in one of several blocks of a cluster."""
    if region is not machine.shared or machine.launch.grid.cluster_blocks == 1:
        return ""
    block, _ = machine.place_of(index // region.stride * machine.warps * 32)
    return f" of block {block}"


@dataclass(frozen=True)
class MapAddress:
    """`mapa`: the address in CTA `rank` of the cluster that corresponds to an own one.

    Attributes:
        instruction: for messages.
        generic: whether the address is generic, else it is one of shared memory.
    """

    instruction: Instruction
    generic: bool

    def __call__(self, frame: Frame, address: Array, rank: Array, guard: Array | None) -> Array:
        """`address` with the rank in it.

        Raises:
            MisuseError: there is no CTA of that rank, or a generic address is not one of shared memory.
        """
        machine = frame.machine
        blocks = machine.launch.grid.cluster_blocks
        _, lanes, ranks = frame.select(rank, guard)
        if (ranks >= blocks).any():
            bad = int(np.argmax(ranks >= blocks))
            what = f"rank {int(ranks[bad])} of a cluster of {'one block' if blocks == 1 else f'{blocks} blocks'}"
            raise machine.misuse(self.instruction, lanes[bad], what)
        if self.generic:
            _shared(frame, self.instruction, address, guard)
        if blocks == 1:
            return address
        kind = np.asarray(address).dtype.type
        window = kind(SHARED_WINDOW) if self.generic else kind(0)
        offset = address & kind((1 << RANK_SHIFT) - 1)
        return window | offset | ((np.asarray(rank).astype(kind) + kind(1)) << kind(RANK_SHIFT))


@dataclass(frozen=True)
class RankOf:
    """`getctarank`: the rank of the CTA whose shared memory an address lies in."""

    instruction: Instruction
    generic: bool

    def __call__(self, frame: Frame, address: Array, guard: Array | None) -> Array:
        """uint32, one for each vector element.

        Raises:
            MisuseError: a generic address is not one of shared memory.
        """
        if self.generic:
            _shared(frame, self.instruction, address, guard)
        blocks = frame.machine.launch.grid.cluster_blocks
        if blocks == 1:
            return np.uint32(0)
        spread = frame.spread(address).astype(np.uint64)
        spread = spread & np.uint64(SHARED_WINDOW - 1)
        return (owners_of(frame.machine, spread, frame.lanes())[0] % blocks).astype(np.uint32)


def is_own_shared(frame: Frame, address: Array) -> Array:
    """`isspacep.shared::cta`: whether generic addresses lie in the shared memory of the lane's own block."""
    machine = frame.machine
    found = machine.in_space("shared", address)
    if machine.launch.grid.cluster_blocks == 1:
        return found
    spread = frame.spread(address) & np.uint64(SHARED_WINDOW - 1)
    return found & (owners_of(machine, spread, frame.lanes())[0] == machine.lane_cta[frame.lanes()])


def _shared(frame: Frame, instruction: Instruction, address: Array, guard: Array | None) -> None:
    _, lanes, addresses = frame.select(address, guard)
    outside = ~frame.machine.in_space("shared", addresses)
    if outside.any():
        bad = int(np.argmax(outside))
        where = f"address 0x{int(addresses[bad]):X}, which is not in shared memory"
        raise frame.machine.misuse(instruction, lanes[bad], where)
