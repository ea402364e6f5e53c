"""torchao 0.18.0's `to_mx` against the `exact` edge: equal bytes, except for the divergences declared here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
import pytest
from support.mx_blocks import INPUTS, adversarial_blocks, fast

from refmoe.formats import E2M1, E4M3, Format
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference.layout import unpack_fp4

torch = pytest.importorskip("torch")
if find_spec("torchao") is None:
    pytest.skip("torchao is not installed", allow_module_level=True)

RCEIL, BY_EXPONENT = (ScaleMode.RCEIL,), (ScaleMode.FLOOR, ScaleMode.CEIL, ScaleMode.EVEN)
MODES = RCEIL + BY_EXPONENT


@dataclass(frozen=True)
class Blocks:
    """What the divergences are told by: FP32 magnitude bits [n, 32] and our scale bytes [n]."""

    magnitude: np.ndarray
    scales: np.ndarray

    @property
    def has_nan(self) -> np.ndarray:
        return (self.magnitude > 0x7F800000).any(axis=1)

    @property
    def has_infinity(self) -> np.ndarray:
        return (self.magnitude == 0x7F800000).any(axis=1)

    @property
    def amax_mantissa(self) -> np.ndarray:
        return self.magnitude.max(axis=1) & 0x7FFFFF


@dataclass(frozen=True)
class Divergence:
    """Blocks on which torchao may differ, and why. At least one of them must: a divergence that went away is news."""

    reason: str
    modes: tuple[ScaleMode, ...]
    elements: tuple[Format, ...]
    dtypes: tuple[str, ...]
    blocks: Callable[[Blocks], np.ndarray]


DIVERGENCES = (
    Divergence(
        "scale byte 0 is applied as 1, not as 2^127, so tiny blocks become zeros",
        *(RCEIL, (E4M3, E2M1), ("bf16", "fp32"), lambda b: (b.scales == 0) & (b.magnitude.max(axis=1) > 0)),
    ),
    Divergence(
        "scale byte 0 is applied as 2^-126, the smallest normal FP32 number",
        *(BY_EXPONENT, (E4M3, E2M1), ("bf16", "fp32"), lambda b: (b.scales == 0) & (b.magnitude.max(axis=1) > 0)),
    ),
    Divergence(
        "an infinity is a large number: scale 254, or its exponent field's, and it saturates",
        *(MODES, (E4M3, E2M1), ("bf16", "fp32"), lambda b: b.has_infinity & ~b.has_nan),
    ),
    Divergence(
        "beside a NaN the scale is 0xFF, but finite codes are x / Inf = 0 and a NaN's code keeps its sign",
        *(BY_EXPONENT, (E4M3,), ("bf16", "fp32"), lambda b: b.has_nan),
    ),
    Divergence(
        "the FP4 code of a NaN is what its bits give, ours is 0 (the scale, 0xFF, is the same)",
        *(MODES, (E2M1,), ("bf16", "fp32"), lambda b: b.has_nan),
    ),
    Divergence(
        "log2 in FP32 rounds amax / max just above a power of two down to it: scale one too small",
        *(RCEIL, (E4M3,), ("fp32",), lambda b: np.isin(b.amax_mantissa, (0x600001, 0x600002))),
    ),
    Divergence(
        "log2 in FP32 rounds amax / max just above a power of two down to it: scale one too small",
        *(RCEIL, (E2M1,), ("fp32",), lambda b: np.isin(b.amax_mantissa, (0x400001, 0x400002))),
    ),
)


def random_blocks(dtype: str) -> np.ndarray:
    """Ordinary activations, 2,048 blocks over 40 binades."""
    random = np.random.default_rng(7)
    x = random.standard_normal((2048, 32)) * np.exp2(random.integers(-20, 20, (2048, 1)))
    return x.astype(INPUTS[dtype][1]).view(INPUTS[dtype][2])


def torchao(bits: np.ndarray, dtype: str, element: Format, mode: ScaleMode) -> tuple[np.ndarray, np.ndarray]:
    # Five seconds, which only the process that runs these tests has to wait for.
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    if dtype == "bf16":
        x = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    else:
        x = torch.from_numpy(bits.view(np.float32))
    kind = torch.float8_e4m3fn if element is E4M3 else torch.float4_e2m1fn_x2
    scales, codes = to_mx(x, kind, 32, ScaleCalculationMode[mode.name])
    unpacked = codes.view(torch.uint8).numpy().reshape(len(bits), -1)
    return unpacked if element is E4M3 else unpack_fp4(unpacked), scales.view(torch.uint8).numpy().reshape(-1)


def differences(bits: np.ndarray, dtype: str, element: Format, mode: ScaleMode) -> tuple[np.ndarray, Blocks]:
    codes, scales = fast(bits, dtype, element, mode, EdgePolicy.EXACT)
    their_codes, their_scales = torchao(bits, dtype, element, mode)
    wide = bits.astype(np.uint32) << 16 if dtype == "bf16" else bits
    return (codes != their_codes).any(axis=1) | (scales != their_scales), Blocks(wide & 0x7FFFFFFF, scales)


def test_torchao_is_the_pinned_one() -> None:
    assert version("torchao") == "0.18.0"


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("element", [E4M3, E2M1], ids=lambda element: element.name)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_ordinary_blocks_are_equal(dtype: str, element: Format, mode: ScaleMode) -> None:
    different, _ = differences(random_blocks(dtype), dtype, element, mode)
    assert different.sum() == 0


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("element", [E4M3, E2M1], ids=lambda element: element.name)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_adversarial_blocks_differ_where_declared_and_nowhere_else(
    dtype: str, element: Format, mode: ScaleMode
) -> None:
    different, blocks = differences(adversarial_blocks(dtype), dtype, element, mode)
    declared = np.zeros_like(different)
    for divergence in DIVERGENCES:
        if mode in divergence.modes and element in divergence.elements and dtype in divergence.dtypes:
            affected = divergence.blocks(blocks)
            assert (different & affected).any(), f"gone: {divergence.reason}"
            declared |= affected
    assert np.flatnonzero(different & ~declared).tolist() == []
