"""LLVM values over the 32 lanes of a warp.

A register of kind `b32` is a vector of 32 integers of 32 bits, a predicate a vector of 32 single bits. Floating-point
values are bit patterns in integer vectors; `float_of` and `bits_of` change the view for one operation. Nothing here
sets a fast-math flag: each operation rounds once, as IEEE 754 says. Lanes that are switched off compute too, on
operands that may be anything, so an operation that LLVM leaves undefined for some operand (a shift past the width, a
division by zero) must replace that operand in every lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from llvmlite import ir

LANES = 32
# Bits of each register kind; a predicate is one.
BITS = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "b64": 64, "b128": 128}

Value = Any
_FLOATS: dict[int, Any] = {16: ir.HalfType(), 32: ir.FloatType(), 64: ir.DoubleType()}
_FLOAT_VECTORS = {bits: ir.VectorType(kind, LANES) for bits, kind in _FLOATS.items()}
_WIDTHS = {str(kind): bits for bits, kind in _FLOATS.items()}


class _Splat(ir.Constant):  # type: ignore[misc]
    """One integer in every lane, written as LLVM's `splat`: 32 times shorter to print and to parse."""

    def __init__(self, element: Any, value: int) -> None:
        super().__init__(ir.VectorType(element, LANES), None)
        self._element, self.integer = element, value

    def get_reference(self) -> str:
        return f"splat ({self._element} {self.integer})"

    def __str__(self) -> str:
        return f"{self.type} {self.get_reference()}"


@cache
def vector(bits: int) -> Any:
    """The type of a register of so many bits; one object, whose text is made once."""
    return ir.VectorType(ir.IntType(bits), LANES)


@lru_cache(maxsize=4096)
def _splat(value: int, bits: int) -> _Splat:
    # A constant belongs to no module; most of those in a form are in its neighbours too.
    return _Splat(ir.IntType(bits), value)


class LaneBuilder:
    """What builds the code of some instructions, one after another.

    Attributes:
        build: the IR builder, at the place where the next instruction goes.
        module: where intrinsics are declared.
        mask: bits of the lanes that act, a vector of 32 single bits.
    """

    def __init__(self, module: Any, build: Any, mask: Value) -> None:
        self.module = module
        self.build = build
        self.mask = mask

    def constant(self, value: int, bits: int) -> Value:
        """One integer in every lane; only its low `bits` bits count."""
        return _splat(value & ((1 << bits) - 1), bits)

    def known(self, value: Value) -> int | None:
        """The integer of which `constant` made `value`; None for any other value."""
        return value.integer if isinstance(value, _Splat) else None

    def intrinsic(self, name: str, *operands: Value, result: Any = None) -> Value:
        """A call of `llvm.<name>.<type of the first operand>`; its type is that of the first operand unless given.

        `intrinsic("fma", x, y, z)` on vectors of 32 floats calls `llvm.fma.v32f32`.
        """
        result = operands[0].type if result is None else result
        mangled = f"llvm.{name}.{_mangled(operands[0].type)}"
        function = self.module.globals.get(mangled)
        if function is None:
            kinds = [operand.type for operand in operands]
            function = ir.Function(self.module, ir.FunctionType(result, kinds), mangled)
        return self.build.call(function, operands)

    def saturating(self, name: str, value: Value, bits: int) -> Value:
        """`llvm.fptosi.sat` or `llvm.fptoui.sat` of floats to integers of `bits`: never poison; NaN gives 0."""
        result = vector(bits)
        mangled = f"llvm.{name}.sat.{_mangled(result)}.{_mangled(value.type)}"
        function = self.module.globals.get(mangled)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(result, [value.type]), mangled)
        return self.build.call(function, [value])

    def float_of(self, value: Value) -> Value:
        """Bit patterns of 16, 32 or 64 bits as floats of that width."""
        bits = value.type.element.width
        return self.build.bitcast(value, _FLOAT_VECTORS[bits])

    def bits_of(self, value: Value) -> Value:
        """Floats as bit patterns."""
        return self.build.bitcast(value, vector(_WIDTHS[str(value.type.element)]))

    def resize(self, value: Value, bits: int, signed: bool = False) -> Value:
        """Integers in fewer bits (the low ones) or in more, extended by zeros or by the sign."""
        have = value.type.element.width
        if have == bits:
            return value
        if (known := self.known(value)) is not None:
            return self.constant(known - (known >> (have - 1) << have) if signed else known, bits)
        if have > bits:
            return self.build.trunc(value, vector(bits))
        return (self.build.sext if signed else self.build.zext)(value, vector(bits))

    def inverted(self, value: Value) -> Value:
        """Every bit of an integer or a predicate the other way."""
        return self.build.xor(value, self.constant(-1, value.type.element.width))

    def halves(self, value: Value) -> tuple[Value, Value]:
        """The low and the high half of each register."""
        bits = value.type.element.width
        half = bits // 2
        return self.resize(value, half), self.resize(self.build.lshr(value, self.constant(half, bits)), half)

    def joined(self, low: Value, high: Value) -> Value:
        """Registers of two halves."""
        half = low.type.element.width
        high = self.build.shl(self.resize(high, 2 * half), self.constant(half, 2 * half))
        return self.build.or_(self.resize(low, 2 * half), high)


# From the values of the sources to those of the destinations, each of the kind that the specification names.
Lowering = Callable[[LaneBuilder, Sequence[Value]], Sequence[Value]]
# From the values of the sources to one value.
Emit = Callable[..., Value]


def giving(emit: Emit) -> Lowering:
    """The lowering whose one destination gets `emit(lanes, *sources)`."""
    return lambda lanes, sources: [emit(lanes, *sources)]


def _mangled(kind: Any) -> str:
    """How LLVM writes a type into an intrinsic's name: `v32f32`."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_mangled(kind.element)}"
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return {"half": "f16", "float": "f32", "double": "f64"}[str(kind)]
