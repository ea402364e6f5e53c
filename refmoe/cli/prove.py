"""Commands that prove kernels equal to their references."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refmoe.chips import DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.cli.common import JsonOption, app, usage_errors
from refmoe.cli.tracing import TraceBlockOption, TraceOption, open_trace, write_trace

__all__ = ["parity", "repro"]


@app.command(
    epilog="Examples:\n\n"
    "refmoe parity\n\n"
    "refmoe parity --level quick --arch sm_121a\n\n"
    "refmoe parity --activations hidden.safetensors:layer2.ffn_in\n\n"
    "refmoe parity --device cuda --level full --report reports/h200.json\n\n"
    "refmoe parity --mutants --markdown out/parity.md --html out/parity.html"
)
def parity(
    level: Annotated[str, typer.Option(help="How many cases: quick, default or full.")] = "default",
    device: Annotated[str, typer.Option(help="Where kernels run: ptx (no GPU needed) or cuda.")] = "ptx",
    arch: Annotated[
        str | None,
        typer.Option(
            help="One arch for all cases. "
            f"Without it, ptx runs all of {', '.join(KERNEL_ARCHS)}, {DEFAULT_ARCH} the most."
        ),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="Only this kernel family, or `moe` for those around the GEMMs; may be given again."),
    ] = None,
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
    jobs: Annotated[int, typer.Option(min=1, help="Processes to run cases and mutants in.")] = 1,
    report: Annotated[
        Path | None,
        typer.Option(help="Where the JSON report goes; whole levels go to out/parity-DEVICE.json by default."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML here.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write Markdown here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a self-contained HTML page here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove the kernels equal to their references, byte for byte."""
    from refmoe.cli.session import Outputs, run_session
    from refmoe.families.case import parse_case
    from refmoe.families.suites import activation_cases, list_cases

    with usage_errors():
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
    outputs = Outputs(report, junit, markdown, html, as_json)
    with usage_errors():
        status = run_session(chosen, command, outputs, jobs=jobs, mutants=mutants)
    raise typer.Exit(status)


@app.command(
    epilog="Examples:\n\n"
    "refmoe repro 'expand:bf16:m4k2880e8t2:rne-ties:seed7@ptx'\n\n"
    "refmoe repro 'sm12x_gemm:bf16:m2k1440n16e2:gaussian:seed7@ptx' --trace -"
)
def repro(
    case: Annotated[str, typer.Argument(help="A repro string, as printed under every mismatch.")],
    trace: TraceOption = None,
    trace_block: TraceBlockOption = "0,0,0",
    as_json: JsonOption = False,
) -> None:
    """Run the one case of a repro string."""
    from refmoe.cli.session import INTERRUPTED, Outputs, run_session
    from refmoe.families.case import parse_case

    with usage_errors():
        chosen = parse_case(case)
        record = open_trace(trace, trace_block, as_json)
        outputs = Outputs(as_json=as_json)
        status = run_session([chosen], f"refmoe repro '{chosen}'", outputs, verbose=True, trace=record)
    if status != INTERRUPTED:
        write_trace(record, trace)
    raise typer.Exit(status)
