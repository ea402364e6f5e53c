"""Who may access what the grid before writes: lane by lane, in native code as in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx.engine.exact_races import ExactShadow
from refmoe.ptx.engine.slow import SlowAccess
from refmoe.ptx.findings.finding import Finding

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
    thinned(_LEFT_OUT, 3),
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


# The second grid writes one word a thread, from `first` on, before or behind its wait.
_WRITER = """
.version 8.7
.target sm_120a
.address_size 64
.visible .entry reader(.param .u64 out, .param .u64 given) {{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [out]; ld.param.u64 %d2, [given];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4;
    add.u64 %d4, %d1, %d3; add.u64 %d5, %d2, %d3;
    griddepcontrol.launch_dependents;
    ld.global.u32 %r4, [%d5];
    st.global.u32 [%d4], %r4;
    ret;
}}
.visible .entry writer(.param .u64 given, .param .u64 out) {{
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [given]; ld.param.u64 %d2, [out];
    mov.u32 %r1, %tid.x; add.u32 %r2, %r1, {first}; mul.wide.u32 %d3, %r2, 4;
    add.u64 %d4, %d1, %d3; mul.wide.u32 %d3, %r1, 4; add.u64 %d5, %d2, %d3;
    {early}
    griddepcontrol.wait;
    {late}
    ret;
}}
"""
_STORE, _LOAD = "st.global.u32 [%d4], 7;", "ld.global.u32 %r5, [%d4];"
_ATOMIC, _OTHERS = "red.relaxed.gpu.global.add.u32 [%d4], 7;", "ld.global.u32 %r5, [%d5];"


def _two_grids(early: str, late: str = "", first: int = 0, kept: bool = True) -> None:
    """A grid of 64 threads reads its words, and one behind it may start before it has ended."""
    module = ptx.Module.parse(_WRITER.format(early=early, late=late, first=first))
    out, given = np.zeros(2048, np.uint32), np.arange(2048, dtype=np.uint32)
    before = ptx.launch(module, "reader", (1, 1, 1), (64, 1, 1), [out, given], keep_accesses=True)
    assert [(each.buffer.array is out, each.entry) for each in before.writes] == [(True, "reader")]
    (read,) = before.reads
    assert read.buffer.array is given
    assert {page: int(np.count_nonzero(held)) for page, held in read.pages.items()} == {0: 256}
    reads, writes = (before.reads, before.writes) if kept else ([given], [out])
    ptx.launch(
        module, "writer", (1, 1, 1), (64, 1, 1), [given, out], previous_grid_reads=reads, previous_grid_writes=writes
    )


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("early", [_STORE, _ATOMIC])
def test_what_the_grid_before_reads_is_written_behind_the_wait(early: str, kept: bool) -> None:
    _two_grids("", early, kept=kept)
    with pytest.raises(ptx.RaceError, match=r"writes what the grid before this one may still be reading") as caught:
        _two_grids(early, kept=kept)
    assert (caught.value.kind, caught.value.thread) == ("previous grid", (0, 0, 0))
    assert ("(its entry is reader)" in caught.value.message) == kept
    finding = caught.value.finding
    assert isinstance(finding, Finding)
    assert (finding.remedy.split(" before")[0], finding.clean) == (
        "griddepcontrol.wait (cudaGridDependencySynchronize())", True,
    )  # fmt: skip


def test_what_the_grid_before_reads_may_be_read() -> None:
    _two_grids(_LOAD)
    _two_grids(_LOAD, kept=False)


def test_bytes_that_the_grid_before_left_alone_may_be_written() -> None:
    _two_grids(_STORE, first=64)
    with pytest.raises(ptx.RaceError, match="may still be reading"):
        _two_grids(_STORE, first=64, kept=False)
    with pytest.raises(ptx.RaceError, match="may still be reading") as caught:
        _two_grids(_STORE, first=63)
    assert (caught.value.thread, caught.value.offset) == ((0, 0, 0), 252)


def test_what_the_grid_before_wrote_is_not_even_read() -> None:
    _two_grids("", _OTHERS)
    with pytest.raises(ptx.RaceError, match=r"may still be writing, .* \(its entry is reader\)"):
        _two_grids(_OTHERS)


def test_bytes_of_a_buffer_that_is_looked_at_exactly_are_kept() -> None:
    shadow = ExactShadow(8192, 0)
    (place,) = shadow._places_of(4100, 4)
    place.reads[0, 0, 0, 4100, 4] = 1
    ((page, wrote, read),) = shadow.touched()
    assert (page, wrote.any(), np.flatnonzero(read).tolist()) == (1, False, [4, 5, 6, 7])
