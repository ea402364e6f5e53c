"""A bundle of a probed chip as a section: what each tensor-core instruction computes, and whether the model holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from refmoe.reports.bench import cell_text
from refmoe.reports.html.section import Limits, Section, capped, columns, cut, facts_of
from refmoe.reports.probe import verdict


def probe_section(name: str, document: Mapping[str, Any], limits: Limits) -> Section:
    """The section of one bundle of `refmoe probe`."""
    records = sorted(document["instructions"], key=lambda record: verdict(record) == "HOLDS")
    words = Counter(map(verdict, records))
    bad = words["DIFFERS"]
    rows = [
        (
            verdict(record),
            record["name"],
            record["model"] or "",
            cell_text(record["differing"]),
            cell_text(sum(len(each["answers"]) // 8 for each in record["asked"])),
            cut(record["said"] or cell_text(record["parameters"]), limits.cell),
        )
        for record in records
    ]
    head = columns(
        ":verdict", "instruction:code", "model:code", "answers that differ:number", "asked:number", "what it computes"
    )
    left_out = [(each["name"], cut(each["reason"], limits.cell)) for each in document["left_out"]]
    counts = ", ".join(f"{count} {word}" for word, count in words.items())
    embedded = [(key, _cases(document[key])) for key in ("parity", "benchmarks") if document[key]]
    said = "" if document["device"] == "cuda" else "; these are answers of the executor, and say nothing of a chip"
    return Section(
        name,
        "probe",
        "FAIL" if bad else "PASS" if words["HOLDS"] else "NOTHING HOLDS",
        "bad" if bad else "good" if words["HOLDS"] else "warn",
        f"{document['gpu']} ({document['arch']}): {counts or 'no instruction'}{said}",
        [
            *facts_of(document),
            *(
                (f"seconds of {part}", cell_text(each))
                for part, each in document["seconds"].items()
                if each is not None
            ),
            *((key, cell_text(value)) for key, value in document["environment"].items()),
            *embedded,
        ],
        reason=cut(f"{rows[0][1]}: {rows[0][-1]}", limits.reason) if bad else "",
        tables=[
            capped("Instructions", head, rows, limits),
            capped("Left out", columns("instruction:code", "why"), left_out, limits, folded=True),
        ],
    )


def _cases(report: Mapping[str, Any]) -> str:
    """What a report inside the bundle holds; `refmoe report` shows it whole once it has a file of its own."""
    if "summary" in report:
        return cell_text(report["summary"])
    return f"{len(report.get('rows', ())):,} rows"
