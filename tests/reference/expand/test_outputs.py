"""The outputs of expand but MXFP8 against the specification, byte for byte, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.formats import BF16, FP16, FP32
from refmoe.reference.expand import OUTPUTS, expand_as
from refmoe.reference.layout import pack_fp4
from refmoe.reference.nvfp4 import nvfp4_encode_scale, tensor_amax
from refmoe.reference.scalar import expand as scalar
from refmoe.reference.scalar import nvfp4 as scalar_nvfp4
from refmoe.reference.scalar.arithmetic import cast, divide, multiply

DTYPES = {"bf16": (np.dtype(ml_dtypes.bfloat16), BF16), "fp16": (np.dtype(np.float16), FP16)}
TOKENS, WIDTH, EXPERTS, FIRST = 5, 80, 6, 2
ONE = 0x3F800000


def choices() -> NDArray[np.int32]:
    """Three of nine experts for each token, some of them of other ranks."""
    return np.argsort(np.random.default_rng(3).random((TOKENS, 9)), axis=1)[:, :3].astype(np.int32)


def tokens(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Rows of different size, a row of zeros, and one with a NaN; ties under the row's own scale."""
    random = np.random.default_rng(4)
    x = random.standard_normal((TOKENS, WIDTH)) * np.exp2(random.integers(-6, 3, (TOKENS, 1)))
    x[0] = np.ldexp(random.integers(1, 256, WIDTH), -4)
    x[0, 0] = 448
    x[1] = np.where(np.arange(WIDTH) % 2, 0.0, -0.0)
    x[2, 5] = np.nan
    return x.astype(dtype)


def bits(x: NDArray[Any]) -> list[list[int]]:
    wide: list[list[int]] = x.astype(np.float32).view(np.uint32).tolist()
    return wide


def prescaled(rows: list[list[int]], factors: list[int], dtype: str) -> list[list[int]]:
    """FP32 bits of the products, each rounded to FP32 and then to the type."""
    fmt = DTYPES[dtype][1]
    narrow = [[cast(multiply(x, f), fmt) for x, f in zip(row, factors, strict=True)] for row in rows]
    array = np.array(narrow, np.uint16).view(DTYPES[dtype][0]).astype(np.float32)
    return np.where(np.isnan(array), np.uint32(FP32.nan_code), array.view(np.uint32)).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("output", OUTPUTS)
def test_every_byte_is_that_of_the_specification(output: str, scaled: bool, dtype: str) -> None:
    if output == "copy" and scaled:
        return
    x, ids = tokens(DTYPES[dtype][0]), choices()
    factors = (np.random.default_rng(5).standard_normal(WIDTH) * 3).astype(x.dtype) if scaled else None
    factor = {"nvfp4": nvfp4_encode_scale(tensor_amax(x)), "fp8_tensor": np.float32(0.37)}.get(output)
    made = expand_as(
        x, ids, EXPERTS, output, encode_scale=factor, prescale=factors, layout="8x4", first_expert=FIRST, fill=0xEE
    )
    permuted = scalar.build_permutation(ids.tolist(), EXPERTS, FIRST)
    assert made.offsets.tolist() == permuted.offsets
    rows = bits(x) if factors is None else prescaled(bits(x), bits(factors[None])[0], dtype)
    used = permuted.offsets[-1]

    if output == "copy":
        assert made.scales is None
        assert made.codes.dtype == x.dtype
        expected = scalar.expand_bytes(x.view(np.uint8).tolist(), permuted, 0xEE)
    elif output == "nvfp4":
        assert factor is not None
        g = int(factor.view(np.uint32))
        blocks = [[scalar_nvfp4.quantize_block(row[at : at + 16], g) for at in range(0, WIDTH, 16)] for row in rows]
        codes = np.array([[code for block in row for code in block.codes] for row in blocks], np.uint8)
        scales = [[block.scale for block in row] for row in blocks]
        placed = scalar.expand_blocks_of_16(pack_fp4(codes).tolist(), scales, permuted, "8x4", 0xEE)
        expected = placed.codes
        assert made.scales is not None
        assert made.scales.tobytes() == placed.scales
    else:
        own = [scalar.token_factor(row) if factor is None else int(factor.view(np.uint32)) for row in rows]
        codes8 = [[scalar.fp8_code(x, own[number]) for x in row] for number, row in enumerate(rows)]
        expected = scalar.expand_bytes(codes8, permuted, 0xEE)
        if factor is None:
            assert made.scales is not None
            found = made.scales.view(np.uint32).tolist()
            sources = [permuted.permuted_to_unpermuted[row] % TOKENS for row in range(used)]
            assert found[:used] == [divide(ONE, own[token]) for token in sources]
            assert found[used:] == [0xEEEEEEEE] * (len(found) - used)
    assert made.codes.tobytes() == expected
    assert used < ids.size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("layout", ["128x4", "8x4", "linear"])
def test_a_global_scale_for_each_expert_is_that_of_the_specification(layout: str, scaled: bool, dtype: str) -> None:
    x, ids = tokens(DTYPES[dtype][0]), choices()
    factors = (np.random.default_rng(5).standard_normal(WIDTH) * 3).astype(x.dtype) if scaled else None
    of_experts = (nvfp4_encode_scale(tensor_amax(x)) / np.arange(1, 2 * EXPERTS, 2)).astype(np.float32)
    made = expand_as(
        *(x, ids, EXPERTS, "nvfp4"),
        encode_scale=of_experts,
        prescale=factors,
        layout=layout,
        first_expert=FIRST,
        fill=0xEE,
    )
    rows = bits(x) if factors is None else prescaled(bits(x), bits(factors[None])[0], dtype)
    permuted = scalar.build_permutation(ids.tolist(), EXPERTS, FIRST)
    expected = scalar.expand_by_expert(rows, of_experts.view(np.uint32).tolist(), permuted, layout, 0xEE)
    assert made.codes.tobytes() == expected.codes
    assert made.scales is not None
    assert made.scales.tobytes() == expected.scales
    # One scale for all, said for each expert, is one scale; these are not.
    one, each = (
        expand_as(x, ids, EXPERTS, "nvfp4", encode_scale=scale, layout=layout, first_expert=FIRST, fill=0xEE)
        for scale in (of_experts[0], np.full(EXPERTS, of_experts[0]))
    )
    assert one.codes.tobytes() == each.codes.tobytes()
    assert one.codes.tobytes() != made.codes.tobytes()


def test_scales_of_tokens_at_the_ends_of_the_range() -> None:
    x = np.zeros((4, 32), ml_dtypes.bfloat16)
    x[1, 3], x[2, 7], x[3, 1] = 1e-40, 3e38, np.inf
    made = expand_as(x, np.zeros((4, 1), np.int32), 1, "fp8_token")
    assert made.scales is not None
    # A zero token, one whose factor would be infinite, one near the largest number, and one that is not finite.
    assert made.scales.view(np.uint32)[[0, 1, 3]].tolist() == [ONE, 0x00200000, 0x7FFFFFFF]
    assert made.codes[2, 7] == 0x7E
    assert (made.codes[3] == 0x7F).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": "mxfp4"}, "output: found str 'mxfp4'; needed one of nvfp4, fp8_tensor, fp8_token, copy"),
        ({"output": "nvfp4"}, "encode_scale: found None; needed the float32 factor of nvfp4"),
        ({"output": "fp8_tensor", "encode_scale": 0.0}, "encode_scale: .* above 0"),
        (
            {"output": "fp8_tensor", "encode_scale": np.ones(EXPERTS, np.float32)},
            "encode_scale: .* a float32 above 0, finite",
        ),
        (
            {"output": "nvfp4", "encode_scale": np.ones(EXPERTS + 1, np.float32)},
            rf"encode_scale: .* float32 \[{EXPERTS}\]",
        ),
        ({"output": "nvfp4", "encode_scale": np.ones(EXPERTS)}, rf"encode_scale: .* float32 \[{EXPERTS}\]"),
        ({"output": "nvfp4", "encode_scale": np.zeros(EXPERTS, np.float32)}, "encode_scale: .* above 0"),
        ({"output": "fp8_token", "encode_scale": 1.0}, "encode_scale: .* None: fp8_token takes no scale"),
        ({"output": "copy", "prescale": np.ones(WIDTH, ml_dtypes.bfloat16)}, "prescale: .* a copy changes nothing"),
        ({"output": "fp8_token", "prescale": np.ones(WIDTH, np.float32)}, r"prescale: .* bfloat16 \[80\]"),
        ({"output": "fp8_token", "prescale": np.ones(16, ml_dtypes.bfloat16)}, r"prescale: .* bfloat16 \[80\]"),
        ({"output": "fp8_token", "x": np.zeros((TOKENS, WIDTH), np.uint8)}, "x: .* a bfloat16 or float16 array$"),
        ({"output": "fp8_token", "x": np.zeros((TOKENS, 24), np.float16)}, "x: .* K a multiple of 16"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments = {"x": tokens(DTYPES["bf16"][0]), "topk_ids": choices(), "num_experts": EXPERTS, **changes}
    with pytest.raises(ArgumentError, match=message):
        expand_as(**arguments)
