"""SwiGLU as gpt-oss has it, clamped and interleaved, and the plain one. FP32; every operation rounded to nearest.

    gpt_oss: g, u = even and odd columns (+ bias);  g = min(g, limit);  u = clamp(u, -limit, limit)
             s = 1 / (1 + exp(g * -alpha));         out = (g * s) * (u + beta)
    silu:    g, u = first and second half (+ bias)
             s = 1 / (1 + exp(-g));                 out = (g * s) * u

exp is the sequence of `refmoe.reference.exponential`. A NaN stays one, through the clamps too, and comes out as
0x7FFFFFFF. g = -Inf gives NaN, -Inf times a sigmoid of zero; a finite g whose exponential overflows gives a zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.reference import fp32
from refmoe.reference.exponential import exponential

__all__ = ["ALPHA", "BETA", "LIMIT", "VARIANTS", "swiglu"]

VARIANTS = ("gpt_oss", "silu")
ALPHA, BETA, LIMIT = 1.702, 1.0, 7.0
"""What gpt-oss has; each is rounded to FP32."""

_ONE = np.float32(1)


def swiglu(
    gate_up: NDArray[Any],
    *,
    variant: str = "gpt_oss",
    bias: NDArray[Any] | None = None,
    alpha: float | NDArray[np.float32] = ALPHA,
    beta: float | NDArray[np.float32] = BETA,
    limit: float | NDArray[np.float32] = LIMIT,
) -> NDArray[np.float32]:
    """The activation between the two GEMMs of an expert.

    Args:
        gate_up: bfloat16 or float32 [T, 2 I].
        variant: "gpt_oss" or "silu".
        bias: bfloat16 or float32 [2 I], or [T, 2 I] with one row a row; laid out as `gate_up` and added first, in FP32.
        alpha: the sigmoid's factor, a number or float32 [T], one a row; gpt_oss only, as the next two.
        beta: what is added to u, likewise.
        limit: of the clamps, not NaN and not negative, likewise.

    Returns:
        float32 [T, I].

    Raises:
        ArgumentError: wrong dtype or shape, an odd number of columns, an unknown variant, a limit that is negative or
            NaN, or a parameter that `silu` does not have.
    """
    _check(gate_up, variant, bias)
    if variant == "silu":
        _refuse_parameters(alpha=(alpha, ALPHA), beta=(beta, BETA), limit=(limit, LIMIT))
    values = gate_up.astype(np.float32)
    if bias is not None:
        values = fp32.add(values, bias.astype(np.float32))
    if variant == "silu":
        half = values.shape[1] // 2
        gate, up = values[:, :half], values[:, half:]
        return fp32.multiply(fp32.multiply(gate, _sigmoid(-gate)), up)
    factor, addend, bound = (
        _per_row(name, value, len(values)) for name, value in (("alpha", alpha), ("beta", beta), ("limit", limit))
    )
    if not (bound >= 0).all():
        raise ArgumentError("limit", f"{bound[~(bound >= 0)][0]}", "a limit of at least 0")
    # np.minimum and np.maximum keep a NaN, as min.NaN and max.NaN of PTX do.
    gate, up = np.minimum(values[:, 0::2], bound), np.maximum(np.minimum(values[:, 1::2], bound), -bound)
    return fp32.multiply(fp32.multiply(gate, _sigmoid(fp32.multiply(gate, -factor))), fp32.add(up, addend))


def _sigmoid(negated: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / (1 + exp(negated))."""
    return fp32.divide(_ONE, fp32.add(_ONE, exponential(negated)))


def _per_row(name: str, value: object, rows: int) -> NDArray[np.float32]:
    """The parameter as float32 [T, 1] or [1, 1]."""
    if isinstance(value, (int, float, np.floating)) and not isinstance(value, bool):
        return np.full((1, 1), value, np.float32)
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.shape != (rows,):
        raise ArgumentError(name, describe(value), f"a number, or float32 [{rows}]")
    return value[:, None]


def _refuse_parameters(**parameters: tuple[object, float]) -> None:
    for name, (value, default) in parameters.items():
        if isinstance(value, np.ndarray) or value != default:
            raise ArgumentError(name, f"{describe(value)} with silu, which has none", "the gpt_oss variant")


def _check(gate_up: object, variant: object, bias: object) -> None:
    dtypes = (np.dtype(np.float32), fp32.BF16)
    if not isinstance(gate_up, np.ndarray) or gate_up.dtype not in dtypes or gate_up.ndim != 2:
        raise ArgumentError("gate_up", describe(gate_up), "bfloat16 or float32 [T, 2 I]")
    rows, columns = gate_up.shape
    if columns % 2:
        raise ArgumentError("gate_up", describe(gate_up), "an even number of columns")
    if not isinstance(variant, str) or variant not in VARIANTS:
        raise ArgumentError("variant", describe(variant), f"one of {', '.join(VARIANTS)}")
    if bias is not None and (
        not isinstance(bias, np.ndarray) or bias.dtype not in dtypes or bias.shape not in ((columns,), (rows, columns))
    ):
        raise ArgumentError("bias", describe(bias), f"bfloat16 or float32 [{columns}] or [{rows}, {columns}]")
