"""Weights in FP8 with one FP32 scale for 128 x 128 of them, as DeepSeek-V3 stores them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from refmoe.formats import E4M3
from refmoe.models.schema import SCALE_BLOCK
from refmoe.reference.arrays import checked_array

_NAN_BITS = np.uint32(0x7FC00000)


@dataclass(frozen=True, eq=False)
class BlockScaledWeight:
    """A weight matrix [N, K]; the blocks at its right and lower edge may be narrower than 128.

    Attributes:
        codes: uint8 [N, K], E4M3.
        scale_inv: float32 [ceil(N/128), ceil(K/128)]. Despite the name it is what the codes are multiplied by.

    Raises:
        ArgumentError: wrong dtypes, or shapes that do not belong together.
    """

    codes: NDArray[np.uint8]
    scale_inv: NDArray[np.float32]

    def __post_init__(self) -> None:
        checked_array("codes", self.codes, ("N", "K"), np.uint8)
        rows, columns = (-(-size // SCALE_BLOCK) for size in self.codes.shape)
        checked_array("scale_inv", self.scale_inv, (rows, columns), np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K]."""
        rows, columns = self.codes.shape
        return rows, columns

    def dequantize(self) -> NDArray[np.float32]:
        """float32 [N, K]: each code's value times its block's scale, rounded to nearest; any NaN is 0x7FC00000."""
        rows, columns = self.shape
        out = np.empty(self.shape, np.float32)
        column_scales = np.repeat(self.scale_inv, SCALE_BLOCK, axis=1)[:, :columns]
        with np.errstate(all="ignore"):
            for block, scales in enumerate(column_scales):
                part = slice(block * SCALE_BLOCK, min((block + 1) * SCALE_BLOCK, rows))
                np.multiply(_values()[self.codes[part]], scales, out=out[part])
        out.view(np.uint32)[np.isnan(out)] = _NAN_BITS
        return out


@cache
def _values() -> NDArray[np.float32]:
    return E4M3.values().astype(np.float32)
