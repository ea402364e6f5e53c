"""Operands of masked GEMMs: the codes are the quantizers', and every scale lies where FlashInfer's shape puts it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refmoe.errors import ArgumentError
from refmoe.formats import NVFP4
from refmoe.reference.moe.masked import MASKED_FORMS, masked_operand
from refmoe.reference.nvfp4 import nvfp4_encode_scale, quantize_nvfp4, tensor_amax
from refmoe.reference.quantize import quantize

BF16 = ml_dtypes.bfloat16
EXPERTS, ROWS, WIDTH = 3, 130, 416


def data() -> Any:
    random = np.random.default_rng(5)
    return (random.standard_normal((EXPERTS, ROWS, WIDTH)) * np.exp2(random.integers(-9, 9, (1, ROWS, 1)))).astype(BF16)


def six_modes(scales: Any, experts: int) -> Any:
    """The buffer of linear scales [E, M, B] as FlashInfer has it: physically (l, rm, rk, 32, 4, 4)."""
    _, rows, blocks = scales.shape
    rm, rk = -(-rows // 128), -(-blocks // 4)
    buffer = np.full((experts, rm, rk, 32, 4, 4), 0xEE, np.uint8)
    for m in range(rm * 128):
        for b in range(rk * 4):
            value = scales[:, m, b] if m < rows and b < blocks else (0xEE if m >= rows else 0)
            buffer[:, m // 128, b // 4, m % 32, m % 128 // 32, b % 4] = value
    return buffer.reshape(-1)


@pytest.mark.parametrize("form", MASKED_FORMS)
def test_codes_are_the_quantizers_and_scales_lie_as_six_modes(form: str) -> None:
    x, counts = data(), np.array([ROWS, 0, 77], np.int32)
    nvf4 = form == "nvf4"
    factors = np.array([nvfp4_encode_scale(tensor_amax(part)) for part in x], np.float32) if nvf4 else None
    made = masked_operand(x, form, masked_m=counts, encode_scales=factors, fill=0xEE)
    block = MASKED_FORMS[form].block
    scales = np.full((EXPERTS, ROWS, WIDTH // block), 0xEE, np.uint8)
    for expert, count in enumerate(counts.tolist()):
        part = x[expert, :count]
        own: Any = quantize(part, {"mxf8": "mxfp8", "mxf4": "mxfp4"}.get(form, "")) if factors is None else None
        if factors is not None:
            own = quantize_nvfp4(part, global_encode_scale=factors[expert])
        assert made.codes[expert, :count].tobytes() == own.codes.tobytes()
        assert (made.codes[expert, count:] == 0xEE).all()
        scales[expert, :count] = own.scales
    assert made.scales.tobytes() == six_modes(scales, EXPERTS).tobytes()
    assert made.codes.shape[-1] == WIDTH // MASKED_FORMS[form].codes_a_byte
    assert np.unique(scales).size > 8


def test_all_rows_count_by_default() -> None:
    made = masked_operand(data(), "mxf8")
    assert made.masked_m.tolist() == [ROWS] * EXPERTS
    assert made.masked_m.dtype == np.int32


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ("mxf8e5", {}, "form: found str 'mxf8e5'; needed one of mxf8, mxf4, nvf4"),
        ("nvf4", {}, r"encode_scales: .* float32 \[3\], one for each expert"),
        ("mxf4", {"encode_scales": np.ones(3, np.float32)}, r"encode_scales: .* None: mxf4 has no global scale"),
        ("mxf4", {"masked_m": np.array([1, 2], np.int32)}, r"masked_m: .* int32 \[3\]"),
        ("mxf4", {"masked_m": np.array([1, 2, 131], np.int32)}, "masked_m: found 1 to 131; needed 0 to 130 rows"),
        ("mxf4", {"x": np.zeros((2, 32), BF16)}, r"x: .* \[E, M, K\]"),
        ("mxf4", {"x": np.zeros((1, 2, 48), BF16)}, r"x: .* a multiple of 32"),
    ],
)
def test_what_is_refused(form: str, changes: dict[str, Any], message: str) -> None:
    x = changes.pop("x", data())
    with pytest.raises(ArgumentError, match=message):
        masked_operand(x, form, **changes)


def test_the_block_of_nvf4_is_16() -> None:
    assert (NVFP4.block, NVFP4.scale.name) == (16, "ue4m3")
