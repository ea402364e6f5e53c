"""Floating-point arithmetic against exact rationals, one lane at a time."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from support.ptx_isa import (
    BF16,
    F16,
    F32,
    F64,
    FORMATS,
    Ieee,
    Real,
    assert_lanes,
    exact_add,
    exact_div,
    exact_mul,
    float_corners,
    float_rows,
    flushed,
    mismatches,
    moved_nan,
    negated,
    pack,
    pack_flushed,
    random_floats,
    real,
    unpack,
)
from support.selection.thinned import thinned

from refmoe.ptx import isa

MODES = ("rn", "rz", "rm", "rp")


def exact_sqrt(a: Real) -> Real:
    """The root, or a rational strictly between it and every number of any format."""
    if a.nan or (a.negative and not a.zero):
        return Real(False, None, True)
    if a.infinite or a.zero:
        return a
    assert a.value is not None
    scaled = a.value * 4**1300
    root = math.isqrt(scaled.numerator // scaled.denominator)
    exact = root * root == scaled
    return real(False, Fraction(2 * root + (not exact), 2) / 2**1300)


OPERATIONS: dict[str, tuple[int, Callable[..., Real]]] = {
    "add": (2, lambda m, a, b: exact_add(a, b, m)),
    "sub": (2, lambda m, a, b: exact_add(a, negated(b), m)),
    "mul": (2, lambda m, a, b: exact_mul(a, b)),
    "div": (2, lambda m, a, b: exact_div(a, b)),
    "fma": (3, lambda m, a, b, c: exact_add(exact_mul(a, b), c, m)),
    "sqrt": (1, lambda m, a: exact_sqrt(a)),
    "rcp": (1, lambda m, a: exact_div(real(False, 1), a)),
}


def saturated(bits: int, f: Ieee) -> int:
    """[+0, 1]; NaN and -0 give +0."""
    x = unpack(bits, f)
    if x.nan or x.negative:
        return 0
    return min(bits, f.bias << f.fraction)


def rectified(bits: int, f: Ieee) -> int:
    return bits if unpack(bits, f).nan or not bits & f.sign else 0


def oracle(name: str, f: Ieee, mode: str, *, ftz: bool = False, clamp: str = "") -> Callable[..., int]:
    """Flush, compute exactly, round once, flush what is tiny, clamp."""

    def lane(*bits: int) -> int:
        if ftz:
            bits = tuple(flushed(b, f) for b in bits)
        result = (pack_flushed if ftz else pack)(OPERATIONS[name][1](mode, *(unpack(b, f) for b in bits)), f, mode)
        if ftz:
            result = flushed(result, f)
        return {"": lambda r, f: r, "sat": saturated, "relu": rectified}[clamp](result, f)

    return lane


def halves(lane: Callable[..., int], bits: int = 16) -> Callable[..., int]:
    """A packed instruction is the scalar one on each half."""
    mask = (1 << bits) - 1
    return lambda *x: lane(*(v & mask for v in x)) | lane(*(v >> bits for v in x)) << bits


def packed_rows(rows: list[tuple[int, ...]], bits: int = 16) -> list[tuple[int, ...]]:
    """Rows of halves paired up into rows of words."""
    return [
        tuple(x | y << bits for x, y in zip(a, b, strict=True)) for a, b in zip(rows, rows[1:] + rows[:1], strict=True)
    ]


def seed(text: str) -> int:
    return zlib.crc32(text.encode())


def tie_rows(f: Ieee, count: int, seed: int) -> list[tuple[int, ...]]:
    """fma operands whose product ends half way between two numbers while the addend lies far below.

    Rounding the product and the sum one after the other, or through a format twice as wide, gets these wrong.
    """
    rng = np.random.default_rng(seed)
    rows = []
    one = f.bias << f.fraction
    while len(rows) < count:
        a = one | int(rng.integers(1 << f.fraction)) & ~1
        b = one | 1 << f.fraction - 1 | int(rng.integers(2))
        tiny_exponent = int(rng.integers(1, max(2, f.bias - 2 * f.fraction)))
        tiny = tiny_exponent << f.fraction | int(rng.integers(1 << f.fraction))
        rows.append((a, b, int(rng.integers(2)) * f.sign | tiny))
        # a*b = 1 + 2^-k exactly one bit too long: (1 + 2^-i)(1 + 2^-j) has a bit at i+j.
        i = int(rng.integers(1, f.fraction + 1))
        j = f.fraction + 1 - i
        if j >= 1:
            rows.append((one | 1 << f.fraction - i, one | 1 << f.fraction - j, int(rng.integers(2)) * f.sign | tiny))
    return rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", thinned(OPERATIONS, 3))
def test_f32(name: str, mode: str) -> None:
    rows = float_rows(F32, OPERATIONS[name][0], seed(name + mode))
    assert_lanes(isa.resolve(f"{name}.{mode}.f32"), oracle(name, F32, mode[1]), rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", thinned(OPERATIONS, 3))
def test_f32_ftz(name: str, mode: str) -> None:
    rows = float_rows(F32, OPERATIONS[name][0], seed(name + mode + "ftz"), 200)
    assert_lanes(isa.resolve(f"{name}.{mode}.ftz.f32"), oracle(name, F32, mode[1], ftz=True), rows)


@pytest.mark.parametrize("ftz", [False, True])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_f32_sat(name: str, ftz: bool) -> None:
    opcode = f"{name}.rz{'.ftz' if ftz else ''}.sat.f32"
    rows = float_rows(F32, OPERATIONS[name][0], seed(opcode), 200)
    assert_lanes(isa.resolve(opcode), oracle(name, F32, "z", ftz=ftz, clamp="sat"), rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", thinned(OPERATIONS, 3))
def test_f64(name: str, mode: str) -> None:
    rows = float_rows(F64, OPERATIONS[name][0], seed(name + mode + "f64"), 200)
    assert_lanes(isa.resolve(f"{name}.{mode}.f64"), oracle(name, F64, mode[1]), rows)


@pytest.mark.parametrize("opcode", ["fma.rn.f32", "fma.rz.f32", "fma.rm.f32", "fma.rp.f32", "fma.rn.f64"])
def test_fma_ties_are_rounded_once(opcode: str) -> None:
    f = FORMATS[opcode[-3:]]
    rows = tie_rows(f, 1500, seed(opcode))
    assert_lanes(isa.resolve(opcode), oracle("fma", f, opcode[5]), rows)


def test_fma_f64_ordinary_operands() -> None:
    # Exponents near each other: the vectorised path, with cancelling and far addends.
    rng = np.random.default_rng(64)
    rows = []
    for _ in range(3000):
        a, b, c = (int(x) for x in rng.integers(0, 1 << 52, 3))
        exponents = rng.integers(-60, 60, 2)
        shift = int(rng.choice([0, 1, -52, -53, -54, 53, 107, -107, 300]))
        where = (int(exponents[0]), int(exponents[1]), int(exponents.sum()) + shift)
        rows.append(
            tuple(int(rng.integers(2)) << 63 | (1023 + e) << 52 | x for x, e in zip((a, b, c), where, strict=True))
        )
    assert_lanes(isa.resolve("fma.rn.f64"), oracle("fma", F64, "n"), rows)


@pytest.mark.parametrize("f", [F16, BF16], ids=lambda f: f.name)
@pytest.mark.parametrize("name", thinned(["add", "sub", "mul", "fma"], 2))
def test_halves(name: str, f: Ieee) -> None:
    rows = float_rows(f, OPERATIONS[name][0], seed(name + f.name))
    lane = oracle(name, f, "n")
    assert_lanes(isa.resolve(f"{name}.rn.{f.name}"), lane, rows)
    assert_lanes(isa.resolve(f"{name}.rn.{f.name}x2"), halves(lane), packed_rows(rows))
    if name == "fma":
        relu = oracle(name, f, "n", clamp="relu")
        assert_lanes(isa.resolve(f"fma.rn.relu.{f.name}"), relu, rows)
        assert_lanes(isa.resolve(f"fma.rn.relu.{f.name}x2"), halves(relu), packed_rows(rows))
        assert_lanes(isa.resolve(f"fma.rn.{f.name}"), lane, tie_rows(f, 600, 5))
    if f is F16:
        clamped = oracle(name, f, "n", ftz=True, clamp="sat")
        assert_lanes(isa.resolve(f"{name}.rn.ftz.sat.f16"), clamped, rows)
        assert_lanes(isa.resolve(f"{name}.rn.ftz.sat.f16x2"), halves(clamped), packed_rows(rows))


@pytest.mark.parametrize("name", ["add", "mul", "fma"])
def test_f32x2(name: str) -> None:
    rows = packed_rows(float_rows(F32, OPERATIONS[name][0], seed(name), 50)[::7], 32)
    assert_lanes(isa.resolve(f"{name}.rm.ftz.f32x2"), halves(oracle(name, F32, "m", ftz=True), 32), rows)


def test_rounding_defaults_to_nearest_and_may_contract() -> None:
    for name in ("add", "sub", "mul"):
        for kind in ("f32", "f64"):
            assert isa.resolve(f"{name}.{kind}").contractible
            assert not isa.resolve(f"{name}.rn.{kind}").contractible
            f = FORMATS[kind]
            assert_lanes(isa.resolve(f"{name}.{kind}"), oracle(name, f, "n"), float_rows(f, 2, 1, 50)[::5])


def test_exact_cancellation_is_minus_zero_only_toward_minus_infinity() -> None:
    one, minus_one = np.uint32(0x3F800000), np.uint32(0xBF800000)
    zeros = {mode: int(isa.resolve(f"add.{mode}.f32").function(one, minus_one)) for mode in MODES}
    assert zeros == {"rn": 0, "rz": 0, "rm": 0x80000000, "rp": 0}


def sign_lane(name: str, f: Ieee, ftz: bool) -> Callable[[int], int]:
    def lane(bits: int) -> int:
        if unpack(bits, f).nan:
            return moved_nan(bits, f, f) if f is F64 else f.nan
        if ftz:
            bits = flushed(bits, f)
        return bits & ~f.sign if name == "abs" else bits ^ f.sign

    return lane


@pytest.mark.parametrize("f", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("name", ["abs", "neg"])
def test_sign_operations(name: str, f: Ieee) -> None:
    rows = float_rows(f, 1, 3)
    assert_lanes(isa.resolve(f"{name}.{f.name}"), sign_lane(name, f, False), rows)
    if f in (F32, F16):
        assert_lanes(isa.resolve(f"{name}.ftz.{f.name}"), sign_lane(name, f, True), rows)
    if f.bits == 16:
        assert_lanes(isa.resolve(f"{name}.{f.name}x2"), halves(sign_lane(name, f, False)), packed_rows(rows))


def test_copysign_takes_the_sign_of_the_first_operand() -> None:
    for f in (F32, F64):
        assert_lanes(
            isa.resolve(f"copysign.{f.name}"), lambda a, b, f=f: b & ~f.sign | a & f.sign, float_rows(f, 2, 9, 50)
        )


def extremum_lane(name: str, f: Ieee, *, ftz: bool, nan: bool, xorsign: bool) -> Callable[[int, int], int]:
    """The manual's pseudo code of min and max."""

    def lane(a: int, b: int) -> int:
        if ftz:
            a, b = flushed(a, f), flushed(b, f)
        sign = (a ^ b) & f.sign
        if xorsign:
            a, b = a & ~f.sign, b & ~f.sign
        x, y = unpack(a, f), unpack(b, f)
        if (x.nan and y.nan) or (nan and (x.nan or y.nan)):
            return f.nan
        if x.nan or y.nan:
            d = b if x.nan else a
        else:

            def key(v: Real) -> tuple[float | Fraction, int]:
                number = v.value if v.value is not None else (-math.inf if v.negative else math.inf)
                return number, -int(v.negative)  # -0 below +0

            d = (a if key(x) > key(y) else b) if name == "max" else (a if key(x) < key(y) else b)
        return d & ~f.sign | sign if xorsign else d

    return lane


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("f", thinned(FORMATS.values(), 3), ids=FORMATS)
def test_min_max(f: Ieee, name: str, nan: bool) -> None:
    if f is F64:
        if not nan:
            lane = extremum_lane(name, f, ftz=False, nan=False, xorsign=False)
            assert_lanes(isa.resolve(f"{name}.f64"), lane, float_rows(f, 2, 4))
        return
    rows = float_rows(f, 2, 4, 200)
    for ftz in (False, True) if f is not BF16 else (False,):
        for xorsign in (False, True):
            modifiers = (".ftz" if ftz else "") + (".NaN" if nan else "") + (".xorsign.abs" if xorsign else "")
            lane = extremum_lane(name, f, ftz=ftz, nan=nan, xorsign=xorsign)
            assert_lanes(isa.resolve(f"{name}{modifiers}.{f.name}"), lane, rows)
            if f.bits == 16:
                assert_lanes(isa.resolve(f"{name}{modifiers}.{f.name}x2"), halves(lane), packed_rows(rows))


@pytest.mark.parametrize("f", [F16, BF16], ids=lambda f: f.name)
@pytest.mark.parametrize("name", thinned(["add", "sub", "fma"], 2))
def test_sums_in_f32_of_halves(name: str, f: Ieee) -> None:
    """PTX ISA, "Mixed Precision Floating-Point Instructions": the narrow operands are first converted, exactly."""
    count = 2 if name == "fma" else 1
    narrow = float_rows(f, 2, seed(name))
    wide = float_rows(F32, 1, seed(name), count=len(narrow))
    rows = [(*row[:count], *last) for row, last in zip(narrow, wide, strict=False)]
    for mode, sat in (("rn", False), ("rz", False), ("rm", True), ("rp", False)):

        def lane(*x: int, mode: str = mode, sat: bool = sat) -> int:
            values = [unpack(v, f) for v in x[:count]] + [unpack(x[count], F32)]
            result = pack(OPERATIONS[name][1](mode[1], *values), F32, mode[1])
            return saturated(result, F32) if sat else result

        operation = isa.resolve(f"{name}.{mode}{'.sat' if sat else ''}.f32.{f.name}")
        assert operation.sources == ("b16",) * count + ("b32",)
        assert_lanes(operation, lane, rows)


def test_a_mixed_sum_without_rounding_may_contract() -> None:
    assert isa.resolve("add.f32.bf16").contractible
    for opcode in ("mul.rn.f32.bf16", "add.rn.ftz.f32.f16", "fma.rn.relu.f32.f16", "mad.rn.f32.f16", "add.rn.f64.f16"):
        with pytest.raises(isa.NoSuchInstruction):
            isa.resolve(opcode)


@pytest.mark.parametrize("modifiers", ["", ".ftz", ".NaN", ".abs", ".ftz.NaN.abs"])
@pytest.mark.parametrize("name", ["min", "max"])
def test_min_max_of_three(name: str, modifiers: str) -> None:
    """PTX ISA, "min" and "max": NaN where all are, with .NaN where any is; else the extremum of the numbers."""

    def lane(*x: int) -> int:
        if ".ftz" in modifiers:
            x = tuple(flushed(v, F32) for v in x)
        if ".abs" in modifiers:
            x = tuple(v & ~F32.sign for v in x)
        numbers = [v for v in x if not unpack(v, F32).nan]
        if not numbers or (".NaN" in modifiers and len(numbers) < 3):
            return F32.nan
        # As integers of sign and magnitude the bits are in order, -0 below +0.
        order = sorted(numbers, key=lambda v: -(v & ~F32.sign) - 1 if v & F32.sign else v)
        return order[0] if name == "min" else order[-1]

    operation = isa.resolve(f"{name}{modifiers}.f32", 1, 3)
    assert_lanes(operation, lane, float_rows(F32, 3, seed(name + modifiers)))
    with pytest.raises(isa.NoSuchInstruction):
        isa.resolve(f"{name}.f16", 1, 3)


# --- planted faults -------------------------------------------------------------------------------------------------


def test_the_comparison_catches_fma_through_float64() -> None:
    def wrong(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        x, y, z = (v.view(np.float32).astype(np.float64) for v in (a, b, c))
        return (x * y + z).astype(np.float32).view(np.uint32)

    rows = tie_rows(F32, 1500, 1)
    assert mismatches(wrong, oracle("fma", F32, "n"), ("b32",) * 3, rows)


@pytest.mark.parametrize("fault", ["nan payload", "overflow to infinity", "truncated toward zero", "positive zero"])
def test_the_comparison_catches_a_wrong_sum(fault: str) -> None:
    right = isa.resolve("add.rm.f32").function
    nearest = isa.resolve("add.rn.f32").function
    zero = isa.resolve("add.rz.f32").function

    def wrong(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        r = right(a, b)
        if fault == "nan payload":
            return np.where(r == 0x7FFFFFFF, np.uint32(0x7FC00000), r)
        if fault == "overflow to infinity":
            return np.where(r == 0x7F7FFFFF, nearest(a, b), r)
        if fault == "truncated toward zero":
            return np.where((r >> 31) == 1, zero(a, b), r)
        return np.where(r == 0x80000000, np.uint32(0), r)

    assert mismatches(wrong, oracle("add", F32, "m"), ("b32", "b32"), float_rows(F32, 2, 3))


def test_corners_include_what_they_promise() -> None:
    edges = float_corners(F32)
    assert {0, 0x80000000, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0xFFFFFFFF} <= set(
        edges
    )
    assert len(random_floats(np.random.default_rng(0), F32, 50)) == 50
