"""What `__threadfence()` costs that all threads of many blocks execute, or one thread many times."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import text

from refmoe import ptx
from refmoe.ptx.engine.order import locations
from refmoe.ptx.engine.order.clocks import Clocks
from refmoe.ptx.engine.order.knowledge import Knowledge, Pool
from refmoe.ptx.engine.order.locations import FenceKnowledge, FenceLog, Order, SequentialFence
from refmoe.ptx.state.records import GRID

BODY = """
    mul.wide.u32 %d3, %r2, 4; add.s64 %d3, %d3, %d0;
    st.global.u32 [%d3], %r1;
    fence.sc.gpu;
    bar.sync 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 ret;
    atom.global.add.u32 %r5, [%d1], 1;
    ret;
"""
BLOCKS, WARPS = 48, 2


@pytest.mark.parametrize("schedule", [1, 3])
def test_a_fence_looks_a_few_times_at_what_came_before(schedule: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # What all fences know grows with the grid: a fence that joined it with its own older versions took that long each.
    joined = 0
    join = Pool.join

    def counted(self: Pool, one: Knowledge | None, other: Knowledge | None) -> Knowledge | None:
        nonlocal joined
        joined += one is not None and other is not None and one is not other
        return join(self, one, other)

    monkeypatch.setattr(Pool, "join", counted)
    threads = 32 * WARPS
    out, count = np.zeros(BLOCKS * threads, np.uint32), np.zeros(1, np.uint32)
    module = ptx.Module.parse(text(BODY), name="test.ptx")
    ptx.launch(module, "k", (BLOCKS, 1, 1), (threads, 1, 1), [out, count, 0], schedule=schedule)
    assert count.tolist() == [BLOCKS]
    assert joined <= 4 * BLOCKS * WARPS


def test_what_two_know_together() -> None:
    # Of six clusters, of each of which a row of three columns or nothing is known.
    pool, rng = Pool(6), np.random.default_rng(0)
    pool.fit(3)

    def drawn() -> tuple[Knowledge | None, np.ndarray]:
        held, expected = None, np.zeros((6, 3), np.int64)
        for cluster in np.flatnonzero(rng.integers(0, 2, 6)).tolist():
            expected[cluster] = rng.integers(1, 3, 3)
            held = pool.knowledge(cluster, expected[cluster], held)
        return held, expected

    for _ in range(200):
        (one, mine), (other, theirs) = drawn(), drawn()
        found = pool.join(one, other)
        expected = np.maximum(mine, theirs)
        if found is None:
            assert not expected.any()
            continue
        assert pool.rows[found.rows].tobytes() == expected.tobytes()
        assert found.count == np.count_nonzero(expected.any(axis=1))


def test_rows_of_a_pool_are_given_back_as_zeros() -> None:
    columns = 12345
    for _ in range(2):
        pool = Pool(200)
        pool.fit(columns)
        assert not pool.rows.any()
        # Beyond the first room, of the first columns alone, and with a column behind them.
        for number in range(1, 101):
            assert pool.add(np.full(number, number), columns - number, 7) == number
        for number in range(1, 101):
            assert pool.rows[number].tolist() == [number] * number + [0] * (columns - 2 * number) + [7] + [0] * (
                number - 1
            )
        pool.release()


def test_a_row_that_is_used_again_holds_nothing_of_before() -> None:
    pool = Pool(3)
    pool.fit(9)
    number = pool.add(np.full(9, 5))
    pool._free.append(number)
    assert pool.add(np.array([1, 2])) == number
    assert pool.rows[number].tolist() == [1, 2, 0, 0, 0, 0, 0, 0, 0]


def test_what_is_known_of_one_cluster_is_joined_with_more() -> None:
    pool = Pool(4)
    pool.fit(1)
    one, other, again = (pool.knowledge(cluster, np.array([step]), None) for cluster, step in ((1, 5), (3, 6), (1, 7)))
    both = pool.join(one, other)
    assert both is not None
    assert both.count == 2
    assert both.rows.tolist() == [0, 1, 0, 2]
    assert pool.join(other, one).rows.tolist() == [0, 1, 0, 2]  # type: ignore[union-attr]
    # Of the same cluster the later row is the one that counts.
    for pair in ((both, again), (again, both)):
        known = pool.join(*pair)
        assert known is not None
        assert known.count == 2
        assert pool.rows[known.rows, 0].tolist() == [0, 7, 0, 6]
    assert pool.join(one, again) is again
    assert again.address == again.rows.ctypes.data


def test_what_warps_learn_at_a_barrier() -> None:
    pool = Pool(4)
    clocks = Clocks(2, 1, 0, pool)
    alive = np.ones(64, bool)
    # Each of two warps knows of another cluster, then both of both.
    known = [pool.knowledge(cluster, np.array([cluster, 5]), None) for cluster in (2, 3)]
    clocks.learn_by_lane(np.arange(32), known[0], alive)
    clocks.learn_by_lane(np.arange(32, 64), known[1], alive)
    table, warps = np.zeros((1, clocks.columns), np.int64), np.arange(2)
    beyond = clocks.bring(table, np.zeros(2, np.int64), warps, alive, alive)
    assert beyond == known
    together = pool.join(*beyond)
    assert together is not None
    clocks.learn(warps, table, np.zeros(2, np.int64), [together, together])
    for warp in (0, 1):
        assert pool.rows[clocks.beyond[warp].rows].tolist() == [[0, 0], [0, 0], [2, 5], [3, 5]]
        assert clocks.foreign[warp] == clocks.beyond[warp].address


def fence(step: int) -> SequentialFence:
    return SequentialFence(FenceKnowledge(np.zeros(4, np.int64), None, step), GRID, 0)


def test_a_log_finds_fences_by_their_steps() -> None:
    log = FenceLog()
    assert (log.at(5), log.until(5)) == (None, 0)
    fences = [fence(step) for step in (3, 7, 12)]
    for each in fences:
        log.add(each)
    assert [log.until(step) for step in (2, 3, 6, 7, 11, 12, 40)] == [0, 3, 3, 7, 7, 12, 12]
    assert [log.at(step) for step in (2, 3, 7, 8, 12, 13)] == [None, fences[0], fences[1], None, fences[2], None]
    log.forget(2)
    assert (len(log), log.until(11), log.until(12)) == (1, 0, 12)


def test_fences_that_need_too_much_have_the_place_of_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_MOST_BYTES", 1000)
    order = Order(1)
    for step in range(1, 101):
        order.remember(0, fence(step), 10)
    assert len(order.fences[0]) == 100
    # One more is too much. Each thread keeps its last ones; what the first ones needed is free.
    order.remember(1, fence(101), 10)
    assert (len(order.fences[0]), len(order.fences[1])) == (100, 1)
    order.remember(0, fence(102), 10)
    assert (len(order.fences[0]), order.fences[0].until(85), order.fences[0].until(86)) == (16, 0, 86)
    for step in range(103, 150):
        order.remember(0, fence(step), 10)
    assert len(order.fences[0]) == 16 + 47
