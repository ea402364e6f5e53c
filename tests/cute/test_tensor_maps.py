"""The tensor maps that CuTe DSL's host code packs: each is compiled, packed by that code, and read as the executor's.

The format of the hardware's 128 bytes is documented nowhere, so that every field that is read is varied here.
"""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import refmoe.cute
from refmoe.cute.tensor_maps import translate
from refmoe.ptx import Buffer, DeviceMemory
from refmoe.ptx.state.tensormap import TensorMap, decode_tensor_map

try:
    refmoe.cute.check_package()
except refmoe.cute.CuteMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync


@cute.kernel
def kernel(copy: cute.CopyAtom, places: cute.Tensor):
    cpasync.prefetch_descriptor(copy)


def made(
    array: np.ndarray[Any, Any],
    box: tuple[int, ...],
    *,
    swizzle: tuple[int, int, int] | None = None,
    element: str | None = None,
    arch: str = "sm_90a",
) -> tuple[TensorMap, int]:
    """The map that the DSL makes of an array and a box, whose layout in shared memory is row-major; and the address."""

    def layout() -> Any:
        plain = cute.make_ordered_layout(box, order=tuple(range(len(box)))[::-1])
        return plain if swizzle is None else cute.make_composed_layout(cute.make_swizzle(*swizzle), 0, plain)

    @cute.jit
    def function(x: cute.Tensor):
        copy, places = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout(), box)
        kernel(copy, places).launch(grid=[1, 1, 1], block=[32, 1, 1])

    given = refmoe.cute.tensor(array, element=element, align=16, divisibility={array.ndim - 1: 16})
    memory = DeviceMemory()
    (launch,) = refmoe.cute.compile(function, given, arch=arch).host_launches(given, memory=memory)
    return decode_tensor_map(translate(launch.parameters[0])), memory.place(Buffer(array, "x"))


@pytest.mark.parametrize(
    ("dtype", "element", "name"),
    [
        (np.uint8, None, "u8"),
        (ml_dtypes.float8_e4m3fn, None, "u8"),
        (np.uint16, None, "u16"),
        (np.int32, None, "u32"),
        (np.uint64, None, "u64"),
        (np.float16, None, "f16"),
        (np.float32, None, "f32"),
        (np.float64, None, "f64"),
        (ml_dtypes.bfloat16, None, "bf16"),
        (np.float32, "TFloat32", "tf32"),
    ],
)
def test_elements(dtype: Any, element: str | None, name: str) -> None:
    array = np.zeros((24, 256), dtype)
    found, address = made(array, (8, 128 // array.itemsize), element=element)
    assert (found.data_type, found.rank, found.address) == (name, 2, address)
    assert (found.dims[:2], found.strides[:1]) == ((256, 24), (256 * array.itemsize,))
    assert (found.box[:2], found.steps[:2], found.fill, found.interleave) == ((128 // array.itemsize, 8), (1, 1), 0, 0)


@pytest.mark.parametrize(
    ("columns", "swizzle", "number"),
    [(16, None, 0), (32, (1, 4, 3), 1), (64, (2, 4, 3), 2), (128, (3, 4, 3), 3), (128, (2, 5, 2), 4)],
)
def test_swizzles(columns: int, swizzle: tuple[int, int, int] | None, number: int) -> None:
    found, _ = made(np.zeros((24, 256), np.uint8), (8, columns), swizzle=swizzle)
    assert (found.swizzle, found.box[:2]) == (number, (columns, 8))


@pytest.mark.parametrize("rank", range(1, 6))
def test_ranks(rank: int) -> None:
    sizes, box = (2, 3, 5, 24, 256)[-rank:], (2, 3, 2, 8, 128)[-rank:]
    array = np.zeros(sizes, np.uint8)
    found, _ = made(array, box)
    assert found.rank == rank
    assert found.dims[:rank] == sizes[::-1]
    assert found.box[:rank] == box[::-1]
    assert found.strides[: rank - 1] == array.strides[::-1][1:]


def test_sizes_and_strides_of_more_than_32_bits() -> None:
    words = [1 << 40, 1 << 1 | 2 << 4 | 2 << 17 | 1 << 21 | (7 << 32), 0xFFFFFFF0, 3 << 32 | 5 << 36, 255 | 23 << 32]
    content = struct.pack("<8Q", *words, 4, 127 << 56, 7 | 1 << 8).ljust(128, b"\xaa")
    found = decode_tensor_map(translate(content))
    assert found.strides[:2] == ((7 + (3 << 32)) * 16, (0xFFFFFFF0 + (5 << 32)) * 16)
    assert (found.dims[:3], found.box[:3]) == ((256, 24, 5), (128, 8, 2))


@pytest.mark.parametrize(
    ("word", "bit"),
    [(1, 0), (1, 2), (1, 11), (1, 12), (1, 15), (1, 22), (3, 48), (6, 32), (6, 40), (7, 32)],
)
def test_bits_that_nobody_has_seen_set_are_refused(word: int, bit: int) -> None:
    words = [1 << 40, 1 << 1 | 1 << 4 | 2 << 17 | 16 << 32, 0, 0, 255 | 23 << 32, 0, 127 << 56, 7]
    translate(struct.pack("<8Q", *words).ljust(128, b"\0"))
    words[word] ^= 1 << bit
    with pytest.raises(refmoe.cute.HostError, match="has bits that refmoe does not know"):
        translate(struct.pack("<8Q", *words).ljust(128, b"\0"))


@pytest.mark.parametrize(("shift", "value", "words"), [(7, 3, "type 3"), (4, 5, "rank 6"), (1, 0, "bits that refmoe")])
def test_fields_that_mean_nothing_are_refused(shift: int, value: int, words: str) -> None:
    control = {1: 1, 4: 1, 7: 0, 17: 2, 32: 16} | {shift: value}
    words_ = [1 << 40, sum(number << at for at, number in control.items()), 0, 0, 255 | 23 << 32, 0, 127 << 56, 7]
    with pytest.raises(refmoe.cute.HostError, match=words):
        translate(struct.pack("<8Q", *words_).ljust(128, b"\0"))
