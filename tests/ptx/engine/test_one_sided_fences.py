"""`fence.acquire` and `fence.release` do the one thing and not the other (PTX ISA, "membar, fence")."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import run

from refmoe import ptx

PASSED = """
    setp.ne.u32 %p1, %r60, 0;
    @%p1 bra reads;
    st.global.u32 [%d0], 42;
    {before}
    st.relaxed.gpu.global.u32 [%d0+4], 1;
    ret;
reads:
    ld.relaxed.gpu.global.u32 %r3, [%d0+4];
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra reads;
    {behind}
    {use}
    ret;
"""
READ, WRITE = "ld.global.u32 %r4, [%d0];", "st.global.u32 [%d0], 43;"


def passed(before: str, behind: str, use: str = READ) -> ptx.LaunchResult:
    """Block 0 writes and signals, block 1 polls and uses."""
    body = PASSED.format(before=before, behind=behind, use=use)
    return run(body, np.zeros(4, np.uint32), grid=(2, 1, 1), block=(1, 1, 1))


@pytest.mark.parametrize("before", ["fence.release.gpu;", "fence.acq_rel.gpu;", "fence.sc.gpu;"])
@pytest.mark.parametrize("behind", ["fence.acquire.gpu;", "fence.acq_rel.gpu;"])
def test_a_release_and_an_acquire(before: str, behind: str) -> None:
    assert not passed(before, behind).warnings


def test_an_acquire_releases_nothing() -> None:
    with pytest.raises(ptx.RaceError, match="write-read"):
        passed("fence.acquire.gpu;", "fence.acquire.gpu;")


def test_a_release_acquires_nothing() -> None:
    (warning,) = passed("fence.release.gpu;", "fence.release.gpu;").warnings
    assert warning.warning == "missing acquire"
    with pytest.raises(ptx.RaceError, match="write-write"):
        passed("fence.release.gpu;", "fence.release.gpu;", WRITE)
