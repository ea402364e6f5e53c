"""Operands on which instructions show what they do: random bits are not enough where rounding decides.

Some are drawn alone: random bits, the limits and specials of every format of the width, their neighbours, and numbers
of any magnitude. Others are drawn together: the second equals the first or nearly so, or the last is solved for, so
that the result falls next to the least normal number, an overflow, a rounding midpoint, or zero.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.ptx.isa import DTYPES
from refmoe.ptx.isa.floats import FLOATS, Float, decode
from refmoe.ptx.isa.narrow import NARROW
from refmoe.ptx.isa.rounding import encode

Array = NDArray[Any]

#: Lanes of an opcode, and of one whose only source has 16 bits: all of them.
LANES = 32768
EXHAUSTIVE = 65536
WARP = 32

#: Operands that select, by mnemonic and position: in half of the lanes they are drawn from here.
SELECTORS: Mapping[str, Mapping[int, range]] = {
    "shl": {1: range(72)},
    "shr": {1: range(72)},
    "shf": {2: range(40)},
    "bfe": {1: range(72), 2: range(72)},
    "bfi": {2: range(72), 3: range(72)},
    "bmsk": {0: range(40), 1: range(40)},
    "szext": {1: range(40)},
    "prmt": {2: range(0x10000)},
    "fns": {1: range(33), 2: range(-33, 34)},
    "shfl": {1: range(40), 2: range(0x2000)},
    "match": {0: range(2)},
}

# The last operand that makes the result, the others given: approximately, for it is rounded afterwards.
_SOLVE: Mapping[str, Callable[..., Array]] = {
    "add": lambda result, a: result - a,
    "sub": lambda result, a: a - result,
    "mul": lambda result, a: result / a,
    "div": lambda result, a: a / result,
    "fma": lambda result, a, b: result - a * b,
    "mad": lambda result, a, b: result - a * b,
    "rcp": lambda result: 1 / result,
    "sqrt": lambda result: result * result,
}


def operands(opcode: str, kinds: Sequence[str]) -> list[Array]:
    """One array for each source of `opcode`, of the register kinds `kinds`; the same ones each time."""
    rng = np.random.default_rng(zlib.crc32(opcode.encode()))
    if tuple(kinds) == ("b16",):
        return [np.arange(EXHAUSTIVE).astype(np.uint16)]
    mnemonic, *modifiers = opcode.split(".")
    alone = [_alone(kind, rng) for kind in kinds]
    if mnemonic == "cvt":
        alone = [_with_boundaries(x, rng) for x in alone]
    for position, values in SELECTORS.get(mnemonic, {}).items():
        inside = rng.choice(np.array(values), LANES).astype(np.int64).astype(alone[position].dtype)
        # Selectors go together: both of bfe's are in their range in the same lanes.
        alone[position] = np.where(np.arange(LANES) % 2 == 0, inside, alone[position])
    if mnemonic in ("vote", "match"):  # every fourth warp has one value
        warp = np.arange(LANES) // WARP
        alone[0] = np.where(warp % 4 == 0, alone[0][warp * WARP], alone[0])
    if len(kinds) > 1 and kinds[0] == kinds[1] != "pred":
        nearly = alone[0] + rng.integers(-1, 2, LANES).astype(alone[0].dtype)
        alone[1] = np.where(np.arange(LANES) % 8 == 2, nearly, alone[1])
    type_name = next((part for part in reversed(modifiers) if part.removesuffix("x2") in FLOATS), "")
    name = next((part for part in (mnemonic, *modifiers) if part in _SOLVE), "")
    if not type_name or not name or mnemonic == "cvt":
        return alone
    together = _together(name, FLOATS[type_name.removesuffix("x2")], len(kinds), rng)
    solved = np.arange(LANES) % 3 > 0
    return [np.where(solved, some.view(one.dtype)[:LANES], one) for some, one in zip(together, alone, strict=True)]


def _alone(kind: str, rng: np.random.Generator) -> Array:
    """Operands of one kind."""
    if kind == "pred":
        return rng.integers(0, 2, LANES).astype(np.bool_)
    dtype = np.dtype(DTYPES[kind])
    if kind == "b8":
        return np.arange(LANES).astype(dtype)
    bits = dtype.itemsize * 8
    random = np.frombuffer(rng.bytes(LANES * dtype.itemsize), dtype)
    corners = np.array(sorted(_corners(bits)), dtype=np.uint64).astype(dtype)
    picked = rng.choice(corners, LANES)
    near = picked + rng.integers(-3, 4, LANES).astype(dtype)
    # Integers of every length, and float formats' numbers of ordinary size with few or many significant bits.
    shorter = random >> rng.integers(0, bits, LANES).astype(dtype)
    ordinary = _ordinary(bits, rng)
    classes = [random, picked, near, shorter, ordinary]
    chosen: Array = np.choose(rng.integers(0, len(classes), LANES), classes).astype(dtype)
    return chosen


def _with_boundaries(x: Array, rng: np.random.Generator) -> Array:
    """Half of the lanes replaced by every boundary of a conversion and the numbers beside it, in any order."""
    if x.dtype.itemsize == 1:
        return x
    boundary = (_boundaries(x.dtype.itemsize * 8)[:, None] + np.array([-1, 0, 1]).astype(x.dtype)).ravel()
    replaced: Array = x.copy()
    replaced[1::2] = np.resize(rng.permutation(boundary), LANES // 2)
    return replaced


def _formats(bits: int) -> list[Float]:
    return [format for format in FLOATS.values() if format.bits == bits]


@cache
def _corners(bits: int) -> frozenset[int]:
    """Zero, powers of two and their neighbours, and the limits, specials and small numbers of each float format."""
    mask = 2**bits - 1
    found = {0, mask} | {1 << i for i in range(bits)} | {(1 << i) - 1 for i in range(bits)}
    for format in _formats(bits):
        top = format.infinity >> format.mantissa
        bias = top >> 1
        for field in (0, 1, 2, bias - 10, bias - 1, bias, bias + 1, bias + 7, bias + format.mantissa, top - 1, top):
            for fraction in (0, 1, format.quiet, (1 << format.mantissa) - 1, format.quiet | format.quiet >> 1):
                number = (max(field, 0) << format.mantissa) | fraction
                found |= {number, number | format.sign}
    if bits == 32:  # pairs of halves
        halves = sorted(_corners(16))
        found |= {low | high << 16 for low in halves[:: len(halves) // 12] for high in halves[:: len(halves) // 12]}
    return frozenset(number & mask for number in found)


def _ordinary(bits: int, rng: np.random.Generator) -> Array:
    """Numbers between 1/8 and 2^66 or the format's end, half of them with few significant bits: integers and halves."""
    dtype = np.dtype(f"u{bits // 8}")
    format = _formats(bits)[rng.integers(len(_formats(bits)))]
    bias = format.one >> format.mantissa
    exponent = rng.integers(bias - 3, min(bias + 67, 2 * bias), LANES)
    fraction = rng.integers(0, 1 << format.mantissa, LANES)
    sparse = fraction & (-1 << rng.integers(0, format.mantissa, LANES))
    fraction = np.where(rng.integers(0, 2, LANES) == 0, fraction, sparse)
    sign = rng.integers(0, 2, LANES).astype(dtype) << dtype.type(bits - 1)
    number: Array = ((exponent << format.mantissa) | fraction).astype(dtype) | sign
    return number


@cache
def _boundaries(bits: int) -> Array:
    """Where conversions from float formats of `bits` bits change their result: midpoints and codes of narrower ones."""
    values: list[float] = [448.0, 464.0, 57344.0, 61440.0, 2.0**-9, 2.0**-10, 2.0**-16, 2.0**-17]
    for narrow in NARROW.values():
        exponents = range(1 - narrow.bias - narrow.mantissa - 1, 2**narrow.exponent - narrow.bias + 1)
        values += [m * 2.0**e for e in exponents for m in range(1, 2 ** (narrow.mantissa + 2))]
    for format in FLOATS.values():
        least = float(decode(np.array([1 << format.mantissa]).astype(format.word), format)[0])
        if format.bits < max(bits, 33):
            step = 2.0 ** -(format.mantissa + 1)
            values += [least * (1 - k * step / 4) for k in range(9)] + [least * k * step for k in range(1, 9)]
            values += [1 + k * step for k in range(9)] + [2 / least * (2 - k * step / 2) for k in range(9)]
    values += [2.0**e for e in range(-128, 128)] + [2.0**e - 0.5 for e in range(66)]
    found: set[int] = set()
    for format in _formats(bits):
        with np.errstate(all="ignore"):
            codes = encode(np.array(values + [-value for value in values]), format)
        found |= set(codes.tolist())
    if bits == 32:  # both halves of a pair
        halves = _boundaries(16).astype(np.uint32)
        found |= set((halves | halves[::-1] << np.uint32(16)).tolist())
    return np.array(sorted(found)).astype(f"u{bits // 8}")


def _together(name: str, format: Float, arity: int, rng: np.random.Generator) -> list[Array]:
    """Operands of `format` with 2 * LANES lanes, as bytes of registers that hold one or two of them."""
    count = 2 * LANES
    least, largest = format.word(1 << format.mantissa), format.word(format.infinity - 1)
    with np.errstate(all="ignore"):
        chosen = decode(_numbers(format, count, rng), format)
        half_unit = np.ldexp(1.0, np.frexp(chosen)[1] - format.mantissa - 2)
        targets = [
            np.full(count, decode(np.array([least]), format)[0]),
            np.full(count, decode(np.array([largest]), format)[0]),
            chosen + half_unit,
            np.zeros(count),
        ]
        sign = rng.choice(np.array([-1.0, 1.0]), count)
        result = np.choose(rng.integers(0, len(targets), count), targets) * sign
        # Factors anywhere; terms of a size like the result's, or they would drown it.
        given = [_numbers(format, count, rng) for _ in range(arity - 1)]
        if given and name in ("add", "sub", "fma", "mad"):
            given[0] = _beside(result, format, rng, other=decode(given[1], format) if arity == 3 else None)
        values = [decode(x, format) for x in given]
        last = encode(_SOLVE[name](result, *values), format)
    last = last + rng.integers(-2, 3, count).astype(last.dtype)
    return [np.ascontiguousarray(x.astype(format.word)) for x in (*given, last)]


def _beside(result: Array, format: Float, rng: np.random.Generator, other: Array | None) -> Array:
    """Numbers of the size of `result`, half of them some 30 binary places off, or factors that bring `other` there."""
    reach = format.mantissa + 6
    places = rng.integers(-reach, reach, result.size) * rng.integers(0, 2, result.size)
    sign = rng.choice(np.array([-1.0, 1.0]), result.size)
    size = np.where(result == 0, 1.0, np.abs(result)) * np.ldexp(sign * (1 + rng.random(result.size)), places)
    numbers: Array = encode(size if other is None else size / other, format)
    return numbers


def _numbers(format: Float, count: int, rng: np.random.Generator) -> Array:
    """Normal numbers of all exponents, half of them with a fraction that ends in zeros or in ones."""
    exponent = rng.integers(1, format.infinity >> format.mantissa, count)
    fraction = rng.integers(0, 1 << format.mantissa, count)
    low = (1 << rng.integers(0, format.mantissa + 1, count)) - 1
    fraction = np.choose(rng.integers(0, 4, count), [fraction & ~low, fraction | low, fraction, fraction])
    sign = rng.integers(0, 2, count).astype(format.word) << format.word(format.bits - 1)
    number: Array = ((exponent << format.mantissa) | fraction).astype(format.word) | sign
    return number
