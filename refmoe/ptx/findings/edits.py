"""Small changes of PTX text that leave every line where it is, so that lines mean the same in both texts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from refmoe.ptx.errors import WrittenInstruction

_GUARD = re.compile(r"@!?\s*[%$\w]+\s*$")


@dataclass(frozen=True)
class PtxEdit:
    """One change at one instruction.

    Attributes:
        at: the instruction.
        where: `"before"` or `"after"` it, `"opcode"`: in the place of its opcode, or `"whole"`: in the place of the
            instruction with its guard.
        text: what is put there.
    """

    at: WrittenInstruction
    where: Literal["before", "after", "opcode", "whole"]
    text: str


class Unplaced(Exception):
    """The text has no such instruction where it should be."""


def apply(text: str, edits: Iterable[PtxEdit]) -> str:
    """The text with changes.

    Raises:
        Unplaced: an instruction is not found in its line.
    """
    lines = text.split("\n")
    # An instruction is found by its opcode, so that this one is changed last.
    for edit in sorted(edits, key=lambda each: each.where in ("opcode", "whole")):
        number = edit.at.line - 1
        begin = _begin(lines[number], edit.at)
        line = lines[number]
        if edit.where == "opcode":
            lines[number] = line[:begin] + edit.text + line[begin + len(edit.at.opcode) :]
        elif edit.where == "before":
            place = _guard(line, begin)
            lines[number] = f"{line[:place]}{edit.text} {line[place:]}"
        elif edit.where == "whole":
            end = line.find(";", begin)
            if end < 0:
                # What goes on in the next line stays as it is.
                raise Unplaced(edit.at.text)
            lines[number] = f"{line[: _guard(line, begin)]}{edit.text}{line[end + 1 :]}"
        else:
            while (end := lines[number].find(";", begin)) < 0:
                number, begin = number + 1, 0
                if number == len(lines):
                    raise Unplaced(edit.at.text)
            lines[number] = f"{lines[number][: end + 1]} {edit.text}{lines[number][end + 1 :]}"
    return "\n".join(lines)


def _guard(line: str, begin: int) -> int:
    """Where the guard of the instruction at `begin` stands, or itself if it has none."""
    guard = _GUARD.search(line[:begin])
    return begin if guard is None else guard.start()


def _begin(line: str, instruction: WrittenInstruction) -> int:
    """Where an instruction's opcode stands in its line: of several of one spelling, the one with its operands."""
    found = [match.start() for match in re.finditer(re.escape(instruction.opcode) + r"(?![\w.:])", line)]
    wanted = _squeezed(instruction.text)
    for begin in found:
        if _squeezed(line[begin:].split(";")[0]).rstrip(";") in wanted:
            return begin
    if not found:
        raise Unplaced(instruction.text)
    return found[0]


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)
