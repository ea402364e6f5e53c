"""Machine code on disk, by content.

A file holds a SHA-256 of its content and then the content; one that is damaged is removed and made anew. Files are
written beside their place and renamed, so that two processes that write one file both leave a whole one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

from refmoe.version import __version__

# Modules that write code, or say what it computes.
_WRITERS = ("native/**/*.py", "ptx/**/*.py", "reference/mma/**/*.py", "formats.py")
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Where code is kept: `native` in REFMOE_CACHE_DIR, else in `refmoe` below XDG_CACHE_HOME or ~/.cache."""
    if explicit := os.environ.get("REFMOE_CACHE_DIR"):
        return Path(explicit) / "native"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refmoe" / "native"


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
    digest, code = held[:_DIGEST], held[_DIGEST:]
    if hashlib.sha256(code).digest() != digest:
        path.unlink(missing_ok=True)
        return None
    return code


def store(key: str, code: bytes) -> None:
    """Keep `code`; a folder that cannot be written, or a full disk, is no error: the next process compiles again."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder())
        try:
            # What a crash leaves half-written is found by its digest: there is nothing to wait for.
            with os.fdopen(descriptor, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(temporary, folder() / key)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError:
        return
