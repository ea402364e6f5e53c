"""The commands that tell of CUTLASS: of CuTe DSL, and of the builds of its grouped GEMM."""

from __future__ import annotations

import dataclasses
import time
from typing import Annotated

import typer

from refmoe.cli.common import JsonOption, app, finish, usage

_WHICH = ("one", "all")


@app.command(epilog="Examples:\n\nrefmoe cute\n\nrefmoe cute --json")
def cute(as_json: JsonOption = False) -> None:
    """Ask CuTe DSL which block scales its own matrix products take, and print its answers as a table.

    CuTe DSL is NVIDIA's kernel language in Python. The command constructs each product of an element format with a
    scale format, for each architecture, and records whether the package accepts it. No GPU is needed.
    """
    from refmoe.cute import PYPI_REQUIREMENT, check_package
    from refmoe.cute.scale_formats import ask, table

    check_package()
    answers = ask()

    def show() -> None:
        typer.echo(f"{PYPI_REQUIREMENT}\n")
        typer.echo(table(answers))

    finish({"release": PYPI_REQUIREMENT, "answers": list(map(dataclasses.asdict, answers))}, show, as_json=as_json)


@app.command(epilog="Examples:\n\nrefmoe cutlass\n\nrefmoe cutlass --build one\n\nrefmoe cutlass --build all")
def cutlass(
    build: Annotated[
        str | None,
        typer.Option(
            metavar="one|all",
            help="First compile what is missing: one (the default build: cooperative, swapped, for sm_121a) or all. "
            "A build takes one to three minutes and 6 GB of memory.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the builds of CUTLASS's grouped GEMM on this machine, and compile missing ones from its headers."""
    from refmoe.museum.cutlass import Build, find_built, find_headers
    from refmoe.museum.cutlass import build as build_kernel
    from refmoe.museum.cutlass.builds import CUTLASS_ARCHITECTURES, SCHEDULES

    if build not in (None, *_WHICH):
        usage(f"--build: found {build!r}; needed {' or '.join(_WHICH)}")
    known = [
        Build(schedule, swapped, arch)  # type: ignore[arg-type]
        for arch in reversed(CUTLASS_ARCHITECTURES)
        for swapped in (True, False)
        for schedule in SCHEDULES
    ]
    wanted = [] if build is None else known if build == "all" else [Build()]
    headers = find_headers()
    for entry in wanted:
        start = time.perf_counter()
        if find_built(entry) is None:
            typer.echo(f"{entry}: compiling, or waiting for another compilation to end", err=True)
            build_kernel(entry)
            typer.echo(f"{entry}: built in {time.perf_counter() - start:.0f} s", err=True)
    found = {str(entry): find_built(entry) for entry in known}
    release = ".".join(map(str, headers.version))

    def show() -> None:
        typer.echo(f"CUTLASS {release} of {headers.origin}, {headers.root}")
        for name, built in found.items():
            typer.echo(f"{name}: {'not built' if built is None else built.ptx}")

    builds = {name: None if built is None else str(built.ptx) for name, built in found.items()}
    finish({"release": release, "origin": headers.origin, "ptx": builds}, show, as_json=as_json)
