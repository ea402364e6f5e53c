"""Commands that compare kernels with their references, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from refmoe.chips import DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.cli.common import (
    INTERRUPTED,
    ClusterOption,
    JsonOption,
    SchedulesOption,
    app,
    check_schedules,
    file_option,
    usage_errors,
)
from refmoe.cli.tracing import TraceBlockOption, TraceOption, open_trace, write_trace
from refmoe.errors import ArgumentError


@app.command(
    epilog="Examples:\n\n"
    "refmoe parity\n\n"
    "refmoe parity --level quick --arch sm_121a\n\n"
    "refmoe parity --activations hidden.safetensors:layer2.ffn_in\n\n"
    "refmoe parity --device cuda --level full --report reports/gpu.json\n\n"
    "refmoe parity --level samples --report reports/samples.json\n\n"
    "refmoe parity --schedules 16\n\n"
    "refmoe parity --level exhaustive --dtype bf16 --jobs 2 --report out/exhaustive.json\n\n"
    "refmoe parity --level full --cluster tcp://10.0.0.1:8786\n\n"
    "refmoe parity --mutants --markdown out/parity.md --html out/parity.html\n\n"
    "refmoe parity --mutants --share 2/4"
)
def parity(
    level: Annotated[
        str,
        typer.Option(
            help="Which cases to run. quick, default and full are lists of growing length. samples are the cases of "
            "full at the true sizes of models, of whose outputs a part is compared. exhaustive runs quantize and "
            "expand on every pair (largest magnitude of a block, element); finished pieces are kept next to the report."
        ),
    ] = "default",
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
            metavar="FAMILY",
            help="Only cases of this kernel family, or of a group of them: moe, dp4a or deepseek. For example, moe is "
            "routing, activation, finalize and moe itself. Repeatable.",
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
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="Only with --level exhaustive: run this dtype only, bf16 or fp16. Repeatable."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="MODE/EDGE", help="Only with --level exhaustive: run this policy only. Repeatable."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Only with --level exhaustive: drop partial results and start again.")
    ] = False,
    mutants: Annotated[
        bool,
        typer.Option(
            "--mutants", help="Also plant faults in the kernels, on ptx, and show which case catches each fault."
        ),
    ] = False,
    share: Annotated[
        str,
        typer.Option(
            metavar="K/N",
            help="Only with --mutants: plant every N-th fault, starting with the K-th. For example, four machines with "
            "1/4, 2/4, 3/4 and 4/4 together plant all faults.",
        ),
    ] = "1/1",
    schedules: SchedulesOption = "1",
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes that run cases.")] = 1,
    cluster: ClusterOption = None,
    report: Annotated[
        Path | None,
        file_option("Write the JSON report to FILE. Without it, the report of a level goes to out/parity-DEVICE.json."),
    ] = None,
    junit: Annotated[Path | None, file_option("Also write JUnit XML.")] = None,
    markdown: Annotated[Path | None, file_option("Also write Markdown.")] = None,
    html: Annotated[Path | None, file_option("Also write a self-contained HTML page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run refmoe's kernels and compare every output byte with the references.

    Exit status 1 if a case fails, 3 if none ran. SKIPPED cases and expected refusals (UNSUPPORTED) do not fail.

    What passed of a level lies beside the report, in a file whose name ends in .partial, until the report is written:
    after Ctrl-C, or where a machine or its worker was lost, the same command goes on from there.
    """
    from refmoe.catalog import activation_cases, list_cases, parse_case
    from refmoe.cli.session import OutputFiles, run_session, share_of
    from refmoe.verify.workers import choose_workers

    with usage_errors():
        if cluster is not None and (device != "ptx" or mutants):
            found = f"{cluster} with {'--mutants' if mutants else f'--device {device}'}"
            raise ArgumentError("cluster", found, "it without: a report tells of the GPU and the faults of one machine")
        workers = choose_workers(jobs, cluster)
    if level == "exhaustive":
        from refmoe.cli.exhaustive import run_exhaustive

        with usage_errors():
            others = {"--case": case, "--activations": activations, "--mutants": mutants, "--junit": junit}
            others |= {
                "--markdown": markdown,
                "--html": html,
                "--schedules": schedules != "1",
                "--share": share != "1/1",
            }
            if given := next((name for name, value in others.items() if value), None):
                raise ArgumentError("level", f"exhaustive with {given}", "it without: it has pieces, not cases")
            run_exhaustive(
                suite or [], dtype or [], policy or [], device, arch, workers, report, fresh=fresh, as_json=as_json
            )
    with usage_errors():
        if dtype or policy or fresh:
            raise ArgumentError("level", f"{level} with --dtype, --policy or --fresh", "exhaustive with them")
        check_schedules(schedules)
        part = share_of(share)
        if part != (1, 1) and not mutants:
            raise ArgumentError("share", f"{share} without --mutants", "--mutants with it: cases have no shares")
        if case and suite:
            raise ArgumentError(
                "suite", f"{' '.join(suite)} with --case", "one of them: a repro string names its suite"
            )
        chosen = [parse_case(text, arch or "") for text in case or []]
        for text in activations or []:
            chosen += activation_cases(text, device, arch, suite or [])
        listed = not chosen
        if listed:
            chosen = list_cases(level, suite or [], device, arch)
    if report is None and listed:
        report = Path("out") / f"parity-{device}.json"
    source = ["--level", level, *(f"--suite={name}" for name in suite or [])] if listed else ["--case", "..."]
    source += ["--mutants"] if mutants else []
    source += ["--share", share] if part != (1, 1) else []
    source += ["--schedules", schedules] if schedules != "1" else []
    command = " ".join(["refmoe parity --device", device, *([f"--arch={arch}"] if arch else []), *source])
    outputs = OutputFiles(report, junit, markdown, html, as_json)
    with usage_errors():
        status = run_session(
            chosen,
            command,
            outputs,
            jobs=jobs,
            workers=workers if cluster else None,
            mutants=mutants,
            share=part,
            schedules=schedules,
            keeps=listed,
        )
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
    schedules: SchedulesOption = "1",
    as_json: JsonOption = False,
) -> None:
    """Run one case again, by its repro string."""
    from refmoe.catalog import parse_case
    from refmoe.cli.session import OutputFiles, run_session

    with usage_errors():
        check_schedules(schedules)
        chosen = parse_case(case)
        record = open_trace(trace, trace_block, as_json)
        outputs = OutputFiles(as_json=as_json)
        command = f"refmoe repro '{chosen}'" + (f" --schedules {schedules}" if schedules != "1" else "")
        status = run_session([chosen], command, outputs, verbose=True, trace=record, schedules=schedules)
    if status != INTERRUPTED:
        write_trace(record, trace)
    raise typer.Exit(status)
