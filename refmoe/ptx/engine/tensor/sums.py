"""How products of a warpgroup add up: chains of `wgmma` from operands in memory onto accumulators in registers.

With FP32 accumulators it is native code. The others are computed by NumPy, on D [64, N] as a matrix, whose register
4 j + i of lane 4g + t of warp w holds row 16w + g + 8 (i / 2), column 8 j + 2t + i % 2; of FP16 two columns are packed
in one register.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.ptx.native.wgmma import WarpgroupMma
from refmoe.reference.mma import AccumulationModel, tensor_core_mma
from refmoe.reference.mma.half import sparse

Array = Any
_FP16_NAN = 0x7FFF
_LANES, _WARPS = 32, 4


@dataclass(frozen=True)
class SingleSums:
    """FP32 accumulators under a model; the attributes are those of `WarpgroupMma`."""

    model: str
    a_format: str
    b_format: str
    sparse: bool = False

    def __call__(self, a: Array, b: Array, registers: Array, warp_bytes: int, adds: bool) -> None:
        """See `WarpgroupMma`."""
        form = WarpgroupMma(self.model, self.a_format, self.b_format, self.sparse)
        form(a, b, registers, warp_bytes, adds)

    def read(self, homes: Homes) -> Array:
        """D, float32 [64, N]."""
        return _matrix(homes.read()).view(np.float32)

    def write(self, homes: Homes, matrix: Array) -> None:
        """Put D as `read` gives it."""
        homes.write(_registers(np.ascontiguousarray(matrix).view(np.uint32)))


@dataclass(frozen=True)
class HalfSums:
    """FP16 accumulators under a model.

    Attributes:
        model: with FP16 accumulators.
        a_format: a key of ELEMENT_FORMATS.
        b_format: likewise.
        sparse: whether a block has twice the elements of K, of which half are zeros of A.
    """

    model: AccumulationModel
    a_format: str
    b_format: str
    sparse: bool = False

    def __call__(self, a: Array, b: Array, registers: Array, warp_bytes: int, adds: bool) -> None:
        """See `WarpgroupMma`."""
        homes = Homes(registers, warp_bytes)
        before = self.read(homes)
        x, y = (_codes(each, name) for each, name in ((a, self.a_format), (b, self.b_format)))
        model = sparse(self.model) if self.sparse else self.model
        total = before if adds else np.zeros_like(before)
        made = tensor_core_mma(x, y, total, model=model, a_format=self.a_format, b_format=self.b_format)
        self.write(homes, made)

    def read(self, homes: Homes) -> Array:
        """D, float32 [64, N]."""
        pairs = np.ascontiguousarray(homes.read()).view(np.float16).reshape(_WARPS, -1, _LANES, 2)
        # Of a register with a pair of columns, the one and then the other.
        columns = pairs.transpose(0, 1, 3, 2).reshape(_WARPS, -1, _LANES)
        return _matrix(columns).astype(np.float32)

    def write(self, homes: Homes, matrix: Array) -> None:
        """Put D as `read` gives it."""
        with np.errstate(over="ignore", invalid="ignore"):
            codes = matrix.astype(np.float16).view(np.uint16)
        codes[np.isnan(matrix)] = _FP16_NAN
        held = _registers(codes).reshape(_WARPS, -1, 2, _LANES).transpose(0, 1, 3, 2)
        homes.write(np.ascontiguousarray(held).view(np.uint32)[..., 0])


@dataclass(frozen=True)
class IntegerSums:
    """32-bit integers: exact, and then wrapped or, with `.satfinite`, clamped.

    Attributes:
        bits: of an element: 8, or 1, whose product is their conjunction.
        a_signed, b_signed: whether elements are in two's complement.
        saturates: `.satfinite`, of each instruction.
        sparse: whether an instruction has twice the elements of K, of which half are zeros of A.
    """

    bits: int
    a_signed: bool = False
    b_signed: bool = False
    saturates: bool = False
    sparse: bool = False

    def __call__(self, a: Array, b: Array, registers: Array, warp_bytes: int, adds: bool) -> None:
        """See `WarpgroupMma`."""
        homes = Homes(registers, warp_bytes)
        x, y = self._numbers(a, self.a_signed), self._numbers(b, self.b_signed)
        total = _matrix(homes.read().view(np.int32)).astype(np.int64) if adds else np.int64(0)
        # An instruction clamps once, when all of its products are in the sum: a sparse one too, as an H200 does.
        step = (512 if self.sparse else 256) // self.bits
        for k in range(0, x.shape[1], step):
            # Sums of so few products of 16 bits are exact in FP64.
            total = total + (x[:, k : k + step] @ y[:, k : k + step].T).astype(np.int64)
            if self.saturates:
                total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        homes.write(_registers(total.astype(np.uint32)))

    def _numbers(self, held: Array, signed: bool) -> Array:
        """float64 [rows, K]."""
        if self.bits == 1:
            return np.unpackbits(held, axis=1, bitorder="little").astype(np.float64)
        return (held.view(np.int8) if signed else held).astype(np.float64)


Sums = SingleSums | HalfSums | IntegerSums


class Homes:
    """Registers of D where they lie; see `WarpgroupMma` for the arguments."""

    def __init__(self, registers: Array, warp_bytes: int) -> None:
        self._held = [
            [_array(place + warp * warp_bytes) for place in registers.tolist()] for warp in range(_WARPS)
        ]  # fmt: skip

    def read(self) -> Array:
        """uint32 [4 warps, registers, 32]."""
        return np.array(self._held)

    def write(self, values: Array) -> None:
        """Put values as `read` gives them."""
        for held, new in zip(self._held, values, strict=True):
            for register, value in zip(held, new, strict=True):
                register[:] = value


def _array(address: int) -> Array:
    held: Any = (ctypes.c_uint8 * (4 * _LANES)).from_address(address)
    return np.frombuffer(held, np.uint32)


def _matrix(held: Array) -> Array:
    """Registers [4 warps, N / 2, 32] as a matrix [64, N]."""
    # [warp, j, upper, odd, g, t] -> [warp, upper, g, j, t, odd]
    split = held.reshape(_WARPS, -1, 2, 2, 8, 4).transpose(0, 2, 4, 1, 5, 3)
    return np.ascontiguousarray(split).reshape(64, -1)


def _registers(matrix: Array) -> Array:
    """The reverse of `_matrix`."""
    split = matrix.reshape(_WARPS, 2, 8, -1, 4, 2).transpose(0, 3, 1, 5, 2, 4)
    return np.ascontiguousarray(split).reshape(_WARPS, -1, _LANES)


def _codes(held: Array, name: str) -> Array:
    return held.view(np.uint16) if name == "f16" else held
