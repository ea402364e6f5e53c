"""What converting block FP8 (an FP32 scale for 128) to MXFP8 (an E8M0 scale for 32) loses.

The converter multiplies codes by their tile's scale, y = code * sf rounded to FP32, and quantizes y to MXFP8 by a scale
mode. Both formats have E4M3 codes, so all depends on sf:

- sf = 2^t: nothing need be lost. The codes may stay, each block of 32 with the scale byte 127 + t. Quantizing again by
  RCEIL is exact too: its scale is at most 2^t, so a code moves up by whole binades. Other modes are not exact:
  `power_of_two_losses` counts where.
- otherwise y has more significant bits than the four of E4M3: the loss is a second rounding to E4M3. For a given
  block no scale above RCEIL's has an error below RCEIL's, since the numbers that it can express up to amax are among
  RCEIL's; smaller scales saturate amax. The pseudo-mode `least` takes the best scale of each block: what no mode can go
  below.

Figures are of one pass in bands of rows: nothing in float64 of the size of the tensor is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import BLOCK_FP8, E4M3, E8M0, MX_BLOCK
from refmoe.policy import ScaleMode, as_scale_mode
from refmoe.reference.block_fp8 import BlockFP8Tensor, quantize_block_fp8
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.reference.tensor import MXTensor

#: The best scale of each block, which no system computes.
LEAST = "least"

#: Scale modes, and the bound on all of them.
MODES = (*(mode.value for mode in ScaleMode), LEAST)

_BAND_ELEMENTS = 1 << 21
_BAND_ROWS = 128
_FP32_INFINITY = 0x7F800000
#: Scales tried for `least`, from RCEIL's byte.
_STEPS = (0, -1, -2, -3)


def convert_to_mxfp8(tensor: BlockFP8Tensor, mode: ScaleMode | str = ScaleMode.RCEIL) -> MXTensor:
    """Block FP8 as MXFP8: each code times its tile's scale, rounded to FP32, is quantized again.

    Args:
        tensor: codes [M, K], K a multiple of 32.
        mode: how the scale of a block of 32 is chosen. RCEIL alone is exact where a tile's scale is a power of two.

    Returns:
        MXFP8 [M, K]. A block with a NaN, or with a product beyond FP32, has the scale 0xFF and NaN codes.

    Raises:
        ArgumentError: a K that is no multiple of 32, or an unknown mode.
    """
    return quantize_mxfp8(_dequantized(tensor), mode=as_scale_mode(mode))


def relabel(tensor: BlockFP8Tensor) -> MXTensor | None:
    """The same codes as MXFP8, where every scale is a power of two that E8M0 has; None if one is not.

    No element is computed: the four blocks of 32 of a tile get the tile's scale as a byte.

    Raises:
        ArgumentError: a K that is no multiple of 32.
    """
    _check_width(tensor.codes.shape)
    bits = tensor.scales.view(np.uint32)
    field_, mantissa = bits >> np.uint32(23), bits & np.uint32(0x7FFFFF)
    # Field 0 with the highest mantissa bit is 2^-127.
    least = bits == np.uint32(1 << 22)
    if not (((mantissa == 0) & (field_ >= 1) & (field_ <= E8M0.max_code)) | least).all():
        return None
    spread = BlockFP8Tensor(tensor.codes, field_.astype(np.float32), tensor.block).element_scales()
    return MXTensor(tensor.codes, np.ascontiguousarray(spread[:, ::MX_BLOCK]).astype(np.uint8), "mxfp8")


@dataclass
class ErrorSums:
    """Sums for a relative L2 error, over elements that are finite on both sides."""

    _squared_error: list[float] = field(default_factory=list)
    _squared: list[float] = field(default_factory=list)

    def add(self, found: NDArray[np.float64], wanted: NDArray[np.float64]) -> None:
        """Take in a band."""
        whole = np.isfinite(found) & np.isfinite(wanted)
        error = np.where(whole, found - np.where(whole, wanted, 0.0), 0.0) if not whole.all() else found - wanted
        self._squared_error.append(float(np.square(error).sum()))
        self._squared.append(float(np.square(np.where(whole, wanted, 0.0)).sum()))

    @property
    def relative_l2(self) -> float:
        """sqrt(sum (found - wanted)^2 / sum wanted^2); NaN if every number is 0."""
        norm = math.fsum(self._squared)
        return math.sqrt(math.fsum(self._squared_error) / norm) if norm else math.nan


@dataclass
class ModeFigures:
    """What one scale mode makes of a tensor. y is a code times its tile's scale, q what it becomes.

    Attributes:
        mode: of `MODES`.
        direct: MXFP8 made of the source, against the source.
        converted: MXFP8 made of the block FP8, against the source.
        conversion: the same, against the block FP8.
        max_relative: the largest |q - y| / |y| of the elements that do not become zero.
        codes_changed: code bytes that are not what they were.
        values_changed: elements with q other than y.
        flushed: elements with y other than 0 and q = 0.
        saturated: elements beyond the largest value that their block's scale gives.
        poisoned: blocks of 32 with the scale byte 0xFF.
        elements: all of them.
    """

    mode: str
    direct: ErrorSums = field(default_factory=ErrorSums)
    converted: ErrorSums = field(default_factory=ErrorSums)
    conversion: ErrorSums = field(default_factory=ErrorSums)
    max_relative: float = 0.0
    codes_changed: int = 0
    values_changed: int = 0
    flushed: int = 0
    saturated: int = 0
    poisoned: int = 0
    elements: int = 0

    def add(self, x: NDArray[np.float64] | None, codes: NDArray[np.uint8], y: NDArray[np.float32]) -> None:
        """Take in a band of the source (or None), its block FP8 codes, and what those stand for."""
        made, wide = _quantized(y, self.mode), y.astype(np.float64)
        q = made.dequantize().astype(np.float64)
        if x is not None:
            self.converted.add(q, x)
            self.direct.add(_quantized(x.astype(np.float32), self.mode).dequantize().astype(np.float64), x)
        self.conversion.add(q, wide)
        whole = np.isfinite(q) & np.isfinite(wide)
        self.elements += y.size
        self.codes_changed += int(np.count_nonzero(made.codes != codes))
        self.values_changed += int(np.count_nonzero((q != wide) & whole))
        self.flushed += int(np.count_nonzero((q == 0) & (wide != 0) & whole))
        self.poisoned += int(np.count_nonzero(made.scales == E8M0.nan_code))
        largest = np.ldexp(float(E4M3.max), made.scales.astype(np.int64) - E8M0.bias)
        self.saturated += int(np.count_nonzero((np.abs(wide) > np.repeat(largest, MX_BLOCK, axis=1)) & whole))
        kept = whole & (q != 0)
        if kept.any():
            self.max_relative = max(self.max_relative, float((np.abs(q - wide)[kept] / np.abs(wide[kept])).max()))

    def share(self, count: int) -> float:
        """A count as a share of all elements."""
        return count / self.elements if self.elements else 0.0


@dataclass(frozen=True)
class Conversion:
    """A tensor in block FP8 and what becomes of it.

    Attributes:
        shape: [M, K].
        block: "1x128" or "128x128".
        scales: "fp32", "ue8m0", or "stored" for a tensor that came in block FP8.
        tiles: how many scales there are.
        powers_of_two: how many of them are powers of two.
        block_error: block FP8 against the source; NaN without a source.
        modes: one entry a mode, in the order asked for.
    """

    shape: tuple[int, int]
    block: str
    scales: str
    tiles: int
    powers_of_two: int
    block_error: float
    modes: tuple[ModeFigures, ...]

    def mode(self, name: str) -> ModeFigures:
        """The figures of a mode.

        Raises:
            KeyError: it was not asked for.
        """
        for each in self.modes:
            if each.mode == name:
                return each
        raise KeyError(name)


def compare_conversion(
    x: NDArray[np.generic] | None,
    tensor: BlockFP8Tensor | None = None,
    *,
    block: str = "1x128",
    scales: str = "fp32",
    modes: Sequence[str] = MODES,
) -> Conversion:
    """Quantize a matrix to block FP8 by DeepGEMM's formula, convert it to MXFP8 and say what each step loses.

    Args:
        x: BF16, FP16 or FP32 [M, K], K a multiple of 32, C-contiguous; None with a tensor alone.
        tensor: block FP8 that there is already; with it `block` and `scales` say nothing.
        block: "1x128" or "128x128".
        scales: "fp32" or "ue8m0".
        modes: of `MODES`.

    Raises:
        ArgumentError: neither of both, an unknown word, a shape that cannot be.
    """
    for mode in modes:
        if mode not in MODES:
            raise ArgumentError("modes", describe(mode), f"one of {', '.join(MODES)}")
    if tensor is None:
        if x is None:
            raise ArgumentError("x", "None", "a matrix, or a block FP8 tensor")
        tensor = quantize_block_fp8(x, block=block, scales=scales)
    else:
        block, scales = tensor.block, "stored"
    rows, k = tensor.codes.shape
    _check_width((rows, k))
    if not rows * k or (x is not None and x.shape != (rows, k)):
        raise ArgumentError("x", describe(x if x is not None else tensor.codes), "[M, K] with at least one element")
    figures, from_source = [ModeFigures(mode) for mode in modes], ErrorSums()
    for part in _bands(rows, k):
        band = _rows_of(tensor, part)
        y = _dequantized(band)
        wide = None if x is None else x[part].astype(np.float64)
        if wide is not None:
            from_source.add(y.astype(np.float64), wide)
        for each in figures:
            each.add(wide, band.codes, y)
    mantissas = tensor.scales.view(np.uint32) & np.uint32(0x7FFFFF)
    powers = (mantissas == 0) & (tensor.scales.view(np.uint32) < _FP32_INFINITY) & (tensor.scales > 0)
    error = from_source.relative_l2 if x is not None else math.nan
    return Conversion(
        (rows, k), block, scales, tensor.scales.size, int(np.count_nonzero(powers)), error, tuple(figures)
    )


@dataclass(frozen=True)
class PowerOfTwoLoss:
    """What a mode does to block FP8 whose scale is 1, over every pair of a largest code and another code below it.

    Attributes:
        mode: of `ScaleMode`.
        pairs: how many pairs there are: 126 largest codes with each code up to them, zero included.
        largest: pairs whose largest element changes: it saturates.
        smaller: pairs whose other element changes alone: it lies below what the scale can express.
    """

    mode: str
    pairs: int
    largest: int
    smaller: int

    @property
    def exact(self) -> bool:
        """Whether nothing changes, ever."""
        return not self.largest and not self.smaller


def power_of_two_losses() -> tuple[PowerOfTwoLoss, ...]:
    """Which modes convert block FP8 with power-of-two scales exactly: every case there is, since a scale 2^t moves all.

    A block of 32 is its largest code, which decides the scale, and others that do not look at each other. So all pairs
    of a largest code and one below are all that can happen, away from the ends of E8M0's range.
    """
    values = E4M3.values()[: E4M3.max_code + 1]
    largest, other = (index.reshape(-1) for index in np.meshgrid(np.arange(1, 127), np.arange(127), indexing="ij"))
    largest, other = largest[other <= largest], other[other <= largest]
    y = np.zeros((largest.size, MX_BLOCK), np.float32)
    y[:, 0], y[:, 1] = values[largest], values[other]
    losses = []
    for mode in ScaleMode:
        changed = quantize_mxfp8(y, mode=mode).dequantize() != y
        losses.append(
            PowerOfTwoLoss(
                mode.value,
                largest.size,
                int(np.count_nonzero(changed[:, 0])),
                int(np.count_nonzero(changed[:, 1] & ~changed[:, 0])),
            )
        )
    return tuple(losses)


def loss_by_significand(points: int = 256) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Relative L2 of converting the 56 normal significands-by-octave of E4M3 by RCEIL, by the significand of sf.

    Args:
        points: significands, evenly from 1 on to below 2.

    Returns:
        float64 [points] significands, and float64 [points] errors: every normal code of the top seven binades once.
    """
    codes = np.arange(0x47, 0x7F)
    y = E4M3.values()[codes]
    significands = 1 + np.arange(points) / points
    errors = []
    for significand in significands:
        block = np.zeros((1, 2 * MX_BLOCK), np.float32)
        block[0, : codes.size] = y * significand
        # Both blocks of 32 get the largest code, so that one scale speaks for all.
        block[0, -1] = block[0, 31] = E4M3.values()[0x7E] * significand
        q = quantize_mxfp8(block).dequantize().astype(np.float64)
        errors.append(math.sqrt(np.square(q - block).sum() / np.square(block.astype(np.float64)).sum()))
    return significands, np.array(errors)


def _check_width(shape: tuple[int, ...]) -> None:
    if shape[-1] % MX_BLOCK:
        raise ArgumentError("K", str(shape[-1]), f"a multiple of {MX_BLOCK}")


def _bands(rows: int, k: int) -> Iterator[slice]:
    """Whole tiles of rows, about 2^21 elements."""
    step = max(_BAND_ELEMENTS // max(k * _BAND_ROWS, 1), 1) * _BAND_ROWS
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _rows_of(tensor: BlockFP8Tensor, part: slice) -> BlockFP8Tensor:
    height = BLOCK_FP8[tensor.block].rows
    tiles = slice(part.start // height, -(-part.stop // height))
    return BlockFP8Tensor(tensor.codes[part], tensor.scales[tiles], tensor.block)


def _dequantized(tensor: BlockFP8Tensor) -> NDArray[np.float32]:
    _check_width(tensor.codes.shape)
    return np.ascontiguousarray(tensor.dequantize())


def _quantized(y: NDArray[np.float32], mode: str) -> MXTensor:
    y = np.ascontiguousarray(y)
    return _least_error(y) if mode == LEAST else quantize_mxfp8(y, mode=ScaleMode(mode))


def _least_error(y: NDArray[np.float32]) -> MXTensor:
    """Each block at the scale whose squared error is least; RCEIL's where several are."""
    usual = quantize_mxfp8(y)
    blocks = y.reshape(-1, MX_BLOCK).astype(np.float64)
    scales, codes = usual.scales.reshape(-1).copy(), usual.codes.reshape(-1, MX_BLOCK).copy()
    finite = scales != E8M0.nan_code
    best = np.full(scales.size, np.inf)
    for step in _STEPS:
        tried = np.where(finite, np.maximum(usual.scales.reshape(-1).astype(np.int64) + step, 0), 0)
        unit = np.ldexp(1.0, tried - E8M0.bias)[:, None]
        scaled = np.clip(np.where(finite[:, None], blocks, 0.0) / unit, -448.0, 448.0)
        coded = scaled.astype(ml_dtypes.float8_e4m3fn)
        error = np.square(coded.astype(np.float64) * unit - np.where(finite[:, None], blocks, 0.0)).sum(axis=1)
        better = finite & (error < best)
        best[better], scales[better] = error[better], tried[better]
        codes[better] = coded[better].view(np.uint8)
    return MXTensor(codes.reshape(y.shape), scales.reshape(usual.scales.shape), "mxfp8")
