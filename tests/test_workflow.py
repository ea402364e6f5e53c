"""The workflow does what it says: its commands and files exist, its actions are pinned, it needs no secret.

`make workflow` also runs all of its commands.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
JOBS = {
    f"{path.stem}-{name}": job for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()
}
#: What a command writes: the file after one of these.
WRITES = re.compile(r"(?:REPORT=|--(?:html|junit|markdown|report)[ =]|>> ?)(\S+)")
#: A file or a folder of the repository, or one that a command made there.
FILES = re.compile(r"(?<![\w./$-])(?:out|reports|docs|tests|tools|refmoe|\.venv)(?:/[\w./-]+|(?= ))")


def commands(job: dict[str, Any]) -> list[str]:
    """What a job runs, in order."""
    return [step["run"] for step in job["steps"] if "run" in step]


def steps(path: Path) -> list[dict[str, Any]]:
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


def absent(job: dict[str, Any]) -> list[str]:
    """The files that a job's commands read and that neither the repository has nor an earlier command makes.

    A job starts on a clean clone, on a machine of its own; the first `make` makes .venv, and `make test` out/tests.xml.
    """
    made: set[str] = set()
    missing = []
    for step in job["steps"]:
        command = step.get("run", "")
        writes = {name.strip('"') for name in WRITES.findall(command)}
        for file in FILES.findall(command) + FILES.findall(f"{step.get('with', {}).get('path', '')} "):
            name = file.split("/")[0] if file.startswith(".venv/") else file
            if name not in made | writes and (name.startswith(("out", ".venv")) or not (ROOT / name).exists()):
                missing.append(file)
        made |= (
            writes
            | ({".venv"} if "make " in command else set())
            | ({"out/tests.xml"} if "make test" in command else set())
        )
    return missing


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_every_file_is_in_the_repository_or_made_by_an_earlier_command_of_its_job(job: dict[str, Any]) -> None:
    assert commands(job)
    assert absent(job) == []


def test_a_file_that_nobody_made_is_found() -> None:
    gate, parity = (
        ".venv/bin/refmoe gate out/parity.json --baseline reports/none.json",
        "make parity REPORT=out/parity.json",
    )
    assert absent({"steps": [{"run": parity}, {"run": gate}]}) == ["reports/none.json"]
    assert absent({"steps": [{"run": gate}, {"run": parity}]}) == [
        ".venv/bin/refmoe",
        "out/parity.json",
        "reports/none.json",
    ]
    upload = {"with": {"path": "out/parity.json\nout/parity.html\n"}}
    assert absent({"steps": [{"run": parity}, upload]}) == ["out/parity.html"]


PAGES = [command for job in JOBS.values() for command in commands(job) if "refmoe report" in command]


def here(tmp_path: Path) -> dict[str, str]:
    """Lay out what a job finds, without installing anything: the committed reports and this checkout's command."""
    shutil.copytree(ROOT / "reports", tmp_path / "reports")
    command = tmp_path / ".venv" / "bin" / "refmoe"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m refmoe "$@"\n')
    command.chmod(0o755)
    return os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_the_committed_reports_make_a_page(tmp_path: Path) -> None:
    """The line of the gate's job, as it stands there: a new kind of report in reports/ must not break it."""
    (command,) = [command for command in PAGES if command.startswith("find reports")]
    environment = here(tmp_path)
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "out" / "reports.html").read_text()
    assert all(f"<h2>{path.name}</h2>" in page for path in reports() if path.name != "baseline.json")


def test_the_parity_job_makes_its_page_of_a_report(tmp_path: Path) -> None:
    """The other line that makes pages, on a report that is committed."""
    (command,) = [command for command in PAGES if "out/parity.json" in command]
    environment = here(tmp_path)
    (tmp_path / "out").mkdir()
    shutil.copy(ROOT / "reports" / "cutlass.json", tmp_path / "out" / "parity.json")
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"parity.{end}" for end in ("json", "html", "xml", "md")
    }


def reports() -> list[Path]:
    return sorted((ROOT / "reports").rglob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_every_command_succeeds_in_order_on_a_clean_clone(job: dict[str, Any], tmp_path: Path) -> None:
    """As GitHub runs a job: nothing but what is committed, no compiled kernel, `bash -e`, a file for the summary."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    own = {
        "CI": "true",
        "REFMOE_CACHE_DIR": str(tmp_path / "cache"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    # What runs these tests must not show: the clone has an environment and a path of its own.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL", "MAKE", "MFLAGS"))
    }
    for command in commands(job):
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=clone,
            env=kept | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}"
