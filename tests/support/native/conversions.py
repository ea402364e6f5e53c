"""Spellings of cvt, and operands on which conversions show what they do."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from support.native.forms import Form, differences, values

from refmoe.ptx import isa
from refmoe.ptx.ops.evaluate import run
from refmoe.ptx.ops.lanes import BITS, LANES, LaneBuilder, vector
from refmoe.ptx.ops.table import lowering
from refmoe.silicon.opcodes import NARROW, candidates
from refmoe.silicon.operands import operands

Array = Any


def known(candidates: Sequence[str]) -> list[str]:
    """Those that are spellings."""
    found = []
    for opcode in candidates:
        try:
            isa.resolve(opcode)
        except isa.NoSuchInstruction:
            continue
        found.append(opcode)
    return found


@cache
def conversions(narrow: bool) -> dict[str, list[str]]:
    """Every spelling of cvt to or from the narrow formats, or every other one, by its types: {"f16.s32": [...]}."""
    found = [opcode for opcode in candidates() if opcode.startswith("cvt.")]
    # A compiler that reads them is newer than the one that `candidates` is held against.
    found += [f"cvt.rn.{relu}bf16x2.{each}" for each in NARROW for relu in ("", "relu.")]
    found += [f"cvt.rn.satfinite.{relu}{each}.bf16x2" for each in NARROW for relu in ("", "relu.")]
    # The two may change places.
    found += [each.replace(".relu.satfinite", ".satfinite.relu") for each in found]
    found += [each.replace(".satfinite.relu", ".relu.satfinite") for each in found]
    every = known(sorted(set(found)))
    groups: dict[str, list[str]] = {}
    for opcode in every:
        parts = opcode.split(".")
        if any(part in NARROW for part in parts) == narrow:
            groups.setdefault("pack" if "pack" in parts else ".".join(parts[-2:]), []).append(opcode)
    return groups


@cache
def sources(kinds: tuple[str, ...]) -> tuple[Array, ...]:
    """Integers at which roundings are decided; `values`, crossed where there are two sources; those of GPU probes."""
    if "b64" in kinds or "b32" in kinds:
        bits = BITS[kinds[0]]
        places = (8, 9, 11, 12, 24, 25, 53, 54)
        # A leading one, a last place that stays or the tie below it, and a trace at the end.
        near = {
            (1 << top) + (digit << max(top - place, 0)) + trace
            for top in range(bits)
            for place in places
            for digit in (1, 3)
            for trace in (-1, 0, 1)
        }
        both = sorted({sign * each & (1 << bits) - 1 for each in near for sign in (1, -1)})
        integers = np.array(both, np.uint64).astype(isa.DTYPES[kinds[0]])
    else:
        integers = np.zeros(0, isa.DTYPES[kinds[0]])
    crossed = [each.ravel() for each in np.meshgrid(*(values(kind) for kind in kinds[:2]))]
    crossed += [np.resize(values(kind), crossed[0].size) for kind in kinds[2:]]
    rows = [
        (np.roll(integers, i), one, two)
        for i, (one, two) in enumerate(zip(crossed, operands("cvt", kinds), strict=True))
    ]
    return tuple(np.concatenate(row) for row in rows)


def wrong(opcodes: Sequence[str]) -> list[str]:
    """Where the native code of spellings with the same types differs from what they specify.

    The operands are not known when the code is compiled, or one of them is, or all are.
    """
    found = []
    for kinds in dict.fromkeys(isa.resolve(opcode).sources for opcode in opcodes):
        group = [opcode for opcode in opcodes if isa.resolve(opcode).sources == kinds]
        given = sources(kinds)
        # In Python integers the specification takes a second for all of them.
        exact64 = [o for o in group if ".f64." in o and o[-2:] == "64" and o[4:6] in ("rz", "rm", "rp")]
        one_known = [Form(each, constants={i: _drawn(each, k)}) for each in group for i, k in enumerate(kinds)]
        found += differences([*(Form(each) for each in group if each not in exact64), *one_known], given)
        found += differences([Form(each) for each in exact64], [each[:4000] for each in given])
        found += _wrong_folded(group, kinds)
    return found


def _drawn(opcode: str, kind: str) -> int:
    """One of `values`, for each spelling another."""
    choices = values(kind)
    return int(choices[zlib.crc32(opcode.encode()) % choices.size])


def _wrong_folded(opcodes: Sequence[str], kinds: tuple[str, ...]) -> list[str]:
    """As `wrong`, of operands that are all known: the compiler converts them."""
    rng = np.random.default_rng(zlib.crc32("".join(opcodes).encode()))
    choices = [values(kind) for kind in kinds]
    forms = [(each, [rng.choice(some, LANES) for some in choices]) for each in opcodes]

    def all_of_them(lanes: LaneBuilder, _: Sequence[Any]) -> list[Any]:
        made: list[Any] = []
        for opcode, columns in forms:
            lower = lowering(opcode)
            assert lower is not None
            known = [ir.Constant(vector(BITS[k]), x.tolist()) for k, x in zip(kinds, columns, strict=True)]
            made += lower(lanes, known)
        return made

    results = [isa.resolve(opcode).destinations[0] for opcode, _ in forms]
    native = run(all_of_them, ["b32"], results, [np.zeros(LANES, np.uint32)])
    found = []
    for (opcode, columns), ours in zip(forms, native, strict=True):
        with np.errstate(all="ignore"):
            theirs = isa.resolve(opcode).function(*columns)
        for lane in np.flatnonzero(ours != theirs)[:1]:
            operand = ", ".join(f"{int(x[lane]):#x}" for x in columns)
            found.append(f"{opcode} with all known: ({operand}): {int(ours[lane]):#x} for {int(theirs[lane]):#x}")
    return found
