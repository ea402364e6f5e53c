"""Layers in NVFP4: weights that were MXFP4, the whole layer against its specification, what no other path takes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.fp32_values import BF16, bits, same_bytes
from support.moe import random_layer, random_tokens

from refmoe.errors import ArgumentError
from refmoe.formats import E2M1
from refmoe.reference import MoELayer, MXTensor, moe_float64, moe_layer, quantize_nvfp4, unpack_fp4
from refmoe.reference.mma import Evidence
from refmoe.reference.scalar.arithmetic import divide, multiply
from refmoe.reference.scalar.gemm import Row
from refmoe.reference.scalar.moe import ScalarNVFP4Expert, moe_token_nvfp4
from refmoe.reference.scalar.nvfp4_gemm import Grouped
from refmoe.reference.tensor import INPUT_SCALE, NVFP4Experts, experts_as_nvfp4

ONE = 0x3F800000


def in_nvfp4(layer: MoELayer, seed: int) -> MoELayer:
    """A layer in NVFP4: block scales have mantissas, and the experts differ in all factors."""
    rng = np.random.default_rng(seed)

    def weights(like: MXTensor | NVFP4Experts) -> NVFP4Experts:
        made = [
            quantize_nvfp4(rng.standard_normal(like.shape[1:]).astype(np.float32) / 4) for _ in range(like.shape[0])
        ]
        return NVFP4Experts(
            np.stack([each.codes for each in made]),
            np.stack([each.scales for each in made]),
            np.array([each.global_decode_scale for each in made], np.float32),
            (2.0**-7 * (1 + rng.random(len(made)))).astype(np.float32),
        )

    return dataclasses.replace(layer, gate_up=weights(layer.gate_up), down=weights(layer.down))


def rows_of(weights: NVFP4Experts, expert: int) -> list[Row]:
    codes = unpack_fp4(np.ascontiguousarray(weights.codes[expert])).tolist()
    return [Row(c, s, E2M1) for c, s in zip(codes, weights.scales[expert].tolist(), strict=True)]


def factors(weights: NVFP4Experts, expert: int) -> tuple[int, int]:
    """The encode scale of the tokens and the factor of the sums, in exact rationals."""
    tokens, own = (int(each[expert].view(np.uint32)) for each in (weights.input_scales, weights.global_decode_scales))
    return divide(ONE, tokens), multiply(tokens, own)


@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
@pytest.mark.parametrize("own", [False, True], ids=["mxfp4", "nvfp4"])
def test_equals_the_specification(own: bool, variant: str) -> None:
    """The whole layer, one token in exact rationals."""
    rng = np.random.default_rng(11)
    layer = random_layer(rng, experts=3, hidden=64, intermediate=32, top_k=2, variant=variant, spread=2.0)
    if own:
        layer = in_nvfp4(layer, 12)
    x = random_tokens(rng, 1, 64, outliers=20.0)
    found = moe_layer(x, layer, path="nvfp4", stages=True)
    assert (found.model, found.evidence, found.arch) == ("sm120_nvf4", Evidence.PUBLISHED, "sm_120a")
    everyone = np.arange(3)
    gate_up, down = (experts_as_nvfp4(weights, everyone) for weights in (layer.gate_up, layer.down))
    routing = found.stages["routing"]
    chosen = [
        ScalarNVFP4Expert(
            *(rows_of(gate_up, e), *factors(gate_up, e), bits(layer.gate_up_bias[e])),
            *(rows_of(down, e), *factors(down, e), bits(layer.down_bias[e])),
        )
        for e in routing["ids"][0]
    ]
    wanted = moe_token_nvfp4(bits(x)[0], chosen, bits(routing["weights"])[0], Grouped(), variant)
    assert same_bytes(found.output, [wanted])


def test_mxfp4_weights_keep_their_values() -> None:
    """Every value of every expert, NaN and signed zeros among them; the input scale is the stated one."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 256, (4, 24, 48), np.uint8)
    # 18 binades, at another place for each expert, and at both ends of E8M0 as far as FP32 has reciprocals.
    low = np.array([10, 100, 127, 236])[:, None, None]
    scales = (low + rng.integers(0, 18, (4, 24, 3))).astype(np.uint8)
    scales[1, 3, 1] = 0xFF
    codes[2, 5, :16] &= 0x88
    scales[2, 5, 0] = 0  # of zeros, however far below
    codes[3] &= 0x88
    weights = MXTensor(codes, scales, "mxfp4")
    made = experts_as_nvfp4(weights, np.array([3, 0, 1, 2]))
    for place, expert in enumerate((3, 0, 1, 2)):
        found, wanted = made.part(place).dequantize(), weights.part(expert).dequantize()
        assert found.tobytes() == wanted.tobytes()
    assert made.input_scales.tolist() == [INPUT_SCALE] * 4
    assert np.isnan(made.part(2).dequantize()[3, 32:64]).all()


@pytest.mark.parametrize(("spread", "largest"), [(18, 127), (3, 254), (250, 254)])
def test_scales_over_more_binades_than_ue4m3_has_are_refused(spread: int, largest: int) -> None:
    codes = np.full((2, 2, 32), 0x22, np.uint8)
    scales = np.full((2, 2, 2), largest, np.uint8)
    scales[1, 1, 0] = largest - spread
    weights = MXTensor(codes, scales, "mxfp4")
    if spread < 18:
        assert experts_as_nvfp4(weights, np.arange(2)).shape == (2, 2, 64)
        return
    found = (
        f"weights: found a scale 2\\^{spread} below the largest of expert 1, at row 1, block 0; needed scales within 18"
    )
    with pytest.raises(ArgumentError, match=found):
        experts_as_nvfp4(weights, np.arange(2))
    experts_as_nvfp4(weights, np.array([0]))  # the other expert has only one


def test_experts_without_tokens_are_not_looked_at() -> None:
    """Their weights could not even be had in NVFP4."""
    layer = random_layer(np.random.default_rng(6), top_k=1)
    assert isinstance(layer.gate_up, MXTensor)
    scales = layer.gate_up.scales.copy()
    scales[2, :, 0] = 1
    odd = dataclasses.replace(layer, gate_up=MXTensor(layer.gate_up.codes, scales, "mxfp4"))
    x, ones = random_tokens(np.random.default_rng(7), 4), np.ones((4, 1), np.float32)
    given: dict[str, Any] = {"topk_ids": np.full((4, 1), 5, np.int32), "topk_weights": ones, "path": "nvfp4"}
    assert moe_layer(x, odd, **given).tobytes() == moe_layer(x, layer, **given).tobytes()
    with pytest.raises(ArgumentError, match="of expert 2"):
        moe_layer(x, odd, **given | {"topk_ids": np.full((4, 1), 2, np.int32)})
    nothing = moe_layer(x, layer, **given | {"topk_ids": np.full((4, 1), 9, np.int32)})
    assert not nothing.view(np.uint16).any()


def test_a_rank_computes_its_experts_rows() -> None:
    x, whole = random_tokens(np.random.default_rng(5), 5), in_nvfp4(random_layer(np.random.default_rng(4)), 1)
    everything = moe_layer(x, whole, path="nvfp4", stages=True)
    routing = everything.stages["routing"]
    rows = everything.stages["gemm2"]["out"][routing["unpermuted_to_permuted"]]
    assert isinstance(whole.gate_up, NVFP4Experts)
    assert isinstance(whole.down, NVFP4Experts)
    mine = np.arange(2, 5)
    rank = dataclasses.replace(
        whole,
        gate_up=whole.gate_up.of(mine),
        down=whole.down.of(mine),
        gate_up_bias=whole.gate_up_bias[2:5],
        down_bias=whole.down_bias[2:5],
    )
    given = {"topk_ids": routing["ids"], "topk_weights": routing["weights"], "first_expert": 2}
    found = moe_layer(x, rank, path="nvfp4", **given, stages=True)
    where = found.stages["routing"]["unpermuted_to_permuted"]
    assert (where >= 0).any()
    assert found.stages["gemm2"]["out"][where[where >= 0]].tobytes() == rows[where >= 0].tobytes()


def test_bf16_paths_take_nvfp4_weights_and_lie_near_the_formula() -> None:
    layer = in_nvfp4(random_layer(np.random.default_rng(8)), 2)
    x = random_tokens(np.random.default_rng(9), 5)
    exact = moe_float64(x, layer)

    def error(path: str) -> float:
        return float(np.linalg.norm(moe_layer(x, layer, path=path).astype(np.float64) - exact) / np.linalg.norm(exact))

    assert error("marlin") < 2.0**-7 < error("nvfp4") < 0.5


@pytest.mark.parametrize("path", ["cutlass", "triton", "trtllm_mxfp8", "dp4a", "llama_cpp"])
def test_other_paths_refuse_nvfp4_weights(path: str) -> None:
    layer = in_nvfp4(random_layer(np.random.default_rng(0)), 0)
    with pytest.raises(ArgumentError) as refused:
        moe_layer(np.zeros((2, 64), BF16), layer, path=path)
    assert str(refused.value) == (
        f"layer: found nvfp4 weights with {path}; needed mxfp4 weights, or one of the paths marlin, nvfp4"
    )


def test_refused() -> None:
    layer = random_layer(np.random.default_rng(0))
    x = np.zeros((2, 64), BF16)
    with pytest.raises(ArgumentError, match="model: found exact with nvfp4; needed None: one instruction"):
        moe_layer(x, layer, path="nvfp4", model="exact")
    with pytest.raises(ArgumentError, match="backend: found nvfp4, which serves sm_120a, sm_121a"):
        moe_layer(x, layer, path="nvfp4", arch="sm_90a")
    with pytest.raises(ArgumentError, match="quantization"):
        moe_layer(x, layer, path="nvfp4", quantization="fused")
    own = in_nvfp4(layer, 0)
    with pytest.raises(ArgumentError, match="down: found mxfp4; needed nvfp4, the format of gate_up"):
        dataclasses.replace(own, down=layer.down)
    assert isinstance(own.down, NVFP4Experts)
    for change, message in (
        ({"input_scales": np.zeros(6, np.float32)}, "above 0"),
        ({"global_decode_scales": np.ones(5, np.float32)}, r"global_decode_scales: .* float32 \[6\]"),
        ({"scales": own.down.scales[:, :, 1:]}, "scales: .* one byte a block of 16"),
        ({"codes": own.down.codes[0], "scales": own.down.scales[0]}, r"codes: .* uint8 \[E, N, K/2\]"),
    ):
        with pytest.raises(ArgumentError, match=message):
            dataclasses.replace(own.down, **change)  # type: ignore[arg-type]
