"""The definition of every result: bit-exact references in NumPy."""

from __future__ import annotations

from refmoe.reference.dequantize import dequantize_mxfp4, dequantize_mxfp8
from refmoe.reference.quantize import quantize, quantize_mxfp4, quantize_mxfp8
from refmoe.reference.tensor import MXTensor

__all__ = [
    "MXTensor",
    "dequantize_mxfp4",
    "dequantize_mxfp8",
    "quantize",
    "quantize_mxfp4",
    "quantize_mxfp8",
]
