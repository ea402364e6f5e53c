"""FP32 values that hurt, and bit patterns as the scalar specifications take them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)

#: Zeros, the ends of the subnormals and of the normals, values around 1 and 7, large ones, infinities, NaNs.
CORNERS = np.array(
    [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x80800000, 0x3F7FFFFF, 0x3F800000,
     0x3F800001, 0xBF800000, 0x40DFFFFF, 0x40E00000, 0x40E00001, 0xC0E00000, 0xC0E00001, 0x42B17217, 0x42B17218,
     0xC2CFF1B4, 0xC2CFF1B5, 0x42CFF1B4, 0x4B400000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7E800000, 0x33000000, 0xB3000000,
     0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001],
    np.uint32,
).view(np.float32)  # fmt: skip
FINITE = CORNERS[np.isfinite(CORNERS)]


def bits(x: np.ndarray) -> list:
    """FP32 bits of an array of BF16 or FP32, as nested lists; a NaN keeps its payload."""
    return x.astype(np.float32).view(np.uint32).tolist()


def same_bytes(found: np.ndarray, wanted: list) -> bool:
    """Whether an FP32 or BF16 array holds exactly these bit patterns."""
    unsigned = np.uint32 if found.dtype == np.float32 else np.uint16
    return np.array_equal(found.view(unsigned), np.array(wanted, np.uint64).reshape(found.shape))


def mixed(rng: np.random.Generator, shape: tuple[int, ...], *, finite: bool = False) -> np.ndarray:
    """Normal values, values over many binades, and corners, all through one another."""
    x = rng.standard_normal(shape, np.float32) * np.float32(3)
    wide = rng.uniform(-140, 127, shape)
    kind = rng.integers(0, 8, shape)
    with np.errstate(over="ignore", under="ignore"):
        x = np.where(kind == 0, np.copysign(np.exp2(wide).astype(np.float32), x), x)
    return np.where(kind == 1, rng.choice(FINITE if finite else CORNERS, shape), x).astype(np.float32)
