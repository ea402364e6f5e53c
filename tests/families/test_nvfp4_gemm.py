"""What the fills of the NVFP4 GEMM promise, and that a fault in their data shows."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe.draw import Draw
from refmoe.families.case import Shape
from refmoe.families.nvfp4_gemm import SM12X_NVFP4_GEMM
from refmoe.families.nvfp4_gemm.family import ASSUMPTION
from refmoe.families.nvfp4_gemm.fills import FILLS, Operands, Size
from refmoe.formats import E2M1, UE4M3
from refmoe.reference.layout import unpack_fp4
from refmoe.reference.nvfp4_gemm import nvfp4_grouped_gemm

SIZE = Size(rows=7, k=416, n=136, experts=3)
OFFSETS = np.array([0, 3, 3, 7])


def made(fill: str, size: Size = SIZE) -> Operands:
    data: Operands = FILLS[fill].make(Draw(fill, "test"), size)
    return data


def product(data: Operands) -> np.ndarray:
    return np.asarray(nvfp4_grouped_gemm(*data[:4], OFFSETS))


@pytest.mark.parametrize("fill", FILLS)
def test_shapes_and_types(fill: str) -> None:
    data = made(fill)
    assert data.tokens.shape == (7, 208)
    assert data.token_scales.shape == (7, 26)
    assert data.weights.shape == (3, 136, 208)
    assert data.weight_scales.shape == (3, 136, 26)
    assert {array.dtype for array in data[:4]} == {np.dtype(np.uint8)}
    assert (data.alpha is not None) == (fill in ("gaussian", "real", "overflow"))
    # NaN is in the fills that promise it, and in no other.
    nan = any((scales & 0x7F == 0x7F).any() for scales in (data.token_scales, data.weight_scales))
    assert nan == (fill in ("scale-bytes", "specials", "zero-specials"))


@pytest.mark.parametrize("k", [32, 416, 2880, 7168])
def test_magnitudes_of_whole_numbers_sum_to_at_most_2_to_24(k: int) -> None:
    data = made("integer", Size(3, k, 8, 2))
    left = np.abs(E2M1.values()[unpack_fp4(data.tokens)]) * np.repeat(UE4M3.values()[data.token_scales], 16, axis=-1)
    right = np.abs(E2M1.values()[unpack_fp4(data.weights)]) * np.repeat(UE4M3.values()[data.weight_scales], 16, axis=-1)
    assert (left >= 1).all()
    assert (right >= 1).all()
    assert np.einsum("tk,enk->ten", left, right).max() <= 2**24


def test_fingerprints_differ_from_their_neighbours() -> None:
    scales = made("one-hot-tokens").weight_scales
    for axis, strides in ((0, (1,)), (1, (1, 8, 16, 32, 64, 128)), (2, (1, 2, 4, 8))):
        for stride in strides:
            left = np.take(scales, np.arange(stride, scales.shape[axis]), axis)
            right = np.take(scales, np.arange(scales.shape[axis] - stride), axis)
            assert (left != right).all()


def test_every_byte_is_a_weight_scale() -> None:
    data = made("scale-bytes", Size(3, 96, 136, 4))
    assert np.unique(data.weight_scales).size == 256


@pytest.mark.parametrize("fill", ["one-hot-tokens", "wide-range", "cancelling", "specials", "scale-bytes"])
def test_a_scale_of_the_next_block_shows(fill: str) -> None:
    data = made(fill)
    if fill == "scale-bytes":
        shifted = data._replace(weight_scales=np.roll(data.weight_scales, 1, axis=1))  # a row's blocks are alike there
    else:
        shifted = data._replace(weight_scales=np.roll(data.weight_scales, 1, axis=2))
    assert (product(data).view(np.uint32) != product(shifted).view(np.uint32)).mean() > 0.2


def test_the_verdict_says_what_it_rests_on() -> None:
    assert (ASSUMPTION.model, ASSUMPTION.evidence) == ("sm120_nvf4", "published")
    assert "Extrapolated from SM90" in ASSUMPTION.text


def test_models_are_in_the_default_level() -> None:
    shapes = {case.shape for case in SM12X_NVFP4_GEMM.level("default")}
    assert Shape(4, 2880, n=8, e=128) in shapes
    assert any(shape.k == 7168 for shape in shapes)
    assert any(case.shape.m == case.shape.e >= 128 for case in SM12X_NVFP4_GEMM.level("full"))
