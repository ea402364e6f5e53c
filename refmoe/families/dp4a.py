"""The family `dp4a_gemv`: fills, the expectation, the run, the cases.

What decides such a kernel: which expert a token names, which scale a block has, the nibbles of FP4, the smallest scale
bytes, and the order in which the blocks of a row are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import PROGRAMMATIC, SCHEDULES, Shape, refused, word
from refmoe.families.choices import RANKS, ROUTINGS, TWICE, check_choices, expert_ids
from refmoe.families.extents import ELEMENT_BYTES
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Fill, Inputs, Outputs, needs_k
from refmoe.families.far import EXPERTS_BEFORE, Layout, check_before, far_device, lacks_memory
from refmoe.families.gemm.epilogue import special_bias
from refmoe.families.kept import chained
from refmoe.families.stages import Plane, matrix_plane
from refmoe.families.vacuity import Limits, doubt_values
from refmoe.families.wrong import ARRAY, BYTE, WRONG, Arguments, Change, called, huge, wrong_calls
from refmoe.formats import Q8_1
from refmoe.numbers_as_text import VALUE_DTYPES, bits_text, distance_text, number_text
from refmoe.reference.dp4a import MAX_TOKENS, dp4a_gemv
from refmoe.reference.expand import build_permutation
from refmoe.reference.layout import pack_fp4
from refmoe.reference.q8_1 import Q8Tensor, quantize_q8_1
from refmoe.reference.tensor import MXTensor

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_BLOCK = Q8_1.block
_IDENTITY, _SCALE_NAN = 127, 0xFF
_ONE_HALF_BITS = 0x3C00  # 1.0 in FP16

# --- fills ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """Extents of the operands: `rows` activations, `experts` times `n` weight rows, `blocks` of 32 each."""

    rows: int
    experts: int
    n: int
    blocks: int


@dataclass(frozen=True, eq=False)
class Operands:
    """Activations: `codes` int8 [rows, K] and `d` FP16 bits [rows, blocks]; weights: packed `weights` and `scales`."""

    codes: NDArray[np.int8]
    d: NDArray[np.uint16]
    weights: NDArray[np.uint8]
    scales: NDArray[np.uint8]


def _any_weights(draw: Draw, size: Size) -> NDArray[np.uint8]:
    """Every FP4 code equally often, two a byte, [experts, n, blocks * 16]."""
    shape = (size.experts, size.n, size.blocks * 2)
    return draw.words(int(np.prod(shape))).view(np.uint8).reshape(*shape[:2], -1)


def _any_codes(draw: Draw, size: Size) -> NDArray[np.int8]:
    """Every int8 equally often, -128 among them."""
    return draw.words(size.rows * size.blocks * 4).view(np.int8).reshape(size.rows, -1)


def _scales_around(draw: Draw, size: Size, middle: int, reach: int) -> NDArray[np.uint8]:
    shape = (size.experts, size.n, size.blocks)
    return (middle - reach + draw.integers(2 * reach + 1, shape)).astype(np.uint8)


def _d_around(draw: Draw, size: Size, octaves: int) -> NDArray[np.uint16]:
    """FP16 numbers of all mantissas in 2^-octaves .. 2^octaves."""
    bits = _ONE_HALF_BITS - (octaves << 10) + draw.integers(2 * octaves << 10, (size.rows, size.blocks))
    return bits.astype(np.uint16)


def _gaussian(draw: Draw, size: Size) -> Operands:
    """Activations as q8_1_quantize makes them of normal numbers."""
    tensor = quantize_q8_1(draw.normal((size.rows, size.blocks * _BLOCK)).astype(np.float32))
    d = tensor.d.view(np.uint16)
    return Operands(tensor.codes, d, _any_weights(draw, size), _scales_around(draw, size, 122, 3))


def _all_codes(draw: Draw, size: Size) -> Operands:
    """Every int8 with every FP4 code, both zeros and -128 among them, under equal scales."""
    scales = np.full((size.experts, size.n, size.blocks), _IDENTITY, np.uint8)
    d = np.full((size.rows, size.blocks), _ONE_HALF_BITS, np.uint16)
    return Operands(_any_codes(draw, size), d, _any_weights(draw, size), scales)


def _fingerprint(draw: Draw, size: Size) -> Operands:
    """A scale for each expert, weight row and block that differs from its neighbours', and so for the activations."""
    expert, row, block = np.ogrid[: size.experts, : size.n, : size.blocks]
    scales = (120 + (3 * expert + 5 * row + 7 * block) % 13).astype(np.uint8)
    activation, place = np.ogrid[: size.rows, : size.blocks]
    d = (_ONE_HALF_BITS + (389 * activation + 173 * place) % 4099).astype(np.uint16)
    return Operands(_any_codes(draw, size), d, _any_weights(draw, size), scales)


def _scale_bytes(draw: Draw, size: Size) -> Operands:
    """Weight row by weight row every scale byte; the blocks of a row differ by one at most."""
    expert, row, block = np.ogrid[: size.experts, : size.n, : size.blocks]
    scales = ((37 * expert + row + block % 2) % 256).astype(np.uint8)
    return Operands(_any_codes(draw, size), _d_around(draw, size, 1), _any_weights(draw, size), scales)


def _subnormal(draw: Draw, size: Size) -> Operands:
    """Scale bytes 0 to 3 and d down to FP16's subnormals: terms and sums in FP32's subnormal range."""
    scales = draw.integers(4, (size.experts, size.n, size.blocks)).astype(np.uint8)
    d = (1 + draw.integers(0x2800, (size.rows, size.blocks))).astype(np.uint16)
    return Operands(_any_codes(draw, size), d, _any_weights(draw, size), scales)


#: One block in so many is not zero in the fill `large`: with 2 warps a row those of one thread, with 4 of two.
_LONE = 64


#: And in the fill `held`: what a lane holds at once.
_LANES = 32


def _large(draw: Draw, size: Size, lone: int = _LONE) -> Operands:
    """Products of one sign, dot * d of more bits than FP32, in blocks that one thread adds; all others are zero."""
    k = size.blocks * _BLOCK
    negative = draw.integers(2, (k,))
    alone = np.repeat(np.arange(size.blocks) % lone == 0, _BLOCK)
    codes = (96 + draw.integers(32, (size.rows, k))) * np.where(negative, -1, 1) * alone
    magnitudes = np.array([3, 5, 6, 7])[draw.integers(4, (size.experts, size.n, k))]
    scales = _scales_around(draw, size, _IDENTITY, 1)
    weights = pack_fp4((magnitudes | negative << 3).astype(np.uint8))
    return Operands(codes.astype(np.int8), _d_around(draw, size, 1), weights, scales)


def _signed_d(draw: Draw, size: Size) -> Operands:
    """Scales d of either sign and from 2^-6 to 2^6: no quantizer makes such ones, and FP16 has them."""
    sign = draw.integers(2, (size.rows, size.blocks)) << 15
    d = (_d_around(draw, size, 6) | sign).astype(np.uint16)
    return Operands(_any_codes(draw, size), d, _any_weights(draw, size), _scales_around(draw, size, 122, 3))


def _saturated(draw: Draw, size: Size) -> Operands:
    """Blocks of products of one sign and the largest magnitude there is: a dot of 32 * 12 * 127 has 17 bits."""
    k = size.blocks * _BLOCK
    negative = draw.integers(2, (k,))
    codes = np.tile(np.where(negative, -127, 127), (size.rows, 1))
    # Whether a weight row's dots are negative, all of them.
    opposed = draw.integers(2, (size.experts, size.n, 1))
    weights = pack_fp4((7 | (negative ^ opposed) << 3).astype(np.uint8))
    return Operands(codes.astype(np.int8), _d_around(draw, size, 1), weights, _scales_around(draw, size, 122, 3))


def _least(draw: Draw, size: Size) -> Operands:
    """As `saturated`, with scale bytes of 0 and d of few of FP16's least units.

    Half of a scale times d is 1/8 to 4 of FP32's least units and is rounded to whole ones. The dots are as large as
    they may be, so that BF16 holds the sums.
    """
    data = _saturated(draw, size)
    d = (1 + draw.integers(32, data.d.shape)).astype(np.uint16)
    return Operands(data.codes, d, data.weights, np.zeros_like(data.scales))


def _zero_rows(draw: Draw, size: Size) -> Operands:
    """Every second row of activations is zeros, and so is every third weight row, of either sign: sums of zero."""
    data = _gaussian(draw, size)
    codes, weights = data.codes.copy(), data.weights.copy()
    codes[::2] = 0
    weights[:, ::3] &= 0x88
    return Operands(codes, data.d, weights, data.scales)


#: Codes whose sums are 127, 128, 129 and 381.
_HALF_UNITS = np.array([[127, 0, 0], [127, 1, 0], [127, 1, 1], [127, 127, 127]], np.int8)


def _overflow(draw: Draw, size: Size) -> Operands:
    """Sums below, on and above the middle of the largest BF16 number and Inf, and beyond FP32's largest.

    The first block sums to 255, the second, whose d is 2^-8, to about half; all weights are 1, of one sign along a row.
    """
    codes = np.zeros((size.rows, size.blocks * _BLOCK), np.int8)
    codes[:, :3] = 127, 127, 1
    codes[:, _BLOCK : _BLOCK + 3] = _HALF_UNITS[np.arange(size.rows) % len(_HALF_UNITS)]
    d = np.full((size.rows, size.blocks), _ONE_HALF_BITS, np.uint16)
    d[:, 1] -= 8 << 10
    signs = (0x88 * draw.integers(2, (size.experts, size.n, 1))).astype(np.uint8)
    weights = np.broadcast_to(np.uint8(0x22) | signs, (size.experts, size.n, size.blocks * _BLOCK // 2)).copy()
    scales = np.full((size.experts, size.n, size.blocks), _IDENTITY + 120, np.uint8)
    return Operands(codes, d, weights, scales)


def _cancelling(draw: Draw, size: Size) -> Operands:
    """Two blocks of three are large and cancel in pairs anywhere in a row, the third ones are small."""
    pairs = size.blocks // 3
    order = np.argsort(draw.words(size.blocks), kind="stable")
    left, right, rest = order[:pairs], order[pairs : 2 * pairs], order[2 * pairs :]
    codes = np.maximum(_any_codes(draw, size), -127).reshape(size.rows, size.blocks, _BLOCK)
    codes[:, right] = -codes[:, left]
    d = _d_around(draw, size, 1)
    d[:, right] = d[:, left]
    weights = _any_weights(draw, size).reshape(size.experts, size.n, size.blocks, -1)
    weights[:, :, right] = weights[:, :, left]
    scales = _scales_around(draw, size, 150, 3)
    scales[:, :, right] = scales[:, :, left]
    scales[:, :, rest] -= 22
    return Operands(codes.reshape(size.rows, -1), d, weights.reshape(size.experts, size.n, -1), scales)


#: FP16 bits: the least subnormal number, a NaN, an infinity, zero, the others' negatives, the largest number.
_SPECIAL_D = np.array([1, 0x7E00, 0x7C00, 0, 0x8000, 0xFFFF, 0xFC00, 0x7BFF], np.uint16)


def _specials(draw: Draw, size: Size) -> Operands:
    """A special d in a block of few rows of activations; NaN and the largest scales in a few weight rows."""
    d = _d_around(draw, size, 1)
    d[np.arange(size.rows), draw.integers(size.blocks, (size.rows,))] = _SPECIAL_D[
        np.arange(size.rows) % _SPECIAL_D.size
    ]
    scales = _scales_around(draw, size, 124, 3)
    special = np.array([_SCALE_NAN, 0xFE, 0, 1])[draw.integers(4, scales.shape)]
    chosen = draw.integers(max(4 * size.blocks, 2), scales.shape) == 0
    weights = _any_weights(draw, size)
    return Operands(_any_codes(draw, size), d, weights, np.where(chosen, special, scales).astype(np.uint8))


def _zero_specials(draw: Draw, size: Size) -> Operands:
    """As `specials`, but what meets a special has zeros for codes or for weights: zero times a NaN is no zero."""
    data = _specials(draw, size)
    codes = data.codes.reshape(size.rows, size.blocks, _BLOCK).copy()
    weights = data.weights.reshape(size.experts, size.n, size.blocks, _BLOCK // 2).copy()
    codes[(data.d & 0x7C00) == 0x7C00] = 0
    weights[data.scales >= 0xFE] &= 0x88  # zeros of either sign
    return Operands(codes.reshape(size.rows, -1), data.d, weights.reshape(size.experts, size.n, -1), data.scales)


def _fill(
    name: str, catches: str, make: Callable[[Draw, Size], Operands], limits: Limits | None = None, least_k: int = _BLOCK
) -> Fill:
    """A fill that needs at least `least_k`."""
    usual = Limits(zeros=0.02, reason="sums of many products are neither zero nor infinite")
    return Fill(name, catches, make, limits or usual, needs_k(least_k))


_FILLS: Mapping[str, Fill] = MappingProxyType(
    {
        fill.name: fill
        for fill in (
            _fill("gaussian", "weights, activations or outputs of others; a fused or shortened sum", _gaussian),
            _fill("all-codes", "a wrong entry of the FP4 table, nibbles swapped, -128 or -0 mistaken", _all_codes),
            _fill("fingerprint", "scales of another block, row, token or expert", _fingerprint),
            _fill("scale-bytes", "a scale byte that is flushed or not halved; 255 that is no NaN", _scale_bytes,
                  Limits(zeros=0.02, nans=0.12, reason="byte 255 is a NaN, and the largest bytes overflow")),
            _fill("subnormal", "subnormals flushed, in the scale, in a term or in the sum", _subnormal,
                  Limits(zeros=0.3, reason="a single block may lie below FP32's least number")),
            _fill("large", "a term that is not rounded before it is added", _large),
            _fill("saturated", "a block's dot, or a part of it, in too few bits", _saturated),
            _fill("least", "a block's factor that rounds another way below FP32's least units", _least,
                  Limits(zeros=1.0, reason="sums of few blocks lie below BF16's least number"), least_k=15 * _BLOCK),
            _fill("signed-d", "a d that is clamped, or whose sign is lost", _signed_d),
            _fill("cancelling", "blocks summed in another order", _cancelling,
                  Limits(zeros=0.1, reason="what remains of large terms may be zero"), least_k=15 * _BLOCK),
            _fill("zero-rows", "the sign of a zero lost or made up", _zero_rows,
                  Limits(zeros=1.0, nans=0.5, reason="the sums are zero, whose sign is asked for")),
            _fill("overflow", "BF16 that saturates, or overflows too early or too late", _overflow,
                  Limits(nans=0.9, reason="three of four sums round to Inf, or more by alpha"), least_k=2 * _BLOCK),
            _fill("held", "a term of one of several blocks that rounds another way", partial(_large, lone=_LANES)),
            _fill("specials", "NaN, Inf and zeros of activations lost", _specials,
                  Limits(zeros=0.3, nans=0.9, reason="NaN and Inf are what it is made of")),
            _fill("zero-specials", "a block that is skipped since its codes or its weights are zeros", _zero_specials,
                  Limits(zeros=0.3, nans=0.9, reason="NaN and Inf are what it is made of")),
        )
    }
)  # fmt: skip

_OTHERS = ("zero-rows", "overflow", "zero-specials", "signed-d", "held", "least")
_PLAIN = tuple(name for name in _FILLS if name not in _OTHERS)

# --- words for outputs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Dots:
    """Outputs [M * k, N] as bit patterns.

    Attributes:
        name: of the stage.
        dtype: "bf16" or "f32".
        n: weight rows of an expert.
        poison: what rows of no choice hold.
        owners: for each row the choice token + rank * M that it belongs to, -1 for none.
        ids: int32 [M, k], the experts.
    """

    name: str
    dtype: str
    n: int
    poison: int
    owners: NDArray[np.int32]
    ids: NDArray[np.int32]

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `refmoe.families.stages.Stage`."""
        row, column = divmod(index, self.n)
        if self.owners[row] < 0:
            where = f"row {row} belongs to no choice of this rank and must not be written"
            return f"{where}: kernel {bits_text(kernel, self.dtype)} instead of the poison 0x{self.poison:02X}", ""
        rank, token = divmod(int(self.owners[row]), len(self.ids))
        where = f"token {token} rank {rank} at expert {self.ids[token, rank]}, weight row {column}"
        values = f"kernel {number_text(kernel, self.dtype)} reference {number_text(reference, self.dtype)}"
        return f"{where}: {values}{distance_text(kernel, reference, self.dtype)}", ""

    def plane(self, shape: tuple[int, ...]) -> Plane:
        """Choices by weight rows; see `refmoe.families.stages.HasPlane`."""
        return matrix_plane(shape, "choice", "weight row")


# --- inputs, expectation, run ---------------------------------------------------------------------------------------


#: FP32 bits of factors that experts have in turn: 0, -1.1, -0, the least subnormal, 2^-128, 2^127, and an ulp over 1.
_EDGE_ALPHAS = np.array([0, 0xBF8CCCCD, 0x80000000, 1, 0x80200000, 0x7F000000, 0x3F800001], np.uint32).view(np.float32)
#: BF16 patterns: zeros, the least and the largest subnormal numbers, of either sign.
_TINY_BIAS = np.array([0, 0x8000, 1, 0x8001, 0x7F, 0x807F], np.uint16).view(ml_dtypes.bfloat16)


def _inputs(case: Case) -> Inputs:
    """Operands, ids and maps; activations that no choice reads hold NaN scales."""
    shape = case.shape
    ids = expert_ids(case)
    rows = shape.rows if case.inputs == "choice" else shape.m
    data: Operands = _FILLS[case.fill].make(
        Draw("dp4a", case.fill, case.seed), Size(rows, shape.e, shape.n, shape.k // _BLOCK)
    )
    row_of_choice = _row_of_choice(case, ids)
    d = data.d.copy()
    if case.inputs == "choice":
        d[np.setdiff1d(np.arange(rows), row_of_choice)] = 0x7E01
    alpha = bias = None
    if case.alpha == "edges":
        alpha = np.resize(_EDGE_ALPHAS, shape.e)
    elif case.alpha == "distinct":
        draw = Draw("dp4a-alpha", case.seed)
        bits = (125 + draw.integers(4, (shape.e,))) << 23 | draw.integers(1 << 23, (shape.e,))
        alpha = bits.astype(np.uint32).view(np.float32)
    if case.bias == "tiny":
        bias = _TINY_BIAS[Draw("dp4a-tiny-bias", case.seed).integers(_TINY_BIAS.size, (shape.e, shape.n))]
    elif case.bias in ("distinct", "specials"):
        bias = (Draw("dp4a-bias", case.seed).normal((shape.e, shape.n)) * 64).astype(ml_dtypes.bfloat16)
        bias = special_bias(Draw("special-bias", case.seed), bias) if case.bias == "specials" else bias
    return {
        "codes": data.codes,
        "d": d.view(np.float16),
        "weights": data.weights,
        "weight_scales": data.scales,
        "topk_ids": ids,
        "row_of_choice": None if case.map == "none" else row_of_choice,
        "alpha": alpha,
        "bias": bias,
    }


def _arguments(case: Case, inputs: Inputs) -> dict[str, Any]:
    return {
        "row_of_choice": inputs["row_of_choice"],
        "input_by_choice": case.inputs == "choice",
        "alpha": inputs["alpha"],
        "bias": inputs["bias"],
        "first_expert": case.first_expert,
        "out_dtype": VALUE_DTYPES[case.dtype],
        "fill": case.poison,
    }


def _expect(case: Case, inputs: Inputs) -> Expectation:
    activations = Q8Tensor(inputs["codes"], inputs["d"], np.zeros_like(inputs["d"]))
    weights = MXTensor(inputs["weights"], inputs["weight_scales"], "mxfp4")
    ids = inputs["topk_ids"]
    out = dp4a_gemv(activations, weights, ids, **_arguments(case, inputs))
    owners = _owners(case, inputs)
    stage = Dots("out", case.dtype, case.shape.n, case.poison, owners, ids)
    limits = _FILLS[case.fill].limits
    if case.alpha == "edges":
        limits = Limits(zeros=1.0, nans=0.9, reason="factors of zero and beyond make zeros and infinities")
    doubt = doubt_values(out[owners >= 0].astype(np.float32), limits)
    return Expectation({"out": _bits(out)}, (stage,), doubt)


def _owners(case: Case, inputs: Inputs) -> NDArray[np.int32]:
    """The choice of each output row, -1 for none."""
    here = _row_of_choice(case, inputs["topk_ids"])
    choices = np.flatnonzero(here >= 0).astype(np.int32)
    owners = np.full(here.size, -1, np.int32)
    owners[here[choices]] = choices
    return owners


def _row_of_choice(case: Case, ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """The row of each choice, -1 for those of other ranks and for those that are dropped."""
    if case.map == "none":
        local = ids.T.reshape(-1) - case.first_expert
        return np.where((local >= 0) & (local < case.shape.e), np.arange(ids.size), -1).astype(np.int32)
    rows: NDArray[np.int32] = build_permutation(ids, case.shape.e, case.first_expert).unpermuted_to_permuted
    if case.map == "dropped":
        rows[::3] = -1
    return rows


def _far(case: Case) -> Layout:
    """Where experts lie in the kernel's buffers."""
    experts, n, k = int(case.experts_before), case.shape.n, case.shape.k
    return Layout(
        {
            **{"weights": experts * n * k // 2, "weight_scales": experts * n * (k // _BLOCK)},
            **{"alpha": 4 * experts, "bias": 2 * experts * n},
        },
        counts={2: experts},
        values={"topk_ids": lambda ids: ids + np.int32(experts)},
        tiles_before=0,
    )


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.dp4a import dp4a_gemv as launch

    operands = (inputs[name] for name in ("codes", "d", "weights", "weight_scales", "topk_ids"))
    far = far_device(case, device, _far(case))
    # Weights, and which experts they are of, are asked for while others may be under way.
    place = chained(case, far, ("codes", "d", "row_of_choice"))
    return {"out": _bits(called(case, launch)(*operands, device=place, **_arguments(case, inputs)))}


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _check(case: Case) -> None:
    check_choices(case)
    check_before(case)
    if case.shape.m > MAX_TOKENS:
        raise refused("shape", str(case.shape), f"at most {MAX_TOKENS} tokens")


# --- cases ----------------------------------------------------------------------------------------------------------


def _case(fill: str, m: int, k: int, n: int, e: int, t: int, dtype: str = "f32", seed: int = 7, **options: Any) -> Case:
    return DP4A_GEMV.case(fill, Shape(m, k, e, t, n), dtype, seed, **options)


def _quick() -> Iterator[Case]:
    yield _case("gaussian", 1, 2880, 16, 128, 4, dtype="bf16", bias="distinct")  # decode
    yield _case("cancelling", 1, 2880, 16, 128, 4, map="permuted")
    for fill in _PLAIN:
        for m in (1, 5):  # 4 warps a row, and 2
            yield _case(fill, m, 736, 24 if m == 1 else 8, 8, 2, bias="distinct" if fill == "gaussian" else "none")
    yield _case("scale-bytes", 1, 32, 256, 1, 1)  # every byte alone
    yield _case("large", 5, 2368, 8, 8, 2)  # a thread has two blocks
    yield _case("fingerprint", 3, 416, 13, 6, 2, inputs="choice", map="permuted", alpha="distinct", bias="distinct")
    yield _case("fingerprint", 8, 416, 13, 6, 2, routing="same-experts", inputs="choice")
    yield _case("fingerprint", 8, 416, 8, 4, 3, first_expert=4, ranks=3, map="permuted", bias="distinct")
    yield _case("gaussian", 3, 416, 8, 4, 2, routing="elsewhere", first_expert=4, ranks=2)
    yield _case("all-codes", 6, 416, 8, 12, 2, dtype="bf16", routing="empty-experts", poison=0x7F)


def _default() -> Iterator[Case]:
    yield _case("gaussian", 1, 48_128, 3, 2, 1)  # of which one warp's rows fit shared memory
    for m in (2, 8):
        yield _case("fingerprint", m, 2880, 8, 128, 4, bias="distinct", map="permuted")
        yield _case("gaussian", m, 416, 20, 5, 4, schedules=8)
    yield _case("fingerprint", 1, 2880, 16, 128, 4, dtype="bf16", inputs="choice", alpha="distinct")
    yield _case("fingerprint", 1, 7168, 16, 16, 2)  # blocks in two rounds of a CTA
    yield _case("cancelling", 8, 7168, 8, 16, 2)  # in four
    yield _case("fingerprint", 2, 3840, 17, 8, 2, dtype="bf16", bias="distinct")  # the longest K of four rows a warp
    yield _case("fingerprint", 1, 23584, 9, 1, 1)  # of 8 rows that fit shared memory
    yield _case("fingerprint", 1, 47200, 5, 1, 1)  # of 4 rows
    for fill in _PLAIN:
        yield _case(fill, 6, 1056, 11, 6, 1, dtype="bf16", bias="distinct", poison=0x7F)
    for number, (dtype, bias) in enumerate((("f32", "none"), ("f32", "tiny"), ("bf16", "tiny"))):
        for fill in ("zero-rows", "gaussian"):
            yield _case(fill, 7 - number, 96, 9, 7, 3, dtype=dtype, alpha="edges", bias=bias, inputs="choice")
    for dtype in ("f32", "bf16"):
        yield _case("overflow", 8, 96, 9, 3, 1, dtype=dtype)
        for m in (4, 8):  # an entry each
            yield _case("zero-specials", m, 416, 9, 3, 1, dtype=dtype)
            yield _case("specials", m, 96, 9, 3, 1, dtype=dtype, bias="specials")
    # More choices than the 32 of which a warp asks at once which expert they name: two windows of them, and as many as
    # there may be, whose experts have choices in all windows.
    yield _case("fingerprint", 8, 64, 8, 40, 8, bias="distinct", map="permuted")
    yield _case("fingerprint", 7, 96, 8, 33, 9, first_expert=33, ranks=2, alpha="distinct", inputs="choice")
    # And experts that no token names but the last ones, by choices past the 64th.
    for dtype in ("f32", "bf16"):
        yield _case("fingerprint", 8, 32, 8, 256, 16, dtype=dtype)
    # More than 128 choices, of a number that divides no power of two.
    for dtype in ("f32", "bf16"):
        yield _case("fingerprint", 8, 32, 8, 31, 31, dtype=dtype)
    # A token's two choices of one expert, whose activation is held from the one to the other, all of it or not.
    yield _case("fingerprint", 3, 96, 9, 5, 4, routing="twice", bias="distinct")
    yield _case("cancelling", 2, 7168, 9, 5, 2, routing="twice")
    # Choices without a row, the first of an expert and later ones.
    yield _case("fingerprint", 7, 96, 9, 5, 3, map="dropped", bias="distinct")
    yield _case("gaussian", 3, 416, 9, 4, 2, dtype="bf16", map="dropped", inputs="choice")
    yield _case("fingerprint", 6, 64, 8, 13, 6, alpha="distinct")
    # The last of four ranks, of which a token chooses more experts than each has.
    yield _case("fingerprint", 7, 96, 8, 3, 5, first_expert=9, ranks=4, alpha="distinct", bias="distinct")
    for m in (4, 8):
        yield _case("fingerprint", m, 64, 9, 34, 32, dtype="bf16", inputs="choice", map="permuted")
    # Two rows a warp, whose K is longer: each entry, rows of a last CTA that are not there, a token's two choices of
    # one expert, all choices of the same experts.
    for dtype, m in product(("f32", "bf16"), (4, 8)):
        yield _case("gaussian", m, 3872, 13, 8, 2, dtype=dtype, bias="distinct", map="permuted")
        yield _case("cancelling", m, 4128, 9, 8, 2, dtype=dtype, inputs="choice", alpha="distinct")
        yield _case("fingerprint", m, 3904, 9, 5, 2, dtype=dtype, routing="twice", bias="distinct", poison=0x7F)
        yield _case("scale-bytes", m, 3872, 8, 4, 2, dtype=dtype, routing="same-experts")
        yield _case("gaussian", m, 3872, 8, 4, 2, dtype=dtype, map="permuted", bias="distinct", programmatic=1)
    # Four rows a warp and four blocks a lane, which the longest K of four rows has, and the last block of few lanes.
    for dtype, m in product(("f32", "bf16"), (1, 5)):
        yield _case("gaussian", m, 3840, 13, 4, 2, dtype=dtype, bias="distinct", map="permuted")
        yield _case("fingerprint", m, 3104, 21, 4, 2, dtype=dtype, alpha="distinct")
        for fill in ("subnormal", "held", "least"):
            yield _case(fill, m, 3840, 16, 4, 2, dtype=dtype)
    yield _case("gaussian", 1, 94_432, 2, 1, 1)  # the longest K that the kernel takes
    # Weight rows of a warp and of a CTA, and one less and more.
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 31, 33):
        yield _case("fingerprint", 2, 96, n, 99, 3, alpha="distinct")
    # Bytes of weights past 2^31.
    options: dict[str, Any] = {"alpha": "distinct", "bias": "distinct", "experts_before": 1 << 15}
    yield _case("fingerprint", 2, 416, 336, 3, 2, **options)
    # And of weights, of their scales and biases past 2^32, where an index without a sign wraps too.
    for dtype in ("f32", "bf16"):
        yield _case("fingerprint", 2, 32, 672, 3, 1, dtype=dtype, **{**options, "experts_before": 1 << 23})
    yield _case("gaussian", 7, 416, 8, 8, 2, routing="padded")
    yield _case("gaussian", 7, 96, 8, 8, 2, routing="unset")
    yield _case("gaussian", 3, 96, 8, 4, 2, routing="unset", first_expert=4, ranks=2, bias="distinct")
    yield _case("fingerprint", 6, 64, 8, 5, 3, dtype="bf16", routing="unset", inputs="choice")
    # Past nine bits of experts.
    yield _case("fingerprint", 3, 64, 8, 600, 2, routing="same-experts", alpha="distinct", bias="distinct")
    yield _case("fingerprint", 4, 416, 8, 8, 2, routing="all-one-token", bias="distinct")
    yield _case("cancelling", 4, 2880, 8, 16, 2, routing="same-experts")
    for dtype, m in product(("f32", "bf16"), (1, 5)):
        yield _case("gaussian", m, 96, 8, 4, 2, dtype=dtype, map="permuted", bias="distinct", programmatic=1)
    yield _case("gaussian", 1, 32, 1, 1, 1)
    yield _case("gaussian", 0, 2880, 8, 4, 2)
    # Each entry has machine code of its own: each meets every fill, with and without a bias.
    for dtype, m, fill, bias in product(("f32", "bf16"), (1, 5), _PLAIN, ("none", "distinct")):
        yield _case(fill, m, 544, 8, 8, 2, dtype=dtype, bias=bias)
    for dtype, m in product(("f32", "bf16"), (1, 5)):  # as many blocks as a thread holds, and one more
        yield _case("signed-d", m, 4128, 4, 8, 2, dtype=dtype)
    for m in (1, 5):
        yield _case("held", m, 4096, 8, 8, 2)
    yield _case("gaussian", 3, 64, 8, 4, 2, ranks=2, poison=0)  # the fill's default; the first of two ranks


def _full() -> Iterator[Case]:
    for seed in (1, 2, 3):
        for m in range(1, MAX_TOKENS + 1):
            for fill in _FILLS:
                yield _case(fill, m, 2880, 40, 16, 4, seed=seed, alpha="distinct", bias="distinct", map="permuted")
    for k in range(32, 1056, 32):
        yield _case("fingerprint", 2, k, 9, 3, 2)
    yield _case("gaussian", 1, 2880, 5760, 4, 4, bias="distinct")


def _weights_of(experts: int, n: int, k: int) -> Change:
    """Weights of another size, which take no memory."""
    return lambda given: {"weights": huge((experts, n, k // 2), given["weights"])}


def _many_rows(given: Arguments) -> Arguments:
    """More weight rows than CTAs are counted for, of 8 tokens with 32 choices each."""
    return {"weights": huge((2, 1 << 26, 16), given["weights"]), "topk_ids": np.zeros((8, 32), np.int32)}


#: A block more than shared memory has room for: `refmoe.cuda.dp4a.MAX_K`.
_PAST_MAX_K = 98 * 1024 // (2 * 17) * 32 + 32

_CHANGES: Mapping[str, Change] = {
    "weights-past_max_k": lambda given: {"weights": huge((2, 1, _PAST_MAX_K // 2), given["weights"])},
    "weights-many_ctas": _many_rows,
    "topk_ids-nine": lambda given: {"topk_ids": np.zeros((9, 2), np.int32)},
    "topk_ids-many": lambda given: {"topk_ids": np.zeros((8, 33), np.int32)},
}


def _refuses() -> Iterator[Case]:
    base = _case("gaussian", 3, 64, 16, 4, 2, alpha="distinct", bias="distinct", map="permuted")
    yield from wrong_calls(
        base,
        {"topk_ids-nine": "topk_ids: found 9 tokens", "topk_ids-many": "topk_ids: found 264 choices"},
        codes=f"{ARRAY} short narrow",
        d=f"{ARRAY} short narrow",
        weights=f"{ARRAY} flat no_rows no_middle no_columns narrow past_max_k many_ctas",
        weight_scales=f"{ARRAY} short narrow",
        topk_ids=f"{ARRAY} flat no_columns nine many",
        row_of_choice=f"{ARRAY} short below past twice",
        alpha=f"{ARRAY} short",
        bias=f"{ARRAY} short narrow",
        first_expert="negative fraction huge",
        out_dtype="word none number",
        fill=BYTE,
    )


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    return {"out": case.shape.rows * case.shape.n * ELEMENT_BYTES[case.dtype]}


DP4A_GEMV = Family(
    name="dp4a_gemv",
    about="MXFP4 weights times Q8_1 activations of up to 8 tokens, each with its own experts, by integer dot products.",
    dtypes=("f32", "bf16"),
    sizes="mknet",
    fills=_FILLS,
    options=(
        *(word("inputs", "token", "choice"), word("map", "none", "permuted", "dropped")),
        *(word("alpha", "none", "distinct", "edges"), word("bias", "none", "distinct", "tiny", "specials")),
        *(word("routing", *ROUTINGS, TWICE), *RANKS, EXPERTS_BEFORE, SCHEDULES, PROGRAMMATIC, POISON, WRONG),
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=("codes", "d", "weights", "weight_scales", "topk_ids", "row_of_choice", "alpha", "bias"),
        features=("row_of_choice", "alpha", "bias"),
        outputs={"out": "case.dtype"},
        settings={"num_experts": "e", "first_expert": "first_expert", "top_k": "t", "inputs": "inputs"},
    ),
    sources=("dp4a",),
    host=("refmoe.cuda.dp4a",),
    check=_check,
    lacks=lacks_memory,
    group="dp4a",
)
