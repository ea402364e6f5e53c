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


@pytest.mark.parametrize("order", ["acquire", "acq_rel"])
@pytest.mark.parametrize("scope", ["cta", "cluster"])
def test_a_fence_of_too_narrow_a_scope(order: str, scope: str) -> None:
    # Without it there is a warning; but whoever fences means to acquire.
    with pytest.raises(ptx.RaceError, match="write-read"):
        passed("fence.release.gpu;", f"fence.{order}.{scope};")
    assert not passed("fence.release.gpu;", f"fence.{order}.{scope}; fence.acquire.gpu;").warnings
    (warning,) = passed("fence.release.gpu;", f"fence.release.{scope};").warnings
    assert warning.warning == "missing acquire"


def test_a_fence_that_is_wide_enough_for_its_own_thread() -> None:
    # Thread 0 polls and fences, but for thread 1 only behind the barrier. That stays a warning.
    body = PASSED.format(before="fence.release.gpu;", behind="AT: bar.sync 0; fence.acq_rel.gpu;", use=READ)
    others = "setp.ne.u32 %p3, %r1, 0; and.pred %p4, %p1, %p3; @%p4 bra AT; @%p3 exit;\n    @%p1 bra reads;"
    body = body.replace("@%p1 bra reads;", others)
    (warning,) = run(body, np.zeros(4, np.uint32), grid=(2, 1, 1), block=(2, 1, 1)).warnings
    assert (warning.warning, warning.thread) == ("missing acquire", (1, 0, 0))


@pytest.mark.parametrize(("idle", "other"), [("add.u32 %r3, [%d0+4], 0", "add.u32 %r3, [%d0+4], 4"),
                                             ("and.b32 %r3, [%d0+4], -1", "or.b32 %r3, [%d0+4], 4")])  # fmt: skip
def test_an_atomic_that_changes_nothing_only_looks(idle: str, other: str) -> None:
    def poll(atomic: str) -> ptx.LaunchResult:
        body = PASSED.format(before="fence.release.gpu;", behind="", use=WRITE)
        body = body.replace("ld.relaxed.gpu.global.u32 %r3, [%d0+4];", f"atom.relaxed.gpu.global.{atomic};")
        body = body.replace("setp.eq.u32 %p2, %r3, 0;", "and.b32 %r3, %r3, 1; setp.eq.u32 %p2, %r3, 0;")
        # Block 0 adds its 1, whatever is there.
        body = body.replace("st.relaxed.gpu.global.u32 [%d0+4], 1;", "red.relaxed.gpu.global.or.b32 [%d0+4], 1;")
        return run(body, np.zeros(4, np.uint32), grid=(2, 1, 1), block=(1, 1, 1))

    with pytest.raises(ptx.RaceError, match="write-write"):
        poll(idle)
    # One that leaves something counts its thread in, as those of a last block do.
    (warning,) = poll(other).warnings
    assert warning.warning == "missing acquire"
