"""A launch under several schedules: what it begins with, what is compared, what it says, and what it leaves."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import text

from refmoe import ptx
from refmoe.ptx.state.pages import PAGE

# Thread %r2 of the grid takes a ticket %r4, in some order.
TICKET = "atom.global.add.u32 %r4, [%d1], 1;"
# Each thread writes its number into the slot of its ticket.
SLOTS = f"{TICKET} mul.wide.u32 %d3, %r4, 4; add.s64 %d3, %d3, %d0; st.global.u32 [%d3], %r2; ret;"
# Who draws ticket 5 writes at the place of its number: 4 bytes that nobody else writes.
ONE_PLACE = f"{TICKET} setp.ne.u32 %p1, %r4, 5; @%p1 exit; st.global.u32 [%d2], %r0; ret;"
# Each thread doubles its own element, and adds its number.
OWN = "ld.global.u32 %r4, [%d2]; shl.b32 %r4, %r4, 1; add.u32 %r4, %r4, %r2; st.global.u32 [%d2], %r4; ret;"


def launch(body: str, out: Any, source: Any = None, n: int = 0, **options: Any) -> ptx.LaunchResult:
    module = ptx.Module.parse(text(body), name="test.ptx")
    options = {"grid": (4, 1, 1), "block": (32, 1, 1), "step_budget": 20000, **options}
    return ptx.launch(module, "k", args=[out, source, n], **options)


@pytest.mark.parametrize("size", [128, PAGE // 4, 3 * PAGE + 128])
def test_every_schedule_begins_with_the_same_memory(size: int) -> None:
    # What one schedule doubled the next would double again. A long array is written in place, a short one is copied.
    out = np.arange(size, dtype=np.uint32) * np.uint32(77)
    expected = out.copy()
    expected[:128] = expected[:128] * np.uint32(2) + np.arange(128, dtype=np.uint32)
    result = launch(OWN, out, schedules=5)
    assert result.schedules == 5
    np.testing.assert_array_equal(out, expected)


def test_what_is_counted_is_of_the_first_schedule() -> None:
    one, several = (launch(OWN, np.zeros(128, np.uint32), schedules=count) for count in (1, 6))
    assert (one.schedules, several.schedules) == (1, 6)
    assert (one.instructions, one.lane_instructions) == (several.instructions, several.lane_instructions)


def test_a_difference_tells_what_was_warned_of() -> None:
    body = f"st.global.u32 [%d1+4], 7; {SLOTS}"
    out, count = np.zeros(128, np.uint32), np.array([0, 7], np.uint32)
    with pytest.raises(ptx.ScheduleError) as caught:
        launch(body, out, count, schedules=4, checks=ptx.Checks(explain=False))
    line = next(number for number, each in enumerate(text(body).splitlines(), 1) if "[%d1+4]" in each)
    assert str(caught.value).endswith(f"; warnings, which may be the cause: write-write, same value, at line {line}")
    assert (caught.value.count, caught.value.schedules) == (128, (0, 1))


def test_a_difference_says_where_who_and_how_to_see_it_again() -> None:
    out, count = np.zeros(128, np.uint32), np.zeros(1, np.uint32)
    with pytest.raises(ptx.ScheduleError) as caught:
        launch(SLOTS, out, count, schedules=8)
    error = caught.value
    assert (out.any(), count.any()) == (False, False)
    assert (error.buffer, error.offset, error.schedules, error.schedule) == ("argument 0", 0, (0, 1), 1)
    # The opposite order, and each number is below 128.
    assert (error.count, error.values) == (128, (bytes(4), bytes([127, 0, 0, 0])))
    line = text(SLOTS).splitlines().index(next(x for x in text(SLOTS).splitlines() if "st.global" in x)) + 1
    assert error.writers == (
        f"block (0, 0, 0) thread (0, 0, 0), line {line}: st.global.u32 [%d3], %r2",
        f"block (3, 0, 0) thread (31, 0, 0), line {line}: st.global.u32 [%d3], %r2",
    )
    assert str(error) == (
        "the result depends on the schedule: byte 0 of argument 0: "
        f"schedule=0 gives 0 (bytes 00 00 00 00), written by {error.writers[0]}; "
        f"schedule=1 gives 127 (bytes 7f 00 00 00), written by {error.writers[1]}; "
        "128 bytes differ; repro: schedules=2"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.values, again.writers) == (str(error), error.values, error.writers)


def test_the_bytes_of_a_schedule_of_ones_own() -> None:
    for schedule in (1, "1", "schedule=1", ptx.Schedule(1)):
        out = np.zeros(128, np.uint32)
        assert launch(SLOTS, out, np.zeros(1, np.uint32), schedule=schedule).schedules == 1
        # The last blocks, warps and lanes first.
        assert out[:16].tolist() == list(range(127, 111, -1))
        assert sorted(out.tolist()) == list(range(128))


@pytest.mark.parametrize("size", [128, 2 * PAGE])
def test_bytes_that_only_one_schedule_initialises(size: int) -> None:
    out = np.full(size, 9, np.uint32)
    buffer = ptx.Buffer(out, "places", initialised=np.zeros(size, bool))
    with pytest.raises(ptx.ScheduleError) as caught:
        # What it writes is what lies there, as poison or not.
        launch(ONE_PLACE, buffer, np.zeros(1, np.uint32), n=9, schedules=2)
    error = caught.value
    assert (error.buffer, error.offset, error.count) == ("places", 4 * 5, 8)
    assert error.values == (np.uint32(9).tobytes(), None)
    assert error.writers[1] is None
    assert "schedule=1 gives nothing initialised, written by nobody" in str(error)
    assert (out == 9).all()
    assert not buffer.initialised.any()


def test_bytes_that_nobody_initialised_are_not_compared() -> None:
    # The mask is what a single launch leaves, and so are the bytes.
    masks, arrays = [], []
    for count in (1, 4):
        out = np.full(3 * PAGE, 9, np.uint32)
        buffer = ptx.Buffer(out, initialised=np.zeros(3 * PAGE, bool))
        launch("st.global.u32 [%d2+4096], %r2; ret;", buffer, schedules=count)
        masks.append(buffer.initialised)
        arrays.append(out)
    np.testing.assert_array_equal(*masks)
    np.testing.assert_array_equal(*arrays)
    assert masks[0].sum() == 128


@pytest.mark.parametrize("place", [0, 1, PAGE - 1, PAGE, 3 * PAGE + 5])
def test_one_byte_anywhere(place: int) -> None:
    # %r4 is 5 for one thread; that thread's number, of 8 bits, is written.
    body = f"{TICKET} setp.ne.u32 %p1, %r4, 5; @%p1 exit; add.s64 %d0, %d0, {place}; st.global.u8 [%d0], %r2; ret;"
    out = np.zeros(4 * PAGE, np.uint8)
    with pytest.raises(ptx.ScheduleError) as caught:
        launch(body, out, np.zeros(1, np.uint32), schedules=2)
    error = caught.value
    assert (error.offset, error.count, error.values) == (place, 1, (bytes([5]), bytes([122])))
    assert "schedule=0 gives byte 05" in str(error)


def test_pages_that_only_one_schedule_writes() -> None:
    # The thread with ticket 5 writes what lies there already into a page of its own; the mask tells, or the bytes do.
    body = f"{TICKET} setp.ne.u32 %p1, %r4, 5; @%p1 exit; mul.wide.u32 %d3, %r2, {PAGE}; add.s64 %d3, %d3, %d0;"
    out = np.zeros(128 * PAGE, np.uint8)
    with pytest.raises(ptx.ScheduleError) as caught:
        launch(f"{body} st.global.u8 [%d3+3], %r0; ret;", out, np.zeros(1, np.uint32), n=1, schedules="0,1")
    assert (caught.value.offset, caught.value.count) == (5 * PAGE + 3, 2)
    assert caught.value.writers[1] is None
    with pytest.raises(ptx.ScheduleError) as caught:
        launch(f"{body} st.global.u8 [%d3+3], %r0; ret;", out, np.zeros(1, np.uint32), n=1, schedules="1,0")
    assert (caught.value.offset, caught.value.count) == (5 * PAGE + 3, 2)
    assert caught.value.writers[0] is None
    # What is written is what was there: no byte differs.
    launch(f"{body} st.global.u8 [%d3+3], %r0; ret;", out, np.zeros(1, np.uint32), n=0, schedules=4)


def test_differences_are_counted_in_all_buffers_and_told_of_the_first() -> None:
    # The order of the arguments: a difference in the second buffer alone names the second.
    body = f"{TICKET} setp.ne.u32 %p1, %r4, 5; @%p1 exit; st.global.u16 [%d1+8], %r2; st.global.u16 [%d0+2], %r2; ret;"
    with pytest.raises(ptx.ScheduleError) as caught:
        launch(body, np.zeros(8, np.uint16), np.zeros(8, np.uint32), schedules=2)
    assert (caught.value.buffer, caught.value.offset, caught.value.count) == ("argument 0", 2, 2)
    body = body.replace("st.global.u16 [%d0+2], %r2;", "")
    with pytest.raises(ptx.ScheduleError) as caught:
        launch(body, np.zeros(8, np.uint16), np.zeros(8, np.uint32), schedules=2)
    assert (caught.value.buffer, caught.value.offset, caught.value.count) == ("argument 1", 8, 1)
    assert caught.value.values == (np.uint32(5).tobytes(), np.uint32(122).tobytes())


def test_minus_zero_and_nans_are_bytes() -> None:
    # Which NaN, and which zero, depends on who comes first.
    body = f"{TICKET} and.b32 %r5, %r2, 1; shl.b32 %r5, %r5, 31; setp.ne.u32 %p1, %r4, 0; @%p1 exit; {{0}} ret;"
    for start in ("", "or.b32 %r5, %r5, 0x7fc00000;"):
        with pytest.raises(ptx.ScheduleError) as caught:
            launch(
                body.format(f"{start} st.global.b32 [%d0], %r5;"), np.zeros(1, np.float32), np.zeros(1, np.uint32),
                schedules=2,
            )  # fmt: skip
        assert caught.value.count == 1


def test_memory_that_lives_on() -> None:
    module = ptx.Module.parse(
        text("atom.global.add.u32 %r4, [seen], 1; ld.global.u32 %r5, [%d2]; st.global.u32 [%d2], %r2; ret;",
             module_scope=".global .u32 seen;"),
        name="test.ptx",
    )  # fmt: skip
    memory = ptx.DeviceMemory()
    address = memory.allocate(4 * 128, "cells")
    memory.write(address, np.zeros(128, np.uint32))
    for launches in (1, 2):
        ptx.launch(module, "k", (4, 1, 1), (32, 1, 1), [address, None, 0], memory=memory, schedules=4)
        # Once for each launch, not for each schedule.
        assert memory.read(memory.variable(module, "seen"), 4).view(np.uint32)[0] == 128 * launches
    np.testing.assert_array_equal(memory.read(address, 512).view(np.uint32), np.arange(128))


def test_a_variable_that_lives_on_is_compared() -> None:
    module = ptx.Module.parse(
        text("atom.global.exch.b32 %r4, [last], %r2; ret;", module_scope=".global .u32 last;"), name="test.ptx"
    )
    memory = ptx.DeviceMemory()
    with pytest.raises(ptx.ScheduleError) as caught:
        ptx.launch(module, "k", (4, 1, 1), (32, 1, 1), [None, None, 0], memory=memory, schedules=2)
    assert (caught.value.buffer, caught.value.values) == ("last", (bytes([127, 0, 0, 0]), bytes(4)))
    assert memory.read(memory.variable(module, "last"), 4).tolist() == [0] * 4
    # Without a memory nobody sees it after the launch.
    assert ptx.launch(module, "k", (4, 1, 1), (32, 1, 1), [None, None, 0], schedules=2).schedules == 2


FAULT = f"{TICKET} setp.ne.u32 %p1, %r4, 0; @%p1 exit; setp.eq.u32 %p2, %r2, 0; @%p2 exit; trap;"


def test_an_error_under_some_schedules_names_one() -> None:
    with pytest.raises(ptx.Trap) as caught:
        launch(FAULT, np.zeros(1, np.uint32), np.zeros(1, np.uint32), schedules=8)
    error = caught.value
    assert (error.schedule, error.block) == (1, (3, 0, 0))
    assert str(error).endswith("; under schedule=1, while it ends well under schedule=0; repro: schedule=1")
    with pytest.raises(ptx.Trap) as alone:
        launch(FAULT, np.zeros(1, np.uint32), np.zeros(1, np.uint32), schedule=1)
    assert str(alone.value).endswith("; under schedule=1; repro: schedule=1")
    launch(FAULT, np.zeros(1, np.uint32), np.zeros(1, np.uint32))


def test_an_error_under_all_of_them_is_that_of_the_default() -> None:
    out = np.zeros(4, np.uint32)
    with pytest.raises(ptx.MemoryFault) as caught:
        launch(OWN, out, schedules=8)
    assert caught.value.schedule == 0
    assert "schedule" not in str(caught.value)
    assert not out.any()


def test_those_that_are_told_are_the_first() -> None:
    with pytest.raises(ptx.Trap, match=r"under schedule=1, while it ends well under schedule=0; repro"):
        launch(FAULT, np.zeros(1, np.uint32), np.zeros(1, np.uint32), schedules="0,1")
    # Thread 127 has the first ticket: under the opposite order at least.
    rare = FAULT.replace("setp.eq.u32 %p2, %r2, 0;", "setp.ne.u32 %p2, %r2, 127;")
    clean = [schedule for schedule in range(40) if _ends_well(rare, schedule)]
    with pytest.raises(ptx.Trap, match=r"while it ends well under schedule=0, schedule=\d+ and 1 more; repro"):
        launch(rare, np.zeros(1, np.uint32), np.zeros(1, np.uint32), schedules=[*clean[:3], 1])


def test_a_fault_comes_before_a_difference() -> None:
    # Every other order gives other bytes, but who draws the first ticket in block 2 ends the launch.
    body = SLOTS.replace(
        "ret;", "setp.ne.u32 %p1, %r4, 0; @%p1 exit; shr.u32 %r5, %r2, 5; setp.eq.u32 %p2, %r5, 2; @%p2 trap; ret;"
    )
    first = next(number for number in range(40) if not _ends_well(body, number, 128))
    assert first > 1
    with pytest.raises(ptx.ScheduleError):
        launch(body, np.zeros(128, np.uint32), np.zeros(1, np.uint32), schedules=first)
    out = np.zeros(128, np.uint32)
    with pytest.raises(ptx.Trap) as caught:
        launch(body, out, np.zeros(1, np.uint32), schedules=40)
    assert caught.value.schedule == first
    assert str(caught.value).endswith(
        "; the result depends on the schedule, too: byte 0 of argument 0 differs between schedule=0 and schedule=1; "
        f"repro: schedule={first}"
    )
    assert not out.any()


def _ends_well(body: str, schedule: int, size: int = 1) -> bool:
    try:
        launch(body, np.zeros(size, np.uint32), np.zeros(1, np.uint32), schedule=schedule)
    except ptx.Trap:
        return False
    return True


def test_one_or_several() -> None:
    with pytest.raises(ptx.ArgumentMismatch, match="one of both"):
        launch(OWN, np.zeros(128, np.uint32), schedule=1, schedules=2)
    with ptx.under_schedules(3):
        assert launch(OWN, np.zeros(128, np.uint32)).schedules == 3
        assert launch(OWN, np.zeros(128, np.uint32), schedules=1).schedules == 1
        assert launch(OWN, np.zeros(128, np.uint32), schedule=5).schedules == 1
    assert launch(OWN, np.zeros(128, np.uint32)).schedules == 1


def test_observers_see_the_first_schedule() -> None:
    seen = []
    for count in (1, 5):
        watch, trace, profile = ptx.Watch("argument 0", 12, 4), ptx.Trace(), ptx.Profile()
        launch(
            OWN, np.zeros(3 * PAGE, np.uint32), watch=watch, trace=trace, profile=profile, schedules=count
        )  # fmt: skip
        seen.append(([str(write) for write in watch.writes], len(trace.events)))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 1


PRINTS = r"""
.global .align 1 .b8 format[4] = {37, 117, 10, 0};
.extern .func (.param .b32 result) vprintf (.param .b64 format, .param .b64 arguments);
"""
PRINT = r"""
    .local .align 8 .b8 held[8];
    .reg .b64 %e<8>;
    st.local.u32 [held], {value};
    mov.u64 %e1, format; cvta.global.u64 %e1, %e1;
    mov.u64 %e2, held; cvta.local.u64 %e2, %e2;
    {{
    .param .b64 p0; .param .b64 p1; .param .b32 r;
    st.param.b64 [p0], %e1; st.param.b64 [p1], %e2;
    call.uni (r), vprintf, (p0, p1);
    }}
    ret;
"""


def printing(body: str, count: int) -> str:
    module = ptx.Module.parse(text(body, module_scope=PRINTS), name="test.ptx")
    stdout = io.StringIO()
    args = [None, np.zeros(1, np.uint32), 0]
    ptx.launch(module, "k", (2, 1, 1), (32, 1, 1), args, stdout=stdout, schedules=count)
    return stdout.getvalue()


def test_lines_are_printed_once_and_in_any_order() -> None:
    body = PRINT.format(value="%r2")
    assert printing(body, 1) == printing(body, 4) == "".join(f"{thread}\n" for thread in range(64))


def test_lines_that_differ() -> None:
    body = f"{TICKET} mad.lo.u32 %r5, %r4, 100, %r2; {PRINT.format(value='%r5')}"
    with pytest.raises(ptx.ScheduleError) as caught:
        printing(body, 2)
    error = caught.value
    assert (error.buffer, error.offset, error.count, error.writers) == (None, None, 64, (None, None))
    assert error.values[0] in [b"%d\n" % (thread * 101) for thread in range(64)]
    assert "schedule=0 alone prints" in str(error)
    assert str(error).endswith("64 lines differ; repro: schedules=2")
    # As often as before, too.
    body = f"{TICKET} setp.eq.u32 %p1, %r4, %r2; @%p1 exit; {PRINT.format(value='%r0')}"
    with pytest.raises(ptx.ScheduleError, match=r"schedule=1 alone prints '0.n'; 64 lines differ"):
        printing(body, 2)


def test_ptx_text_runs_under_schedules_too() -> None:
    out = np.zeros(128, np.uint32)
    assert ptx.run_ptx(text(OWN), grid=4, block=32, args=[out, None, 0], schedules=3).schedules == 3
    with pytest.raises(ptx.ScheduleError):
        ptx.run_ptx(text(SLOTS), grid=4, block=32, args=[out, np.zeros(1, np.uint32), 0], schedules=2)
