"""What spellings say: old ones in terms of the new, and which accumulators a product has."""

from __future__ import annotations

from dataclasses import replace

from refmoe.ptx.text.syntax import Immediate, Instruction

# Warp-level instructions that exist without `.sync` too: of the lanes that run them together.
LEGACY = ("shfl", "vote")


def synchronised(instruction: Instruction) -> Instruction:
    """`shfl` and `vote` as the manual has them; others as they are.

    Without `.sync` they have a member mask of all lanes. ptxas takes `.sync` behind the mode too.
    """
    stem, *parts = instruction.opcode.split(".")
    if stem not in LEGACY or parts[:1] == ["sync"]:
        return instruction
    opcode = ".".join([stem, "sync", *(part for part in parts if part != "sync")])
    if "sync" in parts:
        return replace(instruction, opcode=opcode)
    return replace(instruction, opcode=opcode, operands=(*instruction.operands, Immediate(0xFFFFFFFF)))


def fence_scope(opcode: str) -> tuple[str, bool]:
    """(scope, whether it is sequentially consistent) of `membar` or `fence`.

    From sm_70 on `membar` is `fence.sc` (PTX ISA, "membar, fence").
    """
    stem, *parts = opcode.split(".")
    scopes = {"cta": "cta", "cluster": "cluster", "gpu": "gpu", "gl": "gpu", "sys": "sys"}
    scope = next((scopes[part] for part in parts if part in scopes), "gpu")
    return scope, stem == "membar" or "sc" in parts


def fence_order(opcode: str) -> str:
    """What a `membar` or `fence` does: `"acquire"`, `"release"` or `"both"`."""
    return next((part for part in opcode.split(".") if part in ("acquire", "release")), "both")


def accumulates_single(instruction: Instruction) -> bool:
    """Whether an `mma` has FP32 accumulators: the others are in `refmoe.ptx.engine.tensor.plain`."""
    return "f32" in instruction.opcode.split(".")
