"""The kernels that a run of `refmoe stress` has: each entry that the default cases launch, and the first such case."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from refmoe.chips import CHIPS
from refmoe.recomputed.launches import plans_of
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.stress import STRESS
from refmoe.silicon.stress import cases_of_every_kernel


def refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Kernels that are missing, that there are not, or that ran by another case."""
    chip = next((chip for chip in CHIPS.values() if chip.arch == document["arch"]), None)
    if chip is None:
        return
    wanted = first_cases(chip.arch, chip.multiprocessors)
    held = {row["kernel"]: row["case"] for row in document["reruns"]}
    yield from first_and_count("stress.recomputed", _wrong(wanted, held))


def _wrong(wanted: Mapping[str, str], held: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for kernel in sorted(wanted.keys() - held.keys()):
        yield f"the kernel {kernel}", f"did not run, and {wanted[kernel]} launches it; {STRESS.again}"
    for kernel in sorted(held.keys() - wanted.keys()):
        yield f"the kernel {kernel}", f"is said to have run, and no default case launches it; {STRESS.again}"
    for kernel in sorted(held.keys() & wanted.keys()):
        if held[kernel] != wanted[kernel]:
            yield f"the kernel {kernel}", f"ran by {held[kernel]}, and {wanted[kernel]} is the first that launches it"


@functools.cache
def first_cases(arch: str, multiprocessors: int) -> Mapping[str, str]:
    """By entry the first case that launches it, as `refmoe.silicon.stress.one_of_each` finds it on a GPU."""
    first: dict[str, str] = {}
    for case in cases_of_every_kernel(arch):
        for plan in plans_of(case, case.family.inputs(case), arch, multiprocessors):
            first.setdefault(plan.kernel.entry, str(case))
    return MappingProxyType(first)
