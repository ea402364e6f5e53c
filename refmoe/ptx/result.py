"""What a launch that ended well did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from refmoe.ptx.engine.previous_grid import TouchedBytes
from refmoe.ptx.errors import LaneError, RaceError


@dataclass(frozen=True)
class LaunchResult:
    """What a launch that ended well did.

    Attributes:
        lane_instructions: instructions times the lanes that ran them (a lane whose guard is off counts).
        instructions: vector instructions: each counts once for all lanes that ran it together.
        approximate: (opcode, line) of approximate instructions whose results were not all provably exact.
        approximate_at: of each of these its place in the source and where the function that it is in was inlined, both
            `file:line`, or None where the text does not say it.
        contraction_possible: lines of FP add, sub and mul without a rounding suffix, which ptxas may fuse.
        seconds: of execution, without compilation.
        models: accumulation models that stand for the entry's tensor-core instructions, by name, and the weakest
            evidence that any of them rests on (`refmoe.reference.mma.Evidence`).
        warnings: accesses against the letter of PTX that are not known to go wrong, see `RaceError.warning`.
        left_undefined: undefined values that it left in workspaces, as the error that each of them is in a result: one
            for each store and register or instruction that they came from. It is no fault until somebody uses them.
        schedules: legal schedules under which it ran, with the same bytes under all. What is counted here is of the
            first.
        waited: whether some thread waited for the grid before this one (`griddepcontrol.wait`). It is known only for a
            launch that may start before that grid has ended, and with the check of races. If no thread waited, this
            grid may end before the other one does.
        writes, reads: with `keep_accesses` and the check of races, the bytes of its buffers that it wrote, and those
            that it read. Of a byte that it read and then wrote, the read may be left out.
    """

    lane_instructions: int
    instructions: int
    approximate: tuple[tuple[str, int], ...]
    contraction_possible: tuple[int, ...]
    seconds: float
    models: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[RaceError, ...] = ()
    left_undefined: tuple[LaneError, ...] = ()
    schedules: int = 1
    approximate_at: tuple[tuple[str | None, str | None], ...] = ()
    waited: bool = False
    writes: tuple[TouchedBytes, ...] = ()
    reads: tuple[TouchedBytes, ...] = ()
