"""Whole layers: equal to the specification of one token, what must hold exactly, backends, refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.fp32_values import BF16, bits, same_bytes
from support.moe import random_layer, random_tokens

from refmoe.errors import ArgumentError
from refmoe.formats import BF16 as BF16_FORMAT
from refmoe.formats import E2M1
from refmoe.reference import (
    BACKENDS,
    MoELayer,
    MoEStages,
    MXTensor,
    choose_backend,
    grouped_gemm,
    moe_float64,
    moe_layer,
    path_steps,
    quantize_mxfp8,
    swizzle_scales,
    unpack_fp4,
)  # fmt: skip
from refmoe.reference.mma import MODELS, Evidence
from refmoe.reference.q8_1 import Q8Tensor, quantize_q8_1
from refmoe.reference.scalar.arithmetic import cast
from refmoe.reference.scalar.gemm import Fused, Row
from refmoe.reference.scalar.moe import Expert, integer_token, moe_token
from refmoe.reference.scalar.q8_1 import Block, quantize_block

FUSED = {"sm120": Fused(32, 25, 23), "sm90_mma": Fused(16, 25, 23)}


def rows_of(tensor: MXTensor, expert: int) -> list[Row]:
    codes, scales = unpack_fp4(np.ascontiguousarray(tensor.codes[expert])), tensor.scales[expert]
    return [Row(c, s, E2M1) for c, s in zip(codes.tolist(), scales.tolist(), strict=True)]


@pytest.mark.parametrize(("path", "model"), [("cutlass", "sm120"), ("marlin", "sm90_mma")])
@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
def test_equals_the_specification(path: str, model: str, variant: str) -> None:
    """The whole layer, one token in exact rationals."""
    rng = np.random.default_rng(11)
    layer = random_layer(rng, experts=3, hidden=32, intermediate=32, top_k=2, variant=variant, spread=2.0)
    x = random_tokens(rng, 1, 32, outliers=20.0)
    found = moe_layer(x, layer, path=path, stages=True)
    assert found.model == model
    routing = found.stages["routing"]
    chosen = [
        Expert(rows_of(layer.gate_up, e), bits(layer.gate_up_bias[e]), rows_of(layer.down, e), bits(layer.down_bias[e]))
        for e in routing["ids"][0]
    ]
    weights = bits(routing["weights"])[0]
    wanted = moe_token(bits(x)[0], chosen, weights, FUSED[model], mxfp8=path == "cutlass", variant=variant)
    assert same_bytes(found.output, [wanted])


def experts_of(layer: MoELayer, ids: np.ndarray) -> list[Expert]:
    return [
        Expert(rows_of(layer.gate_up, e), bits(layer.gate_up_bias[e]), rows_of(layer.down, e), bits(layer.down_bias[e]))
        for e in ids
    ]


def blocks_of(values: list[int]) -> list[Block]:
    return [quantize_block(values[start : start + 32], "llama_cpp_mmvq") for start in range(0, len(values), 32)]


def same_blocks(tensor: Q8Tensor, row: int, wanted: list[Block]) -> bool:
    """Whether a row of Q8_1 has these codes, scales and sums."""
    found = tensor.codes[row].tolist(), tensor.d.view(np.uint16)[row].tolist(), tensor.s.view(np.uint16)[row].tolist()
    return found == ([c for each in wanted for c in each.codes], [b.d for b in wanted], [b.s for b in wanted])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
@pytest.mark.parametrize("path", ["dp4a", "llama_cpp"])
def test_integer_paths_equal_the_specification(path: str, variant: str) -> None:
    """The whole layer, each token in exact rationals; of a batch of 5, which adds up with 2 warps."""
    rng = np.random.default_rng(13)
    layer = random_layer(rng, experts=3, hidden=64, intermediate=32, top_k=2, variant=variant, spread=2.0)
    x = random_tokens(rng, 5, 64, outliers=20.0)
    found = moe_layer(x, layer, path=path, stages=True)
    for token in (0, 4):
        chosen = experts_of(layer, found.stages["routing"]["ids"][token])
        weights = bits(found.stages["routing"]["weights"])[token]
        tokens = blocks_of(bits(x)[token])
        sums = integer_token(tokens, chosen, weights, tokens=5, bf16=path == "dp4a", variant=variant)
        assert same_bytes(found.output[token : token + 1], [[cast(value, BF16_FORMAT) for value in sums]])


def test_two_layers_with_q8_1_between_them_equal_the_specification() -> None:
    rng = np.random.default_rng(14)
    layers = [random_layer(rng, experts=3, hidden=64, intermediate=32, top_k=2) for _ in range(2)]
    x, ids = random_tokens(rng, 2, 64, outliers=20.0), np.array([[0, 2], [1, 0]], np.int32)
    given = {"path": "llama_cpp", "topk_ids": ids, "topk_weights": rng.random((2, 2), np.float32)}
    between = moe_layer(x, layers[0], output="q8_1", **given)
    after = moe_layer(between, layers[1], quantization="ready", **given)
    # One token of the two: in exact rationals it takes seconds.
    token = 1
    weights = bits(given["topk_weights"])[token]
    sums = integer_token(blocks_of(bits(x)[token]), experts_of(layers[0], ids[token]), weights, tokens=2, bf16=False)
    blocks = blocks_of(sums)
    assert same_blocks(between, token, blocks)
    sums = integer_token(blocks, experts_of(layers[1], ids[token]), weights, tokens=2, bf16=False)
    assert same_bytes(after[token : token + 1], [[cast(value, BF16_FORMAT) for value in sums]])


def test_a_chain_gives_the_stages_of_its_path() -> None:
    rng = np.random.default_rng(15)
    layer, x = random_layer(rng), random_tokens(rng, 3)
    first = moe_layer(x, layer, path="llama_cpp", output="q8_1", stages=True)
    plain = moe_layer(x, layer, path="llama_cpp", stages=True)
    ready = moe_layer(first.q8_1, layer, path="llama_cpp", quantization="ready", **routed(first), stages=True)
    assert list(first.stages) == [step.stage for step in path_steps("llama_cpp", output="q8_1")]
    assert list(ready.stages) == [step.stage for step in path_steps("llama_cpp", "ready")]
    assert "quantize" not in ready.stages
    # Nothing but finalize differs, and its codes are those of the FP32 sums, which BF16 has rounded.
    for stage in ("routing", "quantize", "gemm1", "activation", "gemm2"):
        for name, array in first.stages[stage].items():
            assert array.tobytes() == plain.stages[stage][name].tobytes()
    rounded = quantize_q8_1(plain.output)
    assert 0 < np.abs(rounded.codes.astype(int) - first.q8_1.codes).max() <= 1
    # Tokens that are ready give what tokens of the same codes give that the path quantizes itself.
    tokens = Q8Tensor(**plain.stages["quantize"])
    again = moe_layer(tokens, layer, path="llama_cpp", quantization="ready", **routed(plain))
    assert again.tobytes() == plain.output.tobytes()
    with pytest.raises(ArgumentError, match="output: found a layer whose output is Q8_1"):
        _ = first.output
    with pytest.raises(ArgumentError, match="q8_1: found a layer whose output is BF16"):
        _ = plain.q8_1


def routed(stages: MoEStages) -> dict[str, np.ndarray]:
    return {"topk_ids": stages.stages["routing"]["ids"], "topk_weights": stages.stages["routing"]["weights"]}


@pytest.mark.parametrize("top_k", [1, 4])
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_quantizing_apart_in_expand_or_beforehand_is_the_same(top_k: int, tokens: int) -> None:
    """Every stage that they share, byte for byte."""
    rng = np.random.default_rng(top_k)
    layer, x = random_layer(rng, top_k=top_k), random_tokens(rng, tokens)
    separate = moe_layer(x, layer, stages=True)
    fused = moe_layer(x, layer, quantization="fused", stages=True)
    ready = quantize_mxfp8(x)
    given = moe_layer(ready.codes, layer, quantization="ready", input_sf=ready.scales, **routed(separate), stages=True)
    assert separate.output.shape == (tokens, 64)
    for stage in ("expand", "gemm1", "activation", "gemm2", "finalize"):
        for name, array in separate.stages[stage].items():
            for other in (fused, given):
                assert array.tobytes() == other.stages[stage][name].tobytes(), (stage, name)


@pytest.mark.parametrize("path", [name for name, backend in BACKENDS.items() if "mxfp4" in backend.weights])
def test_a_token_depends_on_no_other(path: str) -> None:
    """Alone, and with its neighbours exchanged."""
    rng = np.random.default_rng(2)
    layer, x = random_layer(rng), random_tokens(rng, 6, outliers=30.0)
    together = moe_layer(x, layer, path=path)
    for token in range(6):
        assert moe_layer(x[token : token + 1], layer, path=path).tobytes() == together[token].tobytes()
    order = rng.permutation(6)
    assert moe_layer(np.ascontiguousarray(x[order]), layer, path=path).tobytes() == together[order].tobytes()


@pytest.mark.parametrize("path", ["cutlass", "triton"])
def test_relabelled_experts_give_the_same_output(path: str) -> None:
    rng = np.random.default_rng(3)
    layer, x = random_layer(rng), random_tokens(rng, 5)
    order = rng.permutation(layer.experts)

    def relabelled(tensor: MXTensor) -> MXTensor:
        return MXTensor(tensor.codes[order], tensor.scales[order], tensor.format)

    other = dataclasses.replace(
        layer, gate_up=relabelled(layer.gate_up), down=relabelled(layer.down),
        gate_up_bias=layer.gate_up_bias[order], down_bias=layer.down_bias[order],
        router_weight=layer.router_weight[order], router_bias=layer.router_bias[order],
    )  # fmt: skip
    assert moe_layer(x, other, path=path).tobytes() == moe_layer(x, layer, path=path).tobytes()


@pytest.mark.parametrize("path", ["cutlass", "marlin"])
def test_a_rank_computes_its_experts_rows(path: str) -> None:
    """Rows of GEMM2 on ranks of 2 and 4 experts are those of the whole layer; a token of no local expert gives +0."""
    whole, parts = random_layer(np.random.default_rng(4)), []
    x = random_tokens(np.random.default_rng(5), 5)
    everything = moe_layer(x, whole, path=path, stages=True)
    where = everything.stages["routing"]["unpermuted_to_permuted"]
    rows = everything.stages["gemm2"]["out"][where]
    for first, count in ((0, 2), (2, 4)):
        rank = random_layer(np.random.default_rng(4), local=(first, count))
        found = moe_layer(x, rank, path=path, first_expert=first, **routed(everything), stages=True)
        mine = found.stages["routing"]["unpermuted_to_permuted"]
        assert found.stages["gemm2"]["out"][mine[mine >= 0]].tobytes() == rows[mine >= 0].tobytes()
        parts.append(mine >= 0)
    assert (parts[0] ^ parts[1]).all()
    nowhere = random_layer(np.random.default_rng(4), local=(0, 2))
    ids = np.full((1, 3), 9, np.int32) + np.arange(3, dtype=np.int32)
    out = moe_layer(x[:1], nowhere, topk_ids=ids, topk_weights=np.ones((1, 3), np.float32))
    assert not out.view(np.uint16).any()


def test_experts_without_tokens_and_one_expert_for_all() -> None:
    layer = random_layer(np.random.default_rng(6), top_k=1)
    x = random_tokens(np.random.default_rng(7), 4)
    ids, ones = np.full((4, 1), 5, np.int32), np.ones((4, 1), np.float32)
    found = moe_layer(x, layer, topk_ids=ids, topk_weights=ones, stages=True)
    assert found.stages["routing"]["offsets"].tolist() == [0] * 6 + [4]
    assert found.output.tobytes() == found.stages["finalize"]["out"].tobytes()


def test_stages_are_those_of_the_path() -> None:
    rng = np.random.default_rng(8)
    layer, x = random_layer(rng), random_tokens(rng, 3)
    for path, quantization in (("cutlass", "separate"), ("cutlass", "fused"), ("MARLIN", "separate")):
        found = moe_layer(x, layer, path=path, quantization=quantization, stages=True)
        assert list(found.stages) == [step.stage for step in path_steps(path, quantization)]
    quantized = quantize_mxfp8(x)
    stages = moe_layer(x, layer, stages=True).stages
    assert stages["quantize"]["codes"].tobytes() == quantized.codes.tobytes()
    # The scales that expand writes are those of the layout: the first expert with rows has base row 0 or more.
    assert swizzle_scales(quantized.scales).size < stages["expand"]["scales"].size


def test_conversions_are_what_the_paths_of_servers_have() -> None:
    """Around one GEMM: three, and separate or fused differ by a step, not by a conversion."""
    separate, fused, marlin = (path_steps(*name) for name in (("cutlass",), ("cutlass", "fused"), ("marlin",)))
    upto_gemm1 = [[c for step in steps[: stop] for c in step.conversions] for steps, stop in
                  ((separate, 4), (fused, 3), (marlin, 3))]  # fmt: skip
    assert upto_gemm1[0] == upto_gemm1[1] == ["BF16 -> MXFP8", "MXFP8 x MXFP4 -> FP32", "FP32 -> BF16"]
    assert upto_gemm1[2] == ["FP4 -> BF16", "BF16 x BF16 -> FP32", "FP32 -> BF16"]
    assert len(separate) == len(fused) + 1


def test_integer_paths_have_six_conversions_and_four() -> None:
    """Those of one GEMM in the steady state."""
    for path, wanted in (
        (
            "dp4a",
            ["BF16 -> FP32", "FP32 -> INT8", "FP4 -> INT8", "INT8 x INT8 -> INT32", "INT32 -> FP32", "FP32 -> BF16"],
        ),
        ("llama_cpp", ["FP32 -> Q8_1", "FP4 -> INT8", "INT8 x INT8 -> INT32", "INT32 -> FP32"]),
    ):
        conversions = {step.stage: list(step.conversions) for step in path_steps(path)}
        assert conversions["quantize"] + conversions["gemm1"] == wanted
        assert conversions["activation"] + conversions["gemm2"] == wanted


@pytest.mark.parametrize("path", ["dp4a", "llama_cpp"])
def test_integer_paths_lie_near_the_formula(path: str) -> None:
    rng = np.random.default_rng(12)
    layer, x = random_layer(rng), random_tokens(rng, 5)
    exact = moe_float64(x, layer)

    def error(name: str) -> float:
        return float(np.linalg.norm(moe_layer(x, layer, path=name).astype(np.float64) - exact))

    assert error(path) < error("cutlass") / 2  # int8 has about 4 bits more than E4M3 where a block's sizes are alike
    assert moe_layer(x, layer, path=path, stages=True).evidence is Evidence.DEFINITION
    with pytest.raises(ArgumentError, match=f"model: found exact with {path}; needed None"):
        moe_layer(x, layer, path=path, model="exact")


def test_backends() -> None:
    assert choose_backend("TrtLlm_MXFP8").name == "trtllm_mxfp8"
    assert set(BACKENDS["marlin"].architectures) == {"sm_90a", "sm_100a", "sm_120a", "sm_121a"}
    assert set(BACKENDS["triton"].architectures) == {"sm_90a", "sm_100a"}
    for backend in BACKENDS.values():
        pairs = {"mxfp8": ("e2m1", "e4m3"), "nvfp4": ("e2m1", "e2m1"), "block_fp8": ("e4m3", "e4m3")}
        pair = pairs.get(backend.activations, ("bf16", "bf16"))
        for accumulation in backend.accumulation.values():
            assert pair in MODELS[accumulation.model].pairs
    assert BACKENDS["marlin"].accumulation["sm_90a"].evidence is Evidence.HARDWARE
    assert BACKENDS["marlin"].accumulation["sm_120a"].evidence is Evidence.EXTRAPOLATED
    assert BACKENDS["cutlass"].accumulation["sm_100a"].evidence is Evidence.PUBLISHED
    with pytest.raises(ArgumentError, match="trtllm, which serves sm_100a; needed one that serves sm_121a: cutlass, m"):
        choose_backend("TRTLLM", "sm_121a")


def test_model_and_evidence_are_stated() -> None:
    rng = np.random.default_rng(9)
    layer, x = random_layer(rng), random_tokens(rng, 2)
    assert moe_layer(x, layer, stages=True).evidence is Evidence.EXTRAPOLATED
    exact = moe_layer(x, layer, model="exact", stages=True)
    assert (exact.model, exact.evidence) == ("exact", Evidence.DEFINITION)
    on_100 = moe_layer(x, layer, arch="sm_100a", stages=True)
    assert (on_100.model, on_100.evidence) == ("sm100", Evidence.PUBLISHED)
    assert moe_layer(x, layer, path="marlin", model="fp32", stages=True).evidence is Evidence.DEFINITION


X, K3 = np.zeros((2, 64), BF16), {"topk_ids": np.array([[0, 1, 2]] * 2, np.int32)}
W3 = {"topk_weights": np.ones((2, 3), np.float32)}


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"path": "vllm"}, "backend"),
        ({"path": "triton", "arch": "sm_120a"}, "backend"),
        ({"arch": "sm_80"}, "arch"),
        ({"quantization": "later"}, "quantization"),
        ({"path": "marlin", "quantization": "fused"}, "quantization"),
        ({"path": "trtllm_mxfp8", "quantization": "ready"}, "quantization"),
        ({"x": np.zeros((2, 64), np.float32)}, "x"),
        ({"x": np.zeros((2, 32), BF16)}, "x"),
        ({"x": np.zeros((2, 64), np.uint8), "quantization": "ready"}, "input_sf"),
        ({"quantization": "ready"}, "x"),
        (
            {"x": np.zeros((2, 64), np.uint8), "quantization": "ready", "input_sf": np.zeros((2, 2), np.uint8)},
            "topk_ids",
        ),
        ({"input_sf": np.zeros((2, 2), np.uint8)}, "input_sf"),
        (K3, "topk_weights"),
        (W3, "topk_ids"),
        ({**W3, "topk_ids": np.zeros((2, 2), np.int32)}, "topk_ids"),
        ({**W3, "topk_ids": np.zeros((2, 3), np.int32)}, "topk_ids"),
        ({"output": "f32"}, "output"),
        ({"output": "q8_1"}, "output"),
        ({"path": "dp4a", "output": "q8_1"}, "output"),
        ({"path": "dp4a", "quantization": "ready"}, "quantization"),
        ({"path": "llama_cpp", "quantization": "fused"}, "quantization"),
        ({"path": "llama_cpp", "quantization": "ready"}, "x"),
        ({"path": "llama_cpp", "quantization": "ready", "x": quantize_q8_1(X[:, :32])}, "x"),
        ({"path": "llama_cpp", "quantization": "ready", "x": quantize_q8_1(X)}, "topk_ids"),
        (
            {"path": "llama_cpp", "quantization": "ready", "x": quantize_q8_1(X), "input_sf": np.zeros((2, 2))},
            "input_sf",
        ),
        ({"path": "llama_cpp", "x": quantize_q8_1(X)}, "x"),
        ({"model": "sm90_mma_f16acc"}, "weights"),
        ({"path": "marlin", "model": "sm120"}, "model"),
        ({"first_expert": -1}, "first_expert"),
        ({"mode": "up"}, "mode"),
        ({"x": np.full((2, 64), np.nan, BF16)}, "logits"),
    ],
)
def test_refused_arguments(arguments: dict, argument: str) -> None:
    layer = random_layer(np.random.default_rng(0))
    with pytest.raises(ArgumentError) as refused:
        moe_layer(**{"x": X, "layer": layer, **arguments})
    assert refused.value.argument == argument


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"gate_up": np.zeros((2, 64, 32), np.uint8)}, "gate_up"),
        ({"down": MXTensor(np.zeros((6, 64, 16), np.uint8), np.zeros((6, 64, 1), np.uint8), "mxfp4")}, "down"),
        ({"top_k": 0}, "top_k"),
        ({"variant": "relu"}, "variant"),
        ({"gate_up_bias": np.zeros((6, 64), BF16)}, "gate_up_bias"),
        ({"down_bias": np.zeros((6, 64), np.float32)}, "down_bias"),
        ({"router_weight": np.zeros((6, 32), BF16)}, "router_weight"),
        ({"router_weight": None}, "router_bias"),
        ({"router_bias": np.zeros(5, BF16)}, "router_bias"),
        ({"swiglu_alpha": np.zeros(5, np.float32)}, "swiglu_alpha"),
        ({"variant": "silu", "swiglu_limit": np.ones(6, np.float32)}, "swiglu_limit"),
    ],
)
def test_refused_layers(change: dict, argument: str) -> None:
    layer = random_layer(np.random.default_rng(0))
    with pytest.raises(ArgumentError) as refused:
        dataclasses.replace(layer, **change)
    assert refused.value.argument == argument


@pytest.mark.parametrize("activations", [np.zeros((2, 64), np.float32), np.zeros(64, BF16), np.zeros((2, 48), BF16)])
def test_gemm_refuses_other_plain_activations(activations: np.ndarray) -> None:
    layer = random_layer(np.random.default_rng(0))
    with pytest.raises(ArgumentError, match=r"activations: .* needed an MXTensor \[rows, K\] in mxfp8, or bfloat16"):
        grouped_gemm(activations, layer.gate_up, np.array([0, 2, 2, 2, 2, 2, 2], np.int64), model="sm90_mma")


def test_parameters_of_each_expert_reach_its_rows() -> None:
    rng = np.random.default_rng(10)
    layer, x = random_layer(rng, top_k=1), random_tokens(rng, 6)
    own = np.linspace(0.5, 3, 6).astype(np.float32)
    everyone: MoELayer = dataclasses.replace(layer, swiglu_alpha=own)
    ids, ones = np.arange(6, dtype=np.int32)[:, None], np.ones((6, 1), np.float32)
    for path in ("cutlass", "marlin"):
        found = moe_layer(x, everyone, path=path, topk_ids=ids, topk_weights=ones)
        for expert in range(6):
            same = dataclasses.replace(layer, swiglu_alpha=np.full(6, own[expert]))
            alone = moe_layer(
                x[expert : expert + 1], same, path=path, topk_ids=ids[expert : expert + 1], topk_weights=ones[:1]
            )
            assert alone.tobytes() == found[expert].tobytes()
