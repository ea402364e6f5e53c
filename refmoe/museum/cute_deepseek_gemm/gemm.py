"""Launching the grouped GEMM in block FP8 that is written in CuTe DSL: what it accepts, its tiles, its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.arguments import BF16
from refmoe.cuda.deepseek_gemm import BLOCK, TILE_N, accumulation_models
from refmoe.cuda.device import Device
from refmoe.cute import tensor
from refmoe.cute.package import imported
from refmoe.errors import ArgumentError
from refmoe.museum.cute_kernel import DeviceCode, held, launch, stream, view_of

DEVICE_CODE = DeviceCode(Path(__file__).parent / "device")
#: By accumulation model: the module of the device code, and the tokens of its tiles.
MODULES = {"sm120": "mma", "sm90_mma_fp8": "mma", "sm90_wgmma_fp8": "wgmma"}
TILES_M = {"mma": (16, 64, 128), "wgmma": (64, 128)}
_OUT = {"bf16": BF16, "f32": np.dtype(np.float32)}
_CODES = "Float8E4M3FN"
_COPY_BYTES = 16


def choose_tile_m(model: str, rows: int) -> int:
    """The tokens of a tile for experts of about `rows` rows: the narrowest tile that holds them, or the widest."""
    tiles = TILES_M[MODULES[model]]
    return next((tile for tile in tiles if tile >= rows), tiles[-1])


def tile_number(counts: Sequence[int], expert: int, row: int, tile_m: int) -> int:
    """The number of the tile of tokens in which a row of an expert lies, where every CTA takes one."""
    return sum(-(-count // tile_m) for count in counts[:expert]) + row // tile_m


def grouped_gemm(
    operands: tuple[npt.NDArray[Any], ...],
    groups: npt.NDArray[Any],
    *,
    device: Device,
    code: DeviceCode = DEVICE_CODE,
    model: str,
    scale_layout: str = "k_major",
    tile_m: int = 0,
    out_dtype: str = "bf16",
    expected_m: int = 0,
    fill: int = 0,
    blocks: tuple[tuple[int, int, int], ...] | None = None,
) -> npt.NDArray[Any]:
    """`refmoe.reference.deepseek_gemm`, or of a batch `deepseek_gemm_masked`, by the CuTe DSL kernels.

    Args:
        operands: tokens uint8 [M, K], or of a batch [E, R, K]; token scales float32 [M, at least K/128], or MN-major
            [K/128, at least M], of each expert of a batch; weights uint8 [E, N, K]; weight scales float32
            [E, N/128, K/128]. N and K are multiples of 128.
        groups: m_indptr int64 [E + 1], or of a batch masked_m int32 [E].
        device: the executor, or a GPU.
        code: the device code.
        model: an accumulation model that the chip's instructions follow; it names the kernel.
        scale_layout: "k_major" or "mn_major".
        tile_m: tokens of a tile, one of `TILES_M`; 0 chooses.
        out_dtype: "bf16" or "f32".
        expected_m: of a batch, for how many rows of an expert there are CTAs; 0 for all. It decides no result.
        fill: byte that the output holds before the launch.
        blocks: CTAs that the executor runs, (tile of weight rows, tile of tokens, 0); all by default.

    Returns:
        BF16 or FP32 [M, N], or [E, R, N].

    Raises:
        ArgumentError: a model that the chip has not, or a tile that the kernel has not. Nothing has run then.
        CuteMissing: CuTe DSL is not installed.
    """
    tokens, token_scales, weights, weight_scales = operands
    had = accumulation_models(device.arch)
    if model not in had:
        raise ArgumentError("model", f"{model} on {device.arch}", " or ".join(had))
    masked, (experts, n, k) = tokens.ndim == 3, weights.shape
    batches, rows = tokens.shape[:2] if masked else (1, tokens.shape[0])
    module = MODULES[model]
    tile = tile_m or choose_tile_m(model, (expected_m or rows) if masked else -(-int(groups[-1]) // experts))
    if tile not in TILES_M[module]:
        needed = "one of " + ", ".join(map(str, TILES_M[module])) + f", which the CuTe DSL kernel of {module} has"
        raise ArgumentError("tile_m", str(tile), needed)
    dtype = _OUT[out_dtype]
    out = device.output("out", (batches * rows, n * dtype.itemsize), fill)
    if rows:
        scales = _scales(device.upload("token_scales", token_scales), token_scales, scale_layout, rows, k)
        aligned: dict[str, Any] = {"align": _COPY_BYTES, "divisibility": {1: BLOCK}}
        arguments = (
            view_of(
                device.upload("tokens", tokens), np.uint8, (batches, rows, k), (1, 2, 0), element=_CODES, **aligned
            ),
            scales,
            view_of(device.upload("weights", weights), np.uint8, weights.shape, (1, 2, 0), element=_CODES, **aligned),
            view_of(device.upload("weight_scales", weight_scales), np.float32, weight_scales.shape, (1, 2, 0)),
            view_of(device.upload("groups", groups), groups.dtype, groups.shape, (0,)),
            view_of(out, dtype, (batches, rows, n), (1, 2, 0), **aligned),
            _tiles(masked, tile, experts, rows, expected_m),
            stream(),
        )
        launch(
            code,
            device,
            (module, tile, masked, out_dtype),
            lambda: code.load(module).DeepSeekGemm(tile, masked),
            arguments,
            blocks,
        )
    found: npt.NDArray[Any] = device.download(out).view(dtype).reshape(*tokens.shape[:-1], n)
    return found


def _scales(buffer: Any, scales: npt.NDArray[Any], layout: str, rows: int, k: int) -> Any:
    """Token scales as (rows, K / 128, L), of rows of the buffer that may be longer. No stride is compiled in."""
    shape = scales.shape if scales.ndim == 3 else (1, *scales.shape)
    memory = held(buffer)
    array = memory.array.reshape(-1).view(np.float32).reshape(shape)
    modes = (1, 2, 0) if layout == "k_major" else (2, 1, 0)
    return tensor(array.transpose(modes)[:rows, : k // BLOCK], unit=False, buffer=memory)


def _tiles(masked: bool, tile_m: int, experts: int, rows: int, expected_m: int) -> Any:
    """For how many tiles of tokens there are CTAs: for the most that there can be, or those that are expected."""
    each = -(-min(expected_m or rows, rows) // tile_m)
    most = experts * each if masked else rows // tile_m + min(experts, rows)
    return imported("cutlass").Int32(max(most, 1))


__all__ = ["DEVICE_CODE", "MODULES", "TILES_M", "TILE_N", "choose_tile_m", "grouped_gemm", "tile_number"]
