"""The command that counts the cases that catch each planted fault."""

from __future__ import annotations

from typing import Annotated

import typer

from refmoe.cli.common import JsonOption, ReportOption, app, finish, tracked


@app.command(epilog="Examples:\n\nrefmoe faults --fault routing\n\nrefmoe faults --most 3 --jobs 2")
def faults(
    fault: Annotated[
        list[str] | None, typer.Option(help="Only faults whose names contain this text. Repeatable.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Stop counting at this many cases for a fault.")] = 2,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes that run cases.")] = 1,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plant the faults of refmoe's own kernels, and count the default cases that catch each.

    A planted fault is a change that breaks a kernel on purpose. If only one case catches it, add a second case, because
    a later change of the first one could let the fault pass. Exit status 1 if fewer than two cases catch a fault.
    """
    from refmoe.errors import ArgumentError
    from refmoe.verify.plant import find_company, load_patches

    patches = [each for each in load_patches() if not fault or any(word in each.name for word in fault)]
    if not patches:
        raise ArgumentError("fault", ", ".join(fault or ()), "a part of the name of a fault in refmoe/families/mutants")
    found = list(tracked(find_company(patches, most=most, jobs=jobs), "faults", len(patches)))
    alone = [each for each in found if each.alone]

    def show() -> None:
        for each in found:
            more = "" if each.whole else " or more"
            typer.echo(f"{each.name}: {len(each.cases)}{more} of {each.ran} cases")
        for each in alone:
            typer.echo(f"alone: {each.name}: {each.cases[0] if each.cases else 'no case catches it'}")
        typer.echo(f"{len(found) - len(alone)} of {len(found)} faults are caught by at least {min(most, 2)} cases")

    document = {
        "most": most,
        "faults": [
            {"name": each.name, "cases": list(each.cases), "ran": each.ran, "whole": each.whole} for each in found
        ],
        "alone": [each.name for each in alone],
    }
    finish(document, show, good=not alone, report=report, as_json=as_json)
