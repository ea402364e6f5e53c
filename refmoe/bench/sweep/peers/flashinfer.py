"""FlashInfer's MXFP8 of rows. It compiles its kernel with nvcc at the first call, which takes a minute or more.

Its routing and permutation are parts of its fused layers and have no function of their own. It has no MXFP8 behind an
activation either.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from refmoe.bench.sweep.peer import Peer, PeerMissing, ReadyPeer, installed


def _prepare(torch: Any) -> ReadyPeer:
    function = getattr(installed("flashinfer"), "mxfp8_quantize", None)
    if function is None:
        raise PeerMissing(f"flashinfer {version('flashinfer-python')} has no mxfp8_quantize")

    def quantize(x: Any) -> tuple[Any, Any]:
        codes, scales = function(x, False)  # token-linear scales
        return codes, scales

    return ReadyPeer(version("flashinfer-python"), {"quantize": quantize})


PEER = Peer("FlashInfer", ("quantize",), _prepare)
