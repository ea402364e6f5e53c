"""Intervals through the steps of an expert: what holds a number before a step, and what holds it after.

Every rounding is monotone: an interval that holds a number before it, rounded at both ends, holds it after.
`refmoe.reference.moe.enclosure` puts these together. Intervals are pairs of float64 arrays; float64 rounds here too, so
each sum is widened by K 2^-52 of the sum of its magnitudes, and each function value by 2^-40 of itself. An end that is
not a number stands for anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError
from refmoe.formats import E4M3, E8M0, MX_BLOCK, Q8_1
from refmoe.reference import fp32
from refmoe.reference.exponential import MAX_ULP
from refmoe.reference.mma import AccumulationModel, Kind

F64 = NDArray[np.float64]

_UNIT = 2.0**-24
_FUNCTION = 2.0**-40
_ROWS_AT_A_TIME = 512
_LEAST = 2.0**-126
_OVERFLOW = 2.0**128 - 2.0**103  # from here on FP32 rounds to infinity
_LARGEST_CODE = np.float32(Q8_1.max_code)

#: x sigmoid(x) has one minimum: where, and how low; rounded outward in the last digit given.
_MINIMUM_AT, _MINIMUM = -1.2784645428, -0.2784645428

#: Below this an argument's sigmoid is under 1.9e-35, exact or computed; errors there are bounded as a whole.
_TAIL, _TAIL_SIGMOIDS = -80.0, 4e-35


class Interval(NamedTuple):
    """Ends of intervals, float64 arrays of one shape."""

    low: F64
    high: F64

    @property
    def magnitude(self) -> F64:
        """The largest magnitude in each."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


@dataclass(frozen=True, eq=False)
class Matrix:
    """An operand of a GEMM that is known.

    Attributes:
        values: float64 [N, K].
        least: float64, broadcast to [N, K]: 2^emin of the elements' format at their scale. A subnormal operand takes
            part in an alignment as if it were that large.
    """

    values: F64
    least: F64


def chain(weights: Matrix, tokens: Interval, least: F64, model: AccumulationModel, block: int) -> Interval:
    """What the model's sums of weights [N, K] times operands in `tokens` [R, K] can be: [R, N].

    Block t of L products adds at most (L + 1) 2^(E_t - F) + 2^-m |C_t| + 2^(emin - m) to the error, the running bound
    of `refmoe.reference.mma.bounds`. 2^E_t is at most the largest of |C_t-1|, 2^-126 and the products, each operand
    counted at least as `least`; |C_t| is at most the interval of the partial sum and the error so far. Chains rounded
    to nearest have no alignment, and half a unit of |C_t| a step.

    Args:
        weights: what is known.
        tokens: what is known within an interval.
        least: as in `Matrix`, of the tokens, broadcast to [R, K].
        model: a fused chain with FP32 accumulators, or a sum rounded to nearest.
        block: L.

    Raises:
        ArgumentError: another kind of model.
    """
    if model.kind not in (Kind.FUSED, Kind.FMA, Kind.EXACT) or model.to_nearest:
        raise ArgumentError("model", model.name, "a fused chain with FP32 accumulators, fp32 or exact")
    rows, k = tokens.low.shape
    length = k if model.kind is Kind.EXACT else block
    centre = (tokens.low + tokens.high) / 2
    radius = (tokens.high - tokens.low) / 2 + np.where(tokens.low == tokens.high, 0.0, 2.0**-52 * np.abs(centre))
    counted = np.where(tokens.magnitude > 0, np.maximum(tokens.magnitude, least), 0.0)
    low, high = np.empty((rows, len(weights.values))), np.empty((rows, len(weights.values)))
    floors = np.broadcast_to(weights.least, weights.values.shape)
    for start in range(0, len(weights.values), _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        known = Matrix(weights.values[part], floors[part])
        for row in range(rows):
            middle, width = _chain_row(known, centre[row], radius[row], counted[row], model, length)
            low[row, part], high[row, part] = middle - width, middle + width
    return Interval(low, high)


def _chain_row(
    weights: Matrix, centre: F64, radius: F64, counted: F64, model: AccumulationModel, length: int
) -> tuple[F64, F64]:
    """The sums [N] of one row of operands and how far the chain can be from them."""
    magnitudes = np.abs(weights.values)

    def by_block(products: F64) -> F64:
        return products.reshape(len(products), -1, length)

    sums = by_block(weights.values * centre).sum(axis=2).cumsum(axis=1)
    spread = by_block(magnitudes * radius).sum(axis=2).cumsum(axis=1)
    total = by_block(magnitudes * np.abs(centre)).sum(axis=2).cumsum(axis=1)
    spread = (spread + centre.size * 2.0**-52 * (total + spread)) * (1 + 2.0**-40)
    reach = np.abs(sums) + spread
    largest = np.where(magnitudes > 0, np.maximum(magnitudes, weights.least), 0.0) * counted
    tops = np.maximum(by_block(largest).max(axis=2), _LEAST)
    fused = model.kind is Kind.FUSED
    align = (length + 1) * 2.0**-model.align_bits if fused and model.align_bits is not None else 0.0
    rounding = 2.0**-model.result_bits if fused else _UNIT
    error, previous = np.zeros(len(sums)), np.zeros(len(sums))
    for t in range(sums.shape[1]):
        error += align * np.maximum(tops[:, t], previous)
        error += rounding * (reach[:, t] + error) + 2.0**-149
        previous = reach[:, t] + error
    return sums[:, -1], spread[:, -1] + error * (1 + 2.0**-30)


def integer_sums(weights: Matrix, tokens: Interval, scales: F64, additions: int) -> Interval:
    """What DP4A's products of weights [N, K] and Q8_1 operands in `tokens` [R, K] can be: [R, N].

    The sum over a block is an integer and exact. It is multiplied twice, RN(RN(d * scale / 2) * sum), and then added in
    a tree. With u = 2^-24 and n = 2 + `additions` roundings on a term's way, the result is off by at most
    n u / (1 - n u) of the sum of the terms' magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 4.2),
    and where a product underflows by 2^-150 more, the first one's 2^-150 being multiplied by up to 32 * 12 * 128.

    Args:
        weights: MXFP4, `least` being the scale of each element.
        tokens: code times d, within an interval.
        scales: the largest d of each block, [R, K / 32].
        additions: of a term, at most.

    Returns:
        NaN where a product or a partial sum might overflow.
    """
    rows, k = tokens.low.shape
    with np.errstate(invalid="ignore"):
        centre = (tokens.low + tokens.high) / 2
        radius = (tokens.high - tokens.low) / 2 + np.where(tokens.low == tokens.high, 0.0, 2.0**-52 * np.abs(centre))
    roundings = (2 + additions) * _UNIT
    relative = roundings / (1 - roundings)
    underflow = k // Q8_1.block * 2.0**-150 * (32 * 12 * 128 + 1) * 1.01
    low, high = np.empty((rows, len(weights.values))), np.empty((rows, len(weights.values)))
    halves = np.broadcast_to(weights.least, weights.values.shape)[:, :: Q8_1.block] / 2
    for start in range(0, len(weights.values), _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        values = weights.values[part]
        for row in range(rows):
            middle, spread, size = _block_sums(values, centre[row], radius[row])
            width = spread + (relative * size + underflow) * (1 + 2.0**-30)
            overflows = ((halves[part] * scales[row]).max(axis=1) >= _OVERFLOW) | (size * 1.01 >= _OVERFLOW)
            middle = np.where(overflows, np.nan, middle)
            low[row, part], high[row, part] = middle - width, middle + width
    return Interval(low, high)


def _block_sums(values: F64, centre: F64, radius: F64) -> tuple[F64, F64, F64]:
    """Of one row of operands [K] and weights [N, K]: the sums [N], how far operands can move them, and the sum of the
    magnitudes of the blocks' terms."""
    blocks = (len(values), -1, Q8_1.block)
    with np.errstate(invalid="ignore"):  # of an operand that is not finite
        terms = (values * centre).reshape(blocks).sum(axis=2)
        spread, total = np.abs(values) @ radius, np.abs(values) @ np.abs(centre)
    spread = (spread + centre.size * 2.0**-52 * (total + spread)) * (1 + 2.0**-40)
    return terms.sum(axis=1), spread, np.abs(terms).sum(axis=1) + spread


def fp32_rounded(numbers: Interval, addend: NDArray[np.float32] | None) -> tuple[NDArray[np.float32], ...]:
    """FP32 numbers in the intervals, and RN of them plus `addend`, at both ends."""
    with np.errstate(over="ignore", under="ignore"):
        ends = [end.astype(np.float32) for end in numbers]
    return tuple(ends if addend is None else [fp32.add(end, addend) for end in ends])


def bf16_rounded(numbers: Interval, addend: NDArray[np.float32] | None = None) -> Interval:
    """BF16 of FP32 numbers in the intervals, after adding."""
    low, high = (fp32.bf16(end).astype(np.float64) for end in fp32_rounded(numbers, addend))
    return Interval(low, high)


def routed(logits: Interval, k: int) -> tuple[NDArray[np.int32], Interval, NDArray[np.bool_]]:
    """Softmax top-k of FP32 logits in the intervals [T, E]: ids and weights [T, k], and whose ids are certain [T].

    Ids are certain where each chosen logit's interval lies above those of all that come after it. exp is off by
    MAX_ULP units of at most 2^-23, or of a subnormal; the additions and the division by 2^-24 each.
    """
    order = np.argsort(-(logits.low + logits.high), axis=1, kind="stable")
    low, high = (np.take_along_axis(end, order, axis=1) for end in logits)
    after = np.maximum.accumulate(high[:, ::-1], axis=1)[:, ::-1]
    certain = np.ones(len(order), bool)
    for rank in range(min(k, order.shape[1] - 1)):
        certain &= low[:, rank] > after[:, rank + 1]
    # The first of the differences is exact.
    ends = [low[:, :k] - high[:, :1], high[:, :k] - low[:, :1]]
    with np.errstate(over="ignore", under="ignore"):
        powers = [np.exp(end + side * _UNIT * np.abs(end)) for end, side in zip(ends, (-1, 1), strict=True)]
    powers[0] = np.maximum(powers[0] * (1 - MAX_ULP * 2.0**-23 - _FUNCTION) - 2.0**-149, 0.0)
    powers[1] = powers[1] * (1 + MAX_ULP * 2.0**-23 + _FUNCTION) + 2.0**-149
    powers[0][:, 0] = powers[1][:, 0] = 1.0
    sums = [power.sum(axis=1, keepdims=True) for power in powers]
    slack = 1.01 * (k + 1) * _UNIT
    low_weights = powers[0] / sums[1] * (1 - slack) - 2.0**-149
    return (
        order[:, :k].astype(np.int32),
        Interval(np.maximum(low_weights, 0.0), powers[1] / sums[0] * (1 + slack) + 2.0**-149),
        certain,
    )


def swiglu_values(gate: Interval, up: Interval, alpha: float, beta: float | None, limit: float | None) -> Interval:
    """The FP32 results of the activation: the formula's values over the intervals, and the sequence's own roundings.

    x sigmoid(x) falls to its one minimum and rises after it, and a product of intervals has its extremes at corners.
    `beta` None adds nothing and `limit` None clamps nothing.

    Raises:
        ArgumentError: alpha is not positive.
    """
    if not alpha > 0:
        raise ArgumentError("alpha", repr(alpha), "a positive number")
    if limit is not None:
        gate = Interval(*(np.minimum(end, limit) for end in gate))
        up = Interval(*(np.clip(end, -limit, limit) for end in up))
    if beta is not None:
        up = Interval(up.low + beta, up.high + beta)
    with np.errstate(over="ignore", invalid="ignore"):
        ends = [end / (1 + np.exp(-alpha * end)) for end in gate]
        least, most = np.minimum(*ends), np.maximum(*ends)
        turns = (alpha * gate.low <= _MINIMUM_AT + 1e-9) & (alpha * gate.high >= _MINIMUM_AT - 1e-9)
        least = np.where(turns, (_MINIMUM - 1e-9) / alpha, least)
        corners = [a * b for a in (least, most) for b in up]
        low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
        slack = np.maximum(np.abs(low), np.abs(high)) * _FUNCTION + 1e-300
        error = _activation_error(Interval(low, high), gate, up, alpha)
        return Interval(low - slack - error, high + slack + error)


def _activation_error(values: Interval, gate: Interval, up: Interval, alpha: float) -> F64:
    """How far the FP32 sequence can be from the formula of the same gate and up.

    exp(t): t = RN(g * -FP32(alpha)) is off by 2^-23 of itself, doubled here, which multiplies exp by e^that; the
    sequence adds MAX_ULP units, of at most 2^-23. A relative error of exp is at least that of 1 / (1 + exp). Five more
    roundings follow: the addition of 1, the division, g * s, u + beta, the product. 1 % covers products of errors.
    Below `_TAIL`, where exp may overflow, both sigmoids are bounded instead; above -_TAIL exp is nothing beside 1.
    Subnormal products add 2^-149 each.
    """
    argument = np.minimum(alpha * gate.magnitude, -_TAIL + 1)
    relative = (1 + np.expm1(argument * 2.0**-22)) * (1 + MAX_ULP * 2.0**-23) * (1 + _UNIT) ** 5 - 1
    factor = up.magnitude
    tail = np.where(alpha * gate.low < _TAIL, gate.magnitude * _TAIL_SIGMOIDS * factor, 0.0)
    return np.asarray(1.01 * (values.magnitude * relative + tail) + 2.0**-149 * (1.01 * factor + 1))


def requantized(numbers: Interval) -> tuple[Interval, F64]:
    """MXFP8 (RCEIL) of FP32 numbers in the intervals [R, K], and 2^emin at the scale of each, the larger if two can be.

    Where a block's amax can only have one scale, elements are rounded at both ends. Elsewhere an element is off by at
    most half a unit, 2^-4 of its binade, or of the subnormals at the larger scale.
    """
    shape = (len(numbers.low), -1, MX_BLOCK)
    low, high = (end.reshape(shape) for end in numbers)
    largest = np.maximum(np.abs(low), np.abs(high))
    smallest = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
    first, last = _rceil(smallest.max(axis=2)), _rceil(largest.max(axis=2))
    scale = np.ldexp(1.0, last)[:, :, None]
    certain, finite = (first == last)[:, :, None], np.isfinite(largest.max(axis=2))[:, :, None]
    half = np.maximum(np.ldexp(1.0, np.frexp(largest)[1] - 1 - E4M3.mantissa_bits - 1), scale * 2.0**-10)
    ends = []
    for end, side in ((low, -1), (high, 1)):
        rounded = np.where(certain, _e4m3(end / scale) * scale, end + side * half)
        ends.append(np.where(finite, rounded, np.nan))
    least = np.broadcast_to(scale * 2.0**E4M3.emin, low.shape).reshape(numbers.low.shape)
    return Interval(*(end.reshape(numbers.low.shape) for end in ends)), least


def q8_1_values(numbers: Interval) -> tuple[Interval, F64]:
    """Code times d of Q8_1 (llama_cpp_mmvq) of FP32 numbers in the intervals [R, K], and the largest d of each block.

    d = RN(amax / 127) lies between those of the least and the largest amax, and so does d in FP16. A code is that of
    the quotients' ends, and at most 127 while d is a normal number of FP32. The product is also no further from its
    number than half a d and the errors of the quotient, 127 2^-24 of d, and of FP16, 127 times 2^-11 of d or 2^-25. A
    subnormal d is 0 in FP16, whatever the codes.

    Returns:
        NaN where d is not finite in FP16.
    """
    shape = (len(numbers.low), -1, Q8_1.block)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        low, high = (end.astype(np.float32).reshape(shape) for end in numbers)
        largest = np.maximum(np.abs(low), np.abs(high))
        smallest = np.where((low <= 0) & (high >= 0), np.float32(0), np.minimum(np.abs(low), np.abs(high)))
        # [R, blocks, 1]: d for the least and for the largest amax, in FP32 and then in FP16.
        single = [fp32.divide(end.max(axis=2, keepdims=True), _LARGEST_CODE) for end in (smallest, largest)]
        stored = [d.astype(np.float16).astype(np.float64) for d in single]
    normal = single[0] >= _LEAST
    safe = [np.where(d >= _LEAST, d, np.float32(1)) for d in single]
    codes = []
    for end, side in ((low, -1), (high, 1)):
        quotient = fp32.divide(end, np.where(end * np.float32(side) > 0, safe[0], safe[1])).astype(np.float64)
        limit = float(Q8_1.max_code) if side > 0 else -float(Q8_1.max_code)
        rounded = np.clip(np.trunc(quotient + np.copysign(0.5, quotient)), -Q8_1.max_code, Q8_1.max_code)
        codes.append(np.where(normal, rounded, np.where(largest.max(axis=2, keepdims=True) > 0, limit + side, 0.0)))
    wide, finite = single[1].astype(np.float64), np.isfinite(stored[1])
    slack = wide * (0.5 + 2.0**-16) + Q8_1.max_code * (wide * 2.0**-11 + 2.0**-25)
    with np.errstate(invalid="ignore"):  # of what is not finite nothing is said
        corners = [code * d for code in codes for d in stored]
        reach = [low - slack, high + slack]
    reach = [np.where(normal, end, outer(end, 0)) for end, outer in zip(reach, (np.minimum, np.maximum), strict=True)]
    ends = np.maximum(np.minimum.reduce(corners), reach[0]), np.minimum(np.maximum.reduce(corners), reach[1])
    values = Interval(*(np.where(finite, end, np.nan).reshape(numbers.low.shape) for end in ends))
    return values, stored[1][:, :, 0]


def _rceil(amax: F64) -> NDArray[np.int64]:
    """The exponent of the smallest power of two that is at least amax / 448 = amax / (0.875 * 2^9), not below -127."""
    significand, exponent = np.frexp(amax)
    power = np.where(significand <= 0.875, exponent - 9, exponent - 8)
    return np.asarray(np.maximum(np.where(amax > 0, power, -E8M0.bias), -E8M0.bias), np.int64)


def _e4m3(values: F64) -> F64:
    """Rounded to nearest even in E4M3, saturating."""
    unit = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 1, E4M3.emin) - E4M3.mantissa_bits)
    limit = float(E4M3.max)
    return np.asarray(np.clip(np.rint(values / unit) * unit, -limit, limit))
