"""One output of the DP4A product, in exact rationals: the specification of `refmoe.reference.dp4a`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from refmoe.formats import E2M1, E8M0, FP16, FP32
from refmoe.reference.scalar.arithmetic import NAN, add, multiply, rounded
from refmoe.reference.scalar.numbers import BLOCK, Number, NumberKind, decode

_LANES = 32


def warps(tokens: int) -> int:
    """Warps that share a weight row: llama.cpp's rule by the number of tokens."""
    if tokens <= 4:
        return 4
    return 2 if tokens <= 8 else 1


def dot(
    codes: Sequence[int],
    d: Sequence[int],
    weights: Sequence[int],
    weight_scales: Sequence[int],
    tokens: int,
    alpha: int | None = None,
    bias: int | None = None,
) -> int:
    """FP32 bits of one output.

    Args:
        codes: K integers of -128..127, of the activation.
        d: FP16 bits, one a block.
        weights: K codes of E2M1, of the weight row.
        weight_scales: E8M0 bytes, one a block.
        tokens: of the batch.
        alpha: FP32 bits, or None.
        bias: FP32 bits, or None.
    """
    terms = []
    for block, (scale, byte) in enumerate(zip(d, weight_scales, strict=True)):
        span = slice(block * BLOCK, (block + 1) * BLOCK)
        doubled = sum(
            (2 * E2M1.decode(weight) * code for weight, code in zip(weights[span], codes[span], strict=True)),
            start=Fraction(0),
        )
        assert doubled.denominator == 1
        factor = multiply(_fp32(decode(scale, FP16)), _halved(byte))
        terms.append(multiply(factor, _fp32(Number(NumberKind.FINITE, doubled < 0, abs(doubled)))))

    threads = warps(tokens) * _LANES
    sums = [0] * threads
    for block, term in enumerate(terms):
        sums[block % threads] = add(sums[block % threads], term)
    lanes = sums[:_LANES]
    for warp in range(1, warps(tokens)):
        lanes = [add(total, sums[warp * _LANES + lane]) for lane, total in enumerate(lanes)]
    distance = _LANES // 2
    while distance:
        lanes = [add(total, lanes[lane ^ distance]) for lane, total in enumerate(lanes)]
        distance //= 2
    result = lanes[0] if alpha is None else multiply(alpha, lanes[0])
    return result if bias is None else add(result, bias)


def _halved(byte: int) -> int:
    """FP32 bits of half an E8M0 scale, which may be subnormal."""
    return _fp32(decode(byte, E8M0).times(Fraction(1, 2)))


def _fp32(number: Number) -> int:
    """FP32 bits of a number that FP32 has."""
    return NAN[FP32] if number.kind is NumberKind.NAN else rounded(number)
