"""The command that asks whether a token's bytes depend on its batch."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from refmoe.cli.common import JsonOption, ReportOption, app, finish, make_console, usage_errors


@app.command(
    epilog="Examples:\n\n"
    "refmoe invariant\n\n"
    "refmoe invariant --subject layer/llama_cpp\n\n"
    "refmoe invariant --report reports/invariant.json\n\n"
    "refmoe invariant --call 'layer/llama_cpp:mirrored:b7p3:random:seed7'"
)
def invariant(
    subject: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only subjects (paths and kernels) whose names begin with NAME. Repeatable."),
    ] = None,
    level: Annotated[str, typer.Option(help="How many cases: quick or default.")] = "default",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data.")] = 7,
    call: Annotated[
        str | None,
        typer.Option(
            help="Repeat one call of a finding, and print the hash and the first bytes of the token's results."
        ),
    ] = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prove that a token's bytes do not depend on its batch, or show the first pair of calls that differs.

    Each token is computed alone, and then in batches of other sizes, at other positions, among other tokens, with other
    tiles. The subjects are every path of a layer on the reference, and every kernel on the executor. Some subjects are
    known to depend on the batch, each for a listed reason. Exit status 1 if any other subject does, or if one of these
    does not.
    """
    from refmoe.batching.document import certificate_entry, invariant_document
    from refmoe.batching.prove import certify
    from refmoe.batching.subjects import named_subjects
    from refmoe.reports.invariant import failures

    if call is not None:
        with usage_errors():
            _one_call(call, as_json)
    with usage_errors():
        chosen = named_subjects(subject or [])
    console = make_console(stderr=as_json)
    start, made = time.perf_counter(), []
    for each in chosen:
        with usage_errors():
            made.append(certify(each, level, seed))
        console.print(str(made[-1]), markup=False, style="" if made[-1].expected else "bold red")
    words = [*(f"--subject={name}" for name in subject or []), "--level", level, "--seed", str(seed)]
    command = " ".join(["refmoe invariant", *words])
    seconds = time.perf_counter() - start
    document = invariant_document(made, command=command, level=level, seed=seed, seconds=seconds)
    found = failures(document)

    def show() -> None:
        for sentence in found:
            typer.echo(f"FAILED {sentence}")
        held = sum(certificate_entry(each)["verdict"] == "invariant" for each in made)
        over = f"over {document['cases']:,} cases; {seconds:.0f} s"
        typer.echo(f"{held} of {len(made)} do not depend on the batch, {over}")

    finish(document, show, as_json=as_json, good=not found, report=report)


def _one_call(text: str, as_json: bool) -> None:
    from refmoe.batching.prove import result_sha256, token_results
    from refmoe.batching.subject import Call
    from refmoe.batching.subjects import subject_named

    call = Call.read(text)
    results = token_results(subject_named(call.subject), call)
    shown: dict[str, Any] = {
        name: {"dtype": str(array.dtype), "shape": list(array.shape), "first_bytes": array.tobytes()[:16].hex()}
        for name, array in results.items()
    }
    document = {"call": str(call), "sha256": result_sha256(results), "results": shown}

    def show() -> None:
        typer.echo(f"{document['sha256']}  {call}")
        for name, each in shown.items():
            typer.echo(f"{name}: {each['dtype']} {each['shape']}, first bytes {each['first_bytes']}")

    finish(document, show, as_json=as_json)
