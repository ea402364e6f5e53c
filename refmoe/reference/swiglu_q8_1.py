"""SwiGLU of rows in expert order, its FP32 values quantized to Q8_1: the activation between two DP4A products.

The formulas are those of `refmoe.reference.activation` and `refmoe.reference.q8_1`; no 16-bit format lies in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import Q8_1
from refmoe.reference.activation import ALPHA, BETA, LIMIT, swiglu
from refmoe.reference.layout import checked_fill, checked_offsets
from refmoe.reference.q8_1 import Q8Tensor, quantize_q8_1


def swiglu_q8_1(
    gate_up: NDArray[Any],
    offsets: NDArray[np.int64],
    *,
    variant: str = "gpt_oss",
    quantizer: str = "llama_cpp_mmvq",
    alpha: NDArray[np.float32] | None = None,
    beta: NDArray[np.float32] | None = None,
    limit: NDArray[np.float32] | None = None,
    fill: int = 0,
) -> Q8Tensor:
    """The activation of every row in use.

    Args:
        gate_up: bfloat16 or float32 [R, 2 I], I a multiple of 32; rows from offsets[E] on are not read.
        offsets: int64 [E + 1], first row of each expert, then the number of rows in use, at most R.
        variant: "gpt_oss" or "silu".
        quantizer: "llama_cpp_mmvq" or "llama_cpp_mmq".
        alpha: float32 [E], one an expert; None is gpt-oss's own. Of gpt_oss only, as the next two.
        beta: likewise.
        limit: likewise.
        fill: byte of all buffers in rows from offsets[E] on.

    Returns:
        Q8_1 [R, I].

    Raises:
        ArgumentError: as `refmoe.reference.activation.swiglu`; offsets that do not fit; I no multiple of 32.
    """
    experts = checked_offsets(offsets).size - 1
    if not isinstance(gate_up, np.ndarray) or gate_up.ndim != 2 or gate_up.shape[1] % (2 * Q8_1.block):
        raise ArgumentError("gate_up", describe(gate_up), f"[R, 2 I], I a multiple of {Q8_1.block}")
    rows, width, used = gate_up.shape[0], gate_up.shape[1] // 2, int(offsets[-1])
    if used > rows:
        raise ArgumentError("offsets", f"{used} rows in use", f"at most the {rows} rows of gate_up")
    owner = np.repeat(np.arange(experts), np.diff(offsets))
    parameters: dict[str, Any] = {}
    for name, values, default in (("alpha", alpha, ALPHA), ("beta", beta, BETA), ("limit", limit, LIMIT)):
        if values is not None and (values.dtype != np.float32 or values.shape != (experts,)):
            raise ArgumentError(name, describe(values), f"float32 [{experts}]")
        parameters[name] = default if values is None else values[owner]
    quantized = quantize_q8_1(swiglu(gate_up[:used], variant=variant, **parameters), variant=quantizer)
    byte = checked_fill(fill)
    whole = []
    for part, columns in (
        (quantized.codes, width),
        (quantized.d, width // Q8_1.block),
        (quantized.s, width // Q8_1.block),
    ):
        buffer = np.zeros((rows, columns), part.dtype)
        buffer.view(np.uint8)[used:] = byte
        buffer[:used] = part
        whole.append(buffer)
    return Q8Tensor(*whole)
