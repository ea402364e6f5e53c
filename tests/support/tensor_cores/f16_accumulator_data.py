"""Operands for mma.sync m16n8k16 of FP16 with FP16 accumulators, by class of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

M, N, K = 16, 8, 16


class Operands(NamedTuple):
    """Of n chains: a [n, M, k] and b [n, N, k] FP16 bits, c [n, M, N] float32 that holds FP16 values."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray


def draw(name: str, seed: int, n: int, k: int = K) -> Operands:
    """`n` chains over `k` elements of that class."""
    rng = np.random.default_rng([seed, list(CLASSES).index(name)])
    values = CLASSES[name](rng, (n, M, k), (n, N, k), (n, M, N))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        a, b, c = (part.astype(np.float16) for part in values)
        return Operands(a.view(np.uint16), b.view(np.uint16), c.astype(np.float32))


Shape = tuple[int, ...]
Values = tuple[np.ndarray, np.ndarray, np.ndarray]


def _powers(rng: np.random.Generator, shape: Shape, low: int, high: int) -> np.ndarray:
    """Either sign, exponents from `low` to `high`."""
    return rng.choice([-1.0, 1.0], shape) * rng.uniform(1, 2, shape) * np.exp2(rng.integers(low, high + 1, shape))


def _bits(rng: np.random.Generator, shape: Shape, exponents: int) -> np.ndarray:
    """Any FP16 with one of that many lowest exponent fields: 1 is subnormal, 31 finite, 32 everything."""
    codes = rng.integers(0, exponents << 10, shape) | rng.integers(0, 2, shape) << 15
    return codes.astype(np.uint16).view(np.float16)


def _normal(rng: np.random.Generator, *shapes: Shape) -> Values:
    a, b, c = (rng.standard_normal(shape) for shape in shapes)
    return a, b, c


def _wide(rng: np.random.Generator, *shapes: Shape) -> Values:
    a, b, c = (_powers(rng, shape, -9, 5) for shape in shapes)
    return a, b, c


def _full(rng: np.random.Generator, *shapes: Shape) -> Values:
    a, b, c = (_bits(rng, shape, 31) for shape in shapes)
    return a, b, c


def _subnormal(rng: np.random.Generator, *shapes: Shape) -> Values:
    """One side subnormal, the other around 1; C subnormal."""
    return _bits(rng, shapes[0], 1), _powers(rng, shapes[1], -4, 2), _bits(rng, shapes[2], 1)


def _sparse(rng: np.random.Generator, *shapes: Shape) -> Values:
    a, b, c = (np.where(rng.random(shape) < 0.8, 0.0, _powers(rng, shape, -14, 6)) for shape in shapes)
    return a, b, c


def _zero_rule(rng: np.random.Generator, *shapes: Shape) -> Values:
    """Zeros that meet large elements, over small products and small or no C."""
    a, b = _powers(rng, shapes[0], -14, -8), _powers(rng, shapes[1], -12, -4)
    zeros = rng.random(shapes[0][2]) < 0.5
    a[:, :, zeros], b[:, :, zeros] = 0.0, _powers(rng, b[:, :, zeros].shape, 10, 14)
    return a, b, np.where(rng.random(shapes[2]) < 0.5, 0.0, _powers(rng, shapes[2], -24, -14))


def _cancelling(rng: np.random.Generator, *shapes: Shape) -> Values:
    """Large products that cancel in pairs, small ones that stay."""
    a, b = _powers(rng, shapes[0], -9, 0), _powers(rng, shapes[1], -9, 0)
    for k in range(0, shapes[0][2], 8):
        a[:, :, k], b[:, :, k] = _powers(rng, shapes[0][:2], 2, 5), _powers(rng, shapes[1][:2], 2, 5)
        a[:, :, k + 1], b[:, :, k + 1] = -a[:, :, k], b[:, :, k]
    return a, b, np.where(rng.random(shapes[2]) < 0.5, 0.0, _powers(rng, shapes[2], -14, -4))


def _overflow(rng: np.random.Generator, *shapes: Shape) -> Values:
    """Sums around 65520, from which on FP16 rounds to infinity."""
    c = rng.choice([-1.0, 1.0], shapes[2]) * rng.integers(2008, 2048, shapes[2]) * 32
    return _powers(rng, shapes[0], 0, 3), _powers(rng, shapes[1], 0, 3), c


def _special(rng: np.random.Generator, *shapes: Shape) -> Values:
    """One special element in some rows and columns."""
    a, b, c = _full(rng, *shapes)
    for part in (a, b):
        rows = rng.random(part.shape[:2]) < 0.2
        part[rows, rng.integers(part.shape[2])] = rng.choice([np.inf, -np.inf, np.nan, 0.0], rows.sum())
    special = rng.random(c.shape) < 0.1
    c[special] = rng.choice([np.inf, -np.inf, np.nan], special.sum())
    return a, b, c


def _tiny(rng: np.random.Generator, *shapes: Shape) -> Values:
    """Sums below and around the smallest subnormal, 2^-24, and half of it."""
    c = np.where(rng.random(shapes[2]) < 0.5, 0.0, _bits(rng, shapes[2], 1) * 2.0**-6)
    return _powers(rng, shapes[0], -15, -11), _powers(rng, shapes[1], -15, -11), c


def _signed_zeros(rng: np.random.Generator, *shapes: Shape) -> Values:
    a, b, c = (rng.choice([0.0, -0.0, 1.0, -1.0], shape, p=[0.45, 0.45, 0.05, 0.05]) for shape in shapes)
    return a, b, c


def _clamped(rng: np.random.Generator, *shapes: Shape) -> Values:
    """A subnormal C, half a unit of it, and 2^-40 or less, which is lost below 2^(-14 - 25)."""
    a, b = np.zeros(shapes[0]), np.zeros(shapes[1])
    a[..., 0], b[..., 0] = 2.0**-12 * rng.choice([-1, 1], shapes[0][:2]), 2.0**-13
    a[..., 1:4], b[..., 1:4] = rng.choice([-1, 1], (*shapes[0][:2], 3)) * 2.0**-24, 2.0**-16
    return a, b, _bits(rng, shapes[2], 1)


CLASSES: dict[str, Callable[..., Values]] = {
    "normal": _normal,
    "wide": _wide,
    "full": _full,
    "subnormal": _subnormal,
    "sparse": _sparse,
    "zero rule": _zero_rule,
    "cancelling": _cancelling,
    "overflow": _overflow,
    "special": _special,
    "tiny": _tiny,
    "signed zeros": _signed_zeros,
    "clamped": _clamped,
}
