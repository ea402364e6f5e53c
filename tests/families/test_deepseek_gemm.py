"""What fills and windows of the block FP8 GEMM promise, which chips run which cases, and that faults in data show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.catalog import list_cases
from refmoe.chips import DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.cuda.deepseek_gemm import INSTRUCTIONS, accumulation_models
from refmoe.draw import Draw
from refmoe.errors import ArgumentError
from refmoe.families.case import Shape
from refmoe.families.deepseek_gemm import DEEPSEEK_GEMM
from refmoe.families.deepseek_gemm.family import ASSUMPTIONS, of_windows
from refmoe.families.deepseek_gemm.fills import FILLS, Operands, Size
from refmoe.families.deepseek_gemm.problem import expert_rows, output_rows, window_tiles, windows
from refmoe.formats import E4M3
from refmoe.reference.deepseek_gemm import BLOCK, deepseek_gemm
from refmoe.verify.kernel import Kernel
from refmoe.verify.plant import _listed
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

SIZE = Size(rows=9, k=512, n=256, experts=3)
OFFSETS = np.array([0, 3, 3, 9])


def made(fill: str, size: Size = SIZE) -> Operands:
    data: Operands = FILLS[fill].make(Draw(fill, "test"), size)
    return data


def product(data: Operands, model: str = "sm120") -> np.ndarray:
    return deepseek_gemm(*data, OFFSETS, model=model, out_dtype=np.float32)


@pytest.mark.parametrize("fill", FILLS)
def test_shapes_and_types(fill: str) -> None:
    data = made(fill)
    assert data.tokens.shape == (9, 512)
    assert data.token_scales.shape == (9, 4)
    assert data.weights.shape == (3, 256, 512)
    assert data.weight_scales.shape == (3, 2, 4)
    assert {array.dtype.name for array in data} == {"uint8", "float32"}
    # NaN is in the fill that promises it, and in no other.
    nan = any(((codes & 0x7F) == 0x7F).any() for codes in (data.tokens, data.weights))
    nan |= any(np.isnan(scales).any() for scales in (data.token_scales, data.weight_scales))
    assert nan == (fill == "specials")


@pytest.mark.parametrize("model", ASSUMPTIONS)
@pytest.mark.parametrize("k", [128, 512, 7168])
def test_whole_numbers_are_exact_under_every_model(model: str, k: int) -> None:
    data = made("integer", Size(3, k, 128, 1))
    values = E4M3.values()
    left = values[data.tokens].astype(np.int64) * np.repeat(data.token_scales.astype(np.int64), 128, axis=1)
    scales = np.repeat(np.repeat(data.weight_scales[0].astype(np.int64), 128, axis=0), 128, axis=1)
    right = values[data.weights[0]].astype(np.int64) * scales
    found = deepseek_gemm(*data, np.array([0, 3]), model=model, out_dtype=np.float32)
    np.testing.assert_array_equal(found.astype(np.int64), left @ right.T)
    assert (np.abs(left) @ np.abs(right).T).max() <= 1 << 24


def test_fingerprints_differ_from_their_neighbours() -> None:
    for scales in (made("one-hot-tokens").token_scales, made("one-hot-tokens", Size(2, 1024, 512, 4)).weight_scales):
        assert np.unique(scales).size == scales.size
        for axis in range(scales.ndim):
            exponents = np.moveaxis(np.frexp(scales)[1], axis, 0)
            assert (exponents[1:] != exponents[:-1]).all()


@pytest.mark.parametrize("fill", ["one-hot-tokens", "one-hot-weights", "wide-range", "near", "cancelling"])
@pytest.mark.parametrize(("operand", "axis"), [("token_scales", 0), ("token_scales", 1), ("weight_scales", 1),
                                               ("weight_scales", 2), ("weights", 0)])  # fmt: skip
def test_a_neighbour_shows(fill: str, operand: str, axis: int) -> None:
    data = made(fill)
    shifted = data._replace(**{operand: np.roll(getattr(data, operand), 1, axis=axis)})
    assert (product(data).view(np.uint32) != product(shifted).view(np.uint32)).mean() > 0.2


@pytest.mark.parametrize("fill", ["near", "cancelling", "aligned"])
def test_another_model_shows(fill: str) -> None:
    data = made(fill)
    found = [product(data, model).view(np.uint32) for model in ASSUMPTIONS]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (found[one] != found[other]).mean() > 0.05


def test_results_around_the_largest_bf16_number() -> None:
    data = made("overflow", Size(64, 512, 256, 3))
    found = deepseek_gemm(*data, np.array([0, 20, 20, 64]), model="sm120", out_dtype=np.float32)
    magnitude = found.view(np.uint32) & 0x7FFFFFFF
    above = (magnitude >= 0x7F7F8000) & (magnitude < 0x7F800000)  # finite, and infinite in BF16
    assert above.mean() > 0.01
    assert (magnitude == 0x7F800000).mean() > 0.05
    assert (magnitude < 0x7F7F8000).mean() > 0.3


def test_tiny_results_are_subnormal_zeros_of_both_signs_and_normal() -> None:
    bits = product(made("tiny")).view(np.uint32)[:9]
    assert {0, 1 << 31} <= set(bits.reshape(-1).tolist())
    exponent = bits >> 23 & 0xFF
    assert ((exponent == 0) & (bits & 0x7FFFFF != 0)).mean() > 0.1
    assert (exponent > 0).mean() > 0.1


# --- rows and windows -----------------------------------------------------------------------------------------------


def case(rows: str = "uniform", m: int = 300, n: int = 512, **options: object):  # type: ignore[no-untyped-def]
    return DEEPSEEK_GEMM.case("near", Shape(m, 256, n=n, e=5), rows=rows, **options)


def test_rows_are_the_numbers_in_turn() -> None:
    given = case("0-7-130")
    assert expert_rows(given).counts == (0, 7, 130, 0, 7)
    assert expert_rows(given).first == (0, 0, 7, 137, 137)
    batch = case("0-7-130", grouping="masked")
    assert expert_rows(batch).first == (0, 300, 600, 900, 1200)
    assert output_rows(batch) == 1500
    drawn = expert_rows(case())
    assert sum(drawn.counts) == 300 - 300 // 8
    assert len(set(drawn.counts)) > 1


@pytest.mark.parametrize("sample", [1, 2, 4, 7, 1000])
@pytest.mark.parametrize("n", [384, 512])
def test_windows_are_inside_and_corners_come_first(sample: int, n: int) -> None:
    given = case("0-7-130-1-150", n=n, sample=sample)
    rows = expert_rows(given)
    found = windows(given, rows)
    assert len(set(found)) == len(found)
    width = 256 if n == 512 else 128
    for window in found:
        first = rows.first[window.expert]
        assert first <= window.row < window.row_stop <= first + rows.counts[window.expert]
        assert (window.row - first) % 128 == 0
        assert window.column % width == 0
        assert window.column_stop - window.column == width
    of_last = [window for window in found if window.expert == 4]
    last = rows.first[4] + 150, n
    assert last in [(window.row_stop, window.column_stop) for window in of_last]
    if sample >= 4:
        corners = {(rows.first[4], 0), (rows.first[4], n - width), (rows.first[4] + 128, 0)}
        assert corners <= {(window.row, window.column) for window in of_last}
    assert len(of_last) == min(sample, 2 * n // width)


def test_a_sample_is_a_part_of_the_whole() -> None:
    whole, sampled = case("0-7-130-1-150"), case("0-7-130-1-150", sample=2)
    (inputs, expected), (_, some) = (Kernel(DEEPSEEK_GEMM).problem(each) for each in (whole, sampled))
    asked = np.zeros(some.outputs["out"].shape, bool)
    for row, row_stop, column, column_stop in Kernel(DEEPSEEK_GEMM).problem(sampled)[0]["windows"]:
        asked[row:row_stop, column:column_stop] = True
    assert inputs["windows"] is None
    assert 0 < asked.mean() < 1
    np.testing.assert_array_equal(some.outputs["out"][asked], expected.outputs["out"][asked])
    assert (some.outputs["out"][~asked] == 0xFFFF).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": "100"}, "500 rows; needed at most the 300 of the shape"),
        ({"rows": "301", "grouping": "masked"}, "301 rows; needed at most the 300 of the shape"),
        ({"rows": "one"}, "uniform, or how many rows the experts have in turn, such as 0-1-7"),
        ({"expected_m": 4}, "grouping=masked with it"),
        ({"n": 200}, "an n that is a multiple of 128"),
    ],
)
def test_no_cases(options: dict[str, object], words: str) -> None:
    with pytest.raises(ArgumentError) as refusal:
        case(**{"rows": "1", **options})  # type: ignore[arg-type]
    assert words in str(refusal.value)


# --- chips ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", KERNEL_ARCHS)
def test_a_chip_is_given_the_cases_of_its_instructions(arch: str) -> None:
    found = {each.model for each in list_cases("default", ["deepseek_gemm"], arch=arch)}
    assert found == set(accumulation_models(arch))


def test_a_case_of_another_chip_is_skipped_and_says_why() -> None:
    given = DEEPSEEK_GEMM.case("near", Shape(3, 128, n=128, e=1), model="sm90_wgmma_fp8")
    result = run_case(Kernel(DEEPSEEK_GEMM), given.on("ptx", "sm_120a"))
    assert result.verdict is Verdict.SKIPPED
    assert result.reason == "sm_120a has no instruction of the model sm90_wgmma_fp8; its own are of sm120"


def test_planted_faults_are_tried_on_a_chip_that_has_the_instruction() -> None:
    ours = [each for each in _listed() if each.family is DEEPSEEK_GEMM]
    assert {each.model for each in ours} == set(INSTRUCTIONS)
    assert {each.arch for each in ours if each.model == "sm120"} == {DEFAULT_ARCH}
    assert {each.arch for each in ours if each.model != "sm120"} == {"sm_90a"}


def test_verdicts_say_what_they_rest_on() -> None:
    evidence = {name: each.evidence for name, each in ASSUMPTIONS.items()}
    assert evidence == {
        "sm120": "published", "sm90_mma_fp8": "hardware-checked", "sm90_wgmma_fp8": "hardware-checked"
    }  # fmt: skip


def test_true_sizes_and_every_class_of_rows_are_in_the_default_level() -> None:
    sampled = [each for each in DEEPSEEK_GEMM.level("default") if each.sample]
    shapes = {(each.shape.k, each.shape.n): each for each in sampled if each.shape.k > BLOCK}
    rows = {shape: set(expert_rows(each).counts) for shape, each in shapes.items()}
    assert rows == {(7168, 4096): {0, 7}, (4224, 4224): {7}, (2048, 7168): {0, 1, 7, 128, 1000}}


@pytest.mark.parametrize("family", ["deepseek_gemm", "cute_deepseek_gemm"])
def test_the_samples_have_512_by_512_outputs_of_each_class(family: str) -> None:
    listed = list_cases("samples", [family])
    assert {str(each) for each in listed} <= {str(each) for each in list_cases("full", [family])}
    for model in ASSUMPTIONS:
        for rows in ("1-0", "7-0", "128-0", "1000"):
            found = [each for each in listed if each.rows == rows and each.model == model]
            assert {(each.shape.k, each.shape.n) for each in found} >= {(2048, 7168)}
            assert rows == "1-0" or len({(each.shape.k, each.shape.n) for each in found}) == 2
            for each in found:
                counts = expert_rows(each)
                places = windows(each, counts)
                outputs = sum((w.row_stop - w.row) * (w.column_stop - w.column) for w in places)
                assert outputs >= 512 * 512
                # The last row and the last column of some expert, and the first of both.
                ends = [first + count for first, count in zip(counts.first, counts.counts, strict=True) if count]
                assert any(w.row_stop in ends and w.column_stop == each.shape.n for w in places)
                assert any(w.row in counts.first and w.column == 0 for w in places)
        of_model = [each for each in listed if each.model == model]
        for option, values in (("grouping", {"contiguous", "masked"}), ("scales", {"k_major", "mn_major"})):
            assert {getattr(each, option) for each in of_model} == values
        assert {each.dtype for each in of_model} == {"bf16", "f32"}
    paired = [each for each in listed if family == "deepseek_gemm" and each.ctas == 2]
    assert {each.grouping for each in paired} == ({"contiguous", "masked"} if family == "deepseek_gemm" else set())


SAMPLED = [(model, tile_m, 1) for model in INSTRUCTIONS for tile_m in INSTRUCTIONS[model].tiles_m]


@pytest.mark.parametrize(("model", "tile_m", "ctas"), thinned([*SAMPLED, ("sm90_wgmma_fp8", 128, 2)], 3))
def test_a_sample_runs_with_every_tile(model: str, tile_m: int, ctas: int) -> None:
    """Windows of 128 rows, of an expert with three of them, under tiles that are lower, as high, and higher."""
    shape = Shape(300, 128, n=512, e=2)
    options: dict[str, Any] = {"model": model, "rows": "0-299", "sample": 1, "tile_m": tile_m, "ctas": ctas}
    given = DEEPSEEK_GEMM.case("near", shape, "bf16", **options)
    arch = "sm_120a" if model == "sm120" else "sm_90a"
    result = run_case(Kernel(DEEPSEEK_GEMM), given.on("ptx", arch))
    assert (result.verdict, result.reason, result.first_mismatch) == (Verdict.PASS, None, None)


def test_what_is_written_beside_the_tiles_that_ran_is_found() -> None:
    given = DEEPSEEK_GEMM.case("near", Shape(300, 256, n=512, e=2), rows="0-290", sample=1)
    rows, poison = expert_rows(given), 0xFFFF
    inputs, expected = Kernel(DEEPSEEK_GEMM).problem(given)
    (window, *_) = asked = windows(given, rows)
    run = window_tiles(asked, rows, 256, 128)
    # The last window has rows 256 to 289 of expert 1, and its tile too; the one before lies in another tile.
    assert [(tile.row, tile.row_stop, tile.column) for tile in run if tile.expert == 1] == [
        (256, 290, 256), (256, 290, 384)
    ]  # fmt: skip
    wanted = expected.outputs["out"]
    inside, beside = wanted.copy(), wanted.copy()
    inside[run[0].row, run[0].column] = 1
    beside[run[0].row - 1, run[0].column] = 1
    assert (window.row, window.column) == (256, 256)
    assert (of_windows(given, inputs, inside, run)[256, 256], wanted[255, 256]) == (1, poison)
    assert of_windows(given, inputs, beside, run)[255, 256] == 1
    assert of_windows(given, inputs, beside)[255, 256] == poison
    # Of a tile that reaches above its window, what lies there is not compared, and what lies beside it is.
    (upper,) = window_tiles([window._replace(row=128, row_stop=256)], rows, 256, 128)[:1]
    assert (upper.row, upper.row_stop) == (0, 256)
    beside[100, 256] = beside[100, 100] = 1
    found = of_windows(given, inputs, beside, [upper])
    assert (found[100, 256], found[100, 100]) == (poison, 1)


def test_the_full_level_has_512_by_512_outputs_of_each_class() -> None:
    for model in ASSUMPTIONS:
        for rows in ("1-0", "7-0", "128-0", "1000"):
            found = [each for each in DEEPSEEK_GEMM.level("full") if each.sample and each.rows == rows]
            found = [each for each in found if each.model == model]
            assert len(found) >= 2
            for each in found:
                places = [window.place for window in windows(each, expert_rows(each))]
                outputs = sum((r.stop - r.start) * (c.stop - c.start) for r, c in places)
                assert outputs >= 512 * 512
