from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.verify import CASE, stand_in

from refmoe.cuda import DeviceUnavailable, ToolchainError
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.case import parse_case
from refmoe.families.suites import list_cases
from refmoe.verify import runner
from refmoe.verify.runner import Devices, run_case, run_cases
from refmoe.verify.verdict import Verdict, exit_status


def test_an_equal_kernel_passes_and_the_result_says_on_what(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda case, outputs: None)
    found = run_case(CASE, Devices())
    assert (found.verdict, found.evidence, found.stage, found.reason) == (Verdict.PASS, "bit-exact", None, None)
    assert found.compared == 8 * 416 + (8 + 127 * 8 + 127) // 128 * 128 * 16
    assert found.source_sha256 is not None
    assert len(str(found.input_sha256)) == 64
    assert found.repro == "refmoe repro 'expand:bf16:m4k416e8t2:fingerprint:seed7@ptx'"


@pytest.mark.parametrize(("stage", "index"), [("codes", 0), ("codes", -1), ("scales", 0), ("scales", -1)])
def test_one_changed_byte_anywhere_is_a_mismatch(monkeypatch: pytest.MonkeyPatch, stage: str, index: int) -> None:
    def change(case: Any, outputs: Any) -> None:
        outputs[stage].reshape(-1)[index] ^= 0x80

    stand_in(monkeypatch, change)
    found = run_case(CASE, Devices())
    assert (found.verdict, found.stage) == (Verdict.MISMATCH, stage)
    assert dict(found.differing)[stage] == 1
    assert found.line.startswith(f"MISMATCH {stage}[")


def test_equality_on_data_that_could_not_fail_is_mistrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda case, outputs: None)
    monkeypatch.setitem(runner.RUNS, "expand", _with_constant_input())
    found = run_case(CASE, Devices())
    assert found.verdict is Verdict.MISTRUSTED
    assert "zero, more than the" in str(found.reason)


def test_a_difference_on_such_data_is_still_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(case: Any, outputs: Any) -> None:
        outputs["codes"][0, 0] ^= 1

    stand_in(monkeypatch, change)
    monkeypatch.setitem(runner.RUNS, "expand", _with_constant_input())
    assert run_case(CASE, Devices()).verdict is Verdict.MISMATCH


def _with_constant_input() -> Any:
    from dataclasses import replace

    run = runner.RUNS["expand"]
    runner._expectation.cache_clear()

    def inputs(case: Any) -> Any:
        made = dict(run.inputs(case))
        made["x"] = np.zeros_like(made["x"])
        return made

    return replace(run, inputs=inputs)


@pytest.fixture(autouse=True)
def _no_cached_expectation() -> Any:
    runner._expectation.cache_clear()
    yield
    runner._expectation.cache_clear()


@pytest.mark.parametrize(
    ("error", "verdict", "words"),
    [
        (ArgumentError("layout", "'9x9'", "another"), Verdict.UNSUPPORTED, "layout: found '9x9'; needed another"),
        (RefmoeError("bounds: 16 bytes past buffer x"), Verdict.ERROR, "RefmoeError: bounds: 16 bytes past buffer x"),
        (ToolchainError("nvcc failed"), Verdict.ERROR, "ToolchainError: nvcc failed"),
    ],
)
def test_what_a_kernel_raises_is_its_verdict(
    monkeypatch: pytest.MonkeyPatch, error: Exception, verdict: Verdict, words: str
) -> None:
    def change(case: Any, outputs: Any) -> None:
        raise error

    stand_in(monkeypatch, change)
    found = run_case(CASE, Devices())
    assert (found.verdict, found.reason, found.evidence) == (verdict, words, "none")


def test_a_defect_of_refmoe_itself_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(case: Any, outputs: Any) -> None:
        raise ZeroDivisionError

    stand_in(monkeypatch, change)
    with pytest.raises(ZeroDivisionError):
        run_case(CASE, Devices())


@pytest.mark.parametrize("error", [DeviceUnavailable("torch sees no CUDA device"), ToolchainError("no usable nvcc")])
def test_a_missing_device_skips_with_its_reason(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def get(self: Devices, case: Any) -> Any:
        raise error

    monkeypatch.setattr(Devices, "get", get)
    found = run_case(CASE, Devices())
    assert (found.verdict, found.reason) == (Verdict.SKIPPED, str(error))


def test_approximate_instructions_are_an_error_even_if_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Outcome:
        approximate = ("ex2.approx.f32 at line 7",)
        lane_instructions = 5

    class Kernel:
        entry = "refmoe_expand"

    class Record:
        kernel, grid, block, result = Kernel, 1, 32, Outcome

    stand_in(monkeypatch, lambda case, outputs: None)
    device = runner.Devices().get(CASE)
    run = runner.RUNS["expand"].run
    from dataclasses import replace

    def launching(case: Any, inputs: Any, place: Any) -> Any:
        place.launches.append(Record)
        return run(case, inputs, place)

    monkeypatch.setitem(runner.RUNS, "expand", replace(runner.RUNS["expand"], run=launching))
    monkeypatch.setattr(Devices, "get", lambda self, case: device)
    found = run_case(CASE, Devices())
    assert found.verdict is Verdict.ERROR
    assert "ex2.approx.f32 at line 7" in str(found.reason)
    assert found.launches == ("refmoe_expand 1 x 32",)


def test_the_hash_of_the_inputs_follows_the_seed_but_not_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda case, outputs: None)
    texts = [str(CASE), str(CASE.on("ptx", "sm_121a")), str(CASE).replace("seed7", "seed8")]
    first, other_arch, other_seed = (run_case(parse_case(text), Devices()).input_sha256 for text in texts)
    assert first == other_arch != other_seed


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ([], 3),
        (["PASS"], 0),
        (["PASS", "SKIPPED", "UNSUPPORTED"], 0),
        (["SKIPPED"], 3),
        (["UNSUPPORTED", "SKIPPED"], 3),
        (["PASS", "MISMATCH"], 1),
        (["PASS", "OUT_OF_BOUND"], 1),
        (["PASS", "MISTRUSTED"], 1),
        (["SKIPPED", "ERROR"], 1),
    ],
)
def test_exit_status(verdicts: list[str], status: int) -> None:
    assert exit_status(Verdict(name) for name in verdicts) == status


# --- the real kernels on the executor ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "expand:bf16:m4k416e8t2:rne-ties:seed7@ptx",
        "expand:mxfp8:m9k416e8t2:bytes:layout=8x4:input_sf=128x4:seed7@ptx",
        "mxfp8_quantize:fp16:m4k416:specials:edge=flashinfer:layout=128x4:seed7@ptx",
        "mxfp8_quantize:bf16:m0k416:gaussian:seed7@ptx",
    ],
)
def test_the_kernels_pass_on_the_executor(devices: Devices, text: str) -> None:
    found = run_case(parse_case(text), devices)
    assert (found.verdict, found.first_mismatch, found.reason) == (Verdict.PASS, None, None)
    rows = parse_case(text).shape.m
    assert (found.lane_instructions > 0) == (rows > 0)
    # Without rows and without padding no byte was compared, and the evidence says so.
    assert found.evidence == ("bit-exact" if rows else "none")


@pytest.mark.parametrize("family", ["mxfp8_quantize", "expand"])
def test_a_case_of_the_default_level_makes_ctas_take_several_rows(devices: Devices, family: str) -> None:
    longest = max(list_cases("default", [family], arch="sm_120a"), key=lambda case: case.shape.m)
    found = run_case(longest, devices)
    assert found.verdict is Verdict.PASS
    (launch,) = found.launches
    assert int(launch.split()[1]) < longest.shape.m


def test_processes_give_the_same_results_in_the_same_order(devices: Devices) -> None:
    cases = [case for case in list_cases("quick", arch="sm_120a") if case.family == "mxfp8_quantize"][:9]
    found = list(run_cases(cases, jobs=2))
    assert [one.case for one in found] == cases
    assert {one.verdict for one in found} == {Verdict.PASS}


def test_an_interrupted_worker_ends_and_takes_no_further_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(case: Any, devices: Devices) -> Any:
        raise KeyboardInterrupt

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(runner, "run_case", interrupted)
    monkeypatch.setattr("os._exit", leave)
    with pytest.raises(SystemExit):
        runner._run_chunk([CASE, CASE])
