"""The options `--trace` and `--trace-block`: a record of barrier waits and asynchronous copies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refmoe.cli.common import check_output, write_output
from refmoe.errors import ArgumentError

if TYPE_CHECKING:
    from refmoe.ptx import Trace

TraceOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Record barrier waits and copies to FILE. FILE is .json for JSON, otherwise text; '-' is standard output.",
    ),
]
TraceBlockOption = Annotated[
    str, typer.Option(metavar="X,Y,Z", help="Block that --trace records, or 'all', of which text shows the first.")
]


def open_trace(path: Path | None, block: str, as_json: bool) -> Trace | None:
    """The recorder to give to a launch; None if there is no `path`.

    Raises:
        ArgumentError: a block that is neither three integers nor all, or a file that cannot take the trace.
    """
    from refmoe.ptx import Trace

    if path is None:
        return None
    check_output("--trace", path, as_json)
    if block == "all":
        return Trace()
    parts = block.split(",")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ArgumentError("--trace-block", repr(block), "a block such as 0,0,0, or all")
    x, y, z = map(int, parts)
    return Trace(block=(x, y, z))


def write_trace(trace: Trace | None, path: Path | None) -> None:
    """Write a trace to `path`, or say that nothing was recorded."""
    if trace is None or path is None:
        return
    if not trace.events:
        typer.echo("trace: no event: the launch did not come to that block, or uses no barrier and no copy", err=True)
        return
    write_output("trace", path, trace.json() if path.suffix == ".json" else _texts(trace))


def _texts(trace: Trace) -> str:
    """The text of each launch, under the name of its entry."""
    told = [number for number in range(len(trace.entries)) if trace.blocks(number)]
    return "\n".join(f"{_short(trace.entries[number])}\n{trace.text(launch=number)}" for number in told)


def _short(entry: str) -> str:
    """An entry's name; of what C++ has mangled, the beginning."""
    most = 80
    return entry if len(entry) <= most else f"{entry[:most]}..."
