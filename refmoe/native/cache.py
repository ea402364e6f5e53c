"""Machine code on disk, by content.

A file holds a SHA-256 of its content and then the content; one that is damaged is removed and made anew. Files are
written beside their place and renamed, so that two processes that write one file both leave a whole one.

All files together are kept below `limit()` bytes: what nobody has used for the longest time goes first. How much was
stored since somebody last counted is the size of a ledger beside the folder, to which every process appends.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from refmoe.errors import ArgumentError
from refmoe.version import __version__

# Modules that write code, or say what it computes.
_WRITERS = ("native/**/*.py", "ptx/**/*.py", "reference/mma/**/*.py", "formats.py")
_DIGEST = hashlib.sha256().digest_size
_LIMIT = "REFMOE_NATIVE_CACHE_MIB"
_DEFAULT_LIMIT = 2048
# The ledger grows by a byte for so many bytes that are stored, begun ones included.
_LEDGER_UNIT = 16 << 10
# Use is noted by the time of a file, not more often than this, in seconds.
_USE_NOTED = 3600.0


def folder() -> Path:
    """Where code is kept: `native` in REFMOE_CACHE_DIR, else in `refmoe` below XDG_CACHE_HOME or ~/.cache."""
    if explicit := os.environ.get("REFMOE_CACHE_DIR"):
        return Path(explicit) / "native"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refmoe" / "native"


def limit() -> int:
    """Most bytes of all files: REFMOE_NATIVE_CACHE_MIB, else 2048 MiB.

    Raises:
        ArgumentError: the setting is no number of MiB from 1 on.
    """
    given = os.environ.get(_LIMIT) or str(_DEFAULT_LIMIT)
    if not given.isdecimal() or int(given) < 1:
        raise ArgumentError(_LIMIT, repr(given), "a whole number of MiB, at least 1")
    return int(given) << 20


def key_of(*parts: str) -> str:
    """A name for what `parts` and the sources that make machine code of them give."""
    digest = hashlib.sha256()
    for part in (__version__, _sources(), *parts):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part.encode())
    return digest.hexdigest()


@cache
def _sources() -> str:
    """A digest of the modules that write code: a changed one must not find what another one wrote."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(each for part in _WRITERS for each in root.glob(part)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def load(key: str) -> bytes | None:
    """What was stored under `key`, or None where nothing whole was."""
    path = folder() / key
    try:
        held = path.read_bytes()
    except OSError:
        return None
    with suppress(OSError):
        # In a folder that can only be read the use is not noted.
        if time.time() - path.stat().st_mtime > _USE_NOTED:
            os.utime(path)
    digest, code = held[:_DIGEST], held[_DIGEST:]
    if hashlib.sha256(code).digest() != digest:
        path.unlink(missing_ok=True)
        return None
    return code


def store(key: str, code: bytes) -> None:
    """Keep `code`; a folder that cannot be written, or a full disk, is no error: the next process compiles again.

    Raises:
        ArgumentError: see `limit`.
    """
    most = limit()
    try:
        folder().mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder())
        try:
            # What a crash leaves half-written is found by its digest: there is nothing to wait for.
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(temporary, folder() / key)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        # A quarter below the limit there is room for what is stored until somebody counts again.
        if _stored(_DIGEST + len(code)) > most // 8:
            _sweep(most - most // 4)
    except OSError:
        return


def _ledger() -> Path:
    return folder().with_name("native.ledger")


def _stored(size: int) -> int:
    """Enter that a file was stored: bytes since the last count, at least; without a ledger nobody has counted yet."""
    if not _ledger().exists():
        return sys.maxsize
    with open(_ledger(), "ab") as ledger:
        # The system appends the bytes of two processes one after another.
        ledger.write(bytes(-(-size // _LEDGER_UNIT)))
        return ledger.tell() * _LEDGER_UNIT


def _sweep(most: int) -> None:
    """Remove files, those first that nobody has used for the longest time, until at most so many bytes are left.

    Another process may be doing the same, or read a file that goes: it has it already, or makes it again.
    """
    _ledger().write_bytes(b"")
    found = []
    with os.scandir(folder()) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                held = entry.stat()
                found.append((held.st_mtime, held.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most:
            break
        with suppress(FileNotFoundError):
            os.unlink(path)
        total -= size
