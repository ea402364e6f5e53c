"""The family `activation`: SwiGLU of the first GEMM's rows, quantized to MXFP8."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import Shape, refused, word
from refmoe.families.choices import RANKS, ROUTING, check_choices, expert_offsets
from refmoe.families.expand import LAYOUT
from refmoe.families.family import POISON, Case, Contract, Expectation, Family, Fill, Inputs, Outputs
from refmoe.families.quantize import COMPILED_POLICIES, EDGE, LOOPING_ROWS, MODE, settings_of
from refmoe.families.stages import Codes, GroupedScales
from refmoe.families.vacuity import Limits, doubt_codes
from refmoe.formats import MX_BLOCK
from refmoe.reference.activation import ALPHA, BETA, LIMIT, swiglu
from refmoe.reference.quantize import quantize_mxfp8

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_BF16 = np.dtype(ml_dtypes.bfloat16)
POISONED_BF16 = 0x7FC1  # a NaN that no operation makes

# --- fills ----------------------------------------------------------------------------------------------------------
# make(draw, rows, width) gives (gates, ups), float [rows, width] each, to be rounded to BF16.

#: Clamps that the cases give to experts, in turn; BF16 has all of them, so that a value can lie on one.
_CLAMPS = np.array([7, 0.5, 5.5, np.inf, 3], np.float32)


def _gaussian_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    return draw.normal((rows, width)) * 3, draw.normal((rows, width)) * 3


def _limit_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """On a clamp, one unit of BF16 to either side of it, and far beyond, of either sign."""
    limits = _CLAMPS[np.isfinite(_CLAMPS)]
    patterns = (limits.view(np.uint32) >> 16).astype(np.int64)
    shape = (2, rows, width)
    near = patterns[draw.integers(limits.size, shape)] + draw.integers(3, shape) - 1
    far = patterns[0] + draw.integers(0x700, shape)
    chosen = np.where(draw.integers(8, shape) == 0, far, near) | draw.integers(2, shape) << 15
    values = chosen.astype(np.uint16).view(_BF16)
    return values[0], values[1]


#: Where 1 / (1 + exp) changes its nature, for a factor of 1 and of 1.702: overflow of the exponential, a sum that
#: rounds to 1 or to the exponential, ordinary figures.
_SIGMOID_EDGES = (-1000.0, -104.0, -88.75, -61.0, -52.25, -51.0, -17.0, -9.75, -1.0, 0.0, 1.0, 9.75, 17.0, 88.75, 104.0)


def _edge_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Every block near one edge, so that results of the same size share a scale."""
    blocks = np.arange(rows * width // MX_BLOCK)
    centers = np.array(_SIGMOID_EDGES)[blocks % len(_SIGMOID_EDGES)]
    gates = np.repeat(centers, MX_BLOCK).reshape(rows, width) + draw.normal((rows, width)) / 2
    return gates, draw.normal((rows, width))


def _tiny_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Results from below FP32's least subnormal number up to a little above the least scale."""
    exponents = draw.integers(24, (rows, width // MX_BLOCK)) + 117
    scale = np.repeat(np.ldexp(1.0, -exponents), MX_BLOCK, axis=1)
    return draw.normal((rows, width)) * scale, draw.normal((rows, width))


def _fingerprint_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A scale byte of its own for every block as far as there are any, 100 of them."""
    blocks = np.arange(rows * width // MX_BLOCK).reshape(rows, width // MX_BLOCK)
    scale = np.repeat(np.ldexp(1.0, -(blocks * 37 % 100)), MX_BLOCK, axis=1)
    return (1 + np.abs(draw.normal((rows, width)))) * scale, draw.normal((rows, width)) + 2


def _special_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """One special in four blocks of five, NaN or Inf of either sign, as a gate or as an up."""
    gates, ups = _gaussian_gates(draw, rows, width)
    blocks = np.arange(rows * width // MX_BLOCK)
    places = blocks * MX_BLOCK + draw.integers(MX_BLOCK, blocks.shape)
    for kind, special in enumerate((np.nan, -np.nan, np.inf, -np.inf)):
        for side, values in enumerate((gates, ups)):
            values.reshape(-1)[places[blocks % 10 == 2 * kind + side]] = special
    return gates, ups


def _midpoint_gates(draw: Draw, rows: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """One gate a row, and no up: the case chooses an expert's beta so that the result lies between two codes."""
    gates = draw.normal((rows, 1))
    return np.repeat(gates + np.copysign(0.25, gates), width, axis=1), np.zeros((rows, width))


#: The fill whose betas `_midpoint_betas` chooses.
MIDPOINTS = "midpoints"

GATE_FILLS = Fill.by_name(
    Fill("gaussian", "gate and up swapped, a rounding more or less, quantized from BF16", _gaussian_gates),
    Fill(
        "clamps",
        "a clamp that is missing, one-sided, or another expert's",
        _limit_gates,
        Limits(zeros=0.5, saturated=0.6, scales=1, reason="many results lie on a clamp, or are its sigmoid's tail"),
    ),
    Fill(
        "sigmoid-edges",
        "an exponential that overflows to NaN, flushes or is clamped",
        _edge_gates,
        Limits(zeros=0.5, reason="a gate whose exponential overflows gives a zero"),
    ),
    Fill(
        "tiny",
        "subnormals flushed or kept against the policy, a scale below 0",
        _tiny_gates,
        Limits(zeros=0.95, reason="most results lie below the least code"),
    ),
    Fill(
        "fingerprint",
        "scales of another row, block or expert",
        _fingerprint_gates,
        Limits(scales=32, reason="every block has a scale of its own"),
    ),
    Fill(
        MIDPOINTS,
        "one rounding more or less: the last bit before quantization decides the code",
        _midpoint_gates,
        Limits(saturated=0.3, scales=1, reason="results of an expert are alike"),
    ),
    Fill(
        "specials",
        "NaN dropped by a clamp, Inf taken for a number",
        _special_gates,
        Limits(zeros=1.0, saturated=0.7, nans=0.9, reason="most blocks hold a NaN or an Inf"),
    ),
)
#: Fills that go with every variant and parameters.
PLAIN_GATES = tuple(name for name in GATE_FILLS if name != MIDPOINTS)

VARIANT = word("variant", "gpt_oss", "silu", fixed=True)
#: An alpha, a beta and a limit of each expert, or those of gpt-oss.
PARAMS = word("params", "none", "distinct")


# --- inputs, expectation, run ---------------------------------------------------------------------------------------


def gate_inputs(case: Case) -> Inputs:
    """Gates and ups as the variant lays them out, rows in expert order; rows of no expert hold NaN."""
    rows, width, experts = case.shape.m, case.shape.k, case.shape.e
    draw = Draw("gates", case.fill, case.variant, case.seed)
    offsets = expert_offsets(case)
    with np.errstate(over="ignore"):
        gates, ups = (side.astype(_BF16) for side in GATE_FILLS[case.fill].make(draw, rows, width))
    gate_up = _laid_out(case, gates, ups)
    gate_up.view(np.uint16)[offsets[-1] :] = POISONED_BF16
    bias = None
    if case.get("bias", "none") == "distinct":
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
        "limit": _CLAMPS[experts % _CLAMPS.size],
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


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the kernel."""
    from refmoe.cuda.activation import swiglu_quantize

    result = swiglu_quantize(
        inputs["gate_up"],
        inputs["offsets"],
        device=device,
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
    if case.fill == MIDPOINTS and (case.params, case.bias) != ("distinct", "none"):
        raise refused("fill", case.fill, "params=distinct and no bias with it: it chooses each expert's beta")
    check_choices(case)


# --- cases ----------------------------------------------------------------------------------------------------------

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
    yield _case("clamps", 30, 736, 15, params="distinct", routing="all-one-token", ranks=2)
    yield _case("gaussian", LOOPING_ROWS, 32, 8)
    yield _case("gaussian", 2, 8224, 2, bias="distinct")  # a row wider than a CTA, by one block
    yield _case("gaussian", 0, 2880, 8)


def _full() -> Iterator[Case]:
    listed = product((1, 2, 3), VARIANT.words, COMPILED_POLICIES, PLAIN_GATES, LAYOUT.words)
    for seed, variant, (mode, edge), fill, layout in listed:
        yield _case(fill, 33, 2880, 16, seed=seed, variant=variant, mode=mode, edge=edge, layout=layout)
    for k in range(32, 1056, 32):
        yield _case("fingerprint", 9, k, 3)
        yield _case("fingerprint", 9, k, 3, variant="silu", layout="8x4")
    yield _case("gaussian", 2048, 2880, 128, bias="distinct", params="distinct")


ACTIVATION = Family(
    name="activation",
    about="SwiGLU of a first GEMM's rows in expert order, quantized to MXFP8 where the second GEMM reads it.",
    dtypes=("bf16",),
    sizes="mke",
    fills=GATE_FILLS,
    options=(VARIANT, MODE, EDGE, LAYOUT, PARAMS, word("bias", "none", "distinct"), ROUTING, *RANKS, POISON),
    inputs=gate_inputs,
    expect=_expect,
    run=_run,
    cases={"quick": _quick, "default": _default, "full": _full},
    contract=Contract(
        inputs=("gate_up", "offsets", "bias", "alpha", "beta", "limit"),
        features=("bias", "alpha", "beta", "limit"),
        outputs={"codes": "float8_e4m3fn", "scales": "float8_e8m0fnu"},
        settings={"num_experts": "e", "variant": "variant", "mode": "mode", "edge": "edge", "layout": "layout"},
    ),
    sources=("activation",),
    host=("refmoe.cuda.activation",),
    check=_check,
    group="moe",
)
