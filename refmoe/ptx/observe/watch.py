"""Who wrote these bytes: a watchpoint on a buffer.

    watch = Watch("out", first=1234, size=2)
    launch(module, entry, grid, block, args, watch=watch)
    print(watch.text())

It sees stores, atomics and bulk copies into device memory, each when it is carried out: a bulk copy when its group is
waited for, as a write of the thread that issued it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refmoe.errors import ArgumentError, describe
from refmoe.ptx.errors import Index3
from refmoe.ptx.state.memory import Arena, Region
from refmoe.ptx.text.syntax import Instruction

Array = Any


@dataclass(frozen=True)
class Write:
    """One lane's write of bytes that are watched.

    Attributes:
        step: of the launch, counted from 1.
        block, thread: of the lane, (x, y, z).
        line: of the instruction in the PTX text, 1-based.
        source: `file:line` of the `.loc` directive in force, or None.
        text: the instruction.
        offset: byte of the buffer at which the write begins, watched or not.
        size: bytes that it writes.
        value: what the watched bytes hold after it.
    """

    step: int
    block: Index3
    thread: Index3
    line: int
    source: str | None
    text: str
    offset: int
    size: int
    value: bytes

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        where = f"step {self.step}, block {self.block} thread {self.thread}"
        bytes_ = f"bytes {self.offset}..{self.offset + self.size - 1}"
        return f"{where} writes {bytes_}, then {self.value.hex(' ')}; line {self.line}{source}: {self.text}"


@dataclass
class Watch:
    """A watchpoint; give it to `refmoe.ptx.launch`, or to several. A launch that fails leaves what came before.

    Attributes:
        buffer: name of the buffer.
        first: its first byte that is watched.
        size: bytes watched.
        writes: what was seen, in order.
    """

    buffer: str
    first: int
    size: int = 1
    writes: list[Write] = field(default_factory=list)

    def mark(self) -> Callable[[], None]:
        """What forgets all that is taken down from now on."""
        seen = len(self.writes)

        def forget() -> None:
            del self.writes[seen:]

        return forget

    def attach(self, arena: Arena) -> None:
        """Watch the buffer of that name among the buffers of a launch.

        Raises:
            ArgumentError: there is none, or it has no such bytes.
        """
        named = {region.name: region for region in arena.regions if region.space == "global"}
        if self.buffer not in named:
            raise ArgumentError("watch", describe(self.buffer), f"a buffer of the launch: {', '.join(named) or 'none'}")
        region = named[self.buffer]
        if self.size < 1 or not 0 <= self.first <= region.size - self.size:
            found = f"{self.size} bytes from {self.first} on"
            raise ArgumentError("watch", found, f"bytes of {self.buffer}, which has {region.size}")
        region.watch = self

    def wrote(
        self,
        step: int,
        place_of: Callable[[int], tuple[Index3, Index3]],
        instruction: Instruction,
        region: Region,
        index: Array,
        width: int,
        lanes: Array,
    ) -> None:
        """See `refmoe.ptx.state.memory.Watching`."""
        hits = (index < self.first + self.size) & (index + width > self.first)
        for position in np.flatnonzero(hits).tolist():
            block, thread = place_of(int(lanes[position]))
            self.writes.append(
                Write(
                    step,
                    block,
                    thread,
                    instruction.line,
                    instruction.source,
                    instruction.text,
                    int(index[position]),
                    width,
                    region.bytes(self.first, self.size).tobytes(),
                )
            )

    def text(self) -> str:
        """The writes for people, a line each."""
        last = self.first + self.size - 1
        head = f"bytes {self.first}..{last} of {self.buffer}: {len(self.writes) or 'no'} writes"
        return "\n".join([head, *map(str, self.writes)]) + "\n"
