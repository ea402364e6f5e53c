"""The pytest plugin, run by pytest on files of its own: kernels under a contract, faults, reports, refusals."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.selection.thinned import thinned

# Imported before the inner sessions, which forget what they import: torch cannot be loaded twice.
torch = pytest.importorskip("torch")

from refmoe import catalog, testing  # noqa: E402
from refmoe.errors import ArgumentError  # noqa: E402
from refmoe.families import FAMILIES  # noqa: E402
from refmoe.families.family import Case, Family  # noqa: E402
from refmoe.reports.gate import check_reports  # noqa: E402
from refmoe.reports.parity import read_report  # noqa: E402
from refmoe.testing import adapters  # noqa: E402
from refmoe.verify.runner import run_case  # noqa: E402
from refmoe.verify.verdict import Result, Verdict  # noqa: E402

pytest_plugins = ["pytester"]

#: A torch function that is right: what README and docs/guides/testing.md show.
TORCH_KERNEL = """
import torch
import refmoe.testing


@refmoe.testing.kernel("mxfp8_quantize", mode="rceil", edge="exact", layout="linear")
def my_quantize(x):
    blocks = x.float().reshape(x.shape[0], -1, 32)
    amax = blocks.abs().amax(-1)
    scales = (((amax.view(torch.int32) + 0x1FFFFF) >> 23) - 8).clamp(0, 254)
    codes = (blocks * torch.exp2(127.0 - scales)[..., None]).to(torch.float8_e4m3fn).view(torch.uint8)
    bad = ~amax.isfinite()
    return codes.masked_fill(bad[..., None], 0x7F).reshape(x.shape), scales.masked_fill(bad, 0xFF).to(torch.uint8)


@refmoe.testing.refmoe_cases(my_quantize)
def test_my_quantize(refmoe_case):
    refmoe_case.check()
"""

#: The same reference through NumPy; a `{change}` is planted between its result and what it returns.
NUMPY_KERNEL = """
import numpy as np
import refmoe.testing
from refmoe.reference import quantize_mxfp8, swizzle_scales


@refmoe.testing.kernel("mxfp8_quantize", layout="128x4", arrays="numpy"{options})
def mine(x):
    made = quantize_mxfp8(x)
    codes, scales = made.codes, swizzle_scales(made.scales, "128x4", fill={fill})
    {change}
    return codes, scales


@refmoe.testing.refmoe_cases(mine, cases=["mxfp8_quantize:bf16:m5k2880:fingerprint:layout=128x4:seed7@ptx"])
def test_mine(refmoe_case):
    refmoe_case.check()
"""


def numpy_kernel(change: str = "pass", fill: str = "0", options: str = "") -> str:
    return NUMPY_KERNEL.format(change=change, fill=fill, options=options)


@pytest.fixture(autouse=True)
def _without_idle_plugins(request: pytest.FixtureRequest) -> None:
    """Inner runs do not wait seconds for the import of plugins that have nothing to do in them."""
    if "pytester" in request.fixturenames:
        request.getfixturevalue("pytester").makeini("[pytest]\naddopts = -p no:nbmake -p no:hypothesispytest")


def gate(path: Path) -> tuple[str, ...]:
    return check_reports([path], None, catalog).refusals


def test_a_right_torch_function_passes_every_case_and_the_gate(pytester: pytest.Pytester, monkeypatch: Any) -> None:
    pytester.makepyfile(test_mine=TORCH_KERNEL)
    result = pytester.runpytest("--refmoe-report=out/report.json")
    result.assert_outcomes(passed=13)
    result.stdout.fnmatch_lines(["test_mine.py::my_quantize: 13 PASS", "written: out/report.json, 13 cases"])
    report = read_report(pytester.path / "out/report.json")
    assert report.summary == {"PASS": 13}
    assert {case.kernel for case in report.cases} == {"test_mine.py::my_quantize"}
    assert all(case.compared and case.device == "host" and case.evidence == "bit-exact" for case in report.cases)
    assert gate(pytester.path / "out/report.json") == ()
    page = pytester.run(sys.executable, "-m", "refmoe", "report", "out/report.json", "--html", "page.html")
    assert page.ret == 0
    assert "mxfp8_quantize" in (pytester.path / "page.html").read_text()
    assert {tuple(case.sources or ()) for case in report.cases} == {("test_mine.py::my_quantize",)}
    # Evidence counts only while what decides the result is what ran. A comment decides nothing, nor does a test.
    file = pytester.path / "test_mine.py"
    file.write_text(TORCH_KERNEL.replace("    amax =", "    # of each block\n\n    amax =") + "\n\nOTHER = 1\n")
    assert gate(pytester.path / "out/report.json") == ()
    file.write_text(TORCH_KERNEL.replace("0x1FFFFF", "0x0FFFFF"))
    (refusal,) = gate(pytester.path / "out/report.json")
    assert "test_mine.py::my_quantize changed since 13 cases of test_mine.py::my_quantize ran" in refusal
    file.write_text(TORCH_KERNEL.replace("def my_quantize", "def another"))
    (refusal,) = gate(pytester.path / "out/report.json")
    assert "the source of test_mine.py::my_quantize is no longer what ran: kernel: found no my_quantize" in refusal
    file.unlink()
    (refusal,) = gate(pytester.path / "out/report.json")
    assert "the source of test_mine.py::my_quantize cannot be read from here" in refusal


def test_what_a_kernel_calls_and_the_files_that_it_names_are_in_its_hash(pytester: pytest.Pytester) -> None:
    kernel = numpy_kernel("codes = same(codes)", options=', sources=("kernel.cu",)')
    pytester.makepyfile(test_mine=f"{kernel}\n\ndef same(codes):\n    return codes ^ 0\n")
    device = pytester.path / "kernel.cu"
    device.write_text("int a;  // first\n")
    pytester.runpytest("--refmoe-report=report.json").assert_outcomes(passed=1)
    report = pytester.path / "report.json"
    assert read_report(report).cases[0].sources == ["test_mine.py::mine", "kernel.cu"]
    device.write_text("/* second */ int  a;\n")
    assert gate(report) == ()
    file = pytester.path / "test_mine.py"
    file.write_text(file.read_text().replace("codes ^ 0", "codes | 0"))
    (refusal,) = gate(report)
    assert "test_mine.py::mine or kernel.cu changed since 1 cases of test_mine.py::mine ran" in refusal
    file.write_text(file.read_text().replace("codes | 0", "codes ^ 0"))
    assert gate(report) == ()
    device.write_text("int b;\n")
    assert len(gate(report)) == 1


@pytest.mark.parametrize(
    ("change", "lines"),
    thinned(
        [
            (
                "codes[2, 70] ^= 1",
                [
                    "*MISMATCH codes[[]2, 70[]]  block (2, 2) lane 6: kernel 0x* 1 ulp, scale 0x*; 1 of 14400 differ",
                    "*codes map: rows 5 down, K-blocks 90 across*",
                    "*repro: pytest 'test_mine.py::test_mine[[]mxfp8_quantize:bf16:m5k2880:fingerprint:layout=128x4:*",
                ],
            ),
            (
                "codes = codes.astype(np.int32)",
                ["*codes: the element types differ: kernel int32; the contract has float8_*"],
            ),
            ("codes = codes[:, :-32]", ["*codes: the shapes differ: kernel [[]5, 2848[]] reference [[]5, 2880[]]"]),
            (
                "scales = np.roll(made.scales, 1)",
                ["*scales: the shapes differ: kernel [[]5, 90[]] reference [[]11776[]]"],
            ),
            (
                "codes, scales = scales, codes",
                ["*codes: the shapes differ: *; outputs are returned in the order codes, scales"],
            ),
            ("codes = np.float32(3)", ["*codes: the element types differ: kernel float32; the contract has *uint8"]),
            ("return codes", ["*ArgumentError: kernel: found ndarray returned; needed codes, scales: a tuple*"]),
            ("scales = None", ["*ArgumentError: scales: found NoneType None; needed an array*"]),
            ("raise RuntimeError('launch failed')", ["*RuntimeError: launch failed"]),
        ],
        3,
    ),
)
def test_a_fault_is_said_in_refmoes_words(pytester: pytest.Pytester, change: str, lines: list[str]) -> None:
    pytester.makepyfile(test_mine=numpy_kernel(change))
    result = pytester.runpytest("--refmoe-report=report.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(lines)
    (refusal,) = [text for text in gate(pytester.path / "report.json") if "pytest" in text]
    assert "test_mine.py::test_mine" in refusal


def test_what_nobody_writes_is_compared_only_in_buffers_that_were_handed_over(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=numpy_kernel(fill="0x5A"))  # the kernel's own padding rows: nobody may read them
    pytester.runpytest().assert_outcomes(passed=1)
    into = (
        numpy_kernel().replace("def mine(x):", "def mine(x, codes, scales):").replace("    return codes, scales\n", "")
    )
    into = into.replace("codes, scales = made.codes, swizzle_scales(made.scales", "buffer = swizzle_scales(made.scales")
    write = "real = buffer != 0; codes[...] = made.codes; scales[real] = buffer[real]"
    pytester.makepyfile(test_mine=into.replace("    pass\n", f"    {write}\n"))
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)  # padding columns have to be zeros; padding rows were left alone
    result.stdout.fnmatch_lines(["*MISMATCH scales*padding column 90 of row 0 must be 0x00: kernel 0xFF; *"])
    pytester.makepyfile(test_mine=into.replace("    pass\n", "    codes[...] = made.codes; scales[...] = buffer\n"))
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*padding row * must not be written: kernel 0x00 instead of the poison 0xFF*"])


def test_another_policy_is_a_policy_difference_with_its_size(pytester: pytest.Pytester) -> None:
    floor = numpy_kernel().replace("quantize_mxfp8(x)", 'quantize_mxfp8(x, mode="floor")')
    pytester.makepyfile(test_mine=floor)
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*a policy difference: these are the bytes of floor/exact (= ocp, torchao_floor), not of rceil/exact*; on "
            "this input they differ in 99 of 450 scale bytes (22.0%) and 3168 codes (22.0%), relative L2 error *",
            "  a policy difference: all 1 are the bytes of *floor/exact*ocp*",
        ]
    )
    pytester.makepyfile(test_mine=floor.replace('layout="128x4", arrays', 'mode="floor", layout="128x4", arrays'))
    result = pytester.runpytest()  # the case is of another contract now
    result.assert_outcomes(skipped=1)
    pytester.makepyfile(
        test_mine=floor.replace('layout="128x4", arrays', 'policy="ocp", layout="128x4", arrays').replace(
            "fingerprint:layout", "fingerprint:mode=floor:layout"
        )
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_a_refusal_that_nobody_declared_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=numpy_kernel("raise refmoe.testing.Unsupported('K above 2048')"))
    result = pytester.runpytest("--refmoe-report=report.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*UNSUPPORTED not in the case list: K above 2048",
            "*a kernel that does not take a case says so when it is registered: kernel(..., refuses=...)",
            "*mine: 1 UNSUPPORTED",
        ]
    )
    assert [case.expected for case in read_report(pytester.path / "report.json").cases] == [False]
    refusals = gate(pytester.path / "report.json")
    assert any("UNSUPPORTED, a refusal that the case list does not expect: K above 2048" in text for text in refusals)


def test_a_declared_refusal_is_skipped_with_the_reason_and_recorded(pytester: pytest.Pytester) -> None:
    refuses = ", refuses=lambda case: 'K above 2048' if case.shape.k > 2048 else None"
    pytester.makepyfile(test_mine=numpy_kernel("raise RuntimeError('it was called')", options=refuses))
    result = pytester.runpytest("-rs", "--refmoe-report=report.json")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*mine: 1 UNSUPPORTED", "SKIPPED * UNSUPPORTED K above 2048"])
    assert [case.expected for case in read_report(pytester.path / "report.json").cases] == [True]
    (refusal,) = gate(pytester.path / "report.json")
    assert "no case ran" in refusal


def test_data_that_could_not_fail_is_mistrusted(pytester: pytest.Pytester, tmp_path: Path) -> None:
    """Activations that are all zeros: every kernel that writes nothing is right about them."""
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"x": np.zeros((2, 64), np.float16)}, tmp_path / "zeros.safetensors")
    case = f"mxfp8_quantize:fp16:m2k64:activations:layout=128x4:file={tmp_path}/zeros.safetensors:tensor=x:seed0@ptx"
    zeros = numpy_kernel().replace("mxfp8_quantize:bf16:m5k2880:fingerprint:layout=128x4:seed7@ptx", case)
    pytester.makepyfile(test_mine=zeros)
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*MISTRUSTED 100.0% of the codes are zero*"])


def test_a_test_that_checks_nothing_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=numpy_kernel().replace("refmoe_case.check()", "pass"))
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*the test never called check(), so it proves nothing"])
    pytester.makepyfile(test_mine="def test_bare(refmoe_case):\n    refmoe_case.check()\n")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*decorate it with refmoe.testing.refmoe_cases"])


#: Plugins that an inner process would only wait for.
LIGHT = ("-p", "no:cacheprovider")


@pytest.mark.slow
def test_workers_reports_are_merged(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cases over two workers, two of them in a second test as well: they are in the report once."""
    pytest.importorskip("xdist")
    cases = "@refmoe.testing.refmoe_cases(mine, dtypes=('fp16',))"
    test = f"\n\n{cases}\ndef test_{{}}(refmoe_case):\n    refmoe_case.check()\n"
    pytester.makepyfile(test_mine=numpy_kernel() + test.format("half") + test.format("again"))
    # As `make test` names plugins: of one that pytest finds by itself each worker rewrites all of refmoe.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    named = ("-p", "xdist", "-p", "refmoe.pytest_plugin")
    result = pytester.runpytest_subprocess("-n", "2", "--refmoe-report=report.json", *named, *LIGHT)
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["test_mine.py::mine: 5 PASS", "written: report.json, 3 cases"])
    report = read_report(pytester.path / "report.json")
    assert len(report.cases) == 3
    assert [case.id for case in report.cases] == sorted(case.id for case in report.cases)
    assert gate(pytester.path / "report.json") == ()


def test_a_run_that_was_broken_off_leaves_no_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mine=numpy_kernel(), test_other="def test_other():\n    assert False\n")
    result = pytester.runpytest("-x", "--refmoe-report=report.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*no report was written: the run did not end*"])
    assert not (pytester.path / "report.json").exists()


def test_a_run_without_cases_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing():\n    pass\n")
    result = pytester.runpytest("--refmoe-report=report.json")
    result.stdout.fnmatch_lines(["written: report.json, which holds no case: none ran"])
    (refusal,) = gate(pytester.path / "report.json")
    assert "an empty report" in refusal
    # Nothing is no reason to lose what an earlier run found.
    (pytester.path / "report.json").write_text("the report of an earlier run")
    result = pytester.runpytest("--refmoe-report=report.json")
    result.stdout.fnmatch_lines(["left as it was: report.json, because no case ran"])
    assert (pytester.path / "report.json").read_text() == "the report of an earlier run"
    result = pytester.runpytest("--refmoe-report=.")
    result.stderr.fnmatch_lines(["*--refmoe-report: . is a folder; needed the name of a file"])


def test_inactive_it_imports_nothing_heavy_and_prints_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\ndef test_light():\n    assert 'refmoe.pytest_plugin' in sys.modules\n"
        "    assert not {'numpy', 'torch', 'matplotlib', 'pydantic', 'refmoe.testing'} & set(sys.modules)\n"
    )
    result = pytester.runpytest_subprocess("-p", "no:xdist", *LIGHT)
    result.assert_outcomes(passed=1)
    shown = [line for line in result.stdout.lines if not line.startswith(("plugins:", "rootdir:", "running:"))]
    assert "refmoe" not in "\n".join(shown)
    code = "import time; s = time.perf_counter(); import refmoe.pytest_plugin; print(time.perf_counter() - s)"
    seconds = subprocess.run(
        [sys.executable, "-c", f"import pytest; {code}"], capture_output=True, text=True, check=True
    ).stdout
    assert float(seconds) < 0.2


def test_refmoe_device_runs_our_own_kernel_beside(pytester: pytest.Pytester, devices: Any) -> None:
    pytester.makepyfile(
        "import ml_dtypes, numpy as np\nfrom refmoe import cuda\n"
        "from refmoe.reference import quantize_mxfp8\n"
        "from refmoe.testing import assert_bit_exact\n\n\ndef test_ours(refmoe_device):\n"
        "    x = np.ones((2, 64), ml_dtypes.bfloat16)\n"
        "    assert_bit_exact(cuda.quantize_mxfp8(x, device=refmoe_device).codes, quantize_mxfp8(x).codes)\n"
    )
    pytester.runpytest().assert_outcomes(passed=1)


# --- contracts ------------------------------------------------------------------------------------------------------


#: How the results of a whole layer begin; such a name no parameter of a function can have.
LAYER_OUTPUTS = "finalize."


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_contracts_are_those_of_the_families(family: Family) -> None:
    """Every input and output that a family's cases have is in its contract, and nothing else."""
    contract, seen, absent, outputs = family.contract, set[str](), set[str](), set[str]()
    told = ("input_sf", "bias", "params", "output", "prescale")
    one_each = {(case.dtype, *(case.get(name) for name in told)): case for case in family.level("quick")}
    for case in one_each.values():
        inputs = family.inputs(case)
        seen |= set(inputs)
        absent |= {name for name, value in inputs.items() if value is None}
        expected = family.expect(case, inputs)
        outputs |= {expected.answers.get(name, name) for name in expected.outputs if "-" not in name}
    assert set(contract.inputs) == seen
    assert absent <= set(contract.features)
    # Of a whole layer the results alone: its steps are a kernel's own.
    assert set(contract.outputs) == ({name for name in outputs if name.startswith(LAYER_OUTPUTS)} or outputs)
    for attribute in contract.settings.values():
        assert all(hasattr(case.shape if len(attribute) == 1 else case, attribute) for case in one_each.values())
    for option in family.options:
        assert not (option.fixed and option.launch)


def reference_kernel(family: Family, answer: dict[str, Any], *, buffers: bool, change: int = 0) -> testing.UserKernel:
    """The family's reference as a user's kernel that takes all that there is to take.

    Args:
        family: whose reference.
        answer: holds the reference's outputs for the case that the kernel is called for.
        buffers: whether it writes its outputs into buffers; else it returns them.
        change: what is changed in the bits of every element.
    """
    contract = family.contract
    outputs = tuple(name for name in contract.outputs if not (buffers and name in contract.inputs))

    def reference(**given: Any) -> Any:
        made = {name: answer[name] ^ answer[name].dtype.type(change) for name in outputs if name in answer}
        if not buffers:
            return made
        for name, bits in made.items():
            given[name][...] = bits
        return None

    names = [*contract.inputs, *contract.settings, *(outputs if buffers else ())]
    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
    reference.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return testing.kernel(family, arrays="numpy", outputs=outputs)(reference)


@pytest.mark.parametrize("family", thinned(FAMILIES, 3))
def test_the_reference_passes_its_contract_and_with_one_bit_changed_fails_it(family: str) -> None:
    answer: dict[str, Any] = {}
    # A parameter cannot be called finalize.out: the results of a whole layer are always returned.
    layer = any(output.startswith(LAYER_OUTPUTS) for output in FAMILIES[family].contract.outputs)
    pairs = [
        tuple(reference_kernel(FAMILIES[family], answer, buffers=buffers, change=change) for change in (0, 1))
        for buffers in ((False,) if layer else (False, True))
    ]
    compared = [0] * len(pairs)
    # Every third case is of either half.
    for turn, case in enumerate(pairs[0][0].cases()[::3]):
        answer.clear()
        answer.update(pairs[0][0].problem(case)[1].outputs)
        # By turns: who returns arrays gets one half of the cases, who writes buffers the other.
        right, wrong = pairs[turn % len(pairs)]
        result = run_case(right, case)
        assert not result.fails, result.line
        compared[turn % len(pairs)] += result.compared
        if result.compared:
            assert run_case(wrong, case).verdict in (Verdict.MISMATCH, Verdict.OUT_OF_BOUND)
    assert all(compared)


@pytest.mark.parametrize(
    ("family", "options", "function", "sentence"),
    [
        ("gemm2", {}, lambda x: x, "family: found str 'gemm2'; needed one of mxfp8_quantize"),
        ("o", {}, lambda x: x, "family: found str 'o'; needed one of mxfp8_quantize"),
        ("rmsnorm", {}, lambda x: x, "family: found str 'rmsnorm'.*; a kernel of no family .*assert_bit_exact"),
        ("mxfp8_quantize", {"mode": "up"}, lambda x: x, "^mode: found str 'up/exact'; needed MODE"),
        ("mxfp8_quantize", {"edge": "none"}, lambda x: x, "^edge: found str 'rceil/none'"),
        (
            "mxfp8_quantize",
            {"policy": "ocp", "mode": "floor"},
            lambda x: x,
            "policy: found ocp beside a mode or an edge",
        ),
        ("mxfp8_quantize", {"policy": "ocpp"}, lambda x: x, "^policy: found str 'ocpp'; needed "),
        ("mxfp8_quantize", {"policy": "gguf"}, lambda x: x, "gguf is of mxfp4 alone"),
        (
            "mxfp8_quantize",
            {"layout": "4x4"},
            lambda x: x,
            "case layout: found '4x4'; needed one of linear, 128x4, 8x4",
        ),
        ("mxfp8_quantize", {"variant": "silu"}, lambda x: x, "variant: found str 'silu'; needed nothing"),
        ("mxfp8_quantize", {"dtypes": ("fp8",)}, lambda x: x, "dtypes: found tuple .*; needed a tuple of some of bf16"),
        ("mxfp8_quantize", {"dtypes": "bf16"}, lambda x: x, "dtypes: found str 'bf16'; needed a tuple"),
        (
            "mxfp8_quantize",
            {"arrays": "cupy"},
            lambda x: x,
            "arrays: found str 'cupy'; needed one of numpy, torch, jax",
        ),
        ("mxfp8_quantize", {"arrays": "numpy", "device": "cuda"}, lambda x: x, "NumPy's lie on the CPU"),
        ("mxfp8_quantize", {"layout": "8x4"}, lambda x, layout: x, "layout: found '8x4' for a function that takes"),
        ("mxfp8_quantize", {"outputs": ("bytes",)}, lambda x: x, "outputs: found"),
        ("mxfp8_quantize", {}, lambda tensor: tensor, "the parameter tensor; needed of mxfp8_quantize: the inputs x;"),
        ("mxfp8_quantize", {}, lambda *x: x, r"the parameter \*x; needed parameters that can be given by keyword"),
        ("mxfp8_quantize", {}, lambda: 0, "no parameter that is an input"),
        ("mxfp8_quantize", {}, lambda x, codes: x, "buffers for codes and none for scales; needed all, or none"),
        ("mxfp8_quantize", {"arrays": "jax"}, lambda x, codes, scales: x, "JAX never writes"),
        ("mxfp8_quantize", {}, "my_kernel", "kernel: found str 'my_kernel'; needed a function"),
        ("expand", {"policy": "ocp"}, lambda x: x, "whole policies are of mxfp8_quantize"),
    ],
)
def test_bad_registrations_are_refused(family: str, options: dict[str, Any], function: Any, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        testing.kernel(family, **options)(function)


def test_bad_case_lists_are_refused() -> None:
    kernel = testing.kernel("mxfp8_quantize", dtypes=("bf16",))(lambda x: x)
    for arguments, sentence in (
        ({"level": "all"}, "level: found str 'all'; needed one of quick, default, full"),
        ({"dtypes": ("fp16",)}, "dtypes: found str 'fp16'; needed some of bf16"),
        ({"cases": []}, "cases: found none"),
        ({"cases": ["expand:bf16:m4k416e8t2:tiny:seed7@ptx"]}, "needed cases of mxfp8_quantize"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            testing.refmoe_cases(kernel, **arguments)
    with pytest.raises(ArgumentError, match="family: found str 'cutlass_gemm'"):
        testing.refmoe_cases("cutlass_gemm")


def run(kernel: testing.UserKernel, **options: Any) -> list[Result]:
    results: list[Result] = []
    for case in kernel.cases(**options):
        item = testing.RefmoeCase(case, kernel, "test.py::test", Path.cwd(), results.append)
        with contextlib.suppress(pytest.skip.Exception):
            item.check()
    return results


@pytest.mark.parametrize("mode", ["floor", "rceil"])
def test_torchao_keeps_its_declared_policy(mode: str) -> None:
    pytest.importorskip("torchao")
    results = run(adapters.torchao_to_mx(mode))
    assert {result.verdict.value for result in results} == {"PASS"}
    assert all(f"declared policy: torchao_{mode}@0.18, not of rceil/exact" in str(result.made_of) for result in results)
    # Held to the policy without the edges of 0.18, the edges are what differs: no tolerance hides them.
    strict = adapters.torchao_to_mx(mode, policy=f"{mode}/exact")
    tiny = next(case for case in strict.cases() if case.fill == "tiny")
    with pytest.raises(AssertionError, match=rf"these are the bytes of torchao_{mode}@0\.18, not of {mode}/exact"):
        testing.RefmoeCase(tiny, strict, "test.py::test", Path.cwd(), lambda result: None).check()


def test_flashinfer_is_skipped_with_the_reason_where_it_is_not() -> None:
    kernel = adapters.flashinfer_mxfp8_quantize("8x4")
    assert (kernel.policy, kernel.device) == ("rceil/flashinfer, scales 8x4", "cuda")
    if kernel.absent() is not None:
        results = run(kernel)
        assert {result.verdict.value for result in results} == {"SKIPPED"}
        assert all("flashinfer" in str(result.reason).lower() for result in results)


def test_a_case_that_a_kernel_cannot_be_given_says_why() -> None:
    def no_logits(case: Case) -> str | None:
        others = case.dtype == "ids" or case.bias != "none" or case.fill == "refused"
        return None if others else "route takes no such logits"

    @testing.kernel("routing", arrays="numpy", outputs=("topk_ids", "topk_weights"), refuses=no_logits)
    def route(logits: np.ndarray, top_k: int) -> Any:
        raise AssertionError("it was called")

    results = run(route)
    assert all(result.verdict is Verdict.UNSUPPORTED and result.expected for result in results)
    assert {result.reason for result in results} == {
        "route takes no bias, which the case has",
        "route takes no first_expert, and the case has experts of other ranks",
        "route needs logits, which the case does not give",
        "the case holds input to be refused, and route does not compute refused",
        "route takes no such logits",
    }


def test_what_torch_has_not_implemented_is_an_error_and_no_refusal() -> None:
    @testing.kernel("mxfp8_quantize", arrays="numpy")
    def quantize(x: np.ndarray) -> Any:
        raise NotImplementedError("no such operator for this dtype")

    with pytest.raises(NotImplementedError):  # and not skipped
        run(quantize)


def test_readme_shows_what_its_example_prints() -> None:
    pytest.importorskip("torchao")
    to_mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor").to_mx

    @testing.kernel("mxfp8_quantize", mode="rceil", edge="exact", layout="linear")
    def my_quantize(x: torch.Tensor) -> Any:
        scales, codes = to_mx(x, torch.float8_e4m3fn, 32)
        return codes, scales

    shown = "mxfp8_quantize:bf16:m4k416:wide-range:seed7@ptx"
    (case,) = (case for case in my_quantize.cases(dtypes=("bf16",)) if str(case) == shown)
    with pytest.raises(AssertionError) as failure:
        testing.RefmoeCase(case, my_quantize, "test.py::test", Path.cwd(), lambda result: None).check()
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text()
    lines = str(failure.value).splitlines()
    assert lines[0] in readme
    (policy,) = (line for line in lines if line.startswith("a policy difference"))
    assert policy in readme


def test_a_report_names_the_file_relative_to_the_root(tmp_path: Path) -> None:
    kernel = testing.kernel("mxfp8_quantize")(lambda x: x)
    test = "test_a_report_names_the_file_relative_to_the_root"  # the lambda stands in it
    here = dataclasses.replace(kernel, root=Path(__file__).parent)
    assert (here.name, here.sources()) == ("test_plugin.py::<lambda>", (f"test_plugin.py::{test}",))
    there = dataclasses.replace(kernel, root=tmp_path)
    assert (there.name, there.sources(), there.source_sha256()) == (f"{__name__}::<lambda>", (), None)
    packaged = dataclasses.replace(adapters.torchao_to_mx(), root=Path("/"))
    assert (packaged.name, packaged.sources()) == ("refmoe.testing.adapters::torchao_to_mx_floor", ())


SCHEDULED = """
import numpy as np
import pytest
import refmoe

TEXT = '''
.version 8.7
.target sm_90a
.address_size 64
.visible .entry last(.param .u64 out) {
    .reg .b32 %r<3>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [out]; mov.u32 %r1, %ctaid.x; atom.global.exch.b32 %r2, [%d1], %r1; ret;
}
'''

def launch():
    return refmoe.run_ptx(TEXT, grid=4, block=1, args=[np.zeros(1, np.uint32)]).schedules

@pytest.mark.refmoe_schedules(4)
def test_marked():
    launch()

@pytest.mark.refmoe_schedules("schedule=3")
def test_one():
    assert launch() == 1

@pytest.mark.refmoe_schedules(0)
def test_no_schedule():
    pass

@pytest.mark.refmoe_schedules
def test_no_number():
    pass

def test_unmarked():
    assert launch() == 1
"""


def test_launches_of_a_marked_test_run_under_schedules(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SCHEDULED)
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    found.assert_outcomes(passed=2, failed=3)
    found.stdout.fnmatch_lines(["*ScheduleError: the result depends on the schedule*", "*at least one needed*"])
    found.stdout.fnmatch_lines(["*refmoe_schedules: one argument needed*"])


def test_the_option_runs_all_tests_under_schedules(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SCHEDULED)
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--refmoe-schedules", "0,1", "-k", "unmarked or one")
    found.assert_outcomes(passed=1, failed=1, deselected=3)
    found.stdout.fnmatch_lines(["*repro: schedules=2"])


def test_a_module_of_the_project_that_a_kernel_imports_is_in_its_hash(pytester: pytest.Pytester) -> None:
    """What it imports from, and what that imports; not what the rest of its file imports."""
    pytester.makepyfile(
        helper_one="from helper_two import same\n\ndef codes_of(made):\n    return same(made.codes)\n",
        helper_two="def same(x):\n    return x\n",
        helper_other="X = 1\n",
    )
    text = numpy_kernel().replace("codes, scales = made.codes,", "codes, scales = codes_of(made),")
    assert text != numpy_kernel()
    pytester.makepyfile(test_mine="import helper_other\nfrom helper_one import codes_of\n" + text)
    path = pytester.path / "out/report.json"
    pytester.runpytest("--refmoe-report=out/report.json").assert_outcomes(passed=1)
    assert gate(path) == ()
    (record,) = read_report(path).cases
    assert record.sources == ["test_mine.py::mine", "helper_one.py", "helper_two.py"]
    (pytester.path / "helper_other.py").write_text("X = 2\n")
    assert gate(path) == ()
    (pytester.path / "helper_two.py").write_text("def same(x):\n    return x ^ 1\n")
    (refusal,) = gate(path)
    assert "helper_two.py changed since 1 cases of test_mine.py::mine ran" in refusal
