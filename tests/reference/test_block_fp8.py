"""Block FP8: the fast reference against the specification, its edges, and what it refuses."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.formats import BLOCK_FP8, E4M3
from refmoe.models.block_scaled import BlockScaledWeight
from refmoe.reference.block_fp8 import POLICIES, SCALES, BlockFP8Tensor, lay_out, quantize_block_fp8
from refmoe.reference.fp32 import fp32_bits
from refmoe.reference.scalar.block_fp8 import QuantizedTile, dequantize, quantize_tile

VARIANTS = list(itertools.product(POLICIES, SCALES))
FLOOR = 0x38D1B717  # 1e-4


def bits_matrix(rows: list[list[int]]) -> NDArray[np.float32]:
    return np.array(rows, np.uint32).view(np.float32)


def tiles(x: NDArray[Any], block: str) -> dict[tuple[int, int], NDArray[np.uint32]]:
    tile = BLOCK_FP8[block]
    bits = fp32_bits(x)
    return {
        (r, c): bits[r * tile.rows : (r + 1) * tile.rows, c * 128 : (c + 1) * 128]
        for r, c in np.ndindex(*tile.scale_shape(*x.shape))
    }


def same_as_specification(x: NDArray[Any], block: str, policy: str, scales: str) -> None:
    tensor = quantize_block_fp8(x, block=block, policy=policy, scales=scales)
    found = tiles(tensor.codes.astype(np.float32), block)  # only to cut the codes in the same way
    for place, elements in tiles(x, block).items():
        wanted = quantize_tile(elements.reshape(-1).tolist(), policy, scales)
        codes = found[place].view(np.float32).astype(int).reshape(-1)
        assert QuantizedTile(int(tensor.scales.view(np.uint32)[place]), tuple(codes.tolist())) == wanted, place


def adversarial() -> NDArray[np.uint32]:
    """FP32 bits [tiles, 128]: amax everywhere, ties and their neighbours, what is not finite."""
    random = np.random.default_rng(12)
    edge = [0, 1, 0x7FFFFF, 0x800000, FLOOR - 1, FLOOR, FLOOR + 1, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF]
    edge += [
        int(np.float32(448 * 2.0**e).view(np.uint32)) + step for e in (-134, -126, -9, 0, 119) for step in (-1, 0, 1)
    ]
    rows = []
    for top in [*edge, *random.integers(0, 0x7F800000, 60).tolist()]:
        magnitudes = np.minimum(random.integers(max(top - (20 << 23), 0), top + 1, 128), top)
        magnitudes[random.integers(128)] = top
        rows.append(magnitudes | random.integers(0, 2, 128) << 31)
    for seed in range(30):
        # Elements at the midpoints of codes, one step of FP32 to either side.
        scale = np.float32(random.uniform(0.5, 2) * 2.0 ** random.integers(-20, 20))
        values = np.abs(E4M3.values()[:127])
        ties = ((values[:-1] + values[1:]) / 2 * scale).astype(np.float32).view(np.uint32)
        row = np.empty(128, np.int64)
        row[:126] = ties + random.integers(-1, 2, 126)
        row[126:] = int(np.float32(448 * scale).view(np.uint32)), seed
        rows.append(np.maximum(row, 0) | random.integers(0, 2, 128) << 31)
    specials = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001, 0x3F800000, 0xBF000000])
    rows += [specials[random.integers(0, high, 128)] for high in (2, 3, 4, 5, 8, 8)]
    return np.array(rows).astype(np.uint32)


@pytest.mark.parametrize(("policy", "scales"), thinned(VARIANTS, 2))
def test_adversarial_tiles_are_those_of_the_specification(policy: str, scales: str) -> None:
    same_as_specification(adversarial().view(np.float32), "1x128", policy, scales)


@pytest.mark.parametrize(("policy", "scales"), VARIANTS)
@pytest.mark.parametrize(
    ("dtype", "block", "shape"),
    [
        (ml_dtypes.bfloat16, "1x128", (3, 320)),
        (np.float16, "1x128", (3, 192)),
        (np.float32, "1x128", (2, 130)),
        (ml_dtypes.bfloat16, "128x128", (131, 4)),
        (np.float16, "128x128", (3, 160)),
        (np.float32, "128x128", (130, 8)),
    ],
)
def test_tails_are_those_of_the_specification(
    dtype: Any, policy: str, scales: str, block: str, shape: tuple[int, int]
) -> None:
    x = np.random.default_rng(3).standard_normal(shape) * np.exp2(np.arange(shape[1]) // 64 * 3 - 6)
    same_as_specification(x.astype(dtype), block, policy, scales)


def test_every_code_dequantizes_as_the_specification_says() -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), (5, 1))
    bits = np.array([0x3F800000, 0x00800000, 0x7F000001, 0x7FFFFFFF, 0x3A924925], np.uint32)
    tensor = BlockFP8Tensor(codes, np.repeat(bits.view(np.float32)[:, None], 2, axis=1), "1x128")
    wanted = [[dequantize(code, scale) for code in range(256)] for scale in bits.tolist()]
    np.testing.assert_array_equal(tensor.dequantize().view(np.uint32), np.array(wanted, np.uint32))


def test_a_weight_dequantizes_as_a_checkpoint_reader_does() -> None:
    x = np.random.default_rng(5).standard_normal((200, 300)).astype(np.float32)
    tensor = quantize_block_fp8(x, block="128x128")
    theirs = BlockScaledWeight(tensor.codes, tensor.scales).dequantize()
    assert tensor.dequantize().tobytes() == theirs.tobytes()


def test_policies_differ_only_below_the_floor_and_where_a_tile_is_not_finite() -> None:
    x = adversarial().view(np.float32)
    for scales in SCALES:
        ours, theirs = (quantize_block_fp8(x, policy=policy, scales=scales) for policy in POLICIES)
        amax = (x.view(np.uint32) & 0x7FFFFFFF).max(axis=1)
        ordinary = (amax >= FLOOR) & (amax < 0x7F800000)
        assert 10 < ordinary.sum() < len(x)
        np.testing.assert_array_equal(ours.codes[ordinary], theirs.codes[ordinary])
        np.testing.assert_array_equal(ours.scales[ordinary], theirs.scales[ordinary])
        differs = (ours.scales.view(np.uint32) != theirs.scales.view(np.uint32))[:, 0]
        assert differs[amax < FLOOR - 1].all()
        assert differs[amax == 0x7F800000].all()
        # A NaN scale of FP32 makes NaN codes under both; a UE8M0 scale has no NaN.
        assert differs[amax > 0x7F800000].all() == (scales == "ue8m0")


def test_nothing_saturates_and_the_largest_element_has_the_largest_code() -> None:
    """amax * RN(1 / RN(amax / 448)) rounds to 448: E4M3's next code would begin at 464."""
    amax = np.random.default_rng(1).integers(0x00800000 + (9 << 23), 0x7F800000, 1 << 16).astype(np.uint32)
    tensor = quantize_block_fp8(np.ascontiguousarray(amax.view(np.float32)[:, None]), policy="exact")
    assert (tensor.codes == 0x7E).all()


def test_zeros_keep_their_sign_and_have_a_scale_that_can_be_divided_by() -> None:
    x = np.zeros((1, 128), np.float32)
    x[0, 1] = -0.0
    for scales in SCALES:
        exact, deepgemm = (quantize_block_fp8(x, policy=policy, scales=scales) for policy in ("exact", "deepgemm"))
        assert exact.codes[0, :3].tolist() == deepgemm.codes[0, :3].tolist() == [0, 0x80, 0]
        assert exact.scales[0, 0] == np.float32(2.0**-126)
        assert np.isfinite(np.float32(1) / exact.scales[0, 0])
    assert deepgemm.scales[0, 0] == np.float32(2.0**-22)  # 1e-4 / 448, up
    assert quantize_block_fp8(x).scales.view(np.uint32)[0, 0] == np.float32(np.float32(1e-4) / np.float32(448)).view(
        np.uint32
    )


def test_a_bad_element_poisons_its_tile_and_no_other() -> None:
    x = np.ones((3, 256), np.float32)
    x[1, 5], x[2, 200] = np.nan, -np.inf
    tensor = quantize_block_fp8(x, policy="exact")
    assert tensor.scales.view(np.uint32)[[1, 2], [0, 1]].tolist() == [0x7FFFFFFF] * 2
    assert (tensor.codes[1, :128] == 0x7F).all()
    assert (tensor.codes[2, 128:] == 0x7F).all()
    assert np.isfinite(np.delete(tensor.scales.reshape(-1), [2, 5])).all()
    assert np.isnan(tensor.dequantize()).sum() == 256


def test_layouts() -> None:
    scales = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert lay_out(scales, "k_major").reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
    assert lay_out(scales, "mn_major").reshape(-1).tolist() == [0, 3, 1, 4, 2, 5]
    with pytest.raises(ArgumentError, match="layout: found str 'rows'; needed k_major or mn_major"):
        lay_out(scales, "rows")


def test_empty_matrices() -> None:
    for block in BLOCK_FP8:
        for shape in ((0, 256), (3, 0), (0, 0)):
            tensor = quantize_block_fp8(np.zeros(shape, np.float32), block=block)
            assert tensor.codes.shape == shape
            assert tensor.dequantize().shape == shape


@pytest.mark.parametrize(
    ("x", "words", "message"),
    [
        (np.zeros((2, 4)), {}, r"x: found float64 \[2, 4\]; needed bfloat16, float16 or float32 \[M, K\]"),
        (np.zeros(4, np.float32), {}, r"x: found float32 \[4\]; needed"),
        (np.zeros((4, 4), np.float32).T[:, ::2], {}, "needed a C-contiguous array"),
        (np.zeros((2, 4), np.float32), {"block": "1x32"}, "block: found str '1x32'; needed 1x128 or 128x128"),
        (np.zeros((2, 4), np.float32), {"policy": "te"}, "policy: found str 'te'; needed deepgemm or exact"),
        (np.zeros((2, 4), np.float32), {"scales": "fp16"}, "scales: found str 'fp16'; needed fp32 or ue8m0"),
    ],
)
def test_what_is_refused(x: Any, words: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        quantize_block_fp8(x, **words)


def test_a_tensor_of_parts_that_do_not_belong_together_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"scales: .*; needed float32 \[2, 1\]"):
        BlockFP8Tensor(np.zeros((2, 4), np.uint8), np.zeros((1, 1), np.float32), "1x128")
    with pytest.raises(ArgumentError, match="codes: "):
        BlockFP8Tensor(np.zeros(4, np.uint8), np.zeros((1, 1), np.float32), "1x128")
