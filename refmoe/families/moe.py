"""The family `moe`: whole layers. Every buffer of every launch is a stage, in the order of the launches.

A stage is named `<launch>.<buffer>`. The verdict names the first stage that differs: `gemm1.out` means that the rows
that went into the first GEMM were right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.chips import Mma
from refmoe.draw import Draw
from refmoe.errors import RefmoeError
from refmoe.families import pairs
from refmoe.families.activation import PARAMS, VARIANT, check_params
from refmoe.families.case import Shape, number, refused, word
from refmoe.families.choices import RANKS, ROUTED, ROUTING, check_choices, expert_ids, padding_ids
from refmoe.families.expand import INPUT_SF
from refmoe.families.extents import mxfp8_grouped, permutation, staged
from refmoe.families.extents.traffic import mx_traffic
from refmoe.families.family import (
    POISON,
    Case,
    Contract,
    Expectation,
    Extents,
    Family,
    Fill,
    Inputs,
    LaunchFailed,
    Outputs,
    in_software,
)
from refmoe.families.finalize import TokenSums, doubt_sums
from refmoe.families.gemm.epilogue import LAYER_BIAS
from refmoe.families.gemm.family import ASSUMPTION, MODEL
from refmoe.families.gemm.stages import Products
from refmoe.families.kept import Kept
from refmoe.families.quantize import COMPILED_POLICIES, EDGE, MODE
from refmoe.families.real_data import EXPERT, FFN_INPUT, read_activations, tile_rows
from refmoe.families.routing import ChoiceRows, FirstRows, RowChoices
from refmoe.families.stages import Codes, GroupedScales, Scales, Stage
from refmoe.families.vacuity import Limits, doubt_codes
from refmoe.families.wrong import WRONG, called
from refmoe.families.wrong.layers import LAYER_CHANGES, TURNED_OFF, wrong_layer_calls
from refmoe.formats import MX_BLOCK
from refmoe.reference.layout import swizzle_scales, swizzle_weight_scales
from refmoe.reference.moe.layer import MoELayer
from refmoe.reference.moe.pipeline import moe_layer
from refmoe.reference.quantize import quantize_mxfp8
from refmoe.reference.tensor import MXTensor

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_LAYOUT = "128x4"
_BF16 = np.dtype(ml_dtypes.bfloat16)
_LIMITS = Limits(reason="a layer's activations are neither constant nor mostly zero")
_SMALL_LIMITS = Limits(zeros=0.9, reason="policies make zeros of tokens that are small")
_ODD_LIMITS = Limits(zeros=0.2, saturated=0.85, nans=0.85, reason="of three tokens two are odd")
_SUMS = Limits(zeros=0.02, nans=0.0, reason="tokens that have experts here have an output")
_IDENTITY = 127
_CODE_RMS = 2.93  # of uniform E2M1 codes
_SIGNS = 0x88  # of the two codes of a byte
_SHIFTS = (0, 1, -1, 2, -2)  # exponents of the factors of the real experts

# --- tokens and weights ---------------------------------------------------------------------------------------------
# `gaussian` has weights of uniform codes and a few scales around one that keeps the sums near 2, so that the clamps of
# the activation are reached and few of its results vanish. `real` is a real feed-forward block on its own activations;
# its experts are that block with rows moved and blocks scaled by powers of two of either sign, so that they differ.


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """gate_up: mxfp4 [E, 2 I, H], rows as the variant's activation reads them; down: mxfp4 [E, H, I]."""

    gate_up: MXTensor
    down: MXTensor


#: The fill in which one token of three is ordinary, of one the products of gate and up are so small that their scale
#: byte is 0, and of one the tokens themselves are.
SMALL = "small"
_SMALL_EXPONENTS = (0, -62, -124)
#: One token of three is ordinary, one has an infinity, one a NaN: what FP16 has, too, that no two policies treat alike.
ODD = "odd"


def tokens_of(fill: str, seed: int, tokens: int, hidden: int) -> NDArray[Any]:
    """BF16 [tokens, hidden]."""
    if fill == "real":
        return tile_rows(read_activations(FFN_INPUT).patterns, tokens, hidden, first_row=seed * 37).view(_BF16)
    draw = Draw("moe-tokens", fill, seed)
    # A channel in 17 is an outlier, as in transformers: blocks get different scales.
    factors = np.where(np.arange(hidden) % 17 == 3, 12.0, 1.0)
    if fill == SMALL:
        factors = factors * np.ldexp(1.0, np.array(_SMALL_EXPONENTS))[np.arange(tokens) % 3, None]
    made = np.asarray((draw.normal((tokens, hidden)) * factors).astype(_BF16))
    if fill == ODD:
        made[1::3, 5], made[2::3, 5] = np.inf, np.nan
    return made


def weights_of(
    fill: str, seed: int, variant: str, experts: int, hidden: int, intermediate: int, first_expert: int = 0
) -> LayerWeights:
    """The weights of `experts` experts from `first_expert` on; an expert has the same weights on every rank."""
    make: Callable[[int], tuple[MXTensor, MXTensor]]
    make = _real_expert if fill == "real" else functools.partial(_drawn_expert, fill, seed, hidden, intermediate)
    made = [make(first_expert + expert) for expert in range(experts)]
    gate_up = _stacked([_laid_out(variant, pair[0]) for pair in made])
    return LayerWeights(gate_up, _stacked([pair[1] for pair in made]))


def _drawn_expert(fill: str, seed: int, hidden: int, intermediate: int, expert: int) -> tuple[MXTensor, MXTensor]:
    draw = Draw("moe-weights", fill, seed, expert)
    return _drawn(draw, 2 * intermediate, hidden), _drawn(draw, hidden, intermediate)


def _drawn(draw: Draw, rows: int, k: int) -> MXTensor:
    """Uniform codes, the scales of a row's blocks within a factor of 4."""
    codes = draw.words(-(-rows * k // 16)).view(np.uint8)[: rows * k // 2].reshape(rows, k // 2)
    middle = _IDENTITY - 1 - round(np.log2(_CODE_RMS * np.sqrt(k)))
    scales = middle + draw.integers(3, (rows, k // MX_BLOCK)) - 1
    return MXTensor(np.ascontiguousarray(codes), scales.astype(np.uint8), "mxfp4")


@functools.lru_cache(maxsize=1)
def _shipped() -> Mapping[str, NDArray[np.uint8]]:
    from safetensors.numpy import load_file

    return load_file(EXPERT)


def _real_expert(expert: int) -> tuple[MXTensor, MXTensor]:
    """Gate and up move together, and another way than the rows of down."""
    shipped = _shipped()
    sign = np.uint8(_SIGNS if expert % 2 else 0)
    made = []
    for name, rows_together in (("gate_up", 2), ("down", 1)):
        codes, scales = shipped[f"{name}.codes"], shipped[f"{name}.scales"]
        count = codes.shape[0] // rows_together
        order = np.argsort(Draw("moe-rows", name, expert).words(count), kind="stable")
        rows = (order[:, None] * rows_together + np.arange(rows_together)).reshape(-1)
        shift = _SHIFTS[expert % len(_SHIFTS)]
        made.append(MXTensor(codes[rows] ^ sign, (scales[rows].astype(np.int64) + shift).astype(np.uint8), "mxfp4"))
    return made[0], made[1]


def _laid_out(variant: str, gate_up: MXTensor) -> MXTensor:
    """Gate and up in turn; for silu all gates first."""
    if variant == "gpt_oss":
        return gate_up
    codes, scales = (np.concatenate([part[::2], part[1::2]]) for part in (gate_up.codes, gate_up.scales))
    return MXTensor(codes, scales, "mxfp4")


def _stacked(experts: list[MXTensor]) -> MXTensor:
    return MXTensor(
        np.stack([expert.codes for expert in experts]), np.stack([expert.scales for expert in experts]), "mxfp4"
    )


#: Hidden and intermediate size of the real block.
_REAL = (384, 768)


def _real_size(case: Case) -> str | None:
    return None if (case.shape.k, case.shape.n) == _REAL else f"k{_REAL[0]}n{_REAL[1]} for the fill {case.fill}"


LAYER_FILLS = Fill.by_name(
    Fill("gaussian", "what goes wrong between two launches, at any size", tokens_of, _LIMITS),
    Fill("real", "what only real weights and outlier channels show", tokens_of, _LIMITS, _real_size),
)

#: Those of the layer whose launches have policies.
_MOE_FILLS = Fill.by_name(
    *LAYER_FILLS.values(),
    Fill(SMALL, "another edge policy in one launch than in the others", tokens_of, _SMALL_LIMITS),
    Fill(ODD, "another edge policy in one launch of FP16 than in the others", tokens_of, _ODD_LIMITS),
)


# --- inputs, expectation, run ---------------------------------------------------------------------------------------

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


def layer_inputs(case: Case) -> Inputs:
    """Tokens, choices, weights of this rank's experts, biases and parameters."""
    shape, draw = case.shape, Draw("moe", case.seed)
    weights = weights_of(case.fill, case.seed, case.variant, shape.e, shape.k, shape.n, case.first_expert)
    x = tokens_of(case.fill, case.seed, shape.m, shape.k)
    scales = None
    if case.dtype == "fp16":
        x = x.astype(np.float32).astype(np.float16)
    if case.path == "ready":
        quantized = quantize_mxfp8(x, mode=case.mode, edge=case.edge)
        x, scales = quantized.codes, quantized.scales
    biased, experts = case.bias in ("distinct", "first"), np.arange(case.first_expert, case.first_expert + shape.e)
    # Powers of two, by which the reference multiplies block scales: it has no global ones.
    shifts = np.array([1, -1, 0])
    alphas = [np.ldexp(np.float32(1), np.roll(shifts, turn)[experts % shifts.size]) for turn in (0, 1)]
    own, scaled = case.params, case.get("global_scales", "none")
    return {
        "x": x,
        "input_sf": scales,
        "topk_ids": expert_ids(case),
        "topk_weights": _weights(draw, shape.m, shape.t),
        "gate_up": weights.gate_up.codes,
        "gate_up_scales": weights.gate_up.scales,
        "down": weights.down.codes,
        "down_scales": weights.down.scales,
        "gate_up_alpha": alphas[0] if scaled in ("distinct", "first") else None,
        "down_alpha": alphas[1] if scaled in ("distinct", "second") else None,
        "gate_up_bias": _biases("gate-up-bias", case.seed, experts, 2 * shape.n) if biased else None,
        # Of a tensor-parallel group one rank alone adds it.
        "down_bias": _down_bias(case) if not case.get("tp_rank", 0) else None,
        "swiglu_alpha": (1.702 - experts / 8 % 1.5).astype(np.float32) if own in ("distinct", "alpha") else None,
        "swiglu_beta": (1 + experts % 5 / 4).astype(np.float32) if own in ("distinct", "beta") else None,
        "swiglu_limit": _limits(experts, case.params),
    }


def _limits(experts: NDArray[np.int64], params: str) -> NDArray[np.float32] | None:
    limits = {"distinct": 7 - experts % 6, "limit": 7 - experts % 6, "closed": np.where(experts % 8 == 0, 0, 7)}
    return limits[params].astype(np.float32) if params in limits else None


def _weights(draw: Draw, tokens: int, top_k: int) -> NDArray[np.float32]:
    """Positive, of all 24 significant bits, none alike and about 1 in sum."""
    raw = (1 + draw.integers(1 << 23, (tokens, top_k))) / (1 << 23)
    return np.asarray((raw / np.float64(max(top_k, 1))).astype(np.float32))


def _down_bias(case: Case) -> NDArray[Any] | None:
    """The second product's bias, whether this rank adds it or not."""
    experts = np.arange(case.first_expert, case.first_expert + case.shape.e)
    return _biases("down-bias", case.seed, experts, case.shape.k) if case.bias in ("distinct", "second") else None


def _biases(name: str, seed: int, experts: NDArray[np.int64], width: int) -> NDArray[Any]:
    """BF16 [E, width]; an expert has the same on every rank."""
    return np.stack([Draw(name, seed, int(expert)).normal((width,)) for expert in experts]).astype(_BF16)


def layer_of(case: Case, inputs: Inputs) -> MoELayer:
    """The reference's layer of a case's inputs."""
    gate_up, down = (MXTensor(inputs[name], _scales_of(inputs, name), "mxfp4") for name in ("gate_up", "down"))
    own = {name: inputs[name] for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit")}
    return MoELayer(
        gate_up, down, case.shape.t, inputs["gate_up_bias"], inputs["down_bias"], variant=case.variant, **own
    )


def _scales_of(inputs: Inputs, name: str) -> NDArray[np.uint8]:
    """The block scales of weights, times the global scale of their expert, which is a power of two."""
    scales, alpha = inputs[f"{name}_scales"], inputs.get(f"{name}_alpha")
    if alpha is None:
        return np.asarray(scales)
    return np.asarray((scales + np.log2(alpha).astype(np.int64)[:, None, None]).astype(np.uint8))


def _expect(case: Case, inputs: Inputs) -> Expectation:
    """Every intermediate of the path's reference, poison where no kernel writes."""
    x, scales, path = inputs["x"], inputs["input_sf"], case.path
    quantized = None
    if case.dtype == "fp16":
        # The reference takes BF16 or what is quantized already.
        quantized = quantize_mxfp8(x, mode=case.mode, edge=case.edge)
        x, scales, path = quantized.codes, quantized.scales, "ready"
    found = moe_layer(
        x,
        layer_of(case, inputs),
        path="cutlass",
        quantization=path,
        topk_ids=inputs["topk_ids"],
        topk_weights=inputs["topk_weights"],
        input_sf=scales,
        first_expert=case.first_expert,
        model=MODEL,
        mode=case.mode,
        edge=case.edge,
        stages=True,
    ).stages
    if quantized is not None and case.path == "separate":
        found = {**found, "quantize": {"codes": quantized.codes, "scales": quantized.scales}}
    outputs = {
        stage: _poisoned(case, stage, found[name][array], found["routing"]["offsets"])
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
    terms = GroupedScales(stage, _LAYOUT, offsets, _blocks(case, stage))
    return terms.buffer(terms.linear(bits), case.shape.rows, case.poison)


def _blocks(case: Case, stage: str) -> int:
    return (case.shape.n if stage.startswith("activation") else case.shape.k) // MX_BLOCK


def _stages(case: Case, inputs: Inputs, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> tuple[Stage, ...]:
    shape, poison, routing = case.shape, case.poison, found["routing"]
    ids, offsets = inputs["topk_ids"], routing["offsets"]
    rows, sources = routing["unpermuted_to_permuted"], routing["permuted_to_unpermuted"]
    stages: list[Stage] = [
        FirstRows("permute.offsets", shape.e),
        ChoiceRows("permute.unpermuted_to_permuted", ids),
        RowChoices("permute.permuted_to_unpermuted", shape.m),
    ]
    if case.path == "separate":
        scales = found["quantize"]["scales"]
        stages += [
            Codes("quantize.codes", (shape.m, shape.k), scales, shape.m),
            Scales("quantize.scales", "linear", shape.m, shape.k // MX_BLOCK),
        ]
    for name, width, gemm, n in (("expand", shape.k, "gemm1", 2 * shape.n), ("activation", shape.n, "gemm2", shape.k)):
        terms = GroupedScales(f"{name}.scales", _LAYOUT, offsets, width // MX_BLOCK)
        linear = terms.linear(found[name]["scales"])
        size = (shape.rows, width)
        used = int(offsets[-1])
        stages += [
            Codes(f"{name}.codes", size, linear, used, offsets, sources, shape.m),
            terms,
            Products(f"{gemm}.out", "bf16", n, offsets, poison),
        ]
    return (*stages, TokenSums("finalize.out", "bf16", shape.k, rows, ids))


def _doubt(case: Case, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> str | None:
    """Of the two quantized matrices, and of an output that is mostly zero although its tokens have experts here."""
    offsets, limits = found["routing"]["offsets"], _MOE_FILLS[case.fill].limits
    used = int(offsets[-1])
    if not used:
        return None
    for name in ("expand", "activation"):
        terms = GroupedScales(name, _LAYOUT, offsets, _blocks(case, name))
        reason = doubt_codes(found[name]["codes"][:used], terms.linear(found[name]["scales"]), limits)
        if reason is not None:
            return f"{name}: {reason}"
    reason = doubt_sums(
        case,
        found["routing"]["unpermuted_to_permuted"],
        found["finalize"]["out"],
        limits if case.fill in (SMALL, ODD) else _SUMS,
    )
    return None if reason is None else f"finalize: {reason}"


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    if case.entry != "launches":
        return _run_function(case, inputs, device)
    from refmoe.cuda.moe.arrays import check_choices as check_ids
    from refmoe.cuda.moe.arrays import layer_launches
    from refmoe.cuda.moe.call import MoEArguments, make_call
    from refmoe.cuda.moe.launches import LayerOptions, LayerShape

    call = make_call(MoEArguments(**_arguments(case, inputs)))
    check_ids(call)
    shape = called(case, LayerShape)(**_named(call.shape))
    call = replace(call, shape=shape, options=called(case, LayerOptions)(**_named(call.options)))
    buffers, steps = called(case, layer_launches)(call, device, fill=case.poison)
    mx_traffic(case, inputs).check(steps)
    _check_tiles(case, (step.plan.kernel.entry for step in steps))
    for place, step in enumerate(steps):
        try:
            device.launch(step.plan)
        except RefmoeError as error:
            done = [before.stage for before in steps[:place]]
            raise LaunchFailed(step.stage, _taken(case, device, buffers, done), error) from error
    return _taken(case, device, buffers, _LAUNCHES)


#: K of a tile by its width in tokens.
_TILE_K = {8: 512, 16: 256, 32: 256, 64: 128, 128: 128}


def _check_tiles(case: Case, entries: Iterable[str]) -> None:
    """Products run by the tile that is due: which one it is shows in no bit of a result."""
    m = case.shape.m
    width = min(_TILE_K, key=lambda n: (-(-m // n), n))
    if case.min_latency == "yes":
        width = 8 if m <= 8 else 32 if m <= 32 else 128
    due = f"refmoe_sm12x_gemm_128x{width}x{_TILE_K[width]}_bf16"
    for entry in entries:
        if "_gemm_" in entry and entry != due:
            raise RefmoeError(f"a product of {m} tokens is planned for {entry}; due is {due}")


def _named(value: Any) -> dict[str, Any]:
    """The fields of a dataclass's instance."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _run_function(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """The layer by its one function, with the views of weights and scales that FlashInfer passes."""
    from refmoe.cuda.moe.fused import fused_moe

    given = _arguments(case, inputs)
    for name in ("fc1_expert_weights", "fc2_expert_weights"):
        given[name] = given[name].view(np.int64) if given[name].shape[-1] % 8 == 0 else given[name]
    gate_up, one, down, other = given["quant_scales"]
    given["quant_scales"] = [gate_up.view(np.int32), one, down.view(np.int32), other]
    if case.path == "ready":
        given["input"] = given["input"].view(ml_dtypes.float8_e4m3fn)
    if case.input_sf == _LAYOUT:
        given["input_sf"] = given["input_sf"].view(np.int32)
    if case.entry == "output":
        given["output"] = np.full((case.shape.m, case.shape.k), case.poison * 0x101, np.uint16).view(_BF16)
    place, before = Kept(device, case.poison), len(device.launches)
    out = called(case, fused_moe)(**given, device=place, backend=None, **TURNED_OFF)
    _check_tiles(case, (launch.kernel.entry for launch in device.launches[before:]))
    if ("quantize_codes" in place.outputs) != (case.path == "separate"):
        raise RefmoeError(f"the function took another path than {case.path}, which shows in no bit of its result")
    if case.entry == "output" and out is not given["output"]:
        raise RefmoeError("the function returned another array than the output that it was given")
    taken = _taken(case, device, place.outputs, _LAUNCHES)
    return {**taken, "finalize.out": np.ascontiguousarray(out).view(BUFFERS["finalize.out"][1])}


def _arguments(case: Case, inputs: Inputs) -> dict[str, Any]:
    """The arguments of the layer by the names of `fused_moe`."""
    scales = inputs["input_sf"]
    if scales is not None and case.input_sf == _LAYOUT:
        scales = swizzle_scales(scales, _LAYOUT, fill=0xFF)  # rows that no token has must not matter
    gate_up, down = (swizzle_weight_scales(inputs[f"{name}_scales"], fill=case.poison) for name in ("gate_up", "down"))
    return {
        "input": inputs["x"],
        "token_selected_experts": padding_ids(case, inputs["topk_ids"]),
        "token_final_scales": inputs["topk_weights"],
        "fc1_expert_weights": inputs["gate_up"],
        "fc2_expert_weights": inputs["down"],
        "output_dtype": _BF16,
        "quant_scales": [gate_up, inputs["gate_up_alpha"], down, inputs["down_alpha"]],
        "fc1_expert_biases": inputs["gate_up_bias"],
        "fc2_expert_biases": _down_bias(case),  # given to every rank
        "input_sf": scales,
        **{name: inputs[name] for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit")},
        "tp_size": case.tp_rank + (2 if case.path == "separate" else 1),  # the size of the group decides nothing
        "tp_rank": case.tp_rank,
        "min_latency_mode": case.min_latency == "yes",
        "ep_size": case.ranks,
        "ep_rank": case.first_expert // case.shape.e,
        "quantize_in_expand": case.path == "fused",
        "activation": case.variant,
        "scale_mode": case.mode,
        "edge_policy": case.edge,
    }


#: The launches of the path, by stage.
_LAUNCHES = tuple(dict.fromkeys(stage.partition(".")[0] for stage in BUFFERS))


def _taken(case: Case, device: Device, written: Mapping[str, Any], launches: Sequence[str]) -> Outputs:
    """By stage name the buffers that these launches write."""
    shape = case.shape
    widths = {"gemm1_out": 2 * shape.n, "gemm2_out": shape.k, "out": shape.k, "quantize_codes": shape.k}
    widths |= {"expand_codes": shape.k, "activation_codes": shape.n, "quantize_scales": shape.k // MX_BLOCK}
    outputs: dict[str, NDArray[Any]] = {}
    for stage, _, _ in _arrays(case):
        if stage.partition(".")[0] not in launches:
            continue
        buffer, dtype = BUFFERS[stage]
        flat = np.ascontiguousarray(device.download(written[buffer])).reshape(-1).view(dtype)
        outputs[stage] = flat.reshape(-1, widths[buffer]) if buffer in widths else flat
    return outputs


def _check(case: Case) -> None:
    if case.shape.n % MX_BLOCK:
        raise refused("shape", str(case.shape), f"an n that is a multiple of {MX_BLOCK}: it is the intermediate size")
    if case.dtype == "fp16" and case.path == "ready":
        raise refused("path", case.path, "separate or fused with dtype fp16: ready tokens are MXFP8")
    if case.input_sf != "linear" and (case.path, case.input_sf) != ("ready", "128x4"):
        raise refused("input_sf", case.input_sf, "linear, or 128x4 with path=ready")
    check_params(case)
    if case.first_expert % case.shape.e:
        raise refused("first_expert", str(case.first_expert), f"a multiple of the {case.shape.e} experts of a rank")
    check_choices(case)


# --- cases ----------------------------------------------------------------------------------------------------------

#: Who quantizes a layer's tokens: a launch of its own, expand, or the caller.
_PATH = word("path", "separate", "fused", "ready")
_PATHS = _PATH.words

#: Whether each expert's products, or the first or the second alone, have a factor of their own, a power of two.
GLOBAL_SCALES = word("global_scales", "none", "distinct", "first", "second")
#: The rank in a tensor-parallel group, of which the first alone adds the bias of the second product.
_TP_RANK = number("tp_rank")
#: Whether the narrow tiles are asked for, which decide no result.
_MIN_LATENCY = word("min_latency", "no", "yes")
#: Whether launch by launch, or by the one function, which may be given an output to write to.
ENTRY = word("entry", "launches", "function", "output", launch=True)

#: Hidden and intermediate size of gpt-oss.
_GPT_OSS = 2880


def _case(
    fill: str, m: int, k: int, n: int, e: int, t: int, path: str = "separate", seed: int = 7, **options: Any
) -> Case:
    options.setdefault("poison", 0x7F)  # of 0xFF the bytes of -1 consist
    options.setdefault("bias", "distinct")
    return MOE.case(fill, Shape(m, k, e, t, n), seed=seed, path=path, **options)


def _software() -> Iterator[Case]:
    """What an arch without the instruction takes, which the executor then computes lane by lane."""
    yield _case("gaussian", 1, 32, 32, 2, 1, "fused")


def _quick() -> Iterator[Case]:
    for path in _PATHS:
        yield _case("gaussian", 3, 160, 96, 6, 4, path)  # sizes that are no multiple of 128
    yield _case("gaussian", 5, 96, 64, 4, 1, "fused", variant="silu", bias="none")
    yield _case("gaussian", 4, 96, 64, 6, 2, "fused", routing="empty-experts", params="distinct")


def _default() -> Iterator[Case]:
    for path in _PATHS:
        yield _case("real", 4, *_REAL, 8, 4, path)
        yield _case("gaussian", 1, 416, 160, 4, 1, path)
        yield _case("gaussian", 9, 96, 64, 6, 2, path, routing="padded")  # a batch as a graph pads it
    yield _case("gaussian", 3, 64, 32, 4, 2, "fused", routing="unset")
    # Both GEMMs at full width, one expert at work.
    for m in (1, 8):
        yield _case("gaussian", m, _GPT_OSS, _GPT_OSS, 2, 1, "fused", routing="same-experts")
    yield _case("gaussian", 5, 96, 64, 3, 2, "ready", input_sf="128x4")
    for path in _PATHS:  # of gpt_oss a result is small only where the gate is, which the policy has made a zero
        yield _case(SMALL, 3, 64, 32, 3, 1, path, mode="floor", edge="flashinfer", variant="silu", bias="none")
    yield _case(SMALL, 3, 64, 32, 3, 1, "separate", bias="none")
    # FP16 by another policy than the default.
    options: dict[str, Any] = {"mode": "floor", "edge": "flashinfer", "variant": "silu", "bias": "none"}
    yield _case("gaussian", 3, 64, 32, 3, 1, "fused", dtype="fp16", **options)
    for path in ("separate", "fused"):
        yield _case(ODD, 3, 64, 32, 3, 1, path, dtype="fp16", **options)
        yield _case(ODD, 3, 64, 32, 3, 1, path, dtype="fp16", bias="none")
    # SiLU by the exact policy, on a rank that adds the bias of its own experts.
    yield _case("gaussian", 3, 64, 32, 4, 2, "fused", variant="silu", mode="floor", first_expert=4, ranks=2)
    yield _case("gaussian", 3, 64, 32, 4, 2, "ready", input_sf="128x4", first_expert=4, ranks=2)
    yield _case("gaussian", 2, 64, 32, 128, 4, "fused", params="distinct", bias="first")
    yield _case("gaussian", 3, 64, 32, 8, 2, "fused", entry="function", params="closed", bias="second")
    yield _case("gaussian", 5, 64, 96, 3, 2, "ready", mode="floor")
    yield _case("gaussian", 6, 96, 64, 4, 4, "fused", first_expert=4, ranks=3)  # a rank in the middle
    # The last of three ranks: its first expert is not the number of its experts, of which a token chooses more. And the
    # first, which begins where a whole layer does.
    for path, first_expert in zip(_PATHS, (6, 0, 6), strict=True):
        yield _case("gaussian", 5, 96, 64, 3, 4, path, first_expert=first_expert, ranks=3)
    yield _case("gaussian", 3, 96, 64, 4, 2, "fused", first_expert=4, ranks=2, routing="elsewhere")
    yield _case("gaussian", 4, 160, 96, 3, 2, "fused", mode="floor", edge="flashinfer", variant="silu")
    for m in (16, 40, 130):
        yield _case("gaussian", m, 96, 64, 5, 2, "fused")  # every width of tile
    yield _case("gaussian", 512, 32, 32, 4, 2, "separate")
    for number_of, path in enumerate(_PATHS):
        dtype = "fp16" if path != "ready" else "bf16"
        yield _case("gaussian", 5, 160, 96, 6, 3, path, dtype=dtype, global_scales="distinct", tp_rank=number_of)
    few: dict[str, Any] = {"min_latency": "yes", "params": "distinct", "global_scales": "distinct"}
    for edge in ("flashinfer", "exact"):
        yield _case("gaussian", 7, 96, 64, 99, 5, "fused", first_expert=99, ranks=2, edge=edge, **few)
    yield _case("gaussian", 2, 64, 32, 128, 4, "separate", dtype="fp16", min_latency="yes", mode="floor")
    yield _case("gaussian", 2, 64, 32, 256, 8, "fused", tp_rank=1)  # as many experts as DeepSeek-V3 has
    for m in (127, 128, 129):  # a tile of one expert's tokens, and a token less and more
        yield _case("gaussian", m, 32, 32, 2, 1, "fused", routing="same-experts")
    for m in (8, 9, 32, 33):  # the most tokens of a narrow tile, and a token more
        yield _case("gaussian", m, 32, 32, 2, 1, "fused", min_latency="yes")
    yield _case("gaussian", 0, 96, 64, 4, 2)
    yield _case("gaussian", 3, 64, 32, 1, 1, "fused")  # an expert alone
    yield _case("gaussian", 3, 64, 32, 4, 2, "separate", poison=0)
    yield _case("gaussian", 3, 96, 64, 4, 2, "fused", entry="function", bias="none")  # all that may be left out is
    yield _case("gaussian", 9, 32, 32, 2, 1, "fused", entry="function")  # of more tokens than the narrowest tile
    yield _case("gaussian", 4, 64, 32, 4, 2, "ready", entry="output", input_sf="128x4", params="distinct")
    more: dict[str, Any] = {"first_expert": 4, "ranks": 2, "tp_rank": 1, "global_scales": "distinct", "mode": "floor"}
    yield _case("gaussian", 3, 64, 32, 4, 2, "separate", entry="function", edge="flashinfer", variant="silu", **more)
    for fill, choices in (("gaussian", pairs.MOE), (ODD, pairs.ODD_MOE)):  # any two options together
        for chosen in pairs.pairwise(choices, pairs.moe_agrees):
            yield _case(fill, 6, 96, 96, 3, 3, ranks=2, **chosen)


def _full() -> Iterator[Case]:
    for m in (2, 4, 7):
        yield _case("gaussian", m, _GPT_OSS, _GPT_OSS, 2, 1, "fused", routing="same-experts")
    for path in _PATHS:
        for m in (1, 8):
            yield _case("gaussian", m, _GPT_OSS, _GPT_OSS, 4, 4, path, routing="same-experts")
        for m in (16, 64, 256, 512):
            yield _case("gaussian", m, 416, 160, 8, 4, path)
        for m in (1, 2, 7, 33, 64):
            yield _case("real", m, *_REAL, 8, 4, path, seed=m)
        for variant, (mode, edge) in product(VARIANT.words, COMPILED_POLICIES):
            yield _case("gaussian", 9, 224, 160, 6, 3, path, variant=variant, mode=mode, edge=edge)
    yield _case("gaussian", 1, _GPT_OSS, _GPT_OSS, 8, 4, "fused")


def _refuses() -> Iterator[Case]:
    rank: dict[str, Any] = {"params": "distinct", "global_scales": "distinct", "first_expert": 4, "ranks": 2}
    yield from wrong_layer_calls(_case("gaussian", 3, 64, 32, 4, 2, "fused", entry="function", **rank))


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    m, k, n, experts, rows = case.shape.m, case.shape.k, case.shape.n, case.shape.e, case.shape.rows
    quantized = {"codes": m * k, "scales": m * k // MX_BLOCK} if case.path == "separate" else {}
    return staged(
        permute=permutation(case),
        quantize=quantized,
        expand=mxfp8_grouped(rows, k, experts),
        gemm1={"out": rows * 2 * n * 2},
        activation=mxfp8_grouped(rows, n, experts),
        gemm2={"out": rows * k * 2},
        finalize={"out": m * k * 2},
    )


MOE = Family(
    name="moe",
    about="A whole layer: permute, quantize, expand, GEMM, activation, GEMM, finalize, every buffer compared.",
    dtypes=("bf16", "fp16"),
    sizes="mknet",
    fills=_MOE_FILLS,
    options=(
        *(_PATH, VARIANT, MODE, EDGE, PARAMS, LAYER_BIAS, INPUT_SF, GLOBAL_SCALES, _TP_RANK, _MIN_LATENCY),
        *(ENTRY, ROUTING, *RANKS, POISON, WRONG),
    ),
    inputs=layer_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=LAYER_CHANGES,
    contract=Contract(
        inputs=(
            *("x", "input_sf", "topk_ids", "topk_weights", "gate_up", "gate_up_scales", "down", "down_scales"),
            *("gate_up_alpha", "down_alpha"),
            *("gate_up_bias", "down_bias", "swiglu_alpha", "swiglu_beta", "swiglu_limit"),
        ),
        features=(
            *("input_sf", "gate_up_alpha", "down_alpha", "gate_up_bias", "down_bias"),
            *("swiglu_alpha", "swiglu_beta", "swiglu_limit"),
        ),
        outputs={"finalize.out": "bfloat16"},
        settings={**ROUTED, "variant": "variant", "mode": "mode", "edge": "edge"},
    ),
    sources=("routing", "quantize", "expand", "gemm", "activation", "finalize"),
    host=("refmoe.cuda.moe.arrays",),
    check=_check,
    group="moe",
    software=in_software(Mma.SYNC_MX, _software),
)
