"""The command that shows what flows through a layer."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from refmoe.chips import CHIPS, KERNEL_ARCHS
from refmoe.cli.common import JsonOption, app, usage_errors
from refmoe.errors import ArgumentError

__all__ = ["flow"]

_GB10 = CHIPS["sm_121a"].products[0]


@app.command(
    epilog="Examples:\n\n"
    "refmoe flow --path cutlass --model gpt-oss-120b --m 1\n\n"
    "refmoe flow --quantization separate --m 64 --bandwidth 4800\n\n"
    "refmoe flow --path marlin"
)
def flow(
    path: Annotated[str, typer.Option(help="A backend: cutlass, marlin, triton, trtllm or trtllm_mxfp8.")] = "cutlass",
    model: Annotated[str, typer.Option(help="gpt-oss-20b or gpt-oss-120b.")] = "gpt-oss-120b",
    m: Annotated[int, typer.Option("--m", help="Tokens.")] = 1,
    bandwidth: Annotated[
        float, typer.Option(help=f"Of the memory, in GB/s; {_GB10.bandwidth:g} is a {_GB10.name}'s.")
    ] = _GB10.bandwidth,
    quantization: Annotated[
        str | None, typer.Option(help="Who quantizes the tokens: separate, fused or ready. [default: fused]")
    ] = None,
    routing: Annotated[
        str, typer.Option(help="How tokens choose experts: uniform, same-experts or empty-experts.")
    ] = "uniform",
    arch: Annotated[
        str, typer.Option(help=f"What the launches are planned for: {', '.join(KERNEL_ARCHS)}.")
    ] = "sm_121a",
    as_json: JsonOption = False,
) -> None:
    """Show each launch, conversion, and byte of a layer, and what fusing its quantization saves."""
    from refmoe.cli.session import make_console
    from refmoe.views import flow as view
    from refmoe.views import fusing as saving

    with usage_errors():
        if not 0 < bandwidth < float("inf"):
            raise ArgumentError("bandwidth", f"{bandwidth:g}", "GB/s, more than 0")
        found = view.flow(path, model, m, quantization=quantization, routing=routing, arch=arch)
        saved = saving.fusing(model, m, routing=routing) if found.launches else None
    if as_json:
        document = view.flow_document(found, bandwidth)
        typer.echo(json.dumps({**document, "fusing": saving.fusing_document(*saved) if saved else None}, indent=1))
        return
    console = make_console()
    way = f", {found.quantization}" if found.quantization else ""
    console.print(f"{found.path}{way}: a layer of {found.model.name}, M = {m}, {routing} routing\n", markup=False)
    console.print(view.flow_table(found))
    console.print(f"\n{view.flow_summary(found, bandwidth)}", markup=False, highlight=False)
    if saved:
        separate, fused, savings = saved
        console.print(f"\n{saving.fusing_summary(separate, fused)}\n", markup=False, highlight=False)
        console.print(saving.fusing_table(savings))
        console.print("\n" + "\n".join(saving.claims(separate, fused, savings)), markup=False, highlight=False)
