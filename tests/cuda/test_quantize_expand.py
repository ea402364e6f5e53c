"""What the kernels' host side refuses, and what it launches."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder

from refmoe.cuda import expand, quantize_mxfp8
from refmoe.cuda.device import CudaDevice, DeviceUnavailable, PtxDevice, open_device
from refmoe.errors import ArgumentError
from refmoe.reference import build_permutation

BF16 = ml_dtypes.bfloat16


@pytest.fixture
def device() -> Recorder:
    return Recorder()


def _row(k: int = 64, rows: int = 2) -> Any:
    return np.zeros((rows, k), BF16)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (_row(48), {}, "x: found K = 48; needed K a positive multiple of 32"),
        (_row(0), {}, "x: found K = 0; needed K a positive multiple of 32"),
        (np.zeros((2, 64)), {}, r"x: found float64 \[2, 64\]; needed a bfloat16 or float16 array"),
        ([[0.0] * 32], {}, "x: found list .*; needed a bfloat16 or float16 array"),
        (np.zeros(64, BF16), {}, r"x: found bfloat16 \[64\]; needed two dimensions"),
        (np.zeros((64, 2), BF16).T, {}, r"x: found strides \(2, 4\); needed a C-contiguous array"),
        (_row(128)[:, ::2], {}, r"x: found strides \(256, 4\); needed a C-contiguous array"),
        (
            np.broadcast_to(_row(32, 1), (2**31, 32)),
            {},
            "2147483648 rows; needed at most 2147418111: kernels step",
        ),
        (_row(2**29, rows=0), {}, "x: found 2147483648 bytes of scale atoms, for K = 536870912; needed at most"),
        (_row(), {"mode": "even"}, "mode: found 'even'; needed one of 'rceil', 'floor'"),
        (_row(), {"edge": "deepgemm"}, "edge: found 'deepgemm'; needed one of 'exact', 'flashinfer'"),
        (_row(), {"layout": "4x4"}, "layout: found '4x4'; needed one of 'linear', '128x4', '8x4'"),
        (_row(), {"fill": 256}, "fill: found int 256; needed a byte"),
    ],
)
def test_quantize_refuses(device: Recorder, x: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        quantize_mxfp8(x, device=device, **options)
    assert device.launches == []


def _maps(ids: list[list[int]], experts: int = 4, first_expert: int = 0) -> dict[str, Any]:
    topk_ids = np.array(ids, np.int32)
    permutation = build_permutation(topk_ids, experts, first_expert)
    return {
        "topk_ids": topk_ids,
        "unpermuted_to_permuted": permutation.unpermuted_to_permuted,
        "offsets": permutation.offsets,
    }


def _edited(name: str, index: int, value: int) -> dict[str, Any]:
    maps = _maps([[0, 1], [2, 1]])
    maps[name][index] = value
    return maps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topk_ids": np.zeros((3, 2), np.int32)}, r"topk_ids: found int32 \[3, 2\]; needed int32 \[2, 2\]"),
        ({"topk_ids": np.zeros((2, 2), np.int64)}, r"topk_ids: found int64 \[2, 2\]; needed int32 \[2, 2\]"),
        ({"topk_ids": np.zeros((2, 0), np.int32)}, r"topk_ids: .* needed int32 \[2, k\] with k at least 1"),
        ({"offsets": np.zeros(5, np.int32)}, r"offsets: found int32 \[5\]; needed int64 \[5\]"),
        ({"offsets": np.zeros(1, np.int64)}, r"offsets: found int64 \[1\]; needed int64 \[E\+1\]"),
        (_edited("offsets", 0, 1), "offsets: found 1 .. 4; needed 0 first"),
        (_edited("offsets", 2, 0), "offsets: found 0 .. 4, decreasing; needed 0 first, never decreasing"),
        (_edited("offsets", 4, 5), "offsets: found 0 .. 5; .* at most 4 rows last"),
        (_edited("offsets", 1, 0), "unpermuted_to_permuted: found row 0 for expert 0; needed one in"),
        (_edited("unpermuted_to_permuted", 2, 2), "unpermuted_to_permuted: found 3 different rows for 4 entries"),
        (_edited("unpermuted_to_permuted", 0, -1), "unpermuted_to_permuted: found -1 at 0; needed a row"),
        (_edited("topk_ids", (0, 0), 9), "unpermuted_to_permuted: found 0 at 0; needed -1"),  # type: ignore[arg-type]
        ({"first_expert": -1}, "first_expert: found int -1; needed the global id"),
        ({"input_sf": np.zeros((2, 2), np.uint8)}, "input_sf: .* needed None: x is not quantized yet"),
        ({"layout": "linear"}, "layout: found 'linear'; needed one of '128x4', '8x4'"),
        ({"input_sf_layout": "8x4"}, "input_sf_layout: found '8x4'; needed one of 'linear', '128x4'"),
        ({"x": np.zeros((2, 64), np.int8)}, r"x: found int8 \[2, 64\]; needed .* or uint8 E4M3 codes"),
    ],
)
def test_expand_refuses(device: Recorder, changes: dict[str, Any], message: str) -> None:
    arguments = {"x": _row(), **_maps([[0, 1], [2, 1]]), **changes}
    with pytest.raises(ArgumentError, match=message):
        expand(device=device, **arguments)
    assert device.launches == []


def test_expand_refuses_more_ids_than_experts(device: Recorder) -> None:
    maps = _maps([[0, 1]], experts=2)
    maps["topk_ids"] = np.array([[0, 1, 1]], np.int32)
    maps["unpermuted_to_permuted"] = np.array([0, 1, 1], np.int32)
    with pytest.raises(
        ArgumentError, match="topk_ids: found a token with 3 of this rank's experts; needed at most E = 2"
    ):
        expand(_row(rows=1), device=device, **maps)


def test_expand_refuses_scales_of_the_wrong_size(device: Recorder) -> None:
    ready = np.zeros((2, 64), np.uint8)
    with pytest.raises(ArgumentError, match=r"input_sf: found uint8 \[2, 3\]; needed uint8 \[2, 2\]"):
        expand(ready, device=device, **_maps([[0], [1]]), input_sf=np.zeros((2, 3), np.uint8))
    with pytest.raises(ArgumentError, match=r"input_sf: .* needed uint8 \[512\]"):  # one 128x4 atom
        expand(ready, device=device, **_maps([[0], [1]]), input_sf=np.zeros(4, np.uint8), input_sf_layout="128x4")


def test_empty_input_launches_nothing_and_returns_filled_buffers(device: Recorder) -> None:
    quantized = quantize_mxfp8(_row(rows=0), device=device, layout="128x4")
    assert quantized.codes.shape == (0, 64)
    assert quantized.scales.shape == (0,)
    expanded = expand(
        _row(rows=0),
        np.zeros((0, 2), np.int32),
        np.zeros(0, np.int32),
        np.zeros(5, np.int64),
        device=device,
        fill=0xFF,
    )
    assert expanded.codes.shape == (0, 64)
    assert expanded.scales.tobytes() == b"\xff" * 512 * 4  # align128(127 * 4) = 512 rows of one scale word
    assert device.launches == []


def test_rows_past_the_grid_are_taken_by_a_loop(device: Recorder) -> None:
    quantize_mxfp8(_row(rows=200), device=device)
    (plan,) = device.launches
    assert plan.grid == 64 * device.multiprocessors
    assert plan.block == 32  # K = 64 is four threads' work; a warp is the least


def test_a_wide_row_takes_several_rounds(device: Recorder) -> None:
    quantize_mxfp8(np.zeros((1, 16384), BF16), device=device)
    assert device.launches[0].block == 512


def test_open_device_refuses() -> None:
    with pytest.raises(ArgumentError, match="device: found str 'rocm'; needed 'ptx' or 'cuda'"):
        open_device("rocm")
    with pytest.raises(ArgumentError, match="arch: found str 'sm_100a'; needed one of"):
        open_device("ptx", "sm_100a")
    assert isinstance(open_device("ptx"), PtxDevice)


def test_the_cuda_device_says_what_is_missing() -> None:
    try:
        import torch

        present = torch.cuda.is_available()
    except ImportError:
        present = False
    if present:
        assert isinstance(open_device("cuda"), CudaDevice)
        return
    with pytest.raises(DeviceUnavailable, match="torch"):
        open_device("cuda")
