"""Asynchronous copies (`cp.async`) of many lanes in one call: what happens to bytes at their issue, and when they land.

    poison(data, valid, index, count, width)
    land(data, valid, index, source, source_valid, source_index, count, width, size) -> 0

Copy i goes to `width` bytes from byte `index[i]` on of `data`, int64 [count], and takes `size` of them from byte
`source_index[i]` on of `source`; the rest is zero. Both sizes are multiples of four. `valid` says which bytes are
initialised, `source_valid` likewise, or is 0 where nobody asks. If the result of `land` is 1, something is wrong, which
Python finds by doing it all again: a byte of a source that nobody wrote, or two copies to one place that differ.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from llvmlite import ir

from refmoe.native.compiler import Native
from refmoe.native.expressions import I32, I64, POINTER, Code, Value
from refmoe.ptx.state.pages import POISON

_WORD = 4
_WORD_SHIFT = 2
_FIELD_BYTES = 8


class CopyFunctions:
    """The functions of the module, called with addresses."""

    def __init__(self) -> None:
        self._native = Native.of(_text, "copies", level=2, briefly=True)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.poison = ctypes.CFUNCTYPE(None, *[pointer] * 3, *[number] * 2)(self._native.address("poison"))
        land = ctypes.CFUNCTYPE(ctypes.c_int32, *[pointer] * 6, *[number] * 3)
        self.land = land(self._native.address("land"))


@cache
def functions() -> CopyFunctions:
    """The one instance, made when first asked for."""
    return CopyFunctions()


def _text() -> str:
    module = ir.Module()
    _poison(module)
    _land(module)
    return str(module)


def _begin(code: Code, base: Value, index: Value, number: Value) -> Value:
    """The address of the first byte of a copy."""
    return base + code.load(I64, index + number * _FIELD_BYTES, align=8)


def _poison(module: Any) -> None:
    code = Code(module, "poison", [POINTER, POINTER, POINTER, I64, I64])
    data, valid, index, count, width = code.arguments
    poisoned = code.constant(I32, int.from_bytes(bytes([POISON]) * _WORD, "little"))
    with code.range(count) as number:
        place, written = (_begin(code, base, index, number) for base in (data, valid))
        with code.range(width >> _WORD_SHIFT) as word:
            code.store(poisoned, place + word * _WORD)
            code.store(code.constant(I32, 0), written + word * _WORD)
    code.done()


def _land(module: Any) -> None:
    code = Code(module, "land", [*[POINTER] * 6, *[I64] * 3], result=I32)
    data, valid, index, source, source_valid, source_index, count, width, size = code.arguments
    wrong = code.constant(I32, 1)
    words, taken = width >> _WORD_SHIFT, size >> _WORD_SHIFT
    asked = Value(code, code.build.ptrtoint(source_valid.held, I64)).differs(0)
    with code.range(count) as number:
        place, written = (_begin(code, base, index, number) for base in (data, valid))
        origin, known = (_begin(code, base, source_index, number) for base in (source, source_valid))
        with code.range(taken) as word:
            with code.when(asked):
                whole = code.load(I32, known + word * _WORD).equals(-1)
                code.done_if(whole ^ True, wrong)
            code.store(code.load(I32, origin + word * _WORD), place + word * _WORD)
        with code.range(words - taken) as word:
            code.store(code.constant(I32, 0), place + (taken + word) * _WORD)
        with code.range(words) as word:
            code.store(code.constant(I32, -1), written + word * _WORD)
    with code.range(count) as number:
        place, origin = _begin(code, data, index, number), _begin(code, source, source_index, number)
        with code.range(taken) as word:
            same = code.load(I32, place + word * _WORD).equals(code.load(I32, origin + word * _WORD))
            code.done_if(same ^ True, wrong)
        with code.range(words - taken) as word:
            code.done_if(code.load(I32, place + (taken + word) * _WORD).differs(0), wrong)
    code.done(code.constant(I32, 0))
