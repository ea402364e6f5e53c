"""DeepGEMM's published block FP8 casts, restated on torch, against the policy `deepgemm`.

`deep_gemm/utils/math.py` has them: `per_token_cast_to_fp8` and `per_block_cast_to_fp8`, with `ceil_to_ue8m0` on bits.
Below is what they compute, not their text. Earlier releases multiplied by 448 / amax; that is another rounding, see the
last test.

What differs on purpose, each held by a test here:

- the sign of a NaN code (torch keeps it, a GPU's conversion gives 0x7F), and the bits of a NaN scale;
- nothing else: not even what becomes of an infinity.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.catalog import parse_case
from refmoe.families.block_fp8 import BLOCK_FP8_QUANTIZE
from refmoe.reference.block_fp8 import BlockFP8Tensor, quantize_block_fp8

torch = pytest.importorskip("torch")

BLOCKS = {"1x128": 1, "128x128": 128}


def to_torch(x: NDArray[Any]) -> Any:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def ceil_to_ue8m0(x: Any) -> Any:
    bits = x.abs().float().view(torch.int32)
    field = ((bits >> 23) & 0xFF) + (bits & 0x7FFFFF).bool().int()
    return (field.clamp(1, 254) << 23).view(torch.float32)


def cast(x: NDArray[Any], block: str, scales: str, *, former: bool = False) -> BlockFP8Tensor:
    """DeepGEMM's cast of a matrix, padded with zeros to whole tiles; `former` as its first releases had it."""
    rows, k = x.shape
    height = BLOCKS[block]
    padded = torch.nn.functional.pad(to_torch(x), (0, -k % 128, 0, -rows % height))
    tiles = padded.view(padded.shape[0] // height, height, padded.shape[1] // 128, 128)
    amax = tiles.abs().float().amax(dim=(1, 3), keepdim=True).clamp(1e-4)
    sf = amax / 448.0
    sf = ceil_to_ue8m0(sf) if scales == "ue8m0" else sf
    factor = 448.0 / amax if former else 1.0 / sf
    codes = (tiles * factor).to(torch.float8_e4m3fn).view(padded.shape)[:rows, :k]
    return BlockFP8Tensor(
        codes.contiguous().view(torch.uint8).numpy(), sf.view(tiles.shape[0], tiles.shape[2]).numpy(), block
    )


CASES = [
    f"block_fp8_quantize:{dtype}:{shape}:{fill}:{option}seed{seed}@ptx"
    for dtype in BLOCK_FP8_QUANTIZE.dtypes
    for fill in BLOCK_FP8_QUANTIZE.fills
    for shape, option, seed in (("m40k2880", "", 3), ("m200k416", "block=128x128:", 4))
]


@pytest.mark.parametrize("scales", ["fp32", "ue8m0"])
@pytest.mark.parametrize("text", CASES)
def test_codes_and_scales_are_deepgemms(text: str, scales: str) -> None:
    case = parse_case(text)
    x = case.family.inputs(case)["x"]
    ours = quantize_block_fp8(x, block=case.block, scales=scales)
    theirs = cast(x, case.block, scales)
    nan = (theirs.codes & 0x7F) == 0x7F
    np.testing.assert_array_equal(ours.codes[~nan], theirs.codes[~nan])
    assert (ours.codes[nan] == 0x7F).all()
    bad = np.isnan(theirs.scales)
    np.testing.assert_array_equal(ours.scales.view(np.uint32)[~bad], theirs.scales.view(np.uint32)[~bad])
    assert (ours.scales.view(np.uint32)[bad] == 0x7FFFFFFF).all()
    assert (nan.any() or bad.any()) == (case.fill == "specials")


def test_torch_keeps_the_sign_of_a_nan_and_a_gpu_does_not() -> None:
    x = np.zeros((1, 128), np.float32)
    x.view(np.uint32)[0, :2] = 0x7FC00000, 0xFFC00000
    theirs, ours = cast(x, "1x128", "ue8m0"), quantize_block_fp8(x, scales="ue8m0")
    assert theirs.codes[0, :3].tolist() == [0x7F, 0xFF, 0]
    assert ours.codes[0, :3].tolist() == [0x7F, 0x7F, 0]


def test_an_infinity_leaves_zeros_and_a_finite_scale_under_ue8m0() -> None:
    """What `exact` is there for: an infinity wipes out its tile, and UE8M0 scales do not show it."""
    x = np.ones((1, 128), np.float32)
    x[0, 7] = np.inf
    for cast_once in (lambda: cast(x, "1x128", "ue8m0"), lambda: quantize_block_fp8(x, scales="ue8m0")):
        tensor = cast_once()
        assert tensor.scales[0, 0] == np.float32(2.0**127)
        assert tensor.codes[0, 7] == 0x7E
        assert (np.delete(tensor.codes, 7) == 0).all()


@pytest.mark.parametrize(("dtype", "least", "most"), [(ml_dtypes.bfloat16, 500, 2500), (np.float32, 0, 20)])
def test_the_former_formula_is_another_policy_with_the_same_scales(dtype: Any, least: int, most: int) -> None:
    """448 / amax rounds once, 1 / (amax / 448) twice. BF16 elements lie on ties, so 0.1 % of their codes differ."""
    x = np.random.default_rng(0).standard_normal((1000, 1280)).astype(dtype)
    now, former = quantize_block_fp8(x), cast(x, "1x128", "fp32", former=True)
    assert now.scales.tobytes() == former.scales.tobytes()
    assert least <= (now.codes != former.codes).sum() <= most
    # Neighbours, on either side of a tie.
    assert np.abs((now.codes & 0x7F).astype(int) - (former.codes & 0x7F)).max() <= 1
