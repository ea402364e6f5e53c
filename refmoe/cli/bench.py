"""The command that runs a benchmark."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from refmoe.cli.common import JsonOption, ReportOption, app, finish, make_console, usage

#: Benchmarks by name; each is a module of refmoe.bench with `run() -> dict`.
BENCHES = ("quantize", "models", "executor", "memory", "layer", "exponential", "gpu", "cutlass")
#: Those whose targets decide the exit status.
HELD = ("models", "executor", "memory", "layer", "cutlass")


@app.command(epilog="Examples:\n\nrefmoe bench quantize\n\nrefmoe bench executor --report reports/bench/executor.json")
def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHES)}.")],
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a benchmark: time implementations of one operation side by side and print the medians.

    The benchmark `memory` times nothing: it prints what launches on the executor keep resident.

    Exit status 1 if the benchmark `models`, `executor`, `memory`, `layer` or `cutlass` misses a target; the others have
    none that decides it.
    """
    import importlib

    if name not in BENCHES:
        usage(f"NAME: found {name!r}; needed one of {', '.join(BENCHES)}")
    measured: dict[str, Any] = importlib.import_module(f"refmoe.bench.{name}").run()
    document = {"kind": "bench", "name": name, **measured}
    good = name not in HELD or document["all_reached"]
    finish(document, lambda: _print_bench(document), good=good, report=report, as_json=as_json)


def _print_bench(document: dict[str, Any]) -> None:
    """A table of what was timed, then everything else that the document says, a line each."""
    from refmoe.reports.bench import cell_text, columns_of
    from refmoe.tables import plain_table

    rows = _bench_rows(document)
    columns = columns_of(rows)
    table = plain_table(*(f"{'>' * numeric}{key.replace('_', ' ')}" for key, numeric in columns.items()))
    for row in rows:
        table.add_row(*(cell_text(row.get(key)) for key in columns))
    console = make_console()
    console.print(table)
    for key, value in document.items():
        if key not in ("kind", "name", "rows", "comparisons"):
            console.print(f"{key.replace('_', ' ')}: {cell_text(value)}", markup=False)


def _bench_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a document, or those of its comparisons: contenders side by side, the first one ours."""
    rows: list[dict[str, Any]] = list(document.get("rows", []))
    for name, comparison in document.get("comparisons", {}).items():
        medians: dict[str, float] = comparison["medians_s"]
        ours = next(iter(medians.values()))
        for contender, seconds in medians.items():
            row = {"comparison": name, "contender": contender, "median_ms": seconds * 1e3, "times_ours": seconds / ours}
            rows.append(row)
        rows[-1] |= {key: comparison[key] for key in ("ratio", "target", "reached") if key in comparison}
    return rows
