"""Run a case on a kernel: inputs, reference, kernel, comparison, verdict. Every kernel goes this one way."""

from __future__ import annotations

import hashlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from refmoe.cuda.device import DeviceUnavailable
from refmoe.cuda.toolchain import ToolchainError
from refmoe.errors import RefmoeError
from refmoe.families.family import Case, Expectation, Inputs, LaunchFailed, Outputs
from refmoe.ptx.errors import PtxError, ScheduleError
from refmoe.ptx.schedules import current_schedules, named, that_show, under_schedules
from refmoe.verify.certified import uncertified
from refmoe.verify.compare import Comparison, compare
from refmoe.verify.kernel import Devices, Kernel, Malformed, Masks, Place, Refusal
from refmoe.verify.sweep import Results, sweep
from refmoe.verify.verdict import Result, Verdict
from refmoe.verify.workers import Workers, processes

if TYPE_CHECKING:
    from refmoe.cuda.device import LaunchRecord
    from refmoe.ptx import Trace

#: Cases that a worker process takes at a time: few enough to share the work out, enough to reuse its modules.
_CHUNK = 8

#: The devices of a worker process, kept between its chunks.
_WORKER_DEVICES = Devices()

KernelOf = Callable[[Case, Devices], Kernel]


def run_cases(
    cases: Sequence[Case],
    kernel_of: KernelOf,
    *,
    jobs: int = 1,
    workers: Workers | None = None,
    trace: Trace | None = None,
    schedules: str = "1",
    keep: Callable[[Sequence[Result]], None] | None = None,
) -> Iterator[Result]:
    """Run cases and yield the results in order, each as soon as it can be.

    Args:
        cases: what to run.
        kernel_of: gives a case's kernel; with several processes a function of a module's top level.
        jobs: processes to run them in; each compiles nothing twice, but parses and translates PTX for itself.
        workers: who runs them, in place of `jobs` processes.
        trace: records barrier waits; with one process only.
        schedules: those of each launch on the executor, see `refmoe.ptx.schedules.schedules_of`.
        keep: is told of results as they come, which may be long before those of the cases before them.

    Raises:
        refmoe.verify.sweep.WorkerLost: workers were lost again and again under the same cases.
    """
    if workers is None and jobs == 1:
        devices = Devices(trace=trace)
        for case in cases:
            with under_schedules(schedules):
                result = run_case(kernel_of(case, devices), case)
            if keep:
                keep([result])
            yield result
        return
    starts = range(0, len(cases), _CHUNK)
    chunks = {f"cases {start + 1} to {start + _CHUNK}": cases[start : start + _CHUNK] for start in starts}
    results, due = Results(), deque(chunks)
    work = partial(_run_chunk, kernel_of, schedules=schedules)
    for _, ran in sweep(chunks, work, results, workers or processes(jobs)):
        if keep:
            keep(ran)
        while due and due[0] in results.done:
            yield from results.done.pop(due.popleft())


def _run_chunk(kernel_of: KernelOf, cases: Sequence[Case], schedules: str = "1") -> list[Result]:
    # An exception of a kernel may not survive the way between processes; its text does.
    with under_schedules(schedules):
        return [replace(run_case(kernel_of(case, _WORKER_DEVICES), case), error=None) for case in cases]


def run_case(kernel: Kernel, case: Case) -> Result:
    """Run one case. Whatever goes wrong inside it becomes its verdict; only Ctrl-C and defects of refmoe are raised.

    A launch on the executor runs under as many schedules as the case says, unless `under_schedules` says otherwise.

    Raises:
        ArgumentError: the case's activations file cannot be used.
    """
    own = str(case.get("schedules", 1))
    if own != "1" and named(current_schedules()) == "1":
        with under_schedules(own):
            return run_case(kernel, case)
    start = time.perf_counter()
    try:
        place = kernel.place(case)
    except (DeviceUnavailable, ToolchainError) as error:
        return _result(kernel, case, None, start, verdict=Verdict.SKIPPED, reason=str(error))
    if (absent := kernel.missing(case, place)) is not None:
        # Of a device that is kept, the launches are those of the cases before this one.
        launched = len(place.launches)
        return _result(kernel, case, place, start, verdict=Verdict.SKIPPED, reason=absent, launched=launched)
    inputs, expected = _frozen(*kernel.problem(case))
    launched = len(place.launches)
    ran = partial(_result, kernel, case, place, start, inputs=inputs, expected=expected, launched=launched)
    due = kernel.due_refusal(case, place)
    try:
        outputs = _whole(kernel, kernel.run(case, inputs, expected, place), expected)
    except Refusal as error:
        answer = str(error)
        as_due = error.declared or (due is not None and due in answer)
        return ran(verdict=Verdict.UNSUPPORTED, reason=answer, refused_as_due=as_due)
    except Malformed as error:
        comparison = Comparison(error.stage, str(error), {error.stage: 1}, 0)
        return ran(verdict=Verdict.MISMATCH, comparison=comparison)
    except LaunchFailed as error:
        before = _before(error, expected)
        return ran(
            verdict=_stopped(error.cause),
            reason=_in_a_line(error),
            comparison=before,
            stage=error.stage,
            error=error.cause,
        )
    except RefmoeError as error:
        # Compiler messages and executor faults; what a PTX fault says is the finding, so it is kept whole.
        return ran(verdict=_stopped(error), reason=f"{type(error).__name__}: {_in_a_line(error)}", error=error)
    except Exception as error:
        # A user's kernel may raise anything, and torch reports so what a kernel did to the GPU.
        if kernel.name is None and not (case.device == "cuda" and isinstance(error, RuntimeError)):
            raise
        return ran(verdict=Verdict.ERROR, reason=f"{type(error).__name__}: {error}", error=error)
    if due is not None:
        reason = f"the case list says that the kernel refuses this case ({due}); it ran"
        return ran(verdict=Verdict.ERROR, reason=reason)
    records = place.launches[launched:]
    masks = kernel.ignored(case, inputs, expected)
    comparison = compare(
        expected.stages, outputs, expected.outputs, answers=expected.answers, ignored=masks, tile=_gemm_tile(records)
    )
    judged, said = _judge(outputs, masks, comparison, expected, records)
    policies: tuple[str, ...] = ()
    if judged is Verdict.MISMATCH:
        said, policies = kernel.explain(case, inputs, outputs)
    return ran(verdict=judged, reason=said, comparison=comparison, policies=policies)


def _in_a_line(error: BaseException) -> str:
    """What an error says; the lines of a race's finding one behind the other."""
    if not isinstance(error, PtxError):
        # A compiler's lines stay lines: the first one is what is said again.
        return str(error)
    return "; ".join(line.strip() for line in str(error).splitlines())


def _stopped(error: BaseException) -> Verdict:
    """The verdict of a kernel that did not run to its end."""
    return Verdict.DEPENDS_ON_SCHEDULE if isinstance(error, ScheduleError) else Verdict.ERROR


def _again(command: str, case: Case, device: str, error: Exception | None) -> str:
    """The command that runs a case, under the schedules that matter."""
    schedules = named(current_schedules()) if device == "ptx" else "1"
    if isinstance(error, PtxError) and error.schedule:
        schedules = named(that_show(error))
    if schedules in ("1", str(case.get("schedules", 1))):
        return command
    if command.startswith("refmoe "):
        return f"{command} --schedules {schedules}"
    if command.startswith("pytest "):
        return f"{command} --refmoe-schedules {schedules}"
    return f"{command}  # under schedules {schedules}"


def _frozen(inputs: Inputs, expected: Expectation) -> tuple[Inputs, Expectation]:
    """The same problem, read-only: a kernel cannot change what it is held against, nor what the next one is given."""
    return _read_only(inputs), replace(expected, outputs=_read_only(expected.outputs))


def _read_only(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    views = {name: array.view() if isinstance(array, np.ndarray) else array for name, array in arrays.items()}
    for view in views.values():
        if isinstance(view, np.ndarray):
            view.setflags(write=False)
    return MappingProxyType(views)


def _whole(kernel: Kernel, outputs: Outputs, expected: Expectation) -> Outputs:
    """`outputs`, which hold every output that the kernel does not leave out.

    Raises:
        Malformed: one is not there.
    """
    for stage in expected.stages:
        name = expected.answers.get(stage.name, stage.name)
        if name not in outputs and not kernel.leaves_out(name):
            raise Malformed(name, f"the kernel gave no such output; it gave {', '.join(outputs) or 'none'}")
    return outputs


def _before(failed: LaunchFailed, expected: Expectation) -> Comparison | None:
    """What the launches before the failed one wrote, if it differs: what stopped that one may come of it."""
    comparison = compare(expected.stages, failed.outputs, expected.outputs)
    return comparison if comparison.stage else None


def _result(
    kernel: Kernel,
    case: Case,
    place: Place | None,
    start: float,
    *,
    verdict: Verdict,
    reason: str | None = None,
    inputs: Inputs | None = None,
    expected: Expectation | None = None,
    launched: int = 0,
    comparison: Comparison | None = None,
    stage: str | None = None,
    refused_as_due: bool = False,
    policies: tuple[str, ...] = (),
    error: Exception | None = None,
) -> Result:
    records = place.launches[launched:] if place is not None else []
    device = place.name if place is not None else case.device
    return Result(
        case,
        verdict,
        id=kernel.identify(case),
        kernel=kernel.name,
        device=device,
        repro=_again(kernel.repro(case), case, device, error),
        expected=refused_as_due,
        evidence="bit-exact" if comparison is not None and comparison.compared > 0 else "none",
        assumption=expected.assumption if expected is not None else None,
        reason=reason,
        stage=comparison.stage if comparison is not None else stage,
        first_mismatch=comparison.first_mismatch if comparison is not None else None,
        differing=tuple(comparison.differing.items()) if comparison is not None else (),
        compared=comparison.compared if comparison is not None else 0,
        arch=place.arch if place is not None else case.arch,
        seconds=time.perf_counter() - start,
        source_sha256=kernel.source_sha256() if inputs is not None else None,
        sources=kernel.sources(),
        compiler=kernel.compiler() if inputs is not None else None,
        input_sha256=input_sha256(inputs) if inputs is not None else None,
        launches=tuple(f"{_entry(record)} {record.grid} x {record.block}" for record in records),
        lane_instructions=sum(record.result.lane_instructions for record in records if record.result),
        made_of=kernel.made_of(case, inputs, place) if verdict.ran and inputs and place is not None else None,
        maps=comparison.maps if comparison is not None else (),
        policies=policies,
        schedules=len(current_schedules()) if device == "ptx" else 1,
        warnings=tuple(
            dict.fromkeys(_in_a_line(each) for record in records if record.result for each in record.result.warnings)
        ),
        error=error,
    )


def _gemm_tile(records: Sequence[LaunchRecord]) -> tuple[int, int] | None:
    """(weight rows, tokens) of the output tile of the launched GEMMs, as their entries say, if they share one."""
    matches = [re.search(r"gemm_(\d+)x(\d+)x\d+", record.kernel.entry) for record in records]
    tiles = {(int(match[1]), int(match[2])) for match in matches if match}
    return tiles.pop() if len(tiles) == 1 else None


def _entry(record: LaunchRecord) -> str:
    """The entry's name; of one that C++ has mangled beyond reading, its source."""
    return record.kernel.source if record.kernel.entry.startswith("_Z") else record.kernel.entry


def _judge(
    outputs: Outputs, masks: Masks, comparison: Comparison, expected: Expectation, launches: Sequence[LaunchRecord]
) -> tuple[Verdict, str | None]:
    kept = {name: np.where(mask, expected.outputs[name], outputs[name]) for name, mask in masks.items()}
    outside = expected.outside({**outputs, **kept})
    if outside is not None:
        return Verdict.OUT_OF_BOUND, outside
    if comparison.stage is not None:
        return Verdict.MISMATCH, None
    for record in launches:
        if found := uncertified(record):
            # Equal here by luck: the chip's approximation may differ from the executor's.
            return Verdict.ERROR, f"approximate instructions whose result is not exact: {found}"
    if not comparison.compared and any(buffer.nbytes for buffer in expected.outputs.values()):
        return Verdict.MISTRUSTED, "not one byte was compared: the kernel leaves out all that is expected"
    return (Verdict.PASS, None) if expected.doubt is None else (Verdict.MISTRUSTED, expected.doubt)


def input_sha256(inputs: Inputs) -> str:
    """SHA-256 of the input arrays of a case: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, array in sorted(inputs.items()):
        if array is not None:
            digest.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
