"""Bytes of the buffers that several families have: what the `extents` of a `Family` are made of.

A report states how many bytes were compared. The gate holds that against the family: a kernel that "passed" a tenth of
its output did not pass. So extents follow from a case's shape and options alone, without its data.
"""

from __future__ import annotations

from collections.abc import Mapping

from refmoe.families.family import Case, Extents
from refmoe.formats import MX_BLOCK
from refmoe.reference.layout import grouped_scale_rows

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "f32": 4}
#: Rows and columns of a tile of block FP8.
BLOCK_FP8_TILE = 128
#: Scales of a row are padded to a multiple of these in every layout of grouped rows.
_COLUMNS = 4
#: Stages that hold a second answer to a GEMM's output, by the fill that has one.
WITNESSES: Mapping[str, tuple[str, ...]] = {
    "integer": ("out-as-int64",),
    "shared-weights": ("out-as-one-group",),
    "zero-padded": ("out-unpadded",),
}


def q8_1_rows(rows: int, k: int) -> Extents:
    """Rows in Q8_1."""
    blocks = rows * k // MX_BLOCK
    return {"codes": rows * k, "d": 2 * blocks, "s": 2 * blocks}


def grouped_scales(rows: int, experts: int, columns: int) -> int:
    """Bytes of scales in expert order, so many a row: those of every expert begin at a tile of their layout."""
    return grouped_scale_rows(rows, experts) * -(-columns // _COLUMNS) * _COLUMNS


def mxfp8_grouped(rows: int, k: int, experts: int) -> Extents:
    """MXFP8 in expert order."""
    return {"codes": rows * k, "scales": grouped_scales(rows, experts, k // MX_BLOCK)}


def block_fp8_rows(rows: int, k: int) -> Extents:
    """Rows in block FP8, a scale for each 128 of K."""
    return {"codes": rows * k, "scales": 4 * rows * -(-k // BLOCK_FP8_TILE)}


def product_extents(case: Case) -> Extents:
    """Of a grouped GEMM: its output, and the second answer that some fills have."""
    size = case.shape.m * case.shape.n * ELEMENT_BYTES[case.dtype]
    return dict.fromkeys(("out", *WITNESSES.get(case.fill, ())), size)


def permutation(case: Case) -> Extents:
    """The maps between tokens and rows in expert order, and the first row of each expert."""
    maps = 4 * case.shape.rows
    return {"offsets": 8 * (case.shape.e + 1), "permuted_to_unpermuted": maps, "unpermuted_to_permuted": maps}


def routing_extents(case: Case) -> Extents:
    """Of routing: the permutation, and the choices where the kernel makes them."""
    chosen = 4 * case.shape.rows
    routed = {} if case.dtype == "ids" else {"refused": 4, "topk_ids": chosen, "topk_weights": chosen}
    return {**permutation(case), **routed}


def sum_extents(case: Case) -> Extents:
    """Of finalize: a row for each token."""
    return {"out": case.shape.m * case.shape.k * ELEMENT_BYTES[case.out]}


def staged(**launches: Extents) -> Extents:
    """The buffers of a layer's launches by their names in reports, "gemm1.out"."""
    return {f"{launch}.{name}": size for launch, buffers in launches.items() for name, size in buffers.items()}
