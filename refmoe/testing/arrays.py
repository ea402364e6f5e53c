"""Arrays of any framework as NumPy arrays with the same bits, and back.

torch tensors and JAX arrays are known; anything else comes in through DLPack. Nothing is converted: BF16 and FP8
elements become the `ml_dtypes` type of their name, and a tensor of a GPU is copied. torch and JAX are never imported
for an array of another framework.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe

#: Element types that NumPy has no name for, by the names that torch gives them; ml_dtypes gives most the same. FP4
#: comes packed, two codes a byte.
_SHARED = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
_ELEMENTS: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {**{name: np.dtype(getattr(ml_dtypes, name)) for name in _SHARED}, "float4_e2m1fn_x2": np.dtype(np.uint8)}
)

_DLPACK_CPU = 1


def to_numpy(array: object, argument: str = "array") -> NDArray[Any]:
    """A C-contiguous NumPy array with the shape, the element type and the bits of `array`.

    Args:
        array: a NumPy array, a torch tensor on a CPU or a GPU, a JAX array, or anything with `__dlpack__`.
        argument: its name in an error message.

    Raises:
        ArgumentError: it is none of these, or nothing here can read its memory or its element type.
    """
    if isinstance(array, (np.ndarray, np.generic)):
        found = np.asarray(array)
    elif _is_of(array, "torch", "Tensor"):
        found = _from_torch(array, argument)
    elif _is_of(array, "jax", "Array"):
        found = np.asarray(array)  # JAX's own types are those of ml_dtypes already
    elif hasattr(array, "__dlpack__"):
        found = _from_dlpack(array, argument)
    else:
        raise ArgumentError(argument, describe(array), "an array: of NumPy, torch or JAX, or one with __dlpack__")
    if found.dtype.hasobject:
        raise ArgumentError(argument, f"elements of type {found.dtype}", "numbers")
    return np.ascontiguousarray(found).reshape(found.shape)  # ascontiguousarray makes a scalar one-dimensional


def describe_array(array: NDArray[Any]) -> str:
    """Element type and shape, "bfloat16 [4, 2880]"."""
    return f"{array.dtype} {list(array.shape)}"


def _is_of(array: object, module: str, name: str) -> bool:
    """Whether it is an instance of a class of a module that somebody has imported already."""
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return isinstance(kind, type) and isinstance(array, kind)


def _from_torch(tensor: Any, argument: str) -> NDArray[Any]:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ArgumentError(argument, f"a torch tensor of layout {tensor.layout}", "a dense one: torch.strided")
    name = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
    if name not in _ELEMENTS:
        try:
            return np.asarray(plain.numpy())
        except TypeError as error:
            raise ArgumentError(argument, f"a torch tensor of {name}", "a type that NumPy or ml_dtypes has") from error
    element = _ELEMENTS[name]
    carrier = torch.int16 if element.itemsize == 2 else torch.uint8
    # A tensor without elements or without dimensions has no last dimension to view; reshape first.
    bits: NDArray[Any] = plain.reshape(-1).view(carrier).numpy().view(element).reshape(tuple(tensor.shape))
    return bits


def _from_dlpack(array: Any, argument: str) -> NDArray[Any]:
    device = array.__dlpack_device__()[0] if hasattr(array, "__dlpack_device__") else _DLPACK_CPU
    if device == _DLPACK_CPU:
        try:
            return np.asarray(np.from_dlpack(array))
        except (RuntimeError, BufferError, TypeError):
            pass  # NumPy reads neither BF16 nor FP8 from DLPack; torch does
    try:
        from torch.utils.dlpack import from_dlpack

        return _from_torch(from_dlpack(array), argument)
    except Exception as error:
        where = "its CPU" if device == _DLPACK_CPU else f"DLPack device {device}"
        found = f"{type(array).__name__} on {where}, which neither NumPy nor torch reads through DLPack: {error}"
        raise ArgumentError(argument, found, "an array whose memory and element type one of them can read") from error


def _as_numpy(array: NDArray[Any], device: str) -> Any:
    return array


def _as_torch(array: NDArray[Any], device: str) -> Any:
    import torch

    native = {dtype: name for name, dtype in _ELEMENTS.items() if dtype != np.uint8}
    if array.dtype in native:
        carrier = np.int16 if array.dtype.itemsize == 2 else np.uint8
        tensor = torch.from_numpy(array.view(carrier)).view(getattr(torch, native[array.dtype]))
    else:
        tensor = torch.from_numpy(array)
    return tensor.to(device)


def _as_jax(array: NDArray[Any], device: str) -> Any:
    import jax

    place = jax.devices("cpu" if device == "cpu" else "gpu")[0]
    return jax.device_put(array, place)


#: Makes a framework's array out of a NumPy array, on a device "cpu" or "cuda".
ARRAY_KINDS: Mapping[str, Callable[[NDArray[Any], str], Any]] = MappingProxyType(
    {"numpy": _as_numpy, "torch": _as_torch, "jax": _as_jax}
)


def from_numpy(array: NDArray[Any], kind: str, device: str = "cpu") -> Any:
    """An array of `kind` "numpy", "torch" or "jax" with a copy of the elements, on the device "cpu" or "cuda"."""
    return ARRAY_KINDS[kind](array.copy(), device)


def arrays_missing(kind: str, device: str = "cpu") -> str | None:
    """What this machine lacks to make arrays of `kind` on `device`, in a sentence that says what to do; or None."""
    if kind == "numpy":
        return None
    try:
        framework = importlib.import_module(kind)
    except ImportError as error:
        if importlib.util.find_spec(kind) is not None:
            return f"{kind} is installed, but cannot be imported: {error}"
        name = "torch tensors" if kind == "torch" else "JAX arrays"
        return (
            f"{kind} is not installed, and the kernel is given {name}: pip install {kind}, "
            "or register a function of NumPy arrays with arrays='numpy'"
        )
    if device == "cuda" and not _SEES_GPU[kind](framework):
        return f"{kind} sees no GPU on this machine, and the kernel is registered with device='cuda'"
    return None


def _jax_sees_gpu(jax: Any) -> bool:
    try:
        return bool(jax.devices("gpu"))
    except RuntimeError:
        return False


#: Whether a framework, given as its module, can put arrays on a GPU.
_SEES_GPU: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {"torch": lambda torch: bool(torch.cuda.is_available()), "jax": _jax_sees_gpu}
)
