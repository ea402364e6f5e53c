"""DeepGEMM's UE8M0 cast, restated on torch, against the `deepgemm` edge."""

from __future__ import annotations

import numpy as np
import pytest
from support.mx_blocks import INPUTS, adversarial_blocks, fast, finite_only

from refmoe.formats import E4M3
from refmoe.policy import EdgePolicy, ScaleMode

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_finite_blocks_are_deepgemms(dtype: str) -> None:
    """Its steps: amax at least 1e-4, over 448, up to a power of two by the bits, times the reciprocal, torch's cast."""
    bits = finite_only(adversarial_blocks(dtype), dtype)
    x = torch.from_numpy(bits.view(INPUTS[dtype][1]).astype(np.float32))
    ratio = (x.abs().amax(dim=1).clamp(min=1e-4) / 448.0).numpy().view(np.int32)
    exponent = np.clip((ratio >> 23) + ((ratio & 0x7FFFFF) != 0), 1, 254)
    scale = torch.from_numpy((exponent << 23).astype(np.int32).view(np.float32))
    theirs = (x * (1.0 / scale)[:, None]).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    codes, scales = fast(bits, dtype, E4M3, ScaleMode.RCEIL, EdgePolicy.DEEPGEMM)
    np.testing.assert_array_equal(scales, exponent)
    np.testing.assert_array_equal(codes, theirs)
    # The floor shows: zero blocks have byte 105, and nothing is below it.
    assert scales.min() == 105
