"""Old spellings of instructions in terms of the new ones."""

from __future__ import annotations

from dataclasses import replace

from refmoe.ptx.syntax import Immediate, Instruction

# Warp-level instructions that exist without `.sync` too: of the lanes that run them together.
LEGACY = ("shfl", "vote")


def synchronised(instruction: Instruction) -> Instruction:
    """`shfl` and `vote` without `.sync` as they are with it, for a member mask of all lanes; others as they are."""
    stem, *parts = instruction.opcode.split(".")
    if stem not in LEGACY or "sync" in parts:
        return instruction
    opcode = ".".join([stem, "sync", *parts])
    return replace(instruction, opcode=opcode, operands=(*instruction.operands, Immediate(0xFFFFFFFF)))
