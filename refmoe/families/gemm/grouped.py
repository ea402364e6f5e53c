"""What the families of all grouped GEMMs have: buffers, the expectation, the launch, the contract."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.cuda.gemm.tile import Tile
from refmoe.families.case import refused
from refmoe.families.family import Assumption, Case, Contract, Expectation, Inputs, Outputs
from refmoe.families.far import Layout, behind, check_before, far_device
from refmoe.families.gemm.epilogue import BITS, OUTPUTS, FloatArray, bias_of, epilogue, interval, output_bits
from refmoe.families.gemm.stages import Products
from refmoe.families.stages import GroupedScales
from refmoe.families.vacuity import Limits, doubt_products
from refmoe.families.wrong import ARRAY, BYTE, LONG, MANY, Arguments, Change, called, huge
from refmoe.reference.layout import EXPERT_ROW_ALIGNMENT, swizzle_weight_scales

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

CONTRACT = Contract(
    inputs=(
        *("tokens", "token_scales", "token_scale_buffer", "weights", "weight_scales", "weight_scale_buffer"),
        *("offsets", "alpha", "bias"),
    ),
    features=("alpha", "bias"),
    outputs={"out": "case.dtype"},
    settings={"num_experts": "e", "out_dtype": "dtype"},
    padded_inputs=True,
)

Bounds = Callable[[], tuple[NDArray[np.float64], NDArray[np.float64]]]


def gemm_inputs(
    case: Case,
    tokens: NDArray[np.uint8],
    token_scales: NDArray[np.uint8],
    weights: NDArray[np.uint8],
    weight_scales: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    alpha: FloatArray | None,
    block: int,
) -> Inputs:
    """Operands as references take them (linear scales) and as kernels do (128x4 buffers, padding poisoned)."""
    expanded = GroupedScales("token_scales", "128x4", offsets, case.shape.k // block)
    return {
        "tokens": tokens,
        "token_scales": token_scales,
        "token_scale_buffer": expanded.buffer(token_scales[: offsets[-1]], case.shape.m, case.poison),
        "weights": weights,
        "weight_scales": weight_scales,
        "weight_scale_buffer": swizzle_weight_scales(weight_scales, fill=case.poison),
        "offsets": offsets,
        "alpha": alpha,
        "bias": bias_of(case),
    }


def expect_products(
    case: Case,
    inputs: Inputs,
    values: NDArray[Any],
    second: tuple[str, FloatArray] | None,
    bounds: Bounds,
    limits: Limits,
    assumption: Assumption,
) -> Expectation:
    """What a kernel has to write.

    Args:
        case: with its dtype, fill and poison.
        inputs: of `gemm_inputs`.
        values: the reference's output [T, N].
        second: a second answer, if the fill allows one: the stage's name, and FP32 sums [T, N].
        bounds: the exact sums and the model's bound around them; asked for FP32 results alone.
        limits: beyond which the data could not have failed.
        assumption: of the tensor cores.
    """
    offsets = inputs["offsets"]
    used = int(offsets[-1])
    if case.alpha == "edges":
        reason = "factors of zero and beyond make zeros and infinities"
        limits = dataclasses.replace(limits, zeros=0.9, nans=0.9, bound=np.inf, reason=reason)
    outputs = {"out": output_bits(case, values, used)}
    if second is not None:
        outputs[second[0]] = output_bits(case, epilogue(case, inputs, second[1]), used)
    within = interval(case, inputs, *bounds()) if case.dtype == "f32" else None
    stages = tuple(
        Products(name, case.dtype, case.shape.n, offsets, case.poison, within if name == "out" else None)
        for name in outputs
    )
    doubt = doubt_products(
        values[:used].astype(np.float32),
        inputs["token_scales"][:used],
        inputs["weight_scales"],
        None if within is None else within.relative_width(),
        limits,
    )
    answers = dict.fromkeys(outputs, "out")
    return Expectation(outputs, stages, doubt, assumption, lambda found: stages[0].outside(found["out"]), answers)


def _far(case: Case, block: int, tile_rows: int, weight_rows: int) -> Layout:
    """Where rows and experts lie in a kernel's buffers.

    Args:
        case: with rows in front, which the first expert has, or experts in front, which have none.
        block: elements of K that share a scale.
        tile_rows: tokens of the tile that the case names.
        weight_rows: of that tile.
    """
    rows, experts, shape = int(case.rows_before), int(case.experts_before), case.shape
    groups, bits = -(-shape.k // (4 * block)), {16: 4, 32: 8}[block]
    # Every expert gains 127 rows of scales.
    scale_rows = rows + (EXPERT_ROW_ALIGNMENT - 1) * experts
    atoms = -(-shape.n // EXPERT_ROW_ALIGNMENT) * EXPERT_ROW_ALIGNMENT
    return Layout(
        {
            **{"codes": rows * shape.k * bits // 8, "scales": scale_rows * groups * 4},
            **{"weights": experts * shape.n * shape.k // 2, "weight_scales": experts * atoms * groups * 4},
            **{"alpha": 4 * experts, "bias": 2 * experts * shape.n},
            "out": rows * shape.n * OUTPUTS[case.dtype].itemsize,
        },
        counts={0: experts},
        values={"offsets": lambda offsets: np.concatenate([np.zeros(experts, np.int64), behind(offsets, rows)])},
        tiles_before=rows // tile_rows * -(-shape.n // weight_rows),
    )


def check_far(case: Case) -> None:
    """Refuse rows or experts in front that do not fit.

    Raises:
        ArgumentError: no whole atoms of scales, or no tile, whose number must be known.
    """
    check_before(case)
    if (case.rows_before or case.experts_before) and not case.tile:
        raise refused("tile", "none", "tile=MxNxK with rows or experts in front")


def run_products(
    launch: Callable[..., NDArray[Any]], case: Case, inputs: Inputs, device: Device, **tile: Any
) -> Outputs:
    """The output's bits of one of refmoe's own GEMMs; `tile` is its tile and stages."""
    if case.rows_before or case.experts_before:
        block = case.shape.k // inputs["token_scales"].shape[-1]
        device = far_device(case, device, _far(case, block, tile["tile"].n, tile["tile"].m))
    out = called(case, launch)(
        inputs["tokens"],
        inputs["token_scale_buffer"],
        inputs["weights"],
        inputs["weight_scale_buffer"],
        inputs["offsets"],
        device=device,
        **tile,
        alpha=inputs["alpha"],
        bias=inputs["bias"],
        out_dtype=case.dtype,
        fill=case.poison,
    )
    return {"out": np.ascontiguousarray(out).view(BITS[case.dtype])}


# --- calls that are refused -----------------------------------------------------------------------------------------


def _deep(given: Arguments) -> Arguments:
    """A K of which the bytes of a row's scale atoms are not counted in int32."""
    codes, weights = given["codes"], given["weights"]
    half = LONG * weights.shape[2] // codes.shape[1]
    return {"codes": huge((codes.shape[0], LONG), codes), "weights": huge((*weights.shape[:2], half), weights)}


def _tiles(tokens: int, rows: int) -> Change:
    """So many tokens of one expert and weight rows, in tiles of 128x8x512."""

    def changed(given: Arguments) -> Arguments:
        bytes_each = given["scales"].size // (-(-(given["codes"].shape[0] + 127 * 3) // 128) * 128)
        return {
            **{"codes": huge((tokens, given["codes"].shape[1]), given["codes"]), "tile": Tile(128, 8, 512)},
            "scales": huge((-(-(tokens + 127) // 128) * 128 * bytes_each,), given["scales"]),
            "weights": huge((1, rows, given["weights"].shape[2]), given["weights"]),
            "weight_scales": huge((rows * bytes_each,), given["weight_scales"]),
            **{"offsets": np.array([0, tokens]), "alpha": None, "bias": None},
        }

    return changed


#: Damages of what all grouped GEMMs on the frame of SM12x take.
PRODUCT_CHANGES: Mapping[str, Change] = {
    "codes-deep": _deep,
    "codes-many_rows": lambda given: {"codes": huge((MANY, given["codes"].shape[1]), given["codes"])},
    # 2^20 experts of 2048 rows each.
    "weights-many_rows": lambda given: {
        "weights": huge((1 << 20, 1 << 11, given["weights"].shape[2]), given["weights"])
    },
    # More tiles than int32 counts: of 1024 tokens and as many weight rows as there may be.
    "codes-many_tiles": _tiles(1024, (1 << 31) - 128),
    # 49981 * 42966 = 2^31 - 2 tiles, which leave no room for the CTAs of a grid.
    "codes-most_tiles": _tiles(49_980 * 8, 42_966 * 128),
    "tile-two": lambda given: {"tile": "128x8"},
    "tile-letters": lambda given: {"tile": "axbxc"},
    "tile-empty": lambda given: {"tile": Tile(0, 8, 512)},
    "weights-ragged": lambda given: {"weights": given["weights"][:, :12].copy()},
}
#: And what is wrong with it.
WRONG_PRODUCTS: Mapping[str, str] = {
    "codes": f"{ARRAY} flat narrow no_columns deep many_rows many_tiles most_tiles",
    "scales": f"{ARRAY} short long",
    "weights": f"{ARRAY} flat no_rows no_middle narrow ragged many_rows",
    "weight_scales": f"{ARRAY} short long",
    "offsets": f"{ARRAY} short first last falling",
    "tile": "number fraction two letters empty",
    "stages": "zero huge",
    "alpha": f"{ARRAY} short",
    "bias": f"{ARRAY} short narrow",
    "out_dtype": "word",
    "fill": BYTE,
}
SAYS_OF_PRODUCTS: Mapping[str, str] = {
    "codes-deep": "bytes of scale atoms",
    "codes-many_rows": "codes: found",
    "weights-many_rows": "weights: found 2147483648 padded rows of scales",
    "codes-many_tiles": "tiles of 128x8x512 and CTAs of a grid",
    "codes-most_tiles": "tiles of 128x8x512 and CTAs of a grid",
    "tile-empty": "tile: found int 0",
    "weights-ragged": "needed N a multiple of 8",
}
