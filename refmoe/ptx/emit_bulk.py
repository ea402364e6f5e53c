"""Statements of bulk copies, of the instructions on tensor maps, and of proxy fences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from refmoe.ptx import isa
from refmoe.ptx.access import Access, Store
from refmoe.ptx.bulk_issue import BulkCommit, BulkLoad, BulkStore, BulkWait, TensorLoad, TensorStore
from refmoe.ptx.bulk_maps import MapAcquire, MapCopy, MapRelease, MapReplace, MapUse
from refmoe.ptx.syntax import Address, Immediate, Instruction, Operand
from refmoe.ptx.tensormap import MAP_BYTES

if TYPE_CHECKING:
    from refmoe.ptx.emit import Emitter

# A cluster has one CTA here, so that its shared memory is the own.
_LOAD_FORM = r"shared::(cluster|cta)\.global"
_STORE_FORM = r"global\.shared::cta"
_DONE = r"mbarrier::complete_tx::bytes"
_HINT = r"(?P<hint>\.L2::cache_hint)?"
_TENSOR = r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d"
_TENSOR_LOAD = re.compile(rf"{_TENSOR}\.{_LOAD_FORM}(\.tile)?\.{_DONE}{_HINT}")
_TENSOR_STORE = re.compile(rf"{_TENSOR}\.{_STORE_FORM}(\.tile)?\.bulk_group{_HINT}")
_LOAD = re.compile(rf"cp\.async\.bulk\.{_LOAD_FORM}\.{_DONE}{_HINT}")
_STORE = re.compile(rf"cp\.async\.bulk\.{_STORE_FORM}\.bulk_group{_HINT}")
_WAIT = re.compile(r"cp\.async\.bulk\.wait_group(?P<read>\.read)?")
_PREFETCH = re.compile(rf"cp\.async\.bulk\.prefetch\.(tensor\.[1-5]d\.L2\.global(\.tile)?|L2\.global){_HINT}")
_REPLACE = re.compile(
    r"tensormap\.replace\.tile\.(?P<field>global_address|rank|box_dim|global_dim|global_stride|element_stride|elemtype"
    r"|interleave_layout|swizzle_mode|fill_mode)\.(?P<space>global|shared::cta)\.b1024\.(?P<type>b32|b64)"
)
_COPY = re.compile(
    r"tensormap\.cp_fenceproxy\.global\.shared::cta\.tensormap::generic\.release\.(cta|cluster|gpu|sys)\.sync\.aligned"
)
_ASYNC_FENCE = re.compile(r"fence\.proxy\.async(\.(?P<space>global|shared::cta|shared::cluster))?")
_MAP_FENCE = re.compile(r"fence\.proxy\.tensormap::generic\.(?P<order>acquire|release)\.(cta|cluster|gpu|sys)")
_WITH_ORDINAL = ("box_dim", "global_dim", "global_stride", "element_stride")
_WIDE = ("global_address", "global_stride")
# The driver's rule for a CUtensorMap; instructions on 1024 bits need their natural alignment.
_MAP_ALIGN = 64


def bulk(emitter: Emitter, instruction: Instruction) -> None:
    """`cp.async.bulk` and `cp.async.bulk.tensor`.

    Raises:
        isa.UnknownOpcode: another spelling; `cp.reduce.async.bulk`, multicast, im2col and byte masks among them.
        ValueError: its operands do not fit.
    """
    emitter.has_bulk = emitter.has_mbarriers = True
    opcode, operands = instruction.opcode, instruction.operands
    guard = emitter.guard(instruction)
    if opcode == "cp.async.bulk.commit_group":
        _count(operands, 0)
        emitter.lines.append(f"{emitter.bind('b', BulkCommit())}(F, {guard})")
    elif (match := _WAIT.fullmatch(opcode)) is not None:
        _count(operands, 1)
        work = BulkWait(_integer(operands[0]), match["read"] is not None)
        emitter.lines.append(f"{emitter.bind('b', work)}(F, {guard})")
    elif (match := _TENSOR_LOAD.fullmatch(opcode)) is not None:
        target, tensor, barrier = _operands(operands, 3, match)
        load = TensorLoad(_own_store(instruction), _global(instruction), _barrier(instruction), _use(instruction))
        map_address, start = _tensor(emitter, tensor, int(match["rank"]))
        shared, bar = _shared(emitter, target), _shared(emitter, barrier)
        emitter.lines.append(f"{emitter.bind('b', load)}(F, {shared}, {map_address}, {start}, {bar}, {guard})")
    elif (match := _TENSOR_STORE.fullmatch(opcode)) is not None:
        tensor, source = _operands(operands, 2, match)
        store = TensorStore(_own(instruction), _global_store(instruction), _use(instruction))
        map_address, start = _tensor(emitter, tensor, int(match["rank"]))
        shared = _shared(emitter, source)
        emitter.lines.append(f"{emitter.bind('b', store)}(F, {map_address}, {start}, {shared}, {guard})")
    elif (match := _LOAD.fullmatch(opcode)) is not None:
        target, source, size, barrier = _operands(operands, 4, match)
        plain = BulkLoad(_own_store(instruction), _global(instruction), _barrier(instruction))
        shared, bar = _shared(emitter, target), _shared(emitter, barrier)
        origin, _ = emitter.address(source, "global")
        count = emitter.value(size, "b32")
        emitter.lines.append(f"{emitter.bind('b', plain)}(F, {shared}, {origin}, {count}, {bar}, {guard})")
    elif (match := _STORE.fullmatch(opcode)) is not None:
        target, source, size = _operands(operands, 3, match)
        shared = _shared(emitter, source)
        to, _ = emitter.address(target, "global")
        count = emitter.value(size, "b32")
        out = BulkStore(_own(instruction), _global_store(instruction))
        emitter.lines.append(f"{emitter.bind('b', out)}(F, {to}, {shared}, {count}, {guard})")
    elif (match := _PREFETCH.fullmatch(opcode)) is not None:
        # It reads nothing that the program sees.
        _operands(operands, 1 if "tensor" in match[1] else 2, match)
    else:
        raise isa.UnknownOpcode(opcode)


def tensor_map(emitter: Emitter, instruction: Instruction) -> None:
    """`tensormap.replace` and `tensormap.cp_fenceproxy`.

    Raises:
        isa.UnknownOpcode: another spelling.
        ValueError: its operands do not fit.
    """
    emitter.has_bulk = emitter.has_mbarriers = True
    opcode, operands = instruction.opcode, instruction.operands
    if _COPY.fullmatch(opcode) is not None:
        _count(operands, 3)
        if _integer(operands[2]) != MAP_BYTES:
            raise ValueError(f"a size of {_integer(operands[2])}, not {MAP_BYTES}")
        copy = MapCopy(
            Access(instruction, "shared", 8, MAP_BYTES // 8), Access(instruction, "shared", 8, 2),
            Store(instruction, "global", 8, MAP_BYTES // 8), Store(instruction, "global", 8, 2),
        )  # fmt: skip
        to, _ = emitter.address(operands[0], "global")
        emitter.lines.append(f"{emitter.bind('b', copy)}(F, {to}, {_shared(emitter, operands[1])})")
        return
    match = _REPLACE.fullmatch(opcode)
    if match is None or match["type"] != ("b64" if match["field"] in _WIDE else "b32"):
        raise isa.UnknownOpcode(opcode)
    numbered = match["field"] in _WITH_ORDINAL
    _count(operands, 2 + numbered)
    space = match["space"].split("::")[0]
    work = MapReplace(Access(instruction, space, 8, MAP_BYTES // 8), Store(instruction, space, 8, 2), match["field"])
    address, _ = emitter.address(operands[0], space)
    ordinal = _integer(operands[1]) if numbered else 0
    value = emitter.value(operands[-1], match["type"])
    guard = emitter.guard(instruction)
    emitter.lines.append(f"{emitter.bind('b', work)}(F, {address}, {ordinal}, {value}, {guard})")


def proxy_fence(emitter: Emitter, instruction: Instruction) -> bool:
    """`fence.proxy`; False for any other fence.

    Raises:
        isa.UnknownOpcode: another spelling of it.
        ValueError: its operands do not fit.
    """
    opcode, operands = instruction.opcode, instruction.operands
    if not opcode.startswith("fence.proxy."):
        return False
    guard = emitter.guard(instruction)
    if (match := _ASYNC_FENCE.fullmatch(opcode)) is not None:
        _count(operands, 0)
        space = "both" if match["space"] is None else match["space"].split("::")[0]
        emitter.lines.append(f"F.proxy_fence({space!r}, {guard})")
    elif (match := _MAP_FENCE.fullmatch(opcode)) is None:
        raise isa.UnknownOpcode(opcode)
    elif match["order"] == "release":
        _count(operands, 0)
        emitter.lines.append(f"{emitter.bind('b', MapRelease())}(F, {guard})")
    else:
        _count(operands, 2)
        if _integer(operands[1]) != MAP_BYTES:
            raise ValueError(f"a size of {_integer(operands[1])}, not {MAP_BYTES}")
        address, _ = emitter.address(operands[0], "generic")
        emitter.lines.append(f"{emitter.bind('b', MapAcquire())}(F, {address}, {guard})")
    return True


def _operands(operands: tuple[Operand, ...], needed: int, match: re.Match[str]) -> tuple[Operand, ...]:
    """The operands but for the cache policy."""
    _count(operands, needed + (match["hint"] is not None))
    return operands[:needed]


def _tensor(emitter: Emitter, operand: Operand, rank: int) -> tuple[str, str]:
    """(address of the tensor map, coordinates) of `[map, {c0, ...}]`."""
    if not isinstance(operand, Address) or len(operand.coordinates) != rank:
        raise ValueError(f"a tensor map with {rank} coordinates needed")
    values = ", ".join(emitter.value(coordinate, "b32") for coordinate in operand.coordinates)
    address, _ = emitter.address(Address(operand.base, operand.offset), "generic")
    return address, f"({values},)"


def _shared(emitter: Emitter, operand: Operand) -> str:
    return emitter.address(operand, "shared")[0]


def _own(instruction: Instruction) -> Access:
    return Access(instruction, "shared", 8, 2)


def _own_store(instruction: Instruction) -> Store:
    return Store(instruction, "shared", 8, 2)


def _global(instruction: Instruction) -> Access:
    return Access(instruction, "global", 8, 2)


def _global_store(instruction: Instruction) -> Store:
    return Store(instruction, "global", 8, 2)


def _barrier(instruction: Instruction) -> Access:
    return Access(instruction, "shared", 8, 1, strong=True)


def _use(instruction: Instruction) -> MapUse:
    whole = Access(instruction, "generic", 8, MAP_BYTES // 8, align=_MAP_ALIGN)
    return MapUse(whole, Access(instruction, "generic", 8, 2))


def _count(operands: tuple[Operand, ...], needed: int) -> None:
    if len(operands) != needed:
        raise ValueError(f"{needed} operands needed")


def _integer(operand: Operand) -> int:
    if not isinstance(operand, Immediate) or operand.form != "int" or operand.value < 0:
        raise ValueError("a constant of at least 0 needed")
    return operand.value
