"""Integers in the lanes of a warp, with Python's operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from refmoe.ptx.ops.lanes import LaneBuilder, Value


@dataclass(frozen=True)
class Word:
    """One integer in each lane; a condition is a word of one bit.

    Operands are words of the same width, or Python integers that every lane gets. Arithmetic wraps. `>>`, `<` and their
    like take the bits as unsigned, the methods whose names begin with `signed` as two's complement. A shift must be by
    less than the width.
    """

    lanes: LaneBuilder
    value: Value

    @property
    def bits(self) -> int:
        """The width."""
        return int(self.value.type.element.width)

    def of(self, value: Value) -> Word:
        """Another value of the same lanes."""
        return Word(self.lanes, value)

    def _value(self, operand: Word | int) -> Value:
        return self.lanes.constant(operand, self.bits) if isinstance(operand, int) else operand.value

    def _apply(self, instruction: Callable[..., Value], operand: Word | int) -> Word:
        return self.of(instruction(self.value, self._value(operand)))

    def __add__(self, operand: Word | int) -> Word:
        return self._apply(self.lanes.build.add, operand)

    def __sub__(self, operand: Word | int) -> Word:
        return self._apply(self.lanes.build.sub, operand)

    def __and__(self, operand: Word | int) -> Word:
        return self._apply(self.lanes.build.and_, operand)

    def __or__(self, operand: Word | int) -> Word:
        return self._apply(self.lanes.build.or_, operand)

    def __xor__(self, operand: Word | int) -> Word:
        return self._apply(self.lanes.build.xor, operand)

    def __lshift__(self, operand: Word | int) -> Word:
        return self._apply(self.lanes.build.shl, operand)

    def __rshift__(self, operand: Word | int) -> Word:
        return self._apply(self.lanes.build.lshr, operand)

    def __neg__(self) -> Word:
        return self.of(self.lanes.build.neg(self.value))

    def __invert__(self) -> Word:
        return self ^ -1

    def _compare(self, relation: str, operand: Word | int) -> Word:
        return self.of(self.lanes.build.icmp_unsigned(relation, self.value, self._value(operand)))

    def __lt__(self, operand: Word | int) -> Word:
        return self._compare("<", operand)

    def __le__(self, operand: Word | int) -> Word:
        return self._compare("<=", operand)

    def __gt__(self, operand: Word | int) -> Word:
        return self._compare(">", operand)

    def __ge__(self, operand: Word | int) -> Word:
        return self._compare(">=", operand)

    def equals(self, operand: Word | int) -> Word:
        """Where both are the same."""
        return self._compare("==", operand)

    def _intrinsic(self, name: str, operand: Word | int) -> Word:
        return self.of(self.lanes.intrinsic(name, self.value, self._value(operand)))

    def at_most(self, operand: Word | int) -> Word:
        """The smaller one."""
        return self._intrinsic("umin", operand)

    def signed_at_most(self, operand: Word | int) -> Word:
        """The smaller one of signed integers."""
        return self._intrinsic("smin", operand)

    def signed_at_least(self, operand: Word | int) -> Word:
        """The larger one of signed integers."""
        return self._intrinsic("smax", operand)

    def signed_above(self, operand: Word | int) -> Word:
        """Where this one of two signed integers is the larger."""
        return self.of(self.lanes.build.icmp_signed(">", self.value, self._value(operand)))

    def less(self, operand: Word | int) -> Word:
        """The difference, or 0 where it would be negative."""
        return self._intrinsic("usub.sat", operand)

    def choose(self, yes: Word | int, no: Word | int) -> Word:
        """`yes` where this condition holds, else `no`; one of them is a word."""
        shape = yes if isinstance(yes, Word) else no
        assert isinstance(shape, Word)
        return self.of(self.lanes.build.select(self.value, shape._value(yes), shape._value(no)))

    def resized(self, bits: int, signed: bool = False) -> Word:
        """In fewer bits (the low ones) or in more, extended by zeros or by the sign."""
        return self.of(self.lanes.resize(self.value, bits, signed))

    def as_float(self) -> Value:
        """The floats whose bit patterns these are: 16, 32 or 64 bits."""
        return self.lanes.float_of(self.value)

    def from_float(self, value: Value) -> Word:
        """The bit patterns of floats, in the same lanes."""
        return self.of(self.lanes.bits_of(value))


def every(lanes: LaneBuilder, value: int, bits: int) -> Word:
    """One integer in every lane."""
    return Word(lanes, lanes.constant(value, bits))
