"""Native approximate instructions are the NumPy specification, bit for bit, and no host decides a bit of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.native.floating import claimed, corners, differences, formats, native_differences, operands, run, spellings
from support.ptx_isa import F32, FORMATS, pack, power, real, unpack

from refmoe.ptx import isa
from refmoe.ptx.isa.spelling import Spelling
from refmoe.ptx.ops import approximate, elementary
from refmoe.ptx.ops.ieee import DOUBLE
from refmoe.ptx.ops.table import lowering

APPROXIMATE = {
    opcode: operation
    for opcode, operation in spellings().items()
    if opcode.split(".")[0] in approximate.BUILDERS and ("approx" in opcode or "full" in opcode)
}
# All FP32 arguments whose true result lies within 4 units of FP64 of a point half way between two FP32 numbers, but for
# 2^-150, which is such a point. Of sin and cos the positive ones; of tanh there is none.
HARD = {
    "ex2": [
        0x33B8AA3B, 0x36879CF7, 0x3A07857C, 0x3B429D37, 0x3C02A9AD, 0xB52D1F9A, 0xB8D3D026, 0xBAEC2B40, 0xBCF3A937,
        0xBE1F29DE,
    ],
    "lg2": [0x3EA07AB9, 0x40207AB9],
    "sin": [
        0x3DCF5597, 0x3EF3830F, 0x42D44528, 0x4371ADE3, 0x45A8ABB3, 0x46199998, 0x4967CB9B, 0x4FB56937, 0x55CAFB2A,
        0x5DADD689, 0x5F208D82, 0x61DFC847, 0x6446CEC0, 0x653CEE8F, 0x67A9242B, 0x6A3F60FF, 0x6D734599, 0x73243F06,
        0x79D1F6D3, 0x7A5AACDB, 0x7A817B08,
    ],
    "cos": [
        0x39800000, 0x3A544395, 0x3C107FE6, 0x42378DB8, 0x424790CE, 0x47A0E238, 0x4A01DCA4, 0x52D9D3FE, 0x55E5235D,
        0x5922AA80, 0x59443C0A, 0x5F18B878, 0x6115CB11, 0x61703976, 0x7908CD73, 0x7A38AB34, 0x7A4B1A27,
    ],
    "tanh": [],
}  # fmt: skip
# How far the native functions may be from the true value, in units of the last place of FP64.
UNITS = {"ex2": 0.56, "lg2": 0.75, "sin": 0.75, "cos": 0.75, "tanh": 3.0}


@cache
def pi() -> Decimal:
    """To 120 digits, by Machin's formula."""

    def arctangent(inverse: int) -> Decimal:
        x = Decimal(1) / inverse
        return sum((x ** (2 * i + 1) / (2 * i + 1) * (-1) ** i for i in range(90)), Decimal(0))

    return 4 * (4 * arctangent(5) - arctangent(239))


def sine(x: Decimal) -> Decimal:
    """By its series, of what whole turns leave of x."""
    x -= 2 * pi() * (x / (2 * pi())).to_integral_value()
    term = total = x
    for i in range(1, 45):
        term *= -x * x / (2 * i * (2 * i + 1))
        total += term
    return total


TRUE: dict[str, Callable[[Decimal], Decimal]] = {
    "ex2": lambda x: Decimal(2) ** x,
    "lg2": lambda x: x.ln() / Decimal(2).ln(),
    "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
    "sin": sine,
    "cos": lambda x: sine(x + pi() / 2),
}


def true_value(name: str, bits: int) -> Fraction:
    """The function of an FP32 number, with an error far below that of FP64."""
    value = unpack(bits, F32).value
    assert value is not None
    with localcontext() as context:
        context.prec = 120
        return Fraction(TRUE[name](Decimal(value.numerator) / Decimal(value.denominator)))


def unit(value: Fraction) -> Fraction:
    """What the last place of the FP64 number near a value is worth."""
    exponent = abs(value).numerator.bit_length() - value.denominator.bit_length()
    return power(exponent - (power(exponent) > abs(value)) - 52)


def in_double(name: str, arguments: list[int]) -> list[Fraction]:
    """The native functions before they are rounded to FP32."""
    estimate = {"ex2": elementary.exp2, "lg2": elementary.log2}.get(name) or getattr(elementary, name)

    def lower(lanes: Any, sources: Any) -> list[Any]:
        return [lanes.bits_of(estimate(lanes, lanes.build.fpext(lanes.float_of(sources[0]), DOUBLE)))]

    operation = APPROXIMATE[f"{name}.approx.f32"]
    found = run(lower, operation, "b64", [np.array(arguments, np.uint32)], [{}])[0]
    return [Fraction(float(x)) for x in found.view(np.float64)]


@pytest.mark.parametrize("opcode", APPROXIMATE)
def test_native(opcode: str) -> None:
    operation = APPROXIMATE[opcode]
    position = len(operation.sources) - 1
    f = formats(opcode, operation)[position]
    own = corners(f)
    chosen = [own[(zlib.crc32(opcode.encode()) >> shift) % len(own)] for shift in (0, 8)]
    bits = chosen[0] | chosen[1] << f.bits if opcode.endswith("x2") else chosen[0]
    assert not native_differences(opcode, operation, operands(opcode, operation), {}, {position: bits})


@pytest.mark.parametrize("opcode", [o for o, x in APPROXIMATE.items() if x.sources == ("b16",)])
def test_every_half(opcode: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    assert not native_differences(opcode, APPROXIMATE[opcode], [every])


@pytest.mark.parametrize("opcode", APPROXIMATE)
def test_what_is_certain(opcode: str) -> None:
    operation = APPROXIMATE[opcode]
    lower = approximate.EXACT[opcode.split(".")[0]](Spelling(opcode))
    assert lower is not None
    assert operation.exact_when is not None
    sources = operands(opcode, operation)
    if operation.sources == ("b32",):
        integers = np.arange(-160, 160).astype(np.float32).view(np.uint32)
        halves = (np.arange(-300, 300) / 2).astype(np.float32).view(np.uint32)
        powers = np.arange(1 << 9, dtype=np.uint32) << 23
        sources = [np.concatenate([*sources, integers, halves, powers, 1 << np.arange(32, dtype=np.uint32)])]
        sources = [np.append(sources[0], np.array([0x43E00000, 0xC3E00000, 0x43DF8000], np.uint32))]  # 448, -448, 447
    with np.errstate(all="ignore"):
        expected = operation.exact_when(*sources)
    assert not differences(opcode, claimed(lower, operation, sources), expected, sources)


@pytest.mark.parametrize("opcode", ["div.rn.f64", "rcp.rm.f64", "sqrt.rn.f64", "div.rn.f32"])
def test_what_is_certain_of_the_rounded_forms(opcode: str) -> None:
    operation = isa.resolve(opcode)
    lower = approximate.EXACT[opcode.split(".")[0]](Spelling(opcode))
    assert (lower is None) == (operation.exact_when is None)
    if lower is not None and operation.exact_when is not None:
        sources = operands(opcode, operation)
        with np.errstate(all="ignore"):
            expected = operation.exact_when(*sources)
        assert not differences(opcode, claimed(lower, operation, sources), expected, sources)


@pytest.mark.parametrize("name", HARD)
def test_every_function_is_near_the_true_value(name: str) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    chosen = rng.integers(0x30000000, 0x43000000, 200)
    if name in ("sin", "cos"):
        chosen = np.append(chosen, rng.integers(0x43000000, 0x7F800000, 200))
    elif name == "tanh":
        chosen = chosen[chosen < 0x41A00000]
    arguments = [int(x) | (0x80000000 if i % 2 and name != "lg2" else 0) for i, x in enumerate(chosen)]
    # Near 1, where the logarithm is near zero, and near multiples of pi/2.
    arguments += [0x3F800000 + i for i in (-300, -2, -1, 1, 2, 300)]
    arguments += [bits for k in range(1, 9) for bits in [int(np.float32(k * np.pi / 2).view(np.uint32))]]
    arguments = [x for x in arguments + HARD[name] if x < 0x80000000 or name != "lg2"]
    for bits, found in zip(arguments, in_double(name, arguments), strict=True):
        true = true_value(name, bits)
        assert abs(found - true) <= Fraction(UNITS[name]) * unit(true), (name, hex(bits))


@pytest.mark.parametrize("name", [name for name in HARD if HARD[name]])
def test_hard_arguments(name: str) -> None:
    """Next to a midpoint the native result, and the host's, is that of the FP64 number nearest to the true value."""
    arguments = HARD[name]
    sources = [np.array(arguments, np.uint32)]
    assert not native_differences(f"{name}.approx.f32", APPROXIMATE[f"{name}.approx.f32"], sources)
    expected = []
    for bits in arguments:
        true = true_value(name, bits)
        double = unpack(pack(real(true < 0, true), FORMATS["f64"]), FORMATS["f64"])
        expected.append(pack(double, F32))
        # They are what they are listed for.
        assert pack(real(true < 0, true - 5 * unit(true)), F32) != pack(real(true < 0, true + 5 * unit(true)), F32)
    with np.errstate(all="ignore"):
        assert APPROXIMATE[f"{name}.approx.f32"].function(*sources).tolist() == expected


def test_every_spelling_has_a_native_form() -> None:
    assert [opcode for opcode in APPROXIMATE if lowering(opcode) is None] == []
    assert len(APPROXIMATE) == 27
