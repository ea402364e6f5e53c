"""What a sweep found, as the document that `refmoe.reports.mutation` reads."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refmoe.errors import ArgumentError
from refmoe.mutation import cuda, host
from refmoe.mutation.sweep import swept_now
from refmoe.mutation.trial import Tried
from refmoe.reports.documents import digest_of
from refmoe.reports.environment import current_environment
from refmoe.reports.mutation import MUTATION, SCHEMA_VERSION, VERDICTS, failures, figures, grouped
from refmoe.verify.source import file_sha256

#: Why mutants live, by their ids: written by hand, after somebody has looked.
REASONS = Path(__file__).parent / "reasons.json"

_OPEN = {"verdict": "open", "reason": "nobody has looked yet"}


def read_reasons(path: Path = REASONS) -> dict[str, dict[str, str]]:
    """The reasons of survivors by mutant id: a verdict and a sentence.

    Raises:
        ArgumentError: one without them, or with a verdict that there is not.
    """
    reasons: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    for name, each in reasons.items():
        if each.keys() != {"verdict", "reason"} or each["verdict"] not in VERDICTS or not each["reason"].strip():
            raise ArgumentError("reasons", f"{each} for {name} in {path}", f"a reason and one of {', '.join(VERDICTS)}")
    return reasons


def mutation_document(
    tried: Sequence[Tried],
    *,
    of: int,
    seed: int,
    command: str,
    seconds: float,
    reasons: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """The document of a sweep.

    Args:
        tried: outcomes, in the order of the mutants.
        of: how many mutants there are.
        seed: of the sample.
        command: what the user typed.
        seconds: wall-clock time.
        reasons: of survivors, by id.
    """
    mutants = [
        {
            "id": each.id,
            "floor": each.floor,
            "kernel": each.kernel,
            "operator": each.operator,
            "outcome": each.outcome,
            "case": each.case,
            "check": each.check,
            "cases": each.cases,
        }
        for each in tried
    ]
    document: dict[str, Any] = {
        "kind": MUTATION.name,
        "schema_version": SCHEMA_VERSION,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "environment": current_environment(gpu=False).model_dump(mode="json"),
        "seconds": round(seconds, 1),
        "level": "default",
        "source_sha256": {name: file_sha256(name) for name in _files()},
        "compiler": swept_now()["compiler"],
        "sample": {"of": of, "tried": len(tried), "seed": seed},
        "summary": figures(mutants, reasons),
        "operators": grouped(mutants, "operator", reasons),
        "kernels": grouped(mutants, "kernel", reasons),
        "survivors": [
            {"id": each.id, "cases": each.cases, **reasons.get(each.id, _OPEN)}
            for each in tried
            if each.outcome == "survived"
        ],
        "mutants": mutants,
    }
    document["passed"] = not failures(document)
    return {**document, "digest": digest_of(document)}


def _files() -> list[str]:
    """The files that are mutated, by their paths below refmoe/cuda."""
    return sorted([*(f"csrc/{name}" for name in cuda.files()), *host.files()])
