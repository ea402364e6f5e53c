"""MX quantization, fast: integers on the bits of the input, a table for the elements.

How it works, for BF16 input and elements of any MX format:

- The scale is the exponent field of amax, plus a carry if its mantissa is above a threshold that the mode sets: one
  addition and one shift. No logarithm is taken, so no boundary is decided by a rounded one.
- An element's exponent field minus the scale, in one 16-bit subtraction that leaves sign and mantissa in place, is the
  index into a table of codes. What is too small to matter wraps around into a part of the table that holds zeros.
- FP32 and FP16 are first reduced to BF16 by rounding to odd, which no later rounding to fewer bits can notice.
- Blocks in which a BF16 subnormal could matter, or that are not finite, take a slow path in float64.

The definition that it is held against is `refmoe.reference.scalar`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import BLOCK_FORMATS, E8M0, MX_FORMATS, MXFP4, MXFP8, Format, MXFormat, as_mx_format
from refmoe.policy import (
    DEEPGEMM_FLOOR,
    EDGE_FORMATS,
    POLICIES,
    EdgePolicy,
    ElementRounding,
    Policy,
    ScaleMode,
    as_edge_policy,
    as_policy,
    as_scale_mode,
)
from refmoe.reference.chunks import for_each_chunk
from refmoe.reference.fp32 import BF16, fp32_bits, magnitude_values
from refmoe.reference.gguf.mxfp4 import quantize_gguf_blocks
from refmoe.reference.nvfp4 import NVFP4Tensor
from refmoe.reference.tensor import MXTensor

_BLOCKS_A_CHUNK = 1 << 14
_INFINITY = 0x7F800000
_NAN_SCALE = 0xFF

#: Edge policies that leave blocks undefined: what they need, and why.
_UNDEFINED = {
    EdgePolicy.TRANSFORMER_ENGINE: "no infinity: releases of TransformerEngine disagree on the codes of such a block",
    EdgePolicy.LLAMA_CPP_CUDA: "no infinity: the scale of such a block overflows an int in llama.cpp",
    EdgePolicy.DEEPGEMM: "finite values: DeepGEMM leaves the codes of such a block to PyTorch's cast, "
    "which has changed",
}

# A stand-in scale under which every block whose own scale byte is 0 is all zeros: its exponent fields are below
# emax + 2, at most 17.
_VANISHING_SCALE = 127


def quantize_mxfp8(
    x: NDArray[np.generic], *, mode: ScaleMode | str = ScaleMode.RCEIL, edge: EdgePolicy | str = EdgePolicy.EXACT
) -> MXTensor:
    """Quantize to MXFP8: E4M3 codes, one E8M0 scale for every 32 elements of the last axis.

    code = E4M3(x * 2^(127 - scale)), rounded once, to nearest even, saturating at 448.

    Args:
        x: BF16 (ml_dtypes.bfloat16), FP16 or FP32 [..., K], C-contiguous, K a multiple of 32; may be empty.
        mode: how the scale is chosen, see `ScaleMode`.
        edge: what becomes of zero, tiny and non-finite blocks, see `EdgePolicy`.

    Returns:
        MXTensor with codes uint8 [..., K] and scales uint8 [..., K/32].

    Raises:
        ArgumentError: wrong dtype or shape, an array that is not contiguous, an unknown mode or edge, an edge that is
            not defined for the format, or a block that `edge` leaves undefined.
    """
    return _quantize(x, MXFP8, as_scale_mode(mode), as_edge_policy(edge))


def quantize_mxfp4(
    x: NDArray[np.generic], *, mode: ScaleMode | str = ScaleMode.RCEIL, edge: EdgePolicy | str = EdgePolicy.EXACT
) -> MXTensor:
    """Quantize to MXFP4: E2M1 codes, one E8M0 scale for every 32 elements of the last axis.

    code = E2M1(x * 2^(127 - scale)), rounded once, to nearest even, saturating at 6.

    Args:
        x: BF16 (ml_dtypes.bfloat16), FP16 or FP32 [..., K], C-contiguous, K a multiple of 32; may be empty.
        mode: how the scale is chosen, see `ScaleMode`.
        edge: as for `quantize_mxfp8`. FP4 has no NaN: under "exact" a bad block has scale 0xFF and codes 0.

    Returns:
        MXTensor with packed codes uint8 [..., K/2], the even element in the low nibble, and scales uint8 [..., K/32].

    Raises:
        ArgumentError: as `quantize_mxfp8`.
    """
    return _quantize(x, MXFP4, as_scale_mode(mode), as_edge_policy(edge))


@overload
def quantize(  # type: ignore[overload-overlap]
    x: NDArray[np.generic], format: Literal["nvfp4"], *, policy: Policy | str | None = None
) -> NVFP4Tensor: ...
@overload
def quantize(x: NDArray[np.generic], format: str, *, policy: Policy | str | None = None) -> MXTensor: ...
def quantize(x: NDArray[np.generic], format: str, *, policy: Policy | str | None = None) -> MXTensor | NVFP4Tensor:
    """Quantize by a whole policy, refmoe's own or that of another system, see `POLICIES`.

    >>> import numpy as np, refmoe
    >>> x = np.linspace(-2, 2, 64, dtype=np.float32).reshape(2, 32)
    >>> tensor = refmoe.quantize(x, "mxfp4", policy="gguf")
    >>> tensor.codes.shape, tensor.scales.tolist()
    ((2, 16), [[126], [126]])

    Args:
        x: BF16, FP16 or FP32 [..., K], C-contiguous, K a multiple of 32, for "nvfp4" of 16.
        format: "mxfp8" or "mxfp4", which give an `MXTensor`, or "nvfp4", which gives an `NVFP4Tensor`.
        policy: a policy or its text, "MODE/EDGE" or a name, see `as_policy`. None is that of `quantize_mxfp8`,
            rceil/exact. "nvfp4" has one, "transformer_engine", see `quantize_nvfp4`.

    Raises:
        ArgumentError: an unknown format or policy, a format that the policy does not produce, a policy of your own
            without an edge policy or with another rounding, or what `quantize_mxfp8` refuses.
    """
    if not isinstance(format, str) or format not in BLOCK_FORMATS:
        *others, last = BLOCK_FORMATS
        raise ArgumentError("format", describe(format), f"{', '.join(others)} or {last}")
    if format not in MX_FORMATS:
        return _by_its_own_rule(x, format, policy)
    policy, mx = as_policy("rceil/exact" if policy is None else policy), as_mx_format(format)
    if format not in policy.formats:
        raise ArgumentError("format", f"{format} with policy {policy.name}", f"one of {', '.join(policy.formats)}")
    if policy == POLICIES["gguf"]:
        return _run(x, mx, quantize_gguf_blocks)
    if policy.edge is None or policy.rounding is not ElementRounding.NEAREST_EVEN:
        raise ArgumentError("policy", f"{policy.name}, whose rules are its own", "an edge policy, and ties to even")
    return _quantize(x, mx, policy.mode, policy.edge)


def _by_its_own_rule(x: NDArray[np.generic], format: str, policy: Policy | str | None) -> MXTensor | NVFP4Tensor:
    """Quantize to a format whose scales no mode chooses, by the module of its name."""
    rule = importlib.import_module(f"refmoe.reference.{format}")
    if policy not in (None, rule.POLICY):
        raise ArgumentError("policy", describe(policy), f"{rule.POLICY}, the only one of {format}")
    made: MXTensor | NVFP4Tensor = getattr(rule, f"quantize_{format}")(x)
    return made


def _quantize(x: NDArray[np.generic], mx: MXFormat, mode: ScaleMode, edge: EdgePolicy) -> MXTensor:
    if mx.name not in EDGE_FORMATS[edge]:
        defined = ", ".join(policy.value for policy, formats in EDGE_FORMATS.items() if mx.name in formats)
        raise ArgumentError("edge", f"{edge.value} for {mx.name}", f"one of {defined}")
    return _run(x, mx, partial(_quantize_blocks, fmt=mx.element, mode=mode, edge=edge))


def _run(x: NDArray[np.generic], mx: MXFormat, quantize_blocks: Callable[..., None]) -> MXTensor:
    """Quantize with a function of blocks of `x`, their codes and scales to write, and the first one's number."""
    rows = checked_blocks(x, mx.block)
    codes = np.empty(x.shape, np.uint8)
    scales = np.empty((*x.shape[:-1], x.shape[-1] // mx.block), np.uint8)
    code_rows, row_scales = codes.reshape(rows.shape), scales.reshape(-1)

    def run(start: int, stop: int) -> None:
        part = slice(start, stop)
        quantize_blocks(rows[part], code_rows[part], row_scales[part], start)

    for_each_chunk(run, row_scales.size, _BLOCKS_A_CHUNK)
    return MXTensor.of_elements(codes, scales, mx.name)


def checked_blocks(x: object, block: int) -> NDArray[np.generic]:
    """`x` as blocks [n, block], without a copy.

    Raises:
        ArgumentError: no BF16, FP16 or FP32 array, a last dimension that is no multiple of `block`, or an array that is
            not C-contiguous.
    """
    if not isinstance(x, np.ndarray) or x.dtype not in (BF16, np.float16, np.float32):
        raise ArgumentError("x", describe(x), "an array of ml_dtypes.bfloat16, float16 or float32")
    if x.ndim == 0 or x.shape[-1] % block:
        raise ArgumentError("x", describe(x), f"a last dimension that is a multiple of {block}")
    if not x.flags.c_contiguous:
        raise ArgumentError("x", f"{describe(x)} that is not contiguous", "a C-contiguous array")
    return x.reshape(-1, block)


def _quantize_blocks(
    x: NDArray[np.generic],
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint8],
    first: int,
    fmt: Format,
    mode: ScaleMode,
    edge: EdgePolicy,
) -> None:
    """Quantize blocks x [n, 32] into `codes` [n, 32] and `scales` [n]; `first` is the number of the first of them."""
    if x.dtype == BF16:
        bits = x.view(np.uint16)
        amax = _amax(bits & np.uint16(0x7FFF))
        exponents, infinity = _scale_exponents(amax, 7, fmt, mode), _INFINITY >> 16
    else:
        wide = fp32_bits(x)
        amax = _amax(wide & np.uint32(0x7FFFFFFF))
        exponents, infinity = _scale_exponents(amax, 23, fmt, mode), _INFINITY
        bits = _round_to_odd(wide)
    if edge is EdgePolicy.DEEPGEMM:
        # The scale is monotone in amax: a floor of amax is a floor of the scale.
        floor = _scale_exponents(np.array([DEEPGEMM_FLOOR], np.uint32), 23, fmt, mode)
        np.maximum(exponents, floor, out=exponents)
    scales[:] = exponents

    # A block that comes out as signed zeros takes a subtrahend that carries all of it deep into the zeros.
    vanishing = (exponents == 0) if edge is EdgePolicy.FLASHINFER else (amax == 0)
    shifted = np.where(vanishing, _VANISHING_SCALE, exponents)
    lowest = _lowest_exponent(fmt)
    subtrahend = ((shifted + lowest).astype(np.uint16) << np.uint16(7))[:, None]
    np.take(_code_table(fmt, _exponent_offset(fmt, mode)), bits - subtrahend, out=codes, mode="clip")

    # Down to this scale a subnormal's field, 0, may land inside the table, which reads it as a normal number's.
    rare = ((exponents <= -lowest) & ~vanishing) | (amax >= infinity)
    if rare.any():
        index = np.flatnonzero(rare)
        codes[index], scales[index] = _rare_blocks(fp32_bits(x[index]), first + index, fmt, mode, edge)


def _amax(magnitudes: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    """The largest of each row of a power of two, by halving the whole array: three times faster than along the rows."""
    flat = magnitudes.reshape(-1)
    for _ in range(magnitudes.shape[1].bit_length() - 1):
        flat = np.maximum(flat[0::2], flat[1::2])
    return flat


def _round_to_odd(wide: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """BF16 bits of FP32 bits, truncated, the last bit set if anything was cut off.

    Rounding the result to nearest with at least two bits less gives what rounding the input would (Boldo and
    Melquiond, "Emulation of a FMA and correctly rounded sums", 2008). A NaN stays a NaN.
    """
    odd: NDArray[np.uint16] = (wide >> np.uint32(16)).astype(np.uint16) | ((wide & np.uint32(0xFFFF)) != 0)
    return odd


def _lowest_exponent(fmt: Format) -> int:
    """The exponent below which a scaled element is zero after rounding: half the smallest value ties to zero."""
    return fmt.emin - fmt.mantissa_bits - 1


def _exponent_offset(fmt: Format, mode: ScaleMode) -> int:
    """What to take from amax's exponent to get the scale's, before any carry."""
    return fmt.emax + (1 if mode is ScaleMode.FLOOR_RATIO else 0)


def _first_carry(fmt: Format, mode: ScaleMode) -> int:
    """The first 23-bit mantissa of amax at which the scale's exponent is one more; 2^23 if there is none."""
    one = 1 << 23
    max_mantissa = int((fmt.max / 2**fmt.emax - 1) * one)
    return {
        ScaleMode.RCEIL: max_mantissa + 1,
        ScaleMode.FLOOR: one,
        ScaleMode.CEIL: 1,
        ScaleMode.EVEN: one - (one >> (fmt.mantissa_bits + 1)),
        # The first mantissa above sqrt(2).
        ScaleMode.ROUND_LOG2: math.isqrt(2 * one * one) + 1 - one,
        ScaleMode.FLOOR_RATIO: max_mantissa,
    }[mode]


def _scale_exponents(
    amax: NDArray[np.unsignedinteger], mantissa_bits: int, fmt: Format, mode: ScaleMode
) -> NDArray[np.int32]:
    """The scale byte of finite amax bits with that many mantissa bits (7: BF16, 23: FP32), at least 0."""
    one = 1 << mantissa_bits
    carry = one - -(-_first_carry(fmt, mode) >> (23 - mantissa_bits))
    # A subnormal amax may carry into field 1: below every offset, so it is clamped to 0 as it should.
    exponents: NDArray[np.int32] = (amax.astype(np.int32) + np.int32(carry)) >> np.int32(mantissa_bits)
    exponents -= np.int32(_exponent_offset(fmt, mode))
    np.maximum(exponents, 0, out=exponents)
    return exponents


@cache
def _code_table(fmt: Format, offset: int) -> NDArray[np.uint8]:
    """Codes by 16-bit index: BF16 bits whose exponent field counts from `_lowest_exponent`, modulo 2^16.

    The subtraction that makes the index borrows from the sign bit where the field becomes negative. Such indices end
    below 2^15 for negative numbers and below 2^16 for positive ones, and begin above the largest field that a block
    with this offset has: field 254 - scale, where scale >= 254 - offset if the mode has no carry there.
    """
    lowest = _lowest_exponent(fmt)
    top = (offset - lowest + 1) << 7
    index = np.arange(top)
    field, mantissa = index >> 7, index & 0x7F
    code = _encode(np.ldexp(1 + mantissa / 128, field + lowest), fmt)
    sign = np.uint8(1 << (fmt.bits - 1))
    table = np.zeros(1 << 16, np.uint8)
    table[:top] = code
    table[top : 1 << 15] = sign
    table[1 << 15 : (1 << 15) + top] = code | sign
    return table


def _encode(magnitude: NDArray[np.float64], fmt: Format) -> NDArray[np.uint8]:
    """Codes of non-negative float64 values, rounded once to nearest even, saturating."""
    exponent = np.frexp(np.maximum(magnitude, float(fmt.min_normal)))[1] - 1
    steps = np.rint(np.ldexp(magnitude, fmt.mantissa_bits - exponent)).astype(np.int64)
    # A normal number's steps include the implicit one, a carry of the rounding goes into the exponent: one sum.
    code: NDArray[np.int64] = ((exponent - fmt.emin) << fmt.mantissa_bits) + steps
    return np.minimum(code, fmt.max_code).astype(np.uint8)


def _rare_blocks(
    bits: NDArray[np.uint32], numbers: NDArray[np.intp], fmt: Format, mode: ScaleMode, edge: EdgePolicy
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes [n, 32] and scales [n] of blocks given as FP32 bits [n, 32]; `numbers` name them in an error."""
    magnitude = bits & np.uint32(0x7FFFFFFF)
    sign = ((bits >> np.uint32(31)) << np.uint32(fmt.bits - 1)).astype(np.uint8)
    nan, infinite = magnitude > _INFINITY, magnitude == _INFINITY
    _refuse_undefined(nan, infinite, numbers, edge)

    amax = np.where(nan | infinite, np.uint32(0), magnitude).max(axis=1)
    scales = _scale_exponents(amax, 23, fmt, mode)
    # Exact: float64 has every FP32 number, subnormals as integers times 2^-149, and every product with 2^(127 - scale).
    subnormal = magnitude < 1 << 23
    value = magnitude_values(magnitude)
    code = _encode(np.where(nan | infinite, 0.0, np.ldexp(value, E8M0.bias - scales[:, None])), fmt) | sign

    if edge is EdgePolicy.EXACT:
        bad = (nan | infinite).any(axis=1)
        scales[bad] = _NAN_SCALE
        code[bad] = 0 if fmt.nan_code is None else fmt.nan_code
    elif edge is EdgePolicy.TRANSFORMER_ENGINE:
        code[nan] = fmt.nan_code
    elif edge is EdgePolicy.LLAMA_CPP_CUDA:
        code[nan] = fmt.max_code
    elif edge is EdgePolicy.FLASHINFER:
        has_infinity = infinite.any(axis=1)
        flushed = subnormal | (has_infinity | (scales == 0))[:, None]
        code[flushed] = sign[flushed]
        code[nan | infinite] = fmt.max_code
        scales[has_infinity] = E8M0.max_code
        scales[nan.all(axis=1)] = _NAN_SCALE
    return code, scales.astype(np.uint8)


def undefined_blocks(
    has_nan: NDArray[np.bool_], has_infinity: NDArray[np.bool_], edge: EdgePolicy | None
) -> NDArray[np.bool_]:
    """Which blocks [n] `edge` leaves undefined, by what is in them."""
    if edge not in _UNDEFINED:
        return np.zeros_like(has_nan)
    return has_nan | has_infinity if edge is EdgePolicy.DEEPGEMM else has_infinity


def _refuse_undefined(
    nan: NDArray[np.bool_], infinite: NDArray[np.bool_], numbers: NDArray[np.intp], edge: EdgePolicy
) -> None:
    undefined = undefined_blocks(np.asarray(nan.any(axis=1)), np.asarray(infinite.any(axis=1)), edge)
    if undefined.any():
        what = "a NaN or an infinity" if edge is EdgePolicy.DEEPGEMM else "an infinity"
        where = f"block {numbers[undefined][0]} of {nan.shape[1]} elements"
        raise ArgumentError("x", f"{what} in {where}", _UNDEFINED[edge])
