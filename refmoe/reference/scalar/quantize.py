"""MX quantization of one block, by the words of its definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from refmoe.errors import ArgumentError
from refmoe.formats import E2M1, E4M3, E8M0, FP32, Format
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference.scalar.arithmetic import floor_log2
from refmoe.reference.scalar.numbers import Number, NumberKind, decode, encode

_NAN_SCALE = 0xFF
_NAN_CODE = 0x7F


@dataclass(frozen=True)
class QuantizedBlock:
    """The scale byte (E8M0) of one block and the element codes, one an element, not packed."""

    scale: int
    codes: tuple[int, ...]


def scale_byte(amax: Fraction, fmt: Format, mode: ScaleMode) -> int:
    """The E8M0 byte, 0..254, of a block with the finite maximum `amax`, for elements of `fmt`, a signed format.

    OCP MX v1.0 section 6.3 for FLOOR; the other modes as `ScaleMode` states them.
    """
    if amax == 0:
        return 0
    if mode is ScaleMode.RCEIL:
        exponent = _ceil_log2(amax / fmt.max)
    elif mode is ScaleMode.FLOOR:
        exponent = floor_log2(amax) - fmt.emax
    elif mode is ScaleMode.CEIL:
        exponent = _ceil_log2(amax) - fmt.emax
    elif mode is ScaleMode.EVEN:
        half_a_unit = Fraction(2) ** (floor_log2(amax) - fmt.mantissa_bits - 1)
        exponent = floor_log2(amax + half_a_unit) - fmt.emax
    elif mode is ScaleMode.ROUND_LOG2:
        floor = floor_log2(amax)
        # log2 amax >= floor + 1/2 with both sides squared; equality would make sqrt(2) rational.
        exponent = floor + (1 if amax * amax > Fraction(2) ** (2 * floor + 1) else 0) - fmt.emax
    else:
        exponent = floor_log2(amax / fmt.max)
    return min(max(exponent + E8M0.bias, 0), E8M0.max_code)


def quantize_block(
    block: Sequence[Number],
    fmt: Format = E4M3,
    mode: ScaleMode = ScaleMode.RCEIL,
    edge: EdgePolicy = EdgePolicy.EXACT,
) -> QuantizedBlock:
    """Quantize one block of numbers to `fmt`, a signed format, with one E8M0 scale.

    Raises:
        ArgumentError: `edge` leaves this block undefined, or is not defined for `fmt`.
    """
    if edge is EdgePolicy.EXACT:
        return _exact(block, fmt, mode)
    if edge is EdgePolicy.FLASHINFER:
        return _flashinfer(block, fmt, mode)
    if edge is EdgePolicy.LLAMA_CPP_CUDA and fmt is E2M1:
        return _llama_cpp_cuda(block, mode)
    if edge is EdgePolicy.LLAMA_CPP_CUDA or fmt is not E4M3:
        raise ArgumentError("edge", f"{edge.value} with {fmt.name} elements", "elements that its system produces")
    if edge is EdgePolicy.TRANSFORMER_ENGINE:
        return _transformer_engine(block, mode)
    return _deepgemm(block, mode)


def dequantize_block(block: QuantizedBlock, fmt: Format = E4M3) -> list[int]:
    """The FP32 bit patterns of a quantized block's values: code * 2^(scale - 127), exact or overflowing to infinity.

    A NaN scale or code gives 0x7FC00000.
    """
    scale = decode(block.scale, E8M0)
    return [_fp32_bits(decode(code, fmt), scale) for code in block.codes]


def _exact(block: Sequence[Number], fmt: Format, mode: ScaleMode) -> QuantizedBlock:
    if any(number.kind is not NumberKind.FINITE for number in block):
        # E2M1 has no NaN: its codes are 0, and the scale alone says that the block is bad.
        return QuantizedBlock(_NAN_SCALE, (fmt.nan_code or 0,) * len(block))
    scale = scale_byte(max(number.magnitude for number in block), fmt, mode)
    return QuantizedBlock(scale, tuple(encode(_scaled(number, scale), fmt) for number in block))


def _flashinfer(block: Sequence[Number], fmt: Format, mode: ScaleMode) -> QuantizedBlock:
    # Everything that is not a number, or an infinity, ends up as +max here: x * 0 is a NaN, and the NaN is clamped.
    bad = fmt.max_code
    numbers = [number for number in block if number.kind is not NumberKind.NAN]
    if not numbers:
        return QuantizedBlock(_NAN_SCALE, (bad,) * len(block))
    if any(number.kind is NumberKind.INFINITE for number in numbers):
        return QuantizedBlock(
            E8M0.max_code,
            tuple(bad if number.kind is not NumberKind.FINITE else _signed_zero(number, fmt) for number in block),
        )
    scale = scale_byte(max(number.magnitude for number in numbers), fmt, mode)
    codes = []
    for number in block:
        if number.kind is NumberKind.NAN:
            codes.append(bad)
        elif scale == 0 or number.magnitude < FP32.min_normal:
            codes.append(_signed_zero(number, fmt))
        else:
            codes.append(encode(_scaled(number, scale), fmt))
    return QuantizedBlock(scale, tuple(codes))


def _transformer_engine(block: Sequence[Number], mode: ScaleMode) -> QuantizedBlock:
    if any(number.kind is NumberKind.INFINITE for number in block):
        raise ArgumentError("x", "a block with an infinity", "no infinity: the policy's releases disagree")
    amax = max((number.magnitude for number in block if number.kind is NumberKind.FINITE), default=Fraction(0))
    scale = scale_byte(amax, E4M3, mode)
    return QuantizedBlock(
        scale,
        tuple(_NAN_CODE if number.kind is NumberKind.NAN else encode(_scaled(number, scale), E4M3) for number in block),
    )


def _deepgemm(block: Sequence[Number], mode: ScaleMode) -> QuantizedBlock:
    if any(number.kind is not NumberKind.FINITE for number in block):
        raise ArgumentError("x", "a block with a NaN or an infinity", "finite values: the policy leaves it to the cast")
    # The floor is the FP32 number nearest to 1e-4.
    floor = Fraction(13743895, 2**37)
    scale = scale_byte(max(floor, *(number.magnitude for number in block)), E4M3, mode)
    return QuantizedBlock(scale, tuple(encode(_scaled(number, scale), E4M3) for number in block))


def _llama_cpp_cuda(block: Sequence[Number], mode: ScaleMode) -> QuantizedBlock:
    if any(number.kind is NumberKind.INFINITE for number in block):
        raise ArgumentError("x", "a block with an infinity", "no infinity: the policy's scale overflows an int")
    amax = max((number.magnitude for number in block if number.kind is NumberKind.FINITE), default=Fraction(0))
    scale = scale_byte(amax, E2M1, mode)
    return QuantizedBlock(
        scale,
        tuple(
            E2M1.max_code if number.kind is NumberKind.NAN else encode(_scaled(number, scale), E2M1) for number in block
        ),
    )


def _scaled(number: Number, scale: int) -> Number:
    return number.times(Fraction(2) ** (E8M0.bias - scale))


def _signed_zero(number: Number, fmt: Format) -> int:
    return encode(Number(NumberKind.FINITE, number.negative, Fraction(0)), fmt)


def _fp32_bits(element: Number, scale: Number) -> int:
    if NumberKind.NAN in (element.kind, scale.kind):
        assert FP32.nan_code is not None
        return FP32.nan_code
    sign = int(element.negative) << 31
    value = element.magnitude * scale.magnitude
    if value > FP32.max:
        # Every product has few bits, so the first one that FP32 lacks is already 2^128: no rounding is at stake.
        assert FP32.infinity_code is not None
        return sign | FP32.infinity_code
    return sign | FP32.encode(value)


def _ceil_log2(value: Fraction) -> int:
    floor = floor_log2(value)
    return floor if value == Fraction(2) ** floor else floor + 1
