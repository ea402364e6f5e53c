"""Statements of `wgmma`: the products of warpgroups, their fences and their groups."""

from __future__ import annotations

from refmoe.chips import CHIPS, Mma
from refmoe.evidence import target_word
from refmoe.ptx import isa
from refmoe.ptx.emit.builder import Builder
from refmoe.ptx.emit.bulk import count_operands, integer
from refmoe.ptx.emit.tensor import note
from refmoe.ptx.engine.loads_and_stores import Access
from refmoe.ptx.engine.tensor.sums import HalfSums, IntegerSums, SingleSums, Sums
from refmoe.ptx.engine.tensor.wgmma import Commit, Fence, Product, Touch, Wait
from refmoe.ptx.program.registers import operands_of
from refmoe.ptx.program.warpgroup import COMMIT, FENCE, WAIT
from refmoe.ptx.text import wgmma
from refmoe.ptx.text.syntax import Instruction, Register
from refmoe.ptx.text.wgmma import Form
from refmoe.reference.mma import MODELS
from refmoe.reference.mma.half import HALF_MODELS

_FP8 = ("e4m3", "e5m2")


def warpgroup(emitter: Builder, instruction: Instruction) -> None:
    """Every `wgmma` instruction.

    Raises:
        isa.NoSuchInstruction: another spelling, or another target.
        ValueError: its operands do not fit.
    """
    having = [chip.arch for chip in CHIPS.values() if Mma.WGMMA_BF16 in chip.sums]
    if emitter.module.target not in having:
        why = f"wgmma is of {' and '.join(having)} alone, not of {emitter.module.target}"
        raise isa.NoSuchInstruction(instruction.opcode, why)
    # Products read through the asynchronous proxy, and their reads are an agent's.
    emitter.has_bulk = emitter.has_mbarriers = emitter.has_warpgroups = True
    if instruction.opcode == FENCE:
        count_operands(instruction.operands, 0)
        emitter.run(Fence(instruction))
    elif instruction.opcode == COMMIT:
        count_operands(instruction.operands, 0)
        emitter.run(Commit(instruction))
    elif instruction.opcode == WAIT:
        count_operands(instruction.operands, 1)
        emitter.run(Wait(instruction, integer(instruction.operands[0])))
    else:
        _product(emitter, instruction)


def _product(emitter: Builder, instruction: Instruction) -> None:
    form = wgmma.form_of(instruction.opcode)
    if form is None:
        raise isa.NoSuchInstruction(instruction.opcode)
    given = wgmma.operands_of(form, instruction)
    work = Product(
        Access(instruction, "shared", 8, 2),
        form,
        tuple(each.name for each in given.d if isinstance(each, Register)),
        tuple(each.name for each in given.a or () if isinstance(each, Register)),
        given.a_sign * given.b_sign < 0,
        given.a_across,
        given.b_across,
        _sums(emitter, form),
        given.selector,
    )
    a_place = "None" if given.a_place is None else emitter.value(given.a_place, "b64")
    metadata = "None" if given.metadata is None else emitter.value(given.metadata, "b32")
    emitter.run(work, a_place, emitter.value(given.b_place, "b64"), metadata, emitter.value(given.adds, "pred"))


def _sums(emitter: Builder, form: Form) -> Sums:
    """How a form adds up; what that rests on is noted."""
    if form.d == "s32":
        return IntegerSums(form.bits, form.a == "s8", form.b == "s8", form.saturates, form.sparse)
    mma = Mma.WGMMA_FP8 if form.a in _FP8 else Mma.WGMMA_BF16
    sums = CHIPS[emitter.module.target].sums[mma]
    single = MODELS[sums.model]
    model = single if form.d == "f32" else HALF_MODELS[form.a]
    assumed = model.pair(form.a, form.b).assumed
    word = target_word(emitter.module.target, mma, (form.a, form.b), assumed, accumulator=form.d)
    note(emitter, model.name, word)
    if model is single:
        return SingleSums(model.name, form.a, form.b, form.sparse)
    return HalfSums(model, form.a, form.b, form.sparse)


def touch(emitter: Builder, instruction: Instruction) -> None:
    """Let an instruction report the registers that it accesses, before it does."""
    written, read = operands_of(instruction)
    names = frozenset(register.name for register in (*written, *read))
    emitter.run(Touch(instruction, names), emitter.guard(instruction))
