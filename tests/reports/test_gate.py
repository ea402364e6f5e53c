from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.verify import CASE, result, write_document

from refmoe import catalog
from refmoe.catalog import parse_case
from refmoe.families import FAMILIES
from refmoe.reports.baseline import read_baseline, write_baseline
from refmoe.reports.checks import NAMED
from refmoe.reports.documents import ReportError, digest_of
from refmoe.reports.gate import check_reports
from refmoe.reports.parity import read_report
from refmoe.verify.verdict import Verdict

OTHER = CASE.on("ptx", "sm_121a")
ON_GPU = CASE.on("cuda")
#: A case of somebody else's kernel, which may not be built here, and one that our kernel has to refuse.
BUILT_ELSEWHERE = parse_case("cutlass_gemm:bf16:m7k384n136e3:wide-range:alpha=distinct:seed7@ptx.sm_121a")
REFUSED, BECAUSE = next(iter(FAMILIES["sm12x_gemm"].refusals.items()))
#: A hash of no source.
STALE = "5a1e" * 16


def refusals(*paths: Path, baseline: Path | None = None) -> list[str]:
    return list(check_reports(list(paths), baseline, catalog).refusals)


def baseline_of(path: Path, *cases: object) -> Path:
    report = write_document(path.parent / "for-baseline" / "x.txt", [result(case) for case in cases])  # type: ignore[arg-type]
    write_baseline(path, [read_report(report)])
    return path


def test_good_reports_pass(tmp_path: Path) -> None:
    write_document(tmp_path / "a.json", [result(), result(OTHER)])
    write_document(tmp_path / "deep" / "b.json", [result(ON_GPU)])
    outcome = check_reports([tmp_path], None, catalog)
    assert outcome.refusals == ()
    assert (len(outcome.reports), outcome.passed) == (2, 3)


@pytest.mark.parametrize(
    ("verdict", "meaning"),
    [
        (Verdict.MISMATCH, "bytes differ"),
        (Verdict.OUT_OF_BOUND, "values differ more than any rounding explains"),
        (Verdict.MISTRUSTED, "equal on data that could not have failed, which proves nothing"),
        (Verdict.ERROR, "the kernel did not run to its end"),
    ],
)
def test_a_bad_verdict_is_refused_with_its_meaning_and_its_repro_line(
    tmp_path: Path, verdict: Verdict, meaning: str
) -> None:
    path = write_document(tmp_path / "a.json", [result(), result(OTHER, verdict, reason="because")])
    where = "codes[0]; " if verdict is Verdict.MISMATCH else ""
    assert refusals(path) == [f"{path}: {verdict.value}, {meaning}: {where}because; run: refmoe repro '{OTHER}'"]


def test_every_failing_verdict_is_refused(tmp_path: Path) -> None:
    for verdict in (verdict for verdict in Verdict if verdict.fails):
        assert refusals(write_document(tmp_path / "a.json", [result(), result(OTHER, verdict, reason="x")]))


def test_of_many_failing_cases_the_first_are_named_and_the_rest_is_counted(tmp_path: Path) -> None:
    cases = [replace(CASE, seed=seed) for seed in range(NAMED + 1200)]
    path = write_document(tmp_path / "a.json", [result(case, Verdict.MISMATCH, first_mismatch="x") for case in cases])
    found = refusals(path)
    assert [sentence.rpartition("run: ")[2] for sentence in found[:-1]] == [
        f"refmoe repro '{case}'" for case in cases[:NAMED]
    ]
    assert found[-1] == (
        f"{path}: 1,200 more cases MISMATCH: 1,200 of expand; see them all: refmoe report {path} --html out/report.html"
    )


def test_skipped_and_unsupported_alone_are_no_failure(tmp_path: Path) -> None:
    path = write_document(
        tmp_path / "a.json",
        [
            result(),
            result(REFUSED, Verdict.UNSUPPORTED, reason=f"x {BECAUSE} y", expected=True),
            result(ON_GPU, Verdict.SKIPPED, reason="no GPU"),
        ],
    )
    assert refusals(path) == []


def test_a_refusal_that_no_case_list_expects_is_refused(tmp_path: Path) -> None:
    refused = result(OTHER, Verdict.UNSUPPORTED, reason="K above 2048", expected=False)
    path = write_document(tmp_path / "a.json", [result(), refused])
    meaning = "a refusal that the case list does not expect"
    assert refusals(path) == [f"{path}: UNSUPPORTED, {meaning}: K above 2048; run: refmoe repro '{OTHER}'"]


def test_a_report_in_which_nothing_ran_is_refused(tmp_path: Path) -> None:
    path = write_document(tmp_path / "a.json", [result(verdict=Verdict.SKIPPED, reason="no usable nvcc")])
    assert refusals(path) == [f"{path}: no case ran: SKIPPED: no usable nvcc"]


def test_an_empty_report_is_refused(tmp_path: Path) -> None:
    path = write_document(tmp_path / "a.json", [])
    assert refusals(path) == [f"{path}: an empty report: it holds no case, so it proves nothing"]


def test_an_edited_report_is_refused(tmp_path: Path) -> None:
    path = write_document(tmp_path / "a.json", [result(verdict=Verdict.MISMATCH)])
    path.write_text(path.read_text().replace("MISMATCH", "PASS"))
    (sentence,) = refusals(path)
    assert "edited after it was made" in sentence


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    (sentence,) = refusals(write_document(tmp_path / "a.json", [result()], schema_version="99"))
    assert "schema version 99;" in sentence


@pytest.mark.parametrize(
    "content", ["", "words", "[]", "{}", '{"kind": "bench"}', '{"kind": "bench", "name": "x", "rows": []}']
)
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    (sentence,) = refusals(tmp_path)
    assert str(tmp_path / "a.json") in sentence


@pytest.mark.parametrize("number", ["NaN", "1e999", '"\\ud800"', "9" * 5000])
def test_what_json_has_no_word_for_is_refused(tmp_path: Path, number: str) -> None:
    for kind in ("parity", "conformance", "stress", "drift"):
        keys = '"schema_version": "1", "cases": [], "runs": [], "dependent": [], "passed": true'
        (tmp_path / "a.json").write_text(f'{{"kind": "{kind}", {keys}, "seconds": {number}}}')
        (sentence,) = refusals(tmp_path)
        assert any(words in sentence for words in ("edited after it was made", "no JSON", "has no "))


def test_a_document_that_lacks_what_its_kind_has_is_refused(tmp_path: Path) -> None:
    document = {"kind": "drift", "schema_version": "1", "runs": [{}], "dependent": [], "passed": True}
    (tmp_path / "a.json").write_text(json.dumps({**document, "digest": digest_of(document)}))
    (sentence,) = refusals(tmp_path)
    assert sentence.endswith("a.json: says that it is of kind drift, but has no base; run `refmoe drift` again")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reports" / "folder.json").mkdir(parents=True)
    (tmp_path / "latin.json").write_bytes(b'{"kind": "\xe9"}')
    found = refusals(tmp_path / "reports", tmp_path / "latin.json", tmp_path / "absent.json")
    assert len(found) == 3
    assert all("cannot be read" in sentence for sentence in found)


def test_half_a_report_is_refused(tmp_path: Path) -> None:
    path = write_document(tmp_path / "a.json", [result()])
    path.write_text(path.read_text()[:-40])
    (sentence,) = refusals(path)
    assert "no JSON, so no report" in sentence


def test_a_document_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"kind": "diary"}')
    (sentence,) = refusals(tmp_path)
    assert "of kind 'diary'" in sentence


def test_bench_documents_may_lie_beside_reports(tmp_path: Path) -> None:
    write_document(tmp_path / "a.json", [result()])
    document = {"kind": "bench", "name": "quantize", "rows": [{"name": "numpy"}]}
    (tmp_path / "bench.json").write_text(json.dumps({**document, "digest": digest_of(document)}))
    assert refusals(tmp_path) == []


def test_a_missed_target_is_named_and_refuses_nothing(tmp_path: Path) -> None:
    write_document(tmp_path / "a.json", [result()])
    rows = [
        {"data": "gaussian", "median_ms": 2.0, "gflops": 40.0, "target": 20.0, "reached": True},
        {"data": "wide blocks", "median_ms": 5.0, "gflops": 16.0, "target": 20.0, "reached": False},
    ]
    compared = {"medians_s": {"refmoe": 1.0, "old": 7.0}, "ratio": 7.0, "target": 8.0, "reached": False}
    documents = {
        "models": {"m": 40, "n": 1000, "k": 1000, "rows": rows, "all_reached": False},
        "against": {"comparisons": {"quantize": compared}, "reached": False, "all_reached": False},
        "parity": {"rows": [{"seconds": 21.0}], "again_s": 21.0, "targets": {"again_s": 20.0}},
        "layer": {"rows": [{"seconds": 1.0}], "all_reached": False},
    }
    documents["parity"] |= {"reached": {"again_s": False}, "all_reached": False}
    for name, content in documents.items():
        document = {"kind": "bench", "name": name, **content}
        (tmp_path / f"{name}.json").write_text(json.dumps({**document, "digest": digest_of(document)}))
    outcome = check_reports([tmp_path], None, catalog)
    assert outcome.refusals == ()
    assert [line.removeprefix(f"{tmp_path}/") for line in outcome.missed] == [
        "against.json: quantize, ratio: 7, at least 8",
        "layer.json: a target that the report does not name",
        "models.json: wide blocks: 16, at least 20",
        "parity.json: again s: 21, at most 20",
    ]


def test_bench_documents_alone_are_no_report(tmp_path: Path) -> None:
    document = {"kind": "bench", "name": "quantize", "rows": [{"name": "numpy"}]}
    (tmp_path / "bench.json").write_text(json.dumps({**document, "digest": digest_of(document)}))
    (sentence,) = refusals(tmp_path)
    assert sentence.startswith("no report in")


def test_a_case_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (sentence,) = refusals(write_document(tmp_path / "a.json", [result(), result()]))
    assert f"case {CASE} is there twice" in sentence


def test_a_changed_kernel_source_makes_its_report_stale(tmp_path: Path) -> None:
    stale = result(ON_GPU, source_sha256=STALE, arch="sm_90a")
    (sentence,) = refusals(write_document(tmp_path / "a.json", [stale]))
    assert "the source of expand changed since 1 of its cases ran on cuda (sm_90a)" in sentence


def test_a_family_that_is_gone_is_refused(tmp_path: Path) -> None:
    document = json.loads(write_document(tmp_path / "a.json", [result()]).read_text())
    document["cases"][0]["family"] = "reduce"
    _, sentence = refusals(write_document(tmp_path / "a.json", [result()], cases=document["cases"]))
    assert "kernel family reduce has no source any more" in sentence


def test_a_vanished_case_is_refused(tmp_path: Path) -> None:
    baseline = baseline_of(tmp_path / "baseline.json", CASE, OTHER)
    path = write_document(tmp_path / "out" / "a.json", [result()])
    (sentence,) = refusals(path, baseline=baseline)
    assert sentence == f"case {OTHER} passed in {baseline} and is gone; run it, or renew the baseline"


def test_a_case_that_no_longer_runs_is_refused(tmp_path: Path) -> None:
    baseline = baseline_of(tmp_path / "baseline.json", CASE, OTHER)
    path = write_document(tmp_path / "out" / "a.json", [result(), result(OTHER, Verdict.SKIPPED, reason="no GPU")])
    (sentence,) = refusals(path, baseline=baseline)
    assert sentence == f"case {OTHER} passed in {baseline} and is now SKIPPED: no GPU"


@pytest.mark.parametrize("order", [("a.json", "b.json"), ("b.json", "a.json")])
def test_a_case_that_another_report_ran_is_not_gone(tmp_path: Path, order: tuple[str, str]) -> None:
    baseline = baseline_of(tmp_path / "baseline.json", CASE, OTHER)
    skipping, running = (tmp_path / "out" / name for name in order)
    write_document(skipping, [result(), result(OTHER, Verdict.SKIPPED, reason="not built")])
    write_document(running, [result(OTHER)])
    assert refusals(skipping.parent, baseline=baseline) == []


def test_cases_that_no_longer_run_for_one_reason_are_one_sentence(tmp_path: Path) -> None:
    cases = [replace(ON_GPU, seed=seed) for seed in range(29)]
    baseline = baseline_of(tmp_path / "baseline.json", CASE, *cases)
    skipped = [result(case, Verdict.SKIPPED, reason="no nvcc") for case in cases]
    path = write_document(tmp_path / "out" / "a.json", [result(replace(ON_GPU, seed=99)), *skipped])
    (sentence,) = refusals(path, baseline=baseline)
    assert sentence.endswith(f"and 28 more passed in {baseline} and is now SKIPPED: no nvcc")


def test_a_baseline_whose_kernel_family_is_gone_is_refused_in_one_sentence(tmp_path: Path) -> None:
    baseline = baseline_of(tmp_path / "baseline.json", CASE)
    document = json.loads(baseline.read_text())
    document["cases"] += [str(replace(ON_GPU, seed=seed)).replace("expand", "reduce") for seed in range(40)]
    baseline.write_text(json.dumps({**document, "digest": digest_of(document)}))
    path = write_document(tmp_path / "out" / "a.json", [result()])
    assert refusals(path, baseline=baseline) == [
        f"kernel family reduce passed 40 cases in {baseline} and is gone; bring it back, or renew the baseline"
    ]


def test_an_edited_baseline_is_refused(tmp_path: Path) -> None:
    baseline = baseline_of(tmp_path / "baseline.json", CASE, OTHER)
    baseline.write_text(baseline.read_text().replace(str(OTHER), str(ON_GPU)))
    path = write_document(tmp_path / "out" / "a.json", [result()])
    (sentence,) = refusals(path, baseline=baseline)
    assert "edited after it was made" in sentence


def test_gpu_evidence_counts_again_once_it_is_made_from_the_present_sources(tmp_path: Path) -> None:
    old = write_document(tmp_path / "a.json", [result(ON_GPU, source_sha256=STALE, arch="sm_90a")])
    assert len(refusals(old)) == 1
    assert refusals(write_document(tmp_path / "a.json", [result(ON_GPU, arch="sm_90a")])) == []


def test_the_baseline_speaks_for_the_devices_of_the_reports(tmp_path: Path) -> None:
    baseline = baseline_of(tmp_path / "reports" / "baseline.json", CASE, ON_GPU)
    path = write_document(tmp_path / "out" / "a.json", [result()])
    assert refusals(path, baseline=baseline) == []


def test_the_baseline_does_not_speak_for_a_kernel_of_which_no_case_ran(tmp_path: Path) -> None:
    """Such as CUTLASS's on a machine that has not built it; but what ran there before must run in its own folder."""
    first, other = (replace(BUILT_ELSEWHERE, seed=seed) for seed in (7, 8))
    baseline = baseline_of(tmp_path / "reports" / "baseline.json", first, other)
    (tmp_path / "reports" / "for-baseline" / "x.txt").unlink()
    nothing_ran = [result(case, Verdict.SKIPPED, reason="not built") for case in (first, other)]
    ours = result(parse_case("routing:f32:m1e4t1:gaussian:seed7@ptx"))
    path = write_document(tmp_path / "out" / "a.json", [ours, *nothing_ran])
    assert refusals(path, baseline=baseline) == []
    # Nor for the cases of a deeper level, which such a machine does not even list.
    assert refusals(write_document(path, [ours, nothing_ran[0]]), baseline=baseline) == []
    # A kernel that is not listed at all is gone.
    (sentence,) = refusals(write_document(path, [ours]), baseline=baseline)
    assert sentence.startswith(f"case {first} and 1 more of the device ptx passed in {baseline} and is gone")
    (sentence,) = refusals(write_document(path, [ours, result(first, made_of="x"), nothing_ran[1]]), baseline=baseline)
    assert sentence == f"case {other} passed in {baseline} and is now SKIPPED: not built"
    write_document(tmp_path / "reports" / "a.json", [ours, *nothing_ran])
    (sentence,) = refusals(tmp_path / "reports", baseline=baseline)
    assert sentence == f"case {first} and 1 more passed in {baseline} and is now SKIPPED: not built"


def test_a_kernel_that_refuses_what_it_passed_is_not_forgiven(tmp_path: Path) -> None:
    first, other = (replace(BUILT_ELSEWHERE, seed=seed) for seed in (7, 8))
    baseline = baseline_of(tmp_path / "reports" / "baseline.json", first, other)
    ours = result(parse_case("routing:f32:m1e4t1:gaussian:seed7@ptx"))
    refused = [result(case, Verdict.UNSUPPORTED, reason="no", expected=True) for case in (first, other)]
    path = write_document(tmp_path / "out" / "a.json", [ours, *refused])
    (sentence,) = refusals(path, baseline=baseline)
    assert sentence == f"case {first} and 1 more passed in {baseline} and is now UNSUPPORTED: no"
    # Beside skipped cases a refusal counts as well, if it is of a case that passed.
    write_document(path, [ours, refused[0], result(other, Verdict.SKIPPED, reason="not built")])
    (sentence,) = refusals(path, baseline=baseline)
    assert sentence == f"case {first} passed in {baseline} and is now UNSUPPORTED: no"


def test_a_path_in_an_option_is_no_part_of_a_kernels_name(tmp_path: Path) -> None:
    kernel = "tests/a.py::k"
    save_file({"h": np.arange(4 * 416, dtype=np.float16).reshape(4, 416)}, tmp_path / "x.safetensors")
    text = f"mxfp8_quantize:fp16:m4k416:activations:file={tmp_path}/x.safetensors:tensor=h:seed7@cuda"
    name = f"{kernel}/{text}"
    own = ("tests/a.py::k",)
    mine = result(parse_case(text), id=name, kernel=kernel, device="cuda", repro="pytest 'a.py::t'", sources=own)
    past = write_document(tmp_path / "past" / "a.json", [mine])
    found = refusals(write_document(tmp_path / "out" / "a.json", [mine]), baseline=past)
    assert ["cannot be read from here" in sentence for sentence in found] == [True]
    skipped = replace(mine, verdict=Verdict.SKIPPED, reason="x", compared=0, launches=(), evidence="none")
    write_document(tmp_path / "out" / "a.json", [skipped, result()])
    assert refusals(tmp_path / "out" / "a.json", baseline=past) == []


def test_a_report_is_a_baseline_of_the_cases_that_it_passed(tmp_path: Path) -> None:
    past = [result(), result(OTHER, Verdict.SKIPPED, reason="x"), result(replace(CASE, seed=8))]
    baseline = write_document(tmp_path / "reports" / "ptx.json", past)
    path = write_document(tmp_path / "out" / "a.json", [result()])
    (sentence,) = refusals(path, baseline=baseline)
    assert sentence == f"case {replace(CASE, seed=8)} passed in {baseline} and is gone; run it, or renew the baseline"
    baseline.write_text(baseline.read_text().replace('"verdict": "PASS"', '"verdict": "SKIPPED"'))
    assert any("edited after it was made" in sentence for sentence in refusals(path, baseline=baseline))


def test_in_its_own_folder_the_baseline_speaks_for_all_devices(tmp_path: Path) -> None:
    baseline = baseline_of(tmp_path / "reports" / "baseline.json", CASE, ON_GPU)
    write_document(tmp_path / "reports" / "a.json", [result()])
    (tmp_path / "reports" / "for-baseline" / "x.txt").unlink()
    (sentence,) = refusals(tmp_path / "reports", baseline=baseline)
    assert f"case {ON_GPU} passed in" in sentence


def test_the_baseline_holds_passed_cases_only_and_shows_an_edit(tmp_path: Path) -> None:
    report = write_document(tmp_path / "a.txt", [result(), result(OTHER, Verdict.SKIPPED, reason="x")])
    path = tmp_path / "baseline.json"
    assert write_baseline(path, [read_report(report)]) == 1
    assert read_baseline(path) == [str(CASE)]
    document = json.loads(path.read_text())
    document["cases"] = []
    path.write_text(json.dumps(document))
    with pytest.raises(ReportError, match="edited after it was made"):
        read_baseline(path)
    document |= {"schema_version": "0"}
    path.write_text(json.dumps({**document, "digest": digest_of(document)}))
    with pytest.raises(ReportError, match="a baseline of schema version 0;"):
        read_baseline(path)
    path.write_text("{}")
    assert any("no baseline" in sentence for sentence in refusals(report, baseline=path))
