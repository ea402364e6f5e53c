"""Statements of bulk copies, of the instructions on tensor maps, and of proxy fences."""

from __future__ import annotations

import re

from refmoe.ptx import isa
from refmoe.ptx.emit.builder import Builder
from refmoe.ptx.engine.bulk.instructions import (
    BulkCommit,
    BulkLoad,
    BulkStore,
    BulkWait,
    TensorLoad,
    TensorPrefetch,
    TensorStore,
)
from refmoe.ptx.engine.bulk.maps import MapAcquire, MapCopy, MapRelease, MapReplace, MapUse
from refmoe.ptx.engine.bulk.reduce import SHARED_TYPES, TYPES, Reduction
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.state.records import GRID
from refmoe.ptx.state.tensormap import MAP_BYTES
from refmoe.ptx.text.syntax import Address, Immediate, Instruction, Operand, Vector

_LOAD_FORM = r"shared::(cluster|cta)\.global"
_STORE_FORM = r"global\.shared::cta"
_DONE = r"mbarrier::complete_tx::bytes"
_HINT = r"(?P<hint>\.L2::cache_hint)?"
_MULTICAST = r"(?P<multicast>\.multicast::cluster)?"
_TENSOR = r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d"
_IM2COL = r"(?P<mode>\.tile|\.im2col)?"
_NO_OFFSETS = r"(?P<mode>\.tile|\.im2col_no_offs)?"
_TENSOR_LOAD = re.compile(rf"{_TENSOR}\.{_LOAD_FORM}{_IM2COL}\.{_DONE}{_MULTICAST}{_HINT}")
_TENSOR_STORE = re.compile(rf"{_TENSOR}\.{_STORE_FORM}{_NO_OFFSETS}\.bulk_group{_HINT}")
_LOAD = re.compile(
    rf"cp\.async\.bulk\.({_LOAD_FORM}\.{_DONE}{_MULTICAST}|(?P<send>shared::cluster\.shared::cta)\.{_DONE}){_HINT}"
)
_STORE = re.compile(rf"cp\.async\.bulk\.{_STORE_FORM}\.bulk_group{_HINT}")
_WAIT = re.compile(r"cp\.async\.bulk\.wait_group(?P<read>\.read)?")
_TENSOR_PREFETCH = re.compile(rf"cp\.async\.bulk\.prefetch\.tensor\.(?P<rank>[1-5])d\.L2\.global{_IM2COL}{_HINT}")
_PREFETCH = re.compile(rf"cp\.async\.bulk\.prefetch\.L2\.global{_HINT}")
_OPERATION = r"(?P<operation>add|min|max|inc|dec|and|or|xor)"
_REDUCE = re.compile(
    rf"cp\.reduce\.async\.bulk\.(global\.shared::cta\.bulk_group{_HINT}|(?P<send>shared::cluster\.shared::cta)\.{_DONE})"
    rf"\.{_OPERATION}(?P<exact>\.noftz)?\.(?P<type>\w+)"
)
_TENSOR_REDUCE = re.compile(
    rf"cp\.reduce\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.{_STORE_FORM}\.{_OPERATION}{_NO_OFFSETS}\.bulk_group{_HINT}"
)
_REPLACE = re.compile(
    r"tensormap\.replace\.tile\.(?P<field>global_address|rank|box_dim|global_dim|global_stride|element_stride|elemtype"
    r"|interleave_layout|swizzle_mode|fill_mode)\.(?P<space>global|shared::cta)\.b1024\.(?P<type>b32|b64)"
)
_COPY = re.compile(
    r"tensormap\.cp_fenceproxy\.global\.shared::cta\.tensormap::generic\.release\.(cta|cluster|gpu|sys)\.sync\.aligned"
)
_ASYNC_FENCE = re.compile(r"fence\.proxy\.async(\.(?P<space>global|shared::cta|shared::cluster))?")
# In one direction, and of shared memory alone.
_ONE_WAY_FENCE = re.compile(
    r"fence\.proxy\.async::generic\.(acquire\.sync_restrict::shared::cluster|release\.sync_restrict::shared::cta)\.cluster"
)
_MAP_FENCE = re.compile(r"fence\.proxy\.tensormap::generic\.(?P<order>acquire|release)\.(cta|cluster|gpu|sys)")
_WITH_ORDINAL = ("box_dim", "global_dim", "global_stride", "element_stride")
_WIDE = ("global_address", "global_stride")
# The driver's rule for a CUtensorMap; instructions on 1024 bits need their natural alignment.
_MAP_ALIGN = 64


def bulk(emitter: Builder, instruction: Instruction) -> None:
    """`cp.async.bulk` and `cp.async.bulk.tensor`.

    Raises:
        isa.NoSuchInstruction: another spelling; `.im2col::w` and byte masks among them.
        ValueError: its operands do not fit.
    """
    emitter.has_bulk = emitter.has_mbarriers = emitter.lanes_synchronise = True
    opcode, operands = instruction.opcode, instruction.operands
    guard = emitter.guard(instruction)
    own, there = (instruction, "shared", 8, 2), (instruction, "global", 8, 2)
    phase = Access(instruction, "shared", 8, 1, strength=GRID)
    if opcode == "cp.async.bulk.commit_group":
        count_operands(operands, 0)
        emitter.run(BulkCommit(), guard)
    elif (match := _WAIT.fullmatch(opcode)) is not None:
        count_operands(operands, 1)
        emitter.run(BulkWait(integer(operands[0]), match["read"] is not None), guard)
    elif (match := _TENSOR_LOAD.fullmatch(opcode)) is not None:
        mode, offset = _mode(instruction, match), match["mode"] == ".im2col"
        target, tensor, barrier, *info = _operands(operands, 3 + offset, match)
        mask = _mask(emitter, operands, 3 + offset, match)
        map_address, start = _tensor(emitter, tensor, int(match["rank"]))
        shared, bar = _shared(emitter, target), _shared(emitter, barrier)
        load = TensorLoad(
            Store(*own, bounds=emitter.layout.bounded(instruction)), Access(*there), phase, _use(instruction), mode
        )
        offsets = _offsets(emitter, info, int(match["rank"]))
        emitter.run(load, shared, map_address, start, offsets, bar, mask, guard)
    elif (match := _TENSOR_STORE.fullmatch(opcode)) is not None:
        tensor, source = _operands(operands, 2, match)
        map_address, start = _tensor(emitter, tensor, int(match["rank"]))
        store = TensorStore(Access(*own), Store(*there), _use(instruction), _mode(instruction, match))
        emitter.run(store, map_address, start, _shared(emitter, source), guard)
    elif (match := _LOAD.fullmatch(opcode)) is not None:
        (target, source, size, barrier), mask = _operands(operands, 4, match), _mask(emitter, operands, 4, match)
        shared, bar = _shared(emitter, target), _shared(emitter, barrier)
        origin, _ = emitter.address(source, "shared" if match["send"] else "global")
        count = emitter.value(size, "b32")
        if match["send"] and match["hint"]:
            raise isa.NoSuchInstruction(opcode)
        read = Access(*own) if match["send"] else Access(*there)
        written = Store(*own, bounds=emitter.layout.bounded(instruction))
        emitter.run(BulkLoad(written, read, phase), shared, origin, count, bar, mask, guard)
    elif (match := _STORE.fullmatch(opcode)) is not None:
        target, source, size = _operands(operands, 3, match)
        shared = _shared(emitter, source)
        to, _ = emitter.address(target, "global")
        emitter.run(BulkStore(Access(*own), Store(*there)), to, shared, emitter.value(size, "b32"), guard)
    elif (match := _TENSOR_PREFETCH.fullmatch(opcode)) is not None:
        mode = _mode(instruction, match)
        tensor, *info = _operands(operands, 1 + (mode == "im2col"), match)
        map_address, start = _tensor(emitter, tensor, int(match["rank"]))
        offsets = _offsets(emitter, info, int(match["rank"]))
        emitter.run(TensorPrefetch(_use(instruction), mode), map_address, start, offsets, guard)
    elif (match := _PREFETCH.fullmatch(opcode)) is not None:
        # It reads nothing that the program sees.
        _operands(operands, 2, match)
    else:
        raise isa.NoSuchInstruction(opcode)


def reduce(emitter: Builder, instruction: Instruction) -> None:
    """`cp.reduce.async.bulk` and `cp.reduce.async.bulk.tensor`.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    emitter.has_bulk = emitter.has_mbarriers = True
    opcode, operands = instruction.opcode, instruction.operands
    guard = emitter.guard(instruction)
    own, there = (instruction, "shared", 8, 2), (instruction, "global", 8, 2)
    if (match := _TENSOR_REDUCE.fullmatch(opcode)) is not None:
        tensor, source = _operands(operands, 2, match)
        map_address, start = _tensor(emitter, tensor, int(match["rank"]))
        mode = _mode(instruction, match)
        store = TensorStore(Access(*own), Store(*there), _use(instruction), mode, match["operation"])
        emitter.run(store, map_address, start, _shared(emitter, source), guard)
        return
    match = _REDUCE.fullmatch(opcode)
    types = {} if match is None else SHARED_TYPES if match["send"] else TYPES
    # The halves are added without flushing, and say so.
    if match is None or match["type"] not in types[match["operation"]]:
        raise isa.NoSuchInstruction(opcode)
    if (match["exact"] is not None) != (match["operation"] == "add" and match["type"] in ("f16", "bf16")):
        raise isa.NoSuchInstruction(opcode)
    flushes = (match["operation"], match["type"]) == ("add", "f32")
    reduction = Reduction(match["operation"], match["type"], flushes)
    if match["send"]:
        target, source, size, barrier = _operands(operands, 4, match)
        phase = Access(instruction, "shared", 8, 1, strength=GRID)
        origin, _ = emitter.address(source, "shared")
        load = BulkLoad(Store(*own), Access(*own), phase, reduction)
        count, shared, bar = emitter.value(size, "b32"), _shared(emitter, target), _shared(emitter, barrier)
        emitter.run(load, shared, origin, count, bar, "None", guard)
        return
    target, source, size = _operands(operands, 3, match)
    to, _ = emitter.address(target, "global")
    write = BulkStore(Access(*own), Store(*there), reduction)
    emitter.run(write, to, _shared(emitter, source), emitter.value(size, "b32"), guard)


def tensor_map(emitter: Builder, instruction: Instruction) -> None:
    """`tensormap.replace` and `tensormap.cp_fenceproxy`.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    emitter.has_bulk = emitter.has_mbarriers = emitter.lanes_synchronise = True
    opcode, operands = instruction.opcode, instruction.operands
    if _COPY.fullmatch(opcode) is not None:
        count_operands(operands, 3)
        if integer(operands[2]) != MAP_BYTES:
            raise ValueError(f"a size of {integer(operands[2])}, not {MAP_BYTES}")
        copy = MapCopy(
            Access(instruction, "shared", 8, MAP_BYTES // 8), Access(instruction, "shared", 8, 2),
            Store(instruction, "global", 8, MAP_BYTES // 8), Store(instruction, "global", 8, 2),
        )  # fmt: skip
        to, _ = emitter.address(operands[0], "global")
        emitter.run(copy, to, _shared(emitter, operands[1]))
        return
    match = _REPLACE.fullmatch(opcode)
    if match is None or match["type"] != ("b64" if match["field"] in _WIDE else "b32"):
        raise isa.NoSuchInstruction(opcode)
    numbered = match["field"] in _WITH_ORDINAL
    count_operands(operands, 2 + numbered)
    space = match["space"].split("::")[0]
    work = MapReplace(Access(instruction, space, 8, MAP_BYTES // 8), Store(instruction, space, 8, 2), match["field"])
    address, _ = emitter.address(operands[0], space)
    ordinal = integer(operands[1]) if numbered else 0
    value = emitter.value(operands[-1], match["type"])
    guard = emitter.guard(instruction)
    emitter.run(work, address, str(ordinal), value, guard)


def proxy_fence(emitter: Builder, instruction: Instruction) -> bool:
    """`fence.proxy`; False for any other fence.

    Raises:
        isa.NoSuchInstruction: another spelling of it.
        ValueError: its operands do not fit.
    """
    opcode, operands = instruction.opcode, instruction.operands
    if not opcode.startswith("fence.proxy."):
        return False
    # It is its thread's own.
    emitter.lanes_synchronise = True
    guard = emitter.guard(instruction)
    if opcode == "fence.proxy.alias":
        # Of two addresses of one place: there are none here.
        count_operands(operands, 0)
    elif _ONE_WAY_FENCE.fullmatch(opcode):
        count_operands(operands, 0)
        emitter.lines.append(f"F.proxy_fence('shared', {guard})")
    elif (match := _ASYNC_FENCE.fullmatch(opcode)) is not None:
        count_operands(operands, 0)
        space = "both" if match["space"] is None else match["space"].split("::")[0]
        emitter.lines.append(f"F.proxy_fence({space!r}, {guard})")
    elif (match := _MAP_FENCE.fullmatch(opcode)) is None:
        raise isa.NoSuchInstruction(opcode)
    elif match["order"] == "release":
        count_operands(operands, 0)
        emitter.run(MapRelease(), guard)
    else:
        count_operands(operands, 2)
        if integer(operands[1]) != MAP_BYTES:
            raise ValueError(f"a size of {integer(operands[1])}, not {MAP_BYTES}")
        address, _ = emitter.address(operands[0], "generic")
        emitter.run(MapAcquire(), address, guard)
    return True


def _operands(operands: tuple[Operand, ...], needed: int, match: re.Match[str]) -> tuple[Operand, ...]:
    """The operands but for the mask of blocks and the cache policy."""
    multicast = match.groupdict().get("multicast") is not None
    count_operands(operands, needed + multicast + (match["hint"] is not None))
    return operands[:needed]


def _mask(emitter: Builder, operands: tuple[Operand, ...], position: int, match: re.Match[str]) -> str:
    """Expression for the blocks of a multicast, None without."""
    return "None" if match["multicast"] is None else emitter.value(operands[position], "b16")


def _mode(instruction: Instruction, match: re.Match[str]) -> str:
    """The mode of a spelling's tensor maps; isa.NoSuchInstruction for images of fewer than 3 dimensions."""
    if match["mode"] in (None, ".tile"):
        return "tiled"
    if int(match["rank"]) < 3:
        raise isa.NoSuchInstruction(instruction.opcode)
    return "im2col"


def _offsets(emitter: Builder, info: list[Operand], rank: int) -> str:
    """Expression for the im2col offsets `{w, h, d}`, of which there are two fewer than coordinates; `()` without."""
    if not info:
        return "()"
    elements = info[0].elements if isinstance(info[0], Vector) else ()
    if len(elements) != rank - 2:
        raise ValueError(f"{rank - 2} im2col offsets needed for {rank} dimensions")
    return f"({', '.join(emitter.value(offset, 'b16') for offset in elements)},)"


def _tensor(emitter: Builder, operand: Operand, rank: int) -> tuple[str, str]:
    """(address of the tensor map, coordinates) of `[map, {c0, ...}]`."""
    if not isinstance(operand, Address) or len(operand.coordinates) != rank:
        raise ValueError(f"a tensor map with {rank} coordinates needed")
    values = ", ".join(emitter.value(coordinate, "b32") for coordinate in operand.coordinates)
    address, _ = emitter.address(Address(operand.base, operand.offset), "generic")
    return address, f"({values},)"


def _shared(emitter: Builder, operand: Operand) -> str:
    return emitter.address(operand, "shared")[0]


def _use(instruction: Instruction) -> MapUse:
    whole = Access(instruction, "generic", 8, MAP_BYTES // 8, align=_MAP_ALIGN)
    return MapUse(whole, Access(instruction, "generic", 8, 2))


def count_operands(operands: tuple[Operand, ...], needed: int) -> None:
    """ValueError unless there are `needed` operands."""
    if len(operands) != needed:
        raise ValueError(f"{needed} operands needed")


def integer(operand: Operand) -> int:
    """The value of a constant; ValueError for anything else, and below 0."""
    if not isinstance(operand, Immediate) or operand.form != "int" or operand.value < 0:
        raise ValueError("a constant of at least 0 needed")
    return operand.value
