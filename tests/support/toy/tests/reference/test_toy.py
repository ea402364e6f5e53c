"""The toy operation: equal to its specification."""

from __future__ import annotations

import numpy as np
import pytest
from refmoe.reference.scalar.toy import toy as specified
from refmoe.reference.toy import toy


@pytest.mark.parametrize("sign", ["plus", "minus"])
def test_equals_the_specification(sign: str) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((7, 64)) * 2.0 ** rng.integers(-140, 120, (7, 64))).astype(np.float32)
    x[:, ::4] = -x[:, 1::4]  # pairs that cancel
    assert toy(x, sign).view(np.uint32).tolist() == specified(x.view(np.uint32).tolist(), sign)
