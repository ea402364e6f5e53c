"""Hold `refmoe/evidence.json` against itself, refmoe's models, and the bundles that it was made from."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from refmoe.chips import TARGETS
from refmoe.evidence import PATH
from refmoe.probe.claims import model_answers, model_of
from refmoe.probe.infer import infer
from refmoe.probe.instructions import BY_NAME
from refmoe.probe.merge import BadBundle, check_bundle, check_same, chip_of
from refmoe.reports.checks import GateRefusal, ReportError
from refmoe.reports.documents import (
    EDITED,
    Count,
    Model,
    Sha256,
    first_error,
    gpu_refusals,
    is_intact,
    time_refusals,
)
from refmoe.reports.environment import Driver
from refmoe.reports.reading import read_document

_AGAIN = "merge its bundle again with `refmoe probe --merge`"


class AnswerRecord(Model):
    """What a chip answered of one instruction, as a merge found it."""

    verdict: Literal["HOLDS", "DIFFERS", "NO MODEL"]
    parameters: dict[str, Any] | None
    model: str | None
    questions: Count


class ChipRecord(Model):
    """A chip that answered; `digest` is that of its bundle."""

    gpu: str
    arch: str
    driver: Driver
    created: str
    digest: Sha256
    instructions: dict[str, AnswerRecord]


class EvidenceDocument(Model):
    """The keys of `evidence.json`."""

    schema_version: Literal["1"]
    chips: list[ChipRecord]
    digest: Sha256


def evidence_refusals(path: Path = PATH, *, quick: bool = False) -> Iterator[GateRefusal]:
    """Why the gate refuses the chips that answered, without their bundles.

    Args:
        path: the file.
        quick: leave out what takes seconds, which is to infer the parameters of refmoe's own models.
    """
    try:
        document = read_document(path)
    except ReportError as error:
        yield error.refusal
        return
    try:
        EvidenceDocument.model_validate(document)
    except ValidationError as error:
        yield GateRefusal("document.schema", f"{path.name}: no valid evidence: {first_error(error)}")
        return
    if not is_intact(document):
        yield GateRefusal("document.digest", f"{path.name}: {EDITED}")
    for number, chip in enumerate(document["chips"]):
        where = f"{path.name}: {chip['gpu']}, made {chip['created']}"
        yield from (each.at(where) for each in (*time_refusals(chip), *gpu_refusals(chip["gpu"], chip["arch"])))
        yield from (GateRefusal("evidence.rows", f"{where}: {each}") for each in _rows(chip, quick))
        for other in document["chips"][:number]:
            yield from (GateRefusal("evidence.rows", f"{path.name}: {each}") for each in _beside(other, chip))


def _rows(chip: Mapping[str, Any], quick: bool) -> Iterator[str]:
    if chip["arch"] not in TARGETS:
        return  # its GPU is refused already
    for name, row in chip["instructions"].items():
        if name not in BY_NAME or chip["arch"] not in BY_NAME[name].targets:
            yield f"{name} is no instruction that {chip['arch']} is asked"
            continue
        model = model_of(BY_NAME[name], chip["arch"])
        known = None if model is None else model.name
        if row["model"] != known:
            yield f"{name} was held against the model {row['model']}, and it is {known} now; {_AGAIN}"
        elif (row["verdict"] == "NO MODEL") != (known is None and row["parameters"] is not None):
            yield f"{name} says {row['verdict']}, and its model is {known}"
        elif row["verdict"] == "HOLDS" and row["parameters"] is None:
            yield f"{name} says HOLDS, and holds no parameters"
        elif row["verdict"] == "HOLDS" and not quick:
            parameters, questions = _of_model(name, chip["arch"])
            if row["parameters"] != json.loads(parameters):
                yield f"{name} says HOLDS, and its parameters are not those of the model {known}; {_AGAIN}"
            elif row["questions"] != questions:
                yield f"{name} says HOLDS after {row['questions']:,} questions, and the model is told in {questions:,}"


@functools.cache
def _of_model(name: str, target: str) -> tuple[str, int]:
    """What a chip would answer that is as the model says: its parameters as JSON, and the number of questions."""
    asked = 0

    def answer(question: str, vectors: Any) -> list[int]:
        nonlocal asked
        asked += len(vectors)
        return model_answers(BY_NAME[name], target, vectors)

    return json.dumps(infer(BY_NAME[name], answer).parameters.document()), asked


def _beside(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    if one["digest"] == other["digest"]:
        yield f"the bundle {one['digest'][:12]} is there twice"
    try:
        check_same(one, other)
    except BadBundle as error:
        yield str(error)


def bundle_refusals(bundle: Mapping[str, Any], evidence: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """Why a committed bundle of valid form is none that the evidence was made from.

    Everything is inferred again, which takes some seconds.
    """
    try:
        checked = check_bundle(bundle)
    except BadBundle as error:
        yield GateRefusal("evidence.bundle", str(error))
        return
    held = next((chip for chip in evidence["chips"] if chip["digest"] == bundle["digest"]), None)
    if held is None:
        yield GateRefusal("evidence.bundle", f"{bundle['gpu']} is not among the chips that answered; merge the bundle")
        return
    found = chip_of(checked)
    for key in sorted(found.keys() - {"instructions"}):
        if found[key] != held[key]:
            yield GateRefusal("evidence.bundle", f"says {key} {found[key]!r}, and the evidence {held[key]!r}")
    for name in sorted(found["instructions"].keys() | held["instructions"].keys()):
        if found["instructions"].get(name) != held["instructions"].get(name):
            yield GateRefusal("evidence.bundle", f"what it answers of {name} is not what the evidence has; {_AGAIN}")
