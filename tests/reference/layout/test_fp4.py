"""FP4 packing in both orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refmoe.reference.layout import pack_fp4, unpack_fp4
from refmoe.reference.scalar import layout as scalar

gguf = pytest.importorskip("gguf")

ORDERS = ["even-low", "gguf"]


def test_even_low_by_hand() -> None:
    assert pack_fp4(np.array([1, 2, 15, 0], np.uint8)).tolist() == [0x21, 0x0F]


def test_gguf_by_hand() -> None:
    codes = np.arange(32, dtype=np.uint8) % 16
    codes[16:] = codes[16:] ^ 15
    assert pack_fp4(codes, order="gguf").tolist() == [(15 - i) << 4 | i for i in range(16)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(32,), (3, 64), (2, 3, 96), (0, 32), (4, 0), (0,)])
def test_packing_is_the_specification(order: str, shape: tuple[int, ...]) -> None:
    codes = np.random.default_rng(1).integers(0, 16, shape, np.uint8)
    packed = pack_fp4(codes, order=order)
    assert packed.shape == (*shape[:-1], shape[-1] // 2)
    assert packed.dtype == np.uint8
    if codes.size:
        rows = codes.reshape(-1, shape[-1]).tolist()
        assert packed.tobytes() == b"".join(scalar.pack_fp4(row, order) for row in rows)
        assert unpack_fp4(packed, order=order).reshape(-1, shape[-1]).tolist() == [
            scalar.unpack_fp4(row, order) for row in packed.reshape(-1, shape[-1] // 2).tolist()
        ]


@pytest.mark.parametrize("order", ORDERS)
def test_every_byte_comes_back(order: str) -> None:
    packed = np.arange(256, dtype=np.uint8)
    assert pack_fp4(unpack_fp4(packed, order=order), order=order).tobytes() == packed.tobytes()


@given(order=st.sampled_from(ORDERS), rows=st.integers(0, 4), groups=st.integers(0, 5), seed=st.integers(0, 2**32 - 1))
def test_round_trip(order: str, rows: int, groups: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 16, (rows, groups * 32), np.uint8)
    assert unpack_fp4(pack_fp4(codes, order=order), order=order).tobytes() == codes.tobytes()


def test_odd_groups_of_even_low_need_no_whole_block() -> None:
    assert unpack_fp4(np.array([0x21], np.uint8)).tolist() == [1, 2]


def test_reads_strided_input() -> None:
    codes = np.random.default_rng(2).integers(0, 16, (4, 128), np.uint8)[:, ::2]
    for order in ORDERS:
        assert pack_fp4(codes, order=order).tobytes() == pack_fp4(codes.copy(), order=order).tobytes()


def test_the_orders_differ() -> None:
    # One order for the other swaps half of the nibbles' places: data that hid this would prove nothing.
    codes = np.arange(32, dtype=np.uint8) % 16
    assert pack_fp4(codes).tobytes() != pack_fp4(codes, order="gguf").tobytes()


def test_gguf_reads_our_blocks() -> None:
    # A GGUF MXFP4 block is its E8M0 byte, then 16 packed bytes.
    codes = np.random.default_rng(3).integers(0, 16, (5, 64), np.uint8)
    blocks = pack_fp4(codes, order="gguf").reshape(5, 2, 16)
    raw = np.concatenate([np.full((5, 2, 1), 127, np.uint8), blocks], axis=-1).reshape(5, 34)
    values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.MXFP4)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    assert values.astype(np.float32).tobytes() == table[codes].tobytes()
