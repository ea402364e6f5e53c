"""The option `--variable` of `refmoe run`: what `__constant__` and `__device__` variables hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from refmoe.errors import ArgumentError

if TYPE_CHECKING:
    from refmoe.cli.kernel_arguments import Argument
    from refmoe.ptx import DeviceMemory, Module

_KINDS = ("in", "inout", "out", "bytes")

VariableOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=ARGUMENT",
        help="Set a __constant__ or __device__ variable for the launch (in:, inout:, bytes: or TYPE:VALUE), or write "
        "it to a file afterwards (out:, inout:). ARGUMENT is written as in --args, for example count=out:n.npy:i32:1. "
        "NAME is the variable's name or an unambiguous part of it. Repeatable.",
    ),
]


def read_variables(texts: Sequence[str]) -> dict[str, Argument]:
    """What `--variable` says, by the name as it was written; files are read.

    Raises:
        ArgumentError: no NAME=ARGUMENT, or no argument that a variable can have.
    """
    from refmoe.cli.kernel_arguments import TYPES, read_arguments

    found: dict[str, Argument] = {}
    for text in texts:
        name, _, word = text.partition("=")
        if not name or word.partition(":")[0] not in (*_KINDS, *TYPES):
            needed = f"NAME=ARGUMENT with an argument of {', '.join(f'{kind}:' for kind in _KINDS)} or TYPE:VALUE"
            raise ArgumentError("--variable", repr(text), needed)
        if name in found:
            raise ArgumentError("--variable", f"two of {name}", "one for each variable")
        try:
            (found[name],) = read_arguments([word])
        except ArgumentError as error:
            raise ArgumentError("--variable", error.found, error.needed) from error
    return found


def set_variables(memory: DeviceMemory, module: Module, arguments: Mapping[str, Argument]) -> dict[str, str]:
    """Write the variables that have a value; the whole names of all.

    Raises:
        ArgumentError: there is no such variable, or it has fewer bytes.
    """
    try:
        names = memory.set_variables(
            module, {name: b"" if _fresh(each) else _content(each) for name, each in arguments.items()}
        )
    except ArgumentError as error:
        found = error.found if error.argument == "variables" else f"{error.argument}: {error.found}"
        raise ArgumentError("--variable", found, error.needed) from error
    for wanted, argument in arguments.items():
        size, name = module.variables[names[wanted]].size, names[wanted]
        if argument.output is not None and argument.value.array.nbytes > size:
            raise ArgumentError("--variable", repr(argument.word), f"at most the {size} bytes that {name} has")
    return names


def read_back(
    memory: DeviceMemory, module: Module, arguments: Mapping[str, Argument], names: Mapping[str, str]
) -> list[Argument]:
    """The arguments that go to files, with what their variables hold now."""
    outputs = []
    for wanted, argument in arguments.items():
        if argument.output is not None:
            array = argument.value.array
            held = memory.read(memory.variable(module, names[wanted]), array.nbytes)
            array = held.view(array.dtype).reshape(array.shape)
            outputs.append(replace(argument, value=replace(argument.value, array=array, initialised=True)))
    return outputs


def _fresh(argument: Argument) -> bool:
    """Whether it only takes what the kernel left."""
    return argument.word.startswith("out:")


def _content(argument: Argument) -> Any:
    value = argument.value
    return value if isinstance(value, bytes) else np.ascontiguousarray(value.array)
