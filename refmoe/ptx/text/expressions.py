"""Constant expressions: `(1 << 4) + 2`, `1 ? 2 : 3`, `(.s64) -1`, `1.0 / 3.0`.

Integers have 64 bits, with a sign or without one. `U` behind a literal, or a value that no signed number of 64 bits
has, makes it unsigned. Where operands differ the result is unsigned. Floating-point numbers are doubles and have
`+ - * /` and comparisons (PTX ISA, "Constant Expressions").

In two places the manual says one thing and ptxas 13.0 does another, which is what a chip gets: `&`, `|` and `^` of
signed numbers are signed, and a shift counts modulo 64. Both are done as ptxas does them.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass

from refmoe.ptx.text import lexer
from refmoe.ptx.text.cursor import Cursor
from refmoe.ptx.text.syntax import Immediate

_WORD = 1 << 64
_TOP = 1 << 63
_LITERAL_OF_THE_WARP = "WARP_SZ"
_CASTS = (".s64", ".u64")
# From those that bind least to those that bind most; within a row from left to right.
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
_OPERATORS = frozenset(("?", *(each for level in _LEVELS for each in level)))
_COMPARISONS: dict[str, Callable[[int | float, int | float], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
_BITWISE: dict[str, Callable[[int, int], int]] = {"&": operator.and_, "|": operator.or_, "^": operator.xor}


@dataclass(frozen=True)
class _Integer:
    """A number of 64 bits: from 0 to 2^64 - 1, or from -2^63 to 2^63 - 1 with a sign."""

    value: int
    signed: bool

    @classmethod
    def of(cls, value: int, signed: bool) -> _Integer:
        """A value modulo 2^64."""
        value %= _WORD
        return cls(value - _WORD if signed and value >= _TOP else value, signed)


_Value = _Integer | float


def expression(cursor: Cursor) -> Immediate:
    """Take a constant expression.

    Raises:
        ParseError: it is none, or divides by zero, or mixes integers with floating-point numbers.
    """
    single = _literal(cursor)
    if single is not None:
        return single
    value = _conditional(cursor)
    if isinstance(value, float):
        return Immediate(int(struct.unpack("<Q", struct.pack("<d", value))[0]), "f64")
    return Immediate(value.value)


def offset(cursor: Cursor) -> int:
    """Take what is added to an address: `+4`, `-8`, `+-8`, `+4*2`."""
    cursor.accept("+")
    value = expression(cursor)
    if value.form != "int":
        cursor.fail("expected an integer")
    return _Integer.of(value.value, True).value


def _literal(cursor: Cursor) -> Immediate | None:
    """Take a literal that stands alone, with or without a sign: it may have any form and any number of bits."""
    signs = cursor.at("-", "+")
    token, behind = cursor.tokens[cursor.position + signs], cursor.tokens[cursor.position + signs + 1]
    if token.kind != "number" or behind.text in _OPERATORS:
        return None
    negative = signs and cursor.take().text == "-"
    value = lexer.immediate(cursor.take().text)
    if not negative:
        return value
    if value.form == "int":
        return Immediate(-value.value)
    return Immediate(value.value ^ (1 << (31 if value.form == "f32" else 63)), value.form)


def _conditional(cursor: Cursor) -> _Value:
    condition = _binary(cursor, 0)
    if not cursor.accept("?"):
        return condition
    chosen = _truth(cursor, condition)
    first = _conditional(cursor)
    cursor.expect(":")
    second = _conditional(cursor)
    integers = _both_integers(cursor, first, second)
    return integers[0] if chosen else integers[1]


def _binary(cursor: Cursor, level: int) -> _Value:
    if level == len(_LEVELS):
        return _unary(cursor)
    left = _binary(cursor, level + 1)
    while cursor.at(*_LEVELS[level]):
        symbol = cursor.take().text
        left = _applied(cursor, symbol, left, _binary(cursor, level + 1))
    return left


def _unary(cursor: Cursor) -> _Value:
    if cursor.accept("+"):
        return _unary(cursor)
    if cursor.accept("-"):
        value = _unary(cursor)
        return -value if isinstance(value, float) else _Integer.of(-value.value, value.signed)
    if cursor.accept("!"):
        return _Integer(int(not _truth(cursor, _unary(cursor))), True)
    if cursor.accept("~"):
        return _Integer.of(~_integer(cursor, _unary(cursor)).value, False)
    if cursor.accept("("):
        cast = cursor.take().text if cursor.at(*_CASTS) else ""
        if cast:
            cursor.expect(")")
            return _Integer.of(_integer(cursor, _unary(cursor)).value, cast == ".s64")
        value = _conditional(cursor)
        cursor.expect(")")
        return value
    if cursor.accept(_LITERAL_OF_THE_WARP):
        return _Integer(32, True)
    literal, text = cursor.literal(), cursor.tokens[cursor.position - 1].text
    if literal.form == "f32":
        cursor.fail(f"{text} in a constant expression: of literals in hexadecimal only 0d... may stand there")
    if literal.form == "f64":
        return float(struct.unpack("<d", struct.pack("<Q", literal.value))[0])
    return _Integer.of(literal.value, not text.endswith("U") and literal.value < _TOP)


def _integer(cursor: Cursor, value: _Value) -> _Integer:
    if isinstance(value, float):
        cursor.fail("a floating-point number in a constant expression where an integer is needed")
    return value


def _truth(cursor: Cursor, value: _Value) -> bool:
    return _integer(cursor, value).value != 0


def _both_integers(cursor: Cursor, left: _Value, right: _Value) -> tuple[_Integer, _Integer]:
    """Two integers of one type: unsigned if one of them is."""
    first, second = _integer(cursor, left), _integer(cursor, right)
    signed = first.signed and second.signed
    return _Integer.of(first.value, signed), _Integer.of(second.value, signed)


def _applied(cursor: Cursor, symbol: str, left: _Value, right: _Value) -> _Value:
    if symbol in ("&&", "||"):
        both = (_truth(cursor, left), _truth(cursor, right))
        return _Integer(int(all(both) if symbol == "&&" else any(both)), True)
    if symbol in ("<<", ">>"):
        value, count = _integer(cursor, left), _integer(cursor, right).value % 64
        return _Integer.of(value.value << count if symbol == "<<" else value.value >> count, value.signed)
    if isinstance(left, float) and isinstance(right, float):
        return _of_doubles(cursor, symbol, left, right)
    if isinstance(left, float) or isinstance(right, float):
        cursor.fail("an integer and a floating-point number in one constant expression")
    first, second = _both_integers(cursor, left, right)
    if symbol in _COMPARISONS:
        return _Integer(int(_COMPARISONS[symbol](first.value, second.value)), True)
    if symbol in _BITWISE:
        return _Integer.of(_BITWISE[symbol](first.value, second.value), first.signed)
    if symbol in ("/", "%") and second.value == 0:
        cursor.fail("a constant expression divides by zero")
    if symbol == "%":
        # Without signs, whatever the operands have.
        return _Integer.of((first.value % _WORD) % (second.value % _WORD), True)
    if symbol == "/":
        quotient = abs(first.value) // abs(second.value)
        return _Integer.of(quotient if (first.value < 0) == (second.value < 0) else -quotient, first.signed)
    work = {"+": operator.add, "-": operator.sub, "*": operator.mul}[symbol]
    return _Integer.of(work(first.value, second.value), first.signed)


def _of_doubles(cursor: Cursor, symbol: str, left: float, right: float) -> _Value:
    if symbol in _COMPARISONS:
        return _Integer(int(_COMPARISONS[symbol](left, right)), True)
    if symbol == "/" and right == 0.0:
        cursor.fail("a constant expression divides by zero")
    work = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}.get(symbol)
    if work is None:
        cursor.fail(f"{symbol} of floating-point numbers in a constant expression")
    return float(work(left, right))
