"""Production CUDA kernels, the toolchain that builds them, and the devices that run them."""

from __future__ import annotations

import warnings

from refmoe.cuda.device import CudaDevice, Device, DeviceUnavailable, PtxDevice, open_device
from refmoe.cuda.expand import ExpandedRows, RowsAs, expand, expand_as
from refmoe.cuda.moe import fused_moe
from refmoe.cuda.nvfp4 import QuantizedNVFP4, quantize_nvfp4
from refmoe.cuda.quantize import Quantized, quantize_mxfp8
from refmoe.cuda.toolchain import ToolchainError

__all__ = [
    "CudaDevice",
    "Device",
    "DeviceUnavailable",
    "ExpandedRows",
    "PtxDevice",
    "Quantized",
    "QuantizedNVFP4",
    "RowsAs",
    "ToolchainError",
    "expand",
    "expand_as",
    "fused_moe",
    "open_device",
    "quantize_mxfp8",
    "quantize_nvfp4",
]

#: The former names of these functions. Each is named as its reference is now.
_FORMER = {"mxfp8_quantize": quantize_mxfp8, "nvfp4_quantize": quantize_nvfp4}


def __getattr__(name: str) -> object:
    """Give a function under its former name, with a warning.

    Raises:
        AttributeError: the name is of nothing here.
    """
    if name not in _FORMER:
        raise AttributeError(f"module 'refmoe.cuda' has no attribute {name!r}")
    warnings.warn(f"{name} is named {_FORMER[name].__name__} now", DeprecationWarning, stacklevel=2)
    return _FORMER[name]
