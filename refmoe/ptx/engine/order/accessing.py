"""What the race checks ask of an instruction that accesses memory, and of those who look at an access beside them."""

from __future__ import annotations

from typing import Any, Protocol

from refmoe.ptx.text.syntax import Instruction

Array = Any


class Accessing(Protocol):
    """What records need of an access."""

    @property
    def instruction(self) -> Instruction:
        """For messages."""
        ...

    @property
    def width(self) -> int:
        """Bytes."""
        ...

    @property
    def unit(self) -> int:
        """Bytes of each of the scalar accesses that it is made of."""
        ...

    @property
    def strength(self) -> int:
        """With whom it is morally strong, see `refmoe.ptx.state.records`; 0 for a weak access."""
        ...

    @property
    def observes(self) -> bool:
        """Whether an atomic gives its thread what it read: not `red`."""
        ...

    @property
    def coherent(self) -> bool:
        """False for `.nc`, which may read what was there before the launch."""
        ...


class Guarding(Protocol):
    """What knows of objects in a region that nobody may overwrite, see `refmoe.ptx.engine.mbarrier_table`."""

    def check(self, instruction: Instruction, index: Array, lanes: Array, width: int) -> None:
        """`lanes` [n] are about to write `width` bytes each at byte `index` [n]."""

    def made(self, byte: int) -> int:
        """The record of the write that made the object at a byte."""
