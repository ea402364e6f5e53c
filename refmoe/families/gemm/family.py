"""What the harness does with a case of the grouped GEMM: operands, expectation, launch.

The expectation is the model that the case's verdict names. Where a fill allows a second, independent answer (an exact
int64 sum, all groups as one, K without its padding), the same output is held against that too; and FP32 results are
also held against the exact sum, within the running error bound of the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import Case
from refmoe.families.choices import expert_offsets
from refmoe.families.family import Assumption, Expectation, Inputs, Outputs, required
from refmoe.families.fills import BLOCK
from refmoe.families.gemm.fills import GEMM_FILLS, PADDED_K, GemmSize
from refmoe.families.gemm.stages import Interval, Products
from refmoe.families.vacuity import ProductSample, doubt_products
from refmoe.reference.dequantize import dequantize_mxfp4, dequantize_mxfp8
from refmoe.reference.gemm import dense_gemm, grouped_gemm
from refmoe.reference.layout import (
    GROUPED_LAYOUTS,
    expert_scale_rows,
    grouped_scale_rows,
    scale_buffer_size,
    swizzle_weight_scales,
    unpack_fp4,
)
from refmoe.reference.mma import MODELS, AccumulationModel, exact_sum, running_bound
from refmoe.reference.tensor import MXTensor

if TYPE_CHECKING:
    from refmoe.cuda import Device

__all__ = ["ASSUMPTION", "MODEL", "gemm_expect", "gemm_inputs", "gemm_run", "product_bounds"]

#: The accumulation model that the kernel is held against, on every device: where the instruction is missing, the
#: kernel carries it in software.
MODEL = MODELS["sm120"]

_EVIDENCE = MODEL.pair("e2m1", "e4m3").evidence.value

ASSUMPTION = Assumption(
    MODEL.name,
    _EVIDENCE,
    f"assumed of the tensor cores: the accumulation model {MODEL.name} ({MODEL.instruction}), whose evidence for "
    f"E2M1 x E4M3 is {_EVIDENCE}: no SM12x chip has answered yet. On ptx the executor computes the instruction by "
    "that model; on a GPU that lacks it the kernel does, in software. FP32 results also lie inside the model's running "
    "error bound around the exact sum, which is computed apart from it.",
)

_BF16 = np.dtype(ml_dtypes.bfloat16)
_OUTPUTS: dict[str, np.dtype[Any]] = {"bf16": _BF16, "f32": np.dtype(np.float32)}
_BITS: dict[str, np.dtype[Any]] = {"bf16": np.dtype(np.uint16), "f32": np.dtype(np.uint32)}

_E4M3_NAN = 0x7F

FloatArray = NDArray[np.float32]


def gemm_inputs(case: Case) -> Inputs:
    """Operands as references take them (linear scales) and as the kernel does (128x4 buffers, padding poisoned)."""
    shape = case.shape
    data = GEMM_FILLS[case.fill].make(
        Draw(case.fill, "sm12x_gemm", case.seed), GemmSize(shape.m, shape.k, shape.n, shape.e)
    )
    offsets = expert_offsets(case)
    tokens = data.tokens.codes.copy()
    tokens[offsets[-1] :] = _E4M3_NAN  # rows of no expert must not matter
    return {
        "tokens": tokens,
        "token_scales": data.tokens.scales,
        "token_scale_buffer": _token_scale_buffer(data.tokens.scales, offsets, case.poison),
        "weights": data.weights.codes,
        "weight_scales": data.weights.scales,
        "weight_scale_buffer": swizzle_weight_scales(data.weights.scales, fill=case.poison),
        "offsets": offsets,
        "alpha": _alpha(case) if case.alpha == "distinct" else None,
        "bias": _bias(case) if case.bias == "distinct" else None,
    }


def _token_scale_buffer(scales: NDArray[np.uint8], offsets: NDArray[np.int64], poison: int) -> NDArray[np.uint8]:
    """The buffer that `expand` leaves: real rows with zeroed padding columns, all other bytes untouched."""
    blocks = scales.shape[1]
    rows = expert_scale_rows(offsets)
    buffer = np.full(scale_buffer_size(grouped_scale_rows(scales.shape[0], offsets.size - 1), blocks), poison, np.uint8)
    columns = np.arange(-(-blocks // 4) * 4)
    padded = np.zeros((rows.size, columns.size), np.uint8)
    padded[:, :blocks] = scales[: rows.size]
    buffer[GROUPED_LAYOUTS["128x4"].offset(rows[:, None], columns[None, :], blocks)] = padded
    return buffer


def _alpha(case: Case) -> FloatArray:
    """Factors of all 24 significant bits and either sign, in 2^-2 .. 2^2, no two alike."""
    draw, shape = Draw("alpha", case.seed), (case.shape.e,)
    bits = (125 + draw.integers(4, shape)) << 23 | draw.integers(1 << 23, shape) | draw.integers(2, shape) << 31
    return bits.astype(np.uint32).view(np.float32)


def _bias(case: Case) -> NDArray[Any]:
    """BF16 terms about as large as the sum of K products of ordinary numbers."""
    values = Draw("bias", case.seed).normal((case.shape.e, case.shape.n)) * np.sqrt(case.shape.k)
    return np.asarray(values.astype(_BF16))


def _tensors(inputs: Inputs) -> tuple[MXTensor, MXTensor, NDArray[np.int64]]:
    return (
        MXTensor(required(inputs, "tokens"), required(inputs, "token_scales"), "mxfp8"),
        MXTensor(required(inputs, "weights"), required(inputs, "weight_scales"), "mxfp4"),
        required(inputs, "offsets"),
    )


def gemm_expect(case: Case, inputs: Inputs) -> Expectation:
    """What the kernel has to write, from the model and from each second answer that the fill allows."""
    tokens, weights, offsets = _tensors(inputs)
    used = int(offsets[-1])
    values = grouped_gemm(
        tokens,
        weights,
        offsets,
        model=MODEL,
        bias=inputs["bias"],
        alpha=inputs["alpha"],
        out_dtype=_OUTPUTS[case.dtype],
    )
    outputs = {"out": _bits(case, values, used)}
    if case.fill in _WITNESSES:
        name, witness = _WITNESSES[case.fill]
        outputs[name] = _bits(case, _epilogue(case, inputs, witness(tokens, weights, offsets)), used)
    interval = _interval(case, inputs) if case.dtype == "f32" else None
    stages = tuple(
        Products(name, case.dtype, case.shape.n, offsets, case.poison, interval if name == "out" else None)
        for name in outputs
    )
    sample = ProductSample(
        values[:used].astype(np.float32),
        tokens.scales[:used],
        weights.scales,
        None if interval is None else interval.relative_width(),
    )
    doubt = doubt_products(sample, GEMM_FILLS[case.fill].limits)
    return Expectation(outputs, stages, doubt, ASSUMPTION, lambda found: stages[0].outside(found["out"]))


def _bits(case: Case, values: NDArray[Any], used: int) -> NDArray[Any]:
    """The output's bit patterns [T, N]; rows from `used` on hold the poison."""
    bits: NDArray[Any] = np.ascontiguousarray(values).view(_BITS[case.dtype]).copy()
    bits[used:].view(np.uint8)[:] = case.poison
    return bits


def _row_expert(offsets: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """The expert of each row; rows of none get the last."""
    experts = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    return np.concatenate([experts, np.full(rows - experts.size, offsets.size - 2)])


def _epilogue(case: Case, inputs: Inputs, sums: FloatArray) -> NDArray[Any]:
    """RN(RN(alpha * sum) + bias) of each row's expert, in the output's type; written apart from the reference."""
    expert = _row_expert(required(inputs, "offsets"), sums.shape[0])
    alpha, bias = inputs["alpha"], inputs["bias"]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = sums if alpha is None else np.multiply(sums, alpha[expert][:, None], dtype=np.float32)
        shifted = scaled if bias is None else np.add(scaled, bias[expert].astype(np.float32), dtype=np.float32)
        return np.asarray(shifted.astype(_OUTPUTS[case.dtype]))


Witness = Callable[[MXTensor, MXTensor, NDArray[np.int64]], FloatArray]


def _int64_sums(tokens: MXTensor, weights: MXTensor, offsets: NDArray[np.int64]) -> FloatArray:
    """Sums of whole numbers in int64; the fill makes no other, and none past 2^24."""
    left = dequantize_mxfp8(tokens.codes, tokens.scales).astype(np.int64)
    right = dequantize_mxfp4(weights.codes, weights.scales).astype(np.int64)
    sums = np.zeros((left.shape[0], right.shape[1]), np.int64)
    for expert, (start, stop) in enumerate(itertools.pairwise(offsets)):
        sums[start:stop] = left[start:stop] @ right[expert].T
    return sums.astype(np.float32)


def _one_group(tokens: MXTensor, weights: MXTensor, offsets: NDArray[np.int64]) -> FloatArray:
    """All rows as one dense product: right where all experts have the same weights."""
    one = MXTensor(weights.codes[0], weights.scales[0], "mxfp4")
    return np.asarray(dense_gemm(tokens, one, model=MODEL))


def _unpadded(tokens: MXTensor, weights: MXTensor, offsets: NDArray[np.int64]) -> FloatArray:
    """The product without the zeros at the end of K."""
    k = tokens.shape[-1] - PADDED_K
    short = MXTensor(
        np.ascontiguousarray(tokens.codes[:, :k]), np.ascontiguousarray(tokens.scales[:, : k // BLOCK]), "mxfp8"
    )
    cut = MXTensor(
        np.ascontiguousarray(weights.codes[..., : k // 2]),
        np.ascontiguousarray(weights.scales[..., : k // BLOCK]),
        "mxfp4",
    )
    return np.asarray(grouped_gemm(short, cut, offsets, model=MODEL))


#: Second answers by fill: the stage's name, and FP32 sums [T, N].
_WITNESSES: Mapping[str, tuple[str, Witness]] = {
    "integer": ("out-as-int64", _int64_sums),
    "shared-weights": ("out-as-one-group", _one_group),
    "zero-padded": ("out-unpadded", _unpadded),
}


def _interval(case: Case, inputs: Inputs) -> Interval:
    """Where the output must lie: the exact sum and the model's running bound, taken through the epilogue.

    Rounding to nearest is monotone, so the ends of the interval, as FP32 numbers, go through alpha, bias and cast as
    the sum itself does. Truncation toward zero never enlarges a magnitude: where all terms are positive, the upper end
    is the exact sum.
    """
    exact, bound = product_bounds(*_tensors(inputs))
    promised = np.isfinite(exact) & np.isfinite(bound)
    slack = bound + 2.0**-52 * np.abs(exact)
    low, high = (np.where(promised, exact + side * slack, 0.0) for side in (-1, 1))
    if case.fill == "positive":
        high = np.where(promised, exact, 0.0)
    ends = [_epilogue(case, inputs, _inward(end, side)) for end, side in ((low, 1), (high, -1))]
    return Interval(
        low=np.where(promised, np.minimum(*ends), -np.inf),
        high=np.where(promised, np.maximum(*ends), np.inf),
        exact=exact,
        bound=bound,
    )


def product_bounds(
    tokens: MXTensor, weights: MXTensor, offsets: NDArray[np.int64], model: AccumulationModel | str = MODEL
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The exact sums of a grouped GEMM and the model's running bound around them, float64 [T, N] both.

    Rows of no expert have the sum 0 and an infinite bound.
    """
    shape = tokens.shape[0], weights.shape[1]
    exact, bound = np.zeros(shape), np.full(shape, np.inf)
    for expert, (start, stop) in enumerate(itertools.pairwise(offsets)):
        if start == stop:
            continue
        operands: dict[str, Any] = {
            "a": unpack_fp4(weights.codes[expert]),
            "b": np.ascontiguousarray(tokens.codes[start:stop]),
            "c": np.zeros((shape[1], stop - start), np.float32),
            "a_format": "e2m1",
            "b_format": "e4m3",
            "a_scales": np.ascontiguousarray(weights.scales[expert]),
            "b_scales": np.ascontiguousarray(tokens.scales[start:stop]),
        }
        exact[start:stop] = exact_sum(**operands).T
        bound[start:stop] = running_bound(**operands, model=model).T
    return exact, bound


def _inward(ends: NDArray[np.float64], side: int) -> FloatArray:
    """The nearest FP32 number that is not outside: not below `ends` for side 1, not above for side -1."""
    with np.errstate(over="ignore"):
        near = ends.astype(np.float32)
    outside = near < ends if side > 0 else near > ends
    return np.where(outside, np.nextafter(near, np.float32(side * np.inf), dtype=np.float32), near)


def gemm_run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the kernel; the same output answers every stage.

    Raises:
        ArgumentError: a tile, stages, cluster or shape that the kernel does not have.
    """
    from refmoe.cuda.gemm.kernel import grouped_gemm as launch
    from refmoe.cuda.gemm.tile import check_tile, parse_cluster, parse_tile

    tile, stages = None, case.stages or None
    if case.tile:
        tile = parse_tile(case.tile)
        stages = check_tile(tile, arch=device.arch, stages=stages, cluster=parse_cluster(case.cluster))
    out = launch(
        required(inputs, "tokens"),
        required(inputs, "token_scale_buffer"),
        required(inputs, "weights"),
        required(inputs, "weight_scale_buffer"),
        required(inputs, "offsets"),
        device=device,
        tile=tile,
        stages=stages,
        alpha=inputs["alpha"],
        bias=inputs["bias"],
        out_dtype=case.dtype,
        fill=case.poison,
    )
    bits = np.ascontiguousarray(out).view(_BITS[case.dtype])
    return dict.fromkeys(_stage_names(case), bits)


def _stage_names(case: Case) -> list[str]:
    return ["out", *([_WITNESSES[case.fill][0]] if case.fill in _WITNESSES else [])]
