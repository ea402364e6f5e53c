"""Run cases on devices: inputs, reference, kernel, comparison, verdict."""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from refmoe.errors import ArgumentError, RefmoeError
from refmoe.families.case import FAMILIES, Case
from refmoe.families.family import Expectation, FamilyRun, Inputs, LaunchFailed, Outputs
from refmoe.families.quantize_expand import RUNS
from refmoe.museum.cutlass.kernel import cutlass_sha256
from refmoe.verify.compare import Comparison, compare
from refmoe.verify.verdict import Result, Verdict

if TYPE_CHECKING:
    from refmoe.cuda import Device
    from refmoe.cuda.device import LaunchRecord
    from refmoe.ptx import Trace

__all__ = ["Devices", "input_sha256", "kernel_and_reference", "run_case", "run_cases", "source_sha256"]


@dataclass
class Devices:
    """The devices of a run, each opened once, so that a compiled and parsed module serves all its cases.

    Attributes:
        csrc: where kernel sources are taken from; None is the package's own folder.
        checked: whether the executor looks for faults; without, only what a kernel writes tells it from another.
        trace: what takes down who waited on which barrier on the executor, or None.
        multiprocessors: that the executor's chip has; None for those of the arch's own.
        runs: families whose launch is another than the package's, by name: a changed use of a kernel that is not ours.
    """

    csrc: Path | None = None
    checked: bool = True
    trace: Trace | None = None
    runs: Mapping[str, FamilyRun] = field(default_factory=dict)
    multiprocessors: int | None = None
    _open: dict[tuple[str, str], Device] = field(default_factory=dict)

    def get(self, case: Case) -> Device:
        """The case's device.

        Raises:
            refmoe.cuda.DeviceUnavailable: it is not on this machine.
            refmoe.cuda.ToolchainError: there is no compiler to build its kernels with.
        """
        from refmoe.cuda import open_device
        from refmoe.cuda.toolchain import find_toolchain

        key = case.device, case.arch
        if key not in self._open:
            device = open_device(case.device, arch=case.arch or None, csrc=self.csrc)
            find_toolchain()
            if self.multiprocessors is not None:
                device.multiprocessors = self.multiprocessors
            if not self.checked:
                _leave_checks_out(device)
            if self.trace is not None:
                _follow(device, self.trace)
            self._open[key] = device
        return self._open[key]


def _leave_checks_out(device: Device) -> None:
    from refmoe.cuda.device import PtxDevice
    from refmoe.ptx import Checks

    if isinstance(device, PtxDevice):
        device.checks = Checks(bounds=False, uninitialised=False, alignment=False, races=False)


def _follow(device: Device, trace: Trace) -> None:
    from refmoe.cuda.device import PtxDevice

    if not isinstance(device, PtxDevice):
        raise ArgumentError("trace", f"a case on {device.name}", "one on ptx: a GPU tells nobody who waits")
    device.trace = trace


#: Cases that a worker process takes at a time: few enough to share the work out, enough to reuse its modules.
_CHUNK = 8

#: The devices of a worker process, kept between its chunks.
_WORKER_DEVICES = Devices()


def source_sha256(family: str, csrc: Path | None = None) -> str:
    """The hash of a family's kernel source, its headers and build flags, as they are now.

    Raises:
        ArgumentError: there is no such family.
    """
    from refmoe.cuda.launch import Kernel
    from refmoe.cuda.toolchain import CSRC

    if family not in FAMILIES:
        raise ArgumentError("family", repr(family), "one of " + ", ".join(FAMILIES))
    if family == "cutlass_gemm":
        return cutlass_sha256(csrc or CSRC)
    rules = FAMILIES[family]
    hashes = [Kernel(source, "").source_sha256(csrc or CSRC) for source in (rules.source, *rules.others)]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def run_cases(cases: Sequence[Case], *, jobs: int = 1, trace: Trace | None = None) -> Iterator[Result]:
    """Run cases on the package's own kernels and yield the results in order, each as soon as it can be.

    Args:
        cases: what to run.
        jobs: processes to run them in; each compiles nothing twice, but parses and translates PTX for itself.
        trace: what takes down who waited on which barrier; with one process only.
    """
    if jobs == 1:
        devices = Devices(trace=trace)
        for case in cases:
            yield run_case(case, devices)
        return
    chunks = [cases[start : start + _CHUNK] for start in range(0, len(cases), _CHUNK)]
    # Spawned, not forked: a fork of a process with a GPU context or threads is unsafe.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        for results in pool.map(_run_chunk, chunks):
            yield from results
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _run_chunk(cases: Sequence[Case]) -> list[Result]:
    try:
        return [run_case(case, _WORKER_DEVICES) for case in cases]
    except KeyboardInterrupt:
        # A worker would go on with the chunks that wait for it, and the session is over.
        os._exit(1)


def run_case(case: Case, devices: Devices) -> Result:
    """Run one case. Whatever goes wrong inside it becomes its verdict; only Ctrl-C and defects of refmoe get out.

    Raises:
        ArgumentError: the case's activations file cannot be used.
    """
    from refmoe.cuda import DeviceUnavailable, ToolchainError

    start = time.perf_counter()
    try:
        device = devices.get(case)
    except (DeviceUnavailable, ToolchainError) as error:
        return Result(case, Verdict.SKIPPED, reason=str(error), arch=case.arch)
    run = devices.runs.get(case.family, RUNS[case.family])
    if (absent := run.missing(case, device)) is not None:
        return Result(case, Verdict.SKIPPED, reason=absent, arch=device.arch)

    inputs, expected = _expectation(_data_of(case))
    launched = len(device.launches)
    verdict, reason, stage, comparison = Verdict.ERROR, None, None, None
    try:
        outputs = run.run(case, inputs, device)
    except ArgumentError as error:
        verdict, reason = Verdict.UNSUPPORTED, str(error)
    except LaunchFailed as error:
        reason, comparison = str(error), _before(error, expected)
        stage = comparison.stage if comparison else error.stage
    except RefmoeError as error:
        # Compiler messages and executor faults; what a PTX fault says is the finding, so it is kept whole.
        reason = f"{type(error).__name__}: {error}"
    except RuntimeError as error:
        # How torch reports what a kernel did to the GPU; elsewhere it is a defect of refmoe.
        if case.device != "cuda":
            raise
        reason = f"{type(error).__name__}: {error}"
    else:
        records = device.launches[launched:]
        comparison = compare(expected.stages, outputs, expected.outputs, _gemm_tile(records))
        verdict, reason = _judge(outputs, comparison, expected, records)
        stage = comparison.stage
    return _result(case, device, devices.csrc, verdict, reason, stage, comparison, launched, start)


def _before(failed: LaunchFailed, expected: Expectation) -> Comparison | None:
    """What the launches before the failed one wrote, if it differs: what stopped that one may come of it."""
    stages = [stage for stage in expected.stages if stage.name in failed.outputs]
    comparison = compare(stages, failed.outputs, expected.outputs)
    return comparison if comparison.stage else None


def kernel_and_reference(case: Case, devices: Devices) -> tuple[Outputs, Outputs]:
    """What the kernel writes and what it should, by stage name, without a verdict.

    Raises:
        RefmoeError: the kernel refuses the case or faults.
    """
    inputs, expected = _expectation(_data_of(case))
    run = devices.runs.get(case.family, RUNS[case.family])
    return run.run(case, inputs, devices.get(case)), expected.outputs


def _result(
    case: Case,
    device: Device,
    csrc: Path | None,
    verdict: Verdict,
    reason: str | None,
    stage: str | None,
    comparison: Comparison | None,
    launched: int,
    start: float,
) -> Result:
    inputs, expected = _expectation(_data_of(case))
    records = device.launches[launched:]
    return Result(
        case,
        verdict,
        evidence="bit-exact" if comparison is not None and comparison.compared else "none",
        assumption=expected.assumption,
        reason=reason,
        stage=stage,
        first_mismatch=comparison.first_mismatch if comparison else None,
        differing=tuple(comparison.differing.items()) if comparison else (),
        compared=comparison.compared if comparison else 0,
        arch=device.arch,
        seconds=time.perf_counter() - start,
        source_sha256=source_sha256(case.family, csrc),
        input_sha256=input_sha256(inputs),
        launches=tuple(f"{_entry(record)} {record.grid} x {record.block}" for record in records),
        lane_instructions=sum(record.result.lane_instructions for record in records if record.result),
        made_of=RUNS[case.family].made_of(case, device) if records else None,
        maps=comparison.maps if comparison else (),
    )


def _gemm_tile(records: Sequence[LaunchRecord]) -> tuple[int, int] | None:
    """(weight rows, tokens) of the output tile of the launched GEMMs, as their entries say, if they share one."""
    matches = [re.search(r"gemm_(\d+)x(\d+)x\d+", record.kernel.entry) for record in records]
    tiles = {(int(match[1]), int(match[2])) for match in matches if match}
    return tiles.pop() if len(tiles) == 1 else None


def _entry(record: LaunchRecord) -> str:
    """The entry's name; of one that C++ has mangled beyond reading, its source."""
    return record.kernel.family if record.kernel.entry.startswith("_Z") else record.kernel.entry


def _judge(
    outputs: Outputs, comparison: Comparison, expected: Expectation, launches: list[LaunchRecord]
) -> tuple[Verdict, str | None]:
    outside = expected.outside(outputs)
    if outside is not None:
        return Verdict.OUT_OF_BOUND, outside
    if comparison.stage is not None:
        return Verdict.MISMATCH, None
    for record in launches:
        if record.result is not None and record.result.approximate:
            # Equal here by luck: the chip's approximation may differ from the executor's.
            return Verdict.ERROR, f"approximate instructions whose result is not exact: {record.result.approximate}"
    return (Verdict.PASS, None) if expected.doubt is None else (Verdict.MISTRUSTED, expected.doubt)


def _data_of(case: Case) -> Case:
    """The case without its device, its tile and its build: what decides inputs and expectation."""
    plain = next(field.default for field in dataclasses.fields(Case) if field.name == "build")
    return dataclasses.replace(case, device="ptx", arch="", tile="", stages=0, cluster="1x1x1", build=str(plain))


@lru_cache(maxsize=1)
def _expectation(case: Case) -> tuple[Inputs, Expectation]:
    # A case on several archs in a row needs its reference once. More would keep whole case lists in memory.
    run = RUNS[case.family]
    inputs = run.inputs(case)
    return inputs, run.expect(case, inputs)


def input_sha256(inputs: Inputs) -> str:
    """SHA-256 of the input arrays of a case: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, array in sorted(inputs.items()):
        if array is not None:
            digest.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
