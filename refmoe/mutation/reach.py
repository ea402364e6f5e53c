"""What each case of the default level reaches: the entries that it launches, the lines of host code that it runs.

A mutant in an entry can show only in a case that launches that entry. So each case runs once on the sound kernels, and
what it reaches is kept on disk until a kernel or its host code changes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from refmoe import ptx
from refmoe.catalog import list_cases
from refmoe.cuda.toolchain import cache_directory, find_toolchain
from refmoe.errors import RefmoeError
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.files import write_atomic
from refmoe.verify.kernel import Devices, Kernel
from refmoe.verify.plant import load_patches
from refmoe.verify.runner import run_case
from refmoe.verify.sweep import Results, sweep
from refmoe.verify.verdict import Verdict
from refmoe.verify.workers import Workers

ROOT = Path(__file__).resolve().parents[1]
HOST = ROOT / "cuda"

#: (source, entry, arch) of a launched kernel.
EntryKey = tuple[str, str, str]


@dataclass(frozen=True)
class Reach:
    """What one case reaches.

    Attributes:
        case: its repro string.
        entries: the entries that it launches.
        lines: (file below refmoe/cuda, line) of the host code that it runs.
        cost: instructions that it executes, over all lanes.
    """

    case: str
    entries: frozenset[EntryKey]
    lines: frozenset[tuple[str, int]]
    cost: int


@functools.cache
def default_cases() -> Mapping[str, Case]:
    """The cases that mutants are tried on, by repro string: all that `refmoe parity` runs, but for the museum's."""
    return {str(case): case for case in list_cases() if case.family.name in FAMILIES}


@functools.cache
def known_catches() -> Mapping[str, int]:
    """How many of the planted faults each case is known to catch, by repro string."""
    found: dict[str, int] = {}
    for patch in load_patches():
        found[patch.case] = found.get(patch.case, 0) + 1
    return found


def in_order(reached: Iterable[Reach]) -> list[Reach]:
    """Cases in the order in which a mutant meets them: those that catch planted faults first, most first; then by cost.

    What costs least does next to nothing: a case without rows. So of the rest those come first that do something.
    """
    known = known_catches()
    return sorted(reached, key=lambda each: (-known.get(each.case, 0), each.cost < _SOME_WORK, each.cost, each.case))


#: Instructions over all lanes below which a case is one of no rows.
_SOME_WORK = 10_000


#: Names of cases with what they reach, as they end, and their number, to the same pairs: a progress bar.
Progress = Callable[[Iterable[tuple[str, Any]], int], Iterable[tuple[str, Any]]]


def measure(workers: Workers | None = None, progress: Progress = lambda ended, count: ended) -> list[Reach]:
    """What each case of `default_cases` reaches; from the disk if it is there.

    Args:
        workers: who runs the cases that have to run; None for this process.
        progress: is given these as they end, and their number, and yields them.

    Raises:
        RefmoeError: a case fails on the sound kernels.
    """
    path = cache_directory() / f"reach.{_kernels_sha256()[:16]}.json"
    known = {each["case"]: each for each in json.loads(path.read_text())} if path.is_file() else {}
    absent = {name: name for name in default_cases() if name not in known}
    if absent:
        if workers is None:
            ended: Iterable[tuple[str, Any]] = ((name, measure_case(name)) for name in absent)
        else:
            ended = sweep(absent, measure_case, Results(), workers)
        known |= progress(ended, len(absent))
        write_atomic(path, json.dumps(list(known.values())))
    return [_read(known[name]) for name in default_cases()]


@functools.cache
def _devices() -> Devices:
    """Those of this process."""
    return Devices()


def measure_case(name: str) -> dict[str, Any]:
    """What the case of a repro string reaches, as JSON values.

    Raises:
        RefmoeError: it fails on the sound kernel.
    """
    return _written(_measured(default_cases()[name], _devices()))


@dataclass
class _MeasuredKernel(Kernel):
    """refmoe's own kernel, of which nobody asks what decides its result."""

    def source_sha256(self) -> str | None:
        return None


def _measured(case: Case, devices: Devices) -> Reach:
    kernel = _MeasuredKernel(case.family, devices)
    kernel.problem(case)  # what only the reference runs is none of the kernel's lines
    place = devices.get(case)
    before = len(place.launches)
    with _traced_lines() as lines:
        result = run_case(kernel, case)
    if result.verdict is not Verdict.PASS and not (case.refusal and result.expected):
        raise RefmoeError(
            f"{case}: {result.verdict.value} on the sound kernel: {result.reason or result.first_mismatch}"
        )
    launches = place.launches[before:]
    entries = frozenset((each.kernel.source, each.kernel.entry, case.arch) for each in launches)
    del place.launches[before:]
    return Reach(str(case), entries, frozenset(lines), result.lane_instructions)


@contextmanager
def _traced_lines() -> Iterator[set[tuple[str, int]]]:
    """The lines below refmoe/cuda that run in the block."""
    lines: set[tuple[str, int]] = set()
    names: dict[str, str | None] = {}

    def name_of(path: str) -> str | None:
        if path not in names:
            names[path] = Path(path).relative_to(HOST).as_posix() if path.startswith(f"{HOST}/") else None
        return names[path]

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        name = name_of(frame.f_code.co_filename)
        if name is None:
            return None

        def step(frame: FrameType, event: str, argument: object) -> Any:
            lines.add((name, frame.f_lineno))
            return step

        lines.add((name, frame.f_lineno))
        return step

    def untraced(*given: Any, **named: Any) -> Any:
        # The executor runs no line of host code, and a tracer makes it slow.
        sys.settrace(None)
        try:
            return execute(*given, **named)
        finally:
            sys.settrace(enter)

    before, execute = sys.gettrace(), ptx.launch
    sys.settrace(enter)
    try:
        with mock.patch.object(ptx, "launch", untraced):
            yield lines
    finally:
        sys.settrace(before)


def _kernels_sha256() -> str:
    """What decides what a case reaches: kernels, their host code, what it reads, and the compiler."""
    digest = hashlib.sha256(find_toolchain().build_id.encode())
    for path in sorted(each for pattern in ("**/*.py", "**/*.cu", "**/*.cuh") for each in ROOT.glob(pattern)):
        name = path.relative_to(ROOT)
        if name.parts[0] in ("cuda", "formats.py", "chips.py", "policy.py"):
            digest.update(name.as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _written(reach: Reach) -> dict[str, Any]:
    lines: dict[str, list[int]] = {}
    for file, line in sorted(reach.lines):
        lines.setdefault(file, []).append(line)
    return {"case": reach.case, "entries": sorted(reach.entries), "lines": lines, "cost": reach.cost}


def _read(written: Mapping[str, Any]) -> Reach:
    entries = frozenset((source, entry, arch) for source, entry, arch in written["entries"])
    lines = frozenset((file, line) for file, numbers in written["lines"].items() for line in numbers)
    return Reach(written["case"], entries, lines, written["cost"])
