"""The parity report: what became of every case of a run; how it is made, written, read and checked.

The keys `schema_version`, `cases[]` with `id, device, arch, verdict, evidence, stage, first_mismatch, repro,
source_sha256`, and `digest` stay what they are; a new meaning takes a new schema version.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from refmoe.reports.checks import ReportError
from refmoe.reports.documents import (
    EDITED,
    Count,
    Seconds,
    digest_of,
    first_error,
    is_intact,
    read_document,
    version_text,
)
from refmoe.reports.environment import Environment
from refmoe.reports.reading import shown
from refmoe.verify.tolerances import TOLERANCES
from refmoe.verify.verdict import EVIDENCE, Result, Verdict, schedule_evidence

if TYPE_CHECKING:
    from refmoe.verify.plant import FaultResult

SCHEMA_VERSION = "1"

#: Cases of a report that keep their maps of what differs: a kernel that is wrong everywhere would fill the disk.
MAPPED_CASES = 100


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_M = TypeVar("_M", bound=_Model)


def _verdict(word: object) -> object:
    """A verdict is a word in JSON; every other type of a report stands for itself alone."""
    return Verdict(word) if isinstance(word, str) else word


_Verdict = Annotated[Verdict, BeforeValidator(_verdict)]


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
    verdict: _Verdict
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
    seed: int = Field(ge=0)
    compared: int = Field(ge=0, description="bytes compared")
    differing: dict[str, Count] = Field(description="elements that differ, by stage")
    launches: list[str] = Field(description="entry, grid and block of each launch")
    lane_instructions: int = Field(ge=0, description="executed on ptx; 0 on a GPU")
    made_of: str | None = Field(
        None,
        description="of a kernel that is not ours: what it was built from and with, what ran, what was only compiled",
    )
    kernel: str | None = Field(
        None,
        description="of a user's kernel under the family's contract: FILE::NAME, or MODULE::NAME if a package has it",
    )
    schedules: int = Field(
        1, ge=1, description="legal schedules under which each launch on the executor ran; 1 for its own order alone"
    )
    warnings: list[str] = Field(
        [],
        description="accesses against the letter of PTX, on the executor, that are not known to go wrong",
    )
    seconds: Seconds
    maps: list[MismatchMapRecord] | None = Field(
        None,
        description=f"where elements differ, by stage; of the first {MAPPED_CASES} cases of a report in which any do",
    )

    @property
    def fails(self) -> bool:
        """Whether its verdict fails, or it is a refusal that the case list does not expect."""
        return self.verdict.fails or self.expected is False

    @property
    def refused_wrong_call(self) -> bool:
        """Whether it is a call with a damaged argument, its option `wrong`, that was refused as it has to be."""
        return self.expected is True and ":wrong=" in self.id

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
    verdict: _Verdict | None = Field(description="its verdict on the mutant")
    finding: str | None = Field(description="its first mismatch on the mutant, or the executor's fault")
    cases: int = Field(ge=0, description="cases run until then")
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
        description="by device: what bit-exact proves there and what it assumes; by model: what it rests on; "
        "schedules: what it proves that launches ran under several"
    )
    summary: dict[str, Count] = Field(description="cases by verdict")
    seconds: Seconds
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
    # Of a run whose cases ran under different numbers, the lowest holds for all.
    fewest = min((result.schedules for result in results if result.device == "ptx" and result.verdict.ran), default=1)
    schedules = {"schedules": schedule_evidence(fewest)} if fewest > 1 else {}
    return assemble_report(
        list(_records(results)),
        evidence={**{device: EVIDENCE[device] for device in devices}, **assumptions, **schedules},
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
        text = "JSON, but no refmoe report: it has no schema_version or no cases"
        raise ReportError(f"{shown(path)}: {text}", "document.kind")
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        raise ReportError(f"{shown(path)}: {version_text(version, SCHEMA_VERSION)}", "document.version")
    if not is_intact(document):
        raise ReportError(f"{shown(path)}: {EDITED}", "document.digest")
    try:
        return Report.model_validate(document, strict=True)
    except ValidationError as error:
        raise ReportError(f"{shown(path)}: no valid report: {first_error(error)}", "document.schema") from error


def schema_text() -> str:
    """The JSON schema of a report, as published in docs/report.schema.json."""
    schema = Report.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"refmoe report, schema version {SCHEMA_VERSION}"
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
