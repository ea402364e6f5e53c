"""Statements of the instructions on clusters and their launches, and of those that only advise the chip."""

from __future__ import annotations

import re

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.emit.builder import Builder
from refmoe.ptx.emit.bulk import count_operands, integer
from refmoe.ptx.engine.atomics import Atomic
from refmoe.ptx.engine.bulk.ranges import DISCARDED, Discard, StoreRange
from refmoe.ptx.engine.cluster.memory import MapAddress, RankOf
from refmoe.ptx.engine.launch_control import Cancel, FirstBlock, IsCancelled, granted
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.engine.previous_grid import GridWait
from refmoe.ptx.engine.remote_async import WriteAsync
from refmoe.ptx.engine.tensor.register_pool import SetRegisters
from refmoe.ptx.state.records import GRID
from refmoe.ptx.text.scopes import type_bits
from refmoe.ptx.text.syntax import Immediate, Instruction, Operand, Sink

_MAPA = re.compile(r"(mapa|getctarank)(?P<shared>\.shared::cluster)?\.u(?P<bits>32|64)")
_PRIMARY = r"L2::evict_(last|normal|first|unchanged)"
_SECONDARY = r"(\.L2::evict_(first|unchanged))?"
# Where data lie in caches, how many registers a warp may use, when the next grid may start: no result depends on them.
_POLICY = re.compile(
    rf"createpolicy\.(fractional\.{_PRIMARY}{_SECONDARY}|range(\.global)?\.{_PRIMARY}{_SECONDARY}|cvt\.L2)\.b64"
)
_ADVICE = re.compile(
    r"prefetch(\.(global|local))?\.(L1|L2|L2::evict_(last|normal))|prefetchu\.L1|prefetch(\.(const|param))?\.tensormap"
    r"|nanosleep\.u32|pmevent(\.mask)?|applypriority(\.global)?\.L2::evict_normal|griddepcontrol\.(launch_dependents|wait)"
)
# Operands of those that do not take one address, or one number.
_ADVISED = {"applypriority": 2, "griddepcontrol": 0}
_DISCARD = re.compile(r"discard(?P<global>\.global)?\.L2")
_STORE_BULK = re.compile(r"st\.bulk(\.weak)?(?P<shared>\.shared::cta)?")
_COMPLETES = r"\.shared::cluster\.mbarrier::complete_tx::bytes"
_STORE_ASYNC = re.compile(
    rf"st\.async(\.weak)?{_COMPLETES}(\.v(?P<count>[24]))?\.(?P<type>b32|b64|u32|u64|s32|s64|f32|f64)"
)
_REDUCE_ASYNC = re.compile(
    rf"red\.async\.relaxed\.cluster{_COMPLETES}\.(?P<operation>inc|dec|min|max|add|and|or|xor)"
    r"\.(?P<type>u32|s32|u64|b32)"
)
_CANCEL = re.compile(
    r"clusterlaunchcontrol\.try_cancel(?P<shared>\.shared::cta)?\.async(\.shared::cta)?\.mbarrier::complete_tx::bytes"
    r"(?P<multicast>\.multicast::cluster::all)?\.b128"
)
_QUERY = re.compile(
    r"clusterlaunchcontrol\.query_cancel\."
    r"(is_canceled\.pred|get_first_ctaid(\.(?P<all>v4)|::(?P<axis>[xyz]))\.b32)\.b128"
)
_REGISTERS = re.compile(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32")


def map_address(emitter: Builder, instruction: Instruction) -> None:
    """`mapa d, address, rank`.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    kind, generic = _parts(instruction, 3)
    destination, source, rank = instruction.operands
    values = emitter.value(source, kind), emitter.value(rank, "b32"), emitter.guard(instruction)
    emitter.assign(instruction, destination, emitter.call(MapAddress(instruction, generic), *values), kind)


def rank_of(emitter: Builder, instruction: Instruction) -> None:
    """`getctarank d, address`: the type is that of the address, the rank has 32 bits.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    kind, generic = _parts(instruction, 2)
    destination, source = instruction.operands
    call = emitter.call(RankOf(instruction, generic), emitter.value(source, kind), emitter.guard(instruction))
    emitter.assign(instruction, destination, call, "b32")


def _parts(instruction: Instruction, operands: int) -> tuple[str, bool]:
    """(register kind of the address, whether it is generic)."""
    match = _MAPA.fullmatch(instruction.opcode)
    # A generic address has 64 bits in this address size.
    if match is None or (match["shared"] is None and match["bits"] == "32"):
        raise isa.NoSuchInstruction(instruction.opcode)
    count_operands(instruction.operands, operands)
    return f"b{match['bits']}", match["shared"] is None


def write_async(emitter: Builder, instruction: Instruction) -> None:
    """`st.async [a], b, [mbar]` and `red.async`.

    Raises:
        isa.NoSuchInstruction: another spelling; without `.shared::cluster` it would write global memory, or anywhere.
        ValueError: its operands do not fit.
    """
    opcode = instruction.opcode
    if _STORE_ASYNC.fullmatch(opcode) is None and _REDUCE_ASYNC.fullmatch(opcode) is None:
        raise isa.NoSuchInstruction(opcode)
    count_operands(instruction.operands, 3)
    target, value, barrier = instruction.operands
    work: Store | Atomic
    if (match := _STORE_ASYNC.fullmatch(opcode)) is not None:
        count, size = int(match["count"] or 1), type_bits(match["type"]) // 8
        work = Store(instruction, "shared", size, count)
    elif (match := _REDUCE_ASYNC.fullmatch(opcode)) is not None:
        count, size = 1, type_bits(match["type"]) // 8
        function = isa.resolve_atomic(match["operation"], match["type"])
        work = Atomic(
            instruction, "shared", size, 1, strength=GRID, function=function, global_function=function,
            dtype=np.dtype(f"u{size}"),
        )  # fmt: skip
    else:
        raise isa.NoSuchInstruction(opcode)
    emitter.has_mbarriers = emitter.lanes_synchronise = True
    values = [emitter.value(element, f"b{size * 8}") for element in emitter.elements(value, count)]
    address, _ = emitter.address(target, "shared")
    phase, _ = emitter.address(barrier, "shared")
    write = WriteAsync(work, Access(instruction, "shared", 8, 1, strength=GRID))
    emitter.run(write, address, f"({', '.join(values)},)", phase, emitter.guard(instruction))


def launch_control(emitter: Builder, instruction: Instruction) -> None:
    """`clusterlaunchcontrol.try_cancel [a], [mbar]` and `.query_cancel d, answer`.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    count_operands(instruction.operands, 2)
    first, second = instruction.operands
    if (match := _CANCEL.fullmatch(instruction.opcode)) is not None:
        emitter.has_mbarriers = emitter.lanes_synchronise = True
        space = "shared" if "shared::cta" in instruction.opcode else "generic"
        address, _ = emitter.address(first, space)
        barrier, _ = emitter.address(second, space)
        multicast = match["multicast"] is not None
        reached = "generic" if multicast else space
        answer = Store(instruction, reached, 4, 4)
        write = WriteAsync(answer, Access(instruction, reached, 8, 1, strength=GRID))
        work = Cancel(instruction, write, multicast)
        emitter.run(work, address, barrier, emitter.guard(instruction))
        return
    match = _QUERY.fullmatch(instruction.opcode)
    if match is None:
        raise isa.NoSuchInstruction(instruction.opcode)
    halves = [emitter.value(half, "b64") for half in emitter.elements(second, 2)]
    if "is_canceled" in instruction.opcode:
        call = emitter.call(IsCancelled(), *halves, emitter.guard(instruction))
        emitter.assign(instruction, first, call, "pred")
        return
    emitter.note(instruction, granted, halves)
    axes: tuple[Operand, ...] = tuple(first if axis == match["axis"] else Sink() for axis in "xyz_")
    targets = emitter.elements(first, 4) if match["all"] else axes
    emitter.assign_all(instruction, [(each, "b32") for each in targets], emitter.call(FirstBlock(), *halves))


def store_bulk(emitter: Builder, instruction: Instruction) -> None:
    """`st.bulk [a], size, 0`.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    match = _STORE_BULK.fullmatch(instruction.opcode)
    if match is None:
        raise isa.NoSuchInstruction(instruction.opcode)
    count_operands(instruction.operands, 3)
    target, size, value = instruction.operands
    if not isinstance(value, Immediate) or value.value != 0:
        raise ValueError("an initial value of 0 needed")
    space = "generic" if match["shared"] is None else "shared"
    address, _ = emitter.address(target, space)
    count = emitter.value(size, "b32" if isinstance(size, Immediate) else "b64")
    emitter.run(StoreRange(Store(instruction, space, 8, 1)), address, count, emitter.guard(instruction))


def discard(emitter: Builder, instruction: Instruction) -> None:
    """`discard [a], 128`.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    match = _DISCARD.fullmatch(instruction.opcode)
    if match is None:
        raise isa.NoSuchInstruction(instruction.opcode)
    count_operands(instruction.operands, 2)
    if integer(instruction.operands[1]) != DISCARDED:
        raise ValueError(f"a size of {DISCARDED} needed")
    space = "generic" if match["global"] is None else "global"
    address, _ = emitter.address(instruction.operands[0], space)
    whole = Store(instruction, space, 16, DISCARDED // 16, align=DISCARDED)
    emitter.run(Discard(whole, Store(instruction, space, 16, 1)), address, emitter.guard(instruction))


def advise(emitter: Builder, instruction: Instruction) -> None:
    """Instructions that change no result: prefetches, cache policies, events, register counts, dependent grids.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    opcode = instruction.opcode
    if _POLICY.fullmatch(opcode):
        # An opaque word that only cache hints read: any value does.
        emitter.assign(instruction, instruction.operands[0], emitter.constant(0, "b64"), "b64")
    elif _REGISTERS.fullmatch(opcode):
        (count,) = instruction.operands
        if not isinstance(count, Immediate) or not 24 <= count.value <= 256 or count.value % 8:
            raise ValueError("a multiple of 8 from 24 to 256 registers needed")
        emitter.run(SetRegisters(instruction))
    elif _ADVICE.fullmatch(opcode) is None:
        raise isa.NoSuchInstruction(opcode)
    elif opcode == "griddepcontrol.wait":
        count_operands(instruction.operands, 0)
        emitter.run(GridWait(), emitter.guard(instruction))
    elif len(instruction.operands) != _ADVISED.get(opcode.split(".")[0], 1):
        raise ValueError("wrong number of operands")
