"""The toy kernel: how it is launched."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from refmoe.cuda.device import Device
from refmoe.cuda.launch import Entry, LaunchPlan
from refmoe.errors import ArgumentError, describe

__all__ = ["toy"]

_THREADS = 64


def toy(x: NDArray[np.float32], *, device: Device, sign: str = "plus", fill: int = 0) -> NDArray[np.float32]:
    """Neighbours of a row of float32 [M, K], added or subtracted; float32 [M, K/2].

    Raises:
        ArgumentError: x is no such matrix; nothing has run.
    """
    if x.dtype != np.float32 or x.ndim != 2 or x.shape[1] % 2:
        raise ArgumentError("x", describe(x), "float32 [M, K], K even")
    rows, width = x.shape[0], x.shape[1] // 2
    out = device.output("out", (rows, 4 * width), fill)
    if rows:
        grid = min(-(-rows * width // _THREADS), device.multiprocessors)
        kernel = Entry("toy", f"refmoe_toy_{sign}")
        device.launch(LaunchPlan(kernel, grid, _THREADS, (device.upload("x", x), out, rows * width)))
    return device.download(out).view(np.float32)
