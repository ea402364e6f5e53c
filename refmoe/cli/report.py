"""The command that shows documents as pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refmoe.cli.common import JsonOption, app, usage

__all__ = ["report"]


@app.command(
    epilog="Examples:\n\n"
    "refmoe report out/parity-ptx.json --html out/report.html\n\n"
    "refmoe report reports/h200.json reports/stress.json reports/bench/gpu.json --html out/report.html\n\n"
    'refmoe report out/parity-ptx.json --markdown "$GITHUB_STEP_SUMMARY" --junit out/junit.xml'
)
def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="REPORT.json...", help="Documents that refmoe wrote: parity, stress, ...")
    ],
    html: Annotated[Path | None, typer.Option(help="A self-contained HTML page of all of them.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Markdown of the parity reports.")] = None,
    junit: Annotated[Path | None, typer.Option(help="JUnit XML of the parity reports.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show reports as an HTML page, Markdown or JUnit XML. It judges nothing: that is `refmoe gate`."""
    import json

    from refmoe.errors import RefmoeError
    from refmoe.files import write_atomic
    from refmoe.reports.documents import ReportError
    from refmoe.reports.html import page_text, read_source
    from refmoe.reports.render import junit_text, markdown_text
    from refmoe.verify.runner import source_sha256

    if html is None and markdown is None and junit is None:
        usage("found no output; needed --html PATH, --markdown PATH or --junit PATH")
    try:
        sources = [read_source(path) for path in paths]
        reports = [source.report for source in sources if source.report is not None]
        if (markdown or junit) and not reports:
            usage(f"--{'markdown' if markdown else 'junit'}: found no parity report; needed at least one")
        texts = {}
        if html is not None:
            texts[html] = page_text(sources, source_sha256)
        if markdown is not None:
            texts[markdown] = markdown_text(*reports)
        if junit is not None:
            texts[junit] = junit_text(*reports)
    except ReportError as error:
        usage(str(error))
    written = []
    for path, text in texts.items():
        try:
            written.append(write_atomic(path, text))
        except OSError as error:
            raise RefmoeError(f"cannot write {path}: {error.strerror}") from error
    if as_json:
        typer.echo(json.dumps({"documents": [str(path) for path in paths], "written": [str(p) for p in written]}))
    else:
        for path in written:
            typer.echo(f"written: {path}")
