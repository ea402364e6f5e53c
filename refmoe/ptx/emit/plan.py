"""What is known of an entry before Python code of it is made: blocks, pieces, and what its instructions say of it.

A plan is kept on disk beside machine code: an entry that was compiled before is neither parsed nor checked again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass

from refmoe.native import cache
from refmoe.ptx.program.blocks import Program
from refmoe.ptx.program.layout import Layout
from refmoe.ptx.program.pieces import Homes
from refmoe.ptx.program.unwritten import UnwrittenReads
from refmoe.ptx.text.parser import ParsedModule
from refmoe.ptx.text.syntax import Function, Instruction


@dataclass(frozen=True)
class Plan:
    """An entry, checked and cut.

    Attributes:
        entry: without calls.
        program: its blocks.
        layout: where its variables lie.
        homes: its pieces, and where registers live that leave them.
        refused: instructions that do not exist here.
        approximate: instructions whose results may not be exact, in the order of their numbers.
        contractions: FP instructions that ptxas may fuse.
        emitted: blocks that need Python code, or whose tensor-core instructions have a model.
        watched: instructions that report which registers they access.
        reads_unwritten: whether a register may be read that nothing wrote.
        unwritten: the reads of such registers, those apart in which it only keeps what it holds.
        content: a digest of all that its machine code depends on, the host apart.
    """

    entry: Function
    program: Program
    layout: Layout
    homes: Homes
    refused: frozenset[Instruction]
    approximate: tuple[Instruction, ...]
    contractions: tuple[Instruction, ...]
    emitted: frozenset[int]
    watched: frozenset[Instruction]
    reads_unwritten: bool
    unwritten: UnwrittenReads
    content: str


def kept(module: ParsedModule, entry: str, view: str, make: Callable[[], Plan]) -> Plan:
    """The plan of an entry in a view of no observer, by its name: as it was kept, else made and kept."""
    key = cache.key_of("plan", module.digest, entry, view)
    if (held := cache.load(key)) is not None:
        plan: Plan = pickle.loads(held)
        return plan
    plan = make()
    cache.store(key, pickle.dumps(plan))
    return plan
