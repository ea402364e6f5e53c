"""LLVM code written as arithmetic: `Value` has Python's operators, `Code` the loads, the loops and the conditions.

Every value has a type and an operation takes two of one type; a Python number stands for a constant of the other's
type, in every lane if that is a vector. Integers wrap, `>>` shifts zeros in, and comparisons are signed. Floating-point
operations round once each, as IEEE 754 says: nothing here sets a fast-math flag.

    with code.range(count) as i:
        x = code.load(DOUBLES, pointer + i * 128)
        total.set(code.fma(x, x, total.get()))
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from refmoe.native.builder import TextBuilder

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F64, POINTER = ir.FloatType(), ir.DoubleType(), ir.PointerType()
Type = Any

# As AVX-512 encodes it: round toward zero, and raise no exception.
_TOWARD_ZERO = 3 | 8


def vector(element: Type, lanes: int) -> Type:
    """So many lanes of a type."""
    return ir.VectorType(element, lanes)


class _Splat(ir.Constant):  # type: ignore[misc]
    """One constant in every lane, written as LLVM's `splat`."""

    def __init__(self, kind: Type, element: Any) -> None:
        super().__init__(kind, None)
        self._element = element

    def get_reference(self) -> str:
        return f"splat ({self._element.type} {self._element.get_reference()})"

    def __str__(self) -> str:
        return f"{self.type} {self.get_reference()}"


def _is_vector(kind: Type) -> bool:
    return isinstance(kind, ir.VectorType)


def _element(kind: Type) -> Type:
    return kind.element if _is_vector(kind) else kind


def _is_float(kind: Type) -> bool:
    return isinstance(_element(kind), (ir.FloatType, ir.DoubleType))


def _name(kind: Type) -> str:
    """How LLVM writes a type into an intrinsic's name: `v16f64`."""
    if _is_vector(kind):
        return f"v{kind.count}{_name(kind.element)}"
    return {"float": "f32", "double": "f64"}.get(str(kind)) or str(kind)


class Value:
    """A value of LLVM: operators append instructions where its code is being written."""

    def __init__(self, code: Code, held: Any) -> None:
        self.code = code
        self.held = held

    @property
    def type(self) -> Type:
        """Of LLVM."""
        return self.held.type

    def _binary(self, other: Operand, integer: str, floating: str | None = None) -> Value:
        right = self.code.constant(self.type, other) if isinstance(other, (int, float)) else other
        if self.type == POINTER:
            return Value(self.code, self.code.build.gep(self.held, [right.held], source_etype=I8))
        name = floating if _is_float(self.type) else integer
        assert name is not None, f"no such operation on {self.type}"
        assert str(self.type) == str(right.type), f"{self.type} and {right.type}"
        return Value(self.code, getattr(self.code.build, name)(self.held, right.held))

    def __add__(self, other: Operand) -> Value:
        if self.type == POINTER and isinstance(other, int):
            other = self.code.constant(I64, other)
        return self._binary(other, "add", "fadd")

    def __sub__(self, other: Operand) -> Value:
        return self._binary(other, "sub", "fsub")

    def __mul__(self, other: Operand) -> Value:
        return self._binary(other, "mul", "fmul")

    def __and__(self, other: Operand) -> Value:
        return self._binary(other, "and_")

    def __or__(self, other: Operand) -> Value:
        return self._binary(other, "or_")

    def __xor__(self, other: Operand) -> Value:
        return self._binary(other, "xor")

    def __lshift__(self, other: Operand) -> Value:
        return self._binary(other, "shl")

    def __rshift__(self, other: Operand) -> Value:
        return self._binary(other, "lshr")

    def shifted_down(self, bits: int) -> Value:
        """Signed integers shifted right, the sign moving in."""
        return self._binary(bits, "ashr")

    def quotient(self, other: Operand) -> Value:
        """Of unsigned integers, rounded down."""
        return self._binary(other, "udiv")

    def __neg__(self) -> Value:
        return self.code.constant(self.type, 0) - self

    def _compared(self, operator: str, other: Operand) -> Value:
        right = self.code.constant(self.type, other) if isinstance(other, (int, float)) else other
        build = self.code.build
        # `unordered` is for != alone: NaN differs from everything.
        compare = build.icmp_signed
        if _is_float(self.type):
            compare = build.fcmp_unordered if operator == "!=" else build.fcmp_ordered
        return Value(self.code, compare(operator, self.held, right.held))

    def __lt__(self, other: Operand) -> Value:
        return self._compared("<", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compared(">", other)

    def equals(self, other: Operand) -> Value:
        """Lane by lane; no NaN equals anything."""
        return self._compared("==", other)

    def differs(self, other: Operand) -> Value:
        """Lane by lane; a NaN differs from everything."""
        return self._compared("!=", other)

    def as_bits(self, kind: Type) -> Value:
        """The same bits as another type."""
        return Value(self.code, self.code.build.bitcast(self.held, kind))

    def to(self, kind: Type, *, signed: bool = True) -> Value:
        """The same numbers in another type: integers cut or extended, floats rounded, widened or made of integers.

        Floats become integers toward zero, if they are in range; others become any integer.
        """
        build, here, there = self.code.build, _element(self.type), _element(kind)
        if _is_float(self.type) and _is_float(kind):
            convert = build.fptrunc if there == F32 else build.fpext
        elif _is_float(kind):
            convert = build.sitofp
        elif _is_float(self.type):
            convert = build.fptosi
        elif here.width > there.width:
            convert = build.trunc
        else:
            convert = build.sext if signed else build.zext
        return Value(self.code, convert(self.held, kind))

    def lanes(self, count: int) -> Value:
        """A scalar in every lane of a vector."""
        build, kind = self.code.build, vector(self.type, count)
        first = build.insert_element(ir.Constant(kind, ir.Undefined), self.held, ir.Constant(I32, 0))
        zeros = ir.Constant(vector(I32, count), [0] * count)
        return Value(self.code, build.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros))


Operand = Value | int | float


class Variable:
    """A value that changes; LLVM keeps it in registers."""

    def __init__(self, code: Code, start: Value) -> None:
        self._code, self._type = code, start.type
        self._place = code.build.alloca(start.type)
        self.set(start)

    def get(self) -> Value:
        """What it is now."""
        return Value(self._code, self._code.build.load(self._place, typ=self._type))

    def set(self, value: Value) -> None:
        """What it is from here on."""
        self._code.build.store(value.held, self._place)


class Code:
    """The function that is being written.

    Attributes:
        module: where it and the intrinsics that it calls are.
        build: at the place where the next instruction goes.
        arguments: of the function.
    """

    def __init__(
        self, module: Any, name: str, arguments: list[Type], *, inner: bool = False, result: Type = None
    ) -> None:
        """A function of those arguments; an `inner` one is called by others of the module alone."""
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(result or ir.VoidType(), arguments), name)
        if inner:
            self.function.linkage = "internal"
        self.build = TextBuilder(self.function)
        self.arguments = [Value(self, argument) for argument in self.function.args]

    def done(self, result: Value | None = None) -> None:
        """The end of the function, with what it returns."""
        if result is None:
            self.build.ret_void()
        else:
            self.build.ret(result.held)

    def done_if(self, condition: Value, result: Value) -> None:
        """Return here where a condition holds, which is rare."""
        with self.build.if_then(condition.held, likely=False):
            self.build.ret(result.held)

    def call(self, function: Any, *arguments: Value) -> Value:
        """Call another function of the module: what it returns."""
        return Value(self, self.build.call(function, [argument.held for argument in arguments]))

    def constant(self, kind: Type, value: int | float) -> Value:
        """A constant, in every lane of a vector."""
        element = _element(kind)
        if _is_float(kind):
            # The bits: a decimal could be read as another number.
            held = ir.Constant(element, float(value))
        else:
            held = ir.Constant(element, int(value) & ((1 << element.width) - 1))
        return Value(self, _Splat(kind, held) if _is_vector(kind) else held)

    def load(self, kind: Type, pointer: Value, *, align: int = 1) -> Value:
        """What lies at an address."""
        return Value(self, self.build.load(pointer.held, typ=kind, align=align))

    def store(self, value: Value, pointer: Value, *, align: int = 1) -> None:
        """Put a value at an address."""
        self.build.store(value.held, pointer.held, align=align)

    def prefetch(self, pointer: Value) -> None:
        """Begin to load the cache line at an address, which need not be one that may be read."""
        name = "llvm.prefetch.p0"
        function = self.module.globals.get(name)
        if function is None:
            kinds = [POINTER, I32, I32, I32]
            function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), kinds), name)
        # To read data, into the caches from the second level on.
        hints = [ir.Constant(I32, hint) for hint in (0, 2, 1)]
        self.build.call(function, [pointer.held, *hints])

    def space(self, size: int) -> Value:
        """So many bytes of the function's own, 64-byte aligned."""
        place = self.build.alloca(ir.ArrayType(I8, size))
        place.align = 64
        return Value(self, place)

    def intrinsic(self, name: str, *operands: Value, result: Type = None) -> Value:
        """A call of `llvm.<name>` for the type of the first operand."""
        kind = operands[0].type
        mangled = f"llvm.{name}.{_name(kind)}"
        function = self.module.globals.get(mangled)
        if function is None:
            signature = ir.FunctionType(result or kind, [operand.type for operand in operands])
            function = ir.Function(self.module, signature, mangled)
        return Value(self, self.build.call(function, [operand.held for operand in operands]))

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """X * y + z, rounded once."""
        return self.intrinsic("fma", x, y, z)

    def fma_toward_zero(self, x: Value, y: Value, z: Value) -> Value:
        """X * y + z of eight float64, rounded once, toward zero, by a host with AVX-512."""
        kind = vector(F64, 8)
        assert str(x.type) == str(kind), f"{x.type}"
        name = "llvm.x86.avx512.vfmadd.pd.512"
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(kind, [kind, kind, kind, I32]), name)
        mode = ir.Constant(I32, _TOWARD_ZERO)
        return Value(self, self.build.call(function, [x.held, y.held, z.held, mode]))

    def look_up(self, table: list[float], index: Value) -> Value:
        """Sixteen float32, by the low 4 bits of sixteen integers of 32 bits, on a host with AVX-512."""
        assert len(table) == index.type.count == 16, f"{len(table)} and {index.type}"
        kind = vector(F32, 16)
        name = "llvm.x86.avx512.permvar.sf.512"
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(kind, [kind, vector(I32, 16)]), name)
        held = ir.Constant(kind, [ir.Constant(F32, value) for value in table])
        return Value(self, self.build.call(function, [held, index.held]))

    def max(self, x: Value, y: Operand) -> Value:
        """Of signed integers."""
        return self.intrinsic("smax", x, self.constant(x.type, y) if isinstance(y, (int, float)) else y)

    def min(self, x: Value, y: Operand) -> Value:
        """Of signed integers."""
        return self.intrinsic("smin", x, self.constant(x.type, y) if isinstance(y, (int, float)) else y)

    def select(self, condition: Value, chosen: Operand, other: Operand, kind: Type = None) -> Value:
        """Lane by lane; `kind` is needed where both are numbers."""
        for operand in (chosen, other):
            if isinstance(operand, Value):
                kind = operand.type
        x, y = (each if isinstance(each, Value) else self.constant(kind, each) for each in (chosen, other))
        return Value(self, self.build.select(condition.held, x.held, y.held))

    def any(self, condition: Value) -> Value:
        """Whether a condition holds in some lane."""
        count = condition.type.count
        return condition.as_bits(ir.IntType(count)).differs(0)

    def shuffle(self, x: Value, y: Value, lanes: list[int]) -> Value:
        """Lanes of x, then of y, by number."""
        mask = ir.Constant(vector(I32, len(lanes)), lanes)
        return Value(self, self.build.shuffle_vector(x.held, y.held, mask))

    def variable(self, kind: Type, start: Value | int | float) -> Variable:
        """A variable with its first value."""
        return Variable(self, start if isinstance(start, Value) else self.constant(kind, start))

    @contextmanager
    def range(self, count: Value | int) -> Iterator[Value]:
        """A loop over 0 .. count - 1, of 64 bits."""
        limit = self.constant(I64, count) if isinstance(count, int) else count
        number = self.variable(I64, 0)
        test, body, after = (self.build.append_basic_block(name) for name in ("test", "body", "after"))
        self.build.branch(test)
        self.build.position_at_end(test)
        at = number.get()
        self.build.cbranch((at < limit).held, body, after)
        self.build.position_at_end(body)
        yield at
        number.set(at + 1)
        self.build.branch(test)
        self.build.position_at_end(after)

    @contextmanager
    def loop(self) -> Iterator[Loop]:
        """What is done again and again, until `leave_if`."""
        body, after = self.build.append_basic_block("again"), self.build.append_basic_block("after")
        self.build.branch(body)
        self.build.position_at_end(body)
        yield Loop(self, body, after)
        self.build.branch(body)
        self.build.position_at_end(after)

    @contextmanager
    def each_bit(self, bits: Value) -> Iterator[Value]:
        """A loop over the places of the bits that are set, the lowest first."""
        left = self.variable(bits.type, bits)
        test, body, after = (self.build.append_basic_block(name) for name in ("test", "body", "after"))
        self.build.branch(test)
        self.build.position_at_end(test)
        now = left.get()
        self.build.cbranch(now.differs(0).held, body, after)
        self.build.position_at_end(body)
        yield Value(self, self.build.cttz(now.held, ir.Constant(I1, 1)))
        left.set(now & (now - 1))
        self.build.branch(test)
        self.build.position_at_end(after)

    @contextmanager
    def when(self, condition: Value, *, likely: bool | None = None) -> Iterator[None]:
        """What is done where a condition, a single bit, holds."""
        with self.build.if_then(condition.held, likely=likely):
            yield


class Loop:
    """A loop that is being written."""

    def __init__(self, code: Code, body: Any, after: Any) -> None:
        self._code, self._body, self._after = code, body, after

    def leave_if(self, condition: Value) -> None:
        """Go on behind the loop where a condition holds."""
        self._jump_if(condition, self._after)

    def again_if(self, condition: Value) -> None:
        """Begin the loop's next turn where a condition holds."""
        self._jump_if(condition, self._body)

    def _jump_if(self, condition: Value, target: Any) -> None:
        build = self._code.build
        following = build.append_basic_block()
        build.cbranch(condition.held, target, following)
        build.position_at_end(following)


def double_bits(value: float) -> int:
    """The bits of a float64."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
