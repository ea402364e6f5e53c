"""A long sweep in pieces: what is done is on the disk, and another run goes on from there.

A *piece* has a name and is done by a function in some process. Its result, a JSON value, is a line of the ledger as
soon as it is known. Ctrl-C, a lost worker or a full disk cost the pieces under way and no others. Results come out in
the order of the pieces, whatever the order in which they were done.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from refmoe.errors import ArgumentError, RefmoeError, describe

#: How often a piece is begun whose worker is lost.
ATTEMPTS = 3


class WorkerLost(RefmoeError):
    """Workers ended without an answer, again and again, on the same pieces; the message names these."""


class Ledger:
    """The results of a sweep in a file: a line that says what was swept, then a line for each piece.

    A line is written whole or not at all: what a full disk leaves of one is cut off. A last line without its end, left
    by a machine that went down, is cut off when the file is opened.

    Args:
        path: the file; it is made if it is not there.
        swept: what results depend on, as JSON values: sources, compiler.
        fresh: start anew whatever the file holds, if it is a ledger.

    Raises:
        ArgumentError: the file is of another sweep, or no ledger.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path, swept: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        self.done: dict[str, Any] = {}
        head = json.dumps({"kind": "sweep", **swept}, sort_keys=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole:
            whole = self._read(whole, head, fresh)
        elif content:
            raise self._no_ledger("which has no whole line")
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        if not whole:
            self._append(head)

    def _read(self, whole: bytes, head: str, fresh: bool) -> bytes:
        """Take the results of a file's whole lines; returns what of them stays."""
        try:
            first, *lines = whole.decode().splitlines()
            is_ledger = json.loads(first).get("kind") == "sweep"
        except (ValueError, AttributeError) as error:
            raise self._no_ledger("whose first line is none of a sweep") from error
        if not is_ledger:
            raise self._no_ledger("whose first line is none of a sweep")
        if fresh:
            return b""
        if first != head:
            raise ArgumentError(
                "partial", f"{self.path}, made from other sources or settings", "results of these, --fresh, or no file"
            )
        for number, line in enumerate(lines, 2):
            try:
                entry = json.loads(line)
                self.done[entry["piece"]] = entry["result"]
            except (ValueError, KeyError, TypeError) as error:
                raise self._no_ledger(f"whose line {number} is no result") from error
        return whole

    def _no_ledger(self, why: str) -> ArgumentError:
        return ArgumentError("partial", f"{self.path}, {why}", "the partial results of a sweep, or no file")

    def add(self, piece: str, result: Any) -> None:
        """Write a result down.

        Raises:
            OSError: the disk is full, or the file went away; what it held before is as it was.
        """
        self._append(json.dumps({"piece": piece, "result": result}, sort_keys=True, allow_nan=False))
        self.done[piece] = result

    def _append(self, line: str) -> None:
        content = f"{line}\n".encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)


def processes(jobs: int) -> Executor:
    """A pool of `jobs` processes that leave Ctrl-C to the process that started them."""
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_leave_interrupts)


def _leave_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def sweep(
    pieces: Sequence[str],
    work: Callable[[str], Any],
    ledger: Ledger,
    open_pool: Callable[[], Executor],
    jobs: int,
) -> Iterator[tuple[str, Any]]:
    """Do what is not in the ledger yet, and yield (piece, result) as results come.

    Args:
        pieces: their names; those that are done are left out.
        work: does a piece, named, in another process: a function of a module.
        ledger: where results go.
        open_pool: opens a `concurrent.futures.Executor`, of this machine or of several; called again after a pool is
            lost.
        jobs: how many pieces are under way at a time.

    Raises:
        ArgumentError: a name twice.
        WorkerLost: a worker was lost `ATTEMPTS` times under the same piece, killed for want of memory for example.
        OSError: a result cannot be written.
    """
    if len(set(pieces)) < len(pieces):
        twice = next(piece for place, piece in enumerate(pieces) if piece in pieces[:place])
        raise ArgumentError("pieces", f"{describe(twice)} twice", "a name for each")
    pending = [piece for piece in reversed(pieces) if piece not in ledger.done]
    attempts: dict[str, int] = {}
    while pending:
        pool = open_pool()
        running: dict[Future[Any], str] = {}
        try:
            while pending or running:
                while pending and len(running) < jobs:
                    piece = pending.pop()
                    attempts[piece] = attempts.get(piece, 0) + 1
                    running[pool.submit(work, piece)] = piece
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    piece = running.pop(future)
                    ledger.add(piece, result)
                    yield piece, result
        except BrokenProcessPool as error:
            # Nobody knows which piece it was, and those that were done are in the ledger.
            lost = sorted(running.values())
            spent = [piece for piece in lost if attempts[piece] >= ATTEMPTS]
            if spent:
                said = f"{ATTEMPTS} times a worker ended without an answer while these were under way"
                raise WorkerLost(f"{said}: {', '.join(spent)}") from error
            pending += reversed(lost)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def in_order(pieces: Sequence[str], ledger: Ledger) -> dict[str, Any]:
    """The results that the ledger has of `pieces`, in their order."""
    return {piece: ledger.done[piece] for piece in pieces if piece in ledger.done}
