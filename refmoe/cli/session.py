"""How a run of cases is shown: progress, failing cases as they come, a summary, and the files that were asked for."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from refmoe.catalog import kernel_of, sound_kernel, source_sha256
from refmoe.cli.common import INTERRUPTED, make_console, write_files
from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.family import Case
from refmoe.families.wrong import is_wrong
from refmoe.files import partial_of
from refmoe.museum import exhibits
from refmoe.reports import render
from refmoe.reports.environment import Environment, current_environment
from refmoe.reports.parity import Report, make_report, report_text
from refmoe.verify.kept import KeptRun
from refmoe.verify.plant import Fault, FaultResult, load_patches, plant_faults
from refmoe.verify.runner import run_cases
from refmoe.verify.verdict import Result, Verdict, exit_status

if TYPE_CHECKING:
    from rich.console import Console

    from refmoe.ptx import Trace
    from refmoe.verify.workers import Workers


@dataclass(frozen=True)
class OutputFiles:
    """Where the report of a run goes.

    Attributes:
        report: JSON file, or None.
        junit: JUnit XML file, or None.
        markdown: Markdown file, or None.
        html: self-contained HTML page, or None.
        as_json: whether standard output is the JSON report; everything else then goes to standard error.
    """

    report: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None
    html: Path | None = None
    as_json: bool = False


def share_of(text: str) -> tuple[int, int]:
    """(K, N) of "K/N": every N-th thing from the K-th on.

    Raises:
        ArgumentError: it is none.
    """
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise ArgumentError("share", repr(text), "K/N with whole numbers and 1 <= K <= N, such as 2/4")
    return int(number), int(of)


def run_session(
    cases: Sequence[Case],
    command: str,
    outputs: OutputFiles,
    *,
    jobs: int = 1,
    workers: Workers | None = None,
    mutants: bool = False,
    share: tuple[int, int] = (1, 1),
    verbose: bool = False,
    trace: Trace | None = None,
    schedules: str = "1",
    keeps: bool = False,
) -> int:
    """Run cases, print the failing ones, and write the files that were asked for.

    Ctrl-C ends the run with a line that says how far it came; no report is written then. A run in which no case ran
    replaces no file: what is there is the better report.

    Args:
        cases: what to run.
        command: what the user asked for, for the report.
        outputs: where the report goes.
        jobs: processes to run cases, and mutants, in.
        workers: who runs cases, in place of `jobs` processes.
        mutants: whether to plant faults in the kernels too.
        share: which of the faults, see `share_of`.
        verbose: whether to print passed cases too.
        trace: records barrier waits and copies; with one process only.
        schedules: those of each launch on the executor, see `refmoe.ptx.schedules.schedules_of`.
        keeps: whether results lie beside the report, in REPORT.partial, until it is written, so that the same command
            goes on after Ctrl-C, a lost worker or a lost machine.

    Returns:
        The exit status.

    Raises:
        ArgumentError: an activations file cannot be used, or another run writes the same partial results.
        RefmoeError: a file cannot be written; the summary is printed first.
        refmoe.verify.patches.PatchError: a mutant does not fit the sources.
        refmoe.cuda.ToolchainError: mutants were asked for, and cannot be compiled.
    """
    console = make_console(stderr=outputs.as_json)
    start = time.perf_counter()
    environment = current_environment(gpu=any(case.device == "cuda" for case in cases))
    with contextlib.ExitStack() as stack:
        kept = None
        if keeps and outputs.report:
            kept = stack.enter_context(contextlib.closing(_kept(outputs.report, command, environment, console)))
        results: list[Result] = []
        killed: list[FaultResult] = []
        try:
            running = _cases(cases, kept, jobs=jobs, workers=workers, trace=trace, schedules=schedules)
            _run_cases(running, len(cases), results, console, verbose)
            if mutants:
                _run_mutants(cases, kept, killed, console, share, jobs)
        except KeyboardInterrupt:
            passed = sum(result.verdict is Verdict.PASS for result in results)
            ran = f"{len(results)} of {len(cases)} cases ran, {passed} passed"
            where = f"what passed is in {kept.path}, and the same command goes on" if kept else "no report was written"
            if kept and kept.lost:
                where = f"not all that passed is in {kept.path}: {kept.lost}"
            console.print(f"\ninterrupted: {ran}; {where}", markup=False)
            return INTERRUPTED
        seconds = time.perf_counter() - start + (kept.seconds if kept else 0)
        report = make_report(results, command=command, environment=environment, seconds=seconds, mutants=killed)
        wanted: dict[Path | None, Callable[[Report], str]] = {
            outputs.report: report_text,
            outputs.junit: render.junit_text,
            outputs.markdown: render.markdown_text,
            outputs.html: _html_text,
        }
        asked = {path: partial(text, report) for path, text in wanted.items() if path is not None}
        better = [path for path in asked if path.is_file()] if not any(result.verdict.ran for result in results) else []
        written, failed = write_files({path: text for path, text in asked.items() if path not in better})
        if kept and outputs.report in (*written, *better):
            kept.drop()
        if outputs.as_json:
            print(report_text(report), end="")
        else:
            _print_summary(console, report, written)
        for path in better:
            console.print(f"left as it was: {path}, because no case ran", markup=False)
        if failed:
            raise RefmoeError("; ".join(failed))
        survived = any(not mutant.caught for mutant in killed)
        return 1 if survived else exit_status(results)


def _kept(report: Path, command: str, environment: Environment, console: Console) -> KeptRun:
    """What an earlier run of the same command found, if the same sources, compiler, libraries and GPU found it."""
    kept = KeptRun(partial_of(report, command), command, {"environment": environment.model_dump(mode="json")})
    if kept.dropped:
        console.print(f"dropped: {kept.dropped}", markup=False)
    if kept.cases or kept.faults:
        faults = f" and {kept.faults} faults" if kept.faults else ""
        console.print(f"{kept.cases} cases{faults} are in {kept.path}: they do not run again", markup=False)
    return kept


def _cases(
    cases: Sequence[Case],
    kept: KeptRun | None,
    *,
    jobs: int,
    workers: Workers | None,
    trace: Trace | None,
    schedules: str,
) -> Iterator[Result]:
    """The results of `cases` in order; those that are kept do not run."""
    source = functools.cache(source_sha256)
    known = {case: found for case in cases if kept and (found := kept.result(case, source)) is not None}
    left = [case for case in cases if case not in known]
    keep = kept.keep if kept else None
    running = run_cases(left, kernel_of, jobs=jobs, workers=workers, trace=trace, schedules=schedules, keep=keep)
    for case in cases:
        yield known[case] if case in known else next(running)


def _run_cases(running: Iterator[Result], total: int, results: list[Result], console: Console, verbose: bool) -> None:
    """Append each result to `results` as it arrives, so that an interrupt finds them; failing ones print at once."""
    shown_reasons: set[str] = set()
    with _progress(console, total, "cases") as advance:
        for result in running:
            results.append(result)
            advance(f"{result.case.family.name} {result.case.fill}")
            # One missing device skips every case for one reason, one full disk fails every case for one.
            again = result.reason in shown_reasons
            if result.reason is not None:
                shown_reasons.add(result.reason)
            # Long reasons, such as a compiler's, are printed whole only once.
            line = result.line.strip().split("\n", 1)[0] if again else result.line
            if result.fails or verbose:
                console.print(line, style=render.verdict_style(result), markup=False)
                console.print(f"repro: {result.repro}", markup=False)
            elif result.verdict is Verdict.UNSUPPORTED and is_wrong(result.case):
                continue  # a wrong call that was refused: there are many
            elif result.verdict is Verdict.UNSUPPORTED:
                text = f"{result.id}: UNSUPPORTED, as the case list says: {result.reason}"
                console.print(text, style=render.verdict_style(result), markup=False)
            elif result.verdict is not Verdict.PASS and not again:
                console.print(line, style=render.verdict_style(result), markup=False)
            for warning in result.warnings:
                if warning not in shown_reasons:
                    shown_reasons.add(warning)
                    console.print(f"{result.id}: warning: {warning}", style="yellow", markup=False)


def _run_mutants(
    cases: Sequence[Case],
    kept: KeptRun | None,
    killed: list[FaultResult],
    console: Console,
    share: tuple[int, int],
    jobs: int,
) -> None:
    """The faults in our kernels, and those of the museum's, if the families of `cases` have them; of them a share."""
    families = {case.family.name for case in cases}
    faults: list[Fault] = list(load_patches()) if families - exhibits().keys() else []
    for name, exhibit in exhibits().items():
        absent = exhibit.faults_missing() if name in families else None
        if absent is not None:
            console.print(f"SKIPPED {len(exhibit.faults)} faults of {name}: {absent}", markup=False)
        elif name in families:
            faults += exhibit.faults
    number, of = share
    if of > 1:
        console.print(f"of {len(faults)} faults every {of}th from number {number} on is planted", markup=False)
        faults = faults[number - 1 :: of]
    known = {fault.name: found for fault in faults if kept and (found := kept.fault(fault)) is not None}
    left = [fault for fault in faults if fault.name not in known]
    planted = plant_faults(left, sound_kernel, jobs=jobs, keep=kept.keep_fault if kept else None)
    with _progress(console, len(faults), "mutants") as advance:
        for fault in faults:
            result = known[fault.name] if fault.name in known else next(planted)
            killed.append(result)
            advance(result.name)
            console.print(result.line, style="" if result.caught else "bold red", markup=False)


@contextlib.contextmanager
def _progress(console: Console, total: int, what: str) -> Iterator[Callable[[str], None]]:
    """A progress bar on a terminal, nothing elsewhere; yields what advances it by one and names the thing done."""
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


def _html_text(report: Report) -> str:
    # The page needs what nothing else here does: templates, and pictures.
    from refmoe.reports.html import page_of

    return page_of(report)


def _print_summary(console: Console, report: Report, written: Sequence[Path]) -> None:
    console.print()
    console.print(render.summary_table(report))
    shares = render.family_shares(report)
    if len(shares) > 1:
        console.print("\nseconds by family:", markup=False)
        for line in shares:
            console.print(f"  {line}", markup=False)
    if report.mutants:
        caught = sum(mutant.caught for mutant in report.mutants)
        console.print(f"\nmutants: {caught} of {len(report.mutants)} caught, by cases that the unpatched kernels pass")
        checks = Counter(mutant.check for mutant in report.mutants if mutant.caught)
        console.print(f"caught by: {', '.join(f'{check} {count}' for check, count in checks.most_common())}")
    if render.weighed_mutants(report):
        console.print("\nwhat tests with published tolerances would have let through\n", markup=False)
        console.print(render.tolerance_table(report))
        for line in render.tolerance_legend(report):
            console.print(line, markup=False)
    for text in report.proves:
        console.print(f"\n{text}", markup=False)
    console.print(f"\n{render.verdict_counts(report) or 'no case'} in {report.seconds:.1f} s", markup=False)
    for path in written:
        console.print(f"written: {path}", markup=False)
