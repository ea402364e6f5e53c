"""The kernel families: what each does with a case. Quantize and expand are here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import Case
from refmoe.families.choices import expert_ids
from refmoe.families.family import Expectation, FamilyRun, Inputs, Outputs, required
from refmoe.families.fills import BLOCK, FILLS, INPUT_FORMATS, Limits
from refmoe.families.gemm.family import gemm_expect, gemm_inputs, gemm_run
from refmoe.families.moe import moe_expect, moe_inputs, moe_run
from refmoe.families.real_data import SHIPPED, read_activations, tile_rows
from refmoe.families.steps import (
    activation_expect,
    activation_inputs,
    activation_run,
    finalize_expect,
    finalize_inputs,
    finalize_run,
    routing_expect,
    routing_inputs,
    routing_run,
)
from refmoe.families.vacuity import FILE_LIMITS, READY_LIMITS, Sample, doubt
from refmoe.museum.cutlass.kernel import cutlass_expect, cutlass_made_of, cutlass_missing, cutlass_run
from refmoe.policy import ScaleMode
from refmoe.reference.expand import build_permutation, expand
from refmoe.reference.layout import swizzle_scales
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.verify.compare import Codes, GroupedScales, Scales

if TYPE_CHECKING:
    from refmoe.cuda import Device

__all__ = ["RUNS", "case_doubt"]

Bytes = NDArray[np.uint8]


def _elements(case: Case, dtype: str) -> NDArray[Any]:
    """The case's input as BF16 or FP16 [m, k]."""
    format = INPUT_FORMATS[dtype]
    m, k = case.shape.m, case.shape.k
    if case.fill in FILLS:
        return FILLS[case.fill].make(format, Draw(case.fill, dtype, case.seed), m, k).view(format.dtype)
    source = (
        read_activations(SHIPPED) if case.fill == "real" else read_activations(Path(case.file), case.tensor or None)
    )
    rows = tile_rows(source.patterns, m, k, first_row=case.seed * 37)
    values = rows.view(INPUT_FORMATS[source.dtype].dtype)
    return values if source.dtype == dtype else values.astype(np.float32).astype(format.dtype)


def _ready(case: Case) -> tuple[Bytes, Bytes]:
    """The case's input as MXFP8 codes [m, k] and linear scales [m, k/32]."""
    m, k = case.shape.m, case.shape.k
    if case.fill == "bytes":
        draw = Draw(case.fill, case.seed)
        return (
            draw.integers(256, (m, k)).astype(np.uint8),
            draw.integers(256, (m, k // BLOCK)).astype(np.uint8),
        )
    quantized = quantize_mxfp8(_elements(case, "bf16"))
    return quantized.codes, quantized.scales


def _quantize_inputs(case: Case) -> Inputs:
    return {"x": _elements(case, case.dtype)}


def _quantize_expect(case: Case, inputs: Inputs) -> Expectation:
    quantized = quantize_mxfp8(required(inputs, "x"), mode=ScaleMode(case.mode), edge=case.edge)
    scales = swizzle_scales(quantized.scales, case.layout, fill=case.poison)
    rows, blocks = quantized.scales.shape
    stages = (
        Codes("codes", quantized.codes.shape, quantized.scales, written_rows=rows, poison=case.poison),
        Scales("scales", case.layout, rows, blocks, poison=case.poison),
    )
    sample = Sample(quantized.codes, quantized.scales)
    return Expectation({"codes": quantized.codes, "scales": scales}, stages, case_doubt(case, sample))


def _quantize_run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda import kernels

    result = kernels.mxfp8_quantize(
        required(inputs, "x"),
        device=device,
        mode=ScaleMode(case.mode),
        edge=case.edge,
        layout=case.layout,
        fill=case.poison,
    )
    return {"codes": result.codes, "scales": result.scales}


def _expand_inputs(case: Case) -> Inputs:
    ids = expert_ids(case)
    maps = build_permutation(ids, case.shape.e, case.first_expert)
    routed: dict[str, NDArray[Any] | None] = {
        "topk_ids": ids,
        "unpermuted_to_permuted": maps.unpermuted_to_permuted,
        "permuted_to_unpermuted": maps.permuted_to_unpermuted,
        "offsets": maps.offsets,
    }
    if case.dtype != "mxfp8":
        return {"x": _elements(case, case.dtype), "input_sf": None, **routed}
    codes, scales = _ready(case)
    if case.input_sf == "none":
        return {"x": codes, "input_sf": None, **routed}
    if case.input_sf == "128x4":
        # Scale rows that no token has must not matter, so they hold NaN.
        scales = swizzle_scales(scales, "128x4", fill=0xFF)
    return {"x": codes, "input_sf": scales, **routed}


def _input_sf_layout(case: Case) -> str:
    return "linear" if case.input_sf == "none" else case.input_sf


def _expand_expect(case: Case, inputs: Inputs) -> Expectation:
    expanded = expand(
        required(inputs, "x"),
        required(inputs, "topk_ids"),
        case.shape.e,
        mode=ScaleMode(case.mode),
        edge=case.edge,
        layout=case.layout,
        input_sf=inputs["input_sf"],
        input_sf_layout=_input_sf_layout(case),
        first_expert=case.first_expert,
        fill=case.poison,
    )
    blocks = case.shape.k // BLOCK
    terms = GroupedScales("scales", case.layout, expanded.offsets, blocks, poison=case.poison)
    linear = terms.linear(expanded.scales)
    stages = (
        Codes(
            "codes",
            expanded.codes.shape,
            linear,
            written_rows=int(expanded.offsets[-1]),
            poison=case.poison,
            offsets=expanded.offsets,
            sources=expanded.permuted_to_unpermuted,
            tokens=case.shape.m,
        ),
        terms,
    )
    # Copies of a token's row add nothing to what could have failed.
    tokens = expanded.permuted_to_unpermuted[: linear.shape[0]] % max(case.shape.m, 1)
    _, first = np.unique(tokens, return_index=True)
    sample = Sample(expanded.codes[first], linear[first])
    return Expectation({"codes": expanded.codes, "scales": expanded.scales}, stages, case_doubt(case, sample))


def _expand_run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda import kernels

    result = kernels.expand(
        required(inputs, "x"),
        required(inputs, "topk_ids"),
        required(inputs, "unpermuted_to_permuted"),
        required(inputs, "offsets"),
        device=device,
        mode=ScaleMode(case.mode),
        edge=case.edge,
        layout=case.layout,
        input_sf=inputs["input_sf"],
        input_sf_layout=_input_sf_layout(case),
        first_expert=case.first_expert,
        fill=case.poison,
    )
    return {"codes": result.codes, "scales": result.scales}


def case_doubt(case: Case, sample: Sample) -> str | None:
    """Why the case's data could not have failed, by the limits of its fill."""
    if case.fill == "bytes":
        limits: Limits = READY_LIMITS
    else:
        limits = FILLS[case.fill].limits if case.fill in FILLS else FILE_LIMITS
    return doubt(sample, limits, scales_copied=case.input_sf != "none")


#: By family name; each name is also a key of refmoe.families.case.FAMILIES.
RUNS: Mapping[str, FamilyRun] = MappingProxyType(
    {
        "mxfp8_quantize": FamilyRun(_quantize_inputs, _quantize_expect, _quantize_run),
        "expand": FamilyRun(_expand_inputs, _expand_expect, _expand_run),
        "sm12x_gemm": FamilyRun(gemm_inputs, gemm_expect, gemm_run),
        "cutlass_gemm": FamilyRun(gemm_inputs, cutlass_expect, cutlass_run, cutlass_missing, cutlass_made_of),
        "routing": FamilyRun(routing_inputs, routing_expect, routing_run),
        "activation": FamilyRun(activation_inputs, activation_expect, activation_run),
        "finalize": FamilyRun(finalize_inputs, finalize_expect, finalize_run),
        "moe": FamilyRun(moe_inputs, moe_expect, moe_run),
    }
)
