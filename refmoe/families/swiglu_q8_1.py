"""The family `swiglu_q8_1`: SwiGLU of the first product's rows, quantized to Q8_1. Its data is that of `activation`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.draw import Draw
from refmoe.families.activation import (
    CLAMPED,
    GATE_CHANGES,
    GATE_FILLS,
    GATE_PARAMS,
    MIDPOINTS,
    PLAIN_GATES,
    SAYS_OF_GATES,
    TIES,
    VARIANT,
    WRONG_GATES,
    check_params,
    far_gates,
    gate_inputs,
)
from refmoe.families.case import MULTIPROCESSORS, PROGRAMMATIC, Shape, word
from refmoe.families.choices import RANKS, ROUTING, check_choices
from refmoe.families.extents import q8_1_rows
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, check_before, far_device, lacks_memory
from refmoe.families.fills.bracketed_gates import (
    BRACKETED,
    BRACKETED_BY_BIAS,
    BRACKETED_ROWS,
    RARE_SPECIALS,
    SCALE_EDGES,
)
from refmoe.families.fills.sigmoid_gates import STEPS, figures_in_q8_1, steps_in_q8_1
from refmoe.families.fills.tied_gates import (
    BIASED,
    SIGMOID_TIES,
    lacks_figures,
    q8_1_steps,
    q8_1_ties,
    tied_fill,
)
from refmoe.families.kept import chained
from refmoe.families.q8_1 import BlockHalves, Int8Codes, q8_outputs
from refmoe.families.vacuity import Limits, doubt_values
from refmoe.families.wrong import WRONG, called, wrong_calls
from refmoe.formats import Q8_1
from refmoe.reference.fp32 import BF16
from refmoe.reference.q8_1 import VARIANTS as QUANTIZERS
from refmoe.reference.swiglu_q8_1 import swiglu_q8_1

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_OTHERS = (
    *(MIDPOINTS, CLAMPED, TIES, BIASED, STEPS, RARE_SPECIALS),
    *(BRACKETED, BRACKETED_BY_BIAS, BRACKETED_ROWS, SCALE_EDGES),
)
_FILLS = {name: fill for name, fill in GATE_FILLS.items() if name not in _OTHERS}
_FILLS[SIGMOID_TIES] = tied_fill(GATE_FILLS["gaussian"])
_FILLS[STEPS] = dataclasses.replace(
    _FILLS[SIGMOID_TIES], name=STEPS, catches=GATE_FILLS[STEPS].catches, lack=lacks_figures
)

#: Results of SwiGLU are uneven: many are far below their block's largest.
_LIMITS = Limits(zeros=0.5, reason="most results of a block may be far below its largest")
_EXTREME = Limits(zeros=0.95, reason="most blocks have a NaN, an Inf, or one result far above the others")
_ALONE = Limits(zeros=0.98, reason="a block has one result, or a NaN beside it")
_UNEVEN = ("specials", "tiny", "sigmoid-edges", "clamps", "zeros")


def _inputs(case: Case) -> Inputs:
    """Rows in BF16; or in FP32, with all of its bits, where the first product does not round to 16 bits."""
    tied = case.fill in (SIGMOID_TIES, STEPS)
    given = dict(gate_inputs(dataclasses.replace(case, fill="gaussian") if tied else case))
    if tied and case.dtype == "bf16":
        pairs = np.stack(steps_in_q8_1(case.shape.m, case.shape.k), axis=2)
        given |= {"gate_up": pairs.reshape(case.shape.m, -1).astype(BF16), **figures_in_q8_1(case.shape.e)}
    elif tied:
        given["gate_up"] = (q8_1_steps if case.fill == STEPS else q8_1_ties)(case.variant, case.shape.m, case.shape.k)
    elif case.dtype == "f32":
        bits = given["gate_up"].view(np.uint16).astype(np.uint32) << 16
        ordinary = (bits & 0x7F800000) < 0x7F800000
        if case.fill == "zeros":
            ordinary &= (bits & 0x7FFFFFFF) > 0
        low = Draw("gates-low", case.fill, case.seed).integers(1 << 16, bits.shape).astype(np.uint32)
        given["gate_up"] = np.where(ordinary, bits | low, bits).astype(np.uint32).view(np.float32)
    return {name: given[name] for name in ("gate_up", "offsets", "alpha", "beta", "limit")}


def _expect(case: Case, inputs: Inputs) -> Expectation:
    parameters = {name: inputs[name] for name in ("alpha", "beta", "limit")}
    tensor = swiglu_q8_1(
        inputs["gate_up"],
        inputs["offsets"],
        variant=case.variant,
        quantizer=case.quantizer,
        fill=case.poison,
        **parameters,
    )
    blocks = case.shape.k // Q8_1.block
    stages = (Int8Codes("codes", tensor.d), BlockHalves("d", blocks), BlockHalves("s", blocks))
    limits = _ALONE if case.fill == "lonely" else _EXTREME if case.fill in _UNEVEN else _LIMITS
    return Expectation(q8_outputs(tensor), stages, doubt_values(tensor.codes[: inputs["offsets"][-1]], limits))


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.swiglu_q8_1 import swiglu_q8_1 as launch

    k = case.shape.k
    far = far_device(case, device, far_gates(case, {"codes": k, "d": k // 16, "s": k // 16}, shares=False))
    tensor = called(case, launch)(
        inputs["gate_up"],
        inputs["offsets"],
        device=chained(case, far, ("gate_up", "offsets")),
        variant=case.variant,
        quantizer=case.quantizer,
        swiglu_alpha=inputs["alpha"],
        swiglu_beta=inputs["beta"],
        swiglu_limit=inputs["limit"],
        fill=case.poison,
    )
    return q8_outputs(tensor)


def _check(case: Case) -> None:
    check_params(case)
    check_choices(case)
    check_before(case)


def _case(fill: str, m: int, k: int, e: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return SWIGLU_Q8_1.case(fill, Shape(m, k, e), dtype, seed, **options)


def _quick() -> Iterator[Case]:
    yield _case("gaussian", 4, 2880, 128)  # decode
    yield _case("gaussian", 4, 2880, 128, dtype="f32")
    for dtype in ("bf16", "f32"):
        for variant in ("gpt_oss", "silu"):
            for fill in PLAIN_GATES:
                quantizer = QUANTIZERS[fill in ("fingerprint", "specials")]
                yield _case(fill, 5, 416, 3, dtype=dtype, variant=variant, quantizer=quantizer)
    yield _case("clamps", 12, 160, 6, params="distinct", routing="all-one-token", ranks=2)
    yield _case("fingerprint", 9, 416, 9, routing="empty-experts", params="distinct", poison=0x7F)
    for quantizer in QUANTIZERS:
        yield _case("gaussian", 3, 416, 4, routing="elsewhere", first_expert=4, ranks=2, quantizer=quantizer)


def _default() -> Iterator[Case]:
    yield _case("fingerprint", 5, 96, 1, ranks=2, first_expert=1)  # a rank of one expert
    for dtype in ("bf16", "f32"):
        for quantizer in QUANTIZERS:
            yield _case("gaussian", 32, 2880, 32, dtype=dtype, quantizer=quantizer)
            yield _case("fingerprint", 8, 2048, 128, dtype=dtype, variant="silu", quantizer=quantizer)
    for number, (dtype, fill) in enumerate(product(("bf16", "f32"), ("clamps", "zeros", "gaussian"))):
        quantizer = QUANTIZERS[number % 2]
        yield _case(
            fill, 70, 160, 35, dtype=dtype, params="edges", routing="all-one-token", ranks=2, quantizer=quantizer
        )
        yield _case("zeros", 9, 416, 3, dtype=dtype, variant="silu", quantizer=quantizer, seed=number)
    for params in ("alpha", "beta", "limit"):  # of which the others are gpt-oss's
        yield _case("clamps", 6, 96, 3, params=params)
        # And more experts than nine bits count.
        yield _case("gaussian", 5, 64, 600, dtype="f32", routing="same-experts", params=params)
    for dtype, fill, quantizer in product(("bf16", "f32"), ("zeros", "specials"), QUANTIZERS):
        yield _case(fill, 42, 160, 42, dtype=dtype, params="closed", routing="all-one-token", quantizer=quantizer)
    yield _case("halved", 3, 64, 2, variant="silu")
    for dtype, variant, quantizer in product(("bf16", "f32"), ("gpt_oss", "silu"), QUANTIZERS):
        yield _case("lonely", 8, 512, 3, dtype=dtype, variant=variant, quantizer=quantizer)
    for k in (1120, 1024, 1056, 992):  # a CTA's columns, and a block less and more
        yield _case("fingerprint", 2, k, 2, dtype="f32")
    yield _case("gaussian", 65_600, 32, 3, routing="same-experts")  # all at one expert
    for dtype in ("bf16", "f32"):  # as many gates and ups as the host code takes, 2^31 and none
        yield _case("fingerprint", 5, 64, 3, dtype=dtype, rows_before=(1 << 24) - 128)
    yield _case("gaussian", 11008, 32, 8)  # more rows than CTAs
    yield _case("gaussian", 2, 2080, 2, dtype="f32")  # a row wider than a CTA, by one block
    for dtype in ("bf16", "f32"):  # and than sixteen of them
        yield _case("fingerprint", 2, 8224, 2, dtype=dtype)
    # Rows of several slices, more of them than CTAs; and as many experts as Kimi K2 has, more than a byte counts.
    yield _case("fingerprint", 40, 1120, 3, multiprocessors=1)
    yield _case("gaussian", 384, 32, 384, params="distinct", routing="all-one-token", multiprocessors=1)
    for quantizer in QUANTIZERS:
        yield _case("gaussian", 0, 2880, 8, quantizer=quantizer)
        yield _case("fingerprint", 9, 416, 4, params="distinct", routing="padded", quantizer=quantizer)
    # Each entry has machine code of its own: each meets every fill.
    for dtype, variant, quantizer, fill in product(("bf16", "f32"), ("gpt_oss", "silu"), QUANTIZERS, PLAIN_GATES):
        yield _case(fill, 17, 160, 3, dtype=dtype, variant=variant, quantizer=quantizer)
    # And loops over its slices.
    for dtype, variant, quantizer in product(("bf16", "f32"), ("gpt_oss", "silu"), QUANTIZERS):
        yield _case("fingerprint", 36, 544, 3, dtype=dtype, variant=variant, quantizer=quantizer, multiprocessors=1)
    for dtype, variant, quantizer in product(("bf16", "f32"), ("gpt_oss", "silu"), QUANTIZERS):
        yield _case("gaussian", 3, 96, 2, dtype=dtype, variant=variant, quantizer=quantizer, programmatic=1)
    for variant, quantizer in product(("gpt_oss", "silu"), QUANTIZERS):
        yield _case(SIGMOID_TIES, 14, 32, 2, dtype="f32", variant=variant, quantizer=quantizer)
        yield _case(STEPS, 46, 32, 2, dtype="f32", variant=variant, quantizer=quantizer)
    for quantizer in QUANTIZERS:  # of BF16 gates an alpha of each expert chooses the product
        yield _case(STEPS, 46, 128, 46, params="distinct", routing="all-one-token", quantizer=quantizer)
    yield _case("gaussian", 1, 416, 3)  # a single slice
    # A lane looks for a row's expert among two offsets or three; or among four, which are unrolled, or five.
    for dtype, variant, quantizer, experts in product(("bf16", "f32"), ("gpt_oss", "silu"), QUANTIZERS, (72, 136)):
        yield _case("gaussian", 5, 64, experts, dtype=dtype, variant=variant, quantizer=quantizer)
    yield _case("gaussian", 5, 64, 3, first_expert=3, ranks=2, poison=0)  # the fill's default


def _full() -> Iterator[Case]:
    for seed in (1, 2, 3):
        for dtype in ("bf16", "f32"):
            for variant in ("gpt_oss", "silu"):
                for fill in PLAIN_GATES:
                    for quantizer in QUANTIZERS:
                        yield _case(fill, 33, 2880, 16, dtype=dtype, seed=seed, variant=variant, quantizer=quantizer)


def _refuses() -> Iterator[Case]:
    wrong = {**WRONG_GATES, "gate_up": f"{WRONG_GATES['gate_up']} giga_rows", "quantizer": "word"}
    says = {**SAYS_OF_GATES, "gate_up-giga_rows": "elements"}
    yield from wrong_calls(_case("gaussian", 5, 64, 3, params="distinct"), says, **wrong)


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    return q8_1_rows(case.shape.m, case.shape.k)


SWIGLU_Q8_1 = Family(
    name="swiglu_q8_1",
    about="SwiGLU of a first product's rows in expert order, quantized to Q8_1 for the second.",
    dtypes=("bf16", "f32"),
    sizes="mke",
    fills=_FILLS,
    options=(
        *(VARIANT, word("quantizer", *QUANTIZERS, fixed=True), GATE_PARAMS),
        *(ROUTING, *RANKS, MULTIPROCESSORS, PROGRAMMATIC, ROWS_BEFORE, POISON, WRONG),
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=GATE_CHANGES,
    contract=Contract(
        inputs=("gate_up", "offsets", "alpha", "beta", "limit"),
        features=("alpha", "beta", "limit"),
        outputs={"codes": "int8", "d": "float16", "s": "float16"},
        settings={"num_experts": "e", "variant": "variant", "quantizer": "quantizer"},
    ),
    sources=("swiglu_q8_1",),
    host=("refmoe.cuda.swiglu_q8_1",),
    check=_check,
    lacks=lacks_memory,
    group="dp4a",
)
