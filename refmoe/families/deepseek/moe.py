"""The family `deepseek_moe`: whole DeepSeek-V3 layers in block FP8. Every buffer of every launch is a stage.

A stage is named `<launch>.<buffer>`, in the order of the launches. The verdict names the first stage that differs:
`gemm1.out` means that the rows that went into the first product were right.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.cuda.deepseek_gemm import accumulation_models
from refmoe.draw import Draw
from refmoe.errors import RefmoeError
from refmoe.families import pairs
from refmoe.families.block_fp8 import TileCodes
from refmoe.families.case import Shape, number, refused, word
from refmoe.families.choices import RANKS, ROUTED, ROUTING, check_choices, expert_ids, padding_ids
from refmoe.families.deepseek.activation import RowScales
from refmoe.families.deepseek.routing import ChosenIds
from refmoe.families.deepseek_gemm.family import ASSUMPTIONS, assumption_of
from refmoe.families.extents import block_fp8_rows, permutation, staged
from refmoe.families.extents.traffic import block_fp8_traffic
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
)
from refmoe.families.finalize import TokenSums, doubt_sums
from refmoe.families.gemm.stages import Products
from refmoe.families.kept import Kept
from refmoe.families.routing import ChoiceRows, FirstRows, RowChoices, Weights
from refmoe.families.stages import Stage
from refmoe.families.vacuity import Limits, doubt_codes
from refmoe.families.wrong import ARRAY, BYTE, WRONG, Arguments, Change, called, huge, without_defaults, wrong_calls
from refmoe.formats import BLOCK_FP8
from refmoe.reference.block_fp8 import LAYOUTS, POLICIES, SCALES, BlockFP8Tensor, lay_out
from refmoe.reference.deepseek.finalize import ORDERS
from refmoe.reference.deepseek.layer import BlockFP8Expert, DeepSeekMoELayer, DeepSeekRules
from refmoe.reference.deepseek.routing import (
    GROUP_SCORES,
    MAX_EXPERTS,
    MAX_GROUPS,
    RULES,
    route_sigmoid_grouped_topk,
    sigmoid,
)
from refmoe.reference.moe.pipeline import moe_layer

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_BF16 = np.dtype(ml_dtypes.bfloat16)
_TILE = 128
_LIMITS = Limits(zeros=0.45, reason="a layer's activations are neither constant nor mostly zero")
_EXTREME = Limits(zeros=0.9, saturated=0.25, nans=0.9, scales=1, reason="it is made of NaN, infinities and overflows")
_SUMS = Limits(zeros=0.02, nans=0.0, reason="tokens that have experts here have an output")
_ANY_SUMS = Limits(zeros=0.9, nans=1.0, reason="a NaN of a token reaches all of its columns")

# --- tokens and weights ---------------------------------------------------------------------------------------------


def _tokens(draw: Draw, tokens: int, hidden: int) -> NDArray[np.float64]:
    # A channel in 17 is an outlier, as in transformers: tiles get different scales.
    return np.asarray(draw.normal((tokens, hidden)) * np.where(np.arange(hidden) % 17 == 3, 12.0, 1.0))


def _fingerprint_tokens(draw: Draw, tokens: int, hidden: int) -> NDArray[np.float64]:
    """A scale of its own for every tile of a token."""
    tiles = np.arange(tokens * (hidden // _TILE)).reshape(tokens, -1) * 7 % 23
    return np.asarray(draw.normal((tokens, hidden)) * np.repeat(np.ldexp(1.0, tiles - 12), _TILE, axis=1))


def _special_tokens(draw: Draw, tokens: int, hidden: int) -> NDArray[np.float64]:
    """NaN, Inf, zeros, and numbers that overflow in the activation, a kind a token; one of six is ordinary."""
    values = _tokens(draw, tokens, hidden)
    place = draw.integers(hidden, (tokens,))
    for token in range(tokens):
        kind = token % 6
        if kind in (1, 2, 3):
            values[token, place[token]] = (np.nan, np.inf, -np.inf)[kind - 1]
        elif kind == 4:
            values[token] = np.where(draw.integers(2, (hidden,)) == 0, 0.0, -0.0)
        elif kind == 5:
            values[token] *= 1e25
    return values


_FILLS = Fill.by_name(
    Fill("gaussian", "what goes wrong between two launches, at any size", _tokens, _LIMITS),
    Fill("fingerprint", "scales of another row, tile or launch", _fingerprint_tokens, _LIMITS),
    Fill("specials", "NaN and Inf lost between two launches, an overflow in another place", _special_tokens, _EXTREME),
)


@functools.lru_cache(maxsize=64)
def drawn_weight(name: str, seed: int, expert: int, rows: int, columns: int) -> BlockFP8Tensor:
    """128x128 [rows, columns]: codes of all finite values below 256, scales about 1 / sqrt(columns), none alike."""
    draw = Draw("deepseek-weights", name, seed, expert)
    words = draw.words(-(-rows * columns // 8)).view(np.uint8)[: rows * columns].reshape(rows, columns)
    codes = np.where(words & 0x7F >= 0x78, words ^ 0x40, words)  # no NaN, and nothing so large that it decides alone
    steps = (1 + draw.integers(1 << 22, (rows // _TILE, columns // _TILE)) / (1 << 22)) / np.sqrt(columns) / 40
    return BlockFP8Tensor(np.ascontiguousarray(codes), steps.astype(np.float32), "128x128")


def drawn_expert(seed: int, expert: int, hidden: int, intermediate: int) -> BlockFP8Expert:
    """An expert by its number over all ranks; -1 is the shared one."""
    return BlockFP8Expert(
        drawn_weight("gate-up", seed, expert, 2 * intermediate, hidden),
        drawn_weight("down", seed, expert, hidden, intermediate),
    )


# --- inputs, expectation, run ---------------------------------------------------------------------------------------

#: The buffer of each stage, and the type of its elements.
BUFFERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "route.topk_ids": ("topk_ids", "u4"),
        "route.topk_weights": ("topk_weights", "u4"),
        "permute.offsets": ("offsets", "u8"),
        "permute.unpermuted_to_permuted": ("unpermuted_to_permuted", "u4"),
        "permute.permuted_to_unpermuted": ("permuted_to_unpermuted", "u4"),
        "expand.codes": ("expand_codes", "u1"),
        "expand.scales": ("expand_scales", "u4"),
        "expand.token_codes": ("expand_token_codes", "u1"),
        "expand.token_scales": ("expand_token_scales", "u4"),
        "gemm1.out": ("gemm1_out", "u2"),
        "activation.codes": ("activation_codes", "u1"),
        "activation.scales": ("activation_scales", "u4"),
        "gemm2.out": ("gemm2_out", "u2"),
        "shared_gemm1.out": ("shared_gemm1_out", "u2"),
        "shared_activation.codes": ("shared_activation_codes", "u1"),
        "shared_activation.scales": ("shared_activation_scales", "u4"),
        "shared_gemm2.out": ("shared_gemm2_out", "u2"),
        "finalize.out": ("out", "u2"),
    }
)
#: Of stages that the reference keeps under another name: (stage, array).
_REFERENCE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "route.topk_ids": ("routing", "ids"),
        "route.topk_weights": ("routing", "weights"),
        "permute.offsets": ("routing", "offsets"),
        "permute.unpermuted_to_permuted": ("routing", "unpermuted_to_permuted"),
        "permute.permuted_to_unpermuted": ("routing", "permuted_to_unpermuted"),
        "shared_gemm1.out": ("shared", "gate_up"),
        "shared_activation.codes": ("shared", "codes"),
        "shared_activation.scales": ("shared", "scales"),
        "shared_gemm2.out": ("shared", "out"),
    }
)


#: Where choices come from, and the factor on the weights: FP32 logits with a correction bias and DeepSeek-V3's factor;
#: given ids and weights, which have none; BF16 logits without a bias, under a factor of no model; and either logits the
#: other way round.
_SCALES: Mapping[str, float] = MappingProxyType(
    {"logits": 2.5, "given": 2.5, "bf16": 0.75, "unbiased": 0.75, "biased-bf16": 2.5}
)
_OF_BF16, _BIASED = ("bf16", "biased-bf16"), ("logits", "biased-bf16")

#: How many shared experts there are, side by side. DeepSeek-V3 has one.
_SHARED: Mapping[str, int] = MappingProxyType({"added": 2, "none": 0, "one": 1})


def _inputs(case: Case) -> Inputs:
    """Tokens; the router's logits and bias, or the choices; this rank's weights and the shared expert's."""
    shape = case.shape
    experts = [drawn_expert(case.seed, case.first_expert + each, shape.k, shape.n) for each in range(shape.e)]
    with np.errstate(over="ignore", invalid="ignore"):
        x = _FILLS[case.fill].make(Draw("moe-tokens", case.fill, case.seed), shape.m, shape.k).astype(_BF16)
    total, draw = shape.e * case.ranks, Draw("router", case.seed)
    from_logits = case.router != "given"
    always = drawn_expert(case.seed, -1, shape.k, _shared_width(case)) if _shared_width(case) else None
    return {
        "x": x,
        "logits": (draw.normal((shape.m, total)) * 2).astype(_BF16 if case.router in _OF_BF16 else np.float32)
        if from_logits
        else None,
        "bias": (draw.normal((total,)) / 7).astype(np.float32) if case.router in _BIASED else None,
        "topk_ids": None if from_logits else expert_ids(case),
        "topk_weights": None if from_logits else _weights(draw, shape.m, shape.t),
        "gate_up": np.stack([each.gate_up.codes for each in experts]),
        "gate_up_scales": np.stack([each.gate_up.scales for each in experts]),
        "down": np.stack([each.down.codes for each in experts]),
        "down_scales": np.stack([each.down.scales for each in experts]),
        "shared_gate_up": None if always is None else always.gate_up.codes,
        "shared_gate_up_scales": None if always is None else always.gate_up.scales,
        "shared_down": None if always is None else always.down.codes,
        "shared_down_scales": None if always is None else always.down.scales,
    }


def _shared_width(case: Case) -> int:
    """The intermediate size of the shared expert: two side by side are one of twice the size; 0 without any."""
    return int(_SHARED[case.shared] * case.shape.n)


def _weights(draw: Draw, tokens: int, top_k: int) -> NDArray[np.float32]:
    """Positive, of all 24 significant bits, none alike and about 2.5 in sum."""
    raw = (1 + draw.integers(1 << 23, (tokens, top_k))) / (1 << 23)
    return np.asarray((raw * 5 / max(top_k, 1)).astype(np.float32))


def rules_of(case: Case) -> DeepSeekRules:
    """The rules of a case."""
    return DeepSeekRules(case.rule, case.policy, case.scales, case.order)


def _routed(case: Case, inputs: Inputs) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The choices of the tokens, given or by the reference of the router."""
    if inputs["logits"] is None:
        return inputs["topk_ids"], inputs["topk_weights"]
    sizes = {"k": case.shape.t, "groups": case.groups, "top_groups": case.top_groups}
    return route_sigmoid_grouped_topk(
        inputs["logits"], inputs["bias"], **sizes, scale=_SCALES[case.router], rule=case.rule
    )


def _layer(case: Case, inputs: Inputs) -> DeepSeekMoELayer:
    """The reference's layer of a case's inputs."""

    def expert(prefix: str, place: tuple[int, ...]) -> BlockFP8Expert:
        made = [
            BlockFP8Tensor(inputs[f"{prefix}{name}"][place], inputs[f"{prefix}{name}_scales"][place], "128x128")
            for name in ("gate_up", "down")
        ]
        return BlockFP8Expert(*made)

    routed = [expert("", (each,)) for each in range(case.shape.e)]
    shared = expert("shared_", ()) if _shared_width(case) else None
    return DeepSeekMoELayer(routed, case.shape.k, case.shape.n, case.shape.t, shared)


def _expect(case: Case, inputs: Inputs) -> Expectation:
    """Every intermediate of the reference, poison where no kernel writes."""
    ids, weights = _routed(case, inputs)
    found = moe_layer(
        inputs["x"],
        _layer(case, inputs),
        path="deepseek_fp8",
        topk_ids=ids,
        topk_weights=weights,
        first_expert=case.first_expert,
        model=case.model,
        rules=rules_of(case),
        stages=True,
    ).stages
    outputs = {stage: _poisoned(case, stage, found) for stage in _present(case)}
    return Expectation(outputs, _stages(case, inputs, found), _doubt(case, found), assumption_of(case.model))


def _present(case: Case) -> list[str]:
    """The stages of a case, in order."""
    absent: list[str] = []
    if case.router == "given":
        absent.append("route")
    if case.shared == "none":
        absent += ["shared_", "expand.token"]
    return [stage for stage in BUFFERS if not stage.startswith(tuple(absent))]


def reference_array(stage: str, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> NDArray[Any]:
    """What `moe_layer` has of a stage of this family."""
    name, array = _REFERENCE.get(stage, tuple(stage.split(".")))
    return found[name][array]


def _poisoned(case: Case, stage: str, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> NDArray[Any]:
    """Bit patterns in the layout of the buffer; rows of no expert hold the poison."""
    array, used = np.ascontiguousarray(reference_array(stage, found)), int(found["routing"]["offsets"][-1])
    bits: NDArray[Any] = array.view(BUFFERS[stage][1]).copy()
    if not case.shape.m:
        bits.view(np.uint8)[:] = case.poison  # no launch
    elif stage in ("expand.codes", "expand.scales") or stage.partition(".")[0] in ("gemm1", "activation", "gemm2"):
        bits[used:].view(np.uint8)[:] = case.poison
    if stage.endswith("scales"):
        bits = np.ascontiguousarray(lay_out(bits.view(np.float32), case.layout)).view(np.uint32)
    return bits


def _stages(case: Case, inputs: Inputs, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> tuple[Stage, ...]:
    shape, routing, present = case.shape, found["routing"], _present(case)
    ids, offsets = routing["ids"], routing["offsets"]
    tile, all_rows = BLOCK_FP8["1x128"], np.array([0, shape.m], np.int64)

    def quantized(name: str, source: tuple[str, str], rows: int, width: int) -> tuple[Stage, Stage]:
        stage, _, part = name.partition(".")
        scales = np.ascontiguousarray(found[source[0]][source[1]]).view(np.uint32)
        return (
            TileCodes(f"{stage}.{part}codes", width, tile, scales),
            RowScales(f"{stage}.{part}scales", case.layout, rows, width // _TILE),
        )

    stages: list[Stage] = []
    if case.router != "given":
        scores = sigmoid(inputs["logits"].astype(np.float32))
        scores = scores if inputs["bias"] is None else scores + inputs["bias"]
        size = scores.shape[1] // case.groups
        stages += [ChosenIds("route.topk_ids", scores, shape.t, size), Weights("route.topk_weights", ids)]
    stages += [
        FirstRows("permute.offsets", shape.e),
        ChoiceRows("permute.unpermuted_to_permuted", ids),
        RowChoices("permute.permuted_to_unpermuted", shape.m),
        *quantized("expand.", ("expand", "scales"), shape.rows, shape.k),
        *quantized("expand.token_", ("expand", "token_scales"), shape.m, shape.k),
        Products("gemm1.out", "bf16", 2 * shape.n, offsets, case.poison),
        *quantized("activation.", ("activation", "scales"), shape.rows, shape.n),
        Products("gemm2.out", "bf16", shape.k, offsets, case.poison),
    ]
    if always := _shared_width(case):
        stages += [
            Products("shared_gemm1.out", "bf16", 2 * always, all_rows, case.poison),
            *quantized("shared_activation.", ("shared", "scales"), shape.m, always),
            Products("shared_gemm2.out", "bf16", shape.k, all_rows, case.poison),
        ]
    stages.append(TokenSums("finalize.out", "bf16", shape.k, routing["unpermuted_to_permuted"], ids))
    return tuple(stage for stage in stages if stage.name in present)


def _doubt(case: Case, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> str | None:
    """Of the two quantized matrices, and of an output that is mostly zero although its tokens have experts here."""
    used, limits = int(found["routing"]["offsets"][-1]), _FILLS[case.fill].limits
    if not used:
        return None
    for name in ("expand", "activation"):
        scales = np.ascontiguousarray(found[name]["scales"][:used]).view(np.uint32)
        reason = doubt_codes(found[name]["codes"][:used], scales, limits)
        if reason is not None:
            return f"{name}: {reason}"
    sums = _ANY_SUMS if case.fill == "specials" else _SUMS
    reason = doubt_sums(case, found["routing"]["unpermuted_to_permuted"], found["finalize"]["out"], sums)
    return None if reason is None else f"finalize: {reason}"


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.moe.deepseek import DeepSeekArguments, deepseek_launches, deepseek_moe

    weights: dict[str, Any] = {name: inputs[name] for name in ("gate_up", "gate_up_scales", "down", "down_scales")}
    shared = tuple(inputs[f"shared_{name}"] for name in weights)
    options = {"rules": rules_of(case), "layout": case.layout, "model": case.model, "fill": case.poison}
    place = Kept(device)

    def layer(rules: Any, layout: str, model: str, fill: int, **arguments: Any) -> Any:
        given = _of_layer(case, inputs) if case.entry == "layer" else without_defaults(DeepSeekArguments)(**arguments)
        launch = deepseek_moe if case.entry == "function" else deepseek_launches
        return without_defaults(launch)(given, device=place, rules=rules, layout=layout, model=model, fill=fill)

    found = called(case, layer)(
        **options,
        x=inputs["x"],
        **weights,
        top_k=case.shape.t,
        logits=inputs["logits"],
        correction_bias=inputs["bias"],
        groups=case.groups if inputs["logits"] is not None else 1,
        top_groups=case.top_groups if inputs["logits"] is not None else 1,
        scale=_SCALES[case.router],
        topk_ids=None if inputs["topk_ids"] is None else padding_ids(case, inputs["topk_ids"]),
        topk_weights=inputs["topk_weights"],
        shared=shared if _shared_width(case) else None,
        first_expert=case.first_expert,
    )
    launches = [stage.partition(".")[0] for stage in BUFFERS]
    if case.entry == "function":
        taken = _taken(case, device, place.outputs, launches)
        return {**taken, "finalize.out": np.ascontiguousarray(found).view(BUFFERS["finalize.out"][1])}
    written, steps = found
    block_fp8_traffic(case, inputs, _shared_width(case)).check(steps)
    for done, step in enumerate(steps):
        try:
            device.launch(step.plan)
        except RefmoeError as error:
            before = [each.stage for each in steps[:done]]
            raise LaunchFailed(step.stage, _taken(case, device, written, before), error) from error
    return _taken(case, device, written, launches)


def _of_layer(case: Case, inputs: Inputs) -> Any:
    """The arrays of a call as they come of a layer, of which only those experts are looked up that tokens go to."""
    from refmoe.cuda.moe.deepseek import layer_arguments

    layer, logits = _layer(case, inputs), inputs["logits"]
    ids, weights = _routed(case, inputs)
    given: dict[str, Any] = {"topk_ids": padding_ids(case, ids), "topk_weights": weights}
    if logits is not None:
        router = np.zeros((logits.shape[1], case.shape.k), _BF16)  # its products are the logits, which are given
        sizes = {"groups": case.groups, "top_groups": case.top_groups, "scale": _SCALES[case.router]}
        layer = replace(layer, router_weight=router, correction_bias=inputs["bias"], **sizes)
        given = {"logits": logits}
    return without_defaults(layer_arguments)(layer, inputs["x"], ids, first_expert=case.first_expert, **given)


def _taken(case: Case, device: Device, written: Mapping[str, Any], launches: Sequence[str]) -> Outputs:
    """By stage name the buffers that these launches write, in the shape of the expectation."""
    shape = case.shape
    widths = {"route": shape.t, "expand": shape.k, "gemm1": 2 * shape.n, "activation": shape.n, "gemm2": shape.k}
    always = _shared_width(case)
    widths |= {"shared_gemm1": 2 * always, "shared_activation": always, "shared_gemm2": shape.k}
    outputs: dict[str, NDArray[Any]] = {}
    for stage in _present(case):
        launch, _, part = stage.partition(".")
        if launch not in launches:
            continue
        buffer, dtype = BUFFERS[stage]
        flat = np.ascontiguousarray(device.download(written[buffer])).reshape(-1).view(dtype)
        of_tokens = launch.startswith(("route", "shared_", "finalize")) or part.startswith("token_")
        lines, width = shape.m if of_tokens else shape.rows, widths.get(launch, shape.k)
        if launch == "permute":
            outputs[stage] = flat
        elif part.endswith("scales"):
            by_row = (lines, width // _TILE)
            outputs[stage] = flat.reshape(by_row if case.layout == "k_major" else by_row[::-1])
        else:
            outputs[stage] = flat.reshape(lines, width)
    return outputs


def _lacks(case: Case, arch: str) -> str | None:
    """Why a chip cannot run a case: its instructions follow other models."""
    if case.policy == _TRTLLM:
        return f"refmoe's kernels have no quantizers of TensorRT-LLM: policy={_TRTLLM} is for a kernel of yours"
    if arch and case.model not in (had := accumulation_models(arch)):
        return (
            f"{arch} has no instruction of the model {case.model}; its own are of {' and '.join(had) or 'none of ours'}"
        )
    return None


def _check(case: Case) -> None:
    if case.shape.n % _TILE:
        raise refused("shape", str(case.shape), f"an n that is a multiple of {_TILE}: it is the intermediate size")
    if case.policy == _TRTLLM and case.scales != SCALES[0]:
        raise refused("scales", case.scales, f"{SCALES[0]} with policy={_TRTLLM}")
    if case.policy == _TRTLLM and case.fill == "specials":
        raise refused("fill", case.fill, f"finite numbers with policy={_TRTLLM}: of others nothing is published")
    if case.router != "given":
        experts, size = case.shape.e * case.ranks, case.groups
        if not 1 <= size <= MAX_GROUPS or experts % size or experts // size < GROUP_SCORES or experts > MAX_EXPERTS:
            needed = f"groups of one size, of at least {GROUP_SCORES} of at most {MAX_EXPERTS} experts"
            raise refused("groups", f"{size} of {experts} experts", needed)
        if not 1 <= case.top_groups <= size or case.shape.t > case.top_groups * (experts // size):
            found = f"{case.top_groups} of {size} groups for t={case.shape.t}"
            raise refused("top_groups", found, "groups that have as many experts as a token chooses")
        if case.routing != "uniform":
            raise refused("routing", case.routing, "router=given with it: logits choose for themselves")
    check_choices(case)


# --- cases ----------------------------------------------------------------------------------------------------------

_MODELS = tuple(ASSUMPTIONS)
#: What the reference alone has, for somebody else's layer: TensorRT-LLM's quantizers, and the products of SM100.
_SM100, _TRTLLM = "sm100", "trtllm"
#: Whether launch by launch, by the one function, or launch by launch with the arrays as they come of a layer.
_ENTRY = word("entry", "launches", "function", "layer", launch=True)


def _case(fill: str, m: int, k: int, n: int, e: int, t: int, seed: int = 7, **options: Any) -> Case:
    options.setdefault("poison", 0x7F)  # of 0xFF the bytes of -1 consist
    if options.get("router") != "given":
        options.setdefault("groups", 4)
        options.setdefault("top_groups", 2)
    return DEEPSEEK_MOE.case(fill, Shape(m, k, e, t, n), seed=seed, **options)


def _quick() -> Iterator[Case]:
    for model in _MODELS:
        yield _case("gaussian", 5, 256, 128, 8, 3, model=model)
    yield _case("gaussian", 1, 384, 128, 8, 4, layout="mn_major", scales="ue8m0", rule="trtllm", order="bf16")
    yield _case("fingerprint", 4, 256, 256, 6, 2, router="given", routing="empty-experts", policy="exact")
    yield _case("specials", 7, 256, 128, 8, 2, policy="exact", layout="mn_major")


def _default() -> Iterator[Case]:
    yield _case("specials", 7, 256, 128, 8, 2)
    yield _case("gaussian", 2, 128, 128, 4, 2, groups=2, top_groups=1, entry="function")
    routed: dict[str, Any] = {"router": "given", "shared": "none"}
    for ranks in (1, 2):
        yield _case("gaussian", 2, 128, 128, 4, 2, entry="function", ranks=ranks, poison=0, **routed)
    # Choices of all experts, of which the second rank has some; and of the first rank, all of whose experts have rows.
    yield _case("gaussian", 6, 256, 128, 4, 3, first_expert=4, ranks=2, entry="layer")
    yield _case("gaussian", 6, 128, 256, 3, 4, router="given", shared="none", ranks=2, entry="layer")
    # An expert alone; a token with as many as it can have; a router without groups; what the arguments are by default.
    yield _case("gaussian", 3, 128, 128, 1, 1, router="given", entry="function")
    yield _case("gaussian", 2, 256, 256, 4, 32, router="given", shared="none", ranks=8)
    yield _case("gaussian", 2, 128, 128, 4, 2, groups=1, top_groups=1, ranks=2, poison=0)
    # More blocks of K than stages, in either product; the true sizes are in `refmoe bench deepseek`, and in full.
    yield _case("gaussian", 1, 1408, 128, 4, 2, groups=2, top_groups=1)
    yield _case("gaussian", 2, 128, 768, 4, 2, router="given")
    yield _case("fingerprint", 9, 256, 128, 6, 2, router="given", routing="padded", layout="mn_major")
    yield _case("gaussian", 3, 128, 128, 4, 2, router="given", routing="unset")
    # Tiles that end behind the last row that has an expert here: what nobody wrote is read, and decides nothing.
    options: dict[str, Any] = {"router": "given", "routing": "padded", "model": "sm90_wgmma_fp8"}
    yield _case("gaussian", 70, 128, 128, 8, 2, **options)
    yield _case("gaussian", 70, 128, 128, 8, 2, layout="mn_major", first_expert=8, ranks=2, **options)
    yield _case("gaussian", 6, 128, 128, 4, 4, first_expert=4, ranks=4, groups=8, top_groups=4)  # a rank in the middle
    yield _case("gaussian", 3, 128, 256, 8, 2, shared="one")
    yield _case("gaussian", 2, 128, 128, 8, 2, router="bf16")
    # A router of more than 256 experts, of which this rank has a fifth.
    yield _case("gaussian", 3, 128, 128, 66, 4, first_expert=66, ranks=5, groups=10, top_groups=4, shared="none")
    yield _case("gaussian", 3, 128, 128, 4, 2, router="bf16", rule="trtllm", ranks=2)  # the first of two ranks
    yield _case("gaussian", 6, 128, 128, 4, 4, first_expert=8, ranks=4, groups=8, top_groups=4, shared="none")
    yield _case("gaussian", 3, 128, 128, 4, 2, router="given", routing="elsewhere", first_expert=4, ranks=2)
    for m in (16, 40, 130):
        yield _case("gaussian", m, 128, 128, 8, 2, layout=LAYOUTS[m % 4 // 2])  # every width of tile
    yield _case("gaussian", 2, 256, 128, 256, 8, groups=8, top_groups=4)  # the router of DeepSeek-V3
    for order, rule, scales, layout, policy in zip(ORDERS, RULES, SCALES, LAYOUTS, POLICIES, strict=True):
        options = {"order": order, "rule": rule, "scales": scales, "layout": layout, "policy": policy}
        yield _case("fingerprint", 3, 128, 128, 99, 5, groups=3, top_groups=2, **options)
    yield _case("gaussian", 9, 128, 128, 3, 1, router="given", routing="same-experts", shared="none")
    yield _case("gaussian", 0, 128, 128, 8, 2)
    for fill, chosen in product(("gaussian", "specials"), pairs.pairwise(pairs.DEEPSEEK_MOE)):  # any two options
        yield _case(fill, 7, 256, 128, 4, 2, ranks=2, **chosen)


def _full() -> Iterator[Case]:
    for model in _MODELS:
        for policy in POLICIES:
            for scales in SCALES:
                for order in ORDERS:
                    for rule in RULES:
                        options: dict[str, Any] = {"policy": policy, "scales": scales, "order": order, "rule": rule}
                        yield _case("fingerprint", 9, 384, 256, 8, 3, layout="mn_major", model=model, **options)
        for m in (1, 8, 33, 256):
            yield _case("gaussian", m, 512, 256, 16, 4, model=model)
        yield _case("gaussian", 1, 7168, 2048, 8, 8, router="given", model=model)
        yield _true_size(model)


def _true_size(model: str) -> Case:
    """A token through DeepSeek-V3's layer at its own sizes: 256 experts in the router, 32 on this one of 8 ranks.

    Of its eight choices three lie here.
    """
    sizes: dict[str, Any] = {"ranks": 8, "groups": 8, "top_groups": 4, "shared": "one"}
    return _case("gaussian", 1, 7168, 2048, 32, 8, first_expert=96, model=model, **sizes)


def _own_twice(given: Arguments) -> Arguments:
    """This rank's first expert twice in a token."""
    ids = given["topk_ids"].copy()
    ids[0, :2] = given["first_expert"]
    return {"topk_ids": ids}


def _choosing(k: int) -> Arguments:
    ids, weights = np.arange(3 * k, dtype=np.int32).reshape(3, k), np.ones((3, k), np.float32)
    return {"top_k": k, "topk_ids": ids, "topk_weights": weights}


_CHANGES: Mapping[str, Change] = {
    "topk_ids-own_twice": _own_twice,
    "topk_ids-beside_logits": lambda given: {"topk_ids": np.zeros((3, 2), np.int32)},
    "topk_ids-weights_beside_logits": lambda given: {"topk_weights": np.zeros((3, 2), np.float32)},
    "correction_bias-without_logits": lambda given: {"correction_bias": np.zeros(8, np.float32)},
    "first_expert-past_int32": lambda given: {"first_expert": (1 << 31) - 4},
    "first_expert-past_all": lambda given: {"first_expert": 5},
    "logits-of_fewer_tokens": lambda given: {"logits": given["logits"][:-1].copy()},
    "x-many_scales": lambda given: {
        "x": huge((1 << 20, 1 << 17), given["x"]),
        "down": huge((4, 1 << 17, 128), given["down"]),
        "logits": huge((1 << 20, 8), given["logits"]),
    },
    "top_k-none": lambda given: _choosing(0),
    "top_k-past_32": lambda given: _choosing(33),
    "shared-three": lambda given: {"shared": given["shared"][:3]},
}


def _refuses() -> Iterator[Case]:
    weights = {
        "x": f"{ARRAY} flat narrow",
        "gate_up": f"{ARRAY} flat short narrow",
        "gate_up_scales": f"{ARRAY} short narrow",
        "down": f"{ARRAY} flat no_rows",
        "down_scales": f"{ARRAY} short narrow",
        **{"layout": "word", "fill": BYTE},
    }
    names = {"shared[0]": "shared gate_up:", "shared[1]": "shared gate_up_scales:", "shared[3]": "shared down_scales:"}
    words = {f"shared__{at}": f"{ARRAY} short" for at in (0, 1, 3)}
    says = {f"{name}-{word}": said for name, said in names.items() for word in f"{ARRAY} short".split()}
    says |= {f"shared[2]-{word}": "shared" for word in ("dtype", "strided", "list", "rank")}
    says["shared[2]-short"] = "shared down:"
    says |= {"x-narrow": "hidden: found 127", "x-no_columns": "hidden: found 0", "x-many_scales": "scales of all rows"}
    yield from wrong_calls(
        _case("gaussian", 3, 128, 128, 4, 2, groups=2, top_groups=1, first_expert=4, ranks=2),
        says,
        **{**weights, "x": f"{weights['x']} no_columns many_scales"},
        **words,
        shared="three",
        shared__2="list dtype rank strided short",
        logits=f"{ARRAY} flat of_fewer_tokens",
        topk_ids="beside_logits weights_beside_logits",
        first_expert="negative past_all",
        groups="zero number",
        top_groups="zero number",
        scale="nan infinite text",
        model="word",
        rules="word",
    )
    yield from wrong_calls(
        _case("gaussian", 3, 128, 128, 4, 2, router="given", first_expert=4, ranks=2),
        topk_ids=f"{ARRAY} none short narrow own_twice",
        topk_weights=f"{ARRAY} none short narrow",
        correction_bias="without_logits",
        first_expert="negative past_int32",
        top_k="none past_32",
    )


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    m, k, n, rows = case.shape.m, case.shape.k, case.shape.n, case.shape.rows
    chosen = 4 * rows
    expanded, shared = dict(block_fp8_rows(rows, k)), dict[str, Extents]()
    if always := _shared_width(case):
        expanded |= {f"token_{name}": size for name, size in block_fp8_rows(m, k).items()}
        shared["shared_gemm1"] = {"out": m * 2 * always * 2}
        shared["shared_activation"] = block_fp8_rows(m, always)
        shared["shared_gemm2"] = {"out": m * k * 2}
    return staged(
        route={"topk_ids": chosen, "topk_weights": chosen} if case.router != "given" else {},
        permute=permutation(case),
        expand=expanded,
        gemm1={"out": rows * 2 * n * 2},
        activation=block_fp8_rows(rows, n),
        gemm2={"out": rows * k * 2},
        finalize={"out": m * k * 2},
        **shared,
    )


DEEPSEEK_MOE = Family(
    name="deepseek_moe",
    about="A whole DeepSeek-V3 layer: route, permute, expand, products, activations, shared expert, finalize.",
    dtypes=("bf16",),
    sizes="mknet",
    fills=_FILLS,
    options=(
        word("model", *_MODELS, _SM100, fixed=True),
        word("router", *_SCALES),
        number("groups", 1),
        number("top_groups", 1),
        word("rule", *RULES, fixed=True),
        word("policy", *POLICIES, _TRTLLM, fixed=True),
        word("scales", *SCALES, fixed=True),
        word("order", *ORDERS, fixed=True),
        word("shared", *_SHARED),
        word("layout", *LAYOUTS, fixed=True),
        *(_ENTRY, ROUTING, *RANKS, POISON, WRONG),
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=(
            *("x", "logits", "bias", "topk_ids", "topk_weights", "gate_up", "gate_up_scales", "down", "down_scales"),
            *("shared_gate_up", "shared_gate_up_scales", "shared_down", "shared_down_scales"),
        ),
        features=(
            *("logits", "bias", "topk_ids", "topk_weights"),
            *("shared_gate_up", "shared_gate_up_scales", "shared_down", "shared_down_scales"),
        ),
        outputs={"finalize.out": "bfloat16"},
        settings={
            **{**ROUTED, "groups": "groups", "top_groups": "top_groups"},
            **{"model": "model", "rule": "rule", "policy": "policy", "scale_format": "scales", "order": "order"},
        },
    ),
    sources=(
        *("deepseek_routing", "routing", "deepseek_expand", "deepseek_gemm", "deepseek_gemm_wgmma"),
        *("deepseek_activation", "deepseek_finalize"),
    ),
    host=("refmoe.cuda.moe.deepseek",),
    check=_check,
    lacks=_lacks,
    block=_TILE,
    group="deepseek",
)
