"""The SwiGLU kernel whose results are Q8_1: the activation between two DP4A products."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16, INT32_MAX, check_array, check_fill, check_int32, check_offsets, one_of
from refmoe.cuda.device import Device
from refmoe.cuda.launch import CTAS_PER_MULTIPROCESSOR, Buffer, Entry, LaunchPlan
from refmoe.cuda.q8_1 import HALF_BYTES, QUAD_ELEMENTS
from refmoe.errors import ArgumentError, describe
from refmoe.formats import Q8_1
from refmoe.reference.activation import VARIANTS
from refmoe.reference.q8_1 import VARIANTS as QUANTIZERS
from refmoe.reference.q8_1 import Q8Tensor

THREADS = 128  # kThreads: a slice of 512 results
DTYPES = {BF16: "bf16", np.dtype(np.float32): "f32"}


def swiglu_q8_1_kernel(variant: str, dtype: str, quantizer: str) -> Entry:
    """The kernel for an activation's variant, rows of "bf16" or "f32", and a variant of Q8_1, by name."""
    return Entry("swiglu_q8_1", f"refmoe_swiglu_q8_1_{variant}_{dtype}_{quantizer}")


def swiglu_q8_1_plan(
    kernel: Entry,
    gate_up: Buffer,
    offsets: Buffer,
    parameters: tuple[Buffer | None, Buffer | None, Buffer | None],
    codes: Buffer,
    d: Buffer,
    s: Buffer,
    *,
    rows: int,
    width: int,
    experts: int,
    multiprocessors: int,
) -> LaunchPlan:
    """A launch over slices of 512 results of all rows; 4 results a thread.

    Args:
        kernel: from `swiglu_q8_1_kernel`.
        gate_up: [rows, 2 * width], in expert order.
        offsets: int64 [experts + 1].
        parameters: alpha, beta and limit, float32 [experts] each, or None for the figure of gpt-oss.
        codes: int8 [rows, width], written.
        d: FP16 [rows, width/32], written: the scales.
        s: FP16 [rows, width/32], written: the sums.
        rows: of `gate_up`, those past the last expert's included.
        width: I, a multiple of 32.
        experts: of this rank.
        multiprocessors: of the device.
    """
    arguments = (gate_up, offsets, *parameters, codes, d, s, rows, experts, width // QUAD_ELEMENTS)
    slices = rows * -(-width // (THREADS * QUAD_ELEMENTS))
    return LaunchPlan(kernel, min(slices, CTAS_PER_MULTIPROCESSOR * multiprocessors), THREADS, arguments)


def swiglu_q8_1(
    gate_up: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    *,
    device: Device,
    variant: str = "gpt_oss",
    quantizer: str = "llama_cpp_mmvq",
    swiglu_alpha: npt.NDArray[np.float32] | None = None,
    swiglu_beta: npt.NDArray[np.float32] | None = None,
    swiglu_limit: npt.NDArray[np.float32] | None = None,
    fill: int = 0,
) -> Q8Tensor:
    """SwiGLU of every row, quantized to Q8_1 from FP32, with the production kernel.

    Args:
        gate_up: BF16 or FP32 [R, 2I] in expert order, C-contiguous, I a positive multiple of 32; laid out as for
            `refmoe.cuda.activation.swiglu_quantize`.
        offsets: int64 [E+1], first row of each of this rank's experts.
        device: where the kernel runs.
        variant: "gpt_oss" or "silu".
        quantizer: "llama_cpp_mmvq" or "llama_cpp_mmq".
        swiglu_alpha: float32 [E] or None; of "gpt_oss" only, as the next two.
        swiglu_beta: float32 [E] or None.
        swiglu_limit: float32 [E], not negative and not NaN, or None.
        fill: byte that the output buffers hold before the launch; it stays in rows from offsets[E] on.

    Raises:
        ArgumentError: an argument is none of these; nothing has run.
    """
    name, chosen = one_of("variant", variant, VARIANTS), one_of("quantizer", quantizer, QUANTIZERS)
    check_fill(fill)
    rows, width, experts = _check_rows(gate_up, offsets)
    parameters = {"swiglu_alpha": swiglu_alpha, "swiglu_beta": swiglu_beta, "swiglu_limit": swiglu_limit}
    for argument, array in parameters.items():
        if array is None:
            continue
        if name == "silu":
            raise ArgumentError(argument, f"{describe(array)} with silu, which has none", "the gpt_oss variant")
        check_array(argument, array, np.dtype(np.float32), (experts,))
    if swiglu_limit is not None and not (swiglu_limit >= 0).all():
        raise ArgumentError("swiglu_limit", f"{swiglu_limit[~(swiglu_limit >= 0)][0]}", "limits of at least 0")

    codes = device.output("codes", (rows, width), fill)
    d, s = (device.output(each, (rows, width // Q8_1.block * HALF_BYTES), fill) for each in ("d", "s"))
    if rows:
        plan = swiglu_q8_1_plan(
            swiglu_q8_1_kernel(name, DTYPES[gate_up.dtype], chosen),
            device.upload("gate_up", gate_up),
            device.upload("offsets", offsets),
            tuple(None if array is None else device.upload(each, array) for each, array in parameters.items()),  # type: ignore[arg-type]
            codes,
            d,
            s,
            rows=rows,
            width=width,
            experts=experts,
            multiprocessors=device.multiprocessors,
        )
        device.launch(plan)
    halves = (device.download(each).view(np.float16) for each in (d, s))
    return Q8Tensor(device.download(codes).view(np.int8), *halves)


def _check_rows(gate_up: object, offsets: object) -> tuple[int, int, int]:
    """(R, I, E)."""
    if not isinstance(gate_up, np.ndarray) or gate_up.dtype not in DTYPES or gate_up.ndim != 2:
        raise ArgumentError("gate_up", describe(gate_up), "bfloat16 or float32 [R, 2I]")
    rows, columns = gate_up.shape
    if columns == 0 or columns % (2 * Q8_1.block):
        raise ArgumentError("gate_up", f"2I = {columns}", f"I a positive multiple of {Q8_1.block}")
    check_array("gate_up", gate_up, gate_up.dtype, (rows, columns))
    check_int32("gate_up", rows * columns, "elements")
    if not isinstance(offsets, np.ndarray) or offsets.ndim != 1 or not 2 <= offsets.size <= INT32_MAX:
        raise ArgumentError("offsets", describe(offsets), "int64 [E+1] with at least one expert")
    check_array("offsets", offsets, np.dtype(np.int64), (offsets.size,))
    check_offsets(offsets, rows)
    return rows, columns // 2, offsets.size - 1
