"""Who does the work of a long run: processes of this machine, or the workers of a dask cluster.

Both are a `concurrent.futures.Executor`, opened for a `with` block.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import hashlib
import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

from refmoe.cuda.toolchain import ToolchainError
from refmoe.driver import compiler_in_use
from refmoe.errors import ArgumentError
from refmoe.verify.source import sha256_of

#: Pieces that a cluster is given at a time: enough for all of its workers, of which some may come later.
_CLUSTER_AHEAD = 64

#: Seconds in which a scheduler has to answer, and in which it has to have a worker.
_CONNECT_SECONDS = 20.0


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


def choose_workers(jobs: int, cluster: str | None) -> Workers:
    """Those of the options --jobs and --cluster.

    Raises:
        ArgumentError: both were given.
        ModuleNotFoundError: a cluster, and no package `distributed`.
    """
    if cluster is None:
        return processes(jobs)
    if jobs != 1:
        raise ArgumentError("jobs", f"{jobs} with --cluster", "one of them: the cluster has as many as it has workers")
    return on_cluster(cluster)


# --- processes ------------------------------------------------------------------------------------------------------


def processes(jobs: int) -> Workers:
    """`jobs` processes of this machine."""
    return Workers(partial(worker_pool, jobs), jobs)


@contextlib.contextmanager
def worker_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that end with the block: after Ctrl-C at once, in the middle of what they do.

    They also end when this process is killed.
    """
    others = set(multiprocessing.active_children())
    # Spawned, not forked: a fork of a process with a GPU context or threads is unsafe.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        yield pool
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def collect_rarely() -> None:
    """Look for garbage less often, in a process that does nothing but run cases: it took a tenth of their time.

    What a launch leaves are a few large arrays in cycles, so that it may not be much less often.
    """
    gc.set_threshold(5000, 10, 20)


def _begin() -> None:
    collect_rarely()
    _end_with_the_parent()


def _end_with_the_parent() -> None:
    """In a worker: nobody wants its results once whoever started it is gone, and nobody else would end it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


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


# --- a cluster ------------------------------------------------------------------------------------------------------


def on_cluster(address: str) -> Workers:
    """The workers of a dask scheduler. Each must have this refmoe, and the same compiler and NumPy.

    A piece whose worker is lost goes to another one. The scheduler gives it up when that has happened four times.

    Args:
        address: of the scheduler, such as "tcp://10.0.0.1:8786".

    Raises:
        ModuleNotFoundError: there is no package `distributed`.
    """
    from distributed.scheduler import KilledWorker

    return Workers(partial(_connected, address), _CLUSTER_AHEAD, (KilledWorker, CancelledError))


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Executor]:
    """The executor of a cluster.

    Raises:
        ArgumentError: nobody answers at the address, or a scheduler without a worker.
    """
    from distributed import Client

    expected = installation()
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            "cluster", f"no scheduler at {address}", "the address that `dask scheduler` prints"
        ) from error
    try:
        try:
            client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise ArgumentError(
                "cluster", f"no worker at {address}", f"at least one: `dask worker {address}`"
            ) from error
        _look_at(client, expected)
        pool = client.get_executor(pure=False)
        try:
            yield _Careful(pool, expected)
        finally:
            pool.shutdown(wait=False)
    finally:
        client.close()


def _look_at(client: Any, expected: Mapping[str, str]) -> None:
    """Ask the workers that are there what they are.

    Raises:
        ArgumentError: one has no refmoe, or is another installation.
    """
    try:
        client.run(_compared, expected)
    except ArgumentError:
        raise
    except Exception as error:
        # A worker that cannot load the function: its refmoe is missing, or older than the function.
        found = f"a worker that cannot load refmoe ({type(error).__name__}: {error})"
        raise ArgumentError("cluster", found, "this refmoe on every worker") from error


@dataclass
class _Careful(Executor):
    """An executor whose workers look whether they are what this machine is before they do anything.

    Workers may come after the others were asked.

    Attributes:
        pool: the cluster's.
        expected: the `installation` of this machine.
    """

    pool: Executor
    expected: Mapping[str, str]

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Have a worker do it."""
        return self.pool.submit(partial(_on_worker, self.expected, partial(work, *arguments, **options)))


#: A worker of several threads does one piece after the other: devices and modules are kept by process.
_TURN = threading.Lock()


def _on_worker(expected: Mapping[str, str], work: Callable[[], Any]) -> Any:
    _compared(expected)
    with _TURN:
        return work()


def _compared(expected: Mapping[str, str]) -> None:
    found = installation()
    for name, value in expected.items():
        if found[name] != value:
            text = f"a worker on {platform.node()} with another {name}: {found[name]}"
            raise ArgumentError("cluster", text, f"{value}, as where the command runs")


@functools.cache
def installation() -> dict[str, str]:
    """What `installed` gave when it was first asked for."""
    return installed()


def installed() -> dict[str, str]:
    """What decides the results of this machine, by name: the package's files, the compiler, NumPy."""
    root = Path(__file__).resolve().parents[1]
    files = [path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    try:
        compiler = compiler_in_use()
    except ToolchainError:
        compiler = "none"
    digests = {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return {"refmoe": sha256_of(digests), "compiler": compiler, "numpy": np.__version__}
