"""Accesses of one region that were taken down, found by byte and thread.

They lie in runs that are sorted by first byte. What is new becomes a run when somebody asks, and runs of like size
become one: a search looks at few runs, however many accesses there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refmoe.ptx.state.records import PENDING
from refmoe.ptx.text.syntax import Instruction

Array = Any
# Instructions whose accesses an agent makes, see `refmoe.ptx.engine.order.clocks`.
_COPIES = ("cp.async.bulk", "cp.reduce.async.bulk", "st.async", "red.async", "wgmma.mma_async", "clusterlaunchcontrol")
# An access as a search sees it; `number` is that of its instruction's step, in the order of taking.
_ACCESS = np.dtype(
    [("begin", "i8"), ("end", "i8"), ("thread", "i8"), ("step", "i8"), ("number", "i8")]
    + [(name, "?") for name in ("writes", "reads", "copies")]
)


@dataclass(frozen=True)
class Sought:
    """The access that a record is of.

    Attributes:
        byte: one that it touched, among those of the whole launch.
        thread: that made it; None for an agent, which stands for the thread that issued its copies.
        step: in which, see `refmoe.ptx.state.records`; `PENDING` for one that may not have ended.
        writes: whether the record is of a write; else of a read.
    """

    byte: int
    thread: int | None
    step: int
    writes: bool


class _Run(NamedTuple):
    """Accesses sorted by first byte; `begins` are these bytes alone, in one piece."""

    begins: Array
    rows: Array


class TakenAccesses:
    """The accesses of one region, in the order in which they were taken down; the oldest are forgotten.

    Args:
        most: that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._instructions: list[Instruction] = []
        self._new: list[Array] = []
        self._runs: list[_Run] = []
        self._widest = 1

    def add(
        self, instruction: Instruction, step: int, begin: Array, width: int, threads: Array, writes: bool, reads: bool
    ) -> None:
        """Take down accesses of `width` bytes at byte `begin` [n] by `threads` [n]."""
        rows = np.empty(len(begin), _ACCESS)
        rows["begin"], rows["end"], rows["thread"], rows["step"] = begin, begin + width, threads, step
        rows["number"], rows["writes"], rows["reads"] = len(self._instructions), writes, reads
        rows["copies"] = instruction.opcode.startswith(_COPIES)
        self._instructions.append(instruction)
        self._new.append(rows)
        self._widest = max(self._widest, width)

    def lines(self) -> frozenset[int]:
        """The lines of all instructions that were taken down."""
        return frozenset(each.line for each in self._instructions)

    def find(self, sought: Sought) -> Instruction | None:
        """The instruction of an access: of that step if there is one, of that kind, and the latest; None for none."""
        self._settle()
        parts = [self._among(run, sought) for run in self._runs]
        found = np.concatenate([np.empty(0, _ACCESS), *parts])
        if not len(found):
            return None
        found = _best(found, found["step"] == sought.step)
        found = _best(found, found["writes" if sought.writes else "reads"])
        found = _best(found, found["step"] == found["step"].max())
        return self._instructions[int(found["number"].max())]

    def _among(self, run: _Run, sought: Sought) -> Array:
        """The rows of a run that may be it."""
        first, end = np.searchsorted(run.begins, [sought.byte - self._widest + 1, sought.byte + 1])
        rows = run.rows[first:end]
        fits = rows["end"] > sought.byte
        fits &= rows["copies"] if sought.thread is None else rows["thread"] == sought.thread
        if sought.step != PENDING:
            fits &= rows["step"] <= sought.step
        return rows[fits]

    def _settle(self) -> None:
        """What is new becomes a run, and goes together with runs that are not much longer."""
        if not self._new:
            return
        last, self._new = np.concatenate(self._new), []
        while self._runs and len(self._runs[-1].rows) <= 2 * len(last):
            last = np.concatenate([self._runs.pop().rows, last])
        if len(last) > self._most:
            last = last[np.argsort(last["number"], kind="stable")[-self._most :]]
        last = last[np.argsort(last["begin"], kind="stable")]
        self._runs.append(_Run(np.ascontiguousarray(last["begin"]), last))


def _best(rows: Array, better: Array) -> Array:
    """The rows that are better, if any is; else all."""
    return rows[better] if better.any() else rows
