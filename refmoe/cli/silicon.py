"""Commands that need a GPU: its instructions against the executor's, and kernels run many times."""

from __future__ import annotations

from typing import Annotated

import typer

from refmoe.cli.common import JsonOption, ReportOption, app, run_on_gpu, usage

_DeviceOption = Annotated[str, typer.Option(help="The only device that this command can ask: cuda, the GPU.")]


@app.command(epilog="Example:\n\nrefmoe conformance --device cuda --report reports/bench/conformance.json")
def conformance(device: _DeviceOption = "cuda", report: ReportOption = None, as_json: JsonOption = False) -> None:
    """Run every PTX instruction on a GPU and on the executor and compare the bytes; exit status 1 if any differ."""
    from refmoe.silicon import conformance

    if device != "cuda":
        usage(f"--device: found {device!r}; needed cuda: the executor is what is held against it")
    run_on_gpu(conformance, "instructions", lambda document: not document["differing_opcodes"], report, as_json)


@app.command(epilog="Example:\n\nrefmoe stress --device cuda --report reports/stress.json")
def stress(device: _DeviceOption = "cuda", report: ReportOption = None, as_json: JsonOption = False) -> None:
    """Run every kernel a hundred times on a GPU, and once under each tool of compute-sanitizer.

    Exit status 1 if two runs of a kernel give different bytes or a tool finds an error.
    """
    from refmoe.silicon import stress

    if device != "cuda":
        usage(f"--device: found {device!r}; needed cuda: on the executor every run is the same")
    run_on_gpu(stress, "kernels, tools", lambda document: bool(document["passed"]), report, as_json)
