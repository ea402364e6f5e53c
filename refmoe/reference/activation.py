"""SwiGLU as gpt-oss has it, clamped and interleaved, and the plain one. FP32; every operation rounded to nearest.

    gpt_oss: g, u = even and odd columns (+ bias);  g = min(g, limit);  u = clamp(u, -limit, limit)
             s = 1 / (1 + exp(g * -alpha));         out = (g * s) * (u + beta)
    silu:    g, u = first and second half (+ bias)
             s = 1 / (1 + exp(-g));                 out = (g * s) * u

exp is the sequence of `refmoe.reference.exponential`. -0 is less than +0: a limit of 0 leaves a gate of -0 as it is.
A NaN stays one, through the clamps too, and comes out as 0x7FFFFFFF. g = -Inf gives NaN, -Inf times a sigmoid of
zero; a finite g whose exponential overflows gives a zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK
from refmoe.policy import EdgePolicy, ScaleMode
from refmoe.reference import fp32
from refmoe.reference.arrays import check_optional, checked_array
from refmoe.reference.exponential import exponential
from refmoe.reference.layout import (
    GROUPED_LAYOUTS,
    checked_fill,
    checked_grouped_rows,
    checked_offsets,
    checked_size,
    expert_scale_rows,
    layout_named,
    write_scale_rows,
)
from refmoe.reference.quantize import quantize_mxfp8

VARIANTS = ("gpt_oss", "silu")
ALPHA, BETA, LIMIT = 1.702, 1.0, 7.0
"""What gpt-oss has; each is rounded to FP32."""

_ONE = np.float32(1)


@dataclass(frozen=True, eq=False)
class QuantizedRows:
    """Rows in expert order as the second GEMM reads them.

    Attributes:
        codes: E4M3 codes, uint8 [R, I].
        scales: E8M0 scales, uint8 1-D as `refmoe.reference.Expanded` has them.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]


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
    gate = fp32.minimum(values[:, 0::2], bound)
    up = fp32.maximum(fp32.minimum(values[:, 1::2], bound), -bound)
    return fp32.multiply(fp32.multiply(gate, _sigmoid(fp32.multiply(gate, -factor))), fp32.add(up, addend))


def swiglu_by_expert(
    gate_up: NDArray[Any],
    offsets: NDArray[np.int64],
    *,
    variant: str = "gpt_oss",
    bias: NDArray[Any] | None = None,
    alpha: NDArray[np.float32] | None = None,
    beta: NDArray[np.float32] | None = None,
    limit: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """`swiglu` of the rows in use, float32 [offsets[E], I], each with the bias and the parameters of its expert.

    Args and errors are those of `swiglu_quantize`.
    """
    experts = checked_offsets(offsets).size - 1
    _check(gate_up, variant, None)
    rows, columns = gate_up.shape
    if offsets[-1] > rows:
        raise ArgumentError("offsets", f"{offsets[-1]} rows in use", f"at most the {rows} rows of gate_up")
    if bias is not None and (not isinstance(bias, np.ndarray) or bias.shape != (experts, columns)):
        raise ArgumentError("bias", describe(bias), f"bfloat16 or float32 [{experts}, {columns}]")
    given = {"alpha": alpha, "beta": beta, "limit": limit}
    for name, values in given.items():
        check_optional(name, values, (experts,), np.float32)
    owner = np.repeat(np.arange(experts), np.diff(offsets))
    parameters = {name: values[owner] for name, values in given.items() if values is not None}
    bias_rows = None if bias is None else bias[owner]
    return swiglu(gate_up[: int(offsets[-1])], variant=variant, bias=bias_rows, **parameters)


def swiglu_quantize(
    gate_up: NDArray[Any],
    offsets: NDArray[np.int64],
    *,
    variant: str = "gpt_oss",
    mode: ScaleMode | str = ScaleMode.RCEIL,
    edge: EdgePolicy | str = EdgePolicy.EXACT,
    bias: NDArray[Any] | None = None,
    alpha: NDArray[np.float32] | None = None,
    beta: NDArray[np.float32] | None = None,
    limit: NDArray[np.float32] | None = None,
    layout: str = "128x4",
    fill: int = 0,
) -> QuantizedRows:
    """`swiglu` of rows in expert order, its FP32 values quantized to MXFP8, scales where the grouped GEMM wants them.

    Args:
        gate_up: bfloat16 or float32 [R, 2 I], I a multiple of 32; rows from offsets[E] on are not read.
        offsets: int64 [E + 1], first row of each expert, then the number of rows in use, at most R.
        variant: "gpt_oss" or "silu".
        mode: how block scales are chosen; a `ScaleMode` or its lower-case name.
        edge: what zeros, NaN and Inf become; an `EdgePolicy` or its lower-case name.
        bias: bfloat16 or float32 [E, 2 I], added first.
        alpha: float32 [E], one an expert; None is gpt-oss's own.
        beta: likewise.
        limit: likewise.
        layout: of the scales, as in `refmoe.reference.expand`.
        fill: byte of code rows from offsets[E] on and of scale rows that belong to no row.

    Raises:
        ArgumentError: as `swiglu`; offsets that do not fit; I no multiple of 32; an unknown mode, edge or layout.
    """
    chosen, byte = layout_named(layout, GROUPED_LAYOUTS), checked_fill(fill)
    values = swiglu_by_expert(gate_up, offsets, variant=variant, bias=bias, alpha=alpha, beta=beta, limit=limit)
    rows, (used, width), experts = len(gate_up), values.shape, offsets.size - 1
    if width % MX_BLOCK:
        raise ArgumentError("gate_up", describe(gate_up), f"I a multiple of {MX_BLOCK}")
    quantized = quantize_mxfp8(values, mode=mode, edge=edge)
    codes = np.full((rows, width), byte, np.uint8)
    codes[:used] = quantized.codes
    capacity = checked_grouped_rows("gate_up", rows, experts)
    scales = np.full(checked_size("gate_up", chosen, capacity, width // MX_BLOCK), byte, np.uint8)
    if used and width:
        write_scale_rows(scales, chosen, expert_scale_rows(offsets), quantized.scales)
    return QuantizedRows(codes, scales)


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
    dtypes = (fp32.BF16, np.dtype(np.float32))
    rows, columns = checked_array("gate_up", gate_up, ("T", "2 I"), *dtypes).shape
    if columns % 2:
        raise ArgumentError("gate_up", describe(gate_up), "an even number of columns")
    if not isinstance(variant, str) or variant not in VARIANTS:
        raise ArgumentError("variant", describe(variant), f"one of {', '.join(VARIANTS)}")
    if bias is not None and (
        not isinstance(bias, np.ndarray) or bias.dtype not in dtypes or bias.shape not in ((columns,), (rows, columns))
    ):
        raise ArgumentError("bias", describe(bias), f"bfloat16 or float32 [{columns}] or [{rows}, {columns}]")
