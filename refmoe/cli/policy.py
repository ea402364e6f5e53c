"""Commands about scale policies: side by side, and which of them made these bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from refmoe.cli.common import JsonOption, app, usage, usage_errors

__all__ = ["compare", "detect", "policy"]

policy = typer.Typer(
    name="policy",
    help="Scale policies on real data: what each costs, and which of them made given bytes.",
    no_args_is_help=True,
    epilog="Examples:\n\nrefmoe policy compare real\n\n"
    "refmoe policy detect --input x.npy --codes codes.npy --scales scales.npy\n\nBoth take --help and --json.",
)
app.add_typer(policy)

_INPUT = (
    "FILE.npy, FILE.safetensors[:TENSOR], real (the activations that ship with refmoe), or a generated fill: "
    "FILL[:bf16|fp16][:mMkK][:seedN], such as gaussian:m256k2880."
)


@policy.command(
    epilog="Examples:\n\n"
    "refmoe policy compare real\n\n"
    "refmoe policy compare hidden.safetensors:layer2.ffn_in --format mxfp4 --picture out/policies.png\n\n"
    "refmoe policy compare boundary-mantissas:fp16 --policies rceil,floor,flashinfer,even/flashinfer --base floor"
)
def compare(
    source: Annotated[str, typer.Argument(metavar="INPUT", help=_INPUT)],
    format: Annotated[str, typer.Option(help="mxfp8 or mxfp4.")] = "mxfp8",
    policies: Annotated[
        str | None,
        typer.Option(
            help="Whole policies, modes, or MODE/EDGE, with commas; without it, all modes and whole policies."
        ),
    ] = None,
    base: Annotated[str | None, typer.Option(help="Count differences from this one; the first if left out.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw it, to a .png or .svg file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Quantize activations by several policies: where they differ, and the error of each."""
    from refmoe.cli.session import make_console
    from refmoe.policies.compare import compare_policies, comparison_document, comparison_view
    from refmoe.policies.inputs import read_input

    with usage_errors():
        read = read_input(source)
        names = None if policies is None else [name.strip() for name in policies.split(",")]
        comparison = compare_policies(read.x, format, policies=names, base=base)
        if picture is not None:
            from refmoe.policies.compare_picture import draw_comparison

            try:
                draw_comparison(comparison, read.name, picture)
            except OSError as error:
                usage(f"--picture: cannot write {picture}: {error.strerror}")
    if as_json:
        document = comparison_document(comparison, read.name)
        typer.echo(json.dumps({**document, "picture": str(picture) if picture else None}, indent=1))
        return
    console = make_console()
    console.print(comparison_view(comparison, read.name))
    if picture is not None:
        console.print(f"\npicture: {picture}", markup=False)


@policy.command(
    epilog="Examples:\n\n"
    "refmoe policy detect --input x.npy --codes codes.npy --scales scales.npy\n\n"
    "refmoe policy detect --input act.safetensors:x --codes q.safetensors:codes --scales q.safetensors:scales "
    "--layout 128x4\n\n"
    "refmoe policy detect --input w.npy --gguf blocks.bin"
)
def detect(
    source: Annotated[str, typer.Option("--input", help=f"What was quantized. {_INPUT}")],
    codes: Annotated[str | None, typer.Option(help="The codes: .npy, .safetensors[:TENSOR] or a raw file.")] = None,
    scales: Annotated[str | None, typer.Option(help="The scale bytes, likewise.")] = None,
    gguf: Annotated[
        str | None, typer.Option(help="Instead of both: GGUF's MXFP4 blocks, 17 bytes each, likewise.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="mxfp8 or mxfp4; follows from the size of the codes if left out.")
    ] = None,
    layout: Annotated[str, typer.Option(help="Of the scales: linear, 128x4 or 8x4.")] = "linear",
    packing: Annotated[str, typer.Option(help="Of FP4 codes: even-low or gguf.")] = "even-low",
    as_json: JsonOption = False,
) -> None:
    """Name the policies that made these bytes of this input, or the nearest; exit status 1 if there is none."""
    from refmoe.policies.detect import detect_policy, detection_document, detection_view, split_gguf_blocks
    from refmoe.policies.inputs import read_bytes, read_input

    if (gguf is None) == (codes is None or scales is None) or (gguf is not None and (codes or scales)):
        usage("needed --codes and --scales, or --gguf")
    with usage_errors():
        read = read_input(source)
        if gguf is not None:
            if format not in (None, "mxfp4") or layout != "linear":
                usage(f"--gguf: found --format {format} --layout {layout}; needed neither: its blocks say both")
            code_bytes, scale_bytes = split_gguf_blocks(read_bytes(gguf, "gguf"))
            found = detect_policy(read.x, code_bytes, scale_bytes, "mxfp4", packing="gguf")
        else:
            assert codes is not None
            assert scales is not None
            code_bytes, scale_bytes = read_bytes(codes, "codes"), read_bytes(scales, "scales")
            found = detect_policy(read.x, code_bytes, scale_bytes, format, layout=layout, packing=packing)
    if as_json:
        typer.echo(json.dumps(detection_document(found, read.name), indent=1))
    else:
        typer.echo(detection_view(found, read.name))
    raise typer.Exit(0 if found.matches else 1)
