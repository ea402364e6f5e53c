"""A document of `refmoe litmus --device cuda`: litmus programs run on a GPU under stress; `refmoe.silicon` makes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refmoe.reports.documents import Kind, PresentHash

#: How often every program runs.
RUNS = 1_000_000

# What decides which programs run, what PTX says of them, and what a GPU is given.
_SOURCES = (
    "axioms", "copies", "emit", "events", "generate", "idioms", "passing", "program", "relations", "shapes",
    "strength", "stressed", "verdict",
)  # fmt: skip
_NAMED = 5


def litmus_sha256() -> str:
    """SHA-256 over the sources that a run speaks for: the programs, the axioms and the kernels."""
    folder = Path(__file__).parents[1] / "litmus"
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(f"{name}\0".encode() + (folder / f"{name}.py").read_bytes())
    return digest.hexdigest()


def _judge(document: Mapping[str, Any], present: PresentHash) -> list[str]:
    again = LITMUS.again
    if document["litmus_sha256"] != litmus_sha256():
        return [f"the litmus programs changed since they ran on {document['gpu']}; {again}"]
    outside = [f"{row['shape']} / {row['cause']}" for row in document["rows"] if row["outside"]]
    if outside or document["outside"]:
        named = ", ".join(outside[:_NAMED])
        return [f"{len(outside)} programs left behind what PTX does not allow on {document['gpu']}: {named}"]
    if not document["rows"]:
        return ["it holds no program, so it proves nothing"]
    # Fewer runs would pass more easily.
    return [] if all(row["runs"] >= RUNS for row in document["rows"]) else [f"needed {RUNS:,} runs of every program"]


LITMUS = Kind(
    "litmus",
    again="run `refmoe litmus --device cuda` again",
    keys=frozenset(("gpu", "litmus_sha256", "programs", "runs", "outside", "rows")),
    judge=_judge,
)
