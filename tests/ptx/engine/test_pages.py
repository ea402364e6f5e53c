"""Memory that costs nothing until it is touched; arrays of the caller's that launches write in place."""

from __future__ import annotations

import gc
import mmap
import weakref
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import text
from support.ptx_ways import Way, ways

from refmoe import ptx
from refmoe.ptx.state import pages
from refmoe.ptx.state.memory import Arena, owned_region
from refmoe.ptx.state.pages import PAGE, POISON, Journal, resident_bytes, untouched

LAX = ptx.Checks(uninitialised=False)


def launch(body: str, args: list[Any], way: Way, block: int = 32, **keywords: Any) -> ptx.LaunchResult:
    module = ptx.Module.parse(text(body), name="test.ptx")
    return ptx.launch(module, "k", (1, 1, 1), (block, 1, 1), args, step_budget=20000, profile=way, **keywords)


def aligned(size: int, offset: int = 0) -> np.ndarray:
    """uint8 [size] whose first byte lies `offset` bytes behind a multiple of 64."""
    room = np.zeros(size + 128, np.uint8)
    begin = -room.ctypes.data % 64 + offset
    return room[begin : begin + size]


# Pages


@pytest.mark.parametrize("size", [10, 1 << 12, 1 << 16, (1 << 16) + 8, 1 << 30])
def test_untouched_memory_is_zeros_that_are_not_resident(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # What an earlier launch gave back is resident.
    monkeypatch.setattr(pages, "_ZEROS", pages.Spare())
    array = untouched((size,))
    assert (array.shape, array.dtype, array.flags.writeable) == ((size,), np.uint8, True)
    assert not array[:PAGE].any()
    assert not array[-PAGE:].any()
    if size > 1 << 16:
        assert resident_bytes(array) == 0
        array[:: max(size // 4, 1)] = 1
        # One page of the system's each, and none around it.
        assert resident_bytes(array) == len(array[:: size // 4]) * mmap.PAGESIZE


def test_address_space_that_nobody_has() -> None:
    with pytest.raises(MemoryError, match="bytes of address space needed"):
        untouched((1 << 59,))


def test_a_journal_keeps_what_pages_held_first() -> None:
    data = np.arange(5 * PAGE + 100, dtype=np.int64).astype(np.uint8)
    before, journal = data.copy(), Journal(data)
    assert journal.written == []
    for index in ([PAGE + 4, PAGE + 8], [PAGE - 4], [5 * PAGE + 96], [PAGE + 4]):
        journal.keep(np.array(index))
        data[index] = 99
    assert journal.written == [(0, 2 * PAGE), (5 * PAGE, 5 * PAGE + 100)]
    assert (data != before).sum() == 4
    journal.undo()
    np.testing.assert_array_equal(data, before)
    assert journal.written == []


@pytest.fixture
def nothing_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launch before has left memory whose pages are resident already."""
    monkeypatch.setattr(pages, "_ZEROS", pages.Spare())
    monkeypatch.setattr(pages, "_SCRATCH", pages.Spare())


@pytest.mark.usefixtures("nothing_spare")
def test_regions_cost_nothing_until_they_are_touched() -> None:
    array = untouched((1 << 28,))
    region = Arena().add("big", "global", array, array.size, initialised=False, in_place=True)
    shared = owned_region("shared memory", "shared", 1 << 16, 1 << 10, refused=True)
    assert region.data is array
    assert region.valid is not None
    assert shared.valid is not None
    assert sum(map(resident_bytes, (region.data, region.valid, shared.data, shared.valid))) == 0
    region.write(4, np.array([1 << 20]), np.array([7], np.uint32))
    assert [resident_bytes(each) for each in (region.data, region.valid)] == [mmap.PAGESIZE] * 2
    assert region.read(4, np.array([1 << 20, 1 << 21])).tolist() == [7, 0xCDCDCDCD]
    assert region.bytes(4 << 20, 5).tolist() == [7, 0, 0, 0, POISON]
    with pytest.raises(ValueError, match="read-only"):
        region.words(4)[0] = 1


# Arrays in place

FILL = """
    mul.wide.u32 %d3, %r1, 512;
    add.s64 %d3, %d3, %d0;
    st.global.u32 [%d3], %r1;
    {then}
    ret;
"""
# Of a buffer of 4 pages: what is short, unaligned or neither.
SHAPES = {"in place": (4 * PAGE, 0), "with a tail": (4 * PAGE + 13, 0), "unaligned": (4 * PAGE, 4), "short": (3600, 0)}


@ways
@pytest.mark.parametrize("shape", SHAPES)
def test_a_launch_that_fails_puts_everything_back(shape: str, way: Way) -> None:
    size, offset = SHAPES[shape]
    lanes = min(32, -(-size // 512))
    out = aligned(size, offset)
    out[:] = np.arange(size) % 251
    before = out.copy()
    with pytest.raises(ptx.Trap):
        launch(FILL.replace("{then}", "trap;"), [out, None, 0], way, block=lanes)
    np.testing.assert_array_equal(out, before)
    launch(FILL.replace("{then}", ""), [out, None, 0], way, block=lanes)
    for lane in range(lanes):
        before[512 * lane : 512 * lane + 4] = np.array([lane], np.uint32).view(np.uint8)
    np.testing.assert_array_equal(out, before)


@ways
@pytest.mark.parametrize("other", [None, 0, 1, 255, 256, 4095])
@pytest.mark.parametrize("byte", [0, 1, POISON, 255])
def test_pages_of_one_byte_are_put_back(byte: int, other: int | None, way: Way) -> None:
    """Of such a page the byte is kept alone; `other` is where each page holds another one."""
    out = aligned(4 * PAGE)
    out[:] = byte
    if other is not None:
        out[other::PAGE] ^= 0x40
    out[2 * PAGE : 3 * PAGE] = byte ^ 0xFF
    before = out.copy()
    with pytest.raises(ptx.Trap):
        launch(FILL.replace("{then}", "trap;"), [out, None, 0], way)
    np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("check", [True, False], ids=["races", "no races"])
def test_a_launch_leaves_no_reference_to_an_array(check: bool) -> None:
    """Else a caller's memory is given back when garbage is collected, and not before."""
    out, read = np.zeros(4 * PAGE, np.uint8), np.zeros(PAGE, np.uint8)
    held = [weakref.ref(each) for each in (out, read)]
    gc.collect()
    gc.disable()
    try:
        module = ptx.Module.parse(text(FILL.replace("{then}", "")), name="test.ptx")
        ptx.launch(module, "k", (1, 1, 1), (32, 1, 1), [out, read, 0], checks=ptx.Checks(races=check))
        del out, read
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()


@ways
def test_the_last_bytes_of_an_odd_array_are_put_back(way: Way) -> None:
    out = aligned(PAGE + 7)
    out[:] = 5
    body = "add.s64 %d3, %d0, 4102; st.global.u8 [%d3], 9; {then} ret;"
    with pytest.raises(ptx.Trap):
        launch(body.replace("{then}", "trap;"), [out, None, 0], way, block=1)
    assert (out == 5).all()
    launch(body.replace("{then}", ""), [out, None, 0], way, block=1)
    assert np.flatnonzero(out != 5).tolist() == [PAGE + 6]


@ways
def test_atomics_and_copies_are_put_back(way: Way) -> None:
    out = np.zeros(PAGE, np.uint32)
    body = "atom.global.add.u32 %r3, [%d0 + 8192], 1; red.global.add.u32 [%d0 + 4], 1; {then} ret;"
    with pytest.raises(ptx.Trap):
        launch(body.replace("{then}", "trap;"), [out, None, 0], way)
    assert not out.any()
    launch(body.replace("{then}", ""), [out, None, 0], way)
    assert out[[1, 2048]].tolist() == [32, 32]
    assert np.count_nonzero(out) == 2


@pytest.mark.usefixtures("nothing_spare")
def test_a_journal_of_a_gigabyte_finds_its_pages() -> None:
    """They are looked for by hundreds; the last ones are no whole hundred."""
    pages = (1 << 18) + 3
    journal = Journal(untouched((pages * PAGE,)))
    written = [0, 511, 512, 70_000, pages - 4, pages - 1]
    journal.keep(np.array(written) * PAGE)
    assert journal.written == [
        (first * PAGE, (last + 1) * PAGE)
        for first, last in [(0, 0), (511, 512), *[(each, each) for each in written[3:]]]
    ]
    journal.undo()
    assert journal.written == []


def test_only_pages_that_were_written_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # What another launch gave back has resident pages of its own.
    monkeypatch.setattr(pages, "_SCRATCH", pages.Spare())

    class Keeper(Way):
        def attach(self, launch: Any) -> None:
            self.journals = [region.journal for region in launch.arena.regions]

    out, source = untouched((1 << 24,), np.uint32), np.zeros(1 << 12, np.uint32)
    out[40968 // 4] = 7
    source.flags.writeable = False
    keeper = Keeper(ways.args[1][0].view)
    buffer = ptx.Buffer(source, "in", writable=False)
    body = "ld.global.u32 %r3, [%d1]; st.global.u32 [%d0 + 40960], 1; st.global.u32 [%d0 + 81920], 1; ret;"
    launch(body, [out, buffer, 0], keeper)
    parameters, mine, theirs = keeper.journals
    assert parameters is theirs is None
    assert mine.written == [(begin, begin + PAGE) for begin in (40960, 81920)]
    # Of the second page, which held zeros, it is enough to know that.
    assert resident_bytes(mine.before) == mmap.PAGESIZE
    assert resident_bytes(out) == 2 * mmap.PAGESIZE


@ways
def test_a_read_only_array_is_read_where_it_lies(way: Way) -> None:
    source = untouched((1 << 27,))
    source[5 << 20] = 42
    source.flags.writeable = False
    out = np.zeros(32, np.uint32)
    buffer = ptx.Buffer(source, "in", writable=False)
    launch("ld.global.u8 %r3, [%d1 + 5242880]; st.global.u32 [%d2], %r3; ret;", [out, buffer, 0], way)
    assert out.tolist() == [42] * 32
    assert resident_bytes(source) == mmap.PAGESIZE


# Poison

READ = """
    setp.ne.u32 %p1, %r1, 3;
    @!%p1 st.global.u16 [%d1 + 14], 7;
    bar.warp.sync -1;
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d3, %d3, %d1;
    ld.global.u32 %r3, [%d3];
    st.global.u32 [%d2], %r3;
    ret;
"""


@ways
@pytest.mark.parametrize("size", [64, PAGE])
def test_what_nobody_wrote_reads_as_poison(size: int, way: Way) -> None:
    out, held = np.zeros(32, np.uint32), np.full(size, 0x11111111, np.uint32)
    launch(READ, [out, ptx.Buffer(held, "held", initialised=False), 0], way, checks=LAX)
    wanted = np.full(32, 0xCDCDCDCD, np.uint32)
    wanted[3] = 0x0007CDCD
    np.testing.assert_array_equal(out, wanted)
    # What the launch did not write is the caller's.
    kept = np.full(size, 0x11111111, np.uint32)
    kept[3] = 0x00071111
    np.testing.assert_array_equal(held, kept)
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        launch(READ, [out, ptx.Buffer(held, "held", initialised=False), 0], way)


@ways
def test_poison_for_some_lanes_of_a_load_from_two_buffers(way: Way) -> None:
    # Even lanes read a buffer that holds zeros, odd lanes one that nobody wrote.
    body = """
        and.b32 %r3, %r1, 1;
        setp.eq.u32 %p1, %r3, 1;
        selp.b64 %d3, %d1, %d0, %p1;
        ld.v2.u32 {%r4, %r5}, [%d3 + 4096];
        bar.warp.sync -1;
        add.u32 %r4, %r4, %r5;
        st.global.u32 [%d2], %r4;
        ret;
    """
    out = np.zeros(2 * PAGE, np.uint32)
    launch(body, [out, ptx.Buffer(np.zeros(2 * PAGE), "held", initialised=False), 0], way, checks=LAX)
    np.testing.assert_array_equal(out[:32], np.where(np.arange(32) % 2, 0x9B9B9B9A, 0))


@ways
def test_shared_and_local_memory_read_as_poison(way: Way) -> None:
    body = """
        .shared .align 16 .b8 ours[64];
        .local .align 16 .b8 mine[64];
        ld.shared.u32 %r3, [ours + 8];
        ld.local.u32 %r4, [mine + 8];
        xor.b32 %r3, %r3, %r4;
        add.u32 %r3, %r3, %r4;
        st.global.u32 [%d2], %r3;
        ret;
    """
    out = np.zeros(32, np.uint32)
    launch(body, [out, None, 0], way, checks=LAX)
    assert out.tolist() == [0xCDCDCDCD] * 32


# Masks


@ways
@pytest.mark.parametrize("kind", [np.uint8, np.uint32, "V12"])
@pytest.mark.parametrize("elements", [64, 2 * PAGE])
def test_a_mask_says_what_was_written(elements: int, kind: Any, way: Way) -> None:
    out = np.zeros(elements, kind)
    mask = np.zeros(elements, bool)
    mask[::7] = True
    wanted = mask.copy()
    launch(FILL.replace("512", "12").replace("{then}", ""), [ptx.Buffer(out, "out", mask), None, 0], way, block=4)
    written = np.zeros(out.nbytes, bool)
    for lane in range(4):
        written[12 * lane : 12 * lane + 4] = True
    wanted |= written.reshape(elements, -1).all(axis=1)
    np.testing.assert_array_equal(mask, wanted)


def test_a_mask_of_an_array_across_pages() -> None:
    # Elements of 12 bytes do not end with the pages: the one across a border is written by three stores.
    out, mask = np.zeros(2 * PAGE, "V12"), np.zeros(2 * PAGE, bool)
    body = "st.global.u32 [%d0 + 4092], 1; st.global.u32 [%d0 + 4096], 1; {third} ret;"
    way = ways.args[1][0]
    launch(body.replace("{third}", ""), [ptx.Buffer(out, "out", mask), None, 0], way, block=1)
    assert not mask.any()
    launch(body.replace("{third}", "st.global.u32 [%d0 + 4100], 1;"), [ptx.Buffer(out, "out", mask), None, 0], way, 1)
    assert np.flatnonzero(mask).tolist() == [341]


def test_a_launch_that_fails_leaves_the_mask_alone() -> None:
    out, mask = np.zeros(2 * PAGE, np.uint32), np.zeros(2 * PAGE, bool)
    with pytest.raises(ptx.Trap):
        launch(FILL.replace("{then}", "trap;"), [ptx.Buffer(out, "out", mask), None, 0], ways.args[1][0])
    assert not mask.any()
    assert not out.any()
