"""Whole layers of the reference: every path of `moe_layer`, one of them also on a rank and with the router."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.batching.subject import NEIGHBOURS, Arrays, Subject, token_experts, token_values, token_weights
from refmoe.draw import Draw
from refmoe.families import FAMILIES
from refmoe.families.case import Shape
from refmoe.families.deepseek.moe import drawn_expert
from refmoe.families.moe import layer_inputs, layer_of
from refmoe.reference.deepseek.layer import DeepSeekMoELayer
from refmoe.reference.moe import MoELayer, moe_layer
from refmoe.reference.q8_1 import Q8Tensor, quantize_q8_1
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.reference.tensor import MXTensor
from refmoe.reports.invariant import LAYER

#: gpt-oss's hidden size: 90 blocks of 32, more than the lanes of two warps. A layer with fewer than 33 blocks does not
#: show an order of summation that depends on how many warps share a row.
HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 2880, 96, 8, 2
#: Of a layer in block FP8: eleven blocks of 128.
DEEPSEEK_HIDDEN, DEEPSEEK_INTERMEDIATE = 1408, 128

_RESTS_ON = "on the reference, to the last bit; the chip adds as its accumulation model says"

#: Paths by name: what `moe_layer` is called with.
_PATHS: Mapping[str, Mapping[str, str]] = {
    "cutlass": {"path": "cutlass", "quantization": "separate"},
    "cutlass-fused": {"path": "cutlass", "quantization": "fused"},
    "cutlass-ready": {"path": "cutlass", "quantization": "ready"},
    "cutlass-floor": {"path": "cutlass", "mode": "floor"},
    "trtllm_mxfp8": {"path": "trtllm_mxfp8"},
    "nvfp4": {"path": "nvfp4"},
    "marlin": {"path": "marlin"},
    "triton": {"path": "triton"},
    "trtllm": {"path": "trtllm"},
    "dp4a": {"path": "dp4a"},
    "llama_cpp": {"path": "llama_cpp"},
    "llama_cpp-ready": {"path": "llama_cpp", "quantization": "ready"},
    "llama_cpp-q8_1": {"path": "llama_cpp", "output": "q8_1"},
}


def layer_subjects() -> Iterator[Subject]:
    """A subject for each path of `moe_layer`, and for what else may tell batches apart: a rank, the router."""
    for name, settings in _PATHS.items():
        run = partial(_run, settings, 0, EXPERTS)
        yield _layer(f"layer/{name}", run, HIDDEN)
    # The second half of the experts: choices of the first half have no row here.
    yield _layer("layer/cutlass-rank", partial(_run, _PATHS["cutlass"], EXPERTS // 2, EXPERTS // 2), HIDDEN)
    # A router refuses logits that are NaN, so its tokens are numbers.
    kinds = tuple(kind for kind in NEIGHBOURS if kind not in ("special", "huge"))
    yield Subject("layer/cutlass-router", _draw_alone, _run_routed, _RESTS_ON, kinds=kinds, source=LAYER)
    deepseek = partial(_run_deepseek, {})
    yield _layer("layer/deepseek_fp8", deepseek, DEEPSEEK_HIDDEN)
    # What TensorRT-LLM's quantization makes of NaN, and of blocks of subnormals, is not published and refused.
    trtllm = partial(_run_deepseek, {"rules": "trtllm"})
    finite = tuple(kind for kind in NEIGHBOURS if kind not in ("special", "huge", "tiny"))
    yield replace(_layer("layer/deepseek_fp8-trtllm", trtllm, DEEPSEEK_HIDDEN), kinds=finite)


def _layer(name: str, run: Any, hidden: int) -> Subject:
    draw = partial(draw_routed, hidden, EXPERTS, TOP_K)
    return Subject(name, draw, run, _RESTS_ON, experts="ids", source=LAYER)


def draw_routed(hidden: int, experts: int, top_k: int, kind: str, seed: int, tokens: int) -> Arrays:
    """Tokens with their choices and weights."""
    return {
        "x": token_values(kind, seed, tokens, hidden),
        "ids": token_experts(seed, tokens, experts, top_k),
        "weights": token_weights(seed, tokens, top_k),
    }


def _draw_alone(kind: str, seed: int, tokens: int) -> Arrays:
    return {"x": token_values(kind, seed, tokens, HIDDEN)}


@cache
def _weights(first: int, experts: int) -> MoELayer:
    """The experts of a rank, with distinct parameters; on a rank of two with biases, which hide small differences."""
    bias = "none" if experts == EXPERTS else "distinct"
    options: dict[str, Any] = {"bias": bias, "params": "distinct", "first_expert": first, "ranks": EXPERTS // experts}
    case = FAMILIES["moe"].case("gaussian", Shape(1, HIDDEN, experts, TOP_K, INTERMEDIATE), **options)
    layer = layer_of(case, layer_inputs(case))
    codes, scales = mirrored_codes(layer.gate_up.codes), mirrored(layer.gate_up.scales)
    return replace(layer, gate_up=MXTensor(codes, scales, "mxfp4"))


def mirrored(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows whose second half is the first again."""
    half = rows.shape[-1] // 2
    return np.ascontiguousarray(np.concatenate([rows[..., :half], rows[..., :half]], axis=-1))


def mirrored_codes(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Packed FP4 codes whose second half is the first with the other sign.

    A token whose halves are equal gets a sum of exactly zero. What a path gives for it is all rounding, and shows the
    order in which it adds.
    """
    made = mirrored(codes)
    made[..., codes.shape[-1] // 2 :] ^= 0x88
    return made


def _run(settings: Mapping[str, str], first: int, experts: int, batch: Arrays, way: str) -> Arrays:
    x: NDArray[Any] | Q8Tensor = batch["x"]
    given: dict[str, Any] = {}
    if settings.get("quantization") == "ready" and settings["path"] == "llama_cpp":
        x = quantize_q8_1(batch["x"])
    elif settings.get("quantization") == "ready":
        made = quantize_mxfp8(batch["x"])
        x, given = made.codes, {"input_sf": made.scales}
    routed = {"topk_ids": batch["ids"], "topk_weights": batch["weights"]}
    found: Any = moe_layer(x, _weights(first, experts), first_expert=first, **routed, **given, **settings)  # type: ignore[call-overload]
    if isinstance(found, Q8Tensor):
        tokens = len(batch["x"])
        return {name: np.asarray(getattr(found, name)).reshape(tokens, -1) for name in ("codes", "d", "s")}
    return {"out": found}


@cache
def _routed_weights() -> MoELayer:
    router = (Draw("batching-router").normal((EXPERTS, HIDDEN)) / 64).astype(ml_dtypes.bfloat16)
    return replace(_weights(0, EXPERTS), router_weight=router)


def _run_routed(batch: Arrays, way: str) -> Arrays:
    return {"out": moe_layer(batch["x"], _routed_weights(), path="cutlass")}


@cache
def _deepseek_weights() -> DeepSeekMoELayer:
    made = [drawn_expert(7, expert, DEEPSEEK_HIDDEN, DEEPSEEK_INTERMEDIATE) for expert in range(EXPERTS + 1)]
    return DeepSeekMoELayer(made[:-1], DEEPSEEK_HIDDEN, DEEPSEEK_INTERMEDIATE, TOP_K, shared=made[-1], scale=2.5)


def _run_deepseek(settings: Mapping[str, Any], batch: Arrays, way: str) -> Arrays:
    routed: dict[str, Any] = {"topk_ids": batch["ids"], "topk_weights": batch["weights"], **settings}
    return {"out": moe_layer(batch["x"], _deepseek_weights(), path="deepseek_fp8", **routed)}
