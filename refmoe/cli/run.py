"""`refmoe run`: run any PTX kernel on arrays from files."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from refmoe.cli.common import (
    JsonOption,
    ReportOption,
    SchedulesOption,
    app,
    check_schedules,
    finish,
    usage,
    usage_errors,
)
from refmoe.cli.observing import (
    ProfileOption,
    WatchOption,
    array_named,
    open_profile,
    open_watch,
    watched,
    write_profile,
)
from refmoe.cli.tracing import TraceBlockOption, TraceOption, open_trace, write_trace
from refmoe.cli.variables import VariableOption, read_back, read_variables, set_variables
from refmoe.errors import ArgumentError

if TYPE_CHECKING:
    from refmoe.cli.kernel_arguments import Argument
    from refmoe.ptx import Checks, LaunchResult, Module, PtxError, RaceError, Watch
    from refmoe.ptx.text.syntax import Function

_CHECKS = ("bounds", "uninitialised", "alignment", "races", "undefined")
# Lines of PTX around one that is at fault.
_AROUND = 2
# Endings of files that a compiler has to read first.
_CUDA = (".cu", ".cuh", ".cpp")


@app.command(
    epilog="Examples:\n\n"
    "refmoe run kernel.ptx --list\n\n"
    "refmoe run saxpy.ptx --grid 8 --block 128 --args 'f32:2 in:x.npy inout:y.npy:result.npy i32:1000'\n\n"
    "refmoe run dot.ptx --grid 2,2 --shared 12544 --args 'in:a.npy in:b.npy out:c.npy:f32:70x40 i32:256 null'\n\n"
    "refmoe run saxpy.ptx --grid 8 --block 128 --args '...' --profile - --watch y:12:4\n\n"
    "refmoe run saxpy.ptx --grid 8 --block 128 --args '...' --schedules 16\n\n"
    "refmoe run large.ptx --grid 100000 --block 256 --args '...' --blocks 0-3 --blocks 99999"
)
def run(
    kernel: Annotated[Path, typer.Argument(metavar="KERNEL.ptx", help="The PTX file; '-' for standard input.")],
    entry: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The kernel's name or an unambiguous part of it, in which * stands for anything; "
            "not needed if the file has only one.",
        ),
    ] = None,
    grid: Annotated[str, typer.Option(metavar="X[,Y[,Z]]", help="Number of blocks.")] = "1",
    block: Annotated[
        str | None, typer.Option(metavar="X[,Y[,Z]]", help="Threads in a block; .reqntid of the kernel if left out.")
    ] = None,
    shared: Annotated[int, typer.Option(metavar="BYTES", help="Dynamic shared memory for each block.")] = 0,
    args: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARGUMENTS",
            help="The kernel's arguments in order, separated by spaces; repeatable. Each is in:FILE.npy (read), "
            "inout:FILE.npy[:OUT.npy] (read and written), out:FILE.npy:TYPE:SHAPE[:fill=BYTE] (written), "
            "scratch:TYPE:SHAPE[:fill=BYTE] (not kept), same:N (the array of argument N), TYPE:VALUE (a number), "
            "bytes:FILE (a struct), texture:FILE.npy[:OPTION...], surface:FILE.npy[:OUT.npy][:OPTION...] or null. TYPE "
            "is one of u8 u16 u32 u64 i8 i16 i32 i64 f16 f32 f64, SHAPE for example 1024x16. An OPTION is kind=3d, "
            "channels=4, address=wrap, filter=linear, read=normalized_float, border=0,0,0,1 or normalized. Pass BF16 "
            "as u16, FP8 and packed FP4 as u8.",
        ),
    ] = None,
    variable: VariableOption = None,
    cooperative: Annotated[
        bool,
        typer.Option("--cooperative", help="Keep all blocks resident together, which grid.sync() needs."),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="X[,Y[,Z]]",
            help="Blocks of a cluster. If left out: the kernel's .reqnctapercluster, or one block.",
        ),
    ] = None,
    blocks: Annotated[
        list[str] | None,
        typer.Option(
            metavar="X[,Y[,Z]] | A-B",
            help="Run only this block of the grid, or only the blocks with x from A to B. Repeatable. The kernel still "
            "sees the whole grid.",
        ),
    ] = None,
    multiprocessors: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of multiprocessors of the chip, which limits how many blocks are resident at once. If left "
            "out: that of the smallest chip of the file's target.",
        ),
    ] = None,
    no_check: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help=f"Turn a check off: {', '.join(_CHECKS)}; repeatable.")
    ] = None,
    step_budget: Annotated[
        int | None, typer.Option(min=1, help="Stop with an error when a warp has run this many blocks of code.")
    ] = None,
    list_entries: Annotated[
        bool, typer.Option("--list", help="List the file's kernels and their parameters, and exit.")
    ] = False,
    trace: TraceOption = None,
    trace_block: TraceBlockOption = "0,0,0",
    watch: WatchOption = None,
    profile: ProfileOption = None,
    schedules: SchedulesOption = "1",
    previous_grid_writes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An array that the grid before this one may still be writing (programmatic dependent launch): to "
            "touch it without griddepcontrol.wait is a fault. NAME as for --watch; repeatable.",
        ),
    ] = None,
    previous_grid_reads: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An array that the grid before this one may still be reading: to write it without "
            "griddepcontrol.wait is a fault. NAME as for --watch; repeatable.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as faults.")] = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run any PTX kernel without a GPU, with every memory access checked.

    Output files are written only if the kernel runs to its end without a fault.
    """
    from refmoe.cli.kernel_arguments import read_arguments, write_outputs
    from refmoe.ptx import ArgumentMismatch, DeviceMemory, Module, ParseError, PtxError, launch

    text = _read(kernel)
    if kernel.suffix in _CUDA:
        compiler = f"nvcc -ptx -lineinfo -arch=sm_90a {'' if kernel.suffix == '.cu' else '-x cu '}"
        usage(f"{kernel}: found CUDA C++; needed PTX, for example of {compiler}{shlex.quote(str(kernel))}")
    document: dict[str, Any] = {"kernel": str(kernel), "fault": None, "outputs": []}
    try:
        module = Module.parse(text, name=kernel.name)
        if list_entries:
            # Bodies are not read for it: those of a large file take many seconds.
            signatures = [_signature(module.declared[name]) for name in module.entries]
    except ParseError as error:
        _fault(document, error, text, report=report, as_json=as_json)
    if list_entries:
        held = [{"name": v.name, "space": v.space, "bytes": v.size} for v in module.variables.values()]
        document.update(target=module.target, entries=signatures, variables=held)
        finish(document, lambda: _show_entries(document), report=report, as_json=as_json)
    with usage_errors():
        check_schedules(schedules)
        checks = _checks(no_check or [], strict)
        words = [word for group in args or [] for word in _words(group)]
        arguments = read_arguments(words)
        settings = read_variables(variable or [])
        size = _triple("grid", grid)
        blocks_of_cluster = None if cluster is None else _triple("cluster", cluster)
        chosen = _chosen_blocks(blocks or [], size)
        memory = DeviceMemory() if settings else None
        names = {} if memory is None else set_variables(memory, module, settings)
        recorder = open_trace(trace, trace_block, as_json)
        try:
            name = _choose(module, entry)
            shape = _block(module.function(name), block)
            _check_types(module.function(name), arguments)
            watchpoint, values = open_watch(watch, module.function(name), arguments)
            before, read_before = (
                [array_named(option, each, module.function(name), values) for each in given or []]
                for option, given in (
                    ("--previous-grid-writes", previous_grid_writes), ("--previous-grid-reads", previous_grid_reads),
                )
            )  # fmt: skip
            counts = open_profile(profile, as_json)
        except ArgumentMismatch as error:
            usage(str(error))
        except ParseError as error:
            _fault(document, error, text, report=report, as_json=as_json)
    document.update(entry=name, target=module.target, grid=size, block=shape, shared_bytes=shared)
    document.update(checks=[check for check in _CHECKS if getattr(checks, check)])
    again = ["refmoe", "run", str(kernel), "--entry", name, *_sizes("--grid", size), *_sizes("--block", shape)]
    again += ["--shared", str(shared)] if shared else []
    again += [part for check in no_check or [] for part in ("--no-check", check)]
    again += ["--strict"] if strict else []
    again += [part for each in variable or [] for part in ("--variable", each)]
    again += ["--cooperative"] if cooperative else []
    again += _sizes("--cluster", blocks_of_cluster) if blocks_of_cluster else []
    again += [part for each in blocks or [] for part in ("--blocks", each)]
    again += [] if multiprocessors is None else ["--multiprocessors", str(multiprocessors)]
    again += [part for each in previous_grid_writes or [] for part in ("--previous-grid-writes", each)]
    again += [part for each in previous_grid_reads or [] for part in ("--previous-grid-reads", each)]
    again += ["--args", shlex.join(words)] if words else []
    try:
        result = launch(
            module, name, size, shape, values, shared, checks, step_budget, recorder, watch=watchpoint, profile=counts,
            # What the kernel prints is no part of the JSON.
            stdout=sys.stderr if as_json else sys.stdout, schedules=schedules,
            previous_grid_writes=before or None, previous_grid_reads=read_before or None, memory=memory,
            cooperative=cooperative, cluster=blocks_of_cluster,
            blocks=chosen, multiprocessors=multiprocessors,
        )  # fmt: skip
    except ArgumentMismatch as error:
        usage(str(error))
    except PtxError as error:
        write_trace(recorder, trace)
        write_profile(counts, profile)
        _saw(document, watchpoint)
        _fault(document, error, text, report=report, as_json=as_json, again=again)
    write_trace(recorder, trace)
    write_profile(counts, profile)
    _saw(document, watchpoint)
    left = [] if memory is None else read_back(memory, module, settings, names)
    document.update(result=_outcome(result, text), outputs=write_outputs([*arguments, *left]))
    finish(document, lambda: _show(document), report=report, as_json=as_json)


def _read(kernel: Path) -> str:
    try:
        return sys.stdin.read() if str(kernel) == "-" else kernel.read_text()
    except OSError as error:
        usage(f"{kernel}: cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        usage(f"{kernel}: cannot be read: {error}")


def _words(group: str) -> list[str]:
    try:
        return shlex.split(group)
    except ValueError as error:
        raise ArgumentError("--args", f"{group!r}: {error}", "words, with quotes that close") from error


def _checks(off: Sequence[str], strict: bool) -> Checks:
    from refmoe.ptx import Checks

    for name in off:
        if name not in _CHECKS:
            raise ArgumentError("--no-check", repr(name), f"one of {', '.join(_CHECKS)}")
    return Checks(**{name: name not in off for name in _CHECKS}, strict=strict)


def _triple(name: str, text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ArgumentError(f"--{name}", repr(text), "one to three positive integers, as 8,2")
    x, y, z = (*map(int, parts), 1, 1)[:3]
    return x, y, z


def _chosen_blocks(texts: Sequence[str], grid: tuple[int, int, int]) -> list[tuple[int, int, int]] | None:
    """The blocks of a grid that `--blocks` names, None for all."""
    chosen: list[tuple[int, int, int]] = []
    for text in texts:
        first, dash, last = text.partition("-")
        if dash:
            if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
                raise ArgumentError("--blocks", repr(text), "A-B, the first x and the last, as 0-3")
            # What lies beyond the grid is left to what counts blocks, once.
            chosen += [(x, 0, 0) for x in range(int(first), min(int(last), grid[0]) + 1)]
            continue
        parts = text.split(",")
        if not 1 <= len(parts) <= 3 or not all(map(str.isdecimal, parts)):
            raise ArgumentError("--blocks", repr(text), "a block as 17 or 2,0,1, or blocks as 0-3")
        x, y, z = (*map(int, parts), 0, 0)[:3]
        chosen.append((x, y, z))
    return chosen or None


def _choose(module: Module, wanted: str | None) -> str:
    """The entry of a name, of a part of one, or the only one."""
    from refmoe.ptx.running import some_of

    fitting = module.entries if wanted is None else module.fitting(wanted)
    if len(fitting) == 1:
        return fitting[0]
    needed = f"one of {some_of(fitting or module.entries)}" if module.entries else "a module with a kernel"
    raise ArgumentError("--entry", "nothing" if wanted is None else repr(wanted), needed)


def _block(function: Function, text: str | None) -> tuple[int, int, int]:
    if text is not None:
        return _triple("block", text)
    exact = function.directives.get("reqntid")
    if not exact:
        raise ArgumentError("--block", "nothing", f"threads of a block: {function.name} has no .reqntid")
    return (*exact, 1, 1)[0], (*exact, 1, 1)[1], (*exact, 1, 1)[2]


def _check_types(function: Function, arguments: Sequence[Argument]) -> None:
    """A number must have its parameter's size, and be a float where that is: bits are never converted."""
    for position, (variable, argument) in enumerate(zip(function.parameters, arguments, strict=False)):
        kind = argument.number
        if kind is None:
            continue
        # Parameters of type .b take both.
        other = {"f": "ui", "u": "f", "s": "f"}.get(variable.type[0], "")
        if int(kind[1:]) != variable.size * 8 or kind[0] in other or variable.pointer:
            needed = f"a .{variable.type} of {variable.size} bytes" if not variable.pointer else "an array or null"
            raise ArgumentError("--args", f"{argument.word!r} for parameter {position} ({variable.name})", needed)


def _signature(function: Function) -> dict[str, Any]:
    parameters = [
        {"name": v.name, "type": v.type, "bytes": v.size, "align": v.align, "pointer": v.pointer}
        for v in function.parameters
    ]
    return {"entry": function.name, "parameters": parameters, "directives": dict(function.directives)}


def _outcome(result: LaunchResult, text: str) -> dict[str, Any]:
    lines = text.splitlines()
    return {
        "lane_instructions": result.lane_instructions,
        "instructions": result.instructions,
        "seconds": round(result.seconds, 4),
        "approximate": [
            {"opcode": opcode, "line": line, "source": source}
            for (opcode, line), (source, _) in zip(result.approximate, result.approximate_at, strict=True)
        ],
        "contraction_possible": [
            {"line": line, "text": " ".join(lines[line - 1].split())} for line in result.contraction_possible
        ],
        "models": dict(result.models),
        "schedules": result.schedules,
        "warnings": [_race(warning) for warning in result.warnings],
        "left_undefined": [error.message for error in result.left_undefined],
    }


def _race(error: RaceError) -> dict[str, Any]:
    """A race as JSON has it."""
    finding = error.finding
    return {
        "kind": error.kind,
        "warning": error.warning,
        "message": error.message,
        "space": error.space,
        "array": error.buffer,
        "offset": error.offset,
        "line": error.line,
        "source": error.source,
        "callers": list(error.callers),
        "use": error.use,
        "said": [*error.use_said(), *([] if finding is None else finding.lines())],
        "finding": None if finding is None else finding.document(),
    }


def _saw(document: dict[str, Any], watch: Watch | None) -> None:
    """Put into the document who wrote the bytes that were watched."""
    if watch is not None:
        writes = [{**asdict(write), "value": write.value.hex()} for write in watch.writes]
        document["watch"] = {"array": watch.buffer, "first": watch.first, "size": watch.size, "writes": writes}


def _sizes(option: str, sizes: Sequence[int]) -> list[str]:
    return [option, ",".join(map(str, sizes))]


def _fault(
    document: dict[str, Any],
    error: PtxError,
    text: str,
    *,
    report: Path | None,
    as_json: bool,
    again: Sequence[str] = (),
) -> NoReturn:
    """End with what went wrong and the PTX around it; `again` is the command without its schedules."""
    from refmoe.ptx import MemoryFault, RaceError
    from refmoe.ptx.schedules import named, that_show

    line = getattr(error, "line", None)
    fields = {name: getattr(error, name, None) for name in ("source", "callers", "block", "thread", "waiting")}
    excerpt = _excerpt(text, line) if line else []
    kind = type(error).__name__
    document["fault"] = {"kind": kind, "message": error.message, "line": line, **fields, "excerpt": excerpt}
    race = error.race if isinstance(error, MemoryFault) else error
    if isinstance(race, RaceError):
        document["fault"]["race"] = _race(race)
    if isinstance(error, MemoryFault) and race is not None:
        document["fault"]["race"]["said"] = [*error.race_said()]
    if error.schedule:
        document["fault"]["repro"] = shlex.join([*again, "--schedules", named(that_show(error))])
    finish(document, lambda: _show_fault(document), good=False, report=report, as_json=as_json)


def _excerpt(text: str, line: int) -> list[str]:
    lines = text.splitlines()
    numbers = range(max(1, line - _AROUND), min(len(lines), line + _AROUND) + 1)
    return [f"{'>' if n == line else ' '} {n:6} | {lines[n - 1].expandtabs(4)}" for n in numbers]


def _show_fault(document: dict[str, Any]) -> None:
    fault = document["fault"]
    typer.echo(f"{fault['kind']}: {fault['message']}")
    for line in fault["excerpt"]:
        typer.echo(line)
    for said in fault.get("race", {}).get("said", ()):
        typer.echo(f"  {said}")
    if "repro" in fault:
        typer.echo(f"repro: {fault['repro']}")
    typer.echo("no output was written")
    _show_watch(document)


def _show_entries(document: dict[str, Any]) -> None:
    for entry in document["entries"]:
        directives = "".join(
            f" .{name} {', '.join(map(str, values))}".rstrip() for name, values in entry["directives"].items()
        )
        typer.echo(f"{entry['entry']}  ({document['target']}){directives}")
        for position, p in enumerate(entry["parameters"]):
            kind = "pointer" if p["pointer"] else f".{p['type']}"
            typer.echo(f"  {position:3}  {kind:8} {p['bytes']:5} bytes  {p['name']}")
    for v in document["variables"]:
        kind = "__constant__" if v["space"] == "const" else "__device__"
        typer.echo(f"{v['name']}  {kind} variable of {v['bytes']} bytes (--variable)")


def _without_late_reads(document: Mapping[str, Any]) -> str:
    """What schedules leave out in a launch of many warps."""
    from refmoe.ptx.engine.thread_steps import MOST_WARPS

    warps = math.prod(document["grid"]) * -(-math.prod(document["block"]) // 32)
    return f"; no read came late, as it may with up to {MOST_WARPS} warps" if warps > MOST_WARPS else ""


def _show(document: dict[str, Any]) -> None:
    result = document["result"]
    grid, block = ("x".join(map(str, document[name])) for name in ("grid", "block"))
    typer.echo(f"{document['entry']} ({document['target']}), {grid} blocks of {block} threads")
    ran = f"{result['lane_instructions']:,} lane instructions, {result['instructions']:,} vector instructions"
    typer.echo(f"  ran            {ran}, {result['seconds']:.2f} s")
    typer.echo(f"  checked        {', '.join(document['checks']) or 'nothing'}")
    if result["schedules"] > 1:
        typer.echo(
            f"  schedules      the same bytes under {result['schedules']} schedules{_without_late_reads(document)}"
        )
    for name, evidence in result["models"].items():
        typer.echo(f"  tensor cores   model {name}, {evidence}")
    opcodes: dict[str, list[str]] = {}
    for row in result["approximate"]:
        opcodes.setdefault(row["opcode"], []).append(str(row["line"]))
    for opcode, lines in opcodes.items():
        typer.echo(f"  approximate    {opcode}, line {', '.join(lines)}: {_left_open(opcode)}")
    fused = result["contraction_possible"]
    if fused:
        first = ", ".join(f"{row['line']}" for row in fused[:8]) + (", ..." if len(fused) > 8 else "")
        typer.echo(f"  not rounded    {len(fused)} lines that ptxas may fuse with others: {first}")
    for warning in result["warnings"]:
        typer.echo(f"  warning        {warning['warning']}: {warning['message']}")
        for said in warning["said"]:
            typer.echo(f"                 {said}")
    for message in result["left_undefined"]:
        typer.echo(f"  left undefined {message}")
    for output in document["outputs"]:
        shape = "x".join(map(str, output["shape"]))
        left = f", {output['unwritten']:,} elements never written" if output["unwritten"] else ""
        typer.echo(f"  wrote          {output['file']}  {output['dtype']} {shape}{left}")
    _show_watch(document)


def _left_open(opcode: str) -> str:
    """What of an approximate result a chip may do otherwise."""
    mnemonic, *modifiers = opcode.split(".")
    if {"approx", "full"} & set(modifiers):
        return "the chip's last bits may differ"
    if mnemonic in ("div", "rem") and modifiers[-1][0] in "us":
        return "a division by zero, which PTX leaves open: all ones, as an H200 gives them"
    if modifiers[-1] == "f64" or mnemonic == "cvt":
        return "a NaN: the chip's may have other bits"
    return "operands of which PTX leaves the result open"


def _show_watch(document: dict[str, Any]) -> None:
    if "watch" in document:
        typer.echo(watched(document["watch"]), nl=False)
