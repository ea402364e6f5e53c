"""Operands of masked, batched, block-scaled GEMMs, as CuTe-DSL's `grouped_gemm_nt_masked` takes them.

Each expert has room for M rows, of which the first `masked_m[e]` count. Which elements and scales go together is what
its kernel accepts (FlashInfer, `is_valid_dtypes_and_scale_factor_vec_size`):

    form   elements   scales   share a scale   from
    mxf8   E4M3       E8M0     32              `quantize_mxfp8`
    mxf4   E2M1       E8M0     32              `quantize_mxfp4`
    nvf4   E2M1       E4M3     16              `quantize_nvfp4`, under one global scale an expert

It also accepts E5M2 with E8M0 for 32, and E2M1 with E8M0 for 16; no quantizer here makes those. It refuses E4M3 scales
for 32 and FP8 elements with scales for 16.

Scales are 128x4 for each expert, one expert after another: with rm tiles of 128 rows and rk tiles of 4 blocks, byte

    (((e * rm + m // 128) * rk + b // 4) * 32 + m % 32) * 16 + m % 128 // 32 * 4 + b % 4

which FlashInfer writes as a tensor of the physical shape (l, rm, rk, 32, 4, 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MXFP4, MXFP8, NVFP4, MXFormat
from refmoe.reference.layout import checked_fill, checked_size, layout_named, swizzle_scales
from refmoe.reference.nvfp4 import checked_encode_scale, quantize_nvfp4
from refmoe.reference.quantize import quantize

#: The formats of the forms by name.
MASKED_FORMS: Mapping[str, MXFormat] = MappingProxyType({"mxf8": MXFP8, "mxf4": MXFP4, "nvf4": NVFP4})


@dataclass(frozen=True, eq=False)
class MaskedOperand:
    """One side of a masked GEMM.

    Attributes:
        codes: uint8 [E, M, K] E4M3, or [E, M, K/2] packed E2M1, the even element in the low nibble.
        scales: uint8 1-D, 128x4 for each expert, E * align128(M) * align4(K / block) bytes.
        masked_m: int32 [E], rows of each expert that count; others hold the fill, and so do their scales.
        form: a name of `MASKED_FORMS`.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    masked_m: NDArray[np.int32]
    form: str


def masked_operand(
    x: NDArray[Any],
    form: str,
    *,
    masked_m: NDArray[np.int32] | None = None,
    encode_scales: NDArray[np.float32] | None = None,
    fill: int = 0,
) -> MaskedOperand:
    """Quantize the rows that count, and lay codes and scales out as the GEMM reads them.

    Args:
        x: BF16, FP16 or FP32 [E, M, K], C-contiguous, K a multiple of the form's block; rows that do not count may
            hold anything.
        form: "mxf8", "mxf4" or "nvf4". MX forms have the policy rceil/exact.
        masked_m: int32 [E], 0 to M; None for all rows.
        encode_scales: float32 [E], the global encode scales of "nvf4"; None for the other forms. The GEMM takes the
            product of both operands' decode scales as `alpha` [E].
        fill: byte of rows that do not count, and of the scale rows that pad M to 128.

    Raises:
        ArgumentError: an argument is none of these, or a buffer is past int32.
    """
    if not isinstance(form, str) or form not in MASKED_FORMS:
        raise ArgumentError("form", describe(form), "one of " + ", ".join(MASKED_FORMS))
    if not isinstance(x, np.ndarray) or x.ndim != 3:
        raise ArgumentError("x", describe(x), "[E, M, K]")
    experts, rows, width = x.shape
    byte, format = checked_fill(fill), MASKED_FORMS[form]
    counts = np.full(experts, rows, np.int32) if masked_m is None else masked_m
    if not isinstance(counts, np.ndarray) or counts.dtype != np.int32 or counts.shape != (experts,):
        raise ArgumentError("masked_m", describe(masked_m), f"int32 [{experts}]")
    if counts.size and not 0 <= counts.min() <= counts.max() <= rows:
        raise ArgumentError("masked_m", f"{counts.min()} to {counts.max()}", f"0 to {rows} rows")
    factors = _checked_factors(form, encode_scales, experts)
    checked_size("x", layout_named("128x4"), rows, -(-width // format.block), experts)

    codes = np.full((experts, rows, width // format.codes_a_byte), byte, np.uint8)
    scales = np.full((experts, rows, width // format.block), byte, np.uint8)
    for expert, count in enumerate(counts.tolist()):
        part = np.ascontiguousarray(x[expert, :count])
        if factors is None:
            made: Any = quantize(part, format.name)
        else:
            made = quantize_nvfp4(part, global_encode_scale=factors[expert])
        codes[expert, :count], scales[expert, :count] = made.codes, made.scales
    buffer = swizzle_scales(scales, "128x4", byte)
    return MaskedOperand(codes, buffer, counts, form)


def _checked_factors(form: str, factors: object, experts: int) -> list[np.float32] | None:
    if form != "nvf4":
        if factors is not None:
            raise ArgumentError("encode_scales", describe(factors), f"None: {form} has no global scale")
        return None
    if not isinstance(factors, np.ndarray) or factors.dtype != np.float32 or factors.shape != (experts,):
        raise ArgumentError("encode_scales", describe(factors), f"float32 [{experts}], one for each expert")
    return [checked_encode_scale(factor) for factor in factors]
