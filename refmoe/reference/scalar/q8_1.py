"""Q8_1 of one block of 32 FP32 numbers given as bits, in exact rationals: the specification of `refmoe.reference.q8_1`.

Source: llama.cpp, ggml/src/ggml-cuda/quantize.cu, `quantize_q8_1` (mmvq) and `quantize_mmq_q8_1` with the layout DS4
(mmq), compiled with IEEE division and without a flush to zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from refmoe.formats import FP16, FP32
from refmoe.reference.scalar.arithmetic import NAN, add, cast, divide, multiply
from refmoe.reference.scalar.numbers import BLOCK, NumberKind, decode

_ZERO, _ONE, _LARGEST_CODE = 0x00000000, 0x3F800000, 0x42FE0000  # 0, 1, 127
_MAGNITUDE = 0x7FFFFFFF
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True)
class Block:
    """A block of Q8_1: `codes` as integers of -128..127, the scale `d` and the sum `s` as FP16 bits."""

    codes: tuple[int, ...]
    d: int
    s: int


def quantize_block(block: Sequence[int], variant: str) -> Block:
    """32 FP32 numbers, given as bits, as Q8_1; `variant` is "llama_cpp_mmvq" or "llama_cpp_mmq"."""
    assert len(block) == BLOCK
    largest = _largest_magnitude(block)
    if variant == "llama_cpp_mmvq":
        scale = divide(largest, _LARGEST_CODE)
        codes = [0 if largest == _ZERO else _low_byte(divide(x, scale)) for x in block]
        return Block(tuple(codes), cast(scale, FP16), cast(_butterfly(block), FP16))
    inverse = divide(_LARGEST_CODE, largest)
    codes = [_low_byte(multiply(x, inverse)) for x in block]
    # A thread adds its four neighbours up from the left; then the eight threads of a block exchange their sums.
    quads = [add(add(add(a, b), c), d) for a, b, c, d in zip(*(block[i::4] for i in range(4)), strict=True)]
    return Block(tuple(codes), cast(divide(_ONE, inverse), FP16), cast(_butterfly(quads), FP16))


def _largest_magnitude(block: Sequence[int]) -> int:
    """max |x| as bits; a NaN gives way to a number, and NaNs alone give the one NaN of the instructions."""
    magnitudes = [x & _MAGNITUDE for x in block if decode(x, FP32).kind is not NumberKind.NAN]
    return max(magnitudes, default=NAN[FP32])


def _butterfly(values: Sequence[int]) -> int:
    """What every lane holds after it has added the value of lane ^ n/2, then of lane ^ n/4, ... lane ^ 1."""
    lanes, distance = list(values), len(values) // 2
    while distance:
        lanes = [add(value, lanes[lane ^ distance]) for lane, value in enumerate(lanes)]
        distance //= 2
    return lanes[0]


def _low_byte(bits: int) -> int:
    """roundf, half away from zero, then to int32, which saturates and makes 0 of a NaN, then its low byte as int8."""
    number = decode(bits, FP32)
    if number.kind is NumberKind.NAN:
        return 0
    infinite = number.kind is NumberKind.INFINITE
    integer = _INT32_MAX + 1 if infinite else int(number.magnitude + Fraction(1, 2))
    integer = max(-integer, _INT32_MIN) if number.negative else min(integer, _INT32_MAX)
    return (integer + 128) % 256 - 128
