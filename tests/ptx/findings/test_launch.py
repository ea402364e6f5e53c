"""Launches that are run again for a finding: nobody sees it, and nothing is changed by it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from support.findings.plain import CELLS, ROWS
from support.ptx_kernel import text

from refmoe import ptx
from refmoe.ptx import launcher
from refmoe.ptx.findings import unexplained
from refmoe.ptx.findings.collective import consumers
from refmoe.ptx.findings.edits import PtxEdit, Unplaced, apply
from refmoe.ptx.findings.explain import LaunchShape
from refmoe.ptx.text.syntax import Instruction

ROW = {row.name: row for row in ROWS}
PRINT = """
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 v);
.global .align 1 .b8 hello[4] = {104, 105, 10, 0};
"""
SAY = """
    setp.ne.u32 %p9, %r1, 0;
    @%p9 bra SILENT;
    { .param .b64 f; .param .b64 v; .param .b32 r;
    mov.u64 %d20, hello; cvta.global.u64 %d20, %d20; st.param.b64 [f], %d20;
    mov.u64 %d21, 0; st.param.b64 [v], %d21;
    call.uni (r), vprintf, (f, v); }
SILENT:
"""


def launch(source: str, **options: Any) -> ptx.LaunchResult:
    out, data = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    return ptx.launch(ptx.Module.parse(source), "k", (1, 1, 1), (64, 1, 1), [out, data, 0], **options)


def test_what_is_printed_is_printed_once() -> None:
    printed = io.StringIO()
    with pytest.raises(ptx.RaceError) as caught:
        launch(text(SAY + ROW["two warps in a loop"].racy, PRINT, CELLS), stdout=printed)
    assert printed.getvalue() == "hi\n"
    assert caught.value.finding is not None
    assert caught.value.finding.clean
    printed = io.StringIO()
    result = launch(text(SAY + ROW["same value"].racy, PRINT, CELLS), stdout=printed)
    assert result.warnings[0].finding is not None
    assert printed.getvalue() == "hi\n"


def test_memory_is_as_it_was() -> None:
    row = ROW["two warps in a loop"]
    memory = ptx.DeviceMemory()
    module = ptx.Module.parse(
        text("ld.global.u32 %r20, [seen]; add.u32 %r20, %r20, 1; setp.eq.u32 %p8, %r1, 0; bar.sync 0;\n"
             "@%p8 st.global.u32 [seen], %r20;" + row.racy, ".global .u32 seen;", CELLS)
    )  # fmt: skip
    # Large enough that launches work in the array itself.
    out = np.arange(4096, dtype=np.uint32)
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(module, "k", (1, 1, 1), (64, 1, 1), [out, np.zeros(64, np.uint32), 0], memory=memory)
    assert caught.value.finding is not None
    assert caught.value.finding.clean
    np.testing.assert_array_equal(out, np.arange(4096))
    assert memory.read(memory.variable(module, "seen"), 4).view(np.uint32)[0] == 0
    # Edited modules have left no variables behind.
    assert len(memory.buffers) == 1


def test_a_warning_leaves_the_result() -> None:
    row = ROW["relaxed poll"]
    result, out = row.launch(row.text)
    again, expected = row.launch(row.twin)
    assert [each.warning for each in result.warnings] == ["missing acquire"]
    assert again.warnings == ()
    np.testing.assert_array_equal(out, expected)
    assert out[0] == 42


def test_a_change_that_leaves_the_warning_is_none() -> None:
    # The first strong read is of another place: an acquire there orders nothing.
    row = ROW["relaxed poll"]
    body = "ld.relaxed.gpu.global.u32 %r30, [%d1+512];\n" + row.racy
    source = text(body, declarations=CELLS)
    result, _ = row.launch(source)
    (warning,) = result.warnings
    assert warning.finding is not None
    poll = next(line for line, words in enumerate(source.splitlines(), 1) if "ld.relaxed.gpu.global.u32 %r7" in words)
    assert warning.finding.remedy == f"ld.acquire.gpu.global.u32 at line {poll}"
    assert row.launch(str(warning.finding.edited))[0].warnings == ()


def test_what_follows_one_poll_is_one_finding() -> None:
    row = ROW["relaxed poll"]
    again = "ld.global.u32 %r8, [%d1];\nld.global.u32 %r9, [%d1];"
    source = text(row.racy.replace("ld.global.u32 %r8, [%d1];", again), declarations=CELLS)
    reads = [line for line, words in enumerate(source.splitlines(), 1) if words.strip().startswith("ld.global.u32")]
    for checks in (ptx.Checks(), ptx.Checks(explain=False)):
        result, _ = row.launch(source, checks=checks)
        (warning,) = result.warnings
        assert warning.line == reads[0]
        assert warning.poll is not None
        assert warning.poll.opcode == "ld.relaxed.gpu.global.u32"
    result, _ = row.launch(source, schedules=4)
    (warning,) = result.warnings
    assert warning.finding is not None
    assert f"the same change orders line {reads[1]}" in warning.finding.lines()


def test_what_takes_long_is_tried_under_fewer_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROW["relaxed poll"]

    def schedules() -> int:
        result, _ = row.launch(row.text)
        (warning,) = result.warnings
        assert warning.finding is not None
        return warning.finding.schedules

    assert schedules() == 16
    # The first schedules make the stores of single lanes, with which there are enough.
    monkeypatch.setattr(launcher, "_MOST_SINGLE_STORES", 1)
    assert 0 < schedules() < 16


def test_observers_see_one_launch() -> None:
    row = ROW["relaxed poll"]
    watch = ptx.Watch("argument 0", 0, 4)
    result, _ = row.launch(row.text, watch=watch)
    assert len(watch.writes) == 1
    # Whoever looks on sees it once, so that nothing is run again to explain a warning.
    assert result.warnings[0].finding is None


def test_unexplained() -> None:
    row = ROW["two warps"]
    with unexplained(), pytest.raises(ptx.RaceError) as caught:
        row.launch(row.text)
    assert caught.value.finding is None
    with pytest.raises(ptx.RaceError) as caught:
        row.launch(row.text)
    assert caught.value.finding is not None


def test_under_a_schedule() -> None:
    row = ROW["two lanes"]
    with pytest.raises(ptx.RaceError) as caught:
        row.launch(row.text, schedule=5)
    assert caught.value.schedule == 5
    assert caught.value.finding is not None
    assert caught.value.finding.clean
    assert "schedule=5" in str(caught.value).splitlines()[0]


def test_two_causes() -> None:
    # Two places, each without its barrier: the change of the first leaves the second.
    body = """
        mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3; xor.b32 %r5, %r1, 1; mad.lo.u32 %r6, %r5, 4, %r3;
        st.shared.u32 [%r4], %r1;
        ld.shared.u32 %r7, [%r6];
        bar.sync 0;
        st.shared.u32 [%r4+512], %r1;
        ld.shared.u32 %r8, [%r6+512];
        add.u32 %r7, %r7, %r8;
        st.global.u32 [%d2], %r7;
        ret;
    """
    source = text(body, declarations=CELLS)
    first, second = (line for line, words in enumerate(source.splitlines(), 1) if "ld.shared" in words)
    with pytest.raises(ptx.RaceError) as caught:
        launch(source)
    finding = caught.value.finding
    assert finding is not None
    assert (caught.value.line, finding.tried, finding.clean) == (first, True, False)
    assert "another fault is left" in str(caught.value)
    with pytest.raises(ptx.RaceError) as caught:
        launch(str(finding.edited))
    finding = caught.value.finding
    assert finding is not None
    assert (caught.value.line, finding.tried, finding.clean) == (second, True, True)
    launch(str(finding.edited))


@pytest.mark.parametrize(("met", "races"), [("SECOND", "%r8"), ("FIRST", "%r7")])
def test_the_earlier_reader_that_is_not_ordered(met: str, races: str) -> None:
    # Warps 0 and 1 read, warp 2 meets one of them and writes: it is the read of the other that races.
    meeting = {label: "bar.sync 1, 64;" if label == met else "" for label in ("FIRST", "SECOND")}
    body = """
        st.shared.u32 [cell+4], 0;
        setp.eq.u32 %p1, %r1, 0;
        @%p1 st.shared.u32 [cell], 5;
        bar.sync 0;
        setp.lt.u32 %p2, %r1, 32;
        @%p2 bra FIRST;
        setp.lt.u32 %p3, %r1, 64;
        @!%p3 bra THIRD;
        ld.shared.u32 %r7, [cell];
        st.global.u32 [%d2], %r7;
        SECOND
        bra DONE;
    FIRST:
        ld.shared.u32 %r8, [cell];
        st.global.u32 [%d2], %r8;
        FIRST
        bra DONE;
    THIRD:
        bar.sync 1, 64;
        st.shared.u32 [cell], 6;
    DONE:
        ret;
    """
    lines = [meeting.get(line.strip(), line) for line in body.splitlines()]
    source = text("\n".join(lines), declarations=CELLS)
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(ptx.Module.parse(source), "k", (1, 1, 1), (96, 1, 1), [np.zeros(96, np.uint32), None, 0])
    finding = caught.value.finding
    assert finding is not None
    assert finding.earlier is not None
    assert caught.value.kind == "read-write"
    assert finding.earlier.text == f"ld.shared.u32 {races}, [cell];"


def test_the_earlier_access_is_the_write() -> None:
    body = """
        setp.eq.u32 %p1, %r1, 0;
        @%p1 st.shared.u32 [cell], 5;
        bar.sync 0;
        setp.ne.u32 %p2, %r1, 3;
        @%p2 bra SKIP;
        st.shared.u32 [cell], 6;
        ld.shared.u32 %r7, [cell];
        st.shared.u32 [cell+8], %r7;
    SKIP:
        setp.ne.u32 %p3, %r1, 40;
        @%p3 bra DONE;
        ld.shared.u32 %r8, [cell];
        st.global.u32 [%d2], %r8;
    DONE:
        ret;
    """
    with pytest.raises(ptx.RaceError) as caught:
        launch(text(body, declarations=CELLS))
    finding = caught.value.finding
    assert finding is not None
    assert caught.value.kind == "write-read"
    assert finding.earlier is not None
    assert finding.earlier.kind == "plain store"
    assert finding.earlier.text == "st.shared.u32 [cell], 6;"


def test_what_two_threads_have_in_common() -> None:
    shape = LaunchShape((8, 8, 2), (2, 1, 1))
    origin = (0, 0, 0)
    assert shape.relation((origin, (0, 0, 0)), (origin, (7, 3, 0))) == "warp"
    assert shape.relation((origin, (0, 0, 0)), (origin, (0, 4, 0))) == "block"
    assert shape.relation((origin, (0, 0, 1)), (origin, (0, 0, 0))) == "block"
    assert shape.relation((origin, (1, 2, 1)), (origin, (1, 2, 1))) == "thread"
    assert shape.relation((origin, origin), ((1, 0, 0), origin)) == "cluster"
    assert shape.relation((origin, origin), ((2, 0, 0), origin)) == "grid"
    assert shape.relation(((1, 0, 0), origin), ((2, 0, 0), origin)) == "grid"
    assert LaunchShape((32, 1, 1), (1, 1, 1)).relation((origin, origin), ((1, 0, 0), origin)) == "grid"
    assert shape.relation((origin, None), (origin, origin)) == "block"


def test_nothing_orders_two_blocks() -> None:
    # Plain accesses of one word by two blocks: no barrier would do, and no fence by itself.
    body = "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra DONE;\nst.global.v4.u32 [%d0], {%r60, %r60, %r60, %r60};\nDONE:\nret;"
    out = np.zeros(64, np.uint32)
    with pytest.raises(ptx.RaceError) as caught:
        ptx.launch(ptx.Module.parse(text(body)), "k", (2, 1, 1), (64, 1, 1), [out, None, 0])
    finding = caught.value.finding
    assert finding is not None
    assert (finding.remedy, finding.tried, finding.section) == ("", False, "two-blocks")
    assert "two launches" in finding.missing


def test_previous_grid_writes_names_buffers() -> None:
    row = ROW["no wait for the grid before"]
    module = ptx.Module.parse(row.twin)
    out, data = np.zeros(256, np.uint32), np.arange(256, dtype=np.uint32)
    named = ptx.Buffer(data, "given")
    for wanted in (named, data, "given"):
        ptx.launch(module, "k", (2, 1, 1), (64, 1, 1), [out, named, 0], previous_grid_writes=[wanted])
        racy = ptx.Module.parse(row.text)
        with pytest.raises(ptx.RaceError, match="previous grid race on byte 0 of given"):
            ptx.launch(racy, "k", (2, 1, 1), (64, 1, 1), [out, named, 0], previous_grid_writes=[wanted])
    memory = ptx.DeviceMemory()
    address = memory.place(named)
    with pytest.raises(ptx.RaceError, match="previous grid"):
        ptx.launch(
            ptx.Module.parse(row.text), "k", (2, 1, 1), (64, 1, 1), [out, address, 0], memory=memory,
            previous_grid_writes=[address + 16],
        )  # fmt: skip
    with pytest.raises(ptx.ArgumentMismatch, match=r"previous_grid_writes: .*the launch has the buffers .*given"):
        ptx.launch(module, "k", (2, 1, 1), (64, 1, 1), [out, named, 0], previous_grid_writes=["another"])
    # What the grid before does not write may be touched at once.
    ptx.launch(ptx.Module.parse(row.text), "k", (2, 1, 1), (64, 1, 1), [out, named, 0])


@pytest.mark.parametrize("wait", ["griddepcontrol.wait; bar.warp.sync -1;", "griddepcontrol.wait; bar.sync 0;"])
def test_a_write_is_an_access_too(wait: str) -> None:
    body = "setp.eq.u32 %p1, %r1, 0;\n@%p1 {}\nst.global.u32 [%d2], %r1;\nret;"
    out = np.zeros(64, np.uint32)

    def go(order: str) -> None:
        module = ptx.Module.parse(text(body.format(order)))
        ptx.launch(module, "k", (1, 1, 1), (64, 1, 1), [out, None, 0], previous_grid_writes=[out])

    if "bar.sync" in wait:
        go(wait)
        return
    with pytest.raises(ptx.RaceError) as caught:
        go(wait)
    # Its own warp has met it; the other one has not.
    assert (caught.value.kind, caught.value.thread) == ("previous grid", (32, 0, 0))


# Changes of text


def _instructions(source: str) -> list[Instruction]:
    return [each for each in ptx.Module.parse(source).read("k").body if isinstance(each, Instruction)]


def test_edits_keep_every_line() -> None:
    source = text("@%p1 st.shared.u32 [cell], 1; st.shared.u32 [cell+4], 2;\n{ ld.global.u32\n %r3,\n [%d0]; }\nret;",
                  declarations=CELLS)  # fmt: skip
    first, second, load = _instructions(source)[9:12]
    edited = apply(
        source,
        [PtxEdit(first, "before", "bar.sync 0;"), PtxEdit(second, "after", "bar.sync 1;"),
         PtxEdit(second, "before", "ret;"), PtxEdit(load, "after", "bar.sync 2;"),
         PtxEdit(load, "opcode", "ld.volatile.global.u32")],
    )  # fmt: skip
    assert len(edited.splitlines()) == len(source.splitlines())
    squeezed = " ".join(edited.split())
    assert "bar.sync 0; @%p1 st.shared.u32 [cell], 1; ret; st.shared.u32 [cell+4], 2; bar.sync 1;" in squeezed
    assert "{ ld.volatile.global.u32 %r3, [%d0]; bar.sync 2; }" in squeezed
    with pytest.raises(Unplaced):
        apply(source.replace("ld.global.u32", "ld.global.s32"), [PtxEdit(load, "before", "ret;")])
    moved = " ".join(apply(source, [PtxEdit(second, "after", "@%p1 st.shared.u32 [cell], 1;"),
                                    PtxEdit(first, "whole", "")]).split())  # fmt: skip
    assert "; st.shared.u32 [cell+4], 2; @%p1 st.shared.u32 [cell], 1; {" in moved
    assert moved.count("[cell], 1;") == moved.count("@%p1") == 1
    with pytest.raises(Unplaced):
        apply(source, [PtxEdit(load, "whole", "")])


# Values that a collective takes


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("ld.shared.u32 %r3, [cell];\nshfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;", True),
        ("ld.shared.u32 %r3, [cell];\nadd.u32 %r5, %r3, 1;\nshfl.sync.bfly.b32 %r4, %r5, 1, 31, -1;", True),
        ("ld.shared.v2.u32 {%r3, %r5}, [cell];\nredux.sync.add.u32 %r4, %r5, -1;", True),
        ("ld.shared.u32 %r3, [cell];\nsetp.eq.u32 %p1, %r3, 0;\nvote.sync.any.pred %p2, %p1, -1;", True),
        # Another value, one that took its place, one behind a signal.
        ("ld.shared.u32 %r3, [cell];\nshfl.sync.bfly.b32 %r4, %r5, 1, 31, -1;", False),
        ("ld.shared.u32 %r3, [cell];\nmov.u32 %r3, 1;\nshfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;", False),
        ("ld.shared.u32 %r3, [cell];\nred.global.add.u32 [%d0], 1;\nshfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;", False),
        ("ld.shared.u32 %r3, [cell];\nbar.arrive 1, 64;\nshfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;", False),
        ("ld.shared.u32 %r3, [cell];\nst.release.gpu.global.u32 [%d0], 1;\nredux.sync.add.u32 %r4, %r3, -1;", False),
        # Used in the next turn, behind the signal of this one.
        ("TURN:\nshfl.sync.bfly.b32 %r4, %r6, 1, 31, -1;\nld.shared.u32 %r3, [cell];\nred.global.add.u32 [%d0], 1;\n"
         "mov.u32 %r6, %r3;\n@%p1 bra TURN;", False),
        ("TURN:\nshfl.sync.bfly.b32 %r4, %r6, 1, 31, -1;\nld.shared.u32 %r6, [cell];\n@%p1 bra TURN;", True),
        # Not on this way, but on the other.
        ("ld.shared.u32 %r3, [cell];\n@%p1 bra AWAY;\nshfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;\nAWAY:\n"
         "mov.u32 %r5, 0;", True),
        ("ld.shared.u32 %r3, [cell];\nret;\nshfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;", False),
        ("ld.shared.u32 %r3, [cell];\n@%p1 mov.u32 %r3, 1;\nredux.sync.add.u32 %r4, %r3, -1;", True),
        ("ld.shared.u32 %r3, [cell];\nst.shared.u32 [cell+8], %r3;\nredux.sync.add.u32 %r4, %r5, -1;", False),
    ],
)  # fmt: skip
def test_what_a_collective_takes(body: str, found: bool) -> None:
    module = ptx.Module.parse(text(body + "\nret;", declarations=CELLS))
    function = module.read("k")
    load = next(each for each in function.body if isinstance(each, Instruction) and each.opcode.startswith("ld.shared"))
    assert bool(consumers(function.body, load)) == found


def _tile(line: int, *offsets: int) -> str:
    """Rounds in which all store what they stored before and read it after a barrier; the next round does not wait."""
    stores = "".join(f"st.shared.u32 [%r4+{offset}], 7;\n" for offset in offsets)
    loads = "".join(f"ld.shared.u32 %r9, [{each}+{offset}]; add.u32 %r15, %r15, %r9;\n"
                    for offset in offsets for each in ("%r5", "%r6"))  # fmt: skip
    return f"""
        mov.u32 %r8, 0;
    TILE{line}:
        {stores} bar.sync 0;
        {loads}
        add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 3;
        @%p1 bra TILE{line};
        bar.sync 0;
    """


TILES = """
    mov.u32 %r3, cell; mad.lo.u32 %r4, %r1, 4, %r3; mov.u32 %r15, 0;
    xor.b32 %r5, %r1, 1; mad.lo.u32 %r5, %r5, 4, %r3;
    xor.b32 %r6, %r1, 33; mad.lo.u32 %r6, %r6, 4, %r3;
"""


def _trials(monkeypatch: pytest.MonkeyPatch, body: str) -> tuple[ptx.LaunchResult, list[str]]:
    """A launch, and the changed texts that ran to explain what it warns of."""
    texts: list[str] = []
    edited = ptx.Module.edited

    def counted(module: ptx.Module, source: str) -> ptx.Module:
        texts.append(source)
        return edited(module, source)

    monkeypatch.setattr(ptx.Module, "edited", counted)
    return launch(text(TILES + body + "st.global.u32 [%d2], %r15; ret;", declarations=CELLS)), texts


def test_one_trial_for_warnings_with_one_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    result, trials = _trials(monkeypatch, _tile(1, 0, 256, 512))
    assert [each.warning for each in result.warnings] == ["same value"] * 3
    # Lanes of two warps race, which no meeting of a warp orders: the first change tried is a barrier of the block.
    # It is tried once more, as one that meets no other barrier.
    changed, alone = trials
    assert alone.count("bar.sync 15;") == 1
    assert alone.replace("bar.sync 15;", "bar.sync 0;") == changed
    assert all(each.finding is not None and each.finding.clean for each in result.warnings)
    assert {str(each.finding and each.finding.edited) for each in result.warnings} == {changed}
    assert launch(changed).warnings == ()


def test_a_change_elsewhere_explains_no_other_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two places at which all threads store one value: warnings under all schedules, with remedies that read alike.
    result, _ = _trials(monkeypatch, "st.shared.u32 [%r3], 7;\nst.shared.u32 [%r3+512], 7;\nbar.sync 0;")
    first, second = result.warnings
    assert first.finding is not None
    assert second.finding is not None
    assert first.finding.clean
    assert second.finding.clean
    for finding, gone, left in ((first.finding, first, second), (second.finding, second, first)):
        again = launch(str(finding.edited)).warnings
        assert [each.offset for each in again] == [left.offset]
        assert gone.offset != left.offset
