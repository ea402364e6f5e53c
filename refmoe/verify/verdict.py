"""The words of a verdict, and what a case's result is."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from refmoe.families.case import Case
from refmoe.families.family import Assumption
from refmoe.families.mismatch_map import MismatchMap

__all__ = ["EVIDENCE", "Result", "Verdict", "exit_status"]


class Verdict(str, enum.Enum):
    """The outcome of a case; the text is what reports hold."""

    PASS = "PASS"
    """Every compared byte is equal, and the data could have failed."""
    MISMATCH = "MISMATCH"
    """A byte differs."""
    OUT_OF_BOUND = "OUT_OF_BOUND"
    """A value lies outside the error bound of the exact sum, so that no rounding of the chip's could explain it."""
    MISTRUSTED = "MISTRUSTED"
    """Equal, but on data that could not have failed."""
    UNSUPPORTED = "UNSUPPORTED"
    """The kernel refuses the case; the reason says why."""
    ERROR = "ERROR"
    """The kernel does not compile, faults, or races."""
    SKIPPED = "SKIPPED"
    """The device is not here; the reason says what is missing."""

    @property
    def fails(self) -> bool:
        """Whether it makes a command exit with 1."""
        return self in (Verdict.MISMATCH, Verdict.OUT_OF_BOUND, Verdict.MISTRUSTED, Verdict.ERROR)

    @property
    def ran(self) -> bool:
        """Whether the kernel was run for it."""
        return self not in (Verdict.UNSUPPORTED, Verdict.SKIPPED)


#: What "bit-exact" on a device proves, and what it takes for granted.
EVIDENCE = {
    "ptx": (
        "bit-exact on ptx: the PTX that nvcc made for the named arch was executed with bounds, initialisation, "
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


@dataclass(frozen=True)
class Result:
    """What became of a case.

    Attributes:
        case: the case.
        verdict: the outcome.
        evidence: what the verdict rests on: "bit-exact", or "none" where nothing was compared.
        assumption: what it takes for granted of tensor cores, None where none takes part.
        reason: of any verdict but PASS and MISMATCH, in a sentence.
        stage: the first stage that differs; if none does, of a layer the one whose launch failed.
        first_mismatch: where and how, see refmoe.verify.compare.
        differing: elements that differ, by stage.
        compared: bytes compared.
        arch: what the kernel was compiled for.
        seconds: of the whole case, reference included.
        source_sha256: of the kernel's source, its headers and build flags.
        input_sha256: of the input arrays, so that a changed generator shows.
        launches: "entry grid x block" of each launch.
        lane_instructions: executed on ptx, 0 on a GPU.
        made_of: of a kernel that is not ours, what it was built from and with, and what of it ran.
        maps: where elements differ, of each stage that differs.
    """

    case: Case
    verdict: Verdict
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
    input_sha256: str | None = None
    launches: tuple[str, ...] = ()
    lane_instructions: int = 0
    made_of: str | None = None
    maps: tuple[MismatchMap, ...] = ()

    @property
    def repro(self) -> str:
        """The command that runs just this case."""
        return f"refmoe repro '{self.case}'"

    @property
    def line(self) -> str:
        """The verdict and what there is to say about it, in one line."""
        return f"{self.verdict.value} {'; '.join(filter(None, (self.reason, self.first_mismatch))) or self.case}"


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """0 if all is good, 1 if a verdict fails, 3 if no case ran."""
    seen = list(verdicts)
    if any(verdict.fails for verdict in seen):
        return 1
    return 0 if any(verdict.ran for verdict in seen) else 3
