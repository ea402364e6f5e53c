"""The command line. Commands import what they need when they run, so that `refmoe --help` is quick.

Exit status of every command: 0 all good; 1 a mismatch, mistrusted data, an error or a failed gate; 2 usage; 3 no case
ran. UNSUPPORTED and SKIPPED cases alone do not fail.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from refmoe.errors import ArgumentError, RefmoeError

__all__ = ["app", "main"]

app = typer.Typer(
    name="refmoe",
    help="Does a mixture-of-experts kernel compute exactly what it should, and if not, where first does it differ?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def main() -> None:
    """Entry point of the `refmoe` command."""
    try:
        app()
    except ArgumentError as error:
        _fail(error, 2)
    except RefmoeError as error:
        _fail(error, 1)


def _fail(error: Exception, status: int) -> None:
    print(f"refmoe: {error}", file=sys.stderr)
    raise SystemExit(status)


def _version(wanted: bool) -> None:
    if wanted:
        import refmoe

        typer.echo(refmoe.__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Examples:\n\n"
    "refmoe parity\n\n"
    "refmoe parity --level quick --arch sm_121a\n\n"
    "refmoe parity --activations hidden.safetensors:layer2.ffn_in\n\n"
    "refmoe parity --device cuda --level full --report reports/h200.json\n\n"
    "refmoe parity --mutants --markdown out/parity.md"
)
def parity(
    level: Annotated[str, typer.Option(help="How many cases: quick, default or full.")] = "default",
    device: Annotated[str, typer.Option(help="Where kernels run: ptx (no GPU needed) or cuda.")] = "ptx",
    arch: Annotated[
        str | None, typer.Option(help="One arch for all cases. Without it, ptx runs all three, sm_120a the most.")
    ] = None,
    suite: Annotated[list[str] | None, typer.Option(help="Only this kernel family; may be given again.")] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="This repro string instead of a list; may be given again.")
    ] = None,
    activations: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE[:TENSOR]", help="Cases on this BF16 or F16 tensor of a safetensors file instead."),
    ] = None,
    mutants: Annotated[
        bool,
        typer.Option(
            "--mutants", help="Also break the kernels on purpose, on ptx, and show which case catches each fault."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes to run cases in.")] = 1,
    report: Annotated[
        Path | None,
        typer.Option(help="Where the JSON report goes; whole levels go to out/parity-DEVICE.json by default."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML here.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write Markdown here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove the kernels equal to their references, byte for byte."""
    from refmoe.verify.cases import parse_case
    from refmoe.verify.session import Outputs, run_session
    from refmoe.verify.suites import activation_cases, list_cases

    with _usage_errors():
        chosen = [parse_case(text) for text in case or []]
        for text in activations or []:
            chosen += activation_cases(text, device, arch, suite or [])
        listed = not chosen
        if listed:
            chosen = list_cases(level, suite or [], device, arch)
    if report is None and listed:
        report = Path("out") / f"parity-{device}.json"
    source = ["--level", level, *(f"--suite={name}" for name in suite or [])] if listed else ["--case", "..."]
    source += ["--mutants"] if mutants else []
    command = " ".join(["refmoe parity --device", device, *([f"--arch={arch}"] if arch else []), *source])
    outputs = Outputs(report, junit, markdown, as_json)
    with _usage_errors():
        status = run_session(chosen, command, outputs, jobs=jobs, mutants=mutants)
    raise typer.Exit(status)


@app.command(epilog="Example:\n\nrefmoe repro 'expand:bf16:m4k2880e8t2:rne-ties:seed7@ptx'")
def repro(
    case: Annotated[str, typer.Argument(help="A repro string, as printed under every mismatch.")],
    as_json: JsonOption = False,
) -> None:
    """Run the one case of a repro string."""
    from refmoe.verify.cases import parse_case
    from refmoe.verify.session import Outputs, run_session

    with _usage_errors():
        chosen = parse_case(case)
        status = run_session([chosen], f"refmoe repro '{chosen}'", Outputs(as_json=as_json), verbose=True)
    raise typer.Exit(status)


@app.command(
    epilog="Examples:\n\n"
    "refmoe gate reports/\n\n"
    "refmoe gate out/parity-ptx.json\n\n"
    "refmoe gate reports/ --write-baseline\n\n"
    "refmoe gate --schema > docs/report.schema.json"
)
def gate(
    paths: Annotated[list[Path] | None, typer.Argument(help="Reports, and folders of reports.")] = None,
    baseline: Annotated[
        Path, typer.Option(help="The cases that must still pass; ignored if the default one is absent.")
    ] = Path("reports/baseline.json"),
    write_baseline: Annotated[
        bool, typer.Option("--write-baseline", help="Make the passed cases of these reports the baseline.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a report.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fail on a bad verdict, a vanished case, a stale or edited report."""
    from refmoe.verify import gate as gates
    from refmoe.verify.report import read_report, schema_text
    from refmoe.verify.runner import source_sha256

    if schema:
        typer.echo(schema_text(), nl=False)
        return
    given = paths or [Path("reports")]
    for path in given:
        if not path.exists():
            _usage(f"PATH: found no file or folder {path}; needed a report or a folder of reports")
    present = baseline if baseline.exists() and not write_baseline else None
    if present is None and baseline != Path("reports/baseline.json") and not write_baseline:
        _usage(f"--baseline: found no file {baseline}; needed one made by `refmoe gate --write-baseline`")
    outcome = gates.check_reports(given, present, source_sha256)
    count = None
    if write_baseline and not outcome.refusals:
        count = gates.write_baseline(baseline, [read_report(path) for path in outcome.reports])
    if as_json:
        document = {"reports": [str(path) for path in outcome.reports], "passed": outcome.passed}
        typer.echo(json.dumps({**document, "refusals": list(outcome.refusals)}, indent=1))
    else:
        for refusal in outcome.refusals:
            typer.echo(f"GATE {refusal}")
        if not outcome.refusals:
            against = f", against {present}" if present else ""
            reports = f"{len(outcome.reports)} report{'' if len(outcome.reports) == 1 else 's'}"
            typer.echo(f"gate passed: {reports}, {outcome.passed} passed cases{against}")
        if count is not None:
            typer.echo(f"{baseline}: {count} cases")
    raise typer.Exit(1 if outcome.refusals else 0)


@app.command(epilog="Example:\n\nrefmoe doctor")
def doctor(as_json: JsonOption = False) -> None:
    """Say what was found on this machine and what is missing."""
    from refmoe.verify.doctor import examine
    from refmoe.verify.session import make_console

    findings = examine()
    usable = all(finding.good for finding in findings if finding.needed)
    if as_json:
        document = {"ptx": usable, "findings": [vars(finding) for finding in findings]}
        typer.echo(json.dumps(document, indent=1))
    else:
        console = make_console()
        for finding in findings:
            mark = (
                "[green]ok[/]     "
                if finding.good
                else "[bold red]missing[/]"
                if finding.needed
                else "[yellow]absent[/] "
            )
            console.print(f"{mark} [bold]{finding.name}[/]  ", end="")
            console.print(finding.text, markup=False)
        console.print("\n`refmoe parity` can run." if usable else "\n`refmoe parity` cannot run.", markup=False)
    raise typer.Exit(0 if usable else 1)


@app.command(
    epilog="Examples:\n\n"
    "refmoe layout 128x4 --rows 130 --blocks 13\n\n"
    "refmoe layout 8x4 --rows 20 --blocks 8 --picture out/8x4.png\n\n"
    "refmoe layout 128x4 --rows 9 --blocks 4 --offsets 0,5,5,9"
)
def layout(
    name: Annotated[str, typer.Argument(help="128x4, 8x4 or linear.")],
    rows: Annotated[int, typer.Option(help="Rows of the matrix.")] = 128,
    blocks: Annotated[int, typer.Option(help="Blocks of 32 along K, one scale each.")] = 8,
    offsets: Annotated[
        str | None,
        typer.Option(help="First row of each expert and then the number of rows, for grouped rows: 0,5,5,9."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw it, to a .png or .svg file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show where each byte of a scale layout lies."""
    from refmoe.verify.layout_plan import plan_layout
    from refmoe.verify.layout_view import render_picture, render_text

    with _usage_errors():
        starts = _integers(offsets) if offsets is not None else None
        plan = plan_layout(name, rows, blocks, starts)
        text = render_text(name, rows, blocks, offsets=starts)
        if picture is not None:
            render_picture(name, rows, blocks, picture, offsets=starts)
    if not as_json:
        typer.echo(text, nl=False)
        if picture is not None:
            typer.echo(f"\npicture: {picture}")
        return
    columns = range(blocks)
    places = [plan.scale_row_of(row) for row in range(rows)]
    table = [[int(plan.layout.offset(place, column, blocks)) for column in columns] for place in places]
    document = {"layout": name, "rows": rows, "blocks": blocks, "bytes": plan.size, "offset": table}
    typer.echo(json.dumps({**document, "picture": str(picture) if picture else None}))


@app.command(
    epilog="Examples:\n\n"
    "refmoe tiles --m 1 --arch sm_121a\n\n"
    "refmoe tiles --m 300 --rule static\n\n"
    "refmoe tiles --tile 128x128x128 --stages 3\n\n"
    "refmoe tiles --tile 256x8x512 --cluster 2x1x1"
)
def tiles(
    m: Annotated[int, typer.Option("--m", help="Tokens of the expert that has the most of them.")] = 1,
    arch: Annotated[str, typer.Option(help="The target: sm_90a, sm_120a or sm_121a.")] = "sm_120a",
    rule: Annotated[str, typer.Option(help="How to choose: dynamic or static.")] = "dynamic",
    min_latency: Annotated[
        bool, typer.Option("--min-latency", help="Let the static rule take narrow tiles for few tokens.")
    ] = False,
    tile: Annotated[
        str | None, typer.Option(metavar="MxNxK", help="Ask for this tile instead: can it be had, and if not, why.")
    ] = None,
    stages: Annotated[int | None, typer.Option(help="Stages of that tile; without it, the most that fit.")] = None,
    cluster: Annotated[str, typer.Option(help="Cluster of that tile, in blocks.")] = "1x1x1",
    as_json: JsonOption = False,
) -> None:
    """Show which tile of the grouped GEMM runs for M tokens, and why no other; exit status 1 if one is refused."""
    if tile is not None:
        _one_tile(tile, arch, stages, cluster, as_json)
        return
    from refmoe.cuda.tiles import choose_tile
    from refmoe.verify import tile_view
    from refmoe.verify.session import make_console

    with _usage_errors():
        if stages is not None or cluster != "1x1x1":
            raise ArgumentError("tile", "none with --stages or --cluster", "the --tile that they are of")
        choice = choose_tile(m, arch=arch, rule=rule, min_latency=min_latency)
    if as_json:
        typer.echo(json.dumps(tile_view.choice_document(choice), indent=1))
        return
    console = make_console()
    console.print(tile_view.choice_summary(choice), markup=False)
    console.print()
    console.print(tile_view.choice_table(choice))
    console.print("\nThe same tiles in CUTLASS's grouped kernel, which unpacks FP4 in shared memory\n", markup=False)
    console.print(tile_view.cutlass_table(choice))


def _one_tile(name: str, arch: str, stages: int | None, cluster: str, as_json: bool) -> None:
    """Say how one tile can be had, or in one sentence why it cannot."""
    from refmoe.cuda.tile import TileRefused, check_tile, parse_cluster, parse_tile, stage_bytes

    with _usage_errors():
        asked, blocks = parse_tile(name), parse_cluster(cluster)
        try:
            depth = check_tile(asked, arch=arch, stages=stages, cluster=blocks)
        except TileRefused as refusal:
            if as_json:
                parts = {"argument": refusal.argument, "found": refusal.found, "needed": refusal.needed}
                typer.echo(json.dumps({"tile": str(asked), "arch": arch, "refused": parts}, indent=1))
            else:
                typer.echo(f"refused: {refusal}")
            raise typer.Exit(1) from None
    size = stage_bytes(asked)
    if as_json:
        document = {"tile": str(asked), "arch": arch, "stages": depth, "stage_bytes": size, "refused": None}
        typer.echo(json.dumps(document, indent=1))
    else:
        typer.echo(f"{asked} on {arch}: {depth} stages of {size:,} bytes, {depth * size:,} in all")


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError("offsets", repr(text), "integers with commas between them, such as 0,5,5,9") from None


@app.command(epilog="Example:\n\nrefmoe conformance --device cuda --report reports/bench/conformance.json")
def conformance(
    device: Annotated[str, typer.Option(help="What the executor is held against: cuda, the GPU.")] = "cuda",
    report: Annotated[Path | None, typer.Option(help="Also write the JSON document here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Hold what the executor computes against a GPU, one instruction at a time; exit status 1 if one differs."""
    from rich.progress import track

    from refmoe.cuda.device import DeviceUnavailable
    from refmoe.files import write_atomic
    from refmoe.verify import conformance as conforming
    from refmoe.verify.session import make_console

    if device != "cuda":
        _usage(f"--device: found {device!r}; needed cuda: the executor is what is held against it")
    stderr = make_console(stderr=True)
    try:
        document = conforming.run(lambda probes: track(probes, "instructions", console=stderr, transient=True))
    except DeviceUnavailable as error:
        typer.echo(f"SKIPPED {error}", err=as_json)
        raise typer.Exit(3) from None
    text = json.dumps(document, indent=1) + "\n"
    if report is not None:
        write_atomic(report, text)
    if as_json:
        typer.echo(text, nl=False)
    else:
        typer.echo(conforming.summary(document), nl=False)
    raise typer.Exit(1 if document["differing_opcodes"] else 0)


@app.command(epilog="Example:\n\nrefmoe stress --device cuda --report reports/stress.json")
def stress(
    device: Annotated[str, typer.Option(help="Where the kernels run: cuda, the GPU.")] = "cuda",
    report: Annotated[Path | None, typer.Option(help="Also write the JSON document here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run every kernel a hundred times and under compute-sanitizer; exit status 1 if outputs differ or it complains."""
    from rich.progress import track

    from refmoe.cuda.device import DeviceUnavailable
    from refmoe.files import write_atomic
    from refmoe.verify import stress as stressing
    from refmoe.verify.session import make_console

    if device != "cuda":
        _usage(f"--device: found {device!r}; needed cuda: on the executor every run is the same")
    stderr = make_console(stderr=True)
    try:
        document = stressing.run(progress=lambda items: track(items, "kernels, tools", console=stderr, transient=True))
    except DeviceUnavailable as error:
        typer.echo(f"SKIPPED {error}", err=as_json)
        raise typer.Exit(3) from None
    text = json.dumps(document, indent=1) + "\n"
    if report is not None:
        write_atomic(report, text)
    if as_json:
        typer.echo(text, nl=False)
    else:
        typer.echo(stressing.summary(document), nl=False)
    raise typer.Exit(0 if document["passed"] else 1)


#: Benchmarks by name; each is a module of refmoe.bench with `run() -> dict`.
BENCHES = ("quantize", "models", "executor", "gpu")


@app.command(epilog="Examples:\n\nrefmoe bench quantize\n\nrefmoe bench executor --report reports/bench/executor.json")
def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHES)}.")],
    report: Annotated[Path | None, typer.Option(help="Also write the JSON document here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Time things side by side in one run; medians."""
    import importlib

    from refmoe.files import write_atomic

    if name not in BENCHES:
        _usage(f"NAME: found {name!r}; needed one of {', '.join(BENCHES)}")
    measured: dict[str, Any] = importlib.import_module(f"refmoe.bench.{name}").run()
    document = {"kind": "bench", "name": name, **measured}
    text = json.dumps(document, indent=1) + "\n"
    if report is not None:
        write_atomic(report, text)
    if as_json:
        typer.echo(text, nl=False)
    else:
        _print_bench(document)


def _print_bench(document: dict[str, Any]) -> None:
    """A table of what was timed, then everything else that the document says, a line each."""
    from rich.table import Table

    from refmoe.verify.session import make_console

    rows = _bench_rows(document)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = all(isinstance(row.get(column, 0), (int, float)) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    console = make_console()
    console.print(table)
    for key, value in document.items():
        if key not in ("kind", "name", "rows", "comparisons"):
            console.print(f"{key.replace('_', ' ')}: {_cell(value)}", markup=False)


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


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """What a user typed wrong is a usage error: one sentence, exit status 2."""
    try:
        yield
    except ArgumentError as error:
        _usage(str(error))


def _usage(message: str) -> None:
    typer.echo(f"refmoe: {message}", err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    main()
