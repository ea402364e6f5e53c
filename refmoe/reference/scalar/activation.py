"""SwiGLU of one pair of FP32 bits, in exact rationals: the specification of `refmoe.reference.activation`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from refmoe.formats import FP32
from refmoe.reference.scalar.arithmetic import NAN, add, divide, multiply, negate
from refmoe.reference.scalar.exponential import exponential
from refmoe.reference.scalar.numbers import Number, NumberKind, decode

_ONE = 0x3F800000

_Place = tuple[Fraction, bool]


def swiglu(
    gate_up: Sequence[int], variant: str, bias: Sequence[int] | None, alpha: int, beta: int, limit: int
) -> list[int]:
    """One row of 2 I values: I results."""
    row = list(gate_up) if bias is None else [add(x, b) for x, b in zip(gate_up, bias, strict=True)]
    if variant == "silu":
        half = len(row) // 2
        return [silu(row[i], row[half + i]) for i in range(half)]
    return [gpt_oss(row[2 * i], row[2 * i + 1], alpha, beta, limit) for i in range(len(row) // 2)]


def gpt_oss(gate: int, up: int, alpha: int, beta: int, limit: int) -> int:
    """min(gate, limit) * sigmoid(alpha * that) * (clamp(up) + beta)."""
    gate = _nearer(gate, limit, lambda x, bound: x > bound)
    up = _nearer(up, limit, lambda x, bound: x > bound)
    up = _nearer(up, negate(limit), lambda x, bound: x < bound)
    sigmoid = divide(_ONE, add(_ONE, exponential(multiply(gate, negate(alpha)))))
    return multiply(multiply(gate, sigmoid), add(up, beta))


def silu(gate: int, up: int) -> int:
    """gate * sigmoid(gate) * up."""
    sigmoid = divide(_ONE, add(_ONE, exponential(negate(gate))))
    return multiply(multiply(gate, sigmoid), up)


def _nearer(x: int, bound: int, beyond: Callable[[_Place, _Place], bool]) -> int:
    """`bound` if x is beyond it, else x; a NaN stays one."""
    if decode(x, FP32).kind is NumberKind.NAN:
        return NAN[FP32]
    return bound if beyond(_place(x), _place(bound)) else x


def _place(x: int) -> _Place:
    """Where x lies on the line of numbers: by its value, and -0 before +0."""
    number = decode(x, FP32)
    return _value(number), not number.negative


def _value(number: Number) -> Fraction:
    """The value; of an infinity, something that no FP32 number reaches."""
    magnitude = Fraction(2) ** 200 if number.kind is NumberKind.INFINITE else number.magnitude
    return -magnitude if number.negative else magnitude
