"""The workflow does what it says: its targets exist, its actions are pinned, it needs no secret."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(path: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


def test_there_is_a_workflow() -> None:
    assert WORKFLOWS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_its_actions_are_those_of_github_and_pinned_to_a_major_version(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used), used


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_it_needs_no_secret_and_may_only_read(path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    assert "secrets." not in path.read_text()
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_its_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {name for step in steps(path) for name in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    assert called
    assert called <= targets, f"no target {sorted(called - targets)} in the Makefile"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_its_refmoe_commands_and_options_exist(path: Path) -> None:
    from typer.testing import CliRunner

    from refmoe.cli import app

    called = [line for step in steps(path) for line in re.findall(r"bin/refmoe ([^\n;|&]+)", step.get("run", ""))]
    assert called
    for line in called:
        command, *words = line.split()
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0, command
        assert all(word in shown.output for word in words if word.startswith("--")), line
