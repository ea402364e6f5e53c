"""The family `expand`: tokens copied into expert order and quantized on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refmoe.draw import Draw
from refmoe.families.case import MULTIPROCESSORS, Shape, refused, word
from refmoe.families.choices import RANKS, ROUTED, ROUTING, check_choices, expert_ids
from refmoe.families.expand_fills import (
    EDGE_CHANNELS,
    EXPAND_FILLS,
    LARGE_CHANNELS,
    PRODUCT_TIES,
    ROW_FILLS,
    TIED_GLOBAL_SCALE,
    channel_factors,
    random_bytes,
)
from refmoe.families.extents import ELEMENT_BYTES, grouped_scales, mxfp8_grouped
from refmoe.families.family import POISON, Case, Contract, Expectation, Extents, Family, Inputs, Outputs
from refmoe.families.far import ROWS_BEFORE, Layout, behind, check_before, far_device, lacks_memory, of_rows
from refmoe.families.nvfp4 import NVFP4_FILLS, doubt_nvfp4
from refmoe.families.quantize import (
    COMPILED_POLICIES,
    DECODE,
    EDGE,
    EXHAUSTIVE,
    FAR_ROWS,
    FILE_OPTIONS,
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
from refmoe.families.vacuity import Limits, doubt_codes, doubt_values
from refmoe.families.wrong import ARRAY, BYTE, MANY, WRONG, Arguments, Change, called, huge, many_experts, wrong_calls
from refmoe.formats import E2M1, E4M3, FORMATS, FP32, MX_BLOCK, NVFP4, UE4M3
from refmoe.numbers_as_text import compared_text
from refmoe.reference.expand import OUTPUTS, build_permutation, expand, expand_as, prescaled
from refmoe.reference.layout import swizzle_scales
from refmoe.reference.nvfp4 import NVFP4Tensor, nvfp4_encode_scale, tensor_amax
from refmoe.reference.quantize import quantize_mxfp8

if TYPE_CHECKING:
    from refmoe.cuda.device import Device

#: What becomes of a row; `mxfp8` is also that of input that is quantized already.
OUTPUT = word("output", "mxfp8", *OUTPUTS, fixed=True)
#: Whether each channel is multiplied by a factor first (AWQ).
PRESCALE = word("prescale", "none", "channel", fixed=True)
#: Whether the global encode scale of NVFP4 is one for the tensor, or one for each expert.
GLOBAL_SCALE = word("global_scale", "tensor", "expert", fixed=True)
#: Of the scales that are written.
LAYOUT = word("layout", "128x4", "8x4", fixed=True)

#: Layout of ready input's scales, or "none" for absent ones.
INPUT_SF = word("input_sf", "linear", "128x4", "none")


@dataclass(frozen=True, eq=False)
class RowScales:
    """FP32 scales, one for each row.

    Attributes:
        name: of the stage.
        sources: int32 [rows], the choice (token + rank * tokens) of each row, -1 for a row that is not written.
        tokens: how many there are.
    """

    name: str
    sources: NDArray[np.int32]
    tokens: int

    def describe(self, index: int, kernel: int, reference: int) -> tuple[str, str]:
        """See `Stage`."""
        values = compared_text(kernel, reference, FP32)
        if self.sources[index] < 0:
            return f"row {index} belongs to no token of this rank and must not be written: {values}", ""
        rank, token = divmod(int(self.sources[index]), self.tokens)
        return f"row {index}, token {token} rank {rank}: {values}", ""


def _ready(case: Case) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The case's input as MXFP8 codes [m, k] and linear scales [m, k/32]."""
    if case.fill == "bytes":
        return random_bytes(case)
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
    routed |= {"encode_scale": None, "prescale": None}
    if case.dtype != "mxfp8":
        x = EXPAND_FILLS[case.fill].make(case, case.dtype)
        return {"x": x, "input_sf": None, **routed, **_factors(case, x)}
    codes, scales = _ready(case)
    if case.input_sf == "none" or case.output == "copy":
        return {"x": codes, "input_sf": None, **routed}
    if case.input_sf == "128x4":
        # Scale rows that no token has must not matter, so they hold NaN.
        scales = swizzle_scales(scales, "128x4", fill=0xFF)
    return {"x": codes, "input_sf": scales, **routed}


def _factors(case: Case, x: NDArray[Any]) -> dict[str, Any]:
    """The factor of the tensor and those of the channels, for the outputs that take them."""
    found: dict[str, Any] = {}
    if case.prescale == "channel":
        found["prescale"] = channel_factors(case)
        x = prescaled(x, found["prescale"])
    if case.output in ("nvfp4", "fp8_tensor"):
        amax = tensor_amax(x)
        scale = nvfp4_encode_scale(amax) if case.output == "nvfp4" else np.float32(448) / max(amax, np.float32(2**-20))
        found["encode_scale"] = np.array([scale], np.float32)
    if case.global_scale == "expert":
        found["encode_scale"] = _expert_scales(case, found["encode_scale"][0])
    if case.fill == PRODUCT_TIES:
        found["encode_scale"] = np.full(found["encode_scale"].shape, TIED_GLOBAL_SCALE)
    return found


def _expert_scales(case: Case, of_tensor: np.float32) -> NDArray[np.float32]:
    """A scale for each expert at most the tensor's, over eight binades and all mantissas; neighbours are not alike."""
    expert, draw = np.arange(case.shape.e), Draw("global scale", case.seed)
    mantissas = (1 + draw.integers(1 << 23, (case.shape.e,)) / (1 << 23)).astype(np.float32)
    shrunk = np.ldexp(of_tensor * mantissas, -1 - 3 * expert % 8).astype(np.float32)
    return np.asarray(np.maximum(shrunk, np.float32(2**-126)), np.float32)


def _settings(case: Case, inputs: Inputs) -> dict[str, Any]:
    """What the reference and the kernel take by the same names."""
    layout = "linear" if case.input_sf == "none" else case.input_sf
    terms = {"input_sf": inputs["input_sf"], "input_sf_layout": layout, "first_expert": case.first_expert}
    return {**settings_of(case), **terms}


def _settings_as(case: Case, inputs: Inputs) -> dict[str, Any]:
    """What the reference and the kernel of an output but MXFP8 take by the same names."""
    scale = inputs["encode_scale"]
    if scale is not None and case.global_scale == "tensor":
        scale = scale[0]
    return {
        **{"output": case.output, "encode_scale": scale, "prescale": inputs["prescale"]},
        **{"layout": case.layout, "first_expert": case.first_expert, "fill": case.poison},
    }


def _expect_as(case: Case, inputs: Inputs) -> Expectation:
    """What `_expect` says of an output but MXFP8."""
    expanded = expand_as(inputs["x"], inputs["topk_ids"], case.shape.e, **_settings_as(case, inputs))
    codes, offsets, used = expanded.codes, expanded.offsets, int(expanded.offsets[-1])
    sources = expanded.permuted_to_unpermuted
    stage = Codes("codes", codes.shape, None, used, offsets, sources, case.shape.m)
    _, first = np.unique(sources[:used] % max(case.shape.m, 1), return_index=True)
    limits = EXPAND_FILLS[case.fill].limits
    if case.output == "nvfp4":
        assert expanded.scales is not None
        limits = NVFP4_FILLS.get(case.fill.removeprefix("nvfp4-"), EXPAND_FILLS[case.fill]).limits
        if case.prescale != "none" and case.fill != LARGE_CHANNELS:
            limits = replace(limits, zeros=0.6, reason="channels differ by eight binades")
        scales = GroupedScales("scales", case.layout, offsets, case.shape.k // NVFP4.block, UE4M3)
        linear = scales.linear(expanded.scales)
        stage = replace(stage, scales=linear, element=E2M1, block=NVFP4.block)
        doubt = doubt_nvfp4(NVFP4Tensor(codes[first], linear[first], np.float32(1)), limits)
        return Expectation({"codes": codes, "scales": expanded.scales}, (stage, scales), doubt)
    if case.output == "copy":
        bits = codes.view(f"u{codes.itemsize}")
        stage = replace(stage, element=E4M3 if case.dtype == "mxfp8" else FORMATS[case.dtype])
        doubt = doubt_values(bits[first] << bits.dtype.type(1), Limits(zeros=0.5))
        return Expectation({"codes": bits}, (stage,), doubt)
    doubt = doubt_codes(codes[first], np.zeros(1, np.uint8), limits, scales_copied=False)
    if expanded.scales is None:
        return Expectation({"codes": codes}, (stage,), doubt)
    row_scales = RowScales("row_scales", sources, case.shape.m)
    outputs = {"codes": codes, "row_scales": expanded.scales.view(np.uint32)}
    return Expectation(outputs, (stage, row_scales), doubt)


def _expect(case: Case, inputs: Inputs) -> Expectation:
    if case.output != "mxfp8":
        return _expect_as(case, inputs)
    expanded = expand(inputs["x"], inputs["topk_ids"], case.shape.e, **_settings(case, inputs))
    terms = GroupedScales("scales", case.layout, expanded.offsets, case.shape.k // MX_BLOCK)
    linear = terms.linear(expanded.scales)
    used, sources = int(expanded.offsets[-1]), expanded.permuted_to_unpermuted
    codes = Codes("codes", expanded.codes.shape, linear, used, expanded.offsets, sources, case.shape.m)
    # Copies of a token's row add nothing to what could have failed.
    tokens = sources[:used] % max(case.shape.m, 1)
    _, first = np.unique(tokens, return_index=True)
    copied = case.input_sf != "none"
    doubt = doubt_codes(expanded.codes[first], linear[first], EXPAND_FILLS[case.fill].limits, scales_copied=copied)
    return Expectation({"codes": expanded.codes, "scales": expanded.scales}, (codes, terms), doubt)


def _far(case: Case, inputs: Inputs) -> Layout:
    """Where rows lie in the kernel's buffers, of one choice a token."""
    k, group = case.shape.k, 4 * (NVFP4.block if case.output == "nvfp4" else MX_BLOCK)
    size = inputs["x"].itemsize
    codes = {"nvfp4": k // NVFP4.codes_a_byte, "copy": size * k}.get(case.output, k)
    before = int(case.rows_before)
    return of_rows(
        case,
        {
            **{"x": size * k, "input_sf": k // MX_BLOCK if case.input_sf == "linear" else -(-k // group) * 4},
            **{"topk_ids": 4, "unpermuted_to_permuted": 4, "codes": codes},
            "scales": 4 if case.output == "fp8_token" else -(-k // group) * 4,
        },
        values={
            "offsets": lambda offsets: behind(offsets, before),
            "unpermuted_to_permuted": lambda rows: np.where(rows < 0, rows, rows + before).astype(np.int32),
        },
        absent=("unpermuted_to_permuted",),
    )


def _as_given(case: Case, value: Any) -> Any:
    """Factors of channels or of experts; of FP16 every second element of a longer array, as a caller may have them."""
    return np.repeat(value, 2)[::2] if isinstance(value, np.ndarray) and case.dtype == "fp16" else value


def _run_as(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.expand import expand_as as launch

    result = called(case, launch)(
        inputs["x"],
        inputs["topk_ids"],
        inputs["unpermuted_to_permuted"],
        inputs["offsets"],
        device=far_device(case, device, _far(case, inputs)),
        **{name: _as_given(case, value) for name, value in _settings_as(case, inputs).items()},
    )
    codes = {"codes": result.codes.view(f"u{result.codes.itemsize}")}
    if result.scales is None:
        return codes
    return codes | ({"scales": result.scales} if case.output == "nvfp4" else {"row_scales": result.scales.view("u4")})


def _run(case: Case, inputs: Inputs, device: Device) -> Outputs:
    from refmoe.cuda.expand import expand as launch

    if case.output != "mxfp8":
        return _run_as(case, inputs, device)

    result = called(case, launch)(
        inputs["x"],
        inputs["topk_ids"],
        inputs["unpermuted_to_permuted"],
        inputs["offsets"],
        device=far_device(case, device, _far(case, inputs)),
        **_settings(case, inputs),
    )
    return {"codes": result.codes, "scales": result.scales}


def _check(case: Case) -> None:
    if case.fill == "bytes" and case.dtype != "mxfp8":
        raise refused("fill", case.fill, "dtype mxfp8 with it: it is raw codes and scales")
    if case.dtype != "mxfp8" and case.input_sf != "linear":
        raise refused("input_sf", case.input_sf, "dtype mxfp8 with it: other input has no scales")
    if case.output != "nvfp4" and case.global_scale != "tensor":
        raise refused("global_scale", case.global_scale, f"output nvfp4 with it: {case.output} has no global scale")
    if case.shape.k % MX_BLOCK and not (case.fill in _ROW_FILL_NAMES or case.fill.startswith("nvfp4-")):
        raise refused("shape", str(case.shape), f"a k that is a multiple of {MX_BLOCK} for the fill {case.fill}")
    if case.output != "mxfp8":
        _check_output(case)
    elif case.prescale != "none":
        raise refused("prescale", case.prescale, f"one of the outputs {', '.join(_COMPUTED)} with it")
    elif case.fill in _ROW_FILL_NAMES or case.fill.startswith("nvfp4-"):
        raise refused("fill", case.fill, "another output than mxfp8 with it")
    check_file(case)
    check_choices(case)
    check_before(case)


#: Outputs that are computed, so that a factor may come first.
_COMPUTED = tuple(output for output in OUTPUTS if output != "copy")
_ROW_FILL_NAMES = tuple(fill.name for fill in ROW_FILLS)


def _check_output(case: Case) -> None:
    for option in (MODE, EDGE, INPUT_SF):
        if case.get(option.name) != option.default:
            raise refused(option.name, str(case.get(option.name)), f"output mxfp8 with it, not {case.output}")
    if case.output != "nvfp4" and case.layout != "128x4":
        raise refused("layout", case.layout, f"block scales with it: {case.output} has none")
    if case.output == "copy" and case.prescale != "none":
        raise refused("prescale", case.prescale, f"one of the outputs {', '.join(_COMPUTED)} with it")
    if case.output != "copy" and case.dtype == "mxfp8":
        raise refused("output", case.output, "dtype bf16 or fp16 with it: MXFP8 is copied as it is")


def _case(fill: str, m: int, k: int, e: int, t: int, dtype: str = "bf16", seed: int = 7, **options: Any) -> Case:
    return EXPAND.case(fill, Shape(m, k, e, t), dtype, seed, **options)


#: The fill that shows most of each output but MXFP8.
_FILL_OF = {"nvfp4": "nvfp4-fingerprint", "fp8_tensor": "row-ties", "fp8_token": "row-ties", "copy": "gaussian"}


#: Of NVFP4 with a global scale for each expert: decode, empty experts, more ranks than a group has lanes, experts of
#: other ranks, factors of channels, blocks that are not finite.
_BY_EXPERT: tuple[tuple[Any, ...], ...] = (
    ("nvfp4-fingerprint", 1, 2880, 128, 4, {}),
    ("nvfp4-fingerprint", 9, 416, 16, 2, {"routing": "empty-experts", "poison": 0x7F}),
    ("nvfp4-rne-ties", 3, 160, 16, 11, {"dtype": "fp16", "layout": "8x4"}),
    ("nvfp4-fingerprint", 8, 416, 8, 4, {"first_expert": 8, "ranks": 3}),
    ("gaussian", 5, 416, 8, 2, {"prescale": "channel"}),
    ("specials", 64, 32, 8, 2, {}),
)


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
    # A token alone: ranks of other experts among its own, and more than a group has lanes.
    yield _case("fingerprint", 1, 416, 8, 4, first_expert=8, ranks=3)
    yield _case("fingerprint", 1, 160, 16, 11, layout="8x4", poison=0x7F)
    yield _case("bytes", 1, 416, 8, 3, dtype="mxfp8", input_sf="linear")
    for mode, edge in COMPILED_POLICIES:
        yield _case("specials", 4, 416, 8, 2, mode=mode, edge=edge)
        yield _case("boundary-mantissas", 16, 416, 8, 2, mode=mode, edge=edge, layout="8x4")
    yield _case("fingerprint", 9, 416, 8, 2, routing="padded")
    yield _case("tiny", 4, 416, 8, 2)
    yield _case("rne-ties", 4, 416, 8, 2, dtype="fp16")
    for input_sf in INPUT_SF.words:
        yield _case("bytes", 9, 416, 8, 2, dtype="mxfp8", input_sf=input_sf)
        yield _case("fingerprint", 9, 416, 8, 2, dtype="mxfp8", input_sf=input_sf, layout="8x4")
    yield from _quick_as()


def _quick_as() -> Iterator[Case]:
    """The outputs but MXFP8: decode, tails, more ranks than a group has lanes, ranks in the middle."""
    for output, fill in _FILL_OF.items():
        yield _case(fill, 1, 2880, 128, 4, output=output)
        yield _case(fill, 9, 416, 16, 2, output=output, routing="empty-experts", poison=0x7F)
        yield _case(fill, 3, 160, 16, 11, output=output, dtype="fp16")
        yield _case(fill, 8, 416, 8, 4, output=output, first_expert=8, ranks=3)
        if output != "copy":
            yield _case("specials", 64, 32, 8, 2, output=output)
            yield _case("gaussian", 5, 416, 8, 2, output=output, prescale="channel")
            yield _case("gaussian", 5, 416, 8, 2, output=output, prescale="channel", dtype="fp16")
    yield _case("nvfp4-scale-ties", 9, 416, 8, 2, output="nvfp4", layout="8x4")
    yield _case("nvfp4-rne-ties", 9, 416, 8, 2, output="nvfp4")
    yield _case("nvfp4-fingerprint", 130, 96, 4, 1, output="nvfp4", routing="same-experts")
    for fill, *sizes, options in _BY_EXPERT:
        yield _case(fill, *sizes, output="nvfp4", global_scale="expert", **options)
    yield _case("row-scales", 40, 96, 8, 2, output="fp8_token")
    yield _case("tiny", 9, 416, 8, 2, output="fp8_token")
    yield _case("bytes", 9, 416, 8, 2, dtype="mxfp8", output="copy")


def _default_as() -> Iterator[Case]:
    """The outputs but MXFP8, at the shapes of models."""
    for output, fill in _FILL_OF.items():
        for k, e, t in MODELS:
            yield _case(fill, 1, k, e, t, output=output)
            yield _case("real", DECODE[-1], k, e, t, output=output, poison=0x7F)
            yield _case(fill, e // t, k, e, t, output=output, routing="all-one-token")
        yield _case(fill, 160, 2880, 128, 1, output=output, routing="same-experts")
        if output != "copy":
            yield _case("real", 2, 2880, 128, 4, output=output, prescale="channel")
            yield _case("gaussian", 2, 8224, 3, 1, output=output, prescale="channel")  # channels past those of a CTA
            yield _case("gaussian", 1, 24_608, 3, 1, output=output, prescale="channel")  # and past three rounds of one
        for dtype in ("bf16", "fp16"):
            yield _case(fill, 9, 1440, 8, 2, output=output, dtype=dtype)
        yield _case(fill, 3, 8224, 8, 2, output=output)  # a row wider than a CTA, by two lanes
        yield _case(fill, 0, 2880, 8, 2, output=output)
        yield _case(fill, 3, 416, 4, 2, output=output, routing="elsewhere", first_expert=4, ranks=2)
    # A row wider than a CTA, by one lane, which has the first row's largest element; and more CTAs than threads of one.
    yield _case("row-ties", 513, 8208, 2, 1, output="fp8_token")
    # All outputs loop over the same grid; a scale for each token is the only one that a CTA keeps from one to the next.
    yield _case(_FILL_OF["copy"], LOOPING_ROWS, 32, 8, 2, output="copy")
    yield _case("real", 256, 2880, 128, 4, output="nvfp4")  # a prefill
    for fill in ("nvfp4-rne-ties", "nvfp4-scale-ties", "nvfp4-scale-bytes"):
        for dtype in ("bf16", "fp16"):
            for layout in ("128x4", "8x4"):
                yield _case(fill, 9, 1440, 8, 2, output="nvfp4", dtype=dtype, layout=layout)
    yield _case("real", 2, 2880, 128, 4, output="nvfp4", global_scale="expert")
    yield _case("nvfp4-fingerprint", 3, 8224, 8, 2, output="nvfp4", global_scale="expert")
    yield _case("row-scales", LOOPING_ROWS, 544, 8, 1, output="fp8_token")  # two warps, several tokens a CTA
    yield _case("tiny", 24, 32, 8, 2, output="fp8_token")  # tokens that have nothing but subnormal numbers
    for output in ("fp8_token", "fp8_tensor"):
        for fill in ("row-scales", "gaussian"):
            yield _case(fill, 33, 416, 8, 2, output=output)
    yield _case("bytes", 130, 416, 16, 3, dtype="mxfp8", output="copy")
    yield _case("nvfp4-fingerprint", 48, 32, 384, 8, output="nvfp4", global_scale="expert", routing="all-one-token")
    # Of FP8 under one scale an infinity and the largest number have one code.
    for dtype, output in product(("bf16", "fp16"), ("nvfp4", "fp8_token")):
        yield _case(LARGE_CHANNELS, 9, 416, 9, 2, output=output, prescale="channel", dtype=dtype)
    for dtype, output in product(("bf16", "fp16"), _COMPUTED[1:]):
        # Factors of zero, of either sign, subnormal, and an ulp to either side of 1.
        yield _case(EDGE_CHANNELS, 5, 416, 9, 2, output=output, prescale="channel", dtype=dtype)
    for output, fill in _FILL_OF.items():
        # Rows of an odd number of pieces of 16 elements, and of one.
        for k in (16, 48, 400):
            yield _case("row-ties" if output == "copy" else fill, 5, k, 6, 2, output=output, dtype="fp16")
        # More choices than two rounds of a group's lanes; more experts than a byte counts, as Kimi K2 has.
        yield _case(fill, 2, 96, 25, 20, output=output)
        yield _case(fill, 48, 32, 384, 8, output=output, routing="all-one-token")
        yield _case(fill, 66, 8224, 3, 1, output=output, multiprocessors=1)  # wider than a CTA, and more than CTAs
        yield _case(fill, 5, 64, 3, 1, output=output, rows_before=FAR_ROWS)
        yield _case(fill, 5, 160, 3, 1, output=output, rows_before=FAR_ROWS)  # and past 2^32
        for rows in (127, 128, 129):
            yield _case(fill, rows, 96, 99, 1, output=output, routing="same-experts", poison=0x7F)


def _default() -> Iterator[Case]:
    yield _case("fingerprint", 3, 96, 1, 1, ranks=2, first_expert=1)  # a rank of one expert
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
    for dtype, (mode, edge), layout in product(("bf16", "fp16"), COMPILED_POLICIES, LAYOUT.words):
        # Tokens enough that their rows leave the caches at once: other loads than those of fewer.
        yield _case("fingerprint", 66, 96, 12, 2, dtype=dtype, mode=mode, edge=edge, layout=layout)
        # A token alone at the last of so many experts: its scales lie as many atoms of 128 rows on, and not one less.
        alone: dict[str, Any] = {"dtype": dtype, "mode": mode, "edge": edge, "layout": layout}
        yield _case("fingerprint", 1, 96, 128, 1, routing="same-experts", **alone)
        yield _case("fingerprint", 1, 96, 130, 2, routing="same-experts", **alone)
    for dtype, (mode, edge), fill, layout in product(INPUT_FORMATS, COMPILED_POLICIES, PLAIN, LAYOUT.words):
        yield _case(fill, 9, 1440, 8, 2, dtype=dtype, mode=mode, edge=edge, layout=layout)
    for mode, edge in COMPILED_POLICIES:
        yield _case("exhaustive-max", 1024, 2048, 8, 1, mode=mode, edge=edge)
        yield _case("exhaustive-element", 128, 2880, 8, 1, mode=mode, edge=edge)
    yield _case("fingerprint", LOOPING_ROWS, 32, 8, 2)
    for m, k, e, t in ((3, 8224, 8, 2), (1, 16416, 3, 1), (2, 24_608, 3, 1)):
        yield _case("wide-range", m, k, e, t)  # a row wider than a CTA by one block, three rounds of a CTA, and four
    for dtype in ("bf16", "fp16"):
        yield _case("fingerprint", 2, 96, 40, 32, dtype=dtype)  # as many choices as there may be
    yield _case("wide-range", 66, 8224, 3, 1, multiprocessors=1)  # such rows, and more of them than CTAs
    # The last of four ranks, of which a token chooses more experts than each has.
    for output, fill in (("mxfp8", "fingerprint"), *_FILL_OF.items()):
        yield _case(fill, 7, 96, 3, 5, output=output, first_expert=9, ranks=4)
    yield _case("nvfp4-fingerprint", 7, 96, 3, 5, output="nvfp4", global_scale="expert", first_expert=9, ranks=4)
    # More choices than two rounds of a group's lanes; more experts than a byte counts, as Kimi K2 has.
    yield _case("fingerprint", 2, 96, 25, 20)
    for output, fill in (("mxfp8", "fingerprint"), ("nvfp4", _FILL_OF["nvfp4"])):
        yield _case(fill, 5, 32, 600, 3, output=output)  # past nine bits of experts
    yield _case("fingerprint", 6, 64, 8, 2, routing="unset")
    yield _case("fingerprint", 48, 32, 384, 8, routing="all-one-token")
    yield _case("gaussian", 0, 2880, 8, 2)
    for output in OUTPUT.words:  # the fill's default; the first of two ranks
        fill = _FILL_OF.get(output, "fingerprint")
        yield _case(fill, 9, 64, 4, 2, output=output, poison=0, ranks=2)
    for input_sf in INPUT_SF.words:
        for fill in ("bytes", "real", "specials"):
            yield _case(fill, 130, 416, 16, 3, dtype="mxfp8", input_sf=input_sf, poison=0x7F)
        yield _case("bytes", 3, 8224, 8, 2, dtype="mxfp8", input_sf=input_sf)
        yield _case("bytes", LOOPING_ROWS, 32, 8, 2, dtype="mxfp8", input_sf=input_sf)
    # More tokens than an atom of their scales has rows, whose scale columns need no padding.
    yield _case("bytes", 130, 128, 8, 2, dtype="mxfp8", input_sf="128x4")
    for rows in (127, 128, 129):  # an atom of scales of one expert, and a row less and more
        yield _case("fingerprint", rows, 128, 99, 1, routing="same-experts", poison=0x7F)
    for k in (96, 128, 160, 480, 512, 544):  # a group's elements and a warp's, and a block less and more
        yield _case("fingerprint", 3, k, 99, 5)
    yield _case("fingerprint", 16_500, 32, 8, 4)  # more than 65,536 rows, and more rows of scales than CTAs
    yield _case("fingerprint", 65_600, 32, 3, 1, routing="same-experts")  # and one expert has all
    for m, layout in ((5, "128x4"), (66, "8x4")):  # pieces, and bytes of scales, past 2^31
        yield _case("fingerprint", m, 64, 3, 1, rows_before=FAR_ROWS, layout=layout)
        yield _case("fingerprint", m, 160, 3, 1, rows_before=FAR_ROWS, layout=layout)  # and past 2^32
    for input_sf in INPUT_SF.words:
        yield _case("bytes", 5, 64, 3, 1, dtype="mxfp8", input_sf=input_sf, rows_before=FAR_ROWS, layout="8x4")
    for k, layout in product((128, 256), LAYOUT.words):  # linear scales past 2^31, four a row, and past 2^32
        yield _case("bytes", 5, k, 3, 1, dtype="mxfp8", rows_before=FAR_ROWS, layout=layout)
    yield from _default_as()
    yield from _every_entry()


#: The fills that show most of an output.
_FILLS_OF = {
    "nvfp4": ("nvfp4-fingerprint", "nvfp4-rne-ties", "nvfp4-scale-ties", "nvfp4-scale-bytes", "specials", "gaussian"),
    "fp8_tensor": ("row-ties", "row-scales", "specials", "gaussian"),
    "fp8_token": ("row-ties", "row-scales", "specials", "gaussian", "tiny"),
}


def _every_entry() -> Iterator[Case]:
    """Each entry has machine code of its own: each meets the fills of its output."""
    for output, dtype, prescale in product(_COMPUTED, ("bf16", "fp16"), ("none", "channel")):
        entry: dict[str, Any] = {"output": output, "dtype": dtype, "prescale": prescale}
        for fill in _FILLS_OF[output]:
            if prescale == "channel" and (fill == "specials" or fill.startswith("row-")):
                continue  # factors move its values away from what they are made to lie beside
            m, k, e, t = (64, 32, 8, 2) if fill == "specials" else (17, 160, 6, 2)
            for layout, scale in product(LAYOUT.words, GLOBAL_SCALE.words) if output == "nvfp4" else (("", ""),):
                block: dict[str, Any] = {"layout": layout, "global_scale": scale} if layout else {}
                yield _case(fill, m, k, e, t, **entry, **block)
    for input_sf, layout, fill in product(INPUT_SF.words, LAYOUT.words, ("bytes", "fingerprint", "specials")):
        yield _case(fill, 17, 416, 6, 2, dtype="mxfp8", input_sf=input_sf, layout=layout)
    # Those of a token alone.
    for dtype, (mode, edge), layout in product(("bf16", "fp16"), COMPILED_POLICIES, LAYOUT.words):
        for fill in ("fingerprint", "boundary-mantissas"):
            yield _case(fill, 1, 1440, 12, 9, dtype=dtype, mode=mode, edge=edge, layout=layout)
    for input_sf, layout, fill in product(INPUT_SF.words, LAYOUT.words, ("bytes", "fingerprint")):
        yield _case(fill, 1, 1440, 12, 9, dtype="mxfp8", input_sf=input_sf, layout=layout)
    yield _case("bytes", 1, 16_416, 5, 3, dtype="mxfp8", input_sf="linear")  # three rounds of a CTA
    yield _case("gaussian", 1, 416, 4, 4, routing="elsewhere", first_expert=4, ranks=2)
    # And writes more choices of a token than a group of lanes has, in loops that are unrolled.
    for dtype, (mode, edge), layout in product(("bf16", "fp16"), COMPILED_POLICIES, LAYOUT.words):
        yield _case("fingerprint", 2, 96, 16, 11, dtype=dtype, mode=mode, edge=edge, layout=layout)
    for input_sf, layout in product(INPUT_SF.words, LAYOUT.words):
        yield _case("bytes", 2, 96, 16, 11, dtype="mxfp8", input_sf=input_sf, layout=layout)
    for output, dtype, prescale in product(_COMPUTED, ("bf16", "fp16"), ("none", "channel")):
        entry = {"output": output, "dtype": dtype, "prescale": prescale}
        for layout, scale in product(LAYOUT.words, GLOBAL_SCALE.words) if output == "nvfp4" else (("", ""),):
            block = {"layout": layout, "global_scale": scale} if layout else {}
            yield _case("gaussian", 2, 96, 16, 11, **entry, **block)
            if output == "nvfp4":
                yield _case(PRODUCT_TIES, 3, 64, 4, 2, **entry, **block)
        if output == "fp8_token":
            # The largest element of a token anywhere in the eight warps of a CTA.
            yield _case("gaussian", 40, 4096, 8, 1, **entry)


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
    for output, fill in _FILL_OF.items():
        for k, e, t in MODELS:
            for m in DECODE:
                yield _case(fill, m, k, e, t, output=output)
                yield _case("real", m, k, e, t, output=output, poison=0x7F)
            yield _case(fill, 160, k, e, 1, output=output, routing="same-experts")
            if output != "copy":
                yield _case("real", 2, k, e, t, output=output, prescale="channel")
        yield _case("real", 256, 2880, 128, 4, output=output)
        yield _case(fill, LOOPING_ROWS, 32, 8, 2, output=output)
    for k, e, t in MODELS:
        yield _case("real", 2, k, e, t, output="nvfp4", global_scale="expert")


def _foreign_row(given: Arguments) -> Arguments:
    """A row for a choice of another rank."""
    rows = given["unpermuted_to_permuted"].copy()
    rows[np.flatnonzero(rows < 0)[-1]] = 0
    return {"unpermuted_to_permuted": rows}


def _own_row(given: Arguments) -> Arguments:
    """None for a choice of this rank."""
    rows = given["unpermuted_to_permuted"].copy()
    rows[np.flatnonzero(rows >= 0)[0]] = -1
    return {"unpermuted_to_permuted": rows}


def _crowded(given: Arguments) -> Arguments:
    """A token with more of this rank's experts than there are."""
    tokens, experts = given["x"].shape[0], given["offsets"].size - 1
    ids = np.full((tokens, experts + 1), given["first_expert"], np.int32)
    return {"topk_ids": ids, "unpermuted_to_permuted": np.zeros(ids.size, np.int32)}


def _nobody(given: Arguments) -> Arguments:
    """No token chooses anybody."""
    rows = given["unpermuted_to_permuted"].size
    return {"topk_ids": np.full_like(given["topk_ids"], -1), "unpermuted_to_permuted": np.full(rows, -1, np.int32)}


_CHANGES: Mapping[str, Change] = {
    "input_sf-given": lambda given: {"input_sf": np.zeros((given["x"].shape[0], given["x"].shape[1] // 32), np.uint8)},
    "unpermuted_to_permuted-foreign": _foreign_row,
    "unpermuted_to_permuted-unowned": _own_row,
    "topk_ids-crowded": _crowded,
    "topk_ids-many": lambda given: {"topk_ids": huge((3, 1 << 30), given["topk_ids"])},
    "offsets-of_many_experts": lambda given: {"offsets": many_experts(), **_nobody(given)},
    "prescale-of_copy": lambda given: {"output": "copy", "encode_scale": None},
    "encode_scale-of_token": lambda given: {"output": "fp8_token"},
}
_MAPS = {
    "topk_ids": f"{ARRAY} none flat short no_columns crowded many",
    "unpermuted_to_permuted": f"{ARRAY} short past huge twice",
    "offsets": f"{ARRAY} scalar one first last falling of_many_experts",
    "first_expert": "negative fraction huge",
}


def _refuses() -> Iterator[Case]:
    many = {"x-many_rows": f"x: found {MANY} rows", "x-most_rows": "step past", "x-long_rows": "bytes of scale atoms"}
    many |= {"topk_ids-many": "rows after expansion", "unpermuted_to_permuted-foreign": "found 0 at 15"}
    many |= {"offsets-of_many_experts": "padded scale rows"}
    matrix = f"{ARRAY} flat narrow no_columns many_rows most_rows long_rows"
    words = {**dict.fromkeys(("mode", "edge", "layout", "input_sf_layout"), "word"), "fill": BYTE}
    yield from wrong_calls(_case("gaussian", 3, 64, 4, 2), many, x=matrix, input_sf="given", **_MAPS, **words)
    others = _case("gaussian", 9, 64, 4, 2, first_expert=4, ranks=2)
    yield from wrong_calls(others, many, unpermuted_to_permuted="foreign unowned")
    ready = _case("bytes", 3, 64, 4, 2, dtype="mxfp8")
    yield from wrong_calls(ready, x="dtype", input_sf=f"{ARRAY} short narrow")
    yield from wrong_calls(ready.having(input_sf="128x4"), input_sf="short strided")
    computed = _case("gaussian", 3, 64, 4, 2, output="nvfp4", prescale="channel")
    words = {"output": "word", "layout": "word", "fill": BYTE}
    factors = {"encode_scale": "none text zero negative nan", "prescale": "list dtype rank short of_copy"}
    yield from wrong_calls(computed, many, x=matrix, **_MAPS, **words, **factors)
    by_expert = computed.having(global_scale="expert")
    yield from wrong_calls(by_expert, encode_scale="dtype rank short negative nan of_token")
    yield from wrong_calls(_case("gaussian", 3, 64, 4, 2, output="copy"), x="dtype narrow")


def _extents(case: Case) -> Extents:
    rows, k, experts = case.shape.rows, case.shape.k, case.shape.e
    if case.output == "mxfp8":
        return mxfp8_grouped(rows, k, experts)
    if case.output == "nvfp4":
        return {"codes": rows * k // 2, "scales": grouped_scales(rows, experts, k // NVFP4.block)}
    size = ELEMENT_BYTES.get(case.dtype, 1) if case.output == "copy" else 1
    return {"codes": rows * k * size, **({"row_scales": 4 * rows} if case.output == "fp8_token" else {})}


EXPAND = Family(
    name="expand",
    about="Tokens in the order of their experts, one row for each choice, quantized to MXFP8, NVFP4 or FP8, or copied.",
    dtypes=("bf16", "fp16", "mxfp8"),
    sizes="mket",
    fills=EXPAND_FILLS,
    options=(
        MODE,
        EDGE,
        LAYOUT,
        INPUT_SF,
        OUTPUT,
        PRESCALE,
        GLOBAL_SCALE,
        ROUTING,
        *RANKS,
        MULTIPROCESSORS,
        ROWS_BEFORE,
        POISON,
        WRONG,
        *FILE_OPTIONS,
    ),
    inputs=_inputs,
    expect=_expect,
    run=_run,
    extents=_extents,
    cases={"quick": _quick, "default": _default, "full": _full},
    refuses=_refuses,
    changes=_CHANGES,
    contract=Contract(
        inputs=(
            *("x", "input_sf", "topk_ids", "unpermuted_to_permuted", "permuted_to_unpermuted", "offsets"),
            *("encode_scale", "prescale"),
        ),
        features=("input_sf", "encode_scale", "prescale"),
        outputs={"codes": "float8_e4m3fn", "scales": "float8_e8m0fnu", "row_scales": "float32"},
        elements={"nvfp4": {"codes": "float4_e2m1fn_x2", "scales": "float8_e4m3fn"}, "copy": {"codes": "case.dtype"}},
        settings={
            **ROUTED,
            **{"mode": "mode", "edge": "edge", "layout": "layout", "input_sf_layout": "input_sf"},
            **{"output": "output", "global_scale": "global_scale"},
        },
    ),
    sources=("expand",),
    host=("refmoe.cuda.expand",),
    check=_check,
    lacks=lacks_memory,
    block=NVFP4.block,
)
