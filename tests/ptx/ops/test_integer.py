"""Integer arithmetic in native code against its specification."""

from __future__ import annotations

import pytest
from support.native.forms import differences, family, forms, grid

from refmoe.ptx.isa import integer
from refmoe.ptx.ops.table import lowering

OPCODES = family(integer.BUILDERS)


@pytest.mark.parametrize("opcode", OPCODES)
def test_it_is_the_specification(opcode: str) -> None:
    found = differences(forms(opcode), grid(opcode))
    assert not found, "\n".join(found)


def test_every_spelling_has_a_native_form() -> None:
    assert len(OPCODES) == 162
    assert [opcode for opcode in OPCODES if lowering(opcode) is None] == []
