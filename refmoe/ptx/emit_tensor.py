"""Statements of the tensor-core instructions: `ldmatrix`, `stmatrix`, `mma`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refmoe.ptx import isa
from refmoe.ptx.access import Access, Store
from refmoe.ptx.matrix import LoadMatrix, StoreMatrix
from refmoe.ptx.syntax import Instruction, Operand, Register, Vector
from refmoe.ptx.tensor import Mma
from refmoe.reference.mma import MODELS, Evidence

if TYPE_CHECKING:
    from refmoe.ptx.emit import Emitter

__all__ = ["load_matrix", "multiply", "store_matrix"]

_MATRIX = re.compile(
    r"(ld|st)matrix\.sync\.aligned\.m8n8\.x(?P<count>[124])(?P<trans>\.trans)?(?P<space>\.shared(::cta)?)?\.b16"
)


def load_matrix(emitter: Emitter, instruction: Instruction) -> None:
    """`ldmatrix` of 8 x 8 cells of 16 bits.

    Raises:
        isa.UnknownOpcode: another spelling.
        ValueError: its operands do not fit.
    """
    match = _matrix(instruction)
    destinations = _registers(instruction.operands[0], int(match["count"]))
    address, space = emitter.address(instruction.operands[1], "shared" if match["space"] else "generic")
    row, word = Access(instruction, space, 8, 2), Access(instruction, space, 4, 1)
    work = LoadMatrix(row, word, len(destinations), match["trans"] is not None)
    temporaries = [f"v{i}" for i in range(len(destinations))]
    emitter.lines.append(f"{', '.join(temporaries)}, = {emitter.bind('m', work)}(F, {address})")
    for register, temporary in zip(destinations, temporaries, strict=True):
        emitter.assign(instruction, register, temporary, "b32")


def store_matrix(emitter: Emitter, instruction: Instruction) -> None:
    """`stmatrix` of 8 x 8 cells of 16 bits.

    Raises:
        isa.UnknownOpcode: another spelling.
        ValueError: its operands do not fit.
    """
    match = _matrix(instruction)
    address, space = emitter.address(instruction.operands[0], "shared" if match["space"] else "generic")
    sources = _registers(instruction.operands[1], int(match["count"]))
    row, word = Store(instruction, space, 8, 2), Store(instruction, space, 4, 1)
    work = StoreMatrix(row, word, len(sources), match["trans"] is not None)
    values = ", ".join(emitter.value(register, "b32") for register in sources)
    emitter.lines.append(f"{emitter.bind('m', work)}(F, {address}, ({values},))")


def _matrix(instruction: Instruction) -> re.Match[str]:
    match = _MATRIX.fullmatch(instruction.opcode)
    if match is None or not instruction.opcode.startswith(("ldmatrix", "stmatrix")):
        raise isa.UnknownOpcode(instruction.opcode)
    if len(instruction.operands) != 2:
        raise ValueError("two operands needed")
    return match


def _registers(operand: Operand, count: int) -> tuple[Operand, ...]:
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count or not all(isinstance(e, Register) and e.kind == "b32" for e in elements):
        raise ValueError(f"{count} registers of 32 bits needed")
    return elements


@dataclass(frozen=True)
class Form:
    """What a family of `mma` spellings means.

    Attributes:
        pattern: the spelling after `mma.sync.aligned.`, with groups `a` and `b` for the element formats.
        formats: those that they may be.
        k: elements of K.
        models: name of the model by the first letters of the target; "" stands for every other chip, which is taken to
            compute alike without evidence.
        scaled: whether block scales follow.
    """

    pattern: re.Pattern[str]
    formats: tuple[str, ...]
    k: int
    models: dict[str, str]
    scaled: bool = False


def _form(pattern: str, formats: tuple[str, ...], k: int, models: dict[str, str], scaled: bool = False) -> Form:
    types = r"\.row\.col\.f32\.(?P<a>\w+)\.(?P<b>\w+)\.f32"
    return Form(re.compile(pattern.replace("TYPES", types)), formats, k, models, scaled)


_SM120 = {"sm_120": "sm120", "sm_121": "sm120"}
_HALF = {"sm_90": "sm90_mma", "": "sm90_mma"}
_HALF_K8 = {"sm_90": "sm90_mma_k8", "": "sm90_mma_k8"}
_FORMS = (
    _form(r"m16n8k16TYPES", ("bf16", "f16"), 16, _HALF),
    _form(r"m16n8k8TYPES", ("bf16", "f16", "tf32"), 8, _HALF_K8),
    _form(r"m16n8k32TYPES", ("e4m3", "e5m2"), 32, {"sm_90": "sm90_mma_fp8", **_SM120}),
    _form(r"(kind::f8f6f4\.m16n8k32|m16n8k32\.kind::f8f6f4)TYPES", ("e4m3", "e5m2", "e2m1"), 32, _SM120),
    _form(
        r"(m16n8k32\.)?kind::mxf8f6f4\.block_scale(\.scale_vec::1X)?(\.m16n8k32)?TYPES\.ue8m0",
        ("e4m3", "e5m2", "e2m1"), 32, _SM120, scaled=True,
    ),
)  # fmt: skip


def multiply(emitter: Emitter, instruction: Instruction) -> None:
    """`mma.sync.aligned` in the forms that have an accumulation model.

    Raises:
        isa.UnknownOpcode: another spelling, or no model of it for this chip.
        ValueError: its operands do not fit.
    """
    form, a_format, b_format, model = _resolve(emitter, instruction)
    operands = instruction.operands
    if len(operands) != (8 if form.scaled else 4):
        raise ValueError("wrong number of operands")
    per_register = {"bf16": 2, "f16": 2, "tf32": 1}.get(a_format, 4)
    count = form.k // per_register // 4
    destinations = _registers(operands[0], 4)
    parts = [
        _tuple(emitter, _registers(operand, size))
        for operand, size in zip(operands[1:4], (2 * count, count, 4), strict=True)
    ]
    scales = "()"
    if form.scaled:
        # nvcc writes the registers of scales as vectors of one.
        (a_word,), (b_word,) = _registers(operands[4], 1), _registers(operands[6], 1)
        words = [emitter.value(a_word, "b32"), *_selectors(emitter, operands[5])]
        words += [emitter.value(b_word, "b32"), *_selectors(emitter, operands[7])]
        scales = f"({', '.join(words)})"
    work = Mma(instruction, model, a_format, b_format, form.scaled)
    emitter.lines.append(f"v0, v1, v2, v3 = {emitter.bind('m', work)}(F, {', '.join(parts)}, {scales})")
    for position, register in enumerate(destinations):
        emitter.assign(instruction, register, f"v{position}", "b32")


def _resolve(emitter: Emitter, instruction: Instruction) -> tuple[Form, str, str, str]:
    """(form, format of A, format of B, model); what the model rests on here is noted."""
    spelling = instruction.opcode.removeprefix("mma.sync.aligned.")
    for form in _FORMS:
        match = form.pattern.fullmatch(spelling)
        if match is None or spelling == instruction.opcode or spelling.count("m16n8k32") > 1:
            continue
        a_format, b_format = match["a"], match["b"]
        family = next((name for name in form.models if emitter.module.target.startswith(name)), None)
        known = {a_format, b_format} <= set(form.formats)
        if not known or family is None or (form.k < 32 and a_format != b_format):
            continue
        model = form.models[family]
        pair = MODELS[model].pair(a_format, b_format)
        # A model of another chip's instruction is no more than a guess at this one's.
        evidence = pair.evidence if family else Evidence.EXTRAPOLATED
        emitter.models[model] = weakest(evidence.value, emitter.models.get(model))
        return form, a_format, b_format, model
    raise isa.UnknownOpcode(instruction.opcode)


def weakest(word: str, other: str | None) -> str:
    """The evidence that claims less."""
    order = [evidence.value for evidence in Evidence]
    return word if other is None or order.index(word) > order.index(other) else other


def _tuple(emitter: Emitter, registers: tuple[Operand, ...]) -> str:
    return f"({', '.join(emitter.value(register, 'b32') for register in registers)},)"


def _selectors(emitter: Emitter, operand: Operand) -> tuple[str, str]:
    if not isinstance(operand, Vector) or len(operand.elements) != 2:
        raise ValueError("a pair {byte-id, thread-id} needed")
    byte, thread = (emitter.value(element, "b16") for element in operand.elements)
    return byte, thread
