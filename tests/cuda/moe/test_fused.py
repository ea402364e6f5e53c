"""One call for a whole layer on NumPy arrays: bytes of the reference, ranks, invariances, refusals."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.fp32_values import BF16
from support.launch_recorder import Recorder
from support.moe_call import case_of, keywords, positional

from refmoe.cuda.device import open_device
from refmoe.cuda.moe import fused_moe
from refmoe.cuda.moe.call import MoEArguments, make_call
from refmoe.cuda.moe.launches import LayerOptions, LayerShape, workspace_bytes
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.errors import ArgumentError
from refmoe.reference import quantize_mxfp8, swizzle_scales
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.moe.pipeline import moe_layer
from refmoe.reference.tensor import MXTensor

SIZES = {"hidden": 96, "intermediate": 64, "experts": 6, "top_k": 2}


@pytest.fixture
def compiler() -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint16)


def reference(layer: MoELayer, x: np.ndarray, ids: np.ndarray, weights: np.ndarray, **named: Any) -> np.ndarray:
    return bits(moe_layer(x, layer, topk_ids=ids, topk_weights=weights, **named))


@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
def test_all_quantizations_give_the_references_bytes(variant: str, compiler: None) -> None:
    layer, x, ids, weights = case_of(1, 4, variant=variant, **SIZES)
    expected = reference(layer, x, ids, weights)
    arguments, named = positional(layer, x, ids, weights), keywords(layer)
    for fused in (True, False):
        assert np.array_equal(bits(fused_moe(*arguments, **named, quantize_in_expand=fused)), expected)
    ready = quantize_mxfp8(x)
    swizzled = swizzle_scales(ready.scales, "128x4", fill=0xFF)
    for codes in (ready.codes, ready.codes.view(ml_dtypes.float8_e4m3fn)):
        for input_sf in (ready.scales, swizzled, swizzled.view(np.int32)):
            found = fused_moe(codes, *arguments[1:], **named, input_sf=input_sf)
            assert np.array_equal(bits(found), expected)


def test_flashinfers_views_of_weights_and_scales_and_its_other_arguments(compiler: None) -> None:
    layer, x, ids, weights = case_of(2, 3, **SIZES)
    arguments = positional(layer, x, ids, weights)
    arguments[3], arguments[4] = (weight.view(np.int64) for weight in arguments[3:5])
    ones = np.ones(6, np.float32)
    arguments[6] = [arguments[6][0].view(np.int32), ones, arguments[6][2].view(np.int32), ones]
    output = np.zeros((3, 96), BF16)
    found = fused_moe(
        *arguments, **keywords(layer), output=output, cluster_size=1, enable_alltoall=False, min_latency_mode=True
    )
    assert found is output
    assert np.array_equal(bits(output), reference(layer, x, ids, weights))


def test_half_precision_tokens(compiler: None) -> None:
    layer, x, ids, weights = case_of(3, 3, **SIZES)
    half = x.astype(np.float16)
    ready = quantize_mxfp8(half)
    expected = reference(layer, ready.codes, ids, weights, quantization="ready", input_sf=ready.scales)
    for fused in (True, False):
        found = fused_moe(half, *positional(layer, x, ids, weights)[1:], **keywords(layer), quantize_in_expand=fused)
        assert np.array_equal(bits(found), expected)


def test_a_global_scale_of_a_power_of_two_is_a_shift_of_all_block_scales(compiler: None) -> None:
    layer, x, ids, weights = case_of(4, 3, **SIZES)
    shifted = dataclasses.replace(
        layer,
        gate_up=MXTensor(layer.gate_up.codes, layer.gate_up.scales + np.uint8(2), "mxfp4"),
        down=MXTensor(layer.down.codes, layer.down.scales - np.uint8(1), "mxfp4"),
    )
    arguments = positional(layer, x, ids, weights)
    arguments[6][1], arguments[6][3] = np.full(6, 4, np.float32), np.full(6, 0.5, np.float32)
    found = bits(fused_moe(*arguments, **keywords(layer)))
    assert np.array_equal(found, reference(shifted, x, ids, weights))
    assert not np.array_equal(found, reference(layer, x, ids, weights))


def test_parameters_of_the_activation(compiler: None) -> None:
    layer, x, ids, weights = case_of(5, 3, **SIZES)
    own = {
        "swiglu_alpha": np.linspace(1, 2, 6, dtype=np.float32),
        "swiglu_beta": np.linspace(0, 2, 6, dtype=np.float32),
        "swiglu_limit": np.linspace(0, 3, 6, dtype=np.float32),
    }
    found = bits(fused_moe(*positional(layer, x, ids, weights), **keywords(layer), **own))
    assert np.array_equal(found, reference(dataclasses.replace(layer, **own), x, ids, weights))
    assert not np.array_equal(found, reference(layer, x, ids, weights))


def of_rank(layer: MoELayer, first: int, count: int) -> MoELayer:
    part = slice(first, first + count)
    return dataclasses.replace(
        layer,
        gate_up=MXTensor(layer.gate_up.codes[part], layer.gate_up.scales[part], "mxfp4"),
        down=MXTensor(layer.down.codes[part], layer.down.scales[part], "mxfp4"),
        gate_up_bias=layer.gate_up_bias[part],  # type: ignore[index]
        down_bias=layer.down_bias[part],  # type: ignore[index]
    )


def test_ranks_of_experts_do_their_own_and_add_up_to_the_layer(compiler: None) -> None:
    layer, x, ids, weights = case_of(6, 4, **{**SIZES, "top_k": 1})
    parts = []
    for rank in range(3):
        mine = of_rank(layer, 2 * rank, 2)
        found = fused_moe(*positional(mine, x, ids, weights), **keywords(mine), ep_size=3, ep_rank=rank)
        assert np.array_equal(bits(found), reference(mine, x, ids, weights, first_expert=2 * rank))
        parts.append(found.astype(np.float32))
    # With one expert a token, all ranks but one have +0, and the sum is exact.
    assert np.array_equal(bits(sum(parts).astype(BF16)), reference(layer, x, ids, weights))  # type: ignore[union-attr]


def test_ranks_of_a_slice_each_add_the_down_bias_once(compiler: None) -> None:
    layer, x, ids, weights = case_of(7, 3, **SIZES)
    for rank, columns in enumerate((slice(0, 32), slice(32, 64))):
        rows = slice(2 * columns.start, 2 * columns.stop)  # gate and up alternate
        mine = dataclasses.replace(
            layer,
            gate_up=MXTensor(layer.gate_up.codes[:, rows].copy(), layer.gate_up.scales[:, rows].copy(), "mxfp4"),
            down=MXTensor(
                layer.down.codes[..., columns.start // 2 : columns.stop // 2].copy(),
                layer.down.scales[..., columns.start // 32 : columns.stop // 32].copy(),
                "mxfp4",
            ),
            gate_up_bias=layer.gate_up_bias[:, rows].copy(),  # type: ignore[index]
        )
        found = fused_moe(*positional(mine, x, ids, weights), **keywords(mine), tp_size=2, tp_rank=rank)
        alone = mine if rank == 0 else dataclasses.replace(mine, down_bias=None)
        assert np.array_equal(bits(found), reference(alone, x, ids, weights))


def test_a_token_depends_neither_on_its_batch_nor_on_its_neighbours(compiler: None) -> None:
    layer, x, ids, weights = case_of(8, 9, **SIZES)
    whole = bits(fused_moe(*positional(layer, x, ids, weights), **keywords(layer)))
    for m in (1, 2, 4, 8):
        found = fused_moe(*positional(layer, x[:m], ids[:m], weights[:m]), **keywords(layer))
        assert np.array_equal(bits(found), whole[:m])
    swapped = np.arange(9)[::-1]
    given = (np.ascontiguousarray(array[swapped]) for array in (x, ids, weights))
    assert np.array_equal(bits(fused_moe(*positional(layer, *given), **keywords(layer))), whole[swapped])
    # Rows that pad the batch: experts that do not exist, NaN for values.
    x2, ids2, weights2 = (np.concatenate([array, array[:3]]) for array in (x, ids, weights))
    x2[9:], ids2[9:], weights2[9:] = np.nan, [[-1, 6], [-1, -1], [6, 6]], np.nan
    padded = bits(fused_moe(*positional(layer, x2, ids2, weights2), **keywords(layer)))
    assert np.array_equal(padded[:9], whole)
    assert not padded[9:].any()


def test_no_tokens_run_nothing() -> None:
    layer, x, ids, weights = case_of(9, 0, **SIZES)
    device = open_device("ptx")
    out = fused_moe(*positional(layer, x, ids, weights), **keywords(layer), device=device)
    assert (out.shape, out.dtype, device.launches) == ((0, 96), BF16, [])


def test_the_workspace_says_all_that_a_layer_takes() -> None:
    shape = LayerShape(tokens=3, top_k=2, experts=4, hidden=96, intermediate=64)
    fused = workspace_bytes(shape, LayerOptions())
    assert fused["expand_codes"] == 6 * 96
    assert fused["activation_scales"] == 640 * 4  # align128(6 + 127 * 4) rows of one group
    assert fused["gemm1_out"] == 6 * 128 * 2
    separate = workspace_bytes(shape, LayerOptions("separate"))
    assert {name: separate[name] for name in separate.keys() - fused.keys()} == {
        "quantize_codes": 3 * 96,
        "quantize_scales": 3 * 3,
    }


def at(index: int, change: Any) -> Any:
    def changed(arguments: list[Any], named: dict[str, Any]) -> None:
        arguments[index] = change(arguments[index])

    return changed


def to(**values: Any) -> Any:
    return lambda arguments, named: named.update(values)


def scale(index: int, value: Any) -> Any:
    def changed(arguments: list[Any], named: dict[str, Any]) -> None:
        arguments[6][index] = value

    return changed


@pytest.mark.parametrize(
    ("change", "argument", "needed"),
    [
        (at(0, lambda x: x.astype(np.float32)), "input", "bfloat16 or float16 [T, H]"),
        (at(0, lambda x: x[:, :40].copy()), "input", "multiple of 32"),
        (at(0, lambda x: x[:, :64].copy()), "fc1_expert_weights", "[E, 2 I, 64] E2M1"),
        (at(0, lambda x: np.asfortranarray(x)), "input", "contiguous"),
        (at(0, lambda x: x.view(np.uint8)[:, :96].copy()), "input_sf", "uint8 [3, 3]"),
        (at(1, lambda ids: ids.astype(np.int64)), "token_selected_experts", "int32 [3, k]"),
        (at(1, lambda ids: np.zeros_like(ids)), "token_selected_experts", "different experts"),
        (at(1, lambda ids: np.tile(ids, 20)), "token_selected_experts", "k from 1 to 32"),
        (at(1, lambda ids: np.tile(ids, 4)), "token_final_scales", "float32 [3, 8]"),
        (at(2, lambda w: w.astype(np.float64)), "token_final_scales", "float32 [3, 2]"),
        (at(3, lambda w: w[:, :96].copy()), "fc1_expert_weights", "I a multiple of 32"),
        (at(4, lambda w: w[:3].copy()), "fc2_expert_weights", "uint8 [6, 96, 32]"),
        (at(4, lambda w: w.astype(np.int8)), "fc2_expert_weights", "int64 view"),
        (at(5, lambda _: np.float32), "output_dtype", "bfloat16"),
        (at(6, lambda scales: scales[:2]), "quant_scales", "4: block scales"),
        (at(6, lambda scales: None), "quant_scales", "4: block scales"),
        (scale(0, np.zeros(10, np.uint8)), "quant_scales[0]", "3072 bytes"),
        (scale(2, None), "quant_scales[2]", "3072 bytes"),
        (scale(1, np.ones(5, np.float32)), "quant_scales[1]", "float32 [6] or None"),
        (to(fc1_expert_biases=np.zeros((6, 96), BF16)), "fc1_expert_biases", "bfloat16 [6, 128]"),
        (to(fc2_expert_biases=np.zeros((6, 96), np.float32)), "fc2_expert_biases", "bfloat16 [6, 96]"),
        (to(input_sf=np.zeros((3, 3), np.uint8)), "input_sf", "None"),
        (to(swiglu_alpha=np.ones(5, np.float32)), "swiglu_alpha", "float32 [6]"),
        (to(swiglu_limit=-np.ones(6, np.float32)), "swiglu_limit", "at least 0"),
        (to(activation="silu", swiglu_beta=np.ones(6, np.float32)), "swiglu_beta", "None"),
        (to(activation="relu"), "activation", "gpt_oss, silu"),
        (to(tp_size=0), "tp_size", "at least 1"),
        (to(tp_size=2, tp_rank=2), "tp_rank", "0 to 1"),
        (to(ep_size=2, ep_rank=-1), "ep_rank", "0 to 1"),
        (to(output=np.zeros((3, 96), np.float32)), "output", "bfloat16 [3, 96]"),
        (to(use_mxfp8_act_scaling=False), "use_mxfp8_act_scaling", "True"),
        (to(scale_mode="even"), "scale_mode", "rceil"),
        (to(edge_policy="ours"), "edge_policy", "exact"),
        (to(enable_alltoall=True), "enable_alltoall", "all-to-all"),
        (to(use_deepseek_fp8_block_scale=True), "use_deepseek_fp8_block_scale", "not built here"),
        (to(backend="Marlin"), "backend", "moe_layer(path='marlin')"),
        (to(backend="trtllm"), "backend", "one that serves sm_120a"),
        (to(backend="x"), "backend", "cutlass, marlin"),
        (to(device="gpu"), "device", "'ptx' or 'cuda'"),
    ],
)
def test_refusals_come_before_any_launch(change: Any, argument: str, needed: str) -> None:
    layer, x, ids, weights = case_of(10, 3, **SIZES)
    arguments, device = positional(layer, x, ids, weights), Recorder()
    named: dict[str, Any] = {**keywords(layer), "device": device}
    change(arguments, named)
    with pytest.raises(ArgumentError) as refused:
        fused_moe(*arguments, **named)
    assert refused.value.argument == argument
    assert needed in refused.value.needed
    assert not device.launches


def test_a_backend_by_its_name_must_serve_the_arch_and_none_takes_the_kernels_that_are_there() -> None:
    layer, x, ids, weights = case_of(11, 1, **SIZES)
    hopper = open_device("ptx", "sm_90a")
    with pytest.raises(ArgumentError, match="one that serves sm_90a: marlin, triton"):
        fused_moe(*positional(layer, x, ids, weights), **keywords(layer), device=hopper, backend="Cutlass")


def test_the_list_of_arguments_is_that_of_the_call() -> None:
    call, listed = (inspect.signature(thing).parameters for thing in (fused_moe, MoEArguments))
    assert {name: one.default for name, one in listed.items()} == {
        name: one.default for name, one in call.items() if name not in ("device", "backend", "others")
    }
    assert list(listed) == list(call)[:-3]


def test_an_unknown_argument_is_one() -> None:
    layer, x, ids, weights = case_of(12, 1, **SIZES)
    with pytest.raises(TypeError, match="tune_everything"):
        fused_moe(*positional(layer, x, ids, weights), **keywords(layer), tune_everything=True)


def test_a_call_names_its_experts_over_all_ranks() -> None:
    layer, x, ids, weights = case_of(13, 2, **SIZES)
    ranks = {"ep_size": 4, "ep_rank": 3, "tp_size": 2, "tp_rank": 1}
    call = make_call(MoEArguments(*positional(layer, x, ids, weights), **keywords(layer), **ranks))
    assert (call.shape.experts, call.shape.first_expert, call.options.quantization) == (6, 18, "fused")
    assert call.tensors["down_bias"] is None
