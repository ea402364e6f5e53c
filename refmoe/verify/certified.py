"""Kernels of ours whose bytes depend on no approximation: they make again what another approximation could change.

A chip is free to give another approximation than the executor within the documented error, so a kernel with one is an
error even if its bytes are equal here. The kernels named below prove each byte for every approximation that the PTX ISA
allows (`csrc/swiglu_estimate.cuh`); tests/cuda/test_swiglu_estimate.py runs them with the worst of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refmoe.cuda.device import LaunchRecord

#: The approximate opcodes that a source's certificate covers.
CERTIFIED: Mapping[str, frozenset[str]] = {
    "activation": frozenset({"ex2.approx.ftz.f32", "rcp.approx.ftz.f32"}),
}


def uncertified(record: LaunchRecord) -> tuple[tuple[str, int], ...]:
    """The approximate instructions of a launch, (opcode, line), whose results no certificate covers."""
    if record.result is None:
        return ()
    covered = CERTIFIED.get(record.kernel.source, frozenset())
    return tuple(found for found in record.result.approximate if found[0] not in covered)
