"""The documents that a page can show, read and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refmoe.reports.parity import Report, ReportError, check_report, is_intact, read_document

__all__ = ["KINDS", "Source", "parity_reports", "read_source"]

#: Documents that a page knows how to show, by their key `kind`.
KINDS = ("parity", "stress", "conformance", "bench", "drift")


@dataclass(frozen=True)
class Source:
    """A document.

    Attributes:
        path: where it came from.
        kind: one of KINDS.
        document: its JSON.
        report: the report that a parity document is, else None.
    """

    path: Path
    kind: str
    document: Mapping[str, Any]
    report: Report | None = None


def read_source(path: Path) -> Source:
    """A document from a file.

    Raises:
        ReportError: it cannot be read, is of no kind that a page can show, of another schema version, or was edited.
    """
    document = read_document(path)
    kind = document.get("kind", "parity")
    if kind not in KINDS:
        raise ReportError(f"{path}: of kind {kind!r}; a page shows " + ", ".join(KINDS))
    if kind == "parity":
        return Source(path, kind, document, check_report(path, document))
    if "digest" in document and not is_intact(document):
        raise ReportError(f"{path}: edited after it was made: its content does not have the digest that it states")
    return Source(path, kind, document)


def parity_reports(sources: Sequence[Source]) -> list[Report]:
    """The parity reports among the documents."""
    return [source.report for source in sources if source.report is not None]
