"""Why the gate refuses a parity report: its verdicts, what cannot be true of it, its planted faults, its sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from refmoe.errors import ArgumentError
from refmoe.reports.checks import NAMED, GateRefusal, first_and_count
from refmoe.reports.consistency import Catalog, Record, contradictions, repeated, smallest
from refmoe.reports.documents import ReportError, environment_refusals, time_refusals
from refmoe.reports.parity import CaseRecord, Report
from refmoe.reports.planted import fault_contradictions
from refmoe.reports.reading import read_bytes
from refmoe.verify.runner import input_sha256
from refmoe.verify.source import sha256_of, source_files
from refmoe.verify.verdict import Verdict

#: Elements of the largest case whose inputs are made again.
_REMADE = 1 << 16
#: Sources of a user's kernel may not be larger.
_SOURCE_BYTES = 1 << 24

#: What a verdict means for whoever wants to merge.
_REFUSED = {
    Verdict.MISMATCH: "bytes differ",
    Verdict.OUT_OF_BOUND: "values differ more than any rounding explains",
    Verdict.MISTRUSTED: "equal on data that could not have failed, which proves nothing",
    Verdict.UNSUPPORTED: "a refusal that the case list does not expect",
    Verdict.ERROR: "the kernel did not run to its end",
    Verdict.DEPENDS_ON_SCHEDULE: "two legal schedules give different bytes",
}


def refusals_of(path: Path, report: Report, records: Sequence[Record], catalog: Catalog) -> Iterator[GateRefusal]:
    """Why the gate refuses the report of a file, without the file's name before each.

    Args:
        path: the file, for the command that shows it.
        report: what it holds.
        records: its cases, each beside the case that it names.
        catalog: what the sources say now.
    """
    if not report.cases:
        yield GateRefusal("parity.empty", "an empty report: it holds no case, so it proves nothing")
        return
    yield from repeated(report.cases)
    if not any(case.verdict.ran for case in report.cases):
        first = report.cases[0]
        yield GateRefusal("parity.empty", f"no case ran: {first.verdict.value}: {first.reason}")
    for verdict, meaning in _REFUSED.items():
        yield from _refused(path, [case for case in report.cases if case.fails and case.verdict is verdict], meaning)
    yield from time_refusals({"created": report.created, "seconds": report.seconds})
    yield from environment_refusals(report.environment.model_dump())
    yield from contradictions(report, records, catalog)
    yield from fault_contradictions(report, catalog)
    yield from _stale_families(report.cases, catalog)
    yield from _stale_inputs(records)
    yield from _stale_user_kernels(report.cases)


def _refused(path: Path, failing: Sequence[CaseRecord], meaning: str) -> Iterator[GateRefusal]:
    """A sentence for each of the first cases, and one for all the others."""
    for case in failing[:NAMED]:
        text = f"{case.verdict.value}, {meaning}: {case.finding}; run: {case.repro}"
        yield GateRefusal("case.verdict", text)
    if rest := failing[NAMED:]:
        kernels = ", ".join(f"{count:,} of {name}" for name, count in Counter(case.family for case in rest).items())
        see = f"see them all: refmoe report {path} --html out/report.html"
        yield GateRefusal("case.verdict", f"{len(rest):,} more cases {rest[0].verdict.value}: {kernels}; {see}")


def _stale_families(cases: Sequence[CaseRecord], catalog: Catalog) -> Iterator[GateRefusal]:
    """One sentence a family: a changed header makes all its cases stale at once."""
    for family in sorted({case.family for case in cases if case.kernel is None}):
        try:
            now = catalog.source_sha256(family)
        except (ArgumentError, OSError) as error:
            yield GateRefusal("stale.family", f"kernel family {family} has no source any more: {error}")
            continue
        stale = [case for case in cases if case.family == family and case.kernel is None and case.stale(now)]
        if stale:
            text = (
                f"the source of {family} changed since {len(stale)} of its cases ran on {stale[0].device} "
                f"({stale[0].arch}), so they say nothing about it: run them again"
            )
            yield GateRefusal("stale.kernel", text)


def _stale_inputs(records: Sequence[Record]) -> Iterator[GateRefusal]:
    """Fills that make other data than what ran: the smallest case of each is made again."""
    wrong = []
    for record in smallest(records, _REMADE):
        assert record.case is not None
        if _inputs_now(str(record.case.data), record) != record.of.input_sha256:
            wrong.append((f"case {record.of.id}", f"the fill {record.case.fill} makes other inputs now; run it again"))
    yield from first_and_count("stale.inputs", wrong)


_MADE: dict[str, str] = {}


def _inputs_now(name: str, record: Record) -> str:
    """The hash of a case's inputs as they are made now; kept, since several reports hold the same cases."""
    if name not in _MADE:
        assert record.case is not None
        _MADE[name] = input_sha256(record.case.family.inputs(record.case.data))
    return _MADE[name]


def _stale_user_kernels(cases: Sequence[CaseRecord]) -> Iterator[GateRefusal]:
    """A sentence for each user's kernel whose sources are gone or others now.

    Files are looked for from the current folder, as pytest named them from the project's root. A kernel of a package
    names no sources: no file of it would stay the same elsewhere.
    """
    ran: dict[tuple[str, tuple[str, ...]], list[CaseRecord]] = {}
    for case in cases:
        if case.kernel is not None and case.sources and case.verdict.ran:
            ran.setdefault((case.kernel, tuple(case.sources)), []).append(case)
    for (kernel, sources), mine in sorted(ran.items(), key=lambda item: item[0]):
        try:
            for source in sources:
                # Read as carefully as a report: a report may name a pipe, or a device that never ends.
                read_bytes(Path(source.partition("::")[0]), _SOURCE_BYTES)
            now = sha256_of(source_files(sources, Path()))
        except ReportError as error:
            yield GateRefusal("stale.user", f"the source of {kernel} cannot be read from here: {error}")
            continue
        except OSError as error:
            yield GateRefusal("stale.user", f"the source of {kernel} cannot be read from here: {error.strerror}")
            continue
        except (ArgumentError, SyntaxError, UnicodeDecodeError) as error:
            yield GateRefusal("stale.user", f"the source of {kernel} is no longer what ran: {error}")
            continue
        if stale := [case for case in mine if case.stale(now)]:
            text = (
                f"{' or '.join(sources)} changed since {len(stale)} cases of {kernel} ran, so they say nothing "
                "about it: run them again"
            )
            yield GateRefusal("stale.user", text)
