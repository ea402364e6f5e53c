"""How code is made for the observer of a launch: a profile and a debugger see what native code hides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from refmoe.ptx.text.syntax import Instruction


@dataclass(frozen=True)
class View:
    """How the code of an entry is made.

    Attributes:
        name: of the view; one entry is compiled once for each.
        native: whether an instruction that has native code may use it.
        alone: each instruction is a piece of its own, every register has a home, and the observer's `at` is called in
            front of each instruction.
        seen: of an object that generated code calls, the one that takes its place.
    """

    name: str
    native: Callable[[Instruction], bool]
    alone: bool
    seen: Callable[[Any], Any]


PLAIN = View("plain", lambda _: True, False, lambda work: work)
