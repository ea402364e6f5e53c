"""What may be wrong with the files themselves, and the check of the gate that must refuse it."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.damages.sound import bench, gpu, parity, sealed
from support.verify import STALE

from refmoe.reports.baseline import write_baseline
from refmoe.reports.documents import digest_of
from refmoe.reports.parity import read_report


def written(content: bytes, name: str = "a.json") -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def good_bytes() -> bytes:
    document = parity()
    return json.dumps({**document, "digest": digest_of(document)}).encode()


def fifo(folder: Path) -> None:
    os.mkfifo(folder / "a.json")


def bound_socket(folder: Path) -> None:
    here = os.getcwd()
    os.chdir(folder)  # the name of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("a.json")
    finally:
        os.chdir(here)


def huge(folder: Path) -> None:
    with open(folder / "a.json", "wb") as file:
        file.truncate(10 << 30)  # ten gigabytes of nothing, which take no room


def loop(folder: Path) -> None:
    (folder / "a.json").symlink_to(folder / "b.json")
    (folder / "b.json").symlink_to(folder / "a.json")


def unread(name: str) -> Callable[[Path], None]:
    return written(good_bytes(), name)


FILES: list[tuple[str, str, Callable[[Path], Any]]] = [
    ("file.link", "a link to nothing", lambda folder: (folder / "a.json").symlink_to(folder / "nothing")),
    ("file.link", "links in a circle", loop),
    ("file.folder", "a folder", lambda folder: (folder / "a.json").mkdir()),
    ("file.linked-folder", "a linked folder", lambda folder: (folder / "more").symlink_to("/proc/self/fdinfo")),
    ("file.special", "a pipe", fifo),
    ("file.special", "a socket", bound_socket),
    ("file.special", "a device", lambda folder: (folder / "a.json").symlink_to("/dev/zero")),
    ("file.large", "ten gigabytes", huge),
    ("file.empty", "empty", written(b"")),
    ("file.empty", "blanks", written(b" \n\n")),
    ("file.compressed", "gzip", written(gzip.compress(b"{}"))),
    ("file.compressed", "xz", written(lzma.compress(b"{}"))),
    ("file.encoding", "latin-1", written(b'{"kind": "\xe9"}')),
    ("file.encoding", "UTF-8 with a mark", written(b"\xef\xbb\xbf{}")),
    ("file.encoding", "UTF-16", written('{"kind": "parity"}'.encode("utf-16"))),
    ("file.truncated", "half", lambda folder: (folder / "a.json").write_bytes(good_bytes()[:-40])),
    ("file.truncated", "half a word", written(b'{"kind": "par')),
    ("file.json", "words", written(b"PASS")),
    ("file.json", "a list", written(b"[]")),
    ("file.json", "two objects", written(b"{} {}")),
    ("file.json", "nested too deeply", written(b'{"a":' + b"[" * 200_000)),
    ("file.number", "NaN", written(b'{"seconds": NaN}')),
    ("file.number", "minus infinity", written(b'{"seconds": -Infinity}')),
    ("file.number", "beyond float64", written(b'{"seconds": 1e999}')),
    ("file.number", "9" * 8, written(b'{"seconds": ' + b"9" * 5000 + b"}")),
    ("file.repeated-key", "the first is read by others", written(b'{"kind": "parity", "kind": "bench"}')),
    ("file.repeated-key", "within", written(b'{"cases": [{"verdict": "MISMATCH", "verdict": "PASS"}]}')),
    ("file.unread", "another suffix", unread("a.txt")),
    ("file.unread", "a backup", unread("a.json~")),
    ("file.unread", "a hidden one", unread(".a")),
    ("file.unread", "a run that has not ended", written(b'{"kind": "sweep", "of": "cases"}\n', "a.json.partial")),
    ("file.unread", "compressed", written(gzip.compress(b"{}"), "a.json.gz")),
    ("document.digest", "edited", lambda f: (f / "a.json").write_bytes(good_bytes().replace(b"sm_120a", b"sm_121a"))),
    ("document.kind", "unknown", written(b'{"kind": "diary"}')),
    ("document.kind", "no word", written(b'{"kind": ["parity"]}')),
    ("document.kind", "nothing", written(b"{}")),
    ("document.twice", "a copy", lambda f: [(f / name).write_bytes(good_bytes()) for name in ("a.json", "b.json")]),
    ("document.twice", "a link to it", lambda f: (
        (f / "a.json").write_bytes(good_bytes()), (f / "b.json").symlink_to(f / "a.json")
    )),
    ("document.none", "nothing", lambda folder: None),
    ("document.none", "only figures", lambda folder: sealed(folder / "a.json", bench())),
    ("parity.facts", "other inputs", lambda folder: [
        sealed(folder / "a.json", parity()),
        sealed(folder / "b.json", {**gpu(), "cases": [
            {**case, "input_sha256": STALE} for case in gpu()["cases"]
        ]}),
    ]),
    ("baseline.elsewhere", "another", lambda f: (
        sealed(f / "a.json", parity()), write_baseline(f / "deep" / "baseline.json", [read_report(f / "a.json")])
    )),
]  # fmt: skip
