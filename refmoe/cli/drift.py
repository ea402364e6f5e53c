"""The command that decodes tokens by several paths and compares them step by step."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

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

_MODES = ("teacher-forced", "free-running")


@app.command(
    epilog="Examples:\n\n"
    "refmoe drift\n\n"
    "refmoe drift --paths cutlass:fused,cutlass:separate --steps 16\n\n"
    "refmoe drift --base cutlass:fused --policies floor,even,flashinfer --plot out/drift.png\n\n"
    "refmoe drift --weights nvfp4 --steps 16\n\n"
    "refmoe drift --weights deepseek-nvfp4 --base formula --steps 16\n\n"
    "refmoe drift --checkpoint gpt-oss-20b/ --paths cutlass,marlin --batch 1 --sweep prompt=8,64"
)
def drift(
    context: typer.Context,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A checkpoint of gpt-oss, a folder or a .gguf file, or of DeepSeek-V3, whose layers run without "
            "attention; a tiny random one if left out.",
        ),
    ] = None,
    paths: Annotated[
        str | None,
        typer.Option(
            help="Paths to compare, separated by commas. A path is BACKEND[:separate|fused][:POLICY][:ARCH], "
            "llama_cpp:q8_1 for experts whose output is Q8_1, or 'formula' for float64. "
            "If left out: cutlass:separate, cutlass:fused, marlin, dp4a, llama_cpp, llama_cpp:q8_1, "
            "cutlass:separate:floor, nvfp4; with NVFP4 weights nvfp4, marlin, formula."
        ),
    ] = None,
    policies: Annotated[
        str | None, typer.Option(help="Scale policies, separated by commas: also run the base path with each.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Path that the others are compared with; the first if left out.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Tokens to decode after the prompt.")] = 64,
    mode: Annotated[
        str,
        typer.Option(
            help="teacher-forced: every path continues with the base's tokens; free-running: with its own; or both."
        ),
    ] = "both",
    batch: Annotated[int | None, typer.Option(min=1, help="Number of sequences; 2 if left out.")] = None,
    prompt_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens in each random prompt; 8 if left out.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help='Token ids of the prompt: "3,1,4", or "3,1,4;1,5,9" for two sequences.')
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Values to try for one setting, for example batch=1,4. Settings are batch, prompt (tokens of a "
            "prompt), k (experts of a token) and in-flight (sequences decoded together). Repeatable: every combination "
            "runs."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and of the random checkpoint.")] = 7,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Format of the experts in the random checkpoint: mxfp4 or nvfp4 (as ModelOpt stores it) for gpt-oss, "
            "block_fp8 or deepseek-nvfp4 for DeepSeek-V3; mxfp4 if left out."
        ),
    ] = None,
    report: ReportOption = None,
    plot: Annotated[Path | None, file_option("Also draw the error curves, to a .png or .svg file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Decode tokens by several paths through the same layers and show where and how far they part.

    Exit status 1 if two paths differ that compute the same arithmetic, such as cutlass:fused and cutlass:separate.
    """
    from rich.progress import Progress

    from refmoe.drift import run_drift
    from refmoe.drift.document import document_text, drift_document
    from refmoe.drift.inputs import WEIGHTS, draw_prompts, open_or_write, parse_prompts, parse_sweeps, sweep_points
    from refmoe.drift.paths import DEEPSEEK_PATHS, DEFAULT_PATHS, NVFP4_PATHS, named_paths
    from refmoe.drift.summary import drift_summary

    if mode not in (*_MODES, "both"):
        usage(f"--mode: found {mode!r}; needed one of {', '.join(_MODES)}, both")
    check_picture("--plot", plot)
    if weights is not None and (weights not in WEIGHTS or checkpoint is not None):
        found = "a checkpoint, which has its own" if checkpoint is not None else repr(weights)
        usage(f"--weights: found {found}; needed one of {', '.join(WEIGHTS)} for the random checkpoint")
    start = time.perf_counter()
    with usage_errors():
        sweeps = parse_sweeps(sweep or [])
        given = None if prompt is None else parse_prompts(prompt)
        if given is not None and (batch or prompt_length or sweeps.keys() & {"batch", "prompt"}):
            usage("--prompt: found with a batch or a prompt length; needed alone: it says both")
        shape = (batch or 2, prompt_length or 8) if given is None else given.shape
        points = sweep_points(sweeps, *shape)
        with open_or_write(checkpoint, seed, weights or "mxfp4") as opened:
            default = {"nvfp4": NVFP4_PATHS, "block_fp8": DEEPSEEK_PATHS}.get(opened.weights, DEFAULT_PATHS)
            chosen, first = named_paths(listed(paths), listed(policies), base, default)
            runs = []
            console = make_console(stderr=True)
            with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
                groups = sum(-(-point.batch // point.in_flight) for point in points)
                task = bar.add_task("decoding", total=groups * (steps + 1))

                def advance(text: str) -> None:
                    bar.update(task, advance=1, description=text)

                for point in points:
                    vocabulary = opened.config.vocab_size
                    prompts = draw_prompts(vocabulary, point.batch, point.prompt, seed) if given is None else given
                    run = run_drift(
                        opened,
                        chosen,
                        prompts,
                        base=first,
                        steps=steps,
                        modes=_MODES if mode == "both" else (mode,),
                        top_k=point.k,
                        in_flight=point.in_flight,
                        progress=advance,
                    )
                    runs.append(run)
            document = drift_document(
                runs,
                chosen,
                opened,
                base=first,
                steps=steps,
                seed=seed,
                tiny=checkpoint is None,
                command=_command(context),
                seconds=time.perf_counter() - start,
            )
    if report is not None:
        from refmoe.files import write_atomic

        # Thousands of numbers: a line each, as other documents have it, would be a file of nothing but lines.
        with writing("--report", report):
            write_atomic(report, document_text(document) + "\n")
    if plot is not None:
        from refmoe.drift.picture import draw_drift

        with writing("--plot", plot):
            draw_drift(document, plot)
    finish(document, lambda: make_console().print(drift_summary(document)), good=document["passed"], as_json=as_json)


def _command(context: typer.Context) -> str:
    """The command as it was typed, put together from its options: called from Python, sys.argv is another's."""
    words: list[Any] = ["refmoe", "drift"]
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[option.name or ""]
        for each in value if isinstance(value, (list, tuple)) else [value]:
            words += [option.opts[0]] if each is True else [option.opts[0], each]
    return shlex.join(map(str, words))
