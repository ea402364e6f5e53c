"""A debugger stops where it was told to, and shows what the lines of a kernel, read by hand, leave behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from refmoe import ptx
from refmoe.errors import ArgumentError

#: Each thread puts its number plus 100 into shared memory; behind the barrier it reads its neighbour's, and threads
#: below 4 add it up in a loop of two rounds. The sum is written, and kept in local memory.
TEXT = """.version 9.0
.target sm_90a
.address_size 64
.shared .align 16 .b8 tile[256];
.visible .entry walk(.param .u64 out, .param .f32 weight)
{
    .local .align 4 .b8 kept[4];
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .b32 %r<12>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<8>;
    .loc 1 10 0
    ld.param.u64 %rd1, [out];
    ld.param.f32 %f1, [weight];
    mov.u32 %r1, %tid.x;
    add.u32 %r2, %r1, 100;
    .loc 1 11 0
    shl.b32 %r3, %r1, 2;
    mov.u32 %r4, tile;
    add.u32 %r4, %r4, %r3;
    st.shared.u32 [%r4], %r2;
    .loc 1 12 0
    bar.sync 0;
    .loc 1 13 0
    xor.b32 %r5, %r3, 4;
    mov.u32 %r6, tile;
    add.u32 %r6, %r6, %r5;
    ld.shared.u32 %r7, [%r6];
    setp.ge.u32 %p1, %r1, 4;
    mov.u32 %r8, 0;
    @%p1 bra write;
    .loc 1 15 0
again:
    add.u32 %r7, %r7, %r7;
    .loc 1 16 0
    add.u32 %r8, %r8, 1;
    setp.lt.u32 %p2, %r8, 2;
    @%p2 bra again;
write:
    .loc 1 18 0
    st.local.u32 [kept], %r7;
    cvt.u16.u32 %h1, %r7;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r7;
    ret;
}
.file 1 "src/walk.cu"
"""
LINE = {text.strip(): number for number, text in enumerate(TEXT.splitlines(), 1)}
AGAIN, WRITE = LINE["add.u32 %r7, %r7, %r7;"], LINE["st.local.u32 [kept], %r7;"]


@pytest.fixture
def out() -> np.ndarray:
    return np.zeros(128, np.uint32)


@pytest.fixture
def debugger(out: np.ndarray) -> Iterator[ptx.Debugger]:
    module = ptx.Module.parse(TEXT, name="walk.ptx")
    buffer = ptx.Buffer(out, name="sums", initialised=False)
    with ptx.Debugger(module, "walk", (2, 1, 1), (64, 1, 1), [buffer, np.float32(0.75)]) as made:
        yield made


def neighbour(thread: int) -> int:
    return (thread ^ 1) + 100


def test_registers_of_one_thread(debugger: ptx.Debugger) -> None:
    debugger.stop_at(line=WRITE, block=(1, 0, 0), thread=(5, 0, 0))
    stop = debugger.go()
    assert stop is not None
    assert (stop.line, stop.text, stop.source) == (WRITE, "st.local.u32 [kept], %r7;", "src/walk.cu:18")
    assert (stop.block, stop.thread) == ((1, 0, 0), (5, 0, 0))
    assert stop.register("%r7") == neighbour(5)
    assert stop.register("%r7", thread=(1, 0, 0)) == 4 * neighbour(1)
    assert stop.register("%r7", thread=(63, 0, 0)) == neighbour(63)
    assert stop.register("%p1") is True
    assert stop.register("%p1", thread=(3, 0, 0)) is False
    assert stop.register("%f1", "f32") == 0.75
    assert stop.register("%f1") == 0x3F400000
    assert stop.register("%r8", "s32") == 0
    assert (stop.register("%tid.x"), stop.register("%ctaid.x"), stop.register("%ntid.x")) == (5, 1, 64)
    assert stop.of_warp("%r8").tolist() == [2] * 4 + [0] * 28
    # Nothing reads %h1, and yet it has a place: the next step but one has written it.
    debugger.step()
    stop = debugger.step()
    assert stop is not None
    assert stop.register("%h1", "u16") == neighbour(5)
    assert {"%r1", "%h1", "%rd3", "%p2"} <= set(stop.registers)


def test_memory_at_a_stop(debugger: ptx.Debugger, out: np.ndarray) -> None:
    debugger.stop_at(line=LINE["st.shared.u32 [%r4], %r2;"])
    debugger.stop_at(line=LINE["ret;"])
    stop = debugger.go()
    assert stop is not None
    assert not stop.shared().written.any()
    stop = debugger.go()
    assert stop is not None
    assert stop.text == "ret;"
    assert stop.shared("tile").values("u32").tolist() == list(range(100, 164))
    assert stop.shared(8, 4).values("u32").tolist() == [102]
    assert stop.local("kept").values("s32").tolist() == [4 * neighbour(0)]
    for name in ("sums", "out"):
        sums = stop.buffer(name, first=4 * 9, size=8)
        assert sums.values("u32").tolist() == [neighbour(9), neighbour(10)]
        assert sums.written.all()
    # The caller's array is written when the launch has ended.
    assert not out.any()
    assert debugger.go() is None
    assert debugger.result is not None
    expected = [neighbour(thread) * (4 if thread < 4 else 1) for thread in range(64)]
    assert out[:64].tolist() == expected


def test_a_line_in_a_loop_stops_once_a_round(debugger: ptx.Debugger) -> None:
    point = debugger.stop_at(line=AGAIN)
    values = []
    while (stop := debugger.go()) is not None:
        values.append(stop.of_warp("%r7")[:5].tolist())
        assert stop.threads == 8
    first = [neighbour(thread) for thread in range(4)]
    assert values == [[*first, neighbour(4)], [*(2 * each for each in first), neighbour(4)]]
    assert point.line == AGAIN


def test_a_source_line_stops_once_and_not_at_each_instruction(debugger: ptx.Debugger) -> None:
    debugger.stop_at(source="walk.cu:16", block=(0, 0, 0))
    debugger.stop_at(source="walk.cu:10")
    lines = []
    while (stop := debugger.go()) is not None:
        lines.append(stop.line)
    assert lines == [LINE["ld.param.u64 %rd1, [out];"], *[LINE["add.u32 %r8, %r8, 1;"]] * 2]


def test_steps_follow_the_thread_in_focus(debugger: ptx.Debugger) -> None:
    debugger.stop_at(line=LINE["setp.ge.u32 %p1, %r1, 4;"], thread=(2, 0, 0))
    stop = debugger.go()
    texts = []
    while stop is not None:
        texts.append(stop.text)
        assert stop.thread == (2, 0, 0)
        stop = debugger.step()
    loop = ["add.u32 %r7, %r7, %r7;", "add.u32 %r8, %r8, 1;", "setp.lt.u32 %p2, %r8, 2;", "@%p2 bra again;"]
    assert texts[:3] == ["setp.ge.u32 %p1, %r1, 4;", "mov.u32 %r8, 0;", "@%p1 bra write;"]
    assert texts[3:11] == loop * 2
    assert texts[11] == "st.local.u32 [kept], %r7;"
    assert texts[-1] == "ret;"


def test_steps_by_source_lines(debugger: ptx.Debugger) -> None:
    sources = []
    while (stop := debugger.step(by="source")) is not None:
        sources.append(stop.source)
    numbers = [10, 11, 12, 13, 15, 16, 15, 16, 18]
    assert sources == [f"src/walk.cu:{number}" for number in numbers]


def test_a_step_of_a_thread_that_exits_runs_to_the_next_stop_point(debugger: ptx.Debugger) -> None:
    debugger.stop_at(line=LINE["ret;"], thread=(0, 0, 0), block=(0, 0, 0))
    stop = debugger.go()
    assert stop is not None
    assert debugger.step() is None
    assert debugger.result is not None


def test_where_all_warps_are(debugger: ptx.Debugger) -> None:
    debugger.stop_at(line=AGAIN)
    stop = debugger.go()
    assert stop is not None
    places = stop.where()
    assert [(place.block[0], place.warp, place.lanes, place.state, place.line) for place in places] == [
        (0, 0, 0xF, "here", AGAIN),
        (0, 0, 0xFFFFFFF0, "ready", WRITE),
        (0, 1, 0xFFFFFFFF, "ready", WRITE),
        (1, 0, 0xF, "here", AGAIN),
        (1, 0, 0xFFFFFFF0, "ready", WRITE),
        (1, 1, 0xFFFFFFFF, "ready", WRITE),
    ]
    assert str(places[0]).startswith("block (0, 0, 0) warp 0 lanes 0x0000000F here, line")


BARRIER = """.version 9.0
.target sm_90a
.address_size 64
.shared .align 8 .b64 full;
.visible .entry wait()
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 8;
    @%p1 ret;
    setp.lt.u32 %p1, %r1, 32;
    @%p1 bra first;
    setp.lt.u32 %p1, %r1, 64;
    @%p1 bra second;
    bar.sync 1, 64;
    ret;
second:
    mov.u32 %r3, 7;
    bar.sync 1, 64;
    ret;
first:
    setp.lt.u32 %p2, %r1, 16;
    @%p2 bra alone;
    shfl.sync.bfly.b32 %r2, %r1, 1, 0x1f, 0xffffff00;
    ret;
alone:
    mov.u32 %r4, 9;
    shfl.sync.bfly.b32 %r2, %r1, 1, 0x1f, 0xffffff00;
    ret;
}
"""


def test_where_says_who_waits_and_who_has_exited() -> None:
    module = ptx.Module.parse(BARRIER)
    line = {text.strip(): number for number, text in enumerate(BARRIER.splitlines(), 1)}
    seen = set()
    with ptx.Debugger(module, "wait", (1, 1, 1), (96, 1, 1), []) as debugger:
        debugger.stop_at(line=line["mov.u32 %r3, 7;"])
        debugger.stop_at(line=line["mov.u32 %r4, 9;"])
        for _ in range(2):
            stop = debugger.go()
            assert stop is not None
            seen |= {(place.warp, place.lanes, place.state) for place in stop.where()}
        # Lanes of one mask stand at two shuffles, which is refused.
        with pytest.raises(ptx.PtxError, match="that are at several instructions"):
            debugger.go()
    assert (0, 0xFF, "exited") in seen
    assert (1, 0xFFFFFFFF, "here") in seen
    assert (0, 0xFF00, "here") in seen
    assert (0, 0xFFFF0000, "gathering") in seen
    assert (2, 0xFFFFFFFF, "at a barrier") in seen


def test_a_fault_ends_the_debugger() -> None:
    module = ptx.Module.parse(TEXT)
    with ptx.Debugger(module, "walk", (1, 1, 1), (64, 1, 1), [np.zeros(8, np.uint32), np.float32(0)]) as debugger:
        debugger.stop_at(line=WRITE)
        stop = debugger.go()
        assert stop is not None
        with pytest.raises(ptx.MemoryFault, match="byte 32"):
            debugger.go()
        assert debugger.go() is None
        assert debugger.result is None
        with pytest.raises(ArgumentError, match="one that the launch has left"):
            stop.register("%r1")


def test_a_launch_that_does_not_fit_is_refused_when_it_begins() -> None:
    with (
        ptx.Debugger(ptx.Module.parse(TEXT), "walk", (1, 1, 1), (64, 1, 1), []) as debugger,
        pytest.raises(ptx.ArgumentMismatch, match="2 parameters"),
    ):
        debugger.go()
    with pytest.raises(ptx.ArgumentMismatch, match="no entry"):
        ptx.Debugger(ptx.Module.parse(TEXT), "run", (1, 1, 1), (64, 1, 1), [])


def test_leaving_early_leaves_arrays_and_threads_as_they_were(out: np.ndarray) -> None:
    before = threading.active_count()
    with ptx.Debugger(ptx.Module.parse(TEXT), "walk", (1, 1, 1), (64, 1, 1), [out, np.float32(0)]) as debugger:
        debugger.stop_at(line=LINE["ret;"])
        assert debugger.go() is not None
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert not out.any()
    assert debugger.go() is None


def test_what_is_not_there_is_refused(debugger: ptx.Debugger) -> None:
    with pytest.raises(ArgumentError, match="a line with an instruction: 14, 15"):
        debugger.stop_at(line=4)
    with pytest.raises(ArgumentError, match=r"src/walk\.cu:10"):
        debugger.stop_at(source="walk.cu:99")
    with pytest.raises(ArgumentError, match="one of them"):
        debugger.stop_at()
    with pytest.raises(ArgumentError, match="'ptx' or 'source'"):
        debugger.step(by="word")
    point = debugger.stop_at(line=WRITE)
    debugger.forget(point)
    with pytest.raises(ArgumentError, match="stop_at gave"):
        debugger.forget(point)
    debugger.stop_at(line=WRITE)
    stop = debugger.go()
    assert stop is not None
    for ask, needed in (
        (lambda: stop.register("%r99"), "a register of walk"),
        (lambda: stop.register("%r7", "f64"), "the size of uint32"),
        (lambda: stop.register("%p1", "u8"), "the size of bool"),
        (lambda: stop.register("%r7", "bf16"), "one of u8"),
        (lambda: stop.register("%r7", thread=(64, 0, 0)), "a thread of a block"),
        (lambda: stop.shared("kept"), "one in shared memory: tile"),
        (lambda: stop.shared(250, 8), "which has 256"),
        (lambda: stop.buffer("in"), "one of sums"),
        (lambda: stop.buffer("sums", 0, 6).values("u32"), "a multiple of 4"),
    ):
        with pytest.raises(ArgumentError, match=needed):
            ask()
