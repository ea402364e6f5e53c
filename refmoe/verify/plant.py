"""Break kernels on purpose: a harness that misses a planted fault is itself at fault.

Planting a `Fault` gives broken kernels, one for every family in which it may show. `plant_faults` runs cases on them
until one fails. Then it runs that case on the sound kernel, which has to pass it.
A `Patch` is a fault in refmoe's own kernels: a unified diff in refmoe/families/mutants, applied to a copy of the
sources.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from refmoe.chips import DEFAULT_ARCH, KERNEL_ARCHS
from refmoe.cuda.launch import Entry
from refmoe.cuda.toolchain import CSRC, ToolchainError
from refmoe.errors import RefmoeError
from refmoe.families import FAMILIES
from refmoe.families.family import LEVELS, Case
from refmoe.ptx.findings import unexplained
from refmoe.verify.kernel import Devices, Kernel, Refusal
from refmoe.verify.patches import FilePatch, PatchError, apply_patch, parse_patch
from refmoe.verify.runner import run_case
from refmoe.verify.sweep import Results, sweep
from refmoe.verify.tolerances import accepting
from refmoe.verify.verdict import Result, Verdict
from refmoe.verify.workers import deaf_to_interrupts, processes, worker_pool

#: The folder of the patches, one folder an operation.
MUTANTS = Path(__file__).resolve().parent.parent / "families" / "mutants"

#: Verdicts that catch a fault. MISTRUSTED does not: it says that the data could not tell.
CATCHING = (Verdict.MISMATCH, Verdict.OUT_OF_BOUND, Verdict.ERROR, Verdict.DEPENDS_ON_SCHEDULE)

SoundKernel = Callable[[Case], Kernel]


class Fault(Protocol):
    """A fault that can be planted."""

    @property
    def name(self) -> str:
        """A short name."""

    @property
    def fault(self) -> str:
        """What is wrong, in a sentence."""

    @property
    def kind(self) -> str:
        """The class of faults that it stands for."""

    @property
    def case(self) -> str:
        """The case that is known to catch it, which runs first; "" if none is."""

    def plant(self, scratch: Path) -> Sequence[Kernel]:
        """The broken kernels, one for each family in which the fault may show. Files go below `scratch`."""

    def cases(self) -> Sequence[Case]:
        """The cases to try on them, in order."""


@dataclass(frozen=True)
class FaultResult:
    """The outcome of a planted fault.

    Attributes:
        name, fault, kind: of the fault.
        case: the case that caught it, None if none did.
        verdict: that case's verdict.
        finding: its first mismatch, or the executor's fault.
        cases: cases run until then.
        control: whether the sound kernel passes that case.
        accepted_by: for a fault of a GEMM, the published tolerances that its output passes; None if there is no output.
    """

    name: str
    fault: str
    kind: str
    case: str | None
    verdict: Verdict | None
    finding: str | None
    cases: int
    control: bool
    accepted_by: tuple[str, ...] | None = None

    @property
    def caught(self) -> bool:
        """Whether a case failed with the fault and passes without it."""
        return self.case is not None and self.control

    @property
    def check(self) -> str | None:
        """What caught it: "bytes", a check of the executor ("race", "uninitialised", ...), or None."""
        if self.case is None:
            return None
        if self.verdict is not Verdict.ERROR:
            return "bytes"
        error, _, rest = (self.finding or "").partition(": ")
        return rest.partition(":")[0] if error == "MemoryFault" else _CHECKS.get(error, error)

    @property
    def line(self) -> str:
        """The outcome in a line or three."""
        if self.case is None:
            return f"SURVIVED {self.name}: {self.fault} ({self.cases} cases passed)"
        word = "caught  " if self.control else "UNPROVEN"
        head = f"{word} {self.name}: {self.fault} [{self.check}]"
        tail = "" if self.control else "\n         the sound kernel fails this case too"
        verdict = self.verdict.value if self.verdict else ""
        return f"{head}\n         {verdict} {_first_line(self.finding)}\n         {self.case}{tail}"


#: The families whose faults are weighed by published tolerances.
GEMMS = {"sm12x_gemm", "sm12x_nvfp4_gemm"}

#: What a check of the executor is called, by the error that it raises; a MemoryFault says itself.
_CHECKS = {
    "RaceError": "race",
    "UndefinedError": "undefined",
    "Deadlock": "deadlock",
    "MisuseError": "misuse",
    "StepBudgetExceeded": "endless",
}


def _first_line(text: str | None) -> str:
    """The first line, and the second where the first only announces it."""
    first, _, rest = (text or "").strip().partition("\n")
    return f"{first} {rest.strip().partition(chr(10))[0]}" if first.endswith(":") else first


def plant_faults(
    faults: Sequence[Fault],
    sound: SoundKernel,
    *,
    jobs: int = 1,
    keep: Callable[[FaultResult], None] | None = None,
) -> Iterator[FaultResult]:
    """Plant each fault and run cases on it until one fails. Results have the order of `faults`.

    Args:
        faults: the faults.
        sound: gives the kernel of a case without a fault; with several processes a function of a module's top level.
        jobs: processes to run them in.
        keep: is told of results as they come, which may be before those of the faults before them.

    Raises:
        RefmoeError: a fault cannot be planted.
        refmoe.cuda.ToolchainError: there is no compiler, or a changed source does not compile.
        refmoe.verify.sweep.WorkerLost: workers were lost again and again under the same fault.
    """
    with tempfile.TemporaryDirectory(prefix="refmoe-faults-") as scratch:
        judge = functools.partial(_judge, sound, Path(scratch))
        if jobs == 1:
            for result in map(judge, faults):
                if keep:
                    keep(result)
                yield result
            return
        results, due = Results(), deque(fault.name for fault in faults)
        # The pool ends before the folder does: the files of those at work must not go before they do.
        for _, result in sweep({fault.name: fault for fault in faults}, judge, results, processes(jobs)):
            if keep:
                keep(result)
            while due and due[0] in results.done:
                yield results.done.pop(due.popleft())


def _judge(sound: SoundKernel, scratch: Path, fault: Fault) -> FaultResult:
    """What became of one fault."""
    kernels = {kernel.family.name: kernel for kernel in fault.plant(scratch)}
    ran, catch = 0, None
    for case in _ordered(fault, kernels):
        with unexplained():
            result = run_case(kernels[case.family.name], case)
        if isinstance(result.error, ToolchainError):
            raise result.error  # what does not compile is no fault that a case could catch
        if result.verdict is Verdict.SKIPPED:
            raise RefmoeError(f"fault {fault.name}: cannot be planted here: {result.reason}")
        ran += 1
        if result.verdict in CATCHING:
            catch = result
            break
    if catch is None:
        return FaultResult(fault.name, fault.fault, fault.kind, None, None, None, ran, control=False)
    faulty = kernels[catch.case.family.name]
    return FaultResult(
        fault.name,
        fault.fault,
        fault.kind,
        case=catch.id,
        verdict=catch.verdict,
        finding=catch.first_mismatch or catch.reason,
        cases=ran,
        control=_passes(sound, catch.case, faulty.devices.multiprocessors),
        accepted_by=_accepted_by(faulty, catch),
    )


@dataclass(frozen=True)
class Company:
    """The cases that catch a planted fault.

    Attributes:
        name: of the fault.
        cases: those that catch it, in the order in which they ran.
        ran: cases run.
        whole: whether every case ran; else as many were found as were asked for.
    """

    name: str
    cases: tuple[str, ...]
    ran: int
    whole: bool

    @property
    def alone(self) -> bool:
        """Whether one case stands between this fault and a green run, or none."""
        return self.whole and len(self.cases) < 2


def find_company(faults: Sequence[Fault], *, most: int = 2, jobs: int = 1) -> Iterator[Company]:
    """Plant each fault and run its cases until `most` fail, or all have run. Results have the order of `faults`.

    Args:
        faults: the faults.
        most: how many cases are enough.
        jobs: processes to run them in.

    Raises:
        RefmoeError: a fault cannot be planted.
        refmoe.cuda.ToolchainError: there is no compiler, or a changed source does not compile.
    """
    with tempfile.TemporaryDirectory(prefix="refmoe-faults-") as scratch:
        find = functools.partial(_company, Path(scratch), most)
        if jobs == 1:
            yield from map(find, faults)
            return
        with worker_pool(jobs) as pool:
            with deaf_to_interrupts():
                found = pool.map(find, faults)
            yield from found


def _company(scratch: Path, most: int, fault: Fault) -> Company:
    kernels = {kernel.family.name: kernel for kernel in fault.plant(scratch)}
    cases = _ordered(fault, kernels)
    caught: list[str] = []
    for ran, case in enumerate(cases, 1):
        with unexplained():
            result = run_case(kernels[case.family.name], case)
        if isinstance(result.error, ToolchainError):
            raise result.error
        if result.verdict in CATCHING:
            caught.append(result.id)
            if len(caught) == most:
                return Company(fault.name, tuple(caught), ran, whole=ran == len(cases))
    return Company(fault.name, tuple(caught), len(cases), whole=True)


def _ordered(fault: Fault, kernels: dict[str, Kernel]) -> list[Case]:
    """The cases of the fault's families, the one that is known to catch it first."""
    cases = [case for case in fault.cases() if case.family.name in kernels]
    return sorted(cases, key=lambda case: str(case) != fault.case)


@functools.cache
def _passes(sound: SoundKernel, case: Case, multiprocessors: int | None) -> bool:
    """Whether the sound kernel passes a case on as many multiprocessors as the faulty one had; None for the chip's."""
    kernel = sound(case)
    if kernel.devices.multiprocessors != multiprocessors:
        devices = replace(kernel.devices, multiprocessors=multiprocessors, _open={})
        kernel = replace(kernel, devices=devices)
    return run_case(kernel, case).verdict is Verdict.PASS


def _accepted_by(kernel: Kernel, catch: Result) -> tuple[str, ...] | None:
    """Of a GEMM the published tolerances that the faulty output passes, on the ordinary data of published tests.

    The case that caught the fault gives shape, routing and tile; its data is replaced by Gaussian data, its output by
    BF16 into zeroed memory, and scales are padded with zeros. The executor looks for nothing here, as a GPU would not.
    """
    import ml_dtypes

    family = kernel.family
    if not {family.name, family.base} & GEMMS:
        return None
    terms = {} if family.base else {"alpha": "distinct", "bias": "distinct"}
    ordinary = catch.case.having(fill="gaussian", dtype="bf16", poison=0, **terms)
    bare = kernel.unchecked()
    inputs, expected = bare.problem(ordinary)
    try:
        kernel_output = bare.run(ordinary, inputs, expected, bare.place(ordinary))["out"]
    except (RefmoeError, Refusal):
        return None  # it hangs or faults even where nothing is looked for
    return accepting(*(bits.view(ml_dtypes.bfloat16) for bits in (kernel_output, expected.outputs["out"])))


@dataclass(frozen=True)
class Patch:
    """A fault in refmoe's own kernels.

    Attributes:
        name: of the patch file, without its suffix.
        fault, kind, case: see `Fault`.
        patches: the change.
    """

    name: str
    fault: str
    kind: str
    case: str
    patches: tuple[FilePatch, ...]

    def plant(self, scratch: Path) -> Sequence[Kernel]:
        """The kernels of every family that launches a changed source, whole layers included."""
        tree = patched_sources(self, scratch / self.name)
        # One case catches most faults, and it launches one entry of many.
        devices = Devices(csrc=tree, entry_by_entry=True)
        changed = _changed(tree)
        return [Kernel(family, devices) for family in FAMILIES.values() if changed.intersection(family.sources)]

    def cases(self) -> Sequence[Case]:
        """The cases of the quick level, which are cheap and touch every line, then those of the default level."""
        return _listed()


@functools.cache
def _listed() -> tuple[Case, ...]:
    levels = [family.level(level) for level in LEVELS[:2] for family in FAMILIES.values()]
    return tuple(dict.fromkeys(case.on("ptx", _arch(case)) for level in levels for case in level if not case.refusal))


def _arch(case: Case) -> str:
    """The default arch, or the first one that has a case's instructions."""
    return next(arch for arch in (DEFAULT_ARCH, *KERNEL_ARCHS) if case.family.lacks(case, arch) is None)


def _changed(tree: Path) -> set[str]:
    """The sources in which `tree` differs from the package, or in a header that they include."""
    sources = {source for family in FAMILIES.values() for source in family.sources}
    return {source for source in sources if Entry(source, "").source_sha256(tree) != Entry(source, "").source_sha256()}


def load_patches(folder: Path = MUTANTS) -> list[Patch]:
    """All patches below a folder, by name.

    Raises:
        PatchError: a malformed patch, or one without its header lines.
    """
    paths = sorted(folder.rglob("*.patch"), key=lambda path: path.name)
    return [_patch(path.name, path.read_text(encoding="utf-8")) for path in paths]


@functools.cache
def _patch(file: str, text: str) -> Patch:
    """A patch by what stands in its file: the gate asks for all of them with each report."""
    try:
        header, patches = parse_patch(text)
    except PatchError as error:
        raise PatchError(f"{file}: {error}") from error
    fields = dict(line.split(": ", 1) for line in header.splitlines() if ": " in line)
    if not {"Fault", "Class"} <= fields.keys():
        raise PatchError(f"{file}: needs the lines 'Fault: ...' and 'Class: ...' in front of the diff")
    named = fields["Fault"], fields["Class"], fields.get("Case", "")
    return Patch(file.removesuffix(".patch"), *named, tuple(patches))


def patched_sources(patch: Patch, folder: Path) -> Path:
    """Copy the CUDA sources to `folder`, which must not exist yet, apply the patch, and return the folder.

    Raises:
        PatchError: the patch does not fit the sources.
    """
    shutil.copytree(CSRC, folder)
    try:
        apply_patch(list(patch.patches), folder)
    except PatchError as error:
        raise PatchError(f"mutant {patch.name}: {error}") from error
    return folder
