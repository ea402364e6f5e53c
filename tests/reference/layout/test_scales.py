"""Scale layouts: against the scalar specification, against CuTe, and against themselves backwards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refmoe.reference.layout import (
    GROUPED_LAYOUTS,
    SCALE_LAYOUTS,
    expert_base_rows,
    grouped_scale_rows,
    scale_buffer_size,
    swizzle_scales,
    unswizzle_scales,
)
from refmoe.reference.scalar import layout as scalar

pycute = pytest.importorskip("pycute")

LAYOUTS = list(SCALE_LAYOUTS)
# Both sides of each tile edge: 8 and 128 rows, 32 and 96 rows inside the 128-row tile, 4 K-blocks.
SHAPES = [
    (1, 1), (1, 90), (7, 3), (8, 4), (9, 5), (31, 4), (32, 4), (33, 4), (96, 2), (127, 7), (128, 4), (128, 8),
    (129, 9), (255, 1), (256, 12), (257, 13), (0, 4), (3, 0), (0, 0),
]  # fmt: skip


def fingerprint(rows: int, blocks: int, seed: int = 0) -> np.ndarray:
    """Scales in which any two neighbours within a tile differ; equal or random bytes would hide a permutation."""
    row, block = np.mgrid[:rows, :blocks]
    return ((row * 37 + block * 101 + row // 128 * 11 + block // 4 * 7 + seed) % 251).astype(np.uint8)


def addresses(rows: int, blocks: int, layout: str) -> np.ndarray:
    """The offset of every scale as `swizzle_scales` implements it: four passes over the bytes of a unique number."""
    unique = np.arange(1, rows * blocks + 1, dtype="<u4").reshape(rows, blocks)
    planes = [swizzle_scales((unique >> shift & 255).astype(np.uint8), layout) for shift in (0, 8, 16, 24)]
    numbers = sum(plane.astype(np.int64) << shift for plane, shift in zip(planes, (0, 8, 16, 24), strict=True))
    offsets = np.empty(rows * blocks, np.int64)
    where = np.flatnonzero(numbers)
    assert where.size == rows * blocks, "each scale has exactly one address"
    offsets[numbers[where] - 1] = where
    return offsets.reshape(rows, blocks)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rows", "blocks"), SHAPES)
@pytest.mark.parametrize("fill", [0x00, 0xFF])
def test_swizzle_is_the_specification(layout: str, rows: int, blocks: int, fill: int) -> None:
    scales = fingerprint(rows, blocks)
    buffer = swizzle_scales(scales, layout, fill)
    assert buffer.dtype == np.uint8
    assert buffer.tobytes() == scalar.swizzle_scales(scales.tolist(), layout, fill)
    assert buffer.size == scale_buffer_size(rows, blocks, layout) == scalar.scale_size(layout, rows, blocks)
    back = unswizzle_scales(buffer, (rows, blocks), layout)
    assert back.tolist() == scalar.unswizzle_scales(buffer.tolist(), rows, blocks, layout)
    assert back.tobytes() == scales.tobytes()


@pytest.mark.parametrize(
    ("rows", "blocks", "batches"), [(1, 1, 1), (128, 4, 1), (129, 5, 2), (300, 23, 3), (256, 8, 4)]
)
def test_128x4_is_the_cute_layout_in_every_entry(rows: int, blocks: int, batches: int) -> None:
    # ((32,4,RB),(32,4,KB),L) : ((16,4,512*KB),(0,1,512),RB*KB*512); its second mode
    # counts elements, 32 of which share a scale.
    rb, kb = -(-rows // 128), -(-blocks // 4)
    cute = pycute.Layout(((32, 4, rb), (32, 4, kb), batches), ((16, 4, 512 * kb), (0, 1, 512), rb * kb * 512))
    expected = np.array([[[cute(m, 32 * b, n) for b in range(blocks)] for m in range(rows)] for n in range(batches)])
    assert cute.cosize() == scale_buffer_size(rows, blocks, "128x4", batches=batches)
    assert addresses(rows, blocks, "128x4").tolist() == expected[0].tolist()

    scales = np.stack([fingerprint(rows, blocks, seed=n) for n in range(batches)])
    buffer = swizzle_scales(scales, "128x4", fill=0xAA)
    assert buffer[expected].tobytes() == scales.tobytes()
    # All 32 elements of a block read its one scale.
    assert {cute(rows - 1, 32 * (blocks - 1) + element, 0) for element in range(32)} == {expected[0, -1, -1]}


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (8, 4), (9, 5), (40, 9)])
def test_8x4_is_the_cute_layout_in_every_entry(rows: int, blocks: int) -> None:
    rb, kb = -(-rows // 8), -(-blocks // 4)
    cute = pycute.Layout(((8, rb), (4, kb)), ((4, 32 * kb), (1, 32)))
    assert cute.cosize() == scale_buffer_size(rows, blocks, "8x4")
    expected = [[cute(m, b) for b in range(blocks)] for m in range(rows)]
    assert addresses(rows, blocks, "8x4").tolist() == expected


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rows", "blocks"), [(129, 9), (128, 4), (40, 23)])
def test_the_offset_function_is_what_swizzle_does(layout: str, rows: int, blocks: int) -> None:
    row, block = np.mgrid[:rows, :blocks]
    offsets = SCALE_LAYOUTS[layout].offset(row, block, blocks)
    assert offsets.tolist() == addresses(rows, blocks, layout).tolist()
    assert offsets.tolist() == [
        [SCALE_LAYOUTS[layout].offset(m, b, blocks) for b in range(blocks)] for m in range(rows)
    ]


@given(
    layout=st.sampled_from(LAYOUTS),
    batches=st.integers(1, 3),
    rows=st.integers(0, 300),
    blocks=st.integers(0, 13),
    seed=st.integers(0, 2**32 - 1),
    fill=st.integers(0, 255),
)
def test_round_trip_and_padding(layout: str, batches: int, rows: int, blocks: int, seed: int, fill: int) -> None:
    scales = np.random.default_rng(seed).integers(0, 256, (batches, rows, blocks), np.uint8)
    buffer = swizzle_scales(scales, layout, fill)
    assert buffer.shape == (scale_buffer_size(rows, blocks, layout, batches=batches),)
    assert unswizzle_scales(buffer, scales.shape, layout).tobytes() == scales.tobytes()
    # A batch is the matrix alone, one after another.
    assert buffer.tobytes() == b"".join(swizzle_scales(one, layout, fill).tobytes() for one in scales)

    # What is no scale is padding: 0x00 in real rows, `fill` in rows that are none.
    if buffer.size:
        chosen = SCALE_LAYOUTS[layout]
        padded = chosen.padded_shape(rows, blocks)
        row, block = np.mgrid[: padded[0], : padded[1]]
        whole = buffer.reshape(batches, -1)[:, chosen.offset(row, block, blocks)]
        assert not whole[:, :rows, blocks:].any()
        assert (whole[:, rows:] == fill).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("poison", [0xFF, 0x7F, 0x00])
def test_padding_reaches_no_real_scale(layout: str, poison: int) -> None:
    rows, blocks = 130, 6
    scales = fingerprint(rows, blocks)
    buffer = swizzle_scales(scales, layout)
    real = np.zeros(buffer.size, bool)
    real[addresses(rows, blocks, layout)] = True
    assert real.sum() == rows * blocks
    buffer[~real] = poison
    assert unswizzle_scales(buffer, (rows, blocks), layout).tobytes() == scales.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_strided_and_unaligned_input(layout: str) -> None:
    scales = fingerprint(260, 20)[::2, ::2]
    assert not scales.flags.c_contiguous
    buffer = swizzle_scales(scales, layout)
    assert buffer.tobytes() == swizzle_scales(scales.copy(), layout).tobytes()
    storage = np.empty(buffer.size + 1, np.uint8)
    storage[1:] = buffer
    assert unswizzle_scales(storage[1:], scales.shape, layout).tobytes() == scales.tobytes()
    assert unswizzle_scales(np.repeat(buffer, 2)[::2], scales.shape, layout).tobytes() == scales.tobytes()


def test_swizzling_writes_neither_its_input_nor_a_view_of_it() -> None:
    scales = fingerprint(4, 4)
    before = scales.tobytes()
    swizzle_scales(scales, "linear")[:] = 0
    unswizzle_scales(scales.reshape(-1), (4, 4), "linear")[:] = 0
    assert scales.tobytes() == before


# Faults that have shipped; the fingerprint has to tell each from the real thing.


def not_interleaved(m: int, b: int, blocks: int) -> int:
    """Tiles in the right order, rows inside them one after another."""
    return m // 128 * -(-blocks // 4) * 512 + b // 4 * 512 + m % 128 * 4 + b % 4


def row_digits_swapped(m: int, b: int, blocks: int) -> int:
    """The two row digits exchanged."""
    return m // 128 * -(-blocks // 4) * 512 + b // 4 * 512 + m % 32 * 4 + m % 128 // 32 * 128 + b % 4


def tile_of_8_rows(m: int, b: int, blocks: int) -> int:
    return scalar.scale_offset("8x4", m, b, blocks)


def tiles_down_the_rows(m: int, b: int, blocks: int) -> int:
    """Tiles in column-major order."""
    return m // 128 * 512 + b // 4 * 512 * 2 + m % 32 * 16 + m % 128 // 32 * 4 + b % 4


def one_block_late(m: int, b: int, blocks: int) -> int:
    return scalar.scale_offset("128x4", m, (b + 1) % blocks, blocks)


@pytest.mark.parametrize(
    "fault", [not_interleaved, row_digits_swapped, tile_of_8_rows, tiles_down_the_rows, one_block_late]
)
def test_the_fingerprint_shows_the_fault(fault) -> None:
    rows, blocks = 256, 12
    scales = fingerprint(rows, blocks)
    wrong = np.zeros(scale_buffer_size(rows, blocks), np.uint8)
    for m in range(rows):
        for b in range(blocks):
            wrong[fault(m, b, blocks)] = scales[m, b]
    assert wrong.tobytes() != swizzle_scales(scales).tobytes()
    assert unswizzle_scales(wrong, (rows, blocks)).tobytes() != scales.tobytes()


# Experts.


@pytest.mark.parametrize(
    "counts",
    [[1], [0], [128], [129], [0, 0, 5], [1, 1, 1, 1], [127, 1, 128, 0, 129], [0, 300, 0, 0, 2], [5] + [0] * 130 + [3]],
)
def test_base_rows(counts: list[int]) -> None:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    bases = expert_base_rows(offsets)
    assert bases.dtype == np.int64
    assert bases.tolist() == [scalar.base_row(int(first), e) for e, first in enumerate(offsets[:-1])]
    assert not (bases % 128).any()
    # Regions of whole tiles never meet, and the last one fits the capacity.
    ends = bases + -(-np.array(counts) // 128) * 128
    assert (ends[:-1] <= bases[1:]).all()
    assert ends[-1] <= grouped_scale_rows(int(offsets[-1]), len(counts))


@pytest.mark.parametrize(("rows", "experts", "capacity"), [(0, 1, 128), (1, 1, 128), (2, 1, 256), (32, 128, 16384)])
def test_capacity(rows: int, experts: int, capacity: int) -> None:
    assert grouped_scale_rows(rows, experts) == capacity == scalar.base_row(rows, experts)


def test_the_127_rule_matters() -> None:
    # Three experts of one row each: without the rule all of them start at row 0 or 128 and two would share a tile.
    offsets = np.array([0, 1, 2, 3], np.int64)
    assert expert_base_rows(offsets).tolist() == [0, 128, 256]
    assert [-(-int(first) // 128) * 128 for first in offsets[:-1]] == [0, 128, 128]


def test_grouped_linear_rows_are_whole_words() -> None:
    linear = GROUPED_LAYOUTS["linear"]
    assert [linear.offset(m, b, 90) for m in (0, 1) for b in (0, 89)] == [0, 89, 92, 181]
    assert {name: GROUPED_LAYOUTS[name] for name in ("128x4", "8x4")} == {
        name: SCALE_LAYOUTS[name] for name in ("128x4", "8x4")
    }


def test_int32_is_the_limit() -> None:
    # 2**31 - 1 is no multiple of a tile, so the largest 128x4 buffer is one row of tiles short of 2**31.
    assert scale_buffer_size(2**31 - 1, 1, "linear") == 2**31 - 1
    assert scale_buffer_size(2**29 - 128, 4) == 2**31 - 512
