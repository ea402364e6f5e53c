"""The finding of a launch that races."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe import ptx
from refmoe.ptx.findings.finding import Finding


def finding_of(module: ptx.Module, blocks: int = 1, threads: int = 64, schedules: int = 1) -> Finding:
    out, given = np.zeros(256, np.uint32), np.arange(256, dtype=np.uint32)
    given[64:] = 0
    arguments = [out, given] if len(module.read("k").parameters) == 2 else [out, given, 0]
    with pytest.raises(ptx.RaceError) as caught, ptx.under_schedules(schedules):
        ptx.launch(module, "k", (blocks, 1, 1), (threads, 1, 1), arguments)
    assert caught.value.finding is not None
    return caught.value.finding
