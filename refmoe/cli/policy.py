"""Commands about scale policies: compare them, find the one that made given bytes, see what a conversion loses."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from refmoe.cli.common import (
    JsonOption,
    ReportOption,
    app,
    check_picture,
    file_option,
    finish,
    listed,
    make_console,
    usage,
    usage_errors,
    writing,
)


class _Policy(TyperGroup):
    """`refmoe policy --convert` is `refmoe policy convert`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["convert", *args[1:]] if args[:1] == ["--convert"] else args)


policy = typer.Typer(
    name="policy",
    cls=_Policy,
    help="Compare scale policies on your data, find the policy that made given bytes, or see what a conversion loses.",
    no_args_is_help=True,
    epilog="Examples:\n\nrefmoe policy compare real\n\n"
    "refmoe policy detect --input x.npy --codes codes.npy --scales scales.npy\n\n"
    "refmoe policy convert --input model.safetensors:layers.0.mlp.down_proj.weight\n\nAll take --help and --json.",
)
app.add_typer(policy)

_INPUT = (
    "FILE.npy, FILE.safetensors[:TENSOR], 'real' for the activations that ship with refmoe, or generated data as "
    "FILL[:bf16|fp16][:mMkK][:seedN], for example gaussian:m256k2880."
)


@policy.command(
    epilog="Examples:\n\n"
    "refmoe policy compare real\n\n"
    "refmoe policy compare hidden.safetensors:layer2.ffn_in --format mxfp4 --picture out/policies.png\n\n"
    "refmoe policy compare boundary-mantissas:fp16 --policies rceil,floor,flashinfer,even/flashinfer --base floor"
)
def compare(
    source: Annotated[str, typer.Argument(metavar="INPUT", help=_INPUT)],
    format: Annotated[str, typer.Option(help="MX format to quantize to, such as mxfp8 or mxfp4.")] = "mxfp8",
    policies: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare, separated by commas: names such as flashinfer, scale modes such as floor, or "
            "MODE/EDGE such as even/flashinfer. All modes and named policies if left out."
        ),
    ] = None,
    base: Annotated[str | None, typer.Option(help="Policy to count differences from; the first if left out.")] = None,
    picture: Annotated[Path | None, file_option("Also draw the comparison, to a .png or .svg file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Quantize activations by several policies and show where they differ and what error each makes."""
    from refmoe.policies.compare import compare_policies, comparison_document, comparison_view
    from refmoe.policies.inputs import read_input

    with usage_errors():
        read = read_input(source)
        comparison = compare_policies(read.x, format, policies=listed(policies), base=base)
        if picture is not None:
            from refmoe.policies.compare_picture import draw_comparison

            with writing("--picture", picture):
                draw_comparison(comparison, read.name, picture)

    def show() -> None:
        console = make_console()
        console.print(comparison_view(comparison, read.name))
        if picture is not None:
            console.print(f"\npicture: {picture}", markup=False)

    document = comparison_document(comparison, read.name)
    finish({**document, "picture": str(picture) if picture else None}, show, as_json=as_json)


@policy.command(
    epilog="Examples:\n\n"
    "refmoe policy detect --input x.npy --codes codes.npy --scales scales.npy\n\n"
    "refmoe policy detect --input act.safetensors:x --codes q.safetensors:codes --scales q.safetensors:scales "
    "--layout 128x4\n\n"
    "refmoe policy detect --input w.npy --gguf blocks.bin"
)
def detect(
    source: Annotated[str, typer.Option("--input", metavar="INPUT", help=f"The data that was quantized: {_INPUT}")],
    codes: Annotated[
        str | None, typer.Option(help="File of the codes: .npy, .safetensors[:TENSOR] or raw bytes.")
    ] = None,
    scales: Annotated[str | None, typer.Option(help="File of the scale bytes, in the same forms.")] = None,
    gguf: Annotated[
        str | None,
        typer.Option(help="File of GGUF's MXFP4 blocks of 17 bytes, which hold codes and scales; instead of both."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="MX format of the codes, such as mxfp8 or mxfp4. If left out: by their number of bytes."),
    ] = None,
    layout: Annotated[str, typer.Option(help="Layout of the scales: linear, 128x4 or 8x4.")] = "linear",
    packing: Annotated[str, typer.Option(help="Order of two FP4 codes in a byte: even-low or gguf.")] = "even-low",
    as_json: JsonOption = False,
) -> None:
    """Find the policies that give exactly these codes and scales for this input.

    Exit status 1 if none does; the nearest explanations are printed then.
    """
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
    document = detection_document(found, read.name)
    finish(document, lambda: typer.echo(detection_view(found, read.name)), good=bool(found.matches), as_json=as_json)


@policy.command(
    epilog="Examples:\n\n"
    "refmoe policy convert\n\n"
    "refmoe policy convert --input model.safetensors:model.layers.3.mlp.experts.0.down_proj.weight\n\n"
    "refmoe policy convert --input hidden.safetensors:layer2.ffn_in --block 1x128 --modes rceil,floor "
    "--picture out/convert.png"
)
def convert(
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="INPUT",
            help=f"Tensor to convert; repeatable. {_INPUT} E4M3 codes of a safetensors file are read with their "
            "TENSOR_scale_inv. If left out: the tensors that ship with refmoe, and drawn ones.",
        ),
    ] = None,
    block: Annotated[
        str | None,
        typer.Option(
            help="Elements that share a scale in the block FP8: 1x128 or 128x128. If left out: 128x128 for a tensor "
            "whose name says that it is a weight or a projection, else 1x128."
        ),
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(
            help="Scale modes to convert by, separated by commas. If left out: all, and the one of least error."
        ),
    ] = None,
    report: ReportOption = None,
    picture: Annotated[Path | None, file_option("Also draw the errors, to a .png or .svg file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Quantize to block FP8 (DeepSeek: an FP32 scale for 128), convert that to MXFP8 and show what is lost.

    Exit status 1 if a conversion that must be exact is not.
    """
    from refmoe.policies.convert import MODES, compare_conversion, power_of_two_losses
    from refmoe.policies.convert_inputs import built_in_sources, read_source
    from refmoe.policies.convert_view import conversion_view
    from refmoe.reports.convert import convert_document, failures

    check_picture("--picture", picture)
    start = time.perf_counter()
    with usage_errors():
        if sources:
            chosen = [read_source(text, block) for text in sources]
        elif block is not None:
            usage(f"--block: found {block} without --input; needed an --input: what is built in has its own")
        else:
            chosen = list(built_in_sources())
        asked = listed(modes) or MODES
        found = []
        for source in chosen:
            if source.stored is not None:
                found.append((source, compare_conversion(None, source.stored, modes=asked)))
                continue
            for scales in ("fp32", "ue8m0"):
                conversion = compare_conversion(source.x, block=source.block, scales=scales, modes=asked)
                found.append((source, conversion))
        losses = power_of_two_losses()
        if picture is not None:
            drawable = [each for each in found if each[1].scales == "fp32"]
            if not drawable or "rceil" not in asked:
                usage("--picture: found nothing to draw; needed an input that is not block FP8 yet, and the mode rceil")
            from refmoe.policies.convert_picture import draw_conversions

            with writing("--picture", picture):
                draw_conversions(drawable, picture)
    command = shlex.join(["refmoe", "policy", "convert", *_typed(sources, block, modes)])
    document = convert_document(found, losses, command=command, seconds=time.perf_counter() - start)

    def show() -> None:
        console = make_console()
        console.print(conversion_view(found, losses))
        for sentence in failures(document):
            console.print(f"\nFAIL {sentence}", markup=False)
        if picture is not None:
            console.print(f"\npicture: {picture}", markup=False)

    finish(document, show, good=bool(document["passed"]), as_json=as_json, report=report)


def _typed(sources: list[str] | None, block: str | None, modes: str | None) -> list[str]:
    """The options that decide figures, as a user types them."""
    given = [word for source in sources or [] for word in ("--input", source)]
    given += [] if block is None else ["--block", block]
    return given + ([] if modes is None else ["--modes", modes])
