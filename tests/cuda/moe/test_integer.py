"""Layers by integer products: what their steps say of their traffic is what the executor sees; what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.toolchain import NVCC
from support.traffic_meter import Meter, meter  # noqa: F401

from refmoe.catalog import parse_case
from refmoe.cuda.moe.integer import integer_steps, integer_workspace_bytes
from refmoe.cuda.moe.launches import LayerBuffers, LayerShape
from refmoe.errors import ArgumentError
from refmoe.families.choices import expert_offsets
from refmoe.views.flow import flow

#: Come by bulk copies, which the meter does not see: of each expert that has a row, all of them.
BULK = ("gate_up", "gate_up_scales", "down", "down_scales")
ABSENT = ("input_sf", "gate_up_alpha", "down_alpha")


def named(shape: LayerShape, path: str, given: dict[str, Any]) -> LayerBuffers:
    """Buffers that are their own names."""
    present = {name: None if value is None else name for name, value in given.items()}
    space = {name: name for name in integer_workspace_bytes(shape, path)}
    return LayerBuffers(**present, **dict.fromkeys(ABSENT), out="out", workspace=space)


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")
@pytest.mark.parametrize(
    "text",
    [
        "integer_moe:bf16:m1k96n64e8t4:gaussian:bias=distinct:params=distinct:seed7@ptx",
        "integer_moe:bf16:m5k64n32e4t2:gaussian:path=llama_cpp:bias=distinct:seed7@ptx",
        "integer_moe:bf16:m3k64n32e6t2:gaussian:variant=silu:seed7@ptx",
    ],
)
def test_declared_traffic_is_what_the_executor_sees(text: str, meter: Meter) -> None:  # noqa: F811
    case = parse_case(text)
    given = dict(case.family.inputs(case))
    case.family.run(case, given, meter)
    size = case.shape
    shape = LayerShape(size.m, size.t, size.e, size.k, size.n)
    steps = integer_steps(shape, case.path, named(shape, case.path, given), multiprocessors=meter.multiprocessors)
    assert len(steps) == len(meter.touched) == 6
    rows = np.diff(expert_offsets(case)).tolist()
    for step, (reads, writes) in zip(steps, meter.touched, strict=True):
        traffic = step.traffic(rows)
        stated = {name: size for name, size in traffic.reads.items() if name not in BULK}
        seen = {name: size for name, size in reads.items() if name not in BULK}
        assert (stated, dict(traffic.writes)) == (seen, writes), step.stage
        for name in traffic.reads.keys() & set(BULK):
            assert traffic.reads[name] == np.count_nonzero(rows) * given[name][0].nbytes, name
        assert set(writes) == set(step.outputs)


def test_more_tokens_and_other_paths_are_refused() -> None:
    shape = LayerShape(9, 1, 2, 32, 32)
    with pytest.raises(ArgumentError, match="x: found 9 tokens; needed at most 8"):
        integer_steps(shape, "dp4a", None, multiprocessors=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="path: found 'marlin'; needed one of 'dp4a', 'llama_cpp'"):
        integer_workspace_bytes(shape, "marlin")


def test_flow_counts_conversions_launches_and_bytes() -> None:
    integer, staying, fused = (flow(path, "gpt-oss-120b", 1) for path in ("dp4a", "llama_cpp", "cutlass"))
    assert (len(integer.first_gemm), len(staying.first_gemm)) == (6, 4)
    assert integer.launches == staying.launches == fused.launches == 6
    assert integer.weights == 4 * 3 * 2880 * (1440 + 90)  # linear scales: no padding
    assert integer.weights < fused.weights
    assert staying.bytes > integer.bytes > integer.weights
    assert flow("dp4a", "gpt-oss-120b", 9).launches == 0
