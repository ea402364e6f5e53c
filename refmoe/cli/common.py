"""What the commands share: the application, how they end, how they print."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from refmoe.errors import ArgumentError

__all__ = ["JsonOption", "ReportOption", "app", "finish", "usage", "usage_errors"]

app = typer.Typer(
    name="refmoe",
    help="Does a mixture-of-experts kernel compute exactly what it should, and if not, where first does it differ?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
ReportOption = Annotated[Path | None, typer.Option(help="Also write the JSON document here.")]


def finish(
    document: dict[str, Any],
    good: bool,
    *,
    report: Path | None,
    as_json: bool,
    show: Callable[[dict[str, Any]], None],
) -> NoReturn:
    """Write the document to `report`, print it as JSON or through `show`, and exit with 0 if `good`, else 1."""
    from refmoe.files import write_atomic

    text = json.dumps(document, indent=1) + "\n"
    if report is not None:
        write_atomic(report, text)
    if as_json:
        typer.echo(text, nl=False)
    else:
        show(document)
    raise typer.Exit(0 if good else 1)


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """What a user typed wrong is a usage error: one sentence, exit status 2."""
    try:
        yield
    except ArgumentError as error:
        usage(str(error))


def usage(message: str) -> NoReturn:
    """End with a sentence on wrong usage."""
    typer.echo(f"refmoe: {message}", err=True)
    raise typer.Exit(2)
