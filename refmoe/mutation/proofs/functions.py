"""A module of an entry and of functions that it calls: each as a text that has no call in it.

The compiler puts what a call takes and gives into parameters in a scope of its own. Such a scope becomes one
instruction, which takes registers and gives some: an act like others, named after the function and the layout.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from refmoe.mutation.proofs.program import NoProof

_FUNCTION = re.compile(
    r"^\.func\s+\((\.param[^;{()]*)\)\s*([$\w]+)\s*\(\n?([^;{()]*)\)\n(?:\.noinline\n)?(\{\n.*?^\}\n?)", re.M | re.S
)
_DECLARATION = re.compile(r"^\.func\b[^;{]*;\n", re.MULTILINE)
_SCOPE = re.compile(r"^[ \t]*\{[ \t]*\n[ \t]*\.reg \.b32 temp_param_reg;\n(.*?)^[ \t]*\}[ \t]*\n", re.M | re.S)
_PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.b\d+ \w+(?:\[\d+\])?")
_GIVEN = re.compile(r"st\.param\.([bfsu]\d+)\s+(\[\w+\+\d+\]), (%\w+|-?\d+)")
_TAKEN = re.compile(r"ld\.param\.([bfsu]\d+)\s+(%\w+), (\[\w+\+\d+\])")
_CALL = re.compile(r"call\.uni \((\w+)\),\s*([$\w]+),\s*\(([\w,\s]*)\)")
_BOUND = re.compile(r"^\.maxntid[^\n]*\n", re.MULTILINE)


@dataclass(frozen=True)
class CalledModule:
    """A module taken apart.

    Attributes:
        entry: the module without functions, whose calls are instructions.
        functions: by name, a module whose entry is the function. What it returns are stores.
    """

    entry: str
    functions: Mapping[str, str]

    @classmethod
    def of(cls, text: str) -> CalledModule:
        """Take a module apart; one without functions stays as it is.

        Raises:
            NoProof: a call has a form that is not known here.
        """
        if not re.search(r"^\.func\b", text, re.MULTILINE):
            return cls(text, {})
        found = {match[2]: match for match in _FUNCTION.finditer(text)}
        rest = _DECLARATION.sub("", _FUNCTION.sub("", text))
        if re.search(r"\.func\b", rest, re.MULTILINE):
            raise NoProof("what a function is")
        bound = _BOUND.search(rest)
        head = rest[: rest.index(".visible .entry")]
        functions = {}
        for name, (returned, _, given, body) in ((name, match.groups()) for name, match in found.items()):
            opened = f"{head}.visible .entry {name}(\n{given.strip()},\n{returned}\n)\n{bound[0] if bound else ''}"
            functions[name] = opened + _uncalled(body)
        return cls(_uncalled(rest), functions)


def _uncalled(text: str) -> str:
    """A text whose calls are instructions.

    Raises:
        NoProof: one has a form that is not known here.
    """
    return _SCOPE.sub(lambda match: _instruction(match[1]), text)


def _instruction(scope: str) -> str:
    layout: list[str] = []
    sources: list[str] = []
    results: list[str] = []
    called = False
    for statement in (each.strip() for each in scope.split(";")):
        if match := _GIVEN.fullmatch(statement):
            layout.append(f"{match[1]} {match[2]}")
            sources.append(match[3])
        elif match := _TAKEN.fullmatch(statement):
            layout.append(f"{match[1]} {match[3]}")
            results.append(match[2])
        elif match := _CALL.fullmatch(statement):
            layout.append(" ".join((match[1], match[2], *match[3].split())))
            called = True
        elif _PARAMETER.fullmatch(statement):
            layout.append(statement)
        elif statement:
            raise NoProof(f"what {statement} of a call is")
    if not called or not results or len(set(results)) < len(results):
        raise NoProof("what a call gives")
    name = hashlib.sha256("\n".join(layout).encode()).hexdigest()[:16]
    return f"callee.b{name} {{{', '.join(results)}}}, {', '.join(sources)};\n"
