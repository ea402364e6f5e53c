"""Integer arithmetic in native code against its specification."""

from __future__ import annotations

import numpy as np
import pytest
from support.native.forms import differences, family, forms, grid
from support.selection.thinned import thinned

from refmoe.ptx.isa import DTYPES, integer, resolve
from refmoe.ptx.ops.evaluate import evaluate
from refmoe.ptx.ops.table import lowering

OPCODES = family(integer.BUILDERS)


@pytest.mark.parametrize("opcode", thinned(OPCODES, 3))
def test_it_is_the_specification(opcode: str) -> None:
    found = differences(forms(opcode), grid(opcode))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("known", [None, 0, 1])
@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", ["div", "rem"])
def test_a_zero_divisor_gives_all_ones(name: str, kind: str, known: int | None) -> None:
    """As an H200 gives them, also where the dividend or the divisor is known as the code is compiled."""
    dtype = DTYPES[resolve(f"{name}.{kind}").sources[0]]
    least = 1 << int(kind[1:]) - 1
    for dividend in (0, 1, 5, least - 1, least, 2 * least - 1):
        pair = (dividend, 0)
        sources = [None if i == known else np.full(64, value, dtype) for i, value in enumerate(pair)]
        found = evaluate(f"{name}.{kind}", *sources, constants={} if known is None else {known: pair[known]})
        assert found.tolist() == [2 * least - 1] * 64, hex(dividend)


def test_every_spelling_has_a_native_form() -> None:
    assert len(OPCODES) == 162
    assert [opcode for opcode in OPCODES if lowering(opcode) is None] == []
