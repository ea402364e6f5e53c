"""What threads saw strongly without acquiring it, and what is ordered but for that.

A thread polls a flag with a relaxed load, or counts itself in with a relaxed atomic, and what it reads then races with
what the flag stands for: only an acquire is missing. NVIDIA's own sample of a last block is written so
(threadFenceReduction), and it is not known to go wrong. So it is a warning, and the same one for the threads that
come after the one that polled, by a barrier of their block.

It stays a fault where the poll takes a lock, or where a thread that only looked then writes: what it reads may be what
was there before another one's turn, and what it then leaves is wrong for all that follow. An atomic that leaves what
was there, such as one that adds zero, only looks.

It stays a fault, too, where the thread has only fenced behind the poll in a scope that is too narrow: whoever fences
means to acquire, and no kernel is known that does so in vain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from refmoe.ptx.state.records import STEP_SHIFT
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.syntax import Instruction

# Atomics that take a lock: whoever finds it free has it.
_LOCKING = ("cas", "exch")


class Knowing(Protocol):
    """What a lane knows, see `refmoe.ptx.engine.order.clocks.Clocks`."""

    now: int

    def record(self, lanes: Any) -> Any:
        """A plain access by `lanes` now."""
        ...

    def known(self, lanes: Any, record: Any) -> Any:
        """Whether the access of each record happens before what each of `lanes` does now."""
        ...


@dataclass(frozen=True, slots=True)
class Poll:
    """A strong read that saw a release.

    Attributes:
        lane: whose.
        step: when.
        releases: what it would have acquired.
        instruction: it.
        changes: whether it left another value than it saw.
    """

    lane: int
    step: int
    releases: Any
    instruction: Instruction
    changes: bool

    def softens(self, kind: str) -> bool:
        """Whether a race of that kind, which an acquire here would order, is but a warning."""
        parts = memory_opcode(self.instruction.opcode)
        if parts is None or parts.operation in _LOCKING:
            return False
        return kind == "write-read" or self.changes


class Polls:
    """Those of some CTAs.

    Args:
        clocks: theirs.
        lanes_of_cta: lanes of one.
    """

    def __init__(self, clocks: Knowing, lanes_of_cta: int) -> None:
        self._clocks, self._lanes_of_cta = clocks, lanes_of_cta
        # By CTA, by lane and location.
        self._polls: dict[int, dict[tuple[int, int], Poll]] = {}
        # By lane and strength, the step of its last fence that acquires.
        self._fences: dict[int, dict[int, int]] = {}

    def saw(self, lane: int, key: int, releases: Any, instruction: Instruction, changes: bool) -> None:
        """A lane has read a location strongly, and left another value there if it `changes` it."""
        held = self._polls.setdefault(lane // self._lanes_of_cta, {})
        held[lane, key] = Poll(lane, self._clocks.now, releases, instruction, changes)

    def fence(self, lanes: Any, strength: int) -> None:
        """`lanes` [n] execute a fence that acquires."""
        for lane in lanes.tolist():
            self._fences.setdefault(lane, {})[strength] = self._clocks.now

    def fenced(self, poll: Poll) -> int:
        """The strength of the widest fence that a poll's thread has executed behind it; 0 for none."""
        fences = self._fences.get(poll.lane, {})
        return max((strength for strength, step in fences.items() if step >= poll.step), default=0)

    def before(self, lane: int) -> list[Poll]:
        """Those that come before what a lane does now: its own first, and then those of its CTA."""
        held = self._polls.get(lane // self._lanes_of_cta, {})
        own = [each for each in held.values() if each.lane == lane]
        others = [each for each in held.values() if each.lane != lane]
        if not others:
            return own
        clocks = self._clocks
        now = clocks.record(np.array([each.lane for each in others]))
        records = now + (np.array([each.step for each in others], np.int64) - clocks.now << STEP_SHIFT)
        known = clocks.known(np.full(len(others), lane), records)
        return own + [each for each, is_known in zip(others, known.tolist(), strict=True) if is_known]
