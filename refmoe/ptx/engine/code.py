"""A compiled entry: what its blocks do, and what the scheduler has to know of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from refmoe.ptx.engine.barriers import BarrierCode
from refmoe.ptx.engine.mbarrier import Wait
from refmoe.ptx.engine.slow import Slow
from refmoe.ptx.program.blocks import Program
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.text.syntax import Function, Instruction

if TYPE_CHECKING:
    # LLVM comes with it.
    from refmoe.ptx.native.kernel import Kernel


@dataclass(frozen=True)
class Gather:
    """The warp-level instruction that begins a block. Its member mask is a register number or a constant.

    `is_barrier`: `bar.warp.sync`, which lanes may meet at different places.
    """

    instruction: Instruction
    register: int | None
    constant: Any
    is_barrier: bool


@dataclass(frozen=True)
class WaitCode:
    """The `mbarrier.try_wait` that begins a block.

    Attributes:
        work: what it does.
        probe: its operands before it runs: (address, parity or state), from the registers and a frame of all lanes.
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
        has_bulk: whether there are bulk copies or edits of tensor maps.
        lengths: instructions of each block, its terminator included.
        approximate: the instructions that `Frame.note` refers to by index.
        contractions: lines of FP instructions that ptxas may fuse.
        models: accumulation models of its tensor-core instructions, and what they rest on.
        source: the generated text.
        reads_unwritten: whether somebody may read a register that nothing wrote, which is then zero.
        homes: number and kind of each register that lives across pieces, by name.
        places: int64 [blocks, fields], what the native scheduler knows of each, see `Place`.
    """

    entry: Function
    program: Program
    layout: Layout
    steps: tuple[Callable[..., Any], ...]
    kernel: Kernel
    sites: tuple[Slow, ...]
    kinds: tuple[str, ...]
    gathers: dict[int, Gather]
    barriers: dict[int, BarrierCode]
    waits: dict[int, WaitCode]
    has_mbarriers: bool
    has_bulk: bool
    lengths: tuple[int, ...]
    approximate: tuple[Instruction, ...]
    contractions: tuple[int, ...]
    models: dict[str, str]
    source: str
    reads_unwritten: bool
    homes: dict[str, tuple[int, str]]
    places: Any
