"""Which blocks of a grid run at the same time: a model of multiprocessors, and the order in which blocks start.

A block is resident from its start to its end. A chip has room for so many blocks, and the next one starts when one has
ended. Blocks that poll memory let the others run. So a block may wait for another that is resident, or that has ended,
but not for one that cannot start before it ends itself.

How many blocks share a multiprocessor follows from their threads and their shared memory, and from the registers of a
thread where `.maxnreg` states them. Clusters are counted by their blocks; that those of a cluster also have to lie
near each other is left out.

Source: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.chips import CHIPS, Chip, compute_capability
from refmoe.ptx.engine.machine import Launch, Machine
from refmoe.ptx.engine.tensor.register_pool import REGISTERS
from refmoe.ptx.errors import CoResidencyError, Deadlock, Index3, PtxError
from refmoe.ptx.grid import BlockQueue, Grid
from refmoe.ptx.program.blocks import Program, polling_instruction
from refmoe.ptx.text.syntax import Instruction

Array = Any


# Registers are given to a warp in such pieces.
_REGISTER_UNIT = 256
# Of each block, the system keeps this much shared memory beside its own.
_RESERVED_BYTES = 1024
_SHOWN = 3


@dataclass(frozen=True)
class Residency:
    """How many blocks can be resident.

    Attributes:
        multiprocessors: of the chip.
        blocks: that share one.
    """

    multiprocessors: int
    blocks: int

    @property
    def most(self) -> int:
        """Blocks on the whole chip."""
        return self.multiprocessors * self.blocks

    def __str__(self) -> str:
        return f"{self.most} ({self.multiprocessors} multiprocessors with {self.blocks} each)"


def chip_of(target: str) -> Chip:
    """The chip that a module's target stands for: of those that can run it, the one with the fewest multiprocessors.

    A target that the table does not have is taken for that of a newer chip, which runs it too.
    """
    capability = compute_capability(target)
    chips = list(CHIPS.values())
    same = [chip for chip in chips if chip.compute_capability == capability]
    newer = [chip for chip in chips if chip.compute_capability > capability]
    return min(same or newer or chips, key=fewest_multiprocessors)


def fewest_multiprocessors(chip: Chip) -> int:
    """Of all its products."""
    return min(product.multiprocessors for product in chip.products)


def residency(chip: Chip, warps: int, shared_bytes: int, registers: int | None, multiprocessors: int) -> Residency:
    """How many blocks of `warps` warps, which each has at least room for one, are resident on a chip.

    Args:
        chip: where they run.
        warps: of a block.
        shared_bytes: of a block.
        registers: of a thread, or None where nobody states them.
        multiprocessors: of the chip.
    """
    limits = [
        chip.resident_blocks,
        chip.resident_threads // (32 * warps),
        chip.resident_bytes // (shared_bytes + _RESERVED_BYTES),
    ]
    if registers is not None:
        of_a_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        limits.append(REGISTERS // (of_a_warp * warps))
    return Residency(multiprocessors, max(1, min(limits)))


def run_blocks(launch: Launch, queue: BlockQueue, resident: Residency, at_once: int) -> None:
    """Run blocks in launch order, as many at a time as can be resident.

    Args:
        launch: whose blocks.
        queue: the blocks, in whole clusters.
        resident: how many there may be.
        at_once: how many run together in one machine.

    Raises:
        CoResidencyError: all that are resident poll for a block that cannot start before one of them ends.
        Deadlock: they poll for what no block will write.
        PtxError: whatever went wrong in one of them.
    """
    grid, ticks = launch.grid, launch.ticks
    launch.queue = queue
    at_once = _whole_clusters(at_once, grid)
    # A cluster that is larger than the chip would never start: refused before, or run where it was allowed.
    most = _whole_clusters(resident.most, grid)
    stalled: list[Machine] = []
    while len(queue) or stalled:
        free = most - sum(map(_unfinished, stalled))
        if len(queue) and free >= grid.cluster_blocks:
            machine = _start(launch, queue, min(at_once, _whole_clusters(free, grid)))
            if not machine.run():
                stalled.append(machine)
                continue
            launch.put_back(machine)
        before, reads, changed = list(map(_unfinished, stalled)), ticks.reads, launch.arena.changes
        stalled = [machine for machine in stalled if not _ends(machine)]
        after = list(map(_unfinished, stalled))
        can_start = len(queue) and most - sum(after) >= grid.cluster_blocks
        if can_start or after != before or not stalled or launch.arena.changes != changed:
            ticks.settle()
        elif ticks.reads == reads or not ticks.leap():
            if len(queue):
                _refuse_waiting_for_later_blocks(launch, queue, stalled, resident, at_once)
            waiting = [line for machine in stalled for line in machine.waiting()]
            raise Deadlock(
                "lanes poll memory that nothing will change:\n  " + "\n  ".join(waiting), waiting=tuple(waiting)
            )


def _whole_clusters(blocks: int, grid: Grid) -> int:
    """At most so many blocks, in whole clusters, but not less than one."""
    return max(1, blocks // grid.cluster_blocks) * grid.cluster_blocks


def _unfinished(machine: Machine) -> int:
    """Its blocks that have not ended."""
    return int(machine.alive.reshape(machine.ctas, -1).any(axis=1).sum())


def _ends(machine: Machine) -> bool:
    """Run blocks that had to wait for others; if they end, their memory goes at once."""
    ended = machine.run()
    if ended:
        machine.release()
    return ended


def _start(launch: Launch, queue: BlockQueue, most: int) -> Machine:
    part = queue.take(most)
    return launch.machine(part.start, len(part))


def _refuse_waiting_for_later_blocks(
    launch: Launch, queue: BlockQueue, stalled: list[Machine], resident: Residency, at_once: int
) -> None:
    """Raise if those that poll come on once more blocks run than can be resident; else they wait for nobody."""
    error = _polling_error(launch, stalled, resident, len(queue))
    printed = len(launch.printed)
    if _come_on(launch, queue, stalled, at_once):
        # What blocks printed that a chip would never have started.
        del launch.printed[printed:]
        raise error


def _come_on(launch: Launch, queue: BlockQueue, stalled: list[Machine], at_once: int) -> bool:
    """Whether some of `stalled` pass their loops when the rest of the queue runs beside them."""
    later: list[Machine] = []
    try:
        while True:
            before = launch.arena.changes
            if len(queue):
                later.append(_start(launch, queue, at_once))
            later = [machine for machine in later if not _ends(machine)]
            for waiting in stalled:
                changes = launch.arena.changes
                if waiting.run() or launch.arena.changes != changes:
                    return True
            if not len(queue) and launch.arena.changes == before:
                break
    except PtxError:
        # Something else is wrong with them as well. It is for the launch in which all of them are resident to tell.
        return True
    stalled += later
    return False


def _polling(program: Program, instruction: Instruction | None) -> Instruction | None:
    """What polls in the loop that lanes go round, which are in front of an instruction."""
    places = [block.index for block in program.blocks if instruction in block.instructions]
    return (polling_instruction(program, places[0]) if places else None) or instruction


def _polling_error(launch: Launch, stalled: list[Machine], resident: Residency, waiting: int) -> CoResidencyError:
    """The error of blocks that wait for one that cannot start."""
    blocks: list[Index3] = []
    polling: Instruction | None = None
    for machine in stalled:
        nobody = np.zeros(machine.lanes, bool)
        for state, instruction, lanes in machine.whereabouts(nobody):
            if state != "ready":
                continue
            if polling is None:
                polling = _polling(machine.code.program, instruction)
            per_cta = machine.warps * 32
            blocks += [machine.place_of(cta * per_cta)[0] for cta in np.unique(machine.lane_cta[lanes]).tolist()]
    blocks = sorted(set(blocks), key=launch.grid.number)
    where = "" if polling is None else f" at {stalled[0].describe(polling)}"
    shown = ", ".join(map(str, blocks[:_SHOWN])) + (f", ... and {blocks[-1]}" if len(blocks) > _SHOWN else "")
    are = f"{len(blocks)} blocks poll" if len(blocks) != 1 else "1 block polls"
    return CoResidencyError(
        f"needs co-residency, not launched cooperatively: {are}{where}; they need one of {waiting} blocks that cannot "
        f"start before a resident one ends, and at most {resident} are resident; polling: {shown}",
        line=None if polling is None else polling.line,
        source=None if polling is None else polling.source,
        text=None if polling is None else polling.text,
        blocks=tuple(blocks),
        resident=resident.most,
        waiting=waiting,
    )
