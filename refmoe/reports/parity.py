"""The parity report: what became of every case of a run; how it is made, written, read and checked.

The keys `schema_version`, `cases[]` with `id, device, arch, verdict, evidence, stage, first_mismatch, repro,
source_sha256`, and `digest` stay what they are; a new meaning takes a new schema version.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refmoe.errors import ArgumentError
from refmoe.reports.documents import EDITED, PresentHash, ReportError, digest_of, is_intact, read_document, version_text
from refmoe.reports.environment import Environment
from refmoe.verify.source import sha256_of, source_files
from refmoe.verify.tolerances import TOLERANCES
from refmoe.verify.verdict import EVIDENCE, Result, Verdict

if TYPE_CHECKING:
    from refmoe.verify.plant import FaultResult

SCHEMA_VERSION = "1"

#: Cases of a report that keep their maps of what differs: a kernel that is wrong everywhere would fill the disk.
MAPPED_CASES = 100

#: Cases that the gate refuses with a sentence of their own, of each verdict in each report; the rest is counted.
NAMED_CASES = 5

#: What a verdict means for whoever wants to merge.
_REFUSED = {
    Verdict.MISMATCH: "bytes differ",
    Verdict.OUT_OF_BOUND: "values differ more than any rounding explains",
    Verdict.MISTRUSTED: "equal on data that could not have failed, which proves nothing",
    Verdict.UNSUPPORTED: "a refusal that the case list does not expect",
    Verdict.ERROR: "the kernel did not run to its end",
}


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


_M = TypeVar("_M", bound=_Model)


class MismatchMapRecord(_Model):
    """Where elements of a stage differ: counts on a grid of at most 64 x 64 cells."""

    stage: str
    row_axis: str = Field(description="what rows count: row, scale row, token")
    column_axis: str = Field(description="what columns count: K-block, weight row, column")
    rows: int = Field(description="how many rows there are")
    columns: int
    row_step: int = Field(description="rows that a cell spans; the last cell may span fewer")
    column_step: int
    expert_rows: list[int] = Field(description="the first row of each expert, where rows are grouped by expert")
    tile: list[int] | None = Field(
        description="[rows, columns] of the GEMM's output tile; tiles begin anew at the first row of every expert"
    )
    counts: list[list[int]] = Field(description="differing elements by cell")
    first_row: int = Field(description="with the next three: the smallest rectangle that holds all that differs")
    last_row: int
    first_column: int
    last_column: int


class CaseRecord(_Model):
    """The result of one case."""

    id: str = Field(description="the repro string, which is the case; of a user's kernel FILE::NAME/ comes before it")
    family: str = Field(description="the kernel family")
    device: Literal["ptx", "cuda", "host"] = Field(
        description="where it ran: the PTX executor, a GPU, or, of a user's kernel alone, this machine's processor"
    )
    arch: str = Field(description="what the kernel was compiled for")
    verdict: Verdict
    evidence: str = Field(description="what the verdict rests on: bit-exact, or none where nothing was compared")
    model: str | None = Field(None, description="the tensor cores' accumulation model that it assumes, if any")
    model_evidence: str | None = Field(
        None, description="what that model rests on: hardware-checked, published or extrapolated"
    )
    reason: str | None = Field(description="of any verdict but PASS and MISMATCH")
    stage: str | None = Field(description="the first stage that differs; if none does, the one that failed")
    first_mismatch: str | None = Field(description="where the first difference is and what it is")
    repro: str = Field(description="the command that runs just this case")
    expected: bool | None = Field(
        None, description="of UNSUPPORTED: whether the case list expects this refusal; one that it does not fails"
    )
    source_sha256: str | None = Field(
        description="of all that decides the kernel's result: its sources and their headers without comments and "
        "blanks, the host code that launches it, its build flags"
    )
    sources: list[str] | None = Field(
        None,
        description="of a user's kernel the files and functions that source_sha256 is of: FILE or FILE::FUNCTION, "
        "below the project's folder",
    )
    compiler: str | None = Field(None, description="what compiled the kernel, where that is known")
    input_sha256: str | None = Field(description="of the input arrays")
    seed: int
    compared: int = Field(description="bytes compared")
    differing: dict[str, int] = Field(description="elements that differ, by stage")
    launches: list[str] = Field(description="entry, grid and block of each launch")
    lane_instructions: int = Field(description="executed on ptx; 0 on a GPU")
    made_of: str | None = Field(
        None,
        description="of a kernel that is not ours: what it was built from and with, what ran, what was only compiled",
    )
    kernel: str | None = Field(
        None,
        description="of a user's kernel under the family's contract: FILE::NAME, or MODULE::NAME if a package has it",
    )
    seconds: float
    maps: list[MismatchMapRecord] | None = Field(
        None,
        description=f"where elements differ, by stage; of the first {MAPPED_CASES} cases of a report in which any do",
    )

    @property
    def fails(self) -> bool:
        """Whether its verdict fails, or it is a refusal that the case list does not expect."""
        return self.verdict.fails or self.expected is False

    @property
    def finding(self) -> str:
        """What there is to say of the verdict: of a MISMATCH the place first, then what may explain it.

        "codes[5, 421], block (5, 13) lane 5: kernel gave 0x6F (120), reference has 0x70 (128), 1 ulp, scale 0x7B; 3 of
        23040 differ"
        """
        place = (self.first_mismatch or "").replace("  ", ", ", 1)
        place = re.sub(r"\bkernel (.+?) reference ", r"kernel gave \1, reference has ", place, count=1)
        parts = self.reason, place
        return "; ".join(filter(None, parts[::-1] if self.verdict is Verdict.MISMATCH else parts))

    def stale(self, present: str) -> bool:
        """Whether the kernel ran from other sources than those whose hash is `present`."""
        return self.verdict.ran and self.source_sha256 != present


class MutantRecord(_Model):
    """What became of one planted fault."""

    name: str
    fault: str = Field(description="what was made wrong")
    kind: str = Field(description="the class of faults that it stands for")
    caught: bool = Field(description="a case failed on it that the unpatched kernel passes")
    case: str | None = Field(description="that case")
    verdict: Verdict | None = Field(description="its verdict on the mutant")
    finding: str | None = Field(description="its first mismatch on the mutant, or the executor's fault")
    cases: int = Field(description="cases run until then")
    check: str | None = Field(
        None, description="what caught it: bytes, or the executor's check: race, uninitialised, deadlock, misuse, ..."
    )
    accepted_by: list[str] | None = Field(
        None, description="of a GEMM's mutant the published tolerances that its output passes; null if it has no output"
    )


class ToleranceRecord(_Model):
    """A tolerance of another project, by which mutants are weighed and no verdict is made."""

    name: str
    source: str = Field(description="the project and the test")
    rule: str = Field(description="what it accepts, d = kernel - reference")


class Report(_Model):
    """All results of one run."""

    kind: Literal["parity"] = "parity"
    schema_version: Literal["1"] = "1"
    created: str = Field(description="UTC, ISO 8601")
    command: str = Field(description="what was run")
    environment: Environment
    evidence: dict[str, str] = Field(
        description="by device: what bit-exact proves there and what it assumes; by model: what it rests on"
    )
    summary: dict[str, int] = Field(description="cases by verdict")
    seconds: float
    cases: list[CaseRecord]
    mutants: list[MutantRecord] = Field(description="planted faults, if they were asked for")
    tolerances: list[ToleranceRecord] = Field(
        [], description="the published tolerances that the mutants of GEMMs were weighed by"
    )
    digest: str = Field(description="SHA-256 of the canonical JSON (sorted keys, no spaces, UTF-8) without this key")

    @property
    def proves(self) -> list[str]:
        """What a pass proves, as `evidence` has it; nothing of a run in which a case fails or none passed."""
        passed = any(case.verdict is Verdict.PASS for case in self.cases) and not any(case.fails for case in self.cases)
        return list(self.evidence.values()) if passed and all(mutant.caught for mutant in self.mutants) else []


def make_report(
    results: Sequence[Result],
    *,
    command: str,
    environment: Environment,
    seconds: float,
    mutants: Sequence[FaultResult] = (),
) -> Report:
    """The report of `results`, and of `mutants` if any ran."""
    devices = sorted({result.device for result in results})
    assumptions = {result.assumption.model: result.assumption.text for result in results if result.assumption}
    return assemble_report(
        list(_records(results)),
        evidence={**{device: EVIDENCE[device] for device in devices}, **assumptions},
        command=command,
        environment=environment,
        seconds=seconds,
        mutants=mutants,
    )


def assemble_report(
    records: Sequence[CaseRecord],
    *,
    evidence: Mapping[str, str],
    command: str,
    environment: Environment,
    seconds: float,
    mutants: Sequence[FaultResult] = (),
) -> Report:
    """The report of cases that are records already; `evidence` says what its devices and models prove and assume."""
    document: dict[str, Any] = {
        "kind": "parity",
        "schema_version": SCHEMA_VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "environment": environment.model_dump(mode="json"),
        "evidence": dict(evidence),
        "summary": count_verdicts([record.verdict for record in records]),
        "seconds": round(seconds, 3),
        "cases": [record.model_dump(mode="json") for record in records],
        "mutants": [_taken(MutantRecord, mutant).model_dump(mode="json") for mutant in mutants],
        "tolerances": [_taken(ToleranceRecord, rule).model_dump(mode="json") for rule in TOLERANCES] if mutants else [],
    }
    return Report.model_validate({**document, "digest": digest_of(document)})


def count_verdicts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Cases by verdict, in the order of the enum, those that occur."""
    return {verdict.value: count for verdict in Verdict if (count := verdicts.count(verdict))}


def _records(results: Sequence[Result]) -> Iterator[CaseRecord]:
    mapped = 0
    for result in results:
        mapped += bool(result.maps)
        yield record_of(result, maps=mapped <= MAPPED_CASES)


def record_of(result: Result, maps: bool = True) -> CaseRecord:
    """What a report holds of a result; with its maps of what differs, or without."""
    case, assumption = result.case, result.assumption
    drawn = [MismatchMapRecord(**dataclasses.asdict(item)) for item in result.maps] if maps else []
    return _taken(
        CaseRecord,
        result,
        family=case.family.name,
        seed=case.seed,
        model=assumption.model if assumption else None,
        model_evidence=assumption.evidence if assumption else None,
        expected=result.expected if result.verdict is Verdict.UNSUPPORTED else None,
        sources=result.sources or None,
        differing=dict(result.differing),
        seconds=round(result.seconds, 4),
        maps=drawn or None,
    )


def _taken(record: type[_M], source: object, **given: Any) -> _M:
    """A record of `given`, and of the attributes of `source` that have the names of its other fields."""
    named = {name: getattr(source, name) for name in record.model_fields if name not in given and hasattr(source, name)}
    return record.model_validate({**named, **given})


def report_text(report: Report) -> str:
    """The report as JSON to read: one case a line."""
    document = report.model_dump(mode="json")
    cases = [json.dumps(case, sort_keys=True, ensure_ascii=False) for case in document.pop("cases")]
    head = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
    body = ",\n  ".join(cases)
    return head[: -len("\n}")] + f',\n "cases": [\n  {body}\n ]\n}}\n'


def read_report(path: Path) -> Report:
    """A report from a file, its schema and its digest checked.

    Raises:
        ReportError: it is no report, one of another schema version, or one that was edited.
    """
    return check_report(path, read_document(path))


def check_report(path: Path, document: Mapping[str, Any]) -> Report:
    """`document` as a report; see `read_report`."""
    if "schema_version" not in document or "cases" not in document:
        raise ReportError(f"{path}: JSON, but no refmoe report: it has no schema_version or no cases")
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        raise ReportError(f"{path}: {version_text(version, SCHEMA_VERSION)}")
    if not is_intact(document):
        raise ReportError(f"{path}: {EDITED}")
    try:
        return Report.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ReportError(f"{path}: no valid report: {place}: {first['msg']}") from error


def schema_text() -> str:
    """The JSON schema of a report, as published in docs/report.schema.json."""
    schema = Report.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"refmoe report, schema version {SCHEMA_VERSION}"
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def refusals_of(path: Path, report: Report, present: PresentHash) -> list[str]:
    """Why the gate refuses the report at `path`, a sentence each: its verdicts, its planted faults, its sources."""
    survivors = [mutant for mutant in report.mutants if not mutant.caught]
    return [
        *_refused_cases(path, report.cases),
        *(f"{path}: the planted fault {mutant.name} was not caught: {mutant.fault}" for mutant in survivors),
        *_stale_families(path, report.cases, present),
        *_stale_user_kernels(path, report.cases),
    ]


def _refused_cases(path: Path, cases: Sequence[CaseRecord]) -> list[str]:
    if not cases:
        return [f"{path}: an empty report: it holds no case, so it proves nothing"]
    twice = [name for name, count in Counter(case.id for case in cases).items() if count > 1]
    refusals = [f"{path}: case {name} is there twice" for name in twice[:NAMED_CASES]]
    if len(twice) > NAMED_CASES:
        refusals.append(f"{path}: {len(twice) - NAMED_CASES:,} more cases are there twice")
    if not any(case.verdict.ran for case in cases):
        refusals.append(f"{path}: no case ran: {cases[0].verdict.value}: {cases[0].reason}")
    for verdict, meaning in _REFUSED.items():
        refusals += _refused_verdict(path, [case for case in cases if case.fails and case.verdict is verdict], meaning)
    return refusals


def _refused_verdict(path: Path, failing: Sequence[CaseRecord], meaning: str) -> list[str]:
    """A sentence for each of the first cases, and one for all the others."""
    refusals = [
        f"{path}: {case.verdict.value}, {meaning}: {case.finding}; run: {case.repro}" for case in failing[:NAMED_CASES]
    ]
    if rest := failing[NAMED_CASES:]:
        kernels = ", ".join(f"{count:,} of {name}" for name, count in Counter(case.family for case in rest).items())
        refusals.append(
            f"{path}: {len(rest):,} more cases {rest[0].verdict.value}: {kernels}; see them all: "
            f"refmoe report {path} --html out/report.html"
        )
    return refusals


def _stale_families(path: Path, cases: Sequence[CaseRecord], present: PresentHash) -> list[str]:
    """One sentence a family: a changed header makes all its cases stale at once."""
    refusals = []
    for family in sorted({case.family for case in cases if case.kernel is None}):
        try:
            now = present(family)
        except (ArgumentError, OSError) as error:
            refusals.append(f"{path}: kernel family {family} has no source any more: {error}")
            continue
        stale = [case for case in cases if case.family == family and case.kernel is None and case.stale(now)]
        if stale:
            refusals.append(
                f"{path}: the source of {family} changed since {len(stale)} of its cases ran on {stale[0].device} "
                f"({stale[0].arch}), so they say nothing about it: run them again"
            )
    return refusals


def _stale_user_kernels(path: Path, cases: Sequence[CaseRecord]) -> list[str]:
    """A sentence for each user's kernel whose sources are gone or others now.

    Files are looked for from the current folder, as pytest named them from the project's root. A kernel of a package
    names no sources: no file of it would stay the same elsewhere.
    """
    ran: dict[tuple[str, tuple[str, ...]], list[CaseRecord]] = {}
    for case in cases:
        if case.kernel is not None and case.sources and case.verdict.ran:
            ran.setdefault((case.kernel, tuple(case.sources)), []).append(case)
    refusals = []
    for (kernel, sources), mine in sorted(ran.items(), key=lambda item: item[0]):
        try:
            now = sha256_of(source_files(sources, Path()))
        except OSError as error:
            refusals.append(f"{path}: the source of {kernel} cannot be read from here: {error.strerror}")
            continue
        except (ArgumentError, SyntaxError) as error:
            refusals.append(f"{path}: the source of {kernel} is no longer what ran: {error}")
            continue
        if stale := [case for case in mine if case.stale(now)]:
            refusals.append(
                f"{path}: {' or '.join(sources)} changed since {len(stale)} cases of {kernel} ran, so they say nothing "
                "about it: run them again"
            )
    return refusals
