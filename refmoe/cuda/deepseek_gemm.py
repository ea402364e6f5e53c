"""The grouped GEMM in block FP8 (DeepSeek-V3): its instruction, its tiles, what it accepts and how it is launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.chips import CHIPS, Chip, Mma, kernel_chip
from refmoe.cuda.arguments import BF16, check_array, check_fill, check_int32, one_of
from refmoe.cuda.device import Device
from refmoe.cuda.launch import WARP_LANES, Buffer, Entry, LaunchPlan, MatrixMap
from refmoe.errors import ArgumentError, describe
from refmoe.formats import BLOCK_FP8

UInt8Array = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]

OUT_DTYPES = {"bf16": BF16, "f32": np.dtype(np.float32)}
SCALE_LAYOUTS = ("k_major", "mn_major")
#: Tiles of tokens of a band: kBand.
_BAND = 8
#: Tokens of a tile from which on arithmetic decides, and not the copies.
_WIDE = 128
#: Elements of K that share a scale, and weight rows that do: those of a tile.
BLOCK, TILE_N = BLOCK_FP8["128x128"].columns, BLOCK_FP8["128x128"].rows


@dataclass(frozen=True)
class Instruction:
    """A kernel by its matrix instruction.

    Attributes:
        name: "mma" or "wgmma".
        source: the name of its source file.
        tiles_m: tokens of the tiles that it is built in.
        paired: those of them whose tokens two CTAs may share, each with weight rows of its own.
    """

    name: str
    source: str
    tiles_m: tuple[int, ...]
    paired: tuple[int, ...] = ()

    def kernel(self, tile_m: int, out_dtype: str, ctas: int = 1) -> Entry:
        """The kernel of tiles of `tile_m` tokens that so many CTAs share, writing "bf16" or "f32"."""
        shared = f"_{ctas}" if self.paired else ""
        return Entry(self.source, f"refmoe_{self.source}_{tile_m}{shared}_{out_dtype}")

    def choose_tile_m(self, rows: int) -> int:
        """The tokens of a tile for experts of about `rows` rows.

        The narrowest tile that holds them; of more rows the one of at least 128 tokens that pads them least, and of
        those the widest, which copies least for each product.
        """
        holding = [tile for tile in self.tiles_m if tile >= rows]
        if holding and holding[0] <= _WIDE:
            return holding[0]
        return min((tile for tile in self.tiles_m if tile >= _WIDE), key=lambda tile: (-rows % tile, -tile))


MMA = Instruction("mma", "deepseek_gemm", (8, 16, 32, 64, 128))
WGMMA = Instruction("wgmma", "deepseek_gemm_wgmma", (64, 128, 256), paired=(128,))

#: Our kernels' instructions for E4M3 on both sides, the faster one first.
_BY_MMA = {Mma.WGMMA_FP8: WGMMA, Mma.SYNC_FP8: MMA}


def _models(chip: Chip) -> dict[str, Instruction]:
    """The models of a chip's instructions, which name them."""
    sums = {mma: chip.sums[mma].model for mma in _BY_MMA if mma in chip.sums}
    return {model: _BY_MMA[mma] for mma, model in sums.items() if model}


#: The instruction that follows an accumulation model.
INSTRUCTIONS = {model: each for chip in CHIPS.values() for model, each in _models(chip).items()}


def accumulation_models(arch: str) -> tuple[str, ...]:
    """The models of `refmoe.reference.mma` that the sums of a kernel can follow on an arch; the first is the default.

    Raises:
        ArgumentError: the kernels are not built for it.
    """
    return tuple(_models(kernel_chip(arch)))


def chosen_model(model: str | None, arch: str) -> str:
    """`model`, or the arch's first for None.

    Raises:
        ArgumentError: the arch does not have it, or has none.
    """
    models = accumulation_models(arch)
    if not models:
        raise ArgumentError("arch", arch, f"a chip that has {' or '.join(mma.value for mma in _BY_MMA)}")
    if model is None:
        return models[0]
    if model not in models:
        raise ArgumentError("model", f"{describe(model)} on {arch}", " or ".join(models))
    return model


@dataclass(frozen=True)
class GroupedShape:
    """Sizes of a problem.

    Attributes:
        rows: of the tokens, of all experts together.
        experts: how many.
        n: weight rows of an expert.
        k: elements of a row.
        rows_each: rows of each expert of a batch; 0 where rows are contiguous.
    """

    rows: int
    experts: int
    n: int
    k: int
    rows_each: int = 0


@dataclass(frozen=True)
class ScaleStrides:
    """Where the scale of a row and a block lies: row * `row` + expert * `expert` + block * `block`.

    Rows of a batch are numbered through all experts.
    """

    row: int
    expert: int
    block: int


def scale_strides(layout: str, width: int, shape: GroupedShape) -> ScaleStrides:
    """The strides of token scales whose rows are `width` numbers long.

    Args:
        layout: "k_major", [rows, at least K/128], or "mn_major", [K/128, at least rows], of each expert of a batch.
        width: of a row of the buffer.
        shape: of the problem.
    """
    if layout == "k_major":
        return ScaleStrides(row=width, expert=0, block=1)
    blocks = shape.k // BLOCK
    # Rows of earlier experts count in a row's number, and not in its distance from its own expert's scales.
    return ScaleStrides(row=1, expert=blocks * width - shape.rows_each if shape.rows_each else 0, block=width)


def cta_of_tile(counts: Sequence[int], place: tuple[int, int, int], tile_m: int, n: int, ctas: int) -> int:
    """The number of the CTA that computes a tile, where every CTA takes one: kBand in deepseek_groups.cuh.

    Args:
        counts: rows of each expert.
        place: the expert, a row of it, and a column, all in the tile.
        tile_m: tokens of a tile.
        n: weight rows of an expert.
        ctas: that share the tokens of a tile.
    """
    expert, row, column = place
    down, across = [-(-count // tile_m) for count in counts], n // (TILE_N * ctas)
    band = row // tile_m // _BAND * _BAND
    height = min(_BAND, down[expert] - band)
    before = (sum(down[:expert]) + band) * across
    within = column // (TILE_N * ctas) * height + row // tile_m - band
    return (before + within) * ctas + column // TILE_N % ctas


def deepseek_gemm_plan(
    model: str,
    tile_m: int,
    out_dtype: str,
    operands: tuple[Buffer, Buffer, Buffer, Buffer],
    m_indptr: Buffer | None,
    masked_m: Buffer | None,
    out: Buffer,
    shape: GroupedShape,
    strides: ScaleStrides,
    *,
    multiprocessors: int,
    expected_m: int = 0,
    ctas: int = 1,
    blocks: tuple[int, ...] | None = None,
) -> LaunchPlan:
    """The launch. The rows of the experts are on the device, so a grid is for the most tiles that there can be.

    A CTA of `mma.sync` takes one tile (`cta_of_tile`). Those of wgmma are at most one a multiprocessor and take
    several; where only some `blocks` run, they too take one each.

    Args:
        model: a key of `INSTRUCTIONS` that the chip has.
        tile_m: tokens of a tile that the instruction's kernel is built in.
        out_dtype: "bf16" or "f32".
        operands: weights, weight scales, tokens, token scales.
        m_indptr: int64 [E + 1], or None for a batch.
        masked_m: int32 [E] of a batch, else None.
        out: the output.
        shape: of the problem.
        strides: of the token scales.
        multiprocessors: of the device.
        expected_m: of a batch, about how many rows of an expert are in use: the grid is for as many, and CTAs take
            several tiles if there are more. 0 for the most.
        ctas: that share the tokens of a tile; 2 where the instruction has such a kernel and N is a multiple of 256.
        blocks: CTAs that the executor runs, all by default.

    Raises:
        ArgumentError: more tiles than the kernel's int32 can number.
    """
    instruction = INSTRUCTIONS[model]
    if shape.rows_each:
        most = shape.experts * -(-min(expected_m or shape.rows_each, shape.rows_each) // tile_m)
    else:
        most = shape.rows // tile_m + min(shape.experts, shape.rows)
    grid = max(most, 1) * (shape.n // TILE_N)
    check_int32("tokens", 2 * grid, f"tiles of {tile_m} tokens, twice over")
    weights, weight_scales, tokens, token_scales = operands
    numbers = shape.experts, shape.rows_each, shape.n, shape.k, strides.row, strides.expert, strides.block
    arguments: tuple[Buffer | MatrixMap | int | None, ...]
    if instruction is MMA:
        arguments = weights, weight_scales, tokens, token_scales, m_indptr, masked_m, out, *numbers
        threads, shared_bytes = _mma_threads(tile_m), _mma_shared_bytes(tile_m)
    else:
        maps = [
            MatrixMap(tokens, "u8", shape.rows, shape.k, (tile_m // ctas, BLOCK)),
            MatrixMap(weights, "u8", shape.experts * shape.n, shape.k, (TILE_N, BLOCK)),
        ]
        # An FP32 output is stored without tensor copies; the kernel has a parameter for its map all the same.
        maps.append(MatrixMap(out, "bf16", shape.rows, shape.n, (64, 64)) if out_dtype == "bf16" else maps[0])
        arguments = *maps, weight_scales, token_scales, m_indptr, masked_m, out, *numbers
        threads, shared_bytes = _WGMMA_THREADS, _wgmma_shared_bytes(tile_m)
        grid = grid if blocks is not None else min(grid, multiprocessors // ctas * ctas)
    return LaunchPlan(
        instruction.kernel(tile_m, out_dtype, ctas),
        grid=grid,
        block=threads,
        arguments=arguments,
        shared_bytes=shared_bytes,
        blocks=blocks,
    )


def deepseek_gemm(
    tokens: UInt8Array,
    token_scales: FloatArray,
    weights: UInt8Array,
    weight_scales: FloatArray,
    m_indptr: npt.NDArray[np.int64],
    *,
    device: Device,
    model: str | None = None,
    scale_layout: str = "k_major",
    tile_m: int | None = None,
    ctas: int = 1,
    out_dtype: str = "bf16",
    fill: int = 0,
    blocks: tuple[int, ...] | None = None,
) -> npt.NDArray[Any]:
    """`refmoe.reference.deepseek_gemm` by the chip's own instruction, on whose model the result depends.

    Args:
        tokens: uint8 [M, K] E4M3, rows sorted by expert; K a positive multiple of 128.
        token_scales: float32 [M, at least K/128], or "mn_major" [K/128, at least M].
        weights: uint8 [E, N, K] E4M3, N a positive multiple of 128.
        weight_scales: float32 [E, N/128, K/128].
        m_indptr: int64 [E + 1], the first row of each expert.
        device: where the kernel runs.
        model: one of `accumulation_models(device.arch)`, which names the instruction; None for the first.
        scale_layout: "k_major" or "mn_major".
        tile_m: tokens of a tile, one that the instruction has; None chooses by the mean of the experts' rows.
        ctas: that share the tokens of a tile, 1, or 2 where the instruction has such a kernel and N is a multiple of
            256. It decides no result.
        out_dtype: "bf16" or "f32".
        fill: byte that the output holds before the launch; it stays in rows past m_indptr[E].
        blocks: CTAs that the executor runs, all by default.

    Returns:
        BF16 or FP32 [M, N].

    Raises:
        ArgumentError: an argument is none of these. Nothing has run then.
    """
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 2:
        raise ArgumentError("tokens", describe(tokens), "uint8 [M, K]")
    experts, n, k = _check_weights(weights, weight_scales)
    shape = GroupedShape(tokens.shape[0], experts, n, k)
    check_array("tokens", tokens, np.dtype(np.uint8), (shape.rows, k))
    check_array("m_indptr", m_indptr, np.dtype(np.int64), (experts + 1,))
    if m_indptr[0] != 0 or np.any(np.diff(m_indptr) < 0) or m_indptr[-1] > shape.rows:
        falls = "" if np.all(np.diff(m_indptr) >= 0) else ", decreasing"
        found = f"{m_indptr[0]} .. {m_indptr[-1]}{falls}"
        raise ArgumentError("m_indptr", found, f"0 first, never decreasing, at most {shape.rows} rows last")
    strides = _check_scales(token_scales, scale_layout, shape)
    chosen = chosen_model(model, device.arch)
    tile = _tile_m(chosen, tile_m, -(-int(m_indptr[-1]) // experts))
    operands = tokens, token_scales, weights, weight_scales
    grouping = m_indptr, None, 0
    _check_ctas(chosen, tile, ctas, n)
    launch = _Launch(chosen, tile, ctas, out_dtype, fill, blocks)
    return _run(launch, operands, grouping, shape, strides, device)


def deepseek_gemm_masked(
    tokens: UInt8Array,
    token_scales: FloatArray,
    weights: UInt8Array,
    weight_scales: FloatArray,
    masked_m: npt.NDArray[np.int32],
    *,
    device: Device,
    expected_m: int | None = None,
    model: str | None = None,
    scale_layout: str = "k_major",
    tile_m: int | None = None,
    ctas: int = 1,
    out_dtype: str = "bf16",
    fill: int = 0,
    blocks: tuple[int, ...] | None = None,
) -> npt.NDArray[Any]:
    """`refmoe.reference.deepseek_gemm_masked` by the chip's own instruction, on whose model the result depends.

    Args:
        tokens: uint8 [E, R, K] E4M3; K a positive multiple of 128.
        token_scales: float32 [E, R, at least K/128], or "mn_major" [E, K/128, at least R].
        weights: uint8 [E, N, K] E4M3, N a positive multiple of 128.
        weight_scales: float32 [E, N/128, K/128].
        masked_m: int32 [E], rows of each expert that are in use.
        device: where the kernel runs.
        expected_m: about how many rows of an expert are in use, 1 to R. It decides the grid and the tile, and no
            result. None for R.
        model: as in `deepseek_gemm`, as are the others.
        scale_layout: likewise.
        tile_m: likewise; None chooses by `expected_m`.
        ctas: likewise.
        out_dtype: likewise.
        fill: likewise; it stays in rows that are not in use.
        blocks: likewise.

    Returns:
        BF16 or FP32 [E, R, N].

    Raises:
        ArgumentError: an argument is none of these. Nothing has run then.
    """
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 3:
        raise ArgumentError("tokens", describe(tokens), "uint8 [E, R, K]")
    experts, n, k = _check_weights(weights, weight_scales)
    rows_each = tokens.shape[1]
    shape = GroupedShape(experts * rows_each, experts, n, k, rows_each)
    check_array("tokens", tokens, np.dtype(np.uint8), (experts, rows_each, k))
    check_array("masked_m", masked_m, np.dtype(np.int32), (experts,))
    if not 0 <= masked_m.min() <= masked_m.max() <= rows_each:
        found = f"{masked_m.min()} .. {masked_m.max()}"
        raise ArgumentError("masked_m", found, f"0 to the {rows_each} rows of an expert")
    expected = rows_each if expected_m is None else expected_m
    if not isinstance(expected, (int, np.integer)) or not min(1, rows_each) <= expected <= rows_each:
        raise ArgumentError("expected_m", describe(expected_m), f"1 to the {rows_each} rows of an expert")
    strides = _check_scales(token_scales, scale_layout, shape)
    chosen = chosen_model(model, device.arch)
    tile = _tile_m(chosen, tile_m, int(expected))
    operands = tokens, token_scales, weights, weight_scales
    grouping = None, masked_m, int(expected)
    _check_ctas(chosen, tile, ctas, n)
    launch = _Launch(chosen, tile, ctas, out_dtype, fill, blocks)
    out = _run(launch, operands, grouping, shape, strides, device)
    return out.reshape(experts, rows_each, n)


@dataclass(frozen=True)
class _Launch:
    """How to launch: what `deepseek_gemm` is told beside the problem."""

    model: str
    tile_m: int
    ctas: int
    out_dtype: str
    fill: int
    blocks: tuple[int, ...] | None


def _run(
    launch: _Launch,
    operands: tuple[UInt8Array, FloatArray, UInt8Array, FloatArray],
    grouping: tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int32] | None, int],
    shape: GroupedShape,
    strides: ScaleStrides,
    device: Device,
) -> npt.NDArray[Any]:
    """The output of checked operands; `grouping` is m_indptr, masked_m and the expected rows."""
    one_of("out_dtype", launch.out_dtype, tuple(OUT_DTYPES))
    check_fill(launch.fill)
    dtype = OUT_DTYPES[launch.out_dtype]
    out = device.output("out", (shape.rows, shape.n * dtype.itemsize), launch.fill)
    if shape.rows:
        tokens, token_scales, weights, weight_scales = operands
        m_indptr, masked_m, expected_m = grouping
        plan = deepseek_gemm_plan(
            launch.model,
            launch.tile_m,
            launch.out_dtype,
            (
                device.upload("weights", weights),
                device.upload("weight_scales", weight_scales),
                device.upload("tokens", tokens),
                device.upload("token_scales", token_scales),
            ),
            None if m_indptr is None else device.upload("m_indptr", m_indptr),
            None if masked_m is None else device.upload("masked_m", masked_m),
            out,
            shape,
            strides,
            multiprocessors=device.multiprocessors,
            expected_m=expected_m,
            ctas=launch.ctas,
            blocks=launch.blocks,
        )
        device.launch(plan)
    return device.download(out).view(dtype)


def _check_weights(weights: UInt8Array, weight_scales: FloatArray) -> tuple[int, int, int]:
    """(E, N, K) of weights and their scales.

    Raises:
        ArgumentError: they do not fit each other, or N or K is no whole number of tiles.
    """
    needed = "uint8 [E, N, K] with at least one expert"
    if not isinstance(weights, np.ndarray) or weights.ndim != 3 or weights.shape[0] == 0:
        raise ArgumentError("weights", describe(weights), needed)
    experts, n, k = weights.shape
    for name, size in (("N", n), ("K", k)):
        if size == 0 or size % BLOCK:
            words = f"{name} a positive multiple of {BLOCK}, which share a scale"
            raise ArgumentError("weights", f"{name} = {size}", words)
    check_array("weights", weights, np.dtype(np.uint8), (experts, n, k))
    check_array("weight_scales", weight_scales, np.dtype(np.float32), (experts, n // TILE_N, k // BLOCK))
    check_int32("weights", n, "weight rows of an expert")
    return experts, n, k


def _check_scales(token_scales: FloatArray, layout: str, shape: GroupedShape) -> ScaleStrides:
    """The strides of token scales that fit the problem.

    Raises:
        ArgumentError: an unknown layout, or they do not fit.
    """
    one_of("scale_layout", layout, SCALE_LAYOUTS)
    batch = (shape.experts,) if shape.rows_each else ()
    rows, blocks = shape.rows_each or shape.rows, shape.k // BLOCK
    lines, least = (rows, blocks) if layout == "k_major" else (blocks, rows)
    width = token_scales.shape[-1] if isinstance(token_scales, np.ndarray) and token_scales.ndim else 0
    if width < least:
        sizes = ", ".join(map(str, (*batch, lines)))
        raise ArgumentError("token_scales", describe(token_scales), f"float32 [{sizes}, at least {least}], {layout}")
    check_array("token_scales", token_scales, np.dtype(np.float32), (*batch, lines, width))
    check_int32("token_scales", lines * width, "scales of an expert")
    check_int32("tokens", shape.rows + WGMMA.tiles_m[-1], "rows and those of a tile")
    return scale_strides(layout, width, shape)


def _tile_m(model: str, tile_m: int | None, rows: int) -> int:
    instruction = INSTRUCTIONS[model]
    if tile_m is None:
        return instruction.choose_tile_m(rows)
    if tile_m not in instruction.tiles_m:
        needed = "one of " + ", ".join(map(str, instruction.tiles_m)) + f", which {instruction.name} has"
        raise ArgumentError("tile_m", describe(tile_m), needed)
    return tile_m


def _check_ctas(model: str, tile_m: int, ctas: int, n: int) -> None:
    paired = INSTRUCTIONS[model].paired
    if ctas == 1 or (ctas == 2 and tile_m in paired and n % (2 * TILE_N) == 0):
        return
    needed = (
        f"1, or 2 with tile_m of {' or '.join(map(str, paired))} and N a multiple of {2 * TILE_N}" if paired else "1"
    )
    raise ArgumentError("ctas", f"{describe(ctas)} with tile_m = {tile_m} and N = {n}", needed)


def _mma_threads(tile_m: int) -> int:
    """Of a CTA, `Tile::kThreads`: a warp has 32 weight rows, and half of the tokens from 64 on."""
    return TILE_N // 32 * (2 if tile_m >= 64 else 1) * WARP_LANES


def _mma_shared_bytes(tile_m: int) -> int:
    """Of a CTA: codes of both sides, a scale a token and the weights', to whole lines of 128 bytes, for each stage."""
    scales = (tile_m + 1) * 4
    return (3 if tile_m > 64 else 4) * ((TILE_N + tile_m) * BLOCK + -(-scales // 128) * 128)


_WGMMA_THREADS = 384  # kThreads: three warpgroups


def _wgmma_shared_bytes(tile_m: int) -> int:
    """Of a CTA, `Tile::kBarriers` and the barriers: stages of both sides' codes, and boxes of 64 x 64 of the output."""
    stages = {64: 8, 128: 6, 256: 4}[tile_m]
    boxes = 2 if tile_m == 64 else 4
    return stages * (TILE_N + tile_m) * BLOCK + boxes * 64 * 64 * 2 + 2 * stages * 8
