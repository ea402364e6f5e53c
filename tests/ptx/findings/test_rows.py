"""What is said of races: both accesses, the change that orders them, and that this change makes the kernel clean."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from support.findings.bulk import BULK_ROWS, BulkRow
from support.findings.experts import EXPERT_ROWS, HOPELESS_ROWS
from support.findings.plain import ROWS, Row
from support.selection.thinned import thinned

from refmoe import ptx
from refmoe.ptx.findings.finding import PAGE, PROJECT

ROOT = Path(__file__).parents[3]
EVERY = [*ROWS, *EXPERT_ROWS, *BULK_ROWS]
SCHEDULES = 16
each_row = pytest.mark.parametrize("row", EVERY, ids=str)
# To explain a race is most of what a row costs: those that look at one explanation come one after another.
FOUND: dict[str, ptx.RaceError] = {}


def found(row: Row | BulkRow) -> ptx.RaceError:
    """What a row's kernel ends in, launched once."""
    if row.name not in FOUND:
        FOUND[row.name] = launched(row).with_traceback(None)
    return FOUND[row.name]


def launched(row: Row | BulkRow) -> ptx.RaceError:
    """The race of a row, or its one warning."""
    if not row.warning:
        with pytest.raises(ptx.RaceError) as caught:
            row.launch(row.text)
        return caught.value
    result, _ = row.launch(row.text)
    (warning,) = result.warnings
    return warning


@pytest.mark.parametrize("row", thinned(EVERY, 6), ids=str, scope="module")
def test_what_is_said(row: Row | BulkRow) -> None:
    race = found(row)
    assert (race.kind, race.warning) == (row.kind, row.warning)
    finding = race.finding
    assert finding is not None
    earlier = "" if finding.earlier is None else finding.earlier.kind
    assert (earlier, finding.later.kind) == row.accesses
    lines = row.text.splitlines()
    for side in (finding.later, finding.earlier):
        # Both name the line that the instruction stands in.
        assert side is None or "".join(side.text.split()) in "".join(lines[side.line - 1].split())
    assert row.remedy in finding.remedy
    assert finding.section == row.section
    assert str(race).splitlines()[0] == race.message
    assert str(race).splitlines()[-1].strip() == f"see {PROJECT}/{PAGE}#{row.section}"


@pytest.mark.parametrize("row", thinned(EVERY, 6), ids=str, scope="module")
def test_the_change_makes_it_clean(row: Row | BulkRow) -> None:
    finding = found(row).finding
    assert finding is not None
    assert finding.tried
    assert finding.clean
    assert finding.edited is not None
    assert finding.edited != row.text
    # Lines mean the same in both texts.
    assert len(finding.edited.splitlines()) == len(row.text.splitlines())
    assert finding.same
    assert finding.schedules >= SCHEDULES // 2
    # It orders the two: they come in many orders under these, and the launch leaves the same bytes.
    result, after = row.launch(finding.edited, schedules=SCHEDULES)
    assert result.warnings == ()
    again, expected = row.launch(row.twin)
    assert again.warnings == ()
    if "reads" not in row.name:
        np.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize("row", thinned(HOPELESS_ROWS, 2), ids=str)
def test_why_no_change_is_known(row: Row) -> None:
    finding = found(row).finding
    assert finding is not None
    assert (finding.remedy, finding.edited, finding.section) == ("", None, row.section)
    assert row.remedy in finding.why
    assert f"what orders them: not known: {finding.why}" in finding.lines()


@pytest.mark.parametrize(
    "row",
    thinned(
        [row for row in EVERY if row.kind in ("write-read", "read-write")],
        6,
    ),
    ids=str,
)
def test_the_class_is_the_same_under_every_schedule(row: Row | BulkRow) -> None:
    classes = set()
    for schedule in range(SCHEDULES // 2):
        try:
            result, _ = row.launch(row.text, schedule=schedule, checks=ptx.Checks(explain=False))
            classes.update(each.warning for each in result.warnings or [None] if each)
        except ptx.RaceError as error:
            classes.add(error.warning)
        except ptx.MemoryFault:
            # Who reads too early reads what nobody has written yet.
            classes.add("")
    # Who only looks after the others have ended sees no race.
    assert classes == {"" if row.warning == "warp-collective" else row.warning}


@pytest.mark.parametrize("row", thinned([row for row in EVERY if row.warning], 2), ids=str)
def test_strict_makes_warnings_fail(row: Row | BulkRow) -> None:
    with pytest.raises(ptx.RaceError) as caught:
        row.launch(row.text, checks=ptx.Checks(strict=True))
    # Nothing is followed.
    assert caught.value.warning == ("" if row.warning == "unused value" else row.warning)
    assert caught.value.finding is not None
    row.launch(row.twin, checks=ptx.Checks(strict=True))


@each_row
def test_without_an_explanation(row: Row | BulkRow) -> None:
    if row.warning == "warp-collective":
        # Whose values were consumed is found out by looking again.
        with pytest.raises(ptx.RaceError) as caught:
            row.launch(row.text, checks=ptx.Checks(explain=False))
        assert (caught.value.warning, caught.value.finding) == ("", None)
        return
    race = None
    try:
        result, _ = row.launch(row.text, checks=ptx.Checks(explain=False))
        (race,) = result.warnings
    except ptx.RaceError as error:
        race = error
    assert race.finding is None
    use = [f"the value that was read {race.use}"] if race.use else []
    assert str(race) == "\n  ".join([race.message, *use])
    assert (race.kind, race.warning) == (row.kind, row.warning)


@each_row
def test_the_section_is_on_the_page(row: Row | BulkRow) -> None:
    page = (ROOT / PAGE).read_text()
    anchors = [line.lstrip("#").strip().lower().replace(" ", "-") for line in page.splitlines() if line.startswith("#")]
    assert row.section in anchors


def test_the_link_can_be_read_by_everybody() -> None:
    home = re.search(r'^Homepage = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert home is not None
    finding = found(ROWS[0]).finding
    assert finding is not None
    assert f"{home[1]}/blob/main" == PROJECT
    assert finding.link == f"{home[1]}/blob/main/{PAGE}#{finding.section}"


def test_every_section_says_it_in_code() -> None:
    page = (ROOT / PAGE).read_text()
    sections = page.split("\n## ")[2:]
    assert len(sections) > 15
    for section in sections:
        assert "```cuda" in section, section.splitlines()[0]


def test_findings_survive_pickling() -> None:
    race = found(ROWS[0])
    again = pickle.loads(pickle.dumps(race))
    assert str(again) == str(race)
    assert again.finding == race.finding
    assert again.earlier == race.earlier


def test_one_finding_a_cause() -> None:
    # All threads of two blocks race with the one 32 further: one finding, with how many there are.
    row = ROWS[0]
    finding = found(row).finding
    assert finding is not None
    assert (finding.bytes, finding.threads, finding.more) == (64, 64, False)
    assert "64 places, 64 threads" in "\n".join(finding.lines())
    lanes = found(ROWS[4]).finding
    assert lanes is not None
    assert (lanes.bytes, lanes.threads) == (1, 1)
