"""`setmaxnreg`: all warps of a warpgroup execute it (PTX ISA, "setmaxnreg": else the behaviour is undefined).

How many registers a warp owns changes no result. The warps of a role may have one in each branch, as those of CUTLASS's
kernels do; so what is compared is how many a warp has executed when its warpgroup has exited.

Registers only move between the warps of a block:

     384 threads, 168 registers each            dec 24    inc 240   inc 240
    +---------+---------+---------+           +-----+-----------+-----------+
    |   168   |   168   |   168   |    --->   | 24  |    240    |    240    |    504 in all, before and after
    +---------+---------+---------+           +-----+-----------+-----------+

An `.inc` waits until the pool of its block has enough. If the warps ask for more than all of them began with, one waits
for ever. That is found at the end of a block, where the number of registers at the start is known. An H200 waits for
ever in just these cases; there a warp that exits keeps what it has (`pytest -m gpu tests/ptx/tensor_cores`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.tensor.matrix import whole_warps
from refmoe.ptx.errors import Deadlock, WarpError
from refmoe.ptx.text.syntax import Immediate, Instruction
from refmoe.ptx.text.wgmma import WARPS

Array = Any
#: Registers of a multiprocessor, and those that a thread may have.
REGISTERS, _MOST = 65536, 256
#: Threads have a multiple of these. Each of so many parts of a multiprocessor has its share of registers and of warps.
_UNIT, _PARTS = 8, 4


def registers_at_start(directives: Mapping[str, tuple[int, ...]]) -> tuple[int, str] | None:
    """Registers of each thread at the start of a kernel, at most, and the directives that say so; None if none does.

    Those that `.maxnreg` states; or what is left for each thread if `.minnctapersm` blocks of `.maxntid` threads share
    a multiprocessor, as for example 168 with one block of 384. Without any of these the assembler ignores `setmaxnreg`.

    Args:
        directives: of the entry, by name.
    """
    known: list[tuple[int, str]] = []
    if most := directives.get("maxnreg"):
        known.append((-(-most[0] // _UNIT) * _UNIT, f".maxnreg {most[0]}"))
    blocks = directives.get("minnctapersm", (0,))[0]
    for name in ("maxntid", "reqntid"):
        if blocks and (shape := directives.get(name)):
            warps = -(-blocks * -(-math.prod(shape) // 32) // _PARTS) * _PARTS
            each = REGISTERS // (32 * warps) // _UNIT * _UNIT
            known.append((each, f".minnctapersm {blocks} and .{name} {', '.join(map(str, shape))}"))
    if not known:
        return None
    count, why = min(known)
    return min(count, _MOST), why


class RegisterPool:
    """How often warps of some CTAs have executed `setmaxnreg`, and how many registers they own.

    Args:
        machine: their lanes.
        directives: of the entry, by name.
    """

    def __init__(self, machine: Lanes, directives: Mapping[str, tuple[int, ...]]) -> None:
        self._machine = machine
        warps = machine.lanes // 32
        self._counts = np.zeros(warps, np.int64)
        self._last: dict[int, Instruction] = {}
        self._start = registers_at_start(directives)
        # Of each thread of a warp.
        self._owned = np.full(warps, 0 if self._start is None else self._start[0])
        # By CTA, the warp that asked for more the last time, and how.
        self._asked: dict[int, tuple[int, Instruction]] = {}

    def executed(self, instruction: Instruction, mask: Array) -> None:
        """The warps of some lanes execute one."""
        warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1))
        self._counts[warps] += 1
        self._last.update(dict.fromkeys(warps.tolist(), instruction))
        if self._start is None:
            return
        (count,) = instruction.operands
        assert isinstance(count, Immediate)
        self._owned[warps] = count.value
        if instruction.opcode.startswith("setmaxnreg.inc"):
            self._asked.update((warp // self._machine.warps, (warp, instruction)) for warp in warps.tolist())

    def leave(self) -> None:
        """Lanes have exited.

        Raises:
            WarpError: all of a warpgroup have, and some of its warps have executed fewer than the others.
            Deadlock: all of a block have, and they have asked for more registers than the block has.
        """
        if not self._last:
            return
        machine, counts = self._machine, self._counts
        alive: Array = machine.alive.reshape(-1, 32).any(axis=1)
        self._look_for_too_many(alive)
        firsts = (np.arange(0, len(counts), machine.warps)[:, None] + np.arange(0, machine.warps, WARPS)).ravel()
        uneven = np.minimum.reduceat(counts, firsts) != np.maximum.reduceat(counts, firsts)
        if not np.count_nonzero(uneven):
            return
        gone = np.flatnonzero(uneven & ~np.logical_or.reduceat(alive, firsts))
        if not gone.size:
            return
        first = int(firsts[gone[0]])
        counts = counts[first : min(first + WARPS, (first // machine.warps + 1) * machine.warps)]
        most = first + int(np.argmax(counts))
        block, thread = machine.place_of((first + int(np.argmin(counts))) * 32)
        what = (
            f"not all warps of its warpgroup execute it: that of block {block} thread {thread} has executed "
            f"setmaxnreg {counts.min()} times, this one {counts.max()} times"
        )
        raise machine.error(WarpError, self._last[most], most * 32, what)

    def _look_for_too_many(self, alive: Array) -> None:
        """Hold what the warps of a block asked for against what they began with, when all have exited."""
        machine, each = self._machine, self._machine.warps
        for cta in [cta for cta in self._asked if not alive[cta * each : (cta + 1) * each].any()]:
            warp, instruction = self._asked.pop(cta)
            assert self._start is not None
            count, why = self._start
            # Whether the pool has what warps of the last four would have had, nobody says: so it has.
            owned = int(self._owned[cta * each : (cta + 1) * each].sum()) * 32
            began = count * -(-each // WARPS) * WARPS * 32
            if owned <= began:
                continue
            block, thread = machine.place_of(warp * 32)
            sentence = (
                f"block {block} thread {thread} at {machine.describe(instruction)} waits for registers that nobody "
                f"gives back: the warps of its block ask for {owned:,} in all, and began with {began:,}, "
                f"{count} for each of {began // count} threads ({why})"
            )
            raise Deadlock(f"no lane can run:\n  {sentence}", waiting=(sentence,))


@dataclass(frozen=True)
class SetRegisters:
    """`setmaxnreg`."""

    instruction: Instruction

    def __call__(self, frame: Frame) -> None:
        """Raises WarpError: not all lanes of a warp are here."""
        whole_warps(frame, self.instruction)
        frame.machine.part(RegisterPool).executed(self.instruction, frame.mask)
