"""The production kernels on the executor, each by the host function that launches it: what a token gets of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.batching.layers import draw_routed, mirrored, mirrored_codes
from refmoe.batching.subject import NEIGHBOURS, Arrays, Subject, token_experts, token_values, token_weights
from refmoe.cuda import (
    activation,
    block_fp8,
    deepseek_gemm,
    dp4a,
    finalize,
    finalize_q8_1,
    nvfp4,
    nvfp4_gemm,
    q8_1,
    quantize,
    routing,
    swiglu_q8_1,
)
from refmoe.cuda.device import Device, open_device
from refmoe.cuda.expand import expand, expand_as
from refmoe.cuda.gemm import kernel as gemm
from refmoe.cuda.gemm.tile import TILES
from refmoe.draw import Draw
from refmoe.families import FAMILIES
from refmoe.families.case import Shape
from refmoe.families.stages import GroupedScales
from refmoe.formats import MX_BLOCK, NVFP4
from refmoe.reference.block_fp8 import quantize_block_fp8
from refmoe.reference.expand import build_permutation
from refmoe.reference.layout import swizzle_weight_scales, unswizzle_scales
from refmoe.reference.nvfp4 import quantize_nvfp4
from refmoe.reference.q8_1 import Q8Tensor, quantize_q8_1
from refmoe.reference.quantize import quantize_mxfp8

#: 14 blocks of 32, two equal halves and no multiple of a tile's depth; 6 experts, of which a token takes 2.
K, N, EXPERTS, TOP_K = 448, 72, 6, 2
#: 90 blocks: more than the lanes of two warps.
WIDE = 2880

_RESTS_ON = "on the executor, for sm_120a: ptxas and the chip are assumed to follow the PTX manual"
_LAYOUT = "128x4"


def kernel_subjects() -> Iterator[Subject]:
    """A subject for each kernel by which a token has a result, with the tiles and layouts that may be chosen for it."""
    yield _of_tokens("mxfp8_quantize", _quantize, ways=("linear", "128x4", "8x4"))
    yield _of_tokens("nvfp4_quantize", _nvfp4, ways=("linear", "128x4"))
    yield _of_tokens("block_fp8_quantize", _block_fp8)
    yield _of_tokens("block_fp8_quantize-128x128", _block_fp8_tiles)
    yield _of_tokens("q8_1_quantize", _q8_1)
    for output in ("mxfp8", "nvfp4", "fp8_token", "copy"):
        yield _routed(f"expand-{output}", partial(_expand, output), "expand")
    yield _routed("activation", _activation, "activation", draw=_gates, ways=("128x4", "8x4"))
    yield _routed("swiglu_q8_1", _swiglu_q8_1, "swiglu_q8_1", draw=_gates)
    tiles = ("", *(str(tile) for tile in TILES))
    yield _routed("sm12x_gemm", _gemm, "sm12x_gemm", draw=_gemm_rows, ways=tiles)
    narrow = ("", *(str(tile) for tile in nvfp4_gemm.TILES))
    yield _routed("sm12x_nvfp4_gemm", _nvfp4_gemm, "sm12x_nvfp4_gemm", draw=_nvfp4_rows, ways=narrow)
    yield _routed("deepseek_gemm", _deepseek_gemm, "deepseek_gemm", draw=_deepseek_rows, ways=("8", "16", "32", "64"))
    yield _routed("dp4a_gemv", _dp4a, "dp4a_gemv", draw=_dp4a_rows, most=8)
    yield _routed("finalize", _finalize, "finalize", draw=_choices)
    yield _routed("finalize_q8_1", _finalize_q8_1, "finalize_q8_1", draw=_choices)
    finite = tuple(kind for kind in NEIGHBOURS if kind != "special")  # a router refuses logits of NaN
    yield Subject("kernel/routing", _logits, _routing, _RESTS_ON, kinds=finite, source="routing")
    yield _layer("moe", Shape(1, 128, EXPERTS, TOP_K, 64), ways=("separate", "fused"), option="path")
    shape = Shape(1, WIDE, 3, 1, 32)
    for path in ("dp4a", "llama_cpp"):
        yield _layer("integer_moe", shape, most=8, name=f"integer_moe-{path}", path=path)
    yield _layer("deepseek_moe", Shape(1, 128, EXPERTS, TOP_K, 128), router="given")
    yield _deepseek_router()


@cache
def _device() -> Device:
    return open_device("ptx")


def _of_tokens(name: str, run: Callable[[Arrays, str], Arrays], ways: tuple[str, ...] = ("",)) -> Subject:
    """A kernel that takes rows of tokens."""
    return Subject(f"kernel/{name}", _rows, run, _RESTS_ON, ways, source=name.partition("-")[0])


def _rows(kind: str, seed: int, tokens: int) -> Arrays:
    return {"x": token_values(kind, seed, tokens, K)}


def _routed(name: str, run: Any, source: str, draw: Any = None, **settings: Any) -> Subject:
    draw = draw or partial(draw_routed, K, EXPERTS, TOP_K)
    return Subject(f"kernel/{name}", draw, run, _RESTS_ON, experts="ids", source=source, **settings)


# --- quantization ----------------------------------------------------------------------------------------------------


def _quantize(batch: Arrays, way: str) -> Arrays:
    x = batch["x"]
    made = quantize.quantize_mxfp8(x, device=_device(), layout=way)
    return {"codes": made.codes, "scales": unswizzle_scales(made.scales, (len(x), K // MX_BLOCK), way)}


def _nvfp4(batch: Arrays, way: str) -> Arrays:
    """Under one global scale: one taken from the batch's largest element would be every token's."""
    x = batch["x"]
    made = nvfp4.quantize_nvfp4(x, global_encode_scale=np.float32(3.0), device=_device(), layout=way)
    return {"codes": made.codes, "scales": unswizzle_scales(made.scales, (len(x), K // NVFP4.block), way)}


def _block_fp8(batch: Arrays, way: str) -> Arrays:
    made = block_fp8.quantize_block_fp8(batch["x"], device=_device())
    return {"codes": made.codes, "scales": made.scales.reshape(len(batch["x"]), -1)}


def _block_fp8_tiles(batch: Arrays, way: str) -> Arrays:
    made = block_fp8.quantize_block_fp8(batch["x"], device=_device(), block="128x128")
    return {"codes": made.codes}


def _q8_1(batch: Arrays, way: str) -> Arrays:
    return _of_q8_1(q8_1.quantize_q8_1(batch["x"], device=_device()), len(batch["x"]))


def _of_q8_1(made: Q8Tensor, tokens: int) -> Arrays:
    return {name: np.asarray(getattr(made, name)).reshape(tokens, -1) for name in ("codes", "d", "s")}


# --- rows in expert order --------------------------------------------------------------------------------------------


def _sorted(ids: NDArray[np.int32], experts: int = EXPERTS) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of one expert each by expert: their order, and the first row of each expert, then their number."""
    order = np.argsort(ids[:, 0], kind="stable")
    counts = np.bincount(ids[:, 0], minlength=experts)
    return order, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _unsorted(order: NDArray[np.int64], rows: NDArray[Any]) -> NDArray[Any]:
    out = np.empty_like(rows)
    out[order] = rows
    return out


def _grouped(offsets: NDArray[np.int64], blocks: int, layout: str = _LAYOUT) -> GroupedScales:
    return GroupedScales("scales", layout, offsets, blocks)


def _expand(output: str, batch: Arrays, way: str) -> Arrays:
    ids, tokens = batch["ids"], len(batch["ids"])
    maps = build_permutation(ids, EXPERTS, 0)
    where = maps.unpermuted_to_permuted.reshape(TOP_K, tokens).T
    arguments = (batch["x"], ids, maps.unpermuted_to_permuted, maps.offsets)
    made: Any
    if output == "mxfp8":
        made = expand(*arguments, device=_device())
    else:
        scale = np.ones(EXPERTS, np.float32) * 3 if output == "nvfp4" else None
        made = expand_as(*arguments, output, device=_device(), encode_scale=scale)
    results = {"codes": made.codes[where]}
    if output in ("mxfp8", "nvfp4"):
        block = MX_BLOCK if output == "mxfp8" else NVFP4.block
        results["scales"] = _grouped(maps.offsets, K // block).linear(made.scales)[where]
    elif made.scales is not None:
        results["scales"] = made.scales.reshape(-1, 4)[where]
    return results


def _gates(kind: str, seed: int, tokens: int) -> Arrays:
    return {"gate_up": token_values(kind, seed, tokens, 2 * K), "ids": token_experts(seed, tokens, EXPERTS, 1)}


@cache
def _parameters() -> Mapping[str, Any]:
    experts = np.arange(EXPERTS)
    values = {"swiglu_alpha": 1.702 - experts / 8, "swiglu_beta": 1 + experts / 4, "swiglu_limit": 7.0 - experts}
    return {name: value.astype(np.float32) for name, value in values.items()}


def _activation(batch: Arrays, way: str) -> Arrays:
    order, offsets = _sorted(batch["ids"])
    gate_up = np.ascontiguousarray(batch["gate_up"][order])
    made = activation.swiglu_quantize(gate_up, offsets, device=_device(), layout=way, **_parameters())
    scales = _grouped(offsets, K // MX_BLOCK, way).linear(made.scales)[: len(order)]
    return {"codes": _unsorted(order, made.codes), "scales": _unsorted(order, scales)}


def _swiglu_q8_1(batch: Arrays, way: str) -> Arrays:
    order, offsets = _sorted(batch["ids"])
    gate_up = np.ascontiguousarray(batch["gate_up"][order])
    made = swiglu_q8_1.swiglu_q8_1(gate_up, offsets, device=_device(), **_parameters())
    return {name: _unsorted(order, rows) for name, rows in _of_q8_1(made, len(order)).items()}


# --- products --------------------------------------------------------------------------------------------------------


def _gemm_rows(kind: str, seed: int, tokens: int) -> Arrays:
    made = quantize_mxfp8(token_values(kind, seed, tokens, K))
    return {"codes": made.codes, "scales": made.scales, "ids": token_experts(seed, tokens, EXPERTS, 1)}


@cache
def _mxfp4_weights(n: int, k: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    draw = Draw("batching-weights", n, k)
    codes = draw.integers(256, (EXPERTS, n, k // 2)).astype(np.uint8)
    scales = (118 + draw.integers(5, (EXPERTS, n, k // MX_BLOCK))).astype(np.uint8)
    return mirrored_codes(codes), mirrored(scales)


@cache
def _terms() -> Mapping[str, Any]:
    draw = Draw("batching-terms")
    bias = (draw.normal((EXPERTS, N)) * np.exp2(-20)).astype(ml_dtypes.bfloat16)
    return {"alpha": (1 + np.arange(EXPERTS) / 3).astype(np.float32), "bias": bias}


def _gemm(batch: Arrays, way: str) -> Arrays:
    order, offsets = _sorted(batch["ids"])
    codes, scales = _mxfp4_weights(N, K)
    laid_out = _grouped(offsets, K // MX_BLOCK).buffer(batch["scales"][order], len(order), 0)
    out = gemm.grouped_gemm(
        np.ascontiguousarray(batch["codes"][order]), laid_out, codes, swizzle_weight_scales(scales), offsets,
        device=_device(), tile=way or None, out_dtype="f32", **_terms(),
    )  # fmt: skip
    return {"out": _unsorted(order, out)}


def _nvfp4_rows(kind: str, seed: int, tokens: int) -> Arrays:
    made = quantize_nvfp4(token_values(kind, seed, tokens, K), global_encode_scale=np.float32(3.0))
    return {"codes": made.codes, "scales": made.scales, "ids": token_experts(seed, tokens, EXPERTS, 1)}


def _nvfp4_gemm(batch: Arrays, way: str) -> Arrays:
    order, offsets = _sorted(batch["ids"])
    codes, _ = _mxfp4_weights(N, K)
    scales = mirrored((40 + Draw("batching-nvfp4").integers(40, (EXPERTS, N, K // NVFP4.block))).astype(np.uint8))
    laid_out = _grouped(offsets, K // NVFP4.block).buffer(batch["scales"][order], len(order), 0)
    out = nvfp4_gemm.nvfp4_grouped_gemm(
        np.ascontiguousarray(batch["codes"][order]), laid_out, codes, swizzle_weight_scales(scales), offsets,
        device=_device(), tile=way or None, out_dtype="f32", **_terms(),
    )  # fmt: skip
    return {"out": _unsorted(order, out)}


#: Of the product in block FP8: three blocks of 128.
_DEEPSEEK_K, _DEEPSEEK_N = 384, 128


def _deepseek_rows(kind: str, seed: int, tokens: int) -> Arrays:
    made = quantize_block_fp8(token_values(kind, seed, tokens, _DEEPSEEK_K))
    return {"codes": made.codes, "scales": made.scales, "ids": token_experts(seed, tokens, EXPERTS, 1)}


@cache
def _fp8_weights() -> Any:
    values = Draw("batching-fp8").normal((EXPERTS * _DEEPSEEK_N, _DEEPSEEK_K)).astype(np.float32)
    made = quantize_block_fp8(values, block="128x128")
    shape = (EXPERTS, _DEEPSEEK_N, _DEEPSEEK_K)
    return made.codes.reshape(shape), made.scales.reshape(EXPERTS, 1, -1)


def _deepseek_gemm(batch: Arrays, way: str) -> Arrays:
    order, offsets = _sorted(batch["ids"])
    codes, scales = _fp8_weights()
    rows = np.ascontiguousarray(batch["codes"][order])
    laid_out = np.ascontiguousarray(batch["scales"][order])
    out = deepseek_gemm.deepseek_gemm(
        rows, laid_out, codes, scales, offsets, device=_device(), tile_m=int(way), out_dtype="f32"
    )
    return {"out": _unsorted(order, out)}


def _dp4a_rows(kind: str, seed: int, tokens: int) -> Arrays:
    made = quantize_q8_1(token_values(kind, seed, tokens, WIDE))
    return {"codes": made.codes, "d": made.d, "ids": token_experts(seed, tokens, EXPERTS, TOP_K)}


def _dp4a(batch: Arrays, way: str) -> Arrays:
    codes, scales = _mxfp4_weights(16, WIDE)
    tokens = len(batch["ids"])
    out = dp4a.dp4a_gemv(
        batch["codes"], batch["d"], codes, scales, batch["ids"], device=_device(), out_dtype=np.float32
    )
    return {"out": out.reshape(TOP_K, tokens, -1).transpose(1, 0, 2)}


# --- sums and choices ------------------------------------------------------------------------------------------------


def _choices(kind: str, seed: int, tokens: int) -> Arrays:
    rows = token_values(kind, seed, tokens * TOP_K, K).reshape(tokens, TOP_K, K)
    return {
        "rows": rows,
        "ids": token_experts(seed, tokens, EXPERTS, TOP_K),
        "weights": token_weights(seed, tokens, TOP_K),
    }


def _sums(batch: Arrays) -> tuple[tuple[NDArray[Any], ...], Mapping[str, Any]]:
    """Arguments of a finalize: rows in expert order, where each choice's row is, the weights; and the bias."""
    tokens = len(batch["ids"])
    rows_of = build_permutation(batch["ids"], EXPERTS, 0).unpermuted_to_permuted
    rows = np.empty((tokens * TOP_K, K), ml_dtypes.bfloat16)
    rows[rows_of] = batch["rows"].transpose(1, 0, 2).reshape(tokens * TOP_K, K)
    bias = Draw("batching-bias").normal((EXPERTS, K)).astype(ml_dtypes.bfloat16)
    return (rows, rows_of, batch["weights"]), {"topk_ids": batch["ids"], "bias": bias}


def _finalize(batch: Arrays, way: str) -> Arrays:
    arguments, biased = _sums(batch)
    return {"out": finalize.finalize(*arguments, device=_device(), **biased)}


def _finalize_q8_1(batch: Arrays, way: str) -> Arrays:
    arguments, biased = _sums(batch)
    return _of_q8_1(finalize_q8_1.finalize_q8_1(*arguments, device=_device(), **biased), len(batch["ids"]))


def _logits(kind: str, seed: int, tokens: int) -> Arrays:
    return {"logits": token_values(kind, seed, tokens, 40).astype(np.float32)}


def _routing(batch: Arrays, way: str) -> Arrays:
    made = routing.route(batch["logits"], 4, 40, device=_device())
    return {"topk_ids": made.topk_ids, "topk_weights": made.topk_weights}


# --- layers ----------------------------------------------------------------------------------------------------------


def _layer(
    family: str, shape: Shape, ways: tuple[str, ...] = ("",), option: str = "", name: str = "", most: int = 64,
    depends: str = "", **options: Any,
) -> Subject:  # fmt: skip
    """A whole layer, every launch of it; its family makes the weights."""
    return Subject(
        f"kernel/{name or family}",
        partial(draw_routed, shape.k, shape.e, shape.t),
        partial(_run_layer, family, shape, option, options),
        _RESTS_ON,
        ways,
        most,
        experts="ids",
        source=family,
    )


def _deepseek_router() -> Subject:
    """The DeepSeek layer with its router, which takes logits."""
    shape = Shape(1, 128, 8, TOP_K, 128)
    options: dict[str, Any] = {"router": "logits", "groups": 4, "top_groups": 2}

    def draw(kind: str, seed: int, tokens: int) -> Arrays:
        logits = token_values("random", seed, tokens, shape.e).astype(np.float32)
        return {"x": token_values(kind, seed, tokens, shape.k), "logits": logits}

    def run(batch: Arrays, way: str) -> Arrays:
        size = Shape(len(batch["x"]), shape.k, shape.e, shape.t, shape.n)
        case = FAMILIES["deepseek_moe"].case("gaussian", size, **options)
        weights = _layer_weights("deepseek_moe", shape, tuple(options.items()))
        outputs = case.family.run(case, {**weights, **batch}, _device())
        return {"out": outputs["finalize.out"].reshape(len(batch["x"]), -1)}

    return Subject("kernel/deepseek_moe-router", draw, run, _RESTS_ON, source="deepseek_moe")


def _run_layer(family: str, shape: Shape, option: str, options: Mapping[str, Any], batch: Arrays, way: str) -> Arrays:
    chosen = {**options, **({option: way} if option else {})}
    size = Shape(len(batch["x"]), shape.k, shape.e, shape.t, shape.n)
    case = FAMILIES[family].case("gaussian", size, **chosen)
    given = {"x": batch["x"], "topk_ids": batch["ids"], "topk_weights": batch["weights"]}
    outputs = case.family.run(case, {**_layer_weights(family, shape, tuple(chosen.items())), **given}, _device())
    return {"out": outputs["finalize.out"].reshape(len(batch["x"]), -1)}


@cache
def _layer_weights(family: str, shape: Shape, options: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    case = FAMILIES[family].case("gaussian", shape, **dict(options))
    inputs = dict(case.family.inputs(case))
    if inputs["gate_up"].dtype == np.uint8 and "gate_up_scales" in inputs and family != "deepseek_moe":
        inputs["gate_up"] = mirrored_codes(inputs["gate_up"])
        inputs["gate_up_scales"] = mirrored(inputs["gate_up_scales"])
    return inputs
