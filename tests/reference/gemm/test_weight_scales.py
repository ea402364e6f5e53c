"""The buffer of all experts' weight scales, against the scalar layout specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe.errors import ArgumentError
from refmoe.reference import swizzle_weight_scales, unswizzle_scales
from refmoe.reference.scalar import layout

SHAPES = [
    (1, 128, 4),
    (3, 130, 5),
    (2, 1, 1),
    (4, 256, 8),
    (2, 100, 90),
    (5, 127, 3),
    (0, 128, 4),
    (2, 0, 4),
    (2, 8, 0),
]


def distinct(shape: tuple[int, int, int]) -> np.ndarray:
    """Neighbouring rows, blocks and experts differ, so that no permutation hides."""
    e, n, b = np.indices(shape)
    return ((e * 101 + n * 7 + b * 53) % 251 + 1).astype(np.uint8)


@pytest.mark.parametrize("fill", [0, 0xFF])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_buffers_of_experts_lie_on_end(shape: tuple[int, int, int], fill: int) -> None:
    scales = distinct(shape)
    wanted = b"".join(layout.swizzle_scales(expert.tolist(), "128x4", fill) for expert in scales)
    assert swizzle_weight_scales(scales, fill).tobytes() == wanted
    np.testing.assert_array_equal(unswizzle_scales(swizzle_weight_scales(scales, fill), shape), scales)


def test_every_byte_is_where_the_kernel_reads_it() -> None:
    experts, n, blocks = 3, 200, 6
    scales = distinct((experts, n, blocks))
    buffer = swizzle_weight_scales(scales, fill=0xFF)
    stride = 256 * 8
    assert buffer.size == experts * stride
    written = np.zeros(buffer.size, bool)
    for e in range(experts):
        for row in range(n):
            for block in range(8):
                at = e * stride + layout.scale_offset("128x4", row, block, blocks)
                assert buffer[at] == (scales[e, row, block] if block < blocks else 0)
                written[at] = True
    # What is left are padded rows.
    assert (buffer[~written] == 0xFF).all()
    assert (~written).sum() == experts * 56 * 8


@pytest.mark.parametrize(
    ("scales", "options", "words"),
    [
        (np.zeros((4, 8), np.uint8), {}, "scales: found uint8 [4, 8]; needed uint8 [E, N, K / 32]"),
        (np.zeros((1, 4, 8), np.int8), {}, "scales: found int8 [1, 4, 8]"),
        ([[[1]]], {}, "scales: found list"),
        (np.zeros((1, 4, 8), np.uint8), {"fill": 256}, "fill: found int 256"),
        (np.broadcast_to(np.uint8(0), (1 << 14, 1 << 10, 1 << 8)), {}, "scales: found 4294967296 bytes"),
    ],
)
def test_refusals(scales: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        swizzle_weight_scales(scales, **options)
    assert str(caught.value).startswith(words)
