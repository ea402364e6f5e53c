"""The steps that MoE paths are made of, and the paths as lists of them.

A step reads what earlier steps left, by stage name, and returns its own arrays. Its `conversions` say what becomes of
the numbers in it, in the order in which it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MXFP8, NVFP4
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference import fp32
from refmoe.reference.activation import swiglu_by_expert, swiglu_quantize
from refmoe.reference.backends import Accumulation, choose_backend
from refmoe.reference.deepseek import fp8_path as deepseek
from refmoe.reference.dp4a import dp4a_gemv
from refmoe.reference.expand import build_permutation, expand, expand_as
from refmoe.reference.finalize import finalize
from refmoe.reference.finalize_q8_1 import finalize_q8_1
from refmoe.reference.gemm import grouped_gemm
from refmoe.reference.layout import SCALE_LAYOUTS, expert_scale_rows, grouped_scale_rows, unswizzle_scales
from refmoe.reference.mma import AccumulationModel
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.nvfp4_gemm import nvfp4_alpha, nvfp4_grouped_gemm
from refmoe.reference.q8_1 import Q8Tensor, quantize_q8_1
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.reference.routing import route_softmax_topk, router_logits
from refmoe.reference.swiglu_q8_1 import swiglu_q8_1
from refmoe.reference.tensor import MXTensor, NVFP4Experts, experts_as_nvfp4, input_scales

Arrays = Mapping[str, NDArray[Any]]

LAYOUT = "128x4"
"""Of the scales between the steps."""

QUANTIZATIONS = ("separate", "fused", "ready")

OUTPUTS = ("bf16", "q8_1")
"""What a layer's output can be. Q8_1 is what the next layer takes as it is, and of llama_cpp alone."""


@dataclass(frozen=True, eq=False)
class Run:
    """One pass through the steps: what `moe_layer` was called with, and the arrays of each stage that is done."""

    x: NDArray[Any] | Q8Tensor
    layer: MoELayer
    model: AccumulationModel
    input_sf: NDArray[np.uint8] | None
    topk_ids: NDArray[np.int32] | None
    topk_weights: NDArray[np.float32] | None
    first_expert: int
    mode: ScaleMode | str
    edge: EdgePolicy | str
    stages: dict[str, Arrays] = field(default_factory=dict)

    @property
    def tokens(self) -> NDArray[Any]:
        """`x` where it is an array: everywhere but on a path whose tokens come in Q8_1."""
        assert not isinstance(self.x, Q8Tensor)
        return self.x


@dataclass(frozen=True)
class PathStep:
    """One step of a path.

    Attributes:
        stage: its name.
        conversions: "from -> to" or "a x b -> to", in order; empty where numbers are only moved or are not the
            activations'.
        function: computes the stage's arrays of a `Run`, or of a `refmoe.reference.deepseek.fp8_path.DeepSeekRun`.
    """

    stage: str
    conversions: tuple[str, ...]
    function: Callable[[Any], Arrays]


def _route(run: Run) -> Arrays:
    """Ids and weights, given or computed, and where each choice's row goes."""
    layer, routed = run.layer, dict[str, NDArray[Any]]()
    if run.topk_ids is not None and run.topk_weights is not None:
        ids, weights = run.topk_ids, run.topk_weights
    else:
        assert layer.router_weight is not None
        routed["logits"] = router_logits(run.tokens, layer.router_weight, layer.router_bias)
        ids, weights = route_softmax_topk(routed["logits"], layer.top_k)
    permutation = build_permutation(ids, layer.experts, run.first_expert)
    return {**routed, "ids": ids, "weights": weights, **vars(permutation)}


def _quantize(run: Run) -> Arrays:
    """Each token once, scales linear."""
    quantized = quantize_mxfp8(run.tokens, mode=run.mode, edge=run.edge)
    return {"codes": quantized.codes, "scales": quantized.scales}


def _expand_quantized(run: Run) -> Arrays:
    """Ready codes and scales copied to the rows of their experts."""
    if "quantize" in run.stages:
        codes, scales = run.stages["quantize"]["codes"], run.stages["quantize"]["scales"]
        return _expand(run, codes, scales)
    return _expand(run, run.tokens, run.input_sf)


def _expand_fused(run: Run) -> Arrays:
    """Tokens quantized on their way to the rows of their experts."""
    return _expand(run, run.tokens, None)


def _expand(run: Run, x: NDArray[Any], input_sf: NDArray[np.uint8] | None) -> Arrays:
    rows = expand(
        x,
        run.stages["routing"]["ids"],
        run.layer.experts,
        mode=run.mode,
        edge=run.edge,
        layout=LAYOUT,
        input_sf=input_sf,
        first_expert=run.first_expert,
    )
    return {"codes": rows.codes, "scales": rows.scales}


def _gather(run: Run) -> Arrays:
    """BF16 tokens copied to the rows of their experts; rows of no expert are +0."""
    routing, x = run.stages["routing"], run.tokens
    source = routing["permuted_to_unpermuted"]
    used = int(routing["offsets"][-1])
    rows = np.zeros((source.size, x.shape[1]), x.dtype)
    rows[:used] = x[source[:used] % max(x.shape[0], 1)]
    return {"rows": rows}


def _gemm1(run: Run) -> Arrays:
    """BF16(RN(acc + bias))."""
    return {"out": _gemm(run, "expand", run.layer.gate_up, run.layer.gate_up_bias)}


def _gemm2(run: Run) -> Arrays:
    """BF16(acc); the bias is finalize's."""
    return {"out": _gemm(run, "activation", run.layer.down, None)}


def _gemm(run: Run, stage: str, weights: MXTensor | NVFP4Experts, bias: NDArray[Any] | None) -> NDArray[Any]:
    arrays, offsets = run.stages[stage], run.stages["routing"]["offsets"]
    rows = arrays["rows"] if "rows" in arrays else _quantized_rows(arrays, offsets)
    alpha = weights.global_decode_scales if isinstance(weights, NVFP4Experts) else None
    return grouped_gemm(rows, weights, offsets, model=run.model, alpha=alpha, bias=bias, out_dtype=fp32.BF16)


def _quantized_rows(arrays: Arrays, offsets: NDArray[np.int64]) -> MXTensor:
    """Codes and scales as the GEMM's kernel reads them: each row's scales from its place in the layout."""
    codes = arrays["codes"]
    return MXTensor(codes, _row_scales(arrays["scales"], offsets, len(codes), codes.shape[1], MXFP8.block), "mxfp8")


def _row_scales(
    buffer: NDArray[np.uint8], offsets: NDArray[np.int64], rows: int, k: int, block: int
) -> NDArray[np.uint8]:
    """Each row's scales from its place in the layout, [rows, k / block]; 0 for rows of no expert."""
    blocks, used = k // block, int(offsets[-1])
    padded = SCALE_LAYOUTS[LAYOUT].padded_shape(grouped_scale_rows(rows, offsets.size - 1), blocks)
    scales = np.zeros((rows, blocks), np.uint8)
    scales[:used] = unswizzle_scales(buffer, padded, LAYOUT)[expert_scale_rows(offsets), :blocks]
    return scales


def _activate_quantized(run: Run) -> Arrays:
    """MXFP8 of the FP32 values."""
    rows = swiglu_quantize(
        run.stages["gemm1"]["out"],
        run.stages["routing"]["offsets"],
        mode=run.mode,
        edge=run.edge,
        layout=LAYOUT,
        **run.layer.swiglu,
    )
    return {"codes": rows.codes, "scales": rows.scales}


def _activate_bf16(run: Run) -> Arrays:
    """BF16 of the FP32 values; rows of no expert are +0."""
    gate_up = run.stages["gemm1"]["out"]
    values = swiglu_by_expert(gate_up, run.stages["routing"]["offsets"], **run.layer.swiglu)
    rows = np.zeros((len(gate_up), run.layer.intermediate), fp32.BF16)
    rows[: len(values)] = fp32.bf16(values)
    return {"rows": rows}


def _expand_nvfp4(run: Run) -> Arrays:
    """Tokens quantized to NVFP4 on their way to the rows of their experts, under each expert's global scale."""
    return _nvfp4_rows(run.tokens, run.stages["routing"]["ids"], run.layer.gate_up, run.first_expert)


def _activate_nvfp4(run: Run) -> Arrays:
    """NVFP4 of the BF16 values: the kernel that quantizes takes BF16, as TensorRT-LLM's activation does."""
    rows, offsets = _activate_bf16(run)["rows"], run.stages["routing"]["offsets"]
    expert = np.searchsorted(offsets, np.arange(len(rows)), side="right") - 1
    expert[offsets[-1] :] = -1
    # The rows are sorted already, so each stays where it is.
    return _nvfp4_rows(rows, expert[:, None].astype(np.int32), run.layer.down, 0)


def _nvfp4_rows(
    rows: NDArray[Any], ids: NDArray[np.int32], weights: MXTensor | NVFP4Experts, first_expert: int
) -> Arrays:
    factors = fp32.divide(np.ones(1, np.float32), input_scales(weights))
    made = expand_as(
        rows, ids, weights.shape[0], "nvfp4", encode_scale=factors, layout=LAYOUT, first_expert=first_expert
    )
    assert made.scales is not None
    return {"nvfp4_codes": made.codes, "nvfp4_scales": made.scales}


def _nvfp4_gemm1(run: Run) -> Arrays:
    """BF16(RN(RN(alpha * acc) + bias))."""
    return {"out": _nvfp4_gemm(run, "expand", run.layer.gate_up, run.layer.gate_up_bias)}


def _nvfp4_gemm2(run: Run) -> Arrays:
    """BF16(RN(alpha * acc)); the bias is finalize's."""
    return {"out": _nvfp4_gemm(run, "activation", run.layer.down, None)}


def _nvfp4_gemm(run: Run, stage: str, weights: MXTensor | NVFP4Experts, bias: NDArray[Any] | None) -> NDArray[Any]:
    codes, offsets = run.stages[stage]["nvfp4_codes"], run.stages["routing"]["offsets"]
    rows, k = codes.shape[0], codes.shape[1] * NVFP4.codes_a_byte
    # Experts without rows are left out: their weights would be converted for nothing.
    experts = np.flatnonzero(np.diff(offsets)) if offsets[-1] else np.zeros(1, np.int64)
    chosen = experts_as_nvfp4(weights, experts)
    return nvfp4_grouped_gemm(
        codes,
        _row_scales(run.stages[stage]["nvfp4_scales"], offsets, rows, k, NVFP4.block),
        chosen.codes,
        chosen.scales,
        np.append(offsets[experts], offsets[-1]),
        alpha=nvfp4_alpha(chosen.input_scales, chosen.global_decode_scales),
        bias=None if bias is None else bias[experts],
        out_dtype=fp32.BF16,
    )


def _quantize_q8_1(run: Run) -> Arrays:
    """Each token once."""
    return _q8_1_arrays(quantize_q8_1(run.tokens))


def _activate_q8_1(run: Run) -> Arrays:
    """Q8_1 of the FP32 values."""
    layer = run.layer
    rows = swiglu_q8_1(
        run.stages["gemm1"]["out"],
        run.stages["routing"]["offsets"],
        variant=layer.variant,
        alpha=layer.swiglu_alpha,
        beta=layer.swiglu_beta,
        limit=layer.swiglu_limit,
    )
    return _q8_1_arrays(rows)


def _q8_1_arrays(tensor: Q8Tensor) -> Arrays:
    return {"codes": tensor.codes, "d": tensor.d, "s": tensor.s}


def _dp4a1(dtype: npt.DTypeLike) -> Callable[[Run], Arrays]:
    """Rows in expert order, rounded to `dtype` after the bias."""
    return lambda run: _dp4a(run, "quantize", run.layer.gate_up, run.layer.gate_up_bias, dtype)


def _dp4a2(dtype: npt.DTypeLike) -> Callable[[Run], Arrays]:
    """Likewise; the bias is finalize's."""
    return lambda run: _dp4a(run, "activation", run.layer.down, None, dtype)


def _dp4a(
    run: Run, stage: str, weights: MXTensor | NVFP4Experts, bias: NDArray[Any] | None, dtype: npt.DTypeLike
) -> Arrays:
    assert isinstance(weights, MXTensor)
    routing = run.stages["routing"]
    ready = isinstance(run.x, Q8Tensor) and stage == "quantize"
    out = dp4a_gemv(
        run.x if ready else Q8Tensor(**run.stages[stage]),  # type: ignore[arg-type]
        weights,
        routing["ids"],
        row_of_choice=routing["unpermuted_to_permuted"],
        input_by_choice=stage == "activation",
        bias=bias,
        first_expert=run.first_expert,
        out_dtype=dtype,
    )
    return {"out": out}


def _finalize(run: Run) -> Arrays:
    routing, bias = run.stages["routing"], run.layer.down_bias
    out = finalize(
        run.stages["gemm2"]["out"],
        routing["unpermuted_to_permuted"],
        routing["weights"],
        topk_ids=None if bias is None else routing["ids"],
        bias=bias,
        first_expert=run.first_expert,
    )
    return {"out": out}


def _finalize_q8_1(run: Run) -> Arrays:
    """The FP32 sums in Q8_1: of the layer's output alone, see `refmoe.reference.finalize_q8_1`."""
    routing, bias = run.stages["routing"], run.layer.down_bias
    out = finalize_q8_1(
        run.stages["gemm2"]["out"],
        routing["unpermuted_to_permuted"],
        routing["weights"],
        topk_ids=None if bias is None else routing["ids"],
        bias=bias,
        first_expert=run.first_expert,
    )
    return _q8_1_arrays(out)


_ROUTING = PathStep("routing", (), _route)
_MXFP8_LAYER = (
    PathStep("gemm1", ("MXFP8 x MXFP4 -> FP32", "FP32 -> BF16"), _gemm1),
    PathStep("activation", ("BF16 -> FP32", "FP32 -> MXFP8"), _activate_quantized),
    PathStep("gemm2", ("MXFP8 x MXFP4 -> FP32", "FP32 -> BF16"), _gemm2),
    PathStep("finalize", ("BF16 -> FP32", "FP32 -> BF16"), _finalize),
)
_NVFP4_PRODUCT = ("NVFP4 x NVFP4 -> FP32", "FP32 -> BF16")
_NVFP4 = (
    _ROUTING,
    PathStep("expand", ("BF16 -> NVFP4",), _expand_nvfp4),
    PathStep("gemm1", _NVFP4_PRODUCT, _nvfp4_gemm1),
    PathStep("activation", ("BF16 -> FP32", "FP32 -> BF16", "BF16 -> NVFP4"), _activate_nvfp4),
    PathStep("gemm2", _NVFP4_PRODUCT, _nvfp4_gemm2),
    PathStep("finalize", ("BF16 -> FP32", "FP32 -> BF16"), _finalize),
)
_BF16_LAYER = (
    PathStep("expand", (), _gather),
    PathStep("gemm1", ("FP4 -> BF16", "BF16 x BF16 -> FP32", "FP32 -> BF16"), _gemm1),
    PathStep("activation", ("BF16 -> FP32", "FP32 -> BF16"), _activate_bf16),
    PathStep("gemm2", ("FP4 -> BF16", "BF16 x BF16 -> FP32", "FP32 -> BF16"), _gemm2),
    PathStep("finalize", ("BF16 -> FP32", "FP32 -> BF16"), _finalize),
)
_INTEGER_PRODUCT = ("FP4 -> INT8", "INT8 x INT8 -> INT32", "INT32 -> FP32")
_DP4A = (
    _ROUTING,
    PathStep("quantize", ("BF16 -> FP32", "FP32 -> INT8"), _quantize_q8_1),
    PathStep("gemm1", (*_INTEGER_PRODUCT, "FP32 -> BF16"), _dp4a1(fp32.BF16)),
    PathStep("activation", ("BF16 -> FP32", "FP32 -> INT8"), _activate_q8_1),
    PathStep("gemm2", (*_INTEGER_PRODUCT, "FP32 -> BF16"), _dp4a2(fp32.BF16)),
    PathStep("finalize", ("BF16 -> FP32", "FP32 -> BF16"), _finalize),
)
_LLAMA_CPP = (
    _ROUTING,
    PathStep("quantize", ("FP32 -> Q8_1",), _quantize_q8_1),
    PathStep("gemm1", _INTEGER_PRODUCT, _dp4a1(np.float32)),
    PathStep("activation", ("FP32 -> Q8_1",), _activate_q8_1),
    PathStep("gemm2", _INTEGER_PRODUCT, _dp4a2(np.float32)),
    PathStep("finalize", ("FP32 -> BF16",), _finalize),
)
_LLAMA_CPP_READY = tuple(step for step in _LLAMA_CPP if step.stage != "quantize")
_TO_Q8_1 = PathStep("finalize", ("FP32 -> Q8_1",), _finalize_q8_1)
_SEPARATE = (
    _ROUTING,
    PathStep("quantize", ("BF16 -> MXFP8",), _quantize),
    PathStep("expand", (), _expand_quantized),
    *_MXFP8_LAYER,
)
_FUSED = (_ROUTING, PathStep("expand", ("BF16 -> MXFP8",), _expand_fused), *_MXFP8_LAYER)
_READY = (_ROUTING, PathStep("expand", (), _expand_quantized), *_MXFP8_LAYER)

_FP8_PRODUCT = ("FP8 x FP8 -> FP32", "FP32 -> BF16")
_DEEPSEEK_FP8 = (
    PathStep("routing", (), deepseek.route),
    PathStep("expand", ("BF16 -> FP8",), deepseek.expand),
    PathStep("gemm1", _FP8_PRODUCT, deepseek.gemm1),
    PathStep("activation", ("BF16 -> FP32", "FP32 -> FP8"), deepseek.activate),
    PathStep("gemm2", _FP8_PRODUCT, deepseek.gemm2),
    # Its own tokens, beside those of the routed experts: nothing that a routed row goes through.
    PathStep("shared", (), deepseek.shared),
    PathStep("finalize", ("BF16 -> FP32", "FP32 -> BF16"), deepseek.finalize),
)

PATHS: Mapping[tuple[str, str | None], tuple[PathStep, ...]] = MappingProxyType(
    {
        ("cutlass", "separate"): _SEPARATE,
        ("cutlass", "fused"): _FUSED,
        ("cutlass", "ready"): _READY,
        ("trtllm_mxfp8", "separate"): _SEPARATE,
        ("nvfp4", None): _NVFP4,
        ("marlin", None): (_ROUTING, *_BF16_LAYER),
        ("triton", None): (_ROUTING, *_BF16_LAYER),
        ("trtllm", None): (_ROUTING, *_BF16_LAYER),
        ("dp4a", None): _DP4A,
        ("llama_cpp", "separate"): _LLAMA_CPP,
        ("llama_cpp", "ready"): _LLAMA_CPP_READY,
        ("deepseek_fp8", None): _DEEPSEEK_FP8,
    }
)
"""The steps of each path, by backend and by who quantizes the tokens; None where there is no choice."""


def path_steps(path: str, quantization: str = "separate", output: str = "bf16") -> tuple[PathStep, ...]:
    """The steps of a path, in order.

    Args:
        path: a backend's name, in upper or lower case.
        quantization: of a cutlass path: "separate" (a step of its own), "fused" (in expand), "ready" (the caller's). Of
            llama_cpp "separate", or "ready": the tokens are the Q8_1 output of the layer before.
        output: "bf16", or of llama_cpp "q8_1".

    Raises:
        ArgumentError: an unknown backend, or a quantization or an output that it does not have.
    """
    name = choose_backend(path).name
    if output not in OUTPUTS:
        raise ArgumentError("output", describe(output), f"one of {', '.join(OUTPUTS)}")
    if output != "bf16" and name != "llama_cpp":
        raise ArgumentError(
            "output", f"{output} with {name}", "bf16, or the path llama_cpp, whose activations stay Q8_1"
        )
    steps = _steps(name, quantization)
    return steps if output == "bf16" else (*steps[:-1], _TO_Q8_1)


def quantizations_of(name: str) -> tuple[str | None, ...]:
    """Who may quantize the tokens of a backend, by its name in lower case; (None,) where there is no choice."""
    return tuple(way for backend, way in PATHS if backend == name)


def _steps(name: str, quantization: str) -> tuple[PathStep, ...]:
    """The steps of a backend whose output is BF16."""
    if quantization not in QUANTIZATIONS:
        raise ArgumentError("quantization", describe(quantization), f"one of {', '.join(QUANTIZATIONS)}")
    had = quantizations_of(name)
    if had == (None,):
        if quantization != "separate":
            raise ArgumentError(
                "quantization",
                f"{quantization} with {name}",
                f"the default: its activations are {choose_backend(name).activations.upper()}",
            )
        return PATHS[name, None]
    if quantization not in had:
        raise ArgumentError("quantization", f"{quantization} with {name}", f"one of {', '.join(map(str, had))}")
    return PATHS[name, quantization]


def accumulation(path: str, arch: str | None = None) -> tuple[str, Accumulation]:
    """The architecture, and how the path's GEMMs add up on it; without `arch`, on the backend's first.

    Raises:
        ArgumentError: as `choose_backend`.
    """
    backend = choose_backend(path, arch)
    chosen = backend.architectures[0] if arch is None else arch
    return chosen, backend.accumulation[chosen]
