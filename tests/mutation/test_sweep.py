from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest

from refmoe.errors import ArgumentError
from refmoe.mutation.site import Site
from refmoe.mutation.sites import sampled
from refmoe.mutation.sweep import Ledger, Sweep, WorkerLost, in_order
from refmoe.mutation.trial import Catalogue, Tried

SWEPT = {"sources": "0" * 64, "compiler": "a compiler"}


def site(number: int, kernel: str = "k", operator: str = "guard") -> Site:
    return Site("cuda", kernel, "k.cu", operator, number, 1, "a", "b", number)


def outcome(of: Site, word: str = "caught") -> Tried:
    return Tried(of.id, of.floor, of.kernel, of.operator, word, "case", "bytes", None, 1, 1, 0.0)  # type: ignore[arg-type]


def answers(of: Site, catalogue: Catalogue) -> Tried:
    return outcome(of)


def nothing(of: Site, catalogue: Catalogue) -> None:
    pass


def sweep(path: Path, trial: object = answers, jobs: int = 1) -> Sweep:
    return Sweep(Catalogue([]), Ledger(path, SWEPT), jobs, trial=trial, ready=nothing)  # type: ignore[arg-type]


def test_outcomes_are_kept_and_not_tried_again(tmp_path: Path) -> None:
    sites = [site(number) for number in range(5)]
    path = tmp_path / "out" / "partial.jsonl"
    assert [tried.id for tried in sweep(path).run(sites[:3])] == [each.id for each in sites[:3]]

    def never(of: Site, catalogue: Catalogue) -> Tried:
        assert of in sites[3:]
        return outcome(of)

    rest = sweep(path, never)
    assert [tried.id for tried in rest.run(sites)] == [each.id for each in sites[3:]]
    assert [tried.id for tried in in_order(sites, Ledger(path, SWEPT).done)] == [each.id for each in sites]


def test_outcomes_are_in_the_order_of_the_mutants_however_many_processes_there_are(tmp_path: Path) -> None:
    sites = [site(number) for number in range(12)]
    running = sweep(tmp_path / "p.jsonl", jobs=3)
    assert {tried.id for tried in running.run(list(reversed(sites)))} == {each.id for each in sites}
    assert [tried.id for tried in in_order(sites, running.ledger.done)] == [each.id for each in sites]


def test_a_line_that_a_crash_left_half_written_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    sites = [site(number) for number in range(3)]
    list(sweep(path).run(sites))
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    ledger = Ledger(path, SWEPT)
    assert len(ledger.done) == 2
    assert path.read_bytes() == whole[: whole.rstrip().rfind(b"\n") + 1]
    list(sweep(path).run(sites))
    assert path.read_bytes() == whole


def test_a_file_of_other_sources_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path / "p.jsonl", SWEPT)
    with pytest.raises(ArgumentError, match="of other sources"):
        Ledger(tmp_path / "p.jsonl", {**SWEPT, "sources": "1" * 64})


def test_a_file_that_holds_something_else_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    Ledger(path, SWEPT)
    path.write_text(path.read_text() + json.dumps({"id": "alone"}) + "\n")
    with pytest.raises(ArgumentError, match="line 2 is no outcome"):
        Ledger(path, SWEPT)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.jsonl"
    sites = [site(number) for number in range(4)]
    running = sweep(path)
    real, room = os.write, 2

    def write(descriptor: int, content: bytes) -> int:
        nonlocal room
        room -= 1
        return real(descriptor, content if room >= 0 else content[:10])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left") as caught:
        list(running.run(sites))
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert path.read_bytes().endswith(b"\n")
    assert len(Ledger(path, SWEPT).done) == 2
    assert len(list(sweep(path).run(sites))) == 2


def test_a_lost_process_is_started_again(tmp_path: Path) -> None:
    mark = tmp_path / "lost"

    def dies_once(of: Site, catalogue: Catalogue) -> Tried:
        if of.line == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome(of)

    sites = [site(number) for number in range(3)]
    found = list(sweep(tmp_path / "p.jsonl", dies_once, jobs=2).run(sites))
    assert mark.exists()
    assert {tried.id for tried in found} == {each.id for each in sites}


def test_a_process_that_is_lost_twice_ends_the_sweep_and_keeps_the_rest(tmp_path: Path) -> None:
    def dies(of: Site, catalogue: Catalogue) -> Tried:
        if of.line == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome(of)

    path = tmp_path / "p.jsonl"
    with pytest.raises(WorkerLost, match=r"k\.cu:1:1"):
        list(sweep(path, dies).run([site(0), site(1), site(2)]))
    assert list(Ledger(path, SWEPT).done) == [site(0).id]


def test_an_interrupt_leaves_no_process_and_every_outcome(tmp_path: Path) -> None:
    started = tmp_path / "started"

    def waits(of: Site, catalogue: Catalogue) -> Tried:
        if of.line > 0:
            started.write_text(str(os.getpid()))
            signal.pause()
        return outcome(of)

    path = tmp_path / "p.jsonl"
    running = sweep(path, waits, jobs=2).run([site(0), site(1)])
    assert next(running).id == site(0).id
    while not (started.exists() and started.read_text()):
        pass
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert list(Ledger(path, SWEPT).done) == [site(0).id]


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
