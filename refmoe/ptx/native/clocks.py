"""Rows of clocks that come to know what other rows do, many in one call.

    raise_rows(target, target_bytes, keys, source, source_bytes, rows, count, spans, spans_count)

Row `keys[i]` of `target` becomes the maximum of itself and of row `rows[i]` of `source`, one i after another, int64
[count] both. `target_bytes` and `source_bytes` are the distances of neighbouring rows. Of these it is words `begin` to
`begin + words - 1` for each of the `spans` (begin, words), int64 [spans_count, 2].

Words are steps, and none is negative. Most are zero: what rows know lies together, such as the lanes of a warp, and
parts of rows that are zero raise nothing. Where a part of the source is zero, the target is not touched.
`copy_rows` makes the one row the other, all `width` words of it, and `move_rows` makes the other one zero after that:
they write no part that is zero in both. `raise_whole` raises the word of each of `warps` warps, which stand in front of
a row, to the least of its 32 lanes' words, which begin at word `lane`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache, reduce
from operator import or_
from typing import Any

import numpy as np
from llvmlite import ir

from refmoe.native.compiler import Native
from refmoe.native.expressions import I64, POINTER, Code, Value, vector

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


class RowFunctions:
    """The functions of the module, called with addresses."""

    def __init__(self) -> None:
        self._native = Native.of(_text, "clocks", level=2, briefly=True)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        rows = [pointer, number, pointer, pointer, number, pointer, number, number]
        self.raise_rows = self._function("raise_rows", *rows[:-1], pointer, number)
        self.copy_rows = self._function("copy_rows", *rows)
        self.move_rows = self._function("move_rows", *rows)
        self.clear_rows = self._function("clear_rows", *[pointer, number, pointer, number, number])
        self.raise_whole = self._function("raise_whole", *[pointer, number, pointer, number, number, number])

    def _function(self, name: str, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(None, *arguments)(self._native.address(name))


@cache
def functions() -> RowFunctions:
    """The one instance, made when first asked for."""
    return RowFunctions()


_ROWS = [POINTER, I64, POINTER, POINTER, I64, POINTER, I64, I64]


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
    target, target_bytes, keys, source, source_bytes, rows, count = code.arguments[:7]
    with code.range(count) as number:
        mine = target + code.load(I64, keys + number * _WORD_BYTES, align=8) * target_bytes
        theirs = source + code.load(I64, rows + number * _WORD_BYTES, align=8) * source_bytes
        yield mine, theirs


def _spans(code: Code, mine: Value, theirs: Value) -> Iterator[tuple[Value, Value, Value]]:
    """The code for (where it begins in the target, and in the source, words) of each span of a pair of rows."""
    spans, count = code.arguments[7:]
    with code.range(count) as number:
        begin, words = (code.load(I64, spans + number * (2 * _WORD_BYTES) + at, align=8) for at in (0, _WORD_BYTES))
        yield mine + begin * _WORD_BYTES, theirs + begin * _WORD_BYTES, words


def _raise_rows(module: Any) -> None:
    code = Code(module, "raise_rows", [*_ROWS[:-1], POINTER, I64])
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
    code.done()


def _take_rows(module: Any, name: str, *, moves: bool) -> None:
    code = Code(module, name, _ROWS)
    nothing, width = code.constant(_KIND, 0), code.arguments[-1]
    for mine, theirs in _pairs(code):
        whole = width >> _TOGETHER_SHIFT
        with code.range(whole >> _PART_SHIFT) as part:
            begin = part * (_PART * _VECTOR_BYTES)
            places = [begin + i * _VECTOR_BYTES for i in range(_PART)]
            brought = [code.load(_KIND, theirs + at, align=8) for at in places]
            held = [code.load(_KIND, mine + at, align=8) for at in places]
            with code.when(code.any(reduce(or_, [*brought, *held]).differs(0))):
                for at, each in zip(places, brought, strict=True):
                    code.store(each, mine + at, align=8)
                    if moves:
                        code.store(nothing, theirs + at, align=8)
        with code.range(width - ((whole & -_PART) << _TOGETHER_SHIFT)) as word:
            at = (((whole & -_PART) << _TOGETHER_SHIFT) + word) * _WORD_BYTES
            code.store(code.load(I64, theirs + at, align=8), mine + at, align=8)
            if moves:
                code.store(code.constant(I64, 0), theirs + at, align=8)
    code.done()


def _clear_rows(module: Any) -> None:
    code = Code(module, "clear_rows", [POINTER, I64, POINTER, I64, I64])
    table, row_bytes, rows, count, width = code.arguments
    with code.range(count) as number:
        row = table + code.load(I64, rows + number * _WORD_BYTES, align=8) * row_bytes
        with code.range(width) as word:
            place = row + word * _WORD_BYTES
            with code.when(code.load(I64, place, align=8).differs(0)):
                code.store(code.constant(I64, 0), place, align=8)
    code.done()


def _raise_whole(module: Any) -> None:
    code = Code(module, "raise_whole", [POINTER, I64, POINTER, I64, I64, I64])
    table, row_bytes, rows, count, lane, warps = code.arguments
    with code.range(count) as number:
        row = table + code.load(I64, rows + number * _WORD_BYTES, align=8) * row_bytes
        with code.range(warps) as warp:
            first = row + (lane + warp * _LANES) * _WORD_BYTES
            held = [code.load(_KIND, first + i * _VECTOR_BYTES, align=8) for i in range(_LANES // _TOGETHER)]
            least = code.intrinsic("vector.reduce.smin", reduce(code.min, held), result=I64)
            place = row + warp * _WORD_BYTES
            code.store(code.max(code.load(I64, place, align=8), least), place, align=8)
    code.done()


def _checked(table: Array, keys: Array, source: Array, rows: Array) -> tuple[Any, ...]:
    """The arguments of a function of rows. Native code does not ask where it reads and writes."""
    assert source.shape[1] == table.shape[1]
    assert len(rows) == len(keys)
    assert table.shape[1] == 1 or table.strides[1] == source.strides[1] == _WORD_BYTES
    for numbers, held in ((keys, table), (rows, source)):
        assert 0 <= int(numbers.min()) <= int(numbers.max()) < len(held)
    keys, rows = np.ascontiguousarray(keys, np.int64), np.ascontiguousarray(rows, np.int64)
    # The arrays that they are of have to live as long as the call.
    return (
        table.ctypes.data, table.strides[0], keys.ctypes.data, source.ctypes.data, source.strides[0], rows.ctypes.data,
        len(keys), table.shape[1], (keys, rows),
    )  # fmt: skip


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
    *arguments, width, _kept = _checked(table, keys, source, rows)
    if spans is None:
        spans = np.array([[0, width]], np.int64)
    assert spans.dtype == np.int64
    assert spans.flags.c_contiguous
    assert not len(spans) or 0 <= int(spans.min()) <= int(spans.sum(axis=1).max()) <= width
    functions().raise_rows(*arguments, spans.ctypes.data, len(spans))


def copy_rows(table: Array, keys: Array, source: Array, rows: Array) -> None:
    """`table[keys] = source[rows]`, without a copy in between; for the arguments see `raise_rows`."""
    if keys.size:
        *arguments, _kept = _checked(table, keys, source, rows)
        functions().copy_rows(*arguments)


def move_rows(table: Array, source: Array, rows: Array) -> None:
    """Rows `rows` [m], each once, of `table` become those of `source`, which become zero."""
    if rows.size:
        *arguments, _kept = _checked(table, rows, source, rows)
        functions().move_rows(*arguments)


def clear_rows(table: Array, rows: Array) -> None:
    """`table[rows] = 0`, without writing words that are zero, so that no page becomes resident for that.

    Args:
        table: int64 [n, width].
        rows: int64 [m].
    """
    if rows.size:
        *arguments, _kept = _checked(table, rows, table, rows)
        functions().clear_rows(*arguments[:3], *arguments[6:])


def raise_whole(table: Array, rows: Array, lane: int, warps: int) -> None:
    """In rows of a table, the word of each warp becomes the least of its lanes' words, if that is more.

    Args:
        table: int64 [n, width], the words of warps in front.
        rows: int64 [m].
        lane: the first word of lanes, 32 for each warp.
        warps: how many.
    """
    if not rows.size:
        return
    assert 0 <= int(rows.min()) <= int(rows.max()) < len(table)
    assert table.strides[1] == _WORD_BYTES
    assert warps <= lane
    assert lane + _LANES * warps <= table.shape[1]
    rows = np.ascontiguousarray(rows, np.int64)
    functions().raise_whole(table.ctypes.data, table.strides[0], rows.ctypes.data, len(rows), lane, warps)
