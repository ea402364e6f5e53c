"""What the harness does with cases of a whole layer: every buffer of every launch, in the order of the launches.

The first stage that differs is named `<stage>.<buffer>`: `gemm1.out`, say, if the rows that went into it were right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.errors import RefmoeError
from refmoe.families.case import Case
from refmoe.families.choices import expert_ids
from refmoe.families.family import Expectation, Inputs, LaunchFailed, Outputs, required
from refmoe.families.fills import BLOCK, Limits
from refmoe.families.gemm.family import ASSUMPTION, MODEL
from refmoe.families.gemm.stages import Products
from refmoe.families.moe_fills import tokens_of, weights_of
from refmoe.families.step_stages import ChoiceRows, FirstRows, RowChoices, TokenSums
from refmoe.families.vacuity import Sample, doubt
from refmoe.policy import ScaleMode
from refmoe.reference.layout import (
    GROUPED_LAYOUTS,
    expert_scale_rows,
    swizzle_scales,
    swizzle_weight_scales,
    write_scale_rows,
)
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.moe.pipeline import moe_layer
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.reference.tensor import MXTensor
from refmoe.verify.compare import Codes, GroupedScales, Scales, Stage

if TYPE_CHECKING:
    from refmoe.cuda import Device

__all__ = ["BUFFERS", "moe_expect", "moe_inputs", "moe_run"]

_LAYOUT = "128x4"
_BF16 = np.dtype(ml_dtypes.bfloat16)
_LIMITS = Limits(reason="a layer's activations are neither constant nor mostly zero")
_MOST_ZEROS = 0.02  # of the outputs of tokens that have experts here

#: The buffer of each stage, as `refmoe.cuda.moe.launches.workspace_bytes` names it, and the type of its elements.
BUFFERS: Mapping[str, tuple[str, str]] = {
    "permute.offsets": ("offsets", "u8"),
    "permute.unpermuted_to_permuted": ("unpermuted_to_permuted", "u4"),
    "permute.permuted_to_unpermuted": ("permuted_to_unpermuted", "u4"),
    "quantize.codes": ("quantize_codes", "u1"),
    "quantize.scales": ("quantize_scales", "u1"),
    "expand.codes": ("expand_codes", "u1"),
    "expand.scales": ("expand_scales", "u1"),
    "gemm1.out": ("gemm1_out", "u2"),
    "activation.codes": ("activation_codes", "u1"),
    "activation.scales": ("activation_scales", "u1"),
    "gemm2.out": ("gemm2_out", "u2"),
    "finalize.out": ("out", "u2"),
}


def moe_inputs(case: Case) -> Inputs:
    """Tokens, choices, weights of this rank's experts, biases and parameters."""
    shape, draw = case.shape, Draw("moe", case.seed)
    weights = weights_of(case.fill, case.seed, case.variant, shape.e, shape.k, shape.n, case.first_expert)
    x = tokens_of(case.fill, case.seed, shape.m, shape.k)
    scales = None
    if case.path == "ready":
        quantized = quantize_mxfp8(x, mode=ScaleMode(case.mode), edge=case.edge)
        x, scales = quantized.codes, quantized.scales
    biased, experts = case.bias == "distinct", np.arange(case.first_expert, case.first_expert + shape.e)
    own = case.params == "distinct"
    return {
        "x": x,
        "input_sf": scales,
        "topk_ids": expert_ids(case),
        "topk_weights": _weights(draw, shape.m, shape.t),
        "gate_up": weights.gate_up.codes,
        "gate_up_scales": weights.gate_up.scales,
        "down": weights.down.codes,
        "down_scales": weights.down.scales,
        "gate_up_bias": _biases("gate-up-bias", case.seed, experts, 2 * shape.n) if biased else None,
        "down_bias": _biases("down-bias", case.seed, experts, shape.k) if biased else None,
        "swiglu_alpha": (1.702 - experts / 8 % 1.5).astype(np.float32) if own else None,
        "swiglu_beta": (1 + experts % 5 / 4).astype(np.float32) if own else None,
        "swiglu_limit": (7 - experts % 6).astype(np.float32) if own else None,
    }


def _weights(draw: Draw, tokens: int, top_k: int) -> NDArray[np.float32]:
    """Positive, of all 24 significant bits, none alike and about 1 in sum."""
    raw = (1 + draw.integers(1 << 23, (tokens, top_k))) / (1 << 23)
    return np.asarray((raw / np.float64(max(top_k, 1))).astype(np.float32))


def _biases(name: str, seed: int, experts: NDArray[np.int64], width: int) -> NDArray[Any]:
    """BF16 [E, width]; an expert has the same on every rank."""
    return np.stack([Draw(name, seed, int(expert)).normal((width,)) for expert in experts]).astype(_BF16)


def _layer(case: Case, inputs: Inputs) -> MoELayer:
    gate_up, down = (
        MXTensor(required(inputs, name), required(inputs, f"{name}_scales"), "mxfp4") for name in ("gate_up", "down")
    )
    own = {name: inputs[name] for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit")}
    return MoELayer(
        gate_up, down, case.shape.t, inputs["gate_up_bias"], inputs["down_bias"], variant=case.variant, **own
    )


def moe_expect(case: Case, inputs: Inputs) -> Expectation:
    """Every intermediate of the path's reference, poison where no kernel writes."""
    found = moe_layer(
        required(inputs, "x"),
        _layer(case, inputs),
        path="cutlass",
        quantization=case.path,
        topk_ids=inputs["topk_ids"],
        topk_weights=inputs["topk_weights"],
        input_sf=inputs["input_sf"],
        first_expert=case.first_expert,
        model=MODEL,
        mode=case.mode,
        edge=case.edge,
        stages=True,
    ).stages
    outputs = {
        stage: _poisoned(case, stage, found[name][array], required(found["routing"], "offsets"))
        for stage, name, array in _arrays(case)
    }
    return Expectation(outputs, _stages(case, inputs, found), _doubt(case, found), ASSUMPTION)


def _arrays(case: Case) -> list[tuple[str, str, str]]:
    """(stage, the reference's stage, its array) of the path, in order."""
    names = [stage for stage in BUFFERS if not stage.startswith("quantize") or case.path == "separate"]
    return [
        (stage, "routing" if stage.startswith("permute") else stage.partition(".")[0], stage.partition(".")[2])
        for stage in names
    ]


def _poisoned(case: Case, stage: str, array: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Bit patterns; rows of no expert and scale rows of no row hold the poison."""
    bits: NDArray[Any] = np.ascontiguousarray(array).view(BUFFERS[stage][1]).copy()
    used, name = int(offsets[-1]), stage.partition(".")[0]
    if not case.shape.m:
        bits.view(np.uint8)[:] = case.poison  # no launch
    if name not in ("expand", "gemm1", "activation", "gemm2"):
        return bits
    if not stage.endswith("scales"):
        bits[used:].view(np.uint8)[:] = case.poison
        return bits
    blocks = _blocks(case, stage)
    terms = GroupedScales(stage, _LAYOUT, offsets, blocks, case.poison)
    linear = terms.linear(bits)
    bits[:] = case.poison
    if used:
        write_scale_rows(bits, GROUPED_LAYOUTS[_LAYOUT], expert_scale_rows(offsets), linear)
    return bits


def _blocks(case: Case, stage: str) -> int:
    return (case.shape.n if stage.startswith("activation") else case.shape.k) // BLOCK


def _stages(case: Case, inputs: Inputs, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> tuple[Stage, ...]:
    shape, poison, routing = case.shape, case.poison, found["routing"]
    ids, offsets = required(inputs, "topk_ids"), routing["offsets"]
    rows, sources = routing["unpermuted_to_permuted"], routing["permuted_to_unpermuted"]
    stages: list[Stage] = [
        FirstRows("permute.offsets", shape.e),
        ChoiceRows("permute.unpermuted_to_permuted", ids),
        RowChoices("permute.permuted_to_unpermuted", shape.m),
    ]
    if case.path == "separate":
        scales = found["quantize"]["scales"]
        stages += [
            Codes("quantize.codes", (shape.m, shape.k), scales, shape.m, poison),
            Scales("quantize.scales", "linear", shape.m, shape.k // BLOCK, poison),
        ]
    for name, width, gemm, n in (("expand", shape.k, "gemm1", 2 * shape.n), ("activation", shape.n, "gemm2", shape.k)):
        terms = GroupedScales(f"{name}.scales", _LAYOUT, offsets, width // BLOCK, poison)
        linear = terms.linear(found[name]["scales"])
        size = (shape.rows, width)
        used = int(offsets[-1])
        stages += [
            Codes(f"{name}.codes", size, linear, used, poison, offsets, sources, shape.m),
            terms,
            Products(f"{gemm}.out", "bf16", n, offsets, poison),
        ]
    return (*stages, TokenSums("finalize.out", "bf16", shape.k, rows, ids))


def _doubt(case: Case, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> str | None:
    """Of the two quantized matrices, and of an output that is mostly zero although its tokens have experts here."""
    offsets = found["routing"]["offsets"]
    used = int(offsets[-1])
    if not used:
        return None
    for name in ("expand", "activation"):
        terms = GroupedScales(name, _LAYOUT, offsets, _blocks(case, name), case.poison)
        reason = doubt(Sample(found[name]["codes"][:used], terms.linear(found[name]["scales"])), _LIMITS)
        if reason is not None:
            return f"{name}: {reason}"
    present = (found["routing"]["unpermuted_to_permuted"].reshape(case.shape.t, case.shape.m) >= 0).any(axis=0)
    zeros = float(np.mean(found["finalize"]["out"][present].astype(np.float32) == 0))
    return f"finalize: {zeros:.1%} of the outputs are zero" if zeros > _MOST_ZEROS else None


def moe_run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the layer and take every buffer.

    Raises:
        LaunchFailed: a launch did not end.
    """
    from refmoe.cuda.moe.call import make_call
    from refmoe.cuda.moe.fused import check_choices, layer_launches

    scales = inputs["input_sf"]
    if scales is not None and case.input_sf == _LAYOUT:
        scales = swizzle_scales(scales, _LAYOUT, fill=0xFF)  # rows that no token has must not matter
    quant_scales = [
        swizzle_weight_scales(required(inputs, "gate_up_scales"), fill=case.poison),
        None,
        swizzle_weight_scales(required(inputs, "down_scales"), fill=case.poison),
        None,
    ]
    call = make_call(
        required(inputs, "x"),
        required(inputs, "topk_ids"),
        required(inputs, "topk_weights"),
        required(inputs, "gate_up"),
        required(inputs, "down"),
        _BF16,
        quant_scales,
        fc1_expert_biases=inputs["gate_up_bias"],
        fc2_expert_biases=inputs["down_bias"],
        input_sf=scales,
        swiglu_alpha=inputs["swiglu_alpha"],
        swiglu_beta=inputs["swiglu_beta"],
        swiglu_limit=inputs["swiglu_limit"],
        ep_size=case.ranks,
        ep_rank=case.first_expert // case.shape.e,
        quantize_in_expand=case.path == "fused",
        activation=case.variant,
        scale_mode=case.mode,
        edge_policy=case.edge,
    )
    check_choices(call)
    buffers, steps = layer_launches(call, device, case.poison)
    for number, step in enumerate(steps):
        try:
            device.launch(step.plan)
        except RefmoeError as error:
            done = [before.stage for before in steps[:number]]
            raise LaunchFailed(step.stage, _taken(case, device, buffers, done), error) from error
    return _taken(case, device, buffers, [stage.partition(".")[0] for stage in BUFFERS])


def _taken(case: Case, device: Device, written: Mapping[str, Any], launches: Sequence[str]) -> Outputs:
    """By stage name the buffers that these launches write."""
    shape = case.shape
    widths = {"gemm1_out": 2 * shape.n, "gemm2_out": shape.k, "out": shape.k, "quantize_codes": shape.k}
    widths |= {"expand_codes": shape.k, "activation_codes": shape.n, "quantize_scales": shape.k // BLOCK}
    outputs: dict[str, NDArray[Any]] = {}
    for stage, _, _ in _arrays(case):
        if stage.partition(".")[0] not in launches:
            continue
        buffer, dtype = BUFFERS[stage]
        flat = np.ascontiguousarray(device.download(written[buffer])).reshape(-1).view(dtype)
        outputs[stage] = flat.reshape(-1, widths[buffer]) if buffer in widths else flat
    return outputs
