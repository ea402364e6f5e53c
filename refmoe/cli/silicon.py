"""Commands that need a GPU: its instructions against the executor's, and kernels run many times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NoReturn

import typer

from refmoe.cli.common import JsonOption, ReportOption, app, finish, make_console, usage

_DeviceOption = Annotated[str, typer.Option(help="The only device that this command can ask: cuda, the GPU.")]


@app.command(epilog="Example:\n\nrefmoe conformance --device cuda --report reports/bench/conformance.json")
def conformance(device: _DeviceOption = "cuda", report: ReportOption = None, as_json: JsonOption = False) -> None:
    """Run every PTX instruction on a GPU and on the executor and compare the bytes; exit status 1 if any differ."""
    from refmoe.silicon import conformance

    if device != "cuda":
        usage(f"--device: found {device!r}; needed cuda: the executor is what is held against it")
    _run(conformance, "instructions", lambda document: not document["differing_opcodes"], report, as_json)


@app.command(epilog="Example:\n\nrefmoe stress --device cuda --report reports/stress.json")
def stress(device: _DeviceOption = "cuda", report: ReportOption = None, as_json: JsonOption = False) -> None:
    """Run every kernel a hundred times on a GPU, and once under each tool of compute-sanitizer.

    Exit status 1 if two runs of a kernel give different bytes or a tool finds an error.
    """
    from refmoe.silicon import stress

    if device != "cuda":
        usage(f"--device: found {device!r}; needed cuda: on the executor every run is the same")
    _run(stress, "kernels, tools", lambda document: bool(document["passed"]), report, as_json)


def _run(
    module: ModuleType, what: str, good: Callable[[dict[str, Any]], bool], report: Path | None, as_json: bool
) -> NoReturn:
    """Run a module of refmoe.silicon with a progress bar over `what`; without a GPU end with exit status 3."""
    from rich.progress import track

    from refmoe.cuda.device import DeviceUnavailable

    console = make_console(stderr=True)
    try:
        document = module.run(progress=lambda items: track(items, what, console=console, transient=True))
    except DeviceUnavailable as error:
        typer.echo(f"SKIPPED {error}", err=as_json)
        raise typer.Exit(3) from None

    def show() -> None:
        typer.echo(module.summary(document), nl=False)

    finish(document, show, good=good(document), report=report, as_json=as_json)
