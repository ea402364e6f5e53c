"""A case is its repro string: everything that decides its data, its launch and its device, and nothing else.

    family:dtype:shape:fill[:option=value]...:seedN@device[.arch]
    expand:bf16:m4k2880e8t2:rne-ties:mode=floor:seed7@ptx
    sm12x_gemm:f32:m4k2880n640e4:gaussian:tile=128x8x512:stages=2:seed7@ptx

Options that have their default value are left out, so that a case has one string and equal strings are equal cases.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

from refmoe.errors import ArgumentError
from refmoe.families.fills import BLOCK, FILLS
from refmoe.families.gemm.fills import GEMM_FILLS
from refmoe.families.moe_fills import MOE_FILLS
from refmoe.families.step_fills import GATE_FILLS, LOGIT_FILLS, MIDPOINTS, ROW_FILLS

__all__ = ["ARCHS", "CUTLASS_BUILDS", "DEVICES", "FAMILIES", "ROUTINGS", "Case", "FamilyRules", "Shape", "parse_case"]

INT32_MAX = 2**31 - 1

#: Instantiations of CUTLASS's grouped GEMM: the schedule, and whether weights lie on M (swapped) or tokens do.
CUTLASS_BUILDS = ("cooperative-swapped", "pingpong-swapped", "cooperative-unswapped", "pingpong-unswapped")

GRAMMAR = "family:dtype:shape:fill[:option=value]...:seedN@device"

DEVICES = ("ptx", "cuda")
ARCHS = ("sm_90a", "sm_120a", "sm_121a")

#: Where tokens go; the functions are in refmoe.families.choices.
ROUTINGS: Mapping[str, str] = MappingProxyType(
    {
        "uniform": "each token picks different experts at random",
        "all-one-token": "every expert gets exactly one row",
        "same-experts": "every token picks the same experts: with t = 1 one expert takes all",
        "empty-experts": "two experts of three get nothing, the first and the last among them",
        "elsewhere": "every row belongs to an expert of another rank",
        "padded": "as uniform, but the last third of the tokens pads the batch: its experts do not exist",
    }
)


#: Fills of the quantizing families that are no generator in FILLS: they come from a file.
_FILE_FILLS = ("real", "activations")

#: The fill of routing cases that are given their choices, which the option `routing` makes.
_GIVEN = "given"

#: The layouts of a family that writes no scales.
_NO_SCALES = ("",)


@dataclass(frozen=True)
class FamilyRules:
    """What a family's repro strings may say.

    Attributes:
        source: name of the kernel source.
        dtypes: element types of the input; of the output for a GEMM, whose inputs are MXFP8 and MXFP4; "ids" for
            choices that routing only sorts.
        sizes: letters of the shape, in the order of the string; see `Shape`.
        fills: names of the input data.
        layouts: scale layouts of the kernels, the default first.
        options: names of the options that mean something here, in the order of the string.
        others: names of further sources, of a family that launches several kernels. They have families of their own,
            whose cases find a fault in them sooner.
    """

    source: str
    dtypes: tuple[str, ...]
    sizes: str
    fills: tuple[str, ...]
    layouts: tuple[str, ...]
    options: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def routed(self) -> bool:
        """Whether rows go to experts."""
        return "e" in self.sizes


FAMILIES: Mapping[str, FamilyRules] = MappingProxyType(
    {
        "mxfp8_quantize": FamilyRules(
            source="mxfp8_quantize",
            dtypes=("bf16", "fp16"),
            sizes="mk",
            fills=(*FILLS, *_FILE_FILLS),
            layouts=("linear", "128x4", "8x4"),
            options=("mode", "edge", "layout", "poison", "file", "tensor"),
        ),
        "expand": FamilyRules(
            source="expand",
            dtypes=("bf16", "fp16", "mxfp8"),
            sizes="mket",
            fills=(*FILLS, *_FILE_FILLS, "bytes"),
            layouts=("128x4", "8x4"),
            options=(
                *("mode", "edge", "layout", "input_sf", "routing", "first_expert", "ranks", "poison"),
                *("file", "tensor"),
            ),
        ),
        "sm12x_gemm": FamilyRules(
            source="sm12x_grouped_gemm",
            dtypes=("bf16", "f32"),
            sizes="mkne",
            fills=tuple(GEMM_FILLS),
            layouts=("128x4",),
            options=("tile", "stages", "cluster", "routing", "first_expert", "ranks", "alpha", "bias", "poison"),
        ),
        "cutlass_gemm": FamilyRules(
            source="cutlass/grouped_gemm",
            dtypes=("bf16", "f32"),
            sizes="mkne",
            fills=tuple(GEMM_FILLS),
            layouts=("128x4",),
            options=("build", "tile", "routing", "first_expert", "ranks", "alpha", "bias", "poison"),
        ),
        "routing": FamilyRules(
            source="routing",
            dtypes=("f32", "bf16", "ids"),
            sizes="met",
            fills=(*LOGIT_FILLS, _GIVEN),
            layouts=_NO_SCALES,
            options=("routing", "first_expert", "ranks", "bias", "poison"),
        ),
        "activation": FamilyRules(
            source="activation",
            dtypes=("bf16",),
            sizes="mke",
            fills=tuple(GATE_FILLS),
            layouts=("128x4", "8x4"),
            options=(
                *("variant", "mode", "edge", "layout", "params", "bias"),
                *("routing", "first_expert", "ranks", "poison"),
            ),
        ),
        "finalize": FamilyRules(
            source="finalize",
            dtypes=("bf16", "f32"),
            sizes="mket",
            fills=tuple(ROW_FILLS),
            layouts=_NO_SCALES,
            options=("out", "bias", "routing", "first_expert", "ranks", "poison"),
        ),
        "moe": FamilyRules(
            source="routing",
            dtypes=("bf16",),
            sizes="mknet",
            fills=tuple(MOE_FILLS),
            layouts=_NO_SCALES,
            options=(
                *("path", "variant", "mode", "edge", "params", "bias", "input_sf"),
                *("routing", "first_expert", "ranks", "poison"),
            ),
            others=("mxfp8_quantize", "expand", "sm12x_grouped_gemm", "activation", "finalize"),
        ),
    }
)

#: Options that take one word of a list.
_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mode": ("rceil", "floor"),
        "edge": ("exact", "flashinfer"),
        "input_sf": ("linear", "128x4", "none"),
        "routing": tuple(ROUTINGS),
        "alpha": ("none", "distinct"),
        "bias": ("none", "distinct"),
        "build": CUTLASS_BUILDS,
        "variant": ("gpt_oss", "silu"),
        "params": ("none", "distinct"),
        "out": ("bf16", "f32"),
        "path": ("separate", "fused", "ready"),
    }
)

#: How the numeric and the shaped options are written, and what to say of anything else.
_WRITTEN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "poison": (r"0x[0-9A-Fa-f]{2}", "a byte such as 0xFF"),
        "first_expert": (r"\d{1,9}", "an integer"),
        "ranks": (r"\d{1,9}", "an integer"),
        "stages": (r"\d{1,9}", "an integer"),
        "tile": (r"\d{1,5}x\d{1,5}x\d{1,5}", "MxNxK such as 128x8x512: weight rows, tokens, elements of K"),
        "cluster": (r"\d{1,5}x\d{1,5}x\d{1,5}", "blocks such as 2x1x1"),
    }
)

#: Options that are free text, written with escapes.
_TEXTS = ("file", "tensor")


@dataclass(frozen=True, order=True)
class Shape:
    """Sizes of a case; a size that the family does not have is 0.

    Attributes:
        m: rows of the input: tokens, or for a GEMM and an activation rows in expert order, one expert each.
        k: elements of a row: of an activation's output, which is half as wide as its input.
        e: local experts.
        t: experts per token.
        n: weight rows of each expert; of a layer its intermediate size, k being the hidden one.
    """

    m: int
    k: int = 0
    e: int = 0
    t: int = 0
    n: int = 0

    def __str__(self) -> str:
        sizes = {"m": self.m, "k": self.k, "n": self.n, "e": self.e, "t": self.t}
        return "".join(f"{letter}{size}" for letter, size in sizes.items() if size or letter == "m")

    @property
    def rows(self) -> int:
        """Rows after routing: m for each of the t experts of a token."""
        return self.m * max(self.t, 1)


@dataclass(frozen=True)
class Case:
    """One comparison of a kernel with its reference; `str(case)` is the repro string.

    Attributes:
        family: the kernel family, a key of `FAMILIES`.
        dtype: of the input, "bf16", "fp16", or "mxfp8" for input that is quantized already; of a GEMM's output,
            "bf16" or "f32".
        shape: sizes.
        fill: name of the input data.
        seed: of the input data and the routing.
        device: "ptx" or "cuda".
        arch: what the kernel is compiled for; "" is the default, sm_120a on ptx and the GPU's own on cuda.
        mode, edge: the kernel's quantization policy.
        layout: of the scales it writes; "" is the family's default.
        poison: what fills its output buffers before the launch, and the padding rows of a GEMM's scales.
        routing, first_expert, ranks: where tokens go; experts are numbered over all ranks, `e` on each, and the
            kernel's own start at first_expert.
        input_sf: layout of ready input's scales, or "none" for absent ones.
        file, tensor: the activations of the fill of that name.
        tile: of the GEMM, "" for the one that its rule chooses.
        stages: of the GEMM's ring in shared memory, 0 for all that fit.
        cluster: of the GEMM's blocks.
        build: of CUTLASS's kernel, one of `CUTLASS_BUILDS`.
        alpha, bias: "distinct" for a factor of each expert and a term of each of its weight rows, or "none"; of routing
            a term of each expert.
        variant: of the activation.
        params: "distinct" for an alpha, a beta and a limit of each expert, or "none" for those of gpt-oss.
        out: dtype that finalize rounds to.
        path: who quantizes a layer's tokens: a launch of its own, expand, or the caller.

    Raises:
        ArgumentError: a field that the family does not define, named "case <field>".
    """

    family: str
    dtype: str
    shape: Shape
    fill: str
    seed: int = 0
    device: str = "ptx"
    arch: str = ""
    mode: str = "rceil"
    edge: str = "exact"
    layout: str = ""
    input_sf: str = "linear"
    routing: str = "uniform"
    first_expert: int = 0
    ranks: int = 1
    poison: int = 0xFF
    file: str = ""
    tensor: str = ""
    tile: str = ""
    stages: int = 0
    cluster: str = "1x1x1"
    alpha: str = "none"
    bias: str = "none"
    build: str = "cooperative-swapped"
    variant: str = "gpt_oss"
    params: str = "none"
    out: str = "bf16"
    path: str = "separate"

    def __post_init__(self) -> None:
        rules = FAMILIES.get(self.family)
        if rules is None:
            raise _refused("family", self.family, _one_of(FAMILIES))
        if not self.layout:
            object.__setattr__(self, "layout", rules.layouts[0])
        if self.device == "ptx" and not self.arch:
            object.__setattr__(self, "arch", "sm_120a")
        _check_words(self, rules)
        _check_shape(self, rules)
        _check_fill(self)
        _check_routing(self)

    def __str__(self) -> str:
        options = [
            f"{name}={_option_text(name, getattr(self, name))}"
            for name in FAMILIES[self.family].options
            if getattr(self, name) != _default(self.family, name)
        ]
        fields = [self.family, self.dtype, str(self.shape), self.fill, *options, f"seed{self.seed}"]
        default_arch = "sm_120a" if self.device == "ptx" else ""
        return ":".join(fields) + f"@{self.device}" + (f".{self.arch}" if self.arch != default_arch else "")

    def on(self, device: str, arch: str = "") -> Case:
        """The same case on another device."""
        return dataclasses.replace(self, device=device, arch=arch)


def parse_case(text: str) -> Case:
    """The case of a repro string.

    Raises:
        ArgumentError: a malformed string; the message says which field is wrong and what it may be.
    """
    head, at, place = text.strip().rpartition("@")
    if not at:
        raise _refused("device", f"no '@' in {text!r}", "...@device or ...@device.arch at the end")
    device, _, arch = place.partition(".")
    fields = head.split(":")
    if len(fields) < 5:
        raise _refused("fields", f"{len(fields)} of them in {text!r}", GRAMMAR)
    family, dtype, shape, fill, *options, seed = fields
    if family not in FAMILIES:
        raise _refused("family", family, _one_of(FAMILIES))
    match = re.fullmatch(r"seed(0|[1-9][0-9]{0,17})", seed)
    if match is None:
        raise _refused("seed", seed, "seedN, N an integer, as the last field")
    return Case(
        family=family,
        dtype=dtype,
        shape=_parse_shape(family, shape),
        fill=fill,
        seed=int(match[1]),
        device=device,
        arch=_parse_arch(place, device, arch),
        **_parse_options(family, options),
    )


def _parse_arch(place: str, device: str, arch: str) -> str:
    if "." in place and arch not in ARCHS:
        raise _refused("arch", arch, _one_of(ARCHS))
    return arch


_SIZE_WORDS = {"m": "rows", "k": "width", "n": "weight rows", "e": "experts", "t": "experts per token"}


def _parse_shape(family: str, text: str) -> Shape:
    letters = FAMILIES[family].sizes
    match = re.fullmatch("".join(rf"{letter}(?P<{letter}>\d{{1,10}})" for letter in letters), text)
    if match is None:
        raise _refused("shape", text, "".join(f"{letter}<{_SIZE_WORDS[letter]}>" for letter in letters))
    return Shape(**{letter: int(size) for letter, size in match.groupdict().items()})


def _parse_options(family: str, fields: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    allowed = FAMILIES[family].options
    for field in fields:
        name, equals, value = field.partition("=")
        if not equals or name not in allowed:
            raise _refused("option", field, f"name=value with a name of {_one_of(allowed)}")
        if name in options:
            raise _refused(name, "it twice", "each option at most once")
        options[name] = _option_value(name, value)
    return options


def _option_value(name: str, text: str) -> str | int:
    if name in _WRITTEN:
        pattern, needed = _WRITTEN[name]
        if not re.fullmatch(pattern, text):
            raise _refused(name, text, needed)
    if name == "poison":
        return int(text, 16)
    if name in ("first_expert", "ranks", "stages"):
        return int(text)
    return unquote(text) if name in _TEXTS else text


def _option_text(name: str, value: str | int) -> str:
    if name == "poison":
        return f"0x{value:02X}"
    # What separates fields may occur in a path, and what a shell splits at may too.
    return quote(str(value), safe="/._-+") if name in _TEXTS else str(value)


def _default(family: str, name: str) -> object:
    if name == "layout":
        return FAMILIES[family].layouts[0]
    return next(field.default for field in dataclasses.fields(Case) if field.name == name)


def _refused(field: str, found: str, needed: str) -> ArgumentError:
    return ArgumentError(f"case {field}", found if " " in found else repr(found), needed)


def _one_of(words: Iterable[str]) -> str:
    return "one of " + ", ".join(words)


def _check_words(case: Case, rules: FamilyRules) -> None:
    if case.dtype not in rules.dtypes:
        raise _refused("dtype", case.dtype, _one_of(rules.dtypes))
    if case.device not in DEVICES:
        raise _refused("device", case.device, _one_of(DEVICES))
    if case.layout not in rules.layouts:
        raise _refused("layout", case.layout, _one_of(rules.layouts))
    if case.arch and case.arch not in ARCHS:
        raise _refused("arch", case.arch, _one_of(ARCHS))
    for name, words in _WORDS.items():
        if getattr(case, name) not in words:
            raise _refused(name, getattr(case, name), _one_of(words))
    for name in _OPTIONS:
        value = getattr(case, name)
        if name not in rules.options and value != _default(case.family, name):
            options = ", ".join(rules.options)
            raise _refused(name, str(value), f"a family that has this option; {case.family} has {options}")
    for name in ("tile", "cluster"):
        text = getattr(case, name)
        if text and not re.fullmatch(_WRITTEN[name][0], text):
            raise _refused(name, text, _WRITTEN[name][1])
    if not 0 <= case.poison <= 0xFF:
        raise _refused("poison", str(case.poison), "a byte such as 0xFF")
    if case.seed < 0:
        raise _refused("seed", str(case.seed), "an integer that is not negative")


#: Every option of any family.
_OPTIONS = tuple(dict.fromkeys(option for rules in FAMILIES.values() for option in rules.options))


def _check_shape(case: Case, rules: FamilyRules) -> None:
    shape = case.shape
    wide = "k" in rules.sizes
    if min(shape.m, shape.k, shape.e, shape.t, shape.n) < 0 or shape.k % BLOCK or (shape.k > 0) != wide:
        raise _refused("shape", str(shape), f"sizes that are not negative and a k that is a multiple of {BLOCK}")
    for letter in "net":
        if (letter in rules.sizes) != bool(getattr(shape, letter)):
            needed = f"{letter} of at least 1" if letter in rules.sizes else f"no {letter}"
            raise _refused("shape", str(shape), f"{needed} for {case.family}")
    if max(shape.t, 1) > max(shape.e, 1) * case.ranks:
        raise _refused("shape", str(shape), f"t of at most the {shape.e * case.ranks} experts of all ranks")
    if shape.rows * shape.k > INT32_MAX:
        raise _refused("shape", str(shape), f"at most {INT32_MAX} elements")


def _check_fill(case: Case) -> None:
    rules = FAMILIES[case.family]
    if case.fill not in rules.fills:
        raise _refused("fill", case.fill, _one_of(rules.fills))
    if (case.fill == "bytes") > (case.dtype == "mxfp8"):
        raise _refused("fill", case.fill, "dtype mxfp8 with it: it is raw codes and scales")
    if case.family == "moe":
        _check_layer(case)
        return
    if case.dtype != "mxfp8" and case.input_sf != "linear":
        raise _refused("input_sf", case.input_sf, "dtype mxfp8 with it: other input has no scales")
    if (case.fill == "activations") != bool(case.file):
        raise _refused("file", case.file or "none", "file=PATH with the fill 'activations', and with no other fill")
    if case.tensor and not case.file:
        raise _refused("tensor", case.tensor, "file=PATH with it")
    if case.family in ("sm12x_gemm", "cutlass_gemm"):
        if case.shape.k < GEMM_FILLS[case.fill].least_k:
            raise _refused("shape", str(case.shape), f"a k of at least {GEMM_FILLS[case.fill].least_k} for {case.fill}")
        if not case.tile and (case.stages or case.cluster != "1x1x1"):
            found = f"{case.stages}" if case.stages else case.cluster
            raise _refused("stages" if case.stages else "cluster", found, "tile=MxNxK with it, of which it is")
        return
    if case.family in ("routing", "activation", "finalize"):
        _check_step(case)
        return
    fill = FILLS.get(case.fill)
    need = fill.least_blocks.get(case.dtype, 0) if fill else 0
    if case.shape.m * case.shape.k // BLOCK < need:
        raise _refused("shape", str(case.shape), f"at least {need} blocks of {BLOCK} for the fill {case.fill}")


def _check_layer(case: Case) -> None:
    if case.shape.n % BLOCK:
        raise _refused("shape", str(case.shape), f"an n that is a multiple of {BLOCK}: it is the intermediate size")
    size = MOE_FILLS[case.fill].size
    if size is not None and (case.shape.k, case.shape.n) != size:
        raise _refused("shape", str(case.shape), f"k{size[0]}n{size[1]} for the fill {case.fill}")
    if case.input_sf != "linear" and (case.path, case.input_sf) != ("ready", "128x4"):
        raise _refused("input_sf", case.input_sf, "linear, or 128x4 with path=ready")
    if case.variant == "silu" and case.params != "none":
        raise _refused("params", case.params, "the variant gpt_oss with it: silu has none")
    if case.first_expert % case.shape.e:
        raise _refused("first_expert", str(case.first_expert), f"a multiple of the {case.shape.e} experts of a rank")


def _check_step(case: Case) -> None:
    given = case.fill == _GIVEN
    if given != (case.dtype == "ids"):
        raise _refused("fill", case.fill, f"{_GIVEN} for dtype ids, and for no other")
    if case.family == "routing" and not given and case.routing != "uniform":
        raise _refused(
            "routing", case.routing, f"dtype ids and the fill {_GIVEN} with it: logits choose for themselves"
        )
    if given and case.bias != "none":
        raise _refused("bias", case.bias, "logits with it: given ids have no bias")
    if case.variant == "silu" and case.params != "none":
        raise _refused("params", case.params, "the variant gpt_oss with it: silu has none")
    if case.fill == MIDPOINTS and (case.params, case.bias) != ("distinct", "none"):
        raise _refused("fill", case.fill, "params=distinct and no bias with it: it chooses each expert's beta")
    least = ROW_FILLS[case.fill].least_k if case.family == "finalize" else 0
    if case.shape.t < least:
        raise _refused("shape", str(case.shape), f"a t of at least {least} for the fill {case.fill}")


def _check_routing(case: Case) -> None:
    shape, total, picks = case.shape, case.shape.e * case.ranks, max(case.shape.t, 1)
    if case.ranks < 1 or not 0 <= case.first_expert <= max(total - shape.e, 0):
        found = f"{case.first_expert} with ranks={case.ranks}"
        raise _refused("first_expert", found, f"0 to {max(total - shape.e, 0)}, and ranks of at least 1")
    if case.routing == "all-one-token" and shape.rows != total:
        raise _refused("routing", case.routing, f"as many rows as the {total} experts")
    if case.routing == "empty-experts" and total // 3 < picks:
        raise _refused("routing", case.routing, f"at least {3 * picks} experts")
    if case.routing == "elsewhere" and total - shape.e < picks:
        raise _refused("routing", case.routing, f"ranks with at least {picks} experts elsewhere")
