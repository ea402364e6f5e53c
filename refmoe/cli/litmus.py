"""The command that holds the executor's race checks against the axioms of PTX's memory model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import typer

from refmoe.cli.common import JsonOption, ReportOption, app, finish, make_console, run_on_gpu, tracked, usage

B = TypeVar("B")
T = TypeVar("T")


@app.command(epilog="Example:\n\nrefmoe litmus --programs 10000 --report out/litmus.json")
def litmus(
    programs: Annotated[int, typer.Option(min=1, help="How many programs.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed that chooses the programs.")] = 0,
    schedules: Annotated[int, typer.Option(min=1, help="Legal schedules under which each program runs.")] = 1,
    walks: Annotated[
        int,
        typer.Option(min=0, help="More runs of each program, at most, until every allowed outcome was seen."),
    ] = 0,
    device: Annotated[
        str, typer.Option(help="ptx, the executor; or cuda, a GPU, on which the programs without a race run.")
    ] = "ptx",
    runs: Annotated[
        int, typer.Option(min=1, help="With --device cuda: the least number of runs of each program.")
    ] = 1_000_000,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes that run programs on the executor.")] = 1,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run small programs of two to four threads on the executor, and hold races and outcomes against PTX's model.

    Prints a table by shape and cause. Exit status 1 if a race is missed, if there is an alarm without one, or if a
    program leaves an outcome that the model does not allow. --device cuda checks only the outcomes: programs without
    a race run on a GPU under stress, so often that rare outcomes show. Without a GPU that ends with exit status 3.
    """
    if device == "cuda":
        from refmoe.silicon import litmus as silicon

        asked = {"programs": programs, "seed": seed, "runs": runs}
        run_on_gpu(silicon, "programs", lambda document: not document["outside"], report, as_json, **asked)
    if device != "ptx":
        usage(f"--device: found {device!r}; needed ptx, the executor, or cuda, a GPU")

    from refmoe.litmus.generate import judged
    from refmoe.litmus.run import BATCH, compare, table
    from refmoe.tables import plain_table
    from refmoe.verify.workers import deaf_to_interrupts, worker_pool

    def spread(work: Callable[[B], T], batches: Iterable[B]) -> Iterable[T]:
        # Before the processes start, while Ctrl-C ends the command.
        held = list(tracked(batches, "judged", -(-programs // BATCH)))
        if jobs == 1 or not held:
            yield from tracked(map(work, held), "run", len(held))
            return
        with worker_pool(jobs) as pool:
            with deaf_to_interrupts():
                results = pool.map(work, held)
            yield from tracked(results, "run", len(held))

    result = compare(judged(programs, seed), schedules, walks, spread)
    document = {"seed": seed, "schedules": schedules, "walks": walks, **result.document()}

    def show() -> None:
        heading, *rows = table(result)
        lines = plain_table(*heading)
        for row in rows:
            lines.add_row(*row)
        make_console().print(lines)
        typer.echo(f"outcomes: {result.verdict_on_outcomes}")
        if result.worst:
            typer.echo("--report FILE has a program of each row, its PTX, and why the model decides as it does.")

    finish(document, show, good=result.passed, report=report, as_json=as_json)
