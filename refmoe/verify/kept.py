"""What a run of cases and faults has found so far, in a file beside its report: the same command goes on from there.

A case that failed is not kept. It runs again, and says again what is wrong.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from refmoe.errors import ArgumentError
from refmoe.families.family import Assumption, Case
from refmoe.verify.plant import Fault, FaultResult
from refmoe.verify.sweep import Ledger
from refmoe.verify.verdict import Result, Verdict
from refmoe.verify.workers import installation, installed

#: What no line holds: the case is the one that is asked for, and of what failed nothing is kept.
_LEFT_OUT = ("case", "maps", "error")
_LISTS = ("sources", "launches", "policies", "warnings")


class KeptRun:
    """The results of a run that has not ended.

    Args:
        path: the file; it is made if it is not there. What other sources, compilers or machines found is dropped.
        command: what the user asked for.
        machine: what else decides a result: the versions of libraries, the GPU and its driver.

    Attributes:
        path: the file.
        cases, faults: how many of each were in it.
        seconds: how long the runs before this one took.
        dropped: why its results were dropped, None if they were not.
        lost: why nothing more is kept, None if all is.

    Raises:
        ArgumentError: the file is no ledger, or another run writes it at this moment.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path, command: str, machine: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.dropped: str | None = None
        self.lost: str | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        self._locked = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            swept = {"of": "cases", "command": command, **installation(), **(machine or {})}
            try:
                self._ledger = Ledger(path, swept, synced=False)
            except ArgumentError as error:
                self._ledger = Ledger(path, swept, fresh=True, synced=False)
                self.dropped = str(error)
        except BlockingIOError as error:
            os.close(self._locked)
            raise ArgumentError("report", f"{path}, which another run writes", "another --report") from error
        except BaseException:
            os.close(self._locked)
            raise
        self._results: dict[str, Any] = {}
        self._faults: dict[str, Any] = {}
        spent: dict[str, float] = {}
        for held in self._ledger.done.values():
            try:
                run, seconds = held["run"], float(held["seconds"])
                cases, faults = dict(held.get("cases", {})), dict(held.get("faults", {}))
            except (AttributeError, KeyError, TypeError, ValueError):
                continue  # a line that somebody changed: what it held runs again
            self._results |= cases
            self._faults |= faults
            spent[run] = max(spent.get(run, 0.0), seconds)
        self.cases, self.faults, self.seconds = len(self._results), len(self._faults), sum(spent.values())
        self._run, self._start = f"run {len(spent) + 1}", time.perf_counter()

    def result(self, case: Case, source: Callable[[str], str]) -> Result | None:
        """What is known of a case; `source` gives the present hash of all that decides a family's results."""
        document = self._results.get(str(case))
        try:
            result = None if document is None else _result(case, document)
        except (KeyError, TypeError, ValueError):
            return None  # a line that somebody changed: the case runs again
        # Sources may have been others than at the start while the case ran.
        return result if result is not None and result.source_sha256 == source(case.family.name) else None

    def fault(self, fault: Fault) -> FaultResult | None:
        """What is known of a planted fault."""
        document = self._faults.get(fault.name)
        try:
            return None if document is None else _fault_result(document)
        except (KeyError, TypeError, ValueError):
            return None

    def keep(self, results: Sequence[Result]) -> None:
        """Write down those that do not fail, unless the disk is full: then the run goes on, and nothing is kept."""
        documents = {str(each.case): _document(each) for each in results if _is_kept(each)}
        if documents:
            self._add(f"cases from {next(iter(documents))} on", cases=documents)

    def keep_fault(self, result: FaultResult) -> None:
        """Write down what became of a fault, if it was caught and the sources are those that the run began with.

        A result of a case has the hash of its kernel's sources, and one of a fault has none.
        """
        if result.caught and installed() == installation():
            self._add(f"fault {result.name}", faults={result.name: dataclasses.asdict(result)})

    def _add(self, piece: str, **found: Mapping[str, Any]) -> None:
        if self.lost is None:
            try:
                seconds = round(time.perf_counter() - self._start, 3)
                self._ledger.add(piece, {"run": self._run, "seconds": seconds, **found})
            except OSError as error:
                self.lost = str(error)

    def drop(self) -> None:
        """The report is written: nobody needs the file."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another run have the file."""
        os.close(self._locked)


def _is_kept(result: Result) -> bool:
    # What a device that is not here skipped may be run where it is.
    return not result.fails and result.verdict is not Verdict.SKIPPED


def _document(result: Result) -> dict[str, Any]:
    values = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    for name in _LEFT_OUT:
        del values[name]
    if result.assumption is not None:
        values["assumption"] = dataclasses.asdict(result.assumption)
    return values


def _result(case: Case, document: Mapping[str, Any]) -> Result:
    values = dict(document)
    values |= {name: tuple(values[name]) for name in _LISTS}
    values["differing"] = tuple((stage, count) for stage, count in values["differing"])
    values["verdict"] = Verdict(values["verdict"])
    if values["assumption"] is not None:
        values["assumption"] = Assumption(**values["assumption"])
    return Result(case, **values)


def _fault_result(document: Mapping[str, Any]) -> FaultResult:
    values = dict(document)
    values["verdict"] = Verdict(values["verdict"])
    if values["accepted_by"] is not None:
        values["accepted_by"] = tuple(values["accepted_by"])
    return FaultResult(**values)
