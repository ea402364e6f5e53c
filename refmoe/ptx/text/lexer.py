"""PTX text to tokens."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from refmoe.ptx.errors import ParseError
from refmoe.ptx.text.syntax import Immediate


class Token(NamedTuple):
    """`kind` is `"word"` (identifier or opcode), `"directive"`, `"number"`, `"string"`, `"punctuation"`, `"end"`, or
    `"stray"`: text that begins no token.

    A function's body, from brace to brace, is one token of kind `"body"` where only the module around it is read.
    """

    kind: str
    text: str
    line: int
    start: int
    end: int


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f]+|//[^\n]*)
    |(?P<newline>\n)
    |(?P<comment>/\*.*?\*/)
    |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?\b|0[bB][01]+U?\b
        |\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|(?:0[0-7]*|[1-9]\d*)U?(?![\w.]))
    |(?P<word>[%$A-Za-z_][\w$]*(?:(?:\.|::)[A-Za-z0-9_]+)*)
    |(?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
    |(?P<string>"[^"\n]*")
    |(?P<punctuation><<|>>|[<>=!]=|&&|\|\||[{}\[\]()<>,;:@!|=+\-~*/&^?])""",
    re.VERBOSE | re.DOTALL,
)


# What the words and braces of a module are looked for with. Comments and strings are matched first: what they say is no
# part of it. Then a debug section, and the brace that begins a variable's first value. Every alternative begins with a
# plain letter and none is a group: so `re` looks for these letters alone, twice as fast.
_COMMENT = r"/\*(?:[^*]|\*(?!/))*\*/"
_OUTLINE = re.compile(
    rf"""//[^\n]*|{_COMMENT}|"[^"\n]*"
    |\.section\b[^{{;]*\{{[^}}]*\}}
    |=(?:\s|//[^\n]*\n|{_COMMENT})*\{{
    |\{{|\}}""",
    re.VERBOSE,
)


def outline(text: str) -> dict[int, int]:
    """Where the bodies of functions and the debug sections begin, and where they end.

    A body is an outermost pair of braces that is no first value of a variable.
    """
    found: dict[int, int] = {}
    depth = 0
    start: int | None = None
    for match in _OUTLINE.finditer(text):
        first = text[match.start()]
        if first in "{=":
            if depth == 0:
                start = match.start() if first == "{" else None
            depth += 1
        elif first == "}":
            depth -= 1
            if depth == 0 and start is not None:
                found[start] = match.end()
        elif first == "." and depth == 0:
            found[match.start()] = match.end()
    return found


def tokenize(
    text: str,
    name: str,
    line: int = 1,
    position: int = 0,
    end: int | None = None,
    whole: Mapping[int, int] = MappingProxyType({}),
    strays: bool = False,
) -> list[Token]:
    """Tokens of `text`, ended by one of kind `"end"`.

    Args:
        text: all of it, for places in it.
        name: of the file, for messages.
        line: the line of `position`.
        position: where to begin.
        end: where to end; None for the end of the text.
        whole: where the bodies that become one token, and the sections that become none, begin and end; see `outline`.
            A section holds a byte a line.
        strays: whether a character that starts no token becomes one, which the statement around it cannot take.

    Raises:
        ParseError: a character that starts no token, unless `strays`.
    """
    tokens = []
    end = len(text) if end is None else end
    match_at = _TOKEN.match
    while position < end:
        if position in whole:
            if text[position] == "{":
                tokens.append(Token("body", "{", line, position, whole[position]))
            line += text.count("\n", position, whole[position])
            position = whole[position]
            continue
        match = match_at(text, position, end)
        if match is None:
            found = text[position : position + 20].split("\n")[0]
            if not strays:
                raise ParseError(f"{name}:{line}: unexpected {found!r}", line=line, name=name)
            tokens.append(Token("stray", found, line, position, position + 1))
            position += 1
            continue
        kind = match.lastgroup
        position = match.end()
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += match.group().count("\n")
        elif kind != "space":
            tokens.append(Token(str(kind), match.group(), line, match.start(), position))
    tokens.append(Token("end", "", line, position, position))
    return tokens


def immediate(text: str) -> Immediate:
    """The value of a number token: `0f3F800000`, `0d...`, hexadecimal, binary, octal, decimal, `U` suffix, 1.5e3."""
    head = text[:2].lower()
    if head == "0f":
        return Immediate(int(text[2:], 16), "f32")
    if head == "0d":
        return Immediate(int(text[2:], 16), "f64")
    digits = text.rstrip("U")
    if head == "0x":
        return Immediate(int(digits, 16))
    if head == "0b":
        return Immediate(int(digits, 2))
    if "." in text or "e" in text or "E" in text:
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    if len(digits) > 1 and digits[0] == "0":
        return Immediate(int(digits, 8))
    return Immediate(int(digits))
