"""The expand step against its scalar specification, byte for byte, and the planted faults that this must catch."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from refmoe.formats import BF16, E4M3, FP16
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference.expand import Expanded, build_permutation, expand
from refmoe.reference.layout import grouped_scale_rows, swizzle_scales
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.reference.scalar import decode, quantize_block
from refmoe.reference.scalar import expand as scalar
from refmoe.reference.scalar import layout as scalar_layout

LAYOUTS = ["128x4", "8x4", "linear"]


def choices(tokens: int, k: int, experts: int, seed: int = 0) -> np.ndarray:
    """k different experts for each token."""
    return np.argsort(np.random.default_rng(seed).random((tokens, experts)), axis=1)[:, :k].astype(np.int32)


def ready(tokens: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales in which no two tokens and no two neighbouring blocks are alike."""
    token, column = np.mgrid[:tokens, :width]
    codes = ((token * 89 + column * 7 + column // 32 * 31) % 251).astype(np.uint8)
    token, block = np.mgrid[:tokens, : width // 32]
    scales = ((token * 37 + block * 101 + block // 4 * 7 + 1) % 251).astype(np.uint8)
    return codes, scales


def same_as_specification(
    result: Expanded,
    codes: np.ndarray,
    scales: np.ndarray,
    ids: np.ndarray,
    experts: int,
    layout: str,
    fill: int,
    first: int,
) -> None:
    permuted = scalar.build_permutation(ids.tolist(), experts, first)
    assert result.offsets.dtype == np.int64
    assert result.offsets.tolist() == permuted.offsets
    for found, expected in (
        (result.permuted_to_unpermuted, permuted.permuted_to_unpermuted),
        (result.unpermuted_to_permuted, permuted.unpermuted_to_permuted),
    ):
        assert found.dtype == np.int32
        assert found.tolist() == expected
    rows = scalar.expand_rows(codes.tolist(), scales.tolist(), permuted, layout, fill)
    assert result.codes.shape == (ids.size, codes.shape[1])
    assert result.codes.tobytes() == rows.codes
    assert result.scales.ndim == 1
    assert result.scales.tobytes() == rows.scales


# K on both sides of the 128 that its scales are padded to; one and several choices; fewer, as many and more tokens than
# experts; a rank that owns all experts, some, the last one, none that is chosen.
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("tokens", "width", "k", "experts", "first", "owned"),
    [
        (1, 32, 1, 1, 0, 1),
        (1, 128, 4, 8, 0, 8),
        (1, 160, 4, 128, 0, 128),
        (3, 96, 2, 4, 0, 4),
        (5, 256, 1, 3, 0, 3),
        (7, 160, 3, 8, 2, 3),
        (7, 64, 8, 8, 7, 1),
        (6, 32, 2, 8, 8, 4),
        (150, 32, 2, 2, 0, 2),
        (140, 160, 1, 3, 1, 2),
    ],
)
def test_ready_rows(tokens: int, width: int, k: int, experts: int, first: int, owned: int, layout: str) -> None:
    ids = choices(tokens, k, experts)
    codes, scales = ready(tokens, width)
    for fill in (0x00, 0xFF):
        result = expand(codes, ids, owned, layout=layout, input_sf=scales, first_expert=first, fill=fill)
        same_as_specification(result, codes, scales, ids, owned, layout, fill, first)
    swizzled = swizzle_scales(scales, "128x4", fill=0xEE)
    again = expand(
        codes, ids, owned, layout=layout, input_sf=swizzled, input_sf_layout="128x4", first_expert=first, fill=0xFF
    )
    assert again.scales.tobytes() == result.scales.tobytes()
    assert again.codes.tobytes() == result.codes.tobytes()


@pytest.mark.parametrize(("dtype", "fmt"), [(ml_dtypes.bfloat16, BF16), (np.float16, FP16)])
@pytest.mark.parametrize("mode", list(ScaleMode))
@pytest.mark.parametrize("edge", [EdgePolicy.EXACT, EdgePolicy.FLASHINFER])
def test_fused_rows(dtype: type, fmt, mode: ScaleMode, edge: EdgePolicy) -> None:
    # Any 16 bits are a value, NaN and Inf included; the second token has none, so that its blocks are not all poisoned.
    bits = np.random.default_rng(3).integers(0, 1 << 16, (3, 160), np.uint16)
    bits[1] &= np.uint16(0xBFFF)
    x = bits.view(dtype)
    blocks = [
        [
            quantize_block([decode(int(code), fmt) for code in row[32 * b : 32 * b + 32]], E4M3, mode, edge)
            for b in range(5)
        ]
        for row in bits
    ]
    codes = np.array([[code for block in row for code in block.codes] for row in blocks], np.uint8)
    scales = np.array([[block.scale for block in row] for row in blocks], np.uint8)
    ids = choices(3, 2, 4)
    for layout in LAYOUTS:
        result = expand(x, ids, 4, mode=mode, edge=edge, layout=layout, fill=0x7F)
        same_as_specification(result, codes, scales, ids, 4, layout, 0x7F, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_input_scales_they_are_zero(layout: str) -> None:
    codes, scales = ready(5, 160)
    ids = choices(5, 2, 4)
    result = expand(codes, ids, 4, layout=layout, fill=0xFF)
    same_as_specification(result, codes, scales * np.uint8(0), ids, 4, layout, 0xFF, 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_tokens(layout: str) -> None:
    result = expand(np.zeros((0, 160), np.float16), np.zeros((0, 4), np.int32), 3, layout=layout, fill=0x5A)
    assert result.codes.shape == (0, 160)
    assert result.offsets.tolist() == [0, 0, 0, 0]
    assert result.permuted_to_unpermuted.shape == result.unpermuted_to_permuted.shape == (0,)
    assert result.scales.tobytes() == b"\x5a" * (384 * 8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_columns(layout: str) -> None:
    result = expand(np.zeros((2, 0), ml_dtypes.bfloat16), np.array([[0], [1]], np.int32), 2, layout=layout)
    assert result.codes.shape == (2, 0)
    assert result.scales.shape == (0,)
    assert result.offsets.tolist() == [0, 1, 2]


def test_the_permutation_alone_by_hand() -> None:
    # Two ranks of choice over three tokens: the first choices of all tokens come before the second ones.
    permutation = build_permutation(np.array([[2, 0], [0, 2], [2, 1]], np.int32), 4)
    assert permutation.offsets.tolist() == [0, 2, 3, 6, 6]
    assert permutation.permuted_to_unpermuted.tolist() == [1, 3, 5, 0, 2, 4]
    assert permutation.unpermuted_to_permuted.tolist() == [3, 0, 4, 1, 5, 2]


def test_ids_of_other_ranks_get_no_row() -> None:
    ids = np.array([[2, 0], [-1, 3], [9, 2**31 - 1]], np.int32)
    permutation = build_permutation(ids, 2, first_expert=2)
    assert permutation.offsets.tolist() == [0, 1, 2]
    assert permutation.permuted_to_unpermuted.tolist() == [0, 4, -1, -1, -1, -1]
    assert permutation.unpermuted_to_permuted.tolist() == [0, -1, -1, -1, 1, -1]


def test_many_experts_and_rows_are_the_specification() -> None:
    ids = choices(300, 8, 256, seed=5)
    permutation = build_permutation(ids, 100, first_expert=60)
    expected = scalar.build_permutation(ids.tolist(), 100, 60)
    assert permutation.offsets.tolist() == expected.offsets
    assert permutation.permuted_to_unpermuted.tolist() == expected.permuted_to_unpermuted
    assert permutation.unpermuted_to_permuted.tolist() == expected.unpermuted_to_permuted


# Faults that have shipped, each planted in a copy of the specification. The comparison above must tell them apart.

Offset = Callable[[int, int, int], int]
Base = Callable[[int, int], int]


def right_offset(m: int, b: int, blocks: int) -> int:
    return scalar_layout.scale_offset("128x4", m, b, blocks)


def planted(
    codes: np.ndarray,
    scales: np.ndarray,
    permuted: scalar.Permuted,
    offset: Offset = right_offset,
    base: Base = scalar_layout.base_row,
    also_first_row_of_empty_experts: bool = False,
) -> bytes:
    """Scales of all rows in 128x4, filled with 0xFF, with one step replaced."""
    rows, experts, blocks = len(permuted.permuted_to_unpermuted), len(permuted.offsets) - 1, scales.shape[1]
    out = bytearray(b"\xff" * (grouped_scale_rows(rows, experts) * -(-blocks // 4) * 4))
    for expert, (first, last) in enumerate(zip(permuted.offsets, permuted.offsets[1:], strict=False)):
        stop = first + 1 if first == last and also_first_row_of_empty_experts else last
        for row in range(first, min(stop, rows)):
            token = permuted.permuted_to_unpermuted[row] % codes.shape[0]
            for block in range(-(-blocks // 4) * 4):
                scale = int(scales[token, block]) if block < blocks else 0
                out[offset(base(first, expert) + row - first, block, blocks) % len(out)] = scale
    return bytes(out)


def case() -> tuple[np.ndarray, np.ndarray, np.ndarray, scalar.Permuted]:
    ids = np.array([[2, 0], [0, 2], [2, 0], [3, 2], [0, 5]], np.int32)  # experts 1 and 4 stay empty
    codes, scales = ready(5, 160)
    return codes, scales, ids, scalar.build_permutation(ids.tolist(), 6)


def not_interleaved(m: int, b: int, blocks: int) -> int:
    return m // 128 * -(-blocks // 4) * 512 + b // 4 * 512 + m % 128 * 4 + b % 4


def tile_of_8_rows(m: int, b: int, blocks: int) -> int:
    return scalar_layout.scale_offset("8x4", m, b, blocks)


def no_127_rule(first: int, expert: int) -> int:
    return -(-first // 128) * 128


def no_alignment(first: int, expert: int) -> int:
    return first


def base_of_the_next_expert(first: int, expert: int) -> int:
    return scalar_layout.base_row(first, expert + 1)


@pytest.mark.parametrize(
    "fault",
    [
        {"offset": not_interleaved},
        {"offset": tile_of_8_rows},
        {"base": no_127_rule},
        {"base": no_alignment},
        {"base": base_of_the_next_expert},
        {"also_first_row_of_empty_experts": True},
    ],
    ids=lambda fault: str(*(getattr(value, "__name__", name) for name, value in fault.items())),
)
def test_a_planted_fault_shows(fault: dict) -> None:
    codes, scales, ids, permuted = case()
    right = expand(codes, ids, 6, input_sf=scales, fill=0xFF).scales.tobytes()
    assert planted(codes, scales, permuted) == right
    assert planted(codes, scales, permuted, **fault) != right


def test_an_expert_offset_off_by_one_shows() -> None:
    codes, scales, ids, permuted = case()
    right = expand(codes, ids, 6, input_sf=scales, fill=0xFF).scales.tobytes()
    for expert in range(1, 6):
        offsets = list(permuted.offsets)
        offsets[expert] += 1 if offsets[expert] < offsets[expert + 1] else -1
        assert planted(codes, scales, permuted._replace(offsets=offsets)) != right


def test_an_unstable_order_shows() -> None:
    codes, scales, ids, permuted = case()
    result = expand(codes, ids, 6, input_sf=scales, fill=0xFF)
    first, last = permuted.offsets[2:4]
    rows = list(permuted.permuted_to_unpermuted)
    rows[first:last] = rows[first:last][::-1]
    unstable = permuted._replace(permuted_to_unpermuted=rows)
    assert last - first > 1
    assert planted(codes, scales, unstable) != result.scales.tobytes()
    assert scalar.expand_rows(codes.tolist(), scales.tolist(), unstable, "128x4", 0xFF).codes != result.codes.tobytes()


def test_order_by_token_first_shows() -> None:
    # index = token * k + k_rank, the other common convention, sorts rows 4 (token 0) and 5 (token 1) differently.
    ids = case()[2]
    token_major = sorted(range(ids.size), key=lambda index: (int(ids.reshape(-1)[index]), index))
    as_ours = [index % 2 * 5 + index // 2 for index in token_major]
    assert as_ours != build_permutation(ids, 6).permuted_to_unpermuted.tolist()


def test_fused_is_quantize_then_expand() -> None:
    x = (np.random.default_rng(9).standard_normal((33, 2880)) * 3).astype(ml_dtypes.bfloat16)
    ids = choices(33, 4, 32)
    for mode in ScaleMode:
        quantized = quantize_mxfp8(x, mode=mode)
        swizzled = swizzle_scales(quantized.scales, "128x4", fill=0xFF)
        for layout in LAYOUTS:
            fused = expand(x, ids, 32, mode=mode, layout=layout, fill=0xFF)
            linear = expand(quantized.codes, ids, 32, layout=layout, input_sf=quantized.scales, fill=0xFF)
            tiled = expand(
                quantized.codes, ids, 32, layout=layout, input_sf=swizzled, input_sf_layout="128x4", fill=0xFF
            )
            for other in (linear, tiled):
                assert fused.codes.tobytes() == other.codes.tobytes()
                assert fused.scales.tobytes() == other.scales.tobytes()
