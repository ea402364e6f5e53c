"""Blocks that exit: nobody may still use their shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.races import shadow_of
from refmoe.ptx.errors import RaceError
from refmoe.ptx.state.records import ASYNCHRONOUS, BULK, PENDING, SEVERAL, STEP_SHIFT, THREAD
from refmoe.ptx.text.syntax import Instruction


def refuse_early_exit(machine: Lanes, instruction: Instruction | None, leaving: Any) -> None:
    """Blocks whose last lanes are `leaving` (bool of all lanes) must not take away what others still use.

    Raises:
        RaceError: an access of another block to their shared memory is not ordered before any of their exits.
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
