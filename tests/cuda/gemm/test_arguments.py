"""What the grouped GEMM refuses before anything runs, and that the sentence says what, why and what instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.gemm_call import REFUSED, TOKENS, GemmCall, K, ptx

from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda.gemm.kernel import grouped_gemm
from refmoe.cuda.gemm.tile import TILES, Tile, TileRefused, max_stages

CALL = GemmCall(grouped_gemm, row_bytes=K, groups=2)  # of four K-blocks, the last of them padded


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *REFUSED,
        ({"codes": np.zeros((TOKENS, 24), np.uint8)}, "codes: found uint8 [3, 24]; needed uint8 [T, K]"),
    ],
)
def test_arguments(changes: dict[str, Any], words: str) -> None:
    assert words in str(CALL.refused(**changes))


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
    refusal = CALL.refused(ptx(arch), **changes)
    assert isinstance(refusal, TileRefused)
    assert why in str(refusal)
    assert arch in str(refusal) or "1 stage of" in str(refusal)
    assert str(refusal).endswith(instead)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_no_rows_launch_nothing(tile: Tile) -> None:
    CALL.launches_nothing_for_no_rows(tile=tile, stages=max_stages(tile))
