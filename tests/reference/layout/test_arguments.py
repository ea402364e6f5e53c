"""What the layouts refuse, and the argument that each refusal names."""

from __future__ import annotations

import numpy as np
import pytest

from refmoe.errors import ArgumentError
from refmoe.reference.layout import (
    expert_base_rows,
    grouped_scale_rows,
    pack_fp4,
    scale_buffer_size,
    swizzle_scales,
    unpack_fp4,
    unswizzle_scales,
)


def u8(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint8)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


REFUSED = [
    ("scales", lambda: swizzle_scales(np.zeros((4, 4), np.int8))),
    ("scales", lambda: swizzle_scales([[1, 2]])),
    ("scales", lambda: swizzle_scales(u8(4))),
    ("scales", lambda: swizzle_scales(u8(1, 1, 4, 4))),
    ("scales", lambda: swizzle_scales(np.broadcast_to(u8(1, 1), (2**29, 4)))),
    ("layout", lambda: swizzle_scales(u8(4, 4), "4x128")),
    ("layout", lambda: swizzle_scales(u8(4, 4), None)),
    ("layout", lambda: unswizzle_scales(u8(16), (4, 4), "LINEAR")),
    ("fill", lambda: swizzle_scales(u8(4, 4), fill=256)),
    ("fill", lambda: swizzle_scales(u8(4, 4), fill=-1)),
    ("fill", lambda: swizzle_scales(u8(4, 4), fill=0.5)),
    ("fill", lambda: swizzle_scales(u8(4, 4), fill=True)),
    ("buf", lambda: unswizzle_scales(u8(511), (1, 1))),
    ("buf", lambda: unswizzle_scales(u8(1024), (1, 1))),
    ("buf", lambda: unswizzle_scales(u8(512, 1), (1, 1))),
    ("buf", lambda: unswizzle_scales(u8(512).view(np.int8), (1, 1))),
    ("buf", lambda: unswizzle_scales(bytes(512), (1, 1))),
    ("buf", lambda: unswizzle_scales(u8(31), (8, 4), "8x4")),
    ("shape", lambda: unswizzle_scales(u8(512), (1,))),
    ("shape", lambda: unswizzle_scales(u8(512), 1)),
    ("shape", lambda: unswizzle_scales(u8(512), (1, -1))),
    ("shape", lambda: unswizzle_scales(u8(512), (1.0, 1))),
    ("shape", lambda: unswizzle_scales(u8(512), (2**31, 1))),
    ("rows", lambda: scale_buffer_size(-1, 1)),
    ("blocks", lambda: scale_buffer_size(1, -1)),
    ("batches", lambda: scale_buffer_size(1, 1, batches=1.5)),
    ("rows", lambda: scale_buffer_size(2**29 - 127, 1)),
    ("rows", lambda: scale_buffer_size(2**31, 1, "linear")),
    ("rows", lambda: scale_buffer_size(2**30, 1, "linear", batches=2)),
    ("layout", lambda: scale_buffer_size(1, 1, "8X4")),
    ("rows", lambda: grouped_scale_rows(-1, 1)),
    ("num_experts", lambda: grouped_scale_rows(1, 0)),
    ("rows", lambda: grouped_scale_rows(2**31 - 127, 1)),
    ("offsets", lambda: expert_base_rows(i64(0))),
    ("offsets", lambda: expert_base_rows(i64(1, 2))),
    ("offsets", lambda: expert_base_rows(i64(0, 2, 1))),
    ("offsets", lambda: expert_base_rows(i64(0, 1).astype(np.int32))),
    ("offsets", lambda: expert_base_rows(i64(0, 1).reshape(1, 2))),
    ("offsets", lambda: expert_base_rows([0, 1])),
    ("offsets", lambda: expert_base_rows(i64(0, 2**31))),
    ("codes", lambda: pack_fp4(u8(3))),
    ("codes", lambda: pack_fp4(u8(48), order="gguf")),
    ("codes", lambda: pack_fp4(np.uint8(1))),
    ("codes", lambda: pack_fp4(u8(2).astype(np.uint16))),
    ("codes", lambda: pack_fp4(u8(2, 2) + np.uint8(16))),
    ("order", lambda: pack_fp4(u8(2), order="odd-low")),
    ("packed", lambda: unpack_fp4(u8(8), order="gguf")),
    ("packed", lambda: unpack_fp4(np.array(3, np.uint8))),
    ("packed", lambda: unpack_fp4(u8(8).astype(np.float32))),
    ("order", lambda: unpack_fp4(u8(16), order="GGUF")),
]


@pytest.mark.parametrize(("argument", "call"), REFUSED)
def test_refusal_names_the_argument(argument: str, call) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.argument == argument
    assert caught.value.found
    assert caught.value.needed


def test_the_message_says_what_was_found_and_what_is_needed() -> None:
    with pytest.raises(ArgumentError) as caught:
        unswizzle_scales(u8(100), (130, 6))
    assert str(caught.value) == "buf: found uint8 [100]; needed uint8 [2048], the bytes of [130, 6] scales in 128x4"
    with pytest.raises(ArgumentError) as caught:
        swizzle_scales(u8(4, 4), "4x4")
    assert str(caught.value) == "layout: found str '4x4'; needed one of 128x4, 8x4, linear"
    with pytest.raises(ArgumentError) as caught:
        pack_fp4(np.array([[0, 1], [17, 2]], np.uint8))
    assert str(caught.value) == "codes: found 17 at [1, 0]; needed FP4 codes 0..15"
