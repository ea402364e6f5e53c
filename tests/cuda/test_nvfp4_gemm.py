"""What the NVFP4 GEMM refuses before anything runs, its tiles, and what it computes on the chips beside the default."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.gemm_call import EXPERTS, REFUSED, TOKENS, GemmCall, K, ptx
from support.traffic_meter import Meter, meter  # noqa: F401

from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda.gemm.grouped import GemmShape
from refmoe.cuda.gemm.tile import Tile, TileRefused
from refmoe.cuda.launch import WARP_LANES
from refmoe.cuda.nvfp4_gemm import (
    DYNAMIC_TILES,
    NVFP4_GEMM,
    TILES,
    choose_tile,
    max_stages,
    nvfp4_grouped_gemm,
    stage_bytes,
)
from refmoe.cuda.toolchain import CSRC
from refmoe.errors import ArgumentError
from refmoe.families.stages import GroupedScales
from refmoe.reference.layout import swizzle_weight_scales
from refmoe.reference.nvfp4_gemm import nvfp4_grouped_gemm as reference

CALL = GemmCall(nvfp4_grouped_gemm, row_bytes=K // 2, groups=3)  # of four scales, the last of them half padding


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *REFUSED,
        ({"codes": np.zeros((TOKENS, 24), np.uint8)}, "codes: found uint8 [3, 24]; needed uint8 [T, K/2]"),
        # Scales for every 32 elements, as MXFP4 has them.
        ({"weight_scales": np.zeros(EXPERTS * 128 * 8, np.uint8)}, "weight_scales: "),
        ({"scales": np.zeros(384 * 8, np.uint8)}, "scales: "),
    ],
)
def test_arguments(changes: dict[str, Any], words: str) -> None:
    assert words in str(CALL.refused(**changes))


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
    refusal = CALL.refused(ptx(arch), **changes)
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
    plan = NVFP4_GEMM.plan(tile, "f32", stages, (), None, GemmShape(1, 1, 8, 64), multiprocessors=1)
    assert plan.shared_bytes <= 101_376 < plan.shared_bytes + bytes_
    assert plan.block // WARP_LANES in (4, 8)


def test_more_tiles_than_an_int32_can_step_past_are_refused() -> None:
    def plan(n: int) -> None:
        shape = GemmShape(rows=1 << 20, experts=1, n=n, k=64)
        NVFP4_GEMM.plan(Tile(128, 8, 512), "f32", 2, (), None, shape, multiprocessors=132)

    plan((1 << 21) - 256)
    needed = "codes: found 2147500164 tiles of 128x8x512 and CTAs of a grid; needed at most 2147483647"
    with pytest.raises(ArgumentError, match=needed):
        plan(1 << 21)


def test_the_choice_is_the_fewest_tiles_and_then_the_narrowest() -> None:
    for m in [*range(1, 300), 5000]:
        wanted = min(DYNAMIC_TILES, key=lambda tile: (-(-m // tile.n), tile.n))
        assert choose_tile(m, "sm_120a") == wanted


def test_padding_is_neither_read_nor_written(meter: Meter) -> None:  # noqa: F811
    """Of codes and weights every byte of rows in use is read once over and no other; of the output those rows alone.

    N, K and each expert's rows end within a tile, an expert has no rows, and two rows belong to no expert.
    """
    t, e, n, k, used = 7, 3, 136, 160, 5
    offsets = np.array([0, 3, 3, used])
    scale_rows = -(-(t + 127 * e) // 128) * 128
    nvfp4_grouped_gemm(
        np.zeros((t, k // 2), np.uint8),
        np.zeros(scale_rows * 12, np.uint8),
        np.zeros((e, n, k // 2), np.uint8),
        np.zeros(e * 256 * 12, np.uint8),
        offsets,
        device=meter,
        tile="128x32x256",
        out_dtype="f32",
    )
    ((reads, writes),) = meter.touched
    assert writes == {"out": used * n * 4}
    assert reads["codes"] == used * k // 2
    assert reads["weights"] == 2 * n * k // 2  # of the two experts that have rows
    # Scales come by atoms of 128 rows: one atom of tokens for each of them, two of weights, three words of K.
    assert reads["scales"] == 2 * 128 * 12
    assert reads["weight_scales"] == 2 * 2 * 128 * 12


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_no_rows_launch_nothing(tile: Tile) -> None:
    CALL.launches_nothing_for_no_rows(tile=tile)


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
    on = ptx(arch, one_tile(tmp_path, "128, 8, 128"))
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
