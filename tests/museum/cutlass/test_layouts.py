"""CUTLASS's scale and fragment layouts, dumped by a program from its headers, against ours: every entry."""

from __future__ import annotations

import numpy as np
import pytest
from support.selection.thinned import thinned

from refmoe.cuda.toolchain import ToolchainError
from refmoe.errors import ArgumentError
from refmoe.museum.cutlass import CutlassMissing, fragment_layouts, scale_layouts
from refmoe.museum.cutlass.layouts import layout_program
from refmoe.ptx.engine.tensor.mma import Scales, a_matrix, b_matrix, c_matrix, c_registers
from refmoe.reference.layout import SCALE_LAYOUTS, scale_buffer_size, swizzle_scales, swizzle_weight_scales

LANES = np.arange(32)
GROUP, QUAD_LANE = LANES // 4, LANES % 4


@pytest.fixture(scope="module", autouse=True)
def _program() -> None:
    try:
        layout_program()
    except CutlassMissing as error:
        pytest.skip(str(error))
    except ToolchainError as error:
        if "failed" in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def fragments() -> dict[str, np.ndarray]:
    return fragment_layouts()


# Rows across atoms and inside one, K of one and several atoms, a K tail, and a batch.
SHAPES = [(128, 128, 128, 1), (130, 3, 256, 2), (2880, 65, 2816, 1), (8, 257, 96, 3), (384, 1, 160, 2)]


@pytest.mark.parametrize("shape", thinned(map(pytest.param, SHAPES), 4), ids=str)
def test_every_scale_lies_where_ours_does(shape: tuple[int, int, int, int]) -> None:
    m, n, k, batches = shape
    for rows, offsets in zip((m, n), scale_layouts(m, n, k, batches), strict=True):
        blocks = k // 32
        assert offsets.shape == (batches, rows, blocks)
        assert np.unique(offsets).size == offsets.size
        row, block = np.arange(rows)[:, None], np.arange(blocks)
        one = scale_buffer_size(rows, blocks, "128x4")
        batch = np.arange(batches)[:, None, None] * one
        assert np.array_equal(offsets, SCALE_LAYOUTS["128x4"].offset(row, block, blocks) + batch)

        # The buffers that the kernels are given, byte by byte.
        scales = np.random.default_rng(rows).integers(0, 256, (batches, rows, blocks), dtype=np.uint8)
        assert np.array_equal(swizzle_scales(scales, "128x4").reshape(-1)[offsets], scales)
        assert np.array_equal(swizzle_weight_scales(scales)[offsets], scales)


def test_the_operands_are_whole(fragments: dict[str, np.ndarray]) -> None:
    values = {"A": (16, 16, 32), "B": (8, 8, 32), "C": (4, 16, 8), "SFA": (1, 16, 1), "SFB": (1, 8, 1)}
    assert fragments.keys() == values.keys()
    for name, (count, rows, columns) in values.items():
        places = fragments[name]
        assert places.shape == (32, count, 2)
        assert {tuple(place) for place in places.reshape(-1, 2)} == {
            (r, c) for r in range(rows) for c in range(columns)
        }


def places_of(matrix: np.ndarray, registers: int, per_register: int) -> np.ndarray:
    """[32, values, 2]: where the executor puts value v of lane l, whose content is its own number, 1-D."""
    order = matrix.reshape(matrix.shape[-2:])
    places = np.empty((32 * registers * per_register, 2), np.int64)
    places[order] = np.indices(order.shape).transpose(1, 2, 0)
    return places.reshape(32, registers * per_register, 2)


@pytest.mark.parametrize(("name", "registers"), [("A", 4), ("B", 2)])
def test_the_executor_reads_operands_as_cutlass_does(
    fragments: dict[str, np.ndarray], name: str, registers: int
) -> None:
    # Bytes hold only 256 numbers, so the low and the high half of each value's number go through one after another.
    number = np.arange(32 * 4 * registers, dtype=np.uint16).reshape(32, 4 * registers)
    function = a_matrix if name == "A" else b_matrix
    halves = []
    for half in (number & 0xFF, number >> 8):
        words = np.ascontiguousarray(half.astype(np.uint8)).view(np.uint32)
        halves.append(function(tuple(words.T), 8).astype(np.uint16))
    assert np.array_equal(places_of(halves[0] | halves[1] << 8, registers, 4), fragments[name])


def test_the_executor_reads_and_writes_accumulators_as_cutlass_does(fragments: dict[str, np.ndarray]) -> None:
    number = np.arange(128, dtype=np.float32).reshape(32, 4)
    matrix = c_matrix(tuple(number.view(np.uint32).T))
    assert np.array_equal(places_of(matrix.astype(np.int64), 4, 1), fragments["C"])
    assert np.array_equal(c_registers(matrix).T.view(np.float32), number)


@pytest.mark.parametrize(("name", "rows"), [("SFA", 16), ("SFB", 8)])
@pytest.mark.parametrize("byte", range(4))
def test_the_executor_takes_scales_from_lanes_where_cutlass_puts_them(
    fragments: dict[str, np.ndarray], name: str, rows: int, byte: int
) -> None:
    row_of_lane = fragments[name][:, 0, 0].astype(np.uint32)
    words = row_of_lane << np.uint32(8 * byte) | ~(np.uint32(0xFF) << np.uint32(8 * byte))
    byte_id = np.full(32, byte, np.uint32)
    for thread in range(2 if name == "SFA" else 4):
        taken = Scales(rows)(words, byte_id, np.full(32, thread, np.uint32))
        assert np.array_equal(taken.reshape(-1), np.arange(rows))


def test_the_drawing_in_our_kernel_is_cutlass_layout(fragments: dict[str, np.ndarray]) -> None:
    """csrc/mma_mxfp4_mxfp8.cuh: g = lane / 4, t = lane % 4, four bytes a register."""
    g, t = GROUP[:, None], QUAD_LANE[:, None]
    value = np.arange(16)
    register, byte = value // 4, value % 4
    a = [g + 8 * (register % 2), 4 * t + byte + 16 * (register // 2)]
    b = [g + 0 * value[:8], 4 * t + byte[:8] + 16 * register[:8]]
    c = [g + 8 * (value[:4] // 2), 2 * t + value[:4] % 2]
    for name, places in (("A", a), ("B", b), ("C", c)):
        assert np.array_equal(fragments[name], np.stack(np.broadcast_arrays(*places), axis=-1))
    # Lanes t = 0 and t = 1 hold the scales of rows g and g + 8, lane t = 0 that of column g.
    sfa, sfb = fragments["SFA"][:, 0, 0], fragments["SFB"][:, 0, 0]
    assert np.array_equal(sfa[QUAD_LANE == 0], np.arange(8))
    assert np.array_equal(sfa[QUAD_LANE == 1], np.arange(8) + 8)
    assert np.array_equal(sfb[QUAD_LANE == 0], np.arange(8))


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match="k: found int 0"):
        scale_layouts(1, 1, 0)
