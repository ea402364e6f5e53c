"""MXFP4 by the words of gguf's quantizer: one block, a logarithm of 60 digits, exact distances."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction

from refmoe.errors import ArgumentError
from refmoe.formats import FP32
from refmoe.reference.scalar.numbers import Number, NumberKind
from refmoe.reference.scalar.quantize import QuantizedBlock

#: gguf's kvalues, halved.
_TABLE = [Fraction(doubled, 2) for doubled in (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)]


def quantize_block_gguf(block: Sequence[Number]) -> QuantizedBlock:
    """Quantize one block as `gguf.quants.MXFP4` does.

    Raises:
        ArgumentError: a NaN, an infinity, or a scale below 0.
    """
    if any(number.kind is not NumberKind.FINITE for number in block):
        raise ArgumentError("x", "a block with a NaN or an infinity", "finite values")
    amax = max(number.magnitude for number in block)
    byte = float32_log2(amax).__floor__() - 2 + 127 if amax > 0 else 0
    if byte < 0:
        raise ArgumentError("x", f"a block with the scale {byte}", "a scale of at least 0")
    unit = Fraction(2) ** (byte - 127)
    codes = []
    for number in block:
        value = -number.magnitude if number.negative else number.magnitude
        # An entry that overflows float32 is infinitely far away.
        distances = {
            code: abs(unit * entry - value) for code, entry in enumerate(_TABLE) if abs(unit * entry) <= FP32.max
        }
        codes.append(min(distances, key=lambda code: (distances[code], code)))
    return QuantizedBlock(byte, tuple(codes))


def float32_log2(value: Fraction) -> Fraction:
    """log2 of a positive rational, rounded to the nearest float32 (of unbounded exponent)."""
    with localcontext() as context:
        context.prec = 60
        ratio = Decimal(value.numerator) / Decimal(value.denominator)
        exact = Fraction(ratio.ln() / Decimal(2).ln())
    # A power of two comes out within 1e-57 of its integer, like everything else of its logarithm; nothing else
    # comes near a midpoint of two float32.
    if exact == 0:
        return exact
    binade = exact.numerator.bit_length() - exact.denominator.bit_length()
    if abs(exact) < Fraction(2) ** binade:
        binade -= 1
    unit = Fraction(2) ** (binade - 23)
    return round(exact / unit) * unit
