"""The command that finds out how a chip's tensor cores add up, and the file that its owner can send."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from refmoe.cli.common import JsonOption, app, file_option, finish, listed, tracked, usage, usage_errors, writing

#: Processes of the parity suite of a bundle, at most: each has a context on the GPU.
_JOBS = 4

_BundleOption = Annotated[
    Path | None, file_option("Write all questions and answers to FILE, which you can send to refmoe.")
]
_MergeOption = Annotated[
    Path | None, file_option("Check the bundle FILE, and add its chip's answers to refmoe/evidence.json.")
]


@app.command(epilog="Example:\n\nrefmoe probe --device cuda --bundle my-gpu.json")
def probe(
    device: Annotated[str, typer.Option(help="Where to run: cuda (this GPU) or ptx (the executor).")] = "ptx",
    arch: Annotated[
        str | None, typer.Option(help="Architecture that the executor stands for; sm_120a if left out. Not for a GPU.")
    ] = None,
    instruction: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these instructions, separated by commas.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PARTS",
            help="What to put into the bundle: probes, parity, benchmarks, separated by commas. If left out: all three "
            "for a GPU, the probes alone for the executor.",
        ),
    ] = None,
    bundle: _BundleOption = None,
    merge: _MergeOption = None,
    check: Annotated[bool, typer.Option("--check", help="With --merge: check the bundle and change nothing.")] = False,
    names: Annotated[bool, typer.Option("--list", help="Print the instructions of the chip and exit.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Print the tables of what each chip answered.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find how each tensor-core instruction of a chip adds up, from its answers alone, and compare refmoe's model.

    The command runs each instruction on chosen operands and infers from the results how the chip aligns, cuts and
    rounds the products that it adds. Exit status 0 if refmoe's model predicts every result, 1 if it does not, 2 for
    wrong usage, 3 if there is no GPU to ask.
    """
    if table:
        from refmoe.evidence import read_evidence
        from refmoe.probe.sentences import table as tables

        typer.echo(tables(read_evidence()), nl=False)
        raise typer.Exit
    if merge is not None:
        _merge(merge, check, as_json)
    if check:
        usage("--check: found without --merge; needed a bundle to check")
    _ask(device, arch, listed(instruction), listed(only), bundle, names, as_json)


def _ask(
    device: str,
    arch: str | None,
    wanted: list[str] | None,
    only: list[str] | None,
    bundle: Path | None,
    names: bool,
    as_json: bool,
) -> NoReturn:
    from refmoe.files import write_atomic
    from refmoe.probe import bundle as bundles
    from refmoe.reports.probe import verdict

    parts = only or list(bundles.PARTS if device == "cuda" and bundle else bundles.PARTS[:1])
    for part in parts:
        if part not in bundles.PARTS:
            usage(f"--only: found {part!r}; needed some of {', '.join(bundles.PARTS)}")
    box = _box(device, arch)
    with usage_errors():
        instructions = bundles.chosen(wanted, box.target)
    if names:
        typer.echo("\n".join(each.name for each in instructions))
        raise typer.Exit
    records: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    start = time.monotonic()
    if "probes" in parts:
        records = bundles.probe(box, instructions, lambda items: tracked(items, "instructions"))
        seconds["probes"] = time.monotonic() - start
    made: dict[str, dict[str, Any] | None] = {"parity": None, "benchmarks": None}
    left_out = [] if "probes" in parts else [("probes", "not wanted")]
    on = ["--device", device] + (["--arch", box.target] if device == "ptx" else [])
    for part, arguments in (
        # Each process has the driver assemble what it launches: that is most of the time.
        ("parity", ["parity", "--level", "quick", "--jobs", str(min(os.cpu_count() or 1, _JOBS)), *on]),
        ("benchmarks", ["bench", "gpu" if device == "cuda" else "quantize"]),
    ):
        reason = "not wanted"
        if part in parts:
            start = time.monotonic()
            made[part], reason = bundles.made_by_command(arguments)
        if made[part] is None:
            left_out.append((part, reason))
        else:
            seconds[part] = time.monotonic() - start
    document = bundles.bundle_of(box, records, left_out=left_out, seconds=seconds, **made)
    if bundle is not None:
        with writing("--bundle", bundle):
            write_atomic(bundle, json.dumps(document, separators=(",", ":")) + "\n")
    good = all(verdict(record) != "DIFFERS" for record in records)
    finish(document, lambda: typer.echo(bundles.summary(document), nl=False), as_json=as_json, good=good)


def _box(device: str, arch: str | None) -> Any:
    """The chip to ask; without a GPU the command ends with exit status 3."""
    from refmoe.chips import TARGETS
    from refmoe.probe.hosts import CudaBox, ExecutorBox, NoGpu

    if device not in ("ptx", "cuda"):
        usage(f"--device: found {device!r}; needed ptx, the executor, or cuda, a GPU")
    if arch is not None and arch not in TARGETS:
        usage(f"--arch: found {arch!r}; needed one of {', '.join(TARGETS)}")
    if device == "ptx":
        return ExecutorBox(arch or "sm_120a")
    try:
        box = CudaBox()
    except NoGpu as error:
        typer.echo(f"SKIPPED {error}", err=True)
        raise typer.Exit(3) from None
    if arch not in (None, box.target):
        usage(f"--arch: found {arch}; {box.chip} is {box.target}")
    return box


def _merge(path: Path, check: bool, as_json: bool) -> NoReturn:
    """Check a bundle and merge it; exit status 2 with a sentence where it is refused."""
    from refmoe.evidence import read_evidence
    from refmoe.probe.bundle import summary
    from refmoe.probe.merge import BadBundle, check_bundle, raised, write_evidence
    from refmoe.reports.checks import ReportError
    from refmoe.reports.probe import read_bundle, verdict

    try:
        document = read_bundle(path)
        checked = check_bundle(document)
        if not check:
            write_evidence(raised(read_evidence(), checked))
    except ReportError as error:
        usage(str(error))
    except BadBundle as error:
        usage(f"{path}: {error}")

    def show() -> None:
        typer.echo(summary(document), nl=False)
        for doubt in checked.doubts:
            typer.echo(f"DOUBT {doubt}")
        for finding in checked.findings:
            typer.echo(f"PARITY {finding}")

    good = all(verdict(record) != "DIFFERS" for record in document["instructions"])
    finish(document, show, as_json=as_json, good=good)
