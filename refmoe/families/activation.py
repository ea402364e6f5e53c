"""The family `activation`: SwiGLU of the first GEMM's rows, quantized to MXFP8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import MULTIPROCESSORS, Shape, refused, word
from refmoe.families.choices import RANKS, ROUTING, check_choices, expert_offsets
from refmoe.families.expand import LAYOUT
from refmoe.families.extents import mxfp8_grouped
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Fill, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, Layout, behind, check_before, far_device, lacks_memory, of_rows
from refmoe.families.fills import gate_params
from refmoe.families.fills.bracketed_gates import (
    BRACKETED,
    BRACKETED_BY_BIAS,
    BRACKETED_ROWS,
    RARE_SPECIALS,
    SCALE_EDGES,
    bracketed_by_bias,
    bracketed_gates,
    bracketed_rows,
    bracketed_terms,
    figures_of_brackets,
    rare_specials,
    scale_edge_terms,
    scale_edges,
)
from refmoe.families.fills.plain_gates import (
    CLAMPS,
    clamped_gates,
    edge_gates,
    fingerprint_gates,
    gaussian_gates,
    gaussian_terms,
    limit_gates,
    midpoint_gates,
    nan_lane_gates,
    special_gates,
    tie_gates,
    tie_terms,
    tiny_gates,
    zero_gates,
)
from refmoe.families.fills.sigmoid_gates import STEPS, figures_of_steps, gates_of_one, lonely_gates
from refmoe.families.fills.tied_gates import BIASED, biased_gates, biased_terms, halved_gates, mixed_gates
from refmoe.families.quantize import COMPILED_POLICIES, EDGE, FAR_ROWS, LOOPING_ROWS, MODE, settings_of
from refmoe.families.stages import Codes, GroupedScales
from refmoe.families.vacuity import Limits, doubt_codes
from refmoe.families.wrong import ARRAY, BYTE, MANY, WRONG, Arguments, Change, called, huge, many_experts, wrong_calls
from refmoe.formats import MX_BLOCK
from refmoe.reference.activation import ALPHA, BETA, LIMIT, swiglu
from refmoe.reference.quantize import quantize_mxfp8

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_BF16 = np.dtype(ml_dtypes.bfloat16)
POISONED_BF16 = 0x7FC1  # a NaN that no operation makes

# --- fills ----------------------------------------------------------------------------------------------------------

#: The fill whose biases `tie_terms` chooses.
TIES = "bias-ties"
#: Fills whose betas `_midpoint_betas` chooses.
MIDPOINTS, CLAMPED = "midpoints", "clamp-midpoints"
#: The fill that is made for silu.
HALVED = "halved"
#: The fill whose gates stand alone.
LONELY = "lonely"
#: The fill of lanes that hold nothing but NaN.
NAN_LANES = "nan-lanes"
#: The fill of lanes that hold gates beside ties and a far one.
MIXED = "mixed-lanes"

GATE_FILLS = Fill.by_name(
    Fill("gaussian", "gate and up swapped, a rounding more or less, quantized from BF16", gaussian_gates),
    Fill(
        "clamps",
        "a clamp that is missing, one-sided, or another expert's",
        limit_gates,
        Limits(zeros=0.5, saturated=0.6, scales=1, reason="many results lie on a clamp, or are its sigmoid's tail"),
    ),
    Fill(
        "sigmoid-edges",
        "an exponential that overflows to NaN, flushes or is clamped",
        edge_gates,
        Limits(zeros=0.5, reason="a gate whose exponential overflows gives a zero"),
    ),
    Fill(
        "tiny",
        "subnormals flushed or kept against the policy, a scale below 0",
        tiny_gates,
        Limits(zeros=0.95, reason="most results lie below the least code"),
    ),
    Fill(
        "fingerprint",
        "scales of another row, block or expert",
        fingerprint_gates,
        Limits(scales=32, reason="every block has a scale of its own"),
    ),
    Fill(
        MIDPOINTS,
        "one rounding more or less: the last bit before quantization decides the code",
        midpoint_gates,
        Limits(saturated=0.3, scales=1, reason="results of an expert are alike"),
    ),
    Fill(
        TIES,
        "a bias that is added with another rounding",
        tie_gates,
        Limits(scales=1, reason="every block has the same largest element"),
    ),
    Fill(
        CLAMPED,
        "a clamp that is an ulp off, or rounded to 16 bits",
        clamped_gates,
        Limits(saturated=0.3, scales=1, reason="results of an expert are alike"),
    ),
    Fill(
        HALVED,
        "a reciprocal that rounds wrong where it is hardest, next to a half",
        halved_gates,
        Limits(scales=1, reason="every block has the same largest element"),
    ),
    Fill(
        LONELY,
        "a sigmoid whose fast way goes too far, or is chosen by other results' gates",
        lonely_gates,
        Limits(zeros=1.0, saturated=0.3, nans=0.6, scales=1, reason="a block has one result, or a NaN beside it"),
    ),
    Fill(
        "zeros",
        "the sign of a zero lost in a clamp, a product or a bias",
        zero_gates,
        Limits(zeros=0.95, saturated=0.3, scales=1, reason="most blocks have a zero in every product"),
    ),
    Fill(
        "specials",
        "NaN dropped by a clamp, Inf taken for a number",
        special_gates,
        Limits(zeros=1.0, saturated=0.7, nans=0.9, reason="most blocks hold a NaN or an Inf"),
    ),
    Fill(
        NAN_LANES,
        "a lane that holds nothing but NaN taken for a zero, or for the block's maximum",
        nan_lane_gates,
        Limits(zeros=1.0, saturated=0.7, nans=0.9, reason="half of each block is NaN"),
    ),
    Fill(
        MIXED,
        "an ordinary gate whose sigmoid is another one where a neighbour needs clamps",
        mixed_gates,
        Limits(zeros=0.3, reason="a far gate of each 16 gives a zero"),
    ),
    Fill(
        BIASED,
        "a step of the sigmoid of a gate with a bias that rounds toward zero",
        biased_gates,
        Limits(scales=1, reason="there are four kinds of block"),
    ),
    Fill(
        STEPS,
        "a step of the sigmoid that is another one",
        gates_of_one,
        Limits(zeros=0.2, scales=1, reason="results of an expert are one, or a far gate's"),
    ),
    *(
        Fill(
            name,
            "an estimate of the sigmoid taken for the defined one",
            make,
            Limits(zeros=1.0, saturated=0.3, scales=1, reason="a row has one result"),
        )
        for name, make in ((BRACKETED, bracketed_gates), (BRACKETED_BY_BIAS, bracketed_by_bias))
    ),
    Fill(
        BRACKETED_ROWS,
        "words of codes that are in doubt in every lane taken for proved ones",
        bracketed_rows,
        Limits(saturated=0.6, scales=1, reason="results of a row are alike, and often at the end of a scale"),
    ),
    Fill(
        SCALE_EDGES,
        "a scale that is not proved where it can be",
        scale_edges,
        Limits(scales=1, saturated=1.0, reason="all results are the same"),
    ),
    Fill(
        RARE_SPECIALS,
        "a NaN or an Inf that an estimate does not show",
        rare_specials,
        Limits(zeros=0.5, saturated=0.3, nans=0.5, reason="a row has one NaN or Inf"),
    ),
)
#: Fills that go with every variant and parameters.
_MADE_FOR_SOME = (
    MIDPOINTS,
    CLAMPED,
    TIES,
    HALVED,
    LONELY,
    NAN_LANES,
    MIXED,
    BIASED,
    STEPS,
    BRACKETED,
    BRACKETED_BY_BIAS,
    BRACKETED_ROWS,
    SCALE_EDGES,
    RARE_SPECIALS,
)
PLAIN_GATES = tuple(name for name in GATE_FILLS if name not in (*_MADE_FOR_SOME, "zeros"))

VARIANT = word("variant", "gpt_oss", "silu", fixed=True)
#: An alpha, a beta and a limit of each expert, or those of gpt-oss; `edges` are numbers that no model has, and with
#: `closed` every limit is a zero of either sign: what passes the clamps is a sign. With `open` most limits
#: are infinite, and alphas so large that a subnormal gate counts. `specials` are a NaN or an infinity for alpha or for
#: beta; `bounds` are the largest beta and limit with which results are estimated. `alpha`, `beta` and `limit` are that
#: of `distinct` alone.
GATE_PARAMS = word(
    "params", "none", "distinct", "edges", "closed", "open", "bounds", "specials", "alpha", "beta", "limit"
)
#: Of a layer; `closed` are limits alone, of which every eighth is zero. `alpha`, `beta` and `limit` as above.
PARAMS = word("params", "none", "distinct", "closed", "alpha", "beta", "limit")
#: No bias, ordinary numbers, or zeros of either sign and subnormal numbers.
GATE_BIAS = word("bias", "none", "distinct", "tiny")

#: BF16 patterns: zeros, the least and the largest subnormal numbers, of either sign.
_TINY_BIAS = np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x807F], np.uint16).view(_BF16)


# --- inputs, expectation, run ---------------------------------------------------------------------------------------


def gate_inputs(case: Case) -> Inputs:
    """Gates and ups as the variant lays them out, rows in expert order; rows of no expert hold NaN."""
    rows, width, experts = case.shape.m, case.shape.k, case.shape.e
    draw = Draw("gates", case.fill, case.variant, case.seed)
    offsets = expert_offsets(case)
    with np.errstate(over="ignore"):
        made = GATE_FILLS[case.fill].make(draw, rows, width)
    if case.fill == TIES and case.variant == "gpt_oss":
        made = made[0], made[1] - BETA
    with np.errstate(over="ignore"):
        gates, ups = (side.astype(_BF16) for side in made)
    gate_up = _laid_out(case, gates, ups)
    gate_up.view(np.uint16)[offsets[-1] :] = POISONED_BF16
    bias = None
    if case.get("bias", "none") == "tiny":
        chosen = Draw("tiny-gate-bias", case.seed).integers(_TINY_BIAS.size, (2, experts, width))
        bias = _laid_out(case, *_TINY_BIAS[chosen])
    elif case.get("bias", "none") == "distinct":
        own_terms = {TIES: tie_terms, BIASED: biased_terms, BRACKETED_BY_BIAS: bracketed_terms}
        terms_of = {**own_terms, SCALE_EDGES: scale_edge_terms}.get(case.fill, gaussian_terms)
        terms = terms_of(Draw("gate-bias", case.seed), experts, width).astype(_BF16)
        bias = _laid_out(case, terms[0], terms[1])
    parameters = _parameters(case)
    if case.fill in (MIDPOINTS, CLAMPED):
        parameters["beta"] = _midpoint_betas(gates, offsets, parameters)
    if case.fill == TIES and case.variant == "gpt_oss":
        figures = {"alpha": ALPHA, "beta": BETA, "limit": np.inf}
        parameters = {name: np.full(experts, figure, np.float32) for name, figure in figures.items()}
    if case.fill == STEPS:
        parameters = {**figures_of_steps(experts)}
    if case.fill in (BRACKETED, BRACKETED_ROWS):
        parameters = {**figures_of_brackets(experts)}
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
    if case.params in ("edges", "closed"):
        alphas = gate_params.EDGE_ALPHAS[
            np.zeros_like(experts) if case.fill == CLAMPED else experts % gate_params.EDGE_ALPHAS.size
        ]
        limits = gate_params.EDGE_LIMITS[experts % gate_params.EDGE_LIMITS.size]
        if case.fill == CLAMPED:  # a clamp of next to nothing puts no result between two codes
            limits = np.maximum(limits, np.float32(5))
        if case.params == "closed":
            limits = gate_params.ZERO_LIMITS[experts % gate_params.ZERO_LIMITS.size]
        return {"alpha": alphas, "beta": gate_params.EDGE_BETAS[experts % gate_params.EDGE_BETAS.size], "limit": limits}
    if case.params == "open":
        limits = gate_params.OPEN_LIMITS[experts % gate_params.OPEN_LIMITS.size]
        return {"alpha": gate_params.OPEN_ALPHAS[experts % gate_params.OPEN_ALPHAS.size], "beta": None, "limit": limits}
    if case.params == "bounds":
        return {
            "alpha": None,
            **{name: np.full(experts.size, gate_params.BOUND, np.float32) for name in ("beta", "limit")},
        }
    if case.params == "specials":
        each = experts % gate_params.SPECIAL_ALPHAS.size
        return {"alpha": gate_params.SPECIAL_ALPHAS[each], "beta": gate_params.SPECIAL_BETAS[each], "limit": None}
    distinct = {
        "alpha": (1.702 - experts / 8 % 1.5).astype(np.float32),
        "beta": (1 + experts / 4).astype(np.float32),
        "limit": CLAMPS[experts % CLAMPS.size],
    }
    return {name: None if case.params in distinct and case.params != name else distinct[name] for name in distinct}


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
    counts = np.diff(inputs["offsets"])
    return default if value is None else np.repeat(value, counts, axis=0)


def _expect(case: Case, inputs: Inputs) -> Expectation:
    """`quantize_mxfp8(swiglu(...))` of the rows in use, scales where the second GEMM reads them."""
    offsets = inputs["offsets"]
    used, blocks = int(offsets[-1]), case.shape.k // MX_BLOCK
    parameters = {
        name: _of_rows(inputs, name, default)
        for name, default in (("alpha", ALPHA), ("beta", BETA), ("limit", LIMIT))
        if case.variant == "gpt_oss"
    }
    values = swiglu(inputs["gate_up"][:used], variant=case.variant, bias=_of_rows(inputs, "bias", None), **parameters)
    quantized = quantize_mxfp8(values, mode=case.mode, edge=case.edge)
    codes = np.full((case.shape.m, case.shape.k), case.poison, np.uint8)
    codes[:used] = quantized.codes
    terms = GroupedScales("scales", case.layout, offsets, blocks)
    scales = terms.buffer(quantized.scales, case.shape.m, case.poison)
    stages = (Codes("codes", codes.shape, quantized.scales, written_rows=used, offsets=offsets), terms)
    doubt = doubt_codes(quantized.codes, quantized.scales, GATE_FILLS[case.fill].limits)
    return Expectation({"codes": codes, "scales": scales}, stages, doubt)


def far_gates(case: Case, outputs: Mapping[str, int], *, shares: bool) -> Layout:
    """Where rows lie in the buffers of a kernel of gates and ups; `outputs` are bytes of a row, by buffer."""
    element = 4 if case.dtype == "f32" else 2
    shifted = {"offsets": lambda offsets: behind(offsets, case.rows_before)}
    return of_rows(case, {"gate_up": 2 * case.shape.k * element, **outputs}, values=shifted, shares=shares)


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the kernel."""
    from refmoe.cuda.activation import swiglu_quantize

    k = case.shape.k
    result = called(case, swiglu_quantize)(
        inputs["gate_up"],
        inputs["offsets"],
        device=far_device(case, device, far_gates(case, {"codes": k, "scales": 4 * -(-k // 128)}, shares=True)),
        variant=case.variant,
        bias=inputs["bias"],
        swiglu_alpha=inputs["alpha"],
        swiglu_beta=inputs["beta"],
        swiglu_limit=inputs["limit"],
        **settings_of(case),
    )
    return {"codes": result.codes, "scales": result.scales}


def check_params(case: Case) -> None:
    """Refuse alpha, beta and limit for a variant that has none.

    Raises:
        ArgumentError: they are asked for.
    """
    if case.variant == "silu" and case.params != "none":
        raise refused("params", case.params, "the variant gpt_oss with it: silu has none")


def _check(case: Case) -> None:
    check_params(case)
    params = {MIDPOINTS: "distinct", CLAMPED: "edges"}.get(case.fill, case.params)
    if (case.params, case.bias) != (params, case.bias if case.fill not in (MIDPOINTS, CLAMPED) else "none"):
        raise refused("fill", case.fill, f"params={params} and no bias with it: it chooses each expert's beta")
    if case.fill == TIES and (case.bias, case.params) != ("distinct", _TIE_PARAMS[case.variant]):
        needed = f"bias=distinct and params={_TIE_PARAMS[case.variant]} with it: it chooses biases, and no limit"
        raise refused("fill", case.fill, needed)
    if case.fill in (BIASED, BRACKETED_BY_BIAS, SCALE_EDGES) and (case.variant, case.bias) != ("silu", "distinct"):
        raise refused("fill", case.fill, "variant=silu and bias=distinct with it: it chooses biases")
    if case.fill == STEPS and ((case.variant, case.params) != ("gpt_oss", "distinct") or case.bias == "distinct"):
        raise refused(
            "fill", case.fill, "variant=gpt_oss, params=distinct and no such bias with it: it chooses figures"
        )
    of_experts = (case.variant, case.params, case.routing, case.shape.m)
    wanted = ("gpt_oss", "distinct", "all-one-token", case.shape.e)
    if case.fill in (BRACKETED, BRACKETED_ROWS) and of_experts != wanted:
        needed = "variant=gpt_oss, params=distinct, routing=all-one-token and a row for each expert with it"
        raise refused("fill", case.fill, needed)
    check_choices(case)
    check_before(case)


#: The parameters that the fill `bias-ties` has.
_TIE_PARAMS = {"gpt_oss": "distinct", "silu": "none"}


# --- cases ----------------------------------------------------------------------------------------------------------

#: More experts than nine bits count.
_MANY_EXPERTS = 600

#: Width of the intermediate rows of gpt-oss and DeepSeek-V3.
_WIDTHS = (2880, 2048)


def _case(fill: str, m: int, k: int, e: int, seed: int = 7, **options: Any) -> Case:
    return ACTIVATION.case(fill, Shape(m, k, e), seed=seed, **options)


def _quick() -> Iterator[Case]:
    yield _case("gaussian", 4, 2880, 128)  # decode
    for variant in VARIANT.words:
        for fill in PLAIN_GATES:
            yield _case(fill, 9, 416, 3, variant=variant)
        for mode, edge in COMPILED_POLICIES:
            yield _case("gaussian", 5, 416, 2, variant=variant, mode=mode, edge=edge, layout="8x4", bias="distinct")
        yield _case("tiny", 5, 416, 2, variant=variant, edge="flashinfer")
        yield _case("specials", 5, 416, 2, variant=variant, edge="flashinfer")
    yield _case(MIDPOINTS, 64, 32, 64, params="distinct", routing="all-one-token")
    for variant, params in _TIE_PARAMS.items():
        yield _case(TIES, 9, 416, 3, variant=variant, bias="distinct", params=params)
    yield _case("clamps", 12, 160, 6, params="distinct", bias="distinct", routing="all-one-token", ranks=2)
    yield _case("fingerprint", 9, 416, 9, routing="empty-experts", params="distinct", poison=0x7F)
    yield _case("fingerprint", 130, 96, 3, routing="same-experts")  # past one tile of 128 rows
    yield _case("gaussian", 9, 416, 4, first_expert=4, ranks=2, bias="distinct")
    yield _case("gaussian", 3, 416, 4, routing="elsewhere", first_expert=4, ranks=2)


def _default() -> Iterator[Case]:
    for variant, width in zip(VARIANT.words, _WIDTHS, strict=True):
        for m in (1, 8):
            yield _case("fingerprint", m, width, 128, variant=variant)
            yield _case("gaussian", m, width, 32, variant=variant, bias="distinct", layout="8x4")
        for (mode, edge), fill in product(COMPILED_POLICIES, PLAIN_GATES):
            bias = "none" if fill in ("fingerprint", "tiny") else "distinct"  # a bias would hide either
            yield _case(fill, 7, 736, 3, variant=variant, mode=mode, edge=edge, bias=bias, poison=0x7F)
        for mode, edge in COMPILED_POLICIES:
            # Every entry has its own machine code, and each of these has one case at the level below.
            small: dict[str, Any] = {"variant": variant, "mode": mode, "edge": edge, "layout": "8x4", "poison": 0x7F}
            yield _case("fingerprint", 9, 736, 9, routing="empty-experts", **small)
            yield _case("sigmoid-edges", 9, 736, 3, **small)
    yield _case("clamps", 30, 736, 15, params="distinct", routing="all-one-token", ranks=2)
    for params in ("alpha", "beta", "limit"):  # of which the others are gpt-oss's
        yield _case("clamps", 6, 96, 3, params=params)
        yield _case("fingerprint", 5, 64, _MANY_EXPERTS, routing="same-experts", params=params)
    # Factors, terms and clamps that no model has: 0, -0, negative, subnormal, an ulp beside a clamp.
    yield _case(CLAMPED, 126, 32, 126, params="edges", routing="all-one-token")
    for fill, mode in (("clamps", "rceil"), ("zeros", "floor"), ("sigmoid-edges", "rceil"), ("specials", "floor")):
        yield _case(fill, 70, 160, 35, params="edges", routing="all-one-token", ranks=2, mode=mode)
    # 42 experts: each limit meets each alpha and each beta.
    for fill, (mode, edge), layout in product(("zeros", "specials"), COMPILED_POLICIES, LAYOUT.words):
        policy: dict[str, Any] = {"mode": mode, "edge": edge, "layout": layout}
        yield _case(fill, 42, 160, 42, params="closed", routing="all-one-token", **policy)
    for variant, bias in product(VARIANT.words, ("none", "tiny")):
        yield _case("zeros", 9, 416, 3, variant=variant, bias=bias, edge="exact" if bias == "tiny" else "flashinfer")
        yield _case("tiny", 9, 416, 3, variant=variant, bias="tiny", layout="8x4" if bias == "tiny" else "128x4")
    # The fast way to a sigmoid is chosen for several results at once, and its last gate is 64.
    for variant, (mode, edge) in product(VARIANT.words, COMPILED_POLICIES):
        yield _case(LONELY, 9, 416, 3, variant=variant, mode=mode, edge=edge, poison=0x7F)
    for variant, mode in zip(VARIANT.words, ("floor", "rceil"), strict=True):
        yield _case(NAN_LANES, 1, 320, 1, variant=variant, mode=mode, edge="flashinfer")
    # Rows that are NaN as a whole, too.
    for mode, edge in COMPILED_POLICIES:
        policy = {"mode": mode, "edge": edge, "layout": "128x4" if mode == "rceil" else "8x4"}
        yield _case("specials", 20, 160, 10, params="specials", routing="all-one-token", ranks=2, **policy)
    for fill, mode in (("tiny", "rceil"), ("tiny", "floor"), ("clamps", "rceil")):
        yield _case(fill, 20, 160, 10, params="open", routing="all-one-token", ranks=2, mode=mode)
    for m in (127, 128, 129):  # a scale atom of one expert's rows, and a row less and more
        yield _case("fingerprint", m, 128, 3, routing="same-experts", poison=0x7F)
    for k in (480, 512, 544):  # a warp's columns, and a block less and more
        yield _case("fingerprint", 3, k, 3)
        yield _case("gaussian", 3, k, 3, bias="distinct")
    yield _case("fingerprint", 65_600, 32, 3, routing="same-experts")  # more scale rows than CTAs, all at one expert
    for variant in VARIANT.words:  # pieces of 16 results, and bytes of scales, past 2^31
        yield _case("fingerprint", 5, 64, 3, variant=variant, rows_before=FAR_ROWS)
        yield _case("fingerprint", 5, 160, 3, variant=variant, rows_before=FAR_ROWS)  # and past 2^32
    yield _case("gaussian", LOOPING_ROWS, 32, 8)
    yield _case("gaussian", 2, 8224, 2, bias="distinct")  # a row wider than a CTA, by one block
    yield _case("gaussian", 3, 8224, 2, variant="silu")
    yield _case("gaussian", 1, 16416, 1, bias="distinct")  # three rounds of a CTA
    yield _case("gaussian", 1, 24_608, 1, bias="distinct")  # and four
    yield _case("gaussian", 1, 24_608, 1, variant="silu")
    for variant in VARIANT.words:
        # Such rows, two for each CTA; and CTAs whose few rows belong to several experts, some of which have none.
        yield _case("fingerprint", 66, 8224, 2, variant=variant, multiprocessors=1)
        params = "distinct" if variant == "gpt_oss" else "none"
        few: dict[str, Any] = {"variant": variant, "params": params, "multiprocessors": 1}
        yield _case("gaussian", 300, 96, 150, bias="distinct", **few)
        # As many experts as Kimi K2 has, a row at each: more than a byte counts.
        yield _case("gaussian", 384, 32, 384, routing="all-one-token", bias="distinct", **few)
    for (mode, edge), layout in product(COMPILED_POLICIES[:2], LAYOUT.words):
        yield _case(HALVED, 3, 64, 2, variant="silu", mode=mode, edge=edge, layout=layout)
    yield _case("gaussian", 0, 2880, 8)
    yield from _every_entry()
    yield from _estimated()
    yield _case("gaussian", 5, 64, 3, routing="empty-experts", poison=0)  # the fill's default


def _every_entry() -> Iterator[Case]:
    """Each entry has machine code of its own: each meets every fill, those of 128x4 in a case above."""
    for variant, (mode, edge), fill in product(VARIANT.words, COMPILED_POLICIES, PLAIN_GATES):
        entry: dict[str, Any] = {"variant": variant, "mode": mode, "edge": edge, "layout": "8x4"}
        bias = "none" if fill in ("fingerprint", "tiny") else "distinct"
        yield _case(fill, 17, 160, 3, bias=bias, **entry)
    listed = product(VARIANT.words, COMPILED_POLICIES, LAYOUT.words, ("none", "tiny"))
    for variant, (mode, edge), layout, bias in listed:
        # A lane looks for a row's expert among two offsets or three.
        yield _case(MIXED, 24, 96, 72, variant=variant, mode=mode, edge=edge, layout=layout, bias=bias)
    for variant, (mode, edge), layout in product(VARIANT.words, COMPILED_POLICIES, LAYOUT.words):
        # And among four, which are unrolled, or five.
        yield _case("gaussian", 5, 64, 136, variant=variant, mode=mode, edge=edge, layout=layout)
    for (mode, edge), layout in product(COMPILED_POLICIES, LAYOUT.words):
        policy: dict[str, Any] = {"mode": mode, "edge": edge, "layout": layout}
        yield _case(BIASED, 3, 128, 2, variant="silu", bias="distinct", **policy)
        for bias in ("none", "tiny"):
            yield _case(STEPS, 46, 192, 46, params="distinct", routing="all-one-token", bias=bias, **policy)


#: Rows that a chip of one multiprocessor has no CTA each for, which are made by estimates.
_ESTIMATED_ROWS = 80


def _estimated() -> Iterator[Case]:
    """Rows that are made by estimates, each entry with every fill: what is proved, and what is made again."""
    rows = _ESTIMATED_ROWS
    for variant, (mode, edge), layout in product(VARIANT.words, COMPILED_POLICIES, LAYOUT.words):
        entry: dict[str, Any] = {"variant": variant, "mode": mode, "edge": edge, "layout": layout, "multiprocessors": 1}
        if variant == "gpt_oss":
            own: dict[str, Any] = {"params": "distinct", "routing": "all-one-token", **entry}
            for bias in ("none", "tiny"):
                yield _case(BRACKETED, rows, 544, rows, bias=bias, poison=0x7F, **own)
            yield _case(BRACKETED_ROWS, rows, 544, rows, poison=0x7F, **own)
            yield _case("clamps", rows, 160, rows, **{**own, "params": "edges"})
            yield _case("tiny", rows, 160, rows, **{**own, "params": "open"})
        else:
            yield _case(BRACKETED_BY_BIAS, rows, 544, 2, bias="distinct", poison=0x7F, **entry)
        for fill in (*PLAIN_GATES, "zeros", LONELY, MIXED, RARE_SPECIALS):
            yield _case(fill, rows, 96, 3, **entry)
        yield _case("gaussian", rows, 96, 3, bias="distinct", **entry)
        yield _case("tiny", rows, 96, 3, bias="tiny", **entry)
    # The last figures and the last scales of which something is proved, so that little is made again.
    yield _case("gaussian", rows, 96, 3, params="bounds", multiprocessors=1)
    yield _case(SCALE_EDGES, rows, 96, 3, variant="silu", mode="floor", bias="distinct", multiprocessors=1)
    for m in (256, 257):  # the most rows that are not made by estimates if each has a CTA, and one more
        yield _case("gaussian", m, 96, 3)


def _full() -> Iterator[Case]:
    listed = product((1, 2, 3), VARIANT.words, COMPILED_POLICIES, PLAIN_GATES, LAYOUT.words)
    for seed, variant, (mode, edge), fill, layout in listed:
        yield _case(fill, 33, 2880, 16, seed=seed, variant=variant, mode=mode, edge=edge, layout=layout)
    for k in range(32, 1056, 32):
        yield _case("fingerprint", 9, k, 3)
        yield _case("fingerprint", 9, k, 3, variant="silu", layout="8x4")
    yield _case("gaussian", 2048, 2880, 128, bias="distinct", params="distinct")


def _second_limit(given: Arguments) -> Arguments:
    """A limit below 0 behind one of 0."""
    limit = given["swiglu_limit"].copy()
    limit[:2] = 0, -1
    return {"swiglu_limit": limit}


def _with_silu(parameter: str) -> Change:
    """One parameter of gpt-oss's activation with the other one."""
    absent = {f"swiglu_{name}": None for name in ("alpha", "beta", "limit") if name != parameter}
    return lambda given: {"variant": "silu", **absent}


#: The most gates of a row whose scales are counted in int32.
_WIDEST = (2**31 - 1) // 512 * 128

#: Damages of what both activations take.
GATE_CHANGES: Mapping[str, Change] = {
    "swiglu_limit-second": _second_limit,
    **{f"swiglu_{name}-with_silu": _with_silu(name) for name in ("alpha", "beta", "limit")},
}
#: And what is wrong with it.
WRONG_GATES: Mapping[str, str] = {
    "gate_up": f"{ARRAY} flat narrow no_columns",
    "offsets": f"{ARRAY} scalar one first last falling",
    "swiglu_alpha": f"{ARRAY} short with_silu",
    "swiglu_beta": f"{ARRAY} short with_silu",
    "swiglu_limit": f"{ARRAY} short with_silu negative nan second",
    "variant": "word",
    "fill": BYTE,
}
SAYS_OF_GATES: Mapping[str, str] = {
    "swiglu_limit-second": "swiglu_limit: found -1.0",
    **{
        f"swiglu_{name}-with_silu": f"swiglu_{name}: found float32 [3] with silu" for name in ("alpha", "beta", "limit")
    },
}
_CHANGES: Mapping[str, Change] = {
    **GATE_CHANGES,
    "offsets-of_widest_rows": lambda given: {"gate_up": huge((1, 2 * _WIDEST), given["gate_up"]), "offsets": [0, 1]},
    "offsets-of_many_experts": lambda given: {
        **dict.fromkeys(("swiglu_alpha", "swiglu_beta", "swiglu_limit", "bias")),
        "offsets": many_experts(),
    },
}


def _refuses() -> Iterator[Case]:
    says = {
        **SAYS_OF_GATES,
        "swiglu_limit-second": "swiglu_limit: found -1.0 for expert 1",
        **{"gate_up-many_rows": f"gate_up: found {MANY} rows", "gate_up-most_rows": "step past"},
        "offsets-of_many_experts": "padded scale rows",
        "gate_up-long_rows": "bytes of scale atoms",
    }
    yield from wrong_calls(_case("gaussian", 5, 64, 3, params="distinct", bias="distinct"), says, **_WRONG)


_WRONG = {
    **WRONG_GATES,
    "gate_up": f"{WRONG_GATES['gate_up']} many_rows most_rows long_rows",
    "offsets": f"{WRONG_GATES['offsets']} of_widest_rows of_many_experts",
    "bias": f"{ARRAY} short narrow",
    **dict.fromkeys(("mode", "edge", "layout"), "word"),
}


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    return mxfp8_grouped(case.shape.m, case.shape.k, case.shape.e)


ACTIVATION = Family(
    name="activation",
    about="SwiGLU of a first GEMM's rows in expert order, quantized to MXFP8 where the second GEMM reads it.",
    dtypes=("bf16",),
    sizes="mke",
    fills=GATE_FILLS,
    options=(
        *(VARIANT, MODE, EDGE, LAYOUT, GATE_PARAMS, GATE_BIAS),
        *(ROUTING, *RANKS, MULTIPROCESSORS, ROWS_BEFORE, POISON, WRONG),
    ),
    inputs=gate_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=("gate_up", "offsets", "bias", "alpha", "beta", "limit"),
        features=("bias", "alpha", "beta", "limit"),
        outputs={"codes": "float8_e4m3fn", "scales": "float8_e8m0fnu"},
        settings={"num_experts": "e", "variant": "variant", "mode": "mode", "edge": "edge", "layout": "layout"},
    ),
    sources=("activation",),
    host=("refmoe.cuda.activation",),
    check=_check,
    lacks=lacks_memory,
    group="moe",
)
