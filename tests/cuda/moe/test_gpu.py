"""The layer on the GPU of this machine: streams, graphs and operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.moe_call import as_torch, case_of, keywords, positional

from refmoe.catalog import kernel_of, list_cases
from refmoe.cuda.device import DeviceUnavailable, open_device
from refmoe.cuda.moe import fused_moe
from refmoe.reference.moe.pipeline import moe_layer
from refmoe.verify.kernel import Devices
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

SIZES = {"hidden": 416, "intermediate": 160, "experts": 8, "top_k": 3}


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    try:
        open_device("cuda")
    except DeviceUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def devices() -> Devices:
    return Devices()


@pytest.mark.parametrize(
    "case", [case for case in list_cases("default", ["moe"], device="cuda") if case.family.name == "moe"], ids=str
)
def test_default_cases(case: Any, devices: Devices) -> None:
    assert run_case(kernel_of(case, devices), case).verdict is Verdict.PASS


def problem(seed: int, tokens: int = 6) -> tuple[list[Any], dict[str, Any], np.ndarray]:
    """Arguments on the GPU, the same layer for every seed, and the reference's bits."""
    layer, *_ = case_of(0, tokens, **SIZES)
    _, x, ids, weights = case_of(seed, tokens, **SIZES)
    expected = moe_layer(x, layer, quantization="fused", topk_ids=ids, topk_weights=weights)
    arguments = as_torch(positional(layer, x, ids, weights), "cuda")
    return arguments, as_torch(keywords(layer), "cuda"), expected.view(np.uint16)


def bits(tensor: Any) -> np.ndarray:
    return tensor.cpu().view(torch.uint16).numpy()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("min_latency", [True, False])
def test_bytes_of_the_reference(fused: bool, min_latency: bool) -> None:
    tensors, named, expected = problem(1)
    out = fused_moe(*tensors, **named, quantize_in_expand=fused, min_latency_mode=min_latency)
    assert np.array_equal(bits(out), expected)


def test_a_captured_graph_replays_with_other_input() -> None:
    tensors, named, expected = problem(1)
    out = torch.empty(6, 416, dtype=torch.bfloat16, device="cuda")
    fused_moe(*tensors, **named, output=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fused_moe(*tensors, **named, output=out)
    out.fill_(7)
    graph.replay()
    assert np.array_equal(bits(out), expected)
    for seed in (2, 3):
        others, _, wanted = problem(seed)
        for place in range(3):  # tokens, ids, weights
            tensors[place].copy_(others[place])
        graph.replay()
        assert np.array_equal(bits(out), wanted)
        assert not np.array_equal(wanted, expected)


def test_what_pads_a_graph_changes_nothing() -> None:
    tensors, named, expected = problem(1)
    padding = torch.full((10, 416), float("nan"), dtype=torch.bfloat16, device="cuda")
    ids = torch.full((10, 3), -1, dtype=torch.int32, device="cuda")
    weights = torch.full((10, 3), float("nan"), dtype=torch.float32, device="cuda")
    padded = [torch.cat(pair) for pair in zip(tensors[:3], (padding, ids, weights), strict=True)]
    out = fused_moe(*padded, *tensors[3:], **named)
    assert np.array_equal(bits(out[:6]), expected)
    assert not bits(out[6:]).any()


def test_a_side_stream_is_used_and_nothing_waits_for_the_default_one() -> None:
    tensors, named, expected = problem(1)
    fused_moe(*tensors, **named)
    out = torch.empty(6, 416, dtype=torch.bfloat16, device="cuda")
    torch.cuda.synchronize()
    side, blocker = torch.cuda.Stream(), torch.cuda.Stream()
    ready = torch.cuda.Event()
    with torch.cuda.stream(blocker):
        torch.cuda._sleep(2_000_000_000)
    with torch.cuda.stream(side):
        fused_moe(*tensors, **named, output=out)
        ready.record()
    ready.synchronize()
    assert not blocker.query()  # the other stream is still at work: what ran did not run behind it
    assert np.array_equal(bits(out), expected)
    blocker.synchronize()


def test_opcheck() -> None:
    tensors, named, _ = problem(1)
    torch.library.opcheck(torch.ops.refmoe.fused_moe.default, tuple(tensors), named)


def test_a_tensor_that_starts_at_an_odd_place_is_refused() -> None:
    from refmoe.errors import ArgumentError

    tensors, named, _ = problem(1)
    raw = torch.empty(6 * 3 + 1, dtype=torch.int32, device="cuda")
    tensors[1] = raw[1:].view(6, 3).copy_(tensors[1])
    with pytest.raises(ArgumentError, match="token_selected_experts: found a tensor that starts 4 bytes past"):
        fused_moe(*tensors, **named)
