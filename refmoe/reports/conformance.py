"""A document of `refmoe conformance`: the executor's instructions held against a GPU's; `refmoe.silicon` makes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refmoe import ptx
from refmoe.reports.documents import Kind, PresentHash

#: Instructions that differ and are named; the others are counted.
_NAMED = 5


def isa_sha256() -> str:
    """SHA-256 over the sources that a run speaks for: what instructions, atomics and warps compute."""
    package = Path(ptx.__file__).parent
    digest = hashlib.sha256()
    for file in (*sorted((package / "isa").glob("*.py")), package / "text/memory_ops.py", package / "engine/warp.py"):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _judge(document: Mapping[str, Any], present: PresentHash) -> list[str]:
    again = CONFORMANCE.again
    if document["isa_sha256"] != isa_sha256():
        return [f"the executor's instructions changed since they were held against {document['gpu']}; {again}"]
    differing = [row["opcode"] for row in document["rows"] if row["differing"]]
    if differing or document["differing_opcodes"]:
        named = ", ".join(differing[:_NAMED])
        return [f"{len(differing)} instructions differ on {document['gpu']}: {named}"]
    return [] if document["opcodes"] else ["it holds no instruction, so it proves nothing"]


CONFORMANCE = Kind(
    "conformance",
    again="run `refmoe conformance --device cuda` again",
    keys=frozenset(("gpu", "isa_sha256", "opcodes", "differing_opcodes", "rows")),
    judge=_judge,
)
