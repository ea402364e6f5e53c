"""Native floating-point arithmetic is the NumPy specification, bit for bit."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from support.native.floating import (
    claimed,
    corners,
    differences,
    formats,
    native_differences,
    operands,
    rows,
    spellings,
)
from support.ptx_isa import F32

from refmoe.ptx import isa
from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops import floating
from refmoe.ptx.ops.evaluate import evaluate
from refmoe.ptx.ops.table import lowering

ARITHMETIC = {
    opcode: operation
    for opcode, operation in spellings().items()
    if opcode.split(".")[0] in floating.BUILDERS and "approx" not in opcode and "full" not in opcode
}
# One spelling of each operation, format and way to round; .ftz and .sat only of the first formats.
FOLDED = [
    f"{name}{modifiers}.{type_name}"
    for name, arity in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3), ("div", 2), ("sqrt", 1), ("min", 2), ("max", 2))
    for modifiers, type_name in (
        (
            (".rn", "f32"),
            (".rn.ftz", "f32"),
            (".rm", "f32"),
            (".rn", "f64"),
            (".rm", "f64"),
            (".rn", "f16"),
            (".rn", "bf16"),
        )
        if name not in ("min", "max")
        else (("", "f32"), (".NaN", "f32"), ("", "f64"), (".xorsign.abs", "f16"), ("", "bf16"))
    )
    if f"{name}{modifiers}.{type_name}" in ARITHMETIC
]


@pytest.mark.parametrize("opcode", ARITHMETIC)
def test_native(opcode: str) -> None:
    """With run-time operands, and with a special value, another one for each spelling, as one of the operands."""
    operation = ARITHMETIC[opcode]
    # Spellings of one instruction have one machine code, which is made once.
    number = zlib.crc32(opcode.replace(".rn", "").replace("mad", "fma").encode())
    position = number % len(operation.sources)
    f = formats(opcode, operation)[position]
    bits = corners(f)[number // 8 % len(corners(f))]
    if opcode.endswith("x2"):
        bits |= corners(f)[number // 512 % len(corners(f))] << f.bits
    assert not native_differences(opcode, operation, operands(opcode, operation), {}, {position: bits})


@pytest.mark.parametrize("opcode", FOLDED)
def test_constants(opcode: str) -> None:
    """Operands that let a compiler leave the operation out: zeros, one, infinity, NaN that signals, and all known."""
    operation = ARITHMETIC[opcode]
    f = formats(opcode, operation)[0]
    one, signalling, last = f.bias << f.fraction, f.infinity + 1, len(operation.sources) - 1
    one_known = [{last: bits} for bits in (0, f.sign, one, signalling)] + [{0: f.sign}]
    all_known = [dict.fromkeys(range(last + 1), bits) for bits in (one, f.infinity | f.sign, signalling)]
    assert not native_differences(opcode, operation, operands(opcode, operation), *one_known, *all_known)


@pytest.mark.parametrize("modifiers", ["", ".ftz", ".NaN", ".abs", ".ftz.NaN.abs"])
@pytest.mark.parametrize("name", ["min", "max"])
def test_three_sources(name: str, modifiers: str) -> None:
    opcode = f"{name}{modifiers}.f32"
    operation = isa.resolve(opcode, 1, 3)
    sources = [np.array(column, np.uint32) for column in zip(*rows(F32, 3), strict=True)]
    with np.errstate(all="ignore"):
        expected = operation.function(*sources)
    assert not differences(opcode, evaluate(opcode, *sources), expected, sources)


def test_what_is_certain() -> None:
    """A result in FP64 is, unless it is NaN; all others always are."""
    for opcode, operation in ARITHMETIC.items():
        build = floating.EXACT.get(opcode.split(".")[0])
        lower = build(Spelling(opcode)) if build else None
        assert (lower is None) == (operation.exact_when is None), opcode
        if lower is None:
            continue
        sources = operands(opcode, operation)
        assert operation.exact_when is not None
        with np.errstate(all="ignore"):
            expected = operation.exact_when(*sources)
        assert not differences(opcode, claimed(lower, operation, sources), expected, sources)


def test_every_spelling_has_a_native_form() -> None:
    assert [opcode for opcode in ARITHMETIC if lowering(opcode) is None] == []
    assert len(ARITHMETIC) > 380
