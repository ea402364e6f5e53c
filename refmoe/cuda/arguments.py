"""The arguments of the kernels' host functions: what is checked before anything runs, and the sizes of buffers."""

from __future__ import annotations

import enum
import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from refmoe.errors import ArgumentError, describe
from refmoe.formats import MX_BLOCK
from refmoe.reference.layout import EXPERT_ROW_ALIGNMENT, SCALE_LAYOUTS

BF16 = np.dtype(ml_dtypes.bfloat16)
INT32_MAX = 2**31 - 1
MAX_GRID = 1 << 16  # CTAs of a launch whose CTAs walk over rows, a grid at a time
GROUP_BLOCKS = SCALE_LAYOUTS["128x4"].column_atom  # scale columns are padded to a multiple of this
ATOM_BYTES = SCALE_LAYOUTS["128x4"].atom_bytes  # of the largest atom: kernels count the bytes of a row's in int32


def k_groups(k: int) -> int:
    """Scale words of a row of k elements: K-groups of 128."""
    return -(-k // (GROUP_BLOCKS * MX_BLOCK))


def scale_buffer_bytes(rows: int, k: int, layout: str) -> int:
    """Bytes of the scales of [rows, k] in a layout: whole atoms for a swizzled one, rows * k/32 for "linear"."""
    return math.prod(SCALE_LAYOUTS[layout].padded_shape(rows, k // MX_BLOCK))


def expanded_scale_rows(rows: int, experts: int) -> int:
    """Scale rows of `rows` expanded tokens: room for every expert to start at a multiple of 128."""
    return -(-(rows + (EXPERT_ROW_ALIGNMENT - 1) * experts) // EXPERT_ROW_ALIGNMENT) * EXPERT_ROW_ALIGNMENT


def one_of(argument: str, value: object, allowed: tuple[str, ...]) -> str:
    """The lower-case name of `value`, an enum member or a name, if it is one of those allowed."""
    name = value.name.lower() if isinstance(value, enum.Enum) else value
    if name not in allowed:
        raise ArgumentError(argument, repr(name), "one of " + ", ".join(map(repr, allowed)))
    return str(name)


def check_fill(fill: int) -> None:
    """Refuse a fill that is no byte."""
    if not isinstance(fill, (int, np.integer)) or not 0 <= fill <= 255:
        raise ArgumentError("fill", describe(fill), "a byte, 0..255")


def check_half_precision(argument: str, array: object, also: str = "") -> str:
    """ "bf16" or "fp16", whichever the array is; refuse anything else."""
    names = {BF16: "bf16", np.dtype(np.float16): "fp16"}
    if not isinstance(array, np.ndarray) or array.dtype not in names:
        raise ArgumentError(argument, describe(array), f"a bfloat16 or float16 array {also}".rstrip())
    return names[array.dtype]


def check_matrix(argument: str, array: npt.NDArray[Any]) -> tuple[int, int]:
    """(rows, K) of a C-contiguous matrix whose K is a positive multiple of 32; refuse anything else."""
    if array.ndim != 2:
        raise ArgumentError(argument, describe(array), "two dimensions, [rows, K]")
    rows, k = array.shape
    if k == 0 or k % MX_BLOCK:
        raise ArgumentError(argument, f"K = {k}", f"K a positive multiple of {MX_BLOCK}")
    check_rows(argument, rows)
    check_int32(argument, k_groups(k) * ATOM_BYTES, f"bytes of scale atoms, for K = {k}")
    if not array.flags.c_contiguous:
        raise ArgumentError(argument, f"strides {array.strides}", "a C-contiguous array")
    return rows, k


def check_int32(argument: str, count: int, what: str) -> None:
    """Refuse a count that the kernels' int32 cannot hold."""
    if count > INT32_MAX:
        raise ArgumentError(argument, f"{count} {what}", f"at most {INT32_MAX}: kernels count in int32")


def check_rows(argument: str, rows: int) -> None:
    """Refuse more rows than a kernel can walk over: its int32 has to hold the step past the last one too."""
    most = INT32_MAX - MAX_GRID
    if rows > most:
        raise ArgumentError(argument, f"{rows} rows", f"at most {most}: kernels step past the last in int32")


def check_array(argument: str, array: object, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Refuse anything but a C-contiguous array of this dtype and shape."""
    needed = f"{dtype} {list(shape)}"
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        raise ArgumentError(argument, describe(array), needed)
    if not array.flags.c_contiguous:
        raise ArgumentError(argument, f"strides {array.strides}", f"{needed}, C-contiguous")


def check_permutation(
    topk_ids: npt.NDArray[np.int32],
    unpermuted_to_permuted: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int64],
    tokens: int,
    first_expert: int,
) -> tuple[int, int]:
    """(k, E) of maps that agree with each other: the kernel trusts them and would write out of bounds otherwise."""
    if not isinstance(topk_ids, np.ndarray) or topk_ids.ndim != 2 or topk_ids.shape[1] == 0:
        raise ArgumentError("topk_ids", describe(topk_ids), f"int32 [{tokens}, k] with k at least 1")
    top_k = topk_ids.shape[1]
    check_array("topk_ids", topk_ids, np.dtype(np.int32), (tokens, top_k))
    check_int32("topk_ids", tokens * top_k, "rows after expansion")
    check_array("unpermuted_to_permuted", unpermuted_to_permuted, np.dtype(np.int32), (tokens * top_k,))
    if not isinstance(offsets, np.ndarray) or offsets.ndim != 1 or offsets.size < 2:
        raise ArgumentError("offsets", describe(offsets), "int64 [E+1] with at least one expert")
    check_array("offsets", offsets, np.dtype(np.int64), (offsets.size,))
    experts = offsets.size - 1
    if not isinstance(first_expert, (int, np.integer)) or not 0 <= first_expert <= INT32_MAX - experts:
        raise ArgumentError("first_expert", describe(first_expert), "the global id of this rank's first expert")
    check_offsets(offsets, tokens * top_k)
    local = topk_ids.T.ravel().astype(np.int64) - first_expert  # expert of each (token + rank*T)
    ours = (local >= 0) & (local < experts)
    widest = int(ours.reshape(top_k, tokens).sum(axis=0).max(initial=0))
    if widest > experts:
        raise ArgumentError("topk_ids", f"a token with {widest} of this rank's experts", f"at most E = {experts}")
    rows = unpermuted_to_permuted
    if np.any((rows == -1) == ours):
        place = int(np.flatnonzero((rows == -1) == ours)[0])
        needed = "a row, since the expert is this rank's" if ours[place] else "-1, since the expert is another rank's"
        raise ArgumentError("unpermuted_to_permuted", f"{rows[place]} at {place}", needed)
    expert, mapped = local[ours], rows[ours]
    outside = (mapped < offsets[expert]) | (mapped >= offsets[expert + 1])
    if np.any(outside):
        worst = int(np.flatnonzero(outside)[0])
        span = f"[{offsets[expert[worst]]}, {offsets[expert[worst] + 1]})"
        raise ArgumentError(
            "unpermuted_to_permuted", f"row {mapped[worst]} for expert {expert[worst] + first_expert}", f"one in {span}"
        )
    if mapped.size != offsets[-1] or np.unique(mapped).size != mapped.size:
        raise ArgumentError(
            "unpermuted_to_permuted",
            f"{np.unique(mapped).size} different rows for {mapped.size} entries",
            f"each of the offsets' {offsets[-1]} rows once",
        )
    return top_k, experts


def check_offsets(offsets: npt.NDArray[np.int64], rows: int) -> None:
    """Refuse offsets that do not start at 0, decrease, or pass the last of `rows` rows."""
    if offsets[0] != 0 or np.any(np.diff(offsets) < 0) or offsets[-1] > rows:
        raise ArgumentError(
            "offsets",
            f"{offsets[0]} .. {offsets[-1]}{'' if np.all(np.diff(offsets) >= 0) else ', decreasing'}",
            f"0 first, never decreasing, at most {rows} rows last",
        )
