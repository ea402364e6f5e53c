"""A small call of a grouped GEMM, and what every one of them refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refmoe.cuda.device import PtxDevice, open_device
from refmoe.cuda.toolchain import CSRC
from refmoe.errors import ArgumentError

__all__ = ["EXPERTS", "REFUSED", "TOKENS", "GemmCall", "K", "N", "ptx"]

TOKENS, EXPERTS, N, K = 3, 2, 24, 160


def ptx(arch: str = "sm_120a", csrc: Path = CSRC) -> PtxDevice:
    """The executor of an arch."""
    opened = open_device("ptx", arch, csrc)
    assert isinstance(opened, PtxDevice)
    return opened


@dataclass(frozen=True)
class GemmCall:
    """Calls of one GEMM on `TOKENS` tokens of `EXPERTS` experts.

    Attributes:
        launch: the function.
        row_bytes: of the codes of a token.
        groups: scale words of a row.
    """

    launch: Callable[..., Any]
    row_bytes: int
    groups: int

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """What it takes, all zeros, with some of it changed."""
        rows = -(-(TOKENS + 127 * EXPERTS) // 128) * 128
        right: dict[str, Any] = {
            "codes": np.zeros((TOKENS, self.row_bytes), np.uint8),
            "scales": np.zeros(rows * self.groups * 4, np.uint8),
            "weights": np.zeros((EXPERTS, N, K // 2), np.uint8),
            "weight_scales": np.zeros(EXPERTS * 128 * self.groups * 4, np.uint8),
            "offsets": np.array([0, 1, 3]),
        }
        return right | changes

    def refused(self, on: PtxDevice | None = None, **changes: Any) -> ArgumentError:
        """The refusal of changed arguments, which came before anything ran."""
        opened = on or ptx()
        with pytest.raises(ArgumentError) as caught:
            self.launch(device=opened, **self.arguments(**changes))
        assert opened.launches == []
        assert "\n" not in str(caught.value)
        return caught.value

    def launches_nothing_for_no_rows(self, **options: Any) -> None:
        """An expert may have no rows, and so may all of them."""
        opened = ptx()
        empty = self.arguments(
            codes=np.zeros((0, self.row_bytes), np.uint8),
            offsets=np.zeros(EXPERTS + 1, np.int64),
            scales=np.zeros(256 * self.groups * 4, np.uint8),
        )
        assert self.launch(device=opened, **options, **empty).shape == (0, N)
        assert opened.launches == []


#: Arguments that no grouped GEMM takes, and words of the refusal.
REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"codes": np.zeros((TOKENS, 0), np.uint8)}, "K a positive multiple of 32"),
    ({"codes": np.zeros(K, np.uint8)}, "codes: "),
    ({"codes": np.zeros((TOKENS, K), np.int8)}, "codes: "),
    ({"codes": np.zeros((TOKENS, 2 * K), np.uint8)[:, ::2]}, "codes: found strides"),
    ({"weights": np.zeros((EXPERTS, N, 2 * K), np.uint8)}, "weights: "),
    ({"weights": np.zeros((0, N, K // 2), np.uint8)}, "at least one expert and row"),
    ({"weights": np.zeros((EXPERTS, 12, K // 2), np.uint8)}, "weights: found N = 12; needed N a multiple of 8"),
    ({"weight_scales": np.zeros(EXPERTS * 128 * 5, np.uint8)}, "weight_scales: "),
    ({"scales": np.zeros(TOKENS * 8, np.uint8)}, "scales: "),
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
)
