"""The kernels' reciprocal is rounded to nearest, for every mantissa, and the exponents that they pass it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.toolchain import NVCC, executable

from refmoe.ptx import Buffer, Module, launch

pytestmark = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")

MANTISSAS = 2**23
ONE = np.uint32(0x3F800000)
#: The largest exponent that `reciprocal` says it takes.
LAST_EXPONENT = 120

KERNEL = """
#include "reciprocal.cuh"
extern "C" __global__ void reciprocals(float* of_one, const float* d, float* y, int first, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (of_one) of_one[i] = refmoe::reciprocal(__int_as_float(0x3F800000 + first + i));
    if (i < count) y[i] = refmoe::reciprocal(d[i]);
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Module:
    return executable(KERNEL, ("reciprocal.cuh",), tmp_path_factory.mktemp("reciprocal"))


def nearest(d: NDArray[np.float32]) -> NDArray[np.float32]:
    """RN(1 / d). A quotient of two FP32 numbers that is rounded to 53 bits first is rounded the same to 24 (Figueroa,
    "When is double rounding innocuous?": 53 >= 2 * 24 + 2)."""
    return (1.0 / d.astype(np.float64)).astype(np.float32)


def test_every_mantissa(module: Module) -> None:
    """Of one exponent, which stands for all: with d times 2, every step is half."""
    y = np.zeros(MANTISSAS, np.float32)
    block = 1024
    launch(
        module,
        "reciprocals",
        grid=(MANTISSAS // block, 1, 1),
        block=(block, 1, 1),
        args=[Buffer(y, initialised=False), None, None, 0, 0],
    )
    d = (ONE + np.arange(MANTISSAS, dtype=np.uint32)).view(np.float32)
    assert y.tobytes() == nearest(d).tobytes()


def test_every_exponent(module: Module) -> None:
    mantissas = np.array([0, 1, 2, 3, 0x186799, 0x384A93, 0x1BEAAF, 0x7FFFFD, 0x7FFFFE, 0x7FFFFF], np.uint32)
    exponents = ONE + (np.arange(LAST_EXPONENT, dtype=np.uint32) << 23)
    d = (exponents[:, None] + mantissas).ravel().view(np.float32)
    d = np.append(d, np.float32(2.0**LAST_EXPONENT))
    y = np.zeros_like(d)
    block = 256
    launch(
        module,
        "reciprocals",
        grid=(-(-d.size // block), 1, 1),
        block=(block, 1, 1),
        args=[None, Buffer(d, writable=False), Buffer(y, initialised=False), 0, d.size],
    )
    assert y.tobytes() == nearest(d).tobytes()
