"""What the host side of block FP8 refuses, and what it launches."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.launch_recorder import Recorder

from refmoe.cuda.block_fp8 import TILE_CTAS_PER_MULTIPROCESSOR, quantize_block_fp8
from refmoe.errors import ArgumentError

BF16 = ml_dtypes.bfloat16


@pytest.fixture
def device() -> Recorder:
    return Recorder()


def row(k: int = 64, rows: int = 2, dtype: Any = BF16) -> Any:
    return np.zeros((rows, k), dtype)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (row(48), {}, "x: found K = 48; needed K a positive multiple of 32"),
        (row(0), {}, "x: found K = 0"),
        (np.zeros((2, 64)), {}, r"x: found float64 \[2, 64\]; needed a bfloat16, float16 or float32 array"),
        (row(64)[0], {}, r"x: found bfloat16 \[64\]; needed two dimensions"),
        (row(128)[:, ::2], {}, r"x: found strides \(256, 4\); needed a C-contiguous array"),
        (np.broadcast_to(row(32, 1), (2**31 - 100, 32)), {}, "2147483676 rows and those of one more tile"),
        (row(), {"block": "1x32"}, "block: found '1x32'; needed one of '1x128', '128x128'"),
        (row(), {"policy": "ocp"}, "policy: found 'ocp'; needed one of 'deepgemm', 'exact'"),
        (row(), {"scales": "bf16"}, "scales: found 'bf16'; needed one of 'fp32', 'ue8m0'"),
        (row(), {"layout": "linear"}, "layout: found 'linear'; needed one of 'k_major', 'mn_major'"),
        (row(), {"block": "128x128", "layout": "mn_major"}, "layout: found 'mn_major' with block 128x128; needed"),
        (row(), {"fill": 256}, "fill: found int 256; needed a byte"),
    ],
)
def test_what_is_refused(device: Recorder, x: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        quantize_block_fp8(x, device=device, **options)
    assert device.launches == []


def test_no_rows_launch_nothing(device: Recorder) -> None:
    result = quantize_block_fp8(row(rows=0), device=device, layout="mn_major")
    assert result.codes.shape == (0, 64)
    assert result.scales.shape == (1, 0)
    assert device.launches == []


def test_plans(device: Recorder) -> None:
    quantize_block_fp8(row(2880, 5), device=device)
    quantize_block_fp8(row(2880, 5), device=device, layout="mn_major", scales="ue8m0")
    quantize_block_fp8(row(2880, 300, np.float32), device=device, block="128x128", policy="exact")
    rows, turned, tiles = device.launches
    assert (rows.kernel.entry, rows.grid, rows.block) == ("refmoe_block_fp8_1x128_bf16_deepgemm_fp32", 5, 192)
    assert rows.arguments[3:] == (5, 180, 23, 1)
    assert turned.arguments[3:] == (5, 180, 1, 5)
    assert tiles.kernel.entry == "refmoe_block_fp8_128x128_f32_exact_fp32"
    # 3 x 23 tiles for 16 resident CTAs, which take several each.
    assert (tiles.grid, tiles.block) == (2 * TILE_CTAS_PER_MULTIPROCESSOR, 256)
    assert tiles.arguments[3:] == (300, 180, 23, 1)
