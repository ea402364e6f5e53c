"""The path deepseek_fp8: its steps are their own references, against the formula, and what must hold exactly."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.deepseek import random_expert, random_layer, random_tokens, random_weight

from refmoe.errors import ArgumentError
from refmoe.reference import BACKENDS, moe_float64, moe_layer, path_steps
from refmoe.reference.activation import swiglu
from refmoe.reference.block_fp8 import quantize_block_fp8
from refmoe.reference.deepseek.finalize import finalize_shared
from refmoe.reference.deepseek.layer import SYSTEMS, BlockFP8Expert, DeepSeekMoELayer, DeepSeekRules, as_rules
from refmoe.reference.deepseek.routing import route_sigmoid_grouped_topk
from refmoe.reference.deepseek.trtllm import quantize_activation, quantize_tokens
from refmoe.reference.deepseek_gemm import deepseek_gemm
from refmoe.reference.mma import Evidence
from refmoe.reference.routing import router_logits

PATH = "deepseek_fp8"


def staged(x: np.ndarray, layer: DeepSeekMoELayer, **options: Any) -> Any:
    return moe_layer(x, layer, path=PATH, stages=True, **options)


def test_stages_are_the_steps_one_after_the_other() -> None:
    """Written out again: every stage from the one before."""
    rng = np.random.default_rng(1)
    layer, x = random_layer(rng), random_tokens(rng, 7)
    found = staged(x, layer, arch="sm_120a")
    assert list(found.stages) == [step.stage for step in path_steps(PATH)]
    logits = router_logits(x, layer.router_weight)
    ids, weights = route_sigmoid_grouped_topk(logits, layer.correction_bias, 4, 4, 2, 2.5)
    routing = found.stages["routing"]
    assert (routing["ids"].tobytes(), routing["weights"].tobytes()) == (ids.tobytes(), weights.tobytes())
    tokens = quantize_block_fp8(x)
    by_choice = routing["unpermuted_to_permuted"].reshape(4, 7)
    for rank in range(4):
        for token in range(7):
            row, expert = by_choice[rank, token], layer.routed[ids[token, rank]]
            assert found.stages["expand"]["codes"][row].tobytes() == tokens.codes[token].tobytes()
            one = np.array([0, 1])
            gate_up = deepseek_gemm(
                tokens.codes[token : token + 1], tokens.scales[token : token + 1], expert.gate_up.codes[None],
                expert.gate_up.scales[None], one, model="sm120",
            )  # fmt: skip
            assert found.stages["gemm1"]["out"][row].tobytes() == gate_up.tobytes()
            inner = quantize_block_fp8(swiglu(gate_up, variant="silu"))
            assert found.stages["activation"]["codes"][row].tobytes() == inner.codes.tobytes()
            assert found.stages["activation"]["scales"][row].tobytes() == inner.scales.tobytes()
            down = deepseek_gemm(
                inner.codes, inner.scales, expert.down.codes[None], expert.down.scales[None], one, model="sm120"
            )
            assert found.stages["gemm2"]["out"][row].tobytes() == down.tobytes()
    shared = found.stages["shared"]["out"]
    out = finalize_shared(found.stages["gemm2"]["out"], routing["unpermuted_to_permuted"], weights, shared)
    assert found.output.tobytes() == out.tobytes()


@pytest.mark.parametrize("arch", BACKENDS[PATH].architectures)
def test_near_the_formula_by_every_chips_model(arch: str) -> None:
    """FP8 activations cost about 4 % of a product; nothing else may cost more."""
    rng = np.random.default_rng(2)
    layer, x = random_layer(rng), random_tokens(rng, 9)
    found = staged(x, layer, arch=arch)
    routing = found.stages["routing"]
    exact = moe_float64(x, layer, topk_ids=routing["ids"], topk_weights=routing["weights"])
    error = np.linalg.norm(found.output.astype(np.float64) - exact) / np.linalg.norm(exact)
    assert 0.01 < error < 0.08
    assert (found.arch, found.evidence) == (arch, BACKENDS[PATH].accumulation[arch].evidence)


def test_models_differ_and_say_what_they_rest_on() -> None:
    rng = np.random.default_rng(3)
    layer, x = random_layer(rng), random_tokens(rng, 9)
    outputs = {model: moe_layer(x, layer, path=PATH, model=model).tobytes() for model in ("sm120", "sm90_wgmma_fp8")}
    assert len(set(outputs.values())) == 2
    accumulation = BACKENDS[PATH].accumulation
    assert accumulation["sm_90a"].evidence is Evidence.HARDWARE
    assert accumulation["sm_100a"].evidence is Evidence.PUBLISHED
    assert staged(x, layer, model="sm90_mma_fp8").evidence is Evidence.HARDWARE


def test_a_rank_computes_its_experts_rows_and_ranks_add_up() -> None:
    """Rows of the second product on two ranks are the whole layer's; the shared expert is one rank's."""
    whole, x = random_layer(np.random.default_rng(4)), random_tokens(np.random.default_rng(5), 6)
    everything = staged(x, whole)
    routing = everything.stages["routing"]
    given = {"topk_ids": routing["ids"], "topk_weights": routing["weights"]}
    total = np.zeros(x.shape)
    for first in (0, 8):
        part = random_layer(np.random.default_rng(4), local=(first, 8), shared=first == 0)
        rank = staged(x, part, first_expert=first, **given)
        mine = rank.stages["routing"]["unpermuted_to_permuted"]
        here = mine >= 0
        rows = everything.stages["gemm2"]["out"][routing["unpermuted_to_permuted"][here]]
        assert rank.stages["gemm2"]["out"][mine[here]].tobytes() == rows.tobytes()
        assert bool(rank.stages["shared"]) == (first == 0)
        total += rank.output.astype(np.float64)
    assert np.linalg.norm(total - everything.output.astype(np.float64)) < 0.01 * np.linalg.norm(total)


def test_slices_of_the_intermediate_size_add_up() -> None:
    """Tensor parallelism: a rank has I / 2 of each expert, and the ranks' BF16 outputs add up to about the layer's."""
    rng = np.random.default_rng(6)
    layer, x = random_layer(rng, intermediate=256), random_tokens(rng, 5)
    whole = staged(x, layer)
    routing = whole.stages["routing"]

    def half(expert: BlockFP8Expert, number: int) -> BlockFP8Expert:
        inner = expert.intermediate // 2
        rows = np.arange(number * inner, (number + 1) * inner)
        both, tiles = (
            np.concatenate([rows, expert.intermediate + rows]),
            slice(number * inner // 128, (number + 1) * inner // 128),
        )
        places = np.unique(both // 128)
        gate_up = dataclasses.replace(
            expert.gate_up, codes=expert.gate_up.codes[both], scales=expert.gate_up.scales[places]
        )
        down = dataclasses.replace(
            expert.down,
            codes=np.ascontiguousarray(expert.down.codes[:, rows]),
            scales=np.ascontiguousarray(expert.down.scales[:, tiles]),
        )
        return BlockFP8Expert(gate_up, down)

    total = np.zeros(x.shape)
    for number in range(2):
        part = dataclasses.replace(
            layer,
            routed=[half(each, number) for each in layer.routed],
            intermediate=128,
            shared=half(layer.shared, number),
        )
        total += moe_layer(x, part, path=PATH, topk_ids=routing["ids"], topk_weights=routing["weights"]).astype(
            np.float64
        )
    assert np.linalg.norm(total - whole.output.astype(np.float64)) < 0.01 * np.linalg.norm(total)


def test_a_token_depends_on_no_other() -> None:
    rng = np.random.default_rng(7)
    layer, x = random_layer(rng), random_tokens(rng, 6)
    together = moe_layer(x, layer, path=PATH)
    for token in range(6):
        assert moe_layer(x[token : token + 1], layer, path=PATH).tobytes() == together[token].tobytes()


def test_only_experts_with_tokens_are_looked_up() -> None:
    rng = np.random.default_rng(8)
    layer, x = random_layer(rng), random_tokens(rng, 2)
    asked = []

    class Watched(list):
        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return super().__getitem__(index)

    watched = dataclasses.replace(layer, routed=Watched(layer.routed))
    found = staged(x, watched)
    assert set(asked) == set(found.stages["routing"]["ids"].reshape(-1).tolist())


def test_no_token_and_no_shared_expert() -> None:
    rng = np.random.default_rng(9)
    layer = random_layer(rng, shared=False)
    assert moe_layer(random_tokens(rng, 0), layer, path=PATH).shape == (0, 256)
    found = staged(random_tokens(rng, 3), layer)
    assert dict(found.stages["shared"]) == {}


def test_the_rules_of_tensorrt_llm_are_its_published_operations() -> None:
    """Quantizers, weights and order, each stage from the one before, under the model of SM100."""
    rng = np.random.default_rng(10)
    layer, x = random_layer(rng), random_tokens(rng, 5)
    found = staged(x, layer, arch="sm_100a", rules="trtllm")
    assert found.model == "sm100"
    tokens = quantize_tokens(x)
    assert found.stages["expand"]["token_codes"].tobytes() == tokens.codes.tobytes()
    inner = quantize_activation(swiglu(found.stages["gemm1"]["out"], variant="silu"))
    assert found.stages["activation"]["codes"].tobytes() == inner.codes.tobytes()
    assert found.stages["activation"]["scales"].tobytes() == inner.scales.tobytes()
    ours = staged(x, layer, arch="sm_100a")
    assert found.stages["routing"]["ids"].tobytes() == ours.stages["routing"]["ids"].tobytes()
    assert found.output.tobytes() != ours.output.tobytes()


def test_tensorrt_llms_quantizers_one_number_at_a_time() -> None:
    """Against NumPy's own float32 scalars, on zeros, tiny tiles and powers of two."""
    rng = np.random.default_rng(11)
    values = rng.standard_normal((6, 256)).astype(np.float32)
    values[1, :128] = 0
    values[2] *= np.float32(2.0**-140)
    values[3, 5] = 448
    values[4, 130] = 448 * 2.0**-126
    values[4, 128:] = np.clip(values[4, 128:], -(2.0**-119), 2.0**-119)
    for quantize, activation in ((quantize_tokens, False), (quantize_activation, True)):
        found = quantize(values)
        for row in range(6):
            for tile in range(2):
                part = values[row, 128 * tile : 128 * tile + 128]
                amax = np.abs(part).max()
                if activation:
                    scale = max(np.float32(amax / np.float32(448)), np.float32(2.0**-126))
                    scaled = part / scale
                else:
                    with np.errstate(over="ignore"):
                        factor = np.float32(448) / amax if amax else np.float32(1)
                        scale, scaled = np.float32(1) / factor, part * factor
                assert found.scales[row, tile].tobytes() == np.float32(scale).tobytes()
                wanted = quantize_block_fp8(np.zeros((1, 128), np.float32)).codes  # of the right shape
                nearest = np.clip(scaled, -448, 448).astype(np.float32)
                wanted = nearest.astype("float8_e4m3fn").view(np.uint8)
                assert found.codes[row, 128 * tile : 128 * tile + 128].tobytes() == wanted.tobytes()
        with pytest.raises(ArgumentError, match="needed finite numbers"):
            quantize(np.full((1, 128), np.nan, np.float32))


def test_systems_and_rules() -> None:
    assert as_rules(None) is SYSTEMS["refmoe"]
    assert as_rules("trtllm").order == "bf16"
    assert as_rules(DeepSeekRules(quantizer="exact")).quantizer == "exact"
    for wrong in ({"weights": "vllm"}, {"quantizer": "ocp"}, {"scales": "e8m0"}, {"order": "first"}):
        with pytest.raises(ArgumentError):
            DeepSeekRules(**wrong)
    with pytest.raises(ArgumentError, match="ue8m0 with the quantizer trtllm"):
        DeepSeekRules(quantizer="trtllm", scales="ue8m0")
    with pytest.raises(ArgumentError, match="needed DeepSeekRules, or one of refmoe, trtllm"):
        as_rules("sglang")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "cutlass"}, "layer: found block_fp8 weights with cutlass; needed .* one of the paths deepseek_fp8"),
        ({"model": "sm90_mma"}, "model: found sm90_mma with deepseek_fp8; needed a model with E4M3 on both sides"),
        ({"mode": "floor"}, "mode: found floor with deepseek_fp8"),
        ({"edge": "flashinfer"}, "edge: found flashinfer with deepseek_fp8"),
        ({"quantization": "fused"}, "quantization: found fused with deepseek_fp8"),
        ({"output": "q8_1"}, "output: found q8_1 with deepseek_fp8"),
        ({"rules": "sglang"}, "rules: found str 'sglang'"),
        ({"input_sf": np.zeros((2, 8), np.uint8)}, "input_sf"),
    ],
)
def test_refused_with_the_layer(options: dict[str, Any], message: str) -> None:
    rng = np.random.default_rng(12)
    layer, x = random_layer(rng, experts=4, groups=2, top_groups=1, top_k=2), random_tokens(rng, 2)
    with pytest.raises(ArgumentError, match=message):
        moe_layer(x, layer, **{"path": PATH, **options})


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"routed": []}, "routed"),
        ({"hidden": 200}, "hidden"),
        ({"intermediate": 0}, "intermediate"),
        ({"top_k": 0}, "top_k"),
        ({"shared": "expert"}, "shared"),
        ({"router_weight": None}, "correction_bias"),
        ({"router_weight": np.zeros((16, 256))}, "router_weight"),
        ({"correction_bias": np.zeros(15, np.float32)}, "bias"),
        ({"groups": 3}, "groups"),
        ({"top_groups": 5}, "top_groups"),
        ({"top_k": 9}, "k"),
    ],
)
def test_refused_layers(changes: dict[str, Any], argument: str) -> None:
    layer = random_layer(np.random.default_rng(13))
    with pytest.raises(ArgumentError) as refused:
        dataclasses.replace(layer, **changes)
    assert refused.value.argument == argument


def test_refused_experts() -> None:
    rng = np.random.default_rng(14)
    weight = random_weight(rng, 256, 256)
    for gate_up, down in (
        (quantize_block_fp8(np.zeros((256, 256), np.float32)), weight),
        (random_weight(rng, 384, 256), weight),
        (weight, weight),
    ):
        with pytest.raises(ArgumentError):
            BlockFP8Expert(gate_up, down)
    layer = random_layer(rng)
    other = dataclasses.replace(layer, routed=[random_expert(rng, 256, 256)] * 16)
    with pytest.raises(ArgumentError, match="needed H = 256 and I = 128, the layer's"):
        moe_layer(random_tokens(rng, 1), other, path=PATH)
