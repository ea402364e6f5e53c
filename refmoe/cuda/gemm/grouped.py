"""What the grouped GEMMs of SM12x share on the host, as grouped_gemm.cuh has it for the device: operands and launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import (
    ATOM_BYTES,
    BF16,
    GROUP_BLOCKS,
    check_array,
    check_fill,
    check_int32,
    check_offsets,
    expanded_scale_rows,
    one_of,
)
from refmoe.cuda.device import Device
from refmoe.cuda.gemm.choice import most_tokens
from refmoe.cuda.gemm.tile import BARRIER_BYTES, SCALE_ROWS, Tile, parse_tile
from refmoe.cuda.launch import WARP_LANES, Buffer, Entry, LaunchPlan
from refmoe.errors import ArgumentError, describe

OUT_DTYPES = {"bf16": BF16, "f32": np.dtype(np.float32)}
WARP_ROWS = 32  # weight rows of a warp, kWarpM
WIDE_TILE = 64  # tokens from which two warps share the tokens of a tile, see TileShape::kWarpsN
SCRATCH_BYTES = 512  # of a warp, kScratch
ROW_ELEMENTS = 8  # 16-byte stores of BF16

UInt8Array = npt.NDArray[np.uint8]


class TileCheck(Protocol):
    """What says whether a tile can be had."""

    def __call__(self, tile: Tile, *, arch: str, stages: int | None) -> int:
        """The number of stages that it runs with, or a `TileRefused`."""


@dataclass(frozen=True)
class GemmShape:
    """Rows of tokens, experts, weight rows of an expert, and elements of a row."""

    rows: int
    experts: int
    n: int
    k: int


@dataclass(frozen=True)
class GroupedGemm:
    """A grouped GEMM on the frame of grouped_gemm.cuh: packed FP4 weights, block scales in the layout 128x4.

    Attributes:
        source: the name of its source file.
        prefix: of its entries, before the tile.
        tiles: that it is built in.
        block: elements of K that share a scale.
        byte_tokens: elements of a token in a byte.
        k_step: what K is a multiple of.
        k_words: what K has to be, in words.
        stage_bytes: shared memory of one stage of a tile.
        check_tile: the stages that a tile runs with.
        choose_tile: the tile for experts with at most so many tokens, on an arch.
    """

    source: str
    prefix: str
    tiles: tuple[Tile, ...]
    block: int
    byte_tokens: int
    k_step: int
    k_words: str
    stage_bytes: Callable[[Tile], int]
    check_tile: TileCheck
    choose_tile: Callable[[int, str], Tile]

    def kernel(self, tile: Tile, out_dtype: str) -> Entry:
        """The kernel of a tile, writing `out_dtype` "bf16" or "f32"."""
        return Entry(self.source, f"{self.prefix}_{tile}_{out_dtype}")

    def groups(self, k: int) -> int:
        """Scale words of a row of k elements."""
        return -(-k // (GROUP_BLOCKS * self.block))

    def plan(
        self,
        tile: Tile,
        out_dtype: str,
        stages: int,
        operands: tuple[Buffer | None, ...],
        out: Buffer,
        shape: GemmShape,
        *,
        multiprocessors: int,
    ) -> LaunchPlan:
        """One CTA a multiprocessor, or fewer where there cannot be as many tiles; each walks over its share of them.

        Args:
            tile: one of `tiles`.
            out_dtype: "bf16" or "f32".
            stages: of the ring in shared memory.
            operands: weights, weight scales, token codes, token scales, offsets, alpha or None, bias or None.
            out: the output buffer.
            shape: of the problem, on this rank.
            multiprocessors: of the device.

        Raises:
            ArgumentError: more tiles than the kernel's int32 can step past.
        """
        warps = tile_warps(tile)
        return LaunchPlan(
            self.kernel(tile, out_dtype),
            grid=_grid(tile, shape, multiprocessors),
            block=warps * WARP_LANES,
            arguments=(*operands, out, shape.experts, shape.n, shape.k, self.groups(shape.k), stages),
            shared_bytes=BARRIER_BYTES + stages * self.stage_bytes(tile) + warps * SCRATCH_BYTES,
        )

    def run(
        self,
        codes: UInt8Array,
        scales: UInt8Array,
        weights: UInt8Array,
        weight_scales: UInt8Array,
        offsets: npt.NDArray[np.int64],
        *,
        device: Device,
        tile: Tile | str | None,
        stages: int | None,
        alpha: npt.NDArray[np.float32] | None,
        bias: npt.NDArray[Any] | None,
        out_dtype: str,
        fill: int,
    ) -> npt.NDArray[Any]:
        """Check everything, launch, and give the output; `refmoe.cuda.gemm.kernel.grouped_gemm` has the arguments.

        Raises:
            TileRefused: a tile or stages that cannot be had; the sentence says why, and what can.
            ArgumentError: another argument that does not fit. Nothing has run then.
        """
        one_of("out_dtype", out_dtype, tuple(OUT_DTYPES))
        check_fill(fill)
        shape = self.shape_of(codes, scales, weights, weight_scales, offsets, alpha)
        if bias is not None:
            check_array("bias", bias, BF16, (shape.experts, shape.n))
        chosen = self._tile(tile, offsets, device.arch)
        depth = self.check_tile(chosen, arch=device.arch, stages=stages)
        _grid(chosen, shape, device.multiprocessors)

        dtype = OUT_DTYPES[out_dtype]
        out = device.output("out", (shape.rows, shape.n * dtype.itemsize), fill)
        if shape.rows:
            operands = (
                device.upload("weights", weights),
                device.upload("weight_scales", weight_scales),
                device.upload("codes", codes),
                device.upload("scales", scales),
                device.upload("offsets", offsets),
                None if alpha is None else device.upload("alpha", alpha),
                None if bias is None else device.upload("bias", bias),
            )
            multiprocessors = device.multiprocessors
            device.launch(self.plan(chosen, out_dtype, depth, operands, out, shape, multiprocessors=multiprocessors))
        return device.download(out).view(dtype)

    def shape_of(
        self,
        codes: UInt8Array,
        scales: UInt8Array,
        weights: UInt8Array,
        weight_scales: UInt8Array,
        offsets: npt.NDArray[np.int64],
        alpha: npt.NDArray[np.float32] | None,
    ) -> GemmShape:
        """The shape of a problem whose operands fit each other.

        Raises:
            ArgumentError: one of them does not.
        """
        byte, row_bytes = np.dtype(np.uint8), self.k_step // self.byte_tokens
        if not isinstance(codes, np.ndarray) or codes.ndim != 2 or codes.shape[1] == 0 or codes.shape[1] % row_bytes:
            raise ArgumentError("codes", describe(codes), self.k_words)
        rows, k = codes.shape[0], codes.shape[1] * self.byte_tokens
        if not isinstance(weights, np.ndarray) or weights.ndim != 3 or weights.shape[0] == 0 or weights.shape[1] == 0:
            needed = f"uint8 [E, N, {k // 2}] with at least one expert and row"
            raise ArgumentError("weights", describe(weights), needed)
        experts, n, _ = weights.shape
        if n % ROW_ELEMENTS:
            needed = f"N a multiple of {ROW_ELEMENTS}: rows are stored 16 bytes at a time"
            raise ArgumentError("weights", f"N = {n}", needed)
        check_array("codes", codes, byte, codes.shape)
        check_array("weights", weights, byte, (experts, n, k // 2))
        scale_rows, weight_scale_rows = expanded_scale_rows(rows, experts), experts * -(-n // SCALE_ROWS) * SCALE_ROWS
        check_int32("codes", scale_rows, "padded rows of scales")
        check_int32("codes", self.groups(k) * ATOM_BYTES, f"bytes of scale atoms, for K = {k}")
        check_int32("weights", weight_scale_rows, "padded rows of scales")
        columns = self.groups(k) * GROUP_BLOCKS
        check_array("weight_scales", weight_scales, byte, (weight_scale_rows * columns,))
        check_array("scales", scales, byte, (scale_rows * columns,))
        check_array("offsets", offsets, np.dtype(np.int64), (experts + 1,))
        check_offsets(offsets, rows)
        if alpha is not None:
            check_array("alpha", alpha, np.dtype(np.float32), (experts,))
        return GemmShape(rows, experts, n, k)

    def _tile(self, tile: Tile | str | None, offsets: npt.NDArray[np.int64], arch: str) -> Tile:
        if tile is None:
            return self.choose_tile(max(most_tokens(offsets), 1), arch)
        if isinstance(tile, str):
            return parse_tile(tile)
        if isinstance(tile, Tile):
            return tile
        raise ArgumentError("tile", describe(tile), "one of " + ", ".join(map(str, self.tiles)))


def tile_warps(tile: Tile) -> int:
    """Warps of a block, see TileShape."""
    return tile.m // WARP_ROWS * (2 if tile.n >= WIDE_TILE else 1)


def _grid(tile: Tile, shape: GemmShape, multiprocessors: int) -> int:
    most_tiles = -(-shape.n // tile.m) * (shape.rows // tile.n + min(shape.experts, shape.rows))
    check_int32("codes", most_tiles + multiprocessors, f"tiles of {tile} and CTAs of a grid")
    return min(most_tiles, multiprocessors)
