"""The command that a CI gates on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from refmoe.cli.common import JsonOption, app, usage

__all__ = ["gate"]


@app.command(
    epilog="Examples:\n\n"
    "refmoe gate reports/\n\n"
    "refmoe gate out/parity-ptx.json --baseline reports/ptx.json\n\n"
    "refmoe gate reports/ --write-baseline\n\n"
    "refmoe gate --schema > docs/report.schema.json"
)
def gate(
    paths: Annotated[list[Path] | None, typer.Argument(help="Reports, and folders of reports.")] = None,
    baseline: Annotated[
        Path,
        typer.Option(help="A baseline, or a report: what passed in it must still pass. The default may be absent."),
    ] = Path("reports/baseline.json"),
    write_baseline: Annotated[
        bool, typer.Option("--write-baseline", help="Make the passed cases of these reports the baseline.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a report.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fail on a bad verdict, a vanished case, a stale or edited report."""
    from refmoe.reports import baseline as baselines
    from refmoe.reports import gate as gates
    from refmoe.reports.parity import read_report, schema_text
    from refmoe.verify.runner import source_sha256

    if schema:
        typer.echo(schema_text(), nl=False)
        return
    given = paths or [Path("reports")]
    for path in given:
        if not path.exists():
            usage(f"PATH: found no file or folder {path}; needed a report or a folder of reports")
    present = baseline if baseline.exists() and not write_baseline else None
    if present is None and baseline != Path("reports/baseline.json") and not write_baseline:
        usage(f"--baseline: found no file {baseline}; needed one made by `refmoe gate --write-baseline`")
    outcome = gates.check_reports(given, present, source_sha256)
    count = None
    if write_baseline and not outcome.refusals:
        count = baselines.write_baseline(baseline, [read_report(path) for path in outcome.reports])
    if as_json:
        document = {"reports": [str(path) for path in outcome.reports], "passed": outcome.passed}
        typer.echo(json.dumps({**document, "refusals": list(outcome.refusals)}, indent=1))
    else:
        for refusal in outcome.refusals:
            typer.echo(f"GATE {refusal}")
        if not outcome.refusals:
            against = f", against {present}" if present else ""
            reports = f"{len(outcome.reports)} report{'' if len(outcome.reports) == 1 else 's'}"
            typer.echo(f"gate passed: {reports}, {outcome.passed} passed cases{against}")
        if count is not None:
            typer.echo(f"{baseline}: {count} cases")
    raise typer.Exit(1 if outcome.refusals else 0)
