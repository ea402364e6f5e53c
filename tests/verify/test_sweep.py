"""A sweep in pieces: what is done stays, whatever becomes of the process, the workers and the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest
from support.selection.thinned import thinned

from refmoe.errors import ArgumentError
from refmoe.verify.sweep import Ledger, Results, WorkerLost, _Pending, in_order, sweep
from refmoe.verify.workers import Workers, processes

PIECES = {f"piece {number}": f"piece {number}" for number in range(6)}
BACKWARDS = list(PIECES)[::-1]


def threads(number: int) -> Workers:
    return Workers(partial(ThreadPoolExecutor, number), number)


def double(piece: str) -> int:
    return 2 * int(piece.split()[1])


def die_once(piece: str, folder: str) -> int:
    """Kills its own process the first time that piece 2 comes."""
    mark = Path(folder) / "died"
    if piece == "piece 2" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return double(piece)


class Losing(Executor):
    """Loses its worker under one piece."""

    def __init__(self, lost: str, times: int) -> None:
        self.lost, self.times = lost, times

    def submit(self, work, piece):  # type: ignore[no-untyped-def]
        future: Future[int] = Future()
        if piece == self.lost and self.times > 0:
            self.times -= 1
            future.set_exception(BrokenProcessPool("gone"))
        else:
            future.set_result(work(piece))
        return future


def test_results_are_kept_and_come_in_the_order_of_the_pieces(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger"
    done = []
    generator = sweep(PIECES, double, Ledger(path, {"of": 1}), threads(1))
    for _ in range(3):
        done.append(next(generator)[0])
    generator.close()
    ledger = Ledger(path, {"of": 1})
    assert set(done) <= set(ledger.done)
    asked = []

    def work(piece: str) -> int:
        asked.append(piece)
        return double(piece)

    list(sweep(PIECES, work, ledger, threads(3)))
    assert not set(asked) & set(done)
    assert in_order(BACKWARDS, Ledger(path, {"of": 1})) == {piece: double(piece) for piece in BACKWARDS}
    assert list(in_order(BACKWARDS, ledger)) == BACKWARDS


def test_a_killed_worker_costs_its_piece_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", {})
    list(sweep(PIECES, partial(die_once, folder=str(tmp_path)), ledger, processes(2)))
    assert (tmp_path / "died").exists()
    assert in_order(PIECES, ledger) == {piece: double(piece) for piece in PIECES}


def test_a_piece_that_kills_every_worker_is_named(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", {})
    with pytest.raises(WorkerLost, match=r"3 times .* piece 4"):
        list(sweep(PIECES, double, ledger, Workers(partial(Losing, "piece 4", 99), 1)))
    assert set(ledger.done) == set(list(PIECES)[:4])
    pool = Losing("piece 4", 2)
    list(sweep(PIECES, double, ledger, Workers(lambda: pool, 1)))
    assert set(ledger.done) == set(PIECES)


def test_who_has_done_a_piece_does_its_neighbour() -> None:
    """Two workers begin far apart. The first is quick: it ends its half, and takes half of what the other has left."""
    pending, begun = _Pending(list("abcdefgh"), 2), ""
    for running in ("", "a", "e", "e", "e", "e", "eg", "hg"):
        stretch = pending.stretch(set(running))
        begun += stretch.left[0]
        pending.begun(stretch)
    assert begun == "aebcdgfh"
    assert not pending
    pending.put_back(["c", "d"])
    assert pending.stretch({"c"}).left[0] == "c"


def test_half_a_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path, {})
    ledger.add("a", {"found": 1})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"piece": "b", "res')
    assert Ledger(path, {}).done == {"a": {"found": 1}}
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no json\n", "first line is none of a sweep"),
        (b"[1]\n", "first line is none of a sweep"),
        (b'{"kind": "other"}\n', "first line is none of a sweep"),
        (b"half a line", "no whole line"),
        (b'{"kind": "sweep"}\n{"piece": 3}\n', "line 2 is no result"),
        (b'{"kind": "sweep", "of": 2}\n', "other sources"),
    ],
)
def test_another_file_is_refused_and_stays(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=words):
        Ledger(path, {})
    assert path.read_bytes() == content


def test_fresh_drops_results_of_a_sweep_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger(path, {"of": 1}).add("a", 1)
    assert Ledger(path, {"of": 2}, fresh=True).done == {}
    path.write_bytes(b"a letter\n")
    with pytest.raises(ArgumentError):
        Ledger(path, {}, fresh=True)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path, {})
    before = path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:5]))
    with pytest.raises(OSError, match="No space left"):
        ledger.add("a", 1)
    assert path.read_bytes() == before
    assert "a" not in ledger.done


def test_results_may_stay_in_memory() -> None:
    results = Results()
    assert dict(sweep(PIECES, double, results, threads(2))) == results.done
    assert in_order(BACKWARDS, results) == {piece: double(piece) for piece in PIECES}


def test_what_the_workers_give_up_is_named(tmp_path: Path) -> None:
    def refuse(piece: str) -> int:
        if piece == "piece 3":
            raise CancelledError
        return double(piece)

    ledger = Ledger(tmp_path / "ledger", {})
    giving_up = Workers(partial(ThreadPoolExecutor, 1), 1, (CancelledError,))
    with pytest.raises(WorkerLost, match="the workers gave piece 3 up: CancelledError"):
        list(sweep(PIECES, refuse, ledger, giving_up))
    assert list(ledger.done) == list(PIECES)[:3]


SCRIPT = """
import sys, time
from pathlib import Path
from refmoe.verify.sweep import Ledger, sweep
from refmoe.verify.workers import processes

def slow(piece):
    time.sleep(0.2)
    return piece

if __name__ == "__main__":
    for piece, _ in sweep({str(n): n for n in range(200)}, slow, Ledger(Path(sys.argv[1]), {}), processes(2)):
        print(piece, flush=True)
"""


@pytest.mark.parametrize("end", thinned([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], 3))
def test_after_an_interrupt_no_process_is_left_and_results_are_there(tmp_path: Path, end: signal.Signals) -> None:
    """Ctrl-C goes to all processes of a terminal, other signals to the one that is named."""
    script, path = tmp_path / "script.py", tmp_path / "ledger"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, script, path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    shown = [process.stdout.readline().strip() for _ in range(2)]
    (os.killpg if end is signal.SIGINT else os.kill)(process.pid, end)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert set(shown) <= set(Ledger(path, {}).done)
    for _ in range(100):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        raise AssertionError("a process is left")
