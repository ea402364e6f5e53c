from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from refmoe.families.quantize_expand import RUNS

from refmoe.families.case import Case, parse_case
from refmoe.families.family import Expectation
from refmoe.families.stages import e4m3_text
from refmoe.numbers_as_text import e8m0_text
from refmoe.verify.compare import Comparison, compare

EXPAND = "expand:bf16:m4k2880e8t2:fingerprint:seed7@ptx"
QUANTIZE = "mxfp8_quantize:bf16:m5k416:fingerprint:layout=128x4:seed7@ptx"


def expectation(text: str) -> tuple[Case, Expectation]:
    case = parse_case(text)
    run = RUNS[case.family]
    return case, run.expect(case, run.inputs(case))


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
    inputs = RUNS["expand"].inputs(case)
    offsets, sources = np.asarray(inputs["offsets"]), np.asarray(inputs["permuted_to_unpermuted"])
    ids = np.asarray(inputs["topk_ids"])
    found = planted(expected, "codes", row * 2880 + column)
    rank, token = divmod(int(sources[row]), 4)
    expert = int(ids[token, rank])
    assert offsets[expert] <= row < offsets[expert + 1]
    assert found.stage == "codes"
    text = str(found.first_mismatch)
    assert text.startswith(f"codes[{row}, {column}]  block ({row}, {column // 32}) lane {column % 32}: kernel 0x")
    assert text.endswith(f"; 1 of 23040 differ; row {row} is token {token} rank {rank} at expert {expert}")


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
    offsets = np.asarray(RUNS["expand"].inputs(case)["offsets"])
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
    text = e4m3_text(code)
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
    assert (e8m0_text(0), e8m0_text(127), e8m0_text(255)) == ("2^-127", "2^0", "NaN")
