"""Statements of the tensor-core instructions: `ldmatrix`, `stmatrix`, `mma`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from refmoe import chips
from refmoe.evidence import Evidence, target_word, weakest
from refmoe.ptx import isa
from refmoe.ptx.emit import plain
from refmoe.ptx.emit.builder import Builder
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.engine.tensor.matrix import PACKINGS, LoadMatrix, MoveMatrix, StoreMatrix
from refmoe.ptx.engine.tensor.mma import Mma
from refmoe.ptx.text.spellings import accumulates_single
from refmoe.ptx.text.syntax import Instruction, Operand, Register, Sink, Vector
from refmoe.reference.mma import MODELS

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_SPACES = ("shared", "shared::cta")


def load_matrix(emitter: Builder, instruction: Instruction) -> None:
    """`ldmatrix` of 8 x 8 cells of 16 bits, of 8 rows of 16 packed elements of 4 or 6 bits, and of 16 x 16 bytes.

    Those 16 x 16 are always transposed, and may be packed too.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    count, transposed, space, cells = _matrix(instruction)
    shape, _, elements = cells.partition(".")
    packing, square = PACKINGS.get(elements.removeprefix("b8x16.")), shape == "m16n16"
    if square:
        known = transposed and count <= 2 and (packing is not None or elements == "b8")
    else:
        known = cells == "m8n8.b16" or (shape == "m8n16" and packing is not None and not transposed)
    if not known:
        raise isa.NoSuchInstruction(instruction.opcode)
    destinations = _elements(instruction.operands[0], 2 * count if square else count)
    address, space = emitter.address(instruction.operands[1], space)
    row, word = Access(instruction, space, 8, 2), Access(instruction, space, 4, 1)
    work = LoadMatrix(row, word, count, transposed, packing, square)
    emitter.assign_all(instruction, [(register, "b32") for register in destinations], emitter.call(work, address))


def store_matrix(emitter: Builder, instruction: Instruction) -> None:
    """`stmatrix` of 8 x 8 cells of 16 bits, and of 16 x 8 bytes stored by columns.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    count, transposed, space, cells = _matrix(instruction)
    if cells != "m8n8.b16" and (cells != "m16n8.b8" or not transposed):
        raise isa.NoSuchInstruction(instruction.opcode)
    address, space = emitter.address(instruction.operands[0], space)
    sources = _registers(instruction.operands[1], count)
    row, word = Store(instruction, space, 8, 2), Store(instruction, space, 4, 1)
    work = StoreMatrix(row, word, count, transposed, cells == "m16n8.b8")
    values = ", ".join(emitter.value(register, "b32") for register in sources)
    emitter.run(work, address, f"({values},)")


def _matrix(instruction: Instruction) -> tuple[int, bool, str, str]:
    """(matrices, transposed, space, shape and type) of a spelling.

    Behind `.sync.aligned` and in front of the type ptxas takes the parts in any order (CUTLASS: `.x4.trans.m8n8`).
    """
    parts = instruction.opcode.split(".")
    counts = [part for part in parts if part in _COUNTS]
    spaces = [part for part in parts if part in _SPACES]
    rest = [part for part in parts[3:] if part not in (*_COUNTS, *_SPACES, "trans")]
    if (
        parts[1:3] != ["sync", "aligned"]
        or len(counts) != 1
        or len(spaces) > 1
        or parts.count("trans") > 1
        or rest[-1:] != parts[-1:]
    ):
        raise isa.NoSuchInstruction(instruction.opcode)
    if len(instruction.operands) != 2:
        raise ValueError("two operands needed")
    return _COUNTS[counts[0]], "trans" in parts, "shared" if spaces else "generic", ".".join(rest)


def _elements(operand: Operand, count: int) -> tuple[Operand, ...]:
    """Destinations, each a register or `_`."""
    elements = operand.elements if isinstance(operand, Vector) else ()
    kept = tuple(element for element in elements if not isinstance(element, Sink))
    if len(elements) != count:
        raise ValueError(f"a vector of {count} registers of 32 bits needed")
    _registers(Vector(kept), len(kept))
    return elements


def _registers(operand: Operand, count: int) -> tuple[Operand, ...]:
    elements = operand.elements if isinstance(operand, Vector) else ()
    if len(elements) != count or not all(isinstance(e, Register) and e.kind == "b32" for e in elements):
        raise ValueError(f"a vector of {count} registers of 32 bits needed")
    return elements


@dataclass(frozen=True)
class MmaFamily:
    """What a family of `mma` spellings means.

    Attributes:
        shape: `m16n8k<K>`.
        kinds: the sets of modifiers that it may have besides.
        formats: what the element formats may be.
        mma: what it is in the table of chips, which says how it adds up on each.
        scales: block scales of a row that follow, 0 for none.
        scale_format: of these.
        packed: whether a byte holds two elements of 4 bits.
    """

    shape: str
    kinds: tuple[frozenset[str], ...]
    formats: tuple[str, ...]
    mma: chips.Mma
    scales: int = 0
    scale_format: str = ""
    packed: bool = False

    @property
    def k(self) -> int:
        """Elements of K."""
        return int(self.shape.removeprefix("m16n8k"))


_MMA = re.compile(r"(?P<shape>m16n8k\d+)\.row\.col\.f32\.(?P<a>\w+)\.(?P<b>\w+)\.f32(\.(?P<scale>ue8m0|ue4m3))?")
_PLAIN = (frozenset[str](),)
_MIXED = (frozenset({"kind::f8f6f4"}),)
_BLOCK_SCALED = frozenset({"kind::mxf8f6f4", "block_scale"})
_FORMS = (
    MmaFamily("m16n8k16", _PLAIN, ("bf16", "f16"), chips.Mma.SYNC_BF16),
    MmaFamily("m16n8k8", _PLAIN, ("bf16", "f16", "tf32"), chips.Mma.SYNC_K8),
    MmaFamily("m16n8k4", _PLAIN, ("tf32",), chips.Mma.SYNC_K4),
    MmaFamily("m16n8k32", _PLAIN, ("e4m3", "e5m2"), chips.Mma.SYNC_FP8),
    MmaFamily("m16n8k32", _MIXED, ("e4m3", "e5m2", "e2m1"), chips.Mma.SYNC_F8F6F4),
    MmaFamily(
        "m16n8k32",
        (_BLOCK_SCALED, _BLOCK_SCALED | {"scale_vec::1X"}),
        ("e4m3", "e5m2", "e2m1"),
        chips.Mma.SYNC_MX,
        scales=1,
        scale_format="ue8m0",
    ),
    # kind::mxf4nvf4 has to name its scale_vec, kind::mxf4 has only one.
    MmaFamily(
        "m16n8k64",
        (
            frozenset({"kind::mxf4nvf4", "block_scale", "scale_vec::2X"}),
            frozenset({"kind::mxf4", "block_scale", "scale_vec::2X"}),
            frozenset({"kind::mxf4", "block_scale"}),
        ),
        ("e2m1",),
        chips.Mma.SYNC_MXF4,
        scales=2,
        scale_format="ue8m0",
        packed=True,
    ),
    MmaFamily(
        "m16n8k64",
        (frozenset({"kind::mxf4nvf4", "block_scale", "scale_vec::4X"}),),
        ("e2m1",),
        chips.Mma.SYNC_NVF4,
        scales=4,
        scale_format="ue4m3",
        packed=True,
    ),
)


def move_matrix(emitter: Builder, instruction: Instruction) -> None:
    """`movmatrix`: a matrix of 8x8 elements of 16 bits, transposed from registers to registers.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    emitter.spelled(instruction, "movmatrix.sync.aligned.m8n8.trans.b16")
    if len(instruction.operands) != 2:
        raise ValueError("wrong number of operands")
    destination, source = instruction.operands
    call = emitter.call(MoveMatrix(instruction), emitter.value(source, "b32"))
    emitter.assign(instruction, destination, call, "b32")


def multiply(emitter: Builder, instruction: Instruction) -> None:
    """`mma.sync.aligned`: with FP32 accumulators in the forms that have an accumulation model.

    Raises:
        isa.NoSuchInstruction: another spelling, or no model of it for this chip.
        ValueError: its operands do not fit.
    """
    if not accumulates_single(instruction):
        plain.multiply(emitter, instruction)
        return
    form, a_format, b_format, model = _resolve(emitter, instruction)
    operands = instruction.operands
    if len(operands) != (8 if form.scales else 4):
        raise ValueError("wrong number of operands")
    per_register = {"bf16": 2, "f16": 2, "tf32": 1}.get(a_format, 8 if form.packed else 4)
    count = form.k // per_register // 4
    destinations = _registers(operands[0], 4)
    parts = [
        _tuple(emitter, _registers(operand, size))
        for operand, size in zip(operands[1:4], (2 * count, count, 4), strict=True)
    ]
    scales = "()"
    if form.scales:
        words = [_scale(emitter, operands[4]), *_selectors(emitter, operands[5])]
        words += [_scale(emitter, operands[6]), *_selectors(emitter, operands[7])]
        scales = f"({', '.join(words)})"
    work = Mma(instruction, model, a_format, b_format, form.scales, form.packed, form.scale_format)
    emitter.products[instruction] = work
    targets = [(register, "b32") for register in destinations]
    emitter.assign_all(instruction, targets, emitter.call(work, *parts, scales))


def _resolve(emitter: Builder, instruction: Instruction) -> tuple[MmaFamily, str, str, str]:
    """(form, format of A, format of B, model); what the model rests on here is noted."""
    parts = instruction.opcode.split(".")
    # ptxas takes the kind before the shape, after it, and behind the layouts.
    kind = [part for part in parts[3:] if "::" in part or part == "block_scale"]
    match = _MMA.fullmatch(".".join(part for part in parts[3:] if part not in kind))
    had = chips.sums_of(emitter.module.target)
    for form in _FORMS:
        if match is None or parts[1:3] != ["sync", "aligned"] or len(kind) != len(set(kind)):
            break
        a_format, b_format = match["a"], match["b"]
        sums = had.get(form.mma, chips.ChipSums())
        fits = match["shape"] == form.shape and frozenset(kind) in form.kinds
        fits &= {a_format, b_format} <= set(form.formats) and (match["scale"] or "") == form.scale_format
        if not fits or not sums.model or (form.k < 32 and a_format != b_format):
            continue
        assumed = MODELS[sums.model].pair(a_format, b_format).assumed
        evidence = target_word(emitter.module.target, form.mma, (a_format, b_format), assumed)
        note(emitter, sums.model, evidence)
        return form, a_format, b_format, sums.model
    raise isa.NoSuchInstruction(instruction.opcode)


def note(emitter: Builder, model: str, evidence: Evidence) -> None:
    """Note that an instruction adds up by a model; of several words about it, the one that claims least counts."""
    known = [Evidence(emitter.models[model])] if model in emitter.models else []
    emitter.models[model] = weakest([evidence, *known]).value


def _tuple(emitter: Builder, registers: tuple[Operand, ...]) -> str:
    return f"({', '.join(emitter.value(register, 'b32') for register in registers)},)"


def _scale(emitter: Builder, operand: Operand) -> str:
    """A register, or, as nvcc writes it, a vector of one."""
    if isinstance(operand, Vector):
        (operand,) = _registers(operand, 1)
    return emitter.value(operand, "b32")


def _selectors(emitter: Builder, operand: Operand) -> tuple[str, str]:
    if not isinstance(operand, Vector) or len(operand.elements) != 2:
        raise ValueError("a pair {byte-id, thread-id} needed")
    byte, thread = (emitter.value(element, "b16") for element in operand.elements)
    return byte, thread
