"""Derived error bounds for results whose bits nobody can promise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.families.gemm.family import product_bounds
from refmoe.formats import BF16, FP16, Format
from refmoe.reference.layout import checked_offsets
from refmoe.reference.mma import AccumulationModel, as_model, output_bound
from refmoe.reference.tensor import MXTensor

_OUTPUTS: dict[str, Format | None] = {"f32": None, "bf16": BF16, "fp16": FP16}


def gemm_bound(
    activations: MXTensor,
    weights: MXTensor,
    offsets: NDArray[np.int64],
    *,
    model: AccumulationModel | str = "sm120",
    out_dtype: str = "f32",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The exact result of a grouped GEMM, and a bound on the error of a chain of `model`: for `assert_within_bound`.

    The bound is the model's running bound, `refmoe.reference.mma.running_bound`: it holds for the order of additions
    that the model has, k ascending. Another order, split-K among them, has another bound. For a shorter output
    half an ulp of it is added.

    Args:
        activations: MXFP8 [T, K], rows in expert order.
        weights: MXFP4 [E, N, K].
        offsets: int64 [E+1], first row of each expert; rows from offsets[E] on are promised nothing.
        model: a name of `refmoe.reference.mma.MODELS`; "fp32" is a chain of FMAs rounded to nearest.
        out_dtype: "f32", "bf16" or "fp16".

    Returns:
        exact, bound: float64 [T, N] both.

    Raises:
        ArgumentError: operands that do not belong together, an unknown model or out_dtype.
    """
    if out_dtype not in _OUTPUTS:
        raise ArgumentError("out_dtype", describe(out_dtype), "one of " + ", ".join(_OUTPUTS))
    for name, tensor, fmt, ndim in (("activations", activations, "mxfp8", 2), ("weights", weights, "mxfp4", 3)):
        if not isinstance(tensor, MXTensor) or tensor.format != fmt or len(tensor.shape) != ndim:
            raise ArgumentError(name, describe(tensor), f"an MXTensor of {fmt} with {ndim} dimensions")
    if weights.shape[2] != activations.shape[1]:
        raise ArgumentError("weights", f"K = {weights.shape[2]}", f"K = {activations.shape[1]}, that of activations")
    starts = checked_offsets(offsets)
    if starts.size != weights.shape[0] + 1 or starts[-1] > activations.shape[0]:
        needed = f"int64 [{weights.shape[0] + 1}] up to at most {activations.shape[0]}"
        raise ArgumentError("offsets", describe(offsets), needed)
    exact, bound = product_bounds(activations, weights, starts, as_model(model))
    fmt_out = _OUTPUTS[out_dtype]
    if fmt_out is None:
        return exact, bound
    with np.errstate(over="ignore", invalid="ignore"):
        # What is rounded lies within the bound; the largest it can be has the largest ulp.
        largest = np.nextafter((np.abs(exact) + bound).astype(np.float32), np.float32(np.inf))
    return exact, output_bound(bound, largest, fmt_out)
