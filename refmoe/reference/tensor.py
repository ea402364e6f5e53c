"""MXTensor: element codes and block scales that belong together. NVFP4Experts: the same of NVFP4 weights.

MXFP4 becomes NVFP4 without loss: codes are of one format, and a block of 32 is two of 16 with one scale. A scale 2^x is
2^(x - s) in UE4M3 and 2^s the global decode scale of the expert, whose largest block scale becomes 2^8. The smallest is
2^-9, so that an expert may have 18 binades of scales. NVIDIA's ModelOpt converts MXFP4 checkpoints in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import E8M0, MX_BLOCK, MXFP4, NVFP4, UE4M3, MXFormat, as_tensor_format
from refmoe.reference.arrays import checked_array
from refmoe.reference.dequantize import dequantize_codes
from refmoe.reference.layout import pack_fp4, unpack_fp4
from refmoe.reference.nvfp4 import NVFP4Tensor, checked_encode_scale

IDENTITY_SCALE = E8M0.encode(1)
"""The scale byte of an operand that has no scales: 0x7F, a factor of 1."""


@dataclass(frozen=True, eq=False)
class MXTensor:
    """A quantized tensor of logical shape [..., K].

    Attributes:
        codes: uint8 [..., K] E4M3 codes for "mxfp8"; uint8 [..., K/2] packed E2M1 codes for "mxfp4", the even element
            in the low nibble.
        scales: uint8 [..., K/32] E8M0 bytes, linear.
        format: "mxfp8" or "mxfp4", or any other of `BLOCK_FORMATS` that has no factor of the whole tensor.

    Raises:
        ArgumentError: an unknown format, a dtype other than uint8, or shapes that do not belong together.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    format: str

    def __post_init__(self) -> None:
        block = as_tensor_format(self.format).block
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
        return cls(elements if as_tensor_format(format).codes_a_byte == 1 else pack_fp4(elements), scales, format)

    def part(self, index: int | slice) -> MXTensor:
        """The part along the first dimension, C-contiguous."""
        codes, scales = (np.ascontiguousarray(array[index]) for array in (self.codes, self.scales))
        return MXTensor(codes, scales, self.format)

    @property
    def mx(self) -> MXFormat:
        """The record of the format."""
        return as_tensor_format(self.format)

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


INPUT_SCALE = np.float32(2.0**-4)
"""Global decode scale of tokens for weights that come without one. Its largest magnitude is 448 * 6 / 16 = 168, and
block scales are normal down to magnitudes of 0.006. An RMSNorm of gpt-oss's 2880 elements gives at most
sqrt(2880) = 54 times its weight."""

_NAN_SCALE = 0x7F
_UE4M3_POWERS = range(-9, 9)
#: The byte of each of them: values ascend with the byte.
_BYTE_OF_POWER = np.searchsorted(UE4M3.values()[: UE4M3.max_code], np.exp2(np.array(_UE4M3_POWERS))).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class NVFP4Experts:
    """NVFP4 weights of E experts, of logical shape [E, N, K].

    Attributes:
        codes: uint8 [E, N, K/2] packed E2M1, the even element in the low nibble.
        scales: uint8 [E, N, K/16] UE4M3, linear.
        global_decode_scales: float32 [E].
        input_scales: float32 [E], the global decode scale that each expert's tokens are quantized under.

    Raises:
        ArgumentError: dtypes or shapes that do not belong together, or a global scale that is not above 0 and finite
            with a finite reciprocal.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    global_decode_scales: NDArray[np.float32]
    input_scales: NDArray[np.float32]

    def __post_init__(self) -> None:
        NVFP4Tensor(self.codes, self.scales, np.float32(1))  # checks that they belong together
        if self.codes.ndim != 3:
            raise ArgumentError("codes", describe(self.codes), "uint8 [E, N, K/2]")
        for name in ("global_decode_scales", "input_scales"):
            for value in checked_array(name, getattr(self, name), (len(self.codes),), np.float32):
                checked_encode_scale(value)

    @property
    def format(self) -> str:
        """ "nvfp4"."""
        return NVFP4.name

    @property
    def shape(self) -> tuple[int, ...]:
        """[E, N, K]."""
        return (*self.codes.shape[:-1], self.codes.shape[-1] * NVFP4.codes_a_byte)

    def part(self, expert: int) -> NVFP4Tensor:
        """The weights of one expert, [N, K]."""
        return NVFP4Tensor(self.codes[expert], self.scales[expert], self.global_decode_scales[expert])

    def of(self, experts: NDArray[np.int64]) -> NVFP4Experts:
        """Those of some experts alone."""
        factors = self.global_decode_scales[experts], self.input_scales[experts]
        return NVFP4Experts(self.codes[experts], self.scales[experts], *factors)


def experts_as_nvfp4(weights: MXTensor | NVFP4Experts, experts: NDArray[np.int64]) -> NVFP4Experts:
    """The weights of some experts in NVFP4, of the same values.

    Args:
        weights: mxfp4 [E, N, K], whose experts get the input scale `INPUT_SCALE`; or NVFP4, as it is.
        experts: int64 [n], which of them.

    Raises:
        ArgumentError: MXFP4 weights of which an expert has scales over more than 18 binades, or scales so small that
            FP32 has no reciprocal of the global one. Blocks of zeros do not count.
    """
    if isinstance(weights, NVFP4Experts):
        return weights.of(experts)
    codes, exponents = weights.codes[experts], weights.scales[experts].astype(np.int64)
    magnitudes = codes.reshape(*exponents.shape, -1) & 0x77
    counted = magnitudes.any(axis=-1) & (exponents != E8M0.nan_code)
    largest = np.where(counted, exponents, 0).max(axis=(1, 2), initial=0)
    power = exponents - largest[:, None, None] + _UE4M3_POWERS[-1]
    _check_range(power, counted, experts)
    scales = _BYTE_OF_POWER[np.clip(power - _UE4M3_POWERS[0], 0, len(_UE4M3_POWERS) - 1)]
    scales[weights.scales[experts] == E8M0.nan_code] = _NAN_SCALE
    decode = np.ldexp(np.float32(1), largest - E8M0.bias - _UE4M3_POWERS[-1]).astype(np.float32)
    # An expert of zeros has no scale to bring anywhere.
    decode[~counted.any(axis=(1, 2))] = 1
    blocks = MX_BLOCK // NVFP4.block
    return NVFP4Experts(codes, np.repeat(scales, blocks, axis=-1), decode, np.full(len(experts), INPUT_SCALE))


def input_scales(weights: MXTensor | NVFP4Experts) -> NDArray[np.float32]:
    """The global decode scale of each expert's tokens, float32 [E]."""
    return weights.input_scales if isinstance(weights, NVFP4Experts) else np.full(weights.shape[0], INPUT_SCALE)


def checked_weights(name: str, value: object) -> MXTensor | NVFP4Experts:
    """`value`, or an `ArgumentError` if it is no weights of experts, [E, N, K] in mxfp4 or nvfp4."""
    if isinstance(value, NVFP4Experts):
        return value
    if not isinstance(value, MXTensor) or value.format != MXFP4.name or len(value.shape) != 3:
        found = f"{value.format} {list(value.shape)}" if isinstance(value, MXTensor) else describe(value)
        raise ArgumentError(name, found, "an MXTensor of three dimensions in mxfp4, or NVFP4Experts")
    return value


def _check_range(power: NDArray[np.int64], counted: NDArray[np.bool_], experts: NDArray[np.int64]) -> None:
    low = np.argwhere(counted & (power < _UE4M3_POWERS[0]))
    if low.size:
        expert, row, block = (int(index) for index in low[0])
        below = _UE4M3_POWERS[-1] - int(power[expert, row, block])
        found = f"a scale 2^{below} below the largest of expert {experts[expert]}, at row {row}, block {block}"
        raise ArgumentError("weights", found, f"scales within {len(_UE4M3_POWERS)} binades, which UE4M3 has")
