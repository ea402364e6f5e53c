"""What a finding claims of its remedy holds: for kernels with a second fault, and where other schedules show more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.findings.found import finding_of
from support.findings.plain import CELLS
from support.ptx_kernel import compile_cuda, line_of, text

from refmoe import ptx
from refmoe.ptx.findings.explain import Explainer
from refmoe.ptx.findings.finding import Finding
from refmoe.ptx.state.memory import Arena

# The reversal lacks a barrier. Behind it the flag of one block passes data to the other without a fence.
TWO_RACES = """
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    __shared__ unsigned tile[64], other[64];
    unsigned thread = threadIdx.x, *data = in + 64, *flag = in + 200;
    tile[thread] = 0;
    other[thread] = 0;
    __syncthreads();
    tile[thread] = in[thread];
    unsigned mine = tile[thread ^ 1];
    other[thread] = mine;
    unsigned back = other[63 - thread];
    if (blockIdx.x == 0) {
        data[thread] = back;
        __syncthreads();
        if (thread == 0) atomicExch(flag, 1);
    } else {
        if (thread == 0) while (atomicAdd(flag, 0) == 0) {}
        __syncthreads();
        back += data[thread];
    }
    out[blockIdx.x * 64 + thread] = back;
}
"""
# Half of a warp exchanges. A meeting of the whole warp inside of the branch is none with the lanes outside.
HALF = """
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    __shared__ unsigned tile[32];
    unsigned thread = threadIdx.x;
    if (thread < 16) {
        tile[thread] = thread;
        out[thread] = tile[thread ^ 1];
    }
    __syncwarp();
    out[thread + 16 & 31] = thread;
}
"""
# A tree of one warp behind a step of two warps, unrolled, without a barrier.
TREE = """
extern "C" __global__ void k(unsigned* out, unsigned* in) {
    __shared__ float tile[128];
    unsigned thread = threadIdx.x;
    tile[thread] = thread;
    __syncthreads();
    #pragma unroll
    for (int distance = 64; distance; distance >>= 1)
        if (thread < distance) tile[thread] += tile[thread + distance];
    if (thread == 0) out[0] = __float_as_uint(tile[0]);
}
"""
# Two warps exchange without a barrier. Block 0 reads what block 1 signals without an order, if it sees the signal.
LATER = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3; xor.b32 %r5, %r1, 32; mad.lo.u32 %r6, %r5, 4, %r3;
    setp.ne.u32 %p1, %r60, 0; mov.u32 %r10, 0; mov.u32 %r11, 0;
    @!%p1 ld.relaxed.gpu.global.u32 %r10, [%d1+512];
    st.shared.u32 [%r4], 9; bar.sync 0;
    st.shared.u32 [%r4], %r1;
    ld.shared.u32 %r7, [%r6];
    setp.ne.u32 %p2, %r10, 0;
    @%p2 ld.global.u32 %r11, [%d1+516];
    add.u32 %r7, %r7, %r11;
    st.global.u32 [%d2], %r7;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra DONE;
    @%p1 st.global.u32 [%d1+516], 0;
    @%p1 st.relaxed.gpu.global.u32 [%d1+512], 1;
DONE:
    ret;
"""
# Each of two threads says that it is there and looks for the other one. Only one may find nobody.
DEKKER = """
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    xor.b32 %r4, %r60, 1; mul.wide.u32 %d3, %r60, 4; mul.wide.u32 %d4, %r4, 4;
    add.u64 %d3, %d3, %d1; add.u64 %d4, %d4, %d1;
    st.relaxed.gpu.global.u32 [%d3], 1;
    fence.acq_rel.gpu;
    ld.relaxed.gpu.global.u32 %r5, [%d4];
    setp.ne.u32 %p2, %r5, 0;
    @%p2 bra DONE;
    ld.global.u32 %r6, [%d0];
    add.u32 %r7, %r6, 1;
    st.global.u32 [%d0], %r7;
DONE:
    ret;
"""
# The data are stored strongly, and are what they were before.
POLL = """
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    setp.ne.u32 %p2, %r60, 0;
    @%p2 bra WAIT;
    st.relaxed.gpu.global.u32 [%d1], 0;
    st.release.gpu.global.u32 [%d1+128], 1;
    bra DONE;
WAIT:
    ld.relaxed.gpu.global.u32 %r5, [%d1+128];
    setp.eq.u32 %p3, %r5, 0;
    @%p3 bra WAIT;
    ld.global.u32 %r6, [%d1];
    st.global.u32 [%d2], %r6;
DONE:
    ret;
"""
EXCHANGE = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3; xor.b32 %r5, %r1, {distance}; mad.lo.u32 %r6, %r5, 4, %r3;
    {first}
    st.shared.u32 [%r4], %r1;
    {order}
    ld.shared.u32 %r7, [%r6];
    st.global.u32 [%d2], %r7;
    {then}
    ret;
"""
UNWRITTEN = "ld.shared.u32 %r8, [cell+1020]; st.global.u32 [%d2+512], %r8;"
FIRST = "st.shared.u32 [%r4], 9; bar.sync 0;"


def exchange(distance: int = 32, first: str = FIRST, order: str = "", then: str = "") -> ptx.Module:
    return ptx.Module.parse(text(EXCHANGE.format(distance=distance, first=first, order=order, then=then), CELLS))


# Another fault is left


def test_a_change_that_lets_another_race_come_first_is_no_remedy(tmp_path: Path) -> None:
    finding = finding_of(compile_cuda(TWO_RACES, tmp_path), blocks=2)
    assert "__syncthreads() (bar.sync 0) before" in finding.remedy
    assert (finding.tried, finding.clean) == (True, False)
    assert "kernel.cu:11)" in finding.remedy


def test_another_race_under_another_schedule_is_another_fault(tmp_path: Path) -> None:
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    result = ptx.launch(compile_cuda(HALF, tmp_path), "k", (1, 1, 1), (32, 1, 1), [out, given])
    (warning,) = {each.line: each for each in result.warnings}.values()
    assert isinstance(warning.finding, Finding)
    assert not warning.finding.clean or not warning.finding.same


def test_a_race_of_another_schedule_is_another_fault() -> None:
    finding = finding_of(ptx.Module.parse(text(LATER, CELLS)), blocks=2)
    assert "__syncthreads()" in finding.remedy
    assert (finding.tried, finding.clean) == (True, False)
    mended = LATER.replace("st.relaxed", "st.release").replace("ld.relaxed", "ld.acquire")
    finding = finding_of(ptx.Module.parse(text(mended, CELLS)), blocks=2)
    assert "__syncthreads()" in finding.remedy
    assert (finding.tried, finding.clean) == (True, True)


def test_a_read_of_nothing_is_another_fault() -> None:
    finding = finding_of(exchange(1, then=UNWRITTEN))
    assert "__syncwarp()" in finding.remedy
    assert (finding.tried, finding.clean) == (True, False)


def test_a_read_of_nothing_before_both_accesses_says_nothing() -> None:
    """With any change it ends the launch before the race could be met."""
    early = "setp.eq.u32 %p1, %r1, 63; @%p1 ld.shared.u32 %r8, [cell+1020]; @%p1 st.global.u32 [%d2+512], %r8;"
    finding = finding_of(exchange(32, order="bar.warp.sync -1;", then=early))
    assert "__syncthreads()" in finding.remedy


def test_likewise_is_said_of_one_barrier_alone(tmp_path: Path) -> None:
    finding = finding_of(compile_cuda(TREE, tmp_path), threads=128)
    assert finding.clean
    assert finding.edited is not None
    for words in finding.remedy.split(", and __sync"):
        # What is said to be likewise there is so in the text.
        name = "bar.warp.sync" if "bar.warp.sync" in words else "bar.sync"
        head, _, likewise = words.partition(", and likewise at line ")
        lines = [int(each) for each in likewise.split(" of ")[0].split(", ") if each]
        lines.append(int(head.split("before line ")[1].split(" ")[0]) if "before line " in head else lines[0])
        assert all(name in finding.edited.split("\n")[line - 1] for line in lines), words


# Signals


def test_one_pair_within_a_block_and_between_blocks() -> None:
    """All threads of two blocks say so: it takes strong stores of the whole grid."""
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    body = "st.global.u32 [%d1], 1; ret;"
    result = ptx.launch(ptx.Module.parse(text(body)), "k", (2, 1, 1), (64, 1, 1), [out, given, 0])
    assert {each.warning for each in result.warnings} == {"same value"}
    for each in result.warnings:
        assert isinstance(each.finding, Finding)
        assert each.finding.remedy.startswith("st.relaxed.gpu.global.u32 at line ")


@pytest.mark.parametrize("schedule", [2, 4, 5])
def test_two_threads_that_look_for_each_other_need_fences_in_sequence(schedule: int) -> None:
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    source = text(DEKKER if schedule == 2 else DEKKER.replace("st.relaxed", "fence.sc.gpu; st.relaxed"))
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(ptx.Module.parse(source), "k", (2, 1, 1), (32, 1, 1), [out, given, 0], schedule=schedule)
    finding = caught.value.finding
    assert isinstance(finding, Finding)
    assert finding.remedy == f"fence.sc.gpu at line {line_of(DEKKER, 'fence.acq_rel.gpu')}"
    assert (finding.clean, finding.section) == (True, "fences-in-sequence")


def test_who_has_polled_a_signal_needs_an_acquire() -> None:
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    result = ptx.launch(ptx.Module.parse(text(POLL)), "k", (2, 1, 1), (32, 1, 1), [out, given, 0])
    (warning,) = result.warnings
    assert warning.warning == "missing acquire"
    assert isinstance(warning.finding, Finding)
    assert warning.finding.remedy.startswith("ld.acquire.gpu.global.u32 at line ")
    assert warning.finding.section == "release-and-acquire"


# Reads that come too early


def test_a_read_before_the_first_write_is_a_race_too() -> None:
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    swapped = exchange(first="").text
    with pytest.raises(ptx.MemoryFault) as caught:
        ptx.launch(ptx.Module.parse(swapped), "k", (1, 1, 1), (64, 1, 1), [out, given, 0])
    race = caught.value.race
    assert race is not None
    assert isinstance(race.finding, Finding)
    assert race.finding.clean
    assert "__syncthreads()" in race.finding.remedy
    assert "another thread writes these bytes, and nothing orders the two\n  this access: " in str(caught.value)


def test_a_read_of_what_nobody_writes_is_no_race() -> None:
    module = exchange(0, first="", then=UNWRITTEN)
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    with pytest.raises(ptx.MemoryFault, match="uninitialised") as caught:
        ptx.launch(module, "k", (1, 1, 1), (64, 1, 1), [out, given, 0])
    assert caught.value.race is None
    assert "nothing orders" not in str(caught.value)


def test_a_race_of_other_bytes_is_not_that_of_the_fault() -> None:
    """Thread 0 reads by the same load what nobody writes."""
    source = exchange(first="setp.ne.u32 %p1, %r1, 0; @!%p1 add.u32 %r6, %r3, 800;").text
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    with pytest.raises(ptx.MemoryFault, match="byte 800 of shared memory") as caught:
        ptx.launch(ptx.Module.parse(source), "k", (1, 1, 1), (64, 1, 1), [out, given, 0])
    assert caught.value.race is None


def test_a_search_that_ends_leaves_the_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its time ends while it is looked at what another fault hides."""
    hides = Explainer._hides

    def too_late(self: Explainer, *given: Any) -> bool:
        self._allowance.deadline = 0.0
        return hides(self, *given)

    monkeypatch.setattr(Explainer, "_hides", too_late)
    finding = finding_of(compile_cuda(TWO_RACES, tmp_path), blocks=2)
    assert "the search ended after" in finding.why


def test_nothing_is_looked_for_where_nobody_asks() -> None:
    out, given = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    checks = ptx.Checks(explain=False)
    with pytest.raises(ptx.MemoryFault) as caught:
        ptx.launch(exchange(first=""), "k", (1, 1, 1), (64, 1, 1), [out, given, 0], checks=checks)
    assert caught.value.race is None


# Names


def test_two_buffers_of_one_name_are_told_apart() -> None:
    body = "st.global.u32 [%d2], %r1; ld.global.u32 %r3, [%d1+4096]; st.global.u32 [%d2], %r3; ret;"
    for first, named in (("scratch", "scratch (2)"), ("other", "scratch")):
        arguments = [*(ptx.Buffer(np.zeros(64, np.uint32), name=name) for name in (first, "scratch")), 0]
        with pytest.raises(ptx.MemoryFault) as caught:
            ptx.launch(ptx.Module.parse(text(body)), "k", (1, 1, 1), (32, 1, 1), arguments)
        assert caught.value.buffer == named
        assert f"of {named} (256 bytes)" in str(caught.value)


def test_a_name_that_is_taken_is_given_to_no_other_one() -> None:
    arena = Arena()
    names = [arena.add(name, "global", None, 16).name for name in ("a", "a (2)", "a", "a")]
    assert names == ["a", "a (2)", "a (3)", "a (4)"]
