"""Undefined values in memory that is no result: nobody is told of them until somebody depends on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.ptx_kernel import line_of, text
from typer.testing import CliRunner

from refmoe import ptx
from refmoe.cli import app

# A pair of 8 bytes of which one half is set under a condition, as a struct with padding is stored.
STORED = "setp.eq.u32 %p1, %r1, 99; @%p1 mov.u32 %r5, 1; st.global.v2.u32 [%d2], {%r1, %r5};"
PAIR = f"mul.wide.u32 %d2, %r1, 8; add.s64 %d2, %d0, %d2; {STORED}"
# Thread i takes the first or the second half of pair i, and stores it to word i of the other buffer.
FIRST = "mul.wide.u32 %d9, %r1, 8; add.s64 %d9, %d1, %d9; ld.global.u32 %r4, [%d9]; st.global.u32 [%d2], %r4;"
SECOND = FIRST.replace("[%d9];", "[%d9+4];")


def module(body: str) -> ptx.Module:
    return ptx.Module.parse(text(body), name="pairs.ptx")


def launch(body: str, *buffers: object, **options: object) -> ptx.LaunchResult:
    made = module(body)
    return ptx.launch(made, made.entries[0], (1, 1, 1), (32, 1, 1), [*buffers, 0], **options)  # type: ignore[arg-type]


def test_a_result_with_an_undefined_half_is_refused() -> None:
    with pytest.raises(ptx.UndefinedError, match=r"reaches an output byte \(byte 4 of pairs\)"):
        launch(PAIR, ptx.Buffer(np.zeros(64, np.uint32), "pairs"), np.zeros(32, np.uint32))


def test_a_workspace_keeps_it_and_a_later_launch_may_read_the_other_half() -> None:
    known = np.zeros(64, bool)
    pairs = ptx.Buffer(np.zeros(64, np.uint32), "pairs", known, workspace=True)
    (left,) = launch(PAIR, pairs, np.zeros(32, np.uint32)).left_undefined
    assert isinstance(left, ptx.UndefinedError)
    assert "reaches an output byte (byte 4 of pairs)" in left.message
    assert (left.register, left.line) == ("%r5", line_of(PAIR, "st.global.v2.u32"))
    assert known.tolist() == [True, False] * 32
    out = np.zeros(32, np.uint32)
    launch(FIRST, out, pairs)
    assert out.tolist() == list(range(32))
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        launch(SECOND, out, pairs)


def test_strict_checks_leave_nothing_undefined() -> None:
    pairs = ptx.Buffer(np.zeros(64, np.uint32), "pairs", workspace=True)
    with pytest.raises(ptx.UndefinedError, match=r"byte 4 of pairs"):
        launch(PAIR, pairs, np.zeros(32, np.uint32), checks=ptx.Checks(strict=True))


def test_the_command_line_prints_what_a_scratch_is_left_with(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(text(PAIR))
    command = ["run", str(tmp_path / "k.ptx"), "--block", "32", "--args", "scratch:u32:64 scratch:u32:32 u32:0"]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    assert "left undefined an undefined value (bits 0xFF) reaches an output byte" in " ".join(said.output.split())
    strict = CliRunner().invoke(app, [*command, "--strict"])
    assert strict.exit_code == 1


def test_an_allocation_is_a_workspace_and_one_that_was_written_before_too() -> None:
    memory, result = ptx.DeviceMemory(), np.zeros(32, np.uint32)
    pairs, out = memory.allocate(256, "pairs"), memory.place(ptx.Buffer(result, "out"))
    memory.write(pairs, np.ones(64, np.uint32))  # all of it was initialised
    launch(PAIR, pairs, out, memory=memory)
    assert memory.written(pairs, 16).tolist() == ([True] * 4 + [False] * 4) * 2
    # What is undefined reads as poison, so that it is no result by accident.
    assert memory.read(pairs, 8).tolist() == [0, 0, 0, 0, 0xCD, 0xCD, 0xCD, 0xCD]
    launch(FIRST, out, pairs, memory=memory)
    assert result.tolist() == list(range(32))
    with pytest.raises(ptx.MemoryFault, match="uninitialised"):
        launch(SECOND, out, pairs, memory=memory)


def test_a_copy_of_memory_that_nobody_wrote_is_refused() -> None:
    memory = ptx.DeviceMemory()
    pairs, copies = (memory.allocate(256, name) for name in ("pairs", "copies"))
    with pytest.raises(ptx.MemoryFault, match="uninitialised: global read of 4 bytes at byte 0 of pairs"):
        launch(FIRST, copies, pairs, memory=memory)


def test_a_copy_of_shared_memory_that_nobody_wrote_is_left() -> None:
    memory = ptx.DeviceMemory()
    pairs = memory.allocate(256, "pairs")
    cells = ".shared .align 8 .b8 cells[256];"
    body = f"{PAIR.replace('st.global.v2.u32 [%d2]', 'st.shared.v2.u32 [%r9]')}"
    body = body.replace("setp", "mov.u32 %r9, cells; mad.lo.u32 %r9, %r1, 8, %r9; setp", 1)
    body += " ld.shared.v2.u32 {%r6, %r7}, [%r9]; st.global.v2.u32 [%d2], {%r6, %r7};"
    made = ptx.Module.parse(text(body, declarations=cells), name="pairs.ptx")
    ptx.launch(made, made.entries[0], (1, 1, 1), (32, 1, 1), [pairs, pairs, 0], memory=memory)
    assert memory.written(pairs, 16).tolist() == ([True] * 4 + [False] * 4) * 2


def test_a_value_of_a_race_is_refused_there_too() -> None:
    # Lane 1 reads what lane 0 stores in the same block, with no barrier between them, and leaves it.
    body = (
        "setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%d1], 5; setp.eq.u32 %p2, %r1, 32; "
        "@%p2 ld.global.u32 %r5, [%d1]; @%p2 st.global.u32 [%d2], %r5;"
    )
    memory, made = ptx.DeviceMemory(), module(body)
    out, cell = memory.allocate(512, "out"), memory.allocate(128, "cell")
    memory.write(cell, np.zeros(32, np.uint32))
    with pytest.raises(ptx.RaceError):
        ptx.launch(made, made.entries[0], (1, 1, 1), (64, 1, 1), [out, cell, 0], memory=memory)
