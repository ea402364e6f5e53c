"""Bulk copies in one native call do as NumPy does: bytes, what is initialised, and which lines come first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.ptx.native.boxes import WIDTHS, BoxPlaces, LineTables, functions
from refmoe.ptx.state.records import BULK, PENDING, STEP_SHIFT

COPIES, WORDS = 3, 11


@pytest.mark.parametrize("of_each", [False, True], ids=["offsets of all", "offsets of each"])
@pytest.mark.parametrize("clipped", [False, True], ids=["whole", "clipped"])
@pytest.mark.parametrize("width", WIDTHS)
def test_words_land_where_they_belong(width: int, clipped: bool, of_each: bool) -> None:
    rng = np.random.default_rng(width)
    source = rng.integers(0, 256, 4096, np.uint8)
    data, valid = rng.integers(0, 256, 1024, np.uint8), rng.integers(0, 256, 1024, np.uint8)
    begin = rng.permutation(8)[:COPIES] * 256
    offset = rng.integers(0, 60, (COPIES, WORDS) if of_each else WORDS) * width
    inside = rng.random((COPIES, WORDS)) < 0.6
    # What lies outside is not read: it may be anywhere.
    index = begin[:, None] + offset
    target, place = np.arange(COPIES) * 256 + 16, rng.permutation(15)[:WORDS] * width
    fill = 0x7FF7_7FF7_7FF7_7FF7
    wanted, wanted_valid = data.copy(), valid.copy()
    for copy in range(COPIES):
        for word in range(WORDS):
            there = slice(target[copy] + place[word], target[copy] + place[word] + width)
            taken = not clipped or inside[copy, word]
            filled = np.full(2, fill, np.uint64).view(np.uint8)[:width]
            wanted[there] = source[index[copy, word] : index[copy, word] + width] if taken else filled
            wanted_valid[there] = 0xFF
    if clipped:
        offset = np.where(inside, np.broadcast_to(offset, inside.shape), 1 << 60) if of_each else offset
    fields = {
        BoxPlaces.BEGIN: begin.ctypes.data,
        BoxPlaces.OFFSET: offset.ctypes.data,
        BoxPlaces.STRIDE: WORDS if of_each else 0,
        BoxPlaces.INSIDE: inside.ctypes.data if clipped else 0,
        BoxPlaces.TARGET: target.ctypes.data,
        BoxPlaces.PLACE: place.ctypes.data,
    }
    copies = np.array([fields[each] for each in BoxPlaces], np.int64)
    addresses = (each.ctypes.data for each in (data, valid, source, copies))
    functions().land(*addresses, COPIES, WORDS, width, fill)
    np.testing.assert_array_equal(data, wanted)
    np.testing.assert_array_equal(valid, wanted_valid)


def test_what_is_issued_is_not_written_any_more() -> None:
    data, valid = np.arange(200).astype(np.uint8), np.full(200, 0xFF, np.uint8)
    target = np.array([100, 16])
    functions().poison(data.ctypes.data, valid.ctypes.data, target.ctypes.data, 2, 48)
    gone = np.zeros(200, np.bool_)
    gone[16:64] = gone[100:148] = True
    np.testing.assert_array_equal(data, np.where(gone, 0xCD, np.arange(200)))
    np.testing.assert_array_equal(valid, np.where(gone, 0, 0xFF))


WARPS, AGENTS, LINES, SPAN = 2, 8, 4, 256
CROSSED = WARPS + AGENTS


def comes_first(change: Any) -> list[bool]:
    """Whether bulk copies into lines 0 and 1, and into lines 2 and 3, are in order, after a change of the tables.

    The copies are of lanes whose cluster begins at thread 64 of the launch. They know all warps up to step 20, and up
    to step 10 behind a proxy fence. Agent 3 is known up to step 15.
    """
    tables = {
        "bulk": np.zeros(LINES, np.int64),
        "reads": np.zeros((LINES, WARPS + 1), np.int64),
        "writes": np.zeros((LINES, WARPS), np.int64),
        "seen": np.zeros((3, 2 * CROSSED), np.int64),
    }
    tables["seen"][1, :WARPS], tables["seen"][1, CROSSED : CROSSED + WARPS] = 20, 10
    tables["seen"][1, WARPS + 3] = 15
    change(tables)
    fields = {
        LineTables.BULK_WRITES: tables["bulk"].ctypes.data,
        LineTables.READ_STEPS: tables["reads"].ctypes.data,
        LineTables.READ_COLUMNS: WARPS + 1,
        LineTables.WRITE_STEPS: tables["writes"].ctypes.data,
        LineTables.WARPS: WARPS,
        LineTables.SEEN: tables["seen"].ctypes.data,
        LineTables.COLUMNS: 2 * CROSSED,
        LineTables.AGENTS: WARPS,
        LineTables.CROSSED: CROSSED,
        LineTables.THREADS: 64,
    }
    made = np.array([fields[each] for each in LineTables], np.int64)
    first, rows, threads = np.array([0, SPAN]), np.array([1, 1]), np.array([64, 64])
    fine = np.zeros(2, np.bool_)
    addresses = (each.ctypes.data for each in (made, first, rows, threads, fine))
    functions().ordered(*addresses, 2, SPAN)
    return [bool(each) for each in fine]


def agent(number: int, step: int) -> int:
    """The record of a bulk write that completes on an agent."""
    return (step << STEP_SHIFT) + 64 + number + int(BULK)


def test_lines_that_nobody_touched_come_first() -> None:
    assert comes_first(lambda tables: None) == [True, True]


@pytest.mark.parametrize("line", range(LINES))
@pytest.mark.parametrize(
    ("table", "column", "known", "unknown"),
    [("writes", 0, 10, 11), ("writes", 1, 10, 11), ("reads", 0, 20, 21), ("reads", 1, 20, 21), ("reads", 2, 0, 1)],
)
def test_a_line_comes_first_up_to_the_step_that_is_known(
    line: int, table: str, column: int, known: int, unknown: int
) -> None:
    def touched(step: int) -> list[bool]:
        def change(tables: Any) -> None:
            tables[table][line, column] = step

        return comes_first(change)

    assert touched(known) == [True, True]
    assert touched(unknown) == [line >= 2, line < 2]


@pytest.mark.parametrize("line", range(LINES))
def test_a_bulk_write_comes_first_if_its_agent_is_known(line: int) -> None:
    def written(record: int) -> list[bool]:
        def change(tables: Any) -> None:
            tables["bulk"][line] = record

        return comes_first(change)

    late = [line >= 2, line < 2]
    assert written(agent(3, 15)) == [True, True]
    assert written(agent(3, 16)) == late
    assert written(agent(4, 15)) == late
    assert written(agent(3, PENDING)) == late
    # Of another cluster, or no bulk write into shared memory: Python has to look.
    assert written(agent(3, 15) - 64) == late
    assert written(agent(3, 15) + 64) == late
    assert written(agent(3, 15) - int(BULK)) == late
