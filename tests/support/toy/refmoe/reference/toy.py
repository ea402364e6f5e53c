"""Neighbours of a row, added or subtracted in FP32: what the toy kernel has to give."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["toy"]


def toy(x: NDArray[np.float32], sign: str = "plus") -> NDArray[np.float32]:
    """x[:, 0] + x[:, 1], x[:, 2] + x[:, 3], ... of float32 [M, K]; float32 [M, K/2]. Or minus, by `sign`."""
    pairs = x.reshape(x.shape[0], x.shape[1] // 2, 2)
    second = pairs[..., 1] if sign == "plus" else -pairs[..., 1]
    return (pairs[..., 0] + second).astype(np.float32)
