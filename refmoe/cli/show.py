"""Commands that show what is there: this machine, a layer's launches, a scale layout, the GEMM's tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from refmoe.chips import CHIPS, DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.cli.common import JsonOption, app, file_option, finish, make_console, usage_errors
from refmoe.errors import ArgumentError

_GB10 = CHIPS["sm_121a"].products[0]


@app.command(epilog="Example:\n\nrefmoe doctor")
def doctor(as_json: JsonOption = False) -> None:
    """List what refmoe needs, what was found on this machine, and how to install what is missing.

    Exit status 1 if kernels cannot be run on the PTX executor.
    """
    from refmoe.views.doctor import closing_line, examine, usable

    findings = examine()

    def show() -> None:
        for finding in findings:
            absent = ("missing", "red") if finding.needed else ("absent", "yellow")
            word, colour = ("ok", "green") if finding.good else absent
            mark = typer.style(f"{word:7}", fg=colour, bold=finding.needed and not finding.good)
            typer.echo(f"{mark} {typer.style(finding.name, bold=True)}  {finding.text}")
        typer.echo(f"\n{closing_line(findings)}")

    document = {"ptx": usable(findings), "findings": [vars(finding) for finding in findings]}
    finish(document, show, good=usable(findings), as_json=as_json)


@app.command(
    epilog="Examples:\n\n"
    "refmoe flow --path cutlass --model gpt-oss-120b --m 1\n\n"
    "refmoe flow --quantization separate --m 64 --bandwidth 4800\n\n"
    "refmoe flow --path llama_cpp --quantization ready --output q8_1\n\n"
    "refmoe flow --path marlin\n\n"
    "refmoe flow --path nvfp4\n\n"
    "refmoe flow --path deepseek_fp8 --model deepseek-v3 --arch sm_90a --bandwidth 4800",
)
def flow(
    path: Annotated[
        str,
        typer.Option(
            help="Backend: cutlass, marlin, triton, trtllm, trtllm_mxfp8, dp4a, llama_cpp, nvfp4 or deepseek_fp8."
        ),
    ] = "cutlass",
    model: Annotated[
        str,
        typer.Option(
            help="Model: gpt-oss-20b, gpt-oss-120b, or a checkpoint of gpt-oss (a folder or a .gguf file). The path "
            "nvfp4 also takes a DeepSeek checkpoint as ModelOpt stores it. The path deepseek_fp8 takes deepseek-v3 or "
            "a checkpoint of it."
        ),
    ] = "gpt-oss-120b",
    m: Annotated[int, typer.Option("--m", help="Number of tokens.")] = 1,
    bandwidth: Annotated[
        float, typer.Option(help=f"Memory bandwidth in GB/s; a {_GB10.name} has {_GB10.bandwidth:g}.")
    ] = _GB10.bandwidth,
    quantization: Annotated[
        str | None,
        typer.Option(
            help="How the tokens are quantized: separate (by a launch of its own), fused (while they are copied to "
            "their experts) or ready (they arrive quantized; for llama_cpp, as the Q8_1 output of the layer before). "
            "[default: fused for cutlass, separate for other backends]"
        ),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            help="Format of the layer's output: bf16; or, for llama_cpp, q8_1, which the next layer reads as it is."
        ),
    ] = "bf16",
    routing: Annotated[
        str, typer.Option(help="How tokens choose experts: uniform, same-experts or empty-experts.")
    ] = "uniform",
    arch: Annotated[
        str, typer.Option(help=f"Architecture that launches are planned for: {', '.join(KERNEL_ARCHS)}.")
    ] = "sm_121a",
    as_json: JsonOption = False,
) -> None:
    """Show each launch and conversion of a layer with the bytes that it moves, and what fused quantization saves."""
    from refmoe.views import flow as view
    from refmoe.views import fusing as saving

    with usage_errors():
        if not 0 < bandwidth < float("inf"):
            raise ArgumentError("bandwidth", f"{bandwidth:g}", "GB/s, more than 0")
        found = view.flow(path, model, m, quantization=quantization, output=output, routing=routing, arch=arch)
        converting = view.flow(path, model, m, routing=routing, arch=arch) if found.stays else None
        saved = saving.fusing(model, m, routing=routing) if found.path == view.KERNEL_PATH else None

    def show() -> None:
        console = make_console()
        way = f", {found.quantization}" if found.quantization else ""
        way += f", output {found.output}" if found.output != "bf16" else ""
        console.print(f"{found.path}{way}: a layer of {found.model.name}, M = {m}, {routing} routing\n", markup=False)
        console.print(view.flow_table(found))
        console.print(f"\n{view.flow_summary(found, bandwidth)}", markup=False)
        if converting and converting.launches:
            console.print(view.staying_summary(converting, found), markup=False)
        if saved:
            separate, fused, savings = saved
            console.print(f"\n{saving.fusing_summary(separate, fused)}\n", markup=False)
            console.print(saving.fusing_table(savings))
            console.print("\n" + "\n".join(saving.claims(separate, fused, savings)), markup=False)

    document = view.flow_document(found, bandwidth)
    finish({**document, "fusing": saving.fusing_document(*saved) if saved else None}, show, as_json=as_json)


@app.command(
    epilog="Examples:\n\n"
    "refmoe layout 128x4 --rows 130 --blocks 13\n\n"
    "refmoe layout 8x4 --rows 20 --blocks 8 --picture out/8x4.png\n\n"
    "refmoe layout 128x4 --rows 9 --blocks 4 --offsets 0,5,5,9"
)
def layout(
    name: Annotated[str, typer.Argument(help="Layout: 128x4, 8x4 or linear.")],
    rows: Annotated[int, typer.Option(help="Number of rows of the matrix.")] = 128,
    blocks: Annotated[int, typer.Option(help="Number of blocks of 32 elements in a row; each has one scale.")] = 8,
    offsets: Annotated[
        str | None,
        typer.Option(
            help="For rows grouped by expert: the first row of each expert, then the number of rows. 0,5,5,9 gives "
            "the second of three experts no row."
        ),
    ] = None,
    picture: Annotated[Path | None, file_option("Also draw the layout, to a .png or .svg file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show at which byte of the buffer each scale of a matrix lies."""
    from refmoe.views.layout import layout_text, plan_layout

    with usage_errors():
        starts = _integers(offsets) if offsets is not None else None
        plan = plan_layout(name, rows, blocks, starts)
        text = layout_text(name, rows, blocks, offsets=starts)
        if picture is not None:
            from refmoe.views.layout_picture import draw_layout

            draw_layout(name, rows, blocks, picture, offsets=starts)
    drawn = str(picture) if picture else None

    def show() -> None:
        typer.echo(text, nl=False)
        if drawn:
            typer.echo(f"\npicture: {drawn}")

    table: list[list[int]] = []
    if as_json:
        places = [plan.scale_row_of(row) for row in range(rows)]
        table = [[int(plan.layout.offset(place, column, blocks)) for column in range(blocks)] for place in places]
    document = {"layout": name, "rows": rows, "blocks": blocks, "bytes": plan.size, "offset": table, "picture": drawn}
    finish(document, show, as_json=as_json)


@app.command(
    epilog="Examples:\n\n"
    "refmoe tiles --m 1 --arch sm_121a\n\n"
    "refmoe tiles --m 300 --rule static\n\n"
    "refmoe tiles --tile 128x128x128 --stages 3\n\n"
    "refmoe tiles --tile 256x8x512 --cluster 2x1x1\n\n"
    "refmoe tiles --sass --arch sm_121a"
)
def tiles(
    m: Annotated[int, typer.Option("--m", help="Number of tokens of the busiest expert.")] = 1,
    arch: Annotated[str, typer.Option(help=f"Architecture: {', '.join(KERNEL_ARCHS)}.")] = DEFAULT_ARCH,
    rule: Annotated[str, typer.Option(help="Rule that chooses the tile: dynamic or static.")] = "dynamic",
    min_latency: Annotated[
        bool, typer.Option("--min-latency", help="Let the static rule take narrow tiles when there are few tokens.")
    ] = False,
    tile: Annotated[
        str | None,
        typer.Option(metavar="MxNxK", help="Choose no tile: say whether this one can be used, and if not, why."),
    ] = None,
    stages: Annotated[int | None, typer.Option(help="Pipeline stages of --tile; as many as fit if left out.")] = None,
    cluster: Annotated[str, typer.Option(help="Blocks of a cluster along M, N and K, with --tile.")] = "1x1x1",
    sass: Annotated[
        bool,
        typer.Option(
            "--sass",
            help="Compare the machine code of our kernel and of CUTLASS's for --tile, or 128x128x128: tensor-core "
            "instructions, registers, spills, stages, shared memory.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show which tile the grouped GEMM takes for M tokens, and why it takes no other.

    Exit status 1 if a tile asked for with --tile cannot be used.
    """
    if sass:
        _sass(tile or "128x128x128", arch, stages, as_json)
    if tile is not None:
        _one_tile(tile, arch, stages, cluster, as_json)
    from refmoe.views import tiles as tile_view
    from refmoe.views.weighed import explained

    with usage_errors():
        if stages is not None or cluster != "1x1x1":
            raise ArgumentError("tile", "none with --stages or --cluster", "the --tile that they are of")
        choice = explained(m, arch=arch, rule=rule, min_latency=min_latency)

    def show() -> None:
        console = make_console()
        console.print(tile_view.choice_summary(choice), markup=False)
        console.print()
        console.print(tile_view.choice_table(choice))
        console.print(
            "\nThe same tiles in CUTLASS's grouped kernel, which unpacks FP4 in shared memory\n", markup=False
        )
        console.print(tile_view.cutlass_table(choice))

    finish(tile_view.choice_document(choice), show, as_json=as_json)


def _one_tile(name: str, arch: str, stages: int | None, cluster: str, as_json: bool) -> NoReturn:
    """Say how one tile can be had, or in one sentence why it cannot."""
    from refmoe.cuda.gemm.tile import TileRefused, check_tile, parse_cluster, parse_tile, stage_bytes

    document: dict[str, Any]
    with usage_errors():
        asked, blocks = parse_tile(name), parse_cluster(cluster)
        try:
            depth = check_tile(asked, arch=arch, stages=stages, cluster=blocks)
        except TileRefused as refusal:
            parts = {"argument": refusal.argument, "found": refusal.found, "needed": refusal.needed}
            document, text = {"tile": str(asked), "arch": arch, "refused": parts}, f"refused: {refusal}"
        else:
            size = stage_bytes(asked)
            document = {"tile": str(asked), "arch": arch, "stages": depth, "stage_bytes": size, "refused": None}
            text = f"{asked} on {arch}: {depth} stages of {size:,} bytes, {depth * size:,} in all"
    finish(document, lambda: typer.echo(text), good=document["refused"] is None, as_json=as_json)


def _sass(tile: str, arch: str, stages: int | None, as_json: bool) -> NoReturn:
    """Show the compiled kernels side by side, and say which are not built."""
    from refmoe.views.sass import compare_sass, sass_document, sass_table

    with usage_errors():
        kernels, absent = compare_sass(tile, arch, stages)

    def show() -> None:
        console = make_console()
        console.print(sass_table(kernels))
        for entry in absent:
            console.print(f"{entry.name}: {entry.reason}", markup=False)

    finish(sass_document(kernels, absent), show, as_json=as_json)


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError("offsets", repr(text), "integers with commas between them, such as 0,5,5,9") from None
