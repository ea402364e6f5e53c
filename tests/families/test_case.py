from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refmoe.errors import ArgumentError
from refmoe.families.case import ARCHS, CUTLASS_BUILDS, FAMILIES, ROUTINGS, Case, Shape, parse_case
from refmoe.families.choices import expert_ids
from refmoe.families.fills import FILLS
from refmoe.families.gemm.fills import GEMM_FILLS
from refmoe.families.moe_fills import MOE_FILLS
from refmoe.families.step_fills import MIDPOINTS, ROW_FILLS
from refmoe.families.suites import LEVELS, SUITES, list_cases

#: Fills that need more than the sizes drawn here, or another dtype.
HUNGRY_FILLS = {"bytes", *(name for name, fill in FILLS.items() if fill.least_blocks)}
HUNGRY_FILLS |= {name for name, fill in GEMM_FILLS.items() if fill.least_k > 32}

paths = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    family = draw(st.sampled_from(sorted(FAMILIES)))
    rules = FAMILIES[family]
    dtype = draw(st.sampled_from(rules.dtypes))
    given_ids = dtype == "ids"
    fill = draw(st.sampled_from([fill for fill in rules.fills if fill not in HUNGRY_FILLS | {"given"}]))
    fill = "given" if given_ids else fill
    shape = {"m": draw(st.integers(0, 64))}
    if "k" in rules.sizes:
        shape["k"] = 32 * draw(st.integers(1, 300))
    values = {
        "mode": st.sampled_from(("rceil", "floor")),
        "edge": st.sampled_from(("exact", "flashinfer")),
        "layout": st.sampled_from(rules.layouts),
        "poison": st.integers(0, 255),
        "tile": st.sampled_from(("", "128x8x512", "256x8x512")),
        "stages": st.integers(0, 20),
        "cluster": st.sampled_from(("1x1x1", "2x1x1")),
        "build": st.sampled_from(CUTLASS_BUILDS),
        "alpha": st.sampled_from(("none", "distinct")),
        "bias": st.sampled_from(("none", "distinct")),
        "variant": st.sampled_from(("gpt_oss", "silu")),
        "out": st.sampled_from(("bf16", "f32")),
        "path": st.sampled_from(("separate", "fused", "ready")),
    }
    options: dict[str, object] = {name: draw(value) for name, value in values.items() if name in rules.options}
    if given_ids:
        del options["bias"]
    if options.get("variant") == "gpt_oss":
        options["params"] = draw(st.sampled_from(("none", "distinct")))
    if fill == MIDPOINTS:
        options |= {"variant": "gpt_oss", "params": "distinct", "bias": "none"}
    if not options.get("tile"):
        options = {name: value for name, value in options.items() if name not in ("stages", "cluster")}
    if rules.routed:
        least = ROW_FILLS[fill].least_k if family == "finalize" else 1
        experts, ranks = draw(st.integers(3 * least, 32)), draw(st.integers(1, 4))
        extents = {
            "e": st.just(experts),
            "t": st.integers(least, experts // 3),
            "n": st.integers(1, 99).map(lambda n: 32 * n),
        }
        shape |= {letter: draw(extents[letter]) for letter in rules.sizes if letter in extents}
        options |= {
            "ranks": ranks,
            "first_expert": experts * draw(st.integers(0, ranks - 1)),
        }
        if family != "routing" or given_ids:
            options["routing"] = draw(st.sampled_from(("uniform", "same-experts", "empty-experts")))
    if dtype == "mxfp8":
        options["input_sf"] = draw(st.sampled_from(("linear", "128x4", "none")))
    if (family, fill) == ("moe", "real"):
        shape |= dict(zip("kn", MOE_FILLS[fill].size, strict=True))
    if fill == "activations":
        options |= {"file": draw(paths), "tensor": draw(st.just("") | paths)}
    device = draw(st.sampled_from(("ptx", "cuda")))
    arch = draw(st.sampled_from(("", *ARCHS)))
    return Case(family, dtype, Shape(**shape), fill, draw(st.integers(0, 10**17)), device, arch, **options)  # type: ignore[arg-type]


@given(cases())
def test_a_case_and_its_string_are_the_same(case: Case) -> None:
    assert parse_case(str(case)) == case
    assert str(parse_case(str(case))) == str(case)


@given(cases())
def test_a_string_survives_a_shell_in_single_quotes_and_holds_no_blank(case: Case) -> None:
    assert not set(str(case)) & set("'\\ \t\n\"$`!;|&")


def test_the_example_of_the_documentation() -> None:
    text = "expand:bf16:m4k2880e8t2:rne-ties:seed7@ptx"
    case = parse_case(text)
    assert str(case) == text
    assert (case.arch, case.layout, case.mode, case.edge, case.poison) == ("sm_120a", "128x4", "rceil", "exact", 0xFF)


def test_options_with_default_values_are_left_out_and_may_be_written() -> None:
    written = "mxfp8_quantize:bf16:m1k32:gaussian:layout=linear:mode=rceil:poison=0xff:seed0@ptx.sm_120a"
    assert str(parse_case(written)) == "mxfp8_quantize:bf16:m1k32:gaussian:seed0@ptx"


@pytest.mark.parametrize(
    ("text", "field", "needed"),
    [
        ("", "device", "@device"),
        ("expand:bf16:m4k32e8t2:real:seed7", "device", "@device"),
        ("expand:bf16:m4k32e8t2:real:seed7@gpu", "device", "ptx, cuda"),
        ("expand:bf16:m4k32e8t2:real:seed7@ptx.", "arch", "sm_90a"),
        ("expand:bf16:m4k32e8t2:real:seed7@ptx.sm_100a", "arch", "sm_120a"),
        ("expand:bf16:seed7@ptx", "fields", "family:dtype:shape:fill"),
        ("gemm:bf16:m4k32:real:seed7@ptx", "family", "mxfp8_quantize, expand"),
        ("expand:fp32:m4k32e8t2:real:seed7@ptx", "dtype", "bf16, fp16, mxfp8"),
        ("mxfp8_quantize:mxfp8:m4k32:real:seed7@ptx", "dtype", "bf16, fp16"),
        ("expand:bf16:m4k32:real:seed7@ptx", "shape", "e<experts>"),
        ("mxfp8_quantize:bf16:m4k32e2t1:real:seed7@ptx", "shape", "m<rows>k<width>"),
        ("mxfp8_quantize:bf16:m4k33:real:seed7@ptx", "shape", "multiple of 32"),
        ("mxfp8_quantize:bf16:m4k0:real:seed7@ptx", "shape", "multiple of 32"),
        ("mxfp8_quantize:bf16:m99999999k3200:real:seed7@ptx", "shape", "2147483647"),
        ("expand:bf16:m4k32e8t9:real:seed7@ptx", "shape", "8 experts"),
        ("expand:bf16:m4k32e8t0:real:seed7@ptx", "shape", "at least 1"),
        ("expand:bf16:m4k32e8t2:noise:seed7@ptx", "fill", "gaussian"),
        ("expand:bf16:m4k32e8t2:bytes:seed7@ptx", "fill", "mxfp8"),
        ("mxfp8_quantize:bf16:m4k32:exhaustive-max:seed7@ptx", "shape", "65536 blocks"),
        ("expand:bf16:m4k32e8t2:real:mode:seed7@ptx", "option", "name=value"),
        ("expand:bf16:m4k32e8t2:real:tile=8:seed7@ptx", "option", "routing"),
        ("mxfp8_quantize:bf16:m4k32:real:routing=uniform:seed7@ptx", "option", "mode"),
        ("expand:bf16:m4k32e8t2:real:mode=even:seed7@ptx", "mode", "rceil, floor"),
        ("expand:bf16:m4k32e8t2:real:mode=floor:mode=floor:seed7@ptx", "mode", "at most once"),
        ("expand:bf16:m4k32e8t2:real:edge=deepgemm:seed7@ptx", "edge", "exact, flashinfer"),
        ("expand:bf16:m4k32e8t2:real:layout=linear:seed7@ptx", "layout", "128x4, 8x4"),
        ("expand:bf16:m4k32e8t2:real:input_sf=none:seed7@ptx", "input_sf", "mxfp8"),
        ("expand:bf16:m4k32e8t2:real:poison=255:seed7@ptx", "poison", "0xFF"),
        ("expand:bf16:m4k32e8t2:real:ranks=two:seed7@ptx", "ranks", "an integer"),
        ("expand:bf16:m4k32e8t2:real:ranks=0:seed7@ptx", "shape", "experts"),
        ("expand:bf16:m4k32e8t2:real:first_expert=1:seed7@ptx", "first_expert", "0 to 0"),
        ("expand:bf16:m4k32e8t2:real:routing=everywhere:seed7@ptx", "routing", "uniform"),
        ("expand:bf16:m3k32e8t2:real:routing=all-one-token:seed7@ptx", "routing", "8 experts"),
        ("expand:bf16:m3k32e5t2:real:routing=empty-experts:seed7@ptx", "routing", "at least 6"),
        ("expand:bf16:m3k32e5t2:real:routing=elsewhere:seed7@ptx", "routing", "ranks"),
        ("expand:bf16:m4k32e8t2:activations:seed7@ptx", "file", "file=PATH"),
        ("expand:bf16:m4k32e8t2:real:file=x:seed7@ptx", "file", "file=PATH"),
        ("expand:bf16:m4k32e8t2:real:tensor=x:seed7@ptx", "tensor", "file=PATH"),
        ("expand:bf16:m4k32e8t2:real:seven@ptx", "seed", "seedN"),
        ("expand:bf16:m4k32e8t2:real:seed-7@ptx", "seed", "seedN"),
    ],
)
def test_a_malformed_string_says_which_field_is_wrong_and_what_it_may_be(text: str, field: str, needed: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        parse_case(text)
    assert refused.value.argument == f"case {field}"
    assert needed in refused.value.needed


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", ["ptx", "cuda"])
def test_case_lists_have_no_repetition_and_hold_the_level_below(level: str, device: str) -> None:
    listed = list_cases(level, device=device)
    assert len(set(listed)) == len(listed)
    assert len({str(case) for case in listed}) == len(listed)
    lower = LEVELS[max(LEVELS.index(level) - 1, 0)]
    assert set(list_cases(lower, device=device)) <= set(listed)


@pytest.mark.parametrize(("level", "below"), [("quick", "quick"), ("default", "quick"), ("full", "default")])
def test_the_other_archs_run_the_level_below(level: str, below: str) -> None:
    listed = list_cases(level)
    for arch in ("sm_90a", "sm_121a"):
        lower = [
            case
            for suite in SUITES
            for case in list_cases(level if (suite, arch) == ("cutlass_gemm", "sm_121a") else below, [suite], arch=arch)
        ]
        assert {case for case in listed if case.arch == arch} == {case.on("ptx", arch) for case in lower}
    # CUTLASS's kernel is built for sm_121a first, and there is none for sm_90a.
    cutlass = {case.arch: 0 for case in listed} | Counter(case.arch for case in listed if case.family == "cutlass_gemm")
    assert cutlass["sm_121a"] >= cutlass["sm_120a"] > cutlass["sm_90a"] == 0


def test_what_the_executor_would_compute_in_software_is_kept_small() -> None:
    software = list_cases("full", ["sm12x_gemm"], arch="sm_90a")
    assert 1 <= len(software) <= 3
    # On a GPU of that arch the kernel's own software is fast enough for every case.
    native = list_cases("full", ["sm12x_gemm"], device="cuda", arch="sm_90a")
    assert len(native) == len(list_cases("full", ["sm12x_gemm"], arch="sm_120a"))


def test_the_default_level_holds_what_it_promises() -> None:
    listed = list_cases("default", arch="sm_120a")
    assert {case.family for case in listed} == set(SUITES)
    for family in ("mxfp8_quantize", "expand"):
        mine = [case for case in listed if case.family == family]
        assert {case.fill for case in mine} >= {*FILLS, "real"}
        assert {(case.mode, case.edge) for case in mine} == {
            (m, e) for m in ("rceil", "floor") for e in ("exact", "flashinfer")
        }
        assert {case.layout for case in mine} == set(FAMILIES[family].layouts)
        assert {case.dtype for case in mine} == set(FAMILIES[family].dtypes)
        assert {case.shape.m for case in mine} >= {0, 1, 2, 8}
        assert {case.poison for case in mine} >= {0xFF, 0x7F}
    expand = [case for case in listed if case.family == "expand"]
    assert {case.routing for case in expand} == set(ROUTINGS)
    assert {case.input_sf for case in expand if case.dtype == "mxfp8"} == {"linear", "128x4", "none"}
    assert {(case.shape.k, case.shape.e, case.shape.t) for case in expand} >= {(2880, 128, 4), (7168, 256, 8)}
    assert any(case.shape.t == 1 and case.routing == "same-experts" and case.shape.m > 128 for case in expand)
    assert any(case.first_expert > 0 for case in expand)


@pytest.mark.parametrize(("level", "suite"), [("huge", "expand"), ("quick", "gemm")])
def test_unknown_levels_and_suites_are_refused(level: str, suite: str) -> None:
    with pytest.raises(ArgumentError, match="one of"):
        list_cases(level, [suite])


@pytest.mark.parametrize(
    "case", [case for case in list_cases("quick", arch="sm_120a") if case.family == "expand"], ids=str
)
def test_routings_give_every_token_different_experts_that_exist(case: Case) -> None:
    ids = expert_ids(case)
    assert ids.dtype.name == "int32"
    assert ids.shape == (case.shape.m, case.shape.t)
    assert ids.min() >= 0
    if case.routing != "padded":  # the rows that pad a batch go to no rank
        assert ids.max() < case.shape.e * case.ranks
    assert all(len(set(row)) == case.shape.t for row in ids.tolist())
    local = [expert - case.first_expert for expert in ids.ravel().tolist()]
    rows = [local.count(expert) for expert in range(case.shape.e)]
    if case.routing == "all-one-token":
        assert rows == [1] * case.shape.e
    if case.routing == "empty-experts":
        assert rows[0] == rows[-1] == 0 < max(rows)
    if case.routing == "elsewhere":
        assert max(rows) == 0
    if case.routing == "same-experts":
        assert sorted(rows)[-case.shape.t :] == [case.shape.m] * case.shape.t


def test_the_device_does_not_change_what_a_case_is_about() -> None:
    case = parse_case("expand:bf16:m4k2880e8t2:rne-ties:seed7@cuda")
    assert str(case.on("ptx")) == "expand:bf16:m4k2880e8t2:rne-ties:seed7@ptx"
    assert dataclasses.replace(case.on("ptx"), device="cuda", arch="") == case
