"""A mutant tried in a fork of a worker process.

A trial changes its process: machine code, patched functions, whatever a wrong kernel does to its host code. A fork of
a process that holds the sound kernels and the problems of cases costs milliseconds, and what dies in it dies alone.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from refmoe.mutation.reach import measure
from refmoe.mutation.site import Site
from refmoe.mutation.trial import FIRST_CASES, Catalogue, Tried, attempt, prepare, warm
from refmoe.verify.sweep import WorkerLost

#: Wall-clock seconds after which a trial counts as timed out, whatever it does.
TRIAL_SECONDS = 3600.0

#: How often a mutant is tried whose process is lost.
ATTEMPTS = 2

#: Cases of a mutant whose sound run is made before its trial.
_WARM = 2

#: Of prctl (Linux): the signal that this process gets when its parent ends.
_PR_SET_PDEATHSIG = 1

Answer = TypeVar("Answer")


class NoAnswer(Exception):
    """A fork ended without an answer; the message says how."""


def try_forked(site: Site, most: int | None = None) -> dict[str, Any]:
    """Try a mutant in a fork of this process, a worker of a sweep; its outcome as `Tried.document`.

    Args:
        site: the mutant.
        most: cases that are run at most, see `attempt`.

    Raises:
        WorkerLost: the fork ended twice without an answer, killed for want of memory for example.
    """
    catalogue = _catalogue()
    _make_ready(site, catalogue)
    for _ in range(ATTEMPTS):
        try:
            return forked(partial(attempt, site, catalogue, most), TRIAL_SECONDS).document()
        except TimeoutError:
            said = f"no answer in {TRIAL_SECONDS:.0f} s"
            facts = (site.id, site.floor, site.kernel, site.operator, "timed out", None, "time", said)
            reached = len(catalogue.of_site(site))
            return Tried(*facts, 0, reached, TRIAL_SECONDS).document()  # type: ignore[arg-type]
        except NoAnswer as error:
            lost = error
    raise WorkerLost(f"{site.id}: its process ended {ATTEMPTS} times without an answer ({lost})")


def forked(work: Callable[[], Answer], seconds: float) -> Answer:
    """What `work` returns in a fork of this process, which ends with it, and with this process.

    It is no `multiprocessing.Process`: a worker of dask is a daemon, which may not start one.

    Raises:
        TimeoutError: it took more than so many seconds.
        NoAnswer: the fork ended without an answer.
    """
    parent = os.getpid()
    receiving, sending = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            _die_with(parent)
            # Ctrl-C reaches the whole group of processes; whoever started this one ends it.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            answer = pickle.dumps(work())
            with open(sending, "wb") as pipe:
                pipe.write(answer)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            # Nothing of the worker's may be closed twice.
            os._exit(0)
    os.close(sending)
    content, answered, end = b"", False, time.monotonic() + seconds
    try:
        while not answered and select.select([receiving], [], [], max(0.0, end - time.monotonic()))[0]:
            part = os.read(receiving, 1 << 16)
            content += part
            answered = not part
    finally:
        os.close(receiving)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if not answered:
        raise TimeoutError
    try:
        found: Answer = pickle.loads(content)
    except (EOFError, pickle.UnpicklingError) as error:
        raise NoAnswer(f"status {os.waitstatus_to_exitcode(status)}") from error
    return found


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(0)


@functools.cache
def _catalogue() -> Catalogue:
    return Catalogue(measure())


def _make_ready(site: Site, catalogue: Catalogue) -> None:
    """Make this process hold what trials of a mutant need."""
    reached = catalogue.of_site(site)
    for each in reached[:FIRST_CASES]:
        prepare(each.case)
    # Mutants of host code run the sound kernels, all of them if they live.
    for each in reached if site.floor == "host" else reached[:_WARM]:
        warm(each.case)
