"""A case is its repro string: everything that decides its data, its launch and its device, and nothing else.

    family:dtype:shape:fill[:option=value]...:seedN@device[.arch]
    expand:bf16:m4k2880e8t2:rne-ties:mode=floor:seed7@ptx

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
from refmoe.verify.fills import BLOCK, FILLS

__all__ = ["ARCHS", "DEVICES", "FAMILIES", "ROUTINGS", "Case", "Shape", "parse_case"]

INT32_MAX = 2**31 - 1
GRAMMAR = "family:dtype:shape:fill[:option=value]...:seedN@device"

DEVICES = ("ptx", "cuda")
ARCHS = ("sm_90a", "sm_120a", "sm_121a")

#: Where tokens go; the functions are in refmoe.verify.routing.
ROUTINGS: Mapping[str, str] = MappingProxyType(
    {
        "uniform": "each token picks different experts at random",
        "all-one-token": "every expert gets exactly one row",
        "same-experts": "every token picks the same experts: with t = 1 one expert takes all",
        "empty-experts": "two experts of three get nothing, the first and the last among them",
        "elsewhere": "every row belongs to an expert of another rank",
    }
)


@dataclass(frozen=True)
class FamilyRules:
    """What a family's repro strings may say.

    Attributes:
        dtypes: element types of the input.
        routed: whether the shape has experts (e) and experts per token (t).
        layouts: scale layouts that the kernels write, the default first.
        options: names of the options that mean something here, in the order of the string.
    """

    dtypes: tuple[str, ...]
    routed: bool
    layouts: tuple[str, ...]
    options: tuple[str, ...]


FAMILIES: Mapping[str, FamilyRules] = MappingProxyType(
    {
        "mxfp8_quantize": FamilyRules(
            dtypes=("bf16", "fp16"),
            routed=False,
            layouts=("linear", "128x4", "8x4"),
            options=("mode", "edge", "layout", "poison", "file", "tensor"),
        ),
        "expand": FamilyRules(
            dtypes=("bf16", "fp16", "mxfp8"),
            routed=True,
            layouts=("128x4", "8x4"),
            options=(
                *("mode", "edge", "layout", "input_sf", "routing", "first_expert", "ranks", "poison"),
                *("file", "tensor"),
            ),
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
    }
)

#: Fills that are no generator in FILLS: they come from a file, or (bytes) are raw codes and scales of ready MXFP8.
_OTHER_FILLS = ("real", "activations", "bytes")


@dataclass(frozen=True, order=True)
class Shape:
    """Sizes of a case: m tokens of k elements, and if they are routed, to t of e local experts each."""

    m: int
    k: int
    e: int = 0
    t: int = 0

    def __str__(self) -> str:
        return f"m{self.m}k{self.k}" + (f"e{self.e}t{self.t}" if self.t else "")

    @property
    def rows(self) -> int:
        """Rows of the output: m, or m*t if routed."""
        return self.m * self.t if self.t else self.m


@dataclass(frozen=True)
class Case:
    """One comparison of a kernel with its reference; `str(case)` is the repro string.

    Attributes:
        family: the kernel family, a key of `FAMILIES`.
        dtype: of the input, "bf16", "fp16", or "mxfp8" for input that is quantized already.
        shape: sizes.
        fill: name of the input data.
        seed: of the input data and the routing.
        device: "ptx" or "cuda".
        arch: what the kernel is compiled for; "" is the default, sm_120a on ptx and the GPU's own on cuda.
        mode, edge: the kernel's quantization policy.
        layout: of the scales it writes; "" is the family's default.
        poison: what fills its output buffers before the launch.
        routing, first_expert, ranks: where tokens go; experts are numbered over all ranks, `e` on each, and the
            kernel's own start at first_expert.
        input_sf: layout of ready input's scales, or "none" for absent ones.
        file, tensor: the activations of the fill of that name.

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


def _parse_shape(family: str, text: str) -> Shape:
    routed = FAMILIES[family].routed
    match = re.fullmatch(r"m(\d{1,10})k(\d{1,10})" + (r"e(\d{1,6})t(\d{1,6})" if routed else ""), text)
    if match is None:
        needed = "m<tokens>k<width>e<experts>t<experts per token>" if routed else "m<rows>k<width>"
        raise _refused("shape", text, needed)
    return Shape(*(int(number) for number in match.groups()))


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
    if name == "poison":
        if not re.fullmatch(r"0x[0-9A-Fa-f]{2}", text):
            raise _refused(name, text, "a byte such as 0xFF")
        return int(text, 16)
    if name in ("first_expert", "ranks"):
        if not re.fullmatch(r"\d{1,9}", text):
            raise _refused(name, text, "an integer")
        return int(text)
    return unquote(text) if name in ("file", "tensor") else text


def _option_text(name: str, value: str | int) -> str:
    if name == "poison":
        return f"0x{value:02X}"
    # What separates fields may occur in a path, and what a shell splits at may too.
    return quote(str(value), safe="/._-+") if name in ("file", "tensor") else str(value)


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
        value = getattr(case, name)
        if value not in words:
            raise _refused(name, value, _one_of(words))
        if name not in rules.options and value != _default(case.family, name):
            raise _refused(name, value, f"a family that has this option; {case.family} has {', '.join(rules.options)}")
    if not 0 <= case.poison <= 0xFF:
        raise _refused("poison", str(case.poison), "a byte such as 0xFF")
    if case.seed < 0:
        raise _refused("seed", str(case.seed), "an integer that is not negative")


def _check_shape(case: Case, rules: FamilyRules) -> None:
    shape = case.shape
    if min(shape.m, shape.k, shape.e, shape.t) < 0 or shape.k % BLOCK or shape.k == 0:
        raise _refused("shape", str(shape), f"sizes that are not negative and a k that is a multiple of {BLOCK}")
    if rules.routed != bool(shape.t) or rules.routed != bool(shape.e):
        raise _refused("shape", str(shape), "e and t of at least 1 for a routed family, none for another")
    if shape.t > shape.e * case.ranks:
        raise _refused("shape", str(shape), f"t of at most the {shape.e * case.ranks} experts of all ranks")
    if shape.rows * shape.k > INT32_MAX:
        raise _refused("shape", str(shape), f"at most {INT32_MAX} elements")


def _check_fill(case: Case) -> None:
    known = [*FILLS, *_OTHER_FILLS]
    if case.fill not in known:
        raise _refused("fill", case.fill, _one_of(known))
    if (case.fill == "bytes") > (case.dtype == "mxfp8"):
        raise _refused("fill", case.fill, "dtype mxfp8 with it: it is raw codes and scales")
    if case.dtype != "mxfp8" and case.input_sf != "linear":
        raise _refused("input_sf", case.input_sf, "dtype mxfp8 with it: other input has no scales")
    if (case.fill == "activations") != bool(case.file):
        raise _refused("file", case.file or "none", "file=PATH with the fill 'activations', and with no other fill")
    if case.tensor and not case.file:
        raise _refused("tensor", case.tensor, "file=PATH with it")
    fill = FILLS.get(case.fill)
    need = fill.least_blocks.get(case.dtype, 0) if fill else 0
    if case.shape.m * case.shape.k // BLOCK < need:
        raise _refused("shape", str(case.shape), f"at least {need} blocks of {BLOCK} for the fill {case.fill}")


def _check_routing(case: Case) -> None:
    shape, total = case.shape, case.shape.e * case.ranks
    if case.ranks < 1 or not 0 <= case.first_expert <= max(total - shape.e, 0):
        found = f"{case.first_expert} with ranks={case.ranks}"
        raise _refused("first_expert", found, f"0 to {max(total - shape.e, 0)}, and ranks of at least 1")
    if case.routing == "all-one-token" and shape.m * shape.t != total:
        raise _refused("routing", case.routing, f"m*t equal to the {total} experts")
    if case.routing == "empty-experts" and total // 3 < shape.t:
        raise _refused("routing", case.routing, f"at least {3 * shape.t} experts")
    if case.routing == "elsewhere" and total - shape.e < shape.t:
        raise _refused("routing", case.routing, f"ranks with at least {shape.t} experts elsewhere")
