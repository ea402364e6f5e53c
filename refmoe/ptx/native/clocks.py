"""Rows of clocks that come to know what other rows do, many in one call.

    raise_rows(target, target_bytes, target_rows, keys, source, source_bytes, source_rows, rows, count, spans,
               spans_count, width) -> 1 if one of these leads out of the tables, and nothing is done; else 0

Row `keys[i]` of `target` becomes the maximum of itself and of row `rows[i]` of `source`, one i after another, int64
[count] both. `target_bytes` and `source_bytes` are the distances of neighbouring rows of `width` words. Of these it is
words `begin` to `begin + words - 1` for each of the `spans` (begin, words), int64 [spans_count, 2].

Words are steps, and none is negative. Most are zero: what rows know lies together, such as the lanes of a warp, and
parts of rows that are zero raise nothing. Where a part of the source is zero, the target is not touched.
`copy_rows` makes the one row the other, and `move_rows` makes the other one zero after that: they write no part that
is zero in both. `clear_rows` writes what is not zero. `raise_whole` raises the word of each of some warps, which stand
in front of a row, to the least of its 32 lanes' words, which begin at word `lane`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache, reduce
from operator import or_
from typing import Any

import numpy as np
from llvmlite import ir

from refmoe.native.addresses import address
from refmoe.native.compiler import Native
from refmoe.native.expressions import I1, I32, I64, POINTER, Code, Value, vector

Array = Any
_WORD_BYTES = 8
# Words that are compared together.
_TOGETHER = 8
_TOGETHER_SHIFT = 3
# Vectors of a part that is passed over if it is zero: four lines of the cache.
_PART = 4
_PART_SHIFT = 2
_VECTOR_BYTES = _TOGETHER * _WORD_BYTES
_KIND = vector(I64, _TOGETHER)
_LANES = 32
# Bytes between what is raised and what is asked for: rows lie in no near cache, and more than one part is on its way.
_AHEAD = 2 * _PART * _VECTOR_BYTES
_PAIRS_AHEAD = 3


class RowFunctions:
    """The functions of the module, called with addresses."""

    def __init__(self) -> None:
        self._native = Native.of(_text, "clocks", level=2, briefly=True)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        table = [pointer, number, number, pointer]
        rows = [*table, *table, number, pointer, number, number]
        self.raise_rows = self._function("raise_rows", *rows)
        self.copy_rows = self._function("copy_rows", *rows)
        self.move_rows = self._function("move_rows", *rows)
        self.clear_rows = self._function("clear_rows", *table, number, pointer, number, number)
        self.raise_whole = self._function("raise_whole", *table, number, number, pointer, number)

    def _function(self, name: str, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(ctypes.c_int32, *arguments)(self._native.address(name))


@cache
def functions() -> RowFunctions:
    """The one instance, made when first asked for."""
    return RowFunctions()


_ROWS = [*[POINTER, I64, I64, POINTER] * 2, I64, POINTER, I64, I64]


def _text() -> str:
    module = ir.Module()
    _raise_rows(module)
    _take_rows(module, "copy_rows", moves=False)
    _take_rows(module, "move_rows", moves=True)
    _clear_rows(module)
    _raise_whole(module)
    return str(module)


def _pairs(code: Code) -> Iterator[tuple[Value, Value]]:
    """The code for (row of the target, row of the source) of each pair; to be taken once."""
    target, target_bytes, target_rows, keys, source, source_bytes, source_rows, rows, count = code.arguments[:9]
    _refuse(code, keys, count, target_rows)
    _refuse(code, rows, count, source_rows)
    _refuse_spans(code)

    def pair(number: Value) -> tuple[Value, Value]:
        mine = target + code.load(I64, keys + number * _WORD_BYTES, align=8) * target_bytes
        return mine, source + code.load(I64, rows + number * _WORD_BYTES, align=8) * source_bytes

    with code.range(count) as number:
        # Rows lie in no near cache, and a span is mostly a line or two: those of another pair are on their way.
        later = pair(code.min(number + _PAIRS_AHEAD, count - 1))
        for places in _spans(code, *later):
            for row in places[:2]:
                code.prefetch(row)
        yield pair(number)


def _refuse(code: Code, numbers: Value, count: Value, limit: Value) -> None:
    """Leave if one of the numbers is below zero, or not below the limit."""
    wrong = code.variable(I1, 0)
    with code.range(count) as at:
        number = code.load(I64, numbers + at * _WORD_BYTES, align=8)
        wrong.set(wrong.get() | (number < 0) | (number < limit) ^ True)
    code.done_if(wrong.get(), code.constant(I32, 1))


def _refuse_spans(code: Code) -> None:
    """Leave if a span begins in front of a row, or ends behind it."""
    spans, count, width = code.arguments[-3:]
    wrong = code.variable(I1, 0)
    with code.range(count) as at:
        begin, words = (code.load(I64, spans + at * (2 * _WORD_BYTES) + field, align=8) for field in (0, _WORD_BYTES))
        wrong.set(wrong.get() | (begin < 0) | (words < 0) | (width < begin + words))
    code.done_if(wrong.get(), code.constant(I32, 1))


def _spans(code: Code, *rows: Value) -> Iterator[tuple[Value, ...]]:
    """The code for (where it begins in each row, words) of each span; to be taken once."""
    spans, count, _ = code.arguments[-3:]
    with code.range(count) as number:
        begin, words = (code.load(I64, spans + number * (2 * _WORD_BYTES) + at, align=8) for at in (0, _WORD_BYTES))
        yield (*[row + begin * _WORD_BYTES for row in rows], words)


def _raise_rows(module: Any) -> None:
    code = Code(module, "raise_rows", _ROWS, result=I32)
    for mine, theirs, width in (each for pair in _pairs(code) for each in _spans(code, *pair)):
        whole = width >> _TOGETHER_SHIFT
        with code.range(whole >> _PART_SHIFT) as part:
            begin = part * (_PART * _VECTOR_BYTES)
            for i in range(_PART):
                ahead = begin + (_AHEAD + i * _VECTOR_BYTES)
                code.prefetch(theirs + ahead)
                code.prefetch(mine + ahead)
            brought = [code.load(_KIND, theirs + begin + i * _VECTOR_BYTES, align=8) for i in range(_PART)]
            with code.when(code.any(reduce(or_, brought).differs(0))):
                for i, each in enumerate(brought):
                    at = begin + i * _VECTOR_BYTES
                    code.store(code.max(code.load(_KIND, mine + at, align=8), each), mine + at, align=8)
        with code.range(whole & (_PART - 1)) as chunk:
            at = ((whole & -_PART) + chunk) * _VECTOR_BYTES
            both = code.max(code.load(_KIND, mine + at, align=8), code.load(_KIND, theirs + at, align=8))
            code.store(both, mine + at, align=8)
        with code.range(width & (_TOGETHER - 1)) as word:
            at = ((whole << _TOGETHER_SHIFT) + word) * _WORD_BYTES
            both = code.max(code.load(I64, mine + at, align=8), code.load(I64, theirs + at, align=8))
            code.store(both, mine + at, align=8)
    code.done(code.constant(I32, 0))


def _take_rows(module: Any, name: str, *, moves: bool) -> None:
    code = Code(module, name, _ROWS, result=I32)
    nothing = code.constant(_KIND, 0)
    for mine, theirs, width in (each for pair in _pairs(code) for each in _spans(code, *pair)):
        whole = width >> _TOGETHER_SHIFT
        with code.range(whole) as chunk:
            at = chunk * _VECTOR_BYTES
            brought, held = code.load(_KIND, theirs + at, align=8), code.load(_KIND, mine + at, align=8)
            with code.when(code.any((brought | held).differs(0))):
                code.store(brought, mine + at, align=8)
                if moves:
                    code.store(nothing, theirs + at, align=8)
        with code.range(width & (_TOGETHER - 1)) as word:
            at = ((whole << _TOGETHER_SHIFT) + word) * _WORD_BYTES
            code.store(code.load(I64, theirs + at, align=8), mine + at, align=8)
            if moves:
                code.store(code.constant(I64, 0), theirs + at, align=8)
    code.done(code.constant(I32, 0))


def _clear_rows(module: Any) -> None:
    code = Code(module, "clear_rows", [POINTER, I64, I64, POINTER, I64, POINTER, I64, I64], result=I32)
    table, row_bytes, table_rows, rows, count = code.arguments[:5]
    _refuse(code, rows, count, table_rows)
    _refuse_spans(code)
    with code.range(count) as number:
        row = table + code.load(I64, rows + number * _WORD_BYTES, align=8) * row_bytes
        for begin, width in _spans(code, row):
            whole = width >> _TOGETHER_SHIFT
            with code.range(whole) as chunk:
                place = begin + chunk * _VECTOR_BYTES
                with code.when(code.any(code.load(_KIND, place, align=8).differs(0))):
                    code.store(code.constant(_KIND, 0), place, align=8)
            with code.range(width & (_TOGETHER - 1)) as word:
                place = begin + ((whole << _TOGETHER_SHIFT) + word) * _WORD_BYTES
                with code.when(code.load(I64, place, align=8).differs(0)):
                    code.store(code.constant(I64, 0), place, align=8)
    code.done(code.constant(I32, 0))


def _raise_whole(module: Any) -> None:
    code = Code(module, "raise_whole", [POINTER, I64, I64, POINTER, I64, I64, POINTER, I64], result=I32)
    table, row_bytes, table_rows, rows, count, lane, warps, warps_count = code.arguments
    _refuse(code, rows, count, table_rows)
    with code.range(count) as number:
        row = table + code.load(I64, rows + number * _WORD_BYTES, align=8) * row_bytes
        with code.range(warps_count) as which:
            warp = code.load(I64, warps + which * _WORD_BYTES, align=8)
            first = row + (lane + warp * _LANES) * _WORD_BYTES
            held = [code.load(_KIND, first + i * _VECTOR_BYTES, align=8) for i in range(_LANES // _TOGETHER)]
            least = code.intrinsic("vector.reduce.smin", reduce(code.min, held), result=I64)
            place = row + warp * _WORD_BYTES
            code.store(code.max(code.load(I64, place, align=8), least), place, align=8)
    code.done(code.constant(I32, 0))


def _pairs_of(function: Any, table: Array, keys: Array, source: Array, rows: Array, spans: Array | None) -> None:
    """Call a function of pairs of rows."""
    assert source.shape[1] == table.shape[1]
    assert len(rows) == len(keys)
    assert table.shape[1] == 1 or table.strides[1] == source.strides[1] == _WORD_BYTES
    # Arrays have to live as long as the call.
    keys, rows = np.ascontiguousarray(keys, np.int64), np.ascontiguousarray(rows, np.int64)
    spans = _parts(table, spans)
    refused = function(
        address(table), table.strides[0], len(table), address(keys), address(source), source.strides[0], len(source),
        address(rows), len(keys), address(spans), len(spans), table.shape[1],
    )  # fmt: skip
    assert not refused, "rows or words beyond their table"


def _parts(table: Array, spans: Array | None) -> Array:
    """The spans of rows of a table."""
    if spans is None:
        return np.array([[0, table.shape[1]]], np.int64)
    assert spans.dtype == np.int64
    assert spans.flags.c_contiguous
    return spans


def raise_rows(table: Array, keys: Array, source: Array, rows: Array | None = None, spans: Array | None = None) -> None:
    """`np.maximum.at(table, keys, source[rows])`, without copies of the rows.

    Args:
        table: int64 [n, width], not negative, raised in place. The words of a row are neighbours, the rows need not be.
        keys: int64 [m], rows of the table; each may come several times.
        source: int64 [k, width], likewise; a row that is raised has no word in common with one that is brought to it,
            unless both are the same.
        rows: int64 [m], rows of the source; None for one after another.
        spans: int64 [k, 2], (begin, words) of the parts of a row outside of which the source is zero; None for one.
    """
    if not keys.size:
        return
    rows = np.arange(len(keys)) if rows is None else rows
    _pairs_of(functions().raise_rows, table, keys, source, rows, spans)


def copy_rows(table: Array, keys: Array, source: Array, rows: Array, spans: Array | None = None) -> None:
    """`table[keys] = source[rows]`, without a copy in between; for the arguments see `raise_rows`.

    `spans`: outside of them both are zero.
    """
    if keys.size:
        _pairs_of(functions().copy_rows, table, keys, source, rows, spans)


def move_rows(table: Array, source: Array, rows: Array, spans: Array | None = None) -> None:
    """Rows `rows` [m], each once, of `table` become those of `source`, which become zero.

    For `spans` see `copy_rows`.
    """
    if rows.size:
        _pairs_of(functions().move_rows, table, rows, source, rows, spans)


def clear_rows(table: Array, rows: Array, spans: Array | None = None) -> None:
    """`table[rows] = 0`, without writing words that are zero, so that no page becomes resident for that.

    Args:
        table: int64 [n, width].
        rows: int64 [m].
        spans: see `raise_rows`; outside of them the rows are zero.
    """
    if not rows.size:
        return
    assert table.shape[1] == 1 or table.strides[1] == _WORD_BYTES
    rows, spans = np.ascontiguousarray(rows, np.int64), _parts(table, spans)
    refused = functions().clear_rows(
        address(table), table.strides[0], len(table), address(rows), len(rows), address(spans), len(spans),
        table.shape[1],
    )  # fmt: skip
    assert not refused, "rows or words beyond their table"


def raise_whole(table: Array, rows: Array, lane: int, warps: Array) -> None:
    """In rows of a table, the word of each warp becomes the least of its lanes' words, if that is more.

    Args:
        table: int64 [n, width], the words of warps in front.
        rows: int64 [m].
        lane: the first word of lanes, 32 for each warp.
        warps: int64 [k], which.
    """
    if not rows.size or not warps.size:
        return
    assert table.strides[1] == _WORD_BYTES
    last = int(warps.max())
    assert 0 <= int(warps.min()) <= last < lane
    assert lane + _LANES * (last + 1) <= table.shape[1]
    rows, warps = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(warps, np.int64)
    refused = functions().raise_whole(
        address(table), table.strides[0], len(table), address(rows), len(rows), lane, address(warps), len(warps)
    )
    assert not refused, "rows beyond their table"
