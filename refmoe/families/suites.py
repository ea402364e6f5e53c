"""The case lists: which cases make a level, and why each is there.

`quick` touches every line of every kernel once; `default` adds the sizes that models have, every fill under every
policy and the exhaustive ones; `full` crosses them. A level holds the ones before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from refmoe.errors import ArgumentError
from refmoe.families.case import ARCHS, Case, Shape
from refmoe.families.fills import BLOCK, FILLS
from refmoe.families.gemm.cases import gemm_cases, software_cases
from refmoe.families.moe_suite import moe_cases, moe_software_cases
from refmoe.families.real_data import read_activations
from refmoe.families.step_suite import activation_step_cases, finalize_cases, routing_cases
from refmoe.museum.cutlass.cases import cutlass_cases

__all__ = ["GROUPS", "LEVELS", "SUITES", "activation_cases", "list_cases"]

LEVELS = ("quick", "default", "full")

#: (mode, edge) of every compiled variant.
POLICIES = tuple((mode, edge) for mode in ("rceil", "floor") for edge in ("exact", "flashinfer"))

#: Width, experts and experts per token of gpt-oss-120b and DeepSeek-V3.
MODELS = ((2880, 128, 4), (7168, 256, 8))
DECODE = (1, 2, 8)

#: More rows than the largest grid of any arch, 64 CTAs on each of 170 multiprocessors: CTAs take several.
_LOOPING_ROWS = 11008

_EXHAUSTIVE = ("exhaustive-max", "exhaustive-element")
_PLAIN = tuple(name for name in FILLS if name not in _EXHAUSTIVE)


def list_cases(
    level: str = "default", suites: Sequence[str] = (), device: str = "ptx", arch: str | None = None
) -> list[Case]:
    """The cases of a level, without repetition.

    On ptx without an arch, sm_120a (of CUTLASS's kernel sm_121a) takes the level and the other archs the one below: the
    same C++ compiles for all three, so what can differ is the compiler's choice of instructions. Where a kernel carries
    a tensor-core instruction in software, which the executor is too slow for, only that family's few small cases are
    taken.

    Args:
        level: "quick", "default" or "full".
        suites: kernel families, or names of `GROUPS`; none means all.
        device: "ptx" or "cuda".
        arch: one arch for all cases.

    Raises:
        ArgumentError: an unknown level, suite, device or arch.
    """
    if level not in LEVELS:
        raise ArgumentError("level", repr(level), "one of " + ", ".join(LEVELS))
    for suite in suites:
        if suite not in SUITES and suite not in GROUPS:
            raise ArgumentError("suite", repr(suite), "one of " + ", ".join(dict.fromkeys((*SUITES, *GROUPS))))
    wanted = {family for suite in suites for family in GROUPS.get(suite, (suite,))}
    chosen = [suite for suite in SUITES if not suites or suite in wanted]
    below = LEVELS[max(LEVELS.index(level) - 1, 0)]
    if arch is not None or device == "cuda":
        places = [(arch or "", suite, level) for suite in chosen]
    else:
        archs = ["sm_120a", *(other for other in ARCHS if other != "sm_120a")]
        places = [
            (place, suite, level if place == LEADING_ARCHS.get(suite, "sm_120a") else below)
            for place in archs
            for suite in chosen
        ]
    listed = ((place, case) for place, suite, deep in places for case in _suite(suite, deep, device, place))
    return _unique(case.on(device, place) for place, case in listed)


def _suite(suite: str, level: str, device: str, arch: str) -> Iterable[Case]:
    software = SOFTWARE_SUITES.get((suite, device, arch))
    return SUITES[suite](level) if software is None else software()


def activation_cases(text: str, device: str = "ptx", arch: str | None = None, suites: Sequence[str] = ()) -> list[Case]:
    """Cases on a user's activations, `FILE` or `FILE:TENSOR`, at the tensor's own size, under every policy.

    Raises:
        ArgumentError: a file or tensor that cannot be used.
    """
    path, tensor = _split(text)
    data = read_activations(path, tensor)
    m, k = data.patterns.shape
    if m == 0:
        raise ArgumentError("activations", f"tensor {data.tensor!r} without rows in {path}", "at least one row")
    cases = []
    for mode, edge in POLICIES:
        quantize = Case(
            "mxfp8_quantize",
            data.dtype,
            Shape(m, k),
            "activations",
            mode=mode,
            edge=edge,
            file=str(path.resolve()),
            tensor=data.tensor,
        )
        cases += [quantize, dataclasses.replace(quantize, family="expand", shape=Shape(m, k, 16, 4), layout="")]
    return _unique(case.on(device, arch or "") for case in cases if not suites or case.family in suites)


def _split(text: str) -> tuple[Path, str | None]:
    """FILE:TENSOR; both may hold colons, so the file is what exists."""
    if Path(text).is_file():
        return Path(text), None
    colons = [place for place, letter in enumerate(text) if letter == ":"]
    for place in colons:
        if Path(text[:place]).is_file():
            return Path(text[:place]), text[place + 1 :]
    return (Path(text[: colons[-1]]), text[colons[-1] + 1 :]) if colons else (Path(text), None)


def _unique(cases: Iterable[Case]) -> list[Case]:
    return list(dict.fromkeys(cases))


def _quantize(fill: str, m: int, k: int, dtype: str = "bf16", seed: int = 7, **options: str | int) -> Case:
    return Case("mxfp8_quantize", dtype, Shape(m, k), fill, seed, **options)  # type: ignore[arg-type]


def _expand(
    fill: str, m: int, k: int, e: int, t: int, dtype: str = "bf16", seed: int = 7, **options: str | int
) -> Case:
    return Case("expand", dtype, Shape(m, k, e, t), fill, seed, **options)  # type: ignore[arg-type]


def _quantize_cases(level: str) -> Iterator[Case]:
    yield from _quantize_quick()
    if level in ("default", "full"):
        yield from _quantize_default()
    if level == "full":
        yield from _quantize_full()


def _quantize_quick() -> Iterator[Case]:
    # 90 blocks are no multiple of 4 scale columns, 5 and 9 rows fill no tile: padding in both directions.
    yield _quantize("fingerprint", 5, 2880, layout="128x4")
    yield _quantize("fingerprint", 9, 2880, layout="8x4")
    yield _quantize("fingerprint", 2, 2880)
    for mode, edge in POLICIES:
        yield _quantize("boundary-mantissas", 16, 416, mode=mode, edge=edge)
        yield _quantize("specials", 4, 416, mode=mode, edge=edge)
    yield _quantize("rne-ties", 4, 416)
    yield _quantize("tiny", 4, 416)
    yield _quantize("tiny", 4, 416, edge="flashinfer")
    yield _quantize("saturation", 4, 416, mode="floor")
    yield _quantize("scale-bytes", 32, 416)
    yield _quantize("wide-range", 4, 416, edge="flashinfer")
    yield _quantize("rne-ties", 4, 416, dtype="fp16", layout="128x4")
    yield _quantize("specials", 4, 416, dtype="fp16", edge="flashinfer")
    yield _quantize("fingerprint", 3, 32, layout="128x4")  # one block: a row of two lanes


def _quantize_default() -> Iterator[Case]:
    for dtype in ("bf16", "fp16"):
        for mode, edge in POLICIES:
            for fill in _PLAIN:
                for layout in ("linear", "128x4", "8x4"):
                    yield _quantize(fill, 16, 2880, dtype=dtype, mode=mode, edge=edge, layout=layout)
            yield _quantize("real", 64, 2880, dtype=dtype, mode=mode, edge=edge)
    for mode, edge in POLICIES:
        yield _quantize("exhaustive-max", 1024, 2048, mode=mode, edge=edge)
        yield _quantize("exhaustive-element", 128, 2880, mode=mode, edge=edge)
    yield _quantize("exhaustive-max", 1024, 2048, dtype="fp16")
    yield _quantize("exhaustive-element", 128, 2880, dtype="fp16")
    for k, _, _ in MODELS:
        for m in DECODE:
            for layout in ("linear", "128x4", "8x4"):
                yield _quantize("fingerprint", m, k, layout=layout, poison=0x7F)
        yield _quantize("fingerprint", 300, k, layout="128x4")
    for layout in ("linear", "8x4"):
        yield _quantize("fingerprint", _LOOPING_ROWS, 32, layout=layout)
    for layout in ("linear", "128x4"):
        yield _quantize("wide-range", 3, 8224, layout=layout)  # a row wider than a CTA, by one block
    for layout in ("linear", "128x4", "8x4"):
        yield _quantize("gaussian", 0, 2880, layout=layout)


def _quantize_full() -> Iterator[Case]:
    for seed in (1, 2, 3):
        for dtype in ("bf16", "fp16"):
            for mode, edge in POLICIES:
                for fill in _PLAIN:
                    for layout in ("linear", "128x4", "8x4"):
                        yield _quantize(fill, 130, 2880, dtype=dtype, seed=seed, mode=mode, edge=edge, layout=layout)
    for mode, edge in POLICIES:
        for fill in _EXHAUSTIVE:
            yield _quantize(fill, 1024, 2048, dtype="fp16", mode=mode, edge=edge)
    for k in range(BLOCK, 1056, BLOCK):
        yield _quantize("fingerprint", 9, k, layout="128x4")
        yield _quantize("fingerprint", 9, k, layout="8x4")
    yield _quantize("real", 2048, 7168, layout="128x4")


def _expand_cases(level: str) -> Iterator[Case]:
    yield from _expand_quick()
    if level in ("default", "full"):
        yield from _expand_default()
    if level == "full":
        yield from _expand_full()


def _expand_quick() -> Iterator[Case]:
    yield _expand("rne-ties", 4, 2880, 8, 2)
    yield _expand("fingerprint", 1, 2880, 128, 4)
    yield _expand("fingerprint", 9, 416, 16, 2, routing="empty-experts")
    yield _expand("fingerprint", 9, 416, 16, 2, routing="empty-experts", layout="8x4", poison=0x7F)
    yield _expand("fingerprint", 8, 416, 16, 2, routing="all-one-token")
    yield _expand("fingerprint", 130, 96, 4, 1, routing="same-experts")  # past one tile of 128 rows, k = 1
    yield _expand("fingerprint", 8, 416, 8, 4, first_expert=8, ranks=3)
    yield _expand("gaussian", 3, 416, 4, 2, routing="elsewhere", first_expert=4, ranks=2)
    yield _expand("fingerprint", 3, 160, 16, 11)  # more ranks than the lanes of a group
    for mode, edge in POLICIES:
        yield _expand("specials", 4, 416, 8, 2, mode=mode, edge=edge)
        yield _expand("boundary-mantissas", 16, 416, 8, 2, mode=mode, edge=edge, layout="8x4")
    yield _expand("fingerprint", 9, 416, 8, 2, routing="padded")
    yield _expand("tiny", 4, 416, 8, 2)
    yield _expand("rne-ties", 4, 416, 8, 2, dtype="fp16")
    for input_sf in ("linear", "128x4", "none"):
        yield _expand("bytes", 9, 416, 8, 2, dtype="mxfp8", input_sf=input_sf)
        yield _expand("fingerprint", 9, 416, 8, 2, dtype="mxfp8", input_sf=input_sf, layout="8x4")


def _expand_default() -> Iterator[Case]:
    for k, e, t in MODELS:
        for m in DECODE:
            yield _expand("fingerprint", m, k, e, t)
            yield _expand("real", m, k, e, t, layout="8x4", poison=0x7F)
            yield _expand("wide-range", m, k, e, t, edge="flashinfer")
            yield _expand("fingerprint", m, k, e, t, dtype="mxfp8", input_sf="128x4")
        yield _expand("real", 1024 if k == 2880 else 256, k, e, t)  # a prefill
        yield _expand("fingerprint", e // t, k, e, t, routing="all-one-token")
        yield _expand("fingerprint", 8, k, e, t, routing="same-experts")
        yield _expand("fingerprint", 160, k, e, 1, routing="same-experts")  # one expert takes all
        yield _expand("fingerprint", 8, k, e, t, routing="empty-experts")
        yield _expand("fingerprint", 8, k, e // 8, t, routing="uniform", first_expert=e // 4, ranks=8)
    for dtype in ("bf16", "fp16"):
        for mode, edge in POLICIES:
            for fill in _PLAIN:
                for layout in ("128x4", "8x4"):
                    yield _expand(fill, 9, 1440, 8, 2, dtype=dtype, mode=mode, edge=edge, layout=layout)
    for mode, edge in POLICIES:
        yield _expand("exhaustive-max", 1024, 2048, 8, 1, mode=mode, edge=edge)
        yield _expand("exhaustive-element", 128, 2880, 8, 1, mode=mode, edge=edge)
    yield _expand("fingerprint", _LOOPING_ROWS, 32, 8, 2)
    yield _expand("wide-range", 3, 8224, 8, 2)  # a row wider than a CTA, by one block
    yield _expand("gaussian", 0, 2880, 8, 2)
    for input_sf in ("linear", "128x4", "none"):
        for fill in ("bytes", "real", "specials"):
            yield _expand(fill, 130, 416, 16, 3, dtype="mxfp8", input_sf=input_sf, poison=0x7F)
        yield _expand("bytes", 3, 8224, 8, 2, dtype="mxfp8", input_sf=input_sf)
        yield _expand("bytes", _LOOPING_ROWS, 32, 8, 2, dtype="mxfp8", input_sf=input_sf)


def _expand_full() -> Iterator[Case]:
    for routing in ("uniform", "same-experts", "empty-experts"):
        for layout in ("128x4", "8x4"):
            for poison in (0xFF, 0x7F, 0x00):
                for k, e, t in MODELS:
                    for m in (1, 2, 3, 8, 33):
                        yield _expand("fingerprint", m, k, e, t, seed=m, routing=routing, layout=layout, poison=poison)
    for seed in (1, 2, 3):
        for dtype in ("bf16", "fp16"):
            for mode, edge in POLICIES:
                for fill in _PLAIN:
                    for layout in ("128x4", "8x4"):
                        yield _expand(
                            fill, 33, 2880, 16, 3, dtype=dtype, seed=seed, mode=mode, edge=edge, layout=layout
                        )
    for dtype in ("bf16", "fp16"):
        for mode, edge in POLICIES:
            for fill in _EXHAUSTIVE:
                yield _expand(fill, 1024, 2048, 8, 2, dtype=dtype, mode=mode, edge=edge)
    for k, e, t in MODELS:
        yield _expand("wide-range", 1500, k, e, t, layout="8x4")


#: Case lists by kernel family.
SUITES: Mapping[str, Callable[[str], Iterator[Case]]] = MappingProxyType(
    {
        "mxfp8_quantize": _quantize_cases,
        "expand": _expand_cases,
        "sm12x_gemm": gemm_cases,
        "cutlass_gemm": cutlass_cases,
        "routing": routing_cases,
        "activation": activation_step_cases,
        "finalize": finalize_cases,
        "moe": moe_cases,
    }
)

#: Families that are asked for by one name.
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType({"moe": ("routing", "activation", "finalize", "moe")})

#: What is run instead of a level where a family, a device and an arch make the executor compute what a chip does.
SOFTWARE_SUITES: Mapping[tuple[str, str, str], Callable[[], Iterable[Case]]] = MappingProxyType(
    {
        ("sm12x_gemm", "ptx", "sm_90a"): software_cases,
        ("cutlass_gemm", "ptx", "sm_90a"): tuple,
        ("moe", "ptx", "sm_90a"): moe_software_cases,
    }
)

#: The arch that takes a whole level on ptx, where it is not sm_120a: the one that `make cutlass` builds for.
LEADING_ARCHS: Mapping[str, str] = MappingProxyType({"cutlass_gemm": "sm_121a"})
