"""torchao's MXFP8 of rows, its function in torch, compiled as its own users compile it.

Its Triton kernels of the same are for SM100 and later, and its users on other chips have this function.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from refmoe.bench.sweep.peer import Peer, ReadyPeer, installed
from refmoe.formats import MX_BLOCK


def quantizer(torch: Any, to_mx: Any, scaling: Any) -> Any:
    """A function of BF16 rows [M, K] that returns E4M3 codes [M, K] and E8M0 scales [M, K/32] by torchao.

    Args:
        torch: the module.
        to_mx: torchao's function, compiled or as it is.
        scaling: its mode of scales.
    """

    def quantize(x: Any) -> tuple[Any, Any]:
        scales, codes = to_mx(x, torch.float8_e4m3fn, MX_BLOCK, scaling)
        return codes, scales

    return quantize


def _prepare(torch: Any) -> ReadyPeer:
    tensors = installed("torchao", "torchao.prototype.mx_formats.mx_tensor")
    modes = installed("torchao", "torchao.prototype.mx_formats.config").ScaleCalculationMode
    compiled = torch.compile(tensors.to_mx)
    return ReadyPeer(version("torchao"), {"quantize": quantizer(torch, compiled, modes.RCEIL)})


PEER = Peer("torchao", ("quantize",), _prepare)
