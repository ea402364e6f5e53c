"""Blocks that exit: nobody may still use their shared memory, nor arrive at a barrier there."""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.ptx.engine.cluster.arrivals import RemoteArrival, RemoteArrivals
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.errors import RaceError
from refmoe.ptx.state.records import ASYNCHRONOUS, BULK, PENDING, SEVERAL, STEP_SHIFT, THREAD
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
    if clocks is None or instruction is None:
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
        foreign = landed & (agents | ((records & THREAD) // per_cta != machine.first_cta + cta))
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
        record, byte = records[bad], int(index[bad]) - begin
        lane = int(np.flatnonzero(leaving & (machine.lane_cta == cta))[-1])
        other_block, other_thread = machine.place_of_thread(int(record & THREAD))
        fields = machine.at(lane, instruction)
        agent, several = bool(agents[foreign][bad]), bool(record & SEVERAL)
        whom = machine.agent_name(int(record & THREAD)) if agent else f"thread {other_thread} of block {other_block}"
        earlier = None
        if shadow.witness is not None:
            place = int(index[bad]) + machine.first_cta * machine.shared.stride
            earlier = shadow.witness.earlier(machine.shared.name, place, int(record), "exit")
        error = RaceError(
            f"exit race on byte {byte} of shared memory (shared): block {fields['block']} exits, and nothing orders an "
            f"access to its shared memory by {whom} before that; {machine.describe(instruction)}",
            kind="exit",
            space="shared",
            buffer=machine.shared.name,
            offset=byte,
            other_block=other_block,
            other_thread=None if several or agent else other_thread,
            warning="",
            certain=True,
            among=None if agent else other_thread,
            earlier=earlier,
            **fields,
        )
        shadow.found(machine, error, byte, lane)


def _refuse_arrival(
    machine: Lanes, instruction: Instruction, leaving: Any, cta: int, arrival: tuple[int, RemoteArrival] | None
) -> None:
    if arrival is None:
        return
    byte, each = arrival
    lane = int(np.flatnonzero(leaving & (machine.lane_cta == cta))[-1])
    other_block, other_thread = machine.place_of_thread(each.record & int(THREAD))
    fields = machine.at(lane, instruction)
    error = RaceError(
        f"exit race on byte {byte} of shared memory (shared): block {fields['block']} exits, and nothing orders an "
        f"arrival at the mbarrier there by thread {other_thread} of block {other_block} before that, nor has a thread "
        f"of the block seen the phase complete that it counts for; {machine.describe(instruction)}",
        kind="exit",
        space="shared",
        buffer=machine.shared.name,
        offset=byte,
        other_block=other_block,
        other_thread=other_thread,
        warning="",
        certain=True,
        among=other_thread,
        earlier=each.instruction,
        **fields,
    )
    shadow_of(machine.shared).found(machine, error, byte, lane)
