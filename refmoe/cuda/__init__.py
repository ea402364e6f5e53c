"""Production CUDA kernels, the toolchain that builds them, and the devices that run them."""

from __future__ import annotations

from refmoe.cuda.device import CudaDevice, Device, DeviceUnavailable, PtxDevice, open_device
from refmoe.cuda.expand import ExpandedRows, expand
from refmoe.cuda.moe import fused_moe
from refmoe.cuda.quantize import Quantized, mxfp8_quantize
from refmoe.cuda.toolchain import ToolchainError

__all__ = [
    "CudaDevice",
    "Device",
    "DeviceUnavailable",
    "ExpandedRows",
    "PtxDevice",
    "Quantized",
    "ToolchainError",
    "expand",
    "fused_moe",
    "mxfp8_quantize",
    "open_device",
]
