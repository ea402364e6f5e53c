"""Mutants of real kernels, tried on a few cases: each outcome that a mutant may have."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from refmoe import catalog as present
from refmoe import ptx as executor
from refmoe.catalog import list_cases, parse_case
from refmoe.cli import app
from refmoe.cli.mutate import asked
from refmoe.cuda.moe.launches import LayerOptions
from refmoe.cuda.toolchain import CSRC
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.extents import geometry
from refmoe.families.family import Case
from refmoe.mutation import cuda, host, ptx, reach, trial
from refmoe.mutation.document import mutation_document
from refmoe.mutation.entries import (
    DoesNotBuild,
    compiled_entries,
    entry_texts,
    machine_code_sha256,
    on_one_arch,
    same_machine_code,
    sound_entries,
    sound_text,
)
from refmoe.mutation.forked import NoAnswer, forked
from refmoe.mutation.proofs.differences import proof
from refmoe.mutation.proofs.equality import proof_of_same_kernel
from refmoe.mutation.reach import Reach
from refmoe.mutation.site import Edit, Site, sites_of
from refmoe.mutation.trial import Catalogue, Tried, attempt
from refmoe.reports.gate import check_reports
from refmoe.reports.mutation import EVERY_VALUE, contradictions
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.runner import run_case
from refmoe.verify.verdict import Verdict

CASES = (
    "mxfp8_quantize:bf16:m5k2880:fingerprint:layout=128x4:seed7@ptx",
    "mxfp8_quantize:bf16:m5k2880:fingerprint:layout=8x4:seed7@ptx",
)
ENTRY = ("quantize", "refmoe_mxfp8_quantize_bf16_rceil_exact_128x4", "sm_120a")


@pytest.fixture(scope="module")
def measured() -> list[Reach]:
    devices = Devices()
    return [reach._measured(parse_case(case), devices) for case in CASES]


@pytest.fixture
def catalogue(measured: list[Reach], monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    cases: dict[str, Case] = {str(parse_case(case)): parse_case(case) for case in CASES}
    monkeypatch.setattr(trial, "default_cases", lambda: cases)
    return Catalogue(measured)


def tried(site: Site, catalogue: Catalogue) -> Tried:
    """The outcome of a trial in a process of its own, as a sweep makes it."""

    def answer(sending: Connection) -> None:
        sending.send(attempt(site, catalogue))

    context = get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(sending,))
    process.start()
    found = receiving.recv()
    process.join()
    assert isinstance(found, Tried)
    return found


def source_site(file: str, before: str, after: str) -> Site:
    text = (CSRC / file).read_text()
    assert text.count(before) == 1
    start = text.index(before)
    edits = [Edit("test", start, start + len(before), after)]
    return next(sites_of("cuda", file.partition(".")[0], file, text, edits))


def test_what_a_case_reaches_is_its_entries_and_its_lines_of_host_code(measured: list[Reach]) -> None:
    assert measured[0].entries == {ENTRY}
    assert measured[0].cost > 100_000
    text = (reach.HOST / "quantize.py").read_text().splitlines()
    run = {text[line - 1].strip() for file, line in measured[0].lines if file == "quantize.py"}
    assert 'source = device.upload("x", x)' in run
    assert not any(file.endswith("routing.py") for file, _ in measured[0].lines)


def test_a_mutant_of_a_header_is_caught_by_bytes(catalogue: Catalogue) -> None:
    found = tried(source_site("mxfp8_encode.cuh", "kE4m3Emax = 8;", "kE4m3Emax = 7;"), catalogue)
    assert (found.outcome, found.check, found.case) == ("caught", "bytes", CASES[0])


@pytest.mark.slow
def test_estimates_that_a_certificate_counts_catch_nothing() -> None:
    """The texts of a trial have no lines of source, by which parity knows where an approximation stands."""
    counted = next(name for name in reach.default_cases() if name.startswith("activation:bf16:m80k544e80:bracketed"))
    assert trial.warm.__wrapped__(counted) is Verdict.PASS


def test_a_case_that_the_sound_kernels_fail_is_no_case_for_mutants(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = next(name for name in reach.default_cases() if name.startswith("activation:bf16:m80k544e80:bracketed"))
    monkeypatch.setattr(trial, "COUNTED", frozenset())
    with pytest.raises(RefmoeError, match="the kernels as they are fail this case by approximate instructions"):
        trial.warm.__wrapped__(counted)


def test_a_mutant_that_loops_forever_is_caught(catalogue: Catalogue) -> None:
    (site,) = [s for s in cuda.sites("quantize.cu") if s.before == "row += gridDim.x" or s.before == "gridDim"][:1]
    found = tried(replace(site, after="0 * gridDim"), catalogue)
    assert found.outcome in ("caught", "timed out")
    assert found.check in ("endless", "time")


@pytest.mark.slow
def test_a_mutant_that_changes_no_code_is_equivalent_by_its_ptx(catalogue: Catalogue) -> None:
    found = tried(
        source_site("mxfp8_encode.cuh", "kFloatMantissaBits = 23;", "kFloatMantissaBits = 22 + 1;"), catalogue
    )
    assert (found.outcome, found.check) == ("equivalent", "PTX")


def test_a_mutant_that_does_not_build_is_none(catalogue: Catalogue) -> None:
    found = tried(source_site("mxfp8_encode.cuh", "kE4m3Emax = 8;", "kE4m3Emax = word;"), catalogue)
    assert found.outcome == "does not build"
    assert 'identifier "word" is undefined' in (found.finding or "")


def test_a_mutant_of_an_entry_that_no_case_launches_survives_without_a_case(catalogue: Catalogue) -> None:
    key = (ENTRY[0], ENTRY[1].replace("bf16", "fp16"), ENTRY[2])
    site = next(s for s in ptx.sites(key) if s.operator == "guard")
    found = tried(site, catalogue)
    assert (found.outcome, found.reached, found.cases) == ("survived", 0, 0)


def test_ptx_mutants_are_caught_and_those_of_the_same_machine_code_are_equivalent(catalogue: Catalogue) -> None:
    sites = list(ptx.sites(ENTRY))
    dropped = next(s for s in sites if s.operator == "dropped-instruction" and s.before.startswith("st.global"))
    assert tried(dropped, catalogue).outcome == "caught"
    # 16 bits without a sign are the same number in 32 bits with one and without.
    same = next(s for s in sites if (s.before, s.after) == ("cvt.u32.u16", "cvt.s32.u16"))
    found = tried(same, catalogue)
    assert (found.outcome, found.check, found.cases) == ("equivalent", "SASS", 1)


def test_a_survivor_may_be_proven_to_be_the_same_kernel(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first lane of each eight stores a word of four scales.
    site = next(s for s in ptx.sites(ENTRY) if s.operator == "shuffle" and proof(s, sound_text(ENTRY)))
    found = tried(site, catalogue)
    assert (found.outcome, found.check, found.case, found.cases) == ("equivalent", "proof", None, 1)
    assert "lane by lane" in (found.finding or "")
    # A proof takes something of launches for granted. So it says nothing of a kernel that is launched otherwise.
    monkeypatch.setattr(trial, "sound", lambda plan, text: False)
    assert tried(site, catalogue).outcome == "survived"


@pytest.mark.parametrize("seconds", [0.0, 8.0])
def test_a_proof_that_takes_too_long_is_none(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    site = next(s for s in ptx.sites(ENTRY) if s.operator == "shuffle" and proof(s, sound_text(ENTRY)))
    monkeypatch.setattr(trial, "proof", lambda site, text: time.sleep(600))
    monkeypatch.setattr(trial, "PROOF_SECONDS", seconds)
    found = tried(site, catalogue)
    assert (found.outcome, found.check, found.case) == ("survived", None, None)


def test_a_survivor_may_be_tried_on_every_value(catalogue: Catalogue) -> None:
    """A product by a power of two is exact, but below 2^-126, where every code is that of a zero."""
    product = next(s for s in ptx.sites(ENTRY) if (s.before, s.after) == ("mul.rn.f32", "mul.rz.f32"))
    found = tried(product, catalogue)
    assert (found.outcome, found.check, found.case) == ("equivalent", EVERY_VALUE, None)
    # A BF16 number, one of two choices, and an exponent.
    assert [run["inputs"] for run in found.runs] == [1 << 26]
    assert {part["mask"] for part in found.runs[0]["domain"]} >= {"0xffff0000"}
    made = mutation_document([found], of=9, seed=7, command="refmoe mutate", seconds=1.0, reasons={})
    assert not list(contradictions(json.loads(json.dumps(made))))
    wrong = next(s for s in ptx.sites(ENTRY) if (s.before, s.after) == ("mul.rn.f32", "mul.rn.sat.f32"))
    assert proof_of_same_kernel(sound_text(ENTRY), wrong.applied(sound_text(ENTRY))) is None
    assert tried(wrong, catalogue).outcome == "caught"


def test_ptx_that_the_assembler_refuses_is_no_mutant(catalogue: Catalogue) -> None:
    site = next(s for s in ptx.sites(ENTRY) if s.operator == "modifier" and "satfinite" in s.before)
    assert tried(site, catalogue).outcome == "does not build"


def test_host_mutants_take_the_place_of_the_real_code_in_their_process_alone(catalogue: Catalogue) -> None:
    sites = list(host.sites("quantize.py"))
    swapped = next(s for s in sites if s.before == "rows, k // LANE_ELEMENTS")
    assert tried(swapped, catalogue).outcome == "caught"
    text = next(s for s in host.sites("launch.py") if s.before == "16" and s.after == "17")  # LANE_ELEMENTS
    assert tried(text, catalogue).outcome == "caught"
    for case in map(parse_case, CASES):
        assert run_case(Kernel(case.family, Devices()), case).verdict is Verdict.PASS


@pytest.mark.parametrize("file", host.files())
def test_a_module_of_host_code_may_be_run_again(file: str) -> None:
    # Else none of its mutants could be tried, and each would count as one that does not build.
    assert forked(lambda: host.put_in_place(file, (reach.HOST / file).read_text(encoding="utf-8")), 60) is None


def test_nothing_is_said_of_a_mutant_whose_module_runs_only_once(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def registered(file: str, text: str) -> None:
        raise RuntimeError("registered already")

    site = next(iter(host.sites("quantize.py")))
    monkeypatch.setattr(host, "put_in_place", registered)
    with pytest.raises(NoAnswer):
        forked(lambda: attempt(site, catalogue), 60)


@pytest.mark.slow
def test_a_mutant_of_a_default_of_a_class_takes_its_place() -> None:
    """Whoever makes an object without naming the field gets the mutant's value; in the process of the trial alone."""
    site = next(s for s in host.sites("moe/launches.py") if (s.operator, s.before) == ("dtype", '"bf16"'))
    text = (reach.HOST / site.file).read_text(encoding="utf-8")
    assert text.splitlines()[site.line - 1].strip() == 'dtype: str = "bf16"'

    def made() -> str:
        host.put_in_place(site.file, site.applied(text))
        return LayerOptions().dtype

    assert forked(made, 60) == "fp16"
    assert LayerOptions().dtype == "bf16"


def test_calls_to_be_refused_come_first_where_a_check_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = "block_fp8_quantize:bf16:m2k64:gaussian:seed7@ptx"
    refused = "block_fp8_quantize:bf16:m2k64:gaussian:wrong=scales-word:seed7@ptx"
    monkeypatch.setattr(trial, "default_cases", lambda: {text: parse_case(text) for text in (sound, refused)})
    every = frozenset(("block_fp8.py", line) for line in range(1000))
    known = Catalogue([Reach(sound, frozenset(), every, 20_000), Reach(refused, frozenset(), every, 0)])
    sites = list(host.sites("block_fp8.py"))
    check = next(site for site in sites if site.operator == "dropped-check")
    swap = next(site for site in sites if site.operator == "swapped-arguments")
    assert [each.case for each in known.of_site(check)] == [refused, sound]
    assert [each.case for each in known.of_site(swap)] == [sound, refused]


def test_what_a_case_reaches_is_measured_without_a_tracer_in_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    execute = executor.launch

    def launch(*given: Any, **named: Any) -> Any:
        seen.append(sys.gettrace())
        return execute(*given, **named)

    monkeypatch.setattr(executor, "launch", launch)
    before = sys.gettrace()
    found = reach._measured(parse_case(CASES[0]), Devices())
    assert seen == [None]
    assert sys.gettrace() is before
    assert executor.launch is launch
    text = (reach.HOST / "quantize.py").read_text(encoding="utf-8").splitlines()
    behind = next(number for number, line in enumerate(text, 1) if "return Quantized(" in line)
    assert ("quantize.py", behind) in found.lines


def test_what_the_executor_warns_of_catches_a_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two CTAs that both do the work of one store the same values: the bytes are right, and PTX forbids it."""
    case = parse_case("routing:f32:m3e1t1:gaussian:poison=0x7F:seed7@ptx")
    # The launch itself is none that is documented, which is seen before it runs.
    monkeypatch.setattr(geometry, "GEOMETRIES", {})
    monkeypatch.setattr(trial, "default_cases", lambda: {str(case): case})
    site = next(s for s in host.sites("routing.py") if s.operator == "launch-size" and s.after == "(1) * 2")
    outcome = tried(site, Catalogue([reach._measured(case, Devices())]))
    assert (outcome.outcome, outcome.case, outcome.check) == ("caught", str(case), "warning")
    assert "both write the same bytes" in str(outcome.finding)


@pytest.mark.slow
def test_the_command_tries_a_sample_and_goes_on_where_it_ended(
    catalogue: Catalogue, measured: list[Reach], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reach, "measure", lambda workers, progress: measured)
    partial, report = tmp_path / "partial.jsonl", tmp_path / "report.json"
    asked = ["mutate", "--floor", "cuda", "--kernel", "quantize", "--operator", "relation", "--partial", str(partial)]
    first = CliRunner().invoke(app, [*asked, "--sample", "1", "--json"])
    assert first.exit_code in (0, 1), first.output
    assert json.loads(first.stdout)["sample"]["tried"] == 1
    monkeypatch.setattr(sys, "argv", ["refmoe", *asked, "--sample", "2", "--report", str(report)])
    second = CliRunner().invoke(app, sys.argv[1:])
    assert second.exit_code in (0, 1), second.output
    made = json.loads(report.read_text())
    assert [each["operator"] for each in made["mutants"]] == ["relation"] * 2
    assert [len(line) > 2 for line in partial.read_text().splitlines()] == [True] * 3
    assert "mutants caught" in second.stdout
    sentences = check_reports([report], None, present).refusals
    # Two mutants are too few to commit.
    share = () if made["passed"] else ("of the mutants that can be caught",)
    assert all(any(words in each for words in ("it has 2 mutants", *share)) for each in sentences), sentences


def test_the_command_lists_mutants_of_sources_without_running_a_case() -> None:
    found = CliRunner().invoke(app, ["mutate", "--list", "--floor", "cuda", "--kernel", "warp"])
    assert found.exit_code == 0
    ids = found.stdout.splitlines()
    assert ids
    assert all(name.startswith("cuda:warp:") for name in ids)


def test_an_operator_or_a_kernel_that_there_is_not_is_refused_with_those_that_are() -> None:
    for option in ("--operator", "--kernel", "--mutant"):
        found = CliRunner().invoke(app, ["mutate", "--list", "--floor", "host", option, "nothing"])
        assert isinstance(found.exception, ArgumentError)
        assert "nothing" in str(found.exception)


def test_entries_are_cut_out_whole_and_alone() -> None:
    entries = sound_entries("quantize", "sm_120a")
    assert len(entries) == 24
    for name, text in entries.items():
        assert text.count(".visible .entry") == 1
        assert f".entry {name}(" in text
        assert text.count("{") == text.count("}")
        assert ".loc" not in text
    # Assembly in braces of its own does not end an entry.
    assembly = sound_entries("gemm", "sm_120a")
    assert len(assembly) == 18
    assert all(text.rstrip().endswith("}") and "ret;" in text for text in assembly.values())


def test_a_source_compiled_for_some_entries_gives_the_same_text_of_them() -> None:
    entries = sound_entries("quantize", "sm_120a")
    made = compiled_entries(CSRC, "quantize", "sm_120a", {ENTRY[1]})
    assert made == {ENTRY[1]: entries[ENTRY[1]]}


def test_machine_code_is_that_of_the_chip_and_not_of_names() -> None:
    text = sound_entries("quantize", "sm_120a")[ENTRY[1]]
    assert same_machine_code(text.replace("$L__BB", "$L__CC"), ENTRY)
    assert not same_machine_code(text.replace("mul.rn.f32", "add.rn.f32"), ENTRY)
    with pytest.raises(DoesNotBuild, match="error"):
        machine_code_sha256(text.replace("mul.rn.f32", "mul.up.f32"), "sm_120a")


def test_of_an_entry_that_is_the_same_on_two_archs_one_is_assembled() -> None:
    texts = {("q", "a", arch): f".version 9.0\n.target {arch}\n{body}" for arch, body in
             (("sm_120a", "x"), ("sm_121a", "x"), ("sm_90a", "y"))}  # fmt: skip
    assert {key[2] for key in on_one_arch(texts)} in ({"sm_120a", "sm_90a"}, {"sm_121a", "sm_90a"})


def test_line_tables_and_comments_are_no_code() -> None:
    text = '// head\n.version 9.0\n.visible .entry a(\n)\n{\n\t.loc\t1 2 3\n\tret; // end\n}\n\t.file\t1 "x"\n'
    assert entry_texts(text) == {"a": ".version 9.0\n.visible .entry a(\n)\n{\n\tret;\n}\n"}


def test_a_trial_has_the_multiprocessors_of_its_case() -> None:
    cases = [case for case in list_cases("default", ["sm12x_nvfp4_gemm"]) if case.get("multiprocessors", 0)]
    assert cases
    for case in (cases[0], cases[0].having(multiprocessors=0)):
        found = trial._TrialDevices().get(case).multiprocessors
        assert found == Devices().get(case).multiprocessors
    assert found > 3


def test_a_report_says_what_was_asked_and_not_where_files_lie() -> None:
    words = "mutate --sample 1000 --jobs 2 --partial=/somewhere/m.jsonl --seed 8 --report /elsewhere/m.json --floor ptx"
    assert asked(words.split()) == ["mutate", "--sample", "1000", "--seed", "8", "--floor", "ptx"]
