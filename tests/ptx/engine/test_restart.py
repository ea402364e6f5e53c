"""Memory and machines that are used again: blocks after other blocks, launches after other launches."""

from __future__ import annotations

import copy
import mmap
import pickle
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import run, text

from refmoe import ptx
from refmoe.ptx import launcher
from refmoe.ptx.engine.order.clocks import Clocks
from refmoe.ptx.engine.order.granules import Granules
from refmoe.ptx.engine.order.knowledge import Pool
from refmoe.ptx.state import pages
from refmoe.ptx.state.memory import padded
from refmoe.ptx.state.pages import PAGE, Spare, resident_bytes, untouched

LAX = ptx.Checks(uninitialised=False)
STRICT = ptx.Checks(strict=True)
SHARED = ".shared .align 4 .b8 sh[256]; .local .align 4 .b8 mine[16];"
BLOCKS = 3


@pytest.fixture
def one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block takes the place of the one before."""
    monkeypatch.setattr(launcher, "LANES_AT_ONCE", 32)


# Blocks after other blocks


@pytest.mark.usefixtures("one_after_another")
@pytest.mark.parametrize("where", [("shared", "sh"), ("local", "mine")], ids=" ".join)
def test_what_an_earlier_block_wrote_is_uninitialised(where: tuple[str, str]) -> None:
    space, name = where
    body = f"""
        setp.eq.u32 %p1, %r60, 0;
        @%p1 st.{space}.u32 [{name}], 5;
        @!%p1 ld.{space}.u32 %r3, [{name}];
        ret;
    """
    with pytest.raises(ptx.MemoryFault, match="uninitialised") as caught:
        run(body, np.zeros(96, np.uint32), grid=(BLOCKS, 1, 1), declarations=SHARED, checks=STRICT)
    assert caught.value.block == (1, 0, 0)


@pytest.mark.usefixtures("one_after_another")
def test_what_an_earlier_block_wrote_is_poison() -> None:
    body = """
        setp.eq.u32 %p1, %r60, 0;
        mov.u32 %r3, 0; mov.u32 %r4, 0;
        @%p1 st.shared.u32 [sh], 5;
        @%p1 st.local.u32 [mine], 5;
        bar.warp.sync -1;
        ld.shared.u32 %r3, [sh];
        ld.local.u32 %r4, [mine];
        xor.b32 %r3, %r3, %r4;
        add.u32 %r3, %r3, %r4;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(96, np.uint32)
    run(body, out, grid=(BLOCKS, 1, 1), declarations=SHARED, checks=LAX)
    assert out.reshape(BLOCKS, 32)[:, 7].tolist() == [5, 0xCDCDCDCD, 0xCDCDCDCD]


@pytest.mark.usefixtures("one_after_another")
def test_who_accessed_shared_memory_before_is_forgotten() -> None:
    # The same word, in each block another lane's.
    body = """
        setp.eq.u32 %p1, %r1, %r60;
        @%p1 st.shared.u32 [sh], %r1;
        @%p1 ld.shared.u32 %r3, [sh];
        @%p1 st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(96, np.uint32)
    run(body, out, grid=(BLOCKS, 1, 1), declarations=SHARED)
    assert np.flatnonzero(out).tolist() == [33, 66]


@pytest.mark.usefixtures("one_after_another")
def test_lanes_of_a_later_block_know_of_each_other() -> None:
    body = """
        st.global.u32 [%d2], %r2;
        bar.warp.sync -1;
        xor.b32 %r3, %r2, 5;
        mul.wide.u32 %d3, %r3, 4;
        add.s64 %d3, %d3, %d0;
        ld.global.u32 %r4, [%d3];
        st.global.u32 [%d2 + 384], %r4;
        ret;
    """
    out = np.zeros(192, np.uint32)
    run(body, out, grid=(BLOCKS, 1, 1))
    np.testing.assert_array_equal(out[96:], np.arange(96) ^ 5)


@pytest.mark.usefixtures("one_after_another")
def test_blocks_one_after_another_race() -> None:
    body = "mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3], %r60; ret;"
    with pytest.raises(ptx.RaceError) as caught:
        run(body, np.zeros(32, np.uint32), grid=(BLOCKS, 1, 1))
    assert (caught.value.block, caught.value.other_block) == ((1, 0, 0), (0, 0, 0))


@pytest.mark.usefixtures("one_after_another")
def test_a_register_that_nobody_wrote_is_zero() -> None:
    body = """
        setp.eq.u32 %p1, %r60, 0;
        @%p1 mov.u32 %r5, 7;
        @%p1 bra L;
        add.u32 %r6, %r6, 1;
    L:
        st.global.u32 [%d2], %r5;
        ret;
    """
    # A second launch gets the registers of the first.
    for _ in range(2):
        out = np.full(96, 99, np.uint32)
        run(body, out, grid=(BLOCKS, 1, 1), checks=ptx.Checks(undefined=False))
        assert out.reshape(BLOCKS, 32)[:, 3].tolist() == [7, 0, 0]
        run("mov.u32 %r5, 99; L: add.u32 %r5, %r5, %r1; st.global.u32 [%d2], %r5; ret;", out, grid=(BLOCKS, 1, 1))


@pytest.mark.usefixtures("one_after_another")
def test_a_barrier_of_an_earlier_block_is_gone() -> None:
    body = """
        setp.ne.u32 %p1, %r1, 0;
        @%p1 bra END;
        mov.u32 %r3, bar;
        mbarrier.init.shared.b64 [%r3], 1;
        mbarrier.arrive.shared.b64 %d3, [%r3];
    WAIT:
        mbarrier.try_wait.shared.b64 %p2, [%r3], %d3;
        @!%p2 bra WAIT;
    END:
        st.global.u32 [%d2], %r60;
        ret;
    """
    out = np.full(96, 99, np.uint32)
    run(body, out, grid=(BLOCKS, 1, 1), declarations=".shared .align 8 .b8 bar[8];")
    np.testing.assert_array_equal(out, np.arange(96) // 32)


@pytest.mark.usefixtures("one_after_another")
@pytest.mark.parametrize("loud", range(BLOCKS))
def test_approximate_results_of_every_block_are_reported(loud: int) -> None:
    # Only one block runs them; the first one is exact, and the last one is not.
    body = f"""
        setp.ne.u32 %p1, %r60, {loud};
        @%p1 ret;
        mov.f32 %r3, 0f40000000;
        rcp.approx.f32 %r4, %r3;
        mov.f32 %r3, 0f40400000;
        ex2.approx.f32 %r4, %r3;
        rcp.approx.f32 %r4, %r3;
        st.global.u32 [%d2], %r4;
        ret;
    """
    lines = text(body).splitlines()
    last = max(number for number, line in enumerate(lines, 1) if "rcp" in line)
    result = run(body, np.zeros(96, np.uint32), grid=(BLOCKS, 1, 1))
    assert result.approximate == (("rcp.approx.f32", last),)


# Memory that was given back


def test_spare_memory_has_one_owner() -> None:
    spare, size = Spare(), 1 << 17
    arrays = [np.zeros(size // 8, np.uint64) for _ in range(2)]
    for array in arrays:
        spare.give(array, size)
    taken = [spare.take(size) for _ in range(3)]
    assert taken[2] is None
    assert {each.ctypes.data for each in taken[:2]} == {each.ctypes.data for each in arrays}
    assert [(each.dtype, each.shape) for each in taken[:2]] == [(np.uint8, (size,))] * 2


def test_spare_memory_is_of_the_size_that_is_wanted() -> None:
    spare = Spare()
    spare.give(np.zeros(1 << 17, np.uint8), 1 << 17)
    assert spare.take(1 << 16) is None
    assert spare.take(1 << 18) is None
    # What a heap gives is not kept.
    spare.give(np.zeros(1 << 16, np.uint8), 1 << 16)
    assert spare.take(1 << 16) is None


def resident(size: int, most: int | None = None) -> np.ndarray:
    """uint8 [size] of which the first bytes, by default all, are resident."""
    array = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    array[: size if most is None else most] = 1
    return array


def test_spare_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MOST_SPARE", 1 << 20)
    spare, size = Spare(), 1 << 18
    # What is taken counts no more, so that the limit is never reached.
    for _ in range(9):
        spare.give(resident(size), size)
        assert spare.take(size) is not None
    for _ in range(4):
        spare.give(resident(size), size)
    # The fifth is one too many: those before it go.
    spare.give(resident(size), size)
    assert spare.take(size) is not None
    assert spare.take(size) is None
    spare.give(resident(2 << 20), 2 << 20)
    assert spare.take(2 << 20) is None


def test_spare_memory_counts_what_everybody_made_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MOST_SPARE", 1 << 20)
    spare, size, part = Spare(), 8 << 20, 1 << 18
    array, times = resident(size, 0), 0
    # Each user touches another part.
    for begin in range(0, size, part):
        array[begin : begin + part] = 1
        spare.give(array, part)
        assert sum(resident_bytes(each) for each, _ in spare._held.get(size, ())) <= (1 << 20) + part
        again = spare.take(size)
        if again is None:
            array, times = resident(size, 0), times + 1
    assert times == 6


def test_spare_memory_that_is_used_in_one_place_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MOST_SPARE", 1 << 20)
    asked = []
    monkeypatch.setattr(pages, "resident_bytes", lambda array: asked.append(array) or resident_bytes(array))
    spare, size, part = Spare(), 8 << 20, 1 << 17
    array = resident(size, part)
    for _ in range(64):
        array[:part] = 1
        spare.give(array, part)
        assert spare.take(size) is not None
    # All together would be eight times the limit. The system was asked when there seemed to be more than the limit.
    assert 0 < len(asked) <= 8


@pytest.mark.parametrize("users", [4, 5])
def test_without_an_answer_all_that_was_said_is_resident(users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(array: Any) -> int:
        raise OSError

    monkeypatch.setattr(pages, "_MOST_SPARE", 1 << 20)
    monkeypatch.setattr(pages, "resident_bytes", unknown)
    spare, size, part = Spare(), 8 << 20, 1 << 18
    array = resident(size, part)
    for _ in range(users):
        spare.give(array, part)
        kept = spare.take(size)
    assert (kept is None) == (users > 4)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("columns", [1, 3])
def test_records_that_are_given_back_are_zeros(width: int, columns: int) -> None:
    size = (1 << 20) + 4 * PAGE - 32
    granules = Granules(size, columns)
    index = np.arange(0, size, 32)
    at, _ = granules.cover(index, width)
    granules.records[:, at] = 77
    assert granules.records.any(axis=1).all()
    shapes = [granules.records.shape, granules.states.shape]
    places = {granules.records.ctypes.data}
    granules.release()
    found = untouched(shapes[0], np.int64)
    assert {found.ctypes.data} == places
    assert not found.any()


def test_giving_records_back_makes_nothing_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_ZEROS", Spare())
    # Each of 32 warps reads a byte of every 32nd line of its own, so that half of each column's pages hold no record.
    size, warps, line = 32 * PAGE + 480, 32, 32
    granules = Granules(size, warps)
    slots, _ = granules.cover(np.arange(size), 1)
    for warp in range(warps):
        granules.reads[warp, slots.reshape(-1, line)[warp::warps, warp]] = 1 + warp
    records = granules.records
    before = resident_bytes(records)
    assert before < 0.6 * warps * size * 8
    granules.release()
    assert not records.any()
    assert resident_bytes(records) == before
    # A page of the system's may hold the records of two pages.
    [(_, said)] = pages._ZEROS._held[records.nbytes]
    assert before <= said < 1.2 * before


def test_what_is_known_of_pages_is_given_back_as_zeros() -> None:
    # Words of so many pages are more than a heap gives.
    granules = Granules(PAGE << 14, 1)
    granules.cover(np.array([5 * PAGE, 9 * PAGE]), 4)
    assert np.flatnonzero(granules.states).tolist() == [5, 9]
    held = granules.states, granules.used, granules.steps
    assert [each.any() for each in held] == [True] * 3
    granules.release()
    assert not any(each.any() for each in held)
    for _ in range(3):
        assert not untouched((1 << 14,), np.int64).any()


def big_clocks() -> Clocks:
    """Clocks of more bytes than a heap gives, of which nobody else asks for as many."""
    return Clocks(3, 37, 0, Pool(37), by_lane=True)


def test_clocks_that_are_given_back_are_zeros() -> None:
    clocks = big_clocks()
    clocks.learn(np.arange(6), np.full((2, 3), 9, np.int64), np.array([0, 0, 0, 1, 1, 1]), [None] * 6)
    assert clocks.seen[:6, :3].tolist() == [[9] * 3] * 6
    held = clocks.seen
    clocks.release()
    again = big_clocks()
    assert again.seen.ctypes.data == held.ctypes.data
    assert not again.seen.any()


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("whom", [[7], range(32)], ids=["a lane", "a warp"])
def test_clocks_of_lanes_are_given_back_as_zeros(whom: list[int], restarts: int) -> None:
    clocks = big_clocks()
    alive = np.ones(32 * clocks.all_warps, np.bool_)
    known = np.full((1, clocks.columns), 9, np.int64)
    clocks.learn_rows(np.array(whom), np.zeros(len(whom), np.int64), known, {}, alive)
    assert clocks.seen.any()
    for _ in range(restarts):
        clocks.restart(0)
    held = clocks.seen
    clocks.release()
    again = big_clocks()
    assert again.seen.ctypes.data == held.ctypes.data
    assert not again.seen.any()


def test_clocks_of_lanes_begin_as_zeros_again() -> None:
    clocks = big_clocks()
    for _ in range(3):
        clocks.seen[: clocks.all_warps] = 0
        clocks.use_lanes()
        clocks.seen[5, clocks.lane + 1] = 9
        clocks.restart(0)
        assert not clocks.seen[: clocks.all_warps].any()
        # Nobody synchronised by itself since: what was written before has to stay cleared.
        clocks.restart(0)
        assert not clocks.seen[: clocks.all_warps].any()


SWAP = """
    mad.lo.u32 %r3, %r1, 4, {shared};
    st.shared.u32 [%r3], %r1;
    bar.sync 0;
    xor.b32 %r4, %r3, 128;
    ld.shared.u32 %r5, [%r4];
    st.global.u32 [%d2], %r5;
    {more}
    ret;
"""


@pytest.mark.parametrize(
    "more", ["", "setp.eq.u32 %p1, %r1, 0; bar.red.popc.u32 %r6, 0, %p1;"], ids=["restarted", "made anew"]
)
def test_machines_take_the_memory_of_those_before(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LANES_AT_ONCE", 512)
    body = "mov.u32 %r9, words; " + SWAP.format(shared="%r9", more=more)
    out = np.zeros(40 * 512, np.uint32)
    words = ".shared .align 128 .b8 words[16384];"
    run(body, out, grid=(40, 1, 1), block=(512, 1, 1), declarations=words)
    made = []
    system = mmap.mmap

    def count(*args: Any, **options: Any) -> Any:
        made.append(args)
        return system(*args, **options)

    monkeypatch.setattr(mmap, "mmap", count)
    run(body, out, grid=(40, 1, 1), block=(512, 1, 1), declarations=words)
    assert made == []
    np.testing.assert_array_equal(out.reshape(40, 512), np.tile(np.arange(512) ^ 32, (40, 1)))


def test_barriers_of_an_earlier_launch_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_ZEROS", Spare())
    words = ".shared .align 128 .b8 words[16384];"
    out, blocks = np.zeros(32, np.uint32), 64

    def launch(then: str) -> None:
        body = f"mov.u32 %r9, words; setp.ne.u32 %p1, %r1, 0; @%p1 bra END; {then} END: ret;"
        run(body, out, grid=(blocks, 1, 1), declarations=words)

    launch("mbarrier.init.shared.b64 [%r9 + 512], 1;")
    # A number for each place of an object; those of the bytes are as many.
    kept = [array for array, _ in pages._ZEROS._held[blocks << 14]]
    assert [array.any() for array in kept] == [False] * len(kept)
    assert min(map(resident_bytes, kept)) <= blocks * PAGE
    with pytest.raises(ptx.MisuseError, match="is not initialised"):
        launch("mbarrier.arrive.shared.b64 %d5, [%r9 + 512];")


STORE = "mul.wide.u32 %d3, %r1, 512; add.s64 %d3, %d3, %d0; st.global.u32 [%d3 + 8192], 7; {then} ret;"


def test_what_an_earlier_launch_wrote_is_uninitialised() -> None:
    run(STORE.format(then=""), ptx.Buffer(np.zeros(1 << 20, np.uint8), "out", initialised=False))
    out = ptx.Buffer(np.zeros(1 << 20, np.uint8), "out", initialised=False)
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        run("ld.global.u32 %r3, [%d0 + 8192]; ret;", out, checks=STRICT)


def test_what_the_launch_before_wrote_is_kept_again() -> None:
    # Of so many pages the words that say what is kept are more than a heap gives; records have none as large.
    arrays, no_races = [np.zeros(PAGE << 14, np.uint8) for _ in range(2)], ptx.Checks(races=False)
    run(STORE.format(then=""), arrays[0], checks=no_races)
    assert arrays[0][8192] == 7
    arrays[1][8192 : 8192 + 32 * 512] = 3
    with pytest.raises(ptx.Trap):
        run(STORE.format(then="trap;"), arrays[1], checks=no_races)
    assert (arrays[1][8192 : 8192 + 32 * 512] == 3).all()


@pytest.mark.parametrize("kind", ["u1", "u2", "u4", "u8", "c16", "V3"])
def test_the_mask_says_of_which_elements_every_byte_was_written(kind: str) -> None:
    # Every seventh byte, and words that follow one another; the array ends in the middle of a page, and of what native
    # code looks at together.
    body = """
        mul.lo.u32 %r3, %r1, 7;
        cvt.u64.u32 %d3, %r3;
        add.s64 %d3, %d3, %d0;
        st.global.u8 [%d3 + 100], %r1;
        mul.wide.u32 %d4, %r1, 4;
        add.s64 %d4, %d4, %d0;
        st.global.u32 [%d4 + 8192], %r1;
        st.global.u32 [%d4 + 147456], %r1;
        ret;
    """
    threads, size = 128, np.dtype(kind).itemsize
    count = (147456 + 4 * threads) // size + 1
    threads_ = np.arange(threads)
    written = np.zeros(count * size, bool)
    for begin, step, width in ((100, 7, 1), (8192, 4, 4), (147456, 4, 4)):
        written[(begin + step * threads_)[:, None] + np.arange(width)] = True
    out = ptx.Buffer(np.zeros(count, kind), "out", initialised=np.zeros(count, bool))
    run(body, out, block=(threads, 1, 1))
    assert np.array_equal(out.initialised, written.reshape(count, size).all(axis=1))
    _require_zeros(padded(count * size))
    again = ptx.Buffer(np.zeros(count, kind), "out", initialised=ptx.WrittenBytes(count * size))
    run(body, again, block=(threads, 1, 1))
    assert np.array_equal(again.initialised.mask(), written)
    del again
    _require_zeros(padded(count * size))


def _require_zeros(size: int) -> None:
    """Memory of so many bytes was given back, and holds zeros."""
    kept = [array for array, _ in pages._ZEROS._held[size]]
    assert kept
    assert [array.any() for array in kept] == [False] * len(kept)


@pytest.mark.parametrize("size", [64, 3 * PAGE + 64], ids=["copied", "in place"])
@pytest.mark.parametrize("schedules", [1, 3])
def test_a_launch_may_read_what_those_before_it_wrote(size: int, schedules: int) -> None:
    written, last = ptx.WrittenBytes(size), size - 4
    buffer = ptx.Buffer(np.zeros(size, np.uint8), "out", initialised=written)
    one = "setp.ne.u32 %p1, %r1, 0; @%p1 bra END; {then} END: ret;"
    store, load = "st.global.u32 [%d0 + {at}], 7;", "ld.global.u32 %r3, [%d0 + {at}]; st.global.u32 [%d0 + {to}], %r3;"

    def launch(then: str) -> None:
        module = ptx.Module.parse(text(one.format(then=then)), name="test.ptx")
        ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [buffer, None, 0], checks=STRICT, schedules=schedules)

    assert not written.mask().any()
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        launch(load.format(at=0, to=4))
    launch(store.format(at=0))
    launch(store.format(at=last))
    with pytest.raises(ptx.Trap):
        launch(store.format(at=8) + "trap;")
    assert np.flatnonzero(written.mask()).tolist() == [0, 1, 2, 3, *range(last, size)]
    launch(load.format(at=0, to=16))
    launch(load.format(at=last, to=20))
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        launch(load.format(at=8, to=4))
    assert buffer.array.view(np.uint32)[[0, 4, 5, -1]].tolist() == [7] * 4


def test_written_bytes_fit_their_buffer() -> None:
    buffer = ptx.Buffer(np.zeros(64, np.uint8), "out", initialised=ptx.WrittenBytes(32))
    with pytest.raises(ptx.ArgumentMismatch, match="initialised is those of 32 bytes"):
        run("ret;", buffer)


def test_written_bytes_are_of_one_buffer() -> None:
    written = ptx.WrittenBytes(64)
    one, other = (ptx.Buffer(np.zeros(64, np.uint8), name, initialised=written) for name in ("one", "other"))
    with pytest.raises(ptx.ArgumentMismatch, match="its WrittenBytes are those of one; it needs its own"):
        run("ret;", one, other)
    run("ret;", one, one)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copied(written)


def test_written_bytes_of_copies_from_the_host() -> None:
    memory, written = ptx.DeviceMemory(), ptx.WrittenBytes(64)
    address = memory.place(ptx.Buffer(np.zeros(64, np.uint8), "array", initialised=written))
    memory.write(address + 8, bytes(4))
    assert np.flatnonzero(memory.written(address, 64)).tolist() == [8, 9, 10, 11]
    assert np.flatnonzero(memory.written(address + 9, 4)).tolist() == [0, 1, 2]


def test_garbage_that_is_collected_while_memory_is_given_back() -> None:
    # Whoever holds the lock may make the garbage collector run, and what it collects gives memory back.
    with pages._ZEROS._lock:
        pages.cleared(untouched((1 << 17,)), 0)
