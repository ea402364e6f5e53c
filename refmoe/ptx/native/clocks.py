"""Rows of clocks that come to know what other rows do, many in one call.

    raise_rows(target, target_bytes, keys, source, source_bytes, rows, count, width)

Row `keys[i]` of `target` becomes the maximum of itself and of row `rows[i]` of `source`, one i after another, int64
[count] both. `target_bytes` and `source_bytes` are the distances of neighbouring rows, which have `width` words.

Words are steps, and none is negative. Most are zero: what rows know lies together, such as the lanes of a warp, and
parts of rows that are zero raise nothing. Where a part of the source is zero, the target is not touched.
"""

from __future__ import annotations

import ctypes
from functools import cache, reduce
from operator import or_
from typing import Any

import numpy as np
from llvmlite import ir

from refmoe.native.compiler import Native
from refmoe.native.expressions import I64, POINTER, Code, vector

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


@cache
def _function() -> tuple[Native, Any]:
    """The module, which has to live on, and its function."""
    native = Native.of(_text, "clocks", level=2, briefly=True)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    call = ctypes.CFUNCTYPE(None, pointer, number, pointer, pointer, number, pointer, number, number)
    return native, call(native.address("raise_rows"))


def _text() -> str:
    module = ir.Module()
    code = Code(module, "raise_rows", [POINTER, I64, POINTER, POINTER, I64, POINTER, I64, I64])
    target, target_bytes, keys, source, source_bytes, rows, count, width = code.arguments
    whole = width >> _TOGETHER_SHIFT
    with code.range(count) as number:
        mine = target + code.load(I64, keys + number * _WORD_BYTES, align=8) * target_bytes
        theirs = source + code.load(I64, rows + number * _WORD_BYTES, align=8) * source_bytes
        with code.range(whole >> _PART_SHIFT) as part:
            begin = part * (_PART * _VECTOR_BYTES)
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
    return str(module)


def raise_rows(table: Array, keys: Array, source: Array, rows: Array | None = None) -> None:
    """`np.maximum.at(table, keys, source[rows])`, without copies of the rows.

    Args:
        table: int64 [n, width], not negative, raised in place. The words of a row are neighbours, the rows need not be.
        keys: int64 [m], rows of the table; each may come several times.
        source: int64 [k, width], likewise; a row that is raised has no word in common with one that is brought to it,
            unless both are the same.
        rows: int64 [m], rows of the source; None for one after another.
    """
    if not keys.size:
        return
    rows = np.arange(len(keys)) if rows is None else rows
    width = table.shape[1]
    assert source.shape[1] == width
    assert len(rows) == len(keys)
    assert width == 1 or table.strides[1] == source.strides[1] == _WORD_BYTES
    # Native code does not ask where it reads and writes.
    for numbers, held in ((keys, table), (rows, source)):
        assert 0 <= int(numbers.min()) <= int(numbers.max()) < len(held)
    keys, rows = np.ascontiguousarray(keys, np.int64), np.ascontiguousarray(rows, np.int64)
    _, function = _function()
    function(
        table.ctypes.data, table.strides[0], keys.ctypes.data, source.ctypes.data, source.strides[0], rows.ctypes.data,
        len(keys), width,
    )  # fmt: skip
