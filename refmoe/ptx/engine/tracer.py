"""What lanes report of their synchronisation: barriers, phases, copies. `refmoe.ptx.observe.trace` takes it down."""

from __future__ import annotations

from typing import Any

from refmoe.ptx.text.syntax import Instruction

Array = Any


class Tracer:
    """What a machine reports to when nobody listens."""

    def mbarrier(self, kind: str, instruction: Instruction, lanes: Array, ids: Array, amounts: Array | int = 0) -> None:
        """Each of `lanes` [n] did something to the object `ids` [n]."""

    def completed(self, ids: Array) -> None:
        """The present phases of objects `ids` [n] are complete."""

    def woken(self, kind: str, lanes: Array) -> None:
        """The parked lanes at which bool `lanes` [lanes of the machine] is on go on."""

    def named(self, kind: str, instruction: Instruction | None, lanes: Array, numbers: Array | int) -> None:
        """Lanes at which bool `lanes` [lanes of the machine] is on come to the named barrier `numbers`, or go on."""

    def copies(self, kind: str, instruction: Instruction, lanes: Array, amounts: Array | int = 0) -> None:
        """Copies of each of `lanes` [n], of so many bytes each."""
