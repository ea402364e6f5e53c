"""A compiled entry: how it is made, what its blocks do, and what the scheduler has to know of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from refmoe.ptx.engine.barriers import BarrierCode
from refmoe.ptx.engine.mbarrier import Wait
from refmoe.ptx.engine.slow import Slow
from refmoe.ptx.program.blocks import Program
from refmoe.ptx.program.handles import handle_uses
from refmoe.ptx.program.late import Windows
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.text.syntax import Function, Instruction

if TYPE_CHECKING:
    # LLVM comes with it.
    from refmoe.ptx.native.kernel import NativeKernel


@dataclass(frozen=True)
class View:
    """How the code of an entry is made: for the observer of a launch, who sees what native code hides, or for another
    schedule.

    Attributes:
        name: of the view; one entry is compiled once for each.
        native: whether an instruction that has native code may use it.
        alone: each instruction is a piece of its own, every register has a home, and the observer's `at` is called in
            front of each instruction.
        seen: of an object that generated code calls, the one that takes its place.
        apart: whether a block ends before each instruction by which threads communicate: others may come between.
        observed: whether there is an observer.
        joined: instructions of which lanes take several for one, see `refmoe.ptx.program.joined`.
    """

    name: str
    native: Callable[[Instruction], bool]
    alone: bool
    seen: Callable[[Any], Any]
    apart: bool = False
    observed: bool = True
    joined: tuple[tuple[Instruction, ...], ...] = ()

    def joining(self, groups: tuple[tuple[Instruction, ...], ...]) -> View:
        """The same with groups of instructions that are one."""
        if not groups:
            return self
        written = repr([[(each.line, each.opcode, each.operands) for each in group] for group in groups])
        return replace(self, name=f"{self.name} joined {sha256(written.encode()).hexdigest()}", joined=groups)


PLAIN = View("plain", lambda _: True, False, lambda work: work, observed=False)
APART = View("apart", lambda _: True, False, lambda work: work, apart=True, observed=False)
# For a launch whose undefined values are followed: the machine sees every block.
FOLLOWING = View("following", lambda _: True, False, lambda work: work)
FOLLOWING_APART = View("following apart", lambda _: True, False, lambda work: work, apart=True)


@dataclass(frozen=True)
class Gather:
    """The warp-level instruction that begins a block. Its member mask is a register number or a constant.

    `is_barrier`: `bar.warp.sync`, which lanes may meet at different places; `warps`: how many meet, from a multiple of
    that on.
    """

    instruction: Instruction
    register: int | None
    constant: Any
    is_barrier: bool
    warps: int = 1


@dataclass(frozen=True)
class WaitCode:
    """The `mbarrier.try_wait` that begins a block.

    Attributes:
        work: what it does.
        probe: its operands before it runs: (address, parity or state), from the registers and a frame of its lanes.
    """

    work: Wait
    probe: Callable[..., Any]


@dataclass(frozen=True)
class Code:
    """A compiled entry.

    Attributes:
        entry: without calls.
        program: its blocks.
        layout: where its variables lie.
        steps: the function of each block.
        kernel: the native code that they call.
        sites: what Python does for the instructions that native code may leave to it.
        kinds: register kind of each register that lives across pieces.
        gathers, barriers, waits: by block.
        has_mbarriers: whether lanes may synchronise through barriers in memory.
        has_bulk: whether there are bulk copies, edits of tensor maps, or products of warpgroups.
        has_warpgroups: whether there are products of warpgroups.
        lanes_synchronise: whether single lanes may synchronise, see `Clocks`.
        lanes_leave: whether lanes that have accessed memory may exit while others of their warp go on to meet.
        fences_in_order: whether there are fences `.sc`.
        fences_inits: whether there are `fence.mbarrier_init`.
        strong_spaces: in which a thread may tell which write an atomic read, see `refmoe.ptx.emit.builder.Builder`.
        lengths: instructions of each block, its terminator included.
        approximate: the instructions that `Frame.note` refers to by index.
        contractions: lines of FP instructions that ptxas may fuse.
        models: accumulation models of its tensor-core instructions, and what they rest on.
        source: the generated text.
        reads_unwritten: whether somebody may read a register that nothing wrote, which is then zero.
        unwritten: (number, kind) of the registers of which somebody may use what nothing wrote.
        homes: number and kind of each register that lives across pieces, by name.
        places: int64 [blocks, fields], what the native scheduler knows of each, see `Place`.
        shadowed: the function of each block that follows undefined values, made when it is first asked for.
    """

    entry: Function
    program: Program
    layout: Layout
    steps: tuple[Callable[..., Any], ...]
    kernel: NativeKernel
    sites: tuple[Slow, ...]
    kinds: tuple[str, ...]
    gathers: dict[int, Gather]
    barriers: dict[int, BarrierCode]
    waits: dict[int, WaitCode]
    has_mbarriers: bool
    has_bulk: bool
    lanes_synchronise: bool
    lanes_leave: bool
    fences_in_order: bool
    fences_inits: bool
    strong_spaces: frozenset[str]
    has_warpgroups: bool
    lengths: tuple[int, ...]
    approximate: tuple[Instruction, ...]
    contractions: tuple[int, ...]
    models: dict[str, str]
    source: str
    reads_unwritten: bool
    unwritten: frozenset[tuple[int, str]]
    homes: dict[str, tuple[int, str]]
    places: Any
    shadowed: Callable[[int], Callable[..., Any]]

    @cached_property
    def handles(self) -> dict[str, list[Instruction]]:
        """The instructions on textures and surfaces that take a parameter, by its name."""
        return handle_uses(each for each in self.entry.body or () if isinstance(each, Instruction))

    @cached_property
    def counts_copies(self) -> bool:
        """Whether barriers in memory count copies of `cp.async`."""
        return self._has("cp.async.mbarrier.arrive")

    @cached_property
    def invalidates(self) -> bool:
        """Whether there are `mbarrier.inval`."""
        return self._has("mbarrier.inval")

    def _has(self, stem: str) -> bool:
        return any(isinstance(each, Instruction) and each.opcode.startswith(stem) for each in self.entry.body or ())

    @cached_property
    def windows(self) -> Windows:
        """Which strong accesses may be put off."""
        return Windows(self.program)
