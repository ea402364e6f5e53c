"""Lines of Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

#: Columns of a line of a page, tables left out.
WIDTH = 120


def paragraph(text: str) -> Iterator[str]:
    """Lines of a paragraph."""
    yield from textwrap.wrap(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """Lines of a table."""
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
