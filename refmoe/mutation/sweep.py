"""A sweep over mutants, each in a forked child; what is done is on the disk, and another run goes on from there.

A trial changes its process: machine code, patched functions, whatever a wrong kernel does to its host code. A fork of
a process that holds the sound kernels and the problems of cases costs milliseconds, and what dies in it dies alone.
"""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from refmoe.cuda.toolchain import find_toolchain
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.mutation.reach import HOST
from refmoe.mutation.site import Site
from refmoe.mutation.trial import FIRST_CASES, Catalogue, Tried, attempt, prepare, warm

#: Wall-clock seconds after which a trial counts as timed out, whatever it does.
TRIAL_SECONDS = 1200.0

#: How often a mutant is tried whose process is lost.
ATTEMPTS = 2


class WorkerLost(RefmoeError):
    """A process that tried a mutant ended without an answer, twice."""


class Ledger:
    """The outcomes of a sweep in a file: a line that says what was swept, then a line for each mutant.

    A line is written whole or not at all: what a full disk leaves of one is cut off. A last line without its end, left
    by a machine that went down, is cut off when the file is opened.

    Args:
        path: the file; it is made if it is not there.
        swept: what outcomes depend on: the sources, the compiler.

    Raises:
        ArgumentError: the file is of other sources, or no such file.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path, swept: Mapping[str, Any]) -> None:
        self.path = path
        self.done: dict[str, Tried] = {}
        head = json.dumps({"kind": "mutants tried", **swept}, sort_keys=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole:
            first, *lines = whole.decode().splitlines()
            if first != head:
                raise ArgumentError(
                    "partial", f"{path}, which is of other sources or cases", "one of these, or no file"
                )
            for number, line in enumerate(lines, 2):
                try:
                    tried = Tried(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise ArgumentError(
                        "partial", f"{path}, whose line {number} is no outcome", "a sweep's file"
                    ) from error
                self.done[tried.id] = tried
        if len(whole) < len(content):
            os.truncate(path, len(whole))
        if not whole:
            self._append(head)

    def add(self, tried: Tried) -> None:
        """Write down an outcome.

        Raises:
            OSError: the disk is full, or the file went away; the file is as it was.
        """
        self._append(json.dumps(tried.document(), sort_keys=True))
        self.done[tried.id] = tried

    def _append(self, line: str) -> None:
        content = f"{line}\n".encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            before = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, content)
                if written < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)


@dataclass
class _Running:
    """A child at work.

    Attributes:
        site: what it tries.
        process, answer: the child, and the end of the pipe that its answer comes by.
        since: when it started.
        attempts: which try it is.
    """

    site: Site
    process: BaseProcess
    answer: Connection
    since: float
    attempts: int


@dataclass
class Sweep:
    """Tries mutants in `jobs` processes at a time and writes each outcome into the ledger.

    Attributes:
        catalogue: what each case reaches.
        ledger: where outcomes go, and where those of an earlier run are.
        jobs: processes.
        trial: tries one mutant; another function than `attempt` is a test's.
        ready: makes this process hold what trials of a mutant need.
    """

    catalogue: Catalogue
    ledger: Ledger
    jobs: int = 1
    trial: Callable[[Site, Catalogue], Tried] = attempt
    ready: Callable[[Site, Catalogue], None] = field(default_factory=lambda: _make_ready)

    def run(self, sites: Sequence[Site]) -> Iterator[Tried]:
        """Try what is not done yet; yields outcomes as they come. After an error or Ctrl-C no child is left.

        Raises:
            WorkerLost: a mutant's process was lost twice, killed for want of memory for example.
            OSError: an outcome cannot be written.
        """
        pending = [(site, 1) for site in sites if site.id not in self.ledger.done]
        pending.reverse()
        running: list[_Running] = []
        try:
            while pending or running:
                while pending and len(running) < self.jobs:
                    site, attempts = pending.pop()
                    self.ready(site, self.catalogue)
                    running.append(self._start(site, attempts))
                for each in self._ended(running):
                    running.remove(each)
                    tried = self._answer(each)
                    if tried is None:
                        if each.attempts == ATTEMPTS:
                            code = each.process.exitcode
                            raise WorkerLost(
                                f"{each.site.id}: its process ended twice without an answer (status {code})"
                            )
                        pending.append((each.site, each.attempts + 1))
                        continue
                    self.ledger.add(tried)
                    yield tried
        finally:
            for each in running:
                each.process.kill()
                each.process.join()
                each.answer.close()

    def _start(self, site: Site, attempts: int) -> _Running:
        receiving, sending = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_child, args=(self.trial, site, self.catalogue, sending), daemon=False)
        process.start()
        sending.close()
        return _Running(site, process, receiving, time.monotonic(), attempts)

    def _ended(self, running: Sequence[_Running]) -> list[_Running]:
        """Those that have answered, died or taken too long; waits for the first one."""
        while True:
            heard = set(wait([each.answer for each in running], timeout=1.0))
            late = time.monotonic() - TRIAL_SECONDS
            ended = [each for each in running if each.answer in heard or each.since < late]
            if ended:
                return ended

    def _answer(self, each: _Running) -> Tried | None:
        """What a child found; None if it was lost."""
        try:
            tried: Tried | None = None
            if each.answer.poll():
                tried = each.answer.recv()
            elif time.monotonic() - each.since > TRIAL_SECONDS:
                site = each.site
                said = f"no answer in {TRIAL_SECONDS:.0f} s"
                reached = len(self.catalogue.of_site(site))
                facts = (site.id, site.floor, site.kernel, site.operator, "timed out", None, "time", said)
                tried = Tried(*facts, 0, reached, TRIAL_SECONDS)  # type: ignore[arg-type]
        except (EOFError, OSError):
            tried = None
        each.process.kill()
        each.process.join()
        each.answer.close()
        return tried


def _child(trial: Callable[[Site, Catalogue], Tried], site: Site, catalogue: Catalogue, sending: Connection) -> None:
    # Ctrl-C reaches the whole group of processes; whoever started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sending.send(trial(site, catalogue))
    sending.close()


#: Cases of a mutant whose sound run is made before its trial.
_WARM = 2


def _make_ready(site: Site, catalogue: Catalogue) -> None:
    reached = catalogue.of_site(site)
    for each in reached[:FIRST_CASES]:
        prepare(each.case)
    # Mutants of host code run the sound kernels, all of them if they live.
    for each in reached if site.floor == "host" else reached[:_WARM]:
        warm(each.case)


def swept_now() -> dict[str, str]:
    """What outcomes depend on: the kernels and their host code, and the compiler.

    Another case can make a survivor one that is caught, and nothing else.
    """
    digest = hashlib.sha256()
    for path in sorted(each for each in HOST.rglob("*") if each.suffix in (".py", ".cu", ".cuh")):
        digest.update(path.relative_to(HOST).as_posix().encode() + b"\0" + path.read_bytes())
    return {"sources": digest.hexdigest(), "compiler": find_toolchain().build_id.splitlines()[-1]}


def in_order(sites: Iterable[Site], done: Mapping[str, Tried]) -> list[Tried]:
    """The outcomes of mutants in the order of the mutants, whatever the order in which they were tried."""
    return [done[site.id] for site in sites if site.id in done]
