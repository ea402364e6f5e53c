"""The header of a GGUF file, walked byte by byte and checked before anything is made of it.

    4 bytes          "GGUF"
    u32, u64, u64    version, number of tensors, number of metadata entries; all little-endian
    entries          key (a string), type, value;                                a string is u64 n and n bytes of UTF-8
    tensors          name, u32 dimensions, u64 each (innermost first), u32 type, u64 offset from the start of the data
    padding          to a multiple of `general.alignment` (32)
    data             the tensors one after another, each padded likewise

The format is that of ggml's docs/gguf.md, versions 2 and 3, and the checks are those of its C loader and more: no size
is believed before the bytes that it needs are known to be there, so a hostile file costs at most the time of its own
length. The package gguf knows the types and their block sizes. Its reader is not asked: it makes an array of every
string, which for gpt-oss's tokenizer of 650,000 took 87 s and 1.1 GB here; tests hold this walk against it.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from refmoe.models.tensor_file import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
_ALIGNMENT = 32
#: The least that the format allows, under which every number is aligned; and more than any file has.
_SMALLEST_ALIGNMENT, _LARGEST_ALIGNMENT = 8, 1 << 20
#: Limits of ggml (GGML_MAX_DIMS, GGML_MAX_NAME) and of the format (a key).
_DIMENSIONS, _NAME_BYTES, _KEY_BYTES = 4, 64, (1 << 16) - 1
_STRING, _ARRAY = 8, 9
#: `struct` codes of the other types of metadata, by their number.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SHORTEST_ENTRY, _SHORTEST_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8

MISSING = "the package gguf, which knows the types of GGUF files: pip install gguf==0.19.0"


@dataclass(frozen=True)
class GgufArray:
    """An array in the metadata, which is skipped: its length alone is kept."""

    length: int


@dataclass(frozen=True)
class GgufTensorInfo:
    """What a header says of a tensor.

    Attributes:
        type: ggml's name of its type, such as "F32" or "MXFP4".
        shape: its dimensions, the outermost first, elements counted one by one.
        block: elements of the last dimension that lie together.
        block_bytes: bytes of a block.
        start: offset of its first byte in the file.
    """

    type: str
    shape: tuple[int, ...]
    block: int
    block_bytes: int
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file."""
        return math.prod(self.shape) // self.block * self.block_bytes


@dataclass(frozen=True)
class GgufHeader:
    """Everything before the data.

    Attributes:
        version: of the format.
        metadata: values by key: numbers, truth values, strings, and a GgufArray for an array.
        tensors: in the order of the file.
        data: offset of the first byte of data.
    """

    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensorInfo]
    data: int


def read_header(path: Path, content: mmap.mmap | bytes) -> GgufHeader:
    """Walk the header of the file `path`, whose bytes are `content`.

    Raises:
        CheckpointError: no GGUF file, one of another version or byte order, one that ends too early or too late; a
            name, key or type that cannot be; a tensor whose bytes are not where they have to be; or the package gguf is
            missing.
    """
    return _Walk(path, content).header()


class _Walk:
    """A position in the header that never passes the end of the file."""

    def __init__(self, path: Path, content: mmap.mmap | bytes) -> None:
        self._path, self._content, self._size = path, content, len(content)
        try:
            self._types = ggml_types()
        except ImportError as error:
            raise CheckpointError(path, None, "a GGUF file, and no package to read it with", MISSING) from error
        self._at = 0

    def header(self) -> GgufHeader:
        version, tensors, entries = self._start()
        metadata: dict[str, Any] = {}
        for _ in range(self._count(entries, _SHORTEST_ENTRY, "metadata entries")):
            key = self._label("a key", _KEY_BYTES)
            if key in metadata:
                self._refuse(f"the key {key} twice in the metadata", "each key once")
            metadata[key] = self._value(key)
        alignment = self._alignment(metadata)
        listed = [self._tensor() for _ in range(self._count(tensors, _SHORTEST_TENSOR, "tensors"))]
        data = -(-self._at // alignment) * alignment
        return GgufHeader(version, metadata, self._placed(listed, data, alignment), data)

    def _start(self) -> tuple[int, int, int]:
        needed = "a GGUF file, which starts with the letters GGUF"
        if self._content[:4] != MAGIC:
            self._refuse(f"a file of {self._size} bytes that starts with {bytes(self._content[:4])!r}", needed)
        self._at = 4
        version = self._number("I", "its version")
        if version & 0xFFFF == 0:
            self._refuse("a big-endian file", "a little-endian one; llama.cpp's gguf_convert_endian.py turns it round")
        if version not in VERSIONS:
            self._refuse(f"version {version}", f"version {' or '.join(map(str, VERSIONS))}")
        return version, self._number("Q", "its number of tensors"), self._number("Q", "its number of metadata entries")

    def _value(self, key: str) -> Any:
        kind = self._number("I", f"the type of {key}")
        if kind != _ARRAY:
            return self._single(key, kind)
        inner, length = self._number("I", f"the type of {key}"), self._number("Q", f"the length of {key}")
        if inner == _STRING:
            for _ in range(self._count(length, 8, f"strings in {key}")):
                self._skip(self._number("Q", f"the length of a string in {key}"), f"a string in {key}")
        elif inner in _SCALARS:
            self._skip(length * struct.calcsize(f"<{_SCALARS[inner]}"), f"the array {key}")
        else:
            self._refuse(f"an array {key} of type {inner}", "an array of numbers, truth values or strings")
        return GgufArray(length)

    def _single(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._string(f"the value of {key}", self._size)
        if kind not in _SCALARS:
            self._refuse(f"the type {kind} of {key}", f"a type of GGUF, 0 to {max(_SCALARS)}")
        return self._number(_SCALARS[kind], f"the value of {key}")

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        value = metadata.get(ALIGNMENT_KEY, _ALIGNMENT)
        if type(value) is not int or not _SMALLEST_ALIGNMENT <= value <= _LARGEST_ALIGNMENT or value & (value - 1):
            self._refuse(
                f"{ALIGNMENT_KEY} {value!r}", f"a power of two from {_SMALLEST_ALIGNMENT} to {_LARGEST_ALIGNMENT}"
            )
        return value

    def _tensor(self) -> tuple[str, GgufTensorInfo]:
        """The next entry; its `start` still counts from the start of the data."""
        name = self._label("the name of a tensor", _NAME_BYTES)
        dimensions = self._number("I", f"the dimensions of {name}")
        if not 1 <= dimensions <= _DIMENSIONS:
            self._refuse(f"{dimensions} dimensions", f"1 to {_DIMENSIONS}", name)
        shape = tuple(self._number("Q", f"the dimensions of {name}") for _ in range(dimensions))[::-1]
        number, offset = self._number("I", f"the type of {name}"), self._number("Q", f"the offset of {name}")
        if number not in self._types:
            self._refuse(f"type {number}", "a type of ggml that gguf 0.19.0 knows", name)
        kind, block, block_bytes = self._types[number]
        if not all(shape) or shape[-1] % block:
            needed = f"dimensions of at least 1, the last a multiple of {block}"
            self._refuse(f"{kind} {list(shape)}", needed, name)
        info = GgufTensorInfo(kind, shape, block, block_bytes, offset)
        # In whole numbers without a limit: a product that overflows 64 bits is no size that fits by chance.
        if info.nbytes > self._size:
            found = f"{kind} {list(shape)}, {info.nbytes} bytes, in a file of {self._size}"
            self._refuse(found, "a tensor that fits into the file", name)
        return name, info

    def _placed(
        self, listed: list[tuple[str, GgufTensorInfo]], data: int, alignment: int
    ) -> Mapping[str, GgufTensorInfo]:
        """The tensors where they lie in the file: one after another, as ggml demands, without gap or overlap."""
        placed: dict[str, GgufTensorInfo] = {}
        expected = end = 0
        for name, info in listed:
            if name in placed:
                self._refuse("the name twice in the header", "each tensor once", name)
            if info.start != expected:
                self._refuse(f"the offset {info.start}", f"{expected}, where the tensor before it ends", name)
            end = expected + info.nbytes
            expected = -(-end // alignment) * alignment
            placed[name] = GgufTensorInfo(info.type, info.shape, info.block, info.block_bytes, data + info.start)
            if data + end > self._size:
                needed = f"{data + end} bytes, where this tensor ends: the file is truncated"
                self._refuse(f"a file of {self._size} bytes", needed, name)
        if self._size > data + expected:
            self._refuse(f"a file of {self._size} bytes", f"{data + expected}, where the last tensor ends")
        return placed

    def _label(self, what: str, longest: int) -> str:
        """A string that errors quote: one that could steer a terminal, or show nothing, is none."""
        text = self._string(what, longest)
        if not text or not text.isprintable():
            self._refuse(f"{what} {text[:40]!r}", "printable characters")
        return text

    def _string(self, what: str, longest: int) -> str:
        length = self._number("Q", f"the length of {what}")
        if length > longest:
            self._refuse(f"{what} of {length} bytes", f"at most {longest}")
        start = self._at
        self._skip(length, what)
        try:
            return bytes(self._content[start : self._at]).decode()
        except UnicodeDecodeError:
            self._refuse(f"{what} that is no UTF-8", "UTF-8")

    def _number(self, code: str, what: str) -> Any:
        start = self._at
        self._skip(struct.calcsize(f"<{code}"), what)
        return struct.unpack_from(f"<{code}", self._content, start)[0]

    def _skip(self, length: int, what: str) -> None:
        if length > self._size - self._at:
            needed = f"{length} more from byte {self._at} on for {what}: the file is damaged or truncated"
            self._refuse(f"a file of {self._size} bytes", needed)
        self._at += length

    def _count(self, count: int, shortest: int, what: str) -> int:
        """`count` things, if the rest of the file could hold so many of at least `shortest` bytes."""
        if count > (self._size - self._at) // shortest:
            self._refuse(f"{count} {what} in a file of {self._size} bytes", "no more than fit into it")
        return count

    def _refuse(self, found: str, needed: str, tensor: str | None = None) -> NoReturn:
        raise CheckpointError(self._path, tensor, found, needed)


@cache
def ggml_types() -> Mapping[int, tuple[str, int, int]]:
    """ggml's types by number: name, elements of a block, bytes of a block.

    Raises:
        ImportError: the package gguf is missing.
    """
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    return {int(kind): (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
