"""The family `finalize_q8_1`: the weighted sum of each token's rows, quantized to Q8_1. Its data is that of `finalize`.

Beside what decides a sum, its fills have what decides a quantizer: quotients halfway between two codes, and scales of
blocks in all binades.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import MULTIPROCESSORS, PROGRAMMATIC, Shape, word
from refmoe.families.choices import RANKS, ROUTED, ROUTING, check_choices
from refmoe.families.extents import q8_1_rows
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Fill, Inputs, Outputs
from refmoe.families.finalize import (
    SAYS_OF_SUMS,
    SUM_BIAS,
    SUM_CHANGES,
    SUM_FILLS,
    SUMMED,
    WRONG_BIAS,
    WRONG_SUMS,
    WeightedRows,
    sum_arguments,
    sum_fill,
    sum_inputs,
)
from refmoe.families.kept import chained
from refmoe.families.q8_1 import BlockHalves, Int8Codes, doubt_q8, q8_outputs
from refmoe.families.vacuity import Limits
from refmoe.families.wrong import LONG, WRONG, Change, called, huge, wrong_calls
from refmoe.formats import Q8_1
from refmoe.reference.finalize_q8_1 import finalize_q8_1
from refmoe.reference.q8_1 import VARIANTS as QUANTIZERS
from refmoe.reference.q8_1 import Q8Tensor

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_BLOCK = Q8_1.block
_DTYPES = ("bf16", "f32")


def _halved(values: NDArray[np.float64], k: int) -> WeightedRows:
    """Rows [T, k, H] whose weighted sum is exactly `values` [T, H]: half of each of the first two; others weigh 0."""
    tokens, width = values.shape
    rows = np.zeros((tokens, k, width), np.float32)
    rows[:, :2] = values[:, None]
    weights = np.zeros((tokens, k), np.float32)
    weights[:, :2] = 0.5
    return rows, weights


def _scales(draw: Draw, tokens: int, width: int, low: int, count: int) -> NDArray[np.float64]:
    """A power of two for each block from 2^low on, of `count` in turn from where a token starts."""
    start = draw.integers(count, (tokens, 1))
    exponent = low + (start + np.arange(width // _BLOCK) * 5) % count
    return np.repeat(np.ldexp(1.0, exponent), _BLOCK, axis=1)


def _tied_quotients(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Sums halfway between two codes, which BF16 holds up to 63.5 scales. The largest of a block is 127 of them."""
    values = (draw.integers(63, (tokens, width)) + 0.5) * np.where(draw.integers(2, (tokens, width)), 1, -1)
    values[:, ::_BLOCK] = 127
    return _halved(values * _scales(draw, tokens, width, -9, 19), k)


#: A weight, and a number whose product with it lies a quarter of an ulp below 1.75.
_TIED_WEIGHT, _TIED_NUMBER = np.uint32(0x3FB33333).view(np.float32), 1.25


def _tied_terms(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Terms of one rank that round to halfway between two codes; the block's largest, 127 of 1/2, is another rank's."""
    rows = np.zeros((tokens, k, width), np.float32)
    weights = np.full((tokens, k), np.float32(1))
    token, first = np.arange(tokens), np.arange(width) % _BLOCK == 0
    rows[token, token % k] = np.where(first, 0, _TIED_NUMBER) * np.where(draw.integers(2, (tokens, width)), 1, -1)
    rows[token, (token + 1) % k] = np.where(first, 63.5, 0)
    weights[token, token % k] = _TIED_WEIGHT
    return rows, weights


def _fingerprints(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """A scale of its own for each block among its 19 neighbours, and sums of 8 significant bits."""
    values = (128 + draw.integers(128, (tokens, width))) / 128 * np.where(draw.integers(2, (tokens, width)), 1, -1)
    return _halved(values * _scales(draw, tokens, width, -8, 19), k)


def _wide_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Blocks whose sums run through the binades of FP32, subnormals included: d overflows FP16, or is 0 there."""
    blocks = tokens * width // _BLOCK
    exponent = np.arange(blocks) * 83 % 250 - 146
    size = np.repeat(np.ldexp(1.0, exponent), _BLOCK).reshape(tokens, width)
    return _halved(draw.normal((tokens, width)) * size, k)


def _ordered_sums(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Blocks whose sum shows in which order it was made: what cancels is next to nothing of what it hides.

    Eight lanes have four columns each, and each column is summed over the lanes at distances 4, 2 and 1. Two lanes at
    one of these distances cancel. Beside either of them any other number is lost.
    """
    lanes = np.arange(_BLOCK // 4)
    blocks = tokens * width // _BLOCK
    values = np.ldexp(1.0 + 2 * draw.integers(4, (blocks, lanes.size, 4)), -13)
    first = draw.integers(lanes.size, (blocks, 1, 4))
    second = first ^ np.array([1, 2, 4])[draw.integers(3, first.shape)]
    np.put_along_axis(values, first, 2.0**13, axis=1)
    np.put_along_axis(values, second, -(2.0**13), axis=1)
    return _halved(values.reshape(tokens, width), k)


#: What blocks of `specials` hold, in turn: (what fills a block, what one column holds instead); None is ordinary sums.
_KINDS: tuple[tuple[float | None, float | None], ...] = (
    *((None, None), (None, np.nan), (0.0, 0.0), (None, np.inf), (None, -np.inf)),
    *((-0.0, -0.0), (np.nan, np.nan), (0.0, np.nan), (-0.0, 0.5)),
)


def _special_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Sums of NaN, Inf and zeros of either sign, all over a block or between ordinary ones: 9 kinds of block."""
    values = draw.normal((tokens * width // _BLOCK, _BLOCK))
    column = draw.integers(_BLOCK, (len(values),))
    for block, row in enumerate(values):
        whole, one = _KINDS[block % len(_KINDS)]
        if whole is not None:
            row[:] = whole
        if one is not None:
            row[column[block]] = one
    return _halved(values.reshape(tokens, width), k)


_ORDINARY = Limits(zeros=0.05, reason="few sums of a normal distribution are below half a unit of their block's scale")
_WIDE = Limits(zeros=0.15, scales=8, reason="only where 127 over the largest overflows are many codes zero")
_SPECIAL = Limits(zeros=0.8, reason="a block with an Inf, or of zeros or NaN alone, has codes of 0")
_SCALES = Limits(zeros=0.05, scales=8, reason="neighbours have scales of their own")

_CANCELLED = Limits(zeros=0.95, scales=1, reason="what remains of large numbers is zero, or far below them")
_EDGES = Limits(zeros=0.95, scales=1, reason="sums of zero, infinities and subnormal numbers are what it is made of")
_PLAIN = ("gaussian", "cancelling")
#: Those of `finalize` at the ends of FP32.
_ODD = ("zeros", "subnormal", "weights")
#: Those that ask for one operation of a sum.
_SUMS = ("sum-ties", "ordered-sums", "tied-terms")

_FILLS = Fill.by_name(
    *(dataclasses.replace(SUM_FILLS[name], limits=_ORDINARY) for name in _PLAIN),
    *(dataclasses.replace(SUM_FILLS[name], limits=_EDGES) for name in _ODD),
    sum_fill("ties", "halves to even or toward zero; the other quantizer", _tied_quotients, _SCALES, least_t=2),
    sum_fill("fingerprint", "scales, sums or codes of another block or token", _fingerprints, _SCALES, least_t=2),
    sum_fill("wide-range", "subnormals flushed, sums in another format", _wide_rows, _WIDE, least_t=2),
    sum_fill("specials", "NaN not dropped from the maximum, Inf, the sign of a zero sum", _special_rows, _SPECIAL,
             least_t=2),
    dataclasses.replace(SUM_FILLS["sum-ties"], limits=_CANCELLED),
    sum_fill("ordered-sums", "a block's sum that is made in another order", _ordered_sums, _CANCELLED, least_t=2),
    sum_fill("tied-terms", "a term that rounds toward zero", _tied_terms, Limits(scales=1, reason="terms are alike"),
             least_t=2),
)  # fmt: skip
_TELLING = tuple(name for name in _FILLS if name not in (*_ODD, *_SUMS))


def _expect(case: Case, inputs: Inputs) -> Expectation:
    maps = inputs["unpermuted_to_permuted"]
    tensor = finalize_q8_1(
        inputs["rows"], maps, inputs["weights"], quantizer=case.quantizer, **sum_arguments(case, inputs)
    )
    blocks = case.shape.k // _BLOCK
    stages = (Int8Codes("codes", tensor.d), BlockHalves("d", blocks), BlockHalves("s", blocks))
    return Expectation(q8_outputs(tensor), stages, doubt_q8_sums(case, maps, tensor, _FILLS[case.fill].limits))


def doubt_q8_sums(case: Case, maps: NDArray[np.int32], tensor: Q8Tensor, limits: Limits) -> str | None:
    """Of the tokens that have an expert here; where none has, the case asks whether zeros are written at all."""
    present = (maps.reshape(case.shape.t, case.shape.m) >= 0).any(axis=0)
    return doubt_q8(Q8Tensor(tensor.codes[present], tensor.d[present], tensor.s[present]), limits)


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.finalize_q8_1 import finalize_q8_1 as launch

    tensor = called(case, launch)(
        inputs["rows"],
        inputs["unpermuted_to_permuted"],
        inputs["weights"],
        device=chained(case, device, SUMMED),
        quantizer=case.quantizer,
        fill=case.poison,
        **sum_arguments(case, inputs),
    )
    return q8_outputs(tensor)


# --- cases ----------------------------------------------------------------------------------------------------------

#: Tokens by 32: more slices than 16 CTAs on each of 170 multiprocessors take at once.
_LOOPING_TOKENS = 2800


def _case(fill: str, m: int, k: int, e: int, t: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return FINALIZE_Q8_1.case(fill, Shape(m, k, e, t), dtype, seed, **options)


def _quick() -> Iterator[Case]:
    for quantizer in QUANTIZERS:
        yield _case("gaussian", 1, 2880, 128, 4, dtype="f32", bias="distinct", quantizer=quantizer)  # decode
        for dtype, fill in product(_DTYPES, _TELLING):
            bias = "distinct" if fill in ("gaussian", "cancelling") else "none"
            yield _case(fill, 5, 416, 8, 4, dtype=dtype, bias=bias, quantizer=quantizer)
    yield _case("gaussian", 3, 32, 4, 1, bias="distinct")  # a row of eight threads
    yield _case("cancelling", 6, 160, 16, 11, bias="distinct")  # choices in three rounds, the last one short
    yield _case("gaussian", 9, 416, 4, 3, bias="distinct", first_expert=4, ranks=3)
    yield _case("gaussian", 3, 416, 4, 2, routing="elsewhere", first_expert=4, ranks=2)
    yield _case("gaussian", 9, 416, 12, 2, routing="empty-experts", bias="distinct", poison=0x7F)


def _default() -> Iterator[Case]:
    yield _case("gaussian", 4, 96, 1, 1, bias="distinct", ranks=2, first_expert=1)  # a rank of one expert
    for dtype, quantizer in product(("bf16", "f32"), QUANTIZERS):  # odd weights of choices that have no row here
        yield _case("weights", 24, 96, 8, 4, dtype, quantizer=quantizer, bias="distinct", ranks=3)
    for k, e, t in ((2880, 32, 4), (7168, 256, 8)):
        for m in (1, 2, 8):
            yield _case("gaussian", m, k, e, t, dtype="f32", bias="distinct" if k == 2880 else "none")
            yield _case("cancelling", m, k, e // 4, t, dtype="f32", ranks=4)  # the first of four ranks
    for dtype, fill, quantizer in product(_DTYPES, _TELLING, QUANTIZERS):
        yield _case(fill, 17, 736, 16, 6, dtype=dtype, quantizer=quantizer, poison=0x7F)
    for fill, dtype, quantizer in product(_ODD, _DTYPES, QUANTIZERS):
        bias = "none" if fill == "weights" else "tiny"
        yield _case(fill, 9, 160, 8, 3, dtype=dtype, bias=bias, quantizer=quantizer)
    yield _case("gaussian", 65_600, 32, 4, 1, dtype="f32", bias="distinct", routing="same-experts")
    yield _case("gaussian", _LOOPING_TOKENS, 32, 8, 2, dtype="f32", bias="distinct")
    for dtype in _DTYPES:  # a row wider than sixteen CTAs
        yield _case("gaussian", 2, 8224, 8, 2, dtype=dtype, bias="distinct")
    yield _case("cancelling", 3, 96, 40, 32)  # as many choices as there may be
    for dtype in _DTYPES:  # each of which has a bias
        yield _case("gaussian", 3, 96, 40, 32, dtype=dtype, bias="distinct")
    # The last of four ranks, of which a token chooses more experts than each has.
    yield _case("gaussian", 7, 96, 3, 5, bias="distinct", first_expert=9, ranks=4)
    # Rows of several slices, more of them than CTAs; and as many experts as Kimi K2 has, more than a byte counts.
    yield _case("gaussian", 24, 1120, 8, 2, dtype="f32", bias="distinct", multiprocessors=1)
    yield _case("gaussian", 48, 32, 384, 8, bias="distinct", routing="all-one-token", multiprocessors=1)
    for quantizer in QUANTIZERS:
        yield _case("gaussian", 0, 2880, 8, 2, quantizer=quantizer)
        yield _case("gaussian", 9, 416, 8, 2, routing="padded", bias="distinct", quantizer=quantizer)
        yield _case("fingerprint", 4, 416, 8, 2, routing="all-one-token", quantizer=quantizer, poison=0x7F)
    for dtype, quantizer in product(_DTYPES, QUANTIZERS):
        yield _case("gaussian", 2, 96, 4, 2, dtype=dtype, bias="distinct", quantizer=quantizer, programmatic=1)
    # Each entry has machine code of its own, with and without a bias: each meets every fill, in two rounds of choices.
    for fill, dtype, quantizer, bias in product(_TELLING, _DTYPES, QUANTIZERS, ("none", "distinct")):
        yield _case(fill, 9, 160, 16, 11, dtype=dtype, quantizer=quantizer, bias=bias)
    for fill, dtype, quantizer, bias in product(_SUMS, _DTYPES, QUANTIZERS, ("none", "tiny")):
        yield _case(fill, 5, 160, 16, 11, dtype=dtype, quantizer=quantizer, bias=bias)


def _full() -> Iterator[Case]:
    for seed, dtype, fill, quantizer in product((1, 2, 3), _DTYPES, _FILLS, QUANTIZERS):
        yield _case(fill, 33, 2880, 16, 4, dtype=dtype, seed=seed, quantizer=quantizer)
    for t in range(3, 33):
        yield _case("gaussian", 9, 416, 40, t, dtype="f32", bias="distinct")
    for k in range(_BLOCK, 1056, _BLOCK):
        yield _case("fingerprint", 9, k, 8, 4, dtype="f32")


_CHANGES: Mapping[str, Change] = {
    **SUM_CHANGES,
    "rows-half_block": lambda given: {"rows": given["rows"][:, :56].copy(), "bias": given["bias"][:, :56].copy()},
    "rows-many_elements": lambda given: {
        "rows": huge((given["rows"].shape[0], LONG), given["rows"]),
        "bias": None,
        "topk_ids": None,
    },
}


def _refuses() -> Iterator[Case]:
    wrong = {**WRONG_SUMS, **WRONG_BIAS, "quantizer": "word", "rows": f"{WRONG_SUMS['rows']} half_block many_elements"}
    says = {**SAYS_OF_SUMS, "rows-many_elements": "elements of the output"}
    yield from wrong_calls(_case("gaussian", 3, 64, 4, 2, bias="distinct"), says, **wrong)


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    return q8_1_rows(case.shape.m, case.shape.k)


FINALIZE_Q8_1 = Family(
    name="finalize_q8_1",
    about="Each token's rows, biased, weighted, summed in the order of its choices, and quantized to Q8_1.",
    dtypes=_DTYPES,
    sizes="mket",
    fills=_FILLS,
    options=(
        word("quantizer", *QUANTIZERS, fixed=True),
        *(SUM_BIAS, ROUTING, *RANKS, MULTIPROCESSORS, PROGRAMMATIC, POISON, WRONG),
    ),
    inputs=sum_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=("rows", "unpermuted_to_permuted", "weights", "topk_ids", "bias"),
        features=("bias",),
        outputs={"codes": "int8", "d": "float16", "s": "float16"},
        settings={**ROUTED, "quantizer": "quantizer"},
    ),
    sources=("finalize_q8_1",),
    host=("refmoe.cuda.finalize_q8_1",),
    check=check_choices,
    group="dp4a",
)
