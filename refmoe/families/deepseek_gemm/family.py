"""The family `deepseek_gemm`: inputs, expectation, run and cases of the grouped GEMM in block FP8.

What a tensor core makes of 128 products depends on its instruction, so that a case names the accumulation model which
its bytes follow. A chip runs the cases of its own instructions.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.cuda.deepseek_gemm import (
    INSTRUCTIONS,
    OUT_DTYPES,
    SCALE_LAYOUTS,
    TILE_N,
    accumulation_models,
    cta_of_tile,
)
from refmoe.draw import Draw
from refmoe.families.case import MULTIPROCESSORS, SCHEDULES, Shape, number, refused, word
from refmoe.families.deepseek_gemm.fills import FILLS, NAN_CODE, Floats, Operands, Size
from refmoe.families.deepseek_gemm.problem import (
    CHANGES,
    ROWS,
    WEIGHTS,
    WRONG_PRODUCTS,
    ExpertRows,
    GroupedOutputs,
    Window,
    expert_rows,
    output_rows,
    window_tiles,
    windows,
)
from refmoe.families.extents import ELEMENT_BYTES, WITNESSES
from refmoe.families.family import (
    POISON,
    SAMPLES,
    Assumption,
    Case,
    Contract,
    Expectation,
    Extents,
    Family,
    Inputs,
    Outputs,
)
from refmoe.families.far import EXPERTS_BEFORE, ROWS_BEFORE, Layout, behind, far_device, lacks_memory
from refmoe.families.gemm.stages import BoundInterval
from refmoe.families.vacuity import doubt_products
from refmoe.families.wrong import ARRAY, WRONG, called, wrong_calls
from refmoe.formats import E4M3
from refmoe.reference.deepseek_gemm import (
    BLOCK,
    Group,
    contiguous_groups,
    deepseek_gemm,
    deepseek_gemm_bounds,
    deepseek_gemm_masked,
    masked_groups,
    promoted_sums,
)
from refmoe.reference.fp32 import bf16
from refmoe.reference.mma import MODELS

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_BITS: Mapping[str, type[np.unsignedinteger[Any]]] = {"bf16": np.uint16, "f32": np.uint32}
#: The models whose instructions the kernels use.
_MODELS = ("sm120", "sm90_mma_fp8", "sm90_wgmma_fp8")

# --- inputs ---------------------------------------------------------------------------------------------------------


def _inputs(case: Case) -> Inputs:
    """Operands as kernels take them; what no kernel may read holds NaN: scales of unused rows, and behind rows."""
    shape, rows = case.shape, expert_rows(case)
    total, masked = output_rows(case), case.grouping == "masked"
    data: Operands = FILLS[case.fill].make(
        Draw("deepseek", case.fill, case.seed), Size(total, shape.k, shape.n, shape.e)
    )
    unused = ~rows.used(total)
    tokens, scales = data.tokens.copy(), data.token_scales.copy()
    tokens[unused], scales[unused] = NAN_CODE, np.nan
    if masked:
        tokens = tokens.reshape(shape.e, shape.m, shape.k)
        scales = scales.reshape(shape.e, shape.m, -1)
    asked = windows(case, rows) if case.sample else None
    return {
        "tokens": tokens,
        "token_scales": _laid_out(scales, case.scales, case.pad),
        "weights": data.weights,
        "weight_scales": data.weight_scales,
        "m_indptr": None if masked else np.array([*rows.first, rows.first[-1] + rows.counts[-1]], np.int64),
        "masked_m": np.array(rows.counts, np.int32) if masked else None,
        "windows": None if asked is None else np.array([window[1:] for window in asked], np.int64).reshape(-1, 4),
    }


def _laid_out(scales: Floats, layout: str, pad: int) -> Floats:
    """Scales [..., rows, blocks] in a layout, the rows of the buffer `pad` numbers longer."""
    lines = scales if layout == "k_major" else scales.swapaxes(-1, -2)
    widths = [(0, 0)] * (scales.ndim - 1) + [(0, pad)]
    return np.ascontiguousarray(np.pad(lines, widths, constant_values=np.nan))


# --- expectation ----------------------------------------------------------------------------------------------------


def assumption_of(name: str) -> Assumption:
    """What a verdict assumes that names an accumulation model."""
    evidence = MODELS[name].pair(E4M3.name, E4M3.name).evidence.value
    return Assumption(
        name,
        evidence,
        f"assumed of the tensor cores: the accumulation model {name} ({MODELS[name].instruction}), whose evidence is "
        f"{evidence}, for each 128 of K. The promotion to FP32, RN(RN(token scale * weight scale) * partial + "
        "sum), is IEEE arithmetic and assumes nothing.",
    )


#: What a verdict assumes, by model.
ASSUMPTIONS: Mapping[str, Assumption] = {name: assumption_of(name) for name in _MODELS}


def _arguments(case: Case, inputs: Inputs) -> tuple[Any, ...]:
    """The operands of the reference and of the kernel, in their order."""
    rows = inputs["masked_m"] if case.grouping == "masked" else inputs["m_indptr"]
    return (*(inputs[name] for name in ("tokens", "token_scales", "weights", "weight_scales")), rows)


def _expect(case: Case, inputs: Inputs) -> Expectation:
    rows, n, total = expert_rows(case), case.shape.n, output_rows(case)
    asked = windows(case, rows)
    mask = np.zeros((total, n), bool)
    for window in asked:
        mask[window.place] = True
    values = _sampled(case, inputs, asked) if case.sample else _whole(case, inputs).reshape(total, n)
    outputs = {"out": _output_bits(case, inputs, values, mask)}
    if case.fill in _WITNESSES and not case.sample:
        name, witness = _WITNESSES[case.fill]
        outputs[name] = _output_bits(case, inputs, witness(case, inputs, rows).astype(OUT_DTYPES[case.dtype]), mask)
    within = _interval(case, inputs) if case.dtype == "f32" and not case.sample else None
    stages = tuple(
        GroupedOutputs(name, case.dtype, n, rows, case.poison, mask, within if name == "out" else None)
        for name in outputs
    )
    used = inputs["token_scales"][np.isfinite(inputs["token_scales"])]
    doubt = doubt_products(
        values[mask].astype(np.float32),
        used.view(np.uint32),
        inputs["weight_scales"].view(np.uint32),
        None if within is None else within.relative_width(),
        FILLS[case.fill].limits,
    )
    answers = dict.fromkeys(outputs, "out")
    return Expectation(
        outputs, stages, doubt, ASSUMPTIONS[case.model], lambda found: stages[0].outside(found["out"]), answers
    )


def _whole(case: Case, inputs: Inputs) -> NDArray[Any]:
    reference = deepseek_gemm_masked if case.grouping == "masked" else deepseek_gemm
    return reference(
        *_arguments(case, inputs), model=case.model, scale_layout=case.scales, out_dtype=OUT_DTYPES[case.dtype]
    )


def _groups(case: Case, inputs: Inputs) -> list[Group]:
    """The experts that have rows, with their codes and scales."""
    tokens, scales, weights, weight_scales, rows = _arguments(case, inputs)
    groups = masked_groups if case.grouping == "masked" else contiguous_groups
    return groups(tokens, scales, weights, weight_scales, rows, case.scales)


def _sampled(case: Case, inputs: Inputs, asked: list[Window]) -> NDArray[Any]:
    """The output [rows, N] in the windows, zeros elsewhere."""
    out = np.zeros((output_rows(case), case.shape.n), OUT_DTYPES[case.dtype])
    by_expert = {group.expert: group for group in _groups(case, inputs)}
    first = expert_rows(case).first
    for window in asked:
        group, (rows, columns) = by_expert[window.expert], window.place
        local = slice(rows.start - first[window.expert], rows.stop - first[window.expert])
        tiles = slice(columns.start // TILE_N, columns.stop // TILE_N)
        sums = promoted_sums(
            group.codes[local],
            group.scales[local],
            inputs["weights"][window.expert, columns],
            inputs["weight_scales"][window.expert, tiles],
            MODELS[case.model],
        )
        out[window.place] = bf16(sums) if case.dtype == "bf16" else sums
    return out


def _output_bits(case: Case, inputs: Inputs, values: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Bit patterns in the form of the output; places that are not asked for hold the poison."""
    bits = np.ascontiguousarray(values).view(_BITS[case.dtype])
    poison = np.frombuffer(bytes([case.poison]) * bits.itemsize, bits.dtype)[0]
    return np.where(mask, bits, poison).reshape(*inputs["tokens"].shape[:-1], case.shape.n)


#: Rows of an expert whose sums are held against exact ones.
_BOUNDED_ROWS = 16


def _interval(case: Case, inputs: Inputs) -> BoundInterval:
    """Where FP32 outputs must lie, float64 [rows, N]: FP32 numbers are compared with the bound's own ends.

    Of an expert's rows the first have a bound: it holds the reference against exact sums, and costs as much as that.
    """
    shape = (*inputs["tokens"].shape[:-1], case.shape.n)
    groups = [group.first_rows(_BOUNDED_ROWS) for group in _groups(case, inputs)]
    bounds = deepseek_gemm_bounds(groups, inputs["weights"], inputs["weight_scales"], shape, case.model)
    exact, bound = (each.reshape(-1, case.shape.n) for each in bounds)
    with np.errstate(invalid="ignore"):
        return BoundInterval(exact - bound, exact + bound, exact, bound)


Witness = Callable[[Case, Inputs, ExpertRows], NDArray[np.float32]]


def _int64_sums(case: Case, inputs: Inputs, rows: ExpertRows) -> NDArray[np.float32]:
    """Sums of whole numbers in int64; the fill makes no other, and none past 2^24."""
    values = E4M3.values()
    scales = inputs["token_scales"]
    used = scales[..., : case.shape.k // BLOCK] if case.scales == "k_major" else scales[..., : case.shape.m]
    by_row = (used if case.scales == "k_major" else used.swapaxes(-1, -2)).reshape(-1, case.shape.k // BLOCK)
    # What nobody reads is NaN, which is no whole number.
    left = np.nan_to_num(values[inputs["tokens"].reshape(-1, case.shape.k)]).astype(np.int64)
    left = left * np.repeat(np.nan_to_num(by_row).astype(np.int64), BLOCK, axis=1)
    sums = np.zeros((left.shape[0], case.shape.n), np.int64)
    for expert, (first, count) in enumerate(zip(rows.first, rows.counts, strict=True)):
        right = values[inputs["weights"][expert]].astype(np.int64)
        tiles = inputs["weight_scales"][expert].astype(np.int64)
        right = right * np.repeat(np.repeat(tiles, TILE_N, axis=0), BLOCK, axis=1)
        sums[first : first + count] = left[first : first + count] @ right.T
    return sums.astype(np.float32)


def _one_group(case: Case, inputs: Inputs, rows: ExpertRows) -> NDArray[np.float32]:
    """All rows as one expert's: right where all experts have the same weights, and rows are contiguous."""
    tokens, scales, weights, weight_scales, _ = _arguments(case, inputs)
    one = np.array([0, rows.first[-1] + rows.counts[-1]], np.int64)
    operands = tokens, scales, weights[:1], weight_scales[:1], one
    return np.asarray(deepseek_gemm(*operands, model=case.model, scale_layout=case.scales, out_dtype=np.float32))


#: Second answers by fill: the stage's name, and FP32 sums [rows, N].
_WITNESSES: Mapping[str, tuple[str, Witness]] = {
    "integer": ("out-as-int64", _int64_sums),
    "shared-weights": ("out-as-one-group", _one_group),
}

# --- run ------------------------------------------------------------------------------------------------------------


#: Tiles of tokens that are numbered together: kBand.
_BAND = 8


def _far(case: Case, tile_m: int) -> Layout:
    """Where rows and experts lie in the kernel's buffers; the experts in front have no rows."""
    rows, experts, shape = int(case.rows_before), int(case.experts_before), case.shape
    return Layout(
        {
            **{"tokens": rows * shape.k, "token_scales": rows * (shape.k // BLOCK) * 4},
            **{"weights": experts * shape.n * shape.k},
            "weight_scales": experts * (shape.n // TILE_N) * (shape.k // BLOCK) * 4,
            "out": rows * shape.n * np.dtype(OUT_DTYPES[case.dtype]).itemsize,
        },
        counts={0: experts},
        values={"m_indptr": lambda rows_of: np.concatenate([np.zeros(experts, np.int64), behind(rows_of, rows)])},
        tiles_before=rows // tile_m * (shape.n // TILE_N),
    )


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.deepseek_gemm import deepseek_gemm as contiguous
    from refmoe.cuda.deepseek_gemm import deepseek_gemm_masked as masked

    rows = expert_rows(case)
    tile_m = case.tile_m or INSTRUCTIONS[case.model].choose_tile_m(-(-sum(rows.counts) // case.shape.e))
    run = window_tiles(windows(case, rows), rows, tile_m, TILE_N) if case.sample else None
    options: dict[str, Any] = {
        "model": case.model,
        "scale_layout": case.scales,
        "tile_m": tile_m,
        "ctas": case.ctas,
        "out_dtype": case.dtype,
        "fill": case.poison,
        "blocks": None if run is None else tuple(_cta(case, rows, tile, tile_m) for tile in run),
    }
    if case.grouping == "masked":
        options["expected_m"] = case.expected_m or None
    launch = called(case, masked if case.grouping == "masked" else contiguous)
    place = far_device(case, device, _far(case, tile_m))
    out = launch(*_arguments(case, inputs), device=place, **options)
    bits: NDArray[Any] = np.ascontiguousarray(out).view(_BITS[case.dtype])
    return {"out": of_windows(case, inputs, bits, run if device.name == "ptx" else None)}


def of_windows(case: Case, inputs: Inputs, bits: NDArray[Any], run: Sequence[Window] | None = None) -> NDArray[Any]:
    """The output as if a kernel had computed the windows of the case alone; all of it where the case has none.

    Args:
        case: the case.
        inputs: its arrays.
        bits: the output.
        run: the tiles whose CTAs ran. What is written beside them stays, and so is found. None for a GPU, which
            computes all of the output.
    """
    if not case.sample:
        return bits
    rows = expert_rows(case)
    kept = np.zeros((output_rows(case), case.shape.n), bool)
    if run is not None:
        kept[:] = True
        for tile in run:
            kept[tile.place] = False
    for window in windows(case, rows):
        kept[window.place] = True
    return _output_bits(case, inputs, bits.reshape(kept.shape), kept)


def _cta(case: Case, rows: ExpertRows, tile: Window, tile_m: int) -> int:
    """The CTA that computes a tile."""
    place = tile.expert, tile.row - rows.first[tile.expert], tile.column
    return cta_of_tile(rows.counts, place, tile_m, case.shape.n, case.ctas)


def _lacks(case: Case, arch: str) -> str | None:
    """Why a chip cannot run a case: its instructions follow other models, or it would compute what lies in front."""
    if (far := lacks_memory(case, arch)) is not None:
        return far
    if arch and case.model not in (had := accumulation_models(arch)):
        return (
            f"{arch} has no instruction of the model {case.model}; its own are of {' and '.join(had) or 'none of ours'}"
        )
    return None


def _check(case: Case) -> None:
    if case.shape.n % TILE_N:
        raise refused("shape", str(case.shape), f"an n that is a multiple of {TILE_N}, which share a scale")
    expert_rows(case)
    if case.expected_m and (case.grouping != "masked" or case.expected_m > case.shape.m):
        raise refused("expected_m", str(case.expected_m), f"grouping=masked with it, and at most {case.shape.m}")
    whole_bands = _BAND * (case.tile_m or 1)
    if (case.rows_before or case.experts_before) and (
        (case.grouping, case.scales) != ("contiguous", "k_major")
        or not case.tile_m
        or case.rows_before % whole_bands
        or case.ctas > 1
        or case.pad
        or case.sample
    ):
        needed = f"whole bands of {whole_bands} rows with tile_m, contiguous, ctas=1, without pad and sample"
        raise refused("rows_before", str(case.rows_before), needed)
    if case.fill == "shared-weights" and case.grouping == "masked":
        raise refused("fill", case.fill, "grouping=contiguous: rows of a batch lie apart")


# --- cases ----------------------------------------------------------------------------------------------------------

#: The sizes of DeepSeek-V3's experts: gate and up together, then down.
GATE_UP, DOWN = (7168, 4096), (2048, 7168)
#: Rows of an expert: none, decode, a prefill's share, one past a tile, many tiles.
_CLASSES = "0-1-7-128-1000"
_CLASS_ROWS = sum(map(int, _CLASSES.split("-")))
#: Rows at the tail of every tile, and an expert with none.
_SMALL, _SMALL_ROWS = Shape(m=24, k=384, n=128, e=3), "5-0-17"
#: A batch with an expert without rows, one with all of them, and one in between.
_BATCH, _BATCH_ROWS = Shape(m=19, k=384, n=256, e=4), "19-0-1-11"
#: More blocks of K than any kernel has stages, an odd number of them, for fewer rows than a tile has.
_DEEP = Shape(m=9, k=1408, n=128, e=2)
#: More tiles than two multiprocessors take at once: persistent CTAs take several. Tensor copies store 64 rows.
_LOOPING_OPTIONS: dict[str, Any] = {"rows": "64", "multiprocessors": 2}
_LOOPING_SHAPE = Shape(m=192, k=128, n=256, e=3)
_HOPPER = _MODELS[1:]


def _case(fill: str, shape: Shape, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return DEEPSEEK_GEMM.case(fill, shape, dtype, seed, **options)


def _quick() -> Iterator[Case]:
    yield from _touching(_MODELS[0], ("one-hot-tokens", "near", "cancelling", "specials"))
    for model in _HOPPER:
        yield from _touching(model, FILLS)
        yield _case("real", Shape(9, 384, n=256, e=4), scales="mn_major", pad=3, model=model)
    wgmma: dict[str, Any] = {"model": "sm90_wgmma_fp8"}
    # A tile whose first 64 tokens are the expert's and whose others are not, and one with all 128: both ways to store.
    yield _case("wide-range", Shape(200, 256, n=128, e=2), rows="64-129", tile_m=128, **wgmma)
    yield _case("wide-range", Shape(200, 384, n=256, e=3), rows="64-0-130", tile_m=128, ctas=2, **wgmma)
    # The widest tile: one part of the first warpgroup, both of it and one of the second, and all with a row left over.
    yield _case("wide-range", Shape(521, 256, n=128, e=3), rows="64-200-257", tile_m=256, **wgmma)
    yield _case("near", _SMALL, rows=_SMALL_ROWS, tile_m=8, refusal="needed one of 64, 128, 256", **wgmma)
    yield _case("near", _SMALL, rows=_SMALL_ROWS, tile_m=128, ctas=2, refusal="N a multiple of 256", **wgmma)
    wide = Shape(5, 128, n=1152, e=2)
    yield _case("near", wide, rows="2-3", tile_m=128, ctas=2, refusal="N a multiple of 256", **wgmma)


def _touching(model: str, fills: Iterable[str]) -> Iterator[Case]:
    """Cases that touch every line of a kernel."""
    tiles = INSTRUCTIONS[model].tiles_m
    for index, fill in enumerate(fills):
        tile_m, layout = tiles[index % len(tiles)], SCALE_LAYOUTS[index % 2]
        yield _case(fill, _SMALL, "f32", rows=_SMALL_ROWS, tile_m=tile_m, scales=layout, model=model)
    batch: dict[str, Any] = {"grouping": "masked", "rows": _BATCH_ROWS, "model": model}
    yield _case("wide-range", _BATCH, expected_m=3, pad=3, **batch)
    yield _case("specials", _BATCH, tile_m=64, scales="mn_major", pad=5, **batch)
    yield _case("overflow", _SMALL, rows=_SMALL_ROWS, scales="mn_major", pad=1, poison=0x7F, model=model)
    for tile_m in (tiles[0], tiles[-1]):
        yield _case("near", _DEEP, "f32", rows="4-5", tile_m=tile_m, model=model)


def _default() -> Iterator[Case]:
    yield from _touching(_MODELS[0], FILLS)
    for tile_m in INSTRUCTIONS[_MODELS[0]].tiles_m:
        # Every expert's rows end one past a tile, and one expert has none.
        rows = f"{tile_m + 1}-0-{tile_m}"
        yield _case("near", Shape(2 * tile_m + 3, 256, n=128, e=3), rows=rows, tile_m=tile_m, pad=2)
    # More experts than a warp has lanes to look for a tile, one row at each but for every third.
    yield _case("near", Shape(48, 256, n=128, e=70), "f32", rows="1-0-1")
    # More tiles of tokens than a band has, and then a band that is not full.
    yield _case("wide-range", Shape(75, 128, n=384, e=1), rows="75", tile_m=8)
    yield _case("near", Shape(1, 128, n=128, e=1), "f32")  # one block: fewer than there are stages
    yield _case("near", Shape(3, 640, n=128, e=2), grouping="masked", rows="0")
    yield _case("near", Shape(0, 256, n=128, e=2))
    yield _case("near", Shape(20, 256, n=128, e=3))  # rows split at random, some of no expert
    yield _case("real", Shape(9, 384, n=256, e=4), scales="mn_major", pad=3)
    yield _case("near", _SMALL, rows=_SMALL_ROWS, tile_m=24, refusal="needed one of 8, 16, 32, 64, 128")
    wgmma: dict[str, Any] = {"model": "sm90_wgmma_fp8"}
    yield _case("near", Shape(70, 896, n=256, e=1), "f32", rows="70", tile_m=128, ctas=2, **wgmma)
    yield _case("near", dataclasses.replace(_DEEP, k=896, n=256), rows="4-5", tile_m=128, ctas=2, **wgmma)
    yield _case("near", _DEEP, rows="4-5", tile_m=128, **wgmma)  # a warpgroup without rows, and a ring that wraps
    yield _case("near", Shape(200, 256, n=128, e=2), "f32", rows="135-65", scales="mn_major", tile_m=256, **wgmma)
    yield _case("near", _LOOPING_SHAPE, **_LOOPING_OPTIONS, **wgmma)
    yield _case("near", _LOOPING_SHAPE, tile_m=128, **_LOOPING_OPTIONS, **wgmma)
    yield _case("near", Shape(3, 128, n=512, e=3), rows="1", tile_m=128, ctas=2, multiprocessors=2, **wgmma)
    for tile_m in (64, 128):  # a row less than a tensor copy stores, and behind it rows of no expert
        shape = Shape(3 * tile_m + 1, 128, n=128, e=2)
        for dtype in OUT_DTYPES:
            yield _case("near", shape, dtype, rows=f"{tile_m - 1}-{2 * tile_m - 1}", tile_m=tile_m, **wgmma)
    # Pairs on an odd number of multiprocessors, of which one stays idle.
    yield _case("near", Shape(6, 128, n=256, e=3), rows="2", tile_m=128, ctas=2, multiprocessors=3, **wgmma)
    yield _case("near", Shape(130, 128, n=256, e=4), grouping="masked", rows="65-3-0-130", tile_m=128, **wgmma)
    for model, dtype in itertools.product(_MODELS, OUT_DTYPES):
        # Elements of the output, bytes of tokens and bytes of weights past 2^31, and then past 2^32, where an index
        # without a sign wraps too. DeepSeek-V3's 256 experts have 7.5 GB of weights in a layer.
        for rows_before in (1 << 24, 1 << 25):
            far: dict[str, Any] = {"rows_before": rows_before, "experts_before": rows_before >> 7, "tile_m": 128}
            yield _case("near", Shape(5, 128, n=128, e=2), dtype, rows="2-3", model=model, **far)
    for tile_m in (8, 128):  # a row less than a tile has
        yield _case("near", Shape(tile_m, 256, n=128, e=1), rows=str(tile_m - 1), tile_m=tile_m)
    # As many experts as DeepSeek-V3 has; as Kimi K2 has, more than a byte counts; and a number that is no power of two.
    for experts, rows in ((256, "1-0"), (384, "0-0-1"), (99, "0-0-3")):
        yield _case("near", Shape(experts, 128, n=128, e=experts), rows=rows, tile_m=8)
    for rows, given in (("1-0-3", {"tile_m": 8}), ("0-" * 15 + "3", {"tile_m": 64, **wgmma})):
        yield _case("near", Shape(3, 256, n=128, e=70), grouping="masked", scales="mn_major", rows=rows, **given)
    # The last of the 32 experts that a warp looks at together has more tiles than there are CTAs.
    for experts in (32, 48):
        few: dict[str, Any] = {"rows": "-".join([*"0" * 15, "130"]), "multiprocessors": 1, **wgmma}
        yield _case("near", Shape(130 * experts // 16, 128, n=128, e=experts), "f32", tile_m=64, **few)
    # More rows of one expert than 15 bits count.
    many: dict[str, Any] = {"grouping": "masked", "rows": "32800", "sample": 1}
    for model, dtype in itertools.product(_MODELS, OUT_DTYPES):
        for tile_m in INSTRUCTIONS[model].tiles_m:
            yield _case("near", Shape(32_800, 128, n=128, e=1), dtype, model=model, tile_m=tile_m, **many)
    for dtype in OUT_DTYPES:
        yield _case("near", Shape(32_800, 128, n=256, e=1), dtype, tile_m=128, ctas=2, **many, **wgmma)
    # Windows behind the first band of tiles, in the second expert too: the CTAs that are asked for are numbered so.
    yield _case("near", Shape(300, 128, n=256, e=2), rows="150", sample=1, tile_m=8)
    yield _case("near", Shape(1300, 128, n=256, e=2), rows="650", sample=1, tile_m=64, **wgmma)
    yield _case("near", Shape(2500, 128, n=512, e=2), rows="1250", sample=4, tile_m=128, ctas=2, **wgmma)
    # More scales of an expert's rows of N than a byte counts, as DeepSeek-V3's dense gate and up together have.
    for model, n in ((_MODELS[0], 36_864), (_MODELS[2], 36_992)):
        yield _case("near", Shape(1, 128, n=n, e=1), sample=1, model=model)
    # And more than 32 blocks of K, as its gate and up have 56, of the last of more than 32 columns of tiles.
    yield _case("near", Shape(7, 4224, n=4224, e=1), rows="7", sample=1, tile_m=64, **wgmma)
    # Far fewer rows are expected than there are: CTAs take three tiles and more.
    yield _case("near", Shape(30, 128, n=128, e=2), grouping="masked", rows="9-30", expected_m=1, tile_m=8)
    yield _case("near", Shape(20, 512, n=128, e=2), rows="9-8", tile_m=16, multiprocessors=1, schedules=4)
    # Two warpgroups that store at the same time.
    yield _case("near", Shape(64, 128, n=128, e=1), rows="64", schedules=10, **wgmma)
    for ctas, tile_m in ((1, 256), (2, 128)):
        several: dict[str, Any] = {"tile_m": tile_m, "ctas": ctas, "multiprocessors": ctas, "schedules": 2}
        yield _case("near", Shape(110, 512, n=ctas * TILE_N, e=2), rows="100-3", **several, **wgmma)
    # Each entry has machine code of its own: each meets the fills that show most.
    for dtype, fill in itertools.product(OUT_DTYPES, ("near", "specials", "one-hot-tokens", "one-hot-weights")):
        for tile_m in INSTRUCTIONS[_MODELS[0]].tiles_m:
            yield _case(fill, _SMALL, dtype, rows=_SMALL_ROWS, tile_m=tile_m)
        yield _case(fill, Shape(9, 256, n=256, e=2), dtype, rows="4-5", tile_m=128, ctas=2, **wgmma)
        for tile_m in (128, 256):
            yield _case(fill, Shape(9, 256, n=128, e=2), dtype, rows="4-5", tile_m=tile_m, **wgmma)
        for tile_m in INSTRUCTIONS[_MODELS[0]].tiles_m:
            # A step of K more than are copied ahead, so that copies go on while products do.
            yield _case("near", Shape(3, 512, n=128, e=1), dtype, rows="3", tile_m=tile_m)
            yield _case("least-ties", Shape(8, 128, n=128, e=1), dtype, rows="8", tile_m=tile_m)
            # Every second row has the ties: here the others of a tile, all of which are there.
            yield _case("least-ties", Shape(tile_m + 1, 128, n=128, e=2), dtype, rows=f"1-{tile_m}", tile_m=tile_m)
    for tile_m in INSTRUCTIONS[_MODELS[0]].tiles_m:
        yield _past_every_lane("f32", tile_m, model="sm90_mma_fp8")  # of the same source as those of sm_120a
        for dtype in OUT_DTYPES:
            yield _past_every_lane(dtype, tile_m)
    # Of a sum that is stored as BF16 a rounding shows only if most of it cancels.
    for tile_m, ctas in ((64, 1), (128, 1), (256, 1), (128, 2)):
        shape = Shape(64, 256, n=ctas * TILE_N, e=1)
        yield _case("cancelling", shape, rows="64", tile_m=tile_m, ctas=ctas, **wgmma)
    # One entry of each tile has these. The entries of a tile number tiles by the same source, and store in two ways.
    for tile_m, ctas, dtype in ((64, 1, "bf16"), (128, 1, "f32"), (256, 1, "bf16"), (128, 2, "f32")):
        yield _past_every_lane(dtype, tile_m, ctas=ctas, **wgmma)
        # A tile of tokens more than a band has, in two columns of tiles: in one, every band is numbered alike. Of pairs
        # the corners of such an output are computed, in the case of two experts above.
        if ctas == 1:
            shape = Shape(_BAND * tile_m + 1, 128, n=2 * TILE_N, e=1)
            yield _case("near", shape, rows=str(shape.m), tile_m=tile_m, **wgmma)
    gate_up, down = Shape(7, GATE_UP[0], n=GATE_UP[1], e=2), Shape(_CLASS_ROWS, DOWN[0], n=DOWN[1], e=5)
    yield _case("near", gate_up, rows="0-7", sample=1, scales="mn_major")
    yield _case("near", down, rows=_CLASSES, sample=1, scales="mn_major")
    yield _case("near", Shape(100, 128, n=128, e=1), rows="100")  # the widest tile, which the host code chooses
    yield _case("near", Shape(5, 128, n=128, e=2), rows="1-2", poison=0)  # the fill's default
    yield _case("near", Shape(8, 128, n=128, e=2), grouping="masked", rows="1-2", poison=0)


def _past_every_lane(dtype: str, tile_m: int, **options: Any) -> Case:
    """A whole tile and a row more, other tiles behind it, and experts past the 32 that a warp looks at together.

    A grid of persistent CTAs is so small that each takes many tiles.
    """
    pattern = [*[0] * 4, tile_m + 1, *[0] * 5, 1, *[0] * 5]
    counts = np.resize(pattern, 37)
    shape = Shape(int(counts.sum()), 256, n=TILE_N * options.get("ctas", 1), e=len(counts))
    few: dict[str, Any] = {"tile_m": tile_m, "multiprocessors": 2} | options
    return _case("wide-range", shape, dtype, rows="-".join(map(str, pattern)), **few)


def _full() -> Iterator[Case]:
    for model in _MODELS:
        for seed in (1, 2, 3):
            for fill in FILLS:
                for tile_m in INSTRUCTIONS[model].tiles_m:
                    for dtype in OUT_DTYPES:
                        shape = Shape(2 * tile_m + 9, 512, n=256, e=4)
                        yield _case(fill, shape, dtype, seed, tile_m=tile_m, model=model)
            for k in range(128, 1152, 128):
                shape = Shape(9, k, n=128, e=2)
                yield _case("wide-range", shape, seed=seed, scales="mn_major", pad=k // 128, model=model)
        # All experts of a layer, of which every third has no rows and every third has two.
        yield _case("wide-range", Shape(256, DOWN[0], n=128, e=256), rows="1-0-2", scales="mn_major", model=model)
        # Where the executor needs minutes for a single case.
        yield class_case(_case, "1-0", GATE_UP, model=model)


#: Rows of the experts in turn, how many experts, and how many windows of each: 512 x 512 outputs of each class or more.
_SAMPLED = {"1-0": (128, 16), "7-0": (20, 16), "128-0": (4, 8), "1000": (1, 9)}


def class_case(
    make: Callable[..., Case], rows: str, size: tuple[int, int], dtype: str = "bf16", **options: Any
) -> Case:
    """A case of true size of which windows are compared, at least 512 x 512 outputs of one class of experts.

    Args:
        make: makes a case of a fill, a shape, a dtype and options.
        rows: "1-0", "7-0", "128-0" or "1000".
        size: K and N, those of `GATE_UP` or `DOWN`.
        dtype: "bf16" or "f32".
        options: of the case. Of a batch, and where scales are MN-major, some rows are no expert's.
    """
    experts, sample = _SAMPLED[rows]
    counts = np.resize([int(each) for each in rows.split("-")], experts)
    m = max(counts) if options.get("grouping") == "masked" else sum(counts)
    shape = Shape(int(m) + (3 if "grouping" in options or "scales" in options else 0), size[0], n=size[1], e=experts)
    return make("near", shape, dtype, rows=rows, sample=sample, **options)


def class_samples(make: Callable[..., Case], model: str) -> Iterator[Case]:
    """Every class of experts at both true sizes, and each grouping, layout of scales and output at one of them."""
    yield class_case(make, "1-0", DOWN, model=model)
    for rows, size in itertools.product(("7-0", "128-0", "1000"), (GATE_UP, DOWN)):
        yield class_case(make, rows, size, model=model)
    mn_major: dict[str, Any] = {"scales": "mn_major", "model": model}
    yield class_case(make, "7-0", DOWN, grouping="masked", pad=1, **mn_major)
    yield class_case(make, "128-0", DOWN, "f32", grouping="masked", expected_m=128, pad=3, **mn_major)
    yield class_case(make, "1000", GATE_UP, "f32", **mn_major)


def _samples() -> Iterator[Case]:
    for model in _MODELS:
        yield from class_samples(_case, model)
    pairs: dict[str, Any] = {"model": "sm90_wgmma_fp8", "tile_m": 128, "ctas": 2}
    yield class_case(_case, "128-0", GATE_UP, **pairs)
    yield class_case(_case, "1000", DOWN, "f32", scales="mn_major", **pairs)
    yield class_case(_case, "128-0", DOWN, grouping="masked", **pairs)


def _refuses() -> Iterator[Case]:
    base = _case("near", Shape(5, 256, n=128, e=2), rows="2-3", tile_m=8)
    yield from wrong_calls(
        base,
        {
            **{"weights-many_rows": "weight rows of an expert", "token_scales-many": "scales of an expert"},
            **{"tokens-most_rows": "rows and those of a tile", "tokens-most_tiles": "twice over"},
        },
        **{**WRONG_PRODUCTS, "token_scales": f"{ARRAY} scalar short narrow many"},
        weights=f"{WEIGHTS} many_rows",
        tokens=f"{ARRAY} flat narrow most_rows most_tiles",
        m_indptr=f"{ARRAY} short first last falling",
    )
    yield from wrong_calls(
        _case("near", Shape(5, 256, n=128, e=2), grouping="masked", rows="2-3", tile_m=8),
        **WRONG_PRODUCTS,
        weights=WEIGHTS,
        tokens=f"{ARRAY} flat narrow",
        masked_m=f"{ARRAY} short negative huge",
        expected_m="zero text huge",
    )


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    batches = case.shape.e if case.grouping == "masked" else 1
    # No kernel pads rows there that a second answer could leave out.
    stages = [stage for stage in ("out", *WITNESSES.get(case.fill, ())) if stage != "out-unpadded"]
    return dict.fromkeys(stages, batches * case.shape.m * case.shape.n * ELEMENT_BYTES[case.dtype])


DEEPSEEK_GEMM = Family(
    name="deepseek_gemm",
    about="Grouped GEMM of block FP8 tokens with block FP8 weights, promoted to FP32 after every 128 of K.",
    dtypes=("bf16", "f32"),
    sizes="mkne",
    fills=FILLS,
    options=(
        word("grouping", "contiguous", "masked", fixed=True),
        word("scales", *SCALE_LAYOUTS, fixed=True),
        word("model", *_MODELS, fixed=True),
        ROWS,
        number("pad"),
        number("sample"),
        number("expected_m", launch=True),
        number("tile_m", launch=True),
        number("ctas", 1, launch=True),
        MULTIPROCESSORS,
        SCHEDULES,
        ROWS_BEFORE,
        EXPERTS_BEFORE,
        POISON,
        WRONG,
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full, SAMPLES: _samples},
    refuses=_refuses,
    changes=CHANGES,
    contract=Contract(
        inputs=("tokens", "token_scales", "weights", "weight_scales", "m_indptr", "masked_m", "windows"),
        features=("m_indptr", "masked_m", "windows"),
        outputs={"out": "case.dtype"},
        settings={
            "grouping": "grouping",
            "scale_layout": "scales",
            "model": "model",
            "num_experts": "e",
            "out_dtype": "dtype",
        },
        padded_inputs=True,
    ),
    sources=("deepseek_gemm", "deepseek_gemm_wgmma"),
    host=("refmoe.cuda.deepseek_gemm",),
    check=_check,
    lacks=_lacks,
    block=BLOCK,
)
