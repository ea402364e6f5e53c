"""The command that tells of CuTe DSL: the release, and which block scales its own products take."""

from __future__ import annotations

import dataclasses

import typer

from refmoe.cli.common import JsonOption, app, finish


@app.command(epilog="Examples:\n\nrefmoe cute\n\nrefmoe cute --json")
def cute(as_json: JsonOption = False) -> None:
    """Ask CuTe DSL which block scales its own matrix products take, and print its answers as a table."""
    from refmoe.cute import PYPI_REQUIREMENT, check_package
    from refmoe.cute.scale_formats import ask, table

    check_package()
    answers = ask()

    def show() -> None:
        typer.echo(f"{PYPI_REQUIREMENT}\n")
        typer.echo(table(answers))

    finish({"release": PYPI_REQUIREMENT, "answers": list(map(dataclasses.asdict, answers))}, show, as_json=as_json)
