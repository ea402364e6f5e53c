"""A long sweep in pieces: what is done is on the disk, and another run goes on from there.

A *piece* has a name and is done by a function in some process, of this machine or of a cluster. Its result, a JSON
value, is a line of the ledger as soon as it is known. Ctrl-C, a lost worker or a full disk cost the pieces under way
and no others. Results come out in the order of the pieces, whatever the order in which they were done.
"""

from __future__ import annotations

import errno
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from refmoe.errors import ArgumentError, RefmoeError
from refmoe.verify.workers import Workers, deaf_to_interrupts

Item = TypeVar("Item")

#: How often a piece is begun whose worker is lost.
ATTEMPTS = 3


class WorkerLost(RefmoeError):
    """Workers ended without an answer, again and again, on the same pieces; the message names these."""


class Results:
    """The results of a sweep by piece, in memory.

    Attributes:
        done: the result of each piece that is done.
    """

    def __init__(self) -> None:
        self.done: dict[str, Any] = {}

    def add(self, piece: str, result: Any) -> None:
        """Keep a result."""
        self.done[piece] = result


class Ledger(Results):
    """The results of a sweep in a file: a line that says what was swept, then a line for each piece.

    A line is written whole or not at all: what a full disk leaves of one is cut off. A last line without its end, left
    by a machine that went down, is cut off when the file is opened.

    Args:
        path: the file; it is made if it is not there.
        swept: what results depend on, as JSON values: sources, compiler.
        fresh: start anew whatever the file holds, if it is a ledger.
        synced: a result is on the disk before the next one is taken. Otherwise a machine that goes down, not a process
            that ends, may cost the results of the last seconds.

    Raises:
        ArgumentError: the file is of another sweep, or no ledger.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path, swept: Mapping[str, Any], *, fresh: bool = False, synced: bool = True) -> None:
        super().__init__()
        self.path = path
        self._synced = synced
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
        super().add(piece, result)

    def _append(self, line: str) -> None:
        content = f"{line}\n".encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                if self._synced:
                    os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)


@dataclass
class _Stretch:
    """Pieces that follow one another.

    Attributes:
        left: those that nobody has begun.
        last: the last one that somebody began.
    """

    left: deque[str]
    last: str | None = None


class _Pending:
    """What nobody has begun, in stretches: who has done a piece mostly does the one after it.

    Neighbours need much the same, and a process keeps what it has loaded.

    Args:
        pieces: in their order.
        count: of the stretches.
    """

    def __init__(self, pieces: list[str], count: int) -> None:
        length = max(1, -(-len(pieces) // count))
        parts = (pieces[start : start + length] for start in range(0, len(pieces), length))
        self._stretches = [_Stretch(deque(part)) for part in parts]

    def __bool__(self) -> bool:
        return bool(self._stretches)

    def stretch(self, running: Set[str]) -> _Stretch:
        """The one to go on with: one at which nobody works, or half of what is left of the longest."""
        for each in self._stretches:
            if each.last not in running:
                return each
        longest = max(self._stretches, key=lambda each: len(each.left))
        kept = len(longest.left) // 2
        if not kept:
            return longest
        half = _Stretch(deque(list(longest.left)[kept:]))
        longest.left = deque(list(longest.left)[:kept])
        self._stretches.append(half)
        return half

    def begun(self, stretch: _Stretch) -> None:
        """The first piece that is left of a stretch is under way."""
        stretch.last = stretch.left.popleft()
        self._stretches = [each for each in self._stretches if each.left]

    def put_back(self, pieces: list[str]) -> None:
        """They come next."""
        self._stretches.insert(0, _Stretch(deque(pieces)))


def sweep(
    pieces: Mapping[str, Item], work: Callable[[Item], Any], results: Results, workers: Workers
) -> Iterator[tuple[str, Any]]:
    """Do what has no result yet, and yield (name, result) of pieces as results come.

    Args:
        pieces: what `work` is given, by name.
        work: does a piece in another process: a function of a module.
        results: where results go, and where those of an earlier run are.
        workers: who does it.

    Raises:
        WorkerLost: a worker was lost `ATTEMPTS` times under the same piece, killed for want of memory for example.
        OSError: a result cannot be written.
    """
    pending = _Pending([name for name in pieces if name not in results.done], workers.ahead)
    attempts: Counter[str] = Counter()
    while pending:
        running: dict[Future[Any], str] = {}
        with workers.open() as pool:
            try:
                while pending or running:
                    while pending and len(running) < workers.ahead:
                        stretch = pending.stretch(set(running.values()))
                        name = stretch.left[0]
                        with deaf_to_interrupts():
                            future = pool.submit(work, pieces[name])
                        running[future] = name
                        pending.begun(stretch)
                        attempts[name] += 1
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        name = running[future]
                        try:
                            result = future.result()
                        except workers.lost as error:
                            raise WorkerLost(
                                f"the workers gave {name} up: {str(error) or type(error).__name__}"
                            ) from error
                        del running[future]
                        results.add(name, result)
                        yield name, result
            except BrokenProcessPool as error:
                # Nobody knows which piece it was, and those that were done have their results.
                lost = sorted(running.values())
                spent = [name for name in lost if attempts[name] >= ATTEMPTS]
                if spent:
                    said = f"{ATTEMPTS} times a worker ended without an answer while these were under way"
                    raise WorkerLost(f"{said}: {', '.join(spent)}") from error
                pending.put_back(lost)


def in_order(pieces: Iterable[str], results: Results) -> dict[str, Any]:
    """The results that there are of `pieces`, by name, in their order."""
    return {name: results.done[name] for name in pieces if name in results.done}
