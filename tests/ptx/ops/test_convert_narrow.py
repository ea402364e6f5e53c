"""cvt to and from the formats of 8, 6 and 4 bits, and scales, in native code, against its specification."""

from __future__ import annotations

import pytest
from support.native.conversions import conversions, wrong

from refmoe.ptx.ops.table import lowering

BY_TYPES = conversions(narrow=True)


@pytest.mark.parametrize("types", BY_TYPES)
def test_it_is_the_specification(types: str) -> None:
    found = wrong(BY_TYPES[types])
    assert not found, "\n".join(found)


def test_every_spelling_has_a_native_form() -> None:
    opcodes = [opcode for group in BY_TYPES.values() for opcode in group]
    assert len(opcodes) == 68
    assert [opcode for opcode in opcodes if lowering(opcode) is None] == []
