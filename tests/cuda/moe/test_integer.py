"""Layers by integer products: what their steps say of their traffic is what the executor sees; what is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from support.moe import random_layer, random_tokens
from support.selection.thinned import thinned
from support.toolchain import NVCC
from support.traffic_meter import Meter, meter  # noqa: F401

from refmoe.catalog import parse_case
from refmoe.cuda import open_device
from refmoe.cuda.dp4a import MAX_K
from refmoe.cuda.moe.integer import integer_steps, integer_workspace_bytes, output_bytes
from refmoe.cuda.moe.launches import LayerBuffers, LayerShape
from refmoe.cuda.routing import MapBuffers, permute_plan
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.choices import expert_offsets
from refmoe.reference import MoELayer, moe_layer
from refmoe.views.flow import flow, staying_summary

#: Come by bulk copies, which the meter does not see: of each expert that has a row, all of them.
BULK = ("gate_up", "gate_up_scales", "down", "down_scales")
ABSENT = ("gate_up_alpha", "down_alpha")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")


def named(shape: LayerShape, path: str, given: dict[str, Any], **chosen: str) -> LayerBuffers:
    """Buffers that are their own names."""
    given = {"input_sf" if name == "x_d" else name: value for name, value in given.items()}
    present = {name: None if value is None else name for name, value in given.items()}
    space = {name: name for name in integer_workspace_bytes(shape, path, **chosen)}
    return LayerBuffers(**{**dict.fromkeys(ABSENT), **present}, out="out", workspace=space)


@needs_nvcc
@pytest.mark.parametrize(
    ("text", "launches"),
    thinned(
        [
            ("integer_moe:bf16:m1k96n64e8t4:gaussian:bias=distinct:params=distinct:seed7@ptx", 6),
            ("integer_moe:bf16:m5k64n32e4t2:gaussian:path=llama_cpp:bias=distinct:seed7@ptx", 6),
            ("integer_moe:bf16:m3k64n32e6t2:gaussian:variant=silu:seed7@ptx", 6),
            ("integer_moe:q8_1:m3k96n32e6t2:gaussian:path=llama_cpp:output=q8_1:bias=distinct:seed7@ptx", 5),
            ("integer_moe:bf16:m1k96n64e8t4:gaussian:path=llama_cpp:output=q8_1:seed7@ptx", 6),
        ],
        2,
    ),
)
def test_declared_traffic_is_what_the_executor_sees(text: str, launches: int, meter: Meter) -> None:  # noqa: F811
    case = parse_case(text)
    given = dict(case.family.inputs(case))
    case.family.run(case, given, meter)
    size = case.shape
    shape = LayerShape(size.m, size.t, size.e, size.k, size.n)
    chosen = {"quantization": "ready" if case.dtype == "q8_1" else "separate", "output": case.output}
    buffers = named(shape, case.path, given, **chosen)
    steps = integer_steps(shape, case.path, buffers, multiprocessors=meter.multiprocessors, **chosen)
    assert len(steps) == len(meter.touched) == launches
    rows = np.diff(expert_offsets(case)).tolist()
    for step, (reads, writes) in zip(steps, meter.touched, strict=True):
        traffic = step.traffic(rows)
        stated = {name: size for name, size in traffic.reads.items() if name not in BULK}
        seen = {name: size for name, size in reads.items() if name not in BULK}
        assert (stated, dict(traffic.writes)) == (seen, writes), step.stage
        for name in traffic.reads.keys() & set(BULK):
            assert traffic.reads[name] == np.count_nonzero(rows) * given[name][0].nbytes, name
        assert set(writes) == set(step.outputs)


# --- a chain --------------------------------------------------------------------------------------------------------

IDS = np.array([[5, 2], [0, 2], [4, 1]], np.int32)
WEIGHTS = np.array([[0.625, 0.375], [0.5, 0.5], [0.875, 0.125]], np.float32)


def launched(layer: MoELayer, device: Any, x: Any, d: Any, output: str) -> tuple[Any, Any, Any]:
    """One layer on buffers of the device: its output, and of Q8_1 scales and sums."""
    shape = LayerShape(len(IDS), layer.top_k, layer.experts, layer.hidden, layer.intermediate)
    chosen = {"quantization": "separate" if d is None else "ready", "output": output}
    space = {
        name: device.output(name, (size,), 0xA5)
        for name, size in integer_workspace_bytes(shape, "llama_cpp", **chosen).items()
    }
    uploaded = {
        "topk_ids": IDS, "topk_weights": WEIGHTS, "gate_up_bias": layer.gate_up_bias, "down_bias": layer.down_bias,
        "gate_up": layer.gate_up.codes, "gate_up_scales": layer.gate_up.scales,
        "down": layer.down.codes, "down_scales": layer.down.scales,
    }  # fmt: skip
    buffers = LayerBuffers(
        x=x,
        input_sf=d,
        **{name: device.upload(name, array) for name, array in uploaded.items()},
        **dict.fromkeys((*ABSENT, "swiglu_alpha", "swiglu_beta", "swiglu_limit")),
        out=device.output("out", (output_bytes(shape, output),), 0xA5),
        workspace=space,
    )
    for step in integer_steps(shape, "llama_cpp", buffers, multiprocessors=device.multiprocessors, **chosen):
        device.launch(step.plan)
    return buffers.out, space.get("out_d"), space.get("out_s")


@needs_nvcc
def test_three_layers_in_a_chain_without_a_conversion_between_them() -> None:
    """A layer reads the very buffers that the one before wrote. The bytes are those of the references in turn."""
    rng = np.random.default_rng(17)
    layers = [random_layer(rng, hidden=96, intermediate=64, top_k=2) for _ in range(3)]
    x = random_tokens(rng, len(IDS), 96, outliers=9)
    device = open_device("ptx")
    routed = {"path": "llama_cpp", "topk_ids": IDS, "topk_weights": WEIGHTS}

    first = launched(layers[0], device, device.upload("x", x), None, "q8_1")
    wanted = moe_layer(x, layers[0], output="q8_1", **routed)
    second = launched(layers[1], device, *first[:2], "q8_1")
    then = moe_layer(wanted, layers[1], quantization="ready", output="q8_1", **routed)
    last, _, _ = launched(layers[2], device, *second[:2], "bf16")

    for buffers, tensor in ((first, wanted), (second, then)):
        for buffer, part in zip(buffers, (tensor.codes, tensor.d, tensor.s), strict=True):
            assert device.download(buffer).tobytes() == part.tobytes()
    assert device.download(last).tobytes() == moe_layer(then, layers[2], quantization="ready", **routed).tobytes()
    assert len(device.launches) == 6 + 5 + 5  # only the first layer quantizes its tokens


# --- what is refused ------------------------------------------------------------------------------------------------


LAYER = {"tokens": 1, "top_k": 2, "experts": 4, "hidden": 64, "intermediate": 32}
USUAL = {"quantization": "separate", "output": "bf16"}


def planned(sizes: dict[str, int], path: str = "llama_cpp", input_sf: str | None = None, **chosen: Any) -> Any:
    buffers = LayerBuffers(**{**dict.fromkeys(field.name for field in fields(LayerBuffers)), "input_sf": input_sf})
    return integer_steps(LayerShape(**{**LAYER, **sizes}), path, buffers, multiprocessors=1, **{**USUAL, **chosen})


@pytest.mark.parametrize(
    ("sizes", "chosen", "message"),
    [
        ({"tokens": 9}, {}, "x: found 9 tokens; needed at most 8"),
        ({"tokens": -1}, {}, "tokens: found -1; needed at least 0"),
        ({"top_k": 33}, {}, "topk_ids: found k = 33; needed k from 1 to 32"),
        ({"top_k": 0}, {}, "top_k: found 0; needed at least 1"),
        ({"experts": 0}, {}, "experts: found 0; needed at least 1"),
        ({"hidden": 33}, {}, "hidden: found 33; needed a positive multiple of 32"),
        ({"hidden": 0}, {}, "hidden: found 0; needed a positive multiple of 32"),
        ({"intermediate": 48}, {}, "intermediate: found 48; needed a positive multiple of 32"),
        ({"hidden": MAX_K + 32}, {}, f"gate_up: found K = {MAX_K + 32}; needed .* at most {MAX_K}"),
        ({"intermediate": MAX_K + 32}, {}, f"down: found K = {MAX_K + 32}; needed .* at most {MAX_K}"),
        ({"first_expert": 2**31 - 1}, {}, "first_expert: found int 2147483647"),
        ({"first_expert": -1}, {}, "first_expert: found -1; needed at least 0"),
        ({}, {"path": "marlin"}, "path: found 'marlin'; needed one of 'dp4a', 'llama_cpp'"),
        ({}, {"variant": "relu"}, "variant: found 'relu'"),
        ({}, {"quantization": "fused"}, "quantization: found fused with llama_cpp; needed one of separate, ready"),
        ({}, {"output": "f32"}, "output: found str 'f32'; needed one of bf16, q8_1"),
        ({}, {"path": "dp4a", "output": "q8_1"}, "output: found q8_1 with dp4a; needed bf16"),
        ({}, {"path": "dp4a", "quantization": "ready", "input_sf": "d"}, "quantization: found ready with dp4a"),
        ({}, {"quantization": "ready"}, "input_sf: found None with ready tokens; needed scales with ready tokens"),
        ({}, {"input_sf": "d"}, "input_sf: found scales of tokens that are not quantized with separate tokens"),
    ],
)
def test_what_the_launches_cannot_run_is_refused_before_one_is_planned(
    sizes: dict[str, int], chosen: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        planned(sizes, **chosen)


@pytest.mark.parametrize("sizes", [{"hidden": MAX_K}, {"intermediate": MAX_K}, {"tokens": 8, "top_k": 32}])
def test_the_largest_of_each_is_planned(sizes: dict[str, int]) -> None:
    buffers = LayerBuffers(
        **{field.name: field.name for field in fields(LayerBuffers)} | {"input_sf": None, "workspace": {}}
    )
    shape = LayerShape(**{**LAYER, **sizes})
    space = {name: name for name in integer_workspace_bytes(shape, "dp4a", **USUAL)}
    steps = integer_steps(shape, "dp4a", replace(buffers, workspace=space), **USUAL, multiprocessors=1)
    assert [step.stage for step in steps] == ["permute", "quantize", "gemm1", "activation", "gemm2", "finalize"]
    # Each but the first may start before the one in front of it has ended.
    assert [step.plan.programmatic for step in steps] == [False, True, True, True, True, True]


@needs_nvcc
def test_a_launch_of_a_chain_that_waits_for_none_in_front_is_an_error() -> None:
    device = open_device("ptx", "sm_120a")
    ids = device.upload("topk_ids", np.zeros((1, 1), np.int32))
    maps = MapBuffers(*(device.output(name, (16,), 0) for name in ("offsets", "to_unpermuted", "to_permuted")))
    plan = permute_plan(ids, maps, tokens=1, top_k=1, experts=1, first_expert=0)
    device.launch(plan)
    with pytest.raises(RefmoeError, match="previous grid race on byte 0 of offsets"):
        device.launch(replace(plan, programmatic=True))
    others = MapBuffers(*(device.output(name, (16,), 0) for name in ("offsets", "to_unpermuted", "to_permuted")))
    again = permute_plan(ids, others, tokens=1, top_k=1, experts=1, first_expert=0)
    with pytest.raises(
        RefmoeError, match=r"refmoe_route_sort_few ended without griddepcontrol\.wait: the launch behind it"
    ):
        device.launch(replace(again, programmatic=True))


def test_a_workspace_of_another_path_is_refused() -> None:
    shape = LayerShape(**LAYER)
    with pytest.raises(ArgumentError, match="path: found 'marlin'; needed one of 'dp4a', 'llama_cpp'"):
        integer_workspace_bytes(shape, "marlin", **USUAL)
    with pytest.raises(ArgumentError, match="output: found q8_1 with dp4a"):
        integer_workspace_bytes(shape, "dp4a", quantization="separate", output="q8_1")


def test_flow_counts_conversions_launches_and_bytes() -> None:
    integer, staying, fused = (flow(path, "gpt-oss-120b", 1) for path in ("dp4a", "llama_cpp", "cutlass"))
    assert (len(integer.first_gemm), len(staying.first_gemm)) == (6, 4)
    assert integer.launches == staying.launches == fused.launches == 6
    assert integer.weights == 4 * 3 * 2880 * (1440 + 90)  # linear scales: no padding
    assert integer.weights < fused.weights
    assert staying.bytes > integer.bytes > integer.weights
    assert flow("dp4a", "gpt-oss-120b", 9).launches == 0


def test_a_chain_of_llama_cpp_converts_four_times_a_gemm() -> None:
    converting = flow("llama_cpp", "gpt-oss-120b", 1)
    staying = flow("llama_cpp", "gpt-oss-120b", 1, quantization="ready", output="q8_1")
    assert staying.per_gemm == ("FP32 -> Q8_1", "FP4 -> INT8", "INT8 x INT8 -> INT32", "INT32 -> FP32")
    # The same four lie between the layer's last GEMM and the first one of the next layer.
    stages = {step.stage: step.conversions for step in staying.steps}
    assert stages["finalize"] + stages["gemm1"] == staying.per_gemm
    assert (len(staying.conversions), len(converting.conversions)) == (8, 9)
    assert (staying.launches, converting.launches) == (5, 6)
    # A token is not written in BF16 and read again. Q8_1 of it is written once in either.
    assert converting.bytes - staying.bytes == 2 * 2880 * 2
    assert staying.stays
    assert not converting.stays
    assert "save 1 launch of 6, 1 conversion of 9 and 11,520 bytes" in staying_summary(converting, staying)
