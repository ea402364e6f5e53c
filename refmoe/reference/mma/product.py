"""One tensor-core product under a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import FP16, MX_BLOCK, MXFP8
from refmoe.reference.arrays import checked_array
from refmoe.reference.mma.exact import exact_sums
from refmoe.reference.mma.fma import fma_chain
from refmoe.reference.mma.fused import fused_chain, unpacked_chain
from refmoe.reference.mma.grouped import grouped_chain
from refmoe.reference.mma.models import ELEMENT_FORMATS, AccumulationModel, Kind, as_model
from refmoe.reference.mma.native import native_product
from refmoe.reference.mma.operands import Operand

NAN_BITS = 0x7FFFFFFF
"""The NaN that tensor cores and the scalar FP32 instructions of the GPU write."""


def tensor_core_mma(
    a: NDArray[np.unsignedinteger[Any]],
    b: NDArray[np.unsignedinteger[Any]],
    c: NDArray[np.float32],
    *,
    model: AccumulationModel | str,
    a_format: str,
    b_format: str,
    a_scales: NDArray[np.uint8] | None = None,
    b_scales: NDArray[np.uint8] | None = None,
) -> NDArray[np.float32]:
    """d = c + a b^T as one chain of instructions computes it, bit for bit under the model.

    Args:
        a: raw codes [..., M, K] of `a_format`: uint8 for FP8, uint8 for E2M1 (one code a byte, 0..15), uint16 for
            BF16 and FP16, uint32 for TF32, whose low 13 bits are ignored.
        b: raw codes [..., N, K] of `b_format`, with a's leading dimensions.
        c: float32 [..., M, N], the accumulator before the first block; it holds FP16 values where the model's
            accumulators are FP16, and so does the result.
        model: a name of `MODELS`, or a model.
        a_format: a key of `ELEMENT_FORMATS`.
        b_format: likewise.
        a_scales: uint8 [..., M, K/32] E8M0, one for every 32 elements; None is 2^0. `sm120_mxf4` needs them, and
            `sm120_nvf4` needs uint8 [..., M, K/16] UE4M3, one for every 16, whose sign bit is ignored.
        b_scales: uint8 [..., N, K/32] or [..., N, K/16], likewise.

    Returns:
        float32 [..., M, N]; NaN is 0x7FFFFFFF.

    Raises:
        ArgumentError: an unknown model or format, a pair or scales that the model does not have, no scales where it
            needs them, a dtype or shape that does not fit, a K that is not a positive multiple of the instruction's, an
            E2M1 code above 15, a C that the model's accumulators cannot hold.
    """
    model = as_model(model)
    x, y, z = checked_operands(a, b, c, model, a_format, b_format, a_scales, b_scales)
    block = model.pair(a_format, b_format).block
    out = native_product(x, y, z, model, block)
    if out is None:
        out = numpy_product(x, y, z, model, block)
    return out.reshape(c.shape)


def numpy_product(
    a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int
) -> NDArray[np.float32]:
    """P products [M, K] x [N, K] onto c [P, M, N] by NumPy alone; NaN is 0x7FFFFFFF."""
    with np.errstate(over="ignore", under="ignore"):
        out: NDArray[np.float32] = _chain(a, b, c, model, block).astype(np.float32)
    out.view(np.uint32)[np.isnan(out)] = NAN_BITS
    return out


def split_k_sum(parts: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sum of split-K parts [S, ...], in FP32, rounded to nearest, parts ascending; NaN is 0x7FFFFFFF.

    Raises:
        ArgumentError: not float32, or no part.
    """
    if not isinstance(parts, np.ndarray) or parts.dtype != np.float32 or parts.ndim == 0 or parts.shape[0] == 0:
        raise ArgumentError("parts", describe(parts), "float32 [S, ...], S at least 1")
    total: NDArray[np.float32] = parts[0].copy()
    with np.errstate(invalid="ignore", over="ignore"):
        for part in parts[1:]:
            total += part
    total.view(np.uint32)[np.isnan(total)] = NAN_BITS
    return total


def _chain(a: Operand, b: Operand, c: NDArray[np.float32], model: AccumulationModel, block: int) -> NDArray[np.float64]:
    if model.kind is Kind.EXACT:
        return exact_sums(a, b, c)
    if model.kind is Kind.FMA:
        return fma_chain(a, b, c)
    chain = {Kind.FUSED: fused_chain, Kind.UNPACKED: unpacked_chain, Kind.GROUPED: grouped_chain}[model.kind]
    return chain(a, b, c, model, block)


def checked_operands(
    a: NDArray[np.unsignedinteger[Any]],
    b: NDArray[np.unsignedinteger[Any]],
    c: NDArray[np.float32],
    model: AccumulationModel,
    a_format: str,
    b_format: str,
    a_scales: NDArray[np.uint8] | None,
    b_scales: NDArray[np.uint8] | None,
) -> tuple[Operand, Operand, NDArray[np.float32]]:
    """The operands with their leading dimensions as one: the rows, the columns, c [P, M, N].

    Raises:
        ArgumentError: what `tensor_core_mma` refuses.
    """
    model.pair(a_format, b_format)
    for name, array, fmt in (("a", a, ELEMENT_FORMATS[a_format]), ("b", b, ELEMENT_FORMATS[b_format])):
        dtype = np.dtype(f"uint{max(fmt.bits, 8)}")
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim < 2:
            raise ArgumentError(name, describe(array), f"{dtype} codes of {fmt.name}, at least 2 dimensions")
        if fmt.bits < 8 and array.size and int(array.max()) >> fmt.bits:
            raise ArgumentError(
                name, f"code {int(array.max())}", f"one {fmt.name} code a byte, 0..{(1 << fmt.bits) - 1}"
            )
    *batch, m, k = a.shape
    step = model.instruction_k(a_format, b_format)
    if k == 0 or k % step:
        raise ArgumentError(
            "a", describe(a), f"K a positive multiple of {step}, as {model.name} of {a_format} takes it"
        )
    if b.shape[:-2] != tuple(batch) or b.shape[-1] != k:
        raise ArgumentError("b", describe(b), f"{[*batch, 'N', k]}, as a is {list(a.shape)}")
    n = b.shape[-2]
    checked_array("c", c, (*batch, m, n), np.float32)
    if model.accumulator is FP16:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            lost = (c.astype(np.float16).astype(np.float32) != c) & ~np.isnan(c)
        if lost.any():
            value = float(c[lost][0])
            raise ArgumentError("c", f"{value!r}", f"values of FP16, as the accumulators of {model.name} are FP16")
    for name, scales, rows in (("a_scales", a_scales, m), ("b_scales", b_scales, n)):
        if model.scaling is not None:
            shape = (*batch, rows, k // model.scaling.block)
            if not isinstance(scales, np.ndarray) or scales.dtype != np.uint8 or scales.shape != shape:
                kind = model.scaling.scale.name.upper()
                raise ArgumentError(name, describe(scales), f"uint8 {list(shape)}, {kind}, as {model.name} needs them")
            continue
        if scales is None:
            continue
        if not model.scaled:
            raise ArgumentError(name, describe(scales), f"None: {model.name} has no block scales")
        if k % MX_BLOCK or not isinstance(scales, np.ndarray) or scales.dtype != np.uint8:
            raise ArgumentError(name, describe(scales), f"uint8, one for every {MX_BLOCK} of K = {k}")
        if scales.shape != (*batch, rows, k // MX_BLOCK):
            raise ArgumentError(name, describe(scales), f"uint8 {[*batch, rows, k // MX_BLOCK]}")

    def flat(array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(math.prod(batch), *array.shape[-2:])

    scaling = model.scaling or MXFP8
    return (
        Operand(flat(a), ELEMENT_FORMATS[a_format], None if a_scales is None else flat(a_scales), scaling),
        Operand(flat(b), ELEMENT_FORMATS[b_format], None if b_scales is None else flat(b_scales), scaling),
        # The chains write into what they copy from it, by place.
        flat(np.ascontiguousarray(c)),
    )
