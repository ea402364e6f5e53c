"""The formula of DeepSeek-V3: router, experts and shared expert of the package `transformers`, tiny and random.

Divergences, each seen in a test below:

- Equal scores: torch's top-k leaves the choice open; here they go to the lower group and the lower expert.
- NaN: torch sorts it first and chooses it; here the token is refused.
- The weights' sum: torch's order is open; here it is that of the ranks. At most k + 3 roundings each way.
- Sums: each expert's output is weighted and added to a BF16 tensor in the order of the experts; here in FP32, in
  the order of the ranks.
- The shared expert: added to a sum in BF16, which is the order "bf16" here; the default adds it in FP32.
- Weights: dequantized to BF16; here the products are of FP8 codes, promoted after every 128 of K.
"""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from support.deepseek import random_layer, random_tokens
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.reference import moe_float64, moe_layer
from refmoe.reference.deepseek.float64 import route_grouped_float64
from refmoe.reference.deepseek.layer import DeepSeekMoELayer, DeepSeekRules
from refmoe.reference.deepseek.routing import route_sigmoid_grouped_topk

torch = pytest.importorskip("torch")
if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

#: Experts, hidden, intermediate, top-k, groups, groups kept.
SIZES = [(16, 256, 128, 4, 4, 2), (24, 128, 256, 6, 8, 4), (8, 128, 128, 2, 1, 1)]


def theirs(layer: DeepSeekMoELayer, dtype: Any) -> Any:
    """Their module with our dequantized weights."""
    # Seconds, which only the process that runs these tests has to wait for.
    from transformers.models.deepseek_v3 import configuration_deepseek_v3 as configuration
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as modeling

    config = configuration.DeepseekV3Config(
        hidden_size=layer.hidden,
        moe_intermediate_size=layer.intermediate,
        n_routed_experts=layer.experts,
        num_experts_per_tok=layer.top_k,
        n_group=layer.groups,
        topk_group=layer.top_groups,
        routed_scaling_factor=layer.scale,
        n_shared_experts=layer.shared.intermediate // layer.intermediate,
        hidden_act="silu",
    )
    config._experts_implementation = "eager"
    module = modeling.DeepseekV3MoE(config).to(dtype)
    half = layer.shared.intermediate
    shared = layer.shared.gate_up.dequantize()
    values = {
        "gate.weight": layer.router_weight,
        "experts.gate_up_proj": np.stack([expert.gate_up.dequantize() for expert in layer.routed]),
        "experts.down_proj": np.stack([expert.down.dequantize() for expert in layer.routed]),
        "shared_experts.gate_proj.weight": shared[:half],
        "shared_experts.up_proj.weight": shared[half:],
        "shared_experts.down_proj.weight": layer.shared.down.dequantize(),
        "gate.e_score_correction_bias": layer.correction_bias,
    }
    tensors = {name: torch.from_numpy(array.astype(np.float64)).to(dtype) for name, array in values.items()}
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == ([], [])
    return module


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", thinned(range(2), 2))
def test_same_formula(sizes: tuple[int, ...], seed: int) -> None:
    """Experts chosen exactly; outputs in float64 on both sides to FP32's precision: their router computes in FP32."""
    experts, hidden, intermediate, top_k, groups, top_groups = sizes
    rng = np.random.default_rng([seed, experts])
    layer = random_layer(
        rng,
        experts=experts,
        hidden=hidden,
        intermediate=intermediate,
        top_k=top_k,
        groups=groups,
        top_groups=top_groups,
    )
    x = random_tokens(rng, 9, hidden)
    module = theirs(layer, torch.float64)
    with torch.no_grad():
        tokens = torch.from_numpy(x.astype(np.float64))
        logits, weights, ids = module.gate(tokens)
        wanted = module(tokens[None])[0].numpy()

    our_ids, our_weights = route_grouped_float64(x.astype(np.float64), layer)
    order, their_order = np.argsort(our_ids, axis=1), np.argsort(ids.numpy(), axis=1)
    assert np.array_equal(np.take_along_axis(our_ids, order, 1), np.take_along_axis(ids.numpy(), their_order, 1))
    ours, weighed = np.take_along_axis(our_weights, order, 1), np.take_along_axis(weights.numpy(), their_order, 1)
    assert np.abs(ours / weighed - 1).max() < 2.0**-20, "roundings of the FP32 logits, 256 terms each"
    found = moe_float64(x, layer, topk_ids=ids.numpy().astype(np.int32), topk_weights=weights.numpy())
    assert np.linalg.norm(found - wanted) <= 1e-12 * np.linalg.norm(wanted)

    # From their logits the FP32 router chooses the same experts, in descending order of their scores.
    chosen, fp32_weights = route_sigmoid_grouped_topk(
        logits.numpy().astype(np.float32), layer.correction_bias, top_k, groups, top_groups, layer.scale
    )
    assert np.array_equal(np.sort(chosen, axis=1), np.sort(ids.numpy(), axis=1))
    by_expert = np.take_along_axis(fp32_weights, np.argsort(chosen, axis=1), 1)
    assert np.abs(by_expert / weighed - 1).max() < (top_k + 8) * 2.0**-24


@pytest.mark.parametrize("order", ["fp32", "bf16"])
def test_their_bf16_module_is_as_near_as_the_formula(order: str) -> None:
    """The path and their BF16 module part by what FP8 activations cost, and no more."""
    rng = np.random.default_rng(3)
    layer = random_layer(rng)
    x = random_tokens(rng, 6)
    with torch.no_grad():
        module = theirs(layer, torch.bfloat16)
        wanted = module(torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)[None])[0].float().numpy()
    found = moe_layer(x, layer, path="deepseek_fp8", rules=DeepSeekRules(order=order)).astype(np.float32)
    assert np.linalg.norm(found - wanted) < 0.08 * np.linalg.norm(wanted)


def test_a_wrong_formula_is_seen() -> None:
    """Gate and up exchanged, no shared expert, weights without their factor, biased weights: far beyond 1e-12."""
    rng = np.random.default_rng(5)
    layer, x = random_layer(rng), random_tokens(rng, 4)
    with torch.no_grad():
        module = theirs(layer, torch.float64)
        tokens = torch.from_numpy(x.astype(np.float64))
        _, weights, ids = module.gate(tokens)
        wanted = module(tokens[None])[0].numpy()
    given = {"topk_ids": ids.numpy().astype(np.int32), "topk_weights": weights.numpy()}

    def swapped(tensor: Any) -> Any:
        half = tensor.codes.shape[0] // 2
        codes, scales = np.roll(tensor.codes, half, axis=0), np.roll(tensor.scales, half // 128, axis=0)
        return dataclasses.replace(tensor, codes=codes, scales=scales)

    other = dataclasses.replace(
        layer, routed=[dataclasses.replace(expert, gate_up=swapped(expert.gate_up)) for expert in layer.routed]
    )
    wrong = [
        moe_float64(x, other, **given),
        moe_float64(x, dataclasses.replace(layer, shared=None), **given),
        moe_float64(x, layer, topk_ids=given["topk_ids"], topk_weights=given["topk_weights"] / 2.5),
    ]
    for found in wrong:
        assert np.linalg.norm(found - wanted) > 1e-3 * np.linalg.norm(wanted)


def test_divergences() -> None:
    """Ties and NaN: what torch leaves open or accepts."""
    layer = random_layer(np.random.default_rng(6))
    module = theirs(layer, torch.float32)
    zeros = np.zeros((1, 16), np.float32)
    ids, _ = route_sigmoid_grouped_topk(zeros, None, 4, 4, 2, 2.5)
    assert ids.tolist() == [[0, 1, 2, 3]]
    x = random_tokens(np.random.default_rng(7), 1).astype(np.float32)
    x[0, 0] = np.nan
    with torch.no_grad():
        logits, weights, _ = module.gate(torch.from_numpy(x))
    assert bool(torch.isnan(weights).all()), "theirs goes on with NaN"
    with pytest.raises(ArgumentError, match="a score of nan"):
        route_sigmoid_grouped_topk(logits.numpy(), layer.correction_bias, 4, 4, 2, 2.5)
