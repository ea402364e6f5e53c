"""The end of a pytest session: one report of all outcomes, and a line for each kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from refmoe.families.gemm.family import ASSUMPTION
from refmoe.files import write_atomic
from refmoe.reports.environment import current_environment
from refmoe.reports.parity import CaseRecord, assemble_report, count_verdicts, report_text
from refmoe.verify.verdict import Verdict

#: What "bit-exact" proves of a user's kernel, by where it ran.
_PLACES = {"host": "the processor of this machine", "cuda": "the named GPU"}
_EVIDENCE = (
    "bit-exact on {place}: the registered kernel ran there, and every byte that its contract defines equals the "
    "reference; of buffers that it was handed also every byte that it must leave alone. Not seen: reads out of bounds "
    "or of what nobody wrote that happened to be harmless."
)


def write_report(path: Path, outcomes: Sequence[dict[str, Any]], command: str, seconds: float) -> str:
    """Write the report of all outcomes, in the order of their ids; the line to print.

    Where no case ran, a report that is there already is left as it was.

    Raises:
        OSError: the file cannot be written.
    """
    # The same case may have been checked twice, in two tests or in a rerun: the worst of its verdicts stands.
    worst: dict[str, CaseRecord] = {}
    for outcome in outcomes:
        record = CaseRecord.model_validate(outcome["record"])
        if record.id not in worst or record.fails:
            worst[record.id] = record
    records = [worst[name] for name in sorted(worst)]
    devices: list[str] = sorted({record.device for record in records})
    evidence = {device: _EVIDENCE.format(place=_PLACES[device]) for device in devices}
    if any(record.model == ASSUMPTION.model for record in records):
        evidence[ASSUMPTION.model] = ASSUMPTION.text
    if path.is_file() and not any(record.verdict.ran for record in records):
        return f"left as it was: {path}, because no case ran"
    report = assemble_report(
        records,
        evidence=evidence,
        command=command,
        environment=current_environment(gpu="cuda" in devices),
        seconds=seconds,
    )
    write_atomic(path, report_text(report))
    return f"written: {path}, {len(records)} cases" if records else f"written: {path}, which holds no case: none ran"


def summary_lines(outcomes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each kernel: its verdicts; and one for its policy, if that is not its contract's."""
    kernels = sorted({outcome["record"]["kernel"] for outcome in outcomes})
    for kernel in kernels:
        mine = [outcome for outcome in outcomes if outcome["record"]["kernel"] == kernel]
        verdicts = count_verdicts([Verdict(outcome["record"]["verdict"]) for outcome in mine])
        yield f"{kernel}: " + ", ".join(f"{count} {name}" for name, count in verdicts.items())
        wrong = [set(outcome["policies"]) for outcome in mine if outcome["record"]["verdict"] == Verdict.MISMATCH]
        common = set.intersection(*wrong) if wrong else set()
        if common:
            yield f"  a policy difference: all {len(wrong)} are the bytes of {', '.join(sorted(common))}"
