"""Native forms of opcodes held against their specification, many in one module: one costs as much as forty."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refmoe.ptx import isa
from refmoe.ptx.isa.floats import FLOATS
from refmoe.ptx.ops.evaluate import run
from refmoe.ptx.ops.lanes import BITS, LaneBuilder
from refmoe.ptx.ops.table import lowering
from refmoe.silicon.opcodes import known_opcodes
from refmoe.silicon.operands import operands

Array = Any
BATCH = 64
# What a source is known to be when nothing else is said.
KNOWN: Mapping[str, Sequence[int]] = {
    "pred": (0, 1),
    "b16": (0, 1, 0xFFFF, 0x8000, 0x00FF, 0x5678),
    "b32": (0, 1, 0xFFFFFFFF, 0x80000000, 0x0000000A, 0x12348765),
    "b64": (0, 1, 0xFFFFFFFFFFFFFFFF, 0x8000000000000000, 0x0000000A, 0x123456789ABCDEF0),
}


@dataclass(frozen=True)
class Form:
    """An opcode, written with so many destinations, and the sources that are known when it is compiled."""

    opcode: str
    destinations: int = 1
    constants: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        known = ", ".join(f"source {i} = {value:#x}" for i, value in self.constants.items())
        return f"{self.opcode}{' p|q' if self.destinations == 2 else ''}{f' with {known}' if known else ''}"


def source_kinds(opcode: str, destinations: int = 1) -> list[str]:
    """Of all sources, the carry too."""
    operation = isa.resolve(opcode, destinations)
    return [*operation.sources, *["pred"] * operation.carry_in]


def differences(forms: Sequence[Form], sources: Sequence[Array]) -> list[str]:
    """Forms whose native code and specification differ, each with the first lane in which they do.

    A form takes as many of the sources as it has.
    """
    return [
        found
        for i in range(0, len(forms), BATCH)
        for form, native in zip(forms[i : i + BATCH], _native(forms[i : i + BATCH], sources), strict=True)
        for found in _difference(form, native, sources)
    ]


def _native(forms: Sequence[Form], sources: Sequence[Array]) -> list[list[Array]]:
    """The results of each form."""
    operations = [isa.resolve(form.opcode, form.destinations) for form in forms]
    results = [[*each.destinations, *["pred"] * each.carry_out] for each in operations]
    lowerings = [lowering(form.opcode, form.destinations) for form in forms]
    dtypes = {np.dtype(dtype): kind for kind, dtype in isa.DTYPES.items()}
    kinds = [dtypes[source.dtype] for source in sources]

    def all_of_them(lanes: LaneBuilder, values: Sequence[Any]) -> list[Any]:
        made = []
        for form, lower in zip(forms, lowerings, strict=True):
            assert lower is not None, f"{form} has no native form"
            own = source_kinds(form.opcode, form.destinations)
            assert own == kinds[: len(own)]
            given = [
                lanes.constant(form.constants[i], BITS[kind]) if i in form.constants else values[i]
                for i, kind in enumerate(own)
            ]
            made += lower(lanes, given)
        return made

    made = iter(run(all_of_them, kinds, list(itertools.chain(*results)), sources))
    return [list(itertools.islice(made, len(kinds))) for kinds in results]


def _difference(form: Form, native: Sequence[Array], sources: Sequence[Array]) -> list[str]:
    operation = isa.resolve(form.opcode, form.destinations)
    kinds = source_kinds(form.opcode, form.destinations)
    given = [isa.DTYPES[kind](form.constants[i]) if i in form.constants else sources[i] for i, kind in enumerate(kinds)]
    with np.errstate(all="ignore"):
        specified = operation.function(*given)
    specified = specified if isinstance(specified, tuple) else (specified,)
    assert len(native) == len(specified)
    wrong = np.zeros(sources[0].shape, np.bool_)
    for ours, theirs in zip(native, specified, strict=True):
        assert ours.dtype == theirs.dtype, form
        wrong |= ours != theirs
    if not wrong.any():
        return []
    lane = int(np.argmax(wrong))
    operand = ", ".join(f"{int(np.broadcast_to(x, wrong.shape)[lane]):#x}" for x in given)
    ours = ", ".join(f"{int(x[lane]):#x}" for x in native)
    theirs = ", ".join(f"{int(np.broadcast_to(x, wrong.shape)[lane]):#x}" for x in specified)
    return [f"{form}: {wrong.sum()} of {wrong.size} lanes, ({operand}): {ours} for {theirs}"]


# --- operands -------------------------------------------------------------------------------------------------------


def values(kind: str) -> Array:
    """Register contents at which instructions change what they do, and a few others.

    Small numbers; powers of two and their neighbours; halves and bytes at their limits; alternating bits; zeros, the
    ends of the ranges, infinities and NaNs of the floating-point formats of the width.
    """
    if kind == "pred":
        return np.array([False, True])
    bits = BITS[kind]
    mask = (1 << bits) - 1
    found = {*range(5), *(1 << i for i in range(bits)), mask // 3, mask // 3 * 2}
    found |= {pattern & mask for pattern in (0x8000FFFF7FFF0001, 0x80FF7F0180FF7F01, 0x0123456789ABCDEF)}
    found |= {(1 << i) + step for i in range(7, bits, 8) for step in (-1, 1)} | {bits - 1, bits, bits + 1}
    found |= {mask ^ each for each in (0, 1, 2, 3, *(1 << i for i in range(7, bits, 8)))}
    for format in FLOATS.values():
        if format.bits == bits:
            least = 1 << format.mantissa
            numbers = (0, 1, least - 1, least, least + 1, format.one, format.one + 1, format.infinity - 1)
            others = (format.infinity, format.infinity + 1, format.infinity + format.quiet, format.sign - 1)
            found |= {sign | each for each in (*numbers, *others) for sign in (0, format.sign)}
    drawn = np.random.default_rng(bits).bytes(bits)
    return np.concatenate(
        [np.array(sorted(found), np.uint64).astype(isa.DTYPES[kind]), np.frombuffer(drawn, isa.DTYPES[kind])]
    )


def forms(opcode: str, destinations: int = 1, constants: Mapping[int, Sequence[int]] | None = None) -> list[Form]:
    """An opcode with all of its sources at run time, with one of them known, and with all.

    Args:
        opcode: the full spelling.
        destinations: as it is written.
        constants: by number of the source, the values that it is known with, in place of `KNOWN`.
    """
    kinds = source_kinds(opcode, destinations)
    known = [(constants or {}).get(i, KNOWN[kind]) for i, kind in enumerate(kinds)]
    alone = [{i: value} for i, choices in enumerate(known) for value in choices]
    # Each value of each source once, beside others of the others.
    together = [{i: choices[(k + i * k // 3) % len(choices)] for i, choices in enumerate(known)} for k in range(5)]
    return [Form(opcode, destinations, each) for each in ({}, *alone, *together)]


def family(builders: Mapping[str, Any]) -> list[str]:
    """Every spelling whose specification is in `builders`, of a type that is no floating-point one."""
    return [
        opcode
        for opcode in known_opcodes()
        if opcode.split(".")[0] in builders and opcode.split(".")[-1].removesuffix("x2") not in FLOATS
    ]


def grid(opcode: str, destinations: int = 1, step: int = 1) -> list[Array]:
    """Operands: the first two of `values` crossed, the others drawn from them; and one in `step` of a GPU's probes."""
    kinds = source_kinds(opcode, destinations)
    rng = np.random.default_rng(zlib.crc32(opcode.encode()))
    firsts = [values(kind) for kind in kinds]
    crossed = [x.ravel() for x in np.meshgrid(*firsts[:2])]
    crossed += [rng.choice(each, crossed[0].size) for each in firsts[2:]]
    return [np.concatenate([x, y[::step]]) for x, y in zip(crossed, operands(opcode, kinds), strict=True)]
