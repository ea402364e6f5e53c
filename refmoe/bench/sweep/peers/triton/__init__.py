"""Operations as somebody writes them in Triton by hand: MXFP8 of rows, and the activations in MXFP8."""

from __future__ import annotations

from typing import Any

from refmoe.bench.sweep.peer import Peer, ReadyPeer, installed


def _prepare(torch: Any) -> ReadyPeer:
    triton = installed("triton")
    # The decorators of this module are Triton's.
    from refmoe.bench.sweep.peers.triton import kernels

    return ReadyPeer(str(triton.__version__), {"quantize": kernels.quantize, "activation": kernels.activation})


PEER = Peer("Triton", ("quantize", "activation"), _prepare)
