"""The command that runs a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from refmoe.cli.common import JsonOption, ReportOption, app, finish, make_console, usage, usage_errors

#: Benchmarks by name; each is a module of refmoe.bench with `run() -> dict`.
BENCHES = (
    *("quantize", "models", "executor", "first_launch", "races", "memory", "layer", "deepseek", "exponential"),
    *("tiles", "gpu", "counters", "sweep", "deepseek_gemm", "deepseek_routing", "cutlass", "parity", "faults"),
)
#: Those that compare themselves with another checkout, and the modules whose `run` takes its folder.
AGAINST = {"executor": "against", "gpu": "gpu"}
#: Those whose targets decide the exit status.
HELD = (
    *("models", "executor", "first_launch", "races", "memory", "layer", "deepseek", "cutlass", "tiles"),
    *("parity", "faults"),
)


@app.command(
    epilog="Examples:\n\nrefmoe bench quantize\n\nrefmoe bench executor --report reports/bench/executor.json\n\n"
    "refmoe bench compare before.json after.json --slower-than 0.02"
)
def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHES)}; or compare.")],
    reports: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[A B]", help="Only for `compare`: two reports of one benchmark; A is the earlier one."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Only for `executor` and `gpu`: also time another checkout."),
    ] = None,
    slower_than: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Only for `compare`: allow a row to take longer by this share, such as 0.02."
        ),
    ] = None,
    ratios_only: Annotated[
        bool,
        typer.Option(
            "--ratios-only", help="Only for `compare`: print ratios of medians without verdicts, for old reports."
        ),
    ] = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a benchmark: time implementations of one operation side by side and print the medians.

    `refmoe bench executor --against FOLDER` compares this executor with the one of another checkout of refmoe. Both run
    the same recorded launches in turn, each in a process of its own; `ratio` is the other's CPU time divided by ours.
    The targets are for commit 2db4e6e, and `make against` makes that checkout.
    `refmoe bench gpu` needs neither torch nor nvcc if the package has PTX; its report says what is left out without.
    `refmoe bench gpu --against FOLDER` also times the routing kernels of the other checkout.
    `refmoe bench sweep` times each kernel and whole layers at 1 to 4,096 tokens, beside the same in torch. It also
    times DeepGEMM, Triton, torchao and FlashInfer where they are installed. Its report says which were not, and why.
    `refmoe bench counters` launches the same kernels under NVIDIA's profiler `ncu`: what each of them keeps busy.

    The benchmark `memory` times nothing: it prints how much memory launches on the executor keep resident.

    The benchmark `parity` times the default cases of commit 2db4e6e after everything is compiled, and `faults` plants
    the 157 faults of that commit. Later commits have more of both.

    The benchmark `deepseek` executes a whole DeepSeek-V3 layer at its true sizes and compares every buffer.

    The benchmark `tiles` times nothing: it reads the machine code of each tile of the SM12x GEMMs, and of CUTLASS's
    builds that `make cutlass` has made, and predicts times by a model. Its times are labelled as predictions.

    `refmoe bench compare A B` compares two reports of one benchmark and machine. For each row it prints the ratio of
    the medians, B's divided by A's, with a confidence interval, and the verdict: faster, slower or no difference. Exit
    status 1 if the interval of a row lies above 1 by more than `--slower-than`.

    Exit status 1 if a benchmark with a target misses it: `models`, `executor`, `first_launch`, `races`, `memory`,
    `layer`, `cutlass`, `parity`, `faults` and `executor --against`. Also if a byte of `deepseek` differs, or if one of
    refmoe's own kernels in `tiles` spills registers. The other benchmarks have no target.
    """
    import importlib

    from refmoe.reports.documents import digest_of

    found: dict[str, Any]
    if name != "compare" and (reports or slower_than is not None or ratios_only):
        usage(f"found reports or options of `compare` with the benchmark {name}; needed refmoe bench compare A B")
    if against is not None and name not in AGAINST:
        usage(f"--against: found the benchmark {name}; needed {' or '.join(AGAINST)}")
    if name == "compare":
        from refmoe.bench.compare import compare

        if reports is None or len(reports) != 2:
            usage(f"compare: found {len(reports or [])} reports; needed two reports, A from before and B")
        with usage_errors():
            found = compare(*reports, slower_than=slower_than or 0.0, ratios_only=ratios_only)
        good = found["all_reached"]
    elif name not in BENCHES:
        usage(f"NAME: found {name!r}; needed one of {', '.join(BENCHES)}")
    elif against is not None:
        name = AGAINST[name]
        with usage_errors():
            found = importlib.import_module(f"refmoe.bench.{name}").run(against)
        good = found.get("all_reached", True)
    else:
        found = importlib.import_module(f"refmoe.bench.{name}").run()
        good = name not in HELD or found["all_reached"]
    document = {"kind": "bench", "name": name, **found}
    document["digest"] = digest_of(document)
    finish(document, lambda: _print_bench(document), good=good, report=report, as_json=as_json)


def _print_bench(document: dict[str, Any]) -> None:
    """A table of what was timed, then everything else that the document says, a line each."""
    from refmoe.reports.bench import cell_text, columns_of
    from refmoe.tables import plain_table

    if document["name"] == "tiles":
        from refmoe.bench.tiles.view import renderables

        for each in renderables(document):
            make_console().print(each, markup=False)
        return
    rows = _bench_rows(document)
    columns = columns_of([{key: value for key, value in row.items() if key != "repetitions"} for row in rows])
    table = plain_table(*(f"{'>' * numeric}{key.replace('_', ' ')}" for key, numeric in columns.items()))
    for row in rows:
        table.add_row(*(cell_text(row.get(key)) for key in columns))
    console = make_console()
    console.print(table)
    for key, value in document.items():
        if key not in ("kind", "name", "rows", "comparisons", "digest"):
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
        rows[-1] |= {
            key: comparison[key] for key in ("ratio", "target", "reached", "lane_instructions") if key in comparison
        }
    return rows
