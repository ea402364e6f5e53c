"""refmoe.check: a kernel on a family's cases in one call, what it prints, and what it refuses."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import refmoe
from refmoe import testing
from refmoe.catalog import parse_case
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.reference import quantize_mxfp8
from refmoe.testing import Checked, check
from refmoe.testing.arrays import to_numpy
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


def imports_nothing(x: np.ndarray) -> Any:
    raise ModuleNotFoundError("No module named 'triton'", name="triton")


def narrow_only(case: Case) -> str | None:
    return None if case.shape.k <= 2048 else "K above 2048"


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


def test_a_result_is_true_only_if_it_passed() -> None:
    passed = check(right, "quantize", arrays="numpy", cases=CASES)
    failed = check(wrong, "quantize", arrays="numpy", cases=CASES)
    absent = check(right, "quantize", arrays="numpy", cases=CASES, missing=lambda: "not here")
    assert [bool(checked) for checked in (passed, failed, absent)] == [True, False, False]
    assert [bool(result) for result in failed.results] == [True, False]
    assert not any(absent.results)
    with pytest.raises(AssertionError):
        assert check(wrong, "quantize", arrays="numpy", cases=CASES)


def test_what_differs_is_printed_with_its_place_and_how_to_run_it_again() -> None:
    checked = check(wrong, "mxfp8_quantize", arrays="numpy", cases=CASES)
    assert not checked.passed
    assert [result.verdict for result in checked.results] == [Verdict.PASS, Verdict.MISMATCH]
    failing, summary = str(checked).split("\n\n")
    lines = failing.splitlines()
    assert lines[0].startswith("MISMATCH codes[2, 70]  block (2, 2) lane 6: kernel 0x")
    assert "contract: mxfp8_quantize, rceil/exact, scales linear" in lines
    again = (
        "refmoe.check(wrong, 'mxfp8_quantize', arrays='numpy', "
        "cases=['mxfp8_quantize:bf16:m5k2880:fingerprint:seed7@host'])"
    )
    assert f"repro: {again}" in lines
    assert summary == "1 PASS, 1 MISMATCH"
    # What it says can be called, on the function and on a kernel registered with the same contract.
    for kernel in (wrong, checked.kernel):
        (result,) = run_again(lines, wrong=kernel).results
        assert result.first_mismatch == checked.results[1].first_mismatch


def run_again(lines: list[str], **names: Any) -> Checked:
    """What the printed repro line gives, with these names for the functions in it."""
    (call,) = (line.removeprefix("repro: ") for line in lines if line.startswith("repro: "))
    checked: Checked = eval(call, {"refmoe": refmoe, **names})
    return checked


def test_the_repro_line_runs_as_printed_with_the_whole_contract() -> None:
    shown = "mxfp8_quantize:bf16:m4k416:tiny:layout=8x4:seed7@ptx"
    contract = {"mode": "ceil", "layout": "8x4", "name": "mine", "arrays": "numpy", "refuses": narrow_only}
    first = check(right, "quantize", cases=[shown], **contract)
    assert first.results[0].verdict is Verdict.MISMATCH
    lines = str(first).splitlines()
    again = run_again(lines, right=right, narrow_only=narrow_only)
    assert str(again) == str(first)
    assert [line for line in lines if "mode='ceil'" in line and "refuses=narrow_only" in line]
    # A lambda has no name: a word stands for it, and the line says for which one.
    nameless = check(lambda x: right(x), "quantize", cases=[shown], **{**contract, "refuses": lambda case: None})
    (line,) = (line for line in str(nameless).splitlines() if line.startswith("repro: "))
    assert line.startswith("repro: refmoe.check(KERNEL, 'mxfp8_quantize', ")
    assert "# KERNEL is the lambda at test_cases.py:" in line
    assert "REFUSES is the lambda at test_cases.py:" in line
    again = run_again([line], KERNEL=right, REFUSES=narrow_only)
    assert [result.verdict for result in again.results] == [Verdict.MISMATCH]


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_a_case_of_a_function_is_no_case_of_our_kernel(device: str) -> None:
    """Neither `refmoe repro` nor `refmoe.repro` can run it; both say what does, and it does."""
    case = f"mxfp8_quantize:bf16:m4k416:tiny:seed7@{device}"
    for text in (f"tests/test_mine.py::right/{case}", *([case] if device == "host" else [])):
        with pytest.raises(ArgumentError, match="needed ptx or cuda, for a kernel of refmoe's") as error:
            refmoe.repro(text)
        call = error.value.needed.partition("runs by pytest or ")[2]
        checked = eval(
            call.replace(", cases", ", arrays='numpy', cases"), {"refmoe": refmoe, "right": right, "FUNCTION": right}
        )
        assert [result.case.shape.k for result in checked.results] == [416]


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
    assert str(declared) == "1 PASS, 1 UNSUPPORTED\n1 UNSUPPORTED as declared: K of at most 2048"
    # A kernel that refuses all has passed nothing.
    nothing = check(refuses, "quantize", arrays="numpy", cases=CASES[:1], refuses=wide_only)
    assert not nothing.passed
    assert str(nothing).splitlines() == [
        "1 UNSUPPORTED",
        "1 UNSUPPORTED as declared: K of at most 2048",
        "no case ran, so nothing has passed",
    ]


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
    assert [result.verdict for result in checked.results] == [Verdict.UNSUPPORTED, Verdict.PASS]
    assert asked == [result.case for result in checked.results]


def test_a_kernel_that_is_not_here_has_passed_nothing() -> None:
    checked = check(right, "quantize", arrays="numpy", cases=CASES, missing=lambda: "the package is not installed")
    assert not checked.passed
    assert str(checked).splitlines() == [
        "2 SKIPPED",
        "2 SKIPPED: the package is not installed",
        "no case ran, so nothing has passed",
    ]
    assert {result.reason for result in checked.results} == {"the package is not installed"}


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_framework_that_is_not_installed_is_skipped_with_what_to_do(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, framework, None)  # an import of it fails
    default = {} if framework == "torch" else {"arrays": framework}
    checked = check(right, "quantize", cases=CASES, **default)
    assert [result.verdict for result in checked.results] == [Verdict.SKIPPED] * 2
    assert not checked.passed
    (reason,) = {str(result.reason) for result in checked.results}
    assert reason.startswith(f"{framework} is not installed, and the kernel is given ")
    assert f"pip install {framework}, or register a function of NumPy arrays with arrays='numpy'" in reason
    # What the function itself fails to import is its own error.
    own = check(imports_nothing, "quantize", cases=CASES[:1], arrays="numpy")
    assert [result.verdict for result in own.results] == [Verdict.ERROR]


def test_a_gpu_that_is_not_here_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (result,) = check(right, "quantize", cases=CASES[:1], device="cuda").results
    assert (result.verdict, result.reason) == (
        Verdict.SKIPPED,
        "torch sees no GPU on this machine, and the kernel is registered with device='cuda'",
    )


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
        ({"family": "quantize", "cases": CASES[0]}, "cases: found str 'mxfp8_.*; needed a list of repro strings"),
        ({"family": "quantize", "dtypes": "bf16"}, "dtypes: found str 'bf16'; needed a tuple of some of bf16, fp16"),
        ({"family": "quantize", "cases": []}, "cases: found none; needed at least one case"),
        ({"family": "quantize", "cases": ["expand:bf16:m4k416e8t2:tiny:seed7@ptx"]}, "needed cases of mxfp8_quantize"),
        ({"family": "quantize", "cases": ["mxfp8_quantize"]}, "case device: found no '@'"),
        ({"family": "quantize", "colour": "red"}, "colour: found str 'red'; needed nothing"),
    ],
)
def test_what_it_cannot_be_asked_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        check(right, **arguments)


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_a_kernel_that_changes_its_input_fails(arrays: str) -> None:
    """Its bytes are right, and the next kernel would read another input."""
    if arrays == "torch":
        pytest.importorskip("torch")

    def destroys(x: Any) -> Any:
        made = right(to_numpy(x).copy())
        x[1, 5] = 0
        x[3:] = 123
        return made

    (result,) = check(destroys, "quantize", arrays=arrays, cases=CASES[:1]).results
    assert (result.verdict, result.stage) == (Verdict.MISMATCH, "x")
    x = result.case.family.inputs(result.case)["x"]
    assert x[1, 5] != 0
    assert (
        f"the kernel changed its input x[1, 5]: given 0x{x.view(np.uint16)[1, 5]:04X}, afterwards 0x0000; 417 of 1664 "
        "elements changed; a kernel may change an input only if it is registered with changes=('x',)"
    ) in str(result)
    assert check(destroys, "quantize", arrays=arrays, cases=CASES[:1], changes=("x",)).passed
    with pytest.raises(ArgumentError, match=r"changes: found .*; needed a tuple of some of x"):
        check(destroys, "quantize", changes=("codes",))


def test_a_difference_on_finite_blocks_is_not_laid_on_the_edges() -> None:
    """A block whose amax is 1.75 * 2^n gets twice its scale; the smallest such blocks are finite, so no edge blocks."""

    def off_by_one(x: np.ndarray) -> Any:
        blocks = x.astype(np.float32).reshape(x.shape[0], -1, 32)
        bits = np.abs(blocks).max(-1).view(np.int32)
        exact = (bits & 0x7FFFFF) == 0x600000
        made = quantize_mxfp8(x)
        scales = made.scales + (exact & (made.scales > 0) & (made.scales < 0xFE))
        codes = (blocks * np.exp2(127.0 - scales)[..., None]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        changed = np.repeat(scales != made.scales, 32, axis=1)
        return np.where(changed, codes.reshape(x.shape), made.codes), scales.astype(np.uint8)

    case = "mxfp8_quantize:bf16:m16k416:boundary-mantissas:seed7@ptx"
    (result,) = check(off_by_one, "quantize", arrays="numpy", cases=[case]).results
    assert result.verdict is Verdict.MISMATCH
    assert result.reason == "no known policy gives these bytes, with or without a known fault"

    def other_zeros(x: np.ndarray) -> Any:
        made = quantize_mxfp8(x)
        return made.codes, np.where((made.codes & 0x7F).reshape(*made.scales.shape, 32).any(-1), made.scales, 99)

    zeros = "mxfp8_quantize:bf16:m16k416:specials:seed7@ptx"
    (result,) = check(other_zeros, "quantize", arrays="numpy", cases=[zeros]).results
    assert str(result.reason).startswith("these are the bytes of rceil/")
    assert str(result.reason).endswith("every block that differs is all zero, tiny, or not finite")
