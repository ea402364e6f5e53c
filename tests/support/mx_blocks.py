"""Blocks of 32 that a wrong quantizer gets wrong, and the comparison with the scalar specification."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import ml_dtypes
import numpy as np

from refmoe.errors import ArgumentError
from refmoe.formats import BF16, E2M1, E4M3, FP16, FP32, Format
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference import quantize_mxfp4, quantize_mxfp8
from refmoe.reference.layout import unpack_fp4
from refmoe.reference.scalar import Number, decode, quantize_block

INPUTS = {
    "bf16": (BF16, np.dtype(ml_dtypes.bfloat16), np.uint16),
    "fp16": (FP16, np.dtype(np.float16), np.uint16),
    "fp32": (FP32, np.dtype(np.float32), np.uint32),
}

# Where log2 in floating point errs, where max (1.75) and the EVEN carry (1.9375) lie, and the ends of the binade;
# sqrt(2) lies between the two in the last row.
BOUNDARY_MANTISSAS = (
    *(0x000000, 0x000001, 0x7FFFFF, 0x7FFFFE, 0x7FFFFD),
    *(0x5FFFFF, 0x600000, 0x600001, 0x600002),
    *(0x3FFFFF, 0x400000, 0x400001),
    *(0x77FFFF, 0x780000, 0x780001),
    *(0x3504F3, 0x3504F4),
)


def build(fmt: Format, sign: object, exponent: object, mantissa: object) -> np.ndarray:
    """Bits of an input format from its fields, broadcast against each other; the mantissa is FP32's 23 bits, cut."""
    field = np.clip(np.asarray(exponent) + fmt.bias, 0, (1 << fmt.exponent_bits) - 2)
    cut = np.asarray(mantissa) >> (23 - fmt.mantissa_bits)
    bits = (np.asarray(sign) << (fmt.bits - 1)) | (field << fmt.mantissa_bits) | cut
    return bits.astype(np.uint16 if fmt.bits == 16 else np.uint32)


@cache
def adversarial_blocks(dtype: str) -> np.ndarray:
    """Bits [n, 32] of one block a kind of trouble, in an input dtype."""
    fmt, _, unsigned = INPUTS[dtype]
    random = np.random.default_rng(0)
    sign = lambda n: random.integers(0, 2, (n, 32))  # noqa: E731
    mantissa = lambda n: random.integers(0, 1 << 23, (n, 32))  # noqa: E731
    near = random.choice(BOUNDARY_MANTISSAS, (8, 32))
    each = np.array(BOUNDARY_MANTISSAS)[:, None]
    is_maximum = np.arange(32) == random.integers(0, 32, (len(each), 1))
    lowest, highest = 1 - fmt.bias, fmt.emax
    rows = [
        # Any bits: NaN and infinities among them.
        random.integers(0, 1 << fmt.bits, (8, 32), dtype=np.uint64),
        # An ordinary block, its binades spread as a normal distribution's are.
        build(fmt, sign(12), random.integers(-6, 6, (12, 1)) - random.geometric(0.5, (12, 32)), mantissa(12)),
        # Everything within reach of E4M3's subnormals and of half its smallest value.
        build(fmt, sign(8), random.integers(-19, 1, (8, 32)), mantissa(8)),
        # Boundary mantissas as elements, at the ends of the input's range and in the middle.
        build(fmt, sign(8), random.choice([lowest, lowest + 10, 0, highest], (8, 1)), near),
        # Each boundary mantissa as the block's maximum, at an exponent where an FP32 log2 has few bits left for it.
        np.where(
            is_maximum,
            build(fmt, sign(len(each)), 12, each),
            build(fmt, sign(len(each)), random.integers(-3, 12, (len(each), 32)), mantissa(len(each))),
        ),
        # Every place in turn holds the maximum.
        build(fmt, sign(32), np.where(np.eye(32, dtype=bool), 4, random.integers(-9, 2, (32, 32))), mantissa(32)),
        # Rounding ties: few significant bits, next to the grid of 3 mantissa bits.
        build(fmt, sign(8), random.integers(-12, 1, (8, 32)), random.choice(np.arange(16) << 19, (8, 32))),
        # The lowest exponents: subnormals of the input, scale bytes 0 to 12, products that FTZ would lose.
        build(fmt, sign(12), lowest - 1 + random.integers(0, 1 + 2 * np.arange(12)[:, None], (12, 32)), mantissa(12)),
        # Signed zeros alone, and around one smallest and one largest number.
        build(fmt, sign(1), -(10**6), 0),
        np.where(np.arange(32) == 5, 1, build(fmt, sign(1), -(10**6), 0)),
        np.where(np.arange(32) == 5, fmt.max_code, build(fmt, sign(1), -(10**6), 0)),
    ]
    bits = np.concatenate([row.astype(unsigned) for row in rows])
    return np.concatenate([bits, _not_finite(fmt, bits[8:12], unsigned)])


def _not_finite(fmt: Format, finite: np.ndarray, unsigned: type) -> np.ndarray:
    infinity, negative = fmt.infinity_code, 1 << (fmt.bits - 1)
    smallest_nan, largest_nan = infinity + 1, negative - 1
    mixes = (
        (infinity,),
        (negative | infinity,),
        (smallest_nan,),
        (negative | largest_nan,),
        (infinity, negative | smallest_nan),
        (negative | infinity, infinity, largest_nan),
    )
    rows = []
    for mix in mixes:
        for row in finite[:2]:
            rows.append(row.copy())
            rows[-1][[3, 17, 31][: len(mix)]] = mix
        # Among zeros, and alone.
        rows.append(np.where(np.arange(32) < len(mix), np.resize(mix, 32), negative * (np.arange(32) % 2)))
        rows.append(np.resize(mix, 32))
    return np.stack(rows).astype(unsigned)


def finite_only(bits: np.ndarray, dtype: str) -> np.ndarray:
    """The blocks without NaN and infinity."""
    fmt = INPUTS[dtype][0]
    magnitude = bits & ((1 << (fmt.bits - 1)) - 1)
    return bits[(magnitude < fmt.infinity_code).all(axis=1)]


@cache
def _number(code: int, fmt: Format) -> Number:
    return decode(code, fmt)


def specified(
    bits: np.ndarray, dtype: str, element: Format, mode: ScaleMode, edge: EdgePolicy
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the scalar specification says of blocks [n, 32]: the defined ones [n] bool, and their codes and scales."""
    source = INPUTS[dtype][0]
    defined, codes, scales = [], [], []
    for row in bits:
        try:
            block = quantize_block([_number(int(code), source) for code in row], element, mode, edge)
        except ArgumentError:
            defined.append(False)
            continue
        defined.append(True)
        codes.append(block.codes)
        scales.append(block.scale)
    return np.array(defined), np.array(codes, np.uint8).reshape(-1, 32), np.array(scales, np.uint8)


def fast(
    bits: np.ndarray, dtype: str, element: Format, mode: ScaleMode, edge: EdgePolicy
) -> tuple[np.ndarray, np.ndarray]:
    """Codes [n, 32], one a byte, and scales [n] of the fast reference."""
    x = np.ascontiguousarray(bits).view(INPUTS[dtype][1])
    if element is E4M3:
        tensor = quantize_mxfp8(x, mode=mode, edge=edge)
        return tensor.codes, tensor.scales[:, 0]
    assert element is E2M1
    tensor = quantize_mxfp4(x, mode=mode, edge=edge)
    return unpack_fp4(tensor.codes), tensor.scales[:, 0]


def differing_blocks(
    bits: np.ndarray,
    dtype: str,
    element: Format,
    mode: ScaleMode,
    edge: EdgePolicy,
    specification: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]] = specified,
) -> int:
    """How many of the blocks that the specification defines the fast reference computes otherwise."""
    defined, codes, scales = specification(bits, dtype, element, mode, edge)
    got_codes, got_scales = fast(bits[defined], dtype, element, mode, edge)
    return int(((got_codes != codes).any(axis=1) | (got_scales != scales)).sum())
