"""The approximate instructions: near the true value everywhere, and sure of themselves only where hardware is."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from support.ptx_isa import F32, exact_div, float_corners, pack, random_floats, real, unpack

from refmoe.ptx import isa

FUNCTIONS: dict[str, Callable[[float], float]] = {
    "ex2": lambda x: 2.0**x if x < 1024 else math.inf,
    "lg2": math.log2,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sqrt": math.sqrt,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "rcp": lambda x: 1 / x,
}


def run(opcode: str, *bits: list[int]) -> tuple[list[int], list[bool]]:
    operation = isa.resolve(opcode)
    arrays = [np.array(b, np.uint32) for b in bits]
    with np.errstate(all="ignore"):
        result = operation.function(*arrays)
        assert operation.exact_when is not None
        return result.tolist(), operation.exact_when(*arrays).tolist()


def bits(x: float) -> int:
    with np.errstate(over="ignore"):
        return int(np.float32(x).view(np.uint32))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_one_unit_of_the_double_precision_value(name: str) -> None:
    inputs = [b for b in random_floats(np.random.default_rng(1), F32, 500) if b & F32.infinity != F32.infinity]
    inputs = [b for b in inputs if b & 0x7FFFFFFF and not (name in ("lg2", "sqrt", "rsqrt") and b >> 31)]
    results, _ = run(f"{name}.approx.f32", inputs)
    for b, result in zip(inputs, results, strict=True):
        x = float(np.uint32(b).view(np.float32))
        expected = bits(FUNCTIONS[name](x)) if abs(x) < 1e30 or name not in ("sin", "cos") else result
        # The host's mathematical library may differ in double precision's last place, so by one unit here.
        assert abs(result - expected) <= 1, (name, x, hex(result), hex(expected))


INF, NAN = 0x7F800000, 0x7FFFFFFF
M = 0x80000000
# Input and result, from the manual's table of each instruction.
TABLES = {
    "ex2": [(M | INF, 0), (M, bits(1)), (0, bits(1)), (M | 1, bits(1)), (1, bits(1)), (INF, INF), (INF + 1, NAN)],
    "lg2": [(M | INF, NAN), (M, M | INF), (0, M | INF), (INF, INF), (M | bits(1), NAN), (INF + 1, NAN)],
    "rcp": [(M | INF, M), (M, M | INF), (0, INF), (INF, 0), (INF + 1, NAN), (M | bits(1), M | bits(1))],
    "sqrt": [(M | INF, NAN), (M | bits(1), NAN), (M, M), (0, 0), (INF, INF), (INF + 1, NAN)],
    "rsqrt": [(M | INF, NAN), (M | bits(1), NAN), (M, M | INF), (0, INF), (INF, 0), (INF + 1, NAN)],
    "sin": [(M | INF, NAN), (M, M), (0, 0), (INF, NAN), (INF + 1, NAN)],
    "cos": [(M | INF, NAN), (M, bits(1)), (0, bits(1)), (INF, NAN), (INF + 1, NAN)],
    "tanh": [(M | INF, M | bits(1)), (M, M), (0, 0), (INF, bits(1)), (INF + 1, NAN)],
}


@pytest.mark.parametrize("name", TABLES)
def test_corner_cases_are_exact(name: str) -> None:
    inputs, expected = (list(x) for x in zip(*TABLES[name], strict=True))
    assert run(f"{name}.approx.f32", inputs) == (expected, [True] * len(inputs))


def test_ex2_of_integers() -> None:
    # Measured on hardware over all inputs: right at every integer but -127, where it gives 0x3fffff.
    integers = list(range(-160, 135))
    inputs = [bits(k) for k in integers]
    results, exact = run("ex2.approx.f32", inputs)
    for k, result, sure in zip(integers, results, exact, strict=True):
        assert result == pack(real(False, Fraction(2) ** k), F32), k
        assert sure == (-126 <= k <= 127 or -149 <= k <= -128), k
    results, exact = run("ex2.approx.ftz.f32", inputs)
    for k, result, sure in zip(integers, results, exact, strict=True):
        assert result == (0 if k < -126 else pack(real(False, Fraction(2) ** k), F32)), k
        assert sure == (k <= 127), k
    assert run("ex2.approx.f32", [bits(0.5), bits(-127.5)])[1] == [False, False]


def test_rcp_of_powers_of_two_and_448() -> None:
    inputs = [s | pack(real(False, Fraction(2) ** k), F32) for k in range(-149, 128) for s in (0, M)]
    results, exact = run("rcp.approx.f32", inputs)
    assert results == [pack(exact_div(real(False, 1), unpack(b, F32)), F32) for b in inputs]
    assert all(exact)
    results, exact = run("rcp.approx.ftz.f32", [bits(2.0**127), bits(2.0**126), 1])
    assert results == [0, bits(2.0**-126), INF]
    assert all(exact)
    assert run("rcp.approx.f32", [bits(448)]) == ([0x3B124925], [True])
    assert run("rcp.approx.f32", [bits(3), bits(447)])[1] == [False, False]


def test_nothing_is_claimed_of_ordinary_arguments() -> None:
    inputs = [bits(x) for x in (0.3, 1.7, 2.0, 1234.5)]
    for name in ("lg2", "sqrt", "rsqrt", "sin", "cos", "tanh"):
        assert run(f"{name}.approx.f32", inputs)[1] == [False] * 4
    for name in ("div.approx", "div.full"):
        results, exact = run(f"{name}.f32", inputs, [bits(3)] * 4)
        assert exact == [False] * 4
        assert results == [pack(exact_div(unpack(b, F32), unpack(bits(3), F32)), F32) for b in inputs]


@pytest.mark.parametrize("opcode", ["ex2.approx.f16", "ex2.approx.ftz.bf16x2", "tanh.approx.f16x2", "tanh.approx.bf16"])
def test_halves_are_estimates(opcode: str) -> None:
    operation = isa.resolve(opcode)
    word = isa.DTYPES[operation.sources[0]]
    one = 0x3F80 if "bf16" in opcode else 0x3C00
    packed = np.array([one | one << 16 if opcode.endswith("x2") else one], word)
    result = int(operation.function(packed)[0]) & 0xFFFF
    expected = {"ex2": one + (0x80 if "bf16" in opcode else 0x400), "tanh": 0x3F43 if "bf16" in opcode else 0x3A18}
    assert result == expected[opcode.split(".")[0]]
    assert operation.exact_when is not None
    assert operation.exact_when(packed).tolist() == [False]


def test_ftz_flushes_what_goes_in_and_what_comes_out() -> None:
    subnormals = [b for b in float_corners(F32) if b & INF == 0]
    zeros = [b & M for b in subnormals]
    for name in ("lg2", "rcp", "rsqrt", "sqrt", "sin"):
        assert run(f"{name}.approx.ftz.f32", subnormals)[0] == run(f"{name}.approx.f32", zeros)[0]
    assert run("div.full.ftz.f32", [1], [bits(0.5)])[0] == [0]
