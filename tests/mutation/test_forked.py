"""Mutants tried in forks: what a fork does to itself stays there, and what becomes of it ends in a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from refmoe.errors import ArgumentError
from refmoe.mutation import document, forked
from refmoe.mutation.document import open_ledger, outcomes_of
from refmoe.mutation.forked import NoAnswer, try_forked
from refmoe.mutation.site import Site
from refmoe.mutation.sites import sampled
from refmoe.mutation.trial import Catalogue, Tried
from refmoe.verify.sweep import WorkerLost


def site(number: int, kernel: str = "k", operator: str = "guard") -> Site:
    return Site("cuda", kernel, "k.cu", operator, number, 1, "a", "b", number)


def outcome(of: Site, word: str = "caught") -> Tried:
    return Tried(of.id, of.floor, of.kernel, of.operator, word, "case", "bytes", None, 1, 1, 0.0)  # type: ignore[arg-type]


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_fork_changes_stays_in_it() -> None:
    held = [1]

    def change() -> tuple[int, list[int]]:
        held.append(2)
        return os.getpid(), held

    pid, found = forked.forked(change, 60)
    assert (found, held) == ([1, 2], [1])
    assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_answer_may_be_longer_than_a_pipe_holds() -> None:
    assert forked.forked(lambda: bytes(1 << 20), 60) == bytes(1 << 20)


def test_a_fork_that_is_killed_or_fails_gives_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoAnswer, match="status -9"):
        forked.forked(kill_oneself, 60)
    with pytest.raises(NoAnswer):
        forked.forked(lambda: 1 // 0, 60)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_fork_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    mark = tmp_path / "pid"

    def hang() -> None:
        mark.write_text(str(os.getpid()))
        signal.pause()

    with pytest.raises(TimeoutError):
        forked.forked(hang, 0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


SCRIPT = """
import pathlib, os, signal, sys
from refmoe.mutation.forked import forked
def hang():
    pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()}.")
    signal.pause()
forked(hang, 600)
"""


def test_a_fork_ends_with_its_worker(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    worker = subprocess.Popen([sys.executable, "-c", SCRIPT, mark])
    while not (mark.exists() and mark.read_text().endswith(".")):
        assert worker.poll() is None
        time.sleep(0.05)
    child = int(mark.read_text()[:-1])
    worker.kill()
    worker.wait()
    for _ in range(100):
        # One that has ended and that nobody has waited for is still there, as a zombie.
        status = Path(f"/proc/{child}/status")
        if not status.exists() or "State:\tZ" in status.read_text():
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the fork lives on")


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts another trial in place of the real one."""

    def put(attempt: Any) -> None:
        monkeypatch.setattr(forked, "attempt", attempt)

    monkeypatch.setattr(forked, "_catalogue", lambda: Catalogue([]))
    return put


def test_a_lost_fork_is_tried_again(trial: Any, tmp_path: Path) -> None:
    mark = tmp_path / "lost"

    def dies_once(of: Site, catalogue: Catalogue, most: int | None) -> Tried:
        if not mark.exists():
            mark.touch()
            kill_oneself()
        return outcome(of)

    trial(dies_once)
    assert try_forked(site(1)) == outcome(site(1)).document()
    assert mark.exists()


def test_a_mutant_whose_fork_is_lost_twice_is_named(trial: Any) -> None:
    trial(lambda *arguments: kill_oneself())
    with pytest.raises(WorkerLost, match=r"k\.cu:1:1.* ended 2 times without an answer \(status -9\)"):
        try_forked(site(1))


def test_a_mutant_that_takes_too_long_is_timed_out(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "TRIAL_SECONDS", 0.5)
    trial(lambda *arguments: signal.pause())
    found = Tried(**try_forked(site(1)))
    assert (found.outcome, found.check, found.id) == ("timed out", "time", site(1).id)


def test_outcomes_are_kept_in_the_order_of_the_mutants(tmp_path: Path) -> None:
    sites = [site(number) for number in range(4)]
    ledger = open_ledger(tmp_path / "partial")
    for each in (sites[2], sites[0]):
        ledger.add(each.id, outcome(each).document())
    assert outcomes_of(sites, open_ledger(tmp_path / "partial")) == [outcome(sites[0]), outcome(sites[2])]


def test_outcomes_of_other_sources_or_of_something_else_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "partial"
    open_ledger(path).add(site(1).id, {"id": "alone"})
    with pytest.raises(ArgumentError, match="no outcome"):
        outcomes_of([site(1)], open_ledger(path))
    monkeypatch.setattr(document, "_compiler", lambda: "another")
    with pytest.raises(ArgumentError, match="other sources"):
        open_ledger(path)


def test_a_sample_meets_every_kernel_and_operator_before_any_twice() -> None:
    sites = [site(number, "big") for number in range(50)] + [site(100 + n, "small", f"o{n}") for n in range(4)]
    few = sampled(sites, 5, seed=1)
    assert {(each.kernel, each.operator) for each in few} == {("big", "guard"), *(("small", f"o{n}") for n in range(4))}
    assert sampled(sites, 5, seed=1) == few
    more = sampled(sites, 20, seed=1)
    assert set(few) < set(more)
    assert len(more) == 20
    assert [sites.index(each) for each in more] == sorted(sites.index(each) for each in more)
    assert sampled(sites, 1, seed=2) != sampled(sites, 1, seed=5) or sampled(sites, 20, 2) != sampled(sites, 20, 5)
