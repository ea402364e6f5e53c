"""What an observer of a launch asks of the code that runs: a profile and a debugger see what native code hides.

An observer has a *view*: how the code of an entry is made for it. Plain code has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from refmoe.ptx.text.syntax import Instruction

if TYPE_CHECKING:
    from refmoe.ptx.engine.frame import Frame
    from refmoe.ptx.engine.machine import Launch


@dataclass(frozen=True)
class View:
    """How the code of an entry is made.

    Attributes:
        name: of the view; one entry is compiled once for each.
        native: whether an instruction that has native code may use it.
        alone: each instruction is a piece of its own, every register has a home, and `Observer.at` is called in front
            of each instruction.
        seen: of an object that generated code calls, the one that takes its place.
    """

    name: str
    native: Callable[[Instruction], bool]
    alone: bool
    seen: Callable[[Any], Any]


PLAIN = View("plain", lambda _: True, False, lambda work: work)


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


def announce(frame: Frame, instruction: Instruction) -> None:
    """What generated code calls in front of an instruction."""
    observer = frame.machine.launch.observer
    assert observer is not None
    observer.at(frame, instruction)
