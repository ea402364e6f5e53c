"""What torch computes in `refmoe bench sweep` is what refmoe's references say, on a CPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.bench.gpu.kernels import DEEPSEEK_V3, GPT_OSS_120B, MoeSizes, drawn_logits, drawn_weights
from refmoe.bench.sweep import OPERATIONS, TOKENS, peers
from refmoe.bench.sweep.peers import PEERS
from refmoe.reference import build_permutation, finalize, quantize_mxfp8, route_softmax_topk, swiglu

torch = pytest.importorskip("torch")
BF16 = ml_dtypes.bfloat16
SMALL = MoeSizes("small", 256, 128, 8, 2, "gpt_oss", biased=True)
M = 37


def _normal(shape: tuple[int, int], seed: int, scale: float = 1.0) -> tuple[NDArray[Any], Any]:
    """BF16 numbers as an array and as a tensor."""
    values = (np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)).astype(BF16)
    return values, torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)


def _bytes(found: Any) -> bytes:
    array = found if isinstance(found, np.ndarray) else found.contiguous().view(torch.uint8).numpy()
    return np.ascontiguousarray(array).tobytes()


def test_quantize_is_that_of_the_kernels() -> None:
    values, x = _normal((M, SMALL.hidden), 1)
    values[3] = x[3] = 0
    values[4, :3] = [448.0, -448.0, 450.0]
    x[4, :3] = torch.tensor([448.0, -448.0, 450.0])
    codes, scales = peers.quantize(torch, x)
    wanted = quantize_mxfp8(values)
    assert _bytes(codes) == _bytes(wanted.codes)
    assert _bytes(scales) == _bytes(wanted.scales)


def test_expand_is_the_rows_of_the_experts() -> None:
    values, x = _normal((M, SMALL.hidden), 2)
    _, permutation = SMALL.choices(M, 5)
    token = permutation.permuted_to_unpermuted % M
    codes, scales = peers.expand(torch, x, torch.from_numpy(token))
    wanted = quantize_mxfp8(values)
    assert _bytes(codes) == _bytes(wanted.codes[token])
    assert _bytes(scales) == _bytes(wanted.scales[token])


@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
def test_activation_differs_in_few_codes(variant: str) -> None:
    """torch's sigmoid is another one, by units of its last place: a code in a thousand is the next one."""
    values, gate_up = _normal((M, 2 * SMALL.intermediate), 3, scale=3.0)
    codes, _ = peers.activation(torch, gate_up, variant)
    wanted = quantize_mxfp8(swiglu(values, variant=variant)).codes
    apart = np.abs(codes.view(torch.uint8).numpy().astype(int) - wanted.astype(int))
    assert apart.max() <= 1
    assert (apart != 0).mean() < 1e-3


def test_finalize_is_that_of_the_kernels() -> None:
    values, rows = _normal((M * SMALL.top_k, SMALL.hidden), 4)
    bias, bias_tensor = _normal((SMALL.experts, SMALL.hidden), 5)
    ids, permutation = SMALL.choices(M, 6)
    weights = drawn_weights(SMALL, M, 7)
    places, factors, chosen = (torch.from_numpy(each) for each in (permutation.unpermuted_to_permuted, weights, ids))
    found = peers.finalize(torch, rows, places, factors, chosen, bias_tensor)
    wanted = finalize(values, permutation.unpermuted_to_permuted, weights, topk_ids=ids, bias=bias)
    assert _bytes(found) == _bytes(wanted)


def test_route_is_that_of_the_kernels_but_for_the_last_bits_of_weights() -> None:
    logits = drawn_logits(SMALL, M, 8)
    ids, weights, offsets, permuted, unpermuted = peers.route(torch, torch.from_numpy(logits), SMALL.top_k)
    wanted_ids, wanted_weights = route_softmax_topk(logits, SMALL.top_k)
    maps = build_permutation(wanted_ids, SMALL.experts)
    assert _bytes(ids) == _bytes(wanted_ids)
    assert np.abs(weights.numpy().view(np.int32) - wanted_weights.view(np.int32)).max() <= 4
    assert offsets.tolist() == maps.offsets.tolist()
    assert _bytes(permuted) == _bytes(maps.permuted_to_unpermuted)
    assert _bytes(unpermuted) == _bytes(maps.unpermuted_to_permuted)


def test_each_operation_has_a_peer_and_tokens_reach_from_one_to_thousands() -> None:
    assert {peer.operation for peer in PEERS} == set(OPERATIONS)
    assert set(TOKENS) == {1, 2, 4, 8, 16, 32, 64, 128, 512, 4096}
    assert (GPT_OSS_120B.experts, GPT_OSS_120B.top_k) == (128, 4)
    assert (DEEPSEEK_V3.experts, DEEPSEEK_V3.top_k, DEEPSEEK_V3.hidden) == (256, 8, 7168)
