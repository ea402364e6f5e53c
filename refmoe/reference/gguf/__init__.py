"""Blocks of 32 as GGUF files hold them: MXFP4 by gguf's own rule, and Q8_0. Activations in Q8_1 are an operation."""

from refmoe.reference.gguf.mxfp4 import quantize_gguf_blocks, scale_bytes
from refmoe.reference.gguf.q8_0 import Q8_0Tensor

__all__ = ["Q8_0Tensor", "quantize_gguf_blocks", "scale_bytes"]
