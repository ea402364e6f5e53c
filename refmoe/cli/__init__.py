"""The command line. Commands import what they need when they run, so that `refmoe --help` is quick.

Exit status of every command: 0 all good; 1 a mismatch, mistrusted data, an error or a failed gate; 2 usage; 3 no case
ran. UNSUPPORTED and SKIPPED cases alone do not fail.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from refmoe.cli import bench, cutlass, drift, flow, gate, policy, prove, report, run, show, silicon
from refmoe.cli.common import app
from refmoe.errors import ArgumentError, RefmoeError

__all__ = [
    "app",
    "bench",
    "cutlass",
    "drift",
    "flow",
    "gate",
    "main",
    "policy",
    "prove",
    "report",
    "run",
    "show",
    "silicon",
]


def main() -> None:
    """Entry point of the `refmoe` command."""
    try:
        app()
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
