"""The Q8_1 quantize kernel: every block of 32 of a matrix as int8 codes, an FP16 scale and an FP16 sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, INT32_MAX, check_fill, check_matrix, one_of
from refmoe.cuda.device import Device
from refmoe.cuda.launch import Buffer, Entry, LaunchPlan
from refmoe.errors import ArgumentError, describe
from refmoe.formats import Q8_1
from refmoe.reference.q8_1 import VARIANTS, Q8Tensor

DTYPES = {BF16: "bf16", np.dtype(np.float16): "fp16", np.dtype(np.float32): "f32"}
THREADS = 256  # kThreads
QUAD_ELEMENTS = 4  # kQuadElements, of a thread
CTAS_PER_MULTIPROCESSOR = 16  # more of them loop
HALF_BYTES = 2


def q8_1_quantize_kernel(dtype: str, variant: str) -> Entry:
    """The quantize kernel for `dtype` "bf16", "fp16" or "f32" and a variant by name."""
    return Entry("q8_1", f"refmoe_q8_1_quantize_{dtype}_{variant}")


def q8_1_quantize_plan(
    kernel: Entry, x: Buffer, codes: Buffer, d: Buffer, s: Buffer, *, rows: int, k: int, multiprocessors: int
) -> LaunchPlan:
    """A launch over the blocks of all rows; 4 elements a thread.

    Args:
        kernel: from `q8_1_quantize_kernel`.
        x: [rows, k].
        codes: int8 [rows, k], written.
        d: FP16 [rows, k/32], written: the scales.
        s: FP16 [rows, k/32], written: the sums.
        rows: how many there are, at least 1.
        k: elements of a row, a multiple of 32.
        multiprocessors: of the device.
    """
    quads = rows * k // QUAD_ELEMENTS
    grid = min(-(-quads // THREADS), CTAS_PER_MULTIPROCESSOR * multiprocessors)
    return LaunchPlan(kernel, grid, THREADS, (x, codes, d, s, quads))


def quantize_q8_1(x: npt.NDArray[Any], *, device: Device, variant: str = "llama_cpp_mmvq", fill: int = 0) -> Q8Tensor:
    """Quantize a matrix to Q8_1 with the production kernel.

    Args:
        x: BF16, FP16 or FP32 [M, K], C-contiguous, K a positive multiple of 32; M may be 0.
        device: where the kernel runs.
        variant: "llama_cpp_mmvq" or "llama_cpp_mmq", see `refmoe.reference.q8_1`.
        fill: byte that the output buffers hold before the launch, 0..255.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    name = one_of("variant", variant, VARIANTS)
    check_fill(fill)
    if not isinstance(x, np.ndarray) or x.dtype not in DTYPES:
        raise ArgumentError("x", describe(x), "a bfloat16, float16 or float32 array")
    rows, k = check_matrix("x", x)
    if rows * k > INT32_MAX:
        raise ArgumentError("x", f"{rows * k} elements", f"at most {INT32_MAX}: kernels count in int32")
    blocks = k // Q8_1.block
    codes = device.output("codes", (rows, k), fill)
    d, s = (device.output(each, (rows, blocks * HALF_BYTES), fill) for each in ("d", "s"))
    if rows:
        kernel, multiprocessors = q8_1_quantize_kernel(DTYPES[x.dtype], name), device.multiprocessors
        source = device.upload("x", x)
        device.launch(q8_1_quantize_plan(kernel, source, codes, d, s, rows=rows, k=k, multiprocessors=multiprocessors))
    halves = (device.download(each).view(np.float16) for each in (d, s))
    return Q8Tensor(device.download(codes).view(np.int8), *halves)
