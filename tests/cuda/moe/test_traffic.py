"""What a layer's steps say of their traffic is what the executor sees them touch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.selection.thinned import thinned
from support.traffic_meter import Meter, meter  # noqa: F401

from refmoe.catalog import parse_case
from refmoe.cuda.moe.arrays import layer_outputs
from refmoe.cuda.moe.call import MoEArguments, MoECall, make_call
from refmoe.cuda.moe.launches import LayerBuffers, layer_steps
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.families.family import Case
from refmoe.reference.layout import swizzle_weight_scales
from refmoe.reference.quantize import quantize_mxfp8


@pytest.fixture(autouse=True)
def _compiler() -> None:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))


def called(case: Case, globals_: bool) -> MoECall:
    given = case.family.inputs(case)
    ones = np.ones(case.shape.e, np.float32) if globals_ else None
    scales = [swizzle_weight_scales(given[f"{name}_scales"]) for name in ("gate_up", "down")]
    arguments = MoEArguments(
        given["x"], given["topk_ids"], given["topk_weights"], given["gate_up"], given["down"], ml_dtypes.bfloat16,
        [scales[0], ones, scales[1], ones], fc1_expert_biases=given["gate_up_bias"],
        fc2_expert_biases=given["down_bias"], input_sf=given["input_sf"], swiglu_alpha=given["swiglu_alpha"],
        swiglu_limit=given["swiglu_limit"], ep_size=case.ranks, ep_rank=case.first_expert // case.shape.e,
        quantize_in_expand=case.path == "fused", activation=case.variant,
    )  # fmt: skip
    return make_call(arguments)


@pytest.mark.parametrize(
    ("text", "globals_"),
    thinned(
        [
            ("moe:bf16:m3k96n64e6t4:gaussian:bias=distinct:params=distinct:seed7@ptx", True),
            ("moe:bf16:m1k416n160e8t4:gaussian:path=fused:bias=distinct:seed7@ptx", False),
            ("moe:bf16:m5k96n64e40t3:gaussian:path=ready:seed7@ptx", False),  # more experts than lanes
            ("moe:bf16:m6k96n64e4t4:gaussian:path=fused:bias=distinct:first_expert=4:ranks=3:seed7@ptx", False),
            ("moe:bf16:m3k96n64e4t2:gaussian:path=fused:routing=elsewhere:first_expert=4:ranks=2:seed7@ptx", False),
            ("moe:bf16:m9k96n64e6t2:gaussian:variant=silu:routing=padded:seed7@ptx", False),
            (
                "moe:bf16:m150k32n32e2t1:gaussian:path=fused:routing=same-experts:seed7@ptx",
                False,
            ),  # two atoms of scales
        ],
        4,
    ),
)
def test_declared_traffic_is_what_the_executor_sees(text: str, globals_: bool, meter: Meter) -> None:  # noqa: F811
    case = parse_case(text)
    call = called(case, globals_)
    written = layer_outputs(call, meter, 0x7F)
    offsets = written["offsets"].array.view(np.int64)
    present: dict[str, Any] = {name: value if value is None else name for name, value in call.tensors.items()}
    buffers = LayerBuffers(**present, out="out", workspace={name: name for name in written})
    steps = layer_steps(call.shape, call.options, buffers, multiprocessors=meter.multiprocessors, arch=meter.arch)
    assert len(steps) == len(meter.touched)
    for step, (reads, writes) in zip(steps, meter.touched, strict=True):
        traffic = step.traffic(np.diff(offsets).tolist())
        stated = tuple({name: size for name, size in side.items() if size} for side in (traffic.reads, traffic.writes))
        assert stated == (reads, writes), step.stage
        assert set(writes) <= set(step.outputs)


def test_the_ready_tokens_are_those_of_the_separate_launch() -> None:
    case = parse_case("moe:bf16:m3k96n64e4t2:gaussian:path=ready:seed7@ptx")
    plain = parse_case("moe:bf16:m3k96n64e4t2:gaussian:seed7@ptx")
    ready = case.family.inputs(case)
    quantized = quantize_mxfp8(plain.family.inputs(plain)["x"])
    assert ready["x"].tobytes() == quantized.codes.tobytes()
    assert ready["input_sf"].tobytes() == quantized.scales.tobytes()
