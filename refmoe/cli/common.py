"""What the commands share: the application, how they print, write files and end."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from refmoe.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

#: Exit status after Ctrl-C, as shells have it.
INTERRUPTED = 130


class Commands(TyperGroup):
    """The commands; Ctrl-C ends each of them in one word, where it does not end it in a better sentence itself."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="refmoe",
    cls=Commands,
    help="Check that a mixture-of-experts kernel computes exactly what it should, and show where it first differs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich" if importlib.util.find_spec("rich") else None,
)


def file_option(text: str) -> Any:
    """An option that takes the name of a file."""
    return typer.Option(metavar="FILE", help=text)


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
ReportOption = Annotated[Path | None, file_option("Also write the JSON document to FILE.")]


def make_console(*, stderr: bool = False) -> Console:
    """A console that never breaks a line: messages and repro strings are copied and searched for."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # Without a terminal rich takes 80 columns and folds tables into them.
    return Console(stderr=stderr, soft_wrap=True, highlight=False, width=None if stream.isatty() else 160)


def finish(
    document: Mapping[str, Any],
    show: Callable[[], None],
    *,
    as_json: bool,
    good: bool = True,
    report: Path | None = None,
    partial: Path | None = None,
) -> NoReturn:
    """Write the document to `report`, print it as JSON or call `show`, and exit with 0 if `good`, else 1.

    `partial` is a file of results that go with the report: it is removed once that is written.
    """
    from refmoe.files import write_atomic

    text = json.dumps(document, indent=1) + "\n"
    if report is not None:
        write_atomic(report, text)
    if partial is not None:
        partial.unlink(missing_ok=True)
    if as_json:
        typer.echo(text, nl=False)
    else:
        show()
    raise typer.Exit(0 if good else 1)


def tracked(items: Iterable[T], words: str, total: int | None = None) -> Iterable[T]:
    """Items as they are taken, with a progress bar on standard error if that is a terminal."""
    from rich.progress import track

    return track(items, words, total=total, console=make_console(stderr=True), transient=True)


def run_on_gpu(
    module: ModuleType,
    words: str,
    good: Callable[[dict[str, Any]], bool],
    report: Path | None,
    as_json: bool,
    **options: int,
) -> NoReturn:
    """Run a module of refmoe.silicon with a progress bar over `words`; without a GPU end with exit status 3."""
    from rich.progress import track

    from refmoe.cuda.device import DeviceUnavailable

    console = make_console(stderr=True)
    try:
        document = module.run(**options, progress=lambda items: track(items, words, console=console, transient=True))
    except DeviceUnavailable as error:
        typer.echo(f"SKIPPED {error}", err=as_json)
        raise typer.Exit(3) from None

    def show() -> None:
        typer.echo(module.summary(document), nl=False)

    finish(document, show, good=good(document), report=report, as_json=as_json)


def check_output(option: str, path: Path, as_json: bool) -> None:
    """See that an option's output can go to `path`, or for "-" to standard output.

    Raises:
        ArgumentError: it cannot.
    """
    if path.is_dir():
        raise ArgumentError(option, f"the folder {path}", "a file")
    if as_json and str(path) == "-":
        raise ArgumentError(option, "- with --json, which prints one document", "a file")


def write_output(what: str, path: Path, text: str) -> None:
    """Write a text to `path` and say so, or for "-" print it."""
    from refmoe.files import write_atomic

    if str(path) == "-":
        typer.echo(text, nl=False)
    else:
        write_atomic(path, text)
        typer.echo(f"{what}: {path}", err=True)


def check_picture(option: str, path: Path | None) -> None:
    """See that a picture can be drawn into a file of that name.

    Raises:
        ModuleNotFoundError: there is no matplotlib; to find that out after an hour of work would lose the work.
    """
    if path is not None and path.suffix.lower() not in (".png", ".svg"):
        usage(f"{option}: found {path}; needed a name that ends in .png or .svg")
    if path is not None and importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")


def write_files(texts: Mapping[Path, Callable[[], str]]) -> tuple[list[Path], list[str]]:
    """Write every file that can be written: those, and for each other one a sentence that says why not."""
    from refmoe.files import write_atomic

    written: list[Path] = []
    failed: list[str] = []
    for path, text in texts.items():
        try:
            written.append(write_atomic(path, text()))
        except OSError as error:
            failed.append(f"cannot write {path}: {error.strerror}")
    return written, failed


@contextlib.contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """A file that an option names and that cannot be written is a usage error."""
    try:
        yield
    except OSError as error:
        usage(f"{option}: cannot write {path}: {error.strerror}")


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


def listed(text: str | None) -> list[str] | None:
    """The words of an option that takes several, separated by commas; None if it is left out."""
    return None if text is None else [word.strip() for word in text.split(",")]


ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run the work on the workers of the dask scheduler at this address instead of on this machine.",
    ),
]
SchedulesOption = Annotated[
    str,
    typer.Option(
        metavar="N",
        help="Run every launch on the executor under N legal schedules (orders of blocks, warps, copies and atomics), "
        "and fail if two of them leave different bytes. N is a number of schedules, a list of their numbers such as "
        "0,7, or schedule=7 for that one alone.",
    ),
]


def check_schedules(text: str) -> str:
    """The option as it was given.

    Raises:
        ArgumentError: it names no schedule.
    """
    from refmoe.ptx import ArgumentMismatch
    from refmoe.ptx.schedules import schedules_of

    try:
        schedules_of(text)
    except ArgumentMismatch as error:
        raise ArgumentError(
            "--schedules", repr(text), "a number of schedules as 16, or their numbers as 0,7"
        ) from error
    return text
