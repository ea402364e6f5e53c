"""Commands that show what is there: the machine, a layout, the tiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from refmoe.chips import DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.cli.common import JsonOption, app, usage_errors
from refmoe.errors import ArgumentError

__all__ = ["doctor", "layout", "tiles"]


@app.command(epilog="Example:\n\nrefmoe doctor")
def doctor(as_json: JsonOption = False) -> None:
    """Say what was found on this machine and what is missing."""
    from refmoe.cli.session import make_console
    from refmoe.views.doctor import examine

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
    from refmoe.views.layout import layout_text, plan_layout

    with usage_errors():
        starts = _integers(offsets) if offsets is not None else None
        plan = plan_layout(name, rows, blocks, starts)
        text = layout_text(name, rows, blocks, offsets=starts)
        if picture is not None:
            from refmoe.views.layout_picture import draw_layout

            draw_layout(name, rows, blocks, picture, offsets=starts)
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
    "refmoe tiles --tile 256x8x512 --cluster 2x1x1\n\n"
    "refmoe tiles --sass --arch sm_121a"
)
def tiles(
    m: Annotated[int, typer.Option("--m", help="Tokens of the expert that has the most of them.")] = 1,
    arch: Annotated[str, typer.Option(help=f"The target: {', '.join(KERNEL_ARCHS)}.")] = DEFAULT_ARCH,
    rule: Annotated[str, typer.Option(help="How to choose: dynamic or static.")] = "dynamic",
    min_latency: Annotated[
        bool, typer.Option("--min-latency", help="Let the static rule take narrow tiles for few tokens.")
    ] = False,
    tile: Annotated[
        str | None, typer.Option(metavar="MxNxK", help="Ask for this tile instead: can it be had, and if not, why.")
    ] = None,
    stages: Annotated[int | None, typer.Option(help="Stages of that tile; without it, the most that fit.")] = None,
    cluster: Annotated[str, typer.Option(help="Cluster of that tile, in blocks.")] = "1x1x1",
    sass: Annotated[
        bool,
        typer.Option(
            "--sass",
            help="Show what ptxas made of the tile, by default 128x128x128, in our kernel and in CUTLASS's: "
            "tensor-core instructions, registers, spills, stages, shared memory.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show which tile of the grouped GEMM runs for M tokens, and why no other; exit status 1 if one is refused."""
    if sass:
        _sass(tile or "128x128x128", arch, stages, as_json)
        return
    if tile is not None:
        _one_tile(tile, arch, stages, cluster, as_json)
        return
    from refmoe.cli.session import make_console
    from refmoe.cuda.gemm.choice import choose_tile
    from refmoe.views import tiles as tile_view

    with usage_errors():
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
    from refmoe.cuda.gemm.tile import TileRefused, check_tile, parse_cluster, parse_tile, stage_bytes

    with usage_errors():
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


def _sass(tile: str, arch: str, stages: int | None, as_json: bool) -> None:
    """Show the compiled kernels side by side, and say which are not built."""
    from refmoe.cli.session import make_console
    from refmoe.views.sass import compare_sass, sass_document, sass_table

    with usage_errors():
        kernels, absent = compare_sass(tile, arch, stages)
    if as_json:
        typer.echo(json.dumps(sass_document(kernels, absent), indent=1))
        return
    console = make_console()
    console.print(sass_table(kernels))
    for entry in absent:
        console.print(f"{entry.name}: {entry.reason}", markup=False)


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError("offsets", repr(text), "integers with commas between them, such as 0,5,5,9") from None
