"""Statements of instructions on textures and surfaces."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.emit.builder import Builder
from refmoe.ptx.engine.loads_and_stores import Access, Store
from refmoe.ptx.engine.textures.fetch import GEOMETRIES, Fetch
from refmoe.ptx.engine.textures.objects import TexelRead
from refmoe.ptx.engine.textures.queries import SURFACE_QUERIES, TEXTURE_QUERIES, IsType, Query
from refmoe.ptx.engine.textures.surfaces import (
    CLAMPS,
    REDUCTIONS,
    Places,
    SurfaceLoad,
    SurfaceReduction,
    SurfaceStore,
    reduction,
)
from refmoe.ptx.isa import DTYPES
from refmoe.ptx.state.textures import SurfaceObject, TextureObject
from refmoe.ptx.text.literals import BITS
from refmoe.ptx.text.syntax import Address, Instruction, Operand, Register, Sink

_GEOMETRY = rf"(?P<geometry>{'|'.join(GEOMETRIES)})"
_FETCH = re.compile(rf"tex(\.(?P<level>base|level|grad))?\.{_GEOMETRY}\.v4\.(?P<type>u32|s32|f32)\.(?P<of>s32|f32)")
_GATHER = re.compile(r"tld4\.(?P<component>[rgba])\.2d\.v4\.(?P<type>u32|s32|f32)\.f32")
_ON_SURFACES = (
    rf"(?P<geometry>[123]d|a[12]d)(\.v(?P<count>[24]))?\.b(?P<bits>8|16|32|64)\.(?P<clamp>{'|'.join(CLAMPS)})"
)
_LOAD = re.compile(rf"suld\.b\.{_ON_SURFACES}")
_STORE = re.compile(rf"sust\.b\.{_ON_SURFACES}")
_CONVERT = re.compile(
    rf"sust\.p\.(?P<geometry>[123]d|a[12]d)(\.v(?P<count>[24]))?\.(?P<type>b32|u32|s32|f32)\.(?P<clamp>{'|'.join(CLAMPS)})"
)
_REDUCE = re.compile(
    rf"sured\.(?P<form>[bp])\.(?P<operation>{'|'.join(REDUCTIONS)})\.(?P<geometry>[123]d)\.(?P<type>[usb]\d\d)"
    rf"\.(?P<clamp>{'|'.join(CLAMPS)})"
)
_QUERY = re.compile(r"(?P<stem>txq|suq)\.(?P<what>\w+)\.b32")
_IS = re.compile(r"istypep\.(?P<kind>texref|surfref|samplerref)")
_KINDS = {"texref": TextureObject, "surfref": SurfaceObject, "samplerref": None}
# By type of `sust.p`: kinds of elements that it stores without a conversion.
_UNCONVERTED = {"b32": "uif", "u32": "u", "s32": "i", "f32": "f"}
STEMS = ("tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep")


def texture(emitter: Builder, instruction: Instruction) -> None:
    """Any instruction on textures or surfaces.

    Raises:
        isa.NoSuchInstruction: another spelling.
        ValueError: its operands do not fit.
    """
    stem, opcode = instruction.opcode.split(".")[0], instruction.opcode
    if stem == "tex" and (match := _FETCH.fullmatch(opcode)) is not None:
        _fetch(emitter, instruction, match)
    elif stem == "tld4" and (match := _GATHER.fullmatch(opcode)) is not None:
        _gather(emitter, instruction, match)
    elif stem == "suld" and (match := _LOAD.fullmatch(opcode)) is not None:
        _load(emitter, instruction, match)
    elif stem == "sust" and (match := _STORE.fullmatch(opcode)) is not None:
        _store(emitter, instruction, match, int(match["bits"]) // 8, "")
    elif stem == "sust" and (match := _CONVERT.fullmatch(opcode)) is not None:
        _store(emitter, instruction, match, 4, _UNCONVERTED[match["type"]])
    elif stem == "sured" and (match := _REDUCE.fullmatch(opcode)) is not None:
        _reduce(emitter, instruction, match)
    elif stem in ("txq", "suq") and (match := _QUERY.fullmatch(opcode)) is not None:
        _query(emitter, instruction, match)
    elif stem == "istypep" and (match := _IS.fullmatch(opcode)) is not None:
        destination, handle = _count(instruction, 2)
        call = emitter.call(IsType(_KINDS[match["kind"]]), emitter.value(handle, "b64"))
        emitter.assign(instruction, destination, call, "pred")
    else:
        raise isa.NoSuchInstruction(opcode)


def _count(instruction: Instruction, count: int) -> tuple[Operand, ...]:
    """The operands, which must be so many."""
    if len(instruction.operands) != count:
        raise ValueError("offsets, depth comparison and residency are not here; wrong number of operands")
    return instruction.operands


def _place(emitter: Builder, operand: Operand, geometry: str) -> tuple[str, str]:
    """Expressions for the handle and the coordinates of `[a, {x, y}]`."""
    if not isinstance(operand, Address) or operand.offset or not operand.coordinates:
        raise ValueError("a handle and coordinates needed")
    given = operand.coordinates
    if len(given) > 1 and len(given) != (padded := 1 << (len(GEOMETRIES[geometry]) - 1).bit_length()):
        raise ValueError(f"{padded} coordinates needed, without a sampler: there are texture objects alone here")
    if len(given) < len(GEOMETRIES[geometry]):
        raise ValueError("too few coordinates")
    values = [emitter.value(each, "b32") for each in given[: len(GEOMETRIES[geometry])]]
    return _handle(emitter, operand), f"({', '.join(values)},)"


def _handle(emitter: Builder, operand: Address) -> str:
    if not isinstance(operand.base, Register) or operand.base.kind != "b64" or operand.offset:
        # .texref and .surfref variables, which CUDA has not had since version 12.
        raise ValueError("the handle of a texture or surface object needed, in a register of 64 bits")
    return emitter.local(operand.base)


def _fetch(emitter: Builder, instruction: Instruction, match: re.Match[str]) -> None:
    geometry, level = match["geometry"], match["level"]
    # Of a texture with one level neither a level of detail nor gradients choose another one.
    more = {"level": 1, "grad": 2}.get(level or "", 0)
    destination, source, *_ = _count(instruction, 2 + more)
    if geometry.endswith("cube") and match["of"] != "f32":
        raise isa.NoSuchInstruction(instruction.opcode)
    if level and match["of"] != "f32" and level != "base":
        raise isa.NoSuchInstruction(instruction.opcode)
    work = Fetch(instruction, geometry, match["type"] == "f32", match["of"] == "s32")
    _four(emitter, instruction, work, destination, source, geometry)


def _gather(emitter: Builder, instruction: Instruction, match: re.Match[str]) -> None:
    destination, source = _count(instruction, 2)
    component = "rgba".index(match["component"])
    work = Fetch(instruction, "2d", match["type"] == "f32", False, component)
    _four(emitter, instruction, work, destination, source, "2d")


def _four(
    emitter: Builder, instruction: Instruction, work: Any, destination: Operand, source: Operand, geometry: str
) -> None:
    handle, coordinates = _place(emitter, source, geometry)
    targets = [(element, "b32") for element in emitter.elements(destination, 4)]
    emitter.assign_all(instruction, targets, emitter.call(work, handle, coordinates, emitter.guard(instruction)))


def _registers(emitter: Builder, operand: Operand, count: int, size: int) -> list[Register | Sink]:
    found: list[Register | Sink] = []
    for element in emitter.elements(operand, count):
        if not isinstance(element, Register | Sink):
            raise ValueError("an element that is no register")
        if isinstance(element, Register) and (element.kind == "pred" or BITS[element.kind] < size * 8):
            raise ValueError("a register narrower than the element")
        found.append(element)
    return found


def _places(access: Access, match: re.Match[str], in_bytes: bool, elements: str = "") -> Places:
    return Places(access, match["geometry"], match["clamp"], in_bytes, elements)


def _load(emitter: Builder, instruction: Instruction, match: re.Match[str]) -> None:
    destination, source = _count(instruction, 2)
    size, count = int(match["bits"]) // 8, int(match["count"] or 1)
    elements = _registers(emitter, destination, count, size)
    dtypes = tuple(np.dtype(DTYPES[each.kind]) if isinstance(each, Register) else None for each in elements)
    read = TexelRead(instruction, "surface", size, count, signed=False, dtypes=dtypes)
    handle, coordinates = _place(emitter, source, match["geometry"])
    work = SurfaceLoad(_places(read, match, True), read)
    call = emitter.call(work, handle, coordinates, emitter.guard(instruction))
    wanted: list[tuple[Operand, str]] = [(each, each.kind) for each in elements if isinstance(each, Register)]
    if wanted:
        emitter.assign_all(instruction, wanted, call)
    else:
        emitter.lines.append(call)


def _store(emitter: Builder, instruction: Instruction, match: re.Match[str], size: int, elements: str) -> None:
    target, source = _count(instruction, 2)
    count = int(match["count"] or 1)
    values = []
    for element in emitter.elements(source, count):
        if isinstance(element, Register):
            _registers(emitter, element, 1, size)
            values.append(emitter.local(element))
        else:
            values.append(emitter.value(element, f"b{size * 8}"))
    write = Store(instruction, "surface", size, count)
    handle, coordinates = _place(emitter, target, match["geometry"])
    work = SurfaceStore(_places(write, match, not elements, elements), write)
    emitter.run(work, handle, coordinates, emitter.guard(instruction), f"({', '.join(values)},)")


def _reduce(emitter: Builder, instruction: Instruction, match: re.Match[str]) -> None:
    target, source = _count(instruction, 2)
    operation, kind, in_bytes = match["operation"], match["type"], match["form"] == "b"
    if not in_bytes and kind != "b32":
        raise isa.NoSuchInstruction(instruction.opcode)
    if in_bytes and kind not in REDUCTIONS[operation]:
        raise isa.NoSuchInstruction(instruction.opcode)
    if not in_bytes and operation in ("min", "max"):
        raise isa.NoSuchInstruction(instruction.opcode, "whose sign the surface decides is not here")
    access = reduction(instruction, operation, "u32" if kind == "b32" and operation == "add" else kind)
    handle, coordinates = _place(emitter, target, match["geometry"])
    value = emitter.value(source, f"b{kind[1:]}")
    work = SurfaceReduction(_places(access, match, in_bytes, "" if in_bytes else "ui"), access)
    emitter.run(work, handle, coordinates, emitter.guard(instruction), value)


def _query(emitter: Builder, instruction: Instruction, match: re.Match[str]) -> None:
    destination, source = _count(instruction, 2)
    known = TEXTURE_QUERIES if match["stem"] == "txq" else SURFACE_QUERIES
    if match["what"] not in known or not isinstance(source, Address) or source.coordinates:
        raise isa.NoSuchInstruction(instruction.opcode, "only sizes, levels and normalized_coords can be asked here")
    kind = TextureObject if match["stem"] == "txq" else SurfaceObject
    work = Query(instruction, kind, match["what"])
    call = emitter.call(work, _handle(emitter, source), emitter.guard(instruction))
    emitter.assign(instruction, destination, call, "b32")
