"""Old spellings in today's: `membar.proxy`, and single precision as texts for the first chips have it.

A text for `.target sm_10` to `sm_13` names no `.ftz`, no `.approx` and no rounding. On later chips its FP32
instructions flush subnormals, division and the functions are approximate, and `mad.f32` is `fma.rn.ftz.f32` (PTX ISA,
the target notes of each instruction: "When JIT-compiled for SM 2.0 devices, mad.f32 is implemented as a fused
multiply-add").
"""

from __future__ import annotations

import re
from dataclasses import replace

from refmoe.ptx.text.syntax import Instruction

_FIRST = re.compile(r"sm_1[0-3]")
_FLUSHED = ("add", "sub", "mul", "mad", "abs", "neg", "min", "max", "set", "setp")
_APPROXIMATE = ("div", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2")
_CHOSEN = ("approx", "full", "rn", "rz", "rm", "rp")


def modernised(instruction: Instruction, target: str) -> Instruction:
    """An instruction of a text for `target` in the spelling that says what it does on a later chip."""
    stem, *parts = instruction.opcode.split(".")
    if stem == "membar" and parts[:1] == ["proxy"]:
        # PTX ISA, "membar, fence": the one is a synonym of the other.
        return replace(instruction, opcode=".".join(["fence", *parts]))
    if parts[-1:] != ["f32"] or stem not in (*_FLUSHED, *_APPROXIMATE) or not _FIRST.fullmatch(target):
        return instruction
    chosen = [part for part in parts if part in _CHOSEN]
    if not chosen and stem in _APPROXIMATE:
        chosen = ["approx"]
    elif not chosen and stem == "mad":
        chosen = ["rn"]
    rest = [part for part in parts if part not in (*_CHOSEN, "ftz")]
    # Comparisons stand in front of `.ftz`.
    place = next((number for number, part in enumerate(rest) if part in ("sat", "f32", "u32", "s32")), 0)
    return replace(instruction, opcode=".".join([stem, *chosen, *rest[:place], "ftz", *rest[place:]]))
