"""Block FP8 of one tile, one FP32 operation at a time, by the words of its definition.

DeepGEMM states it in Python (`deep_gemm/utils/math.py`: `per_token_cast_to_fp8`, `per_block_cast_to_fp8`,
`ceil_to_ue8m0`): amax.clamp(1e-4) / 448, then x * (1 / sf), cast to E4M3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from refmoe.errors import ArgumentError
from refmoe.formats import E4M3, FP32
from refmoe.reference.scalar.arithmetic import NAN, divide, floor_log2, multiply, rounded
from refmoe.reference.scalar.numbers import Number, NumberKind, decode, encode

COLUMNS = 128
"""Elements of a row that share a scale; a tile of weights has as many rows."""

_NAN_CODE = 0x7F
_ONE = FP32.encode(Fraction(1))
_LARGEST = FP32.encode(Fraction(448))


@dataclass(frozen=True)
class QuantizedTile:
    """The FP32 bits of one tile's scale, and the codes of its elements in order."""

    scale: int
    codes: tuple[int, ...]


def quantize_tile(elements: Sequence[int], policy: str = "deepgemm", scales: str = "fp32") -> QuantizedTile:
    """Quantize the elements of one tile, given as FP32 bits.

    Args:
        elements: as many as the tile has: at the edge of a matrix fewer than 128.
        policy: "deepgemm" or "exact".
        scales: "fp32" or "ue8m0".

    Raises:
        ArgumentError: an unknown word.
    """
    if policy not in ("deepgemm", "exact") or scales not in ("fp32", "ue8m0"):
        raise ArgumentError("policy", f"{policy} with {scales}", "deepgemm or exact, with fp32 or ue8m0")
    numbers = [decode(bits, FP32) for bits in elements]
    if policy == "exact" and any(number.kind is not NumberKind.FINITE for number in numbers):
        return QuantizedTile(NAN[FP32], (_NAN_CODE,) * len(numbers))
    scale = divide(rounded(_largest(numbers, policy)), _LARGEST)
    if policy == "exact":
        # The least normal number: the scale and its reciprocal then keep all their bits.
        scale = rounded(_larger(decode(scale, FP32), FP32.min_normal))
    if scales == "ue8m0":
        scale = _power_of_two_above(decode(scale, FP32))
    inverse = divide(_ONE, scale)
    return QuantizedTile(scale, tuple(_code(decode(multiply(bits, inverse), FP32)) for bits in elements))


def dequantize(code: int, scale: int) -> int:
    """FP32 bits of an element: its code's value times its tile's scale, both given as bits; 0x7FC00000 for a NaN."""
    element = decode(code, E4M3)
    value = multiply(NAN[FP32] if element.kind is NumberKind.NAN else rounded(element), scale)
    return 0x7FC00000 if FP32.is_nan(value) else value


def _largest(numbers: Sequence[Number], policy: str) -> Number:
    """amax: a NaN if there is one, else an infinity if there is one, else the largest magnitude."""
    for kind in (NumberKind.NAN, NumberKind.INFINITE):
        if any(number.kind is kind for number in numbers):
            return Number(kind, False, Fraction(0))
    # 1e-4 as FP32 has it.
    floor = Fraction(13743895, 2**37) if policy == "deepgemm" else Fraction(0)
    return Number(NumberKind.FINITE, False, max(floor, *(number.magnitude for number in numbers)))


def _larger(number: Number, least: Fraction) -> Number:
    return Number(NumberKind.FINITE, False, max(number.magnitude, least))


def _power_of_two_above(number: Number) -> int:
    """FP32 bits of the least power of two that is not below a number, from 2^-126 to 2^127; of a NaN 2^127."""
    exponent = 127
    if number.kind is NumberKind.FINITE and number.magnitude:
        exponent = floor_log2(number.magnitude)
        exponent += number.magnitude != Fraction(2) ** exponent
    elif number.kind is NumberKind.FINITE:
        exponent = -126
    return FP32.encode(Fraction(2) ** min(max(exponent, -126), 127))


def _code(scaled: Number) -> int:
    if scaled.kind is NumberKind.NAN:
        return _NAN_CODE
    if scaled.kind is NumberKind.INFINITE:
        return E4M3.max_code | (0x80 if scaled.negative else 0)
    return encode(scaled, E4M3)
