"""Blocks that exit: nobody may still use their shared memory, nor change the counts of a barrier there."""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.ptx.engine.cluster.arrivals import RemoteArrival, RemoteArrivals
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.errors import Index3, RaceError, WrittenInstruction
from refmoe.ptx.state.records import (
    ASYNCHRONOUS,
    BULK,
    PENDING,
    SEVERAL,
    SEVERAL_SHIFT,
    STEP_SHIFT,
    THREAD,
    Several,
)
from refmoe.ptx.text.syntax import Instruction


def refuse_early_exit(
    machine: Lanes, instruction: Instruction | None, leaving: Any, arrivals: RemoteArrivals, objects: Any
) -> None:
    """Blocks whose last lanes are `leaving` (bool of all lanes) must not take away what others still use.

    Args:
        machine: the lanes.
        instruction: that ends them.
        leaving: bool of all lanes.
        arrivals: of lanes at mbarriers of other blocks.
        objects: int64, the byte of all shared memory where each mbarrier lies.

    Raises:
        RaceError: an access or an arrival of another block in their shared memory is not ordered before any of their
            exits.
    """
    clocks = machine.clocks
    if clocks is None or instruction is None or machine.shared.shadow is None:
        return
    shadow = shadow_of(machine.shared)
    per_cta = machine.warps * 32
    staying = (machine.alive & ~leaving).reshape(machine.ctas, per_cta).any(axis=1)
    ended = leaving.reshape(machine.ctas, per_cta).any(axis=1) & ~staying
    for cta in np.flatnonzero(ended).tolist():
        begin = cta * machine.shared.stride
        index, records = shadow.records(begin, begin + machine.shared.stride)
        # Copies that have not landed are for the bulk copies' own check to find.
        landed = records >> STEP_SHIFT != PENDING
        agents = records & (BULK | ASYNCHRONOUS) == BULK
        # The last of several may be of the own block where the others are not.
        among = (records & SEVERAL) >> SEVERAL_SHIFT >= int(Several.WARPS)
        foreign = landed & (agents | among | ((records & THREAD) // per_cta != machine.first_cta + cta))
        index, records = index[foreign], records[foreign]
        # Most bytes are those of few accesses, and what one warp knows of need not be asked of the others.
        unordered = np.unique(records)
        for warp in range(cta * machine.warps, (cta + 1) * machine.warps):
            if not unordered.size:
                break
            unordered = unordered[~clocks.ordered(np.full(len(unordered), warp * 32), unordered)]
        if not unordered.size:
            _refuse_arrival(machine, instruction, leaving, cta, arrivals.unordered(machine, cta, objects))
            continue
        bad = int(np.argmax(np.isin(records, unordered)))
        record, byte = int(records[bad]), int(index[bad]) - begin
        thread, agent = record & int(THREAD), bool(agents[foreign][bad])
        block, other = machine.place_of_thread(thread)
        whom = machine.agent_name(thread) if agent else f"thread {other} of block {block}"
        what = f"an access to its shared memory by {whom} before that"
        earlier = None
        if shadow.witness is not None:
            place = int(index[bad]) + machine.first_cta * machine.shared.stride
            earlier = shadow.witness.earlier(machine.shared.name, place, record, "exit")
        known = None if agent or record & int(SEVERAL) else other
        # One that stands for several accesses has the step of the last of them, which others may have known to be over.
        certain = not record & int(SEVERAL)
        _refuse(
            machine, instruction, leaving, cta, byte, thread, what, earlier, known, None if agent else other, certain
        )


def _refuse_arrival(
    machine: Lanes, instruction: Instruction, leaving: Any, cta: int, arrival: tuple[int, RemoteArrival] | None
) -> None:
    if arrival is None:
        return
    byte, each = arrival
    thread = each.record & int(THREAD)
    block, other = machine.place_of_thread(thread)
    what, seen = "an arrival", "the phase complete that it counts for"
    if not each.counts:
        what, seen = f"{each.instruction.opcode.partition('_tx')[0]}_tx", "a phase complete in which it then arrived"
    what += f" at the mbarrier there by thread {other} of block {block} before that, nor has a thread of the block"
    what += f" seen {seen}"
    _refuse(machine, instruction, leaving, cta, byte, thread, what, each.instruction, other, other)


def _refuse(
    machine: Lanes, instruction: Instruction, leaving: Any, cta: int, byte: int, thread: int, what: str,
    earlier: WrittenInstruction | None, other: Index3 | None, among: Index3 | None, certain: bool = True,
) -> None:  # fmt: skip
    """A CTA exits, and nothing orders `what` before that, by a thread of the launch at a byte of its shared memory."""
    lane = int(np.flatnonzero(leaving & (machine.lane_cta == cta))[-1])
    fields = machine.at(lane, instruction)
    error = RaceError(
        f"exit race on byte {byte} of shared memory (shared): block {fields['block']} exits, and nothing orders "
        f"{what}; {machine.describe(instruction)}",
        kind="exit",
        space="shared",
        buffer=machine.shared.name,
        offset=byte,
        other_block=machine.place_of_thread(thread)[0],
        other_thread=other,
        warning="",
        certain=certain,
        among=among,
        earlier=earlier,
        **fields,
    )
    shadow_of(machine.shared).found(machine, error, byte, lane)
