"""Edits of text that plant faults: each finds its place by a pattern, and says how often that must match.

Any other count is an error, because the fault could not be planted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from refmoe.errors import RefmoeError


class EditError(RefmoeError):
    """An edit does not fit the text, so that its fault would not be there; the message says what it looked for."""


@dataclass(frozen=True)
class Edit:
    """One change of a text: of PTX, or of a source.

    Attributes:
        pattern: a regular expression of the place and what tells it from others.
        replacement: what takes its place, with the groups of the pattern.
        number: which of the places that match is changed, from 1.
        of: at how many places it must match.
    """

    pattern: str
    replacement: str
    number: int = 1
    of: int = 1

    def __call__(self, text: str) -> str:
        """The changed text.

        Raises:
            EditError: the pattern does not match as often as it must, or the change changes nothing.
        """
        found = list(re.finditer(self.pattern, text))
        if len(found) != self.of:
            raise EditError(f"the text has {len(found)} places that match {self.pattern!r}; needed {self.of}")
        match = found[self.number - 1]
        changed = text[: match.start()] + match.expand(self.replacement) + text[match.end() :]
        if changed == text:
            raise EditError(f"replacing {self.pattern!r} by {self.replacement!r} changes nothing")
        return changed


def literally(old: str, new: str, number: int = 1, of: int = 1) -> Edit:
    """An edit of the text `old` as it stands."""
    return Edit(re.escape(old), new.replace("\\", r"\\"), number, of)
