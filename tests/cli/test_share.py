"""`refmoe parity --mutants --share K/N`: N shares together plant every fault once, and nothing else is a share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from refmoe.cli import app
from refmoe.cli.session import share_of
from refmoe.errors import ArgumentError
from refmoe.verify.plant import load_patches

CASE = "routing:f32:m4e16t2:gaussian:seed7@ptx"


def refmoe(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["parity", "--case", CASE, *arguments])


def test_the_faults_of_all_shares_are_all_faults() -> None:
    names = [patch.name for patch in load_patches()]
    parts = [share_of(f"{number}/7") for number in range(1, 8)]
    assert sorted(name for number, of in parts for name in names[number - 1 :: of]) == sorted(names)


def test_a_share_plants_its_faults_and_the_report_says_so(tmp_path: Path) -> None:
    names = [patch.name for patch in load_patches()]
    share = f"3/{len(names) - 2}"  # the third fault alone
    report = tmp_path / "report.json"
    ran = refmoe("--mutants", "--share", share, "--report", str(report))
    assert ran.exit_code == 0, ran.output
    assert f"of {len(names)} faults every {len(names) - 2}th from number 3 on is planted" in ran.output
    document = json.loads(report.read_text())
    assert [mutant["name"] for mutant in document["mutants"]] == names[2 :: len(names) - 2]
    assert document["command"].endswith(f"--mutants --share {share}")
    # What lacks faults is no report of all of them.
    gate = CliRunner().invoke(app, ["gate", str(report), "--no-baseline"])
    assert gate.exit_code == 1
    assert "is not in the report; run it again" in gate.output


@pytest.mark.parametrize("text", ["", "1", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1 /4", "½/4"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ArgumentError, match="needed K/N with whole numbers and 1 <= K <= N"):
        share_of(text)
    assert refmoe("--mutants", "--share", text).exit_code == 2


def test_a_share_is_of_faults() -> None:
    ran = refmoe("--share", "1/2")
    assert ran.exit_code == 2
    assert "found 1/2 without --mutants" in ran.output
