"""Comparisons, selections and mov in native code against their specification."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from support.native.forms import Form, differences, forms, grid, source_kinds
from support.selection.thinned import thinned

from refmoe.ptx import isa
from refmoe.ptx.ops.table import lowering

INTEGERS = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64")
TYPES = (*INTEGERS, "f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
RELATIONS = ("eq", "ne", "lt", "le", "gt", "ge")
NAMES = (*RELATIONS, "lo", "ls", "hi", "hs", *(f"{name}u" for name in RELATIONS), "num", "nan")
BOOLEANS = ("", "and", "or", "xor")
# A number, a NaN and -0 in every format of the kind; of the packed ones a half each.
KNOWN = {
    "b16": (0x3F80, 0x7FFF, 0x8000),
    "b32": (0x3F803C00, 0x7FFF8000, 0x80000000),
    "b64": (0x3FF0000000000000, 0xFFF8000000000000, 0x8000000000000000),
}
RESULTS = ("u16", "s16", "u32", "s32", "f16", "bf16", "f32", "f16x2", "bf16x2")


def known(opcode: str, destinations: int = 1) -> bool:
    try:
        isa.resolve(opcode, destinations)
    except isa.NoSuchInstruction:
        return False
    return True


def spelled(*parts: tuple[str, ...]) -> Iterator[str]:
    """Those of all choices of parts that are opcodes."""
    return filter(known, (".".join(filter(None, choice)) for choice in itertools.product(*parts)))


def comparisons(mnemonic: str, type_name: str) -> list[Form]:
    """Every spelling for a type of source, the plain ones also with sources that are known."""
    results = RESULTS if mnemonic == "set" else ("",)
    opcodes = list(spelled((mnemonic,), NAMES, BOOLEANS, ("", "ftz"), results, (type_name,)))
    every = [Form(opcode, count) for opcode in opcodes for count in (1, 2) if known(opcode, count)]
    # What LLVM folds is the comparison: a BoolOp, another result and a second destination only follow it.
    folded = [opcode for opcode in opcodes if mnemonic == "setp" and not {*BOOLEANS} & {*opcode.split(".")}]
    folded += [opcode for opcode in opcodes if opcode.startswith(("setp.eq.and.", "set.ne.xor.u32."))]
    known_sources = dict.fromkeys((0, 1), KNOWN[source_kinds(opcodes[0])[0]])
    return every + [form for opcode in folded for form in forms(opcode, 1, known_sources) if form.constants]


OTHERS = sorted(
    [
        *spelled(("mov", "selp"), ("pred", *TYPES)),
        *spelled(("slct",), ("", "ftz"), TYPES, ("s32", "f32", "u32")),
        *spelled(("testp",), ("finite", "infinite", "number", "notanumber", "normal", "subnormal"), TYPES),
    ]
)


@pytest.mark.parametrize(("mnemonic", "type_name"), thinned(list(itertools.product(("setp", "set"), TYPES)), 3))
def test_a_comparison_is_the_specification(mnemonic: str, type_name: str) -> None:
    every = comparisons(mnemonic, type_name)
    longest = next(form.opcode for form in every if ".xor." in form.opcode)
    found = differences(every, grid(longest, step=8))
    assert not found, f"{len(found)} of {len(every)}\n" + "\n".join(found[:20])


@pytest.mark.parametrize("opcode", thinned(OTHERS, 3))
def test_a_selection_is_the_specification(opcode: str) -> None:
    found = differences(forms(opcode), grid(opcode))
    assert not found, "\n".join(found)


def test_every_spelling_has_a_native_form() -> None:
    compared = itertools.product(("setp", "set"), TYPES)
    opcodes = {*OTHERS, *(form.opcode for each in compared for form in comparisons(*each))}
    assert len(opcodes) == 4052
    assert [opcode for opcode in sorted(opcodes) if lowering(opcode) is None] == []
