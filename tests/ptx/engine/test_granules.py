"""Records of accesses by pages: what each byte is known for, and races beside, across and at the borders of pages."""

from __future__ import annotations

import numpy as np
import pytest
from support.ptx_kernel import run, text
from support.ptx_ways import Way, ways

from refmoe import ptx
from refmoe.ptx.engine.order.granules import Granules
from refmoe.ptx.state import pages
from refmoe.ptx.state.pages import PAGE, resident_bytes

SIZE = 3 * PAGE + 96


@pytest.fixture
def nothing_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launch before has left memory whose pages are resident already."""
    monkeypatch.setattr(pages, "_ZEROS", pages.Spare())


def slot(granules: Granules, byte: int) -> int:
    """Where the records of a byte lie, by the formula of the module."""
    page, within = divmod(byte, PAGE)
    return page * PAGE + (within >> int(granules.states[page]) - 1)


@pytest.mark.parametrize("seed", range(8))
def test_every_byte_keeps_its_records_whatever_splits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    granules = Granules(SIZE, 3)
    known = np.zeros((5, SIZE), np.int64)
    # Few accesses of each kind, so that wide ones come after narrow ones and the other way round.
    for record in range(1, 200):
        width = int(rng.choice([1, 2, 4, 8, 16, 32]))
        count = int(rng.integers(1, 6))
        index = np.unique(rng.integers(0, SIZE // width, count)) * width
        at, row = granules.cover(index, width)
        column = int(rng.integers(0, 5))
        granules.records[column, at] = record
        whose = np.arange(len(index)) if row is None else row
        begins = [granules.byte(int(each)) for each in at]
        assert all(index[i] <= begin < index[i] + width for i, begin in zip(whose, begins, strict=True))
        for begin in index:
            known[column, begin : begin + width] = record
    places = [slot(granules, byte) if granules.states[byte // PAGE] else byte for byte in range(SIZE)]
    np.testing.assert_array_equal(granules.records[:, places], known)
    assert granules.accessed == np.count_nonzero(known.any(axis=0))


def test_ranges_are_the_slots_of_their_bytes() -> None:
    granules = Granules(SIZE, 1)
    granules.cover(np.array([16]), 1)
    granules.cover(np.array([PAGE]), 4)
    first = np.array([PAGE - 256, 2 * PAGE - 16])
    granules.prepare(first, 512, 16)
    assert granules.states.tolist() == [1, 3, 5, 0]
    found: list[list[int]] = [[], []]
    for number, slots in granules.ranges(first, 512):
        found[number] += range(slots.start, slots.stop)
    for number, begin in enumerate(first.tolist()):
        assert found[number] == sorted({slot(granules, byte) for byte in range(begin, begin + 512)})


@pytest.mark.parametrize("seed", range(6))
def test_a_record_is_written_for_every_granule_of_a_range(seed: int) -> None:
    rng = np.random.default_rng(seed)
    granules = Granules(SIZE, 1)
    if seed % 2:
        # Ranges in pages of different granules.
        granules.cover(np.array([16]), 1)
        granules.cover(np.array([PAGE]), 4)
    span = (16, 96, PAGE // 2)[seed // 2]
    first = span * np.sort(rng.choice(SIZE // span, 4, replace=False))
    granules.prepare(first, span, 16)
    records = np.arange(1, 5)
    granules.write(first, span, records)
    wanted = np.zeros(SIZE, np.int64)
    for begin, record in zip(first.tolist(), records.tolist(), strict=True):
        wanted[begin : begin + span] = record
    at = [slot(granules, byte) if granules.states[byte // PAGE] else byte for byte in range(SIZE)]
    np.testing.assert_array_equal(granules.writes[at], wanted)
    # And for nothing else.
    assert np.count_nonzero(granules.writes) == np.unique(np.array(at)[wanted != 0]).size


@pytest.mark.usefixtures("nothing_spare")
def test_a_byte_makes_only_its_own_page_fine() -> None:
    granules = Granules(1 << 26, 2)
    index = np.arange(0, 1 << 20, 4)
    at, _ = granules.cover(index, 4)
    granules.reads[0, at] = 1
    before = resident_bytes(granules.records)
    # Two bytes of records for each byte, in one column of the four.
    assert before == 2 << 20
    at, _ = granules.cover(np.array([12345]), 1)
    granules.writes[at] = 2
    assert resident_bytes(granules.records) == before + 6 * PAGE + PAGE
    assert np.unique(granules.states).tolist() == [0, 1, 3]
    assert [granules.states[page] for page in (2, 3, 4)] == [3, 1, 3]


@pytest.mark.usefixtures("nothing_spare")
def test_a_page_that_splits_makes_nothing_resident_beside_its_records() -> None:
    granules = Granules(1 << 20, 2)
    at, _ = granules.cover(np.array([PAGE + 16, PAGE + 3072]), 16)
    granules.writes[at] = 1, 2
    assert resident_bytes(granules.records) == PAGE
    granules.cover(np.array([PAGE]), 1)
    # Sixteen records of each now: the first in the first page of the system's, the second in the seventh of eight.
    assert np.flatnonzero(granules.writes).tolist() == [PAGE + k for k in (*range(16, 32), *range(3072, 3088))]
    assert resident_bytes(granules.records) == 2 * PAGE


@pytest.mark.usefixtures("nothing_spare")
def test_nothing_is_resident_before_the_first_access() -> None:
    granules = Granules(1 << 30, 2)
    assert resident_bytes(granules.records) == resident_bytes(granules.states) == 0
    # Reading records that nobody wrote costs nothing either.
    at, _ = granules.cover(np.array([1 << 29]), 4)
    assert granules.writes[at].tolist() == [0]
    assert resident_bytes(granules.records) == 0


# Block 0 writes a range by words or vectors, then block 1, which nothing orders, touches one byte of it.
ACROSS = """
    setp.ne.u32 %p1, %r60, 0;
    @%p1 bra SECOND;
    mul.wide.u32 %d3, %r1, {width};
    add.s64 %d3, %d3, %d0;
    {store}
    add.s64 %d3, %d3, {half};
    {store}
    ret;
SECOND:
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra END;
    cvt.u64.u32 %d4, %r0;
    add.s64 %d4, %d4, %d0;
    {touch}
END: ret;
"""
STORES = {
    4: "st.global.u32 [%d3], %r1;",
    8: "st.global.v2.u32 [%d3], {%r1, %r1};",
    16: "st.global.v4.u32 [%d3], {%r1, %r1, %r1, %r1};",
}
TOUCHES = {"load": ("ld.global.u8 %h1, [%d4];", "write-read"), "store": ("st.global.u8 [%d4], 77;", "write-write")}


def launch(body: str, out: object, n: int, grid: int, block: int, way: Way) -> None:
    module = ptx.Module.parse(text(body), name="test.ptx")
    ptx.launch(module, "k", (grid, 1, 1), (block, 1, 1), [out, None, n], step_budget=20000, profile=way)


@ways
@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("width", STORES)
def test_a_byte_of_what_another_block_wrote(width: int, touch: str, way: Way) -> None:
    instruction, kind = TOUCHES[touch]
    half = 1024 * width
    body = ACROSS.replace("{width}", str(width)).replace("{half}", str(half)).replace("{store}", STORES[width])
    body, end = body.replace("{touch}", instruction), 2 * half
    # Borders of pages from both sides, and the middle of one.
    for byte in (0, 5, PAGE - 1, PAGE, end - 1):
        out = np.full(end + PAGE, 0xEE, np.uint8)
        with pytest.raises(ptx.RaceError) as caught:
            launch(body, out, byte, 2, 1024, way)
        race = caught.value
        assert (race.kind, race.offset, race.block, race.other_block) == (kind, byte, (1, 0, 0), (0, 0, 0))
        assert race.other_thread == (byte % half // width, 0, 0)
        assert (out == 0xEE).all()
    out = np.zeros(end + PAGE, np.uint8)
    launch(body, out, end, 2, 1024, way)
    assert out[end] == (77 if touch == "store" else 0)


@ways
def test_bytes_beside_words_in_one_warp(way: Way) -> None:
    # Lane t stores the words t of both pages; a byte of the first page's end, then words across the border, one each.
    body = """
        mul.wide.u32 %d3, %r1, 4;
        add.s64 %d3, %d3, %d0;
        add.s64 %d4, %d3, 4032;
        st.global.u32 [%d4], %r1;
        bar.warp.sync -1;
        cvt.u64.u32 %d5, %r1;
        add.s64 %d5, %d5, %d0;
        st.global.u8 [%d5 + 4032], %r1;
        bar.warp.sync -1;
        xor.b32 %r3, %r1, 1;
        mul.wide.u32 %d6, %r3, 4;
        add.s64 %d6, %d6, %d0;
        {sync}
        ld.global.u32 %r4, [%d6 + 4032];
        st.global.u32 [%d6 + 4032], %r4;
        ret;
    """
    out = np.zeros(2 * PAGE, np.uint8)
    launch(body.replace("{sync}", ""), out, 0, 1, 32, way)
    wanted = np.arange(32, dtype=np.uint32).view(np.uint8).copy()
    wanted[:32] = np.arange(32)
    np.testing.assert_array_equal(out[4032:4160], wanted)


@ways
@pytest.mark.parametrize("ordered", [True, False])
def test_a_warp_whose_lanes_are_in_pages_of_different_granules(ordered: bool, way: Way) -> None:
    # Page 0 is byte-fine, page 1 has words, page 2 is new: warp 1 then reads a word of each where warp 0 wrote.
    body = """
        setp.ge.u32 %p1, %r1, 32;
        mul.wide.u32 %d3, %r1, 4;
        add.s64 %d3, %d3, %d0;
        @%p1 bra NEXT;
        st.global.u32 [%d3], %r1;
        st.global.u32 [%d3 + 4096], %r1;
        cvt.u64.u32 %d4, %r1;
        add.s64 %d4, %d4, %d0;
        bar.warp.sync -1;
        st.global.u8 [%d4 + 512], %r1;
    NEXT:
        {sync}
        @!%p1 bra END;
        sub.u32 %r3, %r1, 32;
        rem.u32 %r4, %r3, 3;
        mul.wide.u32 %d5, %r4, 4096;
        mul.wide.u32 %d6, %r3, 4;
        add.s64 %d5, %d5, %d6;
        add.s64 %d5, %d5, %d0;
        ld.global.u32 %r5, [%d5];
        st.global.u32 [%d5 + 1024], %r5;
    END: ret;
    """
    out = np.zeros(3 * PAGE, np.uint8)
    if ordered:
        launch(body.replace("{sync}", "bar.sync 0;"), out, 0, 1, 64, way)
        words = out.view(np.uint32).reshape(3, -1)[:, 256 : 256 + 32]
        lane = np.arange(32)
        np.testing.assert_array_equal(words[lane % 3, lane], np.where(lane % 3 == 2, 0, lane))
        return
    with pytest.raises(ptx.RaceError) as caught:
        launch(body.replace("{sync}", ""), out, 0, 1, 64, way)
    race = caught.value
    assert (race.kind, race.thread, race.other_thread, race.offset) == ("write-read", (32, 0, 0), (0, 0, 0), 0)


@ways
def test_a_race_in_the_page_of_a_later_lane(way: Way) -> None:
    # Block 0 makes page 0 byte-fine and writes word 20 of page 1; lane 20 of block 1 reads it, the others page 0.
    body = """
        setp.ne.u32 %p1, %r60, 0;
        setp.eq.u32 %p2, %r1, 20;
        mul.wide.u32 %d3, %r1, 4;
        add.s64 %d3, %d3, %d0;
        @%p1 bra READ;
        @!%p2 bra END;
        st.global.u8 [%d0], 1;
        st.global.u32 [%d0 + 4176], 1;
        bra END;
    READ:
        @%p2 add.s64 %d3, %d3, 4096;
        @!%p2 add.s64 %d3, %d3, 2048;
        ld.global.u32 %r3, [%d3];
    END: ret;
    """
    with pytest.raises(ptx.RaceError) as caught:
        launch(body, np.zeros(2 * PAGE, np.uint8), 0, 2, 32, way)
    race = caught.value
    assert (race.kind, race.block, race.thread, race.offset) == ("write-read", (1, 0, 0), (20, 0, 0), 4176)


@ways
def test_reads_survive_the_split_of_their_page(way: Way) -> None:
    # Two blocks read a vector, a third writes a byte of it: the second reader's record has to be in every part.
    body = """
        setp.eq.u32 %p1, %r60, 2;
        @%p1 bra WRITE;
        ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%d0 + 8176];
        ret;
    WRITE:
        st.global.u8 [%d0 + 8185], 1;
        ret;
    """
    with pytest.raises(ptx.RaceError) as caught:
        launch(body, np.zeros(2 * PAGE, np.uint8), 0, 3, 1, way)
    assert (caught.value.kind, caught.value.offset, caught.value.block) == ("read-write", 8185, (2, 0, 0))


def test_shared_memory_of_several_blocks_in_one_page() -> None:
    # Blocks of 128 bytes share a page of records; one of them splits it between a write and a read of the others.
    body = """
        mov.u32 %r3, cell;
        mad.lo.u32 %r4, %r1, 4, %r3;
        st.shared.u32 [%r4], %r2;
        {sync}
        setp.ne.u32 %p1, %r60, 3;
        @%p1 bra NEXT;
        add.u32 %r5, %r3, %r1;
        ld.shared.u8 %h1, [%r5];
    NEXT:
        xor.b32 %r6, %r4, 64;
        ld.shared.u32 %r7, [%r6];
        st.global.u32 [%d2], %r7;
        ret;
    """
    cells = ".shared .align 16 .b8 cell[128];"
    out = np.zeros(8 * 32, np.uint32)
    run(body.replace("{sync}", "bar.sync 0;"), out, grid=(8, 1, 1), declarations=cells)
    np.testing.assert_array_equal(out, np.arange(8 * 32) ^ 16)
    with pytest.raises(ptx.RaceError) as caught:
        run(body.replace("{sync}", ""), out, grid=(8, 1, 1), declarations=cells)
    assert caught.value.kind == "write-read"


# A byte makes the page fine. Some first lanes of one block access vectors there, and one lane of another block a byte.
FINE = """
    cvt.u64.u32 %d4, %r0;
    add.s64 %d4, %d4, %d0;
    mul.wide.u32 %d3, %r1, {width};
    add.s64 %d3, %d3, %d0;
    setp.ne.u32 %p1, %r60, {single};
    @%p1 bra MANY;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra END;
    {byte}
    ret;
MANY:
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra WHOLE;
    st.global.{fine} [%d0 + 3072], 1;
WHOLE:
    setp.ge.u32 %p2, %r1, {lanes};
    @%p2 bra END;
    {many}
END: ret;
"""
LOADS = {
    4: "ld.global.u32 %r3, [%d3];",
    8: "ld.global.v2.u32 {%r3, %r4}, [%d3];",
    16: "ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%d3];",
}


@ways
@pytest.mark.parametrize("lanes", [1, 7, 32])
@pytest.mark.parametrize(("width", "fine"), [(4, "u8"), (4, "u16"), (8, "u32"), (16, "u8")])
@pytest.mark.parametrize(("many", "single"), [("store", "load"), ("store", "store"), ("load", "store")])
@pytest.mark.parametrize("first", [0, 1], ids=["byte-first", "byte-last"])
def test_whole_warps_in_a_page_of_finer_granules(
    first: int, many: str, single: str, width: int, fine: str, lanes: int, way: Way
) -> None:
    body = FINE.replace("{width}", str(width)).replace("{single}", str(first)).replace("{fine}", fine)
    # What is read is used: of values that nobody uses a race is a warning.
    byte = f"{TOUCHES['load'][0]} st.global.u8 [%d0 + 4090], %h1;" if single == "load" else TOUCHES["store"][0]
    vector = f"{LOADS[width]} st.global.u32 [%d3 + 4096], %r3;" if many == "load" else STORES[width]
    body = body.replace("{lanes}", str(lanes)).replace("{byte}", byte).replace("{many}", vector)
    end = lanes * width
    grain = {"u8": 1, "u16": 2, "u32": 4}[fine]
    for place in sorted({0, width + 1, end // 2 + 3, end - 1}):
        if place >= end:
            continue
        with pytest.raises(ptx.RaceError) as caught:
            launch(body, np.full(2 * PAGE, 0xEE, np.uint8), place, 2, 32, way)
        race, thread = caught.value, place // width
        threads = {race.block[0]: race.thread, race.other_block[0]: race.other_thread}
        assert threads == {first: (0, 0, 0), 1 - first: (thread, 0, 0)}
        # Where the byte came first its page may have had granules of a byte before.
        assert race.offset in (place, place // grain * grain)
    launch(body, np.full(2 * PAGE, 0xEE, np.uint8), end, 2, 32, way)


# Threads store bytes and read, by words, those of another one, over which they then write.
BITS = """
    shl.b32 %r5, %r1, 2;
    mov.u32 %r6, bits;
    add.u32 %r6, %r6, %r5;
    st.shared.u8 [%r6], %r1;
    st.shared.u8 [%r6 + 1], %r1;
    st.shared.u8 [%r6 + 2], %r1;
    st.shared.u8 [%r6 + 3], %r1;
    {between}
    xor.b32 %r7, %r5, {other};
    mov.u32 %r6, bits;
    add.u32 %r6, %r6, %r7;
    ld.shared.u32 %r8, [%r6];
    {behind}
    not.b32 %r10, %r8;
    st.shared.u32 [%r6], %r10;
    st.global.u32 [%d2], %r8;
    ret;
"""
FIRST_WORD = "ld.shared.u32 %r9, [bits]; st.global.u32 [%d2 + 4096], %r9;"


@ways
@pytest.mark.parametrize(
    ("other", "between", "behind", "kind"),
    [
        (0, "", "", None),
        (4, "bar.warp.sync -1;", "", None),
        (4, "", "", "write-read"),
        (128, "bar.sync 0;", "", None),
        (128, "bar.warp.sync -1;", "", "write-read"),
        (
            0,
            "bar.sync 0; ld.shared.u32 %r9, [bits]; st.global.u32 [%d2 + 4096], %r9;",
            "bar.warp.sync -1;",
            "read-write",
        ),
        (0, "bar.sync 0; ld.shared.u32 %r9, [bits];", "bar.sync 0;", None),
    ],
)
def test_words_of_bytes_of_shared_memory(other: int, between: str, behind: str, kind: str | None, way: Way) -> None:
    body = BITS.replace("{other}", str(other)).replace("{between}", between).replace("{behind}", behind)
    module = ptx.Module.parse(text(body, declarations=".shared .align 16 .b8 bits[1024];"), name="test.ptx")
    out = np.zeros(2048, np.uint32)

    def run() -> None:
        ptx.launch(module, "k", (4, 1, 1), (256, 1, 1), [out, None, 0], profile=way)

    if kind is not None:
        with pytest.raises(ptx.RaceError) as caught:
            run()
        assert caught.value.kind == kind
        return
    run()
    thread = np.arange(256) ^ other // 4
    np.testing.assert_array_equal(out[:1024].reshape(4, 256), np.tile((thread & 255) * 0x01010101, (4, 1)))
