"""Q8_0, GGUF's 8-bit weights: 32 neighbours along K share an FP16 factor d, and an element is an int8 q worth q * d.

Every product of a finite d is an FP32 number (11 + 8 significant bits, no exponent out of range), so nothing is
rounded. In a file d and its 32 integers lie side by side, 34 bytes a block; a tensor here is two views of those bytes.
The definition that this is held against is `refmoe.reference.scalar.q8_0`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe

BLOCK = 32
"""Elements of K that share a factor."""

BLOCK_DTYPE = np.dtype([("d", "<f2"), ("q", "i1", (BLOCK,))])
"""A block as it lies in a file: 34 bytes."""

_NAN_BITS = np.uint32(0x7FC00000)


@dataclass(frozen=True, eq=False)
class Q8_0Tensor:
    """A Q8_0 tensor of logical shape [..., K].

    Attributes:
        blocks: `BLOCK_DTYPE` [..., K/32]; a view of a file, or not.

    Raises:
        ArgumentError: another dtype, or no dimension.
    """

    blocks: NDArray[Any]

    def __post_init__(self) -> None:
        blocks = self.blocks
        if not isinstance(blocks, np.ndarray) or blocks.dtype != BLOCK_DTYPE or blocks.ndim == 0:
            raise ArgumentError("blocks", describe(blocks), "an array of Q8_0 blocks, q8_0.BLOCK_DTYPE [..., K/32]")

    @classmethod
    def of_bytes(cls, content: NDArray[np.uint8]) -> Q8_0Tensor:
        """The tensor of uint8 [..., K/32, 34], as `gguf` has its bytes, without a copy.

        Raises:
            ArgumentError: another dtype or shape, or blocks whose bytes do not lie side by side.
        """
        if not isinstance(content, np.ndarray) or content.dtype != np.uint8 or content.ndim < 2:
            raise ArgumentError("content", describe(content), "uint8 [..., K/32, 34]")
        if content.shape[-1] != BLOCK_DTYPE.itemsize or content.strides[-1] != 1:
            raise ArgumentError("content", describe(content), "uint8 [..., K/32, 34], the 34 bytes side by side")
        return cls(content.view(BLOCK_DTYPE)[..., 0])

    @property
    def scales(self) -> NDArray[np.float16]:
        """float16 [..., K/32], a view."""
        scales: NDArray[np.float16] = self.blocks["d"]
        return scales

    @property
    def integers(self) -> NDArray[np.int8]:
        """int8 [..., K/32, 32], a view."""
        integers: NDArray[np.int8] = self.blocks["q"]
        return integers

    @property
    def format(self) -> str:
        """ "q8_0"."""
        return "q8_0"

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape [..., K]."""
        return (*self.blocks.shape[:-1], self.blocks.shape[-1] * BLOCK)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Q8_0Tensor:
        """The tensor of some rows, taken as NumPy takes them from the first axis; slices are views."""
        return Q8_0Tensor(self.blocks[rows, ...])

    def dequantize(self) -> NDArray[np.float32]:
        """The values, float32 [..., K]: q * d, exact. Any NaN is 0x7FC00000.

        A d of infinity gives infinities, and NaN where q is 0. A zero has the sign of d, or the other if q is negative.
        """
        with np.errstate(all="ignore"):
            values = self.integers.astype(np.float32) * self.scales.astype(np.float32)[..., None]
        values.view(np.uint32)[np.isnan(values)] = _NAN_BITS
        return values.reshape(self.shape)
