"""Going through a long array in pieces that fit the cache: one after another, or on every core there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor


def chunks(count: int, chunk: int) -> Iterator[slice]:
    """The pieces of `range(count)`, each `chunk` long; the last may reach past the end, which a slice allows."""
    for start in range(0, count, chunk):
        yield slice(start, start + chunk)


def for_each_chunk(function: Callable[[int, int], None], count: int, chunk: int) -> None:
    """Call `function(start, stop)` on the pieces of `range(count)`, each at most `chunk` long.

    Pieces run on threads, one a core of this process: NumPy releases the interpreter lock in its loops. They must be
    independent. A single piece or a single core runs here, without a thread. The first exception is raised again.
    """
    starts = range(0, count, chunk)
    workers = min(len(os.sched_getaffinity(0)), len(starts))
    if workers <= 1:
        for start in starts:
            function(start, min(start + chunk, count))
        return
    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(function, start, min(start + chunk, count)) for start in starts]:
            future.result()
