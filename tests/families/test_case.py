"""The grammar of repro strings: a case and its string are the same, and a malformed string says what is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from refmoe.catalog import all_families, parse_case
from refmoe.chips import KERNEL_ARCHS
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.case import Shape
from refmoe.families.family import Case

#: Fills that need more than the sizes drawn here, or another dtype.
HUNGRY_FILLS = {"bytes", "exhaustive-max", "exhaustive-element", "zero-padded"}
#: Experts a token that fills of finalize need.
LEAST_T = {"cancelling": 3, "rne-ties": 2}

paths = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    family = draw(st.sampled_from(list(all_families().values())))
    named = {option.name: option for option in family.options}
    dtype = draw(st.sampled_from(family.dtypes))
    given_ids = dtype == "ids"
    fill = draw(st.sampled_from([fill for fill in family.fills if fill not in HUNGRY_FILLS | {"given"}]))
    fill = "given" if given_ids else fill
    shape = {"m": draw(st.integers(0, 64))}
    if "k" in family.sizes:
        shape["k"] = 32 * draw(st.integers(1, 300))
    values = {
        **{name: st.sampled_from(option.words) for name, option in named.items() if option.words},
        "poison": st.integers(0, 255),
        "tile": st.sampled_from(("", "128x8x512", "256x8x512")),
        "stages": st.integers(0, 20),
        "cluster": st.sampled_from(("1x1x1", "2x1x1")),
    }
    # These depend on others, below.
    later = ("params", "routing", "input_sf", *(("bias",) if given_ids else ()))
    options: dict[str, Any] = {
        name: draw(value) for name, value in values.items() if name in named and name not in later
    }
    if options.get("variant") == "gpt_oss":
        options["params"] = draw(values["params"])
    if fill == "midpoints":
        options |= {"variant": "gpt_oss", "params": "distinct", "bias": "none"}
    if not options.get("tile"):
        options = {name: value for name, value in options.items() if name not in ("stages", "cluster")}
    if "ranks" in named:
        least = LEAST_T.get(fill, 1) if family.name == "finalize" else 1
        experts, ranks = draw(st.integers(3 * least, 32)), draw(st.integers(1, 4))
        extents = {
            "e": st.just(experts),
            "t": st.integers(least, experts // 3),
            "n": st.integers(1, 99).map(lambda n: 32 * n),
        }
        shape |= {letter: draw(extents[letter]) for letter in family.sizes if letter in extents}
        options |= {
            "ranks": ranks,
            "first_expert": experts * draw(st.integers(0, ranks - 1)),
        }
        if family.name != "routing" or given_ids:
            options["routing"] = draw(st.sampled_from(("uniform", "same-experts", "empty-experts")))
    if dtype == "mxfp8" or options.get("path") == "ready":
        options["input_sf"] = draw(st.sampled_from(("linear", "128x4", *(("none",) if dtype == "mxfp8" else ()))))
    if (family.name, fill) == ("moe", "real"):
        shape |= {"k": 384, "n": 768}
    if fill == "activations":
        options |= {"file": draw(paths), "tensor": draw(st.just("") | paths)}
    place = {"device": draw(st.sampled_from(("ptx", "cuda"))), "arch": draw(st.sampled_from(("", *KERNEL_ARCHS)))}
    seed = draw(st.integers(0, 10**17))
    try:
        return family.case(fill, Shape(**shape), dtype, seed, **place, **options)
    except ArgumentError:
        reject()  # options that exclude each other; the tables below name them


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
        ("gemm:bf16:m4k32:real:seed7@ptx", "family", "mxfp8_quantize, nvfp4_quantize"),
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


def test_the_device_does_not_change_what_a_case_is_about() -> None:
    case = parse_case("expand:bf16:m4k2880e8t2:rne-ties:seed7@cuda")
    assert str(case.on("ptx")) == "expand:bf16:m4k2880e8t2:rne-ties:seed7@ptx"
    assert dataclasses.replace(case.on("ptx"), device="cuda", arch="") == case


def test_a_case_shows_as_its_string_and_a_family_in_a_line() -> None:
    case = parse_case("expand:bf16:m4k2880e8t2:gaussian:poison=0x7F:seed7@ptx")
    assert repr(case) == str(case)
    assert repr([case.family]) == "[<family expand>]"
    assert len(str(case.family).splitlines()) > 5


@pytest.mark.parametrize("value", ["0x7F", "127", 127.0, None, True])
def test_an_option_takes_values_of_its_own_type_alone(value: Any) -> None:
    family = FAMILIES["expand"]
    shape = Shape(m=4, k=2880, e=8, t=2)
    with pytest.raises(ArgumentError, match=r"case poison: found .*; needed a byte such as 0xFF"):
        family.case("gaussian", shape, poison=value)
    with pytest.raises(ArgumentError, match="case mode"):
        family.case("gaussian", shape, mode=7)
    made = family.case("gaussian", shape, poison=0x7F)
    assert parse_case(str(made)) == made
