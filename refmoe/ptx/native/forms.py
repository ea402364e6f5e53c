"""Which instructions have native code."""

from __future__ import annotations

from typing import Any

from refmoe.ptx import isa
from refmoe.ptx.ops.lanes import LANES
from refmoe.ptx.ops.table import exactness, lowering
from refmoe.ptx.program.registers import destinations_and_sources
from refmoe.ptx.state.special_registers import CLOCKS, SPECIALS
from refmoe.ptx.text.memory_ops import memory_opcode
from refmoe.ptx.text.spellings import accumulates_single
from refmoe.ptx.text.syntax import Instruction, Pair, Special, Vector, parts


def is_native(instruction: Instruction) -> bool:
    """Whether an instruction, whose operands are known to fit, has native code."""
    stem = instruction.opcode.split(".")[0]
    specials = (part.name for operand in instruction.operands for part in parts(operand) if isinstance(part, Special))
    if any(name in CLOCKS or SPECIALS.get(name, "b64") == "b64" for name in specials):
        # Native code has a home of 32 bits for each, which is filled when the CTA starts.
        return False
    if stem == "mma":
        return accumulates_single(instruction)
    if stem in ("ldmatrix", "stmatrix"):
        return not any(part in ("b6x16_p32", "m16n8", "m16n16") for part in instruction.opcode.split("."))
    if stem in ("ld", "st"):
        opcode = memory_opcode(instruction.opcode)
        return opcode is not None and not opcode.strong and opcode.size * opcode.count <= LANES
    if stem == "redux" and instruction.opcode.endswith(".f32"):
        return False
    if stem in ("cvta", "shfl", "vote", "redux", "elect", "activemask") or instruction.opcode == "bar.warp.sync":
        # Their guards are branches.
        return True
    if stem == "mov" and any(isinstance(operand, Vector) for operand in instruction.operands):
        return True
    return native_form(instruction) is not None


def native_form(instruction: Instruction) -> Any:
    """The native form of an opcode of the instruction table, or None."""
    first = instruction.operands[0] if instruction.operands else None
    _, sources = destinations_and_sources(instruction)
    destinations = 2 if isinstance(first, Pair) else 1
    try:
        operation = isa.resolve(instruction.opcode, destinations, len(sources))
    except isa.NoSuchInstruction:
        return None
    if operation.exact_when is not None and exactness(instruction.opcode) is None:
        return None
    return lowering(instruction.opcode, destinations, len(sources))
