"""MXTensor: element codes and block scales that belong together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import E8M0, MXFormat, as_mx_format
from refmoe.reference.dequantize import dequantize_codes
from refmoe.reference.layout import pack_fp4, unpack_fp4
from refmoe.reference.nvfp4 import NVFP4Tensor

IDENTITY_SCALE = E8M0.encode(1)
"""The scale byte of an operand that has no scales: 0x7F, a factor of 1."""


@dataclass(frozen=True, eq=False)
class MXTensor:
    """A quantized tensor of logical shape [..., K].

    Attributes:
        codes: uint8 [..., K] E4M3 codes for "mxfp8"; uint8 [..., K/2] packed E2M1 codes for "mxfp4", the even element
            in the low nibble.
        scales: uint8 [..., K/32] E8M0 bytes, linear.
        format: "mxfp8" or "mxfp4".

    Raises:
        ArgumentError: an unknown format, a dtype other than uint8, or shapes that do not belong together.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    format: str

    def __post_init__(self) -> None:
        block = as_mx_format(self.format).block
        for name, array in (("codes", self.codes), ("scales", self.scales)):
            if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim == 0:
                raise ArgumentError(name, describe(array), "a uint8 array of at least one dimension")
        *rows, k = self.shape
        if self.scales.shape != (*rows, k // block) or k % block:
            needed = f"one byte a block of {block} of the logical shape {[*rows, k]}"
            raise ArgumentError("scales", describe(self.scales), needed)

    @classmethod
    def of_elements(cls, elements: NDArray[np.uint8], scales: NDArray[np.uint8], format: str) -> MXTensor:
        """The tensor of codes that are one a byte, uint8 [..., K]; what the format packs is packed."""
        return cls(elements if as_mx_format(format).codes_a_byte == 1 else pack_fp4(elements), scales, format)

    def part(self, index: int | slice) -> MXTensor:
        """The part along the first dimension, C-contiguous."""
        codes, scales = (np.ascontiguousarray(array[index]) for array in (self.codes, self.scales))
        return MXTensor(codes, scales, self.format)

    @property
    def mx(self) -> MXFormat:
        """The record of the format."""
        return as_mx_format(self.format)

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape [..., K]."""
        return (*self.codes.shape[:-1], self.codes.shape[-1] * self.mx.codes_a_byte)

    @property
    def elements(self) -> NDArray[np.uint8]:
        """The codes one a byte, uint8 [..., K]."""
        return self.codes if self.mx.codes_a_byte == 1 else unpack_fp4(self.codes)

    def dequantize(self) -> NDArray[np.float32]:
        """The values as float32 [..., K]: code * 2^(scale - 127), exact; 0x7FC00000 for NaN, overflow to infinity."""
        return dequantize_codes(self.codes, self.scales, self.mx)


def dequantize(tensor: MXTensor | NVFP4Tensor) -> NDArray[np.float32]:
    """The values of a quantized tensor. What `quantize` makes is taken back.

    Of an MX format they are code * 2^(scale - 127), exact in FP32; of NVFP4 see `dequantize_nvfp4`.

    >>> import numpy as np, refmoe
    >>> x = np.linspace(-2, 2, 32, dtype=np.float32)
    >>> refmoe.dequantize(refmoe.quantize(x, "mxfp8", policy="ocp"))[:3]
    array([-2.   , -1.875, -1.75 ], dtype=float32)

    Args:
        tensor: of any MX format or NVFP4, logical shape [..., K].

    Returns:
        float32 [..., K]. A NaN scale or code gives 0x7FC00000, a product above FP32's range infinity.

    Raises:
        ArgumentError: it is neither.
    """
    if not isinstance(tensor, (MXTensor, NVFP4Tensor)):
        raise ArgumentError("tensor", describe(tensor), "an MXTensor or an NVFP4Tensor, as quantize returns it")
    return tensor.dequantize()
