"""One safetensors file: its header checked, its tensors as views of a memory map.

    8 bytes          length n of the header, little-endian
    n bytes          JSON: name -> dtype, shape, data_offsets [begin, end) from the end of the header
    the rest         the tensors, one after another

The library safetensors is the judge of the whole (no hole, no overlap, nothing left over); its NumPy interface copies
what it reads and knows no FP8, so the offsets are read here.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError

#: NumPy dtypes of safetensors' names. FP8 codes are uint8, as everywhere in refmoe.
DTYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype(np.uint8),
    "F8_E4M3": np.dtype(np.uint8),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
}

_LENGTH_BYTES = 8
#: What the library reads at most; a larger number is no length but the start of some other file.
_LONGEST_HEADER = 100_000_000
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


class CheckpointError(ArgumentError):
    """A checkpoint, or a part of one, is not what it has to be.

    Attributes:
        file: the file or folder.
        tensor: the tensor's name in the file, None where it is about no single tensor.
        found: what the file holds, in words.
        needed: what it would have to hold, in words.
    """

    def __init__(self, file: Path, tensor: str | None, found: str, needed: str) -> None:
        super().__init__(str(file) if tensor is None else f"{file}: tensor {tensor}", found, needed)
        self.file = file
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.tensor, self.found, self.needed)


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of a tensor.

    Attributes:
        dtype: safetensors' name of it, one of `DTYPES`.
        shape: its dimensions.
        start: offset of its first byte in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


class TensorFile:
    """A safetensors file whose header has been checked; nothing else of it has been read.

    Attributes:
        path: the file.
        tensors: what the header says of each tensor, by name.
    """

    def __init__(self, path: Path) -> None:
        """Read and check the header of `path`.

        Raises:
            CheckpointError: a pickle, a truncated or damaged file, a name that is there twice, a tensor of an unknown
                dtype or whose bytes do not fit its shape or the file.
        """
        refuse_pickle(path)
        self.path = path
        self.tensors: Mapping[str, TensorInfo] = _read_header(path)
        _ask_library(path)
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def view(self, name: str) -> NDArray[Any]:
        """Tensor `name` as a read-only array in the memory map: nothing is read before its elements are.

        A tensor whose offset is no multiple of its element size is copied, since NumPy is slow on such.
        """
        info = self.tensors[name]
        dtype = DTYPES[info.dtype]
        array: NDArray[Any] = np.frombuffer(self._map, dtype, math.prod(info.shape), info.start).reshape(info.shape)
        return array if info.start % dtype.itemsize == 0 else array.copy()

    def release(self) -> None:
        """Give back the memory of the pages that were read; views stay valid and read them again when used."""
        self._map.madvise(mmap.MADV_DONTNEED)


def refuse_pickle(path: Path) -> None:
    """Raise CheckpointError if the name of `path` is that of a pickle."""
    if path.suffix in _PICKLES:
        needed = "safetensors: reading a pickle runs whatever code is in it, so refmoe never does"
        raise CheckpointError(path, None, f"a {path.suffix} file, which is a pickle", needed)


def _read_header(path: Path) -> dict[str, TensorInfo]:
    header, start, size = _header_json(path)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        info = _tensor_info(path, name, entry, start)
        if info.start + info.nbytes > size:
            needed = f"{info.start + info.nbytes} bytes, where this tensor ends: the file is truncated"
            raise CheckpointError(path, name, f"a file of {size} bytes", needed)
        tensors[name] = info
    return tensors


def _header_json(path: Path) -> tuple[dict[str, Any], int, int]:
    """The header, the offset of the first tensor, and the size of the file."""
    needed = "a safetensors file, which starts with the length of its header and the header"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(_LONGEST_HEADER, size - _LENGTH_BYTES):
                found = f"{size} bytes" if size < _LENGTH_BYTES else f"a header of {length} bytes in a file of {size}"
                raise CheckpointError(path, None, found, needed)
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(path, None, f"no file that can be read: {error.strerror}", needed) from error
    try:
        header = json.loads(text, object_pairs_hook=lambda pairs: _without_duplicates(path, pairs))
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(path, None, f"a header that is no JSON: {error}", needed) from error
    if not isinstance(header, dict):
        raise CheckpointError(path, None, "a header that is no JSON object", needed)
    return header, _LENGTH_BYTES + length, size


def _without_duplicates(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A JSON parser keeps the last of two equal keys in silence.
    seen: dict[str, Any] = {}
    for name, value in pairs:
        if name in seen:
            raise CheckpointError(path, name, "the name twice in the header", "each tensor once")
        seen[name] = value
    return seen


def _tensor_info(path: Path, name: str, entry: object, data: int) -> TensorInfo:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), _counts(fields.get("shape")), _counts(fields.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2:
        needed = "dtype, shape and data_offsets [begin, end)"
        raise CheckpointError(path, name, f"the header entry {json.dumps(entry)[:80]}", needed)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(path, name, f"dtype {dtype}", f"one of {', '.join(DTYPES)}")
    info = TensorInfo(dtype, tuple(shape), data + offsets[0])
    if offsets[1] - offsets[0] != info.nbytes:
        found = f"{offsets[1] - offsets[0]} bytes (offsets {offsets})"
        raise CheckpointError(path, name, found, f"{info.nbytes} bytes for {dtype} {shape}")
    return info


def _counts(value: object) -> list[int] | None:
    """`value` if it is a list of integers of at least 0."""
    return value if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value) else None


def _ask_library(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        found = f"a file that the safetensors library refuses: {error}"
        raise CheckpointError(path, None, found, "an undamaged safetensors file") from error
