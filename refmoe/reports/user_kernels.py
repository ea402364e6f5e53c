"""Kernels of a user's in reports: whether their sources are still what ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from refmoe.errors import ArgumentError
from refmoe.verify.source import sha256_of, source_files

if TYPE_CHECKING:
    from refmoe.reports.parity import CaseRecord

__all__ = ["stale_user_kernels"]


def stale_user_kernels(path: Path, cases: Sequence[CaseRecord]) -> list[str]:
    """A sentence for each user's kernel in the report at `path` whose sources are gone or others now.

    Files are looked for from the current folder, as pytest named them from the project's root. A kernel of a package
    names no sources: no file of it would stay the same elsewhere.
    """
    refusals = []
    ran: dict[tuple[str, tuple[str, ...]], list[CaseRecord]] = {}
    for case in cases:
        if case.kernel is not None and case.sources and case.verdict.ran:
            ran.setdefault((case.kernel, tuple(case.sources)), []).append(case)
    for (kernel, sources), mine in sorted(ran.items(), key=lambda item: item[0]):
        try:
            present = sha256_of(source_files(sources, Path()))
        except OSError as error:
            refusals.append(f"{path}: the source of {kernel} cannot be read from here: {error.strerror}")
            continue
        except (ArgumentError, SyntaxError) as error:
            refusals.append(f"{path}: the source of {kernel} is no longer what ran: {error}")
            continue
        stale = [case for case in mine if case.source_sha256 != present]
        if stale:
            refusals.append(
                f"{path}: {' or '.join(sources)} changed since {len(stale)} cases of {kernel} ran, so they say nothing "
                "about it: run them again"
            )
    return refusals
