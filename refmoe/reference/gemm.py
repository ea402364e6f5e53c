"""Dense and grouped GEMM over any accumulation model, to the last bit.

Sums follow `refmoe.reference.mma`, weights as its operand A and activations as B, as the kernels have them; what is
done after them is IEEE FP32 and belongs to this module:

    out = RN(RN(alpha * acc) + bias), then a cast to nearest even

A step that is not asked for is not done: without alpha nothing is multiplied, without bias nothing is added. A NaN
comes out as 0x7FFFFFFF in FP32 and 0x7FFF in BF16 and FP16, as the PTX ISA has it for the instructions involved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK
from refmoe.reference.arrays import check_optional, checked_output
from refmoe.reference.layout import checked_offsets
from refmoe.reference.mma import AccumulationModel, as_model, tensor_core_mma
from refmoe.reference.nvfp4 import dequantize_nvfp4
from refmoe.reference.tensor import IDENTITY_SCALE, MXTensor, NVFP4Experts

_BF16 = np.dtype(ml_dtypes.bfloat16)
GEMM_OUTPUTS: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float32): np.dtype(np.uint32),
    np.dtype(np.float16): np.dtype(np.uint16),
    _BF16: np.dtype(np.uint16),
}
"""The output types, and the unsigned integers that hold their bits."""


@dataclass(frozen=True)
class _Operand:
    """What `tensor_core_mma` takes of one operand: raw bits [..., R, K]; scales [..., R, K/32] if the model has any."""

    codes: NDArray[Any]
    format: str
    scales: NDArray[np.uint8] | None


def plain_fp8(codes: NDArray[np.uint8]) -> MXTensor:
    """E4M3 codes without block scales, as an MXFP8 tensor whose scales are all the identity, 0x7F.

    Args:
        codes: uint8 [..., K], K a multiple of 32.

    Raises:
        ArgumentError: wrong dtype or shape.
    """
    if not isinstance(codes, np.ndarray) or codes.dtype != np.uint8 or codes.ndim == 0 or codes.shape[-1] % MX_BLOCK:
        raise ArgumentError("codes", describe(codes), f"uint8 [..., K] with K a multiple of {MX_BLOCK}")
    return MXTensor(codes, np.full((*codes.shape[:-1], codes.shape[-1] // MX_BLOCK), IDENTITY_SCALE, np.uint8), "mxfp8")


def grouped_gemm(
    activations: MXTensor | NDArray[Any],
    weights: MXTensor | NVFP4Experts,
    offsets: NDArray[np.int64],
    *,
    model: AccumulationModel | str,
    bias: NDArray[Any] | None = None,
    alpha: NDArray[np.float32] | None = None,
    out_dtype: npt.DTypeLike = np.float32,
) -> NDArray[Any]:
    """Multiply each expert's rows by that expert's weights: out[t] = activations[t] @ weights[e].T for its e.

    Models with scales in hardware take codes and scales as they are. Others have no scales: where a model has BF16
    operands both sides are dequantized to it first, rounded to nearest; a model of FP8 alone takes codes whose scales
    are all the identity.

    Args:
        activations: mxfp8 [T, K], rows in expert order; `plain_fp8` makes one of codes without scales. Or bfloat16
            [T, K], for a model that has BF16 operands.
        weights: mxfp4 or mxfp8 [E, N, K]; for BF16 activations also nvfp4, whose codes times block scales are BF16
            numbers. Their global decode scales are `alpha`'s.
        offsets: int64 [E + 1], first row of each expert, then the number of rows in use, at most T. An expert may have
            no rows.
        model: an accumulation model or its name, see `refmoe.reference.mma.MODELS`.
        bias: FP32, BF16 or FP16 [E, N], added in FP32; None adds nothing.
        alpha: float32 [E], one factor an expert; None multiplies by nothing.
        out_dtype: float32, float16 or ml_dtypes.bfloat16.

    Returns:
        [T, N] of `out_dtype`; rows from offsets[E] on are 0.

    Raises:
        ArgumentError: formats, shapes or dtypes that do not fit, an unknown model, a pair of formats or scales that the
            model does not have.
    """
    chosen = as_model(model)
    if isinstance(activations, np.ndarray):
        _check_bf16(activations)
    else:
        _check_operand("activations", activations, ("mxfp8",), 2)
    if not isinstance(weights, NVFP4Experts):
        _check_operand("weights", weights, ("mxfp4", "mxfp8"), 3)
    tokens, k = activations.shape
    experts, n, weight_k = weights.shape
    if k == 0:
        raise ArgumentError("activations", "K = 0", f"at least one block of {MX_BLOCK}")
    if weight_k != k:
        raise ArgumentError("weights", f"K = {weight_k}", f"the K of activations, {k}")
    if checked_offsets(offsets).size != experts + 1:
        raise ArgumentError("offsets", describe(offsets), f"int64 [{experts + 1}] for {experts} experts")
    if offsets[-1] > tokens:
        raise ArgumentError("offsets", f"{offsets[-1]} rows in use", f"at most the {tokens} rows of activations")
    check_optional("bias", bias, (experts, n), np.float32, _BF16, np.float16)
    check_optional("alpha", alpha, (experts,), np.float32)
    dtype = checked_output(out_dtype, GEMM_OUTPUTS, "float32, float16 or ml_dtypes.bfloat16")

    _check_pair(weights, activations, chosen)
    _check_scales("activations", activations, chosen)
    if not isinstance(weights, NVFP4Experts):
        _check_scales("weights", weights, chosen)

    out = np.zeros((tokens, n), dtype)
    for expert in range(experts):
        rows = slice(int(offsets[expert]), int(offsets[expert + 1]))
        if rows.start == rows.stop:
            continue
        # One expert at a time: all weights of a layer, a byte an element, would not fit.
        sums = _multiply(_operand(weights, expert, chosen), _operand(activations, rows, chosen), chosen)
        factor = None if alpha is None else alpha[expert]
        addend = None if bias is None else bias[expert]
        out[rows] = finish_sums(sums, factor, addend, dtype)
    return out


def dense_gemm(
    activations: MXTensor,
    weights: MXTensor,
    *,
    model: AccumulationModel | str,
    bias: NDArray[Any] | None = None,
    alpha: float | np.float32 | None = None,
    out_dtype: npt.DTypeLike = np.float32,
) -> NDArray[Any]:
    """Multiply all rows by the same weights: `grouped_gemm` of one expert.

    Args:
        activations: mxfp8 [T, K].
        weights: mxfp4 or mxfp8 [N, K].
        model: as in `grouped_gemm`.
        bias: FP32, BF16 or FP16 [N], or None.
        alpha: an FP32 factor, or None.
        out_dtype: as in `grouped_gemm`.

    Returns:
        [T, N] of `out_dtype`.

    Raises:
        ArgumentError: as in `grouped_gemm`, or an alpha that is no FP32 number.
    """
    _check_operand("activations", activations, ("mxfp8",), 2)
    _check_operand("weights", weights, ("mxfp4", "mxfp8"), 2)
    if alpha is not None and (not isinstance(alpha, (float, np.float32)) or _loses_bits(float(alpha))):
        raise ArgumentError("alpha", describe(alpha), "a number that FP32 has")
    if bias is not None and not isinstance(bias, np.ndarray):
        raise ArgumentError("bias", describe(bias), "an array [N]")
    return grouped_gemm(
        activations,
        MXTensor(weights.codes[None], weights.scales[None], weights.format),
        np.array([0, activations.shape[0]], np.int64),
        model=model,
        bias=None if bias is None else bias[None],
        alpha=None if alpha is None else np.array([alpha], np.float32),
        out_dtype=out_dtype,
    )


def _loses_bits(number: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.float32(number)) != number and number == number


def _multiply(left: _Operand, right: _Operand, model: AccumulationModel) -> NDArray[np.float32]:
    """The sums [rows of right, rows of left] from zero."""
    start = np.zeros((left.codes.shape[-2], right.codes.shape[-2]), np.float32)
    sums = tensor_core_mma(
        left.codes,
        right.codes,
        start,
        model=model,
        a_format=left.format,
        b_format=right.format,
        a_scales=left.scales,
        b_scales=right.scales,
    )
    return np.ascontiguousarray(sums.T)


def finish_sums(
    sums: NDArray[np.float32], alpha: np.float32 | None, bias: NDArray[Any] | None, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """RN(RN(alpha * sums) + bias) as `dtype`: `sums` [rows, N], bias [N]; what is None is left out."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if alpha is not None:
            sums = alpha * sums
        if bias is not None:
            sums = sums + bias.astype(np.float32)
        out = sums.astype(dtype)
    nan = np.isnan(sums)
    unsigned = GEMM_OUTPUTS[dtype]
    out.view(unsigned)[nan] = np.iinfo(unsigned).max >> 1
    return out


def _operand(tensor: MXTensor | NVFP4Experts | NDArray[Any], index: int | slice, model: AccumulationModel) -> _Operand:
    """The rows that `index` selects, in the form in which `model` takes them."""
    if isinstance(tensor, NVFP4Experts):
        exact = dequantize_nvfp4(tensor.codes[index], tensor.scales[index])
        return _Operand(exact.astype(_BF16).view(np.uint16), "bf16", None)
    if isinstance(tensor, np.ndarray):
        return _Operand(np.ascontiguousarray(tensor[index]).view(np.uint16), "bf16", None)
    element, part = _element(tensor, model), tensor.part(index)
    if element == "bf16":
        return _Operand(part.dequantize().astype(_BF16).view(np.uint16), element, None)
    return _Operand(part.elements, element, part.scales if model.scaled else None)


def _element(tensor: MXTensor | NVFP4Experts | NDArray[Any], model: AccumulationModel) -> str:
    """The element format in which `model` takes a tensor: its own, or BF16 where the model has that and no scales."""
    if isinstance(tensor, (np.ndarray, NVFP4Experts)):
        return "bf16"
    return "bf16" if not model.scaled and ("bf16", "bf16") in model.pairs else tensor.mx.element.name


def _check_pair(
    weights: MXTensor | NVFP4Experts, activations: MXTensor | NDArray[Any], model: AccumulationModel
) -> None:
    pair = (_element(weights, model), _element(activations, model))
    if pair not in model.pairs:
        had = ", ".join(f"{a} x {b}" for a, b in model.pairs)
        raise ArgumentError("weights", f"{' x '.join(pair)} with {model.name}", f"operands that it has: {had}")


def _check_scales(argument: str, tensor: MXTensor | NDArray[Any], model: AccumulationModel) -> None:
    """Refuse block scales that `model` has no place for."""
    if (
        isinstance(tensor, np.ndarray)
        or model.scaled
        or _element(tensor, model) == "bf16"
        or (tensor.scales == IDENTITY_SCALE).all()
    ):
        return
    where = [int(index) for index in np.argwhere(tensor.scales != IDENTITY_SCALE)[0]]
    found = f"scale {tensor.scales[tuple(where)]:#04x} at {where} with {model.name}, whose instruction has no scales"
    raise ArgumentError(argument, found, f"identity scales, {IDENTITY_SCALE:#04x}, or a model with scales")


def _check_operand(argument: str, value: object, formats: tuple[str, ...], rank: int) -> None:
    shape = {2: "[rows, K]", 3: "[E, N, K]"}[rank]
    needed = f"an MXTensor {shape} in {' or '.join(formats)}"
    if not isinstance(value, MXTensor):
        raise ArgumentError(argument, describe(value), needed)
    if value.format not in formats or len(value.shape) != rank:
        raise ArgumentError(argument, f"{value.format} {list(value.shape)}", needed)


def _check_bf16(activations: NDArray[Any]) -> None:
    if activations.dtype != _BF16 or activations.ndim != 2 or activations.shape[1] % MX_BLOCK:
        needed = f"an MXTensor [rows, K] in mxfp8, or bfloat16 [rows, K] with K a multiple of {MX_BLOCK}"
        raise ArgumentError("activations", describe(activations), needed)
