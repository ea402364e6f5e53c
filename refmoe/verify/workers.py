"""Who does the work of a long run: processes of this machine.

They are a `concurrent.futures.Executor`, opened for a `with` block.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker


@dataclass(frozen=True)
class Workers:
    """Who does the pieces of a run.

    Attributes:
        open: opens a pool for a `with` block, and again after a pool is lost. What is under way when the block ends
            in an error, Ctrl-C for example, is dropped.
        ahead: how many pieces the pool is given at a time.
        lost: what the future of a piece raises when the pool has given it up.
    """

    open: Callable[[], AbstractContextManager[Executor]]
    ahead: int
    lost: tuple[type[BaseException], ...] = ()


def processes(jobs: int) -> Workers:
    """`jobs` processes of this machine."""
    return Workers(partial(worker_pool, jobs), jobs)


@contextlib.contextmanager
def worker_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that end with the block: after Ctrl-C at once, in the middle of what they do."""
    others = set(multiprocessing.active_children())
    # Spawned, not forked: a fork of a process with a GPU context or threads is unsafe.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started in the block never hear Ctrl-C, which a terminal sends to all: whoever started them ends them.

    They would print a traceback each, most of all while they import what they need.
    """
    resource_tracker.ensure_running()  # which unblocks the signal, if it has to start first
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Processes inherit the mask. Here the signal waits until the end of the block, also where another thread of this
    # process takes it: half a process that was started is worse than one.
    heard: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, usual)
    if heard:
        raise KeyboardInterrupt
