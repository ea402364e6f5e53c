"""Launching SwiGLU with requantization that is written in CuTe DSL: its tensors and its grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from refmoe.cuda.device import Device
from refmoe.cute.package import imported
from refmoe.museum.cute_kernel import DeviceCode, launch, stream, view_of
from refmoe.reference.deepseek.activation import TILE, BlockFP8Rows

DEVICE_CODE = DeviceCode(Path(__file__).parent / "device")
#: CTAs of all batches together, for each multiprocessor; where there are more rows, they take several.
CTAS_PER_MULTIPROCESSOR = 16
_FP32_BYTES, _COPY_BYTES = 4, 16


def swiglu_block_fp8(
    gate_up: npt.NDArray[Any],
    groups: npt.NDArray[Any],
    *,
    device: Device,
    code: DeviceCode = DEVICE_CODE,
    policy: str = "deepgemm",
    scales: str = "fp32",
    layout: str = "k_major",
    fill: int = 0,
) -> BlockFP8Rows:
    """`refmoe.reference.deepseek.activation.swiglu_block_fp8`, or `swiglu_block_fp8_masked`, by the CuTe DSL kernel.

    Args:
        gate_up: BF16 or FP32 [R, 2I], or of a batch [E, M, 2I]: I gates, then I ups; I a multiple of 128.
        groups: int64 [E + 1], whose last is the number of rows in use, or of a batch int32 [E], those of each expert.
        device: the executor, or a GPU.
        code: the device code.
        policy: "deepgemm" or "exact".
        scales: "fp32", or "ue8m0" for powers of two.
        layout: of the scales, "k_major" or "mn_major", of each expert by itself.
        fill: byte that the outputs hold before the launch.

    Raises:
        CuteMissing: CuTe DSL is not installed.
    """
    masked = gate_up.ndim == 3
    batches, rows, columns = gate_up.shape if masked else (1, *gate_up.shape)
    width, tiles = columns // 2, columns // 2 // TILE
    codes = device.output("codes", (batches * rows, width), fill)
    factors = device.output("scales", (batches * rows, tiles * _FP32_BYTES), fill)
    by_row = layout == "k_major"
    lines = (rows, tiles) if by_row else (tiles, rows)
    if batches * rows:
        aligned: dict[str, Any] = {"align": _COPY_BYTES, "divisibility": {1: TILE}}
        arguments = (
            view_of(device.upload("gate_up", gate_up), gate_up.dtype, (batches, rows, columns), (1, 2, 0), **aligned),
            view_of(device.upload("groups", groups), groups.dtype, groups.shape, (0,)),
            view_of(codes, np.uint8, (batches, rows, width), (1, 2, 0), element="Float8E4M3FN", **aligned),
            view_of(factors, np.float32, (batches, *lines), (1, 2, 0) if by_row else (2, 1, 0), unit=False),
            imported("cutlass").Int32(min(rows, max(device.multiprocessors * CTAS_PER_MULTIPROCESSOR // batches, 1))),
            stream(),
        )
        exact, power_of_two = policy == "exact", scales == "ue8m0"
        launch(
            code,
            device,
            (masked, exact, power_of_two, gate_up.dtype.name),
            lambda: code.load("activation").DeepSeekActivation(masked, exact, power_of_two),
            arguments,
        )
    found = device.download(factors).reshape(-1).view(np.float32)
    shape = (*gate_up.shape[:-2], *lines)
    return BlockFP8Rows(device.download(codes).reshape(*gate_up.shape[:-1], width), found.reshape(shape))
