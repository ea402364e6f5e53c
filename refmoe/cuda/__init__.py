"""Production CUDA kernels, the toolchain that builds them, and the devices that run them."""

from __future__ import annotations

from refmoe.cuda.device import CudaDevice, Device, DeviceUnavailable, PtxDevice, open_device
from refmoe.cuda.expand import ExpandedRows, RowsAs, expand, expand_as
from refmoe.cuda.moe import fused_moe
from refmoe.cuda.nvfp4 import QuantizedNVFP4, nvfp4_quantize
from refmoe.cuda.quantize import Quantized, mxfp8_quantize
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
    "mxfp8_quantize",
    "nvfp4_quantize",
    "open_device",
]
