"""Work on a dask cluster of this machine, of which a worker is killed; and clusters that cannot serve."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from refmoe.cli import app
from refmoe.errors import ArgumentError
from refmoe.exhaustive import pieces
from refmoe.exhaustive.pieces import SUBJECTS, Piece
from refmoe.mutation.forked import forked
from refmoe.verify import workers
from refmoe.verify.sweep import Ledger, Results, in_order, sweep
from refmoe.verify.workers import choose_workers, installation, on_cluster

pytest.importorskip("distributed")
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Cluster:
    """A scheduler and its workers, each a process."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    address: str = ""

    def start(self, command: str, *arguments: str, path: Path = ROOT) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{command}", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])},
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / f"{command}-{len(self.processes)}.log").open("wb"),
            cwd=self.folder,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def scheduler(self) -> None:
        file = self.folder / "scheduler.json"
        self.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        until(file.exists)
        self.address = json.loads(file.read_text())["address"]

    def worker(self, *options: str, path: Path = ROOT) -> subprocess.Popen[bytes]:
        return self.start("worker", self.address, "--nthreads", "1", "--no-dashboard", *options, path=path)

    def count(self) -> int:
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            return len(client.scheduler_info()["workers"])


def until(true: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.scheduler()
        yield made
    finally:
        for process in reversed(made.processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def thin(monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """A few amaxes of a kernel and of a reference, instead of all."""
    chosen = [
        Piece(SUBJECTS[name], "fp16", "rceil", "exact", amax, amax)
        for amax in range(3, 24000, 5000)
        for name in ("mxfp8_quantize.8x4", "reference.mxfp4")
    ]
    monkeypatch.setattr(pieces, "list_pieces", lambda suites, dtypes: chosen)
    return chosen


@pytest.mark.slow
def test_a_sweep_is_complete_and_in_order_though_one_of_two_workers_is_killed(
    cluster: Cluster, thin: list[Piece], tmp_path: Path
) -> None:
    first = cluster.worker("--no-nanny")
    cluster.worker()  # its process is a daemon of its nanny
    until(lambda: cluster.count() == 2)
    report = tmp_path / "cluster.json"
    partial_results = report.with_name("cluster.json.partial")

    def done() -> int:
        return len(partial_results.read_bytes().splitlines()) - 1 if partial_results.exists() else 0

    at_the_kill = []

    def kill() -> None:
        until(lambda: done() >= 2)
        os.kill(first.pid, signal.SIGKILL)
        at_the_kill.append(done())

    killer = threading.Thread(target=kill)
    killer.start()
    found = CliRunner().invoke(
        app, ["parity", "--level", "exhaustive", "--cluster", cluster.address, "--report", str(report)]
    )
    killer.join()
    assert found.exit_code == 0, found.output
    assert 2 <= at_the_kill[0] < len(thin)
    assert first.wait() == -signal.SIGKILL
    names = [str(piece) for piece in thin]
    entries = [json.loads(line) for line in partial_results.read_text().splitlines()[1:]]
    # Each piece has one line, whether it was begun twice or not, and so has the proof of the one kernel among them.
    swept, proved = (
        [each["piece"] for each in entries if each["piece"].startswith("proof ") == is_proof]
        for is_proof in (False, True)
    )
    assert sorted(swept) == sorted(names)
    assert [name.split(" of ")[1] for name in proved] == ["refmoe_mxfp8_quantize_fp16_rceil_exact_8x4"]
    alone = tmp_path / "alone.json"
    here = CliRunner().invoke(app, ["parity", "--level", "exhaustive", "--report", str(alone)])
    assert here.exit_code == 0, here.output
    documents = [json.loads(each.read_text()) for each in (report, alone)]
    assert documents[0]["rows"] == documents[1]["rows"]
    assert documents[0]["proofs"] == documents[1]["proofs"]
    assert len({json.dumps(row, sort_keys=True) for row in documents[0]["rows"]}) == len(documents[0]["rows"])
    names += proved
    results = [{e["piece"]: e["result"] for e in entries}[name] for name in names]
    lines = alone.with_name("alone.json.partial").read_text().splitlines()[1:]
    assert results == [{e["piece"]: e["result"] for e in map(json.loads, lines)}[name] for name in names]


@pytest.mark.slow
def test_cases_and_forks_run_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    cluster.worker()
    report = tmp_path / "parity.json"
    asked = ["parity", "--level", "quick", "--suite", "finalize", "--report", str(report)]
    found = CliRunner().invoke(app, [*asked, "--cluster", cluster.address])
    assert found.exit_code == 0, found.output
    there = json.loads(report.read_text())["cases"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    here = json.loads(report.read_text())["cases"]
    for case in (*there, *here):
        del case["seconds"]
    assert there == here
    results = Results()
    items = {str(power): partial(pow, 2, power) for power in range(5)}
    list(sweep(items, partial(forked, seconds=60), results, on_cluster(cluster.address)))
    assert in_order(items, results) == {str(power): 2**power for power in range(5)}


def test_a_worker_that_is_another_refmoe_does_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster.worker("--no-nanny")
    monkeypatch.setattr(workers, "installation", lambda: {**installation(), "refmoe": "0" * 64})
    ledger = Ledger(tmp_path / "ledger", {})
    with pytest.raises(ArgumentError, match=r"a worker on .* with another refmoe"):
        list(sweep({"a": 1}, abs, ledger, on_cluster(cluster.address)))
    assert not ledger.done


@pytest.mark.slow
def test_a_worker_without_refmoe_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "refmoe.py").write_text("raise ImportError('another package')")
    cluster.worker("--no-nanny", path=tmp_path)
    with pytest.raises(ArgumentError, match=r"a worker that cannot load refmoe \(.*; needed this refmoe"):
        list(sweep({"a": 1}, abs, Results(), on_cluster(cluster.address)))


def test_a_cluster_without_a_worker_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_CONNECT_SECONDS", 2.0)
    with pytest.raises(ArgumentError, match=re.escape(f"no worker at {cluster.address}")):
        list(sweep({"a": 1}, abs, Results(), on_cluster(cluster.address)))


def test_an_address_where_nobody_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_CONNECT_SECONDS", 2.0)
    for address in ("tcp://127.0.0.1:1", "nowhere"):
        with pytest.raises(ArgumentError, match=f"no scheduler at {address}"):
            list(sweep({"a": 1}, abs, Results(), on_cluster(address)))


def test_jobs_and_a_cluster_are_one_too_many() -> None:
    with pytest.raises(ArgumentError, match="4 with --cluster"):
        choose_workers(4, "tcp://127.0.0.1:1")


@pytest.mark.parametrize(("options", "words"), [(["--device", "cuda"], "--device cuda"), (["--mutants"], "--mutants")])
def test_what_a_cluster_cannot_vouch_for_is_refused(options: list[str], words: str) -> None:
    found = CliRunner().invoke(app, ["parity", "--cluster", "tcp://127.0.0.1:1", *options])
    assert found.exit_code == 2
    assert f"tcp://127.0.0.1:1 with {words}" in " ".join(found.output.split())
