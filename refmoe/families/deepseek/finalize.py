"""The family `deepseek_finalize`: the weighted sum of each token's rows, and the shared expert's row added to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.activation import POISONED_BF16
from refmoe.families.case import MULTIPROCESSORS, Shape, word
from refmoe.families.choices import RANKS, ROUTED, ROUTING, expert_ids
from refmoe.families.extents import sum_extents
from refmoe.families.family import POISON, Case, Contract, Expectation, Family, Fill, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, far_device, lacks_memory
from refmoe.families.finalize import (
    COLUMNS,
    EDGE_SUMS,
    FAR_SUMS,
    PLAIN_SUMS,
    SAYS_OF_SUMS,
    SUM_CHANGES,
    SUM_FILLS,
    WRONG_SUMS,
    TokenSums,
    check_sums_case,
    doubt_sums,
    far_sums,
    sum_fill,
)
from refmoe.families.quantize import LOOPING_ROWS
from refmoe.families.wrong import ARRAY, WRONG, Change, called, huge, wrong_calls
from refmoe.numbers_as_text import VALUE_DTYPES
from refmoe.reference.deepseek.finalize import ORDERS, finalize_shared
from refmoe.reference.expand import build_permutation

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

F32 = NDArray[np.float32]

#: The factor on the routed sum by its word: none, DeepSeek-V3's, one of all 24 significant bits, and one below 0.
SCALES: Mapping[str, np.float32] = MappingProxyType(
    {
        "1": np.float32(1),
        "2.5": np.float32(2.5),
        "third": np.float32(1 / 3),
        "minus": np.float32(-0.75),
        "zero": np.float32(0),
    }
)

# --- fills ----------------------------------------------------------------------------------------------------------
# Of the routed rows they are those of `finalize`; what the shared expert has depends on the fill.


def _midway_rows(draw: Draw, tokens: int, k: int, width: int) -> tuple[F32, F32]:
    """Routed sums a little beside the middle of two BF16 numbers, which the shared row brings to the other side.

    The first rank has a BF16 number, the second half a unit of its last place and a bit; all others weigh nothing.
    """
    patterns = 0x3F80 + draw.integers(0x80, (tokens, 1, width))
    rows = np.zeros((tokens, k, width), np.float32)
    rows[:, :1] = (patterns.astype(np.uint32) << 16).view(np.float32)
    rows[:, 1:2] = np.float32(2.0**-8) * (1 + (draw.integers(3, (tokens, 1, width)) - 1) / 64).astype(np.float32)
    weights = np.zeros((tokens, k), np.float32)
    weights[:, :2] = 1
    return rows, weights


_FILLS = Fill.by_name(
    *SUM_FILLS.values(),
    sum_fill("midway", "a rounding to BF16 before the shared row is added, or none", _midway_rows, least_t=2),
)


def _shared(case: Case, routed: F32) -> F32:
    """The shared expert's rows, float32 [T, H]; `routed` are the rows by choice, [T, k, H]."""
    draw, shape = Draw("shared", case.fill, case.seed), (case.shape.m, case.shape.k)
    values = np.asarray(draw.normal(shape).astype(np.float32), np.float32)
    if case.fill == "cancelling":
        # As large as the large choices and of the other sign: added first, it would leave another rounding.
        return np.asarray((-routed[:, 0] * np.float32(0.75) + values).astype(np.float32))
    if case.fill in ("rne-ties", *EDGE_SUMS):
        return np.asarray(np.where(draw.integers(2, shape) == 0, np.float32(0), np.float32(-0.0)), np.float32)
    if case.fill == "midway":
        steps = (draw.integers(3, shape) - 1) * 2.0**-9 + (draw.integers(2, shape) - 0.5) * 2.0**-13
        return np.asarray(steps.astype(np.float32))
    if case.fill == "wide-range":
        return np.asarray(routed[:, -1][:, ::-1], np.float32)
    if case.fill == "specials":
        specials = np.array([0x7FC00000, 0xFF800001, 0x7F800000, 0xFF800000, 0x80000000, 0], np.uint32)
        chosen = specials.view(np.float32)[draw.integers(specials.size, shape)]
        return np.where(draw.integers(4, shape) == 0, chosen, values)
    return values


# --- inputs, expectation, run ---------------------------------------------------------------------------------------


def _inputs(case: Case) -> Inputs:
    """Rows in the order of the experts with their maps; rows that no choice has hold NaN."""
    tokens, width, top_k = case.shape.m, case.shape.k, case.shape.t
    ids = expert_ids(case)
    maps = build_permutation(ids, case.shape.e, case.first_expert)
    made, weights = _FILLS[case.fill].make(Draw("rows", case.fill, case.seed), tokens, top_k, width)
    by_choice = np.ascontiguousarray(made.transpose(1, 0, 2)).reshape(tokens * top_k, width)
    rows = np.full(by_choice.shape, POISONED_BF16 << 16, np.uint32)
    present = np.flatnonzero(maps.unpermuted_to_permuted >= 0)
    rows[maps.unpermuted_to_permuted[present]] = by_choice[present].view(np.uint32)
    dtype = VALUE_DTYPES[case.dtype]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        typed = rows.view(np.float32).astype(dtype)
        shared = None if case.shared == "none" else np.ascontiguousarray(_shared(case, made).astype(dtype))
    return {
        "rows": typed,
        "unpermuted_to_permuted": maps.unpermuted_to_permuted,
        "weights": weights,
        "shared": shared,
        "scale": np.array([SCALES[case.scale]], np.float32),
        "topk_ids": ids,
    }


def _arguments(case: Case, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = (inputs["rows"], inputs["unpermuted_to_permuted"], inputs["weights"], inputs["shared"])
    return given, {"scale": float(inputs["scale"][0]), "order": case.order, "out_dtype": VALUE_DTYPES[case.out]}


def _expect(case: Case, inputs: Inputs) -> Expectation:
    """The reference's sums as bit patterns."""
    given, settings = _arguments(case, inputs)
    sums = finalize_shared(*given, **settings)
    maps = inputs["unpermuted_to_permuted"]
    stage = TokenSums("out", case.out, case.shape.k, maps, inputs["topk_ids"])
    return Expectation({"out": _bits(sums)}, (stage,), doubt_sums(case, maps, sums, _FILLS[case.fill].limits))


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the kernel."""
    from refmoe.cuda.deepseek.finalize import finalize_shared as launch

    given, settings = _arguments(case, inputs)
    place = far_device(case, device, far_sums(case, {"out": case.shape.k * (4 if case.out == "f32" else 2)}))
    return {"out": _bits(called(case, launch)(*given, device=place, fill=case.poison, **settings))}


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


# --- cases ----------------------------------------------------------------------------------------------------------

_DTYPES = ("bf16", "f32")
_PLAIN = (*PLAIN_SUMS, "midway")


def _case(fill: str, m: int, k: int, e: int, t: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return DEEPSEEK_FINALIZE.case(fill, Shape(m, k, e, t), dtype, seed, **options)


def _quick() -> Iterator[Case]:
    yield _case("gaussian", 1, 7168, 256, 8)  # decode
    for number, (dtype, fill, order) in enumerate(product(_DTYPES, _PLAIN, ORDERS), 1):
        yield _case(
            fill, 5, 416, 8, 4, dtype=dtype, order=order, out=_DTYPES[number // 2 % 2], scale=tuple(SCALES)[number % 3]
        )
    yield _case("gaussian", 3, 32, 4, 1)  # a row of four threads
    yield _case("cancelling", 6, 160, 16, 11)  # ranks in three rounds, the last one short
    yield _case("gaussian", 9, 416, 4, 3, ranks=3)  # the first of three ranks
    yield _case("specials", 7, 416, 4, 2, routing="elsewhere", first_expert=4, ranks=2)  # the shared expert alone
    yield _case("gaussian", 9, 416, 12, 2, routing="empty-experts", shared="none", scale="2.5", poison=0x7F)


def _default() -> Iterator[Case]:
    for m in (2, 8, 33):
        for order in ORDERS:
            yield _case("gaussian", m, 7168, 256, 8, order=order)
        yield _case("cancelling", m, 7168, 64, 8, first_expert=64, ranks=4, scale="2.5")
    yield _case("midway", 4, 7168, 256, 8, order="bf16")
    for dtype, fill, out in product(_DTYPES, _PLAIN, _DTYPES):
        yield _case(fill, 11, 736, 16, 6, dtype=dtype, out=out, poison=0x7F)
    for (number, fill), dtype in product(enumerate(EDGE_SUMS), _DTYPES):
        yield _case(fill, 9, 160, 8, 3, dtype=dtype, out="f32", order=ORDERS[number % 2])
        yield _case(fill, 9, 160, 8, 3, dtype=dtype, shared="none", scale="1" if fill == "overflow" else "third")
    yield _case("gaussian", 65_600, 32, 4, 1, routing="same-experts")  # all at one expert
    for dtype in _DTYPES:  # elements past 2^31
        yield _case("gaussian", 5, 32, 3, 1, dtype=dtype, rows_before=FAR_SUMS)
        yield _case("gaussian", 2, 256, 3, 1, dtype=dtype, rows_before=FAR_SUMS // 4)  # and past 2^32
    yield _case("gaussian", LOOPING_ROWS, 32, 8, 2)
    yield _case("gaussian", 2, 8224, 4, 3, dtype="f32")  # a row wider than two rounds of a CTA
    for dtype in _DTYPES:  # and than three
        yield _case("gaussian", 2, 12_320, 4, 3, dtype=dtype)
    yield _case("cancelling", 3, 96, 40, 32)  # as many ranks as there may be
    for k in (8, 24, 264, 1000):  # of a thread's columns, but of no block
        yield _case("gaussian", 3, k, 6, 2, dtype="f32" if k % 3 else "bf16", scale="2.5")
    yield _case("gaussian", 66, 4128, 3, 1, multiprocessors=1)  # rows wider than a CTA, and more of them than CTAs
    for order in ORDERS:
        yield _case("cancelling", 3, 96, 8, 3, order=order, scale="minus")
        # Without a shared row: the rounding to BF16 stays, and so does -0, here of tokens whose experts are elsewhere.
        for dtype in _DTYPES:
            yield _case("gaussian", 3, 96, 8, 3, dtype=dtype, order=order, out="f32", shared="none")
            rank: dict[str, Any] = {"routing": "elsewhere", "first_expert": 4, "ranks": 2}
            yield _case("gaussian", 2, 96, 4, 2, dtype=dtype, order=order, scale="minus", shared="none", **rank)
    # A factor below 0 makes -0 of a sum of zeros, which a shared row of -0 keeps.
    for dtype, order in product(_DTYPES, ORDERS):
        yield _case("zeros", 3, 96, 8, 3, dtype=dtype, order=order, scale="minus", out=dtype)
        yield _case("specials", 3, 96, 8, 3, dtype=dtype, order=order, scale="zero")
    yield _case("gaussian", 0, 7168, 8, 2)
    # Each entry has machine code of its own: each meets every fill.
    for dtype, out, order, fill in product(_DTYPES, _DTYPES, ORDERS, _PLAIN):
        yield _case(fill, 9, 160, 16, 11, dtype=dtype, out=out, order=order, scale="third")
    # As many ranks as there may be, of which some choices have no row.
    for dtype, out, order in product(_DTYPES, _DTYPES, ORDERS):
        yield _case("gaussian", 5, 96, 30, 32, ranks=2, dtype=dtype, out=out, order=order)


def _full() -> Iterator[Case]:
    listed = product((1, 2, 3), _DTYPES, _FILLS, _DTYPES, ORDERS, ("added", "none"))
    for seed, dtype, fill, out, order, shared in listed:
        yield _case(fill, 17, 1440, 16, 4, dtype=dtype, seed=seed, out=out, order=order, shared=shared, scale="third")
    for t in range(3, 33):
        yield _case("cancelling", 9, 416, 40, t)
    yield _case("gaussian", 2048, 7168, 256, 8)


#: Rows that are too long are refused before a shared row is looked at.
_CHANGES: Mapping[str, Change] = {
    "weights-past_32": SUM_CHANGES["weights-past_32"],
    "rows-long": lambda given: {"rows": huge((given["rows"].shape[0], (1 << 31) - 8), given["rows"])},
}


def _refuses() -> Iterator[Case]:
    yield from wrong_calls(
        _case("gaussian", 3, 64, 4, 2),
        SAYS_OF_SUMS,
        **WRONG_SUMS,
        shared=f"{ARRAY} short narrow",
        scale="nan infinite text flag",
        order="word",
        out_dtype="word number",
    )


DEEPSEEK_FINALIZE = Family(
    name="deepseek_finalize",
    about="Each token's rows weighted and summed in the order of its choices, and the shared expert's row added.",
    dtypes=_DTYPES,
    sizes="mket",
    fills=_FILLS,
    options=(
        word("out", *_DTYPES, fixed=True),
        word("order", *ORDERS, fixed=True),
        word("scale", *SCALES),
        word("shared", "added", "none"),
        *(ROUTING, *RANKS, MULTIPROCESSORS, ROWS_BEFORE, POISON, WRONG),
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=sum_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=("rows", "unpermuted_to_permuted", "weights", "shared", "scale", "topk_ids"),
        features=("shared",),
        outputs={"out": "case.out"},
        settings={**ROUTED, "out_dtype": "out", "order": "order"},
    ),
    sources=("deepseek_finalize",),
    host=("refmoe.cuda.deepseek.finalize",),
    invariance="deepseek_moe",
    check=check_sums_case,
    lacks=lacks_memory,
    block=COLUMNS,
    group="deepseek",
)
