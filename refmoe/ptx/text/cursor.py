"""A place in a list of tokens, and the few ways to go on from it."""

from __future__ import annotations

from typing import NoReturn

from refmoe.ptx.errors import ParseError
from refmoe.ptx.text import lexer
from refmoe.ptx.text.syntax import Immediate


class Cursor:
    """Reads tokens one after another. Whatever does not fit raises ParseError with the line."""

    def __init__(self, text: str, name: str, tokens: list[lexer.Token]) -> None:
        self.text = text
        self.name = name
        self.tokens = tokens
        self.position = 0

    @property
    def token(self) -> lexer.Token:
        """The next token."""
        return self.tokens[self.position]

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of `texts`."""
        return self.token.text in texts

    def take(self) -> lexer.Token:
        """The next token, taken."""
        token = self.token
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is `text`; whether it was."""
        if self.token.text == text:
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> lexer.Token:
        """Take the next token, which must be `text`."""
        if self.token.text != text:
            self.fail(f"expected {text!r}, found {self.token.text!r}")
        return self.take()

    def word(self) -> str:
        """Take a name."""
        if self.token.kind != "word":
            self.fail(f"expected a name, found {self.token.text!r}")
        return self.take().text

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        """Raise a ParseError at `line`, by default that of the next token."""
        if line is None and self.token.kind == "stray":
            message = f"unexpected {self.token.text!r}"
        line = self.token.line if line is None else line
        raise ParseError(f"{self.name}:{line}: {message}", line=line, name=self.name)

    def literal(self, wanted: str = "a number") -> Immediate:
        """Take a number without its sign."""
        if self.token.kind != "number":
            self.fail(f"expected {wanted}, found {self.token.text!r}")
        return lexer.immediate(self.take().text)

    def integer(self) -> int:
        """Take an integer with its sign."""
        negative = self.accept("-")
        value = self.literal("an integer")
        if value.form != "int":
            self.fail("expected an integer")
        return -value.value if negative else value.value

    def end_of_statement(self, start: int) -> int | None:
        """Where the semicolon of the statement that begins at `start` is; None if its braces or the text end before."""
        depth = 0
        for place in range(start, len(self.tokens)):
            text = self.tokens[place].text
            if text == ";":
                return place
            depth += (text == "{") - (text == "}")
            if depth < 0:
                return None
        return None
