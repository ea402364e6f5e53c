"""Commands that compare kernels with their references, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refmoe.chips import DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.cli.common import INTERRUPTED, JsonOption, app, file_option, usage_errors
from refmoe.cli.tracing import TraceBlockOption, TraceOption, open_trace, write_trace


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
    device: Annotated[str, typer.Option(help="Where the kernels run: ptx (no GPU needed) or cuda.")] = "ptx",
    arch: Annotated[
        str | None,
        typer.Option(
            help="Architecture to compile every case for. If left out, ptx runs cases for each of "
            f"{', '.join(KERNEL_ARCHS)}, most of them for {DEFAULT_ARCH}."
        ),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAMILY", help="Only cases of this kernel family; `moe` names all around the GEMMs. Repeatable."
        ),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Run the case of this repro string instead of a level. Repeatable.")
    ] = None,
    activations: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE[:TENSOR]",
            help="Run cases on your activations, a BF16 or F16 tensor of a safetensors file, instead of a level. "
            "Repeatable.",
        ),
    ] = None,
    mutants: Annotated[
        bool,
        typer.Option(
            "--mutants", help="Also plant faults in the kernels, on ptx, and show which case catches each fault."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes that run cases.")] = 1,
    report: Annotated[
        Path | None, file_option("Write the JSON report to FILE. That of a level goes to out/parity-DEVICE.json.")
    ] = None,
    junit: Annotated[Path | None, file_option("Also write JUnit XML.")] = None,
    markdown: Annotated[Path | None, file_option("Also write Markdown.")] = None,
    html: Annotated[Path | None, file_option("Also write a self-contained HTML page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run refmoe's kernels and compare every output byte with the references.

    Exit status 1 if a case fails, 3 if none ran. A case that is SKIPPED does not fail, nor one that the kernel refuses
    (UNSUPPORTED) as the case list says that it does.
    """
    from refmoe.catalog import activation_cases, list_cases, parse_case
    from refmoe.cli.session import Outputs, run_session

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
    case: Annotated[str, typer.Argument(help="The repro string that is printed under every failing case.")],
    trace: TraceOption = None,
    trace_block: TraceBlockOption = "0,0,0",
    as_json: JsonOption = False,
) -> None:
    """Run one case again, by its repro string."""
    from refmoe.catalog import parse_case
    from refmoe.cli.session import Outputs, run_session

    with usage_errors():
        chosen = parse_case(case)
        record = open_trace(trace, trace_block, as_json)
        outputs = Outputs(as_json=as_json)
        status = run_session([chosen], f"refmoe repro '{chosen}'", outputs, verbose=True, trace=record)
    if status != INTERRUPTED:
        write_trace(record, trace)
    raise typer.Exit(status)
