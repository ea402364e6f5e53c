"""How long `make parity` takes at the second time, by the default level of an earlier commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from refmoe.bench.timing import machine, verdict
from refmoe.errors import RefmoeError

TARGETS = {"again_s": 20.0}
"""At most so long once everything is compiled."""

#: The commit whose cases and faults are timed. Later ones have more, so that their times tell nothing of the executor.
EARLIER = "2db4e6e"
_LISTS = Path(__file__).with_name("data")
_RAN = {"PASS", "UNSUPPORTED"}


def earlier(what: str) -> list[str]:
    """The "cases" of the default level of commit `EARLIER`, as they are written now, or its "faults" by name."""
    return (_LISTS / f"earlier_{what}.txt").read_text(encoding="utf-8").split()


def run(*, rounds: int = 2, cases: list[str] | None = None) -> dict[str, Any]:
    """The cases of the default level of commit 2db4e6e, by `refmoe parity` with a process for each core.

    They run once unmeasured, which compiles what is not in the cache yet, and then `rounds` times. What is timed is the
    whole command, with the start of Python. The best of the rounds counts: load only adds.

    Args:
        rounds: measured runs.
        cases: other cases, by their repro strings.

    Returns:
        JSON-able: `earlier`, `cases`, `again_s`, `rows` by run with `seconds`, `jobs`, `cores`, `versions`, `targets`,
        `reached` by target, and `all_reached`.

    Raises:
        RefmoeError: a case does not pass, or is skipped: CUTLASS's kernel is among them, which has to be built.
    """
    chosen = earlier("cases") if cases is None else cases
    jobs = len(os.sched_getaffinity(0))
    seconds = [_once(chosen, jobs) for _ in range(1 + rounds)]
    best = min(seconds[1:])
    return {
        "earlier": EARLIER,
        "cases": len(chosen),
        "again_s": best,
        "rows": [{"run": "again" if number else "first", "seconds": took} for number, took in enumerate(seconds)],
        "jobs": jobs,
        **machine("llvmlite"),
        **verdict(TARGETS, {"again_s": best <= TARGETS["again_s"]}),
    }


def _once(cases: list[str], jobs: int) -> float:
    """Seconds of one run of the command."""
    with tempfile.TemporaryDirectory(prefix="refmoe-parity-") as folder:
        report = Path(folder) / "parity.json"
        command = [sys.executable, "-m", "refmoe", "parity", "--jobs", str(jobs), "--report", str(report)]
        command += [part for case in cases for part in ("--case", case)]
        start = time.perf_counter()
        ran = subprocess.run(command, env=environment(), capture_output=True, text=True)
        took = time.perf_counter() - start
        if not report.is_file():
            raise RefmoeError(f"bench parity: {last_line(ran)}")
        for record in json.loads(report.read_text())["cases"]:
            if record["verdict"] not in _RAN:
                raise RefmoeError(f"bench parity: {record['id']}: {record['verdict']}: {record['reason']}")
        if ran.returncode:
            raise RefmoeError(f"bench parity: {last_line(ran)}")
        return took


def environment(**more: str) -> dict[str, str]:
    """That of a process which imports this refmoe, wherever it is started."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **more}


def last_line(ran: subprocess.CompletedProcess[str]) -> str:
    """What a process that failed said last."""
    said = (ran.stderr or ran.stdout).strip().splitlines()
    return said[-1] if said else f"it ended with status {ran.returncode} and said nothing"
