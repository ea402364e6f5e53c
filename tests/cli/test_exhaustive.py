"""`refmoe parity --level exhaustive`: pieces are kept, the report is written, wrong options are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refmoe.cli import app
from refmoe.exhaustive import pieces
from refmoe.exhaustive.pieces import SUBJECTS, Piece


@pytest.fixture
def thin(monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """One amax of one kernel and one reference of its format, instead of all."""
    chosen = [
        Piece(SUBJECTS[name], "fp16", "rceil", "exact", 20000, 20000)
        for name in ("mxfp8_quantize.8x4", "reference.mxfp8")
    ]
    monkeypatch.setattr(pieces, "list_pieces", lambda suites, dtypes: chosen)
    return chosen


@pytest.mark.slow  # its proof takes ten seconds
def test_a_sweep_goes_on_from_what_is_kept(thin: list[Piece], tmp_path: Path) -> None:
    report = tmp_path / "exhaustive.json"
    command = ["parity", "--level", "exhaustive", "--report", str(report)]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert "[2/2]" in first.output
    document = json.loads(report.read_text())
    assert document["passed"]
    assert [(row["subject"], row["pieces"]) for row in document["rows"]] == [
        ("mxfp8_quantize.8x4", 1),
        ("reference.mxfp8", 1),
    ]
    assert [proof["refusals"] for proof in document["proofs"]] == [[]]
    partial = report.with_name("exhaustive.json.partial")
    lines = partial.read_text().splitlines(keepends=True)
    (proof,) = (line for line in lines if "proof " in line)
    # The header and one piece; a proof takes longer than both.
    partial.write_text("".join([*lines[:2], proof]))
    report.unlink()
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.output
    assert "1 of 2 pieces are in" in again.output
    resumed = json.loads(report.read_text())
    assert (resumed["rows"], resumed["proofs"]) == (document["rows"], document["proofs"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--level", "exhaustive", "--mutants"], "exhaustive with --mutants"),
        (["--level", "exhaustive", "--case", "x"], "exhaustive with --case"),
        (["--level", "exhaustive", "--dtype", "fp32"], "one of bf16, fp16"),
        (["--level", "exhaustive", "--suite", "gemm"], "mxfp8_quantize.8x4"),
        (["--level", "exhaustive", "--policy", "even"], "one of rceil/exact"),
        (["--level", "quick", "--dtype", "bf16"], "exhaustive with them"),
    ],
)
def test_wrong_options_are_named(options: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["parity", *options])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
