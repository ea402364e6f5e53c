"""What the gate checks: every check by name, and the refusals that they give.

The table is the promise: `refmoe gate --checks` prints it, docs/guides/gate.md holds it, and for every name in it a
test damages a document so that this check refuses it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from refmoe.errors import RefmoeError

#: Refusals of one check in one document that are said in full; the others are counted.
NAMED = 5

#: Every check, by its group and name: what is refused.
CHECKS: Mapping[str, str] = MappingProxyType(
    {
        # A file, before anything is read as JSON.
        "file.absent": "a file that is not there",
        "file.link": "a link to nothing, or links in a circle",
        "file.folder": "a folder with the name of a report",
        "file.linked-folder": "a linked folder below a folder that is checked: it is not followed",
        "file.special": "a pipe, a socket or a device; it is not opened",
        "file.permission": "a file or a folder that may not be read",
        "file.large": "a file larger than any report; it is not read",
        "file.changed": "a file that changes while it is read",
        "file.empty": "an empty file",
        "file.compressed": "compressed data, whatever the file is called",
        "file.encoding": "text that is not UTF-8, or begins with a byte order mark",
        "file.truncated": "JSON that ends in the middle",
        "file.json": "what is no JSON, no object, or nested too deeply",
        "file.number": "NaN, an infinity, or a number beyond float64",
        "file.repeated-key": "an object that has a key twice",
        "file.unread": "a file that looks like a report and does not end in .json",
        # Any document.
        "document.kind": "a document of an unknown kind, or one whose keys are those of no report",
        "document.version": "a schema version of the past or the future",
        "document.digest": "an edit: the content does not have the digest that it states",
        "document.schema": "a key that is missing, unknown or of another type; a negative count; an unknown word",
        "document.twice": "the same report twice",
        "document.time": "a time that is none, that has not come yet, or that is older than any report",
        "document.passed": "a document that says of itself that it passed or failed, against what it holds",
        "document.chip": "a GPU without a name, or with the arch of another chip",
        "document.none": "paths without any report",
        "document.environment": "a machine or a version that there is not, or that refmoe does not run with",
        # Parity reports as a whole.
        "parity.empty": "a report without a case, or one in which no case ran",
        "parity.summary": "a summary that is not the count of the verdicts",
        "parity.command": "a command that made no report of refmoe's kernels, or that asked for other cases",
        "parity.level": "a level that lacks some of its cases, or holds others",
        "parity.environment": "cases of a GPU without driver or torch; a compiler other than that of the cases",
        "parity.evidence": "words on what a device or a model proves that are not refmoe's, or not those of the cases",
        "parity.seconds": "a case that took longer than the whole run, or a run of no time",
        "parity.facts": "two reports that tell two stories of one case: other inputs, or other bytes compared",
        "parity.instructions": "more lane instructions in a second than processors step, or two counts of one case",
        # A case of a parity report.
        "case.id": "an id that is no case, or that disagrees with the record's family, device, arch or seed",
        "case.twice": "a case that is there twice",
        "case.repro": "a repro line that does not run its case",
        "case.verdict": "a verdict that fails",
        "case.pass": "a PASS with bytes that differ, a mismatch, a map or a reason",
        "case.nothing": "a PASS in which nothing was compared, where there is something to compare",
        "case.bytes": "bytes compared that do not fit the case's shape",
        "case.stages": "stages that are not those of the family",
        "case.mismatch": "a MISMATCH without the place, or with no element that differs",
        "case.maps": "a map whose counts are not the elements that differ",
        "case.reason": "a verdict that needs a reason and has none",
        "case.refusal": "a refusal that the case list does not expect; a pass where it expects one",
        "case.skipped": "a case SKIPPED for what was there, or with results of a run that did not take place",
        "case.evidence": "evidence that its bytes do not give",
        "case.launches": "a pass without a launch or with another kernel's; instructions of a GPU, or too few of them",
        "case.hash": "a hash that is none, or that is missing though the case ran",
        "case.model": "an accumulation model that there is not, without evidence, or with another chip's",
        "case.schedules": "schedules of a launch that was not on the executor, or fewer than the case says",
        "case.kernel": "a user's kernel without a name, or sources that leave out its own file",
        "case.recomputed": "inputs or launches that the case does not have",
        # Planted faults.
        "fault.survived": "a planted fault that no case caught",
        "fault.none": "no planted faults in a report whose command planted them; or faults that nobody asked for",
        "fault.list": "a planted fault that is missing, unknown, there twice, or told otherwise",
        "fault.caught": "a fault caught by no case, by a verdict that catches nothing, or without a finding",
        "fault.case": "a fault caught by no case that there is, by one that fails anyway, or by another kernel's",
        "fault.check": "a check that the verdict and the finding do not name",
        "fault.finding": "a finding of a stage or a place that the case does not have, or of what does not differ",
        "fault.tolerance": "a tolerance that there is not, or of a kernel that is weighed by none",
        # Whether it still speaks of the present sources.
        "stale.kernel": "a kernel whose sources changed since its cases ran",
        "stale.family": "a kernel family that has no source any more",
        "stale.inputs": "inputs that are made otherwise now",
        "stale.user": "a user's kernel whose sources changed, or cannot be read",
        "stale.executor": "instructions of the executor that changed since a GPU was asked",
        "stale.figures": "figures whose Python sources changed since they were computed",
        # The baseline.
        "baseline.missing": "a folder or a report that is held against no baseline",
        "baseline.elsewhere": "a baseline in a checked folder that is not the one in use",
        "baseline.content": "a baseline that is none, is empty, names a case twice, or names what is no case",
        "baseline.vanished": "a case that passed and is gone, or no longer runs",
        "baseline.family": "a kernel family that passed cases and is gone",
        # The other kinds.
        "stress.cases": "a rerun of no case on that GPU, or twice; a kernel that ran in a parity report and not here",
        "stress.runs": "different outputs, too few runs, or more outputs than runs",
        "stress.tools": "a tool that found errors, is unknown, twice, not there, or clean with errors; none that ran",
        "stress.recomputed": "other kernels than those that the default cases launch, or by other cases",
        "conformance.differs": "an instruction that differs",
        "conformance.counts": "totals that are not the sums of the rows, or rows that count more than they compared",
        "conformance.rows": "an instruction there twice, both run and refused, or none at all",
        "conformance.examples": "an example that the executor computes otherwise, or of a lane that is not open",
        "conformance.recomputed": "instructions, lanes or open lanes that are not those of a run",
        "litmus.counts": "totals that are not the sums of the programs, or more outcomes seen than PTX allows",
        "litmus.programs": "a program there twice, too few of them, or one that is none",
        "litmus.recomputed": "programs that its seed does not draw, or outcomes that PTX counts otherwise",
        "drift.differs": "paths that must be equal and are not, or of which nothing was compared",
        "drift.counts": "differences that bytes, first difference and curves tell differently",
        "drift.runs": "no run; a path, a mode or a pair that is missing, there twice, or unknown",
        "drift.drawn": "prompts or a random checkpoint that the seed does not draw; a seed of another command",
        "drift.dependent": "a sequence whose bits depend on the batch, or bits that tell otherwise",
        "drift.recomputed": "figures or hashes that its command does not give",
        "convert.loss": "what the derivation says cannot be lost, lost",
        "convert.counts": "counts beyond the tensor's size, or ratios that are not those of the errors",
        "convert.tensors": "no tensor; a tensor or a mode there twice, unknown or missing",
        "convert.recomputed": "tensors or figures that its command does not give",
        "bench.content": "a benchmark that there is not, or that timed nothing",
        "bench.figures": "a time that is no time, or a rate that is not its bytes by its time",
        "bench.targets": "a target that is said to be reached and is not, or the other way round",
        "bench.recomputed": "targets or published numbers that are not those of its benchmark",
        "invariant.paths": "a path that is missing, unknown, there twice, or not made of what the level has",
        "invariant.counts": "totals that are not the sums of the paths, or a proof over fewer cases than the level has",
        "invariant.verdict": "a path that depends on its batch and is said not to, or the other way round",
        "invariant.difference": "a difference without its two calls, or one where there is none",
        "evidence.rows": "a chip of refmoe/evidence.json whose instruction, model or parameters do not fit its verdict",
        "evidence.bundle": "a bundle whose answers give others than it claims, or than refmoe/evidence.json has of it",
        "mutation.recomputed": "mutants that there are not or that the seed does not draw, or reasons of nobody's",
        "exhaustive.recomputed": "rows that its command does not make, or counts that are not those of a sweep",
    }
)


@dataclass(frozen=True)
class GateRefusal:
    """Why the gate does not pass.

    Attributes:
        check: the check that says so, a key of `CHECKS`.
        text: one sentence, on one line: what was found, and what to do.
    """

    check: str
    text: str

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise KeyError(f"{self.check} is no check of the gate; needed one of refmoe.reports.checks.CHECKS")
        object.__setattr__(self, "text", one_line(self.text))

    def at(self, where: object) -> GateRefusal:
        """The same behind the name of a file."""
        return GateRefusal(self.check, f"{where}: {self.text}")


class ReportError(RefmoeError):
    """A file is no report, or was changed after it was made; the message says which, in a sentence.

    Attributes:
        check: the check that says so, a key of `CHECKS`.
    """

    def __init__(self, text: str, check: str = "document.schema") -> None:
        super().__init__(one_line(text))
        self.check = check

    @property
    def refusal(self) -> GateRefusal:
        """The same as a value."""
        return GateRefusal(self.check, str(self))


def one_line(text: str) -> str:
    """A text as one line that a terminal prints as it is: a report may hold line ends, escape codes and surrogates.

    A line that a report smuggles in could read "gate passed".
    """
    lines = "; ".join(line.strip() for line in text.splitlines() if line.strip()) if "\n" in text else text
    return "".join(
        letter.encode("unicode_escape").decode()
        if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else letter
        for letter in lines
    )


T = TypeVar("T")


def first_and_count(check: str, found: Iterable[tuple[str, str]]) -> Iterator[GateRefusal]:
    """A refusal for each of the first findings of one check, and one that counts the others.

    Args:
        check: its name.
        found: what each finding is about, "case expand:...", and what is wrong with it.
    """
    rest, last = 0, ""
    for number, (what, wrong) in enumerate(found):
        if number < NAMED:
            yield GateRefusal(check, f"{what}: {wrong}")
        else:
            rest, last = rest + 1, what
    if rest:
        yield GateRefusal(check, f"{rest:,} more like this, the last {last}")


def table_text() -> str:
    """The table of all checks as Markdown, as docs/guides/gate.md has it."""
    lines = ["| check | refuses |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {refuses} |" for name, refuses in CHECKS.items())]) + "\n"
