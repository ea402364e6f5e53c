"""The report: one JSON document whose digest shows an edit.

The keys `schema_version`, `cases[]` with `id, device, arch, verdict, evidence, stage, first_mismatch, repro,
source_sha256`, and `digest` stay what they are; a new meaning takes a new schema version.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refmoe.errors import RefmoeError
from refmoe.reports.environment import Environment
from refmoe.verify.tolerances import TOLERANCES, Tolerance
from refmoe.verify.verdict import EVIDENCE, Result, Verdict

if TYPE_CHECKING:
    from refmoe.verify.plant import FaultResult

__all__ = [
    "MAPPED_CASES",
    "SCHEMA_VERSION",
    "CaseRecord",
    "MismatchMapRecord",
    "MutantRecord",
    "Report",
    "ReportError",
    "ToleranceRecord",
    "assemble_report",
    "check_report",
    "count_verdicts",
    "digest_of",
    "is_intact",
    "make_report",
    "read_document",
    "read_report",
    "record_of",
    "report_text",
    "schema_text",
]

SCHEMA_VERSION = "1"

#: Cases of a report that keep their maps of what differs: a kernel that is wrong everywhere would fill the disk.
MAPPED_CASES = 100


class ReportError(RefmoeError):
    """A file is no report, or was changed after it was made; the message says which, in a sentence."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of a document's canonical JSON: sorted keys, no spaces, UTF-8, the key `digest` left out."""
    content = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def is_intact(document: Mapping[str, Any]) -> bool:
    """Whether a document has the digest that it states; one with a NaN has none, since JSON has no word for it."""
    try:
        return digest_of(document) == document.get("digest")
    except (ValueError, RecursionError):
        return False


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
        "mutants": [_mutant_record(mutant).model_dump(mode="json") for mutant in mutants],
        "tolerances": [_tolerance_record(rule).model_dump(mode="json") for rule in TOLERANCES] if mutants else [],
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
    drawn = [MismatchMapRecord(**dataclasses.asdict(item)) for item in result.maps] if maps else []
    return CaseRecord.model_validate(
        {
            "id": result.id,
            "family": result.case.family.name,
            "device": result.device,
            "arch": result.arch,
            "verdict": result.verdict,
            "evidence": result.evidence,
            "model": result.assumption.model if result.assumption else None,
            "model_evidence": result.assumption.evidence if result.assumption else None,
            "reason": result.reason,
            "stage": result.stage,
            "first_mismatch": result.first_mismatch,
            "repro": result.repro,
            "expected": result.expected if result.verdict is Verdict.UNSUPPORTED else None,
            "source_sha256": result.source_sha256,
            "sources": list(result.sources) or None,
            "compiler": result.compiler,
            "input_sha256": result.input_sha256,
            "seed": result.case.seed,
            "compared": result.compared,
            "differing": dict(result.differing),
            "launches": list(result.launches),
            "lane_instructions": result.lane_instructions,
            "made_of": result.made_of,
            "kernel": result.kernel,
            "seconds": round(result.seconds, 4),
            "maps": drawn or None,
        }
    )


def _mutant_record(mutant: FaultResult) -> MutantRecord:
    return MutantRecord(
        name=mutant.name,
        fault=mutant.fault,
        kind=mutant.kind,
        caught=mutant.caught,
        case=mutant.case,
        verdict=mutant.verdict,
        finding=mutant.finding,
        cases=mutant.cases,
        check=mutant.check,
        accepted_by=None if mutant.accepted_by is None else list(mutant.accepted_by),
    )


def _tolerance_record(rule: Tolerance) -> ToleranceRecord:
    return ToleranceRecord(name=rule.name, source=rule.source, rule=rule.rule)


def report_text(report: Report) -> str:
    """The report as JSON to read: one case a line."""
    document = report.model_dump(mode="json")
    cases = [json.dumps(case, sort_keys=True, ensure_ascii=False) for case in document.pop("cases")]
    head = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
    body = ",\n  ".join(cases)
    return head[: -len("\n}")] + f',\n "cases": [\n  {body}\n ]\n}}\n'


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        ReportError: the file cannot be read, is empty, or holds no JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{path}: cannot be read: {error}") from error
    if not text.strip():
        raise ReportError(f"{path}: the file is empty; a report is one JSON object")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path}: no JSON, so no report: {error}") from error
    if not isinstance(document, dict):
        raise ReportError(f"{path}: holds a JSON {type(document).__name__}; a report is one JSON object")
    return document


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
        raise ReportError(f"{path}: schema version {version!r}; this refmoe reads version {SCHEMA_VERSION!r}")
    if not is_intact(document):
        raise ReportError(f"{path}: edited after it was made: its content does not have the digest that it states")
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
