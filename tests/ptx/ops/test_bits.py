"""Logic, shifts and byte permutes in native code against their specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from support.native.forms import Form, differences, family, forms, grid
from support.selection.thinned import thinned

from refmoe.ptx.isa import bits
from refmoe.ptx.ops.evaluate import evaluate
from refmoe.ptx.ops.table import lowering

OPCODES = family(bits.BUILDERS)
AMOUNTS = (0, 1, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 256, 0x80000000, 0xFFFFFFFF)
SELECTORS = (
    0x3210,
    0x5410,
    0x7632,
    0x3340,
    0x0123,
    0x6543,
    0x7777,
    0xBA98,
    0xFC30,
    0x8888,
    0x1D2E,
    0xFFFF5410,
    0,
    1,
    2,
    3,
)
CONSTANTS: Mapping[str, Mapping[int, Sequence[int]]] = {
    "shl": {1: AMOUNTS},
    "shr": {1: AMOUNTS},
    "shf": {2: AMOUNTS},
    "prmt": {2: SELECTORS},
}


@pytest.mark.parametrize("opcode", thinned([opcode for opcode in OPCODES if not opcode.startswith("lop3")], 3))
def test_it_is_the_specification(opcode: str) -> None:
    found = differences(forms(opcode, 1, CONSTANTS.get(opcode.split(".")[0])), grid(opcode))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("opcode", [opcode for opcode in OPCODES if opcode.startswith("lop3")])
def test_lop3_is_the_specification_with_every_table(opcode: str) -> None:
    every = [Form(opcode, 1, {3: table}) for table in range(256)]
    known = [Form(opcode, 1, {i: value, 3: 0xCA}) for i in range(3) for value in (0, 0xFFFFFFFF, 0x12348765)]
    found = differences([*every, *known], [x[::8] for x in grid(opcode)])
    assert not found, "\n".join(found)


def test_a_table_that_is_not_known_is_refused() -> None:
    some = np.zeros(1, np.uint32)
    with pytest.raises(ValueError, match="table of lop3"):
        evaluate("lop3.b32", some, some, some, some)


def test_every_spelling_has_a_native_form() -> None:
    assert len(OPCODES) == 45
    assert [opcode for opcode in OPCODES if lowering(opcode) is None] == []
