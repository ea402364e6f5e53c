"""The options `--watch` and `--profile`: who wrote some bytes, and what a launch did, counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refmoe.cli.common import check_output, write_output
from refmoe.errors import ArgumentError

if TYPE_CHECKING:
    from refmoe.cli.kernel_arguments import Argument
    from refmoe.ptx import Buffer, Profile, Watch
    from refmoe.ptx.text.syntax import Function

# Writes that are printed; JSON has all.
_SHOWN = 50
# Bytes that are watched: each write is kept with what they hold after it.
_MOST = 4096

WatchOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:BYTE[:SIZE]]",
        help="Print each write to SIZE bytes of an array, starting at BYTE, and the thread that made it. SIZE defaults "
        "to one element, BYTE to 0. NAME is a parameter of the kernel, its number counted from 0, or the file of an "
        "argument.",
    ),
]
ProfileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write a profile to FILE: instructions by line and opcode, lanes at work, bank conflicts, memory sectors "
        "and live registers. FILE is .json for JSON, otherwise text; '-' is standard output.",
    ),
]


def open_watch(text: str | None, function: Function, arguments: Sequence[Argument]) -> tuple[Watch | None, list[Any]]:
    """The watchpoint to give to a launch, None if there is no `text`, and the launch's arguments.

    Raises:
        ArgumentError: there is no such array, or it has no such bytes.
    """
    from refmoe.ptx import Watch

    values = [argument.value for argument in arguments]
    if text is None:
        return None, values
    name, *numbers = text.rsplit(":", min(2, text.count(":")))
    while numbers and not numbers[0].isdecimal():
        # The colon belongs to the name.
        name = f"{name}:{numbers.pop(0)}"
    buffer = array_named("--watch", name, function, values, text, "NAME[:BYTE[:SIZE]]")
    first, size = int(numbers[0]) if numbers else 0, int(numbers[1]) if len(numbers) == 2 else buffer.array.itemsize
    if not 0 < size <= buffer.array.nbytes - first:
        raise ArgumentError("--watch", repr(text), f"bytes of {name}, which has {buffer.array.nbytes}")
    if size > _MOST:
        raise ArgumentError("--watch", repr(text), f"at most {_MOST} bytes")
    # Two arguments may have one file's name; the one that is watched gets the name that it was asked for by.
    renamed = replace(buffer, name=name)
    return Watch(name, first, size), [renamed if value is buffer else value for value in values]


def array_named(
    option: str, name: str, function: Function, values: Sequence[Any], text: str | None = None, form: str = "NAME"
) -> Buffer:
    """The array among a launch's arguments that a parameter's name, its number or a file's name means.

    Raises:
        ArgumentError: there is no such array; `text` is what was asked for in the form `form`, if more than its name.
    """
    from refmoe.ptx import Buffer

    called = {str(position): position for position in range(len(values))}
    called |= {buffer.name: position for position, buffer in enumerate(values) if isinstance(buffer, Buffer)}
    called |= {parameter.name: position for position, parameter in enumerate(function.parameters[: len(values)])}
    position = called.get(name)
    buffer = None if position is None else values[position]
    if isinstance(buffer, Buffer):
        return buffer
    arrays = [
        parameter.name
        for parameter, value in zip(function.parameters, values, strict=False)
        if isinstance(value, Buffer)
    ]
    found = repr(name if text is None else text)
    raise ArgumentError(option, found, f"{form} of an array: {', '.join(arrays) or 'none'}")


def watched(document: Mapping[str, Any]) -> str:
    """Who wrote the bytes, for people."""
    last, writes = document["first"] + document["size"] - 1, document["writes"]
    lines = [f"bytes {document['first']}..{last} of {document['array']}: {_times(len(writes))}"]
    for write in writes[:_SHOWN]:
        source = f" ({write['source']})" if write["source"] else ""
        where = f"step {write['step']}, block {tuple(write['block'])} thread {tuple(write['thread'])}"
        bytes_ = f"bytes {write['offset']}..{write['offset'] + write['size'] - 1}"
        # What many bytes hold would hide the rest.
        value = f", then {write['value']}" if document["size"] <= 16 else ""
        lines.append(f"  {where} writes {bytes_}{value}; line {write['line']}{source}: {write['text']}")
    if len(writes) > _SHOWN:
        lines.append(f"  and {len(writes) - _SHOWN:,} more; --json has all")
    return "\n".join(lines) + "\n"


def _times(count: int) -> str:
    return {0: "never written", 1: "written once"}.get(count, f"written {count:,} times")


def open_profile(path: Path | None, as_json: bool) -> Profile | None:
    """The counts to give to a launch; None if there is no `path`.

    Raises:
        ArgumentError: a file that cannot take them.
    """
    from refmoe.ptx import Profile

    if path is None:
        return None
    check_output("--profile", path, as_json)
    return Profile()


def write_profile(profile: Profile | None, path: Path | None) -> None:
    """Write the counts to `path`."""
    if profile is not None and path is not None:
        write_output("profile", path, profile.json() if path.suffix == ".json" else profile.text())
