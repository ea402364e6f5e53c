"""`wgmma.mma_async.sp`: rows of A of which two of four neighbouring units are stored.

A unit is a byte, or a 16-bit element, or half of a TF32, whose two halves are side by side. Two bits of metadata say
where in its group of four a unit stands, those of a group's first unit below those of its second. Four bits of each
group fill registers from the lowest on:

    8-bit elements, 16 groups a row    row 16w + g: lanes 4g, 4g + 2 of warp w    row 16w + g + 8: lanes 4g + 1, 4g + 3
    others, 8 groups a row             the lower half of lanes 4g + 2s, 4g + 2s + 1        the upper half of the same

where s is the selector. (PTX ISA, "Sparse wgmma"; as an H200 has it.) A block has as many products as without sparsity,
of twice the steps of K: what is not stored takes no part, whatever it would be multiplied by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refmoe.ptx.engine.tensor.sums import Homes, IntegerSums, Sums
from refmoe.ptx.text.wgmma import ROW_BYTES, ROWS, WARPS, Form
from refmoe.reference.mma import ELEMENT_FORMATS, tensor_core_mma

Array = Any


def _unit(form: Form) -> int:
    return min(form.bits, 16) // 8


def metadata_of(registers: Array, selector: int, form: Form) -> Array:
    """Where the stored units of a sparse A stand in its rows: int64 [64, units].

    Args:
        registers: uint32 [128].
        selector: 0 or 1.
        form: of the product.
    """
    lanes = registers.reshape(WARPS, 8, 4)
    bits = lanes[..., None] >> np.arange(0, 32, 2, dtype=np.uint32) & np.uint32(3)
    if _unit(form) == 1:
        # [warp, g, half of the row, upper, unit] -> [warp, upper, g, half, unit]
        split = bits.reshape(WARPS, 8, 2, 2, 16).transpose(0, 3, 1, 2, 4)
    else:
        # [warp, g, half of the row, upper, unit]
        chosen = bits[:, :, 2 * selector : 2 * selector + 2]
        split = chosen.reshape(WARPS, 8, 2, 2, 8).transpose(0, 3, 1, 2, 4)
    inside = np.ascontiguousarray(split).reshape(ROWS, -1).astype(np.int64)
    return inside + np.arange(inside.shape[1]) // 2 * 4


def ordered_places(places: Array, form: Form) -> Array:
    """Whether the two units of each group stand in their order, and those of TF32 side by side: bool [64, groups]."""
    first, second = places[:, ::2], places[:, 1::2]
    fine: Array = first < second
    return fine & (second == first + 1) & (first % 2 == 0) if form.bits == 32 else fine


def multiply_sparse(
    sums: Sums,
    stored: Array,
    form: Form,
    places: list[Array],
    b: Array,
    registers: Array,
    warp_bytes: int,
    adds: bool,
) -> None:
    """Add the products of a chain to D.

    Args:
        sums: how they add up.
        stored: uint8 [64, K bytes], what is stored of A.
        form: of the products.
        places: of each step, as `metadata_of` gives them.
        b: uint8 [N, 2 K bytes].
        registers: see `WarpgroupMma`, likewise the others.
        warp_bytes: from a warp's registers to the next warp's.
        adds: whether D is added.
    """
    unit = np.dtype(f"u{_unit(form)}")
    units = 2 * ROW_BYTES // unit.itemsize
    where = np.concatenate([each + number * units for number, each in enumerate(places)], axis=1)
    rows = np.zeros((ROWS, len(places) * units), unit)
    np.put_along_axis(rows, where, np.ascontiguousarray(stored).view(unit), axis=1)
    filled = rows.view(np.uint8)
    if isinstance(sums, IntegerSums):
        sums(filled, b, registers, warp_bytes, adds)
        return
    # A zero that is not stored is multiplied by nothing, and so makes no NaN of what is no number.
    columns = np.flatnonzero(_has_special(b, form))
    homes = Homes(registers, warp_bytes)
    before = sums.read(homes)[:, columns] if columns.size and adds else np.zeros((ROWS, columns.size), np.float32)
    finite = b
    if columns.size:
        finite = b.copy()
        finite[columns] = 0
    sums(filled, finite, registers, warp_bytes, adds)
    if not columns.size:
        return
    element = np.dtype(f"u{form.bits // 8}")
    # [columns, row, unit] -> of each row the elements that its own are multiplied by
    beside = b.view(unit)[columns][:, where].transpose(1, 0, 2)
    result = sums.read(homes)
    result[:, columns] = tensor_core_mma(
        np.ascontiguousarray(stored).view(element)[:, None],
        np.ascontiguousarray(beside).view(element),
        np.ascontiguousarray(before[:, None]),
        model=sums.model,
        a_format=form.a,
        b_format=form.b,
    )[:, 0]
    sums.write(homes, result)


def _has_special(b: Array, form: Form) -> Array:
    """bool [N], the columns of B with an element that is infinite or no number."""
    fmt = ELEMENT_FORMATS[form.b]
    codes = b.view(np.dtype(f"u{form.bits // 8}")) >> fmt.unused_low_bits
    magnitudes = codes & ((1 << fmt.bits - fmt.unused_low_bits - 1) - 1)
    special: Array = (magnitudes > fmt.max_code >> fmt.unused_low_bits).any(axis=1)
    return special
