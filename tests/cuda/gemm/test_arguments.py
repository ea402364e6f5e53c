"""What the grouped GEMM refuses before anything runs, and that the sentence says what, why and what instead."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.gemm.kernel import grouped_gemm
from refmoe.cuda.gemm.tile import TILES, Tile, TileRefused, max_stages
from refmoe.errors import ArgumentError

TOKENS, EXPERTS, N, K = 3, 2, 24, 160
GROUPS = 2  # of four K-blocks, the last of them padded


def device(arch: str = "sm_120a") -> PtxDevice:
    opened = open_device("ptx", arch)
    assert isinstance(opened, PtxDevice)
    return opened


def arguments(**changes: Any) -> dict[str, Any]:
    rows = -(-(TOKENS + 127 * EXPERTS) // 128) * 128
    right: dict[str, Any] = {
        "codes": np.zeros((TOKENS, K), np.uint8),
        "scales": np.zeros(rows * GROUPS * 4, np.uint8),
        "weights": np.zeros((EXPERTS, N, K // 2), np.uint8),
        "weight_scales": np.zeros(EXPERTS * 128 * GROUPS * 4, np.uint8),
        "offsets": np.array([0, 1, 3]),
    }
    return right | changes


def refused(on: PtxDevice | None = None, **changes: Any) -> ArgumentError:
    opened = on or device()
    with pytest.raises(ArgumentError) as caught:
        grouped_gemm(device=opened, **arguments(**changes))
    assert opened.launches == []
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"codes": np.zeros((TOKENS, 24), np.uint8)}, "codes: found uint8 [3, 24]; needed uint8 [T, K]"),
        ({"codes": np.zeros((TOKENS, 0), np.uint8)}, "K a positive multiple of 32"),
        ({"codes": np.zeros(K, np.uint8)}, "codes: "),
        ({"codes": np.zeros((TOKENS, K), np.int8)}, "codes: "),
        ({"codes": np.zeros((TOKENS, 2 * K), np.uint8)[:, ::2]}, "codes: found strides"),
        ({"weights": np.zeros((EXPERTS, N, K), np.uint8)}, "weights: "),
        ({"weights": np.zeros((0, N, K // 2), np.uint8)}, "at least one expert and row"),
        ({"weights": np.zeros((EXPERTS, 12, K // 2), np.uint8)}, "weights: found N = 12; needed N a multiple of 8"),
        ({"weight_scales": np.zeros(EXPERTS * 128 * 5, np.uint8)}, "weight_scales: "),
        ({"scales": np.zeros(TOKENS * GROUPS * 4, np.uint8)}, "scales: "),
        ({"offsets": np.array([0, 1, 3], np.int32)}, "offsets: "),
        ({"offsets": np.array([0, 3])}, "offsets: "),
        ({"offsets": np.array([1, 1, 3])}, "offsets: "),
        ({"offsets": np.array([0, 2, 1])}, "decreasing"),
        ({"offsets": np.array([0, 1, 4])}, "at most 3 rows"),
        ({"alpha": np.ones(EXPERTS)}, "alpha: "),
        ({"alpha": np.ones(EXPERTS + 1, np.float32)}, "alpha: "),
        ({"bias": np.zeros((EXPERTS, N), np.float32)}, "bias: "),
        ({"bias": np.zeros(N, ml_dtypes.bfloat16)}, "bias: "),
        ({"out_dtype": "fp16"}, "out_dtype: found 'fp16'; needed one of 'bf16', 'f32'"),
        ({"fill": 256}, "fill: found int 256; needed a byte"),
        ({"tile": "128x8"}, "tile: found str '128x8'; needed three positive integers"),
        ({"tile": 128}, "tile: found int 128; needed one of 128x8x512"),
        ({"stages": "2"}, "stages: found str '2'"),
    ],
)
def test_arguments(changes: dict[str, Any], words: str) -> None:
    assert words in str(refused(**changes))


@pytest.mark.parametrize("arch", KERNEL_ARCHS)
@pytest.mark.parametrize(
    ("changes", "why", "instead"),
    [
        ({"tile": "128x128x64"}, "a K of 64 elements is no whole number of atoms", "needed 128x128x128"),
        ({"tile": "128x24x128"}, "the kernel is not built for it", "needed 128x32x256"),
        ({"tile": Tile(256, 8, 512)}, "a stage takes 75,776 bytes", "needed 256x8x256"),
        ({"tile": "128x128x128", "stages": 6}, "153,600 bytes where a block has 100,352", "needed 2 to 3 stages"),
        ({"tile": "128x8x512", "stages": 1}, "nothing can be loaded while", "needed 2 stages"),
        ({"stages": 3}, "3 stages of 128x8x512", "needed 2 stages"),
    ],
)
def test_tiles_and_stages(arch: str, changes: dict[str, Any], why: str, instead: str) -> None:
    refusal = refused(device(arch), **changes)
    assert isinstance(refusal, TileRefused)
    assert why in str(refusal)
    assert arch in str(refusal) or "1 stage of" in str(refusal)
    assert str(refusal).endswith(instead)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_no_rows_launch_nothing(tile: Tile) -> None:
    opened = device()
    empty = arguments(
        codes=np.zeros((0, K), np.uint8), offsets=np.zeros(EXPERTS + 1, np.int64), scales=np.zeros(256 * 8, np.uint8)
    )
    assert grouped_gemm(device=opened, tile=tile, stages=max_stages(tile), **empty).shape == (0, N)
    assert opened.launches == []
