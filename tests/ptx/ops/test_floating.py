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
from support.selection.thinned import thinned

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


def constants(opcode: str) -> list[dict[int, int]]:
    """Operands of a spelling that are known when it is compiled: none, each of them alone, and all of them.

    Alone each is what lets a compiler leave the operation out, a zero, a one and a NaN that signals, and a value that
    the spelling draws. In packed types the upper half is drawn.
    """
    # Spellings of one instruction have one machine code.
    number = zlib.crc32(opcode.replace(".rn", "").replace("mad", "fma").encode())
    values = []
    for position, f in enumerate(formats(opcode, ARITHMETIC[opcode])):
        special, sign = corners(f), f.sign * (number >> position & 1)
        own = [sign, f.bias << f.fraction | sign, f.infinity + 1, special[(number // 8 + position) % len(special)]]
        if opcode.endswith("x2"):
            own = [bits | special[(number // 512 + i) % len(special)] << f.bits for i, bits in enumerate(own)]
        values.append(own)
    alone = [{position: bits} for position, own in enumerate(values) for bits in own]
    # Each value of each operand once, beside others of the others.
    together = [{position: own[(k + position) % len(own)] for position, own in enumerate(values)} for k in range(4)]
    return [{}, *alone, *together]


@pytest.mark.parametrize("opcode", thinned(ARITHMETIC, 6))
def test_native(opcode: str) -> None:
    operation = ARITHMETIC[opcode]
    assert not native_differences(opcode, operation, operands(opcode, operation), *constants(opcode))


def test_each_operand_is_a_constant_and_all_of_them_are() -> None:
    for opcode, operation in ARITHMETIC.items():
        known = [tuple(each) for each in constants(opcode)]
        places = range(len(operation.sources))
        assert known == [(), *((place,) for place in places for _ in range(4)), *[tuple(places)] * 4]


@pytest.mark.parametrize("opcode", thinned(FOLDED, 3))
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
