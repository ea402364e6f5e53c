"""The family `sm12x_gemm`: operands, expectation, launch, cases.

The expectation comes from the accumulation model that the verdict names. Some fills allow a witness, a second answer
computed in another way: an exact int64 sum, all groups as one, K without its padding. The output is held against the
witness too. FP32 results must also lie within the model's running error bound around the exact sum.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.chips import Mma
from refmoe.cuda.gemm.tile import MIN_STAGES, TILES, Tile, check_tile, max_stages, parse_cluster, parse_tile
from refmoe.draw import Draw
from refmoe.evidence import REASONS
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
)
from refmoe.families.gemm.fills import FILLS, PADDED_K
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
from refmoe.families.wrong import WRONG, called, wrong_calls
from refmoe.formats import MX_BLOCK
from refmoe.reference.dequantize import dequantize_mxfp4, dequantize_mxfp8
from refmoe.reference.gemm import dense_gemm, grouped_gemm
from refmoe.reference.layout import unpack_fp4
from refmoe.reference.mma import MODELS, AccumulationModel, exact_sum, running_bound
from refmoe.reference.tensor import MXTensor

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

#: The accumulation model that the kernel is held against, on every device: where the instruction is missing, the
#: kernel carries it in software.
MODEL = MODELS["sm120"]

_EVIDENCE = MODEL.pair("e2m1", "e4m3").evidence

ASSUMPTION = Assumption(
    MODEL.name,
    _EVIDENCE.value,
    f"assumed of the tensor cores: the accumulation model {MODEL.name} ({MODEL.instruction}), whose evidence for "
    f"E2M1 x E4M3 is {_EVIDENCE.value}: {REASONS[_EVIDENCE]}. On ptx the executor computes the instruction by that "
    "model; on a GPU that lacks it the kernel does, in software. FP32 results also lie inside the model's running "
    "error bound around the exact sum, which is computed apart from it.",
)

_E4M3_NAN = 0x7F


def _inputs(case: Case) -> Inputs:
    data = FILLS[case.fill].make(Draw(case.fill, "sm12x_gemm", case.seed), case.shape)
    offsets = expert_offsets(case)
    tokens = data.tokens.codes.copy()
    tokens[offsets[-1] :] = _E4M3_NAN  # rows of no expert must not matter
    weights = (data.weights.codes, data.weights.scales)
    return gemm_inputs(case, tokens, data.tokens.scales, *weights, offsets, alpha_of(case), MX_BLOCK)


def _tensors(inputs: Inputs) -> tuple[MXTensor, MXTensor, NDArray[np.int64]]:
    tokens = MXTensor(inputs["tokens"], inputs["token_scales"], "mxfp8")
    return tokens, MXTensor(inputs["weights"], inputs["weight_scales"], "mxfp4"), inputs["offsets"]


def _expect(case: Case, inputs: Inputs) -> Expectation:
    """What the kernel has to write, from the model and from each second answer that the fill allows."""
    tokens, weights, offsets = _tensors(inputs)
    values = grouped_gemm(
        tokens,
        weights,
        offsets,
        model=MODEL,
        bias=inputs["bias"],
        alpha=inputs["alpha"],
        out_dtype=OUTPUTS[case.dtype],
    )
    second = None
    if case.fill in _WITNESSES:
        name, witness = _WITNESSES[case.fill]
        second = name, witness(tokens, weights, offsets)
    limits = FILLS[case.fill].limits
    return expect_products(
        case, inputs, values, second, lambda: product_bounds(tokens, weights, offsets), limits, ASSUMPTION
    )


Witness = Callable[[MXTensor, MXTensor, NDArray[np.int64]], FloatArray]


def _int64_sums(tokens: MXTensor, weights: MXTensor, offsets: NDArray[np.int64]) -> FloatArray:
    """Sums of whole numbers in int64; the fill makes no other, and none past 2^24."""
    left = dequantize_mxfp8(tokens.codes, tokens.scales).astype(np.int64)
    right = dequantize_mxfp4(weights.codes, weights.scales).astype(np.int64)
    sums = np.zeros((left.shape[0], right.shape[1]), np.int64)
    for expert, (start, stop) in enumerate(itertools.pairwise(offsets)):
        sums[start:stop] = left[start:stop] @ right[expert].T
    return sums.astype(np.float32)


def _one_group(tokens: MXTensor, weights: MXTensor, offsets: NDArray[np.int64]) -> FloatArray:
    """All rows as one dense product: right where all experts have the same weights."""
    one = MXTensor(weights.codes[0], weights.scales[0], "mxfp4")
    return np.asarray(dense_gemm(tokens, one, model=MODEL))


def _unpadded(tokens: MXTensor, weights: MXTensor, offsets: NDArray[np.int64]) -> FloatArray:
    """The product without the zeros at the end of K."""
    k = tokens.shape[-1] - PADDED_K

    def cut(whole: MXTensor) -> MXTensor:
        codes, scales = whole.codes[..., : k // whole.mx.codes_a_byte], whole.scales[..., : k // MX_BLOCK]
        return MXTensor(np.ascontiguousarray(codes), np.ascontiguousarray(scales), whole.format)

    return np.asarray(grouped_gemm(cut(tokens), cut(weights), offsets, model=MODEL))


#: Second answers by fill: the stage's name, and FP32 sums [T, N].
_WITNESSES: Mapping[str, tuple[str, Witness]] = {
    "integer": ("out-as-int64", _int64_sums),
    "shared-weights": ("out-as-one-group", _one_group),
    "zero-padded": ("out-unpadded", _unpadded),
}


def product_bounds(
    tokens: MXTensor, weights: MXTensor, offsets: NDArray[np.int64], model: AccumulationModel | str = MODEL
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The exact sums of a grouped GEMM and the model's running bound around them, float64 [T, N] both.

    Rows of no expert have the sum 0 and an infinite bound.
    """
    shape = tokens.shape[0], weights.shape[1]
    exact, bound = np.zeros(shape), np.full(shape, np.inf)
    for expert, (start, stop) in enumerate(itertools.pairwise(offsets)):
        if start == stop:
            continue
        operands: dict[str, Any] = {
            "a": unpack_fp4(weights.codes[expert]),
            "b": np.ascontiguousarray(tokens.codes[start:stop]),
            "c": np.zeros((shape[1], stop - start), np.float32),
            "a_format": "e2m1",
            "b_format": "e4m3",
            "a_scales": np.ascontiguousarray(weights.scales[expert]),
            "b_scales": np.ascontiguousarray(tokens.scales[start:stop]),
        }
        exact[start:stop] = exact_sum(**operands).T
        bound[start:stop] = running_bound(**operands, model=model).T
    return exact, bound


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.gemm.kernel import grouped_gemm as launch

    tile, stages = None, case.stages or None
    if case.tile:
        tile = parse_tile(case.tile)
        stages = called(case, check_tile)(tile, arch=device.arch, stages=stages, cluster=parse_cluster(case.cluster))
    return run_products(launch, case, inputs, device, tile=tile, stages=stages)


def _check(case: Case) -> None:
    if not case.tile and (case.stages or case.cluster != "1x1x1"):
        found = f"{case.stages}" if case.stages else case.cluster
        raise refused("stages" if case.stages else "cluster", found, "tile=MxNxK with it, of which it is")
    check_choices(case)
    check_far(case)


# --- cases ----------------------------------------------------------------------------------------------------------
# A case's data does not depend on its tile or stages, so that cases of one shape and fill that differ only in those are
# held against the same bytes: tiles and stages are equal to each other.

#: K in whole steps of no tile, over the end of a scale atom; N past one tile of weight rows, and of no whole warp.
_RAGGED_K, _RAGGED_N = 736, 136

#: Tokens of the narrow and of the wide tiles: one past a tile, so that the second one of an expert is nearly empty.
_PAST_A_TILE = {tile: tile.n + 1 for tile in TILES}

#: Fills that the default level takes to every tile, and the tiles that it takes the others to: narrowest and deepest,
#: in between, widest.
_EVERY_TILE = ("wide-range", "specials", "integer")
_THREE_TILES = (Tile(128, 8, 512), Tile(128, 32, 256), Tile(128, 128, 128))

#: Fills whose results an ordinary factor or bias would hide, or whose shape is their own.
_EDGE_FILLS = ("zero-rows", "overflow", "scale-bytes", "cancelling")
_PLAIN = tuple(name for name in FILLS if name not in _EDGE_FILLS)

#: More tiles than any arch has multiprocessors, with one step of K each: CTAs take several.
_LOOPING = Shape(m=8, k=96, n=2816, e=8)

#: Decode in gpt-oss (2880 -> 5760 and 2880 -> 2880) and DeepSeek-V3 (7168 -> 4096 and 2048 -> 7168): K, N of a layer.
_LAYERS = ((2880, 5760), (2880, 2880), (7168, 4096), (2048, 7168))

#: Every request that cannot be had: tile, stages, cluster, and what the kernel answers.
_REFUSED = (
    ("128x128x64", 0, "1x1x1", "a K of 64 elements is no whole number of atoms of the scale layout"),
    ("128x128x128", 6, "1x1x1", "153,600 bytes where a block has 100,352 for stages"),
    ("128x8x512", 1, "1x1x1", "with which nothing can be loaded while the tile is computed"),
    ("256x8x512", 0, "1x1x1", "a stage takes 75,776 bytes and 2 of them must fit in 100,352"),
    ("256x8x512", 0, "2x1x1", "needed 256x8x256 in a cluster of 1x1x1"),
)


def _software() -> list[Case]:
    """Cases small enough for the executor where the kernel carries the tensor-core instruction in software."""
    tile = "128x8x128"
    cases = [_case("wide-range", Shape(m=2, k=96, n=24, e=1), tile=tile)]
    # With more than one block of K an accumulator may be subnormal, infinite or NaN before the last one.
    cases += [_case(fill, Shape(m=8, k=160, n=16, e=1), tile=tile) for fill in FILLS]
    cases.append(_case("zero-specials", Shape(m=8, k=64, n=16, e=1), tile=tile))  # and the zeros in the other block
    cases.append(_case("scale-bytes", Shape(m=8, k=96, n=256, e=1), tile=tile))  # every byte of weights
    # Of tokens: among the sums are negative ones that underflow, and leave a zero without a sign, and one all of whose
    # terms lie below the least exponent of an alignment.
    cases.append(_case("scale-bytes", Shape(m=32, k=256, n=24, e=1), tile=tile))
    return cases


def _case(fill: str, shape: Shape, dtype: str = "f32", seed: int = 7, **options: Any) -> Case:
    return SM12X_GEMM.case(fill, shape, dtype, seed, **options)


def _quick() -> Iterator[Case]:
    ragged = Shape(m=5, k=416, n=_RAGGED_N, e=3)
    for tile in TILES:
        yield _case("wide-range", ragged, tile=str(tile))
    for tile in TILES:
        yield _case("gaussian", ragged, "bf16", tile=str(tile), alpha="distinct", bias="distinct")
    for fill in _PLAIN:
        yield _case(fill, dataclasses.replace(ragged, m=7))  # past the six kinds of token of the fill `specials`
    for tile in TILES:
        # All rows at the last expert, past one tile of tokens: those before have none and shift nobody.
        yield _case("one-hot-tokens", Shape(_PAST_A_TILE[tile], 160, n=24, e=3), tile=str(tile), routing="same-experts")
    yield _case("one-hot-weights", Shape(m=6, k=416, n=72, e=6), routing="all-one-token")
    yield _case("one-hot-tokens", Shape(m=6, k=416, n=72, e=9), routing="empty-experts", poison=0x7F)
    yield _case("gaussian", Shape(m=7, k=416, n=72, e=4), "bf16", first_expert=4, ranks=2)
    yield _case("gaussian", Shape(m=3, k=416, n=72, e=4), routing="elsewhere", first_expert=4, ranks=2)
    yield _case("gaussian", Shape(m=3, k=416, n=72, e=2), alpha="distinct")
    yield _case("gaussian", Shape(m=3, k=416, n=72, e=2), bias="distinct")
    yield _case("wide-range", _LOOPING, tile="128x8x128", routing="all-one-token")
    for request, stages, cluster, why in _REFUSED:
        yield _case("wide-range", ragged, tile=request, stages=stages, cluster=cluster, refusal=why)
    yield _case("wide-range", dataclasses.replace(ragged, n=12), refusal="needed N a multiple of 8")


def _default() -> Iterator[Case]:
    ragged = Shape(m=9, k=_RAGGED_K, n=_RAGGED_N, e=3)
    for fill in _PLAIN:
        for tile in TILES if fill in _EVERY_TILE else _THREE_TILES:
            yield _case(fill, ragged, tile=str(tile), alpha="distinct", bias="distinct", poison=0x7F)
    for tile in TILES:
        yield _case("specials", ragged, "bf16", tile=str(tile))
    for dtype in ("bf16", "f32"):  # the bias of more weight rows than 12 bits count, as gpt-oss's 5760
        yield _case("wide-range", Shape(m=1, k=32, n=4232, e=1), dtype, alpha="distinct", bias="distinct")
    # Many more steps of K than stages: the ring wraps, and its barriers go through many phases.
    for tile in TILES:
        for stages in sorted({MIN_STAGES, max_stages(tile)}):
            yield _case("wide-range", Shape(m=2, k=1440, n=16, e=2), tile=str(tile), stages=stages)
        yield _case("wide-range", Shape(m=2, k=1440, n=16, e=2), "bf16", tile=str(tile), stages=MIN_STAGES)
    for tile in TILES:
        yield _case("gaussian", Shape(m=0, k=416, n=72, e=2), tile=str(tile))
    yield from _edges()
    yield from _far()
    yield from _every_entry()
    for (k, n), (rows, routing) in itertools.product(_LAYERS, ((1, "uniform"), (4, "all-one-token"))):
        shape = Shape(rows, k, n=n // 45 if k == 2880 else n // 64, e=rows)
        yield _case("wide-range", shape, routing=routing)
        yield _case("gaussian", shape, "bf16", routing=routing, alpha="distinct", bias="distinct")
    for (k, n), dtype in itertools.product(((384, 80), (1536, 24)), ("f32", "bf16")):
        yield _case("real", Shape(m=9, k=k, n=n, e=4), dtype, bias="distinct")
    yield _case("one-hot-weights", Shape(m=3, k=2880, n=2880, e=1), tile="128x8x512")  # every element of K
    yield _case("one-hot-weights", _LOOPING, "bf16", tile="128x16x128", routing="all-one-token")
    yield _case("gaussian", Shape(m=5, k=64, n=16, e=3), first_expert=3, ranks=2, poison=0)  # the fill's default
    # A ring that wraps, and a CTA that takes several tiles.
    wraps: dict[str, Any] = {"stages": MIN_STAGES, "multiprocessors": 1, "schedules": 4}
    yield _case("wide-range", Shape(m=3, k=416, n=24, e=2), tile="128x8x128", **wraps)


def _edges() -> Iterator[Case]:
    """Values at the ends of FP32 and BF16, and numbers of experts and rows that real models have."""
    # The last expert of a window of 32 has more tiles than there are CTAs, and experts may follow it.
    for experts, rows in ((32, 17), (64, 9), (40, 160)):
        many = Shape(rows, 96, n=264, e=experts)
        routing = "uniform" if experts == 40 else "same-experts"
        yield _case("gaussian", many, "f32", tile="128x8x128", routing=routing, multiprocessors=1, alpha="distinct")
    # A bias that is a NaN or an infinity, or that overflows.
    for dtype in OUTPUTS:
        yield _case("specials", Shape(9, 96, n=24, e=3), dtype, alpha="distinct", bias="specials")
    for dtype, bias in (("f32", "none"), ("f32", "tiny"), ("bf16", "tiny")):
        # A factor for each expert: zeros of either sign with and without a bias, products and sums that are subnormal.
        for fill in ("zero-rows", "positive"):
            yield _case(
                fill, Shape(18, 96, n=24, e=9), dtype, alpha="edges", bias=bias, routing="all-one-token", ranks=2
            )
    for dtype in OUTPUTS:
        yield _case("overflow", Shape(9, 96, n=24, e=2), dtype, tile="128x8x128")
    yield _case("scale-bytes", Shape(5, 96, n=256, e=1))  # of weights: every byte with every code
    yield _case("scale-bytes", Shape(256, 256, n=8, e=1), tile="128x128x128")  # of tokens
    for experts in (128, 256, 384, 99):
        # A row at each expert, and of one expert all; more experts than the lanes that look for a tile, and than a byte
        # counts, as Kimi K2 has.
        yield _case(
            "one-hot-tokens", Shape(experts, 32, n=8, e=experts), "bf16", routing="all-one-token", alpha="distinct"
        )
        yield _case("one-hot-weights", Shape(9, 32, n=16, e=experts), routing="same-experts", bias="distinct")
    for dtype in OUTPUTS:
        # Past nine bits of experts.
        far = Shape(5, 32, n=8, e=600)
        yield _case("one-hot-tokens", far, dtype, routing="same-experts", alpha="distinct", bias="distinct")
    for tile in _THREE_TILES:
        for rows in (tile.n - 1, tile.n):
            yield _case("one-hot-tokens", Shape(rows, 160, n=24, e=2), tile=str(tile), routing="same-experts")
    for tile in TILES[:2]:  # tokens of one expert past an atom of their scales
        yield _case("wide-range", Shape(136, 32, n=8, e=2), "bf16", tile=str(tile), routing="same-experts")
    for tile in _THREE_TILES[1:]:  # past three
        yield _case("wide-range", Shape(400, 32, n=8, e=2), "f32", tile=str(tile), routing="same-experts")
    for dtype in OUTPUTS:  # subnormal sums, to which a term is added, without a factor
        yield _case("scale-bytes", Shape(9, 96, n=24, e=3), dtype, bias="tiny")
    for n in (120, 128):  # a tile's weight rows, and a scale row less
        yield _case("one-hot-weights", Shape(3, 96, n=n, e=2), tile="128x8x128")


def _far() -> Iterator[Case]:
    """Elements of the output, bytes of tokens and of their scales, and bytes of weights and of theirs, past 2^31."""
    for dtype in OUTPUTS:
        yield _case("one-hot-tokens", Shape(5, 32, n=8, e=2), dtype, tile="128x128x128", rows_before=1 << 29)
    far = Shape(3, 4096, n=512, e=2)
    options: dict[str, Any] = {"alpha": "distinct", "bias": "distinct", "experts_before": 1 << 15}
    yield _case("one-hot-weights", far, tile="128x8x256", routing="same-experts", **options)


#: The fills that show most of a product.
_TELLING = ("wide-range", "specials", "one-hot-tokens", "one-hot-weights", "gaussian")


def _every_entry() -> Iterator[Case]:
    """Each entry has machine code of its own: each meets the fills that show most."""
    for tile, dtype, fill in itertools.product(TILES, OUTPUTS, _TELLING):
        whole = Shape(m=max(tile.n, 7), k=288, n=tile.m, e=1)  # a tile without padding: every lane's results count
        yield _case(fill, whole, dtype, tile=str(tile), alpha="distinct", bias="distinct")
    for tile, dtype in itertools.product(TILES, OUTPUTS):
        # Subnormal factors, and about as many rows of each expert as a tile has.
        yield _case("gaussian", Shape(5 * tile.n, 64, n=tile.m, e=5), dtype, tile=str(tile), alpha="edges")
        # More experts than the lanes that look for a tile, tiles behind whole ones, a tail of N and of K; and so few
        # CTAs that each takes many tiles.
        many = Shape(m=2 * tile.n + 64, k=416, n=tile.m + 8, e=40)
        few: dict[str, Any] = {"tile": str(tile), "multiprocessors": 3}
        yield _case("wide-range", many, dtype, alpha="distinct", bias="distinct", **few)
        # A factor, and products, below all normal numbers.
        below = Shape(m=max(tile.n, 7), k=96, n=tile.m, e=5)
        yield _case("gaussian", below, dtype, tile=str(tile), routing="same-experts", alpha="edges", bias="tiny")
        # The first of the next lanes' experts has all rows, and a CTA's first tile.
        yield _case("gaussian", Shape(m=3, k=64, n=16, e=33), dtype, tile=str(tile), routing="same-experts")
        if dtype == "bf16":  # sums on the middle of two BF16 numbers that a bias draws below it, as toward zero shows
            yield _case("overflow", Shape(3 * tile.n, 64, n=tile.m, e=3), dtype, tile=str(tile), bias="tiny")
        if dtype == "f32":  # sums of zero in a CTA's second tile
            yield _case("zero-rows", Shape(m=2, k=64, n=tile.m + 8, e=1), dtype, tile=str(tile), multiprocessors=1)


def _full() -> Iterator[Case]:
    for tile in TILES:
        for stages in range(MIN_STAGES, max_stages(tile) + 1):
            for k in (32, 416, 2880):
                yield _case("wide-range", Shape(m=9, k=k, n=_RAGGED_N, e=3), tile=str(tile), stages=stages)
    for seed, fill, tile in itertools.product((1, 2, 3), FILLS, TILES):
        shape = Shape(m=tile.n + 9, k=_RAGGED_K, n=264, e=4)
        yield _case(fill, shape, seed=seed, tile=str(tile))
        alpha = "none" if fill == "overflow" else "distinct"
        yield _case(fill, shape, "bf16", seed, tile=str(tile), alpha=alpha, bias="distinct")
    for k in range(128, 1056, 32):
        yield _case("one-hot-weights", Shape(m=3, k=k, n=264, e=2))
    for n in range(8, 264, 8):
        yield _case("one-hot-tokens", Shape(m=3, k=160, n=n, e=2), "bf16")
    for k, n in _LAYERS:
        yield _case("wide-range", Shape(m=1, k=k, n=n, e=1))
        yield _case("gaussian", Shape(m=4, k=k, n=n // 4, e=4), "bf16", routing="all-one-token", bias="distinct")
    for tile in (Tile(128, 64, 128), Tile(128, 128, 128), Tile(256, 8, 256)):
        yield _case("wide-range", Shape(m=300, k=_RAGGED_K, n=_RAGGED_N, e=2), tile=str(tile))  # a prefill


def _refuses() -> Iterator[Case]:
    base = _case("gaussian", Shape(m=5, k=64, n=16, e=3), alpha="distinct", bias="distinct")
    yield from wrong_calls(base, SAYS_OF_PRODUCTS, **WRONG_PRODUCTS)
    yield from wrong_calls(base.having(tile="128x8x512"), cluster="fewer empty")


SM12X_GEMM = Family(
    name="sm12x_gemm",
    about="Grouped GEMM of MXFP8 tokens in expert order with MXFP4 weights, for SM12x.",
    dtypes=("bf16", "f32"),
    sizes="mkne",
    fills=FILLS,
    options=(
        triple("tile", "", "MxNxK such as 128x8x512: weight rows, tokens, elements of K"),
        number("stages", launch=True),
        MULTIPROCESSORS,
        SCHEDULES,
        triple("cluster", "1x1x1", "blocks such as 2x1x1"),
        *(ROUTING, *RANKS, ALPHA, PRODUCT_BIAS, ROWS_BEFORE, EXPERTS_BEFORE, POISON, WRONG),
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=product_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes={**PRODUCT_CHANGES, "cluster-empty": lambda given: {"cluster": (0, 1, 1)}},
    contract=CONTRACT,
    sources=("gemm",),
    host=("refmoe.cuda.gemm.kernel",),
    check=_check,
    lacks=lacks_memory,
    software=in_software(Mma.SYNC_MX, _software),
)
