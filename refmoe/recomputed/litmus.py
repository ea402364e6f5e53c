"""The programs of a run of `refmoe litmus --device cuda`: its seed draws them, and axioms say what each may leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from refmoe.litmus.generate import judged
from refmoe.litmus.program import Program
from refmoe.litmus.verdict import ModelVerdict
from refmoe.reports.checks import GateRefusal, first_and_count
from refmoe.reports.litmus import LITMUS

#: Programs that are drawn for each one that a document has, at most: about half of them have a race.
_FOR_EACH = 20


def refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Programs that the seed does not draw at that place, and outcomes that the axioms count otherwise."""
    yield from first_and_count("litmus.recomputed", _wrong(document))


def _wrong(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    rows = document["rows"]
    drawn = free_of_races(len(rows) * _FOR_EACH, document["seed"])
    for number, row in enumerate(rows):
        name = f"program {number}, {row['shape']} / {row['cause']}"
        program, verdict = next(drawn, (None, None))
        if program is None or verdict is None:
            yield name, f"the seed {document['seed']} draws no such program; {LITMUS.again}"
            return
        if (row["shape"], row["cause"]) != (program.shape, program.cause):
            found = f"{program.shape} / {program.cause}"
            yield name, f"the seed {document['seed']} draws {found} there; {LITMUS.again}"
        elif row["program"] != program.key.splitlines():
            yield name, f"its text is not that of the program that the seed {document['seed']} draws; {LITMUS.again}"
        else:
            yield from ((name, wrong) for wrong in _outcomes(row, verdict))


def _outcomes(row: Mapping[str, Any], verdict: ModelVerdict) -> Iterator[str]:
    allowed = verdict.outcomes or frozenset()
    if row["allowed"] != len(allowed):
        yield f"{row['allowed']:,} allowed outcomes, and PTX allows {len(allowed):,}"
        return
    never = [tuple(outcome) for outcome in row["never_seen"]]
    if never != sorted(set(never)) or not set(never) <= allowed:
        yield "its outcomes that were never seen are out of order, there twice, or none that PTX allows"


def free_of_races(count: int, seed: int) -> Iterator[tuple[Program, ModelVerdict]]:
    """Of so many programs those that a GPU is given: without a race, and not left open."""
    for program, verdict in judged(count, seed):
        if not verdict.racy and not verdict.open and verdict.outcomes is not None:
            yield program, verdict
