"""`tex` and `tld4` against a specification that takes one sample at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.selection.thinned import thinned
from support.textures.kernels import COORDINATES, fetch, places, run
from support.textures.specification import gathered, on_cube, sample

from refmoe import ptx

FORMATS = ("u1", "u2", "u4", "i1", "i2", "i4", "f2", "f4")
SIZES = {"1d": (7,), "2d": (5, 7), "3d": (3, 5, 7), "1d_layered": (3, 7), "2d_layered": (3, 5, 7)}
GEOMETRY = {"1d": "1d", "2d": "2d", "3d": "3d", "1d_layered": "a1d", "2d_layered": "a2d"}


def texels(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return rng.normal(size=shape).astype(kind)
    limits = np.iinfo(kind)
    held = rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
    held.reshape(-1)[:2] = limits.min, limits.max
    return held


def made(kind: str, dtype: str, channels: int, **more: Any) -> ptx.TextureObject:
    shape = SIZES[kind] + ((channels,) if channels > 1 else ())
    return ptx.TextureObject(ptx.CudaArray(texels(dtype, shape), kind, channels), **more)


def points(count: int, axes: int, normalized: bool, seed: int = 1) -> np.ndarray[Any, Any]:
    """Coordinates inside, outside, far outside and on the edges of texels."""
    rng = np.random.default_rng(seed)
    reach = 1.5 if normalized else 9.0
    found = rng.uniform(-reach, 2 * reach, (count, axes)).astype(np.float32)
    special = np.array([0.0, 0.5, 1.0, -0.5, 1.5, -1.0, 2.0, 7.0, 6.5, 1e6, -1e6, 1e-30, -1e-6, 0.999], np.float32)
    found[: len(special)] = rng.permutation(np.stack([special] * axes, axis=1))
    return found


def check(texture: ptx.TextureObject, kind: str, coordinates: np.ndarray[Any, Any], of: str = "f32") -> None:
    layered = kind.endswith("layered")
    layers = np.arange(len(coordinates)) % 5 if layered else 0
    floats = texture.gives_floats
    dtype = texture.resource.texels.dtype
    result = "f32" if floats else "u32" if dtype.kind == "u" else "s32"
    found = fetch(texture, coordinates, GEOMETRY[kind], layers, result, of)
    data = texture.resource.data
    expected = [
        sample(texture, data, list(each), int(np.broadcast_to(layers, len(coordinates))[row]) if layered else None)
        for row, each in enumerate(coordinates)
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("dtype", FORMATS)
def test_elements_are_extended_or_widened(dtype: str, channels: int) -> None:
    check(made("2d", dtype, channels), "2d", points(32, 2, False))


@pytest.mark.parametrize("mode", thinned(["clamp", "border", "wrap", "mirror"], 3))
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("filtering", ["point", "linear"])
@pytest.mark.parametrize("kind", SIZES)
def test_addresses_and_filters(kind: str, filtering: str, normalized: bool, mode: str) -> None:
    colour = (0.25, -2.0, 3.0, 4.0)
    texture = made(
        kind, "f4", 2, address_mode=mode, filter_mode=filtering, normalized_coords=normalized, border_color=colour
    )
    axes = len(SIZES[kind]) - kind.endswith("layered")
    check(texture, kind, points(96, axes, normalized))


def test_each_axis_has_a_mode_of_its_own() -> None:
    modes = ("wrap", "mirror", "border")
    texture = made(
        "3d", "f4", 1, address_mode=modes, filter_mode="linear", normalized_coords=True, border_color=(9,) * 4
    )
    check(texture, "3d", points(96, 3, True))


@pytest.mark.parametrize("filtering", ["point", "linear"])
@pytest.mark.parametrize("dtype", ["u1", "u2", "i1", "i2"])
def test_integers_become_fractions(dtype: str, filtering: str) -> None:
    texture = made("2d", dtype, 4, read_mode="normalized_float", filter_mode=filtering)
    check(texture, "2d", points(64, 2, False))


def test_the_smallest_integer_is_minus_one_too() -> None:
    texture = ptx.TextureObject(ptx.CudaArray(np.array([-128, -127, 127], np.int8), "1d"), read_mode="normalized_float")
    assert fetch(texture, [[0], [1], [2]], "1d").view(np.float32)[:, 0].tolist() == [-1.0, -1.0, 1.0]


def test_halves_are_filtered_in_single_precision() -> None:
    check(made("2d", "f2", 4, filter_mode="linear"), "2d", points(64, 2, False))


def test_a_texel_of_no_weight_is_not_read() -> None:
    data = np.array([1.0, np.inf, 3.0], np.float32)
    texture = ptx.TextureObject(ptx.CudaArray(data, "1d"), filter_mode="linear")
    found = fetch(texture, [[0.5], [2.5], [1.0]], "1d").view(np.float32)[:, 0]
    assert found.tolist() == [1.0, 3.0, np.inf]


def test_what_a_nan_carries_stays() -> None:
    data = np.array([0x7FC12345, 0xFFA00001, 1], np.uint32).view(np.float32)
    texture = ptx.TextureObject(ptx.CudaArray(data, "1d"))
    assert fetch(texture, [[0], [1], [2]], "1d")[:, 0].tolist() == [0x7FC12345, 0xFFA00001, 1]


def test_coordinates_that_are_no_numbers() -> None:
    texture = made("1d", "f4", 1, filter_mode="point")
    data = texture.resource.data
    found = fetch(texture, [[np.nan], [np.inf], [-np.inf], [3.0]], "1d").view(np.float32)[:, 0]
    assert found.tolist() == [data[0], data[-1], data[0], data[3]]


@pytest.mark.parametrize("mode", ["clamp", "border"])
def test_integer_coordinates(mode: str) -> None:
    coordinates = np.array([[0, 0], [6, 4], [7, 4], [-1, 2], [3, 9], [2, 3], [-(2**31), 2**31 - 1]], np.int32)
    check(made("2d", "i2", 2, address_mode=mode, border_color=(5, -6, 0, 0)), "2d", coordinates, "s32")


def test_fetches_from_linear_memory_give_nothing_outside() -> None:
    data = np.arange(1, 13, dtype=np.int16)
    texture = ptx.TextureObject(ptx.LinearMemory(data, channels=2), border_color=(7, 7, 7, 7))
    found = fetch(texture, [[0], [5], [6], [-1]], "1d", kind="s32", of="s32")
    assert found.tolist() == [[1, 2, 0, 1], [11, 12, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize("filtering", ["point", "linear"])
def test_rows_with_a_pitch(filtering: str) -> None:
    memory = texels("f4", (4, 12))
    texture = ptx.TextureObject(ptx.Pitch2D(memory, 5, 4, 48), filter_mode=filtering)
    coordinates = points(64, 2, False)
    same = ptx.TextureObject(ptx.CudaArray(np.ascontiguousarray(memory[:, :5])), filter_mode=filtering)
    found = fetch(texture, coordinates)
    assert found.tolist() == [sample(same, same.resource.data, list(each)) for each in coordinates]


@pytest.mark.parametrize("filtering", ["point", "linear"])
@pytest.mark.parametrize("kind", ["cubemap", "cubemap_layered"])
def test_directions_find_faces(kind: str, filtering: str) -> None:
    cubes = 2 if kind == "cubemap_layered" else 1
    data = texels("f4", (6 * cubes, 4, 4))
    texture = ptx.TextureObject(ptx.CudaArray(data, kind), filter_mode=filtering, normalized_coords=True)
    directions = np.random.default_rng(3).normal(size=(96, 3)).astype(np.float32)
    directions[:6] = np.repeat(np.eye(3, dtype=np.float32), 2, axis=0) * np.array([1, -1] * 3, np.float32)[:, None]
    directions[6:8] = [1, 1, 1], [-1, -1, -1]
    layers = np.arange(96) % 3
    found = fetch(texture, directions, "cube" if cubes == 1 else "acube", layers)
    for row, direction in enumerate(directions):
        face, s, t = on_cube(tuple(float(each) for each in direction))
        layer = face if cubes == 1 else min(int(layers[row]), 1) * 6 + face
        flat = ptx.TextureObject(ptx.CudaArray(data[layer].copy()), filter_mode=filtering, normalized_coords=True)
        assert found[row].tolist() == sample(flat, data[layer], [s, t])


@pytest.mark.parametrize("mode", ["clamp", "border"])
@pytest.mark.parametrize("component", range(4))
def test_gathers_of_four(component: int, mode: str) -> None:
    texture = made("2d", "f4", 4, address_mode=mode, border_color=(1, 2, 3, 4))
    coordinates = points(48, 2, False)
    found = run(
        f"tld4.{'rgba'[component]}.2d.v4.f32.f32 {{%r10, %r11, %r12, %r13}}, [%d0, {{%f0, %f1}}];",
        texture, places(coordinates),
    )  # fmt: skip
    expected = [gathered(texture, texture.resource.data, float(x), float(y), component) for x, y in coordinates]
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "written",
    [
        "tex.base.2d.v4.f32.f32 {{%r10, %r11, %r12, %r13}}, [%d0, {0}];",
        "tex.level.2d.v4.f32.f32 {{%r10, %r11, %r12, %r13}}, [%d0, {0}], 0f40A00000;",
        "tex.grad.2d.v4.f32.f32 {{%r10, %r11, %r12, %r13}}, [%d0, {0}], {{%f1, %f0}}, {{%f0, %f1}};",
    ],
)
def test_there_is_one_level(written: str) -> None:
    texture = made("2d", "f4", 4, filter_mode="linear")
    coordinates = points(32, 2, False)
    found = run(written.format(COORDINATES["2d"].format("%f0", "%f1")), texture, places(coordinates))
    assert found.tolist() == [sample(texture, texture.resource.data, list(each)) for each in coordinates]


def test_lanes_with_several_textures_and_guards() -> None:
    """Each lane has a handle of its own, and half of them no fetch."""
    data = [np.full((2, 2), value, np.float32) for value in (3.0, 4.0)]
    memory = ptx.DeviceMemory()
    handles = [memory.create_object(ptx.TextureObject(ptx.CudaArray(each))) for each in data]
    where = np.zeros((32, 4), np.uint32)
    where[:, :2] = np.array([handles[row % 2] for row in range(32)], np.uint64).view(np.uint32).reshape(32, 2)
    where[:, 2] = np.arange(32) % 4 < 2
    instruction = (
        "mov.b64 %d5, {%r1, %r2}; setp.ne.u32 %p0, %r3, 0; mov.f32 %f3, 0f3F800000;"
        "@%p0 tex.2d.v4.f32.f32 {%r10, %r11, _, %r13}, [%d5, {%f3, 0f00000000}];"
    )
    found = run(instruction, 0, where, memory=memory)
    values = found[:, 0].view(np.float32).tolist()
    assert values == [0.0 if row % 4 >= 2 else (3.0, 4.0)[row % 2] for row in range(32)]
    assert not found[:, 2].any()
