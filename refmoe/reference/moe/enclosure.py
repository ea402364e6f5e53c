"""Where a path's output can lie at all, and so how far from the formula without roundings: derived, no tolerance.

An enclosure starts from the tokens as they are quantized, which is known, and takes intervals through the steps of the
path (`refmoe.reference.moe.intervals`): GEMM1 and its bias, BF16, the activation, requantization, GEMM2, BF16, and
finalize's own operations. It reads none of the path's intermediates, so a fault in one cannot widen it. llama_cpp has
FP32 where the others have BF16.

It is narrow, because most intervals hold one BF16, E4M3 or Q8_1 number only. Of gpt-oss's own size (H = I = 2880,
k = 4) the bound is 1.07 times the true error's norm on the cutlass path, 5.6 % of the output's; 1.7 times on marlin,
0.6 %; and 1.01 times on dp4a and llama_cpp, 2.0 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import BF16, E2M1, E4M3, E8M0, MX_BLOCK, Q8_1
from refmoe.reference import fp32
from refmoe.reference.backends import Backend, choose_backend
from refmoe.reference.dp4a import warps_per_row
from refmoe.reference.mma import MODELS, AccumulationModel, as_model
from refmoe.reference.mma.operands import scale_values
from refmoe.reference.moe.float64 import moe_float64, swiglu_parameters
from refmoe.reference.moe.intervals import (
    Interval,
    Matrix,
    bf16_rounded,
    chain,
    fp32_rounded,
    integer_sums,
    q8_1_values,
    requantized,
    routed,
    swiglu_values,
)
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.moe.paths import accumulation, path_steps
from refmoe.reference.q8_1 import Q8Tensor, dequantize_q8_1, quantize_q8_1
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.reference.tensor import MXTensor, NVFP4Experts

F64 = NDArray[np.float64]

_WARP_LANES = 32


@dataclass(frozen=True, eq=False)
class Enclosure:
    """Where each output can lie.

    Attributes:
        low: float64 [T, H]; -infinity, with `high` infinity, where nothing is promised because something overflows.
        high: float64 [T, H].
    """

    low: F64
    high: F64

    def holds(self, output: NDArray[Any]) -> NDArray[np.bool_]:
        """Which outputs lie within, bool [T, H]; where nothing is promised, a NaN does too."""
        values = output.astype(np.float64)
        return np.asarray(((values >= self.low) & (values <= self.high)) | np.isinf(self.high - self.low))


def layer_enclosure(
    x: NDArray[Any] | Q8Tensor,
    layer: MoELayer,
    topk_ids: NDArray[np.int32] | None = None,
    topk_weights: NDArray[np.float32] | None = None,
    *,
    path: str = "cutlass",
    output: str = "bf16",
    arch: str | None = None,
    first_expert: int = 0,
    model: AccumulationModel | str | None = None,
) -> Enclosure:
    """Where the output of `moe_layer` can lie, for scales by RCEIL and the exact edge policy.

    An output in Q8_1 is enclosed as the numbers that its codes and scales stand for, `dequantize_q8_1`.

    Args:
        x: bfloat16 [T, H], finite; of llama_cpp also ready Q8_1 [T, H], with `topk_ids`.
        layer: the weights.
        topk_ids: int32 [T, k], the experts that were chosen; None routes too, and promises nothing for a token whose
            choice the rounding of its logits could change.
        topk_weights: float32 [T, k], their weights as they were rounded; with `topk_ids`.
        path: as in `moe_layer`, as the next four.
        output: likewise.
        arch: likewise.
        first_expert: likewise.
        model: likewise.

    Raises:
        ArgumentError: an unknown path, output, arch or model; an output or a model that the path does not have; tokens
            that are not finite BF16, or of llama_cpp Q8_1; a model that has no bound.
    """
    backend = choose_backend(path, arch)
    path_steps(path, output=output)
    if backend.activations == "nvfp4" or layer.weights != "mxfp4":
        found = f"{path} with {layer.weights} weights"
        raise ArgumentError("path", found, "a path of MXFP8, BF16 or Q8_1 and MXFP4: no other enclosure is defined")
    chosen = as_model(accumulation(path, arch)[1].model if model is None else model)
    integer = backend.activations == "q8_1"
    if integer and model is not None:
        raise ArgumentError("model", f"{chosen.name} with {backend.name}", "None: its sums of a block are integers")
    _check_tokens(x, topk_ids, backend)
    if (topk_ids is None) != (topk_weights is None):
        raise ArgumentError("topk_ids, topk_weights", "one of them", "both or neither")
    if topk_ids is None or topk_weights is None:
        ids, weights, certain = _routed(_floats(x), layer)
    else:
        given = topk_weights.astype(np.float64)
        ids, weights, certain = topk_ids, Interval(given, given), np.ones(x.shape[0], bool)
    rows_of = (
        _IntegerRows(layer, x, backend.name == "dp4a")
        if integer
        else _Rows(layer, _floats(x), chosen, backend.activations == "mxfp8")
    )
    low, high = (np.zeros((ids.shape[1], *x.shape), np.float32) for _ in range(2))
    for expert in range(layer.experts):
        token, rank = np.nonzero(ids == expert + first_expert)
        if token.size:
            rows = rows_of.expert(expert, token)
            low[rank, token], high[rank, token] = rows.low, rows.high
    present = (ids >= first_expert) & (ids < first_expert + layer.experts)
    sums = _finalized(low, high, layer, ids - first_expert, weights, present)
    ends = q8_1_values(sums)[0] if output == "q8_1" else bf16_rounded(sums)
    unknown = ~(np.isfinite(ends.low) & np.isfinite(ends.high) & certain[:, None])
    return Enclosure(np.where(unknown, -np.inf, ends.low), np.where(unknown, np.inf, ends.high))


def layer_bound(
    x: NDArray[Any] | Q8Tensor,
    layer: MoELayer,
    topk_ids: NDArray[np.int32] | None = None,
    topk_weights: NDArray[np.float32] | None = None,
    *,
    path: str = "cutlass",
    output: str = "bf16",
    arch: str | None = None,
    first_expert: int = 0,
    model: AccumulationModel | str | None = None,
) -> F64:
    """The bound on |moe_layer - moe_float64|, float64 [T, H]: both with the given experts and weights, or both routing.

    The formula's tokens are `x`, of ready Q8_1 the numbers that it stands for. Args and errors are those of
    `layer_enclosure`; infinite where that promises nothing.
    """
    enclosure = layer_enclosure(
        x, layer, topk_ids, topk_weights, path=path, output=output, arch=arch, first_expert=first_expert, model=model
    )
    tokens = dequantize_q8_1(x) if isinstance(x, Q8Tensor) else x
    exact = moe_float64(tokens, layer, topk_ids=topk_ids, topk_weights=topk_weights, first_expert=first_expert)
    return np.maximum(np.abs(enclosure.low - exact), np.abs(enclosure.high - exact)) * (1 + 2.0**-50)


def _check_tokens(x: object, topk_ids: object, backend: Backend) -> None:
    if isinstance(x, Q8Tensor):
        if backend.name != "llama_cpp":
            raise ArgumentError("x", f"Q8_1 {list(x.shape)} with {backend.name}", "bfloat16, or the path llama_cpp")
        if topk_ids is None:
            raise ArgumentError("topk_ids", "None with ready activations", "ids and weights: codes are not routed on")
    elif not isinstance(x, np.ndarray) or x.dtype != fp32.BF16 or not np.isfinite(x.astype(np.float32)).all():
        raise ArgumentError("x", describe(x), "finite bfloat16 [T, H]")


def _floats(x: NDArray[Any] | Q8Tensor) -> NDArray[Any]:
    assert not isinstance(x, Q8Tensor)
    return x


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of one expert after another, along a path of MXFP8 or BF16 activations."""

    layer: MoELayer
    x: NDArray[Any]
    model: AccumulationModel
    mxfp8: bool

    @cached_property
    def tokens(self) -> Matrix:
        """The tokens as the first GEMM sees them."""
        if not self.mxfp8:
            return Matrix(self.x.astype(np.float64), np.full(self.x.shape, 2.0**BF16.emin))
        quantized = quantize_mxfp8(np.ascontiguousarray(self.x))
        return Matrix(quantized.dequantize().astype(np.float64), _scales(quantized.scales) * 2.0**E4M3.emin)

    def expert(self, expert: int, token: NDArray[np.intp]) -> Interval:
        """BF16 results of the second GEMM for these tokens, [R, H]."""
        layer = self.layer
        bias = None if layer.gate_up_bias is None else layer.gate_up_bias[expert].astype(np.float32)
        values = self.tokens.values[token]
        gate_up = bf16_rounded(
            self._gemm(layer.gate_up, expert, Interval(values, values), self.tokens.least[token]), bias
        )
        activated = _activated(layer, expert, gate_up)
        if self.mxfp8:
            hidden, least = requantized(activated)
        else:
            hidden, least = bf16_rounded(activated), np.full(activated.low.shape, 2.0**BF16.emin)
        return bf16_rounded(self._gemm(layer.down, expert, hidden, least))

    def _gemm(self, weights: MXTensor | NVFP4Experts, expert: int, tokens: Interval, least: F64) -> Interval:
        assert isinstance(weights, MXTensor)
        part = weights.part(expert)
        values = part.dequantize().astype(np.float64)
        mxfp4 = self.mxfp8 or self.model.scaled
        floors = _scales(part.scales) * 2.0**E2M1.emin if mxfp4 else np.full(values.shape, 2.0**BF16.emin)
        pair = ("e2m1" if mxfp4 else "bf16", "e4m3" if self.mxfp8 else "bf16")
        return chain(Matrix(values, floors), tokens, least, self.model, self.model.pair(*pair).block)


@dataclass(frozen=True, eq=False)
class _IntegerRows:
    """Likewise along a path of Q8_1 activations, with BF16 or FP32 after a product."""

    layer: MoELayer
    x: NDArray[Any] | Q8Tensor
    bf16: bool

    @cached_property
    def tokens(self) -> Q8Tensor:
        """The tokens as the first product sees them."""
        return self.x if isinstance(self.x, Q8Tensor) else quantize_q8_1(np.ascontiguousarray(self.x))

    def expert(self, expert: int, token: NDArray[np.intp]) -> Interval:
        """Results of the second product for these tokens, [R, H]."""
        layer = self.layer
        bias = None if layer.gate_up_bias is None else layer.gate_up_bias[expert].astype(np.float32)
        d = self.tokens.d[token].astype(np.float64)
        with np.errstate(invalid="ignore"):  # an infinite d times code 0
            known = self.tokens.codes[token].astype(np.float64) * np.repeat(d, Q8_1.block, axis=1)
        gate_up = self._product(layer.gate_up, expert, Interval(known, known), d, bias)
        hidden, scales = q8_1_values(_activated(layer, expert, gate_up))
        return self._product(layer.down, expert, hidden, scales, None)

    def _product(
        self,
        weights: MXTensor | NVFP4Experts,
        expert: int,
        tokens: Interval,
        scales: F64,
        bias: NDArray[np.float32] | None,
    ) -> Interval:
        assert isinstance(weights, MXTensor)
        part = weights.part(expert)
        known = Matrix(part.dequantize().astype(np.float64), _scales(part.scales))
        sums = integer_sums(known, tokens, scales, self._additions(scales.shape[1]))
        if self.bf16:
            return bf16_rounded(sums, bias)
        return Interval(*(end.astype(np.float64) for end in fp32_rounded(sums, bias)))

    def _additions(self, blocks: int) -> int:
        """On the way of one term: to those of its thread, the first to zero being exact; of warps; of 32 lanes."""
        warps = warps_per_row(self.x.shape[0])
        return -(-blocks // (warps * _WARP_LANES)) - 1 + warps - 1 + _WARP_LANES.bit_length() - 1


def _activated(layer: MoELayer, expert: int, gate_up: Interval) -> Interval:
    """FP32 results of the activation, before they are rounded or quantized again."""
    half = layer.intermediate
    alpha, beta, limit = swiglu_parameters(layer, expert)
    if layer.variant == "silu":
        gate, up = (Interval(*(end[:, part] for end in gate_up)) for part in (slice(half), slice(half, None)))
        return swiglu_values(gate, up, 1.0, None, None)
    gate, up = (Interval(*(end[:, part::2] for end in gate_up)) for part in (0, 1))
    return swiglu_values(gate, up, alpha, beta, limit)


def _routed(x: NDArray[Any], layer: MoELayer) -> tuple[NDArray[np.int32], Interval, NDArray[np.bool_]]:
    """`routed` of the router's FP32 projection."""
    if layer.router_weight is None:
        raise ArgumentError("topk_ids", "None for a layer without a router", "ids and weights")
    values, least = x.astype(np.float64), np.float64(2.0**BF16.emin)
    weights = Matrix(layer.router_weight.astype(np.float64), least)
    bias = None if layer.router_bias is None else layer.router_bias.astype(np.float32)
    sums = chain(weights, Interval(values, values), least, MODELS["fp32"], 1)
    logits = Interval(*(end.astype(np.float64) for end in fp32_rounded(sums, bias)))
    return routed(logits, layer.top_k)


def _finalized(
    low: NDArray[np.float32],
    high: NDArray[np.float32],
    layer: MoELayer,
    experts: NDArray[np.int32],
    weights: Interval,
    present: NDArray[np.bool_],
) -> Interval:
    """Finalize's own operations at the ends of the rows [k, T, H] and of the weights [T, k]: its sums in FP32."""
    # A weight is an FP32 number, so the ends of its interval may be rounded to FP32 too.
    factors = [end.astype(np.float32) for end in weights]
    ends = [np.zeros(low.shape[1:], np.float32) for _ in range(2)]
    for rank in range(low.shape[0]):
        here = present[:, rank]
        rows = [end[rank, here] for end in (low, high)]
        if layer.down_bias is not None:
            bias = layer.down_bias[experts[here, rank]].astype(np.float32)
            rows = [fp32.add(row, bias) for row in rows]
        corners = [fp32.multiply(row, factor[here, rank, None]) for row in rows for factor in factors]
        for end, extreme in zip(ends, (np.minimum, np.maximum), strict=True):
            end[here] = fp32.add(end[here], extreme.reduce(corners))
    least, most = (end.astype(np.float64) for end in ends)
    return Interval(least, most)


def _scales(scales: NDArray[np.uint8]) -> F64:
    """Each element's scale, [..., K]."""
    return np.asarray(np.repeat(scale_values(E8M0)[scales], MX_BLOCK, axis=-1))
