"""The words of a verdict, and the result of a case."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from refmoe.families.family import Assumption, Case
from refmoe.verify.compare import MismatchMap


class Verdict(str, enum.Enum):
    """The outcome of a case; the text is what reports hold."""

    PASS = "PASS"
    """Every compared byte is equal, and the data could have failed."""
    MISMATCH = "MISMATCH"
    """A byte differs."""
    OUT_OF_BOUND = "OUT_OF_BOUND"
    """A value lies outside the error bound of the exact sum: no rounding of the chip could explain it."""
    MISTRUSTED = "MISTRUSTED"
    """Equal, but on data that could not have failed."""
    UNSUPPORTED = "UNSUPPORTED"
    """The kernel refuses the case; the reason says why. It fails unless the case list expects this refusal."""
    ERROR = "ERROR"
    """The kernel does not compile, faults, or races."""
    DEPENDS_ON_SCHEDULE = "DEPENDS_ON_SCHEDULE"
    """Two legal schedules of one launch give different bytes; the reason names both."""
    SKIPPED = "SKIPPED"
    """The device is not here; the reason says what is missing."""

    @property
    def fails(self) -> bool:
        """Whether the verdict makes a command exit with 1, with every case list."""
        return self in (
            Verdict.MISMATCH, Verdict.OUT_OF_BOUND, Verdict.MISTRUSTED, Verdict.ERROR, Verdict.DEPENDS_ON_SCHEDULE,
        )  # fmt: skip

    @property
    def ran(self) -> bool:
        """Whether the kernel ran."""
        return self not in (Verdict.UNSUPPORTED, Verdict.SKIPPED)


#: What "bit-exact" on a device proves, and what it takes for granted.
EVIDENCE = {
    "ptx": (
        "bit-exact on ptx: the PTX that the compiler made for the named arch was executed with bounds, initialisation, "
        "alignment and race checks, and every output byte, poisoned padding included, equals the reference. Proven: "
        "scheduling, indexing, layouts and every scalar instruction as the PTX manual defines it. Assumed: ptxas and "
        "the chip follow that manual. These kernels hold no approximate result and nothing that ptxas may contract; "
        "what a tensor-core instruction adds up to is assumed from the model that is named with the kernel."
    ),
    "cuda": (
        "bit-exact on cuda: the kernel ran on the named GPU, and every output byte, poisoned padding included, equals "
        "the reference. Proven for that GPU and driver. Not seen there: out-of-bounds or uninitialised reads that "
        "happened to be harmless."
    ),
}


def schedule_evidence(count: int) -> str:
    """What it proves that launches ran under so many schedules."""
    return (
        f"under {count} schedules: every launch on the executor ran under {count} legal schedules (blocks, warps and "
        "divergent lanes in another order, asynchronous copies landing early and late, waits failing early, atomics in "
        "another order), and left the same bytes under all. Not proven: that no other schedule leaves others."
    )


@dataclass(frozen=True)
class Result:
    """The result of a case on a kernel.

    Attributes:
        case: the case.
        verdict: the outcome.
        id: the case's name in reports: the repro string; for a user's kernel with the kernel's name before it.
        kernel: the name of a user's kernel, None for ours and the museum's.
        device: where it ran: "ptx", "cuda", or "host" for a user's kernel on this machine's processor.
        repro: the command that runs just this case.
        expected: for UNSUPPORTED, whether the case list expects this refusal.
        evidence: what the verdict rests on: "bit-exact", or "none" where nothing was compared.
        assumption: what it assumes of tensor cores, None where none takes part.
        reason: a sentence, for every verdict but PASS and MISMATCH.
        stage: the first stage that differs; if none does, of a layer the one whose launch failed.
        first_mismatch: where and how, see refmoe.verify.compare.
        differing: elements that differ, by stage.
        compared: bytes compared.
        arch: what the kernel was compiled for.
        seconds: of the whole case, reference included.
        source_sha256: of all that decides the kernel's result, see refmoe.verify.source.
        sources: for a user's kernel, the files and functions that the hash covers.
        compiler: what compiled it, None where nobody did.
        input_sha256: of the input arrays, so that a changed generator shows.
        launches: "entry grid x block" of each launch.
        lane_instructions: executed on ptx, 0 on a GPU.
        made_of: for a kernel that is not refmoe's own, what it was built from and with, and what of it ran.
        maps: where elements differ, one map for each stage that differs.
        policies: for a quantizing kernel, the policies whose bytes it gave instead of its contract's.
        schedules: legal schedules under which each launch on the executor ran; 1 for its own order alone, and on a GPU.
        warnings: what launches on the executor did against the letter of PTX that is not known to go wrong.
        error: the exception that the kernel raised, for the process that ran it; reports hold its text.
    """

    case: Case
    verdict: Verdict
    id: str = ""
    kernel: str | None = None
    device: str = ""
    repro: str = ""
    expected: bool = False
    evidence: str = "none"
    assumption: Assumption | None = None
    reason: str | None = None
    stage: str | None = None
    first_mismatch: str | None = None
    differing: tuple[tuple[str, int], ...] = ()
    compared: int = 0
    arch: str = ""
    seconds: float = 0.0
    source_sha256: str | None = None
    sources: tuple[str, ...] = ()
    compiler: str | None = None
    input_sha256: str | None = None
    launches: tuple[str, ...] = ()
    lane_instructions: int = 0
    made_of: str | None = None
    maps: tuple[MismatchMap, ...] = ()
    policies: tuple[str, ...] = ()
    schedules: int = 1
    warnings: tuple[str, ...] = ()
    error: Exception | None = None

    @property
    def fails(self) -> bool:
        """Whether it makes a command exit with 1: a failing verdict, or a refusal that is not in the case list."""
        return self.verdict.fails or (self.verdict is Verdict.UNSUPPORTED and not self.expected)

    def __bool__(self) -> bool:
        """Whether the case ran and passed, so that `assert refmoe.repro(...)` fails for anything else."""
        return self.verdict is Verdict.PASS

    @property
    def line(self) -> str:
        """The verdict with its reason and its first mismatch, in one line."""
        unexpected = "not in the case list: " if self.verdict is Verdict.UNSUPPORTED and not self.expected else ""
        # Of a mismatch the place comes first, then what may explain it.
        parts = (self.reason, self.first_mismatch)[:: -1 if self.verdict is Verdict.MISMATCH else 1]
        said = "; ".join(filter(None, parts)) or str(self.case)
        return f"{self.verdict.value} {unexpected}{said}"

    def __str__(self) -> str:
        """The verdict and what there is to say about it, and the command that runs just this case."""
        return "\n".join([self.line, *(f"warning: {each}" for each in self.warnings), f"repro: {self.repro}"])

    __repr__ = __str__


def exit_status(results: Iterable[Result]) -> int:
    """0 if all is good, 1 if a result fails, 3 if no case ran."""
    seen = list(results)
    if any(result.fails for result in seen):
        return 1
    return 0 if any(result.verdict.ran for result in seen) else 3
