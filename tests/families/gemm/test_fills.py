from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import Shape
from refmoe.families.gemm.fills import FILLS, PADDED_K, GemmData
from refmoe.families.real_data import FFN
from refmoe.reference.dequantize import dequantize_mxfp4, dequantize_mxfp8
from refmoe.reference.layout import unpack_fp4

SIZE = Shape(m=12, k=416, n=40, e=3)


def made(name: str, size: Shape = SIZE, seed: int = 7) -> GemmData:
    return FILLS[name].make(Draw(name, seed), size)


def values(data: GemmData) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The real numbers that the operands stand for, float64 [T, K] and [E, N, K]."""
    tokens = dequantize_mxfp8(data.tokens.codes, data.tokens.scales)
    weights = dequantize_mxfp4(data.weights.codes, data.weights.scales)
    return tokens.astype(np.float64), weights.astype(np.float64)


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("size", [SIZE, Shape(1, 96, n=8, e=1), Shape(0, 128, n=16, e=2)])
def test_every_fill_makes_operands_of_the_size_asked_for(name: str, size: Shape) -> None:
    data = made(name, size)
    assert (data.tokens.format, data.weights.format) == ("mxfp8", "mxfp4")
    assert data.tokens.shape == (size.m, size.k)
    assert data.weights.shape == (size.e, size.n, size.k)


@pytest.mark.parametrize("name", FILLS)
def test_a_seed_decides_every_byte(name: str) -> None:
    """But not of the fill that has every byte: nothing is left to draw."""

    def digest(seed: int) -> str:
        data = made(name, seed=seed)
        parts = (data.tokens.codes, data.tokens.scales, data.weights.codes, data.weights.scales)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    assert digest(7) == digest(7)
    assert (digest(7) != digest(8)) == (name != "scale-bytes")


@pytest.mark.parametrize("k", [32, 416, 2880, 7168])
def test_the_lattice_is_whole_numbers_without_zeros_whose_sums_fp32_holds_exactly(k: int) -> None:
    tokens, weights = values(made("integer", Shape(4, k, n=8, e=2)))
    assert (tokens == np.round(tokens)).all()
    assert (weights == np.round(weights)).all()
    assert (tokens != 0).all()
    assert (weights != 0).all()
    # Not only the sum but every partial sum in any order stays below 2^24, past which FP32 skips whole numbers.
    assert np.einsum("tk,enk->ten", np.abs(tokens), np.abs(weights)).max() <= 2**24


def test_one_hot_rows_have_one_element_and_weights_take_every_k_in_turn() -> None:
    assert (np.count_nonzero(made("one-hot-tokens").tokens.codes & 0x7F, axis=1) == 1).all()
    size = Shape(2, 416, n=416, e=1)
    codes = unpack_fp4(made("one-hot-weights", size).weights.codes)[0] & 7
    assert (np.count_nonzero(codes, axis=1) == 1).all()
    assert set(np.nonzero(codes)[1].tolist()) == set(range(416))


@pytest.mark.parametrize("name", ["one-hot-tokens", "one-hot-weights"])
def test_fingerprints_differ_wherever_a_layout_could_mistake_one_scale_for_another(name: str) -> None:
    scales = made(name, Shape(136, 416, n=136, e=2)).weights.scales.astype(int)
    # The next expert, the row 32 further on in the atom, 64 for another tile height, 1, and the next K-block and word.
    assert (scales[1:] != scales[:-1]).all()
    for step in (1, 8, 32, 64):
        assert (scales[:, step:] != scales[:, :-step]).all()
    for step in (1, 4):
        assert (scales[..., step:] != scales[..., :-step]).all()


def test_wide_range_data_is_cut_by_the_alignment_of_the_tensor_core() -> None:
    """Terms below 2^(E - 25) exist in most blocks, else nothing of the model's truncation would show."""
    tokens, weights = values(made("wide-range"))
    products = tokens[:, None, :] * weights[0][None, :, :]
    sums = np.abs(np.cumsum(products, axis=2))
    smallest = np.where(products != 0, np.abs(products), np.inf).min(axis=2)
    assert np.mean(sums[..., -1] > 2.0**26 * smallest) > 0.5


def test_positive_data_has_no_zero_and_no_sign() -> None:
    tokens, weights = values(made("positive"))
    assert (tokens > 0).all()
    assert (weights > 0).all()


def test_specials_hold_every_kind() -> None:
    data = made("specials", Shape(12, 416, n=21, e=2))
    assert (data.tokens.codes & 0x7F == 0x7F).any()
    for scales in (data.tokens.scales, data.weights.scales):
        assert {0x00, 0xFE, 0xFF} <= set(np.unique(scales).tolist())
    tokens, weights = values(data)
    # Every sixth token meets every seventh weight row in subnormal sums, which a flush to zero would lose ...
    products = tokens[5::6, None, :] * weights[0, None, 4::7, :]
    sums = np.abs(products.sum(axis=2))
    assert ((sums > 0) & (sums < 2.0**-126)).all()
    # ... and whose blocks have largest exponents on both sides of the floor of the alignment.
    largest = np.frexp(np.abs(products).reshape(-1, 32).max(axis=1))[1] - 1
    assert largest.min() < -133 < largest.max()


def test_shared_weights_are_one_experts() -> None:
    weights = made("shared-weights").weights
    assert (weights.codes == weights.codes[:1]).all()
    assert (weights.scales == weights.scales[:1]).all()


def test_padded_tokens_end_in_zeros_of_both_signs_under_the_largest_scale() -> None:
    tokens = made("zero-padded").tokens
    assert set(np.unique(tokens.codes[:, -PADDED_K:]).tolist()) == {0x00, 0x80}
    assert (tokens.codes[:, :-PADDED_K] & 0x7F).any(axis=1).all()
    assert (tokens.scales[:, -PADDED_K // 32 :] == 0xFE).all()


def test_the_shipped_weights_are_small_and_real() -> None:
    assert FFN.stat().st_size < 700_000
    tokens, weights = values(made("real", Shape(9, 384, n=80, e=4)))
    assert np.unique(weights.reshape(-1, 384), axis=0).shape[0] == 320  # every row of the file, each in one expert
    # Outlier channels: the largest activation is far out, as Gaussian data never is.
    assert np.abs(tokens).max() > 6 * tokens.std()
