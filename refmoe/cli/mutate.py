"""The command that changes refmoe's own kernels everywhere, a little at a time, and shows what the cases do not see."""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refmoe.cli.common import (
    INTERRUPTED,
    ClusterOption,
    JsonOption,
    ReportOption,
    app,
    file_option,
    finish,
    make_console,
    tracked,
    usage_errors,
)

if TYPE_CHECKING:
    from refmoe.mutation.site import Site

_PARTIAL = Path("out/mutation.jsonl")


@app.command(
    epilog="Examples:\n\n"
    "refmoe mutate --sample 200\n\n"
    "refmoe mutate --floor cuda --kernel quantize --sample 50\n\n"
    "refmoe mutate --list --kernel routing --operator guard\n\n"
    "refmoe mutate --sample 2000 --jobs 2 --report reports/mutation.json\n\n"
    "refmoe mutate --sample 2000 --cluster tcp://10.0.0.1:8786"
)
def mutate(
    sample: Annotated[
        int | None,
        typer.Option(
            min=0, help="How many mutants to draw, evenly over kernels and operators; 0 for all. [default: 200]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 7,
    floor: Annotated[
        list[str] | None, typer.Option(help="Only mutants of one kind of text: cuda, ptx or host. Repeatable.")
    ] = None,
    operator: Annotated[list[str] | None, typer.Option(help="Only those of this operator. Repeatable.")] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(help="Only those of this source, header or module. Repeatable.")
    ] = None,
    mutant: Annotated[
        list[str] | None, typer.Option(help="Only the mutant of this id, as --list prints it. Repeatable.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print ids and try nothing.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Try the survivors of an earlier run again, for example after adding cases.")
    ] = False,
    cases: Annotated[
        int | None,
        typer.Option(min=1, help="Run at most this many cases on each mutant, for a quick look; then use --again."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes that try mutants.")] = 1,
    cluster: ClusterOption = None,
    partial: Annotated[
        Path, file_option("File that keeps the outcomes, one a line. A mutant that is in it is not tried again.")
    ] = _PARTIAL,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the kernels in small ways and run the default cases on each change until one fails.

    A survivor has different machine code and passes every case. Either a case is missing, or the two programs are
    equivalent; equivalence needs a written proof. Exit status 1 if the cases catch less than 98 % of the mutants that
    are not proven equivalent.

    The outcomes so far are kept: after Ctrl-C, the same command goes on from there.
    """
    from refmoe.mutation.document import mutation_document, open_ledger, outcomes_of, read_reasons
    from refmoe.mutation.forked import try_forked
    from refmoe.mutation.reach import measure
    from refmoe.mutation.sites import all_sites, sampled
    from refmoe.reports.mutation import DRAWN, failures
    from refmoe.verify.sweep import sweep
    from refmoe.verify.workers import choose_workers

    with usage_errors():
        workers = choose_workers(jobs, cluster)

    console = make_console(stderr=True)
    start = time.perf_counter()
    # The mutants of sources are found without a run; which entries cases launch has to be seen.
    run = not listed or not floor or "ptx" in floor
    reached = measure(workers, lambda ended, count: tracked(ended, "cases on the sound kernels", count)) if run else []
    everywhere = all_sites(reached, floors=floor or (), operators=operator or (), kernels=kernel or ())
    sites = _named(everywhere, mutant) if mutant else everywhere
    if sample is None and not listed and not mutant:
        sample = DRAWN
    if sample:
        sites = sampled(sites, sample, seed)
    if listed:
        for site in sites:
            typer.echo(site.id)
        raise typer.Exit
    ledger = open_ledger(partial)
    if again:
        outcomes = outcomes_of(everywhere, ledger)
        ledger.done = {tried.id: tried.document() for tried in outcomes if tried.outcome != "survived"}
    pending = {site.id: site for site in sites if site.id not in ledger.done}
    interrupted = False
    try:
        tries = sweep(pending, functools.partial(try_forked, most=cases), ledger, workers)
        for name, tried in tracked(tries, "mutants", len(pending)):
            if tried["outcome"] == "survived":
                console.print(f"survived {name} ({tried['cases']} cases passed)", markup=False)
    except KeyboardInterrupt:
        interrupted = True
    found = outcomes_of(sites, ledger)
    document = mutation_document(
        found,
        of=len(everywhere),
        seed=seed,
        command=" ".join(["refmoe", *asked(sys.argv[1:])]),
        seconds=time.perf_counter() - start,
        reasons=read_reasons(),
    )
    if interrupted:
        console.print(f"interrupted: {len(found)} of {len(sites)} mutants are in {partial}; the same command goes on")
        raise typer.Exit(INTERRUPTED)

    def show() -> None:
        _print(document)
        for sentence in failures(document):
            typer.echo(sentence)

    finish(document, show, good=document["passed"], report=report, as_json=as_json)


def asked(words: Sequence[str]) -> list[str]:
    """The words of a command without those that say where it ran and where its files lie."""
    kept: list[str] = []
    value = False
    for word in words:
        option, equals, _ = word.partition("=")
        if option in ("--jobs", "--cluster", "--partial", "--report"):
            value = not equals
        elif value:
            value = False
        else:
            kept.append(word)
    return kept


def _named(sites: list[Site], names: list[str]) -> list[Site]:
    """The sites of ids.

    Raises:
        ArgumentError: an id that no mutant has.
    """
    from refmoe.errors import ArgumentError

    by_id = {site.id: site for site in sites}
    for name in names:
        if name not in by_id:
            raise ArgumentError("mutant", repr(name), "an id that `refmoe mutate --list` prints")
    return [by_id[name] for name in names]


def _print(document: dict[str, Any]) -> None:
    from refmoe.tables import plain_table

    console = make_console()
    for key in ("operator", "kernel"):
        table = plain_table("floor", key, "mutants", "do not build", "equivalent", "caught", "survived", "share")
        for row in document[f"{key}s"]:
            share = "" if row["share"] is None else f"{100 * row['share']:.1f} %"
            same = sum(
                row[key] for key in ("same_code", "proven_by_machine", "tried_on_every_value", "argued_equivalent")
            )
            caught = row["caught"] + row["timed_out"]
            numbers = (row["mutants"], row["does_not_build"], same, caught, row["survived"])
            table.add_row(row["floor"], row[key], *map(str, numbers), share)
        console.print(table)
    for each in document["survivors"]:
        console.print(f"survived {each['id']}\n         {each['verdict']}: {each['reason']}", markup=False)
    for each in document["every_value"]:
        for run in each["runs"]:
            parts = (
                f"{part['made_by']} {part['width']}:{' or '.join((part['mask'], *part['beside']))}"
                for part in run["domain"]
            )
            where = f" where {'; '.join(run['where'])}" if run["where"] else ""
            console.print(
                f"tried on {run['inputs']:,} values {each['id']}\n         {', '.join(parts)}{where}", markup=False
            )
    checks = Counter(each["check"] for each in document["mutants"] if each["outcome"] == "caught")
    total = document["summary"]
    said = ", ".join(f"{count} by {check}" for check, count in checks.most_common())
    console.print(
        f"{total['caught'] + total['timed_out']} of {total['mutants']} mutants caught ({said}; "
        f"{total['timed_out']} took too long), {total['does_not_build']} do not build, "
        f"{total['same_code']} have the same code, {total['proven_by_machine']} are proven equivalent by machine, "
        f"{total['tried_on_every_value']} were tried on every value, "
        f"{total['argued_equivalent']} by an argument in words, "
        f"{total['survived']} survived"
    )
