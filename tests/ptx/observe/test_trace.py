"""A trace tells who waited on which barrier, when: on kernels whose handshakes are written out here."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from refmoe import ptx
from refmoe.errors import ArgumentError
from refmoe.ptx.observe.events import KINDS

#: Warp 0 writes a word after a round of its own and arrives; warp 1 waits for it, then reads.
HANDSHAKE = """
.version 8.0
.target sm_90a
.address_size 64
.shared .align 8 .b64 full;
.shared .align 4 .b32 word;
.visible .entry handshake(.param .u64 out)
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra ready;
    mbarrier.init.shared.b64 [full], 32;
ready:
    bar.sync 0;
    setp.ge.u32 %p2, %r1, 32;
    @%p2 bra consumer;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra arrive;
    mov.u32 %r2, 42;
    st.shared.u32 [word], %r2;
arrive:
    mbarrier.arrive.shared.b64 _, [full];
    bra done;
consumer:
    mbarrier.try_wait.parity.shared.b64 %p3, [full], 0;
    @!%p3 bra consumer;
    ld.shared.u32 %r3, [word];
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r3;
done:
    ret;
}
"""

#: The same with the consumer in front, which therefore comes to the barrier first.
CONSUMER_FIRST = HANDSHAKE.replace("@%p2 bra consumer;\n", "@!%p2 bra producer;\n    bra.uni consumer;\nproducer:\n")

#: Every lane copies four bytes and waits for them.
COPIES = """
.version 8.0
.target sm_90a
.address_size 64
.shared .align 16 .b8 buffer[128];
.visible .entry copies(.param .u64 source)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [source];
    mov.u32 %r1, %tid.x;
    shl.b32 %r1, %r1, 2;
    cvt.u64.u32 %rd2, %r1;
    add.s64 %rd3, %rd1, %rd2;
    mov.u32 %r2, buffer;
    add.s32 %r2, %r2, %r1;
    cp.async.ca.shared.global [%r2], [%rd3], 4;
    cp.async.commit_group;
    cp.async.wait_group 0;
    ret;
}
"""


def traced(text: str, entry: str, block: int, *, grid: int = 1, trace: ptx.Trace | None = None) -> ptx.Trace:
    """The trace of a launch on one zeroed buffer."""
    record = ptx.Trace() if trace is None else trace
    module = ptx.Module.parse(text, name=f"{entry}.ptx")
    array = np.zeros(64 * grid, np.uint32)
    ptx.launch(module, entry, (grid, 1, 1), (block, 1, 1), [array], trace=record)
    return record


def kinds(trace: ptx.Trace, warp: int | None) -> list[str]:
    return [event.kind for event in trace.of() if event.warp == warp]


def test_producer_and_consumer() -> None:
    trace = traced(HANDSHAKE, "handshake", 64)
    assert kinds(trace, 0) == ["init", "bar", "leave", "arrive"]
    assert kinds(trace, 1) == ["bar", "leave", "pass"]
    phase = next(event for event in trace.events if event.kind == "phase")
    seen = next(event for event in trace.events if event.kind == "pass")
    assert (phase.warp, phase.lanes, phase.phase) == (None, 0, 0)
    assert (seen.warp, seen.lanes, seen.phase) == (1, 32, 0)
    assert phase.step < seen.step


def test_who_comes_first_parks_and_is_woken_when_the_phase_is_complete() -> None:
    trace = traced(CONSUMER_FIRST, "handshake", 64)
    assert kinds(trace, 1) == ["bar", "leave", "park", "wake", "pass"]
    steps = {event.kind: event.step for event in trace.events}
    assert steps["park"] < steps["arrive"] == steps["phase"] == steps["wake"] < steps["pass"]
    assert {event.phase for event in trace.events if event.kind in ("park", "wake", "pass")} == {0}
    row = next(line for line in trace.timeline().splitlines() if line.startswith("warp 1"))
    assert row.endswith("a++")


def test_events_are_in_order_and_say_where() -> None:
    trace = traced(HANDSHAKE, "handshake", 64)
    steps = [event.step for event in trace.events]
    assert steps == sorted(steps)
    init = next(event for event in trace.events if event.kind == "init")
    assert (init.block, init.warp, init.lanes, init.amount) == ((0, 0, 0), 0, 1, 32)
    assert init.barrier == "full+0"
    assert init.text == "mbarrier.init.shared.b64 [full], 32;"
    assert HANDSHAKE.splitlines()[init.line - 1].strip() == init.text
    assert {event.kind for event in trace.events} <= KINDS.keys()
    with pytest.raises(FrozenInstanceError):
        init.step = 3  # type: ignore[misc]


def test_a_barrier_has_the_name_that_the_caller_gives_it() -> None:
    named = traced(HANDSHAKE, "handshake", 64, trace=ptx.Trace(names={0: "full[0]"}))
    assert {event.barrier for event in named.events if event.address is not None} == {"full[0]"}


def test_named_barriers_are_entered_and_left_by_every_warp() -> None:
    trace = traced(HANDSHAKE, "handshake", 64)
    for kind in ("bar", "leave"):
        events = [event for event in trace.events if event.kind == kind]
        assert [(event.warp, event.lanes, event.barrier) for event in events] == [
            (0, 32, "barrier 0"),
            (1, 32, "barrier 0"),
        ]


def test_copies_are_issued_and_land() -> None:
    trace = traced(COPIES, "copies", 32)
    found = [(event.kind, event.warp, event.lanes, event.amount) for event in trace.events]
    assert found == [("copy", 0, 32, 128), ("land", 0, 32, 128)]


def test_one_block_can_be_followed_alone() -> None:
    every = traced(HANDSHAKE, "handshake", 64, grid=3)
    assert every.blocks() == ((0, 0, 0), (1, 0, 0), (2, 0, 0))
    alone = traced(HANDSHAKE, "handshake", 64, grid=3, trace=ptx.Trace(block=(1, 0, 0)))
    assert alone.blocks() == ((1, 0, 0),)
    assert alone.events == every.of((1, 0, 0))
    with pytest.raises(ArgumentError, match="block: found"):
        alone.of((0, 0, 0))


def test_launches_that_share_a_trace_are_told_apart() -> None:
    trace = traced(HANDSHAKE, "handshake", 64)
    first = trace.of()
    traced(COPIES, "copies", 32, trace=trace)
    assert trace.entries == ("handshake", "copies")
    assert trace.of(launch=0) == first
    assert {event.kind for event in trace.of(launch=1)} == {"copy", "land"}
    assert "cp.async" in trace.text(launch=1)
    assert "cp.async" not in trace.text()


def test_without_events_there_is_no_text() -> None:
    with pytest.raises(ArgumentError, match="0 that the trace tells of"):
        ptx.Trace().text()


def test_json_holds_every_field_of_every_event() -> None:
    trace = traced(HANDSHAKE, "handshake", 64)
    document: dict[str, Any] = json.loads(trace.json())
    assert document == json.loads(json.dumps(trace.to_dict()))
    assert len(document["events"]) == len(trace.events)
    assert document["entries"] == ["handshake"]
    assert document["events"][0]["kind"] == "init"
    assert document["kinds"] == dict(KINDS)


def test_the_timeline_shows_who_waits_for_whom() -> None:
    text = traced(HANDSHAKE, "handshake", 64).text()
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "A" in rows["warp 0"]
    assert "0" in rows["warp 0"]  # the named barrier
    assert "+" in rows["warp 1"]
    assert "!" in rows["a phases"]
    assert "full+0, 32 arrivals a phase: arriving warps 0; waiting warps 1" in text
    assert "mbarrier.init.shared.b64 [full], 32;" in text


def test_the_timeline_is_wrapped() -> None:
    trace = traced(HANDSHAKE, "handshake", 64)
    wide, narrow = trace.timeline(width=200), trace.timeline(width=3)
    assert narrow.count("\nstep") == 2
    assert wide.count("\nstep") == 1


def test_neighbours_that_do_the_same_share_a_row_of_the_table() -> None:
    text = traced(HANDSHAKE, "handshake", 64).text()
    (row,) = [line for line in text.splitlines() if " bar " in line]
    assert row.split()[:3] == [row.split()[0], "0-1", "64"]


def test_a_launch_that_fails_leaves_what_came_before() -> None:
    trace = ptx.Trace()
    broken = HANDSHAKE.replace("mbarrier.init.shared.b64 [full], 32;", "mbarrier.init.shared.b64 [full], 33;")
    with pytest.raises(ptx.Deadlock):
        traced(broken, "handshake", 64, trace=trace)
    assert kinds(trace, 1) == ["bar", "leave", "park", "give up", "park"]
    assert "phase" not in {event.kind for event in trace.events}


def test_tracing_changes_nothing() -> None:
    module = ptx.Module.parse(HANDSHAKE, name="handshake.ptx")
    outputs = []
    for trace in (None, ptx.Trace()):
        array = np.zeros(64, np.uint32)
        result = ptx.launch(module, "handshake", (1, 1, 1), (64, 1, 1), [array], trace=trace)
        outputs.append((array.tobytes(), result.instructions, result.lane_instructions))
    assert outputs[0] == outputs[1]


def test_the_command_prints_and_writes_a_trace(tmp_path: Any) -> None:
    from typer.testing import CliRunner

    from refmoe.cli import app

    case = "sm12x_gemm:bf16:m1k96n16e1:gaussian:tile=128x8x128:seed7@ptx"
    printed = CliRunner().invoke(app, ["repro", case, "--trace", "-"])
    assert printed.exit_code == 0, printed.output
    assert "block (0, 0, 0)" in printed.output
    assert "cp.async" in printed.output
    written = CliRunner().invoke(app, ["repro", case, "--trace", str(tmp_path / "trace.json"), "--trace-block", "all"])
    assert written.exit_code == 0, written.output
    assert json.loads((tmp_path / "trace.json").read_text())["events"]
    refused = CliRunner().invoke(app, ["repro", case, "--trace", "-", "--trace-block", "first"])
    assert refused.exit_code == 2
    assert "needed a block such as 0,0,0, or all" in refused.output
