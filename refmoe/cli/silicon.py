"""Commands that ask a GPU: what its instructions compute, and whether kernels repeat themselves."""

from __future__ import annotations

from typing import Annotated

import typer

from refmoe.cli.common import JsonOption, ReportOption, app, finish, usage

__all__ = ["conformance", "stress"]


@app.command(epilog="Example:\n\nrefmoe conformance --device cuda --report reports/bench/conformance.json")
def conformance(
    device: Annotated[str, typer.Option(help="What the executor is held against: cuda, the GPU.")] = "cuda",
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold what the executor computes against a GPU, one instruction at a time; exit status 1 if one differs."""
    from rich.progress import track

    from refmoe.cli.session import make_console
    from refmoe.cuda.device import DeviceUnavailable
    from refmoe.silicon import conformance as conforming

    if device != "cuda":
        usage(f"--device: found {device!r}; needed cuda: the executor is what is held against it")
    stderr = make_console(stderr=True)
    try:
        document = conforming.run(lambda probes: track(probes, "instructions", console=stderr, transient=True))
    except DeviceUnavailable as error:
        typer.echo(f"SKIPPED {error}", err=as_json)
        raise typer.Exit(3) from None
    finish(
        document,
        not document["differing_opcodes"],
        report=report,
        as_json=as_json,
        show=lambda made: typer.echo(conforming.summary(made), nl=False),
    )


@app.command(epilog="Example:\n\nrefmoe stress --device cuda --report reports/stress.json")
def stress(
    device: Annotated[str, typer.Option(help="Where the kernels run: cuda, the GPU.")] = "cuda",
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run every kernel a hundred times and under compute-sanitizer; exit status 1 if outputs differ or it complains."""
    from rich.progress import track

    from refmoe.cli.session import make_console
    from refmoe.cuda.device import DeviceUnavailable
    from refmoe.silicon import stress as stressing

    if device != "cuda":
        usage(f"--device: found {device!r}; needed cuda: on the executor every run is the same")
    stderr = make_console(stderr=True)
    try:
        document = stressing.run(progress=lambda items: track(items, "kernels, tools", console=stderr, transient=True))
    except DeviceUnavailable as error:
        typer.echo(f"SKIPPED {error}", err=as_json)
        raise typer.Exit(3) from None
    finish(
        document,
        document["passed"],
        report=report,
        as_json=as_json,
        show=lambda made: typer.echo(stressing.summary(made), nl=False),
    )
