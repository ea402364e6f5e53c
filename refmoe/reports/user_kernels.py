"""Kernels of a user's in reports: how they are named, and whether their source is still what ran."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refmoe.reports.parity import CaseRecord

__all__ = ["file_of", "file_sha256", "stale_user_kernels"]

#: A kernel that a package has is named by its module; there is no file to hash that would stay the same elsewhere.
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def file_of(kernel: str) -> Path | None:
    """The file in a kernel's name FILE::NAME, relative as it is there; None for MODULE::NAME."""
    place, _, _ = kernel.partition("::")
    return Path(place) if place.endswith(".py") or _MODULE.fullmatch(place) is None else None


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes.

    Raises:
        OSError: it cannot be read.
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()


def stale_user_kernels(path: Path, cases: Sequence[CaseRecord]) -> list[str]:
    """A sentence for each user's kernel in the report at `path` whose file is gone or another now.

    Files are looked for from the current folder, as pytest named them from the project's root.
    """
    refusals = []
    for kernel in sorted({case.kernel for case in cases if case.kernel is not None}):
        source = file_of(kernel)
        if source is None:
            continue
        ran = [case for case in cases if case.kernel == kernel and case.verdict.ran]
        try:
            present = file_sha256(source)
        except OSError as error:
            refusals.append(f"{path}: the source of {kernel} cannot be read from here: {error.strerror}")
            continue
        stale = [case for case in ran if case.source_sha256 != present]
        if stale:
            refusals.append(
                f"{path}: {source} changed since {len(stale)} cases of {kernel} ran, so they say nothing about it: "
                "run them again"
            )
    return refusals
