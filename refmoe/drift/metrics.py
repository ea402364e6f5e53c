"""How far two results are apart, a sequence at a time. Numbers in float64; a distance that is undefined is NaN.

Bytes decide whether two results are the same; everything here says only by how much they are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.reference.fp32 import BF16

Array = NDArray[Any]
F64 = NDArray[np.float64]

_SIGN, _INFINITY = 0x8000, 0x7F80


def relative_l2(base: Array, other: Array) -> F64:
    """|other - base| / |base| of each sequence.

    Zero where every value is the same, even if all are zero; infinite where only the base is zero; NaN where either has
    a NaN or an infinity.

    Args:
        base: numbers [sequences, ...].
        other: likewise.

    Returns:
        float64 [sequences].
    """
    a, b = _rows(base, other)
    finite = _finite(a, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        norm, distance = _norm(a), _norm(b - a)
        ratio = np.where(distance == 0, 0.0, distance / norm)
    return np.where(finite, ratio, np.nan)


def cosine(base: Array, other: Array) -> F64:
    """The cosine of the angle between the two, of each sequence, within [-1, 1].

    One where both are the same, zero vectors included; NaN where only one is zero, or where either has a NaN or an
    infinity. Arguments and result as `relative_l2`.
    """
    a, b = _rows(base, other)
    finite = _finite(a, b)
    # Scaled first: the product of two norms may overflow where neither does.
    with np.errstate(divide="ignore", invalid="ignore"):
        product = (a / _norm(a)[:, None] * (b / _norm(b)[:, None])).sum(axis=1)
    product = np.where((a == b).all(axis=1), 1.0, np.clip(product, -1, 1))
    return np.where(finite, product, np.nan)


def max_ulp(base: Array, other: Array) -> F64:
    """The largest distance between two values in representable BF16 values; the two zeros are 0 apart.

    NaN where a value is NaN on one side only; NaNs on both sides are 0 apart.

    Args:
        base: bfloat16 [sequences, ...].
        other: likewise.

    Returns:
        float64 [sequences], whole numbers.

    Raises:
        ArgumentError: another dtype.
    """
    for name, value in (("base", base), ("other", other)):
        if value.dtype != BF16:
            raise ArgumentError(name, describe(value), "bfloat16")
    steps, nan = zip(*(_ordered(value) for value in (base, other)), strict=True)
    distance = np.abs(steps[0] - steps[1]).astype(np.float64)
    distance[nan[0] & nan[1]] = 0
    distance[nan[0] ^ nan[1]] = np.nan
    largest: F64 = distance.reshape(len(base), -1).max(axis=1)
    return largest


def differing(base: Array, other: Array) -> NDArray[np.int64]:
    """How many elements have other bytes, int64 [sequences]."""
    count: NDArray[np.int64] = (bit_patterns(base) != bit_patterns(other)).reshape(len(base), -1).sum(axis=1)
    return count


def divergence(base: Array, other: Array) -> F64:
    """Kullback-Leibler divergence of the softmax of `other` from that of `base`, in nats: the sum of p ln(p / q).

    Args:
        base: logits [sequences, V].
        other: likewise.

    Returns:
        float64 [sequences], at least 0; NaN where a logit is not finite.
    """
    a, b = _rows(base, other)
    finite = _finite(a, b)
    p, q = (_log_softmax(np.where(finite[:, None], x, 0.0)) for x in (a, b))
    # Rounding may leave a few 1e-17 below zero.
    total = np.maximum((np.exp(p) * (p - q)).sum(axis=1), 0.0)
    return np.where(finite, total, np.nan)


def agrees(base: Array, other: Array) -> NDArray[np.bool_]:
    """Whether the largest logit is the same one, bool [sequences]; of equal ones the first counts."""
    return np.asarray(base.argmax(axis=1) == other.argmax(axis=1))


def rerouted(base: Array, other: Array, sequences: int) -> F64:
    """The share of tokens that went to another set of experts, float64 [sequences].

    Args:
        base: experts by rank, integers [T, k]; the tokens of a sequence come together.
        other: likewise.
        sequences: how many the tokens are of.
    """
    unlike = (np.sort(base, axis=1) != np.sort(other, axis=1)).any(axis=1)
    return np.asarray(unlike.reshape(sequences, -1).mean(axis=1))


def _rows(base: Array, other: Array) -> tuple[F64, F64]:
    if base.shape != other.shape or not base.ndim or not base.size:
        raise ArgumentError("other", describe(other), f"the shape of base, {list(base.shape)}, with elements")
    # A signalling NaN warns when it is cast; what becomes of it is said by the caller.
    with np.errstate(invalid="ignore"):
        a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (base, other))
    return a, b


def _finite(a: F64, b: F64) -> NDArray[np.bool_]:
    return np.asarray((np.isfinite(a) & np.isfinite(b)).all(axis=1))


def _norm(x: F64) -> F64:
    """Of each row; by its largest magnitude first, so that no square over- or underflows."""
    largest = np.abs(x).max(axis=1)
    safe = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt(((x / safe[:, None]) ** 2).sum(axis=1)) * safe)


def _log_softmax(x: F64) -> F64:
    shifted = x - x.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _ordered(x: Array) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The place of each value among all BF16 values, both zeros at 0, and which are NaN."""
    bits = np.ascontiguousarray(x).view(np.uint16).astype(np.int32)
    magnitude = bits & (_SIGN - 1)
    return np.where(bits & _SIGN, -magnitude, magnitude), magnitude > _INFINITY


def bit_patterns(x: Array) -> Array:
    """The elements as unsigned integers of their size."""
    return np.ascontiguousarray(x).view(np.dtype(f"u{x.dtype.itemsize}"))
