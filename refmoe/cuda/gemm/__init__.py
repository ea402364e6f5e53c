"""The grouped GEMM: its launch in `kernel`, one tile in `tile`, which tile to take in `choice`."""

from refmoe.cuda.gemm.kernel import grouped_gemm

__all__ = ["grouped_gemm"]
