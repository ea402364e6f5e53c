from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from refmoe.errors import ArgumentError
from refmoe.policy import EDGE_FORMATS, POLICIES, Policy, ScaleMode
from refmoe.reference import (
    MXTensor,
    dequantize_mxfp4,
    dequantize_mxfp8,
    quantize,
    quantize_mxfp4,
    quantize_mxfp8,
)

X = np.linspace(-3, 5, 4 * 64, dtype=np.float32).reshape(4, 64)
CODES, SCALES = np.zeros((4, 64), np.uint8), np.zeros((4, 2), np.uint8)


@pytest.mark.parametrize("function", [quantize_mxfp8, quantize_mxfp4])
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (
            X.astype(np.float64),
            r"x: found float64 \[4, 64\]; needed an array of ml_dtypes.bfloat16, float16 or float32",
        ),
        (X.astype(">f4"), "x: found >f4"),
        (X.tolist(), "x: found list"),
        (np.float32(1), "x: found float32"),
        (X[0, 0:1].reshape(()), "multiple of 32"),
        (X[:, :48].copy(), r"x: found float32 \[4, 48\]; needed a last dimension that is a multiple of 32"),
        (X[:, ::2], "not contiguous; needed a C-contiguous array"),
        (np.asfortranarray(np.zeros((32, 32), np.float16)), "not contiguous"),
    ],
)
def test_x_is_refused(function: object, x: object, words: str) -> None:
    with pytest.raises(ArgumentError, match=words) as caught:
        function(x)  # type: ignore[operator]
    assert caught.value.argument == "x"


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("shape", [(0, 64), (4, 0), (0,), (2, 0, 32)])
def test_empty_tensors_are_valid(dtype: type, shape: tuple[int, ...]) -> None:
    for function in (quantize_mxfp8, quantize_mxfp4):
        tensor = function(np.empty(shape, dtype))
        assert tensor.shape == shape
        assert tensor.scales.shape == (*shape[:-1], shape[-1] // 32)
        assert tensor.dequantize().shape == shape


def test_names_and_members_are_the_same() -> None:
    for function, format in ((quantize_mxfp8, "mxfp8"), (quantize_mxfp4, "mxfp4")):
        for mode in ScaleMode:
            for edge in [edge for edge, formats in EDGE_FORMATS.items() if format in formats]:
                by_name, by_member = function(X, mode=mode.value, edge=edge.value), function(X, mode=mode, edge=edge)
                np.testing.assert_array_equal(by_name.codes, by_member.codes)
                np.testing.assert_array_equal(by_name.scales, by_member.scales)
    with pytest.raises(ArgumentError, match="mode"):
        quantize_mxfp8(X, mode="up")
    with pytest.raises(ArgumentError, match="edge"):
        quantize_mxfp8(X, edge="ieee")


def test_an_edge_of_the_other_format_is_refused() -> None:
    for edge, formats in EDGE_FORMATS.items():
        for format, function in (("mxfp8", quantize_mxfp8), ("mxfp4", quantize_mxfp4)):
            if format in formats:
                function(X, edge=edge)
                continue
            with pytest.raises(ArgumentError, match=f"edge: found {edge.value} for {format}; needed one of exact, fl"):
                function(X, edge=edge)


@pytest.mark.parametrize(
    ("edge", "value", "words"),
    [
        ("transformer_engine", np.inf, "an infinity in block 5 of 32 elements"),
        ("transformer_engine", -np.inf, "an infinity in block 5"),
        ("deepgemm", np.inf, "a NaN or an infinity in block 5"),
        ("deepgemm", np.nan, "a NaN or an infinity in block 5"),
    ],
)
def test_undefined_blocks_are_refused_by_number(edge: str, value: float, words: str) -> None:
    x = X.copy()
    x[2, 40] = value
    with pytest.raises(ArgumentError, match=words):
        quantize_mxfp8(x, edge=edge)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("format", ["mxfp8", "mxfp4"])
def test_quantize_by_policy(name: str, format: str) -> None:
    policy = POLICIES[name]
    if format not in policy.formats:
        with pytest.raises(ArgumentError, match=f"format: found {format} with policy {name}"):
            quantize(X, format, policy=name)
    elif policy.edge is None:
        assert quantize(X, format, policy=policy).shape == X.shape
    else:
        tensor = quantize(X, format, policy=name)
        direct = (quantize_mxfp8 if format == "mxfp8" else quantize_mxfp4)(X, mode=policy.mode, edge=policy.edge)
        assert tensor.format == format
        np.testing.assert_array_equal(tensor.codes, direct.codes)
        np.testing.assert_array_equal(tensor.scales, direct.scales)


@pytest.mark.parametrize("policy", [Policy("own", ScaleMode.CEIL, None), replace(POLICIES["gguf"], name="ours")])
def test_a_policy_that_no_function_implements_is_refused(policy: Policy) -> None:
    with pytest.raises(ArgumentError, match=r"policy: found o.*, whose rules are its own"):
        quantize(X, policy.formats[0], policy=policy)


def test_quantize_refuses_other_formats() -> None:
    with pytest.raises(ArgumentError, match="format: found str 'mxint8'; needed mxfp8, mxfp4 or nvfp4"):
        quantize(X, "mxint8", policy="ocp")


@pytest.mark.parametrize(
    ("codes", "scales", "argument"),
    [
        (CODES.astype(np.int8), SCALES, "codes"),
        (CODES, SCALES.astype(np.float32), "scales"),
        (CODES[:, :40], SCALES, "codes"),
        (CODES[:, :40].copy(), SCALES, "codes"),
        (CODES, SCALES[:, :1].copy(), "scales"),
        (CODES, SCALES.reshape(-1), "scales"),
        (np.asfortranarray(CODES), SCALES, "codes"),
        (CODES, np.asfortranarray(SCALES), "scales"),
        ([0] * 32, SCALES, "codes"),
    ],
)
def test_dequantize_refuses(codes: np.ndarray, scales: np.ndarray, argument: str) -> None:
    for function in (dequantize_mxfp8, dequantize_mxfp4):
        with pytest.raises(ArgumentError) as caught:
            function(codes, scales)
        # 64 bytes of FP4 are 128 elements: the right codes of one format have the wrong scales for the other.
        assert caught.value.argument in (argument, "scales")


def test_dequantize_refuses_an_unknown_order() -> None:
    with pytest.raises(ArgumentError, match="order: found str 'odd-low'; needed even-low or gguf"):
        dequantize_mxfp4(CODES, np.zeros((4, 4), np.uint8), order="odd-low")


def test_mxtensor_refuses_what_does_not_belong_together() -> None:
    assert MXTensor(CODES, SCALES, "mxfp8").shape == (4, 64)
    assert MXTensor(CODES, np.zeros((4, 4), np.uint8), "mxfp4").shape == (4, 128)
    with pytest.raises(ArgumentError, match="format: found str 'fp8'; needed mxfp8 or mxfp4"):
        MXTensor(CODES, SCALES, "fp8")
    with pytest.raises(ArgumentError, match="codes"):
        MXTensor(CODES.astype(np.int64), SCALES, "mxfp8")
    with pytest.raises(ArgumentError, match="scales"):
        MXTensor(CODES, SCALES, "mxfp4")
    with pytest.raises(ArgumentError, match="scales"):
        MXTensor(np.zeros((4, 48), np.uint8), np.zeros((4, 1), np.uint8), "mxfp8")
    with pytest.raises(AttributeError):
        MXTensor(CODES, SCALES, "mxfp8").codes = SCALES  # type: ignore[misc]
