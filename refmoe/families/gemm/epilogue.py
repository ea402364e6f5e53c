"""What every grouped GEMM's family needs beside its products: factors, biases, the epilogue, where a result must lie.

The epilogue is written apart from the references', so that second answers and error bounds do not rest on them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import word
from refmoe.families.family import Case
from refmoe.families.gemm.stages import BoundInterval

BF16 = np.dtype(ml_dtypes.bfloat16)
OUTPUTS: dict[str, np.dtype[Any]] = {"bf16": BF16, "f32": np.dtype(np.float32)}
BITS: dict[str, np.dtype[Any]] = {"bf16": np.dtype(np.uint16), "f32": np.dtype(np.uint32)}

#: No factor; ordinary ones; 0, -0, negative, subnormal, so large that products overflow, infinite, and no number.
ALPHA = word("alpha", "none", "distinct", "edges")
BIAS = word("bias", "none", "distinct")
#: Of a layer: none; of both products; of one of them.
LAYER_BIAS = word("bias", "none", "distinct", "first", "second")
#: Of a product: no bias; ordinary terms; zeros of either sign and subnormal numbers; a NaN, an infinity or the largest
#: number for one in four of the ordinary terms.
PRODUCT_BIAS = word("bias", "none", "distinct", "tiny", "specials")

#: FP32 bits of factors that experts have in turn: 0, -1.1, -0, the least subnormal, 2^-128, 2^127, an ulp over 1, Inf
#: and a NaN.
_EDGE_ALPHAS = np.array(
    [0, 0xBF8CCCCD, 0x80000000, 1, 0x80200000, 0x7F000000, 0x3F800001, 0x7F800000, 0xFFC00001], np.uint32
).view(np.float32)
#: BF16 patterns: zeros, the least and the largest subnormal numbers, of either sign.
_TINY_BIAS = np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x807F], np.uint16).view(BF16)
#: And NaN, infinities and the largest numbers.
_SPECIAL_BIAS = np.array([0x7FC0, 0xFFC1, 0x7F80, 0xFF80, 0x7F7F, 0xFF7F], np.uint16).view(BF16)

FloatArray = NDArray[np.float32]


def alpha_of(case: Case) -> FloatArray | None:
    """Factors of the experts as the option `alpha` says, float32 [experts], or None."""
    if case.alpha == "edges":
        return np.resize(_EDGE_ALPHAS, case.shape.e)
    return distinct_alpha(case) if case.alpha == "distinct" else None


def bias_of(case: Case) -> NDArray[Any] | None:
    """Terms as the option `bias` says, BF16 [experts, n], or None."""
    if case.bias == "tiny":
        places = Draw("tiny-bias", case.seed).integers(_TINY_BIAS.size, (case.shape.e, case.shape.n))
        return np.asarray(_TINY_BIAS[places])
    if case.bias == "specials":
        return special_bias(Draw("special-bias", case.seed), distinct_bias(case))
    return distinct_bias(case) if case.bias == "distinct" else None


def special_bias(draw: Draw, ordinary: NDArray[Any]) -> NDArray[Any]:
    """BF16 terms one in four of which is a NaN, an infinity or the largest number."""
    chosen = _SPECIAL_BIAS[draw.integers(_SPECIAL_BIAS.size, ordinary.shape)]
    return np.where(draw.integers(4, ordinary.shape) == 0, chosen, ordinary)


def distinct_alpha(case: Case) -> FloatArray:
    """Factors of all 24 significant bits and either sign, in 2^-2 .. 2^2, no two alike."""
    draw, shape = Draw("alpha", case.seed), (case.shape.e,)
    bits = (125 + draw.integers(4, shape)) << 23 | draw.integers(1 << 23, shape) | draw.integers(2, shape) << 31
    return bits.astype(np.uint32).view(np.float32)


def distinct_bias(case: Case) -> NDArray[Any]:
    """BF16 terms about as large as the sum of K products of ordinary numbers."""
    values = Draw("bias", case.seed).normal((case.shape.e, case.shape.n)) * np.sqrt(case.shape.k)
    return np.asarray(values.astype(BF16))


def output_bits(case: Case, values: NDArray[Any], used: int) -> NDArray[Any]:
    """The output's bit patterns [T, N]; rows from `used` on hold the poison."""
    bits: NDArray[Any] = np.ascontiguousarray(values).view(BITS[case.dtype]).copy()
    bits[used:].view(np.uint8)[:] = case.poison
    return bits


def row_expert(offsets: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """The expert of each row; rows of none get the last."""
    experts = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    return np.concatenate([experts, np.full(rows - experts.size, offsets.size - 2)])


def epilogue(case: Case, inputs: Any, sums: FloatArray) -> NDArray[Any]:
    """RN(RN(alpha * sum) + bias) of each row's expert, in the output's type."""
    expert = row_expert(inputs["offsets"], sums.shape[0])
    alpha, bias = inputs["alpha"], inputs["bias"]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        scaled = sums if alpha is None else np.multiply(sums, alpha[expert][:, None], dtype=np.float32)
        shifted = scaled if bias is None else np.add(scaled, bias[expert].astype(np.float32), dtype=np.float32)
        return np.asarray(shifted.astype(OUTPUTS[case.dtype]))


def interval(case: Case, inputs: Any, exact: NDArray[np.float64], bound: NDArray[np.float64]) -> BoundInterval:
    """Where the output must lie: the exact sum and the model's running bound, taken through the epilogue.

    Rounding to nearest is monotone, so the ends of the interval, as FP32 numbers, go through alpha, bias and cast as
    the sum itself does. Truncation toward zero never enlarges a magnitude: where all terms are positive, as in the fill
    of that name, the upper end is the exact sum. Of a factor or a term that is no number nothing is promised.
    """
    promised = np.isfinite(exact) & np.isfinite(bound)
    if inputs["alpha"] is not None:
        promised &= np.isfinite(inputs["alpha"])[row_expert(inputs["offsets"], exact.shape[0])][:, None]
    if inputs["bias"] is not None:
        promised &= np.isfinite(inputs["bias"].astype(np.float32))[row_expert(inputs["offsets"], exact.shape[0])]
    slack = bound + 2.0**-52 * np.abs(exact)
    low, high = (np.where(promised, exact + side * slack, 0.0) for side in (-1, 1))
    if case.fill == "positive":
        high = np.where(promised, exact, 0.0)
    ends = [epilogue(case, inputs, _inward(end, side)) for end, side in ((low, 1), (high, -1))]
    return BoundInterval(
        low=np.where(promised, np.minimum(*ends), -np.inf),
        high=np.where(promised, np.maximum(*ends), np.inf),
        exact=exact,
        bound=np.where(promised, bound, np.inf),
    )


def _inward(ends: NDArray[np.float64], side: int) -> FloatArray:
    """The nearest FP32 number that is not outside: not below `ends` for side 1, not above for side -1."""
    with np.errstate(over="ignore"):
        near = ends.astype(np.float32)
    outside = near < ends if side > 0 else near > ends
    return np.where(outside, np.nextafter(near, np.float32(side * np.inf), dtype=np.float32), near)
