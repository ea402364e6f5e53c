"""A whole MoE layer: one call in `fused`, its arguments in `call`, its launches in `launches`, torch in `operators`."""

from refmoe.cuda.moe.fused import fused_moe

__all__ = ["fused_moe"]
