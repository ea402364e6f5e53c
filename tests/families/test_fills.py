from __future__ import annotations

import hashlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from refmoe.draw import Draw
from refmoe.errors import ArgumentError
from refmoe.families.fills import FILLS, INPUT_FORMATS, Limits
from refmoe.families.quantize_expand import RUNS
from refmoe.families.real_data import SHIPPED, read_activations, tile_rows
from refmoe.families.suites import activation_cases, list_cases
from refmoe.families.vacuity import Sample, doubt
from refmoe.reference.quantize import quantize_mxfp8

BF16 = INPUT_FORMATS["bf16"]
FP16 = INPUT_FORMATS["fp16"]


def made(name: str, m: int, k: int, format: str = "bf16", seed: int = 7) -> NDArray[np.uint16]:
    return FILLS[name].make(INPUT_FORMATS[format], Draw(name, format, seed), m, k)


def blocks_of(patterns: NDArray[np.uint16]) -> NDArray[np.int64]:
    return patterns.reshape(-1, 32).astype(np.int64)


def amax_of(patterns: NDArray[np.uint16]) -> NDArray[np.int64]:
    return (blocks_of(patterns) & 0x7FFF).max(axis=1)


def test_the_random_stream_is_philox_and_its_words_never_change() -> None:
    # A repro string of today must make the same data in any later NumPy: these words are part of the contract.
    assert [hex(word) for word in Draw("gaussian", 7).words(2).tolist()] == FIRST_WORDS
    assert Draw("a").integers(6, (8,)).tolist() == FIRST_DICE


FIRST_WORDS = ["0x22acaf236fd6945a", "0x80e4717da3afeabf"]
FIRST_DICE = [3, 0, 4, 1, 1, 0, 2, 5]


@pytest.mark.parametrize("name", FILLS)
def test_the_data_of_a_seed_never_changes(name: str) -> None:
    digest = hashlib.sha256(made(name, 4, 416).tobytes() + made(name, 4, 416, "fp16").tobytes()).hexdigest()
    assert digest[:16] == DIGESTS[name]


DIGESTS = {
    "gaussian": "8b0e50da064ad37e",
    "wide-range": "66cc55c328902bcf",
    "rne-ties": "d5ede6a57e6d1928",
    "boundary-mantissas": "efc12b406a45b729",
    "scale-bytes": "379495ac5c6ad761",
    "fingerprint": "7b36443034b1d4eb",
    "exhaustive-max": "1f94cf58d702fed8",
    "exhaustive-element": "1ca550a35cdabb9e",
    "specials": "08d4e1302ee60ab0",
    "tiny": "d586b8b45bf7cfd3",
    "saturation": "366da307904ac34d",
}


@pytest.mark.parametrize("format", INPUT_FORMATS)
@pytest.mark.parametrize("name", FILLS)
def test_fills_depend_on_the_seed_and_take_empty_shapes(name: str, format: str) -> None:
    first, second = made(name, 8, 416, format, 1), made(name, 8, 416, format, 2)
    assert first.dtype == np.uint16
    assert first.shape == (8, 416)
    assert np.any(first != second)
    assert made(name, 0, 416, format).shape == (0, 416)


def test_rne_ties_are_ties_and_their_neighbours() -> None:
    elements = made("rne-ties", 64, 2880).view(ml_dtypes.bfloat16).astype(np.float64).reshape(-1, 32)
    scaled = np.abs(elements) / (np.abs(elements).max(axis=1, keepdims=True) / 448)
    codes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    ties = (codes[:-1] + codes[1:]) / 2
    exact = np.isin(scaled, ties)
    assert 0.4 < exact.mean() < 0.6
    # Each tie occurs with an even and with an odd code below it, so half up, half down and half away all fail.
    assert set(scaled[exact]) == set(ties)
    # The rest are the maxima, and neighbours one ulp of the input away: these tell a tie rule from a second rounding.
    near = np.abs(scaled[..., None] - ties).min(axis=-1) <= scaled * 2.0**-7
    assert np.all(near | (scaled == 448))


@pytest.mark.parametrize("format", [BF16, FP16], ids=lambda format: format.name)
def test_boundary_mantissas_are_all_there_and_the_boundaries_come_first(format: object) -> None:
    size = 1 << format.mantissa_bits  # type: ignore[attr-defined]
    found = amax_of(made("boundary-mantissas", size, 32, format.name)) % size  # type: ignore[attr-defined]
    assert set(found) == set(range(size))
    rceil, even = size * 3 // 4, size * 15 // 16
    assert {rceil, rceil + 1, rceil - 1, even, even - 1, 0, size - 1} <= set(found[:20])
    if format is BF16:
        assert (rceil, even) == (0x60, 0x78)


@pytest.mark.parametrize(("format", "count"), [("bf16", 249), ("fp16", 41)])
def test_scale_bytes_reach_every_scale_that_the_format_can_have(format: str, count: int) -> None:
    # BF16 under RCEIL: bytes 0 to 247 and NaN. FP16: 2^-24 has byte 127 - 24 - 8 = 95, 65504 has byte 135.
    values = made("scale-bytes", 128, 2048, format).view(INPUT_FORMATS[format].dtype)
    scales = set(np.unique(quantize_mxfp8(values).scales).tolist())
    largest = {"bf16": 247, "fp16": 135}[format]
    smallest = {"bf16": 0, "fp16": 95}[format]
    assert scales <= {*range(smallest, largest + 1), 255}
    assert len(scales) >= count - (0 if format == "bf16" else 12)
    if format == "bf16":
        assert scales == {*range(248), 255}


def test_fingerprints_differ_from_every_neighbour_that_a_layout_can_confuse() -> None:
    scales = quantize_mxfp8(made("fingerprint", 300, 2880).view(ml_dtypes.bfloat16)).scales.astype(np.int64)
    for rows, columns in [(1, 0), (8, 0), (16, 0), (32, 0), (64, 0), (128, 0), (0, 1), (0, 2), (0, 4), (1, 1), (32, 1)]:
        here, there = scales[: 300 - rows, : 90 - columns], scales[rows:, columns:]
        # RCEIL may add one to a scale, so that two different exponents can meet; almost never, and never in a row.
        assert np.mean(here == there) < 0.02


def test_exhaustive_max_makes_every_bf16_decide_a_block() -> None:
    blocks = blocks_of(made("exhaustive-max", 1024, 2048))
    top = blocks[np.arange(65536), np.arange(65536) % 32]
    assert set(top) == set(range(65536))
    # Nothing beside a finite maximum is larger than it, so it does decide.
    finite = (top & 0x7FFF) < BF16.infinity
    assert np.all((blocks & 0x7FFF).max(axis=1)[finite] == (top & 0x7FFF)[finite])


def test_exhaustive_element_holds_every_bf16_at_five_distances_below_the_maximum() -> None:
    blocks = blocks_of(made("exhaustive-element", 128, 2880))[: 2115 * 5]
    assert np.unique(blocks).size == 65536
    for part in np.split(blocks, 5):
        assert np.unique(part).size == 65536


def test_specials_hold_every_kind_of_block() -> None:
    patterns = made("specials", 64, 416)
    values = patterns.view(ml_dtypes.bfloat16).astype(np.float32).reshape(-1, 32)
    bits = blocks_of(patterns)
    nan, inf = np.isnan(values), np.isinf(values)
    assert np.any(np.all(bits == 0, axis=1))
    assert np.any(np.all(bits == 0x8000, axis=1))
    assert np.any(
        np.all((bits == 0) | (bits == 0x8000), axis=1) & np.any(bits == 0, axis=1) & np.any(bits == 0x8000, axis=1)
    )
    assert np.any(nan.all(axis=1))
    assert np.any(nan.any(axis=1) & inf.any(axis=1))
    assert np.any((nan.sum(axis=1) == 1) & ~inf.any(axis=1))
    assert np.any((values == np.inf).any(axis=1) & (values == -np.inf).any(axis=1))
    assert np.any(inf.any(axis=1) & (np.abs(values) < np.inf).any(axis=1) & ~nan.any(axis=1))


def test_tiny_blocks_lie_on_both_sides_of_scale_byte_zero() -> None:
    patterns = made("tiny", 16, 416)
    scales = quantize_mxfp8(patterns.view(ml_dtypes.bfloat16)).scales
    assert np.mean(scales == 0) > 0.5
    assert scales.max() >= 2
    assert np.any(amax_of(patterns) < 0x80)  # a block of subnormals


def test_saturation_puts_elements_past_464() -> None:
    values = made("saturation", 8, 416).view(ml_dtypes.bfloat16)
    scales = np.ldexp(1.0, np.frexp(np.abs(values.astype(np.float64).reshape(8, 13, 32)).max(axis=2))[1] - 1 - 8)
    scaled = np.abs(values.astype(np.float64).reshape(8, 13, 32)) / scales[..., None]
    assert np.mean(scaled >= 464) > 0.3
    assert scaled.max() < 512


def test_the_shipped_activations_are_real_hidden_states() -> None:
    shipped = read_activations(SHIPPED)
    assert (shipped.tensor, shipped.dtype, shipped.patterns.shape) == ("layer2.ffn_in", "bf16", (256, 384))
    values = shipped.patterns.view(ml_dtypes.bfloat16).astype(np.float32)
    # Outlier channels: what random data does not have.
    assert np.abs(values).max() > 10 * values.std()


def test_rows_are_tiled_by_joining_them() -> None:
    rows = np.arange(12, dtype=np.uint16).reshape(3, 4)
    assert tile_rows(rows, 2, 6).tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert tile_rows(rows, 2, 8, first_row=2).tolist() == [[8, 9, 10, 11, 0, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]]


def test_a_users_tensor_becomes_cases_whose_strings_find_it_again(tmp_path: Path) -> None:
    path = tmp_path / "hidden states: a@b.safetensors"
    tensor = np.arange(2 * 3 * 64, dtype=np.float16).reshape(2, 3, 64)
    save_file({"model.layers.0:in": tensor, "other": tensor.astype(np.float32)}, path)
    cases = activation_cases(f"{path}:model.layers.0:in")
    assert {case.family for case in cases} == {"mxfp8_quantize", "expand"}
    assert {(case.shape.m, case.shape.k, case.dtype) for case in cases} == {(6, 64, "fp16")}
    inputs = RUNS["mxfp8_quantize"].inputs(next(case for case in cases if case.family == "mxfp8_quantize"))
    assert np.asarray(inputs["x"]).tobytes() == tensor.tobytes()


def test_a_file_with_one_tensor_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    save_file({"x": np.ones((4, 32), ml_dtypes.bfloat16)}, path)
    assert activation_cases(str(path))[0].tensor == "x"


@pytest.mark.parametrize(
    ("tensors", "name", "found"),
    [
        ({"x": np.ones((4, 32), np.float32)}, "x", "F32 tensor 'x'"),
        ({"x": np.ones((4, 33), np.float16)}, "x", r"shape \[4, 33\]"),
        ({"x": np.ones(32, np.float16)}, "x", r"shape \[32\]"),
        ({"x": np.ones((0, 32), np.float16)}, "x", "without rows"),
        ({"x": np.ones((4, 32), np.float16)}, "y", "no tensor 'y'"),
        ({"x": np.ones((4, 32), np.float16), "y": np.ones((4, 32), np.float16)}, "", "2 tensors"),
    ],
)
def test_unusable_tensors_are_refused(
    tmp_path: Path, tensors: dict[str, NDArray[np.generic]], name: str, found: str
) -> None:
    path = tmp_path / "x.safetensors"
    save_file(tensors, path)
    with pytest.raises(ArgumentError, match=found):
        activation_cases(f"{path}:{name}" if name else str(path))


@pytest.mark.parametrize("content", [b"", b"no safetensors at all", b"\xff" * 64])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match="undamaged safetensors file"):
        activation_cases(str(path))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(SHIPPED.read_bytes()[:-1])
    with pytest.raises(ArgumentError, match="undamaged safetensors file"):
        activation_cases(str(path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no file at"):
        activation_cases(str(tmp_path / "none.safetensors"))


@pytest.mark.parametrize("case", list_cases("quick", arch="sm_120a"), ids=str)
def test_no_listed_case_is_vacuous(case: object) -> None:
    run = RUNS[case.family]  # type: ignore[attr-defined]
    expectation = run.expect(case, run.inputs(case))  # type: ignore[arg-type]
    assert expectation.doubt is None


def sample(code: int, scale: int = 127, spoiled: int = 0) -> Sample:
    codes = np.full((4, 320), 0x38, np.uint8)
    codes.reshape(-1)[:spoiled] = code
    scales = (np.arange(40) % 3 + scale).astype(np.uint8).reshape(4, 10)
    return Sample(codes, scales)


@pytest.mark.parametrize(
    ("code", "word"),
    [(0x00, "zero"), (0x80, "zero"), (0x7E, "saturated"), (0xFE, "saturated"), (0x7F, "NaN"), (0xFF, "NaN")],
)
def test_too_many_codes_of_a_kind_are_doubted(code: int, word: str) -> None:
    limits = Limits(zeros=0.1, saturated=0.1, nans=0.1)
    assert doubt(sample(code, spoiled=128), limits) is None  # 128 of 1280 is exactly the limit
    text = doubt(sample(code, spoiled=129), limits)
    assert text is not None
    assert word in text


def test_equal_scales_are_doubted_unless_they_are_not_part_of_the_data() -> None:
    codes = np.full((4, 320), 0x38, np.uint8)
    same = Sample(codes, np.full((4, 10), 127, np.uint8))
    assert "1 distinct scale bytes in 40 blocks, fewer than 2" in str(doubt(same, Limits(scales=2)))
    assert doubt(same, Limits(scales=2), scales_copied=False) is None


def test_a_case_without_rows_is_not_doubted() -> None:
    assert doubt(Sample(np.zeros((0, 32), np.uint8), np.zeros((0, 1), np.uint8)), Limits()) is None
