"""NVFP4 against other people's: torchao 0.18.0's `nvfp4_quantize`, and TransformerEngine's published formula.

TransformerEngine has no package that runs without a GPU. Its formula (its PyTorch reference quantizer, Apache-2.0,
`transformer_engine/pytorch/custom_recipes/reference_nvfp4.py`) is written here again with PyTorch's operations.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.formats import E2M1, UE4M3
from refmoe.reference.layout import unpack_fp4
from refmoe.reference.nvfp4 import nvfp4_encode_scale, quantize_nvfp4, tensor_amax

torch = pytest.importorskip("torch")

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [BF16, np.dtype(np.float32)]
STEPS = E2M1.values()[:8]
SCALES = UE4M3.values()[:127]
#: The code of 2^-6.
SMALLEST_NORMAL = 0x08


def ordinary(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Activations: 4,096 blocks whose maxima lie within five binades."""
    random = np.random.default_rng(11)
    return (random.standard_normal((256, 256)) * np.exp2(random.integers(-2, 2, (256, 1)))).astype(dtype)


def wide(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Blocks over 30 binades, zero blocks, zeros of both signs, and ties under a global scale of 32."""
    random = np.random.default_rng(12)
    x = random.standard_normal((256, 256)).reshape(-1, 16) * np.exp2(random.integers(-30, 1, (4096, 1)))
    ties = np.concatenate([(STEPS[:-1] + STEPS[1:]) / 2, STEPS, [6.0]])
    x[:127] = SCALES[:, None] * ties / 32
    x[200:210] = 0
    x[210:220, ::3] = -0.0
    x[-1, -1] = 84
    return x.reshape(256, 256).astype(dtype)


def tied(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Under a global scale that is no power of two: block maxima on ties of E4M3, and elements on ties of E2M1."""
    random = np.random.default_rng(13)
    g = 2688 / 83
    tops = (SCALES[SMALLEST_NORMAL:-1] + SCALES[SMALLEST_NORMAL + 1 :]) / 2 * 6 / g
    between = random.uniform(-0.9, 0.9, (tops.size, 16)) * tops[:, None]
    between[:, 0] = tops
    middles = np.resize((STEPS[:-1] + STEPS[1:]) / 2, (tops.size, 16)) * SCALES[SMALLEST_NORMAL:-1, None] / g
    middles[:, 0] = SCALES[SMALLEST_NORMAL:-1] * 6 / g
    x = np.concatenate([between, middles])
    x[-1, -1] = 83
    return x.astype(dtype)


def ours(x: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes [n, 16] and scales [n]."""
    made = quantize_nvfp4(x)
    return unpack_fp4(made.codes).reshape(-1, 16), made.scales.reshape(-1)


def as_torch(x: NDArray[Any]) -> Any:
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == BF16 else torch.from_numpy(x)


def nearest_codes(scaled: NDArray[np.float32]) -> NDArray[np.int64]:
    """Codes of magnitudes, ties to the even one: past a middle, or on it if the code under it is odd."""
    middles = ((STEPS[:-1] + STEPS[1:]) / 2).astype(np.float32)
    magnitude = np.abs(scaled)[..., None]
    passed = np.where(np.arange(7) % 2 == 0, magnitude > middles, magnitude >= middles)
    return np.asarray(passed.sum(axis=-1))


# --- TransformerEngine ----------------------------------------------------------------------------------------------


def transformer_engine(x: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    blocks = as_torch(x).to(torch.float32).reshape(-1, 16)
    largest = torch.tensor(torch.finfo(torch.float32).max)
    g = torch.minimum(torch.tensor(448.0 * 6.0) / blocks.abs().max(), largest)
    amax = blocks.abs().amax(dim=1, keepdim=True)
    wanted = torch.minimum(amax * (g * torch.reciprocal(torch.tensor(6.0))), largest)
    scales = wanted.clamp(-448, 448).to(torch.float8_e4m3fn)
    factor = torch.minimum(1.0 / (scales.to(torch.float32) * (1.0 / g)), largest)
    scaled = (blocks * factor).clamp(-6, 6).numpy()
    # Its table asks "x >= 0" first, so -0 is 0.
    codes = nearest_codes(scaled) | ((scaled < 0) * 8)
    return codes.astype(np.uint8), scales.view(torch.uint8).numpy().reshape(-1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", [ordinary, wide])
def test_transformer_engine_gives_the_same_bytes_but_for_the_sign_of_zero(make: Any, dtype: np.dtype[Any]) -> None:
    x = make(dtype)
    (codes, scales), (their_codes, their_scales) = ours(x), transformer_engine(x)
    assert np.array_equal(scales, their_scales)
    different = codes != their_codes
    # Declared: an element that is -0 has our code 8, as the conversion instruction gives, and 0 in the reference.
    minus_zero = x.astype(np.float32).reshape(-1, 16).view(np.uint32) == 0x80000000
    assert np.array_equal(different, minus_zero)
    assert minus_zero.any() == (make is wide)
    if make is wide:
        assert ((scales == 0) & (codes == 7).any(axis=1)).any()  # blocks whose scale is 0 have codes of 6


def test_a_nan_block_is_transformer_engines_where_the_global_scale_is_not_a_nan() -> None:
    # Its amax takes the NaN over, its scale is NaN then, and no comparison of its table holds: codes 0.
    x = np.ones((1, 32), np.float32)
    x[0, 3] = np.nan
    codes, scales = ours(x)
    assert (scales.tolist(), codes[0].any()) == ([0x7F, 0x7E], False)
    # Declared: it takes the NaN into the tensor's amax too, and so loses every block; here the others are sound.
    assert float(nvfp4_encode_scale(tensor_amax(x))) == 2688


# --- torchao --------------------------------------------------------------------------------------------------------


def torchao(x: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    amax = torch.tensor(float(tensor_amax(x)))
    scales, codes = nvfp4_quantize(as_torch(x), 16, per_tensor_amax_to_scale(amax))
    unpacked = unpack_fp4(codes.view(torch.uint8).numpy().reshape(x.shape[0], -1))
    return unpacked.reshape(-1, 16), scales.view(torch.uint8).numpy().reshape(-1)


class Rules(NamedTuple):
    """What torchao does otherwise than refmoe; each by itself."""

    floor: bool = False  # a scale is at least 2^-6, the smallest normal number of E4M3; so is that of zeros
    divides: bool = False  # amax / 6 / (amax of the tensor / 2688), where refmoe has amax * (g * fp32(1/6))
    two_quotients: bool = False  # a factor (1 / (amax of the tensor / 2688)) / scale, where it has 1 / (scale * (1/g))


TORCHAO = Rules(floor=True, divides=True, two_quotients=True)


def by_rules(x: NDArray[Any], rules: Rules) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes and scales by NVFP4's formula in FP32 under these rules. No tensor here is zero or beyond FP32's range."""
    one, largest = np.float32(1), np.finfo(np.float32).max
    blocks = x.astype(np.float32).reshape(-1, 16)
    amax, whole = np.abs(blocks).max(axis=1), np.abs(blocks).max()
    tensor_scale, g = whole / np.float32(2688), np.float32(2688) / whole
    wanted = amax / np.float32(6) / tensor_scale if rules.divides else amax * (g * (one / np.float32(6)))
    wanted = np.clip(wanted, np.float32(2.0**-6 if rules.floor else 0), np.float32(448))
    scales = torch.from_numpy(wanted).to(torch.float8_e4m3fn)
    values = scales.to(torch.float32).numpy()
    with np.errstate(divide="ignore"):
        factor = one / tensor_scale / values if rules.two_quotients else one / (values * (one / g))
    scaled = np.clip(blocks * np.minimum(factor, largest)[:, None], np.float32(-6), np.float32(6))
    return (nearest_codes(scaled) | np.signbit(scaled) * 8).astype(np.uint8), scales.view(torch.uint8).numpy()


def same(left: tuple[NDArray[Any], ...], right: tuple[NDArray[Any], ...]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


def test_torchao_is_the_pinned_one() -> None:
    pytest.importorskip("torchao")
    assert version("torchao") == "0.18.0"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", [ordinary, wide, tied])
def test_torchao_differs_by_three_rules_and_nothing_else(make: Any, dtype: np.dtype[Any]) -> None:
    """One formula gives every byte of both: refmoe's without the three rules, torchao's with them."""
    x = make(dtype)
    assert same(by_rules(x, Rules()), ours(x))
    assert same(by_rules(x, TORCHAO), torchao(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_floor_of_torchao_moves_every_lower_scale_and_no_other(dtype: np.dtype[Any]) -> None:
    x = wide(dtype)
    codes, scales = ours(x)
    low_codes, low_scales = by_rules(x, Rules(floor=True))
    low = scales < SMALLEST_NORMAL
    assert low.any()
    assert np.array_equal(low_scales, np.where(low, SMALLEST_NORMAL, scales))
    assert np.array_equal(low_codes[~low], codes[~low])
    assert (low_codes[low] & 7 <= codes[low] & 7).all()
    # On this data the floor is all: g = 32, by which both ways to divide are exact.
    assert same((low_codes, low_scales), torchao(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_quotients_of_torchao_move_scales_on_ties_to_their_neighbour(dtype: np.dtype[Any]) -> None:
    x = tied(dtype)
    (codes, scales), (other_codes, other_scales) = ours(x), by_rules(x, Rules(divides=True))
    moved = other_scales.astype(int) - scales
    assert set(np.abs(moved).tolist()) == {0, 1}
    assert np.array_equal(other_codes[moved == 0], codes[moved == 0])
    assert same((other_codes, other_scales), torchao(x)) == (dtype == BF16)  # no element of BF16 lies on a tie


def test_the_factor_of_torchao_moves_codes_on_ties_to_their_neighbour() -> None:
    x = tied(np.dtype(np.float32))
    (codes, scales), (other_codes, other_scales) = ours(x), by_rules(x, Rules(two_quotients=True))
    assert np.array_equal(other_scales, scales)
    assert set(np.abs(other_codes.astype(int) - codes).ravel().tolist()) == {0, 1}
    assert not (other_codes != codes)[: len(codes) // 2].any()


def test_torchao_clamps_an_infinity_and_keeps_finite_codes_beside_it() -> None:
    x = np.ones((1, 32), np.float32)
    x[0, 3] = np.inf
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

    scales, _ = nvfp4_quantize(torch.from_numpy(x), 16, torch.tensor(1 / 2688))
    assert scales.view(torch.uint8).numpy().reshape(-1).tolist() == [0x7E, 0x7E]
    assert ours(x)[1].tolist() == [0x7F, 0x7E]
