"""Barriers of CTAs, atomics, and what happens when someone does not come."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import line_of, run

from refmoe import ptx
from refmoe.ptx.engine.order.clocks import Clocks
from refmoe.ptx.engine.order.knowledge import Pool
from refmoe.ptx.native.clocks import clear_rows, copy_rows, move_rows, raise_rows, raise_whole
from refmoe.ptx.state.numbers import different

CELLS = ".shared .align 4 .b8 cell[512];"


def test_barrier_orders_warps() -> None:
    body = """
        mov.u32 %r3, cell;
        mad.lo.u32 %r4, %r1, 4, %r3;
        st.shared.u32 [%r4], %r2;
        bar.sync 0;
        xor.b32 %r5, %r1, 127;
        mad.lo.u32 %r6, %r5, 4, %r3;
        ld.shared.u32 %r7, [%r6];
        st.global.u32 [%d2], %r7;
        ret;
    """
    out = np.zeros(384, np.uint32)
    run(body, out, block=(128, 1, 1), grid=(3, 1, 1), declarations=CELLS)
    lane = np.arange(384)
    np.testing.assert_array_equal(out, (lane // 128) * 128 + (lane % 128 ^ 127))


def test_a_warp_that_never_comes_is_named() -> None:
    body = """
        setp.ge.u32 %p1, %r1, 32;
        @%p1 bra OTHER;
        bar.sync 0;
        ret;
    OTHER:
        bar.sync 1;
        ret;
    """
    with pytest.raises(ptx.Deadlock) as caught:
        run(body, np.zeros(64, np.uint32), block=(64, 1, 1), grid=(2, 1, 1))
    waiting = caught.value.waiting
    assert len(waiting) == 4
    assert "barrier 0 of block (0, 0, 0): 32 of 64 threads came; waiting are threads 0-31" in waiting[0]
    assert "barrier 1 of block (0, 0, 0): 32 of 64 threads came; waiting are threads 32-63" in waiting[1]
    assert f"test.ptx:{line_of(body, 'bar.sync 1')}" in waiting[1]


def test_half_a_warp_does_not_arrive() -> None:
    body = """
        setp.ge.u32 %p1, %r1, 16;
        @%p1 bra OTHER;
        bar.sync 0;
        ret;
    OTHER:
        bar.sync 1;
        ret;
    """
    with pytest.raises(ptx.Deadlock, match="16 of 32 threads came"):
        run(body, np.zeros(32, np.uint32))


@pytest.mark.parametrize("opcode", ["bar.sync", "barrier.sync.aligned", "barrier.sync"])
def test_lanes_of_a_warp_meet_at_two_instructions(opcode: str) -> None:
    body = f"""
        setp.ge.u32 %p1, %r1, 48;
        @%p1 bra OTHER;
        {opcode} 0;
        ret;
    OTHER:
        {opcode} 0;
        ret;
    """
    if opcode == "barrier.sync":
        run(body, np.zeros(64, np.uint32), block=(64, 1, 1))
        return
    with pytest.raises(ptx.WarpError, match="at another barrier instruction") as caught:
        run(body, np.zeros(64, np.uint32), block=(64, 1, 1))
    assert caught.value.thread == (47, 0, 0)


def test_exited_warps_and_lanes_are_not_waited_for() -> None:
    body = """
        setp.ge.u32 %p1, %r1, 40;
        @%p1 exit;
        bar.sync 0;
        mov.u32 %r3, 1;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(128, np.uint32)
    run(body, out, block=(128, 1, 1))
    np.testing.assert_array_equal(out, np.arange(128) < 40)


def test_the_last_lanes_exit_while_others_wait() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 32;
        @%p1 bra WAIT;
        mov.u32 %r4, 0;
    LOOP:
        add.u32 %r4, %r4, 1;
        setp.lt.u32 %p2, %r4, %r1;
        @%p2 bra LOOP;
        exit;
    WAIT:
        bar.sync 0;
        st.global.u32 [%d2], %r1;
        ret;
    """
    out = np.zeros(64, np.uint32)
    run(body, out, block=(64, 1, 1))
    np.testing.assert_array_equal(out[:32], np.arange(32))


def test_named_barriers_with_counts_let_pairs_of_warps_meet() -> None:
    # Warps 0 and 1 meet at barrier 1, warps 2 and 3 at barrier 2: the number comes from a register.
    body = """
        mov.u32 %r3, cell;
        mad.lo.u32 %r4, %r1, 4, %r3;
        st.shared.u32 [%r4], %r1;
        shr.u32 %r5, %r1, 6;
        add.u32 %r5, %r5, 1;
        mov.u32 %r8, 64;
        barrier.sync.aligned %r5, %r8;
        xor.b32 %r6, %r1, 32;
        mad.lo.u32 %r6, %r6, 4, %r3;
        ld.shared.u32 %r7, [%r6];
        st.global.u32 [%d2], %r7;
        ret;
    """
    out = np.zeros(128, np.uint32)
    run(body, out, block=(128, 1, 1), declarations=CELLS)
    np.testing.assert_array_equal(out, np.arange(128) ^ 32)


PRODUCER_CONSUMER = """
    mov.u32 %r3, cell;
    and.b32 %r4, %r1, 31;
    mad.lo.u32 %r4, %r4, 4, %r3;
    mov.u32 %r9, 0;
    mov.u32 %r10, 0;
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra CONSUMER;
PRODUCER:
    bar.sync 1, 64;
    mad.lo.u32 %r5, %r9, 100, %r1;
    st.shared.u32 [%r4], %r5;
    bar.arrive 2, 64;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p2, %r9, 5;
    @%p2 bra PRODUCER;
    ret;
CONSUMER:
    bar.arrive 1, 64;
    bar.sync 2, 64;
    ld.shared.u32 %r5, [%r4];
    add.u32 %r10, %r10, %r5;
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p2, %r9, 5;
    @%p2 bra CONSUMER;
    st.global.u32 [%d2], %r10;
    ret;
"""


def test_producer_and_consumer_through_arrive() -> None:
    # The manual's own example: arrive does not wait, sync does, roles alternate on two barriers.
    out = np.zeros(64, np.uint32)
    run(PRODUCER_CONSUMER, out, block=(64, 1, 1), declarations=CELLS)
    np.testing.assert_array_equal(out[32:], 5 * np.arange(32) + 1000)


def test_a_consumer_that_forgets_to_wait_races() -> None:
    body = PRODUCER_CONSUMER.replace("bar.sync 2, 64;", "bar.arrive 2, 64;")
    with pytest.raises((ptx.RaceError, ptx.MemoryFault)):
        run(body, np.zeros(64, np.uint32), block=(64, 1, 1), declarations=CELLS)


def test_barrier_reductions() -> None:
    body = """
        setp.lt.u32 %p1, %r1, %r0;
        bar.red.popc.u32 %r3, 0, %p1;
        bar.red.and.pred %p2, 0, !%p1;
        bar.red.or.pred %p3, 0, %p1;
        barrier.cta.red.popc.aligned.u32 %r4, 3, 96, !%p1;
        selp.u32 %r5, 1000, 0, %p2; selp.u32 %r6, 10000, 0, %p3;
        add.u32 %r3, %r3, %r5; add.u32 %r3, %r3, %r6;
        mad.lo.u32 %r3, %r4, 100000, %r3;
        st.global.u32 [%d2], %r3;
        ret;
    """
    for n in (0, 40, 96):
        out = np.zeros(192, np.uint32)
        run(body, out, n=n, block=(96, 1, 1), grid=(2, 1, 1))
        assert (out == n + 1000 * (n == 0) + 10000 * (n > 0) + 100000 * (96 - n)).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("bar.sync 16; ret;", "barrier 16 of 16"),
        ("bar.sync 0, 40; ret;", "a thread count of 40"),
        ("bar.sync 0, 96; ret;", "64 of 96 threads came"),
        (
            "setp.lt.u32 %p1, %r1, 32; selp.u32 %r3, 64, 96, %p1; barrier.sync 0, %r3; ret;",
            "barrier 0 in use with another thread count",
        ),
        (
            "setp.ge.u32 %p1, %r1, 32; @%p1 bra SECOND; bar.arrive 1, 64; ret;"
            "SECOND: bar.red.popc.u32 %r3, 1, 64, %p1; ret;",
            "barrier 1 in use by .sync or .arrive, and .red comes to it",
        ),
        (
            "setp.ge.u32 %p1, %r1, 32; @%p1 bra SECOND; bar.red.or.pred %p2, 1, 64, %p1; ret;"
            "SECOND: bar.sync 1, 64; ret;",
            "barrier 1 in use by .red, and .sync comes to it",
        ),
    ],
)
def test_barriers_used_wrongly(body: str, message: str) -> None:
    with pytest.raises(ptx.PtxError, match=message):
        run(body, np.zeros(64, np.uint32), block=(64, 1, 1))


@pytest.mark.parametrize("after", ["bar.sync 1, 64;", "bar.sync 1;", "bar.red.popc.u32 %r3, 1, %p1;"])
def test_a_barrier_that_all_have_left_may_serve_another_sort_of_meeting(after: str) -> None:
    body = f"""
        setp.lt.u32 %p1, %r1, 40; bar.red.popc.u32 %r3, 1, %p1;
        {after}
        bar.red.popc.u32 %r4, 1, !%p1;
        mad.lo.u32 %r3, %r3, 100, %r4; st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(64, np.uint32)
    run(body, out, block=(64, 1, 1))
    assert (out == 4024).all()


@pytest.mark.parametrize("space", ["global", "shared"])
def test_contended_atomic_add_is_exact_and_returns_every_value_once(space: str) -> None:
    base = "%d1" if space == "global" else "%d5"
    body = f"""
        mov.u64 %d5, cell;
        setp.eq.u32 %p1, %r1, 0;
        mov.u32 %r9, 0;
        @%p1 st.shared.u32 [cell], %r9;
        bar.sync 0;
        atom.{space}.add.u32 %r3, [{base}], 3;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out, counter = np.zeros(400, np.uint32), np.zeros(1, np.uint32)
    run(body, out, counter, block=(200, 1, 1), grid=(2, 1, 1), declarations=CELLS)
    if space == "global":
        assert counter[0] == 1200
        assert sorted(out.tolist()) == list(range(0, 1200, 3))
    else:
        assert sorted(out[:200].tolist()) == sorted(out[200:].tolist()) == list(range(0, 600, 3))


ATOMICS = {
    "add.u32": lambda old, b: (old + b) & 0xFFFFFFFF,
    "min.s32": lambda old, b: min(_signed(old), _signed(b)) & 0xFFFFFFFF,
    "max.s32": lambda old, b: max(_signed(old), _signed(b)) & 0xFFFFFFFF,
    "min.u32": min,
    "max.u32": max,
    "and.b32": lambda old, b: old & b,
    "or.b32": lambda old, b: old | b,
    "xor.b32": lambda old, b: old ^ b,
    "exch.b32": lambda old, b: b,
    "inc.u32": lambda old, b: 0 if old >= b else old + 1,
    "dec.u32": lambda old, b: b if old == 0 or old > b else old - 1,
}


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >> 31 else bits


@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_on_five_words_in_lane_order(name: str) -> None:
    body = f"""
        rem.u32 %r3, %r1, 5;
        mul.wide.u32 %d3, %r3, 4; add.s64 %d3, %d3, %d1;
        mad.lo.u32 %r4, %r1, 0x9E3779B9, 12345;
        atom.global.{name} %r5, [%d3], %r4;
        st.global.u32 [%d2], %r5;
        ret;
    """
    memory = np.array([0, 5, 0x80000000, 0xFFFFFFFF, 77], np.uint32)
    expected = [int(v) for v in memory]
    returned = []
    for lane in range(64):
        operand = (lane * 0x9E3779B9 + 12345) & 0xFFFFFFFF
        returned.append(expected[lane % 5])
        expected[lane % 5] = ATOMICS[name](expected[lane % 5], operand)
    out = np.zeros(64, np.uint32)
    run(body, out, memory, block=(64, 1, 1))
    assert out.tolist() == returned
    assert memory.tolist() == expected


def test_compare_and_swap_lets_one_lane_win() -> None:
    body = """
        add.u32 %r4, %r1, 100;
        atom.global.cas.b32 %r3, [%d1], 7, %r4;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out, memory = np.zeros(32, np.uint32), np.array([7], np.uint32)
    run(body, out, memory)
    assert memory[0] == 100
    assert out.tolist() == [7] + [100] * 31


def test_reductions_of_64_bits_and_guards() -> None:
    body = """
        setp.lt.u32 %p1, %r1, 10;
        cvt.u64.u32 %d3, %r1;
        @%p1 red.global.add.u64 [%d0], %d3;
        @!%p1 red.relaxed.gpu.global.max.u64 [%d0+8], %d3;
        ret;
    """
    out = np.array([1 << 40, 3], np.uint64)
    run(body, out)
    assert out.tolist() == [(1 << 40) + 45, 31]


def test_float_add_flushes_in_global_memory_only() -> None:
    # PTX ISA, atom: add.f32 flushes subnormals on global memory, and does not on shared memory.
    body = """
        mov.b32 %r3, 0x00000010;
        atom.global.add.f32 %r4, [%d1], %r3;
        st.shared.u32 [cell], %r3;
        atom.shared.add.f32 %r4, [cell], %r3;
        ld.shared.u32 %r5, [cell];
        st.global.u32 [%d0], %r5;
        ret;
    """
    out, memory = np.zeros(1, np.uint32), np.array([0x00000020], np.uint32)
    run(body, out, memory, block=(1, 1, 1), declarations=CELLS)
    assert (int(memory[0]), int(out[0])) == (0, 0x20)


def test_vector_atomic_add() -> None:
    body = """
        mov.b32 %r3, 0f3F800000; mov.b32 %r4, 0f40000000;
        red.global.add.v2.f32 [%d0], {%r3, %r4};
        ret;
    """
    out = np.zeros(2, np.float32)
    run(body, out)
    assert out.tolist() == [32.0, 64.0]


def test_a_count_that_one_warp_reaches_does_not_hold_the_next() -> None:
    # Both warps come in one step to a barrier for 32 threads: it completes twice.
    out = np.zeros(64, np.uint32)
    run("bar.sync 0, 32; bar.arrive 1, 32; bar.sync 1, 32; st.global.u32 [%d2], %r1; ret;", out, block=(64, 1, 1))
    np.testing.assert_array_equal(out, np.arange(64))


@pytest.mark.parametrize("polls", [0, 3], ids=["together", "one after another"])
def test_barriers_of_several_blocks(polls: int) -> None:
    # Block b has b + 1 votes; block 1 comes to its barrier with the others, or before their second warps.
    body = f"""
        setp.le.u32 %p1, %r1, %r60;
        setp.eq.u32 %p2, %r60, 1;
        st.global.u32 [%d2], %r2;
        selp.u32 %r10, 0, {polls}, %p2;
        setp.lt.u32 %p6, %r1, 32;
        selp.u32 %r10, 0, %r10, %p6;
    POLL:
        ld.volatile.global.u32 %r11, [%d1];
        sub.s32 %r10, %r10, 1;
        setp.gt.s32 %p5, %r10, 0;
        @%p5 bra POLL;
        bar.red.popc.u32 %r3, 0, %p1;
        bar.red.and.pred %p3, 0, %p2;
        bar.red.or.pred %p4, 0, %p2;
        selp.u32 %r4, 100, 0, %p3;
        selp.u32 %r5, 1000, 0, %p4;
        add.u32 %r3, %r3, %r4;
        add.u32 %r3, %r3, %r5;
        xor.b32 %r6, %r2, 32;
        mul.wide.u32 %d3, %r6, 4;
        add.s64 %d3, %d3, %d0;
        ld.global.u32 %r7, [%d3];
        bar.sync 0;
        mad.lo.u32 %r7, %r7, 10000, %r3;
        st.global.u32 [%d2], %r7;
        ret;
    """
    out = np.zeros(192, np.uint32)
    run(body, out, np.zeros(1, np.uint32), block=(64, 1, 1), grid=(3, 1, 1))
    t = np.arange(192)
    np.testing.assert_array_equal(out, (t ^ 32) * 10000 + t // 64 + 1 + np.where(t // 64 == 1, 1100, 0))


@pytest.mark.parametrize("first", [1, 3])
def test_lanes_name_their_barriers_in_registers(first: int) -> None:
    # So many warps meet at barrier 1 and the others at barrier 2, by one instruction.
    body = f"""
        mov.u32 %r3, cell;
        mad.lo.u32 %r4, %r1, 4, %r3;
        st.shared.u32 [%r4], %r1;
        setp.lt.u32 %p1, %r1, {32 * first};
        selp.u32 %r5, 1, 2, %p1;
        selp.u32 %r6, {32 * first}, {128 - 32 * first}, %p1;
        bar.sync %r5, %r6;
        selp.u32 %r7, {32 * first - 1}, {32 * first + 127}, %p1;
        sub.u32 %r7, %r7, %r1;
        mad.lo.u32 %r7, %r7, 4, %r3;
        ld.shared.u32 %r8, [%r7];
        st.global.u32 [%d2], %r8;
        ret;
    """
    out = np.zeros(128, np.uint32)
    run(body, out, block=(128, 1, 1), declarations=CELLS)
    t = np.arange(128)
    np.testing.assert_array_equal(out, np.where(t < 32 * first, 32 * first - 1, 32 * first + 127) - t)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [1, 5, 8, 21, 64, 150])
def test_rows_are_raised_as_by_maximum_at(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    # Parts of wider tables, whose other words stay as they are. In long rows many words side by side are zero, and each
    # place of a word within a part is the only one that is not, in some row.
    source = rng.integers(0, 99, (7, width + 3))[:, 2 : width + 2]
    source[rng.random(source.shape) < (0.97 if width > 21 else 0.2)] = 0
    for count in (0, 1, 2, 40):
        keys, rows = rng.integers(0, 6, count), rng.integers(0, 7, count)
        for given in (rows, None) if count <= len(source) else (rows,):
            whole = rng.integers(0, 60, (6, width + 2))
            wanted = whole.copy()
            np.maximum.at(wanted[:, 1 : width + 1], keys, source[:count] if given is None else source[given])
            raise_rows(whole[:, 1 : width + 1], keys, source, given)
            np.testing.assert_array_equal(whole, wanted)


def test_rows_are_raised_in_their_spans() -> None:
    rng = np.random.default_rng(0)
    source, table = rng.integers(1, 99, (5, 150)), rng.integers(0, 60, (6, 150))
    keys, rows = rng.integers(0, 6, 20), rng.integers(0, 5, 20)
    spans = np.array([[3, 40], [60, 7], [100, 50]], np.int64)
    wanted = table.copy()
    for begin, words in spans.tolist():
        part = np.s_[:, begin : begin + words]
        np.maximum.at(wanted[part], keys, source[part][rows])
    raise_rows(table, keys, source, rows, spans)
    np.testing.assert_array_equal(table, wanted)


@pytest.mark.parametrize("inits", [False, True])
@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("bulk", [False, True])
def test_spans_have_all_that_rows_may_hold(bulk: bool, sequential: bool, inits: bool) -> None:
    pool = Pool(1)
    clocks = Clocks(2, 1, 0, pool, by_lane=True, bulk=bulk, sequential=sequential, inits=inits)
    alive, lanes = np.ones(64, bool), np.arange(64)

    def inside() -> np.ndarray:
        held = np.zeros(clocks.columns, bool)
        for begin, columns in clocks.filled.spans(clocks.columns).tolist():
            held[begin : begin + columns] = True
        return held

    row = np.zeros((1, clocks.columns), np.int64)
    clocks.last_fence[:] = 3
    some = np.arange(30, 37)
    clocks.mark(row, np.zeros(7, np.int64), some, 5)
    row[0, : clocks.warps] = 7
    if bulk:
        row[0, clocks.agents_of(np.array([9, 0]))] = 4
        for each in (np.arange(clocks.warps), clocks.column_of(some), clocks.agents_of(np.array([9]))):
            row[0, clocks.crossed + each] = 2
    assert inside()[row[0] != 0].all()
    assert np.count_nonzero(inside()[: clocks.fence]) <= 2 * (2 + 64 + 16)
    if inits:
        row = np.maximum(row, clocks.fenced_init(9, 6))
        assert inside()[row[0] != 0].all()
    assert not inside()[clocks.copy : clocks.agents].any()
    clocks.copies_seen(lanes, np.arange(1, 65), alive)
    for each in range(64):
        held = clocks.seen[int(clocks.rows(np.array([each]))[0])]
        assert held[clocks.copy_of(np.array([each]))].tolist() == [each + 1]
    # What the lanes of a warp know is brought to a barrier, copies too.
    table = np.zeros((1, clocks.columns), np.int64)
    clocks.bring(table, np.zeros(2, np.int64), np.arange(2), alive, alive)
    assert table[0, clocks.copy : clocks.copy + 64].tolist() == list(range(1, 65))


@pytest.mark.parametrize("way", ["passed on", "crossed", "left behind", "of its own"])
def test_spans_have_the_lanes_that_were_marked(way: str) -> None:
    clocks = Clocks(3, 2, 0, Pool(2), by_lane=True, bulk=True, leave=True)
    clocks.now, alive, exist = 4, np.ones(192, bool), np.ones(192, bool)
    assert clocks.filled.spans(clocks.columns).tolist() == [[0, 8], [clocks.crossed, 8]]
    # Of the second cluster, whose first warp is the fourth.
    lane = 96 + 32 + 7
    if way == "passed on":
        row = clocks.passed_on(lane, clocks.seen[4], None, 4).rows[1]
        held = clocks.pool.rows[row]
    elif way == "crossed":
        clocks.cross(np.array([lane]), alive)
        held = clocks.seen[clocks.rows(np.array([lane]))[0]]
    elif way == "left behind":
        alive[lane + 1] = False
        held = clocks.knowledge(np.array([4]), alive, exist)[0][0]
    else:
        held = np.zeros((1, clocks.columns), np.int64)
        clocks.mark(held, np.zeros(1, np.int64), np.array([lane]), 4)
        held = held[0]
    assert held.any()
    begin = clocks.lane + 32
    spans = clocks.filled.spans(clocks.columns).tolist()
    assert [begin, 32] in spans
    assert [clocks.crossed + begin, 32] in spans
    inside = np.zeros(clocks.columns, bool)
    for first, columns in spans:
        inside[first : first + columns] = True
    assert inside[np.flatnonzero(held)].all()
    assert clocks.filled.warps.tolist() == [1]


@pytest.mark.parametrize("seed", range(8))
def test_whole_warps_are_marked_as_their_lanes_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clocks = Clocks(3, 2, 0, Pool(2), by_lane=True)
    table, wanted = np.zeros((3, clocks.columns), np.int64), np.zeros((3, 96), np.int64)
    for step in range(1, 9):
        # Of each warp all lanes, or some, or all in two rows.
        row_of, here = np.repeat(rng.integers(0, 3, 6), 32), np.repeat(rng.random(6) < 0.7, 32)
        odd = np.repeat(rng.random(6) < 0.3, 32) & (rng.random(192) < 0.5)
        if rng.random() < 0.5:
            here &= ~odd
        else:
            row_of[odd] = (row_of[odd] + 1) % 3
        lanes = np.flatnonzero(here)
        if not lanes.size:
            continue
        clocks.mark(table, row_of[lanes], lanes, step)
        wanted[row_of[lanes], lanes % 96] = step
        known = np.maximum(table[:, clocks.lane : clocks.copy], np.repeat(table[:, : clocks.warps], 32, axis=1))
        np.testing.assert_array_equal(known, wanted)
        # A warp that came to one row has but its own column.
        whole = (wanted.reshape(3, 3, 32) == step).all(axis=2)
        assert (table[:, : clocks.warps][whole] == step).all()


def test_rows_and_spans_beyond_a_table_are_refused() -> None:
    table, source = np.ones((4, 24), np.int64), np.full((2, 24), 5)
    inside, beyond, below = np.array([0]), np.array([4]), np.array([-1])
    for keys, rows in ((beyond, inside), (below, inside), (inside, np.array([2])), (inside, below)):
        for call in (raise_rows, copy_rows):
            with pytest.raises(AssertionError, match="beyond"):
                call(table, keys, source, rows)
    for wrong in ([[20, 5]], [[-1, 2]], [[0, 8], [8, 17]]):
        spans = np.array(wrong, np.int64)
        with pytest.raises(AssertionError, match="beyond"):
            raise_rows(table, inside, source, inside, spans)
        with pytest.raises(AssertionError, match="beyond"):
            clear_rows(table, inside, spans)
    for rows in (beyond, below):
        with pytest.raises(AssertionError, match="beyond"):
            move_rows(table, source, rows)
        with pytest.raises(AssertionError, match="beyond"):
            clear_rows(table, rows)
        with pytest.raises(AssertionError, match="beyond"):
            raise_whole(np.ones((4, 40), np.int64), rows, 1, np.array([0]))
    assert (table == 1).all()
    assert (source == 5).all()


def test_rows_are_taken_and_cleared_in_their_spans() -> None:
    rng = np.random.default_rng(3)
    spans = np.array([[3, 40], [60, 7], [100, 50]], np.int64)
    inside = np.zeros(150, bool)
    for begin, words in spans.tolist():
        inside[begin : begin + words] = True
    table, source = rng.integers(1, 99, (5, 150)), rng.integers(1, 99, (5, 150))
    keys, rows = np.array([4, 1]), np.array([0, 2])
    wanted = table.copy()
    wanted[np.ix_(keys, inside)] = source[np.ix_(rows, inside)]
    copy_rows(table, keys, source, rows, spans)
    np.testing.assert_array_equal(table, wanted)
    wanted[np.ix_(keys, inside)], left = source[np.ix_(keys, inside)], source.copy()
    left[np.ix_(keys, inside)] = 0
    move_rows(table, source, keys, spans)
    np.testing.assert_array_equal(table, wanted)
    np.testing.assert_array_equal(source, left)
    wanted[np.ix_(rows, inside)] = 0
    clear_rows(table, rows, spans)
    np.testing.assert_array_equal(table, wanted)


def rows_of_clocks(seed: int, width: int) -> np.ndarray:
    """int64 [9, width], of which many parts are zero, and some words in each other part are not."""
    rng = np.random.default_rng(seed)
    table = rng.integers(1, 99, (9, width))
    table[rng.random(table.shape) < 0.9] = 0
    return table


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [1, 31, 32, 150])
def test_rows_are_copied_moved_and_cleared(seed: int, width: int) -> None:
    keys, rows = np.array([4, 1, 8]), np.array([0, 7, 7])
    table, source = rows_of_clocks(seed, width), rows_of_clocks(seed + 9, width)
    wanted = table.copy()
    wanted[keys] = source[rows]
    copy_rows(table, keys, source, rows)
    np.testing.assert_array_equal(table, wanted)
    wanted[keys], wanted_source = source[keys], source.copy()
    wanted_source[keys] = 0
    move_rows(table, source, keys)
    np.testing.assert_array_equal(table, wanted)
    np.testing.assert_array_equal(source, wanted_source)
    wanted[rows] = 0
    clear_rows(table, rows)
    np.testing.assert_array_equal(table, wanted)


@pytest.mark.parametrize("seed", range(4))
def test_a_warp_is_known_up_to_what_is_known_of_all_its_lanes(seed: int) -> None:
    warps, rng = 3, np.random.default_rng(seed)
    table = rng.integers(0, 99, (5, 5 + warps + 32 * warps))
    lanes, rows = 4, np.array([3, 0])
    wanted = table.copy()
    least = table[rows, lanes : lanes + 32 * warps].reshape(-1, warps, 32).min(axis=2)
    # Lanes of low steps are in all warps: some words of warps are higher, some are not.
    wanted[rows, :warps] = np.maximum(table[rows, :warps], least)
    table[:, 1] = wanted[:, 1] = 0
    wanted[rows, 1] = least[:, 1]
    raise_whole(table, rows, lanes, np.arange(warps))
    np.testing.assert_array_equal(table, wanted)


@pytest.mark.parametrize("count", [0, 1, 5, 64, 65, 900])
@pytest.mark.parametrize("most", [1, 9, 1 << 13, 1 << 40])
def test_different_numbers_are_those_that_numpy_finds(count: int, most: int) -> None:
    values = np.random.default_rng(count).integers(-most, most, count)
    np.testing.assert_array_equal(different(values), np.unique(values))
    np.testing.assert_array_equal(different(values[:1].repeat(count)), np.unique(values[:1].repeat(count)))
