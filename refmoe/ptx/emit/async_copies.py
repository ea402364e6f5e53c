"""Statements of the instructions that copy and wait asynchronously: `cp.async` and `mbarrier`."""

from __future__ import annotations

import re

from refmoe.ptx import isa
from refmoe.ptx.emit import bulk
from refmoe.ptx.emit.builder import Builder
from refmoe.ptx.emit.bulk import count_operands, integer
from refmoe.ptx.engine.copies import CopyAsync, CopyCommit, CopyWait
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.engine.mbarrier import Arrive, CopyArrive, Create, Destroy, Expect, Wait
from refmoe.ptx.engine.mbarrier_table import pending_count
from refmoe.ptx.state.records import GRID
from refmoe.ptx.text.syntax import Instruction, Not, Operand, Register

_HINTS = r"(?P<hints>(\.L2::(cache_hint|64B|128B|256B))*)"
_COPY = re.compile(rf"cp\.async\.(?P<cache>ca|cg)\.shared(::cta)?\.global{_HINTS}")
_OWN = r"(?P<space>\.shared(::cta)?)?"
_ANY = r"(?P<space>\.shared(::cta|::cluster)?)?"
_SCOPE = r"(?P<scope>\.(cta|cluster))"
_RELEASE = rf"((?P<order>\.release|\.relaxed){_SCOPE})?"
_COPY_ARRIVE = re.compile(rf"cp\.async\.mbarrier\.arrive(?P<noinc>\.noinc)?{_OWN}\.b64")
_LIFE = re.compile(rf"mbarrier\.(?P<verb>init|inval){_OWN}\.b64")
_ARRIVE = re.compile(
    rf"mbarrier\.(?P<verb>arrive|arrive_drop)(?P<form>\.noComplete|\.expect_tx)?{_RELEASE}(?P<late>\.noComplete)?{_ANY}\.b64"
)
_EXPECT = re.compile(rf"mbarrier\.(?P<verb>expect_tx|complete_tx)(\.relaxed{_SCOPE})?{_ANY}\.b64")
_WAIT = re.compile(
    rf"mbarrier\.(?P<verb>test_wait|try_wait)(?P<parity>\.parity)?((?P<order>\.acquire|\.relaxed){_SCOPE})?{_OWN}\.b64"
)


def copy(emitter: Builder, instruction: Instruction) -> None:
    """`cp.async`, the bulk forms included.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    opcode, operands = instruction.opcode, instruction.operands
    if opcode.startswith("cp.async.bulk."):
        bulk.bulk(emitter, instruction)
        return
    if opcode.startswith("cp.reduce.async.bulk."):
        bulk.reduce(emitter, instruction)
        return
    guard = emitter.guard(instruction)
    if opcode in ("cp.async.commit_group", "cp.async.wait_all"):
        count_operands(operands, 0)
        emitter.run(CopyCommit() if opcode.endswith("group") else CopyWait(0, everything=True), guard)
        return
    if opcode == "cp.async.wait_group":
        count_operands(operands, 1)
        emitter.run(CopyWait(integer(operands[0])), guard)
        return
    if (match := _COPY_ARRIVE.fullmatch(opcode)) is not None:
        count_operands(operands, 1)
        access, address = _object(emitter, instruction, match["space"], operands[0])
        emitter.run(CopyArrive(access, increments=match["noinc"] is None), address, guard)
        return
    match = _COPY.fullmatch(opcode)
    hints = [] if match is None else match["hints"].split(".")[1:]
    hinted = "L2::cache_hint" in hints
    # At most one of each kind.
    if match is None or hints.count("L2::cache_hint") > 1 or len(hints) - hinted > 1:
        raise isa.NoSuchInstruction(opcode)
    if not 3 + hinted <= len(operands) <= 4 + hinted:
        raise ValueError("wrong number of operands")
    width = integer(operands[2])
    if width not in (4, 8, 16) or (match["cache"] == "cg" and width != 16):
        raise ValueError(f"a copy of {width} bytes")
    size = emitter.constant(width, "b32")
    if len(operands) == 4 + hinted:
        size = _copy_size(emitter, operands[3], size)
    target, _ = emitter.address(operands[0], "shared")
    source, _ = emitter.address(operands[1], "global")
    element = min(width, 8)
    written = Store(instruction, "shared", element, width // element, bounds=emitter.layout.bounded(instruction))
    read = Access(instruction, "global", element, width // element)
    emitter.run(CopyAsync(instruction, written, read), target, source, size, guard)


def _copy_size(emitter: Builder, operand: Operand, whole: str) -> str:
    """Expression for the bytes that a copy reads: `src-size`, or none of them where `ignore-src` is on."""
    if isinstance(operand, Not) or (isinstance(operand, Register) and operand.kind == "pred"):
        return f"select({emitter.value(operand, 'pred')}, {emitter.constant(0, 'b32')}, {whole})"
    return emitter.value(operand, "b32")


def mbarrier(emitter: Builder, instruction: Instruction) -> None:
    """Every `mbarrier` instruction.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    emitter.has_mbarriers = emitter.lanes_synchronise = True
    opcode, operands = instruction.opcode, instruction.operands
    guard = emitter.guard(instruction)
    if opcode == "mbarrier.pending_count.b64":
        count_operands(operands, 2)
        state = emitter.value(operands[1], "b64")
        emitter.assign(instruction, operands[0], f"{emitter.bind('c', pending_count)}({state})", "b32")
    elif (match := _LIFE.fullmatch(opcode)) is not None:
        count_operands(operands, 2 if match["verb"] == "init" else 1)
        access, address = _object(emitter, instruction, match["space"], operands[0])
        if match["verb"] == "inval":
            emitter.run(Destroy(access), address, guard)
            return
        emitter.run(Create(access), address, emitter.value(operands[1], "b32"), guard)
    elif (match := _EXPECT.fullmatch(opcode)) is not None:
        count_operands(operands, 2)
        access, address = _object(emitter, instruction, match["space"], operands[0])
        expect = Expect(access, 1 if match["verb"] == "expect_tx" else -1)
        emitter.run(expect, address, emitter.value(operands[1], "b32"), guard)
    elif (match := _ARRIVE.fullmatch(opcode)) is not None:
        _arrive(emitter, instruction, match)
    elif (match := _WAIT.fullmatch(opcode)) is not None:
        _wait(emitter, instruction, match)
    else:
        raise isa.NoSuchInstruction(opcode)


def _arrive(emitter: Builder, instruction: Instruction, match: re.Match[str]) -> None:
    destination, place, *rest = instruction.operands
    form = match["form"] or match["late"]
    if match["form"] and match["late"]:
        raise isa.NoSuchInstruction(instruction.opcode)
    needed = form is not None
    if not needed <= len(rest) <= 1:
        raise ValueError("wrong number of operands")
    access, address = _object(emitter, instruction, match["space"], place)
    count, owed = emitter.constant(1, "b32"), emitter.constant(0, "b32")
    if rest and form == ".expect_tx":
        owed = emitter.value(rest[0], "b32")
    elif rest:
        count = emitter.value(rest[0], "b32")
    work = Arrive(
        access,
        releases=match["order"] != ".relaxed",
        own_block=match["scope"] == ".cta",
        drops=match["verb"] == "arrive_drop",
        completes=form != ".noComplete",
    )
    call = emitter.call(work, address, count, owed, emitter.guard(instruction))
    emitter.assign(instruction, destination, call, "b64")


def _wait(emitter: Builder, instruction: Instruction, match: re.Match[str]) -> None:
    # The last operand may be a time limit; lanes wait here as long as it takes.
    destination, place, token, *rest = instruction.operands
    if len(rest) > (match["verb"] == "try_wait"):
        raise ValueError("wrong number of operands")
    access, address = _object(emitter, instruction, match["space"], place)
    acquires, own_block = match["order"] != ".relaxed", match["scope"] == ".cta"
    work = Wait(access, parity=match["parity"] is not None, acquires=acquires, own_block=own_block)
    asked = emitter.value(token, "b32" if work.parity else "b64")
    if match["verb"] == "try_wait":
        emitter.waits[emitter.block] = work, f"({address}, {asked})"
    call = emitter.call(work, address, asked, emitter.guard(instruction))
    emitter.assign(instruction, destination, call, "pred")


def _object(emitter: Builder, instruction: Instruction, space: str | None, operand: Operand) -> tuple[Access, str]:
    """The access of a barrier, and its address; without a space the address is generic."""
    address, _ = emitter.address(operand, "shared" if space else "generic")
    return Access(instruction, "shared" if space else "generic", 8, 1, strength=GRID), address
