"""cvt between integers and floating-point numbers in native code against its specification."""

from __future__ import annotations

import pytest
from support.native.conversions import conversions, wrong
from support.selection.thinned import thinned

from refmoe.ptx.ops.table import lowering

BY_TYPES = conversions(narrow=False)


@pytest.mark.parametrize("types", thinned(BY_TYPES, 4))
def test_it_is_the_specification(types: str) -> None:
    found = wrong(BY_TYPES[types])
    assert not found, "\n".join(found)


def test_every_spelling_has_a_native_form() -> None:
    opcodes = [opcode for group in BY_TYPES.values() for opcode in group]
    assert len(opcodes) == 864
    assert [opcode for opcode in opcodes if lowering(opcode) is None] == []


@pytest.mark.parametrize(
    "opcode", ["cvt", "cvt.f32", "cvt.f16.f32", "cvt.x.y", "cvt.sat.u32.u16", "cvt.pack.sat.u8.s32"]
)
def test_what_is_no_spelling_has_none(opcode: str) -> None:
    assert lowering(opcode) is None
