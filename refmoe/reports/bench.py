"""A document of `refmoe bench`: what was timed. It proves nothing, so the gate only asks that it is what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refmoe.reports.documents import Kind, PresentHash


def _judge(document: Mapping[str, Any], present: PresentHash) -> list[str]:
    timed = document.get("rows") or document.get("comparisons") or document.get("medians_s")
    if isinstance(document["name"], str) and isinstance(timed, (list, dict)):
        return []
    return ["says it is a bench document, but has no name, or no rows, comparisons or medians"]


BENCH = Kind("bench", again="run `refmoe bench` again", keys=frozenset(("name",)), judge=_judge, evidence=False)
