"""What the host side of NVFP4 and of expand's other outputs refuses, and the codes of chips without the conversion."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder

from refmoe import cuda
from refmoe.cuda import expand_as
from refmoe.cuda.device import PtxDevice
from refmoe.cuda.toolchain import ToolchainError, find_toolchain
from refmoe.errors import ArgumentError
from refmoe.reference import build_permutation, quantize_nvfp4

BF16 = ml_dtypes.bfloat16


@pytest.fixture
def device() -> Recorder:
    return Recorder()


def _row(k: int = 64, rows: int = 2, dtype: Any = BF16) -> Any:
    return np.zeros((rows, k), dtype)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": _row(24)}, "x: found K = 24; needed K a positive multiple of 16"),
        ({"x": _row(0)}, "x: found K = 0"),
        ({"x": _row(dtype=np.float32)}, "x: .* a bfloat16 or float16 array"),
        ({"x": np.zeros(64, BF16)}, "x: .* two dimensions"),
        ({"x": np.zeros((64, 16), BF16).T}, "x: found strides .* a C-contiguous array"),
        ({"layout": "8x4"}, "layout: found '8x4'; needed one of 'linear', '128x4'"),
        ({"fill": 256}, "fill: found int 256; needed a byte"),
        ({"global_encode_scale": 0.0}, "global_encode_scale: .* above 0"),
        ({"global_encode_scale": 1e-40}, "global_encode_scale: .* a finite reciprocal"),
    ],
)
def test_quantize_refuses(device: Any, changes: dict[str, Any], message: str) -> None:
    arguments = {"x": _row(), "global_encode_scale": 1.0, **changes}
    with pytest.raises(ArgumentError, match=message):
        cuda.quantize_nvfp4(device=device, **arguments)
    assert device.launches == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": "mxfp8"}, "output: found str 'mxfp8'; needed one of nvfp4"),
        ({"x": _row(24)}, "x: found K = 24; needed K a positive multiple of 16"),
        ({"x": _row(dtype=np.uint8)}, "x: .* a bfloat16 or float16 array"),
        ({"layout": "linear"}, "layout: found 'linear'; needed one of '128x4', '8x4'"),
        ({"fill": -1}, "fill: found int -1; needed a byte"),
        ({"output": "nvfp4"}, "encode_scale: found None; needed the float32 factor of nvfp4"),
        ({"output": "nvfp4", "encode_scale": np.ones(2, np.float32)}, r"encode_scale: .* needed float32 \[1\]"),
        ({"encode_scale": 1.0}, "encode_scale: .* None: fp8_token takes no scale"),
        ({"prescale": np.ones(64, np.float16)}, r"prescale: .* bfloat16 \[64\]"),
        ({"topk_ids": np.zeros((3, 1), np.int32)}, "topk_ids: .*"),
    ],
)
def test_expand_refuses(device: Any, changes: dict[str, Any], message: str) -> None:
    ids = np.zeros((2, 1), np.int32)
    maps = build_permutation(ids, 1)
    arguments: dict[str, Any] = {
        **{"x": _row(), "topk_ids": ids, "unpermuted_to_permuted": maps.unpermuted_to_permuted},
        **{"offsets": maps.offsets, "output": "fp8_token", **changes},
    }
    with pytest.raises(ArgumentError, match=message):
        expand_as(device=device, **arguments)
    assert device.launches == []


def test_nothing_is_launched_for_no_rows(device: Any) -> None:
    made = cuda.quantize_nvfp4(_row(rows=0), global_encode_scale=1.0, device=device, layout="128x4")
    assert (made.codes.shape, made.scales.shape, device.launches) == ((0, 32), (0,), [])


def _has_nvcc() -> bool:
    try:
        find_toolchain()
    except ToolchainError:
        return False
    return True


@pytest.mark.skipif(not _has_nvcc(), reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_every_code_of_every_bf16_by_instruction_and_in_software(arch: str) -> None:
    """Under g = 1 a block with the maximum 6 has factor 1: all finite BF16 up to 6, and larger ones that saturate."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    values = patterns[np.abs(patterns.view(BF16).astype(np.float32)) <= 6]
    blocks = np.zeros((-(-values.size // 15), 16), np.uint16)
    blocks[:, 0] = np.array([6], BF16).view(np.uint16)
    blocks[:, 1:] = np.resize(values, blocks[:, 1:].shape)
    x = np.ascontiguousarray(blocks).view(BF16)
    expected = quantize_nvfp4(x, global_encode_scale=1.0)
    assert np.unique(expected.scales).tolist() == [0x38]
    made = cuda.quantize_nvfp4(x, global_encode_scale=1.0, device=PtxDevice(arch, 8))
    assert made.codes.tobytes() == expected.codes.tobytes()
