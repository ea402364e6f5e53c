"""The command line. Commands import what they need when they run, so that `refmoe --help` is quick.

Exit status of every command: 0 for success; 1 for a failing case, an error or a failed gate; 2 for wrong usage; 3 if
no case ran. SKIPPED cases do not fail, nor do UNSUPPORTED ones that the case list expects.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from refmoe.cli import (  # noqa: F401
    bench,
    cutlass,
    drift,
    faults,
    invariant,
    litmus,
    mutate,
    policy,
    probe,
    prove,
    reports,
    run,
    show,
    silicon,
)
from refmoe.cli.common import app
from refmoe.errors import ArgumentError, RefmoeError

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; errors that refmoe raises on purpose end it in one sentence."""
    try:
        app(prog_name="refmoe")
    except ArgumentError as error:
        _fail(error, 2)
    except RefmoeError as error:
        _fail(error, 1)
    except OSError as error:  # a disk that is full, a file that cannot be written
        _fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else error, 1)


def _fail(error: Exception | str, status: int) -> None:
    print(f"refmoe: {error}", file=sys.stderr)
    raise SystemExit(status)


def _version(wanted: bool) -> None:
    if wanted:
        import refmoe

        typer.echo(refmoe.__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
