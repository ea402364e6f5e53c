"""The derived bound of a layer: every path within it, narrow enough to see faults, and its parts one by one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from support.fp32_values import BF16
from support.moe import random_layer, random_tokens
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.families.real_data import FFN, FFN_INPUT, read_activations
from refmoe.reference import (
    BACKENDS,
    MoELayer,
    MXTensor,
    grouped_gemm,
    moe_float64,
    moe_layer,
    quantize_mxfp4,
    quantize_mxfp8,
    route_softmax_topk,
    swiglu,
    unpack_fp4,
)  # fmt: skip
from refmoe.reference.mma import MODELS, running_bound
from refmoe.reference.moe import layer_bound, layer_enclosure
from refmoe.reference.moe.intervals import (
    Interval,
    Matrix,
    chain,
    integer_sums,
    q8_1_values,
    requantized,
    routed,
    swiglu_values,
)
from refmoe.reference.q8_1 import Q8Tensor, dequantize_q8_1, quantize_q8_1

LAYERS = {
    "random": {},
    "wide": {"spread": 6.0},
    "silu": {"variant": "silu"},
    "longer": {"hidden": 320, "intermediate": 256, "experts": 3, "top_k": 2},
}


def real_layer() -> tuple[MoELayer, np.ndarray]:
    """Three experts of the shipped feed-forward weights, cut to 160 and 384, on real tokens with outlier channels."""

    def tensor(path: Path, name: str) -> np.ndarray:
        return read_activations(path, name).patterns.view(BF16).astype(np.float32)

    up, down = (tensor(FFN, f"layer2.ffn_{name}.weight") for name in ("up", "down"))
    gate_up = np.stack([up * np.float32(2.0**e) for e in range(3)])
    downs = np.stack([down[:, :640].reshape(384, 160) * np.float32(sign) for sign in (1, -1, 0.5)])
    x = tensor(FFN_INPUT, "layer2.ffn_in")[:3].astype(BF16)
    return MoELayer(quantize_mxfp4(gate_up), quantize_mxfp4(downs), 2, variant="silu"), x


def cases(name: str) -> tuple[MoELayer, np.ndarray, dict]:
    rng = np.random.default_rng(21)
    if name == "real":
        layer, x = real_layer()
        ids = np.array([[0, 1], [2, 0], [1, 2]], np.int32)
        weights = np.array([[0.75, 0.25]] * 3, np.float32)
    else:
        layer = random_layer(rng, **LAYERS[name])
        x = random_tokens(rng, 4, layer.hidden, outliers=30.0)
        routing = moe_layer(x, layer, stages=True).stages["routing"]
        ids, weights = routing["ids"], routing["weights"]
    return layer, x, {"topk_ids": ids, "topk_weights": weights}


#: Of a bound's share of the formula's result, the median that is not reached, by the activations of the path.
SHARES = {"mxfp8": 0.1, "q8_1": 0.05, "bf16": 0.006}


@pytest.mark.parametrize("path", [name for name in BACKENDS if BACKENDS[name].activations in SHARES])
@pytest.mark.parametrize("name", thinned([*LAYERS, "real"], 2))
def test_every_path_lies_within_and_the_bound_says_something(name: str, path: str) -> None:
    """The bound is a few percent of what the formula gives for MXFP8 and Q8_1, a few tenths of one for BF16.

    Most outputs can only be one number; where several can be, they are few units apart.
    """
    layer, x, routing = cases(name)
    out = moe_layer(x, layer, path=path, **routing)
    exact = moe_float64(x, layer, **routing)
    enclosure = layer_enclosure(x, layer, **routing, path=path)
    bound = layer_bound(x, layer, **routing, path=path)
    assert enclosure.holds(out).all()
    assert (np.abs(out.astype(np.float64) - exact) <= bound).all()
    assert np.median(bound / np.abs(exact)) < SHARES[BACKENDS[path].activations]
    assert (enclosure.low == enclosure.high).mean() > 0.5


@pytest.mark.parametrize("name", [*LAYERS, "real"])
def test_layers_in_a_chain_lie_within(name: str) -> None:
    """An output in Q8_1, and the output of a layer that takes it; the formula's tokens are what the first one gave."""
    layer, x, routing = cases(name)
    first = moe_layer(x, layer, path="llama_cpp", output="q8_1", **routing)
    between = layer_enclosure(x, layer, **routing, path="llama_cpp", output="q8_1")
    assert between.holds(dequantize_q8_1(first)).all()
    assert (between.low == between.high).mean() > 0.5
    second = moe_layer(first, layer, path="llama_cpp", quantization="ready", **routing)
    enclosure = layer_enclosure(first, layer, **routing, path="llama_cpp")
    assert enclosure.holds(second).all()
    assert (enclosure.low == enclosure.high).mean() > 0.5
    error = np.abs(second.astype(np.float64) - moe_float64(dequantize_q8_1(first), layer, **routing))
    assert (error <= layer_bound(first, layer, **routing, path="llama_cpp")).all()


@pytest.mark.parametrize("seed", range(12))
def test_integer_paths_lie_within_wherever_their_scales_are(seed: int) -> None:
    """Tokens and weights from where d is 0 in FP16 to where it overflows, where nothing is promised."""
    rng = np.random.default_rng([31, seed])
    layer = random_layer(rng, hidden=(64, 1088)[seed % 2], intermediate=32, variant=("gpt_oss", "silu")[seed % 2])
    shift = rng.integers(-60, 20)
    scales = np.clip(layer.gate_up.scales.astype(np.int64) + shift, 0, 254).astype(np.uint8)
    layer = dataclasses.replace(layer, gate_up=MXTensor(layer.gate_up.codes, scales, "mxfp4"))
    size = 2.0 ** [-130, -30, -12, 0, 8, 20][seed % 6]
    x = (random_tokens(rng, 5, layer.hidden, outliers=30).astype(np.float32) * np.float32(size)).astype(BF16)
    ids = np.array([rng.permutation(6)[:3] for _ in x], np.int32)
    given = {"topk_ids": ids, "topk_weights": rng.standard_normal((5, 3)).astype(np.float32)}
    for path in ("dp4a", "llama_cpp"):
        with np.errstate(all="ignore"):
            out = moe_layer(x, layer, path=path, **given)
        assert layer_enclosure(x, layer, path=path, **given).holds(out).all()


@pytest.mark.parametrize("model", ["exact", "fp32", "sm100"])
def test_other_models(model: str) -> None:
    layer, x, routing = cases("random")
    assert layer_enclosure(x, layer, **routing, model=model).holds(moe_layer(x, layer, **routing, model=model)).all()
    if model != "sm100":
        out = moe_layer(x, layer, path="marlin", **routing, model=model)
        assert layer_enclosure(x, layer, **routing, path="marlin", model=model).holds(out).all()


def test_ranks_and_negative_weights() -> None:
    layer = random_layer(np.random.default_rng(4), local=(2, 3))
    x = random_tokens(np.random.default_rng(5), 4)
    ids = np.array([[0, 2, 4], [3, 2, 5], [0, 1, 5], [4, 3, 2]], np.int32)
    weights = np.random.default_rng(6).standard_normal((4, 3)).astype(np.float32)
    given = {"topk_ids": ids, "topk_weights": weights, "first_expert": 2}
    for path in ("cutlass", "triton", "dp4a", "llama_cpp"):
        enclosure = layer_enclosure(x, layer, **given, path=path)
        assert enclosure.holds(moe_layer(x, layer, path=path, **given)).all()
        assert not enclosure.low[2].any()
        assert not enclosure.high[2].any()


@pytest.mark.parametrize("path", ["cutlass", "triton", "llama_cpp"])
def test_from_the_router_on(path: str) -> None:
    """Weights within their intervals, and outputs of tokens whose choice is certain, which is nearly all of them."""
    rng = np.random.default_rng(8)
    layer = random_layer(rng, experts=24, top_k=4)
    x = random_tokens(rng, 24)
    stages = moe_layer(x, layer, path=path, stages=True)
    enclosure, exact = layer_enclosure(x, layer, path=path), moe_float64(x, layer)
    certain = np.isfinite(enclosure.low).all(axis=1)
    assert certain.mean() > 0.9
    assert enclosure.holds(stages.output).all()
    error = np.abs(stages.output.astype(np.float64) - exact)
    assert (error <= layer_bound(x, layer, path=path)).all()
    assert (enclosure.low == enclosure.high)[certain].mean() > 0.5


def test_weights_lie_within_and_a_choice_between_near_equals_is_not_certain() -> None:
    rng = np.random.default_rng(9)
    logits = (rng.standard_normal((200, 20)) * rng.uniform(0.1, 20, (200, 1))).astype(np.float32)
    logits[0, 3] = logits[0, 4] = 99
    logits[1, 3], logits[1, 4] = 99, np.nextafter(np.float32(99), np.float32(100))
    wide = logits.astype(np.float64)
    ids, weights = route_softmax_topk(logits, 4)
    for width, undecided in ((0.0, [0]), (2.0**-18, [0, 1])):
        found, interval, certain = routed(Interval(wide - width, wide + width), 4)
        assert np.flatnonzero(~certain)[: len(undecided)].tolist() == undecided
        assert certain.mean() > 0.95
        assert (found == ids)[certain].all()
        assert ((weights >= interval.low) & (weights <= interval.high))[certain].all()
        assert (interval.high - interval.low <= weights * (2e-5 + 10 * width) + 1e-40)[certain].all()


def shifted(tensor: MXTensor) -> MXTensor:
    return MXTensor(tensor.codes, np.roll(tensor.scales, 1, axis=-1), tensor.format)


def cut(tensor: MXTensor) -> MXTensor:
    """The last quarter of K, or what blocks there are of it, dropped."""
    codes = tensor.codes.copy()
    codes[..., codes.shape[-1] * 3 // 4 :] = 0
    return MXTensor(codes, tensor.scales, tensor.format)


def swapped(tensor: MXTensor, axis: int = 1) -> MXTensor:
    order = np.arange(tensor.codes.shape[axis]).reshape(-1, 2)[:, ::-1].reshape(-1)
    return MXTensor(*(np.ascontiguousarray(part[:, order]) for part in (tensor.codes, tensor.scales)), tensor.format)


def neighbour(tensor: MXTensor) -> MXTensor:
    return MXTensor(np.roll(tensor.codes, 1, axis=0), np.roll(tensor.scales, 1, axis=0), tensor.format)


FAULTS = {
    "a quarter of K dropped in GEMM1": lambda layer: {"gate_up": cut(layer.gate_up)},
    "a quarter of K dropped in GEMM2": lambda layer: {"down": cut(layer.down)},
    "scales of GEMM1 a block further": lambda layer: {"gate_up": shifted(layer.gate_up)},
    "scales of GEMM2 a block further": lambda layer: {"down": shifted(layer.down)},
    "gate and up exchanged": lambda layer: {"gate_up": swapped(layer.gate_up)},
    "the neighbour's weights": lambda layer: {"down": neighbour(layer.down)},
    "no bias in GEMM1": lambda layer: {"gate_up_bias": None},
    "no bias in finalize": lambda layer: {"down_bias": None},
    "no clamp": lambda layer: {"swiglu_limit": np.full(layer.experts, 1e5, np.float32)},
    "alpha 1": lambda layer: {"swiglu_alpha": np.ones(layer.experts, np.float32)},
    "up without its 1": lambda layer: {"swiglu_beta": np.zeros(layer.experts, np.float32)},
}


@pytest.mark.parametrize("path", ["cutlass", "marlin", "dp4a", "llama_cpp"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_lie_outside(fault: str, path: str) -> None:
    """Outside the bound around the formula, and so outside the enclosure, in many outputs."""
    layer, x, routing = cases("wide")
    wrong = moe_layer(x, dataclasses.replace(layer, **FAULTS[fault](layer)), path=path, **routing)
    exact, bound = moe_float64(x, layer, **routing), layer_bound(x, layer, **routing, path=path)
    outside = np.abs(wrong.astype(np.float64) - exact) > bound
    assert outside.mean() > 0.2
    assert (~layer_enclosure(x, layer, **routing, path=path).holds(wrong))[outside].mean() > 0.99


SMALL_FAULTS = ["weights of the ranks exchanged", "one unit of BF16", "floor for rceil", "an empty column"]


@pytest.mark.parametrize("fault", SMALL_FAULTS)
def test_small_faults_lie_outside_the_enclosure(fault: str) -> None:
    """What the distance to the formula cannot see, the enclosure does."""
    layer, x, routing = cases("random")
    weights = np.ascontiguousarray(routing["topk_weights"][:, ::-1])
    out = moe_layer(x, layer, **routing)
    if fault == "weights of the ranks exchanged":
        out = moe_layer(x, layer, topk_ids=routing["topk_ids"], topk_weights=weights)
    elif fault == "floor for rceil":
        out = moe_layer(x, layer, mode="floor", **routing)
    elif fault == "an empty column":
        out[:, 7] = 0
    else:
        out = (out.view(np.uint16) + np.uint16(1)).view(BF16)
    outside = ~layer_enclosure(x, layer, **routing).holds(out)
    assert outside[:, 7].all() if fault == "an empty column" else outside.mean() > 0.2


INTEGER_FAULTS = ["codes toward zero", "a BF16 rounding more", "the other path", "a code further", "an empty column"]


@pytest.mark.parametrize("fault", INTEGER_FAULTS)
def test_small_faults_of_the_integer_paths_lie_outside_the_enclosure(fault: str) -> None:
    layer, x, routing = cases("longer")
    path, output = "llama_cpp", "bf16"
    out = moe_layer(x, layer, path=path, **routing)
    if fault == "codes toward zero":
        tokens = quantize_q8_1(x)
        exact = x.astype(np.float32) / np.repeat(tokens.d.astype(np.float32), 32, axis=1)
        cut = Q8Tensor(np.trunc(exact).astype(np.int8), tokens.d, tokens.s)
        out = moe_layer(cut, layer, path=path, quantization="ready", **routing)
    elif fault == "a BF16 rounding more":
        path, output = "llama_cpp", "q8_1"
        out = dequantize_q8_1(quantize_q8_1(out))
    elif fault == "the other path":
        path = "dp4a"
    elif fault == "a code further":
        path, output = "llama_cpp", "q8_1"
        found = moe_layer(x, layer, path=path, output="q8_1", **routing)
        out = dequantize_q8_1(Q8Tensor(np.roll(found.codes, 1, axis=1), found.d, found.s))
    else:
        out[:, 7] = 0
    outside = ~layer_enclosure(x, layer, **routing, path=path, output=output).holds(out)
    assert outside[:, 7].all() if fault == "an empty column" else outside.mean() > 0.2


def test_q8_1_values_of_points_are_the_quantizers() -> None:
    """All binades: d infinite in FP16, a subnormal of it, 0, and a subnormal of FP32; and a block of zeros."""
    rng = np.random.default_rng(6)
    x = (rng.standard_normal((64, 64)) * np.exp2(np.linspace(-149, 126, 64))[:, None]).astype(np.float32)
    x[2], x[3, :32], x[4] = 0, 0, -0.0
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        tensor = quantize_q8_1(x)
        wanted = tensor.codes * np.repeat(tensor.d, 32, axis=1).astype(np.float64)
    found, largest = q8_1_values(Interval(wide, wide))
    finite = np.isfinite(tensor.d)
    assert 0 < finite.sum() < finite.size
    assert (largest[finite] == tensor.d[finite]).all()
    each = np.repeat(finite, 32, axis=1)
    assert np.isnan(found.low[~each]).all()
    normal = np.repeat(np.abs(x).reshape(64, 2, 32).max(axis=2) / 127 >= 2.0**-126, 32, axis=1) & each
    assert ((found.low == wanted) & (found.high == wanted))[normal].all()
    assert ((found.low <= wanted) & (found.high >= wanted))[each].all()


@pytest.mark.parametrize("width", [2.0**-20, 2.0**-10, 2.0**-4])
def test_q8_1_values_of_intervals_hold_those_of_points_inside(width: float) -> None:
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((256, 64)) * np.exp2(rng.uniform(-1, 12, (256, 1)))).astype(np.float32)
    reach = np.abs(x).astype(np.float64) * width
    around, largest = q8_1_values(Interval(x - reach, x + reach))
    for _ in range(8):
        inside = (x + reach * rng.uniform(-1, 1, x.shape)).astype(np.float32)
        inside = np.clip(inside, (x - reach).astype(np.float32), (x + reach).astype(np.float32))
        tensor = quantize_q8_1(inside)
        values = tensor.codes * np.repeat(tensor.d, 32, axis=1).astype(np.float64)
        assert ((around.low <= values) & (around.high >= values)).all()
        assert (tensor.d <= largest).all()
    # No wider than the interval, half a code to each side, and what rounding d to FP16 moves 127 of them: 1.124 d.
    d = np.repeat(largest, 32, axis=1)
    assert (around.high - around.low <= 2 * reach + 1.13 * d).all()


def test_sums_of_another_order_or_precision_show() -> None:
    """An FP32 sum in any order lies within; one with FP16 partial sums, or with FP16 terms, does not."""
    rng = np.random.default_rng(8)
    x = quantize_q8_1(rng.standard_normal((4, 2880)).astype(np.float32))
    w = quantize_mxfp4(rng.standard_normal((1, 64, 2880)).astype(np.float32)).part(0)
    known = dequantize_q8_1(x).astype(np.float64)
    weights = Matrix(
        w.dequantize().astype(np.float64), np.repeat(np.exp2(w.scales.astype(np.float64) - 127), 32, axis=1)
    )
    interval = integer_sums(weights, Interval(known, known), x.d.astype(np.float64), 90)
    terms = (weights.values * known[:, None]).reshape(4, 64, 90, 32).sum(axis=3)
    for order in (np.arange(90), np.arange(90)[::-1], rng.permutation(90)):
        single, half = np.zeros((4, 64), np.float32), np.zeros((4, 64), np.float16)
        for block in order:
            single += terms[..., block].astype(np.float32)
            half += terms[..., block].astype(np.float16)
        assert ((single >= interval.low) & (single <= interval.high)).all()
        assert ((half < interval.low) | (half > interval.high)).mean() > 0.9
    rounded = terms.astype(np.float16).astype(np.float64).sum(axis=2)
    assert ((rounded < interval.low) | (rounded > interval.high)).mean() > 0.5


def test_nothing_is_promised_of_products_that_may_overflow() -> None:
    """A scale of 2^126 and a d of 8: RN(d * 2^125) is infinite, and so is the sum, or NaN beside a sum of 0."""
    codes = np.full((1, 2, 16), 0x22, np.uint8)
    weights = MXTensor(codes, np.full((1, 2, 1), 253, np.uint8), "mxfp4").part(0)
    values = np.full((1, 32), 8.0)
    known = Matrix(weights.dequantize().astype(np.float64), np.full((2, 32), 2.0**126))
    interval = integer_sums(known, Interval(values, values), np.array([[8.0]]), 7)
    assert np.isnan(interval.low).all()
    assert np.isnan(interval.high).all()


def test_a_wrong_accumulation_shows_in_a_gemm() -> None:
    """Alignment to 2^(E - 13), Hopper's FP8, leaves the interval of 2^(E - 25)."""
    rng = np.random.default_rng(3)
    a = rng.standard_normal((16, 256)).astype(np.float32).astype(BF16)
    b = quantize_mxfp4(rng.standard_normal((1, 24, 256)).astype(np.float32))
    values = b.dequantize()[0].astype(np.float64)
    model = MODELS["sm90_mma"]
    known = a.astype(np.float64)
    interval = chain(Matrix(values, np.float64(2.0**-126)), Interval(known, known), np.float64(2.0**-126), model, 16)
    offsets = np.array([0, 16], np.int64)
    right = grouped_gemm(a, b, offsets, model=model)
    coarse = grouped_gemm(a, b, offsets, model=dataclasses.replace(model, align_bits=13))
    assert ((right >= interval.low) & (right <= interval.high)).all()
    assert ((coarse < interval.low) | (coarse > interval.high)).mean() > 0.8


def test_chain_is_wider_than_the_running_bound_but_not_much() -> None:
    """That one counts which terms were inexact; this one takes all of them to be."""
    rng = np.random.default_rng(4)
    x = quantize_mxfp8((rng.standard_normal((8, 256)) * np.exp2(rng.uniform(-6, 6, (8, 256)))).astype(np.float32))
    w = quantize_mxfp4(rng.standard_normal((16, 256)).astype(np.float32))
    running = running_bound(
        unpack_fp4(w.codes), x.codes, np.zeros((16, 8), np.float32), model="sm120", a_format="e2m1", b_format="e4m3",
        a_scales=w.scales, b_scales=x.scales,
    ).T  # fmt: skip
    tokens = x.dequantize().astype(np.float64)
    least_w = np.repeat(np.exp2(w.scales.astype(np.float64) - 127), 32, axis=1)
    least_x = np.repeat(np.exp2(x.scales.astype(np.float64) - 127 - 6), 32, axis=1)
    weights = Matrix(w.dequantize().astype(np.float64), least_w)
    interval = chain(weights, Interval(tokens, tokens), least_x, MODELS["sm120"], 32)
    ratio = (interval.high - interval.low) / 2 / running
    assert ratio.min() >= 1
    assert np.median(ratio) < 12


@pytest.mark.parametrize("variant", ["gpt_oss", "silu"])
def test_activation_of_points_lies_within(variant: str) -> None:
    """Random and extreme gates, as points and inside intervals that span the minimum and the clamps."""
    rng = np.random.default_rng(5)
    gate = np.concatenate([rng.uniform(-12, 12, 4000), rng.uniform(-300, 300, 2000), rng.uniform(-1.3, -0.5, 2000)])
    gate = np.concatenate([gate, rng.standard_normal(500) * 1e-38, rng.standard_normal(500) * 1e30]).astype(np.float32)
    up = (rng.standard_normal(gate.size) * 6).astype(np.float32)
    parameters = (1.702, 1.0, 7.0) if variant == "gpt_oss" else (1.0, None, None)
    pair = [gate, up]
    flat = np.stack(pair, axis=1).reshape(1, -1) if variant == "gpt_oss" else np.concatenate(pair)[None]
    found = swiglu(flat, variant=variant)[0].astype(np.float64)
    widths = np.zeros(gate.size), rng.uniform(0, 4, gate.size)
    for width in widths:
        inside = rng.uniform(0, 1, (2, gate.size)) * width
        intervals = [Interval(v.astype(np.float64) - a, v + (width - a)) for v, a in zip(pair, inside, strict=True)]
        values = swiglu_values(*intervals, *parameters)
        assert ((found >= values.low) & (found <= values.high)).all()
    points = swiglu_values(*(Interval(v.astype(np.float64), v.astype(np.float64)) for v in pair), *parameters)
    usual = np.abs(gate) < 10
    assert ((points.high - points.low)[usual] <= 1e-5 * np.abs(found[usual]) + 1e-40).all()


def test_requantized_points_are_the_quantizers() -> None:
    """All binades, and amax on the border of a scale: 448 and its neighbour above."""
    rng = np.random.default_rng(6)
    x = (rng.standard_normal((64, 64)) * np.exp2(rng.integers(-130, 100, (64, 1)))).astype(np.float32)
    x[0, 0], x[1, 0], x[2] = 448.0 * 2**20, np.nextafter(np.float32(448.0 * 2**20), np.float32(np.inf)), 0
    wide = x.astype(np.float64)
    found, least = requantized(Interval(wide, wide))
    quantized = quantize_mxfp8(x)
    assert (found.low == quantized.dequantize()).all()
    assert (found.high == found.low).all()
    assert (least[:, ::32] == np.exp2(quantized.scales.astype(np.float64) - 127 - 6)).all()
    spread = Interval(wide - np.abs(wide) * 2**-8, wide + np.abs(wide) * 2**-8)
    around, _ = requantized(spread)
    assert ((around.low <= found.low) & (around.high >= found.high)).all()


def test_nothing_is_promised_where_something_overflows() -> None:
    layer = random_layer(np.random.default_rng(7), variant="silu")
    x = np.full((1, 64), 3e38, BF16)
    given = {"topk_ids": np.array([[0, 1, 2]], np.int32), "topk_weights": np.ones((1, 3), np.float32)}
    enclosure = layer_enclosure(x, layer, **given)
    assert np.isinf(enclosure.low).all()
    assert enclosure.holds(moe_layer(x, layer, **given)).all()


def test_refusals() -> None:
    layer, x, routing = cases("random")
    with pytest.raises(ArgumentError, match="x: "):
        layer_enclosure(np.full((1, 64), np.inf, BF16), layer, **routing)
    with pytest.raises(ArgumentError, match="x: "):
        layer_enclosure(x.astype(np.float32), layer, **routing)
    with pytest.raises(ArgumentError, match="backend: "):
        layer_bound(x, layer, **routing, path="trtllm", arch="sm_120a")
    with pytest.raises(ArgumentError, match="model: found exact with dp4a; needed None"):
        layer_enclosure(x, layer, **routing, path="dp4a", model="exact")
    with pytest.raises(ArgumentError, match="output: found q8_1 with dp4a; needed bf16"):
        layer_enclosure(x, layer, **routing, path="dp4a", output="q8_1")
    with pytest.raises(ArgumentError, match=r"x: found Q8_1 .* with dp4a; needed bfloat16"):
        layer_enclosure(quantize_q8_1(x), layer, **routing, path="dp4a")
    with pytest.raises(ArgumentError, match="topk_ids: found None with ready activations"):
        layer_enclosure(quantize_q8_1(x), layer, path="llama_cpp")
    with pytest.raises(ArgumentError, match="sm90_mma_f16acc"):
        layer_enclosure(x, layer, **routing, path="marlin", model="sm90_mma_f16acc")


def test_chain_allows_for_every_term_being_cut() -> None:
    """One product of 1 and 31 just below its unit: all of those are lost, 2^-20 in all, far more than a last place."""
    x = np.full((1, 32), 1.984375 * 2.0**-26)
    x[0, 0] = 1
    ones = quantize_mxfp4(np.ones((1, 8, 32), np.float32))
    known, least = x.astype(BF16).astype(np.float64), np.float64(2.0**-126)
    found = grouped_gemm(x.astype(BF16), ones, np.array([0, 1], np.int64), model="sm90_mma")
    assert (found == 1).all()
    interval = chain(Matrix(np.ones((8, 32)), least), Interval(known, known), least, MODELS["sm90_mma"], 16)
    assert (interval.low <= 1).all()
    assert (interval.high - interval.low < 2.0**-18).all()
