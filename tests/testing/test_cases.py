"""refmoe.check: a kernel on a family's cases in one call, what it prints, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refmoe import testing
from refmoe.catalog import parse_case
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.reference import quantize_mxfp8
from refmoe.testing import Checked, check
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

CASES = [
    "mxfp8_quantize:bf16:m4k416:tiny:seed7@ptx",
    # As a test's id or a report has them, the kernel's name in front.
    "test_mine.py::mine/mxfp8_quantize:bf16:m5k2880:fingerprint:seed7@host",
]


def right(x: np.ndarray) -> Any:
    tensor = quantize_mxfp8(x)
    return tensor.codes, tensor.scales


def wrong(x: np.ndarray) -> Any:
    codes, scales = right(x)
    if x.shape == (5, 2880):
        codes[2, 70] ^= 1
    return codes, scales


def wide_only(case: Case) -> str | None:
    return None if case.shape.k > 2048 else "K of at most 2048"


def test_a_right_function_passes_every_case_of_the_level() -> None:
    checked = check(right, "quantize", arrays="numpy")
    assert checked.passed
    assert len(checked.results) == len(checked.kernel.cases("quick")) > 10
    assert str(checked) == repr(checked) == f"{len(checked.results)} PASS"
    assert all(result.compared and result.device == "host" for result in checked.results)
    assert len({result.id for result in checked.results}) == len(checked.results)
    half = check(right, "quantize", dtypes=("fp16",), arrays="numpy")
    assert {result.case.dtype for result in half.results} == {"fp16"}
    assert 0 < len(half.results) < len(checked.results)


def test_what_differs_is_printed_with_its_place_and_how_to_run_it_again() -> None:
    checked = check(wrong, "mxfp8_quantize", arrays="numpy", cases=CASES)
    assert not checked.passed
    assert [result.verdict for result in checked.results] == [Verdict.PASS, Verdict.MISMATCH]
    failing, summary = str(checked).split("\n\n")
    lines = failing.splitlines()
    assert lines[0].startswith("MISMATCH codes[2, 70]  block (2, 2) lane 6: kernel 0x")
    assert "contract: mxfp8_quantize, rceil/exact, scales linear" in lines
    again = "refmoe.check(wrong, cases=['mxfp8_quantize:bf16:m5k2880:fingerprint:seed7@host'])"
    assert f"repro: {again}" in lines
    assert summary == "1 PASS, 1 MISMATCH"
    # What it says can be called.
    wrong_kernel = checked.kernel
    (result,) = check(wrong_kernel, cases=["mxfp8_quantize:bf16:m5k2880:fingerprint:seed7@host"]).results
    assert result.first_mismatch == checked.results[1].first_mismatch


def test_the_contract_decides_what_is_right() -> None:
    ours = check(right, "quantize", mode="floor", arrays="numpy")
    assert not ours.passed
    assert any("these are the bytes of rceil/exact" in str(result.reason) for result in ours.results)
    assert check(right, "quantize", policy="rceil/exact", arrays="numpy", cases=CASES).passed


def test_what_a_kernel_raises_is_an_error_and_the_next_case_runs() -> None:
    def raises(x: np.ndarray) -> Any:
        if x.shape == (4, 416):
            raise RuntimeError("launch failed")
        return right(x)

    checked = check(raises, "quantize", arrays="numpy", cases=CASES)
    assert [result.verdict for result in checked.results] == [Verdict.ERROR, Verdict.PASS]
    assert not checked.passed
    assert "ERROR RuntimeError: launch failed" in str(checked)


def test_a_refusal_passes_only_if_it_was_declared_and_not_alone() -> None:
    def refuses(x: np.ndarray) -> Any:
        if x.shape[1] <= 2048:
            raise testing.Unsupported("K of at most 2048")
        return right(x)

    undeclared = check(refuses, "quantize", arrays="numpy", cases=CASES)
    assert not undeclared.passed
    assert "UNSUPPORTED not in the case list: K of at most 2048" in str(undeclared)
    declared = check(refuses, "quantize", arrays="numpy", cases=CASES, refuses=wide_only)
    assert declared.passed
    assert str(declared) == "1 PASS, 1 UNSUPPORTED"
    # A kernel that refuses all has passed nothing.
    nothing = check(refuses, "quantize", arrays="numpy", cases=CASES[:1], refuses=wide_only)
    assert not nothing.passed
    assert str(nothing) == "1 UNSUPPORTED"


def test_a_case_is_refused_as_expected_listed_or_asked_for_and_only_in_the_words_of_the_list() -> None:
    def answering(answer: str) -> Any:
        def refuses(tokens: np.ndarray) -> Any:
            raise testing.Unsupported(answer)

        return testing.kernel("sm12x_gemm", arrays="numpy")(refuses)

    theirs = answering("found N of 12; needed N a multiple of 8")
    (listed,) = (case for case in theirs.cases() if case.shape.n == 12)
    assert [run_case(theirs, case).expected for case in (listed, parse_case(str(listed)))] == [True, True]
    assert check(theirs, cases=[str(listed)]).results[0].expected
    # Another case, and another answer, are nobody's claim.
    elsewhere = parse_case(str(listed).replace("n12", "n20"))
    assert not run_case(theirs, elsewhere).expected
    assert not run_case(answering("no"), listed).expected
    # What only our launch cannot do is nothing that another kernel may refuse.
    ordinary = [case for case in theirs.cases() if case.shape.n != 12]
    launched = [case for case in FAMILIES["sm12x_gemm"].refusals if case.shape.n != 12]
    assert launched
    assert not any(run_case(theirs, case).expected for case in (ordinary[0], launched[0].data))


def test_a_kernel_is_asked_once_what_it_refuses() -> None:
    asked: list[Any] = []

    def narrow(case: Any) -> str | None:
        asked.append(case)
        return wide_only(case)

    checked = check(right, "quantize", arrays="numpy", cases=CASES, refuses=narrow)
    assert str(checked) == "1 PASS, 1 UNSUPPORTED"
    assert asked == [result.case for result in checked.results]


def test_a_kernel_that_is_not_here_has_passed_nothing() -> None:
    checked = check(right, "quantize", arrays="numpy", cases=CASES, missing=lambda: "the package is not installed")
    assert not checked.passed
    assert str(checked) == "2 SKIPPED"
    assert {result.reason for result in checked.results} == {"the package is not installed"}


def test_a_registered_kernel_brings_its_contract() -> None:
    kernel = testing.kernel("quantize", layout="8x4", arrays="numpy", name="mine")(right)
    checked = check(kernel, cases=[CASES[0].replace("tiny", "tiny:layout=8x4")])
    assert isinstance(checked, Checked)
    assert checked.kernel is kernel
    assert [result.verdict for result in checked.results] == [Verdict.MISMATCH]  # its scales are linear
    assert "scales" in str(checked)
    # A case of another contract is one that it cannot be given: declared, so it does not fail, and proves nothing.
    other = check(kernel, cases=CASES[:1])
    assert [(result.verdict, result.fails) for result in other.results] == [(Verdict.UNSUPPORTED, False)]
    assert not other.passed
    for arguments in ({"family": "quantize"}, {"layout": "linear"}):
        with pytest.raises(ArgumentError, match="mine, registered already, with another contract"):
            check(kernel, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "family: found nothing; needed the family of the function"),
        ({"family": "gemm2"}, "family: found str 'gemm2'; needed one of mxfp8_quantize"),
        ({"family": "quantize", "level": "all"}, "level: found str 'all'; needed one of quick, default, full"),
        ({"family": "quantize", "dtypes": ("fp8",)}, "dtypes: found str 'fp8'; needed some of bf16, fp16"),
        ({"family": "quantize", "cases": []}, "cases: found none; needed at least one case"),
        ({"family": "quantize", "cases": ["expand:bf16:m4k416e8t2:tiny:seed7@ptx"]}, "needed cases of mxfp8_quantize"),
        ({"family": "quantize", "cases": ["mxfp8_quantize"]}, "case device: found no '@'"),
        ({"family": "quantize", "colour": "red"}, "colour: found str 'red'; needed nothing"),
    ],
)
def test_what_it_cannot_be_asked_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        check(right, **arguments)
