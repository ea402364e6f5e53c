"""Statements of `mma.sync` of integers, bits and FP64, and of FP16 with FP16 accumulators."""

from __future__ import annotations

import re

from refmoe.chips import Mma
from refmoe.evidence import Evidence, target_word
from refmoe.ptx import isa
from refmoe.ptx.emit.builder import Builder
from refmoe.ptx.engine.tensor.plain import DoubleMma, HalfMma, IntegerMma
from refmoe.ptx.text.syntax import Instruction, Operand, Register, Vector
from refmoe.reference.mma import MODELS

_SHAPE = re.compile(r"m(?P<m>8|16)n8k(?P<k>\d+)")
_INTEGER = re.compile(r"s32\.(?P<a>[su](?P<bits>8|4))\.(?P<b>[su](?P=bits))\.s32")
_ROUNDINGS = ("rn", "rz", "rm", "rp")
# Elements of K by the bits of an element, for 8 and for 16 rows.
_LENGTHS: dict[int, dict[int, tuple[int, ...]]] = {
    8: {8: (16,), 16: (16, 32)},
    4: {8: (32,), 16: (32, 64)},
    1: {8: (128,), 16: (128, 256)},
    64: {8: (4,), 16: (4, 8, 16)},
    16: {16: (16,)},
}
_HALF_MODEL = "sm90_mma_f16acc"
DOUBLE_MODEL = "fp64_fma"


def multiply(emitter: Builder, instruction: Instruction) -> None:
    """`mma.sync.aligned` without FP32 accumulators.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    work, rows, length, bits = _resolve(emitter, instruction)
    kind, width = ("b64", 64) if isinstance(work, DoubleMma) else ("b32", 32)
    sums = rows // (8 if isinstance(work, HalfMma) else 4)
    per_register = width // bits
    counts = (sums, rows * length // (32 * per_register), 8 * length // (32 * per_register), sums)
    if len(instruction.operands) != len(counts):
        raise ValueError("four operands needed")
    operands = [_registers(each, n, kind) for each, n in zip(instruction.operands, counts, strict=True)]
    values = [f"({', '.join(emitter.value(each, kind) for each in elements)},)" for elements in operands[1:]]
    emitter.assign_all(instruction, [(each, kind) for each in operands[0]], emitter.call(work, *values))


def _resolve(emitter: Builder, instruction: Instruction) -> tuple[IntegerMma | DoubleMma | HalfMma, int, int, int]:
    """(what it computes, M, K, bits of an element)."""
    unknown = isa.NoSuchInstruction(instruction.opcode)
    parts = instruction.opcode.split(".")
    shapes = [match for part in parts if (match := _SHAPE.fullmatch(part))]
    modifiers = ("row", "col", "satfinite", "xor", "and", "popc", *_ROUNDINGS)
    types = ".".join(part for part in parts[3:] if part not in modifiers and not _SHAPE.fullmatch(part))
    flags = [part for part in parts[3:] if part in modifiers]
    # ptxas takes the modifiers in any order, but the layouts in this one.
    extra = frozenset(flags) - {"row", "col"}
    if parts[1:3] != ["sync", "aligned"] or len(shapes) != 1 or len(flags) != len(extra) + 2:
        raise unknown
    if [part for part in flags if part in ("row", "col")] != ["row", "col"]:
        raise unknown
    rows, length = int(shapes[0]["m"]), int(shapes[0]["k"])
    work: IntegerMma | DoubleMma | HalfMma
    match = _INTEGER.fullmatch(types)
    if match is not None and extra <= {"satfinite"}:
        bits = int(match["bits"])
        a_signed, b_signed = match["a"][0] == "s", match["b"][0] == "s"
        work = IntegerMma(instruction, rows, bits, a_signed, b_signed, saturates=bool(extra))
    elif types == "s32.b1.b1.s32" and extra in ({"xor", "popc"}, {"and", "popc"}):
        bits = 1
        work = IntegerMma(instruction, rows, bits, exclusive="xor" in extra)
    elif types == "f64.f64.f64.f64" and len(extra) <= 1 and extra <= set(_ROUNDINGS):
        bits = 64
        work = DoubleMma(instruction, rows, next(iter(extra), "rn"))
    elif types == "f16.f16.f16.f16" and not extra:
        bits = 16
        work = HalfMma(instruction, _HALF_MODEL)
    else:
        raise unknown
    if length not in _LENGTHS[bits].get(rows, ()):
        raise unknown
    _note_model(emitter, work)
    return work, rows, length, bits


def _note_model(emitter: Builder, work: IntegerMma | DoubleMma | HalfMma) -> None:
    """What the order of additions rests on; integers have none."""
    if isinstance(work, DoubleMma):
        emitter.models[DOUBLE_MODEL] = Evidence.EXTRAPOLATED.value
    elif isinstance(work, HalfMma):
        formats = ("f16", "f16")
        assumed = MODELS[work.model].pair(*formats).assumed
        word = target_word(emitter.module.target, Mma.SYNC_BF16, formats, assumed, accumulator="f16")
        emitter.models[work.model] = word.value


def _registers(operand: Operand, count: int, kind: str) -> tuple[Operand, ...]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count or not all(isinstance(e, Register) and e.kind == kind for e in elements):
        raise ValueError(f"a vector of {count} registers of {kind[1:]} bits needed")
    return elements
