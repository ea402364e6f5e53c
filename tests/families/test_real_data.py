"""Tensors of files: the shipped ones are real, and a user's becomes cases or a sentence that says why not."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from refmoe.catalog import activation_cases
from refmoe.errors import ArgumentError
from refmoe.families.real_data import FFN_INPUT, read_activations, tile_rows


def test_the_shipped_activations_are_real_hidden_states() -> None:
    shipped = read_activations(FFN_INPUT)
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
    assert {case.family.name for case in cases} == {"mxfp8_quantize", "expand"}
    assert {(case.shape.m, case.shape.k, case.dtype) for case in cases} == {(6, 64, "fp16")}
    case = next(case for case in cases if case.family.name == "mxfp8_quantize")
    inputs = case.family.inputs(case)
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
    path.write_bytes(FFN_INPUT.read_bytes()[:-1])
    with pytest.raises(ArgumentError, match="undamaged safetensors file"):
        activation_cases(str(path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no file at"):
        activation_cases(str(tmp_path / "none.safetensors"))
