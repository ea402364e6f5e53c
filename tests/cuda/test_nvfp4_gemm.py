"""What the NVFP4 GEMM refuses before anything runs, its tiles, and what it computes on the chips beside the default."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.gemm.tile import Tile, TileRefused
from refmoe.cuda.launch import WARP_LANES
from refmoe.cuda.nvfp4_gemm import (
    DYNAMIC_TILES,
    TILES,
    GemmShape,
    choose_tile,
    max_stages,
    nvfp4_gemm_plan,
    nvfp4_grouped_gemm,
    stage_bytes,
)
from refmoe.cuda.toolchain import CSRC
from refmoe.errors import ArgumentError
from refmoe.families.stages import GroupedScales
from refmoe.reference.layout import swizzle_weight_scales
from refmoe.reference.nvfp4_gemm import nvfp4_grouped_gemm as reference

TOKENS, EXPERTS, N, K = 3, 2, 24, 160
GROUPS = 3  # words of four scales, the last of them half padding


def device(arch: str = "sm_120a", csrc: Path = CSRC) -> PtxDevice:
    opened = open_device("ptx", arch, csrc)
    assert isinstance(opened, PtxDevice)
    return opened


def arguments(**changes: Any) -> dict[str, Any]:
    rows = -(-(TOKENS + 127 * EXPERTS) // 128) * 128
    right: dict[str, Any] = {
        "codes": np.zeros((TOKENS, K // 2), np.uint8),
        "scales": np.zeros(rows * GROUPS * 4, np.uint8),
        "weights": np.zeros((EXPERTS, N, K // 2), np.uint8),
        "weight_scales": np.zeros(EXPERTS * 128 * GROUPS * 4, np.uint8),
        "offsets": np.array([0, 1, 3]),
    }
    return right | changes


def refused(on: PtxDevice | None = None, **changes: Any) -> ArgumentError:
    opened = on or device()
    with pytest.raises(ArgumentError) as caught:
        nvfp4_grouped_gemm(device=opened, **arguments(**changes))
    assert opened.launches == []
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"codes": np.zeros((TOKENS, 24), np.uint8)}, "codes: found uint8 [3, 24]; needed uint8 [T, K/2]"),
        ({"codes": np.zeros((TOKENS, 0), np.uint8)}, "K a positive multiple of 32"),
        ({"codes": np.zeros(K, np.uint8)}, "codes: "),
        ({"codes": np.zeros((TOKENS, K // 2), np.int8)}, "codes: "),
        ({"codes": np.zeros((TOKENS, K), np.uint8)[:, ::2]}, "codes: found strides"),
        ({"weights": np.zeros((EXPERTS, N, K), np.uint8)}, "weights: "),
        ({"weights": np.zeros((0, N, K // 2), np.uint8)}, "at least one expert and row"),
        ({"weights": np.zeros((EXPERTS, 12, K // 2), np.uint8)}, "weights: found N = 12; needed N a multiple of 8"),
        # Scales for every 32 elements, as MXFP4 has them.
        ({"weight_scales": np.zeros(EXPERTS * 128 * 8, np.uint8)}, "weight_scales: "),
        ({"scales": np.zeros(384 * 8, np.uint8)}, "scales: "),
        ({"offsets": np.array([0, 1, 3], np.int32)}, "offsets: "),
        ({"offsets": np.array([0, 2, 1])}, "decreasing"),
        ({"offsets": np.array([0, 1, 4])}, "at most 3 rows"),
        ({"alpha": np.ones(EXPERTS)}, "alpha: "),
        ({"alpha": np.ones(1, np.float32)}, "alpha: "),
        ({"bias": np.zeros((EXPERTS, N), np.float32)}, "bias: "),
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
        ({"tile": "128x128x64"}, "no whole number of steps of 128", "128x8x128"),
        ({"tile": "128x24x256"}, "the kernel is not built for it", "128x8x128"),
        ({"tile": Tile(256, 128, 256)}, "a stage takes 55,296 bytes", "128x8x128"),
        ({"tile": Tile(64, 8, 512)}, "64 weight rows are no whole number of atoms", "128x8x128"),
        ({"tile": "128x128x256", "stages": 3}, "110,592 bytes where a block has 96,256", "needed 2 stages"),
        ({"tile": "128x32x256", "stages": 1}, "nothing can be loaded while", "needed 2 to 4 stages"),
    ],
)
def test_tiles_and_stages(arch: str, changes: dict[str, Any], why: str, instead: str) -> None:
    refusal = refused(device(arch), **changes)
    assert isinstance(refusal, TileRefused)
    assert why in str(refusal)
    assert str(refusal).endswith(instead)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_tile_fits_the_shared_memory_of_sm12x(tile: Tile) -> None:
    """Bytes counted from the shapes: packed codes, and a UE4M3 byte for every 16 elements of at least 128 rows."""
    bytes_ = (tile.m + tile.n) * tile.k // 2 + (tile.m + max(tile.n, 128)) * tile.k // 16
    assert stage_bytes(tile) == bytes_
    stages = max_stages(tile, "sm_120a")
    assert stages >= 2
    plan = nvfp4_gemm_plan(tile, "f32", stages, (), None, GemmShape(1, 1, 8, 64), multiprocessors=1)
    assert plan.shared_bytes <= 101_376 < plan.shared_bytes + bytes_
    assert plan.block // WARP_LANES in (4, 8)


def test_the_choice_is_the_fewest_tiles_and_then_the_narrowest() -> None:
    for m in [*range(1, 300), 5000]:
        wanted = min(DYNAMIC_TILES, key=lambda tile: (-(-m // tile.n), tile.n))
        assert choose_tile(m, "sm_120a") == wanted


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_no_rows_launch_nothing(tile: Tile) -> None:
    opened = device()
    empty = arguments(
        codes=np.zeros((0, K // 2), np.uint8),
        offsets=np.zeros(EXPERTS + 1, np.int64),
        scales=np.zeros(256 * GROUPS * 4, np.uint8),
    )
    assert nvfp4_grouped_gemm(device=opened, tile=tile, **empty).shape == (0, N)
    assert opened.launches == []


def one_tile(folder: Path, tile: str) -> Path:
    """A copy of the sources with one tile."""
    target = folder / "csrc"
    shutil.copytree(CSRC, target)
    kernel = target / "nvfp4_gemm.cu"
    only = re.sub(r"^REFMOE_TILE\((?!" + tile + r"\)).*\n", "", kernel.read_text(), flags=re.MULTILINE)
    kernel.write_text(only)
    return target


@pytest.mark.parametrize("arch", ["sm_121a", "sm_90a"])
def test_other_chips(tmp_path: Path, arch: str) -> None:
    """In software on sm_90a: terms that cancel, every scale byte but NaN, one NaN row, a K of one and a half."""
    rng = np.random.default_rng(3)
    t, n, k = 2, 8, 96
    codes, weights = rng.integers(0, 256, (t, k // 2)), rng.integers(0, 256, (1, n, k // 2))
    scales, weight_scales = rng.integers(0, 0x7F, (t, k // 16)), rng.integers(0, 0x7F, (1, n, k // 16))
    # Groups 0 and 1 cancel under huge scales and leave what their alignment keeps of tiny ones.
    codes[:, 8:16], weights[..., 8:16] = codes[:, :8], weights[..., :8] ^ 0x88
    for of_side in (scales, weight_scales):
        of_side[..., :2] = 0x7E
        of_side[..., 2:4] = rng.integers(1, 8, of_side[..., 2:4].shape)
    weight_scales[0, 3, 5] = 0xFF
    arrays = [each.astype(np.uint8) for each in (codes, scales, weights, weight_scales)]
    offsets = np.array([0, t])
    alpha, bias = np.array([0.75], np.float32), rng.normal(size=(1, n)).astype(ml_dtypes.bfloat16)
    on = device(arch, one_tile(tmp_path, "128, 8, 128"))
    found = nvfp4_grouped_gemm(
        arrays[0],
        GroupedScales("scales", "128x4", offsets, k // 16).buffer(arrays[1], t, 0xFF),
        arrays[2],
        swizzle_weight_scales(arrays[3], fill=0xFF),
        offsets,
        device=on,
        tile="128x8x128",
        alpha=alpha,
        bias=bias,
        out_dtype="f32",
    )
    expected = reference(*arrays, offsets, alpha=alpha, bias=bias)
    assert found.tobytes() == expected.tobytes()
    assert np.isnan(found[:, 3]).all()
    assert np.isfinite(np.delete(found, 3, axis=1)).all()
    result = on.launches[-1].result
    assert result is not None
    # In software there is nothing to assume.
    assert dict(result.models) == ({} if arch == "sm_90a" else {"sm120_nvf4": "published"})
    assert not result.approximate
    assert not result.contraction_possible
