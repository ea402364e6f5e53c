"""Who may access what the grid before writes: lane by lane, in native code as in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.selection.thinned import named_by_faults, thinned

from refmoe import ptx
from refmoe.ptx.engine.slow import SlowAccess

# More blocks than run together.
_BLOCKS, _THREADS = 800, 64
_KERNEL = """
.version 8.7
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 given) {{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [out];
    ld.param.u64 %d2, [given];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.u32 %r3, %r2, {threads}, %r1;
    mul.wide.u32 %d3, %r3, 4;
    add.u64 %d4, %d1, %d3;
    add.u64 %d5, %d2, %d3;
    {without}
    @%p1 bra NO_WAIT;
    griddepcontrol.wait;
NO_WAIT:
    ld.global{cache}.u32 %r4, [%d5];
    st.global.u32 [%d4], %r4;
    ret;
}}
"""
#: By what is left out of the wait: how its lanes are found, and the first of them.
_LEFT_OUT = {
    "every lane of odd number": ("and.b32 %r5, %r1, 1; setp.eq.u32 %p1, %r5, 1;", (0, 1)),
    "the last lane of a warp": ("setp.eq.u32 %p1, %r3, 31;", (0, 31)),
    "a warp of the first block": ("setp.ge.u32 %p1, %r1, 32; @%p1 setp.eq.u32 %p1, %r2, 0;", (0, 32)),
    "the second block": ("setp.eq.u32 %p1, %r2, 1;", (1, 0)),
    "the last block": (f"setp.eq.u32 %p1, %r2, {_BLOCKS - 1};", (_BLOCKS - 1, 0)),
    "a lane of the last block": (f"setp.eq.u32 %p1, %r3, {_BLOCKS * _THREADS - 20};", (_BLOCKS - 1, _THREADS - 20)),
}


def _run(without: str, cache: str = "") -> ptx.LaunchResult:
    given = np.arange(_BLOCKS * _THREADS, dtype=np.uint32)
    out = np.zeros_like(given)
    module = ptx.Module.parse(_KERNEL.format(threads=_THREADS, without=without, cache=cache))
    result = ptx.launch(module, "k", (_BLOCKS, 1, 1), (_THREADS, 1, 1), [out, given], previous_grid_writes=[given])
    np.testing.assert_array_equal(out, given)
    return result


@pytest.mark.parametrize(
    "left_out",
    thinned(_LEFT_OUT, 3, named_by_faults("findings/test_previous_grid.py::test_a_lane_that_did_not_wait_is_found")),
)
def test_a_lane_that_did_not_wait_is_found(left_out: str) -> None:
    without, (block, thread) = _LEFT_OUT[left_out]
    with pytest.raises(ptx.RaceError, match=r"no griddepcontrol\.wait comes before") as caught:
        _run(without)
    assert (caught.value.block, caught.value.thread) == ((block, 0, 0), (thread, 0, 0))


def test_lanes_that_waited_access_it_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, whole = list[str](), SlowAccess.__call__

    def count(self: SlowAccess, *arguments: Any) -> None:
        asked.append(self.access.instruction.text)
        whole(self, *arguments)

    monkeypatch.setattr(SlowAccess, "__call__", count)
    result = _run("setp.ne.u32 %p1, %r1, %r1;")
    assert (asked, result.warnings) == ([], ())


def test_a_non_coherent_load_is_told_of_behind_the_wait() -> None:
    result = _run("setp.ne.u32 %p1, %r1, %r1;", ".nc")
    assert [each.warning for each in result.warnings] == ["non-coherent"]
