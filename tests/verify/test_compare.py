"""What differs first, in words; and maps of all that differs, against counting one element at a time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.verify import CASE, ENVIRONMENT, result

from refmoe.catalog import parse_case
from refmoe.families.family import Case, Expectation
from refmoe.families.gemm import SM12X_GEMM
from refmoe.families.gemm.stages import Products
from refmoe.families.routing import RowChoices
from refmoe.families.stages import Codes, GroupedScales, Scales, Stage
from refmoe.formats import E4M3, E8M0
from refmoe.numbers_as_text import value_text
from refmoe.reference.layout import GROUPED_LAYOUTS, SCALE_LAYOUTS, expert_base_rows
from refmoe.reports.parity import MAPPED_CASES, make_report, read_report, report_text
from refmoe.verify.compare import CELLS, Comparison, MismatchMap, compare
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import load_patches, patched_sources
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

EXPAND = "expand:bf16:m4k2880e8t2:fingerprint:seed7@ptx"
QUANTIZE = "mxfp8_quantize:bf16:m5k416:fingerprint:layout=128x4:seed7@ptx"


def expectation(text: str) -> tuple[Case, Expectation]:
    case = parse_case(text)
    return case, case.family.expect(case, case.family.inputs(case))


def planted(expected: Expectation, stage: str, index: int, value: int | None = None) -> Comparison:
    """The comparison of the reference with itself, one byte changed."""
    outputs = {name: buffer.copy() for name, buffer in expected.outputs.items()}
    flat = outputs[stage].reshape(-1)
    flat[index] = flat[index] ^ 0x01 if value is None else value
    return compare(expected.stages, outputs, expected.outputs)


def test_equal_buffers_have_no_first_mismatch() -> None:
    _, expected = expectation(EXPAND)
    found = compare(expected.stages, expected.outputs, expected.outputs)
    assert (found.stage, found.first_mismatch, dict(found.differing)) == (None, None, {"codes": 0, "scales": 0})
    assert found.compared == sum(buffer.size for buffer in expected.outputs.values())


def test_the_message_is_the_documented_one() -> None:
    case, expected = expectation("mxfp8_quantize:bf16:m8k2880:fingerprint:seed7@ptx")
    reference = {name: buffer.copy() for name, buffer in expected.outputs.items()}
    reference["codes"][5, 421] = 0x70
    expected.stages[0].scales[5, 13] = 0x7B  # type: ignore[attr-defined]
    kernel = {name: buffer.copy() for name, buffer in reference.items()}
    kernel["codes"][5, 421] = 0x6F
    kernel["codes"][6, 0] ^= 1
    kernel["codes"][7, 2879] ^= 1
    found = compare(expected.stages, kernel, reference)
    assert case.shape.m * case.shape.k == 23040
    assert found.first_mismatch == (
        "codes[5, 421]  block (5, 13) lane 5: kernel 0x6F (120) reference 0x70 (128), 1 ulp, scale 0x7B; "
        "3 of 23040 differ"
    )


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 2879), (3, 31), (3, 32), (7, 2879)])
def test_a_planted_code_is_found_in_its_block_lane_token_and_expert(row: int, column: int) -> None:
    case, expected = expectation(EXPAND)
    inputs = case.family.inputs(case)
    offsets, sources = np.asarray(inputs["offsets"]), np.asarray(inputs["permuted_to_unpermuted"])
    ids = np.asarray(inputs["topk_ids"])
    found = planted(expected, "codes", row * 2880 + column)
    rank, token = divmod(int(sources[row]), 4)
    expert = int(ids[token, rank])
    assert offsets[expert] <= row < offsets[expert + 1]
    assert found.stage == "codes"
    text = str(found.first_mismatch)
    assert text.startswith(f"codes[{row}, {column}]  block ({row}, {column // 32}) lane {column % 32}: kernel 0x")
    assert text.endswith(f"; 1 of 23040 differ; row {row} is token {token} choice {rank} at expert {expert}")


@pytest.mark.parametrize("layout", ["linear", "128x4", "8x4"])
@pytest.mark.parametrize(("row", "block"), [(0, 0), (0, 12), (4, 0), (3, 7), (4, 12)])
def test_a_planted_scale_is_found_at_its_row_and_block(layout: str, row: int, block: int) -> None:
    _, expected = expectation(QUANTIZE.replace("128x4", layout))
    index = scale_offset(layout, row, block, 13)
    found = planted(expected, "scales", index)
    assert found.stage == "scales"
    assert str(found.first_mismatch).startswith(f"scales[{index}]  block ({row}, {block}): kernel 0x")
    assert " in the exponent; 1 of " in str(found.first_mismatch)


def scale_offset(layout: str, m: int, b: int, blocks: int) -> int:
    """The formulas of the format's definition, written out again."""
    kt = -(-blocks // 4)
    if layout == "128x4":
        return (m // 128) * kt * 512 + (b // 4) * 512 + (m % 32) * 16 + (m % 128 // 32) * 4 + b % 4
    if layout == "8x4":
        return (m // 8) * kt * 32 + (b // 4) * 32 + (m % 8) * 4 + b % 4
    return m * blocks + b


@pytest.mark.parametrize("layout", ["128x4", "8x4"])
def test_padding_columns_and_rows_are_named(layout: str) -> None:
    _, expected = expectation(QUANTIZE.replace("128x4", layout))
    column = planted(expected, "scales", scale_offset(layout, 4, 15, 13), 0xFF)
    assert "padding column 15 of row 4 must be 0x00: kernel 0xFF; 1 of" in str(column.first_mismatch)
    row = planted(expected, "scales", scale_offset(layout, 5, 0, 13), 0x00)
    assert "padding row 5, column 0, must not be written: kernel 0x00 instead of the poison 0xFF" in str(
        row.first_mismatch
    )


@pytest.mark.parametrize("layout", ["128x4", "8x4"])
def test_grouped_scales_are_named_by_row_block_and_expert(layout: str) -> None:
    case, expected = expectation(f"expand:bf16:m9k416e16t2:fingerprint:layout={layout}:routing=empty-experts:seed7@ptx")
    offsets = np.asarray(case.family.inputs(case)["offsets"])
    counts = np.diff(offsets)
    for expert in np.flatnonzero(counts):
        base = -(-(int(offsets[expert]) + 127 * int(expert)) // 128) * 128
        last = int(counts[expert]) - 1
        real = int(offsets[expert]) + last
        hit = planted(expected, "scales", scale_offset(layout, base + last, 12, 13))
        assert f"block ({real}, 12), row {last} of expert {expert}: kernel" in str(hit.first_mismatch)
        column = planted(expected, "scales", scale_offset(layout, base, 13, 13), 0x01)
        place = f"row {offsets[expert]} (row 0 of expert {expert})"
        assert f"padding column 13 of {place} must be 0x00: kernel 0x01" in str(column.first_mismatch)
        padding = planted(expected, "scales", scale_offset(layout, base + last + 1, 0, 13))
        assert f"padding row {last + 1} of expert {expert}, which has {last + 1} rows" in str(padding.first_mismatch)
        assert "must not be written" in str(padding.first_mismatch)


def test_the_first_and_the_last_byte_of_every_buffer_count() -> None:
    _, expected = expectation(EXPAND)
    for stage, buffer in expected.outputs.items():
        for index in (0, buffer.size - 1):
            found = planted(expected, stage, index)
            assert found.stage == stage
            assert found.differing[stage] == 1


def test_rows_that_no_token_has_must_keep_the_poison() -> None:
    _, expected = expectation(
        "expand:bf16:m3k416e4t2:gaussian:routing=elsewhere:first_expert=4:ranks=2:poison=0x7F:seed7@ptx"
    )
    found = planted(expected, "codes", 417, 0x00)
    assert str(found.first_mismatch) == (
        "codes[1, 1]  row 1 belongs to no token of this rank and must not be written: "
        "kernel 0x00 instead of the poison 0x7F; 1 of 2496 differ"
    )


def test_the_first_stage_is_named_and_the_others_are_counted() -> None:
    _, expected = expectation(EXPAND)
    outputs = {name: buffer ^ 0x01 for name, buffer in expected.outputs.items()}
    found = compare(expected.stages, outputs, expected.outputs)
    assert found.stage == "codes"
    assert dict(found.differing) == {name: buffer.size for name, buffer in expected.outputs.items()}


def test_a_buffer_of_another_shape_differs_wholly() -> None:
    _, expected = expectation(EXPAND)
    outputs = dict(expected.outputs)
    outputs["scales"] = outputs["scales"][:-1]
    found = compare(expected.stages, outputs, expected.outputs)
    assert found.stage == "scales"
    assert "kernel uint8" in str(found.first_mismatch)


@given(st.integers(0, 255))
def test_code_texts_are_exact_values(code: int) -> None:
    import ml_dtypes

    value = np.uint8(code).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    text = value_text(code, E4M3)
    assert text == "NaN" if np.isnan(value) else np.float64(text).tobytes() == value.tobytes()


def test_special_codes_and_scales_have_words_instead_of_distances() -> None:
    _, expected = expectation("mxfp8_quantize:bf16:m16k416:specials:seed7@ptx")
    codes: NDArray[np.uint8] = expected.outputs["codes"]
    nan = int(np.flatnonzero(codes.reshape(-1) == 0x7F)[0])
    assert "kernel 0x38 (1) reference 0x7F (NaN), scale 0xFF" in str(
        planted(expected, "codes", nan, 0x38).first_mismatch
    )
    zero = int(np.flatnonzero(codes.reshape(-1) == 0x80)[0])
    text = str(planted(expected, "codes", zero, 0x00).first_mismatch)
    assert "kernel 0x00 (0) reference 0x80 (-0), the sign of zero" in text
    assert [value_text(scale, E8M0) for scale in (0, 127, 255)] == ["2^-127", "2^0", "NaN"]


def test_a_stage_is_held_against_the_buffer_that_answers_for_it_and_a_masked_element_against_none() -> None:
    _, expected = expectation(EXPAND)
    (codes, scales) = expected.stages
    kernel = {"mine": expected.outputs["codes"].copy()}
    kernel["mine"][0, 0] ^= 1
    found = compare((codes, scales), kernel, expected.outputs, answers={"codes": "mine"})
    assert (found.stage, dict(found.differing)) == ("codes", {"codes": 1})  # no scales were computed
    mask = np.zeros(kernel["mine"].shape, np.bool_)
    mask[0, 0] = True
    found = compare((codes,), kernel, expected.outputs, answers={"codes": "mine"}, ignored={"mine": mask})
    assert (found.stage, found.compared) == (None, kernel["mine"].size - 1)


# --- maps -----------------------------------------------------------------------------------------------------------

OFFSETS = np.array([0, 3, 3, 140, 150], np.int64)


def compared(stage: Stage, shape: tuple[int, ...], wrong: list[int], tile: tuple[int, int] | None = None) -> Comparison:
    reference = np.zeros(shape, np.uint8)
    kernel = reference.copy()
    kernel.reshape(-1)[wrong] = 1
    return compare((stage,), {stage.name: kernel}, {stage.name: reference}, tile=tile)


def cells(found: MismatchMap) -> Counter[tuple[int, int]]:
    """The cells that are not zero."""
    return Counter(
        {(row, column): count for row, line in enumerate(found.counts) for column, count in enumerate(line) if count}
    )


def codes(rows: int, k: int) -> Codes:
    return Codes("codes", (rows, k), np.zeros((rows, -(-k // 32)), np.uint8), rows, OFFSETS)


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
        (found,) = compared(Scales("scales", layout, rows, blocks), (size,), [index]).maps
        assert (found.first_row, found.last_row, found.first_column, found.last_column) == (row, row, block, block)
        assert cells(found) == {(row // found.row_step, block // found.column_step): 1}
        assert (found.rows, found.columns) == padded


@pytest.mark.parametrize("layout", GROUPED_LAYOUTS)
def test_scales_of_experts_start_at_their_base_rows(layout: str) -> None:
    bases = expert_base_rows(OFFSETS)
    blocks = 7
    size = SCALE_LAYOUTS["128x4"].padded_shape(int(bases[-1]) + 128, blocks)
    index = int(GROUPED_LAYOUTS[layout].offset(int(bases[2]) + 9, 6, blocks))
    (found,) = compared(GroupedScales("scales", layout, OFFSETS, blocks), (size[0] * size[1],), [index]).maps
    assert (found.first_row, found.first_column) == (int(bases[2]) + 9, 6)
    assert found.expert_rows == tuple(int(base) for base in bases[:4])


def test_products_know_tokens_weight_rows_experts_and_the_tile() -> None:
    stage = Products("out", "f32", 300, OFFSETS, 0)
    reference = np.zeros((150, 300), np.uint32)
    kernel = reference.copy()
    kernel[140, 299] = 1
    (found,) = compare((stage,), {"out": kernel}, {"out": reference}, tile=(128, 8)).maps
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
    patch = next(patch for patch in load_patches() if patch.name == "76-gemm-token-scales-zeroed")
    case = parse_case("sm12x_gemm:f32:m5k416n136e3:wide-range:tile=128x8x512:seed7@ptx")
    devices = Devices(csrc=patched_sources(patch, tmp_path / "csrc"), entry_by_entry=True)
    found = run_case(Kernel(SM12X_GEMM, devices), case)
    (everywhere,) = found.maps
    assert found.verdict is Verdict.OUT_OF_BOUND
    assert everywhere.tile == (8, 128)
    assert sum(map(sum, everywhere.counts)) == dict(found.differing)["out"] == 680
