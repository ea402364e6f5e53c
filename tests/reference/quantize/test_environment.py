"""The same bytes whatever the process does to its floating-point unit and its cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from support.mx_blocks import INPUTS, adversarial_blocks, fast

from refmoe.formats import E2M1, E4M3
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference import dequantize_mxfp4, dequantize_mxfp8

MODULES = [sys.modules[f"refmoe.reference.{name}"] for name in ("quantize", "dequantize")]


def _forget_tables() -> None:
    for module in MODULES:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


@pytest.fixture
def flushing() -> Iterator[None]:
    """Subnormals are zero on the way in and out of every float instruction, tables are built anew."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    _forget_tables()
    yield
    torch.set_flush_denormal(False)
    _forget_tables()


CASES = [(dtype, element) for dtype in INPUTS for element in (E4M3, E2M1)]
WANTED = {
    (dtype, element): fast(adversarial_blocks(dtype), dtype, element, ScaleMode.RCEIL, EdgePolicy.EXACT)
    for dtype, element in CASES
}
CODES = np.tile(np.arange(256), 32).reshape(256, 32).astype(np.uint8)
SCALES = np.arange(256, dtype=np.uint8)[:, None]
VALUES8 = dequantize_mxfp8(CODES, SCALES).view(np.uint32).copy()
VALUES4 = dequantize_mxfp4(CODES[:, :16].copy(), SCALES).view(np.uint32).copy()


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize(("dtype", "element"), CASES, ids=lambda value: getattr(value, "name", value))
def test_flush_to_zero_does_not_reach_quantization(dtype: str, element: object) -> None:
    assert np.float32(1e-40) * np.float32(1) == 0  # it is on
    codes, scales = fast(adversarial_blocks(dtype), dtype, element, ScaleMode.RCEIL, EdgePolicy.EXACT)
    np.testing.assert_array_equal(codes, WANTED[dtype, element][0])
    np.testing.assert_array_equal(scales, WANTED[dtype, element][1])


@pytest.mark.usefixtures("flushing")
def test_flush_to_zero_does_not_reach_dequantization() -> None:
    np.testing.assert_array_equal(dequantize_mxfp8(CODES, SCALES).view(np.uint32), VALUES8)
    np.testing.assert_array_equal(dequantize_mxfp4(CODES[:, :16].copy(), SCALES).view(np.uint32), VALUES4)


@pytest.mark.parametrize("cores", [1, 3])
def test_the_number_of_cores_does_not_show(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = np.random.default_rng(4).integers(0, 1 << 16, (40_000, 32), dtype=np.uint16)
    wanted = fast(bits, "bf16", E4M3, ScaleMode.RCEIL, EdgePolicy.EXACT)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    got = fast(bits, "bf16", E4M3, ScaleMode.RCEIL, EdgePolicy.EXACT)
    np.testing.assert_array_equal(got[0], wanted[0])
    np.testing.assert_array_equal(got[1], wanted[1])
