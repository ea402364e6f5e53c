"""`refmoe bench compare`: verdicts of two reports, and what it refuses."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from refmoe.bench.compare import compare, ratio_of, read_report
from refmoe.cli import app
from refmoe.errors import ArgumentError
from refmoe.reports.documents import digest_of

Rows = dict[str, list[float]]
STEADY = [10.0, 10.1, 9.9, 10.05, 9.95, 10.02, 9.98, 10.0, 10.03]


def _report(path: Path, rows: Rows, /, **changes: Any) -> Path:
    document: dict[str, Any] = {
        "kind": "bench",
        "name": "gpu",
        "gpu": "NVIDIA H200",
        "arch": "sm_90a",
        "rows": [
            {"name": name, "microseconds": float(np.median(each)), "repetitions": each} for name, each in rows.items()
        ],
        **changes,
    }
    document["digest"] = digest_of(document)
    path.write_text(json.dumps(document))
    return path


def _times(factor: float) -> list[float]:
    return [factor * each for each in STEADY]


def _pair(tmp_path: Path, a: Rows, b: Rows, **changes: Any) -> tuple[Path, Path]:
    return _report(tmp_path / "a.json", a), _report(tmp_path / "b.json", b, **changes)


def test_verdicts_by_intervals(tmp_path: Path) -> None:
    a = dict.fromkeys(("slow", "same", "fast"), STEADY)
    b = {"slow": _times(1.1), "same": list(reversed(STEADY)), "fast": _times(0.9)}
    found = compare(*_pair(tmp_path, a, b))
    assert {row["name"]: row["verdict"] for row in found["rows"]} == {
        "slow": "slower",
        "same": "no difference",
        "fast": "faster",
    }
    for row in found["rows"]:
        assert row["low"] <= row["ratio"] <= row["high"]
    assert found["rows"][0]["ratio"] == pytest.approx(1.1)
    assert (found["slower"], found["all_reached"]) == (["slow"], False)


def test_rows_of_one_name_are_paired_in_their_order(tmp_path: Path) -> None:
    def twice(path: Path, second: float) -> Path:
        return _report(path, {}, rows=[{"name": "floor", "repetitions": each} for each in (STEADY, _times(second))])

    found = compare(twice(tmp_path / "a.json", 2.0), twice(tmp_path / "b.json", 3.0))
    assert {row["name"]: row["verdict"] for row in found["rows"]} == {"floor": "no difference", "floor, 2": "slower"}


def test_a_tolerance_lets_pass_what_is_below_it(tmp_path: Path) -> None:
    files = _pair(tmp_path, {"row": STEADY}, {"row": _times(1.1)})
    assert compare(*files, slower_than=0.2)["slower"] == []
    assert compare(*files, slower_than=0.05)["slower"] == ["row"]
    with pytest.raises(ArgumentError, match=r"slower_than: found -0\.1; needed a share of zero or more"):
        compare(*files, slower_than=-0.1)


def test_the_same_reports_give_the_same_intervals(tmp_path: Path) -> None:
    files = _pair(tmp_path, {"row": STEADY}, {"row": _times(1.01)})
    assert compare(*files) == compare(*files)


def test_noise_is_rarely_called_a_difference() -> None:
    rng = np.random.default_rng(3)
    wrong = sum(
        ratio_of(*(rng.normal(10, 0.3, 15).tolist() for _ in range(2)))["verdict"] != "no difference"
        for _ in range(200)
    )
    assert wrong <= 20  # 5 % would be 10; a test that calls everything the same would pass, so:
    found = sum(
        ratio_of(rng.normal(10, 0.3, 15).tolist(), rng.normal(10.6, 0.3, 15).tolist())["verdict"] == "slower"
        for _ in range(50)
    )
    assert found >= 45


def test_an_interval_is_wider_for_more_rows(tmp_path: Path) -> None:
    noisy = np.random.default_rng(5).normal(10, 0.5, (2, 15)).tolist()
    one = compare(*_pair(tmp_path, {"0": noisy[0]}, {"0": noisy[1]}))["rows"][0]
    names = [str(number) for number in range(40)]
    many = compare(*_pair(tmp_path, dict.fromkeys(names, noisy[0]), dict.fromkeys(names, noisy[1])))["rows"][0]
    assert many["low"] < one["low"]
    assert one["high"] < many["high"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "deepseek_gemm"}, "reports of gpu and of deepseek_gemm; needed two reports of one benchmark"),
        ({"gpu": "NVIDIA H100"}, "gpu NVIDIA H200 and NVIDIA H100; needed two reports of one machine"),
        ({"rows": []}, "without a row"),
        ({"rows": {"a": 1}}, "of the benchmark gpu, without rows"),
        ({"rows": [{"microseconds": 1}]}, "row 0 without a name"),
        ({"rows": [{"name": "row"}, {"name": "row"}]}, "a.json, without the row 'row, 2'"),
        ({"rows": [{"name": "other", "repetitions": STEADY}]}, "without the row 'row'; needed the same rows in both"),
        (
            {"rows": [{"name": "row", "microseconds": 10.0}]},
            "whose row 'row' keeps no repetitions; needed .*ratios-only",
        ),
        ({"rows": [{"name": "row", "repetitions": [1.0, 2.0]}]}, "whose row 'row' has 2 repetitions; needed 5 or more"),
        ({"rows": [{"name": "row", "repetitions": [0.0] * 9}]}, "has repetitions that are no times"),
        ({"kind": "drift"}, "JSON of something else"),
    ],
)
def test_reports_that_cannot_be_compared_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    files = _pair(tmp_path, {"row": STEADY}, {"row": STEADY}, **changes)
    with pytest.raises(ArgumentError, match=message):
        compare(*files)


def test_a_row_that_only_the_second_has_is_refused(tmp_path: Path) -> None:
    files = _pair(tmp_path, {"row": STEADY}, {"row": STEADY, "new": STEADY})
    with pytest.raises(ArgumentError, match=r"a\.json, without the row 'new'"):
        compare(*files)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    good = _report(tmp_path / "good.json", {"row": STEADY})
    bad = tmp_path / "bad.json"
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_report(bad)
    bad.write_text(good.read_text()[:-20])
    with pytest.raises(ArgumentError, match="no JSON, so no report"):
        read_report(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match="byte order mark of UTF-16"):
        read_report(bad)
    bad.write_text(good.read_text().replace("10.1", "10.2"))
    with pytest.raises(ArgumentError, match="digest is not that of its content"):
        read_report(bad)


def test_old_reports_give_ratios_and_no_verdict(tmp_path: Path) -> None:
    old = {"rows": [{"name": "row", "microseconds": 11.0}]}
    a = _report(tmp_path / "a.json", {"row": STEADY})
    found = compare(a, _report(tmp_path / "b.json", {}, **old), ratios_only=True)
    assert found["rows"] == [{"name": "row", "a_microseconds": 10.0, "b_microseconds": 11.0, "ratio": 1.1}]
    assert found["slower"] == []
    assert found["confidence"] is None


def test_the_command_and_its_exit_status(tmp_path: Path) -> None:
    a, b = _pair(tmp_path, {"row": STEADY}, {"row": _times(1.1)})

    def run(*arguments: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["bench", "compare", *arguments])
        return found.exit_code, re.sub(r"\s+", " ", found.output)

    assert run(str(a), str(a))[0] == 0
    status, text = run(str(a), str(b))
    assert status == 1
    assert "slower" in text
    assert run(str(a), str(b), "--slower-than", "0.3")[0] == 0
    status, text = run(str(a))
    assert status == 2
    assert "needed two reports" in text
    assert CliRunner().invoke(app, ["bench", "quantize", str(a)]).exit_code == 2
    assert CliRunner().invoke(app, ["bench", "gpu", "--slower-than", "0.1"]).exit_code == 2


@pytest.mark.parametrize(
    "text", ['{"kind": NaN}', '{"kind": 1e999}', "9" * 5000, '{"kind": 1, "kind": 1}', "[" * 100_000]
)
def test_what_no_json_reader_should_take_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match="no JSON, so no report"):
        read_report(path)


def test_a_pipe_makes_nobody_wait(tmp_path: Path) -> None:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    with pytest.raises(ArgumentError, match="a pipe, and no file"):
        read_report(path)
