"""Random bits that are the same on every machine and under every NumPy version.

Only the raw counter output of Philox4x64-10 is used, which is defined by its paper (Salmon et al., SC 2011). NumPy's
distributions may change between releases, and a repro string must rebuild its data for ever.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


class Draw:
    """A stream of random integers that is decided by the words it is named with."""

    def __init__(self, *name: object) -> None:
        """Seed the stream from `name`, any values with a stable `str`, for example ("gaussian", 7)."""
        digest = hashlib.sha256("\x1f".join(map(str, name)).encode()).digest()
        self._philox = np.random.Philox(key=np.frombuffer(digest[:16], "<u8").astype(np.uint64))

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` uniform uint64."""
        return np.asarray(self._philox.random_raw(count), np.uint64).reshape(count)

    def integers(self, high: int | NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
        """int64 of `shape` in [0, high), `high` at most 2^31, by multiply and shift (bias below 2^-32)."""
        size = int(np.prod(shape))
        raw = self.words((size + 1) // 2).view(np.uint32)[:size].reshape(shape).astype(np.uint64)
        scaled: NDArray[np.uint64] = (raw * np.asarray(high).astype(np.uint64)) >> np.uint64(32)
        return scaled.astype(np.int64)

    def normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """float64 of `shape`, close to a standard normal: the sum of four uniform 16-bit integers, scaled by 2^-15.

        Exact integer arithmetic, so that no libm decides a bit. Standard deviation 1.155, largest magnitude 4.
        """
        size = int(np.prod(shape))
        sums = self.words(size).view(np.uint16).reshape(size, 4).sum(axis=1, dtype=np.int64)
        return np.asarray((sums - 2 * 65535) / 32768.0).reshape(shape)

    def signs(self, shape: tuple[int, ...]) -> NDArray[np.uint16]:
        """uint16 of `shape`: the sign bit 0x8000 or 0."""
        return (self.integers(2, shape) << 15).astype(np.uint16)
