"""The exact sum of products, fast: matrix products of integer slices, none of which rounds.

Each operand is cut, from the lowest bit of its values on, into slices of at most 20 bits (Ozaki et al., 2012). A
float64 matrix product of two slices over at most 2^12 elements of K stays below 2^53, so it is exact in any order; it
lands on a limb of 20 bits. The limbs are int64, carried once at the end.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from refmoe.reference.fp32 import add_to_odd
from refmoe.reference.mma.operands import Operand

_SLICE = 20
_K_A_PRODUCT = 1 << 12
_FLOAT64_BITS = 53
_LIMB_MASK = (1 << _SLICE) - 1


def exact_sums(a: Operand, b: Operand, c: NDArray[np.float32], *, magnitudes: bool = False) -> NDArray[np.float64]:
    """C + sum of a * b over K of P products [M, K] x [N, K], rounded to odd in float64, see `add_to_odd`.

    Args:
        a: the rows.
        b: the columns.
        c: float32 [P, M, N].
        magnitudes: add up |a| * |b| and |C| instead.
    """
    with np.errstate(invalid="ignore"):
        x, y, z = a.values(), b.values(), c.astype(np.float64)
    if magnitudes:
        x, y, z = np.abs(x), np.abs(y), np.abs(z)
    finite = [np.where(np.isfinite(part), part, 0.0) for part in (x, y, z)]
    result = _finite_sums(*finite)
    if not all(np.isfinite(part).all() for part in (x, y, z)):
        # Signs stand for the finite values, so that only what is special in the operands can make the sum so.
        with np.errstate(invalid="ignore"):
            signs = [np.where(np.isfinite(part), np.sign(part), part) for part in (x, y, z)]
            special = np.matmul(signs[0], signs[1].swapaxes(1, 2)) + signs[2]
        result = np.where(np.isfinite(special), result, special)
    return result


def _finite_sums(x: NDArray[np.float64], y: NDArray[np.float64], z: NDArray[np.float64]) -> NDArray[np.float64]:
    x_lowest, y_lowest = _lowest_bit(x), _lowest_bit(y)
    lowest = x_lowest + y_lowest
    x_slices, y_slices, z_slices = _slices(x, x_lowest), _slices(y, y_lowest), _slices(z, lowest)
    positions = [i + j for i in x_slices for j in y_slices] + list(z_slices)
    if not positions:
        return np.zeros(z.shape)
    if len(positions) == 1 and not z_slices and x.shape[2] <= _K_A_PRODUCT:
        # One product of one limb has no more than 53 bits. Elements of FP8 and FP4 without scales are such.
        return np.asarray(np.ldexp(np.matmul(x_slices[0], y_slices[0].swapaxes(1, 2)) + 0.0, lowest))
    first = min(positions)
    # A limb takes at most 2^10 products below 2^53; the last two are there for what is carried out of the others.
    limbs = np.zeros((max(positions) - first + 4, *z.shape), np.int64)
    for i, x_slice in x_slices.items():
        for j, y_slice in y_slices.items():
            for k in range(0, x.shape[2], _K_A_PRODUCT):
                part = slice(k, k + _K_A_PRODUCT)
                limbs[i + j - first] += np.matmul(x_slice[..., part], y_slice[..., part].swapaxes(1, 2)).astype(
                    np.int64
                )
    for i, z_slice in z_slices.items():
        limbs[i - first] += z_slice.astype(np.int64)
    for low, high in itertools.pairwise(limbs):
        high += low >> _SLICE
        low &= _LIMB_MASK
    # Every limb but the last is now in 0 .. 2^20 - 1, the last holds the sign. From the top down, each step's value
    # is below the last bit of the one before once that has more than 53 bits, so that rounding to odd stays exact.
    total = limbs[-1].astype(np.float64)
    for limb in limbs[-2::-1]:
        total = add_to_odd(total * 2.0**_SLICE, limb.astype(np.float64))
    return np.asarray(np.ldexp(total, lowest + first * _SLICE))


def _lowest_bit(values: NDArray[np.float64]) -> int:
    """The largest e of which all `values` are multiples of 2^e; 0 where all are zero."""
    significands, exponents = np.frexp(values[values != 0])
    if not significands.size:
        return 0
    whole = np.ldexp(significands, _FLOAT64_BITS).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return int((exponents + trailing).min()) - _FLOAT64_BITS


def _slices(values: NDArray[np.float64], lowest: int) -> dict[int, NDArray[np.float64]]:
    """Integers of at most 20 bits by their place i, so that `values` are the sum of slice * 2^(lowest + 20 i).

    No slice is zero. Below the bit `lowest` places are negative.
    """
    slices = {}
    rest = values.copy()
    while rest.any():
        place = (int(np.frexp(np.abs(rest).max())[1]) - 1 - lowest) // _SLICE
        slices[place] = np.trunc(np.ldexp(rest, -place * _SLICE - lowest))
        rest -= np.ldexp(slices[place], place * _SLICE + lowest)
    return slices
