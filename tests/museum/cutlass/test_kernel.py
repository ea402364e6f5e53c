"""CUTLASS's grouped GEMM as a kernel family: what is asked of it, what is refused, and that what is built is proven."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refmoe import ptx
from refmoe.catalog import list_cases, parse_case, sound_kernel, source_sha256
from refmoe.cuda import open_device, toolchain
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families import FAMILIES
from refmoe.families.family import Case, Expectation, Inputs, Outputs
from refmoe.museum import exhibits
from refmoe.museum.cutlass import Build, CutlassMissing, find_built
from refmoe.museum.cutlass import kernel as cutlass
from refmoe.museum.cutlass.builds import SOURCE, STANDIN
from refmoe.museum.cutlass.faults import (
    CUTLASS_FAULTS,
    CutlassFault,
    Edit,
    EditError,
    faults_missing,
)
from refmoe.museum.cutlass.headers import PYPI_REQUIREMENT, PYPI_SHA256, Headers, find_headers
from refmoe.museum.cutlass.kernel import BENCH_SHAPE, CUTLASS_GEMM, Cutlass
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import FaultResult, plant_faults
from refmoe.verify.runner import run_case
from refmoe.verify.source import host_modules
from refmoe.verify.verdict import Result, Verdict

CASE = "cutlass_gemm:bf16:m7k384n136e3:wide-range:alpha=distinct:seed7@ptx.sm_121a"


def _built() -> bool:
    try:
        return find_built(Build()) is not None
    except (CutlassMissing, toolchain.ToolchainError):
        return False


pytestmark = pytest.mark.skipif(
    all(candidate.problem for candidate in toolchain.candidates()), reason="no usable nvcc on this machine"
)
needs_build = pytest.mark.skipif(not _built(), reason="not built: make cutlass")


def run(case: Case, devices: Devices | None = None) -> Result:
    return run_case(Cutlass(CUTLASS_GEMM, devices or Devices()), case)


def our_case(case: Case) -> Case:
    """The case of our own GEMM with the same data."""
    options = {option.name: case.get(option.name) for option in CUTLASS_GEMM.options if not option.launch}
    place = {"device": case.device, "arch": case.arch}
    return FAMILIES["sm12x_gemm"].case(case.fill, case.shape, case.dtype, case.seed, **place, **options)


# What is asked


def test_it_is_an_exhibit_of_the_museum() -> None:
    assert exhibits()["cutlass_gemm"].family is CUTLASS_GEMM
    assert CUTLASS_GEMM.base == "sm12x_gemm"


def test_inputs_and_fills_are_those_of_our_gemm() -> None:
    case = parse_case(CASE)
    theirs, mine = case.family.inputs(case), our_case(case).family.inputs(our_case(case))
    assert CUTLASS_GEMM.fills is FAMILIES["sm12x_gemm"].fills
    assert theirs.keys() == mine.keys()
    for name, array in theirs.items():
        other = mine[name]
        assert (array is None and other is None) or (array is not None and array.tobytes() == other.tobytes())  # type: ignore[union-attr]


def test_both_kernels_are_held_against_the_same_bytes() -> None:
    case = parse_case(CASE.replace("wide-range", "integer"))
    ours = our_case(case)
    expected = case.family.expect(case, case.family.inputs(case))
    reference = ours.family.expect(ours, ours.family.inputs(ours))
    assert [stage.name for stage in expected.stages] == ["out", "out-as-int64"]
    assert list(expected.outputs) == ["out", "out-as-int64"]
    # The second answer is one to the same buffer, by other arithmetic.
    assert expected.answers["out-as-int64"] == "out"
    assert {name: bits.tobytes() for name, bits in expected.outputs.items()} == {
        name: bits.tobytes() for name, bits in reference.outputs.items()
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "f32"}, "dtype: found f32; needed bf16"),
        ({"bias": "distinct"}, "bias: found distinct; needed none"),
        ({"tile": "128x8x128"}, "tile: found 128x8x128, of which CUTLASS 4.2 says: asserts N >= 32"),
        ({"tile": "128x128x64"}, "tile: found 128x128x64"),
        ({"arch": "sm_90a"}, "arch: found sm_90a"),
    ],
)
def test_what_no_build_serves_is_refused_in_a_sentence(change: dict[str, Any], words: str) -> None:
    case = parse_case(CASE).having(**change)
    with pytest.raises(ArgumentError) as caught:
        cutlass.check_supported(case, case.arch)
    assert words in str(caught.value)


def test_a_k_that_is_no_whole_step_is_unsupported_whether_built_or_not() -> None:
    (listed,) = (case for case in CUTLASS_GEMM.level("quick") if case.shape.k == 416)
    result = run(listed.on("ptx", "sm_121a"))
    assert (result.verdict, result.expected, result.fails) == (Verdict.UNSUPPORTED, True, False)
    assert "K of 416; needed a multiple of 128" in str(result.reason)
    # The list expects it of that case; of another one it is as true, and fails.
    result = run(parse_case(CASE.replace("k384", "k416")))
    assert (result.verdict, result.expected, result.fails) == (Verdict.UNSUPPORTED, False, True)


@needs_build
def test_every_refusal_that_the_list_expects_is_given_in_its_words() -> None:
    refusals = CUTLASS_GEMM.refusals
    assert len(refusals) == 5
    for case, words in refusals.items():
        result = run(case.on("ptx", "sm_121a"))
        assert (result.verdict, result.expected) == (Verdict.UNSUPPORTED, True), result.line
        assert words in str(result.reason)


def test_on_an_arch_that_cutlass_has_no_such_kernel_for_every_case_is_refused() -> None:
    result = run(parse_case(CASE.replace("sm_121a", "sm_90a")))
    assert (result.verdict, result.expected) == (Verdict.UNSUPPORTED, True)
    assert "CUTLASS has this kernel only for SM12x" in str(result.reason)


def test_a_case_whose_build_is_missing_is_skipped_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refmoe.museum.cutlass.kernel.find_built", lambda build: None)
    result = run(parse_case(CASE))
    assert (result.verdict, result.reason) == (Verdict.SKIPPED, "not built: make cutlass")
    other = run(parse_case(CASE.replace("alpha", "build=pingpong-swapped:alpha")))
    assert (other.verdict, other.reason) == (Verdict.SKIPPED, "not built: make cutlass CUTLASS_BUILDS=all")


def test_without_headers_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFMOE_CUTLASS_DIR", "/nowhere")
    result = run(parse_case(CASE))
    assert result.verdict is Verdict.SKIPPED
    assert str(result.reason).startswith("not built: make cutlass (REFMOE_CUTLASS_DIR is /nowhere")


# The case list


@pytest.mark.parametrize("level", ["quick", "default", "full"])
def test_a_level_holds_the_ones_before_and_every_case_is_its_string(level: str) -> None:
    listed = list_cases(level, ["cutlass_gemm"], arch="sm_121a")
    assert len(set(listed)) == len(listed)
    assert all(parse_case(str(case)) == case for case in listed)


def test_the_list_has_empty_experts_tails_many_groups_alpha_and_poison() -> None:
    listed = list_cases("default", ["cutlass_gemm"], arch="sm_121a")
    listed = [case for case in listed if case.build.startswith("coop") and not case.refusal]
    offsets = [np.asarray(case.family.inputs(case)["offsets"]) for case in listed if case.shape.m]
    assert any((np.diff(found) == 0).any() and found[-1] for found in offsets)
    assert any(case.shape.n % 128 for case in listed)
    assert {2816, 2944} <= {case.shape.k for case in listed}
    assert max(case.shape.e for case in listed) > 32
    assert {case.alpha for case in listed} == {"none", "distinct"}
    assert {case.poison for case in listed} >= {0xFF, 0x7F}
    # Rows of another rank lie behind those of this one, and some of this one's are there.
    (elsewhere,) = [case for case in listed if case.ranks > 1]
    found = np.asarray(elsewhere.family.inputs(elsewhere)["offsets"])
    assert 0 < found[-1] < elsewhere.shape.m


def test_the_big_case_is_full_and_one_of_its_experts_is_empty() -> None:
    default = {case.shape for case in CUTLASS_GEMM.level("default")}
    big = [case for case in CUTLASS_GEMM.level("full") if case.shape == BENCH_SHAPE]
    assert BENCH_SHAPE not in default
    assert len({case.build for case in big}) == 4
    # Where rows go depends on neither N nor K.
    small = big[0].having(shape=dataclasses.replace(BENCH_SHAPE, n=8, k=128))
    counts = np.diff(np.asarray(CUTLASS_GEMM.inputs(small)["offsets"]))
    assert (counts == 0).sum() == 1


def test_there_is_nothing_for_sm_90a() -> None:
    assert list_cases("full", ["cutlass_gemm"], arch="sm_90a") == []


# What a hash vouches for


@pytest.mark.parametrize("name", ["grouped_gemm.cu", "runtime_standin.cpp", "tensor_map.hpp", "exports.map"])
def test_the_hash_is_of_our_instantiation_and_the_stand_in(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = source_sha256("cutlass_gemm")
    assert before != source_sha256("sm12x_gemm")
    copy = tmp_path / "csrc"
    shutil.copytree(SOURCE.parent, copy)
    monkeypatch.setattr(cutlass, "SOURCE", copy / SOURCE.name)
    monkeypatch.setattr(cutlass, "STANDIN", tuple(copy / path.name for path in STANDIN))
    assert cutlass._sha256.__wrapped__() == before
    file = copy / name
    file.write_text(file.read_text() + "\nint added;\n")
    assert cutlass._sha256.__wrapped__() != before
    # Our own device code is not in it.
    assert not any(
        file.name in ("gemm.cu", "gemm.cuh")
        for source in (SOURCE, *STANDIN)
        for file in toolchain.with_includes(source)
    )


def test_the_hash_is_of_the_headers_where_there_are_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without() -> Any:
        raise CutlassMissing("none")

    monkeypatch.setattr(cutlass, "find_headers", without)
    absent = cutlass._sha256.__wrapped__()
    version = tuple(int(part) for part in PYPI_REQUIREMENT.partition("==")[2].split(".")[:3])
    tested = Headers(tmp_path, "nvidia-cutlass", version)  # type: ignore[arg-type]
    monkeypatch.setattr(cutlass, "find_headers", lambda: tested)
    # A tree of that version in which there is something else, or nothing, is not what ran.
    assert cutlass._sha256.__wrapped__() != absent
    monkeypatch.setattr(Headers, "sha256", PYPI_SHA256)
    assert cutlass._sha256.__wrapped__() == absent


def test_the_headers_of_the_release_are_those_that_reports_vouch_for() -> None:
    try:
        headers = find_headers()
    except CutlassMissing as error:
        pytest.skip(str(error))
    if headers.origin != "nvidia-cutlass" or ".".join(map(str, headers.version)) not in PYPI_REQUIREMENT:
        pytest.skip(f"the headers here are of {headers.origin}")
    assert headers.sha256 == PYPI_SHA256


def test_what_makes_a_problem_of_a_case_is_in_the_hash() -> None:
    assert {cutlass.build_of.__module__, cutlass.operands.__module__} <= set(
        host_modules(["refmoe.museum.cutlass.gemm"])
    )


# The kernel


@needs_build
@pytest.mark.parametrize(
    "text",
    [
        "m0k128n72e2:gaussian:seed7",  # nothing to do
        "m1k128n8e1:one-hot-tokens:seed7",  # the least of everything
        "m5k256n72e2:gaussian:first_expert=2:ranks=2:seed9",
    ],
)
def test_the_unmodified_kernel_raises_no_alarm_and_gives_the_reference(text: str) -> None:
    result = run(parse_case(f"cutlass_gemm:bf16:{text}@ptx.sm_121a"))
    assert result.verdict is Verdict.PASS, result.line
    assert result.evidence == "bit-exact" or "m0" in text


@needs_build
def test_the_result_says_what_was_built_what_ran_and_what_was_only_compiled() -> None:
    result = run(parse_case(CASE), Devices(multiprocessors=2))
    assert result.launches == ("cutlass/grouped_gemm 2 x 384",)
    made_of = str(result.made_of)
    assert made_of.startswith("CUTLASS 4.")
    assert "its PTX and its host code were executed" in made_of
    assert "cubin" in made_of


@needs_build
def test_a_changed_bit_of_its_output_is_found() -> None:
    class Spoiled(Cutlass):
        def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
            outputs = {name: bits.copy() for name, bits in super().run(case, inputs, expected, place).items()}
            outputs["out"][1, 2] ^= 1
            return outputs

    result = run_case(Spoiled(CUTLASS_GEMM, Devices(multiprocessors=2)), parse_case(CASE))
    assert (result.verdict, result.stage) == (Verdict.MISMATCH, "out")
    assert str(result.first_mismatch).startswith("out[1, 2]  token 1 of expert 0, weight row 2")


class Recording(Kernel):
    """A kernel whose outputs are kept."""

    def run(self, case: Case, inputs: Inputs, expected: Expectation, place: Any) -> Outputs:
        self.found = super().run(case, inputs, expected, place)
        return self.found


class RecordingCutlass(Recording, Cutlass):
    pass


@needs_build
@pytest.mark.parametrize(
    "case",
    [
        case.on("ptx", "sm_121a")
        for case in CUTLASS_GEMM.level("default")
        if case.build == CUTLASS_GEMM.option("build").default and not case.refusal
    ],
    ids=str,
)
def test_ours_gives_the_same_bytes_on_every_case_of_a_build(case: Case, devices: Devices) -> None:
    """CUTLASS's GEMM and ours on the same inputs: each against the reference, and each other's bytes."""
    theirs, ours = RecordingCutlass(CUTLASS_GEMM, devices), Recording(FAMILIES["sm12x_gemm"], devices)
    results = run_case(theirs, case), run_case(ours, our_case(case))
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.PASS], results[0].line + results[1].line
    assert {result.evidence for result in results} == {"bit-exact"}
    assert results[0].input_sha256 == results[1].input_sha256
    assert "cutlass" in results[0].launches[0]
    assert results[1].launches[0].startswith("refmoe_sm12x_gemm_")
    assert theirs.found["out"].tobytes() == ours.found["out"].tobytes()
    assert theirs.found["out"].size == case.shape.m * case.shape.n


@needs_build
def test_the_trace_of_a_tile_shows_producer_and_consumers() -> None:
    trace = ptx.Trace(block=(0, 0, 0))
    case = parse_case("cutlass_gemm:bf16:m9k640n128e1:gaussian:seed7@ptx.sm_121a")
    assert run(case, Devices(trace=trace, multiprocessors=1)).verdict is Verdict.PASS
    assert "cutlass" in trace.entries[0]
    events = trace.of(launch=0)
    producer, consumers = 0, set(range(4, 12))
    # A stage is full when the bytes that the producer announces there have landed.
    full = {e.barrier for e in events if e.kind == "expect" and e.warp == producer}
    passed = [e for e in events if e.kind == "pass" and e.warp == producer]
    assert len(full) == 2  # stages
    waits = {e.warp for e in events if e.barrier in full and e.kind in ("park", "pass")}
    assert waits == consumers
    assert sum(e.kind == "phase" and e.barrier in full for e in events) == case.shape.k // 128
    # It is empty when every thread of the consumers has given it back; there the producer waits.
    empty = {
        e.barrier
        for e in events
        if e.kind == "arrive" and e.warp in consumers and e.barrier in {p.barrier for p in passed}
    }
    arrived = {e.warp for e in events if e.barrier in empty and e.kind == "arrive"}
    counts = {e.barrier: e.amount for e in events if e.kind == "init"}
    assert {counts[name] for name in full} == {1}
    assert arrived >= consumers
    assert any(e.kind == "park" and e.warp == producer and e.barrier in empty for e in events)
    # And the bytes of every copy reach the barrier that was told to expect them.
    expected = sum(e.amount for e in events if e.kind == "expect" and e.barrier in full)
    completed = sum(e.amount for e in events if e.kind == "complete" and e.barrier in full)
    assert expected == completed > 0


@needs_build
def test_no_product_of_the_kernel_can_be_fused_with_a_sum(tmp_path: Path) -> None:
    built = find_built(Build())
    assert built is not None
    cutlass.check_contraction(built.ptx)
    text = built.ptx.read_text()
    assert "mul.f32" in text
    changed = tmp_path / "changed.ptx"
    changed.write_text(text.replace("mul.f32", "add.f32", 1))
    with pytest.raises(RefmoeError, match=r"has 1 add\.f32"):
        cutlass.check_contraction(changed)


# Faults


def test_an_edit_must_match_as_often_as_it_says() -> None:
    edit = Edit(r"(a)b", r"\1", number=2, of=3)
    assert edit("ab ab ab") == "ab a ab"
    for text in ("ab ab", "ab ab ab ab", ""):
        with pytest.raises(EditError, match="needed 3"):
            edit(text)
    with pytest.raises(EditError, match="changes nothing"):
        Edit("a", "a")("a")


def test_every_fault_has_a_name_and_one_place() -> None:
    assert len({fault.name for fault in CUTLASS_FAULTS}) == len(CUTLASS_FAULTS) == 25
    for fault in CUTLASS_FAULTS:
        assert sum(part is not None for part in (fault.edit, fault.given, fault.launched)) == 1
        assert fault.cases() == [parse_case(fault.case)]
        assert parse_case(fault.case).family is CUTLASS_GEMM
        assert pickle.loads(pickle.dumps(fault)) is fault  # a worker process is sent its name


@pytest.mark.parametrize(
    ("verdict", "finding", "check"),
    [
        (Verdict.MISMATCH, "out[0, 0] ...", "bytes"),
        (Verdict.ERROR, "RaceError: write-read race on ...", "race"),
        (Verdict.ERROR, "MemoryFault: uninitialised: shared read of ...", "uninitialised"),
        (Verdict.ERROR, "MemoryFault: out of bounds: global read of ...", "out of bounds"),
        (Verdict.ERROR, "Deadlock: no lane can run:\n  barrier ...", "deadlock"),
        (Verdict.ERROR, "MisuseError: block ...", "misuse"),
        (Verdict.ERROR, "WarpError: block ...", "WarpError"),
    ],
)
def test_the_check_that_caught_a_fault_is_named(verdict: Verdict, finding: str, check: str) -> None:
    result = FaultResult("name", "fault", "kind", "case", verdict, finding, 1, True)
    assert result.check == check
    assert f"[{check}]" in result.line


@needs_build
def test_an_edit_that_does_not_fit_is_an_error_and_no_survivor() -> None:
    nowhere = CutlassFault("nowhere", "nothing", "none", Edit("no such instruction", ""))
    with pytest.raises(EditError, match="mutant nowhere: the text has 0 places"):
        next(plant_faults([nowhere], sound_kernel))


@needs_build
def test_every_edit_fits_the_kernel() -> None:
    built = find_built(Build())
    assert built is not None
    text = built.ptx.read_text()
    changed = [fault.edit(text) for fault in CUTLASS_FAULTS if fault.edit is not None]
    assert len(set(changed)) == len(changed)


#: One of each class of check, and faults whose output stays right.
SHOWN = {
    "release-dropped": "deadlock",
    "full-wait-dropped": "uninitialised",
    "setup-barrier-dropped": "race",
    "map-not-acquired": "misuse",
    "tokens-not-swizzled": "bytes",
    "shared-memory-short": "out of bounds",
}


@needs_build
def test_faults_are_caught_by_the_check_that_is_meant_for_them() -> None:
    chosen = [fault for fault in CUTLASS_FAULTS if fault.name in SHOWN]
    results = {result.name: result for result in plant_faults(chosen, sound_kernel)}
    assert results.keys() == SHOWN.keys()
    for name, result in results.items():
        assert result.caught, result.line
        assert result.check == SHOWN[name]
    # The output stays right, so that no tolerance could have told.
    assert results["map-not-acquired"].accepted_by == results["setup-barrier-dropped"].accepted_by
    assert results["map-not-acquired"].accepted_by


@needs_build
@pytest.mark.slow
@pytest.mark.parametrize("fault", CUTLASS_FAULTS, ids=[fault.name for fault in CUTLASS_FAULTS])
def test_every_fault_is_caught(fault: CutlassFault) -> None:
    (result,) = plant_faults([fault], sound_kernel)
    assert result.caught, result.line


def test_without_a_build_the_reason_why_no_fault_is_planted_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refmoe.museum.cutlass.kernel.find_built", lambda build: None)
    assert faults_missing() == "not built: make cutlass"
    assert exhibits()["cutlass_gemm"].faults_missing() == "not built: make cutlass"


def test_a_device_takes_the_multiprocessors_that_it_is_told() -> None:
    case = parse_case(CASE)
    assert Devices(multiprocessors=3).get(case).multiprocessors == 3
    assert Devices().get(case).multiprocessors == open_device("ptx", "sm_121a").multiprocessors
