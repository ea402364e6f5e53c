"""The family `finalize`: the weighted sum of each token's rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.activation import POISONED_BF16
from refmoe.families.case import MULTIPROCESSORS, PROGRAMMATIC, Shape, word
from refmoe.families.choices import RANKS, ROUTED, ROUTING, check_choices, expert_ids
from refmoe.families.extents import sum_extents
from refmoe.families.family import POISON, Case, Contract, Expectation, Family, Fill, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, Layout, check_before, far_device, lacks_memory, of_rows
from refmoe.families.gemm.epilogue import special_bias
from refmoe.families.kept import chained
from refmoe.families.quantize import LOOPING_ROWS
from refmoe.families.stages import Plane, matrix_plane
from refmoe.families.vacuity import Limits, doubt_values
from refmoe.families.wrong import ARRAY, BYTE, WRONG, Change, called, huge, wrong_calls
from refmoe.numbers_as_text import VALUE_DTYPES, compared_text
from refmoe.reference.expand import build_permutation
from refmoe.reference.finalize import finalize

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

FloatArray = NDArray[np.float32]
_BF16 = np.dtype(ml_dtypes.bfloat16)


#: The second GEMM's output by choice, float32 [T, k, H], and weights float32 [T, k].
WeightedRows = tuple[FloatArray, FloatArray]


def _weights(draw: Draw, tokens: int, k: int) -> FloatArray:
    """Of all 24 significant bits, in [0.25, 1), no two alike."""
    bits = (125 << 23) + draw.integers(1 << 24, (tokens, k))
    return bits.astype(np.uint32).view(np.float32)


def _gaussian_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    return draw.normal((tokens, k, width)).astype(np.float32), _weights(draw, tokens, k)


def _cancelling_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Neighbouring ranks nearly cancel, so the order of the sum decides the result."""
    rows = draw.normal((tokens, k, width))
    size = np.ldexp(1.0, 20 * (np.arange(k) // 2 % 2 == 0))[None, :, None]
    sign = np.where(np.arange(k) % 2, -1.0, 1.0)[None, :, None]
    rows = (rows + 8) * size * sign
    return rows.astype(np.float32), np.full((tokens, k), 0.75, np.float32)


def _tied_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Two neighbours of BF16, halved and added: exactly between them. The other ranks weigh nothing."""
    patterns = 0x3F00 + draw.integers(0x200, (tokens, 1, width)) | draw.integers(2, (tokens, 1, width)) << 15
    rows = np.zeros((tokens, k, width), np.uint32)
    rows[:, :2] = np.concatenate([patterns, patterns + 1], axis=1)[:, :k]
    weights = np.zeros((tokens, k), np.float32)
    weights[:, :2] = 0.5
    return (rows << 16).view(np.float32), weights


def _wide_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Magnitudes over the whole of FP32, subnormals and overflowing sums included."""
    bits = draw.integers(0xFF0000, (tokens, k, width)) << 7 | draw.integers(2, (tokens, k, width)) << 31
    low = draw.integers(0x2800000, (tokens, k, width)) | bits & 0x80000000
    chosen = np.where(draw.integers(2, (tokens, 1, width)) == 0, low, bits)
    rows = (chosen & 0xFFFF0000).astype(np.uint32).view(np.float32)  # what BF16 has too
    return rows, _weights(draw, tokens, k)


def _special_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """NaN, Inf and zeros of either sign, between ordinary numbers."""
    rows, weights = _gaussian_rows(draw, tokens, k, width)
    specials = np.array([0x7FC00000, 0xFF800001, 0x7F800000, 0xFF800000, 0x80000000, 0], np.uint32).view(np.float32)
    chosen = specials[draw.integers(specials.size, rows.shape)]
    return np.where(draw.integers(6, rows.shape) == 0, chosen, rows), weights


#: Weights that no softmax makes: zeros, either sign, NaN, Inf, the least and the largest numbers, ordinary negatives.
_ODD_WEIGHTS = np.array(
    [0, 0x80000000, 0xBF8CCCCD, 0x7FC00000, 1, 0x807FFFFF, 0x7F800000, 0x7F7FFFFF, 0xBE99999A, 0x3F19999A], np.uint32
).view(np.float32)


def _weighted_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Odd weights, each alone beside ordinary ones, on rows among whose numbers are Inf and either zero."""
    rows, weights = _gaussian_rows(draw, tokens, k, width)
    rows[..., 1::7] = np.array([np.inf, -np.inf, 0.0, -0.0], np.float32)[draw.integers(4, rows[..., 1::7].shape)]
    places = np.arange(tokens)
    weights[places, draw.integers(k, (tokens,))] = _ODD_WEIGHTS[places % _ODD_WEIGHTS.size]
    return rows, weights


def _zero_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Nothing but zeros in most columns, all of them -0 in a third of those: a sum that begins with +0 has none.

    Other columns cancel to zero exactly, or have one number that is not zero.
    """
    kind = np.arange(width) % 5
    rows = np.where(draw.integers(2, (tokens, k, width)) == 0, np.float32(0), np.float32(-0.0))
    rows[..., kind == 0] = -0.0
    if k > 1:
        pair = draw.normal((tokens, (kind == 1).sum())).astype(np.float32)
        rows[:, 0, kind == 1], rows[:, 1, kind == 1] = pair, -pair
    rows[:, k - 1, kind == 2] = draw.normal((tokens, (kind == 2).sum()))
    return rows, np.full((tokens, k), 0.75, np.float32)


def _overflowing_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """The largest BF16 number, and about half a unit of its last place: on the middle it is Inf, below it is not."""
    rows = np.zeros((tokens, k, width), np.float32)
    steps = np.array([-(2.0**-7), 0.0, 2.0**-7, -1.0, 1.0])
    rows[:, 0] = np.ldexp(255 / 128, 127)
    rows[:, 1] = np.ldexp(1 + steps[draw.integers(steps.size, (tokens, width))], 119)
    rows *= np.where(draw.integers(2, (tokens, 1, width)) == 0, np.float32(1), np.float32(-1))
    weights = np.zeros((tokens, k), np.float32)
    weights[:, :2] = 1
    return rows, weights


def _subnormal_rows(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """Rows, products and sums about the least normal number, so that each of them is subnormal somewhere."""
    binades = draw.integers(6, (tokens, 1, width)) - 128
    rows = np.ldexp(draw.normal((tokens, k, width)), binades)
    return rows.astype(np.float32), _weights(draw, tokens, k)


def _tied_sums(draw: Draw, tokens: int, k: int, width: int) -> WeightedRows:
    """2^24, then in any one rank 1 or 3, of which the sum is a tie, and in the last rank the 2^24 taken away again.

    What is left is 0 or 4. Rounded toward zero it is 0 or 2. Either sign.
    """
    rows = np.zeros((tokens, k, width), np.float32)
    rows[:, 0], rows[:, -1] = 2.0**24, -(2.0**24)
    place = 1 + draw.integers(k - 2, (tokens, 1, width))
    np.put_along_axis(rows, place, (1 + 2 * draw.integers(2, place.shape)).astype(np.float32), axis=1)
    rows *= np.where(draw.integers(2, (tokens, 1, width)) == 0, np.float32(1), np.float32(-1))
    return rows, np.ones((tokens, k), np.float32)


# Too many zeros or specials would agree with a kernel that writes nothing or poisons everything.
_ORDINARY = Limits(zeros=0.02, nans=0.02, reason="sums of ordinary numbers are neither zero nor infinite")
_EXTREME = Limits(zeros=0.9, nans=0.9, reason="subnormals, infinities and NaN are what it is made of")


def sum_fill(name: str, catches: str, make: Any, limits: Limits = _ORDINARY, least_t: int = 1) -> Fill:
    """A fill that needs at least `least_t` ranks; `make(draw, tokens, k, width)` gives the rows and weights."""
    lack = f"a t of at least {least_t} for the fill {name}"
    return Fill(name, catches, make, limits, lambda case: None if case.shape.t >= least_t else lack)


#: Of `finalize_q8_1` too.
SUM_FILLS = Fill.by_name(
    sum_fill("gaussian", "rows, weights or bias of another token, choice or expert; a fused sum", _gaussian_rows),
    sum_fill("cancelling", "choices summed in another order", _cancelling_rows, least_t=3),
    sum_fill("rne-ties", "a cast that does not round to even", _tied_rows, least_t=2),
    sum_fill("wide-range", "subnormals flushed, sums in another format", _wide_rows, _EXTREME),
    sum_fill("specials", "NaN dropped, the sign of a zero", _special_rows, _EXTREME),
    sum_fill("weights", "a weight of 0 that skips its row, a negative or NaN one; subnormals flushed", _weighted_rows,
             dataclasses.replace(_EXTREME, zeros=0.5)),
    sum_fill("zeros", "a sum that does not begin with +0, so that it may end as -0", _zero_rows,
             Limits(zeros=0.9, reason="most sums are zero, whose sign is asked for")),
    sum_fill("overflow", "BF16 that saturates, or overflows too early or too late", _overflowing_rows,
             Limits(nans=0.8, reason="two sums of five or more round to Inf"), least_t=2),
    sum_fill("subnormal", "products or sums flushed to zero", _subnormal_rows),
    sum_fill("sum-ties", "a sum that rounds toward zero", _tied_sums,
             Limits(zeros=0.7, reason="of a tie with 1 nothing is left"), least_t=3),
)  # fmt: skip
#: Fills whose sums an ordinary bias would hide.
EDGE_SUMS = ("zeros", "overflow", "subnormal", "sum-ties")
PLAIN_SUMS = tuple(name for name in SUM_FILLS if name not in EDGE_SUMS)

#: No bias; ordinary numbers; zeros of either sign and subnormal numbers; a NaN, an infinity or the largest number for
#: one in four of the ordinary ones.
SUM_BIAS = word("bias", "none", "distinct", "tiny", "specials")

#: BF16 patterns: zeros, the least and the largest subnormal numbers and the least normal one, of either sign.
_TINY_BIAS = np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x807F, 0x80, 0x8080], np.uint16).view(_BF16)


def expert_bias(case: Case) -> NDArray[Any] | None:
    """BF16 [experts, k] as the option `bias` says, or None."""
    shape = (case.shape.e, case.shape.k)
    if case.bias in ("distinct", "specials"):
        ordinary = np.asarray(Draw("down-bias", case.seed).normal(shape).astype(_BF16))
        return special_bias(Draw("special-bias", case.seed), ordinary) if case.bias == "specials" else ordinary
    if case.bias == "tiny":
        return np.asarray(_TINY_BIAS[Draw("tiny-bias", case.seed).integers(_TINY_BIAS.size, shape)])
    return None


@dataclass(frozen=True, eq=False)
class TokenSums:
    """A layer's output [T, H] as bit patterns.

    Attributes:
        name: of the stage.
        dtype: "bf16" or "f32".
        width: H.
        rows: int32 [T*k], the row of each choice, -1 for none.
        ids: int32 [T, k], the experts.
    """

    name: str
    dtype: str
    width: int
    rows: NDArray[np.int32]
    ids: NDArray[np.int32]

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        token, column = divmod(index, self.width)
        tokens, top_k = self.ids.shape
        choices = [
            f"choice {choice} from {'nowhere' if row < 0 else f'row {row}'} of expert {self.ids[token, choice]}"
            for choice, row in enumerate(self.rows.reshape(top_k, tokens)[:, token])
        ]
        values = compared_text(kernel, reference, self.dtype)
        return f"token {token} column {column}: {values}", f"; token {token}: {', '.join(choices)}"

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Tokens by columns; see `refmoe.families.stages.HasPlane`."""
        return matrix_plane(shape, "token", "column")


def sum_inputs(case: Case) -> Inputs:
    """Rows in expert order with their maps; rows that no choice has hold NaN. The fill is one of the case's family."""
    tokens, width, top_k = case.shape.m, case.shape.k, case.shape.t
    ids = expert_ids(case)
    maps = build_permutation(ids, case.shape.e, case.first_expert)
    made, weights = case.family.fills[case.fill].make(Draw("rows", case.fill, case.seed), tokens, top_k, width)
    by_choice = made.transpose(1, 0, 2).reshape(tokens * top_k, width)
    rows = np.full(by_choice.shape, POISONED_BF16, np.uint32)
    rows <<= np.uint32(16)
    present = np.flatnonzero(maps.unpermuted_to_permuted >= 0)
    if case.fill == "weights":
        # A choice without a row is skipped, whatever its weight is.
        absent = maps.unpermuted_to_permuted.reshape(top_k, tokens).T < 0
        weights = np.where(absent, np.float32(np.nan), weights)
    rows[maps.unpermuted_to_permuted[present]] = by_choice[present].view(np.uint32)
    with np.errstate(over="ignore", invalid="ignore"):
        typed = rows.view(np.float32).astype(VALUE_DTYPES[case.dtype])
    return {
        "rows": typed,
        "unpermuted_to_permuted": maps.unpermuted_to_permuted,
        "weights": weights,
        "topk_ids": ids,
        "bias": expert_bias(case),
    }


def sum_arguments(case: Case, inputs: Inputs) -> dict[str, Any]:
    """What belongs to the bias."""
    return {
        "topk_ids": None if inputs["bias"] is None else inputs["topk_ids"],
        "bias": inputs["bias"],
        "first_expert": case.first_expert,
    }


def _expect(case: Case, inputs: Inputs) -> Expectation:
    """The reference's sums as bit patterns."""
    maps, ids = inputs["unpermuted_to_permuted"], inputs["topk_ids"]
    sums = finalize(
        inputs["rows"], maps, inputs["weights"], out_dtype=VALUE_DTYPES[case.out], **sum_arguments(case, inputs)
    )
    stage = TokenSums("out", case.out, case.shape.k, maps, ids)
    return Expectation({"out": _bits(sums)}, (stage,), doubt_sums(case, maps, sums, SUM_FILLS[case.fill].limits))


def doubt_sums(case: Case, maps: NDArray[np.int32], sums: NDArray[Any], limits: Limits) -> str | None:
    """Of the tokens that have an expert here; where none has, the case asks whether zeros are written at all."""
    present = (maps.reshape(case.shape.t, case.shape.m) >= 0).any(axis=0)
    return doubt_values(sums[present].astype(np.float32), limits)


#: Columns of a lane: the width of a row is a multiple of it.
COLUMNS = 8

#: Rows of 32 elements behind which these number 2^31.
FAR_SUMS = 1 << 26


def far_sums(case: Case, outputs: Mapping[str, int]) -> Layout:
    """Where rows lie in the buffers of a kernel of sums, of one choice a token; `outputs` are bytes of a row.

    What lies in front sums the first row of all, which is zero.
    """
    before, width = int(case.rows_before), case.shape.k
    size = 4 if case.dtype == "f32" else 2
    return of_rows(
        case,
        {
            **{"rows": width * size, "shared": width * size},
            **{"unpermuted_to_permuted": 4, "weights": 4, "topk_ids": 4, **outputs},
        },
        values={"unpermuted_to_permuted": lambda rows: np.where(rows < 0, rows, rows + before).astype(np.int32)},
    )


#: What the kernels in front write: rows, maps, and the router's choices.
SUMMED = ("rows", "unpermuted_to_permuted", "weights", "topk_ids")


def check_sums_case(case: Case) -> None:
    """Refuse choices and numbers of rows in front that do not fit."""
    check_choices(case)
    check_before(case)


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    """Launch the kernel."""
    from refmoe.cuda.finalize import finalize as launch

    far = far_device(case, device, far_sums(case, {"out": case.shape.k * (4 if case.out == "f32" else 2)}))
    out = called(case, launch)(
        inputs["rows"],
        inputs["unpermuted_to_permuted"],
        inputs["weights"],
        device=chained(case, far, SUMMED),
        out_dtype=VALUE_DTYPES[case.out],
        fill=case.poison,
        **sum_arguments(case, inputs),
    )
    return {"out": _bits(out)}


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


# --- cases ----------------------------------------------------------------------------------------------------------

#: Of rows and of outputs.
_DTYPES = ("bf16", "f32")


def _case(fill: str, m: int, k: int, e: int, t: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return FINALIZE.case(fill, Shape(m, k, e, t), dtype, seed, **options)


def _quick() -> Iterator[Case]:
    yield _case("gaussian", 1, 2880, 128, 4, bias="distinct")  # decode
    for dtype, fill in product(_DTYPES, PLAIN_SUMS):
        yield _case(fill, 5, 416, 8, 4, dtype=dtype)
        yield _case(fill, 5, 416, 8, 4, dtype=dtype, out="f32", bias="distinct")
    yield _case("gaussian", 3, 32, 4, 1, bias="distinct")  # a row of four threads
    yield _case("cancelling", 6, 160, 16, 11, bias="distinct")  # ranks in three rounds, the last one short
    yield _case("gaussian", 9, 416, 4, 3, bias="distinct", first_expert=4, ranks=3)
    yield _case("gaussian", 3, 416, 4, 2, routing="elsewhere", first_expert=4, ranks=2)
    yield _case("gaussian", 9, 416, 12, 2, routing="empty-experts", bias="distinct", poison=0x7F)


def _default() -> Iterator[Case]:
    yield _case("gaussian", 4, 96, 1, 1, bias="distinct", ranks=2, first_expert=1)  # a rank of one expert
    for dtype, out in product(_DTYPES, _DTYPES):  # odd weights of choices that have no row here
        yield _case("weights", 120, 96, 8, 8, dtype, out=out, bias="distinct", ranks=2)
        yield _case("weights", 120, 96, 8, 8, dtype, out=out, ranks=2)
    for k, e, t in ((2880, 32, 4), (2880, 128, 4), (7168, 256, 8)):
        for m in (1, 2, 8):
            yield _case("gaussian", m, k, e, t, bias="distinct" if k == 2880 else "none")
            yield _case("cancelling", m, k, e // 4, t, first_expert=e // 4, ranks=4)
    for dtype, fill, out in product(_DTYPES, PLAIN_SUMS, _DTYPES):
        yield _case(fill, 17, 736, 16, 6, dtype=dtype, out=out, bias="distinct", poison=0x7F)
    for fill, dtype in product(EDGE_SUMS, _DTYPES):
        yield _case(fill, 9, 160, 8, 3, dtype=dtype, out="f32", poison=0x7F)
        yield _case(fill, 9, 160, 8, 3, dtype=dtype, bias="tiny" if fill != "overflow" else "none")
    for dtype, out in product(_DTYPES, _DTYPES):
        for bias in ("none", "tiny"):
            yield _case("sum-ties", 9, 160, 16, 11, dtype=dtype, out=out, bias=bias)
        # The second of four ranks: most choices have no row.
        yield _case("gaussian", 7, 96, 3, 5, dtype=dtype, out=out, first_expert=3, ranks=4)
        for bias in ("none", "distinct"):
            yield _case("weights", 7, 96, 3, 5, dtype=dtype, out=out, first_expert=3, ranks=4, bias=bias)
    for k in (8, 24, 264, 1000):  # of a lane's columns, but of no block
        yield _case("gaussian", 3, k, 6, 2, bias="distinct", dtype="f32" if k % 3 else "bf16")
    for k in (224, 256, 288, 4064, 4096, 4128):  # a warp's slice and sixteen of them, and a block less and more
        yield _case("gaussian", 2, k, 12, 3, bias="distinct")
    yield _case("gaussian", 1, 12_288, 4, 2, bias="distinct")  # the widest of models, and 48 slices
    for dtype, out in product(VALUE_DTYPES, VALUE_DTYPES):  # a bias that is a NaN or an infinity
        yield _case("specials", 9, 160, 8, 3, dtype=dtype, out=out, bias="specials")
    # More tokens than the resident warps of a slice, which then walk on: one slice, twelve of them, two in each entry.
    yield _case("gaussian", LOOPING_ROWS, 32, 8, 2, bias="distinct")
    yield _case("gaussian", 460, 2880, 8, 2, bias="distinct")
    for dtype, out in product(_DTYPES, _DTYPES):
        yield _case("gaussian", 2752, 288, 8, 1, dtype=dtype, out=out, bias="distinct")
    for dtype, out in product(_DTYPES, _DTYPES):  # elements past 2^31
        yield _case("gaussian", 5, 32, 3, 1, dtype=dtype, out=out, bias="distinct", rows_before=FAR_SUMS)
        # Past 2^32, where an index without a sign wraps too.
        yield _case("gaussian", 2, 256, 3, 1, dtype=dtype, out=out, bias="distinct", rows_before=FAR_SUMS // 4)
    # All tokens at one expert; more than 65,536 of them.
    yield _case("gaussian", 65_600, 32, 4, 1, bias="distinct", routing="same-experts")
    yield _case("gaussian", 2, 8224, 4, 3, dtype="f32")  # a row wider than two rounds of a CTA
    yield _case("cancelling", 3, 96, 40, 32)  # as many ranks as there may be
    for dtype in _DTYPES:  # each of which has a bias
        yield _case("gaussian", 3, 96, 40, 32, dtype=dtype, bias="distinct")
    # The last and the first of four ranks, of which a token chooses more experts than each has.
    for dtype, first_expert in zip(_DTYPES, (9, 0), strict=True):
        yield _case("gaussian", 7, 96, 3, 5, dtype=dtype, bias="distinct", first_expert=first_expert, ranks=4)
    # As many experts as Kimi K2 has, more than a byte counts; more slices than CTAs that would be resident.
    yield _case("gaussian", 48, 32, 384, 8, bias="distinct", routing="all-one-token")
    yield _case("gaussian", 9, 2880, 8, 2, bias="distinct", multiprocessors=1)
    yield _case("gaussian", 5, 32, 600, 3, bias="distinct", routing="same-experts")
    yield _case("gaussian", 6, 32, 8, 2, bias="distinct", routing="unset")
    yield _case("gaussian", 0, 2880, 8, 2)
    for dtype, out in product(_DTYPES, _DTYPES):
        yield _case("gaussian", 2, 96, 4, 2, dtype=dtype, out=out, bias="distinct", programmatic=1)
    # Each entry has machine code of its own, with and without a bias: each meets every fill, in two rounds of ranks.
    for dtype, out, fill, bias in product(_DTYPES, _DTYPES, PLAIN_SUMS, ("none", "distinct")):
        yield _case(fill, 9, 160, 16, 11, dtype=dtype, out=out, bias=bias)


def _full() -> Iterator[Case]:
    listed = product((1, 2, 3), _DTYPES, SUM_FILLS, _DTYPES, ("none", "distinct"))
    for seed, dtype, fill, out, bias in listed:
        yield _case(fill, 33, 2880, 16, 4, dtype=dtype, seed=seed, out=out, bias=bias)
    for t in range(3, 33):
        yield _case("cancelling", 9, 416, 40, t, bias="distinct")
    for k in range(32, 1056, 32):
        yield _case("gaussian", 9, k, 8, 4, bias="distinct")
    yield _case("gaussian", 2048, 2880, 128, 4, bias="distinct")


#: Damages of what all sums take.
SUM_CHANGES: Mapping[str, Change] = {
    "topk_ids-alone": lambda given: {"bias": None},
    # 2^32 - 1 apart: in 32 bits the difference is expert 1.
    "topk_ids-all_below": lambda given: {
        "topk_ids": np.full_like(given["topk_ids"], -(1 << 31)),
        "first_expert": (1 << 31) - 1,
    },
    "weights-past_32": lambda given: {"weights": np.zeros((given["weights"].shape[0], 33), np.float32)},
    "rows-long": lambda given: {"rows": huge((given["rows"].shape[0], (1 << 31) - 8), given["rows"]), "bias": None},
}
#: And what is wrong with it.
WRONG_SUMS: Mapping[str, str] = {
    "rows": f"{ARRAY} flat short narrow no_columns long",
    "unpermuted_to_permuted": f"{ARRAY} short below past",
    "weights": f"{ARRAY} flat no_columns past_32",
    "fill": BYTE,
}
#: Of the bias that is added first.
WRONG_BIAS: Mapping[str, str] = {
    "topk_ids": f"{ARRAY} none alone short negative huge past all_below",
    "bias": f"{ARRAY} flat no_rows narrow",
    "first_expert": "negative fraction int32",
}
SAYS_OF_SUMS: Mapping[str, str] = {"rows-long": "columns and those of one more slice"}


def _refuses() -> Iterator[Case]:
    base = _case("gaussian", 3, 64, 4, 2, bias="distinct")
    yield from wrong_calls(base, SAYS_OF_SUMS, **WRONG_SUMS, **WRONG_BIAS, out_dtype="word none number")


FINALIZE = Family(
    name="finalize",
    about="Each token's rows, biased, weighted and summed in the order of its choices.",
    dtypes=_DTYPES,
    sizes="mket",
    fills=SUM_FILLS,
    options=(
        *(word("out", *_DTYPES, fixed=True), SUM_BIAS),
        *(ROUTING, *RANKS, MULTIPROCESSORS, PROGRAMMATIC, ROWS_BEFORE, POISON, WRONG),
    ),
    inputs=sum_inputs,
    expect=_expect,
    run=_run,
    extents=sum_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=SUM_CHANGES,
    contract=Contract(
        inputs=("rows", "unpermuted_to_permuted", "weights", "topk_ids", "bias"),
        features=("bias",),
        outputs={"out": "case.out"},
        settings={**ROUTED, "out_dtype": "out"},
    ),
    sources=("finalize",),
    host=("refmoe.cuda.finalize",),
    check=check_sums_case,
    lacks=lacks_memory,
    block=COLUMNS,
    group="moe",
)
