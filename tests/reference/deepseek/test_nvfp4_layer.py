"""DeepSeek-V3 layers in NVFP4: against the exact rationals, the formula and other layers, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.deepseek import BF16, expert_row, nvfp4_expert, nvfp4_layer, nvfp4_weight, random_tokens, weighted_sum
from support.fp32_values import bits, same_bytes

from refmoe.errors import ArgumentError
from refmoe.reference import (
    BF16Expert,
    DeepSeekNVFP4Layer,
    DeepSeekRules,
    MoELayer,
    NVFP4Expert,
    NVFP4Tensor,
    layer_enclosure,
    moe_float64,
    moe_layer,
    path_steps,
)
from refmoe.reference.mma import Evidence
from refmoe.reference.moe.deepseek_nvfp4 import DEEPSEEK_NVFP4_PATHS, deepseek_nvfp4_steps
from refmoe.reference.scalar.deepseek.routing import route_sigmoid_grouped_topk
from refmoe.reference.tensor import NVFP4Experts

PATHS = ("nvfp4", "marlin")


def tokens(seed: int, count: int, hidden: int = 64) -> np.ndarray:
    return random_tokens(np.random.default_rng(seed), count, hidden)


@pytest.mark.parametrize("shared", ["nvfp4", None])
def test_equals_the_specification(shared: str | None) -> None:
    """Whole layers of two tokens in exact rationals: the router, each expert's own factors, the shared expert's."""
    layer, x = nvfp4_layer(np.random.default_rng(11), shared=shared), tokens(12, 2)
    found = moe_layer(x, layer, path="nvfp4", stages=True)
    assert (found.model, found.evidence, found.arch) == ("sm120_nvf4", Evidence.PUBLISHED, "sm_120a")
    routing = found.stages["routing"]
    assert layer.correction_bias is not None
    for token in range(2):
        chosen, weights = route_sigmoid_grouped_topk(
            bits(routing["logits"])[token], bits(layer.correction_bias), 3, 4, 2, bits(np.array([2.5]))[0]
        )
        assert routing["ids"][token].tolist() == list(chosen)
        assert bits(routing["weights"])[token] == list(weights)
        rows = [expert_row(bits(x)[token], layer.expert(expert)) for expert in chosen]
        always = expert_row(bits(x)[token], layer.shared) if isinstance(layer.shared, NVFP4Expert) else None
        assert same_bytes(found.output[token], weighted_sum(rows, weights, always))


def test_products_are_those_of_exact_integers() -> None:
    """Data that loses nothing: codes times scales are integers, and so are both first products, to the last bit."""
    rng = np.random.default_rng(3)

    def weight(rows: int, columns: int) -> NVFP4Tensor:
        codes = rng.integers(0, 256, (rows, columns // 2), np.uint8)
        # 1, 2 and 4 in E4M3.
        return NVFP4Tensor(codes, rng.choice([0x38, 0x40, 0x48], (rows, columns // 16)).astype(np.uint8), np.float32(1))

    def values(tensor: NVFP4Tensor) -> np.ndarray:
        """Twice the values, by the table of E2M1."""
        table = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
        codes = np.stack([tensor.codes & 15, tensor.codes >> 4], axis=-1).reshape(tensor.shape)
        scales = np.select([tensor.scales == 0x38, tensor.scales == 0x40], [1, 2], 4)
        return table[codes] * np.repeat(scales, 16, axis=1)

    def expert(intermediate: int) -> NVFP4Expert:
        one = np.float32(1)
        return NVFP4Expert(weight(2 * intermediate, 64), weight(64, intermediate), one, one)

    layer = DeepSeekNVFP4Layer([expert(32) for _ in range(4)], 64, 32, 2, shared=expert(64))
    # Every block's largest is 6, so its scale is 1 and the codes are the values.
    x = rng.choice([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4], (5, 64))
    x[:, ::16] = 6
    ids = np.array([[0, 3], [3, 1], [1, 0], [3, 0], [0, 1]], np.int32)
    found = moe_layer(
        x.astype(BF16), layer, path="nvfp4", topk_ids=ids, topk_weights=np.ones((5, 2), np.float32), stages=True
    )
    twice = (2 * x).astype(np.int64)
    place = found.stages["routing"]["unpermuted_to_permuted"].reshape(2, 5)
    for token, rank in np.ndindex(5, 2):
        exact = values(layer.routed[ids[token, rank]].gate_up) @ twice[token]
        wanted = (exact / 4).astype(np.float32).astype(BF16)
        assert found.stages["gemm1"]["out"][place[rank, token]].tobytes() == wanted.tobytes()
    assert isinstance(layer.shared, NVFP4Expert)
    wanted = (twice @ values(layer.shared.gate_up).T / 4).astype(np.float32).astype(BF16)
    assert found.stages["shared"]["gate_up"].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("path", PATHS)
def test_routed_experts_are_those_of_a_layer_without_deepseeks_parts(path: str) -> None:
    """Given ids and weights, the same experts stacked are a silu layer without biases."""
    layer, x = nvfp4_layer(np.random.default_rng(4), shared=None), tokens(5, 7)
    found = moe_layer(x, layer, path=path, stages=True)
    routing = found.stages["routing"]

    def stacked(name: str) -> NVFP4Experts:
        parts = [getattr(expert, name) for expert in layer.routed]
        return NVFP4Experts(
            np.stack([part.codes for part in parts]),
            np.stack([part.scales for part in parts]),
            np.array([part.global_decode_scale for part in parts], np.float32),
            np.array([getattr(expert, f"{name}_input_scale") for expert in layer.routed], np.float32),
        )

    other = MoELayer(stacked("gate_up"), stacked("down"), 3, variant="silu")
    given = {"topk_ids": routing["ids"], "topk_weights": routing["weights"]}
    wanted = moe_layer(x, other, path=path, stages=True, **given)
    # A shared expert that is not there leaves nothing; scales of experts without rows are quantized by nobody.
    assert found.stages["shared"] == {}
    for stage, arrays in wanted.stages.items():
        for name, array in arrays.items():
            assert found.stages[stage][name].tobytes() == array.tobytes(), (stage, name)
    assert found.model == wanted.model
    assert found.evidence is wanted.evidence


@pytest.mark.parametrize("shared", ["nvfp4", "bf16"])
def test_the_formula_is_the_definition_in_float64(shared: str) -> None:
    """Written again, a token and an expert at a time, and rounded to BF16: no byte differs."""
    layer, x = nvfp4_layer(np.random.default_rng(6), shared=shared), tokens(7, 3)
    assert layer.router_weight is not None
    assert layer.correction_bias is not None

    def network(row: np.ndarray, expert: Any) -> np.ndarray:
        gate_up, down = (
            each.astype(np.float64) if isinstance(expert, BF16Expert) else each.dequantize().astype(np.float64)
            for each in (expert.gate_up, expert.down)
        )
        half = len(gate_up) // 2
        gate, up = gate_up[:half] @ row, gate_up[half:] @ row
        return down @ (gate / (1 + np.exp(-gate)) * up)

    for token, row in enumerate(x.astype(np.float64)):
        scores = 1 / (1 + np.exp(-(layer.router_weight.astype(np.float64) @ row)))
        biased = scores + layer.correction_bias
        groups = sorted(range(4), key=lambda group: -biased[2 * group : 2 * group + 2].sum())[:2]
        allowed = [expert for group in groups for expert in (2 * group, 2 * group + 1)]
        chosen = sorted(allowed, key=lambda expert: -biased[expert])[:3]
        weights = 2.5 * scores[chosen] / scores[chosen].sum()
        wanted = sum(weight * network(row, layer.routed[e]) for weight, e in zip(weights, chosen, strict=True))
        wanted = wanted + network(row, layer.shared)
        found = moe_float64(x[token : token + 1], layer)[0]
        assert found.astype(np.float32).astype(BF16).tobytes() == wanted.astype(np.float32).astype(BF16).tobytes()


@pytest.mark.parametrize("shared", ["nvfp4", "bf16"])
def test_the_shared_expert_is_added_last_and_nothing_else_changes(shared: str) -> None:
    rng = np.random.default_rng(8)
    layer, x = nvfp4_layer(rng, shared=shared), tokens(9, 4)
    for path in PATHS:
        whole = moe_layer(x, layer, path=path, stages=True)
        alone = moe_layer(x, dataclasses.replace(layer, shared=None), path=path, stages=True)
        for stage in ("routing", "expand", "gemm1", "activation", "gemm2"):
            for name, array in alone.stages[stage].items():
                assert whole.stages[stage][name].tobytes() == array.tobytes()
        rows, weights = whole.stages["gemm2"]["out"].astype(np.float32), whole.stages["routing"]["weights"]
        place = whole.stages["routing"]["unpermuted_to_permuted"].reshape(3, 4)
        total = np.zeros(x.shape, np.float32)
        for rank in range(3):
            total += weights[:, rank, None] * rows[place[rank]]
        added = whole.stages["shared"]["out"].astype(np.float32)
        assert whole.output.tobytes() == (total + added).astype(BF16).tobytes()
        rounded = moe_layer(x, layer, path=path, rules=DeepSeekRules(order="bf16"))
        assert rounded.tobytes() == (total.astype(BF16).astype(np.float32) + added).astype(BF16).tobytes()
        assert rounded.tobytes() != whole.output.tobytes()


def test_a_shared_expert_in_bf16_is_multiplied_in_bf16_and_says_what_that_rests_on() -> None:
    """Small integers, whose sums are exact; no chip's sums of BF16 beside NVFP4's are published."""
    rng = np.random.default_rng(10)
    layer = nvfp4_layer(rng, shared="bf16")
    assert isinstance(layer.shared, BF16Expert)
    integers = BF16Expert(rng.integers(-8, 9, (128, 64)).astype(BF16), layer.shared.down)
    layer = dataclasses.replace(layer, shared=integers)
    x = rng.integers(-8, 9, (3, 64)).astype(BF16)
    exact = x.astype(np.float32) @ integers.gate_up.astype(np.float32).T
    for path, arch, evidence in (
        ("nvfp4", "sm_120a", Evidence.EXTRAPOLATED),
        ("marlin", "sm_120a", Evidence.EXTRAPOLATED),
        ("marlin", "sm_90a", Evidence.HARDWARE),
    ):
        found = moe_layer(x, layer, path=path, arch=arch, stages=True)
        assert found.stages["shared"]["gate_up"].tobytes() == exact.astype(BF16).tobytes()
        assert found.evidence is evidence
    both = (moe_layer(x, layer, path=path, stages=True).stages["shared"] for path in PATHS)
    first, second = ({name: array.tobytes() for name, array in each.items()} for each in both)
    assert first == second


@pytest.mark.parametrize("path", PATHS)
def test_a_rank_computes_its_experts_rows(path: str) -> None:
    whole, x = nvfp4_layer(np.random.default_rng(13)), tokens(14, 5)
    everything = moe_layer(x, whole, path=path, stages=True)
    routing = everything.stages["routing"]
    rows = everything.stages["gemm2"]["out"][routing["unpermuted_to_permuted"]]
    rank = dataclasses.replace(whole, routed=whole.routed[2:5], shared=None)
    given = {"topk_ids": routing["ids"], "topk_weights": routing["weights"], "first_expert": 2}
    found = moe_layer(x, rank, path=path, **given, stages=True)
    where = found.stages["routing"]["unpermuted_to_permuted"]
    assert 0 < (where >= 0).sum() < where.size
    assert found.stages["gemm2"]["out"][where[where >= 0]].tobytes() == rows[where >= 0].tobytes()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shared", ["nvfp4", "bf16"])
def test_a_token_depends_on_no_other(path: str, shared: str) -> None:
    layer, x = nvfp4_layer(np.random.default_rng(15), shared=shared), tokens(16, 6)
    together = moe_layer(x, layer, path=path)
    for token in range(6):
        assert moe_layer(x[token : token + 1], layer, path=path).tobytes() == together[token : token + 1].tobytes()


@pytest.mark.parametrize("path", PATHS)
def test_only_experts_with_tokens_are_looked_up(path: str) -> None:
    layer, x = nvfp4_layer(np.random.default_rng(17)), tokens(18, 2)
    looked_up = set()

    class Counted(list):  # type: ignore[type-arg]
        def __getitem__(self, index: Any) -> Any:
            looked_up.add(index)
            return super().__getitem__(index)

    found = moe_layer(x, dataclasses.replace(layer, routed=Counted(layer.routed)), path=path, stages=True)
    assert looked_up == set(found.stages["routing"]["ids"].reshape(-1).tolist())
    assert len(looked_up) < layer.experts


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shared", ["nvfp4", "bf16", None])
def test_no_token(path: str, shared: str | None) -> None:
    layer = nvfp4_layer(np.random.default_rng(19), shared=shared)
    assert moe_layer(np.zeros((0, 64), BF16), layer, path=path).shape == (0, 64)


def test_steps_are_those_of_the_backend_with_a_shared_expert() -> None:
    for path in PATHS:
        steps, usual = deepseek_nvfp4_steps(path.upper()), path_steps(path)
        assert [step.stage for step in steps if step.stage != "shared"] == [step.stage for step in usual]
        assert {s.stage: s.conversions for s in steps if s.stage != "shared"} == {s.stage: s.conversions for s in usual}
    assert tuple(DEEPSEEK_NVFP4_PATHS) == PATHS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"path": "cutlass"},
            "layer: found nvfp4 weights with cutlass; needed mxfp4 weights, or one of the paths nvfp4",
        ),
        ({"path": "deepseek_fp8"}, "layer: found nvfp4 weights with deepseek_fp8; needed block_fp8 weights"),
        ({"path": "llama_cpp"}, "layer: found nvfp4 weights with llama_cpp"),
        ({"quantization": "fused"}, "quantization: found fused with nvfp4"),
        ({"output": "q8_1"}, "output: found q8_1 with nvfp4"),
        ({"model": "exact"}, "model: found exact with nvfp4; needed None"),
        ({"mode": "floor"}, "mode: found floor with nvfp4 and a DeepSeek layer; needed the default"),
        ({"edge": "flashinfer", "path": "marlin"}, "edge: found flashinfer with marlin and a DeepSeek layer"),
        ({"rules": "trtllm"}, "rules: found the quantizer trtllm with a DeepSeek layer in NVFP4; needed the default"),
        ({"rules": DeepSeekRules(scales="ue8m0")}, "rules: found the scales ue8m0 with a DeepSeek layer in NVFP4"),
        ({"arch": "sm_90a"}, "backend: found nvfp4, which serves sm_120a, sm_121a"),
    ],
)
def test_refused_with_the_layer(options: dict[str, Any], message: str) -> None:
    layer = nvfp4_layer(np.random.default_rng(0))
    with pytest.raises(ArgumentError) as refused:
        moe_layer(np.zeros((2, 64), BF16), layer, **{"path": "nvfp4", **options})
    assert message in str(refused.value)


def test_an_enclosure_of_it_is_refused() -> None:
    with pytest.raises(ArgumentError, match="path: found nvfp4 with nvfp4 weights; needed a path of MXFP8"):
        layer_enclosure(np.zeros((1, 64), BF16), nvfp4_layer(np.random.default_rng(0)), path="nvfp4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"routed": []}, "routed: found no expert"),
        ({"hidden": 48}, "hidden: found 48; needed a multiple of 32"),
        ({"intermediate": 40}, "intermediate: found 40; needed a multiple of 32"),
        ({"top_k": 0}, "top_k"),
        ({"shared": "x"}, "shared: found str 'x'; needed an NVFP4Expert or a BF16Expert of H = 64"),
        ({"shared": nvfp4_expert(np.random.default_rng(1), 32, 32)}, "shared"),
        ({"router_weight": None}, "correction_bias: .* None without a router_weight"),
        ({"router_weight": np.zeros((8, 32), BF16)}, "router_weight"),
        ({"groups": 3}, "groups: found 3 of 8 experts"),
    ],
)
def test_refused_layers(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        dataclasses.replace(nvfp4_layer(np.random.default_rng(0)), **changes)


def test_refused_experts() -> None:
    rng = np.random.default_rng(0)
    good = nvfp4_expert(rng, 64, 32)
    for changes, message in (
        ({"down": nvfp4_expert(rng, 64, 64).down}, r"down: found \[64, 64\]; needed \[64, 32\]"),
        ({"gate_up": nvfp4_weight(rng, 64, 48)}, r"gate_up: found \[64, 48\]; needed \[2 I, H\]"),
        ({"gate_up": np.zeros((64, 64), BF16)}, "gate_up: .* an NVFP4Tensor of two dimensions"),
        ({"gate_up_input_scale": np.float32(0)}, "gate_up_input_scale: .* above 0"),
        ({"down_input_scale": np.float32(1e-40)}, "down_input_scale: .* finite reciprocal"),
    ):
        with pytest.raises(ArgumentError, match=message):
            dataclasses.replace(good, **changes)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="gate_up: found float32"):
        BF16Expert(np.zeros((64, 64), np.float32), np.zeros((64, 32), BF16))
    with pytest.raises(ArgumentError, match=r"down: found \[32, 64\]; needed \[64, 32\]"):
        BF16Expert(np.zeros((64, 64), BF16), np.zeros((32, 64), BF16))
    odd = dataclasses.replace(
        nvfp4_layer(rng, top_k=1, groups=1, top_groups=1, experts=2), routed=[nvfp4_expert(rng, 64, 64)] * 2
    )
    with pytest.raises(ArgumentError, match="of H = 64, I = 64; needed H = 64, I = 32"):
        moe_layer(tokens(1, 1), odd, path="nvfp4")
