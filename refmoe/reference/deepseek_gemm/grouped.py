"""Grouped GEMM of block FP8, contiguous and batched: which rows are an expert's, where their scales lie, and the cast.

    contiguous   tokens [M, K] sorted by expert; the rows m_indptr[e] to m_indptr[e + 1] are those of expert e
    batched      tokens [E, R, K]; of each expert's R rows the first masked_m[e] are in use

The scales of tokens are K-major [M, K/128] or MN-major [K/128, M], which is the transpose. Rows of a buffer may be
longer than that, as where DeepGEMM pads MN-major rows to 16 bytes; what lies behind is not read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from refmoe.errors import ArgumentError, describe
from refmoe.formats import E4M3
from refmoe.reference.arrays import checked_output
from refmoe.reference.block_fp8 import LAYOUTS
from refmoe.reference.deepseek_gemm.promotion import BLOCK, WEIGHT_TILE, Bytes, Floats, promoted_bounds, promoted_sums
from refmoe.reference.fp32 import bf16
from refmoe.reference.layout import checked_offsets
from refmoe.reference.mma import AccumulationModel, as_model

_BF16 = np.dtype(ml_dtypes.bfloat16)
_WEIGHTS_AT_ONCE = 1 << 20  # bytes
OUTPUTS: tuple[np.dtype[Any], ...] = (_BF16, np.dtype(np.float32))


class Group(NamedTuple):
    """The rows of one expert: their codes [rows, K], their scales [rows, K/128], and their place in the output."""

    expert: int
    codes: Bytes
    scales: Floats
    place: tuple[int | slice, ...]

    def first_rows(self, count: int) -> Group:
        """The first `count` rows of it, or all where it has fewer."""
        *batch, rows = self.place
        assert isinstance(rows, slice)
        place = (*batch, slice(rows.start, min(rows.start + count, rows.stop)))
        return Group(self.expert, self.codes[:count], self.scales[:count], place)


def deepseek_gemm(
    tokens: Bytes,
    token_scales: Floats,
    weights: Bytes,
    weight_scales: Floats,
    m_indptr: NDArray[np.int64],
    *,
    model: AccumulationModel | str,
    scale_layout: str = "k_major",
    out_dtype: npt.DTypeLike = ml_dtypes.bfloat16,
) -> NDArray[Any]:
    """Multiply each expert's rows by that expert's weights: out[m] = tokens[m] @ weights[e].T, scales applied.

    Args:
        tokens: uint8 [M, K] E4M3, rows sorted by expert; K a positive multiple of 128.
        token_scales: float32, one for every 128 elements of a row: [M, at least K/128] in the layout "k_major",
            [K/128, at least M] in "mn_major". What an element is multiplied by.
        weights: uint8 [E, N, K] E4M3, N a positive multiple of 128.
        weight_scales: float32 [E, N/128, K/128], what the elements of a tile of 128 x 128 are multiplied by.
        m_indptr: int64 [E + 1], the first row of each expert, then the number of rows in use, at most M. An expert may
            have no rows.
        model: what the tensor core adds up to, a name of `refmoe.reference.mma.MODELS` with E4M3 on both sides.
        scale_layout: "k_major" or "mn_major".
        out_dtype: ml_dtypes.bfloat16 or float32.

    Returns:
        [M, N]; rows from m_indptr[E] on are 0. NaN is 0x7FFF in BF16 and 0x7FFFFFFF in FP32.

    Raises:
        ArgumentError: shapes, dtypes or words that do not fit.
    """
    groups = contiguous_groups(tokens, token_scales, weights, weight_scales, m_indptr, scale_layout)
    shape = tokens.shape[0], weights.shape[1]
    return _multiplied(groups, weights, weight_scales, shape, model, out_dtype)


def deepseek_gemm_masked(
    tokens: Bytes,
    token_scales: Floats,
    weights: Bytes,
    weight_scales: Floats,
    masked_m: NDArray[np.int32],
    *,
    model: AccumulationModel | str,
    scale_layout: str = "k_major",
    out_dtype: npt.DTypeLike = ml_dtypes.bfloat16,
) -> NDArray[Any]:
    """`deepseek_gemm` of a batch: each expert has R rows, of which the first masked_m[e] are in use.

    Args:
        tokens: uint8 [E, R, K] E4M3.
        token_scales: float32 [E, R, at least K/128], or "mn_major" [E, K/128, at least R].
        weights: as in `deepseek_gemm`.
        weight_scales: likewise.
        masked_m: int32 [E], 0 to R.
        model: as in `deepseek_gemm`.
        scale_layout: likewise.
        out_dtype: likewise.

    Returns:
        [E, R, N]; rows that are not in use are 0.

    Raises:
        ArgumentError: shapes, dtypes or words that do not fit.
    """
    groups = masked_groups(tokens, token_scales, weights, weight_scales, masked_m, scale_layout)
    shape = (*tokens.shape[:2], weights.shape[1])
    return _multiplied(groups, weights, weight_scales, shape, model, out_dtype)


def deepseek_gemm_bounds(
    groups: list[Group], weights: Bytes, weight_scales: Floats, shape: tuple[int, ...], model: AccumulationModel | str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The exact sums and how far an FP32 result may be from them, float64 of `shape` both.

    Places of no row have the sum 0 and an infinite bound.

    Args:
        groups: of `contiguous_groups` or `masked_groups`.
        weights: as in `deepseek_gemm`.
        weight_scales: likewise.
        shape: of the output.
        model: as in `deepseek_gemm`.
    """
    exact, bound = np.zeros(shape), np.full(shape, np.inf)
    for alike in _alike(groups, weights):
        sums, off = promoted_bounds(*_stacked(alike, weights, weight_scales), as_model(model))
        for index, group in enumerate(alike):
            exact[group.place], bound[group.place] = sums[index], off[index]
    return exact, bound


def contiguous_groups(
    tokens: Bytes,
    token_scales: Floats,
    weights: Bytes,
    weight_scales: Floats,
    m_indptr: NDArray[np.int64],
    scale_layout: str,
) -> list[Group]:
    """The experts that have rows, of the arguments of `deepseek_gemm`.

    Raises:
        ArgumentError: they do not fit each other.
    """
    _check_codes("tokens", tokens, 2, "[M, K]")
    _check_weights(weights, weight_scales, tokens.shape[-1])
    by_row = _scales_by_row(token_scales, tokens, scale_layout)
    if checked_offsets(m_indptr).size != weights.shape[0] + 1:
        needed = f"int64 [{weights.shape[0] + 1}] for {weights.shape[0]} experts"
        raise ArgumentError("m_indptr", describe(m_indptr), needed)
    if m_indptr[-1] > tokens.shape[0]:
        raise ArgumentError("m_indptr", f"{m_indptr[-1]} rows in use", f"at most the {tokens.shape[0]} rows of tokens")
    return [
        Group(expert, tokens[start:stop], by_row[start:stop], (slice(start, stop),))
        for expert, (start, stop) in enumerate(itertools.pairwise(m_indptr.tolist()))
        if start < stop
    ]


def masked_groups(
    tokens: Bytes,
    token_scales: Floats,
    weights: Bytes,
    weight_scales: Floats,
    masked_m: NDArray[np.int32],
    scale_layout: str,
) -> list[Group]:
    """The experts that have rows, of the arguments of `deepseek_gemm_masked`.

    Raises:
        ArgumentError: they do not fit each other.
    """
    _check_codes("tokens", tokens, 3, "[E, R, K]")
    _check_weights(weights, weight_scales, tokens.shape[-1])
    experts, rows, _ = tokens.shape
    if weights.shape[0] != experts:
        raise ArgumentError("weights", f"{weights.shape[0]} experts", f"the {experts} of tokens")
    by_row = _scales_by_row(token_scales, tokens, scale_layout)
    if not isinstance(masked_m, np.ndarray) or masked_m.dtype != np.int32 or masked_m.shape != (experts,):
        raise ArgumentError("masked_m", describe(masked_m), f"int32 [{experts}]")
    if masked_m.size and not 0 <= masked_m.min() <= masked_m.max() <= rows:
        raise ArgumentError("masked_m", f"{masked_m.min()} .. {masked_m.max()}", f"0 to the {rows} rows of an expert")
    return [
        Group(expert, tokens[expert, :used], by_row[expert, :used], (expert, slice(0, used)))
        for expert, used in enumerate(masked_m.tolist())
        if used
    ]


def _multiplied(
    groups: list[Group],
    weights: Bytes,
    weight_scales: Floats,
    shape: tuple[int, ...],
    model: AccumulationModel | str,
    out_dtype: npt.DTypeLike,
) -> NDArray[Any]:
    chosen = as_model(model)
    if (E4M3.name, E4M3.name) not in chosen.pairs:
        raise ArgumentError("model", chosen.name, "one that has e4m3 x e4m3")
    dtype = checked_output(out_dtype, OUTPUTS, "ml_dtypes.bfloat16 or float32")
    out = np.zeros(shape, dtype)
    for alike in _alike(groups, weights):
        sums = promoted_sums(*_stacked(alike, weights, weight_scales), chosen)
        for index, group in enumerate(alike):
            out[group.place] = bf16(sums[index]) if dtype == _BF16 else sums[index]
    return out


def _alike(groups: list[Group], weights: Bytes) -> Iterator[list[Group]]:
    """Groups of as many rows, so many of them together that their weights fit a cache."""
    together = max(1, _WEIGHTS_AT_ONCE // (weights.shape[1] * weights.shape[2]))
    for _, each in itertools.groupby(sorted(groups, key=_rows), key=_rows):
        alike = list(each)
        for start in range(0, len(alike), together):
            yield alike[start : start + together]


def _rows(group: Group) -> int:
    return len(group.codes)


def _stacked(alike: list[Group], weights: Bytes, weight_scales: Floats) -> tuple[Bytes, Floats, Bytes, Floats]:
    """The operands of `promoted_sums` for several groups, a product each."""
    experts = [group.expert for group in alike]
    codes = np.stack([group.codes for group in alike])
    scales = np.stack([group.scales for group in alike])
    # One expert needs no copy of its weights.
    chosen = slice(experts[0], experts[0] + 1) if len(experts) == 1 else experts
    return codes, scales, weights[chosen], weight_scales[chosen]


def _check_codes(name: str, codes: object, rank: int, shape: str) -> None:
    if (
        not isinstance(codes, np.ndarray)
        or codes.dtype != np.uint8
        or codes.ndim != rank
        or codes.shape[-1] == 0
        or codes.shape[-1] % BLOCK
    ):
        needed = f"uint8 {shape} of E4M3 with K a positive multiple of {BLOCK}, which share a scale"
        raise ArgumentError(name, describe(codes), needed)


def _check_weights(weights: Bytes, weight_scales: Floats, k: int) -> None:
    _check_codes("weights", weights, 3, "[E, N, K]")
    experts, n, weight_k = weights.shape
    if weight_k != k:
        raise ArgumentError("weights", f"K = {weight_k}", f"the K of tokens, {k}")
    if experts == 0 or n == 0 or n % WEIGHT_TILE.rows:
        found, needed = describe(weights), f"at least one expert, and N a positive multiple of {WEIGHT_TILE.rows}"
        raise ArgumentError("weights", found, f"{needed}, which share a scale")
    shape = (experts, *WEIGHT_TILE.scale_shape(n, k))
    if not isinstance(weight_scales, np.ndarray) or weight_scales.dtype != np.float32 or weight_scales.shape != shape:
        needed = f"float32 {list(shape)}, one for every tile of {WEIGHT_TILE.name}"
        raise ArgumentError("weight_scales", describe(weight_scales), needed)


def _scales_by_row(token_scales: Floats, tokens: Bytes, scale_layout: str) -> Floats:
    """The scales [..., rows, K/128], without what rows of the buffer are longer."""
    if scale_layout not in LAYOUTS:
        raise ArgumentError("scale_layout", describe(scale_layout), " or ".join(LAYOUTS))
    *batch, rows, k = tokens.shape
    blocks = k // BLOCK
    lines, least = (rows, blocks) if scale_layout == "k_major" else (blocks, rows)
    if (
        not isinstance(token_scales, np.ndarray)
        or token_scales.dtype != np.float32
        or token_scales.ndim != tokens.ndim
        or token_scales.shape[:-1] != (*batch, lines)
        or token_scales.shape[-1] < least
    ):
        sizes = ", ".join(map(str, (*batch, lines)))
        needed = f"float32 [{sizes}, at least {least}] in the layout {scale_layout}"
        raise ArgumentError("token_scales", describe(token_scales), needed)
    used = token_scales[..., :least]
    return used if scale_layout == "k_major" else np.ascontiguousarray(used.swapaxes(-1, -2))
