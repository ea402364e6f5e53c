"""What README says of reports that are not there, or hold nothing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools/readme.py"


@pytest.fixture
def readme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """tools/readme.py, which reads reports of a folder that is empty."""
    spec = importlib.util.spec_from_file_location("readme_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "REPORTS", tmp_path)
    return module


def _schedules(folder: Path, *cases: dict[str, Any]) -> None:
    (folder / "schedules.json").write_text(json.dumps({"cases": cases}))


def test_a_report_that_is_not_there_is_to_be_made_again(readme: ModuleType) -> None:
    lines = readme._silicon().splitlines()
    assert len(lines) == 4
    assert all("to be run again" in line for line in lines)


def test_a_report_in_which_nothing_ran_is_to_be_made_again(readme: ModuleType, tmp_path: Path) -> None:
    again = readme._schedules()
    for cases in ((), ({"verdict": "UNSUPPORTED", "schedules": 1}, {"verdict": "SKIPPED", "schedules": 1})):
        _schedules(tmp_path, *cases)
        assert readme._schedules() == again
    again = readme._stress()
    (tmp_path / "stress.json").write_text(json.dumps({"reruns": [], "sanitizers": []}))
    assert readme._stress() == again


def test_the_fewest_schedules_of_a_case_are_told(readme: ModuleType, tmp_path: Path) -> None:
    ran = {"verdict": "PASS", "schedules": 16}
    _schedules(tmp_path, ran, {**ran, "schedules": 9}, {**ran, "verdict": "ERROR"}, {"verdict": "SKIPPED"})
    assert readme._schedules() == "- 2 of 3 cases leave the same bytes under 9 legal schedules of each launch."
