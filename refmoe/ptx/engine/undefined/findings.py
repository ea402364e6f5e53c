"""The error of a result that depends on an undefined value: where it is used, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass

from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.undefined.origins import Absent, Origin, Origins, Raced, Stored, Uninitialised, Unwritten
from refmoe.ptx.errors import LaneError, UndefinedError
from refmoe.ptx.text.syntax import Instruction


@dataclass(frozen=True)
class Use:
    """A use of an undefined value.

    Attributes:
        sink: what it reaches.
        bits: the undefined ones.
        origin: number of where they came from.
        instruction: which uses it; None for a byte that is left at the end of the launch.
        lane: of the machine.
        buffer, byte: such a byte.
    """

    sink: str
    bits: int
    origin: int
    instruction: Instruction | None
    lane: int
    buffer: str = ""
    byte: int = 0


def finding(machine: Lanes, origins: Origins, used: Use) -> LaneError:
    """The error: a `MemoryFault` of the load where the value came from bytes that nobody wrote, a race of a read."""
    instruction, thread = used.instruction, used.lane + machine.first_thread
    if instruction is None:
        # Whoever stored it last.
        stored = origins.find(used.origin)
        assert isinstance(stored.event, Stored)
        instruction, thread = stored.event.instruction, stored.thread
    root = origins.root(used.origin)
    place = f" (byte {used.byte} of {used.buffer})" if used.buffer else ""
    where = f"reaches {used.sink}{place}: {_where(machine, thread)}, {machine.describe(instruction)}"
    event = root.event
    if isinstance(event, Uninitialised):
        index, byte, lane = (int(each[root.place]) for each in (event.index, event.missing, event.lanes))
        return event.access.uninitialised(event.machine, event.region, index, byte, lane, where)
    if isinstance(event, Raced):
        return event.errors[root.place].used(where)
    block, other = machine.place_of_thread(thread)
    first_block, first_thread = machine.place_of_thread(root.thread)
    maker = event.instruction if isinstance(event, Absent) else None
    return UndefinedError(
        f"an undefined value (bits 0x{used.bits:X}) {where}; {_made(machine, root)}",
        block=block,
        thread=other,
        line=instruction.line,
        source=instruction.source,
        text=instruction.text,
        sink=used.sink,
        bits=used.bits,
        register=event.register if isinstance(event, Unwritten) else None,
        origin_block=first_block,
        origin_thread=first_thread,
        origin_line=None if maker is None else maker.line,
        origin_source=None if maker is None else maker.source,
        origin_text=None if maker is None else maker.text,
    )


def _made(machine: Lanes, root: Origin) -> str:
    """How the value came to be undefined."""
    who, event = _where(machine, root.thread), root.event
    if isinstance(event, Absent):
        lane = int(event.sources[root.place])
        return (
            f"it is what {who} reads from lane {lane}, which does not take part, {machine.describe(event.instruction)}"
        )
    assert isinstance(event, Unwritten)
    return f"it is register {event.register} of {who}, which nothing has written"


def _where(machine: Lanes, thread: int) -> str:
    block, index = machine.place_of_thread(thread)
    return f"block {block} thread {index}"
