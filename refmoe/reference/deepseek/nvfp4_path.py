"""The steps of a DeepSeek-V3 layer in NVFP4. `refmoe.reference.moe.deepseek_nvfp4` makes paths of them.

routing      as of a layer in block FP8: sigmoid, groups, top-k; the maps of rows
expand       each token in NVFP4 in the rows of its experts, under each expert's own global scale; or in BF16
gemm1        BF16(RN(alpha * acc)), the rows of each expert with its gates and ups
activation   SwiGLU of those in FP32, rounded to BF16; then NVFP4 under the expert's other global scale, or as it is
gemm2        BF16(RN(alpha * acc))
shared       the same of the shared expert, on all tokens; one that was not quantized takes them in BF16
finalize     the routed rows weighted and summed in FP32, the shared expert's added, BF16

alpha is the product of the global decode scales of both operands, rounded to FP32; with BF16 tokens it is the weights'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.formats import NVFP4
from refmoe.reference import fp32
from refmoe.reference.activation import swiglu
from refmoe.reference.backends import BACKENDS
from refmoe.reference.deepseek import fp8_path
from refmoe.reference.deepseek.finalize import finalize_shared
from refmoe.reference.deepseek.layer import DeepSeekRules
from refmoe.reference.deepseek.nvfp4_layer import BF16Expert, DeepSeekNVFP4Layer, NVFP4Expert
from refmoe.reference.expand import expand_as
from refmoe.reference.gemm import finish_sums, grouped_gemm
from refmoe.reference.layout import SCALE_LAYOUTS, expert_scale_rows, grouped_scale_rows, unswizzle_scales
from refmoe.reference.mma import MODELS, AccumulationModel, tensor_core_mma
from refmoe.reference.nvfp4 import NVFP4Tensor, quantize_nvfp4
from refmoe.reference.nvfp4_gemm import nvfp4_alpha, nvfp4_grouped_gemm
from refmoe.reference.tensor import NVFP4Experts

Arrays = Mapping[str, NDArray[Any]]

LAYOUT = "128x4"
"""Of the scales between the steps."""

_ONE: np.float32 = np.float32(1)


@dataclass(frozen=True, eq=False)
class DeepSeekNVFP4Run:
    """One pass through the steps: what `moe_layer` was called with, and the arrays of each stage that is done."""

    tokens: NDArray[Any]
    layer: DeepSeekNVFP4Layer
    model: AccumulationModel
    topk_ids: NDArray[np.int32] | None
    topk_weights: NDArray[np.float32] | None
    first_expert: int
    rules: DeepSeekRules
    stages: dict[str, Arrays] = field(default_factory=dict)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """First row of each expert, then the rows in use."""
        return self.stages["routing"]["offsets"]

    def chosen(self) -> dict[int, NVFP4Expert]:
        """The experts that have rows."""
        return {int(number): self.layer.expert(int(number)) for number in np.flatnonzero(np.diff(self.offsets))}


def check_rules(rules: DeepSeekRules) -> None:
    """Refuse rules of block FP8's quantizer, which this layer does not have.

    Raises:
        ArgumentError: they name one, or its scales.
    """
    usual = DeepSeekRules()
    for name in ("quantizer", "scales"):
        if getattr(rules, name) != getattr(usual, name):
            needed = "the default: its activations are not block FP8, and only weights and order are rules of it"
            raise ArgumentError("rules", f"the {name} {getattr(rules, name)} with a DeepSeek layer in NVFP4", needed)


def route(run: DeepSeekNVFP4Run) -> Arrays:
    """Ids and weights, given or computed, and where each choice's row goes."""
    # It reads only what both kinds of layers have.
    return fp8_path.route(cast(fp8_path.DeepSeekRun, run))


def expand_nvfp4(run: DeepSeekNVFP4Run) -> Arrays:
    """Tokens quantized on their way to the rows of their experts."""
    scales = {number: expert.gate_up_input_scale for number, expert in run.chosen().items()}
    return _rows_in_nvfp4(run, run.tokens, run.stages["routing"]["ids"], scales, run.first_expert)


def expand_bf16(run: DeepSeekNVFP4Run) -> Arrays:
    """Tokens copied to the rows of their experts; rows of no expert are +0."""
    source, used = run.stages["routing"]["permuted_to_unpermuted"], int(run.offsets[-1])
    rows = np.zeros((source.size, run.layer.hidden), fp32.BF16)
    rows[:used] = run.tokens[source[:used] % max(len(run.tokens), 1)]
    return {"rows": rows}


def gemm1_nvfp4(run: DeepSeekNVFP4Run) -> Arrays:
    """The rows by each expert's gates and ups."""
    return {"out": _by_expert_nvfp4(run, "expand", 2 * run.layer.intermediate, _gate_up)}


def gemm1_bf16(run: DeepSeekNVFP4Run) -> Arrays:
    """Likewise of BF16 rows."""
    return {"out": _by_expert_bf16(run, "expand", 2 * run.layer.intermediate, _gate_up)}


def activate_nvfp4(run: DeepSeekNVFP4Run) -> Arrays:
    """NVFP4 of SwiGLU's results in BF16: the kernel that quantizes takes BF16."""
    rows, offsets = activate_bf16(run)["rows"], run.offsets
    expert = np.searchsorted(offsets, np.arange(len(rows)), side="right") - 1
    expert[offsets[-1] :] = -1
    scales = {number: expert.down_input_scale for number, expert in run.chosen().items()}
    # The rows are sorted already, so each stays where it is.
    return _rows_in_nvfp4(run, rows, expert[:, None].astype(np.int32), scales, 0)


def activate_bf16(run: DeepSeekNVFP4Run) -> Arrays:
    """SwiGLU's results in BF16; rows of no expert are +0."""
    gate_up, used = run.stages["gemm1"]["out"], int(run.offsets[-1])
    rows = np.zeros((len(gate_up), run.layer.intermediate), fp32.BF16)
    rows[:used] = _activated(gate_up[:used])
    return {"rows": rows}


def gemm2_nvfp4(run: DeepSeekNVFP4Run) -> Arrays:
    """The rows by each expert's second matrix."""
    return {"out": _by_expert_nvfp4(run, "activation", run.layer.hidden, _down)}


def gemm2_bf16(run: DeepSeekNVFP4Run) -> Arrays:
    """Likewise of BF16 rows."""
    return {"out": _by_expert_bf16(run, "activation", run.layer.hidden, _down)}


def shared_nvfp4(run: DeepSeekNVFP4Run) -> Arrays:
    """Both products and the activation of the shared expert, on every token; nothing without one."""
    expert = run.layer.shared
    if not isinstance(expert, NVFP4Expert):
        return shared_bf16(run)
    tokens = _quantized(run.tokens, expert.gate_up_input_scale)
    gate_up = _product_nvfp4(tokens.codes, tokens.scales, *_gate_up(expert))
    inner = _quantized(_activated(gate_up), expert.down_input_scale)
    return {
        "token_codes": tokens.codes,
        "token_scales": tokens.scales,
        "gate_up": gate_up,
        "codes": inner.codes,
        "scales": inner.scales,
        "out": _product_nvfp4(inner.codes, inner.scales, *_down(expert)),
    }


def shared_bf16(run: DeepSeekNVFP4Run) -> Arrays:
    """Likewise with BF16 tokens."""
    expert = run.layer.shared
    if expert is None:
        return {}
    if isinstance(expert, BF16Expert):
        model = shared_model(run.model)
        gate_up = _product_of_bf16(run.tokens, expert.gate_up, model)
        rows = _activated(gate_up)
        return {"gate_up": gate_up, "rows": rows, "out": _product_of_bf16(rows, expert.down, model)}
    gate_up = _product_bf16(run.tokens, _gate_up(expert)[0], run.model)
    rows = _activated(gate_up)
    return {"gate_up": gate_up, "rows": rows, "out": _product_bf16(rows, expert.down, run.model)}


def finalize(run: DeepSeekNVFP4Run) -> Arrays:
    """The routed rows weighted and summed, and the shared expert's added."""
    routing = run.stages["routing"]
    rows, shared = run.stages["gemm2"]["out"], run.stages["shared"].get("out")
    maps = routing["unpermuted_to_permuted"], routing["weights"]
    return {"out": finalize_shared(rows, *maps, shared, order=run.rules.order)}


def shared_model(model: AccumulationModel) -> AccumulationModel:
    """How the products of a shared expert in BF16 add up: by the path's model, or `mma.sync`'s where that has none."""
    if ("bf16", "bf16") in model.pairs:
        return model
    marlin = BACKENDS["marlin"]
    return MODELS[marlin.accumulation[marlin.architectures[0]].model]


def _gate_up(expert: NVFP4Expert) -> tuple[NVFP4Tensor, np.float32]:
    return expert.gate_up, expert.gate_up_input_scale


def _down(expert: NVFP4Expert) -> tuple[NVFP4Tensor, np.float32]:
    return expert.down, expert.down_input_scale


def _encode_scale(input_scale: np.float32) -> np.float32:
    """What a quantizer multiplies by, RN(1 / input_scale)."""
    scale: np.float32 = np.float32(_ONE / input_scale)
    return scale


def _quantized(rows: NDArray[Any], input_scale: np.float32) -> NVFP4Tensor:
    return quantize_nvfp4(np.ascontiguousarray(rows), global_encode_scale=_encode_scale(input_scale))


def _rows_in_nvfp4(
    run: DeepSeekNVFP4Run, rows: NDArray[Any], ids: NDArray[np.int32], scales: dict[int, np.float32], first_expert: int
) -> Arrays:
    # Experts without rows are not looked up; nothing is quantized under their factor.
    factors = np.ones(run.layer.experts, np.float32)
    for number, scale in scales.items():
        factors[number] = _encode_scale(scale)
    made = expand_as(
        rows, ids, run.layer.experts, "nvfp4", encode_scale=factors, layout=LAYOUT, first_expert=first_expert
    )
    assert made.scales is not None
    return {"nvfp4_codes": made.codes, "nvfp4_scales": made.scales}


def _by_expert_nvfp4(
    run: DeepSeekNVFP4Run, stage: str, n: int, of: Callable[[NVFP4Expert], tuple[NVFP4Tensor, np.float32]]
) -> NDArray[Any]:
    """Every expert's rows by its weights, of which no more than one expert's are held at a time."""
    codes, buffer, offsets = run.stages[stage]["nvfp4_codes"], run.stages[stage]["nvfp4_scales"], run.offsets
    out = np.zeros((len(codes), n), fp32.BF16)
    blocks = codes.shape[1] * NVFP4.codes_a_byte // NVFP4.block
    padded = SCALE_LAYOUTS[LAYOUT].padded_shape(grouped_scale_rows(len(codes), offsets.size - 1), blocks)
    scales = unswizzle_scales(buffer, padded, LAYOUT)[expert_scale_rows(offsets), :blocks]
    for number, expert in run.chosen().items():
        rows = slice(int(offsets[number]), int(offsets[number + 1]))
        out[rows] = _product_nvfp4(codes[rows], np.ascontiguousarray(scales[rows]), *of(expert))
    return out


def _by_expert_bf16(
    run: DeepSeekNVFP4Run, stage: str, n: int, of: Callable[[NVFP4Expert], tuple[NVFP4Tensor, np.float32]]
) -> NDArray[Any]:
    """Likewise of BF16 rows."""
    given, offsets = run.stages[stage]["rows"], run.offsets
    out = np.zeros((len(given), n), fp32.BF16)
    for number, expert in run.chosen().items():
        rows = slice(int(offsets[number]), int(offsets[number + 1]))
        out[rows] = _product_bf16(given[rows], of(expert)[0], run.model)
    return out


def _product_nvfp4(
    codes: NDArray[np.uint8], scales: NDArray[np.uint8], weights: NVFP4Tensor, input_scale: np.float32
) -> NDArray[Any]:
    alpha = nvfp4_alpha(input_scale, np.array([weights.global_decode_scale], np.float32))
    given = codes, scales, weights.codes[None], weights.scales[None], _all_rows(codes)
    return nvfp4_grouped_gemm(*given, alpha=alpha, out_dtype=fp32.BF16)


def _product_bf16(rows: NDArray[Any], weights: NVFP4Tensor, model: AccumulationModel) -> NDArray[Any]:
    factor = np.array([weights.global_decode_scale], np.float32)
    one = NVFP4Experts(weights.codes[None], weights.scales[None], factor, np.ones(1, np.float32))
    return grouped_gemm(rows, one, _all_rows(rows), model=model, alpha=factor, out_dtype=fp32.BF16)


def _product_of_bf16(rows: NDArray[Any], weights: NDArray[Any], model: AccumulationModel) -> NDArray[Any]:
    """BF16 on both sides."""
    a, b = (np.ascontiguousarray(each).view(np.uint16) for each in (weights, rows))
    start = np.zeros((len(a), len(b)), np.float32)
    sums = tensor_core_mma(a, b, start, model=model, a_format="bf16", b_format="bf16", a_scales=None, b_scales=None)
    return finish_sums(np.ascontiguousarray(sums.T), None, None, fp32.BF16)


def _activated(gate_up: NDArray[Any]) -> NDArray[Any]:
    return fp32.bf16(swiglu(np.ascontiguousarray(gate_up), variant="silu"))


def _all_rows(rows: NDArray[Any]) -> NDArray[np.int64]:
    return np.array([0, len(rows)], np.int64)
