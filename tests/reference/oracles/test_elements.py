"""Element rounding and FLOOR scales against gfloat and ml_dtypes, which know nothing of MX blocks or of our tables."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from support.mx_blocks import INPUTS, adversarial_blocks, fast, finite_only

from refmoe.formats import E2M1, E4M3, Format
from refmoe.policy import EdgePolicy, ScaleMode

ML_DTYPES = {E4M3: ml_dtypes.float8_e4m3fn, E2M1: ml_dtypes.float4_e2m1fn}
GFLOAT = {E4M3: "format_info_ocp_e4m3", E2M1: "format_info_ocp_e2m1"}


def finite_blocks(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Adversarial and ordinary blocks without NaN or infinity, as bits and as float64."""
    _, kind, unsigned = INPUTS[dtype]
    random = np.random.default_rng(5)
    ordinary = random.standard_normal((256, 32)) * np.exp2(random.integers(-10, 8, (256, 1)))
    bits = np.concatenate([adversarial_blocks(dtype), ordinary.astype(kind).view(unsigned)])
    bits = finite_only(bits, dtype)
    return bits, bits.view(kind).astype(np.float64)


@pytest.mark.parametrize("mode", list(ScaleMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("element", ML_DTYPES, ids=lambda element: element.name)
@pytest.mark.parametrize("dtype", INPUTS)
def test_codes_are_ml_dtypes_casts_of_the_scaled_values(dtype: str, element: Format, mode: ScaleMode) -> None:
    """Clipped first, because ml_dtypes makes a NaN of what we saturate; -0 and all signs compared too."""
    bits, x = finite_blocks(dtype)
    codes, scales = fast(bits, dtype, element, mode, EdgePolicy.EXACT)
    scaled = np.clip(x * np.exp2(127.0 - scales[:, None]), -float(element.max), float(element.max))
    np.testing.assert_array_equal(codes, scaled.astype(ML_DTYPES[element]).view(np.uint8))


@pytest.mark.parametrize("element", GFLOAT, ids=lambda element: element.name)
@pytest.mark.parametrize("dtype", INPUTS)
def test_floor_blocks_are_gfloats(dtype: str, element: Format) -> None:
    """gfloat's scale, from a float64 log2 that is exact enough for any input here, and its saturating round to even."""
    gfloat = pytest.importorskip("gfloat")
    block = pytest.importorskip("gfloat.block")
    info = getattr(pytest.importorskip("gfloat.formats"), GFLOAT[element])
    bits, x = finite_blocks(dtype)
    codes, scales = fast(bits, dtype, element, ScaleMode.FLOOR, EdgePolicy.EXACT)
    theirs = np.array([block.compute_scale_amax(info.emax, row) for row in x])
    np.testing.assert_array_equal(np.exp2(scales - 127.0), theirs)
    rounded = gfloat.round_ndarray(info, x / theirs[:, None], gfloat.RoundMode.TiesToEven, True)
    np.testing.assert_array_equal(codes, gfloat.encode_ndarray(info, rounded))
