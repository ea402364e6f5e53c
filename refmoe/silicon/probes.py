"""Small kernels that run one instruction on every lane: load its operands, run it, store what it gives.

The executor's whole table is probed, and so are the atomics on global and shared memory, each lane on an address of its
own, and what warps exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.isa import DTYPES, Operation
from refmoe.silicon.opcodes import known_opcodes

CTA = 256
PTX_VERSION = "9.0"

_REGISTERS: Mapping[str, str] = {"b16": "%s", "b32": "%r", "b64": "%d", "pred": "%p"}
_MEMORY: Mapping[str, str] = {"b16": "u16", "b32": "u32", "b64": "u64"}
#: Sources are in registers 0 to 4, results in 5 to 7; 8 is for intermediate values.
_FIRST_RESULT = 5
#: Truth tables of lop3: constants, one operand, the usual functions of three, and some of no symmetry.
_TABLES = (0x00, 0x01, 0x1B, 0x3C, 0x80, 0x96, 0xAA, 0xC0, 0xCA, 0xCC, 0xD8, 0xE8, 0xEA, 0xF0, 0xFE, 0xFF)


@dataclass(frozen=True)
class Probe:
    """A kernel around one instruction.

    Attributes:
        name: the opcode; a constant operand follows it after a blank.
        sources: register kinds of what is loaded.
        results: register kinds of what is stored.
        body: the PTX lines between, from the names of the source and the result registers.
        exact_when: of the sources: the lanes whose results the executor claims to be the hardware's; None for all.
    """

    name: str
    sources: tuple[str, ...]
    results: tuple[str, ...]
    body: Callable[[Sequence[str], Sequence[str]], list[str]] = field(repr=False)
    exact_when: Callable[..., Any] | None = field(default=None, repr=False)


def all_probes() -> list[Probe]:
    """Every probe that the executor can run, whether or not a GPU has the instruction."""
    probes: list[Probe] = []
    for opcode, operation in known_opcodes().items():
        tables = [f"0x{table:02X}" for table in _TABLES] if opcode.startswith("lop3") else [""]
        probes += [_computing(opcode, operation, table) for table in tables]
    return [*probes, *_atomics(), *_warps()]


def register_kind(kind: str) -> str:
    """The kind of the register that holds a value: an 8-bit one lives in 16 bits."""
    return "b16" if kind == "b8" else kind


def stored_dtype(kind: str) -> np.dtype[Any]:
    """What a result is stored as: a predicate as 16 bits."""
    held = register_kind(kind)
    return np.dtype(np.uint16 if held == "pred" else DTYPES[held])


def module_text(probes: Sequence[Probe], arch: str) -> str:
    """One PTX module with the entries k0, k1, ... of the probes. An instruction's line ends in its probe's name."""
    entries = [_entry(f"k{index}", probe) for index, probe in enumerate(probes)]
    return "\n".join([f".version {PTX_VERSION}", f".target {arch}", ".address_size 64", *entries]) + "\n"


# --- the instruction table ------------------------------------------------------------------------------------------


def _computing(opcode: str, operation: Operation, table: str) -> Probe:
    """An entry of the executor's table. With `table`, lop3's fourth operand is that constant."""
    # The carry flag comes in as a predicate and goes out as a number.
    kinds = (*operation.sources, "pred") if operation.carry_in else operation.sources
    constant = 3 if table else None
    loaded = tuple(kind for i, kind in enumerate(kinds) if i != constant)

    def body(sources: Sequence[str], results: Sequence[str]) -> list[str]:
        lines, given, targets = [], list(sources), list(results)
        if operation.carry_in:  # 1 + 0xFFFFFFFF carries, 0 + 0xFFFFFFFF does not
            lines += [f"selp.u32 %r8, 1, 0, {given.pop()};", "add.cc.u32 %r8, %r8, 0xFFFFFFFF;"]
        carry = targets.pop() if operation.carry_out else None
        if constant is not None:
            given.insert(constant, table)
        lines.append(f"{opcode} {'|'.join(targets)}, {', '.join(given)}; // {name}")
        return [*lines, f"addc.u32 {carry}, 0, 0;"] if carry else lines

    def exact_when(*sources: Any) -> Any:
        assert operation.exact_when is not None
        return operation.exact_when(*sources[: len(operation.sources)])

    name = f"{opcode} {table}".strip()
    results = (*operation.destinations, "b32") if operation.carry_out else operation.destinations
    return Probe(name, loaded, results, body, exact_when if operation.exact_when else None)


# --- memory and warps -----------------------------------------------------------------------------------------------

_OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "f16x2", "bf16", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
}
_WIDTHS = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32}


def _atomics() -> Iterator[Probe]:
    for operation, types in _OPERATIONS.items():
        for type_name in types:
            for space in ("global", "shared"):
                for stem in ("atom",) if operation in ("exch", "cas") else ("atom", "red"):
                    yield _atomic(stem, space, operation, type_name)


def _atomic(stem: str, space: str, operation: str, type_name: str) -> Probe:
    """The first source is what lies in memory; the results are what lies there after, and what atom returns."""
    modifier = ".noftz" if type_name in _WIDTHS else ""
    opcode = f"{stem}.{space}.{operation}{modifier}.{type_name}"
    bits = _WIDTHS.get(type_name) or int(type_name[1:])
    kind, size = f"b{bits}", bits // 8
    operands = 2 if operation == "cas" else 1

    def body(sources: Sequence[str], results: Sequence[str]) -> list[str]:
        if space == "global":  # a place of the lane's own: where its result will lie
            where = [f"ld.param.u64 %base, [out0]; mad.lo.u64 %at, %lane, {size}, %base;"]
        else:
            where = [f"mov.u32 %r8, %tid.x; mul.wide.u32 %at, %r8, {size};"]
            where += ["mov.u64 %base, cells; add.u64 %at, %at, %base;"]
        returned = [results[1]] if stem == "atom" else []
        arguments = ", ".join([*returned, "[%at]", *sources[1:]])
        access = f"{space}.{_MEMORY[kind]}"
        return [
            *where,
            f"st.{access} [%at], {sources[0]};",
            f"{opcode} {arguments}; // {opcode}",
            f"ld.{access} {results[0]}, [%at];",
        ]

    exact_when = isa.resolve("add.rn.f64").exact_when if type_name == "f64" else None
    return Probe(opcode, (kind,) * (1 + operands), (kind,) * (2 if stem == "atom" else 1), body, exact_when)


def _warps() -> Iterator[Probe]:
    """Whole warps: every lane takes part."""
    for mode in ("up", "down", "bfly", "idx"):
        yield _exchange(f"shfl.sync.{mode}.b32", ("b32", "b32", "b32"), ("b32", "pred"))
    for mode in ("all", "any", "uni"):
        yield _exchange(f"vote.sync.{mode}.pred", ("pred",), ("pred",))
    yield _exchange("vote.sync.ballot.b32", ("pred",), ("b32",))
    for kind in ("b32", "b64"):
        yield _exchange(f"match.any.sync.{kind}", (kind,), ("b32",))
        yield _exchange(f"match.all.sync.{kind}", (kind,), ("b32", "pred"))
    arithmetic = ("add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32")
    for operation in (*arithmetic, "and.b32", "or.b32", "xor.b32"):
        yield _exchange(f"redux.sync.{operation}", ("b32",), ("b32",))


def _exchange(opcode: str, sources: tuple[str, ...], results: tuple[str, ...]) -> Probe:
    def body(given: Sequence[str], targets: Sequence[str]) -> list[str]:
        return [f"{opcode} {'|'.join(targets)}, {', '.join(given)}, 0xFFFFFFFF; // {opcode}"]

    return Probe(opcode, sources, results, body)


# --- the kernel -----------------------------------------------------------------------------------------------------


def _entry(name: str, probe: Probe) -> str:
    parameters = [f".param .u64 in{i}" for i in range(len(probe.sources))]
    parameters += [f".param .u64 out{i}" for i in range(len(probe.results))]
    sources = [f"{_REGISTERS[register_kind(kind)]}{i}" for i, kind in enumerate(probe.sources)]
    results = [f"{_REGISTERS[register_kind(kind)]}{_FIRST_RESULT + i}" for i, kind in enumerate(probe.results)]
    lines = [f".visible .entry {name}({', '.join(parameters)}) {{"]
    lines += [".reg .b32 %index, %block; .reg .b64 %at, %base, %lane;"]
    lines += [".reg .pred %p<9>; .reg .b16 %s<9>; .reg .b32 %r<9>; .reg .b64 %d<9>;"]
    lines += [f".shared .align 8 .b8 cells[{CTA * 8}];"] if ".shared." in probe.name else []
    lines += ["mov.u32 %index, %tid.x; mov.u32 %block, %ctaid.x;"]
    lines += [f"mad.lo.u32 %index, %block, {CTA}, %index; cvt.u64.u32 %lane, %index;"]
    for i, (kind, register) in enumerate(zip(probe.sources, sources, strict=True)):
        lines += _load(i, kind, register)
    lines += probe.body(sources, results)
    for i, (kind, register) in enumerate(zip(probe.results, results, strict=True)):
        lines += _store(i, kind, register)
    return "\n".join([*lines, "ret;", "}"])


def _load(i: int, kind: str, register: str) -> Iterator[str]:
    size = 1 if kind in ("pred", "b8") else np.dtype(DTYPES[kind]).itemsize
    yield f"ld.param.u64 %base, [in{i}]; mad.lo.u64 %at, %lane, {size}, %base;"
    if kind == "pred":
        yield f"ld.global.u8 %s8, [%at]; setp.ne.u16 {register}, %s8, 0;"
    elif kind == "b8":
        yield f"ld.global.u8 {register}, [%at];"
    else:
        yield f"ld.global.{_MEMORY[kind]} {register}, [%at];"


def _store(i: int, kind: str, register: str) -> Iterator[str]:
    yield f"ld.param.u64 %base, [out{i}]; mad.lo.u64 %at, %lane, {stored_dtype(kind).itemsize}, %base;"
    if kind == "pred":
        yield f"selp.u16 %s8, 1, 0, {register}; st.global.u16 [%at], %s8;"
    else:
        yield f"st.global.{_MEMORY[register_kind(kind)]} [%at], {register};"
