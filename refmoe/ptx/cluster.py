"""Clusters have one CTA here: addresses of other CTAs' shared memory do not exist, and ranks are 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.ptx.syntax import Instruction

if TYPE_CHECKING:
    from refmoe.ptx.frame import Frame

Array = Any


@dataclass(frozen=True)
class MapAddress:
    """`mapa`: the address in CTA `rank` of the cluster that corresponds to an own one; that of rank 0 is itself.

    Attributes:
        instruction: for messages.
        generic: whether the address is generic, else it is one of shared memory.
    """

    instruction: Instruction
    generic: bool

    def __call__(self, frame: Frame, address: Array, rank: Array, guard: Array | None) -> Array:
        """`address` as it is.

        Raises:
            MisuseError: there is no CTA of that rank, or a generic address is not one of shared memory.
        """
        _, lanes, ranks = frame.select(rank, guard)
        if (ranks != 0).any():
            bad = int(np.argmax(ranks != 0))
            what = f"rank {int(ranks[bad])} of a cluster of one block"
            raise frame.machine.misuse(self.instruction, lanes[bad], what)
        if self.generic:
            _shared(frame, self.instruction, address, guard)
        return address


@dataclass(frozen=True)
class RankOf:
    """`getctarank`: the rank of the CTA whose shared memory an address lies in."""

    instruction: Instruction
    generic: bool

    def __call__(self, frame: Frame, address: Array, guard: Array | None) -> Array:
        """0.

        Raises:
            MisuseError: a generic address is not one of shared memory.
        """
        if self.generic:
            _shared(frame, self.instruction, address, guard)
        return np.uint32(0)


def _shared(frame: Frame, instruction: Instruction, address: Array, guard: Array | None) -> None:
    _, lanes, addresses = frame.select(address, guard)
    outside = ~frame.machine.in_space("shared", addresses)
    if outside.any():
        bad = int(np.argmax(outside))
        where = f"address 0x{int(addresses[bad]):X}, which is not in shared memory"
        raise frame.machine.misuse(instruction, lanes[bad], where)
