"""Bit fields, counts and searches in native code against their specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from support.native.forms import differences, family, forms, grid

from refmoe.ptx.isa import fields
from refmoe.ptx.ops.table import lowering

OPCODES = family(fields.BUILDERS)
PLACES = (0, 1, 8, 31, 32, 33, 63, 64, 65, 255, 256, 0x80000008, 0xFFFFFFFF)
CONSTANTS: Mapping[str, Mapping[int, Sequence[int]]] = {
    "bfe": {1: PLACES, 2: PLACES},
    "bfi": {2: PLACES, 3: PLACES},
    "bmsk": {0: PLACES, 1: PLACES},
    "szext": {1: PLACES},
    "fns": {1: PLACES, 2: (0, 1, 2, 32, 33, 0xFFFFFFFF, 0xFFFFFFE0, 0xFFFFFFDF, 0x80000000, 0x7FFFFFFF)},
}


@pytest.mark.parametrize("opcode", OPCODES)
def test_it_is_the_specification(opcode: str) -> None:
    found = differences(forms(opcode, 1, CONSTANTS.get(opcode.split(".")[0])), grid(opcode))
    assert not found, "\n".join(found)


def test_every_spelling_has_a_native_form() -> None:
    assert len(OPCODES) == 27
    assert [opcode for opcode in OPCODES if lowering(opcode) is None] == []
