"""NVFP4 against other people's: torchao 0.18.0's `nvfp4_quantize`, and TransformerEngine's published formula.

TransformerEngine has no package that runs without a GPU. Its formula (its PyTorch reference quantizer, Apache-2.0,
`transformer_engine/pytorch/custom_recipes/reference_nvfp4.py`) is written here again with PyTorch's operations.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

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


def ours(x: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes [n, 16] and scales [n]."""
    made = quantize_nvfp4(x)
    return unpack_fp4(made.codes).reshape(-1, 16), made.scales.reshape(-1)


def as_torch(x: NDArray[Any]) -> Any:
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == BF16 else torch.from_numpy(x)


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
    # To nearest, ties to the even code: below a middle, or on it if the code under it is even.
    middles = (STEPS[:-1] + STEPS[1:]) / 2
    magnitude = np.abs(scaled)[..., None]
    passed = np.where(np.arange(7) % 2 == 0, magnitude > middles, magnitude >= middles)
    # Its table asks "x >= 0" first, so -0 is 0.
    codes = passed.sum(axis=-1) | ((scaled < 0) * 8)
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


def beside(values: NDArray[np.float64], middles: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Values on a middle but for a few FP32 roundings."""
    near = middles[np.clip(np.searchsorted(middles, values), 1, middles.size - 1) + np.array([[-1], [0]])]
    return np.asarray((np.abs(values - near) <= 2.0**-21 * near).any(axis=0))


def test_torchao_is_the_pinned_one() -> None:
    pytest.importorskip("torchao")
    assert version("torchao") == "0.18.0"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", [ordinary, wide])
def test_torchao_differs_where_declared_and_nowhere_else(make: Any, dtype: np.dtype[Any]) -> None:
    x = make(dtype)
    (codes, scales), (their_codes, their_scales) = ours(x), torchao(x)
    blocks = np.abs(x.astype(np.float64).reshape(-1, 16))
    g = float(nvfp4_encode_scale(tensor_amax(x)))
    wanted = blocks.max(axis=1) * g / 6
    other_scale, other_code = scales != their_scales, codes != their_codes

    # 1. Its scales are at least 2^-6, the smallest normal number of E4M3; zero blocks have that scale too.
    small = wanted < 2.0**-6 * (1 + 2.0**-4)
    assert (their_scales[small] == 0x08).all()
    # 2. It divides, amax / 6 / (amax of the tensor / 2688): a scale that lies on a tie may fall to the other side.
    on_a_tie = beside(wanted, (SCALES[:-1] + SCALES[1:]) / 2)
    assert np.flatnonzero(other_scale & ~small & ~on_a_tie).tolist() == []
    # 3. Its factor is (1 / tensor scale) / scale, ours 1 / (scale * (1/g)): so may an element on a tie.
    factor = g / np.maximum(SCALES[scales], 2.0**-9)
    tied = beside((blocks * factor[:, None]).ravel(), (STEPS[:-1] + STEPS[1:]) / 2).reshape(blocks.shape)
    same_scale = ~other_scale[:, None]
    assert np.argwhere(other_code & same_scale & ~tied).tolist() == []
    if make is wide:
        assert (other_scale & small).any(), "gone: scales of at least 2^-6"
    assert np.mean(other_scale & ~small) < 0.02
    assert np.mean(other_code & same_scale) < 0.02


def test_torchao_clamps_an_infinity_and_keeps_finite_codes_beside_it() -> None:
    x = np.ones((1, 32), np.float32)
    x[0, 3] = np.inf
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

    scales, _ = nvfp4_quantize(torch.from_numpy(x), 16, torch.tensor(1 / 2688))
    assert scales.view(torch.uint8).numpy().reshape(-1).tolist() == [0x7E, 0x7E]
    assert ours(x)[1].tolist() == [0x7F, 0x7E]
