"""Certificates as one JSON document, whose digest shows an edit. docs/guides/invariant.md describes it."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from refmoe.batching.prove import Certificate
from refmoe.catalog import source_sha256
from refmoe.reports.documents import digest_of
from refmoe.reports.environment import current_environment
from refmoe.reports.invariant import INVARIANT, LAYER, SCHEMA_VERSION, failures, layer_sha256


def invariant_document(
    certificates: Sequence[Certificate], *, command: str, level: str, seed: int, seconds: float
) -> dict[str, Any]:
    """Every certificate as JSON values.

    Args:
        certificates: one a subject.
        command: what the user typed.
        level: "quick" or "default".
        seed: of the data.
        seconds: the time that it took.
    """
    sources = sorted({LAYER, *(each.source for each in certificates if each.source)})
    document: dict[str, Any] = {
        "kind": INVARIANT.name,
        "schema_version": SCHEMA_VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "environment": current_environment(gpu=False).model_dump(mode="json"),
        "seconds": round(seconds, 1),
        "level": level,
        "seed": seed,
        "source_sha256": {name: layer_sha256() if name == LAYER else source_sha256(name) for name in sources},
        "certificates": [certificate_entry(each) for each in certificates],
        "cases": sum(each.cases for each in certificates),
    }
    document["passed"] = not failures(document)
    return {**document, "digest": digest_of(document)}


def certificate_entry(certificate: Certificate) -> dict[str, Any]:
    """One certificate."""
    return {
        "subject": certificate.subject,
        "source": certificate.source,
        "rests_on": certificate.rests_on,
        "verdict": "invariant" if certificate.invariant else "depends",
        "depends": certificate.depends,
        "cases": certificate.cases,
        "bytes_compared": certificate.bytes_compared,
        "sizes": list(certificate.sizes),
        "neighbours": list(certificate.neighbours),
        "ways": list(certificate.ways),
        "probes": list(certificate.probes),
        "difference": None if certificate.difference is None else dataclasses.asdict(certificate.difference),
    }
