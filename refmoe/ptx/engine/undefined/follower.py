"""Undefined values of a launch, followed: which bits of registers and of memory are undefined, and who uses them.

A launch runs at first as if there were none. Only one that meets what may become an undefined value runs again, see
`Following`: then every block in which a lane has an undefined register, or in which undefined values begin, runs in
Python, with a mask beside each register (`refmoe.ptx.engine.undefined.execution`). The others run as always.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refmoe.ptx.engine.code import Code
from refmoe.ptx.engine.frame import Frame
from refmoe.ptx.engine.lanes import Lanes
from refmoe.ptx.engine.loads_and_stores import Access
from refmoe.ptx.engine.native_state import NativeState
from refmoe.ptx.engine.order.racing_reads import RacingReads
from refmoe.ptx.engine.undefined import memory
from refmoe.ptx.engine.undefined.blocks import FollowedBlock, followed_block
from refmoe.ptx.engine.undefined.compared import Compared, decided_by_swaps
from refmoe.ptx.engine.undefined.execution import Execution
from refmoe.ptx.engine.undefined.findings import Use, finding
from refmoe.ptx.engine.undefined.origins import Origins, Raced, Uninitialised
from refmoe.ptx.engine.undefined.rules import everything
from refmoe.ptx.engine.undefined.shades import Shade
from refmoe.ptx.errors import LaneError, RaceError
from refmoe.ptx.isa import DTYPES
from refmoe.ptx.program.registers import results_and_uses
from refmoe.ptx.program.unwritten import instructions_of, uses_of
from refmoe.ptx.state.memory import Region
from refmoe.ptx.text.syntax import Instruction

Array = Any
# An instruction, by its line and its text: one that was inlined stands in several blocks.
Place = tuple[int, str]


@dataclass
class Following:
    """What a launch knows of undefined values.

    Attributes:
        begins: instructions at which undefined values are known to begin: their blocks are followed from the start.
        everywhere: whether all blocks are.
        origins: the numbers of where values came from.
        touched: global memory into which undefined values were stored.
        machine: some lanes of the launch, who can name a thread.
        racing: the reads that race, or None where none are followed.
        left: undefined values that the launch left in workspaces, as the error that each is in a result.
        blocks: what is to be known of the blocks of the code that were followed, and whether undefined values are known
            to begin in them, by place.
        decided: comparisons whose result a CAS has told, see `decided_by_swaps`; None as long as no block is followed.
    """

    begins: frozenset[Place] = frozenset()
    everywhere: bool = False
    origins: Origins = field(default_factory=Origins)
    touched: list[Region] = field(default_factory=list)
    machine: Lanes | None = None
    racing: RacingReads | None = None
    left: list[LaneError] = field(default_factory=list)
    blocks: dict[int, tuple[FollowedBlock, bool]] = field(default_factory=dict)
    decided: frozenset[Instruction] | None = None

    def block(self, place: int, code: Code) -> tuple[FollowedBlock, bool]:
        """What is to be known of a block of the code, and whether it is to be followed from the start."""
        if place not in self.blocks:
            if self.decided is None:
                self.decided = decided_by_swaps(code.program)
            found = followed_block(code.program.blocks[place], code.homes, self.decided)
            here = ((each.instruction.line, each.instruction.text) in self.begins for each in found.instructions)
            self.blocks[place] = found, self.everywhere or any(here)
        return self.blocks[place]

    def finish(self, outputs: Iterable[tuple[Region, bool]]) -> None:
        """The launch has ended.

        Args:
            outputs: the memory that lives on, and whether it is a workspace: no byte of that is a result. An undefined
                one there is told in `left`, and counts as a byte that nobody wrote, so that its reader is refused.

        Raises:
            UndefinedError: a byte of a result is undefined.
            MemoryFault: likewise, and it came from bytes that nobody wrote.
            RaceError: likewise, and it came from a read that races.
        """
        workspaces, told = [], set[tuple[str, tuple[int, str]]]()
        for region, workspace in outputs:
            if workspace:
                workspaces.append(region)
            for byte, bits, origin in memory.each_left(region):
                used = Use("an output byte", bits, origin, None, 0, region.name, byte)
                assert self.machine is not None
                if not workspace or self.machine.checks.strict or not self._may_be_left(origin):
                    self.refuse(used)
                elif (cause := (region.name, self.origins.cause(origin))) not in told:
                    told.add(cause)
                    self.left.append(finding(self.machine, self.origins, used))
        for region in self.touched:
            memory.forget(region, stays_open=region in workspaces)

    def _may_be_left(self, origin: int) -> bool:
        """Whether a value may be left in a workspace, such as the padding of a struct that a thread made.

        A value from global memory may not. That a buffer was never filled, or is filled by somebody at the same time,
        is a mistake of this launch, and nobody may look at the workspace again.
        """
        event = self.origins.root(origin).event
        return not isinstance(event, Raced) and not (
            isinstance(event, Uninitialised) and event.region.space == "global"
        )

    def refuse(self, used: Use) -> None:
        """Raise the error of a use, but for a race behind which the launch goes on, see `RacingReads.refuse`."""
        assert self.machine is not None
        error = finding(self.machine, self.origins, used)
        if isinstance(error, RaceError):
            assert self.racing is not None
            self.racing.refuse(error)
        else:
            raise error

    def came_from_a_race(self, origin: int) -> bool:
        """Whether a value came from a read that races."""
        return isinstance(self.origins.root(origin).event, Raced)


class UndefinedFollower:
    """Undefined registers of one machine.

    Attributes:
        machine, code: whose.
        following: of the launch.
        running: the block that runs in Python with masks, or None.
    """

    def __init__(self, machine: Lanes, code: Code, following: Following) -> None:
        self.machine, self.code, self.following = machine, code, following
        self.running: Execution | None = None
        following.machine = machine
        # By the number of a home, over all lanes of the machine.
        self._masks: dict[int, Array] = {}
        self._origins: dict[int, Array] = {}
        self._sources: dict[Instruction, frozenset[str]] = {}
        self._kinds = dict(code.homes.values())
        names = {number: name for name, (number, _) in code.homes.items()}
        launch = machine.launch
        threads = launch.grid.count * launch.warps * 32
        for number, kind in sorted(code.unwritten):
            first = following.origins.of_register(names[number], threads)
            self._masks[number] = everything(kind, machine.alive)
            self._origins[number] = first + machine.first_thread + machine.all_lanes

    # Blocks

    def step(self, place: int, frame: Frame, registers: Any, plain: Callable[..., Any]) -> Any:
        """Run a block for a frame, followed if it has to be, else as `plain`."""
        block, begins = self.following.block(place, self.code)
        if not begins and not self._holds_undefined(block.homes, frame):
            return plain(registers, frame)
        self.running = Execution(self, self.following.origins, frame, place, block.instructions)
        try:
            return self.code.shadowed(place)(registers, frame, self.running)
        finally:
            self.running = None

    def _holds_undefined(self, homes: frozenset[int], frame: Frame) -> bool:
        """Whether one of these registers is undefined in a lane of the frame."""
        return any(bool((self._masks[number][frame.mask] != 0).any()) for number in homes & self._masks.keys())

    def look(self, place: int, mask: Array) -> None:
        """Lanes are about to wait for others, or for a barrier, as the first instruction of a block says.

        Raises:
            UndefinedError: one of its operands other than those that it exchanges is undefined.
        """
        block = self.code.program.blocks[place]
        if block.whole_warp or block.warpgroup:
            # These have no member mask.
            return
        instruction = block.instructions[0]
        uses = uses_of(instruction)
        parks = instruction.opcode.startswith("mbarrier")
        for register in uses if parks else uses[-1:]:
            number = self.code.homes.get(register.name, (-1, ""))[0]
            if number in self._masks and (parks or register == instruction.operands[-1]):
                sink = "an operand of a barrier" if parks else "a member mask"
                self.use(
                    sink, instruction, np.flatnonzero(mask), self._masks[number][mask], self._origins[number][mask]
                )

    # Registers that live across blocks

    def shade_of(self, number: int, frame: Frame) -> Shade | None:
        """What is undefined of a register in the lanes of a frame."""
        mask = self._masks.get(number)
        if mask is None or not (mask[frame.mask] != 0).any():
            return None
        held, origins = frame.from_all(mask), frame.from_all(self._origins[number])
        if frame.index is None and frame.inner is not None:
            held = np.where(frame.inner, held, held.dtype.type(0))
        return Shade(held, origins)

    def put(self, number: int, frame: Frame, held: Shade | None) -> None:
        """A register of the lanes of a frame was written."""
        if held is None:
            self.write(number, frame.mask)
            return
        lanes = self.machine.lanes
        if number not in self._masks:
            self._masks[number] = np.zeros(lanes, DTYPES[self._kinds[number]])
            self._origins[number] = np.zeros(lanes, np.int64)
        self._masks[number] = np.where(frame.mask, frame.to_all(held.mask), self._masks[number])
        self._origins[number] = np.where(frame.mask, frame.to_all(held.origins), self._origins[number])

    def write(self, number: int, mask: Array) -> None:
        """A register of some lanes, bool [lanes], is defined."""
        if number in self._masks:
            held = self._masks[number]
            held = np.where(mask, held.dtype.type(0), held)
            if held.any():
                self._masks[number] = held
            else:
                del self._masks[number], self._origins[number]

    def held_by(self, lanes: Array, names: frozenset[str]) -> Iterator[Array]:
        """Where those undefined registers of `lanes` [n] came from, int64 [n] each; 0 for one that is defined."""
        for name in names & self.code.homes.keys():
            number = self.code.homes[name][0]
            if number in self._masks:
                yield np.where(self._masks[number][lanes] != 0, self._origins[number][lanes], 0)

    def sources(self, instruction: Instruction) -> frozenset[str]:
        """The registers of which what an instruction uses may be computed, itself included."""
        if instruction not in self._sources:
            makers: dict[str, set[str]] = defaultdict(set)
            for block in self.code.program.blocks:
                for results, uses in map(results_and_uses, instructions_of(block)):
                    for result in results:
                        makers[result.name].update(each.name for each in uses)
            found, left = set[str](), [each.name for each in results_and_uses(instruction)[1]]
            while left:
                name = left.pop()
                if name not in found:
                    found.add(name)
                    left += makers[name]
            self._sources[instruction] = frozenset(found)
        return self._sources[instruction]

    def trust(self, compared: Compared, lanes: Array, wrote: Array) -> None:
        """A CAS has checked what `lanes` [n] had read: where it wrote, registers that came from there are defined."""
        for number, mask in list(self._masks.items()):
            where = np.zeros(self.machine.lanes, np.bool_)
            found = compared.of_reads(np.where(mask[lanes] != 0, self._origins[number][lanes], 0))
            where[lanes] = found & wrote
            self.write(number, where)
        if self.following.racing is not None:
            self.following.racing.check(compared.racing)

    # Uses

    def use(self, sink: str, instruction: Instruction, lanes: Array, masks: Array, origins: Array) -> None:
        """A result is about to depend on values.

        Args:
            sink: what they reach.
            instruction: which uses them.
            lanes: int64 [n], whose.
            masks: [n], their undefined bits.
            origins: int64 [n].

        Raises:
            UndefinedError: one of them is undefined.
            MemoryFault: likewise, and it came from bytes that nobody wrote.
        """
        open_ = masks != 0
        if open_.any():
            bad = int(np.argmax(open_))
            used = Use(sink, int(masks[bad]), int(origins[bad]), instruction, int(lanes[bad]))
            self.following.refuse(used)

    # What accesses tell

    def follows(self, instruction: Instruction) -> bool:
        """Whether an instruction runs with masks now."""
        return self.running is not None and self.running.instruction is instruction

    def carries(self, access: Access, region: Region, index: Array) -> bool:
        """Whether bytes that nobody wrote may be read, because what becomes of them is followed.

        What a copy is under way to is not read by whoever waits for it: it is a race, which may be followed itself.
        """
        if self.running is None or not self.running.carries(access):
            return False
        witness = self.machine.launch.witness
        if isinstance(witness, RacingReads) and region.name in witness.regions:
            return True
        if region is self.machine.shared:
            assert region.valid is not None
            at = (index[:, None] + np.arange(access.width)).ravel()
            return not any(self.machine.under_way(byte) for byte in at[region.valid[at] == 0].tolist())
        return True

    def read(self, access: Access, region: Region, index: Array, lanes: Array) -> tuple[Array, Array]:
        """(undefined bits uint8 [n, width], origins int64 [n]) of what lanes [n] read at byte `index` [n]."""
        bits, origins, missing = memory.load(region, index, access.width)
        open_ = missing >= 0
        if open_.any():
            event = Uninitialised(self.machine, access, region, index[open_], missing[open_], lanes[open_])
            origins[open_] = self.following.origins.add(event, lanes[open_] + self.machine.first_thread)
        raced = self.raced(access, region, index, lanes)
        if raced is not None:
            bits, origins = bits | raced[0], np.where(raced[0].any(axis=1), raced[1], origins)
        return bits, origins

    def raced(self, access: Access, region: Region, index: Array, lanes: Array) -> tuple[Array, Array] | None:
        """The same of what raced among the bytes that are being read; None if nothing did."""
        racing = self.following.racing
        if racing is None:
            return None
        begin, threads = index + self.machine.first_cta * region.stride, lanes + self.machine.first_thread
        found = racing.raced(region.name, access.instruction, begin, access.width, threads)
        if found is None:
            return None
        mask, errors, reads = found
        rows, origins = mask.any(axis=1), np.zeros(len(index), np.int64)
        origins[rows] = self.following.origins.add(
            Raced(errors, region.name, begin[rows], access.width, reads), threads[rows]
        )
        return np.where(mask, np.uint8(0xFF), np.uint8(0)), origins

    def pass_on(self, instruction: Instruction, lanes: Array, bits: Array, origins: Array) -> None:
        """Strong writes of values with undefined bits uint8 [n, width].

        Under a schedule a strong read may take an older value than the one whose bits are known.

        Raises:
            RaceError: such a value depends on a read that races.
        """
        if self.following.racing is None or self.machine.strong.choices is None:
            return
        raced = np.array([self.following.came_from_a_race(each) for each in origins.tolist()], np.bool_)
        self.use("a strong write", instruction, lanes, bits.any(axis=1) & raced, origins)

    def write_bytes(self, region: Region, index: Array, bits: Array, origins: Array) -> None:
        """Values with undefined bits uint8 [n, width] were stored at byte `index` [n]."""
        if region.undefined is None and region.space == "global":
            self.following.touched.append(region)
        had_valid = region.valid is not None
        memory.store(region, index, bits, origins)
        if not had_valid:
            self.machine.part(NativeState).refresh(region)

    def loaded(
        self, access: Access, region: Region, index: Array, lanes: Array, which: Array | None, total: int
    ) -> None:
        """Lanes have read: `which` of `total`, or None for all."""
        if self.running is not None and self.running.carries(access):
            self.running.loaded(access, region, index, lanes, which, total)

    def stored(self, access: Access, region: Region, index: Array, lanes: Array, which: Array | None) -> None:
        """Lanes have stored: `which` of those that do, or None for all."""
        if self.running is not None:
            self.running.stored(access, region, index, lanes, which)

    @contextmanager
    def modified(
        self, access: Access, region: Region, at: Array, lanes: Array, place: Array, element: int, stores: Array
    ) -> Iterator[None]:
        """Around a read and write by an atomic: of word numbers `at` [n] by the `place`-th [n] of `lanes`.

        `stores` is then cleared for those of `lanes` that do not write.
        """
        if self.running is None:
            yield
            return
        with self.running.modified(access, region, at, lanes[place], place, element, stores):
            yield
