"""One GGUF file, or the parts of one that was split: headers checked, tensors as views of memory maps."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.models.gguf.header import GgufTensorInfo, read_header
from refmoe.models.schema import TensorSpec
from refmoe.models.tensor_file import CheckpointError

#: NumPy dtypes of the types that are no blocks.
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I8": np.dtype("i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
_PART, _PARTS, _ALL_TENSORS = "split.no", "split.count", "split.tensors.count"
_MOST_PARTS = 1 << 12


class GgufFile:
    """A GGUF file whose header has been checked; nothing else of it has been read.

    Attributes:
        path: the file.
        version: 2 or 3.
        metadata: values by key; an array is a `GgufArray`, of which the length alone is kept.
        tensors: what the header says of each tensor, by name.
    """

    def __init__(self, path: Path) -> None:
        """Read and check the header of `path`.

        Raises:
            CheckpointError: no such file, or one that `refmoe.models.gguf.header.read_header` refuses.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                # An empty file cannot be mapped.
                self._map: mmap.mmap | bytes = b""
                if path.stat().st_size:
                    self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(path, None, f"no file that can be read: {error.strerror}", "a GGUF file") from error
        header = read_header(path, self._map)
        self.version, self.metadata = header.version, header.metadata
        self.tensors: Mapping[str, GgufTensorInfo] = header.tensors

    def view(self, name: str) -> NDArray[Any]:
        """Tensor `name` as a read-only array in the memory map: nothing is read before its elements are.

        What lies in blocks, as MXFP4 and Q8_0 do, is uint8 [..., blocks, bytes of a block].
        """
        info = self.tensors[name]
        dtype = _DTYPES.get(info.type)
        content = np.frombuffer(self._map, np.uint8, info.nbytes, info.start)
        if dtype is not None:
            return content.view(dtype).reshape(info.shape)
        return content.reshape(*info.shape[:-1], info.shape[-1] // info.block, info.block_bytes)

    def release(self) -> None:
        """Give back the memory of the pages that were read; views stay valid and read them again when used."""
        if isinstance(self._map, mmap.mmap):
            self._map.madvise(mmap.MADV_DONTNEED)


class GgufSet:
    """The tensors of a GGUF file and of its other parts, if it was split.

    Attributes:
        path: the file, the first of the parts.
        files: all of them, checked.
        metadata: of the first.
    """

    def __init__(self, path: Path) -> None:
        """Check the header of `path`; if it says that it is the first of several parts, those of the others too.

        Raises:
            CheckpointError: a file that `GgufFile` refuses, another part than the first, a part that is missing or
                belongs to something else, or a tensor in two parts.
        """
        self.path = path
        first = GgufFile(path)
        self.files = [first, *_other_parts(first)]
        self.metadata = first.metadata
        self._file_of: dict[str, GgufFile] = {}
        for file in self.files:
            for name in file.tensors:
                if name in self._file_of:
                    found = f"it in {self._file_of[name].path.name} too"
                    raise CheckpointError(file.path, name, found, "each tensor once")
                self._file_of[name] = file
        total = self.metadata.get(_ALL_TENSORS, len(self._file_of))
        if total != len(self._file_of):
            found = f"{len(self._file_of)} tensors in {len(self.files)} files"
            raise CheckpointError(path, None, found, f"{total}, by {_ALL_TENSORS}")

    def require(self, needed: Mapping[str, TensorSpec]) -> None:
        """Check that every tensor of `needed` is there with its type and shape; others may be there too.

        Raises:
            CheckpointError: one is missing (all missing ones are counted), or has another type or shape.
        """
        missing = [name for name in needed if name not in self._file_of]
        if missing:
            more = f", and {len(missing) - 1} more are missing" if len(missing) > 1 else ""
            found = f"no such tensor among {len(self._file_of)}{more}"
            raise CheckpointError(self.path, missing[0], found, needed[missing[0]].words)
        for name, spec in needed.items():
            info = self.info(name)
            if info.type not in (spec.dtype, *spec.also) or info.shape != spec.shape:
                found = TensorSpec(info.type, info.shape).words
                raise CheckpointError(self._file_of[name].path, name, found, f"{spec.words}, by the metadata")

    def names(self) -> list[str]:
        """Every tensor's name, sorted."""
        return sorted(self._file_of)

    def info(self, name: str) -> GgufTensorInfo:
        """What the header says of tensor `name`.

        Raises:
            CheckpointError: there is no such tensor.
        """
        return self._holder(name).tensors[name]

    def tensor(self, name: str) -> NDArray[Any]:
        """Tensor `name` as a read-only array in the memory map, see `GgufFile.view`.

        Raises:
            CheckpointError: there is no such tensor.
        """
        return self._holder(name).view(name)

    def release(self) -> None:
        """Give back the memory of the pages that were read; views stay valid."""
        for file in self.files:
            file.release()

    def _holder(self, name: str) -> GgufFile:
        if name not in self._file_of:
            raise CheckpointError(self.path, name, f"no such tensor among {len(self._file_of)}", "one that is there")
        return self._file_of[name]


def _other_parts(first: GgufFile) -> list[GgufFile]:
    """The parts after the first, by the names that llama.cpp's gguf-split gives: NAME-00001-of-00003.gguf."""
    path, count = first.path, first.metadata.get(_PARTS, 1)
    if type(count) is not int or not 0 <= count <= _MOST_PARTS:
        raise CheckpointError(path, None, f"{_PARTS} {count!r}", f"a number of parts, at most {_MOST_PARTS}")
    if count < 2:
        return []
    name = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path.name, re.DOTALL)
    if first.metadata.get(_PART) != 0 or name is None or int(name[2]) != count:
        needed = f"the first of them, NAME-00001-of-{count:05}.gguf, with the others beside it"
        raise CheckpointError(path, None, f"part {first.metadata.get(_PART)!r} of {count}", needed)
    parts = []
    for number in range(1, count):
        part = GgufFile(path.with_name(f"{name[1]}-{number + 1:05}-of-{count:05}.gguf"))
        said = part.metadata.get(_PART), part.metadata.get(_PARTS)
        if said != (number, count):
            raise CheckpointError(part.path, None, f"part {said[0]!r} of {said[1]!r}", f"part {number} of {count}")
        parts.append(part)
    return parts
