"""Record what a GPU answers to texture fetches, for tests/ptx/textures/test_recorded.py.

    python tools/textures.py tests/data/h200_textures.npz

It needs a GPU with torch and cuda-python, and nvcc. The file has, for each texture, its texels, the coordinates that
were asked for and the bits that came back, and as JSON what the textures are and which GPU answered.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES = 512
KERNELS = """
#define AT const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; const float* p = places + 3 * i
extern "C" __global__ void fetch1(cudaTextureObject_t t, const float* places, float* out, int n) {
    AT; out[i] = tex1D<float>(t, p[0]);
}
extern "C" __global__ void fetch2(cudaTextureObject_t t, const float* places, float* out, int n) {
    AT; out[i] = tex2D<float>(t, p[0], p[1]);
}
extern "C" __global__ void fetch3(cudaTextureObject_t t, const float* places, float* out, int n) {
    AT; out[i] = tex3D<float>(t, p[0], p[1], p[2]);
}
extern "C" __global__ void gather2(cudaTextureObject_t t, const float* places, float* out, int n) {
    AT; out[i] = tex2Dgather<float4>(t, p[0], p[1], 0).x;
}
"""
ADDRESS_MODES = ("wrap", "clamp", "mirror", "border")


@dataclass(frozen=True)
class Asked:
    """A texture of one channel, and where it is read.

    Attributes:
        name: in the file.
        texels: [z][y][x].
        places: float32 [n, axes].
        options: of `refmoe.ptx.TextureObject`.
        gather: whether `tld4` reads it.
    """

    name: str
    texels: np.ndarray[Any, Any]
    places: np.ndarray[Any, Any]
    options: dict[str, Any] = field(default_factory=dict)
    gather: bool = False


def asked() -> Iterator[Asked]:
    """All textures."""
    rng = np.random.default_rng(20261127)

    def places(*sizes: int, beyond: float = 1.0) -> np.ndarray[Any, Any]:
        """Around an array of these sizes, x first."""
        return np.stack([rng.uniform(-beyond, size + beyond, SAMPLES) for size in sizes], axis=1).astype(np.float32)

    def numbers(*shape: int) -> np.ndarray[Any, Any]:
        return (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))).astype(np.float32)

    linear = {"filter_mode": "linear"}
    for dtype in (np.float32, np.float16):
        name = np.dtype(dtype).name
        yield Asked(f"{name}-1d", numbers(32).astype(dtype), places(32), linear)
        yield Asked(f"{name}-2d", numbers(12, 16).astype(dtype), places(16, 12), linear)
        yield Asked(f"{name}-3d", numbers(5, 6, 7).astype(dtype), places(7, 6, 5), linear)
        yield Asked(f"{name}-gather", numbers(12, 16).astype(dtype), places(16, 12), linear, gather=True)
    for kind in (np.uint8, np.int8, np.uint16, np.int16):
        limits, name = np.iinfo(kind), np.dtype(kind).name
        texels = rng.integers(limits.min, limits.max, (12, 16), kind, endpoint=True)
        texels[0, :2] = limits.min, limits.max
        read = {"read_mode": "normalized_float"}
        yield Asked(f"{name}-point", texels, places(16, 12), read)
        yield Asked(f"{name}-linear", texels, places(16, 12), {**read, **linear})
    special = np.array([1, np.inf, 2, np.nan, 3, -np.inf, 1e-40, 3.4e38, 3.4e38, -0.0, -0.0, 0.0], np.float32)
    steps = np.arange(0, 12, 2.0**-6).astype(np.float32)[:, None]
    yield Asked("special-linear", special, steps, linear)
    odd = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e9, 12345.678, -1e-45, 1e-45, 0.0, -0.0], np.float32)
    for size in (4, 5, 1023):
        texels = np.arange(1, size + 1).astype(np.float32)
        edges = (np.arange(-3 * size, 3 * size + 1)[:: max(1, size // 50)] / size).astype(np.float32)
        around = [np.nextafter(edges, np.float32(to)) for to in (-9, 9)]
        near = np.concatenate([rng.uniform(-3, 3, SAMPLES).astype(np.float32), edges, *around, odd])[:, None]
        for mode, chosen in ((mode, chosen) for mode in ADDRESS_MODES for chosen in ("point", "linear")):
            if (mode, chosen) == ("border", "linear"):
                continue  # the driver reads a 1D array as one row of 2D, which mixes the border into it along y
            options = {
                "address_mode": mode,
                "filter_mode": chosen,
                "normalized_coords": True,
                "border_color": (9.0,) * 4,
            }
            yield Asked(f"{mode}-{chosen}-{size}", texels, near, options)
    for mode in ("clamp", "border"):
        border = {"address_mode": mode, "border_color": (9.0,) * 4}
        yield Asked(f"{mode}-texels", numbers(6), np.concatenate([places(6, beyond=9), odd[:, None]]), border)
        yield Asked(f"{mode}-2d", numbers(5, 4), places(4, 5, beyond=3), {**border, **linear})


class Gpu:
    """The kernels on the current GPU."""

    def __init__(self) -> None:
        import torch
        from cuda.bindings import driver

        from refmoe.cuda.toolchain import find_toolchain

        self.torch, self.driver = torch, driver
        torch.zeros(1, device="cuda")
        major, minor = torch.cuda.get_device_capability()
        self.name = torch.cuda.get_device_name()
        with tempfile.TemporaryDirectory() as folder:
            source, cubin = Path(folder, "fetch.cu"), Path(folder, "fetch.cubin")
            source.write_text(KERNELS, encoding="utf-8")
            nvcc = [str(find_toolchain().nvcc), f"-arch=sm_{major}{minor}", "-cubin", "-o", str(cubin), str(source)]
            subprocess.run(nvcc, check=True)
            self.module = self.did(driver.cuModuleLoadData(cubin.read_bytes()))

    def did(self, answer: tuple[Any, ...]) -> Any:
        """What a call of the driver gave."""
        if int(answer[0]):
            raise SystemExit(f"the driver answers {answer[0]!r}")
        return answer[1] if len(answer) == 2 else None

    def texture(self, given: Asked) -> int:
        """The handle of a texture object over a new array."""
        driver, texels = self.driver, np.ascontiguousarray(given.texels)
        depth, height, width = (0,) * (3 - texels.ndim) + texels.shape
        kinds = {"f4": "FLOAT", "f2": "HALF", "u1": "UNSIGNED_INT8", "i1": "SIGNED_INT8"}
        kinds |= {"u2": "UNSIGNED_INT16", "i2": "SIGNED_INT16"}
        array = driver.CUDA_ARRAY3D_DESCRIPTOR()
        array.Width, array.Height, array.Depth, array.NumChannels = width, height, depth, 1
        array.Format = getattr(driver.CUarray_format, f"CU_AD_FORMAT_{kinds[texels.dtype.str[1:]]}")
        array.Flags = driver.CUDA_ARRAY3D_TEXTURE_GATHER if given.gather else 0
        made = self.did(driver.cuArray3DCreate(array))
        copy = driver.CUDA_MEMCPY3D()
        copy.srcMemoryType, copy.dstMemoryType = driver.CUmemorytype(1), driver.CUmemorytype(3)
        copy.srcHost, copy.dstArray = texels.ctypes.data, made
        copy.srcPitch = copy.WidthInBytes = width * texels.itemsize
        copy.srcHeight, copy.Height, copy.Depth = max(height, 1), max(height, 1), max(depth, 1)
        self.did(driver.cuMemcpy3D(copy))
        resource, texture = driver.CUDA_RESOURCE_DESC(), driver.CUDA_TEXTURE_DESC()
        resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
        resource.res.array.hArray = made
        options = given.options
        mode = ADDRESS_MODES.index(options.get("address_mode", "clamp"))
        texture.addressMode = [driver.CUaddress_mode(mode)] * 3
        texture.filterMode = driver.CUfilter_mode(int(options.get("filter_mode") == "linear"))
        texture.flags = driver.CU_TRSF_NORMALIZED_COORDINATES if options.get("normalized_coords") else 0
        texture.borderColor = list(options.get("border_color", (0.0,) * 4))
        return int(self.did(driver.cuTexObjectCreate(resource, texture, None)))

    def answers(self, given: Asked) -> np.ndarray[Any, Any]:
        """The bits of the first component at each place."""
        count, axes = given.places.shape
        padded = np.zeros((count, 3), np.float32)
        padded[:, :axes] = given.places
        places, out = self.torch.from_numpy(padded).cuda(), self.torch.zeros(count, device="cuda")
        name = "gather2" if given.gather else f"fetch{axes}"
        entry = self.did(self.driver.cuModuleGetFunction(self.module, name.encode()))
        values = (self.texture(given), places.data_ptr(), out.data_ptr(), count)
        types = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
        grid = (-(-count // 256), 1, 1)
        self.did(self.driver.cuLaunchKernel(entry, *grid, 256, 1, 1, 0, 0, (values, types), 0))
        self.torch.cuda.synchronize()
        return out.cpu().numpy().view(np.uint32)


def main() -> None:
    """Ask the GPU, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where to write what the GPU answered")
    file = parser.parse_args().file
    gpu, kinds = Gpu(), {}
    arrays: dict[str, Any] = {}
    for each in asked():
        arrays |= {f"{each.name}/texels": each.texels, f"{each.name}/places": each.places}
        arrays[f"{each.name}/bits"] = gpu.answers(each)
        kinds[each.name] = {"options": each.options, "gather": each.gather}
    about = json.dumps({"gpu": gpu.name, "textures": kinds})
    arrays["about"] = np.frombuffer(about.encode(), np.uint8)
    np.savez_compressed(file, **arrays)


if __name__ == "__main__":
    main()
