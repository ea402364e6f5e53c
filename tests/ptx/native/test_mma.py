"""mma.sync of a warp as native code: fragments to and fro, and every spelling's arithmetic."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.reference.mma import MODELS
from refmoe.reference.mma.product import checked_operands, numpy_product
from refmoe.reference.scalar.mma import accumulate

pytest.importorskip("llvmlite")

from refmoe.ptx.native.mma import WarpMma

WARPS = 48
NAN = 0x7FFFFFFF


@dataclass(frozen=True)
class Spelling:
    """What an instruction takes; `bits` of a register that an element has."""

    model: str
    a_format: str
    b_format: str
    k: int
    bits: int
    scales: int = 0

    @property
    def native(self) -> WarpMma:
        return WarpMma(self.model, self.a_format, self.b_format, self.scales, self.bits == 4)

    def __str__(self) -> str:
        return f"{self.model}-k{self.k}-{self.a_format}-{self.b_format}-{self.scales}"


NARROW, FP8 = ("e4m3", "e5m2", "e2m1"), ("e4m3", "e5m2")
SPELLINGS = [
    *(Spelling("sm90_mma", fmt, fmt, 16, 16) for fmt in ("bf16", "f16")),
    *(Spelling("sm90_mma_k8", fmt, fmt, 8, 16) for fmt in ("bf16", "f16")),
    Spelling("sm90_mma_k8", "tf32", "tf32", 8, 32),
    *(Spelling("sm90_mma_fp8", a, b, 32, 8) for a in FP8 for b in FP8),
    *(Spelling("sm120", a, b, 32, 8, scales) for a in NARROW for b in NARROW for scales in (0, 1)),
    Spelling("sm120_mxf4", "e2m1", "e2m1", 64, 4, 2),
    Spelling("sm120_nvf4", "e2m1", "e2m1", 64, 4, 4),
]
every_spelling = pytest.mark.parametrize("spelling", SPELLINGS, ids=str)


def code_of(word: int, element: int, bits: int, fmt: str) -> int:
    code = word >> element * bits & ((1 << bits) - 1)
    # A byte of kind::f8f6f4 holds E2M1 in its bits 2 to 5.
    return code >> 2 & 15 if fmt == "e2m1" and bits == 8 else code


def matrices(spelling: Spelling, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes [16, K] and [8, K] of one warp's registers [n, 32], element by element as the PTX ISA numbers them."""
    per_register = 32 // spelling.bits
    dtype = f"u{max(spelling.bits, 8) // 8}"
    found = np.zeros((16, spelling.k), dtype), np.zeros((8, spelling.k), dtype)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for i in range(len(a)):
            for e in range(per_register):
                k = (i // 2 * 4 + t) * per_register + e
                found[0][g + i % 2 * 8, k] = code_of(int(a[i, lane]), e, spelling.bits, spelling.a_format)
        for i in range(len(b)):
            for e in range(per_register):
                k = (i * 4 + t) * per_register + e
                found[1][g, k] = code_of(int(b[i, lane]), e, spelling.bits, spelling.b_format)
    return found


def accumulator_place(lane: int, i: int) -> tuple[int, int]:
    g, t = divmod(lane, 4)
    return g + i // 2 * 8, 2 * t + i % 2


def scale_rows(words: np.ndarray, byte: int, thread: int, rows: int, count: int) -> np.ndarray:
    """Scales [rows, count] of one warp's register [32]."""
    found = np.zeros((rows, count), np.uint8)
    for row in range(rows):
        lane = 4 * (row % 8) + thread * (2 if rows == 16 else 1) + row // 8
        for i in range(count):
            found[row, i] = int(words[lane]) >> 8 * (byte + i) & 0xFF
    return found


@dataclass
class Warps:
    """Operands of some warps."""

    spelling: Spelling
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    a_scales: tuple[np.ndarray, np.ndarray, np.ndarray] | None
    b_scales: tuple[np.ndarray, np.ndarray, np.ndarray] | None

    @classmethod
    def draw(cls, rng: np.random.Generator, spelling: Spelling, *, finite: bool = False) -> Warps:
        """Any bits at all; with `finite` no element, scale or C that is not a number."""
        registers = spelling.k * spelling.bits // 32 // 4
        a, b = (words(rng, (n, WARPS, 32)) for n in (2 * registers, registers))
        c = words(rng, (4, WARPS, 32))
        low, high = (0, 0x100) if not finite else (0x30, 0x50) if spelling.scales == 4 else (0x78, 0x88)
        if finite:
            # Without the top bit of their exponents all are numbers.
            tops = {8: 0x40404040, 16: 0x40004000, 32: 0x40000000, 4: 0}[spelling.bits]
            a, b, c = a & ~np.uint32(tops), b & ~np.uint32(tops), c & np.uint32(0xBFFFFFFF)
        scales = []
        for threads in (2, 4):
            held = rng.integers(low, high, (WARPS, 128)).astype(np.uint8).view(np.uint32)
            count = spelling.scales or 1
            scales.append((held, rng.integers(0, 4 // count, WARPS) * count, rng.integers(0, threads, WARPS)))
        given = scales if spelling.scales else [None, None]
        return cls(spelling, a, b, c, given[0], given[1])

    def native(self) -> np.ndarray:
        return self.spelling.native(self.a, self.b, self.c, self.a_scales, self.b_scales)

    def codes(self) -> tuple[np.ndarray, ...]:
        """A [W, 16, K], B [W, 8, K], C float32 [W, 16, 8], scales of A and of B or None."""
        warps = range(self.c.shape[1])
        pairs = [matrices(self.spelling, self.a[:, w], self.b[:, w]) for w in warps]
        a, b = (np.stack([pair[side] for pair in pairs]) for side in (0, 1))
        c = np.zeros((len(warps), 16, 8), np.uint32)
        for lane in range(32):
            for i in range(4):
                row, column = accumulator_place(lane, i)
                c[:, row, column] = self.c[i, :, lane]
        scales = []
        for held, rows in ((self.a_scales, 16), (self.b_scales, 8)):
            if held is None:
                scales.append(None)
                continue
            each = [scale_rows(held[0][w], int(held[1][w]), int(held[2][w]), rows, self.spelling.scales) for w in warps]
            scales.append(np.stack(each))
        return a, b, c.view(np.float32), *scales

    def wanted(self) -> np.ndarray:
        """D by NumPy, with some outputs by the specification: uint32 [4, W, 32]."""
        spelling = self.spelling
        a, b, c, *scales = self.codes()
        model = MODELS[spelling.model]
        formats = spelling.a_format, spelling.b_format
        d = numpy_product(*checked_operands(a, b, c, model, *formats, *scales), model, model.pair(*formats).block)
        found = d.view(np.uint32)
        for w in range(0, len(d), 16):
            m, n = w % 16, w % 8
            assert found[w, m, n] == accumulate(
                a[w, m].tolist(), b[w, n].tolist(), int(c.view(np.uint32)[w, m, n]), model, *formats,
                *(None if each is None else each[w, row].tolist() for each, row in zip(scales, (m, n), strict=True)),
            )  # fmt: skip
        registers = np.zeros_like(self.c)
        for lane in range(32):
            for i in range(4):
                row, column = accumulator_place(lane, i)
                registers[i, :, lane] = found[:, row, column]
        return registers


def words(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32)


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool((found == wanted).all())


@every_spelling
@pytest.mark.parametrize("finite", thinned([False, True], 3))
def test_any_registers(spelling, finite):
    warps = Warps.draw(np.random.default_rng([1, finite]), spelling, finite=finite)
    assert same(warps.native(), warps.wanted())


@every_spelling
def test_operands_of_zeros(spelling):
    """Warps whose A, whose B or both are zeros of either sign, with anything in C and on the other side."""
    warps = Warps.draw(np.random.default_rng(2), spelling)
    signs = {4: 0x88888888, 8: 0x80808080, 16: 0x80008000, 32: 0x80000000}[spelling.bits]
    if spelling.bits == 8:
        # E2M1 in the middle of a byte has its sign elsewhere, and bits around it that mean nothing.
        a_signs, b_signs = (0xE3E3E3E3 if fmt == "e2m1" else signs for fmt in (spelling.a_format, spelling.b_format))
    elif spelling.bits == 32:
        a_signs = b_signs = 0x80001FFF
    else:
        a_signs = b_signs = signs
    warps.a[:, : 2 * WARPS // 3] &= np.uint32(a_signs)
    warps.b[:, WARPS // 3 :] &= np.uint32(b_signs)
    assert same(warps.native(), warps.wanted())


@every_spelling
def test_zeros_leave_c(spelling):
    """Subnormal, infinite and NaN C come through; -0 becomes +0."""
    rng = np.random.default_rng(3)
    warps = Warps.draw(rng, spelling, finite=True)
    warps.a[:] = 0
    specials = np.array([0x80000000, 0, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345], np.uint32)
    warps.c[...] = rng.choice(specials, warps.c.shape)
    expected = np.where(warps.c == 0x80000000, 0, warps.c)
    expected[np.isnan(warps.c.view(np.float32))] = NAN
    assert same(warps.native(), expected)
    assert same(warps.native(), warps.wanted())


@pytest.mark.parametrize("spelling", [each for each in SPELLINGS if each.a_format != "e2m1"], ids=str)
@pytest.mark.parametrize("lane", thinned([6, 0, 31], 3))
def test_a_zero_times_no_number(spelling, lane):
    """All of B zero, one element of A infinite or NaN: its row is lost, and no other."""
    warps = Warps.draw(np.random.default_rng(4), spelling, finite=True)
    warps.b[:] = 0
    special = {"e4m3": 0x7F, "e5m2": 0xFC, "bf16": 0xFF80, "f16": 0x7C00, "tf32": 0x7F800000}[spelling.a_format]
    warps.a[1, :, lane] |= np.uint32(special)
    found = warps.native()
    assert (found[2:, :, lane // 4 * 4 : lane // 4 * 4 + 4] == NAN).all()
    assert same(found, warps.wanted())


@pytest.mark.parametrize("spelling", [each for each in SPELLINGS if each.scales], ids=str)
@pytest.mark.parametrize("side", ["a_scales", "b_scales"])
def test_a_nan_scale_of_zeros(spelling, side):
    warps = Warps.draw(np.random.default_rng(5), spelling, finite=True)
    warps.a[:] = 0
    # UE4M3 ignores the sign bit.
    getattr(warps, side)[0][:, 13] = 0x7F7F7F7F if spelling.scales == 4 else 0xFFFFFFFF
    found = warps.native()
    assert (found == NAN).any()
    assert same(found, warps.wanted())


@every_spelling
def test_the_c_function(spelling):
    """One warp by its address, as native code calls it: D where C lies, and nothing beside it."""
    warps = Warps.draw(np.random.default_rng(6), spelling, finite=True)
    wanted = warps.wanted()
    word, number = ctypes.c_void_p, ctypes.c_int64
    scales = [word, number, number]
    call = ctypes.CFUNCTYPE(None, word, word, word, word, number, *scales, *scales)(spelling.native.address)
    for w in range(0, WARPS, 7):
        a, b = np.ascontiguousarray(warps.a[:, w]), np.ascontiguousarray(warps.b[:, w])
        around = np.full((6, 32), 0xABCDABCD, np.uint32)
        around[1:5] = warps.c[:, w]
        selectors, held = [], []
        for each in (warps.a_scales, warps.b_scales):
            if each is None:
                selectors += [None, 0, 0]
            else:
                held.append(np.ascontiguousarray(each[0][w]))
                selectors += [held[-1].ctypes.data, int(each[1][w]), int(each[2][w])]
        place = around[1:].ctypes.data
        call(a.ctypes.data, b.ctypes.data, place, place, 128, *selectors)
        assert same(around[1:5], wanted[:, w])
        assert (around[[0, 5]] == 0xABCDABCD).all()
