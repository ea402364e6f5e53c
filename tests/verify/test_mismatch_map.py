"""Maps of what differs, against counting one element at a time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.verify import CASE, ENVIRONMENT, result

from refmoe.families.case import parse_case
from refmoe.families.gemm.stages import Products
from refmoe.families.mismatch_map import CELLS, MismatchMap
from refmoe.families.step_stages import RowChoices
from refmoe.reference.layout import GROUPED_LAYOUTS, SCALE_LAYOUTS, expert_base_rows
from refmoe.reports.parity import MAPPED_CASES, make_report, read_report, report_text
from refmoe.families.stages import Codes, Comparison, GroupedScales, Scales, Stage, compare
from refmoe.verify.runner import Devices, run_case
from refmoe.verify.verdict import Verdict

OFFSETS = np.array([0, 3, 3, 140, 150], np.int64)


def compared(stage: Stage, shape: tuple[int, ...], wrong: list[int], tile: tuple[int, int] | None = None) -> Comparison:
    reference = np.zeros(shape, np.uint8)
    kernel = reference.copy()
    kernel.reshape(-1)[wrong] = 1
    return compare((stage,), {stage.name: kernel}, {stage.name: reference}, tile)


def cells(found: MismatchMap) -> Counter[tuple[int, int]]:
    """The cells that are not zero."""
    return Counter(
        {(row, column): count for row, line in enumerate(found.counts) for column, count in enumerate(line) if count}
    )


def codes(rows: int, k: int) -> Codes:
    return Codes("codes", (rows, k), np.zeros((rows, -(-k // 32)), np.uint8), rows, 0, OFFSETS)


@pytest.mark.parametrize(("rows", "k"), [(1, 32), (5, 416), (64, 2048), (65, 2880), (1000, 7168)])
def test_codes_are_counted_by_rows_and_blocks(rows: int, k: int) -> None:
    wrong = sorted(np.random.default_rng(rows).choice(rows * k, min(rows * k, 3000), replace=False).tolist())
    (found,) = compared(codes(rows, k), (rows, k), wrong).maps
    expected: Counter[tuple[int, int]] = Counter()
    places = [(index // k, index % k // 32) for index in wrong]
    for row, block in places:
        expected[row // found.row_step, block // found.column_step] += 1
    assert cells(found) == expected
    assert (found.rows, found.columns) == (rows, k // 32)
    assert len(found.counts) <= CELLS
    assert all(len(line) == len(found.counts[0]) <= CELLS for line in found.counts)
    assert (found.first_row, found.last_row) == (min(places)[0], max(places)[0])
    assert (found.first_column, found.last_column) == (min(b for _, b in places), max(b for _, b in places))
    assert (found.row_axis, found.column_axis, found.tile) == ("row", "K-block", None)
    assert found.expert_rows == (0, 3, 3, 140)


@pytest.mark.parametrize("layout", SCALE_LAYOUTS)
def test_scales_are_counted_where_their_layout_puts_them(layout: str) -> None:
    rows, blocks = 130, 13
    padded = SCALE_LAYOUTS[layout].padded_shape(rows, blocks)
    size = padded[0] * padded[1]
    for row, block in [(0, 0), (129, 12), (33, 5), (padded[0] - 1, padded[1] - 1)]:
        index = int(SCALE_LAYOUTS[layout].offset(row, block, blocks))
        (found,) = compared(Scales("scales", layout, rows, blocks, 0), (size,), [index]).maps
        assert (found.first_row, found.last_row, found.first_column, found.last_column) == (row, row, block, block)
        assert cells(found) == {(row // found.row_step, block // found.column_step): 1}
        assert (found.rows, found.columns) == padded


@pytest.mark.parametrize("layout", GROUPED_LAYOUTS)
def test_scales_of_experts_start_at_their_base_rows(layout: str) -> None:
    bases = expert_base_rows(OFFSETS)
    blocks = 7
    size = SCALE_LAYOUTS["128x4"].padded_shape(int(bases[-1]) + 128, blocks)
    index = int(GROUPED_LAYOUTS[layout].offset(int(bases[2]) + 9, 6, blocks))
    (found,) = compared(GroupedScales("scales", layout, OFFSETS, blocks, 0), (size[0] * size[1],), [index]).maps
    assert (found.first_row, found.first_column) == (int(bases[2]) + 9, 6)
    assert found.expert_rows == tuple(int(base) for base in bases[:4])


def test_products_know_tokens_weight_rows_experts_and_the_tile() -> None:
    stage = Products("out", "f32", 300, OFFSETS, 0)
    reference = np.zeros((150, 300), np.uint32)
    kernel = reference.copy()
    kernel[140, 299] = 1
    (found,) = compare((stage,), {"out": kernel}, {"out": reference}, (128, 8)).maps
    assert (found.first_row, found.first_column) == (140, 299)
    assert (found.row_axis, found.column_axis) == ("token", "weight row")
    assert found.tile == (8, 128)
    assert (found.row_step, found.column_step) == (4, 8)
    assert cells(found) == {(35, 37): 1}


def test_a_stage_without_axes_of_its_own_is_taken_by_its_shape() -> None:
    (found,) = compared(RowChoices("rows", 4), (4, 9), [35], (128, 8)).maps
    assert (found.row_axis, found.rows, found.columns, found.last_row, found.last_column) == ("row", 4, 9, 3, 8)
    assert found.tile is None


def test_no_map_of_equal_buffers_or_of_another_shape() -> None:
    assert compared(codes(3, 64), (3, 64), []).maps == ()
    other = {"codes": np.zeros((3, 96), np.uint8)}
    assert compare((codes(3, 64),), other, {"codes": np.zeros((3, 64), np.uint8)}).maps == ()


def a_map() -> MismatchMap:
    return compared(codes(5, 416), (5, 416), [7, 500]).maps[0]


def test_a_report_keeps_maps_and_reads_them_back(tmp_path: Path) -> None:
    made = make_report(
        [result(verdict=Verdict.MISMATCH, maps=(a_map(),))], command="x", environment=ENVIRONMENT, seconds=1.0
    )
    (tmp_path / "a.json").write_text(report_text(made))
    assert read_report(tmp_path / "a.json") == made
    maps = made.cases[0].maps
    assert maps is not None
    assert [list(line) for line in a_map().counts] == maps[0].counts


def test_a_report_of_a_kernel_that_is_wrong_everywhere_stays_small() -> None:
    full = compared(codes(64, 2048), (64, 2048), list(range(64 * 2048))).maps
    results = [result(CASE, Verdict.MISMATCH, maps=full * 2) for _ in range(MAPPED_CASES + 50)]
    text = report_text(make_report(results, command="x", environment=ENVIRONMENT, seconds=1.0))
    assert sum(bool(case["maps"]) for case in json.loads(text)["cases"]) == MAPPED_CASES
    assert len(text) < 5_000_000


def test_a_wrong_gemm_is_mapped_with_the_tile_that_ran(tmp_path: Path) -> None:
    from refmoe.verify.plant import load_mutants, mutated_sources

    mutant = next(mutant for mutant in load_mutants() if mutant.name == "76-gemm-token-scales-zeroed")
    case = parse_case("sm12x_gemm:f32:m5k416n136e3:wide-range:tile=128x8x512:seed7@ptx")
    found = run_case(case, Devices(csrc=mutated_sources(mutant, tmp_path / "csrc")))
    (everywhere,) = found.maps
    assert found.verdict is Verdict.OUT_OF_BOUND
    assert everywhere.tile == (8, 128)
    assert sum(map(sum, everywhere.counts)) == dict(found.differing)["out"] == 680
