"""Races that are there are found; synchronised programs raise no alarm."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda, line_of, run, text
from support.ptx_ways import Way, ways

from refmoe import ptx

CELLS = ".shared .align 16 .b8 cell[512];"

EXCHANGE = """
    mov.u32 %r3, cell;
    mad.lo.u32 %r4, %r1, 4, %r3;
    xor.b32 %r5, %r1, {distance};
    mad.lo.u32 %r6, %r5, 4, %r3;
    st.shared.u32 [%r4], %r2;
    {sync}
    ld.shared.u32 %r7, [%r6];
    st.global.u32 [%d2], %r7;
    ret;
"""


@pytest.mark.parametrize(
    ("distance", "sync", "threads", "races"),
    [
        (32, "bar.sync 0;", 64, False),
        (32, "bar.warp.sync -1;", 64, True),  # a warp's own sync says nothing about another warp
        (1, "bar.warp.sync -1;", 64, False),
        (1, "bar.sync 0;", 64, False),
        (1, "", 64, True),  # lanes of one warp: not ordered since independent thread scheduling
        (1, "vote.sync.any.pred %p1, %p1, -1;", 32, True),  # a vote moves no memory
        (0, "", 64, False),
    ],
)
def test_exchange_through_shared_memory(distance: int, sync: str, threads: int, races: bool) -> None:
    body = EXCHANGE.format(distance=distance, sync=sync)
    out = np.zeros(2 * threads, np.uint32)
    if not races:
        run(body, out, block=(threads, 1, 1), grid=(2, 1, 1), declarations=CELLS)
        lane = np.arange(2 * threads)
        np.testing.assert_array_equal(out, lane ^ distance)
        return
    with pytest.raises(ptx.RaceError) as caught:
        run(body, out, block=(threads, 1, 1), grid=(2, 1, 1), declarations=CELLS)
    race = caught.value
    assert (race.kind, race.space, race.line) == ("write-read", "shared", line_of(body, "ld.shared"))
    assert race.other_thread == (race.thread[0] ^ distance, 0, 0)
    assert race.offset == 4 * race.other_thread[0]
    run(body, out, block=(threads, 1, 1), grid=(2, 1, 1), declarations=CELLS, checks=ptx.Checks(races=False))


def test_without_a_barrier_a_warp_reads_what_another_has_not_written() -> None:
    body = EXCHANGE.format(distance=32, sync="")
    out = np.zeros(64, np.uint32)
    with pytest.raises(ptx.MemoryFault) as caught:
        run(body, out, block=(64, 1, 1), declarations=CELLS)
    assert (caught.value.kind, caught.value.thread, caught.value.offset) == ("uninitialised", (0, 0, 0), 128)
    # The other warp then writes what was read.
    with pytest.raises(ptx.RaceError) as raced:
        run(body, out, block=(64, 1, 1), declarations=CELLS, checks=ptx.Checks(uninitialised=False))
    race = raced.value
    assert (race.kind, race.space, race.line) == ("read-write", "shared", line_of(body, "st.shared"))
    assert (race.thread, race.other_thread) == ((32, 0, 0), (0, 0, 0))


@pytest.mark.parametrize(("first", "later"), [("lt", "ge"), ("ge", "lt")])
def test_a_read_of_what_two_warps_wrote_comes_after_both(first: str, later: str) -> None:
    # Warp 0 writes half of a line before the barrier, warp 1 the other half behind it; warp 2 reads the line.
    body = f"""
        mov.u32 %r3, cell; and.b32 %r4, %r1, 31; mad.lo.u32 %r5, %r4, 4, %r3;
        shr.u32 %r6, %r1, 5;
        setp.{first}.u32 %p1, %r4, 16; setp.eq.and.u32 %p1, %r6, 0, %p1;
        @%p1 st.shared.u32 [%r5], %r2;
        bar.sync 0;
        setp.{later}.u32 %p2, %r4, 16; setp.eq.and.u32 %p2, %r6, 1, %p2;
        @%p2 st.shared.u32 [%r5], %r2;
        {{sync}}
        setp.eq.u32 %p3, %r6, 2;
        @%p3 ld.shared.u32 %r7, [%r5];
        @%p3 st.global.u32 [%d2], %r7;
        ret;
    """
    out = np.zeros(96, np.uint32)
    run(body.format(sync="bar.sync 0;"), out, block=(96, 1, 1), declarations=CELLS)
    with pytest.raises(ptx.RaceError) as caught:
        run(body.format(sync=""), out, block=(96, 1, 1), declarations=CELLS)
    assert caught.value.kind == "write-read"
    assert {caught.value.thread[0] // 32, caught.value.other_thread[0] // 32} == {1, 2}


def test_a_missing_second_barrier_is_found_in_a_loop() -> None:
    # Write, barrier, read, (barrier,) write again: without the second barrier the next write races with the reads.
    body = """
        mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3;
        xor.b32 %r5, %r1, 32; mad.lo.u32 %r6, %r5, 4, %r3;
        mov.u32 %r8, 0;
    LOOP:
        add.u32 %r9, %r8, %r1;
        st.shared.u32 [%r4], %r9;
        bar.sync 0;
        ld.shared.u32 %r7, [%r6];
        {second}
        add.u32 %r8, %r8, 1;
        setp.lt.u32 %p1, %r8, 4;
        @%p1 bra LOOP;
        st.global.u32 [%d2], %r7;
        ret;
    """
    out = np.zeros(64, np.uint32)
    run(body.format(second="bar.sync 0;"), out, block=(64, 1, 1), declarations=CELLS)
    with pytest.raises(ptx.RaceError) as caught:
        run(body.format(second=""), out, block=(64, 1, 1), declarations=CELLS)
    assert caught.value.kind == "read-write"


def test_two_lanes_of_one_store_that_write_different_values() -> None:
    body = "st.shared.u32 [cell+8], %r1; ret;"
    with pytest.raises(ptx.RaceError) as caught:
        run(body, np.zeros(1, np.uint32), declarations=CELLS)
    assert (caught.value.kind, caught.value.offset) == ("write-write", 8)
    run(body.replace("%r1", "%r0"), np.zeros(1, np.uint32), declarations=CELLS)


def test_granules_shrink_to_the_smallest_access() -> None:
    # A 16-byte store, then each lane's own byte of it: only the lane that wrote may touch it.
    body = """
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra NEXT;
        st.shared.v4.u32 [cell], {%r0, %r0, %r0, %r0};
    NEXT:
        {sync}
        mov.u32 %r3, cell; add.u32 %r3, %r3, %r1;
        setp.lt.u32 %p2, %r1, 16;
        @%p2 st.shared.u8 [%r3], %r1;
        ret;
    """
    run(body.replace("{sync}", "bar.sync 0;"), np.zeros(1, np.uint32), declarations=CELLS)
    with pytest.raises(ptx.RaceError) as caught:
        run(body.replace("{sync}", ""), np.zeros(1, np.uint32), declarations=CELLS)
    # Lane 0 wrote the word itself, so lane 1 is the first to race, on byte 1.
    assert (caught.value.thread, caught.value.offset) == ((1, 0, 0), 1)


def test_readers_of_several_lanes_are_all_remembered() -> None:
    # All lanes read one word; lane 31, the last recorded, then writes it without a warp-level sync.
    body = """
        setp.eq.u32 %p1, %r1, 0;
        @%p1 st.shared.u32 [cell], %r1;
        bar.sync 0;
        ld.shared.u32 %r3, [cell];
        {sync}
        setp.eq.u32 %p2, %r1, 31;
        @%p2 st.shared.u32 [cell], %r1;
        ret;
    """
    run(body.replace("{sync}", "bar.warp.sync -1;"), np.zeros(1, np.uint32), declarations=CELLS)
    with pytest.raises(ptx.RaceError, match="several threads") as caught:
        run(body.replace("{sync}", ""), np.zeros(1, np.uint32), declarations=CELLS)
    assert caught.value.other_thread is None


def test_readers_of_a_uniform_global_address_are_all_checked() -> None:
    # Every lane reads in[0]; then one lane writes it. The address is one scalar for all lanes.
    body = """
        ld.global.u32 %r3, [%d1];
        {sync}
        setp.eq.u32 %p2, %r2, {writer};
        add.u32 %r4, %r3, 1;
        @%p2 st.global.u32 [%d1], %r4;
        ret;
    """
    run(body.format(sync="bar.sync 0;", writer=31), np.zeros(1, np.uint32), np.zeros(1, np.uint32), block=(64, 1, 1))
    for sync, writer, grid in (("", 63, 1), ("", 0, 1), ("bar.warp.sync -1;", 3, 1), ("bar.sync 0;", 3, 2)):
        with pytest.raises(ptx.RaceError) as caught:
            run(
                body.format(sync=sync, writer=writer),
                np.zeros(1, np.uint32),
                np.zeros(1, np.uint32),
                block=(64, 1, 1),
                grid=(grid, 1, 1),
            )
        assert caught.value.kind == "read-write"


def test_a_uniform_polling_load_orders_every_warp_that_polls() -> None:
    body = """
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra READER;
        mov.u32 %r3, 42;
        st.global.u32 [%d1+4], %r3;
        fence.acq_rel.gpu;
        st.relaxed.gpu.global.u32 [%d1], %r3;
        ret;
    READER:
        ld.relaxed.gpu.global.u32 %r4, [%d1];
        setp.eq.u32 %p3, %r4, 0;
        @%p3 bra READER;
        fence.acq_rel.gpu;
        ld.global.u32 %r5, [%d1+4];
        st.global.u32 [%d2], %r5;
        ret;
    """
    out = np.zeros(128, np.uint32)
    run(body, out, np.zeros(2, np.uint32), block=(128, 1, 1))
    assert (out[1:] == 42).all()


def test_a_row_written_twice_with_different_values() -> None:
    body = """
        rem.u32 %r3, %r2, %r0;
        mul.wide.u32 %d3, %r3, 4; add.s64 %d3, %d3, %d0;
        st.global.u32 [%d3], %r60;
        ret;
    """
    run(body, np.zeros(64, np.uint32), n=64, grid=(2, 1, 1))
    with pytest.raises(ptx.RaceError) as caught:
        run(body, np.zeros(64, np.uint32), n=63, grid=(2, 1, 1))
    race = caught.value
    assert (race.kind, race.space, race.offset) == ("write-write", "global", 0)
    assert {race.block, race.other_block} == {(1, 0, 0), (0, 0, 0)}


def test_a_row_written_twice_in_different_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refmoe.ptx.launcher.LANES_AT_ONCE", 32)
    body = "mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3], %r60; ret;"
    with pytest.raises(ptx.RaceError) as caught:
        run(body, np.zeros(64, np.uint32), grid=(2, 1, 1))
    assert (caught.value.block, caught.value.other_block) == ((1, 0, 0), (0, 0, 0))


def test_reading_what_another_block_writes() -> None:
    body = """
        st.global.u32 [%d2], %r2;
        {sync}
        xor.b32 %r3, %r2, 32;
        mul.wide.u32 %d3, %r3, 4; add.s64 %d3, %d3, %d0;
        ld.global.u32 %r4, [%d3];
        ret;
    """
    with pytest.raises(ptx.RaceError) as caught:
        run(body.replace("{sync}", "bar.sync 0;"), np.zeros(64, np.uint32), grid=(2, 1, 1))
    assert (caught.value.kind, caught.value.space) == ("write-read", "global")
    # Within one block a barrier is enough.
    run(body.replace("{sync}", "bar.sync 0;"), np.zeros(64, np.uint32), block=(64, 1, 1))


LAST_BLOCK = """
__device__ unsigned int count;
extern "C" __global__ void k(int* out, int* partial, int n) {
    __shared__ int sum[128];
    __shared__ bool last;
    int t = threadIdx.x;
    sum[t] = blockIdx.x * 1000 + t;
    __syncthreads();
    for (int d = 64; d; d >>= 1) { if (t < d) sum[t] += sum[t + d]; __syncthreads(); }
    if (t == 0) {
        partial[blockIdx.x] = sum[0];
        FENCE
        last = atomicAdd(&count, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && t == 0) { int r = 0; for (int b = 0; b < gridDim.x; ++b) r += partial[b]; out[0] = r; }
}
"""


def test_the_last_block_sums_up(tmp_path) -> None:
    # The threadFenceReduction pattern: a fence, an atomic ticket, then reading what others wrote.
    blocks = 40
    out, partial = np.zeros(1, np.int32), ptx.Buffer(np.zeros(blocks, np.int32), "partial", initialised=False)
    good = compile_cuda(LAST_BLOCK.replace("FENCE", "__threadfence();"), tmp_path)
    for _ in range(2):
        ptx.launch(good, "k", (blocks, 1, 1), (128, 1, 1), [out, partial, 0])
        assert out[0] == sum(128 * b * 1000 + 127 * 64 for b in range(blocks))
    bad = compile_cuda(LAST_BLOCK.replace("FENCE", ""), tmp_path)
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(bad, "k", (blocks, 1, 1), (128, 1, 1), [out, partial, 0])
    assert (caught.value.kind, caught.value.buffer) == ("write-read", "partial")


def test_the_last_block_sums_up_across_chunks(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refmoe.ptx.launcher.LANES_AT_ONCE", 256)
    out, partial = np.zeros(1, np.int32), np.zeros(7, np.int32)
    module = compile_cuda(LAST_BLOCK.replace("FENCE", "__threadfence();"), tmp_path)
    ptx.launch(module, "k", (7, 1, 1), (128, 1, 1), [out, partial, 0])
    assert out[0] == sum(128 * b * 1000 + 127 * 64 for b in range(7))


def test_a_flag_between_warps() -> None:
    # Release by a fence and a relaxed store, acquire by a polling load: the data is ordered; without the fence not.
    body = """
        setp.ge.u32 %p1, %r1, 32;
        @%p1 bra READER;
        setp.ne.u32 %p2, %r1, 0;
        @%p2 bra END;
        mov.u32 %r3, 42;
        st.shared.u32 [cell], %r3;
        {fence}
        st.relaxed.gpu.global.u32 [%d1], %r3;
        ret;
    READER:
        ld.acquire.gpu.global.u32 %r4, [%d1];
        setp.eq.u32 %p3, %r4, 0;
        @%p3 bra READER;
        ld.shared.u32 %r5, [cell];
        st.global.u32 [%d2], %r5;
    END: ret;
    """
    out = np.zeros(64, np.uint32)
    options = {"block": (64, 1, 1), "declarations": CELLS}
    run(body.replace("{fence}", "fence.acq_rel.gpu;"), out, np.zeros(1, np.uint32), **options)
    assert (out[32:] == 42).all()
    with pytest.raises(ptx.RaceError):
        run(body.replace("{fence}", ""), out, np.zeros(1, np.uint32), **options)


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses() -> None:
    histogram = """
        setp.lt.u32 %p1, %r1, 8;
        mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3;
        mov.u32 %r5, 0;
        @%p1 st.shared.u32 [%r4], %r5;
        {first}
        and.b32 %r6, %r1, 7; mad.lo.u32 %r6, %r6, 4, %r3;
        atom.shared.add.u32 %r7, [%r6], 1;
        {second}
        @%p1 ld.shared.u32 %r8, [%r4];
        @%p1 st.global.u32 [%d2], %r8;
        ret;
    """
    barrier = "bar.sync 0;"
    out = np.zeros(64, np.uint32)
    run(histogram.format(first=barrier, second=barrier), out, block=(64, 1, 1), declarations=CELLS)
    assert out[:8].tolist() == [8] * 8
    for first, second in (("", barrier), (barrier, "")):
        with pytest.raises(ptx.RaceError):
            run(histogram.format(first=first, second=second), out, block=(64, 1, 1), declarations=CELLS)


TRANSPOSE = """
extern "C" __global__ void k(float* out, const float* in, int n) {
    __shared__ float tile[32][33];
    for (int half = 0; half < 2; ++half) {
        int x = threadIdx.x, y = threadIdx.y, base = half * 1024;
        for (int j = 0; j < 32; j += 8) tile[y + j][x] = in[base + (y + j) * 32 + x];
        __syncthreads();
        for (int j = 0; j < 32; j += 8) out[base + (y + j) * 32 + x] = tile[x][y + j];
        SECOND
    }
}
"""


def test_tiled_transpose_of_the_real_compiler(tmp_path) -> None:
    x = np.random.default_rng(5).standard_normal((2, 32, 32)).astype(np.float32)
    out = np.zeros_like(x)
    good = compile_cuda(TRANSPOSE.replace("SECOND", "__syncthreads();"), tmp_path)
    ptx.launch(good, "k", (1, 1, 1), (32, 8, 1), [out, x, 0])
    np.testing.assert_array_equal(out, x.transpose(0, 2, 1))
    bad = compile_cuda(TRANSPOSE.replace("SECOND", ""), tmp_path)
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(bad, "k", (1, 1, 1), (32, 8, 1), [out, x, 0])
    assert caught.value.kind == "read-write"
    assert caught.value.source is not None
    assert caught.value.source.endswith("kernel.cu:6")


@pytest.mark.parametrize("partner_first", [True, False])
@pytest.mark.parametrize("barrier", ["", "bar.sync 0;"])
def test_a_write_after_the_read_of_another_warp_in_global_memory(partner_first: bool, barrier: str) -> None:
    # The lane that writes has read the place itself, before or after the lane of the other warp.
    loads = ["ld.global.u32 %r4, [%d4];", "ld.global.u32 %r5, [%d2];"]
    body = f"""
        xor.b32 %r3, %r1, 32;
        mul.wide.u32 %d3, %r3, 4;
        add.s64 %d4, %d0, %d3;
        {" ".join(loads if partner_first else loads[::-1])}
        add.u32 %r4, %r4, %r5;
        {barrier}
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.arange(64, dtype=np.uint32)
    if barrier:
        run(body, out, block=(64, 1, 1))
        np.testing.assert_array_equal(out, np.arange(64) + (np.arange(64) ^ 32))
        return
    # The first warp runs to its end before the second begins, which then reads what nothing orders before it.
    with pytest.raises(ptx.RaceError, match="write-read race") as caught:
        run(body, out, block=(64, 1, 1))
    assert caught.value.buffer == "argument 0"


@ways
@pytest.mark.parametrize("load", ["ld", "ld.volatile"])
def test_readers_of_two_blocks_are_remembered(load: str, way: Way) -> None:
    # Block 1 reads after block 0 and then writes: its own read must not hide that of block 0.
    body = f"""
        mul.wide.u32 %d3, %r1, 4;
        add.s64 %d3, %d3, %d0;
        {load}.global.u32 %r3, [%d3];
        setp.eq.u32 %p1, %r60, 0;
        @%p1 ret;
        st.global.u32 [%d3], 1;
        ret;
    """
    module = ptx.Module.parse(text(body), name="test.ptx")
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [np.zeros(32, np.uint32), None, 0], profile=way)
    assert (caught.value.kind, caught.value.other_block) == ("read-write", (0, 0, 0))


@ways
@pytest.mark.parametrize("meet", ["bar.warp.sync -1;", ""])
def test_lanes_of_every_warp_meet(meet: str, way: Way) -> None:
    body = f"""
        st.global.u32 [%d2], %r2;
        {meet}
        xor.b32 %r3, %r2, 9;
        mul.wide.u32 %d3, %r3, 4;
        add.s64 %d3, %d3, %d0;
        ld.global.u32 %r4, [%d3];
        st.global.u32 [%d2 + 512], %r4;
        ret;
    """
    module, out = ptx.Module.parse(text(body), name="test.ptx"), np.zeros(256, np.uint32)

    def launch() -> None:
        ptx.launch(module, "k", (2, 1, 1), (64, 1, 1), [out, None, 0], profile=way)

    if meet:
        launch()
        np.testing.assert_array_equal(out[128:], np.arange(128) ^ 9)
    else:
        with pytest.raises(ptx.RaceError):
            launch()


@pytest.mark.parametrize("at_once", [32, 1024])
def test_an_atomic_after_what_a_lane_of_its_warp_wrote(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refmoe.ptx.launcher.LANES_AT_ONCE", at_once)
    body = """
        st.global.u32 [%d2], %r2;
        bar.warp.sync -1;
        xor.b32 %r3, %r2, 9;
        mul.wide.u32 %d3, %r3, 4;
        add.s64 %d3, %d3, %d0;
        red.global.add.u32 [%d3], 1000;
        ret;
    """
    out = np.zeros(96, np.uint32)
    run(body, out, grid=(3, 1, 1))
    np.testing.assert_array_equal(out, np.arange(96) + 1000)


@pytest.mark.parametrize(
    "access", ["st.global.u32 [%d3], 1;", "ld.global.u32 %r4, [%d3];", "red.global.add.u32 [%d3], 1;"]
)
@pytest.mark.parametrize("at_once", [32, 1024])
def test_what_a_warp_knows_of_itself_says_nothing_of_other_blocks(
    at_once: int, access: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refmoe.ptx.launcher.LANES_AT_ONCE", at_once)
    body = f"""
        mul.wide.u32 %d3, %r1, 4;
        add.s64 %d3, %d3, %d0;
        setp.eq.u32 %p1, %r60, 0;
        @%p1 st.global.u32 [%d3], 5;
        @%p1 ret;
        bar.warp.sync -1;
        {access};
        ret;
    """
    with pytest.raises(ptx.RaceError) as caught:
        run(body, np.zeros(32, np.uint32), grid=(2, 1, 1))
    assert (caught.value.block, caught.value.other_block) == ((1, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("writer", [0, 7, 31])
@pytest.mark.parametrize("access", ["st.global.u32 [%d0], 1", "red.global.add.u32 [%d0], 1"])
@pytest.mark.parametrize("load", ["ld", "ld.volatile"])
def test_one_of_several_readers_writes(load: str, access: str, writer: int) -> None:
    # Whoever of them it is, the others read before it too.
    body = f"""
        {load}.global.u32 %r3, [%d0];
        {{sync}}
        setp.eq.u32 %p1, %r1, {writer};
        @%p1 {access};
        ret;
    """
    run(body.replace("{sync}", "bar.warp.sync -1;"), np.zeros(1, np.uint32))
    if load == "ld.volatile" and access.startswith("red"):
        run(body.replace("{sync}", ""), np.zeros(1, np.uint32))
        return
    with pytest.raises(ptx.RaceError) as caught:
        run(body.replace("{sync}", ""), np.zeros(1, np.uint32))
    assert (caught.value.kind, caught.value.thread) == ("read-write", (writer, 0, 0))


@pytest.mark.parametrize("schedule", [0, 1, 2, 7])
@pytest.mark.parametrize("leave", ["ret;", "exit;", "bra away;"])
def test_lanes_that_have_exited_take_part_in_no_meeting(leave: str, schedule: int) -> None:
    # PTX ISA, bar.warp.sync: memory ordering among participating threads. The verdict is one under every schedule.
    body = """
        mul.wide.u32 %d3, %r1, 4;
        add.s64 %d3, %d3, %d0;
        {first}
        setp.gt.u32 %p1, %r1, 15;
        {second}
        bar.warp.sync -1;
        {third}
        ld.global.u32 %r4, [%d3 + 64];
        st.global.u32 [%d3 + 512], %r4;
    away:
        ret;
    """
    store, gone = "st.global.u32 [%d3], %r1;", f"@%p1 {leave}"
    module = ptx.Module.parse(text(body.format(first=store, second=gone, third="")), name="test.ptx")
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [np.zeros(256, np.uint32), None, 0], schedule=schedule)
    assert (caught.value.kind, caught.value.thread, caught.value.other_thread) == ("write-read", (0, 0, 0), (16, 0, 0))
    # Those that met before they exit did.
    module = ptx.Module.parse(text(body.format(first=store, second="", third=gone)), name="test.ptx")
    out = np.zeros(256, np.uint32)
    ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, None, 0], schedule=schedule)
    np.testing.assert_array_equal(out[128:144], np.arange(16, 32))


@pytest.mark.parametrize("schedule", [0, 1, 5])
@pytest.mark.parametrize(
    "after", ["ld.global.u32 %r5, [%d0]; st.global.u32 [%d0 + 64], %r5;", "st.global.u32 [%d0], 7;"]
)
@pytest.mark.parametrize("alone", [0, 1])
def test_a_reduction_tells_its_thread_nothing(alone: int, after: str, schedule: int) -> None:
    # Split-K: each block adds, and one of them takes the sum for complete. Its own red may have been the first.
    body = f"""
        setp.ne.u32 %p1, %r1, 0;
        @%p1 ret;
        {{add}}
        setp.ne.u32 %p2, %r60, {alone};
        @%p2 ret;
        {after}
        ret;
    """
    module = ptx.Module.parse(text(body.format(add="red.global.add.u32 [%d0], 1;")), name="test.ptx")
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [np.zeros(64, np.uint32), None, 0], schedule=schedule)
    assert {caught.value.block, caught.value.other_block} == {(0, 0, 0), (1, 0, 0)}
    # Whoever learns from the word itself that the other one has added comes after it.
    poll = "AGAIN: ld.relaxed.gpu.global.u32 %r5, [%d0]; setp.ne.u32 %p3, %r5, 2; @%p3 bra AGAIN;"
    add = f"red.global.add.u32 [%d0], 1; setp.ne.u32 %p2, %r60, {alone}; @%p2 ret; {poll}"
    module = ptx.Module.parse(text(body.format(add=add)), name="test.ptx")
    ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), [np.zeros(64, np.uint32), None, 0], schedule=schedule)


@pytest.mark.parametrize("scope", ["cta", "gpu"])
@pytest.mark.parametrize(
    "release", ["st.release.gpu.global.u32 [%d4], 1;", "fence.acq_rel.gpu; st.volatile.global.u32 [%d4], 1;"]
)
def test_a_narrow_acquire_learns_what_a_wide_release_of_its_block_passes_on(release: str, scope: str) -> None:
    body = f"""
        add.s64 %d4, %d0, 256;
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra READER;
        st.global.u32 [%d0], 42;
        {release}
        ret;
    READER:
        setp.ne.u32 %p1, %r1, 32;
        @%p1 bra END;
    POLL:
        ld.acquire.{scope}.global.u32 %r4, [%d4];
        setp.eq.u32 %p2, %r4, 0;
        @%p2 bra POLL;
        ld.global.u32 %r5, [%d0];
        st.global.u32 [%d0 + 512], %r5;
    END:
        ret;
    """
    out = np.zeros(256, np.uint32)
    assert run(body, out, block=(64, 1, 1)).warnings == ()
    assert out[128] == 42


@pytest.mark.parametrize(("scope", "fine"), [("cta", False), ("cluster", True), ("gpu", True)])
def test_a_narrow_acquire_learns_what_a_wide_release_of_its_cluster_passes_on(scope: str, fine: bool) -> None:
    # Clusters of four blocks. The last block reads what the first of its cluster wrote.
    body = f"""
        shr.u32 %r3, %r60, 2;
        mul.wide.u32 %d4, %r3, 4;
        add.s64 %d4, %d4, %d0;
        and.b32 %r5, %r60, 3;
        setp.ne.u32 %p1, %r5, 0;
        @%p1 bra READER;
        st.global.u32 [%d4], 42;
        fence.acq_rel.gpu;
        st.relaxed.gpu.global.u32 [%d4 + 256], 1;
        ret;
    READER:
        setp.ne.u32 %p1, %r5, 3;
        @%p1 bra END;
    POLL:
        ld.relaxed.gpu.global.u32 %r4, [%d4 + 256];
        setp.eq.u32 %p2, %r4, 0;
        @%p2 bra POLL;
        fence.acq_rel.{scope};
        ld.global.u32 %r5, [%d4];
        st.global.u32 [%d4 + 512], %r5;
    END:
        ret;
    """
    out = np.zeros(256, np.uint32)
    module = ptx.Module.parse(text(body), name="test.ptx")

    def launch() -> None:
        ptx.launch(module, "k", (48, 1, 1), (1, 1, 1), [out, None, 0], cluster=(4, 1, 1))

    if fine:
        launch()
        assert set(out[128:140].tolist()) == {42}
        return
    with pytest.raises(ptx.RaceError):
        launch()
