"""The expand step: tokens copied to their experts' rows, quantized on the way, scales as the grouped GEMM reads them.

The conventions are those of TensorRT-LLM and FlashInfer: expanded (unpermuted) row = token + k_rank * T, rows sorted by
expert and in that order within an expert, int64 first-row offsets, and an expert's scales from scale row
align128(offsets[e] + 127 * e) on. Bytes that a production kernel leaves alone hold `fill` here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import E4M3, MX_BLOCK, NVFP4
from refmoe.policy import EdgePolicy, ScaleMode, as_edge_policy, as_scale_mode
from refmoe.reference import fp32
from refmoe.reference.arrays import checked_array
from refmoe.reference.fp32 import fp32_bits
from refmoe.reference.layout import (
    GROUPED_LAYOUTS,
    INT32_MAX,
    SCALE_LAYOUTS,
    ScaleLayout,
    checked_count,
    checked_fill,
    checked_grouped_rows,
    checked_size,
    expert_scale_rows,
    grouped_scale_rows,
    layout_named,
    unswizzle_scales,
    write_scale_rows,
)
from refmoe.reference.nvfp4 import checked_encode_scale, checked_scale, quantize_nvfp4
from refmoe.reference.quantize import quantize_mxfp8

FloatArray = NDArray[np.float32]
EncodeScale = np.float32 | float | FloatArray
"""One factor for the tensor, or float32 [E], one for each expert."""

INPUT_SF_LAYOUTS = {name: SCALE_LAYOUTS[name] for name in ("linear", "128x4")}
#: What `expand_as` makes of a row.
OUTPUTS = ("nvfp4", "fp8_tensor", "fp8_token", "copy")
INPUT_DTYPES = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))


@dataclass(frozen=True, eq=False)
class Permutation:
    """Which expanded row goes where.

    Attributes:
        offsets: int64 [E + 1], first permuted row of each expert, then the number of rows in use.
        permuted_to_unpermuted: int32 [T * k]; -1 from row offsets[E] on.
        unpermuted_to_permuted: int32 [T * k]; -1 for choices of experts that live on another rank.
    """

    offsets: NDArray[np.int64]
    permuted_to_unpermuted: NDArray[np.int32]
    unpermuted_to_permuted: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Expanded(Permutation):
    """Rows grouped by expert, as the grouped GEMM reads them, and which row went where.

    Attributes:
        codes: E4M3 codes, uint8 [T * k, K].
        scales: E8M0 scales, uint8 1-D: align128(T * k + 127 * E) rows of ceil(K / 128) * 4 bytes in the asked layout.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ExpandedAs(Permutation):
    """Rows grouped by expert, as an output of `OUTPUTS`.

    Attributes:
        codes: nvfp4: packed E2M1, uint8 [T * k, K / 2]; fp8: E4M3, uint8 [T * k, K]; copy: [T * k, K] of x's type.
        scales: nvfp4: UE4M3, uint8 1-D: align128(T * k + 127 * E) rows of ceil(K / 64) * 4 bytes in the asked layout;
            fp8_token: float32 [T * k], what a row's codes are multiplied by to get its values back; else None.
    """

    codes: NDArray[Any]
    scales: NDArray[Any] | None


def build_permutation(topk_ids: NDArray[np.int32], num_experts: int, first_expert: int = 0) -> Permutation:
    """Sort the choices of all tokens by expert, stably in the order token + k_rank * T.

    Args:
        topk_ids: int32 [T, k], the experts of each token by rank of preference, all different within a token.
        num_experts: experts of this rank.
        first_expert: the id of the first of them. Ids outside [first_expert, first_expert + num_experts) belong to
            another rank and get no row, so k may exceed `num_experts`.

    Raises:
        ArgumentError: wrong dtype or rank, k = 0, an id twice in one token, no expert, or T * k past int32.
    """
    checked_array("topk_ids", topk_ids, ("T", "k"), np.int32)
    if topk_ids.shape[1] < 1:
        raise ArgumentError("topk_ids", describe(topk_ids), "at least one expert a token")
    num_experts = checked_count("num_experts", num_experts, least=1)
    first_expert = checked_count("first_expert", first_expert)
    if first_expert + num_experts > INT32_MAX + 1:
        raise ArgumentError("first_expert", f"{first_expert} for {num_experts} experts", "expert ids within int32")
    checked_grouped_rows("topk_ids", topk_ids.size, num_experts)
    _refuse_repeated_ids(topk_ids)

    by_unpermuted = topk_ids.T.reshape(-1).astype(np.int64) - first_expert
    elsewhere = (by_unpermuted < 0) | (by_unpermuted >= num_experts)
    # Choices of other ranks sort behind the last expert, where no row is handed out.
    by_unpermuted[elsewhere] = num_experts
    order = np.argsort(by_unpermuted, kind="stable").astype(np.int32)

    offsets = np.zeros(num_experts + 1, np.int64)
    np.cumsum(np.bincount(by_unpermuted, minlength=num_experts)[:num_experts], out=offsets[1:])
    used = int(offsets[-1])
    unpermuted_to_permuted = np.full(topk_ids.size, -1, np.int32)
    unpermuted_to_permuted[order[:used]] = np.arange(used, dtype=np.int32)
    order[used:] = -1
    return Permutation(offsets, order, unpermuted_to_permuted)


def expand(
    x: NDArray[Any],
    topk_ids: NDArray[np.int32],
    num_experts: int,
    *,
    mode: ScaleMode | str = ScaleMode.RCEIL,
    edge: EdgePolicy | str = "exact",
    layout: str = "128x4",
    input_sf: NDArray[np.uint8] | None = None,
    input_sf_layout: str = "linear",
    first_expert: int = 0,
    fill: int = 0,
) -> Expanded:
    """Quantize each token to MXFP8 and copy it to the row of every expert that it chose.

    Args:
        x: BF16 or FP16 [T, K], C-contiguous, K a multiple of 32; or uint8 [T, K], MXFP8 codes, copied as they are.
        topk_ids: int32 [T, k], see `build_permutation`.
        num_experts: experts of this rank.
        mode: how block scales are chosen; a `ScaleMode` or its lower-case name.
        edge: what zeros, NaN and Inf become; an `EdgePolicy` or its lower-case name.
        layout: of the scales written: "128x4", "8x4" or "linear", the last with rows of ceil(K / 128) * 4 bytes. Every
            layout keeps the 128-aligned base rows of experts.
        input_sf: scales of uint8 `x`, copied: uint8 [T, K / 32] if linear, the 1-D buffer of T rows in 128x4. Without
            them the scales are 0x00.
        input_sf_layout: "linear" or "128x4".
        first_expert: id of this rank's first expert; choices outside its experts are skipped.
        fill: byte of code rows from offsets[E] on and of scale rows that belong to no row. Scale columns past K / 32
            of written rows are 0x00.

    Raises:
        ArgumentError: a wrong dtype, shape or length; `x` not contiguous; K no multiple of 32; an id twice in one
            token; `input_sf` for an `x` that is not quantized; an unknown mode, edge or layout; sizes past int32.
    """
    permutation = build_permutation(topk_ids, num_experts, first_expert)
    _check_rows(x, topk_ids)
    chosen = layout_named(layout, GROUPED_LAYOUTS)
    input_layout = layout_named(input_sf_layout, INPUT_SF_LAYOUTS, "input_sf_layout")
    byte = checked_fill(fill)
    scale_mode, edge_policy = as_scale_mode(mode), as_edge_policy(edge)
    tokens, width = x.shape
    blocks = width // MX_BLOCK
    scale_bytes = checked_size("x", chosen, grouped_scale_rows(topk_ids.size, num_experts), blocks)

    if x.dtype == np.uint8:
        token_codes, token_scales = x, _ready_scales(input_sf, input_layout, tokens, blocks)
    elif input_sf is not None:
        raise ArgumentError("input_sf", describe(input_sf), f"None: x is {x.dtype}, its scales are computed")
    else:
        quantized = quantize_mxfp8(x, mode=scale_mode, edge=edge_policy)
        token_codes, token_scales = quantized.codes, quantized.scales

    offsets = permutation.offsets
    used = int(offsets[-1])
    source = permutation.permuted_to_unpermuted[:used] % max(tokens, 1)
    codes = np.empty((topk_ids.size, width), np.uint8)
    # mode="clip" writes straight into `out`; every index is in range.
    np.take(token_codes, source, axis=0, out=codes[:used], mode="clip")
    codes[used:] = byte
    scales = np.full(scale_bytes, byte, np.uint8)
    if used and blocks:
        write_scale_rows(scales, chosen, expert_scale_rows(offsets), token_scales[source])
    return Expanded(**vars(permutation), codes=codes, scales=scales)


def expand_as(
    x: NDArray[Any],
    topk_ids: NDArray[np.int32],
    num_experts: int,
    output: str,
    *,
    encode_scale: EncodeScale | None = None,
    prescale: NDArray[Any] | None = None,
    layout: str = "128x4",
    first_expert: int = 0,
    fill: int = 0,
) -> ExpandedAs:
    """Copy each token to the row of every expert that it chose, as one of `OUTPUTS`.

    The rules are those of FlashInfer's `expandInputRowsKernel` (Apache-2.0), all in FP32, each operation rounded once:

        nvfp4       as `quantize_nvfp4`, under the global scale `encode_scale` of the tensor or of the row's expert
        fp8_tensor  code = E4M3(x * encode_scale), saturating at 448; a NaN is 0x7F
        fp8_token   q = 448 / amax of the token, code = E4M3(x * q), scale of the row = 1 / q; q is 1 for a zero token
        copy        the elements as they are

    Where FlashInfer divides by what is too small, q is at most FLT_MAX here; and under refmoe's edge `exact` a NaN or
    an infinity poisons its token: codes 0x7F, scale NaN (0x7FFFFFFF).

    Args:
        x: BF16 or FP16 [T, K], C-contiguous, K a multiple of 16; for "copy" also uint8 codes.
        topk_ids: int32 [T, k], see `build_permutation`.
        num_experts: experts of this rank.
        output: one of `OUTPUTS`.
        encode_scale: the FP32 factor of "nvfp4" and "fp8_tensor"; of "nvfp4" also float32 [E], one for each expert of
            this rank; None for the others.
        prescale: [K] of x's type, what each channel is multiplied by first (AWQ); the product is rounded to that type.
            Not with "copy".
        layout: of NVFP4's scales: "128x4", "8x4" or "linear", the last with rows of ceil(K / 64) * 4 bytes.
        first_expert: id of this rank's first expert; choices outside its experts are skipped.
        fill: byte of rows from offsets[E] on, of their scales, and of scale rows that belong to no row.

    Raises:
        ArgumentError: an argument is none of these, or sizes past int32.
    """
    permutation = build_permutation(topk_ids, num_experts, first_expert)
    checked_output(output)
    _check_rows(x, topk_ids, NVFP4.block, ready=output == "copy")
    chosen, byte = layout_named(layout, GROUPED_LAYOUTS), checked_fill(fill)
    factor = checked_factor(output, encode_scale, num_experts)
    values = x if prescale is None else prescaled(x, checked_prescale(output, prescale, x))
    offsets, width = permutation.offsets, x.shape[1]
    used = int(offsets[-1])
    source = permutation.permuted_to_unpermuted[:used] % max(len(x), 1)

    scales: NDArray[Any] | None = None
    if output == "nvfp4":
        assert factor is not None
        of_rows, row_scales = _nvfp4_rows(values, source, offsets, factor)
        blocks = width // NVFP4.block
        size = checked_size("x", chosen, grouped_scale_rows(topk_ids.size, num_experts), blocks)
        scales = np.full(size, byte, np.uint8)
        if used and blocks:
            write_scale_rows(scales, chosen, expert_scale_rows(offsets), row_scales)
    elif output == "copy":
        of_rows = values[source]
    else:
        factors = _token_factors(values) if factor is None else np.array([[factor]], np.float32)
        of_rows = fp8_codes(values, factors)[source]
        if factor is None:
            scales = np.full(4 * topk_ids.size, byte, np.uint8).view(np.float32)
            scales[:used] = fp32.divide(np.ones(1, np.float32), factors)[source, 0]
    codes = np.full((topk_ids.size, of_rows.shape[1] * of_rows.itemsize), byte, np.uint8).view(of_rows.dtype)
    codes[:used] = of_rows
    return ExpandedAs(**vars(permutation), codes=codes, scales=scales)


def _nvfp4_rows(
    values: NDArray[Any], source: NDArray[np.int32], offsets: NDArray[np.int64], factor: np.float32 | FloatArray
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes [R, K / 2] and scales [R, K / 16] of the rows in use, whose tokens are `source`."""
    if not isinstance(factor, np.ndarray):
        made = quantize_nvfp4(values, global_encode_scale=factor)
        return made.codes[source], made.scales[source]
    codes = np.empty((source.size, values.shape[1] // NVFP4.codes_a_byte), np.uint8)
    scales = np.empty((source.size, values.shape[1] // NVFP4.block), np.uint8)
    for expert, (first, last) in enumerate(itertools.pairwise(offsets.tolist())):
        if first < last:
            made = quantize_nvfp4(values[source[first:last]], global_encode_scale=factor[expert])
            codes[first:last], scales[first:last] = made.codes, made.scales
    return codes, scales


def prescaled(x: NDArray[Any], factors: NDArray[Any]) -> NDArray[Any]:
    """x [T, K] times a factor for each channel, rounded to x's type; a NaN is the GPU's, 0x7FFF."""
    product = fp32.multiply(x.astype(np.float32), factors.astype(np.float32))
    with np.errstate(over="ignore"):
        rounded = product.astype(x.dtype)
    rounded.view(np.uint16)[np.isnan(product)] = 0x7FFF
    return rounded


def fp8_codes(x: NDArray[Any], factors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """E4M3(x * factors), the product rounded to FP32 first; saturating at 448, 0x7F for every NaN.

    Args:
        x: BF16 or FP16 [T, K].
        factors: float32 [T, 1], or [1, 1] for all tokens.
    """
    product = fp32.multiply(x.astype(np.float32), factors)
    with np.errstate(invalid="ignore"):
        codes = np.clip(product, -448, 448).astype(E4M3.dtype).view(np.uint8)
    codes[np.isnan(product)] = 0x7F
    return codes


def _token_factors(x: NDArray[Any]) -> NDArray[np.float32]:
    """min(448 / amax, FLT_MAX) of each token, [T, 1]; 1 for a zero token, NaN for one that is not finite."""
    bits = fp32_bits(x) & np.uint32(0x7FFFFFFF)
    amax = bits.max(axis=1, initial=0).view(np.float32)[:, None]
    with np.errstate(all="ignore"):
        factors = np.minimum(np.float32(448) / amax, np.finfo(np.float32).max)
    factors[amax == 0] = 1
    factors[~np.isfinite(amax)] = fp32.NAN
    return np.asarray(factors, np.float32)


def checked_output(output: object) -> str:
    """`output`, or an `ArgumentError` if it is none of `OUTPUTS`."""
    if not isinstance(output, str) or output not in OUTPUTS:
        raise ArgumentError("output", describe(output), "one of " + ", ".join(OUTPUTS))
    return output


def checked_factor(output: str, encode_scale: object, experts: int) -> np.float32 | FloatArray | None:
    """The FP32 factor that `output` takes, or one for each expert; None if it takes none.

    Raises:
        ArgumentError: one too many or too few, no float32 [E], or a factor that cannot be one.
    """
    if output not in ("nvfp4", "fp8_tensor"):
        if encode_scale is not None:
            raise ArgumentError("encode_scale", describe(encode_scale), f"None: {output} takes no scale")
        return None
    if encode_scale is None:
        raise ArgumentError("encode_scale", "None", f"the float32 factor of {output}")
    if output == "fp8_tensor":
        return checked_scale("encode_scale", encode_scale)
    if not isinstance(encode_scale, np.ndarray):
        return checked_encode_scale(encode_scale)
    checked_array("encode_scale", encode_scale, (experts,), np.float32)
    for factor in encode_scale:
        checked_encode_scale(factor)
    return encode_scale


def checked_prescale(output: str, prescale: object, x: NDArray[Any]) -> NDArray[Any]:
    """`prescale`, or an `ArgumentError` if `output` takes none or it is no [K] of x's type."""
    if output == "copy":
        raise ArgumentError("prescale", describe(prescale), "None: a copy changes nothing")
    shape = x.shape[1:]
    if not isinstance(prescale, np.ndarray) or prescale.dtype != x.dtype or prescale.shape != shape:
        raise ArgumentError("prescale", describe(prescale), f"{x.dtype} {list(shape)}, one factor a channel")
    return prescale


def _ready_scales(
    input_sf: NDArray[np.uint8] | None, layout: ScaleLayout, tokens: int, blocks: int
) -> NDArray[np.uint8]:
    """The scales of ready-quantized tokens, linear [T, K / 32]."""
    if input_sf is None:
        return np.zeros((tokens, blocks), np.uint8)
    size = checked_size("x", layout, tokens, blocks)
    shape = (tokens, blocks) if layout.name == "linear" else (size,)
    if not isinstance(input_sf, np.ndarray) or input_sf.dtype != np.uint8 or input_sf.shape != shape:
        needed = f"uint8 {list(shape)}, the scales of {tokens} tokens in {layout.name} layout"
        raise ArgumentError("input_sf", describe(input_sf), needed)
    return input_sf if layout.name == "linear" else unswizzle_scales(input_sf, (tokens, blocks), layout.name)


def _check_rows(x: object, topk_ids: NDArray[np.int32], block: int = MX_BLOCK, *, ready: bool = True) -> None:
    tokens = topk_ids.shape[0]
    dtypes = (*INPUT_DTYPES, np.dtype(np.uint8)) if ready else INPUT_DTYPES
    if not isinstance(x, np.ndarray) or x.dtype not in dtypes:
        raise ArgumentError("x", describe(x), f"a bfloat16 or float16 array{', or uint8 MXFP8 codes' if ready else ''}")
    if x.ndim != 2 or x.shape[0] != tokens:
        raise ArgumentError("x", describe(x), f"[T, K] with the {tokens} tokens of topk_ids")
    if x.shape[1] % block:
        raise ArgumentError("x", describe(x), f"K a multiple of {block}")
    if not x.flags.c_contiguous:
        raise ArgumentError("x", f"{describe(x)} that is not contiguous", "a C-contiguous array")


def _refuse_repeated_ids(topk_ids: NDArray[np.int32]) -> None:
    ordered = np.sort(topk_ids, axis=1)
    token, rank = np.nonzero(ordered[:, 1:] == ordered[:, :-1])
    if token.size:
        found = f"expert {ordered[token[0], rank[0]]} twice in token {token[0]}"
        raise ArgumentError("topk_ids", found, f"{topk_ids.shape[1]} different experts in each token")
