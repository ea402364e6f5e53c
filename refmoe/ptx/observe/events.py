"""What a trace is made of: things that warps did at barriers, and that happened to barriers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from refmoe.ptx.errors import Index3

#: What an event says happened.
KINDS: Mapping[str, str] = {
    "init": "the mbarrier is initialised for `amount` arrivals a phase",
    "park": "its lanes wait: the phase is not complete",
    "wake": "the phase is complete, its lanes look again",
    "give up": "nothing else can run: its lanes go on as after the time limit of try_wait",
    "pass": "its lanes see the phase complete",
    "arrive": "it arrives `amount` times, or copies of its do",
    "announce": "its copies will arrive `amount` times, once they have landed",
    "expect": "transactions of this phase owe `amount` bytes more",
    "complete": "transactions of this phase owe `amount` bytes less",
    "phase": "all that the phase expects has come; no warp's doing",
    "bar": "it comes to a named barrier",
    "leave": "it goes on from a named barrier",
    "copy": "it issues asynchronous copies of `amount` bytes",
    "land": "`amount` bytes of its copies land",
}


@runtime_checkable
class Rewinds(Protocol):
    """Somebody who takes down what launches do, and can forget what one did that runs again."""

    def mark(self) -> Callable[[], None]:
        """What forgets all that is taken down from now on."""
        ...


@dataclass(frozen=True)
class TraceEvent:
    """One thing that one warp did, or that happened to one barrier.

    Attributes:
        launch: which of the launches that the trace was given to, from 0.
        step: of the launch, counted from 1.
        block: index of the CTA in the grid, (x, y, z).
        warp: of the CTA; None where no warp acts.
        lanes: how many of its lanes take part, 0 where no warp acts.
        kind: a key of `KINDS`.
        barrier: name of the barrier, or None.
        address: of an mbarrier, in shared memory; None otherwise.
        phase: of that mbarrier, counted from 0: the one awaited, seen complete, arrived in, or complete now.
        amount: arrivals, or bytes; see `KINDS`.
        line: of the instruction in the PTX text; 0 where none is.
        text: the instruction.
    """

    launch: int
    step: int
    block: Index3
    warp: int | None
    lanes: int
    kind: str
    barrier: str | None
    address: int | None
    phase: int | None
    amount: int
    line: int
    text: str
