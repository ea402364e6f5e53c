"""The hash of the Python sources that decide the figures of a document."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from refmoe.errors import ArgumentError
from refmoe.verify.source import python_text, sha256_of


@cache
def python_sha256(patterns: tuple[str, ...]) -> str:
    """SHA-256 over the files of the package that patterns name, without comments, docstrings and blank lines.

    Args:
        patterns: such as "reference/*.py", from the package's folder.

    Raises:
        ArgumentError: a pattern that names no file: a file was renamed, and what it decides would go unseen.
    """
    root = Path(__file__).resolve().parent.parent
    files: set[Path] = set()
    for pattern in patterns:
        named = set(root.glob(pattern))
        if not named:
            raise ArgumentError("patterns", f"no file {pattern} in the package", "sources that are there")
        files |= named
    texts = {file.relative_to(root).as_posix(): python_text(file.read_text(encoding="utf-8")) for file in files}
    return sha256_of(texts)
