"""A document of `refmoe litmus --device cuda`: litmus programs run on a GPU under stress; `refmoe.silicon` makes it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.documents import Count, Kind, Model, PresentHash, Sha256

#: How often every program runs.
RUNS = 1_000_000

#: How many programs a run has at least: a thousand are judged by default, and about half have no race.
PROGRAMS = 100

# What decides which programs run, what PTX says of them, and what a GPU is given.
_SOURCES = (
    "additions", "afterwards", "atomics", "axioms", "copies", "emit", "events", "fenced", "generate", "idioms",
    "interleave", "meetings", "passing", "program", "relations", "shapes", "strength", "stressed", "verdict",
)  # fmt: skip
_NAMED = 5
#: Outcomes that a row spells out.
_SHOWN = 8


class ProgramRecord(Model):
    """What became of one program."""

    shape: str
    cause: str
    program: list[str]
    runs: Count
    allowed: Count
    seen: Count
    never_seen: list[list[int]]
    outside: list[list[int]]


class LitmusDocument(Model):
    """The keys of a document."""

    kind: Literal["litmus"]
    gpu: str
    arch: str
    litmus_sha256: Sha256
    seed: int
    programs: Count
    runs: Count
    allowed_outcomes: Count
    seen_outcomes: Count
    outside: Count
    rows: list[ProgramRecord]
    digest: Sha256


def litmus_sha256() -> str:
    """SHA-256 over the sources that a run speaks for: the programs, the axioms and the kernels."""
    folder = Path(__file__).parents[1] / "litmus"
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(f"{name}\0".encode() + (folder / f"{name}.py").read_bytes())
    return digest.hexdigest()


def _judge(document: Mapping[str, Any], present: PresentHash) -> Iterator[GateRefusal | str]:
    again, rows = LITMUS.again, document["rows"]
    if document["litmus_sha256"] != litmus_sha256():
        yield f"the litmus programs changed since they ran on {document['gpu']}; {again}"
    outside = [f"{row['shape']} / {row['cause']}" for row in rows if row["outside"]]
    if outside or document["outside"]:
        named = ", ".join(outside[:_NAMED])
        yield f"{len(outside)} programs left behind what PTX does not allow on {document['gpu']}: {named}"
    if not rows:
        yield "it holds no program, so it proves nothing"
    elif len(rows) < PROGRAMS:
        yield GateRefusal("litmus.programs", f"it holds {len(rows):,} programs; needed {PROGRAMS:,}")
    # Fewer runs would pass more easily.
    if any(row["runs"] < RUNS for row in rows):
        yield f"needed {RUNS:,} runs of every program"
    yield from _totals(document)
    keys = Counter("\n".join(row["program"]) for row in rows)
    twice = [(_name(row), "is there twice") for row in rows if keys["\n".join(row["program"])] > 1]
    yield from first_and_count("litmus.programs", twice)
    yield from first_and_count("litmus.programs", ((_name(row), wrong) for row in rows for wrong in _form(row)))
    yield from first_and_count("litmus.counts", ((_name(row), wrong) for row in rows for wrong in _counts(row)))


def _name(row: Mapping[str, Any]) -> str:
    return f"program {row['shape']} / {row['cause']}"


def _totals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Totals that are not those of the rows."""
    rows = document["rows"]
    sums = {
        "programs": len(rows),
        "runs": sum(row["runs"] for row in rows),
        "allowed_outcomes": sum(row["allowed"] for row in rows),
        "seen_outcomes": sum(row["seen"] for row in rows),
        "outside": sum(bool(row["outside"]) for row in rows),
    }
    for key, found in sums.items():
        if document[key] != found:
            yield GateRefusal("litmus.counts", f"says {key} = {document[key]:,}, and its rows have {found:,}")


def _form(row: Mapping[str, Any]) -> Iterator[str]:
    """What of a program is not as programs are written: a line of its clusters and barriers, then one a thread."""
    head, *threads = row["program"] or [""]
    if not head.startswith("cluster ") or not threads or not all(each.startswith("cta ") for each in threads):
        yield f"{' | '.join(row['program'])[:60]!r} is no program"


def _counts(row: Mapping[str, Any]) -> Iterator[str]:
    if row["seen"] + len(row["outside"]) < 1 or row["seen"] > row["allowed"]:
        yield f"{row['seen']:,} outcomes seen of {row['allowed']:,} allowed ones"
    elif len(row["never_seen"]) != min(row["allowed"] - row["seen"], _SHOWN):
        missed = row["allowed"] - row["seen"]
        yield f"{missed:,} allowed outcomes were never seen, and it names {len(row['never_seen']):,}"


LITMUS = Kind(
    "litmus",
    again="run `refmoe litmus --device cuda` again",
    judge=_judge,
    model=LitmusDocument,
)
