"""A bundle of `refmoe probe`: what a chip's tensor cores answered, and what follows; `refmoe.probe` makes it.

It is no evidence by itself: `refmoe probe --merge` infers every parameter again before it
takes a word from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from refmoe.reports.checks import GateRefusal, ReportError
from refmoe.reports.documents import (
    Count,
    Kind,
    Model,
    PresentHash,
    Seconds,
    Sha256,
    first_error,
    gpu_refusals,
    is_intact,
    time_refusals,
    version_text,
)
from refmoe.reports.environment import Driver, Version, Word
from refmoe.reports.reading import read_bytes, read_document, shown

VERSION = "2"
"""The schema version that is written and read."""
MAX_BUNDLE_BYTES = 1 << 24
"""Larger files are refused unread: the largest bundle has a sixteenth of it."""

Words = Annotated[str, Field(pattern=r"^([0-9a-f]{8})*$")]


class AskedRecord(Model):
    """One list of questions and its answers.

    Attributes:
        question: the parameter that it is for.
        sha256: of the operands, see `refmoe.probe.vectors.Batch.sha256`.
        answers: D's bits, eight digits of base 16 for each vector.
        again: those of a second launch.
    """

    question: str
    sha256: Sha256
    answers: Words
    again: Words


class InstructionRecord(Model):
    """What one instruction answered, and what was concluded.

    Attributes:
        name: its opcode.
        status: "inferred"; "contradiction", if no member of the family fits; "unstable", if two asks differ;
            "unanswered", if the chip could not run it.
        said: of the last three, a sentence.
        parameters: as `Parameters.document` has them, where they were inferred.
        model: the name of refmoe's model, null where it has none.
        differing: answers that the model does not give, null without a model.
        holds: whether the model gives every answer and was inferred; null without a model.
        asked: the questions in order.
    """

    name: str
    status: Literal["inferred", "contradiction", "unstable", "unanswered"]
    said: str | None
    parameters: dict[str, Any] | None
    model: str | None
    differing: Count | None
    holds: bool | None
    asked: list[AskedRecord]


class ProbeEnvironment(Model):
    """Versions and machine."""

    refmoe: Version
    python: Version
    numpy: Version
    platform: Word
    driver: Driver | None
    cuda_bindings: Version | None


class LeftOut(Model):
    """What was not asked or not made, and why."""

    name: str
    reason: str


class PartSeconds(Model):
    """What each part of a bundle took, by the clock; null for a part that is not there."""

    probes: Seconds | None
    parity: Seconds | None
    benchmarks: Seconds | None


class BundleDocument(Model):
    """The keys of a bundle."""

    kind: Literal["probe"]
    schema_version: str
    created: str
    device: Literal["ptx", "cuda"]
    gpu: str
    arch: str
    environment: ProbeEnvironment
    instructions: list[InstructionRecord]
    left_out: list[LeftOut]
    seconds: PartSeconds
    parity: dict[str, Any] | None
    benchmarks: dict[str, Any] | None
    digest: Sha256


def verdict(record: Mapping[str, Any]) -> str:
    """One word on an instruction's record."""
    if record["status"] == "unanswered":
        return "UNANSWERED"
    if record["holds"] is None:
        return "NO MODEL" if record["status"] == "inferred" else "DIFFERS"
    return "HOLDS" if record["holds"] else "DIFFERS"


def read_bundle(path: Path) -> dict[str, Any]:
    """A bundle from a file that may hold anything: its form, digest, version, time and chip are as they should be.

    Raises:
        ReportError: something is not; one sentence.
    """
    read_bytes(path, MAX_BUNDLE_BYTES)  # too large, a pipe, a folder: refused before it is read as JSON
    document = read_document(path)
    name = shown(path)
    for refusal in form_refusals(document):
        raise ReportError(f"{name}: {refusal.text}", refusal.check)
    return document


def form_refusals(document: Mapping[str, Any]) -> Iterator[GateRefusal]:
    """What is wrong with the kind, version, digest, keys, time and chip of a document that may hold anything."""
    if document.get("kind") != "probe":
        text = f"is no bundle of `refmoe probe`: its kind is {document.get('kind')!r}"
        yield GateRefusal("document.kind", text)
    elif document.get("schema_version") != VERSION:
        yield GateRefusal("document.version", version_text(document.get("schema_version"), VERSION, "bundle"))
    elif not is_intact(document):
        text = "its content does not have the digest that it states: it was edited or damaged after it was made"
        yield GateRefusal("document.digest", text)
    else:
        try:
            BundleDocument.model_validate(document)
        except ValidationError as error:
            yield GateRefusal("document.schema", f"no valid bundle: {first_error(error)}")
            return
        took = sum(seconds or 0 for seconds in document["seconds"].values())
        yield from time_refusals({"created": document["created"], "seconds": took})
        if document["device"] == "cuda":
            yield from gpu_refusals(document["gpu"], document["arch"])


@dataclass(frozen=True)
class _BundleKind(Kind):
    """A bundle has an environment of its own kind, without torch and nvcc."""

    def _refusals(self, document: Mapping[str, Any], present: PresentHash) -> list[GateRefusal]:
        return list(form_refusals(document))


BUNDLE = _BundleKind(
    "probe", again="run `refmoe probe --bundle` again", judge=lambda document, present: (), evidence=False
)
"""Bundles beside reports: the gate reads their form here; `refmoe.probe.committed` infers their answers again."""
