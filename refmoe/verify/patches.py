"""Apply unified diffs strictly: every context line must match exactly, at one place only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from refmoe.errors import RefmoeError
from refmoe.files import write_atomic


class PatchError(RefmoeError):
    """A patch is malformed or does not fit its file."""


@dataclass(frozen=True)
class Hunk:
    """One change: the lines before (context and removed) and after (context and added), newlines kept."""

    start: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class FilePatch:
    """The changes of one file, in order."""

    file: str
    hunks: tuple[Hunk, ...]


def parse_patch(text: str) -> tuple[str, list[FilePatch]]:
    """The text in front of the first `---`, and the changes file by file.

    Raises:
        PatchError: no change at all, a line that no unified diff has, or a hunk whose counts are not its lines'.
    """
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if line.startswith("--- ")), len(lines))
    patches = list(_files(lines, first))
    if not patches:
        raise PatchError("a patch without a change: no '--- file' and '+++ file' lines")
    return "".join(lines[:first]), patches


def _files(lines: list[str], at: int) -> Iterator[FilePatch]:
    while at < len(lines):
        if not lines[at].startswith("--- ") or at + 1 == len(lines) or not lines[at + 1].startswith("+++ "):
            raise PatchError(f"line {at + 1}: {lines[at].rstrip()!r} where '--- file' and '+++ file' should be")
        file = lines[at + 1][4:].split("\t")[0].strip()
        at += 2
        hunks = []
        while at < len(lines) and lines[at].startswith("@@"):
            hunk, at = _hunk(lines, at)
            hunks.append(hunk)
        if not hunks:
            raise PatchError(f"line {at}: no hunk for {file}")
        yield FilePatch(re.sub(r"^[ab]/", "", file), tuple(hunks))


def _hunk(lines: list[str], at: int) -> tuple[Hunk, int]:
    header = re.match(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@", lines[at])
    if header is None:
        raise PatchError(f"line {at + 1}: {lines[at].rstrip()!r} is no hunk header")
    wanted = [int(count) if count is not None else 1 for count in header.group(2, 3)]
    before: list[str] = []
    after: list[str] = []
    place = at + 1
    while [len(before), len(after)] != wanted:
        line = lines[place] if place < len(lines) else ""
        if line[:1] not in (" ", "-", "+") or len(before) > wanted[0] or len(after) > wanted[1]:
            raise PatchError(f"line {place + 1}: the hunk of line {at + 1} does not have the lines that it counts")
        if line[0] in " -":
            before.append(line[1:])
        if line[0] in " +":
            after.append(line[1:])
        place += 1
    return Hunk(int(header[1]), tuple(before), tuple(after)), place


def apply_patch(patches: list[FilePatch], folder: Path) -> None:
    """Change the files below `folder`.

    A hunk goes where its lines are, whatever line number it states, so that edits elsewhere in a file do not outdate
    it; if they are at several places, the stated one must be one of them.

    Raises:
        PatchError: a file that is not there or outside the folder, or a hunk that fits nowhere or at several places.
    """
    root = folder.resolve()
    changed: dict[Path, list[str]] = {}
    for patch in patches:
        path = (root / patch.file).resolve()
        if not path.is_relative_to(root) or not path.is_file():
            raise PatchError(f"{patch.file}: no such file in {folder}")
        lines = changed.get(path) or path.read_text(encoding="utf-8").splitlines(keepends=True)
        for hunk in patch.hunks:
            at = _place(lines, hunk, patch.file)
            lines[at : at + len(hunk.before)] = hunk.after
        changed[path] = lines
    # Only when all fit: half a patch would be another fault than the one described.
    for path, lines in changed.items():
        write_atomic(path, "".join(lines))


def _place(lines: list[str], hunk: Hunk, file: str) -> int:
    length = len(hunk.before)
    if length == 0:
        raise PatchError(f"{file}: the hunk at line {hunk.start} has no line to find its place by")
    fits = [at for at in range(len(lines) - length + 1) if tuple(lines[at : at + length]) == hunk.before]
    if len(fits) > 1 and hunk.start - 1 in fits:
        return hunk.start - 1
    if len(fits) != 1:
        found = "nowhere" if not fits else f"at {len(fits)} places"
        raise PatchError(f"{file}: the hunk of line {hunk.start} fits {found}; make the patch again from this source")
    return fits[0]
