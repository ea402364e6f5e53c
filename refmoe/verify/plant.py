"""Break the kernels on purpose: a harness that misses a planted fault is itself at fault.

A mutant is a patch in refmoe/families/mutants, applied to a copy of the CUDA sources. Its text in front of the diff
says what is wrong and which known class of fault it stands for.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes

from refmoe.errors import RefmoeError
from refmoe.families.case import FAMILIES, Case
from refmoe.families.suites import list_cases
from refmoe.verify.patches import FilePatch, PatchError, apply_patch, parse_patch
from refmoe.verify.runner import Devices, kernel_and_reference, run_case, source_sha256
from refmoe.verify.tolerances import accepting
from refmoe.verify.verdict import Result, Verdict

__all__ = ["CATCHING", "MUTANTS", "Mutant", "MutantResult", "load_mutants", "mutated_sources", "run_mutants"]

#: The folder of the patches.
MUTANTS = Path(__file__).resolve().parent.parent / "families" / "mutants"

#: Verdicts that catch a fault. MISTRUSTED does not: it says that the data could not tell.
CATCHING = (Verdict.MISMATCH, Verdict.OUT_OF_BOUND, Verdict.ERROR)


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Attributes:
        name: of the patch file, without its suffix.
        fault: what is wrong, in a sentence.
        kind: the class of faults that it stands for.
        patches: the change.
    """

    name: str
    fault: str
    kind: str
    patches: tuple[FilePatch, ...]


@dataclass(frozen=True)
class MutantResult:
    """What became of a mutant.

    Attributes:
        name, fault, kind: of the mutant.
        case: the case that caught it, None if none did.
        verdict: that case's verdict.
        finding: its first mismatch, or the executor's fault.
        cases: cases run until then.
        control: whether the unpatched kernel passes that case.
        accepted_by: of a GEMM's mutant the published tolerances that its output passes; None if there is no output.
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
        """Whether a case failed on the mutant and passes without it."""
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
        tail = "" if self.control else "\n         the unpatched kernel fails this case too"
        verdict = self.verdict.value if self.verdict else ""
        return f"{head}\n         {verdict} {_first_line(self.finding)}\n         {self.case}{tail}"


#: What a check of the executor is called, by the error that it raises; a MemoryFault says itself.
_CHECKS = {"RaceError": "race", "Deadlock": "deadlock", "MisuseError": "misuse", "StepBudgetExceeded": "endless"}


def _first_line(text: str | None) -> str:
    """The first line, and the second where the first only announces it."""
    first, _, rest = (text or "").strip().partition("\n")
    return f"{first} {rest.strip().partition(chr(10))[0]}" if first.endswith(":") else first


def load_mutants(folder: Path = MUTANTS) -> list[Mutant]:
    """All mutants of a folder, by name.

    Raises:
        PatchError: a malformed patch, or one without its two header lines.
    """
    return [_load(path) for path in sorted(folder.glob("*.patch"))]


def _load(path: Path) -> Mutant:
    try:
        header, patches = parse_patch(path.read_text(encoding="utf-8"))
    except PatchError as error:
        raise PatchError(f"{path.name}: {error}") from error
    fields = dict(line.split(": ", 1) for line in header.splitlines() if ": " in line)
    if not {"Fault", "Class"} <= fields.keys():
        raise PatchError(f"{path.name}: needs the lines 'Fault: ...' and 'Class: ...' in front of the diff")
    return Mutant(path.stem, fields["Fault"], fields["Class"], tuple(patches))


def run_mutants(mutants: Sequence[Mutant], cases: Iterable[Case], *, jobs: int = 1) -> Iterator[MutantResult]:
    """Run each mutant on the ptx device until a case catches it; results in the order of `mutants`.

    The quick list goes first, as it is cheap and touches every line; then the default list, then the rest of `cases`.

    Args:
        mutants: the faults.
        cases: further cases; only those for the default arch of ptx count.
        jobs: processes to run them in.

    Raises:
        PatchError: a patch does not fit the sources.
        refmoe.cuda.ToolchainError: there is no compiler, or a mutant does not compile.
    """
    known = [case for level in ("quick", "default") for case in list_cases(level, arch="sm_120a")]
    further = [case for case in cases if (case.device, case.arch) == ("ptx", "sm_120a")]
    ordered = list(dict.fromkeys([*known, *further]))
    with tempfile.TemporaryDirectory(prefix="refmoe-mutants-") as scratch:
        trees = [mutated_sources(mutant, Path(scratch) / mutant.name) for mutant in mutants]
        _compile(trees)
        judge = functools.partial(_judge, ordered)
        if jobs == 1:
            yield from map(judge, mutants, trees)
            return
        pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
        try:
            yield from pool.map(judge, mutants, trees)
        finally:
            # Waits for those at work: their trees must not go before they do.
            pool.shutdown(wait=True, cancel_futures=True)


def _judge(cases: Sequence[Case], mutant: Mutant, tree: Path) -> MutantResult:
    """What became of one mutant."""
    ran, catch = _hunt(tree, cases)
    return MutantResult(
        mutant.name,
        mutant.fault,
        mutant.kind,
        case=str(catch.case) if catch else None,
        verdict=catch.verdict if catch else None,
        finding=(catch.first_mismatch or catch.reason) if catch else None,
        cases=ran,
        control=_passes(catch.case) if catch else False,
        accepted_by=_accepted_by(tree, catch.case) if catch else None,
    )


@functools.cache
def _passes(case: Case) -> bool:
    """Whether the package's own kernel passes a case."""
    return run_case(case, _package()).verdict is Verdict.PASS


@functools.cache
def _package() -> Devices:
    return Devices()


def _accepted_by(tree: Path, case: Case) -> tuple[str, ...] | None:
    """The published tolerances that the mutant's output passes, on the ordinary data of published tests.

    The case that caught the mutant gives shape, routing and tile; its data is replaced by Gaussian data, its output by
    BF16 into zeroed memory, and scales are padded with zeros. The executor looks for nothing here, as a GPU would not.
    """
    if case.family != "sm12x_gemm":
        return None
    ordinary = dataclasses.replace(case, fill="gaussian", dtype="bf16", alpha="distinct", bias="distinct", poison=0)
    try:
        kernel, reference = kernel_and_reference(ordinary, Devices(csrc=tree, checked=False))
    except RefmoeError:
        return None  # it hangs or faults even where nothing is looked for
    return accepting(*(bits["out"].view(ml_dtypes.bfloat16) for bits in (kernel, reference)))


def mutated_sources(mutant: Mutant, folder: Path) -> Path:
    """Copy the CUDA sources to `folder`, which must not exist yet, apply the mutant, and return the folder.

    Raises:
        PatchError: the patch does not fit the sources.
    """
    from refmoe.cuda.toolchain import CSRC

    shutil.copytree(CSRC, folder)
    try:
        apply_patch(list(mutant.patches), folder)
    except PatchError as error:
        raise PatchError(f"mutant {mutant.name}: {error}") from error
    return folder


def _changed_families(folder: Path) -> list[str]:
    """The families of one kernel whose sources the patch touches, headers included."""
    single = [family for family, rules in FAMILIES.items() if not rules.others]
    return [family for family in single if source_sha256(family, folder) != source_sha256(family)]


def _compile(trees: Iterable[Path]) -> None:
    """Compile all mutants at once, so that ninja can use every core."""
    from refmoe.cuda.launch import Kernel
    from refmoe.cuda.toolchain import Target, build

    build(
        Target(Kernel(FAMILIES[family].source, "").source(tree), "sm_120a", "ptx")
        for tree in trees
        for family in _changed_families(tree)
    )


def _hunt(tree: Path, cases: Sequence[Case]) -> tuple[int, Result | None]:
    """How many cases ran, and the first that failed."""
    devices = Devices(csrc=tree)
    families = _changed_families(tree)
    ran = 0
    for case in cases:
        if case.family not in families:
            continue
        result = run_case(case, devices)
        ran += 1
        if result.verdict in CATCHING:
            return ran, result
    return ran, None
