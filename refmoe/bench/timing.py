"""Timing contenders side by side in one run, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from refmoe.errors import ArgumentError


@dataclass(frozen=True)
class Timing:
    """Wall-clock seconds of the rounds of one contender, in the order in which they ran."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median round, in seconds."""
        return statistics.median(self.seconds)


def measure(contenders: Mapping[str, Callable[[], object]], *, rounds: int = 9) -> dict[str, Timing]:
    """Time `rounds` rounds of every contender, taking turns; each runs once before, unmeasured.

    What a contender returns is dropped before the clock stops, so freeing it counts, as it does in use.

    Raises:
        ArgumentError: `rounds` is not positive.
    """
    if rounds < 1:
        raise ArgumentError("rounds", str(rounds), "at least 1")
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for contender in contenders.values():
        contender()
    for _ in range(rounds):
        for name, contender in contenders.items():
            start = time.perf_counter()
            contender()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def machine(*packages: str) -> dict[str, Any]:
    """What a time depends on beside the code: `cores`, and `versions` of NumPy and of the packages."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: version(name) for name in ("numpy", *packages)},
    }


def verdict(targets: Mapping[str, float], reached: Mapping[str, bool]) -> dict[str, Any]:
    """How a benchmark did: its `targets`, which of them are `reached`, and `all_reached`."""
    return {"targets": dict(targets), "reached": dict(reached), "all_reached": all(reached.values())}
