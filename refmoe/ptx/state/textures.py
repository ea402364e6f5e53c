"""Texture and surface objects: arrays of texels, and how instructions read and write them.

The names are those of the CUDA runtime: cudaArray, cudaResourceDesc, cudaTextureDesc. How a chip lays out a CUDA array
is not published. Here its texels lie in C order, as in the NumPy array that holds them: x runs fastest.

A handle is a number that only instructions on textures and surfaces can use: no buffer has such an address.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refmoe.errors import ArgumentError, describe
from refmoe.ptx.state.memory import Region
from refmoe.ptx.state.spaces import HANDLE_WINDOW

Array = Any
#: Elements of a texel.
FORMATS = tuple(np.dtype(each) for each in ("u1", "u2", "u4", "i1", "i2", "i4", "f2", "f4"))
CHANNELS = (1, 2, 4)
ADDRESS_MODES = ("wrap", "clamp", "mirror", "border")
FILTER_MODES = ("point", "linear")
READ_MODES = ("element_type", "normalized_float")
FACES = 6
#: By kind of array: its axes, outermost first. Faces of a cubemap are layers.
KINDS = {
    "1d": "x", "2d": "yx", "3d": "zyx", "1d_layered": "lx", "2d_layered": "lyx", "cubemap": "lyx",
    "cubemap_layered": "lyx",
}  # fmt: skip
_AXES = {**KINDS, "linear": "x", "pitch2d": "yx"}
# Handles of arguments have this bit, those of a DeviceMemory have not.
_OF_ARGUMENTS = 1 << 32


def memory_handle(number: int) -> int:
    """The handle of an object that lives in a DeviceMemory."""
    return HANDLE_WINDOW | number + 1


def argument_handle(position: int) -> int:
    """The handle of an object that is an argument of a launch."""
    return HANDLE_WINDOW | _OF_ARGUMENTS | position + 1


@dataclass(frozen=True)
class Texels:
    """Where the texels of an object lie.

    Attributes:
        kind: of `KINDS`, or `"linear"` or `"pitch2d"`.
        layers, depth, height, width: texels; faces count as layers.
        dtype: of an element.
        channels: elements of a texel.
        pitch: bytes from one row to the next.
    """

    kind: str
    layers: int
    depth: int
    height: int
    width: int
    dtype: np.dtype[Any]
    channels: int
    pitch: int

    @property
    def texel_bytes(self) -> int:
        """Of all channels."""
        return int(self.dtype.itemsize) * self.channels

    @property
    def size(self) -> int:
        """Bytes from the first texel to the end of the last one."""
        return (self.layers * self.depth * self.height - 1) * self.pitch + self.width * self.texel_bytes

    def offset(self, layer: Array, z: Array, y: Array, x: Array) -> Array:
        """Bytes from the first texel to others, int64 [n]."""
        row = (np.asarray(layer, np.int64) * self.depth + z) * self.height + y
        return row * self.pitch + np.asarray(x, np.int64) * self.texel_bytes

    def __str__(self) -> str:
        sizes = {"x": self.width, "y": self.height, "z": self.depth}
        shape = " x ".join(str(sizes[axis]) for axis in reversed(_AXES[self.kind]) if axis != "l")
        layers = f", {self.layers} layers" if self.layers > 1 else ""
        return f"{self.kind} of {shape} texels of {self.texel_bytes} bytes{layers}"


def _format(name: str, dtype: np.dtype[Any], channels: int) -> None:
    if dtype not in FORMATS:
        raise ArgumentError(name, f"elements of {dtype}", f"one of {', '.join(map(str, FORMATS))}")
    if channels not in CHANNELS:
        raise ArgumentError("channels", str(channels), "1, 2 or 4")


@dataclass(frozen=True, eq=False)
class CudaArray:
    """A CUDA array (cudaMallocArray, cudaMalloc3DArray).

    >>> import numpy as np, refmoe
    >>> image = refmoe.ptx.CudaArray(np.zeros((4, 8), np.float32))
    >>> print(image.texels)
    2d of 8 x 4 texels of 4 bytes

    Attributes:
        data: C-contiguous, `[layer][z][y][x]` as its kind has them, and then the channel if there are several. Faces of
            a cubemap are its layers: `[6][y][x]`. Surfaces write into it, if it is writable.
        kind: `"1d" "2d" "3d" "1d_layered" "2d_layered" "cubemap" "cubemap_layered"`.
        channels: elements of a texel: 1, 2 or 4.
        name: for messages.
        initialised: which texels hold something: True, False, or an array of bool in the shape of `data`, which
            launches update.

    Raises:
        ArgumentError: there is no such array.
    """

    data: np.ndarray[Any, Any]
    kind: str = "2d"
    channels: int = 1
    name: str = "CUDA array"
    initialised: bool | np.ndarray[Any, Any] = True

    def __post_init__(self) -> None:
        if not isinstance(self.data, np.ndarray):
            raise ArgumentError("data", describe(self.data), "a NumPy array")
        if self.kind not in KINDS:
            raise ArgumentError("kind", repr(self.kind), f"one of {', '.join(KINDS)}")
        _format("data", self.data.dtype, self.channels)
        axes = len(KINDS[self.kind]) + (self.channels > 1)
        if self.data.ndim != axes or not self.data.size or not self.data.flags.c_contiguous:
            needed = f"C-contiguous, not empty, with {axes} axes for {self.kind} and {self.channels} channels"
            raise ArgumentError("data", describe(self.data), needed)
        if self.channels > 1 and self.data.shape[-1] != self.channels:
            raise ArgumentError("data", describe(self.data), f"a last axis of {self.channels} channels")
        if self.kind.startswith("cubemap"):
            texels = self.texels
            if (
                texels.width != texels.height
                or texels.layers % FACES
                or (self.kind == "cubemap") > (texels.layers == FACES)
            ):
                raise ArgumentError("data", describe(self.data), "square faces, and six of them for a cube")

    @property
    def texels(self) -> Texels:
        """Where its texels lie."""
        sizes = dict(zip(KINDS[self.kind], self.data.shape, strict=False))
        width = sizes["x"]
        pitch = width * self.channels * self.data.dtype.itemsize
        return Texels(
            self.kind, sizes.get("l", 1), sizes.get("z", 1), sizes.get("y", 1), width, self.data.dtype, self.channels,
            pitch,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class LinearMemory:
    """Device memory as a texture for tex1Dfetch (cudaResourceTypeLinear).

    Attributes:
        memory: an array or a `refmoe.ptx.Buffer`, which may be a pointer of the launch too; or an address in a
            `DeviceMemory`, and then `dtype` and `width` are needed.
        channels: elements of a texel.
        dtype: of an element; that of the array by default.
        width: texels; all of the array by default.

    Raises:
        ArgumentError: there is no such texture.
    """

    memory: Any
    channels: int = 1
    dtype: Any = None
    width: int | None = None

    def __post_init__(self) -> None:
        texels = self.texels
        _format("memory", texels.dtype, self.channels)
        _inside(self.memory, texels)

    @property
    def texels(self) -> Texels:
        """Where its texels lie."""
        dtype, held = _memory(self.memory, self.dtype)
        size = dtype.itemsize * self.channels
        if self.width is None and held is None:
            raise ArgumentError("width", "None", "the texels of a texture over an address")
        width = held // size if self.width is None and held is not None else int(self.width or 0)
        return Texels("linear", 1, 1, 1, width, dtype, self.channels, width * size)


@dataclass(frozen=True, eq=False)
class Pitch2D:
    """Device memory as a texture of two dimensions (cudaResourceTypePitch2D).

    Attributes:
        memory: as of `LinearMemory`.
        width, height: texels.
        pitch: bytes from one row to the next; rows without gaps by default. A chip wants a multiple of its
            texturePitchAlignment; here a multiple of the texel is enough.
        channels, dtype: as of `LinearMemory`.

    Raises:
        ArgumentError: there is no such texture.
    """

    memory: Any
    width: int
    height: int
    pitch: int | None = None
    channels: int = 1
    dtype: Any = None

    def __post_init__(self) -> None:
        texels = self.texels
        _format("memory", texels.dtype, self.channels)
        row = texels.width * texels.texel_bytes
        if texels.pitch < row or texels.pitch % texels.texel_bytes:
            raise ArgumentError("pitch", f"{texels.pitch} bytes", f"a multiple of a texel, at least {row}")
        _inside(self.memory, texels)

    @property
    def texels(self) -> Texels:
        """Where its texels lie."""
        dtype, _ = _memory(self.memory, self.dtype)
        row = self.width * self.channels * dtype.itemsize
        pitch = row if self.pitch is None else self.pitch
        return Texels("pitch2d", 1, 1, self.height, self.width, dtype, self.channels, pitch)


Resource = CudaArray | LinearMemory | Pitch2D


def _memory(memory: Any, dtype: Any) -> tuple[np.dtype[Any], int | None]:
    """(type of an element, bytes or None for an address) of memory."""
    array = getattr(memory, "array", memory)
    if isinstance(array, np.ndarray):
        return np.dtype(array.dtype if dtype is None else dtype), array.nbytes
    if not isinstance(memory, int) or dtype is None:
        raise ArgumentError("memory", describe(memory), "an array, a Buffer, or an address and a dtype")
    return np.dtype(dtype), None


def _inside(memory: Any, texels: Texels) -> None:
    held = _memory(memory, texels.dtype)[1]
    if texels.width < 1 or texels.height < 1:
        raise ArgumentError("width", f"{texels.width} x {texels.height} texels", "at least one")
    if held is not None and texels.size > held:
        raise ArgumentError("memory", f"{held} bytes", f"{texels.size} for {texels}")


@dataclass(frozen=True, eq=False)
class TextureObject:
    """A texture object (cudaCreateTextureObject), for `launch` where the kernel has a cudaTextureObject_t.

    >>> import numpy as np, refmoe
    >>> image = refmoe.ptx.CudaArray(np.zeros((4, 8), np.uint8))
    >>> texture = refmoe.ptx.TextureObject(image, filter_mode="linear", read_mode="normalized_float")
    >>> texture.address_mode
    ('clamp', 'clamp', 'clamp')

    Attributes:
        resource: a `CudaArray`, a `LinearMemory` or a `Pitch2D`.
        address_mode: `"wrap" "clamp" "mirror" "border"`, one or one for each of x, y and z. Without normalized
            coordinates `"wrap"` and `"mirror"` are `"clamp"`.
        filter_mode: `"point"` or `"linear"`.
        read_mode: `"element_type"`, or `"normalized_float"` for 8 and 16 bit integers.
        normalized_coords: whether coordinates go from 0 to 1.
        border_color: four numbers.

    Raises:
        ArgumentError: there is no such texture.
    """

    resource: Resource
    address_mode: str | Sequence[str] = "clamp"
    filter_mode: str = "point"
    read_mode: str = "element_type"
    normalized_coords: bool = False
    border_color: Sequence[float] = (0.0, 0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        if not isinstance(self.resource, Resource):
            raise ArgumentError("resource", describe(self.resource), "a CudaArray, a LinearMemory or a Pitch2D")
        modes = (self.address_mode,) * 3 if isinstance(self.address_mode, str) else tuple(self.address_mode)
        if not 1 <= len(modes) <= 3 or any(each not in ADDRESS_MODES for each in modes):
            raise ArgumentError("address_mode", repr(self.address_mode), f"of {', '.join(ADDRESS_MODES)}")
        object.__setattr__(self, "address_mode", (*modes, *("clamp",) * (3 - len(modes))))
        for name, value, known in (
            ("filter_mode", self.filter_mode, FILTER_MODES), ("read_mode", self.read_mode, READ_MODES),
        ):  # fmt: skip
            if value not in known:
                raise ArgumentError(name, repr(value), " or ".join(known))
        dtype = self.resource.texels.dtype
        if self.read_mode == "normalized_float" and (dtype.kind == "f" or dtype.itemsize > 2):
            raise ArgumentError("read_mode", f"normalized_float of {dtype}", "integers of 8 or 16 bits")
        if self.filter_mode == "linear" and not self.gives_floats:
            raise ArgumentError("filter_mode", f"linear of {dtype}", "a texture that gives floating-point numbers")
        if isinstance(self.resource, LinearMemory) and (self.filter_mode == "linear" or self.normalized_coords):
            raise ArgumentError("resource", "LinearMemory", "point filtering, and no normalized coordinates")
        if self.resource.texels.kind.startswith("cubemap") and not self.normalized_coords:
            raise ArgumentError("normalized_coords", "False for a cubemap", "True: its coordinates are a direction")
        colour = tuple(float(each) for each in self.border_color)
        if len(colour) != 4:
            raise ArgumentError("border_color", describe(self.border_color), "four numbers")
        if not self.gives_floats and not all(math.isfinite(each) for each in colour):
            raise ArgumentError("border_color", describe(self.border_color), "finite numbers for integers")
        object.__setattr__(self, "border_color", colour)

    @property
    def gives_floats(self) -> bool:
        """Whether a fetch gives floating-point numbers."""
        return self.read_mode == "normalized_float" or self.resource.texels.dtype.kind == "f"


@dataclass(frozen=True, eq=False)
class SurfaceObject:
    """A surface object (cudaCreateSurfaceObject), for `launch` where the kernel has a cudaSurfaceObject_t.

    Attributes:
        resource: the `CudaArray` that it reads and writes.

    Raises:
        ArgumentError: it is none.
    """

    resource: CudaArray

    def __post_init__(self) -> None:
        if not isinstance(self.resource, CudaArray):
            raise ArgumentError("resource", describe(self.resource), "a CudaArray")


@dataclass(frozen=True)
class Bound:
    """An object in a launch.

    Attributes:
        object: so.
        region: the memory that has its texels.
        base: address of the first one.
    """

    object: TextureObject | SurfaceObject
    region: Region
    base: int

    @property
    def texels(self) -> Texels:
        """Where its texels lie, from `base` on."""
        return self.object.resource.texels
