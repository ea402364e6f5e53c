"""Kernels in CUDA C++ on textures and surfaces, as nvcc compiles them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from support.ptx_kernel import compile_cuda
from support.textures.specification import gathered, sample

import refmoe
from refmoe import ptx

SOURCE = r"""
#define AT (blockIdx.x * blockDim.x + threadIdx.x)
extern "C" {
__global__ void fetch1d(cudaTextureObject_t t, float* out, int n) {
    if (AT < n) out[AT] = tex1Dfetch<float>(t, (int)AT - 2);
}
__global__ void sample2d(cudaTextureObject_t t, const float2* at, float4* out) {
    out[AT] = tex2D<float4>(t, at[AT].x, at[AT].y);
}
__global__ void level2d(cudaTextureObject_t t, const float2* at, float4* out) {
    out[AT] = tex2DLod<float4>(t, at[AT].x, at[AT].y, 0.0f);
}
__global__ void gather2d(cudaTextureObject_t t, const float2* at, float4* out) {
    out[AT] = tex2Dgather<float4>(t, at[AT].x, at[AT].y, 2);
}
__global__ void sample3d(cudaTextureObject_t t, const float4* at, float* out) {
    out[AT] = tex3D<float>(t, at[AT].x, at[AT].y, at[AT].z);
}
__global__ void layers(cudaTextureObject_t t, const float2* at, float* out) {
    out[AT] = tex2DLayered<float>(t, at[AT].x, at[AT].y, AT % 3);
}
__global__ void bytes(cudaTextureObject_t t, uchar4* out, int width) {
    out[AT] = tex2D<uchar4>(t, AT % width, AT / width);
}
__global__ void transpose(cudaSurfaceObject_t from, cudaSurfaceObject_t to) {
    float value;
    surf2Dread(&value, from, threadIdx.x * 4, threadIdx.y);
    surf2Dwrite(value, to, threadIdx.y * 4, threadIdx.x);
}
__global__ void shift(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int by, int mode) {
    int x = ((int)threadIdx.x + by) * 4, y = threadIdx.y;
    float value = mode == 0 ? surf2Dread<float>(from, x, y, cudaBoundaryModeTrap)
                : mode == 1 ? surf2Dread<float>(from, x, y, cudaBoundaryModeClamp)
                            : surf2Dread<float>(from, x, y, cudaBoundaryModeZero);
    surf2Dwrite(value, to, threadIdx.x * 4, y);
}
__global__ void scatter(cudaSurfaceObject_t to, int by) {
    surf2Dwrite((float)threadIdx.x, to, ((int)threadIdx.x + by) * 4, threadIdx.y, cudaBoundaryModeZero);
}
__global__ void volume(cudaSurfaceObject_t to) {
    surf3Dwrite(make_uchar4(threadIdx.x, threadIdx.y, threadIdx.z, 9), to, threadIdx.x * 4, threadIdx.y, threadIdx.z);
}
struct Pair { cudaTextureObject_t texture; cudaSurfaceObject_t surface; };
__global__ void both(Pair pair) {
    float value = tex2D<float>(pair.texture, threadIdx.x + 0.5f, threadIdx.y + 0.5f);
    surf2Dwrite(2 * value, pair.surface, threadIdx.x * 4, threadIdx.y);
}
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ptx.Module:
    return compile_cuda(SOURCE, tmp_path_factory.mktemp("cuda"), "sm_90a")


def image(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(0, 50, shape).astype(dtype)


def points(axes: int, count: int = 64) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).uniform(-3, 10, (count, axes)).astype(np.float32)


def test_linear_memory(module: ptx.Module) -> None:
    data, out = image(20), np.zeros(24, np.float32)
    refmoe.run_ptx(module, "fetch1d", block=32, args=[ptx.TextureObject(ptx.LinearMemory(data)), out, 24])
    assert out.tolist() == [0, 0, *data.tolist(), 0, 0]


@pytest.mark.parametrize("mode", ["clamp", "border", "wrap", "mirror"])
@pytest.mark.parametrize("entry", ["sample2d", "level2d"])
def test_filtered_images(module: ptx.Module, entry: str, mode: str) -> None:
    data, at, out = image(5, 6, 4), points(2) / 5, np.zeros((64, 4), np.float32)
    texture = ptx.TextureObject(
        ptx.CudaArray(data, channels=4), address_mode=mode, filter_mode="linear", normalized_coords=True
    )
    refmoe.run_ptx(module, entry, block=64, args=[texture, at, out])
    assert out.view(np.uint32).tolist() == [sample(texture, data, list(each)) for each in at]


def test_gathers(module: ptx.Module) -> None:
    data, at, out = image(5, 6, 4), points(2), np.zeros((64, 4), np.float32)
    texture = ptx.TextureObject(ptx.CudaArray(data, channels=4))
    refmoe.run_ptx(module, "gather2d", block=64, args=[texture, at, out])
    assert out.view(np.uint32).tolist() == [gathered(texture, data, float(x), float(y), 2) for x, y in at]


@pytest.mark.parametrize("filtering", ["point", "linear"])
def test_volumes_and_layers(module: ptx.Module, filtering: str) -> None:
    data, at, out = image(3, 5, 6), points(4), np.zeros(64, np.float32)
    texture = ptx.TextureObject(ptx.CudaArray(data, "3d"), filter_mode=filtering)
    refmoe.run_ptx(module, "sample3d", block=64, args=[texture, at, out])
    assert out.view(np.uint32).tolist() == [sample(texture, data, list(each[:3]))[0] for each in at]
    texture = ptx.TextureObject(ptx.CudaArray(data, "2d_layered"), filter_mode=filtering)
    where = points(2)
    refmoe.run_ptx(module, "layers", block=64, args=[texture, where, out])
    expected = [sample(texture, data, list(each), row % 3)[0] for row, each in enumerate(where)]
    assert out.view(np.uint32).tolist() == expected


def test_four_bytes(module: ptx.Module) -> None:
    data = np.arange(8 * 4 * 4, dtype=np.uint8).reshape(4, 8, 4)
    out = np.zeros_like(data)
    refmoe.run_ptx(module, "bytes", block=32, args=[ptx.TextureObject(ptx.CudaArray(data, channels=4)), out, 8])
    assert (out == data).all()


def test_surfaces_transpose(module: ptx.Module) -> None:
    data, out = image(4, 8), np.zeros((8, 4), np.float32)
    objects = [ptx.SurfaceObject(ptx.CudaArray(each)) for each in (data, out)]
    refmoe.run_ptx(module, "transpose", block=(8, 4), args=objects)
    assert (out == data.T).all()


def test_boundary_modes(module: ptx.Module) -> None:
    data, out = image(4, 8), np.zeros((4, 8), np.float32)
    objects = [ptx.SurfaceObject(ptx.CudaArray(each)) for each in (data, out)]
    refmoe.run_ptx(module, "shift", block=(8, 4), args=[*objects, 3, 1])
    assert (out == data[:, [3, 4, 5, 6, 7, 7, 7, 7]]).all()
    refmoe.run_ptx(module, "shift", block=(8, 4), args=[*objects, -2, 2])
    assert (out[:, 2:] == data[:, :-2]).all()
    assert not out[:, :2].any()
    with pytest.raises(ptx.MemoryFault, match=r"x 32, y 0 \(x in bytes\) of 2d of 8 x 4 .*\(\.trap\)"):
        refmoe.run_ptx(module, "shift", block=(8, 4), args=[*objects, 3, 0])
    refmoe.run_ptx(module, "scatter", block=(8, 4), args=[objects[0], 6])
    assert data[:, 6:].tolist() == [[0, 1]] * 4


def test_volumes_are_written(module: ptx.Module) -> None:
    data = np.zeros((2, 3, 4, 4), np.uint8)
    refmoe.run_ptx(module, "volume", block=(4, 3, 2), args=[ptx.SurfaceObject(ptx.CudaArray(data, "3d", 4))])
    z, y, x = np.indices((2, 3, 4))
    assert (data == np.stack([x, y, z, np.full_like(x, 9)], axis=-1)).all()


def test_handles_in_a_struct(module: ptx.Module) -> None:
    data, out = image(4, 8), np.zeros((4, 8), np.float32)
    memory = ptx.DeviceMemory()
    handles = [
        memory.create_object(ptx.TextureObject(ptx.CudaArray(data))),
        memory.create_object(ptx.SurfaceObject(ptx.CudaArray(out))),
    ]
    pair = np.array(handles, np.uint64).tobytes()
    refmoe.run_ptx(module, "both", block=(8, 4), args=[pair], memory=memory)
    assert (out == 2 * data).all()
    with pytest.raises(ptx.MisuseError, match="is a surface object"):
        refmoe.run_ptx(module, "both", block=(8, 4), args=[pair[8:] + pair[:8]], memory=memory)


def test_the_compiler_writes_what_is_tested(module: ptx.Module) -> None:
    spellings = set(re.findall(r"\b((?:tex|tld4|suld|sust)\.[\w.]+)", module.text))
    assert {
        "tex.1d.v4.f32.s32", "tex.2d.v4.f32.f32", "tex.level.2d.v4.f32.f32", "tld4.b.2d.v4.f32.f32",
        "tex.3d.v4.f32.f32", "tex.a2d.v4.f32.f32", "tex.2d.v4.u32.f32", "suld.b.2d.b32.trap", "suld.b.2d.b32.clamp",
        "suld.b.2d.b32.zero", "sust.b.2d.b32.trap", "sust.b.2d.b32.zero", "sust.b.3d.v4.b8.trap",
    } <= spellings  # fmt: skip
