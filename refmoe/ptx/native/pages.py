"""What happens to a page once: its granules are set or split, its bytes are kept before they are written.

These are the native forms of `Granules.refine` and `Journal.keep`, for one page.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any

from llvmlite import ir

from refmoe.native.builder import TextBuilder
from refmoe.native.compiler import Native
from refmoe.ptx.native.context import Row
from refmoe.ptx.native.scalar import POINTER, WORD, at, column_bit, counted, field, word
from refmoe.ptx.state.pages import ONE_BYTE, PAGE, PAGE_SHIFT

Value = Any
_SIGNATURE = ir.FunctionType(ir.VoidType(), [POINTER, WORD])
_WORD_SHIFT = 3
# What is looked at before it is cleared. A column has whole pieces, since a region has whole words of 32 bytes, and no
# piece lies in two of the system's pages.
_PIECE_SHIFT = 8
_PIECE = 1 << _PIECE_SHIFT
_RECORDS = ir.VectorType(WORD, _PIECE >> _WORD_SHIFT)
# Bytes of elements of which native code says which are initialised, and how many it looks at together.
SIZES = (1, 2, 4, 8)
TAKEN = 64


def _function(module: Any, name: str) -> tuple[Any, Any, Value, Value]:
    """(function, builder, row, page) of an internal function that is seldom called."""
    function = ir.Function(module, _SIGNATURE, name)
    function.linkage = "internal"
    for attribute in ("noinline", "cold"):
        function.attributes.add(attribute)
    return function, TextBuilder(function), *function.args


def _word(build: Any, base: Value, index: Value) -> Value:
    """The address of a word behind a pointer."""
    return build.gep(base, [index], source_etype=WORD)


def _pointer(build: Any, row: Value, number: Row) -> Value:
    return build.inttoptr(field(build, row, number), POINTER)


def _room(build: Any, size: Value, page: Value) -> Value:
    """How many of `size` bytes lie in a page."""
    left = build.sub(size, build.shl(page, word(PAGE_SHIFT)))
    return build.select(build.icmp_unsigned("<", left, word(PAGE)), left, word(PAGE))


def refine(module: Any, width: int) -> Any:
    """`refine(row, page)`: granules of at most `width` bytes."""
    function, build, row, page = _function(module, "refine")
    own = width.bit_length()
    state = _word(build, _pointer(build, row, Row.PAGE_STATES), page)
    old = build.load(state, typ=WORD)
    with build.if_then(build.icmp_unsigned("<=", build.sub(old, word(1)), word(own - 1))):
        # The call of another lane came first.
        build.ret_void()
    with build.if_then(build.icmp_unsigned("!=", old, word(0))):
        stride = field(build, row, Row.COLUMN_BYTES)
        room = build.lshr(_room(build, build.lshr(stride, word(_WORD_SHIFT)), page), word(own - 1))
        before = build.sub(old, word(own))
        first = build.shl(page, word(PAGE_SHIFT + _WORD_SHIFT))
        begin = build.add(field(build, row, Row.WRITES), first)
        used = build.load(_word(build, _pointer(build, row, Row.PAGE_COLUMNS), page), typ=WORD)
        with counted(build, build.add(field(build, row, Row.COLUMNS), word(1))) as column:
            records = build.inttoptr(build.add(begin, build.mul(column, stride)), POINTER)
            in_use = build.and_(used, column_bit(build, column))
            with build.if_then(build.icmp_unsigned("!=", in_use, word(0))), counted(build, room) as number:
                # From the last part on: none lies in front of its granule's place.
                part = build.sub(build.sub(room, word(1)), number)
                place = _word(build, records, part)
                record = build.load(_word(build, records, build.lshr(part, before)), typ=WORD)
                # Writing what is there would make pages resident that hold no record.
                with build.if_then(build.icmp_unsigned("!=", record, build.load(place, typ=WORD))):
                    build.store(record, place)
    build.store(word(own), state)
    build.ret_void()
    return function


def keep(module: Any) -> Any:
    """`keep(row, page)`: keep the bytes of a page, unless they are kept.

    Of a page of one byte over and over, as nobody has written yet, the byte is all there is to keep.
    """
    function, build, row, page = _function(module, "keep")
    kept = _word(build, _pointer(build, row, Row.KEPT), page)
    with build.if_then(build.icmp_unsigned("!=", build.load(kept, typ=WORD), word(0))):
        build.ret_void()
    first = build.shl(page, word(PAGE_SHIFT))
    source = at(build, _pointer(build, row, Row.DATA), first)
    room = _room(build, field(build, row, Row.SIZE), page)
    copying = build.append_basic_block()
    with build.if_then(build.icmp_unsigned("==", room, word(PAGE))):
        byte = build.zext(build.load(source, typ=ir.IntType(8)), WORD)
        alike = _splat(build, build.mul(byte, word(0x0101010101010101)))
        some = _looked_for(module)
        with counted(build, word(PAGE >> _PIECE_SHIFT)) as number:
            piece = at(build, source, build.shl(number, word(_PIECE_SHIFT)))
            differs = build.call(some, [build.xor(build.load(piece, typ=_RECORDS, align=1), alike)])
            following = build.append_basic_block()
            build.cbranch(build.icmp_unsigned("!=", differs, word(0)), copying, following)
            build.position_at_end(following)
        build.store(build.add(byte, word(ONE_BYTE)), kept)
        build.ret_void()
    build.branch(copying)
    build.position_at_end(copying)
    target = at(build, _pointer(build, row, Row.BEFORE), first)
    signature = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, WORD, ir.IntType(1)])
    # The C library's, which is in every process.
    copy = ir.Function(module, signature, "llvm.memcpy.p0.p0.i64")
    build.call(copy, [target, source, room, ir.Constant(ir.IntType(1), 0)])
    build.store(word(1), kept)
    build.ret_void()
    return function


def _looked_for(module: Any) -> Any:
    """An intrinsic that is not zero where one of a piece's words is not."""
    name = f"llvm.vector.reduce.or.v{_RECORDS.count}i64"
    held = module.globals.get(name)
    return ir.Function(module, ir.FunctionType(WORD, [_RECORDS]), name) if held is None else held


def _splat(build: Any, value: Value) -> Value:
    """A word in each place of a piece."""
    undefined, number = ir.Constant(_RECORDS, ir.Undefined), ir.IntType(32)
    one = build.insert_element(undefined, value, ir.Constant(number, 0))
    return build.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(number, _RECORDS.count), None))


class PageFunctions:
    """What Python calls, with addresses.

    `forget(row, pages) -> bytes` clears all that is known of a region's pages. Nothing is written where nothing is
    known: it would become resident. Of a region of gigabytes that is most of it, and of a column in use it is what lies
    beyond the records of its warp. The result is how much of the records is resident: pages of the system's that hold
    one.

    `take[size](valid, elements, count)` says of elements of so many bytes which are initialised, as bool, and clears
    what said it of their bytes. `count` is that of groups of `TAKEN` elements.
    """

    def __init__(self) -> None:
        self._native = Native.of(_text, "pages", str(mmap.PAGESIZE), level=2, briefly=True)
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self.forget = ctypes.CFUNCTYPE(number, pointer, number)(self._native.address("forget"))
        take = ctypes.CFUNCTYPE(None, pointer, pointer, number)
        self.take = {size: take(self._native.address(f"take_{size}")) for size in SIZES}


@cache
def functions() -> PageFunctions:
    """The one instance, made when first asked for."""
    return PageFunctions()


def _text() -> str:
    module = ir.Module()
    _forget(module)
    for size in SIZES:
        _take(module, size)
    return str(module)


def _take(module: Any, size: int) -> None:
    signature = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, WORD])
    function = ir.Function(module, signature, f"take_{size}")
    build = TextBuilder(function)
    valid, elements, groups = function.args
    words = ir.VectorType(ir.IntType(8 * size), TAKEN)
    with counted(build, groups) as group:
        place = at(build, valid, build.mul(group, word(TAKEN * size)))
        held = build.load(place, typ=words, align=1)
        written = build.icmp_unsigned("==", held, ir.Constant(words, [-1] * TAKEN))
        flags = build.zext(written, ir.VectorType(ir.IntType(8), TAKEN))
        build.store(flags, at(build, elements, build.mul(group, word(TAKEN))), align=1)
        build.store(ir.Constant(words, [0] * TAKEN), place, align=1)
    build.ret_void()


def _forget(module: Any) -> None:
    function = ir.Function(module, ir.FunctionType(WORD, [POINTER, WORD]), "forget")
    row, pages = function.args
    build = TextBuilder(function)
    byte, bit = ir.IntType(8), ir.IntType(1)
    signature = ir.FunctionType(ir.VoidType(), [POINTER, byte, WORD, bit])
    fill = ir.Function(module, signature, "llvm.memset.p0.i64")
    resident, last = build.alloca(WORD), build.alloca(WORD)
    for place in (resident, last):
        build.store(word(0), place)
    some = _looked_for(module)
    stride = field(build, row, Row.COLUMN_BYTES)
    with counted(build, pages) as page:
        state = build.load(_word(build, _pointer(build, row, Row.PAGE_STATES), page), typ=WORD)
        with build.if_then(build.icmp_unsigned("!=", state, word(0))):
            used = build.load(_word(build, _pointer(build, row, Row.PAGE_COLUMNS), page), typ=WORD)
            room = _room(build, build.lshr(stride, word(_WORD_SHIFT)), page)
            size = build.shl(build.lshr(room, build.sub(state, word(1))), word(_WORD_SHIFT))
            first = build.add(field(build, row, Row.WRITES), build.shl(page, word(PAGE_SHIFT + _WORD_SHIFT)))
            pieces = build.lshr(build.add(size, word(_PIECE - 1)), word(_PIECE_SHIFT))
            with counted(build, build.add(field(build, row, Row.COLUMNS), word(1))) as column:
                in_use = build.icmp_unsigned("!=", build.and_(used, column_bit(build, column)), word(0))
                with build.if_then(in_use):
                    records = build.add(first, build.mul(column, stride))
                    with counted(build, pieces) as number:
                        begin = build.add(records, build.shl(number, word(_PIECE_SHIFT)))
                        piece = build.inttoptr(begin, POINTER)
                        held = build.call(some, [build.load(piece, typ=_RECORDS, align=1 << _WORD_SHIFT)])
                        with build.if_then(build.icmp_unsigned("!=", held, word(0))):
                            build.call(fill, [piece, ir.Constant(byte, 0), word(_PIECE), ir.Constant(bit, 0)])
                            found = build.lshr(begin, word(mmap.PAGESIZE.bit_length() - 1))
                            with build.if_then(build.icmp_unsigned("!=", found, build.load(last, typ=WORD))):
                                build.store(build.add(build.load(resident, typ=WORD), word(mmap.PAGESIZE)), resident)
                                build.store(found, last)
            columns = build.shl(field(build, row, Row.COLUMNS), word(_WORD_SHIFT))
            steps = at(build, _pointer(build, row, Row.PAGE_STEPS), build.mul(page, columns))
            build.call(fill, [steps, ir.Constant(byte, 0), columns, ir.Constant(bit, 0)])
            for each in (Row.PAGE_STATES, Row.PAGE_COLUMNS):
                build.store(word(0), _word(build, _pointer(build, row, each), page))
    build.ret(build.load(resident, typ=WORD))
