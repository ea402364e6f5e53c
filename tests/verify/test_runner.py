"""From a kernel and a case to a verdict: equality, differences, refusals as claims, failures, what a result says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.findings.plain import ROWS
from support.verify import CASE, StandInDevice, stand_in

from refmoe import ptx
from refmoe.catalog import kernel_of, list_cases, parse_case
from refmoe.cuda import DeviceUnavailable, ToolchainError
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families import FAMILIES
from refmoe.families.family import Case, Expectation, Inputs, Outputs
from refmoe.ptx.schedules import current_schedules, under_schedules
from refmoe.reports.parity import CaseRecord, record_of
from refmoe.verify import runner
from refmoe.verify.kernel import Devices, Kernel, Malformed, Refusal
from refmoe.verify.runner import run_case, run_cases
from refmoe.verify.verdict import Result, Verdict, exit_status


def ran(case: Case = CASE) -> Result:
    return run_case(kernel_of(case, Devices()), case)


def test_an_equal_kernel_passes_and_the_result_says_on_what(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda case, outputs: None)
    found = ran()
    assert (found.verdict, found.evidence, found.stage, found.reason) == (Verdict.PASS, "bit-exact", None, None)
    assert found.compared == 8 * 416 + (8 + 127 * 8 + 127) // 128 * 128 * 16
    assert found.source_sha256 is not None
    assert len(str(found.input_sha256)) == 64
    assert found.repro == "refmoe repro 'expand:bf16:m4k416e8t2:fingerprint:seed7@ptx'"
    assert (found.id, found.kernel, found.device, found.arch) == (str(CASE), None, "ptx", "sm_120a")


@pytest.mark.parametrize(("stage", "index"), [("codes", 0), ("codes", -1), ("scales", 0), ("scales", -1)])
def test_one_changed_byte_anywhere_is_a_mismatch(monkeypatch: pytest.MonkeyPatch, stage: str, index: int) -> None:
    def change(case: Any, outputs: Any) -> None:
        outputs[stage].reshape(-1)[index] ^= 0x80

    stand_in(monkeypatch, change)
    found = ran()
    assert (found.verdict, found.stage) == (Verdict.MISMATCH, stage)
    assert dict(found.differing)[stage] == 1
    assert found.line.startswith(f"MISMATCH {stage}[")


def test_equality_on_data_that_could_not_fail_is_mistrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda case, outputs: None)
    found = ran(_with_constant_input())
    assert found.verdict is Verdict.MISTRUSTED
    assert "zero, more than the" in str(found.reason)


def test_a_difference_on_such_data_is_still_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(case: Any, outputs: Any) -> None:
        outputs["codes"][0, 0] ^= 1

    stand_in(monkeypatch, change)
    assert ran(_with_constant_input()).verdict is Verdict.MISMATCH


def _with_constant_input() -> Case:
    def inputs(case: Case) -> Inputs:
        made = CASE.family.inputs(case)
        return {**made, "x": np.zeros_like(made["x"])}

    return replace(CASE, family=replace(CASE.family, inputs=inputs))


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
    found = ran()
    assert (found.verdict, found.reason, found.evidence) == (verdict, words, "none")
    assert found.fails  # the case list says nothing of a refusal


def test_a_malformed_output_is_a_mismatch_at_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(case: Any, outputs: Any) -> None:
        raise Malformed("scales", "the shapes differ: kernel [3] reference [4]")

    stand_in(monkeypatch, change)
    found = ran()
    assert (found.verdict, found.stage) == (Verdict.MISMATCH, "scales")
    assert found.first_mismatch == "scales: the shapes differ: kernel [3] reference [4]"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kernel_that_gives_nothing_is_a_mismatch(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    stand_in(monkeypatch, lambda case, outputs: outputs.clear())
    found = ran(list_cases("quick", [family], arch="sm_120a")[0])
    assert (found.verdict, found.compared) == (Verdict.MISMATCH, 0)
    assert str(found.first_mismatch).endswith("the kernel gave no such output; it gave none")


def test_a_misspelt_output_is_a_mismatch_at_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda case, outputs: outputs.update(scale=outputs.pop("scales")))
    found = ran()
    assert (found.verdict, found.stage) == (Verdict.MISMATCH, "scales")
    assert found.first_mismatch == "scales: the kernel gave no such output; it gave codes, scale"


@dataclass
class Partial(Kernel):
    """A kernel that leaves outputs out."""

    left: tuple[str, ...] = ()

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        return {name: bits for name, bits in expected.outputs.items() if name not in self.left}

    def leaves_out(self, output: str) -> bool:
        return output in self.left


@dataclass
class Spoiler(Kernel):
    """A kernel that changes what it is compared with, or what it is given."""

    spoil: Callable[[Any, Any], None] = lambda inputs, expected: None

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        self.spoil(inputs, expected)
        return {name: np.zeros_like(bits) for name, bits in expected.outputs.items()}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda inputs, expected: expected.outputs["codes"].fill(0),
        lambda inputs, expected: expected.outputs.update(codes=0),
        lambda inputs, expected: inputs["x"].fill(0),
        lambda inputs, expected: inputs.pop("x"),
    ],
)
def test_a_kernel_cannot_change_what_it_is_given_or_compared_with(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    monkeypatch.setattr(Devices, "get", lambda self, case: StandInDevice())
    with pytest.raises((ValueError, AttributeError)):
        run_case(Spoiler(CASE.family, spoil=spoil), CASE)
    # The problem is kept for the next kernel: it is as it was.
    stand_in(monkeypatch, lambda case, outputs: None)
    assert ran().verdict is Verdict.PASS


def test_an_output_may_be_left_out_but_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Devices, "get", lambda self, case: StandInDevice())
    assert run_case(Partial(CASE.family, left=("scales",)), CASE).verdict is Verdict.PASS
    found = run_case(Partial(CASE.family, left=("codes", "scales")), CASE)
    assert found.verdict is Verdict.MISTRUSTED
    assert "not one byte was compared" in str(found.reason)


def test_a_case_without_outputs_passes_with_nothing_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda case, outputs: None)
    empty = next(case for case in list_cases("full", ["finalize"], arch="sm_120a") if case.shape.m == 0)
    found = ran(empty)
    assert (found.verdict, found.compared) == (Verdict.PASS, 0)


def test_a_defect_of_refmoe_itself_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(case: Any, outputs: Any) -> None:
        raise ZeroDivisionError

    stand_in(monkeypatch, change)
    with pytest.raises(ZeroDivisionError):
        ran()


@pytest.mark.parametrize("error", [DeviceUnavailable("torch sees no CUDA device"), ToolchainError("no usable nvcc")])
def test_a_missing_device_skips_with_its_reason(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def get(self: Devices, case: Any) -> Any:
        raise error

    monkeypatch.setattr(Devices, "get", get)
    found = ran()
    assert (found.verdict, found.reason, found.device, found.arch) == (Verdict.SKIPPED, str(error), "ptx", "sm_120a")


def test_approximate_instructions_are_an_error_even_if_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Outcome:
        approximate = (("ex2.approx.f32", 7),)
        approximate_at = (("expand.cu:3", None),)
        lane_instructions = 5
        warnings = ()

    class Entry:
        source, entry = "expand", "refmoe_expand"

    class Record:
        kernel, grid, block, result = Entry, 1, 32, Outcome

    stand_in(monkeypatch, lambda case, outputs: None)
    run = Kernel.run

    def launching(self: Kernel, case: Any, inputs: Any, expected: Any, place: Any) -> Any:
        place.launches.append(Record)
        return run(self, case, inputs, expected, place)

    monkeypatch.setattr(Kernel, "run", launching)
    found = run_case(Kernel(CASE.family), CASE)
    assert found.verdict is Verdict.ERROR
    assert "ex2.approx.f32" in str(found.reason)


def test_a_result_has_the_launches_of_its_own_case_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Outcome:
        approximate = approximate_at = ()
        lane_instructions = 5
        warnings = ()

    class Entry:
        source, entry = "expand", "refmoe_expand"

    class Record:
        kernel, grid, block, result = Entry, 1, 32, Outcome

    stand_in(monkeypatch, lambda case, outputs: device.launches.append(Record))
    device = StandInDevice(launches=[Record, Record])
    monkeypatch.setattr(Devices, "get", lambda self, case: device)
    found = ran()
    assert (found.verdict, found.launches, found.lane_instructions) == (Verdict.PASS, ("refmoe_expand 1 x 32",), 5)


def test_a_result_has_the_warnings_of_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in ROWS if row.name == "relaxed poll")
    outcome, _ = row.launch(row.text)

    class Entry:
        source, entry = "expand", "refmoe_expand"

    class Record:
        kernel, grid, block, result = Entry, 1, 32, outcome

    def twice(case: Any, outputs: Any) -> None:
        device.launches.extend([Record, Record])

    stand_in(monkeypatch, twice)
    device = StandInDevice(launches=[Record])
    monkeypatch.setattr(Devices, "get", lambda self, case: device)
    found = ran()
    # One a cause, in one line, and no reason to fail.
    (warning,) = found.warnings
    assert found.verdict is Verdict.PASS
    assert not found.fails
    assert "\n" not in warning
    assert warning.startswith("write-read race on byte 0")
    assert warning.endswith("see https://github.com/refmoe/refmoe/blob/main/docs/guides/races.md#release-and-acquire")
    assert f"warning: {warning}" in str(found).splitlines()
    record = record_of(found)
    assert record.warnings == [warning]
    assert CaseRecord.model_validate(record.model_dump(mode="json")) == record


def test_the_hash_of_the_inputs_follows_the_seed_but_not_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda case, outputs: None)
    texts = [str(CASE), str(CASE.on("ptx", "sm_121a")), str(CASE).replace("seed7", "seed8")]
    first, other_arch, other_seed = (ran(parse_case(text)).input_sha256 for text in texts)
    assert first == other_arch != other_seed


# --- refusals are claims ----------------------------------------------------------------------------------------------

LISTED = [case for case in list_cases("quick", arch="sm_120a") if case.refusal]


@dataclass
class Refusing(Kernel):
    """A kernel that takes no case."""

    answer: str = "not today"

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        raise Refusal(self.answer)

    def source_sha256(self) -> str:
        return "0" * 64


def test_the_lists_have_refusals_and_each_says_why() -> None:
    assert {case.family.name for case in LISTED} == {
        *("sm12x_gemm", "sm12x_nvfp4_gemm", "cutlass_gemm", "cute_deepseek_gemm")
    }
    assert all(len(case.refusal.split()) >= 4 for case in LISTED)


def test_a_kernel_that_refuses_everything_fails_every_case(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda case, outputs: None)
    cases = [CASE, *LISTED, parse_case("sm12x_gemm:f32:m5k96n24e3:gaussian:seed7@ptx")]
    results = [run_case(Refusing(case.family), case) for case in cases]
    assert {result.verdict for result in results} == {Verdict.UNSUPPORTED}
    assert all(result.fails and not result.expected for result in results)
    assert exit_status(results) == 1
    assert results[0].line == "UNSUPPORTED not in the case list: not today"


@pytest.mark.parametrize("case", LISTED, ids=str)
def test_a_listed_refusal_with_its_reason_is_expected(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    def refuse(case: Any, outputs: Any) -> None:
        raise ArgumentError("shape", "it", f"another: {reason}, that is why")

    reason = case.refusal
    stand_in(monkeypatch, refuse)
    # What a report or a command line gives is a string, which names the case and not what is expected of it.
    for asked in (case, parse_case(str(case)), case.on("ptx", "sm_121a")):
        found = run_case(kernel_of(asked, Devices()), asked)
        assert (found.verdict, found.expected, found.fails) == (Verdict.UNSUPPORTED, True, False)
        assert not found.line.startswith("UNSUPPORTED not in")
    assert exit_status([found]) == 3  # nothing ran
    assert exit_status([found, replace(found, verdict=Verdict.PASS)]) == 0


@pytest.mark.parametrize("case", LISTED, ids=str)
def test_a_listed_refusal_with_another_reason_fails(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    stand_in(monkeypatch, lambda case, outputs: None)
    found = run_case(Refusing(case.family, answer="out of memory"), case)
    assert (found.verdict, found.expected, found.fails) == (Verdict.UNSUPPORTED, False, True)
    assert exit_status([found]) == 1


@pytest.mark.parametrize("case", LISTED, ids=str)
def test_a_listed_refusal_that_runs_fails(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    stand_in(monkeypatch, lambda case, outputs: None)
    found = ran(case)
    assert (found.verdict, found.fails) == (Verdict.ERROR, True)
    assert case.refusal in str(found.reason)
    assert str(found.reason).endswith("it ran")


def test_our_kernels_refuse_what_the_list_says(devices: Devices) -> None:
    ours = [case for case in LISTED if case.family.name == "sm12x_gemm"]
    results = [run_case(kernel_of(case, devices), case) for case in ours]
    assert {(result.verdict, result.expected) for result in results} == {(Verdict.UNSUPPORTED, True)}
    assert exit_status(results) == 3


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
    """Of refusals that the case list expects; each of any other kind makes it 1."""
    assert exit_status(Result(CASE, Verdict(name), expected=True) for name in verdicts) == status
    if "UNSUPPORTED" in verdicts:
        assert exit_status(Result(CASE, Verdict(name)) for name in verdicts) == 1


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
    case = parse_case(text)
    found = run_case(kernel_of(case, devices), case)
    assert (found.verdict, found.first_mismatch, found.reason) == (Verdict.PASS, None, None)
    rows = case.shape.m
    assert (found.lane_instructions > 0) == (rows > 0)
    # Without rows and without padding no byte was compared, and the evidence says so.
    assert found.evidence == ("bit-exact" if rows else "none")


@pytest.mark.parametrize("family", ["mxfp8_quantize", "expand"])
def test_a_case_of_the_default_level_makes_ctas_take_several_rows(devices: Devices, family: str) -> None:
    longest = max(list_cases("default", [family], arch="sm_120a"), key=lambda case: case.shape.m)
    found = run_case(kernel_of(longest, devices), longest)
    assert found.verdict is Verdict.PASS
    (launch,) = found.launches
    assert int(launch.split()[1]) < longest.shape.m


def test_processes_give_the_same_results_in_the_same_order(devices: Devices) -> None:
    cases = list_cases("quick", ["mxfp8_quantize"], arch="sm_120a")[:9]
    found = list(run_cases(cases, kernel_of, jobs=2))
    assert [one.case for one in found] == cases
    assert {one.verdict for one in found} == {Verdict.PASS}


def test_a_worker_hands_over_what_a_kernel_raised_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(RefmoeError):
        """No other process could read it."""

    def change(case: Any, outputs: Any) -> None:
        raise Local("gone")

    stand_in(monkeypatch, change)
    assert isinstance(ran().error, Local)
    (found,) = runner._run_chunk(kernel_of, [CASE])
    assert (found.verdict, found.reason, found.error) == (Verdict.ERROR, "Local: gone", None)


def depends(case: Any, outputs: Any) -> None:
    raise ptx.ScheduleError("two differ", schedule=7, schedules=(0, 7))


def traps(case: Any, outputs: Any) -> None:
    raise ptx.Trap("a trap", schedule=7)


@pytest.mark.parametrize(
    ("change", "verdict", "options"),
    [
        (depends, Verdict.DEPENDS_ON_SCHEDULE, " --schedules 0,7"),
        (traps, Verdict.ERROR, " --schedules schedule=7"),
        (lambda case, outputs: None, Verdict.PASS, " --schedules 16"),
    ],
)
def test_results_under_several_schedules(
    monkeypatch: pytest.MonkeyPatch, change: Any, verdict: Verdict, options: str
) -> None:
    stand_in(monkeypatch, change)
    (found,) = run_cases([CASE], kernel_of, schedules="16")
    assert (found.verdict, found.schedules) == (verdict, 16)
    assert found.repro == f"refmoe repro '{CASE}'{options}"
    assert found.fails == (verdict is not Verdict.PASS)
    # Afterwards there is one again.
    assert (ran().schedules, len(current_schedules())) == (1, 1)


def test_a_case_may_say_its_schedules() -> None:
    """It is run again by its name alone, and schedules that are asked for go first."""
    case = parse_case("routing:f32:m3e12t3:gaussian:schedules=8:seed7@ptx")
    (found,) = run_cases([case], kernel_of)
    assert (found.verdict, found.schedules) == (Verdict.PASS, 8)
    assert found.repro == f"refmoe repro '{case}'"
    (found,) = run_cases([case], kernel_of, schedules="0,5")
    assert (found.schedules, found.repro) == (2, f"refmoe repro '{case}' --schedules 0,5")


def test_schedules_reach_launches_and_worker_processes() -> None:
    for jobs in (1, 2):
        found = list(run_cases([CASE] * 2, kernel_of, jobs=jobs, schedules="3"))
        assert [(result.verdict, result.schedules) for result in found] == [(Verdict.PASS, 3)] * 2
    device = Devices()
    with under_schedules(3):
        kernel = kernel_of(CASE, device)
        run_case(kernel, CASE)
        records = [record.result.schedules for record in kernel.place(CASE).launches if record.result is not None]
    assert records == [3] * len(records)
    assert records
