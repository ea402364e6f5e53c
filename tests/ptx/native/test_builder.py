"""The builder that writes LLVM's text: what its instructions compute, and which it leaves out."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from llvmlite import ir
from support.ptx_kernel import run

from refmoe.native.addresses import address
from refmoe.native.builder import TextBuilder
from refmoe.native.compiler import Native, compiled

I1, I32, I64, F32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
NUMBERS = (0, 1, 2, 7, 31, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
Function = Callable[..., int]


def function(write: Callable[..., object], arguments: int = 2, level: int = 0) -> tuple[Function, str, Native]:
    """(a function of uint32 arguments that gives uint32, its text, what it lives as long as)."""
    module = ir.Module()
    made = ir.Function(module, ir.FunctionType(I32, [I32] * arguments), "f")
    build = TextBuilder(made)
    result = write(build, *made.args)
    if not build.block.is_terminated:
        build.ret(result)
    text = str(module)
    native = Native(compiled(text, level, briefly=True))
    return ctypes.CFUNCTYPE(ctypes.c_uint32, *[ctypes.c_uint32] * arguments)(native.address("f")), text, native


def signed(value: int) -> int:
    return value - (value >> 31 << 32)


ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and_": lambda a, b: a & b,
    "or_": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "udiv": lambda a, b: a // b,
    "urem": lambda a, b: a % b,
    "shl": lambda a, b: a << b % 32,
    "lshr": lambda a, b: a >> b % 32,
    "ashr": lambda a, b: signed(a) >> b % 32,
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str) -> None:
    shifts, divides = name in ("shl", "lshr", "ashr"), name in ("udiv", "urem")

    def write(build: TextBuilder, a: object, b: object) -> object:
        return getattr(build, name)(a, build.and_(b, ir.Constant(I32, 31)) if shifts else b)

    f, *_kept = function(write)
    for a, b in itertools.product(NUMBERS, NUMBERS):
        if not (divides and b == 0):
            assert f(a, b) == ARITHMETIC[name](a, b) % 2**32, (a, b)


RELATIONS: dict[str, Callable[[int, int], bool]] = {
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}


@pytest.mark.parametrize("relation", RELATIONS)
def test_comparisons_and_selections(relation: str) -> None:
    def write(build: TextBuilder, a: object, b: object) -> object:
        one, two = build.icmp_signed(relation, a, b), build.icmp_unsigned(relation, a, b)
        low = build.select(one, ir.Constant(I32, 1), ir.Constant(I32, 0))
        return build.or_(low, build.shl(build.zext(two, I32), ir.Constant(I32, 1)))

    f, *_kept = function(write)
    for a, b in itertools.product(NUMBERS, NUMBERS):
        expected = RELATIONS[relation](signed(a), signed(b)) | RELATIONS[relation](a, b) << 1
        assert f(a, b) == expected, (a, b)


def test_a_loop_with_a_value_that_comes_from_two_blocks() -> None:
    def write(build: TextBuilder, count: object, step: object) -> object:
        before, loop, after = build.block, build.append_basic_block(), build.append_basic_block()
        build.branch(loop)
        build.position_at_end(loop)
        number, total = build.phi(I32), build.phi(I32)
        following, sum_ = build.add(number, ir.Constant(I32, 1)), build.add(total, step)
        for phi, value in ((number, following), (total, sum_)):
            phi.add_incoming(ir.Constant(I32, 0), before)
            phi.add_incoming(value, loop)
        build.cbranch(build.icmp_unsigned("<", following, count), loop, after)
        build.position_at_end(after)
        return sum_

    for level in (0, 2):
        f, *_kept = function(write, level=level)
        assert [f(count, 5) for count in (1, 2, 100)] == [5, 10, 500]


@pytest.mark.parametrize("likely", [None, True, False])
def test_conditions(likely: bool | None) -> None:
    def write(build: TextBuilder, a: object, b: object) -> object:
        room = build.alloca(I32)
        build.store(ir.Constant(I32, 7), room)
        with build.if_then(build.icmp_unsigned("==", a, ir.Constant(I32, 0)), likely=likely):
            build.ret(ir.Constant(I32, 99))
        with build.if_else(build.icmp_unsigned("<", a, b), likely=likely) as (then, other):
            with then:
                build.store(b, room)
            with other:
                build.store(a, room)
        return build.load(room, typ=I32)

    f, *_kept = function(write, level=2)
    assert [f(0, 3), f(2, 3), f(4, 3)] == [99, 3, 4]


def test_a_load_sees_the_store_before_it() -> None:
    def write(build: TextBuilder, a: object, b: object) -> object:
        room = build.alloca(I32)
        build.store(a, room)
        first = build.load(room, typ=I32)
        build.store(b, room)
        return build.sub(first, build.load(room, typ=I32))

    f, *_kept = function(write)
    assert f(10, 3) == 7


def test_what_a_block_computes_twice_is_one_line() -> None:
    def write(build: TextBuilder, a: object, b: object) -> object:
        assert build.add(a, b) is build.add(a, b)
        assert build.add(a, b) is not build.add(b, a)
        return build.mul(build.add(a, b), build.add(a, b))

    f, text, _kept = function(write)
    assert text.count(" add ") == 2
    assert f(3, 4) == 49


def test_what_only_another_block_computes_is_computed_again() -> None:
    def write(build: TextBuilder, a: object, b: object) -> object:
        with build.if_then(build.icmp_unsigned("==", a, ir.Constant(I32, 0))):
            build.ret(build.add(a, b))
        return build.mul(build.add(a, b), ir.Constant(I32, 2))

    f, text, _kept = function(write)
    assert text.count(" add ") == 2
    assert [f(0, 5), f(1, 5)] == [5, 12]


def test_bits_there_and_back_are_no_instruction() -> None:
    halves = ir.VectorType(ir.IntType(16), 2)

    def write(build: TextBuilder, a: object, b: object) -> object:
        number = build.bitcast(a, F32)
        assert build.bitcast(number, I32) is a
        assert build.bitcast(a, I32) is a
        assert build.bitcast(number, halves).type == halves
        return build.bitcast(build.fadd(number, build.bitcast(b, F32)), I32)

    f, text, _kept = function(write)
    assert text.count("bitcast") == 4
    assert f(0x3F800000, 0x40000000) == 0x40400000


def test_vectors_structures_and_bits() -> None:
    four = ir.VectorType(I32, 4)

    def write(build: TextBuilder, a: object, b: object) -> object:
        vector = build.insert_element(ir.Constant(four, [1, 2, 3, 4]), a, ir.Constant(I32, 2))
        turned = build.shuffle_vector(build.not_(vector), vector, ir.Constant(four, [2, 7, 0, 1]))
        pair = build.insert_value(ir.Constant(ir.LiteralStructType([I32, I32]), ir.Undefined), b, 1)
        last = build.extract_element(turned, ir.Constant(I32, 1))
        ones = build.ctpop(build.extract_element(turned, ir.Constant(I32, 0)))
        zeros = build.cttz(build.extract_value(pair, 1), ir.Constant(I1, 0))
        return build.add(build.add(last, ones), build.shl(build.neg(zeros), ir.Constant(I32, 8)))

    f, *_kept = function(write)
    assert f(0xF, 8) == (4 + 28 - (3 << 8)) % 2**32


def test_operands_that_do_not_fit_are_refused() -> None:
    made = ir.Function(ir.Module(), ir.FunctionType(I32, [I32, I64]), "f")
    build = TextBuilder(made)
    with pytest.raises(ValueError, match="operands of types i32 and i64"):
        build.add(*made.args)
    with pytest.raises(ValueError, match="arguments of types i32"):
        build.call(made, [made.args[0]])
    build.ret(made.args[0])
    with pytest.raises(ValueError, match="block entry has ended"):
        build.ret(made.args[0])


@pytest.mark.parametrize("looks", [True, False])
def test_compiling_an_entry_leaves_the_search_for_garbage_as_it_was(looks: bool) -> None:
    looked = gc.isenabled()
    (gc.enable if looks else gc.disable)()
    try:
        run("ret;", np.zeros(1, np.uint32))
        assert gc.isenabled() is looks
    finally:
        (gc.enable if looked else gc.disable)()


def test_arrays_lie_where_numpy_says() -> None:
    held = np.arange(48).reshape(6, 8)
    for each in (held, held[2:], held[::-1], held[:, 3], held.view(np.uint8)[1], np.zeros(0), held.reshape(-1)[7:]):
        assert address(each) == each.ctypes.data
