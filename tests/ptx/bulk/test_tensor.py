"""Bulk tensor copies against the specification, element by element: boxes, swizzles, clipping, strides, FP4."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ptx_bulk import (
    COMMIT,
    DUMP,
    FENCE,
    SHAPES,
    STARTS,
    STORED_SHAPES,
    STORED_STARTS,
    THREADS,
    Tensor,
    box_bytes,
    dump,
    expect,
    fill,
    load,
    loaded,
    memory_of,
    run,
    size_of,
    start_of,
    store,
    stored,
    wait,
)
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx.state import tensormap


def load_box(tensor: Tensor, start: tuple[int, ...], size: int, spelling: str = "shared::cluster.global.tile") -> None:
    """Run a load and compare every byte of shared memory that it wrote."""
    source = memory_of(size)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(source, "source", writable=False))
    rank, count = len(tensor.dims), box_bytes(tensor, packed=False)
    expected = loaded(tensor, source.tobytes(), start)
    out = np.zeros(count, np.uint8)
    body = expect(box_bytes(tensor)) + load(rank, spelling) + wait() + dump(count)
    checks = ptx.Checks(uninitialised=tensor.data_type != "u4_align16")
    run(body, ptx.Buffer(out, "out", initialised=False), tensor.encode(address), start, memory=memory, checks=checks)
    # What a load leaves alone is poison.
    np.testing.assert_array_equal(out, [expected.get(1024 + i, 0xCD) for i in range(count)])


def store_box(tensor: Tensor, start: tuple[int, ...], size: int) -> None:
    before, tile = memory_of(size, 1), memory_of(box_bytes(tensor), 2)
    expected = stored(tensor, before.tobytes(), tile.tobytes(), start)
    target = before.copy()
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(target, "target"))
    body = fill(tile.size) + FENCE + "bar.sync 0;" + store(len(tensor.dims)) + COMMIT
    body += "@%p0 cp.async.bulk.wait_group.read 0;"
    run(body, ptx.Buffer(tile, "tile", writable=False), tensor.encode(address), start, memory=memory)
    assert target.tobytes() == expected


@pytest.mark.parametrize("shape", thinned(SHAPES, 3))
@pytest.mark.parametrize("start", STARTS)
def test_loads(shape: str, start: str) -> None:
    tensor = SHAPES[shape]
    load_box(tensor, start_of(tensor, start), size_of(tensor))


# Stores begin inside, and the rows of their tensors end where 16 bytes do.


@pytest.mark.parametrize("shape", thinned(STORED_SHAPES, 3))
@pytest.mark.parametrize("start", STORED_STARTS)
def test_stores(shape: str, start: str) -> None:
    tensor = STORED_SHAPES[shape]
    store_box(tensor, start_of(tensor, start), size_of(tensor))


@pytest.mark.parametrize("start", [(-16, 0), (0, -1)])
def test_stores_at_negative_coordinates_are_refused(start: tuple[int, int]) -> None:
    # An H200 ends such a launch with "an illegal instruction was encountered".
    with pytest.raises(ptx.MisuseError, match="a store at coordinate -1"):
        store_box(SHAPES["wide"], start, size_of(SHAPES["wide"]))


@pytest.mark.parametrize("shape", ["1d", "wide"])
def test_stores_across_an_end_inside_16_bytes_are_refused(shape: str) -> None:
    tensor = SHAPES[shape]
    rank = len(tensor.dims)
    store_box(tensor, (0,) * rank, size_of(tensor))
    with pytest.raises(
        ptx.MisuseError, match=f"a tensor of {tensor.dims[0]} bytes along dimension 0, no multiple of 16"
    ):
        store_box(tensor, (48, *(0,) * (rank - 1)), size_of(tensor))


@pytest.mark.parametrize("spelling", ["shared::cta.global.tile", "shared::cluster.global", "shared::cta.global"])
def test_spellings(spelling: str) -> None:
    load_box(SHAPES["2d"], (8, 2), size_of(SHAPES["2d"]), spelling)


@pytest.mark.parametrize("swizzle", ["none", "128B"])
@pytest.mark.parametrize("start", [(0, 0), (128, 5), (-128, 0), (256, 7), (0, -3)])
def test_fp4_takes_sixteen_bytes_for_eight(swizzle: str, start: tuple[int, int]) -> None:
    tensor = Tensor("u4_align16", 4, (256, 12), (160,), (128, 8), (1, 1), swizzle)
    load_box(tensor, start, size_of(tensor))


def test_element_strides_leave_elements_out() -> None:
    tensor = Tensor("u16", 16, (32, 20, 5), (64, 1280), (16, 9, 3), (1, 4, 2))
    load_box(tensor, (8, 3, -1), size_of(tensor))
    # That of dimension 0 is ignored.
    load_box(Tensor("u16", 16, (32, 20), (64,), (16, 8), (2, 3)), (8, 3), 1280)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    bits=st.sampled_from([8, 16, 32, 64]),
    dims=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    box=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    steps=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    start=st.lists(st.integers(-5, 12), min_size=4, max_size=4),
    swizzle=st.sampled_from(["none", "32B", "64B", "128B"]),
)
def test_any_box(bits: int, dims: list[int], box: list[int], steps: list[int], start: list[int], swizzle: str) -> None:
    rank = len(dims)
    inner = {"none": 48, "32B": 32, "64B": 64, "128B": 128}[swizzle] * 8 // bits
    sizes = (dims[0] * 5, *dims[1:])
    strides, total = [], -(-sizes[0] * bits // 8 // 16) * 16 + 16
    for size in sizes[1:]:
        strides.append(total)
        total *= size
    kind = {8: "u8", 16: "f16", 32: "s32", 64: "f64"}[bits]
    outer = tuple(box[: rank - 1])
    tensor = Tensor(kind, bits, sizes, tuple(strides), (inner, *outer), (1, *steps[: rank - 1]), swizzle)
    first = (start[0] * 128 // bits, *start[1:rank])
    load_box(tensor, first, total)
    sizes = (-(-sizes[0] * bits // 128) * 128 // bits, *sizes[1:])
    whole = Tensor(kind, bits, sizes, tuple(strides), (inner, *outer), (1,) * rank, swizzle)
    store_box(whole, tuple(max(at, 0) for at in first), total)


def test_only_the_box_must_lie_in_the_buffer() -> None:
    # The tensor is larger than the buffer, and dimensions beyond its rank hold garbage.
    tensor = Tensor("u8", 8, (64, 1000), (64,), (64, 4), (1, 1))
    load_box(tensor, (0, 2), 64 * 6)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(memory_of(64 * 6), "source"))
    with pytest.raises(ptx.MemoryFault, match=r"out of bounds: global read .* at byte 384 of source \(384 bytes\)"):
        run(load(2), np.zeros(16, np.uint8), tensor.encode(address), (0, 3), memory=memory)


@pytest.mark.parametrize("shift", [16, 64, 128, 512, 896])
def test_destinations_are_aligned(shift: int) -> None:
    # 128 bytes; a swizzle goes by the address, not by the place in the box.
    source = memory_of(4096)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(source, "source", writable=False))
    out = np.zeros(8192, np.uint8)
    for swizzle, inner in (("none", 128), ("32B", 32), ("64B", 64), ("128B", 128)):
        tensor = Tensor("u8", 8, (128, 32), (128,), (inner, 8), (1, 1), swizzle)
        count = box_bytes(tensor)
        body = f"add.u32 %r8, %r8, {shift};" + expect(count) + load(2) + wait() + dump(count)
        if shift % 128 == 0:
            run(body, out, tensor.encode(address), (0, 0), memory=memory)
            expected = loaded(tensor, source.tobytes(), (0, 0), 1024 + shift)
            assert [expected[1024 + shift + i] for i in range(count)] == out[:count].tolist()
        else:
            with pytest.raises(ptx.MemoryFault, match="misaligned"):
                run(body, out, tensor.encode(address), (0, 0), memory=memory)


def test_blocks_have_boxes_of_their_own() -> None:
    # Each block its own coordinates, of one buffer or of two.
    source = memory_of(64 * 64)
    memory = ptx.DeviceMemory()
    tensor = Tensor("u8", 8, (64, 64), (64,), (64, 4), (1, 1))
    address = memory.place(ptx.Buffer(source, "source", writable=False))
    out = np.zeros((20, 256), np.uint8)
    body = "mov.u32 %r3, %ctaid.x; mul.lo.u32 %r3, %r3, 3; mov.u32 %r30, %ctaid.x; mul.wide.u32 %d9, %r30, 256;"
    body += "add.u64 %d0, %d0, %d9;" + expect(256) + load(2) + wait() + DUMP.format(count=256, threads=THREADS)
    run(body, out, tensor.encode(address), (0, 0), memory=memory, grid=20)
    padded = np.concatenate([source, np.zeros(1024, np.uint8)])
    np.testing.assert_array_equal(out, [padded[64 * 3 * i : 64 * 3 * i + 256] for i in range(20)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"interleave": "16B"}, "interleave 1"),
        ({"data_type": "tf32"}, "tf32"),
        ({"swizzle": "128B_atom_32B"}, "swizzle 4"),
        ({"swizzle": "128B"}, "narrower than, which is not modelled, its swizzle span of 128"),
    ],
)
def test_what_is_not_modelled_is_refused(change: dict[str, str], message: str) -> None:
    source = memory_of(4096)
    memory = ptx.DeviceMemory()
    address = memory.place(ptx.Buffer(source, "source"))
    words = {"data_type": "f32", **change}
    content = ptx.encode_tensor_map(address, dims=(8, 4, 4), strides=(32, 128), box=(8, 2, 2), **words)  # type: ignore[arg-type]
    with pytest.raises(ptx.MisuseError, match=message):
        run(expect(128) + load(3) + wait(), np.zeros(16, np.uint8), content, (0, 0, 0), memory=memory)


def test_stores_with_element_strides_are_refused() -> None:
    with pytest.raises(ptx.MisuseError, match="not modelled"):
        store_box(Tensor("u16", 16, (32, 20), (64,), (16, 8), (1, 3)), (0, 0), 1280)


@pytest.mark.parametrize(("kind", "bits"), [("f16", 16), ("bf16", 16), ("f32", 32), ("f64", 64)])
def test_nan_fill(kind: str, bits: int) -> None:
    size = 512 // bits
    tensor = Tensor(kind, bits, (size, 3), (64,), (size, 4), (1, 1), fill="nan")
    for start in ((0, 1), (128 // bits, -1), (-256 // bits, 0), (0, 50)):
        load_box(tensor, start, size_of(tensor))
    # The last element of a tensor need not end a chunk.
    tensor = Tensor(kind, bits, (size - 1, 3), (64,), (size, 4), (1, 1), "64B", fill="nan")
    load_box(tensor, (0, 1), size_of(tensor))


def test_nan_fill_needs_a_type_that_has_nan() -> None:
    tensor = Tensor("bf16", 16, (32, 4), (64,), (32, 4), (1, 1), fill="nan")
    changed = tensormap.replace_field(tensormap.decode_tensor_map(tensor.encode(4096)), "elemtype", 0, 1).encode()
    with pytest.raises(ptx.MisuseError, match="u16 with the NaN fill"):
        run(expect(256) + load(2), np.zeros(16, np.uint8), changed, (0, 0))


def test_fp4_boxes_begin_at_multiples_of_128() -> None:
    with pytest.raises(ptx.MisuseError, match="coordinate 64 of dimension 0"):
        load_box(Tensor("u4_align16", 4, (256, 12), (160,), (128, 8), (1, 1)), (64, 0), 1920)


@pytest.mark.parametrize("shape", ["1d", "2d", "5d"])
@pytest.mark.parametrize("step", [1, -1, 101])
def test_boxes_begin_at_multiples_of_16_bytes(shape: str, step: int) -> None:
    # An H200 ends such a launch with "an illegal instruction was encountered".
    tensor = SHAPES[shape]
    start = (step, *[0] * (len(tensor.dims) - 1))
    with pytest.raises(
        ptx.MisuseError, match=f"coordinate {step} of dimension 0, .* a multiple of {128 // tensor.bits}"
    ):
        load_box(tensor, start, size_of(tensor))
    with pytest.raises(ptx.MisuseError, match=f"coordinate {step} of dimension 0"):
        store_box(tensor, start, size_of(tensor))
