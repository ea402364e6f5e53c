"""Files of documents: which there are below a folder, and their JSON. Nothing here blocks, and nothing reads for long.

Whoever hands a folder to the gate may have put anything there: pipes that nobody writes to, links in a circle, devices
that never end, ten gigabytes of zeros, JSON that says a key twice.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.files import PARTIAL
from refmoe.reports.checks import GateRefusal, ReportError, one_line

#: Larger files are refused unread; the largest report of this repository has a fifth of it.
MAX_BYTES = 1 << 27
#: Bytes of a file with another suffix that tell whether it looks like a report.
_HEAD = 4096

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"PK\x03\x04": "zip",
    b"\x04\x22\x4d\x18": "lz4",
}
_MARKS = {
    b"\xef\xbb\xbf": "UTF-8",
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_SPECIAL = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class Found:
    """What lies below some paths.

    Attributes:
        files: to be read, in order; files that were named, and of folders those whose name ends in .json.
        unread: other files in the folders, which look like no report.
        refusals: what cannot be read or gone into, and what looks like a report under another name.
    """

    files: tuple[Path, ...]
    unread: tuple[Path, ...]
    refusals: tuple[GateRefusal, ...]


def shown(path: Path) -> str:
    """A path as a sentence can hold it: names of files are bytes, and may hold anything."""
    return one_line(os.fsencode(path).decode("utf-8", "backslashreplace"))


def find_documents(paths: Sequence[Path]) -> Found:
    """The files that are named, and all below the folders that are named: hidden ones and deeper folders too."""
    files: dict[str, Path] = {}
    unread: list[Path] = []
    refusals: list[GateRefusal] = []
    pending = [(path, True) for path in reversed(paths)]
    while pending:
        path, named = pending.pop()
        if not (path.is_dir() if named else _is_folder(path)):
            if not named and not path.name.lower().endswith(".json"):
                looks = _looks_like_a_report(path)
                refusals += [GateRefusal("file.unread", f"{shown(path)}: {looks}")] if looks else []
                unread += [] if looks else [path]
            else:
                files.setdefault(os.path.abspath(path), path)
            continue
        if not named and path.is_symlink():
            text = "a link to a folder, which is not followed; name the folder itself, or take the link away"
            refusals.append(GateRefusal("file.linked-folder", f"{shown(path)}: {text}"))
            continue
        if path.name.lower().endswith(".json"):
            text = "cannot be read: a folder with the name of a report; give it another name"
            refusals.append(GateRefusal("file.folder", f"{shown(path)}: {text}"))
        try:
            inside = sorted(os.listdir(path))
        except OSError as error:
            refusals.append(_unreadable(path, error).refusal)
            continue
        pending += [(path / name, False) for name in reversed(inside)]
    return Found(tuple(files.values()), tuple(unread), tuple(refusals))


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False  # a link to nothing, or in a circle: named when it is read


def _looks_like_a_report(path: Path) -> str | None:
    """Why a file whose name does not end in .json looks like a report, or None."""
    rename = "and is not read, since its name does not end in .json: rename it, or take it away"
    if path.name.endswith(PARTIAL) and ".json" in path.name:
        return "what a run found that has not ended: run its command again, which goes on from there, or take it away"
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return f"may be a report {rename}" if ".json" in path.name.lower() else None
    for mark in _MARKS:
        head = head.removeprefix(mark)
    packed = any(head.startswith(magic) for magic in _COMPRESSED)
    text = head.replace(b"\0", b"").lstrip()
    if packed:
        return f"is compressed {rename}" if ".json" in path.name.lower() else None
    keys = (b'"kind"', b'"schema_version"', b'"digest"', b'"command"', b'"cases"')
    return f"looks like a report {rename}" if text.startswith(b"{") and any(key in text for key in keys) else None


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file, at most `most`.

    Raises:
        ReportError: there is none, it is no regular file, larger, may not be read, or changed meanwhile.
    """
    try:
        before = os.stat(path)
        _check_kind(path, before)
        # Without O_NONBLOCK, opening a pipe that took the file's place since would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        before = os.fstat(descriptor)
        _check_kind(path, before)
        if before.st_size > most:
            raise _too_large(path, f"{before.st_size:,}", most)
        pieces, size = [], 0
        # A file may grow while it is read, and some of /proc state no size and never end.
        while piece := os.read(descriptor, 1 << 20):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise _too_large(path, f"more than {most:,}", most)
        after = os.fstat(descriptor)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)
    unlike = [(each.st_size, each.st_mtime_ns) for each in (before, after)]
    if unlike[0] != unlike[1] or (before.st_size and size != before.st_size):
        raise ReportError(f"{shown(path)}: changed while it was read; write reports in one step", "file.changed")
    return b"".join(pieces)


def _check_kind(path: Path, status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        text = "cannot be read: a folder with the name of a report; give it another name"
        raise ReportError(f"{shown(path)}: {text}", "file.folder")
    if kind != stat.S_IFREG:
        text = f"cannot be read: {_SPECIAL.get(kind, 'something else')}, and no file; a report is a regular file"
        raise ReportError(f"{shown(path)}: {text}", "file.special")


def _too_large(path: Path, found: str, most: int) -> ReportError:
    text = f"{found} bytes, and no report is larger than {most:,}: it was not read"
    return ReportError(f"{shown(path)}: {text}", "file.large")


def _unreadable(path: Path, error: OSError) -> ReportError:
    said = f"{shown(path)}: cannot be read: {error.strerror}"
    if error.errno == errno.ELOOP:
        return ReportError(f"{shown(path)}: cannot be read: links that lead in a circle", "file.link")
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and path.is_symlink():
        goal = shown(Path(os.readlink(path)))
        return ReportError(f"{shown(path)}: cannot be read: a link to {goal}, which is not there", "file.link")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ReportError(said, "file.absent")
    return ReportError(said, "file.permission")


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ReportError: the file cannot be read, is empty, compressed or damaged, or holds no JSON object.
    """
    data = read_bytes(path)
    name = shown(path)
    for magic, packer in _COMPRESSED.items():
        if data.startswith(magic):
            raise ReportError(f"{name}: cannot be read: it is compressed by {packer}; unpack it", "file.compressed")
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            text = f"cannot be read: it begins with the byte order mark of {encoding}; write UTF-8 without one"
            raise ReportError(f"{name}: {text}", "file.encoding")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ReportError(f"{name}: cannot be read: {error}", "file.encoding") from error
    if not text.strip():
        raise ReportError(f"{name}: the file is empty; a report is one JSON object", "file.empty")
    document = _parsed(name, text)
    if not isinstance(document, dict):
        text = f"{name}: holds {json_word(document)} and no more; a report is one JSON object"
        raise ReportError(text, "file.json")
    return document


def _parsed(name: str, text: str) -> Any:
    def no_number(found: str) -> Any:
        text = f"{name}: no JSON, so no report: it holds {found}, for which JSON has no word"
        raise ReportError(text, "file.number")

    def finite(found: str) -> float:
        value = float(found)
        return value if math.isfinite(value) else no_number(found)

    def whole(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in made if keys.count(key) > 1)
            text = f"an object has the key {twice!r} twice, and readers differ in which counts"
            raise ReportError(f"{name}: no JSON, so no report: {text}", "file.repeated-key")
        return made

    try:
        return json.loads(text, parse_constant=no_number, parse_float=finite, object_pairs_hook=whole)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            text = f"{name}: no JSON, so no report: it ends in the middle: {error}"
            raise ReportError(text, "file.truncated") from error
        raise ReportError(f"{name}: no JSON, so no report: {error}", "file.json") from error
    except RecursionError as error:
        raise ReportError(f"{name}: no JSON, so no report: it is nested too deeply", "file.json") from error
    except ValueError as error:
        raise ReportError(f"{name}: no JSON, so no report: {error}", "file.number") from error


def json_word(value: object) -> str:
    """What JSON calls a value that is no object."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return "a string"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list) else "a number"


def each_text(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from each_text(item)
    elif isinstance(value, list):
        for item in value:
            yield from each_text(item)
