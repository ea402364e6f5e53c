"""The launches of a case, without a device: what the host code would launch, and on how many CTAs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refmoe.cuda.launch import LaunchPlan
from refmoe.errors import ArgumentError
from refmoe.families.family import Case
from refmoe.ptx import Buffer


class Planner:
    """A device that runs nothing and keeps the plans; its buffers hold what they are filled with.

    Attributes:
        name: "ptx" or "cuda".
        arch: what kernels would be compiled for.
        multiprocessors: a grid depends on them.
        launches: the plans, in order.
    """

    def __init__(self, name: str, arch: str, multiprocessors: int) -> None:
        self.name, self.arch, self.multiprocessors = name, arch, multiprocessors
        self.launches: list[LaunchPlan] = []

    def upload(self, name: str, array: NDArray[Any]) -> Buffer:
        """The array itself."""
        return Buffer(array, name)

    def output(self, name: str, shape: Sequence[int], fill: int, *, initialised: bool = False) -> Buffer:
        """An array of that many bytes."""
        return Buffer(np.full(shape, fill, np.uint8), name, initialised)

    def launch(self, plan: LaunchPlan) -> None:
        """Keep the plan."""
        self.launches.append(plan)

    def download(self, buffer: Buffer) -> NDArray[Any]:
        """Its array."""
        return buffer.array


def plans_of(case: Case, inputs: Mapping[str, Any], arch: str, multiprocessors: int) -> list[LaunchPlan]:
    """What a case launches on an arch; nothing for a case that the kernel refuses."""
    planner = Planner(case.device, arch, multiprocessors)
    try:
        case.family.run(case, inputs, planner)  # type: ignore[arg-type]
    except ArgumentError:
        return []
    return planner.launches


def launches_of(case: Case, inputs: Mapping[str, Any], arch: str, multiprocessors: int) -> tuple[str, ...]:
    """The same as a report writes them: "ENTRY GRID x BLOCK"."""
    plans = plans_of(case, inputs, arch, multiprocessors)
    return tuple(f"{plan.kernel.entry} {plan.grid} x {plan.block}" for plan in plans)
