"""Second witnesses: the host's own FPU in every rounding mode, and NVIDIA's headers for the narrow formats."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.ptx import isa

ROUNDED = r"""
#include <fenv.h>
#include <math.h>
#include <stdint.h>
static const int MODES[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
#define RUN(name, type, FMA, SQRT) \
void name(int op, int mode, const type *a, const type *b, const type *c, type *out, long n) { \
    int before = fegetround(); \
    fesetround(MODES[mode]); \
    for (long i = 0; i < n; i++) { \
        volatile type x = a[i], y = b[i], z = c[i], r = 0; \
        switch (op) { \
            case 0: r = x + y; break; \
            case 1: r = x - y; break; \
            case 2: r = x * y; break; \
            case 3: r = x / y; break; \
            case 4: r = FMA(x, y, z); break; \
            case 5: r = SQRT(x); break; \
        } \
        out[i] = r; \
    } \
    fesetround(before); \
}
RUN(f32, float, fmaf, sqrtf)
RUN(f64, double, fma, sqrt)
"""
NARROW = r"""
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#include <cstdint>
#include <cstring>
static float f(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
#define RUN(name, call) extern "C" void name(const uint32_t *a, uint8_t *out, long n) { \
    for (long i = 0; i < n; i++) { float x = f(a[i]); out[i] = call; } }
RUN(e4m3, __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3))
RUN(e5m2, __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2))
RUN(e2m3, __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundNearest))
RUN(e3m2, __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundNearest))
RUN(e2m1, __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest))
RUN(rz, __nv_cvt_float_to_e8m0(x, __NV_NOSAT, cudaRoundZero))
RUN(rz_satfinite, __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero))
RUN(rp, __nv_cvt_float_to_e8m0(x, __NV_NOSAT, cudaRoundPosInf))
RUN(rp_satfinite, __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf))
"""


def build(folder: Path, name: str, source: str, command: list[str]) -> ctypes.CDLL:
    path = folder / name
    path.write_text(source)
    library = path.with_suffix(".so")
    subprocess.run([*command, str(path), "-o", str(library), "-lm"], check=True, capture_output=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    flags = ["-O1", "-frounding-math", "-ffp-contract=off", "-fno-builtin", "-shared", "-fPIC"]
    return build(tmp_path_factory.mktemp("rounded"), "rounded.c", ROUNDED, ["gcc", *flags])


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    try:
        nvcc = find_toolchain().nvcc
    except ToolchainError as error:
        pytest.skip(str(error))
    flags = ["-x", "c++", "-O1", "-shared", "-Xcompiler", "-fPIC", "-cudart", "none"]
    return build(tmp_path_factory.mktemp("narrow"), "narrow.cpp", NARROW, [str(nvcc), *flags])


def pointer(x: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def operands(bits: int, count: int, seed: int) -> list[np.ndarray]:
    """Random patterns: a third over all, a third with near exponents, a third with sparse significands."""
    rng = np.random.default_rng(seed)
    word = np.uint32 if bits == 32 else np.uint64
    fraction = 23 if bits == 32 else 52
    bias = 127 if bits == 32 else 1023
    result = []
    for _ in range(3):
        x = (
            rng.integers(0, 1 << bits, count, dtype=np.uint64, endpoint=False)
            if bits == 32
            else rng.integers(0, 2**64 - 1, count, dtype=np.uint64, endpoint=True)
        )
        x = x.astype(word)
        exponent = rng.integers(bias - 30, bias + 30, count).astype(word) << word(fraction)
        sign, low = x & word(1 << (bits - 1)), x & word((1 << fraction) - 1)
        sparse = low & (low << word(9)) & (low << word(17))
        which = rng.integers(0, 3, count)
        result.append(np.where(which == 0, x, sign | exponent | np.where(which == 1, low, sparse)))
    return result


@pytest.mark.parametrize("mode", thinned([0, 1, 2, 3], 2), ids=["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("bits", [32, 64])
def test_the_host_rounds_the_same(host: ctypes.CDLL, bits: int, mode: int) -> None:
    word = np.uint32 if bits == 32 else np.uint64
    real = np.float32 if bits == 32 else np.float64
    # Directed double precision is one lane at a time in Python: fewer of them.
    count = 200_000 if bits == 32 or mode == 0 else 5_000
    a, b, c = operands(bits, count, bits + mode)
    for op, (name, arity) in enumerate([("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("fma", 3), ("sqrt", 1)]):
        expected = np.zeros(count, word)
        getattr(host, f"f{bits}")(op, mode, pointer(a), pointer(b), pointer(c), pointer(expected), ctypes.c_long(count))
        expected = np.where(np.isnan(expected.view(real)), word(0x7FFFFFFF if bits == 32 else 0xFFF8 << 48), expected)
        opcode = f"{name}.{('rn', 'rz', 'rm', 'rp')[mode]}.f{bits}"
        with np.errstate(all="ignore"):
            result = isa.resolve(opcode).function(*(a, b, c)[:arity])
        wrong = np.flatnonzero(result != expected)
        assert not len(wrong), f"{opcode}: {len(wrong)} differ, first {[hex(int(x[wrong[0]])) for x in (a, b, c)]}"


def narrow_inputs() -> np.ndarray:
    """Every upper half of a float32 with every kind of lower half: nothing else can change a narrow result."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.concatenate([upper | np.uint32(low) for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "rz", "rz_satfinite", "rp", "rp_satfinite"])
def test_nvidias_headers_convert_the_same(headers: ctypes.CDLL, name: str) -> None:
    x = narrow_inputs()
    expected = np.zeros(len(x), np.uint8)
    getattr(headers, name)(pointer(x), pointer(expected), ctypes.c_long(len(x)))
    opcode = f"cvt.{name.replace('_', '.')}.ue8m0x2.f32" if name[0] == "r" else f"cvt.rn.satfinite.{name}x2.f32"
    result = isa.resolve(opcode).function(np.zeros_like(x), x) & 0xFF
    wrong = np.flatnonzero(result.astype(np.uint8) != expected)
    assert not len(wrong), (
        f"{opcode}: {len(wrong)} differ, {[(hex(x[i]), hex(result[i]), hex(expected[i])) for i in wrong[:8]]}"
    )
