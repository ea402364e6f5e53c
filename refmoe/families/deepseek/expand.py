"""The family `deepseek_expand`: tokens quantized to block FP8 on their way to the rows of their experts.

Its tokens are those of `block_fp8_quantize`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.families.block_fp8 import BLOCK_FP8_QUANTIZE, TileCodes
from refmoe.families.case import MULTIPROCESSORS, Shape, refused, word
from refmoe.families.choices import RANKS, ROUTED, ROUTING, check_choices, expert_ids
from refmoe.families.deepseek.activation import RowScales
from refmoe.families.extents import block_fp8_rows
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, Layout, check_before, far_device, lacks_memory, of_rows
from refmoe.families.quantize import LOOPING_ROWS
from refmoe.families.vacuity import doubt_codes
from refmoe.families.wrong import ARRAY, BYTE, WRONG, Change, called, huge, wrong_calls
from refmoe.formats import BLOCK_FP8
from refmoe.reference.block_fp8 import LAYOUTS, POLICIES, SCALES
from refmoe.reference.deepseek.activation import TILE
from refmoe.reference.deepseek.expand import ExpandedBlockFP8, expand_block_fp8
from refmoe.reference.expand import build_permutation

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

_FILLS = dict(BLOCK_FP8_QUANTIZE.fills)


def _inputs(case: Case) -> Inputs:
    """Tokens, and the row of each of their choices."""
    tokens = BLOCK_FP8_QUANTIZE.case(case.fill, Shape(case.shape.m, case.shape.k), case.dtype, case.seed)
    maps = build_permutation(expert_ids(case), case.shape.e, case.first_expert)
    return {
        "x": BLOCK_FP8_QUANTIZE.inputs(tokens)["x"],
        "unpermuted_to_permuted": maps.unpermuted_to_permuted,
    }


def _settings(case: Case) -> dict[str, Any]:
    return {"policy": case.policy, "scales": case.scales, "layout": case.layout, "fill": case.poison}


def _expect(case: Case, inputs: Inputs) -> Expectation:
    made = expand_block_fp8(inputs["x"], inputs["unpermuted_to_permuted"], **_settings(case))
    by_row = expand_block_fp8(inputs["x"], inputs["unpermuted_to_permuted"], **{**_settings(case), "layout": "k_major"})
    width, tiles = case.shape.k, case.shape.k // TILE
    scales, token_scales = (np.ascontiguousarray(each).view(np.uint32) for each in (by_row.scales, by_row.token_scales))
    stages = (
        TileCodes("codes", width, BLOCK_FP8["1x128"], scales),
        RowScales("scales", case.layout, case.shape.rows, tiles),
        TileCodes("token_codes", width, BLOCK_FP8["1x128"], token_scales),
        RowScales("token_scales", case.layout, case.shape.m, tiles),
    )
    return Expectation(_outputs(made), stages, doubt_codes(made.token_codes, token_scales, _FILLS[case.fill].limits))


def _far(case: Case) -> Layout:
    """Where rows lie in the kernel's buffers, of one choice a token."""
    k, before = case.shape.k, int(case.rows_before)
    size, scale_bytes = (4 if case.dtype == "f32" else 2), 4 * (case.shape.k // TILE)
    return of_rows(
        case,
        {
            **{"x": size * k, "unpermuted_to_permuted": 4, "codes": k, "token_codes": k},
            **{"scales": scale_bytes, "token_scales": scale_bytes},
        },
        values={"unpermuted_to_permuted": lambda rows: np.where(rows < 0, rows, rows + before).astype(np.int32)},
        absent=("unpermuted_to_permuted",),
    )


def _check(case: Case) -> None:
    check_choices(case)
    check_before(case)
    if case.rows_before and case.layout != "k_major":
        raise refused("layout", case.layout, "k_major with rows_before")


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.deepseek.expand import expand_block_fp8 as launch

    return _outputs(
        called(case, launch)(
            inputs["x"],
            inputs["unpermuted_to_permuted"],
            device=far_device(case, device, _far(case)),
            **_settings(case),
        )
    )


def _outputs(made: ExpandedBlockFP8) -> Outputs:
    return {
        "codes": made.codes,
        "scales": np.ascontiguousarray(made.scales).view(np.uint32),
        "token_codes": made.token_codes,
        "token_scales": np.ascontiguousarray(made.token_scales).view(np.uint32),
    }


# --- cases ----------------------------------------------------------------------------------------------------------


def _case(fill: str, m: int, k: int, e: int, t: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return DEEPSEEK_EXPAND.case(fill, Shape(m, k, e, t), dtype, seed, **options)


#: With the policy deepgemm these are zeros throughout.
_BELOW_FLOOR = ("tiny",)


def _quick() -> Iterator[Case]:
    yield _case("gaussian", 1, 7168, 256, 8)  # decode
    yield _case("fingerprint", 2, 7168, 256, 8, layout="mn_major", poison=0x7F)
    for number, fill in enumerate(_FILLS):
        policy = "exact" if fill in _BELOW_FLOOR else POLICIES[number % 2]
        dtype, scales, layout = ("bf16", "f32")[number % 2], SCALES[number // 2 % 2], LAYOUTS[number // 3 % 2]
        yield _case(fill, 5, 384, 6, 3, dtype=dtype, policy=policy, scales=scales, layout=layout)
    yield _case("fingerprint", 7, 256, 4, 3, first_expert=4, ranks=3, layout="mn_major", poison=0x7F)
    yield _case("fingerprint", 3, 256, 4, 2, routing="elsewhere", first_expert=4, ranks=2)
    yield _case("fingerprint", 9, 128, 12, 2, routing="padded")


def _default() -> Iterator[Case]:
    number = 0
    for fill in _FILLS:
        for policy in POLICIES:
            if policy == "deepgemm" and fill in _BELOW_FLOOR:
                continue
            for scales in SCALES:
                number += 1
                if (fill, scales) == ("gaussian", "ue8m0"):
                    continue  # so few tiles of ordinary numbers have one power of two for a scale
                options: dict[str, Any] = {"policy": policy, "scales": scales, "layout": LAYOUTS[number % 2]}
                yield _case(fill, 4, 640, 8, 4, dtype=("bf16", "f32")[number // 2 % 2], **options)
    for m in (4, 8):
        yield _case("gaussian", m, 7168, 256, 8, layout="mn_major")
        yield _case("fingerprint", m, 7168, 64, 8, first_expert=64, ranks=4)
    yield _case("fingerprint", LOOPING_ROWS, 128, 4, 1)
    yield _case("fingerprint", 3, 128, 40, 32)  # as many choices as there may be
    yield _case("fingerprint", 2, 8320, 4, 2)  # a row wider than a CTA, by one tile
    for layout in LAYOUTS:
        yield _case("fingerprint", 1, 16512, 4, 2, layout=layout)  # three rounds of a CTA
    yield _case("fingerprint", 66, 8320, 4, 1, multiprocessors=1)  # and more of them than CTAs
    for dtype in ("bf16", "f32"):  # five rounds of all CTAs, the last one short
        yield _case("fingerprint", 261, 128, 4, 2, dtype=dtype, multiprocessors=1)
    for m in (1, 2):  # few tokens with as many choices as there may be
        yield _case("fingerprint", m, 128, 40, 32)
    for m in (3, 4, 5):
        yield _case("fingerprint", m, 4096 + 128 * (m - 4), 99, 5, routing="uniform")  # a CTA's elements, a tile beside
    yield _case("fingerprint", 5, 128, 3, 1, rows_before=1 << 28)  # pieces of 16 elements past 2^31
    for dtype in ("bf16", "f32"):  # and past 2^32, where an index without a sign wraps too
        yield _case("fingerprint", 5, 384, 3, 1, dtype=dtype, rows_before=1 << 28)
    yield _case("gaussian", 0, 7168, 8, 2)
    # Each entry has machine code of its own: each meets every fill.
    for fill, policy, scales, dtype in product(_FILLS, POLICIES, SCALES, ("bf16", "f32")):
        # So few tiles of ordinary numbers have one power of two for a scale.
        if (policy == "exact" or fill not in _BELOW_FLOOR) and (fill, scales) != ("gaussian", "ue8m0"):
            yield _case(fill, 9, 384, 6, 2, dtype=dtype, policy=policy, scales=scales)
    # And writes the choices of a token in a loop that is unrolled by four.
    for dtype, policy, scales in product(("bf16", "f32"), POLICIES, SCALES):
        yield _case("fingerprint", 2, 128, 8, 7, dtype=dtype, policy=policy, scales=scales)
    yield _case("gaussian", 5, 128, 3, 2, ranks=2, poison=0)  # the fill's default; the first of two ranks
    # As many elements of rows as make 2^31 of 128 bytes each, which no row needs.
    yield _case("gaussian", 64, 8192, 4, 32, routing="elsewhere", ranks=9)


def _full() -> Iterator[Case]:
    for seed in (1, 2):
        for dtype in ("bf16", "f32"):
            for fill in _FILLS:
                for layout in LAYOUTS:
                    yield _case(fill, 17, 2048, 16, 4, dtype=dtype, seed=seed, policy="exact", layout=layout)
    yield _case("gaussian", 1024, 7168, 256, 8, layout="mn_major")


_CHANGES: Mapping[str, Change] = {
    "unpermuted_to_permuted-many_choices": lambda given: {
        "unpermuted_to_permuted": np.full(33 * given["x"].shape[0], -1, np.int32)
    },
    "unpermuted_to_permuted-no_choice": lambda given: {"unpermuted_to_permuted": np.zeros(0, np.int32)},
    "x-many_scales": lambda given: {
        "x": huge((given["x"].shape[0], 1 << 38), given["x"]),
    },
}


def _refuses() -> Iterator[Case]:
    yield from wrong_calls(
        _case("gaussian", 3, 128, 4, 2),
        {"x-many_scales": "scales of all rows"},
        x=f"{ARRAY} flat narrow no_columns many_scales",
        unpermuted_to_permuted=f"{ARRAY} short past below twice many_choices no_choice",
        **dict.fromkeys(("policy", "scales", "layout"), "word"),
        fill=BYTE,
    )


def _extents(case: Case) -> Extents:
    """The bytes of each buffer."""
    tokens = block_fp8_rows(case.shape.m, case.shape.k)
    return {
        **block_fp8_rows(case.shape.rows, case.shape.k),
        **{f"token_{name}": size for name, size in tokens.items()},
    }


DEEPSEEK_EXPAND = Family(
    name="deepseek_expand",
    about="Tokens quantized to block FP8 on their way to the rows of their experts, and as they are.",
    dtypes=("bf16", "f32"),
    sizes="mket",
    fills=_FILLS,
    options=(
        word("policy", *POLICIES, fixed=True),
        word("scales", *SCALES, fixed=True),
        word("layout", *LAYOUTS, fixed=True),
        *(ROUTING, *RANKS, MULTIPROCESSORS, ROWS_BEFORE, POISON, WRONG),
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=("x", "unpermuted_to_permuted"),
        outputs={
            **{"codes": "float8_e4m3fn", "scales": "float32"},
            **{"token_codes": "float8_e4m3fn", "token_scales": "float32"},
        },
        settings={**ROUTED, "policy": "policy", "scale_format": "scales", "layout": "layout"},
    ),
    sources=("deepseek_expand",),
    host=("refmoe.cuda.deepseek.expand",),
    invariance="deepseek_moe",
    check=_check,
    lacks=lacks_memory,
    block=TILE,
    group="deepseek",
)
