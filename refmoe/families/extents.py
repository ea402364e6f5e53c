"""How many bytes a case compares, from its shape and options alone, without making its data.

A report states how many bytes were compared. Whoever reads it holds that against this table: a kernel that "passed" a
tenth of its output did not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from refmoe.families.family import Case
from refmoe.formats import MX_BLOCK, NVFP4
from refmoe.reference.layout import grouped_scale_rows, scale_buffer_size

_ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "f32": 4}
#: Rows and columns of a tile of block FP8.
_TILE = 128
#: Scales of a row are padded to a multiple of these in every layout of grouped rows.
_COLUMNS = 4
#: Stages that hold a second answer to a GEMM's output, by the fill that has one.
_WITNESSES: Mapping[str, tuple[str, ...]] = {
    "integer": ("out-as-int64",),
    "shared-weights": ("out-as-one-group",),
    "zero-padded": ("out-unpadded",),
}

Extents = Mapping[str, int]


def extents_of(case: Case) -> Extents | None:
    """The bytes of each stage of a case; None for a family whose stages depend on more than shape and options."""
    family = case.family
    rule = _RULES.get(family.base or family.name)
    return None if rule is None else rule(case)


def _quantize(case: Case) -> Extents:
    m, k = case.shape.m, case.shape.k
    return {"codes": m * k, "scales": scale_buffer_size(m, k // MX_BLOCK, case.layout)}


def _nvfp4(case: Case) -> Extents:
    m, k = case.shape.m, case.shape.k
    return {"codes": m * k // 2, "scales": scale_buffer_size(m, k // NVFP4.block, case.layout)}


def _block_fp8(case: Case) -> Extents:
    m, k = case.shape.m, case.shape.k
    rows = m if case.block == "1x128" else -(-m // _TILE)
    return {"codes": m * k, "scales": 4 * rows * -(-k // _TILE)}


def _q8_1_rows(rows: int, k: int) -> Extents:
    blocks = rows * k // MX_BLOCK
    return {"codes": rows * k, "d": 2 * blocks, "s": 2 * blocks}


def _mxfp8_grouped(rows: int, k: int, experts: int) -> Extents:
    """MXFP8 in expert order: the scales of every expert begin at a tile of their layout."""
    return {"codes": rows * k, "scales": grouped_scale_rows(rows, experts) * _round_up(k // MX_BLOCK, _COLUMNS)}


def _block_fp8_rows(rows: int, k: int) -> Extents:
    return {"codes": rows * k, "scales": 4 * rows * -(-k // _TILE)}


def _expand(case: Case) -> Extents:
    rows, k, experts = case.shape.rows, case.shape.k, case.shape.e
    if case.output == "mxfp8":
        return _mxfp8_grouped(rows, k, experts)
    if case.output == "nvfp4":
        columns = _round_up(k // NVFP4.block, _COLUMNS)
        return {"codes": rows * k // 2, "scales": grouped_scale_rows(rows, experts) * columns}
    scales = {"row_scales": 4 * rows} if case.output == "fp8_token" else {}
    size = _ELEMENT_BYTES.get(case.dtype, 1) if case.output == "copy" else 1
    return {"codes": rows * k * size, **scales}


def _gemm(case: Case) -> Extents:
    size = case.shape.m * case.shape.n * _ELEMENT_BYTES[case.dtype]
    return dict.fromkeys(("out", *_WITNESSES.get(case.fill, ())), size)


def _deepseek_gemm(case: Case) -> Extents:
    batches = case.shape.e if case.grouping == "masked" else 1
    # No kernel pads rows there that a second answer could leave out.
    stages = [stage for stage in ("out", *_WITNESSES.get(case.fill, ())) if stage != "out-unpadded"]
    return dict.fromkeys(stages, batches * case.shape.m * case.shape.n * _ELEMENT_BYTES[case.dtype])


def _permutation(case: Case) -> Extents:
    maps = 4 * case.shape.rows
    return {"offsets": 8 * (case.shape.e + 1), "permuted_to_unpermuted": maps, "unpermuted_to_permuted": maps}


def _routing(case: Case) -> Extents:
    chosen = 4 * case.shape.rows
    routed = {} if case.dtype == "ids" else {"refused": 4, "topk_ids": chosen, "topk_weights": chosen}
    return {**_permutation(case), **routed}


def _deepseek_expand(case: Case) -> Extents:
    tokens = _block_fp8_rows(case.shape.m, case.shape.k)
    return {
        **_block_fp8_rows(case.shape.rows, case.shape.k),
        **{f"token_{name}": size for name, size in tokens.items()},
    }


def _deepseek_activation(case: Case) -> Extents:
    batches = case.shape.e if case.rows == "masked" else 1
    return _block_fp8_rows(batches * case.shape.m, case.shape.k)


def _finalize(case: Case) -> Extents:
    return {"out": case.shape.m * case.shape.k * _ELEMENT_BYTES[case.out]}


def _moe(case: Case) -> Extents:
    m, k, n, experts, rows = case.shape.m, case.shape.k, case.shape.n, case.shape.e, case.shape.rows
    quantized = {"codes": m * k, "scales": m * k // MX_BLOCK} if case.path == "separate" else {}
    return _staged(
        permute=_permutation(case),
        quantize=quantized,
        expand=_mxfp8_grouped(rows, k, experts),
        gemm1={"out": rows * 2 * n * 2},
        activation=_mxfp8_grouped(rows, n, experts),
        gemm2={"out": rows * k * 2},
        finalize={"out": m * k * 2},
    )


def _integer_moe(case: Case) -> Extents:
    m, k, n, rows = case.shape.m, case.shape.k, case.shape.n, case.shape.rows
    product = 4 if case.path == "llama_cpp" else 2
    return _staged(
        permute=_permutation(case),
        quantize={} if case.dtype == "q8_1" else _q8_1_rows(m, k),
        gemm1={"out": rows * 2 * n * product},
        activation=_q8_1_rows(rows, n),
        gemm2={"out": rows * k * product},
        finalize=_q8_1_rows(m, k) if case.output == "q8_1" else {"out": m * k * 2},
    )


def _deepseek_moe(case: Case) -> Extents:
    m, k, n, rows = case.shape.m, case.shape.k, case.shape.n, case.shape.rows
    expanded = _deepseek_expand(case) if case.shared != "none" else _block_fp8_rows(rows, k)
    chosen = 4 * rows
    shared: dict[str, Extents] = {}
    if case.shared != "none":
        # Two shared experts side by side: one of twice the size.
        always = n if case.shared == "one" else 2 * n
        shared["shared_gemm1"] = {"out": m * 2 * always * 2}
        shared["shared_activation"] = _block_fp8_rows(m, always)
        shared["shared_gemm2"] = {"out": m * k * 2}
    return _staged(
        route={"topk_ids": chosen, "topk_weights": chosen} if case.router == "logits" else {},
        permute=_permutation(case),
        expand=expanded,
        gemm1={"out": rows * 2 * n * 2},
        activation=_block_fp8_rows(rows, n),
        gemm2={"out": rows * k * 2},
        finalize={"out": m * k * 2},
        **shared,
    )


def _staged(**launches: Extents) -> Extents:
    """The buffers of a layer's launches by their names in reports, "gemm1.out"."""
    return {f"{launch}.{name}": size for launch, buffers in launches.items() for name, size in buffers.items()}


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


_RULES: Mapping[str, Callable[[Case], Extents]] = {
    "mxfp8_quantize": _quantize,
    "nvfp4_quantize": _nvfp4,
    "block_fp8_quantize": _block_fp8,
    "q8_1_quantize": lambda case: _q8_1_rows(case.shape.m, case.shape.k),
    "expand": _expand,
    "sm12x_gemm": _gemm,
    "sm12x_nvfp4_gemm": _gemm,
    "deepseek_gemm": _deepseek_gemm,
    "dp4a_gemv": lambda case: {"out": case.shape.rows * case.shape.n * _ELEMENT_BYTES[case.dtype]},
    "routing": _routing,
    "activation": lambda case: _mxfp8_grouped(case.shape.m, case.shape.k, case.shape.e),
    "swiglu_q8_1": lambda case: _q8_1_rows(case.shape.m, case.shape.k),
    "finalize": _finalize,
    "finalize_q8_1": lambda case: _q8_1_rows(case.shape.m, case.shape.k),
    "moe": _moe,
    "integer_moe": _integer_moe,
    "deepseek_routing": _routing,
    "deepseek_expand": _deepseek_expand,
    "deepseek_activation": _deepseek_activation,
    "deepseek_finalize": _finalize,
    "deepseek_moe": _deepseek_moe,
}
