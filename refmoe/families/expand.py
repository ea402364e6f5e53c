"""The family `expand`: tokens copied into expert order and quantized on the way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import Shape, refused, word
from refmoe.families.choices import RANKS, ROUTED, ROUTING, check_choices, expert_ids
from refmoe.families.family import POISON, Case, Contract, Expectation, Family, Fill, Inputs, Outputs
from refmoe.families.quantize import (
    COMPILED_POLICIES,
    DECODE,
    EDGE,
    EXHAUSTIVE,
    FILE_OPTIONS,
    FILLS,
    INPUT_FORMATS,
    LOOPING_ROWS,
    MODE,
    MODELS,
    PLAIN,
    check_file,
    make_input,
    settings_of,
)
from refmoe.families.stages import Codes, GroupedScales
from refmoe.families.vacuity import Limits, doubt_codes
from refmoe.formats import MX_BLOCK
from refmoe.reference.expand import build_permutation, expand
from refmoe.reference.layout import swizzle_scales
from refmoe.reference.quantize import quantize_mxfp8

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

#: Of the scales that are written.
LAYOUT = word("layout", "128x4", "8x4", fixed=True)

#: Layout of ready input's scales, or "none" for absent ones.
INPUT_SF = word("input_sf", "linear", "128x4", "none")


def _random_bytes(case: Case) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes [m, k] and scales [m, k/32] of uniform bytes."""
    draw, (m, k) = Draw("bytes", case.seed), (case.shape.m, case.shape.k)
    codes, scales = (draw.integers(256, (m, width)).astype(np.uint8) for width in (k, k // MX_BLOCK))
    return codes, scales


_FILLS = Fill.by_name(
    *FILLS.values(),
    Fill(
        "bytes",
        "a code or a scale that is changed on its way",
        _random_bytes,
        # 2 codes in 256 are zeros, 2 NaN, 2 saturated.
        Limits(zeros=0.05, saturated=0.05, nans=0.05, scales=32, reason="the bytes are uniform"),
    ),
)


def _ready(case: Case) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The case's input as MXFP8 codes [m, k] and linear scales [m, k/32]."""
    if case.fill == "bytes":
        return _random_bytes(case)
    quantized = quantize_mxfp8(make_input(case, "bf16"))
    return quantized.codes, quantized.scales


def _inputs(case: Case) -> Inputs:
    ids = expert_ids(case)
    maps = build_permutation(ids, case.shape.e, case.first_expert)
    routed: dict[str, Any] = {
        "topk_ids": ids,
        "unpermuted_to_permuted": maps.unpermuted_to_permuted,
        "permuted_to_unpermuted": maps.permuted_to_unpermuted,
        "offsets": maps.offsets,
    }
    if case.dtype != "mxfp8":
        return {"x": make_input(case, case.dtype), "input_sf": None, **routed}
    codes, scales = _ready(case)
    if case.input_sf == "none":
        return {"x": codes, "input_sf": None, **routed}
    if case.input_sf == "128x4":
        # Scale rows that no token has must not matter, so they hold NaN.
        scales = swizzle_scales(scales, "128x4", fill=0xFF)
    return {"x": codes, "input_sf": scales, **routed}


def _settings(case: Case, inputs: Inputs) -> dict[str, Any]:
    """What the reference and the kernel take by the same names."""
    layout = "linear" if case.input_sf == "none" else case.input_sf
    terms = {"input_sf": inputs["input_sf"], "input_sf_layout": layout, "first_expert": case.first_expert}
    return {**settings_of(case), **terms}


def _expect(case: Case, inputs: Inputs) -> Expectation:
    expanded = expand(inputs["x"], inputs["topk_ids"], case.shape.e, **_settings(case, inputs))
    terms = GroupedScales("scales", case.layout, expanded.offsets, case.shape.k // MX_BLOCK)
    linear = terms.linear(expanded.scales)
    used, sources = int(expanded.offsets[-1]), expanded.permuted_to_unpermuted
    codes = Codes("codes", expanded.codes.shape, linear, used, expanded.offsets, sources, case.shape.m)
    # Copies of a token's row add nothing to what could have failed.
    tokens = sources[:used] % max(case.shape.m, 1)
    _, first = np.unique(tokens, return_index=True)
    copied = case.input_sf != "none"
    doubt = doubt_codes(expanded.codes[first], linear[first], _FILLS[case.fill].limits, scales_copied=copied)
    return Expectation({"codes": expanded.codes, "scales": expanded.scales}, (codes, terms), doubt)


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.expand import expand as launch

    result = launch(
        inputs["x"],
        inputs["topk_ids"],
        inputs["unpermuted_to_permuted"],
        inputs["offsets"],
        device=device,
        **_settings(case, inputs),
    )
    return {"codes": result.codes, "scales": result.scales}


def _check(case: Case) -> None:
    if case.fill == "bytes" and case.dtype != "mxfp8":
        raise refused("fill", case.fill, "dtype mxfp8 with it: it is raw codes and scales")
    if case.dtype != "mxfp8" and case.input_sf != "linear":
        raise refused("input_sf", case.input_sf, "dtype mxfp8 with it: other input has no scales")
    check_file(case)
    check_choices(case)


def _case(fill: str, m: int, k: int, e: int, t: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return EXPAND.case(fill, Shape(m, k, e, t), dtype, seed, **options)


def _quick() -> Iterator[Case]:
    yield _case("rne-ties", 4, 2880, 8, 2)
    yield _case("fingerprint", 1, 2880, 128, 4)
    yield _case("fingerprint", 9, 416, 16, 2, routing="empty-experts")
    yield _case("fingerprint", 9, 416, 16, 2, routing="empty-experts", layout="8x4", poison=0x7F)
    yield _case("fingerprint", 8, 416, 16, 2, routing="all-one-token")
    yield _case("fingerprint", 130, 96, 4, 1, routing="same-experts")  # past one tile of 128 rows, k = 1
    yield _case("fingerprint", 8, 416, 8, 4, first_expert=8, ranks=3)
    yield _case("gaussian", 3, 416, 4, 2, routing="elsewhere", first_expert=4, ranks=2)
    yield _case("fingerprint", 3, 160, 16, 11)  # more ranks than the lanes of a group
    for mode, edge in COMPILED_POLICIES:
        yield _case("specials", 4, 416, 8, 2, mode=mode, edge=edge)
        yield _case("boundary-mantissas", 16, 416, 8, 2, mode=mode, edge=edge, layout="8x4")
    yield _case("fingerprint", 9, 416, 8, 2, routing="padded")
    yield _case("tiny", 4, 416, 8, 2)
    yield _case("rne-ties", 4, 416, 8, 2, dtype="fp16")
    for input_sf in INPUT_SF.words:
        yield _case("bytes", 9, 416, 8, 2, dtype="mxfp8", input_sf=input_sf)
        yield _case("fingerprint", 9, 416, 8, 2, dtype="mxfp8", input_sf=input_sf, layout="8x4")


def _default() -> Iterator[Case]:
    for k, e, t in MODELS:
        for m in DECODE:
            yield _case("fingerprint", m, k, e, t)
            yield _case("real", m, k, e, t, layout="8x4", poison=0x7F)
            yield _case("wide-range", m, k, e, t, edge="flashinfer")
            yield _case("fingerprint", m, k, e, t, dtype="mxfp8", input_sf="128x4")
        yield _case("real", 1024 if k == 2880 else 256, k, e, t)  # a prefill
        yield _case("fingerprint", e // t, k, e, t, routing="all-one-token")
        yield _case("fingerprint", 8, k, e, t, routing="same-experts")
        yield _case("fingerprint", 160, k, e, 1, routing="same-experts")  # one expert takes all
        yield _case("fingerprint", 8, k, e, t, routing="empty-experts")
        yield _case("fingerprint", 8, k, e // 8, t, routing="uniform", first_expert=e // 4, ranks=8)
    for dtype, (mode, edge), fill, layout in product(INPUT_FORMATS, COMPILED_POLICIES, PLAIN, LAYOUT.words):
        yield _case(fill, 9, 1440, 8, 2, dtype=dtype, mode=mode, edge=edge, layout=layout)
    for mode, edge in COMPILED_POLICIES:
        yield _case("exhaustive-max", 1024, 2048, 8, 1, mode=mode, edge=edge)
        yield _case("exhaustive-element", 128, 2880, 8, 1, mode=mode, edge=edge)
    yield _case("fingerprint", LOOPING_ROWS, 32, 8, 2)
    yield _case("wide-range", 3, 8224, 8, 2)  # a row wider than a CTA, by one block
    yield _case("gaussian", 0, 2880, 8, 2)
    for input_sf in INPUT_SF.words:
        for fill in ("bytes", "real", "specials"):
            yield _case(fill, 130, 416, 16, 3, dtype="mxfp8", input_sf=input_sf, poison=0x7F)
        yield _case("bytes", 3, 8224, 8, 2, dtype="mxfp8", input_sf=input_sf)
        yield _case("bytes", LOOPING_ROWS, 32, 8, 2, dtype="mxfp8", input_sf=input_sf)


def _full() -> Iterator[Case]:
    routings = ("uniform", "same-experts", "empty-experts")
    for routing, layout, poison, (k, e, t) in product(routings, LAYOUT.words, (0xFF, 0x7F, 0x00), MODELS):
        for m in (1, 2, 3, 8, 33):
            yield _case("fingerprint", m, k, e, t, seed=m, routing=routing, layout=layout, poison=poison)
    listed = product((1, 2, 3), INPUT_FORMATS, COMPILED_POLICIES, PLAIN, LAYOUT.words)
    for seed, dtype, (mode, edge), fill, layout in listed:
        yield _case(fill, 33, 2880, 16, 3, dtype=dtype, seed=seed, mode=mode, edge=edge, layout=layout)
    for dtype, (mode, edge), fill in product(INPUT_FORMATS, COMPILED_POLICIES, EXHAUSTIVE):
        yield _case(fill, 1024, 2048, 8, 2, dtype=dtype, mode=mode, edge=edge)
    for k, e, t in MODELS:
        yield _case("wide-range", 1500, k, e, t, layout="8x4")


EXPAND = Family(
    name="expand",
    about="Tokens in the order of their experts, one row for each choice, quantized to MXFP8 or copied.",
    dtypes=("bf16", "fp16", "mxfp8"),
    sizes="mket",
    fills=_FILLS,
    options=(MODE, EDGE, LAYOUT, INPUT_SF, ROUTING, *RANKS, POISON, *FILE_OPTIONS),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    cases={"quick": _quick, "default": _default, "full": _full},
    contract=Contract(
        inputs=("x", "input_sf", "topk_ids", "unpermuted_to_permuted", "permuted_to_unpermuted", "offsets"),
        features=("input_sf",),
        outputs={"codes": "float8_e4m3fn", "scales": "float8_e8m0fnu"},
        settings={**ROUTED, "mode": "mode", "edge": "edge", "layout": "layout", "input_sf_layout": "input_sf"},
    ),
    sources=("expand",),
    host=("refmoe.cuda.expand",),
    check=_check,
)
