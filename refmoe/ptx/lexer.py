"""PTX text to tokens."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from refmoe.ptx.errors import ParseError
from refmoe.ptx.syntax import Immediate


class Token(NamedTuple):
    """`kind` is `"word"` (identifier or opcode), `"directive"`, `"number"`, `"string"`, `"punctuation"` or `"end"`."""

    kind: str
    text: str
    line: int
    start: int
    end: int


# Debug sections hold one byte a line: dropped before tokens are made, their line breaks kept.
_SECTION = re.compile(r"\.section\b[^{;]*\{[^}]*\}")
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f]+|//[^\n]*)
    |(?P<newline>\n)
    |(?P<comment>/\*.*?\*/)
    |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?\b|0[bB][01]+U?\b
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|(?:0[0-7]*|[1-9]\d*)U?(?![\w.]))
    |(?P<word>[%$A-Za-z_][\w$]*(?:(?:\.|::)[A-Za-z0-9_]+)*)
    |(?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
    |(?P<string>"[^"\n]*")
    |(?P<punctuation>[{}\[\]()<>,;:@!|=+\-~])""",
    re.VERBOSE | re.DOTALL,
)


def drop_sections(text: str) -> str:
    """`text` without its debug sections, every line at its old number."""
    return _SECTION.sub(lambda match: "\n" * match.group().count("\n"), text)


def tokenize(text: str, name: str) -> list[Token]:
    """Tokens of `text`, ended by one of kind `"end"`.

    Raises:
        ParseError: a character that starts no token.
    """
    tokens = []
    line, position = 1, 0
    match_at = _TOKEN.match
    while position < len(text):
        match = match_at(text, position)
        if match is None:
            found = text[position : position + 20].split("\n")[0]
            raise ParseError(f"{name}:{line}: unexpected {found!r}", line=line, name=name)
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
