"""The formula of gpt-oss: router and experts of the package `transformers`, on tiny random configurations."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from support.moe import random_layer, random_tokens
from support.selection.thinned import thinned

from refmoe.reference import MoELayer, MXTensor, moe_float64, moe_layer, route_softmax_topk
from refmoe.reference.moe.float64 import route_float64

torch = pytest.importorskip("torch")
if find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

SHAPES = [(4, 32, 32, 1), (6, 64, 96, 3), (8, 96, 64, 4), (5, 32, 128, 5)]
"""Experts, hidden, intermediate, top-k."""


def theirs(layer: MoELayer) -> torch.nn.Module:
    """Their router and experts with our dequantized weights, in float64."""
    # Seconds, which only the process that runs these tests has to wait for.
    from transformers.models.gpt_oss import configuration_gpt_oss as configuration
    from transformers.models.gpt_oss import modeling_gpt_oss as modeling

    experts, hidden, intermediate = layer.experts, layer.hidden, layer.intermediate
    config = configuration.GptOssConfig(
        num_local_experts=experts,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_experts_per_tok=layer.top_k,
    )
    config._experts_implementation = "eager"
    mlp = modeling.GptOssMLP(config).double()
    values = {
        "router.weight": layer.router_weight,
        "router.bias": layer.router_bias,
        "experts.gate_up_proj": layer.gate_up.dequantize().transpose(0, 2, 1),
        "experts.gate_up_proj_bias": layer.gate_up_bias,
        "experts.down_proj": layer.down.dequantize().transpose(0, 2, 1),
        "experts.down_proj_bias": layer.down_bias,
    }
    mlp.load_state_dict({name: torch.from_numpy(array.astype(np.float64)) for name, array in values.items()})
    return mlp


@pytest.mark.parametrize(("experts", "hidden", "intermediate", "top_k"), SHAPES)
@pytest.mark.parametrize("seed", thinned(range(2), 2))
def test_same_formula(experts: int, hidden: int, intermediate: int, top_k: int, seed: int) -> None:
    """Experts chosen exactly; outputs in float64 on both sides to 1e-12 of the norm, gates past the clamp too."""
    rng = np.random.default_rng([seed, experts])
    layer = random_layer(rng, experts=experts, hidden=hidden, intermediate=intermediate, top_k=top_k)
    x = random_tokens(rng, 9, hidden, outliers=40.0)
    mlp = theirs(layer)
    with torch.no_grad():
        tokens = torch.from_numpy(x.astype(np.float64))
        logits, weights, ids = mlp.router(tokens)
        wanted = mlp(tokens[None])[0][0].numpy()

    our_ids, our_weights = route_float64(x.astype(np.float64), layer)
    assert our_ids.tolist() == ids.tolist()
    assert np.abs(our_weights - weights.numpy()).max() < 1e-14
    found = moe_float64(x, layer)
    assert np.linalg.norm(found - wanted) <= 1e-12 * np.linalg.norm(wanted)
    gate = x.astype(np.float64) @ layer.gate_up.dequantize()[0].T
    assert np.abs(gate).max() > 7, "the clamps were there to be seen"

    # The FP32 router chooses the same experts, from its own logits and from theirs.
    stages = moe_layer(x, layer, stages=True).stages["routing"]
    assert stages["ids"].tolist() == ids.tolist()
    assert route_softmax_topk(logits.numpy().astype(np.float32), top_k)[0].tolist() == ids.tolist()


def test_a_wrong_formula_is_seen() -> None:
    """Gate and up exchanged, and no clamp: far beyond 1e-12."""
    rng = np.random.default_rng(5)
    layer = random_layer(rng)
    x = random_tokens(rng, 4, outliers=40.0)
    with torch.no_grad():
        mlp = theirs(layer)
        wanted = mlp(torch.from_numpy(x.astype(np.float64))[None])[0][0].numpy()
    order = np.arange(2 * layer.intermediate).reshape(-1, 2)[:, ::-1].reshape(-1)
    weights = MXTensor(layer.gate_up.codes[:, order], layer.gate_up.scales[:, order], "mxfp4")
    router = {"router_weight": layer.router_weight, "router_bias": layer.router_bias}
    swapped = MoELayer(weights, layer.down, 3, layer.gate_up_bias[:, order], layer.down_bias, **router)
    far = np.full(layer.experts, 1e6, np.float32)
    unclamped = MoELayer(layer.gate_up, layer.down, 3, layer.gate_up_bias, layer.down_bias, **router, swiglu_limit=far)
    for wrong in (swapped, unclamped):
        assert np.linalg.norm(moe_float64(x, wrong) - wanted) > 1e-3 * np.linalg.norm(wanted)
