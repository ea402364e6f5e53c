"""Commands that read reports: the gate of a CI, and the pages that people read."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from refmoe.cli.common import JsonOption, app, file_option, finish, usage, write_files

_BASELINE = Path("reports/baseline.json")
#: Files that were not read and are named; the others are counted.
_UNREAD = 20


@app.command(
    epilog="Examples:\n\n"
    "refmoe gate reports/\n\n"
    "refmoe gate out/parity-ptx.json --baseline reports/ptx.json\n\n"
    "refmoe gate reports/ --write-baseline\n\n"
    "refmoe gate out/mine.json --no-baseline\n\n"
    "refmoe gate reports/ --quick\n\n"
    "refmoe gate --checks\n\n"
    "refmoe gate --schema > docs/report.schema.json"
)
def gate(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Reports, and folders of reports; reports/ if left out.")
    ] = None,
    baseline: Annotated[
        Path | None,
        file_option(
            "A baseline or a report: the cases that passed in it must still pass. If left out, the baseline.json of "
            f"the folder that is checked, or {_BASELINE}."
        ),
    ] = None,
    no_baseline: Annotated[bool, typer.Option("--no-baseline", help="Do not check for vanished cases.")] = False,
    write_baseline: Annotated[
        bool, typer.Option("--write-baseline", help="Write the cases that pass to the baseline.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not run drift and conversions again, which takes a minute.")
    ] = False,
    checks: Annotated[bool, typer.Option("--checks", help="Print a table of all checks and exit.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a report and exit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Decide whether reports allow a merge.

    The gate prints a sentence for each bad verdict, contradiction, vanished case, and stale or edited report; any of
    these gives exit status 1. A benchmark that missed its target is listed and does not fail the gate, because its
    report is true.
    """
    from refmoe import catalog
    from refmoe.evidence import read_evidence
    from refmoe.probe.committed import bundle_refusals, evidence_refusals
    from refmoe.recomputed import recompute
    from refmoe.reports import baseline as baselines
    from refmoe.reports.checks import GateRefusal, table_text
    from refmoe.reports.gate import BASELINE, check_reports
    from refmoe.reports.parity import read_report, schema_text
    from refmoe.reports.probe import BUNDLE
    from refmoe.reports.reading import shown

    if schema or checks:
        typer.echo(schema_text() if schema else table_text(), nl=False)
        return
    given = paths or [Path("reports")]
    for path in given:
        if not os.path.lexists(path):
            usage(f"found no file or folder {path}; needed a report or a folder of reports")
    if no_baseline and (baseline is not None or write_baseline):
        usage("--no-baseline: found it beside --baseline or --write-baseline; needed one of them")
    own = [path / BASELINE for path in given if path.is_dir()]
    if len([path for path in own if os.path.lexists(path)]) > 1 and baseline is None and not no_baseline:
        usage(f"--baseline: found {' and '.join(map(str, own))}; needed to be told which")
    usual = next((path for path in own if os.path.lexists(path)), own[0] if len(own) == 1 else _BASELINE)
    used = baseline or usual
    if baseline is not None and not os.path.lexists(baseline) and not write_baseline:
        usage(f"--baseline: found no file {baseline}; needed one made by `refmoe gate --write-baseline`")
    present = used if os.path.lexists(used) and not write_baseline and not no_baseline else None
    renewed = used if write_baseline else None
    anew = {**recompute(quick=quick), BUNDLE.name: lambda bundle: bundle_refusals(bundle, read_evidence())}
    outcome = check_reports(given, present, catalog, renewed=renewed, recomputed=anew)
    found = [*outcome.found, *evidence_refusals(quick=quick)]
    if present is None and not no_baseline and not write_baseline:
        text = (
            f"no baseline: found no {shown(used)}, so nobody would see that a case is gone; name one with --baseline, "
        )
        text += "make one with --write-baseline, or say --no-baseline"
        found.append(GateRefusal("baseline.missing", text))
    count = None
    if write_baseline and not found:
        count = baselines.write_baseline(used, [read_report(path) for path in outcome.reports])

    def show() -> None:
        for refusal in found:
            typer.echo(f"GATE {refusal.text}")
        for line in outcome.missed:
            typer.echo(f"missed target: {line}")
        for path in outcome.unread[:_UNREAD]:
            typer.echo(f"not read: {shown(path)}, which is no report by its name and its look")
        if len(outcome.unread) > _UNREAD:
            typer.echo(f"not read: {len(outcome.unread) - _UNREAD} files more")
        if not found:
            against = f", against {present}" if present else ""
            reports = f"{len(outcome.reports)} report{'' if len(outcome.reports) == 1 else 's'}"
            others = f" and {len(outcome.documents)} other documents" if outcome.documents else ""
            typer.echo(f"gate passed: {reports}{others}, {outcome.passed} passed cases{against}")
        if count is not None:
            typer.echo(f"{used}: {count} cases")

    document = {
        "reports": [shown(path) for path in outcome.reports],
        "documents": [shown(path) for path in outcome.documents],
        "unread": [shown(path) for path in outcome.unread],
        "passed": outcome.passed,
        "missed": list(outcome.missed),
        "refusals": [refusal.text for refusal in found],
        "checks": [refusal.check for refusal in found],
    }
    finish(document, show, good=not found, as_json=as_json)


@app.command(
    epilog="Examples:\n\n"
    "refmoe report out/parity-ptx.json --html out/report.html\n\n"
    "refmoe report reports/gpu.json reports/stress.json reports/bench/gpu.json --html out/report.html\n\n"
    'refmoe report out/parity-ptx.json --markdown "$GITHUB_STEP_SUMMARY" --junit out/junit.xml'
)
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="REPORT.json...",
            help="Reports of any kind: parity, stress, litmus, bench and the others.",
        ),
    ],
    html: Annotated[Path | None, file_option("Write one self-contained HTML page of all reports.")] = None,
    markdown: Annotated[Path | None, file_option("Write the parity reports as Markdown.")] = None,
    junit: Annotated[Path | None, file_option("Write the parity reports as JUnit XML.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show reports as an HTML page, Markdown or JUnit XML.

    The exit status does not depend on what the reports say; `refmoe gate` judges them. It is 1 for a file that is no
    report or was edited.
    """
    from refmoe.catalog import source_sha256
    from refmoe.errors import RefmoeError
    from refmoe.reports.html import page_text, read_source
    from refmoe.reports.render import junit_text, markdown_text

    if html is None and markdown is None and junit is None:
        usage("found no output; needed --html PATH, --markdown PATH or --junit PATH")
    texts: dict[Path, Callable[[], str]] = {}
    for path in paths:
        if not path.exists():
            usage(f"found no file {path}; needed a report")
    # A file that is cut off, edited or no report is an error, as it is for the gate, and no wrong usage.
    sources = [read_source(path) for path in paths]
    reports = [source.report for source in sources if source.report is not None]
    if (markdown or junit) and not reports:
        usage(f"--{'markdown' if markdown else 'junit'}: found no parity report; needed at least one")
    if html is not None:
        # Made here and not while it is written: of a document that no page can show no file is written.
        page = page_text(sources, source_sha256)
        texts[html] = lambda: page
    if markdown is not None:
        texts[markdown] = partial(markdown_text, *reports)
    if junit is not None:
        texts[junit] = partial(junit_text, *reports)
    written, failed = write_files(texts)
    if failed:
        raise RefmoeError("; ".join(failed))

    def show() -> None:
        for path in written:
            typer.echo(f"written: {path}")

    document = {"documents": [str(path) for path in paths], "written": [str(path) for path in written]}
    finish(document, show, as_json=as_json)
