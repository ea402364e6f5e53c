from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from support.verify import CASE, ENVIRONMENT, result, write_document

from refmoe.catalog import parse_case
from refmoe.reports.documents import ReportError, digest_of
from refmoe.reports.parity import (
    MutantRecord,
    Report,
    make_report,
    read_report,
    report_text,
    schema_text,
)
from refmoe.reports.render import family_shares, junit_text, markdown_text, verdict_counts, verdict_lines
from refmoe.verify.verdict import Result, Verdict

QUANTIZE = parse_case("mxfp8_quantize:bf16:m1k2880:real:seed7@cuda")
MISMATCH = (
    "codes[5, 421]  block (5, 13) lane 5: kernel 0x6F (120) reference 0x70 (128), 1 ulp, scale 0x7B; 3 of 9 differ"
)
#: The same for the readers of pages: which output, where, what the kernel gave, what the reference has, how many.
HEADLINE = (
    "codes[5, 421], block (5, 13) lane 5: kernel gave 0x6F (120), reference has 0x70 (128), 1 ulp, scale 0x7B; "
    "3 of 9 differ"
)


def report() -> Report:
    results = [
        result(),
        result(CASE.on("ptx", "sm_121a"), Verdict.MISMATCH, stage="codes", first_mismatch=MISMATCH),
        result(
            QUANTIZE, Verdict.SKIPPED, reason="torch sees no CUDA device <&\x1b>", evidence="none", source_sha256=None
        ),
        result(CASE.on("ptx", "sm_90a"), Verdict.ERROR, reason="MemoryFault: out of bounds", evidence="none"),
    ]
    return make_report(results, command="refmoe parity", environment=ENVIRONMENT, seconds=2.5)


def test_a_report_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    made = report()
    path.write_text(report_text(made))
    assert read_report(path) == made


def test_the_digest_is_the_hash_of_the_canonical_json_without_it() -> None:
    document = json.loads(report_text(report()))
    stated = document.pop("digest")
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert stated == hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def test_the_keys_that_stay_are_there() -> None:
    document = json.loads(report_text(report()))
    assert {"schema_version", "cases", "digest"} <= document.keys()
    fixed = {"id", "device", "arch", "verdict", "evidence", "stage", "first_mismatch", "repro", "source_sha256"}
    assert all(fixed <= case.keys() for case in document["cases"])
    assert document["cases"][1]["repro"] == f"refmoe repro '{CASE.on('ptx', 'sm_121a')}'"
    assert document["summary"] == {"PASS": 1, "MISMATCH": 1, "ERROR": 1, "SKIPPED": 1}
    assert set(document["evidence"]) == {"ptx", "cuda"}


@pytest.mark.parametrize(
    "edit",
    [
        lambda document: document["cases"][1].update(verdict="PASS"),
        lambda document: document["cases"].pop(),
        lambda document: document["environment"].update(gpu="NVIDIA H200"),
        lambda document: document.update(created="2020-01-01T00:00:00+00:00"),
        lambda document: document.update(digest="0" * 64),
        lambda document: document.pop("digest"),
    ],
)
def test_every_edit_shows(tmp_path: Path, edit: object) -> None:
    document = json.loads(report_text(report()))
    edit(document)  # type: ignore[operator]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ReportError, match="edited after it was made"):
        read_report(path)


def test_spacing_and_key_order_are_no_edit(tmp_path: Path) -> None:
    document = json.loads(report_text(report()))
    path = tmp_path / "report.json"
    path.write_text(json.dumps(dict(reversed(document.items())), indent=7))
    assert read_report(path).digest == document["digest"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"{", "no JSON"),
        (b"[1]", "holds a list and no more; a report is one JSON object"),
        (b"null", "holds null and no more"),
        (b"7", "holds a number and no more"),
        (b'"x"', "holds a string and no more"),
        (b"{}", "no refmoe report"),
        (b'{"a": 1}', "no refmoe report"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_a_file_that_is_no_report_says_so(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(ReportError, match=sentence):
        read_report(path)


def test_another_schema_version_is_refused_before_anything_else(tmp_path: Path) -> None:
    path = write_document(tmp_path / "report.json", [result()], schema_version="2")
    with pytest.raises(ReportError, match=r"a report of schema version 2; this refmoe reads version 1$"):
        read_report(path)
    path = write_document(tmp_path / "report.json", [result()], schema_version=1)
    with pytest.raises(ReportError, match="this refmoe reads version 1, and it is a string, not a number"):
        read_report(path)


@pytest.mark.parametrize("changes", [{"cases": [{"id": "x"}]}, {"cases": 7}, {"surprise": 1}, {"command": None}])
def test_a_signed_document_of_another_shape_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    path = write_document(tmp_path / "report.json", [result()], **changes)
    with pytest.raises(ReportError, match="no valid report"):
        read_report(path)


def test_the_published_schema_is_the_present_one() -> None:
    published = Path(__file__).parent.parent.parent / "docs" / "report.schema.json"
    assert published.read_text() == schema_text(), "renew it: refmoe gate --schema > docs/report.schema.json"


def test_digests_do_not_depend_on_what_json_cannot_tell_apart() -> None:
    assert digest_of({"a": 1, "b": [1.5, "ü"]}) == digest_of({"b": [1.5, "ü"], "a": 1, "digest": "x"})
    assert digest_of({"a": 1}) != digest_of({"a": True})


def test_families_are_listed_with_their_seconds_the_dearest_first() -> None:
    seconds = {"expand": [1.0, 0.5], "mxfp8_quantize": [4.5]}
    cases = [
        report().cases[0].model_copy(update={"family": name, "seconds": each})
        for name, all_of_them in seconds.items()
        for each in all_of_them
    ]
    shares = family_shares(report().model_copy(update={"cases": cases}))
    assert shares == ["mxfp8_quantize: 1 cases, 4.5 s, 75%", "expand: 2 cases, 1.5 s, 25%"]


def test_junit_is_well_formed_and_counts() -> None:
    root = ElementTree.fromstring(junit_text(report()).split("\n", 1)[1])
    suites = {suite.get("name"): suite for suite in root}
    assert len(root.findall(".//testcase")) == 4
    mismatch = suites["refmoe.expand.ptx.sm_121a"]
    assert (mismatch.get("tests"), mismatch.get("failures"), mismatch.get("errors")) == ("1", "1", "0")
    failure = mismatch.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == f"MISMATCH {HEADLINE}"
    assert f"repro: refmoe repro '{CASE.on('ptx', 'sm_121a')}'" in str(failure.text)
    error = suites["refmoe.expand.ptx.sm_90a"]
    assert (error.get("failures"), error.get("errors")) == ("0", "1")
    skipped = suites["refmoe.mxfp8_quantize.cuda"].find("testcase/skipped")
    assert skipped is not None
    assert skipped.get("message") == "SKIPPED torch sees no CUDA device <&?>"


def test_markdown_shows_counts_mismatches_and_what_the_evidence_means() -> None:
    text = markdown_text(report())
    assert "| expand | ptx | sm_120a | 1 PASS |  | 19,712 | 0.0 |" in text
    assert f"MISMATCH {HEADLINE}\nrepro: refmoe repro '{CASE.on('ptx', 'sm_121a')}'" in text
    assert "**2 of 4 cases fail: 1 MISMATCH, 1 ERROR**" in text


def test_what_a_pass_proves_stands_under_a_pass_alone() -> None:
    passed = make_report([result()], command="refmoe parity", environment=ENVIRONMENT, seconds=2.5)
    assert "bit-exact on ptx" in markdown_text(passed)
    survivor = MutantRecord(
        name="01-x", fault="FLOOR.", kind="k", caught=False, case=None, verdict=None, finding=None, cases=9
    )
    for failed in (report(), passed.model_copy(update={"mutants": [survivor]})):
        assert failed.evidence
        assert failed.proves == []
        assert "bit-exact on ptx" not in markdown_text(failed)


def test_a_message_cannot_end_its_block_of_code() -> None:
    failed = report().cases[1].model_copy(update={"first_mismatch": "raised\n```\n<b>"})
    text = markdown_text(report().model_copy(update={"cases": [failed]}))
    assert f"````\n{failed.verdict.value} raised\n```\n<b>\nrepro: {failed.repro}\n````\n" in text


def test_wrong_calls_that_were_refused_are_counted_by_themselves() -> None:
    def refused(wrong: str, expected: bool) -> Result:
        case = CASE.having(wrong=wrong)
        return result(case, Verdict.UNSUPPORTED, reason="K above 2048", evidence="none", expected=expected)

    listed = [result(), refused("none", True), refused("x-dtype", True), refused("x-flat", True)]
    made = make_report(listed, command="refmoe parity", environment=ENVIRONMENT, seconds=2.5)
    assert verdict_counts(made) == "1 PASS, 2 wrong calls refused, 1 UNSUPPORTED as the case list says"
    assert "**1 of 4 cases pass, 1 UNSUPPORTED, 2 wrong calls refused**" in markdown_text(made)
    unexpected = make_report([refused("x-dtype", False)], command="refmoe parity", environment=ENVIRONMENT, seconds=2.5)
    assert verdict_counts(unexpected) == "1 UNSUPPORTED not in the case list"


def test_a_refusal_that_nobody_expects_fails_in_every_rendering() -> None:
    refused = result(CASE, Verdict.UNSUPPORTED, reason="K above 2048", evidence="none", expected=False)
    made = make_report([refused], command="refmoe parity", environment=ENVIRONMENT, seconds=2.5)
    assert "**1 of 1 cases fail: 1 UNSUPPORTED**" in markdown_text(made)
    assert "UNSUPPORTED, not in the case list: K above 2048\nrepro: refmoe repro" in markdown_text(made)
    (suite,) = ElementTree.fromstring(junit_text(made).split("\n", 1)[1])
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "0")
    assert suite.find("testcase/failure") is not None


def test_a_mismatch_is_told_from_its_place_to_its_size() -> None:
    mismatch = report().cases[1]
    assert verdict_lines(mismatch) == [f"MISMATCH {HEADLINE}", f"repro: refmoe repro '{CASE.on('ptx', 'sm_121a')}'"]
    explained = mismatch.model_copy(update={"reason": "these are the bytes of floor/exact"})
    assert explained.finding == f"{HEADLINE}; these are the bytes of floor/exact"
    # A launch that failed after bytes had differed is an ERROR first.
    error = explained.model_copy(update={"verdict": Verdict.ERROR, "reason": "MemoryFault: out of bounds"})
    assert error.finding == f"MemoryFault: out of bounds; {HEADLINE}"
