"""GGUF files written byte by byte, right or wrong, with nothing of refmoe or of the package gguf."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

U32, I32, F32, STRING, ARRAY, U64 = 4, 5, 6, 8, 9, 10
TYPE_F32, TYPE_Q8_0, TYPE_BF16, TYPE_MXFP4 = 0, 8, 30, 39


@dataclass(frozen=True)
class Entry:
    """One tensor of the header: its dimensions innermost first, its type, its offset from the start of the data."""

    name: str | bytes
    dimensions: Sequence[int]
    type: int = TYPE_F32
    offset: int = 0


def string(text: str | bytes) -> bytes:
    """A string: its length, its bytes."""
    content = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(content)) + content


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    """One entry of the metadata."""
    return string(key) + struct.pack("<I", kind) + value


def header(
    tensors: Sequence[Entry] = (),
    metadata: Sequence[bytes] = (),
    *,
    version: int = 3,
    tensor_count: int | None = None,
    entry_count: int | None = None,
) -> bytes:
    """A header; the counts are those of what it holds unless others are given."""
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(metadata) if entry_count is None else entry_count,
    )
    described = b"".join(
        string(tensor.name)
        + struct.pack(f"<I{len(tensor.dimensions)}Q", len(tensor.dimensions), *tensor.dimensions)
        + struct.pack("<IQ", tensor.type, tensor.offset)
        for tensor in tensors
    )
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(metadata) + described


def padded(content: bytes, alignment: int = 32) -> bytes:
    """`content` and zeros up to a multiple of the alignment."""
    return content + bytes(-len(content) % alignment)
