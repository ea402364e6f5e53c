"""Commands that read reports: the gate of a CI, and the pages that people read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from refmoe.cli.common import JsonOption, app, file_option, finish, usage, write_files

_BASELINE = Path("reports/baseline.json")


@app.command(
    epilog="Examples:\n\n"
    "refmoe gate reports/\n\n"
    "refmoe gate out/parity-ptx.json --baseline reports/ptx.json\n\n"
    "refmoe gate reports/ --write-baseline\n\n"
    "refmoe gate --schema > docs/report.schema.json"
)
def gate(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Reports, and folders of reports; reports/ if left out.")
    ] = None,
    baseline: Annotated[
        Path,
        file_option("A baseline or a report: the cases that passed in it must still pass. The default may be absent."),
    ] = _BASELINE,
    write_baseline: Annotated[
        bool, typer.Option("--write-baseline", help="Write the cases that pass to the baseline.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a report and exit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Decide whether reports allow a merge.

    Exit status 1 and a sentence for each bad verdict, vanished case, and stale or edited report.
    """
    from refmoe.catalog import source_sha256
    from refmoe.reports import baseline as baselines
    from refmoe.reports.gate import check_reports
    from refmoe.reports.parity import read_report, schema_text

    if schema:
        typer.echo(schema_text(), nl=False)
        return
    given = paths or [Path("reports")]
    for path in given:
        if not path.exists():
            usage(f"found no file or folder {path}; needed a report or a folder of reports")
    present = baseline if baseline.exists() and not write_baseline else None
    if present is None and baseline != _BASELINE and not write_baseline:
        usage(f"--baseline: found no file {baseline}; needed one made by `refmoe gate --write-baseline`")
    outcome = check_reports(given, present, source_sha256)
    count = None
    if write_baseline and not outcome.refusals:
        count = baselines.write_baseline(baseline, [read_report(path) for path in outcome.reports])

    def show() -> None:
        for refusal in outcome.refusals:
            typer.echo(f"GATE {refusal}")
        if not outcome.refusals:
            against = f", against {present}" if present else ""
            reports = f"{len(outcome.reports)} report{'' if len(outcome.reports) == 1 else 's'}"
            typer.echo(f"gate passed: {reports}, {outcome.passed} passed cases{against}")
        if count is not None:
            typer.echo(f"{baseline}: {count} cases")

    document = {
        "reports": [str(path) for path in outcome.reports],
        "passed": outcome.passed,
        "refusals": list(outcome.refusals),
    }
    finish(document, show, good=not outcome.refusals, as_json=as_json)


@app.command(
    epilog="Examples:\n\n"
    "refmoe report out/parity-ptx.json --html out/report.html\n\n"
    "refmoe report reports/h200.json reports/stress.json reports/bench/gpu.json --html out/report.html\n\n"
    'refmoe report out/parity-ptx.json --markdown "$GITHUB_STEP_SUMMARY" --junit out/junit.xml'
)
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="REPORT.json...", help="Reports of parity, stress, conformance, bench, drift or convert."
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
