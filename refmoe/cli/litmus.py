"""The command that holds the executor's race checks against the axioms of PTX's memory model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from refmoe.cli.common import (
    INTERRUPTED,
    ClusterOption,
    JsonOption,
    ReportOption,
    app,
    finish,
    make_console,
    run_on_gpu,
    tracked,
    usage,
    usage_errors,
)
from refmoe.files import partial_of

if TYPE_CHECKING:
    from refmoe.litmus.run import Batch, Observed


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
    cluster: ClusterOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Drop partial results and start again.")] = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run small programs of two to four threads on the executor, and hold races and outcomes against PTX's model.

    Prints a table by shape and cause. Exit status 1 if a race is missed, if there is an alarm without one, or if a
    program leaves an outcome that the model does not allow. --device cuda checks only the outcomes: programs without
    a race run on a GPU under stress, so often that rare outcomes show. Without a GPU that ends with exit status 3.

    With --report FILE what programs did lies in FILE.partial until the report is written: after Ctrl-C the same command
    judges them again, and goes on from there.
    """
    if device == "cuda":
        from refmoe.silicon import litmus as silicon

        asked = {"programs": programs, "seed": seed, "runs": runs}
        run_on_gpu(silicon, "programs", lambda document: not document["outside"], report, as_json, **asked)
    if device != "ptx":
        usage(f"--device: found {device!r}; needed ptx, the executor, or cuda, a GPU")

    from refmoe.litmus.generate import judged
    from refmoe.litmus.run import compare, table
    from refmoe.tables import plain_table
    from refmoe.verify.sweep import Ledger, Results, in_order, sweep
    from refmoe.verify.workers import choose_workers, installation

    if report is not None and report.is_dir():
        usage(f"--report: found {report}, a folder; needed a file")
    with usage_errors():
        workers = choose_workers(jobs, cluster)
        # Beside a pipe or a device nothing is kept.
        partial = partial_of(report) if report is not None and (report.is_file() or not report.exists()) else None
        swept = {"of": "litmus programs", "schedules": schedules, **installation()}
        results = Results() if partial is None else Ledger(partial, swept, fresh=fresh)
    if results.done:
        typer.echo(f"batches of programs that are in {partial}: {len(results.done)}", err=True)

    def spread(work: Callable[[Batch], Observed], batches: Mapping[str, Batch]) -> Mapping[str, Observed]:
        pending = {name: batch for name, batch in batches.items() if name not in results.done}
        if alone:
            for name, batch in tracked(pending.items(), "run"):
                results.add(name, work(batch))
        else:
            for _ in tracked(sweep(pending, work, results, workers), "run", len(pending)):
                pass
        return in_order(batches, results)

    # One process needs no pool.
    alone = jobs == 1 and cluster is None
    try:
        result = compare(tracked(judged(programs, seed), "judged", programs), schedules, walks, spread)
    except KeyboardInterrupt:
        if partial is not None:
            kept = f"batches of programs that are in {partial}: {len(results.done)}"
            typer.echo(f"interrupted; {kept}; the same command goes on", err=True)
        raise typer.Exit(INTERRUPTED) from None
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

    finish(document, show, good=result.passed, report=report, partial=partial, as_json=as_json)
