"""Activations and quantized bytes from files, or activations from a fill by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.families.case import Shape
from refmoe.families.quantize import FILLS, LEAST_BLOCKS, QUANTIZE, make_input
from refmoe.families.real_data import FFN_INPUT
from refmoe.files import read_npy, tensor_name
from refmoe.formats import MX_BLOCK

_FIELDS = re.compile(r"(?P<dtype>bf16|fp16)|m(?P<m>\d+)k(?P<k>\d+)|seed(?P<seed>\d+)")
_FILL_ROWS, _FILL_WIDTH, _FILL_SEED = 256, 2880, 7
_MOST_ELEMENTS = 1 << 31
#: Those that are drawn; the others are read from files.
_DRAWN = tuple(name for name in FILLS if name not in ("real", "activations"))


@dataclass(frozen=True, eq=False)
class NamedInput:
    """Activations and where they come from.

    Attributes:
        name: the whole specification, defaults filled in.
        x: BF16, FP16 or FP32 [..., K]; memory-mapped if it is a file's.
    """

    name: str
    x: NDArray[np.generic]


def read_input(text: str) -> NamedInput:
    """Activations by name.

    Args:
        text: FILE.npy; FILE.safetensors[:TENSOR]; "real", the activations that ship with refmoe; or a fill of
            `refmoe.families.quantize` with what it needs, FILL[:bf16|fp16][:mMkK][:seedN]. NumPy has no BF16: a .npy
            file of raw 2-byte elements, which is what ml_dtypes writes, is read as BF16.

    Raises:
        ArgumentError: no such file or fill, a damaged file, no such tensor, another dtype.
    """
    if text == "real":
        return NamedInput(text, _from_safetensors(FFN_INPUT, None, "input"))
    if text.split(":")[0] in _DRAWN:
        return _from_fill(text)
    path, tensor = _split(text)
    needed = f"a .npy or .safetensors file, real, or one of the fills {', '.join(_DRAWN)}"
    if not path.is_file():
        raise ArgumentError("input", f"no file or fill {text!r}", needed)
    if path.suffix == ".npy":
        array = _from_npy(path, tensor, "input")
        return NamedInput(text, array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array)
    if path.suffix == ".safetensors":
        return NamedInput(text, _from_safetensors(path, tensor, "input"))
    raise ArgumentError("input", f"the file {path}", needed)


def read_bytes(text: str, argument: str) -> NDArray[np.uint8]:
    """Codes, scales or GGUF blocks: FILE.npy, FILE.safetensors[:TENSOR], or any other file as raw bytes.

    Args:
        text: the file.
        argument: what it is called in an error.

    Raises:
        ArgumentError: no such file, a damaged one, no such tensor, elements of more than a byte.
    """
    path, tensor = _split(text)
    if not path.is_file():
        raise ArgumentError(argument, f"no file {text!r}", "a .npy, .safetensors or raw file of bytes")
    if path.suffix == ".safetensors":
        array = _from_safetensors(path, tensor, argument)
    elif path.suffix == ".npy":
        array = _from_npy(path, tensor, argument)
    else:
        array = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    if array.dtype not in (np.dtype(np.uint8), np.dtype("V1")):
        raise ArgumentError(argument, f"{array.dtype} in {text}", "uint8")
    return array.view(np.uint8)


def named_in_full(text: str) -> str:
    """FILE.safetensors as FILE.safetensors:TENSOR, if it holds one tensor, scales of block FP8 aside; else `text`.

    Raises:
        ArgumentError: a damaged file.
    """
    from safetensors import SafetensorError, safe_open

    path, tensor = _split(text)
    if tensor is not None or path.suffix != ".safetensors" or not path.is_file():
        return text
    try:
        with safe_open(path, framework="numpy") as file:
            names = [name for name in sorted(file.keys()) if not name.endswith("_scale_inv")]
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            "input", f"{path}, which cannot be read: {error}", "an undamaged safetensors file"
        ) from error
    return f"{path}:{names[0]}" if len(names) == 1 else text


def read_stored_fp8(text: str) -> tuple[NDArray[np.uint8], NDArray[np.float32]] | None:
    """Codes uint8 [N, K] and FP32 scales of a weight in block FP8, FILE.safetensors:TENSOR; None if it is no such.

    The scales are the tensor of that name with `_scale_inv` behind it, in the same file.

    Raises:
        ArgumentError: a damaged file, no such tensor, codes without scales.
    """
    from safetensors import SafetensorError, safe_open

    path, tensor = _split(text)
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            names = sorted(file.keys())
            name = tensor_name(path, names, tensor, "input")
            if file.get_slice(name).get_dtype() != "F8_E4M3":
                return None
            if f"{name}_scale_inv" not in names:
                raise ArgumentError("input", f"E4M3 codes {name!r} in {path}", f"{name}_scale_inv in the same file")
            scales: NDArray[Any] = file.get_tensor(f"{name}_scale_inv")
    except (SafetensorError, OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            "input", f"{path}, which cannot be read: {error}", "an undamaged safetensors file"
        ) from error
    return _fp8_bytes(path, name), scales


def _split(text: str) -> tuple[Path, str | None]:
    """The path and the name of the tensor; a path may hold colons itself."""
    if Path(text).is_file():
        return Path(text), None
    path, colon, tensor = text.rpartition(":")
    return (Path(path), tensor) if colon else (Path(text), None)


def _from_fill(text: str) -> NamedInput:
    name, *fields = text.split(":")
    given: dict[str, str] = {}
    for part in fields:
        match = _FIELDS.fullmatch(part)
        if match is None:
            raise ArgumentError("input", f"{part!r} in {text!r}", "FILL[:bf16|fp16][:mMkK][:seedN]")
        given |= {key: value for key, value in match.groupdict().items() if value is not None}
    dtype = given.get("dtype", "bf16")
    k, seed = int(given.get("k", _FILL_WIDTH)), int(given.get("seed", _FILL_SEED))
    if k == 0 or k % MX_BLOCK:
        raise ArgumentError("input", f"k{k} in {text!r}", f"a k that is a multiple of {MX_BLOCK}")
    # A fill that runs through all patterns gets the blocks for it.
    least_rows = -(-LEAST_BLOCKS.get(name, 0) * MX_BLOCK // k)
    m = int(given.get("m", max(_FILL_ROWS, least_rows)))
    if not 0 < m * k <= _MOST_ELEMENTS:
        raise ArgumentError("input", f"m{m}k{k} in {text!r}", f"1 to {_MOST_ELEMENTS} elements")
    x = make_input(QUANTIZE.case(name, Shape(m, k), dtype, seed), dtype)
    return NamedInput(f"{name}:{dtype}:m{m}k{k}:seed{seed}", x)


def _from_npy(path: Path, tensor: str | None, argument: str) -> NDArray[Any]:
    if tensor is not None:
        raise ArgumentError(argument, f"the tensor {tensor!r} of {path}", "no tensor name: a .npy file holds one array")
    try:
        array: NDArray[Any] = read_npy(path, mmap_mode="r")
    except ValueError as error:
        raise ArgumentError(argument, f"{path}, which cannot be read: {error}", "an undamaged .npy file") from error
    return array


def _from_safetensors(path: Path, tensor: str | None, argument: str) -> NDArray[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            name = tensor_name(path, sorted(file.keys()), tensor, argument)
            # The library's NumPy side knows no FP8.
            if not file.get_slice(name).get_dtype().startswith("F8_"):
                array: NDArray[Any] = file.get_tensor(name)
                return array
        return _fp8_bytes(path, name)
    except (SafetensorError, OSError, UnicodeDecodeError, AttributeError, TypeError) as error:
        found = f"{path}, which cannot be read: {error}"
        raise ArgumentError(argument, found, "an undamaged safetensors file of plain numbers") from error


def _fp8_bytes(path: Path, name: str) -> NDArray[np.uint8]:
    """The codes or scales of an FP8 tensor."""
    from safetensors import deserialize

    # The library's own annotations stop at its compiled half.
    entries: dict[str, dict[str, Any]] = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    values: NDArray[np.uint8] = np.frombuffer(entries[name]["data"], np.uint8).reshape(entries[name]["shape"])
    return values
