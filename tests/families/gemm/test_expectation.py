from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.catalog import parse_case
from refmoe.errors import ArgumentError
from refmoe.families.family import Case, Expectation, Inputs
from refmoe.families.gemm.family import ASSUMPTION
from refmoe.families.gemm.fills import FILLS
from refmoe.verify.compare import Comparison, compare


def expectation(text: str) -> tuple[Case, Inputs, Expectation]:
    case = parse_case(text)
    inputs = case.family.inputs(case)
    return case, inputs, case.family.expect(case, inputs)


def answered(bits: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    """What a kernel with these outputs hands over: one buffer, which every stage is held against."""
    return {"out": bits}


def compared(expected: Expectation, bits: NDArray[np.generic]) -> Comparison:
    return compare(expected.stages, answered(bits), expected.outputs, answers=expected.answers)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("options", ["", "alpha=distinct:bias=distinct:"])
def test_the_model_the_second_answer_and_the_bound_agree(fill: str, options: str) -> None:
    """int64, one dense group and K without padding give the model's bits, and these lie inside the bound."""
    text = f"sm12x_gemm:f32:m5k416n40e3:{fill}:{options}seed3@ptx"
    if fill == "overflow" and options:
        with pytest.raises(
            ArgumentError, match="case alpha: found 'distinct'; needed alpha=none for the fill overflow"
        ):
            parse_case(text)
        return
    _, _, expected = expectation(text)
    model = expected.outputs["out"]
    assert not compared(expected, model).stage
    assert expected.outside(answered(model)) is None
    assert expected.doubt is None
    assert len(expected.outputs) == (2 if fill in ("integer", "shared-weights", "zero-padded") else 1)


def test_bf16_outputs_round_the_same_sums() -> None:
    _, _, wide = expectation("sm12x_gemm:f32:m5k416n40e3:gaussian:bias=distinct:seed3@ptx")
    _, _, short = expectation("sm12x_gemm:bf16:m5k416n40e3:gaussian:bias=distinct:seed3@ptx")
    bits = wide.outputs["out"].astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to nearest even, on bits
    assert short.outputs["out"].tolist() == rounded.tolist()


def test_a_verdict_names_its_model_and_that_it_is_extrapolated() -> None:
    assert (ASSUMPTION.model, ASSUMPTION.evidence) == ("sm120", "extrapolated")
    assert "extrapolated" in ASSUMPTION.text
    _, _, expected = expectation("sm12x_gemm:f32:m1k32n8e1:gaussian:seed3@ptx")
    assert expected.assumption is ASSUMPTION


@pytest.mark.parametrize("poison", [0xFF, 0x7F])
def test_scales_lie_where_the_definition_of_the_layout_puts_them_and_padding_is_poisoned(poison: int) -> None:
    text = f"sm12x_gemm:f32:m140k160n136e3:one-hot-tokens:poison=0x{poison:02X}:seed3@ptx"
    _, inputs, _ = expectation(text)
    offsets, blocks, wide = np.asarray(inputs["offsets"]), 5, 2

    def place(row: int, block: int) -> int:
        inside = row % 32 * 16 + row % 128 // 32 * 4 + block % 4
        return row // 128 * wide * 512 + block // 4 * 512 + inside

    token_scales, buffer = np.asarray(inputs["token_scales"]), np.asarray(inputs["token_scale_buffer"])
    written = set()
    for expert in range(3):
        base = -(-(int(offsets[expert]) + 127 * expert) // 128) * 128
        for local, row in enumerate(range(int(offsets[expert]), int(offsets[expert + 1]))):
            for block in range(8):
                at = place(base + local, block)
                assert buffer[at] == (token_scales[row, block] if block < blocks else 0)
                written.add(at)
    assert (np.delete(buffer, sorted(written)) == poison).all()

    weight_scales, buffer = np.asarray(inputs["weight_scales"]), np.asarray(inputs["weight_scale_buffer"])
    assert buffer.size == 3 * 256 * wide * 4
    for expert, row, block in ((0, 0, 0), (0, 135, 4), (1, 33, 2), (2, 127, 1), (2, 128, 3)):
        assert buffer[expert * 256 * wide * 4 + place(row, block)] == weight_scales[expert, row, block]
    assert buffer[place(136, 0)] == poison


def test_rows_of_no_expert_hold_nan_codes_and_must_stay_poisoned() -> None:
    case, inputs, expected = expectation("sm12x_gemm:bf16:m7k416n72e4:gaussian:first_expert=4:ranks=2:seed7@ptx")
    used = int(np.asarray(inputs["offsets"])[-1])
    assert 0 < used < case.shape.m
    assert (np.asarray(inputs["tokens"])[used:] == 0x7F).all()
    assert (expected.outputs["out"][used:] == 0xFFFF).all()
    written = expected.outputs["out"].copy()
    written[used, 3] = 0
    found = compared(expected, written)
    assert f"row {used} belongs to no expert of this rank and must not be written" in str(found.first_mismatch)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (2, 39), (4, 17)])
def test_a_planted_difference_is_named_by_token_expert_and_weight_row(row: int, column: int) -> None:
    _, inputs, expected = expectation("sm12x_gemm:f32:m5k416n40e3:wide-range:seed3@ptx")
    offsets = np.asarray(inputs["offsets"])
    bits = expected.outputs["out"].copy()
    bits[row, column] += 1
    found = compared(expected, bits)
    expert = next(e for e in range(3) if offsets[e] <= row < offsets[e + 1])
    text = str(found.first_mismatch)
    place = f"token {row - offsets[expert]} of expert {expert}, weight row {column}"
    assert text.startswith(f"out[{row}, {column}]  {place}:")
    assert ", 1 ulp; 1 of 200 differ" in text
    # One unit in the last place is another rounding, which the bound allows.
    assert expected.outside(answered(bits)) is None


def test_the_second_answer_is_compared_even_where_the_model_is_right() -> None:
    _, _, expected = expectation("sm12x_gemm:f32:m5k416n40e3:integer:seed3@ptx")
    wrong = {name: buffer.copy() for name, buffer in expected.outputs.items()}
    wrong["out-as-int64"][1, 2] ^= 1
    found = compare(expected.stages, answered(expected.outputs["out"]), wrong, answers=expected.answers)
    assert found.stage == "out-as-int64"


@pytest.mark.parametrize("options", ["", "alpha=distinct:", "bias=distinct:", "alpha=distinct:bias=distinct:"])
def test_what_lies_past_the_bound_is_outside_and_what_the_bound_allows_is_not(options: str) -> None:
    _, _, expected = expectation(f"sm12x_gemm:f32:m3k416n16e1:wide-range:{options}seed3@ptx")
    interval = expected.stages[0].interval  # type: ignore[attr-defined]
    for end, direction in ((interval.low, -np.inf), (interval.high, np.inf)):
        inside = np.ascontiguousarray(end)
        assert expected.outside(answered(inside.view(np.uint32))) is None
        bits = inside.copy()
        bits[1, 5] = np.nextafter(bits[1, 5], np.float32(direction))
        text = expected.outside(answered(bits.view(np.uint32)))
        assert str(text).startswith("out[1, 5]  token 1 of expert 0, weight row 5:")
        assert "1 of 48 are" in str(text)
    nan = expected.outputs["out"].copy()
    nan[0, 0] = 0x7FFFFFFF
    assert "nan is outside" in str(expected.outside(answered(nan)))


def test_positive_sums_may_not_exceed_the_exact_one() -> None:
    _, _, expected = expectation("sm12x_gemm:f32:m3k416n16e1:positive:seed3@ptx")
    interval = expected.stages[0].interval  # type: ignore[attr-defined]
    assert (interval.high.astype(np.float64) <= interval.exact).all()
    above = np.nextafter(interval.high, np.float32(np.inf))
    assert "48 of 48 are" in str(expected.outside(answered(above.view(np.uint32))))


def test_tiles_and_stages_do_not_change_the_data() -> None:
    case = parse_case("sm12x_gemm:f32:m5k416n40e3:wide-range:seed3@ptx")
    other = case.having(tile="128x64x128", stages=3)
    first, second = (case.family.inputs(asked) for asked in (case, other))
    assert case.data == other.data
    assert {name: None if array is None else array.tobytes() for name, array in first.items()} == {
        name: None if array is None else array.tobytes() for name, array in second.items()
    }


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("sm12x_gemm:fp16:m4k32n8e1:gaussian:seed7@ptx", "dtype"),
        ("sm12x_gemm:f32:m4k32e1t1:gaussian:seed7@ptx", "shape"),
        ("sm12x_gemm:f32:m4k32n0e1:gaussian:seed7@ptx", "shape"),
        ("sm12x_gemm:f32:m4k48n8e1:gaussian:seed7@ptx", "shape"),
        ("sm12x_gemm:f32:m4k32n8e1:rne-ties:seed7@ptx", "fill"),
        ("sm12x_gemm:f32:m4k64n8e1:zero-padded:seed7@ptx", "shape"),
        ("sm12x_gemm:f32:m4k32n8e1:gaussian:tile=128x8:seed7@ptx", "tile"),
        ("sm12x_gemm:f32:m4k32n8e1:gaussian:stages=two:seed7@ptx", "stages"),
        ("sm12x_gemm:f32:m4k32n8e1:gaussian:cluster=2:seed7@ptx", "cluster"),
        ("sm12x_gemm:f32:m4k32n8e1:gaussian:alpha=1:seed7@ptx", "alpha"),
        ("sm12x_gemm:f32:m4k32n8e1:gaussian:mode=floor:seed7@ptx", "option"),
        ("sm12x_gemm:f32:m4k32n8e1:gaussian:stages=2:seed7@ptx", "stages"),
        ("sm12x_gemm:f32:m4k32n8e1:gaussian:cluster=2x1x1:seed7@ptx", "cluster"),
        ("expand:bf16:m4k32e8t2:real:tile=128x8x512:seed7@ptx", "option"),
    ],
)
def test_a_malformed_gemm_case_says_which_field_is_wrong(text: str, field: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        parse_case(text)
    assert refused.value.argument == f"case {field}"
