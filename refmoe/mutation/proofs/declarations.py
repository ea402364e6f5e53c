"""What two texts of an entry declare: who may launch it, memory, and the names of its registers."""

from __future__ import annotations

import re

#: What tells the assembler how to use registers, and nothing of what is computed.
_HINTS = re.compile(r"^\.(?:minnctapersm|maxnctapersm|pragma)\b[^\n]*\n", re.MULTILINE)
_THREADS = re.compile(r"^\.maxntid\s+(\d+)[^\n]*\n", re.MULTILINE)
_SHARED = re.compile(r"^\s*\.(?:shared|const|global)\b[^\n]*\n", re.MULTILINE)
_LOCAL = re.compile(r"^\s*(\.local\b[^\n]*)\[(\d+)\];\n", re.MULTILINE)
_DECLARED = re.compile(r"^\s*\.reg\b[^\n]*\n", re.MULTILINE)
_NUMBERED = re.compile(r"%(pr|p|rs|rd|rq|rc|r|fd|f|hh|h|b)(?=\d|<)")


def same_heads(sound: str, other: str) -> bool:
    """Whether all but instructions and registers is the same, up to hints; what was allowed to launch still is."""
    threads = [int(match[1]) if (match := _THREADS.search(text)) else 0 for text in (sound, other)]
    heads = [_THREADS.sub("", _HINTS.sub("", text[: text.index("\n{") + 1])) for text in (sound, other)]
    memory = [sorted(_SHARED.findall(text[text.index("\n{") :])) for text in (sound, other)]
    # What a thread has for itself may be more.
    local = [{match[1]: int(match[2]) for match in _LOCAL.finditer(text)} for text in (sound, other)]
    room = local[0].keys() == local[1].keys() and all(local[1][name] >= size for name, size in local[0].items())
    return heads[0] == heads[1] and memory[0] == memory[1] and threads[1] >= threads[0] and room


def namings(sound: str, other: str) -> list[str]:
    """The texts that stand for the other entry: with names of its own, where numbers have moved, and as it is.

    A register of the sound entry that nothing wrote counts as the one of the same name in the other entry. A changed
    source gives the same registers other numbers, and then that is another register. With names that the sound entry
    does not have, each such register may be taken for any one of the other entry, always the same one.
    """
    if _DECLARED.findall(sound) == _DECLARED.findall(other):
        return [other]
    return [_NUMBERED.sub(r"%\1_other_", other), other]
