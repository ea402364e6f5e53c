"""Who is told of what a launch does: every step, or who waited for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from refmoe.ptx.engine.code import View
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.tracer import Tracer
from refmoe.ptx.text.syntax import Instruction

if TYPE_CHECKING:
    from refmoe.ptx.engine.machine import Launch, Machine


class Observer(Protocol):
    """Somebody who is told what a launch does."""

    @property
    def view(self) -> View:
        """How the code is to be made."""
        ...

    def attach(self, launch: Launch) -> None:
        """A launch begins."""
        ...

    def step(self, place: int, frame: Frame) -> None:
        """The lanes of a frame are about to run block `place`."""
        ...

    def at(self, frame: Frame, instruction: Instruction) -> None:
        """The lanes of a frame are about to run an instruction; only where the view says so."""
        ...


class Tracing(Protocol):
    """What takes down who waited for whom."""

    def tracer(self, machine: Machine) -> Tracer:
        """What a machine reports to."""
        ...
