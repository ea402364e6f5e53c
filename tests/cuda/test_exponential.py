"""The exponential of the kernels and that of the reference are one sequence: same constants, same bits."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from support.toolchain import NVCC, executable

from refmoe.cuda.toolchain import CSRC
from refmoe.ptx import Buffer, launch
from refmoe.reference import exponential as reference
from refmoe.reference import fp32

SOURCE = (CSRC / "exponential.cuh").read_text()

NAMES = {
    "kExpLog2e": reference.LOG2E,
    "kExpMagic": reference.MAGIC,
    "kExpLn2High": reference.LN2_HIGH,
    "kExpLn2Low": reference.LN2_LOW,
    "kExpP6": reference.COEFFICIENTS[0],
    "kExpP5": reference.COEFFICIENTS[1],
    "kExpP4": reference.COEFFICIENTS[2],
    "kExpP3": reference.COEFFICIENTS[3],
    "kExpP2": reference.COEFFICIENTS[4],
    "kExpOverflow": reference.OVERFLOW,
    "kExpUnderflow": reference.UNDERFLOW,
}

CLAMPS = {"kExpNegligible", "kExpInfinite"}  # of the kernels alone: where 1 + exp(x) changes no more

#: Where exp(x) changes its nature, then where 1 + exp(x) does or is clamped.
THRESHOLDS = (reference.OVERFLOW, reference.UNDERFLOW, -64, -17.328680, 88.376274, 89)

KERNEL = """
#include "exponential.cuh"
extern "C" __global__ void exponentials(const float* x, float* y, float* sums, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    y[i] = refmoe::exponential(x[i]);
    sums[i] = refmoe::one_plus_exponential(x[i]);
}
"""


def test_the_constants_are_those_of_the_reference() -> None:
    found = dict(re.findall(r"constexpr float (kExp\w+) = (-?0x[0-9a-f.]+p[+-]\d+)f;", SOURCE))
    assert {name: float.fromhex(text) for name, text in found.items() if name not in CLAMPS} == {
        name: float(value) for name, value in NAMES.items()
    }
    assert [float(value) for value in reference.COEFFICIENTS[5:]] == [1.0, 1.0]  # written as they are


def test_the_bits_of_the_magic_number() -> None:
    (text,) = re.findall(r"kExpMagicBits = (0x[0-9A-F]+)u", SOURCE)
    assert int(text, 16) == struct.unpack("<I", struct.pack("<f", reference.MAGIC))[0]


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")
def test_the_kernels_exponential_has_the_bits_of_the_reference(tmp_path: Path) -> None:
    module = executable(KERNEL, ("exponential.cuh", "instructions.cuh"), tmp_path)

    spread = np.arange(0, 2**32, 65537, dtype=np.uint64).astype(np.uint32)  # every exponent, either sign, NaN, Inf
    around = [
        np.float32(edge).view(np.uint32).astype(np.int64) + np.arange(-40, 41)
        for edge in (
            reference.OVERFLOW,
            reference.UNDERFLOW,
            -87.33655,
            0.34657359,
            -0.34657359,
            1.0,
            -64,
            -17.328680,
            88.376274,
            89,
        )
    ]
    x = np.concatenate([spread, *(bits.astype(np.uint32) for bits in around)]).view(np.float32)
    y, sums = np.zeros_like(x), np.zeros_like(x)
    block = 256
    launch(
        module,
        "exponentials",
        grid=(-(-x.size // block), 1, 1),
        block=(block, 1, 1),
        args=[Buffer(x, writable=False), Buffer(y, initialised=False), Buffer(sums, initialised=False), x.size],
    )
    expected = reference.exponential(x)
    assert y.tobytes() == expected.tobytes()
    assert sums.tobytes() == fp32.add(np.ones_like(x), expected).tobytes()
