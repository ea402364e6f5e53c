"""A site: one place in one file, and the text that a mutant has there."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Floor = Literal["cuda", "ptx", "host"]

FLOORS: tuple[Floor, ...] = ("cuda", "ptx", "host")


@dataclass(frozen=True)
class Edit:
    """A replacement of `text[start:end]` by `after`, and the name of the operator that makes it."""

    operator: str
    start: int
    end: int
    after: str


@dataclass(frozen=True)
class Site:
    """One mutant: an edit of one file.

    Attributes:
        floor: "cuda" for a source in refmoe/cuda/csrc, "ptx" for an entry that the compiler made of one, "host" for a
            module of refmoe/cuda.
        kernel: what a count by kernel files it under: the name of the source, header or module without its suffix.
        file: the file; of PTX the source, the arch and the entry.
        operator: the kind of change.
        line, column: of its first character, from 1 on.
        before, after: the text that it replaces, and what by.
        start: offset of its first character in the file's text.
    """

    floor: Floor
    kernel: str
    file: str
    operator: str
    line: int
    column: int
    before: str
    after: str
    start: int

    @cached_property
    def id(self) -> str:
        """The mutant's name, the same as long as its line is."""
        change = f"{_in_a_line(self.before)} -> {_in_a_line(self.after)}"
        return f"{self.floor}:{self.kernel}:{self.operator}:{self.file}:{self.line}:{self.column}:{change}"

    def applied(self, text: str) -> str:
        """The file's text with the change made.

        Raises:
            ValueError: the text is another one than the site was found in.
        """
        end = self.start + len(self.before)
        if text[self.start : end] != self.before:
            raise ValueError(f"{self.id}: {self.file} has {text[self.start : end]!r} there")
        return text[: self.start] + self.after + text[end:]


def sites_of(floor: Floor, kernel: str, file: str, text: str, edits: Iterable[Edit]) -> Iterator[Site]:
    """The sites of a file's edits, without those that change nothing, in the order of the file; each id once."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    seen: set[str] = set()
    for edit in sorted(edits, key=lambda each: (each.start, each.end, each.operator, each.after)):
        before = text[edit.start : edit.end]
        if before == edit.after:
            continue
        line = bisect.bisect_right(starts, edit.start)
        column = edit.start - starts[line - 1] + 1
        site = Site(floor, kernel, file, edit.operator, line, column, before, edit.after, edit.start)
        if site.id not in seen:
            seen.add(site.id)
            yield site


def _in_a_line(text: str) -> str:
    return " ".join(text.split())
