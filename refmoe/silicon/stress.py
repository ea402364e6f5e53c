"""What one run on a GPU cannot show: that a hundred give the same bytes, and that NVIDIA's checkers find nothing.

compute-sanitizer watches one case of every kernel entry with each of its tools: memcheck (out of bounds, misaligned),
racecheck (shared-memory hazards), initcheck (reads of memory that nothing wrote), synccheck (barriers).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from refmoe.catalog import list_cases, source_sha256
from refmoe.cuda.device import CudaDevice, Device
from refmoe.errors import ArgumentError
from refmoe.families import FAMILIES
from refmoe.families.family import Case
from refmoe.reports.documents import digest_of
from refmoe.reports.environment import current_environment
from refmoe.reports.stress import NO_TOOL, RERUNS, STRESS, TOOLS, failures

#: Watches our kernels alone, not torch's.
OURS = ("--kernel-name", "kernel_substring=refmoe_")
#: What each tool of compute-sanitizer is asked. memcheck would also report calls of the driver that torch
#: makes to find out what there is, and expects to fail. initcheck has to see every kernel: what torch has filled
#: would count as uninitialised.
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "memcheck": ("--report-api-errors", "no", *OURS),
    "racecheck": OURS,
    "synccheck": OURS,
    "initcheck": (),
}
#: For all tools together. Each has an equal part of what those before it have left: the last, which is by far the
#: slowest, gets most.
TOOLS_SECONDS = 480
ERRORS_FOUND = 86  # exit status that we ask of compute-sanitizer when it has found something
NO_CASE_RAN = 3  # exit status of `refmoe parity`
SHOWN_LINES = 6

Progress = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Rerun:
    """A case run many times.

    Attributes:
        kernel: the entry that ran.
        case: the repro string.
        runs: how often.
        different_outputs: how many different outputs came out; 1 is what should be.
    """

    kernel: str
    case: str
    runs: int
    different_outputs: int


@dataclass(frozen=True)
class Sanitized:
    """A tool over the cases: "clean", "errors" or "skipped", and the tool's summary or the reason."""

    tool: str
    verdict: str
    summary: str


def run(runs: int = RERUNS, progress: Progress = iter) -> dict[str, Any]:
    """Rerun one case of every kernel entry on the current GPU and sanitize them; return a JSON-able document.

    Args:
        runs: how often each case runs.
        progress: wraps what is gone through, to show how far it is.

    Raises:
        DeviceUnavailable: no GPU that the kernels are built for.
        ToolchainError: no compiler, or it refuses a kernel.
    """
    device = CudaDevice()
    chosen = one_of_each(cases_of_every_kernel(device.arch), device)
    reruns = [rerun(device, kernel, case, runs) for kernel, case in progress(list(chosen.items()))]
    sanitized, end = list[Sanitized](), time.monotonic() + TOOLS_SECONDS
    for index, tool in progress(list(enumerate(TOOLS))):
        part = (end - time.monotonic()) / (len(TOOLS) - index)
        sanitized.append(sanitize(tool, list(chosen.values()), part))
    return document_of(reruns, sanitized, gpu=device.gpu_name, arch=device.arch)


def document_of(reruns: Sequence[Rerun], sanitized: Sequence[Sanitized], *, gpu: str, arch: str) -> dict[str, Any]:
    """The document of a run: what it ran on, a row for each kernel and each tool, and whether all is well."""
    document: dict[str, Any] = {
        "kind": STRESS.name,
        "gpu": gpu,
        "arch": arch,
        "environment": current_environment(gpu=True).model_dump(mode="json"),
        "source_sha256": {family: source_sha256(family) for family in FAMILIES},
        "reruns": [asdict(result) for result in reruns],
        "sanitizers": [asdict(result) for result in sanitized],
    }
    document["passed"] = not failures(document)
    return {**document, "digest": digest_of(document)}


def cases_of_every_kernel(arch: str) -> Iterator[Case]:
    """The default cases that the GPUs of an arch run: they launch every kernel entry. The quick ones come first."""
    listed = dict.fromkeys(
        case for level in ("quick", "default") for case in list_cases(level, tuple(FAMILIES), "cuda")
    )
    for case in listed:
        # A call that has to be refused launches nothing.
        if case.wrong == "none" and case.family.lacks(case, arch) is None:
            yield case


def one_of_each(cases: Iterable[Case], device: Device) -> dict[str, Case]:
    """The first case of every kernel entry that the cases launch, by entry; each case runs once to find out."""
    first: dict[str, Case] = {}
    for case in cases:
        launched = len(device.launches)
        try:
            case.family.run(case, case.family.inputs(case), device)
        except ArgumentError:
            continue  # a case of a refusal: it launches nothing
        for record in device.launches[launched:]:
            first.setdefault(record.kernel.entry, case)
    return first


def rerun(device: Device, kernel: str, case: Case, runs: int) -> Rerun:
    """Run a case's kernel `runs` times on the same input and count the different outputs."""
    inputs = case.family.inputs(case)
    digests = {_digest(case.family.run(case, inputs, device)) for _ in range(runs)}
    return Rerun(kernel, str(case), runs, len(digests))


def sanitize(tool: str, cases: Sequence[Case], seconds: float) -> Sanitized:
    """One tool over the cases, in a process of its own that may take `seconds`."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return Sanitized(tool, "skipped", NO_TOOL)
    watch = ("--tool", tool, *OPTIONS[tool])
    command = [program, *watch, "--error-exitcode", str(ERRORS_FOUND), sys.executable, "-m", "refmoe", "parity"]
    command += ["--device", "cuda", *(word for case in cases for word in ("--case", str(case)))]
    # torch hands out pieces of large allocations: a step past the end of one would be a step into the next, and memory
    # that somebody wrote once would count as initialised. Uncached, every buffer is an allocation of its own.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # The whole group: the program under test is a child of the tool, and would keep the GPU busy for the next.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Sanitized(tool, "skipped", f"not done after {seconds:.0f} s")
    return _judge(tool, process.returncode, output)


def _judge(tool: str, status: int, output: str) -> Sanitized:
    """What the exit status and the words of a tool mean."""
    lines = [line.strip() for line in re.findall(r"^========= ?(.*)", output, re.MULTILINE)]
    totals = next((line for line in reversed(lines) if "SUMMARY" in line), "")
    refusals = ("Device not supported", "Internal Sanitizer Error")
    refusal = next((line for line in lines if any(words in line for words in refusals)), None)
    if refusal is not None or not totals or status == NO_CASE_RAN:
        return Sanitized(tool, "skipped", f"exit status {status}: {refusal or output.strip()[-300:]}")
    if status == ERRORS_FOUND:
        return Sanitized(tool, "errors", "; ".join([*filter(None, lines[1 : 1 + SHOWN_LINES]), totals]))
    if status != 0:
        # Nothing for the tool, but a case failed: what only the tool's timing brings out is a race as well.
        return Sanitized(tool, "errors", f"exit status {status}: {output.strip()[-300:]}")
    return Sanitized(tool, "clean", totals)


def summary(document: Mapping[str, Any]) -> str:
    """What a run found, in lines: everything that is wrong, each tool, and the totals."""
    lines = [f"FAILED {failure}" for failure in failures(document)]
    lines += [f"{result['tool']}: {result['verdict']}: {result['summary']}" for result in document["sanitizers"]]
    reruns = document["reruns"]
    same = sum(result["different_outputs"] == 1 for result in reruns)
    runs = min((result["runs"] for result in reruns), default=0)
    lines.append(
        f"{len(reruns)} kernels on {document['gpu']} ({document['arch']}), {runs} runs each: {same} gave the same "
        "bytes every time"
    )
    return "\n".join(lines) + "\n"


def _digest(outputs: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(outputs):
        digest.update(outputs[name].tobytes())
    return digest.hexdigest()
