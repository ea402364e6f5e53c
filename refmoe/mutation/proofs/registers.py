"""Names of registers: a changed source gives the same registers other numbers.

A register of the sound entry that nothing wrote counts as the one of the same name in the other entry. Where numbers
have moved, that is another register. So the other entry is also tried with names that the sound one does not have: then
each register that nothing wrote may be taken for any one of the other entry, always the same one.
"""

from __future__ import annotations

import re

_DECLARED = re.compile(r"^\s*\.reg\b[^\n]*\n", re.MULTILINE)
_NUMBERED = re.compile(r"%(pr|p|rs|rd|rq|rc|r|fd|f|hh|h|b)(?=\d|<)")


def namings(sound: str, other: str) -> list[str]:
    """The texts that stand for the other entry: with names of its own, where numbers have moved, and as it is."""
    if _DECLARED.findall(sound) == _DECLARED.findall(other):
        return [other]
    return [_NUMBERED.sub(r"%\1_other_", other), other]
