"""The short ways of native code, each beside the long one: bytes, records and verdicts are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import run
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx.engine import copies as engine_copies
from refmoe.ptx.engine.machine import Machine
from refmoe.ptx.engine.races import RaceShadow
from refmoe.ptx.native import copies, order
from refmoe.ptx.state.pages import POISON
from refmoe.ptx.state.records import LANE, SEVERAL

_LANES = 32

# Loads at equal distances


def _load_body(width: int, distance: int, lanes: int, begin: int) -> str:
    """Lane i < `lanes` loads `width` bytes at `begin + distance i`, and stores them at 16 i."""
    kind, registers = {1: ("u8", ["%r10"]), 4: ("u32", ["%r10"]), 8: ("v2.u32", ["%r10", "%r11"])}.get(
        width, ("v4.u32", ["%r10", "%r11", "%r12", "%r13"])
    )
    into = registers[0] if len(registers) == 1 else "{" + ", ".join(registers) + "}"
    stores = "\n".join(f"st.global.u32 [%d4+{4 * i}], {register};" for i, register in enumerate(registers))
    return f"""
    setp.ge.u32 %p0, %r1, {lanes};
    @%p0 bra done;
    mov.u32 %r20, {distance};
    mul.wide.s32 %d2, %r1, %r20;
    add.s64 %d3, %d1, %d2;
    ld.global.{kind} {into}, [%d3+{begin}];
    mul.wide.u32 %d4, %r1, 16;
    add.s64 %d4, %d4, %d0;
    {stores}
    done: ret;"""


@pytest.mark.parametrize("width", [1, 4, 8, 16])
@pytest.mark.parametrize("lanes", [1, 7, 31, 32])
@pytest.mark.parametrize("apart", thinned([0, 1, 2, 3, 255, 257, -1], 3))
def test_a_read_only_buffer_is_loaded_at_any_distance(width: int, lanes: int, apart: int) -> None:
    distance = apart * width
    begin = -31 * distance if distance < 0 else 0
    data = np.random.default_rng(width * lanes).integers(0, 256, 31 * abs(distance) + width, np.uint8)
    out = np.zeros((_LANES, 16), np.uint8)
    run(
        _load_body(width, distance, lanes, begin), out.reshape(-1).view(np.uint32),
        ptx.Buffer(data, "data", writable=False),
    )  # fmt: skip
    expected = np.zeros_like(out)
    for lane in range(lanes):
        first = begin + lane * distance
        expected[lane, :width] = data[first : first + width]
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("short", "kind"), [(0, None), (1, "out of bounds"), (16, "out of bounds")])
@pytest.mark.parametrize("lanes", [5, 32])
def test_the_last_lane_has_to_be_inside(short: int, kind: str | None, lanes: int) -> None:
    data = np.ones(48 * (lanes - 1) + 16 - short, np.uint8)
    out = np.zeros(_LANES * 4, np.uint32)
    arguments = (_load_body(16, 48, lanes, 0), out, ptx.Buffer(data, "data", writable=False))
    if kind is None:
        run(*arguments)
        return
    with pytest.raises(ptx.MemoryFault) as found:
        run(*arguments)
    assert (found.value.kind, found.value.thread) == (kind, (lanes - 1, 0, 0))


@pytest.mark.parametrize("distance", [8, 20, 40])
def test_lanes_have_to_be_aligned(distance: int) -> None:
    data = np.ones(2048, np.uint8)
    with pytest.raises(ptx.MemoryFault, match="misaligned") as found:
        run(_load_body(16, distance, 32, 0), np.zeros(128, np.uint32), ptx.Buffer(data, "data", writable=False))
    assert found.value.thread == (1, 0, 0)


def test_unwritten_bytes_of_some_first_lanes_are_found() -> None:
    written = np.ones(512, bool)
    written[16 * 6 + 3] = False
    data = ptx.Buffer(np.ones(512, np.uint8), "data", initialised=written, writable=False)
    # Lanes 0 to 5 do not touch it, and lane 6 does.
    run(_load_body(16, 16, 6, 0), np.zeros(128, np.uint32), data, checks=ptx.Checks(strict=True))
    with pytest.raises(ptx.MemoryFault, match="uninitialised") as found:
        run(_load_body(16, 16, 7, 0), np.zeros(128, np.uint32), data, checks=ptx.Checks(strict=True))
    assert found.value.thread == (6, 0, 0)


# Every access by Python, with the records that it leaves


def _records(
    monkeypatch: pytest.MonkeyPatch, body: str, by_python: bool, out: np.ndarray[Any, Any], **launch: Any
) -> tuple[bytes, list[np.ndarray[Any, Any]]]:
    """Bytes that a launch leaves, and the records of its last machine's shared memory and of all buffers."""
    kept: list[np.ndarray[Any, Any]] = []
    with monkeypatch.context() as patch:
        if by_python:
            patch.setattr(RaceShadow, "told", True)
            patch.setattr(Machine, "orders", lambda *_: order.OrderStatus.WRONG)
            patch.setattr(engine_copies.Copies, "_land_natively", lambda *_: False)

        release, granules = Machine.release, RaceShadow.release

        def note(shadow: RaceShadow) -> None:
            each = shadow.granules
            kept.extend([each.states.copy(), *(column.copy() for column in each.records)])

        def released(machine: Machine) -> None:
            note(machine.shared.shadow)
            release(machine)

        def forgotten(shadow: RaceShadow) -> None:
            note(shadow)
            granules(shadow)

        patch.setattr(Machine, "release", released)
        patch.setattr(RaceShadow, "release", forgotten)
        run(body, out, **launch)
    return out.tobytes(), kept


# Lane numbers in a word each, then what every lane does with shared memory.
_SHARED = ".shared .align 16 .b8 tile[8192];"
_ADDRESS = "mov.u32 %r5, tile; shl.b32 %r6, %r1, {shift}; add.u32 %r7, %r5, %r6;"
_WAYS = {
    "words": _ADDRESS.format(shift=2) + "st.shared.u32 [%r7], %r1; bar.sync 0; ld.shared.u32 %r8, [%r7];",
    "words of others": _ADDRESS.format(shift=2)
    + """st.shared.u32 [%r7], %r1; bar.sync 0; xor.b32 %r9, %r6, 4; add.u32 %r9, %r9, %r5; ld.shared.u32 %r8, [%r9];
    bar.sync 0; st.shared.u32 [%r9], %r8;""",
    "vectors": _ADDRESS.format(shift=4)
    + """st.shared.v4.u32 [%r7], {%r1, %r1, %r1, %r1}; bar.sync 0;
    ld.shared.v4.u32 {%r8, %r9, %r10, %r11}, [%r7];""",
    "rows": _ADDRESS.format(shift=4)
    + """st.shared.v4.u32 [%r7], {%r1, %r5, %r6, %r1}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r8, %r9, %r10, %r11}, [%r7]; bar.sync 0;
    st.shared.u32 [%r7], %r8;""",
    # Rows 48 bytes apart: side by side they would be one consecutive access.
    "rows of words": """mov.u32 %r5, tile; mul.lo.u32 %r6, %r1, 48; add.u32 %r7, %r5, %r6;
    st.shared.u32 [%r7], %r1; st.shared.u32 [%r7+4], %r5; st.shared.u32 [%r7+8], %r6; st.shared.u32 [%r7+12], %r1;
    bar.warp.sync -1; bar.sync 0; max.u32 %r9, %r1, 32; sub.u32 %r9, %r9, 32; setp.lt.u32 %p1, %r1, 32;
    @%p1 mov.u32 %r9, %r1; mul.lo.u32 %r9, %r9, 48; add.u32 %r9, %r9, %r5;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r8, %r9, %r10, %r11}, [%r9];""",
    # Packed, of which lanes load every other word, and across the end of a page.
    "packed rows": """mov.u32 %r5, tile+3552; mul.lo.u32 %r6, %r1, 32; add.u32 %r7, %r5, %r6;
    st.shared.u32 [%r7], %r1; st.shared.u32 [%r7+4], %r6; st.shared.u32 [%r7+8], %r1; bar.sync 0; and.b32 %r9, %r1, 31;
    mul.lo.u32 %r9, %r9, 32; add.u32 %r9, %r9, %r5;
    ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {%r8, %r10, %r11, %r12}, [%r9]; bar.sync 0;
    ldmatrix.sync.aligned.m8n16.x2.shared.b8x16.b4x16_p64 {%r8, %r10}, [%r9]; bar.sync 0; add.u32 %r8, %r8, %r11;""",
    # Rows of matrices that are rows of others too.
    "rows of two matrices": _ADDRESS.format(shift=4)
    + """st.shared.u32 [%r7], %r1; st.shared.u32 [%r7+4], %r5; st.shared.u32 [%r7+8], %r6; st.shared.u32 [%r7+12], %r1;
    bar.sync 0; and.b32 %r9, %r1, 15; xor.b32 %r9, %r9, 3; shr.u32 %r10, %r1, 4; and.b32 %r10, %r10, 1;
    add.u32 %r9, %r9, %r10; shl.b32 %r9, %r9, 4; add.u32 %r9, %r9, %r5;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r8, %r10, %r11, %r12}, [%r9]; bar.sync 0; st.shared.u32 [%r7], %r8;""",
    "rows at one place": _ADDRESS.format(shift=4)
    + """st.shared.v4.u32 [%r7], {%r1, %r5, %r6, %r1}; bar.sync 0; and.b32 %r9, %r6, 0x70; add.u32 %r9, %r9, %r5;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%r9]; and.b32 %r9, %r6, 0x30; add.u32 %r9, %r9, %r5;
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r8, %r10}, [%r9];""",
    "bytes, then words": _ADDRESS.format(shift=2)
    + """st.shared.u32 [%r7], %r1; bar.sync 0; add.u32 %r9, %r5, %r1; ld.shared.u8 %r8, [%r9]; bar.sync 0;
    st.shared.u32 [%r7], %r8;""",
    # A place for each quad, for every other lane of it, and for every other lane of any.
    "bytes of quads": """mov.u32 %r5, tile; add.u32 %r7, %r5, %r1; st.shared.u8 [%r7], %r1; bar.sync 0;
    shr.u32 %r9, %r1, 2; and.b32 %r9, %r9, 7; mad.lo.u32 %r9, %r9, 3, %r5; ld.shared.u8 %r8, [%r9];""",
    "bytes of pairs": """mov.u32 %r5, tile; add.u32 %r7, %r5, %r1; st.shared.u8 [%r7], %r1; bar.sync 0;
    shr.u32 %r9, %r1, 2; and.b32 %r9, %r9, 7; and.b32 %r10, %r1, 1; mad.lo.u32 %r9, %r10, 16, %r9;
    add.u32 %r9, %r9, %r5; ld.shared.u8 %r8, [%r9];""",
    "bytes of either lane": """mov.u32 %r5, tile; add.u32 %r7, %r5, %r1; st.shared.u8 [%r7], %r1; bar.sync 0;
    and.b32 %r9, %r1, 1; add.u32 %r9, %r9, %r5; ld.shared.u8 %r8, [%r9];""",
    "bytes read again": """mov.u32 %r5, tile; add.u32 %r7, %r5, %r1; st.shared.u8 [%r7], %r1; bar.sync 0;
    shr.u32 %r9, %r1, 2; and.b32 %r9, %r9, 7; mad.lo.u32 %r9, %r9, 3, %r5; ld.shared.u8 %r8, [%r9];
    and.b32 %r10, %r1, 1; add.u32 %r9, %r9, %r10; ld.shared.u8 %r10, [%r9]; ld.shared.u8 %r10, [%r9];
    mad.lo.u32 %r8, %r8, 256, %r10; bar.sync 0; ld.shared.u8 %r10, [%r9];""",
    "copies": _ADDRESS.format(shift=4)
    + """mul.wide.u32 %d3, %r1, 16; add.s64 %d3, %d3, %d1;
    cp.async.cg.shared.global [%r7], [%d3], 16; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
    xor.b32 %r9, %r6, 16; add.u32 %r9, %r9, %r5; ld.shared.v4.u32 {%r8, %r10, %r11, %r12}, [%r9]; bar.sync 0;
    cp.async.ca.shared.global [%r7], [%d3], 8, 4; cp.async.wait_all; ld.shared.u32 %r8, [%r7];""",
}


@pytest.mark.parametrize(
    ("threads", "way"),
    # An ldmatrix needs whole warps.
    [(threads, way) for threads in (32, 96, 100) for way in _WAYS if threads % 32 == 0 or "ldmatrix" not in _WAYS[way]],
)
def test_records_are_those_that_python_makes(monkeypatch: pytest.MonkeyPatch, way: str, threads: int) -> None:
    body = _WAYS[way] + "st.global.u32 [%d2], %r8; ret;"
    source = np.random.default_rng(threads).integers(0, 1 << 32, 4 * threads, np.uint32)
    launch = {"block": (threads, 1, 1), "declarations": _SHARED, "source": source}
    found = _records(monkeypatch, body, False, np.zeros(threads, np.uint32), **launch)
    expected = _records(monkeypatch, body, True, np.zeros(threads, np.uint32), **launch)
    assert found[0] == expected[0]
    assert len(found[1]) == len(expected[1])
    for mine, theirs in zip(found[1], expected[1], strict=True):
        assert _plain(mine).tobytes() == _plain(theirs).tobytes()


def _plain(records: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Records; of one that stands for several lanes it does not matter which lane it names."""
    return np.where(records & SEVERAL != 0, records & ~LANE, records)


@pytest.mark.parametrize(
    "way",
    thinned(
        ["words of others", "rows", "rows of words", "packed rows", "bytes of quads", "bytes of pairs", "copies"], 2
    ),
)
def test_a_missing_barrier_is_found_in_both_ways(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    body = _WAYS[way].replace("bar.sync 0;", "", 1) + "ret;"
    source = np.arange(512, dtype=np.uint32)
    told = []
    for by_python in (False, True):
        with pytest.raises(ptx.RaceError) as error:
            _records(
                monkeypatch, body, by_python, np.zeros(128, np.uint32),
                block=(128, 1, 1), declarations=_SHARED, source=source,
            )  # fmt: skip
        told.append((error.value.kind, error.value.line, error.value.thread, error.value.space, error.value.certain))
    assert told[0] == told[1]


def test_a_matrix_of_two_writers_comes_after_both() -> None:
    # Warp 2 reads rows of both others, and has met the first alone, or both.
    body = """
        mov.u32 %r5, tile; shr.u32 %r21, %r1, 5; and.b32 %r4, %r1, 31; mad.lo.u32 %r7, %r4, 48, %r5;
        setp.eq.u32 %p0, %r21, 2; setp.lt.u32 %p1, %r4, 16; setp.eq.u32 %p2, %r21, 0; xor.pred %p3, %p1, %p2;
        @%p0 bra READ;
        @%p3 bra MEET;
        st.shared.u32 [%r7], %r1; st.shared.u32 [%r7+4], %r1; st.shared.u32 [%r7+8], %r1; st.shared.u32 [%r7+12], %r1;
    MEET:
        bar.warp.sync -1;
        setp.eq.u32 %p2, %r21, {alone};
        @%p2 bra END;
    READ:
        bar.sync 1, {met};
        @!%p0 bra END;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r8, %r9, %r10, %r11}}, [%r7];
        mad.lo.u32 %r4, %r4, 4, 0; cvt.u64.u32 %d4, %r4; add.u64 %d4, %d4, %d0; add.u32 %r8, %r8, %r11;
        st.global.u32 [%d4], %r8;
    END:
        ret;"""
    options = {"block": (96, 1, 1), "declarations": _SHARED}
    out = np.zeros(32, np.uint32)
    run(body.format(met=96, alone=3), out, **options)
    # Lane 4 r + t has row r of the first matrix, which warp 0 wrote, and row r + 24, which warp 1 did.
    assert out.tolist() == [lane // 4 + 32 + 24 + lane // 4 for lane in range(_LANES)]
    with pytest.raises(ptx.RaceError, match=r"thread \(48, 0, 0\)"):
        run(body.format(met=64, alone=1), out, **options)


def test_places_of_lanes_that_read_before() -> None:
    # Thread 0 stores 128 bytes in bulk, and its warp loads some of them, a byte by the lanes of each quad.
    body = """
        mov.u32 %r5, tile; shr.u32 %r21, %r1, 5; add.u32 %r7, %r5, %r1;
        st.shared.u8 [%r7], %r1; st.shared.u8 [%r7+64], %r1;
        fence.proxy.async.shared::cta;
        bar.sync 0;
        setp.eq.u32 %p1, %r21, 1; setp.ne.u32 %p2, %r1, 0;
        @%p1 bra SECOND;
        @%p2 bra LOAD;
        cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r5], 128;
        cp.async.bulk.commit_group;
        {waits}
    LOAD:
        bar.warp.sync -1;
        shr.u32 %r9, %r1, 2; add.u32 %r9, %r9, %r5; ld.shared.u8 %r8, [%r9];
    SECOND:
        bar.sync 0;
        setp.gt.u32 %p2, %r1, 39;
        @!%p1 bra END;
        @%p2 bra END;
        st.shared.u8 [%r7+-32], 5;
    END:
        ret;"""
    options = {"block": (64, 1, 1), "declarations": _SHARED}
    run(body.format(waits="cp.async.bulk.wait_group.read 0;"), np.zeros(32, np.uint32), **options)
    with pytest.raises(ptx.RaceError, match=r"thread \(32, 0, 0\) writes") as caught:
        run(body.format(waits=""), np.zeros(32, np.uint32), **options)
    assert caught.value.offset == 0


def test_loads_at_a_distance_race_with_stores_of_others() -> None:
    body = """
        mul.wide.u32 %d3, %r1, 8; add.s64 %d3, %d3, %d0;
        setp.eq.u32 %p1, %r60, 0;
        @%p1 bra writes;
        ld.global.u32 %r8, [%d3]; ret;
        writes: st.global.u32 [%d3], %r1; ret;"""
    with pytest.raises(ptx.RaceError) as found:
        run(body, np.zeros(64, np.uint32), grid=(2, 1, 1))
    assert (found.value.kind, found.value.offset) in {("write-read", 0), ("read-write", 0)}


@pytest.mark.parametrize("word", [0, 1, 2, 3])
def test_every_granule_of_a_copy_counts(word: int) -> None:
    # Warp 1 reads one word before the barrier and another one behind it; then warp 0 copies over all four.
    ordered = 4 * ((word + 1) % 4)
    body = f"""
        mov.u32 %r5, tile; shl.b32 %r6, %r1, 2; add.u32 %r7, %r5, %r6; st.shared.u32 [%r7], %r1; bar.sync 0;
        setp.ne.u32 %p1, %r1, 32; @%p1 bra meet; ld.shared.u32 %r8, [%r5+{ordered}]; {{first}}
        meet: bar.sync 0;
        setp.ne.u32 %p1, %r1, 32; @%p1 bra copy; {{second}} ret;
        copy: setp.ne.u32 %p1, %r1, 0; @%p1 bra done;
        cp.async.cg.shared.global [%r5], [%d1], 16; cp.async.wait_all;
        done: ret;"""
    read = f"ld.shared.u32 %r9, [%r5+{4 * word}];"
    launch: dict[str, Any] = {"block": (64, 1, 1), "declarations": _SHARED, "source": np.arange(4, dtype=np.uint32)}
    run(body.replace("{first}", read).replace("{second}", ""), np.zeros(64, np.uint32), **launch)
    with pytest.raises(ptx.RaceError):
        run(body.replace("{first}", "").replace("{second}", read), np.zeros(64, np.uint32), **launch)


# Copies


@pytest.mark.parametrize(("width", "size"), [(4, 4), (8, 8), (16, 16), (16, 12), (16, 4), (8, 4)])
def test_copies_land_as_they_do_in_numpy(width: int, size: int) -> None:
    rng = np.random.default_rng(width * size)
    data, valid = rng.integers(0, 256, 4096, np.uint8), np.zeros(4096, np.uint8)
    source = rng.integers(0, 256, 1000, np.uint8)
    index = rng.permutation(4096 // width)[:100] * width
    origin = rng.integers(0, (1000 - width) // 4, 100) * 4
    expected, written = data.copy(), valid.copy()
    copies.functions().poison(data.ctypes.data, valid.ctypes.data, index.ctypes.data, 100, width)
    for at in index:
        expected[at : at + width] = POISON
    assert (data.tobytes(), valid.tobytes()) == (expected.tobytes(), written.tobytes())
    whole = np.full(1000, 255, np.uint8)
    assert _landed(data, valid, index, source, whole, origin, width, size) == 0
    for at, begin in zip(index, origin, strict=True):
        expected[at : at + width], written[at : at + width] = 0, 255
        expected[at : at + size] = source[begin : begin + size]
    assert (data.tobytes(), valid.tobytes()) == (expected.tobytes(), written.tobytes())


def _landed(*arrays: Any) -> int:
    *held, width, size = arrays
    pointers = [None if array is None else array.ctypes.data for array in held]
    return int(copies.functions().land(*pointers, len(held[2]), width, size))


def test_a_copy_of_unwritten_bytes_is_left_to_python() -> None:
    data, source, index = np.zeros(64, np.uint8), np.ones(64, np.uint8), np.array([0, 16])
    for at, wrong in ((0, 1), (15, 1), (16, 0), (47, 0), (48, 1), (59, 1), (60, 0)):
        valid = np.full(64, 255, np.uint8)
        valid[at] = 0
        asked = (data, np.zeros(64, np.uint8), index, source, valid, np.array([0, 48]))
        assert _landed(*asked, 16, 16 if at < 60 else 12) == wrong
    assert _landed(data, np.zeros(64, np.uint8), index, source, None, np.array([0, 48]), 16, 16) == 0


@pytest.mark.parametrize("differs", [0, 3, 7])
def test_two_copies_to_one_place_have_to_agree(differs: int) -> None:
    data, source = np.zeros(16, np.uint8), np.tile(np.arange(8, dtype=np.uint8), 2)
    asked = data, np.zeros(16, np.uint8), np.array([8, 8]), source, None, np.array([0, 8])
    assert _landed(*asked, 8, 8) == 0
    source[8 + differs] ^= 0x80
    assert _landed(*asked, 8, 8) == 1
