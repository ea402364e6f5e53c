"""Somebody damages a report, or what lies beside it, and signs it anew: every check of the gate sees what it is for.

Every damage begins with documents that pass. The digest is made again after it, so the contradiction itself has to be
seen. Each names the check that must refuse it; a check of which no damage is known is a check that cannot fail.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.damages.files import FILES
from support.damages.kinds import KINDS
from support.damages.parity import PARITY, verdict
from support.damages.recomputed import DAMAGES
from support.damages.sound import (
    ROOT,
    Document,
    bench,
    checks_of,
    compared,
    conformance,
    convert,
    copied,
    drift,
    gate,
    gpu,
    invariant,
    listed,
    litmus,
    parity,
    planted,
    sealed,
    stress,
)
from support.selection.thinned import thinned
from support.verify import CASE, STALE
from typer.testing import CliRunner

from refmoe.catalog import list_cases
from refmoe.cli import app
from refmoe.families import FAMILIES
from refmoe.reports import reading
from refmoe.reports.checks import CHECKS, NAMED, GateRefusal, first_and_count, table_text
from refmoe.reports.documents import digest_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@cache
def sound_digest(made: Callable[[], Document]) -> str:
    """Of a document before it is damaged."""
    return digest_of(made())


# --- parity reports --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "what", "made", "damage"), thinned(PARITY, 2), ids=[f"{row[0]}: {row[1]}" for row in PARITY]
)
def test_a_damaged_parity_report_is_refused_for_what_was_done_to_it(
    check: str,
    what: str,
    made: Callable[[], Document],
    damage: Callable[[Document], None],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    document = copied(made())
    damage(document)
    assert digest_of(document) != sound_digest(made)
    assert check in checks_of(gate(sealed(folder / "a.json", document)))


@pytest.mark.parametrize("made", [parity, planted, listed, gpu])
def test_the_reports_pass_before_they_are_damaged(made: Callable[[], Document], folder: Path) -> None:
    assert gate(sealed(folder / "a.json", made())).refusals == ()


# --- the other kinds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "what", "made", "damage"), thinned(KINDS, 2), ids=[f"{row[0]}: {row[1]}" for row in KINDS]
)
def test_a_damaged_document_is_refused_for_what_was_done_to_it(
    check: str, what: str, made: Callable[[], Document], damage: Callable[[Document], None], folder: Path
) -> None:
    document = copied(made())
    damage(document)
    assert digest_of(document) != sound_digest(made)
    assert check in checks_of(gate(sealed(folder / "a.json", document)))


@pytest.mark.parametrize("made", [stress, conformance, litmus, drift, convert, invariant, bench, compared])
def test_the_documents_pass_before_they_are_damaged(made: Callable[[], Document], folder: Path) -> None:
    sealed(folder / "good.json", parity())
    assert gate(folder / "good.json", sealed(folder / "a.json", made())).refusals == ()


def test_kernels_that_a_parity_report_launched_have_to_be_those_of_a_stress_report(folder: Path) -> None:
    """A document of one kernel a family is caught by what the quick cases launched on that chip."""
    quick = str(list_cases("quick", ("expand",), "cuda")[0])
    report, document = copied(gpu()), copied(stress())
    (row,) = [row for row in document["reruns"] if row["case"] == quick]
    report["cases"][0] |= {"id": quick, "repro": f"refmoe repro '{quick}'", "launches": [f"{row['kernel']} 1 x 32"]}
    report["cases"][0] |= {"source_sha256": document["source_sha256"]["expand"], "arch": document["arch"]}
    sealed(folder / "a.json", report)

    def said(**changes: Any) -> list[str]:
        row.update(changes)
        found = gate(folder / "a.json", sealed(folder / "b.json", document)).found
        return [each.text for each in found if each.check == "stress.cases"]

    kernel = row["kernel"]
    assert said() == []
    lacking, wrong = said(kernel=f"{kernel}_other")
    assert lacking.startswith(f"{folder}/b.json: the kernel {kernel} did not run again and again: {quick} launches it")
    assert wrong.endswith(f"{quick} is said to launch it, and launches {kernel} in {folder}/a.json")
    # Other sources launch other kernels.
    document["source_sha256"]["expand"] = STALE
    assert said() == []


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("check", "what", "make"), FILES, ids=[f"{row[0]}: {row[1]}" for row in FILES])
def test_a_damaged_file_ends_in_a_sentence_and_quickly(
    check: str, what: str, make: Callable[[Path], Any], folder: Path
) -> None:
    (folder / "reports").mkdir()
    make(folder / "reports")
    begun = time.process_time()
    found = gate(folder / "reports")
    assert check in checks_of(found)
    assert time.process_time() - begun < 10


def test_a_report_may_hide_nowhere(folder: Path) -> None:
    """Hidden files, deeper folders, hidden folders, capital letters: each is read."""
    bad = copied(parity())
    verdict("ERROR", reason="x")(bad)
    for place in (".a.json", "A.JSON", ".hidden/a.json", "one/two/three/a.json", "baseline.json/a.json", "a b/ü.json"):
        reports = folder / place.replace("/", "-")
        sealed(reports / place, bad)
        assert "case.verdict" in checks_of(gate(reports)), place
    # Under the name of the baseline as well, unless it is the one in use.
    assert "case.verdict" in checks_of(gate(sealed(folder / "x" / "baseline.json", bad).parent))


def test_what_is_no_report_by_name_and_look_is_named_as_not_read(folder: Path) -> None:
    sealed(folder / "a.json", parity())
    (folder / "README.md").write_text("# Reports\n")
    os.mkfifo(folder / "pipe")
    found = gate(folder)
    assert found.refusals == ()
    assert {path.name for path in found.unread} == {"README.md", "pipe"}


def test_a_file_that_may_not_be_read_is_named(folder: Path) -> None:
    path = sealed(folder / "a.json", parity())
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read all
    try:
        with pytest.raises(reading.ReportError, match=r"a\.json: cannot be read: Permission denied") as caught:
            reading.read_document(path)
    finally:
        os.seteuid(user)
        path.chmod(0o644)
    assert caught.value.check == "file.permission"


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    assert checks_of(gate(folder / "gone.json")) == {"file.absent"}


def test_a_file_that_changes_while_it_is_read_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sealed(folder / "a.json", parity())
    read = os.read

    def slow(descriptor: int, size: int) -> bytes:
        piece = read(descriptor, size)
        if not piece:
            with open(path, "ab") as file:
                file.write(b" ")
        return piece

    monkeypatch.setattr(os, "read", slow)
    assert checks_of(gate(path)) == {"file.changed"}


def test_a_file_that_grows_without_end_is_not_read_to_its_end() -> None:
    """A file of /proc states no size."""
    with pytest.raises(reading.ReportError, match="more than 10 bytes"):
        reading.read_bytes(Path("/proc/self/maps"), 10)


def test_a_report_cannot_write_a_line_of_its_own(folder: Path) -> None:
    """Nor an escape code of a terminal, nor half of a surrogate pair, in whatever it says."""
    document = copied(parity())
    verdict("ERROR", reason="x\ngate passed: 1 report\x1b[2J\u202e\x85y")(document)
    (found,) = [each for each in gate(sealed(folder / "a.json", document)).found if each.check == "case.verdict"]
    assert "; gate passed" in found.text
    assert "\\x1b" in found.text
    assert not set(found.text) & set("\n\x1b\u202e\x85\u2028")
    odd = folder / os.fsdecode(b"a\xff\n.json")
    odd.write_text("{}")
    (refusal,) = gate(odd).refusals
    assert refusal.startswith(f"{folder}/a\\xff")
    assert refusal.encode()


def test_ten_thousand_wrong_cases_are_a_few_sentences() -> None:
    found = list(first_and_count("case.id", ((f"case {number}", "is none") for number in range(10_000))))
    assert len(found) == NAMED + 1
    assert found[-1].text == "9,995 more like this, the last case 9999"


# --- the baseline ----------------------------------------------------------------------------------------------------


def sealed_baseline(path: Path, *cases: Any, **changes: Any) -> Path:
    return sealed(path, {"kind": "baseline", "schema_version": "1", "cases": list(cases), **changes})


@pytest.mark.parametrize(
    ("check", "cases", "changes"),
    [
        ("baseline.content", (), {}),
        ("baseline.content", (str(CASE), str(CASE)), {}),
        ("baseline.content", (str(CASE), 7), {}),
        ("baseline.content", (str(CASE), "expand"), {}),
        ("baseline.content", (str(CASE),), {"kind": "list"}),
        ("baseline.content", (str(CASE),), {"cases": "all"}),
        ("baseline.vanished", (str(CASE), str(replace(CASE, seed=99))), {}),
        ("baseline.family", (str(CASE), "reduce:bf16:m1k32:gaussian:seed7@ptx"), {}),
        ("document.version", (str(CASE),), {"schema_version": "2"}),
        ("document.schema", (str(CASE),), {"but": []}),
    ],
)
def test_a_damaged_baseline_is_refused(check: str, cases: Any, changes: Document, folder: Path) -> None:
    baseline = sealed_baseline(folder / "baseline.json", *cases, **changes)
    assert check in checks_of(gate(sealed(folder / "a.json", parity()), baseline=baseline))


def test_a_baseline_that_is_missing_or_elsewhere_fails_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refmoe_gate(where: Path, *arguments: str) -> Result:
        monkeypatch.chdir(where)
        return CliRunner().invoke(app, ["gate", *arguments])

    report = sealed(folder / "reports" / "a.json", parity())
    found = refmoe_gate(folder)
    assert found.exit_code == 1
    assert found.stdout.startswith("GATE no baseline: found no reports/baseline.json, so nobody would see")
    outcome = json.loads(refmoe_gate(folder, "--json").stdout)
    assert outcome["checks"] == ["baseline.missing"]
    assert refmoe_gate(folder, "--no-baseline").exit_code == 0
    assert refmoe_gate(folder, "reports", "--baseline", "gone.json").exit_code == 2
    assert refmoe_gate(folder, "reports", "--no-baseline", "--baseline", "reports/a.json").exit_code == 2
    # From another folder it is another one.
    assert "found no ../reports/baseline.json" in refmoe_gate(folder / "reports", "../reports").stdout
    assert refmoe_gate(folder, "--write-baseline").exit_code == 0
    assert refmoe_gate(folder).stdout.strip() == "gate passed: 1 report, 3 passed cases, against reports/baseline.json"
    # One in a folder that is checked and not in use is named, and so is one that is a link to nothing.
    other = sealed_baseline(folder / "mine.json", str(CASE))
    found = refmoe_gate(folder, "reports", "--baseline", str(other))
    assert "reports/baseline.json: a baseline, and the one in use is " in found.stdout
    (folder / "reports" / "baseline.json").unlink()
    (folder / "reports" / "baseline.json").symlink_to("gone.json")
    assert "reports/baseline.json: cannot be read: a link to gone.json" in refmoe_gate(folder).stdout
    assert report.is_file()


# --- the table -------------------------------------------------------------------------------------------------------

#: Checks that a test with a name of its own sees.
ELSEWHERE = {"file.permission", "file.absent", "file.changed", "baseline.missing", "baseline.content"}
ELSEWHERE |= {"baseline.vanished", "baseline.family", "drift.recomputed", "evidence.rows", "evidence.bundle"}


def seen() -> Iterator[str]:
    yield from (row[0] for row in (*PARITY, *KINDS, *FILES, *DAMAGES))
    yield from ELSEWHERE


def test_every_check_has_a_damage_that_it_sees() -> None:
    assert set(CHECKS) - set(seen()) == set()
    assert set(seen()) <= set(CHECKS)
    assert len(PARITY) + len(KINDS) + len(FILES) >= 40


def test_the_guide_has_the_table_of_the_code() -> None:
    guide = (ROOT / "docs/guides/gate.md").read_text()
    assert table_text() in guide, "renew it: refmoe gate --checks"


def test_a_refusal_names_a_check_that_there_is() -> None:
    with pytest.raises(KeyError, match="no check of the gate"):
        GateRefusal("parity.sumary", "x")
    assert asdict(GateRefusal("parity.summary", "a\nb"))["text"] == "a; b"


def test_every_family_says_how_many_bytes_a_case_compares() -> None:
    assert [
        name for name, family in FAMILIES.items() if not any(family.extents(next(family.level("quick"))).values())
    ] == []
