"""What the harness does with cases of routing, activation and finalize: the steps of a layer around its GEMMs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import Case
from refmoe.families.choices import expert_ids, expert_offsets
from refmoe.families.family import Expectation, Inputs, Outputs, required
from refmoe.families.fills import BLOCK
from refmoe.families.step_fills import CLAMP_LIMITS, GATE_FILLS, LOGIT_FILLS, MIDPOINTS, ROW_FILLS
from refmoe.families.step_stages import (
    ChoiceIds,
    ChoiceRows,
    FirstRows,
    RefusedToken,
    RowChoices,
    TokenSums,
    Weights,
)
from refmoe.families.vacuity import Sample, doubt
from refmoe.numbers_as_text import VALUE_DTYPES
from refmoe.policy import ScaleMode
from refmoe.reference.activation import ALPHA, BETA, LIMIT, swiglu
from refmoe.reference.expand import build_permutation
from refmoe.reference.finalize import finalize
from refmoe.reference.layout import (
    GROUPED_LAYOUTS,
    expert_scale_rows,
    grouped_scale_rows,
    scale_buffer_size,
    write_scale_rows,
)
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.reference.routing import route_softmax_topk
from refmoe.verify.compare import Codes, GroupedScales

if TYPE_CHECKING:
    from refmoe.cuda import Device
    from refmoe.cuda.routing import Permuted

__all__ = [
    "activation_expect",
    "activation_inputs",
    "activation_run",
    "finalize_expect",
    "finalize_inputs",
    "finalize_run",
    "routing_expect",
    "routing_inputs",
    "routing_run",
]

_BF16 = np.dtype(ml_dtypes.bfloat16)
_NAN_WEIGHT = np.array(0x7FFFFFFF, np.uint32).view(np.float32)
_POISONED_BF16 = 0x7FC1  # a NaN that no operation makes


# --- routing --------------------------------------------------------------------------------------------------------


def routing_inputs(case: Case) -> Inputs:
    """Logits over the experts of all ranks and their bias; or, of dtype "ids", the choices themselves."""
    shape, experts = case.shape, case.shape.e * case.ranks
    if case.dtype == "ids":
        return {"topk_ids": expert_ids(case)}
    logits = LOGIT_FILLS[case.fill].make(Draw("logits", case.fill, case.seed), shape.m, experts, shape.t)
    bias = (Draw("router-bias", case.seed).normal((experts,)) * 0.7).astype(np.float32)
    with np.errstate(invalid="ignore"):
        rounded = logits.astype(VALUE_DTYPES[case.dtype])
    return {"logits": rounded, "bias": bias if case.bias == "distinct" else None}


def routing_expect(case: Case, inputs: Inputs) -> Expectation:
    """The reference's choices, weights and maps; tokens without an answer as the kernel's contract has them."""
    if case.dtype == "ids":
        ids = required(inputs, "topk_ids")
        return Expectation(*_expected_maps(case, ids), None)
    logits = _biased(inputs)
    answered = _answered(logits, case.shape.t)
    ids = np.tile(np.arange(case.shape.t, dtype=np.int32), (case.shape.m, 1))
    weights = np.full(ids.shape, _NAN_WEIGHT, np.float32)
    ids[answered], weights[answered] = route_softmax_topk(
        required(inputs, "logits")[answered], case.shape.t, bias=inputs["bias"]
    )
    refused = np.flatnonzero(~answered)[:1].astype(np.uint32)
    outputs: dict[str, NDArray[Any]] = {
        "topk_ids": ids.view(np.uint32),
        "topk_weights": weights.view(np.uint32),
        "refused": ~refused if refused.size else np.zeros(1, np.uint32),
    }
    stages = (ChoiceIds("topk_ids", logits, case.shape.t), Weights("topk_weights", ids), RefusedToken("refused"))
    maps, map_stages = _expected_maps(case, ids)
    return Expectation({**outputs, **maps}, (*stages, *map_stages), _doubt_weights(case, weights, answered))


def _biased(inputs: Inputs) -> NDArray[np.float32]:
    """What is chosen by: written apart from the reference."""
    logits = required(inputs, "logits").astype(np.float32)
    with np.errstate(invalid="ignore"):
        return logits if inputs["bias"] is None else (logits + inputs["bias"]).astype(np.float32)


def _answered(logits: NDArray[np.float32], k: int) -> NDArray[np.bool_]:
    """Tokens with neither NaN nor +Inf and at least k numbers."""
    rejected = np.isnan(logits) | (logits == np.inf)
    answered: NDArray[np.bool_] = ~rejected.any(axis=1) & (np.isfinite(logits).sum(axis=1) >= k)
    return answered


def _expected_maps(case: Case, ids: NDArray[np.int32]) -> tuple[dict[str, NDArray[Any]], tuple[Any, ...]]:
    maps = build_permutation(ids, case.shape.e, case.first_expert)
    outputs: dict[str, NDArray[Any]] = {
        "offsets": maps.offsets.view(np.uint64),
        "unpermuted_to_permuted": maps.unpermuted_to_permuted.view(np.uint32),
        "permuted_to_unpermuted": maps.permuted_to_unpermuted.view(np.uint32),
    }
    stages = (
        FirstRows("offsets", case.shape.e),
        ChoiceRows("unpermuted_to_permuted", ids),
        RowChoices("permuted_to_unpermuted", case.shape.m),
    )
    return outputs, stages


def _doubt_weights(case: Case, weights: NDArray[np.float32], answered: NDArray[np.bool_]) -> str | None:
    """Weights that are all alike would agree with those of a kernel that never looks at the logits."""
    if case.shape.t == 1 or not answered.any() or case.fill == "signed-zeros":
        return None  # one weight is 1, and so are the exponentials of numbers next to zero: the ids tell there
    found = np.unique(weights[answered]).size
    need = min(2 * int(answered.sum()), 4)
    return f"{found} distinct weights, fewer than {need}: nothing shows of the softmax" if found < need else None


def routing_run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the kernels."""
    from refmoe.cuda import routing

    placed = {"first_expert": case.first_expert, "fill": case.poison}
    if case.dtype == "ids":
        return _maps(routing.permute(required(inputs, "topk_ids"), case.shape.e, device=device, **placed))
    routed, refused = routing.try_route(
        required(inputs, "logits"), case.shape.t, case.shape.e, device=device, bias=inputs["bias"], **placed
    )
    return {
        "topk_ids": routed.topk_ids.view(np.uint32),
        "topk_weights": routed.topk_weights.view(np.uint32),
        "refused": np.array([0 if refused is None else ~refused & 0xFFFFFFFF], np.uint32),
        **_maps(routed),
    }


def _maps(permuted: Permuted) -> dict[str, NDArray[Any]]:
    return {
        "offsets": permuted.offsets.view(np.uint64),
        "unpermuted_to_permuted": permuted.unpermuted_to_permuted.view(np.uint32),
        "permuted_to_unpermuted": permuted.permuted_to_unpermuted.view(np.uint32),
    }


# --- activation -----------------------------------------------------------------------------------------------------


def activation_inputs(case: Case) -> Inputs:
    """Gates and ups as the variant lays them out, rows in expert order; rows of no expert hold NaN."""
    rows, width, experts = case.shape.m, case.shape.k, case.shape.e
    draw = Draw("gates", case.fill, case.variant, case.seed)
    offsets = expert_offsets(case)
    with np.errstate(over="ignore"):
        gates, ups = (side.astype(_BF16) for side in GATE_FILLS[case.fill].make(draw, rows, width))
    gate_up = _laid_out(case, gates, ups)
    gate_up.view(np.uint16)[offsets[-1] :] = _POISONED_BF16
    bias = None
    if case.bias == "distinct":
        terms = Draw("gate-bias", case.seed).normal((2, experts, width)).astype(_BF16)
        bias = _laid_out(case, terms[0], terms[1])
    parameters = _parameters(case)
    if case.fill == MIDPOINTS:
        parameters["beta"] = _midpoint_betas(gates, offsets, parameters)
    return {"gate_up": gate_up, "offsets": offsets, "bias": bias, **parameters}


def _laid_out(case: Case, gates: NDArray[Any], ups: NDArray[Any]) -> NDArray[Any]:
    if case.variant == "silu":
        return np.concatenate([gates, ups], axis=1)
    return np.ascontiguousarray(np.stack([gates, ups], axis=2).reshape(gates.shape[0], 2 * gates.shape[1]))


def _parameters(case: Case) -> dict[str, NDArray[Any] | None]:
    """alpha, beta and limit of each expert, or None for those of gpt-oss."""
    if case.params == "none":
        return {"alpha": None, "beta": None, "limit": None}
    experts = np.arange(case.shape.e)
    return {
        "alpha": (1.702 - experts / 8 % 1.5).astype(np.float32),
        "beta": (1 + experts / 4).astype(np.float32),
        "limit": CLAMP_LIMITS[experts % CLAMP_LIMITS.size],
    }


def _midpoint_betas(
    gates: NDArray[Any], offsets: NDArray[np.int64], parameters: dict[str, NDArray[Any] | None]
) -> NDArray[np.float32]:
    """For each expert what its first gate has to be multiplied by to lie halfway between two E4M3 numbers."""
    first = np.minimum(offsets[:-1], gates.shape[0] - 1)
    pairs = np.zeros((first.size, 2), _BF16)
    pairs[:, 0] = gates[first, 0]
    alone = swiglu(pairs, alpha=parameters["alpha"], limit=parameters["limit"], beta=1.0)[:, 0]  # type: ignore[arg-type]
    halfway = np.copysign(1 + (2 * (np.arange(first.size) % 8) + 1) / 16, alone)
    return (halfway / alone.astype(np.float64)).astype(np.float32)


def _of_rows(inputs: Inputs, name: str, default: float | None) -> Any:
    """A figure or bias of each expert, for each row in use."""
    value = inputs[name]
    counts = np.diff(required(inputs, "offsets"))
    return default if value is None else np.repeat(value, counts, axis=0)


def activation_expect(case: Case, inputs: Inputs) -> Expectation:
    """`quantize_mxfp8(swiglu(...))` of the rows in use, scales where the second GEMM reads them."""
    offsets = required(inputs, "offsets")
    used, blocks = int(offsets[-1]), case.shape.k // BLOCK
    parameters = {
        name: _of_rows(inputs, name, default)
        for name, default in (("alpha", ALPHA), ("beta", BETA), ("limit", LIMIT))
        if case.variant == "gpt_oss"
    }
    values = swiglu(
        required(inputs, "gate_up")[:used], variant=case.variant, bias=_of_rows(inputs, "bias", None), **parameters
    )
    quantized = quantize_mxfp8(values, mode=ScaleMode(case.mode), edge=case.edge)
    codes = np.full((case.shape.m, case.shape.k), case.poison, np.uint8)
    codes[:used] = quantized.codes
    capacity = scale_buffer_size(grouped_scale_rows(case.shape.m, case.shape.e), blocks)
    scales = np.full(capacity, case.poison, np.uint8)
    if used:
        write_scale_rows(scales, GROUPED_LAYOUTS[case.layout], expert_scale_rows(offsets), quantized.scales)
    stages = (
        Codes("codes", codes.shape, quantized.scales, written_rows=used, poison=case.poison, offsets=offsets),
        GroupedScales("scales", case.layout, offsets, blocks, poison=case.poison),
    )
    sample = Sample(quantized.codes, quantized.scales)
    return Expectation({"codes": codes, "scales": scales}, stages, doubt(sample, GATE_FILLS[case.fill].limits))


def activation_run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the kernel."""
    from refmoe.cuda.activation import swiglu_quantize

    result = swiglu_quantize(
        required(inputs, "gate_up"),
        required(inputs, "offsets"),
        device=device,
        variant=case.variant,
        mode=ScaleMode(case.mode),
        edge=case.edge,
        bias=inputs["bias"],
        swiglu_alpha=inputs["alpha"],
        swiglu_beta=inputs["beta"],
        swiglu_limit=inputs["limit"],
        layout=case.layout,
        fill=case.poison,
    )
    return {"codes": result.codes, "scales": result.scales}


# --- finalize -------------------------------------------------------------------------------------------------------


def finalize_inputs(case: Case) -> Inputs:
    """Rows in expert order with their maps; rows that no choice has hold NaN."""
    tokens, width, top_k = case.shape.m, case.shape.k, case.shape.t
    ids = expert_ids(case)
    maps = build_permutation(ids, case.shape.e, case.first_expert)
    data = ROW_FILLS[case.fill].make(Draw("rows", case.fill, case.seed), tokens, top_k, width)
    by_choice = data.rows.transpose(1, 0, 2).reshape(tokens * top_k, width)
    rows = np.full(by_choice.shape, _POISONED_BF16, np.uint32)
    rows <<= np.uint32(16)
    present = np.flatnonzero(maps.unpermuted_to_permuted >= 0)
    rows[maps.unpermuted_to_permuted[present]] = by_choice[present].view(np.uint32)
    bias = None
    if case.bias == "distinct":
        bias = Draw("down-bias", case.seed).normal((case.shape.e, width)).astype(_BF16)
    with np.errstate(over="ignore", invalid="ignore"):
        typed = rows.view(np.float32).astype(VALUE_DTYPES[case.dtype])
    return {
        "rows": typed,
        "unpermuted_to_permuted": maps.unpermuted_to_permuted,
        "weights": data.weights,
        "topk_ids": ids,
        "bias": bias,
    }


def _sum_arguments(case: Case, inputs: Inputs) -> dict[str, Any]:
    return {
        "topk_ids": None if inputs["bias"] is None else inputs["topk_ids"],
        "bias": inputs["bias"],
        "first_expert": case.first_expert,
        "out_dtype": VALUE_DTYPES[case.out],
    }


def finalize_expect(case: Case, inputs: Inputs) -> Expectation:
    """The reference's sums as bit patterns."""
    maps, ids = required(inputs, "unpermuted_to_permuted"), required(inputs, "topk_ids")
    sums = finalize(required(inputs, "rows"), maps, required(inputs, "weights"), **_sum_arguments(case, inputs))
    stage = TokenSums("out", case.out, case.shape.k, maps, ids)
    return Expectation({"out": _bits(sums)}, (stage,), _doubt_sums(case, maps, sums))


def _doubt_sums(case: Case, maps: NDArray[np.int32], sums: NDArray[Any]) -> str | None:
    """Too many zeros or specials would agree with a kernel that writes nothing or poisons everything."""
    present = (maps.reshape(case.shape.t, case.shape.m) >= 0).any(axis=0)
    if not present.any():
        return None  # a case of a token none of whose experts are here: whether zeros are written at all
    values = sums[present].astype(np.float32)
    most = 0.9 if case.fill in ("specials", "wide-range") else 0.02
    for name, share in (("zero", np.mean(values == 0)), ("not finite", np.mean(~np.isfinite(values)))):
        if share > most:
            return f"{share:.1%} of the results are {name}, more than the {most:.1%} of this fill"
    return None


def finalize_run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the kernel."""
    from refmoe.cuda.finalize import finalize as launch

    out = launch(
        required(inputs, "rows"),
        required(inputs, "unpermuted_to_permuted"),
        required(inputs, "weights"),
        device=device,
        fill=case.poison,
        **_sum_arguments(case, inputs),
    )
    return {"out": _bits(out)}


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
