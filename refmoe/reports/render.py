"""A report as people and machines read it: terminal text, Markdown, JUnit XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from refmoe.reports.parity import CaseRecord, MutantRecord, Report, count_verdicts
from refmoe.tables import plain_table
from refmoe.verify.verdict import Result, Verdict

_COLUMNS = ("kernel", "device", "arch", "verdicts", "assumed model", "bytes compared", "seconds")


def verdict_style(one: CaseRecord | Result) -> str:
    """The rich style of a case: green if it passes, bold red if it fails, yellow if it did not run."""
    return "bold red" if one.fails else "green" if one.verdict.ran else "yellow"


@dataclass(frozen=True)
class Group:
    """The cases of one family, device and arch, counted."""

    family: str
    device: str
    arch: str
    cases: tuple[CaseRecord, ...]

    @property
    def compared(self) -> int:
        """Bytes compared."""
        return sum(case.compared for case in self.cases)

    @property
    def counts(self) -> str:
        """ "12 PASS, 1 MISMATCH"."""
        return ", ".join(f"{count} {name}" for name, count in self.summary.items())

    @property
    def summary(self) -> dict[str, int]:
        """Cases by verdict; wrong calls that were refused by themselves."""
        return _counted(self.cases)

    @property
    def model(self) -> str:
        """The accumulation model that the verdicts assume and its evidence, "sm120, extrapolated"; or ""."""
        found = {f"{case.model}, {case.model_evidence}" for case in self.cases if case.model}
        return "; ".join(sorted(found))

    @property
    def evidence(self) -> list[str]:
        """What the verdicts rest on, "bit-exact" and "model sm120: extrapolated"."""
        words = {case.evidence for case in self.cases if case.evidence != "none"}
        models = {f"model {case.model}: {case.model_evidence}" for case in self.cases if case.model}
        return [*sorted(words), *sorted(models)]

    @property
    def worst(self) -> CaseRecord:
        """A failing case if there is one, else one that did not run, else one that passes."""
        return min(self.cases, key=lambda case: (not case.fails, case.verdict.ran))

    @property
    def seconds(self) -> float:
        """Time of all cases together."""
        return sum(case.seconds for case in self.cases)

    @property
    def cells(self) -> tuple[str, ...]:
        """The group's line in a table whose columns are `_COLUMNS`."""
        figures = f"{self.compared:,}", f"{self.seconds:.1f}"
        return self.family, self.device, self.arch, self.counts, self.model, *figures


def groups(report: Report) -> list[Group]:
    """The report's cases by family, device and arch, in the order of the report."""
    found: dict[tuple[str, str, str], list[CaseRecord]] = {}
    for case in report.cases:
        # A user's kernel under a family's contract is a kernel of its own.
        name = case.family if case.kernel is None else f"{case.kernel} as {case.family}"
        found.setdefault((name, case.device, case.arch), []).append(case)
    return [Group(*key, tuple(cases)) for key, cases in found.items()]


def verdict_lines(record: CaseRecord) -> list[str]:
    """What to write about a case that is not PASS: the verdict with what was found, and how to run it again."""
    return [f"{verdict_words(record)} {record.finding}", f"repro: {record.repro}"]


def verdict_words(record: CaseRecord) -> str:
    """The verdict, and of a refusal that fails why it does."""
    return record.verdict.value + (", not in the case list:" if record.expected is False else "")


def headline(report: Report) -> str:
    """The verdict in figures: cases, and planted faults if any were planted."""
    caught = sum(mutant.caught for mutant in report.mutants)
    faults = f"; {caught} of {len(report.mutants)} planted faults caught" if report.mutants else ""
    return cases_text(report.cases) + faults


def cases_text(cases: Sequence[CaseRecord]) -> str:
    """Counts by verdict in words.

    "12 of 806 cases fail: 10 MISMATCH, 2 ERROR", or, if none fails, "800 of 806 cases pass, 6 SKIPPED".
    """
    total = len(cases)
    if failing := [case.verdict for case in cases if case.fails]:
        return f"{len(failing):,} of {total:,} cases fail: {_counts(count_verdicts(failing))}"
    summary = _counted(cases)
    passed = summary.pop(Verdict.PASS.value, 0)
    return f"{passed:,} of {total:,} cases pass" + (f", {_counts(summary)}" if summary else "")


def verdict_counts(report: Report) -> str:
    """The verdicts counted, refusals by whether the case list has them.

    "970 PASS, 20 wrong calls refused, 11 UNSUPPORTED as the case list says, 1 UNSUPPORTED not in the case list".
    """
    counted = _counted(report.cases)
    refused = [case for case in report.cases if case.verdict is Verdict.UNSUPPORTED and case.fails]
    if listed := counted.pop(Verdict.UNSUPPORTED.value, 0) - len(refused):
        counted[f"{Verdict.UNSUPPORTED.value} as the case list says"] = listed
    if refused:
        counted[f"{Verdict.UNSUPPORTED.value} not in the case list"] = len(refused)
    return ", ".join(f"{count} {name}" for name, count in counted.items())


def _counted(cases: Sequence[CaseRecord]) -> dict[str, int]:
    """Cases by verdict; wrong calls that were refused, as they have to be, are counted by themselves."""
    refused = sum(case.refused_wrong_call for case in cases)
    counted = count_verdicts([case.verdict for case in cases if not case.refused_wrong_call])
    return counted | ({"wrong calls refused": refused} if refused else {})


def _counts(summary: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in summary.items())


def summary_table(report: Report) -> Table:
    """A rich table, one line for each family, device and arch."""
    table = plain_table(*_COLUMNS[:-2], *(f">{name}" for name in _COLUMNS[-2:]), wrap=True)
    for group in groups(report):
        cells: list[str | Text] = [*group.cells]
        cells[_COLUMNS.index("verdicts")] = Text(group.counts, style=verdict_style(group.worst))
        table.add_row(*cells)
    return table


def family_shares(report: Report) -> list[str]:
    """A line for each family, the dearest first: its cases, their seconds, and their share of all seconds."""
    found: dict[str, list[float]] = {}
    for case in report.cases:
        found.setdefault(case.family, []).append(case.seconds)
    whole = sum(map(sum, found.values())) or 1.0
    dearest = sorted(found.items(), key=lambda item: -sum(item[1]))
    return [
        f"{name}: {len(seconds):,} cases, {sum(seconds):.1f} s, {sum(seconds) / whole:.0%}" for name, seconds in dearest
    ]


def weighed_mutants(report: Report) -> list[MutantRecord]:
    """The mutants whose output was held against published tolerances: those of the GEMM."""
    return [mutant for mutant in report.mutants if mutant.case and mutant.case.startswith("sm12x_gemm:")]


def accepted_counts(report: Report) -> dict[str, int]:
    """For each published tolerance how many weighed mutants pass it."""
    weighed = weighed_mutants(report)
    return {rule.name: sum(rule.name in (mutant.accepted_by or []) for mutant in weighed) for rule in report.tolerances}


def tolerance_table(report: Report) -> Table:
    """A rich table, one line for each mutant of the GEMM and one column for each published tolerance."""
    table = plain_table("planted fault of the GEMM", wrap=True)
    for number, _ in enumerate(report.tolerances, start=1):
        table.add_column(f"({number})", justify="center")
    for mutant in weighed_mutants(report):
        table.add_row(mutant.name, *_weights(report, mutant))
    table.add_row("let through", *(str(count) for count in accepted_counts(report).values()), style="bold")
    return table


def tolerance_legend(report: Report) -> list[str]:
    """What the columns of `tolerance_table` are."""
    return [f"({number}) {rule.source}: {rule.rule}" for number, rule in enumerate(report.tolerances, start=1)]


def _weights(report: Report, mutant: MutantRecord) -> list[str]:
    """A cell for each tolerance: whether it would have passed the mutant; "-" for a mutant without output."""
    if mutant.accepted_by is None:
        return ["-"] * len(report.tolerances)
    return ["passes" if rule.name in mutant.accepted_by else "" for rule in report.tolerances]


def markdown_text(*reports: Report) -> str:
    """Reports as Markdown: counts, the table, every verdict but PASS with its repro line; of a pass what it proves."""
    return "\n".join(map(_markdown, reports))


def _markdown(report: Report) -> str:
    environment = report.environment
    lines = [
        "# refmoe parity",
        "",
        f"`{report.command}`, {report.created}, refmoe {environment.refmoe}, {environment.platform}, "
        f"{environment.nvcc or 'no nvcc'}" + (f", {environment.gpu}" if environment.gpu else ""),
        "",
        f"**{headline(report)}**",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---|---|---|---|---|---:|---:|",
        *(f"| {' | '.join(group.cells)} |" for group in groups(report)),
    ]
    told = [case for case in report.cases if case.verdict is not Verdict.PASS]
    for record in sorted(told, key=lambda case: not case.fails):
        lines += ["", *_fenced(verdict_lines(record))]
    if report.mutants:
        lines += ["", "| planted fault | caught by | finding |", "|---|---|---|"]
    for mutant in report.mutants:
        finding = (mutant.finding or "").strip().split("\n", 1)[0].replace("|", "\\|")
        lines.append(f"| {mutant.fault} | {f'`{mutant.case}`' if mutant.caught else '**nothing**'} | {finding} |")
    lines += _tolerance_lines(report) if weighed_mutants(report) else []
    lines += ["", *(f"- {text}" for text in report.proves)]
    lines += ["", f"digest `{report.digest}`", ""]
    return "\n".join(lines)


def _fenced(lines: Sequence[str]) -> list[str]:
    """A block of code that the lines cannot end: a kernel's message may hold backticks of its own."""
    runs = re.findall("`+", "\n".join(lines))
    fence = "`" * max(3, 1 + max(map(len, runs), default=0))
    return [fence, *lines, fence]


def _tolerance_lines(report: Report) -> list[str]:
    names = [rule.name for rule in report.tolerances]
    lines = ["", "Would the tolerance of another project's test have let the fault through?", ""]
    lines += [f"| planted fault of the GEMM | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for mutant in weighed_mutants(report):
        lines.append(f"| {mutant.fault} | {' | '.join(_weights(report, mutant))} |")
    counts = accepted_counts(report)
    lines += [f"| **let through** | {' | '.join(str(counts[name]) for name in names)} |", ""]
    return [*lines, *(f"- {rule.name}: {rule.source}: {rule.rule}" for rule in report.tolerances)]


def junit_text(*reports: Report) -> str:
    """Reports as JUnit XML: a suite for each family, device and arch, a test case for each case."""
    seconds = sum(report.seconds for report in reports)
    root = ElementTree.Element("testsuites", {"name": "refmoe parity", "time": f"{seconds:.3f}"})
    for report, group in ((one, group) for one in reports for group in groups(one)):
        name = ".".join(filter(None, ("refmoe", group.family, group.device, group.arch)))
        suite = ElementTree.SubElement(root, "testsuite", _junit_counts(name, group.cases, report.created))
        for case in group.cases:
            attributes = {"classname": name, "name": case.id, "time": f"{case.seconds:.4f}"}
            _junit_outcome(ElementTree.SubElement(suite, "testcase", attributes), case)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _junit_counts(name: str, cases: Sequence[CaseRecord], created: str) -> dict[str, str]:
    errors = sum(case.verdict is Verdict.ERROR for case in cases)
    return {
        "name": name,
        "tests": str(len(cases)),
        "failures": str(sum(case.fails for case in cases) - errors),
        "errors": str(errors),
        "skipped": str(sum(not case.verdict.ran and not case.fails for case in cases)),
        "time": f"{sum(case.seconds for case in cases):.3f}",
        "timestamp": created,
    }


def _junit_outcome(element: ElementTree.Element, case: CaseRecord) -> None:
    if case.verdict is Verdict.PASS:
        return
    tag = "skipped" if not case.fails else "error" if case.verdict is Verdict.ERROR else "failure"
    text = _xml_characters(verdict_lines(case))
    outcome = ElementTree.SubElement(element, tag, {"message": text[0], "type": case.verdict.value})
    outcome.text = "\n".join(text)


def _xml_characters(lines: Iterable[str]) -> list[str]:
    """Compiler output may hold control characters, which XML 1.0 has no way to write."""
    return [re.sub(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]", "?", line) for line in lines]
