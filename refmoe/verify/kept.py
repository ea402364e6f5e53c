"""What a run of cases and faults has found so far, in a file beside its report: the same command goes on from there.

A case that failed is not kept. It runs again, and says again what is wrong.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refmoe.errors import ArgumentError
from refmoe.families.family import Assumption, Case
from refmoe.verify.plant import Fault, FaultResult
from refmoe.verify.sweep import Ledger
from refmoe.verify.verdict import Result, Verdict
from refmoe.verify.workers import installation

#: What no line holds: the case is the one that is asked for, and of what failed nothing is kept.
_LEFT_OUT = ("case", "maps", "error")
_LISTS = ("sources", "launches", "policies", "warnings")


class KeptRun:
    """The results of a run that has not ended.

    Args:
        path: the file; it is made if it is not there. Results of other sources, or of another command, are dropped.
        command: what the user asked for.
        machine: what else decides a result: the GPU and its driver, for example.

    Attributes:
        path: the file.
        cases, faults: how many of each were in it.
        dropped: whether the file was of other sources or of another command.

    Raises:
        ArgumentError: the file is no ledger, or another run writes it at this moment.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path, command: str, machine: Mapping[str, str] | None = None) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._locked = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._locked)
            raise ArgumentError("report", f"{path}, which another run writes", "another --report") from error
        swept = {"of": "cases", "command": command, **installation(), **(machine or {})}
        self.dropped = False
        try:
            self._ledger = Ledger(path, swept, synced=False)
        except ArgumentError:
            self._ledger = Ledger(path, swept, fresh=True, synced=False)
            self.dropped = True
        self._results: dict[str, Any] = {}
        self._faults: dict[str, Any] = {}
        for name, documents in self._ledger.done.items():
            (self._faults if name.startswith("fault ") else self._results).update(documents)
        self.cases, self.faults = len(self._results), len(self._faults)

    def result(self, case: Case) -> Result | None:
        """What is known of a case."""
        document = self._results.get(str(case))
        try:
            return None if document is None else _result(case, document)
        except (KeyError, TypeError, ValueError):
            return None  # a line that somebody changed: the case runs again

    def fault(self, fault: Fault) -> FaultResult | None:
        """What is known of a planted fault."""
        document = self._faults.get(fault.name)
        try:
            return None if document is None else _fault_result(document)
        except (KeyError, TypeError, ValueError):
            return None

    def keep(self, results: Sequence[Result]) -> None:
        """Write down those that do not fail.

        Raises:
            OSError: the disk is full.
        """
        documents = {str(each.case): _document(each) for each in results if _is_kept(each)}
        if documents:
            self._ledger.add(f"cases from {next(iter(documents))} on", documents)

    def keep_fault(self, result: FaultResult) -> None:
        """Write down what became of a fault, if it was caught.

        Raises:
            OSError: the disk is full.
        """
        if result.caught:
            self._ledger.add(f"fault {result.name}", {result.name: dataclasses.asdict(result)})

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
