"""The container GGUF: what gguf's own writer and reader say, and the sentence for each way in which a file can lie."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refmoe.models import CheckpointError
from refmoe.models.gguf.file import GgufFile, GgufSet
from refmoe.models.gguf.header import GgufArray, ggml_types, read_header

gguf = pytest.importorskip("gguf", reason="gguf is not installed")

WORD = struct.pack("<I", 32)

# Files written byte by byte, right or wrong, with nothing of refmoe or of the package gguf.
U32, I32, F32, STRING, ARRAY, U64 = 4, 5, 6, 8, 9, 10
TYPE_F32, TYPE_BF16, TYPE_MXFP4 = 0, 30, 39


@dataclass(frozen=True)
class Entry:
    """One tensor of the header: its dimensions innermost first, its type, its offset from the start of the data."""

    name: str | bytes
    dimensions: Sequence[int]
    type: int = TYPE_F32
    offset: int = 0


def gguf_string(text: str | bytes) -> bytes:
    """A string: its length, its bytes."""
    content = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(content)) + content


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    """One entry of the metadata."""
    return gguf_string(key) + struct.pack("<I", kind) + value


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
        gguf_string(tensor.name)
        + struct.pack(f"<I{len(tensor.dimensions)}Q", len(tensor.dimensions), *tensor.dimensions)
        + struct.pack("<IQ", tensor.type, tensor.offset)
        for tensor in tensors
    )
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(metadata) + described


def padded(content: bytes, alignment: int = 32) -> bytes:
    """`content` and zeros up to a multiple of the alignment."""
    return content + bytes(-len(content) % alignment)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refusal(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        GgufFile(path)
    assert caught.value.file == path
    return caught.value


def test_a_file_of_gguf_s_own_writer_is_read_bit_for_bit(tmp_path: Path) -> None:
    """Every scalar type, strings, arrays, tensors of every plain type and three of blocks, another alignment."""
    random, path = np.random.default_rng(5), tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "anything")
    writer.add_custom_alignment(128)
    scalars = {"u8": 200, "i8": -3, "u16": 60000, "i16": -30000, "u32": 1 << 31, "i32": -(1 << 31), "u64": 1 << 63}
    for kind, value in scalars.items():
        getattr(writer, f"add_{'uint' if kind[0] == 'u' else 'int'}{kind[1:]}")(kind, value)
    writer.add_int64("i64", -(1 << 63))
    writer.add_float32("f32", 1e-5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve ✓")
    writer.add_array("strings", ["", "a", "ünï"])
    writer.add_array("numbers", [1, 2, 3, 4])
    shapes = {np.float32: (3, 5, 7), np.float16: (2, 33), np.float64: (1,), np.int8: (9,), np.int32: (4, 1, 2, 3)}
    for dtype, shape in shapes.items():
        writer.add_tensor(np.dtype(dtype).name, random.standard_normal(shape).astype(dtype))
    blocks = {"BF16": (3, 10), "MXFP4": (2, 3, 34), "Q8_0": (5, 68), "Q4_K": (2, 144)}
    for name, bytes_ in blocks.items():
        content = random.integers(0, 256, bytes_).astype(np.uint8)
        writer.add_tensor(name, content, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    ours, theirs = GgufFile(path), gguf.GGUFReader(path)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.type == tensor.tensor_type.name
        assert info.shape == tuple(tensor.shape.tolist())[::-1]
        assert (info.start, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
        assert ours.view(tensor.name).tobytes() == np.ascontiguousarray(tensor.data).tobytes()
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for key, field in fields.items():
        value = ours.metadata[key]
        if isinstance(value, GgufArray):
            assert value.length == len(field.contents())
        else:
            assert (type(value), value) == (type(field.contents()), field.contents())
    for name, shape in (("MXFP4", (2, 3, 2, 17)), ("Q8_0", (5, 2, 34)), ("BF16", (3, 5)), ("float16", (2, 33))):
        view = ours.view(name)
        assert view.shape == shape
        assert not view.flags.writeable
        assert not view.flags.owndata


def test_a_file_written_by_hand_is_what_both_readers_say(tmp_path: Path) -> None:
    values = np.arange(12, dtype="<f4")
    head = header(
        [Entry("a", [4, 3]), Entry("b", [32, 1], TYPE_MXFP4, 64)],
        [entry("k", STRING, gguf_string("v")), entry("n", ARRAY, struct.pack("<IQ3i", I32, 3, -1, 0, 1))],
    )
    for end in (padded(bytes(range(17))), bytes(range(17))):  # the padding of the last tensor may be missing
        path = written(tmp_path / "x.gguf", padded(head) + padded(values.tobytes()) + end)
        ours, theirs = GgufFile(path), gguf.GGUFReader(path)
        assert ours.view("a").tobytes() == theirs.tensors[0].data.tobytes() == values.tobytes()
        assert ours.view("a").shape == (3, 4)
        assert ours.view("b").tobytes() == theirs.tensors[1].data.tobytes() == bytes(range(17))
        assert ours.metadata == {"k": "v", "n": GgufArray(3)}


def test_a_file_may_be_of_version_2_and_hold_nothing(tmp_path: Path) -> None:
    assert GgufFile(written(tmp_path / "x.gguf", padded(header(version=2)))).tensors == {}


def test_a_big_endian_file_of_gguf_s_own_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "gpt-oss", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("a", np.arange(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert refusal(path).found == "a big-endian file"


ONE = [Entry("a", [8])]
DATA = bytes(32)
LYING: dict[str, tuple[bytes, str | None, str, str]] = {
    "empty": (b"", None, "a file of 0 bytes that starts with b''", "a GGUF file"),
    "something else": (b"PK\3\4" + bytes(99), None, "starts with b'PK", "the letters GGUF"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), None, "a big-endian file", "gguf_convert_endian.py"),
    "version 1": (header(version=1), None, "version 1", "version 2 or 3"),
    "version 4": (header(version=4), None, "version 4", "version 2 or 3"),
    "more tensors than bytes": (padded(header(tensor_count=1 << 62)), None, f"{1 << 62} tensors in", "fit into it"),
    "more entries than bytes": (padded(header(entry_count=1 << 62)), None, f"{1 << 62} metadata entries", "fit"),
    "a key of 2^63 bytes": (
        header(metadata=[struct.pack("<Q", 1 << 63) + bytes(8)]),
        None,
        f"a key of {1 << 63} bytes",
        "at most 65535",
    ),
    "a key that is no UTF-8": (header(metadata=[entry(b"\xff\xfe", U32, WORD)]), None, "no UTF-8", "UTF-8"),
    "a key that steers a terminal": (
        header(metadata=[entry("\x1b[2J", U32, WORD)]),
        None,
        "a key '\\x1b[2J'",
        "printable",
    ),
    "an empty key": (header(metadata=[entry("", U32, WORD)]), None, "a key ''", "printable"),
    "a key twice": (header(metadata=[entry("k", U32, WORD)] * 2), None, "the key k twice", "each key once"),
    "an unknown type of value": (header(metadata=[entry("k", 13, WORD)]), None, "the type 13 of k", "0 to 12"),
    "a value of 2^63 bytes": (
        header(metadata=[entry("k", STRING, struct.pack("<Q", 1 << 63))]),
        None,
        f"the value of k of {1 << 63} bytes",
        "at most",
    ),
    "an array of 2^62 numbers": (
        header(metadata=[entry("k", ARRAY, struct.pack("<IQ", U64, 1 << 62))]),
        None,
        "a file of",
        "for the array k: the file is damaged or truncated",
    ),
    "an array of 2^62 strings": (
        header(metadata=[entry("k", ARRAY, struct.pack("<IQ", STRING, 1 << 62))]),
        None,
        f"{1 << 62} strings in k",
        "fit into it",
    ),
    "an array of arrays": (
        header(metadata=[entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(64))]),
        None,
        "an array k of type 9",
        "numbers, truth values or strings",
    ),
    "alignment 0": (header(metadata=[entry("general.alignment", U32, bytes(4))]), None, "alignment 0", "power of two"),
    "alignment 24": (
        header(metadata=[entry("general.alignment", U32, struct.pack("<I", 24))]),
        None,
        "alignment 24",
        "power of two from 8",
    ),
    "alignment 2^31": (
        header(metadata=[entry("general.alignment", U32, struct.pack("<I", 1 << 31))]),
        None,
        f"alignment {1 << 31}",
        "power of two",
    ),
    "alignment in words": (
        header(metadata=[entry("general.alignment", STRING, gguf_string("32"))]),
        None,
        "alignment '32'",
        "power of two",
    ),
    "a name of 65 bytes": (header([Entry("a" * 65, [8])]), None, "the name of a tensor of 65 bytes", "at most 64"),
    "a name twice": (
        padded(header([*ONE, Entry("a", [8], offset=32)])) + DATA * 2,
        "a",
        "the name twice in the header",
        "each tensor once",
    ),
    "no dimensions": (padded(header([Entry("a", [])])) + DATA, "a", "0 dimensions", "1 to 4"),
    "five dimensions": (padded(header([Entry("a", [8, 1, 1, 1, 1])])) + DATA, "a", "5 dimensions", "1 to 4"),
    "2^32 - 1 dimensions": (
        padded(header()[:8] + struct.pack("<QQ", 1, 0) + gguf_string("a") + struct.pack("<I", 0xFFFFFFFF) + DATA),
        "a",
        "4294967295 dimensions",
        "1 to 4",
    ),
    "a dimension of 0": (padded(header([Entry("a", [8, 0])])) + DATA, "a", "F32 [0, 8]", "at least 1"),
    "a product that overflows": (
        padded(header([Entry("a", [1 << 33, 1 << 33])])) + DATA,
        "a",
        f"{1 << 68} bytes, in a file of",
        "fits into the file",
    ),
    "a product that overflows to the right size": (
        padded(header([Entry("a", [8, (1 << 61) + 1, 1])])) + DATA,
        "a",
        "bytes, in a file of",
        "fits into the file",
    ),
    "an unknown type": (padded(header([Entry("a", [8], 4000)])) + DATA, "a", "type 4000", "gguf 0.19.0 knows"),
    "a removed type": (padded(header([Entry("a", [8], 4)])) + DATA, "a", "type 4", "gguf 0.19.0 knows"),
    "part of a block": (
        padded(header([Entry("a", [33], TYPE_MXFP4)])) + DATA * 2,
        "a",
        "MXFP4 [33]",
        "the last a multiple of 32",
    ),
    "an offset outside": (
        padded(header([Entry("a", [8], offset=1 << 40)])) + DATA,
        "a",
        f"the offset {1 << 40}",
        "0, where the tensor before it ends",
    ),
    "an offset of 2^64 - 32": (
        padded(header([*ONE, Entry("b", [8], offset=(1 << 64) - 32)])) + DATA * 2,
        "b",
        f"the offset {(1 << 64) - 32}",
        "32, where the tensor before it ends",
    ),
    "two tensors in one place": (
        padded(header([*ONE, Entry("b", [8])])) + DATA,
        "b",
        "the offset 0",
        "32, where the tensor before it ends",
    ),
    "a gap": (padded(header([*ONE, Entry("b", [8], offset=64)])) + DATA * 3, "b", "the offset 64", "32, where"),
    "one byte too few": (padded(header(ONE)) + DATA[:-1], "a", "a file of", "the file is truncated"),
    "one byte too many": (padded(header(ONE)) + DATA + b"\0", None, "a file of", "where the last tensor ends"),
}


@pytest.mark.parametrize("name", LYING)
def test_a_file_that_lies(name: str, tmp_path: Path) -> None:
    content, tensor, found, needed = LYING[name]
    start = time.perf_counter()
    error = refusal(written(tmp_path / "x.gguf", content))
    assert time.perf_counter() - start < 5
    assert error.tensor == tensor
    assert found in error.found
    assert needed in error.needed


def whole() -> bytes:
    """A file with everything that a header can have."""
    metadata = [
        entry("general.alignment", U32, struct.pack("<I", 32)),
        entry("text", STRING, gguf_string("ü")),
        entry("f", F32, struct.pack("<f", 1.5)),
        entry("strings", ARRAY, struct.pack("<IQ", STRING, 2) + gguf_string("a") + gguf_string("")),
        entry("numbers", ARRAY, struct.pack("<IQ2Q", U64, 2, 3, 4)),
    ]
    tensors = [Entry("a", [8, 2]), Entry("b", [32], TYPE_MXFP4, 64), Entry("c", [16, 1, 1, 1], TYPE_BF16, 96)]
    return padded(header(tensors, metadata)) + bytes(96) + bytes(range(32))


def test_cut_anywhere(tmp_path: Path) -> None:
    """At every byte: no prefix of a file is a file."""
    content, path = whole(), tmp_path / "x.gguf"
    assert len(GgufFile(written(path, content)).tensors) == 3
    for size in range(len(content)):
        refusal(written(path, content[:size]))


def test_any_bit_of_the_header_may_flip(tmp_path: Path) -> None:
    """Each is refused by our own error, or read; what is read lies inside the file."""
    content, path = whole(), tmp_path / "x.gguf"
    outcomes = {"read": 0, "refused": 0}
    for bit in range(8 * (len(content) - 128)):
        broken = bytearray(content)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            found = read_header(path, bytes(broken))
        except CheckpointError:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        for info in found.tensors.values():
            assert info.start >= found.data
            assert info.start + info.nbytes <= len(content)
    assert outcomes["refused"] > outcomes["read"] > 0


def test_a_missing_package_ends_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "x.gguf", whole())
    for name in [name for name in sys.modules if name.split(".")[0] == "gguf"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gguf", None)
    ggml_types.cache_clear()
    assert str(refusal(path)).endswith(
        "found a GGUF file, and no package to read it with; needed the package gguf, which knows the types of GGUF "
        "files: pip install gguf==0.19.0"
    )


def part(number: int, count: int, tensors: Sequence[Entry], total: int = 2) -> bytes:
    values = {"split.no": number, "split.count": count, "split.tensors.count": total}
    metadata = [entry(key, U32, struct.pack("<I", value)) for key, value in values.items()]
    return padded(header(tensors, metadata)) + DATA * len(tensors)


def test_a_split_file_is_one(tmp_path: Path) -> None:
    first = written(tmp_path / "m-00001-of-00002.gguf", part(0, 2, ONE))
    second = written(tmp_path / "m-00002-of-00002.gguf", part(1, 2, [Entry("b", [4, 2])]))
    whole = GgufSet(first)
    assert (whole.names(), [file.path for file in whole.files]) == (["a", "b"], [first, second])
    assert (whole.tensor("a").shape, whole.tensor("b").shape) == ((8,), (2, 4))
    whole.release()

    def refused(path: Path, changes: dict[Path, bytes | None], *words: str) -> None:
        kept = {changed: changed.read_bytes() for changed in changes}
        for changed, content in changes.items():
            changed.unlink() if content is None else changed.write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            GgufSet(path)
        assert all(word in str(caught.value) for word in words), caught.value
        for changed, content in kept.items():
            changed.write_bytes(content)

    refused(second, {}, "part 1 of 2", "the first of them, NAME-00001-of-00002.gguf")
    refused(first, {second: None}, second.name, "No such file")
    refused(first, {second: part(0, 2, [Entry("b", [8])])}, second.name, "part 0 of 2", "needed part 1 of 2")
    refused(first, {second: part(1, 2, ONE)}, second.name, "tensor a", f"it in {first.name} too")
    refused(first, {first: part(0, 2, ONE, total=3)}, "2 tensors in 2 files", "needed 3, by split.tensors.count")
    refused(first, {first: part(0, 1 << 31, ONE)}, f"split.count {1 << 31}", "at most 4096")
    renamed: Any = written(tmp_path / "m.gguf", first.read_bytes())
    refused(renamed, {}, "part 0 of 2", "NAME-00001-of-00002.gguf")
