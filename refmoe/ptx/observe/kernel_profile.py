"""What the launches of one kernel did: how often instructions ran, and what their accesses cost.

Shared memory has 32 banks of 4 bytes. The lanes of a warp are served together, in *phases* where an access is wide: two
half warps for 8 bytes, four quarter warps for 16 (a row of eight lanes for `ldmatrix` and `stmatrix`). In a phase each
bank gives one word at a time, and lanes that want the same word share it. So a phase takes as many *wavefronts* as some
bank has to give different words: that number is the *degree* of its conflict, 1 where there is none. Atomics count like
loads: that lanes which meet at one address take turns is not counted.

Device memory moves in *sectors* of 32 bytes. An access of a warp needs as many as its lanes touch; the fewest possible
is the number of its different bytes divided by 32, rounded up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from refmoe.ptx.engine.code import Code
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.program.liveness import Live, most_live
from refmoe.ptx.state.spaces import LOCAL_WINDOW, OWN_BASE, OWNER_SHIFT, SHARED_WINDOW
from refmoe.ptx.text.syntax import Instruction

Array = Any
BANKS = 32
SECTOR = 32
_WARP = 32
_WORD = 4
_SPELLED = re.compile(r"(?:@!?\S+\s+)?(?P<opcode>[\w.:]+)")


@dataclass
class Executed:
    """How often instructions ran.

    Attributes:
        warps: executions by warps: lanes of one warp that run an instruction together count once.
        lanes: executions by lanes, those whose guard is off included.
    """

    warps: int = 0
    lanes: int = 0

    @property
    def active(self) -> float:
        """Lanes of a warp that were at work, on the average; 0 where nothing ran."""
        return self.lanes / self.warps if self.warps else 0.0


@dataclass
class SharedTraffic:
    """Accesses of shared memory.

    Attributes:
        accesses: by warps with a lane that acts.
        lanes: by lanes.
        wavefronts: that they took.
        fewest: wavefronts without any conflict.
        degrees: accesses by the worst degree of their phases, {degree: accesses}.
    """

    accesses: int = 0
    lanes: int = 0
    wavefronts: int = 0
    fewest: int = 0
    degrees: dict[int, int] = field(default_factory=dict)

    @property
    def worst(self) -> int:
        """The highest degree; 0 where nothing was accessed."""
        return max(self.degrees, default=0)


@dataclass
class GlobalTraffic:
    """Accesses of device memory.

    Attributes:
        accesses: by warps with a lane that acts.
        lanes: by lanes.
        sectors: of 32 bytes that they touched, each warp's by itself.
        fewest: sectors that would do for the same number of different bytes.
    """

    accesses: int = 0
    lanes: int = 0
    sectors: int = 0
    fewest: int = 0


@dataclass
class LocalTraffic:
    """Accesses of local memory, where arrays and what registers do not hold lie: by warps, and by lanes."""

    accesses: int = 0
    lanes: int = 0


def phases(width: int) -> int:
    """In how many parts a warp's access of `width` bytes to shared memory is served."""
    return max(1, width // _WORD)


def bank_conflicts(address: Array, lanes: Array, width: int) -> tuple[Array, Array]:
    """Degrees of conflict of one instruction in shared memory.

    Args:
        address: int64 [n], byte addresses in the shared memory of a block.
        lanes: int64 [n], who accesses them, 32 lanes to a warp.
        width: bytes of each access; a power of two.

    Returns:
        The warp of each phase in which a lane acts, int64 [p], and its degree, int64 [p].
    """
    together = _WARP // phases(width)
    words = max(1, width // _WORD)
    phase = lanes // together
    word = (address // _WORD)[:, None] + np.arange(words)
    # Each word of a phase counts once, whoever wants it.
    keys = np.unique((phase[:, None] << 40) | word)
    found, place = np.unique(keys >> 40, return_inverse=True)
    cells = np.bincount(place * BANKS + (keys & (BANKS - 1)), minlength=len(found) * BANKS)
    return found * together // _WARP, cells.reshape(-1, BANKS).max(axis=1)


def sectors(address: Array, lanes: Array, width: int) -> tuple[int, int]:
    """Sectors of device memory that one instruction touches, and the fewest for as many different bytes.

    Args:
        address: uint64 [n], byte addresses.
        lanes: int64 [n], who accesses them, 32 lanes to a warp.
        width: bytes of each access.
    """
    warp, place = lanes // _WARP, address.astype(np.int64)
    # Aligned accesses of up to 32 bytes lie in one sector; others are touched at both ends.
    ends = np.concatenate([place // SECTOR, (place + width - 1) // SECTOR])
    touched = _different(np.concatenate([warp, warp]), ends)
    bytes_ = np.unique(_different(warp, place), return_counts=True)[1] * width
    return len(touched), int((-(-bytes_ // SECTOR)).sum())


def _different(warp: Array, value: Array) -> Array:
    """The warp of each pair (warp, value) that is among those given, each pair once."""
    values, number = np.unique(value, return_inverse=True)
    return np.unique(warp * len(values) + number) // len(values)


@dataclass
class KernelProfile:
    """What the launches of one kernel did.

    Attributes:
        module, entry: names.
        launches: how many were counted.
        blocks, threads: (x, y, z) of the last one.
        live: the most registers that are live at once.
        shared, device, local: traffic by instruction.
    """

    module: str
    entry: str
    code: Code = field(repr=False)
    launches: int = 0
    blocks: tuple[int, int, int] = (0, 0, 0)
    threads: tuple[int, int, int] = (0, 0, 0)
    live: Live = field(default_factory=Live)
    shared: dict[Instruction, SharedTraffic] = field(default_factory=dict, repr=False)
    device: dict[Instruction, GlobalTraffic] = field(default_factory=dict, repr=False)
    local: dict[Instruction, LocalTraffic] = field(default_factory=dict, repr=False)
    _warps: Array = field(default=None, repr=False)
    _lanes: Array = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._warps = np.zeros(len(self.code.program.blocks), np.int64)
        self._lanes = np.zeros(len(self.code.program.blocks), np.int64)
        self.live = most_live(self.code.program)

    @property
    def executed(self) -> Executed:
        """All instructions."""
        rows = self.by_line().values()
        return Executed(sum(row.warps for row in rows), sum(row.lanes for row in rows))

    def by_line(self) -> dict[int, Executed]:
        """By line of the PTX text, in its order; lines that never ran are left out."""
        return self._by(lambda instruction: instruction.line)

    def by_source(self) -> dict[str, Executed]:
        """By source line, `file:line`; what has none is left out."""
        return self._by(lambda instruction: instruction.source)

    def by_opcode(self) -> dict[str, Executed]:
        """By opcode, as it is spelled in the text."""
        return self._by(_opcode)

    def _by(self, key: Callable[[Instruction], Any]) -> dict[Any, Executed]:
        rows: dict[Any, Executed] = {}
        for block in self.code.program.blocks:
            warps, lanes = int(self._warps[block.index]), int(self._lanes[block.index])
            for instruction in (*block.instructions, block.terminator.instruction):
                # A guarded instruction at which lanes wait is a branch around it, which all lanes run, and itself.
                guarded = instruction is not None and instruction.guard is None and instruction.text.startswith("@")
                if not warps or instruction is None or guarded or key(instruction) is None:
                    continue
                row = rows.setdefault(key(instruction), Executed())
                row.warps += warps
                row.lanes += lanes
        return {each: rows[each] for each in sorted(rows, key=_natural)}

    def step(self, place: int, frame: Frame) -> None:
        """The lanes of a frame run block `place`."""
        self._warps[place] += len(frame.warps()[0])
        self._lanes[place] += frame.active

    def accessed(self, instruction: Instruction, space: str, width: int, lanes: Array, address: Array) -> None:
        """`lanes` [n] of a machine accessed `width` bytes each at `address` uint64 [n] of a state space."""
        if not lanes.size:
            return
        if space != "generic":
            self._count(instruction, space, width, lanes, address)
            return
        top = address >> np.uint64(56)
        for window, where in ((0, "global"), (SHARED_WINDOW, "shared"), (LOCAL_WINDOW, "local")):
            which = top == np.uint64(window >> 56)
            if which.any():
                inside = address[which] - np.uint64(window)
                if where == "local":
                    inside &= np.uint64((1 << OWNER_SHIFT) - 1)
                self._count(instruction, where, width, lanes[which], inside)

    def _count(self, instruction: Instruction, space: str, width: int, lanes: Array, address: Array) -> None:
        traffic: Any
        if space == "shared":
            traffic = self.shared.setdefault(instruction, SharedTraffic())
            owner, degrees = bank_conflicts(address.astype(np.int64) - OWN_BASE, lanes, width)
            traffic.wavefronts += int(degrees.sum())
            traffic.fewest += len(degrees)
            starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
            for degree, count in Counter(np.maximum.reduceat(degrees, starts).tolist()).items():
                traffic.degrees[degree] = traffic.degrees.get(degree, 0) + count
        elif space == "global":
            traffic = self.device.setdefault(instruction, GlobalTraffic())
            touched, fewest = sectors(address, lanes, width)
            traffic.sectors += touched
            traffic.fewest += fewest
        elif space == "local":
            traffic = self.local.setdefault(instruction, LocalTraffic())
        else:
            return
        traffic.accesses += len(np.unique(lanes // _WARP))
        traffic.lanes += len(lanes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        total = self.executed

        def row(executed: Executed) -> dict[str, Any]:
            return {"warps": executed.warps, "lanes": executed.lanes, "active_lanes": round(executed.active, 3)}

        def traffic(rows: dict[Instruction, Any]) -> list[dict[str, Any]]:
            found = []
            for instruction in sorted(rows, key=lambda each: (each.line, each.text)):
                counts = asdict(rows[instruction])
                if "degrees" in counts:
                    counts["degrees"] = {str(each): counts["degrees"][each] for each in sorted(counts["degrees"])}
                where = {"line": instruction.line, "source": instruction.source, "text": instruction.text}
                found.append({**where, **counts})
            return found

        return {
            "module": self.module,
            "entry": self.entry,
            "launches": self.launches,
            "grid": list(self.blocks),
            "block": list(self.threads),
            "instructions": row(total),
            "lines": [{"line": line, **row(each)} for line, each in self.by_line().items()],
            "sources": [{"source": source, **row(each)} for source, each in self.by_source().items()],
            "opcodes": [{"opcode": opcode, **row(each)} for opcode, each in self.by_opcode().items()],
            "shared": traffic(self.shared),
            "global": traffic(self.device),
            "local": traffic(self.local),
            "live": asdict(self.live),
        }


def _opcode(instruction: Instruction) -> str:
    """As written: what a guard or an inlined call became is not what its author wrote."""
    match = _SPELLED.match(instruction.text)
    return match["opcode"] if match else instruction.opcode


def _natural(key: Any) -> Any:
    """Lines of a file in their order."""
    if not isinstance(key, str):
        return key
    head, _, line = key.rpartition(":")
    return (head, int(line)) if line.isdecimal() else (key, 0)
