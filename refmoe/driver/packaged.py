"""PTX of the production kernels, and of a benchmark's floors, as files of the package, for a machine without nvcc.

`make wheel` compiles every source for every architecture and puts the texts into the wheel; a checkout has none. Each
text is kept with the hash of the source, the headers and the flags that it was made of. It is never used for a source
with another hash.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refmoe.chips import KERNEL_ARCHS
from refmoe.cuda.toolchain import CSRC, Target, Toolchain, ToolchainError, build, find_toolchain, source_sha256

#: Where the wheel has them.
FOLDER = Path(__file__).parent / "ptx"
MANIFEST = "manifest.json"
#: What `refmoe bench gpu` holds the kernels against.
FLOORS = Path(__file__).parent.parent / "bench" / "floors.cu"

_VERSION = 1
#: A path in a `.file` line: of whom it names, only what is below the sources or the toolkit's headers stays.
_FILE = re.compile(r'^(\s*\.file\s+\d+\s+)"([^"]*)"', re.MULTILINE)
#: The first line of an entry.
_ENTRY = re.compile(r"\.visible \.entry (\w+)\(")
#: The longest text that is unpacked; the largest of today has 4 MB.
_MOST_BYTES = 1 << 26

_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PackagedPtxError(ToolchainError):
    """The package has no PTX for a kernel, or has one that must not be used; the message says what helps."""


class _Text(BaseModel):
    """One compiled source.

    Attributes:
        source_sha256: of the source, its headers and the flags.
        sha256: of the text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source_sha256: _Sha256
    sha256: _Sha256


class _Manifest(BaseModel):
    """What the folder holds.

    Attributes:
        version: of this form.
        compiler: the last line of what nvcc says of itself.
        texts: by the name of the file without its suffix, "quantize.sm_120a".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int
    compiler: Annotated[str, Field(pattern=r"\S")]
    texts: dict[Annotated[str, Field(pattern=r"^\w+\.sm_\d+a?$")], _Text]


@dataclass(frozen=True)
class PackedPtx:
    """What `pack` wrote: how many texts, their bytes, and the bytes of the files."""

    texts: int
    text_bytes: int
    file_bytes: int


def packed_sources() -> list[Path]:
    """The sources whose PTX a wheel has."""
    return [*sorted(CSRC.glob("*.cu")), FLOORS]


def pack(folder: Path, toolchain: Toolchain | None = None, sources: Sequence[Path] | None = None) -> PackedPtx:
    """Compile sources for every architecture, and write the texts with their manifest to a folder.

    Args:
        folder: where to; it is made.
        toolchain: the compiler; None for the one that is found.
        sources: that are compiled; None for all of `packed_sources`.

    Raises:
        ToolchainError: no compiler, or a source that does not compile.
        OSError: the folder cannot be written.
    """
    compiler = toolchain or find_toolchain()
    chosen = packed_sources() if sources is None else sources
    targets = [Target(source, arch, "ptx") for source in chosen for arch in KERNEL_ARCHS]
    folder.mkdir(parents=True, exist_ok=True)
    texts: dict[str, _Text] = {}
    text_bytes = file_bytes = 0
    for target, path in build(targets, compiler).items():
        name = f"{target.source.stem}.{target.arch}"
        text = without_places(path.read_text(encoding="utf-8")).encode()
        packed = lzma.compress(text, preset=9)
        (folder / f"{name}.ptx.xz").write_bytes(packed)
        texts[name] = _Text(source_sha256=source_sha256(target.source), sha256=hashlib.sha256(text).hexdigest())
        text_bytes, file_bytes = text_bytes + len(text), file_bytes + len(packed)
    manifest = _Manifest(version=_VERSION, compiler=compiler.build_id.splitlines()[-1], texts=texts)
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return PackedPtx(len(texts), text_bytes, file_bytes)


def without_places(text: str) -> str:
    """PTX whose line information names files without the folders of the machine that compiled it."""
    return _FILE.sub(lambda match: f'{match[1]}"{os.path.basename(match[2])}"', text)


def packaged_ptx(source: Path, arch: str, folder: Path | None = None) -> str:
    """The PTX of the package for a source.

    Args:
        source: a CUDA file; in another folder than the package's it has to be the same, headers included.
        arch: "sm_90a".
        folder: in which the texts are; None for the package's.

    Raises:
        PackagedPtxError: there is none, it is of another source, or it is damaged.
    """
    place = folder or FOLDER
    name = f"{source.stem}.{arch}"
    known = _manifest(place).texts.get(name)
    if known is None:
        raise PackagedPtxError(f"this package has no PTX of {source.name} for {arch}. {_REMEDY}")
    if known.source_sha256 != source_sha256(source):
        raise PackagedPtxError(
            f"the PTX of {source.name} in this package was made of another source, other headers or other flags than "
            f"{source}. {_REMEDY}"
        )
    text = _unpacked(place / f"{name}.ptx.xz")
    if text is None or hashlib.sha256(text).hexdigest() != known.sha256:
        raise PackagedPtxError(f"{place / name}.ptx.xz is damaged. Install refmoe again, or install nvcc")
    return text.decode()


def entries_in(text: str) -> list[str]:
    """The names of the entries of PTX that nvcc wrote, in their order."""
    return [begins[1] for line in text.splitlines() if (begins := _ENTRY.match(line))]


def with_one_entry(text: str, entry: str) -> str:
    """PTX without its other entries: a driver takes half a minute for all of them, and a run launches few.

    Raises:
        PackagedPtxError: there is no such entry, or the text is not of the form that nvcc writes.
    """
    kept: list[str] = []
    # Of the entry that a line is in: whether it is the wanted one, and how many of its braces are open.
    wanted, depth, found = True, 0, 0
    inside = False
    for line in text.splitlines(keepends=True):
        if begins := _ENTRY.match(line):
            if inside:
                raise PackagedPtxError(f"an entry within an entry: {line.strip()}")
            inside, wanted = True, begins[1] == entry
            found += wanted
        if not inside or wanted:
            kept.append(line)
        if inside:
            code = line.partition("//")[0]
            depth += code.count("{") - code.count("}")
            inside = depth > 0 or "}" not in code
    if inside or found != 1:
        raise PackagedPtxError(f"{found} entries {entry} in the PTX; needed one that can be taken out of it")
    return "".join(kept)


def compiler_line() -> str | None:
    """What the compiler of the package's PTX said of itself; None where there is no PTX to use."""
    try:
        return _manifest(FOLDER).compiler
    except PackagedPtxError:
        return None


def compiler_in_use() -> str:
    """The last line of what the compiler says of itself whose code runs: nvcc of this machine, or that of the package.

    Raises:
        ToolchainError: there is neither.
    """
    try:
        return find_toolchain().build_id.splitlines()[-1]
    except ToolchainError:
        if (line := compiler_line()) is not None:
            return line
        raise


_REMEDY = "Install a wheel that `make wheel` built, or install nvcc"


def _manifest(folder: Path) -> _Manifest:
    """What a folder says that it holds.

    Raises:
        PackagedPtxError: it says nothing, or nothing that can be read.
    """
    path = folder / MANIFEST
    try:
        state = path.stat()
        return _read(path, (state.st_mtime_ns, state.st_size))
    except FileNotFoundError:
        raise PackagedPtxError(f"this package has no PTX: it was not built by `make wheel`. {_REMEDY}") from None
    except (OSError, ValueError) as error:
        raise PackagedPtxError(f"{path} is damaged ({error}). Install refmoe again, or install nvcc") from error


@lru_cache(maxsize=4)
def _read(path: Path, state: tuple[int, int]) -> _Manifest:
    """A manifest; `state` is that of the file, so that a changed one is read again."""
    document: Mapping[str, object] = json.loads(path.read_text(encoding="utf-8"))
    try:
        manifest = _Manifest.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{error.error_count()} of its values are not what they should be") from error
    if manifest.version != _VERSION:
        raise ValueError(f"version {manifest.version}; needed {_VERSION}")
    return manifest


def _unpacked(path: Path) -> bytes | None:
    """The text of a file; None if it cannot be unpacked."""
    try:
        unpacker = lzma.LZMADecompressor()
        text = unpacker.decompress(path.read_bytes(), max_length=_MOST_BYTES)
    except (OSError, EOFError, lzma.LZMAError):
        return None
    return text if unpacker.eof and not unpacker.unused_data else None
