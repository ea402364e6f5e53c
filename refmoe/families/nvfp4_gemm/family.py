"""The family `sm12x_nvfp4_gemm`: fills, expectation, run and cases of the grouped GEMM in NVFP4 on both sides.

A block scale of NVFP4 has three bits of significand and a range of 17 binades, and the instruction aligns whole groups
of 16 products by their scales. So the fills differ from those of MXFP8: whole numbers as scales, each byte as a scale,
groups that cancel and leave what the alignment cut. Codes are made directly but for `gaussian` and `real`, which
quantize; their alpha is then the product of the two global decode scales.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refmoe.chips import DEFAULT_ARCH, Mma
from refmoe.cuda.gemm.tile import MIN_STAGES, Tile, parse_tile
from refmoe.cuda.nvfp4_gemm import TILES, max_stages
from refmoe.draw import Draw
from refmoe.evidence import REASONS, Evidence
from refmoe.families.case import MULTIPROCESSORS, SCHEDULES, Shape, number, refused, triple
from refmoe.families.choices import RANKS, ROUTING, check_choices, expert_offsets
from refmoe.families.extents import product_extents
from refmoe.families.family import POISON, Assumption, Case, Expectation, Family, Inputs, Outputs, in_software
from refmoe.families.far import EXPERTS_BEFORE, ROWS_BEFORE, lacks_memory
from refmoe.families.gemm.epilogue import (
    ALPHA,
    OUTPUTS,
    PRODUCT_BIAS,
    FloatArray,
    alpha_of,
    distinct_alpha,
)
from refmoe.families.gemm.grouped import (
    CONTRACT,
    PRODUCT_CHANGES,
    SAYS_OF_PRODUCTS,
    WRONG_PRODUCTS,
    check_far,
    expect_products,
    gemm_inputs,
    run_products,
)
from refmoe.families.nvfp4_gemm.fills import BLOCK, FILLS, NAN_SCALE, PADDED_K, SCALE_SIGN, Bytes, Operands, Size
from refmoe.families.vacuity import Limits
from refmoe.families.wrong import WRONG, Arguments, wrong_calls
from refmoe.formats import E2M1, UE4M3
from refmoe.reference.layout import unpack_fp4
from refmoe.reference.nvfp4_gemm import MODEL, nvfp4_grouped_gemm, nvfp4_product_bounds

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_EVIDENCE = MODEL.pair("e2m1", "e2m1").evidence
#: What the published model leaves open, until a chip settles it.
_OPEN = (
    "Extrapolated from SM90 in it are that zeros set no exponent, and the least exponent -133. "
    if _EVIDENCE is Evidence.PUBLISHED
    else ""
)

ASSUMPTION = Assumption(
    MODEL.name,
    _EVIDENCE.value,
    f"assumed of the tensor cores: the accumulation model {MODEL.name} ({MODEL.instruction}), whose evidence is "
    f"{_EVIDENCE.value}: {REASONS[_EVIDENCE]}. Groups of 16 are summed exactly, aligned once with 35 bits, truncated. "
    f"{_OPEN}On ptx the executor computes the instruction by that model; on a GPU that lacks it the kernel does, in "
    "software. FP32 results also lie inside the model's running error bound around the exact sum, which is computed "
    "apart from it.",
)

# --- inputs and expectation -----------------------------------------------------------------------------------------

#: Factors of the fill `specials`: the sums overflow, become subnormal, or vanish, and one is plain.
_SPECIAL_ALPHA = np.array([2.0**127, 1.0, 2.0**-140, -0.0], np.float32)


def _inputs(case: Case) -> Inputs:
    shape = case.shape
    size = Size(shape.m, shape.k, shape.n, shape.e)
    data: Operands = FILLS[case.fill].make(Draw(case.fill, "sm12x_nvfp4_gemm", case.seed), size)
    offsets = expert_offsets(case)
    scales = data.token_scales.copy()
    scales[offsets[-1] :] = NAN_SCALE  # rows of no expert must not matter
    alpha = _alpha(case, data) if case.alpha == "distinct" else alpha_of(case)
    return gemm_inputs(case, data.tokens, scales, data.weights, data.weight_scales, offsets, alpha, BLOCK)


def _alpha(case: Case, data: Operands) -> FloatArray:
    if data.alpha is not None:
        return data.alpha
    if case.fill == "specials":
        return np.resize(_SPECIAL_ALPHA, case.shape.e)
    return distinct_alpha(case)


class Problem(NamedTuple):
    """The arrays of `nvfp4_grouped_gemm`, in its order."""

    tokens: Bytes
    token_scales: Bytes
    weights: Bytes
    weight_scales: Bytes
    offsets: NDArray[np.int64]


def _expect(case: Case, inputs: Inputs) -> Expectation:
    """What the kernel has to write, from the model and from each second answer that the fill allows."""
    problem = Problem(*(inputs[name] for name in Problem._fields))
    values = nvfp4_grouped_gemm(*problem, alpha=inputs["alpha"], bias=inputs["bias"], out_dtype=OUTPUTS[case.dtype])
    second = None
    if case.fill in _WITNESSES:
        name, witness = _WITNESSES[case.fill]
        second = name, witness(problem)
    return expect_products(
        case, inputs, values, second, lambda: nvfp4_product_bounds(*problem), _limits(case), ASSUMPTION
    )


def _limits(case: Case) -> Limits:
    """The fill's, but that factors of `specials` make many zeros and infinities."""
    limits = FILLS[case.fill].limits
    special = case.fill == "specials" and case.alpha == "distinct"
    return dataclasses.replace(limits, zeros=0.9) if special else limits


Witness = Callable[[Problem], FloatArray]


def _int64_sums(problem: Problem) -> FloatArray:
    """Sums of whole numbers in int64; the fill makes no other, and none past 2^24."""
    left = _whole(problem.tokens, problem.token_scales)
    right = _whole(problem.weights, problem.weight_scales)
    sums = np.zeros((left.shape[0], right.shape[1]), np.int64)
    for expert, (start, stop) in enumerate(itertools.pairwise(problem.offsets)):
        sums[start:stop] = left[start:stop] @ right[expert].T
    return sums.astype(np.float32)


def _whole(codes: Bytes, scales: Bytes) -> NDArray[np.int64]:
    # Rows of no expert have NaN scales, which are no whole numbers; nobody reads those rows.
    values = np.nan_to_num(UE4M3.values()[scales & ~np.uint8(SCALE_SIGN)])
    elements = E2M1.values()[unpack_fp4(codes)] * np.repeat(values, BLOCK, axis=-1)
    return np.asarray(elements.astype(np.int64))


def _one_group(problem: Problem) -> FloatArray:
    """All rows as one expert's: right where all experts have the same weights."""
    rows = np.array([0, problem.tokens.shape[0]], np.int64)
    one = problem._replace(weights=problem.weights[:1], weight_scales=problem.weight_scales[:1], offsets=rows)
    return np.asarray(nvfp4_grouped_gemm(*one))


def _unpadded(problem: Problem) -> FloatArray:
    """The product without the zeros at the end of K."""
    k = 2 * problem.tokens.shape[-1] - PADDED_K
    parts = {"tokens": k // 2, "token_scales": k // BLOCK, "weights": k // 2, "weight_scales": k // BLOCK}
    cut = {name: np.ascontiguousarray(getattr(problem, name)[..., :width]) for name, width in parts.items()}
    return np.asarray(nvfp4_grouped_gemm(*problem._replace(**cut)))


#: Second answers by fill: the stage's name, and FP32 sums [T, N].
_WITNESSES: Mapping[str, tuple[str, Witness]] = {
    "integer": ("out-as-int64", _int64_sums),
    "shared-weights": ("out-as-one-group", _one_group),
    "zero-padded": ("out-unpadded", _unpadded),
}


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.nvfp4_gemm import nvfp4_grouped_gemm as launch

    tile = parse_tile(case.tile) if case.tile else None
    return run_products(launch, case, inputs, device, tile=tile, stages=case.stages or None)


def _check(case: Case) -> None:
    if not case.tile and case.stages:
        raise refused("stages", f"{case.stages}", "tile=MxNxK with it, of which it is")
    check_choices(case)
    check_far(case)


# --- cases ----------------------------------------------------------------------------------------------------------
# Data does not depend on tile or stages: cases of one shape and fill are held against the same bytes.

#: N past one tile of weight rows, of no whole warp; K half an instruction long at its end; tokens for the seven kinds
#: of `specials`.
_RAGGED = Shape(m=7, k=416, n=136, e=3)
#: The same with fewer weight rows, for what does not need a second tile of them, and with a K that is short for all but
#: the narrow tile.
_SMALL, _SHORT = Shape(m=7, k=416, n=40, e=2), Shape(m=9, k=288, n=24, e=2)
#: A little past one tile of weight rows and one step of K; three of six experts get 4 of 9 rows.
_PADDED = Shape(m=9, k=288, n=136, e=3)
#: Enough weight rows for every scale byte twice over.
_BYTES = Shape(m=3, k=96, n=136, e=4)
_NARROW, _MIDDLE, _WIDE, _SHALLOW = Tile(128, 8, 512), Tile(128, 32, 256), Tile(128, 128, 256), Tile(128, 8, 128)
#: M = 1 at each of more experts than a warp has lanes to look for the next tile, and five tiles of weight rows at each:
#: more tiles than any arch has multiprocessors, with one step of K, so that CTAs take several.
_LOOPING = Shape(m=36, k=96, n=640, e=36)
#: More experts than the lanes that look for a tile, some of more rows than the least tile of tokens has; a tail of N
#: and of K. With few multiprocessors each CTA takes many tiles. One shape: all tiles are held against the same bytes.
_MANY = Shape(m=88, k=288, n=136, e=40)
_GPT_OSS_K, _DEEPSEEK_K, _EXPERTS = 2880, 7168, 128

#: Every request that cannot be had: tile, stages, and what the kernel answers.
_REFUSED = (
    ("128x128x64", 0, "a K of 64 elements is no whole number of steps of 128"),
    ("128x8x512", 1, "with which nothing can be loaded while the tile is computed"),
    ("128x128x256", 3, "110,592 bytes where a block has 96,256 for stages"),
    ("256x128x256", 0, "a stage takes 55,296 bytes and 2 of them must fit in 92,160"),
    ("64x8x512", 0, "64 weight rows are no whole number of atoms of the scale layout"),
    ("128x24x256", 0, "the kernel is not built for it"),
)


def _case(fill: str, shape: Shape, dtype: str = "f32", seed: int = 7, **options: Any) -> Case:
    return SM12X_NVFP4_GEMM.case(fill, shape, dtype, seed, **options)


def _past_a_tile(tile: Tile) -> Case:
    """All tokens at one expert, one more than the tile has: every warp has some, the second tile is nearly empty."""
    shape = dataclasses.replace(_SHORT, m=tile.n + 1)
    return _case("wide-range", shape, tile=str(tile), routing="same-experts")


def _software() -> list[Case]:
    """Cases small enough for the executor where the kernel carries the tensor-core instruction in software."""
    tile = str(_SHALLOW)
    cases = [_case("cancelling", Shape(m=2, k=96, n=24, e=1), tile=tile)]
    # With more than one step of 64 an accumulator is aligned, and may be NaN before the last one.
    cases += [_case(fill, Shape(m=8, k=160, n=16, e=1), tile=tile) for fill in FILLS if fill != "scale-bytes"]
    cases.append(_case("zero-specials", Shape(m=8, k=64, n=16, e=1), tile=tile))  # and the zeros in another block
    cases.append(_case("scale-bytes", Shape(m=3, k=96, n=256, e=1), tile=tile))  # every byte of weights
    return cases


def _quick() -> Iterator[Case]:
    yield _case("wide-range", _RAGGED, tile=str(_NARROW))
    yield _case("gaussian", _SMALL, "bf16", tile=str(_NARROW), alpha="distinct", bias="distinct")
    for fill in FILLS:
        if fill not in ("zero-rows", "overflow"):  # a plain factor shows nothing of them
            yield _case(fill, _BYTES if fill == "scale-bytes" else _SMALL)
    # Experts before the last have no rows, and shift nobody.
    yield _case("one-hot-tokens", Shape(9, 160, n=24, e=3), tile=str(_NARROW), routing="same-experts")
    yield _case("one-hot-weights", Shape(6, 416, n=72, e=6), routing="all-one-token", alpha="distinct", poison=0x7F)
    yield _case("one-hot-tokens", Shape(6, 160, n=24, e=9), routing="empty-experts")
    yield _case("one-hot-tokens", Shape(9, 160, n=24, e=4), routing="padded", alpha="distinct")
    yield _case("gaussian", Shape(7, 416, n=24, e=4), "bf16", first_expert=4, ranks=2)
    # Without a bias, which would hide that a factor made the sums subnormal.
    yield _case("specials", Shape(8, 96, n=40, e=8), routing="all-one-token", alpha="distinct")
    # Rows past an expert's and of no expert, weight rows and elements of K past the end: a tile is mostly padding.
    yield _case("wide-range", _PADDED, tile=str(_MIDDLE), first_expert=3, ranks=2, poison=0x7F)
    yield _case("gaussian", Shape(3, 96, n=24, e=2), routing="elsewhere", first_expert=2, ranks=2)
    for request, stages, why in _REFUSED:
        yield _case("wide-range", _RAGGED, tile=request, stages=stages, refusal=why)
    yield _case("wide-range", dataclasses.replace(_RAGGED, n=12), refusal="needed N a multiple of 8")


def _default() -> Iterator[Case]:
    for tile in TILES:
        if tile not in (_NARROW, _SHALLOW):
            yield _past_a_tile(tile)
    for dtype in ("bf16", "f32"):  # the bias of more weight rows than 12 bits count, as gpt-oss's 5760
        yield _case("wide-range", Shape(m=1, k=32, n=4232, e=1), dtype, alpha="distinct", bias="distinct")
    yield _case("wide-range", _LOOPING, tile=str(_SHALLOW), routing="all-one-token")
    yield _case("specials", dataclasses.replace(_SHORT, n=40), tile=str(_MIDDLE), alpha="distinct", bias="distinct")
    yield _case("specials", _SMALL, "bf16", tile=str(_NARROW))
    wraps: dict[str, Any] = {"stages": MIN_STAGES, "multiprocessors": 1, "schedules": 4}
    yield _case("wide-range", Shape(m=3, k=416, n=24, e=2), tile=str(_SHALLOW), **wraps)
    # The last expert of a window of 32 has more tiles than there are CTAs, and experts may follow it.
    for experts, rows in ((32, 17), (64, 9), (40, 160)):
        many = Shape(rows, 96, n=264, e=experts)
        routing = "uniform" if experts == 40 else "same-experts"
        yield _case("gaussian", many, "f32", tile=str(_SHALLOW), routing=routing, multiprocessors=1, alpha="distinct")
    # A bias that is a NaN or an infinity, or that overflows.
    for dtype in OUTPUTS:
        special: dict[str, Any] = {"alpha": "distinct", "bias": "specials", "tile": str(_SHALLOW)}
        yield _case("specials", Shape(9, 96, n=24, e=3), dtype, **special)
    for dtype, bias in (("f32", "none"), ("f32", "tiny"), ("bf16", "tiny")):
        for fill in ("zero-rows", "positive"):
            shape = Shape(18, 96, n=24, e=9)
            terms: dict[str, Any] = {"alpha": "edges", "bias": bias, "tile": str(_SHALLOW)}
            yield _case(fill, shape, dtype, routing="all-one-token", ranks=2, **terms)
    for tile, dtype in itertools.product(TILES, OUTPUTS):  # a factor, and products, below all normal numbers
        below = Shape(m=max(tile.n, 7), k=96, n=tile.m, e=5)
        yield _case("gaussian", below, dtype, tile=str(tile), routing="same-experts", alpha="edges", bias="tiny")
    for dtype in OUTPUTS:
        yield _case("overflow", Shape(9, 96, n=24, e=2), dtype, tile=str(_SHALLOW), alpha="distinct")
    for tile in TILES:  # sums on the middle of two BF16 numbers that a bias draws below it, as toward zero shows
        yield _case("overflow", Shape(3 * tile.n, 96, n=tile.m, e=3), "bf16", tile=str(tile), bias="tiny")
    for experts in (256, 384, 99):  # a row at each, and all at one
        shape = Shape(experts, 96, n=8, e=experts)
        yield _case("one-hot-tokens", shape, "bf16", routing="all-one-token", alpha="distinct", tile=str(_SHALLOW))
        shape = Shape(9, 96, n=16, e=experts)
        yield _case("one-hot-weights", shape, routing="same-experts", bias="distinct", tile=str(_SHALLOW))
    for tile in (_SHALLOW, _MIDDLE):
        for rows in (tile.n - 1, tile.n):
            yield _case("one-hot-tokens", Shape(rows, 96, n=24, e=2), tile=str(tile), routing="same-experts")
    # Elements of the output, and bytes of weights, past 2^31.
    for dtype in OUTPUTS:
        yield _case("one-hot-tokens", Shape(5, 64, n=32, e=2), dtype, tile="128x128x256", rows_before=1 << 26)
    far: dict[str, Any] = {"alpha": "distinct", "bias": "distinct", "experts_before": 1 << 15, "tile": str(_SHALLOW)}
    yield _case("one-hot-weights", Shape(3, 256, n=512, e=2), routing="same-experts", **far)
    # Bytes of the scales of tokens, and of weights, past 2^31.
    yield _case("one-hot-tokens", Shape(5, 64, n=8, e=2), tile=str(_SHALLOW), rows_before=1 << 29)
    yield _case("one-hot-weights", Shape(3, 2048, n=512, e=2), routing="same-experts", **far)
    for tile in TILES[:2]:  # tokens of one expert past an atom of their scales
        yield _case("wide-range", Shape(136, 64, n=8, e=2), "bf16", tile=str(tile), routing="same-experts")
    yield _case("wide-range", Shape(400, 64, n=8, e=2), "f32", tile=str(_WIDE), routing="same-experts")  # past three
    # More steps of K than stages: the ring wraps, and its barriers go through several phases.
    for stages in (MIN_STAGES, max_stages(_SHALLOW, DEFAULT_ARCH)):
        yield _case("wide-range", Shape(2, 1440, n=16, e=2), tile=str(_SHALLOW), stages=stages)
    for tile, dtype in itertools.product(TILES, OUTPUTS):  # barriers of fewer stages than a loop sets up at once
        if (tile, dtype) != (_SHALLOW, "f32"):
            yield _case("wide-range", Shape(2, 1440, n=16, e=2), dtype, tile=str(tile), stages=MIN_STAGES)
    yield _case("gaussian", Shape(0, 416, n=72, e=2))
    # gpt-oss at decode: a token at 4 of 128 experts, M = 1 at each.
    yield _case("wide-range", Shape(4, _GPT_OSS_K, n=8, e=_EXPERTS), "bf16", alpha="distinct", bias="distinct")
    yield _case("wide-range", Shape(1, _DEEPSEEK_K, n=8, e=1))
    yield _case("real", Shape(9, 384, n=80, e=4), alpha="distinct", bias="distinct")
    # Each entry has machine code of its own: each meets the fills that show most. What differs by the output's type
    # lies behind the sums, where a fill that looks into a product shows nothing more; BF16 meets wide-range below.
    telling = {"f32": ("wide-range", "specials", "one-hot-weights"), "bf16": ("specials",)}
    for tile, dtype in itertools.product(TILES, OUTPUTS):
        for fill in telling[dtype]:
            # Without padding every lane's results count; a term and a product of one element may be zero together.
            bias = "none" if fill == "one-hot-weights" else "distinct"
            yield _case(fill, Shape(tile.n, 192, n=tile.m, e=1), dtype, tile=str(tile), bias=bias)
    for dtype, tile in itertools.product(OUTPUTS, TILES):
        few: dict[str, Any] = {"tile": str(tile), "multiprocessors": 3}
        yield _case("wide-range", _MANY, dtype, routing="empty-experts", alpha="distinct", bias="distinct", **few)
        # An expert past those that the lanes look at first has all rows, and a CTA's first tile.
        yield _case("gaussian", Shape(3, 64, n=16, e=33), dtype, tile=str(tile), routing="same-experts")
        # Subnormal factors, and about as many rows of each expert as a tile has.
        yield _case("gaussian", Shape(5 * tile.n, 64, n=tile.m, e=5), dtype, tile=str(tile), alpha="edges")
        if dtype == "f32":  # every lane's alpha, and sums of zero in a CTA's second tile
            yield _case("gaussian", Shape(tile.n, 64, n=tile.m, e=1), dtype, tile=str(tile), alpha="distinct")
            yield _case("zero-rows", Shape(2, 64, n=tile.m + 8, e=1), dtype, tile=str(tile), multiprocessors=1)
    yield _case("gaussian", Shape(m=5, k=64, n=16, e=3), first_expert=3, ranks=2, poison=0)  # the fill's default


def _full() -> Iterator[Case]:
    for tile in TILES:
        for dtype in OUTPUTS:
            yield _case("gaussian", _RAGGED, dtype, tile=str(tile), alpha="distinct", bias="distinct")
        for stages in range(MIN_STAGES, max_stages(tile, DEFAULT_ARCH) + 1):
            for k in (32, 416, 2880):
                yield _case("wide-range", Shape(9, k, n=136, e=3), tile=str(tile), stages=stages)
    for seed in (1, 2, 3):
        for fill in FILLS:
            for tile in TILES:
                shape = Shape(tile.n + 9, 736, n=264, e=4)
                yield _case(fill, shape, seed=seed, tile=str(tile))
                yield _case(fill, shape, "bf16", seed, tile=str(tile), alpha="distinct", bias="distinct")
    for k in range(128, 1056, 32):
        yield _case("one-hot-weights", Shape(3, k, n=264, e=2))
    for n in range(8, 264, 8):
        yield _case("one-hot-tokens", Shape(3, 160, n=n, e=2), "bf16")
    yield _case("one-hot-weights", Shape(3, 2880, n=2880, e=1), tile=str(_NARROW))  # every element of K
    for k, n in ((2880, 5760), (2880, 2880), (7168, 4096), (2048, 7168)):
        yield _case("wide-range", Shape(1, k, n=n, e=1))
        yield _case("gaussian", Shape(4, k, n=n // 4, e=4), "bf16", routing="all-one-token", bias="distinct")
    # gpt-oss with a row at each of its 128 experts.
    everyone = Shape(_EXPERTS, _GPT_OSS_K, n=8, e=_EXPERTS)
    yield _case("one-hot-weights", everyone, routing="all-one-token", alpha="distinct")
    yield _case("wide-range", Shape(300, 736, n=136, e=2), tile="128x128x256")  # a prefill
    yield _case("real", Shape(9, 1536, n=24, e=4), "bf16", alpha="distinct", bias="distinct")


def _half_a_copy(given: Arguments) -> Arguments:
    """Rows of both sides that end in the middle of a copy of 16 bytes."""
    return {name: np.ascontiguousarray(given[name][..., :-8]) for name in ("codes", "weights")}


def _refuses() -> Iterator[Case]:
    base = _case("gaussian", Shape(m=5, k=64, n=16, e=3), alpha="distinct", bias="distinct")
    wrong = {**WRONG_PRODUCTS, "codes": f"{WRONG_PRODUCTS['codes']} half_a_copy"}
    yield from wrong_calls(base, {**SAYS_OF_PRODUCTS, "codes-half_a_copy": "K a positive multiple of 32"}, **wrong)


SM12X_NVFP4_GEMM = Family(
    name="sm12x_nvfp4_gemm",
    about="Grouped GEMM of NVFP4 tokens in expert order with NVFP4 weights, for SM12x.",
    dtypes=("bf16", "f32"),
    sizes="mkne",
    fills=FILLS,
    options=(
        triple("tile", "", "MxNxK such as 128x8x512: weight rows, tokens, elements of K"),
        number("stages", launch=True),
        MULTIPROCESSORS,
        SCHEDULES,
        *(ROUTING, *RANKS, ALPHA, PRODUCT_BIAS, ROWS_BEFORE, EXPERTS_BEFORE, POISON, WRONG),
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=product_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes={**PRODUCT_CHANGES, "codes-half_a_copy": _half_a_copy},
    contract=CONTRACT,
    sources=("nvfp4_gemm",),
    host=("refmoe.cuda.nvfp4_gemm",),
    check=_check,
    lacks=lacks_memory,
    software=in_software(Mma.SYNC_NVF4, _software),
)
