"""`suld`, `sust`, `sured` and the queries: bytes, edges, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.textures.kernels import COORDINATES, places, run

from refmoe import ptx

SHAPES = {"1d": (6,), "2d": (4, 6), "3d": (3, 4, 6), "1d_layered": (2, 6), "2d_layered": (2, 4, 6)}
GEOMETRY = {"1d": "1d", "2d": "2d", "3d": "3d", "1d_layered": "a1d", "2d_layered": "a2d"}
# (element, channels) and how an instruction spells the access.
WIDTHS = [("u1", 1, "b8"), ("u2", 1, "b16"), ("f4", 1, "b32"), ("i2", 2, "v2.b16"), ("u1", 4, "v4.b8"),
          ("f4", 2, "v2.b32"), ("u4", 4, "v4.b32"), ("u4", 2, "b64"), ("u4", 4, "v2.b64")]  # fmt: skip


def numbers(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(5)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(size), np.uint8).copy().view(dtype).reshape(shape)


def inside(kind: str) -> str:
    return COORDINATES[GEOMETRY[kind]].format("%r1", "%r2", "%r3")


def grid(kind: str, size: int) -> np.ndarray[Any, Any]:
    """A place for each texel, x in bytes."""
    found = np.indices(SHAPES[kind]).reshape(len(SHAPES[kind]), -1).T[:, ::-1].copy()
    layers = found[:, -1].copy() if kind.endswith("layered") else 0
    found[:, 0] *= size
    return places(found[:, : len(SHAPES[kind]) - kind.endswith("layered")], layers, np.int32)


@pytest.mark.parametrize("kind", SHAPES)
def test_every_texel_is_read(kind: str) -> None:
    data = numbers("f4", SHAPES[kind])
    surface = ptx.SurfaceObject(ptx.CudaArray(data, kind))
    found = run(f"suld.b.{GEOMETRY[kind]}.b32.trap {{%r10}}, [%d0, {inside(kind)}];", surface, grid(kind, 4))
    assert found[:, 0].tolist() == data.view(np.uint32).ravel().tolist()


@pytest.mark.parametrize("kind", SHAPES)
def test_every_texel_is_written(kind: str) -> None:
    data = np.zeros(SHAPES[kind], np.uint32)
    surface = ptx.SurfaceObject(ptx.CudaArray(data, kind))
    run(f"sust.b.{GEOMETRY[kind]}.b32.trap [%d0, {inside(kind)}], {{%r0}};", surface, grid(kind, 4))
    assert data.ravel().tolist() == list(range(data.size))


@pytest.mark.parametrize(("dtype", "channels", "spelling"), WIDTHS)
def test_texels_of_every_width_are_copied(dtype: str, channels: int, spelling: str) -> None:
    shape = (4, 6, channels) if channels > 1 else (4, 6)
    data, size = numbers(dtype, shape), np.dtype(dtype).itemsize * channels
    copied = np.zeros_like(data)
    bits = int(spelling.split("b")[1])
    count = int(spelling[1]) if spelling[0] == "v" else 1
    names = ", ".join(f"%{'h' if bits < 32 else 'r' if bits == 32 else 'd'}{5 + each}" for each in range(count))
    memory = ptx.DeviceMemory()
    handles = [memory.create_object(ptx.SurfaceObject(ptx.CudaArray(each, "2d", channels))) for each in (data, copied)]
    instruction = (
        f"suld.b.2d.{spelling}.trap {{{names}}}, [%d0, {{%r1, %r2}}]; mov.b64 %d0, {handles[1]};"
        f"sust.b.2d.{spelling}.trap [%d0, {{%r1, %r2}}], {{{names}}};"
    )
    run(instruction, handles[0], grid("2d", size), memory=memory)
    assert copied.tobytes() == data.tobytes()


OUTSIDE = [[-4, 0], [24, 1], [0, -1], [8, 4], [-400, 99], [2**31 - 4, 0], [4, 2]]
NEAREST = [(0, 0), (1, 5), (0, 0), (3, 2), (3, 0), (0, 5), (2, 1)]


def test_clamped_loads_take_the_nearest_texel() -> None:
    data = numbers("u4", (4, 6))
    surface = ptx.SurfaceObject(ptx.CudaArray(data))
    found = run("suld.b.2d.b32.clamp {%r10}, [%d0, {%r1, %r2}];", surface, places(OUTSIDE, 0, np.int32))
    assert found[:, 0].tolist() == [data[place] for place in NEAREST]


def test_zero_reads_nothing_outside() -> None:
    data = numbers("u4", (4, 6))
    surface = ptx.SurfaceObject(ptx.CudaArray(data))
    instruction = "mov.b32 %r10, 5; suld.b.2d.b32.zero {%r10}, [%d0, {%r1, %r2}];"
    found = run(instruction, surface, places(OUTSIDE, 0, np.int32))
    assert found[:, 0].tolist() == [0] * 6 + [data[2, 1]]


def test_zero_drops_stores_outside() -> None:
    data = np.zeros((4, 6), np.uint32)
    surface = ptx.SurfaceObject(ptx.CudaArray(data))
    run("mov.b32 %r10, 7; sust.b.2d.b32.zero [%d0, {%r1, %r2}], {%r10};", surface, places(OUTSIDE, 0, np.int32))
    assert data[2, 1] == 7
    assert data.sum() == 7


def test_clamped_stores_go_to_the_nearest_texel() -> None:
    data = np.zeros((4, 6), np.uint32)
    surface = ptx.SurfaceObject(ptx.CudaArray(data))
    where = places(OUTSIDE[1:2], 0, np.int32)
    run("mov.b32 %r10, 7; sust.b.2d.b32.clamp [%d0, {%r1, %r2}], {%r10};", surface, where)
    assert np.argwhere(data).tolist() == [[1, 5]]


@pytest.mark.parametrize("place", OUTSIDE[:6])
@pytest.mark.parametrize("written", ["suld.b.2d.b32.trap {%r10}, {0};", "sust.b.2d.b32.trap {0}, {%r0};"])
def test_traps_are_faults(written: str, place: list[int]) -> None:
    data = np.zeros((4, 6), np.uint32)
    surface = ptx.SurfaceObject(ptx.CudaArray(data, name="image"))
    message = rf"x {place[0]}, y {place[1]} \(x in bytes\) of 2d of 6 x 4 texels of 4 bytes \(\.trap\)"
    with pytest.raises(ptx.MemoryFault, match=message) as caught:
        run(written.replace("{0}", "[%d0, {%r1, %r2}]"), surface, places(place, 0, np.int32))
    assert caught.value.kind == "out of bounds"
    assert caught.value.buffer == "image"
    assert caught.value.space == "surface"
    assert not data.any()


def test_faces_of_a_cubemap_are_layers() -> None:
    data = np.zeros((6, 2, 2), np.uint32)
    surface = ptx.SurfaceObject(ptx.CudaArray(data, "cubemap"))
    where = places([[4, 1], [0, 0]], [5, 2], np.int32)
    run("sust.b.a2d.b32.trap [%d0, {%r4, %r1, %r2, %r2}], {%r1};", surface, where)
    assert data[5, 1, 1] == 4
    assert data.sum() == 4
    with pytest.raises(ptx.MemoryFault, match=r"layer 6, x 0, y 0"):
        run(
            "sust.b.a2d.b32.trap [%d0, {%r4, %r1, %r2, %r2}], {%r1};", surface, places([[0, 0]], 6, np.int32)
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["b32", "u32"])
def test_formatted_stores_count_texels(kind: str) -> None:
    data = np.zeros((4, 6), np.uint32)
    surface = ptx.SurfaceObject(ptx.CudaArray(data))
    run(f"sust.p.2d.{kind}.trap [%d0, {{%r1, %r2}}], {{%r1}};", surface, places([[3, 2], [5, 3]], 0, np.int32))
    assert data[2, 3] == 3
    assert data[3, 5] == 5
    with pytest.raises(ptx.MisuseError, match="does not convert to a surface of int32"):
        run(
            "sust.p.2d.u32.trap [%d0, {%r1, %r2}], {%r1};",
            ptx.SurfaceObject(ptx.CudaArray(np.zeros((4, 6), np.int32))), places([[0, 0]], 0, np.int32),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "kind", "expected"),
    [
        ("add", "u32", 100 + sum(range(8))), ("min", "s32", -8), ("max", "s32", 100), ("min", "u32", 100),
        ("max", "u32", 0xFFFFFFFF), ("and", "b32", 100 & 0b1100), ("or", "b32", 100 | 15),
    ],
)  # fmt: skip
def test_reductions_of_many_threads(operation: str, kind: str, expected: int) -> None:
    data = np.full((2, 3), 100, np.int32)
    value = {"add": "%r0", "min": "%r6", "max": "%r6", "and": "12", "or": "15"}[operation]
    instruction = f"not.b32 %r6, %r0; sured.b.{operation}.2d.{kind}.trap [%d0, {{4, 1}}], {value};"
    run(instruction, ptx.SurfaceObject(ptx.CudaArray(data)), places(np.zeros((8, 2)), 0, np.int32))
    assert int(data[1, 1]) & 0xFFFFFFFF == expected & 0xFFFFFFFF
    assert (np.delete(data.ravel(), 4) == 100).all()


def test_reductions_by_texel_numbers() -> None:
    data = np.zeros((2, 3), np.uint32)
    surface = ptx.SurfaceObject(ptx.CudaArray(data))
    run("sured.p.add.2d.b32.zero [%d0, {%r1, 1}], 1;", surface, places([[1, 0], [1, 0], [3, 0]], 0, np.int32))
    assert data.tolist() == [[0, 0, 0], [0, 2, 0]]


def test_what_objects_say_of_themselves() -> None:
    texture = ptx.TextureObject(ptx.CudaArray(np.zeros((2, 3, 4, 5), np.uint8)[0], "3d"), normalized_coords=True)
    layers = ptx.SurfaceObject(ptx.CudaArray(np.zeros((7, 4, 5), np.uint8), "2d_layered"))
    cubes = ptx.TextureObject(ptx.CudaArray(np.zeros((12, 4, 4), np.uint8), "cubemap_layered"), normalized_coords=True)
    where = places([[0]])
    sizes = "txq.width.b32 %r10, [%d0]; txq.height.b32 %r11, [%d0]; txq.depth.b32 %r12, [%d0];"
    assert run(sizes + "txq.normalized_coords.b32 %r13, [%d0];", texture, where).tolist() == [[5, 4, 3, 1]]
    levels = "txq.array_size.b32 %r10, [%d0]; txq.num_mipmap_levels.b32 %r11, [%d0]; txq.num_samples.b32 %r12, [%d0];"
    assert run(levels, cubes, where).tolist() == [[2, 1, 1, 0]]
    sizes = "suq.width.b32 %r10, [%d0]; suq.height.b32 %r11, [%d0]; suq.array_size.b32 %r12, [%d0];"
    assert run(sizes, layers, where).tolist() == [[5, 4, 7, 0]]


def test_kinds_of_handles() -> None:
    asks = "".join(
        f"istypep.{kind} %p0, %d0; selp.b32 %r{number}, 1, 0, %p0;"
        for number, kind in enumerate(("texref", "surfref", "samplerref"), 10)
    )
    array = ptx.CudaArray(np.zeros((4, 5), np.uint8))
    where = places([[0]])
    assert run(asks, ptx.TextureObject(array), where)[0].tolist() == [1, 0, 0, 0]
    assert run(asks, ptx.SurfaceObject(array), where)[0].tolist() == [0, 1, 0, 0]
    assert run(asks, 1 << 40, where)[0].tolist() == [0, 0, 0, 0]


def test_a_guarded_store_is_of_some_lanes() -> None:
    data = np.zeros((1, 8), np.uint32)
    text = "setp.lt.u32 %p0, %r0, 3; @%p0 sust.b.2d.b32.trap [%d0, {%r1, 0}], {%r1};"
    run(text, ptx.SurfaceObject(ptx.CudaArray(data)), places(np.arange(8)[:, None] * 4, 0, np.int32))
    assert data.tolist() == [[0, 4, 8, 0, 0, 0, 0, 0]]
