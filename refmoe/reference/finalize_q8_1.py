"""Finalize whose FP32 sums are quantized to Q8_1: what the next product takes without another conversion.

    acc = finalize's sum in FP32, which is not rounded to BF16;  codes, d, s = Q8_1 of acc, blocks of 32 columns

The formulas are those of `refmoe.reference.finalize` and `refmoe.reference.q8_1`. The sum alone is quantized: no
residual is added and nothing is normalised. In llama.cpp both lie between this sum and the next quantization.
`build_moe_ffn` (src/llama-graph.cpp) weights and adds up the experts in FP32. The model's graph then adds the residual
and takes an RMS norm, in a decoder attention and a second norm too, before `quantize_q8_1` runs again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import Q8_1
from refmoe.reference.finalize import finalize
from refmoe.reference.q8_1 import Q8Tensor, quantize_q8_1


def finalize_q8_1(
    rows: NDArray[Any],
    unpermuted_to_permuted: NDArray[np.int32],
    weights: NDArray[np.float32],
    *,
    topk_ids: NDArray[np.int32] | None = None,
    bias: NDArray[Any] | None = None,
    first_expert: int = 0,
    quantizer: str = "llama_cpp_mmvq",
) -> Q8Tensor:
    """The output of every token in Q8_1.

    Args:
        rows: bfloat16 or float32 [T * k, H], of the second product, in expert order; H a multiple of 32. Rows that no
            map entry names are not read.
        unpermuted_to_permuted: int32 [T * k], the row of token + k_rank * T; -1 for an expert of another rank, skipped.
        weights: float32 [T, k].
        topk_ids: int32 [T, k], the experts; needed with `bias` only.
        bias: bfloat16 or float32 [E, H], added before the weight, in FP32.
        first_expert: id of the first expert of `bias`.
        quantizer: "llama_cpp_mmvq" or "llama_cpp_mmq".

    Returns:
        Q8_1 [T, H]; a token none of whose experts are here is blocks of zeros, which the quantizer makes of zeros.

    Raises:
        ArgumentError: as `refmoe.reference.finalize.finalize`; an unknown quantizer; H no multiple of 32.
    """
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] % Q8_1.block:
        raise ArgumentError("rows", describe(rows), f"[T * k, H], H a multiple of {Q8_1.block}")
    sums = finalize(
        rows,
        unpermuted_to_permuted,
        weights,
        topk_ids=topk_ids,
        bias=bias,
        first_expert=first_expert,
        out_dtype=np.float32,
    )
    return quantize_q8_1(sums, variant=quantizer)
