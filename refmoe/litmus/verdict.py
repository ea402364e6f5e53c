"""What is found of a program: its outcomes, its races, and what is open.

Numbers of sections are those of the PTX ISA manual, 9.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

When = Literal["never", "always", "in some interleaving", "in weak executions only"]


@dataclass(frozen=True, order=True)
class Race:
    """Two accesses that no order and no moral strength keeps apart (8.7.1).

    Attributes:
        first, second: the accesses, by (thread, step of it, text).
        reason: why they are not morally strong, and what order is missing.
    """

    first: tuple[int, int, str]
    second: tuple[int, int, str]
    reason: str

    def __str__(self) -> str:
        one, other = (f"thread {thread}: {text}" for thread, _, text in (self.first, self.second))
        return f"{one} | {other} | {self.reason}"


@dataclass(frozen=True)
class ModelVerdict:
    """What the model says of a program.

    Attributes:
        outcomes: what may be seen afterwards: values of `Program.registers`, then of the cells of global memory. None
            if there is a mixed-size race, of which the model says nothing (8.7.2).
        races: that some execution has.
        when: which executions have a race: all, some interleaving of the threads' instructions, or only such as no
            interleaving gives.
        open: what the manual leaves open on which the verdict depends.
        executions: consistent ones that were found; none if every way waits for ever.
    """

    outcomes: frozenset[tuple[int, ...]] | None
    races: tuple[Race, ...]
    when: When
    open: tuple[str, ...]
    executions: int

    @property
    def racy(self) -> bool:
        """Whether some execution has a race."""
        return bool(self.races)
