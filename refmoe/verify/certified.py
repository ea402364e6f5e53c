"""Kernels of ours whose bytes depend on no approximation: they make again what another approximation could change.

A chip is free to give another approximation than the executor within the documented error, so a kernel with one is an
error even if its bytes are equal here. The kernels named below prove each byte for every approximation that the PTX ISA
allows (`csrc/swiglu_estimate.cuh`); tests/cuda/test_swiglu_estimate.py runs them with the worst of these. The proof is
of the estimate alone: an approximation that stands anywhere else in them is an error as in every kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refmoe.cuda.device import LaunchRecord

#: The header that proves its own estimates, by the source that includes it.
CERTIFIED: Mapping[str, str] = {"activation": "swiglu_estimate.cuh"}
#: The approximate opcodes whose error its certificate counts.
COUNTED = frozenset({"ex2.approx.ftz.f32", "rcp.approx.ftz.f32"})


def uncertified(record: LaunchRecord) -> tuple[tuple[str, int], ...]:
    """The approximate instructions of a launch, (opcode, line), whose results no certificate covers."""
    result = record.result
    if result is None:
        return ()
    header = CERTIFIED.get(record.kernel.source, "")
    return tuple(
        found
        for found, (place, caller) in zip(result.approximate, result.approximate_at, strict=True)
        if found[0] not in COUNTED or not _in(place, header) or (caller is not None and not _in(caller, header))
    )


def _in(place: str | None, header: str) -> bool:
    return place is not None and PurePosixPath(place.rpartition(":")[0]).name == header
